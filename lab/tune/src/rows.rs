//! Comparison of every row of two outputs. Comparing all rows with float64 takes minutes on a large
//! problem, so candidates are judged by some rows. Two kernels of different families disagree where
//! one is wrong; float64 decides those rows.

use flashcore_bench::draw;
use flashcore_check::within;
use flashcore_problem::{
    Comparison, Direction, InputKind, POISON, Problem, ProblemError, Tensor, Tolerance, compare, compare_gradient,
    compare_lse, reference_gradient_rows, reference_rows,
};
use rayon::prelude::*;

use crate::error::TuneError;
use crate::remote::{Written, floats};

/// Most rows that are computed in float64: those that differ most.
const MOST_ROWS: usize = 64;
/// Most K/V heads of a backward problem whose rows are: the gradient of a key takes all rows that see it.
const MOST_HEADS: usize = 4;

/// A row of an output: the output's place in [`Problem::outputs`], and batch, head and row.
pub(crate) type Row = (usize, [usize; 3]);

/// The values of an output; missing bytes are poison.
fn values(problem: &Problem, written: &Written) -> (Vec<Tensor>, Vec<f32>) {
    let mut lse = floats(&written.lse);
    lse.resize(problem.lse_len(), f32::from_ne_bytes([POISON; 4]));
    (written.tensors(problem), lse)
}

/// Rows in which two outputs differ by more than the tolerance, the largest difference first. Elements of gradients may
/// differ by eight roundings of their row's root mean square, too: each is a sum of rounded terms of either sign.
pub(crate) fn differing(problem: &Problem, one: &Written, other: &Written) -> Vec<Row> {
    if one == other {
        return Vec::new();
    }
    let ((ones, one_lse), (others, other_lse)) = (values(problem, one), values(problem, other));
    let is_backward = problem.direction() == Direction::Backward;
    let tolerance = if is_backward {
        Tolerance::of_gradient(problem.dtype())
    } else {
        Tolerance::of(problem.dtype())
    };
    let beyond = |x: f64, y: f64, more: f64| match (x - y).abs() - tolerance.allowed(y) - more {
        // Also equal infinities, of a row without a visible key.
        _ if x == y => f64::NEG_INFINITY,
        // A NaN differs most.
        beyond if beyond.is_nan() => f64::INFINITY,
        beyond => beyond,
    };
    let excess = |(output, [b, h, s]): Row| {
        let (one, other) = (ones[output].view(), others[output].view());
        let [_, rows, heads, columns] = one.layout().shape;
        let squares = (0..columns).map(|d| other.value(b, s, h, d).powi(2));
        let more = if is_backward {
            8.0 / 3.0 * tolerance.rtol * (squares.sum::<f64>() / columns as f64).sqrt()
        } else {
            0.0
        };
        let columns = (0..columns).map(|d| beyond(one.value(b, s, h, d), other.value(b, s, h, d), more));
        let at = (b * heads + h) * rows + s;
        let lse = problem
            .writes_lse()
            .then(|| beyond(f64::from(one_lse[at]), f64::from(other_lse[at]), 0.0));
        columns.chain(lse).fold(f64::NEG_INFINITY, f64::max)
    };
    let rows_of = |output: usize| {
        let [batch, rows, heads, _] = ones[output].layout().shape;
        let row = move |at: usize| (output, [at / rows / heads, at / rows % heads, at % rows]);
        (0..batch * heads * rows).into_par_iter().map(row)
    };
    let all = (0..ones.len()).into_par_iter().flat_map(rows_of);
    let mut found: Vec<(f64, Row)> = all
        .map(|row| (excess(row), row))
        .filter(|(excess, _)| *excess > 0.0)
        .collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    found.into_iter().map(|(_, row)| row).collect()
}

/// Compares rows of an output for normal inputs of a seed with float64: the first that is wrong, where an error of O
/// may be `factor` times the default tolerance.
pub(crate) fn arbitrate(
    problem: &Problem,
    seed: u64,
    rows: &[Row],
    output: &Written,
    factor: f64,
) -> Result<Option<(Row, Comparison)>, TuneError> {
    let rows = &rows[..rows.len().min(MOST_ROWS)];
    let found = match problem.direction() {
        Direction::Forward => of_output(problem, seed, rows, output, factor),
        Direction::Backward => of_gradients(problem, seed, rows, output),
    };
    let mut found = found.map_err(flashcore::Error::from)?;
    found.sort_by_key(|(row, _)| rows.iter().position(|one| one == row));
    Ok(found.into_iter().next())
}

