//! Tests of the launch proof.

use super::*;
use crate::{Arg, TileShape};

fn h200() -> Limits {
    Target::Sm90a.limits()
}

fn l4() -> Limits {
    Target::Sm89.limits()
}

fn facts() -> KernelFacts {
    KernelFacts {
        registers: Some(168),
        max_threads: Some(384),
        parameter_bytes: Some(vec![8, 4]),
        ..KernelFacts::default()
    }
}

/// The only refusal of a launch.
fn only(shape: &LaunchShape, facts: &KernelFacts, limits: &Limits) -> LaunchRefusal {
    let mut refusals = prove(shape, facts, limits, "this device");
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    refusals.remove(0)
}

fn refuse(shape: LaunchShape, limits: &Limits) -> LaunchRefusal {
    only(&shape, &facts(), limits)
}

fn dynamic(bytes: u32) -> LaunchShape {
    LaunchShape {
        dynamic_shared_bytes: bytes,
        ..LaunchShape::linear(1, 128)
    }
}

#[test]
fn a_hopper_attention_launch_passes() {
    let shape = LaunchShape {
        cluster: [2, 1, 1],
        dynamic_shared_bytes: 230_000,
        programmatic_dependent: true,
        ..LaunchShape::linear(132, 384)
    };
    assert_eq!(prove(&shape, &facts(), &h200(), "H200"), []);
}

#[test]
fn the_reports_own_failures_are_refused_with_their_numbers() {
    // The default tile of a CUTLASS GEMM on an L4: 147,456 B against 101,376 B.
    let text = refuse(dynamic(147_456), &l4()).to_string();
    for part in [
        "147456 B",
        "101376",
        "opt-in",
        "46080 B too much",
        "fewer stages",
        "sm_90a",
    ] {
        assert!(text.contains(part), "{part} is missing from: {text}");
    }
    // 75 KB of dynamic memory: allowed, but only after opting in.
    assert_eq!(prove(&dynamic(76_800), &facts(), &l4(), "L4"), []);
    let text = prove_without_opt_in(&dynamic(76_800), &facts(), &l4(), "L4")
        .unwrap()
        .to_string();
    for part in [
        "76800 B",
        "49152",
        "101376",
        "cudaFuncAttributeMaxDynamicSharedMemorySize, 76800",
    ] {
        assert!(text.contains(part), "{part} is missing from: {text}");
    }
}

#[test]
fn static_shared_memory_stops_at_48_kilobytes_whatever_the_compiler_lets_through() {
    // "M=64 hangs because shared memory spills": 57,376 B of it, and a failed build.
    let facts = KernelFacts {
        static_shared_bytes: 57_376,
        ..facts()
    };
    let text = only(&LaunchShape::linear(1, 128), &facts, &h200()).to_string();
    for part in ["57376 B of static", "49152", "8224 B too much", "dynamic", "opt in"] {
        assert!(text.contains(part), "{part} is missing from: {text}");
    }
    let facts = KernelFacts {
        static_shared_bytes: 300_000,
        ..facts
    };
    let text = only(&LaunchShape::linear(1, 128), &facts, &h200()).to_string();
    assert!(text.contains("even dynamic it is 67552 B too much"), "{text}");
}

#[test]
fn opting_in_counts_static_bytes() {
    let facts = KernelFacts {
        static_shared_bytes: 8_192,
        ..facts()
    };
    let needs = |bytes| prove_without_opt_in(&dynamic(bytes), &facts, &h200(), "H200").is_some();
    assert!(!needs(40_960));
    assert!(needs(40_961));
    let text = only(&dynamic(232_448 - 8_191), &facts, &h200()).to_string();
    assert!(
        text.starts_with("232449 B of shared memory (8192 static + 224257 dynamic)"),
        "{text}"
    );
}

