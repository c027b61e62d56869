//! The rungs of family `ladder` give the float64 answer on random problems, mistakes planted in them are found,
//! and the product by itself gives the scores.
//!
//! `FLASHCORE_SEED` moves to other problems, `FLASHCORE_PROBLEMS` sets how many (50).

use std::collections::BTreeMap;

use flashcore_check::mutate::Operator;
use flashcore_check::{CheckOptions, CheckReport, Verdict, check_plan};
use flashcore_ir::Target;
use flashcore_kernels::ladder::{self, scores};
use flashcore_kernels::{Config, KernelCache, Plan};
use flashcore_problem::{
    DType, InputKind, Inputs, Layout, Mask, POISON, Problem, Tensor, Tolerance, compare_tap, reference_scores,
};
use flashcore_sim::FindingKind::{NeverWritten, OutOfBounds, Race};
use flashcore_sim::{SimOptions, simulate};
use flashcore_testkit::{RandomLimits, random_problem};

use crate::common::{assert_none, failure, number};
use crate::planted::{Fault, find_all};

#[test]
fn the_rungs_equal_float64() {
    let (first, count) = (number("FLASHCORE_SEED", 3000), number("FLASHCORE_PROBLEMS", 50));
    let limits = RandomLimits {
        max_work: 4_000_000,
        max_batch: 2,
        head_dim_v: true,
        ..RandomLimits::default()
    };
    let kernels = KernelCache::default();
    let configs: Vec<_> = ladder::FAMILY.configs().collect();
    let (mut failures, mut checked, mut refused) = (Vec::new(), BTreeMap::new(), 0);
    for seed in first..first + count {
        let problem = random_problem(seed, &limits).unwrap();
        let kind = InputKind::ALL[seed as usize % InputKind::ALL.len()];
        for turn in [seed, seed + 3] {
            let config = Config::Ladder(configs[turn as usize % configs.len()].into());
            let Ok(plan) = Plan::with_cache(&problem, &config, Target::Sm90a, &kernels) else {
                refused += 1;
                continue;
            };
            failures.extend(failure(&plan, seed, kind));
            *checked.entry(config.to_string()).or_insert(0) += 1;
        }
    }
    println!("{count} problems from seed {first}: {checked:?}, {refused} refused");
    assert_none(&failures);
    if count >= 100 {
        assert_eq!(checked.len(), configs.len(), "{checked:?}");
    }
}

/// Tails of rows, keys and columns; four heads on two K/V heads; a mask with two sides.
fn odd_problem(dtype: DType, head_dim: usize) -> Problem {
    let builder = Problem::builder()
        .heads(4, 2)
        .seq_len_q(75)
        .seq_len_kv(141)
        .dtype(dtype);
    let builder = builder.head_dim(head_dim).mask(Mask::window(Some(50), Some(7)));
    builder.return_lse(true).build().unwrap()
}

fn plan(problem: &Problem, id: &str) -> Plan {
    Plan::new(problem, &id.parse().unwrap(), Target::Sm80).unwrap()
}

fn check(plan: &Plan) -> CheckReport {
    let mut options = CheckOptions::default();
    options.sim.max_instructions = 1_000_000;
    check_plan(plan, &options).unwrap()
}

#[test]
fn every_rung_is_clean_at_every_head_size_it_is_made_for() {
    for config in ladder::FAMILY.configs().map(ladder::Config::from) {
        for (dtype, head_dim) in [
            (DType::F16, 40),
            (DType::F16, 64),
            (DType::BF16, 128),
            (DType::BF16, 256),
        ] {
            let plan = match Plan::new(&odd_problem(dtype, head_dim), &Config::Ladder(config), Target::Sm90a) {
                Ok(plan) => plan,
                // Those that would spill.
                Err(refusal) => {
                    assert_eq!((config.cols, head_dim), (64, 256), "{refusal}");
                    continue;
                }
            };
            let report = check(&plan);
            assert_eq!(
                report.verdict,
                Verdict::Clean,
                "{}, {dtype}, {head_dim}\n{report}",
                plan.config
            );
        }
    }
}

/// Tiles of K and V are read up to the last row, whatever the bound.
#[rustfmt::skip]
const FAULTS_OF_HYBRID: &[Fault] = &[
    Fault { name: "the next tile of K overwrites this one", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(Race), at: "", of: "k_tile" },
    Fault { name: "products begin before V is there", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(Race), at: "", of: "v_tile" },
    Fault { name: "scores and probabilities are read by other lanes than wrote them", operator: Operator::DropWarpBarrier,
        place: "k.sync_warp();", object: "", found: Some(Race), at: "", of: "s_tile" },
    Fault { name: "scores are not stored", operator: Operator::DropStore,
        place: "place.store_words(&pair", object: "s_tile", found: Some(NeverWritten), at: "", of: "s_tile" },
    Fault { name: "the tile of scores is too small", operator: Operator::ShrinkBuffer,
        place: "let s_tile", object: "s_tile", found: Some(OutOfBounds), at: "", of: "s_tile" },
    Fault { name: "the tile of V is too small", operator: Operator::ShrinkBuffer,
        place: "HeadTile::declare(", object: "v_tile", found: Some(OutOfBounds), at: "", of: "v_tile" },
    Fault { name: "rows past the end are stored", operator: Operator::BoundOne,
        place: "k.if_(row.lt(params.seq_len_q)", object: "", found: Some(OutOfBounds), at: "", of: "out" },
    Fault { name: "the log-sum-exp of rows past the end is stored", operator: Operator::BoundOne,
        place: "row.row.lt(params.seq_len_q)", object: "", found: Some(OutOfBounds), at: "", of: "lse" },
    Fault { name: "no mask", operator: Operator::Unmask,
        place: "row.sees(key", object: "", found: None, at: "", of: "" },
    Fault { name: "the output is not stored", operator: Operator::DropStore,
        place: "store_f32s(&values", object: "out", found: None, at: "", of: "" },
];

