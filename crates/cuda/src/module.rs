//! Modules: PTX compiled by the driver, checked before use, and kept for the process.
//!
//! The driver keeps its own cache on disk; what is kept here is the loaded module, so that asking twice costs a hash.

use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use flashcore_ir::proof::KernelFacts;
use flashcore_ir::ptx::log::JitLog;
use quick_cache::UnitWeighter;
use quick_cache::sync::Cache;

use crate::context::{Context, Home, lock};
use crate::error::{CompileError, CudaError, ModuleRefusal};
use crate::function::{Function, FunctionAttributes, LoadedFunction};
use crate::identity::ModuleIdentity;
use crate::raw::{CallResult, Handle};
use crate::status::is_fault;
use crate::sys::CUmod_st;
use crate::verdict::WarningMemory;

/// How to compile a module and what to accept. The default accepts only modules without local
/// memory and without performance warnings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ModuleOptions {
    /// Accept kernels that spill or keep arrays in local memory: for tests, and for rungs that show
    /// why not.
    pub allow_local_memory: bool,
    /// Accept kernels that drew a C75xx warning: for tests, and for rungs that show why not.
    pub allow_performance_warnings: bool,
    /// Keep `.loc` lines for profilers and debuggers.
    pub line_info: bool,
    /// Compile now, past the cache of this process and of the driver, so that the log is complete
    /// and the compile time real.
    pub recompile: bool,
}

/// What is known about a loaded module.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModuleReport {
    /// Its identity.
    pub identity: ModuleIdentity,
    /// The compiler worked just now; otherwise the module came from the driver's disk cache.
    pub compiled: bool,
    /// The compiler's own time, ms; near 0 from the cache.
    pub compile_ms: f32,
    /// Time of the whole load, ms.
    pub load_ms: f64,
    /// The compiler's log, read. Its performance warnings are remembered from process to process.
    pub log: JitLog,
    /// The compiler's log as it was printed; nearly empty from the cache.
    pub log_text: String,
    /// Each kernel with its attributes, in the order of the PTX.
    pub functions: Vec<(String, FunctionAttributes)>,
    /// What a user should know, one sentence each; empty when all is well.
    pub notes: Vec<String>,
}

/// A compiled module, loaded on one device. Cheap to clone.
#[derive(Clone)]
pub struct Module {
    // Declared before the context, which unloading needs.
    pub(crate) loaded: Arc<LoadedModule>,
    context: Context,
}

impl Module {
    /// Compiles and loads PTX, or finds it already loaded. `kernels` are those of the text, each with the facts that
    /// it declares, as `flashcore_ptx::PtxModule::kernels` reads them: launches are checked against these.
    ///
    /// # Errors
    /// [`CudaError::Compile`] with the compiler's log; [`CudaError::Module`] for a kernel that
    /// spills or drew performance warnings, unless `options` allow it; [`CudaError::ZeroByte`].
    ///
    /// # Safety
    /// `kernels` are all kernels of the text, each with `Some` of the parameters that the text declares for it: the
    /// driver reads as many arguments, and of each as many bytes. The first load of a text decides for all of them.
    #[allow(unsafe_code)]
    pub unsafe fn load(
        context: &Context,
        ptx: &str,
        kernels: &[(&str, KernelFacts)],
        options: &ModuleOptions,
    ) -> Result<Self, CudaError> {
        let info = context.info();
        let release = info.driver_release.as_deref().unwrap_or("");
        let driver = format!("{release}/{}", info.cuda_version);
        let identity = ModuleIdentity::new(ptx, &info.architecture(), &driver);

        let loaded = if options.recompile {
            // The driver's cache compares the whole text, so a new comment makes it compile.
            static SERIAL: AtomicU64 = AtomicU64::new(0);
            let since_epoch = std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_nanos());
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            let salted = format!("{ptx}\n// recompiled {} {since_epoch} {serial}\n", std::process::id());
            Arc::new(LoadedModule::load(context, &salted, kernels, identity, options)?)
        } else {
            let load = || LoadedModule::load(context, ptx, kernels, identity, options).map(Arc::new);
            let modules = &context.modules().loaded;
            modules.get_or_insert_with(&(identity, options.line_info), load)?
        };
        loaded
            .report
            .judge(options)
            .map_err(|refusal| CudaError::Module(Box::new(refusal)))?;
        Ok(Self {
            loaded,
            context: context.clone(),
        })
    }

    /// The kernel of that name.
    ///
    /// # Errors
    /// [`CudaError::NoSuchKernel`] lists those there are.
    pub fn function(&self, name: &str) -> Result<Function, CudaError> {
        let functions = &self.loaded.functions;
        match functions.iter().position(|function| &*function.name == name) {
            Some(index) => Ok(Function::new(self.clone(), index)),
            None => Err(CudaError::NoSuchKernel {
                name: name.to_string(),
                known: functions.iter().map(|function| function.name.to_string()).collect(),
            }),
        }
    }

    /// What is known about the module.
    pub fn report(&self) -> &ModuleReport {
        &self.loaded.report
    }

    /// The module's identity.
    pub fn identity(&self) -> ModuleIdentity {
        self.loaded.report.identity
    }

    /// The context it is loaded in.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} on device {}", self.identity(), self.context.ordinal())
    }
}

