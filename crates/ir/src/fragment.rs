//! Fragments: how the registers of a warp's lanes hold a matrix, written once as data.
//!
//! Source: PTX ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix". Tiles, the simulator, the
//! documentation and the tests all read these maps.

use std::marker::PhantomData;
use std::ops::Range;

use crate::builder::{KernelBuilder, invalid_if};
use crate::inst::{Inst, MmaAcc, MmaInput, Operand};
use crate::memory::Widen;
use crate::types::{Assignable, Element, F16x2, Reg, RegClass, Scalar};
use crate::value::{Source, Val, Var};

/// Where each element of a small matrix lives: the map (lane, register, element in register) →
/// (row, column).
#[derive(Clone, Copy, Debug)]
pub struct FragmentLayout {
    /// Name, for messages and docs.
    pub name: &'static str,
    /// Rows of the matrix.
    pub rows: u32,
    /// Columns of the matrix.
    pub cols: u32,
    /// Lanes that hold it together: 32 of a warp or 128 of a warpgroup.
    pub lanes: u32,
    /// 32-bit registers a lane.
    pub regs: u32,
    /// Elements a register.
    pub per_reg: u32,
    pub(crate) map: fn(lane: u32, reg: u32, element: u32) -> (u32, u32),
}

impl FragmentLayout {
    /// Row and column of element `element` of register `reg` of lane `lane`.
    ///
    /// ```
    /// use flashcore_ir::fragment::MMA_M16N8_ACC_F32;
    /// assert_eq!(MMA_M16N8_ACC_F32.at(5, 3, 0), (9, 3)); // lane 5, c3: row 5/4 + 8, column 2·(5%4) + 1
    /// ```
    pub fn at(&self, lane: u32, reg: u32, element: u32) -> (u32, u32) {
        (self.map)(lane, reg, element)
    }

    /// All elements as `(lane, register, element in register, row, column)`.
    pub fn elements(self) -> impl Iterator<Item = (u32, u32, u32, u32, u32)> {
        (0..self.lanes).flat_map(move |lane| {
            (0..self.regs).flat_map(move |reg| {
                (0..self.per_reg).map(move |element| {
                    let (row, col) = self.at(lane, reg, element);
                    (lane, reg, element, row, col)
                })
            })
        })
    }
}

pub(crate) const fn layout(
    name: &'static str,
    [rows, cols]: [u32; 2],
    [lanes, regs, per_reg]: [u32; 3],
    map: fn(u32, u32, u32) -> (u32, u32),
) -> FragmentLayout {
    FragmentLayout {
        name,
        rows,
        cols,
        lanes,
        regs,
        per_reg,
        map,
    }
}

/// Operand A of m16n8k16 with 16-bit elements: 16 rows × 16 of k.
pub const MMA_M16K16_A: FragmentLayout = layout("mma.m16n8k16 A", [16, 16], [32, 4, 2], |lane, reg, e| {
    (lane / 4 + 8 * (reg % 2), 2 * (lane % 4) + e + 8 * (reg / 2))
});

/// Operand B of m16n8k16 with 16-bit elements: 16 of k × 8 columns.
pub const MMA_K16N8_B: FragmentLayout = layout("mma.m16n8k16 B", [16, 8], [32, 2, 2], |lane, reg, e| {
    (2 * (lane % 4) + e + 8 * reg, lane / 4)
});

/// f32 accumulators of m16n8: 16 rows × 8 columns.
pub const MMA_M16N8_ACC_F32: FragmentLayout =
    layout("mma.m16n8 f32 accumulator", [16, 8], [32, 4, 1], |lane, reg, _| {
        (lane / 4 + 8 * (reg / 2), 2 * (lane % 4) + reg % 2)
    });

/// fp16 accumulators of m16n8: 16 rows × 8 columns.
pub const MMA_M16N8_ACC_F16: FragmentLayout =
    layout("mma.m16n8 f16 accumulator", [16, 8], [32, 2, 2], |lane, reg, e| {
        (lane / 4 + 8 * reg, 2 * (lane % 4) + e)
    });

/// One 8×8 matrix as `ldmatrix` delivers it; transposed, row and column change places.
pub const LDMATRIX: FragmentLayout = layout("ldmatrix", [8, 8], [32, 1, 2], |lane, _, e| {
    (lane / 4, 2 * (lane % 4) + e)
});

/// Operand A of one product: 16 × 16 elements of `E`.
#[derive(Clone, Copy, Debug)]
pub struct AOperand<E> {
    pub(crate) first: Reg,
    pub(crate) of: PhantomData<E>,
}

/// Operands A of the products of one row block, one for each step of k, in fixed registers that are
/// written repeatedly and that products read in place.
#[derive(Clone, Copy, Debug)]
pub struct AVars<'k, E> {
    k: &'k KernelBuilder,
    first: Reg,
    steps: u32,
    of: PhantomData<E>,
}

/// Operand B of one product: 16 (k) × 8 (n) elements of `E`.
#[derive(Clone, Copy, Debug)]
pub struct BOperand<E> {
    first: Reg,
    of: PhantomData<E>,
}

