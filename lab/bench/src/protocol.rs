//! The protocol as a state machine that touches no device: it returns what to run next, is given the time of that, and
//! decides when the result is precise enough.
//!
//! First each subject runs until its time settles. Rounds follow. In each, every subject is timed once, in a shuffled
//! order, with untimed runs of the same subject before each timed batch. The time of the fastest subject decides
//! whether turns of the hot mode are short or steady. A subject leaves when its ratio to the baseline is precise
//! enough; the baseline stays until all others have left.

use flashcore_problem::rng::Rng;
use serde::{Deserialize, Serialize};

use crate::stats::{median, median_interval};
use crate::{Mode, Options, Ratio, Turns, Verdict};

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Run this, then call [`Protocol::record`] or [`Protocol::fail`].
    Batch(Batch),
    /// The moment to read clocks and power. Rounds count from 0.
    RoundEnded {
        round: u32,
    },
    Done(Stop),
}

/// Runs to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) subject: usize,
    pub(crate) purpose: Purpose,
    /// Untimed runs first.
    pub(crate) lead: u32,
    /// Timed runs. In the cold mode each is timed by itself, after flushing L2.
    pub(crate) runs: u32,
    /// Whether L2 is flushed before each run.
    pub(crate) cold: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The time is used to size batches and to see whether it settles.
    WarmUp,
    /// Rounds and places in a round's order count from 0.
    Sample { round: u32, position: u32 },
}

/// Why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stop {
    /// Every interval is narrow enough.
    Narrow,
    /// The time is spent.
    Budget,
    /// The most rounds have been made.
    Rounds,
    /// No subject is left that can be run.
    Failed,
    /// Nothing was run: times are predicted.
    Predicted,
    /// The process ended before the measurement did. Only of measurements in the evidence store.
    #[serde(rename = "cut_off")]
    CutOff,
}

impl Stop {
    /// In words, for reports.
    pub const fn words(self) -> &'static str {
        match self {
            Stop::Narrow => "intervals narrow enough",
            Stop::Budget => "time budget spent",
            Stop::Rounds => "most rounds made",
            Stop::Failed => "no subject left",
            Stop::Predicted => "by the cost model: nothing was run",
            Stop::CutOff => "cut off before it ended",
        }
    }
}

/// Runs a batch may have at most: keeps a mistaken estimate from queueing for minutes.
const MAX_RUNS: u32 = 200_000;
/// A run that is this many times as long as its untimed lead would be has no lead: the earlier state of the card
/// affects only a small part of it.
const OUTLASTS_LEAD: f64 = 10.0;
/// Resamples when deciding whether to stop; the stored interval has more.
const CHECK_RESAMPLES: usize = 400;
/// Warm-up batches compared with as many before them.
const SETTLED_BATCHES: usize = 4;
/// Relative difference between the two within which a subject has settled.
const SETTLED_WITHIN: f64 = 0.02;

/// The state of one measurement: one problem, one mode.
#[derive(Debug)]
pub(crate) struct Protocol {
    options: Options,
    mode: Mode,
    baseline: usize,
    rng: Rng,
    tracks: Vec<Track>,
    phase: Phase,
    /// Of the hot and the screen mode, once all subjects are warm.
    turns: Option<Turns>,
    /// Host time at the first round, µs.
    started_us: Option<f64>,
}

#[derive(Debug, Default)]
struct Track {
    /// Runs one call makes; batches are multiples of it.
    granule: u32,
    failed: bool,
    done: bool,
    settled: bool,
    warm_us: f64,
    warm_times: Vec<f64>,
    estimate_us: f64,
    /// Time a run by round, µs.
    times: Vec<Option<f64>>,
}

#[derive(Debug)]
enum Phase {
    WarmUp { subject: usize, runs: u32 },
    Round { round: u32, order: Vec<usize>, next: usize },
    Done(Stop),
}

impl Phase {
    fn warm_up(subject: usize) -> Phase {
        Phase::WarmUp { subject, runs: 1 }
    }
}

impl Protocol {
    /// A measurement of subjects, each given by how many runs one call of it makes; `baseline` is the one that
    /// the others are compared with.
    pub(crate) fn new(options: &Options, mode: Mode, granules: &[u32], baseline: usize) -> Protocol {
        let tracks: Vec<Track> = granules
            .iter()
            .map(|&granule| Track {
                granule: granule.max(1),
                estimate_us: f64::NAN,
                ..Track::default()
            })
            .collect();
        let phase = if tracks.is_empty() {
            Phase::Done(Stop::Failed)
        } else {
            Phase::warm_up(0)
        };
        Protocol {
            options: options.clone(),
            mode,
            baseline: baseline.min(tracks.len().saturating_sub(1)),
            rng: Rng::new(options.seed),
            tracks,
            phase,
            turns: None,
            started_us: None,
        }
    }

