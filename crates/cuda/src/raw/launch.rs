//! Launches and tensor maps.

use std::ffi::c_void;
use std::ptr;

use flashcore_ir::TensorMapRecipe;
use flashcore_ir::proof::LaunchShape;

use super::{CallResult, Driver, call};
use crate::sys::{
    CUfunction, CUlaunchAttribute_st, CUlaunchAttributeValue_union, CUlaunchConfig_st, CUstream, CUtensorMap_st,
    launch_attribute, tensor_map_fill, tensor_map_interleave, tensor_map_l2_promotion,
};

/// An attribute that takes up to three numbers.
pub(super) fn attribute_value(first: [u32; 3]) -> CUlaunchAttributeValue_union {
    let mut words = [0; 16];
    words[..3].copy_from_slice(&first);
    CUlaunchAttributeValue_union { words }
}

fn attributes(shape: &LaunchShape) -> Vec<CUlaunchAttribute_st> {
    let attribute = |id: u32, words: [u32; 3]| CUlaunchAttribute_st {
        id,
        pad: [0; 4],
        value: attribute_value(words),
    };
    let mut attributes = Vec::new();
    if shape.cluster != [1, 1, 1] {
        let id = launch_attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes.push(attribute(id, shape.cluster));
    }
    if shape.programmatic_dependent {
        let id = launch_attribute::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes.push(attribute(id, [1, 0, 0]));
    }
    attributes
}

impl Driver {
    /// Enqueues a kernel.
    ///
    /// # Safety
    /// `arguments[i]` points to as many readable bytes as the kernel's parameter `i` has, for every
    /// parameter, and the kernel does with them only what the caller wants.
    pub(crate) unsafe fn launch(
        &self,
        function: CUfunction,
        shape: &LaunchShape,
        stream: CUstream,
        arguments: &mut [*mut c_void],
    ) -> CallResult<()> {
        let mut attributes = attributes(shape);
        let config = CUlaunchConfig_st {
            gridDimX: shape.grid[0],
            gridDimY: shape.grid[1],
            gridDimZ: shape.grid[2],
            blockDimX: shape.block[0],
            blockDimY: shape.block[1],
            blockDimZ: shape.block[2],
            sharedMemBytes: shape.dynamic_shared_bytes,
            hStream: stream,
            numAttrs: attributes.len() as u32,
            attrs: match &mut attributes[..] {
                [] => ptr::null_mut(),
                some => some.as_mut_ptr(),
            },
        };
        let arguments = arguments.as_mut_ptr();
        let what = format_args!("function={function:p}, {shape:?}, stream={stream:p}");
        // SAFETY: rules 1 and 2 of `raw` for the configuration and its attributes; the caller
        // vouches for the arguments, which the driver copies before it returns.
        unsafe {
            call!(
                self.cuLaunchKernelEx(&config, function, arguments, ptr::null_mut()),
                "{what}"
            )
        }
    }

    /// Encodes a recipe that passed its check. `element` and `swizzle` are the driver's numbers.
    pub(crate) fn tensor_map_encode(
        &self,
        recipe: &TensorMapRecipe,
        address: u64,
        element: u32,
        swizzle: u32,
    ) -> CallResult<CUtensorMap_st> {
        let mut map = CUtensorMap_st { opaque: [0; 16] };
        let encoded = recipe.encoded();
        // SAFETY: rule 2 of `raw`; the check of the recipe has every array as long as the rank asks for,
        // and the address is a number that the driver stores.
        let code = unsafe {
            (self.table.cuTensorMapEncodeTiled)(
                &mut map,
                element,
                encoded.dims.len() as u32,
                ptr::without_provenance_mut(address as usize),
                encoded.dims.as_ptr(),
                encoded.byte_strides.as_ptr(),
                encoded.box_dims.as_ptr(),
                [1; 5].as_ptr(),
                tensor_map_interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                tensor_map_l2_promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                tensor_map_fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        let what = || format!("address={address:#x}, data_type={element}, {recipe:?}");
        self.check("cuTensorMapEncodeTiled", code, what)?;
        Ok(map)
    }
}
