//! PyTorch and CuPy beyond DLPack: their current stream, their allocator, and PyTorch's
//! gradients. They are looked up only if the program has already imported them.

use pyo3::call::PyCallArgs;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::error::{type_, unserved, value};
use crate::foreign::Place;
use crate::operators::libtorch;

/// An imported module and its tensor type.
struct Library {
    module: Py<PyAny>,
    tensor: Py<PyAny>,
}

static TORCH: PyOnceLock<Library> = PyOnceLock::new();
static CUPY: PyOnceLock<Library> = PyOnceLock::new();
static MASKED: PyOnceLock<Library> = PyOnceLock::new();

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

fn torch_of<'py>(object: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
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

    /// Uninitialised memory of the library, on `like`'s device; `swapped`: dense with axes 1 and 2
    /// swapped. `stream`: where it will be used, if not on the library's current stream.
    pub(crate) fn empty(
        &self,
        like: &Bound<'py, PyAny>,
        place: Place,
        shape: &[usize],
        swapped: bool,
        dtype: &str,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ordinal = match place {
            Place::Cuda(ordinal) => Some(ordinal),
            _ => None,
        };
        let shape = PyTuple::new(like.py(), shape)?;
        python(
            like.py(),
            "empty",
            (self.module(), like, ordinal, shape, swapped, dtype, stream),
        )
    }

    /// Tells the library of a use on another stream, so that it does not reuse the memory too early.
    pub(crate) fn used_on(&self, tensor: &Bound<'py, PyAny>, stream: &Bound<'py, PyAny>) -> PyResult<()> {
        if torch_of(tensor).is_some() {
            tensor.call_method1("record_stream", (stream,))?;
        }
        Ok(())
    }
}

/// Calls a function of the package's `_libraries.py`.
fn python<'py>(py: Python<'py>, name: &str, args: impl PyCallArgs<'py>) -> PyResult<Bound<'py, PyAny>> {
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

/// PyTorch's module of derivatives in forward mode, if the program computes some now.
pub(crate) fn forward_mode(py: Python<'_>) -> PyResult<Option<&Bound<'_, PyAny>>> {
    static MODULE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let find = || Ok::<_, PyErr>(py.import("torch.autograd.forward_ad")?.into_any().unbind());
    let forward_ad = MODULE.get_or_try_init(py, find)?.bind(py);
    let level: i64 = forward_ad.getattr(intern!(py, "_current_level"))?.extract()?;
    Ok((level >= 0).then_some(forward_ad))
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
    match count.call1((PyTuple::new(py, tensors)?,)) {
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

/// Refuses NumPy's masked arrays, and PyTorch tensors that ask for derivatives while those are recorded, or whose
/// memory holds other values than they do; of others an alias, which holds their memory.
pub(crate) fn without_gradient<'py>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let Some(torch) = torch_of(object) else {
        if module_of(&MASKED, ("numpy.ma", "MaskedArray"), object).is_some() {
            return Err(type_(format!(
                "{name} is a masked array, whose mask attention would not see; give {name}.filled(...)"
            )));
        }
        return Ok(object.clone());
    };
    let py = object.py();
    if let Some(forward_ad) = forward_mode(py)? {
        let dual = forward_ad.call_method1(intern!(py, "unpack_dual"), (object,))?;
        if !dual.getattr(intern!(py, "tangent"))?.is_none() {
            return Err(unserved(format!(
                "{name} has a derivative in forward mode, which flashcore does not compute; give its primal, or use \
                 PyTorch's scaled_dot_product_attention with SDPBackend.MATH"
            )));
        }
    }
    // DLPack exports the memory and says nothing of the bit.
    if object.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
        return Err(value(format!(
            "{name} is a lazily negated view: its memory holds values of the other sign; give {name}.resolve_neg()"
        )));
    }
    if !object.getattr(intern!(py, "requires_grad"))?.is_truthy()? {
        return object.call_method0(intern!(py, "detach")); // holds its memory, whatever `object.data` becomes
    }
    if records_gradients(&torch)? {
        let instead = if matches!(name, "sinks" | "alibi_slopes" | "q_scale" | "k_scale" | "v_scale") {
            "its gradient is not computed: call"
        } else {
            "for gradients call flashcore_attn.flash_attn_interface.flash_attn_func, else call"
        };
        return Err(value(format!(
            "{name} requires a gradient, and flashcore_attn.attention computes the forward pass only; {instead} this under \
             torch.no_grad(), or give {name}.detach()"
        )));
    }
    object.call_method0("detach")
}

/// A PyTorch tensor of float8_e4m3fn as one of bytes, in the same memory: not every release exports
/// it through DLPack.
pub(crate) fn fp8_as_bytes<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(torch) = torch_of(object) else { return Ok(None) };
    match torch.getattr_opt(intern!(object.py(), "float8_e4m3fn"))? {
        Some(fp8) if object.getattr(intern!(object.py(), "dtype"))?.is(&fp8) => {
            object.call_method1("view", (torch.getattr("uint8")?,)).map(Some)
        }
        _ => Ok(None),
    }
}