    /// What to do now. `now_us` is the host's clock, µs from any origin.
    pub(crate) fn next(&mut self, now_us: f64) -> Step {
        loop {
            match &self.phase {
                Phase::Done(stop) => return Step::Done(*stop),
                Phase::WarmUp { subject, runs } => {
                    let (subject, runs) = (*subject, *runs);
                    if subject >= self.tracks.len() {
                        self.started_us = Some(now_us);
                        self.turns = self.choose_turns();
                        self.begin_round(0);
                        continue;
                    }
                    if self.tracks[subject].failed {
                        self.phase = Phase::warm_up(subject + 1);
                        continue;
                    }
                    return Step::Batch(Batch {
                        subject,
                        purpose: Purpose::WarmUp,
                        lead: 0,
                        runs: round_up(runs, self.tracks[subject].granule),
                        cold: false,
                    });
                }
                Phase::Round { round, order, next } => {
                    let round = *round;
                    if let Some(&subject) = order.get(*next) {
                        let purpose = Purpose::Sample {
                            round,
                            position: *next as u32,
                        };
                        return Step::Batch(self.sample(subject, purpose));
                    }
                    match self.judge(round + 1, now_us) {
                        Some(stop) => self.phase = Phase::Done(stop),
                        None => self.begin_round(round + 1),
                    }
                    return Step::RoundEnded { round };
                }
            }
        }
    }

    /// The batch of the last [`Step`] took `total_us` in all for `runs` runs.
    pub(crate) fn record(&mut self, total_us: f64, runs: u32) {
        let per_run = total_us / f64::from(runs.max(1));
        match &mut self.phase {
            Phase::WarmUp { subject, runs: planned } => {
                let (subject, planned) = (*subject, *planned);
                let track = &mut self.tracks[subject];
                track.warm_us += total_us;
                track.warm_times.push(per_run);
                track.estimate_us = per_run.max(1e-3);
                track.settled = settled(&track.warm_times);
                let enough = track.warm_us >= self.options.warm_up_min_us && track.settled;
                self.phase = if enough || track.warm_us >= self.options.warm_up_max_us {
                    Phase::warm_up(subject + 1)
                } else {
                    let wanted = runs_for(self.options.sample_us, track.estimate_us);
                    Phase::WarmUp {
                        subject,
                        runs: wanted.min(planned.saturating_mul(4)).max(1),
                    }
                };
            }
            Phase::Round { round, order, next } => {
                let track = &mut self.tracks[order[*next]];
                track.times.resize(*round as usize, None);
                track.times.push(Some(per_run));
                *next += 1;
            }
            Phase::Done(_) => {}
        }
    }

    /// The batch of the last [`Step`] could not be run: the subject takes no further part.
    pub(crate) fn fail(&mut self) {
        match &mut self.phase {
            Phase::WarmUp { subject, .. } => {
                self.tracks[*subject].failed = true;
                self.phase = Phase::warm_up(*subject + 1);
            }
            Phase::Round { order, next, .. } => {
                self.tracks[order[*next]].failed = true;
                *next += 1;
            }
            Phase::Done(_) => {}
        }
    }

    /// What turns are like: known from the first round on, in the hot and the screen mode.
    pub(crate) fn turns(&self) -> Option<Turns> {
        self.turns
    }

    /// Whether the subject's time had settled before the first round.
    pub(crate) fn settled(&self, subject: usize) -> bool {
        self.tracks[subject].settled
    }

    /// The subject's samples, µs a run.
    pub(crate) fn times(&self, subject: usize) -> Vec<f64> {
        self.tracks[subject].times.iter().flatten().copied().collect()
    }

    /// The subject's time relative to the baseline's over the rounds that have both; `None` for the baseline
    /// itself and where there are none.
    pub(crate) fn ratio(&self, subject: usize, resamples: usize) -> Option<Ratio> {
        if subject == self.baseline {
            return None;
        }
        let pairs = self.tracks[subject].times.iter().zip(&self.tracks[self.baseline].times);
        let (ours, theirs): (Vec<f64>, Vec<f64>) = pairs.filter_map(|(s, b)| Some(((*s)?, (*b)?))).unzip();
        Ratio::paired(&ours, &theirs, self.options.confidence, resamples)
    }

    /// Steady where every subject is long: all subjects are compared in the same state of the card.
    fn choose_turns(&self) -> Option<Turns> {
        let from_us = match self.mode {
            Mode::Hot => self.options.steady_from_us.unwrap_or(f64::INFINITY),
            Mode::Screen => f64::INFINITY,
            Mode::Cold | Mode::Sustained => return None,
        };
        let running = self.tracks.iter().filter(|track| !track.failed);
        let quickest_us = running.map(|track| track.estimate_us).fold(f64::INFINITY, f64::min);
        Some(if quickest_us.is_finite() && quickest_us >= from_us {
            Turns::Steady
        } else {
            Turns::Short
        })
    }

