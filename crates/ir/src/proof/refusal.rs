//! Why a launch is refused before the driver sees it.

use std::fmt;

use serde::Serialize;

use crate::Target;

/// Why a launch cannot work: what was given, what is allowed ([`what`](Self::what)), and what to do
/// ([`remedy`](Self::remedy)). Printed as both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "refusal", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LaunchRefusal {
    /// The code was made for another architecture.
    Architecture {
        /// The architecture it was made for, as PTX's `.target` has it.
        made_for: String,
        /// The architecture that is to run it.
        target: Target,
        /// The rule.
        why: &'static str,
    },
    /// A dimension of the grid, block or cluster is zero.
    Zero {
        /// `grid`, `block` or `cluster`.
        what: &'static str,
        /// The dimensions given.
        given: [u32; 3],
    },
    /// The grid or block is too long along one axis.
    Axis {
        /// `grid` or `block`.
        what: &'static str,
        /// The dimensions given.
        given: [u32; 3],
        /// The most along each axis.
        allowed: [u32; 3],
        /// The device or architecture.
        on: String,
    },
    /// More threads a block than any kernel may have.
    Threads {
        /// Threads given.
        given: u64,
        /// Threads allowed.
        allowed: u32,
        /// The device or architecture.
        on: String,
    },
    /// More threads a block than this kernel was compiled for.
    KernelThreads {
        /// Threads given.
        given: u64,
        /// Threads allowed.
        allowed: u32,
        /// Registers a thread, if they are known.
        registers: Option<u32>,
    },
    /// The kernel was built for one block or cluster only.
    Required {
        /// `block` or `cluster`.
        what: &'static str,
        /// The dimensions given.
        given: [u32; 3],
        /// The dimensions required.
        required: [u32; 3],
    },
    /// A block needs more registers than there are.
    Registers {
        /// Threads a block.
        threads: u64,
        /// Registers a thread.
        registers: u32,
        /// Registers a block, in whole units and with its warps rounded up to all partitions.
        needed: u64,
        /// Registers that a warp gets at a time.
        unit: u32,
        /// Parts of an SM that warps are counted for alike.
        partitions: u32,
        /// Registers there are.
        allowed: u32,
        /// Most registers a thread with which the block fits.
        most: u32,
        /// The device or architecture.
        on: String,
    },
    /// Static shared memory beyond what any kernel may declare. Compilers do not always refuse it:
    /// ptxas 12.4 lets 168 KB through for every target, ptxas 13.0 up to 227 KB for the `a` targets.
    StaticShared {
        /// Static bytes.
        given: u64,
        /// Static and dynamic bytes together.
        total: u64,
        /// Bytes allowed.
        allowed: u32,
        /// Bytes allowed as dynamic memory with opt-in.
        opt_in: u32,
        /// The device or architecture.
        on: String,
    },
    /// A block needs more shared memory than it may have.
    Shared {
        /// Static bytes.
        static_bytes: u64,
        /// Dynamic bytes.
        dynamic_bytes: u32,
        /// Bytes a block may have after opting in.
        allowed: u32,
        /// The device or architecture.
        on: String,
    },
    /// More shared memory than a block may have without opting in, and the host does not opt in.
    OptIn {
        /// Static bytes.
        static_bytes: u64,
        /// Dynamic bytes.
        dynamic_bytes: u32,
        /// Bytes a block may have without opting in.
        allowed: u32,
        /// Bytes a block may have after opting in.
        opt_in: u32,
        /// The device or architecture.
        on: String,
    },
    /// The launch asks for less dynamic shared memory than the kernel uses.
    SharedRequest {
        /// Bytes the kernel uses.
        needed: u32,
        /// Bytes of the launch.
        given: u32,
    },
    /// Clusters or programmatic launches on a device that has none.
    NeedsHopper {
        /// What the launch uses.
        what: &'static str,
        /// The device or architecture.
        on: String,
    },
    /// A cluster of more blocks than hardware allows.
    ClusterSize {
        /// The cluster given.
        given: [u32; 3],
        /// Blocks in it.
        blocks: u64,
        /// Most blocks a cluster.
        allowed: u32,
        /// The device or architecture.
        on: String,
    },
    /// The grid is not made of whole clusters.
    ClusterGrid {
        /// The grid given.
        grid: [u32; 3],
        /// The cluster.
        cluster: [u32; 3],
    },
    /// Wrong number of arguments.
    ArgumentCount {
        /// Arguments given.
        given: usize,
        /// Parameters of the kernel.
        needed: usize,
    },
    /// An argument of the wrong size.
    ArgumentSize {
        /// Position, from 0.
        index: usize,
        /// Bytes given.
        given: u64,
        /// Bytes of the parameter.
        needed: u64,
    },
    /// A buffer that the launch needs was not brought.
    BufferCount {
        /// Buffers given.
        given: usize,
        /// Buffers needed.
        needed: usize,
        /// Their names, in order.
        names: String,
    },
    /// An argument names a buffer slot that the launch does not declare.
    Slot {
        /// Position of the argument, from 0.
        index: usize,
        /// The slot named.
        slot: usize,
        /// Slots there are.
        count: usize,
    },
    /// A buffer is too small.
    BufferSize {
        /// The buffer's name.
        name: String,
        /// Bytes given.
        given: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// A buffer does not begin where it must.
    BufferAlignment {
        /// The buffer's name.
        name: String,
        /// Its address.
        address: u64,
        /// The alignment needed, bytes.
        align: u32,
    },
}

