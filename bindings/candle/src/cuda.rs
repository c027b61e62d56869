//! Tensors in device memory, on the stream of candle's device.
//!
//! Raw addresses go from candle to the library, and neither sees the other's binding of the driver.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle::backend::BackendStorage;
use candle::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop, ValidAsZeroBits,
};
use candle::cuda_backend::{CudaDType, CudaDevice};
use candle::{CudaStorage, DType, Layout, Result, Shape, Storage, Tensor};
use flashcore::cuda::{Context, DeviceSlice, Stream};
use flashcore::{Attention, Device, DeviceGradients, DeviceTensors, Problem, bf16, f16};

use crate::backward::backward_problem;
use crate::problem::{Lengths, problem};
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

/// Attention of q, k and v.
pub(crate) fn forward(
    options: &FlashAttn,
    lengths: Lengths<'_>,
    tensors: [(&CudaStorage, &Layout); 3],
) -> Result<(CudaStorage, Shape)> {
    let given = tensors.map(|(storage, layout)| (storage.dtype(), layout));
    let (q, layout) = tensors[0];
    let location = candle::backend::BackendDevice::location(q.device());
    let problem = problem(options, lengths, given, location)?;
    let out = match q.dtype() {
        DType::F16 => of_type::<f16>(options, problem, lengths, tensors)?,
        DType::BF16 => of_type::<bf16>(options, problem, lengths, tensors)?,
        _ => of_type::<f32>(options, problem, lengths, tensors)?,
    };
    Ok((out, layout.shape().clone()))
}

/// A slice of device memory from an element on. The guard records, when it is dropped, that the
/// stream reads it.
fn slice<'a, T>(
    context: &Context,
    stream: &'a Arc<CudaStream>,
    memory: &'a CudaSlice<T>,
    first: usize,
) -> (DeviceSlice<'a>, SyncOnDrop<'a>) {
    let (address, guard) = memory.device_ptr(stream);
    let skipped = first * size_of::<T>();
    let bytes = memory.num_bytes().saturating_sub(skipped);
    // SAFETY: candle keeps memory that its stream uses allocated until the stream is done.
    #[allow(unsafe_code)]
    let slice = unsafe { DeviceSlice::from_raw(context, address + skipped as u64, bytes) };
    (slice, guard)
}

fn of_type<T: CudaDType + DeviceRepr + ValidAsZeroBits>(
    options: &FlashAttn,
    problem: Option<Problem>,
    lengths: Lengths<'_>,
    tensors: [(&CudaStorage, &Layout); 3],
) -> Result<CudaStorage> {
    let (q, layout) = tensors[0];
    let device = q.device();
    let elements = layout.shape().elem_count();
    let Some(problem) = problem else {
        return Ok(CudaStorage::wrap_cuda_slice(
            device.alloc_zeros::<T>(elements)?,
            device.clone(),
        ));
    };
    let mut out = new::<T>(device, lengths, elements)?;
    enqueue(
        &problem,
        lengths,
        tensors,
        device,
        Results {
            out: &mut out,
            lse: None,
        },
        Pass::Forward(options.alibi_slopes.as_ref()),
    )?;
    Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
}

/// Memory that kernels write; 0 where it has rows of no sequence.
fn new<T: CudaDType + DeviceRepr + ValidAsZeroBits>(
    device: &CudaDevice,
    lengths: Lengths<'_>,
    elements: usize,
) -> Result<CudaSlice<T>> {
    match lengths {
        // SAFETY: kernels write all of it.
        #[allow(unsafe_code)]
        Lengths::Equal => unsafe { device.alloc::<T>(elements) },
        Lengths::Varlen(_) => device.alloc_zeros::<T>(elements),
    }
}

/// The gradients of q, k and v, contiguous.
pub(crate) fn backward(
    options: &FlashAttn,
    lengths: Lengths<'_>,
    tensors: [(&CudaStorage, &Layout); 3],
    dout: (&CudaStorage, &Layout),
) -> Result<[CudaStorage; 3]> {
    let given = tensors.map(|(storage, layout)| (storage.dtype(), layout));
    let q = tensors[0].0;
    let location = candle::backend::BackendDevice::location(q.device());
    let problem = problem(options, lengths, given, location)?;
    match q.dtype() {
        DType::F16 => gradients_of_type::<f16>(problem, lengths, tensors, dout),
        DType::BF16 => gradients_of_type::<bf16>(problem, lengths, tensors, dout),
        _ => gradients_of_type::<f32>(problem, lengths, tensors, dout),
    }
}

fn gradients_of_type<T: CudaDType + DeviceRepr + ValidAsZeroBits>(
    problem: Option<Problem>,
    lengths: Lengths<'_>,
    tensors: [(&CudaStorage, &Layout); 3],
    dout: (&CudaStorage, &Layout),
) -> Result<[CudaStorage; 3]> {
    let device = tensors[0].0.device();
    let [q, k, v] = tensors.map(|(_, layout)| layout.shape().elem_count());
    let storages = |found: [CudaSlice<T>; 3]| found.map(|slice| CudaStorage::wrap_cuda_slice(slice, device.clone()));
    let Some(problem) = problem else {
        let zeros = |elements| device.alloc_zeros::<T>(elements);
        return Ok(storages([zeros(q)?, zeros(k)?, zeros(v)?]));
    };
    let backward = backward_problem(&problem).map_err(Error::from)?;
    let forward = backward.forward();
    let new = |elements| new::<T>(device, lengths, elements);
    let (mut out, mut found) = (new(q)?, [new(q)?, new(k)?, new(v)?]);
    let mut lse = device.alloc_zeros::<f32>(forward.lse_len())?;
    let results = Results {
        out: &mut out,
        lse: Some(&mut lse),
    };
    // A problem with slopes has no backward pass, and was refused.
    enqueue(&forward, lengths, tensors, device, results, Pass::Forward(None))?;
    let results = Results {
        out: &mut out,
        lse: Some(&mut lse),
    };
    enqueue(
        &backward,
        lengths,
        tensors,
        device,
        results,
        Pass::Backward(dout, &mut found),
    )?;
    Ok(storages(found))
}

