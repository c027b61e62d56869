//! Tensors of other libraries, imported through DLPack.

use dlpark::DlpackFlags;
use dlpark::python::{DlpackStream, ImportRequest, ImportedDlpack};
use flashcore::DType;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{type_, value};
use crate::foreign::{Foreign, Place, element_of};
use crate::frameworks::{python, torch_tensor};
use crate::stream::CallStream;

/// A tensor whose place is known; asking for its memory takes a stream of that place.
pub(crate) struct Request<'py> {
    pub(crate) name: &'static str,
    object: Bound<'py, PyAny>,
    request: ImportRequest<'py>,
    pub(crate) place: Place,
    /// It travels as bytes, and holds e4m3.
    fp8: bool,
}

impl<'py> Request<'py> {
    pub(crate) fn new(name: &'static str, object: &Bound<'py, PyAny>, fp8: bool) -> PyResult<Request<'py>> {
        let request = ImportRequest::new(object.as_borrowed()).map_err(|error| refused(name, object, error))?;
        // Bare capsules and objects without `__dlpack_device__` do not tell their device before
        // they are consumed.
        let Ok(device) = request.device() else {
            return Err(type_(format!(
                "{name} is a {}; it must be a tensor: any object with __dlpack__ and __dlpack_device__ (of PyTorch, JAX, \
                 CuPy, NumPy, ...)",
                type_name(object)
            )));
        };
        let (place, kind) = (Place::of(device), device.device_type.0);
        if place == Place::Other {
            return Err(value(format!(
                "{name} is on device {} of DLPack's kind {kind}; allowed are the CPU and CUDA devices",
                device.device_id
            )));
        }
        Ok(Request {
            name,
            object: object.clone(),
            request,
            place,
            fp8,
        })
    }

    /// Takes hold of the memory; work put into the stream from now on finds the values there.
    pub(crate) fn import(self, stream: Option<&CallStream>) -> PyResult<Imported> {
        let (name, place, fp8) = (self.name, self.place, self.fp8);
        let handle = self.take_hold(stream)?;
        let invalid = |error: dlpark::tensor::Error| value(format!("{name} is not a valid DLPack tensor: {error}"));
        let tensor = handle.validate().map_err(invalid)?;
        let strides = tensor.strides_or_compact().map_err(invalid)?;
        let element = if fp8 { element_of(DType::E4M3) } else { tensor.dtype() };
        let offset = usize::try_from(tensor.byte_offset()).unwrap_or(usize::MAX);
        // Wrapping: device pointers are only numbers to the host.
        let first = tensor.data_ptr().cast_mut().cast::<u8>().wrapping_add(offset);
        let (rank, pointers) = (tensor.shape().len(), [tensor.shape().as_ptr(), strides.as_ptr()]);
        // SAFETY: `validate` says that there are as many sizes, none negative, and as many strides.
        let foreign = unsafe { Foreign::new(name, rank, pointers, element, place, first) };
        if first.is_null() && !tensor.shape().contains(&0) {
            return Err(value(format!(
                "{name} has shape {:?} but no memory on {place}; while PyTorch traces a program, call \
                 flashcore_attn.flash_attn_interface.flash_attn_func",
                tensor.shape()
            )));
        }
        Ok(Imported { foreign, handle })
    }

    fn take_hold(self, stream: Option<&CallStream>) -> PyResult<ImportedDlpack> {
        let Request {
            name, object, request, ..
        } = self;
        let dlpack_stream = stream.map(|stream| stream as &dyn DlpackStream);
        let handle = match request.import(dlpack_stream, None) {
            // Producers from before DLPack 1.0 do not know the argument `max_version`.
            Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => import_unversioned(&object, stream),
            handle => handle,
        };
        handle.map_err(|error| refused(name, &object, error))
    }
}

fn import_unversioned(object: &Bound<'_, PyAny>, stream: Option<&CallStream>) -> PyResult<ImportedDlpack> {
    let kwargs = PyDict::new(object.py());
    if let Some(stream) = stream {
        kwargs.set_item("stream", stream.stream.as_raw().max(1))?; // the legacy default stream is 1, and 0 not allowed
    }
    let capsule = object.call_method("__dlpack__", (), Some(&kwargs))?;
    ImportRequest::new(capsule.as_borrowed())?.import(None, None)
}

/// A tensor whose memory is held until this value is dropped.
pub(crate) struct Imported {
    pub(crate) foreign: Foreign,
    handle: ImportedDlpack,
}

impl Imported {
    /// Checks that the tensor is neither read-only nor a copy that the caller would not see.
    pub(crate) fn check_writable(&self) -> PyResult<()> {
        let (flags, name) = (self.handle.flags(), self.foreign.name);
        let why = if flags.contains(DlpackFlags::READ_ONLY) {
            "is read-only"
        } else if flags.contains(DlpackFlags::IS_COPIED) {
            "would be written through a copy, which its owner would not see"
        } else {
            return Ok(());
        };
        Err(value(format!(
            "{name} {why}; give a tensor that can be written in place"
        )))
    }
}

/// A producer's own refusal, with the tensor's name before it.
fn refused(name: &str, object: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = object.py();
    let of_torch = torch_tensor(py).is_some_and(|class| object.is_instance(class).unwrap_or(false));
    let arguments = (name, type_name(object), error.value(py), of_torch);
    python(py, "refused", arguments).map_or_else(|error| error, PyErr::from_value)
}

/// `torch.Tensor`, `numpy.ndarray`, `list`, ...
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    let kind = object.get_type();
    kind.fully_qualified_name()
        .map_or_else(|_| "object".to_string(), |name| name.to_string())
}
