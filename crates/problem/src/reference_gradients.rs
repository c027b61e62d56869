//! The float64 reference of the backward pass: the formulas of [`direction`](crate::direction), one
//! query row after the other, and how far a kernel's rounding may move each element.
//!
//! Gradients are computed from Q, K, V and dO alone: O and the log-sum-exp are recomputed in float64.
//! A kernel reads O in the problem's dtype, and rounds P and dS to it for tensor cores. With the unit
//! roundoff `u` of the dtype (2^-24, 2^-11, 2^-8), the allowed error of an element is
//! [`Tolerance::of_gradient`] and the sum of these parts. `t` are the terms of its sum, of which
//! there are `n`.
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

use crate::reference::{Keys, score_errors, scores, softmax_terms};
use crate::{DType, Gradients, Inputs, Problem, ProblemError, Sequence, TensorView};

/// The float64 gradient of one row of Q, K or V, and the [error](self) that rounding may add to it.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientRow {
    /// `[batch, head, row]` of the tensor; of packed rows `[0, head, row of the tensor]`.
    pub index: [usize; 3],
    /// The gradient, `head_dim` long (of V `head_dim_v`).
    pub values: Vec<f64>,
    /// What is allowed besides [`Tolerance::of_gradient`](crate::Tolerance::of_gradient).
    pub slack: Vec<f64>,
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
    for sequence in 0..problem.batch() {
        for kv_head in 0..problem.num_kv_heads() {
            let Gradients { dq, dk, dv } = reference_gradients_of(problem, inputs, sequence, kv_head)?;
            all.dq.extend(dq);
            all.dk.extend(dk);
            all.dv.extend(dv);
        }
    }
    Ok(all)
}

/// The gradients of one K/V head of one sequence, and of the query heads that share it.
///
/// # Errors
/// As [`reference_gradients`].
///
/// # Panics
/// There is no such sequence or head.
pub fn reference_gradients_of(
    problem: &Problem,
    inputs: &Inputs,
    sequence: usize,
    kv_head: usize,
) -> Result<Gradients<Vec<GradientRow>>, ProblemError> {
    problem.check_direction(crate::Direction::Backward)?;
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    problem.check_inputs(&q, &k, &v)?;
    let Some(saved) = &inputs.saved else {
        let expected = crate::Direction::Backward;
        let given = crate::Direction::Forward;
        return Err(ProblemError::Direction { given, expected });
    };
    let lengths = inputs.lengths.as_slices();
    let sequence = &problem.sequences(&lengths)?[sequence];
    let head = Head {
        problem,
        q: &q,
        dout: &saved.dout.view(),
        keys: &Keys::widen(&k, &v, sequence, kv_head),
        k_rows: &(0..sequence.len_kv)
            .map(|key| row_of(&k, sequence.kv_row(key), kv_head))
            .collect::<Vec<_>>(),
        sequence,
    };
    let mut of_keys = vec![(Sum::new(problem.head_dim()), Sum::new(problem.head_dim_v())); sequence.len_kv];
    let mut dq = Vec::new();
    for h in (0..problem.group_size()).map(|i| kv_head * problem.group_size() + i) {
        for row in 0..sequence.len_q {
            let [b, s] = sequence.q_row(row);
            let sum = head.add_row(row, [b, h, s], &mut of_keys);
            dq.push(sum.row([b, h, s]));
        }
    }
    let (mut dk, mut dv) = (Vec::new(), Vec::new());
    for (key, (of_k, of_v)) in of_keys.iter().enumerate() {
        let Some([b, s]) = sequence.kv_row(key) else { continue };
        dk.push(of_k.row([b, kv_head, s]));
        dv.push(of_v.row([b, kv_head, s]));
    }
    Ok(Gradients { dq, dk, dv })
}

/// An element's unit roundoff, and the least dS and P whose rounding is relative.
fn rounding(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F32 => (2f64.powi(-24), 0.0),
        DType::F16 => (2f64.powi(-11), 2f64.powi(-14)),
        DType::BF16 | DType::E4M3 => (2f64.powi(-8), 0.0),
    }
}

/// Standard deviations that are allowed of a random walk, in units of its largest steps.
const WALK: f64 = 4.0;
/// Of sums in f32 and of `exp2`, relative to what they sum.
const F32_ERROR: f64 = 1.0 / 4_194_304.0;
/// Unit roundoff of f32.
const F32_ROUNDOFF: f64 = 1.0 / 16_777_216.0;
/// Exponentials of larger errors would overflow.
const LARGEST_ERROR: f64 = 300.0;

/// A row of a gradient as it is summed.
#[derive(Clone)]
struct Sum {
    values: Vec<f64>,
    /// Squares of the steps of the random walk, without those of sums in f32.
    squares: Vec<f64>,
    /// Squares of the terms.
    terms: Vec<f64>,
    /// What the worst case allows.
    worst: Vec<f64>,
    count: usize,
}

/// What a vector is added with: see [`Sum`].
struct Term {
    value: f64,
    step: f64,
    worst: f64,
}

impl Sum {
    fn new(columns: usize) -> Sum {
        let zeros = vec![0.0; columns];
        Sum {
            values: zeros.clone(),
            squares: zeros.clone(),
            terms: zeros.clone(),
            worst: zeros,
            count: 0,
        }
    }

