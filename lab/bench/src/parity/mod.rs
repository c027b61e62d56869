//! Parity: kernels on random and adversarial problems, each output against float64 and, where PyTorch is there, float64
//! against SDPA.
//!
//! [`run`] draws problems by number and seed, so that one of them can be repeated alone: a [`Mismatch`] has the
//! command. Every fourth problem runs the kernel that the library would choose; the others run one drawn from a random
//! family, so that all families are exercised. A config that refuses the problem, or that the device's compiler spills,
//! is drawn again. Every third problem has adversarial inputs. Outputs start as poison, and gaps between rows must
//! still hold it afterwards.

mod engine;
mod own;
mod tally;
mod witness;

use std::sync::{Mutex, PoisonError};

use flashcore::unstable::testing::InputKind;
use flashcore::{DType, Problem, ProblemBuilder};
use flashcore_check::mutate::Operator;
use flashcore_kernels::{FAMILIES, Family, ladder, mma, scalar, wgmma};
use flashcore_problem::rng::Rng;
use flashcore_testkit::{RandomLimits, random_backward, random_problem};
use rayon::prelude::*;
use serde::Serialize;

pub use engine::{Engine, Wrong};
pub(crate) use engine::{simulate, simulate_own};
pub use own::problem_served;
pub use tally::{OfFamily, Report, Worst};
pub use witness::{Sdpa, Witnessed};

use engine::{Drawn, Outcome};

/// What to draw. [`Options::default`] draws from everything.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How many problems.
    pub problems: u64,
    /// What they are drawn by.
    pub seed: u64,
    /// The number of the only problem to run.
    pub only: Option<u64>,
    /// Inputs of every problem.
    pub inputs: Option<InputKind>,
    /// Family of every kernel that is drawn, by name; problems then have dtypes and strides that it serves.
    pub family: Option<String>,
    /// Dtype of every problem. A problem of e4m3 that no kernel of the engine serves is drawn again.
    pub dtype: Option<DType>,
    /// Problems of packed sequences, caches and pages, with NaN past every end.
    pub lengths: bool,
    /// Problems with sinks, ALiBi, or both among them.
    pub head_values: bool,
    /// Keys of a split of every problem ([`Problem::batch_invariant`]).
    pub batch_invariant: Option<usize>,
    /// Backward problems: all three gradients are compared. With lengths, a cache takes the place of pages.
    pub backward: bool,
    /// A mistake to plant into each simulated kernel, at the first place that it has.
    pub plant: Option<Operator>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            problems: 200,
            seed: 1,
            only: None,
            inputs: None,
            family: None,
            dtype: None,
            lengths: false,
            head_values: false,
            batch_invariant: None,
            backward: false,
            plant: None,
        }
    }
}

/// A problem whose output is wrong, or that could not be computed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mismatch {
    /// Its number.
    pub number: u64,
    /// The seed of its inputs.
    pub seed: u64,
    /// The problem, in one line.
    pub problem: Option<String>,
    /// Its inputs.
    pub inputs: Option<&'static str>,
    /// The kernel; `None` if there is none.
    pub kernel: Option<String>,
    /// What is wrong.
    pub what: String,
    /// The command that repeats it.
    pub command: String,
}

/// Runs the problems on all cores, in the order in which threads are free. `done` is told after each problem how many
/// are done and how many of them are wrong.
pub fn run(engine: &Engine, options: &Options, witness: Option<&Sdpa>, done: &(dyn Fn(u64, u64) + Sync)) -> Report {
    let report = Mutex::new(Report::new(engine, options));
    let numbers = match options.only {
        Some(number) => number..number + 1,
        None => 0..options.problems,
    };
    numbers.into_par_iter().for_each(|number| {
        let result = one(engine, options, number, witness);
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(outcome) => report.add(&outcome),
            Err(Failed::NotDrawn(why)) => report.not_drawn.push(why),
            Err(Failed::Mismatch(mismatch)) => report.mismatches.push(*mismatch),
        }
        done(report.done(), report.mismatches.len() as u64);
    });
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.sdpa.by = witness.map(|sdpa| sdpa.version().to_string());
    report.mismatches.sort_by_key(|mismatch| mismatch.number);
    report
}

/// Why a problem has no outcome.
enum Failed {
    /// No problem was found that the engine serves.
    NotDrawn(String),
    Mismatch(Box<Mismatch>),
}