#[test]
fn threads_are_bounded_by_device_kernel_and_registers() {
    let narrow = KernelFacts {
        registers: Some(100),
        ..facts()
    };
    let wide = only(&LaunchShape::linear(1, 416), &narrow, &h200());
    assert!(matches!(wide, LaunchRefusal::KernelThreads { allowed: 384, .. }));
    let shape = LaunchShape {
        block: [64, 32, 1],
        ..LaunchShape::linear(1, 1)
    };
    assert!(matches!(
        refuse(shape, &h200()),
        LaunchRefusal::Threads {
            given: 2048,
            allowed: 1024,
            ..
        }
    ));
    let text = refuse(LaunchShape::linear(1, 5000), &l4()).to_string();
    assert_eq!(text, "5000 threads a block; this device allows 1024; use fewer warps");
    let deep = LaunchShape {
        block: [1, 1, 65],
        ..LaunchShape::linear(1, 1)
    };
    assert!(matches!(
        refuse(deep, &h200()),
        LaunchRefusal::Axis { what: "block", .. }
    ));
    // 100 registers are allocated as 104: 1,024 threads would take 106,496.
    let hungry = KernelFacts {
        registers: Some(100),
        ..KernelFacts::default()
    };
    let refusal = only(&LaunchShape::linear(1, 1024), &hungry, &h200());
    assert!(matches!(
        refusal,
        LaunchRefusal::Registers {
            needed: 106_496,
            most: 64,
            ..
        }
    ));
}

#[test]
fn registers_are_counted_by_warp_and_partition() {
    let with = |threads, registers| {
        let facts = KernelFacts {
            registers: Some(registers),
            ..KernelFacts::default()
        };
        prove(&LaunchShape::linear(1, threads), &facts, &h200(), "H200")
    };
    assert_eq!(with(256, 255), []);
    // 12 warps of 168 registers: 3 of 5,376 in each partition of 16,384.
    assert_eq!(with(384, 168), []);
    // 9 warps count as 12: 76,800 registers, though 9 of them alone would be 57,600.
    let text = with(288, 200)[0].to_string();
    for part in ["need 76800 registers", "units of 256", "has 65536", "may have 168"] {
        assert!(text.contains(part), "{part} is missing from: {text}");
    }
    assert!(with(512, 168)[0].to_string().contains("may have 128"));
    assert!(!with(640, 104).is_empty());
    // A damaged file may claim any number.
    assert!(!with(1024, u32::MAX).is_empty());
    assert_eq!(registers_per_block(33, 1, &h200()), 1024);
    assert_eq!(registers_per_block(384, 168, &h200()), 64_512);
    // 9 warps count as 12.
    assert_eq!(registers_per_block(288, 200, &h200()), 76_800);
}

#[test]
fn zero_and_oversized_grids_are_refused() {
    let zero = refuse(LaunchShape::linear(0, 128), &h200());
    assert!(matches!(zero, LaunchRefusal::Zero { what: "grid", .. }));
    let zero = refuse(LaunchShape::linear(1, 0), &h200());
    assert!(matches!(zero, LaunchRefusal::Zero { what: "block", .. }));
    for grid in [[1, 65_536, 1], [1, 1, 65_536], [1 << 31, 1, 1]] {
        let shape = LaunchShape {
            grid,
            ..LaunchShape::linear(1, 128)
        };
        let text = refuse(shape, &h200()).to_string();
        assert!(text.contains("[2147483647, 65535, 65535]"), "{text}");
    }
    // 2^96 threads must not overflow on the way to the message.
    let shape = LaunchShape {
        block: [u32::MAX; 3],
        cluster: [u32::MAX; 3],
        ..LaunchShape::linear(1, 1)
    };
    assert!(!prove(&shape, &facts(), &h200(), "H200").is_empty());
}

