//! e4m3 with packed sequences, caches with lengths and pages under the simulator: NaN lies past every end, each
//! sequence has scales of its own, and V is transposed on the device. `FLASHCORE_SEED` moves to other problems,
//! `FLASHCORE_PROBLEMS` sets how many (30: two of each combination of axes).

use std::collections::BTreeSet;

use flashcore_check::mutate::Operator;
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::{BufferSpec, Chip, Target};
use flashcore_kernels::{Config, KernelCache, Plan, select, wgmma};
use flashcore_problem::rng::Rng;
use flashcore_problem::{
    DType, InputKind, KvLengths, Lengths, Mask, Problem, ProblemBuilder, QLengths, RandomLimits, random_problem,
};
use flashcore_sim::FindingKind;

use crate::common::{assert_clean, inputs_of, number};
use crate::lengths::{PACKED, PAGED_BOXES, is_found_in_step, run_steps};

/// So few that blocks have several tiles, and pieces of tiles.
const FEW_SMS: Chip = Chip {
    target: Target::Sm90a,
    sms: 5,
};

#[test]
fn random_problems_are_within_the_bound() {
    let (first, count) = (number("FLASHCORE_SEED", 0), number("FLASHCORE_PROBLEMS", 30));
    let limits = RandomLimits {
        max_seq: 200,
        max_work: 1_500_000,
        max_batch: 4,
        dtypes: &[DType::E4M3],
        odd_strides: false,
        head_dim_v: true,
        lengths: true,
        head_values: true,
        ..RandomLimits::default()
    };
    let (kernels, mut rng, mut combinations) = (KernelCache::default(), Rng::new(1), BTreeSet::new());
    let (mut served, mut seed) = (0, first);
    while served < count {
        assert!(seed < first + 20 * count, "only {served} problems are served");
        let problem = random_problem(seed, &limits).unwrap();
        seed += 1;
        let mut sample = || {
            Config::Wgmma(wgmma::Config {
                splits: 1,
                cluster: 1,
                ..wgmma::FAMILY.sample(&mut rng).into()
            })
        };
        let drawn = (0..60).find_map(|_| Plan::with_cache(&problem, &sample(), FEW_SMS, &kernels).ok());
        // Every fourth is as the library chooses.
        let chosen = (served % 4 == 0).then(|| select(&problem, FEW_SMS, 16, &kernels).ok().map(|choice| choice.plan));
        let Some(plan) = chosen.flatten().or(drawn) else {
            continue;
        };
        served += 1;
        combinations.insert((problem.q_lengths() == QLengths::Equal, kind(problem.kv_lengths())));
        assert_clean(&plan, seed - 1, inputs_of(served));
    }
    assert!(count < 30 || combinations.len() >= 7, "{combinations:?}");
}

fn kind(lengths: KvLengths) -> usize {
    match lengths {
        KvLengths::Equal => 0,
        KvLengths::Packed { .. } => 1,
        KvLengths::Cache => 2,
        KvLengths::Paged { .. } => 3,
    }
}

const CONFIG: &str = "wgmma/m64n32-s2-free-cond";

/// Sequences with rows and keys past their ends.
fn shape(kv_lengths: KvLengths) -> ProblemBuilder {
    let q_lengths = QLengths::Packed { total: 80, used: true };
    let problem = Problem::builder().batch(3).heads(4, 2).head_dim(32).seq_len_q(40);
    let problem = problem.seq_len_kv(50).dtype(DType::E4M3).return_lse(true);
    problem.q_lengths(q_lengths).kv_lengths(kv_lengths)
}

fn plan(problem: &ProblemBuilder) -> Plan {
    let problem = problem.clone().build().unwrap();
    Plan::new(&problem, &CONFIG.parse().unwrap(), FEW_SMS).unwrap()
}

/// A step that transposes V comes after the schedule, which serves other calls too, and finds its place in the one
/// workspace.
#[test]
fn the_schedule_alone_is_kept() {
    for kv_lengths in [PACKED, KvLengths::Cache, PAGED_BOXES] {
        let plan = plan(&shape(kv_lengths));
        let names: Vec<&str> = plan.steps().map(|step| step.kernel.name()).collect();
        let begins = ["schedule", "transpose_v", "wgmma", "combine"];
        assert!(
            names.iter().zip(begins).all(|(name, begin)| name.starts_with(begin)),
            "{names:?}"
        );
        assert_eq!((names.len(), plan.schedule_steps()), (4, 1));
        for step in plan.steps() {
            let workspaces = step.launch.buffers.iter().filter(|spec| spec.name == "workspace");
            assert_eq!(workspaces.count(), 1, "{}", step.kernel.name());
        }
    }
}

