//! The adapter on the CPU, against float64.

#![allow(clippy::unwrap_used, missing_docs)]

mod cases;
mod errors;
mod gradients;
mod parity;
mod signatures;
