//! What to do about the driver's status codes: the end of every [`CallError`](crate::CallError). Their names and
//! meanings are the driver's own words. Remedies are what has helped in practice.

/// What to do about a status, `CUresult` as a number, in one sentence without a full stop; `None` where its meaning
/// says all that is known here.
pub(crate) fn remedy(code: u32) -> Option<&'static str> {
    Some(match code {
        // INVALID_VALUE
        1 => "compare the arguments printed above with the limits of the device",
        // OUT_OF_MEMORY
        2 => "free buffers, shrink the problem, or see with `nvidia-smi` which process holds the memory",
        // NOT_INITIALIZED
        3 => "if the process was forked after CUDA was first used, start workers with spawn instead of fork",
        // DEINITIALIZED
        4 => "do not call CUDA from destructors that run at process exit",
        // STUB_LIBRARY
        34 => "remove the toolkit's lib64/stubs folder from LD_LIBRARY_PATH",
        // DEVICE_UNAVAILABLE
        46 => "end the process that holds it, or set compute mode to default with `nvidia-smi -c 0`",
        // NO_DEVICE
        100 => "check `nvidia-smi` and CUDA_VISIBLE_DEVICES; start containers with `--gpus all`",
        // INVALID_DEVICE
        101 => "list the devices with `flashcore` and count from 0",
        // DEVICE_NOT_LICENSED
        102 => "ask whoever runs the machine for a vGPU licence",
        // INVALID_IMAGE
        200 => "print the PTX with `flashcore explain --ptx` and assemble it with ptxas to see the line",
        // INVALID_CONTEXT
        201 => "this is a bug in FlashCore or a context destroyed by someone else; please report it",
        // NO_BINARY_FOR_GPU
        209 => "PTX for an `a` target (sm_90a) runs on exactly that architecture; choose a kernel for this one",
        // ECC_UNCORRECTABLE
        214 => "reset or replace the GPU; results since the last check are not to be trusted",
        // INVALID_PTX
        218 => "the compiler's own message, with its line, is in the log below",
        // NVLINK_UNCORRECTABLE
        220 => "see `nvidia-smi nvlink -e`; the machine needs attention",
        // JIT_COMPILER_NOT_FOUND
        221 => "install the complete driver; in containers set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        // UNSUPPORTED_PTX_VERSION
        222 => "update the driver, or choose a kernel that asks for less",
        // JIT_COMPILATION_DISABLED
        223 => "unset CUDA_DISABLE_PTX_JIT",
        // SHARED_OBJECT_SYMBOL_NOT_FOUND, SHARED_OBJECT_INIT_FAILED
        302 | 303 => "reinstall the driver; kernel module and libraries must be of one version",
        // OPERATING_SYSTEM
        304 => "check that /dev/nvidia* can be opened by this user, and the limits of the container",
        // INVALID_HANDLE
        400 => "a raw stream may be destroyed already or belong to another device",
        // NOT_FOUND
        500 => "compare the kernel's name with the `.entry` names in its PTX",
        // ILLEGAL_ADDRESS
        700 => {
            "run again with FLASHCORE_CHECK=1, which names lengths, offsets, pages and slots that are wrong; \
             find the line with `flashcore check`, or run the problem with `--device sim`"
        }
        // LAUNCH_OUT_OF_RESOURCES
        701 => "launch fewer threads, or build the kernel with fewer registers a thread",
        // LAUNCH_TIMEOUT
        702 => "look for a hang with `flashcore check`, or use a GPU that drives no display",
        // PRIMARY_CONTEXT_ACTIVE
        708 => "create FlashCore's device before other libraries change the context's flags",
        // CONTEXT_IS_DESTROYED
        709 => "do not reset the device (cudaDeviceReset) while FlashCore uses it",
        // ASSERT
        710 => "the assertion's text is on standard error",
        // ILLEGAL_INSTRUCTION
        715 => {
            "check that the kernel's target is this GPU's architecture, then find the line with `flashcore \
             check` or run with `--device sim`"
        }
        // MISALIGNED_ADDRESS
        716 => "check the alignment of pointers and strides with `flashcore check`, or run with `--device sim`",
        // COOPERATIVE_LAUNCH_TOO_LARGE
        720 => "launch fewer blocks",
        // TENSOR_MEMORY_LEAK
        721 => "pair every tcgen05.alloc with a dealloc",
        // NOT_PERMITTED
        800 => "while a stream is captured, only asynchronous work on it is allowed",
        // SYSTEM_NOT_READY
        802 => "on NVSwitch machines start nvidia-fabricmanager",
        // SYSTEM_DRIVER_MISMATCH
        803 => "reboot after a driver update, or match the container's libcuda with the host's driver",
        // COMPAT_NOT_SUPPORTED_ON_DEVICE
        804 => "remove the cuda-compat package's folder from LD_LIBRARY_PATH, or update the driver",
        // MPS_CONNECTION_FAILED
        805 => "start nvidia-cuda-mps-control, or unset CUDA_MPS_PIPE_DIRECTORY",
        // STREAM_CAPTURE_UNSUPPORTED
        900 => {
            "do it before the capture begins: load kernels, allocate and copy first, and never capture the \
             legacy default stream"
        }
        // STREAM_CAPTURE_INVALIDATED
        901 => "the first error inside the capture is the one to look at",
        // STREAM_CAPTURE_UNJOINED
        904 => "wait in the captured stream for an event of each other stream",
        // STREAM_CAPTURE_ISOLATION
        905 => "wait for that work before the capture begins",
        // STREAM_CAPTURE_IMPLICIT
        906 => "do not use the legacy default stream while another stream is captured",
        // CAPTURED_EVENT
        907 => "record it outside the capture before waiting for it or timing with it",
        // STREAM_CAPTURE_WRONG_THREAD
        908 => "end it in the thread that began it",
        // TIMEOUT
        909 => "look for a hang with `flashcore check`",
        // INVALID_CLUSTER_SIZE
        912 => "use clusters of at most 8 blocks, or less shared memory a block",
        // UNKNOWN
        999 => "see `dmesg` for Xid messages; in containers check that /dev/nvidia-uvm is there",
        // HARDWARE_STACK_ERROR, INVALID_ADDRESS_SPACE, INVALID_PC
        714 | 717 | 718 => "find the line with `flashcore check`, or run the problem with `--device sim`",
        // LAUNCH_FAILED
        719 => {
            "it is often shared memory out of bounds, or a trap: find the line with `flashcore check`, or run the problem \
             with `--device sim`"
        }
        _ => return None,
    })
}

