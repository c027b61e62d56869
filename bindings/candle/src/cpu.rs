//! Tensors in host memory, by the library's CPU backend.

use std::sync::OnceLock;

use candle::backend::BackendStorage;
use candle::{CpuStorage, DType, DeviceLocation, Layout, Result, Shape, Storage, Tensor, WithDType};
use flashcore::{
    Attention, BackwardTensors, Device, Element, Gradients, Problem, TensorView, TensorViewMut, bf16, f16,
};

use crate::backward::backward_problem;
use crate::problem::{Lengths, problem};
use crate::varlen::Keys;
use crate::{Error, FlashAttn};

fn attention() -> Result<&'static Attention> {
    static ATTENTION: OnceLock<Attention> = OnceLock::new();
    match ATTENTION.get() {
        Some(attention) => Ok(attention),
        None => {
            let attention = Attention::new(Device::cpu()).map_err(Error::from)?;
            Ok(ATTENTION.get_or_init(|| attention))
        }
    }
}

/// Attention of q, k and v.
pub(crate) fn forward(
    options: &FlashAttn,
    lengths: Lengths<'_>,
    tensors: [(&CpuStorage, &Layout); 3],
) -> Result<(CpuStorage, Shape)> {
    let given = tensors.map(|(storage, layout)| (storage.dtype(), layout));
    let problem = problem(options, lengths, given, DeviceLocation::Cpu)?;
    let shape = tensors[0].1.shape().clone();
    let out = match tensors[0].0.dtype() {
        DType::F16 => f16::to_cpu_storage_owned(of_type(options, problem, lengths, tensors)?),
        DType::BF16 => bf16::to_cpu_storage_owned(of_type(options, problem, lengths, tensors)?),
        _ => f32::to_cpu_storage_owned(of_type(options, problem, lengths, tensors)?),
    };
    Ok((out, shape))
}

fn of_type<T: Element + WithDType>(
    options: &FlashAttn,
    problem: Option<Problem>,
    lengths: Lengths<'_>,
    tensors: [(&CpuStorage, &Layout); 3],
) -> Result<Vec<T>> {
    // Rows of no sequence stay 0.
    let mut out = zeros::<T>(tensors[0].1);
    let Some(problem) = problem else {
        return Ok(out);
    };
    let mut views = views::<T>(&problem, tensors)?;
    let slopes = options.alibi_slopes.as_ref().map(Tensor::to_vec1::<f32>).transpose()?;
    if let Some(slopes) = &slopes {
        views[0] = views[0].with_alibi_slopes(slopes);
    }
    let values = host_lengths(lengths)?;
    let out_view = TensorViewMut::from_slice(*problem.o_layout(), &mut out).map_err(Error::from)?;
    let done = attention()?.forward_lengths(&problem, views, &values.as_slices(), out_view, None);
    done.map_err(Error::from)?;
    Ok(out)
}

/// The gradients of q, k and v, contiguous.
pub(crate) fn backward(
    options: &FlashAttn,
    lengths: Lengths<'_>,
    tensors: [(&CpuStorage, &Layout); 3],
    dout: (&CpuStorage, &Layout),
) -> Result<[CpuStorage; 3]> {
    let given = tensors.map(|(storage, layout)| (storage.dtype(), layout));
    let problem = problem(options, lengths, given, DeviceLocation::Cpu)?;
    Ok(match tensors[0].0.dtype() {
        DType::F16 => gradients_of_type(problem, lengths, tensors, dout)?.map(f16::to_cpu_storage_owned),
        DType::BF16 => gradients_of_type(problem, lengths, tensors, dout)?.map(bf16::to_cpu_storage_owned),
        _ => gradients_of_type(problem, lengths, tensors, dout)?.map(f32::to_cpu_storage_owned),
    })
}

