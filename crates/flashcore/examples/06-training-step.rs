//! One step of training: a forward pass that keeps the log-sum-exp, a loss, the gradients of Q, K and
//! V, and a step against them, after which the loss is lower.
//!
//! run with: cargo run --release -p flashcore --example 06-training-step

use flashcore::testing::{InputKind, Inputs};
use flashcore::{Attention, DType, Device, Error, Mask, Problem, Tensor};

fn main() -> Result<(), Error> {
    let problem = Problem::builder().batch(2).heads(8, 2).seq_len(128).head_dim(64);
    let problem = problem.dtype(DType::F32).mask(Mask::CAUSAL);
    let problem = problem.return_lse(true).build()?; // the backward pass reads it
    let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 0);
    let target = Inputs::generate(&problem, InputKind::Normal, 1).q;
    let attention = Attention::new(Device::best())?;

    // The loss is half the squared distance to the target, so its gradient by O is `O - target`.
    let forward = |q: &Tensor, k: &Tensor, v: &Tensor| -> Result<_, Error> {
        let output = attention.forward(&problem, q, k, v)?;
        let values = output.out.as_slice::<f32>()?.iter().zip(target.as_slice::<f32>()?);
        let dout: Vec<f32> = values.map(|(o, t)| o - t).collect();
        let loss = dout.iter().map(|x| x * x).sum::<f32>() / 2.0;
        Ok((output, Tensor::from_slice(*problem.o_layout(), &dout)?, loss))
    };
    let (output, dout, before) = forward(&q, &k, &v)?;
    let gradients = attention.backward(&problem, &q, &k, &v, &output, &dout)?;

    let step = |x: &Tensor, gradient: &Tensor| -> Result<Tensor, Error> {
        let values = x.as_slice::<f32>()?.iter().zip(gradient.as_slice::<f32>()?);
        let moved: Vec<f32> = values.map(|(x, g)| x - 0.05 * g).collect();
        Ok(Tensor::from_slice(*x.layout(), &moved)?)
    };
    let (q, k, v) = (
        step(&q, &gradients.dq)?,
        step(&k, &gradients.dk)?,
        step(&v, &gradients.dv)?,
    );
    let (.., after) = forward(&q, &k, &v)?;
    assert!(after < before);
    println!(
        "{problem} on {}: the loss falls from {before:.1} to {after:.1}",
        attention.device()
    );
    Ok(())
}
