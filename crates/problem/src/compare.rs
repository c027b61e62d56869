//! Compares outputs with the float64 reference, and checks that gaps are unchanged.

use std::fmt;

use serde::Serialize;
use thiserror::Error;

use crate::gradient_sums::rounding;
use crate::tensor::read_element;
use crate::{DType, GradientRow, Layout, POISON, Problem, ProblemError, ReferenceRow, TensorView};

/// Allowed error: `|got − want| ≤ atol + rtol·|want|`, as in `torch.allclose`, and the reference's
/// [`slack`](crate::slack).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tolerance {
    /// Absolute part.
    pub atol: f64,
    /// Relative part.
    pub rtol: f64,
}

impl Tolerance {
    /// The default tolerance of a dtype, absolute and relative: 1e-5 (f32), 1e-3 (fp16), 8e-3
    /// (bf16). For e4m3 it is 2⁻⁸, relative only: twice the rounding error of the bf16 output. The
    /// reference's [`slack`](crate::slack) covers all other rounding of an fp8 kernel.
    pub const fn of(dtype: DType) -> Tolerance {
        let (atol, rtol) = match dtype {
            DType::F32 => (1e-5, 1e-5),
            DType::F16 => (1e-3, 1e-3),
            DType::BF16 => (8e-3, 8e-3),
            DType::E4M3 => (0.0, 1.0 / 256.0),
        };
        Tolerance { atol, rtol }
    }

    /// The tolerance of gradients in a dtype of unit roundoff `u` (2^-24, 2^-11, 2^-8): `3·u + 2^-20`
    /// relative, for the rounding of the element itself, the common part of the rounding of its
    /// terms, and `exp2` in f32; for fp16 also 2^-24 absolute, the spacing of its subnormal numbers.
    /// What the rounding of terms adds is in [`GradientRow::slack`].
    pub const fn of_gradient(dtype: DType) -> Tolerance {
        let atol = match dtype {
            DType::F16 => 1.0 / 16_777_216.0,
            DType::F32 | DType::BF16 | DType::E4M3 => 1e-30,
        };
        let rtol = 3.0 * rounding(dtype).0 + 1.0 / 1_048_576.0;
        Tolerance { atol, rtol }
    }

    /// The allowed error of an element whose correct value is `want`.
    pub fn allowed(&self, want: f64) -> f64 {
        self.atol + self.rtol * want.abs()
    }
}

/// One element of an output and its correct value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// `[batch, row, head, column]`; for a log-sum-exp the column is 0.
    pub index: [usize; 4],
    /// The value the kernel wrote.
    pub got: f64,
    /// The correct value.
    pub want: f64,
}

/// Result of a comparison. Prints as one line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Elements compared.
    pub elements: usize,
    /// Largest `|got − want|`. NaN elements are counted in `nan` instead.
    pub max_abs: f64,
    /// Largest `|got − want| / |want|` over elements with `|want| > atol`.
    pub max_rel: f64,
    /// Largest ratio of error to allowed error, NaN elements aside; above 1 the comparison fails.
    pub of_allowed: f64,
    /// `‖got − want‖ / ‖want‖` (Frobenius norms) over elements where both are finite.
    pub frobenius: f64,
    /// The element with the largest ratio of error to allowed error. NaN exceeds every number.
    pub worst: Option<Worst>,
    /// Elements that exceed their tolerance, including NaNs.
    pub failures: usize,
    /// Elements that are NaN.
    pub nan: usize,
    /// NaN elements that still hold the poison the output was filled with.
    pub unwritten: usize,
    /// An output of zeros would pass, too: no correct value is larger than what is allowed. The
    /// comparison then says little.
    pub zeros_pass: bool,
    /// All elements are within tolerance, and there is at least one.
    pub passed: bool,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: max abs {:.3e}, max rel {:.3e}, frobenius {:.3e} over {} elements",
            if self.passed { "pass" } else { "FAIL" },
            self.max_abs,
            self.max_rel,
            self.frobenius,
            self.elements
        )?;
        if !self.passed {
            write!(
                f,
                "; {} beyond tolerance, {} NaN, {} never written",
                self.failures, self.nan, self.unwritten
            )?;
            if let Some(Worst { index, got, want }) = self.worst {
                write!(f, "; worst at {index:?}: got {got}, want {want}")?;
            }
        }
        Ok(())
    }
}