#[test]
fn clusters_must_exist_divide_and_agree() {
    let cluster = |cluster, grid| LaunchShape {
        cluster,
        ..LaunchShape::linear(grid, 128)
    };
    let refusal = refuse(cluster([2, 1, 1], 2), &l4());
    assert!(matches!(refusal, LaunchRefusal::NeedsHopper { what: "clusters", .. }));
    let refusal = refuse(cluster([32, 1, 1], 32), &h200());
    assert!(matches!(
        refusal,
        LaunchRefusal::ClusterSize {
            blocks: 32,
            allowed: 16,
            ..
        }
    ));
    let refusal = refuse(cluster([2, 1, 1], 3), &h200());
    assert!(matches!(refusal, LaunchRefusal::ClusterGrid { .. }));
    let required = KernelFacts {
        required_cluster: Some([2, 1, 1]),
        ..facts()
    };
    let prove = |shape| prove(&shape, &required, &h200(), "H200");
    assert_eq!(prove(cluster([1, 1, 1], 4)), []);
    assert!(!prove(cluster([1, 1, 1], 3)).is_empty());
    assert!(!prove(cluster([4, 1, 1], 4)).is_empty());
    let dependent = LaunchShape {
        programmatic_dependent: true,
        ..LaunchShape::linear(1, 128)
    };
    assert!(matches!(refuse(dependent, &l4()), LaunchRefusal::NeedsHopper { .. }));
}

#[test]
fn code_runs_where_it_was_made_for() {
    assert_eq!(prove_code("sm_80", CodeForm::Ptx, Target::Sm89), None);
    assert_eq!(prove_code("sm_80", CodeForm::Cubin, Target::Sm89), None);
    assert!(prove_code("sm_80", CodeForm::Cubin, Target::Sm90a).is_some());
    assert!(prove_code("sm_90a", CodeForm::Ptx, Target::Sm120).is_some());
}

#[test]
fn arguments_must_match_the_parameters() {
    let prove = |given: &[u64]| prove_arguments(&facts(), given.iter().copied()).map(|refusal| refusal.what());
    assert_eq!(prove(&[8, 4]), None);
    assert_eq!(
        prove(&[8]),
        Some("1 arguments given; the kernel has 2 parameters".to_string())
    );
    assert_eq!(
        prove(&[8, 8]),
        Some("argument 1 has 8 B; the kernel's parameter has 4 B".to_string())
    );
    assert_eq!(prove_arguments(&KernelFacts::default(), [1, 2, 3].into_iter()), None);
}

#[test]
fn buffers_must_be_there_long_enough_and_aligned() {
    let spec = |name, bytes| BufferSpec {
        name,
        bytes,
        written: true,
        align: 16,
    };
    let declared = [spec("q", 1024), spec("out", 512)];
    let prove = |given: &[(u64, u64)]| prove_buffers(&declared, given).map(|refusal| refusal.what());
    assert_eq!(prove(&[(0x1000, 1024), (0x2000, 600)]), None);
    assert_eq!(prove(&[(0x1000, 1024), (0x2000, 600), (1, 1)]), None);
    assert_eq!(
        prove(&[(0x1000, 1024)]),
        Some("it needs 2 buffers (q, out); 1 given".to_string())
    );
    assert_eq!(
        prove(&[(0x1000, 1024), (0x2000, 511)]),
        Some("buffer `out` has 511 B; the kernel touches 512 B".to_string())
    );
    assert_eq!(
        prove(&[(0x1008, 1024), (0x2000, 512)]),
        Some("buffer `q` begins at 0x1008, 8 B past a multiple of 16 B".to_string())
    );
    let refusal = prove_buffers(&declared, &[(0x1008, 1024), (0x2000, 512)]).unwrap();
    assert_eq!(
        refusal.remedy(),
        "align it or copy it to aligned memory, or choose a kernel with accesses of at most 8 B (-v8)"
    );
    let argument = |slot, offset| prove_argument(3, slot, offset, &declared, &[(0x1000, 1024), (0x2000, 512)]);
    assert_eq!(argument(1, 512), None);
    assert!(matches!(
        argument(2, 0),
        Some(LaunchRefusal::Slot {
            index: 3,
            slot: 2,
            count: 2
        })
    ));
    for offset in [513, u64::MAX] {
        assert!(matches!(argument(1, offset), Some(LaunchRefusal::BufferSize { .. })));
    }
}

