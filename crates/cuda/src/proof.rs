//! The launch proof: everything about a launch that can be known to fail is refused before the driver sees
//! it, with the numbers and the remedy. What the driver refuses all the same is explained from the same
//! numbers, in `explain`.

use crate::device::DeviceLimits;
use crate::ptx::Entry;
use crate::refusal::LaunchRefusal;

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
    /// Programmatic dependent launch: the kernel may start before the one ahead of it in the stream has
    /// ended, and waits for it itself (`griddepcontrol.wait`). Compute capability 9.0 and up.
    pub programmatic_dependent: bool,
}

impl LaunchShape {
    /// A launch of `grid` blocks of `threads` threads each, without clusters or dynamic shared memory.
    pub fn linear(grid: u32, threads: u32) -> Self {
        Self {
            grid: [grid, 1, 1],
            block: [threads, 1, 1],
            cluster: [1; 3],
            dynamic_shared_bytes: 0,
            programmatic_dependent: false,
        }
    }

    /// Threads a block.
    pub fn threads(&self) -> u64 {
        self.block.iter().map(|&n| u64::from(n)).product()
    }
}

/// What the driver says about a compiled kernel (`cuFuncGetAttribute`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionAttributes {
    /// Registers a thread at launch.
    pub registers: u32,
    /// Local memory a thread, bytes: spills and arrays indexed at run time.
    pub local_bytes: u32,
    /// Static shared memory a block, bytes.
    pub static_shared_bytes: u32,
    /// Constant memory, bytes.
    pub constant_bytes: u32,
    /// The most threads a block of this kernel may have on this device.
    pub max_threads_per_block: u32,
    /// Architecture of the machine code: 90 for sm_90.
    pub binary_version: u32,
    /// Virtual architecture it was compiled from: 80 for `.target sm_80`. (NVIDIA's manual calls it the PTX
    /// version.)
    pub ptx_version: u32,
}

/// Proves that a launch of this shape is within what device and kernel allow.
pub(crate) fn prove(
    shape: &LaunchShape,
    entry: &Entry,
    attributes: &FunctionAttributes,
    limits: &DeviceLimits,
) -> Result<(), LaunchRefusal> {
    for (what, given) in [("grid", shape.grid), ("block", shape.block), ("cluster", shape.cluster)] {
        if given.contains(&0) {
            return Err(LaunchRefusal::Zero { what, given });
        }
    }
    for (what, given, allowed) in [
        ("grid", shape.grid, limits.max_grid),
        ("block", shape.block, limits.max_block),
    ] {
        if given.iter().zip(&allowed).any(|(given, allowed)| given > allowed) {
            return Err(LaunchRefusal::Axis { what, given, allowed });
        }
    }
    if let Some(required) = entry.required_block
        && required != shape.block
    {
        let directive = ".reqntid";
        return Err(LaunchRefusal::Required {
            what: "block",
            given: shape.block,
            required,
            directive,
        });
    }
    prove_threads(shape, entry, attributes, limits)?;

    let given = attributes.static_shared_bytes;
    if given > limits.shared_bytes_per_block {
        return Err(LaunchRefusal::StaticShared {
            given,
            allowed: limits.shared_bytes_per_block,
        });
    }
    let needed = u64::from(given) + u64::from(shape.dynamic_shared_bytes);
    let allowed = limits.shared_bytes_per_block_optin.max(limits.shared_bytes_per_block);
    if needed > u64::from(allowed) {
        return Err(LaunchRefusal::Shared {
            needed,
            static_bytes: attributes.static_shared_bytes,
            dynamic_bytes: shape.dynamic_shared_bytes,
            allowed,
        });
    }
    prove_cluster(shape, entry, limits)
}

