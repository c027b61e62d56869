//! The launch proof: what is known to fail is refused before anything is compiled or launched, with
//! the numbers and the remedy.
//!
//! A [`Plan`](flashcore_kernels::Plan) has passed its family's own refusals; this looks at kernel
//! and launch alone, so that it serves kernels that no family made, too.

use flashcore_ir::{Arg, Kernel, Launch, Target};
use serde::Serialize;
use thiserror::Error;

/// Most blocks along x (CUDA C++ Programming Guide, technical specifications).
const MAX_GRID_X: u32 = i32::MAX as u32;
/// Most blocks along y and z.
const MAX_GRID_YZ: u32 = 65_535;

/// Why a launch cannot work.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize)]
#[serde(tag = "refusal", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LaunchRefusal {
    /// The architecture lacks instructions that the kernel uses.
    #[error("the kernel needs {needed} or a later architecture that has its instructions; {target} has not")]
    Instructions {
        /// What PTX's `.target` would be.
        needed: String,
        /// The architecture.
        target: Target,
    },
    /// No blocks, or more than a grid may have.
    #[error(
        "a grid of {given:?} blocks; allowed are 1 to {allowed:?}; give each block more rows, or split the problem"
    )]
    Grid {
        /// Blocks along x, y, z.
        given: [u32; 3],
        /// The most there may be.
        allowed: [u32; 3],
    },
    /// Threads a block that the kernel was not made for.
    #[error("{given} threads a block; the kernel is made for {needed} ([{needed}, 1, 1]); launch it so")]
    KernelThreads {
        /// Threads of the launch.
        given: u32,
        /// Threads of the kernel.
        needed: u32,
    },
    /// More threads than a block may have.
    #[error("{given} threads a block; {target} allows {allowed}; use fewer warps")]
    Threads {
        /// Threads of the launch.
        given: u32,
        /// Threads allowed.
        allowed: u32,
        /// The architecture.
        target: Target,
    },
    /// More registers than an SM has.
    #[error(
        "{threads} threads of {registers} registers need {needed} registers (handed out to warps in units of {unit}, a \
         quarter of the SM at a time); {target} has {allowed}: with {threads} threads a thread may have {most}; use fewer \
         warps or smaller tiles"
    )]
    Registers {
        /// Threads a block.
        threads: u32,
        /// Registers a thread.
        registers: u32,
        /// Registers a block.
        needed: u32,
        /// Granularity, registers a warp.
        unit: u32,
        /// Registers of an SM.
        allowed: u32,
        /// Most registers a thread with which the block fits.
        most: u32,
        /// The architecture.
        target: Target,
    },
    /// More shared memory than a block may have.
    #[error(
        "{needed} B of {kind} shared memory; {target} allows {allowed} B{}; {} B too much: smaller tiles or fewer stages \
         save it",
        if *is_static { format!(", or {opt_in} B dynamic with opt-in") } else { String::new() },
        needed - allowed,
        kind = if *is_static { "static" } else { "dynamic" }
    )]
    Shared {
        /// Bytes needed.
        needed: u32,
        /// Whether they are declared statically.
        is_static: bool,
        /// Bytes allowed of that kind.
        allowed: u32,
        /// Bytes allowed as dynamic memory with opt-in.
        opt_in: u32,
        /// The architecture.
        target: Target,
    },
    /// A cluster that the kernel was not made for.
    #[error("clusters of {given:?} blocks; the kernel is made for clusters of [{needed}, 1, 1]; launch it so")]
    KernelCluster {
        /// Blocks of a cluster of the launch, along x, y, z.
        given: [u32; 3],
        /// Blocks along x that the kernel is made for.
        needed: u32,
    },
    /// The launch asks for less shared memory than the kernel uses.
    #[error("the kernel's ledger takes {needed} B of shared memory, the launch asks for {given} B; ask for {needed}")]
    SharedRequest {
        /// Bytes of the ledger.
        needed: u32,
        /// Bytes of the launch.
        given: u32,
    },
    /// A cluster that the architecture does not have, or that does not divide the grid.
    #[error(
        "a cluster of {given:?} blocks in a grid of {grid:?}; {target} allows {allowed} blocks, and the grid must be made of \
         whole clusters; use a smaller cluster or round the grid up"
    )]
    Cluster {
        /// Blocks along x, y, z.
        given: [u32; 3],
        /// The grid.
        grid: [u32; 3],
        /// Most blocks a cluster.
        allowed: u32,
        /// The architecture.
        target: Target,
    },
    /// Arguments that are not the kernel's parameters.
    #[error("{given} arguments; the kernel has {needed} parameters; bring one for each, in order")]
    Arguments {
        /// Arguments of the launch.
        given: usize,
        /// Parameters of the kernel.
        needed: usize,
    },
    /// A tensor that does not begin where the kernel's accesses need it to.
    #[error(
        "`{name}` begins {off} B past a multiple of {align} B, and the kernel accesses {align} B at a time; move the tensor, \
         or choose a kernel with narrower accesses (-v{fits})"
    )]
    Alignment {
        /// The buffer.
        name: String,
        /// Bytes past the last aligned address.
        off: u64,
        /// Bytes an access.
        align: u32,
        /// The widest access that fits.
        fits: u64,
    },
}

