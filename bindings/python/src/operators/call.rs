//! One call of an operator: a problem and its tensors, on the host or in PyTorch's current stream.

use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use flashcore::cuda::{DeviceSlice, Stream};
use flashcore::plans::gathers_keys;
use flashcore::{
    BackwardTensors, DType, Device, DeviceGradients, DeviceScales, DeviceTensors, Gradients, Layout, Lengths, Problem,
    ProblemError, TensorView, TensorViewMut,
};

use super::schedule::Kept;
use super::threads::on_threads;
use super::{HeadValues, Rows, backward};
use crate::call::attention_on;
use crate::head_values::read;
use crate::input::Described;
use crate::libtorch::{Error, Libtorch, Tensor};
use crate::tensor::Place;

/// int32 numbers on the tensors' device.
#[derive(Clone, Copy)]
pub(super) struct Array {
    pub(super) first: *mut i32,
    pub(super) len: usize,
}

/// A problem and its tensors.
pub(super) struct Call<'a> {
    pub(super) torch: &'a Libtorch,
    pub(super) place: Place,
    /// Multiprocessors that are left to other work.
    pub(super) sm_margin: u32,
    pub(super) problem: Problem,
    pub(super) tensors: [Rows; 3],
    pub(super) scales: Vec<*mut u8>,
    pub(super) head_values: HeadValues,
    pub(super) lengths: Lengths<Array>,
    /// The output and its log-sum-exp, as large as the problem says: written, or read by a backward pass. The latter
    /// only if the problem returns it.
    pub(super) outputs: [*mut u8; 2],
    /// dout, dq, dk and dv of a backward pass.
    pub(super) gradients: Option<[*mut u8; 4]>,
    /// The schedule that was made for it, if one was given.
    pub(super) kept: Option<Kept>,
}

/// Warns the first time that a call gathers K.
fn tell_if_gathered(torch: &Libtorch, problem: &Problem) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    // Whether it was told is the cheaper question.
    if !TOLD.load(Ordering::Relaxed) && gathers_keys(problem) && !TOLD.swap(true, Ordering::Relaxed) {
        torch.warn(
            "flashcore: calls with this cache of float8_e4m3fn copy the keys in use first. Without cache_leftpad, \
             pages of a multiple of 8 keys, a whole number of rows apart, are read in place; with cache_batch_idx a \
             page is a sequence of the cache",
        );
    }
}

