//! Tensor maps: the descriptors with which the Tensor Memory Accelerator of Hopper and later copies
//! boxes of a strided tensor (PTX manual, *Tensors*; CUDA driver API, `cuTensorMapEncodeTiled`). A
//! recipe of the kernel language is encoded as it is; each rule whose violation the driver reports
//! as a bare `INVALID_VALUE` is checked first ([`TensorMapRecipe::check`]).

use flashcore_ir::{BufferSpec, ScalarType, Swizzle, TensorMapRecipe};

use crate::context::Context;
use crate::error::CudaError;
use crate::memory::DeviceSlice;
use crate::sys::{CUtensorMap_st, tensor_map_swizzle, tensor_map_type};

/// An encoded tensor map: a kernel argument of 128 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorMap(pub(crate) CUtensorMap_st);

impl TensorMap {
    /// Encodes a recipe for a tensor in `buffer`, which is what the recipe calls its slot.
    ///
    /// # Errors
    /// [`CudaError::TensorMap`] with the rule that is broken; [`CudaError::NoTensorMaps`].
    pub fn encode(context: &Context, recipe: &TensorMapRecipe, buffer: DeviceSlice<'_>) -> Result<Self, CudaError> {
        buffer.check_device(context.ordinal(), "the tensor")?;
        let (major, minor) = context.info().compute_capability;
        if major < 9 {
            return Err(CudaError::NoTensorMaps { major, minor });
        }
        let checked = recipe.check(&spec_of(buffer));
        checked.map_err(|problem| CudaError::TensorMap(Box::new(problem)))?;
        let (element, swizzle) = (element_code(recipe.element), swizzle_code(recipe.swizzle));
        let address = buffer.address() + recipe.byte_offset;
        let map = context.call(|driver| driver.tensor_map_encode(recipe, address, element, swizzle))?;
        Ok(Self(map))
    }
}

/// A buffer as the recipe's rules see it.
fn spec_of(buffer: DeviceSlice<'_>) -> BufferSpec {
    BufferSpec {
        name: "tensor",
        bytes: buffer.len() as u64,
        written: false,
        align: 1 << buffer.address().trailing_zeros().min(8),
    }
}

/// The driver's number of an element type; fp8 is copied as bytes.
fn element_code(element: ScalarType) -> u32 {
    match element {
        ScalarType::F16 => tensor_map_type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        ScalarType::BF16 => tensor_map_type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        ScalarType::F32 => tensor_map_type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        // Other types do not pass `TensorMapRecipe::check`.
        _ => tensor_map_type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
    }
}

fn swizzle_code(swizzle: Swizzle) -> u32 {
    match swizzle {
        Swizzle::None => tensor_map_swizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
        Swizzle::B32 => tensor_map_swizzle::CU_TENSOR_MAP_SWIZZLE_32B,
        Swizzle::B64 => tensor_map_swizzle::CU_TENSOR_MAP_SWIZZLE_64B,
        Swizzle::B128 => tensor_map_swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
    }
}

#[cfg(test)]
mod tests {
    use flashcore_ir::launch::TensorMapProblem;

    use super::*;

    #[test]
    fn a_buffer_is_as_long_and_as_aligned_as_it_is() {
        let recipe = TensorMapRecipe {
            slot: 0,
            byte_offset: 0,
            element: ScalarType::F16,
            dims: vec![64, 100],
            byte_strides: vec![128],
            box_dims: vec![64, 64],
            swizzle: Swizzle::B128,
            ragged: None,
        };
        #[allow(unsafe_code)]
        let check = |address, bytes| {
            // SAFETY: nothing is done with this memory.
            recipe.check(&spec_of(unsafe { DeviceSlice::of_stream(0, 0, address, bytes) }))
        };
        assert_eq!(check(0x1000, 12_800), Ok(()));
        assert!(matches!(check(0x1000, 12_799), Err(TensorMapProblem::Reach { .. })));
        assert!(matches!(
            check(0x1008, 12_800),
            Err(TensorMapProblem::Start { align: 8, .. })
        ));
    }
}
