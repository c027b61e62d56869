//! Trials: candidates and their verdicts. A candidate that fails is data with its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use flashcore_bench::profile::KernelProfile;
use flashcore_bench::{Interval, Ratio, table};
use serde::{Deserialize, Serialize};

use crate::space::Fingerprint;

/// The verdict on a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Verdict {
    /// No plan, or a launch that is known to fail. Nothing was compiled.
    Refused,
    /// It does not compile, or the code must not be used, for example because it spills.
    BuildFailed,
    /// It faulted, crashed its worker, or its launch was rejected.
    LaunchFailed,
    /// Its worker was killed from outside, or the machine ran out of memory, disk, files or threads: nothing is known
    /// of it. A resumed run tries it again.
    EnvironmentFailed,
    /// No result before the deadline.
    Hung,
    /// Its output is wrong, missing, stale or late.
    Wrong,
    /// Two runs on the same inputs differ.
    Unstable,
    /// Slower than the best at the time of the proposal, by the whole interval.
    Slower,
    /// Neither: the gain is under 3 %, or the interval includes no gain.
    Ambiguous,
    /// At least 3 % faster than the best at the time of the proposal, with an interval that
    /// excludes no gain.
    Faster,
}

impl Verdict {
    /// Whether the candidate passed every gate and was timed.
    pub const fn is_timed(self) -> bool {
        matches!(self, Verdict::Slower | Verdict::Ambiguous | Verdict::Faster)
    }

    /// The verdict on a ratio of times: [`Faster`](Verdict::Faster) if the gain is at least `gain`
    /// (0.03 for 3 %) and the interval excludes 1.
    pub fn of(ratio: &Ratio, gain: f64) -> Verdict {
        if ratio.accepts(gain) {
            Verdict::Faster
        } else if ratio.interval.lo > 1.0 {
            Verdict::Slower
        } else {
            Verdict::Ambiguous
        }
    }
}

/// Its name in tables and files, such as `BUILD_FAILED`.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Text of a ratio of times: `× 1.071 [1.050, 1.092]` takes 1.071 times as long. Predictions have no interval.
pub fn times_as_long(value: f64, interval: Interval) -> String {
    let times = table::times(value);
    if is_point(interval) {
        format!("× {times}")
    } else {
        format!("× {times} {}", table::bracketed(Some(interval)))
    }
}

/// Whether an interval has no width: the time was predicted.
pub(crate) fn is_point(interval: Interval) -> bool {
    interval.lo == interval.hi
}

/// How a candidate was timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Median of a run, µs.
    pub us: f64,
    /// Interval of the median, µs.
    pub interval: Interval,
    /// Config that it was timed against, the best at the time of the proposal; `None` for the
    /// first, and if that one failed.
    pub against: Option<String>,
    /// Its time relative to that config's, from the same rounds.
    pub ratio: Option<Ratio>,
    /// Its time relative to the run's first candidate, by the chain of ratios.
    pub score: f64,
    /// Registers per thread from the compiler, if anything was compiled.
    pub registers: Option<u32>,
    /// Identity of the timed module, if anything was compiled.
    pub module: Option<String>,
    /// Largest error of an element that the inspections or, of a predicted kernel of the user, the simulator saw.
    pub error: Option<f64>,
    /// How many times the default tolerance an error may be, if that is not 1.
    pub tolerance: Option<f64>,
}

/// A candidate that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Position in the run, from 0.
    pub number: usize,
    /// The config.
    pub id: String,
    /// Why it was proposed, such as `two levers of mma/...`.
    pub origin: String,
    /// The verdict.
    pub verdict: Verdict,
    /// Why: one sentence.
    pub reason: String,
    /// Its time, if it was timed.
    pub timed: Option<Timed>,
    /// Small shapes that it was not judged on, because it does not serve them, with reasons.
    #[serde(default)]
    pub unjudged: Vec<String>,
    /// Identity of its machine program, if it has one.
    pub fingerprint: Option<Fingerprint>,
    /// The earlier candidate with the same machine program, which has the same result.
    pub same_as: Option<String>,
    /// Seconds that it took.
    pub seconds: f64,
    /// Hardware counters of its main launch, if the search reads them and this was the best.
    pub counters: Option<Box<KernelProfile>>,
}

