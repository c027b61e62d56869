//! Describes an attention computation, independent of how it is computed.
//!
//! A [`Problem`] holds shapes, dtype, strides, mask and scale. [`Tensor`]s hold data on the host,
//! [`inputs`] generates test data, and [`mod@reference`] computes the result in float64.

// Tests read what they wrote, and what lies in the repository.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod append;
mod arrays;
pub mod builder;
pub mod bulk;
pub mod compare;
pub mod direction;
pub mod dtype;
mod e4m3;
pub mod error;
mod gradient_sums;
mod head_values;
mod host_call;
pub mod inputs;
pub mod layout;
pub mod lengths;
pub mod limits;
pub mod mask;
mod name;
pub mod names;
mod operands;
pub mod problem;
pub mod quantise;
mod random_lengths;
pub mod reference;
mod reference_gradients;
pub mod rng;
mod scales;
pub mod slack;
pub mod task;
pub mod tensor;
pub mod view;
mod words;

pub use append::{Append, AppendPlace, AppendValues, Rotary, SlotMapping};
pub use builder::ProblemBuilder;
pub use compare::{
    Comparison, GapWritten, Tolerance, Worst, compare, compare_gradient, compare_lse, compare_tap, gaps_untouched,
    others_untouched,
};
pub use direction::{Direction, GradientLayouts, Gradients};
pub use dtype::{DType, Element};
pub use error::ProblemError;
use error::refuse;
pub use half::{bf16, f16};
pub use head_values::{Alibi, MAX_ALIBI_SLOPE};
pub use host_call::Carried;
pub use inputs::{InputKind, Inputs, Saved};
pub use layout::Layout;
pub use lengths::{KvLengths, Lengths, QLengths, Sequence};
pub use limits::{GRADIENT_LIMIT, score_limit};
pub use mask::{CausalAlign, KeyRange, Mask};
pub use name::{LSES, MOST_PARTS, Name, OUTS};
pub use names::{BACKWARD, NAMED_PROBLEMS, NamedProblem, current_name};
pub use operands::Operands;
pub use problem::{MAX_SOFTMAX_SCALE, Problem, SOFTCAPS};
pub use quantise::{absmax_scales, quantise};
pub use random_lengths::random_lengths;
pub use reference::{ReferenceRow, reference, reference_probabilities, reference_rows, reference_scores};
pub use reference_gradients::{GradientRow, reference_gradient_rows, reference_gradients};
pub use slack::Slack;
pub use task::{Access, AnyTask, Combine, Task, TensorSpec};
pub use tensor::{E4M3_MAX, POISON, Tensor, TensorView};
pub use view::{ElementType, Host, Memory, Scalar, View, ViewMut};

/// The README's Rust is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
