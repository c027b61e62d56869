//! Detection of NaN and infinity in traced values.

use flashcore_ir::ScalarType;

/// Whether bits of a type hold a NaN, or an infinity not made by masking. Only f32 scores are
/// masked with -inf.
pub fn is_nonfinite(ty: ScalarType, bits: u64) -> bool {
    // The exponent is all ones in one half or in both.
    let half = |bits: u64, exponent: u64| bits & exponent == exponent;
    let halves = |exponent: u64| half(bits, exponent) || half(bits >> 16, exponent);
    match ty {
        ScalarType::F32 => f32::from_bits(bits as u32).is_nan() || f32::from_bits(bits as u32) == f32::INFINITY,
        ScalarType::F16 => half(bits, 0x7c00),
        ScalarType::BF16 => half(bits, 0x7f80),
        ScalarType::F16x2 => halves(0x7c00),
        ScalarType::BF16x2 => halves(0x7f80),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_infinities_made_by_masks_are_ignored() {
        let f32s = |x: f32| is_nonfinite(ScalarType::F32, u64::from(x.to_bits()));
        assert!(f32s(f32::NAN) && f32s(f32::INFINITY) && !f32s(f32::NEG_INFINITY) && !f32s(3e38));
        for (ty, bits, is) in [
            (ScalarType::F16, 0x7c00, true),
            (ScalarType::F16, 0x7bff, false),
            (ScalarType::F16x2, 0xfc00_0000, true),
            (ScalarType::F16x2, 0x7bff_0001, false),
            (ScalarType::BF16x2, 0x0000_7fc0, true),
            (ScalarType::BF16, 0x7f7f, false),
            (ScalarType::U32, u64::MAX, false),
        ] {
            assert_eq!(is_nonfinite(ty, bits), is, "{ty:?} {bits:#x}");
        }
    }
}
