//! Arithmetic over rows of 32 lanes.

use flashcore_ir::inst::{BinOp, Cmp, Cvt, UnOp};

use crate::float::{self, f, result};
use crate::program::{FloatOp, Half, Number, Row};
use crate::registers::{Constants, Registers, Word, map1, map2, map3, test2};

/// As [`map1`] for rare operations: compiled once instead of once per instruction set.
#[inline(never)]
fn rare1<A: Word, D: Word>(r: &mut Registers, k: &Constants, mask: u32, rows: [Row; 2], op: impl Fn(A) -> D) {
    map1(r, k, mask, rows, op);
}

/// As [`rare1`] for [`map2`].
#[inline(never)]
fn rare2<T: Word, D: Word>(r: &mut Registers, k: &Constants, mask: u32, rows: [Row; 3], op: impl Fn(T, T) -> D) {
    map2(r, k, mask, rows, op);
}

#[inline(always)]
pub(crate) fn un32(r: &mut Registers, k: &Constants, mask: u32, op: UnOp, rows: [Row; 2]) {
    match op {
        UnOp::Neg | UnOp::Not => unreachable!("read as operations with a constant"),
        UnOp::Abs => rare1(r, k, mask, rows, |x: u32| (x as i32).wrapping_abs() as u32),
        UnOp::Ex2 => map1(r, k, mask, rows, float::ex2),
        UnOp::Lg2 => rare1(r, k, mask, rows, float::lg2),
        UnOp::Rcp => map1(r, k, mask, rows, float::rcp),
        UnOp::Popc => rare1(r, k, mask, rows, |x: u32| x.count_ones()),
        UnOp::Clz => rare1(r, k, mask, rows, |x: u32| x.leading_zeros()),
    }
}

#[inline(always)]
pub(crate) fn cvt(r: &mut Registers, k: &Constants, mask: u32, op: Cvt, rows: [Row; 2]) {
    match op {
        Cvt::U64FromU32 => map1(r, k, mask, rows, |x: u32| x as u64),
        Cvt::S64FromS32 => map1(r, k, mask, rows, |x: u32| x as i32 as i64 as u64),
        Cvt::U32FromU64 => map1(r, k, mask, rows, |x: u64| x as u32),
        Cvt::F32FromF16 => map1(r, k, mask, rows, |x: u32| float::f16_to_f32(x & 0xffff).to_bits()),
        Cvt::F16FromF32 => rare1(r, k, mask, rows, |x| float::f32_to_f16(f(x))),
        Cvt::BF16FromF32 => rare1(r, k, mask, rows, |x| float::f32_to_bf16(f(x))),
        Cvt::F16x2FromE4M3x2 => rare1(r, k, mask, rows, |x: u32| {
            let half = |byte| float::f32_to_f16(float::e4m3_to_f32(byte));
            half(x & 0xff) | half(x >> 8 & 0xff) << 16
        }),
        Cvt::F32FromU32 => map1(r, k, mask, rows, |x: u32| (x as f32).to_bits()),
        Cvt::F32FromS32 => map1(r, k, mask, rows, |x: u32| (x as i32 as f32).to_bits()),
        // Rust's casts saturate and map NaN to 0, as `cvt.rzi` does.
        Cvt::S32FromF32 => rare1(r, k, mask, rows, |x| f(x) as i32 as u32),
        Cvt::U32FromF32 => rare1(r, k, mask, rows, |x| f(x) as u32),
    }
}

