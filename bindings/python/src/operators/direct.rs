//! `flashcore::fwd` and `::fwd.bhsd` for plain tensors of a program that runs as it is written: without PyTorch's
//! dispatcher, which takes the host as long as the rest of a call. Where anything is unusual the functions return None,
//! and the operator is called, which serves it or says what is wrong. What the machine got wrong they raise, as the
//! operator does: it would fail there once more.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null;

use flashcore::{DType, Layout};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::PyCapsule_New;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};

use super::{BHSD_NAMES, NAMES, PANICKED, Rows, TORCH, attend, forward_options, options_of, output_of};
use crate::error::forked;
use crate::exchange::{Exchange, View};
use crate::libtorch::{Error, Libtorch, NoMemory, Tensor};
use crate::options::{Axes, Options};
use crate::tensor::{Place, dtype_of, layout_of, place_of};

/// `torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs`: the objects of handles.
static WRAP: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();

/// q, k and v on their way to a thread without Python's lock.
struct Tensors([Rows; 3]);

// SAFETY: the memory is there until the call returns, which waits for the closure: on the CPU nothing else has the
// objects that hold it ([`Held`]), and on a GPU PyTorch frees memory in the order of its streams.
unsafe impl Send for Tensors {}

/// Aliases of tensors on the CPU, which hold their memory while Python's lock is given away: another thread may then
/// give an object other memory (`k.data = other`).
type Held<'py> = [Option<Bound<'py, PyAny>>; 3];

impl Tensors {
    fn of<'py>(
        exchange: &Exchange,
        objects: [&Bound<'py, PyAny>; 3],
        axes: Axes,
    ) -> PyResult<Option<(Tensors, Held<'py>)>> {
        let names = match axes {
            Axes::Bshd => [NAMES[0], NAMES[1], NAMES[2]],
            Axes::Bhsd => BHSD_NAMES,
        };
        let look = |n: usize| -> PyResult<Option<(Rows, Option<Bound<'py, PyAny>>)>> {
            let rows = |object| rows_of(names[n], exchange.view(object)?, axes);
            let found = exchange.is_plain(objects[n]).then(|| rows(objects[n])).flatten();
            match found {
                Some(found) if found.place == Place::Cpu => {
                    let alias = objects[n].call_method0(intern!(objects[n].py(), "detach"))?;
                    Ok(rows(&alias).map(|rows| (rows, Some(alias))))
                }
                found => Ok(found.map(|rows| (rows, None))),
            }
        };
        let (Some((q, of_q)), Some((k, of_k)), Some((v, of_v))) = (look(0)?, look(1)?, look(2)?) else {
            return Ok(None);
        };
        Ok(Some((Tensors([q, k, v]), [of_q, of_k, of_v])))
    }

    fn rows(self) -> [Rows; 3] {
        self.0
    }
}

/// What a computation without Python's lock came to, if not results.
enum Failed {
    /// The operator is to compute it, or to say what is wrong.
    Unusual,
    Certain(String),
}

/// Computes without Python's lock; `None` where the operator is to be called.
pub(super) fn without_lock<T: Send>(
    py: Python<'_>,
    compute: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<Option<T>> {
    let result = py.detach(|| match forked() {
        Some(_) => Err(Failed::Unusual),
        None => match catch_unwind(AssertUnwindSafe(compute)) {
            Ok(Ok(results)) => Ok(results),
            Ok(Err(error)) if is_certain(&error) => Err(Failed::Certain(error.to_string())),
            Ok(Err(_)) => Err(Failed::Unusual),
            Err(_) => Err(Failed::Certain(PANICKED.to_string())),
        },
    });
    match result {
        Ok(results) => Ok(Some(results)),
        Err(Failed::Unusual) => Ok(None),
        Err(Failed::Certain(why)) => Err(PyRuntimeError::new_err(why)),
    }
}

/// Whether the operator would fail, too: there was no memory, or the device or its driver failed. What a graph found is
/// told once: the operator would not know it.
fn is_certain(error: &Error) -> bool {
    use flashcore::Error::{Captured, Cuda};
    matches!(error.downcast_ref(), Some(Cuda(_) | Captured(_))) || error.downcast_ref::<NoMemory>().is_some()
}

/// A tensor whose rows are dense, and which has elements.
fn rows_of(name: &'static str, view: View, axes: Axes) -> Option<Rows> {
    let dtype = dtype_of(name, view.dtype).ok()?;
    let layout = layout_of(axes.reorder(view.shape), axes.reorder(view.strides));
    if layout.strides[3] != 1 || layout.num_elements() == 0 || view.first.is_null() || dtype == DType::E4M3 {
        return None;
    }
    Some(Rows {
        name,
        dtype,
        place: place_of(name, view.device).ok()?,
        layout,
        first: view.first,
    })
}

/// PyTorch's functions, and what makes objects of its handles.
pub(super) fn found(py: Python<'_>) -> Option<(&'static Libtorch, &'static Exchange, &'static Py<PyAny>)> {
    let wrap = WRAP.get_or_init(py, || {
        let inner = py.import("torch._C._aoti").ok()?;
        inner
            .getattr("alloc_tensors_by_stealing_from_void_ptrs")
            .ok()
            .map(Bound::unbind)
    });
    Some((TORCH.get()?, Exchange::of_torch(py)?, wrap.as_ref()?))
}

/// The objects of tensors, from their handles for a stack.
pub(super) fn objects<'py, const N: usize>(
    py: Python<'py>,
    wrap: &Py<PyAny>,
    handles: [u64; N],
) -> PyResult<[Bound<'py, PyAny>; N]> {
    let capsules = PyList::empty(py);
    for handle in handles {
        let handle: *mut c_void = std::ptr::with_exposed_provenance_mut(handle as usize);
        // SAFETY: a handle is not null; the capsule frees nothing, since the handle becomes the function's.
        capsules.append(unsafe { Bound::from_owned_ptr_or_err(py, PyCapsule_New(handle, null(), None)) }?)?;
    }
    let made = wrap.bind(py).call1((capsules,))?.cast_into::<PyList>()?;
    let made: Vec<_> = made.iter().collect();
    made.try_into()
        .map_err(|_| PyRuntimeError::new_err("PyTorch made another number of tensors than it was given"))
}

