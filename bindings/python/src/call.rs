//! `flashcore_attn.attention` and `plan`: tensors of any library that speaks DLPack.

use std::sync::Arc;

use flashcore::cuda::DeviceBuffer;
use flashcore::{Attention, Device};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::bind::{self, Checked, Operands};
use crate::bypass::Wrap;
use crate::dlpack::{Imported, Request};
use crate::error::{Error, may_compute, value};
use crate::exchange::Exchange;
use crate::explain::describe;
use crate::foreign::{Foreign, Place, check_apart, name_of};
use crate::frameworks::{Framework, exported, in_forward_mode, python, records_gradients, torch_of, wrote};
use crate::libtorch::Libtorch;
use crate::operators::libtorch;
use crate::options::{GIVEN_BHSD, MEMORY_BHSD, Options};
use crate::run::{Work, alignment, attention_on};
use crate::stream::{CallStream, handle_of, is_same_stream};
use crate::table::{GIVEN, LSE, OUT, Q, TENSORS, V};

/// The tensors that a call was given, by their places in the table: those of a forward pass, and out.
type Given<'a, 'py> = [Option<&'a Bound<'py, PyAny>>; GIVEN + 1];

/// Where a call will run, and what it needs besides its tensors.
struct Call<'py> {
    bound: Checked,
    attention: Arc<Attention>,
    /// What holds their memory, but that of plain tensors.
    held: Vec<Imported>,
    stream: Option<CallStream>,
    /// The library q belongs to; it allocates the output.
    framework: Framework<'py>,
    /// The library's object for `stream`, where that is not its current one.
    foreign_stream: Option<Bound<'py, PyAny>>,
    /// What allocates for PyTorch's plain tensors.
    torch: Option<&'static Libtorch>,
}

impl<'py> Call<'py> {
    /// Imports the tensors, and checks the call: `operands` are absent ones before.
    fn gather(
        given: &Given<'_, 'py>,
        stream: Option<&Bound<'py, PyAny>>,
        mut options: Options,
        operands: &mut Operands,
    ) -> PyResult<Call<'py>> {
        may_compute()?;
        let framework = Framework::of(given[Q].ok_or_else(|| value("q was not given"))?);
        let torch = match &framework {
            Framework::Torch(torch) => look(torch, given, operands)?,
            _ => None,
        };
        let torch = match (torch, stream, operands[Q].place) {
            // DLPack orders another stream than PyTorch's after it.
            (Some(torch), Some(wanted), Place::Cuda(ordinal)) => {
                let is_current = is_same_stream(handle_of(wanted)?, torch.current_stream(ordinal)?);
                is_current.then_some(torch)
            }
            (torch, ..) => torch,
        };
        let request = |(n, given): (usize, &Option<&Bound<'py, PyAny>>)| {
            let object = (*given)?;
            let name = TENSORS[n].as_str();
            let request = exported(name, object).and_then(|(object, fp8)| Request::new(name, &object, fp8));
            Some(request.map(|request| (n, request)))
        };
        let requests = match torch {
            Some(_) => Vec::new(),
            None => given.iter().enumerate().filter_map(request).collect::<PyResult<_>>()?,
        };
        let place = requests.first().map_or(operands[Q].place, |(_, request)| request.place);
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
                if !is_same_stream(handle, current) {
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
        if torch.is_none() {
            operands.fill(Foreign::ABSENT);
        }
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
        let bound = bind::forward(operands, &options)?;
        if place == Place::Cpu {
            check_apart(operands, &[OUT])?; // its memory is one slice; on GPUs the library refuses bytes of two tensors
        }
        Ok(Call {
            bound,
            attention,
            held,
            stream: call_stream,
            framework,
            foreign_stream,
            torch,
        })
    }

    /// Memory for a result, of q's library, and where it is.
    fn allocate(
        &mut self,
        like: &Bound<'py, PyAny>,
        operand: &mut Foreign,
        result: &Foreign,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let (Some(torch), Some(wrap)) = (self.torch, Wrap::of_torch(like.py())) {
            let (tensor, made) = torch.allocate(*result)?;
            *operand = made;
            return wrap.tensors([Some(tensor)])?.get_item(0);
        }
        let shape: Vec<usize> = result.sizes().iter().map(|&size| size as usize).collect();
        let swapped = result.rank == 4 && result.strides[1] < result.strides[2];
        let object = self.empty(like, &shape, swapped, &name_of(result.element))?;
        let imported = Request::new(result.name, &object, false)?.import(self.stream.as_ref())?;
        *operand = imported.foreign;
        self.held.push(imported);
        Ok(object)
    }

    /// Uninitialised memory of q's library, on its device; `swapped`: dense with axes 1 and 2 swapped.
    fn empty(
        &self,
        like: &Bound<'py, PyAny>,
        shape: &[usize],
        swapped: bool,
        dtype: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ordinal = match self.bound.place {
            Place::Cuda(ordinal) => Some(ordinal),
            _ => None,
        };
        let (module, shape) = (self.framework.module(), PyTuple::new(like.py(), shape)?);
        let arguments = (
            module,
            like,
            ordinal,
            shape,
            swapped,
            dtype,
            self.foreign_stream.as_ref(),
        );
        python(like.py(), "empty", arguments)
    }

