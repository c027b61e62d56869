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
use flashcore::{Attention, Device, DeviceTensors, Problem, bf16, f16};

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
    let attention = Arc::new(Attention::new(Device::cuda(ordinal as u32)?));
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
        DType::F16 => of_type::<f16>(problem, lengths, tensors)?,
        DType::BF16 => of_type::<bf16>(problem, lengths, tensors)?,
        _ => of_type::<f32>(problem, lengths, tensors)?,
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
    let mut out = match lengths {
        // SAFETY: kernels write all of it.
        #[allow(unsafe_code)]
        Lengths::Equal => unsafe { device.alloc::<T>(elements)? },
        // Rows of no sequence stay 0.
        Lengths::Varlen(_) => device.alloc_zeros::<T>(elements)?,
    };
    enqueue(&problem, lengths, tensors, device, &mut out)?;
    Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
}

fn enqueue<T: CudaDType + DeviceRepr>(
    problem: &Problem,
    lengths: Lengths<'_>,
    tensors: [(&CudaStorage, &Layout); 3],
    device: &CudaDevice,
    out: &mut CudaSlice<T>,
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
    let bytes = out.num_bytes();
    let (address, _out) = out.device_ptr_mut(stream);
    // SAFETY: as in `slice`.
    #[allow(unsafe_code)]
    let out = unsafe { DeviceSlice::from_raw(context, address, bytes) };
    let mut call = DeviceTensors::new(q, k, v, out);

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
    attention.forward_on(&own, problem, &call).map_err(Error::from)?;
    Ok(())
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
