//! Attention on the best device there is, in ten lines.
//!
//! run with: cargo run --release -p flashcore --example 01-attention

use flashcore::{Attention, DType, Device, Error, InputKind, Inputs, Mask, Problem, Tensor};

fn main() -> Result<(), Error> {
    let problem = Problem::builder()
        .batch(2)
        .heads(8, 2)
        .seq_len(512)
        .head_dim(64)
        .dtype(DType::F16)
        .mask(Mask::CAUSAL)
        .build()?;
    let Inputs { q, k, v } = Inputs::generate(&problem, InputKind::Normal, 0);
    let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());

    let attention = Attention::new(Device::best());
    attention.forward(&problem, q.view(), k.view(), v.view(), &mut out.view_mut(), None)?;

    println!(
        "{problem} on {}: out[0, 511, 0, 0] = {}",
        attention.device(),
        out.view().get(0, 511, 0, 0)
    );
    Ok(())
}
