//! Verdicts: what an interval of a ratio says about a difference that matters.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::stats::Ratio;

/// A difference in time below which two kernels are called the same, unless said otherwise.
pub const THRESHOLD: f64 = 0.01;

/// How a subject compares with its baseline. The threshold of practical difference `t` makes three
/// zones of the ratio of times: below `1 − t`, around 1, and above `1 + t`; a verdict is given when the whole
/// interval lies in one zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Within the threshold, by the whole interval.
    Same,
    /// Takes less time by more than the threshold, by the whole interval.
    Faster,
    /// Takes more time by more than the threshold, by the whole interval.
    Slower,
    /// The interval reaches over an edge between zones: measure longer, or say that it is not known.
    Ambiguous,
}

impl Verdict {
    /// The verdict on a ratio of times, with a threshold such as 0.01.
    ///
    /// ```
    /// use flashcore_bench::{Interval, Ratio, Verdict};
    /// let ratio = |lo, hi| Ratio { value: (lo + hi) / 2.0, interval: Interval { lo, hi }, of_medians: 1.0, rounds: 20 };
    /// assert_eq!(Verdict::of(&ratio(0.995, 1.004), 0.01), Verdict::Same);
    /// assert_eq!(Verdict::of(&ratio(0.93, 0.95), 0.01), Verdict::Faster);
    /// assert_eq!(Verdict::of(&ratio(1.02, 1.04), 0.01), Verdict::Slower);
    /// assert_eq!(Verdict::of(&ratio(0.98, 1.00), 0.01), Verdict::Ambiguous);
    /// ```
    pub fn of(ratio: &Ratio, threshold: f64) -> Verdict {
        let (lo, hi) = (ratio.interval.lo, ratio.interval.hi);
        if hi < 1.0 - threshold {
            Verdict::Faster
        } else if lo > 1.0 + threshold {
            Verdict::Slower
        } else if lo >= 1.0 - threshold && hi <= 1.0 + threshold {
            Verdict::Same
        } else {
            // Not-a-number ends come here too.
            Verdict::Ambiguous
        }
    }
}

/// `SAME`, `FASTER`, `SLOWER`, `AMBIGUOUS`, as in JSON.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Interval;

    fn ratio(lo: f64, hi: f64) -> Ratio {
        Ratio {
            value: (lo + hi) / 2.0,
            interval: Interval { lo, hi },
            of_medians: 1.0,
            rounds: 20,
        }
    }

    #[test]
    fn an_interval_over_an_edge_is_ambiguous() {
        for (lo, hi) in [
            (0.98, 0.995),
            (1.005, 1.02),
            (0.9, 1.1),
            (0.0, f64::INFINITY),
            (f64::NAN, f64::NAN),
        ] {
            assert_eq!(Verdict::of(&ratio(lo, hi), 0.01), Verdict::Ambiguous, "{lo} {hi}");
        }
    }

    #[test]
    fn a_search_needs_the_gain_and_an_interval_clear_of_one() {
        assert!(ratio(0.95, 0.98).accepts(0.03));
        assert!(!ratio(0.97, 0.99).accepts(0.03));
        assert!(!ratio(0.90, 1.01).accepts(0.03));
    }
}
