//! The words of a program's result, and how close two results must be.

use half::{bf16, f16};

/// How the words of one place of the output are compared: one word a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slot {
    /// The same bits.
    Bits,
    /// The same f32; NaNs are one.
    F32,
    /// The same two f16; NaNs are one.
    F16x2,
    /// The same two bf16; NaNs are one.
    BF16x2,
    /// `ex2` or `rcp`: at most this many f32 numbers apart; subnormals count as zero.
    Ulps(u32),
    /// `lg2`: at most 2^-22 off for results within ±1, and 2^-22 of the result beyond (PTX ISA).
    Lg2,
    /// A sum of products in f32: off by at most [`PRODUCT_BOUND`] a step, or [`E4M3_PRODUCT_BOUND`],
    /// of the sum of their magnitudes, which is in another place of the simulator's output.
    Product {
        /// That place.
        magnitude: usize,
        /// Instructions one after another that made it.
        steps: u32,
        /// Whether factors are e4m3, whose sums hardware keeps in fewer bits.
        e4m3: bool,
    },
    /// A pair of sums of products in f16: off by at most [`PRODUCT_BOUND`] of magnitudes in two
    /// other places, and by the rounding to f16 on either side: 2^-10, and 2^-24 of subnormal sums.
    HalfProduct {
        /// Those places.
        magnitudes: [usize; 2],
    },
}

/// `ex2.approx.ftz.f32` is at most 2 ulp off, and the simulator's value is the nearest to the exact
/// one.
pub const EX2_ULPS: u32 = 3;
/// `rcp.approx.ftz.f32` is at most 1 ulp off.
pub const RCP_ULPS: u32 = 2;
/// What an instruction's sums of fp16 and bf16 products may differ by from exact ones, of the sum
/// of magnitudes (`docs/simulator.md`). Of 17 terms each loses less than 2^-25 of the largest on
/// Hopper, 2^-24 where one bit fewer is kept; the result less than 2^-23 of itself; where 16
/// products are two sums of 8, that twice: 22 · 2^-24 at most, and half an ulp for the simulator's
/// own rounding. Magnitudes are those of normal numbers: subnormal operands count with the exponent
/// of the smallest one.
pub const PRODUCT_BOUND: f64 = 1.0 / (1u64 << 19) as f64;
/// The same of e4m3: 33 terms of which each loses less than 2^-13 of the largest, and the result as
/// much of itself.
pub const E4M3_PRODUCT_BOUND: f64 = 34.0 / (1u64 << 13) as f64;
/// The smallest normal f32: smaller sums of products may be flushed to zero.
const TINY: f64 = f32::MIN_POSITIVE as f64;

impl Slot {
    /// Whether two results must be equal, except for the bits of a NaN.
    pub fn is_exact(self) -> bool {
        matches!(self, Slot::Bits | Slot::F32 | Slot::F16x2 | Slot::BF16x2)
    }

    /// How the same words are compared where sums of products are known to the last bit.
    ///
    /// ```
    /// use flashcore_tools::fuzz::Slot;
    /// assert_eq!(Slot::Product { magnitude: 0, steps: 1, e4m3: false }.with_exact_sums(), Slot::F32);
    /// ```
    pub fn with_exact_sums(self) -> Slot {
        match self {
            Slot::Product { .. } => Slot::F32,
            Slot::HalfProduct { .. } => Slot::F16x2,
            other => other,
        }
    }

