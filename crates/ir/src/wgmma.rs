//! Asynchronous products of a warpgroup (four warps): `D = A·B + D`, 64 rows, A from shared memory
//! or from registers, B from shared memory.
//!
//! Descriptors are derived from tiles, never typed by hand. Accumulators are [`Acc`]: each warp of
//! the warpgroup holds 16 rows, laid out as those of `mma.m16n8k16`, so softmax reads the same for
//! both.
//!
//! The rules, each of which the simulator checks: [`wgmma_fence`](KernelBuilder::wgmma_fence)
//! before the first product and after registers of one have been written; no touching of
//! accumulators or A registers between a product and the [`wgmma_wait`](KernelBuilder::wgmma_wait)
//! for its group; tiles written by threads need
//! [`fence_proxy_async`](KernelBuilder::fence_proxy_async).

use std::marker::PhantomData;
use std::ops::Range;

use crate::builder::{KernelBuilder, instructions, invalid_if};
use crate::fragment::{AOperand, Acc, FragmentLayout, layout};
use crate::inst::{Descriptor, Inst, Major, Operand, WgmmaA, WgmmaInput, WgmmaInst, impossible_warpgroups};
use crate::shared::{BufferId, Swizzle};
use crate::tile::SharedTile;
use crate::types::{E4M3, Element};
use crate::value::{Source, Val};

/// Accumulators of m64n8, f32: 64 rows × 8 columns over the 128 lanes of a warpgroup. Those of
/// m64nN are N/8 of them side by side (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16:
/// accumulator D").
pub const WGMMA_M64N8_ACC: FragmentLayout = layout(
    "wgmma.m64nN accumulator, 8 columns",
    [64, 8],
    [128, 4, 1],
    |lane, reg, _| {
        let row = 16 * (lane / 32) + lane % 32 / 4 + 8 * (reg / 2);
        (row, 2 * (lane % 4) + reg % 2)
    },
);

/// Operand A of m64nNk16 with 16-bit elements, from registers.
pub const WGMMA_M64K16_A: FragmentLayout = layout("wgmma.m64nNk16 A", [64, 16], [128, 4, 2], |lane, reg, e| {
    let row = 16 * (lane / 32) + lane % 32 / 4 + 8 * (reg % 2);
    (row, 2 * (lane % 4) + e + 8 * (reg / 2))
});

/// Operand A of m64nNk32 with 8-bit elements, from registers.
pub const WGMMA_M64K32_A: FragmentLayout = layout("wgmma.m64nNk32 A", [64, 32], [128, 4, 4], |lane, reg, e| {
    let row = 16 * (lane / 32) + lane % 32 / 4 + 8 * (reg % 2);
    (row, 4 * (lane % 4) + e + 16 * (reg / 2))
});

/// Element types that a warpgroup multiplies.
pub trait WgmmaElement: Element {
    /// What the instruction calls it.
    const INPUT: WgmmaInput;
}
impl WgmmaElement for half::f16 {
    const INPUT: WgmmaInput = WgmmaInput::F16;
}
impl WgmmaElement for half::bf16 {
    const INPUT: WgmmaInput = WgmmaInput::BF16;
}
impl WgmmaElement for E4M3 {
    const INPUT: WgmmaInput = WgmmaInput::E4M3;
}

/// A tile in shared memory as an operand: rows (or columns) of the product along one side, k along
/// the other.
#[derive(Clone, Copy, Debug)]
pub struct WgmmaOperand<'k, E> {
    k: &'k KernelBuilder,
    /// Lower word of the first step's descriptor.
    low: Val<'k, u32>,
    high: u32,
    buffer: BufferId,
    major: Major,
    /// Rows of A or columns of B that there are.
    extent: u32,
    first_step: u32,
    steps: u32,
    span: u32,
    slab_bytes: u32,
    stage_bytes: u32,
    of: PhantomData<E>,
}

/// Descriptors hold addresses and distances in units of 16 bytes.
const UNIT: u32 = 16;