fn gradients_of_type<T: Element + WithDType>(
    problem: Option<Problem>,
    lengths: Lengths<'_>,
    tensors: [(&CpuStorage, &Layout); 3],
    (dout, dout_layout): (&CpuStorage, &Layout),
) -> Result<[Vec<T>; 3]> {
    // Rows of no sequence stay 0.
    let mut found = tensors.map(|(_, layout)| zeros::<T>(layout));
    let Some(problem) = problem else {
        return Ok(found);
    };
    let backward = backward_problem(&problem).map_err(Error::from)?;
    let forward = backward.forward();
    let [q, k, v] = views::<T>(&problem, tensors)?;
    let values = host_lengths(lengths)?;
    let (mut out, mut lse) = (zeros::<T>(tensors[0].1), vec![0f32; forward.lse_len()]);
    let out_view = TensorViewMut::from_slice(*forward.o_layout(), &mut out).map_err(Error::from)?;
    let done = attention()?.forward_lengths(&forward, [q, k, v], &values.as_slices(), out_view, Some(&mut lse));
    done.map_err(Error::from)?;

    let elements = &dout.as_slice::<T>()?[dout_layout.start_offset()..];
    let given = BackwardTensors {
        q,
        k,
        v,
        out: TensorView::from_slice(*forward.o_layout(), &out).map_err(Error::from)?,
        lse: &lse,
        dout: TensorView::from_slice(*forward.o_layout(), elements).map_err(Error::from)?,
    };
    let layouts = [problem.q_layout(), problem.k_layout(), problem.v_layout()];
    let [dq, dk, dv] = &mut found;
    let view = |n: usize, elements| TensorViewMut::from_slice(flashcore::Layout::bshd(layouts[n].shape), elements);
    let gradients = Gradients {
        dq: view(0, dq).map_err(Error::from)?,
        dk: view(1, dk).map_err(Error::from)?,
        dv: view(2, dv).map_err(Error::from)?,
    };
    let done = attention()?.backward_lengths(&backward, &given, &values.as_slices(), gradients);
    done.map_err(Error::from)?;
    Ok(found)
}

fn zeros<T: Element>(layout: &Layout) -> Vec<T> {
    vec![<T as bytemuck::Zeroable>::zeroed(); layout.shape().elem_count()]
}

/// q, k and v in the layouts of the problem.
fn views<'a, T: Element + WithDType>(
    problem: &Problem,
    tensors: [(&'a CpuStorage, &Layout); 3],
) -> Result<[TensorView<'a>; 3]> {
    let layouts = [problem.q_layout(), problem.k_layout(), problem.v_layout()];
    let mut views = Vec::with_capacity(3);
    for ((storage, layout), expected) in tensors.into_iter().zip(layouts) {
        let elements = &storage.as_slice::<T>()?[layout.start_offset()..];
        views.push(TensorView::from_slice(*expected, elements).map_err(Error::from)?);
    }
    Ok([views[0], views[1], views[2]])
}

/// The values of lengths. That they fit the problem is checked by the library.
fn host_lengths(lengths: Lengths<'_>) -> Result<flashcore::Lengths<Vec<i32>>> {
    let mut values = flashcore::Lengths::default();
    let Lengths::Varlen(lengths) = lengths else {
        return Ok(values);
    };
    values.cu_seqlens_q = Some(integers("seqlens_q", &lengths.seqlens_q)?);
    match &lengths.keys {
        Keys::Packed(seqlens_k) => values.cu_seqlens_k = Some(integers("seqlens_k", seqlens_k)?),
        Keys::Paged { seqlens_k, block_table } => {
            let sums = integers("seqlens_k", seqlens_k)?;
            let lengths = sums.windows(2).map(|ends| ends[1].saturating_sub(ends[0]));
            values.seqused_k = Some(lengths.collect());
            // A table may have any bits where it has no page.
            values.block_table = Some(bits(block_table)?);
        }
    }
    Ok(values)
}

/// The elements of a contiguous tensor of integers, as i32 of the same bits.
fn bits(tensor: &Tensor) -> Result<Vec<i32>> {
    let (storage, layout) = tensor.storage_and_layout();
    let elements = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
    match &*storage {
        Storage::Cpu(CpuStorage::U32(values)) => Ok(values[elements].iter().map(|value| *value as i32).collect()),
        Storage::Cpu(CpuStorage::I32(values)) => Ok(values[elements].to_vec()),
        _ => candle::bail!("lengths are neither u32 nor i32 on the CPU"),
    }
}

/// The same, of numbers that are not negative.
fn integers(argument: &'static str, tensor: &Tensor) -> Result<Vec<i32>> {
    let values = bits(tensor)?;
    match values.iter().find(|value| **value < 0) {
        None => Ok(values),
        Some(value) => Err(Error::Argument {
            argument,
            given: format!("{} in an entry", *value as u32),
            allowed: "entries are from 0 to 2^31 - 1".to_string(),
        }
        .into()),
    }
}
