//! Tensors in host memory, by the library's CPU backend.

use std::sync::OnceLock;

use candle::backend::BackendStorage;
use candle::{CpuStorage, DType, DeviceLocation, Layout, Result, Shape, Storage, Tensor};
use flashcore::{Attention, Device, Host, Name, Operands, Problem, View, ViewMut, bf16, f16};

use crate::backward::backward_problem;
use crate::problem::{INPUTS, Lengths, problem};
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
    let shape = tensors[0].1.shape();
    // Rows of no sequence stay 0.
    let mut out = zeros(tensors[0].0.dtype(), shape);
    if let Some(problem) = problem {
        let (values, slopes) = (host_lengths(lengths)?, options.alibi_slopes.as_ref());
        let slopes = slopes.map(Tensor::to_vec1::<f32>).transpose()?;
        let mut operands = inputs(&problem, tensors)?.with_lengths(&values.as_slices());
        if let Some(slopes) = &slopes {
            operands = operands.with(Name::AlibiSlopes, slopes);
        }
        let out = view_mut(&problem, Name::Out, &mut out)?;
        let done = attention()?.run(&problem, operands.with_mut(Name::Out, out));
        done.map_err(Error::from)?;
    }
    Ok((out, shape.clone()))
}

/// The gradients of q, k and v, contiguous.
pub(crate) fn backward(
    options: &FlashAttn,
    lengths: Lengths<'_>,
    tensors: [(&CpuStorage, &Layout); 3],
    (dout, dout_layout): (&CpuStorage, &Layout),
) -> Result<[CpuStorage; 3]> {
    let given = tensors.map(|(storage, layout)| (storage.dtype(), layout));
    let problem = problem(options, lengths, given, DeviceLocation::Cpu)?;
    let dtype = tensors[0].0.dtype();
    // Rows of no sequence stay 0.
    let mut found = tensors.map(|(_, layout)| zeros(dtype, layout.shape()));
    let Some(problem) = problem else {
        return Ok(found);
    };
    let backward = backward_problem(&problem).map_err(Error::from)?;
    let forward = backward.forward();
    let values = host_lengths(lengths)?;
    let (mut out, mut lse) = (zeros(dtype, tensors[0].1.shape()), vec![0f32; forward.lse_len()]);
    let operands = inputs(&forward, tensors)?.with_lengths(&values.as_slices());
    let written = operands.with_mut(Name::Out, view_mut(&forward, Name::Out, &mut out)?);
    let done = attention()?.run(&forward, written.with_mut(Name::Lse, &mut lse));
    done.map_err(Error::from)?;

    let operands = inputs(&backward, tensors)?.with_lengths(&values.as_slices());
    let operands = operands
        .with(Name::Out, view(&backward, Name::Out, &out, 0)?)
        .with(Name::Lse, &lse);
    let dout = view(&backward, Name::Dout, dout, dout_layout.start_offset())?;
    let mut operands = operands.with(Name::Dout, dout);
    for (name, storage) in [Name::Dq, Name::Dk, Name::Dv].into_iter().zip(&mut found) {
        operands = operands.with_mut(name, view_mut(&backward, name, storage)?);
    }
    attention()?.run(&backward, operands).map_err(Error::from)?;
    Ok(found)
}

fn zeros(dtype: DType, shape: &Shape) -> CpuStorage {
    let elements = shape.elem_count();
    match dtype {
        DType::F16 => CpuStorage::F16(vec![f16::ZERO; elements]),
        DType::BF16 => CpuStorage::BF16(vec![bf16::ZERO; elements]),
        _ => CpuStorage::F32(vec![0.0; elements]),
    }
}

/// q, k and v in the layouts of the problem.
fn inputs<'a>(problem: &Problem, tensors: [(&'a CpuStorage, &Layout); 3]) -> Result<Operands<'a, Host>> {
    let mut operands = Operands::new();
    for (name, (storage, layout)) in INPUTS.into_iter().zip(tensors) {
        operands = operands.with(name, view(problem, name, storage, layout.start_offset())?);
    }
    Ok(operands)
}

fn layout_of(problem: &Problem, name: Name) -> flashcore::Layout {
    problem.tensor(name).map_or(*problem.o_layout(), |spec| spec.layout)
}

/// A tensor of a problem, from an element on.
fn view<'a>(problem: &Problem, name: Name, storage: &'a CpuStorage, first: usize) -> Result<View<'a, Host>> {
    let layout = layout_of(problem, name);
    Ok(match storage {
        CpuStorage::F16(values) => View::from_slice(layout, &values[first..]),
        CpuStorage::BF16(values) => View::from_slice(layout, &values[first..]),
        CpuStorage::F32(values) => View::from_slice(layout, &values[first..]),
        other => candle::bail!("{name} holds {:?}", other.dtype()),
    })
}

fn view_mut<'a>(problem: &Problem, name: Name, storage: &'a mut CpuStorage) -> Result<ViewMut<'a, Host>> {
    let layout = layout_of(problem, name);
    Ok(match storage {
        CpuStorage::F16(values) => ViewMut::from_slice(layout, values),
        CpuStorage::BF16(values) => ViewMut::from_slice(layout, values),
        CpuStorage::F32(values) => ViewMut::from_slice(layout, values),
        other => candle::bail!("{name} holds {:?}", other.dtype()),
    })
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
