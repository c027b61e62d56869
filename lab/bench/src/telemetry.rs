//! The state of the device while it was measured: clocks, power, temperature, reasons for throttling.

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
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
pub struct Telemetry {
    nvml: Nvml,
    uuid: String,
}

impl Telemetry {
    /// For the device of this identity (`GPU-xxxxxxxx-…`).
    ///
    /// # Errors
    /// One sentence that says what is missing, to be shown once; measuring goes on without it.
    pub fn open(uuid: &str) -> Result<Telemetry, String> {
        let missing = |what: String, error: NvmlError| {
            format!("clocks, power and temperature are not recorded: NVML {what} ({error})")
        };
        let telemetry = Telemetry {
            nvml: Nvml::init().map_err(|error| missing("does not start".to_string(), error))?,
            uuid: uuid.to_string(),
        };
        match telemetry.device() {
            Ok(_) => Ok(telemetry),
            Err(error) => Err(missing(format!("has no {uuid}"), error)),
        }
    }

    fn device(&self) -> Result<Device<'_>, NvmlError> {
        self.nvml.device_by_uuid(self.uuid.as_str())
    }

    pub(crate) fn read(&self) -> Reading {
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
        let Ok(device) = self.device() else {
            return Reading::default();
        };
        // An idle device is no reason.
        let throttle = device.current_throttle_reasons().unwrap_or(ThrottleReasons::NONE) - ThrottleReasons::GPU_IDLE;
        Reading {
            sm_mhz: device.clock_info(Clock::SM).ok(),
            memory_mhz: device.clock_info(Clock::Memory).ok(),
            power_w: device.power_usage().ok().map(watts),
            power_limit_w: device.enforced_power_limit().ok().map(watts),
            temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
            throttle: throttle.iter_names().map(|(name, _)| name.to_string()).collect(),
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
