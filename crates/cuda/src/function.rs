//! Kernels: their attributes, their launches.

use std::ffi::{CString, c_int, c_void};
use std::sync::{Arc, Mutex};

use flashcore_ir::Launch;
use flashcore_ir::proof::{self, KernelFacts, LaunchRefusal, LaunchShape};

use crate::context::{Context, lock};
use crate::error::{CallError, CudaError, LaunchFailure};
use crate::explain;
use crate::module::Module;
use crate::raw::{Handle, unsigned};
use crate::status::is_fault;
use crate::stream::Stream;
use crate::sys::{CUfunc_st, CUmodule, function_attribute as attribute, status};
use crate::table::HeldTables;

/// What the driver says about a compiled kernel (`cuFuncGetAttribute`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionAttributes {
    /// Registers a thread at launch.
    pub registers: u32,
    /// Local memory a thread, bytes: spills and arrays indexed at run time.
    pub local_bytes: u32,
    /// Static shared memory a block, bytes.
    pub static_shared_bytes: u32,
    /// The most threads a block of this kernel may have on this device.
    pub max_threads_per_block: u32,
    /// Architecture of the machine code: 90 for sm_90.
    pub binary_version: u32,
}

impl FunctionAttributes {
    /// For the launch proof: what the PTX declares, and what the driver made of it.
    pub(crate) fn facts(&self, declared: KernelFacts) -> KernelFacts {
        let most = self.max_threads_per_block;
        KernelFacts {
            static_shared_bytes: u64::from(self.static_shared_bytes),
            registers: Some(self.registers),
            max_threads: Some(declared.max_threads.map_or(most, |declared| declared.min(most))),
            ..declared
        }
    }
}

/// A kernel of a loaded module. Keeps the module loaded; cheap to clone.
#[derive(Clone)]
pub struct Function {
    module: Module,
    index: usize,
}

pub(crate) struct LoadedFunction {
    pub(crate) name: Arc<str>,
    pub(crate) attributes: FunctionAttributes,
    pub(crate) handle: Handle<CUfunc_st>,
    /// What a launch is proved with.
    facts: KernelFacts,
    /// Dynamic shared memory it has been opted in for, bytes.
    opted_in: Mutex<u32>,
}

