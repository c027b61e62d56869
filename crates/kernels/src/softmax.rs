//! The online softmax, a row at a time.

use flashcore_ir::{KernelBuilder, Val, Var};

use crate::params::RowParams;

/// log2(e): exponents are taken to base 2, so that exponentials are single `ex2` instructions.
pub(crate) const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// The reference that a row's exponentials are relative to: the largest score so far, as an exponent.
///
/// Probabilities are `2^(score·scale + offset)` with `offset = −max·scale`, in one FMA: large scores
/// lose nothing to the rounding of their product. The offset is kept as it was rounded, so that going
/// from one to the next changes nothing but the scale; and since rounding keeps order, the lowest
/// offset is that of the largest score, which need not be kept itself.
#[derive(Clone, Copy)]
pub(crate) struct Reference<'k> {
    scale: Scale<'k>,
    pub offset: Var<'k, f32>,
}

/// From scores to exponents: the same for all, or another for each head.
#[derive(Clone, Copy)]
enum Scale<'k> {
    Fixed(Val<'k, f32>),
    OfHead(Var<'k, f32>),
}

impl<'k> Reference<'k> {
    #[track_caller]
    pub(crate) fn new(k: &'k KernelBuilder, params: &RowParams<'k>) -> Self {
        Reference {
            scale: Scale::Fixed(params.exponent_scale),
            // Finite even where no key has been seen: ∞ − ∞ is NaN.
            offset: k.var(f32::MAX),
        }
    }

    /// The same with a scale that changes from head to head.
    #[track_caller]
    pub(crate) fn scaled(k: &'k KernelBuilder, scale: Var<'k, f32>) -> Self {
        Reference {
            scale: Scale::OfHead(scale),
            offset: k.var(f32::MAX),
        }
    }

    #[track_caller]
    fn scale(&self) -> Val<'k, f32> {
        match self.scale {
            Scale::Fixed(scale) => scale,
            Scale::OfHead(scale) => scale.get(),
        }
    }

    /// Forgets what was seen: a row begins.
    #[track_caller]
    pub(crate) fn reset(&self) {
        self.offset.set(f32::MAX);
    }

    /// Raises it to a score, and by `powers` of two above that. Returns the factor for what was summed
    /// before: exactly 1 where the reference stays, 0 where nothing had been seen.
    #[track_caller]
    pub(crate) fn raise(&self, score: Val<'k, f32>, powers: f32) -> Val<'k, f32> {
        let mut asked = -(score * self.scale());
        if powers != 0.0 {
            asked = asked - powers;
        }
        let offset = asked.min(self.offset);
        let rescale = (offset - self.offset).exp2();
        self.offset.set(offset);
        rescale
    }

    /// How many powers of two a score is above it.
    #[track_caller]
    pub(crate) fn exponent(&self, score: Val<'k, f32>) -> Val<'k, f32> {
        score.fma(self.scale(), self.offset)
    }

    /// The probability of a score, not yet normalised: at most 1, if the reference was raised to it.
    #[track_caller]
    pub(crate) fn exp(&self, score: Val<'k, f32>) -> Val<'k, f32> {
        self.exponent(score).exp2()
    }
}

/// `1/sum`, or 0 where no key was visible: such rows are zero.
#[track_caller]
pub(crate) fn normaliser<'k>(sum: Val<'k, f32>) -> Val<'k, f32> {
    sum.gt(0.0).select(sum.recip(), 0.0)
}

/// tanh from `ex2` and `rcp`: the hardware's `tanh.approx` is off by 2⁻¹¹, too coarse for f32.
///
/// Near zero `1 − 2/(e²ˣ + 1)` cancels, so there the Taylor series to x⁷ takes over (relative error
/// 6e-8 at its edge).
#[track_caller]
pub(crate) fn tanh<'k>(x: Val<'k, f32>) -> Val<'k, f32> {
    let k = x.builder();
    let power = (x * (2.0 * LOG2_E)).exp2();
    let far = (power + 1.0).recip().fma(-2.0, 1.0);
    let square = x * x;
    let series = square
        .fma(k.constant(-17.0 / 315.0), 2.0 / 15.0)
        .fma(square, -1.0 / 3.0)
        .fma(square, 1.0)
        * x;
    x.abs().lt(0.2).select(series, far)
}
