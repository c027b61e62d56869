//! The families whose kernels have ids: those of GPUs, and the host's.

use flashcore_cpu::CpuConfig;
use flashcore_kernels::family::{Constraint, Lever};
use flashcore_kernels::{FAMILIES, Family};

/// Every family whose kernels have ids.
pub const ALL: [Family; FAMILIES.len() + 1] = {
    let mut all = [CPU; FAMILIES.len() + 1];
    let (gpu, _) = all.split_at_mut(FAMILIES.len());
    gpu.copy_from_slice(&FAMILIES);
    all
};

/// The host's kernels.
pub const CPU: Family = Family {
    name: "cpu",
    levers: &[
        Lever::number("m", &[16, 32, 48, 64, 96, 128, 192, 256, 384, 512]).up_to(CpuConfig::MAX_TILE as u32).named("tile_q", "query rows that a thread takes at a time: more rows stream K and V less often, fewer rows balance better"),
        Lever::number("n", &[16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]).up_to(CpuConfig::MAX_TILE as u32).named("tile_kv", "keys between two updates of the softmax: the tile of scores should stay in the L1 cache"),
    ],
    backward: None,
    constraints: &[
        Constraint {
            lever: "tile_q",
            rule: "tile_q in multiples of 16",
            holds: |&[tile_q, ..]| tile_q.is_multiple_of(CpuConfig::TILE_Q_STEP as u32),
        },
        Constraint {
            lever: "tile_kv",
            rule: "tile_kv in multiples of 4",
            holds: |&[_, tile_kv, ..]| tile_kv.is_multiple_of(CpuConfig::TILE_KV_STEP as u32),
        },
    ],
    tile: |&[tile_q, tile_kv, ..]| tile_q * tile_kv,
    repeated: None,
};
