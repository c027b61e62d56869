//! The answer, in float64: naive, two-pass, meant to be checked by reading.
//!
//! Elements are widened from the problem's dtype exactly (those of e4m3 times their scales), every product and sum is float64, and
//! each row sees all its scores before the softmax begins. Nothing is rounded to the problem's
//! dtype at the end. About 0.2 s for B1 H8 S512 D64 on one core; [`reference_rows`] serves lengths
//! where all rows would take too long.

use std::ops::Range;

use crate::slack::{RowSlack, Slack};
use crate::{DType, Problem, ProblemError, TensorView};

/// The answer to a problem in float64.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// O, dense: `[batch, seq_len_q, num_heads, head_dim_v]`. Zero where a row attends to nothing.
    pub out: Vec<f64>,
    /// Log-sum-exp of each row's scores (natural logarithm), `[batch, num_heads, seq_len_q]`; −∞
    /// where a row attends to nothing.
    pub lse: Vec<f64>,
    /// What a kernel's own rounding may add, beside the tolerance: e4m3 problems only.
    pub slack: Option<Slack>,
}

/// The answer for one query row.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceRow {
    /// `[batch, head, row]` of Q.
    pub index: [usize; 3],
    /// The row of O, `head_dim_v` long.
    pub out: Vec<f64>,
    /// The row's log-sum-exp.
    pub lse: f64,
    /// As [`Reference::slack`], of this row.
    pub slack: Option<RowSlack>,
}

/// The answer for every row.
///
/// ```
/// use flashcore_problem::{InputKind, Inputs, Problem, reference};
/// let problem = Problem::builder().seq_len(16).build()?;
/// let inputs = Inputs::generate(&problem, InputKind::EqualRows, 1);
/// let answer = reference(&problem, &inputs.q.view(), &inputs.k.view(), &inputs.v.view())?;
/// // Equal scores: the first output is the mean of V's first column.
/// let mean = (0..16).map(|s| f64::from(inputs.v.view().get(0, s, 0, 0))).sum::<f64>() / 16.0;
/// assert!((answer.out[0] - mean).abs() < 1e-12);
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
///
/// # Errors
/// Tensors that are not the problem's, and paged K/V.
pub fn reference(
    problem: &Problem,
    q: &TensorView<'_>,
    k: &TensorView<'_>,
    v: &TensorView<'_>,
) -> Result<Reference, ProblemError> {
    check(problem, q, k, v)?;
    let [batch, seq_len_q, num_heads, dim] = problem.o_layout().shape;
    let mut answer = Reference {
        out: vec![0.0; batch * seq_len_q * num_heads * dim],
        lse: vec![f64::NEG_INFINITY; problem.lse_len()],
        slack: (problem.dtype() == DType::E4M3).then(|| Slack::none(problem)),
    };
    for b in 0..batch {
        for kv_head in 0..problem.num_kv_heads() {
            let keys = Keys::widen(k, v, b, kv_head);
            for h in kv_head * problem.group_size()..(kv_head + 1) * problem.group_size() {
                for row in 0..seq_len_q {
                    let found = attend(problem, &keys, q, [b, h, row]);
                    let at = ((b * seq_len_q + row) * num_heads + h) * dim;
                    let lse_at = (b * num_heads + h) * seq_len_q + row;
                    answer.out[at..at + dim].copy_from_slice(&found.out);
                    answer.lse[lse_at] = found.lse;
                    if let (Some(all), Some(slack)) = (&mut answer.slack, found.slack) {
                        all.out[at..at + dim].copy_from_slice(&slack.out);
                        all.lse[lse_at] = slack.lse;
                    }
                }
            }
        }
    }
    Ok(answer)
}

