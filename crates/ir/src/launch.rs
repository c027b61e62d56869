//! What it takes to run a kernel: the same value for the driver and for the simulator.

use serde::Serialize;

use crate::types::ScalarType;

/// A buffer that a launch needs from its caller, by slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BufferSpec {
    /// Name, for messages: `q`, `k`, `v`, `out`, `lse`, `workspace`.
    pub name: &'static str,
    /// Bytes the kernel may touch, from the buffer's start.
    pub bytes: u64,
    /// Whether the kernel writes it.
    pub written: bool,
    /// Alignment its first byte must have.
    pub align: u32,
}

/// One kernel argument.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Arg {
    /// The address of byte `byte_offset` of the buffer in slot `slot`.
    Buffer {
        /// Index into [`Launch::buffers`].
        slot: usize,
        /// From the buffer's start.
        byte_offset: u64,
    },
    /// A 32-bit unsigned integer.
    U32(u32),
    /// A 32-bit signed integer.
    I32(i32),
    /// A 64-bit unsigned integer.
    U64(u64),
    /// A 32-bit float.
    F32(f32),
    /// A tensor map, encoded at launch for the buffer's address.
    TensorMap(TensorMapRecipe),
}

/// How to make a tensor map (`cuTensorMapEncodeTiled`) once the buffer's address is known.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorMapRecipe {
    /// Index into [`Launch::buffers`].
    pub slot: usize,
    /// From the buffer's start.
    pub byte_offset: u64,
    /// Element type.
    #[serde(skip)]
    pub element: ScalarType,
    /// Elements along each dimension, innermost first.
    pub dims: Vec<u64>,
    /// Bytes from one index to the next along each dimension but the innermost.
    pub byte_strides: Vec<u64>,
    /// Elements of the box along each dimension.
    pub box_dims: Vec<u32>,
    /// How the box is laid out in shared memory.
    pub swizzle: crate::Swizzle,
}

/// What it takes to run a kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Launch {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads a block along x, y, z.
    pub block: [u32; 3],
    /// Blocks a cluster along x, y, z; `[1, 1, 1]` without clusters.
    pub cluster: [u32; 3],
    /// Dynamic shared memory a block, bytes.
    pub dynamic_shared_bytes: u32,
    /// The buffers the caller must bring, by slot; the workspace, if any, is among them.
    pub buffers: Vec<BufferSpec>,
    /// The arguments, in the order of the kernel's parameters.
    pub args: Vec<Arg>,
}

impl Launch {
    /// Threads a block.
    pub fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Blocks in the grid.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }

    /// Bytes of workspace the caller must bring; 0 where the kernel needs none.
    pub fn workspace_bytes(&self) -> u64 {
        self.buffers
            .iter()
            .find(|b| b.name == "workspace")
            .map_or(0, |b| b.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_knows_its_size_and_workspace() {
        let buffer = |name, bytes| BufferSpec {
            name,
            bytes,
            written: true,
            align: 16,
        };
        let mut launch = Launch {
            grid: [1 << 30, 8, 2],
            block: [128, 1, 1],
            cluster: [1, 1, 1],
            dynamic_shared_bytes: 0,
            buffers: vec![buffer("out", 64)],
            args: vec![Arg::U32(7)],
        };
        assert_eq!(
            (launch.threads(), launch.blocks(), launch.workspace_bytes()),
            (128, 1 << 34, 0)
        );
        launch.buffers.push(buffer("workspace", 4096));
        assert_eq!(launch.workspace_bytes(), 4096);
    }
}