fn one(engine: &Engine, options: &Options, number: u64, witness: Option<&Sdpa>) -> Result<Outcome, Failed> {
    let seed = options.seed_of(number);
    let (problem, redrawn) = options.problem(engine, seed).map_err(Failed::NotDrawn)?;
    let inputs = options.inputs_of(seed);
    let mismatch = |kernel: Option<&Drawn>, wrong: Wrong| {
        Failed::Mismatch(Box::new(Mismatch {
            number,
            seed,
            problem: Some(problem.to_string()),
            inputs: Some(inputs.name()),
            kernel: kernel.map(|drawn| drawn.kernel.to_string()),
            what: wrong.to_string(),
            command: options.command(engine, number),
        }))
    };
    let drawn = if number.is_multiple_of(4) {
        engine.choice(&problem)
    } else {
        engine.draw(&problem, seed, options.family().as_ref())
    };
    let mut drawn = drawn.map_err(|wrong| mismatch(None, wrong))?;
    if let Some(operator) = options.plant {
        drawn.plant(operator);
    }
    let found = engine.compute(&drawn, &problem, (inputs, seed), witness);
    let found = found.map_err(|wrong| mismatch(Some(&drawn), wrong))?;
    Ok(Outcome {
        kernel: drawn.kernel,
        spilled: drawn.spilled,
        problem,
        inputs,
        found,
        redrawn,
    })
}

impl Options {
    /// The seed of a problem: of itself and its inputs.
    fn seed_of(&self, number: u64) -> u64 {
        self.seed.wrapping_mul(1_000_003).wrapping_add(number)
    }

    fn family(&self) -> Option<Family> {
        let name = self.family.as_deref()?;
        FAMILIES.into_iter().find(|family| family.name == name)
    }

    /// A third has adversarial inputs, drawn apart from the problem: what a problem is follows from the seed, too.
    fn inputs_of(&self, seed: u64) -> InputKind {
        let mut kinds = Rng::stream(seed, 7);
        let adversarial = kinds.below(3) == 0;
        let drawn = kinds.pick(&InputKind::ALL).filter(|_| adversarial);
        self.inputs.unwrap_or(drawn.copied().unwrap_or(InputKind::Normal))
    }

    /// Problems that the family and the dtype serve: tensor cores take 16-bit numbers, and their families copy 16 bytes
    /// at a time.
    fn limits(&self) -> RandomLimits {
        const ALL: &[DType] = &DType::ALL;
        let all = RandomLimits {
            head_dim_v: true,
            lengths: self.lengths,
            head_values: self.head_values,
            ..RandomLimits::default()
        };
        let of_dtype = |dtype| ALL.iter().find(|known| **known == dtype).map(std::slice::from_ref);
        let dtypes = match (self.dtype.and_then(of_dtype), self.family.as_deref()) {
            (Some(dtypes), _) => dtypes,
            (None, Some(ladder::NAME | mma::NAME | wgmma::NAME)) => &[DType::F16, DType::BF16],
            (None, _) => return all,
        };
        RandomLimits {
            dtypes,
            odd_strides: dtypes == [DType::F32],
            ..all
        }
    }

    /// The problem of a seed, and how many were drawn before it: with e4m3, and batch-invariant, it is the first that
    /// the engine serves, and of the backward passes of a family with tensor cores, the first that it serves.
    fn problem(&self, engine: &Engine, seed: u64) -> Result<(Problem, usize), String> {
        const TRIES: usize = 200;
        let limits = self.limits();
        let draw = |seed| {
            let problem = if self.backward {
                random_backward(seed, &limits)
            } else {
                random_problem(seed, &limits)
            };
            let problem = problem.and_then(|problem| match self.batch_invariant {
                Some(keys) => ProblemBuilder::from(&problem).batch_invariant(keys).build(),
                None => Ok(problem),
            });
            problem.map_err(|error| error.to_string())
        };
        let family = self
            .family
            .as_deref()
            .filter(|name| self.backward && *name != scalar::NAME);
        let served = |problem: &Problem| match family {
            Some(name) => {
                let family = FAMILIES.iter().find(|family| family.name == name);
                engine.draw(problem, seed, family).is_ok_and(|drawn| drawn.is_of(name))
            }
            // The kernel of a batch-invariant problem is chosen without its strides, which it may refuse.
            None if self.batch_invariant.is_some() => engine.serves(problem),
            None => self.backward || self.dtype != Some(DType::E4M3) || engine.serves(problem),
        };
        let mut seeds = Rng::new(seed);
        let mut problem = draw(seed)?;
        for refused in 0..TRIES {
            if served(&problem) {
                return Ok((problem, refused));
            }
            problem = draw(seeds.next_u64())?;
        }
        let by = family.map_or(String::new(), |family| format!(" by family {family}"));
        Err(format!(
            "none of {TRIES} problems is served{by} on {engine}; the last: {problem}"
        ))
    }

