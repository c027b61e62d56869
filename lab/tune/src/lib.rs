//! The search for the fastest correct attention kernel for a problem on a device.
//!
//! - [`space`]: what may be proposed: families, levers, what a problem and a device leave of them.
//! - [`strategy`]: what to try next; [`replay`] compares strategies on a space that was measured once.
//! - [`insight`]: claims of what a change would bring, and which kinds of them came true.
//! - [`worker`]: child processes that run candidates and the clock.
//! - [`run()`]: a search from beginning to end; [`journal`] keeps it, [`board`] has its finalists.
//! - [`device_lock`]: one search at a time on a device; [`rates`]: what a search measures first on a GPU.
//! - [`plans`]: which winners become rows of plan tables.
//! - [`Judge`]: inputs and right answers, in the parent; the [`Gatekeeper`] says what can be said without a device.

mod beside;
pub mod board;
mod default;
pub mod device_lock;
mod error;
mod examine;
mod finals;
mod gate;
pub mod insight;
mod interrupt;
pub mod journal;
mod judge;
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
mod trial;
mod witness;
pub mod worker;

pub use beside::Beside;
pub use default::DefaultKernel;
pub use device_lock::{DeviceLock, Waits};
pub use error::TuneError;
pub use examine::Timing;
pub use gate::Gatekeeper;
pub use interrupt::Interrupt;
pub use judge::Judge;
pub use run::{Outcome, Request, Watcher, run};
pub use setup::{Setup, read as read_measured};
pub use space::Space;
pub use trial::{History, Timed, Trial, Verdict, times_as_long};
