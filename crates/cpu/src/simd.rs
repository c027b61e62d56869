//! SIMD levels, and vectorised `exp2` and `tanh`.

use pulp::{Arch, Simd};
use serde::{Deserialize, Serialize};

flashcore_problem::words! {
    /// An instruction set that the kernel is compiled for. The best available one is chosen at run
    /// time; tests and benchmarks may force a lower one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    #[non_exhaustive]
    SimdLevel {
        /// The baseline of the compiled architecture.
        Baseline = "baseline",
        /// x86-64 with AVX2 and FMA: 8 f32 lanes.
        Avx2 = "avx2",
        /// x86-64 with AVX-512 F, BW, CD, DQ and VL: 16 f32 lanes.
        Avx512 = "avx512",
        /// Arm with NEON: 4 f32 lanes.
        Neon = "neon",
    }
}

impl SimdLevel {
    /// The levels of this machine, the best one last.
    ///
    /// ```
    /// use flashcore_cpu::SimdLevel;
    /// assert_eq!(SimdLevel::available().first(), Some(&SimdLevel::Baseline));
    /// ```
    pub fn available() -> Vec<SimdLevel> {
        let all = SimdLevel::ALL.into_iter();
        all.filter(|level| level.arch().is_some()).collect()
    }

    /// The default level of this machine.
    pub fn best() -> SimdLevel {
        SimdLevel::available().last().copied().unwrap_or(SimdLevel::Baseline)
    }

    /// The dispatcher of this level, if the machine supports it.
    pub(crate) fn arch(self) -> Option<Arch> {
        match self {
            SimdLevel::Baseline => Some(Arch::Scalar),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2 => pulp::x86::V3::try_new().map(Arch::V3),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512 => pulp::x86::V4::try_new().map(Arch::V4),
            #[cfg(target_arch = "aarch64")]
            SimdLevel::Neon => pulp::aarch64::Neon::try_new().map(Arch::Neon),
            #[allow(unreachable_patterns)] // the levels of other architectures
            _ => None,
        }
    }
}

/// [`exp2_of_product`] with a factor of 1.
#[inline(always)]
pub(crate) fn exp2<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    exp2_of_product(simd, x, simd.splat_f32s(1.0), simd.splat_f32s(LOWEST))
}

/// Exponents of 2 from here down give 0.
pub(crate) const LOWEST: f32 = -127.0;

/// `2^(x·factor)` for `x ≤ 0` and `factor > 0`, within 2 ulp; the product is not rounded. Results below 2^-126 may
/// flush to 0; below 2^-127 they are 0, also for −∞. NaN stays NaN; `2^0` is exactly 1. `lowest` is [`LOWEST`]` /
/// factor`.
///
/// With `n = round(x·factor)`, `2^(x·factor) = 2^n · 2^(x·factor - n)`: `n` is shifted into the exponent bits, and a
/// polynomial computes the second factor.
#[inline(always)]
pub(crate) fn exp2_of_product<S: Simd>(simd: S, x: S::f32s, factor: S::f32s, lowest: S::f32s) -> S::f32s {
    // Adding 1.5·2²³ rounds to an integer in the low bits of the sum. The additional 127 is the
    // exponent bias of 2^n.
    const ROUND: f32 = 12_582_912.0 + 127.0;
    // Minimax polynomial for the relative error of 2^f on [-1/2, 1/2] with the constant term fixed
    // at 1 (Lawson's iteration). Error at most 2e-9 before the coefficients are rounded to f32.
    const COEFFICIENTS: [f32; 6] = [
        1.535_336_2e-4,
        1.339_887_5e-3,
        9.618_437e-3,
        5.550_332_5e-2,
        2.402_264_8e-1,
        6.931_472e-1,
    ];
    // Not `max`: which operand's NaN it drops depends on the architecture.
    let x = simd.select_f32s(simd.less_than_f32s(x, lowest), lowest, x);
    let shifted = simd.mul_add_e_f32s(x, factor, simd.splat_f32s(ROUND));
    let fraction = simd.mul_add_e_f32s(x, factor, simd.sub_f32s(simd.splat_f32s(ROUND), shifted));
    let power = simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(23));
    let mut sum = simd.splat_f32s(COEFFICIENTS[0]);
    for &c in &COEFFICIENTS[1..] {
        sum = simd.mul_add_e_f32s(sum, fraction, simd.splat_f32s(c));
    }
    let sum = simd.mul_add_e_f32s(sum, fraction, simd.splat_f32s(1.0));
    simd.mul_f32s(sum, simd.transmute_f32s_u32s(power))
}

