//! [`Agreement`]: predictions compared with measurements.

use flashcore_check::cost::{MeasuredCard, Observation, Prediction};
use flashcore_check::registers;
use flashcore_ir::{Chip, Profile};
use flashcore_kernels::{Config, KernelCache, Plan};
use flashcore_problem::Problem;
use serde::Serialize;

use crate::stats::{quantile, sorted};
use crate::{BenchError, Result};

/// A measured time of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// Name of the problem.
    pub problem: String,
    /// The problem.
    pub shape: Problem,
    /// The kernel.
    pub config: Config,
    /// Its time.
    pub micros: f64,
}

impl Timed {
    /// What the cost model says of it on a card, from each of these rates; `None` are those of the card's profile.
    /// Registers come from an offline `ptxas`, where there is one.
    ///
    /// # Errors
    /// A kernel that does not serve the problem there, or that the model does not cover.
    pub fn predictions(
        &self,
        profile: &Profile,
        rates: &[Option<&MeasuredCard>],
        cache: &KernelCache,
    ) -> Result<Vec<Prediction>> {
        let Timed { problem, config, .. } = self;
        let failed = |why: &dyn std::fmt::Display| BenchError::Failed(format!("{problem} {config}: {why}"));
        let plan = Plan::with_cache(&self.shape, config, Chip::from(profile), cache).map_err(|why| failed(&why))?;
        let registers = plan.steps().map(|step| {
            let offline = registers::offline(&step.kernel, profile.target).ok();
            offline.map(|registers| registers.per_thread)
        });
        let registers: Vec<Option<u32>> = registers.collect();
        let observed = Observation::with_cache(&plan, cache).map_err(|why| failed(&why))?;
        let predict = |rates: &Option<&MeasuredCard>| observed.predict_measured(profile, *rates, &registers);
        Ok(rates.iter().map(predict).collect())
    }
}

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
    /// use flashcore_bench::Agreement;
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

    /// The head of a table of [`Self::row`]s.
    pub fn head(title: &str) -> String {
        format!("{title:<24} kernels  Spearman  measured/predicted: median   10 %   90 %  regret")
    }

    /// As a row of a table.
    pub fn row(&self, name: &str) -> String {
        format!(
            "{name:<24} {:>7}  {:>8.3}  {:>26.3}  {:>5.2}  {:>5.2}  {:>5.1}%",
            self.count,
            self.spearman,
            self.median_ratio,
            self.p10_ratio,
            self.p90_ratio,
            100.0 * self.regret
        )
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
