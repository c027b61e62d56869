//! The float64 reference: naive, two-pass attention, simple enough to verify by reading.
//!
//! Elements are widened exactly (e4m3 elements times their scales), all arithmetic is float64, and
//! the result is not rounded. B1 H8 S512 D64 takes about 0.2 s on one core; use [`reference_rows`]
//! for long sequences.

use std::ops::Range;

use crate::slack::{SCORE_ERROR, SUM_ERROR, Slack};
use crate::{DType, Lengths, Problem, ProblemError, Sequence, TensorView, score_limit};

/// About the keys of the largest K block: kernels compute the distances of a block from that of its
/// first key.
const BLOCK: f64 = 256.0;

/// A key whose score is so far below the largest has no weight in f32.
const FAR_BELOW: f64 = 200.0;

/// The float64 result of one query row.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceRow {
    /// `[batch, head, row]` of O; of packed rows, `[0, head, row of the tensor]`.
    pub index: [usize; 3],
    /// The row of O, `head_dim_v` long; 0 if the row is fully masked.
    pub out: Vec<f64>,
    /// The row's log-sum-exp (natural logarithm); −∞ if the row is fully masked.
    pub lse: f64,
    /// The largest score of a visible key, by magnitude of the result: an exponent of 2, without the sink. −∞ if the
    /// row is fully masked.
    pub largest_score: f64,
    /// Rounding error that a kernel may add to the tolerance.
    pub slack: Slack,
}

impl ReferenceRow {
    /// Whether kernels give NaN for the row: its largest score is at or past the [limit](score_limit) of a dtype, or so
    /// close below it that rounding decides. On the CPU the row may be right nevertheless.
    pub fn is_past_limit(&self, dtype: DType) -> bool {
        self.largest_score.is_finite() && self.largest_score.abs() > f64::from(score_limit(dtype)) * (1.0 - 1e-6)
    }
}

/// Computes every row, in the order `[batch, row, head]` of O, of a problem of equal lengths.
///
/// ```
/// use flashcore_problem::{InputKind, Inputs, Problem, reference};
/// let problem = Problem::builder().heads(1, 1).head_dim(64).seq_len(16).build()?;
/// let inputs = Inputs::generate(&problem, InputKind::EqualRows, 1);
/// let rows = reference(&problem, &inputs.q.view(), &inputs.k.view(), &inputs.v.view())?;
/// // Equal scores: the first output is the mean of V's first column.
/// let mean = (0..16).map(|s| f64::from(inputs.v.view().get(0, s, 0, 0))).sum::<f64>() / 16.0;
/// assert!((rows[0].out[0] - mean).abs() < 1e-12);
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
pub fn reference(
    problem: &Problem,
    q: &TensorView<'_>,
    k: &TensorView<'_>,
    v: &TensorView<'_>,
) -> Result<Vec<ReferenceRow>, ProblemError> {
    let lengths = Lengths::default();
    reference_rows(problem, q, k, v, &lengths, &problem.query_rows(&lengths)?)
}