/// The answer for some rows, each given as `[batch, head, row]`, in the order given.
///
/// # Errors
/// As [`reference()`], and rows outside the problem.
pub fn reference_rows(
    problem: &Problem,
    q: &TensorView<'_>,
    k: &TensorView<'_>,
    v: &TensorView<'_>,
    rows: &[[usize; 3]],
) -> Result<Vec<ReferenceRow>, ProblemError> {
    check(problem, q, k, v)?;
    let limits = [problem.batch(), problem.num_heads(), problem.seq_len_q()];
    for (index, limit, field) in rows
        .iter()
        .flat_map(|row| (0..3).map(|i| (row[i], limits[i], ["batch index", "head index", "row index"][i])))
    {
        if index >= limit {
            return Err(ProblemError::TooLarge {
                what: field.to_string(),
                given: index as u128,
                limit: limit as u128 - 1,
            });
        }
    }
    // Rows of one K/V head one after another, so that its keys are widened once.
    let mut order: Vec<usize> = (0..rows.len()).collect();
    let kv_head_of = |row: [usize; 3]| (row[0], row[1] / problem.group_size());
    order.sort_by_key(|&i| kv_head_of(rows[i]));
    let mut answers: Vec<Option<ReferenceRow>> = vec![None; rows.len()];
    let mut widened: Option<((usize, usize), Keys)> = None;
    for i in order {
        let (b, kv_head) = kv_head_of(rows[i]);
        let keys = match widened.take() {
            Some((of, keys)) if of == (b, kv_head) => keys,
            _ => Keys::widen(k, v, b, kv_head),
        };
        answers[i] = Some(attend(problem, &keys, q, rows[i]));
        widened = Some(((b, kv_head), keys));
    }
    Ok(answers.into_iter().flatten().collect())
}

/// The stage before the mask: scaled (and soft-capped) scores of every row with every key, dense
/// `[batch, num_heads, seq_len_q, seq_len_kv]`. For kernels that stop after `Q·Kᵀ`.
///
/// # Errors
/// As [`reference()`].
pub fn reference_scores(
    problem: &Problem,
    q: &TensorView<'_>,
    k: &TensorView<'_>,
    v: &TensorView<'_>,
) -> Result<Vec<f64>, ProblemError> {
    stage(problem, q, k, v, |row_scores, _| row_scores)
}

/// The stage before `P·V`: the softmax of every row, dense `[batch, num_heads, seq_len_q,
/// seq_len_kv]`; zero where a key is hidden.
///
/// # Errors
/// As [`reference()`].
pub fn reference_probabilities(
    problem: &Problem,
    q: &TensorView<'_>,
    k: &TensorView<'_>,
    v: &TensorView<'_>,
) -> Result<Vec<f64>, ProblemError> {
    stage(problem, q, k, v, |row_scores, visible| {
        let (weights, sum, _) = softmax_terms(&row_scores[visible.clone()]);
        let mut probabilities = vec![0.0; row_scores.len()];
        for (p, weight) in probabilities[visible].iter_mut().zip(weights) {
            *p = weight / sum;
        }
        probabilities
    })
}

/// `finish(scores of a row with every key, its visible keys)` for every row, one after another.
fn stage(
    problem: &Problem,
    q: &TensorView<'_>,
    k: &TensorView<'_>,
    v: &TensorView<'_>,
    finish: impl Fn(Vec<f64>, Range<usize>) -> Vec<f64>,
) -> Result<Vec<f64>, ProblemError> {
    check(problem, q, k, v)?;
    let mut all = Vec::new();
    for b in 0..problem.batch() {
        for h in 0..problem.num_heads() {
            let keys = Keys::widen(k, v, b, h / problem.group_size());
            for row in 0..problem.seq_len_q() {
                let scores = scores(problem, &keys, q, [b, h, row], 0..problem.seq_len_kv());
                all.extend(finish(scores, problem.visible_keys(row)));
            }
        }
    }
    Ok(all)
}

fn check(problem: &Problem, q: &TensorView<'_>, k: &TensorView<'_>, v: &TensorView<'_>) -> Result<(), ProblemError> {
    if problem.paged_kv().is_some() {
        return Err(ProblemError::Unsupported {
            what: "the float64 reference",
            feature: "paged K/V",
            remedy: "gather the pages into contiguous K and V first",
        });
    }
    problem.check_inputs(q, k, v)
}

