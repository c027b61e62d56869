//! Random kernels, run by the simulator and by a GPU: the results must agree.
//!
//! A [`Program`] is made from a seed and becomes a kernel by [`Program::emit`]. What is exact in
//! IEEE arithmetic or in integers is compared bit by bit; approximations are compared within the
//! bounds that [`Slot`] states, and not computed with. A program whose results differ shrinks
//! ([`shrink`]) to a small one that still shows it.

mod arithmetic;
pub(crate) mod command;
pub mod corpus;
mod emit;
mod hopper;
pub mod input;
mod memory;
pub mod program;
pub mod run;
pub mod shrink;
mod slot;
mod warp;

pub use emit::Emitted;
pub use program::Program;
pub use slot::{E4M3_PRODUCT_BOUND, EX2_ULPS, PRODUCT_BOUND, RCP_ULPS, Slot};
