//! Device memory: owned buffers, and borrowed slices of any device memory.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::{AnyBitPattern, NoUninit};

use crate::allocation::Allocation;
use crate::context::Context;
use crate::error::{CallError, CudaError};
use crate::raw::Driver;
use crate::stream::Stream;
use crate::sys::CUdeviceptr;

/// Device memory. Its address is a multiple of 256 B.
///
/// When this value is dropped, and graphs that captured it are, it is freed after the work that was enqueued with it.
/// Dropping waits for nothing where the device has memory pools (nearly all since CUDA 11.2); else it waits for the
/// streams that used it.
#[derive(Debug)]
pub struct DeviceBuffer {
    /// None of zero bytes, which the driver refuses; callers with nothing to store should not have to.
    allocation: Option<Arc<Allocation>>,
    len: usize,
    // Last: freeing needs it.
    context: Context,
}

impl DeviceBuffer {
    /// Allocates `bytes` bytes, not initialised. Zero bytes are allowed and allocate nothing.
    ///
    /// # Errors
    /// A call error: `OUT_OF_MEMORY` if there is no such block.
    pub fn new(context: &Context, bytes: usize) -> Result<Self, CudaError> {
        let allocation = (bytes > 0).then(|| Allocation::new(context.heap(), bytes));
        Ok(Self {
            allocation: allocation.transpose().map_err(|error| context.judge(error))?,
            len: bytes,
            context: context.clone(),
        })
    }

    /// Allocates as much as `values` takes and copies them there. Returns when the copy is done.
    pub fn from_host<T: NoUninit>(stream: &Stream, values: &[T]) -> Result<Self, CudaError> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let buffer = Self::new(stream.context(), bytes.len())?;
        buffer.as_slice().copy_from_host(stream, bytes)?;
        Ok(buffer)
    }

    /// Copies the whole buffer to the host as values of `T`, after the work in the stream.
    ///
    /// # Errors
    /// [`CudaError::Size`] if the buffer is not a whole number of `T`; [`CudaError::Fault`] if a
    /// kernel ahead in the stream faulted.
    pub fn to_vec<T: AnyBitPattern + NoUninit>(&self, stream: &Stream) -> Result<Vec<T>, CudaError> {
        let size = size_of::<T>().max(1);
        let count = self.len / size;
        if count * size != self.len {
            return Err(CudaError::Size {
                what: "reading a buffer as whole values",
                given: self.len as u64,
                expected: (count * size) as u64,
            });
        }
        let mut values = vec![T::zeroed(); count];
        self.as_slice()
            .copy_to_host(stream, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// The whole buffer.
    pub fn as_slice(&self) -> DeviceSlice<'_> {
        DeviceSlice {
            address: self.allocation.as_ref().map_or(0, |memory| memory.address()),
            len: self.len,
            ordinal: self.context.ordinal(),
            owner: self.allocation.as_ref(),
            only_in: None,
        }
    }

    /// Bytes in the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

/// A slice of device memory with another owner: part of a [`DeviceBuffer`], or another library's
/// tensor.
///
/// Unlike a Rust slice it does not prevent other writes: device memory is shared by all work on the
/// device, ordered by streams.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'a> {
    address: CUdeviceptr,
    len: usize,
    ordinal: u32,
    /// What it is part of, if that is ours.
    pub(crate) owner: Option<&'a Arc<Allocation>>,
    /// The only stream that may use it, if there is one.
    pub(crate) only_in: Option<usize>,
}

impl PartialEq for DeviceSlice<'_> {
    fn eq(&self, other: &Self) -> bool {
        (self.address, self.len, self.ordinal) == (other.address, other.len, other.ordinal)
    }
}

impl Eq for DeviceSlice<'_> {}

impl<'a> DeviceSlice<'a> {
    /// Memory of another library, such as a PyTorch tensor's (`tensor.data_ptr()`).
    ///
    /// # Safety
    /// `bytes` bytes from `address` on are device memory of the context's device, and stay
    /// allocated for the lifetime `'a` that the caller picks and for as long as work enqueued with
    /// them runs.
    #[allow(unsafe_code)]
    pub unsafe fn from_raw(context: &Context, address: u64, bytes: usize) -> Self {
        let only_in = None;
        // SAFETY: what the caller promises; no stream frees it.
        let of_stream = unsafe { Self::of_stream(context.ordinal(), 0, address, bytes) };
        Self { only_in, ..of_stream }
    }

