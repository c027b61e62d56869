//! cudarc's streams as queues, and its slices as operands (feature `cudarc`), in the version that the program uses.
//!
//! ```no_run
//! use cudarc::driver::CudaContext;
//! use flashcore::cudarc::{queue, view, view_mut};
//! use flashcore::{Attention, Device, Operands, Problem, View};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (device, stream) = (Device::cuda(0)?, CudaContext::new(0)?.new_stream()?);
//! let (attention, mut queue) = (Attention::new(device.clone())?, queue(&device, &stream)?);
//! let ones = stream.clone_htod(&vec![1f32; 512 * 8 * 64])?;
//! let mut out = stream.alloc_zeros::<f32>(512 * 8 * 64)?;
//! {
//!     let shape = [1, 512, 8, 64]; // [batch, seq, heads, head_dim]
//!     let (q, mut out) = (view(&stream, shape, &ones)?, view_mut(&stream, shape, &mut out)?);
//!     let problem = Problem::of(&q, &q, &q).causal().build()?;
//!     attention.run_on(&mut queue, &problem, Operands::forward(&q, &q, &q, &mut out))?;
//! }
//! assert_eq!(stream.clone_dtoh(&out)?[0], 1.0);
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, SyncOnDrop};
use flashcore_cuda::{Context, DeviceSlice, Stream};
use flashcore_problem::{ElementType, Layout, Scalar, View, ViewMut};

use crate::{Cuda, Device, DeviceSliceMut, Error, Queue};

/// A queue that puts its work into a stream of cudarc, and keeps the stream. Calls are refused while the stream is
/// captured, as cudarc's graph would not keep what they use.
///
/// # Errors
/// [`Error::NotOnCuda`] on the CPU; [`Error::OtherContext`] for a stream of another context than the device's.
#[allow(unsafe_code)] // a handle is a number
pub fn queue(device: &Device, stream: &Arc<CudaStream>) -> Result<Queue, Error> {
    let context = device.on_cuda()?;
    check(context, stream, "queue")?;
    // SAFETY: the queue keeps the stream.
    let own = unsafe { Stream::from_raw(context, stream.cu_stream() as usize)? };
    Ok(Queue::of(own, Some(Box::new(stream.clone()))))
}

fn check(context: &Context, stream: &CudaStream, tensor: &'static str) -> Result<(), Error> {
    if stream.context().cu_ctx().addr() == context.as_raw() {
        return Ok(());
    }
    Err(Error::other_context(tensor, context.ordinal()))
}

mod sealed {
    pub trait Sealed {}
}

/// A slice of cudarc. Its own `DevicePtr` can be implemented in safe code with any address; this cannot.
///
/// ```compile_fail,E0277
/// use cudarc::driver::{CudaStream, DevicePtr};
/// fn any_address<P: DevicePtr<f32>>(stream: &CudaStream, slice: &P) {
///     let _ = flashcore::cudarc::view(stream, [1], slice);
/// }
/// ```
pub trait Slice: sealed::Sealed {}

impl<S: sealed::Sealed> Slice for S {}
impl<T> sealed::Sealed for CudaSlice<T> {}
impl<T> sealed::Sealed for CudaView<'_, T> {}
impl<T> sealed::Sealed for CudaViewMut<'_, T> {}

/// A slice of cudarc as a tensor. cudarc learns of its use when this is dropped, so it lives as long as calls are made.
#[derive(Debug)]
pub struct CudarcTensor<'a> {
    element: ElementType,
    layout: Layout,
    memory: DeviceSlice<'a>,
    _used: SyncOnDrop<'a>,
}

/// The same to be written.
#[derive(Debug)]
pub struct CudarcTensorMut<'a>(CudarcTensor<'a>);

/// A slice that calls in the queue of this stream read. Element `[0, 0, 0, 0]` is its first. Another queue refuses it.
///
/// # Errors
/// [`Error::OtherContext`] for a slice of another stream.
pub fn view<'a, T: Scalar>(
    stream: &'a CudaStream,
    layout: impl Into<Layout>,
    slice: &'a (impl DevicePtr<T> + Slice),
) -> Result<CudarcTensor<'a>, Error> {
    check_stream(stream, slice.stream())?;
    let bytes = slice.num_bytes();
    Ok(tensor::<T>(stream, layout.into(), bytes, slice.device_ptr(stream)))
}

/// A slice that calls in the queue of this stream write.
///
/// # Errors
/// As [`view`].
pub fn view_mut<'a, T: Scalar>(
    stream: &'a CudaStream,
    layout: impl Into<Layout>,
    slice: &'a mut (impl DevicePtrMut<T> + Slice),
) -> Result<CudarcTensorMut<'a>, Error> {
    check_stream(stream, slice.stream())?;
    let bytes = slice.num_bytes();
    let memory = slice.device_ptr_mut(stream);
    Ok(CudarcTensorMut(tensor::<T>(stream, layout.into(), bytes, memory)))
}

/// cudarc frees a slice in the order of the stream that allocated it, so no other stream may use it.
fn check_stream(stream: &CudaStream, own: &CudaStream) -> Result<(), Error> {
    if stream.cu_stream() == own.cu_stream() && stream.context().cu_ctx() == own.context().cu_ctx() {
        return Ok(());
    }
    Err(Error::other_context("a slice", stream.context().ordinal()))
}

#[allow(unsafe_code)] // cudarc's memory is raw memory here
fn tensor<'a, T: Scalar>(
    stream: &CudaStream,
    layout: Layout,
    bytes: usize,
    (address, used): (u64, SyncOnDrop<'a>),
) -> CudarcTensor<'a> {
    let (ordinal, handle) = (stream.context().ordinal() as u32, stream.cu_stream() as usize);
    CudarcTensor {
        element: T::ELEMENT,
        layout,
        // SAFETY: the slice is borrowed, and is freed in the order of this stream.
        memory: unsafe { DeviceSlice::of_stream(ordinal, handle, address, bytes) },
        _used: used,
    }
}

impl<'t> From<&'t CudarcTensor<'_>> for View<'t, Cuda> {
    fn from(tensor: &'t CudarcTensor<'_>) -> View<'t, Cuda> {
        View::new(tensor.element, tensor.layout, tensor.memory)
    }
}

impl<'t> From<&'t mut CudarcTensorMut<'_>> for ViewMut<'t, Cuda> {
    fn from(CudarcTensorMut(tensor): &'t mut CudarcTensorMut<'_>) -> ViewMut<'t, Cuda> {
        ViewMut::new(tensor.element, tensor.layout, DeviceSliceMut::of(tensor.memory))
    }
}
