//! Reads K and V of one head as dense f32 rows, and stores output rows.

use std::borrow::Cow;

use flashcore_problem::tensor::read_element;
use flashcore_problem::{DType, Sequence, TensorView};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Rows of one (sequence, head) of a tensor: row `s` is `data[s * dim..][..dim]`.
pub(crate) type Rows<'a> = Cow<'a, [f32]>;

/// Borrows the rows if the tensor is f32 with dense rows.
///
/// Strided f32 rows are copied: with a power-of-two stride a tile would map to a few cache sets.
pub(crate) fn borrow_rows<'a>(tensor: &TensorView<'a>, sequence: &Sequence<'_>, h: usize) -> Option<&'a [f32]> {
    let dim = tensor.layout().shape[3];
    if tensor.dtype() != DType::F32 || tensor.layout().strides[1] != dim as i64 || !sequence.is_contiguous() {
        return None;
    }
    let elements: &[f32] = bytemuck::try_cast_slice(tensor.bytes()).ok()?;
    let [b, s] = sequence.kv_row(0)?;
    elements
        .get(tensor.layout().offset(b, s, h, 0)..)?
        .get(..sequence.len_kv * dim)
}

/// Copies one row, widened to f32. e4m3 elements are multiplied by their scale.
#[inline]
pub(crate) fn copy_row(tensor: &TensorView<'_>, b: usize, s: usize, h: usize, out: &mut [f32]) {
    let at = tensor.layout().offset(b, s, h, 0);
    let size = tensor.dtype().size_bytes();
    let bytes = &tensor.bytes()[at * size..][..out.len() * size];
    match tensor.dtype() {
        DType::F32 => {
            for (x, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *x = f32::from_ne_bytes(*bytes);
            }
        }
        DType::BF16 => {
            for (x, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *x = bf16::from_ne_bytes(*bytes).to_f32();
            }
        }
        // `half` converts whole slices with the CPU's conversion instructions.
        DType::F16 => match bytemuck::try_cast_slice::<u8, f16>(bytes) {
            Ok(elements) => elements.convert_to_f32_slice(out),
            Err(_) => copy_elements(tensor.dtype(), bytes, out),
        },
        DType::E4M3 => {
            copy_elements(tensor.dtype(), bytes, out);
            let scale = tensor.scale(b, h);
            out.iter_mut().for_each(|x| *x *= scale);
        }
    }
}

fn copy_elements(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    for (i, x) in out.iter_mut().enumerate() {
        *x = read_element(dtype, bytes, i);
    }
}

/// Rounds `values` to `dtype` and stores them in `bytes`.
#[inline]
pub(crate) fn store_row(dtype: DType, values: &[f32], bytes: &mut [u8]) {
    match dtype {
        DType::F32 => {
            for (x, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
                *bytes = x.to_ne_bytes();
            }
        }
        DType::BF16 => {
            for (x, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
                *bytes = bf16::from_f32(*x).to_ne_bytes();
            }
        }
        DType::F16 => match bytemuck::try_cast_slice_mut::<u8, f16>(bytes) {
            Ok(elements) => elements.convert_from_f32_slice(values),
            Err(_) => store_elements(dtype, values, bytes),
        },
        DType::E4M3 => store_elements(dtype, values, bytes),
    }
}

fn store_elements(dtype: DType, values: &[f32], bytes: &mut [u8]) {
    for (i, &x) in values.iter().enumerate() {
        flashcore_problem::tensor::write_element(dtype, bytes, i, x);
    }
}
