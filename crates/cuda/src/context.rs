//! A device's primary context: the one that PyTorch, candle and the CUDA runtime use too, so that
//! memory and streams can be shared with them without copies.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::device::DeviceInfo;
use crate::error::{CallError, CudaError, Fault};
use crate::heap::Heap;
use crate::module::ModuleCache;
use crate::raw::{Driver, Handle, driver};
use crate::status::is_fault;
use crate::sys::{CUcontext, CUctx_st, CUdevice};
use crate::table::{TableCache, Uploader};

/// Kernels remembered as possible causes of a fault.
const MOST_SUSPECTS: usize = 16;

/// The primary context of one device. Cheap to clone; all clones, and all contexts made for the
/// same device while one is alive, are the same context with the same modules.
///
/// Every operation makes the context current for its own duration and puts back what was current
/// before, on whatever thread it is called from. The last clone to go waits for all work on the device by this process
/// if it has modules to unload.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    home: Home,
    device: CUdevice,
    info: DeviceInfo,
    modules: ModuleCache,
    tables: TableCache,
    heap: Arc<Heap>,
    uploader: Mutex<Option<Uploader>>,
    faults: Mutex<FaultLog>,
}

impl Inner {
    fn new(driver: &'static Driver, ordinal: u32) -> Result<Inner, CudaError> {
        let info = DeviceInfo::query(driver, ordinal)?;
        let device = driver.cuDeviceGet(ordinal as c_int)?;
        let home = Home {
            driver,
            context: Handle(driver.cuDevicePrimaryCtxRetain(device)?),
        };
        Ok(Inner {
            home,
            device,
            info,
            modules: ModuleCache::default(),
            tables: TableCache::default(),
            heap: Arc::new(Heap::new(home, device)),
            uploader: Mutex::default(),
            faults: Mutex::default(),
        })
    }
}

/// The driver and a live context of it: what it takes to make calls.
#[derive(Clone, Copy)]
pub(crate) struct Home {
    driver: &'static Driver,
    context: Handle<CUctx_st>,
}

impl Home {
    /// Runs driver calls with the context current, then restores what was.
    pub(crate) fn call<T>(&self, calls: impl FnOnce(&'static Driver) -> Result<T, CallError>) -> Result<T, CallError> {
        // Nearly always ours already; pushing and popping would double the cost of small calls.
        if self.driver.cuCtxGetCurrent()? == self.context.0 {
            return calls(self.driver);
        }
        self.driver.cuCtxPushCurrent_v2(self.context.0)?;
        let _restore = Restore(self.driver);
        calls(self.driver)
    }
}

#[derive(Default)]
struct FaultLog {
    /// Kernels enqueued and not yet known to have ended, with their stream.
    pending: VecDeque<(Arc<str>, usize)>,
    /// Kernels that were pending when the context was lost.
    fatal: Option<Vec<String>>,
}

impl Context {
    /// The primary context of the device of that number (see [`devices`](crate::devices)).
    ///
    /// # Errors
    /// [`CudaError::NoDriver`] and its like where there is no device; [`CudaError::NoSuchDevice`]
    /// for a number too high.
    pub fn new(ordinal: u32) -> Result<Self, CudaError> {
        static ALIVE: Mutex<Option<HashMap<u32, Weak<Inner>>>> = Mutex::new(None);
        let driver = driver()?;
        let mut alive = lock(&ALIVE);
        let alive = alive.get_or_insert_default();
        if let Some(inner) = alive.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(Self { inner });
        }
        let inner = Arc::new(Inner::new(driver, ordinal)?);
        alive.insert(ordinal, Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// One that only notes what it asks the driver for: [`noted`](crate::sys::tests::noted).
    #[cfg(test)]
    pub(crate) fn recording() -> Self {
        let driver = Box::leak(Box::new(Driver::recording()));
        let inner = Arc::new(Inner::new(driver, 0).unwrap());
        Self { inner }
    }

    /// What the device is and can do.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// The device's number.
    pub fn ordinal(&self) -> u32 {
        self.inner.info.ordinal
    }

    /// Free and total device memory now, bytes.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        self.call(|driver| driver.memory_info())
    }

