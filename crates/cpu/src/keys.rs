//! K and V of one head as dense f32 rows, borrowed where they already are that.

use std::borrow::Cow;
use std::ops::Range;

use flashcore_problem::tensor::read_element;
use flashcore_problem::{DType, TensorView};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// One tensor's rows of one (batch, head): row `s` is `data[s * dim..][..dim]`.
pub(crate) type Rows<'a> = Cow<'a, [f32]>;

/// Rows that need no copy, if the tensor is f32 with dense rows.
///
/// Strided f32 rows are copied too: strides that are powers of two would map a whole tile to a few
/// sets of the cache, and the copy is made once for all query tiles.
pub(crate) fn borrow_rows<'a>(tensor: &TensorView<'a>, b: usize, h: usize) -> Option<&'a [f32]> {
    let [_, seq, _, dim] = tensor.layout().shape;
    if tensor.dtype() != DType::F32 || tensor.layout().strides[1] != dim as i64 {
        return None;
    }
    let elements: &[f32] = bytemuck::try_cast_slice(tensor.bytes()).ok()?;
    elements.get(tensor.layout().offset(b, 0, h, 0)..)?.get(..seq * dim)
}

/// Copies rows `rows` of one (batch, head) to `out`, widened to f32 and scaled; `out` holds `rows.len() · head_dim` elements.
pub(crate) fn copy_rows(tensor: &TensorView<'_>, b: usize, h: usize, rows: Range<usize>, out: &mut [f32]) {
    let dim = tensor.layout().shape[3];
    for (row, out) in rows.zip(out.chunks_exact_mut(dim)) {
        copy_row(tensor, b, row, h, out);
    }
}

/// Copies one row, widened to f32 and, if it is e4m3, times its scale.
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
        // `half` converts whole slices with the machine's own instructions.
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

/// Rounds `values` to `dtype` and stores them as the elements of `bytes`.
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
