//! Right rows of what a problem writes, which every kernel is compared with before it is timed.

use flashcore_problem::bulk::Census;
use flashcore_problem::{
    Comparison, Direction, GradientRow, Gradients, Inputs, Name, Problem, ProblemError, ReferenceRow, Tensor,
    TensorSpec, Tolerance, compare, compare_gradient, compare_lse, reference_gradient_rows, reference_rows,
};

use super::search::Unfit;
use crate::Error;

/// Operations that a K/V head may take whose keys are compared, the last one and the first one: the gradient of a key
/// takes a forward pass, in float64, of all rows that see it.
const LAST_HEAD_FLOPS: f64 = 5e10;
const FIRST_HEAD_FLOPS: f64 = 4e9;

/// Right rows of a problem's outputs.
pub(super) enum Expected {
    /// Of O and the log-sum-exp.
    Forward(Vec<ReferenceRow>),
    /// Of the gradients.
    Backward(Gradients<Vec<GradientRow>>),
}

/// The first, the last, and one in the middle.
fn some_of(count: usize) -> Vec<usize> {
    let mut places = vec![0, (count - 1) / 2, count - 1];
    places.dedup();
    places
}

impl Expected {
    /// Of the first and the last row, and one in the middle, of the first and the last head. O and the log-sum-exp
    /// that a backward pass reads are not looked at.
    pub(super) fn new(problem: &Problem, inputs: &Inputs) -> Result<Expected, Error> {
        let rows = some_of(problem.seq_len_q());
        if problem.direction() == Direction::Backward {
            return Ok(Expected::Backward(gradients(problem, inputs, &rows)?));
        }
        let last = [problem.batch() - 1, problem.num_heads() - 1];
        let mut all: Vec<[usize; 3]> = Vec::new();
        for [batch, head] in [[0, 0], last] {
            all.extend(rows.iter().map(|row| [batch, head, *row]));
        }
        all.dedup();
        let lengths = inputs.lengths.as_slices();
        let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(Tensor::view);
        Ok(Expected::Forward(reference_rows(problem, &q, &k, &v, &lengths, &all)?))
    }

    /// Whether outputs that were poison before have these rows, and every element was written and is a number.
    pub(super) fn check(&self, problem: &Problem, outs: &[(TensorSpec, Tensor)]) -> Result<(), Unfit> {
        for (TensorSpec { name, .. }, out) in outs {
            let wrong = |what: String| Err(Unfit::Wrong(format!("its {name} is wrong: {what}")));
            let found = self.compare(problem, *name, out);
            let found = found.map_err(|error| Unfit::Failed(error.into()))?;
            if !found.passed {
                return wrong(found.to_string());
            }
            let view = out.view();
            let [batch, rows, ..] = view.layout().shape;
            let rows = (0..batch).flat_map(|batch| (0..rows).map(move |row| (batch, row)));
            let census = rows.fold(Census::default(), |all, (batch, row)| {
                all.and(Census::of_row(&view, batch, row))
            });
            let Census { unwritten, nan, .. } = census;
            if unwritten + nan > 0 {
                return wrong(format!("{unwritten} elements were not written, {nan} are NaN"));
            }
        }
        Ok(())
    }

    fn compare(&self, problem: &Problem, name: Name, out: &Tensor) -> Result<Comparison, ProblemError> {
        let tolerance = Tolerance::of(problem.dtype());
        match (self, name) {
            (Expected::Forward(rows), Name::Lse) => compare_lse(problem, out.as_slice()?, rows, tolerance),
            (Expected::Forward(rows), _) => compare(problem, &out.view(), rows, tolerance),
            (Expected::Backward(Gradients { dq, dk, dv }), name) => {
                let rows = match name {
                    Name::Dq => dq,
                    Name::Dk => dk,
                    _ => dv,
                };
                let tolerance = Tolerance::of_gradient(problem.dtype());
                compare_gradient(name.as_str(), &out.view(), rows, tolerance)
            }
        }
    }
}