use LaunchRefusal as R;

impl LaunchRefusal {
    /// What was given and what is allowed.
    pub fn what(&self) -> String {
        match self {
            R::Architecture { made_for, target, why } => {
                format!("the code is made for {made_for}; {target} cannot run it: {why}")
            }
            R::Zero { what, given } => format!("its {what} is {given:?}; every dimension must be at least 1"),
            R::Axis {
                what,
                given,
                allowed,
                on,
            } => format!("its {what} is {given:?}; {on} allows at most {allowed:?} along x, y, z"),
            R::Threads { given, allowed, on } => format!("{given} threads a block; {on} allows {allowed}"),
            R::KernelThreads {
                given,
                allowed,
                registers,
            } => {
                let registers = registers.map_or(String::new(), |n| format!(" with {n} registers a thread"));
                format!("{given} threads a block; the kernel was compiled for at most {allowed}{registers} (.maxntid)")
            }
            R::Required { what, given, required } => {
                format!("its {what} is {given:?}; the kernel is built for {required:?}")
            }
            R::Registers {
                threads,
                registers,
                needed,
                unit,
                partitions,
                allowed,
                most,
                on,
            } => format!(
                "{threads} threads of {registers} registers need {needed} registers (a warp gets them in units of {unit}, \
                 and warps count in multiples of {partitions}); {on} has {allowed} a block: with {threads} threads a \
                 thread may have {most}"
            ),
            R::StaticShared {
                given,
                allowed,
                opt_in,
                on,
                ..
            } => format!(
                "{given} B of static shared memory; {allowed} B is the limit for static declarations on every device \
                 ({on} has {opt_in} B dynamic with opt-in); {} B too much",
                given - u64::from(*allowed)
            ),
            R::Shared {
                static_bytes,
                dynamic_bytes,
                allowed,
                on,
            } => format!(
                "{}; {on} allows {allowed} B a block, with opt-in; {} B too much",
                sum(*static_bytes, *dynamic_bytes),
                static_bytes + u64::from(*dynamic_bytes) - u64::from(*allowed)
            ),
            R::OptIn {
                static_bytes,
                dynamic_bytes,
                allowed,
                opt_in,
                on,
            } => format!(
                "{}; without opt-in a block may have {allowed} B ({on} allows {opt_in} B with it)",
                sum(*static_bytes, *dynamic_bytes)
            ),
            R::SharedRequest { needed, given } => {
                format!("the kernel uses {needed} B of dynamic shared memory, the launch asks for {given} B")
            }
            R::NeedsHopper { what, on } => format!("it uses {what}, which need compute capability 9.0; {on} has none"),
            R::ClusterSize {
                given,
                blocks,
                allowed,
                on,
            } => format!("its cluster {given:?} has {blocks} blocks; {on} allows {allowed}, of which 8 are portable"),
            R::ClusterGrid { grid, cluster } => {
                format!("its grid {grid:?} is not a multiple of its cluster {cluster:?}")
            }
            R::ArgumentCount { given, needed } => {
                format!("{given} arguments given; the kernel has {needed} parameters")
            }
            R::ArgumentSize { index, given, needed } => {
                format!("argument {index} has {given} B; the kernel's parameter has {needed} B")
            }
            R::BufferCount { given, needed, names } => format!("it needs {needed} buffers ({names}); {given} given"),
            R::Slot { index, slot, count } => {
                format!("argument {index} names buffer slot {slot}, but the launch declares {count} buffers")
            }
            R::BufferSize { name, given, needed } => {
                format!("buffer `{name}` has {given} B; the kernel touches {needed} B")
            }
            R::BufferAlignment { name, address, align } => format!(
                "buffer `{name}` begins at {address:#x}, {} B past a multiple of {align} B",
                address % u64::from((*align).max(1))
            ),
        }
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
            R::ClusterSize { .. } => "use a smaller cluster".to_string(),
            R::ClusterGrid { .. } => "round the grid up and let blocks past the end return".to_string(),
            R::ArgumentCount { .. } => "bring one for each parameter, in order".to_string(),
            R::ArgumentSize { .. } => "bring an argument of the parameter's type".to_string(),
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

impl fmt::Display for LaunchRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what(), self.remedy())
    }
}

impl std::error::Error for LaunchRefusal {}

/// Bytes of shared memory a block, in words.
fn sum(static_bytes: u64, dynamic_bytes: u32) -> String {
    match static_bytes {
        0 => format!("{dynamic_bytes} B of dynamic shared memory"),
        _ => format!(
            "{} B of shared memory ({static_bytes} static + {dynamic_bytes} dynamic)",
            static_bytes + u64::from(dynamic_bytes)
        ),
    }
}

/// Architectures on which a block may have so much shared memory.
fn fits_on(bytes: u64) -> String {
    let fits = |target: &&Target| target.is_supported() && u64::from(target.limits().shared_per_block) >= bytes;
    let names: Vec<&str> = Target::ALL.iter().filter(fits).map(|target| target.name()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; it fits on {}", names.join(", ")),
    }
}
