//! Arithmetic operations over rows of 32 lanes.

use flashcore_ir::inst::Cmp;

use crate::float::{self, f, result};
use crate::program::{Bin32, Bin64, Number, Row, Tri32, Un32, Un64};
use crate::registers::{Constants, Registers, map1, map1_64, map2, map2_64, map3, test2};

#[inline(always)]
pub(crate) fn un32(r: &mut Registers, k: &Constants, mask: u32, op: Un32, d: Row, a: Row) {
    match op {
        Un32::Mov => map1(r, k, mask, d, a, |x| x),
        Un32::NegI => map1(r, k, mask, d, a, |x| x.wrapping_neg()),
        Un32::AbsS => map1(r, k, mask, d, a, |x| (x as i32).wrapping_abs() as u32),
        Un32::Not => map1(r, k, mask, d, a, |x| !x),
        Un32::NegF => map1(r, k, mask, d, a, |x| x ^ 0x8000_0000),
        Un32::AbsF => map1(r, k, mask, d, a, |x| x & 0x7fff_ffff),
        Un32::Ex2 => map1(r, k, mask, d, a, float::ex2),
        Un32::Lg2 => map1(r, k, mask, d, a, float::lg2),
        Un32::Rcp => map1(r, k, mask, d, a, float::rcp),
        Un32::Popc => map1(r, k, mask, d, a, |x| x.count_ones()),
        Un32::Clz => map1(r, k, mask, d, a, |x| x.leading_zeros()),
        Un32::NegHalves => map1(r, k, mask, d, a, |x| x ^ 0x8000_8000),
        Un32::AbsHalves => map1(r, k, mask, d, a, |x| x & 0x7fff_7fff),
        Un32::F32FromF16 => map1(r, k, mask, d, a, |x| float::f16_to_f32(x & 0xffff).to_bits()),
        Un32::F16FromF32 => map1(r, k, mask, d, a, |x| float::f32_to_f16(f(x))),
        Un32::F16x2FromE4M3x2 => map1(r, k, mask, d, a, |x| {
            let half = |byte| float::f32_to_f16(float::e4m3_to_f32(byte));
            half(x & 0xff) | half(x >> 8 & 0xff) << 16
        }),
        Un32::BF16FromF32 => map1(r, k, mask, d, a, |x| float::f32_to_bf16(f(x))),
        Un32::F32FromU32 => map1(r, k, mask, d, a, |x| (x as f32).to_bits()),
        Un32::F32FromS32 => map1(r, k, mask, d, a, |x| (x as i32 as f32).to_bits()),
        // Rust's casts saturate and map NaN to 0, as `cvt.rzi` does.
        Un32::S32FromF32 => map1(r, k, mask, d, a, |x| f(x) as i32 as u32),
        Un32::U32FromF32 => map1(r, k, mask, d, a, |x| f(x) as u32),
    }
}

/// A row operation on float pairs: widens both halves, computes, rounds once.
macro_rules! halves {
    ($r:ident, $k:ident, $mask:ident, $rows:ident, $which:ident, $op:expr) => {
        map2($r, $k, $mask, $rows, |x, y| float::$which(x, y, 0, |a, b, _| $op(a, b)))
    };
}

/// Packed 16-bit floats. Compiled once instead of per instruction set: these operations are rare
/// and their code is long.
#[inline(never)]
fn packed2(r: &mut Registers, k: &Constants, mask: u32, op: Bin32, rows: [Row; 3]) {
    match op {
        Bin32::AddF16x2 => halves!(r, k, mask, rows, f16_halves, float::add_odd),
        Bin32::SubF16x2 => halves!(r, k, mask, rows, f16_halves, |a: f64, b: f64| float::add_odd(a, -b)),
        Bin32::MulF16x2 => halves!(r, k, mask, rows, f16_halves, |a, b| a * b),
        Bin32::AddBF16x2 => halves!(r, k, mask, rows, bf16_halves, float::add_odd),
        Bin32::SubBF16x2 => halves!(r, k, mask, rows, bf16_halves, |a: f64, b: f64| float::add_odd(a, -b)),
        Bin32::MulBF16x2 => halves!(r, k, mask, rows, bf16_halves, |a, b| a * b),
        Bin32::MinF16x2 => map2(r, k, mask, rows, |x, y| float::halves_extreme(x, y, 0x7c00, false)),
        Bin32::MaxF16x2 => map2(r, k, mask, rows, |x, y| float::halves_extreme(x, y, 0x7c00, true)),
        Bin32::MinBF16x2 => map2(r, k, mask, rows, |x, y| float::halves_extreme(x, y, 0x7f80, false)),
        Bin32::MaxBF16x2 => map2(r, k, mask, rows, |x, y| float::halves_extreme(x, y, 0x7f80, true)),
        _ => {}
    }
}

