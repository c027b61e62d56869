//! The declarations of `libcuda` that this crate calls, and nothing else.
//!
//! # Why not `cudarc` itself
//!
//! `cudarc::driver::sys` holds the same declarations, generated, and is the witness here: the tests
//! compare every signature, constant and layout below with it, at whatever CUDA version from 12.3 on
//! it is built for. Linking it into the library was weighed and declined, for four reasons:
//!
//! 1. Its build script runs `nvcc --version` and panics on a toolkit that it does not list, and
//!    pins the whole dependency graph to one CUDA version. A library that needs no toolkit must not
//!    fail to build because of one.
//! 2. Its functions panic where the driver or a symbol is missing. Here both are typed errors.
//! 3. Its names follow the toolkit it was built for (`cuEventElapsedTime` or
//!    `cuEventElapsedTime_v2`), not the driver found at run time. Here every name is one that
//!    drivers from R525 (CUDA 12.0) to today's export.
//! 4. It returns `CUresult` as a Rust enum, so that a status code newer than the bindings is
//!    undefined behaviour. Here a status is a `u32`.
//!
//! Names are those of `cuda.h`, so that NVIDIA's documentation can be searched for them.

#![allow(unsafe_code, non_camel_case_types, non_snake_case)]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::mem::MaybeUninit;

use crate::raw::{CallResult, Driver};

#[cfg(test)]
pub(crate) mod tests;

/// Status of a driver call. A number, because drivers newer than this file may return new ones.
pub(crate) type CUresult = c_uint;
/// A device, by the driver's own number.
pub(crate) type CUdevice = c_int;
/// An address in device memory.
pub(crate) type CUdeviceptr = c_ulonglong;

macro_rules! opaque {
    ($($target:ident as $handle:ident;)*) => {$(
        #[derive(Debug)]
        pub(crate) enum $target {}
        pub(crate) type $handle = *mut $target;
    )*};
}

opaque! {
    CUctx_st as CUcontext;
    CUstream_st as CUstream;
    CUevent_st as CUevent;
    CUmod_st as CUmodule;
    CUfunc_st as CUfunction;
    CUgraph_st as CUgraph;
    CUgraphExec_st as CUgraphExec;
}

/// `CU_STREAM_LEGACY`: the stream that PyTorch and the runtime API use unless told otherwise.
pub(crate) const CU_STREAM_LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: the largest handle that is a constant and not a pointer.
pub(crate) const CU_STREAM_PER_THREAD: usize = 2;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CUuuid_st {
    pub(crate) bytes: [c_char; 16],
}

/// A tensor map (TMA descriptor). `cuda.h` asked for 64-byte alignment up to 12.9 and asks for 128
/// from 13.0; the larger satisfies both.
#[repr(C, align(128))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CUtensorMap_st {
    pub(crate) opaque: [u64; 16],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CUlaunchConfig_st {
    pub(crate) gridDimX: c_uint,
    pub(crate) gridDimY: c_uint,
    pub(crate) gridDimZ: c_uint,
    pub(crate) blockDimX: c_uint,
    pub(crate) blockDimY: c_uint,
    pub(crate) blockDimZ: c_uint,
    pub(crate) sharedMemBytes: c_uint,
    pub(crate) hStream: CUstream,
    pub(crate) attrs: *mut CUlaunchAttribute_st,
    pub(crate) numAttrs: c_uint,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CUlaunchAttribute_st {
    pub(crate) id: c_uint,
    pub(crate) pad: [c_char; 4],
    pub(crate) value: CUlaunchAttributeValue_union,
}

/// In C a union of 64 bytes aligned to 8. Both attributes used here lie in its first words: a
/// cluster is three `unsigned int` (x, y, z), programmatic serialisation one `int`.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CUlaunchAttributeValue_union {
    pub(crate) words: [c_uint; 16],
}

