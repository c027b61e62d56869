//! What can go wrong on the way to the GPU, and what to do about it.

use std::fmt;

use flashcore_ir::launch::TensorMapProblem;
use flashcore_ir::proof::LaunchRefusal;

use crate::status::remedy;

/// Any failure of this crate: what was tried, what the driver returned, and what to do.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum CudaError {
    /// Memory was used in a stream that is captured now, so that no other stream can wait for that use.
    #[error(
        "memory was used in a stream that is being captured into a graph; end the capture, then use the memory in another stream"
    )]
    UsedInCapture,
    /// A stream that waits for an event of a captured one is captured with it. Its memory would not be the graph's.
    #[error(
        "this stream is captured into a graph of another stream, whose event it waits for; a graph keeps what is put into \
         the stream that it is captured from: put the work there"
    )]
    JoinedCapture,
    /// The machine has no NVIDIA driver, or the process cannot see it.
    #[error(
        "no NVIDIA driver found: looked for {looked_for} ({detail}); install the NVIDIA driver 525 or newer, and start \
         containers with `--gpus all`"
    )]
    NoDriver { looked_for: String, detail: String },
    /// There is a driver library, and it cannot be loaded.
    #[error(
        "the NVIDIA driver library cannot be loaded: {detail} (looked for {looked_for}); install the driver again, or take \
         the folder of that file out of LD_LIBRARY_PATH"
    )]
    BrokenDriver { looked_for: String, detail: String },
    /// The driver is older than R525.
    #[error("the NVIDIA driver ({found}) is too old: it has no {symbol}; install version 525 (CUDA 12.0) or newer")]
    DriverTooOld { found: String, symbol: &'static str },
    /// There is a driver, but no device for this process.
    #[error(
        "the NVIDIA driver sees no device{}; check `nvidia-smi`, and start containers with `--gpus all`",
        match visible { Some(list) => format!(" (CUDA_VISIBLE_DEVICES={list:?} may hide it)"), None => String::new() }
    )]
    NoDevice { visible: Option<String> },
    /// No device has that number.
    #[error("there is no CUDA device {ordinal}; {count} visible, numbered from 0")]
    NoSuchDevice { ordinal: u32, count: u32 },
    /// A driver call failed.
    #[error(transparent)]
    Call(Box<CallError>),
    /// A kernel faulted; the context is lost.
    #[error(transparent)]
    Fault(Box<Fault>),
    /// The driver's compiler refused the PTX.
    #[error(transparent)]
    Compile(Box<CompileError>),
    /// The PTX compiled, but to a kernel that must not be used.
    #[error(transparent)]
    Module(Box<ModuleRefusal>),
    /// A launch that cannot work, refused before the driver saw it.
    #[error("kernel `{kernel}` cannot be launched: {refusal}")]
    Launch {
        kernel: String,
        refusal: Box<LaunchRefusal>,
    },
    /// The driver refused a launch.
    #[error(transparent)]
    LaunchFailed(Box<LaunchFailure>),
    /// A tensor map that cannot be encoded.
    #[error("no tensor map can be made: {0}")]
    TensorMap(Box<TensorMapProblem>),
    /// The device has no tensor memory accelerator.
    #[error("no tensor map can be made: tensor maps need compute capability 9.0; this device has {major}.{minor}")]
    NoTensorMaps { major: u32, minor: u32 },
    /// The module has no kernel of that name.
    #[error("the module has no kernel `{name}`; it has {}", if known.is_empty() { "none".to_string() } else { known.join(", ") })]
    NoSuchKernel { name: String, known: Vec<String> },
    /// Lengths that must agree do not.
    #[error("{what}: {given} B given, {expected} B needed")]
    Size {
        what: &'static str,
        given: u64,
        expected: u64,
    },
    /// A range that does not lie inside its buffer.
    #[error("bytes {start}..{end} were asked of a buffer of {len} B")]
    Range { start: u64, end: u64, len: u64 },
    /// Memory, stream or function of one device used with another.
    #[error("{what} belongs to CUDA device {given}, but the work is on device {expected}; use one device throughout")]
    OtherDevice {
        what: &'static str,
        given: u32,
        expected: u32,
    },
    /// Memory of another library was used in a stream other than the one that frees it.
    #[error(
        "the memory is freed in the order of another stream than this one: use a queue of the stream it was made in"
    )]
    OtherStream,
    /// A graph would outlive memory that is borrowed from another library.
    #[error(
        "memory of another library cannot be captured into a graph, which could not keep it; copy it to a DeviceBuffer"
    )]
    BorrowedInCapture,
    /// A stream handle that was not made in this device's primary context.
    #[error(
        "the stream {handle:#x} does not belong to the primary context of CUDA device {ordinal}; pass a stream that \
         was created on that device"
    )]
    ForeignStream { handle: usize, ordinal: u32 },
    /// The legacy default stream cannot be captured.
    #[error("the legacy default stream cannot be captured into a graph; use a stream of your own")]
    CaptureDefaultStream,
    /// PTX or a kernel name that contains a zero byte.
    #[error("{what} contains a zero byte; it must be plain text")]
    ZeroByte { what: &'static str },
}

