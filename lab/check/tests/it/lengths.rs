//! Packed sequences, caches and pages: kernels give the float64 answer for lengths that are read on the device, and
//! mistakes in reading them are found.
//!
//! `FLASHCORE_SEED` moves to other problems, `FLASHCORE_PROBLEMS` sets how many (30: two of each
//! combination of axes).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flashcore_check::mutate::{Operator, mutations};
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::{BufferSpec, Chip, Target};
use flashcore_kernels::{Config, KernelCache, Plan, Refusal, mma, wgmma};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, InputKind, KvLengths, Lengths, Mask, POISON, Problem, QLengths};
use flashcore_sim::{Finding, SimOptions, Written, simulate};
use flashcore_testkit::{RandomLimits, random_problem};

use crate::common::{assert_clean, number};
use crate::planted::{check_with, quoted};

/// A config that serves a problem: one of these, with accesses as wide as its strides allow.
fn plan(problem: &Problem, kernels: &KernelCache, rungs: &[&str], target: Target) -> Plan {
    let widths = ["-v16", "-v8", "-v4", "-v2"];
    let configs = rungs
        .iter()
        .flat_map(|rung| widths.map(|width| format!("{rung}{width}")));
    let mut refusals = Vec::new();
    for config in configs {
        let config: Config = config.parse().unwrap();
        match Plan::with_cache(problem, &config, target, kernels) {
            Ok(plan) => return plan,
            Err(refusal) => refusals.push(refusal.to_string()),
        }
    }
    panic!("{problem}: {}", refusals.join("\n"));
}

fn limits() -> RandomLimits {
    RandomLimits {
        max_seq: 200,
        max_work: 1_500_000,
        max_batch: 4,
        lengths: true,
        head_dim_v: true,
        ..RandomLimits::default()
    }
}

/// Checks random problems by the plans that `plan` gives, on every combination of lengths. Returns how many have none.
fn equals_float64(limits: &RandomLimits, most_refused: u64, mut plan: impl FnMut(u64, &Problem) -> Option<Plan>) {
    let (first, count) = (number("FLASHCORE_SEED", 0), number("FLASHCORE_PROBLEMS", 30));
    let (mut combinations, mut refused) = (BTreeSet::new(), 0);
    for seed in first..first + count {
        let problem = random_problem(seed, limits).unwrap();
        let Some(plan) = plan(seed, &problem) else {
            refused += 1;
            continue;
        };
        let names = plan.main.launch.buffers.iter().map(|spec| spec.name);
        combinations.insert(
            names
                .filter(|name| Lengths::<i32>::NAMES.contains(name))
                .collect::<Vec<_>>(),
        );
        // Every fourth problem on data that is meant to break kernels: of every combination one.
        let inputs = match seed % 4 {
            1 => InputKind::ALL[seed as usize / 4 % InputKind::ALL.len()],
            _ => InputKind::Normal,
        };
        assert_clean(&plan, seed, inputs);
    }
    assert!(refused <= most_refused, "{refused} refused");
    let least = if most_refused == 0 { 3 * 5 } else { 3 * 4 };
    assert!(count < 60 || combinations.len() >= least, "{combinations:?}");
}

#[test]
fn the_scalar_rungs_equal_float64() {
    let kernels = KernelCache::default();
    let naive = ["scalar/naive-t64"].as_slice();
    let tiled = [
        "scalar/tiled-m32n32-w4",
        "scalar/tiled-m32n16-w4",
        "scalar/tiled-m16n16-w4",
    ]
    .as_slice();
    equals_float64(&limits(), 0, |seed, problem| {
        let rungs = if seed % 4 == 0 { naive } else { tiled };
        Some(plan(problem, &kernels, rungs, Target::Sm80))
    });
}

#[test]
fn mma_equals_float64() {
    let limits = RandomLimits {
        dtypes: &[DType::F16, DType::BF16],
        odd_strides: false,
        ..limits()
    };
    let (kernels, mut rng) = (KernelCache::default(), Rng::new(1));
    equals_float64(&limits, 0, |_, problem| {
        let mut drawn = (0..10_000).filter_map(|_| {
            let config = Config::Mma(mma::FAMILY.sample(&mut rng).into());
            Plan::with_cache(problem, &config, Target::Sm80, &kernels).ok()
        });
        Some(drawn.next().unwrap())
    });
}

