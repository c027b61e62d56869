//! Attention on tensors in host memory, on the best device there is.
//!
//! run with: cargo run --release -p flashcore --example 01-attention

use flashcore::{Attention, DType, Device, Error, Problem, Tensor};

fn main() -> Result<(), Error> {
    let wave = |b: usize, s: usize, h: usize, d: usize| ((b + s + h + d) as f32).sin();
    let rows = |heads| Tensor::from_fn(DType::F16, [2, 512, heads, 64].into(), wave); // [batch, seq, heads, head_dim]
    let (q, k, v) = (rows(8), rows(2), rows(2));
    let problem = Problem::of(&q, &k, &v).causal().build()?;
    let attention = Attention::new(Device::best())?; // made once: it holds compiled kernels and serves all threads
    let output = attention.forward(&problem, &q, &k, &v)?;
    println!(
        "{problem} on {}: {}",
        attention.device(),
        output.out.view().get(1, 511, 7, 0)
    );
    Ok(())
}