/// Compares the rows of an output that the reference has, element by element. An element must also lie in the
/// [hull](crate::slack) of V, and a row [past the limit](ReferenceRow::is_past_limit) may be NaN instead, all of it.
///
/// ```
/// use flashcore_problem::{InputKind, Inputs, Problem, Tensor, Tolerance, compare, reference};
/// let problem = Problem::builder().heads(1, 1).head_dim(64).seq_len(8).build()?;
/// let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
/// let want = reference(&problem, &inputs.q.view(), &inputs.k.view(), &inputs.v.view())?;
/// let out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout()); // the kernel's output
/// let result = compare(&problem, &out.view(), &want, Tolerance::of(problem.dtype()))?;
/// assert!(!result.passed);
/// assert_eq!(result.unwritten, 8 * 64);
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
///
/// # Errors
/// The shape of the output or of a row does not match the problem, or a row is out of range.
pub fn compare(
    problem: &Problem,
    out: &TensorView<'_>,
    rows: &[ReferenceRow],
    tolerance: Tolerance,
) -> Result<Comparison, ProblemError> {
    problem.check_output(out)?;
    let mut tally = Tally::new(tolerance);
    for row in rows {
        let columns = [row.out.len(), row.slack.out.len(), row.slack.hull.len()];
        check_row("out", row.index, &columns, problem.o_layout())?;
        let (slack, may_be_nan) = (&row.slack, row.is_past_limit(problem.dtype()));
        tally.row(out, row.index, &row.out, &slack.out, Some(&slack.hull), may_be_nan);
    }
    Ok(tally.finish())
}

/// Compares the rows of a gradient that the reference has, element by element. `name` is that of the
/// tensor in errors, and [`Worst::index`] as in [`compare`].
///
/// # Errors
/// A row that is outside the tensor.
pub fn compare_gradient(
    name: &'static str,
    gradient: &TensorView<'_>,
    rows: &[GradientRow],
    tolerance: Tolerance,
) -> Result<Comparison, ProblemError> {
    let mut tally = Tally::new(tolerance);
    for row in rows {
        check_row(name, row.index, &[row.values.len(), row.slack.len()], gradient.layout())?;
        tally.row(gradient, row.index, &row.values, &row.slack, None, row.may_be_nan);
    }
    Ok(tally.finish())
}

/// Compares the rows of a log-sum-exp, `[batch, num_heads, seq_len_q]` or of packed rows
/// `[num_heads, total]`, that the reference has. −∞ equals −∞. Of a row [past the
/// limit](ReferenceRow::is_past_limit) it may be NaN.
pub fn compare_lse(
    problem: &Problem,
    lse: &[f32],
    rows: &[ReferenceRow],
    tolerance: Tolerance,
) -> Result<Comparison, ProblemError> {
    let [nb, ns, nh, _] = problem.o_layout().shape;
    check_len("lse", lse.len(), &[nb, nh, ns])?;
    let layout = Layout::bhsd([nb, ns, nh, 1]);
    let view = TensorView::new("lse", DType::F32, layout, bytemuck::cast_slice(lse))?;
    let mut tally = Tally::new(tolerance);
    for row in rows {
        let [b, h, s] = row.index;
        if b >= nb || h >= nh || s >= ns {
            ProblemError::check_shape("lse", &[b + 1, h + 1, s + 1], &[nb, nh, ns])?;
        }
        let may_be_nan = row.is_past_limit(problem.dtype());
        tally.row(&view, row.index, &[row.lse], &[row.slack.lse], None, may_be_nan);
    }
    Ok(tally.finish())
}

