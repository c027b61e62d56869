//! Workers: one child process for each device, so that a candidate that hangs, crashes or loses the
//! device costs one trial. The worker runs and times kernels. The parent has the reference outputs
//! and judges.
//!
//! - [`serve()`]: the worker's side of the protocol in `docs/tune-protocols.md`.
//! - [`Compilers`]: workers that only compile.

mod compilers;
mod deadlines;
mod devices;
mod link;
mod own;
pub mod planted;
mod predicted;
pub(crate) mod protocol;
mod replayed;
mod serve;

pub use compilers::{Compilers, compilers_for};
pub use deadlines::Deadlines;
pub use flashcore_bench::process::Program;
pub(crate) use link::{Stop, Worker};
pub use serve::serve;
