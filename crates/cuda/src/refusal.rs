//! Why a launch is refused before the driver sees it.

/// Why a launch cannot work. Every variant carries what was given, what is allowed, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchRefusal {
    /// A dimension of the grid, block or cluster is zero.
    #[error("its {what} is {given:?}; every dimension must be at least 1 (skip the launch if there is nothing to do)")]
    Zero {
        /// `grid`, `block` or `cluster`.
        what: &'static str,
        /// The dimensions given.
        given: [u32; 3],
    },
    /// The grid or block is too long along one axis.
    #[error("its {what} is {given:?}; this device allows at most {allowed:?} along x, y, z; fold the long axis into x")]
    Axis {
        /// `grid` or `block`.
        what: &'static str,
        /// The dimensions given.
        given: [u32; 3],
        /// The most along each axis.
        allowed: [u32; 3],
    },
    /// More threads a block than any kernel may have here.
    #[error("{given} threads a block; this device allows {allowed}; use fewer warps")]
    Threads {
        /// Threads given.
        given: u64,
        /// Threads allowed.
        allowed: u32,
    },
    /// More threads a block than this kernel was compiled for.
    #[error(
        "{given} threads a block; this kernel allows {allowed} (it uses {registers} registers a thread and may carry \
         .maxntid); use fewer warps, or build it with fewer registers and a larger .maxntid"
    )]
    KernelThreads {
        /// Threads given.
        given: u64,
        /// Threads allowed.
        allowed: u32,
        /// Registers a thread.
        registers: u32,
    },
    /// A block needs more registers than there are.
    #[error(
        "{threads} threads of {registers} registers need {needed} registers a block (allocated in 256 a warp); this \
         device has {available}; use fewer warps or fewer registers a thread"
    )]
    Registers {
        /// Threads a block.
        threads: u64,
        /// Registers a thread.
        registers: u32,
        /// Registers a block.
        needed: u64,
        /// Registers there are.
        available: u32,
    },
    /// Static shared memory beyond what any kernel may declare. Compilers are no guard: ptxas 12.4 lets
    /// 168 KB through for every target, ptxas 13.0 up to 227 KB for the `a` targets.
    #[error(
        "{given} B of static shared memory; {allowed} B is the limit for static declarations on every device; declare it \
         dynamic and opt in"
    )]
    StaticShared {
        /// Static bytes.
        given: u32,
        /// Bytes allowed.
        allowed: u32,
    },
    /// A block needs more shared memory than it may have.
    #[error(
        "{needed} B of shared memory a block ({static_bytes} static + {dynamic_bytes} dynamic); this device allows \
         {allowed} with opt-in; use fewer stages or smaller tiles ({} B too much)",
        needed - u64::from(*allowed)
    )]
    Shared {
        /// Static and dynamic bytes together.
        needed: u64,
        /// Static bytes.
        static_bytes: u32,
        /// Dynamic bytes.
        dynamic_bytes: u32,
        /// Bytes a block may have after opting in.
        allowed: u32,
    },
    /// Clusters or programmatic launches on a device that has none.
    #[error("it uses {what}, which need compute capability 9.0; this device has {}.{}", device.0, device.1)]
    NeedsHopper {
        /// What was asked for.
        what: &'static str,
        /// The device's compute capability.
        device: (u32, u32),
    },
    /// A cluster of more blocks than hardware allows.
    #[error("its cluster {given:?} has {blocks} blocks; at most 16 are possible and 8 portable; use a smaller cluster")]
    ClusterSize {
        /// The cluster given.
        given: [u32; 3],
        /// Blocks in it.
        blocks: u64,
    },
    /// The grid is not made of whole clusters.
    #[error(
        "its grid {grid:?} is not a multiple of its cluster {cluster:?}; round the grid up and let blocks past the end return"
    )]
    ClusterGrid {
        /// The grid given.
        grid: [u32; 3],
        /// The cluster.
        cluster: [u32; 3],
    },
    /// The kernel was compiled for one block or cluster only.
    #[error("its {what} is {given:?}, but its PTX requires exactly {required:?} ({directive})")]
    Required {
        /// `block` or `cluster`.
        what: &'static str,
        /// The dimensions given.
        given: [u32; 3],
        /// The dimensions required.
        required: [u32; 3],
        /// The PTX directive that says so.
        directive: &'static str,
    },
    /// Wrong number of arguments.
    #[error("{given} arguments given; the kernel has {needed} parameters")]
    ArgumentCount {
        /// Arguments given.
        given: usize,
        /// Parameters of the kernel.
        needed: usize,
    },
    /// An argument of the wrong size.
    #[error("argument {index} has {given} B; the kernel's parameter has {needed} B")]
    ArgumentSize {
        /// Position, from 0.
        index: usize,
        /// Bytes given.
        given: u32,
        /// Bytes of the parameter.
        needed: u32,
    },
    /// A buffer the launch needs was not brought.
    #[error("it needs {needed} buffers ({names}); {given} given")]
    BufferCount {
        /// Buffers given.
        given: usize,
        /// Buffers needed.
        needed: usize,
        /// Their names, in order.
        names: String,
    },
    /// An argument names a buffer slot that the launch does not declare.
    #[error("argument {index} names buffer slot {slot}, but the launch declares {count} buffers; the plan is broken")]
    Slot {
        /// Position of the argument, from 0.
        index: usize,
        /// The slot named.
        slot: usize,
        /// Slots there are.
        count: usize,
    },
    /// A buffer is too small.
    #[error("buffer `{name}` has {given} B; the kernel touches {needed} B; allocate at least that")]
    BufferSize {
        /// The buffer's name.
        name: String,
        /// Bytes given.
        given: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// A buffer does not begin where it must.
    #[error(
        "buffer `{name}` begins at {address:#x}, which is not a multiple of {align} B; align it, or copy it to memory that is"
    )]
    BufferAlignment {
        /// The buffer's name.
        name: String,
        /// Its device address.
        address: u64,
        /// The alignment needed, bytes.
        align: u32,
    },
}
