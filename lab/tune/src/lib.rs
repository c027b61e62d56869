//! The search for the fastest correct attention kernel for a problem on a device.
//!
//! - [`space`]: the configs that may be proposed.
//! - [`strategy`]: what to try next; [`replay`]: a space that was measured once, for searches
//!   without a device.
//! - [`insight`]: claims about what a change would bring, and their scores.
//! - [`worker`]: child processes that run and time candidates.
//! - [`run()`]: a search from beginning to end; [`journal`]: its files; [`board`]: its leaderboard.
//! - [`device_lock`]: one candidate at a time on a device; [`rates`]: measured rates of a GPU.
//! - [`plans`]: which winners become rows of plan tables.
//! - [`Gatekeeper`]: the gates that need no device.

// Tests read what they wrote, and what lies in the repository.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod board;
mod counting;
mod default;
pub mod device_lock;
mod error;
mod examine;
mod finals;
mod gate;
mod history;
pub mod insight;
mod interrupt;
pub mod journal;
mod judge;
mod own;
mod peers;
pub mod plans;
pub mod rates;
mod remote;
pub mod replay;
mod rows;
mod run;
pub mod runs;
mod search;
mod setup;
mod simulated;
pub mod space;
pub mod strategy;
#[cfg(test)]
mod tests;
mod trial;
mod witness;
pub mod worker;

pub use counting::Counting;
pub use default::DefaultKernel;
pub use device_lock::{DeviceLock, Waits};
pub use error::TuneError;
pub use gate::Gatekeeper;
pub use history::Told;
pub use interrupt::Interrupt;
pub use own::{OWN, OwnKernels, rewritten};
pub use peers::PeerComparison;
pub use run::{Outcome, Request, Watcher, run};
pub use setup::Setup;
pub use space::Space;
pub use trial::{History, Timed, Trial, Verdict, times_as_long};

/// The README's Rust is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
