//! Errors that prevent a simulation.

use flashcore_ir::ScalarType;
use flashcore_ir::launch::TensorMapProblem;
use thiserror::Error;

/// The launch does not fit its kernel, or the simulator does not support it.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum SimError {
    /// Wrong number of arguments.
    #[error(
        "kernel `{kernel}` has {expected} parameters, but the launch has {given} arguments; pass one per parameter"
    )]
    ArgumentCount {
        /// The kernel's name.
        kernel: String,
        /// Parameters of the kernel.
        expected: usize,
        /// Arguments given.
        given: usize,
    },
    /// An argument of the wrong type.
    #[error("parameter {index} `{name}` is a {expected}, but the argument is {given}")]
    ArgumentType {
        /// The parameter's index.
        index: usize,
        /// The parameter's name.
        name: String,
        /// The expected type.
        expected: String,
        /// The given type.
        given: String,
    },
    /// An argument refers to a buffer slot that does not exist.
    #[error("argument {index} is buffer slot {slot}; the launch has {slots} buffers")]
    NoSuchSlot {
        /// The argument's index.
        index: usize,
        /// The slot.
        slot: usize,
        /// Number of buffers in the launch.
        slots: usize,
    },
    /// Wrong number of buffers.
    #[error("the launch needs {expected} buffers; {given} were given")]
    BufferCount {
        /// Number of buffers in the launch.
        expected: usize,
        /// Number of buffers given.
        given: usize,
    },
    /// A buffer is smaller than the launch declares.
    #[error("buffer `{name}` has {given} bytes; the launch needs {expected}")]
    BufferSize {
        /// The buffer's name.
        name: String,
        /// Required bytes.
        expected: u64,
        /// Given bytes.
        given: u64,
    },
    /// The kernel writes a buffer that the launch declares read-only.
    #[error("parameter `{name}` is writable, but its buffer `{buffer}` is declared `written: false`; set it to true")]
    BufferNotWritten {
        /// The parameter.
        name: String,
        /// The buffer.
        buffer: String,
    },
    /// The block size does not match the kernel.
    #[error("kernel `{kernel}` needs {expected} threads per block ([{expected}, 1, 1]); the launch has {given:?}")]
    Threads {
        /// The kernel's name.
        kernel: String,
        /// Threads per block of the kernel.
        expected: u32,
        /// Block dimensions of the launch.
        given: [u32; 3],
    },
    /// An empty grid, or one that exceeds device limits.
    #[error("a grid of {0:?} blocks; each dimension must be at least 1, y and z at most 65,535")]
    Grid([u32; 3]),
    /// Too little dynamic shared memory.
    #[error("kernel `{kernel}` needs {needed} B of dynamic shared memory; the launch requests {given} B")]
    SharedMemory {
        /// The kernel's name.
        kernel: String,
        /// Bytes the kernel needs.
        needed: u32,
        /// Bytes the launch requests.
        given: u32,
    },
    /// More shared memory than any GPU has.
    #[error("{needed} B of shared memory per block; no GPU has more than {allowed} B")]
    SharedMemoryTooLarge {
        /// Bytes the kernel needs.
        needed: u32,
        /// The largest size of any GPU.
        allowed: u32,
    },
    /// A cluster that does not match the kernel, exceeds device limits, or does not divide the
    /// grid.
    #[error(
        "clusters of {given:?} blocks in a grid of {grid:?}; clusters have 1 to 16 blocks and divide the grid{}",
        match needed { Some(n) => format!("; this kernel needs [{n}, 1, 1]"), None => String::new() }
    )]
    Cluster {
        /// The launch's cluster.
        given: [u32; 3],
        /// The launch's grid.
        grid: [u32; 3],
        /// Cluster size along x of the kernel, if it has one.
        needed: Option<u32>,
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

impl SimError {
    pub(crate) fn type_name(ty: ScalarType) -> String {
        ty.ptx().to_string()
    }
}
