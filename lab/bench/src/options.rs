//! The settings of the protocol, with units and reasons.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::stats::FEWEST_ROUNDS;
use crate::{BenchError, Result, THRESHOLD};

/// What state the device is in when a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Back to back on the same inputs: inputs that fit are in L2. Long kernels have [steady](Turns::Steady) turns,
    /// short ones [short](Turns::Short) ones.
    Hot,
    /// Single runs, each on another set of inputs and after L2 was overwritten.
    Cold,
    /// Back to back for half a second after warming the very same subject as long: what a server sees, at the
    /// clock that the power cap leaves.
    Sustained,
    /// As hot with [short](Turns::Short) turns however long the kernels are: to rank many of them quickly, not to be
    /// quoted.
    Screen,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 4] = [Mode::Hot, Mode::Cold, Mode::Sustained, Mode::Screen];
}

/// `hot`, `cold`, `sustained`, `screen`, as in JSON.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl FromStr for Mode {
    type Err = BenchError;

    fn from_str(name: &str) -> Result<Mode> {
        let known = Mode::ALL.map(|mode| mode.to_string());
        match known.iter().position(|known| known == name) {
            Some(at) => Ok(Mode::ALL[at]),
            None => Err(BenchError::bad_option("mode", name, known.join(", "))),
        }
    }
}

/// What a subject's turn in a round of the hot mode is like. One measurement has one kind for all its subjects, so
/// that none is compared in another state of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Turns {
    /// Some milliseconds: the card is in the state that the round as a whole leaves it in, and what drifts cancels
    /// between neighbours.
    Short,
    /// Long enough for the card's power controller to find the clock of this very subject before it is timed.
    Steady,
}

impl fmt::Display for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The protocol's settings. Times are in microseconds of the device unless said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Confidence of intervals. With 99 %, a table of 40 shapes × 6 peers has two or three intervals that miss.
    pub confidence: f64,
    /// Difference below which two kernels are the same, relative.
    pub threshold: f64,
    /// A subject is done when half the width of its ratio's interval is below this, relative; while its verdict is
    /// ambiguous, below half of it; far from the baseline, below a tenth of the distance.
    pub precision: f64,
    /// Rounds that every subject takes part in, whatever the budget and however well it is known: 3 or more.
    pub least_rounds: u32,
    /// Rounds before a subject near the baseline may be done.
    pub min_rounds: u32,
    /// Rounds after which it ends in any case.
    pub max_rounds: u32,
    /// Time for all rounds of one problem in one mode, milliseconds of the host; [`Options::least_rounds`] are
    /// always made.
    pub budget_ms: f64,
    /// Least length of a timed batch of a short turn: some hundred times the half microsecond that events resolve.
    pub sample_us: f64,
    /// Untimed runs of the same subject right before a batch of a short turn: after a hotter kernel a short batch reads
    /// up to 8 % low.
    pub lead_us: f64,
    /// Hot turns are steady where every subject takes at least this a run; `None`: never. Shorter kernels do not fill
    /// a card for long enough to reach its power cap, and need more rounds than steady turns leave time for.
    pub steady_from_us: Option<f64>,
    /// Untimed runs of the same subject at the beginning of a steady turn: a power controller needs tens of
    /// milliseconds to find a kernel's clock.
    pub steady_lead_us: f64,
    /// Length of the timed batch of a steady turn: at the cap the clock hops, and a batch averages over hops.
    pub steady_sample_us: f64,
    /// Least time of warming a subject before its first round: clocks take tens of milliseconds to rise.
    pub warm_up_min_us: f64,
    /// Most time of warming a subject; one that has not settled by then is marked so.
    pub warm_up_max_us: f64,
    /// Single runs a cold sample is the mean of.
    pub cold_runs: u32,
    /// Length of a sustained batch.
    pub sustained_us: f64,
    /// Untimed runs before a sustained batch: the power controller has found its clock by then.
    pub sustained_lead_us: f64,
    /// Rounds of the sustained mode. Its batches lie seconds apart, so less cancels than between short ones.
    pub sustained_rounds: u32,
    /// Copies of K and V that hot runs on a GPU take turns with, in the chain of a graph. With more of them than L2
    /// holds, no run finds its own there, as in a model of several layers.
    pub caches: u32,
    /// Seed of the order within rounds.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            confidence: 0.99,
            threshold: THRESHOLD,
            precision: THRESHOLD / 2.0,
            least_rounds: FEWEST_ROUNDS as u32,
            min_rounds: 10,
            max_rounds: 200,
            budget_ms: 5_000.0,
            sample_us: 500.0,
            lead_us: 2_000.0,
            steady_from_us: Some(60.0),
            steady_lead_us: 80_000.0,
            steady_sample_us: 40_000.0,
            warm_up_min_us: 50_000.0,
            warm_up_max_us: 500_000.0,
            cold_runs: 5,
            sustained_us: 500_000.0,
            sustained_lead_us: 250_000.0,
            sustained_rounds: 8,
            caches: 1,
            seed: 1,
        }
    }
}