    /// Computes; other Python threads run meanwhile.
    fn run(&self, like: &Bound<'py, PyAny>, operands: &Operands) -> PyResult<()> {
        let Some(problem) = &self.bound.problem else {
            return Ok(());
        };
        let (py, attention, work) = (like.py(), &*self.attention, Work::of(problem, operands, None));
        let Some(CallStream { stream }) = &self.stream else {
            return Ok(py.detach(|| work.on_host(attention))?);
        };
        if let Some(torch) = self.torch {
            return Ok(py.detach(|| work.run_in(stream, torch, attention))?);
        }
        // What is allocated is held until the work is enqueued: its library frees it in the order of the stream, or the
        // call waits for the work.
        if self.framework.module().is_none() {
            return Ok(py.detach(|| {
                let (mut ours, mut failed) = (None, Ok(()));
                let allocate = |bytes| {
                    let made = DeviceBuffer::new(stream.context(), bytes).map_err(|error| failed = Err(error));
                    Some(ours.insert(made.ok()?).as_slice().address())
                };
                let enqueued = work.enqueue(attention, stream, allocate);
                failed?;
                enqueued?;
                stream.synchronize()?;
                drop(ours);
                Ok::<_, Error>(())
            })?);
        }
        // The library allocates with Python's lock. What needs no workspace is enqueued at once, and else nothing is.
        let mut needed = 0;
        let enqueued = py.detach(|| {
            work.enqueue(attention, stream, |bytes| {
                needed = bytes;
                None
            })
        });
        if needed == 0 {
            return Ok(enqueued?);
        }
        let (_held, address) = self.workspace(like, needed)?;
        let work = Work::of(problem, operands, None);
        Ok(py.detach(|| work.enqueue(attention, stream, |_| Some(address)))?)
    }

    /// As many bytes of q's library, and their address.
    fn workspace(&self, like: &Bound<'py, PyAny>, bytes: usize) -> PyResult<(Bound<'py, PyAny>, u64)> {
        let memory = self.empty(like, &[bytes], false, "uint8")?;
        let address = memory
            .call_method0("data_ptr")
            .or_else(|_| memory.getattr("data")?.getattr("ptr"))?
            .extract()?;
        Ok((memory, address))
    }
}

/// PyTorch's plain CUDA tensors are looked at where they are, without an object for each. `None` where one is another.
fn look<'py>(
    torch: &Bound<'py, PyAny>,
    given: &Given<'_, 'py>,
    operands: &mut Operands,
) -> PyResult<Option<&'static Libtorch>> {
    let (Some(exchange), Ok(libtorch)) = (Exchange::of_torch(torch.py()), libtorch(torch)?) else {
        return Ok(None);
    };
    if in_forward_mode(torch.py())? {
        return Ok(None);
    }
    let recorded = records_gradients(torch)?;
    for (n, object) in given.iter().enumerate() {
        let Some(object) = object else { continue };
        let Some(tensor) = exchange.plain(TENSORS[n].as_str(), object, false, !recorded)? else {
            return Ok(None);
        };
        operands[n] = tensor; // q is the first
        let has_dimensions = tensor.rank == 4 || (n > V && n != OUT);
        let is_on_gpu = matches!(tensor.place, Place::Cuda(_)) && tensor.place == operands[Q].place;
        if !has_dimensions || !is_on_gpu || tensor.first.is_null() {
            return Ok(None);
        }
    }
    Ok(Some(libtorch))
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

pub(crate) fn compute<'py>(
    py: Python<'py>,
    given: Given<'_, 'py>,
    stream: Option<&Bound<'py, PyAny>>,
    options: Options,
) -> PyResult<Bound<'py, PyAny>> {
    let mut operands = [Foreign::ABSENT; TENSORS.len()];
    let mut call = Call::gather(&given, stream, options, &mut operands)?;
    let q = given[Q].ok_or_else(|| value("q was not given"))?;
    let [of_out, of_lse, _] = call.bound.results;
    let out = match given[OUT] {
        Some(out) => out.clone(),
        None => call.allocate(q, &mut operands[OUT], &of_out)?,
    };
    let lse = options
        .return_lse
        .then(|| call.allocate(q, &mut operands[LSE], &of_lse))
        .transpose()?;
    call.run(q, &operands)?;
    if given[OUT].is_some() {
        wrote(std::slice::from_ref(&out))?;
    }
    if let Some(stream) = &call.foreign_stream {
        for tensor in given.into_iter().flatten().chain([&out]).chain(&lse) {
            if torch_of(tensor).is_some() {
                tensor.call_method1("record_stream", (stream,))?; // it does not reuse the memory too early
            }
        }
    }
    match lse {
        Some(lse) => PyTuple::new(py, [out, lse])?.into_bound_py_any(py),
        None => Ok(out),
    }
}

pub(crate) fn explain<'py>(
    py: Python<'py>,
    given: Given<'_, 'py>,
    stream: Option<&Bound<'py, PyAny>>,
    options: Options,
) -> PyResult<Bound<'py, PyAny>> {
    let mut operands = [Foreign::ABSENT; TENSORS.len()];
    let call = Call::gather(&given, stream, options, &mut operands)?;
    let Checked { place, problem, .. } = &call.bound;
    let problem = problem.as_ref().ok_or_else(|| value("there is nothing to compute"))?; // lengths are equal
    describe(py, problem, *place, &call.attention, alignment(&operands)).map(Bound::into_any)
}
