//! Launches that are enqueued together may overlap.

use flashcore_cuda::{CudaError, DeviceBuffer, DeviceSlice, PreparedLaunch};
use flashcore_ir::{Arg, BufferSpec, Launch};

use super::launches::load;
use super::{Bench, Outcome, Own, enqueue_all, ensure, ptx};

const CALLS: u32 = 20;

/// Two launches, each of which stores when it began and, so many nanoseconds later, ended.
fn stamped<'a>(
    bench: &Bench,
    stamps: DeviceSlice<'a>,
    nanoseconds: [u64; 2],
) -> Result<Vec<PreparedLaunch<'a>>, CudaError> {
    let function = load(bench, ptx::STAMPED, "stamped")?;
    let prepare = |number: usize| {
        let byte_offset = 16 * number as u64;
        let launch = Launch {
            grid: [1, 1, 1],
            block: [1, 1, 1],
            cluster: [1, 1, 1],
            dynamic_shared_bytes: 0,
            programmatic: true,
            buffers: vec![BufferSpec {
                name: "stamps",
                bytes: 32,
                written: true,
                align: 8,
            }],
            args: vec![Arg::Buffer { slot: 0, byte_offset }, Arg::U64(nanoseconds[number])],
        };
        function.prepared(&launch, &[stamps])
    };
    (0..2).map(prepare).collect()
}

/// A programmatic launch begins while the one before runs.
pub(crate) fn programmatic(bench: &Bench) -> Outcome {
    if bench.context.info().compute_capability.0 < 9 {
        return Ok("no programmatic launches on this device".to_string());
    }
    if bench.context.info().cuda_version < 12_030 {
        return Ok("no programmatic launches by this driver".to_string());
    }
    let stamps = DeviceBuffer::from_host(&bench.stream, &[0u64; 4])?;
    let launches = stamped(bench, stamps.as_slice(), [2_000_000, 0])?;
    let mut overlapped = 0;
    for _ in 0..CALLS {
        enqueue_all(&launches, &bench.stream)?;
        let [_, first_ended, second_began, _] = stamps.to_vec::<u64>(&bench.stream)?[..] else {
            return Err("four stamps".into());
        };
        overlapped += u32::from(second_began < first_ended);
    }
    // The device is asked to let them overlap, and need not.
    ensure!(overlapped > 0, "{overlapped} of {CALLS} calls overlapped");
    Ok(format!("{overlapped} of {CALLS} calls overlapped"))
}
