//! libtorch's stable C interface, found at run time in the process that has imported PyTorch.
//!
//! Nothing is linked, so one wheel serves every PyTorch that has these functions, and none. Their
//! contracts are those of PyTorch's header `torch/csrc/inductor/aoti_torch/c/shim.h`.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use libloading::Library;

use crate::error::Error;
use crate::foreign::{Foreign, Place, element_of_torch, torch_number};
use crate::table::Operator;

/// A tensor or a library of operators.
type Handle = *mut c_void;

/// An operator's arguments, replaced by its results: numbers by their bits, tensors by handles.
pub(crate) type Kernel = unsafe extern "C-unwind" fn(stack: *mut u64, inputs: u64, outputs: u64);

/// PyTorch's numbers for kinds of devices.
const CPU: i32 = 0;
const CUDA: i32 = 1;

/// A table of functions whose names in libtorch begin with `aoti_torch_`.
macro_rules! functions {
    ($table:ident { $($name:ident($($arg:ty),*) $(-> $ret:ty)?;)* }) => {
        struct $table { $($name: unsafe extern "C-unwind" fn($($arg),*) $(-> $ret)?,)* }

        impl $table {
            fn load(library: &Library) -> Result<$table, Error> {
                Ok($table { $($name: {
                    let name = concat!("aoti_torch_", stringify!($name));
                    // SAFETY: the type is that of PyTorch's header, whose functions do not change.
                    let found = unsafe { library.get(name.as_bytes()) };
                    *found.map_err(|_| format!("this PyTorch has no {name}, which operators need; use 2.11"))?
                },)* })
            }
        }
    };
}