impl<E> AOperand<E> {
    pub(crate) fn at(first: Reg) -> Self {
        let of = PhantomData;
        AOperand { first, of }
    }
}

/// Accumulators of a warp: 16 rows × `8 · tiles` columns, in f32.
///
/// [`AccF16`] has pairs of fp16 instead. It has twice the rate on consumer cards, and is less
/// exact: each product is added with an 11-bit significand.
#[derive(Clone, Copy, Debug)]
pub struct Acc<'k, T = f32> {
    k: &'k KernelBuilder,
    pub(crate) first: Reg,
    tiles: u32,
    of: PhantomData<T>,
}

/// fp16 accumulators of a warp.
pub type AccF16<'k> = Acc<'k, F16x2>;

/// What accumulators hold.
pub trait Accumulated: Assignable {
    /// What the instruction calls it.
    const ACC: MmaAcc;
    /// How a tile of 8 columns is laid out.
    const LAYOUT: FragmentLayout;
}
impl Accumulated for f32 {
    const ACC: MmaAcc = MmaAcc::F32;
    const LAYOUT: FragmentLayout = MMA_M16N8_ACC_F32;
}
impl Accumulated for F16x2 {
    const ACC: MmaAcc = MmaAcc::F16;
    const LAYOUT: FragmentLayout = MMA_M16N8_ACC_F16;
}

/// Element types that the tensor cores multiply.
pub trait MmaElement: Widen {
    /// What the instruction calls it.
    const INPUT: MmaInput;

    /// Two f32 rounded to a word, the first in the low half.
    #[track_caller]
    fn pack<'k>(lo: Val<'k, f32>, hi: Val<'k, f32>) -> Val<'k, Self::Word> {
        Self::narrow(&[lo, hi])
    }
}
impl MmaElement for half::f16 {
    const INPUT: MmaInput = MmaInput::F16;
}
impl MmaElement for half::bf16 {
    const INPUT: MmaInput = MmaInput::BF16;
}

impl KernelBuilder {
    /// Accumulators for 16 rows × `8 · tiles` columns, set to zero.
    #[track_caller]
    pub fn acc(&self, name: &str, tiles: u32) -> Acc<'_> {
        let acc = self.acc_unwritten(name, tiles);
        acc.zero();
        acc
    }

    /// [`Self::acc`] without a first value.
    pub fn acc_unwritten(&self, name: &str, tiles: u32) -> Acc<'_> {
        self.accumulators(name, tiles)
    }

    /// fp16 accumulators for 16 rows × `8 · tiles` columns, set to zero.
    #[track_caller]
    pub fn acc_f16(&self, name: &str, tiles: u32) -> AccF16<'_> {
        let acc = self.acc_f16_unwritten(name, tiles);
        acc.zero();
        acc
    }

    /// [`Self::acc_f16`] without a first value.
    pub fn acc_f16_unwritten(&self, name: &str, tiles: u32) -> AccF16<'_> {
        self.accumulators(name, tiles)
    }

    fn accumulators<T: Accumulated>(&self, name: &str, tiles: u32) -> Acc<'_, T> {
        let (k, of) = (self, PhantomData);
        let first = self.unwritten_regs(T::TYPE.class(), T::LAYOUT.regs * tiles, name);
        Acc { k, first, tiles, of }
    }

    /// Registers for operands A of `steps` steps of k (32 bytes each), not written yet.
    pub fn a_vars<E: Element>(&self, name: &str, steps: u32) -> AVars<'_, E> {
        let first = self.unwritten_regs(RegClass::B32, 4 * steps, name);
        let (k, of) = (self, PhantomData);
        AVars { k, first, steps, of }
    }

    /// Gathers four words into operand A, in the order of [`MMA_M16K16_A`].
    #[track_caller]
    pub fn a_operand<E: MmaElement>(&self, words: &[Val<'_, E::Word>; 4]) -> AOperand<E> {
        AOperand::at(self.gather(words))
    }

    /// Gathers two words into operand B, in the order of [`MMA_K16N8_B`].
    #[track_caller]
    pub fn b_operand<E: MmaElement>(&self, words: &[Val<'_, E::Word>; 2]) -> BOperand<E> {
        let (first, of) = (self.gather(words), PhantomData);
        BOperand { first, of }
    }

    #[track_caller]
    pub(crate) fn gather<T: Scalar>(&self, words: &[Val<'_, T>]) -> Reg {
        let operands: Vec<Operand> = words.iter().map(|word| word.operand()).collect();
        self.contiguous(RegClass::B32, &operands)
    }

    /// `acc[tile] += a · b` on the tensor cores: 16×16 by 16×8. With fp16 accumulators there is no such instruction of
    /// bf16, so it does not build.
    #[track_caller]
    pub fn mma<E: MmaElement, T: Accumulated>(&self, acc: Acc<'_, T>, tile: u32, a: AOperand<E>, b: BOperand<E>) {
        if !self.has_tile(tile, acc.tiles) {
            return;
        }
        let d = acc.first.plus(T::LAYOUT.regs * tile);
        self.emit(Inst::Mma {
            input: E::INPUT,
            acc: T::ACC,
            d,
            a: a.first,
            b: b.first,
            c: d,
        });
    }

    #[track_caller]
    fn has_tile(&self, tile: u32, tiles: u32) -> bool {
        invalid_if!(self, tile >= tiles => "tile {tile} of accumulators that have {tiles}");
        tile < tiles
    }
}

impl<'k, E: Element> AVars<'k, E> {
    /// Steps of k that there are.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Word `i` of a lane: word `i % 4` of step `i / 4`, in the order of [`MMA_M16K16_A`]. Word `i`
    /// of 16-bit elements holds the elements of registers `2i` and `2i + 1` of accumulators over
    /// the same columns.
    pub fn word(&self, i: u32) -> Var<'k, E::Word> {
        Var::from_reg(self.k, self.first.plus(i))
    }

    /// The operands, one for each step.
    pub fn operands(&self) -> Vec<AOperand<E>> {
        (0..self.steps)
            .map(|step| AOperand::at(self.first.plus(4 * step)))
            .collect()
    }
}

impl<'k, T: Accumulated> Acc<'k, T> {
    /// Tiles of 8 columns.
    pub fn tiles(&self) -> u32 {
        self.tiles
    }

    /// Sets every element to zero.
    #[track_caller]
    pub fn zero(&self) {
        self.zero_tiles(0..self.tiles);
    }

    /// Sets every element of some tiles of 8 columns to zero.
    #[track_caller]
    pub fn zero_tiles(&self, tiles: Range<u32>) {
        for i in T::LAYOUT.regs * tiles.start..T::LAYOUT.regs * tiles.end {
            let (dst, src) = (self.first.plus(i), Operand::Imm(0));
            self.k.emit(Inst::Mov { dst, src });
        }
    }

    /// Register `i` of a lane. With f32 it is register `i % 4` of [`MMA_M16N8_ACC_F32`] in tile `i
    /// / 4`, with fp16 register `i % 2` of [`MMA_M16N8_ACC_F16`] in tile `i / 2`.
    pub fn var(&self, i: u32) -> Var<'k, T> {
        Var::from_reg(self.k, self.first.plus(i))
    }
}

