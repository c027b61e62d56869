//! Launches of kernels of PTX texts.

use flashcore_ir::{Arg, Launch, TensorMapRecipe};

use crate::machine::TENSOR_MAP_BYTES;

/// A buffer of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxBuffer {
    /// Its name in findings.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes of an element, for findings.
    pub element: u32,
    /// Whether the kernel may write it.
    pub written: bool,
}

/// An argument: the bytes of a parameter, and the buffers whose addresses stand in them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PtxArg {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// For each address its first byte, and the buffer's place in [`PtxLaunch::buffers`].
    pub pointers: Vec<(usize, usize)>,
    /// The tensor map that it is, of one of these buffers.
    pub map: Option<TensorMapRecipe>,
}

/// A launch of a kernel of a PTX text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PtxLaunch {
    /// The file's name in findings.
    pub file: String,
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// The buffers.
    pub buffers: Vec<PtxBuffer>,
    /// The arguments, in order.
    pub args: Vec<PtxArg>,
    /// Variables of the module that the host has set: names and bytes.
    pub variables: Vec<(String, Vec<u8>)>,
}

impl PtxLaunch {
    /// A launch of the kernel language, of a text in a file with this name. Arguments that are tables are left
    /// empty, which no kernel takes.
    pub fn of(launch: &Launch, file: String) -> PtxLaunch {
        let buffers = launch.buffers.iter().map(|spec| PtxBuffer {
            name: spec.name.to_string(),
            bytes: spec.bytes,
            element: 4,
            written: spec.written,
        });
        let arg = |arg: &Arg| {
            let bytes = match arg {
                Arg::U32(x) => x.to_le_bytes().to_vec(),
                Arg::I32(x) => x.to_le_bytes().to_vec(),
                Arg::F32(x) => x.to_le_bytes().to_vec(),
                Arg::U64(x) | Arg::Buffer { byte_offset: x, .. } => x.to_le_bytes().to_vec(),
                Arg::TensorMap(_) => vec![0; TENSOR_MAP_BYTES as usize],
                Arg::Table(_) => Vec::new(),
            };
            let slot = match arg {
                Arg::Buffer { slot, .. } => Some((0, *slot)),
                _ => None,
            };
            PtxArg {
                bytes,
                pointers: slot.into_iter().collect(),
                map: match arg {
                    Arg::TensorMap(recipe) => Some(recipe.clone()),
                    _ => None,
                },
            }
        };
        PtxLaunch {
            file,
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared_bytes,
            buffers: buffers.collect(),
            args: launch.args.iter().map(arg).collect(),
            variables: Vec::new(),
        }
    }
}