/// Those of these rows of the first and the last query head, and of some keys of the last and the first K/V head, where
/// that takes little time.
fn gradients(problem: &Problem, inputs: &Inputs, rows: &[usize]) -> Result<Gradients<Vec<GradientRow>>, ProblemError> {
    let (heads, kv_heads) = (problem.num_heads(), problem.num_kv_heads());
    let keys = some_of(problem.seq_len_kv());
    let last = (problem.batch() - 1, kv_heads - 1);
    // Two products of the five.
    let of_head = 0.4 * problem.flops() / (problem.batch() * kv_heads) as f64;
    let within = |most: f64| if of_head > most { &[] } else { &keys[..] };
    let mut wanted = vec![(last, heads - 1, within(LAST_HEAD_FLOPS))];
    if problem.batch() * heads > 1 {
        let keys = if last == (0, 0) { &[] } else { within(FIRST_HEAD_FLOPS) };
        wanted.push(((0, 0), 0, keys));
    }
    let mut all = Gradients::<Vec<GradientRow>>::default();
    for (kv_head, head, keys) in wanted {
        let rows: Vec<[usize; 2]> = rows.iter().map(|row| [head, *row]).collect();
        let found = reference_gradient_rows(problem, inputs, kv_head, &rows, keys)?;
        all.dq.extend(found.dq);
        all.dk.extend(found.dk);
        all.dv.extend(found.dv);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use flashcore_problem::{DType, InputKind, Task, reference_gradients};

    use super::*;

    #[test]
    fn gradients_of_the_first_and_the_last_head_are_compared() {
        for (batch, heads, kv_heads) in [(1, 1, 1), (1, 4, 1), (2, 4, 2)] {
            let problem = Problem::builder().batch(batch).heads(heads, kv_heads).dtype(DType::F32);
            let problem = problem.seq_len(9).head_dim(8).build().unwrap().backward().unwrap();
            let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
            let Expected::Backward(found) = Expected::new(&problem, &inputs).unwrap() else {
                panic!("those of a backward problem")
            };
            let all = reference_gradients(&problem, &inputs).unwrap();
            let of_heads = |first: usize, last: usize| {
                let mut heads = vec![[0, first], [batch - 1, last]];
                heads.dedup();
                let rows = heads.into_iter().flat_map(|[b, h]| [0, 4, 8].map(|row| [b, h, row]));
                rows.collect::<Vec<_>>()
            };
            for (at, last) in [(0, heads - 1), (1, kv_heads - 1), (2, kv_heads - 1)] {
                let mut rows: Vec<[usize; 3]> = found.each()[at].iter().map(|row| row.index).collect();
                rows.sort_unstable();
                assert_eq!(rows, of_heads(0, last), "output {at} of {problem}");
                assert!(found.each()[at].iter().all(|row| all.each()[at].contains(row)));
            }
        }
    }

    #[test]
    fn a_gradient_that_is_wrong_or_not_written_is_named() {
        let problem = Problem::builder().heads(2, 1).seq_len(9).head_dim(8).dtype(DType::F32);
        let problem = problem.build().unwrap().backward().unwrap();
        let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
        let expected = Expected::new(&problem, &inputs).unwrap();
        let all = reference_gradients(&problem, &inputs).unwrap();
        let right = || -> Vec<(TensorSpec, Tensor)> {
            let tensor = |(spec, rows): (TensorSpec, &Vec<GradientRow>)| {
                let mut tensor = Tensor::poisoned(DType::F32, spec.layout);
                for row in rows {
                    let [b, h, s] = row.index;
                    for (d, value) in row.values.iter().enumerate() {
                        tensor.set(b, s, h, d, *value as f32);
                    }
                }
                (spec, tensor)
            };
            let written = problem.tensors().into_iter().filter(TensorSpec::is_written);
            written.zip(all.each()).map(tensor).collect()
        };
        let why = |outs: &[(TensorSpec, Tensor)]| match expected.check(&problem, outs) {
            Ok(()) => String::new(),
            Err(Unfit::Wrong(why)) => why,
            Err(_) => panic!("another error"),
        };
        assert_eq!(why(&right()), "");
        for (at, name) in ["dq", "dk", "dv"].into_iter().enumerate() {
            let mut outs = right();
            outs[at].1.set(0, 8, 0, 3, 9.0);
            let found = why(&outs);
            assert!(found.starts_with(&format!("its {name} is wrong: FAIL")), "{found}");
            let mut outs = right();
            outs[at].1.set(0, 5, 0, 3, f32::NAN);
            let found = why(&outs);
            assert!(
                found.starts_with(&format!("its {name} is wrong: 0 elements")),
                "{found}"
            );
        }
    }
}
