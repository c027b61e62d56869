//! Values of query heads that go with Q: sinks, and the slopes of ALiBi.
//!
//! A sink is a logit that counts in the sum of the softmax and has no value (`s_aux` of gpt-oss). A
//! row of a head with sink `σ` gives `O = Σ exp(s_j)·v_j / (exp(σ) + Σ exp(s_j))`, and its log-sum-exp
//! includes `σ`. A row that sees no key has output 0 and log-sum-exp `σ`.
//!
//! ALiBi subtracts `slope·|i − j|` from the score of a row at position `i` and a key at position `j`,
//! after scale and soft cap (Press et al., "Train Short, Test Long", 2022).

use serde::{Deserialize, Serialize};

use crate::rng::Rng;
use crate::tensor::{read_element, write_element};
use crate::{DType, Problem, ProblemError, Tensor, TensorView, words};

/// Largest slope. Usual ones are at most 1.
pub const MAX_ALIBI_SLOPE: f32 = 1e5;

/// Least factor on `Q·Kᵀ` with ALiBi: kernels add the bias before they multiply by the factor. The largest slope at a
/// distance of 2^30, divided by it, is finite.
pub(crate) const MIN_ALIBI_SCALE: f32 = 1e-24;

/// Largest sink. Kernels multiply it by log2(e).
const MAX_SINK: f32 = 1e38;

words! {
    /// Which slopes a problem with ALiBi has, f32.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Alibi {
        /// `[num_heads]`: those of a head, for all sequences.
        Heads = "alibi",
        /// `[batch, num_heads]`.
        BatchHeads = "alibi-batch",
    }
}

/// What a tensor carries for its heads; only Q has any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeadValues<T> {
    pub(crate) sinks: Option<T>,
    pub(crate) alibi_slopes: Option<T>,
}

impl HeadValues<Vec<f32>> {
    pub(crate) fn as_slices(&self) -> HeadValues<&[f32]> {
        HeadValues {
            sinks: self.sinks.as_deref(),
            alibi_slopes: self.alibi_slopes.as_deref(),
        }
    }

    /// Values of a problem. Sinks are about as large as the largest scores of normal inputs; some are far
    /// above and below, but not all: the outputs of a head with a sink far above are 0 within tolerance.
    /// Slopes are in the paper's range, in random order, and some are 0.
    pub(crate) fn draw(problem: &Problem, seed: u64) -> HeadValues<Vec<f32>> {
        let mut rng = Rng::stream(seed, 10);
        let sinks = problem.sinks().map(|dtype| {
            let ordinary = |rng: &mut Rng| 2.0 + 2.0 * rng.normal();
            let drawn = (0..problem.num_sinks()).map(|_| match rng.below(8) {
                0 => 100.0,
                1 => -100.0,
                2 => f32::NEG_INFINITY,
                _ => ordinary(&mut rng),
            });
            let mut sinks: Vec<f32> = drawn.collect();
            if sinks.iter().all(|sink: &f32| *sink >= 100.0)
                && let Some(first) = sinks.first_mut()
            {
                *first = ordinary(&mut rng);
            }
            sinks.into_iter().map(|sink| rounded(dtype, sink)).collect()
        });
        let slopes = problem.alibi().map(|_| {
            let mut drawn = || match rng.below(8) {
                0 => 0.0,
                _ => 2f32.powf(-8.0 * rng.unit()),
            };
            (0..problem.num_alibi_slopes()).map(|_| drawn()).collect()
        });
        HeadValues {
            sinks,
            alibi_slopes: slopes,
        }
    }
}

fn rounded(dtype: DType, value: f32) -> f32 {
    let mut bytes = [0; 4];
    write_element(dtype, &mut bytes, 0, value);
    read_element(dtype, &bytes, 0)
}

impl<'a> TensorView<'a> {
    /// Attaches sinks to Q, `[num_heads]`, for a problem that has them ([`Problem::sinks`]): numbers of
    /// the problem's dtype of sinks, or −∞ for none.
    ///
    /// ```
    /// use flashcore_problem::{DType, Problem, Tensor, reference};
    /// let problem = Problem::builder().heads(1, 1).head_dim(8).seq_len(4).sinks(DType::F32).build()?;
    /// let ones = Tensor::from_fn(DType::F16, *problem.q_layout(), |_, _, _, _| 1.0);
    /// let (zeros, ones) = (Tensor::filled(DType::F16, *problem.q_layout(), 0), ones.view());
    /// let sinks = [4f32.ln()];
    /// let q = zeros.view().with_sinks(&sinks);
    /// let rows = reference(&problem, &q, &ones, &ones)?;
    /// assert!((rows[0].out[0] - 0.5).abs() < 1e-6); // the sink weighs as much as the four keys
    /// # Ok::<(), flashcore_problem::ProblemError>(())
    /// ```
    #[must_use]
    pub fn with_sinks(mut self, sinks: &'a [f32]) -> Self {
        self.head_values.sinks = Some(sinks);
        self
    }

