//! Detection of NaN and infinity in traced values.

use flashcore_ir::ScalarType;

/// A value that is not a finite number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nonfinite {
    /// A NaN.
    Nan,
    /// An infinity.
    Infinity,
}

/// Whether bits of a type hold a NaN, or an infinity not made by masking. Only f32 scores are
/// masked with -inf. A NaN in one half of a pair hides an infinity in the other.
pub fn nonfinite(ty: ScalarType, bits: u64) -> Option<Nonfinite> {
    let bits = bits as u32;
    let half = |half: u32, exponent: u32| match half & 0x7fff {
        magnitude if magnitude > exponent => Some(Nonfinite::Nan),
        magnitude if magnitude == exponent => Some(Nonfinite::Infinity),
        _ => None,
    };
    let halves = |exponent: u32| match (half(bits, exponent), half(bits >> 16, exponent)) {
        (Some(Nonfinite::Nan), _) | (_, Some(Nonfinite::Nan)) => Some(Nonfinite::Nan),
        (low, high) => low.or(high),
    };
    match ty {
        ScalarType::F32 if f32::from_bits(bits).is_nan() => Some(Nonfinite::Nan),
        ScalarType::F32 => (f32::from_bits(bits) == f32::INFINITY).then_some(Nonfinite::Infinity),
        ScalarType::F16 => half(bits, 0x7c00),
        ScalarType::BF16 => half(bits, 0x7f80),
        ScalarType::F16x2 => halves(0x7c00),
        ScalarType::BF16x2 => halves(0x7f80),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_infinities_made_by_masks_are_ignored() {
        let f32s = |x: f32| nonfinite(ScalarType::F32, u64::from(x.to_bits())).is_some();
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
            assert_eq!(nonfinite(ty, bits).is_some(), is, "{ty:?} {bits:#x}");
        }
    }
}
