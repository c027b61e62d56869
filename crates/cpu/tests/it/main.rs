//! Attention on the host, used as a library.

mod against_float64;
mod bad_input;
mod properties;
