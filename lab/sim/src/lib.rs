//! Runs a GPU kernel on any CPU and judges it.
//!
//! [`simulate`] takes the same [`Kernel`](flashcore_ir::Kernel) and
//! [`Launch`](flashcore_ir::Launch) as the driver, computes what the GPU would compute, and reports
//! as [`Finding`]s what would have gone wrong there: accesses out of bounds or misaligned, reads of
//! what nobody has written, missing waits, barriers that do not match, deadlocks, races. Whether two
//! accesses race does not depend on the interleaving that was run: they race if nothing orders them.
//!
//! How it works and what it does not see: `docs/simulator.md`.

// Several rows of 32 lanes are walked in step: an index says that, chains of `zip` do not.
#![allow(clippy::needless_range_loop)]

mod alu;
mod assigned;
mod async_copy;
mod async_judge;
mod async_state;
mod atomic;
mod barrier;
mod bulk;
mod clock;
mod cluster;
mod decode;
mod decode_arithmetic;
mod decode_async;
mod error;
mod exchange;
mod finding;
mod float;
mod global;
mod global_memory;
mod interpreter;
mod judge;
mod log;
mod lower;
mod machine;
mod mbarrier;
mod merge;
mod operations;
mod peers;
mod product;
mod program;
mod record;
mod registers;
mod report;
mod resources;
mod rng;
mod rows;
mod seldom;
mod shadow;
mod shared_memory;
mod simulate;
mod tensor;
mod tensor_sum;
mod trace;
mod traffic;
mod warp;
mod written;

pub use error::SimError;
pub use finding::{Actor, Finding, FindingKind, Line, Other};
pub use log::{Access, Log, Turn};
pub use report::{Class, Count, Counts, MemorySite, NodeCount, SimOptions, SimReport, TraceRecord};
pub use simulate::simulate;
pub use tensor_sum::TensorSums;
pub use trace::is_nonfinite;
pub use written::Written;
