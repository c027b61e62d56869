//! Workers: one child process a device, so that a candidate that hangs, crashes or wrecks the device costs one
//! candidate and nothing else. The worker runs kernels and the clock; the right answers are in the parent, which judges.
//!
//! - [`protocol`]: what is said between the two, a JSON object a line.
//! - [`serve()`]: the worker's side. - [`Worker`]: the parent's side.
//! - [`Compilers`]: workers that only compile, ahead of the one that runs.

mod compilers;
mod devices;
#[cfg(all(test, unix))]
pub(crate) mod fake;
mod gpu;
mod link;
pub mod planted;
pub mod protocol;
mod serve;

pub use compilers::{Compilers, compilers_for};
pub use link::{Deadlines, Loss, Program, Worker};
pub use serve::serve;
