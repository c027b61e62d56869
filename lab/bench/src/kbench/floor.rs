//! What a device can do at most: no kernel is faster than that.

use flashcore_cuda::devices;
use flashcore_ir::{PROFILES, Profile};
use serde::Serialize;

/// Rates that no kernel exceeds, as the judge divides by them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Floor {
    /// What has these rates, for messages.
    pub device: String,
    /// Bytes a µs from memory.
    pub bytes_per_us: f64,
    /// Bytes of the last cache.
    pub cache_bytes: u64,
    /// Bytes a µs from there.
    pub cache_bytes_per_us: f64,
    /// Floating-point operations a µs.
    pub flops_per_us: f64,
}

/// A core reads at most two vectors of 64 bytes a cycle, and does at most 2,048 operations (AMX: 16 x 32 products and
/// sums of bf16, twice), at 6 GHz at most.
const CORE_BYTES_PER_US: f64 = 2.0 * 64.0 * 6e3;
const CORE_FLOPS_PER_US: f64 = 2048.0 * 6e3;
/// An SM takes at most 128 bytes a clock from L2 (`docs/profile.md`).
const SM_BYTES_PER_CLOCK: f64 = 128.0;
/// Products of 8-bit numbers are twice as fast as those of fp16, on chips that have them.
const NARROW: f64 = 2.0;

impl Floor {
    /// Of the judge's device: `cpu`, `cuda`, `cuda:1`. A card that is not known has the rates of the fastest known one.
    pub fn of(device: &str) -> Floor {
        if device == "cpu" {
            let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
            let bytes = cores * CORE_BYTES_PER_US;
            return Floor {
                device: format!("a CPU of {cores} cores"),
                bytes_per_us: bytes,
                cache_bytes: 0,
                cache_bytes_per_us: bytes,
                flops_per_us: cores * CORE_FLOPS_PER_US,
            };
        }
        let ordinal = device.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        let all = devices().unwrap_or_default();
        let here = all.iter().find(|info| info.ordinal == ordinal.unwrap_or(0));
        match here.and_then(|info| Profile::of_device(&info.name, info.multiprocessors)) {
            Some(profile) => Floor::of_card(profile),
            None => {
                let name = here.map_or("an unknown card", |info| info.name.as_str());
                let fastest = PROFILES.iter().map(Floor::of_card).reduce(Floor::faster);
                Floor {
                    device: format!("{name} (taken for the fastest known one)"),
                    ..fastest.unwrap_or_else(|| Floor::of("cpu"))
                }
            }
        }
    }

    fn of_card(profile: &Profile) -> Floor {
        let clocks_per_us = f64::from(profile.boost_mhz) * f64::from(profile.sms);
        Floor {
            device: profile.title.to_string(),
            bytes_per_us: profile.dram_gbps * 1e3,
            cache_bytes: profile.l2_bytes,
            cache_bytes_per_us: SM_BYTES_PER_CLOCK * clocks_per_us,
            flops_per_us: NARROW * profile.tensor_f16_f16acc_tflops.max(profile.tensor_f16_f32acc_tflops) * 1e6,
        }
    }

    /// The larger of each.
    fn faster(self, other: Floor) -> Floor {
        Floor {
            bytes_per_us: self.bytes_per_us.max(other.bytes_per_us),
            cache_bytes: self.cache_bytes.max(other.cache_bytes),
            cache_bytes_per_us: self.cache_bytes_per_us.max(other.cache_bytes_per_us),
            flops_per_us: self.flops_per_us.max(other.flops_per_us),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_a_card_are_those_of_its_profile() {
        let h200 = Floor::of_card(Profile::named("h200").unwrap());
        assert_eq!(h200.bytes_per_us, Profile::named("h200").unwrap().dram_gbps * 1e3);
        assert!(h200.cache_bytes_per_us > h200.bytes_per_us);
        // The small shape's products take 1.3 µs at least where fp16 does 990 TFLOP/s.
        assert!(h200.flops_per_us >= 2.0 * 9e8, "{h200:?}");
        let l4 = Floor::of_card(Profile::named("l4").unwrap());
        assert_eq!(l4.clone().faster(h200.clone()).flops_per_us, h200.flops_per_us);
        assert!(Floor::of("cpu").bytes_per_us >= CORE_BYTES_PER_US);
    }
}
