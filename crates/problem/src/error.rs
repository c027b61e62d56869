//! What can be wrong with a question.

use thiserror::Error;

/// Why a problem or tensor was refused. Each message says what was given, what is allowed, and
/// what to do.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProblemError {
    /// A size that must be at least one is zero.
    #[error("{field} is 0; it must be at least 1")]
    ZeroSize {
        /// The field's name.
        field: &'static str,
    },
    /// The head dimension is not one that attention is computed for.
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
    /// Query heads cannot be shared out evenly over K/V heads.
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
    /// A size or a tensor's extent is beyond what kernels index with 32 bits.
    #[error("{what} is {given}; at most {limit} is supported")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Its value.
        given: u128,
        /// The largest that is allowed.
        limit: u128,
    },
    /// A scale, soft cap or offset that is not usable.
    #[error("{field} is {given}; {allowed}")]
    Value {
        /// The field's name.
        field: &'static str,
        /// The value given.
        given: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The sequence bounds of packed sequences do not fit each other or the problem.
    #[error("{field} {why}; it must begin at 0, never fall, and end at the tensor's number of rows")]
    VarLen {
        /// `cu_seqlens_q` or `cu_seqlens_kv`.
        field: &'static str,
        /// What is wrong with them.
        why: String,
    },
    /// Something that can be stated is not computed here.
    #[error("{feature} is not supported by {what}; {remedy}")]
    Unsupported {
        /// What does not support it.
        what: &'static str,
        /// What is not supported.
        feature: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// A tensor's shape is not what the problem says.
    #[error("{tensor} has shape {given:?}; this problem needs {expected:?} as [batch, seq, heads, head_dim]")]
    Shape {
        /// Which tensor: `q`, `k`, `v`, `out` or `lse`.
        tensor: &'static str,
        /// The shape given.
        given: Vec<usize>,
        /// The shape needed.
        expected: Vec<usize>,
    },
    /// A tensor's element type is not the problem's.
    #[error("{tensor} holds {given}; this problem's dtype is {expected}")]
    DType {
        /// Which tensor.
        tensor: &'static str,
        /// The dtype given.
        given: crate::DType,
        /// The dtype needed.
        expected: crate::DType,
    },
    /// Scales are missing, or not one for each batch and K/V head.
    #[error(
        "{tensor} has {given} scales; its {batch} batches and {heads} K/V heads need {} of them, f32 [batch, kv_heads] \
         (`with_scales`)", batch * heads
    )]
    Scales {
        /// Which tensor.
        tensor: &'static str,
        /// Scales given; 0 where there are none.
        given: usize,
        /// Batches there are.
        batch: usize,
        /// K/V heads there are.
        heads: usize,
    },
    /// A scale that is no positive finite number.
    #[error("scale {index} of {tensor} is {given}; scales are finite and above 0 (1 for a head that is all zeros)")]
    ScaleValue {
        /// Which tensor.
        tensor: &'static str,
        /// Its place in `[batch, kv_heads]`, flat.
        index: usize,
        /// The scale, in text.
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
    /// Two elements of an output share an address, or a stride is negative.
    #[error("{tensor} has strides {strides:?} for shape {shape:?}: {why}")]
    Strides {
        /// Which tensor.
        tensor: &'static str,
        /// Shape.
        shape: Vec<usize>,
        /// Strides in elements.
        strides: Vec<i64>,
        /// What is wrong with them.
        why: &'static str,
    },
    /// A buffer is shorter than its layout reaches.
    #[error("{tensor} needs {needed} bytes for its shape and strides; the buffer has {given}")]
    BufferTooSmall {
        /// Which tensor.
        tensor: &'static str,
        /// Bytes its layout reaches.
        needed: usize,
        /// Bytes there are.
        given: usize,
    },
    /// A buffer does not begin where its elements may.
    #[error("{tensor}'s data is not aligned to its {dtype} elements ({needed} bytes)")]
    Misaligned {
        /// Which tensor.
        tensor: &'static str,
        /// The element type.
        dtype: crate::DType,
        /// The alignment needed, in bytes.
        needed: usize,
    },
    /// No problem has this name.
    #[error("no problem is named `{given}`; known names: {known}")]
    UnknownName {
        /// The name given.
        given: String,
        /// The names there are, comma-separated.
        known: String,
    },
}