/// Computes some rows, each given as `[batch, head, row]` of O, in the given order. All rows of all
/// sequences are [`Problem::query_rows`].
///
/// # Errors
/// Tensors or lengths that are not the problem's; a row that is of no sequence.
pub fn reference_rows(
    problem: &Problem,
    q: &TensorView<'_>,
    k: &TensorView<'_>,
    v: &TensorView<'_>,
    lengths: &Lengths<&[i32]>,
    rows: &[[usize; 3]],
) -> Result<Vec<ReferenceRow>, ProblemError> {
    problem.check_inputs(q, k, v)?;
    let sequences = problem.sequences(lengths)?;
    let shape = problem.o_layout().shape;
    for (what, index, dim) in rows
        .iter()
        .flat_map(|&[b, h, s]| [("batch index", b, 0), ("head index", h, 2), ("row index", s, 1)])
    {
        ProblemError::check_size(what, index as u128, shape[dim] as u128 - 1)?;
    }
    let found = rows
        .iter()
        .map(|&[b, _, s]| sequences.iter().position(|one| one.row_at([b, s]).is_some()));
    let Some(of_row) = found.collect::<Option<Vec<usize>>>() else {
        let why = "has a row that is of no sequence; take those of `Problem::query_rows`";
        return ProblemError::lengths("rows", why);
    };
    // Group rows by K/V head, so that its keys are widened once.
    let mut order: Vec<usize> = (0..rows.len()).collect();
    let kv_head_of = |i: usize| (of_row[i], rows[i][1] / problem.group_size());
    order.sort_by_key(|&i| kv_head_of(i));
    let mut results: Vec<Option<ReferenceRow>> = vec![None; rows.len()];
    let mut widened: Option<((usize, usize), Keys)> = None;
    for i in order {
        let (of, [b, _, s]) = (kv_head_of(i), rows[i]);
        let sequence = &sequences[of.0];
        let keys = match widened.take() {
            Some((before, keys)) if before == of => keys,
            _ => Keys::widen(&k.of_sequence(of.0), &v.of_sequence(of.0), sequence, of.1),
        };
        let row = sequence.row_at([b, s]).unwrap_or_default();
        let of_row = Row {
            index: rows[i],
            batch: of.0,
            position: row as i64 + i64::from(sequence.keys.diagonal),
        };
        let q = &q.of_sequence(of.0);
        results[i] = Some(attend(problem, &keys, q, of_row, sequence.keys.keys(row)));
        widened = Some((of, keys));
    }
    Ok(results.into_iter().flatten().collect())
}

/// Scaled, soft-capped and biased scores before the mask, dense
/// `[batch, num_heads, seq_len_q, seq_len_kv]`. For kernels that stop after `Q·Kᵀ`.
pub fn reference_scores(
    problem: &Problem,
    q: &TensorView<'_>,
    k: &TensorView<'_>,
    v: &TensorView<'_>,
) -> Result<Vec<f64>, ProblemError> {
    stage(problem, q, k, v, |row_scores, _| row_scores)
}

/// Softmax probabilities before `P·V`, dense `[batch, num_heads, seq_len_q, seq_len_kv]`; masked
/// keys are 0. Sinks do not count: those of a row sum to 1.
pub fn reference_probabilities(
    problem: &Problem,
    q: &TensorView<'_>,
    k: &TensorView<'_>,
    v: &TensorView<'_>,
) -> Result<Vec<f64>, ProblemError> {
    stage(problem, q, k, v, |row_scores, visible| {
        let (weights, sum, _) = softmax_terms(&row_scores[visible.clone()], None);
        let mut probabilities = vec![0.0; row_scores.len()];
        for (p, weight) in probabilities[visible].iter_mut().zip(weights) {
            *p = weight / sum;
        }
        probabilities
    })
}

/// Concatenates `finish(scores with all keys, visible keys)` over all rows.
fn stage(
    problem: &Problem,
    q: &TensorView<'_>,
    k: &TensorView<'_>,
    v: &TensorView<'_>,
    finish: impl Fn(Vec<f64>, Range<usize>) -> Vec<f64>,
) -> Result<Vec<f64>, ProblemError> {
    problem.check_inputs(q, k, v)?;
    let mut all = Vec::new();
    for (b, sequence) in problem.sequences(&Lengths::default())?.iter().enumerate() {
        for h in 0..problem.num_heads() {
            let keys = Keys::widen(k, v, sequence, h / problem.group_size());
            for row in 0..problem.seq_len_q() {
                let mut scores = scores(problem, &keys, q, [b, h, row], 0..problem.seq_len_kv());
                let of_row = Row {
                    index: [b, h, row],
                    batch: b,
                    position: row as i64 + i64::from(sequence.keys.diagonal),
                };
                of_row.bias(q, 0..problem.seq_len_kv(), &mut scores);
                all.extend(finish(scores, problem.visible_keys(row)));
            }
        }
    }
    Ok(all)
}

/// K and V of one head in float64.
pub(crate) struct Keys {
    /// Transposed, `[head_dim][seq_len_kv]`, so that the compiler vectorises the loop over keys.
    k_columns: Vec<Vec<f64>>,
    /// Norm of each row of K.
    k_norms: Vec<f64>,
    /// `[seq_len_kv][head_dim_v]`.
    pub(crate) v_rows: Vec<Vec<f64>>,
}

