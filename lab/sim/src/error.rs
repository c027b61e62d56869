//! Why a kernel cannot be simulated at all.

use flashcore_ir::ScalarType;
use flashcore_ir::launch::TensorMapProblem;
use thiserror::Error;

/// A launch that does not fit its kernel, or something the simulator does not model.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum SimError {
    /// Wrong number of arguments.
    #[error(
        "kernel `{kernel}` has {expected} parameters, the launch brings {given} arguments; bring one for each parameter"
    )]
    ArgumentCount {
        /// The kernel's name.
        kernel: String,
        /// Parameters it has.
        expected: usize,
        /// Arguments given.
        given: usize,
    },
    /// An argument of the wrong type.
    #[error("parameter {index} `{name}` is a {expected}, the argument is {given}")]
    ArgumentType {
        /// Which parameter.
        index: usize,
        /// Its name.
        name: String,
        /// What it takes.
        expected: String,
        /// What was given.
        given: String,
    },
    /// An argument names a buffer that the launch does not have.
    #[error("argument {index} is buffer slot {slot}; the launch has {slots} buffers")]
    NoSuchSlot {
        /// Which argument.
        index: usize,
        /// The slot it names.
        slot: usize,
        /// Buffers of the launch.
        slots: usize,
    },
    /// The wrong number of buffers was brought.
    #[error("the launch needs {expected} buffers, {given} were brought")]
    BufferCount {
        /// Buffers of the launch.
        expected: usize,
        /// Buffers brought.
        given: usize,
    },
    /// A buffer smaller than the launch says.
    #[error("buffer `{name}` has {given} bytes; the launch needs {expected}")]
    BufferSize {
        /// Its name.
        name: String,
        /// Bytes needed.
        expected: u64,
        /// Bytes brought.
        given: u64,
    },
    /// A launch that writes a buffer which it declares as read only.
    #[error(
        "parameter `{name}` is writable, but its buffer `{buffer}` is declared `written: false`; set it in the launch's buffer"
    )]
    BufferNotWritten {
        /// The parameter.
        name: String,
        /// The buffer.
        buffer: String,
    },
    /// Threads a block other than the kernel was made for.
    #[error("kernel `{kernel}` is made for {expected} threads a block ([{expected}, 1, 1]); the launch has {given:?}")]
    Threads {
        /// The kernel's name.
        kernel: String,
        /// Threads it is made for.
        expected: u32,
        /// The launch's block.
        given: [u32; 3],
    },
    /// A grid without blocks, or with more than a device takes.
    #[error("a grid of {0:?} blocks; each dimension must be at least 1, y and z at most 65,535")]
    Grid([u32; 3]),
    /// Too little dynamic shared memory.
    #[error(
        "kernel `{kernel}` uses {needed} B of dynamic shared memory, the launch asks for {given} B; ask for {needed}"
    )]
    SharedMemory {
        /// The kernel's name.
        kernel: String,
        /// Bytes its ledger takes.
        needed: u32,
        /// Bytes the launch asks for.
        given: u32,
    },
    /// More shared memory than any GPU has.
    #[error("{needed} B of shared memory a block; no GPU has more than {allowed}")]
    SharedMemoryTooLarge {
        /// Bytes the kernel's ledger takes.
        needed: u32,
        /// Bytes there can be.
        allowed: u32,
    },
    /// A cluster that the kernel was not made for, that no device has, or that the grid is no multiple of.
    #[error(
        "clusters of {given:?} blocks in a grid of {grid:?}; clusters have 1 to 16 blocks, divide the grid{}",
        match needed { Some(n) => format!(", and this kernel is made for [{n}, 1, 1]"), None => String::new() }
    )]
    Cluster {
        /// The launch's.
        given: [u32; 3],
        /// The launch's grid.
        grid: [u32; 3],
        /// Blocks along x that the kernel is made for, if it is made for clusters.
        needed: Option<u32>,
    },
    /// A tensor map that cannot be.
    #[error("tensor map `{name}`: {problem}")]
    TensorMap {
        /// The parameter.
        name: String,
        /// What is wrong with it.
        problem: TensorMapProblem,
    },
    /// A tensor map whose boxes are not those that the kernel copies.
    #[error(
        "tensor map `{name}` has boxes of {given:?}, the kernel copies boxes of {needed:?}; make its recipe from \
         `Kernel::tensor_box`"
    )]
    TensorBox {
        /// The parameter.
        name: String,
        /// Elements along each dimension in the kernel.
        needed: Vec<u32>,
        /// Elements along each dimension in the launch.
        given: Vec<u32>,
    },
    /// More values alive at once than the interpreter's register file has rows.
    #[error("{live} values are alive at once, the simulator has {allowed} rows; a GPU thread has 255 registers")]
    TooManyRegisters {
        /// Values alive.
        live: usize,
        /// Rows there are.
        allowed: usize,
    },
    /// More different immediates than the interpreter has rows for.
    #[error("{constants} different constants, the simulator has {allowed} rows; unroll less")]
    TooManyConstants {
        /// Different constants.
        constants: usize,
        /// Rows there are.
        allowed: usize,
    },
    /// An instruction and type that no machine instruction exists for.
    #[error("`{instruction}` has no meaning")]
    NoSuchInstruction {
        /// As the IR prints it.
        instruction: String,
    },
}

impl SimError {
    pub(crate) fn type_name(ty: ScalarType) -> String {
        ty.ptx().to_string()
    }
}
