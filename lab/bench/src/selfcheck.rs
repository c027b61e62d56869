//! Is the instrument right? The same kernel against itself must not be called different, and a planted slowdown must be
//! found.

use crate::error::BenchError;
use crate::measure::Measurement;
use crate::verdict::Verdict;

/// The slowdown that is planted, relative.
pub const PLANTED: f64 = 0.03;
/// Wrong verdicts on a kernel against itself that are tolerated, relative to the trials.
pub const FALSE_VERDICTS: f64 = 0.02;
/// Planted slowdowns that must be found, relative to the trials.
pub const FOUND: f64 = 0.95;

/// What a selfcheck found. A verdict is `None` where none was reached.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SelfCheck {
    /// Verdicts on a kernel against itself.
    pub same: Vec<Option<Verdict>>,
    /// Verdicts on the kernel slowed by [`PLANTED`] against itself.
    pub planted: Vec<Option<Verdict>>,
    /// The slowdown measured in each planted trial, relative; its median says whether the planting was right.
    pub measured: Vec<f64>,
}

/// How many verdicts are this one.
pub fn count(verdicts: &[Option<Verdict>], wanted: Verdict) -> usize {
    verdicts.iter().filter(|verdict| **verdict == Some(wanted)).count()
}

fn share(count: usize, verdicts: &[Option<Verdict>]) -> f64 {
    count as f64 / verdicts.len().max(1) as f64
}

impl SelfCheck {
    /// FASTER and SLOWER on the same kernel, relative to the trials.
    pub fn false_verdicts(&self) -> f64 {
        let wrong = count(&self.same, Verdict::Faster) + count(&self.same, Verdict::Slower);
        share(wrong, &self.same)
    }

    /// SLOWER on the slowed kernel, relative to the trials.
    pub fn found(&self) -> f64 {
        share(count(&self.planted, Verdict::Slower), &self.planted)
    }

    /// Whether the instrument keeps its promises.
    pub fn passed(&self) -> bool {
        !self.same.is_empty()
            && !self.planted.is_empty()
            && self.same.iter().chain(&self.planted).all(Option::is_some)
            && self.false_verdicts() <= FALSE_VERDICTS
            && self.found() >= FOUND
    }
}

/// Makes `trials` measurements of each kind. `trial` is given its number and the slowdown to plant (0 or
/// [`PLANTED`]) and returns a measurement of two subjects of which the first is the baseline.
pub fn selfcheck(
    trials: u32,
    mut trial: impl FnMut(u32, f64) -> Result<Measurement, BenchError>,
) -> Result<SelfCheck, BenchError> {
    let mut found = SelfCheck::default();
    for number in 0..trials {
        for slowdown in [0.0, PLANTED] {
            let measurement = trial(number, slowdown)?;
            let subject = measurement.subjects.get(1);
            let verdict = subject.and_then(|subject| subject.verdict);
            if slowdown == 0.0 {
                found.same.push(verdict);
            } else {
                found.planted.push(verdict);
                let ratio = subject.and_then(|subject| subject.ratio);
                found.measured.extend(ratio.map(|ratio| ratio.value - 1.0));
            }
        }
    }
    Ok(found)
}