/// Defines an integer operation for a word size. The quotient of a division by zero is all ones, as
/// in the GPU's division routine; the caller reports the division. Products of twice the width
/// exist for 32 bits only.
macro_rules! integer {
    ($name:ident, $word:ty, $signed:ty, $wide:ty, $signed_wide:ty) => {
        #[inline(always)]
        pub(crate) fn $name(r: &mut Registers, k: &Constants, mask: u32, op: BinOp, signed: bool, rows: [Row; 3]) {
            const BITS: u32 = <$word>::BITS;
            match (op, signed) {
                (BinOp::Add, _) => map2(r, k, mask, rows, |x: $word, y: $word| x.wrapping_add(y)),
                (BinOp::Sub, _) => map2(r, k, mask, rows, |x: $word, y: $word| x.wrapping_sub(y)),
                (BinOp::Mul, _) => map2(r, k, mask, rows, |x: $word, y: $word| x.wrapping_mul(y)),
                (BinOp::MulHi, false) => rare2(r, k, mask, rows, |x: $word, y: $word| {
                    ((x as $wide * y as $wide) >> BITS) as $word
                }),
                (BinOp::MulHi, true) => rare2(r, k, mask, rows, |x: $word, y: $word| {
                    ((x as $signed as $signed_wide * y as $signed as $signed_wide) >> BITS) as $word
                }),
                (BinOp::MulWide, false) => map2(r, k, mask, rows, |x: $word, y: $word| {
                    (x as u64).wrapping_mul(y as u64)
                }),
                (BinOp::MulWide, true) => map2(r, k, mask, rows, |x: $word, y: $word| {
                    (x as $signed as i64).wrapping_mul(y as $signed as i64) as u64
                }),
                (BinOp::Min, false) => map2(r, k, mask, rows, |x: $word, y: $word| x.min(y)),
                (BinOp::Max, false) => map2(r, k, mask, rows, |x: $word, y: $word| x.max(y)),
                (BinOp::Min, true) => rare2(r, k, mask, rows, |x: $word, y| {
                    (x as $signed).min(y as $signed) as $word
                }),
                (BinOp::Max, true) => rare2(r, k, mask, rows, |x: $word, y| {
                    (x as $signed).max(y as $signed) as $word
                }),
                (BinOp::Div, false) => rare2(r, k, mask, rows, |x: $word, y| {
                    x.checked_div(y).unwrap_or(<$word>::MAX)
                }),
                (BinOp::Rem, false) => rare2(r, k, mask, rows, |x: $word, y| x.checked_rem(y).unwrap_or(x)),
                (BinOp::Div, true) => rare2(r, k, mask, rows, |x: $word, y| match y {
                    0 => <$word>::MAX,
                    _ => (x as $signed).wrapping_div(y as $signed) as $word,
                }),
                (BinOp::Rem, true) => rare2(r, k, mask, rows, |x: $word, y| match y {
                    0 => x,
                    _ => (x as $signed).wrapping_rem(y as $signed) as $word,
                }),
                (BinOp::And, _) => map2(r, k, mask, rows, |x: $word, y: $word| x & y),
                (BinOp::Or, _) => map2(r, k, mask, rows, |x: $word, y: $word| x | y),
                (BinOp::Xor, _) => map2(r, k, mask, rows, |x: $word, y: $word| x ^ y),
                // The amount has 32 bits and is clamped to the width.
                (BinOp::Shl, _) => map2(r, k, mask, rows, |x: $word, by: u32| {
                    if by < BITS { x << (by & (BITS - 1)) } else { 0 }
                }),
                (BinOp::Shr, false) => map2(r, k, mask, rows, |x: $word, by: u32| {
                    if by < BITS { x >> (by & (BITS - 1)) } else { 0 }
                }),
                (BinOp::Shr, true) => map2(r, k, mask, rows, |x: $word, by: u32| {
                    (x as $signed >> by.min(BITS - 1)) as $word
                }),
            }
        }
    };
}

integer!(int32, u32, i32, u64, i64);
integer!(int64, u64, i64, u128, i128);

#[inline(always)]
pub(crate) fn f32s(r: &mut Registers, k: &Constants, mask: u32, op: FloatOp, rows: [Row; 3]) {
    match op {
        FloatOp::Add => map2(r, k, mask, rows, |x, y| result(f(x) + f(y))),
        FloatOp::Sub => map2(r, k, mask, rows, |x, y| result(f(x) - f(y))),
        FloatOp::Mul => map2(r, k, mask, rows, |x, y| result(f(x) * f(y))),
        FloatOp::Min => map2(r, k, mask, rows, float::min_f32),
        FloatOp::Max => map2(r, k, mask, rows, float::max_f32),
    }
}

