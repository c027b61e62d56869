//! Element types of Q, K, V and O.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::words;

words! {
    /// Element type of Q, K and V, and of O except for e4m3 (see [`DType::output`]). Matches over it
    /// are exhaustive on purpose: each backend says what it does with each dtype.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    DType {
        /// IEEE binary32.
        F32 = "f32",
        /// IEEE binary16.
        F16 = "fp16",
        /// bfloat16: the upper 16 bits of binary32.
        BF16 = "bf16",
        /// fp8 with 4 exponent and 3 significand bits (OCP e4m3fn): maximum 448, no infinity. Tensors
        /// have [scales](crate::TensorView::with_scales); outputs are bf16.
        E4M3 = "e4m3",
    }
}

impl DType {
    /// Bytes per element.
    pub const fn size_bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::E4M3 => 1,
        }
    }

    /// The dtype of O for inputs of this dtype: bf16 for e4m3, otherwise the same.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::DType;
    /// assert_eq!((DType::E4M3.output(), DType::F16.output()), (DType::BF16, DType::F16));
    /// ```
    pub const fn output(self) -> DType {
        match self {
            DType::E4M3 => DType::BF16,
            same => same,
        }
    }

    /// The dtype with this name. Accepts common spellings (`fp16`, `f16`, `half`, `float16`, …).
    pub fn from_name(name: &str) -> Option<DType> {
        Some(match name.to_ascii_lowercase().as_str() {
            "f32" | "fp32" | "float" | "float32" => DType::F32,
            "f16" | "fp16" | "half" | "float16" => DType::F16,
            "bf16" | "bfloat16" => DType::BF16,
            "e4m3" | "fp8" | "float8_e4m3fn" => DType::E4M3,
            _ => return None,
        })
    }
}

/// A Rust type that is the element of a tensor: `f32`, [`struct@f16`], [`bf16`], or a type
/// of e4m3 numbers that the caller defines. Lengths, offsets, pages and slots are `i32`; the compiler says so:
///
/// ```compile_fail,E0277
/// # use flashcore_problem as flashcore;
/// use flashcore::{Host, Name, Operands};
/// let lengths = Operands::<Host>::new().with(Name::SequsedK, &[512u32, 17]);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no element of a `Tensor`",
    label = "not `f32`, `f16` or `bf16`",
    note = "lengths, offsets, pages and slots are operands of `i32` without a `Tensor`: give slices, such as \
            `&[512i32, 17]`, and convert other integers by `as i32`"
)]
pub trait Element: bytemuck::Pod {
    /// Its dtype, of the same size.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for f16 {
    const DTYPE: DType = DType::F16;
}

impl Element for bf16 {
    const DTYPE: DType = DType::BF16;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        }
        assert_eq!(DType::from_name("int8"), None);
    }
}
