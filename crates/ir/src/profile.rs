//! Named cards: a [`Target`] with clocks, widths and rates, so that plans and predictions need no
//! such card in the machine.

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

impl Clocks {
    /// The boost clock of the datasheet, and 85 % of it in sustained work.
    const fn assumed(boost_mhz: u32) -> Clocks {
        Clocks {
            highest: boost_mhz as f64,
            sustained: 0.85 * boost_mhz as f64,
            source: "boost clock of the datasheet; 85 % of it at the power limit is an assumption",
        }
    }
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

impl Chip {
    /// A chip with a multiprocessor for every tile: each has a block by itself, as tools that read work lists want it.
    pub const fn with_one_tile_each(target: Target) -> Chip {
        Chip { target, sms: u32::MAX }
    }
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

const L4: Profile = Profile {
    name: "l4",
    title: "NVIDIA L4",
    target: Target::Sm89,
    sms: 58,
    boost_mhz: 2040,
    clocks: Clocks {
        highest: 2040.0,
        sustained: 0.6 * 2040.0,
        source: "boost clock of the datasheet; 60 % of it at 72 W in tensor-core work is an assumption",
    },
    l2_bytes: 48 << 20,
    dram_gbps: 300.0,
    tensor_f16_f32acc_tflops: 121.0,
    tensor_f16_f16acc_tflops: 121.0,
    f32_tflops: 30.3,
    mufu_per_clock_per_sm: 16,
    tdp_watts: 72,
    source: "NVIDIA L4 datasheet (tensor rates there are with sparsity: halved); Ada whitepaper for SM rates",
    calibration: None,
};

// 1,024 FLOPs a clock of each of 72 SMs, with sums of either kind: GA102 of the data centre is not halved.
const A10: Profile = Profile {
    name: "a10",
    title: "NVIDIA A10",
    target: Target::Sm86,
    sms: 72,
    boost_mhz: 1695,
    clocks: Clocks::assumed(1695),
    l2_bytes: 6 << 20,
    dram_gbps: 600.0,
    tensor_f16_f32acc_tflops: 125.0,
    tensor_f16_f16acc_tflops: 125.0,
    f32_tflops: 31.2,
    mufu_per_clock_per_sm: 16,
    tdp_watts: 150,
    source: "NVIDIA A10 datasheet; GA102 whitepaper for L2, and for f32 sums at the full rate (A40)",
    calibration: None,
};

// Dense rates are printed as 362.05, and those with sparsity as 733: half of that is 366. No datasheet has the L2.
const L40S: Profile = Profile {
    name: "l40s",
    title: "NVIDIA L40S",
    target: Target::Sm89,
    sms: 142,
    boost_mhz: 2520,
    clocks: Clocks::assumed(2520),
    l2_bytes: 96 << 20,
    dram_gbps: 864.0,
    tensor_f16_f32acc_tflops: 362.05,
    tensor_f16_f16acc_tflops: 362.05,
    f32_tflops: 91.6,
    mufu_per_clock_per_sm: 16,
    tdp_watts: 350,
    source: "NVIDIA L40S datasheet; Ada whitepaper for the boost clock, and L2 of a whole AD102",
    calibration: None,
};

const RTX3090: Profile = Profile {
    name: "rtx3090",
    title: "NVIDIA GeForce RTX 3090",
    target: Target::Sm86,
    sms: 82,
    boost_mhz: 1695,
    clocks: Clocks::assumed(1695),
    l2_bytes: 6 << 20,
    dram_gbps: 936.0,
    tensor_f16_f32acc_tflops: 71.0,
    tensor_f16_f16acc_tflops: 142.0,
    f32_tflops: 35.6,
    mufu_per_clock_per_sm: 16,
    tdp_watts: 350,
    source: "NVIDIA Ampere GA102 GPU architecture whitepaper",
    calibration: None,
};

const RTX4090: Profile = Profile {
    name: "rtx4090",
    title: "NVIDIA GeForce RTX 4090",
    target: Target::Sm89,
    sms: 128,
    boost_mhz: 2520,
    clocks: Clocks::assumed(2520),
    l2_bytes: 72 << 20,
    dram_gbps: 1008.0,
    tensor_f16_f32acc_tflops: 165.2,
    tensor_f16_f16acc_tflops: 330.3,
    f32_tflops: 82.6,
    mufu_per_clock_per_sm: 16,
    tdp_watts: 450,
    source: "NVIDIA Ada GPU architecture whitepaper, table 2",
    calibration: None,
};

const RTX5090: Profile = Profile {
    name: "rtx5090",
    title: "NVIDIA GeForce RTX 5090",
    target: Target::Sm120,
    sms: 170,
    boost_mhz: 2407,
    clocks: Clocks::assumed(2407),
    l2_bytes: 96 << 20,
    dram_gbps: 1792.0,
    tensor_f16_f32acc_tflops: 209.5,
    tensor_f16_f16acc_tflops: 419.0,
    f32_tflops: 104.8,
    mufu_per_clock_per_sm: 16,
    tdp_watts: 575,
    source: "NVIDIA RTX Blackwell GPU architecture whitepaper",
    calibration: None,
};

const A100: Profile = Profile {
    name: "a100",
    title: "NVIDIA A100 SXM4 80GB",
    target: Target::Sm80,
    sms: 108,
    boost_mhz: 1410,
    clocks: Clocks::assumed(1410),
    l2_bytes: 40 << 20,
    dram_gbps: 2039.0,
    tensor_f16_f32acc_tflops: 312.0,
    tensor_f16_f16acc_tflops: 312.0,
    f32_tflops: 19.5,
    mufu_per_clock_per_sm: 16,
    tdp_watts: 400,
    source: "NVIDIA A100 datasheet; A100 whitepaper",
    calibration: None,
};

const H100_PCIE: Profile = Profile {
    name: "h100-pcie",
    title: "NVIDIA H100 PCIe 80GB",
    target: Target::Sm90a,
    sms: 114,
    boost_mhz: 1620,
    clocks: Clocks {
        highest: 1755.0,
        sustained: 0.85 * 1620.0,
        source: "clocks of the H100 whitepaper for f32 and for tensor cores; 85 % of the latter is an assumption",
    },
    l2_bytes: 50 << 20,
    dram_gbps: 2000.0,
    tensor_f16_f32acc_tflops: 756.5,
    tensor_f16_f16acc_tflops: 756.5,
    f32_tflops: 51.2,
    mufu_per_clock_per_sm: 16,
    tdp_watts: 350,
    source: "NVIDIA H100 datasheet; H100 whitepaper, table 2",
    calibration: None,
};

const H100: Profile = Profile {
    name: "h100",
    title: "NVIDIA H100 SXM5 80GB",
    target: Target::Sm90a,
    sms: 132,
    boost_mhz: 1830,
    clocks: Clocks {
        source: "assumed to equal the H200, which has the same processor and power limit",
        ..H200_CLOCKS
    },
    l2_bytes: 50 << 20,
    dram_gbps: 3350.0,
    tensor_f16_f32acc_tflops: 989.4,
    tensor_f16_f16acc_tflops: 989.4,
    f32_tflops: 66.9,
    mufu_per_clock_per_sm: 16,
    tdp_watts: 700,
    source: "NVIDIA H100 datasheet; H100 whitepaper, table 2",
    calibration: None,
};

const H200_CLOCKS: Clocks = Clocks {
    highest: 1980.0,
    sustained: 1550.0,
    source: "observed on an H200: 1,980 MHz in short kernels, 1.5 to 1.6 GHz in sustained attention",
};

const H200: Profile = Profile {
    name: "h200",
    title: "NVIDIA H200 SXM 141GB",
    clocks: H200_CLOCKS,
    l2_bytes: 60 << 20,
    dram_gbps: 4800.0,
    source: "NVIDIA H200 datasheet; SMs and L2 as the driver reports them",
    ..H100
};

/// Every profile, by name. A card is added by a constant and its place here.
pub const PROFILES: [Profile; 10] = [L4, A10, L40S, RTX3090, RTX4090, RTX5090, A100, H100_PCIE, H100, H200];

impl Profile {
    /// The profile of a name, in any case.
    pub fn named(name: &str) -> Option<&'static Profile> {
        PROFILES.iter().find(|p| p.name.eq_ignore_ascii_case(name))
    }

    /// The profile of a device that the driver calls `name` and that has `sms` SMs.
    pub fn of_device(name: &str, sms: u32) -> Option<&'static Profile> {
        let words: Vec<String> = name
            .to_ascii_lowercase()
            .split(|c: char| !c.is_ascii_alphanumeric())
            .map(str::to_string)
            .collect();
        let named = |profile: &&Profile| {
            let name = profile.name.replace('-', "");
            words.contains(&name) || words.windows(2).any(|pair| pair.concat() == name)
        };
        PROFILES.iter().find(|profile| profile.sms == sms && named(profile))
    }

    /// The rates that were measured on the card, if it was calibrated.
    pub fn rates(&self) -> Option<&'static MeasuredCard> {
        self.calibration.map(|seen| &seen.rates)
    }

    /// All names, comma-separated, for messages.
    pub fn names() -> String {
        PROFILES.map(|p| p.name).join(", ")
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
        for profile in PROFILES {
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