/// What is allowed of an option, and that in words.
type Rule = (fn(f64) -> bool, &'static str);

const CONFIDENCE: Rule = (|x| (0.5..1.0).contains(&x), "0.5 up to, not including, 1");
const SHARE: Rule = (|x| x > 0.0 && x < 1.0, "between 0 and 1, such as 0.01");
const ABOVE_0: Rule = (|x| x > 0.0 && x.is_finite(), "above 0");
const FROM_0: Rule = (|x| x >= 0.0 && x.is_finite(), "0 or more");
const FROM_1: Rule = (|x| x > 0.0, "1 or more");
const FROM_FEWEST: Rule = (|x| x >= FEWEST_ROUNDS as f64, "3 or more");

impl Options {
    /// Settings for the host's own kernels: fewer, longer samples, since a host clock is precise and a core
    /// is warm at once; all turns are short.
    pub fn for_cpu() -> Options {
        Options {
            lead_us: 1_000.0,
            steady_from_us: None,
            warm_up_min_us: 20_000.0,
            warm_up_max_us: 1_000_000.0,
            cold_runs: 1,
            ..Options::default()
        }
    }

    /// Checks the settings.
    pub fn check(&self) -> Result<()> {
        let options = [
            ("confidence", self.confidence, CONFIDENCE),
            ("threshold", self.threshold, SHARE),
            ("precision", self.precision, SHARE),
            ("sample_us", self.sample_us, ABOVE_0),
            ("sustained_us", self.sustained_us, ABOVE_0),
            ("steady_sample_us", self.steady_sample_us, ABOVE_0),
            ("warm_up_max_us", self.warm_up_max_us, ABOVE_0),
            ("budget_ms", self.budget_ms, ABOVE_0),
            ("lead_us", self.lead_us, FROM_0),
            ("sustained_lead_us", self.sustained_lead_us, FROM_0),
            ("steady_lead_us", self.steady_lead_us, FROM_0),
            ("steady_from_us", self.steady_from_us.unwrap_or(0.0), FROM_0),
            ("warm_up_min_us", self.warm_up_min_us, FROM_0),
            ("least_rounds", f64::from(self.least_rounds), FROM_FEWEST),
            ("max_rounds", f64::from(self.max_rounds), FROM_1),
            ("cold_runs", f64::from(self.cold_runs), FROM_1),
            ("sustained_rounds", f64::from(self.sustained_rounds), FROM_1),
            ("caches", f64::from(self.caches), FROM_1),
        ];
        match options
            .into_iter()
            .find(|(_, given, (is_allowed, _))| !is_allowed(*given))
        {
            Some((option, given, (_, allowed))) => Err(BenchError::bad_option(option, given, allowed)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_allowed_and_nonsense_is_not() {
        assert!(Options::default().check().is_ok());
        assert!(Options::for_cpu().check().is_ok());
        let bad = [
            Options {
                confidence: 1.0,
                ..Options::default()
            },
            Options {
                threshold: 0.0,
                ..Options::default()
            },
            Options {
                precision: f64::NAN,
                ..Options::default()
            },
            Options {
                sample_us: -1.0,
                ..Options::default()
            },
            Options {
                lead_us: f64::INFINITY,
                ..Options::default()
            },
            Options {
                max_rounds: 0,
                ..Options::default()
            },
            Options {
                caches: 0,
                ..Options::default()
            },
            Options {
                least_rounds: 2,
                ..Options::default()
            },
            Options {
                steady_from_us: Some(f64::NAN),
                ..Options::default()
            },
            Options {
                steady_sample_us: 0.0,
                ..Options::default()
            },
        ];
        for options in bad {
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains("allowed"), "{error}");
        }
        assert!("warm".parse::<Mode>().unwrap_err().to_string().contains("sustained"));
    }
}
