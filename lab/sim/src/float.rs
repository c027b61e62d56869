//! GPU floating point: conversions, packed halves, NaN rules, approximate functions. Branch-free,
//! so that loops over 32 lanes are vectorised.
//!
//! Source: PTX ISA, "Floating-Point Instructions" and "Half Precision Floating-Point Instructions".

use crate::program::Half;

/// The NaN that f32 arithmetic returns for every NaN input.
pub(crate) const NAN_F32: u32 = 0x7fff_ffff;
/// The canonical NaN of f16 and bf16.
pub(crate) const NAN_16: u32 = 0x7fff;

#[inline(always)]
pub(crate) fn pick(condition: bool, yes: u32, no: u32) -> u32 {
    if condition { yes } else { no }
}

/// The bits of an f32 result with a canonical NaN.
#[inline(always)]
pub(crate) fn result(value: f32) -> u32 {
    pick(value.is_nan(), NAN_F32, value.to_bits())
}

#[inline(always)]
pub(crate) fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

/// f16 in the low half to f32, exact.
#[inline(always)]
pub(crate) fn f16_to_f32(h: u32) -> f32 {
    let sign = (h & 0x8000) << 16;
    let magnitude = h & 0x7fff;
    // Normal numbers: shift exponent and mantissa into place and rebias.
    let normal = (magnitude << 13) + ((127 - 15) << 23);
    // Subnormals are multiples of 2^-24.
    let subnormal = (magnitude as f32 * (1.0 / 16_777_216.0)).to_bits();
    let value = pick(
        magnitude < 0x0400,
        subnormal,
        pick(magnitude >= 0x7c00, 0x7f80_0000, normal),
    );
    f32::from_bits(pick(magnitude > 0x7c00, NAN_F32, value | sign))
}

/// bf16 in the low half to f32, exact.
#[inline(always)]
pub(crate) fn bf16_to_f32(h: u32) -> f32 {
    f32::from_bits(h << 16)
}

/// f32 to f16 in the low half, nearest even, canonical NaN.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Rebias, then add just under half a unit, plus one if the result would be odd.
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
    // Below 2^-14 the unit is 2^-24. Adding 0.5, whose unit is also 2^-24, rounds there.
    let subnormal = (f32::from_bits(magnitude) + 0.5)
        .to_bits()
        .wrapping_sub(0.5f32.to_bits());
    let finite = pick(magnitude < 0x3880_0000, subnormal, normal);
    // 65,520 is the midpoint between the largest f16 and the next power of two.
    let value = pick(magnitude >= 0x477f_f000, 0x7c00, finite);
    pick(magnitude > 0x7f80_0000, NAN_16, value | sign)
}

/// f32 to bf16 in the low half, nearest even, canonical NaN.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    pick(value.is_nan(), NAN_16, rounded)
}

/// e4m3 in the low byte to f32, exact.
#[inline(always)]
pub(crate) fn e4m3_to_f32(b: u32) -> f32 {
    let sign = (b & 0x80) << 24;
    let magnitude = b & 0x7f;
    let normal = (magnitude << 20) + ((127 - 7) << 23);
    // Subnormals are multiples of 2^-9.
    let subnormal = (magnitude as f32 * (1.0 / 512.0)).to_bits();
    let value = pick(magnitude < 8, subnormal, normal);
    f32::from_bits(pick(magnitude == 0x7f, NAN_F32, value | sign))
}

/// f32 to e4m3 in the low byte, nearest even, saturating at 448.
#[inline(always)]
pub(crate) fn f32_to_e4m3(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = (bits >> 24) & 0x80;
    let magnitude = bits & 0x7fff_ffff;
    let odd = (magnitude >> 20) & 1;
    let normal = magnitude.wrapping_sub((127 - 7) << 23).wrapping_add(0x7_ffff + odd) >> 20;
    // Below 2^-6 the unit is 2^-9, which is f32's unit at 2^14.
    let subnormal = (f32::from_bits(magnitude) + 16_384.0)
        .to_bits()
        .wrapping_sub(16_384.0f32.to_bits());
    let finite = pick(magnitude < 0x3c80_0000, subnormal, normal.min(0x7e));
    // The shift loses bits of numbers that saturate.
    let value = pick(magnitude >= 0x43e0_0000, 0x7e, finite);
    pick(magnitude > 0x7f80_0000, 0x7f, value | sign)
}

/// f64 to f32 rounded to odd, so that a later rounding to 16 bits does not round twice.
#[inline(always)]
pub(crate) fn f64_to_f32_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = nearest as f64;
    let bits = nearest.to_bits();
    // Round toward zero, then set the lowest bit if the conversion was inexact.
    let toward_zero = bits.wrapping_sub((back.abs() > value.abs()) as u32);
    let odd = pick(back == value, bits, toward_zero | 1);
    f32::from_bits(pick(value.is_nan(), NAN_F32, odd))
}

/// f64 to f16, nearest even, single rounding.
#[inline(always)]
pub(crate) fn f64_to_f16(value: f64) -> u32 {
    f32_to_f16(f64_to_f32_odd(value))
}

