//! Memory that is dropped while kernels use it, and calls of one thread while another captures.

use std::ptr;
use std::time::Instant;

use cudarc::driver::sys::{self, CUstream, CUstreamCaptureMode_enum};
use flashcore_cuda::{CudaError, DeviceBuffer, Event, Function, Graph, LaunchShape, Stream};

use super::launches::load;
use super::{Bench, KernelArg, Outcome, Own, ensure, ptx};

/// About 0.1 s of a kernel that touches nothing.
const LONG: u64 = 200_000_000;
const WORDS: usize = 1 << 20;

/// Fills as many buffers as would take the place of freed ones, and says whether another kernel wrote to them.
fn are_left_alone(stream: &Stream, until: impl FnOnce() -> Result<(), CudaError>) -> Result<bool, CudaError> {
    let fresh = || DeviceBuffer::new(stream.context(), 4 * WORDS);
    let fresh = (0..8).map(|_| fresh()).collect::<Result<Vec<_>, _>>()?;
    fresh
        .iter()
        .try_for_each(|buffer| buffer.as_slice().fill(stream, 0x55))?;
    stream.synchronize()?;
    until()?;
    for buffer in &fresh {
        if buffer.to_vec::<u32>(stream)?.iter().any(|&word| word != 0x5555_5555) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A kernel that takes long, and one that writes to a buffer after it.
struct LateWrite {
    spin: Function,
    increment: Function,
}

impl LateWrite {
    fn new(bench: &Bench) -> Result<LateWrite, CudaError> {
        Ok(LateWrite {
            spin: load(bench, ptx::SPIN, "spin")?,
            increment: load(bench, ptx::INCREMENT, "increment")?,
        })
    }

    fn put(&self, stream: &Stream, data: &DeviceBuffer) -> Result<(), CudaError> {
        let arguments = [KernelArg::Slice(data.as_slice()), KernelArg::U32(WORDS as u32)];
        let shape = LaunchShape::linear(WORDS as u32 / 256, 256);
        // SAFETY: one kernel touches nothing, the other the words of the buffer, which launches and graphs keep.
        unsafe {
            self.spin
                .launch(stream, &LaunchShape::linear(1, 32), &[KernelArg::U64(LONG)])?;
            self.increment.launch(stream, &shape, &arguments)
        }
    }
}

/// A buffer that is dropped while a kernel is still to write to it.
pub(crate) fn dropped(bench: &Bench) -> Outcome {
    let late = LateWrite::new(bench)?;
    let (first, second) = (Stream::new(&bench.context)?, Stream::new(&bench.context)?);
    let data = DeviceBuffer::from_host(&first, &vec![0u32; WORDS])?;
    let began = Instant::now();
    late.put(&first, &data)?;
    drop(data);
    let dropped_ms = began.elapsed().as_secs_f64() * 1e3;
    ensure!(
        are_left_alone(&second, || first.synchronize())?,
        "memory was used again too early"
    );
    let ended_ms = began.elapsed().as_secs_f64() * 1e3;
    ensure!(
        dropped_ms < ended_ms / 2.0,
        "dropping took {dropped_ms} of {ended_ms} ms: it waited"
    );
    Ok(format!(
        "dropped after {dropped_ms:.2} ms, the kernel ended before {ended_ms:.0} ms"
    ))
}

/// A graph that is launched after the buffer that it uses was dropped, and dropped while it runs.
pub(crate) fn of_graphs(bench: &Bench) -> Outcome {
    let late = LateWrite::new(bench)?;
    let (first, second) = (Stream::new(&bench.context)?, Stream::new(&bench.context)?);
    let data = DeviceBuffer::from_host(&first, &vec![0u32; WORDS])?;
    let graph = Graph::capture(&first, |stream| late.put(stream, &data))?;
    drop(data);
    let launched = || graph.launch(&first).and_then(|()| first.synchronize());
    ensure!(
        are_left_alone(&second, launched)?,
        "a graph wrote to memory that it does not have"
    );
    graph.launch(&first)?;
    drop(graph);
    ensure!(
        are_left_alone(&second, || first.synchronize())?,
        "a graph that was dropped wrote to others' memory"
    );
    Ok("2 launches".to_string())
}

/// Captures `stream` in the mode that PyTorch uses, which forbids all threads what may not be captured; returns whether
/// the capture was still whole after `work` of another thread.
fn survives(bench: &Bench, stream: &Stream, work: impl FnOnce() -> Result<(), String> + Send) -> Result<bool, String> {
    let raw: CUstream = ptr::without_provenance_mut(stream.as_raw());
    let fill = || DeviceBuffer::new(&bench.context, 4).and_then(|to| to.as_slice().fill(stream, 1));
    // Makes the context current in this thread.
    fill().map_err(|error| error.to_string())?;
    let global = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let context: sys::CUcontext = ptr::without_provenance_mut(bench.context.as_raw());
    // SAFETY: context and stream live until the end of this function; the graph is destroyed once.
    unsafe {
        sys::cuCtxSetCurrent(context)
            .result()
            .map_err(|error| format!("{error:?}"))?;
        sys::cuStreamBeginCapture_v2(raw, global)
            .result()
            .map_err(|error| format!("{error:?}"))?;
        let worked = std::thread::scope(|scope| scope.spawn(work).join());
        let mut graph = ptr::null_mut();
        let ended = sys::cuStreamEndCapture(raw, &mut graph).result();
        if ended.is_ok() && !graph.is_null() {
            let _ = sys::cuGraphDestroy(graph);
        }
        worked.map_err(|_| "the other thread panicked".to_string())??;
        Ok(ended.is_ok())
    }
}

/// A first call, which allocates, copies, compiles, waits and frees, while another thread captures.
/// A graph would not keep the memory of what a stream does that waits for an event of the captured one.
pub(crate) fn joined(bench: &Bench) -> Outcome {
    let (captured, other) = (Stream::new(&bench.context)?, Stream::new(&bench.context)?);
    let buffer = DeviceBuffer::new(&bench.context, 64)?;
    let (forked, joined) = (Event::new(&bench.context)?, Event::new(&bench.context)?);
    let mut refused = None;
    let graph = Graph::capture(&captured, |captured| {
        forked.record(captured)?;
        other.wait_for(&forked)?;
        refused = buffer.as_slice().fill(&other, 1).err();
        joined.record(&other)?;
        captured.wait_for(&joined)
    });
    drop(graph);
    ensure!(matches!(refused, Some(CudaError::JoinedCapture)), "{refused:?}");
    buffer.as_slice().fill(&other, 2)?; // not captured any more
    ensure!(
        buffer.to_vec::<u8>(&other)? == [2; 64],
        "the stream is of no use any more"
    );
    Ok("a stream that waits for an event of a captured one".to_string())
}

pub(crate) fn captures(bench: &Bench) -> Outcome {
    let stream = Stream::new(&bench.context)?;
    let first_call = || {
        let text = ptx::INCREMENT.replace("increment", "increment_of_a_first_call");
        let other = Stream::new(&bench.context)?;
        let function = load(bench, &text, "increment_of_a_first_call")?;
        let data = DeviceBuffer::from_host(&other, &[1u32; 100])?;
        // SAFETY: the kernel touches the buffer's 100 words.
        unsafe {
            let arguments = [KernelArg::Slice(data.as_slice()), KernelArg::U32(100)];
            function.launch(&other, &LaunchShape::linear(1, 256), &arguments)?;
        }
        let values = data.to_vec::<u32>(&other)?;
        drop(function); // or its module is still in use
        Ok::<_, CudaError>((values == [2; 100], bench.context.forget_unused_modules()))
    };
    let ours = survives(bench, &stream, || match first_call() {
        Ok((true, 1..)) => Ok(()),
        Ok((true, 0)) => Err("no unused module was forgotten".to_string()),
        Ok((false, _)) => Err("a wrong result".to_string()),
        Err(error) => Err(error.to_string()),
    })?;
    ensure!(ours, "a first call ended the capture");
    // The same by the driver's functions as they are ends it: the test can fail.
    let context = bench.context.as_raw();
    let plain = survives(bench, &stream, || {
        let mut address = 0;
        // SAFETY: the context lives; nothing is allocated where the call fails.
        unsafe {
            let _ = sys::cuCtxSetCurrent(ptr::without_provenance_mut(context));
            if sys::cuMemAlloc_v2(&mut address, 1 << 20).result().is_ok() {
                let _ = sys::cuMemFree_v2(address);
            }
        }
        Ok(())
    })?;
    ensure!(
        !plain,
        "a plain allocation did not end the capture, so this test shows nothing"
    );
    Ok("a first call during another thread's capture".to_string())
}