/// All but pages that are not copied in boxes.
#[test]
fn wgmma_equals_float64() {
    let limits = RandomLimits {
        dtypes: &[DType::F16, DType::BF16],
        odd_strides: false,
        ..limits()
    };
    let (kernels, mut rng) = (KernelCache::default(), Rng::new(1));
    equals_float64(&limits, number("FLASHCORE_PROBLEMS", 30) / 2, |_, problem| {
        let mut refusal = None;
        for _ in 0..10_000 {
            let config = Config::Wgmma(wgmma::FAMILY.sample(&mut rng).into());
            match Plan::with_cache(problem, &config, FEW_SMS, &kernels) {
                Ok(plan) => return Some(plan),
                Err(Refusal::Unsupported { what, .. }) => {
                    refusal = Some(what);
                    break;
                }
                Err(_) => {}
            }
        }
        let refusal = refusal.unwrap();
        let of_boxes = ["pages of", "elements apart", "that repeat"];
        let of_boxes = of_boxes.iter().any(|what| refusal.contains(what));
        assert!(of_boxes, "{problem}: {refusal}");
        None
    });
}

pub(crate) const SCALAR: &str = "scalar/tiled-m16n16-w4-v16";
pub(crate) const MMA: &str = "mma/m16n32-w1x2-s2-b1-qsh-xor-cond-gqa";
/// With a block for each tile of the bounds, which reads lengths itself.
const MMA_GRID: &str = "mma/m16n32-w1x2-s2-b1-qsh-xor-cond";
pub(crate) const WGMMA: &str = "wgmma/m128n32-s2-free-cond";

/// So few that blocks have several tiles, and pieces of tiles.
const FEW_SMS: Chip = Chip {
    target: Target::Sm90a,
    sms: 5,
};

/// Sequences with rows and keys past their ends, in packed tensors or in pages.
pub(crate) fn ragged(config: &str, kv_lengths: KvLengths, mask: Mask) -> Plan {
    let chip = match config {
        SCALAR | MMA | MMA_GRID => Chip::from(Target::Sm80),
        _ => FEW_SMS,
    };
    ragged_on(chip, config, [40, 50], kv_lengths, mask)
}

fn ragged_on(chip: Chip, config: &str, [rows, keys]: [usize; 2], kv_lengths: KvLengths, mask: Mask) -> Plan {
    let dtype = if config == SCALAR { DType::F32 } else { DType::F16 };
    let q_lengths = QLengths::Packed {
        total: 2 * rows,
        used: true,
    };
    let problem = Problem::builder()
        .batch(3)
        .heads(2, 1)
        .head_dim(16)
        .seq_len_q(rows)
        .seq_len_kv(keys)
        .dtype(dtype);
    let problem = problem
        .return_lse(true)
        .mask(mask)
        .q_lengths(q_lengths)
        .kv_lengths(kv_lengths)
        .build()
        .unwrap();
    Plan::new(&problem, &config.parse().unwrap(), chip).unwrap()
}

pub(crate) const PACKED: KvLengths = KvLengths::Packed { total: 110, used: true };
const PAGED_LONG: KvLengths = KvLengths::Paged {
    page_size: 16,
    pages: 120,
    max_pages: 57,
};
pub(crate) const PAGED: KvLengths = KvLengths::Paged {
    page_size: 5,
    pages: 40,
    max_pages: 10,
};
/// Pages that tensor copies bring in boxes.
pub(crate) const PAGED_BOXES: KvLengths = KvLengths::Paged {
    page_size: 8,
    pages: 40,
    max_pages: 10,
};

