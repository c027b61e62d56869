//! The float64 reference of the backward pass: the formulas of [`direction`](crate::direction), one
//! query row after the other, and how far a kernel's rounding may move each element.
//!
//! Gradients are computed from Q, K, V and dO alone: O and the log-sum-exp are recomputed in float64. A kernel reads O
//! in the problem's dtype, and rounds P and dS to it for tensor cores. With the unit roundoff `u` of the dtype (2^-24,
//! 2^-11, 2^-8), the allowed error of an element is [`Tolerance::of_gradient`](crate::Tolerance::of_gradient) and the
//! sum of these parts. `t` are the terms of its sum, of which there are `n`.
//!
//! 1. **Rounding of terms.** dS (for dV, P) is rounded to the dtype, and sums are accumulated in f32:
//!    `4 · (u + 2^-24·√n) · sqrt(Σ t²)`, a random walk. The common part of the errors is relative to
//!    the element, and is in the tolerance. Below fp16's smallest normal number, 2^-14, the error is
//!    absolute: terms count as if dS and P were at least that.
//! 2. **Rounding of O** moves Δ of a row by `e = 4 · u · sqrt(Σ (dO·O)²)`. It moves dQ by
//!    `e · scale · |Σ_j P_ij k_j|`; the errors of different rows are independent, so that they are
//!    part of the random walk of dK.
//! 3. **f32.** dP and Δ are sums in f32: `2^-22 · P · (|dO_i|·|v_j| + Σ|dO·O|)` for each dS.
//! 4. **Scores.** P has the factor `exp(±e)` of an error `e` of its score ([`slack`](crate::slack)) or
//!    of the f32 log-sum-exp, `2^-22·|lse|`: `Σ |t|·(exp(e) − 1)`. The derivative of a soft cap is
//!    off by `2·e/cap + 2^-22`.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use rayon::prelude::*;

use crate::gradient_sums::{F32_ERROR, Sum, Term, rounding};
use crate::reference::{Keys, norm, row_of, rows_of_head, score_errors, scores, softmax_terms};
use crate::slack::{LARGEST_ERROR, WALK};
use crate::{Direction, GRADIENT_LIMIT, Gradients, Inputs, Problem, ProblemError, Sequence, TensorView};

/// Rows that share a pass over K and V, and keys of a block of it: half a megabyte at head_dim 256.
const BLOCK_ROWS: usize = 8;
const BLOCK_KEYS: usize = 256;
/// Rows whose sums a thread adds before it takes others, and how many such sums are in memory at a time.
const PART_ROWS: usize = 64;
const PARTS: usize = 32;

/// The float64 gradient of one row of Q, K or V, and the error that rounding may add to it.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientRow {
    /// `[batch, head, row]` of the tensor; of packed rows `[0, head, row of the tensor]`.
    pub index: [usize; 3],
    /// The gradient, `head_dim` long (of V `head_dim_v`).
    pub values: Vec<f64>,
    /// What is allowed besides [`Tolerance::of_gradient`](crate::Tolerance::of_gradient).
    pub slack: Vec<f64>,
    /// Whether the row may be NaN instead: the log-sum-exp of the query row, or of any query row of the same K/V head,
    /// is past the [limit](crate::GRADIENT_LIMIT).
    pub may_be_nan: bool,
}

/// The gradients of every row of every sequence.
///
/// ```
/// use flashcore_problem::{InputKind, Inputs, Problem, reference_gradients};
/// let problem = Problem::builder().heads(2, 1).head_dim(8).seq_len(5).build()?.backward()?;
/// let want = reference_gradients(&problem, &Inputs::generate(&problem, InputKind::Normal, 1))?;
/// assert_eq!((want.dq.len(), want.dk.len()), (2 * 5, 5));
/// // Moving all keys by one vector changes no probability: the gradients of the keys add up to zero.
/// let sum: f64 = want.dk.iter().map(|row| row.values[3]).sum();
/// assert!(sum.abs() < 1e-12);
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
///
/// # Errors
/// Inputs of another problem, or of a forward one.
pub fn reference_gradients(problem: &Problem, inputs: &Inputs) -> Result<Gradients<Vec<GradientRow>>, ProblemError> {
    let mut all = Gradients::<Vec<GradientRow>>::default();
    for (number, one) in problem.sequences(&inputs.lengths.as_slices())?.iter().enumerate() {
        for kv_head in 0..problem.num_kv_heads() {
            let rows: Vec<_> = rows_of_kv_head(problem, one, kv_head).collect();
            let keys: Vec<_> = (0..one.len_kv).collect();
            let found = reference_gradient_rows(problem, inputs, (number, kv_head), &rows, &keys)?;
            all.dq.extend(found.dq);
            all.dk.extend(found.dk);
            all.dv.extend(found.dv);
        }
    }
    Ok(all)
}