/// A module in the driver. When the last of its holders is gone, it waits for the context to unload it.
pub(crate) struct LoadedModule {
    handle: Handle<CUmod_st>,
    unused: Unused,
    pub(crate) functions: Vec<LoadedFunction>,
    report: ModuleReport,
}

impl LoadedModule {
    fn load(
        context: &Context,
        ptx: &str,
        kernels: &[(&str, KernelFacts)],
        identity: ModuleIdentity,
        options: &ModuleOptions,
    ) -> Result<Self, CudaError> {
        let text = CString::new(ptx).map_err(|_| CudaError::ZeroByte { what: "the PTX" })?;
        let outcome = context.call(|driver| Ok(driver.module_load(&text, options.line_info)))?;
        let handle = match outcome.module {
            Ok(handle) => handle,
            Err(call) if is_fault(call.code) => return Err(context.judge(call)),
            Err(call) => {
                return Err(CudaError::Compile(Box::new(CompileError {
                    call,
                    error_log: outcome.error_log,
                    info_log: outcome.info_log,
                })));
            }
        };
        // From here on every way out leaves the module to the context, which unloads it.
        let mut loaded = Self {
            handle: Handle(handle),
            unused: context.modules().unused.clone(),
            functions: Vec::new(),
            report: ModuleReport {
                identity,
                compiled: false,
                compile_ms: outcome.compile_ms,
                load_ms: outcome.load_ms,
                log: JitLog::parse(&outcome.info_log),
                log_text: outcome.info_log,
                functions: Vec::new(),
                notes: Vec::new(),
            },
        };
        for (name, declared) in kernels {
            let function = LoadedFunction::load(context, handle, name, declared.clone())?;
            loaded.functions.push(function);
        }
        let report = &mut loaded.report;
        report.functions = loaded
            .functions
            .iter()
            .map(|function| (function.name.to_string(), function.attributes))
            .collect();
        report.compiled = report.log.is_complete();
        if outcome.truncated {
            let note = "the compiler's log is longer than its buffer; its end is missing";
            report.notes.push(note.to_string());
        }
        report.settle_warnings(&WarningMemory::of_user());
        Ok(loaded)
    }
}

impl ModuleReport {
    /// Stores the warnings of a fresh compilation, or recalls those of an earlier one.
    fn settle_warnings(&mut self, memory: &WarningMemory) {
        let warnings = &mut self.log.performance_warnings;
        if !self.compiled && warnings.is_empty() {
            *warnings = memory.recall(&self.identity);
        } else if !warnings.is_empty() {
            self.notes.extend(memory.remember(&self.identity, warnings));
        }
    }

    fn judge(&self, options: &ModuleOptions) -> Result<(), ModuleRefusal> {
        if !options.allow_local_memory
            && let Some((kernel, attributes)) = self
                .functions
                .iter()
                .find(|(_, attributes)| attributes.local_bytes != 0)
        {
            return Err(ModuleRefusal::LocalMemory {
                kernel: kernel.clone(),
                local_bytes: attributes.local_bytes,
                registers: attributes.registers,
                spills: self.log.kernel(kernel).and_then(|log| log.spills),
            });
        }
        if !options.allow_performance_warnings && !self.log.performance_warnings.is_empty() {
            return Err(ModuleRefusal::PerformanceWarnings {
                warnings: self.log.performance_warnings.clone(),
            });
        }
        Ok(())
    }
}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        // No manual promises that unloading waits for kernels that run, so it comes after all work of the context. To
        // wait here would block whoever drops, and end a capture of another thread.
        lock(&self.unused).push(self.handle);
    }
}

/// The identity, and whether the module has line information, which changes the module but not its
/// code.
type Key = (ModuleIdentity, bool);

/// Modules without holders, which kernels that run may still be of.
type Unused = Arc<Mutex<Vec<Handle<CUmod_st>>>>;

/// Modules that were loaded once: different ones load at the same time, and failures are not kept.
pub(crate) struct ModuleCache {
    loaded: Cache<Key, Arc<LoadedModule>>,
    unused: Unused,
}

impl Default for ModuleCache {
    fn default() -> Self {
        // None goes to make room for others.
        let (usual, most) = (64, u64::MAX >> 1);
        ModuleCache {
            loaded: Cache::with_weighter(usual, most, UnitWeighter),
            unused: Unused::default(),
        }
    }
}

