//! Launches that are enqueued together: replayed as graphs after the first calls, and the same as launched one by one.

use std::sync::atomic::{AtomicU32, Ordering};

use flashcore_cuda::{
    Context, CudaError, DeviceBuffer, DeviceSlice, Function, Graph, KernelArg, LaunchShape, PreparedLaunch, Stream,
};
use flashcore_ir::{Arg, BufferSpec, Launch};

use super::launches::load;
use super::{Bench, Outcome, Own, enqueue, enqueue_all, ensure, ptx, refused};

/// More calls than are launched one by one.
const CALLS: u32 = 20;

/// A kernel that adds 1 to words, and how to launch it.
struct Increment {
    function: Function,
    programmatic: bool,
}

impl Increment {
    fn new(bench: &Bench) -> Result<Increment, CudaError> {
        let programmatic = bench.context.info().compute_capability.0 >= 9;
        let (ptx, name) = match programmatic {
            true => (ptx::DEPENDENT_INCREMENT, "dependent_increment"),
            false => (ptx::INCREMENT, "increment"),
        };
        let function = load(bench, ptx, name)?;
        Ok(Increment { function, programmatic })
    }

    fn launch(&self, words: u32) -> Launch {
        Launch {
            grid: [words.div_ceil(256), 1, 1],
            block: [256, 1, 1],
            cluster: [1, 1, 1],
            dynamic_shared_bytes: 0,
            programmatic: self.programmatic,
            buffers: vec![BufferSpec {
                name: "data",
                bytes: u64::from(4 * words),
                written: true,
                align: 4,
            }],
            args: vec![
                Arg::Buffer {
                    slot: 0,
                    byte_offset: 0,
                },
                Arg::U32(words),
            ],
        }
    }

    /// So many launches, on that many words each.
    fn prepare<'a>(
        &self,
        data: DeviceSlice<'a>,
        words: u32,
        count: usize,
    ) -> Result<Vec<PreparedLaunch<'a>>, CudaError> {
        let prepared = self.function.prepared(&self.launch(words), &[data])?;
        Ok(vec![prepared; count])
    }
}

fn zeros(stream: &Stream, words: u32) -> Result<DeviceBuffer, CudaError> {
    DeviceBuffer::from_host(stream, &vec![0u32; words as usize])
}

/// Graphs that appear, unless the driver has none of these or the environment forbids them.
pub(crate) fn expected(bench: &Bench, graphs: usize) -> usize {
    let replays = bench.context.info().cuda_version >= 12_030;
    match replays && std::env::var_os("FLASHCORE_PLAIN_LAUNCHES").is_none() {
        true => graphs,
        false => 0,
    }
}

fn forget(context: &Context) -> Outcome {
    context.forget_unused_modules();
    ensure!(context.kept_graphs() == 0, "{} graphs stay", context.kept_graphs());
    Ok(String::new())
}

/// Tensors, lengths, grids and shared memory change from call to call, and the graph is the same.
pub(crate) fn arguments(bench: &Bench) -> Outcome {
    const WORDS: u32 = 5000;
    forget(&bench.context)?;
    let increment = Increment::new(bench)?;
    let buffers = (0..4).map(|_| zeros(&bench.stream, WORDS));
    let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
    let mut counts = vec![vec![0u32; WORDS as usize]; buffers.len()];
    let most_shared = bench.context.info().limits.shared_per_block;
    for call in 0..200 {
        // Equal calls follow each other, too.
        let number = call / 3;
        let (first, second) = (number % 4, number * 3 % 4);
        let words = [1 + number as u32 * 61 % WORDS, 1 + number as u32 * 977 % WORDS];
        let mut launches = Vec::new();
        for (buffer, words) in [first, second].into_iter().zip(words) {
            let mut launch = increment.launch(words);
            launch.dynamic_shared_bytes = [0, 1024, 40_000, most_shared][number / 16 % 4];
            launches.push(increment.function.prepared(&launch, &[buffers[buffer].as_slice()])?);
            for count in &mut counts[buffer][..words as usize] {
                *count += 1;
            }
        }
        enqueue_all(&launches, &bench.stream)?;
    }
    for (buffer, counts) in buffers.iter().zip(&counts) {
        ensure!(buffer.to_vec::<u32>(&bench.stream)? == *counts, "increments differ");
    }
    let kept = bench.context.kept_graphs();
    ensure!(kept == expected(bench, 1), "{kept} graphs");
    Ok(format!("200 calls, {kept} graph"))
}

