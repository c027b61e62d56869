//! Architectures and their limits.
//!
//! Limits are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute
//! Capability" (CUDA 13), and of the PTX ISA for instruction availability.

use serde::{Deserialize, Serialize};

use crate::named::named;

/// What an instruction needs: a PTX ISA version and an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// PTX ISA version, `(major, minor)`.
    pub ptx: (u32, u32),
    /// Compute capability times ten.
    pub sm: u32,
    /// Whether the architecture alone has it and no later one (`sm_90a`).
    pub arch_specific: bool,
}

impl Requirement {
    /// The floor of the whole language: sm_80, and PTX 7.0, the first version that knows it.
    pub const BASE: Requirement = Requirement::new((7, 0), 80);

    /// A requirement of PTX `ptx` on `sm` (compute capability times ten) or newer.
    pub const fn new(ptx: (u32, u32), sm: u32) -> Requirement {
        Requirement {
            ptx,
            sm,
            arch_specific: false,
        }
    }

    /// A requirement of PTX `ptx` on `sm` and nothing else, as wgmma on sm_90a.
    pub const fn arch_specific(ptx: (u32, u32), sm: u32) -> Requirement {
        Requirement {
            arch_specific: true,
            ..Requirement::new(ptx, sm)
        }
    }

    /// The stricter of the two in every respect.
    pub fn max(self, other: Requirement) -> Requirement {
        Requirement {
            ptx: self.ptx.max(other.ptx),
            sm: self.sm.max(other.sm),
            arch_specific: self.arch_specific || other.arch_specific,
        }
    }

    /// What PTX's `.target` calls the architecture: `sm_80`, `sm_90a`.
    pub fn target_name(self) -> String {
        format!("sm_{}{}", self.sm, if self.arch_specific { "a" } else { "" })
    }

    /// Whether code that requires this can be compiled for `target`.
    pub fn is_met_by(self, target: Target) -> bool {
        if self.arch_specific {
            target.name() == self.target_name()
        } else {
            target.sm() >= self.sm
        }
    }
}

named! {
    /// An architecture that kernels are made for.
    #[derive(PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Target {
        /// Turing. Known so that it can be refused by name: it has no cp.async and no bf16.
        Sm75 = "sm_75",
        /// Ampere, data centre (A100).
        Sm80 = "sm_80",
        /// Ampere, consumer (RTX 30, A10).
        Sm86 = "sm_86",
        /// Ada (RTX 40, L4, L40).
        Sm89 = "sm_89",
        /// Hopper with its architecture-specific instructions (H100, H200).
        Sm90a = "sm_90a",
        /// Blackwell, data centre (B200).
        Sm100 = "sm_100",
        /// Blackwell, consumer (RTX 50).
        Sm120 = "sm_120",
    }
}

/// What a block and an SM of a [`Target`] may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Shared memory a block may declare statically, bytes.
    pub static_shared_per_block: u32,
    /// Shared memory a block may use once opted in, bytes.
    pub shared_per_block: u32,
    /// Shared memory of an SM, bytes.
    pub shared_per_sm: u32,
    /// Shared memory the system keeps back from each block, bytes.
    pub shared_reserved_per_block: u32,
    /// 32-bit registers of an SM (and the most a block may use).
    pub registers_per_sm: u32,
    /// Most registers a thread.
    pub registers_per_thread: u32,
    /// Registers are handed out to warps in units of this many.
    pub register_unit_per_warp: u32,
    /// Parts of an SM, each with its share of the registers and its own warps.
    pub partitions_per_sm: u32,
    /// Most threads a block.
    pub threads_per_block: u32,
    /// Most threads resident on an SM.
    pub threads_per_sm: u32,
    /// Most blocks resident on an SM.
    pub blocks_per_sm: u32,
    /// Most blocks a cluster (1: no clusters). More than 8 are not portable: the host must allow
    /// them (`CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED`).
    pub cluster_blocks: u32,
    /// Most blocks of a grid along x, y, z.
    pub grid: [u32; 3],
    /// Most threads of a block along x, y, z.
    pub block: [u32; 3],
}

impl Target {
    /// What is different of each: compute capability times ten, kilobytes of shared memory that a
    /// block and an SM may use, threads and blocks of an SM, blocks of a cluster, and SMs.
    const fn row(self) -> (u32, u32, u32, u32, u32, u32, u32) {
        match self {
            Target::Sm75 => (75, 64, 64, 1024, 16, 1, 40),
            Target::Sm80 => (80, 163, 164, 2048, 32, 1, 108),
            Target::Sm86 => (86, 99, 100, 1536, 16, 1, 82),
            Target::Sm89 => (89, 99, 100, 1536, 24, 1, 58),
            Target::Sm90a => (90, 227, 228, 2048, 32, 16, 132),
            Target::Sm100 => (100, 227, 228, 2048, 32, 16, 148),
            Target::Sm120 => (120, 99, 100, 1536, 24, 8, 170),
        }
    }

    /// SMs of the card of it that is used most: A100, RTX 3090, L4, H100 and H200, B200, RTX 5090.
    pub(crate) const fn usual_sms(self) -> u32 {
        self.row().6
    }

    /// Compute capability times ten: 89 for sm_89.
    pub const fn sm(self) -> u32 {
        self.row().0
    }

