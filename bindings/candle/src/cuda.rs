//! Tensors in device memory, on the stream of candle's device.
//!
//! Raw addresses go from candle to the library, and neither sees the other's binding of the driver.

use candle::backend::{BackendDevice, BackendStorage};
use candle::cuda_backend::CudaDevice;
use candle::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut};
use candle::{CudaStorage, DType, Result, Shape, Storage, Tensor};
use flashcore::unstable::cuda::{DeviceSlice, Stream};
use flashcore::{Cuda, DeviceSliceMut, ElementType, Name, Operands, Problem, View, ViewMut, bf16, f16};

use crate::Error;
use crate::call::{Memory, Read, attention};
use crate::op::Lengths;
use crate::problem::layout_of;

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

impl Memory for CudaStorage {
    fn of(storage: &Storage) -> Option<&CudaStorage> {
        match storage {
            Storage::Cuda(storage) => Some(storage),
            _ => None,
        }
    }

    fn into_storage(self) -> Storage {
        Storage::Cuda(self)
    }

    fn empty(device: &CudaDevice, shape: &Shape, dtype: DType) -> Result<CudaStorage> {
        // SAFETY: kernels write all of it.
        #[allow(unsafe_code)]
        unsafe {
            device.alloc_uninit(shape, dtype)
        }
    }

    /// Enqueues it.
    fn run<'a>(
        problem: &Problem,
        lengths: Lengths<'_>,
        device: &CudaDevice,
        read: Vec<Read<'_, CudaStorage>>,
        written: impl IntoIterator<Item = (Name, &'a mut CudaStorage)>,
    ) -> Result<()> {
        let stream = &device.cuda_stream();
        let attention = attention(Some(stream.context().ordinal()))?;
        let device_of_attention = attention.device();
        let Some(context) = device_of_attention.context() else {
            candle::bail!("{device_of_attention} is no CUDA device");
        };
        // The tensors of lengths, locked while their addresses are used.
        let values = device_lengths(lengths)?;
        let locked = values.map(Tensor::storage_and_layout);
        let mut read: Vec<Read<'_, CudaStorage>> = read; // no longer than these
        for (word, array) in flashcore::Lengths::<()>::NAMES.into_iter().zip(locked.arrays()) {
            match (
                Name::from_word(word),
                array.map(|(storage, layout)| (&**storage, layout)),
            ) {
                (Some(name), Some((Storage::Cuda(storage), layout))) => {
                    read.push((name, storage, layout.start_offset()))
                }
                (_, None) => {}
                _ => candle::bail!("lengths are not on the device of q"),
            }
        }
        // SAFETY: candle keeps memory that its stream uses allocated until the stream is done.
        #[allow(unsafe_code)]
        let slice = |address, bytes| unsafe { DeviceSlice::from_raw(context, address, bytes) };
        let (mut operands, mut guards) = (Operands::<Cuda>::new(), Vec::with_capacity(12));
        for (name, storage, first) in read {
            let (element, address, bytes, guard) = memory!(storage, as_cuda_slice, device_ptr, stream);
            let skipped = first * element.size_bytes();
            let memory = slice(address + skipped as u64, bytes.saturating_sub(skipped));
            operands = operands.with(name, View::new(element, layout_of(problem, name)?, memory));
            guards.push(guard);
        }
        for (name, storage) in written {
            let (element, address, bytes, guard) = memory!(storage, as_cuda_slice_mut, device_ptr_mut, stream);
            // SAFETY: the storage is borrowed mutably, and candle's work on it is in this stream.
            #[allow(unsafe_code)]
            let memory = unsafe { DeviceSliceMut::new(slice(address, bytes)) };
            operands = operands.with_mut(name, ViewMut::new(element, layout_of(problem, name)?, memory));
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
}

/// The values of lengths, as kernels take them: on the device.
fn device_lengths(lengths: Lengths<'_>) -> Result<flashcore::Lengths<Tensor>> {
    let mut values = flashcore::Lengths::default();
    let Some(lengths) = lengths else { return Ok(values) };
    let (seqlens_k, batch) = (&lengths.seqlens_k, lengths.seqlens_k.dim(0)? - 1);
    values.cu_seqlens_q = Some(lengths.seqlens_q.clone());
    values.block_table = lengths.block_table.clone();
    if values.block_table.is_some() {
        values.seqused_k = Some((seqlens_k.narrow(0, 1, batch)? - seqlens_k.narrow(0, 0, batch)?)?);
    } else {
        values.cu_seqlens_k = Some(seqlens_k.clone());
    }
    Ok(values)
}
