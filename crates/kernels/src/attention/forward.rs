//! A forward pass as its launches see it: the problem, and how blocks share the keys of its rows, which says what the
//! workspace holds.

use flashcore_problem::Problem;

use super::combine;
use super::params::Shape;
use super::stream_k::{Places, Schedule};
use crate::Refusal;
use crate::args::{Part, Request};
use crate::step::{KernelCache, Step, Steps};

/// What a launch of a forward pass is made for; `more` is what a family adds.
pub(crate) struct Forward<T = ()> {
    pub problem: Problem,
    pub sharing: Sharing,
    pub more: T,
}

/// How blocks share the keys of rows.
#[derive(Clone, Copy)]
pub(crate) enum Sharing {
    /// A block has all keys of its rows.
    Alone,
    /// So many blocks share the keys of each row.
    Splits(u32),
    /// As a schedule says, whose parts are at these places.
    Schedule(Schedule, Places),
}

impl Sharing {
    /// As a schedule says, if there is one, else in so many splits.
    pub(crate) fn new(schedule: Option<Schedule>, splits: u32) -> Sharing {
        match (schedule, splits) {
            (Some(schedule), _) => Sharing::Schedule(schedule, schedule.places()),
            (None, 1) => Sharing::Alone,
            (None, splits) => Sharing::Splits(splits),
        }
    }
}

impl Forward {
    pub(crate) fn new(problem: &Problem, sharing: Sharing) -> Forward {
        Forward {
            problem: problem.clone(),
            sharing,
            more: (),
        }
    }

    /// The main step, what makes its schedule before it, and what merges its partials after it. `whole` is the shape of
    /// a main kernel without splits.
    pub(crate) fn steps(&self, main: Step, whole: &Shape, kernels: &KernelCache) -> Result<Steps, Refusal> {
        let (mut before, mut then) = (Vec::new(), Vec::new());
        match self.sharing {
            Sharing::Alone => {}
            Sharing::Splits(_) => then.push(combine::step(self, whole, kernels)?),
            Sharing::Schedule(..) => {
                before.push(Schedule::step(self, whole, kernels)?);
                then.push(combine::listed_step(self, whole, kernels)?);
            }
        }
        Ok(Steps { before, main, then })
    }
}

impl<T: Send + Sync + 'static> Request for Forward<T> {
    fn problem(&self) -> &Problem {
        &self.problem
    }
}

impl<T> Forward<T> {
    /// # Errors
    /// Keys that are not split.
    pub(crate) fn splits(&self) -> Result<u32, Refusal> {
        match self.sharing {
            Sharing::Splits(splits) => Ok(splits),
            Sharing::Alone | Sharing::Schedule(..) => Err(Refusal::Build("a launch without splits".to_string())),
        }
    }

    /// # Errors
    /// No schedule.
    pub(crate) fn schedule(&self) -> Result<&Schedule, Refusal> {
        match &self.sharing {
            Sharing::Schedule(schedule, _) => Ok(schedule),
            Sharing::Alone | Sharing::Splits(_) => Err(Refusal::Build("a launch without a schedule".to_string())),
        }
    }

    /// A part of the schedule.
    pub(crate) fn scheduled(&self, of: fn(&Places) -> u64) -> Result<Part, Refusal> {
        let Sharing::Schedule(_, places) = &self.sharing else {
            return Err(Refusal::Build("a launch without a schedule".to_string()));
        };
        Ok(Part::new(places.end, of(places)))
    }

    /// Partial outputs, and their offsets and sums.
    pub(crate) fn partials(&self) -> Result<[Part; 2], Refusal> {
        if let Sharing::Schedule(..) = self.sharing {
            // Partials begin the workspace.
            return Ok([self.scheduled(|_| 0)?, self.scheduled(|at| at.partial_sums)?]);
        }
        let partials = self.problem.lse_len() as u64 * u64::from(self.splits()?);
        // Sums start aligned like outputs: `head_dim_v` is a multiple of 8.
        let sums = 4 * partials * self.problem.head_dim_v() as u64;
        let bytes = sums + 8 * partials;
        Ok([0, sums].map(|offset| Part::new(bytes, offset)))
    }
}
