//! The gates that need the device, in order: compilation, outputs on adversarial shapes and inputs,
//! the inspection of any bench, equal outputs of two runs, timing, and another inspection.

use std::path::PathBuf;

use flashcore_bench::defences::{Inspection, Rig, Run, inspect, inspect_again};
use flashcore_bench::own::is_own;
use flashcore_bench::profile::KernelProfile;
use flashcore_bench::{Measurement, Mode, Options, Trouble};
use flashcore_check::render;
use flashcore_problem::{InputKind, Problem, Tensor};

use crate::device_lock::{DeviceLock, Held, Waits};
use crate::error::TuneError;
use crate::interrupt::Interrupt;
use crate::judge::Judge;
use crate::remote::RemoteRig;
use crate::rows::differing;
use crate::trial::{Timed, Trial, Verdict, times_as_long};
use crate::worker::protocol::{Opened, What};
use crate::worker::{Stop, Worker};

/// How candidates are timed, and the smallest relative gain that counts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Timing {
    /// During the search: brief.
    pub(crate) screen: Options,
    pub(crate) finals: Options,
    pub(crate) gain: f64,
}

const GAIN: f64 = 0.03;

impl Timing {
    /// For the host, where runs are long and other programs disturb the clock.
    pub(crate) fn for_cpu() -> Timing {
        Timing {
            screen: Options {
                warm_up_max_us: 40_000.0,
                warm_up_min_us: 10_000.0,
                min_rounds: 8,
                max_rounds: 30,
                budget_ms: 500.0,
                precision: 0.01,
                ..Options::for_cpu()
            },
            finals: Options {
                budget_ms: 6_000.0,
                max_rounds: 60,
                ..Options::for_cpu()
            },
            gain: GAIN,
        }
    }

    pub(crate) fn for_gpu() -> Timing {
        Timing {
            screen: Options {
                warm_up_min_us: 4_000.0,
                warm_up_max_us: 20_000.0,
                min_rounds: 8,
                max_rounds: 24,
                budget_ms: 300.0,
                ..Options::default()
            },
            finals: Options::default(),
            gain: GAIN,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) verdict: Verdict,
    pub(crate) reason: String,
    pub(crate) timed: Option<Timed>,
    pub(crate) unjudged: Vec<String>,
    pub(crate) counters: Option<Box<KernelProfile>>,
}

impl Found {
    pub(crate) fn failed(verdict: Verdict, reason: String) -> Found {
        Found {
            verdict,
            reason,
            timed: None,
            unjudged: Vec::new(),
            counters: None,
        }
    }
}

/// How often a candidate whose worker dies is tried.
const ATTEMPTS: usize = 2;

pub(crate) struct Examiner<'j> {
    pub(crate) judge: &'j Judge,
    pub(crate) worker: Worker,
    /// The file through which the worker passes outputs. It is removed on drop.
    pub(crate) scratch: PathBuf,
    /// Where rows of outputs are placed for comparison; as large as the outputs, so it is kept.
    pub(crate) canvas: Option<Vec<Tensor>>,
    /// Of the open kernels: how many times the default tolerance an error may be.
    pub(crate) tolerances: Vec<f64>,
    pub(crate) timing: &'j Timing,
    pub(crate) lock: DeviceLock,
    pub(crate) interrupt: Interrupt,
}

