//! Errors that prevent a simulation.

use flashcore_ir::launch::TensorMapProblem;
use flashcore_ir::proof::LaunchRefusal;
use flashcore_ir::ptx::read::PtxError;
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
    /// An argument of the wrong type.
    #[error("parameter {index} `{name}` is a {expected}, but the argument is {given}")]
    ArgumentType {
        /// The parameter's index.
        index: usize,
        /// The parameter's name.
        name: String,
        /// The expected type.
        expected: &'static str,
        /// The given type.
        given: &'static str,
    },
    /// The kernel writes a buffer that the launch declares read-only.
    #[error("parameter `{name}` is writable, but its buffer `{buffer}` is declared `written: false`; set it to true")]
    BufferNotWritten {
        /// The parameter.
        name: String,
        /// The buffer.
        buffer: String,
    },
    /// An invalid tensor map.
    #[error("tensor map `{name}`: {problem}")]
    TensorMap {
        /// The parameter.
        name: String,
        /// What is wrong.
        problem: TensorMapProblem,
    },
    /// The box of a tensor map does not match the kernel.
    #[error(
        "tensor map `{name}` has boxes of {given:?}, but the kernel copies boxes of {needed:?}; create its recipe with \
         `Kernel::tensor_box`"
    )]
    TensorBox {
        /// The parameter.
        name: String,
        /// The kernel's box, elements per dimension.
        needed: Vec<u32>,
        /// The launch's box, elements per dimension.
        given: Vec<u32>,
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
