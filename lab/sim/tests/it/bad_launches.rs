//! Launches that do not fit their kernel: each gives a typed error with its numbers.

use crate::common;

use common::Case;
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

#[test]
fn shapes() {
    assert_eq!(error(|l| l.grid = [0, 1, 1]), SimError::Grid([0, 1, 1]));
    assert_eq!(error(|l| l.grid = [1, 70_000, 1]), SimError::Grid([1, 70_000, 1]));
    for cluster in [[2, 1, 1], [0, 1, 1], [32, 1, 1]] {
        let error = error(|l| l.cluster = cluster);
        assert!(
            matches!(error, SimError::Cluster { given, needed: None, .. } if given == cluster),
            "{error}"
        );
    }
    let threads = error(|l| l.block = [32, 2, 1]);
    assert!(
        matches!(
            threads,
            SimError::Threads {
                expected: 64,
                given: [32, 2, 1],
                ..
            }
        ),
        "{threads}"
    );
    let shared = error(|l| l.dynamic_shared_bytes = 255);
    assert!(
        matches!(
            shared,
            SimError::SharedMemory {
                needed: 256,
                given: 255,
                ..
            }
        ),
        "{shared}"
    );
    assert!(shared.to_string().contains("requests 255 B"), "{shared}");
}

#[test]
fn arguments() {
    let count = error(|l| l.args.truncate(1));
    assert!(
        matches!(
            count,
            SimError::ArgumentCount {
                expected: 2,
                given: 1,
                ..
            }
        ),
        "{count}"
    );
    let number = error(|l| l.args[1] = Arg::U32(1));
    assert_eq!(
        number.to_string(),
        "parameter 1 `scale` is a f32, but the argument is u32"
    );
    let pointer = error(|l| l.args[0] = Arg::U64(0));
    assert_eq!(
        pointer.to_string(),
        "parameter 0 `output` is a pointer, but the argument is a number"
    );
    let slot = error(|l| {
        l.args[0] = Arg::Buffer {
            slot: 3,
            byte_offset: 0,
        }
    });
    assert_eq!(
        slot,
        SimError::NoSuchSlot {
            index: 0,
            slot: 3,
            slots: 1
        }
    );
}

#[test]
fn buffers() {
    let size = error(|l| l.buffers[0].bytes = 1 << 40);
    assert!(matches!(size, SimError::BufferSize { given: 256, .. }), "{size}");
    let count = error(|l| l.buffers.clear());
    assert_eq!(count, SimError::BufferCount { expected: 0, given: 1 });
    let written = error(|l| l.buffers[0].written = false);
    assert!(matches!(written, SimError::BufferNotWritten { .. }), "{written}");
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
        matches!(error, SimError::SharedMemoryTooLarge { needed: 4_194_304, .. }),
        "{error}"
    );
}