/// Mistakes in reading lengths: what breaks, where (the memory accessed or text of the line), and how.
#[rustfmt::skip]
const PLANTED: [(&str, &str, KvLengths, Operator, &str); 30] = [
    ("neighbour's first row of Q", SCALAR, PACKED, Operator::NextAccess, "cu_seqlens_q"),
    ("the rows before in Q", SCALAR, PACKED, Operator::PreviousAccess, "cu_seqlens_q"),
    ("neighbour's number of rows", SCALAR, PACKED, Operator::NextAccess, "seqused_q"),
    ("neighbour's first key", SCALAR, PACKED, Operator::NextAccess, "cu_seqlens_k"),
    ("the keys before", SCALAR, PACKED, Operator::PreviousAccess, "cu_seqlens_k"),
    ("neighbour's number of keys", SCALAR, PACKED, Operator::NextAccess, "seqused_k"),
    ("number of keys of the sequence before", SCALAR, PAGED, Operator::PreviousAccess, "seqused_k"),
    ("stale page: the entry before", SCALAR, PAGED, Operator::PreviousAccess, "block_table"),
    ("stale page: the next entry", SCALAR, PAGED, Operator::NextAccess, "block_table"),
    ("first row of every page", SCALAR, PAGED, Operator::DropRemainder, "load_tile("),
    ("length of the keys off by one", SCALAR, PACKED, Operator::BoundOne, "row.sees(key)"),
    ("length of the rows off by one", SCALAR, PACKED, Operator::BoundOne, "row.row.lt(params.seq_len_q)"),
    ("tail of V", SCALAR, PACKED, Operator::BoundOne, "load_tile(k, shape, v_tile"),
    ("mma: neighbour's first row of Q", MMA_GRID, PACKED, Operator::NextAccess, "cu_seqlens_q"),
    ("mma: neighbour's first key", MMA_GRID, PACKED, Operator::NextAccess, "cu_seqlens_k"),
    ("mma: neighbour's number of keys", MMA_GRID, PAGED, Operator::NextAccess, "seqused_k"),
    ("mma: words of the first item and its rows, each one on", MMA, PACKED, Operator::NextAccess, "schedule_first_items"),
    ("mma: stale page, the entry before", MMA, PAGED, Operator::PreviousAccess, "block_table"),
    ("mma: length of the keys off by one", MMA, PACKED, Operator::BoundOne, "warp.mask(first_key)"),
    ("mma: tail of V", MMA, PACKED, Operator::FullCopy, "v_tile"),
    ("wgmma: neighbour's first row of Q", WGMMA, PACKED, Operator::NextAccess, "cu_seqlens_q"),
    ("wgmma: neighbour's first key", WGMMA, PACKED, Operator::NextAccess, "cu_seqlens_k"),
    ("wgmma: the keys before", WGMMA, PACKED, Operator::PreviousAccess, "cu_seqlens_k"),
    ("wgmma: neighbour's number of keys", WGMMA, KvLengths::Cache, Operator::NextAccess, "seqused_k"),
    ("wgmma: stale page, the entry before", WGMMA, PAGED_BOXES, Operator::PreviousAccess, "block_table"),
    ("wgmma: stale page, the next entry", WGMMA, PAGED_BOXES, Operator::NextAccess, "block_table"),
    ("wgmma: tail of V, and of K, in the last page", WGMMA, PAGED_BOXES, Operator::OnlyBound, ".min(page_size)"),
    ("wgmma: keys that end before their first one", WGMMA, PACKED, Operator::DropAddend, "rows.keys(&sequence)"),
    ("wgmma: V from its second row on", WGMMA, KvLengths::Cache, Operator::RowOff, "fill_stage(cluster, self.values.tile"),
    ("wgmma: length of the keys off by one in the mask", WGMMA, PACKED, Operator::BoundOne, "self.mask(rows, first_key)"),
];

#[test]
fn planted_mistakes_are_found() {
    for (name, config, kv_lengths, operator, place) in PLANTED {
        let plan = ragged(config, kv_lengths, Mask::FULL);
        let all = mutations(&plan.main.kernel)
            .into_iter()
            .filter(|mutation| mutation.operator == operator);
        let here = all.filter(|m| m.object.as_deref() == Some(place) || quoted(m.line).contains(place));
        let here: Vec<_> = here.collect();
        assert!(!here.is_empty(), "{name}: nowhere to plant it");
        // Values of several seeds, of which some hide a mistake: no sequence may have a neighbour with other values.
        let found = |seed: u64| {
            let options = CheckOptions {
                seed,
                ..CheckOptions::default()
            };
            here.iter().any(|mutation| {
                let kernel = mutation.apply(&plan.main.kernel);
                let report = check_with(&plan, kernel, plan.main.launch.clone(), &options);
                report.verdict != Verdict::Clean
            })
        };
        assert!((0..6).any(found), "{name}");
    }
}