/// Packed 16-bit floats: widens both halves, computes, rounds once. Compiled once instead of once
/// per instruction set: these operations are rare and their code is long.
#[inline(never)]
pub(crate) fn halves(r: &mut Registers, k: &Constants, mask: u32, op: FloatOp, ty: Half, rows: [Row; 3]) {
    match op {
        FloatOp::Add => map2(r, k, mask, rows, |x, y| {
            float::halves(ty, [x, y, 0], |a, b, _| float::add_odd(a, b))
        }),
        FloatOp::Sub => map2(r, k, mask, rows, |x, y| {
            float::halves(ty, [x, y, 0], |a, b, _| float::add_odd(a, -b))
        }),
        FloatOp::Mul => map2(r, k, mask, rows, |x, y| float::halves(ty, [x, y, 0], |a, b, _| a * b)),
        FloatOp::Min => map2(r, k, mask, rows, |x, y| float::halves_extreme(ty, x, y, false)),
        FloatOp::Max => map2(r, k, mask, rows, |x, y| float::halves_extreme(ty, x, y, true)),
    }
}

#[inline(never)]
pub(crate) fn halves_fma(r: &mut Registers, k: &Constants, mask: u32, ty: Half, rows: [Row; 4]) {
    map3(r, k, mask, rows, |x, y, z| {
        float::halves(ty, [x, y, z], |a, b, c| float::add_odd(a * b, c))
    });
}

/// Two f32 rounded to a pair of a narrower type.
#[inline(always)]
pub(crate) fn cvt_halves(r: &mut Registers, k: &Constants, mask: u32, to: Half, rows: [Row; 3]) {
    match to {
        Half::F16 => map2(r, k, mask, rows, |x, y| {
            float::f32_to_f16(f(x)) | float::f32_to_f16(f(y)) << 16
        }),
        Half::BF16 => map2(r, k, mask, rows, |x, y| {
            float::f32_to_bf16(f(x)) | float::f32_to_bf16(f(y)) << 16
        }),
    }
}

#[inline(always)]
pub(crate) fn cvt_e4m3(r: &mut Registers, k: &Constants, mask: u32, rows: [Row; 3]) {
    rare2(r, k, mask, rows, |x, y| {
        float::f32_to_e4m3(f(x)) | float::f32_to_e4m3(f(y)) << 8
    });
}

/// `prmt`: selects four of eight bytes. Bit 3 of a selector nibble replicates the sign instead.
#[inline(always)]
pub(crate) fn prmt(a: u32, b: u32, selector: u32) -> u32 {
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
pub(crate) fn lop3(r: &mut Registers, k: &Constants, mask: u32, table: u8, rows: [Row; 4]) {
    // A sum of products: a term is all ones if its bit of the table is set.
    let terms: [u32; 8] = std::array::from_fn(|i| if table >> i & 1 != 0 { u32::MAX } else { 0 });
    map3(r, k, mask, rows, |a: u32, b: u32, c: u32| {
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
pub(crate) fn setp32(r: &Registers, k: &Constants, cmp: Cmp, number: Number, [_, a, b]: [Row; 3]) -> u32 {
    let (a, b): (&[u32; 32], _) = (r.get(k, a), r.get(k, b));
    match number {
        Number::Unsigned => compare(cmp, a, b, |x| x),
        Number::Signed => compare(cmp, a, b, |x| x as i32),
        Number::Float => compare(cmp, a, b, f),
    }
}

#[inline(always)]
pub(crate) fn setp64(r: &Registers, k: &Constants, cmp: Cmp, number: Number, [_, a, b]: [Row; 3]) -> u32 {
    // Flipping the sign bit gives signed numbers the order of unsigned ones.
    let flip = if number == Number::Signed { 1 << 63 } else { 0u64 };
    compare(cmp, r.get(k, a), r.get(k, b), |x: u64| x ^ flip)
}

#[inline(always)]
fn compare<T: Word, N: PartialOrd>(cmp: Cmp, a: &[T; 32], b: &[T; 32], number: impl Fn(T) -> N) -> u32 {
    let (a, b) = match cmp {
        Cmp::Gt | Cmp::Ge => (b, a),
        Cmp::Eq | Cmp::Ne | Cmp::Lt | Cmp::Le => (a, b),
    };
    match cmp {
        Cmp::Eq => test2(a, b, |x, y| number(x) == number(y)),
        Cmp::Ne => test2(a, b, |x, y| number(x) != number(y)),
        Cmp::Lt | Cmp::Gt => test2(a, b, |x, y| number(x) < number(y)),
        Cmp::Le | Cmp::Ge => test2(a, b, |x, y| number(x) <= number(y)),
    }
}
