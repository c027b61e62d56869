//! Comparison of every row of two outputs. Comparing all rows with float64 takes minutes on a large
//! problem, so candidates are judged by some rows. Two kernels of different families disagree where
//! one is wrong; float64 decides those rows.

use flashcore_bench::draw;
use flashcore_problem::{
    Comparison, InputKind, POISON, Problem, ProblemError, Tensor, Tolerance, compare, compare_lse, reference_rows,
};
use rayon::prelude::*;

use crate::error::TuneError;
use crate::remote::{Written, floats};

/// Most rows that are computed in float64: those that differ most.
const MOST_ROWS: usize = 64;

type Row = [usize; 3];

/// The values of an output; missing bytes are poison.
fn values(problem: &Problem, written: &Written) -> (Tensor, Vec<f32>) {
    let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
    let common = written.out.len().min(out.bytes().len());
    out.bytes_mut()[..common].copy_from_slice(&written.out[..common]);
    let mut lse = floats(&written.lse);
    lse.resize(problem.lse_len(), f32::from_ne_bytes([POISON; 4]));
    (out, lse)
}

/// Rows in which two outputs differ by more than the tolerance, the largest difference first.
pub(crate) fn differing(problem: &Problem, one: &Written, other: &Written) -> Vec<Row> {
    if one == other {
        return Vec::new();
    }
    let tolerance = Tolerance::of(problem.dtype());
    let ((one, one_lse), (other, other_lse)) = (values(problem, one), values(problem, other));
    let (one, other) = (one.view(), other.view());
    let [batch, rows, heads, columns] = problem.o_layout().shape;
    let beyond = |x: f64, y: f64| match (x - y).abs() - tolerance.allowed(y) {
        // Also equal infinities, of a row without a visible key.
        _ if x == y => f64::NEG_INFINITY,
        // A NaN differs most.
        beyond if beyond.is_nan() => f64::INFINITY,
        beyond => beyond,
    };
    let excess = |[b, h, s]: Row| {
        let columns = (0..columns).map(|d| beyond(one.value(b, s, h, d), other.value(b, s, h, d)));
        let at = (b * heads + h) * rows + s;
        let lse = problem
            .return_lse()
            .then(|| beyond(f64::from(one_lse[at]), f64::from(other_lse[at])));
        columns.chain(lse).fold(f64::NEG_INFINITY, f64::max)
    };
    let mut found: Vec<(f64, Row)> = (0..batch * heads * rows)
        .into_par_iter()
        .map(|at| [at / rows / heads, at / rows % heads, at % rows])
        .map(|row| (excess(row), row))
        .filter(|(excess, _)| *excess > 0.0)
        .collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    found.into_iter().map(|(_, row)| row).collect()
}

/// Compares rows of an output for normal inputs of a seed with float64: the first that is wrong.
pub(crate) fn arbitrate(
    problem: &Problem,
    seed: u64,
    rows: &[Row],
    output: &Written,
) -> Result<Option<(Row, Comparison)>, TuneError> {
    let inputs = draw(problem, InputKind::Normal, seed);
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let (out, lse) = values(problem, output);
    let tolerance = Tolerance::of(problem.dtype());
    let judge = |&row: &Row| -> Result<Option<(Row, Comparison)>, ProblemError> {
        let right = reference_rows(problem, &q, &k, &v, &inputs.lengths.as_slices(), &[row])?;
        let mut found = compare(problem, &out.view(), &right, tolerance)?;
        if found.passed && problem.return_lse() {
            found = compare_lse(problem, &lse, &right, tolerance)?;
        }
        Ok((!found.passed).then_some((row, found)))
    };
    let rows = &rows[..rows.len().min(MOST_ROWS)];
    let found: Result<Vec<_>, ProblemError> = rows.par_iter().map(judge).collect();
    Ok(found.map_err(flashcore::Error::from)?.into_iter().flatten().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The host's output and log-sum-exp.
    fn right(problem: &Problem, seed: u64) -> (Tensor, Vec<f32>) {
        let inputs = draw(problem, InputKind::Normal, seed);
        let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
        let mut lse = vec![0.0; problem.lse_len()];
        let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
        flashcore_cpu::attention(problem, q, k, v, &mut out.view_mut(), Some(&mut lse)).unwrap();
        (out, lse)
    }

    fn written(out: &Tensor, lse: &[f32]) -> Written {
        Written {
            out: out.bytes().to_vec(),
            lse: lse.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        }
    }

    #[test]
    fn one_wrong_element_is_found_and_the_right_output_is_not_blamed() {
        let problem = Problem::builder().batch(2).heads(4, 2).seq_len(300).head_dim(32);
        let problem = problem.return_lse(true).build().unwrap();
        let (out, lse) = right(&problem, 9);
        let right = written(&out, &lse);
        let row = [1, 3, 217];
        let mut spoiled = out.clone();
        spoiled.view_mut().set(1, 217, 3, 30, 1.5);
        let mut spoiled_lse = lse.clone();
        spoiled_lse[7 * 300 + 217] += 0.25;
        for wrong in [written(&spoiled, &lse), written(&out, &spoiled_lse)] {
            for (one, other) in [(&wrong, &right), (&right, &wrong)] {
                assert_eq!(differing(&problem, one, other), [row]);
            }
            let (at, found) = arbitrate(&problem, 9, &[row], &wrong).unwrap().unwrap();
            assert_eq!((at, found.failures), (row, 1));
        }
        assert!(arbitrate(&problem, 9, &[row], &right).unwrap().is_none());
        assert!(differing(&problem, &right, &right).is_empty());
        // A truncated output differs in the missing rows.
        let mut cut = right.clone();
        cut.out.truncate(100);
        assert!(!differing(&problem, &cut, &right).is_empty());
    }
}
