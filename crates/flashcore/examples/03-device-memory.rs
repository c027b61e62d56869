//! Attention on tensors in device memory, in a queue: what a server calls for each layer. Then the
//! same with numbers alone, as for tensors and streams of another library.
//!
//! run with: cargo run --release -p flashcore --example 03-device-memory

#![allow(unsafe_code)] // raw device addresses

use flashcore::cuda::{DeviceBuffer, DeviceSlice, Stream};
use flashcore::testing::{InputKind, Inputs};
use flashcore::{Attention, Device, DeviceTensors, Error, Mask, Problem, Queue, Tensor};

fn main() -> Result<(), Error> {
    // A decode step of Llama-3-8B: one new row for each of 4 sequences of 4,096 keys.
    let problem = Problem::builder()
        .batch(4)
        .heads(32, 8)
        .head_dim(128)
        .mask(Mask::CAUSAL);
    let problem = problem.seq_len_q(1).seq_len_kv(4096).build()?;
    let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 0);

    let device = Device::best();
    let Some(context) = device.context() else {
        let why = Device::why_not_cuda().map(|why| why.to_string());
        println!("no GPU here: {}", why.unwrap_or_default());
        return Ok(());
    };
    let attention = Attention::new(device.clone())?;
    attention.warmup(std::slice::from_ref(&problem))?; // so that no call waits for a compiler

    let mut queue = Queue::new(&device)?;
    let upload = |tensor: &Tensor| DeviceBuffer::from_host(queue.stream(), tensor.bytes());
    let (q, k, v) = (upload(&q)?, upload(&k)?, upload(&v)?);
    let out_bytes = problem.o_layout().span() * problem.out_dtype().size_bytes();
    let (out, raw_out) = (
        DeviceBuffer::new(context, out_bytes)?,
        DeviceBuffer::new(context, out_bytes)?,
    );

    let tensors = DeviceTensors::new(q.as_slice(), k.as_slice(), v.as_slice(), out.as_slice());
    attention.forward_on(&mut queue, &problem, &tensors)?; // returns at once

    let pointers = [&q, &k, &v, &raw_out].map(|buffer| buffer.as_slice().address());
    // Where the keys are split among blocks, their partial results need room.
    let bytes = attention.workspace_bytes(&problem, 16)?;
    let workspace = DeviceBuffer::new(context, bytes as usize)?;
    let (handle, room) = (queue.stream().as_raw(), workspace.as_slice().address());
    // SAFETY: buffers and stream live until the end of `main`, which waits for the stream; nothing else has the
    // workspace.
    unsafe {
        let stream = Stream::from_raw(context, handle)?;
        let tensors = DeviceTensors::from_raw(context, &problem, pointers);
        let allocate = |bytes: u64| Some(DeviceSlice::from_raw(context, room, bytes as usize));
        attention.run_foreign(&stream, &problem, &tensors, allocate)?;
    }

    let (first, second) = (
        out.to_vec::<u16>(queue.stream())?,
        raw_out.to_vec::<u16>(queue.stream())?,
    );
    assert_eq!(first, second);
    println!("{problem} on {device}: {} B of workspace", bytes);
    Ok(())
}
