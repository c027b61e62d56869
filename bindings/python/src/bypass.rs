//! Calls of plain tensors in a program that runs as it is written, without PyTorch's dispatcher, which takes the host
//! as long as the rest of a call. A step of decoding, an append and attention, is one crossing from Python. Where
//! anything is unusual the result is None, and operators are called, which serve it, writing the same keys again, or
//! say what is wrong. What the machine got wrong is raised, as operators do: it would fail there once more.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::PyCapsule_New;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};

use crate::append::{self, CACHE_SEQLENS, COS, CU_Q, K_CACHE, K_NEW, POSITIONS, Q_OUT, SEQUSED, SIN, V_CACHE, V_NEW};
use crate::bind::{self, Operands};
use crate::error::{Error, may_compute};
use crate::exchange::Exchange;
use crate::foreign::{Foreign, I32, Place, U64, element_of};
use crate::frameworks::wrote;
use crate::libtorch::{Libtorch, Tensor};
use crate::operators::{PANICKED, allocate, check, found, run};
use crate::options::{MEMORY_BHSD, MEMORY_OF_Q, MORE, Options, USUAL_SCALE, bits_of};
use crate::schedule::Kept;
use crate::table::{APPENDED, BLOCK_TABLE, GIVEN, K, LENGTHS, Q, SEQUSED_K, TENSORS, V, word};

/// What a step appends, in the order of Python: their places in the table.
const NEW: [usize; 5] = [K_NEW, V_NEW, COS, SIN, POSITIONS];

/// A tensor of a call, and an alias of it if it is on the CPU: it holds the memory while Python's lock is given away,
/// when another thread may give the object other memory (`k.data = other`). `None` for what is not plain.
fn look<'py>(
    exchange: &Exchange,
    name: &'static str,
    object: &Bound<'py, PyAny>,
    holds_its_values: bool,
    may_require_gradients: bool,
) -> PyResult<Option<(Foreign, Option<Bound<'py, PyAny>>)>> {
    let Some(mut tensor) = exchange.plain(name, object, holds_its_values, may_require_gradients)? else {
        return Ok(None);
    };
    let is_usual = |tensor: &Foreign| {
        (1..=4).contains(&tensor.rank)
            && !tensor.sizes().contains(&0)
            && !tensor.first.is_null()
            && tensor.element != element_of(flashcore::DType::E4M3)
    };
    let mut alias = None;
    if tensor.place == Place::Cpu {
        let of_it = object.call_method0(intern!(object.py(), "detach"))?;
        match exchange.foreign(name, &of_it) {
            Some(found) => (tensor, alias) = (found, Some(of_it)),
            None => return Ok(None),
        }
    }
    Ok(is_usual(&tensor).then_some((tensor, alias)))
}

