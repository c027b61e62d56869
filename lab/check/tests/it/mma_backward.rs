//! The backward pass of family `mma` gives the float64 gradients under the simulator and without a finding, and faults
//! planted in its kernels are found.
//!
//! `FLASHCORE_SEED` moves to other problems, `FLASHCORE_PROBLEMS` sets how many (12).

use flashcore_check::mutate::Operator;
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::Target;
use flashcore_kernels::{Config, KernelCache, Plan, mma, select};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, Mask, Problem};
use flashcore_sim::FindingKind;
use flashcore_testkit::{RandomLimits, random_backward};

use crate::common::{assert_clean, inputs_of, number};
use crate::planted::{Fault, find_all, find_all_in};

/// A problem of 16-bit elements, with lengths on the device or without; a third of them deterministic.
fn problem(seed: u64) -> Problem {
    let limits = RandomLimits {
        max_seq: 300,
        max_work: 1_500_000,
        lengths: seed % 2 == 1,
        head_dim_v: true,
        odd_strides: false,
        dtypes: &[DType::F16, DType::BF16],
        ..RandomLimits::default()
    };
    random_backward(seed, &limits).unwrap()
}

/// A config drawn over all levers that the backward pass has.
fn draw(problem: &Problem, kernels: &KernelCache, rng: &mut Rng) -> Plan {
    let mut drawn = (0..2000).filter_map(|_| {
        let config = Config::Mma(mma::FAMILY.of_backward(false).sample(rng).into());
        Plan::with_cache(problem, &config, Target::Sm90a, kernels).ok()
    });
    drawn.next().unwrap_or_else(|| panic!("no config serves {problem}"))
}

#[test]
fn random_problems_equal_float64() {
    let (first, count) = (number("FLASHCORE_SEED", 210), number("FLASHCORE_PROBLEMS", 12));
    let (kernels, mut most) = (KernelCache::default(), 0f64);
    for seed in first..first + count {
        let (problem, mut rng) = (problem(seed), Rng::new(seed));
        // What an A100 and an L4 get, and any other.
        let plan = match [Target::Sm80, Target::Sm89].get(seed as usize % 3) {
            Some(&target) => select(&problem, target, 16, &kernels).unwrap().plan,
            None => draw(&problem, &kernels, &mut rng),
        };
        assert!(matches!(plan.config, Config::Mma(_)), "{problem} by {}", plan.config);
        let report = assert_clean(&plan, seed, inputs_of(seed));
        most = most.max(report.gate.unwrap().out.of_allowed);
    }
    println!("at most {most:.2} of the allowed error");
}

/// Two heads on a K/V head, three tiles of query rows each. Of two tiles of keys the first is seen by some rows whole,
/// by others in part; both have tails.
fn planted_problem(deterministic: bool) -> Problem {
    let builder = Problem::builder().heads(2, 1).seq_len_q(90).seq_len_kv(50);
    let builder = builder.head_dim(64).mask(Mask::CAUSAL.top_left());
    builder
        .deterministic(deterministic)
        .build()
        .unwrap()
        .backward()
        .unwrap()
}

/// One warp for each 16 keys, or two that share the columns of the sums.
const ALONE: &str = "mma/m32n32-w1x2-s2-b1-qsh-xor";
const SHARED: &str = "mma/m32n32-w2x2-s3-b1-qsh-xor";

/// One stage of Q and of dO, with dP before the scores.
const ONE_STAGE: &str = "mma/m32n32-w2x2-s1-b1-qsh-xor";

fn plan(id: &str) -> Plan {
    Plan::new(&planted_problem(false), &id.parse().unwrap(), Target::Sm80).unwrap()
}

fn plan_in_order(id: &str) -> Plan {
    Plan::new(&planted_problem(true), &id.parse().unwrap(), Target::Sm80).unwrap()
}

