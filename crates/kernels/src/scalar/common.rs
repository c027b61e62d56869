//! What the rungs share: access widths and how operands are read.

use flashcore_ir::{Cache, GlobalPtr, SharedPtr, Val, Widen};
use flashcore_problem::Problem;

use super::Config;
use crate::Refusal;
use crate::attention::lengths::row_strides;
use crate::attention::params::Shape;

/// Widths of memory accesses and what they need of strides.
pub(crate) struct Access;

impl Access {
    /// Bytes an access: the lever's values. 2 is for tensors whose rows start at odd halves.
    pub(crate) const WIDTHS: [u32; 4] = [16, 8, 4, 2];

    /// The widest access that the strides of all four tensors allow.
    pub(crate) fn widest(problem: &Problem) -> u32 {
        let element = problem.dtype().size_bytes() as u64;
        let layouts = [
            problem.q_layout(),
            problem.k_layout(),
            problem.v_layout(),
            problem.o_layout(),
        ];
        let fits = |bytes: u32| {
            layouts.iter().all(|layout| {
                row_strides(layout)
                    .iter()
                    .all(|&stride| (u64::from(stride) * element).is_multiple_of(u64::from(bytes)))
            })
        };
        let widths = Access::WIDTHS.into_iter().filter(|&bytes| u64::from(bytes) >= element);
        widths.clone().find(|&bytes| fits(bytes)).unwrap_or(element as u32)
    }

    pub(crate) fn check(problem: &Problem, config: &Config) -> Result<(), Refusal> {
        let (given, allowed) = (config.vector_bytes(), Access::widest(problem));
        if !Access::WIDTHS.contains(&given) || given < problem.dtype().size_bytes() as u32 {
            return Err(Refusal::Lever {
                lever: "vector_bytes",
                given,
                allowed: format!(
                    "16, 8, 4, 2, and not less than an element ({})",
                    problem.dtype().size_bytes()
                ),
            });
        }
        if given > allowed {
            return Err(Refusal::Alignment {
                given,
                allowed,
                suggestion: format!("scalar/{}", config.with_vector_bytes(allowed).id()),
            });
        }
        Ok(())
    }
}

/// Loads the elements of a row from global memory as f32.
#[track_caller]
pub(crate) fn load_row<'k, E: Widen>(at: GlobalPtr<'k, E>, count: u32, shape: &Shape) -> Vec<Val<'k, f32>> {
    at.load_f32s(count, shape.vector_bytes, Cache::ReadOnly)
}

/// Loads four neighbouring f32 from shared memory.
#[track_caller]
pub(crate) fn load4<'k>(at: SharedPtr<'k, f32>) -> [Val<'k, f32>; 4] {
    let values = at.load_words(4, Cache::Default);
    [values[0], values[1], values[2], values[3]]
}
