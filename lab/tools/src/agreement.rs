//! [`Agreement`]: predictions compared with measurements.

use serde::Serialize;

use flashcore_bench::stats::{quantile, sorted};

/// How well predictions agree with measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Pairs compared.
    pub count: usize,
    /// Spearman's rank correlation: 1 where the model puts all in their true order. NaN with fewer than two pairs.
    pub spearman: f64,
    /// Measured to predicted time, median.
    pub median_ratio: f64,
    /// The same, 10th percentile.
    pub p10_ratio: f64,
    /// The same, 90th percentile.
    pub p90_ratio: f64,
    /// How much longer the kernel takes that the model would choose than the one that was fastest.
    pub regret: f64,
}

impl Agreement {
    /// Compares pairs of predicted and measured times; `None` without any, or where one is no positive number.
    ///
    /// ```
    /// use flashcore_tools::Agreement;
    /// let agreement = Agreement::of(&[(10.0, 12.0), (20.0, 22.0), (30.0, 33.0)]).unwrap();
    /// assert_eq!((agreement.spearman, agreement.median_ratio, agreement.regret), (1.0, 1.1, 0.0));
    /// ```
    pub fn of(pairs: &[(f64, f64)]) -> Option<Agreement> {
        let is_time = |t: f64| t.is_finite() && t > 0.0;
        if pairs.is_empty() || !pairs.iter().all(|&(p, m)| is_time(p) && is_time(m)) {
            return None;
        }
        let (predicted, measured): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let ratios: Vec<f64> = pairs.iter().map(|(predicted, measured)| measured / predicted).collect();
        let ratios = sorted(&ratios);
        let chosen = pairs.iter().min_by(|a, b| a.0.total_cmp(&b.0))?.1;
        let fastest = measured.iter().copied().fold(f64::INFINITY, f64::min);
        Some(Agreement {
            count: pairs.len(),
            spearman: correlation(&ranks(&predicted), &ranks(&measured)),
            median_ratio: quantile(&ratios, 0.5),
            p10_ratio: quantile(&ratios, 0.1),
            p90_ratio: quantile(&ratios, 0.9),
            regret: chosen / fastest - 1.0,
        })
    }
}

/// Ranks from 0; equal values share their middle.
fn ranks(values: &[f64]) -> Vec<f64> {
    let below = |x: f64| values.iter().filter(|&&y| y < x).count() as f64;
    let equal = |x: f64| values.iter().filter(|&&y| y == x).count() as f64;
    values.iter().map(|&x| below(x) + (equal(x) - 1.0) / 2.0).collect()
}

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (ma, mb) = (mean(a), mean(b));
    let covariance =
        |x: &[f64], mx: f64, y: &[f64], my: f64| -> f64 { x.iter().zip(y).map(|(x, y)| (x - mx) * (y - my)).sum() };
    covariance(a, ma, b, mb) / (covariance(a, ma, a, ma) * covariance(b, mb, b, mb)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_ties() {
        let of = |pairs: &[(f64, f64)]| Agreement::of(pairs).unwrap();
        assert_eq!(of(&[(1.0, 30.0), (2.0, 20.0), (3.0, 10.0)]).spearman, -1.0);
        assert_eq!(of(&[(1.0, 30.0), (2.0, 20.0), (3.0, 10.0)]).regret, 2.0);
        // By hand: ranks 0 1.5 1.5 3 against 0 1 2 3.
        let tied = of(&[(1.0, 1.0), (2.0, 2.0), (2.0, 3.0), (4.0, 4.0)]).spearman;
        assert!((tied - 4.5 / (4.5f64 * 5.0).sqrt()).abs() < 1e-12, "{tied}");
        assert_eq!(Agreement::of(&[]), None);
        assert_eq!(Agreement::of(&[(1.0, f64::NAN)]), None);
        assert_eq!(Agreement::of(&[(0.0, 1.0)]), None);
    }
}
