//! Checks a plan before it is launched.
//!
//! - [`mod@gate`]: compares an output with the float64 reference.
//! - [`check_plan`]: the launch proof ([`flashcore_ir::proof`]), then the simulator under several
//!   schedules, then the gate. [`render`] prints its [`CheckReport`] like compiler messages, with
//!   quoted [`source`] lines.
//! - [`mutate`]: planted mistakes, to test the checks.
//! - [`foreign`]: kernels of other compilers, from PTX and cubins.
//! - [`own`]: kernels of users, from PTX and a declaration of its arguments.
//! - [`museum`]: rebuilt failures with their findings.
//! - [`watch`]: values of any lane at any line, errors by stage, the first NaN or infinity.
//! - [`saves`]: configs with less shared memory. [`levers`]: parts of ids. [`layout`]: swizzles and padding against
//!   bank conflicts. [`pictures`]: shared memory over time, banks and warps as SVG.
//! - [`registers`]: registers of a kernel without a GPU. [`programs`]: finds programs such as the assembler.
//! - [`sandbox`]: confines a process that runs a stranger's code, or compiles it.
//! - [`cost`]: predicted times. [`check_host_memory`]: whether the host holds the tensors of a problem.

// Tests read what they wrote, and what lies in the repository.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod check;
mod checked;
pub mod cost;
pub mod foreign;
pub mod gate;
mod host_memory;
pub mod layout;
pub mod levers;
pub mod museum;
pub mod mutate;
pub mod own;
pub mod pictures;
pub mod programs;
pub mod registers;
pub mod render;
pub mod report;
pub mod sandbox;
pub mod saves;
pub mod source;
mod svg;
mod taps;
pub mod watch;

pub use check::{CheckError, CheckOptions, check_plan, judge_elsewhere, log_of};
pub use gate::{Gate, gate, gate_gradients, gate_rows, right_gradients, within};
pub use host_memory::check_host_memory;
pub use report::{CheckReport, Found, StepSize, Verdict};

/// The README's Rust is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