impl Call<'_> {
    pub(super) fn run(&self) -> Result<(), Error> {
        if let Some(kept) = &self.kept {
            kept.check(self.place, &self.problem, self.sm_margin)?;
        }
        let attention = attention_on(self.place, None, self.sm_margin)?;
        match (attention.device(), self.place, self.gradients) {
            (Device::Cuda(context), Place::Cuda(ordinal), _) => self.on_cuda(&attention, &context, ordinal, true),
            (_, _, None) => self.forward_on_host(&attention),
            (_, _, Some(gradients)) => self.backward_on_host(&attention, gradients),
        }
    }

    /// Refuses a schedule that was made for another call, and multiprocessors that are not there to leave; nothing is
    /// computed.
    pub(super) fn check(&self) -> Result<(), Error> {
        let attention = attention_on(self.place, None, self.sm_margin)?;
        let Some(kept) = &self.kept else { return Ok(()) };
        kept.check(self.place, &self.problem, self.sm_margin)?;
        match (attention.device(), self.place) {
            (Device::Cuda(context), Place::Cuda(ordinal)) => self.on_cuda(&attention, &context, ordinal, false),
            _ => Ok(()),
        }
    }

    /// Computes, or only checks the schedule.
    fn on_cuda(
        &self,
        attention: &flashcore::Attention,
        context: &flashcore::cuda::Context,
        ordinal: u32,
        computes: bool,
    ) -> Result<(), Error> {
        let (problem, [q, k, v], [out, lse]) = (&self.problem, &self.tensors, self.outputs);
        // SAFETY: all memory is on this device, and is as large as PyTorch's shapes say. PyTorch frees it in the
        // order of its current stream, where the work is. That stream lives as long as PyTorch.
        let slice = |first: *mut u8, bytes| unsafe { DeviceSlice::from_raw(context, first.addr() as u64, bytes) };
        let pointers = [q.first, k.first, v.first, out].map(|first| first.addr() as u64);
        // SAFETY: as above.
        let (stream, mut tensors) = unsafe {
            let stream = Stream::from_raw(context, self.torch.current_stream(ordinal)?)?;
            (stream, DeviceTensors::from_raw(context, problem, pointers))
        };
        tensors.lse = problem
            .return_lse()
            .then(|| slice(lse, problem.lse_len() * size_of::<f32>()));
        if let [q, k, v] = self.scales[..] {
            let [q, k, v] = [q, k, v].map(|scale| slice(scale, problem.num_scales() * size_of::<f32>()));
            tensors.scales = Some(DeviceScales { q, k, v });
        }
        let of_heads = |values: &Option<Described<1>>, count: usize| {
            let values = values.as_ref()?;
            Some(slice(values.first, count * values.dtype.size_bytes()))
        };
        tensors.sinks = of_heads(&self.head_values.sinks, problem.num_sinks());
        tensors.alibi_slopes = of_heads(&self.head_values.slopes, problem.num_alibi_slopes());
        tensors.lengths = self
            .lengths
            .map(|array| slice(array.first.cast(), array.len * size_of::<i32>()));
        if let (Some([dout, dq, dk, dv]), Some(layouts)) = (self.gradients, problem.gradient_layouts()) {
            let slice = |first, layout: &Layout| slice(first, layout.span() * problem.dtype().size_bytes());
            tensors.gradients = Some(DeviceGradients {
                dout: slice(dout, &layouts.dout),
                dq: slice(dq, &layouts.dq),
                dk: slice(dk, &layouts.dk),
                dv: slice(dv, &layouts.dv),
            });
        }
        if let Some(kept) = &self.kept {
            let (first, bytes) = kept.workspace(attention, &stream, problem, tensors.alignment())?;
            tensors.workspace = Some(slice(first, bytes));
            // SAFETY: `kept.workspace` has checked that this memory is where an equal schedule was made, in this stream
            // or before the graph that it is captured into, whose replays the caller orders after it (docs/python.md).
            // Nothing else has its address.
            tensors = unsafe { tensors.reuse_schedule() };
        }
        if !computes {
            return Ok(());
        }
        let workspace;
        if self.gradients.is_some() {
            let bytes = usize::try_from(attention.workspace_bytes(problem, tensors.alignment())?)?;
            if bytes > 0 {
                workspace = self.torch.empty([bytes], [1], None, self.place)?;
                tensors.workspace = Some(slice(workspace.first()?, bytes));
            }
            backward::tell_if_slow(self.torch, attention, problem, tensors.alignment())?;
            // SAFETY: PyTorch frees tensors and workspace in the order of its current stream, where the work is, and
            // nothing else has this workspace.
            return Ok(unsafe { attention.run_foreign(&stream, problem, &tensors, |_| None) }?);
        }
        let mut made: Result<Option<Tensor<'_>>, Error> = Ok(None);
        let workspace = |bytes| {
            let allocate = || -> Result<_, Error> {
                let bytes = usize::try_from(bytes)?;
                let workspace = self.torch.empty([bytes], [1], None, self.place)?;
                Ok((slice(workspace.first()?, bytes), workspace))
            };
            let (memory, result) = match allocate() {
                Ok((memory, workspace)) => (Some(memory), Ok(Some(workspace))),
                Err(why) => (None, Err(why)),
            };
            made = result;
            memory
        };
        // SAFETY: as above.
        let result = unsafe { attention.run_foreign(&stream, problem, &tensors, workspace) };
        made.map(drop)?; // the memory, which PyTorch frees in the order of the stream, or why there is none
        result?;
        // Not of a call that is refused.
        tell_if_gathered(self.torch, problem);
        Ok(())
    }

    /// q, k or v in host memory.
    fn view(&self, n: usize) -> Result<TensorView<'_>, ProblemError> {
        let x: &Rows = &self.tensors[n];
        let view = host_view(x.name, x.dtype, &x.layout, x.first)?;
        match self.scales.get(n) {
            None => Ok(view),
            // SAFETY: `scale_of` has checked shape, dtype and density.
            Some(scale) => view.with_scales_of(x.name, self.problem.batch(), unsafe {
                slice::from_raw_parts(scale.cast(), self.problem.num_scales())
            }),
        }
    }

    fn host_lengths(&self) -> Lengths<&[i32]> {
        // SAFETY: `describe_i32` has checked dtype and density, and PyTorch aligns numbers; else as in `host_view`.
        let numbers = |array: &Array| unsafe { slice::from_raw_parts(array.first.cast_const(), array.len) };
        self.lengths.map(numbers)
    }

    fn forward_on_host(&self, attention: &flashcore::Attention) -> Result<(), Error> {
        let (problem, [out, lse]) = (&self.problem, self.outputs);
        let o = host_view_mut("out", problem.out_dtype(), problem.o_layout(), out)?;
        // SAFETY: it was allocated for this problem, dense.
        let lse = problem
            .return_lse()
            .then(|| unsafe { slice::from_raw_parts_mut(lse.cast(), problem.lse_len()) });
        let [mut q, k, v] = [self.view(0)?, self.view(1)?, self.view(2)?];
        let of_heads = |values: &Option<Described<1>>, count: usize| {
            let values = values.as_ref()?;
            let bytes = count * values.dtype.size_bytes();
            // SAFETY: `HeadValues::new` has checked shape and density; else as in `host_view`.
            Some(read(values.dtype, unsafe {
                slice::from_raw_parts(values.first, bytes)
            }))
        };
        let sinks = of_heads(&self.head_values.sinks, problem.num_sinks());
        let slopes = of_heads(&self.head_values.slopes, problem.num_alibi_slopes());
        if let Some(sinks) = &sinks {
            q = q.with_sinks(sinks);
        }
        if let Some(slopes) = &slopes {
            q = q.with_alibi_slopes(slopes);
        }
        let (inputs, lengths) = ([q, k, v], self.host_lengths());
        Ok(on_threads(self.torch.num_threads(), || {
            attention.forward_lengths(problem, inputs, &lengths, o, lse)
        })?)
    }

    fn backward_on_host(&self, attention: &flashcore::Attention, gradients: [*mut u8; 4]) -> Result<(), Error> {
        let (problem, [out, lse], [dout, dq, dk, dv]) = (&self.problem, self.outputs, gradients);
        let Some(layouts) = problem.gradient_layouts() else {
            return Ok(()); // a backward problem has them
        };
        let (dtype, of_out) = (problem.dtype(), problem.out_dtype());
        let tensors = BackwardTensors {
            q: self.view(0)?,
            k: self.view(1)?,
            v: self.view(2)?,
            out: host_view("out", of_out, problem.o_layout(), out)?,
            // SAFETY: `Described::check_f32` has checked dtype, shape and density.
            lse: unsafe { slice::from_raw_parts(lse.cast(), problem.lse_len()) },
            dout: host_view("dout", of_out, &layouts.dout, dout)?,
        };
        let gradients = Gradients {
            dq: host_view_mut("dq", dtype, &layouts.dq, dq)?,
            dk: host_view_mut("dk", dtype, &layouts.dk, dk)?,
            dv: host_view_mut("dv", dtype, &layouts.dv, dv)?,
        };
        let lengths = self.host_lengths();
        Ok(on_threads(self.torch.num_threads(), || {
            attention.backward_lengths(problem, &tensors, &lengths, gradients)
        })?)
    }
}

