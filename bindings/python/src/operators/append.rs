//! `flashcore::append_kv`: new rows of K and V into a cache, before attention, with the rotary embedding
//! of K and Q.

use std::slice;

use flashcore::cuda::{DeviceSlice, Stream};
use flashcore::{
    Append, AppendPlace, AppendTensors, AppendValues, Attention, Device, DeviceAppend, DeviceRotary, Layout, Queue,
    Rotary, RotaryTensors,
};

use super::call::{host_view, host_view_mut};
use super::lengths::array;
use super::{Array, Results, Rows, serve};
use crate::call::attention_on;
use crate::input::Input;
use crate::libtorch::{Error, Libtorch};
use crate::tensor::Place;

/// New rows `[batch, seq_new, kv_heads, head_dim]`, or with `cu_seqlens_k_new` packed, go behind the first
/// `cache_seqlens` rows of a cache, as `fwd_kvcache` takes it. An argument that is not given is a tensor
/// of one dimension without elements. `seqused_k` gets the keys of each sequence afterwards; `q_out` q,
/// rotated.
pub(super) const APPEND: &str = "append_kv(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor k, Tensor v, \
     Tensor cache_seqlens, Tensor cu_seqlens_k_new, Tensor cache_batch_idx, Tensor block_table, \
     Tensor(c!) seqused_k, Tensor rotary_cos, Tensor rotary_sin, Tensor q, Tensor(d!) q_out, Tensor cu_seqlens_q, \
     Tensor seqlens_rotary, bool rotary_interleaved, bool q_at_one_position) -> ()";

pub(super) unsafe extern "C-unwind" fn append(stack: *mut u64, inputs: u64, _outputs: u64) {
    // SAFETY: the schema ends with two numbers and has no results.
    unsafe { serve(stack, inputs, 2, compute) }
}

pub(super) fn compute<'a>(torch: &'a Libtorch, inputs: &[Input], numbers: &[u64]) -> Results<'a, 0> {
    let [k_cache, v_cache] = [(0, "k_cache"), (1, "v_cache")].map(|(n, name)| inputs[n].describe::<4>(name));
    let (k_cache, v_cache) = (Rows::from(k_cache?), Rows::from(v_cache?));
    let (k_new, v_new) = (rows(&inputs[2], "k")?, rows(&inputs[3], "v")?);
    let place = k_cache.place;
    let numbers_of = |n: usize, name| Ok::<_, Error>(inputs[n].describe_i32::<1>(name, place)?.map(array));
    let table = inputs[7].describe_i32::<2>("block_table", place)?;
    let Some(cache_seqlens) = numbers_of(4, "cache_seqlens")? else {
        return Ok([]); // there is no sequence
    };
    let mut values = AppendValues {
        cache_seqlens: Some(cache_seqlens),
        cu_seqlens_k_new: numbers_of(5, "cu_seqlens_k_new")?,
        cache_batch_idx: numbers_of(6, "cache_batch_idx")?,
        block_table: table.map(array),
        ..AppendValues::default()
    };
    let seqused_k = numbers_of(8, "seqused_k")?;
    let (new, cache) = ([k_new.layout, v_new.layout], [k_cache.layout, v_cache.layout]);
    let (dtype, batch) = (k_cache.dtype, cache_seqlens.len);
    let append = match &table {
        None => Append::to_cache(dtype, new, cache),
        Some(table) => Append::to_pages(dtype, new, cache, table.shape[1]),
    };
    let mut append = Append {
        batch,
        packed: values.cu_seqlens_k_new.is_some(),
        batch_idx: values.cache_batch_idx.is_some(),
        seqused_k: seqused_k.is_some(),
        ..append
    };
    if let (AppendPlace::Paged { tables, .. }, Some(table)) = (&mut append.place, &table) {
        *tables = table.shape[0];
    }
    let mut rotary = None;
    if inputs[9].dims == 2 {
        let (q, q_out) = (rows(&inputs[11], "q")?, rows(&inputs[12], "q_out")?);
        let (cos, sin) = (
            table_of(&inputs[9], "rotary_cos")?,
            table_of(&inputs[10], "rotary_sin")?,
        );
        values.cu_seqlens_q = numbers_of(13, "cu_seqlens_q")?;
        values.seqlens_rotary = numbers_of(14, "seqlens_rotary")?;
        let [_, positions, _, half] = cos.layout.shape;
        append.rotary = Some(Rotary {
            q: q.layout,
            q_out: q_out.layout,
            packed_q: values.cu_seqlens_q.is_some(),
            positions,
            dim: 2 * half,
            interleaved: numbers[0] as u8 != 0,
            q_at_one_position: numbers[1] as u8 != 0,
            seqlens: values.seqlens_rotary.is_some(),
        });
        q.agree(&[&k_cache, &cos, &sin, &q_out])?;
        if sin.layout != cos.layout {
            return Err(
                "rotary_sin has another shape or other strides than rotary_cos; both are [positions, \
                        rotary_dim / 2], contiguous"
                    .into(),
            );
        }
        rotary = Some([cos, sin, q, q_out]);
    }
    k_new.agree(&[&k_cache, &v_cache, &v_new])?;
    append.check()?;
    let call = Call {
        append,
        tensors: [k_new, v_new, k_cache, v_cache],
        values,
        seqused_k,
        rotary,
    };
    let attention = attention_on(place, None, 0)?;
    match (attention.device(), place) {
        (Device::Cuda(context), Place::Cuda(ordinal)) => {
            // SAFETY: PyTorch's current stream lives as long as PyTorch.
            let stream = unsafe { Stream::from_raw(&context, torch.current_stream(ordinal)?)? };
            call.run_on_cuda(&attention, &stream)?;
        }
        _ => call.run_on_host(&attention)?,
    }
    Ok([])
}

