//! Accumulators seen as rows and columns, through [`FragmentLayout`].
//!
//! The layout is the same for products of a warp and of a warpgroup, whose warps hold 16 rows each. A lane has values
//! of two rows, its *halves*: `lane / 4` and eight further down. Rows are queries and columns are keys or columns of
//! the output; in the backward pass rows are keys.

use std::ops::{Deref, Range};

use flashcore_ir::fragment::{Acc, FragmentLayout, MMA_M16N8_ACC_F32};
use flashcore_ir::{KernelBuilder, Val, Var};

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

#[derive(Clone, Copy)]
pub(crate) struct RowTile<'k>(pub Acc<'k>);

impl<'k> Deref for RowTile<'k> {
    type Target = Acc<'k>;

    fn deref(&self) -> &Acc<'k> {
        &self.0
    }
}

impl<'k> RowTile<'k> {
    /// All steps of 16 columns.
    pub(crate) fn steps(&self) -> Range<u32> {
        0..self.tiles() / 2
    }

    /// Registers of some steps of 16 columns.
    pub(crate) fn registers(steps: Range<u32>) -> Range<u32> {
        2 * LAYOUT.regs * steps.start..2 * LAYOUT.regs * steps.end
    }

    /// The half that a register belongs to, and its column from the lane's first.
    pub(crate) fn place(register: u32) -> (usize, u32) {
        let (row, column) = LAYOUT.at(0, register % LAYOUT.regs, 0);
        (
            (row * 2 / LAYOUT.rows) as usize,
            LAYOUT.cols * (register / LAYOUT.regs) + column,
        )
    }

    /// The lane's values in one of its rows, in some steps of 16 columns, with their columns from the lane's first.
    pub(crate) fn of_row(self, steps: Range<u32>, half: usize) -> impl Iterator<Item = (i32, Var<'k, f32>)> {
        let registers = Self::registers(steps).map(|register| (register, Self::place(register)));
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

    /// The two neighbours that a lane has in accumulator `tile` of a row.
    pub(crate) fn pair(&self, tile: u32, half: usize) -> [Var<'k, f32>; 2] {
        [0, 1].map(|e| self.var(pair_register(tile, half as u32) + e))
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