/// Those of some rows of O that are wrong.
fn of_output(
    problem: &Problem,
    seed: u64,
    rows: &[Row],
    output: &Written,
    factor: f64,
) -> Result<Vec<(Row, Comparison)>, ProblemError> {
    let inputs = draw(problem, InputKind::Normal, seed);
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let (out, lse) = values(problem, output);
    let tolerance = Tolerance::of(problem.dtype());
    let judge = |&row: &Row| -> Result<Option<(Row, Comparison)>, ProblemError> {
        let right = reference_rows(problem, &q, &k, &v, &inputs.lengths.as_slices(), &[row.1])?;
        let mut found = within(compare(problem, &out[0].view(), &right, tolerance)?, factor);
        if found.passed && problem.return_lse() {
            found = within(compare_lse(problem, &lse, &right, tolerance)?, factor);
        }
        Ok((!found.passed).then_some((row, found)))
    };
    let found: Result<Vec<_>, ProblemError> = rows.par_iter().map(judge).collect();
    Ok(found?.into_iter().flatten().collect())
}

/// Those of some rows of gradients that are wrong, of the first K/V heads among them. Searches have equal lengths.
fn of_gradients(
    problem: &Problem,
    seed: u64,
    rows: &[Row],
    output: &Written,
) -> Result<Vec<(Row, Comparison)>, ProblemError> {
    let inputs = draw(problem, InputKind::Normal, seed);
    let (gradients, _) = values(problem, output);
    let head_of = |&(output, [b, h, _]): &Row| (b, if output == 0 { h / problem.group_size() } else { h });
    let mut heads: Vec<(usize, usize)> = Vec::new();
    for head in rows.iter().map(head_of) {
        if !heads.contains(&head) && heads.len() < MOST_HEADS {
            heads.push(head);
        }
    }
    let mut found = Vec::new();
    for head in heads {
        let of_head = || rows.iter().filter(|row| head_of(row) == head);
        let queries: Vec<[usize; 2]> = of_head()
            .filter(|row| row.0 == 0)
            .map(|(_, [_, h, s])| [*h, *s])
            .collect();
        let keys: Vec<usize> = of_head().filter(|row| row.0 > 0).map(|(_, [_, _, s])| *s).collect();
        let right = reference_gradient_rows(problem, &inputs, head, &queries, &keys)?;
        for (output, right) in right.each().into_iter().enumerate() {
            for right in right.iter().filter(|right| rows.contains(&(output, right.index))) {
                let (name, view) = (problem.outputs()[output].0, gradients[output].view());
                let one = std::slice::from_ref(right);
                let judged = compare_gradient(name, &view, one, Tolerance::of_gradient(problem.dtype()))?;
                if !judged.passed {
                    found.push(((output, right.index), judged));
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use flashcore_problem::{DType, Name};

    use super::*;
    use crate::witness::output_of_host;

    /// The host's output and log-sum-exp.
    fn right(problem: &Problem, seed: u64) -> (Tensor, Vec<f32>) {
        let inputs = draw(problem, InputKind::Normal, seed);
        let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
        let mut lse = vec![0.0; problem.lse_len()];
        let carried = inputs.carried(problem).unwrap();
        let operands = carried
            .operands()
            .with_mut(Name::Out, &mut out)
            .with_mut(Name::Lse, &mut lse);
        flashcore_cpu::run(&flashcore_cpu::Options::default(), problem, operands).unwrap();
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
        spoiled.set(1, 217, 3, 30, 1.5);
        let mut spoiled_lse = lse.clone();
        spoiled_lse[7 * 300 + 217] += 0.25;
        for wrong in [written(&spoiled, &lse), written(&out, &spoiled_lse)] {
            for (one, other) in [(&wrong, &right), (&right, &wrong)] {
                assert_eq!(differing(&problem, one, other), [(0, row)]);
            }
            let (at, found) = arbitrate(&problem, 9, &[(0, row)], &wrong, 1.0).unwrap().unwrap();
            assert_eq!((at, found.failures), ((0, row), 1));
        }
        assert!(arbitrate(&problem, 9, &[(0, row)], &right, 1.0).unwrap().is_none());
        assert!(differing(&problem, &right, &right).is_empty());
        // A truncated output differs in the missing rows.
        let mut cut = right.clone();
        cut.out.truncate(100);
        assert!(!differing(&problem, &cut, &right).is_empty());
    }

    #[test]
    fn a_wrong_element_of_each_gradient_is_found() {
        let problem = Problem::builder().batch(2).heads(4, 2).seq_len(70).head_dim(32);
        let problem = problem.dtype(DType::BF16).build().unwrap().backward().unwrap();
        let right = output_of_host(&problem, 9).unwrap();
        assert!(differing(&problem, &right, &right).is_empty());
        let layouts = problem.outputs();
        let mut start = 0;
        for (output, (_, _, layout)) in layouts.iter().enumerate() {
            let row = (output, [1, 1, 33]);
            let mut wrong = right.clone();
            // The exponent of a bf16.
            wrong.out[start + layout.offset(1, 33, 1, 5) * 2 + 1] ^= 0x08;
            assert_eq!(differing(&problem, &wrong, &right), [row]);
            let (at, found) = arbitrate(&problem, 9, &[row], &wrong, 1.0).unwrap().unwrap();
            assert_eq!((at, found.failures), (row, 1));
            assert!(arbitrate(&problem, 9, &[row], &right, 1.0).unwrap().is_none());
            start += layout.span() * 2;
        }
    }
}
