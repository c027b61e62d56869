//! Gradients of q, k and v, for the operations' `bwd`.
//!
//! candle's operations have one result, so that the log-sum-exp, which the backward pass reads, is
//! not kept: a second forward pass computes it again.

use candle::{Result, Storage, Tensor};
use flashcore::{GradientLayouts, Layout, Problem, ProblemBuilder, ProblemError};

use crate::FlashAttn;
use crate::problem::Lengths;

/// What `bwd` returns.
pub(crate) type Found = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

/// The gradients of q, k and v by that of the result, contiguous. Rows of no sequence have 0.
pub(crate) fn gradients(
    options: &FlashAttn,
    lengths: Lengths<'_>,
    [q, k, v]: [&Tensor; 3],
    gradient: &Tensor,
) -> Result<Found> {
    let dout = gradient.contiguous()?;
    let held = [q, k, v, &dout].map(Tensor::storage_and_layout);
    let storages = held.each_ref().map(|(storage, layout)| (&**storage, *layout));
    let found = match storages {
        [
            (Storage::Cpu(q), q_layout),
            (Storage::Cpu(k), k_layout),
            (Storage::Cpu(v), v_layout),
            (Storage::Cpu(dout), dout_layout),
        ] => {
            let tensors = [(q, q_layout), (k, k_layout), (v, v_layout)];
            crate::cpu::backward(options, lengths, tensors, (dout, dout_layout))?.map(Storage::Cpu)
        }
        #[cfg(feature = "cuda")]
        [
            (Storage::Cuda(q), q_layout),
            (Storage::Cuda(k), k_layout),
            (Storage::Cuda(v), v_layout),
            (Storage::Cuda(dout), dout_layout),
        ] => {
            let tensors = [(q, q_layout), (k, k_layout), (v, v_layout)];
            crate::cuda::backward(options, lengths, tensors, (dout, dout_layout))?.map(Storage::Cuda)
        }
        _ => candle::bail!("q, k, v and the gradient are on different devices, or on one without flash attention"),
    };
    let [dq, dk, dv] = found;
    let tensor = |storage, of: &Tensor| {
        Some(Tensor::from_storage(
            storage,
            of.shape(),
            candle::op::BackpropOp::none(),
            false,
        ))
    };
    Ok((tensor(dq, q), tensor(dk, k), tensor(dv, v)))
}

/// The backward pass of a problem, with contiguous gradients.
pub(crate) fn backward_problem(problem: &Problem) -> std::result::Result<Problem, ProblemError> {
    let dense = |layout: &Layout| Layout::bshd(layout.shape);
    let layouts = GradientLayouts {
        dout: *problem.o_layout(),
        dq: dense(problem.q_layout()),
        dk: dense(problem.k_layout()),
        dv: dense(problem.v_layout()),
    };
    ProblemBuilder::from(problem).gradient_layouts(layouts).build()
}
