//! Launches, graphs, timing.

use std::time::Instant;

use flashcore_cuda::{DeviceBuffer, Event, Function, Graph, LaunchShape, ModuleOptions, TensorMap};
use flashcore_ir::{Arg, BufferSpec, Kernel, Launch, ScalarType, Swizzle, TensorMapRecipe};

use super::{Bench, KernelArg, Outcome, Own, enqueue, enqueue_all, ensure, launch_of, load_ptx, ptx, refused};

pub(crate) fn load(bench: &Bench, ptx: &str, name: &str) -> Result<Function, flashcore_cuda::CudaError> {
    load_ptx(&bench.context, ptx, &ModuleOptions::default())?.function(name)
}

pub(crate) fn vector_add(bench: &Bench) -> Outcome {
    let function = load(bench, ptx::VECTOR_ADD, "vector_add")?;
    let stream = &bench.stream;
    let sizes = [1usize, 31, 32, 33, 255, 256, 257, 1000, 65_537, 1_000_003];
    for n in sizes {
        let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let b: Vec<f32> = (0..n).map(|i| 0.5 - 2.0 * i as f32).collect();
        let (a_device, b_device) = (
            DeviceBuffer::from_host(stream, &a)?,
            DeviceBuffer::from_host(stream, &b)?,
        );
        // One value more than the kernel may write, to see that it does not.
        let out = DeviceBuffer::new(&bench.context, 4 * (n + 1))?;
        out.as_slice().fill(stream, 0xff)?;
        let arguments = [
            KernelArg::Slice(a_device.as_slice()),
            KernelArg::Slice(b_device.as_slice()),
            KernelArg::Slice(out.as_slice()),
            KernelArg::U32(n as u32),
        ];
        let blocks = n.div_ceil(256) as u32;
        // SAFETY: the kernel touches n values of each buffer.
        unsafe { function.launch(stream, &LaunchShape::linear(blocks, 256), &arguments)? };
        let sums = out.to_vec::<f32>(stream)?;
        ensure!((0..n).all(|i| sums[i] == a[i] + b[i]), "wrong sums at n = {n}");
        ensure!(sums[n].to_bits() == u32::MAX, "wrote past the end at n = {n}");
    }
    Ok(format!("sizes {sizes:?}"))
}

pub(crate) fn arguments(bench: &Bench) -> Outcome {
    let function = load(bench, ptx::ECHO, "echo")?;
    let out = DeviceBuffer::from_host(&bench.stream, &[0u64; 5])?;
    let arguments = [
        KernelArg::Slice(out.as_slice()),
        KernelArg::U32(0xdead_beef),
        KernelArg::I32(-2),
        KernelArg::U64(0x0123_4567_89ab_cdef),
        KernelArg::U64(-3i64 as u64),
        KernelArg::F32(1.5),
    ];
    // SAFETY: the kernel writes the buffer's five words.
    unsafe { function.launch(&bench.stream, &LaunchShape::linear(1, 1), &arguments)? };
    let echoed = out.to_vec::<u64>(&bench.stream)?;
    let expected = [
        0xdead_beef,
        u64::from(-2i32 as u32),
        0x0123_4567_89ab_cdef,
        -3i64 as u64,
        1.5f32.to_bits().into(),
    ];
    ensure!(echoed == expected, "{echoed:x?}, not {expected:x?}");
    Ok("u32 i32 u64 f32".to_string())
}

pub(crate) fn wrong_arguments(bench: &Bench) -> Outcome {
    let function = load(bench, ptx::ECHO, "echo")?;
    let launch = |arguments: &[KernelArg<'_>]| {
        // SAFETY: none of these launches happens.
        unsafe { function.launch(&bench.stream, &LaunchShape::linear(1, 1), arguments) }
    };
    refused(
        launch(&[]),
        &["`echo`", "0 arguments given; the kernel has 6 parameters"],
    )?;
    refused(launch(&[KernelArg::U64(0); 7]), &["7 arguments given"])?;
    refused(
        launch(&[KernelArg::U64(0); 6]),
        &["argument 1 has 8 B; the kernel's parameter has 4 B"],
    )
}