impl<'k, E: WgmmaElement> SharedTile<'k, E> {
    /// The tile as an operand whose k runs along the columns: Q and K of `S = Q·Kᵀ`. Rows are rows
    /// of A or columns of B.
    ///
    /// The tile must be swizzled, with rows as wide as the swizzle (`in_slabs`) and a multiple of 8
    /// of them.
    #[track_caller]
    pub fn k_major(&self) -> WgmmaOperand<'k, E> {
        self.operand(Major::K)
    }

    /// The tile as an operand whose k runs along the rows: V of `O = P·V`. Columns are columns of B
    /// (or rows of A). 16-bit elements only.
    #[track_caller]
    pub fn mn_major(&self) -> WgmmaOperand<'k, E> {
        self.operand(Major::Mn)
    }

    #[track_caller]
    fn operand(&self, major: Major) -> WgmmaOperand<'k, E> {
        let k = self.k;
        let row_bytes = self.row_stride() * E::BYTES;
        invalid_if!(k, self.swizzle().span() != Some(row_bytes) || !self.rows().is_multiple_of(8) =>
            "a tile of {} rows of {row_bytes} bytes ({:?}) is no operand of a warpgroup's product: it needs a swizzle, \
             rows as wide as it (`in_slabs`), and a multiple of 8 rows", self.rows(), self.swizzle());
        let span = self.swizzle().span().unwrap_or(128);
        // PTX ISA, "Matrix Descriptor Format". Groups of 8 rows are a stride apart. The leading
        // offset is that between slabs, where the product's columns run over several; along k it
        // has no meaning.
        let stride = 8 * span;
        let leading = match major {
            Major::K => UNIT,
            Major::Mn => self.slab_bytes(),
        };
        let mode = match self.swizzle() {
            Swizzle::None => 0,
            Swizzle::B128 => 1,
            Swizzle::B64 => 2,
            Swizzle::B32 => 3,
        };
        // In a cluster, addresses carry the block's rank above these bits.
        let base = Val::<u32>::from_reg(k, k.shared_base());
        let start = ((base + self.offset) & 0x3_ffff) >> 4u32;
        let low = start | ((leading / UNIT) << 16);
        let (extent, depth) = match major {
            Major::K => (self.rows(), self.cols()),
            Major::Mn => (self.cols(), self.rows()),
        };
        invalid_if!(k, !depth.is_multiple_of(E::INPUT.k()) =>
            "an operand with {depth} of k; a step of the product takes {}", E::INPUT.k());
        WgmmaOperand {
            k,
            low,
            high: (stride / UNIT) | (mode << 30),
            buffer: self.id,
            major,
            extent,
            first_step: 0,
            steps: depth / E::INPUT.k(),
            span,
            slab_bytes: self.slab_bytes(),
            stage_bytes: self.stage_bytes(),
            of: PhantomData,
        }
    }
}

impl<'k, E: WgmmaElement> WgmmaOperand<'k, E> {
    /// The operand in another stage of the tile.
    #[track_caller]
    pub fn stage(self, stage: impl Source<'k, u32>) -> Self {
        self.moved(stage.operand(), self.stage_bytes)
    }

    /// `rows` rows of the operand from row `first` on, such as a warpgroup's rows of Q, or half of
    /// the keys of a tile. Both are multiples of 8, or of a step where the rows are k.
    #[track_caller]
    pub fn rows(self, first: impl Source<'k, u32>, rows: u32) -> Self {
        let step = E::INPUT.k();
        let (there, unit) = match self.major {
            Major::K => (self.extent, 8),
            Major::Mn => (self.steps * step, step),
        };
        invalid_if!(self.k, rows == 0 || !rows.is_multiple_of(unit) || rows > there =>
            "{rows} rows of an operand that has {there}; they are taken {unit} at a time");
        let moved = self.moved(first.operand(), self.span);
        match self.major {
            Major::K => WgmmaOperand { extent: rows, ..moved },
            Major::Mn => WgmmaOperand {
                steps: rows / step,
                ..moved
            },
        }
    }

    /// `count` slabs of the tile's columns from slab `first` on. k must run along the rows.
    #[track_caller]
    pub fn slabs(self, first: impl Source<'k, u32>, count: u32) -> Self {
        let columns = self.span / E::BYTES;
        invalid_if!(self.k, self.major != Major::Mn || count == 0 || count * columns > self.extent =>
            "{count} slabs of an operand of {} columns, {columns} a slab; only one whose rows are k has any",
            self.extent);
        WgmmaOperand {
            extent: count * columns,
            ..self.moved(first.operand(), self.slab_bytes)
        }
    }

    /// Steps of k that there are.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Some of its steps of k, where a product is to be made in parts.
    #[track_caller]
    pub fn steps_of(self, steps: Range<u32>) -> Self {
        invalid_if!(self.k, steps.is_empty() || steps.end > self.steps =>
            "steps {}..{} of an operand that has {}; a part of a product takes at least one",
            steps.start, steps.end, self.steps);
        WgmmaOperand {
            first_step: self.first_step + steps.start,
            steps: steps.end.saturating_sub(steps.start),
            ..self
        }
    }

    #[track_caller]
    fn moved(self, by: Operand, bytes: u32) -> Self {
        let low = match by {
            Operand::Imm(0) => self.low,
            Operand::Imm(n) => self.low + n as u32 * (bytes / UNIT),
            Operand::Reg(_) => Val::<u32>::from_operand(self.k, by).fma(bytes / UNIT, self.low),
        };
        WgmmaOperand { low, ..self }
    }

    #[track_caller]
    fn descriptor(&self, step: u32) -> Descriptor {
        let step = self.first_step + step;
        let bytes = match self.major {
            // 32 bytes along a row, slab after slab.
            Major::K => step * 32 / self.span * self.slab_bytes + step * 32 % self.span,
            Major::Mn => step * E::INPUT.k() * self.span,
        };
        let low = if bytes == 0 { self.low } else { self.low + bytes / UNIT };
        let high: Val<'k, u32> = self.k.constant(self.high);
        Descriptor {
            bits: low.join(high).operand(),
            buffer: self.buffer,
            major: self.major,
        }
    }
}

