//! Launches that do not fit their kernel: each gives a typed error with its numbers.

use crate::common;

use common::Case;
use flashcore_ir::proof::LaunchRefusal;
use flashcore_ir::{Arg, Launch, TileShape};
use flashcore_sim::{SimError, simulate};

fn case() -> Case {
    Case::new(64, |k| {
        let output = k.param_ptr_mut::<f32>("output");
        let scale = k.param::<f32>("scale");
        let tile = k.shared_tile::<f32>("tile", TileShape::new(1, 64));
        let t = k.thread_idx();
        tile.at(0, t).store(scale);
        output.offset(t).store(tile.at(0, t).load());
    })
    .output("output", 256)
    .arg(Arg::F32(1.0))
}

/// The error of the launch after `spoil` has changed it.
fn error(spoil: impl FnOnce(&mut Launch)) -> SimError {
    let mut case = case();
    let mut launch = case.launch();
    spoil(&mut launch);
    simulate(&case.kernel, &launch, &mut case.buffers, &case.options).unwrap_err()
}

#[test]
fn the_unmodified_launch_is_valid() {
    let mut case = case();
    case.run_clean();
    assert_eq!(case.f32s(0), [1.0; 64]);
}

/// The refusal of the launch after `spoil` has changed it.
fn refusal(spoil: impl FnOnce(&mut Launch)) -> LaunchRefusal {
    match error(spoil) {
        SimError::Launch(refusal) => refusal,
        error => panic!("{error}"),
    }
}

#[test]
fn shapes() {
    let grid = refusal(|l| l.grid = [0, 1, 1]);
    assert!(
        matches!(
            grid,
            LaunchRefusal::Zero {
                what: "grid",
                given: [0, 1, 1]
            }
        ),
        "{grid}"
    );
    let long = refusal(|l| l.grid = [1, 70_000, 1]);
    assert!(
        matches!(
            long,
            LaunchRefusal::Axis {
                what: "grid",
                given: [1, 70_000, 1],
                ..
            }
        ),
        "{long}"
    );
    let rest = refusal(|l| l.cluster = [2, 1, 1]);
    assert!(
        matches!(rest, LaunchRefusal::ClusterGrid { cluster: [2, 1, 1], .. }),
        "{rest}"
    );
    let none = refusal(|l| l.cluster = [0, 1, 1]);
    assert!(matches!(none, LaunchRefusal::Zero { what: "cluster", .. }), "{none}");
    let many = refusal(|l| l.cluster = [32, 1, 1]);
    assert!(
        matches!(many, LaunchRefusal::ClusterSize { given: [32, 1, 1], .. }),
        "{many}"
    );
    let threads = refusal(|l| l.block = [32, 2, 1]);
    let required = LaunchRefusal::Required {
        what: "block",
        given: [32, 2, 1],
        required: [64, 1, 1],
    };
    assert_eq!(threads, required);
    let shared = refusal(|l| l.dynamic_shared_bytes = 255);
    assert_eq!(
        shared,
        LaunchRefusal::SharedRequest {
            needed: 256,
            given: 255
        }
    );
}

#[test]
fn arguments() {
    let count = refusal(|l| l.args.truncate(1));
    assert_eq!(count, LaunchRefusal::ArgumentCount { given: 1, needed: 2 });
    let number = refusal(|l| l.args[1] = Arg::U32(1));
    assert_eq!(number.what(), "argument 1 is u32; parameter `scale` is f32");
    let slot = refusal(|l| {
        l.args[0] = Arg::Buffer {
            slot: 3,
            byte_offset: 0,
        }
    });
    assert_eq!(
        slot,
        LaunchRefusal::Slot {
            index: 0,
            slot: 3,
            count: 1
        }
    );
}

#[test]
fn buffers() {
    let size = refusal(|l| l.buffers[0].bytes = 1 << 40);
    assert!(matches!(size, LaunchRefusal::BufferSize { given: 256, .. }), "{size}");
    let undeclared = refusal(|l| l.buffers.clear());
    assert_eq!(
        undeclared,
        LaunchRefusal::Slot {
            index: 0,
            slot: 0,
            count: 0
        }
    );
    let mut case = case();
    let launch = case.launch();
    let missing = simulate(&case.kernel, &launch, &mut case.buffers[..0], &case.options).unwrap_err();
    assert!(
        matches!(
            missing,
            SimError::Launch(LaunchRefusal::BufferCount {
                given: 0,
                needed: 1,
                ..
            })
        ),
        "{missing}"
    );
    let written = refusal(|l| l.buffers[0].written = false);
    assert!(matches!(written, LaunchRefusal::BufferNotWritten { .. }), "{written}");
}

#[test]
fn too_much_shared_memory() {
    let mut case = Case::new(32, |k| {
        let tile = k.shared_tile::<f32>("tile", TileShape::new(1024, 1024));
        tile.at(0, k.thread_idx()).store(0.0);
    });
    let launch = case.launch();
    let error = simulate(&case.kernel, &launch, &mut case.buffers, &case.options).unwrap_err();
    assert!(
        matches!(
            error,
            SimError::Launch(LaunchRefusal::Shared {
                dynamic_bytes: 4_194_304,
                ..
            })
        ),
        "{error}"
    );
}
