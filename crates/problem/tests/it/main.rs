//! Tests of problems, inputs and the reference through the public API.

mod appends;
mod bad_input;
mod comparison;
mod fp8;
mod gradients;
mod huge_scores;
mod operands;
mod properties;
mod shapes;
mod trivial;
mod wide_caches;
