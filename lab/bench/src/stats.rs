//! Statistics of timings: quantiles, median absolute deviation, and bootstrap intervals of a median
//! and of a ratio paired by round.
//!
//! Outliers are kept, because they are real runs. Medians are robust against them.

use flashcore_problem::rng::Rng;
use serde::{Deserialize, Serialize};

/// Minimum number of rounds for a bootstrap. No interval between `n` values contains the median
/// with a probability above `1 − 2^(1−n)`, and 8 is the first `n` where that reaches 99 %.
pub const BOOTSTRAP_ROUNDS: usize = 8;
/// Minimum number of rounds for any interval.
pub const FEWEST_ROUNDS: usize = 3;
/// Resamples for a stored interval. Its ends vary between seeds by a few hundredths of its width.
pub const RESAMPLES: usize = 2000;

/// A confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub lo: f64,
    /// Upper end. JSON has no infinity: it is written as null, and null is read as infinity.
    #[serde(deserialize_with = "end")]
    pub hi: f64,
}

fn end<'d, D: serde::Deserializer<'d>>(read: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(read)?.unwrap_or(f64::INFINITY))
}

impl Interval {
    /// No information: from 0 to infinity.
    pub const UNKNOWN: Interval = Interval::new(0.0, f64::INFINITY);

    /// From its ends.
    pub const fn new(lo: f64, hi: f64) -> Interval {
        Interval { lo, hi }
    }

    /// Half the width relative to `value`.
    pub fn relative_half_width(&self, value: f64) -> f64 {
        (self.hi - self.lo) / (2.0 * value)
    }
}

/// Quantile `q` (0 to 1) of sorted values with linear interpolation (type 7 of Hyndman and Fan, as
/// in NumPy and R). NaN without values.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (at - below as f64) * (sorted[above] - sorted[below])
}

/// The values in ascending order.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// The median; NaN without values.
pub fn median(values: &[f64]) -> f64 {
    quantile(&sorted(values), 0.5)
}

/// The median of the distances from the median.
pub fn median_absolute_deviation(values: &[f64]) -> f64 {
    let centre = median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - centre).abs()).collect();
    median(&distances)
}

/// Summary of timings, in the unit of the values (µs per run in this project).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of values.
    pub count: usize,
    /// Smallest.
    pub min: f64,
    /// 10 % quantile.
    pub p10: f64,
    /// The median.
    pub p50: f64,
    /// 90 % quantile.
    pub p90: f64,
    /// Largest.
    pub max: f64,
    /// Median absolute deviation from the median.
    pub mad: f64,
    /// Bootstrap interval of the median.
    pub interval: Interval,
}

impl Summary {
    /// Summarises values; `None` without values.
    pub fn of(values: &[f64], confidence: f64) -> Option<Summary> {
        let ordered = sorted(values);
        let (&min, &max) = (ordered.first()?, ordered.last()?);
        Some(Summary {
            count: values.len(),
            min,
            p10: quantile(&ordered, 0.1),
            p50: quantile(&ordered, 0.5),
            p90: quantile(&ordered, 0.9),
            max,
            mad: median_absolute_deviation(values),
            interval: median_interval(values, confidence, RESAMPLES),
        })
    }
}

impl Summary {
    /// Of a time that is predicted: its interval is the model's, from the 10 to the 90 % quantile of what was measured.
    pub fn predicted(time: f64, interval: Interval) -> Summary {
        Summary {
            count: 0,
            min: interval.lo,
            p10: interval.lo,
            p50: time,
            p90: interval.hi,
            max: interval.hi,
            mad: 0.0,
            interval,
        }
    }
}

/// Time of a subject relative to a baseline; below 1 the subject is faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Median over the rounds of subject / baseline. Each round times both within milliseconds, so
    /// drift or a clock change affects both and cancels. The quotient of the medians lacks this
    /// property if the clock alternates between two speeds.
    pub value: f64,
    /// Bootstrap interval of the value over rounds.
    pub interval: Interval,
    /// The quotient of the medians. A large difference from `value` means that the clock changed.
    pub of_medians: f64,
    /// Rounds that timed both.
    pub rounds: usize,
}

