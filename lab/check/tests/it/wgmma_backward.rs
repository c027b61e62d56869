//! The backward pass of family `wgmma` gives the float64 gradients under the simulator and without a finding, and
//! faults planted in its main kernel are found. `FLASHCORE_SEED` moves to other problems, `FLASHCORE_PROBLEMS` sets how
//! many (12).

use flashcore_check::mutate::{Operator, mutations};
use flashcore_check::{CheckOptions, CheckReport, check_plan};
use flashcore_ir::{Chip, Kernel, Target};
use flashcore_kernels::wgmma::backward_defaults;
use flashcore_kernels::{Config, KernelCache, Plan, select};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, GradientLayouts, KvLengths, Layout, Mask, Problem, ProblemBuilder, QLengths};
use flashcore_sim::FindingKind;

use crate::common::{assert_clean, inputs_of, number};
use crate::planted::{Fault, check_with, find_all, find_all_in, place, through};

/// Rows of at least so many elements, in one order of heads and rows or the other, with gaps of 16 bytes between them.
fn padded(rng: &mut Rng, shape: [usize; 4]) -> Layout {
    let [_, seq, heads, dim] = shape;
    let mut gap = || 8 * rng.below(3);
    let row = dim + gap();
    let (inner, outer) = (row * heads + gap(), row * seq + gap());
    let (strides, batch) = match rng.below(3) {
        0 => return Layout::bshd(shape),
        1 => ([inner, row], inner * seq),
        _ => ([row, outer], outer * heads),
    };
    let strides = [batch + 8 * rng.below(2), strides[0], strides[1], 1];
    Layout {
        shape,
        strides: strides.map(|stride| stride as i64),
    }
}

/// Odd lengths, packed and equal, grouped heads, every kind of mask, rows that see nothing, both dtypes, head sizes
/// between the widths of tiles, two of them, strides; sums in order if they may be.
pub(crate) fn draw(rng: &mut Rng, head_dim: usize, in_order: bool) -> Problem {
    let (kv_heads, group, batch) = (rng.between(1, 2), rng.between(1, 4), rng.between(1, 2));
    let (rows, keys) = (rng.between(1, 260), rng.between(1, 290));
    let head_dim_v = if rng.chance(0.2) {
        [64, 128][rng.below(2)]
    } else {
        head_dim
    };
    let mask = match rng.below(5) {
        0 => Mask::FULL,
        1 => Mask::CAUSAL,
        2 => Mask::CAUSAL.top_left(),
        _ => Mask::window(Some(rng.below(90) as u32), Some(rng.below(20) as u32)),
    };
    let shapes = [
        [rows, kv_heads * group, head_dim],
        [keys, kv_heads, head_dim],
        [keys, kv_heads, head_dim_v],
        [rows, kv_heads * group, head_dim_v],
    ];
    let shapes = shapes.map(|[rows, heads, dim]| [batch, rows, heads, dim]);
    let builder = Problem::builder()
        .batch(batch + 1)
        .heads(kv_heads * group, kv_heads)
        .seq_len_q(rows)
        .seq_len_kv(keys)
        .head_dim(head_dim)
        .head_dim_v(head_dim_v)
        .dtype([DType::F16, DType::BF16][rng.below(2)])
        .deterministic(in_order && rng.chance(0.4))
        .mask(mask);
    if rng.chance(0.3) {
        let (q, k) = (rows * batch + rng.below(50), keys * batch + rng.below(50));
        let (total, used) = (q, rng.chance(0.3));
        let builder = builder.q_lengths(QLengths::Packed { total, used });
        let (total, used) = (k, rng.chance(0.3));
        let builder = builder.kv_lengths(KvLengths::Packed { total, used });
        return builder.build().unwrap().backward().unwrap();
    }
    let [q, k, v, out] = shapes.map(|shape| padded(rng, shape));
    let [dq, dk, dv, dout] = shapes.map(|shape| padded(rng, shape));
    let mut builder: ProblemBuilder = builder.batch(batch).layouts(q, k, v, out);
    if rng.chance(0.25) {
        builder = builder.offsets(rng.below(300) as i32 - 150, rng.below(300) as i32 - 150);
    }
    if rng.chance(0.25) {
        builder = builder.softmax_scale(0.02 + 0.4 * rng.unit());
    }
    builder
        .gradient_layouts(GradientLayouts { dout, dq, dk, dv })
        .build()
        .unwrap()
}

