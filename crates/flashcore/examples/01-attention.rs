//! Attention on the best device there is: tensors in host memory, in ten lines.
//!
//! run with: cargo run --release -p flashcore --example 01-attention

use flashcore::{Attention, Device, Error, Problem, Tensor, f16};

fn main() -> Result<(), Error> {
    // [batch, seq, heads, head_dim]; `Layout` and `TensorView` take other strides and borrowed memory.
    let values = |count: usize| (0..count).map(|i| f16::from_f32((i as f32 * 0.7).sin()));
    let q = Tensor::from_slice([2, 512, 8, 64], &values(2 * 512 * 8 * 64).collect::<Vec<_>>())?;
    let k = Tensor::from_slice([2, 512, 2, 64], &values(2 * 512 * 2 * 64).collect::<Vec<_>>())?;
    let v = k.clone();
    let problem = Problem::of(&q, &k, &v).causal().build()?;

    // Made once: it holds compiled kernels and serves all threads.
    let attention = Attention::new(Device::best())?;
    let output = attention.forward(&problem, &q, &k, &v)?;

    // Row 0 sees only key 0, so its output is row 0 of V.
    assert_eq!(output.out.as_slice::<f16>()?[..64], v.as_slice::<f16>()?[..64]);
    println!("{problem} on {}: the first row is that of V", attention.device());
    Ok(())
}