#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    // Copies and their stages.
    Fault { name: "scores do not wait for Q", operator: Operator::DropWait,
        place: "ring.wait(2", object: "", found: Some(FindingKind::MissingWait), at: "S = K*Q", of: "q_tile" },
    Fault { name: "nor for what other warps copied", operator: Operator::DropBarrier,
        place: "ring.wait(2", object: "", found: Some(FindingKind::MissingWait), at: "S = K*Q", of: "q_tile" },
    Fault { name: "a stage of Q is filled while dK reads it", operator: Operator::DropBarrier,
        place: "ring.wait(2", object: "", found: Some(FindingKind::Race), at: "start_first", of: "q_tile" },
    Fault { name: "Q has one stage", operator: Operator::DropRemainder,
        place: "start_first", object: "", found: Some(FindingKind::Race), at: "start_first", of: "q_tile" },
    Fault { name: "dO is filled while dV reads it", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(FindingKind::Race), at: "start_second", of: "dout_tile" },
    Fault { name: "the log-sum-exp is not copied", operator: Operator::DropCopy,
        place: "start_first", object: "lse_tile", found: Some(FindingKind::NeverWritten), at: "differentiate", of: "lse_tile" },
    Fault { name: "padding rows of dO are read", operator: Operator::Unmask,
        place: "start_second", object: "", found: Some(FindingKind::OutOfBounds), at: "start_second", of: "dout" },
    Fault { name: "copies of the next head overwrite tiles", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(FindingKind::Race), at: "start_first", of: "q_tile" },

    // dS and dQ.
    Fault { name: "dQ does not wait for dS of other warps", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(FindingKind::Race), at: "dQ += dS*K", of: "ds_tile" },
    Fault { name: "dK takes the place of K before dQ has read it", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(FindingKind::Race), at: "", of: "k_tile" },
    Fault { name: "dQ is not added", operator: Operator::DropAtomic,
        place: "dQ += dS*K", object: "", found: None, at: "", of: "" },
    Fault { name: "a part of dQ is added twice", operator: Operator::AddTwice,
        place: "dQ += dS*K", object: "", found: None, at: "", of: "" },
    Fault { name: "dS taken the other way round", operator: Operator::FlipTranspose,
        place: "dQ += dS*K", object: "ds_tile", found: None, at: "", of: "" },
    Fault { name: "dS is not stored", operator: Operator::DropStore,
        place: "differentiate", object: "ds_tile", found: Some(FindingKind::NeverWritten), at: "dQ += dS*K", of: "ds_tile" },

    // Arithmetic and masks.
    Fault { name: "P is not divided by the saved sum", operator: Operator::DropAddend,
        place: "differentiate", object: "", found: None, at: "", of: "" },
    Fault { name: "a query that does not see the key", operator: Operator::Unmask,
        place: "differentiate", object: "", found: None, at: "", of: "" },
    Fault { name: "dK is not scaled", operator: Operator::DropFactor,
        place: "{ value * scale }", object: "", found: None, at: "", of: "" },
    Fault { name: "P of other columns", operator: Operator::NextColumns,
        place: "dV += P*dO", object: "", found: None, at: "", of: "" },
];

#[test]
fn planted_faults_are_found_with_kind_and_place() {
    find_all(&plan(ALONE), FAULTS);
}

#[rustfmt::skip]
const FAULTS_OF_SHARED: &[Fault] = &[
    Fault { name: "dV does not wait for P of other warps", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(FindingKind::Race), at: "dV += P*dO", of: "p_tile" },
    Fault { name: "dO is filled while dV reads it", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(FindingKind::Race), at: "start_second", of: "dout_tile" },
    Fault { name: "one group of copies fewer is waited for", operator: Operator::WeakenWait,
        place: "ring.wait(2", object: "", found: Some(FindingKind::MissingWait), at: "dP = V*dO", of: "dout_tile" },
];

#[test]
fn planted_faults_of_shared_columns_are_found_with_kind_and_place() {
    find_all(&plan(SHARED), FAULTS_OF_SHARED);
}

#[rustfmt::skip]
const FAULTS_OF_ONE_STAGE: &[Fault] = &[
    Fault { name: "dP does not wait for dO", operator: Operator::DropWait,
        place: "ring.wait(1)", object: "", found: Some(FindingKind::MissingWait), at: "dP = V*dO", of: "dout_tile" },
    Fault { name: "scores wait for dO alone", operator: Operator::DropWait,
        place: "ring.wait(0)", object: "", found: Some(FindingKind::MissingWait), at: "S = K*Q", of: "q_tile" },
    Fault { name: "nor for what other warps copied", operator: Operator::DropBarrier,
        place: "ring.wait(0)", object: "", found: Some(FindingKind::MissingWait), at: "S = K*Q", of: "q_tile" },
    Fault { name: "dP does not wait for what other warps copied", operator: Operator::DropBarrier,
        place: "ring.wait(1)", object: "", found: Some(FindingKind::MissingWait), at: "dP = V*dO", of: "dout_tile" },
    Fault { name: "Q is filled while dK reads it", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(FindingKind::Race), at: "start_first", of: "q_tile" },
    Fault { name: "dO is filled while dV reads it", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(FindingKind::Race), at: "start_second", of: "dout_tile" },
];

#[test]
fn planted_faults_of_one_stage_are_found_with_kind_and_place() {
    find_all(&plan(ONE_STAGE), FAULTS_OF_ONE_STAGE);
}

/// In order: the kernel of dK and dV.
#[rustfmt::skip]
const FAULTS_OF_DKDV: &[Fault] = &[
    Fault { name: "scores do not wait for Q", operator: Operator::DropWait,
        place: "ring.wait(2", object: "", found: Some(FindingKind::MissingWait), at: "S = K*Q", of: "q_tile" },
    Fault { name: "a stage of Q is filled while dK reads it", operator: Operator::DropBarrier,
        place: "ring.wait(2", object: "", found: Some(FindingKind::Race), at: "start_first", of: "q_tile" },
    Fault { name: "dO is filled while dV reads it", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(FindingKind::Race), at: "start_second", of: "dout_tile" },
    Fault { name: "padding rows of dO are read", operator: Operator::Unmask,
        place: "start_second", object: "", found: Some(FindingKind::OutOfBounds), at: "start_second", of: "dout" },
    Fault { name: "P is not divided by the saved sum", operator: Operator::DropAddend,
        place: "differentiate", object: "", found: None, at: "", of: "" },
    Fault { name: "a query that does not see the key", operator: Operator::Unmask,
        place: "differentiate", object: "", found: None, at: "", of: "" },
    Fault { name: "dK takes the place of K while scores read it", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(FindingKind::Race), at: "", of: "k_tile" },
];

