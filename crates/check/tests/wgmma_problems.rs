//! Family `wgmma` gives the float64 answer on random problems by configs drawn over all its levers, under the
//! simulator, without a finding, and the same bits under every schedule.
//!
//! `FLASHCORE_SEED` moves to other problems and configs, `FLASHCORE_PROBLEMS` sets how many (40).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::Target;
use flashcore_kernels::{Config, Plan, Refusal, wgmma};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, InputKind, Problem, RandomLimits, random_problem};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Configs drawn until one serves the problem; refusals must say something.
fn draw(problem: &Problem, rng: &mut Rng) -> Option<Plan> {
    const TRIES: usize = 2000;
    (0..TRIES).find_map(|_| {
        let config = Config::Wgmma(wgmma::SPACE.sample(rng));
        match Plan::new(problem, &config, Target::Sm90a) {
            Ok(plan) => Some(plan),
            Err(refusal @ (Refusal::Registers { .. } | Refusal::SharedMemory { .. })) => {
                assert!(!refusal.to_string().is_empty());
                None
            }
            // Rows that repeat, which tensor maps do not: whatever the config.
            Err(Refusal::Unsupported { what, .. }) if what.contains("repeat") => None,
            Err(other) => panic!("{problem} by {config}: {other}"),
        }
    })
}

/// The values that each lever had, by its name: levers as a config prints them.
fn count_levers(seen: &mut BTreeMap<String, BTreeSet<String>>, config: &Config) {
    let Config::Wgmma(config) = config else { return };
    let text = format!("{config:?}");
    let levers = text.trim_start_matches("Config { ").trim_end_matches(" }");
    for (lever, value) in levers.split(", ").filter_map(|pair| pair.split_once(": ")) {
        seen.entry(lever.to_string()).or_default().insert(value.to_string());
    }
}

#[test]
fn configs_over_all_levers_equal_float64() {
    let (first, count) = (number("FLASHCORE_SEED", 3000), number("FLASHCORE_PROBLEMS", 40));
    let limits = RandomLimits {
        max_seq: 400,
        max_work: 3_000_000,
        max_batch: 2,
        dtypes: &[DType::F16, DType::BF16],
        // Rows that are not 16-byte aligned are refused, whatever the config.
        odd_strides: false,
        head_dim_v: true,
        ..RandomLimits::default()
    };
    let started = Instant::now();
    let mut rng = Rng::new(first);
    let (mut seen, mut inputs) = (BTreeMap::new(), BTreeSet::new());
    let (mut failures, mut served) = (Vec::new(), 0);
    for seed in first..first + count {
        let problem = random_problem(seed, &limits).unwrap();
        let Some(plan) = draw(&problem, &mut rng) else {
            continue;
        };
        served += 1;
        // Every fourth problem on data that is meant to break kernels.
        let kind = match seed % 4 {
            0 => *rng.pick(&InputKind::ALL[1..]).unwrap(),
            _ => InputKind::Normal,
        };
        let options = CheckOptions {
            inputs: kind,
            seed,
            first_schedule: seed,
            ..CheckOptions::default()
        };
        let report = check_plan(&plan, &options).unwrap();
        if report.verdict != Verdict::Clean {
            failures.push(format!(
                "problem {seed}: {problem} by {}, {kind}\n{report}",
                plan.config
            ));
        }
        count_levers(&mut seen, &plan.config);
        inputs.insert(kind.name());
    }
    println!(
        "{count} problems from seed {first} in {:.1?}: {seen:?}, {inputs:?}",
        started.elapsed()
    );
    assert!(4 * served >= 3 * count, "only {served} of {count} problems were served");
    assert!(
        failures.is_empty(),
        "{} failures\n{}",
        failures.len(),
        failures.join("\n")
    );
    if count >= 40 {
        for (lever, values) in &seen {
            assert!(values.len() >= 2, "{lever} is always {values:?}");
        }
        assert_eq!(seen["rows"].len(), 3, "{seen:?}");
    }
}

/// Sums are taken in one order whatever the schedule: no atomics, no first come first served.
#[test]
fn twenty_schedules_give_the_same_bits() {
    let count = number("FLASHCORE_PROBLEMS", 40) / 8;
    let limits = RandomLimits {
        max_seq: 160,
        max_work: 400_000,
        max_batch: 1,
        dtypes: &[DType::F16, DType::BF16],
        odd_strides: false,
        ..RandomLimits::default()
    };
    let mut rng = Rng::new(number("FLASHCORE_SEED", 3000));
    for seed in 0..count {
        let problem = random_problem(seed, &limits).unwrap();
        let Some(plan) = draw(&problem, &mut rng) else {
            continue;
        };
        let options = CheckOptions {
            seed,
            schedules: 20,
            ..CheckOptions::default()
        };
        let report = check_plan(&plan, &options).unwrap();
        assert_eq!(report.verdict, Verdict::Clean, "{problem} by {}\n{report}", plan.config);
        assert_eq!((report.schedules.len(), report.differs_under), (20, None));
    }
}
