//! The register file of a warp, and arithmetic over its rows.
//!
//! Every helper is inlined into the interpreter loop, which is compiled for the best available
//! instruction set; a row of 32 lanes is then two AVX-512 registers.

use crate::program::{CONST, Program, Row};

pub(crate) const FULL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Lanes32(pub(crate) [u32; 32]);

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Lanes64(pub(crate) [u64; 32]);

/// Rows of constants, shared by all warps.
#[derive(Debug)]
pub(crate) struct Constants {
    pub(crate) rows32: Vec<Lanes32>,
    pub(crate) rows64: Vec<Lanes64>,
}

impl Constants {
    pub(crate) fn new(program: &Program) -> Constants {
        Constants {
            rows32: program.consts32.iter().map(|&bits| Lanes32([bits; 32])).collect(),
            rows64: program.consts64.iter().map(|&bits| Lanes64([bits; 32])).collect(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Registers {
    pub(crate) rows32: Vec<Lanes32>,
    pub(crate) rows64: Vec<Lanes64>,
    pub(crate) preds: Vec<u32>,
}

/// Initial contents: a NaN, and an invalid address.
const POISON: u32 = 0xffff_dead;

impl Registers {
    pub(crate) fn new(program: &Program) -> Registers {
        let mut preds = vec![0; program.preds];
        preds[usize::from(crate::program::PRED_TRUE)] = FULL;
        Registers {
            rows32: vec![Lanes32([POISON; 32]); program.rows32],
            rows64: vec![Lanes64([u64::from(POISON) << 32; 32]); program.rows64],
            preds,
        }
    }

    #[inline(always)]
    pub(crate) fn get<'a>(&'a self, constants: &'a Constants, row: Row) -> &'a [u32; 32] {
        if row & CONST == 0 {
            &self.rows32[usize::from(row)].0
        } else {
            &constants.rows32[usize::from(row & !CONST)].0
        }
    }

    #[inline(always)]
    pub(crate) fn get64<'a>(&'a self, constants: &'a Constants, row: Row) -> &'a [u64; 32] {
        if row & CONST == 0 {
            &self.rows64[usize::from(row)].0
        } else {
            &constants.rows64[usize::from(row & !CONST)].0
        }
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
    pub(crate) fn set(&mut self, row: Row, mask: u32, value: &[u32; 32]) {
        let out = &mut self.rows32[usize::from(row)].0;
        if mask == FULL {
            *out = *value;
        } else {
            for i in 0..32 {
                out[i] = if mask >> i & 1 != 0 { value[i] } else { out[i] };
            }
        }
    }

    /// Writes the lanes of `mask`.
    #[inline(always)]
    pub(crate) fn set64(&mut self, row: Row, mask: u32, value: &[u64; 32]) {
        let out = &mut self.rows64[usize::from(row)].0;
        if mask == FULL {
            *out = *value;
        } else {
            for i in 0..32 {
                out[i] = if mask >> i & 1 != 0 { value[i] } else { out[i] };
            }
        }
    }
}

#[inline(always)]
pub(crate) fn map1(r: &mut Registers, k: &Constants, mask: u32, d: Row, a: Row, op: impl Fn(u32) -> u32) {
    let a = r.get(k, a);
    let mut value = [0; 32];
    for i in 0..32 {
        value[i] = op(a[i]);
    }
    r.set(d, mask, &value);
}

#[inline(always)]
pub(crate) fn map2(r: &mut Registers, k: &Constants, mask: u32, [d, a, b]: [Row; 3], op: impl Fn(u32, u32) -> u32) {
    let (a, b) = (r.get(k, a), r.get(k, b));
    let mut value = [0; 32];
    for i in 0..32 {
        value[i] = op(a[i], b[i]);
    }
    r.set(d, mask, &value);
}

#[inline(always)]
pub(crate) fn map3(
    r: &mut Registers,
    k: &Constants,
    mask: u32,
    [d, a, b, c]: [Row; 4],
    op: impl Fn(u32, u32, u32) -> u32,
) {
    let (a, b, c) = (r.get(k, a), r.get(k, b), r.get(k, c));
    let mut value = [0; 32];
    for i in 0..32 {
        value[i] = op(a[i], b[i], c[i]);
    }
    r.set(d, mask, &value);
}

#[inline(always)]
pub(crate) fn map1_64(r: &mut Registers, k: &Constants, mask: u32, d: Row, a: Row, op: impl Fn(u64) -> u64) {
    let a = r.get64(k, a);
    let mut value = [0; 32];
    for i in 0..32 {
        value[i] = op(a[i]);
    }
    r.set64(d, mask, &value);
}

#[inline(always)]
pub(crate) fn map2_64(r: &mut Registers, k: &Constants, mask: u32, [d, a, b]: [Row; 3], op: impl Fn(u64, u64) -> u64) {
    let (a, b) = (r.get64(k, a), r.get64(k, b));
    let mut value = [0; 32];
    for i in 0..32 {
        value[i] = op(a[i], b[i]);
    }
    r.set64(d, mask, &value);
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
