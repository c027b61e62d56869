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
    pub(crate) columns: Vec<Column>,
    count: usize,
}

/// An element of it.
#[derive(Clone, Default)]
pub(crate) struct Column {
    value: f64,
    /// Squares of the steps of the random walk, without those of sums in f32.
    squares: f64,
    /// Squares of the terms.
    terms: f64,
    /// What the worst case allows.
    pub(crate) worst: f64,
}

/// What a vector is added with: see [`Sum`].
pub(crate) struct Term {
    pub(crate) value: f64,
    pub(crate) step: f64,
    pub(crate) worst: f64,
}

impl Sum {
    pub(crate) fn new(columns: usize) -> Sum {
        let columns = vec![Column::default(); columns];
        Sum { columns, count: 0 }
    }

    pub(crate) fn add(&mut self, term: &Term, vector: &[f64]) {
        let (square, step) = (term.value * term.value, term.step * term.step);
        for (column, x) in self.columns.iter_mut().zip(vector) {
            column.value += term.value * x;
            column.squares += step * x * x;
            column.terms += square * x * x;
            column.worst += term.worst * x.abs();
        }
        self.count += 1;
    }

    pub(crate) fn merge(&mut self, part: &Sum) {
        for (column, part) in self.columns.iter_mut().zip(&part.columns) {
            column.value += part.value;
            column.squares += part.squares;
            column.terms += part.terms;
            column.worst += part.worst;
        }
        self.count += part.count;
    }

    pub(crate) fn row(&self, index: [usize; 3], may_be_nan: bool) -> GradientRow {
        // Sums in f32: each addition rounds what is summed so far.
        let sums = rounding(DType::F32).0 * (self.count as f64).sqrt();
        let slack = |of: &Column| WALK * (of.squares + sums * sums * of.terms).sqrt() + of.worst;
        GradientRow {
            index,
            values: self.columns.iter().map(|column| column.value).collect(),
            slack: self.columns.iter().map(slack).collect(),
            may_be_nan,
        }
    }
}