impl LoadedFunction {
    pub(crate) fn load(
        context: &Context,
        module: CUmodule,
        name: &str,
        declared: KernelFacts,
    ) -> Result<Self, CudaError> {
        let symbol = CString::new(name).map_err(|_| CudaError::ZeroByte {
            what: "a kernel's name",
        })?;
        let (handle, attributes) = context.call(|driver| {
            let handle = driver.module_function(module, &symbol)?;
            // Only saves the first launch from loading; if it fails, that launch will say so.
            let _ = driver.function_load(handle);
            let get = |attribute| driver.cuFuncGetAttribute(attribute, handle).map(unsigned);
            let attributes = FunctionAttributes {
                registers: get(attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
                local_bytes: get(attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
                static_shared_bytes: get(attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
                max_threads_per_block: get(attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
                binary_version: get(attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
            };
            Ok((handle, attributes))
        })?;
        Ok(Self {
            name: Arc::from(name),
            attributes,
            handle: Handle(handle),
            facts: attributes.facts(declared),
            opted_in: Mutex::new(0),
        })
    }
}

impl Function {
    pub(crate) fn new(module: Module, index: usize) -> Self {
        Self { module, index }
    }

    pub(crate) fn loaded(&self) -> &LoadedFunction {
        &self.module.loaded.functions[self.index]
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
        let limits = &self.module.context().info().limits;
        let mut refusals = proof::prove(shape, &self.loaded().facts, limits, "this device").into_iter();
        refusals.next().map_or(Ok(()), |refusal| Err(self.refuse(refusal)))
    }

    /// Proves that the arguments have the sizes of the kernel's parameters.
    pub(crate) fn prove_arguments(&self, bytes: impl ExactSizeIterator<Item = u64>) -> Result<(), CudaError> {
        let refusal = proof::prove_arguments(&self.loaded().facts, bytes);
        refusal.map_or(Ok(()), |refusal| Err(self.refuse(refusal)))
    }

    /// Puts the tables of a launch ([`flashcore_ir::Arg::Table`]) on the device and keeps them
    /// there while the returned value lives, so that [`prepare`](Self::prepare) finds them also
    /// while a stream is captured.
    ///
    /// # Errors
    /// A call error: `OUT_OF_MEMORY`, or that this thread captures a stream.
    pub fn hold_tables(&self, launch: &Launch) -> Result<HeldTables, CudaError> {
        let context = self.module.context();
        let tables = launch.tables().map(|table| context.tables().get(context, table));
        Ok(HeldTables::new(context, tables.collect::<Result<_, _>>()?))
    }

    /// Enqueues what was proved: the shape, the sizes of the arguments and their device.
    ///
    /// # Safety
    /// Each of `values` points to the value of an argument, of the size of the kernel's parameter, and else as
    /// [`Function::prepare`].
    #[allow(unsafe_code)]
    pub(crate) unsafe fn launch_proved(
        &self,
        stream: &Stream,
        shape: &LaunchShape,
        values: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let loaded = self.loaded();
        let context = self.module.context();
        stream.check_context(context, "the kernel")?;
        self.opt_in(shape)?;
        // SAFETY: the caller's promise.
        let launched = context
            .home()
            .call(|driver| unsafe { driver.launch(loaded.handle.0, shape, stream.handle(), values) });
        launched.map_err(|error| self.explain(shape, error))?;
        stream.enqueued(&loaded.name, &self.module.loaded);
        Ok(())
    }

    /// Raises the function's limits where this shape is past the defaults: dynamic shared memory
    /// and, above 8 blocks, the size of a cluster.
    pub(crate) fn opt_in(&self, shape: &LaunchShape) -> Result<(), CudaError> {
        let loaded = self.loaded();
        let context = self.module.context();
        let bytes = shape.dynamic_shared_bytes;
        let limits = &context.info().limits;
        if proof::prove_without_opt_in(shape, &loaded.facts, limits, "this device").is_some() {
            let mut opted_in = lock(&loaded.opted_in);
            if bytes > *opted_in {
                let name = attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                context.call(|driver| driver.cuFuncSetAttribute(loaded.handle.0, name, bytes as c_int))?;
                *opted_in = bytes;
            }
        }
        if shape.cluster.iter().product::<u32>() > 8 {
            let name = attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
            context.call(|driver| driver.cuFuncSetAttribute(loaded.handle.0, name, 1))?;
        }
        Ok(())
    }

    pub(crate) fn refuse(&self, refusal: LaunchRefusal) -> CudaError {
        CudaError::Launch {
            kernel: self.name().to_string(),
            refusal: Box::new(refusal),
        }
    }

    fn explain(&self, shape: &LaunchShape, call: CallError) -> CudaError {
        let context = self.module.context();
        if is_fault(call.code) {
            // An earlier kernel's fault, reported by this launch.
            return context.judge(call);
        }
        let LoadedFunction { facts, attributes, .. } = self.loaded();
        let limits = &context.info().limits;
        let explanation = match call.code {
            status::CUDA_ERROR_INVALID_VALUE => explain::invalid_value(shape, facts, attributes, limits),
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

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Function({} of {:?})", self.name(), self.module.identity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the driver says overrides what the PTX declares.
    #[test]
    fn facts_are_those_of_the_compiled_kernel() {
        let attributes = FunctionAttributes {
            registers: 200,
            static_shared_bytes: 57_376,
            max_threads_per_block: 256,
            ..FunctionAttributes::default()
        };
        let declared = KernelFacts {
            max_threads: Some(512),
            parameter_bytes: Some(vec![8]),
            ..KernelFacts::default()
        };
        let facts = attributes.facts(declared.clone());
        assert_eq!((facts.registers, facts.static_shared_bytes), (Some(200), 57_376));
        assert_eq!((facts.max_threads, facts.parameter_bytes), (Some(256), Some(vec![8])));
        let narrow = KernelFacts {
            max_threads: Some(128),
            ..declared
        };
        assert_eq!(attributes.facts(narrow).max_threads, Some(128));
    }
}
