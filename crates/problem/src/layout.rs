//! Where the elements of a `[batch, seq, heads, head_dim]` tensor lie.

use serde::{Deserialize, Serialize};

use crate::ProblemError;

/// Shape and strides of a tensor, both as `[batch, seq, heads, head_dim]`, strides in elements.
///
/// The last stride is 1 and none is negative; beyond that anything goes: a `[batch, heads, seq,
/// head_dim]` tensor, a slice of a packed QKV tensor, or a batch broadcast with stride 0 (inputs
/// only) are all layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// `[batch, seq, heads, head_dim]`.
    pub shape: [usize; 4],
    /// Elements from one index to the next along each dimension of `shape`.
    pub strides: [i64; 4],
}

impl Layout {
    /// Dense, with `seq` outside `heads`: what FlashAttention calls `bshd`.
    pub const fn bshd(shape: [usize; 4]) -> Layout {
        let [_, s, h, d] = shape;
        Layout {
            shape,
            strides: [(s * h * d) as i64, (h * d) as i64, d as i64, 1],
        }
    }

    /// Dense, with `heads` outside `seq`: what PyTorch's SDPA calls `[batch, heads, seq, head_dim]`.
    /// `shape` is still given as `[batch, seq, heads, head_dim]`.
    pub const fn bhsd(shape: [usize; 4]) -> Layout {
        let [_, s, h, d] = shape;
        Layout {
            shape,
            strides: [(h * s * d) as i64, d as i64, (s * d) as i64, 1],
        }
    }

    /// Index of an element, in elements from the first. Indices are not checked against the shape.
    pub fn offset(&self, b: usize, s: usize, h: usize, d: usize) -> usize {
        let index = [b, s, h, d];
        let at: i64 = index
            .iter()
            .zip(self.strides)
            .map(|(&i, stride)| i as i64 * stride)
            .sum();
        at as usize
    }

    /// Elements from the first to one past the last that the layout reaches; 0 if the shape is empty.
    pub fn span(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        let [b, s, h, d] = self.shape;
        self.offset(b - 1, s - 1, h - 1, d - 1) + 1
    }

    /// Elements in the shape, gaps not counted.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Checks what kernels rely on: a contiguous last dimension, no negative stride, a span that
    /// fits in 2^31 elements.
    ///
    /// # Errors
    /// [`ProblemError::LastDimStride`], [`ProblemError::Strides`] or [`ProblemError::TooLarge`],
    /// naming `tensor`.
    pub fn check(&self, tensor: &'static str) -> Result<(), ProblemError> {
        let bad = |why| ProblemError::Strides {
            tensor,
            shape: self.shape.to_vec(),
            strides: self.strides.to_vec(),
            why,
        };
        if self.strides[3] != 1 {
            return Err(ProblemError::LastDimStride {
                tensor,
                given: self.strides[3],
            });
        }
        if self.strides.iter().any(|&s| s < 0) {
            return Err(bad("a negative stride is not supported; copy the tensor first"));
        }
        let span: u128 = self
            .shape
            .iter()
            .zip(self.strides)
            .map(|(&n, s)| n.saturating_sub(1) as u128 * s as u128)
            .fold(1, u128::saturating_add);
        if span > crate::problem::MAX_ELEMENTS as u128 {
            return Err(ProblemError::TooLarge {
                what: format!("the span of {tensor} in elements"),
                given: span,
                limit: crate::problem::MAX_ELEMENTS as u128,
            });
        }
        Ok(())
    }

    /// Checks that no two elements share an address, as an output needs.
    ///
    /// # Errors
    /// [`ProblemError::Strides`] naming `tensor`.
    pub fn check_injective(&self, tensor: &'static str) -> Result<(), ProblemError> {
        // Sorted by stride, each dimension must step over all that the smaller ones reach. That is
        // sufficient, and necessary for every layout that slicing and permuting can produce.
        let mut dims: Vec<(i64, usize)> = self
            .strides
            .iter()
            .copied()
            .zip(self.shape)
            .filter(|d| d.1 > 1)
            .collect();
        dims.sort_unstable();
        let mut reach: i128 = 0;
        for (stride, size) in dims {
            if i128::from(stride) <= reach {
                return Err(ProblemError::Strides {
                    tensor,
                    shape: self.shape.to_vec(),
                    strides: self.strides.to_vec(),
                    why: "elements overlap, and an output's must not",
                });
            }
            reach = reach.saturating_add(i128::from(stride) * (size as i128 - 1));
        }
        Ok(())
    }
}
