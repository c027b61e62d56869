//! The search for the fastest correct attention kernel for a problem on a device.
//!
//! - [`space`]: what may be proposed: families, levers, what a problem and a device leave of them.
//! - [`strategy`]: what to try next; [`replay`] compares strategies on a space that was measured once.

mod error;
pub mod replay;
pub mod space;
pub mod strategy;
mod trial;
pub mod worker;

pub use error::TuneError;
pub use space::Space;
pub use trial::{History, Timed, Trial, Verdict};
