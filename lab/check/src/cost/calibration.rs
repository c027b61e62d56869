//! Fitted constants of the model, and its error.
//!
//! Calibrated on `lab/check/data/scalar-times.csv`: 53 kernels of family `scalar`, 41 µs to 93 ms,
//! on an H200. Two exponents, one factor and the L2 rate of sm_90 were fitted; all else is data of
//! [`super::rates`]. Method and error on other kernels: `docs/cost-model.md`.

use flashcore_ir::{Profile, Seen, Target};
use serde::Serialize;

use super::sm::Resource;
use super::work::Work;

/// Time of an empty kernel in a graph replay, microseconds. Measured on an H200, assumed for other
/// cards.
pub const LAUNCH_MICROS: f64 = 0.74;

/// Fraction of the datasheet's memory bandwidth that a copy reaches: 4.3 of 4.8 TB/s on an H200,
/// assumed for other cards.
pub(crate) const DRAM_REACHED: f64 = 0.9;

/// Exponent that combines resources: 1 is no overlap, infinity is perfect overlap. Fitted.
const OVERLAP_OF_RESOURCES: f64 = 3.0;

/// Exponent that combines busy resources and latency. Fitted.
const OVERLAP_WITH_LATENCY: f64 = 1.5;

/// Median ratio of measured to modelled time. Fitted.
const FACTOR: f64 = 0.96;

/// Measured to predicted time: 10th and 90th percentile of the 53 kernels of the calibration and 41
/// others.
const MEASURED: (f64, f64) = (0.94, 1.11);

/// The same for 153 kernels on tensor cores (`lab/check/data/tensor-times.csv`), without any fit.
const MEASURED_TENSOR: (f64, f64) = (0.96, 1.21);

/// Factor by which the interval widens on cards that were not measured. Assumed: about three times
/// the spread of the calibration.
const STEP: f64 = 1.25;

/// As [`MEASURED`], for kernels of other compilers: 47 of the reports' and 122 launches of Triton's on an H200,
/// predicted before they were measured (`lab/check/data`), the first 85 by an earlier model.
const MEASURED_FOREIGN: (f64, f64) = (0.73, 2.35);

/// The combined time of resources and of a chain of dependent instructions, in their unit. It grows
/// with each of them.
pub(crate) fn together(resources: &[f64], chain: f64) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>, p: f64| values.map(|v| v.powf(p)).sum::<f64>().powf(1.0 / p);
    let busy = norm(&mut resources.iter().copied(), OVERLAP_OF_RESOURCES);
    FACTOR * norm(&mut [busy, chain].into_iter(), OVERLAP_WITH_LATENCY)
}

/// Bytes from L2 for each byte of the tensors from which on blocks are taken to read the same at the same time, and the
/// rate of such reads over the usual one. Fitted to ten matrix products of Flash Linear Attention on an H200, of which
/// one has 11.8 TB/s (`lab/check/data/triton-times.json`).
pub(crate) const OFTEN: f64 = 8.0;
pub(crate) const READ_TOGETHER: f64 = 1.5;

/// What the interval of a prediction is based on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trust {
    /// Whether kernels were measured on this architecture.
    pub card_measured: bool,
    /// Whether the kernel uses tensor cores.
    pub on_tensor_cores: bool,
    /// Whether another compiler made the kernel.
    pub is_foreign: bool,
    /// Lower end of the interval, relative to the predicted time.
    pub low: f64,
    /// Upper end of the interval, relative to the predicted time.
    pub high: f64,
    /// The kernels that were timed on this card, if it was calibrated: the interval is theirs.
    pub seen: Option<Seen>,
}

impl Trust {
    pub(crate) fn of(profile: &Profile, work: &Work, is_foreign: bool) -> Trust {
        let tensor = work.tensor_flops() > 0.0;
        let of_kind = profile.calibration.filter(|_| !is_foreign);
        let seen = of_kind.map(|card| if tensor { card.tensor } else { card.scalar });
        let card_measured = profile.target == Target::Sm90a || profile.calibration.is_some();
        let (mut low, mut high) = match (is_foreign, tensor) {
            (true, _) => MEASURED_FOREIGN,
            (false, true) => MEASURED_TENSOR,
            (false, false) => MEASURED,
        };
        if !card_measured {
            (low, high) = (low / STEP, high * STEP);
            if tensor {
                // Those times were measured at the clock of the power limit, which may be lower here.
                let clocks = profile.clocks;
                high *= clocks.highest / clocks.sustained;
            }
        }
        Trust {
            card_measured,
            on_tensor_cores: tensor,
            is_foreign,
            low: seen.map_or(low, |seen| seen.low),
            high: seen.map_or(high, |seen| seen.high),
            seen,
        }
    }

    /// The basis as text.
    pub fn words(&self) -> String {
        if let Some(Seen { kernels, low, high }) = self.seen {
            let kind = if self.on_tensor_cores { "tensor-core" } else { "scalar" };
            let [low, high] = [low, high].map(|end| (end - 1.0) * 100.0);
            return format!(
                "compared with {kernels} {kind} kernels on this card, to which nothing was fitted (80 % of the times \
                 within {low:+.0} and {high:+.0} %)"
            );
        }
        let basis = match (self.is_foreign, self.on_tensor_cores) {
            (true, _) => {
                "compared with 169 launches of other compilers on an H200 (80 % of the times within -27 and +135 %)"
            }
            (false, false) => {
                "calibrated on 53 scalar kernels on an H200 (80 % of 94 measured times within -6 and +11 %)"
            }
            (false, true) => "compared with 153 tensor-core kernels on an H200 (80 % of the times within -4 and +21 %)",
        };
        if self.card_measured {
            basis.to_string()
        } else {
            format!("{basis}; the interval is wider because this card was not measured")
        }
    }
}

/// Clocks by resource, in the order of [`Resource::ALL`], of one SM or one block.
pub(crate) type Clockings = [f64; Resource::ALL.len()];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_of_anything_never_takes_less() {
        let base = [3.0, 0.0, 5.0];
        let alone = together(&base, 2.0);
        for i in 0..3 {
            let mut more = base;
            more[i] += 1.0;
            assert!(together(&more, 2.0) > alone);
        }
        assert!(together(&base, 3.0) > alone);
        assert!(alone > FACTOR * 5.0 && alone < FACTOR * 10.0);
    }
}