    /// Memory of another library that is freed in the order of a stream. Work in other streams refuses it.
    ///
    /// # Safety
    /// `bytes` bytes from `address` on are memory of device `ordinal` and stay allocated for the lifetime `'a` that the
    /// caller picks; what frees them waits for all work in the stream of this handle.
    #[allow(unsafe_code)]
    pub unsafe fn of_stream(ordinal: u32, stream: usize, address: u64, bytes: usize) -> Self {
        Self {
            address,
            len: bytes,
            ordinal,
            owner: None,
            only_in: Some(stream),
        }
    }

    /// Whether it is memory of another library, which graphs cannot keep.
    pub fn is_foreign(self) -> bool {
        self.owner.is_none() && self.len > 0
    }

    /// Device address of the first byte.
    pub fn address(self) -> u64 {
        self.address
    }

    /// Bytes in the slice.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether the slice has no bytes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Number of the device that the memory is on.
    pub fn ordinal(self) -> u32 {
        self.ordinal
    }

    /// The bytes `range` of this slice.
    ///
    /// # Errors
    /// [`CudaError::Range`] if they are not all inside.
    pub fn range(self, range: Range<usize>) -> Result<DeviceSlice<'a>, CudaError> {
        if range.start > range.end || range.end > self.len {
            return Err(CudaError::Range {
                start: range.start as u64,
                end: range.end as u64,
                len: self.len as u64,
            });
        }
        Ok(Self {
            address: self.address + range.start as u64,
            len: range.end - range.start,
            ..self
        })
    }

    /// Copies host bytes here, after the work in the stream. Returns when the copy is done.
    ///
    /// # Errors
    /// [`CudaError::Size`] unless there are exactly as many bytes as the slice has.
    pub fn copy_from_host(self, stream: &Stream, from: &[u8]) -> Result<(), CudaError> {
        self.check_len("copying to the device", from.len())?;
        self.copy(stream, |driver| {
            driver.copy_to_device(self.address, from, stream.handle())
        })?;
        stream.finished();
        Ok(())
    }

    /// Copies these bytes to the host, after the work in the stream. Returns when the copy is done.
    ///
    /// # Errors
    /// [`CudaError::Size`] unless there is room for exactly as many bytes as the slice has;
    /// [`CudaError::Fault`] if a kernel ahead in the stream faulted.
    pub fn copy_to_host(self, stream: &Stream, to: &mut [u8]) -> Result<(), CudaError> {
        self.check_len("copying to the host", to.len())?;
        self.copy(stream, |driver| driver.copy_to_host(to, self.address, stream.handle()))?;
        stream.finished();
        Ok(())
    }

    /// Enqueues a copy of other device memory to here.
    ///
    /// # Errors
    /// [`CudaError::Size`] unless both have the same length.
    pub fn copy_from(self, stream: &Stream, from: DeviceSlice<'_>) -> Result<(), CudaError> {
        from.check_device(stream.context().ordinal(), "the memory copied from")?;
        check_capture(from.only_in, stream)?;
        self.check_len("copying on the device", from.len)?;
        self.enqueue(stream, from.owner, |driver| {
            driver.cuMemcpyDtoDAsync_v2(self.address, from.address, self.len, stream.handle())
        })
    }

    /// Enqueues setting each byte to `value`.
    pub fn fill(self, stream: &Stream, value: u8) -> Result<(), CudaError> {
        self.enqueue(stream, None, |driver| {
            driver.cuMemsetD8Async(self.address, value, self.len, stream.handle())
        })
    }

    /// Enqueues what a call does with this memory, which must be on the stream's device, and other memory, unless it is
    /// empty.
    fn enqueue(
        self,
        stream: &Stream,
        other: Option<&Arc<Allocation>>,
        call: impl FnOnce(&Driver) -> Result<(), CallError>,
    ) -> Result<(), CudaError> {
        self.check_device(stream.context().ordinal(), "the memory")?;
        check_capture(self.only_in, stream)?;
        if self.is_empty() {
            return Ok(());
        }
        let memory = self.owner.into_iter().chain(other);
        stream.put(memory, &[], || stream.context().call(call))
    }

    /// Makes a call that copies to or from the host, and returns when that is done.
    fn copy(self, stream: &Stream, call: impl FnOnce(&Driver) -> Result<(), CallError>) -> Result<(), CudaError> {
        self.check_device(stream.context().ordinal(), "the memory")?;
        check_stream(self.only_in, stream)?;
        if self.is_empty() {
            return Ok(());
        }
        stream.put_and_wait(self.owner, || stream.context().call(call))
    }

    pub(crate) fn check_device(self, expected: u32, what: &'static str) -> Result<(), CudaError> {
        if self.ordinal == expected {
            return Ok(());
        }
        Err(CudaError::OtherDevice {
            what,
            given: self.ordinal,
            expected,
        })
    }

    fn check_len(self, what: &'static str, given: usize) -> Result<(), CudaError> {
        if given == self.len {
            return Ok(());
        }
        Err(CudaError::Size {
            what,
            given: given as u64,
            expected: self.len as u64,
        })
    }
}