/// Mistakes in the schedule and in what follows from it, in each family that has one: the step, what breaks, and where.
#[rustfmt::skip]
const PLANTED_IN_SCHEDULE: [(&str, usize, Operator, &str); 8] = [
    ("the number of keys of the next sequence", 0, Operator::NextAccess, "seqused_k"),
    ("the first row of the sequence before", 0, Operator::PreviousAccess, "cu_seqlens_q"),
    ("the number of tiles rounded down", 0, Operator::DropAddend, "let count = (rows"),
    ("sums of the round before: a missing barrier", 0, Operator::DropBarrier, "k.barrier();"),
    ("a piece begins a K block late", 0, Operator::OffsetOne, "let (first, end) = (tile.start"),
    ("a piece has another slot", 0, Operator::OffsetOne, "first + block + 2"),
    ("the list of pieces is not reset", 0, Operator::DropStore, "store_words(&nothing"),
    ("the next partial", 2, Operator::NextAccess, "split_sums"),
];

/// The same where blocks have several items.
#[rustfmt::skip]
const PLANTED_IN_LONG_LISTS: [(&str, usize, Operator, &str); 2] = [
    ("an item is not written", 0, Operator::DropStore, "schedule_items"),
    ("an item again", 1, Operator::PreviousAccess, "schedule_items"),
];

/// What only `mma` reads: a copy of each block's first item, and the rows of its sequence with an item.
#[rustfmt::skip]
const PLANTED_IN_ITEMS_OF_MMA: [(&str, usize, Operator, &str); 4] = [
    ("a first item is not written", 0, Operator::DropStore, "schedule_first_items"),
    ("the first row of the next sequence", 0, Operator::NextAccess, "cu_seqlens_q"),
    ("the rows of a sequence are not written", 0, Operator::DropStore, "schedule_item_rows"),
    ("the words of rows one on", 1, Operator::NextAccess, "schedule_item_rows"),
];

#[test]
fn mistakes_in_the_schedule_are_found() {
    let one_sm = Chip { sms: 1, ..FEW_SMS };
    // So long that tiles are cut, and of several tiles each.
    for (config, pages, lens) in [
        (MMA, PAGED, [40, 50]),
        ("wgmma/m64n32-s2-free-cond", PAGED_LONG, [100, 300]),
    ] {
        let plan = ragged_on(FEW_SMS, config, lens, pages, Mask::CAUSAL);
        for (name, step, operator, place) in PLANTED_IN_SCHEDULE {
            is_found_in_step(&format!("{config}: {name}"), &plan, step, operator, place);
        }
        // With more blocks than tiles, `combine` loads more partials at once than there usually are.
        let many_sms = Chip { sms: 60, ..FEW_SMS };
        let plan = ragged_on(many_sms, config, lens, pages, Mask::CAUSAL);
        is_found_in_step(
            "a piece counted twice",
            &plan,
            2,
            Operator::BoundOne,
            "split.lt(splits)",
        );
        let plan = ragged_on(one_sm, config, lens, pages, Mask::CAUSAL);
        for (name, step, operator, place) in PLANTED_IN_LONG_LISTS {
            is_found_in_step(&format!("{config}: {name}"), &plan, step, operator, place);
        }
    }
    let plan = ragged_on(one_sm, MMA, [40, 50], PAGED, Mask::CAUSAL);
    for (name, step, operator, place) in PLANTED_IN_ITEMS_OF_MMA {
        is_found_in_step(name, &plan, step, operator, place);
    }
}

/// A mistake in a step of a plan, planted where a line or the memory accessed has `place`, is found with values of one
/// of six seeds.
pub(crate) fn is_found_in_step(name: &str, plan: &Plan, step: usize, operator: Operator, place: &str) {
    let kernel = plan.steps().nth(step).unwrap().kernel.clone();
    let all = mutations(&kernel).into_iter().filter(|m| m.operator == operator);
    let here = all.filter(|m| m.object.as_deref() == Some(place) || quoted(m.line).contains(place));
    let here: Vec<_> = here.collect();
    assert!(!here.is_empty(), "{name}: nowhere to plant it");
    let found = |seed: u64| {
        let mut options = CheckOptions {
            seed,
            ..CheckOptions::default()
        };
        options.sim.max_instructions = 1_000_000;
        here.iter().any(|mutation| {
            let mut mutant = plan.clone();
            mutant.steps_mut().nth(step).unwrap().kernel = Arc::new(mutation.apply(&kernel));
            check_plan(&mutant, &options).unwrap().verdict != Verdict::Clean
        })
    };
    assert!((0..6).any(found), "{name}");
}

