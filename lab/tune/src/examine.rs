//! The gates that need the device, in order: compile, right answers on shapes and inputs that are hard, inspection as in
//! any bench, the same answer twice, the clock, and the answer again.

use std::path::PathBuf;

use flashcore_bench::defences::{Inspection, Rig, inspect, inspect_again};
use flashcore_bench::{Measurement, Mode, Options, Trouble};
use flashcore_problem::{InputKind, Problem, Tensor};

use crate::device_lock::{DeviceLock, Held, Waits};
use crate::error::TuneError;
use crate::interrupt::Interrupt;
use crate::judge::Judge;
use crate::remote::{RemoteRig, Written};
use crate::trial::{Timed, Verdict, times_as_long};
use crate::worker::protocol::{Command, Form, Opened, Said, Step, What};
use crate::worker::{Compilers, Loss, Worker};

/// How candidates are timed, and what counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// While searching: brief.
    pub screen: Options,
    /// Finalists against each other.
    pub finals: Options,
    /// Least gain that is accepted, relative.
    pub gain: f64,
}

/// Least gain that counts, relative: that of the project's first reports.
const GAIN: f64 = 0.03;

impl Timing {
    /// For the host, whose runs are long and whose clock is disturbed by others.
    pub fn for_cpu() -> Timing {
        let screen = Options {
            warm_up_max_us: 40_000.0,
            warm_up_min_us: 10_000.0,
            min_rounds: 8,
            max_rounds: 30,
            budget_ms: 500.0,
            precision: 0.01,
            ..Options::for_cpu()
        };
        Timing {
            finals: Options {
                budget_ms: 6_000.0,
                max_rounds: 60,
                ..Options::for_cpu()
            },
            screen,
            gain: GAIN,
        }
    }

    /// For a GPU.
    pub fn for_gpu() -> Timing {
        let screen = Options {
            warm_up_min_us: 4_000.0,
            warm_up_max_us: 20_000.0,
            min_rounds: 8,
            max_rounds: 24,
            budget_ms: 300.0,
            ..Options::default()
        };
        Timing {
            screen,
            finals: Options::default(),
            gain: GAIN,
        }
    }
}

/// The best so far, that candidates are timed against.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Best {
    pub(crate) id: String,
    pub(crate) score: f64,
    /// Its time when it was tried, µs.
    pub(crate) us: f64,
}

/// What came of an examination.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) verdict: Verdict,
    pub(crate) reason: String,
    pub(crate) timed: Option<Timed>,
    /// What it was not judged by, and why.
    pub(crate) unjudged: Vec<String>,
}

impl Found {
    /// One that was not timed.
    pub(crate) fn failed(verdict: Verdict, reason: String) -> Found {
        Found {
            verdict,
            reason,
            timed: None,
            unjudged: Vec::new(),
        }
    }
}

/// Why a candidate's examination ended early: its verdict, or something that is no candidate's fault.
pub(crate) enum Stop {
    Verdict(Verdict, String),
    /// Its worker died, or lost its device.
    Died(String),
    Broken(TuneError),
}

impl From<TuneError> for Stop {
    fn from(error: TuneError) -> Stop {
        Stop::Broken(error)
    }
}

impl From<Loss> for Stop {
    fn from(loss: Loss) -> Stop {
        let (verdict, reason) = loss.verdict();
        match loss {
            Loss::Died { .. } => Stop::Died(reason),
            Loss::Failed(failed) if failed.fatal => Stop::Died(reason),
            _ => Stop::Verdict(verdict, reason),
        }
    }
}

/// How often a candidate whose worker dies is tried.
pub(crate) const ATTEMPTS: usize = 2;

/// Examines candidates with one worker.
pub(crate) struct Examiner<'j> {
    pub(crate) judge: &'j Judge,
    pub(crate) worker: Worker,
    /// Who compiles ahead of it.
    pub(crate) compilers: Option<&'j Compilers>,
    pub(crate) timing: &'j Timing,
    /// File that outputs go through.
    pub(crate) scratch: PathBuf,
    /// Where rows of its outputs are compared; kept, since it is as large as an output.
    pub(crate) canvas: Option<Tensor>,
    /// Shared with other searches on its device.
    pub(crate) lock: DeviceLock,
    /// Asked to end, it begins with no further candidate.
    pub(crate) interrupt: Interrupt,
}