macro_rules! constants {
    ($($module:ident, $witness:ident { $($name:ident = $value:expr,)* })*) => {
        $(
            #[doc = concat!("Values of `", stringify!($witness), "`.")]
            pub(crate) mod $module {
                $(pub(crate) const $name: u32 = $value;)*
            }
        )*

        #[cfg(test)]
        tests::witness_constants!($($($module $witness $name)*)*);
    };
}

constants! {
    status, CUresult {
        CUDA_SUCCESS = 0,
        CUDA_ERROR_INVALID_VALUE = 1,
        CUDA_ERROR_NO_DEVICE = 100,
        CUDA_ERROR_NOT_READY = 600,
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
        CUDA_ERROR_INVALID_CLUSTER_SIZE = 912,
    }
    device_attribute, CUdevice_attribute {
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 2,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y = 3,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z = 4,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y = 6,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z = 7,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8,
        CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK = 12,
        CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
        CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK = 111,
        CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
        CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH = 120,
    }
    function_attribute, CUfunction_attribute {
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
        CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
        CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
        CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
        CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
    }
    jit_option, CUjit_option {
        CU_JIT_WALL_TIME = 2,
        CU_JIT_INFO_LOG_BUFFER = 3,
        CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4,
        CU_JIT_ERROR_LOG_BUFFER = 5,
        CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
        CU_JIT_LOG_VERBOSE = 12,
        CU_JIT_GENERATE_LINE_INFO = 13,
    }
    launch_attribute, CUlaunchAttributeID {
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
    }
    stream_flag, CUstream_flags {
        CU_STREAM_NON_BLOCKING = 1,
    }
    event_flag, CUevent_flags {
        CU_EVENT_DEFAULT = 0,
        CU_EVENT_DISABLE_TIMING = 2,
    }
    capture_mode, CUstreamCaptureMode {
        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
        CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    }
    capture_status, CUstreamCaptureStatus {
        CU_STREAM_CAPTURE_STATUS_NONE = 0,
    }
    tensor_map_type, CUtensorMapDataType {
        CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0,
        CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
        CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7,
        CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9,
    }
    tensor_map_interleave, CUtensorMapInterleave {
        CU_TENSOR_MAP_INTERLEAVE_NONE = 0,
    }
    tensor_map_swizzle, CUtensorMapSwizzle {
        CU_TENSOR_MAP_SWIZZLE_NONE = 0,
        CU_TENSOR_MAP_SWIZZLE_32B = 1,
        CU_TENSOR_MAP_SWIZZLE_64B = 2,
        CU_TENSOR_MAP_SWIZZLE_128B = 3,
    }
    tensor_map_l2_promotion, CUtensorMapL2promotion {
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3,
    }
    tensor_map_fill, CUtensorMapFloatOOBfill {
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0,
    }
}

macro_rules! resolved {
    ($library:ident, $name:ident) => {
        *$library
            .get(concat!(stringify!($name), "\0"))
            .map_err(|_| stringify!($name))?
    };
}

/// A call's arguments as `name=value, …`.
macro_rules! named {
    ($($arg:ident),*) => {{
        let named: &[(&str, &dyn std::fmt::Debug)] = &[$((stringify!($arg), &$arg)),*];
        named.iter().map(|(name, value)| format!("{name}={value:?}")).collect::<Vec<_>>().join(", ")
    }};
}

macro_rules! is_outside {
    (stream) => {
        false
    };
    (outside) => {
        true
    };
}