/// Streams do not share graphs, whether they have a priority or are the default stream.
pub(crate) fn streams(bench: &Bench) -> Outcome {
    forget(&bench.context)?;
    let increment = Increment::new(bench)?;
    let own = Stream::new(&bench.context)?;
    // SAFETY: the default streams, and one that lives longer.
    let borrowed = unsafe { [own.as_raw(), 0, 2].map(|handle| Stream::from_raw(&bench.context, handle)) };
    let [same, default, of_thread] = borrowed;
    let streams = [
        (own, 1),
        (same?, 1),
        (Stream::new(&bench.context)?, 2),
        (Stream::with_priority(&bench.context, i32::MIN)?, 3),
        (default?, 4),
        // Its handle is that of other threads' streams.
        (of_thread?, 4),
    ];
    for (stream, graphs) in &streams {
        let data = zeros(stream, 1000)?;
        let launches = increment.prepare(data.as_slice(), 1000, 3)?;
        for _ in 0..CALLS {
            enqueue_all(&launches, stream)?;
        }
        ensure!(data.to_vec::<u32>(stream)? == [3 * CALLS; 1000], "{stream:?}");
        let kept = bench.context.kept_graphs();
        ensure!(kept == expected(bench, *graphs), "{kept} graphs after {stream:?}");
    }
    Ok(format!("{} streams", streams.len()))
}

/// A stream that is captured records single launches, whoever captures it. Meanwhile other streams get their graphs.
pub(crate) fn captures(bench: &Bench) -> Outcome {
    forget(&bench.context)?;
    let increment = Increment::new(bench)?;
    let (stream, other) = (&bench.stream, Stream::new(&bench.context)?);
    let (data, aside) = (zeros(stream, 1000)?, zeros(stream, 1000)?);
    let launches = increment.prepare(data.as_slice(), 1000, 2)?;
    let on_aside = increment.prepare(aside.as_slice(), 1000, 2)?;
    for _ in 0..CALLS {
        enqueue_all(&launches, stream)?;
    }
    // SAFETY: the stream outlives it.
    let theirs = unsafe { Stream::from_raw(&bench.context, stream.as_raw())? };
    let mut graphs = Vec::new();
    for by in [stream, &theirs] {
        graphs.push(Graph::capture(stream, |_| {
            enqueue_all(&launches, by)?;
            (0..CALLS).try_for_each(|_| enqueue_all(&on_aside, &other))
        })?);
    }
    ensure!(graphs[0].kernels().count() == 2, "captured {:?}", graphs[0]);
    let kept = bench.context.kept_graphs();
    ensure!(kept == expected(bench, 2), "{kept} graphs");
    for _ in 0..5 {
        enqueue_all(&launches, stream)?;
        graphs.iter().try_for_each(|graph| graph.launch(stream))?;
    }
    ensure!(
        data.to_vec::<u32>(stream)? == [2 * CALLS + 30; 1000],
        "captured and replayed"
    );
    ensure!(aside.to_vec::<u32>(&other)? == [4 * CALLS; 1000], "meanwhile");
    Ok(format!("{kept} graphs, 2 captures"))
}

/// Threads with streams of their own, two of them with the same one.
pub(crate) fn threads(bench: &Bench) -> Outcome {
    const THREADS: usize = 8;
    forget(&bench.context)?;
    let increment = Increment::new(bench)?;
    let streams = (1..THREADS).map(|_| Stream::new(&bench.context));
    let streams = streams.collect::<Result<Vec<_>, _>>()?;
    let wrong = AtomicU32::new(0);
    let work = |thread: usize| -> Result<(), CudaError> {
        let stream = &streams[thread % streams.len()];
        let buffers = [zeros(stream, 1000)?, zeros(stream, 2000)?];
        let launches = [
            increment.prepare(buffers[0].as_slice(), 1000, 2)?,
            increment.prepare(buffers[1].as_slice(), 2000, 2)?,
        ];
        for call in 0..200 {
            enqueue_all(&launches[call % 2], stream)?;
        }
        for buffer in &buffers {
            let counts = buffer.to_vec::<u32>(stream)?;
            wrong.fetch_add(counts.iter().filter(|&&n| n != 200).count() as u32, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || work(n))).collect();
        let mut ended = threads.into_iter().map(|thread| thread.join());
        ended.try_for_each(|result| result.unwrap_or_else(|_| panic!("a thread panicked")))
    })?;
    ensure!(wrong.load(Ordering::Relaxed) == 0, "{wrong:?} words are wrong");
    let kept = bench.context.kept_graphs();
    ensure!(kept == expected(bench, streams.len()), "{kept} graphs");
    Ok(format!("{THREADS} threads, {kept} graphs"))
}

/// As many calls as make a graph, in a process of their own.
pub(crate) fn graphs_kept(bench: &Bench) -> Outcome {
    let increment = Increment::new(bench)?;
    let data = zeros(&bench.stream, 1000)?;
    let launches = increment.prepare(data.as_slice(), 1000, 2)?;
    for _ in 0..CALLS {
        enqueue_all(&launches, &bench.stream)?;
    }
    ensure!(data.to_vec::<u32>(&bench.stream)? == [2 * CALLS; 1000], "lost");
    Ok(format!("{} graphs", bench.context.kept_graphs()))
}

