//! What it takes to run a kernel: the same value for the driver and for the simulator.

use serde::Serialize;
use thiserror::Error;

use crate::kernel::Kernel;
use crate::table::Table;
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
    /// The address of numbers that come with the launch, not with its caller, for reading.
    Table(Table),
}

macro_rules! arg_of {
    ($($ty:ty => $arg:ident),*) => {$(
        impl From<$ty> for Arg {
            fn from(value: $ty) -> Arg {
                Arg::$arg(value)
            }
        }
    )*};
}
arg_of!(u32 => U32, i32 => I32, u64 => U64, f32 => F32, Table => Table, TensorMapRecipe => TensorMap);

/// The boxes that a tensor map copies: what a tile and its tensor map must agree on.
///
/// Made by [`SharedTile::tensor_box`](crate::SharedTile::tensor_box); a kernel's parameter carries
/// it, and [`recipe`](Self::recipe) makes the launch's argument from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorBox {
    /// Element type.
    pub element: ScalarType,
    /// Dimensions, 1 to 5.
    pub rank: u32,
    /// Elements along each dimension, innermost first; 1 past the last dimension.
    pub dims: [u32; 5],
    /// How the box is laid out in shared memory.
    pub swizzle: crate::Swizzle,
    /// The dimension that holds the rows of many sequences, if the map is [ragged](crate::ragged).
    pub ragged: Option<u32>,
}

impl TensorBox {
    /// Elements along each dimension, innermost first.
    pub fn dims(&self) -> &[u32] {
        &self.dims[..self.rank as usize]
    }

    /// Rows of a box: elements along all dimensions but the innermost.
    pub fn rows(&self) -> u32 {
        self.dims()[1..].iter().product()
    }

    /// Bytes of a box in shared memory.
    pub fn bytes(&self) -> u32 {
        self.dims().iter().product::<u32>() * self.element.bytes()
    }

    /// The recipe of a tensor map of these boxes, for the tensor that begins at `byte_offset` of
    /// the buffer in slot `slot`: `dims` elements along each dimension, innermost first,
    /// `byte_strides` between them along each but the innermost. Along the dimension of a
    /// [ragged](crate::ragged) map, as many as the rows of all sequences.
    pub fn recipe(&self, slot: usize, byte_offset: u64, dims: Vec<u64>, byte_strides: Vec<u64>) -> TensorMapRecipe {
        TensorMapRecipe {
            slot,
            byte_offset,
            element: self.element,
            dims,
            byte_strides,
            box_dims: self.dims().to_vec(),
            swizzle: self.swizzle,
            ragged: self.ragged,
        }
    }
}

/// Why a tensor map cannot be: the rules of `cuTensorMapEncodeTiled` (CUDA driver API).
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum TensorMapProblem {
    /// Too many or too few dimensions, or lists that do not agree.
    #[error(
        "{dims} dimensions, {strides} strides, {boxes} box dimensions; needed are 1 to 5 dimensions, one stride fewer, and \
         as many box dimensions"
    )]
    Rank { dims: usize, strides: usize, boxes: usize },
    /// The tensor does not begin at a multiple of 16 bytes.
    #[error("the tensor begins {offset} B into a buffer aligned to {align}; it must begin at a multiple of 16 B")]
    Start { offset: u64, align: u32 },
    /// A dimension of no elements, or of more than 2^32.
    #[error("dimension {index} has {given} elements; 1 to 4294967296 are possible")]
    Dim { index: usize, given: u64 },
    /// A stride that is no multiple of 16 bytes, or too long.
    #[error("stride {index} is {given} B; it must be a multiple of 16 B below 2^40 B")]
    Stride { index: usize, given: u64 },
    /// A box of no elements, or of more than 256 along a dimension.
    #[error("the box has {given} elements along dimension {index}; 1 to 256 are possible")]
    Box { index: usize, given: u32 },
    /// An inner row of a box that cannot be copied.
    #[error(
        "the box's inner row has {given} B; it must be a multiple of 16 B, and at most the swizzle's span ({swizzle:?})"
    )]
    Row { given: u32, swizzle: crate::Swizzle },
    /// An element type that tensor maps do not have.
    #[error("elements of type {element:?} cannot be copied by tensor map; use f16, bf16, f32 or e4m3")]
    Element { element: ScalarType },
    /// A tensor that reaches past its buffer.
    #[error("the tensor reaches over {needed} B from its start, the buffer has {given} B there")]
    Reach { needed: u128, given: u64 },
    /// A ragged map that would need more than 5 dimensions, or whose rows are in none of its own.
    #[error(
        "a ragged tensor map of {rank} dimensions with rows along dimension {dim}; 2 or 3 are possible, rows along 1 or 2"
    )]
    RaggedRank { dim: u32, rank: usize },
    /// Rows whose coordinates a ragged map cannot have.
    #[error(
        "a ragged tensor map of {rows} rows, {stride} B apart; at most 2^30 rows are possible, 16 B to 2^34 - 16 B apart"
    )]
    RaggedRows { rows: u64, stride: u64 },
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
    /// The dimension that holds the rows of many sequences, if the map is [ragged](crate::ragged). What the
    /// hardware reads are then [`Self::encoded`] dimensions.
    pub ragged: Option<u32>,
}