/// What is known beyond kernel and launch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// Registers a thread, as the compiler reports them.
    pub registers: Option<u32>,
    /// Addresses of the buffers, by slot.
    pub addresses: &'a [u64],
}

/// Everything that is known to fail about a launch on an architecture; empty where nothing is.
///
/// ```
/// use flashcore_check::proof::{Known, prove};
/// use flashcore_ir::Target;
/// use flashcore_kernels::Plan;
/// use flashcore_problem::Problem;
/// let plan = Plan::new(&Problem::named("mission")?, &"scalar/tiled-m32n32-w8-v16".parse()?, Target::Sm89)?;
/// assert_eq!(prove(&plan.main.kernel, &plan.main.launch, plan.target, Known::default()), []);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn prove(kernel: &Kernel, launch: &Launch, target: Target, known: Known<'_>) -> Vec<LaunchRefusal> {
    let mut refusals = Vec::new();
    let limits = target.limits();
    if !target.is_supported() || !kernel.requires().is_met_by(target) {
        let needed = kernel.requires().target_name();
        refusals.push(LaunchRefusal::Instructions { needed, target });
    }
    let allowed = [MAX_GRID_X, MAX_GRID_YZ, MAX_GRID_YZ];
    if launch.grid.iter().zip(allowed).any(|(&n, most)| n == 0 || n > most) {
        let given = launch.grid;
        refusals.push(LaunchRefusal::Grid { given, allowed });
    }
    let threads = launch
        .block
        .iter()
        .fold(1, |product: u32, &n| product.saturating_mul(n));
    if threads > limits.threads_per_block {
        refusals.push(LaunchRefusal::Threads {
            given: threads,
            allowed: limits.threads_per_block,
            target,
        });
    } else if launch.block != [kernel.threads(), 1, 1] {
        refusals.push(LaunchRefusal::KernelThreads {
            given: threads,
            needed: kernel.threads(),
        });
    }
    if let Some(registers) = known.registers {
        refusals.extend(prove_registers(threads, registers, target));
    }
    prove_shared(kernel, launch, target, &mut refusals);
    let cluster = launch
        .cluster
        .iter()
        .fold(1, |product: u32, &n| product.saturating_mul(n));
    let whole = launch
        .grid
        .iter()
        .zip(launch.cluster)
        .all(|(grid, n)| n > 0 && grid % n == 0);
    if cluster > limits.cluster_blocks || !whole {
        refusals.push(LaunchRefusal::Cluster {
            given: launch.cluster,
            grid: launch.grid,
            allowed: limits.cluster_blocks,
            target,
        });
    }
    if let Some(needed) = kernel.cluster()
        && launch.cluster != [needed, 1, 1]
    {
        let given = launch.cluster;
        refusals.push(LaunchRefusal::KernelCluster { given, needed });
    }
    if launch.args.len() != kernel.params().len() {
        refusals.push(LaunchRefusal::Arguments {
            given: launch.args.len(),
            needed: kernel.params().len(),
        });
    }
    for arg in &launch.args {
        if let Arg::Buffer { slot, byte_offset } = *arg
            && let (Some(spec), Some(address)) = (launch.buffers.get(slot), known.addresses.get(slot))
        {
            let (start, align) = (address + byte_offset, u64::from(spec.align.max(1)));
            if !start.is_multiple_of(align) {
                refusals.push(LaunchRefusal::Alignment {
                    name: spec.name.to_string(),
                    off: start % align,
                    align: spec.align,
                    fits: 1 << start.trailing_zeros(),
                });
            }
        }
    }
    refusals
}

