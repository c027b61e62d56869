//! Types of scalar instructions, and their arithmetic: exact, or rounded to odd, until a result is rounded once.

use crate::float;

/// A type of the operands of scalar instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ty {
    Pred,
    /// Bits, and whether it is signed.
    Int(u32, bool),
    F32,
    F64,
    /// f16, or bf16 if true.
    Half(bool),
    /// A pair of them.
    Halves(bool),
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
            _ => {
                let bits = word.get(1..)?.parse().ok()?;
                let kind = word.bytes().next()?;
                return (matches!(kind, b'u' | b's' | b'b') && bits <= 64).then_some(Ty::Int(bits, kind == b's'));
            }
        })
    }

    /// Bytes of a value.
    pub(super) fn bytes(self) -> u32 {
        match self {
            Ty::Pred => 1,
            Ty::Int(bits, _) => bits / 8,
            Ty::Half(_) => 2,
            Ty::F32 | Ty::Halves(_) => 4,
            Ty::F64 => 8,
        }
    }
}

/// How a float is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Nearest,
    Zero,
    Down,
    Up,
}

impl Mode {
    pub(super) fn of(words: &[&str]) -> Option<Mode> {
        words.iter().find_map(|word| match *word {
            "rn" => Some(Mode::Nearest),
            "rz" => Some(Mode::Zero),
            "rm" => Some(Mode::Down),
            "rp" => Some(Mode::Up),
            _ => None,
        })
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

pub(super) fn value(bits: u64, ty: Ty, ftz: bool) -> f64 {
    match ty {
        Ty::F64 => f64::from_bits(bits),
        Ty::Half(false) => float::f16_to_f32(bits as u32 & 0xffff).into(),
        Ty::Half(true) => float::bf16_to_f32(bits as u32 & 0xffff).into(),
        _ if ftz => float::f(float::flush(bits as u32)).into(),
        _ => float::f(bits as u32).into(),
    }
}

/// The bits of a value in a type. Values that are not exact are rounded to odd.
pub(super) fn rounded(value: f64, ty: Ty, mode: Mode, ftz: bool, sat: bool) -> u64 {
    let value = match sat {
        true if value.is_nan() => 0.0,
        true => value.clamp(0.0, 1.0),
        false => value,
    };
    match ty {
        Ty::F64 if value.is_nan() => 0x7fff_ffff_ffff_ffff,
        Ty::F64 => value.to_bits(),
        Ty::Half(false) => float::f64_to_f16(value).into(),
        Ty::Half(true) => float::f32_to_bf16(float::f64_to_f32_odd(value)).into(),
        _ => {
            let bits = float::result(to_f32(value, mode));
            u64::from(if ftz { float::flush(bits) } else { bits })
        }
    }
}

fn to_f32(value: f64, mode: Mode) -> f32 {
    let near = value as f32;
    if value.is_nan() || value.is_infinite() || f64::from(near) == value {
        return near;
    }
    let is_above = f64::from(near) > value;
    match mode {
        Mode::Nearest => near,
        Mode::Down if is_above => near.next_down(),
        Mode::Up if !is_above => near.next_up(),
        Mode::Zero if is_above && value > 0.0 => near.next_down(),
        Mode::Zero if !is_above && value < 0.0 => near.next_up(),
        Mode::Down | Mode::Up | Mode::Zero => near,
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

pub(super) fn add(a: f64, b: f64, ty: Ty) -> f64 {
    let sum = a + b;
    if ty == Ty::F64 {
        return sum;
    }
    let (one, other) = (sum - a, sum - (sum - a));
    odd(sum, (a - other) + (b - one))
}

pub(super) fn fma(a: f64, b: f64, c: f64, ty: Ty) -> f64 {
    if ty == Ty::F64 {
        a.mul_add(b, c)
    } else {
        add(a * b, c, ty)
    }
}

pub(super) fn div(a: f64, b: f64, ty: Ty) -> f64 {
    let quotient = a / b;
    if ty == Ty::F64 || !quotient.is_finite() || quotient == 0.0 {
        return quotient;
    }
    odd(quotient, (-quotient).mul_add(b, a) / b)
}

pub(super) fn sqrt(a: f64, ty: Ty) -> f64 {
    let root = a.sqrt();
    if ty == Ty::F64 || !root.is_finite() || root == 0.0 {
        return root;
    }
    odd(root, (-root).mul_add(root, a))
}
