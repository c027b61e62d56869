//! From layouts and options to a problem.

use flashcore::{DType, Layout, Problem, ProblemBuilder, ProblemError};

use crate::options::Options;

// A field more than these: have `builder_of` set it (or `lengths.rs`, `backward.rs`), and `schedule.rs` compare it for
// a schedule that is used again; then count it here.
const _: () = assert!(
    Problem::FIELDS.len() == 26,
    "Problem has a field that nothing here knows"
);

/// The problem of q, k, v and o with these layouts.
pub(crate) fn problem_of(dtype: DType, layouts: [&Layout; 4], options: &Options) -> Result<Problem, ProblemError> {
    builder_of(dtype, layouts, options).build()
}

/// The same, to be told of other lengths than those of the layouts.
pub(crate) fn builder_of(dtype: DType, layouts: [&Layout; 4], options: &Options) -> ProblemBuilder {
    let [q, k, v, o] = layouts;
    let mut problem = Problem::builder()
        .batch(q.shape[0])
        .seq_len_q(q.shape[1])
        .seq_len_kv(k.shape[1])
        .heads(q.shape[2], k.shape[2])
        .head_dim(q.shape[3])
        .head_dim_v(v.shape[3])
        .dtype(dtype)
        .mask(options.mask)
        .return_lse(options.return_lse)
        .sinks(options.sinks)
        .alibi(options.alibi)
        .layouts(*q, *k, *v, *o);
    if let Some(softcap) = options.softcap {
        problem = problem.softcap(softcap);
    }
    if let Some(scale) = options.scale {
        problem = problem.softmax_scale(scale);
    }
    if let Some(keys) = options.batch_invariant {
        problem = problem.batch_invariant(keys);
    }
    problem
}
