//! Right rows of what a problem writes: of O with its log-sum-exp, or of the gradients.

use flashcore_problem::{
    Comparison, GradientRow, Gradients, Problem, ProblemError, ReferenceRow, Tensor, Tolerance, compare,
    compare_gradient, compare_lse,
};

/// Right rows, all of them or some.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// Of O.
    Forward(Vec<ReferenceRow>),
    /// Of each gradient.
    Backward(Gradients<Vec<GradientRow>>),
}

impl Expected {
    /// Rows of O, which have the log-sum-exp.
    pub fn of_output(&self) -> &[ReferenceRow] {
        match self {
            Expected::Forward(rows) => rows,
            Expected::Backward(_) => &[],
        }
    }

    /// `[batch, head, row]` of each row, by output in the order of [`Problem::outputs`].
    pub fn indices(&self) -> Vec<Vec<[usize; 3]>> {
        match self {
            Expected::Forward(rows) => vec![rows.iter().map(|row| row.index).collect()],
            Expected::Backward(gradients) => {
                let rows = gradients.each().into_iter();
                rows.map(|rows| rows.iter().map(|row| row.index).collect()).collect()
            }
        }
    }

    /// Whether these are all rows of all outputs.
    pub fn is_whole(&self, problem: &Problem) -> bool {
        let outputs = problem.outputs();
        let all = outputs
            .iter()
            .map(|(_, _, layout)| layout.shape[..3].iter().product::<usize>());
        self.indices().iter().map(Vec::len).eq(all)
    }

    /// Whether some element is not 0.
    pub fn is_nonzero(&self) -> bool {
        let nonzero = |values: &Vec<f64>| values.iter().any(|&x| x != 0.0);
        match self {
            Expected::Forward(rows) => rows.iter().any(|row| nonzero(&row.out)),
            Expected::Backward(gradients) => {
                let mut rows = gradients.each().into_iter().flatten();
                rows.any(|row| nonzero(&row.values))
            }
        }
    }

    /// Compares outputs, which are in the order of [`Problem::outputs`], in these rows: each with its name.
    ///
    /// # Errors
    /// Outputs of another problem.
    pub fn compare(&self, problem: &Problem, outs: &[Tensor]) -> Result<Vec<(&'static str, Comparison)>, ProblemError> {
        let names = problem.outputs().into_iter().map(|(name, ..)| name);
        let compared = |(name, out): (&'static str, &Tensor), at: usize| {
            let found = match self {
                Expected::Forward(rows) => compare(problem, &out.view(), rows, Tolerance::of(problem.dtype())),
                Expected::Backward(gradients) => {
                    let tolerance = Tolerance::of_gradient(problem.dtype());
                    compare_gradient(name, &out.view(), gradients.each()[at % 3], tolerance)
                }
            };
            found.map(|found| (name, found))
        };
        let pairs = names.zip(outs).zip(0..);
        pairs.map(|(pair, at)| compared(pair, at)).collect()
    }

    /// Compares a log-sum-exp in these rows.
    ///
    /// # Errors
    /// One of another length.
    pub fn compare_lse(&self, problem: &Problem, lse: &[f32]) -> Result<Comparison, ProblemError> {
        compare_lse(problem, lse, self.of_output(), Tolerance::of(problem.dtype()))
    }
}
