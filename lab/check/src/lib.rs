//! What can be said about a plan before it is launched.
//!
//! - [`mod@gate`]: an answer against the float64 reference, whoever computed it.
//! - [`check_plan`]: the launch proof ([`flashcore_ir::proof`]), then the simulator under many schedules, then the gate; its
//!   [`CheckReport`] prints as a compiler does ([`render`]), with the [`source`] lines quoted.
//! - [`mutate`]: mistakes planted on purpose, to test all of this.
//! - [`foreign`]: kernels that something else made, from PTX and cubins.
//! - [`museum`]: failures of the past, each with the finding it gives here.
//! - [`watch`]: what any lane has at any line, errors by stage, and where numbers stop being numbers.
//! - [`saves`]: what saves so many bytes of shared memory. [`layout`]: swizzles and padding that spread an access over
//!   the banks. [`pictures`]: shared memory over time, banks, warps, as SVG.
//! - [`registers`]: what the compiler makes of a kernel, without a GPU.

mod check;
pub mod cost;
pub mod foreign;
pub mod gate;
pub mod layout;
pub mod museum;
pub mod mutate;
pub mod pictures;
pub mod registers;
pub mod render;
pub mod report;
pub mod saves;
pub mod source;
pub mod watch;

pub use check::{CheckError, CheckOptions, check_plan, log_of};
pub use gate::{Gate, gate, gate_stage};
pub use report::{CheckReport, Found, StepSize, Verdict};