fn prove_threads(
    shape: &LaunchShape,
    entry: &Entry,
    attributes: &FunctionAttributes,
    limits: &DeviceLimits,
) -> Result<(), LaunchRefusal> {
    let threads = shape.threads();
    if threads > u64::from(limits.max_threads_per_block) {
        return Err(LaunchRefusal::Threads {
            given: threads,
            allowed: limits.max_threads_per_block,
        });
    }
    let allowed = entry
        .max_threads
        .unwrap_or(u32::MAX)
        .min(attributes.max_threads_per_block);
    if threads > u64::from(allowed) {
        return Err(LaunchRefusal::KernelThreads {
            given: threads,
            allowed,
            registers: attributes.registers,
        });
    }
    let needed = registers_per_block(threads, attributes.registers, limits.warp_size);
    if needed > u64::from(limits.registers_per_block) {
        return Err(LaunchRefusal::Registers {
            threads,
            registers: attributes.registers,
            needed,
            available: limits.registers_per_block,
        });
    }
    Ok(())
}

fn prove_cluster(shape: &LaunchShape, entry: &Entry, limits: &DeviceLimits) -> Result<(), LaunchRefusal> {
    let asked = shape.cluster != [1, 1, 1];
    if asked
        && let Some(required) = entry.required_cluster
        && required != shape.cluster
    {
        let directive = ".reqnctapercluster";
        return Err(LaunchRefusal::Required {
            what: "cluster",
            given: shape.cluster,
            required,
            directive,
        });
    }
    // A kernel compiled for a cluster is launched in it without being told.
    let cluster = if asked {
        shape.cluster
    } else {
        entry.required_cluster.unwrap_or([1; 3])
    };
    let blocks = cluster.iter().map(|&n| u64::from(n)).product::<u64>();
    let device = limits.compute_capability;
    if blocks > 1 && !limits.clusters {
        return Err(LaunchRefusal::NeedsHopper {
            what: "clusters",
            device,
        });
    }
    if shape.programmatic_dependent && device.0 < 9 {
        return Err(LaunchRefusal::NeedsHopper {
            what: "programmatic dependent launches",
            device,
        });
    }
    if blocks > 16 {
        return Err(LaunchRefusal::ClusterSize { given: cluster, blocks });
    }
    if shape
        .grid
        .iter()
        .zip(&cluster)
        .any(|(grid, &cluster)| cluster == 0 || grid % cluster != 0)
    {
        return Err(LaunchRefusal::ClusterGrid {
            grid: shape.grid,
            cluster,
        });
    }
    Ok(())
}

/// Proves that arguments of these sizes fit the kernel's parameters, where the PTX could be read.
pub(crate) fn prove_arguments(entry: &Entry, argument_bytes: &[u32]) -> Result<(), LaunchRefusal> {
    let Some(needed) = &entry.parameter_bytes else {
        return Ok(());
    };
    if needed.len() != argument_bytes.len() {
        return Err(LaunchRefusal::ArgumentCount {
            given: argument_bytes.len(),
            needed: needed.len(),
        });
    }
    for (index, (&given, &needed)) in argument_bytes.iter().zip(needed).enumerate() {
        if given != needed {
            return Err(LaunchRefusal::ArgumentSize { index, given, needed });
        }
    }
    Ok(())
}

/// Registers that a block takes: allocated by the warp in units of 256 (CUDA occupancy calculator,
/// compute capability 7.0 and up).
pub(crate) fn registers_per_block(threads: u64, registers: u32, warp_size: u32) -> u64 {
    let warp_size = u64::from(warp_size.max(1));
    threads.div_ceil(warp_size) * (u64::from(registers) * warp_size).next_multiple_of(256)
}

