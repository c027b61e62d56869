//! Why a launch is refused before the driver sees it.

use serde::Serialize;
use thiserror::Error;

use crate::Target;

/// Why a launch cannot work: what was given, what is allowed ([`what`](Self::what)), and what to do
/// ([`remedy`](Self::remedy)). Printed as both.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize)]
#[serde(tag = "refusal", rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are; `on` is the device or architecture
pub enum LaunchRefusal {
    /// The code was made for another architecture.
    #[error("the code is made for {made_for}; {target} cannot run it: {why}; {}", self.remedy())]
    Architecture {
        made_for: String,
        target: Target,
        why: &'static str,
    },
    /// A dimension of the grid, block or cluster is zero.
    #[error("its {what} is {given:?}; every dimension must be at least 1; {}", self.remedy())]
    Zero { what: &'static str, given: [u32; 3] },
    /// The grid or block is too long along one axis.
    #[error("its {what} is {given:?}; {on} allows at most {allowed:?} along x, y, z; {}", self.remedy())]
    Axis {
        what: &'static str,
        given: [u32; 3],
        allowed: [u32; 3],
        on: String,
    },
    /// More threads a block than any kernel may have.
    #[error("{given} threads a block; {on} allows {allowed}; {}", self.remedy())]
    Threads { given: u64, allowed: u32, on: String },
    /// More threads a block than this kernel was compiled for.
    #[error(
        "{given} threads a block; the kernel was compiled for at most {allowed}{} (.maxntid); {}",
        registers.map_or(String::new(), |n| format!(" with {n} registers a thread")),
        self.remedy()
    )]
    KernelThreads {
        given: u64,
        allowed: u32,
        registers: Option<u32>,
    },
    /// The kernel was built for one block or cluster only.
    #[error("its {what} is {given:?}; the kernel is built for {required:?}; {}", self.remedy())]
    Required {
        what: &'static str,
        given: [u32; 3],
        required: [u32; 3],
    },
    /// A block needs more registers than there are. `needed` counts whole units, and warps rounded
    /// up to all partitions of an SM; with at most `most` a thread the block fits.
    #[error(
        "{threads} threads of {registers} registers need {needed} registers (a warp gets them in units of {unit}, and \
         warps count in multiples of {partitions}); {on} has {allowed} a block: with {threads} threads a thread may have \
         {most}; {}", self.remedy()
    )]
    Registers {
        threads: u64,
        registers: u32,
        needed: u64,
        unit: u32,
        partitions: u32,
        allowed: u32,
        most: u32,
        on: String,
    },
    /// Static shared memory beyond what any kernel may declare. Compilers do not always refuse it:
    /// ptxas 12.4 lets 168 KB through for every target, ptxas 13.0 up to 227 KB for `a` targets.
    #[error(
        "{given} B of static shared memory; {allowed} B is the limit for static declarations on every device ({on} has \
         {opt_in} B dynamic with opt-in); {} B too much; {}", given - u64::from(*allowed), self.remedy()
    )]
    StaticShared {
        given: u64,
        total: u64,
        allowed: u32,
        opt_in: u32,
        on: String,
    },
    /// A block needs more shared memory than it may have after opting in.
    #[error(
        "{}; {on} allows {allowed} B a block, with opt-in; {} B too much; {}",
        sum(*static_bytes, *dynamic_bytes),
        static_bytes + u64::from(*dynamic_bytes) - u64::from(*allowed),
        self.remedy()
    )]
    Shared {
        static_bytes: u64,
        dynamic_bytes: u32,
        allowed: u32,
        on: String,
    },
    /// More shared memory than a block may have without opting in, and the host does not opt in.
    #[error(
        "{}; without opt-in a block may have {allowed} B ({on} allows {opt_in} B with it); {}",
        sum(*static_bytes, *dynamic_bytes),
        self.remedy()
    )]
    OptIn {
        static_bytes: u64,
        dynamic_bytes: u32,
        allowed: u32,
        opt_in: u32,
        on: String,
    },
    /// The launch asks for less dynamic shared memory than the kernel uses.
    #[error("the kernel uses {needed} B of dynamic shared memory, the launch asks for {given} B; {}", self.remedy())]
    SharedRequest { needed: u32, given: u32 },
    /// Clusters or programmatic launches on a device that has none.
    #[error("it uses {what}, which need compute capability 9.0; {on} has none; {}", self.remedy())]
    NeedsHopper { what: &'static str, on: String },
    /// A programmatic launch of a kernel that never waits for the launch before it.
    #[error("it is programmatic, and the kernel never waits for the launch before it; {}", self.remedy())]
    NeverWaits,
    /// A cluster of more blocks than hardware allows.
    #[error("its cluster {given:?} has {blocks} blocks; {on} allows {allowed}, of which 8 are portable; {}", self.remedy())]
    ClusterSize {
        given: [u32; 3],
        blocks: u64,
        allowed: u32,
        on: String,
    },
    /// The grid is not made of whole clusters.
    #[error("its grid {grid:?} is not a multiple of its cluster {cluster:?}; {}", self.remedy())]
    ClusterGrid { grid: [u32; 3], cluster: [u32; 3] },
    /// Wrong number of arguments.
    #[error("{given} arguments given; the kernel has {needed} parameters; {}", self.remedy())]
    ArgumentCount { given: usize, needed: usize },
    /// An argument of the wrong size. `index` counts from 0.
    #[error("argument {index} has {given} B; the kernel's parameter has {needed} B; {}", self.remedy())]
    ArgumentSize { index: usize, given: u64, needed: u64 },
    /// An argument of another kind than the parameter. `index` counts from 0.
    #[error("argument {index} is {given}; parameter `{name}` is {needed}; {}", self.remedy())]
    ArgumentKind {
        index: usize,
        name: String,
        given: &'static str,
        needed: &'static str,
    },
    /// A tensor map of other boxes than the kernel copies: elements along each dimension, or their type or layout.
    #[error("tensor map `{name}` has boxes of {given:?}; the kernel copies boxes of {needed:?}; {}", self.remedy())]
    ArgumentBoxes {
        name: String,
        given: Vec<u32>,
        needed: Vec<u32>,
    },
    /// The kernel writes a buffer that the launch declares read-only.
    #[error("parameter `{name}` is written through; its buffer `{buffer}` is declared `written: false`; {}", self.remedy())]
    BufferNotWritten { name: String, buffer: String },
    /// A buffer that the launch needs was not brought.
    #[error("it needs {needed} buffers ({names}); {given} given; {}", self.remedy())]
    BufferCount { given: usize, needed: usize, names: String },
    /// An argument names a buffer slot that the launch does not declare. `index` counts from 0.
    #[error("argument {index} names buffer slot {slot}, but the launch declares {count} buffers; {}", self.remedy())]
    Slot { index: usize, slot: usize, count: usize },
    /// A buffer is too small.
    #[error("buffer `{name}` has {given} B; the kernel touches {needed} B; {}", self.remedy())]
    BufferSize { name: String, given: u64, needed: u64 },
    /// A buffer does not begin where it must.
    #[error(
        "buffer `{name}` begins at {address:#x}, {} B past a multiple of {align} B; {}",
        address % u64::from((*align).max(1)), self.remedy()
    )]
    BufferAlignment { name: String, address: u64, align: u32 },
}