/// What a forward pass writes, and a backward pass reads.
struct Results<'a, T> {
    out: &'a mut CudaSlice<T>,
    lse: Option<&'a mut CudaSlice<f32>>,
}

/// A slice of device memory that kernels write, all of it. The guard records that the stream does.
fn slice_mut<'a, T>(
    context: &Context,
    stream: &'a Arc<CudaStream>,
    memory: &'a mut CudaSlice<T>,
) -> (DeviceSlice<'a>, SyncOnDrop<'a>) {
    let bytes = memory.num_bytes();
    let (address, guard) = memory.device_ptr_mut(stream);
    // SAFETY: as in `slice`.
    #[allow(unsafe_code)]
    let slice = unsafe { DeviceSlice::from_raw(context, address, bytes) };
    (slice, guard)
}

/// The direction of a pass, and the tensors only that direction has.
enum Pass<'a, T> {
    /// ALiBi's slopes.
    Forward(Option<&'a Tensor>),
    /// dout; and dq, dk and dv.
    Backward((&'a CudaStorage, &'a Layout), &'a mut [CudaSlice<T>; 3]),
}

/// Enqueues a pass of the problem's direction.
fn enqueue<T: CudaDType + DeviceRepr>(
    problem: &Problem,
    lengths: Lengths<'_>,
    tensors: [(&CudaStorage, &Layout); 3],
    device: &CudaDevice,
    results: Results<'_, T>,
    pass: Pass<'_, T>,
) -> Result<()> {
    let stream = &device.cuda_stream();
    let attention = attention(stream.context().ordinal())?;
    let device_of_attention = attention.device();
    let Some(context) = device_of_attention.context() else {
        candle::bail!("{device_of_attention} is no CUDA device");
    };
    let mut memory = Vec::with_capacity(3);
    for (storage, layout) in tensors {
        memory.push(slice(
            context,
            stream,
            storage.as_cuda_slice::<T>()?,
            layout.start_offset(),
        ));
    }
    let [q, k, v] = [0, 1, 2].map(|place| memory[place].0);
    let (out, _out) = slice_mut(context, stream, results.out);
    let mut call = DeviceTensors::new(q, k, v, out);
    let lse = results.lse.map(|lse| slice_mut(context, stream, lse));
    call.lse = lse.as_ref().map(|(slice, _)| *slice);
    let mut written = Vec::with_capacity(3);
    let slopes = match &pass {
        Pass::Forward(Some(slopes)) => Some(slopes.storage_and_layout()),
        _ => None,
    };
    let slopes = match &slopes {
        None => None,
        Some((storage, layout)) => match &**storage {
            Storage::Cuda(storage) => Some(slice(
                context,
                stream,
                storage.as_cuda_slice::<f32>()?,
                layout.start_offset(),
            )),
            _ => candle::bail!("alibi_slopes are not on the device of q"),
        },
    };
    call.alibi_slopes = slopes.as_ref().map(|(slice, _)| *slice);
    if let Pass::Backward((dout, layout), found) = pass {
        memory.push(slice(
            context,
            stream,
            dout.as_cuda_slice::<T>()?,
            layout.start_offset(),
        ));
        written.extend(found.each_mut().map(|memory| slice_mut(context, stream, memory)));
        let [dq, dk, dv] = [0, 1, 2].map(|place| written[place].0);
        let dout = memory[3].0;
        call.gradients = Some(DeviceGradients { dout, dq, dk, dv });
    }

    // The tensors of lengths, locked while their addresses are used.
    let values = device_lengths(lengths)?;
    let locked = values.map(|tensor| tensor.storage_and_layout());
    let entries = locked.try_map(|(storage, layout)| match &**storage {
        Storage::Cuda(storage) if storage.dtype() == DType::U32 => {
            // The bits of numbers below 2^31 are those of i32.
            Ok(slice(
                context,
                stream,
                storage.as_cuda_slice::<u32>()?,
                layout.start_offset(),
            ))
        }
        Storage::Cuda(storage) => Ok(slice(
            context,
            stream,
            storage.as_cuda_slice::<i32>()?,
            layout.start_offset(),
        )),
        _ => candle::bail!("lengths are not on the device of q"),
    })?;
    call.lengths = entries.map(|(slice, _)| *slice);

    let bytes = attention
        .workspace_bytes(problem, call.alignment())
        .map_err(Error::from)?;
    let workspace = match bytes {
        0 => None,
        // SAFETY: kernels write it before they read it.
        #[allow(unsafe_code)]
        _ => Some(unsafe { device.alloc::<u8>(bytes as usize)? }),
    };
    let workspace = workspace.as_ref().map(|memory| slice(context, stream, memory, 0));
    call.workspace = workspace.as_ref().map(|(slice, _)| *slice);
    // SAFETY: candle's stream lives longer than this call, and the work in it needs no handle.
    #[allow(unsafe_code)]
    let own = unsafe { Stream::from_raw(context, stream.cu_stream() as usize) };
    let own = own.map_err(flashcore::Error::from).map_err(Error::from)?;
    // SAFETY: candle frees tensors and workspace in the order of the stream, and nothing else has this workspace.
    #[allow(unsafe_code)]
    let done = unsafe { attention.run_foreign(&own, problem, &call, |_| None) };
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
