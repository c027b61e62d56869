//! Schedules of several rounds: blocks that have many tiles, some whole in each round and pieces in the last.

use std::sync::Arc;

use flashcore_check::mutate::{Operator, mutations};
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::{Chip, Target};
use flashcore_kernels::Plan;
use flashcore_problem::{KvLengths, Mask, Problem, QLengths};
use flashcore_sim::FindingKind;

use crate::planted::quoted;

/// On so few SMs that a block has a few dozen tiles.
fn plan(kernel: &str) -> Plan {
    let problem = Problem::builder()
        .batch(4)
        .heads(6, 2)
        .head_dim(16)
        .seq_len_q(200)
        .seq_len_kv(220)
        .mask(Mask::CAUSAL)
        .return_lse(true)
        .q_lengths(QLengths::Packed { total: 500, used: true })
        .kv_lengths(KvLengths::Packed { total: 600, used: true });
    let chip = Chip {
        target: Target::Sm90a,
        sms: 2,
    };
    Plan::new(&problem.build().unwrap(), &kernel.parse().unwrap(), chip).unwrap()
}

fn options(seed: u64) -> CheckOptions {
    let mut options = CheckOptions {
        seed,
        ..CheckOptions::default()
    };
    options.sim.max_instructions = 4_000_000;
    options
}

#[test]
fn tiles_of_several_rounds_are_right() {
    for kernel in ["wgmma/m64n32-s2-free-spec", "mma/m16n32-w1x2-s2-b1-qsh-xor-cond-gqa"] {
        for seed in 0..4 {
            let report = check_plan(&plan(kernel), &options(seed)).unwrap();
            assert_eq!(report.verdict, Verdict::Clean, "{kernel}\n{report}");
        }
    }
}

/// Mistakes in the rounds: what breaks, and where.
#[rustfmt::skip]
const PLANTED: [(&str, Operator, &str); 5] = [
    ("a round begins a tile late", Operator::Unmask, "let number = tile.number"),
    ("the last round begins elsewhere", Operator::NextAccess, "self.cuts.at(POSITION, ranges.whole).load()"),
    ("items of a round over those of the one before", Operator::DropStep, "next.add_assign(self.tiles_of(range)"),
    ("items of a block over those of the one before", Operator::DropAddend, "let first = all + sum.before"),
    ("a round of whole tiles left out", Operator::DropStep, "each_range(&|range| items.add_assign"),
];

#[test]
fn mistakes_in_rounds_are_found() {
    are_found(&plan("wgmma/m64n32-s2-free-spec"), &PLANTED);
}

/// A step that decodes: sequences of one row tile each, in more pieces than a warp has lanes.
fn decoding() -> Plan {
    let problem = Problem::builder()
        .batch(5)
        .heads(4, 2)
        .head_dim(16)
        .seq_len_q(1)
        .seq_len_kv(4000)
        .kv_lengths(KvLengths::Cache);
    let chip = Chip {
        target: Target::Sm80,
        sms: 108,
    };
    let kernel = "mma/m16n32-w1x2-s2-b1-qsh-xor-cond-gqa";
    Plan::new(&problem.build().unwrap(), &kernel.parse().unwrap(), chip).unwrap()
}

/// Mistakes in the schedule of such a step.
#[rustfmt::skip]
const PLANTED_IN_DECODING: [(&str, Operator, &str); 6] = [
    ("costs of the sequences before left out", Operator::DropAddend, "all + costs.before"),
    ("a tile begins in the range of its last piece", Operator::DropAddend, "range - run"),
    ("a tile begins a range earlier", Operator::OffsetOne, "self.rank(TILES_BEFORE"),
    ("the range before", Operator::OffsetOne, "self.range_of_lane(first)"),
    ("ranges that begin in the warp left out", Operator::DropAddend, "self.range_of_lane(first)"),
    ("the share of items of a block left out", Operator::DropAddend, "let end = (first + share)"),
];

#[test]
fn mistakes_in_the_schedule_of_decoding_are_found() {
    let plan = decoding();
    let report = check_plan(&plan, &options(1)).unwrap();
    assert_eq!(report.verdict, Verdict::Clean, "{report}");
    are_found(&plan, &PLANTED_IN_DECODING);
}

/// Each mistake in the first step of a plan, in some line that has its text, with values of one of six seeds.
fn are_found(plan: &Plan, planted: &[(&str, Operator, &str)]) {
    let kernel = plan.steps().next().unwrap().kernel.clone();
    for &(name, operator, place) in planted {
        let all = mutations(&kernel).into_iter().filter(|m| m.operator == operator);
        let here: Vec<_> = all.filter(|m| quoted(m.line).contains(place)).collect();
        assert!(!here.is_empty(), "{name}: nowhere to plant it");
        let found = |seed: u64| {
            here.iter().any(|mutation| {
                let mut mutant = plan.clone();
                mutant.steps_mut().next().unwrap().kernel = Arc::new(mutation.apply(&kernel));
                check_plan(&mutant, &options(seed)).unwrap().verdict != Verdict::Clean
            })
        };
        assert!((0..6).any(found), "{name}");
    }
}

/// Main kernel and `combine` begin while the launch before them runs.
#[test]
fn a_launch_that_does_not_wait_for_the_one_before_is_found() {
    for kernel in ["wgmma/m64n32-s2-free-spec", "mma/m16n32-w1x2-s2-b1-qsh-xor-cond-gqa"] {
        let plan = plan(kernel);
        let early = plan.steps().map(|step| step.launch.programmatic);
        assert_eq!(early.collect::<Vec<_>>(), [false, true, true], "{kernel}");
        for number in [1, 2] {
            let mut mutant = plan.clone();
            let step = mutant.steps_mut().nth(number).unwrap();
            let mut waits = mutations(&step.kernel)
                .into_iter()
                .filter(|m| m.operator == Operator::DropWait);
            let wait = waits
                .find(|m| quoted(m.line).contains("wait_for_launch_before"))
                .unwrap();
            step.kernel = Arc::new(wait.apply(&step.kernel));
            let report = check_plan(&mutant, &options(1)).unwrap();
            let kinds: Vec<_> = report.findings.iter().map(|found| found.finding.kind).collect();
            assert!(
                kinds.contains(&FindingKind::BeforeDependency),
                "{kernel}, step {number}: {kinds:?}"
            );
        }
    }
}
