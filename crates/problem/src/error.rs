//! Errors of problems and tensors.

use std::fmt;

use thiserror::Error;

use crate::{DType, KvLengths, Layout, QLengths};

/// Why a problem or tensor was refused: what was given, what is allowed, and what to do.
#[derive(Clone, Error, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum ProblemError {
    /// A field without a default was not given to the builder.
    #[error("{field} was not given; call `{call}` before `.build()`")]
    Missing { field: &'static str, call: &'static str },
    /// The number of query heads is not a multiple of the number of K/V heads.
    #[error(
        "{num_heads} query heads are not a multiple of {num_kv_heads} K/V heads; each K/V head must serve the same \
         number of query heads"
    )]
    HeadGroups { num_heads: usize, num_kv_heads: usize },
    /// A size or a tensor span exceeds the range of 32-bit indices.
    #[error("{what} is {given}; at most {limit} is supported")]
    TooLarge { what: String, given: u128, limit: u128 },
    /// An invalid size, scale, soft cap or offset.
    #[error("{field} is {given}; {allowed}")]
    Value {
        field: &'static str,
        given: String,
        allowed: &'static str,
    },
    /// An operand that is missing, of no use, or not what a call needs.
    #[error("{name} {why}")]
    Operand { name: crate::Name, why: String },
    /// Values of lengths ([`Lengths`](crate::Lengths)) that are missing, or contradict the problem.
    #[error("{argument} {why}")]
    Lengths { argument: &'static str, why: String },
    /// A tensor's shape does not match the problem.
    #[error("{tensor} has shape {given:?}; this problem needs {expected:?}{}", order(given))]
    Shape {
        tensor: &'static str,
        given: Vec<usize>,
        expected: Vec<usize>,
    },
    /// A tensor's dtype does not match the problem.
    #[error("{tensor} holds {given}; this problem's dtype is {expected}")]
    DType {
        tensor: &'static str,
        given: crate::DType,
        expected: crate::DType,
    },
    /// A problem of one direction where a call takes the other.
    #[error(
        "the problem's direction is {given}; this call takes {expected} (`Problem::{expected}` gives that problem)"
    )]
    Direction {
        given: crate::Direction,
        expected: crate::Direction,
    },
    /// Invalid strides, scales, or an invalid buffer.
    #[error("{message}")]
    Tensor { tensor: &'static str, message: String },
    /// The host cannot hold the tensors.
    #[error(
        "the tensors need about {needed} of the host's memory; {had}: take fewer sequences or heads, or shorter ones"
    )]
    HostMemory { needed: String, had: String },
    /// An unknown problem name.
    #[error("no problem is named `{given}`; known names: {known}")]
    UnknownName { given: String, known: String },
}

/// Returns the error that a function of [`ProblemError`] makes: `refuse!(when => value("dtype", dtype, "it is f32"))`.
macro_rules! refuse {
    ($when:expr => $error:ident($($of:expr),+)) => {
        if $when {
            return crate::ProblemError::$error($($of),+);
        }
    };
}
pub(crate) use refuse;

/// An error's message as its debug form, which `main` prints of an error that it returns.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_message {
    ($type:ty) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}
debug_as_message!(ProblemError);

impl ProblemError {
    /// Refuses a shape other than the problem's. Of pages or of packed rows, it says which call was left out.
    pub(crate) fn check_problem_shape(
        tensor: &'static str,
        given: [usize; 4],
        expected: [usize; 4],
        lengths: (QLengths, KvLengths),
    ) -> Result<(), ProblemError> {
        let left_out = match (tensor, lengths) {
            _ if given[0] == expected[0] || given[2..] != expected[2..] => "",
            ("k" | "v", (_, KvLengths::Equal)) => {
                "; pages [pages, page_size, heads, head_dim] need `.paged(max_pages)`, and packed rows [1, total, heads, \
                 head_dim] `.kv_lengths(KvLengths::Packed { .. })`"
            }
            ("q", (QLengths::Equal, _)) if given[0] == 1 => {
                "; packed rows [1, total, heads, head_dim] need `.packed_q(sequences, most)`"
            }
            _ => "",
        };
        match ProblemError::check_shape(tensor, &given, &expected) {
            Err(shape) if !left_out.is_empty() => ProblemError::tensor(tensor, format!("{shape}{left_out}")),
            checked => checked,
        }
    }

    /// Refuses a value.
    pub(crate) fn value<T>(
        field: &'static str,
        given: impl ToString,
        allowed: &'static str,
    ) -> Result<T, ProblemError> {
        let given = given.to_string();
        Err(ProblemError::Value { field, given, allowed })
    }

    /// Refuses values of lengths.
    pub(crate) fn lengths<T>(argument: &'static str, why: impl Into<String>) -> Result<T, ProblemError> {
        let why = why.into();
        Err(ProblemError::Lengths { argument, why })
    }

    /// Refuses a tensor.
    pub(crate) fn tensor<T>(tensor: &'static str, message: impl Into<String>) -> Result<T, ProblemError> {
        let message = message.into();
        Err(ProblemError::Tensor { tensor, message })
    }

    /// Refuses a size above its limit.
    pub(crate) fn check_size(what: impl fmt::Display, given: u128, limit: u128) -> Result<(), ProblemError> {
        if given <= limit {
            return Ok(());
        }
        let what = what.to_string();
        Err(ProblemError::TooLarge { what, given, limit })
    }

    /// Refuses a shape other than the one that is needed.
    pub(crate) fn check_shape(tensor: &'static str, given: &[usize], expected: &[usize]) -> Result<(), ProblemError> {
        if given == expected {
            return Ok(());
        }
        let (given, expected) = (given.to_vec(), expected.to_vec());
        Err(ProblemError::Shape {
            tensor,
            given,
            expected,
        })
    }

    /// Refuses a dtype other than the one that is needed.
    pub(crate) fn check_dtype(tensor: &'static str, given: DType, expected: DType) -> Result<(), ProblemError> {
        if given == expected {
            return Ok(());
        }
        Err(ProblemError::DType {
            tensor,
            given,
            expected,
        })
    }

    pub(crate) fn scales<T>(tensor: &'static str, given: usize, batch: usize, heads: usize) -> Result<T, ProblemError> {
        let needed = batch * heads;
        let message = format!(
            "{tensor} has {given} scales; its {batch} batches and {heads} K/V heads need {needed} of them, f32 [batch, \
             kv_heads] (`with_scales`, of packed tensors and pages `with_scales_of`)"
        );
        ProblemError::tensor(tensor, message)
    }

    pub(crate) fn strides<T>(tensor: &'static str, layout: &Layout, why: &str) -> Result<T, ProblemError> {
        let Layout { shape, strides } = layout;
        ProblemError::tensor(
            tensor,
            format!("{tensor} has strides {strides:?} for shape {shape:?}: {why}"),
        )
    }
}

/// The order of the dimensions, for tensors that have four.
fn order(shape: &[usize]) -> &'static str {
    if shape.len() == 4 {
        " as [batch, seq, heads, head_dim]"
    } else {
        ""
    }
}