/// The default where a block has a tile for itself.
fn alone(problem: &Problem) -> Config {
    let widest = problem.head_dim().max(problem.head_dim_v());
    let mut defaults = backward_defaults();
    Config::Wgmma(defaults.find(|(_, head_dim)| widest <= *head_dim).unwrap().0)
}

#[test]
fn random_problems_equal_float64() {
    let (first, count) = (number("FLASHCORE_SEED", 0), number("FLASHCORE_PROBLEMS", 12));
    let (kernels, mut most) = (KernelCache::default(), 0f64);
    for seed in first..first + count {
        let mut rng = Rng::new(seed);
        let head_dim = [64, 128, 256, 96, 192, 8 * rng.between(1, 32)][rng.below(6)];
        let problem = draw(&mut rng, head_dim, true);
        let plan = match (problem.head_dim().max(problem.head_dim_v()), rng.below(3)) {
            (64, 0) => Plan::with_cache(
                &problem,
                &"wgmma/m64n64-s3-free".parse().unwrap(),
                Target::Sm90a,
                &kernels,
            ),
            (_, 1) => Ok(select(&problem, Target::Sm90a, 16, &kernels).unwrap().plan),
            _ => Plan::with_cache(&problem, &alone(&problem), Target::Sm90a, &kernels),
        };
        let plan = plan.unwrap();
        assert!(matches!(plan.config, Config::Wgmma(_)), "{problem} by {}", plan.config);
        let report = assert_clean(&plan, seed, inputs_of(seed));
        most = most.max(report.gate.unwrap().out.of_allowed);
    }
    println!("at most {most:.2} of the allowed error");
}

/// Two heads on a K/V head, four Q tiles each. Of two tiles of keys the first is seen by some tiles whole, by others in
/// part; both have tails.
fn plan() -> Plan {
    planned(128, false, Target::Sm90a)
}

pub(crate) fn planned(head_dim: usize, deterministic: bool, chip: impl Into<Chip>) -> Plan {
    // The sum of two numbers does not depend on their order: three tiles of keys.
    let (keys, mask) = if deterministic {
        (290, Mask::FULL)
    } else {
        (150, Mask::CAUSAL.top_left())
    };
    let builder = Problem::builder().heads(2, 1).seq_len_q(240).seq_len_kv(keys);
    let builder = builder.head_dim(head_dim).mask(mask).deterministic(deterministic);
    let problem = builder.build().unwrap().backward().unwrap();
    let config = match head_dim {
        64 => "wgmma/m128n128-s2-pingpong",
        96 | 128 => "wgmma/m64n128-s2-pingpong",
        _ => "wgmma/m64n64-s2-c2-free",
    };
    Plan::new(&problem, &config.parse().unwrap(), chip).unwrap()
}