functions! { Functions {
    library_init_fragment(*const c_char, *const c_char, u32, *mut Handle) -> i32;
    library_init_impl(*const c_char, *const c_char, *const c_char, u32, *mut Handle) -> i32;
    library_def(Handle, *const c_char) -> i32;
    library_impl(Handle, *const c_char, Kernel) -> i32;
    get_data_ptr(Handle, *mut *mut c_void) -> i32;
    get_dim(Handle, *mut i64) -> i32;
    get_sizes(Handle, *mut *const i64) -> i32;
    get_strides(Handle, *mut *const i64) -> i32;
    get_dtype(Handle, *mut i32) -> i32;
    get_device_type(Handle, *mut i32) -> i32;
    get_device_index(Handle, *mut i32) -> i32;
    empty_strided(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> i32;
    delete_tensor_object(Handle) -> i32;
    zero_(Handle) -> i32;
    grad_mode_is_enabled() -> bool;
    check(bool, *const c_char, *const c_char, u32, *const c_char);
    warn(*const c_char, *const c_char, u32, *const c_char);
} }

functions! { CudaFunctions {
    get_current_cuda_stream(i32, *mut *mut c_void) -> i32;
} }

/// Writes the number of threads that PyTorch's own kernels have.
type GetNumThreads = unsafe extern "C-unwind" fn(*mut u32) -> i32;

/// PyTorch's functions.
pub(crate) struct Libtorch {
    functions: Functions,
    cuda: Option<CudaFunctions>,
    /// Releases before 2.10 have none.
    get_num_threads: Option<GetNumThreads>,
}

/// PyTorch's function for the message of what failed last on this thread, since 2.13; before, it prints that.
type What = unsafe extern "C-unwind" fn() -> *const c_char;
static WHAT: OnceLock<What> = OnceLock::new();

/// The error of a function that failed just now.
fn failed(name: &str) -> Error {
    // SAFETY: the function has no arguments.
    let why = WHAT.get().map(|what| unsafe { what() }).filter(|why| !why.is_null());
    match why {
        // SAFETY: a string that ends with 0 and lasts until the next exception of this thread.
        Some(why) => unsafe { CStr::from_ptr(why) }.to_string_lossy().trim_end().into(),
        None => format!("{name} failed; PyTorch has printed why").into(),
    }
}

/// Calls a function that returns whether it failed.
macro_rules! call {
    ($table:expr, $name:ident($($arg:expr),*)) => {
        // SAFETY: handles are alive, pointers point to what the header asks for, and names end with 0.
        match unsafe { ($table.$name)($($arg),*) } {
            0 => Ok(()),
            _ => Err(failed(concat!("aoti_torch_", stringify!($name)))),
        }
    };
}

impl Libtorch {
    /// Finds the functions in the libraries at these paths, which the process has loaded. They stay
    /// loaded. The one of CUDA need not be there.
    pub(crate) fn find(path: &Path, cuda_path: &Path) -> Result<Libtorch, Error> {
        let open = |path: &Path| {
            // SAFETY: PyTorch's import has run the initialisers of its libraries already.
            let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
            Ok::<_, Error>(&*Box::leak(Box::new(library)))
        };
        let library = open(path)?;
        let functions = Functions::load(library)?;
        // SAFETY: the type is that of PyTorch's header.
        if let Ok(what) = unsafe { library.get::<What>(b"torch_exception_get_what_without_backtrace") } {
            WHAT.get_or_init(|| *what);
        }
        let cuda = cuda_path
            .exists()
            .then(|| CudaFunctions::load(open(cuda_path)?))
            .transpose()?;
        // SAFETY: the type is that of PyTorch's header `torch/csrc/stable/c/shim.h`.
        let get_num_threads = unsafe { library.get::<GetNumThreads>(b"torch_get_num_threads") };
        Ok(Libtorch {
            functions,
            cuda,
            get_num_threads: get_num_threads.ok().map(|found| *found),
        })
    }

    /// Adds operators to a namespace, each a schema with its kernel for CPU tensors, and CUDA tensors
    /// where PyTorch has CUDA.
    pub(crate) fn register(&self, namespace: &CStr, operators: &[(&Operator, Kernel)]) -> Result<(), Error> {
        let (file, mut library) = (c"flashcore", null_mut());
        call!(
            self.functions,
            library_init_fragment(namespace.as_ptr(), file.as_ptr(), 0, &mut library)
        )?;
        for (operator, _) in operators {
            let schema = CString::new(operator.schema()).unwrap_or_default(); // the table has no zeros
            call!(self.functions, library_def(library, schema.as_ptr()))?;
        }
        for key in [Some(c"CPU"), self.cuda.is_some().then_some(c"CUDA")]
            .into_iter()
            .flatten()
        {
            call!(
                self.functions,
                library_init_impl(namespace.as_ptr(), key.as_ptr(), file.as_ptr(), 0, &mut library)
            )?;
            for (operator, kernel) in operators {
                let name = CString::new(operator.name).unwrap_or_default();
                call!(self.functions, library_impl(library, name.as_ptr(), *kernel))?;
            }
        }
        Ok(()) // libraries stay registered while their handles, which nothing frees, live
    }

    /// Raises a C++ exception, which PyTorch turns into Python's `RuntimeError`.
    pub(crate) fn raise(&self, message: &str) {
        let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the strings end with 0; the exception unwinds through frames that allow it.
        unsafe { (self.functions.check)(false, c"".as_ptr(), c"".as_ptr(), 0, message.as_ptr()) };
    }

    /// Warns through PyTorch: Python's `UserWarning`, or standard error where Python does not listen.
    pub(crate) fn warn(&self, message: &str) {
        let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
        // SAFETY: as in `raise`; an exception is a warning that the user made an error.
        unsafe { (self.functions.warn)(c"".as_ptr(), c"flashcore".as_ptr(), 0, message.as_ptr()) };
    }

    /// Whether gradients of what is computed may be asked for later.
    pub(crate) fn records_gradients(&self) -> bool {
        // SAFETY: it reads a flag of this thread.
        unsafe { (self.functions.grad_mode_is_enabled)() }
    }

    /// How many threads PyTorch's own kernels have in a call from this thread, if it says so.
    pub(crate) fn num_threads(&self) -> Option<usize> {
        let mut threads = 0;
        // SAFETY: it writes a number.
        let failed = unsafe { (self.get_num_threads?)(&mut threads) };
        (failed == 0 && threads > 0).then_some(threads as usize)
    }

    /// The handle of PyTorch's current stream on a device.
    pub(crate) fn current_stream(&self, ordinal: u32) -> Result<usize, Error> {
        let cuda = self.cuda.as_ref().ok_or("this PyTorch has no CUDA")?;
        let mut stream = null_mut();
        call!(cuda, get_current_cuda_stream(ordinal as i32, &mut stream))?;
        Ok(stream.addr())
    }

    /// Uninitialised memory for a tensor. Python makes an error that says "out of memory" `torch.OutOfMemoryError`.
    pub(crate) fn empty(&self, like: &Foreign) -> Result<Tensor<'_>, Error> {
        let (kind, index) = match like.place {
            Place::Cuda(ordinal) => (CUDA, ordinal as i32), // a number of PyTorch's
            _ => (CPU, 0),
        };
        let (rank, shape, dtype) = (like.rank as i64, like.shape.as_ptr(), torch_number(like.element));
        let (strides, mut handle) = (like.strides.as_ptr(), null_mut());
        let made = call!(
            self.functions,
            empty_strided(rank, shape, strides, dtype, kind, index, &mut handle)
        );
        made.map_err(|why| {
            let (place, shape, size) = (like.place, like.sizes(), i64::from(like.element.bits / 8));
            let bytes = shape.iter().fold(size, |bytes, &n| bytes.saturating_mul(n));
            let is_silent = kind == CUDA && WHAT.get().is_none();
            let likely = if is_silent {
                ", most likely that the device is out of memory"
            } else {
                ""
            };
            Error::NoMemory(format!(
                "cannot allocate {bytes} bytes on {place} for a tensor of shape {shape:?}: {why}{likely}"
            ))
        })?;
        Ok(Tensor { torch: self, handle })
    }

    /// The same with where it is.
    pub(crate) fn allocate(&self, like: Foreign) -> Result<(Tensor<'_>, Foreign), Error> {
        let tensor = self.empty(&like)?;
        let first = tensor.first()?;
        Ok((tensor, Foreign { first, ..like }))
    }

    /// Takes over a tensor from an operator's stack.
    ///
    /// # Safety
    /// It is an owned handle, taken over once.
    pub(crate) unsafe fn take(&self, from_stack: u64) -> Tensor<'_> {
        let handle = std::ptr::with_exposed_provenance_mut(from_stack as usize);
        Tensor { torch: self, handle }
    }
}