impl Ratio {
    /// The ratio of `subject` to `baseline`; elements with the same index are from the same round.
    pub fn paired(subject: &[f64], baseline: &[f64], confidence: f64, resamples: usize) -> Option<Ratio> {
        let ratios: Vec<f64> = subject.iter().zip(baseline).map(|(s, b)| s / b).collect();
        if ratios.is_empty() {
            return None;
        }
        let rounds = ratios.len();
        Some(Ratio {
            value: median(&ratios),
            interval: median_interval(&ratios, confidence, resamples),
            of_medians: median(&subject[..rounds]) / median(&baseline[..rounds]),
            rounds,
        })
    }

    /// Whether a search should accept the subject: at least `gain` faster by the value (usually
    /// 0.03), and faster by the whole interval.
    pub fn accepts(&self, gain: f64) -> bool {
        self.value <= 1.0 - gain && self.interval.hi < 1.0
    }

    /// The ratio of medians of values from separate measurements. Each side is resampled
    /// independently.
    pub fn unpaired(subject: &[f64], baseline: &[f64], confidence: f64, resamples: usize) -> Option<Ratio> {
        let rounds = subject.len().min(baseline.len());
        if rounds == 0 {
            return None;
        }
        let value = median(subject) / median(baseline);
        let interval = if rounds < BOOTSTRAP_ROUNDS {
            let [s, b] = [subject, baseline].map(|times| median_interval(times, confidence, resamples));
            let hi = if b.lo > 0.0 { s.hi / b.lo } else { f64::INFINITY };
            Interval::new(s.lo / b.hi, hi)
        } else {
            let mut rng = Rng::new(SEED);
            let (mut subject, mut baseline) = (Resampled::of(subject), Resampled::of(baseline));
            percentile_interval(confidence, resamples, || {
                subject.median(&mut rng) / baseline.median(&mut rng)
            })
        };
        Some(Ratio {
            value,
            interval,
            of_medians: value,
            rounds,
        })
    }
}

/// Constant, so that the same samples always give the same interval.
const SEED: u64 = 0x5eed;

/// Bootstrap interval of the median (percentile method).
///
/// With fewer than [`BOOTSTRAP_ROUNDS`] values it is their range, extended by its width on both
/// sides; with fewer than [`FEWEST_ROUNDS`] it is [`Interval::UNKNOWN`].
pub fn median_interval(values: &[f64], confidence: f64, resamples: usize) -> Interval {
    if values.len() < FEWEST_ROUNDS {
        return Interval::UNKNOWN;
    }
    if values.len() < BOOTSTRAP_ROUNDS {
        let ordered = sorted(values);
        let (lo, hi) = (ordered[0], ordered[ordered.len() - 1]);
        return Interval::new((2.0 * lo - hi).max(0.0), 2.0 * hi - lo);
    }
    let mut rng = Rng::new(SEED);
    let mut values = Resampled::of(values);
    percentile_interval(confidence, resamples, || values.median(&mut rng))
}

fn percentile_interval(confidence: f64, resamples: usize, mut draw: impl FnMut() -> f64) -> Interval {
    let mut drawn: Vec<f64> = (0..resamples.max(100)).map(|_| draw()).collect();
    drawn.sort_unstable_by(f64::total_cmp);
    let tail = (1.0 - confidence) / 2.0;
    Interval::new(quantile(&drawn, tail), quantile(&drawn, 1.0 - tail))
}

/// Values to be drawn with replacement. They are sorted once, and a resample says how often each was drawn.
struct Resampled {
    sorted: Vec<f64>,
    /// Where each value is in `sorted`.
    ranks: Vec<usize>,
    drawn: Vec<u32>,
}

impl Resampled {
    fn of(values: &[f64]) -> Resampled {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_unstable_by(|&a, &b| values[a].total_cmp(&values[b]));
        let mut ranks = vec![0; values.len()];
        for (rank, &index) in order.iter().enumerate() {
            ranks[index] = rank;
        }
        let sorted = order.iter().map(|&index| values[index]).collect();
        let drawn = vec![0; values.len()];
        Resampled { sorted, ranks, drawn }
    }