    /// The name of its bound, if it has one: for reports of how close results came to it.
    pub fn bound_name(self) -> Option<&'static str> {
        match self {
            Slot::Bits | Slot::F32 | Slot::F16x2 | Slot::BF16x2 => None,
            Slot::Ulps(EX2_ULPS) => Some("ex2"),
            Slot::Ulps(_) => Some("rcp"),
            Slot::Lg2 => Some("lg2"),
            Slot::Product { e4m3: false, .. } => Some("product"),
            Slot::Product { e4m3: true, .. } => Some("product of e4m3"),
            Slot::HalfProduct { .. } => Some("product in f16"),
        }
    }

    /// The word with every NaN made the same one.
    ///
    /// ```
    /// use flashcore_tools::fuzz::Slot;
    /// assert_eq!(Slot::F32.canonical(0xffc0_0001), 0x7fff_ffff);
    /// assert_eq!(Slot::F16x2.canonical(0xfe00_3c00), 0x7fff_3c00);
    /// assert_eq!(Slot::Bits.canonical(0xffc0_0001), 0xffc0_0001);
    /// ```
    pub fn canonical(self, word: u32) -> u32 {
        let halves = |is_nan: fn(u16) -> bool| {
            let one = |bits: u16| if is_nan(bits) { 0x7fff } else { u32::from(bits) };
            one(word as u16) | one((word >> 16) as u16) << 16
        };
        match self {
            Slot::F32 if f32::from_bits(word).is_nan() => 0x7fff_ffff,
            Slot::F16x2 => halves(|bits| f16::from_bits(bits).is_nan()),
            Slot::BF16x2 => halves(|bits| bf16::from_bits(bits).is_nan()),
            _ => word,
        }
    }

    /// The difference between the simulator's word and a GPU's, of what is allowed: more than 1 is
    /// a mismatch. `at` gives the simulator's word at another place.
    pub fn difference(self, simulated: u32, measured: u32, at: impl Fn(usize) -> u32) -> f64 {
        let [a, b] = [simulated, measured].map(f32::from_bits);
        let equal = |same: bool| if same { 0.0 } else { f64::INFINITY };
        let off = |bound: f64| quotient(a.into(), b.into(), bound);
        let size = |place: usize| f64::from(f32::from_bits(at(place)));
        match self {
            _ if self.is_exact() => equal(self.canonical(simulated) == self.canonical(measured)),
            // Words that the program never came to write.
            _ if simulated == measured => 0.0,
            Slot::HalfProduct { magnitudes } => {
                let [low, high] = [0, 1].map(|i| {
                    let half = |word: u32| f16::from_bits((word >> (16 * i)) as u16).to_f64();
                    let bound = (2f64.powi(-10) + PRODUCT_BOUND) * size(magnitudes[i]) + 2f64.powi(-24);
                    quotient(half(simulated), half(measured), bound)
                });
                low.max(high)
            }
            _ if a.is_nan() || b.is_nan() => equal(a.is_nan() && b.is_nan()),
            Slot::Ulps(allowed) => f64::from(ulps(a, b)) / f64::from(allowed),
            Slot::Product { magnitude, steps, e4m3 } => {
                let bound = if e4m3 { E4M3_PRODUCT_BOUND } else { PRODUCT_BOUND };
                off(f64::from(steps) * bound * size(magnitude) + TINY)
            }
            _ => off(2f64.powi(-22) * f64::from(a.abs()).max(1.0)), // lg2
        }
    }
}

/// `|a - b|` of `bound`; 0 where they are equal, infinities too.
fn quotient(a: f64, b: f64, bound: f64) -> f64 {
    if a == b {
        return 0.0;
    }
    let quotient = (a - b).abs() / bound;
    if quotient.is_nan() { f64::INFINITY } else { quotient }
}

/// How many f32 numbers lie between two of one sign, all subnormals and zeros being one number.
fn ulps(a: f32, b: f32) -> u32 {
    let place = |x: f32| (x.abs().to_bits()).max(f32::MIN_POSITIVE.to_bits() - 1);
    let apart = place(a).abs_diff(place(b));
    let signs_agree = a.is_sign_negative() == b.is_sign_negative();
    if signs_agree || apart == 0 && place(a) < f32::MIN_POSITIVE.to_bits() {
        apart
    } else {
        u32::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(slot: Slot, a: f32, b: f32) -> f64 {
        slot.difference(a.to_bits(), b.to_bits(), |_| 1f32.to_bits())
    }

    #[test]
    fn approximations_are_held_to_their_bounds() {
        let above = |x: f32, n: u32| f32::from_bits(x.to_bits() + n);
        assert!(difference(Slot::Ulps(2), 1.0, above(1.0, 2)) <= 1.0);
        assert!(difference(Slot::Ulps(2), 1.0, above(1.0, 3)) > 1.0);
        assert!(difference(Slot::Ulps(2), -1.0, 1.0) > 1.0);
        assert_eq!(difference(Slot::Ulps(2), 1e-40, -0.0), 0.0);
        assert!(difference(Slot::Ulps(2), f32::MAX, f32::INFINITY) <= 1.0);
        assert!(difference(Slot::Ulps(2), f32::NAN, 1.0) > 1.0);
        assert!(difference(Slot::Lg2, 1e-8, 1e-7) <= 1.0);
        assert!(difference(Slot::Lg2, 8.0, 8.00001) > 1.0);
        let product = |steps| Slot::Product {
            magnitude: 0,
            steps,
            e4m3: false,
        };
        assert!(difference(product(1), 0.0, 1.8e-6) <= 1.0);
        assert!(difference(product(1), 0.0, 2.0e-6) > 1.0);
        assert!(difference(product(2), 0.0, 3.6e-6) <= 1.0);
        assert!(difference(product(1), 1.0, f32::INFINITY) > 1.0);
    }

    #[test]
    fn exact_places_differ_by_one_bit() {
        assert_eq!(Slot::F32.difference(0x7fc0_0000, 0x7fff_ffff, |_| 0), 0.0);
        assert!(Slot::F32.difference(0, 0x8000_0000, |_| 0) > 1.0);
        assert!(Slot::Bits.difference(0x7fc0_0000, 0x7fff_ffff, |_| 0) > 1.0);
    }
}
