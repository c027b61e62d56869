//! What a lane holds of accumulators: the same for products of a warp and of a warpgroup, whose warps hold 16 rows
//! each. A lane has values of two rows, `lane / 4` and eight further down.

use std::ops::Range;

use flashcore_ir::Val;
use flashcore_ir::fragment::Acc;

/// Score columns of one tensor-core accumulator.
pub(crate) const ACC_COLS: u32 = 8;

/// Lanes that share a row of an accumulator.
pub(crate) const QUAD: u32 = 4;

/// Columns, from the lane's first, and registers of a lane's values in one of its two rows of some steps of 16
/// columns of an accumulator.
pub(crate) fn lane_columns(steps: Range<u32>, half: usize) -> impl Iterator<Item = (i32, u32)> {
    (2 * steps.start..2 * steps.end)
        .flat_map(move |tile| (0..2).map(move |e| ((ACC_COLS * tile + e) as i32, 4 * tile + 2 * half as u32 + e)))
}

/// The largest of a lane's values of some steps in a row, in two chains so that they do not wait for each other.
#[track_caller]
pub(crate) fn largest_of<'k>(scores: &Acc<'k>, steps: Range<u32>, half: usize) -> Val<'k, f32> {
    let mut chains: [Option<Val<'k, f32>>; 2] = [None, None];
    for (i, (_, register)) in lane_columns(steps.clone(), half).enumerate() {
        let value = scores.var(register).get();
        let chain = &mut chains[i % 2];
        *chain = Some(chain.map_or(value, |largest| largest.max(value)));
    }
    match chains {
        [Some(a), Some(b)] => a.max(b),
        [Some(a), None] | [None, Some(a)] => a,
        [None, None] => scores.var(8 * steps.start).get(),
    }
}