    fn begin_round(&mut self, round: u32) {
        let active = |track: &Track| !track.failed && !track.done;
        let mut order: Vec<usize> = (0..self.tracks.len()).filter(|&i| active(&self.tracks[i])).collect();
        self.rng.shuffle(&mut order);
        self.phase = if order.is_empty() {
            Phase::Done(Stop::Failed)
        } else {
            Phase::Round { round, order, next: 0 }
        };
    }

    fn sample(&self, subject: usize, purpose: Purpose) -> Batch {
        let track = &self.tracks[subject];
        let sized = |us: f64| round_up(runs_for(us, track.estimate_us), track.granule);
        let lead = |us: f64| {
            if track.estimate_us < OUTLASTS_LEAD * us {
                sized(us)
            } else {
                0
            }
        };
        let options = &self.options;
        let (lead, runs) = match (self.mode, self.turns) {
            (Mode::Cold, _) => (0, options.cold_runs),
            (Mode::Sustained, _) => (lead(options.sustained_lead_us), sized(options.sustained_us)),
            (_, Some(Turns::Steady)) => (lead(options.steady_lead_us), sized(options.steady_sample_us)),
            (_, _) => (lead(options.lead_us), sized(options.sample_us)),
        };
        Batch {
            subject,
            purpose,
            lead,
            runs,
            cold: self.mode == Mode::Cold,
        }
    }

    /// Lets subjects leave that are known well enough, and says whether to stop after `rounds` rounds.
    fn judge(&mut self, rounds: u32, now_us: f64) -> Option<Stop> {
        if self.tracks.iter().all(|track| track.failed) {
            return Some(Stop::Failed);
        }
        if self.mode == Mode::Sustained {
            return (rounds >= self.options.sustained_rounds).then_some(Stop::Rounds);
        }
        // Each look resamples; the later, the less a single round changes.
        let look = rounds < 20 || rounds.is_multiple_of(5);
        if look && rounds >= self.options.least_rounds {
            for subject in 0..self.tracks.len() {
                let track = &self.tracks[subject];
                if subject != self.baseline && !track.failed && !track.done && self.known(subject, rounds) {
                    self.tracks[subject].done = true;
                }
            }
        }
        let others_left =
            (0..self.tracks.len()).any(|i| i != self.baseline && !self.tracks[i].failed && !self.tracks[i].done);
        let baseline_failed = self.tracks[self.baseline].failed;
        if look && !others_left && (baseline_failed || self.baseline_known(rounds)) {
            return Some(Stop::Narrow);
        }
        if rounds >= self.options.max_rounds.max(self.options.least_rounds) {
            return Some(Stop::Rounds);
        }
        let spent_us = now_us - self.started_us.unwrap_or(now_us);
        let may_stop = rounds >= self.options.least_rounds;
        (may_stop && spent_us >= self.options.budget_ms * 1e3).then_some(Stop::Budget)
    }

    fn known(&self, subject: usize, rounds: u32) -> bool {
        if self.tracks[self.baseline].failed {
            return self.median_known(subject, rounds);
        }
        let Some(ratio) = self.ratio(subject, CHECK_RESAMPLES) else {
            return false;
        };
        let distance = (ratio.value - 1.0).abs() / ratio.value.max(1.0);
        // A subject far from the baseline does not need the rounds that telling neighbours apart takes.
        let enough = rounds >= self.options.min_rounds || distance > 0.25;
        let precision = match Verdict::of(&ratio, self.options.threshold) {
            Verdict::Ambiguous => self.options.precision / 2.0,
            _ => self.options.precision,
        };
        enough && ratio.interval.relative_half_width(ratio.value) <= precision.max(distance / 10.0)
    }

    /// With others it was in every round that they needed; alone it has to settle by itself.
    fn baseline_known(&self, rounds: u32) -> bool {
        match self.tracks.iter().filter(|track| !track.failed).count() {
            1 => self.median_known(self.baseline, rounds),
            _ => rounds >= self.options.least_rounds,
        }
    }

    fn median_known(&self, subject: usize, rounds: u32) -> bool {
        let times = self.times(subject);
        let interval = median_interval(&times, self.options.confidence, CHECK_RESAMPLES);
        rounds >= self.options.min_rounds && interval.relative_half_width(median(&times)) <= self.options.precision
    }
}

/// Whether the last batches took as long as those before them.
fn settled(times: &[f64]) -> bool {
    let Some(start) = times.len().checked_sub(2 * SETTLED_BATCHES) else {
        return false;
    };
    let (before, now) = times[start..].split_at(SETTLED_BATCHES);
    (median(now) / median(before) - 1.0).abs() <= SETTLED_WITHIN
}

/// Runs that take at least `us`.
fn runs_for(us: f64, per_run_us: f64) -> u32 {
    match (us / per_run_us).ceil() {
        runs if runs.is_finite() => runs.clamp(1.0, f64::from(MAX_RUNS)) as u32,
        _ => 1,
    }
}

fn round_up(runs: u32, granule: u32) -> u32 {
    runs.max(1).div_ceil(granule).saturating_mul(granule)
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
