//! Attention on cudarc's slices and streams (feature `cudarc`).

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use flashcore_cuda::DeviceSlice;

use crate::cuda::Stream;
use crate::{Attention, DeviceTensors, Direction, Element, Error, Problem, ProblemError};

impl Attention {
    /// Enqueues attention on cudarc's device tensors and stream, and returns at once. A workspace,
    /// where the plan needs one, is allocated and freed in the order of the stream.
    ///
    /// Tensors are as for [`Attention::forward_on`], of f32, [`f16`](struct@crate::f16) or
    /// [`bf16`](crate::bf16). For e4m3, whose tensors have scales, use [`Attention::forward_on`].
    ///
    /// ```no_run
    /// use cudarc::driver::CudaContext;
    /// use flashcore::{Attention, Device, Problem};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let problem = Problem::builder().heads(8, 8).seq_len(512).head_dim(64);
    /// let problem = problem.dtype(flashcore::DType::F32).build()?;
    /// let q = stream.clone_htod(&vec![1f32; 512 * 8 * 64])?;
    /// let mut out = stream.alloc_zeros::<f32>(512 * 8 * 64)?;
    ///
    /// let attention = Attention::new(Device::cuda(0)?)?;
    /// attention.forward_cudarc(&stream, &problem, &q, &q, &q, &mut out, None)?;
    /// assert_eq!(stream.clone_dtoh(&out)?[0], 1.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Attention::forward_on`]; a `T` that is not the problem's dtype; tensors or a stream of another context than
    /// the device's; a workspace that cannot be allocated.
    #[allow(unsafe_code)] // cudarc's memory is raw memory here
    #[allow(clippy::too_many_arguments)] // those of attention
    pub fn forward_cudarc<T: Element>(
        &self,
        stream: &Arc<CudaStream>,
        problem: &Problem,
        q: &impl DevicePtr<T>,
        k: &impl DevicePtr<T>,
        v: &impl DevicePtr<T>,
        out: &mut impl DevicePtrMut<T>,
        lse: Option<&mut CudaSlice<f32>>,
    ) -> Result<(), Error> {
        if problem.dtype() != T::DTYPE {
            return Err(Error::Problem(ProblemError::DType {
                tensor: "q",
                given: T::DTYPE,
                expected: problem.dtype(),
            }));
        }
        let device = self.device();
        let Some(context) = device.context() else {
            let device = device.to_string();
            return Err(Error::NotOnCuda { device });
        };
        let used = [
            ("q", q.stream()),
            ("k", k.stream()),
            ("v", v.stream()),
            ("out", out.stream()),
        ];
        let used = used.into_iter().chain(lse.as_ref().map(|lse| ("lse", lse.stream())));
        for (tensor, other) in used.chain([("stream", stream)]) {
            if other.context().cu_ctx().addr() != context.as_raw() {
                return Err(Error::OtherContext {
                    tensor,
                    device: device.to_string(),
                });
            }
        }
        // The guards record, when they are dropped, that the stream uses the tensors.
        let bytes = [q.num_bytes(), k.num_bytes(), v.num_bytes(), out.num_bytes()];
        let (q, _q) = q.device_ptr(stream);
        let (k, _k) = k.device_ptr(stream);
        let (v, _v) = v.device_ptr(stream);
        let (out, _out) = out.device_ptr_mut(stream);
        // SAFETY: cudarc keeps memory that is in use by a stream allocated until the stream is done.
        let slice = |address, bytes| unsafe { DeviceSlice::from_raw(context, address, bytes) };
        let mut tensors = DeviceTensors::new(
            slice(q, bytes[0]),
            slice(k, bytes[1]),
            slice(v, bytes[2]),
            slice(out, bytes[3]),
        );
        let lse = lse.map(|lse| (lse.num_bytes(), lse.device_ptr_mut(stream)));
        tensors.lse = lse.as_ref().map(|(bytes, (address, _))| slice(*address, *bytes));
        let bytes = self.workspace_bytes(problem, tensors.alignment())?;
        // SAFETY: kernels write it before they read it.
        let workspace = (bytes > 0).then(|| unsafe { stream.alloc::<u8>(bytes as usize) });
        let workspace = workspace.transpose().map_err(|error| {
            let message = error.to_string();
            Error::Workspace { bytes, message }
        })?;
        let pointer = workspace.as_ref().map(|workspace| workspace.device_ptr(stream));
        tensors.workspace = pointer.as_ref().map(|(address, _)| slice(*address, bytes as usize));
        // SAFETY: cudarc's stream lives longer than this call, and the work in it needs no handle.
        let stream = unsafe { Stream::from_raw(context, stream.cu_stream() as usize)? };
        problem.check_direction(Direction::Forward)?;
        // SAFETY: cudarc frees tensors and workspace in the order of the stream, and no one else has this workspace.
        unsafe { self.run_foreign(&stream, problem, &tensors, |_| None) }
    }
}
