//! `flashcore_attn.attention` and `plan`: tensors of any library that speaks DLPack.

use std::sync::Arc;

use flashcore::cuda::{DeviceBuffer, Stream};
use flashcore::{Attention, Device};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::bind::{self, Operands};
use crate::dlpack::{Imported, Request};
use crate::error::{Error, forked, value};
use crate::exchange::Exchange;
use crate::explain::describe;
use crate::foreign::{Foreign, Place, name_of};
use crate::frameworks::{Framework, forward_mode, records_gradients, without_gradient, wrote};
use crate::options::{GIVEN_BHSD, MEMORY_BHSD, Options};
use crate::run::{alignment, attention_on, enqueue, on_host};
use crate::stream::{CallStream, handle_of};
use crate::table::{GIVEN, K, LSE, OUT, Q, SCALES, SINKS, SLOPES, TENSORS, V};

/// The tensors that a call was given, by their places in the table: those of a forward pass, and out.
type Given<'a, 'py> = [Option<&'a Bound<'py, PyAny>>; GIVEN + 1];

/// The tensors of a call, imported, and where it will run.
struct Call<'py> {
    options: Options,
    place: Place,
    attention: Arc<Attention>,
    operands: Operands,
    /// What holds their memory, but that of plain tensors.
    held: Vec<Imported>,
    stream: Option<CallStream>,
    /// The library q belongs to; it allocates the output.
    framework: Framework<'py>,
    /// The library's object for `stream`, where that is not its current one.
    foreign_stream: Option<Bound<'py, PyAny>>,
    /// Where PyTorch's own table allocates.
    plain: Option<&'static Exchange>,
}