#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    // Copies and their stages.
    Fault { name: "scores do not wait for Q", operator: Operator::DropPhaseWait,
        place: "self.start_scores()", object: "q.full", found: Some(FindingKind::MissingWait), at: "S = K*Q", of: "q_tile" },
    Fault { name: "nor for the log-sum-exp that comes with it", operator: Operator::DropPhaseWait,
        place: "self.start_scores()", object: "q.full", found: Some(FindingKind::MissingWait), at: "load_words(2", of: "lse_tile" },
    Fault { name: "dP does not wait for dO", operator: Operator::DropPhaseWait,
        place: "self.start_dp()", object: "dout.full", found: Some(FindingKind::MissingWait), at: "dP = V*dO", of: "dout_tile" },
    Fault { name: "scores do not wait for K", operator: Operator::DropPhaseWait,
        place: "self.keys.pipeline.consumer().wait()", object: "k.full", found: Some(FindingKind::MissingWait), at: "S = K*Q", of: "k_tile" },
    Fault { name: "a stage is filled while dK reads it", operator: Operator::DropPhaseWait,
        place: "acquire", object: "q.empty", found: Some(FindingKind::MissingWait), at: "dK += dS*Q", of: "q_tile" },
    Fault { name: "the log-sum-exp is not copied", operator: Operator::DropCopy,
        place: "q.next(", object: "lse_tile", found: Some(FindingKind::TransactionBytes), at: "wait_full", of: "" },
    Fault { name: "Q is given back by every lane", operator: Operator::IgnoreCondition,
        place: "release_and_advance(self.dk_q)", object: "", found: Some(FindingKind::MissingWait), at: "dK += dS*Q", of: "q_tile" },
    Fault { name: "dO is not given back", operator: Operator::DropArrive,
        place: "release_and_advance(self.dout)", object: "", found: Some(FindingKind::Deadlock), at: "acquire", of: "" },
    Fault { name: "the next head's rows are copied", operator: Operator::HeadOff,
        place: "load_tma", object: "dout_tile", found: None, at: "", of: "" },
    Fault { name: "a row of padding is read as the last row", operator: Operator::RowOff,
        place: "load_tma", object: "q_tile", found: None, at: "", of: "" },

    // Products in flight.
    Fault { name: "scores are read while they are computed", operator: Operator::DropAsyncWait,
        place: "k.wgmma_wait(0)", object: "", found: Some(FindingKind::InFlight), at: "", of: "scores" },
    Fault { name: "Q is given back while dK reads it", operator: Operator::DropAsyncWait,
        place: "k.wgmma_wait(u32::from(exists))", object: "", found: Some(FindingKind::Race), at: "q.next(", of: "q_tile" },
    Fault { name: "dO is given back while dV reads it", operator: Operator::DropAsyncWait,
        place: "k.wgmma_wait(u32::from(exists))", object: "", found: Some(FindingKind::Race), at: "dout.next(", of: "dout_tile" },
    Fault { name: "dP is read while it is computed", operator: Operator::WeakenAsyncWait,
        place: "k.wgmma_wait(0)", object: "", found: Some(FindingKind::InFlight), at: "score_gradients", of: "dp" },
    Fault { name: "dQ is kept while it is computed", operator: Operator::WeakenAsyncWait,
        place: "k.wgmma_wait(0)", object: "", found: Some(FindingKind::InFlight), at: "write_dq", of: "dq" },
    Fault { name: "products of dK are never closed", operator: Operator::DropCommit,
        place: "dK += dS*Q", object: "", found: Some(FindingKind::Race), at: "q.next(", of: "q_tile" },
    Fault { name: "no wgmma fence after P was rounded", operator: Operator::DropFence,
        place: "dV += P*dO", object: "", found: Some(FindingKind::MissingFence), at: "dV += P*dO", of: "p" },

    // The one fence of a tile, the two mbarriers of dS, pingpong.
    Fault { name: "no proxy fence before products read dS", operator: Operator::DropFence,
        place: "k.fence_proxy_async()", object: "", found: Some(FindingKind::MissingFence), at: "dQ = dS*K", of: "ds_tile" },
    Fault { name: "no proxy fence between loads of statistics and the copy of the next", operator: Operator::DropFence,
        place: "k.fence_proxy_async()", object: "", found: Some(FindingKind::MissingFence), at: "q.next(", of: "lse_tile" },
    Fault { name: "no proxy fence before dK is stored", operator: Operator::DropFence,
        place: "self.store_dk(", object: "", found: Some(FindingKind::MissingFence), at: "store_tma", of: "k_tile" },
    Fault { name: "nor before dV is", operator: Operator::DropFence,
        place: "self.store_dv(", object: "", found: Some(FindingKind::MissingFence), at: "store_tma", of: "v_tile" },
    Fault { name: "dQ does not wait for the dS of the other warpgroup", operator: Operator::DropPhaseWait,
        place: "start_dq_of", object: "ds.full", found: Some(FindingKind::Race), at: "dQ = dS*K", of: "ds_tile" },
    Fault { name: "dS is written while dQ of the tile before reads its stage", operator: Operator::DropPhaseWait,
        place: "pingpong.free", object: "ds.free", found: Some(FindingKind::Race), at: "score_gradients", of: "ds_tile" },
    Fault { name: "dS is never given", operator: Operator::DropArrive,
        place: "pingpong.full", object: "ds.full", found: Some(FindingKind::Deadlock), at: "", of: "" },
    Fault { name: "dS is given by every lane", operator: Operator::IgnoreCondition,
        place: "pingpong.full", object: "", found: Some(FindingKind::Mbarrier), at: "pingpong.full", of: "`ds.full`" },
    Fault { name: "the scheduler barrier is for a warp fewer", operator: Operator::CountBarrier,
        place: "warp_scheduler_barrier_sync", object: "", found: Some(FindingKind::BarrierMismatch), at: "", of: "" },
    Fault { name: "no warpgroup is let go first", operator: Operator::DropArrive,
        place: "barrier.arrive()", object: "", found: Some(FindingKind::Deadlock), at: "", of: "" },
    Fault { name: "dK reads dS before all warps have written it", operator: Operator::DropBarrier,
        place: "barrier.sync()", object: "", found: Some(FindingKind::Race), at: "dK += dS*Q", of: "ds_tile" },
    Fault { name: "warpgroups do not meet before dK takes the place of K", operator: Operator::DropBarrier,
        place: "self.sync_consumers()", object: "", found: Some(FindingKind::Race), at: "", of: "k_tile" },
    Fault { name: "a warp fewer meets", operator: Operator::CountBarrier,
        place: "self.sync_consumers()", object: "", found: Some(FindingKind::BarrierMismatch), at: "self.sync_consumers()", of: "" },
    Fault { name: "dS of all tiles goes to one stage", operator: Operator::DropRemainder,
        place: "score_gradients", object: "", found: Some(FindingKind::NeverWritten), at: "dQ = dS*K", of: "ds_tile" },

    // dQ.
    Fault { name: "dQ is added before it is there", operator: Operator::DropPhaseWait,
        place: "full.at(stage).wait(phase)", object: "dq.full", found: Some(FindingKind::NeverWritten), at: "store_dq", of: "dq_tile" },
    Fault { name: "dQ is given by every lane", operator: Operator::IgnoreCondition,
        place: "commit_dq", object: "", found: Some(FindingKind::Mbarrier), at: "commit_dq", of: "`dq.full`" },
    Fault { name: "the last dQ is added before the warp has written it", operator: Operator::DropWarpBarrier,
        place: "k.sync_warp()", object: "", found: Some(FindingKind::Race), at: "store_dq", of: "dq_tile" },
    Fault { name: "dQ is not added", operator: Operator::DropCopy,
        place: "store_dq", object: "dq_sums", found: None, at: "", of: "" },
    Fault { name: "dQ is added twice", operator: Operator::AddTwice,
        place: "store_dq", object: "dq_sums", found: None, at: "", of: "" },
    Fault { name: "dQ is added by the warps of both stages", operator: Operator::IgnoreCondition,
        place: "stage.eq(index)", object: "", found: Some(FindingKind::Deadlock), at: "", of: "" },
    Fault { name: "a block stores what others have added to", operator: Operator::InvertCondition,
        place: "store_dq", object: "", found: None, at: "", of: "" },
    Fault { name: "a block adds before the first one has stored", operator: Operator::RelaxFlag,
        place: "word.load_acquire()", object: "", found: Some(FindingKind::BlockRace), at: "store_dq", of: "dq_sums" },
    Fault { name: "others may add before what the first one stores has arrived", operator: Operator::OnlyRead,
        place: "let_others_add", object: "", found: Some(FindingKind::BlockRace), at: "store_dq", of: "dq_sums" },
    Fault { name: "they may add without an order", operator: Operator::RelaxFlag,
        place: "let_others_add", object: "", found: Some(FindingKind::BlockRace), at: "store_dq", of: "dq_sums" },
    Fault { name: "they may never add", operator: Operator::DropStore,
        place: "let_others_add", object: "", found: Some(FindingKind::Deadlock), at: "claim_dq", of: "workspace" },
    Fault { name: "a stage is free before dQ has been read", operator: Operator::DropAsyncWait,
        place: "store_dq", object: "", found: Some(FindingKind::Race), at: "write_dq", of: "dq_tile" },
    Fault { name: "dQ is overwritten before its stage is free", operator: Operator::DropPhaseWait,
        place: "write_dq", object: "dq.free", found: Some(FindingKind::Race), at: "write_dq", of: "dq_tile" },
    Fault { name: "additions are never closed", operator: Operator::DropCommit,
        place: "store_dq", object: "", found: Some(FindingKind::Race), at: "write_dq", of: "dq_tile" },
    Fault { name: "a block ends while dK is stored", operator: Operator::DropAsyncWait,
        place: "self.one_lane(|| self.k.bulk_wait_read(0))", object: "", found: Some(FindingKind::MissingWait), at: "store_tma", of: "" },

    // Arithmetic, masks and descriptors.
    Fault { name: "P is not divided by the saved sum", operator: Operator::DropAddend,
        place: "probabilities", object: "", found: None, at: "", of: "" },
    Fault { name: "delta is not subtracted", operator: Operator::DropAddend,
        place: "score_gradients", object: "", found: None, at: "", of: "" },
    Fault { name: "another statistic", operator: Operator::WrongParam,
        place: "row_delta", object: "", found: None, at: "", of: "" },
    Fault { name: "a query that does not see the key", operator: Operator::Unmask,
        place: "mask", object: "", found: None, at: "", of: "" },
    Fault { name: "dK is not scaled", operator: Operator::DropFactor,
        place: "Some(scale) => value * scale", object: "", found: None, at: "", of: "" },
    Fault { name: "dS with the wrong stride", operator: Operator::DescriptorStride,
        place: "dQ = dS*K", object: "", found: Some(FindingKind::Descriptor), at: "dQ = dS*K", of: "ds_tile" },
    Fault { name: "Q taken the other way round", operator: Operator::FlipTranspose,
        place: "dK += dS*Q", object: "", found: None, at: "", of: "" },
];

