//! Summation in tensor cores: exact, or as on Hopper.
//!
//! PTX does not specify order and precision of these sums. Hopper's summation was derived from an
//! H200's results of random programs, and this code reproduces all of them bit by bit (`lab/tools`,
//! `docs/hardware-notes.md`). An instruction adds all products and the accumulator at once in fixed
//! point. The largest exponent of the nonzero terms determines the last bit kept; each term is
//! truncated there.

use flashcore_ir::inst::WgmmaInput;
use serde::{Deserialize, Serialize};

use crate::float::f64_to_f16;

/// How tensor-core sums are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorSums {
    /// Exact, then rounded once to the accumulator's type. All tensor cores are close to this.
    #[default]
    Exact,
    /// Bit-exact Hopper summation.
    Hopper,
}

/// Precision of Hopper's sums for one operand type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HopperSum {
    /// Smallest exponent of an operand: subnormals count with that of the smallest normal number.
    lowest: i32,
    /// The same for the accumulator's type.
    lowest_of_acc: i32,
    /// Bits kept below the largest exponent.
    kept: i32,
    /// Bits truncated from the significand of an f32 result.
    cut: u32,
}

impl HopperSum {
    /// For operands of a type with f32 accumulators.
    pub(crate) fn of(input: WgmmaInput) -> HopperSum {
        let (lowest, kept, cut) = match input {
            WgmmaInput::F16 => (-14, 25, 0),
            WgmmaInput::BF16 => (-126, 25, 0),
            WgmmaInput::E4M3 => (-6, 13, 10),
        };
        HopperSum {
            lowest,
            lowest_of_acc: -126,
            kept,
            cut,
        }
    }

    /// For f16 with f16 accumulators.
    pub(crate) fn halves() -> HopperSum {
        HopperSum {
            lowest_of_acc: -14,
            ..HopperSum::of(WgmmaInput::F16)
        }
    }

    /// The sum of one instruction's products and accumulator, not yet rounded to the type of `acc`.
    #[inline]
    pub(crate) fn sum(&self, products: impl Iterator<Item = (f64, f64)> + Clone, acc: f64) -> f64 {
        let plain = products.clone().fold(acc, |sum, (a, b)| sum + a * b);
        if !plain.is_finite() {
            return plain;
        }
        let largest = products
            .clone()
            .filter(|&(a, b)| a != 0.0 && b != 0.0)
            .map(|(a, b)| exponent(a, self.lowest) + exponent(b, self.lowest))
            .chain((acc != 0.0).then(|| exponent(acc, self.lowest_of_acc)))
            .max();
        let Some(largest) = largest else { return plain };
        // Scaling by powers of two is exact, and so are sums of these few integers below 2^28.
        let (down, up) = (power(self.kept - largest), power(largest - self.kept));
        let whole = products.fold((acc * down).trunc(), |sum, (a, b)| sum + (a * b * down).trunc());
        whole * up
    }

    /// Rounds such a sum to f32, toward zero. The only zero is +0.
    #[inline]
    pub(crate) fn to_f32(self, sum: f64) -> f32 {
        let nearest = sum as f32;
        if !nearest.is_finite() {
            return nearest;
        }
        let is_beyond = f64::from(nearest).abs() > sum.abs();
        let bits = nearest.to_bits() - u32::from(is_beyond);
        match bits >> self.cut << self.cut {
            0x8000_0000 => 0.0,
            bits => f32::from_bits(bits),
        }
    }

    /// Rounds such a sum to f16, to nearest. Zeros as in [`HopperSum::to_f32`].
    #[inline]
    pub(crate) fn to_f16(self, sum: f64) -> u32 {
        match f64_to_f16(sum) {
            0x8000 => 0,
            bits => bits,
        }
    }
}

/// The exponent of a number, at least `lowest`.
fn exponent(x: f64, lowest: i32) -> i32 {
    // Values widened from a narrower type are normal f64.
    ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(lowest)
}