/// Sum rounded to odd, so that a later rounding to 16 bits does not round twice. The exponents of
/// the operands can differ by more than f64's precision, and the lost bits decide ties. (On an H200
/// plain f64 sums differed by one unit in 1 of 50 random bf16 programs.)
#[inline(always)]
pub(crate) fn add_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    // The exact rounding error (Knuth's two-sum); NaN if the sum is not finite.
    let from_b = sum - a;
    let lost = (a - (sum - from_b)) + (b - from_b);
    let bits = sum.to_bits();
    let inexact_and_even = lost != 0.0 && !lost.is_nan() && bits & 1 == 0;
    let away_from_zero = (lost > 0.0) == (sum > 0.0);
    let neighbour = if away_from_zero {
        bits.wrapping_add(1)
    } else {
        bits.wrapping_sub(1)
    };
    f64::from_bits(if inexact_and_even { neighbour } else { bits })
}

/// Applies an operation to both halves of packed pairs. Products are exact in f64; sums use
/// [`add_odd`].
#[inline(always)]
pub(crate) fn halves(ty: Half, pairs: [u32; 3], op: impl Fn(f64, f64, f64) -> f64) -> u32 {
    let half = |shift: u32| {
        let [a, b, c] = pairs.map(|x| {
            let bits = x >> shift & 0xffff;
            f64::from(match ty {
                Half::F16 => f16_to_f32(bits),
                Half::BF16 => bf16_to_f32(bits),
            })
        });
        let rounded = f64_to_f32_odd(op(a, b, c));
        match ty {
            Half::F16 => f32_to_f16(rounded),
            Half::BF16 => f32_to_bf16(rounded),
        }
    };
    half(0) | half(16) << 16
}

/// Maps a float's bits to an integer of the same order, with −0 below +0.
#[inline(always)]
fn ordered(bits: u32) -> i32 {
    let bits = bits as i32;
    bits ^ (((bits >> 31) as u32 >> 1) as i32)
}

/// `min.f32`: NaN loses against a number; −0 is less than +0.
#[inline(always)]
pub(crate) fn min_f32(a: u32, b: u32) -> u32 {
    let smaller = pick(ordered(a) < ordered(b), a, b);
    one_nan(a, b, smaller)
}

#[inline(always)]
pub(crate) fn max_f32(a: u32, b: u32) -> u32 {
    let larger = pick(ordered(a) < ordered(b), b, a);
    one_nan(a, b, larger)
}

#[inline(always)]
fn one_nan(a: u32, b: u32, otherwise: u32) -> u32 {
    let (nan_a, nan_b) = (f(a).is_nan(), f(b).is_nan());
    pick(nan_a & nan_b, NAN_F32, pick(nan_a, b, pick(nan_b, a, otherwise)))
}

/// `min` or `max` of both halves.
#[inline(always)]
pub(crate) fn halves_extreme(ty: Half, a: u32, b: u32, largest: bool) -> u32 {
    let infinity = match ty {
        Half::F16 => 0x7c00,
        Half::BF16 => 0x7f80,
    };
    let half = |shift: u32| {
        let (a, b) = ((a >> shift) & 0xffff, (b >> shift) & 0xffff);
        let (nan_a, nan_b) = (a & 0x7fff > infinity, b & 0x7fff > infinity);
        // Shifted to the top, halves compare like floats.
        let a_less = ordered(a << 16) < ordered(b << 16);
        let chosen = pick(a_less != largest, a, b);
        pick(nan_a & nan_b, NAN_16, pick(nan_a, b, pick(nan_b, a, chosen)))
    };
    half(0) | half(16) << 16
}

/// Flushes subnormals to zero of the same sign.
#[inline(always)]
pub(crate) fn flush(bits: u32) -> u32 {
    pick(bits & 0x7f80_0000 == 0, bits & 0x8000_0000, bits)
}

/// `ex2.approx.ftz.f32`: error slightly above half a unit.
#[inline(always)]
pub(crate) fn ex2(bits: u32) -> u32 {
    let x = f(flush(bits));
    // Outside these bounds the result is 0 or infinity.
    let clamped = pick_f(x > 200.0, 200.0, pick_f(x < -200.0, -200.0, x)) as f64;
    let clamped = if x.is_nan() { 0.0 } else { clamped };
    let whole = (clamped + MAGIC) - MAGIC;
    let t = clamped - whole;
    // Taylor series of 2^t, |t| ≤ 1/2; the next term is below 2^-40.
    let mut p = LN2_POWERS[0];
    for c in &LN2_POWERS[1..] {
        p = p.mul_add(t, *c);
    }
    let scale = f64::from_bits(((whole as i32 + 1023) as u64) << 52);
    let y = (p * scale) as f32;
    pick(x.is_nan(), NAN_F32, flush(y.to_bits()))
}

/// Adding and subtracting this rounds an f64 to an integer.
const MAGIC: f64 = 6_755_399_441_055_744.0;

/// ln(2)^k / k!, k from 9 down to 0.
const LN2_POWERS: [f64; 10] = {
    let mut table = [1.0; 10];
    let mut k = 1;
    let mut term = 1.0;
    while k < 10 {
        term = term * std::f64::consts::LN_2 / k as f64;
        table[9 - k] = term;
        k += 1;
    }
    table
};

