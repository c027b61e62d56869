//! Masks the scores of keys that a row does not see. Causal masks, sliding windows and the end of the keys are one
//! [`Band`].

use flashcore_ir::{KernelBuilder, Val};

use super::block_range::Band;
use super::row_tile::{RowTile, lane_column};

/// Whether any row of a warp sees any of `count` keys from `first_key` on.
#[track_caller]
pub(crate) fn warp_sees<'k>(
    band: &Band<Val<'k, i32>>,
    queries: impl Iterator<Item = Val<'k, u32>>,
    first_key: Val<'k, u32>,
    count: u32,
) -> Val<'k, bool> {
    let key0 = first_key.reinterpret::<i32>();
    let mut any = None::<Val<'k, bool>>;
    for query in queries {
        let (first, end) = band.visible(query.reinterpret());
        let sees = end.gt(key0) & first.lt(key0 + count as i32);
        any = Some(any.map_or(sees, |any| any | sees));
    }
    any.unwrap_or(key0.lt(0)).vote_any()
}

/// Sets the scores of columns that a row does not see to −∞ (that it is not seen by, where rows are keys). `tiles` hold
/// the columns from `first_column` on. `sees(m, half)` is the range of columns that the lane's row in that half of tile
/// `m` sees: the first one, and one past the last.
#[track_caller]
pub(crate) fn mask_scores<'k, Rows: Copy>(
    k: &'k KernelBuilder,
    tiles: &[RowTile<'k, Rows>],
    sees: impl Fn(usize, usize) -> (Val<'k, i32>, Val<'k, i32>),
    first_column: Val<'k, u32>,
) {
    k.verb("mask", || {
        let first_column = (first_column + lane_column(k)).reinterpret::<i32>();
        for (m, scores) in tiles.iter().enumerate() {
            for half in 0..2 {
                let (first, end) = sees(m, half);
                // Relative to this lane's first column, so that columns are constants.
                let (first, end) = (first - first_column, end - first_column);
                for (column, score) in scores.of_row(scores.steps(), half) {
                    let is_seen = first.le(column) & end.gt(column);
                    score.set(is_seen.select(score, f32::NEG_INFINITY));
                }
            }
        }
    });
}
