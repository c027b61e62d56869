//! The gradients of Q, K and V, from what the forward pass returned.
//!
//! run with: cargo run --release -p flashcore --example 06-gradients

use flashcore::{Attention, DType, Device, Error, Problem, Tensor};

fn main() -> Result<(), Error> {
    let wave = |b: usize, s: usize, h: usize, d: usize| ((b + s + h + d) as f32).sin();
    let rows = |heads| Tensor::from_fn(DType::F32, [2, 128, heads, 64].into(), wave);
    let (q, k, v, dout) = (rows(8), rows(2), rows(2), rows(8)); // dout: the gradient of a loss by the output
    let problem = Problem::of(&q, &k, &v).causal().return_lse(true).build()?; // the backward pass reads it
    let attention = Attention::new(Device::best())?;
    let output = attention.forward(&problem, &q, &k, &v)?;
    let gradients = attention.backward(&problem, &q, &k, &v, &output, &dout)?;
    println!(
        "{problem} on {}: dq {}",
        attention.device(),
        gradients.dq.view().get(1, 127, 7, 0)
    );
    Ok(())
}
