//! Backward plans of family `scalar` give the float64 gradients under the simulator and without a finding, and mistakes
//! planted in them are found.
//!
//! `FLASHCORE_SEED` moves to other problems, `FLASHCORE_PROBLEMS` sets how many (60).

use std::sync::Arc;

use flashcore_check::mutate::{Mutation, Operator, mutations};
use flashcore_check::{CheckOptions, CheckReport, Verdict, check_plan};
use flashcore_ir::Target;
use flashcore_kernels::{Config, KernelCache, Plan, Tap, scalar, select};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, InputKind, KvLengths, Mask, Problem, QLengths};
use flashcore_sim::FindingKind::{self, NeverWritten, OutOfBounds, Race};
use flashcore_testkit::{RandomLimits, random_backward};

use crate::common::{assert_clean, inputs_of, number, seeded};
use crate::planted::quoted;

/// The problem of a seed, on every combination of lengths that has a backward pass.
fn problem(seed: u64) -> Problem {
    let limits = RandomLimits {
        max_seq: 150,
        max_work: 500_000,
        lengths: seed % 2 == 1,
        head_dim_v: true,
        ..RandomLimits::default()
    };
    random_backward(seed, &limits).unwrap()
}

/// Keys past the last row are seen by none: there are no statistics for them, and none at all of a sequence without
/// rows.
#[test]
fn keys_that_no_row_sees_read_no_statistics() {
    let build = Problem::builder().heads(1, 1).seq_len_q(1).seq_len_kv(200).head_dim(8);
    let build = build.mask(Mask::CAUSAL.top_left());
    let packed = QLengths::Packed { total: 1, used: false };
    let packed = build.clone().batch(3).q_lengths(packed).kv_lengths(KvLengths::Cache);
    for problem in [build.build(), packed.build()].map(Result::unwrap) {
        let problem = problem.backward().unwrap();
        let config = Config::Scalar(scalar::preferred_configs(&problem, 16)[0]);
        let plan = Plan::new(&problem, &config, Target::Sm80).unwrap();
        for seed in 0..3 {
            assert_clean(&plan, seed, InputKind::Normal);
        }
    }
}

#[test]
fn the_scalar_family_equals_float64() {
    let (first, count) = (number("FLASHCORE_SEED", 0), number("FLASHCORE_PROBLEMS", 60));
    let (kernels, mut rng, mut most) = (KernelCache::default(), Rng::new(first), 0f64);
    let all: Vec<Config> = Config::all().into_iter().filter(|c| c.family() == "scalar").collect();
    for seed in first..first + count {
        let problem = problem(seed);
        let default = scalar::preferred_configs(&problem, 16)[0];
        let other = (0..200).find_map(|_| Plan::with_cache(&problem, rng.pick(&all)?, Target::Sm80, &kernels).ok());
        let default = Plan::with_cache(&problem, &Config::Scalar(default), Target::Sm80, &kernels).unwrap();
        let plan = if seed % 3 == 0 {
            other.unwrap_or(default)
        } else {
            default
        };
        let report = assert_clean(&plan, seed, inputs_of(seed));
        most = most.max(report.gate.unwrap().out.of_allowed);
    }
    println!("at most {most:.2} of the allowed error");
}

/// Tails of rows, keys and columns; two heads on each of two K/V heads; rows that see nothing and a soft cap.
fn odd_problem() -> Problem {
    let builder = Problem::builder().heads(4, 2).seq_len_q(45).seq_len_kv(39).head_dim(40);
    let builder = builder.head_dim_v(24).mask(Mask::CAUSAL).softcap(4.0);
    builder.build().unwrap().backward().unwrap()
}

/// Steps of a plan, in their order.
const PREPROCESS: usize = 0;
const DKDV: usize = 1;
const DQ: usize = 2;

