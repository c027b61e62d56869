//! Problems, inputs and the reference, used as a library.

mod bad_input;
mod fp8;
mod judging;
mod properties;