/// Rows of four dimensions, or packed ones of three.
fn rows(tensor: &Input, name: &'static str) -> Result<Rows, Error> {
    Ok(match tensor.dims {
        3 => Rows::from(tensor.describe::<3>(name)?),
        _ => Rows::from(tensor.describe::<4>(name)?),
    })
}

/// A rotary table `[positions, rotary_dim / 2]`.
fn table_of(tensor: &Input, name: &'static str) -> Result<Rows, Error> {
    let table = tensor.describe::<2>(name)?;
    let [positions, half] = table.shape.map(|n| n as usize); // PyTorch's sizes are not negative
    if table.strides != [half as i64, 1] && positions * half > 1 {
        return Err(format!("{name} is not contiguous; make it so with .contiguous()").into());
    }
    Ok(Rows {
        name,
        dtype: table.dtype,
        place: table.place,
        layout: Layout::bshd([1, positions, 1, half]),
        first: table.first,
    })
}

/// An append with its tensors, which were all found on one device.
struct Call {
    append: Append,
    /// k_new, v_new, k_cache, v_cache.
    tensors: [Rows; 4],
    values: AppendValues<Array>,
    seqused_k: Option<Array>,
    /// cos, sin, q, q_out.
    rotary: Option<[Rows; 4]>,
}

impl Call {
    fn run_on_cuda(&self, attention: &Attention, stream: &Stream) -> Result<(), Error> {
        let context = stream.context();
        // SAFETY: all memory is on this device, and is as large as PyTorch's shapes say. PyTorch frees it in the order
        // of its current stream, where the work is.
        let slice = |first: *mut u8, bytes| unsafe { DeviceSlice::from_raw(context, first.addr() as u64, bytes) };
        let rows = |rows: &Rows| slice(rows.first, rows.layout.span() * rows.dtype.size_bytes());
        let memory = |array: &Array| slice(array.first.cast(), array.len * size_of::<i32>());
        let [k_new, v_new, k_cache, v_cache] = self.tensors.each_ref().map(rows);
        let mut tensors = DeviceAppend::new([k_new, v_new], [k_cache, v_cache]);
        tensors.values = self.values.map(memory);
        tensors.seqused_k = self.seqused_k.as_ref().map(memory);
        tensors.rotary = self.rotary.as_ref().map(|all| {
            let [cos, sin, q, q_out] = all.each_ref().map(rows);
            DeviceRotary { cos, sin, q, q_out }
        });
        // SAFETY: PyTorch's stream lives longer than this call, and appends need no workspace.
        let mut queue = unsafe { Queue::from_raw(context, stream.as_raw()) }.map_err(flashcore::Error::from)?;
        Ok(attention.append_on(&mut queue, &self.append, &tensors)?)
    }