/// Refuses memory of another stream alone, and a graph, which would outlive the borrow of it.
fn check_capture(only_in: Option<usize>, stream: &Stream) -> Result<(), CudaError> {
    check_stream(only_in, stream)?;
    if only_in.is_some() && (stream.shared.capture().is_some() || stream.is_captured()?) {
        return Err(CudaError::BorrowedInCapture);
    }
    Ok(())
}

/// Refuses memory of another stream alone.
pub(crate) fn check_stream(only_in: Option<usize>, stream: &Stream) -> Result<(), CudaError> {
    match only_in {
        Some(only) if only != stream.as_raw() => Err(CudaError::OtherStream),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;

    #[test]
    fn ranges_stay_inside() {
        let slice = DeviceSlice {
            address: 0x1000,
            len: 100,
            ordinal: 0,
            owner: None,
            only_in: None,
        };
        let part = slice.range(10..30).unwrap();
        assert_eq!((part.address(), part.len()), (0x100a, 20));
        assert!(slice.range(100..100).unwrap().is_empty());
        assert!(matches!(
            slice.range(90..101),
            Err(CudaError::Range {
                start: 90,
                end: 101,
                len: 100
            })
        ));
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = 5..4;
        assert!(slice.range(reversed).is_err());
        assert!(part.range(15..21).is_err());
    }

    /// Such memory is borrowed for a call, in safe code, and a graph may be launched after it is freed.
    #[test]
    fn no_graph_has_memory_that_it_cannot_keep() {
        let context = Context::recording();
        let stream = Stream::new(&context).unwrap();
        // SAFETY: the recording driver does nothing with it.
        #[allow(unsafe_code)]
        let theirs = unsafe { DeviceSlice::of_stream(context.ordinal(), stream.as_raw(), 0x1000, 8) };
        let own = DeviceBuffer::new(&context, 8).unwrap();
        theirs.fill(&stream, 1).unwrap();
        own.as_slice().copy_from(&stream, theirs).unwrap();
        let refused = |graph: Result<Graph, CudaError>| {
            assert!(matches!(graph, Err(CudaError::BorrowedInCapture)), "{graph:?}");
        };
        refused(Graph::capture(&stream, |stream| theirs.fill(stream, 1)));
        refused(Graph::capture(&stream, |stream| {
            own.as_slice().copy_from(stream, theirs)
        }));
        refused(Graph::capture(&stream, |stream| {
            theirs.copy_from(stream, own.as_slice())
        }));
        assert!(Graph::capture(&stream, |stream| own.as_slice().fill(stream, 1)).is_ok());
    }

    #[test]
    fn devices_are_not_mixed() {
        let slice = DeviceSlice {
            address: 0x1000,
            len: 100,
            ordinal: 1,
            owner: None,
            only_in: None,
        };
        let text = slice.check_device(0, "the memory").unwrap_err().to_string();
        assert_eq!(
            text,
            "the memory belongs to CUDA device 1, but the work is on device 0; use one device throughout"
        );
    }
}
