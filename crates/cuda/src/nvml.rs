//! NVIDIA's management library (NVML): clocks, power and temperature of a device. Loaded when it is
//! there, like the driver; eight of its functions are used.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};

use libloading::{Library, Symbol};

/// `nvmlDevice_t`.
type Handle = *mut c_void;
/// `nvmlReturn_t`: 0 is success.
type Return = c_int;

/// `NVML_CLOCK_SM`, `NVML_CLOCK_MEM`, `NVML_TEMPERATURE_GPU` (nvml.h).
const CLOCK_SM: c_int = 1;
const CLOCK_MEMORY: c_int = 2;
const TEMPERATURE_GPU: c_int = 0;

/// `nvmlClocksThrottleReason…` (nvml.h), without `GpuIdle`, which is bit 0.
const THROTTLE: [(c_ulonglong, &str); 8] = [
    (0x2, "APPLICATIONS_CLOCKS_SETTING"),
    (0x4, "SW_POWER_CAP"),
    (0x8, "HW_SLOWDOWN"),
    (0x10, "SYNC_BOOST"),
    (0x20, "SW_THERMAL_SLOWDOWN"),
    (0x40, "HW_THERMAL_SLOWDOWN"),
    (0x80, "HW_POWER_BRAKE_SLOWDOWN"),
    (0x100, "DISPLAY_CLOCK_SETTING"),
];

type Number = unsafe extern "C" fn(Handle, *mut c_uint) -> Return;
type Kind = unsafe extern "C" fn(Handle, c_int, *mut c_uint) -> Return;

/// One device, as NVML sees it.
#[derive(Debug)]
pub struct Nvml {
    library: Library,
    device: Handle,
}

// SAFETY: NVML is thread-safe (NVML API reference, "Thread safety"), and a device handle is a name
// without state.
unsafe impl Send for Nvml {}

impl Nvml {
    /// Opens NVML for the device of this identity (`GPU-xxxxxxxx-…`).
    ///
    /// # Errors
    /// What is missing, in a few words.
    pub fn open(uuid: &str) -> Result<Nvml, String> {
        // The plain name exists only where development files are installed.
        let mut names = ["libnvidia-ml.so.1", "libnvidia-ml.so", "nvml.dll"].into_iter();
        let library = names.find_map(|name| {
            // SAFETY: loading runs NVIDIA's initialisers, which have no preconditions.
            unsafe { Library::new(name) }.ok()
        });
        let library = library.ok_or("NVML is not there (libnvidia-ml.so.1)")?;
        let mut nvml = Nvml {
            library,
            device: std::ptr::null_mut(),
        };
        // SAFETY: `nvmlReturn_t nvmlInit_v2(void)`; calls nest, each with its shutdown.
        let code = unsafe { nvml.function::<unsafe extern "C" fn() -> Return>("nvmlInit_v2")?() };
        if code != 0 {
            return Err(format!("NVML does not start ({})", nvml.words(code)));
        }
        let name = CString::new(uuid).map_err(|_| format!("NVML has no {uuid:?}"))?;
        type ByUuid = unsafe extern "C" fn(*const c_char, *mut Handle) -> Return;
        let mut device = std::ptr::null_mut();
        // SAFETY: `nvmlReturn_t nvmlDeviceGetHandleByUUID(const char*, nvmlDevice_t*)`; both
        // outlive the call.
        let code = unsafe { nvml.function::<ByUuid>("nvmlDeviceGetHandleByUUID")?(name.as_ptr(), &raw mut device) };
        if code != 0 {
            return Err(format!("NVML has no {uuid} ({})", nvml.words(code)));
        }
        nvml.device = device;
        Ok(nvml)
    }

    /// # Safety
    /// `T` is its type in nvml.h.
    unsafe fn function<T>(&self, name: &str) -> Result<Symbol<'_, T>, String> {
        // SAFETY: the caller's promise.
        let function = unsafe { self.library.get::<T>(name) };
        function.map_err(|error| format!("NVML has no {name} ({error})"))
    }

    /// SM clock, MHz.
    pub fn sm_mhz(&self) -> Option<u32> {
        self.kind("nvmlDeviceGetClockInfo", CLOCK_SM)
    }

    /// Memory clock, MHz.
    pub fn memory_mhz(&self) -> Option<u32> {
        self.kind("nvmlDeviceGetClockInfo", CLOCK_MEMORY)
    }

    /// Power drawn, mW.
    pub fn power_mw(&self) -> Option<u32> {
        self.number("nvmlDeviceGetPowerUsage")
    }

    /// Power allowed, mW.
    pub fn power_limit_mw(&self) -> Option<u32> {
        self.number("nvmlDeviceGetEnforcedPowerLimit")
    }

    /// Temperature of the chip, °C.
    pub fn temperature_c(&self) -> Option<u32> {
        self.kind("nvmlDeviceGetTemperature", TEMPERATURE_GPU)
    }

    /// Why clocks are below their highest, such as `SW_POWER_CAP`. An idle device is no reason.
    /// `None` where it cannot be read.
    pub fn throttle_reasons(&self) -> Option<Vec<&'static str>> {
        type Reasons = unsafe extern "C" fn(Handle, *mut c_ulonglong) -> Return;
        let mut bits = 0;
        // SAFETY: `nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t, unsigned
        // long long*)`.
        let code = unsafe {
            self.function::<Reasons>("nvmlDeviceGetCurrentClocksThrottleReasons")
                .ok()?(self.device, &raw mut bits)
        };
        (code == 0).then(|| named(bits))
    }

    fn number(&self, function: &str) -> Option<u32> {
        let mut value = 0;
        // SAFETY: every function named above has this signature (nvml.h).
        let code = unsafe { self.function::<Number>(function).ok()?(self.device, &raw mut value) };
        (code == 0).then_some(value)
    }

    fn kind(&self, function: &str, kind: c_int) -> Option<u32> {
        let mut value = 0;
        // SAFETY: every function named above has this signature (nvml.h); C enums are ints here.
        let code = unsafe { self.function::<Kind>(function).ok()?(self.device, kind, &raw mut value) };
        (code == 0).then_some(value)
    }

    /// What NVML says of an error.
    fn words(&self, code: Return) -> String {
        type Words = unsafe extern "C" fn(Return) -> *const c_char;
        // SAFETY: `const char* nvmlErrorString(nvmlReturn_t)` returns a string that is never freed.
        unsafe {
            match self.function::<Words>("nvmlErrorString") {
                Ok(words) => CStr::from_ptr(words(code)).to_string_lossy().into_owned(),
                Err(_) => format!("error {code}"),
            }
        }
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: `nvmlReturn_t nvmlShutdown(void)`. Where starting failed there is nothing to shut
        // down, and it says so.
        unsafe {
            if let Ok(shutdown) = self.function::<unsafe extern "C" fn() -> Return>("nvmlShutdown") {
                shutdown();
            }
        }
    }
}

fn named(bits: c_ulonglong) -> Vec<&'static str> {
    let set = THROTTLE.iter().filter(|(bit, _)| bits & bit != 0);
    set.map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_names_and_idle_is_none() {
        assert_eq!(named(0x1), Vec::<&str>::new());
        assert_eq!(named(0x1 | 0x4 | 0x40), ["SW_POWER_CAP", "HW_THERMAL_SLOWDOWN"]);
    }

    #[test]
    fn what_is_missing_is_said() {
        // Where there is NVML, there is no such device; where there is none, that is said.
        let missing = Nvml::open("GPU-none").unwrap_err();
        assert!(missing.starts_with("NVML "), "{missing}");
    }
}
