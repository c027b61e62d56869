//! Keys split across blocks in family `wgmma`: parts of a tile's keys, as equal as they can be, some of them empty.

use std::sync::Arc;

use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::{Arg, Chip, Table, Target};
use flashcore_kernels::{KernelCache, Plan, Refusal, Tap};
use flashcore_problem::{DType, InputKind, Mask, Problem, ProblemBuilder};
use flashcore_sim::FindingKind;

use crate::splits::{assert_missing_partials_are_found, assert_plan_clean, check};

/// One to three warpgroups, each rule of rescaling, a cluster, few and many splits.
const KERNELS: [&str; 6] = [
    "wgmma/m128n64-s2-pingpong-spec-k3",
    "wgmma/m64n128-s2-free-spec-k2",
    "wgmma/m128n48-s3-c2-pingpong-cond-k5",
    "wgmma/m192n64-s2-pingpong-always-k2",
    "wgmma/m64n32-s4-free-cond-k8",
    "wgmma/m192n32-s2-free-spec-k4",
];

/// On two SMs, so that a block works through parts of several tiles.
fn plan(problem: &Problem, kernel: &str) -> Plan {
    let chip = Chip {
        target: Target::Sm90a,
        sms: 2,
    };
    Plan::new(problem, &kernel.parse().unwrap(), chip).unwrap()
}

#[track_caller]
fn assert_clean(problem: &Problem, kernel: &str) {
    assert_plan_clean(&plan(problem, kernel));
}

/// Odd lengths: fewer queries than keys, as in prefill by chunks.
fn chunk() -> ProblemBuilder {
    Problem::builder()
        .heads(2, 1)
        .seq_len_q(133)
        .seq_len_kv(301)
        .head_dim(64)
        .return_lse(true)
}

#[test]
fn every_way_to_split_is_right_under_every_mask() {
    let masks = [
        Mask::FULL,
        Mask::CAUSAL,
        Mask::window(Some(40), Some(7)),
        Mask::window(Some(90), Some(0)),
        // Rows of keys from none to all, and tiles with fewer K blocks than splits.
        Mask::CAUSAL.top_left(),
        Mask::window(None, Some(20)),
    ];
    for (i, kernel) in KERNELS.iter().enumerate() {
        for mask in [masks[i], masks[(i + 1) % masks.len()]] {
            assert_clean(&chunk().mask(mask).build().unwrap(), kernel);
        }
    }
}

#[test]
fn every_head_dim_is_right_in_parts() {
    let shapes = [
        (chunk().head_dim(96), "wgmma/m128n96-s2-pingpong-cond-k3"),
        (
            chunk().head_dim(128).softcap(20.0),
            "wgmma/m128n128-s2-pingpong-spec-k2",
        ),
        (
            chunk().head_dim(192).head_dim_v(128),
            "wgmma/m128n64-s2-pingpong-spec-k3",
        ),
        (chunk().head_dim(192).dtype(DType::BF16), "wgmma/m64n96-s2-free-spec-k2"),
        (chunk().head_dim(256), "wgmma/m128n64-s2-pingpong-spec-k3"),
        // Columns that are padded, and none of which a part has.
        (chunk().head_dim(72).head_dim_v(40), "wgmma/m64n64-s2-free-spec-k4"),
        (
            chunk().batch(2).heads(6, 2).seq_len_q(70),
            "wgmma/m64n64-s2-free-cond-k3",
        ),
    ];
    for (i, (shape, kernel)) in shapes.into_iter().enumerate() {
        let mask = [Mask::CAUSAL, Mask::FULL][i % 2];
        assert_clean(&shape.mask(mask).build().unwrap(), kernel);
    }
}

#[test]
fn splits_without_a_tile_count_for_nothing() {
    for (kernel, keys) in [
        ("wgmma/m128n128-s2-pingpong-spec-k4", 3),
        ("wgmma/m64n64-s2-free-always-k9", 64),
        ("wgmma/m128n64-s2-c2-pingpong-cond-k8", 200),
    ] {
        // Of the last one, whole tiles of rows see no key in any split.
        let of = chunk().seq_len_kv(keys);
        let none = of.clone().mask(Mask::window(Some(3), Some(0)).top_left());
        for problem in [of.build(), none.build()] {
            assert_clean(&problem.unwrap(), kernel);
        }
    }
}

#[test]
fn data_meant_to_break_kernels_is_right_in_parts() {
    let problem = chunk().seq_len_q(70).mask(Mask::CAUSAL).build().unwrap();
    for (i, kind) in InputKind::ALL.into_iter().enumerate() {
        let options = CheckOptions {
            inputs: kind,
            ..CheckOptions::default()
        };
        let kernel = KERNELS[[0, 1, 4][i % 3]];
        let report = check_plan(&plan(&problem, kernel), &options).unwrap();
        assert_eq!(report.verdict, Verdict::Clean, "{kernel} on {kind}\n{report}");
    }
}

#[test]
fn an_answer_does_not_depend_on_the_schedule() {
    let problem = chunk().mask(Mask::CAUSAL).build().unwrap();
    for kernel in [KERNELS[0], KERNELS[2]] {
        let report = check(&plan(&problem, kernel), 8);
        let outcome = (report.verdict, report.differs_under, report.schedules.len());
        assert_eq!(outcome, (Verdict::Clean, None, 8), "{report}");
    }
}

