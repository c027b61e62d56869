//! Tensor-core products and `ldmatrix`, using the IR's fragment layouts.

use std::sync::LazyLock;

use flashcore_ir::fragment::{
    FragmentLayout, LDMATRIX, MMA_K16N8_B, MMA_M16K16_A, MMA_M16N8_ACC_F16, MMA_M16N8_ACC_F32,
};
use flashcore_ir::inst::{MmaAcc, MmaInput, WgmmaInput};

use pulp::{Simd, WithSimd};

use crate::clock::WriterKind;
use crate::cluster::Cluster;
use crate::float::{bf16_to_f32, e4m3_to_f32, f, f16_to_f32, f64_to_f16, result};
use crate::matrix;
use crate::program::{At, Half, OPERANDS, Row};
use crate::registers::{Constants, FULL, Registers, lanes};
use crate::shadow::{Pattern, SharedAccess};
use crate::shared_memory::POISON;
use crate::tensor_sum::{HopperSum, TensorSums};
use crate::text::matrix::Types;
use crate::text::numbers::{self, Ty};
use crate::warp::Warp;

/// Row-major matrix index of every element, by register, element in register, and lane.
type Table = Vec<[u16; 32]>;

fn table(layout: FragmentLayout) -> Table {
    let mut rows = vec![[0; 32]; (layout.regs * layout.per_reg) as usize];
    for (lane, reg, element, row, col) in layout.elements() {
        rows[(reg * layout.per_reg + element) as usize][lane as usize] = (row * layout.cols + col) as u16;
    }
    rows
}

static A: LazyLock<Table> = LazyLock::new(|| table(MMA_M16K16_A));
static B: LazyLock<Table> = LazyLock::new(|| table(MMA_K16N8_B));
static ACC_F32: LazyLock<Table> = LazyLock::new(|| table(MMA_M16N8_ACC_F32));
static ACC_F16: LazyLock<Table> = LazyLock::new(|| table(MMA_M16N8_ACC_F16));
static MATRIX: LazyLock<Table> = LazyLock::new(|| table(LDMATRIX));
static MATRIX_TRANSPOSED: LazyLock<Table> = LazyLock::new(|| {
    let transpose = |place: u16| 8 * (place % 8) + place / 8;
    MATRIX.iter().map(|places| places.map(transpose)).collect()
});

/// The places of an 8×8 matrix, as [`Table`], that a lane's two elements have in memory.
fn matrix_places(transposed: bool) -> &'static Table {
    if transposed { &MATRIX_TRANSPOSED } else { &MATRIX }
}

#[inline(always)]
fn widen(bits: u32, ty: Half) -> f64 {
    f64::from(match ty {
        Half::F16 => f16_to_f32(bits),
        Half::BF16 => bf16_to_f32(bits),
    })
}

/// Expands the 16-bit elements of operand registers into a matrix.
#[inline(always)]
fn operand<const N: usize>(r: &Registers, k: &Constants, rows: &[Row], table: &Table, ty: Half) -> [f64; N] {
    let mut matrix = [0.0; N];
    for (reg, &row) in rows.iter().enumerate() {
        let bits: &[u32; 32] = r.get(k, row);
        for element in 0..2 {
            let places = &table[2 * reg + element];
            let mut values = [0.0; 32];
            for lane in 0..32 {
                values[lane] = widen(bits[lane] >> (16 * element) & 0xffff, ty);
            }
            for lane in 0..32 {
                matrix[usize::from(places[lane]) % N] = values[lane];
            }
        }
    }
    matrix
}

/// `acc += a · b`, 16×16 by 16×8, in f64: exact for integers, otherwise rounded once at the end.
#[inline(always)]
fn product(a: &[f64; 256], b: &[f64; 128], acc: &mut [f64; 128]) {
    let (a, b) = (a.as_chunks::<16>().0, b.as_chunks::<8>().0);
    for (acc, a) in acc.as_chunks_mut::<8>().0.iter_mut().zip(a) {
        let mut row = *acc;
        for (x, b) in a.iter().zip(b) {
            row = std::array::from_fn(|j| x.mul_add(b[j], row[j]));
        }
        *acc = row;
    }
}

/// As [`product`] with Hopper's summation, each sum before rounding.
fn hopper_product(sum: HopperSum, a: &[f64; 256], b: &[f64; 128], acc: &mut [f64; 128]) {
    for (at, acc) in acc.iter_mut().enumerate() {
        let (row, col) = (at / 8, at % 8);
        *acc = sum.sum((0..16).map(|k| (a[16 * row + k], b[8 * k + col])), *acc);
    }
}

/// The bits of a sum as f32.
#[inline(always)]
fn rounded(sum: f64, hopper: Option<HopperSum>) -> u32 {
    result(hopper.map_or(sum as f32, |hopper| hopper.to_f32(sum)))
}