/// `tanh(x)` with relative error at most 1e-6: `(1 - t) / (1 + t)`, `t = e^(-2|x|)`, with the sign
/// of `x`. Below 1/4, where `1 - t` loses digits, the Taylor series up to `x^9`. A soft cap
/// multiplies the result by the cap, so the relative error counts.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let magnitude = simd.abs_f32s(x);
    let t = exp2(
        simd,
        simd.mul_f32s(magnitude, simd.splat_f32s(-2.0 * std::f32::consts::LOG2_E)),
    );
    let one = simd.splat_f32s(1.0);
    let result = simd.div_f32s(simd.sub_f32s(one, t), simd.add_f32s(one, t));
    let sign = simd.and_f32s(x, simd.splat_f32s(-0.0));
    let result = simd.or_f32s(result, sign);
    let square = simd.mul_f32s(x, x);
    let mut series = simd.splat_f32s(62.0 / 2835.0);
    for coefficient in [-17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0] {
        series = simd.mul_add_e_f32s(series, square, simd.splat_f32s(coefficient));
    }
    let small = simd.mul_add_e_f32s(simd.mul_f32s(series, square), x, x);
    simd.select_f32s(simd.less_than_f32s(magnitude, simd.splat_f32s(0.25)), small, result)
}

#[cfg(test)]
mod tests {
    use pulp::WithSimd;

    use super::*;

    struct Apply<'a>(&'a mut [f32], bool);

    impl WithSimd for Apply<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let (vectors, _) = S::as_mut_simd_f32s(self.0);
            for x in vectors {
                *x = if self.1 { exp2(simd, *x) } else { tanh(simd, *x) };
            }
        }
    }

    #[test]
    fn exp2_is_within_2_ulp_at_every_level() {
        let x: Vec<f32> = (0..1 << 20).map(|i| -126.0 * i as f32 / (1 << 20) as f32).collect();
        for level in SimdLevel::available() {
            let mut y = x.clone();
            level.arch().unwrap().dispatch(Apply(&mut y, true));
            let worst = x.iter().zip(&y).map(|(&x, &y)| {
                let want = f64::from(x).exp2();
                let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
                (f64::from(y) - want).abs() / ulp
            });
            let worst = worst.fold(0.0, f64::max);
            assert!(worst < 2.0, "{level}: {worst} ulp");
        }
    }

    #[test]
    fn exp2_at_the_ends() {
        for level in SimdLevel::available() {
            let mut y = [0.0f32; 16];
            y[..8].copy_from_slice(&[
                0.0,
                f32::NEG_INFINITY,
                -1e30,
                f32::NAN,
                f32::from_bits(u32::MAX), // POISON as f32
                -1.0,
                -127.5,
                -0.0,
            ]);
            level.arch().unwrap().dispatch(Apply(&mut y, true));
            assert_eq!(y[..3], [1.0, 0.0, 0.0], "{level}");
            assert!(y[3].is_nan() && y[4].is_nan(), "{level}");
            assert_eq!(y[5..8], [0.5, 0.0, 1.0], "{level}");
        }
    }

    #[test]
    fn tanh_is_within_a_millionth_at_every_level() {
        let mut x: Vec<f32> = (-40_000..40_000).map(|i| i as f32 / 2000.0).collect();
        let small: Vec<f32> = x.iter().map(|x| x * 1e-5).collect();
        x.extend(small);
        for level in SimdLevel::available() {
            let mut y = x.clone();
            level.arch().unwrap().dispatch(Apply(&mut y, false));
            for (&x, &y) in x.iter().zip(&y) {
                assert!(
                    (f64::from(y) - f64::from(x).tanh()).abs() <= 1e-6 * f64::from(x).tanh().abs(),
                    "{level}: tanh({x}) = {y}"
                );
            }
        }
    }

    #[test]
    fn lane_counts() {
        struct Lanes;
        impl WithSimd for Lanes {
            type Output = usize;
            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) -> usize {
                S::F32_LANES
            }
        }
        for level in SimdLevel::available() {
            let want = match level {
                SimdLevel::Baseline => 1,
                SimdLevel::Neon => 4,
                SimdLevel::Avx2 => 8,
                SimdLevel::Avx512 => 16,
            };
            assert_eq!(level.arch().unwrap().dispatch(Lanes), want, "{level}");
        }
    }

    #[test]
    fn available_levels_match_feature_detection() {
        #[cfg(target_arch = "x86_64")]
        {
            let has = |level| SimdLevel::available().contains(&level);
            assert_eq!(
                has(SimdLevel::Avx2),
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
            );
            assert_eq!(
                has(SimdLevel::Avx512),
                is_x86_feature_detected!("avx512bw") && has(SimdLevel::Avx2)
            );
        }
        assert!(SimdLevel::best().arch().is_some());
    }
}
