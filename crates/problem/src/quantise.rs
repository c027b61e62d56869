//! Quantisation of tensors to e4m3.

use crate::scales::scale_index;
use crate::tensor::{E4M3_MAX, write_element};
use crate::{DType, ProblemError, Tensor, TensorView};

/// Scales that map each head's largest magnitude to e4m3's maximum: `absmax / 448`,
/// `[batch, scale_heads]`; 1 for a head of zeros. Heads share scales evenly: for Q, pass the number
/// of K/V heads. NaNs are ignored.
///
/// ```
/// # use flashcore_problem as flashcore;
/// use flashcore::{DType, Layout, Tensor, absmax_scales};
/// let layout = Layout::bshd([1, 4, 2, 8]);
/// let k = Tensor::from_fn(DType::F32, layout, |_, _, h, _| if h == 0 { -44.8 } else { 0.0 });
/// assert_eq!(absmax_scales(&k.view(), 2), [0.1, 1.0]);
/// ```
pub fn absmax_scales(values: &TensorView<'_>, scale_heads: usize) -> Vec<f32> {
    let [batch, _, heads, dim] = values.layout().shape;
    assert!(
        scale_heads > 0 && heads.is_multiple_of(scale_heads),
        "{heads} heads cannot share {scale_heads} scales"
    );
    let mut largest = vec![0f32; batch * scale_heads];
    for [b, s, h] in values.layout().rows() {
        let slot = &mut largest[scale_index(scale_heads, heads, b, h)];
        *slot = (0..dim).fold(*slot, |most, d| most.max(values.get(b, s, h, d).abs()));
    }
    let scale = |most: f32| if most == 0.0 { 1.0 } else { most / E4M3_MAX };
    largest.into_iter().map(scale).collect()
}

/// Divides elements by their scales and rounds to e4m3: nearest even, saturating at ±448. Keeps the
/// layout; gaps are poison. Errors call the tensor `tensor`.
///
/// ```
/// # use flashcore_problem as flashcore;
/// use flashcore::{DType, Layout, Tensor, absmax_scales, quantise};
/// let layout = Layout::bshd([1, 2, 1, 8]);
/// let k = Tensor::from_fn(DType::F32, layout, |_, s, _, d| (s * 8 + d) as f32);
/// let fp8 = quantise("k", &k.view(), vec![0.5])?;
/// // 30, 22 and 18 are e4m3 numbers (spacing 2 from 16 to 32); 45 is not and rounds to 44.
/// assert_eq!([15, 11, 9].map(|i| fp8.view().get(0, i / 8, 0, i % 8)), [15.0, 11.0, 9.0]);
/// let coarse = quantise("k", &k.view(), vec![1.0 / 3.0])?;
/// assert_eq!(coarse.view().get(0, 1, 0, 7), 44.0 * (1.0 / 3.0));
/// # Ok::<(), flashcore::ProblemError>(())
/// ```
pub fn quantise(tensor: &'static str, values: &TensorView<'_>, scales: Vec<f32>) -> Result<Tensor, ProblemError> {
    let layout = *values.layout();
    let mut quantised = Tensor::poisoned(DType::E4M3, layout).with_scales(tensor, scales.clone())?;
    let bytes = quantised.bytes_mut();
    let [batch, _, heads, dim] = layout.shape;
    let scale_heads = scales.len() / batch;
    for [b, s, h] in layout.rows() {
        let scale = scales[scale_index(scale_heads, heads, b, h)];
        for d in 0..dim {
            let at = layout.offset(b, s, h, d);
            write_element(DType::E4M3, bytes, at, values.get(b, s, h, d) / scale);
        }
    }
    Ok(quantised)
}
