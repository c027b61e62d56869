//! The family's space: its levers as data.

use super::{COLS, Config, Kind, WARPS};
use crate::space::{Lever, Space};

const LEVERS: [Lever<Config>; 3] = [
    Lever {
        name: "kind",
        meaning: "tensor cores for one product (hybrid), or for both (mma)",
        settings: |c| [Kind::Hybrid, Kind::Mma].map(|kind| Config { kind, ..c }).to_vec(),
        value: |c| match c.kind {
            Kind::Hybrid => "hybrid".to_string(),
            Kind::Mma => "mma".to_string(),
        },
    },
    Lever {
        name: "warps",
        meaning: "warps per block, 16 query rows each",
        settings: |c| WARPS.map(|warps| Config { warps, ..c }).to_vec(),
        value: |c| c.warps.to_string(),
    },
    Lever {
        name: "cols",
        meaning: "keys per tile: more keys need fewer barriers, fewer keys need less shared memory",
        settings: |c| COLS.map(|cols| Config { cols, ..c }).to_vec(),
        value: |c| c.cols.to_string(),
    },
];

/// Every config of the family.
pub const SPACE: Space<Config> = Space {
    first: Config {
        kind: Kind::Hybrid,
        warps: WARPS[0],
        cols: COLS[0],
    },
    levers: &LEVERS,
    allowed: |_| true,
    constraints: &[],
};
