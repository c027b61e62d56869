//! Types of scalar instructions, and their arithmetic: exact, or rounded to odd, until a result is rounded once.

use std::cmp::Ordering;

use super::operands::named;
use crate::float;

/// A type of the operands of scalar instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ty {
    Pred,
    /// Bits, and whether it is signed.
    Int(u32, bool),
    F32,
    F64,
    /// f16, or bf16 if true.
    Half(bool),
    /// A pair of them.
    Halves(bool),
    TF32,
    /// e4m3, or e5m2 if true.
    Byte(bool),
    /// A pair of them.
    Bytes(bool),
}

impl Ty {
    pub(super) fn of(word: &str) -> Option<Ty> {
        Some(match word {
            "pred" => Ty::Pred,
            "f32" => Ty::F32,
            "f64" => Ty::F64,
            "f16" => Ty::Half(false),
            "bf16" => Ty::Half(true),
            "f16x2" => Ty::Halves(false),
            "bf16x2" => Ty::Halves(true),
            "tf32" => Ty::TF32,
            "e4m3" => Ty::Byte(false),
            "e5m2" => Ty::Byte(true),
            "e4m3x2" => Ty::Bytes(false),
            "e5m2x2" => Ty::Bytes(true),
            _ => {
                let bits = word.get(1..)?.parse().ok()?;
                let kind = word.bytes().next()?;
                return (matches!(kind, b'u' | b's' | b'b') && bits <= 64).then_some(Ty::Int(bits, kind == b's'));
            }
        })
    }

    /// The type that the last of an opcode's words names.
    pub(super) fn last(words: &[&str]) -> Result<Ty, String> {
        let ty = words.last().and_then(|word| Ty::of(word));
        ty.ok_or("its type is not read".to_string())
    }

    /// Bytes of a value.
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Ty::Pred | Ty::Byte(_) => 1,
            Ty::Int(bits, _) => bits / 8,
            Ty::Half(_) | Ty::Bytes(_) => 2,
            Ty::F32 | Ty::TF32 | Ty::Halves(_) => 4,
            Ty::F64 => 8,
        }
    }

    /// Elements in a register of a matrix.
    pub(crate) fn in_register(self) -> u32 {
        (4 / self.bytes()).max(1)
    }

    /// The type of the two elements of a pair; another type is its own.
    pub(super) fn element(self) -> Ty {
        match self {
            Ty::Halves(is_bf16) => Ty::Half(is_bf16),
            Ty::Bytes(is_e5m2) => Ty::Byte(is_e5m2),
            one => one,
        }
    }

    /// Of a float narrower than f64: digits after the point, the least exponent of normal numbers, the largest number.
    fn format(self) -> (i32, i32, f64) {
        match self {
            Ty::Half(false) => (10, -14, 65504.0),
            Ty::Half(true) => (7, -126, float::f(0x7f7f_0000).into()),
            Ty::TF32 => (10, -126, float::f(0x7f7f_e000).into()),
            Ty::Byte(false) => (3, -6, 448.0),
            Ty::Byte(true) => (2, -14, 57344.0),
            _ => (23, -126, f32::MAX.into()),
        }
    }

    /// The bits of the exponent, which are those of infinity.
    pub(super) fn exponent(self) -> u64 {
        match self {
            Ty::F64 => 0x7ff0_0000_0000_0000,
            Ty::Half(false) => 0x7c00,
            Ty::Half(true) => 0x7f80,
            _ => 0x7f80_0000,
        }
    }
}

/// How a float is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Nearest,
    /// To the nearest, and in the middle away from zero.
    Away,
    Zero,
    Down,
    Up,
}

impl Mode {
    /// The rounding that an instruction names, or that to the nearest.
    pub(crate) fn of(words: &[&str]) -> Mode {
        let modes = [
            ("rna", Mode::Away),
            ("rz", Mode::Zero),
            ("rm", Mode::Down),
            ("rp", Mode::Up),
        ];
        named(words, &modes).unwrap_or(Mode::Nearest)
    }
}

