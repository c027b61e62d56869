//! How much work a problem gives a GPU.

use std::fmt;

use flashcore_ir::Chip;
use flashcore_problem::{Problem, QLengths};

/// How much work a problem gives the SMs: what decides how large its tiles can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// At most 16 query rows share K and V: all there is to do is to read them. One tile of rows, and the keys split
    /// across as many blocks as the SMs ask for ([`split_for`](crate::mma::Config::split_for)).
    Decode,
    /// Tiles of 64 rows leave SMs without a block: tiles of 32, their keys shared out among warps.
    Small,
    /// Tiles of 64 rows fill the SMs, tiles of 128 not twice.
    Medium,
    /// Two blocks of 128 rows for every SM, or more.
    Large,
}

impl Size {
    /// The size of a problem on a GPU.
    pub fn of(problem: &Problem, chip: Chip) -> Size {
        let heads = problem.batch() * problem.num_heads();
        let blocks = |rows: usize| heads * problem.seq_len_q().div_ceil(rows);
        let sms = chip.sms as usize;
        // Causal rows see half of the keys on average: as if there were fewer of them.
        let causal = problem.mask().window_right.is_some();
        let enough = if causal { 3 * sms / 2 } else { 9 * sms / 10 };
        match () {
            () if problem.seq_len_q() * problem.group_size() <= 16 => Size::Decode,
            () if blocks(128) >= 2 * sms => Size::Large,
            () if blocks(64) >= enough => Size::Medium,
            () => Size::Small,
        }
    }
}

/// Keys up to which a block for each query head, of which one runs on an SM, takes less time than a schedule. With more
/// keys or heads, packed heads are faster where the schedule is kept.
pub(crate) const SHORT_CACHE: usize = 512;

/// Whether a problem with lengths on the device has few rows over a long cache: at most the 32 of a tile that share K
/// and V, in packed heads or in tiles that leave SMs idle.
pub(crate) fn has_few_rows(problem: &Problem, chip: Chip) -> bool {
    let (rows, group) = (problem.seq_len_q(), problem.group_size());
    // Each of whose heads has a tile.
    let tiles = problem.batch() * problem.num_heads();
    problem.has_lengths()
        && problem.seq_len_kv() > SHORT_CACHE
        && rows * group <= 32
        && (group > 1 || tiles < chip.sms as usize)
}

/// Query rows of a sequence, on average; if that is the bound, all have as many.
pub(crate) fn usual_rows(problem: &Problem) -> usize {
    match problem.q_lengths() {
        QLengths::Equal => problem.seq_len_q(),
        QLengths::Packed { total, .. } => (total / problem.batch()).min(problem.seq_len_q()),
    }
}

/// Whether a problem with lengths on the device has so few rows and keys that blocks of 32 rows of a head all run at
/// once, and are done before a schedule is made and tiles are merged.
///
/// Of five problems of 630 to 860 keys (run `serve-chunks`) such blocks took 0.66 to 0.88 of the time of packed tiles
/// with a schedule kept. With 128 columns a head and 1,024 keys both took as long (run `serve-late-2`).
pub(crate) fn is_short_at_once(problem: &Problem, chip: Chip) -> bool {
    let (most_keys, at_once) = match problem.head_dim().max(problem.head_dim_v()) {
        0..=64 => (1024, 2),
        65..=128 => (768, 1),
        _ => return false,
    };
    let blocks = problem.batch() * problem.num_heads() * usual_rows(problem).div_ceil(32);
    problem.has_lengths() && problem.seq_len_kv() <= most_keys && blocks <= at_once * chip.sms as usize
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Size::Decode => "decode",
            Size::Small => "small",
            Size::Medium => "medium",
            Size::Large => "large",
        })
    }
}