impl Trial {
    /// Its time relative to the run's first candidate. Candidates are ranked by it.
    pub fn score(&self) -> Option<f64> {
        self.timed.as_ref().map(|timed| timed.score)
    }

    /// Whether the environment failed, so that nothing is known of the config.
    pub fn is_undecided(&self) -> bool {
        self.verdict == Verdict::EnvironmentFailed
    }
}

/// All trials so far.
#[derive(Clone, Debug, Default)]
pub struct History {
    trials: Vec<Trial>,
    by_id: BTreeMap<String, usize>,
    pending: BTreeSet<String>,
}

impl History {
    /// The trials, in order.
    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// The trial of a config.
    pub fn trial(&self, id: &str) -> Option<&Trial> {
        Some(&self.trials[*self.by_id.get(id)?])
    }

    /// Whether a config was tried, or is being tried.
    pub fn is_seen(&self, id: &str) -> bool {
        self.by_id.contains_key(id) || self.pending.contains(id)
    }

    /// Records that a config is being tried.
    pub fn begin(&mut self, id: &str) {
        self.pending.insert(id.to_string());
    }

    /// Adds a trial. A second trial of a config is not found by its id, unless the environment failed in the first.
    pub fn add(&mut self, trial: Trial) {
        self.pending.remove(&trial.id);
        let place = self.trials.len();
        let known = self.by_id.entry(trial.id.clone()).or_insert(place);
        if self.trials.get(*known).is_some_and(Trial::is_undecided) {
            *known = place;
        }
        self.trials.push(trial);
    }

    /// Timed trials, the fastest first; ties in the order of the run.
    pub fn ranked(&self) -> Vec<&Trial> {
        let mut timed: Vec<&Trial> = self.trials.iter().filter(|trial| trial.timed.is_some()).collect();
        let score = |trial: &Trial| trial.score().unwrap_or(f64::INFINITY);
        timed.sort_by(|a, b| score(a).total_cmp(&score(b)));
        timed
    }

    /// What others are timed against: the first that was timed, or the best accepted since.
    pub(crate) fn best(&self) -> Option<&Trial> {
        let own = |trial: &&Trial| trial.timed.is_some() && trial.same_as.is_none();
        let score = |trial: &Trial| trial.score().unwrap_or(f64::INFINITY);
        self.trials.iter().filter(own).reduce(|best, trial| {
            if trial.verdict == Verdict::Faster && score(trial) < score(best) {
                trial
            } else {
                best
            }
        })
    }

    /// A trial's time relative to the run's first candidate, by the chain of ratios, with the
    /// product of their intervals, which is wider than necessary. `None` if it was not timed, or if
    /// the chain is broken.
    pub fn relative_to_first(&self, trial: &Trial) -> Option<(f64, Interval)> {
        let score = trial.score()?;
        let mut interval = Interval { lo: 1.0, hi: 1.0 };
        let mut at = trial;
        // A chain is never longer than the run.
        for _ in 0..=self.trials.len() {
            let timed = at.timed.as_ref()?;
            match (&timed.ratio, &timed.against) {
                (Some(ratio), Some(against)) => {
                    interval.lo *= ratio.interval.lo;
                    interval.hi *= ratio.interval.hi;
                    at = self.trial(against)?;
                }
                _ => return (timed.score == 1.0).then_some((score, interval)),
            }
        }
        None
    }