/// The results of attention, which are the output, and the log-sum-exp if the numbers ask for it; or None.
///
/// Parameters
/// ----------
/// tensors : those of the table from the first on, None where one is not given; the caller knows that the memory of q,
///     k and v holds their values, and which of them require gradients if nothing is appended. After all of them, what
///     is written first: k, v, rotary_cos, rotary_sin and rotary_seqlens
/// numbers : those of the table from the first on; a scale of None is the usual one
/// interleaved : whether pairs of the rotary embedding are; None if nothing is appended
#[pyfunction]
#[pyo3(signature = (tensors, numbers, interleaved=None, /))]
pub(crate) fn call<'py>(
    py: Python<'py>,
    tensors: &Bound<'py, PyTuple>,
    numbers: &Bound<'py, PyTuple>,
    interleaved: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let (Some(torch), Some(exchange), Some(wrap), Some(mut bits), Ok(interleaved)) = (
        found(),
        Exchange::of_torch(py),
        Wrap::of_torch(py),
        bits_of(numbers),
        interleaved.map(|given| given.extract::<bool>()).transpose(),
    ) else {
        return Ok(None);
    };
    let records = torch.records_gradients();
    let mut operands = [Foreign::ABSENT; TENSORS.len()];
    let mut appended = interleaved.map(|_| operands);
    let mut held = [const { None }; GIVEN + NEW.len()];
    if tensors.len() > held.len() {
        return Ok(None);
    }
    for (n, object) in tensors
        .iter_borrowed()
        .enumerate()
        .filter(|(_, object)| !object.is_none())
    {
        let (name, operand) = match (n.checked_sub(GIVEN), &mut appended) {
            (None, _) => (TENSORS[n].as_str(), &mut operands[n]),
            (Some(n), Some(appended)) => (word(APPENDED[NEW[n]]), &mut appended[NEW[n]]),
            (Some(_), None) => return Ok(None),
        };
        let may_require_gradients = !records || (interleaved.is_none() && n <= V);
        match look(exchange, name, &object, n <= V, may_require_gradients)? {
            Some((tensor, alias)) => (*operand, held[n]) = (tensor, alias),
            None => return Ok(None),
        }
    }
    let q = &operands[Q];
    if !q.is_given() {
        return Ok(None);
    }
    if bits[0] == USUAL_SCALE {
        bits[0] = (q.shape[q.rank - 1] as f64).powf(-0.5).to_bits();
    }
    let (small, more) = (*q, bits[5] & MORE != 0);
    if bits[5] & MEMORY_OF_Q != 0 {
        match memory_of_q(&operands, bits[1] != 0) {
            Some(memory) => bits[5] = (bits[5] & !(MEMORY_OF_Q | MORE)) | memory,
            None => return Ok(None),
        }
    }
    let with_lse = bits[6] != 0;
    let results = without_lock(py, || {
        let options = Options::of_bits(&bits)?;
        let (out, lse) = compute(torch, &mut operands, &options, appended.as_mut().zip(interleaved))?;
        let mut results = [Some(out), lse.filter(|_| with_lse), None, None, None];
        if more {
            let seed = Foreign::fresh_dense("seed", U64, small.place, &[2]);
            let offset = Foreign::fresh_dense("offset", U64, small.place, &[]);
            let mask = Foreign::fresh_dense("mask", small.element, small.place, &[0]);
            for (place, like) in results[2..].iter_mut().zip([seed, offset, mask]) {
                *place = Some(torch.empty(&like)?);
            }
        }
        Ok(results)
    });
    let counted = match &results {
        Ok(None) => Ok(()), // the operators count
        _ if interleaved.is_some() => wrote(&[tensors.get_item(K)?, tensors.get_item(V)?]),
        _ => Ok(()),
    };
    let Some(results) = results? else { return Ok(None) };
    let made = wrap.tensors(results)?;
    counted.map(|()| Some(made))
}

/// PyTorch's function that makes Python's tensors of handles.
pub(crate) struct Wrap<'py>(&'py Bound<'py, PyAny>);

