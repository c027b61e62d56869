//! Kernels: their attributes, their launches.

use std::ffi::{CString, c_void};
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex};

use flashcore_ir::Launch;

use crate::context::{Context, lock};
use crate::error::{CallError, CudaError, LaunchFailure};
use crate::explain;
use crate::memory::DeviceSlice;
use crate::module::Module;
use crate::proof::{self, FunctionAttributes, LaunchShape};
use crate::ptx::Entry;
use crate::raw::{Handle, LaunchCall};
use crate::refusal::LaunchRefusal;
use crate::status::is_fault;
use crate::stream::Stream;
use crate::sys::{CUfunc_st, CUmodule, function_attribute as attribute, status};
use crate::table::HeldTables;
use crate::tensor_map::TensorMap;

/// One argument of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum KernelArg<'a> {
    /// The address of a piece of device memory.
    Slice(DeviceSlice<'a>),
    /// A 32-bit unsigned integer.
    U32(u32),
    /// A 32-bit signed integer.
    I32(i32),
    /// A 64-bit unsigned integer.
    U64(u64),
    /// A 64-bit signed integer.
    I64(i64),
    /// A 32-bit float.
    F32(f32),
    /// A tensor map, passed by value.
    TensorMap(TensorMap),
}

impl KernelArg<'_> {
    /// Bytes of the kernel parameter it is for.
    fn bytes(&self) -> u32 {
        match self {
            Self::U32(_) | Self::I32(_) | Self::F32(_) => 4,
            Self::Slice(_) | Self::U64(_) | Self::I64(_) => 8,
            Self::TensorMap(_) => 128,
        }
    }

    /// Where the driver reads the value.
    fn value(&self) -> *mut c_void {
        let value: *const c_void = match self {
            Self::Slice(slice) => ptr::from_ref(slice.address_ref()).cast(),
            Self::U32(value) => ptr::from_ref(value).cast(),
            Self::I32(value) => ptr::from_ref(value).cast(),
            Self::U64(value) => ptr::from_ref(value).cast(),
            Self::I64(value) => ptr::from_ref(value).cast(),
            Self::F32(value) => ptr::from_ref(value).cast(),
            Self::TensorMap(map) => ptr::from_ref(&map.0).cast(),
        };
        // The driver only reads it; its signature is older than const.
        value.cast_mut()
    }
}

/// A kernel of a loaded module. Keeps the module loaded; cheap to clone.
#[derive(Clone)]
pub struct Function {
    module: Module,
    index: usize,
}

/// A kernel as its module holds it.
pub(crate) struct LoadedFunction {
    pub(crate) name: Arc<str>,
    pub(crate) attributes: FunctionAttributes,
    handle: Handle<CUfunc_st>,
    entry: Entry,
    /// Dynamic shared memory it has been opted in for, bytes.
    opted_in: Mutex<u32>,
}