impl Examiner<'_> {
    /// Sends one candidate through the gates. The caller holds the device.
    pub(crate) fn examine(&mut self, number: usize, id: &str, best: Option<&Trial>) -> Result<Found, TuneError> {
        match self.attempt(|this| this.gates(number, id, best)) {
            Ok(found) => Ok(found.unwrap_or_else(|(verdict, reason)| Found::failed(verdict, reason))),
            Err(TuneError::Environment(reason)) => Ok(Found::failed(Verdict::EnvironmentFailed, reason)),
            Err(error) => Err(error),
        }
    }

    /// Does something that may kill the worker. A worker may also die for other reasons, so the
    /// candidate is blamed only if it dies in each attempt, and never if one was ended from outside.
    ///
    /// # Errors
    /// [`TuneError::Environment`] if the environment failed in the last attempt, or in one while the worker died in
    /// the other.
    pub(crate) fn attempt<T>(
        &mut self,
        mut act: impl FnMut(&mut Self) -> Result<T, Stop>,
    ) -> Result<Result<T, (Verdict, String)>, TuneError> {
        let (mut last, mut outside) = (String::new(), None);
        for _ in 0..ATTEMPTS {
            match act(self) {
                Ok(done) => return Ok(Ok(done)),
                Err(Stop::Died(reason)) => last = reason,
                Err(Stop::Outside(reason)) => outside = Some(reason),
                Err(stop) => return stop.blamed().map(Err),
            }
        }
        if let Some(reason) = outside {
            return Err(TuneError::Environment(reason));
        }
        let reason = format!("{ATTEMPTS} times out of {ATTEMPTS}: {last}");
        Ok(Err((Verdict::LaunchFailed, reason)))
    }

    pub(crate) fn hold(&self, told: &mut dyn FnMut(&str, Waits)) -> Option<Held> {
        let device = &self.worker.device;
        self.lock.wait(&self.interrupt, &mut |waits| told(device, waits))
    }

    fn gates(&mut self, number: usize, id: &str, best: Option<&Trial>) -> Result<Found, Stop> {
        let computes = self.computes()?;
        let unjudged = if computes { self.adversaries(id)? } else { Vec::new() };
        // A candidate is timed against the best, and the first one alone.
        let mut kernels = vec![id.to_string()];
        kernels.extend(best.filter(|best| best.id != id).map(|best| best.id.clone()));
        let opened = self.open_with_best(&mut kernels)?;
        let mut differs = None;
        let mut error = opened.first().and_then(|opened| opened.error);
        if computes {
            error = Some(self.inspected(0, number, inspect)?);
            differs = self.twice(opened.first().is_none_or(|opened| opened.reproducible))?;
        }
        let measurement = self.time_with_best(&mut kernels)?;
        let mut found = judged(&measurement, id, best, self.timing.gain)?;
        // A disturbed clock can make anything faster once, and the best of many is the luckiest. So
        // a candidate that is faster is timed again, and the second time counts.
        if found.verdict == Verdict::Faster {
            let again = self.time_with_best(&mut kernels)?;
            let first = std::mem::replace(&mut found, judged(&again, id, best, self.timing.gain)?);
            if found.verdict != Verdict::Faster {
                let once = first.timed.and_then(|timed| timed.ratio);
                let once = once.map(|ratio| times_as_long(ratio.value, ratio.interval));
                found.reason += &format!("; {} the first time", once.unwrap_or_default());
            }
        }
        if computes {
            let again = self.inspected(0, number, inspect_again)?;
            error = error.map(|error| error.max(again));
        }
        if let (Some(timed), Some(opened)) = (&mut found.timed, opened.into_iter().next()) {
            timed.registers = opened.attributes.map(|attributes| attributes.registers);
            timed.module = opened.module;
            timed.error = error;
            timed.tolerance = Some(self.judge.own.tolerance(id)).filter(|&factor| factor != 1.0);
        }
        found.unjudged = unjudged;
        if let Some(differs) = differs {
            found.reason += &format!("; {differs}");
        }
        Ok(found)
    }

    pub(crate) fn open(&mut self, kernels: &[String]) -> Result<Vec<Opened>, Stop> {
        self.open_for(&self.judge.problem, kernels)
    }

    /// Opens a candidate and the best. If that fails, opens the candidate alone, so that it is
    /// blamed only for its own failures, and removes the best from `kernels`.
    fn open_with_best(&mut self, kernels: &mut Vec<String>) -> Result<Vec<Opened>, Stop> {
        match self.open(kernels) {
            Err(Stop::Verdict(..) | Stop::Died(_)) if kernels.len() > 1 => {
                kernels.truncate(1);
                self.open(kernels)
            }
            opened => opened,
        }
    }

    fn screen(&mut self, kernels: &[String]) -> Result<Measurement, Stop> {
        self.time(kernels.len() - 1, Mode::Screen, &self.timing.screen)
    }

    /// Times an open candidate against the best. If that fails and the best is to blame, times the
    /// candidate alone, and removes the best from `kernels`.
    fn time_with_best(&mut self, kernels: &mut Vec<String>) -> Result<Measurement, Stop> {
        match self.screen(kernels) {
            Err(stop @ (Stop::Verdict(..) | Stop::Died(_))) if kernels.len() > 1 => {
                if self.works_alone(&kernels[1])? {
                    return Err(stop);
                }
                kernels.truncate(1);
                self.open(kernels)?;
                self.screen(kernels)
            }
            measured => measured,
        }
    }

    fn works_alone(&mut self, id: &str) -> Result<bool, TuneError> {
        let alone = [id.to_string()];
        match self.open(&alone).and_then(|_| self.screen(&alone)) {
            Ok(measurement) => Ok(measurement.subjects.iter().all(|subject| subject.summary.is_some())),
            Err(stop) => stop.blamed().map(|_| false),
        }
    }

    /// Judges outputs on adversarial inputs. Shapes that the candidate does not serve are returned
    /// with the reason. One that serves none is refused, since nothing could judge it.
    fn adversaries(&mut self, id: &str) -> Result<Vec<String>, Stop> {
        let judge = self.judge;
        let mut open: Option<&Problem> = None;
        let mut refused: Option<&Problem> = None;
        let mut unjudged = Vec::new();
        for case in judge.cases(is_own(id)) {
            if case.is_further && open.is_some_and(|open| *open != case.problem) {
                break;
            }
            if refused == Some(&case.problem) {
                continue;
            }
            if open != Some(&case.problem) {
                match self.open_for(&case.problem, &[id.to_string()]) {
                    Ok(_) => open = Some(&case.problem),
                    Err(Stop::Verdict(Verdict::Refused, why)) => {
                        refused = Some(&case.problem);
                        unjudged.push(format!("{}: {why}", case.problem));
                        continue;
                    }
                    Err(stop) => return Err(stop),
                }
            }
            let written = self.output(0, case.kind, case.seed)?;
            let verdict = case
                .judge(&written, judge.own.tolerance(id))
                .map_err(flashcore::Error::from);
            let verdict = verdict.map_err(TuneError::from)?;
            verdict.map_err(|wrong| Stop::Verdict(Verdict::Wrong, wrong))?;
        }
        if open.is_none() && !unjudged.is_empty() {
            // The plainest shape is the last, and says most of the kernel.
            unjudged.reverse();
            let reason = format!("it serves no small shape to judge it on; {}", unjudged.join("; "));
            return Err(Stop::Verdict(Verdict::Refused, reason));
        }
        Ok(unjudged)
    }

    pub(crate) fn inspected(
        &mut self,
        kernel: usize,
        number: usize,
        look: fn(&mut dyn Rig) -> Result<Inspection, Trouble>,
    ) -> Result<f64, Stop> {
        let mut rig = RemoteRig {
            examiner: self,
            number,
            kernel,
            stop: None,
        };
        let found = look(&mut rig);
        if let Some(stop) = rig.stop {
            return Err(stop);
        }
        match found {
            Ok(found) if found.passed() => Ok(found.max_abs),
            Ok(found) => Err(Stop::Verdict(Verdict::Wrong, found.to_string())),
            Err(trouble) => Err(Stop::Verdict(Verdict::LaunchFailed, trouble.message)),
        }
    }

    /// Two runs on the same inputs must write the same bits. Those of a kernel that declares that last bits may differ
    /// are compared within the tolerance; whether they differ is said.
    fn twice(&mut self, reproducible: bool) -> Result<Option<String>, Stop> {
        let unstable = |reason: String| Err(Stop::Verdict(Verdict::Unstable, reason));
        if !reproducible {
            let mut run = || {
                self.run(0, InputKind::Normal, Run::over_poison(None))?;
                self.written()
            };
            let (one, other) = (run()?, run()?);
            let rows = differing(&self.judge.problem, &one, &other).len();
            return match (one == other, rows) {
                (true, _) => Ok(None),
                (false, 0) => Ok(Some("its runs differ in last bits, as it declares".to_string())),
                (false, rows) => unstable(format!(
                    "two runs on the same inputs differ in {rows} rows by more than last bits, which it declares may differ"
                )),
            };
        }
        let mut run = || {
            self.run(0, InputKind::Normal, Run::over_poison(None))?;
            let digests = (self.digest(What::Output)?, self.digest(What::Lse)?);
            self.nothing_outside("")?;
            Ok::<_, Stop>(digests)
        };
        let (one, other) = (run()?, run()?);
        if one == other {
            return Ok(None);
        }
        let what = if one.0 == other.0 { "log-sum-exp" } else { "output" };
        unstable(format!("two runs on the same inputs differ in the {what}"))
    }

    pub(crate) fn nothing_outside(&mut self, when: &str) -> Result<(), Stop> {
        match self.outside()? {
            Some(outside) => Err(Stop::Verdict(Verdict::Wrong, format!("{when}{outside}"))),
            None => Ok(()),
        }
    }
}

