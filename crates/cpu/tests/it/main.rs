//! Tests of attention on the CPU through its public API.

mod against_float64;
mod append;
mod bad_input;
mod gradients;
mod properties;

use flashcore_cpu::{CpuError, Options, run};
use flashcore_problem::{Inputs, Name, POISON, Problem, Tensor};

/// Output and log-sum-exp, which is empty unless the problem asks for it.
fn attention(options: &Options<'_>, problem: &Problem, inputs: &Inputs) -> Result<(Tensor, Vec<f32>), CpuError> {
    let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
    let mut lse = vec![f32::from_ne_bytes([POISON; 4]); if problem.return_lse() { problem.lse_len() } else { 0 }];
    let carried = inputs.carried(problem)?;
    let mut operands = carried.operands().with_mut(Name::Out, &mut out);
    if problem.return_lse() {
        operands = operands.with_mut(Name::Lse, &mut lse);
    }
    run(options, problem, operands)?;
    Ok((out, lse))
}
