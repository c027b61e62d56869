//! Tensors in device memory, on the stream of candle's device.
//!
//! Raw addresses go from candle to the library, and neither sees the other's binding of the driver.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle::backend::{BackendDevice, BackendStorage};
use candle::cuda_backend::CudaDevice;
use candle::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut};
use candle::{CudaStorage, DType, Layout, Result, Shape, Storage, Tensor};
use flashcore::unstable::cuda::{DeviceSlice, Stream};
use flashcore::{Attention, Cuda, Device, DeviceSliceMut, ElementType, Name, Operands, Problem, View, ViewMut, bf16, f16};

use crate::backward::backward_problem;
use crate::problem::{INPUTS, Lengths, problem};
use crate::varlen::Keys;
use crate::{Error, FlashAttn};

/// The library on a device, by the number that candle and the library both take from the driver.
fn attention(ordinal: usize) -> std::result::Result<Arc<Attention>, Error> {
    static ATTENTION: Mutex<BTreeMap<usize, Arc<Attention>>> = Mutex::new(BTreeMap::new());
    let mut made = ATTENTION.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(attention) = made.get(&ordinal) {
        return Ok(attention.clone());
    }
    let attention = Arc::new(Attention::new(Device::cuda(ordinal as u32)?)?);
    made.insert(ordinal, attention.clone());
    Ok(attention)
}

/// A tensor that is read, from an element on.
type Read<'a> = (Name, &'a CudaStorage, usize);

/// Attention of q, k and v.
pub(crate) fn forward(
    options: &FlashAttn,
    lengths: Lengths<'_>,
    tensors: [(&CudaStorage, &Layout); 3],
) -> Result<(CudaStorage, Shape)> {
    let given = tensors.map(|(storage, layout)| (storage.dtype(), layout));
    let (q, layout) = tensors[0];
    let (device, shape) = (q.device(), layout.shape());
    let Some(problem) = problem(options, lengths, given, device.location())? else {
        return Ok((device.zeros_impl(shape, q.dtype())?, shape.clone()));
    };
    let mut out = new(device, lengths, shape, q.dtype())?;
    let slopes = options.alibi_slopes.as_ref().map(Tensor::storage_and_layout);
    let mut read = inputs(tensors).to_vec();
    match slopes
        .as_ref()
        .map(|(storage, layout)| (&**storage, layout.start_offset()))
    {
        None => {}
        Some((Storage::Cuda(storage), first)) => read.push((Name::AlibiSlopes, storage, first)),
        Some(_) => candle::bail!("alibi_slopes are not on the device of q"),
    }
    enqueue(&problem, lengths, device, read, [(Name::Out, &mut out)])?;
    Ok((out, shape.clone()))
}

/// The gradients of q, k and v, contiguous.
pub(crate) fn backward(
    options: &FlashAttn,
    lengths: Lengths<'_>,
    tensors: [(&CudaStorage, &Layout); 3],
    (dout, dout_layout): (&CudaStorage, &Layout),
) -> Result<[CudaStorage; 3]> {
    let given = tensors.map(|(storage, layout)| (storage.dtype(), layout));
    let (device, dtype) = (tensors[0].0.device(), tensors[0].0.dtype());
    let [of_q, of_k, of_v] = tensors.map(|(_, layout)| layout.shape());
    let Some(problem) = problem(options, lengths, given, device.location())? else {
        let zeros = |shape| device.zeros_impl(shape, dtype);
        return Ok([zeros(of_q)?, zeros(of_k)?, zeros(of_v)?]);
    };
    // A problem with slopes has no backward pass, and was refused.
    let backward = backward_problem(&problem).map_err(Error::from)?;
    let forward = backward.forward();
    let new = |shape| new(device, lengths, shape, dtype);
    let (mut out, mut found) = (new(of_q)?, [new(of_q)?, new(of_k)?, new(of_v)?]);
    let mut lse = device.zeros_impl(&Shape::from(forward.lse_len()), DType::F32)?;
    let written = [(Name::Out, &mut out), (Name::Lse, &mut lse)];
    enqueue(&forward, lengths, device, inputs(tensors).to_vec(), written)?;
    let saved = [
        (Name::Out, &out, 0),
        (Name::Lse, &lse, 0),
        (Name::Dout, dout, dout_layout.start_offset()),
    ];
    let read = inputs(tensors).into_iter().chain(saved).collect();
    let names = [Name::Dq, Name::Dk, Name::Dv];
    enqueue(&backward, lengths, device, read, names.into_iter().zip(&mut found))?;
    Ok(found)
}

fn inputs<'a>(tensors: [(&'a CudaStorage, &Layout); 3]) -> [Read<'a>; 3] {
    [0, 1, 2].map(|n| (INPUTS[n], tensors[n].0, tensors[n].1.start_offset()))
}

/// Memory that kernels write; 0 where it has rows of no sequence.
fn new(device: &CudaDevice, lengths: Lengths<'_>, shape: &Shape, dtype: DType) -> Result<CudaStorage> {
    match lengths {
        // SAFETY: kernels write all of it.
        #[allow(unsafe_code)]
        Lengths::Equal => unsafe { device.alloc_uninit(shape, dtype) },
        Lengths::Varlen(_) => device.zeros_impl(shape, dtype),
    }
}

