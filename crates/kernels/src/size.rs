//! How much work a problem gives a GPU.

use flashcore_ir::Chip;
use flashcore_problem::{KvLengths, Problem, QLengths};
use serde::Deserialize;

use crate::attention::params::query_blocks;

flashcore_problem::words! {
    /// How much work a problem gives the SMs: what decides how large its tiles can be.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Size {
        /// At most 16 query rows share K and V: all there is to do is to read them. One tile of rows, and the keys
        /// split across as many blocks as the SMs ask for ([`split_for`](crate::mma::Config::split_for)).
        Decode = "decode",
        /// Tiles of 64 rows leave SMs without a block: tiles of 32, their keys shared out among warps.
        Small = "small",
        /// Tiles of 64 rows fill the SMs, tiles of 128 not twice.
        Medium = "medium",
        /// Two blocks of 128 rows for every SM, or more.
        Large = "large",
    }
}

impl Size {
    /// The size of a problem on a GPU.
    pub fn of(problem: &Problem, chip: Chip) -> Size {
        let sms = chip.sms as usize;
        // Causal rows see half of the keys on average: as if there were fewer of them.
        let causal = problem.mask().window_right.is_some();
        let enough = if causal { 3 * sms / 2 } else { 9 * sms / 10 };
        if problem.seq_len_q() * problem.group_size() <= 16 {
            Size::Decode
        } else if query_blocks(problem, 128) >= 2 * sms {
            Size::Large
        } else if query_blocks(problem, 64) >= enough {
            Size::Medium
        } else {
            Size::Small
        }
    }
}

/// Keys up to which a block for each query head, of which one runs on an SM, takes less time than a schedule. With more
/// keys or heads, packed heads are faster where the schedule is kept.
const SHORT_CACHE: usize = 512;

/// Whether a problem with lengths on the device has such a cache.
pub(crate) fn is_short_cache(problem: &Problem, chip: Chip) -> bool {
    let few_heads = problem.batch() * problem.num_heads() <= chip.sms as usize;
    problem.seq_len_kv() <= SHORT_CACHE && few_heads && problem.has_lengths() && problem.batch_invariant().is_none()
}

/// Whether a problem is of one sequence over a cache that is not short. Its keys can be cut into equal pieces on the
/// device without a schedule, which would be a launch more and a load before the first of K.
pub(crate) fn is_one_cache(problem: &Problem) -> bool {
    let has_cache = matches!(problem.kv_lengths(), KvLengths::Cache | KvLengths::Paged { .. });
    has_cache
        && problem.batch() == 1
        && problem.seq_len_kv() > SHORT_CACHE
        && problem.q_lengths() == QLengths::Equal
        && problem.batch_invariant().is_none()
}

/// Whether a problem with lengths on the device has few rows over a long cache: at most the 32 of a tile that share K
/// and V, in packed heads or in tiles that leave SMs idle. A schedule comes with packed heads, one by one too, and
/// shares out the keys.
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

/// Whether a problem with lengths on the device has so few rows and keys that blocks of 32 rows of a head, as many as
/// the bound asks for, all run at once, and are done before a schedule is made and tiles are merged. What must not
/// depend on the batch is not chosen by it.
///
/// In five problems of 715 to 860 keys (run `serve-chunks`) such blocks took 0.66 to 0.88 of the time of packed tiles
/// with a schedule kept. With 128 columns a head and 1,024 keys both took as long (run `serve-late-2`); with 64,
/// nothing was timed from 860 keys to the bound.
pub(crate) fn is_short_chunk(problem: &Problem, chip: Chip) -> bool {
    let (most_keys, at_once) = match problem.head_dim().max(problem.head_dim_v()) {
        0..=64 => (1024, 2),
        65..=128 => (768, 1),
        _ => return false,
    };
    problem.has_lengths()
        && problem.batch_invariant().is_none()
        && problem.seq_len_kv() <= most_keys
        && query_blocks(problem, 32) <= at_once * chip.sms as usize
}

#[cfg(test)]
mod tests {
    use flashcore_ir::Target;
    use flashcore_problem::{KvLengths, Mask, ProblemBuilder};

    use super::*;

    fn cached(batch: usize, heads: (usize, usize), rows: usize, keys: usize, head_dim: usize) -> ProblemBuilder {
        let problem = Problem::builder().batch(batch).heads(heads.0, heads.1);
        let problem = problem.seq_len_q(rows).seq_len_kv(keys).head_dim(head_dim);
        problem.kv_lengths(KvLengths::Cache).mask(Mask::CAUSAL)
    }

    /// On 132 SMs: blocks of 32 rows are counted by the bound, two an SM at head_dim 64 and one above.
    #[test]
    fn short_chunks_are_told() {
        let is_short =
            |problem: &ProblemBuilder| is_short_chunk(&problem.clone().build().unwrap(), Chip::from(Target::Sm90a));
        let (narrow, wide) = (cached(66, (1, 1), 128, 1024, 64), cached(33, (1, 1), 128, 768, 128));
        assert!(is_short(&narrow) && is_short(&wide));
        for long in [cached(66, (1, 1), 128, 1025, 64), cached(33, (1, 1), 128, 769, 128)] {
            assert!(!is_short(&long));
        }
        let total = QLengths::Packed { total: 99, used: false };
        for many in [
            cached(67, (1, 1), 128, 1024, 64),
            cached(34, (1, 1), 128, 768, 128),
            cached(33, (1, 1), 160, 768, 128).q_lengths(total),
            cached(1, (1, 1), 1, 512, 160),
            wide.clone().batch_invariant(512),
            wide.kv_lengths(KvLengths::Equal),
        ] {
            assert!(!is_short(&many), "{}", many.build().unwrap());
        }
    }

    /// `wgmma` leaves to `mma` only what that has such blocks for.
    #[test]
    fn short_chunks_have_a_kernel_without_a_schedule() {
        for (problem, kernel) in [
            (cached(16, (5, 1), 24, 832, 64), "mma/m32n128-w2x2-s2-b2-qreg-xor-cond"),
            (cached(8, (5, 1), 83, 715, 128), "mma/m32n128-w2x2-s3-b1-qreg-xor-cond"),
            (cached(4, (32, 4), 18, 721, 80), "mma/m32n128-w2x2-s3-b1-qreg-xor-cond"),
        ] {
            let kernels = crate::KernelCache::default();
            let choice = crate::select(&problem.build().unwrap(), Target::Sm90a, 16, &kernels).unwrap();
            assert_eq!(choice.plan.config.to_string(), kernel);
        }
    }
}