// The message, which `main` prints of an error that it returns.
impl std::fmt::Debug for CudaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl From<CallError> for CudaError {
    fn from(error: CallError) -> Self {
        CudaError::Call(Box::new(error))
    }
}

impl CudaError {
    /// Whether the environment (driver, device, container) is at fault, rather than the request.
    pub fn is_environment(&self) -> bool {
        matches!(
            self,
            CudaError::NoDriver { .. }
                | CudaError::BrokenDriver { .. }
                | CudaError::DriverTooOld { .. }
                | CudaError::NoDevice { .. }
        )
    }

    /// Whether there is no GPU: no driver was found, or it sees no device. Any other error means that
    /// one is there and fails, which whoever falls back to the host should report.
    pub fn is_absence(&self) -> bool {
        matches!(self, CudaError::NoDriver { .. } | CudaError::NoDevice { .. })
    }
}

/// A driver call that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{call}({arguments}) failed: {name} ({code}): {meaning}{}",
    remedy(*code).map_or_else(String::new, |remedy| format!("; {remedy}"))
)]
pub struct CallError {
    /// The driver function.
    pub call: &'static str,
    /// Its arguments, as `name=value, …`.
    pub arguments: String,
    /// The status it returned.
    pub code: u32,
    /// Its name, as the driver has it.
    pub name: String,
    /// What it says, in the driver's words.
    pub meaning: String,
}

/// A kernel faulted while it ran. Faults surface at a later call, so the kernels launched since the
/// last synchronisation are all suspects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: {} ({}): {}. The CUDA context of device {ordinal} is unusable from now on and every later call in this process \
     will fail: end the process. What to do: {}. (Reported by {}({}).)",
    suspects(kernels),
    call.name,
    call.code,
    call.meaning,
    remedy(call.code).unwrap_or("find the line with `flashcore check` or run with `--device sim`"),
    call.call,
    call.arguments
)]
pub struct Fault {
    /// The suspects, the newest last; empty where none was launched through this crate.
    pub kernels: Vec<String>,
    /// The device.
    pub ordinal: u32,
    /// The call that reported the fault.
    pub call: CallError,
}

fn suspects(kernels: &[String]) -> String {
    match kernels {
        [] => "work that FlashCore did not launch faulted".to_string(),
        [one] => format!("kernel `{one}` faulted"),
        many => format!(
            "one of the kernels {} faulted (launched in this order since the last synchronisation)",
            coalesced(many.iter().map(|kernel| format!("`{kernel}`")))
        ),
    }
}

