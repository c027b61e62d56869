//! Is the instrument right? The same kernel against itself must not be called different, and a slowdown that
//! was planted must be found.

use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::measure::Measurement;
use crate::verdict::Verdict;

/// The slowdown that is planted, relative.
pub const PLANTED: f64 = 0.03;
/// Wrong verdicts on a kernel against itself that are tolerated, relative to the trials.
pub const FALSE_VERDICTS: f64 = 0.02;
/// Planted slowdowns that must be found, relative to the trials.
pub const FOUND: f64 = 0.95;

/// Verdicts given in a number of trials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// SAME.
    pub same: u32,
    /// FASTER.
    pub faster: u32,
    /// SLOWER.
    pub slower: u32,
    /// AMBIGUOUS.
    pub ambiguous: u32,
    /// Trials in which no verdict was reached at all.
    pub none: u32,
}

impl Tally {
    /// Counts a verdict.
    pub fn add(&mut self, verdict: Option<Verdict>) {
        match verdict {
            Some(Verdict::Same) => self.same += 1,
            Some(Verdict::Faster) => self.faster += 1,
            Some(Verdict::Slower) => self.slower += 1,
            Some(Verdict::Ambiguous) => self.ambiguous += 1,
            None => self.none += 1,
        }
    }

    /// Trials.
    pub fn trials(&self) -> u32 {
        self.same + self.faster + self.slower + self.ambiguous + self.none
    }
}

/// What the selfcheck found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SelfCheck {
    /// The same kernel against itself.
    pub same: Tally,
    /// The kernel slowed by [`PLANTED`] against itself.
    pub planted: Tally,
    /// The slowdown measured in each planted trial, relative; its median says whether the planting was right.
    pub measured: Vec<f64>,
}

impl SelfCheck {
    /// FASTER and SLOWER on the same kernel, relative to the trials.
    pub fn false_verdicts(&self) -> f64 {
        f64::from(self.same.faster + self.same.slower) / f64::from(self.same.trials().max(1))
    }

    /// SLOWER on the slowed kernel, relative to the trials.
    pub fn found(&self) -> f64 {
        f64::from(self.planted.slower) / f64::from(self.planted.trials().max(1))
    }

    /// Whether the instrument keeps what it promises.
    pub fn passed(&self) -> bool {
        self.same.trials() > 0
            && self.planted.trials() > 0
            && self.same.none + self.planted.none == 0
            && self.false_verdicts() <= FALSE_VERDICTS
            && self.found() >= FOUND
    }
}

/// Makes `trials` measurements of each kind. `trial` is given its number and the slowdown to plant (0 or
/// [`PLANTED`]) and returns a measurement of two subjects of which the first is the baseline.
///
/// # Errors
/// The first that `trial` returns.
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
                found.same.add(verdict);
            } else {
                found.planted.add(verdict);
                found
                    .measured
                    .extend(subject.and_then(|s| s.ratio).map(|ratio| ratio.value - 1.0));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Mode, Options};
    use crate::simulate::{Noise, SimulatedGpu};

    /// Trials on a simulated device, a hot and a cool neighbour in every round.
    fn simulated(noise: &Noise, mode: Mode, run_us: f64, chain: u32, trials: u32) -> SelfCheck {
        within(&Options::default(), noise, mode, run_us, chain, trials)
    }

    fn within(options: &Options, noise: &Noise, mode: Mode, run_us: f64, chain: u32, trials: u32) -> SelfCheck {
        selfcheck(trials, |number, slowdown| {
            let seed = u64::from(number) * 2 + u64::from(slowdown > 0.0);
            let gpu = SimulatedGpu::new(noise.clone(), seed);
            let subjects = vec![
                gpu.subject("baseline", run_us, 0.7, chain),
                gpu.subject("subject", run_us * (1.0 + slowdown), 0.7, chain),
                gpu.subject("hot", run_us * 1.4, 1.0, 1),
                gpu.subject("cool", run_us * 0.8, 0.2, 1),
            ];
            let options = Options {
                seed,
                ..options.clone()
            };
            gpu.measure(&options, mode, subjects)
        })
        .unwrap()
    }

    #[test]
    fn the_same_kernel_is_the_same_and_three_percent_are_found() {
        for (name, noise) in [
            ("steady", Noise::steady()),
            ("power-capped", Noise::power_capped()),
            ("shared", Noise::shared()),
        ] {
            for (mode, run_us, chain) in [(Mode::Hot, 5.0, 16), (Mode::Screen, 400.0, 1)] {
                let found = simulated(&noise, mode, run_us, chain, 100);
                println!("{name} {mode} {run_us} µs: {:?} {:?}", found.same, found.planted);
                assert!(found.passed(), "{name} {run_us} µs: {found:?}");
                assert!(found.same.same >= 85, "{name}: {:?}", found.same);
                let planted = crate::stats::median(&found.measured);
                assert!((planted - PLANTED).abs() < 0.003, "{planted}");
            }
        }
    }

    /// Steady turns lie a tenth of a second apart, so hops of the clock between them do not cancel: on a card that
    /// hops by 5 %, telling 3 % apart takes tens of seconds, and until then the verdict is AMBIGUOUS, not wrong.
    #[test]
    fn steady_turns_keep_the_promise_given_time_and_are_never_wrong_without() {
        let patient = Options {
            budget_ms: 90_000.0,
            ..Options::default()
        };
        for (name, noise) in [("steady", Noise::steady()), ("power-capped", Noise::power_capped())] {
            let found = within(&patient, &noise, Mode::Hot, 400.0, 1, 30);
            println!("{name} in 90 s: {:?} {:?}", found.same, found.planted);
            assert!(found.passed(), "{name}: {found:?}");
            let brief = simulated(&noise, Mode::Hot, 400.0, 1, 100);
            println!("{name} in 5 s: {:?} {:?}", brief.same, brief.planted);
            assert!(brief.false_verdicts() <= FALSE_VERDICTS, "{name}: {brief:?}");
            assert_eq!((brief.planted.faster, brief.planted.same), (0, 0), "{name}: {brief:?}");
            let planted = crate::stats::median(&brief.measured);
            assert!((planted - PLANTED).abs() < 0.006, "{planted}");
        }
    }

    #[test]
    fn cold_and_sustained_keep_the_promise_too() {
        for (mode, trials) in [(Mode::Cold, 60), (Mode::Sustained, 60)] {
            let found = simulated(&Noise::steady(), mode, 120.0, 1, trials);
            println!("{mode}: {:?} {:?}", found.same, found.planted);
            assert!(found.false_verdicts() <= FALSE_VERDICTS, "{mode}: {found:?}");
            assert!(found.found() >= FOUND, "{mode}: {found:?}");
        }
    }

    #[test]
    fn an_instrument_that_is_always_sure_fails() {
        let mut found = SelfCheck::default();
        for _ in 0..100 {
            found.same.add(Some(Verdict::Same));
            found.planted.add(Some(Verdict::Slower));
        }
        assert!(found.passed());
        for _ in 0..3 {
            found.same.add(Some(Verdict::Faster));
        }
        assert!(!found.passed());
        assert!(!SelfCheck::default().passed());
    }
}