/// What a storage holds, its address and bytes, and a guard that tells cudarc, when it is dropped, that the stream uses
/// it. The bits of `u32` below 2^31 are those of i32.
macro_rules! memory {
    ($storage:expr, $slice:ident, $pointer:ident, $stream:expr) => {{
        macro_rules! of {
            ($t:ty, $element:expr) => {{
                let slice = $storage.$slice::<$t>()?;
                let bytes = slice.num_bytes();
                let (address, guard) = slice.$pointer($stream);
                ($element, address, bytes, guard)
            }};
        }
        match $storage.dtype() {
            DType::F16 => of!(f16, ElementType::Float(flashcore::DType::F16)),
            DType::BF16 => of!(bf16, ElementType::Float(flashcore::DType::BF16)),
            DType::F32 => of!(f32, ElementType::F32),
            DType::U32 => of!(u32, ElementType::I32),
            _ => of!(i32, ElementType::I32),
        }
    }};
}

/// Enqueues a problem on tensors of its layouts.
fn enqueue<'a>(
    problem: &Problem,
    lengths: Lengths<'_>,
    device: &CudaDevice,
    read: Vec<Read<'_>>,
    written: impl IntoIterator<Item = (Name, &'a mut CudaStorage)>,
) -> Result<()> {
    let stream = &device.cuda_stream();
    let attention = attention(stream.context().ordinal())?;
    let device_of_attention = attention.device();
    let Some(context) = device_of_attention.context() else {
        candle::bail!("{device_of_attention} is no CUDA device");
    };
    // The tensors of lengths, locked while their addresses are used.
    let values = device_lengths(lengths)?;
    let locked = values.map(Tensor::storage_and_layout);
    let mut read: Vec<Read<'_>> = read; // no longer than these
    for (word, array) in flashcore::Lengths::<()>::NAMES.into_iter().zip(locked.arrays()) {
        match (
            Name::from_word(word),
            array.map(|(storage, layout)| (&**storage, layout)),
        ) {
            (Some(name), Some((Storage::Cuda(storage), layout))) => read.push((name, storage, layout.start_offset())),
            (_, None) => {}
            _ => candle::bail!("lengths are not on the device of q"),
        }
    }
    let layout_of = |name| problem.tensor(name).map_or(*problem.o_layout(), |spec| spec.layout);
    // SAFETY: candle keeps memory that its stream uses allocated until the stream is done.
    #[allow(unsafe_code)]
    let slice = |address, bytes| unsafe { DeviceSlice::from_raw(context, address, bytes) };
    let (mut operands, mut guards) = (Operands::<Cuda>::new(), Vec::with_capacity(12));
    for (name, storage, first) in read {
        let (element, address, bytes, guard) = memory!(storage, as_cuda_slice, device_ptr, stream);
        let skipped = first * element.size_bytes();
        let memory = slice(address + skipped as u64, bytes.saturating_sub(skipped));
        operands = operands.with(name, View::new(element, layout_of(name), memory));
        guards.push(guard);
    }
    for (name, storage) in written {
        let (element, address, bytes, guard) = memory!(storage, as_cuda_slice_mut, device_ptr_mut, stream);
        // SAFETY: the storage is borrowed mutably, and candle's work on it is in this stream.
        #[allow(unsafe_code)]
        let memory = unsafe { DeviceSliceMut::new(slice(address, bytes)) };
        operands = operands.with_mut(name, ViewMut::new(element, layout_of(name), memory));
        guards.push(guard);
    }
    let (mut workspace, mut refused) = (None, Ok(()));
    let allocate = |bytes| {
        // SAFETY: kernels write it before they read it.
        #[allow(unsafe_code)]
        match unsafe { device.alloc::<u8>(bytes) } {
            Ok(memory) => Some(workspace.insert(memory).device_ptr(stream).0),
            Err(error) => {
                refused = Err(error);
                None
            }
        }
    };
    // SAFETY: candle's stream lives longer than this call, and the work in it needs no handle.
    #[allow(unsafe_code)]
    let own = unsafe { Stream::from_raw(context, stream.cu_stream() as usize) };
    let own = own.map_err(flashcore::Error::from).map_err(Error::from)?;
    // SAFETY: candle frees tensors and workspace in the order of the stream, and nothing else has this workspace.
    #[allow(unsafe_code)]
    let done = unsafe { attention.run_foreign(&own, problem, operands, allocate) };
    refused?;
    Ok(done.map_err(Error::from)?)
}

/// The values of lengths, as kernels take them: on the device.
fn device_lengths(lengths: Lengths<'_>) -> Result<flashcore::Lengths<Tensor>> {
    let mut values = flashcore::Lengths::default();
    let Lengths::Varlen(lengths) = lengths else {
        return Ok(values);
    };
    values.cu_seqlens_q = Some(lengths.seqlens_q.clone());
    match &lengths.keys {
        Keys::Packed(seqlens_k) => values.cu_seqlens_k = Some(seqlens_k.clone()),
        Keys::Paged { seqlens_k, block_table } => {
            let batch = seqlens_k.dim(0)? - 1;
            values.seqused_k = Some((seqlens_k.narrow(0, 1, batch)? - seqlens_k.narrow(0, 0, batch)?)?);
            values.block_table = Some(block_table.clone());
        }
    }
    Ok(values)
}
