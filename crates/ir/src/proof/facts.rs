//! What the launch proof is told: the shape of a launch, and what is known of its kernel.

use serde::Serialize;

use crate::proof::parameter_bytes;
use crate::{Kernel, Launch};

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads a block along x, y, z.
    pub block: [u32; 3],
    /// Blocks a cluster along x, y, z; `[1, 1, 1]` without clusters.
    pub cluster: [u32; 3],
    /// Dynamic shared memory a block, bytes.
    pub dynamic_shared_bytes: u32,
    /// Programmatic dependent launch: the kernel may start before the previous one in the stream
    /// has ended, and waits for it itself (`griddepcontrol.wait`). Compute capability 9.0 and up.
    pub programmatic_dependent: bool,
}

impl LaunchShape {
    /// A launch of `grid` blocks of `threads` threads each, and nothing else.
    pub fn linear(grid: u32, threads: u32) -> Self {
        Self {
            grid: [grid, 1, 1],
            block: [threads, 1, 1],
            cluster: [1; 3],
            dynamic_shared_bytes: 0,
            programmatic_dependent: false,
        }
    }

    /// The shape of a [`Launch`].
    pub fn of(launch: &Launch) -> Self {
        Self {
            grid: launch.grid,
            block: launch.block,
            cluster: launch.cluster,
            dynamic_shared_bytes: launch.dynamic_shared_bytes,
            programmatic_dependent: launch.programmatic,
        }
    }

    /// Threads a block.
    pub fn threads(&self) -> u64 {
        self.block
            .iter()
            .fold(1, |product: u64, &n| product.saturating_mul(u64::from(n)))
    }
}

/// What the code of a kernel is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeForm {
    /// PTX, which the driver compiles for the device.
    #[default]
    Ptx,
    /// Machine code of one architecture.
    Cubin,
}

/// What the launch proof knows of a kernel. The default knows nothing and refuses nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelFacts {
    /// Static shared memory a block, bytes.
    pub static_shared_bytes: u64,
    /// The least dynamic shared memory that a launch must ask for, bytes.
    pub dynamic_shared_bytes: u32,
    /// Registers a thread as the compiler reports them, if they are known.
    pub registers: Option<u32>,
    /// The most threads a block may have (`.maxntid`, or what the driver says).
    pub max_threads: Option<u32>,
    /// The only block that may be launched (`.reqntid`).
    pub required_block: Option<[u32; 3]>,
    /// The only cluster that may be launched (`.reqnctapercluster`).
    pub required_cluster: Option<[u32; 3]>,
    /// Bytes of each parameter, if they are known.
    pub parameter_bytes: Option<Vec<u64>>,
}

impl KernelFacts {
    /// Those of a kernel of the kernel language; its registers are the compiler's choice.
    pub fn of(kernel: &Kernel) -> Self {
        let ledger = kernel.ledger();
        let (static_bytes, dynamic_bytes) = if ledger.is_static {
            (ledger.total_bytes(), 0)
        } else {
            (0, ledger.total_bytes())
        };
        Self {
            static_shared_bytes: u64::from(static_bytes),
            dynamic_shared_bytes: dynamic_bytes,
            max_threads: None,
            required_block: Some([kernel.threads(), 1, 1]),
            ..Self::declared(kernel)
        }
    }

    /// What the PTX of a kernel declares outside its body: all but shared memory and registers.
    pub fn declared(kernel: &Kernel) -> Self {
        let parameters = kernel.params().iter().map(|param| parameter_bytes(param.kind));
        Self {
            max_threads: Some(kernel.threads()),
            required_cluster: kernel.cluster().map(|blocks| [blocks, 1, 1]),
            parameter_bytes: Some(parameters.collect()),
            ..Self::default()
        }
    }
}
