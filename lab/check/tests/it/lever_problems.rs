//! Families `mma` and `wgmma` give the float64 answer on random problems by configs drawn over all their levers, under
//! the simulator, without a finding, and the same bits under every schedule.
//!
//! `FLASHCORE_SEED` moves to other problems and configs, `FLASHCORE_PROBLEMS` sets how many (100).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::{Chip, Target};
use flashcore_kernels::{Config, Plan, Refusal, mma, wgmma};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, InputKind, Problem};
use flashcore_testkit::{RandomLimits, random_problem};

use crate::common::{assert_none, failure, number};

/// So many problems that every lever must have had two values, and every kind of input its turn.
const ENOUGH: u64 = 100;

/// Problems for each that runs under twenty schedules.
const SCHEDULES_ONE_IN: u64 = 20;

/// A family, and what is asked of it here.
struct Family {
    sample: fn(&mut Rng) -> Config,
    /// Problems, unless the environment says how many.
    problems: u64,
    /// Tensor maps have no rows that repeat: then no config serves, which may be so for a quarter of the problems.
    tensor_maps: bool,
    row_counts: usize,
}

const MMA: Family = Family {
    sample: |rng| Config::Mma(mma::FAMILY.sample(rng).into()),
    problems: 100,
    tensor_maps: false,
    row_counts: mma::FAMILY.levers[0].values.len(),
};

const WGMMA: Family = Family {
    sample: |rng| Config::Wgmma(wgmma::FAMILY.sample(rng).into()),
    problems: 100,
    tensor_maps: true,
    row_counts: 3,
};

impl Family {
    fn problems(&self) -> u64 {
        number("FLASHCORE_PROBLEMS", self.problems)
    }

    /// Configs drawn until one serves the problem; refusals must say something.
    fn draw(&self, problem: &Problem, rng: &mut Rng) -> Option<Plan> {
        const TRIES: usize = 2000;
        // Few SMs, so that a block of a persistent kernel has several tiles.
        let chip = Chip {
            target: Target::Sm90a,
            sms: 1 + rng.below(3) as u32,
        };
        let plan = (0..TRIES).find_map(|_| {
            let config = (self.sample)(rng);
            match Plan::new(problem, &config, chip) {
                Ok(plan) => Some(plan),
                Err(refusal @ (Refusal::Registers { .. } | Refusal::SharedMemory { .. })) => {
                    assert!(!refusal.to_string().is_empty());
                    None
                }
                Err(Refusal::Unsupported { what, .. }) if self.tensor_maps && what.contains("repeat") => None,
                // Two blocks an SM that shared memory has no room for.
                Err(Refusal::Lever {
                    lever: "min_blocks", ..
                }) => None,
                Err(other) => panic!("{problem} by {config}: {other}"),
            }
        });
        assert!(plan.is_some() || self.tensor_maps, "no config serves {problem}");
        plan
    }

    fn equals_float64(&self) {
        let (first, count) = (number("FLASHCORE_SEED", 3000), self.problems());
        let limits = RandomLimits {
            max_seq: 400,
            max_work: 1_500_000,
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
            let Some(plan) = self.draw(&problem, &mut rng) else {
                continue;
            };
            served += 1;
            // Every fourth problem on data that is meant to break kernels.
            let kind = match seed % 4 {
                0 => *rng.pick(&InputKind::ALL[1..]).unwrap(),
                _ => InputKind::Normal,
            };
            failures.extend(failure(&plan, seed, kind));
            count_levers(&mut seen, &plan.config);
            inputs.insert(kind.name());
        }
        println!(
            "{count} problems from seed {first} in {:.1?}: {seen:?}, {inputs:?}",
            started.elapsed()
        );
        assert!(4 * served >= 3 * count, "only {served} of {count} problems were served");
        assert_none(&failures);
        if count >= ENOUGH {
            for (lever, values) in &seen {
                // Scores in fp16 are taken by name only.
                let wanted = if *lever == "f16_scores" { 1 } else { 2 };
                assert!(values.len() >= wanted, "{lever} is always {values:?}");
            }
            assert_eq!(seen["rows"].len(), self.row_counts, "{seen:?}");
            assert_eq!(inputs.len(), InputKind::ALL.len(), "{inputs:?}");
        }
    }

    fn same_bits_under_twenty_schedules(&self) {
        let limits = RandomLimits {
            max_seq: 160,
            max_work: 400_000,
            max_batch: 1,
            dtypes: &[DType::F16, DType::BF16],
            odd_strides: false,
            ..RandomLimits::default()
        };
        let mut rng = Rng::new(number("FLASHCORE_SEED", 3000));
        for seed in 0..self.problems() / SCHEDULES_ONE_IN {
            let problem = random_problem(seed, &limits).unwrap();
            let Some(plan) = self.draw(&problem, &mut rng) else {
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
}

/// The values that each lever had, by its name: levers as a config prints them.
fn count_levers(seen: &mut BTreeMap<String, BTreeSet<String>>, config: &Config) {
    let text = match config {
        Config::Mma(config) => format!("{config:?}"),
        Config::Wgmma(config) => format!("{config:?}"),
        other => panic!("{other} is of neither family"),
    };
    let levers = text.trim_start_matches("Config { ").trim_end_matches(" }");
    for (lever, value) in levers.split(", ").filter_map(|pair| pair.split_once(": ")) {
        seen.entry(lever.to_string()).or_default().insert(value.to_string());
    }
}

#[test]
fn mma_over_all_levers_equals_float64() {
    MMA.equals_float64();
}

#[test]
fn wgmma_over_all_levers_equals_float64() {
    WGMMA.equals_float64();
}

/// Sums are taken in one order whatever the schedule: no atomics, no first come first served.
#[test]
fn mma_gives_the_same_bits_under_twenty_schedules() {
    MMA.same_bits_under_twenty_schedules();
}

#[test]
fn wgmma_gives_the_same_bits_under_twenty_schedules() {
    WGMMA.same_bits_under_twenty_schedules();
}