/// What is done to an exact result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounding {
    pub(super) mode: Mode,
    /// Subnormal numbers become zero.
    pub(super) ftz: bool,
    /// To 0 to 1, NaN to 0.
    sat: bool,
    /// What is negative becomes zero.
    relu: bool,
    /// What is too large becomes the largest number.
    finite: bool,
}

impl Rounding {
    pub(super) fn of(words: &[&str]) -> Rounding {
        let has = |word: &str| words.contains(&word);
        Rounding {
            mode: Mode::of(words),
            ftz: has("ftz"),
            sat: has("sat"),
            relu: has("relu"),
            finite: has("satfinite"),
        }
    }
}

pub(super) fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// The value of the low bits.
pub(super) fn extend(value: u64, bits: u32, signed: bool) -> i128 {
    let value = value & mask(bits);
    if signed && value >> (bits - 1) & 1 == 1 {
        i128::from(value) - (1 << bits)
    } else {
        i128::from(value)
    }
}

/// Of an integer the bits in a register, which may be wider: extended.
pub(super) fn placed(value: u64, bits: u32, signed: bool) -> u64 {
    extend(value, bits, signed) as u64
}

/// The least and the largest integer.
pub(super) fn range(bits: u32, signed: bool) -> (i128, i128) {
    if signed {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    }
}

/// The sign's bit.
pub(super) fn sign(ty: Ty) -> u64 {
    1 << (8 * ty.bytes() - 1)
}

/// The bits of a float, or of a zero of the same sign.
pub(super) fn flushed(bits: u64, ty: Ty, ftz: bool) -> u64 {
    if ftz && ty != Ty::F64 && bits & ty.exponent() == 0 {
        bits & sign(ty)
    } else {
        bits
    }
}

pub(crate) fn value(bits: u64, ty: Ty, ftz: bool) -> f64 {
    let low = flushed(bits, ty, ftz) as u32;
    match ty {
        Ty::F64 => f64::from_bits(bits),
        Ty::Half(false) => float::f16_to_f32(low & 0xffff).into(),
        Ty::Half(true) => float::bf16_to_f32(low & 0xffff).into(),
        Ty::Byte(false) => float::e4m3_to_f32(low & 0xff).into(),
        // Its digits are the first of f16.
        Ty::Byte(true) => float::f16_to_f32((low & 0xff) << 8).into(),
        // Products take the upper 19 bits.
        Ty::TF32 => float::f(low & 0xffff_e000).into(),
        Ty::Int(width, signed) => extend(bits, width, signed) as f64,
        _ => float::f(low).into(),
    }
}

/// The bits of a value in a type. Values that are not exact are rounded to odd, those in f64 already as they should be.
pub(super) fn rounded(value: f64, ty: Ty, how: Rounding) -> u64 {
    let value = match how {
        Rounding { sat: true, .. } if value.is_nan() => 0.0,
        // A sum of zeros is positive.
        Rounding { sat: true, .. } => value.clamp(0.0, 1.0) + 0.0,
        Rounding { relu: true, .. } if value.is_sign_negative() && !value.is_nan() => 0.0,
        _ => value,
    };
    // Of f16 an H200 flushes what is too small before it is rounded.
    let is_tiny = how.ftz && ty == Ty::Half(false) && value.abs() < 2f64.powi(ty.format().1);
    let value = if is_tiny { 0f64.copysign(value) } else { value };
    let is_plain = ty == Ty::F64 || how.mode == Mode::Nearest && !how.finite && matches!(ty, Ty::F32 | Ty::Half(_));
    let value = if is_plain { value } else { narrowed(value, ty, how) };
    let bits = match ty {
        Ty::F64 if value.is_nan() => 0x7fff_ffff_ffff_ffff,
        Ty::F64 => value.to_bits(),
        Ty::Half(false) => float::f64_to_f16(value).into(),
        Ty::Half(true) => float::f32_to_bf16(float::f64_to_f32_odd(value)).into(),
        Ty::Byte(false) => float::f32_to_e4m3(value as f32).into(),
        Ty::Byte(true) => u64::from(float::f64_to_f16(value) >> 8),
        // Its digits alone, of NaN too.
        Ty::TF32 => u64::from(float::result(value as f32) & 0xffff_e000),
        _ => u64::from(float::result(value as f32)),
    };
    flushed(bits, ty, how.ftz)
}