/// Tiles in pieces, whose partials are scaled: one query of each sequence over many keys, and splits of a given length.
#[test]
fn pieces_have_the_scale_of_their_sequence() {
    let one = Problem::builder().batch(3).heads(8, 2).head_dim(64).seq_len_q(1);
    let one = one.seq_len_kv(700).dtype(DType::E4M3).return_lse(true);
    let pages = KvLengths::Paged {
        page_size: 16,
        pages: 140,
        max_pages: 45,
    };
    for kv_lengths in [KvLengths::Cache, pages] {
        for (splits, heads) in [(None, ""), (None, "-gqa"), (Some(128), "-gqa")] {
            let problem = one.clone().kv_lengths(kv_lengths);
            let problem = match splits {
                Some(keys) => problem.batch_invariant(keys),
                None => problem,
            };
            let config = format!("wgmma/m64n64-s2-free-spec{heads}").parse().unwrap();
            let plan = Plan::new(&problem.build().unwrap(), &config, FEW_SMS).unwrap();
            let lengths = Lengths {
                seqused_k: Some(vec![700, 3, 250]),
                block_table: (kv_lengths == pages).then(|| (0..135).collect()),
                ..Lengths::default()
            };
            let options = CheckOptions {
                lengths: Some(lengths),
                ..CheckOptions::default()
            };
            let report = check_plan(&plan, &options).unwrap();
            assert_eq!(report.verdict, Verdict::Clean, "{} {splits:?}\n{report}", plan.problem);
        }
    }
}

/// Mistakes in the step that transposes V (1) and in the main one (2): what breaks, and where.
#[rustfmt::skip]
const PLANTED: [(&str, KvLengths, usize, Operator, &str); 15] = [
    ("neighbour's first key", PACKED, 1, Operator::NextAccess, "cu_seqlens_k"),
    ("the keys before", PACKED, 1, Operator::PreviousAccess, "cu_seqlens_k"),
    ("neighbour's number of keys", PACKED, 1, Operator::NextAccess, "seqused_k"),
    ("number of keys of the sequence before", KvLengths::Cache, 1, Operator::PreviousAccess, "seqused_k"),
    ("tail of V: a row past the end", PACKED, 1, Operator::BoundOne, "key.lt(keys)"),
    ("stale page, the entry before", PAGED_BOXES, 1, Operator::PreviousAccess, "block_table"),
    ("stale page, the next entry", PAGED_BOXES, 1, Operator::NextAccess, "block_table"),
    ("V from its second row on", KvLengths::Cache, 1, Operator::NextAccess, "v"),
    ("tiles are not written", PACKED, 1, Operator::DropStore, "workspace"),
    ("V of the tile after", PACKED, 2, Operator::HeadOff, "fill_stage(cluster, self.v_tile"),
    ("V from its second column on", PACKED, 2, Operator::RowOff, "fill_stage(cluster, self.v_tile"),
    ("tiles of the first sequence in the place of another's", PACKED, 1, Operator::DropAddend, "first / cols + batch"),
    ("tiles of the first sequence for another", PACKED, 2, Operator::DropAddend, "tile_at(scales, &sequence"),
    ("scales of the next head", PACKED, 2, Operator::NextAccess, "v_scale"),
    ("neighbour's first key in the main step", PACKED, 2, Operator::NextAccess, "cu_seqlens_k"),
];

#[test]
fn planted_mistakes_are_found() {
    for (name, kv_lengths, step, operator, place) in PLANTED {
        is_found_in_step(name, &plan(&shape(kv_lengths)), step, operator, place);
    }
    let window = plan(&shape(PACKED).mask(Mask::window(Some(3), Some(0))));
    let name = "every block begins with the first tile that rows see";
    is_found_in_step(name, &window, 1, Operator::DropAddend, "before / cols");
}

/// Blocks take every so many'th tile of a sequence where there are more of them than blocks.
#[test]
fn a_block_takes_several_tiles() {
    for (kv_lengths, blocks) in [(PACKED, 1), (KvLengths::Cache, 1), (PAGED_BOXES, 2)] {
        let mut plan = plan(&shape(kv_lengths).seq_len_kv(79).mask(Mask::window(Some(30), None)));
        let transpose = plan.steps_mut().nth(1).unwrap();
        assert_eq!(transpose.launch.grid[0], 3);
        transpose.launch.grid[0] = blocks;
        assert_clean(&plan, 1, InputKind::Normal);
    }
}

/// Whatever the values are, no address leaves its tensor.
#[test]
fn hostile_values_touch_no_foreign_memory() {
    let values = [i32::MIN, -1, 0, 3, 79, 80, 81, 1 << 20, i32::MAX];
    let mut rng = Rng::new(5);
    for kv_lengths in [PACKED, PAGED_BOXES, KvLengths::Cache] {
        let masks = [Mask::FULL, Mask::window(Some(3), None).top_left()];
        let plans = masks.map(|mask| plan(&shape(kv_lengths).mask(mask)));
        for round in 0..12 {
            let content = |spec: &BufferSpec| match Lengths::<i32>::NAMES.contains(&spec.name) {
                true => (0..spec.bytes / 4)
                    .flat_map(|_| rng.pick(&values).unwrap().to_le_bytes())
                    .collect(),
                false => vec![0; spec.bytes as usize],
            };
            let (_, findings) = run_steps(&plans[round % 2], content);
            // Sequences that overlap write the same rows and tiles, a block's too; that is all there may be.
            let races = [FindingKind::BlockRace, FindingKind::Race];
            let worse = findings.iter().find(|finding| !races.contains(&finding.kind));
            assert!(worse.is_none(), "{kv_lengths:?}, round {round}: {worse:?}");
        }
    }
}
