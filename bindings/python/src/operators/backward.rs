//! `flashcore::bwd` and `::bwd_varlen`: the gradients of q, k and v, from what the forward pass read
//! and returned and the gradient of its output.
//!
//! Gradients are dense. Of packed tensors, rows that are of no sequence have a gradient of 0.

use std::sync::{Mutex, PoisonError};

use flashcore::plans::PlanSummary;
use flashcore::{
    Attention, DType, Direction, GradientLayouts, KernelId, KvLengths, Layout, Lengths, Mask, Problem, QLengths,
};
use pyo3::prelude::*;

use super::lengths::packed_kinds;
use super::{Array, Call, Results, Rows, options_of, serve, sm_margin_of};
use crate::call::attention_on;
use crate::error::{raise, type_};
use crate::frameworks::dtype_name;
use crate::input::Input;
use crate::libtorch::{Error, Libtorch, Tensor};
use crate::problem::builder_of;
use crate::tensor::Place;

/// `bhsd`: the memory of gradients is in the order `[batch, heads, seq, head_dim]`.
pub(super) const EQUAL: &str = "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, \
     float softmax_scale, bool causal, int window_left, int window_right, float softcap, bool bhsd, \
     bool deterministic=False, int sm_margin=0) -> (Tensor dq, Tensor dk, Tensor dv)";

/// Of packed queries, keys and values.
pub(super) const VARLEN: &str = "bwd_varlen(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, \
     Tensor cu_seqlens_q, Tensor seqused_q, Tensor cu_seqlens_k, Tensor seqused_k, float softmax_scale, \
     bool causal, int window_left, int window_right, float softcap, SymInt max_seqlen_q, SymInt max_seqlen_k, \
     bool deterministic=False, int sm_margin=0) -> (Tensor dq, Tensor dk, Tensor dv)";

pub(super) unsafe extern "C-unwind" fn backward(stack: *mut u64, inputs: u64, _outputs: u64) {
    // SAFETY: the schema ends with eight numbers, and has three results.
    unsafe { serve(stack, inputs, 8, equal) }
}

pub(super) unsafe extern "C-unwind" fn backward_varlen(stack: *mut u64, inputs: u64, _outputs: u64) {
    // SAFETY: the schema ends with nine numbers, and has three results.
    unsafe { serve(stack, inputs, 9, varlen) }
}

fn equal<'a>(torch: &'a Libtorch, inputs: &[Input], numbers: &[u64]) -> Results<'a, 3> {
    let of = |n: usize, name| inputs[n].describe::<4>(name).map(Rows::from);
    let (dout, tensors, out) = (of(0, "dout")?, [of(1, "q")?, of(2, "k")?, of(3, "v")?], of(4, "out")?);
    let [q, k, v] = &tensors;
    let (place, dtype) = q.agree(&[k, v])?;
    let dense = if numbers[5] as u8 != 0 {
        Layout::bhsd
    } else {
        Layout::bshd
    };
    let layouts = gradient_layouts(&tensors, &dout, dense);
    let problem = builder_of(
        dtype,
        [&q.layout, &k.layout, &v.layout, &out.layout],
        &options_of(numbers),
    );
    let problem = problem
        .gradient_layouts(layouts)
        .deterministic(numbers[6] as u8 != 0)
        .build()?;
    q.agree(&[&out, &dout])?; // after e4m3 was refused, whose out is bf16
    let lse = inputs[5].describe::<3>("lse")?;
    lse.check_f32([problem.batch(), problem.num_heads(), problem.seq_len_q()], place)?;
    let empty = |layout: Layout| torch.empty(layout.shape, layout.strides, Some(dtype), place);
    let results = [empty(layouts.dq)?, empty(layouts.dk)?, empty(layouts.dv)?];
    let call = Call {
        torch,
        place,
        sm_margin: sm_margin_of(numbers.last())?,
        problem,
        tensors,
        scales: Vec::new(),
        head_values: super::HeadValues::default(),
        lengths: Lengths::default(),
        outputs: [out.first, lse.first],
        gradients: Some(addresses(&dout, &results)?),
        kept: None,
    };
    call.run()?;
    Ok(results)
}

fn varlen<'a>(torch: &'a Libtorch, inputs: &[Input], numbers: &[u64]) -> Results<'a, 3> {
    let of = |n: usize, name| inputs[n].describe::<3>(name).map(Rows::from);
    let (dout, tensors, out) = (of(0, "dout")?, [of(1, "q")?, of(2, "k")?, of(3, "v")?], of(4, "out")?);
    let (kinds, lengths): (_, Lengths<Array>) = packed_kinds(&tensors, &inputs[6..10], numbers)?;
    let [q, k, v] = &tensors;
    let (place, dtype) = q.agree(&[k, v])?;
    let layouts = gradient_layouts(&tensors, &dout, Layout::bshd);
    // A backward pass does not write the rows of no sequence. How many there are is known to the device.
    let zeros = |layout: Layout| {
        let ([_, rows, heads, columns], [_, row, head, _]) = (layout.shape, layout.strides);
        let zeros = torch.empty([rows, heads, columns], [row, head, 1], Some(dtype), place)?;
        zeros.zero().map(|()| zeros)
    };
    let results = [zeros(layouts.dq)?, zeros(layouts.dk)?, zeros(layouts.dv)?];
    if q.layout.num_elements() == 0 || kinds.batch == 0 {
        return Ok(results); // no row is of a sequence
    }
    let of_out = [&q.layout, &k.layout, &v.layout, &out.layout];
    let problem = kinds.builder(dtype, of_out, &options_of(numbers));
    let problem = problem
        .gradient_layouts(layouts)
        .deterministic(numbers[7] as u8 != 0)
        .build()?;
    q.agree(&[&out, &dout])?;
    problem.check_given(&lengths, |array| array.len)?;
    let lse = inputs[5].describe::<2>("lse")?;
    lse.check_f32([problem.num_heads(), q.layout.shape[1]], place)?;
    let call = Call {
        torch,
        place,
        sm_margin: sm_margin_of(numbers.last())?,
        problem,
        tensors,
        scales: Vec::new(),
        head_values: super::HeadValues::default(),
        lengths,
        outputs: [out.first, lse.first],
        gradients: Some(addresses(&dout, &results)?),
        kept: None,
    };
    call.run()?;
    Ok(results)
}

