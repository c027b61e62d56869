//! Tensor maps: the descriptors with which the Tensor Memory Accelerator of Hopper and later copies boxes of
//! a strided tensor (PTX manual, *Tensors*; CUDA driver API, `cuTensorMapEncodeTiled`). Each rule the driver
//! would answer with a bare `INVALID_VALUE` is checked first.

use crate::context::Context;
use crate::error::CudaError;
use crate::memory::DeviceSlice;
use crate::raw::TensorMapCall;
use crate::sys::{CUtensorMap_st, tensor_map_l2_promotion, tensor_map_swizzle, tensor_map_type};

/// An encoded tensor map: a kernel argument of 128 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorMap(pub(crate) CUtensorMap_st);

/// Element types of a tensor map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorMapElement {
    /// One byte; also both fp8 types.
    U8,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single.
    F32,
}

impl TensorMapElement {
    /// Bytes an element.
    pub fn bytes(self) -> u32 {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    fn code(self) -> u32 {
        match self {
            Self::U8 => tensor_map_type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            Self::F16 => tensor_map_type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Self::Bf16 => tensor_map_type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            Self::F32 => tensor_map_type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        }
    }
}

/// How a box is laid out in shared memory: 16-byte pieces permuted within rows of that many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TensorMapSwizzle {
    /// As it is in the tensor.
    #[default]
    None,
    /// Within 32 bytes.
    Bytes32,
    /// Within 64 bytes.
    Bytes64,
    /// Within 128 bytes, in atoms of 8 rows: 1,024-byte aligned.
    Bytes128,
}

impl TensorMapSwizzle {
    /// The longest inner box, bytes; `None` where swizzle sets no bound.
    fn span(self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Bytes32 => Some(32),
            Self::Bytes64 => Some(64),
            Self::Bytes128 => Some(128),
        }
    }

    fn code(self) -> u32 {
        match self {
            Self::None => tensor_map_swizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            Self::Bytes32 => tensor_map_swizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            Self::Bytes64 => tensor_map_swizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            Self::Bytes128 => tensor_map_swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        }
    }
}

/// How much the L2 cache fetches at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TensorMapL2 {
    /// Only what is asked for.
    None,
    /// 64 bytes.
    Bytes64,
    /// 128 bytes.
    Bytes128,
    /// 256 bytes: what the fastest attention kernels use.
    #[default]
    Bytes256,
}

impl TensorMapL2 {
    fn code(self) -> u32 {
        match self {
            Self::None => tensor_map_l2_promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            Self::Bytes64 => tensor_map_l2_promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
            Self::Bytes128 => tensor_map_l2_promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            Self::Bytes256 => tensor_map_l2_promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        }
    }
}

/// What to encode. Dimensions are innermost first: attention tensors are `(head_dim, seq, heads, batch)`,
/// with any strides, so that no two of them have to merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMapSpec {
    /// Element type.
    pub element: TensorMapElement,
    /// Elements along each dimension, innermost first; 1 to 5 dimensions.
    pub dims: Vec<u64>,
    /// Bytes from one index to the next along each dimension but the innermost.
    pub byte_strides: Vec<u64>,
    /// Elements of the box along each dimension.
    pub box_dims: Vec<u32>,
    /// Layout of the box in shared memory.
    pub swizzle: TensorMapSwizzle,
    /// L2 fetch size.
    pub l2: TensorMapL2,
}

