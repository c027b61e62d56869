//! Tensors of other libraries, imported through DLPack: where they are, what they hold, how they
//! are laid out.

use std::fmt;

use dlpark::DlpackFlags;
use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType};
use dlpark::python::{DlpackStream, ImportRequest, ImportedDlpack};
use flashcore::{DType, Layout, ProblemError, TensorView};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{type_, value};
use crate::exchange::View;
use crate::frameworks::{fp8_as_bytes, torch_tensor};
use crate::options::Axes;
use crate::stream::CallStream;

/// Where a tensor's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Cpu,
    Cuda(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Cpu => f.write_str("cpu"),
            Place::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

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
    pub(crate) fn new(name: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Request<'py>> {
        let bytes = fp8_as_bytes(object)?;
        let fp8 = bytes.is_some();
        let object = bytes.as_ref().unwrap_or(object);
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
        Ok(Request {
            name,
            object: object.clone(),
            request,
            place: place_of(name, device)?,
            fp8,
        })
    }

    /// Takes hold of the memory; work put into the stream from now on finds the values there.
    pub(crate) fn import(self, stream: Option<&CallStream>, axes: Axes) -> PyResult<Tensor> {
        let (name, place, fp8) = (self.name, self.place, self.fp8);
        Tensor::new(name, self.take_hold(stream)?, place, axes, fp8)
    }

    /// The same for values of heads.
    pub(crate) fn import_values(self, stream: Option<&CallStream>, expected: &Expected) -> PyResult<Values> {
        Values::new(self.name, self.take_hold(stream)?, expected)
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
        kwargs.set_item("stream", stream.dlpack_number())?;
    }
    let capsule = object.call_method("__dlpack__", (), Some(&kwargs))?;
    ImportRequest::new(capsule.as_borrowed())?.import(None, None)
}

/// A tensor's memory, held until this value is dropped.
pub(crate) struct Tensor {
    pub(crate) name: &'static str,
    pub(crate) place: Place,
    pub(crate) dtype: DType,
    /// As `[batch, seq, heads, head_dim]`, whatever the caller's order.
    pub(crate) layout: Layout,
    /// Keeps the memory; a tensor that was only looked at has an object of the caller's for that.
    handle: Option<ImportedDlpack>,
    first: *mut u8,
}

impl Tensor {
    fn new(name: &'static str, handle: ImportedDlpack, place: Place, axes: Axes, fp8: bool) -> PyResult<Tensor> {
        let invalid = |error: dlpark::tensor::Error| value(format!("{name} is not a valid DLPack tensor: {error}"));
        let (dtype, layout, first) = {
            let tensor = handle.validate().map_err(invalid)?;
            let dtype = if fp8 {
                DType::E4M3
            } else {
                dtype_of(name, tensor.dtype())?
            };
            let (Ok(shape), Ok(strides)) = (
                <[i64; 4]>::try_from(tensor.shape()),
                <[i64; 4]>::try_from(&*tensor.strides_or_compact().map_err(invalid)?),
            ) else {
                return Err(value(format!(
                    "{name} has {} dimensions, shape {:?}; it must have 4: {}",
                    tensor.ndim(),
                    tensor.shape(),
                    axes.names()
                )));
            };
            let first = first_byte(name, tensor.data_ptr(), tensor.byte_offset())?;
            (dtype, layout_of(axes.reorder(shape), axes.reorder(strides)), first)
        };
        if first.is_null() && layout.num_elements() > 0 {
            return Err(value(format!(
                "{name} has shape {:?} but no memory on {place}; while PyTorch traces a program, call \
                 flashcore_attn.flash_attn_interface.flash_attn_func",
                layout.shape
            )));
        }
        Ok(Tensor {
            name,
            place,
            dtype,
            layout,
            handle: Some(handle),
            first,
        })
    }

    /// A tensor that was looked at, of float32, float16 or bfloat16 and with elements.
    pub(crate) fn of_view(name: &'static str, view: &View, axes: Axes) -> Option<Tensor> {
        let dtype = dtype_of(name, view.dtype).ok().filter(|dtype| *dtype != DType::E4M3)?;
        let layout = layout_of(axes.reorder(view.shape), axes.reorder(view.strides));
        (layout.num_elements() > 0 && !view.first.is_null()).then_some(Tensor {
            name,
            place: place_of(name, view.device).ok()?,
            dtype,
            layout,
            handle: None,
            first: view.first,
        })
    }

    pub(crate) fn address(&self) -> u64 {
        self.first.addr() as u64
    }

    pub(crate) fn span_bytes(&self) -> usize {
        self.layout.span() * self.dtype.size_bytes()
    }

