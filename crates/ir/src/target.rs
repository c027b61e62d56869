//! Architectures and their limits.
//!
//! Limits are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute
//! Capability" (CUDA 13), and of the PTX ISA for instruction availability.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What an instruction needs: a PTX ISA version and an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    /// PTX ISA version, `(major, minor)`.
    pub ptx: (u32, u32),
    /// Compute capability times ten.
    pub sm: u32,
}

impl Requirement {
    /// The floor of the whole language: sm_80, first assembled by PTX 7.0. 7.1 is asked for because
    /// drivers from then on report JIT errors by line.
    pub const BASE: Requirement = Requirement::new((7, 1), 80);

    /// A requirement of PTX `ptx` on `sm` (compute capability times ten) or newer.
    pub const fn new(ptx: (u32, u32), sm: u32) -> Requirement {
        Requirement { ptx, sm }
    }

    /// The stricter of the two in both respects.
    pub fn max(self, other: Requirement) -> Requirement {
        Requirement {
            ptx: self.ptx.max(other.ptx),
            sm: self.sm.max(other.sm),
        }
    }
}

/// An architecture that kernels are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Turing. Known so that it can be refused by name: it has no cp.async and no bf16.
    Sm75,
    /// Ampere, data centre (A100).
    Sm80,
    /// Ampere, consumer (RTX 30, A10).
    Sm86,
    /// Ada (RTX 40, L4, L40).
    Sm89,
    /// Hopper with its architecture-specific instructions (H100, H200).
    Sm90a,
    /// Blackwell, data centre (B200).
    Sm100,
    /// Blackwell, consumer (RTX 50).
    Sm120,
}

/// What a block and an SM of a [`Target`] may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Most threads a block.
    pub threads_per_block: u32,
    /// Most threads resident on an SM.
    pub threads_per_sm: u32,
    /// Most blocks resident on an SM.
    pub blocks_per_sm: u32,
    /// Named barriers a block.
    pub barriers_per_block: u32,
    /// Most blocks a cluster (1: no clusters).
    pub cluster_blocks: u32,
}

impl Target {
    /// Every target, oldest first.
    pub const ALL: [Target; 7] = [
        Target::Sm75,
        Target::Sm80,
        Target::Sm86,
        Target::Sm89,
        Target::Sm90a,
        Target::Sm100,
        Target::Sm120,
    ];

    /// Compute capability times ten: 89 for sm_89.
    pub const fn sm(self) -> u32 {
        match self {
            Target::Sm75 => 75,
            Target::Sm80 => 80,
            Target::Sm86 => 86,
            Target::Sm89 => 89,
            Target::Sm90a => 90,
            Target::Sm100 => 100,
            Target::Sm120 => 120,
        }
    }

    /// What ptxas calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Sm75 => "sm_75",
            Target::Sm80 => "sm_80",
            Target::Sm86 => "sm_86",
            Target::Sm89 => "sm_89",
            Target::Sm90a => "sm_90a",
            Target::Sm100 => "sm_100",
            Target::Sm120 => "sm_120",
        }
    }

    /// The target of a name such as `sm_89`, `sm89`, `8.9`, `89` or `sm_90`.
    pub fn from_name(name: &str) -> Option<Target> {
        let digits: String = name
            .trim_start_matches("sm")
            .chars()
            .filter(char::is_ascii_digit)
            .collect();
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
        let (shared_per_block_kb, shared_per_sm_kb, threads_per_sm, blocks_per_sm) = match self {
            Target::Sm75 => (64, 64, 1024, 16),
            Target::Sm80 => (163, 164, 2048, 32),
            Target::Sm86 => (99, 100, 1536, 16),
            Target::Sm89 => (99, 100, 1536, 24),
            Target::Sm90a | Target::Sm100 => (227, 228, 2048, 32),
            Target::Sm120 => (99, 100, 1536, 24),
        };
        Limits {
            static_shared_per_block: 48 * 1024,
            shared_per_block: shared_per_block_kb * 1024,
            shared_per_sm: shared_per_sm_kb * 1024,
            shared_reserved_per_block: if self.sm() >= 80 { 1024 } else { 0 },
            registers_per_sm: 65_536,
            registers_per_thread: 255,
            register_unit_per_warp: 256,
            threads_per_block: 1024,
            threads_per_sm,
            blocks_per_sm,
            barriers_per_block: 16,
            cluster_blocks: if self.sm() >= 90 { 8 } else { 1 },
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Limits {
    /// Blocks of a kernel that fit on one SM at once, and what stops the next one.
    ///
    /// `registers` is per thread as the compiler reports it; unknown registers are passed as 0 and
    /// do not limit.
    pub fn occupancy(&self, threads: u32, registers: u32, shared_bytes: u32) -> Occupancy {
        let warps = threads.div_ceil(32);
        let per_warp = (registers * 32).next_multiple_of(self.register_unit_per_warp.max(1));
        let shared = (shared_bytes + self.shared_reserved_per_block).next_multiple_of(128);
        let candidates = [
            (self.blocks_per_sm, "blocks per SM"),
            (self.threads_per_sm / (warps * 32).max(1), "threads per SM"),
            (
                self.registers_per_sm.checked_div(per_warp * warps).unwrap_or(u32::MAX),
                "registers",
            ),
            (self.shared_per_sm / shared.max(1), "shared memory"),
        ];
        let (blocks, limited_by) = candidates.into_iter().min_by_key(|c| c.0).unwrap_or((0, "nothing"));
        Occupancy {
            blocks_per_sm: blocks,
            warps_per_sm: blocks * warps,
            max_warps_per_sm: self.threads_per_sm / 32,
            limited_by,
        }
    }
}

/// How many blocks an SM holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Occupancy {
    /// Resident blocks.
    pub blocks_per_sm: u32,
    /// Resident warps.
    pub warps_per_sm: u32,
    /// Warps an SM could hold.
    pub max_warps_per_sm: u32,
    /// The resource that runs out first.
    pub limited_by: &'static str,
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
        assert_eq!(Target::from_name("gfx942"), None);
    }

    #[test]
    fn occupancy_names_what_binds() {
        let limits = Target::Sm89.limits();
        assert_eq!(limits.occupancy(128, 255, 0).limited_by, "registers");
        assert_eq!(limits.occupancy(128, 32, 60_000).limited_by, "shared memory");
        assert_eq!(limits.occupancy(1024, 32, 0).blocks_per_sm, 1);
    }
}
