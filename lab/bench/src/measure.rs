//! Runs the protocol on real subjects with a real clock.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::protocol::{Batch, Protocol, Purpose, Step};
use crate::stats::RESAMPLES;
use crate::{
    BenchError, Mode, Options, Predicted, Ratio, Reading, Result, Stop, Stopwatch, Subject, SubjectInfo, Summary,
    Telemetry, Trouble, Turns, Verdict,
};

/// One timed batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Which subject, by its place in the measurement.
    pub subject: usize,
    /// Round, from 0.
    pub round: u32,
    /// Place in the round, from 0.
    pub position: u32,
    /// Runs in the batch.
    pub runs: u32,
    /// Time of the batch, µs.
    pub total_us: f64,
    /// Host time at its end, µs since the measurement began.
    pub at_us: f64,
}

impl Sample {
    /// Time of one run, µs.
    pub fn run_us(&self) -> f64 {
        self.total_us / f64::from(self.runs.max(1))
    }
}

/// Is told of everything as it happens: an evidence store, a progress bar.
pub trait Observer {
    /// A batch of a subject is about to run.
    fn turn(&mut self, _subject: usize) {}

    /// A batch was timed.
    ///
    /// # Errors
    /// Why it could not be kept; the measurement ends.
    fn sample(&mut self, _sample: &Sample) -> Result<()> {
        Ok(())
    }

    /// A round ended, with the device in this state.
    fn round(&mut self, _round: u32, _reading: Option<&Reading>) -> Result<()> {
        Ok(())
    }
}

/// Watches nothing.
impl Observer for () {}

/// What was measured of one subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Who.
    pub info: SubjectInfo,
    /// Its times, µs a run; `None` if it was never timed.
    pub summary: Option<Summary>,
    /// Time relative to the baseline; `None` for the baseline itself.
    pub ratio: Option<Ratio>,
    /// What that says; `None` for the baseline and where there is no ratio.
    pub verdict: Option<Verdict>,
    /// Whether its time had settled after warming up.
    pub settled: bool,
    /// Why it was left out, if it was.
    pub trouble: Option<String>,
}

/// What was measured of one problem in one mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The mode.
    pub mode: Mode,
    /// What turns were like, in the hot and the screen mode. Not known of a measurement that was interrupted.
    pub turns: Option<Turns>,
    /// Place of the baseline among the subjects.
    pub baseline: usize,
    /// The subjects, in the order given.
    pub subjects: Vec<Measured>,
    /// Why it ended.
    pub stop: Stop,
    /// Rounds made.
    pub rounds: u32,
    /// The state of the device after each round, where it can be read.
    pub readings: Vec<Reading>,
}

impl Measurement {
    /// A measurement in which no round was made.
    pub fn without_rounds(mode: Mode, baseline: usize, subjects: Vec<Measured>, stop: Stop) -> Measurement {
        Measurement {
            mode,
            turns: None,
            baseline,
            subjects,
            stop,
            rounds: 0,
            readings: Vec::new(),
        }
    }

    /// Mode and kind of turns, as it stands in tables: `hot (steady turns)`, `cold`, `hot (PREDICTED)`.
    pub fn how(&self) -> String {
        match self.turns {
            Some(turns) if self.mode == Mode::Hot => format!("{} ({turns} turns)", self.mode),
            None if self.stop == Stop::Predicted => format!("{} (PREDICTED)", self.mode),
            _ => self.mode.to_string(),
        }
    }
}