/// The functions, and for the simple ones a method of [`Driver`] of the same name: `actions` have
/// numbers and live handles for arguments; `queries` write their result through a pointer that they
/// take first. The `others` are called in `raw`.
///
/// A `stream` function may be part of a capture, or has nothing to do with it. An `outside` one allocates, frees,
/// loads, copies to or from the host, or waits: it is never part of a capture, and ends one of another thread unless
/// it is made in [relaxed mode](Driver::in_mode) (CUDA driver API, `cuThreadExchangeStreamCaptureMode`).
macro_rules! functions {
    (
        actions { $($aclass:ident $action:ident($($aarg:ident: $aty:ty),*);)* }
        queries { $($qclass:ident $query:ident($($qarg:ident: $qty:ty),*) -> $result:ty;)* }
        others { $($class:ident $name:ident($($arg:ident: $ty:ty),*);)* }
        optional { $($oclass:ident $oname:ident($($oarg:ident: $oty:ty),*);)* }
    ) => {
        /// Which functions are `outside`.
        #[allow(non_upper_case_globals, dead_code)] // names of functions, of which some are called by hand
        pub(crate) mod is_outside {
            $(pub(crate) const $action: bool = is_outside!($aclass);)*
            $(pub(crate) const $query: bool = is_outside!($qclass);)*
            $(pub(crate) const $name: bool = is_outside!($class);)*
            $(pub(crate) const $oname: bool = is_outside!($oclass);)*
        }

        /// Every driver function this crate calls, resolved once when the library is loaded.
        pub(crate) struct Table {
            $($action: unsafe extern "C" fn($($aty),*) -> CUresult,)*
            $($query: unsafe extern "C" fn(*mut $result, $($qty),*) -> CUresult,)*
            $(pub(crate) $name: unsafe extern "C" fn($($ty),*) -> CUresult,)*
            $(pub(crate) $oname: Option<unsafe extern "C" fn($($oty),*) -> CUresult>,)*
        }

        impl Table {
            /// Resolves each name in `library`; fails with the first one that it does not export.
            ///
            /// # Safety
            /// `library` must be NVIDIA's `libcuda` and must never be unloaded while the table is
            /// used.
            pub(crate) unsafe fn load(library: &libloading::Library) -> Result<Self, &'static str> {
                // SAFETY: the caller vouches that this is libcuda, whose exports have the
                // signatures of cuda.h; the tests compare the ones declared here with those.
                unsafe {
                    Ok(Self {
                        $($action: resolved!(library, $action),)*
                        $($query: resolved!(library, $query),)*
                        $($name: resolved!(library, $name),)*
                        $($oname: library.get(concat!(stringify!($oname), "\0")).ok().map(|symbol| *symbol),)*
                    })
                }
            }
        }

        impl Driver {
            $(pub(crate) fn $action(&self, $($aarg: $aty),*) -> CallResult<()> {
                // SAFETY: rule 1 of `raw`; what destroys a handle is called once, from its owner's
                // drop.
                let code = self.in_mode(is_outside::$action, || unsafe { (self.table.$action)($($aarg),*) });
                self.check(stringify!($action), code, || named!($($aarg),*))
            })*

            $(pub(crate) fn $query(&self, $($qarg: $qty),*) -> CallResult<$result> {
                let mut result = MaybeUninit::<$result>::zeroed();
                // SAFETY: rules 1 and 2 of `raw`.
                let code = self.in_mode(is_outside::$query, || unsafe {
                    (self.table.$query)(result.as_mut_ptr(), $($qarg),*)
                });
                self.check(stringify!($query), code, || named!($($qarg),*))?;
                // SAFETY: results are numbers, bytes and pointers, of which all zeros is a value.
                Ok(unsafe { result.assume_init() })
            })*
        }

        #[cfg(test)]
        tests::recording! {
            { $($action($($aarg: $aty),*))* $($name($($arg: $ty),*))* }
            { $($query($($qarg: $qty),*) -> $result;)* }
            { $($oname)* }
        }

        #[cfg(test)]
        tests::witness_functions! {
            $($action($($aty),*))*
            $($query(*mut $result $(, $qty)*))*
            $($name($($ty),*))*
        }
    };
}

