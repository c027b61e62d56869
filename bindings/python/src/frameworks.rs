//! PyTorch and CuPy beyond DLPack: their current stream, their allocator, and PyTorch's
//! gradients. They are looked up only if the program has already imported them.

use pyo3::call::PyCallArgs;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::exchange::call_with;
use crate::operators::libtorch;

/// An imported module and its tensor type.
struct Library {
    module: Py<PyAny>,
    tensor: Py<PyAny>,
}

static TORCH: PyOnceLock<Library> = PyOnceLock::new();
static CUPY: PyOnceLock<Library> = PyOnceLock::new();

/// A library, if the program has imported it.
fn library_of<'py>(
    cell: &'static PyOnceLock<Library>,
    (module, tensor): (&str, &str),
    py: Python<'py>,
) -> Option<&'py Library> {
    if let Some(library) = cell.get(py) {
        return Some(library);
    }
    let module = imported_modules(py).ok()?.get_item(module).ok()??;
    let tensor = module.getattr(tensor).ok()?;
    Some(cell.get_or_init(py, || Library {
        module: module.unbind(),
        tensor: tensor.unbind(),
    }))
}

/// The module, if the object is a tensor of it.
fn module_of<'py>(
    cell: &'static PyOnceLock<Library>,
    names: (&str, &str),
    object: &Bound<'py, PyAny>,
) -> Option<Bound<'py, PyAny>> {
    let py = object.py();
    let library = library_of(cell, names, py)?;
    let is_one = object.is_instance(library.tensor.bind(py)).unwrap_or(false);
    is_one.then(|| library.module.bind(py).clone())
}

/// `sys.modules`. Asked as a dict, it says "not there" without the cost of an exception.
fn imported_modules(py: Python<'_>) -> PyResult<&Bound<'_, PyDict>> {
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let modules = MODULES.get_or_try_init(py, || {
        let modules = py.import("sys")?.getattr("modules")?;
        Ok::<_, PyErr>(modules.cast_into::<PyDict>()?.unbind())
    })?;
    Ok(modules.bind(py))
}

const TORCHS: (&str, &str) = ("torch", "Tensor");

pub(crate) fn torch_of<'py>(object: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    module_of(&TORCH, TORCHS, object)
}

/// The class `torch.Tensor`, if the program has imported PyTorch.
pub(crate) fn torch_tensor(py: Python<'_>) -> Option<&Bound<'_, PyAny>> {
    Some(library_of(&TORCH, TORCHS, py)?.tensor.bind(py))
}

/// The library that a tensor belongs to, if memory that it takes back is reused only by later work on the same stream.
pub(crate) enum Framework<'py> {
    Torch(Bound<'py, PyAny>),
    CuPy(Bound<'py, PyAny>),
    Other,
}

impl<'py> Framework<'py> {
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> Framework<'py> {
        if let Some(torch) = torch_of(object) {
            Framework::Torch(torch)
        } else if let Some(cupy) = module_of(&CUPY, ("cupy", "ndarray"), object) {
            Framework::CuPy(cupy)
        } else {
            Framework::Other
        }
    }

    pub(crate) fn module(&self) -> Option<&Bound<'py, PyAny>> {
        match self {
            Framework::Torch(module) | Framework::CuPy(module) => Some(module),
            Framework::Other => None,
        }
    }

    /// The handle of the library's current stream; the legacy default stream where none is known.
    pub(crate) fn current_stream(&self, ordinal: u32) -> PyResult<usize> {
        let Some(module) = self.module() else { return Ok(0) };
        if let Framework::Torch(torch) = self
            && let Ok(libtorch) = libtorch(torch)?
        {
            return Ok(libtorch.current_stream(ordinal)?);
        }
        python(module.py(), "current_stream", (module, ordinal))?.extract()
    }

    /// The library's object for a stream of whoever made it.
    pub(crate) fn external_stream(&self, handle: usize, ordinal: u32) -> PyResult<Option<Bound<'py, PyAny>>> {
        let cuda = self.module().map(|module| module.getattr("cuda")).transpose()?;
        cuda.map(|cuda| cuda.call_method1("ExternalStream", (handle, ordinal)))
            .transpose()
    }
}

/// Calls a function of the package's `_libraries.py`.
pub(crate) fn python<'py>(py: Python<'py>, name: &str, args: impl PyCallArgs<'py>) -> PyResult<Bound<'py, PyAny>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("flashcore_attn._libraries").map(Bound::unbind))?;
    module.bind(py).call_method1(name, args)
}

/// Whether PyTorch records gradients in this thread.
pub(crate) fn records_gradients(torch: &Bound<'_, PyAny>) -> PyResult<bool> {
    match libtorch(torch)? {
        Ok(libtorch) => Ok(libtorch.records_gradients()), // without a call into Python
        Err(_) => torch.call_method0("is_grad_enabled")?.is_truthy(),
    }
}

/// Whether the program computes derivatives in forward mode now.
pub(crate) fn in_forward_mode(py: Python<'_>) -> PyResult<bool> {
    static MODULE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let find = || Ok::<_, PyErr>(py.import("torch.autograd.forward_ad")?.into_any().unbind());
    let level = MODULE
        .get_or_try_init(py, find)?
        .bind(py)
        .getattr(intern!(py, "_current_level"))?;
    Ok(level.extract::<i64>()? >= 0)
}

/// Counts a write to tensors of PyTorch, which then notices if a backward pass needs them as they were.
pub(crate) fn wrote(tensors: &[Bound<'_, PyAny>]) -> PyResult<()> {
    let Some(torch) = tensors.first().and_then(torch_of) else {
        return Ok(());
    };
    static COUNT: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
    let py = torch.py();
    let find = || {
        let count = torch.getattr("_C")?.getattr_opt("_increment_version")?;
        Ok::<_, PyErr>(count.map(Bound::unbind))
    };
    let Some(count) = COUNT.get_or_try_init(py, find)? else {
        return Ok(());
    };
    let count = count.bind(py);
    match call_with(count, PyTuple::new(py, tensors)?.as_any()) {
        Ok(_) => Ok(()),
        // Tensors of inference mode count no writes, and to ask them first takes as long.
        Err(error) => tensors.iter().try_for_each(|tensor| {
            if tensor.call_method0(intern!(py, "is_inference"))?.is_truthy()? {
                return Ok(());
            }
            let counted = count.call1(((tensor,),));
            counted.map(drop).map_err(|_| error.clone_ref(py))
        }),
    }
}

/// What DLPack can export of a tensor, and whether that is the bytes of float8_e4m3fn. Refuses what has other values
/// than its memory, or asks for derivatives.
pub(crate) fn exported<'py>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, bool)> {
    python(object.py(), "exported", (name, object, torch_of(object)))?.extract()
}
