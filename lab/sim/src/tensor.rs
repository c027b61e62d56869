//! Tensor-core products and `ldmatrix`, using the IR's fragment layouts.

use std::sync::LazyLock;

use flashcore_ir::fragment::{
    FragmentLayout, LDMATRIX, MMA_K16N8_B, MMA_M16K16_A, MMA_M16N8_ACC_F16, MMA_M16N8_ACC_F32,
};
use flashcore_ir::inst::WgmmaInput;
use flashcore_ir::wgmma::{WGMMA_M64K16_A, WGMMA_M64K32_A};

use pulp::{Arch, Simd, WithSimd};

use crate::clock::WriterKind;
use crate::cluster::Cluster;
use crate::float::{NAN_F32, bf16_to_f32, e4m3_to_f32, f, f16_to_f32, f64_to_f16};
use crate::program::{At, Row};
use crate::registers::{Constants, FULL, Registers};
use crate::shadow::Pattern;
use crate::shared_memory::POISON;
use crate::tensor_sum::{HopperSum, TensorSums};
use crate::warp::Warp;

/// Row-major matrix index of every element, by register, element in register, and lane.
struct Table(Vec<[u16; 32]>);

impl Table {
    fn new(layout: FragmentLayout) -> Table {
        let mut rows = vec![[0; 32]; (layout.regs * layout.per_reg) as usize];
        for (lane, reg, element, row, col) in layout.elements() {
            rows[(reg * layout.per_reg + element) as usize][lane as usize] = (row * layout.cols + col) as u16;
        }
        Table(rows)
    }
}

static A: LazyLock<Table> = LazyLock::new(|| Table::new(MMA_M16K16_A));
static B: LazyLock<Table> = LazyLock::new(|| Table::new(MMA_K16N8_B));
static ACC_F32: LazyLock<Table> = LazyLock::new(|| Table::new(MMA_M16N8_ACC_F32));
static ACC_F16: LazyLock<Table> = LazyLock::new(|| Table::new(MMA_M16N8_ACC_F16));

#[inline(always)]
fn widen(bits: u32, bf16: bool) -> f64 {
    f64::from(if bf16 { bf16_to_f32(bits) } else { f16_to_f32(bits) })
}

