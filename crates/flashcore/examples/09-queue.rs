//! A queue keeps the workspace that kernels need, for all calls in it: here the layers of a decode step.
//!
//! run with: cargo run --release -p flashcore --example 09-queue

use flashcore::{Attention, DType, Device, Error, KvLengths, Name, Operands, Problem, Queue, Tensor};

fn main() -> Result<(), Error> {
    let device = Device::cuda(0)?;
    let (attention, mut queue) = (Attention::new(device.clone())?, Queue::new(&device)?);
    let mut zeros = |shape: [usize; 4]| queue.upload(&Tensor::filled(DType::BF16, shape.into(), 0));
    let (q, cache, mut out) = (zeros([4, 1, 32, 64])?, zeros([4, 4096, 8, 64])?, zeros([4, 1, 32, 64])?);
    let keys = queue.upload(&[4096, 17, 1000, 2500])?; // of each sequence
    let problem = Problem::of(&q, &cache, &cache).kv_lengths(KvLengths::Cache).build()?;
    let prepared = attention.prepare(&problem)?; // chosen and compiled, so that no call waits
    for _layer in 0..32 {
        let operands = Operands::forward(&q, &cache, &cache, &mut out).with(Name::SequsedK, &keys);
        attention.run_on(&mut queue, &prepared, operands)?;
    }
    queue.synchronize()
}