impl Acc<'_> {
    /// The accumulators rounded to `E` as operands A of the next product, one for each 16 columns.
    #[track_caller]
    pub fn to_a<E: MmaElement>(&self) -> Vec<AOperand<E>> {
        let mut operands = Vec::new();
        for step in 0..self.tiles / 2 {
            operands.push(self.to_a_step(step));
        }
        operands
    }

    /// Columns `16·step` to `16·step + 15` rounded to `E` as an operand A of the next product.
    ///
    /// The layouts agree register for register (two neighbouring m16n8 accumulators are one m16k16
    /// operand), so nothing moves between lanes.
    #[track_caller]
    pub fn to_a_step<E: MmaElement>(&self, step: u32) -> AOperand<E> {
        if !self.k.has_tile(2 * step + 1, self.tiles) {
            return AOperand::at(self.k.regs(RegClass::B32, 4));
        }
        // Registers 0,1 | 2,3 of both tiles: rows +0, +8, then the same 8 columns further on.
        let mut words = Vec::new();
        for pair in 0..4 {
            let i = 8 * step + 2 * pair;
            words.push(E::pack(self.var(i).get(), self.var(i + 1).get()));
        }
        self.k.a_operand(&[words[0], words[1], words[2], words[3]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_covers_its_matrix_once() {
        for layout in [
            MMA_M16K16_A,
            MMA_K16N8_B,
            MMA_M16N8_ACC_F32,
            MMA_M16N8_ACC_F16,
            LDMATRIX,
        ] {
            let mut seen = vec![0; (layout.rows * layout.cols) as usize];
            for (_, _, _, row, col) in layout.elements() {
                seen[(row * layout.cols + col) as usize] += 1;
            }
            assert!(seen.iter().all(|&n| n == 1), "{}", layout.name);
        }
    }

    #[test]
    fn fp16_accumulators_are_the_a_operand_as_they_are() {
        for lane in 0..32 {
            for (reg, e) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)] {
                let (row, col) = MMA_M16N8_ACC_F16.at(lane, reg % 2, e);
                assert_eq!(MMA_M16K16_A.at(lane, reg, e), (row, col + 8 * (reg / 2)));
            }
        }
    }

    #[test]
    fn two_accumulators_are_one_a_operand() {
        // What `to_a` relies on: accumulator pair (tile t, registers 2r, 2r+1) is A register r+2t.
        for lane in 0..32 {
            for tile in 0..2 {
                for pair in 0..2 {
                    for e in 0..2 {
                        let (row, col) = MMA_M16N8_ACC_F32.at(lane, 2 * pair + e, 0);
                        assert_eq!(MMA_M16K16_A.at(lane, pair + 2 * tile, e), (row, col + 8 * tile));
                    }
                }
            }
        }
    }
}