/// Whether a status says that a kernel faulted: the context is then unusable until the process ends.
pub(crate) fn is_fault(code: u32) -> bool {
    matches!(code, 214 | 220 | 700 | 702 | 710 | 714..=719 | 721)
}

#[cfg(test)]
mod tests {
    use cudarc::driver::sys::CUresult as Status;

    use super::*;

    #[test]
    fn remedies_belong_to_their_codes() {
        for (status, part) in [
            (Status::CUDA_ERROR_OUT_OF_MEMORY, "free buffers"),
            (Status::CUDA_ERROR_NOT_INITIALIZED, "instead of fork"),
            (Status::CUDA_ERROR_STUB_LIBRARY, "lib64/stubs"),
            (Status::CUDA_ERROR_NO_DEVICE, "--gpus all"),
            (Status::CUDA_ERROR_DEVICE_NOT_LICENSED, "vGPU licence"),
            (Status::CUDA_ERROR_NO_BINARY_FOR_GPU, "sm_90a"),
            (Status::CUDA_ERROR_INVALID_PTX, "in the log below"),
            (Status::CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "NVIDIA_DRIVER_CAPABILITIES"),
            (Status::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "update the driver"),
            (Status::CUDA_ERROR_JIT_COMPILATION_DISABLED, "CUDA_DISABLE_PTX_JIT"),
            (Status::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "reinstall the driver"),
            (Status::CUDA_ERROR_OPERATING_SYSTEM, "/dev/nvidia"),
            (Status::CUDA_ERROR_NOT_FOUND, ".entry"),
            (Status::CUDA_ERROR_ILLEGAL_ADDRESS, "FLASHCORE_CHECK=1"),
            (Status::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "fewer threads"),
            (Status::CUDA_ERROR_LAUNCH_TIMEOUT, "drives no display"),
            (Status::CUDA_ERROR_MISALIGNED_ADDRESS, "alignment of pointers"),
            (Status::CUDA_ERROR_LAUNCH_FAILED, "flashcore check"),
            (Status::CUDA_ERROR_SYSTEM_NOT_READY, "nvidia-fabricmanager"),
            (Status::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "reboot"),
            (
                Status::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                "before the capture begins",
            ),
            (Status::CUDA_ERROR_CAPTURED_EVENT, "outside the capture"),
            (Status::CUDA_ERROR_INVALID_CLUSTER_SIZE, "at most 8 blocks"),
            (Status::CUDA_ERROR_UNKNOWN, "dmesg"),
        ] {
            let remedy = remedy(status as u32).unwrap_or_else(|| panic!("{status:?}"));
            assert!(remedy.contains(part) && !remedy.ends_with('.'), "{status:?}: {remedy}");
        }
        assert_eq!(remedy(12345), None);
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
