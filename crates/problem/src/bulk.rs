//! Loops over whole tensors whose speed matters for benchmarks: this crate is compiled with
//! optimisation.

use serde::{Deserialize, Serialize};

use crate::rng::Rng;
use crate::tensor::write_element;
use crate::{DType, POISON, TensorView};

/// Counts over an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Census {
    /// Number of elements.
    pub elements: usize,
    /// Elements that still hold the poison.
    pub unwritten: usize,
    /// NaN elements other than poison.
    pub nan: usize,
    /// Zero elements.
    pub zeros: usize,
}

impl Census {
    /// Counts all heads of one row of one batch.
    ///
    /// ```
    /// use flashcore_problem::bulk::Census;
    /// use flashcore_problem::{DType, Layout, Tensor};
    /// let mut out = Tensor::poisoned(DType::F16, Layout::bshd([1, 2, 1, 8]));
    /// out.set(0, 1, 0, 3, 0.0);
    /// let rows = [0, 1].map(|row| Census::of_row(&out.view(), 0, row));
    /// let census = rows[0].and(rows[1]);
    /// assert_eq!((census.elements, census.unwritten, census.zeros), (16, 15, 1));
    /// ```
    pub fn of_row(view: &TensorView<'_>, batch: usize, row: usize) -> Census {
        let mut census = Census::default();
        let (layout, size) = (view.layout(), view.dtype().size_bytes());
        for head in 0..layout.shape[2] {
            let elements = &view.bytes()[layout.offset(batch, row, head, 0) * size..][..layout.shape[3] * size];
            for (d, element) in elements.chunks_exact(size).enumerate() {
                census.elements += 1;
                let poison = element.iter().all(|&byte| byte == POISON);
                let zero = element.iter().all(|&byte| byte == 0);
                census.unwritten += usize::from(poison);
                census.zeros += usize::from(zero);
                // Only large exponents can be NaN in any dtype.
                if !poison && !zero && element[size - 1] & 0x7f >= 0x7c {
                    census.nan += usize::from(view.get(batch, row, head, d).is_nan());
                }
            }
        }
        census
    }

    /// The sum of two counts.
    pub fn and(self, other: Census) -> Census {
        Census {
            elements: self.elements + other.elements,
            unwritten: self.unwritten + other.unwritten,
            nan: self.nan + other.nan,
            zeros: self.zeros + other.zeros,
        }
    }
}

/// Fills bytes with normal numbers of a dtype, the `i`-th divided by `scale(i)` if there are scales.
pub fn fill_normal(dtype: DType, bytes: &mut [u8], rng: &mut Rng, scale: Option<&dyn Fn(usize) -> f32>) {
    for (i, element) in bytes.chunks_exact_mut(dtype.size_bytes()).enumerate() {
        let divisor = scale.map_or(1.0, |scale| scale(i));
        write_element(dtype, element, 0, rng.normal() / divisor);
    }
}
