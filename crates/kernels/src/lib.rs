//! The attention families, one folder each; what they share is in [`attention`].
//!
//! A [`Config`] is one choice of a family's levers. For a problem and a target it either refuses,
//! saying why and what would help ([`Refusal`]), or gives a [`Plan`]: a kernel and everything it
//! takes to launch it, or several in a row. [`select()`] picks the default config.

// Tests read what they wrote, and what lies in the repository.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod append;
pub mod attention;
pub mod checks;
pub mod config;
pub mod family;
pub mod ladder;
pub mod merge_states;
pub mod mma;
pub mod near;
pub mod plan;
pub mod refusal;
pub mod scalar;
pub mod select;
pub mod wgmma;

mod args;
mod card;
mod recent;
mod size;
mod step;
mod tiles;

pub use attention::softmax::Rescale;
pub use attention::split::fewest_splits;
pub use attention::tap::{self, Tap};
pub use card::{Proposal, Score, estimated_from};
pub use config::{Config, FAMILIES, UnknownConfig};
pub use family::Family;
pub use near::near;
pub use plan::Plan;
pub use recent::Recent;
pub use refusal::Refusal;
pub(crate) use refusal::refuse;
pub use select::{Choice, Considered, NoPlan, Suggestion, grouped, ranking, select, select_among, select_with};
pub use size::Size;
pub use step::{KernelCache, Step};

/// The README's Rust is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
