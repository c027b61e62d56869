//! Inputs that no candidate has seen and their reference outputs, in a process that runs no
//! candidate.

use std::sync::Arc;
use std::time::Duration;

use flashcore_bench::defences::{AFTERWARDS_SEED, INSPECTION_SEEDS};
use flashcore_bench::{Expected, ExpectedOutputs, draw, expected};
use flashcore_check::own::Declared;
use flashcore_check::within;
use flashcore_ir::Chip;
use flashcore_problem::rng::Rng;
use flashcore_problem::{InputKind, Problem, ProblemBuilder, ProblemError};
use rayon::prelude::*;

use crate::error::TuneError;
use crate::own::{Bad, OwnKernels};
use crate::remote::{Written, floats, size_of_outputs};

/// Sets of inputs for a run. Each candidate is judged on four of them.
const POOL: usize = 6;

#[derive(Debug)]
pub(crate) struct Judge {
    pub(crate) problem: Problem,
    pool: Vec<u64>,
    /// Seed of inputs that no candidate gets before the finals.
    pub(crate) of_finals: u64,
    outputs: ExpectedOutputs,
    /// Of other shapes, grouped by shape; further ones last.
    cases: Vec<Adversary>,
    pub(crate) own: OwnKernels,
    /// What they are compiled for, and when their compiler is ended.
    pub(crate) to_build: (Option<Chip>, Duration),
}

/// A small problem of another shape with adversarial inputs.
#[derive(Debug)]
pub(crate) struct Adversary {
    pub(crate) problem: Problem,
    pub(crate) kind: InputKind,
    pub(crate) seed: u64,
    /// For kernels of the user, which may serve none of the others: each is judged on the first shape that it serves.
    pub(crate) is_further: bool,
    right: Expected,
}

impl Judge {
    pub(crate) fn new(problem: &Problem, seed: u64, own: &OwnKernels) -> Result<Judge, TuneError> {
        let mut rng = Rng::stream(seed, 11);
        let pool: Vec<u64> = (0..POOL).map(|_| rng.next_u64() >> 8).collect();
        let mut outputs = ExpectedOutputs::default();
        outputs.add_all(problem, &pool, |seed| draw(problem, InputKind::Normal, seed))?;
        let mut hard = Vec::new();
        for (shape, kinds) in shapes(problem)? {
            let seeded = kinds
                .iter()
                .map(|&kind| (shape.clone(), kind, rng.next_u64() >> 8, false));
            hard.extend(seeded);
        }
        let of_finals = rng.next_u64() >> 8;
        if !own.is_empty() {
            let standard = hard.iter().map(|(shape, ..)| shape.clone()).collect::<Vec<_>>();
            let mut small = small_problems(problem)?;
            small.retain(|small| !standard.contains(small));
            for small in small {
                hard.extend(FURTHER.map(|kind| (small.clone(), kind, rng.next_u64() >> 8, true)));
            }
        }
        let adversary = |(problem, kind, seed, is_further): (Problem, InputKind, u64, bool)| {
            let right = expected(&problem, seed, &draw(&problem, kind, seed))?;
            Ok(Adversary {
                problem,
                kind,
                seed,
                is_further,
                right,
            })
        };
        Ok(Judge {
            pool,
            of_finals,
            outputs,
            cases: hard.into_par_iter().map(adversary).collect::<Result<_, TuneError>>()?,
            own: own.clone(),
            ..Judge::of_nothing(problem)
        })
    }

    pub(crate) fn of_nothing(problem: &Problem) -> Judge {
        Judge {
            problem: problem.clone(),
            pool: vec![0; POOL],
            of_finals: 0,
            outputs: ExpectedOutputs::default(),
            cases: Vec::new(),
            own: OwnKernels::default(),
            to_build: (None, Duration::ZERO),
        }
    }

    pub(crate) fn shapes(&self) -> Vec<&Problem> {
        let mut shapes: Vec<&Problem> = self.cases(false).map(|case| &case.problem).collect();
        shapes.dedup();
        shapes
    }

    /// Adversarial inputs, with those of further shapes or without.
    pub(crate) fn cases(&self, may_go_further: bool) -> impl Iterator<Item = &Adversary> {
        let cases = self.cases.iter();
        cases.filter(move |case| may_go_further || !case.is_further)
    }

    /// The seed of the run's inputs that a candidate gets in place of a seed of an inspection.
    pub(crate) fn seed(&self, role: u64, number: usize) -> u64 {
        let roles = INSPECTION_SEEDS.into_iter().chain([AFTERWARDS_SEED]);
        let role = roles.into_iter().position(|known| known == role).unwrap_or(0);
        self.pool[(number + role) % POOL]
    }

    /// A kernel of the user, compiled; `None` for other ids.
    pub(crate) fn built(&self, id: &str) -> Option<Result<Arc<Declared>, Bad>> {
        let (chip, limit) = self.to_build;
        self.own.build(id, chip, limit)
    }

    /// The seed of the inputs that kernels of the user are simulated on before they are timed.
    pub(crate) fn seed_of_simulation(&self) -> u64 {
        self.pool[0]
    }

    /// Selects a candidate's inputs in the finals: others than in its trial, as far as possible.
    pub(crate) fn number_of_finals(&self, number: usize) -> usize {
        number + POOL / 2
    }