/// `[head, row]` of all rows of the heads that share a K/V head.
fn rows_of_kv_head(
    problem: &Problem,
    sequence: &Sequence<'_>,
    kv_head: usize,
) -> impl Iterator<Item = [usize; 2]> + use<> {
    let (group, rows) = (problem.group_size(), sequence.len_q);
    let heads = kv_head * group..(kv_head + 1) * group;
    heads.flat_map(move |h| (0..rows).map(move |row| [h, row]))
}

/// The gradients of some query rows, each given as `[head, row]`, and of some keys of one K/V head of
/// one sequence: what a long problem is judged by. The heads are those that share the K/V head, and
/// rows and keys count from the sequence's first. Keys take a forward pass of all rows that see them,
/// which all cores share; the result does not depend on how many there are.
///
/// # Errors
/// As [`reference_gradients`].
///
/// # Panics
/// There is no such sequence, head, row or key.
pub fn reference_gradient_rows(
    problem: &Problem,
    inputs: &Inputs,
    (sequence, kv_head): (usize, usize),
    rows: &[[usize; 2]],
    keys: &[usize],
) -> Result<Gradients<Vec<GradientRow>>, ProblemError> {
    let head = &Head::new(problem, inputs, sequence, kv_head)?;
    let wanted: HashSet<[usize; 2]> = rows.iter().copied().collect();
    let ends = keys.iter().min().zip(keys.iter().max());
    let sees = |[_, row]: &[usize; 2]| {
        let visible = head.sequence.keys.keys(*row);
        ends.is_some_and(|(first, last)| visible.start <= *last && *first < visible.end)
    };
    let all_rows = rows_of_kv_head(problem, &head.sequence, kv_head);
    let needed: Vec<[usize; 2]> = all_rows.filter(|row| wanted.contains(row) || sees(row)).collect();
    let of_part = |part: &[[usize; 2]]| {
        let (mut dq, mut sums) = (Vec::new(), vec![head.sums(); keys.len()]);
        let computed = part
            .chunks(BLOCK_ROWS)
            .flat_map(|block| block.iter().zip(head.rows(block)));
        for (place, row) in computed {
            let mut of_row = Vec::new();
            if wanted.contains(place) {
                of_row.extend(row.visible.clone().map(|key| head.terms(&row, key)));
                dq.push((*place, head.dq(&row, &of_row)));
            }
            for (key, sums) in keys.iter().zip(&mut sums).filter(|(key, _)| row.visible.contains(key)) {
                match of_row.get(key - row.visible.start) {
                    Some(terms) => sums.add(&row, terms),
                    None => sums.add(&row, &head.terms(&row, *key)),
                }
            }
        }
        (dq, sums)
    };
    let (mut dq, mut sums) = (HashMap::new(), vec![head.sums(); keys.len()]);
    for parts in needed.chunks(PART_ROWS * PARTS) {
        let parts: Vec<_> = parts.par_chunks(PART_ROWS).map(of_part).collect();
        // In one order, however many threads there were.
        for (of_rows, of_keys) in parts {
            dq.extend(of_rows);
            sums.iter_mut().zip(&of_keys).for_each(|(sums, part)| sums.merge(part));
        }
    }
    let past_limit = sums.iter().any(|sums| sums.past_limit);
    // The rows of dK and dV may be NaN if any query row is past the limit.
    let of_key = |(&key, sums): (&usize, KeySums)| {
        let [b, s] = head.sequence.kv_row(key)?;
        Some(
            [sums.dk, sums.dv]
                .map(|sum| sum.row([b, kv_head, s], past_limit))
                .into(),
        )
    };
    let (dk, dv) = keys.iter().zip(sums).filter_map(of_key).unzip();
    let dq = rows.iter().map(|row| dq[row].clone()).collect();
    Ok(Gradients { dq, dk, dv })
}

