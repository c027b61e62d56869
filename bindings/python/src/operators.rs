//! PyTorch's operators of the [table](crate::table). Their kernels run without Python; fake kernels and autograd are in
//! `python/flashcore_attn/_operators.py`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::slice;
use std::sync::OnceLock;

use flashcore::ProblemBuilder;
use libloading::library_filename;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

use crate::append;
use crate::bind::{self, Checked, Operands};
use crate::error::{Error, may_compute, type_};
use crate::foreign::{Foreign, Place, element_named};
use crate::libtorch::{Kernel, Libtorch, Tensor};
use crate::options::{MEMORY_OF_Q, NUMBERS, Options, bits_of};
use crate::run::{Work, alignment, attention_on, current_stream, slowness, tell_if_gathered, tell_if_slow};
use crate::schedule::Kept;
use crate::table::{APPEND_KV, FWD_LENGTHS, OPERATORS, Operator, TENSORS, word};

static TORCH: OnceLock<Result<Libtorch, String>> = OnceLock::new();

/// PyTorch's functions, which were looked for; without a call into Python.
pub(crate) fn found() -> Option<&'static Libtorch> {
    TORCH.get()?.as_ref().ok()
}

/// The functions of the module `torch`, or why this release is not served.
pub(crate) fn libtorch(torch: &Bound<'_, PyAny>) -> PyResult<Result<&'static Libtorch, &'static str>> {
    if TORCH.get().is_none() {
        let module: PathBuf = torch.getattr("__file__")?.extract()?;
        let library = |name| module.with_file_name("lib").join(library_filename(name));
        let found = Libtorch::find(&library("torch_cpu"), &library("torch_cuda")).map_err(|error| error.to_string());
        let _ = TORCH.set(found); // unless another thread was faster
    }
    Ok(match TORCH.get() {
        Some(found) => found.as_ref().map_err(String::as_str),
        None => Err("PyTorch was not looked for"), // it was
    })
}

/// Registers PyTorch's operators.
#[pyfunction]
pub(crate) fn register_operators(py: Python<'_>) -> PyResult<()> {
    static REGISTERED: PyOnceLock<()> = PyOnceLock::new();
    let kernels: [Kernel; OPERATORS.len()] = [kernel::<0>, kernel::<1>, kernel::<2>, kernel::<3>, kernel::<4>];
    let torch = libtorch(py.import("torch")?.as_any())?.map_err(PyRuntimeError::new_err)?;
    REGISTERED.get_or_try_init(py, || {
        let all: Vec<_> = OPERATORS.into_iter().zip(kernels).collect();
        let registered = torch.register(c"flashcore", &all);
        registered.map_err(|error| PyRuntimeError::new_err(error.to_string()))
    })?;
    Ok(())
}

pub(crate) const PANICKED: &str = "flashcore panicked, which is a bug; the message is on standard error";

/// An operator's results in their order.
pub(crate) type Results<'a> = [Option<Tensor<'a>>; 3];

/// How an operator computes, of its operands and numbers.
pub(crate) type Compute = for<'a> fn(&'a Libtorch, &mut Operands, &[u64]) -> Result<Results<'a>, Error>;