/// A value as a type narrower than f64 has it.
fn narrowed(value: f64, ty: Ty, how: Rounding) -> f64 {
    let (digits, least, largest) = ty.format();
    if value.is_infinite() && how.finite {
        return largest.copysign(value);
    }
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    let unit = 2f64.powi(exponent.max(least) - digits);
    // Exact, but for the rounding to a whole number.
    let near = match how.mode {
        Mode::Nearest => (value / unit).round_ties_even(),
        Mode::Away => (value / unit).round(),
        Mode::Zero => (value / unit).trunc(),
        Mode::Down => (value / unit).floor(),
        Mode::Up => (value / unit).ceil(),
    } * unit;
    let is_infinite = match how.mode {
        Mode::Nearest | Mode::Away => true,
        Mode::Zero => false,
        Mode::Down => value < 0.0,
        Mode::Up => value > 0.0,
    };
    if near.abs() <= largest {
        near
    } else if is_infinite && !how.finite {
        f64::INFINITY.copysign(value)
    } else {
        largest.copysign(value)
    }
}

/// A value and what was lost of it: rounded to odd.
fn odd(value: f64, lost: f64) -> f64 {
    if lost == 0.0 || !lost.is_finite() || !value.is_finite() || value.to_bits() & 1 == 1 {
        return value;
    }
    // Towards what was lost.
    if lost > 0.0 { value.next_up() } else { value.next_down() }
}

/// A sum of products of finite numbers compared with zero, exactly.
fn sign_of(products: &[[f64; 2]]) -> Ordering {
    // Its bits from 2^-2148 on, in two's complement: as many as a product of two numbers of f64 has, and carries.
    let mut sum = [0u64; 68];
    for &[a, b] in products {
        let parts = |x: f64| {
            let (digits, exponent) = (x.to_bits() & mask(52), x.to_bits() >> 52 & 0x7ff);
            let first = u64::from(exponent > 0) << 52;
            (u128::from(digits | first), exponent.max(1) as usize - 1)
        };
        let ((x, i), (y, j)) = (parts(a), parts(b));
        let (product, limb, shift) = (x * y, (i + j) / 64, (i + j) % 64);
        let low = product << shift;
        let high = (product >> 64 << shift >> 64) as u64;
        let limbs = [low as u64, (low >> 64) as u64, high];
        let subtracts = a.is_sign_negative() != b.is_sign_negative();
        let mut carry = false;
        for (place, part) in sum[limb..]
            .iter_mut()
            .zip(limbs.into_iter().chain(std::iter::repeat(0)))
        {
            let (one, first) = if subtracts {
                place.overflowing_sub(part)
            } else {
                place.overflowing_add(part)
            };
            let last = u64::from(carry);
            let (one, second) = if subtracts {
                one.overflowing_sub(last)
            } else {
                one.overflowing_add(last)
            };
            (*place, carry) = (one, first || second);
        }
    }
    if sum[67] >> 63 == 1 {
        Ordering::Less
    } else if sum.iter().all(|part| *part == 0) {
        Ordering::Equal
    } else {
        Ordering::Greater
    }
}

/// A result of f64 in another rounding, given that to the nearest and how the exact one compares with it.
fn directed(near: f64, mode: Mode, exact: Ordering) -> f64 {
    match (mode, exact) {
        (Mode::Down, Ordering::Less) => near.next_down(),
        (Mode::Up, Ordering::Greater) => near.next_up(),
        (Mode::Zero, Ordering::Less) if near > 0.0 => near.next_down(),
        (Mode::Zero, Ordering::Greater) if near < 0.0 => near.next_up(),
        _ => near,
    }
}

