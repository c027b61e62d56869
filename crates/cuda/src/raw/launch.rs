//! Launches and tensor maps.

use std::ffi::c_void;
use std::ptr;

use super::{CallResult, Driver};
use crate::sys::{
    CUfunction, CUlaunchAttribute_st, CUlaunchAttributeValue, CUlaunchConfig_st, CUstream, CUtensorMap_st,
    launch_attribute, tensor_map_fill, tensor_map_interleave,
};

/// Everything of a launch but its kernel arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaunchCall {
    pub(crate) function: CUfunction,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) cluster: [u32; 3],
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) programmatic_dependent: bool,
    pub(crate) stream: CUstream,
}

impl LaunchCall {
    fn attributes(&self) -> Vec<CUlaunchAttribute_st> {
        let attribute = |id: u32, words: [u32; 3]| {
            let mut value = CUlaunchAttributeValue { words: [0; 16] };
            value.words[..3].copy_from_slice(&words);
            CUlaunchAttribute_st { id, pad: [0; 4], value }
        };
        let mut attributes = Vec::new();
        if self.cluster != [1, 1, 1] {
            attributes.push(attribute(
                launch_attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                self.cluster,
            ));
        }
        if self.programmatic_dependent {
            let id = launch_attribute::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes.push(attribute(id, [1, 0, 0]));
        }
        attributes
    }

    fn config(&self, attributes: &mut [CUlaunchAttribute_st]) -> CUlaunchConfig_st {
        CUlaunchConfig_st {
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.block[0],
            blockDimY: self.block[1],
            blockDimZ: self.block[2],
            sharedMemBytes: self.dynamic_shared_bytes,
            hStream: self.stream,
            numAttrs: attributes.len() as u32,
            attrs: match attributes {
                [] => ptr::null_mut(),
                some => some.as_mut_ptr(),
            },
        }
    }
}

/// A tensor map to encode; lengths agree, as `tensor_map` has checked.
#[derive(Debug)]
pub(crate) struct TensorMapCall<'a> {
    pub(crate) data_type: u32,
    pub(crate) address: u64,
    pub(crate) dims: &'a [u64],
    pub(crate) byte_strides: &'a [u64],
    pub(crate) box_dims: &'a [u32],
    pub(crate) element_strides: &'a [u32],
    pub(crate) swizzle: u32,
    pub(crate) l2_promotion: u32,
}

impl Driver {
    /// Enqueues a kernel.
    ///
    /// # Safety
    /// `arguments[i]` points to as many readable bytes as the kernel's parameter `i` has, for every
    /// parameter, and the kernel does with them only what the caller wants.
    pub(crate) unsafe fn launch(&self, call: &LaunchCall, arguments: &mut [*mut c_void]) -> CallResult<()> {
        let mut attributes = call.attributes();
        let config = call.config(&mut attributes);
        // SAFETY: rules 1 and 2 of `raw` for the configuration and its attributes; the caller
        // vouches for the arguments, which the driver copies before it returns.
        let code =
            unsafe { (self.table.cuLaunchKernelEx)(&config, call.function, arguments.as_mut_ptr(), ptr::null_mut()) };
        self.check("cuLaunchKernelEx", code, || format!("{call:?}"))
    }

    pub(crate) fn tensor_map_encode(&self, call: &TensorMapCall<'_>) -> CallResult<CUtensorMap_st> {
        let rank = call.dims.len();
        debug_assert!(call.byte_strides.len() + 1 == rank && call.box_dims.len() == rank);
        debug_assert!(call.element_strides.len() == rank);
        let mut map = CUtensorMap_st { opaque: [0; 16] };
        // SAFETY: rule 2 of `raw`; `tensor_map` made every array as long as the rank asks for, and
        // the address is a number that the driver stores.
        let code = unsafe {
            (self.table.cuTensorMapEncodeTiled)(
                &mut map,
                call.data_type,
                rank as u32,
                ptr::without_provenance_mut(call.address as usize),
                call.dims.as_ptr(),
                call.byte_strides.as_ptr(),
                call.box_dims.as_ptr(),
                call.element_strides.as_ptr(),
                tensor_map_interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                call.swizzle,
                call.l2_promotion,
                tensor_map_fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        self.check("cuTensorMapEncodeTiled", code, || format!("{call:?}"))?;
        Ok(map)
    }
}