impl<'py> Wrap<'py> {
    pub(crate) fn of_torch(py: Python<'py>) -> Option<Wrap<'py>> {
        static WRAP: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
        let find = || {
            let module = py.import("torch._C._aoti").ok()?;
            let wrap = module.getattr("alloc_tensors_by_stealing_from_void_ptrs").ok()?;
            Some(wrap.unbind())
        };
        let wrap = WRAP.get_or_init(py, find).as_ref()?;
        Some(Wrap(wrap.bind(py)))
    }

    /// Python's tensors of these, which the function takes over.
    pub(crate) fn tensors<const N: usize>(&self, tensors: [Option<Tensor<'_>>; N]) -> PyResult<Bound<'py, PyList>> {
        let py = self.0.py();
        let capsules = PyList::empty(py);
        for tensor in tensors.iter().flatten() {
            // SAFETY: a handle is not null; the capsule frees nothing, since the handle becomes the function's.
            let capsule = unsafe { Bound::from_owned_ptr_or_err(py, PyCapsule_New(tensor.handle, null(), None)) };
            capsules.append(capsule?)?;
        }
        std::mem::forget(tensors);
        Ok(self.0.call1((capsules,))?.cast_into::<PyList>()?)
    }
}

/// Computes without Python's lock; `None` where the operator is to be called, which computes it or says what is wrong.
fn without_lock<T: Send>(py: Python<'_>, compute: impl FnOnce() -> Result<T, Error> + Send) -> PyResult<Option<T>> {
    let compute = || may_compute().and_then(|()| compute());
    match py.detach(|| catch_unwind(AssertUnwindSafe(compute))) {
        Ok(Ok(results)) => Ok(Some(results)),
        Ok(Err(error)) if error.is_certain() => Err(error.into()),
        Ok(Err(_)) => Ok(None),
        Err(_) => Err(PyRuntimeError::new_err(PANICKED)),
    }
}

/// The output and its log-sum-exp. All is checked before a key is written, and the results are allocated. What is not
/// known then is whether a kernel serves the problem, and what the device says.
fn compute<'a>(
    torch: &'a Libtorch,
    operands: &mut Operands,
    options: &Options,
    mut append: Option<(&mut Operands, bool)>,
) -> Result<(Tensor<'a>, Option<Tensor<'a>>), Error> {
    let kept = Kept::of(options)?;
    let (mut counted, mut rotated) = (None, None); // PyTorch frees them in the order of the stream
    if let Some((new, _)) = &mut append {
        let place = operands[Q].place;
        for (n, of) in [
            (K_CACHE, K),
            (V_CACHE, V),
            (CACHE_SEQLENS, SEQUSED_K),
            (append::TABLE, BLOCK_TABLE),
        ] {
            new[n] = Foreign {
                name: word(APPENDED[n]),
                ..operands[of]
            };
        }
        let batch = new[CACHE_SEQLENS].shape[0] as usize;
        let (tensor, counts) = torch.allocate(Foreign::fresh_dense("seqused_k", I32, place, &[batch]))?;
        (operands[SEQUSED_K], new[SEQUSED], counted) = (counts, counts, Some(tensor));
        if new[COS].is_given() || new[SIN].is_given() {
            let (tensor, q) = torch.allocate(like(&operands[Q]).ok_or("q has unusual strides")?)?;
            (new[append::Q], new[Q_OUT]) = (operands[Q], q);
            new[CU_Q] = operands[LENGTHS];
            (operands[Q], rotated) = (q, Some(tensor));
            operands[Q].name = "q";
        }
    }
    let bound = bind::forward(operands, options)?;
    let [out, lse, _] = allocate(torch, &bound, operands)?;
    if let Some((new, interleaved)) = append {
        check(torch, &bound, operands, kept.as_ref())?;
        append::Call::bind(new, [interleaved, options.mask.is_full()])?.run(torch)?;
    }
    run(torch, &bound, operands, kept.as_ref())?;
    drop((counted, rotated));
    Ok((out.ok_or("no output")?, lse))
}

/// Memory for a tensor as `torch.empty_like` gives it, where its dimensions lie one in another.
fn like(tensor: &Foreign) -> Option<Foreign> {
    let in_order = |n: usize| tensor.shape[n] == 1 || tensor.strides[n] >= tensor.strides[n + 1];
    let is_dense = (3..=4).contains(&tensor.rank) && (0..tensor.rank - 1).all(in_order);
    let shape = &tensor.shape.map(|n| n as usize)[..tensor.rank.min(4)];
    is_dense.then(|| Foreign::fresh_dense("q_out", tensor.element, tensor.place, shape))
}

/// In which order an output lies in memory that is strided as `torch.empty_like(q)`. None for what needs a closer look,
/// such as another head_dim of v, a batch that is not the outermost dimension, or one of q that is expanded (stride 0).
fn memory_of_q(operands: &Operands, causal: bool) -> Option<u64> {
    let [q, k, v] = [&operands[Q], &operands[K], &operands[V]];
    if [q, k, v].iter().any(|tensor| tensor.rank != 4) {
        return None;
    }
    let [q, k, v] = [q, k, v].map(|tensor| tensor.swapped().layout()); // SDPA's order
    let [batch, rows, heads, head_dim] = q.shape;
    let [of_batch, of_row, of_head, of_column] = q.strides;
    let (batch, row, head) = ((batch, of_batch), (rows, of_row), (heads, of_head));
    // Where strides are 0 or equal, `empty_like` has its own order of dimensions.
    let contains = |outer: (usize, _), inner: (usize, _)| outer.0 == 1 || inner.0 == 1 || outer.1 > inner.1;
    let bhsd = contains(head, row);
    let is_usual = v.shape[3] == head_dim
        && !(causal && rows != k.shape[1]) // a mask that is aligned top-left
        && contains(batch, row)
        && contains(batch, head)
        && (bhsd || contains(row, head))
        && [batch, row, head].iter().all(|&outer| contains(outer, (head_dim, of_column)));
    is_usual.then_some(if bhsd { MEMORY_BHSD } else { 0 })
}
