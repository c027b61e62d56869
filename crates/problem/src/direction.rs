//! Which way a problem is computed, and the layouts of gradients.
//!
//! The backward pass takes what the forward pass read and wrote, and the gradient of a loss by O
//! (`dout`). It gives the gradients of the loss by Q, K and V. With `S = scale · Q·Kᵀ`,
//! `P = exp(S − lse)` and `Δ = rowsum(dO ∘ O)`:
//!
//! ```text
//! dV = Pᵀ·dO        dP = dO·Vᵀ        dS = P ∘ (dP − Δ)        dQ = scale · dS·K        dK = scale · dSᵀ·Q
//! ```
//!
//! A soft cap multiplies dS by its derivative, `1 − (S/cap)²` of the capped score. The gradients of
//! a K/V head are summed over the query heads that share it. A row that sees no key has the gradient
//! zero, and so has a key that no row sees.

use serde::{Deserialize, Serialize};

use crate::{DType, KvLengths, Layout, Problem, ProblemBuilder, ProblemError, refuse, words};

words! {
    /// Which way a problem is computed.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{Direction, Problem};
    /// let problem = Problem::builder().heads(8, 2).seq_len(128).head_dim(64).return_lse(true).build()?;
    /// let backward = problem.backward()?;
    /// assert_eq!(backward.direction(), Direction::Backward);
    /// assert_eq!(backward.flops(), 2.5 * problem.flops()); // five products, not two
    /// assert_eq!(backward.forward(), problem);
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Direction {
        /// O, and perhaps the log-sum-exp, from Q, K and V.
        #[default]
        Forward = "forward",
        /// The gradients of Q, K and V, from Q, K, V, O, the log-sum-exp and the gradient of O.
        Backward = "backward",
    }
}

impl Direction {
    /// Whether it is the default. Serialised problems leave it out, so that those from before there
    /// was another direction read, and print, as they did.
    #[doc(hidden)]
    pub fn is_forward(&self) -> bool {
        *self == Direction::Forward
    }
}

/// Layouts of the tensors that only the backward pass has; shapes are those of O, Q, K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GradientLayouts {
    /// The gradient of O, which is read.
    pub dout: Layout,
    /// The gradient of Q.
    pub dq: Layout,
    /// The gradient of K.
    pub dk: Layout,
    /// The gradient of V.
    pub dv: Layout,
}

impl GradientLayouts {
    /// Each as its tensor's; dense where that has elements that share an address, as of a broadcast
    /// batch.
    pub(crate) fn like(problem: &Problem) -> GradientLayouts {
        let own = |layout: Layout| match layout.check_injective("") {
            Ok(()) => layout,
            Err(_) => Layout::bshd(layout.shape),
        };
        GradientLayouts {
            dout: problem.o,
            dq: own(problem.q),
            dk: own(problem.k),
            dv: own(problem.v),
        }
    }

    pub(crate) fn check(&self, problem: &Problem) -> Result<(), ProblemError> {
        let tensors = [
            ("dout", &self.dout, &problem.o),
            ("dq", &self.dq, &problem.q),
            ("dk", &self.dk, &problem.k),
            ("dv", &self.dv, &problem.v),
        ];
        for (tensor, given, of) in tensors {
            ProblemError::check_shape(tensor, &given.shape, &of.shape)?;
            given.check(tensor)?;
            if tensor != "dout" {
                given.check_injective(tensor)?;
            }
        }
        Ok(())
    }
}

/// The gradients of Q, K and V, as tensors or as rows of the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gradients<T> {
    /// Of Q, `[batch, seq_len_q, num_heads, head_dim]`.
    pub dq: T,
    /// Of K, `[batch, seq_len_kv, num_kv_heads, head_dim]`.
    pub dk: T,
    /// Of V, `[batch, seq_len_kv, num_kv_heads, head_dim_v]`.
    pub dv: T,
}

impl<T> Gradients<T> {
    /// The names of the three, as errors and the buffers of launches have them.
    pub const NAMES: [&str; 3] = ["dq", "dk", "dv"];