impl<'py> Call<'py> {
    /// Imports the tensors.
    fn gather(
        py: Python<'py>,
        given: &Given<'_, 'py>,
        stream: Option<&Bound<'py, PyAny>>,
        mut options: Options,
    ) -> PyResult<Call<'py>> {
        if let Some(why) = forked() {
            return Err(PyRuntimeError::new_err(why));
        }
        let framework = Framework::of(given[Q].ok_or_else(|| value("q was not given"))?);
        let mut operands = [Foreign::ABSENT; TENSORS.len()];
        let plain = match &framework {
            Framework::Torch(torch) => look(torch, given, &mut operands)?,
            _ => None,
        };
        if let (Some(exchange), Place::Cuda(ordinal)) = (plain, operands[Q].place)
            && let Some(current) = exchange.current_stream(py, ordinal)
        {
            let attention = attention_on(operands[Q].place, options.kernel, 0)?;
            let wanted = stream.map(handle_of).transpose()?;
            if let Device::Cuda(context) = attention.device() {
                let current = CallStream::new(&context, current)?;
                if wanted.is_none_or(|wanted| current.is(wanted)) {
                    options.layout |= memory_like(&operands[Q], options.layout);
                    return Ok(Call {
                        options,
                        place: operands[Q].place,
                        attention,
                        operands,
                        held: Vec::new(),
                        stream: Some(current),
                        framework,
                        foreign_stream: None,
                        plain: Some(exchange),
                    });
                }
            }
        }
        let request = |(n, given): (usize, &Option<&Bound<'py, PyAny>>)| {
            let object = (*given)?;
            Some(
                without_gradient(TENSORS[n], object)
                    .and_then(|object| Request::new(TENSORS[n], &object))
                    .map(|r| (n, r)),
            )
        };
        let requests = given
            .iter()
            .enumerate()
            .filter_map(request)
            .collect::<PyResult<Vec<_>>>()?;
        let place = requests[0].1.place;
        if let Some((_, other)) = requests.iter().find(|(_, other)| other.place != place) {
            let (name, theirs) = (other.name, other.place);
            return Err(value(format!(
                "{name} is on {theirs} and q on {place}; move all tensors to one device"
            )));
        }
        let attention = attention_on(place, options.kernel, 0)?;
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
        operands = [Foreign::ABSENT; TENSORS.len()];
        let mut held = Vec::with_capacity(requests.len());
        for (n, request) in requests {
            let imported = request.import(call_stream.as_ref())?;
            let rank = imported.foreign.rank;
            if (n <= V || n == OUT) && rank != 4 {
                let (name, shape) = (TENSORS[n], imported.foreign.sizes());
                return Err(value(format!(
                    "{name} has {rank} dimensions, shape {shape:?}; it must have 4: {}",
                    options.dimensions()
                )));
            }
            if n == OUT {
                imported.check_writable()?;
            }
            operands[n] = imported.foreign;
            held.push(imported);
        }
        options.layout |= memory_like(&operands[Q], options.layout);
        Ok(Call {
            options,
            place,
            attention,
            operands,
            held,
            stream: call_stream,
            framework,
            foreign_stream,
            plain: None,
        })
    }

    /// The call, checked; an output that is given overlaps no input.
    fn bind(&self) -> PyResult<bind::Checked> {
        let bound = bind::forward(&self.operands, &self.options)?;
        if let Some(out) = self.operands[OUT].given() {
            let mut inputs = self.operands[..GIVEN].iter().filter_map(Foreign::given);
            if let Some(Foreign { name, .. }) = inputs.find(|input| out.overlaps(input)) {
                return Err(value(format!(
                    "out shares memory with {name}: both lie between the same addresses; give out= separate memory"
                )));
            }
        }
        Ok(bound)
    }

    /// Memory for a result, of q's library.
    fn allocate(&mut self, like: &Bound<'py, PyAny>, n: usize, result: &Foreign) -> PyResult<Bound<'py, PyAny>> {
        let shape: Vec<usize> = result.sizes().iter().map(|&size| size as usize).collect();
        let swapped = result.rank == 4 && result.strides[1] < result.strides[2];
        let object = self.empty(like, &shape, swapped, &name_of(result.element))?;
        let found = self.plain.and_then(|exchange| exchange.foreign(result.name, &object));
        self.operands[n] = match found {
            Some(found) => found,
            None => {
                let imported = Request::new(result.name, &object)?.import(self.stream.as_ref())?;
                let found = imported.foreign;
                self.held.push(imported);
                found
            }
        };
        Ok(object)
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

    /// Computes; other Python threads run meanwhile.
    fn run(&self, py: Python<'py>, like: &Bound<'py, PyAny>, bound: &bind::Checked) -> PyResult<()> {
        let (attention, operands) = (&*self.attention, &self.operands);
        let Some(CallStream { stream }) = &self.stream else {
            return Ok(py.detach(|| on_host(bound, operands, attention))?);
        };
        let frees_in_order = self.framework.frees_in_stream_order();
        let (mut theirs, mut ours, mut address) = (None, None, None);
        if let (None, Some(problem)) = (self.plain, &bound.problem) {
            let prepared = attention.prepare_aligned(problem, alignment(operands));
            let needed = prepared.map_err(Error::from)?.workspace_bytes();
            let bytes = usize::try_from(needed).unwrap_or(usize::MAX);
            if bytes > 0 && frees_in_order {
                let memory = theirs.insert(self.empty(like, &[bytes], false, "uint8")?);
                address = Some(
                    memory
                        .call_method0("data_ptr")
                        .or_else(|_| memory.getattr("data")?.getattr("ptr"))?
                        .extract()?,
                );
            } else if bytes > 0 {
                let memory = DeviceBuffer::new(stream.context(), bytes).map_err(Error::from)?;
                address = Some(ours.insert(memory).as_slice().address());
            }
        }
        let plain = self.plain.zip(match self.place {
            Place::Cuda(ordinal) => Some(ordinal),
            _ => None,
        });
        let ran = py.detach(|| {
            let mut held = None;
            let workspace = |bytes| {
                let Some((exchange, ordinal)) = plain else {
                    return address;
                };
                let memory = exchange.allocate(ordinal, bytes)?;
                let address = memory.validate().ok()?.data_ptr().addr() as u64;
                held = Some(memory); // until the work is enqueued: PyTorch frees it in the order of the stream
                Some(address)
            };
            enqueue(bound, operands, attention, stream, None, workspace)?;
            wait(stream, frees_in_order)
        });
        drop((theirs, ours));
        Ok(ran?)
    }
}

/// Waits for the work of a stream, where a library would take back memory before its end.
fn wait(stream: &Stream, frees_in_order: bool) -> Result<(), Error> {
    if !frees_in_order {
        stream.synchronize()?;
    }
    Ok(())
}

/// PyTorch's plain CUDA tensors are looked at where they are, without an object for each. `None` where one is another.
fn look<'py>(
    torch: &Bound<'py, PyAny>,
    given: &Given<'_, 'py>,
    operands: &mut Operands,
) -> PyResult<Option<&'static Exchange>> {
    let py = torch.py();
    let Some(exchange) = Exchange::of_torch(py) else {
        return Ok(None);
    };
    if forward_mode(torch)?.is_some() {
        return Ok(None);
    }
    let recorded = records_gradients(torch)?;
    for (n, object) in given.iter().enumerate() {
        let Some(object) = object else { continue };
        match exchange.plain(TENSORS[n], object, !recorded)? {
            Some(tensor) if !tensor.first.is_null() && matches!(tensor.place, Place::Cuda(_)) => operands[n] = tensor,
            _ => return Ok(None),
        }
    }
    let same = |tensor: &Foreign| !tensor.is_given() || tensor.place == operands[Q].place;
    let ranks = [Q, K, V, OUT]
        .iter()
        .all(|&n| operands[n].rank == 4 || !operands[n].is_given());
    Ok((ranks && operands.iter().all(same)).then_some(exchange))
}