/// Compares scores or probabilities, `[batch, num_heads, seq_len_q, seq_len_kv]`, with
/// [`reference_scores`](crate::reference_scores) or
/// [`reference_probabilities`](crate::reference_probabilities). The index of the worst element is
/// `[batch, row, head, key]`.
///
/// ```
/// use flashcore_problem::{Problem, DType, Tolerance, compare_tap};
/// let problem = Problem::builder().heads(1, 1).head_dim(64).seq_len(2).build()?;
/// let (got, want) = ([0.5, 0.5, 0.25, 1.0], [0.5, 0.5, 0.25, 0.75]);
/// let result = compare_tap(&problem, &got, &want, Tolerance::of(DType::F32))?;
/// assert_eq!(result.worst.map(|worst| worst.index), Some([0, 1, 0, 1]));
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
pub fn compare_tap(
    problem: &Problem,
    got: &[f32],
    want: &[f64],
    tolerance: Tolerance,
) -> Result<Comparison, ProblemError> {
    let (nh, ns, nk) = (problem.num_heads(), problem.seq_len_q(), problem.seq_len_kv());
    let shape = [problem.batch(), nh, ns, nk];
    check_len("tap", got.len(), &shape)?;
    check_len("tap", want.len(), &shape)?;
    let mut tally = Tally::new(tolerance);
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let (key, row) = (i % nk, i / nk);
        let index = [row / ns / nh, row % ns, row / ns % nh, key];
        tally.float(index, got, want, 0.0);
    }
    Ok(tally.finish())
}

fn check_len(tensor: &'static str, given: usize, expected: &[usize]) -> Result<(), ProblemError> {
    if given == expected.iter().product::<usize>() {
        return Ok(());
    }
    ProblemError::check_shape(tensor, &[given], expected)
}

/// Refuses a row, `[batch, head, row]` with these numbers of columns, that is not one of a tensor.
fn check_row(tensor: &'static str, [b, h, s]: [usize; 3], columns: &[usize], of: &Layout) -> Result<(), ProblemError> {
    let [nb, ns, nh, nd] = of.shape;
    let is_inside = b < nb && h < nh && s < ns;
    let wrong = columns.iter().find(|&&count| count != nd);
    if is_inside && wrong.is_none() {
        return Ok(());
    }
    let given = [b + 1, s + 1, h + 1, *wrong.unwrap_or(&nd)];
    ProblemError::check_shape(tensor, &given, &of.shape)
}

struct Tally {
    tolerance: Tolerance,
    found: Comparison,
    /// A NaN or a wrong infinity is the worst element.
    worst_is_infinite: bool,
    error_squared: f64,
    want_squared: f64,
}

impl Tally {
    fn new(tolerance: Tolerance) -> Tally {
        Tally {
            tolerance,
            found: Comparison {
                zeros_pass: true,
                ..Comparison::default()
            },
            worst_is_infinite: false,
            error_squared: 0.0,
            want_squared: 0.0,
        }
    }

    /// A row, of which is allowed, besides the tolerance, a slack, and where there is a hull, no element past its
    /// smallest and its largest value; or all elements may be NaN.
    fn row(
        &mut self,
        out: &TensorView<'_>,
        [b, h, s]: [usize; 3],
        want: &[f64],
        slack: &[f64],
        hull: Option<&[[f64; 2]]>,
        may_be_nan: bool,
    ) {
        let (dtype, size) = (out.dtype(), out.dtype().size_bytes());
        let row = &out.bytes()[out.layout().offset(b, s, h, 0) * size..][..want.len() * size];
        let written = row.chunks_exact(size).map(|element| element != &[POISON; 4][..size]);
        let is_nan = |(d, written)| written && read_element(dtype, row, d).is_nan();
        if may_be_nan && written.clone().enumerate().all(is_nan) {
            return self.rightly_nan(want.len());
        }
        for (d, ((&want, &slack), written)) in want.iter().zip(slack).zip(written).enumerate() {
            let got = f64::from(read_element(dtype, row, d));
            let mut allowed = self.tolerance.allowed(want) + slack;
            if let Some(hull) = hull {
                let [lowest, highest] = hull[d];
                let (edge, room) = if got < want {
                    (lowest, want - lowest)
                } else {
                    (highest, highest - want)
                };
                allowed = allowed.min(room + self.tolerance.allowed(edge));
            }
            self.element([b, s, h, d], got, want, allowed, !written);
        }
    }

