//! Named cards: a [`Target`] with clocks, widths and rates, so that plans and predictions need no
//! such card in the machine.

use serde::Serialize;

use crate::target::Target;

/// A named card. Rates are dense, at boost clock, from the source given.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// Name on the command line.
    pub name: &'static str,
    /// Name on the box.
    pub title: &'static str,
    /// Architecture.
    pub target: Target,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Boost clock, MHz.
    pub boost_mhz: u32,
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
    pub source: &'static str,
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

const H100: Profile = Profile {
    name: "h100",
    title: "NVIDIA H100 SXM5 80GB",
    target: Target::Sm90a,
    sms: 132,
    boost_mhz: 1830,
    l2_bytes: 50 << 20,
    dram_gbps: 3350.0,
    tensor_f16_f32acc_tflops: 989.4,
    tensor_f16_f16acc_tflops: 989.4,
    f32_tflops: 66.9,
    mufu_per_clock_per_sm: 16,
    tdp_watts: 700,
    source: "NVIDIA H100 datasheet; H100 whitepaper, table 2",
};

/// Every profile, by name.
pub const PROFILES: [Profile; 5] = [
    Profile {
        name: "l4",
        title: "NVIDIA L4",
        target: Target::Sm89,
        sms: 58,
        boost_mhz: 2040,
        l2_bytes: 48 << 20,
        dram_gbps: 300.0,
        tensor_f16_f32acc_tflops: 121.0,
        tensor_f16_f16acc_tflops: 121.0,
        f32_tflops: 30.3,
        mufu_per_clock_per_sm: 16,
        tdp_watts: 72,
        source: "NVIDIA L4 datasheet (tensor rates there are with sparsity: halved); Ada whitepaper for SM rates",
    },
    Profile {
        name: "a100",
        title: "NVIDIA A100 SXM4 80GB",
        target: Target::Sm80,
        sms: 108,
        boost_mhz: 1410,
        l2_bytes: 40 << 20,
        dram_gbps: 2039.0,
        tensor_f16_f32acc_tflops: 312.0,
        tensor_f16_f16acc_tflops: 312.0,
        f32_tflops: 19.5,
        mufu_per_clock_per_sm: 16,
        tdp_watts: 400,
        source: "NVIDIA A100 datasheet; A100 whitepaper",
    },
    Profile {
        name: "rtx4090",
        title: "NVIDIA GeForce RTX 4090",
        target: Target::Sm89,
        sms: 128,
        boost_mhz: 2520,
        l2_bytes: 72 << 20,
        dram_gbps: 1008.0,
        tensor_f16_f32acc_tflops: 165.2,
        tensor_f16_f16acc_tflops: 330.3,
        f32_tflops: 82.6,
        mufu_per_clock_per_sm: 16,
        tdp_watts: 450,
        source: "NVIDIA Ada GPU architecture whitepaper, table 2",
    },
    H100,
    Profile {
        name: "h200",
        title: "NVIDIA H200 SXM 141GB",
        l2_bytes: 60 << 20,
        dram_gbps: 4800.0,
        source: "NVIDIA H200 datasheet; SMs and L2 as the driver reports them",
        ..H100
    },
];

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
            words.iter().any(|word| word == profile.name) || words.windows(2).any(|pair| pair.concat() == profile.name)
        };
        PROFILES.iter().find(|profile| profile.sms == sms && named(profile))
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
        assert_eq!(of_device("NVIDIA L40S", 142), None);
        // Another card than the SXM one.
        assert_eq!(of_device("NVIDIA H100 PCIe", 114), None);
        assert_eq!(Profile::named("L4").unwrap().sms, 58);
        assert!(Profile::named("gtx480").is_none());
    }
}