#[inline(never)]
fn packed_fma(r: &mut Registers, k: &Constants, mask: u32, bf16: bool, rows: [Row; 4]) {
    if bf16 {
        map3(r, k, mask, rows, |x, y, z| {
            float::bf16_halves(x, y, z, |a, b, c| float::add_odd(a * b, c))
        });
    } else {
        map3(r, k, mask, rows, |x, y, z| {
            float::f16_halves(x, y, z, |a, b, c| float::add_odd(a * b, c))
        });
    }
}

/// The quotient of a division by zero is all ones, as in the GPU's division routine. The caller
/// reports the division.
#[inline(always)]
pub(crate) fn bin32(r: &mut Registers, k: &Constants, mask: u32, op: Bin32, rows: [Row; 3]) {
    match op {
        Bin32::AddI => map2(r, k, mask, rows, |x, y| x.wrapping_add(y)),
        Bin32::SubI => map2(r, k, mask, rows, |x, y| x.wrapping_sub(y)),
        Bin32::MulI => map2(r, k, mask, rows, |x, y| x.wrapping_mul(y)),
        Bin32::MulHiU => map2(r, k, mask, rows, |x, y| ((x as u64 * y as u64) >> 32) as u32),
        Bin32::MulHiS => map2(r, k, mask, rows, |x, y| {
            ((x as i32 as i64 * y as i32 as i64) >> 32) as u32
        }),
        Bin32::MinU => map2(r, k, mask, rows, |x, y| x.min(y)),
        Bin32::MaxU => map2(r, k, mask, rows, |x, y| x.max(y)),
        Bin32::MinS => map2(r, k, mask, rows, |x, y| (x as i32).min(y as i32) as u32),
        Bin32::MaxS => map2(r, k, mask, rows, |x, y| (x as i32).max(y as i32) as u32),
        Bin32::DivU => map2(r, k, mask, rows, |x, y| x.checked_div(y).unwrap_or(u32::MAX)),
        Bin32::RemU => map2(r, k, mask, rows, |x, y| x.checked_rem(y).unwrap_or(x)),
        Bin32::DivS => map2(r, k, mask, rows, |x, y| match y {
            0 => u32::MAX,
            _ => (x as i32).wrapping_div(y as i32) as u32,
        }),
        Bin32::RemS => map2(r, k, mask, rows, |x, y| match y {
            0 => x,
            _ => (x as i32).wrapping_rem(y as i32) as u32,
        }),
        Bin32::And => map2(r, k, mask, rows, |x, y| x & y),
        Bin32::Or => map2(r, k, mask, rows, |x, y| x | y),
        Bin32::Xor => map2(r, k, mask, rows, |x, y| x ^ y),
        Bin32::Shl => map2(r, k, mask, rows, |x, y| if y < 32 { x << (y & 31) } else { 0 }),
        Bin32::ShrU => map2(r, k, mask, rows, |x, y| if y < 32 { x >> (y & 31) } else { 0 }),
        Bin32::ShrS => map2(r, k, mask, rows, |x, y| (x as i32 >> y.min(31)) as u32),
        Bin32::AddF => map2(r, k, mask, rows, |x, y| result(f(x) + f(y))),
        Bin32::SubF => map2(r, k, mask, rows, |x, y| result(f(x) - f(y))),
        Bin32::MulF => map2(r, k, mask, rows, |x, y| result(f(x) * f(y))),
        Bin32::MinF => map2(r, k, mask, rows, float::min_f32),
        Bin32::MaxF => map2(r, k, mask, rows, float::max_f32),
        Bin32::AddF16x2
        | Bin32::SubF16x2
        | Bin32::MulF16x2
        | Bin32::MinF16x2
        | Bin32::MaxF16x2
        | Bin32::AddBF16x2
        | Bin32::SubBF16x2
        | Bin32::MulBF16x2
        | Bin32::MinBF16x2
        | Bin32::MaxBF16x2 => packed2(r, k, mask, op, rows),
        Bin32::PackF16 => map2(r, k, mask, rows, |x, y| {
            float::f32_to_f16(f(x)) | float::f32_to_f16(f(y)) << 16
        }),
        Bin32::PackE4M3 => map2(r, k, mask, rows, |x, y| {
            float::f32_to_e4m3(f(x)) | float::f32_to_e4m3(f(y)) << 8
        }),
        Bin32::PackBF16 => map2(r, k, mask, rows, |x, y| {
            float::f32_to_bf16(f(x)) | float::f32_to_bf16(f(y)) << 16
        }),
        Bin32::Pack16 => map2(r, k, mask, rows, |x, y| x & 0xffff | y << 16),
    }
}