/// One K/V head of a sequence.
struct Head<'h> {
    problem: &'h Problem,
    q: TensorView<'h>,
    dout: TensorView<'h>,
    keys: Keys,
    k_rows: Vec<Vec<f64>>,
    sequence: Sequence<'h>,
}

/// A query row once its softmax is known.
#[derive(Default)]
struct Row {
    index: [usize; 3],
    visible: Range<usize>,
    q: Vec<f64>,
    dout: Vec<f64>,
    /// Of visible keys: scores and their errors, and P before it is divided by `sum`.
    scores: Vec<f64>,
    errors: Vec<f64>,
    weights: Vec<f64>,
    sum: f64,
    delta: f64,
    /// `Σ |dO·O|`.
    delta_size: f64,
    delta_error: f64,
    lse_error: f64,
    past_limit: bool,
    dout_norm: f64,
}

/// What a pair of a row and a key adds to the gradients of Q, K and V.
struct Terms {
    of_q: Term,
    of_k: Term,
    of_v: Term,
    /// What the error of Δ, the same for all keys of a row, moves dS by.
    moved: f64,
}

/// The gradients of a key as they are summed.
#[derive(Clone)]
struct KeySums {
    dk: Sum,
    dv: Sum,
    /// Whether a row that sees the key is past the limit.
    past_limit: bool,
}

impl KeySums {
    fn add(&mut self, row: &Row, terms: &Terms) {
        self.dk.add(&terms.of_k, &row.q);
        self.dv.add(&terms.of_v, &row.dout);
        self.past_limit |= row.past_limit;
    }

    fn merge(&mut self, part: &KeySums) {
        self.dk.merge(&part.dk);
        self.dv.merge(&part.dv);
        self.past_limit |= part.past_limit;
    }
}

