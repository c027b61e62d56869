//! Named cards: a [`Target`] with clocks, widths and rates, so that plans and predictions need no
//! such card in the machine.

use std::sync::LazyLock;

use serde::{Deserialize, Deserializer, Serialize};

use crate::calibration::{Calibration, MeasuredCard};
use crate::target::Target;

/// Words of a profile. Those of a file are kept until the process ends. By another name than `&str`, which serde would
/// borrow from the file.
type Text = &'static str;

/// The SM clocks of a card.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clocks {
    /// Clock in short or light work, MHz.
    pub highest: f64,
    /// Clock at the power limit in sustained tensor-core work, MHz.
    pub sustained: f64,
    /// Source of the numbers.
    #[serde(deserialize_with = "kept")]
    pub source: Text,
}

/// A named card. Rates are dense, at boost clock, from the source given.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Name on the command line.
    #[serde(deserialize_with = "kept")]
    pub name: Text,
    /// Name on the box.
    #[serde(deserialize_with = "kept")]
    pub title: Text,
    /// Architecture.
    pub target: Target,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Boost clock, MHz: that of the rates.
    pub boost_mhz: u32,
    /// Clocks that predictions take.
    pub clocks: Clocks,
    /// L2 cache, bytes.
    pub l2_bytes: u64,
    /// Device memory bandwidth, GB/s (10^9).
    pub dram_gbps: f64,
    /// Tensor-core rate with fp16 inputs and f32 accumulation, TFLOP/s.
    pub tensor_f16_f32acc_tflops: f64,
    /// Tensor-core rate with fp16 inputs and fp16 accumulation, TFLOP/s.
    pub tensor_f16_f16acc_tflops: f64,
    /// f32 rate outside the tensor cores, TFLOP/s (an FMA counts two).
    pub f32_tflops: f64,
    /// Special-function results (ex2, rcp) per clock per SM.
    pub mufu_per_clock_per_sm: u32,
    /// Power limit, watts.
    pub tdp_watts: u32,
    /// Where the figures come from.
    #[serde(deserialize_with = "kept")]
    pub source: Text,
    /// What was measured on the card, which predictions then take; `None` of every profile that is built in.
    #[serde(skip)]
    pub calibration: Option<&'static Calibration>,
}

fn kept<'de, D: Deserializer<'de>>(from: D) -> Result<Text, D::Error> {
    Ok(String::deserialize(from)?.leak())
}

/// What kernels are chosen for and resolved for: an architecture, and how many SMs the card has.
///
/// ```
/// use flashcore_ir::{Chip, Profile, Target};
/// let pcie = Chip { target: Target::Sm90a, sms: 114 };
/// let h200 = Chip::from(Profile::named("h200").unwrap());
/// assert_ne!(pcie, h200);
/// // An architecture by itself stands for the card of it that is used most.
/// assert_eq!(h200, Chip::from(Target::Sm90a));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Chip {
    /// Architecture.
    pub target: Target,
    /// Streaming multiprocessors. Kernels are right with any number, and fast with this one.
    pub sms: u32,
}

impl From<Target> for Chip {
    /// A100, RTX 3090, L4, H100 and H200, B200, RTX 5090.
    fn from(target: Target) -> Chip {
        let sms = target.usual_sms();
        Chip { target, sms }
    }
}

impl From<&Profile> for Chip {
    fn from(profile: &Profile) -> Chip {
        Chip {
            target: profile.target,
            sms: profile.sms,
        }
    }
}

/// Every profile: a card is added by an object of `profiles.json`. Its `note` is for readers of the file.
pub static PROFILES: LazyLock<Vec<Profile>> = LazyLock::new(|| {
    // Tests read them all.
    serde_json::from_str(include_str!("profiles.json")).unwrap_or_else(|error| panic!("profiles.json: {error}"))
});

impl Profile {
    /// The profile of a name, in any case.
    pub fn named(name: &str) -> Option<&'static Profile> {
        PROFILES.iter().find(|p| p.name.eq_ignore_ascii_case(name))
    }

    /// The profile of a device that has `sms` SMs and that the driver calls `name`, in which words that follow each
    /// other are the profile's name without its hyphens.
    pub fn of_device(name: &str, sms: u32) -> Option<&'static Profile> {
        let words: Vec<String> = name
            .to_ascii_lowercase()
            .split(|c: char| !c.is_ascii_alphanumeric())
            .map(str::to_string)
            .collect();
        let named = |profile: &&Profile| {
            let name = profile.name.replace('-', "");
            (1..=words.len()).any(|count| words.windows(count).any(|run| run.concat() == name))
        };
        PROFILES.iter().find(|profile| profile.sms == sms && named(profile))
    }

    /// The rates that were measured on the card, if it was calibrated.
    pub fn rates(&self) -> Option<&'static MeasuredCard> {
        self.calibration.map(|seen| &seen.rates)
    }

    /// All names, comma-separated, for messages.
    pub fn names() -> String {
        let names: Vec<_> = PROFILES.iter().map(|p| p.name).collect();
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_the_profile_of_their_name_and_size() {
        let of_device = |name, sms| Profile::of_device(name, sms).map(|profile| profile.name);
        assert_eq!(of_device("NVIDIA A100-SXM4-80GB", 108), Some("a100"));
        assert_eq!(of_device("NVIDIA GeForce RTX 4090", 128), Some("rtx4090"));
        assert_eq!(of_device("NVIDIA L40S", 142), Some("l40s"));
        assert_eq!(of_device("NVIDIA L40", 142), None);
        assert_eq!(of_device("NVIDIA A10G", 80), None);
        assert_eq!(of_device("NVIDIA GeForce RTX 5090", 170), Some("rtx5090"));
        // Another card than the SXM one.
        assert_eq!(of_device("NVIDIA H100 PCIe", 114), Some("h100-pcie"));
        assert_eq!(of_device("NVIDIA H100 80GB HBM3", 132), Some("h100"));
        assert_eq!(Profile::named("L4").unwrap().sms, 58);
        assert!(Profile::named("gtx480").is_none());
    }

    /// Rates that a datasheet prints are those of its SMs at its clock: 128 or 64 fused products, and as many FLOPs of
    /// tensor cores as the whitepapers say.
    #[test]
    fn rates_are_those_of_the_sms_at_the_boost_clock() {
        for profile in PROFILES.iter() {
            let clocks = f64::from(profile.sms) * f64::from(profile.boost_mhz) * 1e6;
            let tensor = match profile.target {
                Target::Sm80 => 2048.0,
                Target::Sm90a => 4096.0,
                _ => 1024.0,
            };
            let reached = profile.tensor_f16_f16acc_tflops * 1e12 / clocks / tensor;
            assert!((reached - 1.0).abs() < 0.02, "{}: {reached}", profile.name);
            let halved = profile.tensor_f16_f16acc_tflops / profile.tensor_f16_f32acc_tflops;
            assert!(
                [1.0, 2.0].iter().any(|of| (halved - of).abs() < 0.01),
                "{}: {halved}",
                profile.name
            );
            let lanes = if profile.target == Target::Sm80 { 64.0 } else { 128.0 };
            let reached = profile.f32_tflops * 1e12 / clocks / lanes / 2.0;
            // An H100's f32 rate is at a higher clock.
            assert!((0.98..1.1).contains(&reached), "{}: {reached}", profile.name);
        }
    }
}