    /// The median of a resample.
    fn median(&mut self, rng: &mut Rng) -> f64 {
        let count = self.ranks.len();
        self.drawn.fill(0);
        for _ in 0..count {
            self.drawn[self.ranks[rng.below(count)]] += 1;
        }
        let at = |place: usize| {
            let mut passed = 0;
            let rank = self.drawn.iter().position(|&drawn| {
                passed += drawn as usize;
                passed > place
            });
            rank.map_or(f64::NAN, |rank| self.sorted[rank])
        };
        match count % 2 {
            1 => at(count / 2),
            _ => (at(count / 2 - 1) + at(count / 2)) / 2.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_match_numpy() {
        // numpy.quantile([1, 2, 4, 8, 16], [0.1, 0.5, 0.9])
        let values = [1.0, 2.0, 4.0, 8.0, 16.0];
        let got = [0.1, 0.5, 0.9].map(|q| quantile(&values, q));
        for (got, want) in got.iter().zip([1.4, 4.0, 12.8]) {
            assert!((got - want).abs() < 1e-12, "{got} {want}");
        }
        assert!(median(&[]).is_nan());
        assert_eq!(median(&[3.0, 1.0]), 2.0);
        assert_eq!(median_absolute_deviation(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]), 1.0);
    }

    #[test]
    fn unknown_interval_round_trips_through_json() {
        let text = serde_json::to_string(&Interval::UNKNOWN).unwrap();
        assert_eq!(serde_json::from_str::<Interval>(&text).unwrap(), Interval::UNKNOWN);
    }

    #[test]
    fn outliers_stay_in_the_summary() {
        let mut values = vec![10.0; 20];
        values.push(1000.0);
        let summary = Summary::of(&values, 0.95).unwrap();
        assert_eq!((summary.count, summary.max, summary.p50), (21, 1000.0, 10.0));
        assert_eq!(summary.interval, Interval { lo: 10.0, hi: 10.0 });
        assert!(Summary::of(&[], 0.95).is_none());
    }

    /// How often the interval of the median contains the true median of normal values.
    fn coverage(n: usize, confidence: f64) -> f64 {
        let mut rng = Rng::new(n as u64);
        let trials = 1000;
        let held = (0..trials)
            .filter(|_| {
                let values: Vec<f64> = (0..n).map(|_| 100.0 + f64::from(rng.normal())).collect();
                let Interval { lo, hi } = median_interval(&values, confidence, 400);
                (lo..=hi).contains(&100.0)
            })
            .count();
        held as f64 / f64::from(trials)
    }

    #[test]
    fn interval_coverage_matches_confidence() {
        for (n, confidence, least) in [(5, 0.99, 0.97), (8, 0.95, 0.92), (21, 0.95, 0.92), (40, 0.99, 0.975)] {
            let held = coverage(n, confidence);
            assert!(held >= least, "{n} values at {confidence}: {held}");
        }
    }

    #[test]
    fn too_few_values_give_an_unknown_interval() {
        assert_eq!(median_interval(&[5.0, 5.0], 0.99, 100), Interval::UNKNOWN);
        let few = median_interval(&[9.0, 10.0, 11.0], 0.99, 100);
        assert_eq!(few, Interval { lo: 7.0, hi: 13.0 });
    }

    #[test]
    fn paired_ratio_is_robust_against_two_clock_speeds() {
        // Half of the rounds run 6 % slower for both; the subject is 2 % slower in every round.
        let mut rng = Rng::new(1);
        let (mut subject, mut baseline) = (Vec::new(), Vec::new());
        for round in 0..40 {
            let clock = if round % 20 < 10 { 1.0 } else { 1.06 };
            let mut noisy = |time: f64| time * clock * (1.0 + 0.002 * f64::from(rng.normal()));
            baseline.push(noisy(100.0));
            subject.push(noisy(102.0));
        }
        let ratio = Ratio::paired(&subject, &baseline, 0.99, RESAMPLES).unwrap();
        assert!((ratio.value - 1.02).abs() < 0.002, "{ratio:?}");
        assert!(ratio.interval.relative_half_width(ratio.value) < 0.003, "{ratio:?}");
        // Resampled independently, the medians switch between the two speeds, and the interval is
        // ten times as wide.
        let apart = Ratio::unpaired(&subject, &baseline, 0.99, RESAMPLES).unwrap();
        assert!(apart.interval.relative_half_width(apart.value) > 0.03, "{apart:?}");
    }

    #[test]
    fn the_same_samples_give_the_same_interval() {
        let values: Vec<f64> = (0..30).map(|i| 10.0 + f64::from(i % 7)).collect();
        assert_eq!(median_interval(&values, 0.95, 500), median_interval(&values, 0.95, 500));
    }
}