functions! {
    actions {
        outside cuDevicePrimaryCtxRelease_v2(device: CUdevice);
        stream cuCtxPushCurrent_v2(context: CUcontext);
        outside cuCtxSynchronize();
        outside cuStreamDestroy_v2(stream: CUstream);
        outside cuStreamSynchronize(stream: CUstream);
        stream cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
        stream cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint);
        outside cuEventDestroy_v2(event: CUevent);
        stream cuEventRecord(event: CUevent, stream: CUstream);
        outside cuEventSynchronize(event: CUevent);
        outside cuGraphUpload(exec: CUgraphExec, stream: CUstream);
        stream cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
        outside cuGraphExecDestroy(exec: CUgraphExec);
        outside cuGraphDestroy(graph: CUgraph);
        outside cuMemFree_v2(pointer: CUdeviceptr);
        stream cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        stream cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
        outside cuMemFreeAsync(pointer: CUdeviceptr, stream: CUstream);
        outside cuModuleUnload(module: CUmodule);
        outside cuFuncSetAttribute(function: CUfunction, attribute: c_uint, value: c_int);
    }
    queries {
        stream cuDriverGetVersion() -> c_int;
        stream cuDeviceGetCount() -> c_int;
        stream cuDeviceGet(ordinal: c_int) -> CUdevice;
        stream cuDeviceGetUuid_v2(device: CUdevice) -> CUuuid_st;
        stream cuDeviceGetAttribute(attribute: c_uint, device: CUdevice) -> c_int;
        stream cuDeviceTotalMem_v2(device: CUdevice) -> usize;
        outside cuDevicePrimaryCtxRetain(device: CUdevice) -> CUcontext;
        stream cuCtxGetCurrent() -> CUcontext;
        stream cuCtxPopCurrent_v2() -> CUcontext;
        outside cuMemAlloc_v2(bytes: usize) -> CUdeviceptr;
        outside cuMemAllocAsync(bytes: usize, stream: CUstream) -> CUdeviceptr;
        outside cuStreamCreate(flags: c_uint) -> CUstream;
        outside cuEventCreate(flags: c_uint) -> CUevent;
        outside cuGraphInstantiateWithFlags(graph: CUgraph, flags: c_ulonglong) -> CUgraphExec;
        outside cuFuncGetAttribute(attribute: c_uint, function: CUfunction) -> c_int;
    }
    others {
        outside cuInit(flags: c_uint);
        stream cuGetErrorName(error: CUresult, text: *mut *const c_char);
        stream cuGetErrorString(error: CUresult, text: *mut *const c_char);
        stream cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
        outside cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        outside cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
        outside cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
        outside cuStreamQuery(stream: CUstream);
        stream cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
        stream cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
        stream cuStreamIsCapturing(stream: CUstream, status: *mut c_uint);
        stream cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
        outside cuModuleLoadDataEx(
            module: *mut CUmodule,
            image: *const c_void,
            count: c_uint,
            options: *mut c_uint,
            values: *mut *mut c_void
        );
        outside cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
        stream cuLaunchKernelEx(
            config: *const CUlaunchConfig_st,
            function: CUfunction,
            parameters: *mut *mut c_void,
            extra: *mut *mut c_void
        );
        stream cuTensorMapEncodeTiled(
            map: *mut CUtensorMap_st,
            data_type: c_uint,
            rank: u32,
            address: *mut c_void,
            dims: *const u64,
            strides: *const u64,
            box_dims: *const u32,
            element_strides: *const u32,
            interleave: c_uint,
            swizzle: c_uint,
            l2_promotion: c_uint,
            fill: c_uint
        );
    }
    // Not in the generated bindings of every CUDA version, hence not witnessed.
    optional {
        // One signature, two names: `_v2` from CUDA 12.8, the other up to 12.9. Whoever needs it
        // takes the newer where it is there.
        outside cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
        outside cuEventElapsedTime_v2(milliseconds: *mut f32, start: CUevent, end: CUevent);
        // From CUDA 12.4: loads a function now, instead of at its first launch, where a stream
        // capture would be in the way. Older drivers load it when its attributes are asked for.
        outside cuFuncLoad(function: CUfunction);
    }
}
