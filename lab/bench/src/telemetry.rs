//! The state of the device while it was measured: clocks, power, temperature, reasons for throttling.

use flashcore_cuda::Nvml;
use serde::{Deserialize, Serialize};

/// The device's state at one moment. What cannot be read is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// SM clock, MHz.
    pub sm_mhz: Option<u32>,
    /// Memory clock, MHz.
    pub memory_mhz: Option<u32>,
    /// Power drawn, W.
    pub power_w: Option<f64>,
    /// Power allowed, W.
    pub power_limit_w: Option<f64>,
    /// Temperature of the chip, °C.
    pub temperature_c: Option<u32>,
    /// Why clocks are below their highest, such as `SW_POWER_CAP`; empty if they are not or it is not known.
    pub throttle: Vec<String>,
}

/// Reads a device's state through NVIDIA's management library, between batches and never within one.
#[derive(Debug)]
pub struct Telemetry(Nvml);

impl Telemetry {
    /// For the device of this identity (`GPU-xxxxxxxx-…`).
    ///
    /// # Errors
    /// One sentence that says what is missing, to be shown once; measuring goes on without it.
    pub fn open(uuid: &str) -> Result<Telemetry, String> {
        let nvml = Nvml::open(uuid);
        nvml.map(Telemetry)
            .map_err(|missing| format!("clocks, power and temperature are not recorded: {missing}"))
    }

    pub(crate) fn read(&self) -> Reading {
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
        let throttle = self.0.throttle_reasons().unwrap_or_default();
        Reading {
            sm_mhz: self.0.sm_mhz(),
            memory_mhz: self.0.memory_mhz(),
            power_w: self.0.power_mw().map(watts),
            power_limit_w: self.0.power_limit_mw().map(watts),
            temperature_c: self.0.temperature_c(),
            throttle: throttle.into_iter().map(str::to_string).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_is_one_sentence() {
        // Where there is NVML, there is no such device; where there is none, that is said.
        let absence = Telemetry::open("GPU-none").unwrap_err();
        assert!(
            absence.starts_with("clocks, power and temperature are not recorded: NVML"),
            "{absence}"
        );
    }
}