/// Expands the 16-bit elements of operand registers into a matrix.
#[inline(always)]
fn operand<const N: usize>(r: &Registers, k: &Constants, rows: &[Row], table: &Table, bf16: bool) -> [f64; N] {
    let mut matrix = [0.0; N];
    for (reg, &row) in rows.iter().enumerate() {
        let bits = r.get(k, row);
        for element in 0..2 {
            let places = &table.0[2 * reg + element];
            let mut values = [0.0; 32];
            for lane in 0..32 {
                values[lane] = widen(bits[lane] >> (16 * element) & 0xffff, bf16);
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
    for i in 0..16 {
        let mut row = [0.0; 8];
        row.copy_from_slice(&acc[8 * i..8 * i + 8]);
        for k in 0..16 {
            let x = a[16 * i + k];
            for j in 0..8 {
                row[j] = x.mul_add(b[8 * k + j], row[j]);
            }
        }
        acc[8 * i..8 * i + 8].copy_from_slice(&row);
    }
}

/// As [`product`] with Hopper's summation, each sum before rounding.
fn hopper_product(sum: HopperSum, a: &[f64; 256], b: &[f64; 128], acc: &mut [f64; 128]) {
    for (at, acc) in acc.iter_mut().enumerate() {
        let (row, col) = (at / 8, at % 8);
        *acc = sum.sum((0..16).map(|k| (a[16 * row + k], b[8 * k + col])), *acc);
    }
}

/// `mma` with f32 accumulators.
#[inline(always)]
pub(crate) fn mma(
    r: &mut Registers,
    k: &Constants,
    bf16: bool,
    sums: TensorSums,
    (d, a, b, c): (&[Row; 4], &[Row; 4], &[Row; 2], &[Row; 4]),
) {
    let a = operand::<256>(r, k, a, &A, bf16);
    let b = operand::<128>(r, k, b, &B, bf16);
    let table = &ACC_F32.0;
    let mut acc = [0.0; 128];
    for (places, &row) in table.iter().zip(c) {
        let bits = r.get(k, row);
        for lane in 0..32 {
            acc[usize::from(places[lane]) % 128] = f64::from(f(bits[lane]));
        }
    }
    let input = if bf16 { WgmmaInput::BF16 } else { WgmmaInput::F16 };
    let hopper = (sums == TensorSums::Hopper).then(|| HopperSum::of(input));
    match hopper {
        Some(sum) => hopper_product(sum, &a, &b, &mut acc),
        None => product(&a, &b, &mut acc),
    }
    for (places, &row) in table.iter().zip(d) {
        let mut bits = [0; 32];
        for lane in 0..32 {
            let sum = acc[usize::from(places[lane]) % 128];
            let value = hopper.map_or(sum as f32, |hopper| hopper.to_f32(sum));
            bits[lane] = if value.is_nan() { NAN_F32 } else { value.to_bits() };
        }
        r.set(row, FULL, &bits);
    }
}

/// `mma` of f16 with f16 accumulators, rounded to f16 at the end.
#[inline(always)]
pub(crate) fn mma_f16(
    r: &mut Registers,
    k: &Constants,
    sums: TensorSums,
    (d, a, b, c): (&[Row; 2], &[Row; 4], &[Row; 2], &[Row; 2]),
) {
    let a = operand::<256>(r, k, a, &A, false);
    let b = operand::<128>(r, k, b, &B, false);
    let mut acc = operand::<128>(r, k, c, &ACC_F16, false);
    let hopper = (sums == TensorSums::Hopper).then(HopperSum::halves);
    match hopper {
        Some(sum) => hopper_product(sum, &a, &b, &mut acc),
        None => product(&a, &b, &mut acc),
    }
    for (reg, &row) in d.iter().enumerate() {
        let (low, high) = (&ACC_F16.0[2 * reg], &ACC_F16.0[2 * reg + 1]);
        let mut bits = [0; 32];
        for lane in 0..32 {
            let half = |place: u16| {
                let sum = acc[usize::from(place) % 128];
                hopper.map_or_else(|| f64_to_f16(sum), |hopper| hopper.to_f16(sum))
            };
            bits[lane] = half(low[lane]) | half(high[lane]) << 16;
        }
        r.set(row, FULL, &bits);
    }
}

/// Operand A of a warpgroup product from a warp's registers: its 16 rows, row-major.
pub(crate) fn operand_a(r: &Registers, k: &Constants, rows: &[Row; 4], input: WgmmaInput) -> Vec<f64> {
    let depth = input.k() as usize;
    let layout = match input {
        WgmmaInput::F16 | WgmmaInput::BF16 => WGMMA_M64K16_A,
        WgmmaInput::E4M3 => WGMMA_M64K32_A,
    };
    let mut matrix = vec![0.0; 16 * depth];
    for (reg, &row) in rows.iter().enumerate() {
        let bits = r.get(k, row);
        for (lane, &bits) in bits.iter().enumerate() {
            let mut elements = [0.0; 16];
            widen_words(&[bits], input, &mut elements);
            for (e, &value) in elements.iter().enumerate().take(layout.per_reg as usize) {
                // The first warp's lanes hold the first 16 rows.
                let (row, col) = layout.at(lane as u32, reg as u32, e as u32);
                matrix[row as usize * depth + col as usize] = value;
            }
        }
    }
    matrix
}

/// The elements of words in memory order.
#[inline(always)]
pub(crate) fn widen_words(words: &[u32], input: WgmmaInput, out: &mut [f64; 16]) {
    match input {
        WgmmaInput::F16 | WgmmaInput::BF16 => {
            let bf16 = input == WgmmaInput::BF16;
            for (pair, word) in out.chunks_exact_mut(2).zip(words) {
                pair[0] = widen(word & 0xffff, bf16);
                pair[1] = widen(word >> 16, bf16);
            }
        }
        WgmmaInput::E4M3 => {
            for (four, word) in out.chunks_exact_mut(4).zip(words) {
                for (i, value) in four.iter_mut().enumerate() {
                    *value = f64::from(e4m3_to_f32(word >> (8 * i) & 0xff));
                }
            }
        }
    }
}

/// `d = a·b (+ d)` for a warp's 16 rows and `d.len() / 2` columns. Sums are in f64 and rounded once
/// to f32, or use Hopper's summation.
pub(crate) fn multiply(
    r: &mut Registers,
    d: &[Row],
    accumulate: bool,
    (a, b): (&[f64], &[f64]),
    k: usize,
    hopper: Option<HopperSum>,
) {
    Arch::new().dispatch(Multiply {
        r,
        d,
        accumulate,
        a,
        b,
        k,
        hopper,
    });
}

/// Arguments of [`multiply_rows`], which is compiled for the best available instruction set.
struct Multiply<'a> {
    r: &'a mut Registers,
    d: &'a [Row],
    accumulate: bool,
    a: &'a [f64],
    b: &'a [f64],
    k: usize,
    hopper: Option<HopperSum>,
}

impl WithSimd for Multiply<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        multiply_rows(self);
    }
}

