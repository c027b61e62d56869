//! Graphs: captured, replayed, and failed to be captured.

use flashcore_cuda::{CudaError, DeviceBuffer, Graph, LaunchShape, Stream};

use super::launches::load;
use super::{Bench, KernelArg, Outcome, Own, ensure, ptx, refused};

pub(crate) fn replay(bench: &Bench) -> Outcome {
    let increment = load(bench, ptx::INCREMENT, "increment")?;
    let add = load(bench, ptx::VECTOR_ADD, "vector_add")?;
    let stream = &bench.stream;
    let count = DeviceBuffer::from_host(stream, &[0u32; 1000])?;
    let (a, b) = (
        DeviceBuffer::from_host(stream, &[1.25f32; 1000])?,
        DeviceBuffer::from_host(stream, &[2.5f32; 1000])?,
    );
    let out = DeviceBuffer::from_host(stream, &[0f32; 1000])?;
    let work = |stream: &Stream| {
        let counted = [KernelArg::Slice(count.as_slice()), KernelArg::U32(1000)];
        let added = [
            KernelArg::Slice(a.as_slice()),
            KernelArg::Slice(b.as_slice()),
            KernelArg::Slice(out.as_slice()),
            KernelArg::U32(1000),
        ];
        // SAFETY: both kernels touch 1,000 values of each buffer.
        unsafe {
            increment.launch(stream, &LaunchShape::linear(4, 256), &counted)?;
            add.launch(stream, &LaunchShape::linear(4, 256), &added)
        }
    };
    let graph = Graph::capture(stream, work)?;
    ensure!(
        graph.kernels().eq(["increment", "vector_add"]),
        "captured {:?}",
        graph.kernels().collect::<Vec<_>>()
    );
    ensure!(count.to_vec::<u32>(stream)? == [0; 1000], "capturing ran the work");
    for _ in 0..10 {
        graph.launch(stream)?;
    }
    ensure!(count.to_vec::<u32>(stream)? == [10; 1000], "10 replays");
    let replayed = out.to_vec::<f32>(stream)?;
    out.as_slice().fill(stream, 0)?;
    work(stream)?;
    ensure!(out.to_vec::<f32>(stream)? == replayed, "a replay and a launch differ");
    ensure!(
        count.to_vec::<u32>(stream)? == [11; 1000],
        "the launch after the replays"
    );
    let other = Stream::new(&bench.context)?;
    graph.launch(&other)?;
    other.synchronize()?;
    ensure!(count.to_vec::<u32>(stream)? == [12; 1000], "a replay on another stream");
    Ok("2 kernels, 11 replays".to_string())
}

pub(crate) fn failed_capture(bench: &Bench) -> Outcome {
    let increment = load(bench, ptx::INCREMENT, "increment")?;
    let stream = Stream::new(&bench.context)?;
    let data = DeviceBuffer::from_host(&stream, &[0u32; 10])?;
    let launch = |stream: &Stream| {
        let arguments = [KernelArg::Slice(data.as_slice()), KernelArg::U32(10)];
        // SAFETY: the kernel touches the buffer's ten words.
        unsafe { increment.launch(stream, &LaunchShape::linear(1, 256), &arguments) }
    };
    // SAFETY: 0 is the legacy default stream.
    let legacy = unsafe { Stream::from_raw(&bench.context, 0)? };
    refused(Graph::capture(&legacy, launch), &["legacy default stream"])?;
    let copied = refused(
        Graph::capture(&stream, |stream| {
            launch(stream)?;
            stream.synchronize()
        }),
        &["CUDA_ERROR_STREAM_CAPTURE"],
    )?;
    refused(
        Graph::capture(&stream, |_| increment.prove(&LaunchShape::linear(0, 1))),
        &["grid is [0, 1, 1]"],
    )?;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Graph::capture(&stream, |_| -> Result<(), CudaError> {
            std::panic::resume_unwind(Box::new(()))
        })
    }));
    ensure!(panicked.is_err(), "the panic was lost");
    let empty = Graph::capture(&stream, |_| Ok::<(), CudaError>(()))?;
    empty.launch(&stream)?;
    launch(&stream)?;
    ensure!(
        data.to_vec::<u32>(&stream)? == [1; 10],
        "captured work ran, or the stream does not work any more"
    );
    Ok(copied)
}