    /// Whether Q is rotated in its own memory.
    fn is_in_place(&self) -> bool {
        let Some([_, _, q, q_out]) = &self.rotary else {
            return false;
        };
        q.first == q_out.first && q.layout == q_out.layout
    }

    /// Refuses tensors that are written and have bytes between the addresses of others: the CPU takes each as one
    /// slice.
    fn check_apart(&self) -> Result<(), Error> {
        let of_rows = |rows: &Rows| {
            (
                rows.name,
                rows.first.addr(),
                rows.layout.span() * rows.dtype.size_bytes(),
            )
        };
        let [k_new, v_new, k_cache, v_cache] = self.tensors.each_ref().map(of_rows);
        let numbers = |name, array: &Array| (name, array.first.addr(), array.len * size_of::<i32>());
        let (mut written, mut read) = (vec![k_cache, v_cache], vec![k_new, v_new]);
        written.extend(self.seqused_k.iter().map(|array| numbers("seqused_k", array)));
        for name in AppendValues::<Array>::NAMES {
            read.extend(self.values.named(name).map(|array| numbers(name, array)));
        }
        if let Some([cos, sin, q, q_out]) = self.rotary.as_ref().map(|all| all.each_ref().map(of_rows)) {
            written.push(q_out);
            read.extend([cos, sin]);
            read.extend((!self.is_in_place()).then_some(q));
        }
        for (n, &(name, first, bytes)) in written.iter().enumerate() {
            for &(other, start, length) in written[n + 1..].iter().chain(&read) {
                if bytes > 0 && length > 0 && first < start + length && start < first + bytes {
                    return Err(format!(
                        "{name} and {other} have bytes between the same addresses, as interleaved views of one tensor \
                         have; on the CPU, {name} is written and must be apart: make them contiguous"
                    )
                    .into());
                }
            }
        }
        Ok(())
    }

    fn run_on_host(&self, attention: &Attention) -> Result<(), Error> {
        self.check_apart()?;
        let read = |rows: &Rows| host_view(rows.name, rows.dtype, &rows.layout, rows.first);
        let write = |rows: &Rows| host_view_mut(rows.name, rows.dtype, &rows.layout, rows.first);
        // SAFETY: `describe_i32` has checked dtype and density, and PyTorch aligns numbers; else as in `host_view`.
        let numbers = |array: &Array| unsafe { slice::from_raw_parts(array.first.cast_const(), array.len) };
        let [k_new, v_new, k_cache, v_cache] = &self.tensors;
        let mut tensors = AppendTensors::new([read(k_new)?, read(v_new)?], [write(k_cache)?, write(v_cache)?]);
        tensors.values = self.values.map(numbers);
        // SAFETY: as above; nothing else of this call is there.
        let keys = |array: &Array| unsafe { slice::from_raw_parts_mut(array.first, array.len) };
        tensors.seqused_k = self.seqused_k.as_ref().map(keys);
        if let Some([cos, sin, q, q_out]) = &self.rotary {
            tensors.rotary = Some(RotaryTensors {
                cos: read(cos)?,
                sin: read(sin)?,
                q: match self.is_in_place() {
                    true => None,
                    false => Some(read(q)?),
                },
                q_out: write(q_out)?,
            });
        }
        Ok(attention.append(&self.append, tensors)?)
    }
}
