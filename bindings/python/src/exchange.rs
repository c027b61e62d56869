//! PyTorch's tensors through DLPack's C exchange table: views that own nothing, without an object or a call into
//! Python.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};

use dlpark::ffi::{DLPACK_MAJOR_VERSION, DLPackExchangeAPI, DLTensor};
use pyo3::ffi::{PyObject, PyObject_CallFunctionObjArgs};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::foreign::{Foreign, Place};
use crate::frameworks::torch_tensor;

/// Calls a function with one argument, without the tuple that pyo3 makes of it.
pub(crate) fn call_with<'py>(
    function: &Bound<'py, PyAny>,
    argument: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let end = null_mut::<PyObject>();
    // SAFETY: objects that are alive, and the end of arguments; a new reference, or none and an error.
    unsafe {
        let made = PyObject_CallFunctionObjArgs(function.as_ptr(), argument.as_ptr(), end);
        Bound::from_owned_ptr_or_err(function.py(), made)
    }
}

/// What is called of the table of `torch.Tensor`.
pub(crate) struct Exchange {
    /// `torch.Tensor`: an object of a class derived from it may not be what its memory holds.
    class: Py<PyAny>,
    is_neg: Py<PyAny>,
    view: unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> c_int,
}

impl Exchange {
    /// PyTorch's, if it is imported and has one.
    pub(crate) fn of_torch(py: Python<'_>) -> Option<&'static Exchange> {
        static FOUND: PyOnceLock<Option<Exchange>> = PyOnceLock::new();
        if let Some(found) = FOUND.get(py) {
            return found.as_ref();
        }
        let class = torch_tensor(py)?;
        FOUND.get_or_init(py, || Exchange::find(class)).as_ref()
    }

    fn find(class: &Bound<'_, PyAny>) -> Option<Exchange> {
        let capsule = class.getattr("__dlpack_c_exchange_api__").ok()?;
        // SAFETY: a call of Python's on an object; it says that this is no such capsule by an error.
        let table = unsafe { pyo3::ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dlpack_exchange_api".as_ptr()) };
        let Some(table) = NonNull::new(table.cast::<DLPackExchangeAPI>()) else {
            drop(PyErr::take(class.py()));
            return None;
        };
        // SAFETY: DLPack says that the table lives as long as the process, and begins with its version.
        let table: &'static DLPackExchangeAPI = unsafe { table.as_ref() };
        if table.header.version.major != DLPACK_MAJOR_VERSION {
            return None;
        }
        Some(Exchange {
            class: class.clone().unbind(),
            is_neg: class.getattr("is_neg").ok()?.unbind(),
            view: table.dltensor_from_py_object_no_sync?,
        })
    }

    /// What is known of a `torch.Tensor` of no class derived from it whose memory holds its values; `None` for others,
    /// and if it requires a gradient and may not. `holds_its_values`: that is known, since asking takes 0.1 us.
    pub(crate) fn plain(
        &self,
        name: &'static str,
        object: &Bound<'_, PyAny>,
        holds_its_values: bool,
        may_require_gradients: bool,
    ) -> PyResult<Option<Foreign>> {
        let py = object.py();
        if !object.get_type().is(&self.class)
            || (!holds_its_values && call_with(self.is_neg.bind(py), object)?.is_truthy()?)
            || (!may_require_gradients && object.getattr(intern!(py, "requires_grad"))?.is_truthy()?)
        {
            return Ok(None);
        }
        Ok(self.foreign(name, object))
    }

    /// What is known of a tensor of PyTorch; `None` where it has no strides, or no memory that can be named.
    pub(crate) fn foreign(&self, name: &'static str, object: &Bound<'_, PyAny>) -> Option<Foreign> {
        let mut tensor = DLTensor::default();
        // SAFETY: the object is of the class that the table was found at, or of one derived from it.
        let failed = unsafe { (self.view)(object.as_ptr().cast(), &mut tensor) };
        if failed != 0 {
            drop(PyErr::take(object.py()));
            return None;
        }
        if tensor.ndim < 0 || tensor.strides.is_null() {
            return None;
        }
        let first = tensor
            .data
            .cast::<u8>()
            .wrapping_add(usize::try_from(tensor.byte_offset).ok()?);
        let (rank, place) = (tensor.ndim as usize, Place::of(tensor.device));
        let pointers = [tensor.shape.cast_const(), tensor.strides.cast_const()];
        // SAFETY: both point to as many numbers as there are dimensions, while the object lives.
        Some(unsafe { Foreign::new(name, rank, pointers, tensor.dtype, place, first) })
    }
}
