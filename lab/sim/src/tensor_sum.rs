//! How tensor cores add up products: exactly, or as Hopper's do.
//!
//! PTX leaves the order and the precision of these sums open. Hopper's were worked out from an H200's answers to
//! random programs, all of which this reproduces bit by bit (`lab/tools`, `docs/hardware-notes.md`). An
//! instruction adds all its products and the accumulator at once, in fixed point: the largest exponent among the
//! terms that are not zero sets the place of the last bit kept, and what lies below is cut off each term.

use flashcore_ir::inst::WgmmaInput;
use serde::{Deserialize, Serialize};

use crate::float::f64_to_f16;

/// How the sums of tensor-core products are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorSums {
    /// Exactly, then rounded once to the accumulator's type: what every tensor core is near.
    #[default]
    Exact,
    /// Bit by bit as Hopper's tensor cores do.
    Hopper,
}

/// What Hopper's sums of products of one type of operands keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HopperSum {
    /// Exponent of the operands' smallest normal number: subnormals count with it.
    lowest: i32,
    /// The same of the accumulator's type.
    lowest_of_acc: i32,
    /// Bits kept below the largest exponent.
    kept: i32,
    /// Bits of the result's significand that are cut off an f32's.
    cut: u32,
}

impl HopperSum {
    /// Of operands of a type, with f32 accumulators.
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

    /// Of f16 with f16 accumulators.
    pub(crate) fn halves() -> HopperSum {
        HopperSum {
            lowest_of_acc: -14,
            ..HopperSum::of(WgmmaInput::F16)
        }
    }

    /// The sum of one instruction's products and its accumulator, before it is rounded to the accumulator's type.
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
        // Powers of two: scaling by them is exact, and so are sums of so few whole numbers below 2^28.
        let (down, up) = (power(self.kept - largest), power(largest - self.kept));
        let whole = products.fold((acc * down).trunc(), |sum, (a, b)| sum + (a * b * down).trunc());
        whole * up
    }

    /// Such a sum as an f32: rounded towards zero, of which there is one, the positive.
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

    /// Such a sum as an f16: rounded to nearest, zeros as in [`HopperSum::to_f32`].
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
    // What is widened from a narrower type is normal here.
    ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(lowest)
}

/// `2^n` of exponents that sums of products have.
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
    fn what_lies_below_the_last_bit_is_cut_off_each_term() {
        let bit = |n: i32| 2f64.powi(n);
        // The largest term is 2^0: bits down to 2^-25 are kept of each of the others, 2^-23 of the result.
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
    fn subnormal_operands_count_with_the_exponent_of_the_smallest_normal() {
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

    /// Sums that an H200 has computed, with their operands; exact ones would be others.
    #[test]
    fn an_h200_computes_so() {
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
        // Nothing is left of the small negative term, nor of one that f16 has no number for.
        let products = [(1.0, 1.0), (-1.0, 1.0), (-2f64.powi(-14), 2f64.powi(-14))];
        assert_eq!(rule.to_f32(rule.sum(products.into_iter(), 0.0)).to_bits(), 0);
        assert_eq!(rule.to_f16(-2f64.powi(-30)), 0);
    }

    #[test]
    fn infinities_and_nan_are_as_ever() {
        assert_eq!(
            sum(WgmmaInput::F16, &[(f64::INFINITY, 1.0), (1.0, 1.0)], 0.0),
            f32::INFINITY
        );
        assert!(sum(WgmmaInput::F16, &[(f64::INFINITY, 0.0)], 0.0).is_nan());
    }
}
