//! What measurements say about the model: how its terms come together, and how far off it is.
//!
//! Calibrated on `lab/check/data/scalar-times.txt`: 53 kernels of family `scalar`, 41 µs to 93 ms, on an
//! H200. Two exponents and one factor were fitted, and the L2 rate of sm_90; all else is data of [`super::rates`]. How, and
//! the error on kernels that were not fitted: `docs/cost-model.md`.

use flashcore_ir::{Profile, Target};
use serde::Serialize;

use super::sm::Resource;
use super::work::Work;

/// Microseconds that a kernel which does nothing takes in a graph replay, measured on an H200. Other cards: the same
/// is assumed.
pub const LAUNCH_MICROS: f64 = 0.74;

/// Part of the datasheet's memory bandwidth that a copy reaches: 4.3 of 4.8 TB/s on an H200; assumed elsewhere.
pub(crate) const DRAM_REACHED: f64 = 0.9;

/// How resources add up. 1 is one after another, infinity is perfect overlap; fitted.
const OVERLAP_OF_RESOURCES: f64 = 3.0;

/// How busy resources and waiting add up, likewise; fitted.
const OVERLAP_WITH_LATENCY: f64 = 1.5;

/// Measured time to that of the model, median; fitted.
const FACTOR: f64 = 0.96;

/// Measured to predicted time, the 10th and the 90th percentile of the 53 kernels of the calibration and 41 others.
const MEASURED: (f64, f64) = (0.94, 1.11);

/// The same of 153 kernels on tensor cores (`lab/check/data/tensor-times.csv`), to which nothing was fitted.
const MEASURED_TENSOR: (f64, f64) = (0.96, 1.21);

/// What the interval widens by on another card than the one measured. An assumption: about three times the spread within
/// the calibration.
const STEP: f64 = 1.25;

/// The time that resources and a chain of waits take together, in the unit they are given in. More of any of them
/// never takes less.
pub(crate) fn together(resources: &[f64], chain: f64) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>, p: f64| values.map(|v| v.powf(p)).sum::<f64>().powf(1.0 / p);
    let busy = norm(&mut resources.iter().copied(), OVERLAP_OF_RESOURCES);
    FACTOR * norm(&mut [busy, chain].into_iter(), OVERLAP_WITH_LATENCY)
}

/// The clocks a card runs at.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Clocks {
    /// In short or light work, MHz.
    pub highest: f64,
    /// Where the power limit holds it under lasting tensor-core work, MHz.
    pub sustained: f64,
    /// Where the figures come from.
    pub source: &'static str,
}

/// Clocks of a card.
pub(crate) fn clocks(profile: &Profile) -> Clocks {
    let boost = f64::from(profile.boost_mhz);
    match profile.name {
        "h200" => Clocks {
            highest: 1980.0,
            sustained: 1550.0,
            source: "seen on an H200: 1,980 MHz in short kernels, 1.5 to 1.6 GHz under lasting attention",
        },
        "h100" => Clocks {
            highest: 1980.0,
            sustained: 1550.0,
            source: "assumed to be the H200's, which has the same processor and power limit",
        },
        "l4" => Clocks {
            highest: boost,
            sustained: 0.6 * boost,
            source: "boost as in the datasheet; that 72 W hold 60 % of it under tensor-core work is an assumption",
        },
        _ => Clocks {
            highest: boost,
            sustained: 0.85 * boost,
            source: "boost as in the datasheet; that the power limit holds 85 % of it is an assumption",
        },
    }
}

/// How far a prediction is to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trust {
    /// Whether kernels were measured on this card's processor.
    pub card_measured: bool,
    /// Whether it is one of the kernels on tensor cores.
    pub on_tensor_cores: bool,
    /// Shortest time to the predicted one.
    pub low: f64,
    /// Longest time to the predicted one.
    pub high: f64,
}

impl Trust {
    pub(crate) fn of(profile: &Profile, work: &Work) -> Trust {
        let card_measured = profile.target == Target::Sm90a;
        let tensor = work.tensor_flops() > 0.0;
        let steps = i32::from(!card_measured);
        let measured = if tensor { MEASURED_TENSOR } else { MEASURED };
        let clocks = clocks(profile);
        // What was measured on tensor cores ran at the clock that its card's power limit leaves; another's may leave less.
        let slower = if tensor && !card_measured {
            clocks.highest / clocks.sustained
        } else {
            1.0
        };
        Trust {
            card_measured,
            on_tensor_cores: tensor,
            low: measured.0 / STEP.powi(steps),
            high: measured.1 * STEP.powi(steps) * slower,
        }
    }

    /// In words.
    pub fn words(&self) -> String {
        let basis = match self.on_tensor_cores {
            false => "calibrated on 53 scalar kernels on an H200 (80 % of 94 measured times within -6 and +11 %)",
            true => "held against 153 kernels on tensor cores on an H200 (80 % of the times within -4 and +21 %)",
        };
        match self.card_measured {
            true => basis.to_string(),
            false => format!("{basis}; the interval is wider here: another card"),
        }
    }
}

/// Resources in the order of [`Resource::ALL`], of one SM or one block.
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
