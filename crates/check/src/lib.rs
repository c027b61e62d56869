//! What can be said about a plan before it is launched.
//!
//! - [`proof`]: limits of the architecture, as refusals with numbers and remedy.
//! - [`mod@gate`]: an answer against the float64 reference, whoever computed it.
//! - [`source`]: the line of Rust source that a finding names.

pub mod gate;
pub mod proof;
pub mod source;

pub use gate::{Gate, gate};
pub use proof::{LaunchRefusal, prove};