    /// What ptxas calls it.
    pub const fn name(self) -> &'static str {
        self.ptx()
    }

    /// The target of a name such as `sm_89`, `sm89`, `8.9`, `89` or `sm_90`.
    pub fn from_name(name: &str) -> Option<Target> {
        let name = name.strip_prefix("sm").unwrap_or(name);
        let name = name.strip_prefix('_').unwrap_or(name);
        let digits = name.strip_suffix('a').unwrap_or(name).replacen('.', "", 1);
        if !digits.chars().all(|c| c.is_ascii_digit()) {
            return None;
        }
        let sm: u32 = digits.parse().ok()?;
        Target::ALL.into_iter().find(|t| t.sm() == sm)
    }

    /// The target whose code runs best on a device of this compute capability, if there is one.
    pub fn for_capability(major: u32, minor: u32) -> Option<Target> {
        let sm = major * 10 + minor;
        // Code for sm_x runs on every later minor version of the same major, and PTX on every later
        // major; architecture-specific code (90a) runs on its own capability only.
        match sm {
            ..75 => None,
            75..80 => Some(Target::Sm75),
            80..86 => Some(Target::Sm80),
            86..89 => Some(Target::Sm86),
            89 => Some(Target::Sm89),
            90 => Some(Target::Sm90a),
            91..120 => Some(Target::Sm100),
            _ => Some(Target::Sm120),
        }
    }

    /// Whether kernels are made for it at all.
    pub const fn is_supported(self) -> bool {
        !matches!(self, Target::Sm75)
    }

    /// Its limits.
    pub const fn limits(self) -> Limits {
        let (sm, shared_per_block_kb, shared_per_sm_kb, threads_per_sm, blocks_per_sm, cluster_blocks, _) = self.row();
        Limits {
            static_shared_per_block: 48 * 1024,
            shared_per_block: shared_per_block_kb * 1024,
            shared_per_sm: shared_per_sm_kb * 1024,
            shared_reserved_per_block: if sm >= 80 { 1024 } else { 0 },
            registers_per_sm: 65_536,
            registers_per_thread: 255,
            register_unit_per_warp: 256,
            partitions_per_sm: 4,
            threads_per_block: 1024,
            threads_per_sm,
            blocks_per_sm,
            cluster_blocks,
            grid: [i32::MAX as u32, 65_535, 65_535],
            block: [1024, 1024, 64],
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl Limits {
    /// Bytes of shared memory that each of `blocks` blocks may use where an SM runs them at a time.
    ///
    /// ```
    /// use flashcore_ir::Target;
    /// assert_eq!(Target::Sm80.limits().shared_per_block_of(2), 164 * 1024 / 2 - 1024);
    /// ```
    pub fn shared_per_block_of(&self, blocks: u32) -> u32 {
        let share = self.shared_per_sm / blocks.max(1);
        share
            .saturating_sub(self.shared_reserved_per_block)
            .min(self.shared_per_block)
    }

    /// Registers that a thread can have at launch where the blocks that an SM runs at a time have
    /// `threads` together: what ptxas allots kernels with `.maxntid` and `.minnctapersm` that set
    /// registers later.
    pub fn launch_registers(&self, threads: u32) -> u32 {
        let partition = self.registers_per_sm / self.partitions_per_sm;
        let warps = threads.div_ceil(32).div_ceil(self.partitions_per_sm).max(1);
        let unit = self.register_unit_per_warp;
        let most = self.registers_per_thread.next_multiple_of(unit / 32);
        (partition / warps / unit * unit / 32).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l4_block_has_101376_bytes() {
        assert_eq!(Target::Sm89.limits().shared_per_block, 101_376);
        assert_eq!(Target::Sm90a.limits().shared_per_block, 232_448);
    }

    #[test]
    fn names_round_trip() {
        for target in Target::ALL {
            assert_eq!(Target::from_name(target.name()), Some(target));
        }
        assert_eq!(Target::from_name("sm_90"), Some(Target::Sm90a));
        assert_eq!(Target::from_name("8.9"), Some(Target::Sm89));
        for name in ["gfx942", "gfx89", "sm_42", "", "sm_", "-89", "99999999999"] {
            assert_eq!(Target::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn requirements_are_met_by_later_targets() {
        let hopper = Requirement::new((7, 8), 90);
        assert!(!hopper.is_met_by(Target::Sm89) && hopper.is_met_by(Target::Sm90a) && hopper.is_met_by(Target::Sm120));
        let wgmma = Requirement::arch_specific((8, 0), 90);
        assert_eq!(
            Target::ALL
                .map(|t| wgmma.is_met_by(t))
                .iter()
                .filter(|&&met| met)
                .count(),
            1
        );
        assert_eq!(Requirement::BASE.max(wgmma), wgmma);
        assert!(Requirement::BASE.is_met_by(Target::Sm120) && !wgmma.is_met_by(Target::Sm120));
        assert_eq!(
            (Requirement::BASE.target_name(), wgmma.target_name()),
            ("sm_80".to_string(), "sm_90a".to_string())
        );
        assert_eq!(wgmma.max(Requirement::new((8, 6), 80)).ptx, (8, 6));
    }

    #[test]
    fn capabilities_find_their_target() {
        for (major, minor, target) in [
            (7, 0, None),
            (7, 5, Some(Target::Sm75)),
            (8, 7, Some(Target::Sm86)),
            (8, 9, Some(Target::Sm89)),
            (9, 0, Some(Target::Sm90a)),
            (10, 3, Some(Target::Sm100)),
            (12, 1, Some(Target::Sm120)),
        ] {
            assert_eq!(Target::for_capability(major, minor), target);
        }
        assert!(!Target::Sm75.is_supported() && Target::Sm80.is_supported());
    }

    #[test]
    fn registers_at_launch_are_those_of_ptxas() {
        let limits = Target::Sm90a.limits();
        assert_eq!(
            [256, 384, 512].map(|threads| limits.launch_registers(threads)),
            [256, 168, 128]
        );
    }
}