/// The kernel of dQ, which owns query rows and walks keys.
#[rustfmt::skip]
const FAULTS_OF_DQ: &[Fault] = &[
    Fault { name: "scores do not wait for K", operator: Operator::DropWait,
        place: "ring.wait(2", object: "", found: Some(FindingKind::MissingWait), at: "S = Q*K", of: "k_tile" },
    Fault { name: "a stage of K is filled while dQ reads it", operator: Operator::DropBarrier,
        place: "ring.wait(2", object: "", found: Some(FindingKind::Race), at: "start_first", of: "k_tile" },
    Fault { name: "V is filled while dP reads it", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(FindingKind::Race), at: "start_second", of: "v_tile" },
    Fault { name: "padding keys are read", operator: Operator::Unmask,
        place: "start_second", object: "", found: Some(FindingKind::OutOfBounds), at: "start_second", of: "v" },
    Fault { name: "another statistic", operator: Operator::WrongParam,
        place: "row_lse", object: "", found: None, at: "", of: "" },
    Fault { name: "P is not divided by the saved sum", operator: Operator::DropAddend,
        place: "differentiate", object: "", found: None, at: "", of: "" },
    Fault { name: "a key that the query does not see", operator: Operator::Unmask,
        place: "differentiate", object: "", found: None, at: "", of: "" },
    Fault { name: "dQ is not scaled", operator: Operator::DropFactor,
        place: "{ value * scale }", object: "", found: None, at: "", of: "" },
];

#[test]
fn planted_faults_in_order_are_found_with_kind_and_place() {
    let plan = plan_in_order(ALONE);
    find_all(&plan, FAULTS_OF_DKDV);
    find_all_in(&plan, |plan| &mut plan.then[0], FAULTS_OF_DQ, &CheckOptions::default());
}

/// Statistics that are not there, sums that were not zeroed, or that a second run added to.
#[test]
fn plans_that_lie_are_found() {
    let gradient = |change: &dyn Fn(&mut Plan)| {
        let mut mutant = plan(ALONE);
        change(&mut mutant);
        let report = check_plan(&mutant, &CheckOptions::default()).unwrap();
        assert_eq!(report.verdict, Verdict::Wrong, "{report}");
        report.gate.and_then(|gate| gate.gradient)
    };
    assert_eq!(gradient(&|plan| plan.before.push(plan.main.clone())), Some("dq"));
    assert_eq!(gradient(&|plan| plan.then.clear()), Some("dq"));
    let unprepared = {
        let mut mutant = plan(ALONE);
        mutant.before.clear();
        check_plan(&mutant, &CheckOptions::default()).unwrap()
    };
    let mut findings = unprepared.findings.iter().map(|found| &found.finding);
    let never = findings.any(|f| f.kind == FindingKind::NeverWritten && f.object.as_deref() == Some("row_lse"));
    assert!(never, "{unprepared}");
}

#[test]
fn the_kernels_as_they_are_are_clean_over_10_schedules() {
    for id in [ALONE, SHARED, ONE_STAGE] {
        let options = CheckOptions {
            schedules: 10,
            ..CheckOptions::default()
        };
        for (plan, reproducible) in [(plan(id), false), (plan_in_order(id), true)] {
            let report = check_plan(&plan, &options).unwrap();
            assert_eq!(report.verdict, Verdict::Clean, "{report}");
            assert_eq!(plan.reproducible, reproducible);
        }
    }
}

#[test]
fn what_it_does_not_have_is_refused_with_a_remedy() {
    let refusal = |id: &str, head_dim: usize, target| {
        let problem = Problem::builder().heads(1, 1).seq_len(64).head_dim(head_dim);
        let problem = problem.build().unwrap().backward().unwrap();
        let plan = Plan::new(&problem, &id.parse().unwrap(), target);
        plan.unwrap_err().to_string()
    };
    assert_eq!(
        refusal("mma/m64n64-w4x1-s2-b1-qsh-xor-cond", 64, Target::Sm80),
        "rescale is conditional; allowed: never in the backward pass"
    );
    assert_eq!(
        refusal("mma/m64n128-w1x8-s2-b1-qsh-xor", 128, Target::Sm89),
        "132096 B of dynamic shared memory; sm_89 allows 101376 B; rows 64 to 32 saves 24576 B"
    );
    assert!(refusal("mma/m64n128-w1x8-s2-b1-qsh-xor", 256, Target::Sm90a).starts_with("at least "));
    assert_eq!(
        refusal("mma/m32n128-w2x2-s2-b2-qsh-xor", 64, Target::Sm89),
        "min_blocks is 2; allowed: fewer: a block needs 61952 B of shared memory, and each may have 50176"
    );
}