fn judged(measurement: &Measurement, id: &str, best: Option<&Trial>, gain: f64) -> Result<Found, Stop> {
    let subject = &measurement.subjects[0];
    let Some(summary) = subject.summary else {
        let trouble = subject.trouble.clone().unwrap_or("it was never timed".to_string());
        return Err(Stop::Verdict(Verdict::LaunchFailed, trouble));
    };
    let base_score = best.and_then(Trial::score).unwrap_or(1.0);
    let (verdict, reason, score) = match (&subject.ratio, best) {
        (Some(ratio), Some(best)) => {
            let reason = format!("{} the time of {}", times_as_long(ratio.value, ratio.interval), best.id);
            (Verdict::of(ratio, gain), reason, ratio.value * base_score)
        }
        // The best is to blame. Times from two moments do not compare, so nothing is decided.
        (None, Some(best)) if best.id != id => {
            let then = best.timed.as_ref().map_or(f64::NAN, |timed| timed.us);
            let [took, takes] = [then, summary.p50].map(|us| render::time(us, 4));
            let reason = format!(
                "{} could not be timed with it; it took {took} then, this one {takes} alone",
                best.id
            );
            (Verdict::Ambiguous, reason, base_score * summary.p50 / then)
        }
        _ => (
            Verdict::Ambiguous,
            "the first, that others are compared with".to_string(),
            base_score,
        ),
    };
    Ok(Found {
        timed: Some(Timed {
            us: summary.p50,
            interval: summary.interval,
            against: subject.ratio.and(best.map(|best| best.id.clone())),
            ratio: subject.ratio,
            score,
            registers: None,
            module: None,
            error: None,
            tolerance: None,
        }),
        ..Found::failed(verdict, reason)
    })
}

#[cfg(all(test, unix))]
mod tests;