#[test]
fn planted_faults_are_found_with_kind_and_place() {
    find_all(&plan(), FAULTS);
}

/// The last products of dK and dV are waited for three times, and each is enough: all such waits are dropped.
#[test]
fn gradients_stored_while_they_are_computed_are_found() {
    let plan = plan();
    let mut kernel = Kernel::clone(&plan.main.kernel);
    let wait = |kernel: &Kernel| {
        let mut all = mutations(kernel).into_iter();
        all.find(|m| m.operator == Operator::DropAsyncWait && place(m, kernel).contains("k.wgmma_wait("))
    };
    while let Some(mutation) = wait(&kernel) {
        kernel = mutation.apply(&kernel);
    }
    let report = check_with(&plan, kernel, plan.main.launch.clone(), &CheckOptions::default());
    for (sum, at) in [("dk", "=> value * scale"), ("dv", "=> value.get()")] {
        let mut findings = report.findings.iter().map(|found| &found.finding);
        let stored = findings.any(|f| {
            f.kind == FindingKind::InFlight && f.object.as_deref() == Some(sum) && through(&f.lines).contains(at)
        });
        assert!(stored, "{sum}: {report}");
    }
}

/// The consumers fence what they wrote, and the warp that sends it does behind the word of its tile: either is enough.
#[test]
fn dq_sent_without_any_proxy_fence_is_found() {
    let plan = plan();
    let fence = |kernel: &Kernel| {
        let mut all = mutations(kernel).into_iter();
        all.find(|m| {
            m.operator == Operator::DropFence
                && ["fence_proxy_async", "claim_dq"]
                    .iter()
                    .any(|at| place(m, kernel).contains(at))
        })
    };
    let mut kernel = Kernel::clone(&plan.main.kernel);
    while let Some(mutation) = fence(&kernel) {
        kernel = mutation.apply(&kernel);
    }
    let report = check_with(&plan, kernel, plan.main.launch.clone(), &CheckOptions::default());
    let mut findings = report.findings.iter().map(|found| &found.finding);
    let of_dq = findings.any(|f| f.kind == FindingKind::MissingFence && f.object.as_deref() == Some("dq_tile"));
    assert!(of_dq, "{report}");
}