/// The usual scale.
fn scale_of(head_dim: usize) -> u64 {
    (head_dim as f64).powf(-0.5).to_bits()
}

/// The numbers that operators begin with, in the form of a stack: scale, causal, both sides of the window, soft cap.
/// `None` where one has another type. A scale of None is the usual one.
pub(super) fn first_numbers(numbers: &Bound<'_, PyTuple>, head_dim: usize) -> Option<[u64; 5]> {
    let scale = match numbers.get_item(0).ok()? {
        scale if scale.is_none() => scale_of(head_dim),
        _ => real(numbers, 0)?,
    };
    let (left, right) = (whole(numbers, 2)?, whole(numbers, 3)?);
    Some([scale, flag(numbers, 1)?, left, right, real(numbers, 4)?])
}

/// The numbers of `flashcore::fwd`.
fn numbers_of(numbers: &Bound<'_, PyTuple>, head_dim: usize) -> Option<[u64; 9]> {
    if numbers.len() != 9 {
        return None;
    }
    let [scale, causal, left, right, softcap] = first_numbers(numbers, head_dim)?;
    let (bhsd, deterministic) = (flag(numbers, 5)?, flag(numbers, 6)?);
    let (sm_margin, split_keys) = (whole(numbers, 7)?, whole(numbers, 8)?);
    Some([
        scale,
        causal,
        left,
        right,
        softcap,
        bhsd,
        deterministic,
        sm_margin,
        split_keys,
    ])
}

fn real(numbers: &Bound<'_, PyTuple>, n: usize) -> Option<u64> {
    numbers.get_item(n).ok()?.extract::<f64>().ok().map(f64::to_bits)
}

pub(super) fn flag(numbers: &Bound<'_, PyTuple>, n: usize) -> Option<u64> {
    numbers.get_item(n).ok()?.extract::<bool>().ok().map(u64::from)
}

pub(super) fn whole(numbers: &Bound<'_, PyTuple>, n: usize) -> Option<u64> {
    numbers
        .get_item(n)
        .ok()?
        .extract::<i64>()
        .ok()
        .map(|number| number as u64)
}

/// The output, and the log-sum-exp.
pub(super) type Results<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// `flashcore::fwd` of tensors and its numbers; the log-sum-exp only if it is asked for.
#[pyfunction]
#[pyo3(signature = (q, k, v, numbers, with_lse, /))]
pub(crate) fn direct_forward<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    v: &Bound<'py, PyAny>,
    numbers: &Bound<'py, PyTuple>,
    with_lse: bool,
) -> PyResult<Option<Results<'py>>> {
    forward(py, [q, k, v], Axes::Bshd, with_lse, |tensors| {
        numbers_of(numbers, tensors.0[0].layout.shape[3])
    })
}

