//! Split-KV: partial results of blocks that share the keys of a row, for [`combine`](super::combine) to merge.
//!
//! For each row of the output and each split of its keys, the workspace has an output that is not normalised (f32
//! `[rows, splits, head_dim_v]`), and after all of those its offset and sum (f32 `[rows, splits, 2]`). With
//! `p = 2^(score·scale + offset)` the output is `Σ p·v` and the sum `Σ p`. A split that sees no key stores zeros, and
//! the highest offset that it can have: the [limit](flashcore_problem::score_limit), or `f32::MAX` if the row sees no
//! key of any split. Rows are ordered as in the log-sum-exp: `[batch, num_heads, seq_len_q]`.
//!
//! Not normalised, because merging multiplies each partial by a factor anyway: that saves a division per split, and a
//! row without keys needs no special case.

use flashcore_ir::{Cache, GlobalPtr, Val};
use flashcore_problem::Problem;

use super::forward::Forward;
use crate::args::Args;
use crate::{Refusal, refuse};

/// Most splits of the keys: combining more costs more than the blocks they add gain.
pub(crate) const MAX_SPLITS: u32 = 256;

/// The partials in the workspace.
#[derive(Clone, Copy)]
pub(crate) struct Partials<'k> {
    out: GlobalPtr<'k, f32>,
    sums: GlobalPtr<'k, f32>,
    head_dim_v: u32,
}

/// One partial in the workspace.
#[derive(Clone, Copy)]
pub(crate) struct Partial<'k> {
    /// Its output's first column.
    pub out: GlobalPtr<'k, f32>,
    /// Its offset, then its sum.
    pub sums: GlobalPtr<'k, f32>,
}

impl<'k> Partials<'k> {
    pub(crate) fn declare<T: 'static>(k: &'k Args<'k, Forward<T>>, head_dim_v: u32, written: bool) -> Self {
        Partials {
            out: k.part("split_partials", written, |request| Ok(request.partials()?[0])),
            sums: k.part("split_sums", written, |request| Ok(request.partials()?[1])),
            head_dim_v,
        }
    }

    /// The partial of a row and split. [`check`] makes sure that their product fits.
    #[track_caller]
    pub(crate) fn at(&self, row: Val<'k, u32>, split: Val<'k, u32>, splits: Val<'k, u32>) -> Partial<'k> {
        let index = row.fma(splits, split);
        Partial {
            out: self.out.offset_strided(index, self.head_dim_v),
            sums: self.sums.offset_strided(index, 2u32),
        }
    }
}

impl<'k> Partial<'k> {
    /// Stores the [offset](super::softmax::partial_offset) and the sum.
    #[track_caller]
    pub(crate) fn store_sum(&self, offset: Val<'k, f32>, sum: Val<'k, f32>) {
        self.sums.store_words(&[offset, sum], Cache::Default);
    }
}

/// The fewest splits of the keys of `blocks` blocks that keep a GPU busy, if it runs `slots` blocks at a time: at least
/// 85 % as busy, in whole waves, as the best number of splits does. 1 if there are enough blocks without a split. The
/// keys of a block are `units` that cannot be split; a number of splits that leaves the longest split as long as a
/// smaller number does is not a candidate.
///
/// ```
/// use flashcore_kernels::fewest_splits;
/// // 8 blocks of 64 tiles on 132 SMs, one block each.
/// assert_eq!(fewest_splits(8, 132, 64), 16);
/// assert_eq!(fewest_splits(120, 132, 64), 1);
/// ```
///
/// The rule is that of FlashAttention's `num_splits_heuristic`.
pub fn fewest_splits(blocks: u64, slots: u64, units: u64) -> u32 {
    let (blocks, slots) = (blocks.max(1), slots.max(1));
    if 10 * blocks >= 8 * slots {
        return 1;
    }
    // How full the GPU is on average, if all blocks take equally long.
    let busy = |splits: u64| (blocks * splits) as f64 / ((blocks * splits).div_ceil(slots) * slots) as f64;
    let most = u64::from(MAX_SPLITS).min(slots).min(units);
    let longest = |splits: u64| units.div_ceil(splits);
    // The next candidate is the lowest number with a shorter longest split.
    let next = |splits: &u64| (longest(*splits) > 1).then(|| units.div_ceil(longest(*splits) - 1));
    let candidates = || std::iter::successors(Some(1), next).take_while(|splits| *splits <= most);
    let best = candidates().map(busy).fold(0.0, f64::max);
    let enough = candidates().find(|&splits| busy(splits) >= 0.85 * best);
    enough.unwrap_or(1) as u32
}

/// Refuses splits that make more partials than 32 bits can count.
pub(crate) fn check(problem: &Problem, splits: u32) -> Result<(), Refusal> {
    let rows = problem.lse_len();
    let most = u64::from(u32::MAX) / (rows as u64).max(1);
    refuse!(u64::from(splits) > most => lever "splits" = splits,
        "1 to {most} with {rows} rows of all heads: partials are counted in 32 bits");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_fill_the_gpu_and_no_more() {
        // Llama 8B decoding on an H200: 8 K/V heads, tiles of 64 keys, one or two blocks an SM.
        let of = |batch: u64, keys: u64, blocks_per_sm: u64| fewest_splits(8 * batch, 132 * blocks_per_sm, keys / 64);
        assert_eq!([of(1, 4096, 1), of(1, 4096, 2)], [16, 32]);
        assert_eq!([of(1, 131_072, 1), of(1, 131_072, 2)], [15, 29]);
        assert_eq!([of(8, 4096, 1), of(16, 4096, 1), of(64, 4096, 2)], [2, 1, 1]);
        // Never more than units, and something even for nothing.
        assert_eq!(
            [
                fewest_splits(1, 1000, 3),
                fewest_splits(1, 1000, 0),
                fewest_splits(0, 0, 0)
            ],
            [3, 1, 1]
        );
        assert_eq!(fewest_splits(1, 100_000, 100_000), 218, "85 % of the most there may be");
    }

    /// Every number but those that leave the longest share as it was.
    #[test]
    fn no_number_of_splits_is_left_out() {
        for (blocks, slots) in [(1u64, 132u64), (3, 264), (8, 132), (70, 132)] {
            for units in 0..300u64 {
                let busy = |splits: u64| (blocks * splits) as f64 / ((blocks * splits).div_ceil(slots) * slots) as f64;
                let worth = |splits: &u64| *splits == 1 || units.div_ceil(*splits) < units.div_ceil(*splits - 1);
                let all: Vec<u64> = (1..=units.min(slots).min(256)).filter(worth).collect();
                let best = all.iter().map(|&splits| busy(splits)).fold(0.0, f64::max);
                let first = all.into_iter().find(|&splits| busy(splits) >= 0.85 * best);
                assert_eq!(
                    u64::from(fewest_splits(blocks, slots, units)),
                    first.unwrap_or(1),
                    "{blocks} {slots} {units}"
                );
            }
        }
    }
}
