//! Keys split across blocks: parts in the workspace, and `combine` that merges them.

use std::sync::Arc;

use flashcore_check::mutate::{Mutation, Operator, mutations};
use flashcore_check::{CheckOptions, CheckReport, Verdict, check_plan};
use flashcore_ir::Target;
use flashcore_ir::proof::LaunchRefusal;
use flashcore_kernels::{Config, KernelCache, Plan, Refusal};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, InputKind, KvLengths, Mask, Problem, ProblemBuilder, QLengths};
use flashcore_sim::{FindingKind, SimError, SimOptions, simulate};
use flashcore_testkit::{RandomLimits, random_problem};

use crate::splits::{assert_missing_partials_are_found, assert_plan_clean, check};

/// Each rule of rescaling, warps along rows and along keys, heads packed and not, few and many splits.
const KERNELS: [&str; 8] = [
    "mma/m16n64-w1x4-s2-b1-qsh-xor-cond-gqa-k5",
    "mma/m16n32-w1x2-s3-b1-qreg-xor-always-gqa-k17",
    "mma/m16n64-w1x2-s2-b1-qsh-xor-spec-gqa-k3",
    "mma/m32n32-w2x1-s2-b1-qsh-xor-always-k2",
    "mma/m64n32-w4x1-s2-b2-qreg-xor-cond-k4",
    "mma/m64n64-w4x1-s2-b1-qreg-xor-spec-k3",
    "mma/m32n64-w2x2-s2-b1-qsh-xor-spec-gqa-k9",
    "mma/m16n128-w1x8-s2-b1-qsh-xor-always-gqa-k40",
];

fn plan(problem: &Problem, kernel: &str) -> Plan {
    Plan::new(problem, &kernel.parse().unwrap(), Target::Sm80).unwrap()
}

#[track_caller]
fn assert_clean(problem: &Problem, kernel: &str) {
    assert_plan_clean(&plan(problem, kernel));
}

fn decode(heads: usize, kv_heads: usize, keys: usize) -> ProblemBuilder {
    Problem::builder()
        .heads(heads, kv_heads)
        .seq_len_q(1)
        .seq_len_kv(keys)
        .head_dim(64)
}

#[test]
fn every_way_to_split_is_right_on_decoding() {
    for (kernel, group) in KERNELS.iter().zip([1, 3, 4, 8, 16, 3, 4, 1]) {
        let problem = decode(2 * group, 2, 517).batch(2).return_lse(true).build().unwrap();
        assert_clean(&problem, kernel);
    }
}

#[test]
fn groups_of_every_size_fit_into_tiles_of_sixteen_rows() {
    for group in [1, 3, 4, 8, 16] {
        let problem = decode(group, 1, 200).return_lse(true).build().unwrap();
        assert_clean(&problem, KERNELS[0]);
        // Two queries a head: rows of the tile are of different queries, and see different keys.
        let two = decode(group, 1, 200).seq_len_q(2).mask(Mask::CAUSAL).build().unwrap();
        assert_clean(&two, KERNELS[2]);
    }
}

#[test]
fn ordinary_problems_may_be_split_too() {
    let base = || {
        Problem::builder()
            .heads(2, 1)
            .seq_len_q(70)
            .seq_len_kv(203)
            .head_dim(64)
    };
    let problems = [
        base().mask(Mask::CAUSAL),
        base().mask(Mask::window(Some(40), Some(7))).softcap(20.0),
        // Keys only for the last rows: whole tiles of rows, and most splits, see none.
        base()
            .mask(Mask::window(Some(3), Some(0)).top_left())
            .seq_len_kv(20)
            .return_lse(true),
        base().head_dim(72).head_dim_v(40).dtype(DType::BF16).return_lse(true),
        base().head_dim(128).batch(2),
    ];
    for (i, problem) in problems.into_iter().enumerate() {
        let problem = problem.build().unwrap();
        assert_clean(&problem, KERNELS[i % KERNELS.len()]);
        assert_clean(&problem, KERNELS[(i + 4) % KERNELS.len()]);
    }
}

#[test]
fn splits_without_a_tile_leave_nothing() {
    for kernel in [
        "mma/m16n64-w1x2-s2-b1-qsh-xor-always-gqa-k9",
        "mma/m32n32-w2x1-s2-b1-qsh-xor-spec-k200",
    ] {
        // 3 keys are one tile.
        let problem = decode(4, 1, 3).return_lse(true).build().unwrap();
        assert_clean(&problem, kernel);
    }
}