/// Where warpgroups share the products, and two blocks exchange dS.
#[rustfmt::skip]
const FAULTS_OF_PAIRS: &[Fault] = &[
    // The exchange.
    Fault { name: "dS is sent before all warps have written it", operator: Operator::DropBarrier,
        place: "barrier_among(DS_FULL", object: "", found: Some(FindingKind::Race), at: "send_ds", of: "ds_tile" },
    Fault { name: "no proxy fence before dS is sent", operator: Operator::DropFence,
        place: "k.fence_proxy_async()", object: "", found: Some(FindingKind::MissingFence), at: "send_ds", of: "ds_tile" },
    Fault { name: "nor before products read it", operator: Operator::DropFence,
        place: "k.fence_proxy_async()", object: "", found: Some(FindingKind::MissingFence), at: "dQ = dS*K", of: "ds_tile" },
    Fault { name: "dS is not sent", operator: Operator::DropCopy,
        place: "send_ds", object: "", found: Some(FindingKind::TransactionBytes), at: "", of: "" },
    Fault { name: "dS completes at another mbarrier", operator: Operator::WrongMbarrier,
        place: "send_ds", object: "", found: Some(FindingKind::TransactionBytes), at: "", of: "" },
    Fault { name: "dQ is computed before the other block's dS has come", operator: Operator::DropPhaseWait,
        place: "exchange.full.at(other).wait(phase)", object: "ds.full", found: Some(FindingKind::MissingWait), at: "dQ = dS*K", of: "other_ds_tile" },
    Fault { name: "a block ends while the other one sends", operator: Operator::DropClusterWait,
        place: "k.cluster_wait()", object: "", found: Some(FindingKind::PeerLifetime), at: "", of: "" },
    Fault { name: "both warpgroups compute the same columns of dQ", operator: Operator::DropAddend,
        place: "Warpgroup::new", object: "", found: None, at: "", of: "" },
    Fault { name: "a part of dQ is not added", operator: Operator::DropAtomic,
        place: "add_dq", object: "dq_sums", found: None, at: "", of: "" },
    Fault { name: "a part of dQ is added twice", operator: Operator::AddTwice,
        place: "add_dq", object: "dq_sums", found: None, at: "", of: "" },
    Fault { name: "a block keeps its part of Q", operator: Operator::DropMulticast,
        place: "q.next(", object: "", found: Some(FindingKind::TransactionBytes), at: "", of: "" },

    // What each warpgroup does.
    Fault { name: "dS is computed before P has come", operator: Operator::DropBarrier,
        place: "barrier_among(P_FULL", object: "", found: Some(FindingKind::Race), at: "", of: "p_tile" },
    Fault { name: "scores are read while they are computed", operator: Operator::DropAsyncWait,
        place: "k.wgmma_wait(1)", object: "", found: Some(FindingKind::InFlight), at: "", of: "scores" },
    Fault { name: "Q is given back while dK reads it", operator: Operator::DropAsyncWait,
        place: "k.wgmma_wait(1)", object: "", found: Some(FindingKind::Race), at: "q.next(", of: "q_tile" },
    Fault { name: "dO is given back while dV reads it", operator: Operator::DropAsyncWait,
        place: "k.wgmma_wait(0)", object: "", found: Some(FindingKind::Race), at: "dout.next(", of: "dout_tile" },
    Fault { name: "dQ is added while it is computed", operator: Operator::WeakenAsyncWait,
        place: "k.wgmma_wait(if is_last", object: "", found: Some(FindingKind::InFlight), at: "add_dq", of: "dq" },
    Fault { name: "P is not divided by the saved sum", operator: Operator::DropAddend,
        place: "probabilities", object: "", found: None, at: "", of: "" },
];

