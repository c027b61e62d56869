//! What the microbenchmarks said of a device, kept as a small JSON file a device and used by later runs: only where
//! device, driver and microbenchmarks are the same.

use std::path::{Path, PathBuf};

use flashcore_check::cost::{MeasuredCard, Rates};
use flashcore_ir::{Profile, Target, files};
use serde::{Deserialize, Serialize};

use super::{Scale, Unit, revision};
use crate::{BenchError, DeviceIdentity, Result, RunIdentity, json_file};

/// Version of the file's form.
pub const RATES_SCHEMA: u32 = 2;

/// What one microbenchmark said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRate {
    /// Its name.
    pub name: String,
    /// What it measures.
    pub about: String,
    /// The rate, by the median of the times.
    pub value: f64,
    /// Of what.
    pub unit: Unit,
    /// The 99 % interval of the median.
    pub interval: [f64; 2],
    /// What nine tenths of the samples stay above, and below.
    pub spread: [f64; 2],
    /// Length of a launch, µs, median.
    pub micros: f64,
    /// Samples.
    pub samples: usize,
    /// Registers a thread.
    pub registers: u32,
    /// SHA-256 of the module.
    pub module: String,
}

/// What a device gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceRates {
    /// [`RATES_SCHEMA`].
    pub schema: u32,
    /// Which device, build and machine, and when.
    pub run: RunIdentity,
    /// Identity of the microbenchmarks.
    pub micro: String,
    /// SM clock while it was measured, MHz, by the chain of fused products.
    pub mhz: f64,
    /// The same by NVML, lowest and highest; `None` where it cannot be read.
    pub nvml_mhz: Option<[u32; 2]>,
    /// Most power drawn, W, where it can be read.
    pub power_w: Option<f64>,
    /// What held the clocks down meanwhile.
    pub throttle: Vec<String>,
    /// Seconds it took, compiling included.
    pub seconds: f64,
    /// By microbenchmark, in their order.
    pub rates: Vec<MeasuredRate>,
}

impl DeviceRates {
    /// The rate of a microbenchmark.
    pub fn of(&self, name: &str) -> Option<f64> {
        self.rates.iter().find(|rate| rate.name == name).map(|rate| rate.value)
    }

    /// What the cost model takes from it. Rates of L2, launches and FMAs were fitted together with the model's own
    /// constants, so that on an H200 it does worse by what microbenchmarks of them say (docs/cost-model.md).
    pub fn card(&self) -> MeasuredCard {
        let address = Rates::of(Target::Sm90a).latency.arithmetic;
        // The chain's own instruction that works the address out is no part of a load.
        let load = |name: &str| self.of(name).map(|clocks| clocks - address);
        let device = &self.run.device;
        MeasuredCard {
            source: format!("{}, driver {}, {}", device.name, device.driver, self.run.revision),
            mhz: Some(self.mhz),
            dram_gbps: self.of("copy"),
            shared_bytes: self.of("shared-16"),
            mufu: self.of("ex2"),
            tensor_f32: self.of("mma-f32"),
            tensor_f16: self.of("mma-f16"),
            tensor_wgmma: self.of("wgmma-f16"),
            tensor_e4m3: self.of("wgmma-e4m3"),
            mufu_latency: self.of("ex2-chain"),
            shared_latency: load("shared-chain"),
            l2_latency: load("l2-chain"),
            mma_latency: self.of("mma-chain"),
            barrier_latency: self.of("barrier"),
        }
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<DeviceRates> {
        let wrong = |reason: String| unusable(path, reason);
        let read = json_file::read::<serde_json::Value>(path, files::SMALL);
        let value = read.map_err(|error| wrong(error.to_string()))?;
        // Of another schema nothing else need be as it is now.
        let schema = value.get("schema").and_then(serde_json::Value::as_u64);
        if let Some(found) = schema.filter(|schema| *schema != u64::from(RATES_SCHEMA)) {
            return Err(wrong(format!("schema {found}; this build reads {RATES_SCHEMA}")));
        }
        let rates: DeviceRates = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        if !(rates.mhz.is_finite() && rates.mhz > 0.0) || rates.rates.iter().any(|rate| !is_rate(rate.value)) {
            return Err(wrong("a rate that is no positive number".to_string()));
        }
        Ok(rates)
    }

    /// Whether it was measured on this device with this driver, by the microbenchmarks of this build.
    ///
    /// # Errors
    /// What differs; `path` is for the message.
    pub fn holds_on(&self, device: &DeviceIdentity, path: &Path) -> Result<()> {
        let measured = &self.run.device;
        let micro = revision_of(device).unwrap_or_default();
        let same = [
            ("device", &measured.uuid, &device.uuid),
            ("driver", &measured.driver, &device.driver),
            ("microbenchmarks", &self.micro, &micro),
        ];
        let Some((what, then, now)) = same.into_iter().find(|(_, then, now)| then != now) else {
            return Ok(());
        };
        let reason = format!("it was measured with another {what}: {then} then, {now} now");
        Err(unusable(path, reason))
    }

    /// Writes it to its place, or to `path`. A file that is there is replaced at once or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        json_file::write(path, self).map_err(|error| unusable(path, error))
    }
}

fn unusable(path: &Path, reason: impl std::fmt::Display) -> BenchError {
    let path = path.display();
    BenchError::Failed(format!("{path}: {reason}; `flashcore device --measure` measures anew"))
}

