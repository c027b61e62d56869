//! What an outside proposer is told, besides trials, so that it can write code: the card, what the problem takes at
//! least, and the source of what is fastest with its counters and its costs by line.

use flashcore_bench::profile::{KernelProfile, Predicted};
use flashcore_check::cost::{MeasuredCard, Rates};
use flashcore_ir::{Limits, Profile};
use flashcore_problem::{Problem, Task};
use serde::Serialize;

use crate::insight::Advisor;
use crate::own::OwnKernels;
use crate::trial::{History, Trial, Verdict};

/// Failures that a question has.
const FAILURES: usize = 5;
/// Lines of the incumbent whose cost a question has.
const LINES: usize = 24;

/// A card: what its data sheet says, what an SM has, and its rates by clock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Card {
    #[serde(flatten)]
    profile: &'static Profile,
    limits: Limits,
    rates: Rates,
    /// What was measured on it, in place of these.
    measured: Option<MeasuredCard>,
}

/// What a problem takes on a card at least, µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Floor {
    /// Its products over visible keys at the fastest rate of the tensor cores.
    products: f64,
    /// Each tensor once from device memory, or to it. What is in L2 already may take less.
    memory: f64,
}

impl Card {
    pub(super) fn of(advisor: &Advisor) -> Card {
        let (profile, measured) = (advisor.profile, advisor.measured.clone());
        Card {
            profile,
            limits: profile.target.limits(),
            rates: Rates::of(profile.target),
            measured,
        }
    }

    pub(super) fn floor(&self, problem: &Problem) -> Floor {
        // Elements of a byte have products at twice the rate.
        let narrow = 2.0 / problem.dtype().size_bytes().min(2) as f64;
        let tensor = self
            .profile
            .tensor_f16_f16acc_tflops
            .max(self.profile.tensor_f16_f32acc_tflops);
        let bytes: u64 = problem
            .tensors()
            .iter()
            .filter(|tensor| tensor.required)
            .map(|tensor| tensor.bytes())
            .sum();
        Floor {
            products: problem.flops() / (narrow * tensor * 1e6),
            memory: bytes as f64 / (self.profile.dram_gbps * 1e3),
        }
    }
}

/// The fastest candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Incumbent<'a> {
    id: &'a str,
    /// The text of a kernel of the user, or the main kernel of another as PTX; null for what is not compiled.
    source: Option<String>,
    /// Hardware counters, if the search reads them.
    counters: Option<&'a KernelProfile>,
    /// What binds, and the lines that cost most, by the cost model.
    predicted: Option<Predicted>,
}

impl Incumbent<'_> {
    pub(super) fn of<'a>(trial: &'a Trial, advisor: Option<&Advisor>, own: &OwnKernels) -> Incumbent<'a> {
        let (source, predicted) = advisor.and_then(|advisor| advisor.source(&trial.id)).unzip();
        let source = source.or_else(|| Some(own.source(&trial.id)?.text));
        let predicted = predicted.map(|mut predicted| {
            predicted.lines.truncate(LINES);
            predicted
        });
        Incumbent {
            id: &trial.id,
            source,
            counters: trial.counters.as_deref(),
            predicted,
        }
    }
}

/// A candidate that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Failed<'a> {
    id: &'a str,
    verdict: Verdict,
    /// With what the simulator or the comparison found.
    reason: &'a str,
}

/// The last candidates that failed for a reason of their own, the latest first.
pub(super) fn failures(history: &History) -> Vec<Failed<'_>> {
    let failed = |trial: &&Trial| !trial.verdict.is_timed() && !trial.is_undecided() && trial.same_as.is_none();
    let last = history.trials().iter().rev().filter(failed).take(FAILURES);
    let told = last.map(|trial| Failed {
        id: &trial.id,
        verdict: trial.verdict,
        reason: &trial.reason,
    });
    told.collect()
}