/// A reference to a tensor, given back when dropped.
pub(crate) struct Tensor<'a> {
    torch: &'a Libtorch,
    pub(crate) handle: Handle,
}

// SAFETY: PyTorch counts a tensor's references with atomics, and any thread may read where it is and free it.
unsafe impl Send for Tensor<'_> {}
// SAFETY: as above.
unsafe impl Sync for Tensor<'_> {}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        // SAFETY: an owned handle, and nothing uses it after this.
        unsafe { (self.torch.functions.delete_tensor_object)(self.handle) };
    }
}

impl Tensor<'_> {
    /// The handle for an operator's stack, whose owner it becomes.
    pub(crate) fn into_stack(self) -> u64 {
        std::mem::ManuallyDrop::new(self).handle.expose_provenance() as u64
    }

    /// The first element's address; a number only, where it is device memory.
    pub(crate) fn first(&self) -> Result<*mut u8, Error> {
        let mut first = null_mut();
        call!(self.torch.functions, get_data_ptr(self.handle, &mut first))?;
        Ok(first.cast())
    }

    /// Writes zeros to all of it.
    pub(crate) fn zero(&self) -> Result<(), Error> {
        call!(self.torch.functions, zero_(self.handle))
    }

    /// What is known of it. Sizes of more than four dimensions are left out: no operator takes as many.
    pub(crate) fn foreign(&self, name: &'static str) -> Result<Foreign, Error> {
        let (f, tensor) = (&self.torch.functions, self.handle);
        let (mut rank, mut dtype, mut kind, mut index) = (0, 0, 0, 0);
        let (mut sizes, mut steps) = (null(), null());
        call!(f, get_dim(tensor, &mut rank))?;
        call!(f, get_sizes(tensor, &mut sizes))?;
        // SAFETY: as many numbers as there are dimensions.
        if rank == 1 && unsafe { *sizes } == 0 {
            return Ok(Foreign {
                name,
                ..Foreign::ABSENT
            });
        }
        call!(f, get_strides(tensor, &mut steps))?;
        call!(f, get_dtype(tensor, &mut dtype))?;
        call!(f, get_device_type(tensor, &mut kind))?;
        call!(f, get_device_index(tensor, &mut index))?;
        let place = match u32::try_from(index) {
            _ if kind == CPU => Place::Cpu,
            Ok(ordinal) if kind == CUDA => Place::Cuda(ordinal),
            _ => Place::Other,
        };
        let (element, first) = (element_of_torch(dtype), self.first()?);
        // SAFETY: both point to as many numbers as there are dimensions, while the tensor lives.
        Ok(unsafe { Foreign::new(name, rank as usize, [sizes, steps], element, place, first) })
    }
}
