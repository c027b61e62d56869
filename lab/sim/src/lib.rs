//! Simulates a GPU kernel on the CPU and checks it.
//!
//! [`simulate`] takes the same [`Kernel`](flashcore_ir::Kernel) and
//! [`Launch`](flashcore_ir::Launch) as the driver and computes the same results. It reports errors
//! as [`Finding`]s: out-of-bounds and misaligned accesses, reads of uninitialised memory, missing
//! waits, mismatched barriers, deadlocks, races. Race detection uses the happens-before order, so
//! it does not depend on the interleaving of the run.
//!
//! Design and limits: `docs/simulator.md`.

// Loops index several rows of 32 lanes in parallel, which reads better than nested `zip`.
#![allow(clippy::needless_range_loop)]

mod access;
mod alu;
mod assigned;
mod async_copy;
mod async_races;
mod async_state;
mod atomic;
mod barrier;
mod bulk;
mod bulk_bytes;
mod case;
mod clock;
mod cluster;
mod cold;
mod decode;
mod error;
mod exchange;
mod finding;
mod flags;
mod float;
mod global;
mod global_memory;
mod global_races;
mod interpreter;
mod landing;
mod log;
mod lower;
mod machine;
mod made_maps;
mod matrix;
mod mbarrier;
mod merge;
mod occupancy;
mod operand;
mod peers;
mod print;
mod product;
mod program;
mod progress;
mod races;
mod record;
mod registers;
mod report;
mod resident;
mod resources;
mod rng;
mod rows;
mod shadow;
mod shared_memory;
mod simulate;
mod splits;
mod strong;
mod tensor;
mod tensor_sum;
mod text;
mod trace;
mod traffic;
mod undefined;
mod warp;
mod written;

pub use case::Case;
pub use error::SimError;
pub use finding::{Actor, Finding, FindingKind, Line, Other};
pub use log::{Access, Log, Turn};
pub use occupancy::{Occupancy, occupancy};
pub use progress::Progress;
pub use report::{
    Class, Count, Counts, InstructionCount, Loads, MemorySite, Printed, SimOptions, SimReport, TraceRecord,
};
pub use simulate::simulate;
pub use tensor_sum::TensorSums;
pub use text::{PtxArg, PtxBuffer, PtxKernel, PtxLaunch, executes};
pub use trace::{Nonfinite, nonfinite};
pub use written::Written;

/// The README's Rust is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
