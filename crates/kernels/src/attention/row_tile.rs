//! Accumulators seen as rows and columns, through [`FragmentLayout`].
//!
//! The layout is the same for products of a warp and of a warpgroup, whose warps hold 16 rows each. A lane has values
//! of two rows, called *half* 0 and 1: row `lane / 4`, and the row eight further down. The type of a tile says what its
//! rows are: queries in a forward pass, keys in most of a backward pass.

use std::marker::PhantomData;
use std::ops::{Deref, Range};

use flashcore_ir::fragment::{AOperand, Acc, AccF16, BOperand, FragmentLayout, MMA_M16N8_ACC_F32, MmaElement};
use flashcore_ir::{KernelBuilder, Val, Var, Widen};
use half::f16;

const LAYOUT: FragmentLayout = MMA_M16N8_ACC_F32;

pub(crate) const ACC_COLS: u32 = LAYOUT.cols;

/// Lanes that share a row of an accumulator.
pub(crate) const QUAD: u32 = 4;

#[track_caller]
pub(crate) fn lane_row(k: &KernelBuilder) -> Val<'_, u32> {
    k.lane() / QUAD
}

#[track_caller]
pub(crate) fn lane_column(k: &KernelBuilder) -> Val<'_, u32> {
    k.lane() % QUAD * 2u32
}

/// The two values that a lane has side by side in one accumulator's half: registers of `tile` from the returned one.
const fn pair_register(tile: u32, half: u32) -> u32 {
    LAYOUT.regs * tile + 2 * half
}

/// Rows that are queries, as the softmax, score modifiers, taps and the output have them. Columns of scores are keys.
#[derive(Clone, Copy)]
pub(crate) struct Queries;

/// Rows that are keys, as in `Sᵀ = K·Qᵀ`, dK and dV. Columns of scores are queries.
#[derive(Clone, Copy)]
pub(crate) struct Keys;

/// An accumulator, and what its rows are.
#[derive(Clone, Copy)]
pub(crate) struct RowTile<'k, Rows = Queries>(pub Acc<'k>, PhantomData<Rows>);

impl<'k, Rows> Deref for RowTile<'k, Rows> {
    type Target = Acc<'k>;

    fn deref(&self) -> &Acc<'k> {
        &self.0
    }
}

/// Registers of a range of steps, 16 columns each.
pub(crate) fn registers(steps: Range<u32>) -> Range<u32> {
    2 * LAYOUT.regs * steps.start..2 * LAYOUT.regs * steps.end
}

/// The half that a register belongs to, and its column relative to the lane's first.
pub(crate) fn half_and_column(register: u32) -> (usize, u32) {
    let (row, column) = LAYOUT.at(0, register % LAYOUT.regs, 0);
    (
        (row * 2 / LAYOUT.rows) as usize,
        LAYOUT.cols * (register / LAYOUT.regs) + column,
    )
}

impl<'k, Rows: Copy> RowTile<'k, Rows> {
    pub(crate) fn new(acc: Acc<'k>) -> Self {
        RowTile(acc, PhantomData)
    }

    /// All steps of 16 columns.
    pub(crate) fn steps(&self) -> Range<u32> {
        0..self.tiles() / 2
    }

    /// The lane's values in one of its rows, in some steps of 16 columns, with their columns from the lane's first.
    pub(crate) fn of_row(self, steps: Range<u32>, half: usize) -> impl Iterator<Item = (i32, Var<'k, f32>)> {
        let registers = registers(steps).map(|register| (register, half_and_column(register)));
        let in_half = registers.filter(move |(_, (of, _))| *of == half);
        in_half.map(move |(register, (_, column))| (column as i32, self.var(register)))
    }