    /// The command that runs one problem again.
    fn command(&self, engine: &Engine, number: u64) -> String {
        let mut words = format!(
            "flashcore parity --only {number} --seed {} {}",
            self.seed,
            engine.flags()
        );
        let flags = [
            ("--family", self.family.clone()),
            ("--inputs", self.inputs.map(|kind| kind.to_string())),
            ("--dtype", self.dtype.map(|dtype| dtype.to_string())),
            ("--plant", self.plant.map(|operator| operator.to_string())),
            ("--batch-invariant", self.batch_invariant.map(|keys| keys.to_string())),
        ];
        for (flag, value) in flags {
            if let Some(value) = value {
                words.push_str(&format!(" {flag} {value}"));
            }
        }
        for (flag, is_given) in [
            (" --with lengths", self.lengths),
            (" --with sinks-alibi", self.head_values),
            (" --backward", self.backward),
        ] {
            words.push_str(if is_given { flag } else { "" });
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore::Device;
    use flashcore_ir::Profile;

    fn sim() -> Engine {
        Engine::sim("l4", Profile::named("l4").unwrap().into())
    }

    #[test]
    fn kernels_of_the_host_and_of_the_simulator_are_right() {
        for engine in [Engine::Device(Device::Cpu), sim()] {
            for (lengths, backward) in [(false, false), (true, false), (false, true), (true, true)] {
                let options = Options {
                    problems: 4,
                    lengths,
                    backward,
                    ..Options::default()
                };
                let report = run(&engine, &options, None, &|_, _| ());
                assert!(report.mismatches.is_empty(), "{engine}: {:?}", report.mismatches);
                assert_eq!((report.passed, report.done()), (4, 4));
            }
        }
    }

    #[test]
    fn backward_problems_are_those_of_the_family() {
        let engine = Engine::sim("h200", Profile::named("h200").unwrap().into());
        let of = |family: &str| Options {
            problems: 2,
            backward: true,
            family: Some(family.to_string()),
            ..Options::default()
        };
        let report = run(&engine, &of(wgmma::NAME), None, &|_, _| ());
        assert_eq!(
            (report.passed, report.families.keys().collect::<Vec<_>>()),
            (2, vec![&wgmma::NAME])
        );
        // On a card where the library chooses it too, for every fourth problem.
        let l4 = Engine::sim("l4", Profile::named("l4").unwrap().into());
        let report = run(&l4, &of(mma::NAME), None, &|_, _| ());
        assert_eq!(
            (report.passed, report.families.keys().collect::<Vec<_>>()),
            (2, vec![&mma::NAME])
        );
        let report = run(&engine, &of(ladder::NAME), None, &|_, _| ());
        assert!(
            report.not_drawn[0].starts_with("none of 200 problems is served by family ladder"),
            "{report:?}"
        );
        assert!(report.mismatches.is_empty() && report.done() == 2, "{report:?}");
    }

    #[test]
    fn a_planted_mistake_is_found_and_its_command_repeats_it() {
        let options = Options {
            problems: 4,
            family: Some(mma::NAME.to_string()),
            inputs: Some(InputKind::Normal),
            plant: Operator::from_name("drop-barrier"),
            ..Options::default()
        };
        let report = run(&sim(), &options, None, &|_, _| ());
        let first = &report.mismatches[0];
        let (number, seed) = (first.number, first.seed);
        assert_eq!(seed, 1_000_003 + number);
        assert!(first.what.contains("error["), "{first:?}");
        let words = format!(
            "flashcore parity --only {number} --seed 1 --device sim:l4 --family mma --inputs normal \
             --plant drop-barrier"
        );
        assert_eq!(first.command, words);
        let only = Options {
            only: Some(number),
            ..options
        };
        assert_eq!(run(&sim(), &only, None, &|_, _| ()).mismatches[0], *first);
    }

    #[test]
    fn a_mistake_planted_in_a_backward_pass_is_found_and_its_command_says_so() {
        let options = Options {
            problems: 4,
            backward: true,
            inputs: Some(InputKind::Normal),
            plant: Operator::from_name("drop-barrier"),
            ..Options::default()
        };
        let report = run(&sim(), &options, None, &|_, _| ());
        let first = &report.mismatches[0];
        assert!(first.what.contains("error[race]"), "{first:?}");
        let command = first.command.split_once(" --device").unwrap().1;
        assert_eq!(command, " sim:l4 --inputs normal --plant drop-barrier --backward");
        assert!(first.problem.as_ref().unwrap().ends_with(" backward"));
    }

    #[test]
    fn e4m3_is_drawn_until_it_is_served() {
        let options = Options {
            problems: 2,
            dtype: Some(DType::E4M3),
            ..Options::default()
        };
        let hopper = Engine::sim("h200", Profile::named("h200").unwrap().into());
        let report = run(&hopper, &options, None, &|_, _| ());
        assert!(report.mismatches.is_empty(), "{:?}", report.mismatches);
        // No family but wgmma serves it.
        let report = run(&sim(), &options, None, &|_, _| ());
        assert!(
            report.not_drawn[0].contains("none of 200 problems is served"),
            "{report:?}"
        );
    }
}