#[test]
fn faults_of_pairs_are_found() {
    for head_dim in [192, 256] {
        find_all(&planned(head_dim, false, Target::Sm90a), FAULTS_OF_PAIRS);
    }
}

/// Where V and dS are held in registers.
#[rustfmt::skip]
const FAULTS_OF_HELD_OPERANDS: &[Fault] = &[
    Fault { name: "V is loaded before it has come", operator: Operator::DropPhaseWait,
        place: "context.values.pipeline.consumer().wait()", object: "v.full", found: Some(FindingKind::MissingWait), at: "V to registers", of: "v_tile" },
    Fault { name: "Q is given back while dK reads it", operator: Operator::DropAsyncWait,
        place: "k.wgmma_wait(u32::from(exists))", object: "", found: Some(FindingKind::Race), at: "q.next(", of: "q_tile" },
    Fault { name: "dQ is kept while it is computed", operator: Operator::DropAsyncWait,
        place: "k.wgmma_wait(0)", object: "", found: Some(FindingKind::InFlight), at: "write_dq", of: "dq" },
    Fault { name: "delta is not subtracted", operator: Operator::DropAddend,
        place: "score_gradients", object: "", found: None, at: "", of: "" },
    Fault { name: "no proxy fence before dK is stored", operator: Operator::DropFence,
        place: "self.store_dk(tile, dk, (q,", object: "", found: Some(FindingKind::MissingFence), at: "store_tma", of: "q_tile" },
];