impl Examiner<'_> {
    /// Sends one candidate through the gates. The device is held meanwhile.
    ///
    /// # Errors
    /// What is no candidate's fault: a worker that cannot be started any more, a scratch file that cannot be read.
    pub(crate) fn examine(&mut self, number: usize, id: &str, best: Option<&Best>) -> Result<Found, TuneError> {
        let failed = |verdict, reason| Ok(Found::failed(verdict, reason));
        // A worker may die of something else: a candidate is blamed when it does so every time.
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            match self.gates(number, id, best) {
                Ok(found) => return Ok(found),
                Err(Stop::Verdict(verdict, reason)) => return failed(verdict, reason),
                Err(Stop::Broken(error)) => return Err(error),
                Err(Stop::Died(reason)) => last = reason,
            }
        }
        failed(
            Verdict::LaunchFailed,
            format!("{ATTEMPTS} times out of {ATTEMPTS}: {last}"),
        )
    }

    /// Begins to compile candidates that come later, where something is compiled at all.
    pub(crate) fn ahead(&self, kernels: Vec<String>) {
        if let Some(compilers) = self.compilers {
            compilers.begin(self.judge.problem(), kernels);
        }
    }

    /// Waits until a candidate is compiled, as far as that was begun, and for the device; `None` if the search is
    /// interrupted first.
    pub(crate) fn ready(&self, id: &str, told: &mut dyn FnMut(&str, Waits)) -> Option<Held> {
        if let Some(compilers) = self.compilers {
            compilers.wait_for(id);
        }
        self.hold(told)
    }

    /// Waits for the device, and tells which it waits for.
    pub(crate) fn hold(&self, told: &mut dyn FnMut(&str, Waits)) -> Option<Held> {
        self.lock
            .wait(&self.interrupt, &mut |waits| told(self.worker.device(), waits))
    }

    fn gates(&mut self, number: usize, id: &str, best: Option<&Best>) -> Result<Found, Stop> {
        let computes = self.worker.hello()?.computes;
        let unjudged = match computes {
            true => self.adversaries(id)?,
            false => Vec::new(),
        };
        // A candidate is timed against the best, and the first one by itself.
        let mut kernels = vec![id.to_string()];
        kernels.extend(best.filter(|best| best.id != id).map(|best| best.id.clone()));
        let opened = self.open_beside(&mut kernels)?;
        if computes {
            self.inspected(0, number, inspect)?;
            self.twice()?;
        }
        let measurement = self.time_beside(&mut kernels)?;
        let mut found = judged(&measurement, id, best, self.timing.gain)?;
        // A clock that was disturbed once makes anything faster, and the best is the one whose luck was best: what is
        // accepted is timed once more, and that counts.
        if found.verdict == Verdict::Faster {
            let again = self.time_beside(&mut kernels)?;
            let first = std::mem::replace(&mut found, judged(&again, id, best, self.timing.gain)?);
            if found.verdict != Verdict::Faster {
                let once = first.timed.and_then(|timed| timed.ratio);
                let once = once.map(|ratio| times_as_long(ratio.value, ratio.interval));
                found.reason += &format!("; {} the first time", once.unwrap_or_default());
            }
        }
        if computes {
            self.inspected(0, number, inspect_again)?;
        }
        if let (Some(timed), Some(opened)) = (&mut found.timed, opened.into_iter().next()) {
            timed.registers = opened.attributes.map(|attributes| attributes.registers);
            timed.module = opened.module;
        }
        found.unjudged = unjudged;
        Ok(found)
    }

    /// Opens a candidate and the best beside it. Where that fails, the candidate by itself: it is blamed for what it does
    /// alone, and the best is taken out of `kernels` where it was that one.
    fn open_beside(&mut self, kernels: &mut Vec<String>) -> Result<Vec<Opened>, Stop> {
        match self.open(self.judge.problem(), kernels) {
            Err(Stop::Verdict(..) | Stop::Died(_)) if kernels.len() > 1 => {
                kernels.truncate(1);
                self.open(self.judge.problem(), kernels)
            }
            opened => opened,
        }
    }

    /// Times an open candidate beside the best. Where that fails and it is the best that is at fault, the candidate by itself,
    /// and the best is taken out of `kernels`.
    fn time_beside(&mut self, kernels: &mut Vec<String>) -> Result<Measurement, Stop> {
        match self.time(kernels.len() - 1, Mode::Screen, &self.timing.screen) {
            Err(stop) if kernels.len() > 1 && !self.stands_alone(&kernels[1], &stop)? => {
                kernels.truncate(1);
                self.open(self.judge.problem(), kernels)?;
                self.time(0, Mode::Screen, &self.timing.screen)
            }
            measured => measured,
        }
    }

    /// Whether a kernel can be timed by itself: after a failure beside a candidate, so that the candidate is not blamed for
    /// what the best does. A candidate stays to blame wherever the best is not.
    fn stands_alone(&mut self, id: &str, failure: &Stop) -> Result<bool, TuneError> {
        if let Stop::Broken(_) = failure {
            return Ok(true);
        }
        let alone = self.open(self.judge.problem(), &[id.to_string()]);
        match alone.and_then(|_| self.time(0, Mode::Screen, &self.timing.screen)) {
            Ok(measurement) => Ok(measurement.subjects.iter().all(|subject| subject.summary.is_some())),
            Err(Stop::Broken(error)) => Err(error),
            Err(Stop::Verdict(..) | Stop::Died(_)) => Ok(false),
        }
    }

    pub(crate) fn ask(&mut self, command: &Command) -> Result<Said, Stop> {
        Ok(self.worker.ask(command)??)
    }

    /// Opens kernels: what is known of each, in order.
    pub(crate) fn open(&mut self, problem: &Problem, kernels: &[String]) -> Result<Vec<Opened>, Stop> {
        let command = Command::Open {
            problem: problem.clone(),
            kernels: kernels.to_vec(),
        };
        match self.ask(&command)? {
            Said::Opened(opened) => Ok(opened),
            other => Err(Stop::Verdict(
                Verdict::LaunchFailed,
                format!("asked to open kernels, its worker said {other:?}"),
            )),
        }
    }

    /// Other shapes and hard inputs. A shape that the candidate does not serve is passed over and returned with the
    /// reason; one that serves none is not let through unseen.
    fn adversaries(&mut self, id: &str) -> Result<Vec<String>, Stop> {
        let judge = self.judge;
        let mut open: Option<&Problem> = None;
        let mut refused: Option<&Problem> = None;
        let mut unjudged = Vec::new();
        for case in judge.cases() {
            if refused == Some(&case.problem) {
                continue;
            }
            if open != Some(&case.problem) {
                match self.open(&case.problem, &[id.to_string()]) {
                    Ok(_) => open = Some(&case.problem),
                    Err(Stop::Verdict(Verdict::Refused, why)) => {
                        refused = Some(&case.problem);
                        unjudged.push(format!("{}: {why}", case.problem));
                        continue;
                    }
                    Err(stop) => return Err(stop),
                }
            }
            let written = self.answer(0, case.kind, case.seed)?;
            let verdict = case
                .judge(&written)
                .map_err(|error| TuneError::from(flashcore::Error::from(error)))?;
            verdict.map_err(|wrong| Stop::Verdict(Verdict::Wrong, wrong))?;
        }
        if open.is_none() && !unjudged.is_empty() {
            let reason = format!(
                "nothing to judge it by: it serves no small shape; {}",
                unjudged.join("; ")
            );
            return Err(Stop::Verdict(Verdict::Refused, reason));
        }
        Ok(unjudged)
    }

    /// An inspection of an open kernel as in any bench, on inputs of this run.
    pub(crate) fn inspected(
        &mut self,
        kernel: usize,
        number: usize,
        look: fn(&mut dyn Rig) -> Result<Inspection, Trouble>,
    ) -> Result<(), Stop> {
        let mut rig = RemoteRig {
            judge: self.judge,
            worker: &mut self.worker,
            scratch: &self.scratch,
            number,
            kernel,
            canvas: &mut self.canvas,
            stop: None,
        };
        let found = look(&mut rig);
        if let Some(stop) = rig.stop {
            return Err(stop);
        }
        match found {
            Ok(found) if found.passed() => Ok(()),
            Ok(found) => Err(Stop::Verdict(Verdict::Wrong, found.to_string())),
            Err(trouble) => Err(Stop::Verdict(Verdict::LaunchFailed, trouble.message)),
        }
    }

    /// The same inputs twice, those that inspection left: not a bit may differ. Outputs are digested where they are.
    fn twice(&mut self) -> Result<(), Stop> {
        let mut runs = Vec::new();
        for _ in 0..2 {
            self.compute(0, None)?;
            runs.push((self.digest(What::Output)?, self.digest(What::Lse)?));
            self.nothing_outside()?;
        }
        if runs[0] == runs[1] {
            return Ok(());
        }
        let what = if runs[0].0 == runs[1].0 {
            "log-sum-exp"
        } else {
            "output"
        };
        let reason = format!("two runs on the same inputs differ in the {what}");
        Err(Stop::Verdict(Verdict::Unstable, reason))
    }

    /// Runs an open kernel over poison, on inputs of a kind and seed or on those that are there.
    fn compute(&mut self, kernel: usize, inputs: Option<(InputKind, u64)>) -> Result<(), Stop> {
        let place = 0;
        let load = inputs.map(|(kind, seed)| Step::Load {
            place,
            kind: kind.name().to_string(),
            seed,
        });
        let then = [Step::Poison { place }, Step::Run { kernel, place }, Step::Finish];
        let steps = load.into_iter().chain(then).collect();
        self.ask(&Command::Steps { steps }).map(drop)
    }

    /// What an open kernel writes for inputs of a kind and seed. Nothing may be written outside of it.
    pub(crate) fn answer(&mut self, kernel: usize, kind: InputKind, seed: u64) -> Result<Written, Stop> {
        self.compute(kernel, Some((kind, seed)))?;
        let (out, lse) = (self.bytes(What::Output)?, self.bytes(What::Lse)?);
        self.nothing_outside()?;
        Ok(Written { out, lse })
    }

    fn bytes(&mut self, what: What) -> Result<Vec<u8>, Stop> {
        let form = Form::Bytes {
            file: self.scratch.clone(),
        };
        self.ask(&Command::Read { place: 0, what, form })?;
        Ok(std::fs::read(&self.scratch).map_err(|error| TuneError::file(&self.scratch, error))?)
    }

    fn digest(&mut self, what: What) -> Result<String, Stop> {
        let form = Form::Digest;
        match self.ask(&Command::Read { place: 0, what, form })? {
            Said::Digest(digest) => Ok(digest),
            other => {
                let reason = format!("asked for a digest, its worker said {other:?}");
                Err(Stop::Verdict(Verdict::LaunchFailed, reason))
            }
        }
    }

    fn nothing_outside(&mut self) -> Result<(), Stop> {
        match self.ask(&Command::Outside)? {
            Said::Outside(Some(outside)) => Err(Stop::Verdict(Verdict::Wrong, outside)),
            _ => Ok(()),
        }
    }

    pub(crate) fn time(&mut self, baseline: usize, mode: Mode, options: &Options) -> Result<Measurement, Stop> {
        let command = Command::Time {
            baseline,
            mode,
            options: options.clone(),
        };
        match self.ask(&command)? {
            Said::Measured(measurement) => Ok(*measurement),
            other => Err(Stop::Verdict(
                Verdict::LaunchFailed,
                format!("asked for times, its worker said {other:?}"),
            )),
        }
    }
}

