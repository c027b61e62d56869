//! The family's space: its levers as data.

use super::{COLS, Config, KV_WARPS, MIN_BLOCKS, ROWS, Rescale, STAGES, WARPS};
use crate::space::{Lever, Space};

/// Values of [`Config::splits`] that are searched; all others up to 256 are allowed, and where few queries meet many
/// keys [`Config::split_for`] says which.
const SPLITS: [u32; 6] = [1, 2, 3, 4, 8, 16];

/// Every lever at its first value. No `..` here: a new lever does not compile until it is given one, and
/// belongs into [`LEVERS`] then.
const FIRST: Config = Config {
    rows: ROWS[0],
    cols: COLS[0],
    warps: WARPS[0],
    kv_warps: KV_WARPS[0],
    stages: STAGES[0],
    min_blocks: MIN_BLOCKS[0],
    q_in_registers: false,
    swizzled: false,
    rescale: Rescale::ALL[0],
    pack_heads: false,
    splits: SPLITS[0],
};

const LEVERS: [Lever<Config>; 11] = [
    Lever {
        name: "rows",
        meaning: "query rows per block (Q tile): more rows reuse each key more, fewer rows give more blocks",
        settings: |c| ROWS.map(|rows| Config { rows, ..c }).to_vec(),
        value: |c| c.rows.to_string(),
    },
    Lever {
        name: "cols",
        meaning: "keys per tile (K block): more keys need fewer barriers, fewer keys need less memory and registers",
        settings: |c| COLS.map(|cols| Config { cols, ..c }).to_vec(),
        value: |c| c.cols.to_string(),
    },
    Lever {
        name: "warps",
        meaning: "warps that share the rows of the tile: more warps leave more registers to each",
        settings: |c| WARPS.map(|warps| Config { warps, ..c }).to_vec(),
        value: |c| c.warps.to_string(),
    },
    Lever {
        name: "kv_warps",
        meaning: "warps that share the keys of a tile: for problems with too few rows to fill a GPU",
        settings: |c| KV_WARPS.map(|kv_warps| Config { kv_warps, ..c }).to_vec(),
        value: |c| c.kv_warps.to_string(),
    },
    Lever {
        name: "stages",
        meaning: "tiles of K and V in shared memory: more tiles hide latency and take more memory",
        settings: |c| STAGES.map(|stages| Config { stages, ..c }).to_vec(),
        value: |c| c.stages.to_string(),
    },
    Lever {
        name: "min_blocks",
        meaning: "blocks per SM that the compiler leaves registers for",
        settings: |c| MIN_BLOCKS.map(|min_blocks| Config { min_blocks, ..c }).to_vec(),
        value: |c| c.min_blocks.to_string(),
    },
    Lever {
        name: "q_in_registers",
        meaning: "whether Q stays in registers, or is read from shared memory for every tile",
        settings: |c| {
            [false, true]
                .map(|q_in_registers| Config { q_in_registers, ..c })
                .to_vec()
        },
        value: |c| c.q_in_registers.to_string(),
    },
    Lever {
        name: "swizzled",
        meaning: "whether shared memory is swizzled, so that accesses have no bank conflicts",
        settings: |c| [false, true].map(|swizzled| Config { swizzled, ..c }).to_vec(),
        value: |c| c.swizzled.to_string(),
    },
    Lever {
        name: "rescale",
        meaning: "when O is rescaled to a new row maximum: at every tile, when it rises far, after the fact",
        settings: |c| Rescale::ALL.map(|rescale| Config { rescale, ..c }).to_vec(),
        value: |c| c.rescale.name().to_string(),
    },
    Lever {
        name: "pack_heads",
        meaning: "whether query heads that share K and V share a block: for few queries per head",
        settings: |c| [false, true].map(|pack_heads| Config { pack_heads, ..c }).to_vec(),
        value: |c| c.pack_heads.to_string(),
    },
    Lever {
        name: "splits",
        meaning: "blocks that share the keys of a row (split-KV): more blocks, but a second launch",
        settings: |c| SPLITS.map(|splits| Config { splits, ..c }).to_vec(),
        value: |c| c.splits.to_string(),
    },
];

/// Every config whose levers go together. Tens of thousands: a search draws from them.
pub const SPACE: Space<Config> = Space {
    first: FIRST,
    levers: &LEVERS,
    allowed: |config| config.check_levers().is_ok(),
    constraints: &[
        "16 rows a warp at least",
        "16 keys of a tile a warp of kv_warps at least",
        "2 to 16 warps a block",
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_config_has_an_id_of_its_own() {
        for config in SPACE.configs().step_by(97) {
            assert_eq!(Config::from_id(&config.id()), Some(config));
        }
    }
}
