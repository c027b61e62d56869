//! One call: from the caller's tensors to the output.

use std::sync::{Arc, PoisonError, RwLock};

use dlpark::ffi::DLDevice;
use flashcore::cuda::{DeviceBuffer, DeviceSlice, Stream};
use flashcore::{Attention, Device, DeviceTensors, Error, KernelId, Layout, Problem, TensorViewMut};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::error::{forked, raise, type_, value};
use crate::exchange::Exchange;
use crate::frameworks::{Framework, dtype_name, without_gradient, wrote};
use crate::head_values::HeadValues;
use crate::operators::other_dtype;
use crate::options::{Axes, Options};
use crate::problem::problem_of;
use crate::scales::{Given, Scales};
use crate::stream::{CallStream, handle_of};
use crate::tensor::{Place, Request, Tensor};

mod plain;

/// How many are kept of a device. Each holds recent plans; the compiled kernels are its context's, which all share.
const MOST_KNOWN: usize = 16;

/// The `Attention` of a device and a kernel that leaves multiprocessors to other work, made once and kept. Of many, the
/// oldest go that ask for a kernel or leave multiprocessors.
pub(crate) fn attention_on(place: Place, kernel: Option<KernelId>, sm_margin: u32) -> Result<Arc<Attention>, Error> {
    type Known = Vec<((Place, Option<KernelId>, u32), Arc<Attention>)>;
    static KNOWN: RwLock<Known> = RwLock::new(Vec::new());
    let wanted = (place, kernel, sm_margin);
    let find = |known: &Known| {
        let found = known.iter().find(|(of, _)| *of == wanted);
        found.map(|(_, attention)| attention.clone())
    };
    if let Some(attention) = find(&KNOWN.read().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(attention);
    }
    let device = match place {
        Place::Cpu => Device::Cpu,
        Place::Cuda(ordinal) => Device::cuda(ordinal)?,
    };
    let options = flashcore::Options {
        kernel,
        sm_margin,
        ..Default::default()
    };
    let attention = Attention::with(device, options)?;
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(attention) = find(&known) {
        return Ok(attention); // another thread was faster
    }
    let of_place = known.iter().filter(|((of, ..), _)| *of == place);
    if of_place.count() >= MOST_KNOWN {
        let is_special =
            |(of, kernel, sm_margin): &(Place, Option<_>, u32)| *of == place && (kernel.is_some() || *sm_margin > 0);
        if let Some(oldest) = known.iter().position(|(of, _)| is_special(of)) {
            known.remove(oldest); // calls that run hold it, too
        }
    }
    let attention = Arc::new(attention);
    known.push((wanted, attention.clone()));
    Ok(attention)
}

/// The tensors of a call, imported, and where it will run.
pub(crate) struct Call<'py> {
    pub(crate) place: Place,
    pub(crate) attention: Arc<Attention>,
    pub(crate) q: Tensor,
    pub(crate) k: Tensor,
    pub(crate) v: Tensor,
    scales: Scales,
    head_values: HeadValues,
    stream: Option<CallStream>,
    /// The library q belongs to; it allocates the output.
    framework: Framework<'py>,
    /// The library's object for `stream`, where that is not its current one.
    foreign_stream: Option<Bound<'py, PyAny>>,
    /// Where PyTorch's own table allocates.
    plain: Option<(&'static Exchange, DLDevice)>,
}

