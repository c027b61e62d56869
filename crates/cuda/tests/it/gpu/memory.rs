//! Memory, streams, events.

use flashcore_cuda::{DeviceBuffer, DeviceSlice, Event, LaunchShape, ModuleOptions, Stream};

use super::{Bench, KernelArg, Outcome, Own, ensure, load_ptx, ptx, refused};

pub(crate) fn copies(bench: &Bench) -> Outcome {
    let stream = &bench.stream;
    let values: Vec<u32> = (0..1_000_003).collect();
    let first = DeviceBuffer::from_host(stream, &values)?;
    let second = DeviceBuffer::new(&bench.context, first.len())?;
    second.as_slice().fill(stream, 0xab)?;
    ensure!(second.to_vec::<u8>(stream)?.iter().all(|&byte| byte == 0xab), "fill");
    second.as_slice().copy_from(stream, first.as_slice())?;
    ensure!(second.to_vec::<u32>(stream)? == values, "device to device");
    let part = second.as_slice().range(40..48)?;
    let mut two = [0u8; 8];
    part.copy_to_host(stream, &mut two)?;
    ensure!(two == [10, 0, 0, 0, 11, 0, 0, 0], "part: {two:?}");
    part.copy_from_host(stream, &[0xff; 8])?;
    let changed = second.to_vec::<u32>(stream)?;
    ensure!(
        changed[9] == 9 && changed[10] == u32::MAX && changed[11] == u32::MAX && changed[12] == 12,
        "part written"
    );

    refused(part.copy_from_host(stream, &[0; 9]), &["9 B given, 8 B needed"])?;
    refused(part.copy_to_host(stream, &mut [0; 7]), &["7 B given, 8 B needed"])?;
    refused(
        first.as_slice().range(4_000_000..4_000_013),
        &["4000000..4000013", "4000012 B"],
    )?;
    refused(
        part.copy_from(stream, first.as_slice()),
        &["4000012 B given, 8 B needed"],
    )?;
    let odd = DeviceBuffer::new(&bench.context, 7)?;
    refused(odd.to_vec::<u32>(stream), &["7 B given, 4 B needed"])?;
    let none = DeviceBuffer::from_host::<f32>(stream, &[])?;
    ensure!(
        none.is_empty() && none.to_vec::<f32>(stream)?.is_empty(),
        "an empty buffer"
    );
    // SAFETY: the memory is `first`'s, alive until the end of this function.
    let borrowed = unsafe { DeviceSlice::from_raw(&bench.context, first.as_slice().address(), 8) };
    borrowed.copy_to_host(stream, &mut two)?;
    ensure!(two == [0, 0, 0, 0, 1, 0, 0, 0], "borrowed: {two:?}");
    Ok(format!("{} B", first.len()))
}

pub(crate) fn too_much(bench: &Bench) -> Outcome {
    refused(
        DeviceBuffer::new(&bench.context, 1 << 50),
        &["cuMemAlloc", "bytes=1125899906842624", "OUT_OF_MEMORY"],
    )
}

pub(crate) fn streams(bench: &Bench) -> Outcome {
    let own = Stream::new(&bench.context)?;
    // SAFETY: `own` outlives `borrowed`.
    let borrowed = unsafe { Stream::from_raw(&bench.context, own.as_raw())? };
    // SAFETY: 0 is the legacy default stream.
    let zero = unsafe { Stream::from_raw(&bench.context, 0)? };
    // SAFETY: 1 is, too.
    let legacy = unsafe { Stream::from_raw(&bench.context, 1)? };
    let function = load_ptx(&bench.context, ptx::INCREMENT, &ModuleOptions::default())?.function("increment")?;
    let data = DeviceBuffer::from_host(&own, &[0u32; 100])?;
    for stream in [&own, &borrowed, &zero, &legacy] {
        let arguments = [KernelArg::Slice(data.as_slice()), KernelArg::U32(100)];
        // SAFETY: the kernel touches the buffer's 100 words.
        unsafe { function.launch(stream, &LaunchShape::linear(1, 256), &arguments)? };
        stream.synchronize()?;
    }
    ensure!(data.to_vec::<u32>(&own)? == [4; 100], "four increments");
    drop(borrowed);
    own.synchronize()?;
    Ok("4 kinds".to_string())
}

pub(crate) fn waiting(bench: &Bench) -> Outcome {
    let module = load_ptx(&bench.context, ptx::SPIN, &ModuleOptions::default())?;
    let increment = load_ptx(&bench.context, ptx::INCREMENT, &ModuleOptions::default())?.function("increment")?;
    let (first, second) = (Stream::new(&bench.context)?, Stream::new(&bench.context)?);
    let data = DeviceBuffer::from_host(&first, &[0u32; 64])?;
    let event = Event::new(&bench.context)?;
    // SAFETY: the kernels touch nothing, and the buffer's 64 words.
    unsafe {
        module
            .function("spin")?
            .launch(&first, &LaunchShape::linear(1, 32), &[KernelArg::U64(20_000_000)])?;
        let arguments = [KernelArg::Slice(data.as_slice()), KernelArg::U32(64)];
        increment.launch(&first, &LaunchShape::linear(1, 64), &arguments)?;
    }
    event.record(&first)?;
    second.wait_for(&event)?;
    ensure!(
        data.to_vec::<u32>(&second)? == [1; 64],
        "the second stream did not wait"
    );
    event.synchronize()?;
    let never = Event::new(&bench.context)?;
    refused(never.elapsed_ms(&event), &["cuEventElapsedTime", "INVALID_HANDLE"])?;
    Ok("ordered".to_string())
}
