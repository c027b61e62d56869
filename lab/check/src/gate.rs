//! The gate: compares an output with the float64 reference, and checks that the bytes between its
//! elements still hold their poison.

use std::panic::resume_unwind;
use std::thread;

use flashcore_kernels::Tap;
use flashcore_problem::rng::Rng;
use flashcore_problem::{
    Comparison, DType, GapWritten, GradientRow, Gradients, Inputs, Problem, ProblemError, ReferenceRow, Sequence,
    Tensor, Tolerance, compare, compare_gradient, compare_lse, compare_tap, others_untouched, reference_gradient_rows,
    reference_gradients, reference_probabilities, reference_rows, reference_scores,
};
use serde::Serialize;

/// Products up to which every row is compared (about half a second). Beyond, rows are sampled.
const MAX_PRODUCTS: u64 = 400_000_000;

/// The result of the comparison. Prints as one line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gate {
    /// The output, or a tap of it, compared with the reference; of a backward pass the gradient that is
    /// furthest from it.
    pub out: Comparison,
    /// Which gradient that is: `dq`, `dk` or `dv`.
    pub gradient: Option<&'static str>,
    /// The log-sum-exp compared with the reference, if the problem returns it.
    pub lse: Option<Comparison>,
    /// Bytes written between the output's elements, if any.
    pub gaps: Option<GapWritten>,
    /// The tolerance.
    pub tolerance: Tolerance,
    /// Compared rows (of a head of a sequence).
    pub rows: usize,
    /// All rows.
    pub all_rows: usize,
}

impl Gate {
    fn of(out: Comparison, tolerance: Tolerance, rows: usize, all_rows: usize) -> Gate {
        Gate {
            out,
            gradient: None,
            lse: None,
            gaps: None,
            tolerance,
            rows,
            all_rows,
        }
    }

    /// The same where an error may be so many times the default tolerance.
    pub(crate) fn within(mut self, factor: f64) -> Gate {
        self.tolerance.atol *= factor;
        self.tolerance.rtol *= factor;
        for found in std::iter::once(&mut self.out).chain(&mut self.lse) {
            *found = within(*found, factor);
        }
        self
    }

    /// Whether everything is right.
    pub fn passed(&self) -> bool {
        let right = |found: &Comparison| found.passed || self.all_rows == 0;
        right(&self.out) && self.lse.as_ref().is_none_or(right) && self.gaps.is_none()
    }
}

/// A comparison where an error may be so many times what its tolerance allows.
pub fn within(mut found: Comparison, factor: f64) -> Comparison {
    if factor != 1.0 {
        found.passed = found.elements > 0 && found.nan == 0 && found.of_allowed <= factor;
    }
    found
}

impl std::fmt::Display for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(gradient) = self.gradient {
            write!(f, "{gradient} ")?;
        }
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

/// Compares an output with the reference: every row if that takes well under a second, otherwise
/// the first row, the last row and others sampled by `seed`.
///
/// `out` must have started as [`Tensor::poisoned`], and `lse` (if the problem returns it) as the
/// same byte, so that elements that were never written are recognised.
pub fn gate(
    problem: &Problem,
    inputs: &Inputs,
    out: &Tensor,
    lse: Option<&[f32]>,
    seed: u64,
) -> Result<Gate, ProblemError> {
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let lengths = inputs.lengths.as_slices();
    let mut rows = problem.query_rows(&lengths)?;
    let products_a_row = (problem.seq_len_kv() * (problem.head_dim() + problem.head_dim_v())) as u64;
    let affordable = (MAX_PRODUCTS / products_a_row).max(16);
    if rows.len() as u64 > affordable {
        rows = draw_rows(&rows, affordable as usize, seed);
    }
    let want = reference_rows(problem, &q, &k, &v, &lengths, &rows)?;
    let lse = lse.filter(|_| problem.return_lse());
    let lse = lse.map(|lse| (lse, Tolerance::of(problem.dtype())));
    gate_rows(problem, inputs, &want, out, lse)
}

