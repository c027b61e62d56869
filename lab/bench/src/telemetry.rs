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

/// Reads the device's state, between batches and never within one.
pub trait Telemetry {
    /// The state now; `None` where it cannot be read.
    fn read(&mut self) -> Option<Reading>;
}

/// Reads nothing.
impl Telemetry for () {
    fn read(&mut self) -> Option<Reading> {
        None
    }
}

/// NVIDIA's management library, for one device.
#[derive(Debug)]
pub struct NvmlTelemetry(Nvml);

impl NvmlTelemetry {
    /// The library, for the device of this identity (`GPU-xxxxxxxx-…`).
    ///
    /// # Errors
    /// One sentence that says what is missing, to be shown once; measuring goes on without it.
    pub fn open(uuid: &str) -> Result<NvmlTelemetry, String> {
        let nvml = Nvml::open(uuid);
        nvml.map(NvmlTelemetry)
            .map_err(|missing| format!("clocks, power and temperature are not recorded: {missing}"))
    }
}

impl Telemetry for NvmlTelemetry {
    fn read(&mut self) -> Option<Reading> {
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
        let throttle = self.0.throttle_reasons().unwrap_or_default();
        Some(Reading {
            sm_mhz: self.0.sm_mhz(),
            memory_mhz: self.0.memory_mhz(),
            power_w: self.0.power_mw().map(watts),
            power_limit_w: self.0.power_limit_mw().map(watts),
            temperature_c: self.0.temperature_c(),
            throttle: throttle.into_iter().map(str::to_string).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_is_one_sentence() {
        // Where there is NVML, there is no such device; where there is none, that is said.
        let absence = NvmlTelemetry::open("GPU-none").unwrap_err();
        assert!(
            absence.starts_with("clocks, power and temperature are not recorded: NVML"),
            "{absence}"
        );
        assert!(().read().is_none());
    }
}