/// Why a tensor map cannot be encoded. The rules are those of `cuTensorMapEncodeTiled` without interleave.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorMapRefusal {
    /// Too many or too few dimensions, or lists that do not agree.
    #[error(
        "{dims} dimensions, {strides} strides, {boxes} box dimensions; needed are 1 to 5 dimensions, one stride fewer, \
         and as many box dimensions"
    )]
    Rank {
        /// Dimensions given.
        dims: usize,
        /// Strides given.
        strides: usize,
        /// Box dimensions given.
        boxes: usize,
    },
    /// The tensor does not begin at a multiple of 16 bytes.
    #[error("the tensor begins at {address:#x}; it must be a multiple of 16 B")]
    Address {
        /// Its address.
        address: u64,
    },
    /// A dimension is 0 or above 2³².
    #[error("dimension {index} is {given}; it must be 1 to 4294967296")]
    Dim {
        /// Which, from the innermost.
        index: usize,
        /// Elements given.
        given: u64,
    },
    /// A stride that is no multiple of 16 bytes, or too long.
    #[error("stride {index} is {given} B; it must be a multiple of 16 B below 2^40 B")]
    Stride {
        /// Which, from the innermost.
        index: usize,
        /// Bytes given.
        given: u64,
    },
    /// A box dimension is 0 or above 256.
    #[error("box dimension {index} is {given}; it must be 1 to 256 elements")]
    Box {
        /// Which, from the innermost.
        index: usize,
        /// Elements given.
        given: u32,
    },
    /// The inner row of the box has a length that cannot be copied.
    #[error("the box's inner row has {given} B; it must be a multiple of 16 B{}", match span { Some(span) => format!(" and at most the swizzle's {span} B"), None => String::new() })]
    InnerBytes {
        /// Bytes given.
        given: u64,
        /// The swizzle's span, bytes.
        span: Option<u32>,
    },
    /// The tensor reaches past its buffer.
    #[error("the tensor reaches over {needed} B, but its buffer has {given} B")]
    Reach {
        /// Bytes from the first to past the last element.
        needed: u128,
        /// Bytes given.
        given: u64,
    },
    /// The element type has no tensor map.
    #[error("elements of type {element} cannot be copied by tensor map; use f16, bf16, f32 or e4m3")]
    Element {
        /// The type asked for.
        element: String,
    },
    /// The device has no tensor memory accelerator.
    #[error("tensor maps need compute capability 9.0; this device has {}.{}", device.0, device.1)]
    NeedsHopper {
        /// The device's compute capability.
        device: (u32, u32),
    },
}

impl TensorMapSpec {
    /// Encodes the map for a tensor that begins where `tensor` does.
    ///
    /// # Errors
    /// [`CudaError::TensorMap`] with the rule that is broken.
    pub fn encode(&self, context: &Context, tensor: DeviceSlice<'_>) -> Result<TensorMap, CudaError> {
        let refuse = |refusal| CudaError::TensorMap(Box::new(refusal));
        tensor.check_device(context.ordinal(), "the tensor")?;
        let device = context.info().compute_capability;
        if device.0 < 9 {
            return Err(refuse(TensorMapRefusal::NeedsHopper { device }));
        }
        self.prove(tensor.address(), tensor.len() as u64).map_err(refuse)?;
        let map = context.call(|driver| {
            driver.tensor_map_encode(&TensorMapCall {
                data_type: self.element.code(),
                address: tensor.address(),
                dims: &self.dims,
                byte_strides: &self.byte_strides,
                box_dims: &self.box_dims,
                element_strides: &[1; 5][..self.dims.len()],
                swizzle: self.swizzle.code(),
                l2_promotion: self.l2.code(),
            })
        })?;
        Ok(TensorMap(map))
    }

