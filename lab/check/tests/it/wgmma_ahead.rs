//! In the backward pass of family `wgmma`, blocks prepare the statistics of later heads: gradients are right whatever
//! runs at a time, and mistakes in how blocks wait for each other are found.

use flashcore_check::mutate::{Operator, mutations};
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::{Arg, Chip, Target};
use flashcore_kernels::{KernelCache, Plan, select};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, Mask, Problem};
use flashcore_sim::FindingKind;

use crate::planted::check_with;
use crate::wgmma_mutants::{place, through};

/// A plan for few SMs: most heads are later ones.
fn planned(problem: &Problem, sms: u32) -> Plan {
    let chip = Chip {
        target: Target::Sm90a,
        sms,
    };
    select(problem, chip, 16, &KernelCache::default()).unwrap().plan
}

/// Four heads, of which preprocess prepares two.
fn problem() -> Problem {
    let problem = Problem::builder().heads(4, 4).seq_len_q(150).seq_len_kv(200);
    problem.head_dim(64).build().unwrap().backward().unwrap()
}

#[test]
fn random_problems_with_later_heads_equal_float64() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let window = Mask::window(Some(40), Some(9));
        let mask = [Mask::FULL, Mask::CAUSAL, Mask::CAUSAL.top_left(), window][rng.below(4)];
        // Where tiles differ in their work, eight heads run at a time, and preprocess prepares two times as many.
        let (heads, batch, keys) = match mask == Mask::FULL {
            true => (rng.between(1, 5), rng.between(1, 4), rng.between(1, 290)),
            false => (8, 3, rng.between(1, 140)),
        };
        let problem = Problem::builder()
            .batch(batch)
            .heads(heads, heads)
            .seq_len_q(rng.between((keys - 1) / 128 * 128 + 1, keys.next_multiple_of(128)))
            .seq_len_kv(keys)
            .head_dim([64, 48, 40, 32][rng.below(4)])
            .dtype([DType::F16, DType::BF16][rng.below(2)])
            .mask(mask);
        let problem = problem.build().unwrap().backward().unwrap();
        let plan = planned(&problem, 1 + rng.below(3) as u32);
        assert!(plan.main.kernel.name().contains("ahead"), "{problem}");
        let options = CheckOptions {
            seed,
            schedules: 3,
            ..CheckOptions::default()
        };
        let report = check_plan(&plan, &options).unwrap();
        assert_eq!(report.verdict, Verdict::Clean, "problem {seed}: {problem}\n{report}");
    }
}

/// What is planted where, and what is found.
#[rustfmt::skip]
const FAULTS: &[(Operator, &str, FindingKind)] = &[
    (Operator::RelaxFlag, "wait_for_rows", FindingKind::BlockRace),
    (Operator::InvertCondition, "wait_for_rows", FindingKind::NeverWritten),
    (Operator::DropBarrier, "say_prepared", FindingKind::BlockRace),
    (Operator::DropStore, "say_prepared", FindingKind::Deadlock),
    (Operator::EveryLane, "say_prepared", FindingKind::BlockRace),
    (Operator::DropStore, "store(0u32)", FindingKind::NeverWritten),
    (Operator::DropStore, "lse.store(", FindingKind::NeverWritten),
    (Operator::DropStore, "delta.store(", FindingKind::NeverWritten),
];

#[test]
fn faults_of_later_heads_are_found() {
    let plan = planned(&problem(), 2);
    let report = check_plan(&plan, &CheckOptions::default()).unwrap();
    assert_eq!(report.verdict, Verdict::Clean, "{report}");
    let kernel = &plan.main.kernel;
    for (operator, text, kind) in FAULTS {
        let mut all = mutations(kernel).into_iter();
        let found = all.find(|m| m.operator == *operator && place(m, kernel).contains(text));
        let mutant = found.expect(text).apply(kernel);
        let report = check_with(&plan, mutant, plan.main.launch.clone(), &CheckOptions::default());
        let mut kinds = report.findings.iter().map(|found| found.finding.kind);
        assert!(kinds.any(|found| found == *kind), "{operator} at {text}: {report}");
    }
}

/// What a launch before has counted, or nothing at all, is not taken for a count of this one.
#[test]
fn counts_that_are_not_zeroed_are_found() {
    let mut plan = planned(&problem(), 2);
    let heads = plan.problem.num_heads() as u32;
    let args = &mut plan.before[0].launch.args;
    let counts = args.iter().position(|arg| *arg == Arg::U32(heads));
    args[counts.unwrap()] = Arg::U32(0);
    let report = check_plan(&plan, &CheckOptions::default()).unwrap();
    let mut findings = report.findings.iter().map(|found| &found.finding);
    let found = findings.any(|f| f.kind == FindingKind::NeverWritten && through(&f.lines).contains("wait_for_rows"));
    assert!(found, "{report}");
}
