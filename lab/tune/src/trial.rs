//! Trials: what was proposed, and what came of it. A candidate that fails is data with its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use flashcore_bench::{Interval, Ratio};
use serde::{Deserialize, Serialize};

use crate::space::Fingerprint;

/// What came of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Verdict {
    /// No plan, or a launch that is known to fail: nothing was compiled.
    Refused,
    /// It does not compile, or to something that must not be used, such as code that spills.
    BuildFailed,
    /// It faulted, crashed its worker, or its launch was turned down.
    LaunchFailed,
    /// It did not end in time.
    Hung,
    /// Its answer is wrong, missing, stale or late.
    Wrong,
    /// Twice the same inputs, and not the same answer.
    Unstable,
    /// Slower than the best when it was proposed, by the whole interval.
    Slower,
    /// No clear gain: within 3 % of the best when it was proposed, or the interval says nothing.
    Ambiguous,
    /// At least 3 % faster than the best when it was proposed, and the whole interval clear of no gain.
    Faster,
}

impl Verdict {
    /// Every verdict, in the order of the gates.
    pub const ALL: [Verdict; 9] = [
        Verdict::Refused,
        Verdict::BuildFailed,
        Verdict::LaunchFailed,
        Verdict::Hung,
        Verdict::Wrong,
        Verdict::Unstable,
        Verdict::Slower,
        Verdict::Ambiguous,
        Verdict::Faster,
    ];

    /// As it stands in tables and files: `BUILD_FAILED`.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Refused => "REFUSED",
            Verdict::BuildFailed => "BUILD_FAILED",
            Verdict::LaunchFailed => "LAUNCH_FAILED",
            Verdict::Hung => "HUNG",
            Verdict::Wrong => "WRONG",
            Verdict::Unstable => "UNSTABLE",
            Verdict::Slower => "SLOWER",
            Verdict::Ambiguous => "AMBIGUOUS",
            Verdict::Faster => "FASTER",
        }
    }

    /// Whether the candidate came through every gate and was timed.
    pub const fn is_timed(self) -> bool {
        matches!(self, Verdict::Slower | Verdict::Ambiguous | Verdict::Faster)
    }

    /// What a ratio of times to the best before says: [`Faster`](Verdict::Faster) from `gain` on (0.03 for 3 %), by
    /// the value and by an interval clear of 1.
    ///
    /// ```
    /// use flashcore_bench::{Interval, Ratio};
    /// use flashcore_tune::Verdict;
    /// let ratio = |lo, hi| Ratio { value: (lo + hi) / 2.0, interval: Interval { lo, hi }, of_medians: 1.0, rounds: 9 };
    /// assert_eq!(Verdict::of(&ratio(0.94, 0.96), 0.03), Verdict::Faster);
    /// assert_eq!(Verdict::of(&ratio(0.90, 1.01), 0.03), Verdict::Ambiguous);
    /// assert_eq!(Verdict::of(&ratio(0.98, 0.99), 0.03), Verdict::Ambiguous);
    /// assert_eq!(Verdict::of(&ratio(1.01, 1.05), 0.03), Verdict::Slower);
    /// ```
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

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A ratio of times as it stands everywhere: `× 1.071 [1.050, 1.092]`, so many times as long as what it is held against.
///
/// ```
/// use flashcore_bench::Interval;
/// use flashcore_tune::times_as_long;
/// assert_eq!(times_as_long(1.0714, Interval { lo: 1.05, hi: 1.0925 }), "× 1.071 [1.050, 1.093]");
/// assert_eq!(times_as_long(64.04, Interval { lo: 61.2, hi: 120.04 }), "× 64.0 [61.2, 120]");
/// ```
pub fn times_as_long(value: f64, interval: Interval) -> String {
    let short = |ratio: f64| match ratio {
        ratio if ratio >= 100.0 => format!("{ratio:.0}"),
        ratio if ratio >= 10.0 => format!("{ratio:.1}"),
        ratio => format!("{ratio:.3}"),
    };
    format!("× {} [{}, {}]", short(value), short(interval.lo), short(interval.hi))
}

/// How a candidate was timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Median of a run, µs.
    pub us: f64,
    /// Interval of the median, µs.
    pub interval: Interval,
    /// Config it was timed against, the best when it was proposed; `None` for the first, and where that one failed beside it.
    pub against: Option<String>,
    /// Its time relative to that one's, from the same rounds.
    pub ratio: Option<Ratio>,
    /// Its time relative to that of the run's first candidate, by the ratios between: what candidates are ranked by.
    pub score: f64,
    /// Registers a thread that the compiler gave it, where something was compiled.
    #[serde(default)]
    pub registers: Option<u32>,
    /// Identity of the module that was timed, where something was compiled.
    #[serde(default)]
    pub module: Option<String>,
}

