//! Sums of the [reference](mod@crate::reference_gradients) of gradients, and the error that rounding may add to them.

use crate::slack::WALK;
use crate::{DType, GradientRow};

/// An element's unit roundoff, and the least dS and P whose rounding is relative.
pub(crate) const fn rounding(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F32 => (1.0 / 16_777_216.0, 0.0),
        DType::F16 => (1.0 / 2048.0, 1.0 / 16_384.0),
        DType::BF16 | DType::E4M3 => (1.0 / 256.0, 0.0),
    }
}

/// Of sums in f32 and of `exp2`, relative to what they sum.
pub(crate) const F32_ERROR: f64 = 1.0 / 4_194_304.0;

/// A row of a gradient as it is summed.
#[derive(Clone)]
pub(crate) struct Sum {
    values: Vec<f64>,
    /// Squares of the steps of the random walk, without those of sums in f32.
    squares: Vec<f64>,
    /// Squares of the terms.
    terms: Vec<f64>,
    /// What the worst case allows.
    pub(crate) worst: Vec<f64>,
    count: usize,
}

/// What a vector is added with: see [`Sum`].
pub(crate) struct Term {
    pub(crate) value: f64,
    pub(crate) step: f64,
    pub(crate) worst: f64,
}

impl Sum {
    pub(crate) fn new(columns: usize) -> Sum {
        let zeros = vec![0.0; columns];
        Sum {
            values: zeros.clone(),
            squares: zeros.clone(),
            terms: zeros.clone(),
            worst: zeros,
            count: 0,
        }
    }

    pub(crate) fn add(&mut self, term: &Term, vector: &[f64]) {
        let (square, step) = (term.value * term.value, term.step * term.step);
        let sums = self.values.iter_mut().zip(&mut self.squares);
        let sums = sums.zip(&mut self.terms).zip(&mut self.worst);
        for ((((value, squares), terms), worst), x) in sums.zip(vector) {
            *value += term.value * x;
            *squares += step * x * x;
            *terms += square * x * x;
            *worst += term.worst * x.abs();
        }
        self.count += 1;
    }

    pub(crate) fn merge(&mut self, part: &Sum) {
        let add = |to: &mut Vec<f64>, from: &[f64]| to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        add(&mut self.values, &part.values);
        add(&mut self.squares, &part.squares);
        add(&mut self.terms, &part.terms);
        add(&mut self.worst, &part.worst);
        self.count += part.count;
    }

    pub(crate) fn row(&self, index: [usize; 3], may_be_nan: bool) -> GradientRow {
        // Sums in f32: each addition rounds what is summed so far.
        let sums = rounding(DType::F32).0 * (self.count as f64).sqrt();
        let slack = self.squares.iter().zip(&self.terms).zip(&self.worst);
        let slack = slack.map(|((squares, terms), worst)| WALK * (squares + sums * sums * terms).sqrt() + worst);
        GradientRow {
            index,
            values: self.values.clone(),
            slack: slack.collect(),
            may_be_nan,
        }
    }
}