/// Runs the operator of this place in the table: takes the tensors from its stack, which has its numbers after them,
/// and puts the results there.
///
/// # Safety
/// PyTorch passes the stack for the schema of this operator.
unsafe extern "C-unwind" fn kernel<const N: usize>(stack: *mut u64, inputs: u64, _outputs: u64) {
    let operator = OPERATORS[N];
    let Some(torch) = found() else { return }; // it was, before this was registered
    // SAFETY: PyTorch passes as many arguments as `inputs` says, and no fewer than results.
    let stack = unsafe { slice::from_raw_parts_mut(stack, inputs as usize) };
    let (handles, numbers) = stack.split_at(operator.tensors.len());
    // SAFETY: the schemas begin with tensors, which are the kernel's to give back.
    let tensors: Vec<Tensor> = handles.iter().map(|&handle| unsafe { torch.take(handle) }).collect();
    let result = catch_unwind(AssertUnwindSafe(|| {
        may_compute()?;
        let mut operands = [Foreign::ABSENT; TENSORS.len()];
        for (tensor, &place) in tensors.iter().zip(operator.tensors) {
            operands[place] = tensor.foreign(word(operator.names[place]))?;
        }
        (operator.compute)(torch, &mut operands, numbers)
    }));
    drop(tensors);
    let message = match result {
        Ok(Ok(results)) => {
            for (place, result) in stack.iter_mut().zip(results.into_iter().flatten()) {
                *place = result.into_stack();
            }
            return;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => PANICKED.to_string(),
    };
    torch.raise(&message);
}

/// The options that an operator's numbers begin with, and the numbers after them.
pub(crate) fn options_of(numbers: &[u64]) -> Result<(Options, &[u64]), Error> {
    let (bits, rest) = numbers
        .split_first_chunk::<{ NUMBERS.len() }>()
        .ok_or("numbers are missing")?;
    let options = Options::of_bits(bits)?;
    if options.layout >= MEMORY_OF_Q {
        return Err(format!("layout is {}; it is the sum of some of 1, 2 and 4", options.layout).into());
    }
    Ok((options, rest))
}

pub(crate) fn compute_forward<'a>(
    torch: &'a Libtorch,
    operands: &mut Operands,
    numbers: &[u64],
) -> Result<Results<'a>, Error> {
    let (options, _) = options_of(numbers)?;
    let kept = Kept::of(&options)?;
    let bound = bind::forward(operands, &options)?;
    let mut results = allocate(torch, &bound, operands)?;
    run(torch, &bound, operands, kept.as_ref())?;
    if results[1].is_none() {
        results[1] = Some(torch.empty(&bound.results[1])?); // without elements
    }
    Ok(results)
}

pub(crate) fn compute_backward<'a>(
    torch: &'a Libtorch,
    operands: &mut Operands,
    numbers: &[u64],
) -> Result<Results<'a>, Error> {
    let bound = bind::backward(operands, &options_of(numbers)?.0)?;
    let results = allocate(torch, &bound, operands)?;
    run(torch, &bound, operands, None)?;
    Ok(results)
}

/// Makes the results that have elements, or could have, and puts them among the operands.
pub(crate) fn allocate<'a>(
    torch: &'a Libtorch,
    bound: &Checked,
    operands: &mut Operands,
) -> Result<Results<'a>, Error> {
    let mut results = [const { None }; 3];
    for (n, like) in bound.results.iter().enumerate().filter(|(_, like)| like.is_given()) {
        let (tensor, made) = torch.allocate(*like)?;
        if bound.zeroed {
            tensor.zero()?;
        }
        (operands[bound.first_result + n], results[n]) = (made, Some(tensor));
    }
    Ok(results)
}

/// Computes attention or its gradients.
pub(crate) fn run(torch: &Libtorch, bound: &Checked, operands: &Operands, kept: Option<&Kept>) -> Result<(), Error> {
    let Some(problem) = &bound.problem else { return Ok(()) };
    let (place, sm_margin) = (bound.place, bound.options.sm_margin);
    if let Some(kept) = kept {
        kept.check(place, problem, sm_margin)?;
    }
    let attention = attention_on(place, bound.options.kernel, sm_margin)?;
    if place != Place::Cpu && problem.gradient_layouts().is_some() {
        tell_if_slow(torch, &attention, problem, alignment(operands))?;
    }
    Work::of(problem, operands, kept).run(torch, &attention)?;
    tell_if_gathered(torch, problem); // not of a call that is refused
    Ok(())
}

/// Refuses a schedule that was made for another call, and multiprocessors that are not there to leave; nothing is
/// computed.
pub(crate) fn check(torch: &Libtorch, bound: &Checked, operands: &Operands, kept: Option<&Kept>) -> Result<(), Error> {
    let (Place::Cpu | Place::Cuda(_), Some(problem)) = (bound.place, &bound.problem) else {
        return Ok(());
    };
    let attention = attention_on(bound.place, None, bound.options.sm_margin)?;
    let Some(kept) = kept else { return Ok(()) };
    kept.check(bound.place, problem, bound.options.sm_margin)?;
    if let Some(stream) = current_stream(torch, &attention)? {
        let schedule = kept.schedule(&attention, &stream)?;
        if !schedule.serves(&attention.prepare_aligned(problem, alignment(operands))?) {
            return Err(kept.of_another_plan());
        }
    }
    Ok(())
}

