//! The family's space: its levers as data. Both rungs are one space: where there is no tile, there is `naive`.

use super::common::Access;
use super::{Config, naive, tiled};
use crate::space::{Lever, Space};

/// Threads of a warp.
const WARP: u32 = 32;
/// Warps a block: those of `naive`, whose last two `tiled` has too.
const WARPS: [u32; 3] = [
    naive::THREADS[0] / WARP,
    naive::THREADS[1] / WARP,
    naive::THREADS[2] / WARP,
];

/// A config from the values of the three levers.
fn config(tile: Option<(u32, u32)>, warps: u32, vector_bytes: u32) -> Config {
    match tile {
        None => Config::Naive(naive::Levers {
            threads: warps * WARP,
            vector_bytes,
        }),
        Some((rows, cols)) => Config::Tiled(tiled::Levers {
            rows,
            cols,
            warps,
            vector_bytes,
        }),
    }
}

/// The values of the three levers.
fn values(config: &Config) -> (Option<(u32, u32)>, u32, u32) {
    match config {
        Config::Naive(levers) => (None, levers.threads / WARP, levers.vector_bytes),
        Config::Tiled(levers) => (Some((levers.rows, levers.cols)), levers.warps, levers.vector_bytes),
    }
}

const LEVERS: [Lever<Config>; 3] = [
    Lever {
        name: "tile",
        meaning: "query rows per block and keys per tile: larger tiles reuse more, smaller ones need less; or no tile",
        settings: |c| {
            let (_, warps, vector_bytes) = values(&c);
            let tiles = [None].into_iter().chain(tiled::TILES.map(Some));
            tiles.map(|tile| config(tile, warps, vector_bytes)).collect()
        },
        value: |c| {
            values(c)
                .0
                .map_or("naive".to_string(), |(rows, cols)| format!("m{rows}n{cols}"))
        },
    },
    Lever {
        name: "warps",
        meaning: "warps per block: more warps share the rows, and each reuses less",
        settings: |c| {
            let (tile, _, vector_bytes) = values(&c);
            WARPS.map(|warps| config(tile, warps, vector_bytes)).to_vec()
        },
        value: |c| values(c).1.to_string(),
    },
    Lever {
        name: "vector_bytes",
        meaning: "bytes per memory access: wider accesses are fewer instructions and need aligned rows",
        settings: |c| Access::WIDTHS.map(|bytes| c.with_vector_bytes(bytes)).to_vec(),
        value: |c| c.vector_bytes().to_string(),
    },
];

/// Every config of the family.
pub const SPACE: Space<Config> = Space {
    first: Config::Naive(naive::Levers {
        threads: naive::THREADS[0],
        vector_bytes: Access::WIDTHS[0],
    }),
    levers: &LEVERS,
    allowed: |config| match config {
        Config::Naive(_) => true,
        Config::Tiled(levers) => tiled::WARPS.contains(&levers.warps),
    },
    constraints: &["4 or 8 warps a tile"],
};