#[inline(always)]
fn multiply_rows(multiply: Multiply<'_>) {
    let Multiply {
        r,
        d,
        accumulate,
        a,
        b,
        k,
        hopper,
    } = multiply;
    let n = 2 * d.len();
    let mut acc = vec![0.0; 16 * n];
    // Position of register `i` of a lane: four registers per 8 columns.
    let place = |i: usize, lane: usize| {
        let (row, col) = (lane / 4 + 8 * (i % 4 / 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2);
        row * n + col
    };
    if accumulate {
        for (i, &row) in d.iter().enumerate() {
            let bits = &r.rows32[usize::from(row)].0;
            for lane in 0..32 {
                acc[place(i, lane)] = f64::from(f(bits[lane]));
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
        for lane in 0..32 {
            let sum = acc[place(i, lane)];
            let value = hopper.map_or(sum as f32, |hopper| hopper.to_f32(sum));
            bits[lane] = if value.is_nan() { NAN_F32 } else { value.to_bits() };
        }
        r.set(row, FULL, &bits);
    }
}

impl Cluster<'_> {
    /// `stmatrix`: stores 8×8 matrices to rows addressed by lanes 0–7, 8–15, …
    pub(crate) fn store_matrix(&mut self, warp: &mut Warp, pc: u32, s: &[Row; 4], count: u8, transposed: bool, at: At) {
        self.check_members(warp, pc, FULL, "stmatrix");
        let constants = &self.machine.constants;
        let base = *warp.registers.get(constants, at.base);
        let addressing = u32::MAX >> (32 - 8 * u32::from(count));
        let (offsets, mask) = self.shared_offsets(warp, pc, addressing & warp.active, &base, at, 16);
        let cells = (16 >> self.shadow.shift) as usize;
        // The lane that addresses a row counts as its writer.
        let actor = (WriterKind::Thread, 32 * warp.index as u32);
        self.write_shadow(warp, pc, mask, &offsets, cells, Pattern::Scattered, at, actor);
        self.count_shared(pc, warp.index, at, &offsets, mask, 16);
        for (i, &s) in s.iter().enumerate().take(usize::from(count)) {
            let bits = *warp.registers.get(constants, s);
            for (lane, _, element, row, col) in LDMATRIX.elements() {
                let (row, col) = if transposed { (col, row) } else { (row, col) };
                let lane_of_row = 8 * i + row as usize;
                if mask >> lane_of_row & 1 == 0 {
                    continue;
                }
                let byte = offsets[lane_of_row] + 2 * col;
                let half = bits[lane as usize] >> (16 * element) & 0xffff;
                let shift = 8 * (byte & 2);
                let word = &mut self.words[byte as usize / 4];
                *word = *word & !(0xffff << shift) | half << shift;
            }
        }
    }

    /// `ldmatrix`: loads 8×8 matrices from rows addressed by lanes 0–7, 8–15, …
    pub(crate) fn load_matrix(&mut self, warp: &mut Warp, pc: u32, d: &[Row; 4], count: u8, transposed: bool, at: At) {
        self.check_members(warp, pc, FULL, "ldmatrix");
        let base = *warp.registers.get(&self.machine.constants, at.base);
        let addressing = u32::MAX >> (32 - 8 * u32::from(count));
        let (offsets, mask) = self.shared_offsets(warp, pc, addressing & warp.active, &base, at, 16);
        let cells = (16 >> self.shadow.shift) as usize;
        if mask != 0
            && !self
                .shadow
                .read(&warp.who(pc), mask, &offsets, cells, Pattern::Scattered)
        {
            self.check_reads(warp, pc, mask, &offsets, cells, at, true);
        }
        self.count_shared(pc, warp.index, at, &offsets, mask, 16);
        for (i, &d) in d.iter().enumerate().take(usize::from(count)) {
            // The matrix in memory order: 8 rows of 8 elements.
            let mut elements = [POISON & 0xffff; 64];
            for row in 0..8 {
                let lane = 8 * i + row;
                if mask >> lane & 1 == 0 {
                    continue;
                }
                let word = offsets[lane] as usize / 4;
                for (pair, bits) in self.words[word..word + 4].iter().enumerate() {
                    elements[8 * row + 2 * pair] = bits & 0xffff;
                    elements[8 * row + 2 * pair + 1] = bits >> 16;
                }
            }
            let mut value = [0; 32];
            for (lane, _, element, row, col) in LDMATRIX.elements() {
                let place = if transposed { 8 * col + row } else { 8 * row + col };
                value[lane as usize] |= elements[place as usize] << (16 * element);
            }
            warp.registers.set(d, warp.active, &value);
        }
    }
}