#[inline(always)]
fn pick_f(condition: bool, yes: f32, no: f32) -> f32 {
    if condition { yes } else { no }
}

/// `lg2.approx.ftz.f32`: log2(x), correctly rounded.
#[inline(always)]
pub(crate) fn lg2(bits: u32) -> u32 {
    let x = f(flush(bits));
    result(flush_f((x as f64).log2() as f32))
}

/// `rcp.approx.ftz.f32`: 1/x, correctly rounded.
#[inline(always)]
pub(crate) fn rcp(bits: u32) -> u32 {
    result(flush_f(1.0 / f(flush(bits))))
}

#[inline(always)]
fn flush_f(value: f32) -> f32 {
    f(flush(value.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f64_to_bf16(value: f64) -> u32 {
        f32_to_bf16(f64_to_f32_odd(value))
    }

    #[test]
    fn powers_of_two_are_exact() {
        for e in -126..128 {
            assert_eq!(ex2((e as f32).to_bits()), 2f32.powi(e).to_bits());
        }
        assert_eq!(ex2((-127f32).to_bits()), 0, "subnormal results are flushed");
        assert_eq!(ex2(128f32.to_bits()), f32::INFINITY.to_bits());
        assert_eq!(ex2(f32::NEG_INFINITY.to_bits()), 0);
        assert_eq!(ex2(f32::INFINITY.to_bits()), f32::INFINITY.to_bits());
        assert_eq!(ex2(f32::NAN.to_bits()), NAN_F32);
        assert_eq!(lg2(0), f32::NEG_INFINITY.to_bits());
        assert_eq!(lg2((-1f32).to_bits()), NAN_F32);
        assert_eq!(rcp(0x8000_0000), f32::NEG_INFINITY.to_bits());
        assert_eq!(rcp(1), f32::INFINITY.to_bits(), "subnormal inputs are flushed");
    }

    #[test]
    fn e4m3_rounds_to_nearest_and_saturates() {
        for code in (0..0x7f).chain(0x80..0xff) {
            let value = e4m3_to_f32(code);
            assert_eq!(f32_to_e4m3(value), code, "{value}");
            // The midpoint to the next code rounds to the even one.
            if code & 0x7f < 0x7e {
                let middle = (value + e4m3_to_f32(code + 1)) / 2.0;
                assert_eq!(f32_to_e4m3(middle), code + (code & 1), "{middle}");
                assert_eq!(f32_to_e4m3(middle * 0.999), code, "below {middle}");
                assert_eq!(f32_to_e4m3(middle * 1.001), code + 1, "above {middle}");
            }
        }
        assert_eq!(
            (e4m3_to_f32(0x7e), e4m3_to_f32(0x08), e4m3_to_f32(1)),
            (448.0, 1.0 / 64.0, 1.0 / 512.0)
        );
        for large in [449.0, 463.0, 470.0, 1e9, 3e38, f32::INFINITY] {
            assert_eq!((f32_to_e4m3(large), f32_to_e4m3(-large)), (0x7e, 0xfe));
        }
        assert_eq!(f32_to_e4m3(f32::NAN), 0x7f);
        assert!(e4m3_to_f32(0xff).is_nan());
    }

    #[test]
    fn small_addends_decide_ties() {
        // 1 + 2⁻⁸ is the midpoint between two bf16 numbers; adding 2⁻⁸⁰ is inexact in f64.
        let tie = 1.0 + 2f64.powi(-8);
        let tiny = 2f64.powi(-80);
        assert_eq!(f64_to_bf16(add_odd(tie, tiny)), 0x3f81);
        assert_eq!(f64_to_bf16(add_odd(tie, -tiny)), 0x3f80);
        assert_eq!(f64_to_bf16(add_odd(-tie, -tiny)), 0xbf81);
        assert_eq!(f64_to_bf16(add_odd(-tie, tiny)), 0xbf80);
        assert_eq!(f64_to_bf16(add_odd(tie, 0.0)), 0x3f80);
        assert_eq!(add_odd(f64::INFINITY, 1.0), f64::INFINITY);
        assert_eq!(add_odd(1.5, 2.25), 3.75);
    }

    #[test]
    fn f64_to_16_bits_rounds_once() {
        // Just above the midpoint between 1 and the next f16. Rounding to f32 first would give the
        // midpoint.
        let above = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(f64_to_f16(above), 0x3c01);
        assert_eq!(f64_to_f16(1.0 + 2f64.powi(-11)), 0x3c00);
        assert_eq!(f64_to_bf16(1.0 + 2f64.powi(-8) + 2f64.powi(-40)), 0x3f81);
        assert_eq!(f64_to_bf16(1.0 + 2f64.powi(-8)), 0x3f80);
        assert_eq!(f64_to_f16(1e300), 0x7c00);
        assert_eq!(f64_to_f16(-2f64.powi(-24)), 0x8001);
        assert_eq!(f64_to_f16(2f64.powi(-25)), 0, "a tie with zero goes to even");
    }
}
