//! The kernel language: a GPU kernel as a Rust value.
//!
//! [`Kernel::build`] writes a kernel down with Rust closures and operators. What is written is what
//! runs: each builder method appends one machine instruction, and no pass rewrites them. The value
//! prints itself as PTX ([`Kernel::to_ptx`]) for the driver, and the simulator runs it on any CPU.
//!
//! - [`builder`]: the kernel as a whole, control flow; [`value`], [`mod@pointer`]: arithmetic;
//!   [`memory`], [`sync`]: the instructions that touch memory and other threads;
//!   [`tile`], [`fragment`]: tiles in shared memory and in the registers of a warp.
//! - Hopper: [`pipeline`] (made of [`mbarrier`]s), [`tensor_copy`], [`ragged`], [`wgmma`],
//!   [`cluster`], [`Role`].
//! - [`inst`], [`kernel`]: what all that builds. [`ptx`] prints it.
//! - [`shared`]: the ledger of shared memory. [`target`], [`profile`], [`calibration`]:
//!   architectures and cards.
//!   [`launch`], [`table`]: everything it takes to run a kernel. [`proof`]: whether it can be
//!   launched.
//! - [`files`]: reading files of strangers, for every crate above.

// Tests read what they wrote, and what lies in the repository.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod builder;
pub mod calibration;
pub mod cluster;
mod convert;
mod divide;
pub mod error;
pub mod files;
pub mod fragment;
pub mod inst;
pub mod kernel;
pub mod launch;
mod launch_builder;
pub mod mbarrier;
pub mod memory;
mod named;
pub mod pipeline;
pub mod profile;
pub mod proof;
pub mod ptx;
pub mod ragged;
pub mod shared;
pub mod site;
pub mod sync;
pub mod table;
pub mod target;
pub mod tensor_copy;
pub mod tile;
pub mod types;
pub mod wgmma;

pub use builder::{Cond, KernelBuilder, Role, pointer, value};
pub use calibration::{Calibration, MeasuredCard, Seen};
pub use error::{BuildError, BuildErrorKind, BuildErrors};
pub use inst::{Cache, Inst, Operand};
pub use kernel::{Condition, Kernel, Node, Param, ParamKind};
pub use launch::{Arg, BufferSpec, Launch, TensorBox, TensorMapRecipe};
pub use launch_builder::{ArgumentError, LaunchBuilder};
pub use mbarrier::{MBarrier, MBarriers};
pub use memory::Widen;
pub use pipeline::Pipeline;
pub use pointer::{ClusterPtr, GlobalPtr, Ptr, SharedPtr};
pub use profile::{Chip, Clocks, PROFILES, Profile};
pub use shared::{BufferId, Ledger, SharedBuffer, Swizzle};
pub use site::{Site, SiteId, SourceLine};
pub use table::Table;
pub use target::{Limits, Requirement, Target};
pub use tensor_copy::TensorMap;
pub use tile::{SharedTile, TileShape};
pub use types::{Assignable, BF16x2, E4M3, E4M3x2, E4M3x4, Element, F16x2, Reg, RegClass, Scalar, ScalarType};
pub use value::{Source, Val, Var};
pub use wgmma::WgmmaOperand;

/// The README's Rust is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