fn forward<'py>(
    py: Python<'py>,
    given: [&Bound<'py, PyAny>; 3],
    axes: Axes,
    with_lse: bool,
    numbers: impl FnOnce(&Tensors) -> Option<[u64; 9]>,
) -> PyResult<Option<Results<'py>>> {
    let Some((torch, exchange, wrap)) = found(py) else {
        return Ok(None);
    };
    let Some((tensors, _held)) = Tensors::of(exchange, given, axes)? else {
        return Ok(None);
    };
    let Some(numbers) = numbers(&tensors) else {
        return Ok(None);
    };
    let results = without_lock(py, || {
        if with_lse {
            let [out, lse] = attend(torch, tensors.rows(), &[], &[], &numbers, axes)?;
            return Ok((out.into_stack(), Some(lse.into_stack())));
        }
        let options = Options {
            axes,
            ..forward_options(&numbers)?
        };
        let dense = if numbers[5] != 0 { Layout::bhsd } else { Layout::bshd };
        let out = output_of(torch, tensors.rows(), &[], &[], dense, None, options)?;
        Ok((out.into_stack(), None))
    })?;
    match results {
        None => Ok(None),
        Some((out, Some(lse))) => {
            let [out, lse] = objects(py, wrap, [out, lse])?;
            Ok(Some((out, Some(lse))))
        }
        Some((out, None)) => {
            let [out] = objects(py, wrap, [out])?;
            Ok(Some((out, None)))
        }
    }
}

/// `flashcore::fwd.bhsd`, while gradients are not recorded.
#[pyfunction]
#[pyo3(signature = (query, key, value, numbers, /))]
pub(crate) fn direct_bhsd<'py>(
    py: Python<'py>,
    query: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
    numbers: &Bound<'py, PyTuple>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some((torch, exchange, wrap)) = found(py) else {
        return Ok(None);
    };
    let Some((tensors, _held)) = Tensors::of(exchange, [query, key, value], Axes::Bhsd)? else {
        return Ok(None);
    };
    let Some(numbers) = first_numbers(numbers, tensors.0[0].layout.shape[3]) else {
        return Ok(None);
    };
    let options = options_of(&numbers);
    let out = without_lock(py, || {
        let out = output_of(torch, tensors.rows(), &[], &[], Layout::bshd, None, options)?;
        Ok(out.into_stack())
    })?;
    let Some(out) = out else { return Ok(None) };
    let [out] = objects(py, wrap, [out])?;
    Ok(Some(out))
}

/// Attention of `[batch, heads, seq, head_dim]` as PyTorch's flash kernel computes it: the output, strided as
/// `torch.empty_like(query)`, and its log-sum-exp, and with `more` the three small tensors that PyTorch's kernel for
/// CUDA tensors returns, whose values are not used. None for what needs a closer look, such as another head_dim of
/// `value`, a batch that is not the outermost dimension, or one of `query` that is expanded (stride 0).
#[pyfunction]
#[pyo3(signature = (query, key, value, scale, causal, more, /))]
pub(crate) fn direct_sdpa<'py>(
    py: Python<'py>,
    query: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
    scale: Option<f64>,
    causal: bool,
    more: bool,
) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
    let numbers = |tensors: &Tensors| {
        let [q, k, v] = &tensors.0;
        let [batch, rows, heads, head_dim] = q.layout.shape;
        let [of_batch, of_row, of_head, of_column] = q.layout.strides;
        let (batch, row, head) = ((batch, of_batch), (rows, of_row), (heads, of_head));
        // Where strides are 0 or equal, `empty_like` has its own order of dimensions.
        let contains = |outer: (usize, _), inner: (usize, _)| outer.0 == 1 || inner.0 == 1 || outer.1 > inner.1;
        let bhsd = contains(head, row);
        let is_usual = v.layout.shape[3] == head_dim
            && !(causal && rows != k.layout.shape[1]) // a mask that is aligned top-left
            && contains(batch, row)
            && contains(batch, head)
            && (bhsd || contains(row, head))
            && [batch, row, head].iter().all(|&outer| contains(outer, (head_dim, of_column)));
        let (all, no_cap) = (-1i64 as u64, 0f64.to_bits());
        let scale = scale.map_or_else(|| scale_of(head_dim), f64::to_bits);
        is_usual.then_some([scale, causal.into(), all, all, no_cap, bhsd.into(), 0, 0, 0])
    };
    let Some((out, Some(lse))) = forward(py, [query, key, value], Axes::Bhsd, true, numbers)? else {
        return Ok(None);
    };
    let mut results = vec![out, lse];
    let (Some((torch, exchange, wrap)), true) = (found(py), more) else {
        return Ok(Some(results));
    };
    let Some(view) = exchange.view(query) else {
        return Ok(None);
    };
    let (place, dtype) = (place_of("query", view.device)?, dtype_of("query", view.dtype)?);
    let small = || -> Result<_, Error> {
        let (two, none) = (torch.empty_u64([2], place)?, torch.empty_u64([], place)?);
        Ok([two, none, torch.empty([0], [1], Some(dtype), place)?])
    };
    let small = small().map_err(|error| PyRuntimeError::new_err(error.to_string()))?; // there is no memory
    results.extend(objects(py, wrap, small.map(Tensor::into_stack))?);
    Ok(Some(results))
}
