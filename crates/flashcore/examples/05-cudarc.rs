//! Attention on cudarc's slices and stream, in the version of cudarc that the program uses.
//!
//! run with: cargo run --release -p flashcore --example 05-cudarc --features cudarc,cudarc/default

use cudarc::driver::CudaContext;
use flashcore::{Attention, DType, Device, Problem};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(why) => {
            println!("no GPU here: {why}");
            return Ok(());
        }
    };
    let stream = CudaContext::new(0)?.new_stream()?;
    let problem = Problem::builder().heads(8, 8).seq_len(512).head_dim(64);
    let problem = problem.dtype(DType::F32).return_lse(true).build()?;
    let ones = stream.clone_htod(&vec![1f32; 512 * 8 * 64])?;
    let mut out = stream.alloc_zeros::<f32>(512 * 8 * 64)?;
    let mut lse = stream.alloc_zeros::<f32>(problem.lse_len())?;

    let attention = Attention::new(device)?;
    attention.forward_cudarc(&stream, &problem, &ones, &ones, &ones, &mut out, Some(&mut lse))?;

    // 512 equal scores of 64 / √64.
    assert!(stream.clone_dtoh(&out)?.iter().all(|x| (x - 1.0).abs() < 1e-6));
    assert!(
        stream
            .clone_dtoh(&lse)?
            .iter()
            .all(|x| (x - 8.0 - 512f32.ln()).abs() < 1e-4)
    );
    println!("{problem} on {}: right", attention.device());
    Ok(())
}