/// Times subjects against each other, round by round.
///
/// A subject that fails is left out with its reason; the others go on, unless the device itself is lost.
///
/// # Errors
/// Options out of range, no subjects, a lost device, or an observer that cannot keep what it is told.
pub fn measure(
    options: &Options,
    mode: Mode,
    subjects: &mut [Box<dyn Subject + '_>],
    baseline: usize,
    stopwatch: &mut dyn Stopwatch,
    telemetry: Option<&Telemetry>,
    observer: &mut dyn Observer,
) -> Result<Measurement> {
    options.check()?;
    if subjects.is_empty() {
        return Err(BenchError::Nothing(
            "no kernel and no peer serves the problem here".to_string(),
        ));
    }
    let granules: Vec<u32> = subjects.iter().map(|subject| subject.runs_per_call()).collect();
    let mut protocol = Protocol::new(options, mode, &granules, baseline);
    let infos = subjects.iter().map(|subject| subject.info().clone());
    let mut measured: Vec<Measured> = infos.map(|info| Measured::untimed(info, None)).collect();
    let (mut samples, mut rounds, mut readings) = (Vec::new(), 0, Vec::new());
    let mut latest: Option<Reading> = None;
    let began_us = stopwatch.now_us();
    let stop = loop {
        let step = protocol.next(stopwatch.now_us());
        let batch = match step {
            Step::Done(stop) => break stop,
            Step::RoundEnded { round } => {
                rounds = round + 1;
                let reading = latest.take();
                observer.round(round, reading.as_ref())?;
                readings.extend(reading);
                continue;
            }
            Step::Batch(batch) => batch,
        };
        let watched = match batch.purpose {
            Purpose::WarmUp => false,
            Purpose::Sample { position, .. } => position == 0 || mode == Mode::Sustained,
        };
        let watch = telemetry.filter(|_| watched);
        observer.turn(batch.subject);
        match time(&mut *subjects[batch.subject], stopwatch, &batch, watch) {
            Ok((total_us, runs, reading)) => {
                latest = reading.or(latest);
                protocol.record(total_us, runs);
                if let Purpose::Sample { round, position } = batch.purpose {
                    let sample = Sample {
                        subject: batch.subject,
                        round,
                        position,
                        runs,
                        total_us,
                        at_us: stopwatch.now_us() - began_us,
                    };
                    observer.sample(&sample)?;
                    samples.push(sample);
                }
            }
            Err(trouble) if trouble.fatal => {
                let label = &subjects[batch.subject].info().label;
                return Err(BenchError::Device(format!("while {label} ran: {trouble}")));
            }
            Err(trouble) => {
                measured[batch.subject].trouble = Some(trouble.message);
                protocol.fail();
            }
        }
    };
    for (index, measured) in measured.iter_mut().enumerate() {
        measured.settled = protocol.settled(index);
        measured.evaluate(&samples, index, baseline, options);
    }
    Ok(Measurement {
        mode,
        turns: protocol.turns(),
        baseline,
        subjects: measured,
        stop,
        rounds,
        readings,
    })
}

impl Measured {
    /// One that has no time yet, or never gets one.
    pub fn untimed(info: SubjectInfo, trouble: Option<String>) -> Measured {
        Measured {
            info,
            summary: None,
            ratio: None,
            verdict: None,
            settled: false,
            trouble,
        }
    }

    /// What these samples say of it, subject `index` of them; it is compared over the rounds that have the baseline.
    pub(crate) fn evaluate(&mut self, samples: &[Sample], index: usize, baseline: usize, options: &Options) {
        if let Some(Predicted { us, interval }) = self.info.predicted {
            self.summary = Some(Summary::predicted(us, interval));
            return;
        }
        let times: Vec<f64> = times_of(samples, index).map(|(_, us)| us).collect();
        self.summary = Summary::of(&times, options.confidence);
        let (ours, theirs) = if index == baseline {
            Default::default()
        } else {
            in_common(samples, index, baseline)
        };
        self.ratio = Ratio::paired(&ours, &theirs, options.confidence, RESAMPLES);
        self.verdict = self.ratio.map(|ratio| Verdict::of(&ratio, options.threshold));
    }

    pub(crate) fn reject(&mut self, why: String) {
        self.trouble = Some(why);
        (self.summary, self.ratio, self.verdict) = (None, None, None);
    }
}

/// The rounds of a subject, and its times in them.
pub(crate) fn times_of(samples: &[Sample], subject: usize) -> impl Iterator<Item = (u32, f64)> {
    let of = samples.iter().filter(move |sample| sample.subject == subject);
    of.map(|sample| (sample.round, sample.run_us()))
}

/// The times of two subjects in the rounds that both have.
pub(crate) fn in_common(samples: &[Sample], one: usize, other: usize) -> (Vec<f64>, Vec<f64>) {
    let others: BTreeMap<u32, f64> = times_of(samples, other).collect();
    let pairs = times_of(samples, one).filter_map(|(round, us)| Some((us, *others.get(&round)?)));
    pairs.unzip()
}

/// Times one batch: total µs, the runs made, and the state of the device meanwhile if it is watched.
fn time(
    subject: &mut dyn Subject,
    stopwatch: &mut dyn Stopwatch,
    batch: &Batch,
    watch: Option<&Telemetry>,
) -> Result<(f64, u32, Option<Reading>), Trouble> {
    if batch.cold {
        // Queued behind a pause, so that neither the flush nor the run waits for the host.
        for lap in 0..batch.runs as usize {
            stopwatch.hold()?;
            stopwatch.flush()?;
            stopwatch.begin(lap)?;
            subject.run_once(lap % subject.input_sets().max(1))?;
            stopwatch.end(lap)?;
        }
        let reading = watch.map(Telemetry::read);
        let mut total_us = 0.0;
        for lap in 0..batch.runs as usize {
            total_us += stopwatch.elapsed_us(lap)?;
        }
        return Ok((total_us, batch.runs, reading));
    }
    let runs_per_call = subject.runs_per_call().max(1);
    let calls = batch.runs.div_ceil(runs_per_call);
    stopwatch.begin(LEAD)?;
    for _ in 0..batch.lead.div_ceil(runs_per_call) {
        subject.call()?;
    }
    stopwatch.end(LEAD)?;
    stopwatch.begin(TIMED)?;
    for _ in 0..calls {
        subject.call()?;
    }
    stopwatch.end(TIMED)?;
    // All is queued: once the untimed runs are over the timed ones run, and reading does not disturb them.
    if batch.lead > 0 {
        stopwatch.elapsed_us(LEAD)?;
    }
    let reading = watch.map(Telemetry::read);
    Ok((stopwatch.elapsed_us(TIMED)?, calls * runs_per_call, reading))
}

const TIMED: usize = 0;
const LEAD: usize = 1;
