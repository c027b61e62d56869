//! e4m3 with packed sequences, caches with lengths and pages under the simulator. NaN lies past every end, and each
//! sequence has scales of its own. The device transposes V, and gathers K where pages are too small for tensor copies.
//! `FLASHCORE_SEED` moves to other problems, `FLASHCORE_PROBLEMS` sets how many (30: two of each combination of axes).

use std::collections::BTreeSet;

use flashcore_check::mutate::Operator;
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::{BufferSpec, Chip, Target};
use flashcore_kernels::{Config, KernelCache, Plan, select, wgmma};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, InputKind, KvLengths, Layout, Lengths, Mask, Problem, ProblemBuilder, QLengths};
use flashcore_sim::FindingKind;
use flashcore_testkit::{RandomLimits, random_problem};

use crate::common::{assert_clean, inputs_of, number};
use crate::lengths::{PACKED, PAGED, PAGED_BOXES, is_found_in_step, run_steps};

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
    let (mut served, mut gathered, mut seed) = (0, 0, first);
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
        gathered += u64::from(gathers(&plan));
        combinations.insert((problem.q_lengths() == QLengths::Equal, kind(problem.kv_lengths())));
        assert_clean(&plan, seed - 1, inputs_of(served));
    }
    assert!(count < 30 || combinations.len() >= 7, "{combinations:?}");
    assert!(count < 30 || (3..count).contains(&gathered), "{gathered} of {count}");
}