/// A tensor of PyTorch's in host memory.
pub(super) fn host_view<'a>(
    name: &'static str,
    dtype: DType,
    layout: &Layout,
    first: *mut u8,
) -> Result<TensorView<'a>, ProblemError> {
    let bytes: &[u8] = match layout.span() * dtype.size_bytes() {
        0 => bytemuck::cast_slice::<u64, u8>(&[]), // perhaps at no address; aligned for all elements
        // SAFETY: PyTorch's strides, which are not negative, stay within the tensor's memory. That nothing writes to it
        // meanwhile is the caller's part.
        bytes => unsafe { slice::from_raw_parts(first, bytes) },
    };
    TensorView::new(name, dtype, *layout, bytes)
}

/// A tensor that is written.
pub(super) fn host_view_mut<'a>(
    name: &'static str,
    dtype: DType,
    layout: &Layout,
    first: *mut u8,
) -> Result<TensorViewMut<'a>, ProblemError> {
    let bytes: &mut [u8] = match layout.span() * dtype.size_bytes() {
        0 => bytemuck::cast_slice_mut::<u64, u8>(&mut []),
        // SAFETY: as above. It was allocated for this call, or the caller has checked that no other tensor of the call
        // is there. That nothing else uses it meanwhile is the caller's part.
        bytes => unsafe { slice::from_raw_parts_mut(first, bytes) },
    };
    TensorViewMut::new(name, dtype, *layout, bytes)
}
