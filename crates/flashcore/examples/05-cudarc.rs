//! Attention on cudarc's slices and stream, in the version of cudarc that the program uses.
//!
//! run with: cargo run --release -p flashcore --example 05-cudarc --features cudarc,cudarc/default

use cudarc::driver::CudaContext;
use flashcore::cudarc::{queue, view, view_mut};
use flashcore::{Attention, Device, Operands, Problem};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::cuda(0)?;
    let stream = CudaContext::new(0)?.new_stream()?;
    let (attention, mut queue) = (Attention::new(device.clone())?, queue(&device, &stream)?);
    let ones = stream.clone_htod(&vec![1f32; 512 * 8 * 64])?;
    let mut zeros = stream.alloc_zeros::<f32>(512 * 8 * 64)?;
    let shape = [1, 512, 8, 64]; // [batch, seq, heads, head_dim]
    let (q, mut out) = (view(&stream, shape, &ones)?, view_mut(&stream, shape, &mut zeros)?);
    let problem = Problem::of(&q, &q, &q).build()?;
    attention.run_on(&mut queue, &problem, Operands::forward(&q, &q, &q, &mut out))?;
    drop(out); // cudarc learns of the use
    assert!(stream.clone_dtoh(&zeros)?.iter().all(|x| (x - 1.0).abs() < 1e-6)); // means of ones
    Ok(())
}