/// The elements of words in memory order.
#[inline(always)]
pub(crate) fn widen_words(words: &[u32], element: Ty, out: &mut [f64; 16]) {
    let ty = match element {
        Ty::Half(false) => Half::F16,
        Ty::Half(true) => Half::BF16,
        Ty::Byte(false) => {
            for (four, word) in out.chunks_exact_mut(4).zip(words) {
                for (i, value) in four.iter_mut().enumerate() {
                    *value = f64::from(e4m3_to_f32(word >> (8 * i) & 0xff));
                }
            }
            return;
        }
        _ => {
            let (each, width) = (element.in_register() as usize, 8 * element.bytes());
            for (several, &word) in out.chunks_exact_mut(each).zip(words) {
                for (i, value) in (0..).zip(several) {
                    *value = numbers::value(u64::from(word) >> (width * i), element, false);
                }
            }
            return;
        }
    };
    for (pair, word) in out.chunks_exact_mut(2).zip(words) {
        pair[0] = widen(word & 0xffff, ty);
        pair[1] = widen(word >> 16, ty);
    }
}

/// `d = a·b (+ d)` for a warp's 16 rows, compiled for the best available instruction set. Sums are
/// in f64 and rounded once, or use Hopper's summation.
pub(crate) struct Multiply<'a> {
    pub(crate) r: &'a mut Registers,
    pub(crate) d: &'a [Row],
    pub(crate) accumulate: bool,
    pub(crate) a: &'a [f64],
    pub(crate) b: &'a [f64],
    pub(crate) types: Types,
    pub(crate) hopper: Option<HopperSum>,
}

impl WithSimd for Multiply<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Multiply {
            r,
            d,
            accumulate,
            a,
            b,
            types,
            hopper,
        } = self;
        let (k, each) = (types.k() as usize, types.d.in_register() as usize);
        let width = 32 / each;
        let n = 2 * d.len() * each;
        let mut acc = vec![0.0; 16 * n];
        // Position of element `i` of a lane: four per 8 columns.
        let place = |i: usize, lane: usize| {
            let (row, col) = (lane / 4 + 8 * (i % 4 / 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2);
            row * n + col
        };
        if accumulate {
            for (i, &row) in d.iter().enumerate() {
                let bits: &[u32; 32] = r.own(row);
                for element in 0..each {
                    for lane in 0..32 {
                        let bits = bits[lane] >> (width * element);
                        acc[place(each * i + element, lane)] = match types.d {
                            Ty::F32 => f64::from(f(bits)),
                            other => numbers::value(bits.into(), other, false),
                        };
                    }
                }
            }
        }
        for (acc, a) in acc.chunks_exact_mut(n).zip(a.chunks_exact(k)) {
            if let Some(sum) = hopper {
                for (col, acc) in acc.iter_mut().enumerate() {
                    *acc = sum.sum(a.iter().enumerate().map(|(k, &x)| (x, b[k * n + col])), *acc);
                }
                continue;
            }
            for (&x, b) in a.iter().zip(b.chunks_exact(n)) {
                for (acc, &y) in acc.iter_mut().zip(b) {
                    *acc = x.mul_add(y, *acc);
                }
            }
        }
        for (i, &row) in d.iter().enumerate() {
            let mut bits = [0; 32];
            for element in 0..each {
                for lane in 0..32 {
                    let sum = acc[place(each * i + element, lane)];
                    let of_sum = match types.d {
                        Ty::F32 => rounded(sum, hopper),
                        other => matrix::rounded(other, sum, types.saturates) as u32,
                    };
                    bits[lane] |= of_sum << (width * element);
                }
            }
            r.set(row, FULL, &bits);
        }
    }
}