    /// Attaches ALiBi slopes to Q, `[num_heads]` or `[batch, num_heads]`, for a problem that has them
    /// ([`Problem::alibi`]): from 0 to 1e5.
    #[must_use]
    pub fn with_alibi_slopes(mut self, slopes: &'a [f32]) -> Self {
        self.head_values.alibi_slopes = Some(slopes);
        self
    }

    /// The sinks of Q, if any.
    pub fn sinks(&self) -> Option<&'a [f32]> {
        self.head_values.sinks
    }

    /// The ALiBi slopes of Q, if any.
    pub fn alibi_slopes(&self) -> Option<&'a [f32]> {
        self.head_values.alibi_slopes
    }

    /// The sink of a query head.
    pub fn sink(&self, head: usize) -> Option<f32> {
        self.sinks().map(|sinks| sinks[head])
    }

    /// The slope of a query head of a sequence, with the problem's number of heads.
    pub fn alibi_slope(&self, batch: usize, head: usize) -> Option<f32> {
        let (slopes, heads) = (self.alibi_slopes()?, self.layout().shape[2]);
        let of_batch = if slopes.len() == heads { 0 } else { batch * heads };
        Some(slopes[of_batch + head])
    }
}

impl Problem {
    #[doc(hidden)]
    pub fn check_head_values(&self, q: &TensorView<'_>) -> Result<(), ProblemError> {
        let sinks = (q.sinks(), self.num_sinks(), "[num_heads]");
        let slopes = match self.alibi() {
            Some(Alibi::BatchHeads) => (q.alibi_slopes(), self.num_alibi_slopes(), "[batch, num_heads]"),
            _ => (q.alibi_slopes(), self.num_alibi_slopes(), "[num_heads]"),
        };
        for (argument, (given, needed, shape)) in [("sinks", sinks), ("alibi_slopes", slopes)] {
            let count = given.map_or(0, <[f32]>::len);
            let message = match needed {
                _ if count == needed => continue,
                0 => format!("{argument} were given; this problem has none: leave them out, or build it with them"),
                _ => format!(
                    "{count} {argument} were given; this problem needs {needed}, {shape} (`TensorView::with_{argument}` of q)"
                ),
            };
            return ProblemError::tensor(argument, message);
        }
        let bad = |argument, index: usize, value: f32, allowed: String| {
            ProblemError::tensor(argument, format!("{argument} has {value} at {index}; {allowed}"))
        };
        let sinks = q.sinks().unwrap_or_default();
        let dtype = self.sinks().unwrap_or(DType::F32);
        if let Some(index) = sinks
            .iter()
            .position(|&sink| rounded(dtype, sink) != sink || sink > MAX_SINK)
        {
            let allowed = format!("allowed are numbers up to {MAX_SINK:e} that {dtype} has, and −∞ for no sink");
            return bad("sinks", index, sinks[index], allowed);
        }
        let slopes = q.alibi_slopes().unwrap_or_default();
        if let Some(index) = slopes.iter().position(|slope| !(0.0..=MAX_ALIBI_SLOPE).contains(slope)) {
            let allowed = format!("allowed are numbers from 0 to {MAX_ALIBI_SLOPE:e}");
            return bad("alibi_slopes", index, slopes[index], allowed);
        }
        Ok(())
    }
}

impl Tensor {
    /// Attaches sinks and slopes drawn for a problem to Q, if the problem has any.
    /// [`Inputs::generate`](crate::Inputs::generate) does so too.
    pub fn with_drawn_head_values(mut self, problem: &Problem, seed: u64) -> Tensor {
        self.head_values = HeadValues::draw(problem, seed);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_head_has_a_sink_that_leaves_it_an_output() {
        for heads in [1, 2, 8] {
            let problem = Problem::builder()
                .heads(heads, 1)
                .head_dim(16)
                .seq_len(8)
                .sinks(DType::F32);
            let problem = problem.build().unwrap();
            let of_seed = |seed| HeadValues::draw(&problem, seed).sinks.unwrap();
            let all: Vec<Vec<f32>> = (0..200).map(of_seed).collect();
            assert!(
                all.iter().all(|sinks| sinks.iter().any(|sink| *sink < 100.0)),
                "{heads} heads"
            );
            let some_are_none = all.iter().flatten().any(|sink| *sink == f32::NEG_INFINITY);
            assert!(some_are_none, "{heads} heads");
        }
    }
}
