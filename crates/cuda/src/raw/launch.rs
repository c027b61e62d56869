//! Launches, occupancy and tensor maps.

use std::ffi::{c_int, c_void};
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
    fn attributes(&self) -> ([CUlaunchAttribute_st; 2], u32) {
        let attribute = |id: u32, words: [u32; 3]| {
            let mut value = CUlaunchAttributeValue { words: [0; 16] };
            value.words[..3].copy_from_slice(&words);
            CUlaunchAttribute_st { id, pad: [0; 4], value }
        };
        // Id 0 is "ignore"; unused entries are not counted either.
        let mut attributes = [attribute(0, [0; 3]); 2];
        let mut count = 0;
        if self.cluster != [1, 1, 1] {
            attributes[count] = attribute(launch_attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, self.cluster);
            count += 1;
        }
        if self.programmatic_dependent {
            let id = launch_attribute::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[count] = attribute(id, [1, 0, 0]);
            count += 1;
        }
        (attributes, count as u32)
    }

    fn config(&self, attributes: &mut [CUlaunchAttribute_st; 2], count: u32) -> CUlaunchConfig_st {
        CUlaunchConfig_st {
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.block[0],
            blockDimY: self.block[1],
            blockDimZ: self.block[2],
            sharedMemBytes: self.dynamic_shared_bytes,
            hStream: self.stream,
            attrs: if count == 0 {
                ptr::null_mut()
            } else {
                attributes.as_mut_ptr()
            },
            numAttrs: count,
        }
    }

    fn arguments(&self) -> String {
        let mut text = format!(
            "grid={:?}, block={:?}, dynamic_shared_bytes={}, stream={:p}",
            self.grid, self.block, self.dynamic_shared_bytes, self.stream
        );
        if self.cluster != [1, 1, 1] {
            text.push_str(&format!(", cluster={:?}", self.cluster));
        }
        if self.programmatic_dependent {
            text.push_str(", programmatic_dependent=true");
        }
        text
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
        let (mut attributes, count) = call.attributes();
        let config = call.config(&mut attributes, count);
        // SAFETY: rules 1 and 2 of `raw` for the configuration and its attributes; the caller vouches for
        // the arguments, which the driver copies before it returns.
        let code =
            unsafe { (self.table.cuLaunchKernelEx)(&config, call.function, arguments.as_mut_ptr(), ptr::null_mut()) };
        self.check("cuLaunchKernelEx", code, || call.arguments())
    }

    /// Blocks of this kernel that fit on one multiprocessor at once.
    pub(crate) fn occupancy_blocks(
        &self,
        function: CUfunction,
        threads: u32,
        dynamic_shared_bytes: u32,
    ) -> CallResult<u32> {
        let mut blocks = 0;
        // SAFETY: rules 1 and 2 of `raw`.
        let code = unsafe {
            (self.table.cuOccupancyMaxActiveBlocksPerMultiprocessor)(
                &mut blocks,
                function,
                threads as c_int,
                dynamic_shared_bytes as usize,
            )
        };
        self.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code, || {
            format!("function={function:p}, threads={threads}, dynamic_shared_bytes={dynamic_shared_bytes}")
        })?;
        Ok(blocks.max(0).unsigned_abs())
    }

    /// Clusters of this launch that fit on the device at once.
    pub(crate) fn occupancy_clusters(&self, call: &LaunchCall) -> CallResult<u32> {
        let (mut attributes, count) = call.attributes();
        let config = call.config(&mut attributes, count);
        let mut clusters = 0;
        // SAFETY: rules 1 and 2 of `raw`.
        let code = unsafe { (self.table.cuOccupancyMaxActiveClusters)(&mut clusters, call.function, &config) };
        self.check("cuOccupancyMaxActiveClusters", code, || call.arguments())?;
        Ok(clusters.max(0).unsigned_abs())
    }

    pub(crate) fn tensor_map_encode(&self, call: &TensorMapCall<'_>) -> CallResult<CUtensorMap_st> {
        let rank = call.dims.len();
        debug_assert!(call.byte_strides.len() + 1 == rank && call.box_dims.len() == rank);
        debug_assert!(call.element_strides.len() == rank);
        let mut map = CUtensorMap_st { opaque: [0; 16] };
        // SAFETY: rule 2 of `raw`; `tensor_map` made every array as long as the rank asks for, and the
        // address is a number that the driver stores.
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
