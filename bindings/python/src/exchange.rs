//! PyTorch's tensors through DLPack's C exchange table: views that own nothing, the current stream, and memory. Each
//! saves a call into Python, or an object.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};

use dlpark::Managed;
use dlpark::ffi::{
    DLDataType, DLDataTypeCode, DLDevice, DLManagedTensorVersioned, DLPACK_MAJOR_VERSION, DLPackExchangeAPI, DLTensor,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::frameworks::torch_tensor;
use crate::input::{DTYPES, I32, Input};
use crate::tensor::{dtype_of, place_of};

/// The table of `torch.Tensor`, and what is called of it.
pub(crate) struct Exchange {
    /// `torch.Tensor`: an object of a class derived from it may not be what its memory holds.
    class: Py<PyAny>,
    view: unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> c_int,
    table: &'static DLPackExchangeAPI,
}

// SAFETY: a table of functions that lives as long as the process and is not written.
unsafe impl Send for Exchange {}
// SAFETY: as above.
unsafe impl Sync for Exchange {}

/// A tensor of four dimensions, valid while the object it was taken of lives.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub(crate) dtype: DLDataType,
    pub(crate) device: DLDevice,
    pub(crate) shape: [i64; 4],
    pub(crate) strides: [i64; 4],
    pub(crate) first: *mut u8,
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
            view: table.dltensor_from_py_object_no_sync?,
            table,
        })
    }

    /// Whether an object is a `torch.Tensor`, and of no class derived from it.
    pub(crate) fn is_plain(&self, object: &Bound<'_, PyAny>) -> bool {
        object.get_type().is(&self.class)
    }

    /// What is known of a [plain](Exchange::is_plain) tensor; `None` where it does not have four dimensions, or
    /// memory that can be named.
    pub(crate) fn view(&self, object: &Bound<'_, PyAny>) -> Option<View> {
        let (tensor, first) = self.look(object)?;
        if tensor.ndim != 4 {
            return None;
        }
        // SAFETY: both point to as many numbers as there are dimensions, while the object lives.
        let (shape, strides) = unsafe { (*tensor.shape.cast::<[i64; 4]>(), *tensor.strides.cast::<[i64; 4]>()) };
        Some(View {
            dtype: tensor.dtype,
            device: tensor.device,
            shape,
            strides,
            first,
        })
    }

    /// The same with any number of dimensions, and int32 numbers, as operators take it.
    pub(crate) fn input(&self, object: &Bound<'_, PyAny>) -> Option<Input> {
        let (tensor, first) = self.look(object)?;
        let number = if tensor.dtype == DLDataType::scalar(DLDataTypeCode::INT, 32) {
            I32
        } else {
            let ours = dtype_of("", tensor.dtype).ok()?;
            DTYPES.iter().find(|(known, _)| *known == ours)?.1
        };
        let place = place_of("", tensor.device).ok();
        let (dims, shape, strides) = (tensor.ndim as usize, tensor.shape.cast(), tensor.strides.cast());
        // SAFETY: both point to as many numbers as there are dimensions, while the object lives.
        Some(unsafe { Input::new(dims, shape, strides, number, place, first) })
    }

    /// A tensor with strides, and the address of its first element.
    fn look(&self, object: &Bound<'_, PyAny>) -> Option<(DLTensor, *mut u8)> {
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
        let offset = usize::try_from(tensor.byte_offset).ok()?;
        Some((tensor, tensor.data.cast::<u8>().wrapping_add(offset)))
    }

    /// The handle of PyTorch's current stream on a device.
    pub(crate) fn current_stream(&self, py: Python<'_>, device: DLDevice) -> Option<usize> {
        let mut stream = null_mut();
        // SAFETY: it writes a pointer.
        let failed = unsafe { (self.table.current_work_stream?)(device.device_type, device.device_id, &mut stream) };
        if failed != 0 {
            drop(PyErr::take(py));
            return None;
        }
        Some(stream.addr())
    }

    /// Uninitialised bytes of PyTorch's allocator, which takes them back in the order of its current stream.
    pub(crate) fn allocate(&self, device: DLDevice, bytes: usize) -> Option<Managed<DLManagedTensorVersioned>> {
        unsafe extern "C" fn ignore(_: *mut c_void, _kind: *const c_char, _message: *const c_char) {}
        let (mut shape, mut strides) = ([i64::try_from(bytes).ok()?], [1]);
        let mut wanted = DLTensor {
            device,
            ndim: 1,
            dtype: DLDataType::U8,
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            ..DLTensor::default()
        };
        let mut made = null_mut();
        // SAFETY: the prototype is complete, and what is made is the caller's to free.
        let failed =
            unsafe { (self.table.managed_tensor_allocator?)(&mut wanted, &mut made, null_mut(), Some(ignore)) };
        if failed != 0 {
            return None;
        }
        // SAFETY: it was made just now.
        unsafe { Managed::from_raw(made) }.ok()
    }
}
