//! How many blocks of a kernel an SM holds at once.

use flashcore_ir::Limits;
use serde::Serialize;

/// Blocks of a kernel that fit on one SM at once, and what stops the next one.
///
/// `registers` is per thread as the compiler reports it; unknown registers are passed as 0 and
/// do not limit.
pub fn occupancy(limits: &Limits, threads: u32, registers: u32, shared_bytes: u32) -> Occupancy {
    let warps = threads.div_ceil(32);
    let per_warp = (registers * 32).next_multiple_of(limits.register_unit_per_warp.max(1));
    let per_partition = limits.registers_per_sm / limits.partitions_per_sm;
    // A warp's registers lie in one partition, so what is left over in each is lost.
    let warps_by_registers = match per_partition.checked_div(per_warp) {
        Some(warps) => warps * limits.partitions_per_sm,
        None => u32::MAX,
    };
    // A foreign kernel may ask for anything.
    let shared = shared_bytes.saturating_add(limits.shared_reserved_per_block);
    let shared = shared.checked_next_multiple_of(128).unwrap_or(u32::MAX);
    let candidates = [
        (limits.blocks_per_sm, "blocks per SM"),
        (
            limits.threads_per_sm / warps.saturating_mul(32).max(1),
            "threads per SM",
        ),
        (warps_by_registers / warps.max(1), "registers"),
        (limits.shared_per_sm / shared.max(1), "shared memory"),
    ];
    let (blocks, limited_by) = candidates.into_iter().min_by_key(|c| c.0).unwrap_or((0, "nothing"));
    Occupancy {
        blocks_per_sm: blocks,
        warps_per_sm: blocks * warps,
        max_warps_per_sm: limits.threads_per_sm / 32,
        limited_by,
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
    use flashcore_ir::Target;

    use super::*;

    #[test]
    fn occupancy_names_what_binds() {
        let limits = Target::Sm89.limits();
        assert_eq!(occupancy(&limits, 128, 255, 0).limited_by, "registers");
        assert_eq!(occupancy(&limits, 128, 32, 60_000).limited_by, "shared memory");
        assert_eq!(occupancy(&limits, 1024, 32, 0).blocks_per_sm, 1);
        // Whatever a launch asks for.
        assert_eq!(occupancy(&limits, u32::MAX, 32, u32::MAX).blocks_per_sm, 0);
    }

    /// Blocks an SM by NVIDIA's own calculator (`cuda_occupancy.h` of CUDA 13.0, all shared memory
    /// carved out), for each of these (threads, registers, dynamic shared bytes).
    #[test]
    fn occupancy_is_what_cuda_computes() {
        let cases = [
            (32, 32, 0),
            (32, 96, 0), // 20, not 21: the registers left over in each partition are lost
            (64, 72, 1024),
            (96, 104, 3000),
            (128, 24, 33_000),
            (128, 32, 0),
            (128, 64, 16_384),
            (128, 168, 49_152),
            (192, 80, 20_000),
            (256, 64, 40_000),
            (256, 255, 0),
            (384, 168, 98_304),
            (640, 40, 0),
            (1024, 32, 101_376),
            (1024, 65, 0),
        ];
        let a100 = [32, 20, 14, 5, 4, 16, 8, 3, 4, 4, 1, 1, 2, 1, 0];
        let consumer = [24, 20, 14, 5, 3, 12, 5, 2, 4, 2, 1, 1, 2, 1, 0];
        let hopper = [32, 20, 14, 5, 6, 16, 8, 3, 4, 4, 1, 1, 2, 2, 0];
        let mut ampere_consumer = consumer;
        (ampere_consumer[0], ampere_consumer[1]) = (16, 16);
        for (target, blocks) in [
            (Target::Sm80, a100),
            (Target::Sm86, ampere_consumer),
            (Target::Sm89, consumer),
            (Target::Sm90a, hopper),
            (Target::Sm100, hopper),
            (Target::Sm120, consumer),
        ] {
            for ((threads, registers, shared), blocks) in cases.into_iter().zip(blocks) {
                let got = occupancy(&target.limits(), threads, registers, shared);
                assert_eq!(
                    got.blocks_per_sm, blocks,
                    "{target}: {threads} threads, {registers} registers, {shared} B"
                );
                assert_eq!(got.warps_per_sm, blocks * threads / 32);
            }
        }
    }
}
