//! Results of attention over parts of the keys, which `combine` merges.

use crate::problem::check_tensor;
use crate::{Direction, Problem, ProblemError, TensorView, TensorViewMut};

/// Parts that are merged at once, at most. The result can be a part of the next call.
pub const MOST_PARTS: usize = 8;

/// Attention of all queries over some of the keys.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The output: shape, layout and dtype are those of the problem's O. What it holds in a row whose
    /// log-sum-exp is −∞ does not matter.
    pub out: TensorView<'a>,
    /// The log-sum-exp, natural logarithm, [`Problem::lse_len`] elements: `[batch, num_heads,
    /// seq_len_q]`, or `[num_heads, total]` of packed query rows.
    pub lse: &'a [f32],
}

impl Problem {
    /// Refuses another number of parts than `combine` takes.
    pub fn check_part_count(&self, parts: usize) -> Result<(), ProblemError> {
        self.check_direction(Direction::Forward)?;
        match (1..=MOST_PARTS).contains(&parts) {
            true => Ok(()),
            false => Err(ProblemError::Value {
                field: "the number of parts",
                given: parts.to_string(),
                allowed: "allowed are 1 to 8 (merge some of them first, and give the result as a part)",
            }),
        }
    }

    /// Checks parts, and the tensors that their sum is written to; `lse` is given exactly where the
    /// problem asks for it.
    pub fn check_parts(
        &self,
        parts: &[Part<'_>],
        out: &TensorViewMut<'_>,
        lse: Option<&[f32]>,
    ) -> Result<(), ProblemError> {
        self.check_part_count(parts.len())?;
        let check_lse = |given: usize, expected: usize| match given == expected {
            true => Ok(()),
            false => Err(ProblemError::Shape {
                tensor: "lse",
                given: vec![given],
                expected: vec![expected],
            }),
        };
        for part in parts {
            check_tensor("out", self.out_dtype(), self.o_layout(), &part.out)?;
            check_lse(part.lse.len(), self.lse_len())?;
        }
        self.check_output(&out.as_view())?;
        let expected = if self.return_lse() { self.lse_len() } else { 0 };
        check_lse(lse.map_or(0, <[f32]>::len), expected)
    }
}