    /// Whether the two tensors' first-to-last ranges of bytes share any.
    pub(crate) fn overlaps(&self, other: &Tensor) -> bool {
        let end = |tensor: &Tensor| tensor.address() + tensor.span_bytes() as u64;
        self.address() < end(other) && other.address() < end(self)
    }

    /// Checks that the tensor is neither read-only nor a copy that the caller would not see.
    pub(crate) fn check_writable(&self) -> PyResult<()> {
        let Some(handle) = &self.handle else { return Ok(()) };
        let flags = handle.flags();
        let why = if flags.contains(DlpackFlags::READ_ONLY) {
            "is read-only"
        } else if flags.contains(DlpackFlags::IS_COPIED) {
            "would be written through a copy, which its owner would not see"
        } else {
            return Ok(());
        };
        Err(value(format!(
            "{} {why}; give a tensor that can be written in place",
            self.name
        )))
    }

    /// A tensor in host memory, to be read.
    ///
    /// # Safety
    /// The layout has been checked ([`Layout::check`]), the tensor lies in host memory, and nothing
    /// writes to it while the view lives.
    pub(crate) unsafe fn view(&self) -> Result<TensorView<'_>, ProblemError> {
        // SAFETY: by DLPack's contract `first` begins an allocation that holds every element the
        // shape and strides reach, for as long as `handle` lives; strides are not negative, so that
        // is `span_bytes` from `first` on.
        let bytes = unsafe { std::slice::from_raw_parts(self.first, self.span_bytes()) };
        TensorView::new(self.name, self.dtype, self.layout, bytes)
    }

    /// The bytes of a tensor in host memory, to be written.
    ///
    /// # Safety
    /// As [`Tensor::view`]; and the tensor is writable, and nothing else reads it either.
    pub(crate) unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `view`.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.span_bytes()) }
    }
}

/// What values of heads must be.
pub(crate) struct Expected {
    pub(crate) dtypes: &'static [DType],
    /// In words.
    pub(crate) dtype: &'static str,
    /// Numbers of dimensions.
    pub(crate) dims: &'static [usize],
    /// In words.
    pub(crate) shape: &'static str,
}

/// Values of heads, such as scales: dense, held until this value is dropped.
pub(crate) struct Values {
    pub(crate) name: &'static str,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// Keeps the memory.
    _handle: ImportedDlpack,
    first: *mut u8,
}

impl Values {
    fn new(name: &'static str, handle: ImportedDlpack, expected: &Expected) -> PyResult<Values> {
        let invalid = |error: dlpark::tensor::Error| value(format!("{name} is not a valid DLPack tensor: {error}"));
        let (dtype, shape, first) = {
            let tensor = handle.validate().map_err(invalid)?;
            let dtype = dtype_of(name, tensor.dtype()).ok();
            let Some(dtype) = dtype.filter(|dtype| expected.dtypes.contains(dtype)) else {
                return Err(type_(format!(
                    "{name} holds {}; it must hold {}",
                    dtype_words(tensor.dtype()),
                    expected.dtype
                )));
            };
            let shape = tensor.shape();
            if !expected.dims.contains(&shape.len()) {
                return Err(value(format!(
                    "{name} has shape {shape:?}; it must be {}",
                    expected.shape
                )));
            }
            let strides = tensor.strides_or_compact().map_err(invalid)?;
            let mut dense = 1;
            let is_dense = shape.iter().zip(&*strides).rev().all(|(&n, &stride)| {
                // A stride that is never taken says nothing.
                let fits = n == 1 || stride == dense;
                dense *= n;
                fits
            });
            if !is_dense {
                return Err(value(format!(
                    "{name} has strides {:?} for shape {shape:?}; its elements lie one after another, so make it \
                     .contiguous()",
                    &*strides
                )));
            }
            // `validate` has refused negative sizes.
            let shape = shape.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect();
            (dtype, shape, first_byte(name, tensor.data_ptr(), tensor.byte_offset())?)
        };
        let size = dtype.size_bytes();
        if first.addr() % size != 0 {
            return Err(value(format!(
                "{name}'s memory is not at a multiple of {size} bytes; copy it"
            )));
        }
        Ok(Values {
            name,
            dtype,
            shape,
            _handle: handle,
            first,
        })
    }

    pub(crate) fn address(&self) -> u64 {
        self.first.addr() as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }

    /// Those of float32.
    ///
    /// # Safety
    /// They lie in host memory, and nothing writes to them while the slice lives.
    pub(crate) unsafe fn host_values(&self) -> &[f32] {
        // SAFETY: the caller's part.
        bytemuck::try_cast_slice(unsafe { self.host_bytes() }).unwrap_or_default()
    }

