//! The state of the device while it was measured: clocks, power, temperature, reasons for throttling.

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
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

impl Reading {
    /// Whether something holds the clocks down that an idle GPU does not have.
    pub fn throttled(&self) -> bool {
        !self.throttle.is_empty()
    }
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
pub struct NvmlTelemetry {
    nvml: Nvml,
    uuid: String,
}

impl NvmlTelemetry {
    /// The library, for the device of this identity (`GPU-xxxxxxxx-…`).
    ///
    /// # Errors
    /// One sentence that says what is missing, to be shown once; measuring goes on without it.
    pub fn open(uuid: &str) -> Result<NvmlTelemetry, String> {
        // The plain name exists only where development files are installed.
        let nvml = Nvml::init()
            .or_else(|_| Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init())
            .map_err(|error| format!("clocks, power and temperature are not recorded: NVML is not there ({error})"))?;
        nvml.device_by_uuid(uuid)
            .map_err(|error| format!("clocks, power and temperature are not recorded: NVML has no {uuid} ({error})"))?;
        Ok(NvmlTelemetry {
            nvml,
            uuid: uuid.to_string(),
        })
    }
}

impl Telemetry for NvmlTelemetry {
    fn read(&mut self) -> Option<Reading> {
        let device = self.nvml.device_by_uuid(self.uuid.as_str()).ok()?;
        let idle = ThrottleReasons::GPU_IDLE;
        let throttle = device.current_throttle_reasons().ok().map(|reasons| reasons - idle);
        Some(Reading {
            sm_mhz: device.clock_info(Clock::SM).ok(),
            memory_mhz: device.clock_info(Clock::Memory).ok(),
            power_w: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
            power_limit_w: device
                .enforced_power_limit()
                .ok()
                .map(|milliwatts| f64::from(milliwatts) / 1e3),
            temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
            throttle: throttle
                .into_iter()
                .flat_map(|reasons| {
                    reasons
                        .iter_names()
                        .map(|(name, _)| name.to_string())
                        .collect::<Vec<_>>()
                })
                .collect(),
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