impl LoadedFunction {
    pub(crate) fn load(context: &Context, module: CUmodule, entry: Entry) -> Result<Self, CudaError> {
        let name = CString::new(entry.name.as_str()).map_err(|_| CudaError::ZeroByte {
            what: "a kernel's name",
        })?;
        let (handle, attributes) = context.call(|driver| {
            let handle = driver.module_function(module, &name)?;
            // Only saves the first launch from loading; if it fails, that launch will say so.
            let _ = driver.function_load(handle);
            let get = |attribute| driver.function_attribute(handle, attribute);
            let attributes = FunctionAttributes {
                registers: get(attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
                local_bytes: get(attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
                static_shared_bytes: get(attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
                constant_bytes: get(attribute::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)?,
                max_threads_per_block: get(attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
                binary_version: get(attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
                ptx_version: get(attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION)?,
            };
            Ok((handle, attributes))
        })?;
        let name = Arc::from(entry.name.as_str());
        Ok(Self {
            name,
            attributes,
            handle: Handle(handle),
            entry,
            opted_in: Mutex::new(0),
        })
    }
}

impl Function {
    pub(crate) fn new(module: Module, index: usize) -> Self {
        Self { module, index }
    }

    fn loaded(&self) -> &LoadedFunction {
        &self.module.loaded().functions[self.index]
    }

    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.loaded().name
    }

    /// What the driver says about it.
    pub fn attributes(&self) -> &FunctionAttributes {
        &self.loaded().attributes
    }

    /// Its module.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Whether a launch of this shape is within what device and kernel allow, without launching.
    ///
    /// # Errors
    /// [`CudaError::Launch`] with the limit that is passed.
    pub fn prove(&self, shape: &LaunchShape) -> Result<(), CudaError> {
        let loaded = self.loaded();
        proof::prove(
            shape,
            &loaded.entry,
            &loaded.attributes,
            &self.module.context().info().limits,
        )
        .map_err(|refusal| self.refuse(refusal))
    }

    /// Proves that the arguments have the sizes of the kernel's parameters.
    pub(crate) fn prove_arguments(&self, arguments: &[KernelArg<'_>]) -> Result<(), CudaError> {
        let sizes: Vec<u32> = arguments.iter().map(KernelArg::bytes).collect();
        proof::prove_arguments(&self.loaded().entry, &sizes).map_err(|refusal| self.refuse(refusal))
    }

    /// Puts the tables of a launch on the device ([`flashcore_ir::Arg::Table`]), and keeps them there while the answer lives: then
    /// [`prepare`](Self::prepare) finds them, which may be while a stream is captured.
    ///
    /// # Errors
    /// A call error: `OUT_OF_MEMORY`, or that this thread captures a stream.
    pub fn hold_tables(&self, launch: &Launch) -> Result<HeldTables, CudaError> {
        let context = self.module.context();
        let tables = launch.tables().map(|table| context.tables().get(context, table));
        Ok(HeldTables::new(context, tables.collect::<Result<_, _>>()?))
    }

    /// Enqueues the kernel. Returns at once; a fault shows at a later synchronisation.
    ///
    /// # Errors
    /// [`CudaError::Launch`] if the launch cannot work; [`CudaError::LaunchFailed`] with an explanation if
    /// the driver refuses it; [`CudaError::OtherDevice`] for a stream or memory of another device.
    ///
    /// # Safety
    /// The kernel, run with these arguments, touches only memory that is alive until it ends and that the
    /// caller means it to touch. (Numbers and sizes of arguments are checked against its PTX.)
    #[allow(unsafe_code)]
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        shape: &LaunchShape,
        arguments: &[KernelArg<'_>],
    ) -> Result<(), CudaError> {
        let loaded = self.loaded();
        let context = self.module.context();
        if stream.context() != context {
            return Err(CudaError::OtherDevice {
                what: "the kernel",
                given: context.ordinal(),
                expected: stream.context().ordinal(),
            });
        }
        for argument in arguments {
            if let KernelArg::Slice(slice) = argument {
                slice.check_device(context.ordinal(), "an argument")?;
            }
        }
        self.prove(shape)?;
        self.prove_arguments(arguments)?;
        self.opt_in(shape)?;

        let call = self.call(shape, stream);
        let mut values: Vec<*mut c_void> = arguments.iter().map(KernelArg::value).collect();
        // SAFETY: each pointer is to the value of its argument, borrowed for this call, whose size was just
        // compared with the kernel's parameter where the PTX could be read; the rest is the caller's promise.
        let launched = context
            .home()
            .call(|driver| unsafe { driver.launch(&call, &mut values) });
        launched.map_err(|error| self.explain(shape, error))?;
        stream.enqueued(&loaded.name, self.module.loaded());
        Ok(())
    }

    /// Blocks of this kernel that fit on one multiprocessor at once.
    ///
    /// # Errors
    /// [`CudaError::Launch`] if the shape cannot be launched at all.
    pub fn occupancy(&self, shape: &LaunchShape) -> Result<u32, CudaError> {
        self.prove(shape)?;
        self.opt_in(shape)?;
        // The proof keeps threads within u32.
        let threads = shape.threads() as u32;
        let handle = self.loaded().handle.0;
        self.module
            .context()
            .call(|driver| driver.occupancy_blocks(handle, threads, shape.dynamic_shared_bytes))
    }

    /// Clusters of this shape that fit on the device at once.
    ///
    /// # Errors
    /// [`CudaError::Launch`] if the shape cannot be launched at all.
    pub fn cluster_occupancy(&self, shape: &LaunchShape) -> Result<u32, CudaError> {
        self.prove(shape)?;
        self.opt_in(shape)?;
        let context = self.module.context();
        let stream = Stream::legacy_default(context);
        context.call(|driver| driver.occupancy_clusters(&self.call(shape, &stream)))
    }

    /// Raises the function's limits where this shape is past the defaults: dynamic shared memory and,
    /// above 8 blocks, the size of a cluster.
    fn opt_in(&self, shape: &LaunchShape) -> Result<(), CudaError> {
        let loaded = self.loaded();
        let context = self.module.context();
        let bytes = shape.dynamic_shared_bytes;
        if proof::needs_opt_in(shape, &loaded.attributes, &context.info().limits) {
            let mut opted_in = lock(&loaded.opted_in);
            if bytes > *opted_in {
                let name = attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                context.call(|driver| driver.set_function_attribute(loaded.handle.0, name, bytes))?;
                *opted_in = bytes;
            }
        }
        if shape.cluster.iter().product::<u32>() > 8 {
            let name = attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
            context.call(|driver| driver.set_function_attribute(loaded.handle.0, name, 1))?;
        }
        Ok(())
    }

    fn call(&self, shape: &LaunchShape, stream: &Stream) -> LaunchCall {
        LaunchCall {
            function: self.loaded().handle.0,
            grid: shape.grid,
            block: shape.block,
            cluster: shape.cluster,
            dynamic_shared_bytes: shape.dynamic_shared_bytes,
            programmatic_dependent: shape.programmatic_dependent,
            stream: stream.handle(),
        }
    }

    pub(crate) fn refuse(&self, refusal: LaunchRefusal) -> CudaError {
        CudaError::Launch {
            kernel: self.name().to_string(),
            refusal: Box::new(refusal),
        }
    }

    /// Adds to a refused launch what in it may be the reason.
    fn explain(&self, shape: &LaunchShape, call: CallError) -> CudaError {
        let context = self.module.context();
        if is_fault(call.code) {
            // An earlier kernel's fault, reported by this launch.
            return context.judge(call);
        }
        let LoadedFunction { entry, attributes, .. } = self.loaded();
        let limits = &context.info().limits;
        let explanation = match call.code {
            status::CUDA_ERROR_INVALID_VALUE => explain::invalid_value(shape, entry, attributes, limits),
            status::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES | status::CUDA_ERROR_INVALID_CLUSTER_SIZE => {
                explain::out_of_resources(shape, attributes, limits)
            }
            _ => String::new(),
        };
        CudaError::LaunchFailed(Box::new(LaunchFailure {
            kernel: self.name().to_string(),
            call,
            explanation,
        }))
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({} of {:?})", self.name(), self.module.identity())
    }
}
