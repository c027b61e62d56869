//! Reads rows of Q, K and V as f32, and rounds output rows.

use std::ops::Range;

use flashcore_problem::tensor::read_element;
use flashcore_problem::{DType, Sequence, TensorView};
use half::f16;
use half::slice::HalfFloatSliceExt;

/// K or V of one (sequence, head).
pub(crate) struct HeadRows<'t> {
    tensor: &'t TensorView<'t>,
    sequence: &'t Sequence<'t>,
    head: usize,
    /// All rows, dense, if the tensor has them so.
    dense: Option<&'t [f32]>,
}

impl<'t> HeadRows<'t> {
    pub(crate) fn new(tensor: &'t TensorView<'t>, sequence: &'t Sequence<'t>, head: usize) -> HeadRows<'t> {
        HeadRows {
            tensor,
            sequence,
            head,
            dense: borrow_rows(tensor, sequence, head),
        }
    }

    /// The rows of `keys` as `[keys][stride]` f32, if the tensor has them so.
    ///
    /// Strided f32 rows are copied, too: with a power-of-two stride they map to a few cache sets.
    #[inline(always)]
    pub(crate) fn borrow(&self, keys: Range<usize>, stride: usize) -> Option<&'t [f32]> {
        let dim = self.tensor.layout().shape[3];
        let rows = self.dense.filter(|_| dim == stride)?;
        Some(&rows[keys.start * dim..keys.end * dim])
    }

    /// Widens the rows of `keys` into `to`, `[keys][stride]`, with zeros past head_dim.
    ///
    /// A row on no page is zero; no query row sees it.
    #[inline(always)]
    pub(crate) fn widen(&self, keys: Range<usize>, stride: usize, to: &mut [f32]) {
        let dim = self.tensor.layout().shape[3];
        for (key, row) in keys.zip(to.chunks_exact_mut(stride)) {
            match self.sequence.kv_row(key) {
                Some([b, s]) => copy_row(self.tensor, b, s, self.head, &mut row[..dim]),
                None => row[..dim].fill(0.0),
            }
            row[dim..].fill(0.0);
        }
    }

    /// [`HeadRows::borrow`], else [`HeadRows::widen`].
    #[inline(always)]
    pub(crate) fn pack<'r>(&self, keys: Range<usize>, stride: usize, to: &'r mut [f32]) -> &'r [f32]
    where
        't: 'r,
    {
        if let Some(rows) = self.borrow(keys.clone(), stride) {
            return rows;
        }
        let to = &mut to[..keys.len() * stride];
        self.widen(keys, stride, to);
        to
    }
}

fn borrow_rows<'a>(tensor: &TensorView<'a>, sequence: &Sequence<'_>, h: usize) -> Option<&'a [f32]> {
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
#[inline(always)] // into code that is compiled for an instruction set
pub(crate) fn copy_row(tensor: &TensorView<'_>, b: usize, s: usize, h: usize, out: &mut [f32]) {
    let at = tensor.layout().offset(b, s, h, 0);
    let size = tensor.dtype().size_bytes();
    widen_row(tensor.dtype(), &tensor.bytes()[at * size..][..out.len() * size], out);
    if tensor.dtype() == DType::E4M3 {
        let scale = tensor.scale(b, h);
        out.iter_mut().for_each(|x| *x *= scale);
    }
}

/// The elements of one row as f32.
#[inline(always)]
pub(crate) fn widen_row(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => {
            for (x, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *x = f32::from_ne_bytes(*bytes);
            }
        }
        DType::BF16 => {
            for (x, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                // `bf16::to_f32` quiets NaN, which is a branch.
                *x = f32::from_bits(u32::from(u16::from_ne_bytes(*bytes)) << 16);
            }
        }
        DType::F16 => {
            for (x, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *x = widen_f16(u16::from_ne_bytes(*bytes));
            }
        }
        DType::E4M3 => copy_elements(dtype, bytes, out),
    }
}

/// An f16 as f32, exactly, without branches: the loop around it becomes vector code.
#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    // The difference of the exponents' biases, and f16's smallest normal number, as f32.
    const BIAS: u32 = (127 - 15) << 23;
    const SMALLEST: f32 = f32::from_bits(BIAS + (1 << 23));
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let normal = magnitude + BIAS;
    // As a normal number with exponent 1, less that number: exact, and no f32 is subnormal.
    let subnormal = (f32::from_bits(normal + (1 << 23)) - SMALLEST).to_bits();
    let finite = if magnitude < 1 << 23 { subnormal } else { normal };
    let widened = if magnitude >= 31 << 23 { normal + BIAS } else { finite };
    f32::from_bits(widened | u32::from(bits >> 15) << 31)
}

/// An f32 as bf16, as `half` rounds it, without branches.
#[inline(always)]
fn round_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1))) >> 16;
    (if x.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16
}

fn copy_elements(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    for (i, x) in out.iter_mut().enumerate() {
        *x = read_element(dtype, bytes, i);
    }
}

/// Rounds `values` to `dtype` and stores them in `bytes`.
#[inline(always)] // into code that is compiled for an instruction set
pub(crate) fn store_row(dtype: DType, values: &[f32], bytes: &mut [u8]) {
    match dtype {
        DType::F32 => {
            for (x, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
                *bytes = x.to_ne_bytes();
            }
        }
        DType::BF16 => {
            for (x, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
                *bytes = round_bf16(*x).to_ne_bytes();
            }
        }
        // `half` converts whole slices with the CPU's conversion instructions.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_rounded_as_half_rounds() {
        // Each sign, exponent and seven bits of the fraction, with what is below, at and above a half.
        for bits in (0..=u16::MAX)
            .flat_map(|high| [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| u32::from(high) << 16 | low))
        {
            let x = f32::from_bits(bits);
            assert_eq!(round_bf16(x), half::bf16::from_f32(x).to_bits(), "{bits:#010x}");
        }
    }

    #[test]
    fn every_f16_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (got, want) = (widen_f16(bits), f16::from_bits(bits).to_f32());
            let nan = got.is_nan() && want.is_nan();
            assert!(nan || got.to_bits() == want.to_bits(), "{bits:#06x}: {got} for {want}");
        }
    }
}