    fn float(&mut self, index: [usize; 4], got: f32, want: f64, slack: f64) {
        let unwritten = got.to_ne_bytes() == [POISON; 4];
        self.element(
            index,
            f64::from(got),
            want,
            self.tolerance.allowed(want) + slack,
            unwritten,
        );
    }

    fn rightly_nan(&mut self, elements: usize) {
        self.found.elements += elements;
        self.found.zeros_pass = false;
    }

    fn element(&mut self, index: [usize; 4], got: f64, want: f64, allowed: f64, unwritten: bool) {
        let found = &mut self.found;
        found.elements += 1;
        // Equal infinities have error 0; their difference would be NaN.
        let error = if got == want { 0.0 } else { (got - want).abs() };
        found.nan += usize::from(got.is_nan());
        found.unwritten += usize::from(unwritten);
        found.zeros_pass &= want.abs() <= allowed && want.is_finite();
        // NaN, and infinity where it is wrong, exceed every number.
        let excess = error - allowed;
        let is_infinite = error != 0.0 && (excess.is_nan() || excess == f64::INFINITY);
        found.failures += usize::from(is_infinite || excess > 0.0);
        let is_worse = !self.worst_is_infinite && (is_infinite || error > found.of_allowed * allowed);
        if found.worst.is_none() || is_worse {
            self.worst_is_infinite = is_infinite;
            found.worst = Some(Worst { index, got, want });
        }
        if !error.is_nan() {
            found.max_abs = found.max_abs.max(error);
            // Divides only for a new maximum: dividing for every element doubles the run time.
            if error > found.of_allowed * allowed {
                found.of_allowed = found.of_allowed.max(error / allowed);
            }
            if error > found.max_rel * want.abs() && want.abs() > self.tolerance.atol && want.is_finite() {
                found.max_rel = found.max_rel.max(error / want.abs());
            }
        }
        if got.is_finite() && want.is_finite() {
            self.error_squared += error * error;
            self.want_squared += want * want;
        }
    }

    fn finish(mut self) -> Comparison {
        self.found.frobenius = match (self.error_squared.sqrt(), self.want_squared.sqrt()) {
            (0.0, _) => 0.0,
            (error, want) => error / want,
        };
        self.found.passed = self.found.failures == 0 && self.found.elements > 0;
        self.found
    }
}

/// Gap bytes of a tensor that no longer hold the poison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize)]
#[error("{count} gap elements of the output were written, the first at element offset {first}")]
pub struct GapWritten {
    /// The first written gap, in elements from the start of the data.
    pub first: usize,
    /// Number of written gap elements.
    pub count: usize,
}

/// Checks that a kernel wrote elements only: of a tensor that was
/// [`poisoned`](crate::Tensor::poisoned), gaps and what follows the last element still are.
pub fn gaps_untouched(tensor: &TensorView<'_>) -> Result<(), GapWritten> {
    others_untouched(tensor, tensor.layout().rows().map(|[b, s, h]| [b, h, s]))
}

/// The same where only these rows, `[batch, head, row]`, were to be written: others count as gaps.
pub fn others_untouched(tensor: &TensorView<'_>, rows: impl IntoIterator<Item = [usize; 3]>) -> Result<(), GapWritten> {
    let (layout, size) = (tensor.layout(), tensor.dtype().size_bytes());
    let mut is_element = vec![false; tensor.bytes().len().div_ceil(size)];
    for [b, h, s] in rows {
        let at = layout.offset(b, s, h, 0);
        is_element[at..at + layout.shape[3]].fill(true);
    }
    let written: Vec<usize> = (0..is_element.len())
        .filter(|&i| !is_element[i] && tensor.bytes()[i * size..].iter().take(size).any(|&byte| byte != POISON))
        .collect();
    let count = written.len();
    written
        .first()
        .map_or(Ok(()), |&first| Err(GapWritten { first, count }))
}