/// As [`directed`], of a result of some operands, given products whose sum is the exact result less the near one.
fn directed_by(near: f64, mode: Mode, operands: &[f64], products: &[[f64; 2]]) -> f64 {
    if mode == Mode::Nearest || near.is_nan() || !operands.iter().all(|operand| operand.is_finite()) {
        near
    } else if near.is_infinite() {
        directed(near, mode, 0.0.partial_cmp(&near).unwrap_or(Ordering::Equal))
    } else {
        directed(near, mode, sign_of(products))
    }
}

/// A zero that is a sum: negative where it is rounded down, unless all of it was positive (IEEE 754, 6.3).
fn zero_of(sum: f64, mode: Mode, is_negative: [bool; 2]) -> f64 {
    if sum == 0.0 && mode == Mode::Down && is_negative != [false; 2] {
        -0.0
    } else {
        sum
    }
}

pub(super) fn add(a: f64, b: f64, ty: Ty, mode: Mode) -> f64 {
    let sum = zero_of(a + b, mode, [a, b].map(f64::is_sign_negative));
    if ty == Ty::F64 {
        return directed_by(sum, mode, &[a, b], &[[a, 1.0], [b, 1.0], [-sum, 1.0]]);
    }
    let (one, other) = (sum - a, sum - (sum - a));
    odd(sum, (a - other) + (b - one))
}

pub(super) fn mul(a: f64, b: f64, ty: Ty, mode: Mode) -> f64 {
    let product = a * b;
    if ty == Ty::F64 {
        directed_by(product, mode, &[a, b], &[[a, b], [-product, 1.0]])
    } else {
        // Exact.
        product
    }
}

pub(crate) fn fma(a: f64, b: f64, c: f64, ty: Ty, mode: Mode) -> f64 {
    if ty != Ty::F64 {
        return add(a * b, c, ty, mode);
    }
    let near = a.mul_add(b, c);
    if near == 0.0 && mode == Mode::Down && sign_of(&[[a, b], [c, 1.0]]) == Ordering::Equal {
        return zero_of(
            near,
            mode,
            [a.is_sign_negative() != b.is_sign_negative(), c.is_sign_negative()],
        );
    }
    directed_by(near, mode, &[a, b, c], &[[a, b], [c, 1.0], [-near, 1.0]])
}

pub(super) fn div(a: f64, b: f64, ty: Ty, mode: Mode) -> f64 {
    let quotient = a / b;
    if ty == Ty::F64 && b != 0.0 {
        let sign = 1f64.copysign(b);
        return directed_by(quotient, mode, &[a, b], &[[a, sign], [-quotient, b.abs()]]);
    }
    if ty == Ty::F64 || !quotient.is_finite() || quotient == 0.0 {
        return quotient;
    }
    odd(quotient, (-quotient).mul_add(b, a) / b)
}

pub(super) fn sqrt(a: f64, ty: Ty, mode: Mode) -> f64 {
    let root = a.sqrt();
    if ty == Ty::F64 {
        return directed_by(root, mode, &[a], &[[a, 1.0], [-root, root]]);
    }
    if !root.is_finite() || root == 0.0 {
        return root;
    }
    odd(root, (-root).mul_add(root, a))
}

/// `rcp` and `rsqrt` of the upper 32 bits of f64: an exact function, rounded to as many bits.
pub(super) fn of_upper_half(bits: u64, exact: impl Fn(f64) -> f64) -> u64 {
    let flushed = |bits: u64| {
        bits & if bits & Ty::F64.exponent() == 0 {
            sign(Ty::F64)
        } else {
            !mask(32)
        }
    };
    let result = exact(f64::from_bits(flushed(bits)));
    if result.is_nan() {
        0x7fff_ffff_0000_0000
    } else {
        flushed(result.to_bits() + (1 << 31))
    }
}

/// An integer, rounded once.
pub(super) fn integer(value: i128, ty: Ty, mode: Mode) -> f64 {
    let near = value as f64;
    let lost = value - near as i128;
    if ty == Ty::F64 {
        directed(near, mode, lost.cmp(&0))
    } else {
        odd(near, lost as f64)
    }
}
