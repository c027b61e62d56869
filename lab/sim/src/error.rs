//! Errors that prevent a simulation.

use flashcore_ir::launch::TensorMapProblem;
use flashcore_ir::proof::LaunchRefusal;
use flashcore_ptx::PtxError;
use thiserror::Error;

/// The launch does not fit its kernel, or the simulator does not support it.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum SimError {
    /// The launch cannot work on any GPU.
    #[error(transparent)]
    Launch(#[from] LaunchRefusal),
    /// What its text has cannot be executed.
    #[error(transparent)]
    Text(#[from] PtxError),
    /// A block that ends in a part of a warp.
    #[error("blocks have {threads} threads; the simulator has whole warps, so it takes multiples of 32")]
    PartOfAWarp {
        /// Threads of a block.
        threads: u32,
    },
    /// An invalid tensor map.
    #[error("tensor map `{name}`: {problem}")]
    TensorMap {
        /// The parameter.
        name: String,
        /// What is wrong.
        problem: TensorMapProblem,
    },
    /// More live values than the register file has rows.
    #[error("{live} values are live at once; the simulator has {allowed} rows, and a GPU thread has 255 registers")]
    TooManyRegisters {
        /// Live values.
        live: usize,
        /// Available rows.
        allowed: usize,
    },
    /// More distinct immediates than the simulator has rows for.
    #[error("{constants} distinct constants; the simulator has {allowed} rows (unroll less)")]
    TooManyConstants {
        /// Distinct constants.
        constants: usize,
        /// Available rows.
        allowed: usize,
    },
    /// A combination of instruction and type that does not exist in PTX.
    #[error("`{instruction}` does not exist in PTX")]
    NoSuchInstruction {
        /// The instruction as the IR prints it.
        instruction: String,
    },
}