impl Keys {
    pub(crate) fn widen(k: &TensorView<'_>, v: &TensorView<'_>, sequence: &Sequence<'_>, kv_head: usize) -> Keys {
        let k_rows = rows_of_head(k, sequence, kv_head);
        let column = |d: usize| k_rows.iter().map(|row| row[d]).collect();
        Keys {
            k_norms: k_rows.iter().map(|row| norm(row)).collect(),
            k_columns: (0..k.layout().shape[3]).map(column).collect(),
            v_rows: rows_of_head(v, sequence, kv_head),
        }
    }
}

/// K or V of one head in float64. A key whose page is not there is 0.
pub(crate) fn rows_of_head(tensor: &TensorView<'_>, sequence: &Sequence<'_>, kv_head: usize) -> Vec<Vec<f64>> {
    let keys = 0..sequence.len_kv;
    keys.map(|key| row_of(tensor, sequence.kv_row(key), kv_head)).collect()
}

pub(crate) fn row_of(tensor: &TensorView<'_>, at: Option<[usize; 2]>, head: usize) -> Vec<f64> {
    let columns = 0..tensor.layout().shape[3];
    columns
        .map(|d| at.map_or(0.0, |[b, s]| tensor.value(b, s, head, d)))
        .collect()
}

pub(crate) fn norm(vector: &[f64]) -> f64 {
    vector.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// `Σ of(q)·of(k)` of one query row and a range of keys.
fn dot_products(
    keys: &Keys,
    q: &TensorView<'_>,
    [b, h, row]: [usize; 3],
    range: Range<usize>,
    of: impl Fn(f64) -> f64,
) -> Vec<f64> {
    let mut sums = vec![0.0; range.len()];
    for (d, column) in keys.k_columns.iter().enumerate() {
        let q_element = of(q.value(b, row, h, d));
        for (sum, k_element) in sums.iter_mut().zip(&column[range.clone()]) {
            *sum += q_element * of(*k_element);
        }
    }
    sums
}

/// `scale · q·k`, soft-capped, of one query row and a range of keys.
pub(crate) fn scores(
    problem: &Problem,
    keys: &Keys,
    q: &TensorView<'_>,
    row: [usize; 3],
    range: Range<usize>,
) -> Vec<f64> {
    let mut scores = dot_products(keys, q, row, range, |x| x);
    for score in &mut scores {
        *score *= f64::from(problem.softmax_scale());
        if let Some(cap) = problem.softcap().map(f64::from) {
            *score = cap * (*score / cap).tanh();
        }
    }
    scores
}

/// `exp(score − max)` of each score, their sum, and the maximum. The last two include the sink.
pub(crate) fn softmax_terms(scores: &[f64], sink: Option<f64>) -> (Vec<f64>, f64, f64) {
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
    (weights, sum, max)
}

/// A query row, and what its bias depends on.
struct Row {
    /// `[batch, head, row]` of O.
    index: [usize; 3],
    /// The sequence's number.
    batch: usize,
    /// The key at its position.
    position: i64,
}

impl Row {
    fn slope(&self, q: &TensorView<'_>) -> Option<f64> {
        q.alibi_slope(self.batch, self.index[1]).map(f64::from)
    }

    fn distance(&self, key: usize) -> f64 {
        (self.position - key as i64).abs() as f64
    }

    /// Subtracts ALiBi's bias from the scores of a range of keys.
    fn bias(&self, q: &TensorView<'_>, range: Range<usize>, scores: &mut [f64]) {
        if let Some(slope) = self.slope(q) {
            for (key, score) in range.zip(scores) {
                *score -= slope * self.distance(key);
            }
        }
    }

    /// What ALiBi's rounding adds to the errors of scores ([`slack`](crate::slack)).
    fn bias_errors(&self, q: &TensorView<'_>, range: Range<usize>, scores: &[f64], errors: &mut [f64]) {
        if let Some(slope) = self.slope(q) {
            for ((key, score), error) in range.zip(scores).zip(errors) {
                *error += SCORE_ERROR * (2.0 * slope * (self.distance(key) + BLOCK) + score.abs());
            }
        }
    }
}

fn attend(problem: &Problem, keys: &Keys, q: &TensorView<'_>, row: Row, visible: Range<usize>) -> ReferenceRow {
    let index = row.index;
    let sink = q.sink(index[1]).map(f64::from).filter(|sink| sink.is_finite());
    let mut result = ReferenceRow {
        index,
        out: vec![0.0; problem.head_dim_v()],
        lse: sink.unwrap_or(f64::NEG_INFINITY),
        largest_score: f64::NEG_INFINITY,
        slack: Slack::none(problem.head_dim_v()),
    };
    if visible.is_empty() {
        return result;
    }
    let mut scores = scores(problem, keys, q, index, visible.clone());
    let mut errors = score_errors(problem, keys, q, index, visible.clone(), &scores);
    row.bias(q, visible.clone(), &mut scores);
    row.bias_errors(q, visible.clone(), &scores, &mut errors);
    result.largest_score = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max) * std::f64::consts::LOG2_E;
    let (weights, sum, max) = softmax_terms(&scores, sink);
    let v_rows = &keys.v_rows[visible];
    for (weight, v_row) in weights.iter().zip(v_rows) {
        for (o, v_element) in result.out.iter_mut().zip(v_row) {
            *o += weight * v_element;
        }
    }
    for o in &mut result.out {
        *o /= sum;
    }
    result.lse = max + sum.ln();
    let sink = sink.map(|sink| ((sink - max).exp(), SCORE_ERROR * sink.abs()));
    result.slack = Slack::of(problem.dtype(), &weights, sum, &errors, v_rows, &result.out, sink);
    result
}

