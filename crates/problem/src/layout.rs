//! Strided layouts of `[batch, seq, heads, head_dim]` tensors.

use serde::{Deserialize, Serialize};

use crate::{ProblemError, refuse};

/// Shape and strides of a tensor, both as `[batch, seq, heads, head_dim]`, strides in elements.
///
/// The last stride is 1 and none is negative. Otherwise any layout is allowed:
/// `[batch, heads, seq, head_dim]`, slices of a packed QKV tensor, or a broadcast batch with stride
/// 0 (inputs only).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// `[batch, seq, heads, head_dim]`.
    pub shape: [usize; 4],
    /// Distance in elements between neighbours along each dimension.
    pub strides: [i64; 4],
}

/// [`Layout::bshd`]. One to three sizes are the last dimensions of a dense layout of four, such as those of lengths, of
/// a block table or of the log-sum-exp.
impl<const N: usize> From<[usize; N]> for Layout {
    fn from(sizes: [usize; N]) -> Layout {
        const { assert!(N >= 1 && N <= 4, "a tensor has one to four dimensions") };
        let mut shape = [1; 4];
        shape[4 - N..].copy_from_slice(&sizes);
        Layout::bshd(shape)
    }
}

/// The product of sizes. One that no tensor has becomes the largest number, which [`Layout::check`] refuses.
const fn stride(sizes: &[usize]) -> i64 {
    let (mut product, mut at) = (1usize, 0);
    while at < sizes.len() {
        product = product.saturating_mul(sizes[at]);
        at += 1;
    }
    if product > i64::MAX as usize {
        i64::MAX
    } else {
        product as i64
    }
}

impl Layout {
    /// Dense `[batch, seq, heads, head_dim]`, FlashAttention's `bshd`.
    pub const fn bshd(shape: [usize; 4]) -> Layout {
        let [_, s, h, d] = shape;
        Layout {
            shape,
            strides: [stride(&[s, h, d]), stride(&[h, d]), stride(&[d]), 1],
        }
    }

    /// Dense `[batch, heads, seq, head_dim]`, the order of PyTorch's SDPA. `shape` is still
    /// `[batch, seq, heads, head_dim]`.
    pub const fn bhsd(shape: [usize; 4]) -> Layout {
        let [_, s, h, d] = shape;
        Layout {
            shape,
            strides: [stride(&[h, s, d]), stride(&[d]), stride(&[s, d]), 1],
        }
    }

    /// Offset of an element in elements. Does not check the indices.
    pub fn offset(&self, b: usize, s: usize, h: usize, d: usize) -> usize {
        let steps = [b, s, h, d].into_iter().zip(self.strides);
        steps.map(|(i, stride)| i as i64 * stride).sum::<i64>() as usize
    }

    /// Elements from the first to one past the last; 0 for an empty shape.
    pub fn span(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        let [b, s, h, d] = self.shape;
        self.offset(b - 1, s - 1, h - 1, d - 1) + 1
    }

    /// Bytes from the first element to the end of the last one, of elements of so many bytes. `None` where no memory
    /// has so many, or an element lies before the first one.
    pub(crate) fn span_bytes(&self, size: usize) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        usize::try_from(self.wide_span()?).ok()?.checked_mul(size)
    }

    /// The span of a shape that is not empty. `None` where an element lies before the first one.
    fn wide_span(&self) -> Option<u128> {
        let mut steps = self.shape.into_iter().zip(self.strides).filter(|(n, _)| *n > 1);
        steps.try_fold(1u128, |span, (n, stride)| {
            Some(span.saturating_add((n - 1) as u128 * u128::try_from(stride).ok()?))
        })
    }

    /// The indices of its rows, `[batch, seq, head]`, heads first.
    pub(crate) fn rows(&self) -> impl Iterator<Item = [usize; 3]> + use<> {
        let [batch, seq, heads, _] = self.shape;
        let count = batch.saturating_mul(seq).saturating_mul(heads);
        (0..count).map(move |i| [i / heads / seq, i / heads % seq, i % heads])
    }

    /// Elements in the shape, without gaps.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Checks the requirements of attention kernels: those of `Layout::check_wide`, and a span of at most 2^31
    /// elements.
    pub fn check(&self, tensor: &'static str) -> Result<(), ProblemError> {
        self.check_form(tensor)?;
        self.check_span(tensor, crate::problem::MAX_ELEMENTS as u128)
    }

    /// Checks the requirements of attention over a cache: those of `Layout::check_wide`, and a span of at most 2^31
    /// elements for a page, or of contiguous caches for a sequence. All of them may span more.
    pub(crate) fn check_cache(&self, tensor: &'static str) -> Result<(), ProblemError> {
        self.check_wide(tensor)?;
        let [_, rows, heads, columns] = self.shape;
        let shape = [1, rows, heads, columns];
        Layout { shape, ..*self }.check_span(tensor, crate::problem::MAX_ELEMENTS as u128)
    }

    /// Checks the requirements of kernels that count rows and elements in 64 bits: a contiguous last dimension, no
    /// negative stride, strides below 2^32, and a span that memory can have.
    pub fn check_wide(&self, tensor: &'static str) -> Result<(), ProblemError> {
        self.check_form(tensor)?;
        let used = self.shape.into_iter().zip(self.strides).filter(|(n, _)| *n > 1);
        refuse!(used.into_iter().any(|(_, stride)| stride > i64::from(u32::MAX)) =>
            strides(tensor, self, "strides must be below 2^32 elements"));
        self.check_span(tensor, 1 << 60)
    }

    fn check_form(&self, tensor: &'static str) -> Result<(), ProblemError> {
        if self.strides[3] != 1 {
            let message = format!(
                "{tensor} has stride {} along head_dim; it must be 1 (make the last dimension contiguous, e.g. \
                 `.contiguous()` in PyTorch)",
                self.strides[3]
            );
            return ProblemError::tensor(tensor, message);
        }
        refuse!(self.strides.iter().any(|&s| s < 0) =>
            strides(tensor, self, "a negative stride is not supported; copy the tensor first"));
        Ok(())
    }

    fn check_span(&self, tensor: &'static str, limit: u128) -> Result<(), ProblemError> {
        let span = self.wide_span().unwrap_or(u128::MAX);
        ProblemError::check_size(format_args!("the span of {tensor} in elements"), span, limit)
    }

    /// Refuses elements that share an address, which those of outputs must not.
    pub fn check_injective(&self, tensor: &'static str) -> Result<(), ProblemError> {
        if self.shape.contains(&0) {
            return Ok(());
        }
        // In order of stride, each dimension must step over the span of all smaller ones. This is
        // sufficient, and necessary for all layouts made by slicing and permuting.
        let dims = self.strides.into_iter().zip(self.shape);
        let mut dims: Vec<(i64, usize)> = dims.filter(|&(_, size)| size > 1).collect();
        dims.sort_unstable();
        let mut reach: i128 = 0;
        for (stride, size) in dims {
            refuse!(i128::from(stride) <= reach =>
                strides(tensor, self, "elements overlap; those of an output must not"));
            reach = reach.saturating_add(i128::from(stride) * (size as i128 - 1));
        }
        Ok(())
    }
}