/// More sequences than are kept; those that are used stay.
pub(crate) fn many(bench: &Bench) -> Outcome {
    const SEQUENCES: usize = 80;
    forget(&bench.context)?;
    let increment = Increment::new(bench)?;
    let data = zeros(&bench.stream, 100)?;
    let mut expect = 0;
    let mut most = 0;
    for count in 1..SEQUENCES {
        let launches = increment.prepare(data.as_slice(), 100, count)?;
        for _ in 0..CALLS {
            enqueue_all(&launches, &bench.stream)?;
            expect += count as u32;
        }
        most = most.max(bench.context.kept_graphs());
    }
    ensure!(
        data.to_vec::<u32>(&bench.stream)? == [expect; 100],
        "increments were lost"
    );
    ensure!(most == expected(bench, 32), "{most} graphs");
    Ok(format!("{} sequences, at most {most} graphs", SEQUENCES - 1))
}

/// Kernels of a graph have their clusters, and what the driver refuses is told as of a launch.
pub(crate) fn clusters(bench: &Bench) -> Outcome {
    if bench.context.info().limits.cluster_blocks == 1 {
        return Ok("no clusters on this device".to_string());
    }
    forget(&bench.context)?;
    let rank = load(bench, ptx::CLUSTER, "cluster_rank")?;
    let increment = Increment::new(bench)?;
    let launch = |size, grid| Launch {
        grid: [grid, 1, 1],
        block: [32, 1, 1],
        cluster: [size, 1, 1],
        ..increment.launch(32)
    };
    let out = zeros(&bench.stream, 32)?;
    let prepare = |size, grid| {
        let mut launch = launch(size, grid);
        (launch.programmatic, launch.args) = (
            false,
            vec![Arg::Buffer {
                slot: 0,
                byte_offset: 0,
            }],
        );
        let first = rank.prepared(&launch, &[out.as_slice()])?;
        let second = increment.function.prepared(&increment.launch(32), &[out.as_slice()])?;
        Ok::<_, CudaError>([first, second])
    };
    for size in [1u32, 2, 4, 8, 16] {
        let launches = [prepare(size, 16)?, prepare(size, 32)?];
        for call in 0..CALLS as usize {
            // Also after new arguments.
            enqueue_all(&launches[call % 2], &bench.stream)?;
        }
        let ranks = out.to_vec::<u32>(&bench.stream)?;
        let expected: Vec<u32> = (0..32).map(|block| 256 * size + block % size + 1).collect();
        ensure!(ranks == expected, "cluster of {size}: {ranks:?}");
    }
    let kept = bench.context.kept_graphs();
    ensure!(kept == expected(bench, 5), "{kept} graphs");
    refused(prepare(2, 31).map(drop), &["cluster"])
}

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

/// A programmatic launch of a graph begins while the one before runs.
pub(crate) fn overlap(bench: &Bench) -> Outcome {
    if bench.context.info().compute_capability.0 < 9 {
        return Ok("no programmatic launches on this device".to_string());
    }
    if bench.context.info().cuda_version < 12_030 {
        return Ok("no programmatic launches by this driver".to_string());
    }
    forget(&bench.context)?;
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
    let replayed = bench.context.kept_graphs();
    ensure!(replayed == expected(bench, 1), "{replayed} graphs");
    // The device is asked to let them overlap, and need not: the calls without a graph are eight.
    ensure!(overlapped > 8, "{overlapped} of {CALLS} calls overlapped");
    Ok(format!("{overlapped} of {CALLS} calls overlapped"))
}

/// A graph has the priority of its stream: its blocks do not wait for all of another stream's.
pub(crate) fn priority(bench: &Bench) -> Outcome {
    if bench.context.info().compute_capability.0 < 9 {
        return Ok("no programmatic launches on this device".to_string());
    }
    forget(&bench.context)?;
    let spin = load(bench, ptx::SPIN, "spin")?;
    let urgent = Stream::with_priority(&bench.context, i32::MIN)?;
    let stamps = DeviceBuffer::from_host(&urgent, &[0u64; 4])?;
    let around = DeviceBuffer::from_host(&bench.stream, &[0u64; 4])?;
    let launches = stamped(bench, stamps.as_slice(), [0, 0])?;
    for _ in 0..CALLS {
        enqueue_all(&launches, &urgent)?;
    }
    urgent.synchronize()?;
    let before_and_after = stamped(bench, around.as_slice(), [0, 0])?;
    enqueue(&before_and_after[0], &bench.stream)?;
    // Twenty times as many blocks as fit on the device at a time.
    let shape = LaunchShape::linear(bench.context.info().multiprocessors * 2 * 20, 1024);
    // SAFETY: the kernel touches no memory.
    unsafe { spin.launch(&bench.stream, &shape, &[KernelArg::U64(1_000_000)])? };
    enqueue(&before_and_after[1], &bench.stream)?;
    enqueue_all(&launches, &urgent)?;
    let [began, .., ended] = around.to_vec::<u64>(&bench.stream)?[..] else {
        return Err("four stamps".into());
    };
    let done = stamps.to_vec::<u64>(&urgent)?[3];
    let kept = bench.context.kept_graphs();
    ensure!(kept == expected(bench, 1), "{kept} graphs");
    ensure!(
        done < began.midpoint(ended),
        "{began} to {ended}, and the urgent one at {done}"
    );
    Ok(format!(
        "after {} of {} µs",
        done.saturating_sub(began) / 1000,
        (ended - began) / 1000
    ))
}