const TENSOR_MAP_ELEMENTS: [ScalarType; 4] = [ScalarType::F16, ScalarType::BF16, ScalarType::F32, ScalarType::E4M3];

impl TensorMapRecipe {
    /// Checks the recipe against the buffer it is for.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self, buffer: &BufferSpec) -> Result<(), TensorMapProblem> {
        let rank = self.dims.len();
        if !(1..=5).contains(&rank) || self.byte_strides.len() + 1 != rank || self.box_dims.len() != rank {
            return Err(TensorMapProblem::Rank {
                dims: rank,
                strides: self.byte_strides.len(),
                boxes: self.box_dims.len(),
            });
        }
        if !self.byte_offset.is_multiple_of(16) || !buffer.align.is_multiple_of(16) {
            let (offset, align) = (self.byte_offset, buffer.align);
            return Err(TensorMapProblem::Start { offset, align });
        }
        if let Some((index, &given)) = self.dims.iter().enumerate().find(|(_, n)| !(1..=1 << 32).contains(*n)) {
            return Err(TensorMapProblem::Dim { index, given });
        }
        if let Some((index, &given)) = self
            .byte_strides
            .iter()
            .enumerate()
            .find(|(_, n)| !n.is_multiple_of(16) || **n >= 1 << 40)
        {
            return Err(TensorMapProblem::Stride { index, given });
        }
        if let Some((index, &given)) = self.box_dims.iter().enumerate().find(|(_, n)| !(1..=256).contains(*n)) {
            return Err(TensorMapProblem::Box { index, given });
        }
        if !TENSOR_MAP_ELEMENTS.contains(&self.element) {
            return Err(TensorMapProblem::Element { element: self.element });
        }
        let row = self.box_dims[0] * self.element.bytes();
        if !row.is_multiple_of(16) || self.swizzle.span().is_some_and(|span| row > span) {
            let (given, swizzle) = (row, self.swizzle);
            return Err(TensorMapProblem::Row { given, swizzle });
        }
        self.check_ragged()?;
        let outer = self.dims[1..].iter().zip(&self.byte_strides);
        let needed = outer
            .map(|(&dim, &stride)| u128::from(dim - 1) * u128::from(stride))
            .sum::<u128>()
            + u128::from(self.dims[0]) * u128::from(self.element.bytes());
        let given = buffer.bytes.saturating_sub(self.byte_offset);
        if needed > u128::from(given) {
            return Err(TensorMapProblem::Reach { needed, given });
        }
        Ok(())
    }
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
    /// Whether it begins while the launch before it in its stream may still run, since the kernel waits for that itself
    /// ([`KernelBuilder::dependency_wait`](crate::KernelBuilder::dependency_wait)).
    pub programmatic: bool,
    /// The buffers the caller must bring, by slot; the workspace, if any, is among them.
    pub buffers: Vec<BufferSpec>,
    /// The arguments, in the order of the kernel's parameters.
    pub args: Vec<Arg>,
}

