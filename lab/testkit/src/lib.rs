//! What tests of attention need besides a problem of their own: random problems and random appends to caches, and what
//! an append must leave, in float64. The same seed gives the same bytes on every platform, in every release.

mod append;
mod append_reference;
mod problem;

pub use append::{AppendCase, e4m3_pairs, random_append};
pub use append_reference::{AppendReference, Expected};
pub use problem::{RandomLimits, random_backward, random_problem};

/// The README's Rust is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
