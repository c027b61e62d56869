//! Is the instrument right? The same kernel against itself must not be called different, and a planted slowdown must be
//! found: here on simulated devices, in `gpu` on a real one.

use flashcore_bench::{BenchError, Measurement, Mode, Options, Verdict, stats};

use super::simulate::{Noise, SimulatedGpu};

/// The slowdown that is planted, relative.
pub(super) const PLANTED: f64 = 0.03;
/// Wrong verdicts on a kernel against itself that are tolerated, relative to the trials.
pub(super) const FALSE_VERDICTS: f64 = 0.02;
/// Planted slowdowns that must be found, relative to the trials.
pub(super) const FOUND: f64 = 0.95;

/// What a selfcheck found. A verdict is `None` where none was reached.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SelfCheck {
    /// Verdicts on a kernel against itself.
    pub(super) same: Vec<Option<Verdict>>,
    /// Verdicts on the kernel slowed by [`PLANTED`] against itself.
    pub(super) planted: Vec<Option<Verdict>>,
    /// The slowdown measured in each planted trial, relative; its median says whether the planting was right.
    pub(super) measured: Vec<f64>,
}

/// How many verdicts are this one.
pub(super) fn count(verdicts: &[Option<Verdict>], wanted: Verdict) -> usize {
    verdicts.iter().filter(|verdict| **verdict == Some(wanted)).count()
}

fn share(count: usize, verdicts: &[Option<Verdict>]) -> f64 {
    count as f64 / verdicts.len().max(1) as f64
}

impl SelfCheck {
    /// FASTER and SLOWER on the same kernel, relative to the trials.
    pub(super) fn false_verdicts(&self) -> f64 {
        let wrong = count(&self.same, Verdict::Faster) + count(&self.same, Verdict::Slower);
        share(wrong, &self.same)
    }

    /// SLOWER on the slowed kernel, relative to the trials.
    pub(super) fn found(&self) -> f64 {
        share(count(&self.planted, Verdict::Slower), &self.planted)
    }

    /// Whether the instrument keeps its promises.
    pub(super) fn passed(&self) -> bool {
        !self.same.is_empty()
            && !self.planted.is_empty()
            && self.same.iter().chain(&self.planted).all(Option::is_some)
            && self.false_verdicts() <= FALSE_VERDICTS
            && self.found() >= FOUND
    }
}

/// Makes `trials` measurements of each kind. `trial` is given its number and the slowdown to plant (0 or
/// [`PLANTED`]) and returns a measurement of two subjects of which the first is the baseline.
pub(super) fn selfcheck(
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
            assert!(found.passed(), "{name} {run_us} µs: {found:?}");
            assert!(count(&found.same, Verdict::Same) >= 85, "{name}: {:?}", found.same);
            let planted = stats::median(&found.measured);
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
        assert!(found.passed(), "{name}: {found:?}");
        let brief = simulated(&noise, Mode::Hot, 400.0, 1, 100);
        assert!(brief.false_verdicts() <= FALSE_VERDICTS, "{name}: {brief:?}");
        for wrong in [Verdict::Faster, Verdict::Same] {
            assert_eq!(count(&brief.planted, wrong), 0, "{name}: {brief:?}");
        }
        let planted = stats::median(&brief.measured);
        assert!((planted - PLANTED).abs() < 0.006, "{planted}");
    }
}

#[test]
fn cold_and_sustained_keep_the_promise_too() {
    for (mode, trials) in [(Mode::Cold, 60), (Mode::Sustained, 60)] {
        let found = simulated(&Noise::steady(), mode, 120.0, 1, trials);
        assert!(found.false_verdicts() <= FALSE_VERDICTS, "{mode}: {found:?}");
        assert!(found.found() >= FOUND, "{mode}: {found:?}");
    }
}

#[test]
fn an_instrument_that_is_always_sure_fails() {
    let mut found = SelfCheck::default();
    for _ in 0..100 {
        found.same.push(Some(Verdict::Same));
        found.planted.push(Some(Verdict::Slower));
    }
    assert!(found.passed());
    for _ in 0..3 {
        found.same.push(Some(Verdict::Faster));
    }
    assert!(!found.passed());
    assert!(!SelfCheck::default().passed());
}
