//! Taps give what the reference has there, on random problems and for every family,
//! and say so where it is wrong.
//!
//! `FLASHCORE_SEED` moves to other problems, `FLASHCORE_PROBLEMS` sets how many (20).

use std::sync::Arc;

use flashcore_check::mutate::{Mutation, Operator, mutations};
use flashcore_check::{CheckOptions, Verdict, check_plan, source};
use flashcore_ir::Target;
use flashcore_kernels::{Config, Plan, Tap};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, InputKind, Mask, Problem};
use flashcore_testkit::{RandomLimits, random_problem};

use crate::common::{assert_none, failure, number};

fn config(id: &str) -> Config {
    id.parse().unwrap()
}

/// The oldest architecture that a kernel runs on.
fn target(id: &str) -> Target {
    match config(id).family() {
        "wgmma" => Target::Sm90a,
        _ => Target::Sm80,
    }
}

/// One of each way of computing: the levers that change what a thread holds of S and P.
const KERNELS: [&str; 16] = [
    "scalar/naive-t64-v16",
    "scalar/tiled-m32n32-w4-v16",
    "scalar/tiled-m64n32-w8-v16",
    "ladder/hybrid-m64n32-w4",
    "ladder/mma-m128n64-w8",
    "mma/m64n64-w4x1-s2-b1-qreg-xor-cond",
    "mma/m64n32-w2x1-s3-b1-qsh-lin-always",
    "mma/m32n64-w2x4-s2-b1-qreg-xor-always",
    "mma/m32n64-w2x1-s2-b1-qreg-xor-spec",
    "mma/m64n32-w4x1-s2-b1-qsh-xor-spec",
    "mma/m32n32-w2x1-s2-b1-qreg-xor-cond-gqa-k3",
    "mma/m32n64-w2x2-s2-b1-qsh-xor-spec-gqa",
    "mma/m32n32-w2x1-s2-b1-qreg-xor-cond-k2",
    "wgmma/m64n32-s2-free-spec",
    "wgmma/m128n64-s2-c2-pingpong-cond",
    "wgmma/m128n48-s3-pingpong-always",
];

#[test]
fn every_tap_of_every_family_equals_float64() {
    let (first, count) = (number("FLASHCORE_SEED", 500), number("FLASHCORE_PROBLEMS", 20));
    let limits = RandomLimits {
        max_work: 2_000_000,
        max_batch: 2,
        head_dim_v: true,
        ..RandomLimits::default()
    };
    let mut rng = Rng::new(first);
    let (mut failures, mut checked) = (Vec::new(), [0; KERNELS.len()]);
    for seed in first..first + count {
        let problem = random_problem(seed, &limits).unwrap();
        let kind = match seed % 4 {
            0 => *rng.pick(&InputKind::ALL).unwrap(),
            _ => InputKind::Normal,
        };
        // Two kernels a problem, each in its turn; those that refuse it leave the others theirs.
        for turn in [seed, seed + 5] {
            let index = turn as usize % KERNELS.len();
            for stop in Tap::ALL {
                let Ok(plan) = Plan::with_tap(&problem, &config(KERNELS[index]), Target::Sm90a, stop) else {
                    continue;
                };
                failures.extend(failure(&plan, seed, kind));
                checked[index] += 1;
            }
        }
    }
    println!("{count} problems from seed {first}: {checked:?} taps checked");
    assert_none(&failures);
    if count >= 40 {
        assert!(checked.iter().all(|&n| n > 0), "{checked:?}");
    }
}

fn odd_problem() -> Problem {
    let builder = Problem::builder().heads(4, 2).seq_len_q(45).seq_len_kv(77).head_dim(40);
    builder.mask(Mask::CAUSAL).build().unwrap()
}

#[test]
fn every_kernel_stops_where_it_is_told() {
    let shape = Problem::builder().heads(4, 2).seq_len_q(70).seq_len_kv(150);
    let window = shape
        .clone()
        .head_dim(64)
        .mask(Mask::window(Some(20), Some(9)))
        .return_lse(true);
    let capped = shape.head_dim(128).dtype(DType::BF16).softcap(20.0);
    for problem in [window, capped] {
        let problem = problem.build().unwrap();
        for id in KERNELS {
            for stop in Tap::ALL {
                let plan = Plan::with_tap(&problem, &config(id), target(id), stop);
                let plan = plan.unwrap_or_else(|refusal| panic!("{id}: {refusal}"));
                let report = check_plan(&plan, &CheckOptions::default()).unwrap();
                assert_eq!(report.verdict, Verdict::Clean, "{problem} by {id}, {stop}\n{report}");
                assert_eq!(report.tap, Some(stop));
            }
        }
    }
}