#[test]
fn data_meant_to_break_kernels_is_right_in_parts() {
    for kind in InputKind::ALL {
        let problem = decode(6, 2, 300).return_lse(true).build().unwrap();
        for kernel in [KERNELS[0], KERNELS[2]] {
            let options = CheckOptions {
                inputs: kind,
                ..CheckOptions::default()
            };
            let report = check_plan(&plan(&problem, kernel), &options).unwrap();
            assert_eq!(report.verdict, Verdict::Clean, "{kind}\n{report}");
        }
    }
}

#[test]
fn random_problems_equal_float64() {
    let limits = RandomLimits {
        max_work: 2_000_000,
        max_batch: 2,
        max_head_dim: 128,
        dtypes: &[DType::F16, DType::BF16],
        odd_strides: false,
        head_dim_v: true,
        ..RandomLimits::default()
    };
    let kernels = KernelCache::default();
    let (mut rng, mut served) = (Rng::new(7), 0);
    for seed in 3000..3012 {
        let problem = random_problem(seed, &limits).unwrap();
        let config: Config = rng.pick(&KERNELS).unwrap().parse().unwrap();
        let Ok(plan) = Plan::with_cache(&problem, &config, Target::Sm80, &kernels) else {
            continue;
        };
        served += 1;
        let report = check(&plan, 1);
        assert_eq!(report.verdict, Verdict::Clean, "problem {seed}: {problem}\n{report}");
    }
    assert!(served >= 9, "{served} of 12");
}

#[test]
fn an_answer_does_not_depend_on_who_finishes_first() {
    let problem = decode(8, 2, 700).return_lse(true).build().unwrap();
    for kernel in [KERNELS[1], KERNELS[2]] {
        let report = check(&plan(&problem, kernel), 20);
        assert_eq!(
            (report.verdict, report.differs_under),
            (Verdict::Clean, None),
            "{report}"
        );
        assert_eq!(report.schedules.len(), 20);
    }
}

#[test]
fn kernels_do_not_depend_on_how_many_splits_there_are() {
    let kernels = KernelCache::default();
    let plan = |keys, kernel: &str| {
        let problem = decode(8, 2, keys).return_lse(true).build().unwrap();
        Plan::with_cache(&problem, &kernel.parse().unwrap(), Target::Sm80, &kernels).unwrap()
    };
    let [a, b, c] = [(100, 2), (9000, 7), (9000, 33)]
        .map(|(keys, splits)| plan(keys, &format!("mma/m16n64-w1x4-s2-b1-qsh-xor-cond-gqa-k{splits}")));
    assert!(Arc::ptr_eq(&a.main.kernel, &b.main.kernel) && Arc::ptr_eq(&a.main.kernel, &c.main.kernel));
    assert!(
        Arc::ptr_eq(&a.then[0].kernel, &b.then[0].kernel),
        "up to eight splits are one batch of loads"
    );
    assert_eq!(b.main.launch.grid, [2, 1, 7]);
    // 8 rows of 64 columns, an offset and a sum, in 7 splits.
    assert_eq!(b.workspace_bytes(), 8 * 7 * (64 + 2) * 4);
    assert_eq!(plan(100, "mma/m16n64-w1x4-s2-b1-qsh-xor-cond-gqa").workspace_bytes(), 0);
}

#[test]
fn a_part_that_nobody_stores_is_found_where_it_is_read() {
    let problem = decode(4, 1, 130).build().unwrap();
    for kernel in [KERNELS[0], KERNELS[3]] {
        assert_missing_partials_are_found(&plan(&problem, kernel));
    }
}

#[test]
fn mistakes_in_combine_are_found() {
    // Seven rows in blocks of two; seventeen splits in batches of eight.
    let whole = plan(&decode(7, 1, 700).build().unwrap(), KERNELS[1]);
    let planted = |operator: Operator| -> Vec<CheckReport> {
        let all = mutations(&whole.then[0].kernel);
        let places = all.iter().filter(|m| m.operator == operator);
        let check_planted = |m: &Mutation| {
            let mut broken = whole.clone();
            broken.then[0].kernel = Arc::new(m.apply(&whole.then[0].kernel));
            check(&broken, 1)
        };
        places.map(check_planted).collect()
    };
    let finds = |report: &CheckReport, kind| report.findings.iter().any(|found| found.finding.kind == kind);

    let unordered = planted(Operator::DropBarrier);
    assert!(finds(&unordered[0], FindingKind::Race), "{}", unordered[0]);
    let one_more = planted(Operator::BoundOne);
    // A row that does not exist; a split counted twice.
    assert!(finds(&one_more[0], FindingKind::OutOfBounds), "{}", one_more[0]);
    assert!(one_more.iter().any(|report| report.verdict == Verdict::Wrong));
}

