//! Merging attention over parts of the keys on the host.

use std::f32::consts::LOG2_E;

use flashcore_problem::{Part, Problem, TensorViewMut};
use rayon::prelude::*;

use crate::CpuError;
use crate::keys::copy_row;
use crate::output::Output;
use crate::schedule::merge;

/// Merges attention over parts of the keys into attention over all of them, on rayon's current thread
/// pool: `out = Σ exp(lse_i − lse)·out_i` with `lse = ln Σ exp(lse_i)`, in f32. A row without keys in
/// all parts has output 0 and log-sum-exp −∞.
///
/// # Errors
/// Another number of parts than 1 to 8, tensors that are not the problem's. The output is then
/// unchanged.
pub fn combine(
    problem: &Problem,
    parts: &[Part<'_>],
    out: &mut TensorViewMut<'_>,
    lse: Option<&mut [f32]>,
) -> Result<(), CpuError> {
    problem.check_parts(parts, out, lse.as_deref())?;
    let [batch, seq, heads, columns] = problem.o_layout().shape;
    let output = Output::new(out, lse, None);
    (0..batch * heads).into_par_iter().for_each(|batch_head| {
        let (b, h) = (batch_head / heads, batch_head % heads);
        // As `merge` has them: output, maximum, sum.
        let mut ranges = vec![vec![1.0; columns + 2]; parts.len()];
        for s in 0..seq {
            for (range, part) in ranges.iter_mut().zip(parts) {
                let lse = part.lse[batch_head * seq + s];
                match lse == f32::NEG_INFINITY {
                    true => range[..columns].fill(0.0),
                    false => copy_row(&part.out, b, s, h, &mut range[..columns]),
                }
                range[columns] = lse;
            }
            let (max, sum, mut values) = merge(&mut ranges.iter().map(Vec::as_slice), LOG2_E);
            output.store([b, s, h], f64::from(max), sum, &mut values);
        }
    });
    Ok(())
}
