//! Errors of problems and tensors.

use thiserror::Error;

/// Why a problem or tensor was refused. Messages say what was given, what is allowed, and what to
/// do.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProblemError {
    /// A size that must be at least one is zero.
    #[error("{field} is 0; it must be at least 1")]
    ZeroSize {
        /// The field's name.
        field: &'static str,
    },
    /// An unsupported head dimension.
    #[error(
        "{field} is {given}; allowed are multiples of 8 from 8 to 256 (pad the tensors with zero columns to the next \
         multiple of 8)"
    )]
    HeadDim {
        /// `head_dim` or `head_dim_v`.
        field: &'static str,
        /// The value given.
        given: usize,
    },
    /// The number of query heads is not a multiple of the number of K/V heads.
    #[error(
        "{num_heads} query heads are not a multiple of {num_kv_heads} K/V heads; each K/V head must serve the same \
         number of query heads"
    )]
    HeadGroups {
        /// Query heads given.
        num_heads: usize,
        /// K/V heads given.
        num_kv_heads: usize,
    },
    /// A size or a tensor span exceeds the range of 32-bit indices.
    #[error("{what} is {given}; at most {limit} is supported")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Its value.
        given: u128,
        /// The largest allowed value.
        limit: u128,
    },
    /// An invalid scale, soft cap or offset.
    #[error("{field} is {given}; {allowed}")]
    Value {
        /// The field's name.
        field: &'static str,
        /// The value given.
        given: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// Sequence bounds of packed sequences that contradict each other or the problem.
    #[error("{field} {why}; it must start at 0, never decrease, and end at the tensor's number of rows")]
    VarLen {
        /// `cu_seqlens_q` or `cu_seqlens_kv`.
        field: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A tensor's shape does not match the problem.
    #[error("{tensor} has shape {given:?}; this problem needs {expected:?}{}", order(given))]
    Shape {
        /// Which tensor: `q`, `k`, `v`, `out` or `lse`.
        tensor: &'static str,
        /// The shape given.
        given: Vec<usize>,
        /// The expected shape.
        expected: Vec<usize>,
    },
    /// A tensor's dtype does not match the problem.
    #[error("{tensor} holds {given}; this problem's dtype is {expected}")]
    DType {
        /// Which tensor.
        tensor: &'static str,
        /// The dtype given.
        given: crate::DType,
        /// The expected dtype.
        expected: crate::DType,
    },
    /// Scales are missing, or their number does not match the batch and K/V heads.
    #[error(
        "{tensor} has {given} scales; its {batch} batches and {heads} K/V heads need {} of them, f32 [batch, kv_heads] \
         (`with_scales`)", batch * heads
    )]
    Scales {
        /// Which tensor.
        tensor: &'static str,
        /// Number of scales given.
        given: usize,
        /// Batch size.
        batch: usize,
        /// Number of K/V heads.
        heads: usize,
    },
    /// A scale that is not positive and finite.
    #[error("scale {index} of {tensor} is {given}; scales are finite and above 0 (1 for a head that is all zeros)")]
    ScaleValue {
        /// Which tensor.
        tensor: &'static str,
        /// Flat index in `[batch, kv_heads]`.
        index: usize,
        /// The scale as text.
        given: String,
    },
    /// The last dimension is not contiguous.
    #[error(
        "{tensor} has stride {given} along head_dim; it must be 1 (make the last dimension contiguous, e.g. \
         `.contiguous()` in PyTorch)"
    )]
    LastDimStride {
        /// Which tensor.
        tensor: &'static str,
        /// The stride given, in elements.
        given: i64,
    },
    /// A negative stride, or two elements of an output at one address.
    #[error("{tensor} has strides {strides:?} for shape {shape:?}: {why}")]
    Strides {
        /// Which tensor.
        tensor: &'static str,
        /// Shape.
        shape: Vec<usize>,
        /// Strides in elements.
        strides: Vec<i64>,
        /// What is wrong.
        why: &'static str,
    },
    /// A buffer is shorter than the span of its layout.
    #[error("{tensor} needs {needed} bytes for its shape and strides; the buffer has {given}")]
    BufferTooSmall {
        /// Which tensor.
        tensor: &'static str,
        /// Bytes the layout needs.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
    /// A buffer is not aligned to its elements.
    #[error("{tensor}'s data is not aligned to its {dtype} elements ({needed} bytes)")]
    Misaligned {
        /// Which tensor.
        tensor: &'static str,
        /// The element type.
        dtype: crate::DType,
        /// Required alignment in bytes.
        needed: usize,
    },
    /// An unknown problem name.
    #[error("no problem is named `{given}`; known names: {known}")]
    UnknownName {
        /// The name given.
        given: String,
        /// The known names, comma-separated.
        known: String,
    },
}

/// The order of the dimensions, for tensors that have four.
fn order(shape: &[usize]) -> &'static str {
    match shape.len() {
        4 => " as [batch, seq, heads, head_dim]",
        _ => "",
    }
}