    /// # Safety
    /// As [`Values::host_values`].
    pub(crate) unsafe fn host_bytes(&self) -> &[u8] {
        if self.first.is_null() {
            return &[];
        }
        // SAFETY: by DLPack's contract `first` begins an allocation that holds as many elements as
        // the shape says, dense, for as long as the handle lives; `new` has checked dtype, strides
        // and alignment.
        unsafe { std::slice::from_raw_parts(self.first, self.bytes()) }
    }
}

/// The first element's address. Wrapping: device pointers are only numbers to the host.
fn first_byte(name: &str, data: *const std::ffi::c_void, byte_offset: u64) -> PyResult<*mut u8> {
    let offset =
        usize::try_from(byte_offset).map_err(|_| value(format!("{name}'s byte offset {byte_offset} is too large")))?;
    Ok(data.cast_mut().cast::<u8>().wrapping_add(offset))
}

/// A layout with canonical strides where a dimension has one index: DLPack lets producers write
/// anything there (PyTorch writes 1), which kernels that want aligned rows would refuse.
pub(crate) fn layout_of(shape: [i64; 4], mut strides: [i64; 4]) -> Layout {
    // `validate` has refused negative sizes.
    let shape = shape.map(|n| usize::try_from(n).unwrap_or(0));
    let dense = Layout::bshd(shape).strides;
    for dim in 0..4 {
        if shape[dim] == 1 {
            strides[dim] = dense[dim];
        }
    }
    Layout { shape, strides }
}

pub(crate) fn place_of(name: &str, device: DLDevice) -> PyResult<Place> {
    let kind = device.device_type;
    if kind == DLDeviceType::CPU || kind == DLDeviceType::CUDAHOST {
        return Ok(Place::Cpu);
    }
    match u32::try_from(device.device_id) {
        Ok(ordinal) if kind == DLDeviceType::CUDA || kind == DLDeviceType::CUDAMANAGED => Ok(Place::Cuda(ordinal)),
        _ => Err(value(format!(
            "{name} is on device {} of DLPack's kind {}; allowed are the CPU and CUDA devices",
            device.device_id, kind.0
        ))),
    }
}

pub(crate) fn dtype_of(name: &str, dtype: DLDataType) -> PyResult<DType> {
    for (known, ours) in [
        (DLDataType::scalar(DLDataTypeCode::FLOAT, 16), DType::F16),
        (DLDataType::scalar(DLDataTypeCode::BFLOAT, 16), DType::BF16),
        (DLDataType::F32, DType::F32),
        (DLDataType::F8E4M3FN, DType::E4M3),
    ] {
        if dtype == known {
            return Ok(ours);
        }
    }
    Err(type_(format!(
        "{name} holds {}; allowed are float16, bfloat16, float32 and float8_e4m3fn",
        dtype_words(dtype)
    )))
}

fn dtype_words(dtype: DLDataType) -> String {
    match dtype.code {
        DLDataTypeCode::INT => format!("int{}", dtype.bits),
        DLDataTypeCode::UINT => format!("uint{}", dtype.bits),
        DLDataTypeCode::FLOAT => format!("float{}", dtype.bits),
        DLDataTypeCode::COMPLEX => format!("complex{}", dtype.bits),
        DLDataTypeCode::BOOL => "bool".to_string(),
        code => format!("elements of {} bits (DLPack's type code {})", dtype.bits, code.0),
    }
}

/// A producer's own refusal, with the tensor's name before it.
fn refused(name: &str, object: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = object.py();
    let error_text = error.to_string();
    let of_torch = torch_tensor(py).is_some_and(|class| object.is_instance(class).unwrap_or(false));
    let message = format!(
        "{name} ({}) does not give its memory through DLPack: {}{}",
        type_name(object),
        // PyTorch adds the frames of its C++.
        error_text.lines().next().unwrap_or_default(),
        if of_torch {
            "; flashcore_attn.flash_attn_interface.flash_attn_func takes PyTorch's traced and wrapped tensors"
        } else {
            ""
        }
    );
    let raised = if error.is_instance_of::<PyTypeError>(py) {
        type_(message)
    } else {
        value(message)
    };
    raised.set_cause(py, Some(error));
    raised
}

/// `torch.Tensor`, `numpy.ndarray`, `list`, ...
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    let kind = object.get_type();
    kind.fully_qualified_name()
        .map_or_else(|_| "object".to_string(), |name| name.to_string())
}