/// Whether a plan gathers K before its main kernel.
fn gathers(plan: &Plan) -> bool {
    let gathers = plan.steps().any(|step| step.kernel.name().contains("_gather_k"));
    let main = &plan.main.launch;
    assert_eq!(gathers, main.buffers.iter().all(|spec| spec.name != "k"));
    gathers
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
    for kv_lengths in [PACKED, KvLengths::Cache, PAGED_BOXES, PAGED] {
        let plan = plan(&shape(kv_lengths));
        assert_eq!(gathers(&plan), kv_lengths == PAGED);
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

/// Pages of every size are served: those that no tensor copy brings by one launch that has a block more for each tile.
/// What follows it is compiled once for all of them, and for contiguous caches.
#[test]
fn keys_of_odd_pages_are_gathered() {
    let main = |plan: &Plan| plan.main.kernel.name().to_string();
    let of_cache = main(&plan(&shape(KvLengths::Cache)));
    let mut seed = 0;
    for page_size in [1, 3, 4, 5, 12, 50, 8, 16, 24] {
        let max_pages = 50_usize.div_ceil(page_size);
        // Enough for all sequences, or so few that they share pages.
        for pages in [3 * max_pages + 2, max_pages.div_ceil(2)] {
            let paged = KvLengths::Paged {
                page_size,
                pages,
                max_pages,
            };
            for mask in [Mask::CAUSAL, Mask::window(Some(9), Some(2))] {
                let plan = plan(&shape(paged).mask(mask));
                let odd = page_size % 8 != 0;
                assert_eq!(
                    (gathers(&plan), main(&plan) == of_cache),
                    (odd, odd),
                    "pages of {page_size}"
                );
                for _ in 0..3 {
                    seed += 1;
                    assert_clean(&plan, seed, inputs_of(seed));
                }
            }
        }
    }
}

/// Sequences without keys, with one, and with all; a page that all share, and none where no row sees its keys.
#[test]
fn gathered_keys_of_empty_and_full_sequences() {
    let one = Problem::builder()
        .batch(4)
        .heads(4, 2)
        .head_dim(48)
        .head_dim_v(32)
        .seq_len_q(1);
    let one = one
        .seq_len_kv(10)
        .dtype(DType::E4M3)
        .return_lse(true)
        .mask(Mask::window(Some(4), Some(0)));
    let paged = KvLengths::Paged {
        page_size: 3,
        pages: 9,
        max_pages: 4,
    };
    let table = [-1, -1, -1, -1, 8, -1, i32::MAX, 9, -1, 8, 0, 1, 2, 3, 8, -1];
    for heads in ["", "-gqa"] {
        let config = format!("{CONFIG}{heads}").parse().unwrap();
        let problem = one.clone().kv_lengths(paged).build().unwrap();
        let plan = Plan::new(&problem, &config, FEW_SMS).unwrap();
        assert!(gathers(&plan));
        let options = CheckOptions {
            lengths: Some(Lengths {
                seqused_k: Some(vec![0, 1, 10, 9]),
                block_table: Some(table.to_vec()),
                ..Lengths::default()
            }),
            ..CheckOptions::default()
        };
        let report = check_plan(&plan, &options).unwrap();
        assert_eq!(report.verdict, Verdict::Clean, "{heads}\n{report}");
    }
}

/// K whose pages or sequences are no whole number of rows apart, or that is one page for all; and rows that end in the
/// middle of 16 bytes.
#[test]
fn keys_that_no_tensor_copy_brings_are_gathered() {
    let page = |stride: i64, row: i64, head: i64| [stride, row, head, 1];
    for (kv_lengths, head_dim, strides, gathered) in [
        (PAGED_BOXES, 32, page(8 * 64 + 16, 64, 32), true),
        (PAGED_BOXES, 32, page(0, 64, 32), true),
        (PAGED_BOXES, 32, page(8 * 64 + 64, 64, 32), false),
        (KvLengths::Cache, 32, page(50 * 64 + 32, 64, 32), true),
        (KvLengths::Cache, 32, page(51 * 64, 64, 32), false),
        (PAGED, 40, page(5 * 96, 96, 48), true),
    ] {
        let shape = shape(kv_lengths).head_dim(head_dim).head_dim_v(32);
        let problem = shape.clone().build().unwrap();
        let layouts = [problem.q_layout(), problem.k_layout()].map(|layout| layout.shape);
        let q = Layout {
            shape: layouts[0],
            strides: [80 * 192, 192, 48, 1],
        };
        let k = Layout {
            shape: layouts[1],
            strides,
        };
        let (v, o) = (*problem.v_layout(), *problem.o_layout());
        let plan = plan(&shape.layouts(q, k, v, o));
        assert_eq!(gathers(&plan), gathered, "{}", plan.problem);
        (1..5).for_each(|seed| {
            assert_clean(&plan, seed, inputs_of(seed));
        });
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
    let odd = KvLengths::Paged {
        page_size: 6,
        pages: 360,
        max_pages: 117,
    };
    for kv_lengths in [KvLengths::Cache, pages, odd] {
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
                block_table: match kv_lengths {
                    KvLengths::Paged { max_pages, .. } => Some((0..3 * max_pages as i32).collect()),
                    _ => None,
                },
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

/// Mistakes in the step that transposes V and gathers K (1) and in the main one (2): what breaks, and where.
#[rustfmt::skip]
const PLANTED: [(&str, KvLengths, usize, Operator, &str); 21] = [
    ("neighbour's first key", PACKED, 1, Operator::NextAccess, "cu_seqlens_k"),
    ("the keys before", PACKED, 1, Operator::PreviousAccess, "cu_seqlens_k"),
    ("neighbour's number of keys", PACKED, 1, Operator::NextAccess, "seqused_k"),
    ("number of keys of the sequence before", KvLengths::Cache, 1, Operator::PreviousAccess, "seqused_k"),
    ("tail of V: a row past the end", PACKED, 1, Operator::BoundOne, "key.lt(keys)"),
    ("stale page, the entry before", PAGED_BOXES, 1, Operator::PreviousAccess, "block_table"),
    ("stale page, the next entry", PAGED_BOXES, 1, Operator::NextAccess, "block_table"),
    ("V from its second row on", KvLengths::Cache, 1, Operator::NextAccess, "v"),
    ("tiles are not written", PACKED, 1, Operator::DropStore, "workspace"),
    ("V of the tile after", PACKED, 2, Operator::HeadOff, "fill_stage(cluster, self.values.tile"),
    ("V from its second column on", PACKED, 2, Operator::RowOff, "fill_stage(cluster, self.values.tile"),
    ("tiles of the first sequence in the place of another's", PACKED, 1, Operator::DropAddend, "first / cols + batch"),
    ("tiles of the first sequence for another", PACKED, 2, Operator::DropAddend, "tile_at(scales, &sequence"),
    ("scales of the next head", PACKED, 2, Operator::NextAccess, "v_scale"),
    ("neighbour's first key in the main step", PACKED, 2, Operator::NextAccess, "cu_seqlens_k"),
    ("stale page of gathered keys, the next entry", PAGED, 1, Operator::NextAccess, "block_table"),
    ("K from its second chunk on", PAGED, 1, Operator::NextAccess, "k"),
    ("the last key is not gathered", PAGED, 1, Operator::DropStore, "key.lt(end)"),
    ("a key that is not the one", PAGED, 1, Operator::OffsetOne, "first + n * groups"),
    ("keys of the first sequence for another", PAGED, 1, Operator::DropAddend, "first_row"),
    ("a row of gathered keys further", PAGED, 2, Operator::RowOff, "fill_stage(cluster, self.keys.tile"),
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

const ODD: KvLengths = KvLengths::Paged {
    page_size: 7,
    pages: 36,
    max_pages: 12,
};

/// Blocks take every so many'th tile of a sequence where there are more of them than blocks.
#[test]
fn a_block_takes_several_tiles() {
    for (kv_lengths, blocks) in [(PACKED, 1), (KvLengths::Cache, 1), (PAGED_BOXES, 2), (ODD, 2), (ODD, 4)] {
        let mut plan = plan(&shape(kv_lengths).seq_len_kv(79).mask(Mask::window(Some(30), None)));
        let transpose = plan.steps_mut().nth(1).unwrap();
        assert_eq!(transpose.launch.grid[0], if kv_lengths == ODD { 6 } else { 3 });
        transpose.launch.grid[0] = blocks;
        assert_clean(&plan, 1, InputKind::Normal);
    }
}

/// Whatever the values are, no address leaves its tensor.
#[test]
fn hostile_values_touch_no_foreign_memory() {
    let values = [i32::MIN, -1, 0, 3, 79, 80, 81, 1 << 20, i32::MAX];
    let mut rng = Rng::new(5);
    for kv_lengths in [PACKED, PAGED_BOXES, PAGED, KvLengths::Cache] {
        let masks = [Mask::FULL, Mask::window(Some(3), None).top_left()];
        let plans = masks.map(|mask| plan(&shape(kv_lengths).mask(mask)));
        for round in 0..12 {
            let content = |spec: &BufferSpec| {
                if Lengths::<i32>::NAMES.contains(&spec.name) {
                    (0..spec.bytes / 4)
                        .flat_map(|_| rng.pick(&values).unwrap().to_le_bytes())
                        .collect()
                } else {
                    vec![0; spec.bytes as usize]
                }
            };
            let (_, findings) = run_steps(&plans[round % 2], content);
            // Sequences that overlap write the same rows and tiles, a block's too; that is all there may be.
            let races = [FindingKind::BlockRace, FindingKind::Race];
            let worse = findings.iter().find(|finding| !races.contains(&finding.kind));
            assert!(worse.is_none(), "{kv_lengths:?}, round {round}: {worse:?}");
        }
    }
}