/// The same with the rows that are right, and a tolerance of the log-sum-exp.
///
/// # Errors
/// Inputs or an output that are not those of the problem.
pub fn gate_rows(
    problem: &Problem,
    inputs: &Inputs,
    want: &[ReferenceRow],
    out: &Tensor,
    lse: Option<(&[f32], Tolerance)>,
) -> Result<Gate, ProblemError> {
    let tolerance = Tolerance::of(problem.dtype());
    let rows = problem.query_rows(&inputs.lengths.as_slices())?;
    let all_rows = rows.len();
    let gaps = others_untouched(&out.view(), rows).err();
    let lse = lse.map(|(lse, tolerance)| compare_lse(problem, lse, want, tolerance));
    let out = compare(problem, &out.view(), want, tolerance)?;
    Ok(Gate {
        lse: lse.transpose()?,
        gaps,
        ..Gate::of(out, tolerance, want.len(), all_rows)
    })
}

/// Compares the stored values of a tap, from [`finish`](crate::taps::finish), with the same
/// values of the reference: every row, with the tolerance of f32, since nothing has been rounded to
/// the problem's dtype yet.
pub(crate) fn gate_tap(problem: &Problem, inputs: &Inputs, tap: Tap, values: &[f32]) -> Result<Gate, ProblemError> {
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let want = match tap {
        Tap::Scores => reference_scores(problem, &q, &k, &v)?,
        Tap::Probabilities | Tap::Values => reference_probabilities(problem, &q, &k, &v)?,
    };
    let tolerance = Tolerance::of(DType::F32);
    let (out, rows) = (compare_tap(problem, values, &want, tolerance)?, problem.lse_len());
    Ok(Gate::of(out, tolerance, rows, rows))
}

/// Compares the gradients, which are in the order of [`Problem::outputs`], with the reference in the
/// rows that [`right_gradients`] has. They must have started as [`Tensor::poisoned`].
///
/// # Errors
/// Inputs or gradients that are not those of the problem.
pub fn gate_gradients(problem: &Problem, inputs: &Inputs, got: &[Tensor], seed: u64) -> Result<Gate, ProblemError> {
    let want = right_gradients(problem, inputs, seed)?;
    let tolerance = Tolerance::of_gradient(problem.dtype());
    let sequences = &problem.sequences(&inputs.lengths.as_slices())?;
    let keys = |heads: usize| -> Vec<[usize; 3]> {
        let of_head = |one: &Sequence<'_>, h: usize| -> Vec<[usize; 3]> {
            let places = (0..one.len_kv).filter_map(|key| one.kv_row(key));
            places.map(|[b, s]| [b, h, s]).collect()
        };
        let heads = sequences.iter().flat_map(|one| (0..heads).map(move |h| (one, h)));
        heads.flat_map(|(one, h)| of_head(one, h)).collect()
    };
    let of_keys = keys(problem.num_kv_heads());
    let all = [
        problem.query_rows(&inputs.lengths.as_slices())?,
        of_keys.clone(),
        of_keys,
    ];
    let rows = want.each().iter().map(|rows| rows.len()).sum();
    let mut gate = Gate::of(Comparison::default(), tolerance, rows, all.iter().map(Vec::len).sum());
    for (i, (name, got)) in Gradients::<()>::NAMES.into_iter().zip(got).enumerate() {
        let (got, want) = (got.view(), want.each()[i]);
        if let Err(gaps) = others_untouched(&got, all[i].iter().copied()) {
            gate.gaps = Some(gaps);
        }
        let found = compare_gradient(name, &got, want, tolerance)?;
        let failures = (found.failures, gate.out.failures);
        let further = failures.0 > failures.1 || failures.0 == failures.1 && found.of_allowed > gate.out.of_allowed;
        if !want.is_empty() && (further || gate.gradient.is_none()) {
            (gate.out, gate.gradient) = (found, Some(name));
        }
    }
    Ok(gate)
}