/// The order of a new output's dimensions in memory: q's.
fn memory_like(q: &Foreign, layout: u64) -> u64 {
    let bshd = if layout & GIVEN_BHSD == 0 { *q } else { q.swapped() };
    let ([_, s, h, _], [_, of_row, of_head, _]) = (bshd.shape, bshd.strides);
    if q.rank == 4 && s > 1 && h > 1 && of_head > of_row {
        MEMORY_BHSD
    } else {
        0
    }
}

/// Functions with the arguments of `attention`.
macro_rules! with_arguments {
    ($(#[$about:meta])* $name:ident => $serve:path) => {
        $(#[$about])*
        #[pyfunction]
        #[pyo3(signature = (
            q, k, v, *, causal=false, window=None, softcap=None, scale=None, out=None, return_lse=false, kernel=None,
            layout="bshd", stream=None, q_scale=None, k_scale=None, v_scale=None, sinks=None, alibi_slopes=None,
        ))]
        #[allow(clippy::too_many_arguments)] // Python's keyword arguments
        pub(crate) fn $name<'py>(
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
            let options = Options::parse(causal, window, softcap, scale, return_lse, kernel, layout)?;
            let mut given = [None; GIVEN + 1];
            (given[Q], given[K], given[V], given[OUT]) = (Some(q), Some(k), Some(v), out);
            (given[SCALES], given[SCALES + 1], given[SCALES + 2]) = (q_scale, k_scale, v_scale);
            (given[SINKS], given[SLOPES]) = (sinks, alibi_slopes);
            $serve(py, given, stream, options)
        }
    };
}

with_arguments! {
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
attention => compute
}

with_arguments! {
/// How `attention` would compute this call, as a dict; nothing is computed or compiled.
///
/// It has problem, device, kernel, why, row (of a plan table that chose the kernel: the table's
/// name and a number; None where heuristics did), notes (on plan tables that cannot be used) and
/// flops (of the two products, over visible keys only), and on a GPU also target, grid, block,
/// cluster, shared_bytes (a block), workspace_bytes, before and then (the names of kernels that run
/// before and after the one described) and considered: pairs of a kernel and why it was refused
/// (None: chosen). Takes the arguments of `attention` and raises what it would raise; `out` is not written.
plan => explain
}

fn compute<'py>(
    py: Python<'py>,
    given: Given<'_, 'py>,
    stream: Option<&Bound<'py, PyAny>>,
    options: Options,
) -> PyResult<Bound<'py, PyAny>> {
    let mut call = Call::gather(py, &given, stream, options)?;
    let bound = call.bind()?;
    let q = given[Q].ok_or_else(|| value("q was not given"))?;
    let [of_out, of_lse, _] = &bound.results;
    let out = match given[OUT] {
        Some(out) => out.clone(),
        None => call.allocate(q, OUT, of_out)?,
    };
    let lse = options.return_lse.then(|| call.allocate(q, LSE, of_lse)).transpose()?;
    call.run(py, q, &bound)?;
    if given[OUT].is_some() {
        wrote(&out)?;
    }
    if let Some(stream) = &call.foreign_stream {
        for tensor in given.into_iter().flatten().chain([&out]).chain(&lse) {
            call.framework.used_on(tensor, stream)?;
        }
    }
    match lse {
        Some(lse) => PyTuple::new(py, [out, lse])?.into_bound_py_any(py),
        None => Ok(out),
    }
}

fn explain<'py>(
    py: Python<'py>,
    given: Given<'_, 'py>,
    stream: Option<&Bound<'py, PyAny>>,
    options: Options,
) -> PyResult<Bound<'py, PyAny>> {
    let call = Call::gather(py, &given, stream, options)?;
    let bound = call.bind()?;
    let problem = bound.problem.ok_or_else(|| value("there is nothing to compute"))?; // lengths are equal
    describe(py, &problem, call.place, &call.attention, alignment(&call.operands)).map(Bound::into_any)
}