#[inline(always)]
pub(crate) fn tri32(r: &mut Registers, k: &Constants, mask: u32, op: Tri32, rows: [Row; 4]) {
    match op {
        Tri32::FmaF => map3(r, k, mask, rows, |x, y, z| result(f(x).mul_add(f(y), f(z)))),
        Tri32::MadI => map3(r, k, mask, rows, |x, y, z| x.wrapping_mul(y).wrapping_add(z)),
        Tri32::FmaF16x2 => packed_fma(r, k, mask, false, rows),
        Tri32::FmaBF16x2 => packed_fma(r, k, mask, true, rows),
        Tri32::Prmt => map3(r, k, mask, rows, prmt),
    }
}

/// `prmt`: selects four of eight bytes. Bit 3 of a selector nibble replicates the sign instead.
#[inline(always)]
fn prmt(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let mut out = 0;
    for i in 0..4 {
        let nibble = selector >> (4 * i) & 0xf;
        let byte = (bytes >> (8 * (nibble & 7))) as u32 & 0xff;
        let spread = 0xff * (byte >> 7);
        out |= float::pick(nibble & 8 != 0, spread, byte) << (8 * i);
    }
    out
}

/// `lop3`: each result bit is bit `4·a + 2·b + c` of the table.
#[inline(always)]
pub(crate) fn lop3(r: &mut Registers, k: &Constants, mask: u32, rows: [Row; 4], table: u8) {
    // A sum of products: a term is all ones if its bit of the table is set.
    let mut terms = [0u32; 8];
    for (i, term) in terms.iter_mut().enumerate() {
        *term = if table >> i & 1 != 0 { u32::MAX } else { 0 };
    }
    map3(r, k, mask, rows, |a, b, c| {
        (!a & !b & !c & terms[0])
            | (!a & !b & c & terms[1])
            | (!a & b & !c & terms[2])
            | (!a & b & c & terms[3])
            | (a & !b & !c & terms[4])
            | (a & !b & c & terms[5])
            | (a & b & !c & terms[6])
            | (a & b & c & terms[7])
    });
}

#[inline(always)]
pub(crate) fn un64(r: &mut Registers, k: &Constants, mask: u32, op: Un64, d: Row, a: Row) {
    match op {
        Un64::Mov => map1_64(r, k, mask, d, a, |x| x),
        Un64::Neg => map1_64(r, k, mask, d, a, |x| x.wrapping_neg()),
        Un64::AbsS => map1_64(r, k, mask, d, a, |x| (x as i64).wrapping_abs() as u64),
        Un64::Not => map1_64(r, k, mask, d, a, |x| !x),
    }
}

#[inline(always)]
pub(crate) fn bin64(r: &mut Registers, k: &Constants, mask: u32, op: Bin64, rows: [Row; 3]) {
    match op {
        Bin64::Add => map2_64(r, k, mask, rows, |x, y| x.wrapping_add(y)),
        Bin64::Sub => map2_64(r, k, mask, rows, |x, y| x.wrapping_sub(y)),
        Bin64::Mul => map2_64(r, k, mask, rows, |x, y| x.wrapping_mul(y)),
        Bin64::MulHiU => map2_64(r, k, mask, rows, |x, y| ((x as u128 * y as u128) >> 64) as u64),
        Bin64::MulHiS => map2_64(r, k, mask, rows, |x, y| {
            ((x as i64 as i128 * y as i64 as i128) >> 64) as u64
        }),
        Bin64::MinU => map2_64(r, k, mask, rows, |x, y| x.min(y)),
        Bin64::MaxU => map2_64(r, k, mask, rows, |x, y| x.max(y)),
        Bin64::MinS => map2_64(r, k, mask, rows, |x, y| (x as i64).min(y as i64) as u64),
        Bin64::MaxS => map2_64(r, k, mask, rows, |x, y| (x as i64).max(y as i64) as u64),
        Bin64::DivU => map2_64(r, k, mask, rows, |x, y| x.checked_div(y).unwrap_or(u64::MAX)),
        Bin64::RemU => map2_64(r, k, mask, rows, |x, y| x.checked_rem(y).unwrap_or(x)),
        Bin64::DivS => map2_64(r, k, mask, rows, |x, y| match y {
            0 => u64::MAX,
            _ => (x as i64).wrapping_div(y as i64) as u64,
        }),
        Bin64::RemS => map2_64(r, k, mask, rows, |x, y| match y {
            0 => x,
            _ => (x as i64).wrapping_rem(y as i64) as u64,
        }),
        Bin64::And => map2_64(r, k, mask, rows, |x, y| x & y),
        Bin64::Or => map2_64(r, k, mask, rows, |x, y| x | y),
        Bin64::Xor => map2_64(r, k, mask, rows, |x, y| x ^ y),
    }
}