#[test]
fn stages_of_a_split_kernel_are_those_of_the_whole() {
    let problem = chunk().return_lse(false).mask(Mask::CAUSAL).build().unwrap();
    for stop in Tap::ALL {
        let plan = Plan::with_tap(&problem, &KERNELS[0].parse().unwrap(), Target::Sm90a, stop).unwrap();
        let report = check(&plan, 1);
        assert_eq!(report.verdict, Verdict::Clean, "{report}");
    }
}

#[test]
fn kernels_do_not_depend_on_how_many_splits_there_are() {
    let kernels = KernelCache::default();
    let problem = chunk().build().unwrap();
    let plan = |kernel: &str| {
        let config = format!("wgmma/m64n64-s2-free-spec{kernel}").parse().unwrap();
        Plan::with_cache(&problem, &config, Target::Sm90a, &kernels).unwrap()
    };
    let [whole, two, five] = ["", "-k2", "-k5"].map(plan);
    assert!(Arc::ptr_eq(&two.main.kernel, &five.main.kernel));
    assert!(Arc::ptr_eq(&two.then[0].kernel, &five.then[0].kernel));
    assert!(!Arc::ptr_eq(&two.main.kernel, &whole.main.kernel));
    assert_eq!(
        two.main.kernel.name(),
        format!("{}_split_overlaps", whole.main.kernel.name().trim_end_matches("_lse"))
    );
    // Two heads of three tiles of rows; 133 rows a head of 64 columns, an offset and a sum, in as many splits.
    let blocks = [&whole, &two, &five].map(|plan| plan.main.launch.blocks());
    assert_eq!(blocks, [6, 12, 30]);
    let bytes = [&whole, &two, &five].map(Plan::workspace_bytes);
    assert_eq!(bytes, [0, 2, 5].map(|splits| splits * 2 * 133 * (64 + 2) * 4));
}

#[test]
fn a_part_that_nobody_stores_is_found_where_it_is_read() {
    let problem = chunk().seq_len_q(70).build().unwrap();
    assert_missing_partials_are_found(&plan(&problem, KERNELS[0]));
}

/// The table of a launch, as the host has it, changed.
fn with_table(plan: &Plan, change: impl Fn(&mut [u32])) -> Plan {
    let mut changed = plan.clone();
    for arg in &mut changed.main.launch.args {
        if let Arg::Table(table) = arg {
            let mut words = table.to_vec();
            change(&mut words);
            *table = Table::new(words);
        }
    }
    changed
}

/// Words of an entry of the table; its seventh has the split in its highest byte, its eighth how many K blocks.
const WORDS: usize = 8;

#[test]
fn splits_that_are_assigned_wrong_are_found() {
    let problem = chunk().build().unwrap();
    let whole = Plan::new(&problem, &KERNELS[0].parse().unwrap(), Target::Sm90a).unwrap();
    assert_eq!(check(&with_table(&whole, |_| ()), 1).verdict, Verdict::Clean);
    // Two blocks store the same part, and nobody another.
    let twice = check(
        &with_table(&whole, |words| {
            let entries = words.chunks_mut(WORDS).filter(|entry| entry[0] != u32::MAX);
            entries.for_each(|entry| {
                if entry[6] >> 24 == 2 {
                    entry[6] -= 1 << 24;
                }
            });
        }),
        1,
    );
    let kinds: Vec<_> = twice.findings.iter().map(|found| found.finding.kind).collect();
    assert!(kinds.contains(&FindingKind::BlockRace), "{twice}");
    // A turn is left out: nothing but the answer is wrong.
    let short = check(
        &with_table(&whole, |words| {
            if let Some(entry) = words.chunks_mut(WORDS).find(|entry| entry[7] > 1) {
                entry[7] -= 1;
            }
        }),
        1,
    );
    assert_eq!(short.verdict, Verdict::Wrong, "{short}");
}

#[test]
fn what_cannot_be_split_is_refused() {
    let refusal = |problem: &ProblemBuilder, kernel: &str| {
        Plan::new(
            &problem.clone().build().unwrap(),
            &kernel.parse().unwrap(),
            Target::Sm90a,
        )
        .unwrap_err()
    };
    for splits in [0, 129] {
        let refused = refusal(&chunk(), &format!("wgmma/m64n64-s2-free-spec-k{splits}"));
        assert!(matches!(refused, Refusal::Lever { lever: "splits", .. }), "{refused}");
    }
    let refused = refusal(&chunk().dtype(DType::E4M3), "wgmma/m64n64-s2-free-spec-k2").to_string();
    assert_eq!(refused, "splits is 2; allowed: 1 for e4m3");
}

/// Rows of such sizes are wider in shared memory than what products take.
#[test]
fn rows_of_an_odd_number_of_steps_are_right() {
    for (head_dim, kernel) in [
        (48, "wgmma/m192n64-s2-pingpong-spec"),
        (72, "wgmma/m64n64-s2-free-spec-gqa"),
        (80, "wgmma/m192n80-s2-pingpong-spec-qreg"),
        (112, "wgmma/m128n64-s2-c2-pingpong-cond-qreg"),
        (144, "wgmma/m128n64-s2-pingpong-spec-k2"),
        (176, "wgmma/m64n64-s2-free-spec-qreg"),
        (208, "wgmma/m64n64-s2-free-cond"),
        (240, "wgmma/m128n64-s2-pingpong-cond"),
    ] {
        let problem = chunk().head_dim(head_dim).mask(Mask::CAUSAL).build().unwrap();
        assert_clean(&problem, kernel);
    }
}
