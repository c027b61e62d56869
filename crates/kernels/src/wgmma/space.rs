//! The family's space: its levers as data.

use super::config::{CLUSTERS, COLS, Config, ROWS, STAGES};
use crate::attention::softmax::Rescale;
use crate::space::{Lever, Space};

/// Values of [`Config::splits`] that are searched; all others up to [`MOST_SPLITS`](crate::attention::scheduler::MOST_SPLITS) are allowed.
const SPLITS: [u32; 5] = [1, 2, 3, 4, 8];

/// Every lever at its first value. No `..` here: a new lever does not compile until it is given one, and
/// belongs into [`LEVERS`] then.
const FIRST: Config = Config {
    rows: ROWS[0],
    cols: *COLS.start(),
    stages: STAGES[0],
    cluster: CLUSTERS[0],
    take_turns: false,
    rescale: Rescale::ALL[0],
    splits: SPLITS[0],
    q_in_registers: false,
};

const LEVERS: [Lever<Config>; 8] = [
    Lever {
        name: "rows",
        meaning: "query rows per block (Q tile), 64 per warpgroup: more rows share each K block, with fewer registers each",
        settings: |c| ROWS.map(|rows| Config { rows, ..c }).to_vec(),
        value: |c| c.rows.to_string(),
    },
    Lever {
        name: "cols",
        meaning: "keys per tile (K block): more keys need fewer iterations, and more registers and shared memory",
        settings: |c| COLS.step_by(16).map(|cols| Config { cols, ..c }).collect(),
        value: |c| c.cols.to_string(),
    },
    Lever {
        name: "stages",
        meaning: "tiles of K, and of V, in shared memory: more tiles hide latency and take more memory",
        settings: |c| STAGES.map(|stages| Config { stages, ..c }).to_vec(),
        value: |c| c.stages.to_string(),
    },
    Lever {
        name: "cluster",
        meaning: "blocks that share each copy of K and V (multicast): less traffic, but they wait for each other",
        settings: |c| CLUSTERS.map(|cluster| Config { cluster, ..c }).to_vec(),
        value: |c| c.cluster.to_string(),
    },
    Lever {
        name: "take_turns",
        meaning: "whether warpgroups take turns at the tensor cores (ping-pong)",
        settings: |c| [false, true].map(|take_turns| Config { take_turns, ..c }).to_vec(),
        value: |c| c.take_turns.to_string(),
    },
    Lever {
        name: "rescale",
        meaning: "when O is rescaled to a new row maximum: at every tile, when it rises far, after the fact",
        settings: |c| Rescale::ALL.map(|rescale| Config { rescale, ..c }).to_vec(),
        value: |c| c.rescale.name().to_string(),
    },
    Lever {
        name: "splits",
        meaning: "blocks that share the keys of a Q tile (split-KV): more blocks, but a second launch",
        settings: |c| SPLITS.map(|splits| Config { splits, ..c }).to_vec(),
        value: |c| c.splits.to_string(),
    },
    Lever {
        name: "q_in_registers",
        meaning: "whether Q, or a part of it, stays in registers, or is read from shared memory for every tile",
        settings: |c| {
            [false, true]
                .map(|q_in_registers| Config { q_in_registers, ..c })
                .to_vec()
        },
        value: |c| c.q_in_registers.to_string(),
    },
];

/// Every config whose levers go together.
pub const SPACE: Space<Config> = Space {
    first: FIRST,
    levers: &LEVERS,
    allowed: |config| config.check_levers().is_ok(),
    constraints: &["one warpgroup takes no turns"],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_all_configs_round_trip() {
        for config in SPACE.configs() {
            assert_eq!(Config::from_id(&config.id()), Some(config));
        }
    }
}