#[test]
fn a_launch_must_be_that_of_its_kernel() {
    let kernel = Kernel::build("pair", 32, |k| {
        k.in_clusters_of(2);
        let _n = k.param::<u32>("n");
        k.cluster_barrier();
    })
    .unwrap();
    let launch = Launch {
        grid: [4, 1, 1],
        block: [32, 1, 1],
        cluster: [2, 1, 1],
        dynamic_shared_bytes: 0,
        programmatic: false,
        buffers: Vec::new(),
        args: vec![Arg::U32(0)],
    };
    let refuse = |change: fn(&mut Launch)| {
        let mut launch = launch.clone();
        change(&mut launch);
        let refusals = prove_launch(&kernel, &launch, Target::Sm90a, None);
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        refusals[0].to_string()
    };
    assert_eq!(prove_launch(&kernel, &launch, Target::Sm90a, None), []);
    assert!(refuse(|l| l.cluster = [1, 1, 1]).contains("its cluster is [1, 1, 1]; the kernel is built for [2, 1, 1]"));
    assert_eq!(
        refuse(|l| l.block = [64, 1, 1]),
        "its block is [64, 1, 1]; the kernel is built for [32, 1, 1]; launch it so"
    );
    assert!(refuse(|l| l.args = vec![Arg::U64(0)]).contains("argument 0 is u64; parameter `n` is u32; bring"));
    assert!(refuse(|l| l.args.clear()).contains("bring one for each"));
    assert!(refuse(|l| l.programmatic = true).contains("never waits for the launch before it; call `dependency_wait`"));
    let older = prove_launch(&kernel, &launch, Target::Sm89, None);
    assert!(
        older[0].to_string().contains("made for sm_90; sm_89 cannot run it"),
        "{older:?}"
    );
}

#[test]
fn shared_memory_of_own_kernels_is_that_of_their_ledger() {
    let kernel = |rows, is_static| {
        Kernel::build("scores", 128, |k| {
            if is_static {
                k.static_shared_memory();
            }
            let tile = k.shared_tile::<f32>("scores", TileShape::new(rows, 224));
            tile.at(0, k.thread_idx()).store(0.0);
        })
        .unwrap()
    };
    let prove = |kernel: &Kernel, dynamic_shared_bytes, target| {
        let launch = Launch {
            grid: [1, 1, 1],
            block: [128, 1, 1],
            cluster: [1, 1, 1],
            dynamic_shared_bytes,
            programmatic: false,
            buffers: Vec::new(),
            args: Vec::new(),
        };
        let refusals = prove_launch(kernel, &launch, target, None);
        refusals.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let refused = prove(&kernel(64, true), 0, Target::Sm89);
    for part in [
        "57344 B of static shared memory",
        "49152 B",
        "101376 B dynamic with opt-in",
        "8192 B too much",
    ] {
        assert!(refused[0].contains(part), "{part}: {refused:?}");
    }
    let tiles = kernel(64, false);
    assert_eq!(prove(&tiles, 57_344, Target::Sm89), Vec::<String>::new());
    let short = prove(&tiles, 100, Target::Sm89);
    assert!(
        short[0].contains("the launch asks for 100 B; ask for 57344 B"),
        "{short:?}"
    );
    let long = prove(&tiles, 120_000, Target::Sm89);
    assert!(
        long[0].contains("sm_89 allows 101376 B a block, with opt-in; 18624 B too much"),
        "{long:?}"
    );
    let old = prove(&tiles, 57_344, Target::Sm75);
    assert!(old[0].contains("made for sm_80; sm_75 cannot run it"), "{old:?}");
}