/// A mistake, the step and the line that it is planted in (perhaps with the instruction's mnemonic before it), and the
/// finding that it must give: its kind and the buffer, or none where the gradients are wrong.
type Mistake = (
    &'static str,
    usize,
    Operator,
    &'static str,
    Option<(FindingKind, &'static str)>,
);

#[rustfmt::skip]
const MISTAKES: &[Mistake] = &[
    ("the end of O is read past", PREPROCESS, Operator::IgnoreCondition, "k.if_(is_row.divergent()", Some((OutOfBounds, "out"))),
    ("the log-sum-exp is not stored", PREPROCESS, Operator::DropStore, "statistics.lse.offset(row).store", Some((NeverWritten, "row_lse"))),
    ("delta is not summed over a row's threads", PREPROCESS, Operator::DropExchange, "sum.get().reduce_sum", None),
    ("the next tile overwrites this one", DKDV, Operator::DropBarrier, "k.barrier();", Some((Race, "q_tile"))),
    ("a shuffle is taken for a fence", DKDV, Operator::DropWarpBarrier, "k.sync_warp();", Some((Race, "p_tile"))),
    ("P is not divided by the saved sum", DKDV, Operator::DropAddend, "fma.rn.f32 params.differentiate(", None),
    ("delta is not subtracted", DKDV, Operator::DropAddend, "sub.rn.f32 params.differentiate(", None),
    ("a factor of dS is left out", DKDV, Operator::DropFactor, "mul.rn.f32 params.differentiate(", None),
    ("the mask of P is left out", DKDV, Operator::Unmask, "sees.select(p, 0.0)", None),
    ("the mask of dS is left out", DKDV, Operator::Unmask, "sees.select(ds, 0.0)", None),
    ("a head is left out or one too many", DKDV, Operator::BoundOne, "k.for_uniform(0u32, rows.group_size", None),
    ("a padding row is read", DKDV, Operator::BoundOne, "load_tile(k, shape, dout_tile", Some((OutOfBounds, "dout"))),
    ("a key past the end is stored", DKDV, Operator::BoundOne, "k.if_(key.lt(rows.seq_len_kv)", Some((OutOfBounds, "dk"))),
    ("dK is not scaled", DKDV, Operator::DropFactor, "factor.map_or_else(", None),
    ("the last K tiles are left out", DQ, Operator::WideBound, "k.for_uniform(first_key, end_key", None),
    ("a padding key is read", DQ, Operator::BoundOne, "load_tile(k, shape, v_tile", Some((OutOfBounds, "v"))),
    ("dS of another tile", DQ, Operator::DropWarpBarrier, "k.sync_warp();", Some((Race, "ds_tile"))),
    ("the mask of dS is left out", DQ, Operator::Unmask, "sees.select(ds, 0.0)", None),
];

fn plan(problem: &Problem) -> Plan {
    Plan::new(problem, &"scalar/tiled-m32n32-w4-v16".parse().unwrap(), Target::Sm89).unwrap()
}

#[test]
fn planted_mistakes_are_found() {
    let plan = plan(&odd_problem());
    let names: Vec<&str> = plan.steps().map(|step| step.kernel.name()).collect();
    assert!(
        names[PREPROCESS].contains("preprocess") && names[DKDV].contains("dkdv") && names[DQ].contains("dq"),
        "{names:?}"
    );
    for &(name, step, operator, line, expected) in MISTAKES {
        let kernel = plan.steps().nth(step).unwrap().kernel.clone();
        let is_there = |mutation: &Mutation| {
            let quote = quoted(mutation.line);
            match line.split_once(".f32 ") {
                Some((what, line)) => mutation.what == format!("{what}.f32") && quote.contains(line),
                None => quote.contains(line),
            }
        };
        let all = mutations(&kernel).into_iter();
        let places: Vec<_> = all.filter(|m| m.operator == operator && is_there(m)).collect();
        assert!(!places.is_empty(), "{name}: nowhere to plant it");
        let mut seen = String::new();
        let found = places.iter().any(|mutation| {
            let mut mutant = plan.clone();
            mutant.steps_mut().nth(step).unwrap().kernel = Arc::new(mutation.apply(&kernel));
            let report = check_plan(&mutant, &seeded(3, InputKind::Normal)).unwrap();
            seen.push_str(&format!("{mutation}\n{report}\n"));
            is_found(&report, expected)
        });
        assert!(found, "{name}\n{seen}");
    }
}

fn is_found(report: &CheckReport, expected: Option<(FindingKind, &str)>) -> bool {
    let Some((kind, object)) = expected else {
        return report.verdict != Verdict::Clean;
    };
    let mut findings = report.findings.iter().map(|found| &found.finding);
    findings.any(|finding| finding.kind == kind && finding.object.as_deref() == Some(object))
}

/// Statistics of no row, those of the log-sum-exp in place of Δ, and a gradient that is not computed.
#[test]
fn plans_that_lie_are_found() {
    let plan = plan(&odd_problem());
    let check = |change: &dyn Fn(&mut Plan)| {
        let mut mutant = plan.clone();
        change(&mut mutant);
        check_plan(&mutant, &seeded(3, InputKind::Normal)).unwrap()
    };
    assert_eq!(check(&|_| {}).verdict, Verdict::Clean);
    let unprepared = check(&|plan| plan.before.clear());
    assert!(is_found(&unprepared, Some((NeverWritten, "row_lse"))), "{unprepared}");
    let exchanged = check(&|plan| {
        let args = &mut plan.main.launch.args;
        let place = |name: &str| {
            plan.main
                .kernel
                .params()
                .iter()
                .position(|param| param.name == name)
                .unwrap()
        };
        args.swap(place("row_lse"), place("row_delta"));
    });
    assert_eq!(exchanged.verdict, Verdict::Wrong, "{exchanged}");
    let missing = check(&|plan| plan.then.clear());
    assert_eq!(missing.verdict, Verdict::Wrong, "{missing}");
    assert_eq!(
        missing.gate.map(|gate| gate.gradient),
        Some(Some("dq")),
        "which buffer was never written"
    );
}

#[test]
fn the_kernels_as_they_are_are_clean_over_20_schedules() {
    let schedules = CheckOptions {
        schedules: 20,
        ..CheckOptions::default()
    };
    let report = check_plan(&plan(&odd_problem()), &schedules).unwrap();
    assert_eq!(report.verdict, Verdict::Clean, "{report}");
    assert_eq!(report.schedules.len(), 20);
}

#[test]
fn what_has_no_kernel_is_refused_by_name() {
    let refusal = |id: &str| {
        let plan = Plan::new(&odd_problem(), &id.parse().unwrap(), Target::Sm90a);
        plan.unwrap_err().to_string()
    };
    assert_eq!(
        refusal("ladder/mma-m64n64-w4"),
        "ladder does not serve the backward pass; families mma, scalar and on Hopper wgmma do"
    );
    assert!(
        refusal("scalar/naive-t128-v16").starts_with("scalar does not serve the backward pass without tiles; take")
    );
    let tap = Plan::with_tap(
        &odd_problem(),
        &"scalar/tiled-m32n32-w4-v16".parse().unwrap(),
        Target::Sm89,
        Tap::Scores,
    );
    assert!(
        tap.unwrap_err()
            .to_string()
            .starts_with("scalar does not serve taps of the backward pass")
    );
    // The whole of the largest heads fits on every card.
    for head_dim in [8, 64, 128, 136, 256] {
        let problem = Problem::builder()
            .heads(1, 1)
            .seq_len(64)
            .head_dim(head_dim)
            .dtype(DType::F32);
        let problem = problem.build().unwrap().backward().unwrap();
        for target in [Target::Sm80, Target::Sm89, Target::Sm90a, Target::Sm120] {
            let choice = select(&problem, target, 16, &KernelCache::default()).unwrap();
            assert_eq!(choice.plan.config.family(), "scalar");
        }
    }
}