    #[track_caller]
    pub(crate) fn max(&self, steps: Range<u32>, half: usize) -> Val<'k, f32> {
        self.fold(steps, half, |a, b| a.max(b))
    }

    #[track_caller]
    pub(crate) fn sum(&self, half: usize) -> Val<'k, f32> {
        self.fold(self.steps(), half, |a, b| a + b)
    }

    /// A reduction in two chains, so that they do not wait for each other.
    #[track_caller]
    fn fold(
        &self,
        steps: Range<u32>,
        half: usize,
        combine: impl Fn(Val<'k, f32>, Val<'k, f32>) -> Val<'k, f32>,
    ) -> Val<'k, f32> {
        let mut chains: Vec<Val<'k, f32>> = Vec::new();
        for (i, (_, value)) in self.of_row(steps, half).enumerate() {
            let value = value.get();
            match chains.get_mut(i % 2) {
                Some(chain) => *chain = combine(*chain, value),
                None => chains.push(value),
            }
        }
        combine(chains[0], chains[1])
    }

    #[track_caller]
    pub(crate) fn scale_row(&self, half: usize, factor: Val<'k, f32>) {
        for (_, value) in self.of_row(self.steps(), half) {
            value.mul_assign(factor);
        }
    }

    /// The two neighbouring columns that a lane has of a row in accumulator `tile`.
    pub(crate) fn pair(&self, tile: u32, half: usize) -> [Var<'k, f32>; 2] {
        [0, 1].map(|e| self.var(pair_register(tile, half as u32) + e))
    }

    /// The four values that a lane has in accumulator `tile`.
    #[track_caller]
    pub(crate) fn four(&self, tile: u32) -> [Val<'k, f32>; 4] {
        [0, 1, 2, 3].map(|e| self.var(LAYOUT.regs * tile + e).get())
    }
}

/// The scores of a warp's row blocks, accumulated in f32, or in fp16 and then widened.
pub(crate) struct ScoreTiles<'k> {
    k: &'k KernelBuilder,
    rows: Vec<RowTile<'k>>,
    /// `S` by row block, if it is accumulated in fp16.
    f16_scores: Vec<AccF16<'k>>,
}

impl<'k> Deref for ScoreTiles<'k> {
    type Target = [RowTile<'k>];

    fn deref(&self) -> &[RowTile<'k>] {
        &self.rows
    }
}

impl<'k> ScoreTiles<'k> {
    pub(crate) fn new(k: &'k KernelBuilder, row_blocks: u32, tiles: u32, in_f16: bool) -> Self {
        let rows = |m| RowTile::new(k.acc_unwritten(&format!("s{m}"), tiles));
        let rows = (0..row_blocks).map(rows).collect();
        let f16_scores = |m| k.acc_f16_unwritten(&format!("half_s{m}"), tiles);
        let f16_scores = (0..row_blocks).filter(|_| in_f16).map(f16_scores).collect();
        ScoreTiles { k, rows, f16_scores }
    }

    /// Clears some steps of 16 columns before products are added.
    #[track_caller]
    pub(crate) fn clear(&self, steps: Range<u32>) {
        let tiles = 2 * steps.start..2 * steps.end;
        for block in &self.f16_scores {
            block.zero_tiles(tiles.clone());
        }
        for block in self.rows.iter().filter(|_| self.f16_scores.is_empty()) {
            block.zero_tiles(tiles.clone());
        }
    }

    /// Adds a step of `Q·Kᵀ` to 16 columns: `q` by row block, and the two halves of the columns.
    #[track_caller]
    pub(crate) fn add<E: MmaElement>(&self, step: u32, q: &[AOperand<E>], [left, right]: [BOperand<E>; 2]) {
        for (scores, &q) in self.f16_scores.iter().zip(q) {
            self.k.mma(*scores, 2 * step, q, left);
            self.k.mma(*scores, 2 * step + 1, q, right);
        }
        if !self.f16_scores.is_empty() {
            return;
        }
        for (scores, &q) in self.rows.iter().zip(q) {
            self.k.mma(scores.0, 2 * step, q, left);
            self.k.mma(scores.0, 2 * step + 1, q, right);
        }
    }

    /// Scores of some steps that were accumulated in fp16 become f32, after the last product.
    #[track_caller]
    pub(crate) fn widen(&self, steps: Range<u32>) {
        if self.f16_scores.is_empty() {
            return;
        }
        self.k.verb("widen", || {
            for (scores, f16_scores) in self.rows.iter().zip(&self.f16_scores) {
                // A word has the elements of two neighbouring f32 accumulators.
                for word in 4 * steps.start..4 * steps.end {
                    for (e, score) in f16::widen(f16_scores.var(word).get()).into_iter().enumerate() {
                        scores.var(2 * word + e as u32).set(score);
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_go_four_to_a_row_and_two_columns_each() {
        for lane in 0..LAYOUT.lanes {
            for register in 0..LAYOUT.regs {
                let (row, column) = LAYOUT.at(lane, register, 0);
                let (first_row, first_column) = LAYOUT.at(0, register, 0);
                assert_eq!((row, column), (first_row + lane / QUAD, first_column + lane % QUAD * 2));
                assert_eq!(pair_register(0, first_row / 8) + first_column, register);
            }
        }
    }
}
