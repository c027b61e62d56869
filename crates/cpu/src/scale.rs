//! How scores are scaled, so that none overflows that is a number when it is scaled.

use std::f32::consts::LOG2_E;

use flashcore_problem::Problem;

/// A problem's softmax scale in two factors. Products of large elements can overflow f32 where the scaled score does
/// not, so Q is multiplied first, by a power of two, which is exact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    /// The power of two: at most 1.
    pub(crate) of_q: f32,
    /// What remains of the scale: from 1 to 2, or all of a scale above 1.
    pub(crate) rest: f32,
    /// A score as the softmax takes it, after the cap if there is one, times this is the score.
    pub(crate) of_score: f32,
}

impl Scale {
    pub(crate) fn of(problem: &Problem) -> Scale {
        let scale = problem.softmax_scale();
        let of_q = f64::from(scale).log2().floor().min(0.0).exp2() as f32;
        let rest = scale / of_q;
        // A cap applies the scale itself.
        let of_score = if problem.softcap().is_some() { 1.0 } else { rest };
        Scale { of_q, rest, of_score }
    }

    /// The factor from scores as the softmax takes them to exponents of 2.
    pub(crate) fn exponent(&self) -> f32 {
        self.of_score * LOG2_E
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factors_are_the_scale() {
        for (scale, of_q) in [
            (0.125, 0.125),
            (0.1, 0.0625),
            (1.0, 1.0),
            (3.0, 1.0),
            (1e5, 1.0),
            (1e-45, 1e-45),
        ] {
            let problem = Problem::builder()
                .heads(1, 1)
                .head_dim(64)
                .seq_len(1)
                .softmax_scale(scale);
            let found = Scale::of(&problem.build().unwrap());
            assert_eq!((found.of_q, found.of_q * found.rest), (of_q, scale), "{scale}");
        }
    }
}
