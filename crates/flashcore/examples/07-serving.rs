//! Packed sequences over a cache in pages, captured in a graph that is replayed while lengths grow in place.
//!
//! run with: cargo run --release -p flashcore --example 07-serving

use flashcore::{Attention, DType, Device, Error, Name, Operands, Problem, Queue, Tensor};

fn main() -> Result<(), Error> {
    let device = Device::cuda(0)?;
    let (attention, mut queue) = (Attention::new(device.clone())?, Queue::new(&device)?);
    let mut zeros = |shape: [usize; 4]| queue.upload(&Tensor::filled(DType::BF16, shape.into(), 0));
    let (q, cache, mut out) = (zeros([1, 4, 8, 64])?, zeros([16, 16, 2, 64])?, zeros([1, 4, 8, 64])?);
    let (starts, table) = (queue.upload(&[0, 3, 4])?, queue.upload(&[0; 16])?);
    let mut keys = queue.upload(&[3, 40])?; // of two sequences
    let problem = Problem::of(&q, &cache, &cache).packed_q(2, 3).paged(8).build()?;
    let (prepared, mut recording) = (attention.prepare(&problem)?, Queue::recording(&device)?);
    let operands = Operands::forward(&q, &cache, &cache, &mut out);
    let operands = operands.with(Name::CuSeqlensQ, &starts).with(Name::SequsedK, &keys);
    attention.run_on(&mut recording, &prepared, operands.with(Name::BlockTable, &table))?;
    queue.write(&mut keys, &[4, 41])?; // the graph reads lengths, pages and tensors when it runs
    queue.launch(&mut recording.finish()?)
}