/// Whether a block of this shape must opt in to more dynamic shared memory than the default.
pub(crate) fn needs_opt_in(shape: &LaunchShape, attributes: &FunctionAttributes, limits: &DeviceLimits) -> bool {
    shape.dynamic_shared_bytes
        > limits
            .shared_bytes_per_block
            .saturating_sub(attributes.static_shared_bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ptx::entries;

    pub(crate) fn h200() -> DeviceLimits {
        DeviceLimits {
            compute_capability: (9, 0),
            max_threads_per_block: 1024,
            max_block: [1024, 1024, 64],
            max_grid: [2_147_483_647, 65_535, 65_535],
            warp_size: 32,
            max_threads_per_multiprocessor: 2048,
            max_blocks_per_multiprocessor: 32,
            shared_bytes_per_block: 49_152,
            shared_bytes_per_block_optin: 232_448,
            shared_bytes_per_multiprocessor: 233_472,
            shared_bytes_reserved_per_block: 1024,
            registers_per_block: 65_536,
            registers_per_multiprocessor: 65_536,
            clusters: true,
        }
    }

    fn l4() -> DeviceLimits {
        DeviceLimits {
            compute_capability: (8, 9),
            shared_bytes_per_block_optin: 101_376,
            shared_bytes_per_multiprocessor: 102_400,
            clusters: false,
            ..h200()
        }
    }

    pub(crate) fn kernel() -> FunctionAttributes {
        FunctionAttributes {
            registers: 168,
            max_threads_per_block: 384,
            ..FunctionAttributes::default()
        }
    }

    pub(crate) fn entry(directives: &str) -> Entry {
        entries(&format!(
            ".entry k(.param .u64 a, .param .u32 n) {directives} {{ ret; }}"
        ))
        .remove(0)
    }

    fn refuse(shape: LaunchShape, limits: &DeviceLimits) -> LaunchRefusal {
        prove(&shape, &entry(""), &kernel(), limits).unwrap_err()
    }

    #[test]
    fn a_hopper_attention_launch_passes() {
        let shape = LaunchShape {
            cluster: [2, 1, 1],
            dynamic_shared_bytes: 230_000,
            programmatic_dependent: true,
            ..LaunchShape::linear(132, 384)
        };
        assert_eq!(prove(&shape, &entry(".maxntid 384, 1, 1"), &kernel(), &h200()), Ok(()));
    }

    #[test]
    fn the_reports_own_failures_are_refused_with_their_numbers() {
        // The default tile of a CUTLASS GEMM on an L4: 147,456 B against 101,376 B.
        let shape = LaunchShape {
            dynamic_shared_bytes: 147_456,
            ..LaunchShape::linear(1, 128)
        };
        let text = refuse(shape, &l4()).to_string();
        for part in ["147456 B", "101376", "opt-in", "46080 B too much", "fewer stages"] {
            assert!(text.contains(part), "{part} is missing from: {text}");
        }
        // 75 KB of dynamic memory: allowed, but only after opting in.
        let shape = LaunchShape {
            dynamic_shared_bytes: 76_800,
            ..LaunchShape::linear(1, 128)
        };
        assert_eq!(prove(&shape, &entry(""), &kernel(), &l4()), Ok(()));
        assert!(needs_opt_in(&shape, &kernel(), &l4()));
    }

    #[test]
    fn static_shared_memory_stops_at_48_kilobytes_whatever_the_compiler_lets_through() {
        // "M=64 hangs because shared memory spills": 57,376 B of it, and a build that had failed unseen.
        let attributes = FunctionAttributes {
            static_shared_bytes: 57_376,
            ..kernel()
        };
        let text = prove(&LaunchShape::linear(1, 128), &entry(""), &attributes, &h200())
            .unwrap_err()
            .to_string();
        assert!(text.contains("57376 B of static") && text.contains("49152") && text.contains("dynamic"));
    }

    #[test]
    fn opting_in_counts_static_bytes() {
        let attributes = FunctionAttributes {
            static_shared_bytes: 8_192,
            ..kernel()
        };
        let shape = |bytes| LaunchShape {
            dynamic_shared_bytes: bytes,
            ..LaunchShape::linear(1, 128)
        };
        assert!(!needs_opt_in(&shape(40_960), &attributes, &h200()));
        assert!(needs_opt_in(&shape(40_961), &attributes, &h200()));
        let refusal = prove(&shape(232_448 - 8_191), &entry(""), &attributes, &h200()).unwrap_err();
        assert!(matches!(refusal, LaunchRefusal::Shared { needed: 232_449, .. }));
    }

    #[test]
    fn threads_are_bounded_by_device_kernel_and_registers() {
        assert!(matches!(
            refuse(LaunchShape::linear(1, 1056), &h200()),
            LaunchRefusal::Axis { what: "block", .. }
        ));
        let shape = LaunchShape {
            block: [64, 32, 1],
            ..LaunchShape::linear(1, 1)
        };
        assert!(matches!(
            refuse(shape, &h200()),
            LaunchRefusal::Threads {
                given: 2048,
                allowed: 1024
            }
        ));
        assert!(matches!(
            refuse(LaunchShape::linear(1, 416), &h200()),
            LaunchRefusal::KernelThreads { allowed: 384, .. }
        ));
        let refusal = prove(&LaunchShape::linear(1, 256), &entry(".maxntid 128"), &kernel(), &h200()).unwrap_err();
        assert!(matches!(refusal, LaunchRefusal::KernelThreads { allowed: 128, .. }));

        // 100 registers are allocated as 104: 1,024 threads would take 106,496.
        let hungry = FunctionAttributes {
            registers: 100,
            max_threads_per_block: 1024,
            ..FunctionAttributes::default()
        };
        let refusal = prove(&LaunchShape::linear(1, 1024), &entry(""), &hungry, &h200()).unwrap_err();
        assert!(matches!(refusal, LaunchRefusal::Registers { needed: 106_496, .. }));
        assert_eq!(registers_per_block(384, 168, 32), 64_512);
        assert_eq!(registers_per_block(33, 1, 32), 512);
    }

    #[test]
    fn zero_and_oversized_grids_are_refused() {
        assert!(matches!(
            refuse(LaunchShape::linear(0, 128), &h200()),
            LaunchRefusal::Zero { what: "grid", .. }
        ));
        assert!(matches!(
            refuse(LaunchShape::linear(1, 0), &h200()),
            LaunchRefusal::Zero { what: "block", .. }
        ));
        let shape = LaunchShape {
            grid: [1, 65_536, 1],
            ..LaunchShape::linear(1, 128)
        };
        assert!(matches!(
            refuse(shape, &h200()),
            LaunchRefusal::Axis { what: "grid", .. }
        ));
        // 2^96 threads must not overflow on the way to the message.
        let shape = LaunchShape {
            block: [u32::MAX; 3],
            ..LaunchShape::linear(1, 1)
        };
        assert!(matches!(
            refuse(shape, &h200()),
            LaunchRefusal::Axis { what: "block", .. }
        ));
    }

    #[test]
    fn clusters_must_exist_divide_and_agree() {
        let cluster = |cluster, grid| LaunchShape {
            cluster,
            ..LaunchShape::linear(grid, 128)
        };
        assert!(matches!(
            refuse(cluster([2, 1, 1], 2), &l4()),
            LaunchRefusal::NeedsHopper { what: "clusters", .. }
        ));
        assert!(matches!(
            refuse(cluster([32, 1, 1], 32), &h200()),
            LaunchRefusal::ClusterSize { blocks: 32, .. }
        ));
        assert!(matches!(
            refuse(cluster([2, 1, 1], 3), &h200()),
            LaunchRefusal::ClusterGrid { .. }
        ));
        let required = entry(".reqnctapercluster 2, 1, 1");
        assert!(prove(&cluster([1, 1, 1], 4), &required, &kernel(), &h200()).is_ok());
        assert!(prove(&cluster([1, 1, 1], 3), &required, &kernel(), &h200()).is_err());
        assert!(prove(&cluster([4, 1, 1], 4), &required, &kernel(), &h200()).is_err());
        let refusal = prove(&cluster([1; 3], 1), &entry(".reqntid 64"), &kernel(), &h200()).unwrap_err();
        assert!(refusal.to_string().contains(".reqntid"));
        let dependent = LaunchShape {
            programmatic_dependent: true,
            ..LaunchShape::linear(1, 128)
        };
        assert!(matches!(refuse(dependent, &l4()), LaunchRefusal::NeedsHopper { .. }));
    }

    #[test]
    fn arguments_must_match_the_parameters() {
        assert_eq!(prove_arguments(&entry(""), &[8, 4]), Ok(()));
        assert_eq!(
            prove_arguments(&entry(""), &[8]).unwrap_err().to_string(),
            "1 arguments given; the kernel has 2 parameters"
        );
        assert_eq!(
            prove_arguments(&entry(""), &[8, 8]).unwrap_err().to_string(),
            "argument 1 has 8 B; the kernel's parameter has 4 B"
        );
        let unreadable = Entry {
            parameter_bytes: None,
            ..entry("")
        };
        assert_eq!(prove_arguments(&unreadable, &[1, 2, 3]), Ok(()));
    }
}
