//! The register file of a warp, and operations on its rows.
//!
//! The functions for rows are inlined into the interpreter loop, which is compiled for each
//! instruction set; a row of 32 lanes is two AVX-512 registers.

use crate::program::{CONST, PRED_TRUE, Program, Row};

pub(crate) const FULL: u32 = u32::MAX;

/// The lanes of a mask.
#[inline(always)]
pub(crate) fn lanes(mask: u32) -> Lanes {
    Lanes(mask)
}

#[derive(Clone, Copy)]
pub(crate) struct Lanes(u32);

impl Iterator for Lanes {
    type Item = usize;
    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let lane = self.0.trailing_zeros() as usize;
        self.0 &= self.0.wrapping_sub(1);
        (lane < 32).then_some(lane)
    }
}

/// The value of each lane.
#[derive(Clone, Copy, Debug, Hash)]
#[repr(align(64))]
pub(crate) struct Lane<T>(pub(crate) [T; 32]);

/// The rows of the 32-bit and of the 64-bit values.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Files {
    rows32: Vec<Lane<u32>>,
    rows64: Vec<Lane<u64>>,
}

/// A type of the values of a row.
pub(crate) trait Word: Copy + Default {
    fn rows(files: &Files) -> &[Lane<Self>];
    fn rows_mut(files: &mut Files) -> &mut [Lane<Self>];
    fn from_bits(bits: u64) -> Self;
}

impl Word for u32 {
    #[inline(always)]
    fn rows(files: &Files) -> &[Lane<u32>] {
        &files.rows32
    }
    #[inline(always)]
    fn rows_mut(files: &mut Files) -> &mut [Lane<u32>] {
        &mut files.rows32
    }
    fn from_bits(bits: u64) -> u32 {
        bits as u32
    }
}

impl Word for u64 {
    #[inline(always)]
    fn rows(files: &Files) -> &[Lane<u64>] {
        &files.rows64
    }
    #[inline(always)]
    fn rows_mut(files: &mut Files) -> &mut [Lane<u64>] {
        &mut files.rows64
    }
    fn from_bits(bits: u64) -> u64 {
        bits
    }
}

/// Rows of constants, shared by all warps.
pub(crate) type Constants = Files;

impl Files {
    pub(crate) fn constants(program: &Program<'_>) -> Constants {
        Files {
            rows32: program.consts32.iter().map(|&bits| Lane([bits; 32])).collect(),
            rows64: program.consts64.iter().map(|&bits| Lane([bits; 32])).collect(),
        }
    }
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct Registers {
    files: Files,
    preds: Vec<u32>,
}

/// Initial contents: a NaN, and an invalid address.
const POISON: u32 = 0xffff_dead;

impl Registers {
    pub(crate) fn new(program: &Program<'_>) -> Registers {
        let mut preds = vec![0; program.rows.preds];
        preds[usize::from(PRED_TRUE)] = FULL;
        Registers {
            files: Files {
                rows32: vec![Lane([POISON; 32]); program.rows.rows32],
                rows64: vec![Lane([u64::from(POISON) << 32; 32]); program.rows.rows64],
            },
            preds,
        }
    }

    #[inline(always)]
    pub(crate) fn get<'a, T: Word + 'a>(&'a self, constants: &'a Constants, row: Row) -> &'a [T; 32] {
        if row & CONST == 0 {
            self.own(row)
        } else {
            &T::rows(constants)[usize::from(row & !CONST)].0
        }
    }

    /// As [`Self::get`] for a row that is no constant.
    #[inline(always)]
    pub(crate) fn own<T: Word>(&self, row: Row) -> &[T; 32] {
        &T::rows(&self.files)[usize::from(row)].0
    }

    #[inline(always)]
    pub(crate) fn pred(&self, row: Row) -> u32 {
        self.preds[usize::from(row)]
    }

    #[inline(always)]
    pub(crate) fn set_pred(&mut self, row: Row, mask: u32, value: u32) {
        let old = &mut self.preds[usize::from(row)];
        *old = *old & !mask | value & mask;
    }

    /// Writes the lanes of `mask`.
    #[inline(always)]
    pub(crate) fn set<T: Word>(&mut self, row: Row, mask: u32, value: &[T; 32]) {
        let out = &mut T::rows_mut(&mut self.files)[usize::from(row)].0;
        if mask == FULL {
            *out = *value;
        } else {
            blend(out, mask, value);
        }
    }
}

/// Not inlined: partial masks are rare, and the code would be repeated in every operation.
#[inline(never)]
fn blend<T: Word>(out: &mut [T; 32], mask: u32, value: &[T; 32]) {
    for i in 0..32 {
        out[i] = if mask >> i & 1 != 0 { value[i] } else { out[i] };
    }
}

/// `d = op(a)` in the lanes of `mask`.
#[inline(always)]
pub(crate) fn map1<A: Word, D: Word>(
    r: &mut Registers,
    k: &Constants,
    mask: u32,
    [d, a]: [Row; 2],
    op: impl Fn(A) -> D,
) {
    let a = r.get(k, a);
    let mut value = [D::default(); 32];
    for i in 0..32 {
        value[i] = op(a[i]);
    }
    r.set(d, mask, &value);
}

/// `d = op(a, b)`.
#[inline(always)]
pub(crate) fn map2<A: Word, B: Word, D: Word>(
    r: &mut Registers,
    k: &Constants,
    mask: u32,
    [d, a, b]: [Row; 3],
    op: impl Fn(A, B) -> D,
) {
    let (a, b) = (r.get(k, a), r.get(k, b));
    let mut value = [D::default(); 32];
    for i in 0..32 {
        value[i] = op(a[i], b[i]);
    }
    r.set(d, mask, &value);
}

/// `d = op(a, b, c)`.
#[inline(always)]
pub(crate) fn map3<A: Word, B: Word, C: Word, D: Word>(
    r: &mut Registers,
    k: &Constants,
    mask: u32,
    [d, a, b, c]: [Row; 4],
    op: impl Fn(A, B, C) -> D,
) {
    let (a, b, c) = (r.get(k, a), r.get(k, b), r.get(k, c));
    let mut value = [D::default(); 32];
    for i in 0..32 {
        value[i] = op(a[i], b[i], c[i]);
    }
    r.set(d, mask, &value);
}

/// `d = cond ? a : b`.
#[inline(always)]
pub(crate) fn select<T: Word>(r: &mut Registers, k: &Constants, mask: u32, [d, cond, a, b]: [Row; 4]) {
    let cond = r.pred(cond);
    let (a, b): (&[T; 32], &[T; 32]) = (r.get(k, a), r.get(k, b));
    let mut value = [T::default(); 32];
    for i in 0..32 {
        value[i] = if cond >> i & 1 != 0 { a[i] } else { b[i] };
    }
    r.set(d, mask, &value);
}

/// One bit per lane: whether `op` holds.
#[inline(always)]
pub(crate) fn test2<T: Copy>(a: &[T; 32], b: &[T; 32], op: impl Fn(T, T) -> bool) -> u32 {
    let mut bits = [0u32; 32];
    for i in 0..32 {
        bits[i] = (op(a[i], b[i]) as u32) << i;
    }
    bits.iter().fold(0, |all, bit| all | bit)
}