    /// Waits for all work on the device by this process, then unloads the modules that nothing used any more when this
    /// was called.
    ///
    /// # Errors
    /// [`CudaError::Fault`] if a kernel faulted.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let done = self.modules().synchronize(self.home());
        done.map_err(|error| self.judge(error))?;
        lock(&self.inner.faults).pending.clear();
        Ok(())
    }

    /// Drops the compiled modules that only the cache holds; returns how many. For tuners, which load thousands.
    /// Kernels of them may run still, so the next [`synchronize`](Context::synchronize) gives their memory back.
    pub fn forget_unused_modules(&self) -> usize {
        self.inner.modules.forget_unused()
    }

    pub(crate) fn call<T>(&self, calls: impl FnOnce(&'static Driver) -> Result<T, CallError>) -> Result<T, CudaError> {
        self.inner.home.call(calls).map_err(|error| self.judge(error))
    }

    /// Turns a failed call into an error, and a fault into one that names kernels.
    pub(crate) fn judge(&self, call: CallError) -> CudaError {
        if !is_fault(call.code) {
            return CudaError::Call(Box::new(call));
        }
        let mut faults = lock(&self.inner.faults);
        let FaultLog { pending, fatal } = &mut *faults;
        // Once lost, every call fails with the first fault's status: keep naming its kernels.
        let kernels = fatal
            .get_or_insert_with(|| pending.iter().map(|(name, _)| name.to_string()).collect())
            .clone();
        CudaError::Fault(Box::new(Fault {
            kernels,
            ordinal: self.ordinal(),
            call,
        }))
    }

    pub(crate) fn enqueued(&self, name: &Arc<str>, stream: usize) {
        let mut faults = lock(&self.inner.faults);
        if faults.pending.len() == MOST_SUSPECTS {
            faults.pending.pop_front();
        }
        faults.pending.push_back((name.clone(), stream));
    }

    /// Everything enqueued on the stream has ended well.
    pub(crate) fn finished(&self, stream: usize) {
        lock(&self.inner.faults).pending.retain(|(_, other)| *other != stream);
    }

    pub(crate) fn modules(&self) -> &ModuleCache {
        &self.inner.modules
    }

    pub(crate) fn tables(&self) -> &TableCache {
        &self.inner.tables
    }

    /// Calls `uploads` with what copies tables to the device, made at its first use.
    pub(crate) fn with_uploader<T>(
        &self,
        uploads: impl FnOnce(&mut Uploader) -> Result<T, CallError>,
    ) -> Result<T, CudaError> {
        let mut uploader = lock(&self.inner.uploader);
        let done = match &mut *uploader {
            Some(uploader) => uploads(uploader),
            none => Uploader::new(self.home(), self.heap().clone()).and_then(|new| uploads(none.insert(new))),
        };
        done.map_err(|error| self.judge(error))
    }

    pub(crate) fn heap(&self) -> &Arc<Heap> {
        &self.inner.heap
    }

    pub(crate) fn home(&self) -> Home {
        self.inner.home
    }

    /// The raw `CUcontext`, for other libraries.
    pub fn as_raw(&self) -> usize {
        self.handle().addr()
    }

    pub(crate) fn handle(&self) -> CUcontext {
        self.inner.home.context.0
    }
}

/// Pops the context that was pushed, also when the calls in between panic.
struct Restore(&'static Driver);

impl Drop for Restore {
    fn drop(&mut self) {
        // Fails only if someone else emptied the thread's stack; nothing is left to undo.
        let _ = self.0.cuCtxPopCurrent_v2();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // What belongs to the context must go before it does.
        self.modules.close(self.home);
        self.tables.clear();
        drop(lock(&self.uploader).take());
        self.heap.close();
        // Fails only at process exit, when the driver has shut down by itself.
        let _ = self.home.driver.cuDevicePrimaryCtxRelease_v2(self.device);
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Self) -> bool {
        self.handle() == other.handle()
    }
}

impl Eq for Context {}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context(device {}, {})", self.ordinal(), self.info().name)
    }
}

/// Locks; a thread that panicked while it held the lock leaves data that is still well-formed here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