/// `a << b` or `a >> b` of 64 bits by a 32-bit amount, clamped to the width.
#[inline(always)]
pub(crate) fn shift64(r: &mut Registers, k: &Constants, mask: u32, left: bool, signed: bool, [d, a, b]: [Row; 3]) {
    let (a, b) = (r.get64(k, a), r.get(k, b));
    let mut value = [0; 32];
    for i in 0..32 {
        let by = b[i];
        value[i] = match (left, signed) {
            (true, _) => a[i].checked_shl(by).unwrap_or(0),
            (false, false) => a[i].checked_shr(by).unwrap_or(0),
            (false, true) => ((a[i] as i64) >> by.min(63)) as u64,
        };
    }
    r.set64(d, mask, &value);
}

/// 64-bit product of 32-bit rows plus a 64-bit row (constant zero if there is none).
#[inline(always)]
pub(crate) fn mad_wide(r: &mut Registers, k: &Constants, mask: u32, signed: bool, [d, a, b]: [Row; 3], c: Option<Row>) {
    let (a, b) = (r.get(k, a), r.get(k, b));
    let mut value = [0u64; 32];
    if signed {
        for i in 0..32 {
            value[i] = (a[i] as i32 as i64 * b[i] as i32 as i64) as u64;
        }
    } else {
        for i in 0..32 {
            value[i] = a[i] as u64 * b[i] as u64;
        }
    }
    if let Some(c) = c {
        let c = r.get64(k, c);
        for i in 0..32 {
            value[i] = value[i].wrapping_add(c[i]);
        }
    }
    r.set64(d, mask, &value);
}

#[inline(always)]
pub(crate) fn setp32(r: &Registers, k: &Constants, cmp: Cmp, number: Number, a: Row, b: Row) -> u32 {
    let (a, b) = (r.get(k, a), r.get(k, b));
    match (number, cmp) {
        (Number::Float, Cmp::Eq) => test2(a, b, |x, y| f(x) == f(y)),
        (Number::Float, Cmp::Ne) => test2(a, b, |x, y| f(x) != f(y)),
        (Number::Float, Cmp::Lt) => test2(a, b, |x, y| f(x) < f(y)),
        (Number::Float, Cmp::Le) => test2(a, b, |x, y| f(x) <= f(y)),
        (Number::Float, Cmp::Gt) => test2(a, b, |x, y| f(x) > f(y)),
        (Number::Float, Cmp::Ge) => test2(a, b, |x, y| f(x) >= f(y)),
        (_, Cmp::Eq) => test2(a, b, |x, y| x == y),
        (_, Cmp::Ne) => test2(a, b, |x, y| x != y),
        (Number::Unsigned, Cmp::Lt) => test2(a, b, |x, y| x < y),
        (Number::Unsigned, Cmp::Le) => test2(a, b, |x, y| x <= y),
        (Number::Unsigned, Cmp::Gt) => test2(a, b, |x, y| x > y),
        (Number::Unsigned, Cmp::Ge) => test2(a, b, |x, y| x >= y),
        (Number::Signed, Cmp::Lt) => test2(a, b, |x, y| (x as i32) < y as i32),
        (Number::Signed, Cmp::Le) => test2(a, b, |x, y| x as i32 <= y as i32),
        (Number::Signed, Cmp::Gt) => test2(a, b, |x, y| x as i32 > y as i32),
        (Number::Signed, Cmp::Ge) => test2(a, b, |x, y| x as i32 >= y as i32),
    }
}

#[inline(always)]
pub(crate) fn setp64(r: &Registers, k: &Constants, cmp: Cmp, number: Number, a: Row, b: Row) -> u32 {
    let (a, b) = (r.get64(k, a), r.get64(k, b));
    // Flipping the sign bit gives signed numbers the order of unsigned ones.
    let flip = if number == Number::Signed { 1 << 63 } else { 0u64 };
    match cmp {
        Cmp::Eq => test2(a, b, |x, y| x == y),
        Cmp::Ne => test2(a, b, |x, y| x != y),
        Cmp::Lt => test2(a, b, |x, y| x ^ flip < y ^ flip),
        Cmp::Le => test2(a, b, |x, y| x ^ flip <= y ^ flip),
        Cmp::Gt => test2(a, b, |x, y| x ^ flip > y ^ flip),
        Cmp::Ge => test2(a, b, |x, y| x ^ flip >= y ^ flip),
    }
}
