//! In the backward pass of family `wgmma`, blocks prepare the statistics of later heads: gradients are right whatever
//! runs at a time, and mistakes in how blocks wait for each other are found.
//!
//! `FLASHCORE_SEED` moves to other problems, `FLASHCORE_PROBLEMS` sets how many (24).

use flashcore_check::mutate::{Operator, mutations, replaced};
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::inst::{AtomOp, Special};
use flashcore_ir::{Arg, Chip, Inst, Kernel, Node, Target};
use flashcore_kernels::Plan;
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, Layout, Mask, Problem, ProblemBuilder};
use flashcore_sim::FindingKind;

use crate::common::number;
use crate::planted::{check_with, place, through};

/// The default, and the smallest tile.
const CONFIGS: [(&str, usize); 2] = [("wgmma/m128n128-s2-pingpong", 128), ("wgmma/m64n64-s2-free", 64)];

/// Few SMs: most heads are later ones, and blocks wait for a place.
fn chip(sms: u32) -> Chip {
    Chip {
        target: Target::Sm90a,
        sms,
    }
}

/// A plan whose blocks prepare rows of later heads.
fn planned(problem: ProblemBuilder, config: &str, chip: Chip) -> Plan {
    let problem = problem.build().unwrap().backward().unwrap();
    let plan = Plan::new(&problem, &config.parse().unwrap(), chip).unwrap();
    assert!(plan.main.kernel.name().contains("ahead"), "{problem}");
    plan
}

/// As many blocks run at a time as on this chip.
fn options_on(chip: Chip) -> CheckOptions {
    let mut options = CheckOptions::default();
    options.sim.chip = chip;
    options
}

/// Four heads, of which preprocess prepares two, on two SMs.
fn usual_plan() -> Plan {
    let problem = Problem::builder().heads(4, 4).seq_len_q(150).seq_len_kv(200);
    planned(problem.head_dim(64), CONFIGS[0].0, chip(2))
}

/// A problem with later heads on three SMs or fewer. Half of them have offsets: rows that see no key, keys that no row
/// sees, and sometimes nothing that is seen.
fn random_problem(rng: &mut Rng, cols: usize) -> ProblemBuilder {
    let window = Mask::window(Some(rng.between(0, 60) as u32), Some(rng.between(0, 60) as u32));
    let masks = [
        Mask::FULL,
        Mask::CAUSAL,
        Mask::CAUSAL.top_left(),
        window,
        window.top_left(),
    ];
    let mask = masks[rng.below(5)];
    // As many tiles of 128 rows as of keys.
    let tiles = rng.between(1, 2);
    let [rows, keys] = [128, cols].map(|tile| rng.between((tiles - 1) * tile + 1, tiles * tile));
    // Where tiles differ in their work, eight heads run at a time, and preprocess prepares two times as many.
    let (heads, batch) = if mask == Mask::FULL {
        (rng.between(2, 5), rng.between(3, 4))
    } else {
        (8, 3)
    };
    let head_dims = [64, 56, 48, 40, 32, 24, 16, 8];
    let problem = Problem::builder()
        .batch(batch)
        .heads(heads, heads)
        .seq_len_q(rows)
        .seq_len_kv(keys)
        .head_dim(head_dims[rng.below(8)])
        .head_dim_v(head_dims[rng.below(8)])
        .dtype([DType::F16, DType::BF16][rng.below(2)])
        .mask(mask);
    let problem = if rng.chance(0.5) {
        problem.layout(Layout::bhsd)
    } else {
        problem
    };
    // A full mask has no use for them.
    if mask == Mask::FULL || rng.chance(0.5) {
        problem
    } else {
        let mut offset = || rng.between(0, 600) as i32 - 300;
        problem.offsets(offset(), offset())
    }
}

#[test]
fn random_problems_with_later_heads_equal_float64() {
    let (first, count) = (number("FLASHCORE_SEED", 0), number("FLASHCORE_PROBLEMS", 24));
    for seed in first..first + count {
        let mut rng = Rng::new(seed);
        let (config, cols) = CONFIGS[seed as usize % 2];
        let problem = random_problem(&mut rng, cols);
        let chip = chip(1 + rng.below(3) as u32);
        let plan = planned(problem, config, chip);
        let mut options = CheckOptions {
            seed,
            schedules: 2,
            ..options_on(chip)
        };
        options.sim.shuffle_blocks = rng.chance(0.5);
        let report = check_plan(&plan, &options).unwrap();
        let problem = &plan.problem;
        assert_eq!(
            report.verdict,
            Verdict::Clean,
            "{seed}: {problem} by {config}\n{report}"
        );
    }
}