    /// Number of trials by verdict.
    pub fn count(&self) -> BTreeMap<Verdict, usize> {
        let mut count = BTreeMap::new();
        for trial in &self.trials {
            *count.entry(trial.verdict).or_insert(0) += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::trial;

    #[test]
    fn a_history_ranks_timed_trials_and_counts_all() {
        let mut history = History::default();
        history.begin("a");
        assert!(history.is_seen("a") && history.trial("a").is_none());
        for (number, (id, score)) in [("a", Some(1.0)), ("b", None), ("c", Some(0.8))]
            .into_iter()
            .enumerate()
        {
            history.add(trial(number, id, score));
        }
        let order: Vec<&str> = history.ranked().iter().map(|trial| trial.id.as_str()).collect();
        assert_eq!(order, ["c", "a"]);
        assert_eq!(
            history.count(),
            BTreeMap::from([(Verdict::Wrong, 1), (Verdict::Slower, 2)])
        );
        assert_eq!(history.trial("b").unwrap().number, 1);
    }

    #[test]
    fn intervals_are_chained_back_to_the_first() {
        let mut history = History::default();
        let against_another = |number, id: &str, against: &str, value: f64, score: f64| {
            let mut trial = trial(number, id, Some(score));
            if let Some(timed) = &mut trial.timed {
                timed.against = Some(against.to_string());
                let interval = Interval {
                    lo: value - 0.1,
                    hi: value + 0.1,
                };
                let (of_medians, rounds) = (value, 9);
                timed.ratio = Some(Ratio {
                    value,
                    interval,
                    of_medians,
                    rounds,
                });
            }
            trial
        };
        history.add(trial(0, "first", Some(1.0)));
        history.add(against_another(1, "a", "first", 0.5, 0.5));
        history.add(against_another(2, "b", "a", 0.8, 0.4));
        // Timed alone, because the best failed.
        history.add(trial(3, "c", Some(0.3)));
        let of = |id: &str| history.relative_to_first(history.trial(id).unwrap());
        let (score, interval) = of("b").unwrap();
        assert_eq!(score, 0.4);
        assert!((interval.lo - 0.4 * 0.7).abs() < 1e-9 && (interval.hi - 0.6 * 0.9).abs() < 1e-9);
        assert_eq!(of("first"), Some((1.0, Interval { lo: 1.0, hi: 1.0 })));
        assert_eq!(of("c"), None);
    }

    #[test]
    fn verdicts_have_one_spelling() {
        let verdicts = [
            Verdict::Refused,
            Verdict::BuildFailed,
            Verdict::LaunchFailed,
            Verdict::EnvironmentFailed,
            Verdict::Hung,
            Verdict::Wrong,
            Verdict::Unstable,
            Verdict::Slower,
            Verdict::Ambiguous,
            Verdict::Faster,
        ];
        for verdict in verdicts {
            assert_eq!(serde_json::to_string(&verdict).unwrap(), format!("\"{verdict}\""));
        }
    }

    #[test]
    fn a_ratio_has_a_verdict_and_a_text() {
        let ratio = |lo, hi| Ratio {
            value: (lo + hi) / 2.0,
            interval: Interval { lo, hi },
            of_medians: 1.0,
            rounds: 9,
        };
        assert_eq!(Verdict::of(&ratio(0.94, 0.96), 0.03), Verdict::Faster);
        assert_eq!(Verdict::of(&ratio(0.90, 1.01), 0.03), Verdict::Ambiguous);
        assert_eq!(Verdict::of(&ratio(0.98, 0.99), 0.03), Verdict::Ambiguous);
        assert_eq!(Verdict::of(&ratio(1.01, 1.05), 0.03), Verdict::Slower);
        let text = |value, lo, hi| times_as_long(value, Interval { lo, hi });
        assert_eq!(text(1.0714, 1.05, 1.0925), "× 1.071 [1.050, 1.093]");
        assert_eq!(text(0.8421, 0.8421, 0.8421), "× 0.842");
        assert_eq!(text(64.04, 61.2, 120.04), "× 64.0 [61.2, 120]");
    }
}