/// dtype, device type, device index, shape, strides (dense unless given), address.
type Described = (String, String, Option<u32>, Vec<usize>, Option<Vec<i64>>, usize);

/// An operator's tensors of these kinds, which need not be there.
fn operands_of(operator: &Operator, tensors: &[Option<Described>]) -> Operands {
    let mut operands = [Foreign::ABSENT; TENSORS.len()];
    for (given, &n) in tensors.iter().zip(operator.tensors) {
        let Some((dtype, device, index, shape, strides, address)) = given else {
            continue;
        };
        let place = match (device.as_str(), index) {
            ("cpu", _) => Place::Cpu,
            ("cuda", ordinal) => Place::Cuda(ordinal.unwrap_or(0)),
            ("meta", _) => Place::Meta,
            _ => Place::Other,
        };
        let (name, element) = (word(operator.names[n]), element_named(dtype));
        operands[n] = match strides {
            Some(strides) => Foreign::fresh(name, element, place, shape, strides),
            None => Foreign::fresh_dense(name, element, place, shape),
        };
        operands[n].first = std::ptr::without_provenance_mut(*address);
    }
    operands
}

/// Raises what an operator of attention would raise for tensors of these kinds, before they are there or a cache is
/// written. An address may be 0. `asks_device`: also whether the schedule is the plan's, and
/// multiprocessors are there to leave; a trace may be for a device that is not here.
#[pyfunction]
#[pyo3(signature = (name, tensors, numbers, asks_device, /))]
pub(crate) fn check_operator(
    name: &str,
    tensors: Vec<Option<Described>>,
    numbers: &Bound<'_, PyTuple>,
    asks_device: bool,
) -> PyResult<()> {
    let check = || -> Result<(), Error> {
        let (Some(torch), Some(operator)) = (found(), OPERATORS.iter().find(|known| known.name == name)) else {
            return Err(format!("there is no operator {name}").into());
        };
        let operands = operands_of(operator, &tensors);
        if name == APPEND_KV.name {
            let has_sequences = operands[append::CACHE_SEQLENS].is_given();
            return if has_sequences {
                append::Call::bind(&operands, [false; 2]).map(drop)
            } else {
                Ok(())
            };
        }
        let options = Options::of_bits(&bits_of(numbers).ok_or("numbers have other types than the operator's")?)?;
        let kept = Kept::of(&options)?;
        let bound = match name {
            "bwd" => bind::backward(&operands, &options)?,
            _ => bind::forward(&operands, &options)?,
        };
        if asks_device {
            check(torch, &bound, &operands, kept.as_ref())
        } else {
            Ok(())
        }
    };
    check().map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Why the backward pass of tensors that `::fwd_lengths` is given on a CUDA device would be slow, in words; None if its
/// kernel uses tensor cores.
#[pyfunction]
#[pyo3(signature = (tensors, numbers, /))]
pub(crate) fn slow_backward(
    py: Python<'_>,
    tensors: Vec<Option<Described>>,
    numbers: &Bound<'_, PyTuple>,
) -> PyResult<Option<String>> {
    let numbers = bits_of(numbers).ok_or_else(|| type_("numbers are not those of an operator"))?;
    let (options, operands) = (Options::of_bits(&numbers)?, operands_of(&FWD_LENGTHS, &tensors));
    let slow = || -> Result<Option<String>, Error> {
        let bound = bind::forward(&operands, &options)?;
        let Some(problem) = bound.problem else { return Ok(None) };
        let backward = ProblemBuilder::from(&problem).deterministic(options.deterministic);
        let backward = backward.build()?.backward()?;
        Ok(slowness(&attention_on(bound.place, None, 0)?.plan(&backward)?))
    };
    Ok(py.detach(slow)?)
}