/// A list in which equal neighbours stand once, with their number before them.
pub(crate) fn coalesced<T: PartialEq + fmt::Display>(names: impl IntoIterator<Item = T>) -> String {
    let mut counted: Vec<(usize, T)> = Vec::new();
    for name in names {
        match counted.last_mut() {
            Some((count, last)) if *last == name => *count += 1,
            _ => counted.push((1, name)),
        }
    }
    let one = |(count, name): &(usize, T)| match count {
        1 => name.to_string(),
        count => format!("{count} × {name}"),
    };
    counted.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The driver's compiler refused the PTX.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}{}{}", log("error", error_log), log("information", info_log))]
pub struct CompileError {
    /// The failed call.
    pub call: CallError,
    /// The compiler's error log.
    pub error_log: String,
    /// The compiler's information log.
    pub info_log: String,
}

fn log(name: &str, text: &str) -> String {
    if text.trim().is_empty() {
        String::new()
    } else {
        format!("\n{name} log of the driver's compiler:\n{}", text.trim_end())
    }
}

/// Why a module that compiled must not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum ModuleRefusal {
    /// A kernel uses local memory: it spills registers or keeps an array there.
    #[error(
        "kernel `{kernel}` uses {local_bytes} B of local memory a thread ({registers} registers{}): it spills or indexes \
         an array at run time, which is slow out of all proportion; use smaller tiles or fewer stages, or allow it \
         explicitly with `ModuleOptions::allow_local_memory`",
        match spills { Some((stores, loads)) => format!(", {stores} B spill stores, {loads} B spill loads"), None => String::new() }
    )]
    LocalMemory {
        kernel: String,
        local_bytes: u32,
        registers: u32,
        spills: Option<(u32, u32)>,
    },
    /// The compiler warned that it made the kernel slow (C75xx).
    #[error(
        "the compiler gave {} warning(s) that mean a slow kernel: {}; fix the kernel, or allow it explicitly with \
         `ModuleOptions::allow_performance_warnings`",
        warnings.len(), warnings.join(" | ")
    )]
    PerformanceWarnings { warnings: Vec<String> },
}

/// The driver refused a launch that had passed the launch proof.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("kernel `{kernel}` was not launched: {call}{}{explanation}", if explanation.is_empty() { "" } else { ". " })]
pub struct LaunchFailure {
    /// The kernel's name.
    pub kernel: String,
    /// The failed call.
    pub call: CallError,
    /// What in this launch is likely to be the reason, with numbers.
    pub explanation: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(code: u32) -> CallError {
        CallError {
            call: "cuStreamSynchronize",
            arguments: "stream=0x7f00".to_string(),
            code,
            name: "CUDA_ERROR_ILLEGAL_ADDRESS".to_string(),
            meaning: "an illegal memory access was encountered".to_string(),
        }
    }

    #[test]
    fn a_failed_call_says_what_was_called_what_it_means_and_what_to_do() {
        let text = CallError {
            call: "cuMemAlloc_v2",
            arguments: "bytes=1099511627776".to_string(),
            code: 2,
            name: "CUDA_ERROR_OUT_OF_MEMORY".to_string(),
            meaning: "out of memory".to_string(),
        }
        .to_string();
        assert_eq!(
            text,
            "cuMemAlloc_v2(bytes=1099511627776) failed: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory; free buffers, shrink \
             the problem, or see with `nvidia-smi` which process holds the memory"
        );
    }

    #[test]
    fn a_fault_names_the_kernel_and_says_that_the_context_is_lost() {
        let mut fault = Fault {
            kernels: vec!["tiled".to_string()],
            ordinal: 0,
            call: call(700),
        };
        let text = fault.to_string();
        for part in [
            "kernel `tiled` faulted",
            "ILLEGAL_ADDRESS (700)",
            "unusable from now on",
            "FLASHCORE_CHECK=1",
            "flashcore check",
            "--device sim",
        ] {
            assert!(text.contains(part), "{part} is missing from: {text}");
        }
        fault.kernels.push("naive".to_string());
        assert!(fault.to_string().contains("kernels `tiled`, `naive` faulted"));
        // Launched over and over, it is named once.
        fault.kernels.extend(["naive", "naive", "tiled"].map(str::to_string));
        assert!(
            fault
                .to_string()
                .contains("kernels `tiled`, 3 × `naive`, `tiled` faulted"),
            "{fault}"
        );
        fault.kernels.clear();
        assert!(fault.to_string().contains("did not launch"));
    }

    #[test]
    fn an_absent_driver_says_what_was_looked_for_and_what_to_install() {
        let text = CudaError::NoDriver {
            looked_for: "libcuda.so.1".to_string(),
            detail: "no such file".to_string(),
        }
        .to_string();
        assert!(text.contains("libcuda.so.1") && text.contains("525") && text.contains("--gpus all"));
        assert!(CudaError::NoDevice { visible: None }.is_absence());
        assert!(!CudaError::NoSuchDevice { ordinal: 3, count: 1 }.is_absence());
    }
}