    fn add(&mut self, term: &Term, vector: &[f64]) {
        let (square, step) = (term.value * term.value, term.step * term.step);
        let sums = self.values.iter_mut().zip(&mut self.squares);
        let sums = sums.zip(&mut self.terms).zip(&mut self.worst);
        for ((((value, squares), terms), worst), x) in sums.zip(vector) {
            *value += term.value * x;
            *squares += step * x * x;
            *terms += square * x * x;
            *worst += term.worst * x.abs();
        }
        self.count += 1;
    }

    fn row(&self, index: [usize; 3]) -> GradientRow {
        // Sums in f32: each addition rounds what is summed so far.
        let sums = F32_ROUNDOFF * (self.count as f64).sqrt();
        let slack = self.squares.iter().zip(&self.terms).zip(&self.worst);
        let slack = slack.map(|((squares, terms), worst)| WALK * (squares + sums * sums * terms).sqrt() + worst);
        GradientRow {
            index,
            values: self.values.clone(),
            slack: slack.collect(),
        }
    }
}

/// One K/V head of a sequence.
struct Head<'h> {
    problem: &'h Problem,
    q: &'h TensorView<'h>,
    dout: &'h TensorView<'h>,
    keys: &'h Keys,
    k_rows: &'h [Vec<f64>],
    sequence: &'h Sequence<'h>,
}

impl Head<'_> {
    /// Adds what a query row gives to the gradients of the keys, and returns its own.
    fn add_row(&self, row: usize, index @ [b, h, s]: [usize; 3], of_keys: &mut [(Sum, Sum)]) -> Sum {
        let problem = self.problem;
        let mut dq = Sum::new(problem.head_dim());
        let visible = self.sequence.keys.keys(row);
        if visible.is_empty() {
            return dq;
        }
        let (q, dout) = (row_of(self.q, Some([b, s]), h), row_of(self.dout, Some([b, s]), h));
        let scores = scores(problem, self.keys, self.q, index, visible.clone());
        let errors = score_errors(problem, self.keys, self.q, index, visible.clone(), &scores);
        let (weights, sum, max) = softmax_terms(&scores);
        let v_rows = &self.keys.v_rows[visible.clone()];
        let mut out = vec![0.0; problem.head_dim_v()];
        for (weight, v) in weights.iter().zip(v_rows) {
            out.iter_mut().zip(v).for_each(|(o, v)| *o += weight / sum * v);
        }
        let products = || dout.iter().zip(&out).map(|(d, o)| d * o);
        let delta: f64 = products().sum();
        let delta_size: f64 = products().map(f64::abs).sum();
        let (roundoff, least) = rounding(problem.dtype());
        let delta_error = roundoff * (WALK * products().map(|x| x * x).sum::<f64>().sqrt()).min(delta_size);
        let lse_error = F32_ERROR * (max + sum.ln()).abs();
        let (scale, dout_norm) = (f64::from(problem.softmax_scale()), norm(&dout));

        // What the error of Δ, the same for all keys, moves dQ by.
        let mut moved = vec![0.0; problem.head_dim()];
        for (i, key) in visible.enumerate() {
            let (p, v) = (weights[i] / sum, &v_rows[i]);
            let dp: f64 = dout.iter().zip(v).map(|(d, v)| d * v).sum();
            let error = (errors[i] + lse_error).min(LARGEST_ERROR);
            let factor_error = error.exp_m1() + F32_ERROR;
            let (slope, slope_error) = match problem.softcap().map(f64::from) {
                Some(cap) => (1.0 - (scores[i] / cap).powi(2), 2.0 * errors[i] / cap + F32_ERROR),
                None => (1.0, 0.0),
            };
            let ds = p * (dp - delta) * slope;
            let sums = F32_ERROR * p * slope * (dout_norm * norm(v) + delta_size);
            let worst = ds.abs() * factor_error + p * (dp - delta).abs() * slope_error + sums;
            let step = roundoff * ds.abs().max(least);
            let term = |step: f64| Term {
                value: scale * ds,
                step: scale * step,
                worst: scale * worst,
            };
            dq.add(&term(step), &self.k_rows[key]);
            // The walk of dK has `WALK` as a factor already.
            let of_row = delta_error / WALK * p * slope;
            of_keys[key].0.add(&term(step.hypot(of_row)), &q);
            let of_v = Term {
                value: p,
                step: roundoff * p.max(least),
                worst: p * factor_error,
            };
            of_keys[key].1.add(&of_v, &dout);
            moved
                .iter_mut()
                .zip(&self.k_rows[key])
                .for_each(|(moved, k)| *moved += p * slope * k);
        }
        for (worst, moved) in dq.worst.iter_mut().zip(moved) {
            *worst += scale * delta_error * moved.abs();
        }
        dq
    }
}

fn norm(vector: &[f64]) -> f64 {
    vector.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn row_of(tensor: &TensorView<'_>, at: Option<[usize; 2]>, head: usize) -> Vec<f64> {
    let columns = 0..tensor.layout().shape[3];
    columns
        .map(|d| at.map_or(0.0, |[b, s]| tensor.value(b, s, head, d)))
        .collect()
}
