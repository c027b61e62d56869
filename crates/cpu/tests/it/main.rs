//! Tests of attention on the CPU through its public API.

mod against_float64;
mod append;
mod bad_input;
mod gradients;
mod properties;
