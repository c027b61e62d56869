//! Merging attention over parts of the keys on the host.

use std::f32::consts::LOG2_E;

use flashcore_problem::{Combine, Host, Name, Operands, ProblemError, TensorView};
use rayon::prelude::*;

use crate::CpuError;
use crate::keys::copy_row;
use crate::output::Output;
use crate::schedule::merge;

/// Merges attention over parts of the keys into attention over all of them: `out = Σ exp(lse_i − lse)·out_i` with `lse
/// = ln Σ exp(lse_i)`, in f32. A row without keys in all parts has output 0 and log-sum-exp −∞. Operands are checked.
pub(crate) fn run(task: &Combine, mut operands: Operands<'_, Host>) -> Result<(), CpuError> {
    let (out, lse) = (operands.take_bytes(Name::Out)?, operands.take_values(Name::Lse)?);
    let part = |n: u8| -> Result<(TensorView<'_>, &[f32]), ProblemError> {
        let lse = operands.values(Name::PartLse(n))?.unwrap_or_default();
        Ok((operands.tensor(Name::PartOut(n))?, lse))
    };
    let parts = (0..task.parts() as u8).map(part).collect::<Result<Vec<_>, _>>()?;
    let (dtype, layout) = (task.problem().out_dtype(), *task.problem().o_layout());
    let [batch, seq, heads, columns] = layout.shape;
    let output = Output::new((dtype, layout), out, lse, None);
    (0..batch * heads).into_par_iter().for_each(|batch_head| {
        let (b, h) = (batch_head / heads, batch_head % heads);
        // As `merge` has them: output, maximum, sum.
        let mut ranges = vec![vec![1.0; columns + 2]; parts.len()];
        for s in 0..seq {
            for (range, (out, lse)) in ranges.iter_mut().zip(&parts) {
                let lse = lse[batch_head * seq + s];
                if lse == f32::NEG_INFINITY {
                    range[..columns].fill(0.0);
                } else {
                    copy_row(out, b, s, h, &mut range[..columns]);
                }
                range[columns] = lse;
            }
            let (max, sum, mut values) = merge(&mut ranges.iter().map(Vec::as_slice), LOG2_E);
            output.store([b, s, h], f64::from(max), sum, &mut values);
        }
    });
    Ok(())
}