/// What a measurement says about its first subject.
fn judged(measurement: &Measurement, id: &str, best: Option<&Best>, gain: f64) -> Result<Found, Stop> {
    let subject = &measurement.subjects[0];
    let Some(summary) = subject.summary else {
        let trouble = subject.trouble.clone().unwrap_or("it was never timed".to_string());
        return Err(Stop::Verdict(Verdict::LaunchFailed, trouble));
    };
    let base_score = best.map_or(1.0, |best| best.score);
    let (verdict, reason, score) = match (&subject.ratio, best) {
        (Some(ratio), Some(best)) => {
            let reason = format!("{} the time of {}", times_as_long(ratio.value, ratio.interval), best.id);
            (Verdict::of(ratio, gain), reason, ratio.value * base_score)
        }
        // The best is at fault, and no candidate is blamed for it. Two clocks at two times decide nothing.
        (None, Some(best)) if best.id != id => (
            Verdict::Ambiguous,
            format!(
                "{} could not be timed beside it; it took {:.2} µs then, this one {:.2} by itself",
                best.id, best.us, summary.p50
            ),
            base_score * summary.p50 / best.us,
        ),
        _ => (
            Verdict::Ambiguous,
            "the first, that others are compared with".to_string(),
            base_score,
        ),
    };
    Ok(Found {
        verdict,
        reason,
        timed: Some(Timed {
            us: summary.p50,
            interval: summary.interval,
            against: subject.ratio.and(best.map(|best| best.id.clone())),
            ratio: subject.ratio,
            score,
            registers: None,
            module: None,
        }),
        unjudged: Vec::new(),
    })
}

#[cfg(all(test, unix))]
mod tests;