impl<'h> Head<'h> {
    fn new(
        problem: &'h Problem,
        inputs: &'h Inputs,
        sequence: usize,
        kv_head: usize,
    ) -> Result<Head<'h>, ProblemError> {
        problem.check_direction(Direction::Backward)?;
        let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
        problem.check_inputs(&q, &k, &v)?;
        let Some(saved) = &inputs.saved else {
            let (given, expected) = (Direction::Forward, Direction::Backward);
            return Err(ProblemError::Direction { given, expected });
        };
        let sequence = problem.sequences(&inputs.lengths.as_slices())?[sequence];
        Ok(Head {
            problem,
            q,
            dout: saved.dout.view(),
            keys: Keys::widen(&k, &v, &sequence, kv_head),
            k_rows: rows_of_head(&k, &sequence, kv_head),
            sequence,
        })
    }

    fn sums(&self) -> KeySums {
        KeySums {
            dk: Sum::new(self.problem.head_dim()),
            dv: Sum::new(self.problem.head_dim_v()),
            past_limit: false,
        }
    }

    /// A forward pass of some rows, key block by key block, so that these stay in a cache.
    fn rows(&self, block: &[[usize; 2]]) -> Vec<Row> {
        let (problem, keys) = (self.problem, &self.keys);
        let of_row = |&[h, row]: &[usize; 2]| {
            let [b, s] = self.sequence.q_row(row);
            let dout = row_of(&self.dout, Some([b, s]), h);
            Row {
                index: [b, h, s],
                visible: self.sequence.keys.keys(row),
                q: row_of(&self.q, Some([b, s]), h),
                dout_norm: norm(&dout),
                dout,
                sum: 1.0,
                ..Row::default()
            }
        };
        let mut rows: Vec<Row> = block.iter().map(of_row).collect();
        let blocks = || (0..self.sequence.len_kv).step_by(BLOCK_KEYS);
        let part = |row: &Row, start: usize| {
            let within = |at: usize| at.clamp(start, start + BLOCK_KEYS);
            within(row.visible.start)..within(row.visible.end)
        };
        for start in blocks() {
            for row in &mut rows {
                let part = part(row, start);
                if !part.is_empty() {
                    row.scores.extend(scores(problem, keys, &self.q, row.index, part));
                }
            }
        }
        let mut lse = vec![0.0; rows.len()];
        for (row, lse) in rows.iter_mut().zip(&mut lse) {
            if !row.visible.is_empty() {
                row.errors = score_errors(problem, keys, &self.q, row.index, row.visible.clone(), &row.scores);
                let (weights, sum, max) = softmax_terms(&row.scores, None);
                (row.weights, row.sum, *lse) = (weights, sum, max + sum.ln());
            }
        }
        let mut outs = vec![vec![0.0; problem.head_dim_v()]; rows.len()];
        for start in blocks() {
            for (row, out) in rows.iter().zip(&mut outs) {
                for key in part(row, start) {
                    let p = row.weights[key - row.visible.start] / row.sum;
                    out.iter_mut().zip(&keys.v_rows[key]).for_each(|(o, v)| *o += p * v);
                }
            }
        }
        let (roundoff, _) = rounding(problem.dtype());
        for ((row, out), lse) in rows.iter_mut().zip(&outs).zip(lse) {
            let products: Vec<f64> = row.dout.iter().zip(out).map(|(d, o)| d * o).collect();
            row.delta = products.iter().sum();
            row.delta_size = products.iter().map(|x| x.abs()).sum();
            row.delta_error = roundoff * (WALK * norm(&products)).min(row.delta_size);
            row.lse_error = F32_ERROR * lse.abs();
            // Rounding decides just below it.
            row.past_limit = lse.abs() > f64::from(GRADIENT_LIMIT) * (1.0 - 1e-6);
        }
        rows
    }

    /// What a row and a key that it sees add to gradients.
    fn terms(&self, row: &Row, key: usize) -> Terms {
        let (problem, i) = (self.problem, key - row.visible.start);
        let scale = f64::from(problem.softmax_scale());
        let (roundoff, least) = rounding(problem.dtype());
        let (p, v) = (row.weights[i] / row.sum, &self.keys.v_rows[key]);
        let dp: f64 = row.dout.iter().zip(v).map(|(d, v)| d * v).sum();
        let error = (row.errors[i] + row.lse_error).min(LARGEST_ERROR);
        let factor_error = error.exp_m1() + F32_ERROR;
        let (slope, slope_error) = match problem.softcap().map(f64::from) {
            Some(cap) => (
                1.0 - (row.scores[i] / cap).powi(2),
                2.0 * row.errors[i] / cap + F32_ERROR,
            ),
            None => (1.0, 0.0),
        };
        let ds = p * (dp - row.delta) * slope;
        let sums = F32_ERROR * p * slope * (row.dout_norm * norm(v) + row.delta_size);
        let worst = ds.abs() * factor_error + p * (dp - row.delta).abs() * slope_error + sums;
        let step = roundoff * ds.abs().max(least);
        let term = |step: f64| Term {
            value: scale * ds,
            step: scale * step,
            worst: scale * worst,
        };
        // The walk of dK has `WALK` as a factor already.
        let of_row = row.delta_error / WALK * p * slope;
        Terms {
            of_q: term(step),
            of_k: term(step.hypot(of_row)),
            of_v: Term {
                value: p,
                step: roundoff * p.max(least),
                worst: p * factor_error,
            },
            moved: p * slope,
        }
    }

    /// The gradient of a query row, from its terms with all keys that it sees.
    fn dq(&self, row: &Row, terms: &[Terms]) -> GradientRow {
        let columns = self.problem.head_dim();
        let (mut dq, mut moved) = (Sum::new(columns), vec![0.0; columns]);
        for (terms, k) in terms.iter().zip(&self.k_rows[row.visible.clone()]) {
            dq.add(&terms.of_q, k);
            moved.iter_mut().zip(k).for_each(|(moved, k)| *moved += terms.moved * k);
        }
        let scale = f64::from(self.problem.softmax_scale());
        for (column, moved) in dq.columns.iter_mut().zip(moved) {
            column.worst += scale * row.delta_error * moved.abs();
        }
        dq.row(row.index, row.past_limit)
    }
}