/// Verdicts on a build with each of these mistakes in it, one at a time.
fn verdicts(id: &str, stop: Tap, planted: impl Fn(&Mutation) -> bool) -> Vec<Verdict> {
    let plan = Plan::with_tap(&odd_problem(), &config(id), target(id), stop).unwrap();
    let places = mutations(&plan.main.kernel).into_iter().filter(planted);
    let broken = places.map(|mutation| {
        let mut mutant = plan.clone();
        mutant.main.kernel = Arc::new(mutation.apply(&plan.main.kernel));
        check_plan(&mutant, &CheckOptions::default()).unwrap().verdict
    });
    broken.collect()
}

/// A mistake shows at the tap where it is made and at those after it, and in none before.
#[test]
fn a_mistake_shows_from_its_tap_on() {
    for (id, mask) in [
        ("scalar/tiled-m32n32-w4-v16", "sees.select(score"),
        ("mma/m64n64-w4x1-s2-b1-qreg-xor-cond", "warp.mask("),
    ] {
        let unmasked = |m: &Mutation| {
            let quoted = source::quote(m.line.file, m.line.line).unwrap_or_default();
            m.operator == Operator::Unmask && quoted.contains(mask)
        };
        // The mask does not touch scores, and spoils probabilities.
        let of_scores = verdicts(id, Tap::Scores, unmasked);
        assert!(of_scores.iter().all(|&v| v == Verdict::Clean), "{id}: {of_scores:?}");
        let of_probabilities = verdicts(id, Tap::Probabilities, unmasked);
        assert!(of_probabilities.contains(&Verdict::Wrong), "{id}: {of_probabilities:?}");
        // A value that is never stored is missed, where the instruction has one to store: rows end before a tile does.
        let unstored = |m: &Mutation| m.operator == Operator::DropStore && m.object.as_deref() == Some("tap");
        for stop in Tap::STORED {
            let found = verdicts(id, stop, unstored);
            let wrong = found.iter().filter(|&&v| v == Verdict::Wrong).count();
            assert!(wrong > 0 && 2 * wrong >= found.len(), "{id}, {stop}: {found:?}");
        }
    }
}

/// With weights that are all the same, a lost product of Q and K does not show, and one of P and V does.
#[test]
fn values_show_mistakes_of_p_times_v_alone() {
    let id = "mma/m64n64-w4x1-s2-b1-qreg-xor-cond";
    let lost = |product: &'static str| {
        verdicts(id, Tap::Values, |m: &Mutation| {
            let quoted = source::quote(m.line.file, m.line.line).unwrap_or_default();
            m.operator == Operator::DropProduct && quoted.contains(product)
        })
    };
    let (of_scores, of_output) = (lost("score_steps("), lost("self.accumulate("));
    assert!(!of_scores.is_empty() && !of_output.is_empty());
    assert!(of_scores.iter().all(|&v| v == Verdict::Clean), "{of_scores:?}");
    assert!(of_output.contains(&Verdict::Wrong), "{of_output:?}");
}

/// Where no tap is asked for, nothing of this is in a kernel.
#[test]
fn whole_builds_have_nothing_of_it() {
    let in_taps = |plan: &Plan| {
        let mut count = 0;
        plan.main.kernel.for_each_inst(&mut |_, site| {
            let lines = plan.main.kernel.backtrace(site);
            count += usize::from(lines.iter().any(|(line, _)| line.file.ends_with("tap.rs")));
        });
        count
    };
    for id in KERNELS {
        let whole = Plan::new(&odd_problem(), &config(id), target(id)).unwrap();
        assert_eq!(in_taps(&whole), 0, "{id}");
        // Split, it has the two arguments of parts besides; tensor maps are one each, and lists of tiles a table.
        let of_parts = if whole.then.is_empty() { 0 } else { 2 };
        let expected = match config(id).family() {
            "wgmma" => 4 + 7 + 1,
            _ => 4 * 4 + 7 + of_parts,
        };
        assert_eq!(whole.main.launch.args.len(), expected, "{id}");
        let stopped = Plan::with_tap(&odd_problem(), &config(id), target(id), Tap::Scores).unwrap();
        assert!(in_taps(&stopped) > 0, "{id}");
        assert_ne!(stopped.main.kernel.name(), whole.main.kernel.name());
    }
}
