//! The gate: is an answer right? Whatever computed it, it is held against the float64 reference,
//! and everything around it against the poison it was filled with.

use flashcore_kernels::StopAfter;
use flashcore_problem::rng::Rng;
use flashcore_problem::{
    Comparison, DType, GapWritten, InputKind, Inputs, Problem, ProblemError, Tensor, Tolerance, compare, compare_lse,
    compare_lse_rows, compare_rows, compare_stage, gaps_untouched, reference, reference_probabilities, reference_rows,
    reference_scores,
};
use serde::Serialize;

/// Products up to which every row is compared: about half a second of float64. Beyond that, rows are drawn.
const MAX_PRODUCTS: u64 = 400_000_000;

/// Fewest rows that are drawn, however long each takes.
const MIN_ROWS: u64 = 16;

/// What the gate found. Prints as one line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gate {
    /// The output against the reference, or the stage that the build stops after.
    pub out: Comparison,
    /// The log-sum-exp against the reference, where the problem asks for it.
    pub lse: Option<Comparison>,
    /// Bytes written between the output's elements, if there are any.
    pub gaps: Option<GapWritten>,
    /// What was allowed.
    pub tolerance: Tolerance,
    /// Rows (of a head of a sequence) that were compared.
    pub rows: usize,
    /// Rows there are.
    pub all_rows: usize,
}

impl Gate {
    /// Whether the answer is right in every respect.
    pub fn passed(&self) -> bool {
        self.out.passed && self.lse.as_ref().is_none_or(|lse| lse.passed) && self.gaps.is_none()
    }
}

impl std::fmt::Display for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.out)?;
        if let Some(lse) = self.lse.as_ref().filter(|lse| !lse.passed) {
            write!(f, "; log-sum-exp {lse}")?;
        }
        if let Some(gaps) = &self.gaps {
            write!(f, "; {gaps}")?;
        }
        if self.rows < self.all_rows {
            write!(f, "; {} of {} rows compared", self.rows, self.all_rows)?;
        }
        Ok(())
    }
}

/// Compares an answer with the reference: every row where that takes well under a second, otherwise
/// the first row, the last row and others drawn by `seed`.
///
/// `out` must have begun as [`Tensor::poisoned`], and `lse`, given where the problem asks for it,
/// as the same byte: what was never written is then told apart from what is wrong.
///
/// ```
/// use flashcore_check::gate;
/// use flashcore_problem::{InputKind, Inputs, Problem, Tensor};
/// let problem = Problem::named("tiny")?;
/// let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
/// let out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout()); // nobody computed it
/// assert!(!gate(&problem, &inputs, &out, None, 1)?.passed());
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
///
/// # Errors
/// Tensors that are not the problem's.
pub fn gate(
    problem: &Problem,
    inputs: &Inputs,
    out: &Tensor,
    lse: Option<&[f32]>,
    seed: u64,
) -> Result<Gate, ProblemError> {
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let tolerance = Tolerance::of(problem.dtype());
    let gaps = gaps_untouched(&out.view()).err();
    let all_rows = problem.lse_len();
    let products_a_row = (problem.seq_len_kv() * (problem.head_dim() + problem.head_dim_v())) as u64;
    let affordable = (MAX_PRODUCTS / products_a_row).max(MIN_ROWS);
    let asked_lse = lse.filter(|_| problem.return_lse());
    if all_rows as u64 <= affordable {
        let want = reference(problem, &q, &k, &v)?;
        return Ok(Gate {
            out: compare(problem, &out.view(), &want, tolerance)?,
            lse: asked_lse
                .map(|lse| compare_lse(problem, lse, &want, tolerance))
                .transpose()?,
            gaps,
            tolerance,
            rows: all_rows,
            all_rows,
        });
    }
    let rows = reference_rows(problem, &q, &k, &v, &draw_rows(problem, affordable as usize, seed))?;
    Ok(Gate {
        out: compare_rows(problem, &out.view(), &rows, tolerance)?,
        lse: asked_lse
            .map(|lse| compare_lse_rows(problem, lse, &rows, tolerance))
            .transpose()?,
        gaps,
        tolerance,
        rows: rows.len(),
        all_rows,
    })
}