pub(crate) fn shapes(bench: &Bench) -> Outcome {
    let function = load(bench, ptx::INCREMENT, "increment")?;
    let prove = |shape: LaunchShape| function.prove(&shape);
    let base = LaunchShape::linear(1, 128);
    refused(prove(LaunchShape::linear(0, 128)), &["grid is [0, 1, 1]"])?;
    refused(prove(LaunchShape::linear(1, 0)), &["block is [0, 1, 1]"])?;
    refused(prove(LaunchShape::linear(1, 1025)), &["1025", "1024"])?;
    refused(
        prove(LaunchShape {
            block: [64, 32, 1],
            ..base
        }),
        &["2048 threads", "1024"],
    )?;
    refused(prove(LaunchShape::linear(1, 512)), &["512 threads", "at most 256"])?;
    refused(
        prove(LaunchShape {
            grid: [1, 65_536, 1],
            ..base
        }),
        &["65536", "65535"],
    )?;
    refused(
        prove(LaunchShape {
            cluster: [2, 1, 1],
            grid: [3, 1, 1],
            ..base
        }),
        &["cluster"],
    )?;
    let optin = bench.context.info().limits.shared_per_block;
    refused(
        prove(LaunchShape {
            dynamic_shared_bytes: optin + 1,
            ..base
        }),
        &["opt-in", "1 B too much"],
    )
}

pub(crate) fn dynamic_shared(bench: &Bench) -> Outcome {
    let function = load(bench, ptx::DYNAMIC_SHARED, "dynamic_shared")?;
    let optin = bench.context.info().limits.shared_per_block;
    // Up, down and up again: the opt-in is remembered, and smaller launches still work.
    let sizes = [16, 49_152, 49_168, 4096, optin, 65_536];
    for bytes in sizes {
        let out = DeviceBuffer::from_host(&bench.stream, &[0u32; 7])?;
        let last = bytes - 4;
        let arguments = [KernelArg::Slice(out.as_slice()), KernelArg::U32(last)];
        let shape = LaunchShape {
            dynamic_shared_bytes: bytes,
            ..LaunchShape::linear(7, 32)
        };
        // SAFETY: the kernel writes one word a block, and its shared memory up to `bytes`.
        unsafe { function.launch(&bench.stream, &shape, &arguments)? };
        ensure!(out.to_vec::<u32>(&bench.stream)? == [last + 7; 7], "wrong at {bytes} B");
    }
    Ok(format!("{sizes:?} B"))
}

pub(crate) fn clusters(bench: &Bench) -> Outcome {
    if bench.context.info().limits.cluster_blocks == 1 {
        let shape = LaunchShape {
            cluster: [2, 1, 1],
            ..LaunchShape::linear(2, 32)
        };
        return refused(
            load(bench, ptx::INCREMENT, "increment")?.prove(&shape),
            &["compute capability 9.0"],
        );
    }
    let function = load(bench, ptx::CLUSTER, "cluster_rank")?;
    for size in [1u32, 2, 4, 8, 16] {
        let out = DeviceBuffer::from_host(&bench.stream, &[0u32; 32])?;
        let shape = LaunchShape {
            cluster: [size, 1, 1],
            ..LaunchShape::linear(32, 32)
        };
        // SAFETY: the kernel writes one word a block.
        unsafe { function.launch(&bench.stream, &shape, &[KernelArg::Slice(out.as_slice())])? };
        let ranks = out.to_vec::<u32>(&bench.stream)?;
        let expected: Vec<u32> = (0..32).map(|block| 256 * size + block % size).collect();
        ensure!(ranks == expected, "cluster of {size}: {ranks:?}");
    }
    Ok("1, 2, 4, 8, 16 blocks".to_string())
}

pub(crate) fn dependent(bench: &Bench) -> Outcome {
    let shape = LaunchShape {
        programmatic_dependent: true,
        ..LaunchShape::linear(400, 256)
    };
    if bench.context.info().compute_capability.0 < 9 {
        return refused(
            load(bench, ptx::INCREMENT, "increment")?.prove(&shape),
            &["compute capability 9.0"],
        );
    }
    let function = load(bench, ptx::DEPENDENT_INCREMENT, "dependent_increment")?;
    let data = DeviceBuffer::from_host(&bench.stream, &vec![0u32; 100_000])?;
    let arguments = [KernelArg::Slice(data.as_slice()), KernelArg::U32(100_000)];
    let (launch, buffers) = launch_of(&shape, &arguments);
    let launches = vec![function.prepared(&launch, &buffers)?; 50];
    enqueue_all(&launches, &bench.stream)?;
    ensure!(
        data.to_vec::<u32>(&bench.stream)?.iter().all(|&value| value == 50),
        "increments were lost"
    );
    Ok("50 launches".to_string())
}