/// FLOPs of a backward pass up to which every row of the gradients is computed: one to two seconds.
const WHOLE_FLOPS: f64 = 1.5e9;
/// Heads from which rows of dQ are taken where only some are computed, and rows of each.
const ROW_HEADS: usize = 8;
const ROWS_A_HEAD: usize = 16;
/// Most K/V heads from which keys are taken, and keys of each. A key takes a forward pass of all rows that see it.
const KEY_HEADS: usize = 4;
const KEYS_A_HEAD: usize = 32;
/// Operations that those forward passes may take, if one K/V head takes no more.
const KEY_FLOPS: f64 = 4e9;

/// The float64 gradients of inputs: every row if that takes a second or two, otherwise, drawn by the seed, rows of dQ
/// from some query heads and rows of dK and dV from some K/V heads, among them the first and the last of each.
///
/// # Errors
/// Inputs that are not those of the problem, or a forward problem.
pub fn right_gradients(
    problem: &Problem,
    inputs: &Inputs,
    seed: u64,
) -> Result<Gradients<Vec<GradientRow>>, ProblemError> {
    if problem.flops() <= WHOLE_FLOPS {
        return reference_gradients(problem, inputs);
    }
    let sequences = problem.sequences(&inputs.lengths.as_slices())?;
    let longest = sequences.iter().map(|one| one.len_q * one.len_kv).max().unwrap_or(0);
    let columns = problem.head_dim() + problem.head_dim_v();
    let of_head = 2.0 * (longest * problem.group_size() * columns) as f64;
    let key_heads = ((KEY_FLOPS / of_head) as usize).clamp(1, KEY_HEADS);
    let with_rows: Vec<usize> = (0..sequences.len()).filter(|&at| sequences[at].len_q > 0).collect();
    let with_keys: Vec<usize> = (0..sequences.len()).filter(|&at| sequences[at].len_kv > 0).collect();
    let (mut rng, group) = (Rng::stream(seed, 78), problem.group_size());
    let (mut of_rows, mut of_keys) = (Vec::new(), Vec::new());
    for _ in 0..ROW_HEADS {
        let Some(&sequence) = rng.pick(&with_rows) else { break };
        let head = rng.below(problem.num_heads());
        let rows = some_of(sequences[sequence].len_q, ROWS_A_HEAD, &mut rng);
        let rows: Vec<[usize; 2]> = rows.into_iter().map(|row| [head, row]).collect();
        of_rows.push(((sequence, head / group), rows));
    }
    for _ in 0..key_heads {
        let Some(&sequence) = rng.pick(&with_keys) else { break };
        let kv_head = rng.below(problem.num_kv_heads());
        let keys = some_of(sequences[sequence].len_kv, KEYS_A_HEAD, &mut rng);
        of_keys.push(((sequence, kv_head), keys));
    }
    let rows_of =
        |(head, rows): &((usize, usize), Vec<[usize; 2]>)| reference_gradient_rows(problem, inputs, *head, rows, &[]);
    let keys_of = |(head, keys): &((usize, usize), Vec<usize>)| {
        // On all cores by itself.
        reference_gradient_rows(problem, inputs, *head, &[], keys)
    };
    let found: Vec<Result<_, ProblemError>> = thread::scope(|scope| {
        let running: Vec<_> = of_rows.iter().map(|one| scope.spawn(move || rows_of(one))).collect();
        let ended = running
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|why| resume_unwind(why)));
        ended.collect()
    });
    let mut all = Gradients::<Vec<GradientRow>>::default();
    for some in found.into_iter().chain(of_keys.iter().map(keys_of)) {
        let some = some?;
        all.dq.extend(some.dq);
        all.dk.extend(some.dk);
        all.dv.extend(some.dv);
    }
    Ok(all)
}