#[test]
fn a_workspace_that_is_too_small_is_an_error_and_says_so() {
    let plan = plan(&decode(4, 1, 130).build().unwrap(), KERNELS[0]);
    for step in plan.steps() {
        let specs = &step.launch.buffers;
        let bytes = |spec: &flashcore_ir::BufferSpec| spec.bytes as usize - usize::from(spec.name == "workspace");
        let mut buffers: Vec<Vec<u8>> = specs.iter().map(|spec| vec![0; bytes(spec)]).collect();
        let error = simulate(&step.kernel, &step.launch, &mut buffers, &SimOptions::default()).unwrap_err();
        assert!(
            matches!(&error, SimError::Launch(LaunchRefusal::BufferSize { name, .. }) if name == "workspace"),
            "{error}"
        );
    }
}

#[test]
fn too_many_splits_are_refused() {
    let refusal = |problem: &Problem, splits: u32| {
        let config = format!("mma/m16n64-w1x4-s2-b1-qsh-xor-cond-gqa-k{splits}");
        Plan::new(problem, &config.parse().unwrap(), Target::Sm80).unwrap_err()
    };
    let small = decode(4, 1, 130).build().unwrap();
    for splits in [0, 257] {
        let refused = refusal(&small, splits);
        assert!(matches!(refused, Refusal::Lever { lever: "splits", .. }), "{refused}");
    }
    let rows = Problem::builder()
        .heads(64, 8)
        .batch(64)
        .seq_len(16_384)
        .head_dim(8)
        .build()
        .unwrap();
    let refused = refusal(&rows, 256).to_string();
    assert_eq!(
        refused,
        "splits is 256; allowed: 1 to 63 with 67108864 rows of all heads: partials are counted in 32 bits"
    );
    let packed = decode(4, 1, 130).q_lengths(QLengths::Packed { total: 9, used: false });
    let refused = refusal(&packed.seq_len_q(9).build().unwrap(), 2).to_string();
    assert_eq!(
        refused,
        "splits is 2; allowed: 1 where sequences have different numbers of queries, and for batch-invariant caches"
    );
}

#[test]
fn splits_are_chosen_for_a_card() {
    let config = |id: &str| match id.parse().unwrap() {
        Config::Mma(config) => config,
        other => panic!("{other}"),
    };
    let base = config("mma/m16n64-w1x4-s3-b2-qreg-xor-cond-gqa");
    let llama = Problem::named("llama8b-decode-8k").unwrap();
    // 16 sequences of 8 K/V heads have a block for nearly each of 132 multiprocessors; on 108 they need splits.
    assert_eq!(base.split_for(&llama, 132), base);
    assert_eq!(base.split_for(&llama, 108).to_string(), format!("{base}-k3"));
    let prefill = Problem::named("llama8b-prefill-2k").unwrap();
    assert_eq!(base.split_for(&prefill, 132), base);
    // One block an SM, where that leaves at most 5 % of the SMs without one.
    let one = decode(32, 8, 4096).head_dim(128);
    let two = one.clone().batch(2);
    let splits = |problem: &ProblemBuilder, sms| base.split_for(&problem.clone().build().unwrap(), sms).splits;
    assert_eq!([132, 63, 136].map(|sms| splits(&one, sms)), [16, 11, 17]);
    assert_eq!([132, 134, 135].map(|sms| splits(&two, sms)), [8, 8, 16]);
    // 4096 keys are 64 tiles, two of which are on their way at once; a window of 300 keys has five.
    assert_eq!(
        [112, 136].map(|head_dim| splits(&one.clone().head_dim(head_dim), 132)),
        [16, 32]
    );
    // Of a cache as many as of equal lengths, where one sequence has it; not of few keys, or the same in each batch.
    let cache = one.clone().kv_lengths(KvLengths::Cache);
    let others = [
        cache.clone().batch(2),
        cache.clone().seq_len_kv(512),
        cache.clone().batch_invariant(512),
    ];
    assert_eq!(
        (splits(&cache, 132), others.map(|problem| splits(&problem, 132))),
        (16, [1; 3])
    );
    // Of 300 keys a merge takes longer than what blocks save.
    let window = |keys: u32| one.clone().mask(Mask::window(Some(keys - 1), Some(0)));
    assert_eq!([300, 600].map(|keys| splits(&window(keys), 132)), [1, 5]);
    // 96 blocks read as fast as more of them.
    let many = |keys| decode(8, 8, keys).batch(12).head_dim(128);
    assert_eq!([4096, 4104].map(|keys| splits(&many(keys), 132)), [1, 5]);
}