/// Threads × registers: a block whose warps do not all fit on an SM cannot be launched.
pub(crate) fn prove_registers(threads: u32, registers: u32, target: Target) -> Option<LaunchRefusal> {
    let limits = target.limits();
    let warps = threads.div_ceil(32);
    let unit = limits.register_unit_per_warp;
    let per_warp = (registers * 32).next_multiple_of(unit);
    // A warp's registers lie in one of the SM's partitions, so the fullest one decides.
    let warps_a_partition = warps.div_ceil(limits.partitions_per_sm);
    let partition = limits.registers_per_sm / limits.partitions_per_sm;
    if warps_a_partition * per_warp <= partition && registers <= limits.registers_per_thread {
        return None;
    }
    let most = partition / warps_a_partition.max(1) / unit * unit / 32;
    Some(LaunchRefusal::Registers {
        threads,
        registers,
        needed: warps * per_warp,
        unit,
        allowed: limits.registers_per_sm,
        most: most.min(limits.registers_per_thread),
        target,
    })
}

fn prove_shared(kernel: &Kernel, launch: &Launch, target: Target, refusals: &mut Vec<LaunchRefusal>) {
    let limits = target.limits();
    let ledger = kernel.ledger();
    let is_static = ledger.is_static;
    let needed = if is_static {
        ledger.total_bytes()
    } else {
        ledger.total_bytes().max(launch.dynamic_shared_bytes)
    };
    let allowed = if is_static {
        limits.static_shared_per_block
    } else {
        limits.shared_per_block
    };
    if needed > allowed {
        refusals.push(LaunchRefusal::Shared {
            needed,
            is_static,
            allowed,
            opt_in: limits.shared_per_block,
            target,
        });
    }
    if !is_static && launch.dynamic_shared_bytes < ledger.total_bytes() {
        refusals.push(LaunchRefusal::SharedRequest {
            needed: ledger.total_bytes(),
            given: launch.dynamic_shared_bytes,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_ir::TileShape;
    use flashcore_kernels::Plan;
    use flashcore_problem::Problem;

    fn mission() -> Plan {
        let problem = Problem::named("mission").unwrap();
        Plan::new(&problem, &"scalar/tiled-m32n32-w8-v16".parse().unwrap(), Target::Sm89).unwrap()
    }

    fn refusal(change: impl FnOnce(&mut Launch)) -> String {
        let plan = mission();
        let mut launch = plan.main.launch.clone();
        change(&mut launch);
        let refusals = prove(&plan.main.kernel, &launch, plan.target, Known::default());
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        refusals[0].to_string()
    }

    #[test]
    fn registers_are_counted_by_warp_and_partition() {
        let plan = mission();
        let with = |threads: u32, registers| {
            let mut launch = plan.main.launch.clone();
            launch.block = [threads, 1, 1];
            prove(
                &plan.main.kernel,
                &launch,
                plan.target,
                Known {
                    registers: Some(registers),
                    addresses: &[],
                },
            )
        };
        assert_eq!(with(256, 255), []);
        let message = prove_registers(512, 168, Target::Sm90a).unwrap().to_string();
        assert!(
            message.starts_with("512 threads of 168 registers need 86016 registers"),
            "{message}"
        );
        assert!(
            message.contains("has 65536") && message.contains("may have 128"),
            "{message}"
        );
        // 12 warps of 168 registers: 3 of 5,376 in each partition of 16,384.
        assert_eq!(prove_registers(384, 168, Target::Sm90a), None);
        assert!(prove_registers(640, 104, Target::Sm90a).is_some());
    }

    #[test]
    fn launches_that_do_not_fit_are_refused_with_numbers() {
        assert!(refusal(|l| l.grid = [1, 65_536, 1]).contains("[1, 65536, 1]"));
        assert!(refusal(|l| l.grid = [0, 1, 1]).contains("1 to [2147483647, 65535, 65535]"));
        assert!(refusal(|l| l.block = [2048, 1, 1]).contains("2048 threads a block; sm_89 allows 1024"));
        assert!(refusal(|l| l.block = [128, 1, 1]).contains("made for 256"));
        assert!(refusal(|l| l.dynamic_shared_bytes = 100).contains("the launch asks for 100 B"));
        assert!(refusal(|l| l.dynamic_shared_bytes = 120_000).contains("sm_89 allows 101376 B; 18624 B too much"));
        assert!(refusal(|l| l.cluster = [2, 1, 1]).contains("sm_89 allows 1 blocks"));
        assert!(refusal(|l| drop(l.args.pop())).contains("bring one for each"));
    }

    #[test]
    fn a_cluster_must_be_that_of_the_kernel() {
        let kernel = Kernel::build("pair", 32, |k| {
            k.in_clusters_of(2);
            k.cluster_barrier();
        })
        .unwrap();
        let launch = |cluster| Launch {
            grid: [4, 1, 1],
            block: [32, 1, 1],
            cluster,
            dynamic_shared_bytes: 0,
            buffers: Vec::new(),
            args: Vec::new(),
        };
        let prove = |cluster| prove(&kernel, &launch(cluster), Target::Sm90a, Known::default());
        assert_eq!(prove([2, 1, 1]), []);
        let refusals = prove([1, 1, 1]);
        assert!(
            refusals[0].to_string().contains("made for clusters of [2, 1, 1]"),
            "{refusals:?}"
        );
    }

    #[test]
    fn tensors_must_begin_where_accesses_do() {
        let plan = mission();
        let known = |addresses| Known {
            registers: None,
            addresses,
        };
        let aligned = [0x1000, 0x2000, 0x3000, 0x4000];
        assert_eq!(
            prove(&plan.main.kernel, &plan.main.launch, plan.target, known(&aligned)),
            []
        );
        let refusals = prove(
            &plan.main.kernel,
            &plan.main.launch,
            plan.target,
            known(&[0x1000, 0x2004, 0x3000, 0x4000]),
        );
        let message = refusals[0].to_string();
        assert!(
            message.starts_with("`k` begins 4 B past a multiple of 16 B"),
            "{message}"
        );
        assert!(message.contains("(-v4)"), "{message}");
    }

    #[test]
    fn static_shared_memory_names_both_limits() {
        let kernel = Kernel::build("too_static", 128, |k| {
            k.static_shared_memory();
            let tile = k.shared_tile::<f32>("scores", TileShape::new(64, 224));
            tile.at(0, k.thread_idx()).store(0.0);
        })
        .unwrap();
        let launch = Launch {
            grid: [1, 1, 1],
            block: [128, 1, 1],
            cluster: [1, 1, 1],
            dynamic_shared_bytes: 0,
            buffers: Vec::new(),
            args: Vec::new(),
        };
        let refusals = prove(&kernel, &launch, Target::Sm89, Known::default());
        assert_eq!(
            refusals[0].to_string(),
            "57344 B of static shared memory; sm_89 allows 49152 B, or 101376 B dynamic with opt-in; 8192 B too much: \
             smaller tiles or fewer stages save it"
        );
        let old = prove(&kernel, &launch, Target::Sm75, Known::default());
        assert!(old[0].to_string().contains("sm_75 has not"), "{old:?}");
    }
}
