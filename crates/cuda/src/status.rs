//! What the driver's status codes mean and what to do about them: the table behind every
//! [`CallError`](crate::CallError).
//!
//! Meanings follow the descriptions of `CUresult` in NVIDIA's CUDA driver API manual; remedies are
//! what has helped in practice.

/// One status code of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status {
    /// `CUresult` as a number.
    pub(crate) code: u32,
    /// Its name in `cuda.h`.
    pub(crate) name: &'static str,
    /// What it says, in one sentence without a full stop.
    pub(crate) meaning: &'static str,
    /// What to do, in one sentence without a full stop.
    pub(crate) remedy: &'static str,
    /// Whether a kernel faulted: the context is then unusable until the process ends.
    pub(crate) fault: bool,
}

/// The entry for `code`, or `None` for one that this version does not know.
pub(crate) fn status(code: u32) -> Option<&'static Status> {
    STATUSES
        .binary_search_by_key(&code, |status| status.code)
        .ok()
        .map(|index| &STATUSES[index])
}

/// Whether `code` says that a kernel faulted and took its context with it.
pub(crate) fn is_fault(code: u32) -> bool {
    status(code).is_some_and(|status| status.fault)
}

/// All codes known here, ascending.
#[rustfmt::skip]
pub(crate) static STATUSES: &[Status] = &[
    say(1, "CUDA_ERROR_INVALID_VALUE",
        "an argument is outside what the call allows",
        "compare the arguments printed above with the limits of the device"),
    say(2, "CUDA_ERROR_OUT_OF_MEMORY",
        "the device has no free block of memory that large",
        "free buffers, shrink the problem, or see with `nvidia-smi` which process holds the memory"),
    say(3, "CUDA_ERROR_NOT_INITIALIZED",
        "the driver is not initialised in this process",
        "if the process was forked after CUDA was first used, start workers with spawn instead of fork"),
    say(4, "CUDA_ERROR_DEINITIALIZED",
        "the driver is shutting down",
        "do not call CUDA from destructors that run at process exit"),
    say(34, "CUDA_ERROR_STUB_LIBRARY",
        "the libcuda.so found is the toolkit's stub for linking, not a driver",
        "remove the toolkit's lib64/stubs folder from LD_LIBRARY_PATH"),
    say(46, "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "the device is busy, or in exclusive mode and taken",
        "end the process that holds it, or set compute mode to default with `nvidia-smi -c 0`"),
    say(100, "CUDA_ERROR_NO_DEVICE",
        "the driver sees no CUDA device",
        "check `nvidia-smi` and CUDA_VISIBLE_DEVICES; start containers with `--gpus all`"),
    say(101, "CUDA_ERROR_INVALID_DEVICE",
        "there is no device of that number",
        "list the devices with `flashcore` and count from 0"),
    say(102, "CUDA_ERROR_DEVICE_NOT_LICENSED",
        "this virtual GPU has no licence",
        "ask whoever runs the machine for a vGPU licence"),
    say(200, "CUDA_ERROR_INVALID_IMAGE",
        "the module is not PTX or machine code that the driver can read",
        "print the PTX with `flashcore explain --ptx` and assemble it with ptxas to see the line"),
    say(201, "CUDA_ERROR_INVALID_CONTEXT",
        "no valid context is current on this thread",
        "this is a bug in FlashCore or a context destroyed by someone else; please report it"),
    say(209, "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "the module has no code for this GPU",
        "PTX for an `a` target (sm_90a) runs on exactly that architecture; choose a kernel for this one"),
    fault(214, "CUDA_ERROR_ECC_UNCORRECTABLE",
        "the GPU found an uncorrectable memory error",
        "reset or replace the GPU; results since the last check are not to be trusted"),
    say(218, "CUDA_ERROR_INVALID_PTX",
        "the driver's compiler refused the PTX",
        "the compiler's own message, with its line, is in the log below"),
    fault(220, "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "an uncorrectable NVLink error happened",
        "see `nvidia-smi nvlink -e`; the machine needs attention"),
    say(221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        "the driver's PTX compiler (libnvidia-ptxjitcompiler) is missing",
        "install the complete driver; in containers set NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
    say(222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "this driver is older than the PTX version asked for",
        "update the driver, or choose a kernel that asks for less"),
    say(223, "CUDA_ERROR_JIT_COMPILATION_DISABLED",
        "compiling PTX is switched off",
        "unset CUDA_DISABLE_PTX_JIT"),
    say(302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
        "the driver's libraries do not belong together",
        "reinstall the driver; kernel module and libraries must be of one version"),
    say(303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
        "a library of the driver failed to start",
        "reinstall the driver; kernel module and libraries must be of one version"),
    say(304, "CUDA_ERROR_OPERATING_SYSTEM",
        "a call to the operating system failed",
        "check that /dev/nvidia* can be opened by this user, and the limits of the container"),
    say(400, "CUDA_ERROR_INVALID_HANDLE",
        "a stream, event, module or function is not valid in this context",
        "a raw stream may be destroyed already or belong to another device"),
    say(401, "CUDA_ERROR_ILLEGAL_STATE",
        "the resource is not in a state that allows this call",
        "see the call's page in the CUDA driver API manual"),
    say(500, "CUDA_ERROR_NOT_FOUND",
        "the module has nothing of that name",
        "compare the kernel's name with the `.entry` names in its PTX"),
    say(600, "CUDA_ERROR_NOT_READY",
        "the work asked about is not finished yet",
        "synchronise first, or ask again"),
    fault(700, "CUDA_ERROR_ILLEGAL_ADDRESS",
        "a kernel read or wrote memory that is not its own",
        "run again with FLASHCORE_CHECK=1, which names lengths, offsets, pages and slots that are wrong; find the line \
         with `flashcore check`, or run the problem with `--device sim`"),
    say(701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "a block of this kernel does not fit on a multiprocessor",
        "launch fewer threads, or build the kernel with fewer registers a thread"),
    fault(702, "CUDA_ERROR_LAUNCH_TIMEOUT",
        "a kernel ran longer than the display's watchdog allows",
        "look for a hang with `flashcore check`, or use a GPU that drives no display"),
    say(708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
        "the device's primary context is already in use with other settings",
        "create FlashCore's device before other libraries change the context's flags"),
    say(709, "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "the context was destroyed by someone else",
        "do not reset the device (cudaDeviceReset) while FlashCore uses it"),
    fault(710, "CUDA_ERROR_ASSERT",
        "a device-side assertion failed",
        "the assertion's text is on standard error"),
    fault(714, "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "a kernel corrupted its call stack",
        "find the line with `flashcore check`, or run the problem with `--device sim`"),
    fault(715, "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "a kernel executed an instruction that the GPU does not have or allow here",
        "check that the kernel's target is this GPU's architecture, then find the line with `flashcore check` or run with `--device sim`"),
    fault(716, "CUDA_ERROR_MISALIGNED_ADDRESS",
        "a kernel accessed memory at an address that its width does not divide",
        "check the alignment of pointers and strides with `flashcore check`, or run with `--device sim`"),
    fault(717, "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "a kernel used an address in the wrong state space",
        "find the line with `flashcore check`, or run the problem with `--device sim`"),
    fault(718, "CUDA_ERROR_INVALID_PC",
        "a kernel jumped outside its code",
        "find the line with `flashcore check`, or run the problem with `--device sim`"),
    fault(719, "CUDA_ERROR_LAUNCH_FAILED",
        "a kernel failed while running (often shared memory out of bounds, or a trap)",
        "find the line with `flashcore check`, or run the problem with `--device sim`"),
    say(720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        "a cooperative grid has more blocks than fit on the device at once",
        "launch fewer blocks"),
    fault(721, "CUDA_ERROR_TENSOR_MEMORY_LEAK",
        "a kernel ended without freeing its tensor memory",
        "pair every tcgen05.alloc with a dealloc"),
    say(800, "CUDA_ERROR_NOT_PERMITTED",
        "the operation is not permitted",
        "while a stream is captured, only asynchronous work on it is allowed"),
    say(801, "CUDA_ERROR_NOT_SUPPORTED",
        "this device or driver does not support the operation",
        "see the call's page in the CUDA driver API manual for what it needs"),
    say(802, "CUDA_ERROR_SYSTEM_NOT_READY",
        "the system is not ready for CUDA work",
        "on NVSwitch machines start nvidia-fabricmanager"),
    say(803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "the driver's kernel module and its libraries are of different versions",
        "reboot after a driver update, or match the container's libcuda with the host's driver"),
    say(804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "the forward-compatibility libcuda does not support this GPU",
        "remove the cuda-compat package's folder from LD_LIBRARY_PATH, or update the driver"),
    say(805, "CUDA_ERROR_MPS_CONNECTION_FAILED",
        "the MPS server cannot be reached",
        "start nvidia-cuda-mps-control, or unset CUDA_MPS_PIPE_DIRECTORY"),
    say(900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "the operation cannot be captured into a graph",
        "do it before the capture begins: load kernels, allocate and copy first, and never capture the legacy default stream"),
    say(901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        "an earlier error ended the capture",
        "the first error inside the capture is the one to look at"),
    say(904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        "another stream joined the capture and was not joined back",
        "wait in the captured stream for an event of each other stream"),
    say(905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        "a captured stream would depend on work outside the capture",
        "wait for that work before the capture begins"),
    say(906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        "the legacy default stream would be drawn into a capture",
        "do not use the legacy default stream while another stream is captured"),
    say(907, "CUDA_ERROR_CAPTURED_EVENT",
        "the event was last recorded inside a capture",
        "record it outside the capture before waiting for it or timing with it"),
    say(908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        "the capture was begun by another thread",
        "end it in the thread that began it"),
    say(909, "CUDA_ERROR_TIMEOUT",
        "a wait on the device took longer than allowed",
        "look for a hang with `flashcore check`"),
    say(912, "CUDA_ERROR_INVALID_CLUSTER_SIZE",
        "the cluster is too large for this kernel on this device",
        "use clusters of at most 8 blocks, or less shared memory a block"),
    say(999, "CUDA_ERROR_UNKNOWN",
        "the driver does not say what went wrong",
        "see `dmesg` for Xid messages; in containers check that /dev/nvidia-uvm is there"),
];

const fn say(code: u32, name: &'static str, meaning: &'static str, remedy: &'static str) -> Status {
    Status {
        code,
        name,
        meaning,
        remedy,
        fault: false,
    }
}

const fn fault(code: u32, name: &'static str, meaning: &'static str, remedy: &'static str) -> Status {
    Status {
        fault: true,
        ..say(code, name, meaning, remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_so_that_it_can_be_searched() {
        assert!(STATUSES.windows(2).all(|pair| pair[0].code < pair[1].code));
        for entry in STATUSES {
            assert_eq!(status(entry.code), Some(entry));
            assert!(
                !entry.meaning.ends_with('.') && !entry.remedy.ends_with('.'),
                "{}",
                entry.name
            );
        }
        assert_eq!(status(12345), None);
    }

    #[test]
    fn names_belong_to_their_codes() {
        use cudarc::driver::sys::CUresult as Theirs;
        // Those that the bindings of every CUDA version since 12.0 have; the rest are read by eye.
        for theirs in [
            Theirs::CUDA_ERROR_INVALID_VALUE,
            Theirs::CUDA_ERROR_OUT_OF_MEMORY,
            Theirs::CUDA_ERROR_NOT_INITIALIZED,
            Theirs::CUDA_ERROR_DEINITIALIZED,
            Theirs::CUDA_ERROR_STUB_LIBRARY,
            Theirs::CUDA_ERROR_DEVICE_UNAVAILABLE,
            Theirs::CUDA_ERROR_NO_DEVICE,
            Theirs::CUDA_ERROR_INVALID_DEVICE,
            Theirs::CUDA_ERROR_DEVICE_NOT_LICENSED,
            Theirs::CUDA_ERROR_INVALID_IMAGE,
            Theirs::CUDA_ERROR_INVALID_CONTEXT,
            Theirs::CUDA_ERROR_NO_BINARY_FOR_GPU,
            Theirs::CUDA_ERROR_ECC_UNCORRECTABLE,
            Theirs::CUDA_ERROR_INVALID_PTX,
            Theirs::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            Theirs::CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
            Theirs::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            Theirs::CUDA_ERROR_JIT_COMPILATION_DISABLED,
            Theirs::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND,
            Theirs::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED,
            Theirs::CUDA_ERROR_OPERATING_SYSTEM,
            Theirs::CUDA_ERROR_INVALID_HANDLE,
            Theirs::CUDA_ERROR_ILLEGAL_STATE,
            Theirs::CUDA_ERROR_NOT_FOUND,
            Theirs::CUDA_ERROR_NOT_READY,
            Theirs::CUDA_ERROR_ILLEGAL_ADDRESS,
            Theirs::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            Theirs::CUDA_ERROR_LAUNCH_TIMEOUT,
            Theirs::CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
            Theirs::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            Theirs::CUDA_ERROR_ASSERT,
            Theirs::CUDA_ERROR_HARDWARE_STACK_ERROR,
            Theirs::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            Theirs::CUDA_ERROR_MISALIGNED_ADDRESS,
            Theirs::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            Theirs::CUDA_ERROR_INVALID_PC,
            Theirs::CUDA_ERROR_LAUNCH_FAILED,
            Theirs::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            Theirs::CUDA_ERROR_NOT_PERMITTED,
            Theirs::CUDA_ERROR_NOT_SUPPORTED,
            Theirs::CUDA_ERROR_SYSTEM_NOT_READY,
            Theirs::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
            Theirs::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
            Theirs::CUDA_ERROR_MPS_CONNECTION_FAILED,
            Theirs::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            Theirs::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            Theirs::CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
            Theirs::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
            Theirs::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            Theirs::CUDA_ERROR_CAPTURED_EVENT,
            Theirs::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
            Theirs::CUDA_ERROR_TIMEOUT,
            Theirs::CUDA_ERROR_INVALID_CLUSTER_SIZE,
            Theirs::CUDA_ERROR_UNKNOWN,
        ] {
            let entry = status(theirs as u32).unwrap_or_else(|| panic!("{theirs:?} is missing"));
            assert_eq!(entry.name, format!("{theirs:?}"));
        }
        assert_eq!(
            STATUSES.len(),
            54 + 1,
            "only CUDA_ERROR_TENSOR_MEMORY_LEAK (721) is newer than 12.0"
        );
    }

    #[test]
    fn faults_are_those_that_take_the_context_with_them() {
        for code in [214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719] {
            assert!(is_fault(code), "{code}");
        }
        for code in [0, 1, 2, 100, 218, 600, 701, 720, 912, 4242] {
            assert!(!is_fault(code), "{code}");
        }
    }
}