/// Long caches in few sequences, cut by a schedule or into equal splits: most blocks of the grid have a piece, and
/// pieces are merged.
#[test]
fn decoding_from_long_caches_splits_keys() {
    for kv_lengths in [KvLengths::Cache, PAGED_LONG] {
        for (group, rows, mask) in [(4, 1, Mask::FULL), (3, 4, Mask::CAUSAL)] {
            for config in [
                MMA,
                "mma/m16n32-w1x2-s2-b1-qreg-xor-spec-gqa",
                "mma/m32n64-w2x1-s3-b2-qsh-xor-always-gqa",
            ] {
                for (splits, steps) in [("", 3), ("-k5", 2)] {
                    let plan = decoding(&format!("{config}{splits}"), kv_lengths, (group, rows, mask));
                    assert_eq!(plan.steps().count(), steps);
                    for seed in 0..3 {
                        let options = CheckOptions {
                            seed,
                            ..CheckOptions::default()
                        };
                        let report = check_plan(&plan, &options).unwrap();
                        assert_eq!(
                            report.verdict,
                            Verdict::Clean,
                            "{} by {config}{splits}, seed {seed}\n{report}",
                            plan.problem
                        );
                    }
                }
            }
        }
    }
}

fn decoding(config: &str, kv_lengths: KvLengths, (group, rows, mask): (usize, usize, Mask)) -> Plan {
    let problem = Problem::builder()
        .batch(3)
        .heads(2 * group, 2)
        .head_dim(32)
        .seq_len_q(rows)
        .seq_len_kv(900)
        .mask(mask)
        .return_lse(true);
    let problem = problem.kv_lengths(kv_lengths).dtype(DType::BF16).build().unwrap();
    let chip = Chip {
        target: Target::Sm80,
        sms: 13,
    };
    Plan::new(&problem, &config.parse().unwrap(), chip).unwrap()
}

#[test]
fn mistakes_in_splits_of_a_cache_are_found() {
    let plan = decoding(&format!("{MMA}-k5"), PAGED_LONG, (4, 1, Mask::FULL));
    #[rustfmt::skip]
    let planted = [
        ("the number of keys of the next sequence", 0, Operator::NextAccess, "seqused_k"),
        ("stale page, the entry before", 0, Operator::PreviousAccess, "block_table"),
        ("length of the keys off by one", 0, Operator::BoundOne, "warp.mask(first_key)"),
        ("a split counted twice", 1, Operator::BoundOne, "split.lt(splits)"),
        ("the next partial", 1, Operator::NextAccess, "split_sums"),
    ];
    for (name, step, operator, place) in planted {
        is_found_in_step(name, &plan, step, operator, place);
    }
}

/// Runs all steps of a plan on buffers with the contents that `content` gives, and returns the buffers by name, and all
/// findings.
pub(crate) fn run_steps(
    plan: &Plan,
    mut content: impl FnMut(&BufferSpec) -> Vec<u8>,
) -> (BTreeMap<&'static str, Vec<u8>>, Vec<Finding>) {
    let (mut buffers, mut findings) = (BTreeMap::new(), Vec::new());
    for spec in plan.steps().flat_map(|step| &step.launch.buffers) {
        buffers.entry(spec.name).or_insert_with(|| content(spec));
    }
    let workspace = vec![POISON; plan.workspace_bytes() as usize];
    buffers.entry("workspace").and_modify(|bytes| *bytes = workspace);
    let mut written = Written::default();
    for step in plan.steps() {
        let mut options = SimOptions::default();
        let specs = &step.launch.buffers;
        let slot = specs.iter().position(|spec| spec.name == "workspace");
        options.written.extend(slot.map(|slot| (slot, written.clone())));
        let mut bytes: Vec<Vec<u8>> = specs.iter().map(|spec| buffers[spec.name].clone()).collect();
        let report = simulate(&step.kernel, &step.launch, &mut bytes, &options).unwrap();
        if let Some(more) = slot.and_then(|slot| report.written.get(&slot)) {
            written.add(more);
        }
        findings.extend(report.findings);
        buffers.extend(specs.iter().map(|spec| spec.name).zip(bytes));
    }
    (buffers, findings)
}