/// How far the scores of one query row and a range of keys may be off: [`slack`](crate::slack).
pub(crate) fn score_errors(
    problem: &Problem,
    keys: &Keys,
    q: &TensorView<'_>,
    row @ [b, h, s]: [usize; 3],
    range: Range<usize>,
    scores: &[f64],
) -> Vec<f64> {
    let scale = f64::from(problem.softmax_scale());
    // What remains of an exact score is the rounding of the scale, a relative error that all scores share.
    let is_exact = is_one_product(problem, keys, q, row, range.clone());
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut errors = match problem.dtype() {
        _ if is_exact => {
            let below = |score: &f64| 2.0 * SCORE_ERROR * (max - score).min(FAR_BELOW);
            scores.iter().map(below).collect()
        }
        DType::E4M3 => {
            let sums = dot_products(keys, q, row, range, f64::abs);
            sums.iter().map(|sum| SUM_ERROR * scale * sum).collect()
        }
        _ => {
            let q_norm = norm(&row_of(q, Some([b, s]), h));
            let of_norm = |norm: &f64| SCORE_ERROR * scale * q_norm * norm;
            keys.k_norms[range].iter().map(of_norm).collect::<Vec<f64>>()
        }
    };
    if let Some(cap) = problem.softcap().map(f64::from) {
        for (error, score) in errors.iter_mut().zip(scores) {
            let slope = 1.0 - (score / cap) * (score / cap);
            *error = (slope * *error).min(2.0 * cap) + SCORE_ERROR * score.abs();
        }
    }
    errors
}

/// Whether all scores of a row are one product each, of elements that f32 holds exactly; e4m3 elements have four bits.
/// A product that f32 does not reach has no error that matters.
fn is_one_product(
    problem: &Problem,
    keys: &Keys,
    q: &TensorView<'_>,
    [b, h, s]: [usize; 3],
    range: Range<usize>,
) -> bool {
    let mut elements = (0..problem.head_dim())
        .map(|d| (d, q.value(b, s, h, d)))
        .filter(|(_, x)| *x != 0.0);
    let (Some((d, x)), None) = (elements.next(), elements.next()) else {
        return false;
    };
    let is_exact = |k: &f64| {
        let product = x * k;
        let is_out_of_range = !(f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&product.abs());
        is_out_of_range || f64::from(product as f32) == product
    };
    problem.dtype() == DType::E4M3 || keys.k_columns[d][range].iter().all(is_exact)
}