    fn prove(&self, address: u64, bytes: u64) -> Result<(), TensorMapRefusal> {
        let rank = self.dims.len();
        if !(1..=5).contains(&rank) || self.byte_strides.len() + 1 != rank || self.box_dims.len() != rank {
            return Err(TensorMapRefusal::Rank {
                dims: rank,
                strides: self.byte_strides.len(),
                boxes: self.box_dims.len(),
            });
        }
        if !address.is_multiple_of(16) {
            return Err(TensorMapRefusal::Address { address });
        }
        if let Some((index, &given)) = self
            .dims
            .iter()
            .enumerate()
            .find(|(_, dim)| !(1..=1 << 32).contains(*dim))
        {
            return Err(TensorMapRefusal::Dim { index, given });
        }
        let bad_stride = |stride: u64| !stride.is_multiple_of(16) || stride >= 1 << 40;
        if let Some((index, &given)) = self
            .byte_strides
            .iter()
            .enumerate()
            .find(|(_, stride)| bad_stride(**stride))
        {
            return Err(TensorMapRefusal::Stride { index, given });
        }
        if let Some((index, &given)) = self
            .box_dims
            .iter()
            .enumerate()
            .find(|(_, dim)| !(1..=256).contains(*dim))
        {
            return Err(TensorMapRefusal::Box { index, given });
        }
        let inner = u64::from(self.box_dims[0]) * u64::from(self.element.bytes());
        let span = self.swizzle.span();
        if !inner.is_multiple_of(16) || span.is_some_and(|span| inner > u64::from(span)) {
            return Err(TensorMapRefusal::InnerBytes { given: inner, span });
        }
        let outer: u128 = self.dims[1..]
            .iter()
            .zip(&self.byte_strides)
            .map(|(&dim, &stride)| u128::from(dim - 1) * u128::from(stride))
            .sum();
        let needed = outer + u128::from(self.dims[0]) * u128::from(self.element.bytes());
        if needed > u128::from(bytes) {
            return Err(TensorMapRefusal::Reach { needed, given: bytes });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[batch 2, seq 100, heads 3, head_dim 128]` in fp16, contiguous; boxes of 64 × 128 rows.
    fn spec() -> TensorMapSpec {
        TensorMapSpec {
            element: TensorMapElement::F16,
            dims: vec![128, 100, 3, 2],
            byte_strides: vec![768, 256, 76_800],
            box_dims: vec![64, 128, 1, 1],
            swizzle: TensorMapSwizzle::Bytes128,
            l2: TensorMapL2::default(),
        }
    }

    const BYTES: u64 = 2 * 100 * 3 * 128 * 2;

    #[test]
    fn an_attention_tensor_passes_to_its_last_byte() {
        assert_eq!(spec().prove(0x1000, BYTES), Ok(()));
        assert!(
            matches!(spec().prove(0x1000, BYTES - 1), Err(TensorMapRefusal::Reach { needed, .. }) if needed == u128::from(BYTES))
        );
    }

    #[test]
    fn each_rule_is_named() {
        let refuse = |change: fn(&mut TensorMapSpec)| {
            let mut spec = spec();
            change(&mut spec);
            spec.prove(0x1000, BYTES).unwrap_err()
        };
        assert!(matches!(refuse(|s| s.dims = vec![]), TensorMapRefusal::Rank { .. }));
        assert!(matches!(refuse(|s| s.dims.push(1)), TensorMapRefusal::Rank { .. }));
        assert!(matches!(
            refuse(|s| s.dims[1] = 0),
            TensorMapRefusal::Dim { index: 1, given: 0 }
        ));
        assert!(matches!(
            refuse(|s| s.dims[2] = (1 << 32) + 1),
            TensorMapRefusal::Dim { index: 2, .. }
        ));
        assert!(matches!(
            refuse(|s| s.byte_strides[0] = 760),
            TensorMapRefusal::Stride { index: 0, given: 760 }
        ));
        assert!(matches!(
            refuse(|s| s.byte_strides[2] = 1 << 40),
            TensorMapRefusal::Stride { index: 2, .. }
        ));
        assert!(matches!(
            refuse(|s| s.box_dims[1] = 257),
            TensorMapRefusal::Box { index: 1, given: 257 }
        ));
        assert!(matches!(
            refuse(|s| s.box_dims[0] = 128),
            TensorMapRefusal::InnerBytes { given: 256, .. }
        ));
        assert!(matches!(
            refuse(|s| s.box_dims[0] = 4),
            TensorMapRefusal::InnerBytes { given: 8, .. }
        ));
        assert!(matches!(
            spec().prove(0x1008, BYTES),
            Err(TensorMapRefusal::Address { .. })
        ));
        // Sizes near 2^72 bytes must not overflow.
        assert!(matches!(
            refuse(|s| s.dims = vec![1 << 32; 4]),
            TensorMapRefusal::Reach { .. }
        ));
    }
}