/// So many of `0..len`: the first, the last, and random others.
pub fn some_of(len: usize, count: usize, rng: &mut Rng) -> Vec<usize> {
    let others = (2..count).map(|_| rng.below(len));
    let mut places: Vec<usize> = [0, len - 1].into_iter().chain(others).collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// `count` of the rows: the first, the last, and random others.
fn draw_rows(all: &[[usize; 3]], count: usize, seed: u64) -> Vec<[usize; 3]> {
    let places = some_of(all.len(), count, &mut Rng::new(seed));
    places.into_iter().map(|place| all[place]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_problem::{InputKind, POISON, reference};

    /// The reference's own answer, rounded to the problem's dtype.
    fn answer(problem: &Problem, inputs: &Inputs) -> (Tensor, Vec<f32>) {
        let want = reference(problem, &inputs.q.view(), &inputs.k.view(), &inputs.v.view()).unwrap();
        let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
        let mut lse = vec![0.0; problem.lse_len()];
        for row in &want {
            let [b, h, s] = row.index;
            lse[(b * problem.num_heads() + h) * problem.seq_len_q() + s] = row.lse as f32;
            for (d, &x) in row.out.iter().enumerate() {
                out.set(b, s, h, d, x as f32);
            }
        }
        (out, lse)
    }

    #[test]
    fn right_answers_pass_and_wrong_ones_do_not() {
        let problem = Problem::builder()
            .heads(1, 1)
            .head_dim(64)
            .seq_len(24)
            .return_lse(true)
            .build()
            .unwrap();
        let inputs = Inputs::generate(&problem, InputKind::Normal, 3);
        let (mut out, mut lse) = answer(&problem, &inputs);
        assert!(gate(&problem, &inputs, &out, Some(&lse), 0).unwrap().passed());
        lse[5] += 1.0;
        let wrong_lse = gate(&problem, &inputs, &out, Some(&lse), 0).unwrap();
        assert!(!wrong_lse.passed() && wrong_lse.out.passed);
        assert!(wrong_lse.to_string().contains("log-sum-exp FAIL"), "{wrong_lse}");
        out.set(0, 3, 0, 2, 9.0);
        assert_eq!(gate(&problem, &inputs, &out, Some(&lse), 0).unwrap().out.failures, 1);
    }

    #[test]
    fn long_problems_are_sampled() {
        let problem = Problem::builder()
            .head_dim(64)
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
    #[test]
    fn a_tap_that_was_not_computed_does_not_pass() {
        let problem = Problem::named("tiny").unwrap();
        let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
        let not_computed = vec![0.0; flashcore_kernels::tap::len(&problem)];
        assert!(
            !gate_tap(&problem, &inputs, Tap::Scores, &not_computed)
                .unwrap()
                .passed()
        );
    }

    #[test]
    fn long_backward_problems_are_sampled_and_a_wrong_gradient_is_seen() {
        let problem = Problem::builder().heads(4, 2).head_dim(64).seq_len(1024);
        let problem = problem.dtype(DType::BF16).build().unwrap().backward().unwrap();
        let inputs = Inputs::before_forward(&problem, InputKind::Normal, 3);
        let gradients = || [0, 1, 2].map(|at| Tensor::poisoned(DType::BF16, problem.outputs()[at].2));
        let found = gate_gradients(&problem, &inputs, &gradients(), 5).unwrap();
        assert_eq!(found.all_rows, 1024 * (4 + 2 + 2));
        assert!(found.rows > 100 && found.rows < found.all_rows, "{found}");
        assert!(!found.passed() && found.out.unwritten == found.out.elements, "{found}");
        // The reference's own rows pass, and one that is off does not.
        let want = right_gradients(&problem, &inputs, 5).unwrap();
        let mut right = gradients();
        for (to, rows) in right.iter_mut().zip(want.each()) {
            for row in rows {
                let [b, h, s] = row.index;
                let set = |(d, x): (usize, &f64)| to.set(b, s, h, d, *x as f32);
                row.values.iter().enumerate().for_each(set);
            }
        }
        assert!(gate_gradients(&problem, &inputs, &right, 5).unwrap().passed());
        let [b, h, s] = want.dk[7].index;
        right[1].set(b, s, h, 9, 3.0);
        let found = gate_gradients(&problem, &inputs, &right, 5).unwrap();
        assert_eq!(
            (found.passed(), found.gradient, found.out.failures),
            (false, Some("dk"), 1)
        );
    }
}