/// Compares what a build that stopped after a stage found, as [`finish`](flashcore_kernels::stage::finish) gives it, with that stage of the
/// reference: every row, to the tolerance of f32 on such inputs, since nothing has been rounded to the problem's
/// dtype yet.
///
/// ```
/// use flashcore_check::gate::gate_stage;
/// use flashcore_kernels::{StopAfter, stage};
/// use flashcore_problem::{InputKind, Inputs, Problem};
/// let problem = Problem::named("tiny")?;
/// let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
/// let nobody_computed_it = vec![0.0; stage::len(&problem)];
/// assert!(!gate_stage(&problem, &inputs, InputKind::Normal, StopAfter::Scores, &nobody_computed_it)?.passed());
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
///
/// # Errors
/// Tensors or values that are not the problem's.
pub fn gate_stage(
    problem: &Problem,
    inputs: &Inputs,
    kind: InputKind,
    stop: StopAfter,
    values: &[f32],
) -> Result<Gate, ProblemError> {
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let want = match stop {
        StopAfter::Scores => reference_scores(problem, &q, &k, &v)?,
        StopAfter::Probabilities => reference_probabilities(problem, &q, &k, &v)?,
    };
    let tolerance = Tolerance::of_inputs(DType::F32, kind);
    Ok(Gate {
        out: compare_stage(problem, values, &want, tolerance)?,
        lse: None,
        gaps: None,
        tolerance,
        rows: problem.lse_len(),
        all_rows: problem.lse_len(),
    })
}

/// `count` rows as `[batch, head, row]`: the first, the last, and others all over the problem.
fn draw_rows(problem: &Problem, count: usize, seed: u64) -> Vec<[usize; 3]> {
    let (heads, seq_len) = (problem.num_heads(), problem.seq_len_q());
    let all = problem.lse_len();
    let mut rng = Rng::new(seed);
    let mut rows: Vec<usize> = (2..count).map(|_| rng.below(all)).collect();
    rows.extend([0, all - 1]);
    rows.sort_unstable();
    rows.dedup();
    rows.into_iter()
        .map(|row| [row / seq_len / heads, row / seq_len % heads, row % seq_len])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_problem::POISON;

    /// The reference's own answer, rounded to the problem's dtype.
    fn answer(problem: &Problem, inputs: &Inputs) -> (Tensor, Vec<f32>) {
        let want = reference(problem, &inputs.q.view(), &inputs.k.view(), &inputs.v.view()).unwrap();
        let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
        let [nb, ns, nh, nd] = problem.o_layout().shape;
        let mut values = want.out.iter();
        for (b, s, h, d) in (0..nb * ns * nh * nd).map(|i| (i / nd / nh / ns, i / nd / nh % ns, i / nd % nh, i % nd)) {
            out.view_mut().set(b, s, h, d, *values.next().unwrap() as f32);
        }
        (out, want.lse.iter().map(|&lse| lse as f32).collect())
    }

    #[test]
    fn right_answers_pass_and_wrong_ones_do_not() {
        let problem = Problem::builder().seq_len(24).return_lse(true).build().unwrap();
        let inputs = Inputs::generate(&problem, InputKind::Normal, 3);
        let (mut out, mut lse) = answer(&problem, &inputs);
        assert!(gate(&problem, &inputs, &out, Some(&lse), 0).unwrap().passed());
        lse[5] += 1.0;
        let wrong_lse = gate(&problem, &inputs, &out, Some(&lse), 0).unwrap();
        assert!(!wrong_lse.passed() && wrong_lse.out.passed);
        assert!(wrong_lse.to_string().contains("log-sum-exp FAIL"), "{wrong_lse}");
        out.view_mut().set(0, 3, 0, 2, 9.0);
        assert_eq!(gate(&problem, &inputs, &out, Some(&lse), 0).unwrap().out.failures, 1);
    }

    #[test]
    fn long_problems_are_sampled() {
        let problem = Problem::builder()
            .heads(4, 2)
            .seq_len_q(3000)
            .seq_len_kv(1024)
            .dtype(DType::BF16)
            .return_lse(true)
            .build()
            .unwrap();
        let inputs = Inputs::generate(&problem, InputKind::Normal, 3);
        let out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
        let lse = vec![f32::from_ne_bytes([POISON; 4]); problem.lse_len()];
        let found = gate(&problem, &inputs, &out, Some(&lse), 0).unwrap();
        assert!(found.rows > 1000 && found.rows < found.all_rows);
        assert_eq!(found.out.unwritten, found.rows * 64);
        assert_eq!(found.lse.unwrap().unwritten, found.rows);
    }
}