impl<'py> Call<'py> {
    /// Imports the tensors; `out=`, if it was given, comes second.
    pub(crate) fn gather(
        inputs: [&Bound<'py, PyAny>; 3],
        scales: Given<'_, 'py>,
        out: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
        options: &Options,
    ) -> PyResult<(Call<'py>, Option<Tensor>)> {
        if let Some(why) = forked() {
            return Err(PyRuntimeError::new_err(why));
        }
        if scales.iter().all(Option::is_none)
            && let Some(plain) = Call::gather_plain(inputs, out, stream, options)?
        {
            return Ok(plain);
        }
        let request =
            |name: &'static str, object: &Bound<'py, PyAny>| Request::new(name, &without_gradient(name, object)?);
        let [q, k, v] = inputs;
        let requests = [request("q", q)?, request("k", k)?, request("v", v)?];
        let out_request = out.map(|out| request("out", out)).transpose()?;
        let place = requests[0].place;
        for other in requests.iter().chain(&out_request) {
            if other.place != place {
                return Err(value(format!(
                    "{} is on {} and q on {place}; move all tensors to one device",
                    other.name, other.place
                )));
            }
        }

        let attention = attention_on(place, options.kernel, options.sm_margin).map_err(raise)?;
        let framework = Framework::of(q);
        let mut foreign_stream = None;
        let call_stream = match (attention.device(), place) {
            (Device::Cuda(context), Place::Cuda(ordinal)) => {
                let current = framework.current_stream(ordinal)?;
                let handle = stream.map_or(Ok(current), handle_of)?;
                let call_stream = CallStream::new(&context, handle)?;
                if !call_stream.is(current) {
                    foreign_stream = framework.external_stream(handle, ordinal)?;
                }
                Some(call_stream)
            }
            _ if stream.is_some() => {
                return Err(value(
                    "stream was given, but the tensors are on the CPU, which has none; leave it out",
                ));
            }
            _ => None,
        };
        let import = |request: Request<'py>| request.import(call_stream.as_ref(), options.axes);
        let [q, k, v] = requests;
        let (q, k, v) = (import(q)?, import(k)?, import(v)?);
        let out = out_request.map(import).transpose()?;
        for other in [&k, &v] {
            if other.dtype != q.dtype {
                return Err(type_(other_dtype(other.name, other.dtype, "q", q.dtype)));
            }
        }
        if let Some(out) = &out
            && out.dtype != q.dtype.output()
        {
            return Err(type_(format!(
                "out holds {} and q {}; the output is {}, so give out= of that",
                out.dtype,
                q.dtype,
                q.dtype.output()
            )));
        }
        let scales = Scales::gather(scales, q.dtype, place, call_stream.as_ref())?;
        let call = Call {
            place,
            attention,
            q,
            k,
            v,
            scales,
            head_values: HeadValues::default(),
            stream: call_stream,
            framework,
            foreign_stream,
            plain: None,
        };
        Ok((call, out))
    }

    /// Imports sinks and slopes, which the options then mention.
    pub(crate) fn gather_head_values(
        &mut self,
        sinks: Option<&Bound<'py, PyAny>>,
        slopes: Option<&Bound<'py, PyAny>>,
        options: &mut Options,
    ) -> PyResult<()> {
        self.head_values = HeadValues::gather(sinks, slopes, self.place, self.stream.as_ref(), options)?;
        Ok(())
    }

    /// The layout of an output that is allocated here: dense, in q's order of dimensions.
    fn new_out_layout(&self) -> Layout {
        let [b, s, h, _] = self.q.layout.shape;
        let shape = [b, s, h, self.v.layout.shape[3]];
        if self.heads_outside_seq() {
            Layout::bhsd(shape)
        } else {
            Layout::bshd(shape)
        }
    }

    fn heads_outside_seq(&self) -> bool {
        let [_, s, h, _] = self.q.layout.shape;
        let [_, seq_stride, head_stride, _] = self.q.layout.strides;
        s > 1 && h > 1 && head_stride > seq_stride
    }

    /// The problem that the tensors and options describe.
    pub(crate) fn problem(&self, options: &Options, out: Option<&Tensor>) -> PyResult<Problem> {
        let out = out.map_or_else(|| self.new_out_layout(), |out| out.layout);
        let layouts = [&self.q.layout, &self.k.layout, &self.v.layout, &out];
        let problem = problem_of(self.q.dtype, layouts, options).map_err(|error| raise(error.into()))?;
        self.scales.check(&problem)?;
        self.head_values.check(&problem)?;
        Ok(problem)
    }

    /// What the addresses of the tensors are multiples of, in bytes, at most 16.
    pub(crate) fn alignment(&self, out: Option<&Tensor>) -> u32 {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(Tensor::address);
        1 << (q | k | v | out.map_or(0, Tensor::address) | 16).trailing_zeros()
    }

    /// Checks that `out=` is writable and overlaps no input. The problem has checked all layouts.
    pub(crate) fn check_out(&self, out: &Tensor) -> PyResult<()> {
        out.check_writable()?;
        for input in [&self.q, &self.k, &self.v] {
            if out.overlaps(input) {
                return Err(value(format!(
                    "out shares memory with {name}: both lie between the same addresses; give out= separate memory",
                    name = input.name
                )));
            }
        }
        Ok(())
    }

    fn new_out(&self, like: &Bound<'py, PyAny>, axes: Axes) -> PyResult<(Bound<'py, PyAny>, Tensor)> {
        let shape = axes.reorder(self.new_out_layout().shape);
        let swapped = self.heads_outside_seq() != (axes == Axes::Bhsd);
        let object = self.empty(like, &shape, swapped, dtype_name(self.q.dtype.output()))?;
        let tensor = Request::new("out", &object)?.import(self.stream.as_ref(), axes)?;
        Ok((object, tensor))
    }

    /// Allocates f32 `[batch, heads, seq_len_q]`.
    fn new_lse(&self, like: &Bound<'py, PyAny>, problem: &Problem) -> PyResult<(Bound<'py, PyAny>, Tensor)> {
        let shape = [problem.batch(), problem.num_heads(), problem.seq_len_q()];
        let object = self.empty(like, &shape, false, "float32")?;
        let flat = object.call_method1("reshape", ((1, 1, 1, problem.lse_len()),))?;
        let tensor = Request::new("lse", &flat)?.import(self.stream.as_ref(), Axes::Bshd)?;
        Ok((object, tensor))
    }

    fn empty(
        &self,
        like: &Bound<'py, PyAny>,
        shape: &[usize],
        swapped: bool,
        dtype: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let stream = self.foreign_stream.as_ref();
        self.framework.empty(like, self.place, shape, swapped, dtype, stream)
    }

    /// Computes on the host; other Python threads run meanwhile.
    fn run_on_host(
        &self,
        py: Python<'_>,
        problem: &Problem,
        out: &mut Tensor,
        lse: Option<&mut Tensor>,
    ) -> PyResult<()> {
        let to_py = |error: flashcore::ProblemError| raise(error.into());
        // SAFETY: the tensors lie in host memory and the problem has checked their layouts. That no
        // other thread writes to them meanwhile is the caller's part.
        let (q, k, v) = unsafe { (self.q.view(), self.k.view(), self.v.view()) };
        let ones = vec![1.0; problem.num_scales()];
        let (q, k, v) = (q.map_err(to_py)?, k.map_err(to_py)?, v.map_err(to_py)?);
        // SAFETY: scales are on the tensors' device, which is the host; else as above.
        let [mut q, k, v] = unsafe { self.scales.attach(problem, [q, k, v], &ones) }?;
        // SAFETY: they are on the tensors' device, too.
        let [sinks, slopes] = unsafe { self.head_values.on_host() };
        if let Some(sinks) = &sinks {
            q = q.with_sinks(sinks);
        }
        if let Some(slopes) = &slopes {
            q = q.with_alibi_slopes(slopes);
        }
        let (name, dtype, layout) = (out.name, out.dtype, out.layout);
        // SAFETY: as above; `check_out` has checked that it is writable and shares no memory with
        // the inputs, or it was allocated for this call.
        let out = TensorViewMut::new(name, dtype, layout, unsafe { out.bytes_mut() }).map_err(to_py)?;
        // SAFETY: allocated for this call.
        let lse = lse.map(|lse| bytemuck::try_cast_slice_mut(unsafe { lse.bytes_mut() }));
        let lse = lse
            .transpose()
            .map_err(|error| value(format!("lse's memory is not f32: {error}")))?;
        let attention = &*self.attention;
        py.detach(|| attention.forward_into(problem, q, k, v, out, lse))
            .map_err(raise)
    }

    fn run_on_cuda(
        &self,
        py: Python<'py>,
        call_stream: &CallStream,
        like: &Bound<'py, PyAny>,
        problem: &Problem,
        out: &Tensor,
        lse: Option<&Tensor>,
    ) -> PyResult<()> {
        let stream = &call_stream.stream;
        let context = stream.context();
        // SAFETY: DLPack says that the memory is there while the handle lives. After the call it is
        // given back while the work may still run: libraries that free in stream order may do that,
        // with all others the call waits.
        let slice = |tensor: &Tensor| unsafe { DeviceSlice::from_raw(context, tensor.address(), tensor.span_bytes()) };
        let mut tensors = DeviceTensors::new(slice(&self.q), slice(&self.k), slice(&self.v), slice(out));
        tensors.lse = lse.map(slice);
        tensors.scales = self.scales.on_device(context, problem)?;
        [tensors.sinks, tensors.alibi_slopes] = self.head_values.on_device(context);
        let (attention, frees_in_order) = (&*self.attention, self.framework.frees_in_stream_order());
        let plain = self.plain;
        // Python's lock is given away once, unless its libraries allocate a workspace.
        let (ran, needed) = py.detach(|| {
            let (mut needed, mut held) = (0, None);
            let workspace = |bytes| {
                needed = bytes;
                let (exchange, device) = plain?;
                let memory = exchange.allocate(device, usize::try_from(bytes).ok()?)?;
                let address = memory.validate().ok()?.data_ptr().addr() as u64;
                held = Some(memory); // until the work is enqueued: PyTorch frees it in the order of the stream
                // SAFETY: as above; as many bytes as asked for, on q's device.
                Some(unsafe { DeviceSlice::from_raw(context, address, bytes as usize) })
            };
            // SAFETY: as above, for tensors and workspace, which nothing else has.
            let ran = unsafe { attention.run_foreign(stream, problem, &tensors, workspace) };
            let needed = if held.is_some() { 0 } else { needed };
            (ran.and_then(|()| wait(stream, frees_in_order)), needed)
        });
        if needed == 0 {
            return ran.map_err(raise);
        }
        let bytes =
            usize::try_from(needed).map_err(|_| value(format!("a workspace of {needed} bytes is too large")))?;
        let (theirs, ours);
        if frees_in_order {
            theirs = self.empty(like, &[1, 1, 1, bytes], false, "uint8")?;
            let address = theirs.call_method0("data_ptr")?.extract()?;
            // SAFETY: `bytes` bytes on q's device, which the library takes back in stream order.
            tensors.workspace = Some(unsafe { DeviceSlice::from_raw(context, address, bytes) });
        } else {
            ours = DeviceBuffer::new(context, bytes).map_err(|error| raise(error.into()))?;
            tensors.workspace = Some(ours.as_slice());
        }
        py.detach(|| {
            // SAFETY: as above.
            unsafe { attention.run_foreign(stream, problem, &tensors, |_| None)? };
            wait(stream, frees_in_order)
        })
        .map_err(raise)
    }
}

/// Waits for the work of a stream, where a library would take back memory before its end.
fn wait(stream: &Stream, frees_in_order: bool) -> Result<(), Error> {
    if !frees_in_order {
        stream.synchronize()?;
    }
    Ok(())
}

/// Computes softmax(scale * q @ k.T, masked) @ v for every batch and head.
///
/// Tensors are [batch, seq, heads, head_dim] of float16, bfloat16, float32 or float8_e4m3fn, with
/// any strides but the last, which is 1: slices and permutations are not copied. They may belong to
/// PyTorch, JAX, CuPy, NumPy or any other library with DLPack, all on one device: CPU tensors are
/// computed on all cores, CUDA tensors on their GPU. k and v may have fewer heads than q (each
/// serves an equal number of q's heads), and v another head_dim.
///
/// Parameters
/// ----------
/// q : tensor ``[batch, seq_q, heads, head_dim]``
/// k : tensor ``[batch, seq_kv, kv_heads, head_dim]``
///     ``kv_heads`` divides ``heads``.
/// v : tensor ``[batch, seq_kv, kv_heads, head_dim_v]``
/// causal : bool
///     A query attends to no key after its position. The mask is aligned bottom-right (the last query at the last key),
///     as in FlashAttention since 2.1. PyTorch's is_causal is aligned top-left.
/// window : (left, right), optional
///     How many keys before and after its position a query attends to; None for no limit. With causal, right is 0.
/// softcap : float, optional
///     Scaled scores s become ``softcap * tanh(s / softcap)``.
/// scale : float, optional
///     The factor on ``q @ k.T``; ``head_dim ** -0.5`` unless given.
/// out : tensor ``[batch, seq_q, heads, head_dim_v]``, optional
///     For the output; it shares no memory with an input. Otherwise q's library allocates it: PyTorch, CuPy or NumPy;
///     for other libraries NumPy on the CPU, and on CUDA devices out is required.
/// return_lse : bool
///     Return the log-sum-exp, too.
/// kernel : str, optional
///     The id of the kernel to use; chosen unless given. `plan` returns which is chosen, and why.
/// layout : {"bshd", "bhsd"}
///     "bhsd" for tensors ``[batch, heads, seq, head_dim]``, as in PyTorch's SDPA.
/// stream : stream object or int, optional
///     For CUDA tensors, the stream to run on; an integer is a cudaStream_t, which must outlive the work. Unless given,
///     PyTorch's or CuPy's current stream, and for other libraries the legacy default stream.
/// q_scale, k_scale, v_scale : tensor ``[batch, kv_heads]``, optional
///     For float8_e4m3fn tensors, float32, dense, on the tensors' device. An element's value is the element times the
///     scale of its batch and K/V head. Finite and above 0, which is checked on the CPU only. 1 unless given. The
///     output is bfloat16.
/// sinks : tensor ``[heads]``, optional
///     float32, float16 or bfloat16, dense: a logit of each query head that counts in the sum of its rows' softmax, and
///     has no value (s_aux of gpt-oss). -inf is none. The log-sum-exp includes it.
/// alibi_slopes : tensor ``[heads]`` or ``[batch, heads]``, optional
///     float32, dense, at least 0: ``slope * |i - j|`` is subtracted from the scaled, capped score of a query at
///     position i and a key at position j; the last query is at the last key.
///
/// Returns
/// -------
/// out : tensor ``[batch, seq_q, heads, head_dim_v]``
///     Rows that see no key are zero.
/// lse : float32 ``[batch, heads, seq_q]``, if return_lse
///     The natural logarithm of each row's sum of exponentials; -inf for rows that see no key.
///
/// Raises
/// ------
/// TypeError
///     An argument is not a tensor or number, or the dtypes are not one of the four, or differ.
/// ValueError
///     Invalid shapes, strides, devices or options, or a problem that no kernel serves.
/// RuntimeError
///     The device or its driver failed, or the process was forked after its first call.
///
/// Notes
/// -----
/// The call returns once the work is in the stream. It can be captured into a CUDA graph after a
/// first call has compiled the kernel. For CUDA tensors of libraries other than PyTorch and CuPy it
/// waits for the work, since they may reuse the memory as soon as it returns. Only the forward pass
/// is computed: PyTorch tensors that require a gradient are refused unless gradients are off
/// (torch.no_grad()). The functions of flashcore_attn.flash_attn_interface are differentiable.
#[pyfunction]
#[pyo3(signature = (
    q, k, v, *, causal=false, window=None, softcap=None, scale=None, out=None, return_lse=false, kernel=None,
    layout="bshd", stream=None, q_scale=None, k_scale=None, v_scale=None, sinks=None, alibi_slopes=None,
))]
#[allow(clippy::too_many_arguments)] // Python's keyword arguments
pub(crate) fn attention<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    v: &Bound<'py, PyAny>,
    causal: bool,
    window: Option<&Bound<'py, PyAny>>,
    softcap: Option<f32>,
    scale: Option<f32>,
    out: Option<&Bound<'py, PyAny>>,
    return_lse: bool,
    kernel: Option<&str>,
    layout: &str,
    stream: Option<&Bound<'py, PyAny>>,
    q_scale: Option<&Bound<'py, PyAny>>,
    k_scale: Option<&Bound<'py, PyAny>>,
    v_scale: Option<&Bound<'py, PyAny>>,
    sinks: Option<&Bound<'py, PyAny>>,
    alibi_slopes: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut options = Options::parse(causal, window, softcap, scale, return_lse, kernel, layout)?;
    let scales = [q_scale, k_scale, v_scale];
    let (mut call, given_out) = Call::gather([q, k, v], scales, out, stream, &options)?;
    call.gather_head_values(sinks, alibi_slopes, &mut options)?;
    let mut problem = call.problem(&options, given_out.as_ref())?;
    let is_given = out.is_some();
    let (out, mut out_tensor) = match (out, given_out) {
        (Some(out), Some(tensor)) => {
            call.check_out(&tensor)?;
            (out.clone(), tensor)
        }
        _ => {
            let (out, tensor) = call.new_out(q, options.axes)?;
            problem = call.problem(&options, Some(&tensor))?;
            (out, tensor)
        }
    };
    let lse = return_lse.then(|| call.new_lse(q, &problem)).transpose()?;
    let (lse, mut lse_tensor) = lse.unzip();
    match &call.stream {
        None => call.run_on_host(py, &problem, &mut out_tensor, lse_tensor.as_mut())?,
        Some(stream) => call.run_on_cuda(py, stream, q, &problem, &out_tensor, lse_tensor.as_ref())?,
    }
    if is_given {
        wrote(&out)?;
    }
    if let Some(stream) = &call.foreign_stream {
        let given = scales.into_iter().chain([sinks, alibi_slopes]).flatten();
        for tensor in [q, k, v, &out].into_iter().chain(given) {
            call.framework.used_on(tensor, stream)?;
        }
    }
    match lse {
        Some(lse) => (out, lse).into_bound_py_any(py),
        None => Ok(out),
    }
}