impl Launch {
    /// A launch of a kernel over a grid, with the threads, clusters and shared memory that it was built with, without
    /// buffers and arguments yet. [`Launch::builder`] places them by name.
    ///
    /// ```
    /// use flashcore_ir::{Kernel, Launch};
    /// let kernel = Kernel::build("nothing", 64, |_| {})?;
    /// let launch = Launch::of(&kernel, [3, 1, 1]);
    /// assert_eq!((launch.blocks(), launch.threads(), launch.args.len()), (3, 64, 0));
    /// # Ok::<(), flashcore_ir::BuildErrors>(())
    /// ```
    pub fn of(kernel: &Kernel, grid: [u32; 3]) -> Launch {
        Launch {
            grid,
            block: [kernel.threads(), 1, 1],
            cluster: [kernel.cluster().unwrap_or(1), 1, 1],
            dynamic_shared_bytes: kernel.ledger().total_bytes(),
            programmatic: kernel.waits_for_launch_before(),
            buffers: Vec::new(),
            args: Vec::new(),
        }
    }

    /// Threads a block.
    pub fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Blocks in the grid.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }

    /// The tables among the arguments.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.args.iter().filter_map(|arg| match arg {
            Arg::Table(table) => Some(table),
            _ => None,
        })
    }

    /// Bytes of workspace the caller must bring; 0 where the kernel needs none.
    pub fn workspace_bytes(&self) -> u64 {
        let workspace = self.buffers.iter().find(|b| b.name == "workspace");
        workspace.map_or(0, |b| b.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[batch 2, seq 100, heads 3, head_dim 128]` in fp16, contiguous; boxes of 64 × 128 rows.
    fn recipe() -> TensorMapRecipe {
        let boxes = TensorBox {
            element: ScalarType::F16,
            rank: 4,
            dims: [64, 128, 1, 1, 1],
            swizzle: crate::Swizzle::B128,
            ragged: None,
        };
        assert_eq!(boxes.bytes(), 16_384);
        boxes.recipe(0, 0, vec![128, 100, 3, 2], vec![768, 256, 76_800])
    }

    #[test]
    fn a_tensor_map_is_checked_before_it_is_made() {
        let buffer = |bytes, align| BufferSpec {
            name: "k",
            bytes,
            written: false,
            align,
        };
        let whole = buffer(2 * 100 * 3 * 128 * 2, 16);
        assert_eq!(recipe().check(&whole), Ok(()));
        let refuse = |change: fn(&mut TensorMapRecipe)| {
            let mut recipe = recipe();
            change(&mut recipe);
            recipe.check(&whole).unwrap_err()
        };
        use TensorMapProblem::*;
        assert!(matches!(refuse(|r| r.dims = vec![]), Rank { dims: 0, .. }));
        assert!(matches!(refuse(|r| r.byte_offset = 8), Start { offset: 8, .. }));
        assert!(matches!(
            recipe().check(&buffer(1 << 20, 8)),
            Err(Start { align: 8, .. })
        ));
        assert!(matches!(refuse(|r| r.dims[1] = 0), Dim { index: 1, given: 0 }));
        assert!(matches!(
            refuse(|r| r.byte_strides[0] = 760),
            Stride { index: 0, given: 760 }
        ));
        assert!(matches!(refuse(|r| r.box_dims[1] = 257), Box { index: 1, given: 257 }));
        assert!(matches!(refuse(|r| r.box_dims[0] = 128), Row { given: 256, .. }));
        assert!(matches!(refuse(|r| r.box_dims[0] = 4), Row { given: 8, .. }));
        assert!(matches!(refuse(|r| r.dims.push(1)), Rank { dims: 5, .. }));
        assert!(matches!(refuse(|r| r.dims[2] = (1 << 32) + 1), Dim { index: 2, .. }));
        assert!(matches!(
            refuse(|r| r.byte_strides[2] = 1 << 40),
            Stride { index: 2, .. }
        ));
        assert!(matches!(
            refuse(|r| r.element = ScalarType::U32),
            Element {
                element: ScalarType::U32
            }
        ));
        assert!(matches!(
            refuse(|r| r.byte_offset = 16),
            Reach {
                needed: 153_600,
                given: 153_584
            }
        ));
        assert!(matches!(refuse(|r| r.dims = vec![1 << 32; 4]), Reach { .. }));
    }

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
            programmatic: false,
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