    /// The three in the order of [`Gradients::NAMES`].
    pub fn each(&self) -> [&T; 3] {
        [&self.dq, &self.dk, &self.dv]
    }
}

impl<T> From<[T; 3]> for Gradients<T> {
    fn from([dq, dk, dv]: [T; 3]) -> Gradients<T> {
        Gradients { dq, dk, dv }
    }
}

impl Problem {
    /// Which way it is computed.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The backward pass of this problem: that of a problem in the other direction is itself. Dense
    /// gradients have the layouts of their tensors; [`ProblemBuilder::gradient_layouts`] sets others.
    ///
    /// # Errors
    /// Problems without a backward pass: e4m3, sinks, ALiBi, and K and V in pages.
    pub fn backward(&self) -> Result<Problem, ProblemError> {
        match self.direction {
            Direction::Forward => ProblemBuilder::from(self).direction(Direction::Backward).build(),
            Direction::Backward => Ok(self.clone()),
        }
    }

    /// The forward pass of this problem: for a backward problem the one that gives what that reads,
    /// the log-sum-exp included.
    pub fn forward(&self) -> Problem {
        Problem {
            direction: Direction::Forward,
            gradients: None,
            ..self.clone()
        }
    }

    /// The layouts of dO, dQ, dK and dV; `None` of a forward problem.
    pub fn gradient_layouts(&self) -> Option<&GradientLayouts> {
        self.gradients.as_ref()
    }

    /// The tensors that a call writes, besides the log-sum-exp of a forward pass: name, dtype and
    /// layout of O, or of each gradient.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::Problem;
    /// let problem = Problem::builder().heads(8, 2).seq_len(128).head_dim(64).build()?;
    /// let names = |problem: &Problem| problem.outputs().iter().map(|output| output.0).collect::<Vec<_>>();
    /// assert_eq!(names(&problem), ["out"]);
    /// assert_eq!(names(&problem.backward()?), ["dq", "dk", "dv"]);
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    pub fn outputs(&self) -> Vec<(&'static str, DType, Layout)> {
        match self.gradients {
            None => vec![("out", self.out_dtype(), self.o)],
            Some(GradientLayouts { dq, dk, dv, .. }) => {
                let layouts = Gradients::<()>::NAMES.into_iter().zip([dq, dk, dv]);
                layouts.map(|(name, layout)| (name, self.dtype, layout)).collect()
            }
        }
    }

    /// Whether a call writes the log-sum-exp. A backward pass reads it.
    pub fn writes_lse(&self) -> bool {
        self.return_lse && self.direction.is_forward()
    }

    /// Refuses a problem of the other direction than that of a call.
    ///
    /// # Errors
    /// [`ProblemError::Direction`].
    pub fn check_direction(&self, expected: Direction) -> Result<(), ProblemError> {
        let given = self.direction;
        if given == expected {
            return Ok(());
        }
        Err(ProblemError::Direction { given, expected })
    }
}

/// Refuses what has no backward pass.
pub(crate) fn check_served(problem: &Problem) -> Result<(), ProblemError> {
    refuse!(problem.dtype == DType::E4M3 =>
        value("dtype", problem.dtype, "the backward pass takes f32, fp16 and bf16 (convert Q, K and V)"));
    if let Some(dtype) = problem.sinks {
        let allowed = "the backward pass takes none: it does not compute their gradients (leave sinks out)";
        return ProblemError::value("sinks", dtype, allowed);
    }
    if let Some(slopes) = problem.alibi {
        let allowed = "the backward pass has no bias (leave alibi out)";
        return ProblemError::value("alibi", slopes.name(), allowed);
    }
    refuse!(matches!(problem.kv_lengths, KvLengths::Paged { .. }) => value("kv_lengths", "paged",
        "the backward pass takes equal, packed and cached K and V (pages can be shared, and so would be their \
         gradients; copy the keys of each sequence into a packed tensor)"));
    Ok(())
}