use LaunchRefusal as R;

impl LaunchRefusal {
    /// What was given and what is allowed.
    pub fn what(&self) -> String {
        let (both, remedy) = (self.to_string(), self.remedy());
        both[..both.len() - remedy.len() - "; ".len()].to_string()
    }

    /// What to do.
    pub fn remedy(&self) -> String {
        match self {
            R::Architecture { target, .. } => {
                format!("compile it for {target} (nvcc -arch={target}), or ship PTX of an older architecture too")
            }
            R::Zero { .. } => "skip the launch if there is nothing to do".to_string(),
            R::Axis { .. } => "fold the long axis into x, or give each block more work".to_string(),
            R::Threads { .. } => "use fewer warps".to_string(),
            R::KernelThreads { allowed, .. } => format!(
                "launch at most {allowed} threads, or raise .maxntid (__launch_bounds__), which lowers the registers a thread"
            ),
            R::Required { .. } => "launch it so".to_string(),
            R::Registers { threads, most, .. } => {
                format!("use fewer warps, or compile it for {most} registers (__launch_bounds__({threads}))")
            }
            R::StaticShared { total, opt_in, .. } if *total <= u64::from(*opt_in) => format!(
                "declare it dynamic (`extern __shared__`), ask for {total} B at launch, and opt in with \
                 cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, {total})"
            ),
            R::StaticShared { total, opt_in, .. } => format!(
                "use smaller tiles or fewer stages: even dynamic it is {} B too much",
                total - u64::from(*opt_in)
            ),
            R::Shared {
                static_bytes,
                dynamic_bytes,
                ..
            } => format!(
                "use smaller tiles or fewer stages{}",
                fits_on(static_bytes + u64::from(*dynamic_bytes))
            ),
            R::OptIn { dynamic_bytes, .. } => format!(
                "call cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, {dynamic_bytes}) once \
                 before launching"
            ),
            R::SharedRequest { needed, .. } => format!("ask for {needed} B"),
            R::NeedsHopper { .. } => "launch it without, or on Hopper or later".to_string(),
            R::NeverWaits => "call `dependency_wait` before its first access to global memory".to_string(),
            R::ClusterSize { .. } => "use a smaller cluster".to_string(),
            R::ClusterGrid { .. } => "round the grid up and let blocks past the end return".to_string(),
            R::ArgumentCount { .. } => "bring one for each parameter, in order".to_string(),
            R::ArgumentSize { .. } | R::ArgumentKind { .. } => "bring an argument of the parameter's type".to_string(),
            R::ArgumentBoxes { .. } => "make it of the kernel's boxes (`Kernel::tensor_box`)".to_string(),
            R::BufferNotWritten { .. } => "store to an output instead, or declare it `written: true`".to_string(),
            R::BufferCount { .. } => "bring one for each slot, in order".to_string(),
            R::Slot { .. } => "the plan is broken; please report it".to_string(),
            R::BufferSize { .. } => "allocate at least that".to_string(),
            R::BufferAlignment { address, .. } => {
                let fits = 1u64 << address.trailing_zeros();
                format!(
                    "align it or copy it to aligned memory, or choose a kernel with accesses of at most {fits} B (-v{fits})"
                )
            }
        }
    }
}

fn sum(static_bytes: u64, dynamic_bytes: u32) -> String {
    match static_bytes {
        0 => format!("{dynamic_bytes} B of dynamic shared memory"),
        _ => format!(
            "{} B of shared memory ({static_bytes} static + {dynamic_bytes} dynamic)",
            static_bytes + u64::from(dynamic_bytes)
        ),
    }
}

fn fits_on(bytes: u64) -> String {
    let fits = |target: &&Target| target.is_supported() && u64::from(target.limits().shared_per_block) >= bytes;
    let names: Vec<&str> = Target::ALL.iter().filter(fits).map(|target| target.name()).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!("; it fits on {}", names.join(", "))
    }
}