#[rustfmt::skip]
const FAULTS_OF_MMA: &[Fault] = &[
    Fault { name: "the next tile of V overwrites this one", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(Race), at: "", of: "v_tile" },
    Fault { name: "the tile of K is too small", operator: Operator::ShrinkBuffer,
        place: "HeadTile::declare(", object: "k_tile", found: Some(OutOfBounds), at: "", of: "k_tile" },
    Fault { name: "rows past the end are stored", operator: Operator::BoundOne,
        place: "row.row.lt(params.seq_len_q)", object: "", found: Some(OutOfBounds), at: "", of: "out" },
    Fault { name: "no mask", operator: Operator::Unmask,
        place: "softmax(row", object: "", found: None, at: "", of: "" },
    Fault { name: "the log-sum-exp is not stored", operator: Operator::DropStore,
        place: "params.store_lse(", object: "lse", found: None, at: "", of: "" },
];

#[test]
fn planted_faults_are_found() {
    let plan = |id| plan(&odd_problem(DType::F16, 40), id);
    find_all(&plan("ladder/hybrid-m64n32-w4"), FAULTS_OF_HYBRID);
    find_all(&plan("ladder/mma-m64n32-w4"), FAULTS_OF_MMA);
}

#[test]
fn the_product_by_itself_gives_the_scores() {
    let padded = |shape: [usize; 4]| Layout {
        shape,
        strides: [
            (shape[1] * shape[2] * shape[3]) as i64 + 64,
            (shape[2] * shape[3]) as i64,
            shape[3] as i64,
            1,
        ],
    };
    let builder = Problem::builder().batch(2).heads(4, 2).seq_len_q(75).seq_len_kv(136);
    for (problem, dtype) in [
        (builder.clone().head_dim(40).mask(Mask::CAUSAL), DType::F16),
        (builder.clone().head_dim(64).softmax_scale(0.5), DType::BF16),
        (builder.head_dim(128).layout(padded), DType::F16),
    ] {
        let problem = problem.dtype(dtype).build().unwrap();
        let inputs = Inputs::generate(&problem, InputKind::Normal, 5);
        let want = reference_scores(&problem, &inputs.q.view(), &inputs.k.view(), &inputs.v.view()).unwrap();
        for levers in scores::Levers::all() {
            let step = scores::plan(&problem, levers, Target::Sm90a).unwrap();
            assert_eq!(
                flashcore_ir::proof::prove_launch(&step.kernel, &step.launch, Target::Sm90a, None),
                []
            );
            let all = step.launch.buffers[2].bytes as usize;
            let mut buffers = [inputs.q.bytes().to_vec(), inputs.k.bytes().to_vec(), vec![POISON; all]];
            let options = SimOptions {
                uninitialized: vec![2],
                ..SimOptions::default()
            };
            let report = simulate(&step.kernel, &step.launch, &mut buffers, &options).unwrap();
            let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
            assert!(findings.is_empty(), "{levers}\n{}", findings.join("\n"));
            let flat = Layout::bshd([1, 1, 1, want.len()]);
            let mut tensor = Tensor::poisoned(dtype, flat);
            tensor.bytes_mut().copy_from_slice(&buffers[2]);
            let got: Vec<f32> = (0..want.len()).map(|i| tensor.view().get(0, 0, 0, i)).collect();
            let compared = compare_tap(&problem, &got, &want, Tolerance::of(dtype)).unwrap();
            assert!(compared.passed, "{levers}, {problem}: {compared}");
        }
    }
}

#[test]
fn the_product_refuses_what_it_does_not_serve() {
    let levers = scores::Levers {
        engine: scores::Engine::TensorCores,
        tile: 128,
    };
    let builder = || Problem::builder().heads(1, 1).head_dim(64).seq_len(64);
    for (problem, levers, part) in [
        (builder().dtype(DType::F32), levers, "f32"),
        (builder().seq_len_kv(65), levers, "multiple of 8"),
        (builder().softcap(3.0), levers, "soft cap"),
        (builder().head_dim(256), levers, "a tile of 64 needs less"),
        (builder(), scores::Levers { tile: 96, ..levers }, "64, 128"),
    ] {
        let problem = problem.build().unwrap();
        let refusal = scores::plan(&problem, levers, Target::Sm89).unwrap_err().to_string();
        assert!(refusal.contains(part), "{refusal}");
    }
}
