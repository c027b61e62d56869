//! Conversions of e4m3, the 8-bit floating-point format of OCP (table 1).

use crate::tensor::E4M3_MAX;

/// Difference of the exponent biases of f32 and e4m3 (127 and 7), shifted by 3 fraction bits.
const E4M3_REBIAS: u32 = (127 - 7) << 3;

/// Position in f32 of e4m3's lowest fraction bit.
const E4M3_LAST_BIT: u32 = 20;

/// The smallest normal number, and the spacing of subnormal numbers.
const E4M3_MIN_NORMAL: f32 = 1.0 / 64.0;
const E4M3_MIN_SUBNORMAL: f32 = 1.0 / 512.0;

pub(crate) fn e4m3_to_f32(byte: u8) -> f32 {
    let magnitude = match byte & 0x7f {
        0x7f => f32::NAN,
        subnormal @ 0..8 => f32::from(subnormal) * E4M3_MIN_SUBNORMAL,
        normal => f32::from_bits((u32::from(normal) + E4M3_REBIAS) << E4M3_LAST_BIT),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Nearest even, saturating at ±448 as `cvt.satfinite`; NaN stays NaN.
pub(crate) fn f32_to_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = value.abs().min(E4M3_MAX);
    if magnitude < E4M3_MIN_NORMAL {
        // Rounding up to 8 gives the encoding of the smallest normal number.
        return sign | (magnitude / E4M3_MIN_SUBNORMAL).round_ties_even() as u8;
    }
    let bits = magnitude.to_bits();
    let half_less_one = (1 << (E4M3_LAST_BIT - 1)) - 1;
    let rounded = (bits + half_less_one + (bits >> E4M3_LAST_BIT & 1)) >> E4M3_LAST_BIT;
    sign | (rounded - E4M3_REBIAS) as u8
}
