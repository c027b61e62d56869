//! robust-kbench (SakanaAI, arXiv 2509.14279): attention as a task in its format, kernels of ours in
//! the form that its loader takes, and a judge for kernels of others.
//!
//! - [`Task`] is a folder of that format: `func_forward.py` (the computation in PyTorch, a model and
//!   its inputs) and `config_forward.json` (the sizes). [`Task::with_kernel`] adds `forward.cu`.
//! - [`verify()`] judges a kernel by that benchmark's protocol, and by checks that it lacks: whether
//!   outputs are written and computed anew, in the caller's stream, for inputs and lengths that the
//!   task does not show. It runs two Python processes, which end at a deadline: the kernel's, and the judge's, which
//!   has the inputs, the expected outputs and the clock.

mod floor;
mod report;
mod source;
mod task;
mod verify;

pub use floor::Floor;
pub use report::{Check, Group, Machine, Report, Status, Summary, Times};
pub use task::Task;
pub use verify::{Job, verify};

#[cfg(test)]
mod tests;
