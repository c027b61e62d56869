//! Family `wgmma` on e4m3 under the simulator: random problems by configs over all levers within the bound that the
//! reference makes row by row, and planted mistakes with scales outside of it. `FLASHCORE_PROBLEMS` sets how many (21).

use std::collections::BTreeSet;

use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::{Arg, Chip, Target};
use flashcore_kernels::{Config, Plan, select, wgmma};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, InputKind, Problem};
use flashcore_sim::TensorSums;
use flashcore_testkit::{RandomLimits, random_problem};

use crate::common::{assert_none, failure, seeded};

/// A config of the family that serves the problem; `None` where none of many does, as for rows that repeat. Keys are
/// not split: that is refused.
fn draw(problem: &Problem, rng: &mut Rng) -> Option<Plan> {
    let mut sample = || {
        Config::Wgmma(wgmma::Config {
            splits: 1,
            ..wgmma::FAMILY.sample(rng).into()
        })
    };
    // Few SMs, so that a block has several tiles.
    let chip = Chip {
        target: Target::Sm90a,
        sms: 2,
    };
    (0..60).find_map(|_| Plan::new(problem, &sample(), chip).ok())
}

#[test]
fn random_problems_are_within_the_bound() {
    let problems = crate::common::number("FLASHCORE_PROBLEMS", 21) as usize;
    let limits = RandomLimits {
        max_seq: 400,
        max_work: 2_000_000,
        max_batch: 2,
        dtypes: &[DType::E4M3],
        odd_strides: false,
        head_dim_v: true,
        ..RandomLimits::default()
    };
    let mut rng = Rng::new(1);
    let (mut served, mut failures, mut configs) = (0, Vec::new(), BTreeSet::new());
    for seed in 0.. {
        if served == problems {
            break;
        }
        assert!(
            seed < 20 * problems as u64,
            "only {served} of {seed} problems are served"
        );
        let problem = random_problem(seed, &limits).unwrap();
        let Some(plan) = draw(&problem, &mut rng) else {
            continue;
        };
        failures.extend(failure(&plan, seed, InputKind::ALL[served % InputKind::ALL.len()]));
        configs.insert(plan.config.to_string());
        served += 1;
    }
    assert_none(&failures);
    assert!(configs.len() > problems / 2, "{configs:?}");
}

/// As a Hopper card adds products up: it keeps 14 bits of a sum. Scores of products of one sign would lose more than
/// the bound knows, had these products more bits.
#[test]
fn sums_of_hopper_are_within_the_bound() {
    let chip = Chip {
        target: Target::Sm90a,
        sms: 2,
    };
    let config = "wgmma/m64n96-s2-free-spec".parse().unwrap();
    let mut failures = Vec::new();
    for (seed, inputs) in (0..4).flat_map(|seed| InputKind::ALL.map(|inputs| (seed, inputs))) {
        let problem = Problem::builder()
            .heads(1, 1)
            .seq_len(83)
            .mask(flashcore_problem::Mask::CAUSAL)
            .head_dim(240)
            .dtype(DType::E4M3);
        let plan = Plan::new(&problem.build().unwrap(), &config, chip).unwrap();
        let mut options = seeded(seed, inputs);
        options.sim.tensor_sums = TensorSums::Hopper;
        let report = check_plan(&plan, &options).unwrap();
        if report.verdict != Verdict::Clean {
            failures.push(format!("seed {seed}, {inputs}\n{report}"));
        }
    }
    assert_none(&failures);
}

fn default_plan() -> Plan {
    let problem = Problem::builder()
        .batch(2)
        .heads(6, 3)
        .seq_len(150)
        .head_dim(64)
        .dtype(DType::E4M3)
        .return_lse(true)
        .build()
        .unwrap();
    select(&problem, Target::Sm90a, 16, &flashcore_kernels::KernelCache::default())
        .unwrap()
        .plan
}

#[test]
fn planted_mistakes_with_scales_are_wrong_answers() {
    type Plant = fn(&mut Plan);
    let plants: [(&str, Plant); 3] = [
        ("scales of K and V exchanged", |plan| rename(plan, "k_scale", "v_scale")),
        ("scales of Q and V exchanged", |plan| rename(plan, "q_scale", "v_scale")),
        ("one head a batch too few", |plan| {
            let heads = plan.problem.num_kv_heads() as u32;
            let counts = plan.main.launch.args.iter_mut().filter(|arg| **arg == Arg::U32(heads));
            counts.for_each(|arg| *arg = Arg::U32(heads - 1));
        }),
    ];
    assert_eq!(
        check_plan(&default_plan(), &CheckOptions::default()).unwrap().verdict,
        Verdict::Clean
    );
    for (name, plant) in plants {
        let mut plan = default_plan();
        plant(&mut plan);
        let report = check_plan(&plan, &CheckOptions::default()).unwrap();
        assert_eq!(report.verdict, Verdict::Wrong, "{name}\n{report}");
    }
}

/// Exchanges two buffers of the main step.
fn rename(plan: &mut Plan, one: &'static str, other: &'static str) {
    for spec in &mut plan.main.launch.buffers {
        spec.name = match spec.name {
            name if name == one => other,
            name if name == other => one,
            name => name,
        };
    }
}