    pub(crate) fn expected(&self, seed: u64) -> &Expected {
        self.outputs.of(seed)
    }
}

impl Adversary {
    /// Whether an output is right, where an error may be so many times the default tolerance; the inner error says what
    /// is wrong.
    pub(crate) fn judge(&self, written: &Written, tolerance: f64) -> Result<Result<(), String>, ProblemError> {
        let problem = &self.problem;
        let (given, needed) = (written.out.len(), size_of_outputs(problem));
        if given != needed {
            return Ok(Err(format!("an output of {given} B in place of {needed} B")));
        }
        let mut found = self.right.compare(problem, &written.tensors(problem))?;
        found
            .iter_mut()
            .for_each(|(_, found)| *found = within(*found, tolerance));
        // Of a single output the name says nothing.
        let is_single = found.len() == 1;
        if problem.writes_lse() {
            let compared = self.right.compare_lse(problem, &floats(&written.lse))?;
            found.push(("log-sum-exp", within(compared, tolerance)));
        }
        let wrong = found.iter().enumerate().find(|(_, (_, found))| !found.passed);
        Ok(wrong.map_or(Ok(()), |(at, (what, found))| {
            let what = if is_single && at == 0 {
                String::new()
            } else {
                format!("{what} ")
            };
            Err(format!("{what}with {} inputs on {problem}: {found}", self.kind))
        }))
    }
}

/// Lengths of small problems for kernels that serve no odd ones.
const LENGTHS: [usize; 3] = [64, 128, 256];
/// Inputs on these.
const FURTHER: [InputKind; 4] = [
    InputKind::SmallIntegers,
    InputKind::HugeLogit,
    InputKind::RisingScores,
    InputKind::OneHot,
];
/// Operations up to which a problem itself is among them.
const SMALL_FLOPS: f64 = 1e10;

/// Problems on which a user's kernel may be judged at a small size, the most telling first: of odd lengths, of whole
/// tiles, and the problem itself if it is small.
pub(crate) fn small_problems(problem: &Problem) -> Result<Vec<Problem>, TuneError> {
    let mut all: Vec<Problem> = shapes(problem)?.into_iter().map(|(shape, _)| shape).collect();
    for heads in [problem.group_size(), problem.num_heads()] {
        for length in LENGTHS {
            let small = ProblemBuilder::like(problem)
                .batch(1)
                .heads(heads, heads / problem.group_size());
            let small = small
                .seq_len_q(length.min(problem.seq_len_q()))
                .seq_len_kv(length.min(problem.seq_len_kv()));
            all.push(small.build().map_err(flashcore::Error::from)?);
        }
    }
    all.extend((problem.flops() <= SMALL_FLOPS).then(|| problem.clone()));
    Ok(all)
}

/// Small problems of odd sizes with the same kernels as a problem, each with kinds of inputs.
fn shapes(problem: &Problem) -> Result<[(Problem, &'static [InputKind]); 2], TuneError> {
    let group = problem.group_size();
    let few_rows = problem.seq_len_q().min(16);
    let shape = |rows: usize, keys: usize| {
        let rows = if problem.seq_len_q() < 64 { few_rows } else { rows };
        let small = ProblemBuilder::like(problem).batch(2).heads(group, 1);
        let small = small.offsets(0, 0).seq_len_q(rows).seq_len_kv(keys);
        small.build().map_err(flashcore::Error::from)
    };
    use InputKind::{EqualRows, Extremes, HugeLogit, NegativeScores, OneHot, RisingScores, SmallIntegers};
    Ok([
        (shape(77, 133)?, &[SmallIntegers, HugeLogit, NegativeScores]),
        (shape(130, 257)?, &[RisingScores, EqualRows, Extremes, OneHot]),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_fresh_for_a_run_and_vary_between_candidates() {
        let problem = Problem::named("tiny").unwrap();
        let (one, two) = (
            Judge::new(&problem, 1, &OwnKernels::default()).unwrap(),
            Judge::new(&problem, 2, &OwnKernels::default()).unwrap(),
        );
        assert!(one.pool.iter().all(|seed| !two.pool.contains(seed)));
        let seeds = |number: usize| INSPECTION_SEEDS.map(|role| one.seed(role, number));
        assert_ne!(seeds(0), seeds(1));
        let mut distinct = seeds(5).to_vec();
        distinct.push(one.seed(AFTERWARDS_SEED, 5));
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 4);
    }

    #[test]
    fn every_kind_of_input_is_used_on_shapes_that_are_odd() {
        let problem = Problem::named("llama8b-prefill-2k").unwrap();
        let judge = Judge::new(&Problem::named("tiny").unwrap(), 3, &OwnKernels::default()).unwrap();
        assert_eq!(judge.cases.len() + 1, InputKind::ALL.len());
        for (shape, _) in shapes(&problem).unwrap() {
            assert_eq!(
                (shape.group_size(), shape.head_dim()),
                (problem.group_size(), problem.head_dim())
            );
            assert!(!shape.seq_len_kv().is_multiple_of(16));
        }
        let nothing = Written {
            out: vec![0; 10],
            lse: Vec::new(),
        };
        assert!(
            judge.cases[0]
                .judge(&nothing, 1.0)
                .unwrap()
                .unwrap_err()
                .contains("10 B")
        );
    }
}