/// One candidate that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Place in the run, from 0.
    pub number: usize,
    /// The config.
    pub id: String,
    /// Where it comes from, such as `two levers of mma/...`.
    pub origin: String,
    /// What came of it.
    pub verdict: Verdict,
    /// Why: one sentence.
    pub reason: String,
    /// Its time, if it was timed.
    pub timed: Option<Timed>,
    /// Small shapes that it was not judged on, each with the reason: it does not serve them.
    #[serde(default)]
    pub unjudged: Vec<String>,
    /// What its machine program is, where it has one.
    pub fingerprint: Option<Fingerprint>,
    /// The earlier candidate with the same machine program, whose result this is.
    pub same_as: Option<String>,
    /// Seconds it took, from proposal to verdict.
    pub seconds: f64,
}

impl Trial {
    /// What candidates are ranked by, smaller being faster: the time relative to the run's first candidate.
    pub fn score(&self) -> Option<f64> {
        self.timed.as_ref().map(|timed| timed.score)
    }
}

/// Everything that was tried so far.
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

    /// Notes that a config is being tried.
    pub fn begin(&mut self, id: &str) {
        self.pending.insert(id.to_string());
    }

    /// Adds a trial. A second one of the same config replaces nothing and is not found by its id.
    pub fn add(&mut self, trial: Trial) {
        self.pending.remove(&trial.id);
        self.by_id.entry(trial.id.clone()).or_insert(self.trials.len());
        self.trials.push(trial);
    }

    /// Trials that were timed, the fastest first; ties in the order of the run.
    pub fn ranked(&self) -> Vec<&Trial> {
        let mut timed: Vec<&Trial> = self.trials.iter().filter(|trial| trial.timed.is_some()).collect();
        timed.sort_by(|a, b| {
            let score = |trial: &Trial| trial.score().unwrap_or(f64::INFINITY);
            score(a).total_cmp(&score(b))
        });
        timed
    }

    /// What candidates are timed against: the first that was timed, or the best that was accepted since.
    pub(crate) fn best(&self) -> Option<&Trial> {
        let own = |trial: &&Trial| trial.timed.is_some() && trial.same_as.is_none();
        let score = |trial: &Trial| trial.score().unwrap_or(f64::INFINITY);
        self.trials.iter().filter(own).reduce(|best, trial| {
            match trial.verdict == Verdict::Faster && score(trial) < score(best) {
                true => trial,
                false => best,
            }
        })
    }

    /// A trial's time relative to that of the run's first candidate, by the ratios between, with the product of their
    /// intervals: wider than what is known, never narrower. `None` where it was not timed, or not beside others all the
    /// way.
    pub fn relative_to_first(&self, trial: &Trial) -> Option<(f64, Interval)> {
        let score = trial.score()?;
        let mut interval = Interval { lo: 1.0, hi: 1.0 };
        let mut at = trial;
        // No chain is longer than the run.
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

    /// Trials by verdict.
    pub fn count(&self) -> BTreeMap<Verdict, usize> {
        let mut count = BTreeMap::new();
        for trial in &self.trials {
            *count.entry(trial.verdict).or_insert(0) += 1;
        }
        count
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A trial with a score, or one that failed.
    pub(crate) fn trial(number: usize, id: &str, score: Option<f64>) -> Trial {
        Trial {
            number,
            id: id.to_string(),
            origin: "test".to_string(),
            verdict: if score.is_some() {
                Verdict::Slower
            } else {
                Verdict::Wrong
            },
            reason: String::new(),
            timed: score.map(|score| Timed {
                us: score * 10.0,
                interval: Interval::UNKNOWN,
                against: None,
                ratio: None,
                score,
                registers: None,
                module: None,
            }),
            unjudged: Vec::new(),
            fingerprint: None,
            same_as: None,
            seconds: 0.0,
        }
    }

    #[test]
    fn a_history_ranks_what_was_timed_and_counts_all() {
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
        let beside = |number, id: &str, against: &str, value: f64, score: f64| {
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
        history.add(beside(1, "a", "first", 0.5, 0.5));
        history.add(beside(2, "b", "a", 0.8, 0.4));
        // Timed by itself, since what it was to be timed beside failed.
        history.add(trial(3, "c", Some(0.3)));
        let of = |id: &str| history.relative_to_first(history.trial(id).unwrap());
        let (score, interval) = of("b").unwrap();
        assert_eq!(score, 0.4);
        assert!((interval.lo - 0.4 * 0.7).abs() < 1e-9 && (interval.hi - 0.6 * 0.9).abs() < 1e-9);
        assert_eq!(of("first"), Some((1.0, Interval { lo: 1.0, hi: 1.0 })));
        assert_eq!(of("c"), None);
    }

    #[test]
    fn verdicts_are_spelt_the_same_everywhere() {
        for verdict in Verdict::ALL {
            assert_eq!(serde_json::to_string(&verdict).unwrap(), format!("\"{verdict}\""));
        }
    }
}