/// Those of dout as given, and of dense gradients.
fn gradient_layouts([q, k, v]: &[Rows; 3], dout: &Rows, dense: fn([usize; 4]) -> Layout) -> GradientLayouts {
    GradientLayouts {
        dout: dout.layout,
        dq: dense(q.layout.shape),
        dk: dense(k.layout.shape),
        dv: dense(v.layout.shape),
    }
}

fn addresses(dout: &Rows, [dq, dk, dv]: &[Tensor; 3]) -> Result<[*mut u8; 4], Error> {
    Ok([dout.first, dq.first()?, dk.first()?, dv.first()?])
}

/// Why a backward pass is slow: its kernel uses no tensor cores. `None` for others, and on the CPU.
fn slowness(plan: &PlanSummary) -> Option<String> {
    match plan {
        PlanSummary::Gpu(choice) if choice.plan.config.family() == "scalar" => Some(format!(
            "the backward pass runs on kernel {}, which uses no tensor cores ({})",
            choice.plan.config, choice.why
        )),
        _ => None,
    }
}

/// Warns if the kernel of a backward pass uses no tensor cores, once for each kernel.
pub(super) fn tell_if_slow(
    torch: &Libtorch,
    attention: &Attention,
    problem: &Problem,
    alignment: u32,
) -> Result<(), Error> {
    static TOLD: Mutex<Vec<KernelId>> = Mutex::new(Vec::new());
    let plan = attention.plan_aligned(problem, alignment)?;
    let Some(why) = slowness(&plan) else { return Ok(()) };
    {
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        if told.contains(&plan.kernel()) {
            return Ok(());
        }
        told.push(plan.kernel());
    }
    torch.warn(&format!("flashcore: {why}"));
    Ok(())
}

/// Why the backward pass of dense tensors on a CUDA device would be slow, in words; None if its
/// kernel uses tensor cores.
///
/// `q` and `k` are shapes `[batch, seq, heads, head_dim]`, `packed` says that they are those of
/// packed sequences, `dtype` is PyTorch's name. A side of the window that is negative has no limit.
#[pyfunction]
#[pyo3(signature = (
    device, dtype, q, k, head_dim_v, *, causal=false, window=(-1, -1), softcap=0.0, packed=false, deterministic=false
))]
#[allow(clippy::too_many_arguments)] // Python's keyword arguments
pub(crate) fn slow_backward(
    py: Python<'_>,
    device: u32,
    dtype: &str,
    q: [usize; 4],
    k: [usize; 4],
    head_dim_v: usize,
    causal: bool,
    window: (i64, i64),
    softcap: f32,
    packed: bool,
    deterministic: bool,
) -> PyResult<Option<String>> {
    let known = [DType::F32, DType::F16, DType::BF16, DType::E4M3];
    let Some(dtype) = known.into_iter().find(|known| dtype_name(*known) == dtype) else {
        return Err(type_(format!(
            "dtype is {dtype}; allowed are float32, float16, bfloat16 and float8_e4m3fn"
        )));
    };
    let side = |side: i64| u32::try_from(side).ok();
    let ([batch, rows, heads, head_dim], [_, keys, kv_heads, _]) = (q, k);
    let mut builder = Problem::builder()
        .batch(batch)
        .seq_len_q(rows)
        .seq_len_kv(keys)
        .heads(heads, kv_heads)
        .head_dim(head_dim)
        .head_dim_v(head_dim_v)
        .dtype(dtype)
        .mask(Mask::window(
            side(window.0),
            if causal { Some(0) } else { side(window.1) },
        ))
        .direction(Direction::Backward)
        .deterministic(deterministic);
    if packed {
        let (total_q, total) = (batch * rows, batch * keys);
        builder = builder.q_lengths(QLengths::Packed {
            total: total_q,
            used: false,
        });
        builder = builder.kv_lengths(KvLengths::Packed { total, used: false });
    }
    if softcap != 0.0 {
        builder = builder.softcap(softcap);
    }
    py.detach(|| {
        let problem = builder.build()?;
        Ok(slowness(&attention_on(Place::Cuda(device), None, 0)?.plan(&problem)?))
    })
    .map_err(raise)
}