impl Cluster<'_> {
    /// `mma.sync`. Sums are rounded once at the end to the accumulator's type.
    #[inline(always)]
    pub(crate) fn mma(&mut self, warp: &mut Warp, pc: u32, (input, acc): (MmaInput, MmaAcc), rows: &[Row; OPERANDS]) {
        self.check_members(warp, pc, FULL, "mma.sync");
        let (r, k) = (&mut warp.registers, &self.machine.constants);
        let (ty, of_hopper) = match (input, acc) {
            (MmaInput::F16, MmaAcc::F16) => (Half::F16, HopperSum::halves()),
            (MmaInput::F16, MmaAcc::F32) => (Half::F16, HopperSum::of(WgmmaInput::F16)),
            (MmaInput::BF16, _) => (Half::BF16, HopperSum::of(WgmmaInput::BF16)),
        };
        let sums = self.machine.options.tensor_sums;
        let hopper = (sums == TensorSums::Hopper).then_some(of_hopper);
        // f16 accumulators have two registers.
        let (d, rest) = rows.split_at(if acc == MmaAcc::F16 { 2 } else { 4 });
        let a = operand::<256>(r, k, &rest[..4], &A, ty);
        let b = operand::<128>(r, k, &rest[4..6], &B, ty);
        let c = &rest[6..6 + d.len()];
        let mut sum = [0.0; 128];
        match acc {
            MmaAcc::F16 => sum = operand(r, k, c, &ACC_F16, Half::F16),
            MmaAcc::F32 => {
                for (places, &row) in ACC_F32.iter().zip(c) {
                    let bits: &[u32; 32] = r.get(k, row);
                    for lane in 0..32 {
                        sum[usize::from(places[lane]) % 128] = f64::from(f(bits[lane]));
                    }
                }
            }
        }
        match hopper {
            Some(hopper) => hopper_product(hopper, &a, &b, &mut sum),
            None => product(&a, &b, &mut sum),
        }
        match acc {
            MmaAcc::F16 => {
                for (places, &row) in ACC_F16.chunks_exact(2).zip(d) {
                    let half = |place: u16| {
                        let sum = sum[usize::from(place) % 128];
                        hopper.map_or_else(|| f64_to_f16(sum), |hopper| hopper.to_f16(sum))
                    };
                    let bits = std::array::from_fn(|lane| half(places[0][lane]) | half(places[1][lane]) << 16);
                    r.set::<u32>(row, FULL, &bits);
                }
            }
            MmaAcc::F32 => {
                for (places, &row) in ACC_F32.iter().zip(d) {
                    let mut bits = [0; 32];
                    for lane in 0..32 {
                        bits[lane] = rounded(sum[usize::from(places[lane]) % 128], hopper);
                    }
                    r.set(row, FULL, &bits);
                }
            }
        }
    }

    /// The rows of `count` 8×8 matrices, which lanes 0–7, 8–15, … address.
    fn matrix_rows(&mut self, warp: &Warp, pc: u32, (base, at): (Row, At), count: usize) -> SharedAccess {
        let base = *warp.registers.get(&self.machine.constants, base);
        let addressing = u32::MAX >> (32 - 8 * count);
        self.shared_access(warp, pc, addressing & warp.active, &base, at, 16)
    }

    /// `stmatrix`.
    pub(crate) fn store_matrix(&mut self, warp: &mut Warp, pc: u32, regs: &[Row], transposed: bool, to: (Row, At)) {
        self.check_members(warp, pc, FULL, "stmatrix");
        let access = self.matrix_rows(warp, pc, to, regs.len());
        let mut rows = [[0; 16]; 32];
        for (i, &s) in regs.iter().enumerate() {
            let bits: &[u32; 32] = warp.registers.get(&self.machine.constants, s);
            for (element, places) in matrix_places(transposed).iter().enumerate() {
                for (&place, bits) in places.iter().zip(bits) {
                    let (row, column) = (8 * i + usize::from(place / 8), usize::from(place % 8));
                    let half = (bits >> (16 * element)) as u16;
                    rows[row][2 * column..2 * column + 2].copy_from_slice(&half.to_le_bytes());
                }
            }
        }
        // The lane that addresses a row counts as its writer.
        let actor = (WriterKind::Thread, 32 * warp.index as u32);
        self.write_shadow(warp, &access, Pattern::Scattered, actor, Some(&|lane| rows[lane]));
        self.count_shared(warp.index, &access);
        for lane in lanes(access.mask) {
            let first = access.offsets[lane] as usize / 4;
            for (word, bytes) in self.words[first..first + 4].iter_mut().zip(rows[lane].as_chunks().0) {
                *word = u32::from_le_bytes(*bytes);
            }
        }
    }

    /// `ldmatrix`.
    pub(crate) fn load_matrix(&mut self, warp: &mut Warp, pc: u32, regs: &[Row], transposed: bool, from: (Row, At)) {
        self.check_members(warp, pc, FULL, "ldmatrix");
        let access = self.matrix_rows(warp, pc, from, regs.len());
        if access.mask != 0
            && (!self.shadow.read(&warp.who(pc), &access, Pattern::Scattered) || self.shadow.has_equals(&access))
        {
            self.check_reads(warp, &access, true);
        }
        self.count_shared(warp.index, &access);
        for (i, &d) in regs.iter().enumerate() {
            // The matrix in memory order: 8 rows of 8 elements.
            let mut elements = [POISON & 0xffff; 64];
            for row in lanes(access.mask >> (8 * i) & 0xff) {
                let word = access.offsets[8 * i + row] as usize / 4;
                for (pair, bits) in self.words[word..word + 4].iter().enumerate() {
                    elements[8 * row + 2 * pair] = bits & 0xffff;
                    elements[8 * row + 2 * pair + 1] = bits >> 16;
                }
            }
            let mut value = [0u32; 32];
            for (element, places) in matrix_places(transposed).iter().enumerate() {
                for (value, &place) in value.iter_mut().zip(places) {
                    *value |= elements[usize::from(place) % 64] << (16 * element);
                }
            }
            warp.registers.set(d, warp.active, &value);
        }
    }
}
