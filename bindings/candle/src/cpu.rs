//! Tensors in host memory, by the library's CPU backend.

use candle::backend::{BackendDevice, BackendStorage};
use candle::cpu_backend::CpuDevice;
use candle::{CpuStorage, DType, Result, Shape, Storage, Tensor};
use flashcore::{Host, Name, Operands, Problem, View, ViewMut};

use crate::Error;
use crate::call::{Memory, Read, attention};
use crate::op::Lengths;
use crate::problem::layout_of;

impl Memory for CpuStorage {
    fn of(storage: &Storage) -> Option<&CpuStorage> {
        match storage {
            Storage::Cpu(storage) => Some(storage),
            _ => None,
        }
    }

    fn into_storage(self) -> Storage {
        Storage::Cpu(self)
    }

    fn empty(device: &CpuDevice, shape: &Shape, dtype: DType) -> Result<CpuStorage> {
        device.zeros_impl(shape, dtype)
    }

    fn run<'a>(
        problem: &Problem,
        lengths: Lengths<'_>,
        _: &CpuDevice,
        read: Vec<Read<'_, CpuStorage>>,
        written: impl IntoIterator<Item = (Name, &'a mut CpuStorage)>,
    ) -> Result<()> {
        let values = host_lengths(lengths)?;
        let mut operands = Operands::new().with_lengths(&values.as_slices());
        for (name, storage, first) in read {
            operands = operands.with(name, view(problem, name, storage, first)?);
        }
        for (name, storage) in written {
            operands = operands.with_mut(name, view_mut(problem, name, storage)?);
        }
        let attention = attention(None)?;
        Ok(attention.run(problem, operands).map_err(Error::from)?)
    }
}

/// A tensor of a problem, from an element on.
fn view<'a>(problem: &Problem, name: Name, storage: &'a CpuStorage, first: usize) -> Result<View<'a, Host>> {
    let layout = layout_of(problem, name)?;
    Ok(match storage {
        CpuStorage::F16(values) => View::from_slice(layout, &values[first..]),
        CpuStorage::BF16(values) => View::from_slice(layout, &values[first..]),
        CpuStorage::F32(values) => View::from_slice(layout, &values[first..]),
        other => candle::bail!("{name} holds {:?}", other.dtype()),
    })
}

fn view_mut<'a>(problem: &Problem, name: Name, storage: &'a mut CpuStorage) -> Result<ViewMut<'a, Host>> {
    let layout = layout_of(problem, name)?;
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
    let Some(lengths) = lengths else { return Ok(values) };
    values.cu_seqlens_q = Some(integers("seqlens_q", &lengths.seqlens_q)?);
    let sums = integers("seqlens_k", &lengths.seqlens_k)?;
    if let Some(block_table) = &lengths.block_table {
        let lengths = sums.windows(2).map(|ends| ends[1].saturating_sub(ends[0]));
        values.seqused_k = Some(lengths.collect());
        // A table may have any bits where it has no page.
        values.block_table = Some(bits(block_table)?);
    } else {
        values.cu_seqlens_k = Some(sums);
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
        Some(value) => {
            let given = format!("{} in an entry", *value as u32);
            Err(Error::argument(argument, given, "entries are from 0 to 2^31 - 1").into())
        }
    }
}