fn is_rate(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// Revision of the microbenchmarks as this build would run them on a device; `None` for one that is no GPU served here.
fn revision_of(device: &DeviceIdentity) -> Option<String> {
    let number = device.architecture.strip_prefix("sm_")?.trim_end_matches('a');
    let number: u32 = number.parse().ok()?;
    let target = Target::for_capability(number / 10, number % 10)?;
    revision(target, &Scale::device(device.units, device.l2_bytes)).ok()
}

/// Where the rates of a device are kept: `flashcore/devices/NAME-UUID.json` in `$XDG_DATA_HOME`, or in
/// `~/.local/share`; `None` where there is neither.
pub fn path(device: &DeviceIdentity) -> Option<PathBuf> {
    let data = flashcore::unstable::files::data_folder()?;
    let keep = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = device.name.chars().map(keep).collect();
    Some(data.join("devices").join(format!("{name}-{}.json", device.uuid)))
}

/// The rates that are kept of a device: `None` where it was never measured.
pub fn kept(device: &DeviceIdentity) -> Result<Option<DeviceRates>> {
    let Some(path) = path(device).filter(|path| path.exists()) else {
        return Ok(None);
    };
    let rates = DeviceRates::read(&path)?;
    rates.holds_on(device, &path)?;
    Ok(Some(rates))
}

/// What a microbenchmark would show if a card gave what its profile says and the cost model assumes; `None` where
/// neither says anything.
///
/// ```
/// use flashcore_bench::micro::rates::expected;
/// use flashcore_ir::Profile;
/// let h200 = Profile::named("h200").unwrap();
/// assert_eq!((expected("copy", h200), expected("ex2", h200)), (Some(4800.0), Some(16.0)));
/// assert_eq!(expected("of another build", h200), None);
/// ```
pub fn expected(name: &str, profile: &Profile) -> Option<f64> {
    let rates = Rates::of(profile.target);
    let per_clock = |tflops: f64| tflops * 1e6 / (f64::from(profile.sms) * f64::from(profile.boost_mhz));
    Some(match name {
        "copy" => profile.dram_gbps,
        "shared-16" => 128.0 * rates.passes,
        "ex2" => rates.mufu,
        "mma-f32" | "wgmma-f16" => per_clock(profile.tensor_f16_f32acc_tflops),
        "mma-f16" => per_clock(profile.tensor_f16_f16acc_tflops),
        "wgmma-e4m3" => 2.0 * per_clock(profile.tensor_f16_f32acc_tflops),
        "fma-chain" => rates.latency.arithmetic,
        "ex2-chain" => rates.latency.mufu,
        // An address each.
        "shared-chain" => rates.latency.shared + rates.latency.arithmetic,
        "l2-chain" => rates.latency.l2 + rates.latency.arithmetic,
        "mma-chain" => rates.latency.mma,
        "barrier" => rates.latency.barrier,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h200() -> DeviceIdentity {
        DeviceIdentity {
            device: "cuda:0".to_string(),
            name: "NVIDIA H200".to_string(),
            uuid: "GPU-1".to_string(),
            driver: "580.1/13000".to_string(),
            architecture: "sm_90".to_string(),
            units: 132,
            l2_bytes: 60 << 20,
        }
    }

    fn rates() -> DeviceRates {
        DeviceRates {
            schema: RATES_SCHEMA,
            run: RunIdentity::now(h200()),
            micro: revision_of(&h200()).unwrap(),
            mhz: 1980.0,
            nvml_mhz: Some([1965, 1980]),
            power_w: Some(300.5),
            throttle: Vec::new(),
            seconds: 3.0,
            rates: vec![MeasuredRate {
                name: "copy".to_string(),
                about: "device memory".to_string(),
                value: 4300.0,
                unit: Unit::GigabytesPerSecond,
                interval: [4290.0, 4310.0],
                spread: [4200.0, 4400.0],
                micros: 240.0,
                samples: 12,
                registers: 40,
                module: "00".to_string(),
            }],
        }
    }

    #[test]
    fn what_is_written_is_read_and_holds_where_it_was_measured() {
        let folder = std::env::temp_dir().join(format!("flashcore-rates-{}", std::process::id()));
        let path = folder.join("devices/h200.json");
        let rates = rates();
        rates.write(&path).unwrap();
        let read = DeviceRates::read(&path).unwrap();
        assert_eq!(read, rates);
        assert_eq!((read.of("copy"), read.of("none")), (Some(4300.0), None));
        let card = read.card();
        assert_eq!((card.dram_gbps, card.mhz), (Some(4300.0), Some(1980.0)));
        assert!(card.source.contains("NVIDIA H200"), "{}", card.source);
        read.holds_on(&h200(), &path).unwrap();
        let refused = |change: &dyn Fn(&mut DeviceIdentity)| {
            let mut other = h200();
            change(&mut other);
            read.holds_on(&other, &path).unwrap_err().to_string()
        };
        assert!(refused(&|other| other.uuid = "GPU-2".to_string()).contains("another device"));
        assert!(refused(&|other| other.driver = "590.1/13010".to_string()).contains("another driver"));
        // Another architecture has other microbenchmarks.
        assert!(refused(&|other| other.architecture = "sm_89".to_string()).contains("another microbenchmarks"));
        for (wrong, why) in [("{}", "missing field"), ("", "its JSON is wrong")] {
            std::fs::write(&path, wrong).unwrap();
            let error = DeviceRates::read(&path).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("h200.json"), "{error}");
        }
        let of_before = r#"{"schema": 1, "rates": [{"unit": "µs"}]}"#;
        std::fs::write(&path, of_before).unwrap();
        let error = DeviceRates::read(&path).unwrap_err().to_string();
        assert!(error.contains("schema 1; this build reads 2"), "{error}");
        for (from, to) in [("4300.0", "-1.0"), ("\"schema\":2", "\"schema\":7")] {
            let text = serde_json::to_string(&rates).unwrap();
            assert!(text.contains(from));
            std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
            assert!(DeviceRates::read(&path).is_err(), "{to}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