impl ModuleCache {
    /// Drops modules that only the cache holds; returns how many.
    pub(crate) fn forget_unused(&self) -> usize {
        let before = self.loaded.len();
        self.loaded.retain(|_, module| Arc::strong_count(module) > 1);
        before.saturating_sub(self.loaded.len())
    }

    /// Waits for all work of the context, then unloads the modules that had no holders before.
    pub(crate) fn synchronize(&self, home: Home) -> CallResult<()> {
        // Not those that lose their last holder while this waits: work that uses them may start meanwhile.
        let mut unused = std::mem::take(&mut *lock(&self.unused));
        let done = home.call(|driver| {
            driver.cuCtxSynchronize()?;
            for module in unused.drain(..) {
                // One that cannot be unloaded stays as long as the context.
                let _ = driver.cuModuleUnload(module.0);
            }
            Ok(())
        });
        lock(&self.unused).append(&mut unused);
        done
    }

    /// Lets all modules go, before the context does. Another library may hold that too, so its end does not unload
    /// them. Where the work cannot be waited for, as while another library captures a stream, they stay as long as it.
    pub(crate) fn close(&self, home: Home) {
        self.loaded.clear();
        if !lock(&self.unused).is_empty() {
            let _ = self.synchronize(home);
        }
    }
}

#[cfg(test)]
mod tests {
    use flashcore_ir::Kernel;

    use super::*;
    use crate::sys::tests::noted;

    /// The driver's calls of a kernel's load, and of what lets its module go.
    fn calls_of(let_go: impl FnOnce(&Context)) -> Vec<&'static str> {
        let context = Context::recording();
        let kernel = Kernel::build("nothing", 32, |_| {}).unwrap();
        let options = ModuleOptions {
            allow_local_memory: true, // which the recording driver says that there is
            ..ModuleOptions::default()
        };
        drop(Function::load(&context, &kernel, &options).unwrap());
        noted();
        let_go(&context);
        drop(context);
        let mut calls = noted();
        calls.retain(|name| !matches!(*name, "cuThreadExchangeStreamCaptureMode" | "cuCtxGetCurrent"));
        calls
    }

    /// A kernel may run when the last holder of its module goes, and another thread may capture, so that holder waits
    /// for nothing.
    #[test]
    fn modules_are_unloaded_after_the_work_that_may_use_them() {
        let forgotten = calls_of(|context| {
            assert_eq!(context.forget_unused_modules(), 1);
            for name in noted() {
                assert!(!["cuCtxSynchronize", "cuModuleUnload"].contains(&name), "{name}");
            }
            context.synchronize().unwrap();
        });
        let of_context = calls_of(|_| {});
        for calls in [forgotten, of_context] {
            assert_eq!(calls[..2], ["cuCtxSynchronize", "cuModuleUnload"], "{calls:?}");
            for name in ["cuCtxSynchronize", "cuModuleUnload"] {
                assert_eq!(calls.iter().filter(|call| **call == name).count(), 1, "{calls:?}");
            }
        }
    }

    fn report(local_bytes: u32, log: &str) -> ModuleReport {
        let attributes = FunctionAttributes {
            local_bytes,
            registers: 255,
            ..FunctionAttributes::default()
        };
        let log = JitLog::parse(log);
        ModuleReport {
            identity: ModuleIdentity::new("ret;", "sm_90", "580"),
            compiled: log.is_complete(),
            compile_ms: 0.0,
            load_ms: 0.0,
            log,
            log_text: String::new(),
            functions: vec![("tiled".to_string(), attributes)],
            notes: Vec::new(),
        }
    }

    #[test]
    fn spills_are_refused_unless_allowed() {
        let log = "info : Compiling entry function 'tiled' for 'sm_90a'\n 16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads";
        let text = report(16, log)
            .judge(&ModuleOptions::default())
            .unwrap_err()
            .to_string();
        for part in [
            "`tiled`",
            "16 B of local memory",
            "255 registers",
            "12 B spill stores",
            "allow_local_memory",
        ] {
            assert!(text.contains(part), "{part} is missing from: {text}");
        }
        // From the cache there is no log; the attribute answers all the same.
        assert!(report(16, "").judge(&ModuleOptions::default()).is_err());
        let allow = ModuleOptions {
            allow_local_memory: true,
            ..ModuleOptions::default()
        };
        assert!(report(16, log).judge(&allow).is_ok());
        assert!(report(0, "").judge(&ModuleOptions::default()).is_ok());
    }

    #[test]
    fn warnings_are_refused_unless_allowed() {
        let warned = report(
            0,
            "info : (C7512) serialized\ninfo : Compiling entry function 'tiled' for 'sm_90a'",
        );
        let text = warned.judge(&ModuleOptions::default()).unwrap_err().to_string();
        assert!(text.contains("C7512") && text.contains("allow_performance_warnings"));
        let allow = ModuleOptions {
            allow_performance_warnings: true,
            ..ModuleOptions::default()
        };
        assert!(warned.judge(&allow).is_ok());
    }
}