/// `2^n`, for exponents of sums of products.
fn power(n: i32) -> f64 {
    f64::from_bits(((n + 1023).clamp(1, 2046) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float::{bf16_to_f32, e4m3_to_f32, f16_to_f32};

    fn sum(input: WgmmaInput, products: &[(f64, f64)], acc: f64) -> f32 {
        let rule = HopperSum::of(input);
        rule.to_f32(rule.sum(products.iter().copied(), acc))
    }

    #[test]
    fn small_integers_are_exact() {
        let products: Vec<(f64, f64)> = (0..16).map(|i| (f64::from(i - 8), f64::from(5 - i))).collect();
        let want: f64 = products.iter().map(|(a, b)| a * b).sum();
        for input in [WgmmaInput::F16, WgmmaInput::BF16, WgmmaInput::E4M3] {
            assert_eq!(f64::from(sum(input, &products, 3.0)), want + 3.0);
        }
    }

    #[test]
    fn terms_are_truncated_below_the_last_bit() {
        let bit = |n: i32| 2f64.powi(n);
        // The largest term is 2^0: the others keep bits down to 2^-25, the result down to 2^-23.
        let others =
            |x: f64, n: usize| -> Vec<(f64, f64)> { [(1.0, 1.0)].into_iter().chain(vec![(x, 1.0); n]).collect() };
        assert_eq!(sum(WgmmaInput::BF16, &others(bit(-26), 15), 0.0), 1.0);
        assert_eq!(sum(WgmmaInput::BF16, &others(bit(-25), 4), 0.0), 1.0 + bit(-23) as f32);
        assert_eq!(
            sum(WgmmaInput::BF16, &others(bit(-25), 7), 0.0),
            1.0 + bit(-23) as f32,
            "towards zero"
        );
        assert_eq!(sum(WgmmaInput::BF16, &others(-bit(-25), 1), 0.0), 1.0 - bit(-24) as f32);
        assert_eq!(sum(WgmmaInput::E4M3, &[(1.0, 1.0), (bit(-6), bit(-8))], 0.0), 1.0);
    }

    #[test]
    fn subnormals_count_with_the_smallest_normal_exponent() {
        // 2^-24 · 2^15 is 2^-9, but counts as 2^-14 · 2^15 = 2^1: bits down to 2^-24 are kept.
        let with = |x: f64| sum(WgmmaInput::F16, &[(2f64.powi(-24), 2f64.powi(15)), (x, 1.0)], 0.0);
        let tiny = 3.0 * 2f64.powi(-14) * (1.0 + 2f64.powi(-10));
        assert_eq!(
            f64::from(with(tiny)),
            2f64.powi(-9) + (tiny * 2f64.powi(24)).trunc() * 2f64.powi(-24)
        );
        assert_eq!(
            sum(WgmmaInput::F16, &[(0.0, 65504.0), (1.0, 2f64.powi(-14))], 0.0),
            2f32.powi(-14)
        );
    }

    /// Operands and sums from an H200 that differ from exact sums.
    #[test]
    fn sums_match_an_h200() {
        let number = |text: &str| u32::from_str_radix(text, 16).unwrap();
        let mut checked = 0;
        for line in include_str!("../tests/it/h200-sums.txt").lines() {
            if line.starts_with('#') {
                continue;
            }
            let [kind, first, want, a, b] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let widen: fn(u32) -> f32 = match kind {
                "bf16" => bf16_to_f32,
                "e4m3" => e4m3_to_f32,
                _ => f16_to_f32,
            };
            let list = |text: &str| -> Vec<f64> { text.split(',').map(|x| f64::from(widen(number(x)))).collect() };
            let (a, b) = (list(a), list(b));
            let products = a.iter().copied().zip(b.iter().copied());
            let got = if kind == "f16-f16" {
                let rule = HopperSum::halves();
                rule.to_f16(rule.sum(products, f64::from(f16_to_f32(number(first)))))
            } else {
                let rule = HopperSum::of(match kind {
                    "bf16" => WgmmaInput::BF16,
                    "e4m3" => WgmmaInput::E4M3,
                    _ => WgmmaInput::F16,
                });
                rule.to_f32(rule.sum(products, f64::from(f32::from_bits(number(first)))))
                    .to_bits()
            };
            assert_eq!(got, number(want), "{line}");
            checked += 1;
        }
        assert!(checked >= 60, "{checked}");
    }

    #[test]
    fn zero_is_positive() {
        let rule = HopperSum::of(WgmmaInput::F16);
        for products in [[(-0.0, 1.0), (0.0, -3.0)], [(-1.0, 1.0), (1.0, 1.0)]] {
            assert_eq!(rule.to_f32(rule.sum(products.into_iter(), -0.0)).to_bits(), 0);
        }
        // The small negative term is lost, and so is one that f16 cannot represent.
        let products = [(1.0, 1.0), (-1.0, 1.0), (-2f64.powi(-14), 2f64.powi(-14))];
        assert_eq!(rule.to_f32(rule.sum(products.into_iter(), 0.0)).to_bits(), 0);
        assert_eq!(rule.to_f16(-2f64.powi(-30)), 0);
    }

    #[test]
    fn infinities_and_nan_follow_ieee() {
        assert_eq!(
            sum(WgmmaInput::F16, &[(f64::INFINITY, 1.0), (1.0, 1.0)], 0.0),
            f32::INFINITY
        );
        assert!(sum(WgmmaInput::F16, &[(f64::INFINITY, 0.0)], 0.0).is_nan());
    }
}