pub(crate) fn tensor_map(bench: &Bench) -> Outcome {
    const BATCH: usize = 2;
    const SEQ: usize = 75;
    const HEADS: usize = 3;
    const DIM: usize = 64;
    const ROWS: usize = 32;
    // Contiguous [batch, seq, heads, dim] in 16-bit elements that tell where they are from.
    let values: Vec<u16> = (0..BATCH * SEQ * HEADS * DIM).map(|i| i as u16).collect();
    let tensor = DeviceBuffer::from_host(&bench.stream, &values)?;
    let recipe = TensorMapRecipe {
        slot: 0,
        byte_offset: 0,
        element: ScalarType::F16,
        dims: vec![DIM as u64, SEQ as u64, HEADS as u64, BATCH as u64],
        byte_strides: vec![
            (HEADS * DIM * 2) as u64,
            (DIM * 2) as u64,
            (SEQ * HEADS * DIM * 2) as u64,
        ],
        box_dims: vec![64, ROWS as u32, 1, 1],
        swizzle: Swizzle::B128,
        ragged: None,
    };
    if bench.context.info().compute_capability.0 < 9 {
        return refused(
            TensorMap::encode(&bench.context, &recipe, tensor.as_slice()),
            &["compute capability 9.0"],
        );
    }
    let short = tensor.as_slice().range(0..tensor.len() - 2)?;
    refused(
        TensorMap::encode(&bench.context, &recipe, short),
        &["reaches over 57600 B", "57598 B there"],
    )?;

    let function = load(bench, ptx::TENSOR_MAP, "copy_box")?;
    let tiles = SEQ.div_ceil(ROWS);
    let out = DeviceBuffer::new(&bench.context, tiles * HEADS * BATCH * ROWS * DIM * 2)?;
    out.as_slice().fill(&bench.stream, 0xff)?;
    let shape = LaunchShape {
        grid: [tiles as u32, HEADS as u32, BATCH as u32],
        ..LaunchShape::linear(1, 128)
    };
    // The kernel writes 4,096 B a block, which is what `out` has; the map covers the tensor.
    let buffers = [KernelArg::Slice(tensor.as_slice()), KernelArg::Slice(out.as_slice())];
    let (mut launch, buffers) = launch_of(&shape, &buffers);
    launch.args[0] = Arg::TensorMap(recipe);
    function.ran(&bench.stream, &launch, &buffers)?;
    let boxes = out.to_vec::<u16>(&bench.stream)?;
    for (index, &got) in boxes.iter().enumerate() {
        let (row, column) = (index / DIM % ROWS, index % DIM);
        let (tile, head, batch) = (
            index / (DIM * ROWS) % tiles,
            index / (DIM * ROWS * tiles) % HEADS,
            index / (DIM * ROWS * tiles * HEADS),
        );
        // 128-byte swizzle: the 16-byte piece's number is xored with the row's, modulo 8.
        let dim = ((column / 8) ^ (row % 8)) * 8 + column % 8;
        let seq = tile * ROWS + row;
        let expected = if seq < SEQ {
            values[((batch * SEQ + seq) * HEADS + head) * DIM + dim]
        } else {
            0
        };
        ensure!(
            got == expected,
            "batch {batch} head {head} seq {seq} dim {dim}: {got}, not {expected}"
        );
    }
    Ok(format!(
        "{} boxes, {} rows past the end zeroed",
        tiles * HEADS * BATCH,
        tiles * ROWS - SEQ
    ))
}

fn elapsed_ms(
    bench: &Bench,
    work: impl FnOnce() -> Result<(), flashcore_cuda::CudaError>,
) -> Result<f32, flashcore_cuda::CudaError> {
    let (start, end) = (Event::new(&bench.context)?, Event::new(&bench.context)?);
    start.record(&bench.stream)?;
    work()?;
    end.record(&bench.stream)?;
    end.synchronize()?;
    start.elapsed_ms(&end)
}

pub(crate) fn timing(bench: &Bench) -> Outcome {
    let spin = load(bench, ptx::SPIN, "spin")?;
    let run = |cycles: u64| {
        // SAFETY: the kernel touches no memory.
        elapsed_ms(bench, || unsafe {
            spin.launch(&bench.stream, &LaunchShape::linear(1, 32), &[KernelArg::U64(cycles)])
        })
    };
    // Wakes the clocks up.
    run(200_000_000)?;
    // The least of each: other processes on the GPU can only make them longer.
    let (mut short, mut long) = (f32::MAX, f32::MAX);
    for _ in 0..20 {
        let host = Instant::now();
        let (first, second) = (run(10_000_000)?, run(40_000_000)?);
        let host_ms = host.elapsed().as_secs_f32() * 1e3;
        ensure!(
            first + second < host_ms * 1.02 + 0.1,
            "{first} + {second} ms by events, {host_ms} ms by the host's clock"
        );
        (short, long) = (short.min(first), long.min(second));
    }
    let ratio = long / short;
    ensure!(
        (3.6..4.4).contains(&ratio),
        "four times the cycles took {ratio} times as long: {short} and {long} ms"
    );
    let ghz = 40_000_000.0 / (long * 1e6);
    let most = bench.context.info().sm_clock_khz as f32 / 1e6;
    ensure!(
        ghz > 0.1 && ghz < most * 1.05,
        "that would be {ghz} GHz; the most is {most}"
    );
    Ok(format!("{short:.3} and {long:.3} ms, {ghz:.2} GHz"))
}