#[test]
fn faults_of_held_operands_are_found() {
    find_all(&planned(64, false, Target::Sm90a), FAULTS_OF_HELD_OPERANDS);
    find_all(&planned(96, false, Target::Sm90a), &FAULTS_OF_HELD_OPERANDS[..1]);
}

/// Rows past the end of a packed sequence are those of the next one: only their statistics keep them out.
#[test]
fn padding_that_is_prepared_as_rows_is_found() {
    let fault = Fault {
        name: "padding rows have the statistics of rows",
        operator: Operator::IgnoreCondition,
        place: "k.if_(is_row.divergent()",
        object: "",
        found: None,
        at: "",
        of: "",
    };
    for head_dim in [64, 128, 256] {
        let lengths = QLengths::Packed { total: 300, used: true };
        let builder = Problem::builder().batch(3).heads(2, 1).seq_len_q(150).seq_len_kv(100);
        let builder = builder
            .head_dim(head_dim)
            .q_lengths(lengths)
            .kv_lengths(KvLengths::Packed {
                total: 300,
                used: false,
            });
        let problem = builder.build().unwrap().backward().unwrap();
        let plan = Plan::new(&problem, &alone(&problem), Target::Sm90a).unwrap();
        find_all_in(
            &plan,
            |plan| &mut plan.before[0],
            std::slice::from_ref(&fault),
            &CheckOptions::default(),
        );
    }
}

/// Zeros and statistics that are not there, or are others.
#[test]
fn plans_that_lie_are_found() {
    let check = |head_dim: usize, change: &dyn Fn(&mut Plan)| {
        let mut mutant = planned(head_dim, false, Target::Sm90a);
        change(&mut mutant);
        check_plan(&mutant, &CheckOptions::default()).unwrap()
    };
    let never_written = |report: &CheckReport, what: &str| {
        let mut findings = report.findings.iter().map(|found| &found.finding);
        let found = findings.any(|f| f.kind == FindingKind::NeverWritten && f.object.as_deref() == Some(what));
        assert!(found, "{report}");
    };
    // The padding of the last tile of the last head.
    let unpadded = check(128, &|plan| plan.before[0].launch.grid[0] -= 1);
    never_written(&unpadded, "row_lse");
    // Statistics that leave the sums of dQ as they were: whatever was there.
    let not_zeroed = check(256, &|plan| {
        let scalar = "scalar/tiled-m16n16-w4-v16".parse().unwrap();
        let scalar = Plan::new(&plan.problem, &scalar, Target::Sm90a).unwrap();
        let bytes = plan.main.launch.workspace_bytes();
        plan.before = scalar.before;
        let buffers = plan.before[0].launch.buffers.iter_mut();
        buffers
            .filter(|spec| spec.name == "workspace")
            .for_each(|spec| spec.bytes = bytes);
    });
    assert_eq!(not_zeroed.gate.unwrap().gradient, Some("dq"));
    let unrounded = check(128, &|plan| plan.then.clear());
    assert_eq!(unrounded.gate.unwrap().gradient, Some("dq"));
}