/// K and V of one head in float64.
struct Keys {
    /// Transposed, `[head_dim][seq_len_kv]`: the loop over keys is then one the compiler vectorises.
    k_columns: Vec<Vec<f64>>,
    /// `[seq_len_kv][head_dim_v]`.
    v_rows: Vec<Vec<f64>>,
}

impl Keys {
    fn widen(k: &TensorView<'_>, v: &TensorView<'_>, b: usize, kv_head: usize) -> Keys {
        let [_, seq_len_kv, _, head_dim] = k.layout().shape;
        let head_dim_v = v.layout().shape[3];
        let element = |t: &TensorView<'_>, s, d| t.value(b, s, kv_head, d);
        Keys {
            k_columns: (0..head_dim)
                .map(|d| (0..seq_len_kv).map(|s| element(k, s, d)).collect())
                .collect(),
            v_rows: (0..seq_len_kv)
                .map(|s| (0..head_dim_v).map(|d| element(v, s, d)).collect())
                .collect(),
        }
    }
}

/// `scale · q·k`, soft-capped, of one query row with a range of keys.
fn scores(
    problem: &Problem,
    keys: &Keys,
    q: &TensorView<'_>,
    [b, h, row]: [usize; 3],
    range: Range<usize>,
) -> Vec<f64> {
    let mut scores = vec![0.0; range.len()];
    for (d, column) in keys.k_columns.iter().enumerate() {
        let q_element = q.value(b, row, h, d);
        for (score, k_element) in scores.iter_mut().zip(&column[range.clone()]) {
            *score += q_element * k_element;
        }
    }
    for score in &mut scores {
        *score *= f64::from(problem.softmax_scale());
        if let Some(cap) = problem.softcap().map(f64::from) {
            *score = cap * (*score / cap).tanh();
        }
    }
    scores
}

/// `exp(score − max)` of each score, their sum, and the maximum.
fn softmax_terms(scores: &[f64]) -> (Vec<f64>, f64, f64) {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum = weights.iter().sum();
    (weights, sum, max)
}

/// `scale · Σ|q·k|` of one query row with a range of keys: what the rounding of a score is relative to.
fn score_magnitudes(
    problem: &Problem,
    keys: &Keys,
    q: &TensorView<'_>,
    [b, h, row]: [usize; 3],
    range: Range<usize>,
) -> Vec<f64> {
    let mut magnitudes = vec![0.0; range.len()];
    for (d, column) in keys.k_columns.iter().enumerate() {
        let q_element = q.value(b, row, h, d).abs() * f64::from(problem.softmax_scale());
        for (magnitude, k_element) in magnitudes.iter_mut().zip(&column[range.clone()]) {
            *magnitude += q_element * k_element.abs();
        }
    }
    magnitudes
}

/// One row of O and its log-sum-exp.
fn attend(problem: &Problem, keys: &Keys, q: &TensorView<'_>, index: [usize; 3]) -> ReferenceRow {
    let visible = problem.visible_keys(index[2]);
    let mut answer = ReferenceRow {
        index,
        out: vec![0.0; problem.head_dim_v()],
        lse: f64::NEG_INFINITY,
        slack: None,
    };
    if visible.is_empty() {
        return answer;
    }
    let (weights, sum, max) = softmax_terms(&scores(problem, keys, q, index, visible.clone()));
    let v_rows = &keys.v_rows[visible.clone()];
    for (weight, v_row) in weights.iter().zip(v_rows) {
        for (o, v_element) in answer.out.iter_mut().zip(v_row) {
            *o += weight * v_element;
        }
    }
    for o in &mut answer.out {
        *o /= sum;
    }
    answer.lse = max + sum.ln();
    if problem.dtype() == DType::E4M3 {
        let magnitudes = score_magnitudes(problem, keys, q, index, visible);
        answer.slack = Some(RowSlack::of(&weights, sum, &magnitudes, v_rows, &answer.out));
    }
    answer
}
