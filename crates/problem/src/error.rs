//! Errors of problems and tensors.

use thiserror::Error;

use crate::Layout;

/// Why a problem or tensor was refused. Messages say what was given, what is allowed, and what to
/// do.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProblemError {
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
    /// An invalid size, scale, soft cap or offset.
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
    /// Invalid strides, scales, or an invalid buffer.
    #[error("{message}")]
    Tensor {
        /// Which tensor.
        tensor: &'static str,
        /// What is wrong with it, and what is allowed.
        message: String,
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

impl ProblemError {
    /// The number of scales does not match batch and K/V heads.
    pub(crate) fn scales(tensor: &'static str, given: usize, batch: usize, heads: usize) -> ProblemError {
        let needed = batch * heads;
        let message = format!(
            "{tensor} has {given} scales; its {batch} batches and {heads} K/V heads need {needed} of them, f32 [batch, \
             kv_heads] (`with_scales`)"
        );
        ProblemError::Tensor { tensor, message }
    }

    /// The strides of a layout are not supported.
    pub(crate) fn strides(tensor: &'static str, layout: &Layout, why: &str) -> ProblemError {
        let Layout { shape, strides } = layout;
        let message = format!("{tensor} has strides {strides:?} for shape {shape:?}: {why}");
        ProblemError::Tensor { tensor, message }
    }
}

/// The order of the dimensions, for tensors that have four.
fn order(shape: &[usize]) -> &'static str {
    match shape.len() {
        4 => " as [batch, seq, heads, head_dim]",
        _ => "",
    }
}