pub(crate) fn overhead(bench: &Bench) -> Outcome {
    const LAUNCHES: u32 = 5000;
    let nothing = load(bench, ptx::SPIN, "nothing")?;
    let shape = LaunchShape::linear(1, 32);
    // SAFETY: the kernel does nothing.
    let launch = || unsafe { nothing.launch(&bench.stream, &shape, &[]) };
    (0..100).try_for_each(|_| launch())?;
    bench.stream.synchronize()?;
    let host = Instant::now();
    let ms = elapsed_ms(bench, || (0..LAUNCHES).try_for_each(|_| launch()))?;
    let host_us = host.elapsed().as_secs_f64() * 1e6 / f64::from(LAUNCHES);
    let graph = Graph::capture(&bench.stream, |_| (0..100).try_for_each(|_| launch()))?;
    graph.upload(&bench.stream)?;
    graph.launch(&bench.stream)?;
    bench.stream.synchronize()?;
    let graph_ms = elapsed_ms(bench, || (0..50).try_for_each(|_| graph.launch(&bench.stream)))?;
    Ok(format!(
        "empty kernel {:.2} µs a launch by events, {host_us:.2} µs by the host; {:.2} µs in a graph of 100",
        ms * 1e3 / LAUNCHES as f32,
        graph_ms * 1e3 / 5000.0
    ))
}

pub(crate) fn threads(bench: &Bench) -> Outcome {
    let work = || {
        let bench = Bench::new().map_err(|error| error.to_string())?;
        vector_add(&bench).map_err(|error| error.to_string())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result.map(|_| ()),
            Err(_) => Err("a thread panicked".to_string()),
        })
    })?;
    bench.stream.synchronize()?;
    Ok("no context current beforehand, right sums".to_string())
}

pub(crate) fn kernel_language(bench: &Bench) -> Outcome {
    let kernel = Kernel::build("add_one", 128, |k| {
        let data = k.param_ptr_mut::<f32>("data");
        let len = k.param::<u32>("len");
        let i = k.block_idx(0) * 128 + k.thread_idx();
        k.if_(i.lt(len).divergent(), || {
            let at = data.offset(i);
            at.store(at.load() + 1.0);
        });
    })?;
    let launch = Launch {
        grid: [8, 1, 1],
        block: [128, 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared_bytes: 0,
        programmatic: false,
        buffers: vec![BufferSpec {
            name: "data",
            bytes: 4000,
            written: true,
            align: 4,
        }],
        args: vec![
            Arg::Buffer {
                slot: 0,
                byte_offset: 0,
            },
            Arg::U32(1000),
        ],
    };
    let function = Function::load(&bench.context, &kernel, &ModuleOptions::default())?;
    let data = DeviceBuffer::from_host(&bench.stream, &[41f32; 1000])?;
    function.ran(&bench.stream, &launch, &[data.as_slice()])?;
    let prepared = function.prepared(&launch, &[data.as_slice()])?;
    enqueue(&prepared, &bench.stream)?;
    let graph = Graph::capture(&bench.stream, |stream| enqueue(&prepared, stream))?;
    graph.launch(&bench.stream)?;
    ensure!(data.to_vec::<f32>(&bench.stream)? == [44.0; 1000], "three runs");
    refused(
        function.ran(&bench.stream, &launch, &[]),
        &["`add_one`", "needs 1 buffers (data); 0 given"],
    )?;
    let short = data.as_slice().range(0..3996)?;
    refused(
        function.ran(&bench.stream, &launch, &[short]),
        &["buffer `data` has 3996 B", "4000 B"],
    )?;
    let wide = Launch {
        block: [256, 1, 1],
        ..launch.clone()
    };
    refused(
        function.ran(&bench.stream, &wide, &[data.as_slice()]),
        &["256 threads", "at most 128"],
    )?;
    let lines = ModuleOptions {
        line_info: true,
        ..ModuleOptions::default()
    };
    let lined = Function::load(&bench.context, &kernel, &lines)?;
    ensure!(
        lined.module().identity() == function.module().identity(),
        "lines changed the identity"
    );
    Ok(format!("{:?}", function.attributes()))
}
