//! Attention on tensors in device memory, in a queue.
//!
//! run with: cargo run --release -p flashcore --example 03-device-memory

use flashcore::{Attention, DType, Device, Error, Problem, Queue, Tensor};

fn main() -> Result<(), Error> {
    let device = Device::cuda(0)?;
    let (attention, mut queue) = (Attention::new(device.clone())?, Queue::new(&device)?);
    let wave = |b: usize, s: usize, h: usize, d: usize| ((b + s + h + d) as f32).sin();
    let rows = |heads| Tensor::from_fn(DType::F16, [2, 512, heads, 64].into(), wave);
    let (q, k) = (queue.upload(&rows(8))?, queue.upload(&rows(2))?);
    let problem = Problem::of(&q, &k, &k).causal().build()?;
    let output = attention.forward_on(&mut queue, &problem, &q, &k, &k)?; // returns at once
    println!(
        "{problem} on {device}: {}",
        queue.download(&output.out)?.view().get(1, 511, 7, 0)
    );
    Ok(())
}