impl KernelBuilder {
    /// Starts `acc = a·b`, or `acc += a·b` where `accumulate` holds, over all steps of k, both
    /// operands in shared memory. The whole warpgroup executes it.
    #[track_caller]
    pub fn wgmma_ss<'k, E: WgmmaElement>(
        &'k self,
        acc: Acc<'k>,
        a: WgmmaOperand<'k, E>,
        b: WgmmaOperand<'k, E>,
        accumulate: impl Source<'k, bool>,
    ) {
        invalid_if!(self, a.extent < 64 => "operand A has {} rows; a warpgroup's product takes 64", a.extent);
        let accumulate = accumulate.operand();
        if !self.check_product(acc, a.steps, &b) {
            return;
        }
        self.verb("wgmma", || {
            for step in 0..b.steps {
                let a = WgmmaA::Shared(a.descriptor(step));
                self.step(acc, a, &b, step, accumulate);
            }
        });
    }

    /// [`Self::wgmma_ss`] with operand A from registers, one [`AOperand`] for each step of k.
    #[track_caller]
    pub fn wgmma_rs<'k, E: WgmmaElement>(
        &'k self,
        acc: Acc<'k>,
        a: &[AOperand<E>],
        b: WgmmaOperand<'k, E>,
        accumulate: impl Source<'k, bool>,
    ) {
        let accumulate = accumulate.operand();
        if !self.check_product(acc, a.len() as u32, &b) {
            return;
        }
        self.verb("wgmma", || {
            for (step, a) in a.iter().enumerate() {
                self.step(acc, WgmmaA::Regs(a.first), &b, step as u32, accumulate);
            }
        });
    }

    #[track_caller]
    fn check_product<'k, E: WgmmaElement>(&'k self, acc: Acc<'k>, steps: u32, b: &WgmmaOperand<'k, E>) -> bool {
        let n = 8 * acc.tiles();
        invalid_if!(self, steps != b.steps => "operand A has {steps} steps of k, operand B {}", b.steps);
        invalid_if!(self, n > b.extent => "accumulators of {n} columns for an operand B of {}", b.extent);
        // Here the line is the caller's; each step is in a closure.
        if let Some(why) = impossible_warpgroups(self.threads()) {
            self.invalid(why);
            return false;
        }
        steps == b.steps
    }

    #[track_caller]
    fn step<'k, E: WgmmaElement>(
        &'k self,
        acc: Acc<'k>,
        a: WgmmaA,
        b: &WgmmaOperand<'k, E>,
        step: u32,
        accumulate: Operand,
    ) {
        self.emit(Inst::Wgmma(WgmmaInst::Mma {
            input: E::INPUT,
            n: 8 * acc.tiles(),
            d: acc.first,
            a,
            b: b.descriptor(step),
            accumulate: if step == 0 { accumulate } else { Operand::Imm(1) },
        }));
    }

    /// Gathers four words into operand A of a step, in the order of [`WGMMA_M64K16_A`] or
    /// [`WGMMA_M64K32_A`].
    #[track_caller]
    pub fn wgmma_a<E: WgmmaElement>(&self, words: &[Val<'_, E::Word>; 4]) -> AOperand<E> {
        AOperand::at(self.gather(words))
    }
}

instructions! {
    /// Orders what was written to accumulators and A registers before with the products that
    /// follow. Once before a kernel's first product, and again whenever such a register has been
    /// written.
    wgmma_fence() = Inst::Wgmma(WgmmaInst::Fence);
    /// Closes the group of products started since the last commit.
    wgmma_commit() = Inst::Wgmma(WgmmaInst::Commit);
    /// Waits until at most `pending` of the newest groups are unfinished. Accumulators and operands
    /// of the others are then this warp's again.
    wgmma_wait(pending: u32) = Inst::Wgmma(WgmmaInst::Wait { pending });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fragment::{MMA_M16K16_A, MMA_M16N8_ACC_F32};

    #[test]
    fn every_layout_covers_its_matrix_once() {
        for layout in [WGMMA_M64N8_ACC, WGMMA_M64K16_A, WGMMA_M64K32_A] {
            let mut seen = vec![0; (layout.rows * layout.cols) as usize];
            for (_, _, _, row, col) in layout.elements() {
                seen[(row * layout.cols + col) as usize] += 1;
            }
            assert!(seen.iter().all(|&n| n == 1), "{}", layout.name);
        }
    }

    /// What lets accumulators of `mma` and of a warpgroup be one type: a warp's 16 rows look the
    /// same.
    #[test]
    fn a_warp_of_a_warpgroup_holds_what_mma_holds() {
        for lane in 0..128 {
            let first_row = 16 * (lane / 32);
            for reg in 0..4 {
                let (row, col) = MMA_M16N8_ACC_F32.at(lane % 32, reg, 0);
                assert_eq!(WGMMA_M64N8_ACC.at(lane, reg, 0), (first_row + row, col));
                for e in 0..2 {
                    let (row, col) = MMA_M16K16_A.at(lane % 32, reg, e);
                    assert_eq!(WGMMA_M64K16_A.at(lane, reg, e), (first_row + row, col));
                }
            }
        }
    }
}