/// On as many SMs as it is planned for, and on more, as where others leave room.
#[test]
fn as_many_blocks_as_fit_may_run() {
    for sms in [1, 2, 132] {
        let report = check_plan(&usual_plan(), &options_on(chip(sms))).unwrap();
        assert_eq!(report.verdict, Verdict::Clean, "{sms} SMs: {report}");
    }
}

/// On how many SMs: on 132 all blocks run at once, and a missing wait shows; on 2 a block may wait for one that has no
/// place. What is planted where, and what is found.
#[rustfmt::skip]
const FAULTS: &[(u32, Operator, &str, FindingKind)] = &[
    (2, Operator::RelaxFlag, "wait_for_rows", FindingKind::BlockRace),
    (2, Operator::InvertCondition, "wait_for_rows", FindingKind::Deadlock),
    (132, Operator::InvertCondition, "wait_for_rows", FindingKind::NeverWritten),
    (132, Operator::BoundOne, "wait_for_rows", FindingKind::NeverWritten),
    (2, Operator::DropBarrier, "signal_prepared", FindingKind::BlockRace),
    (2, Operator::DropStore, "signal_prepared", FindingKind::Deadlock),
    (132, Operator::EveryLane, "signal_prepared", FindingKind::BlockRace),
    (2, Operator::DropStore, "store(0u32)", FindingKind::NeverWritten),
    (2, Operator::DropStore, "lse.store(", FindingKind::NeverWritten),
    (2, Operator::DropStore, "delta.store(", FindingKind::NeverWritten),
];

#[test]
fn faults_of_later_heads_are_found() {
    let plan = usual_plan();
    let kernel = &plan.main.kernel;
    for (sms, operator, text, kind) in FAULTS {
        let mut all = mutations(kernel).into_iter();
        let found = all.find(|m| m.operator == *operator && place(m, kernel).contains(text));
        let mutant = found.expect(text).apply(kernel);
        let report = check_with(&plan, mutant, plan.main.launch.clone(), &options_on(chip(*sms)));
        let mut kinds = report.findings.iter().map(|found| found.finding.kind);
        assert!(kinds.any(|found| found == *kind), "{operator} at {text}: {report}");
    }
}

/// The kernel with blocks that take their own numbers for their tickets.
fn numbered_by_the_launch(kernel: &Kernel) -> Kernel {
    kernel.with_body(replaced(kernel, &mut |node| {
        let Node::Inst { inst, site } = node else { return None };
        match *inst {
            Inst::Atom {
                op: AtomOp::Add,
                dst: Some(dst),
                ..
            } => {
                let which = Special::Ctaid(0);
                let inst = Inst::Special { dst, which };
                Some(vec![Node::Inst { inst, site: *site }])
            }
            _ => None,
        }
    }))
}

/// A block waits only for blocks with smaller tickets, which have started, in whatever order blocks start. Blocks with
/// the numbers of the launch wait for those that have no place.
#[test]
fn blocks_may_start_in_any_order() {
    let plan = usual_plan();
    let mutant = numbered_by_the_launch(&plan.main.kernel);
    let mut options = options_on(chip(2));
    options.schedules = 3;
    let of_mutant = |options: &CheckOptions| check_with(&plan, mutant.clone(), plan.main.launch.clone(), options);
    assert_eq!(of_mutant(&options).verdict, Verdict::Clean);
    options.sim.shuffle_blocks = true;
    let report = check_plan(&plan, &options).unwrap();
    assert_eq!(report.verdict, Verdict::Clean, "{report}");
    let report = of_mutant(&options);
    let mut kinds = report.findings.iter().map(|found| found.finding.kind);
    assert!(kinds.any(|found| found == FindingKind::Deadlock), "{report}");
}

/// What a launch before has counted, or nothing at all, is not taken for a count of this one.
#[test]
fn counts_that_are_not_zeroed_are_found() {
    let mut plan = usual_plan();
    let heads = plan.problem.num_heads() as u32;
    let args = &mut plan.before[0].launch.args;
    let counts = args.iter().position(|arg| *arg == Arg::U32(heads));
    args[counts.unwrap()] = Arg::U32(0);
    let report = check_plan(&plan, &options_on(chip(2))).unwrap();
    let mut findings = report.findings.iter().map(|found| &found.finding);
    let found = findings.any(|f| f.kind == FindingKind::NeverWritten && through(&f.lines).contains("wait_for_rows"));
    assert!(found, "{report}");
}
