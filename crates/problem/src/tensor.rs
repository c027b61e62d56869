//! Host tensors: bytes with a dtype, a [`Layout`] and, for e4m3, scales.

use half::{bf16, f16};

use crate::{DType, Layout, ProblemError};

/// The fill byte of poisoned memory: a NaN in every dtype.
pub const POISON: u8 = 0xff;

/// e4m3's maximum.
pub const E4M3_MAX: f32 = 448.0;

/// An owned host tensor. Its bytes include the gaps between strided elements.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: DType,
    layout: Layout,
    // Words of 64 bits align the bytes for every dtype and for 8-byte copies.
    words: Vec<u64>,
    bytes: usize,
    scales: Option<Vec<f32>>,
}

impl Tensor {
    /// A tensor with every byte, gaps included, equal to `fill`.
    pub fn filled(dtype: DType, layout: Layout, fill: u8) -> Tensor {
        let bytes = layout.span() * dtype.size_bytes();
        Tensor {
            dtype,
            layout,
            words: vec![u64::from_ne_bytes([fill; 8]); bytes.div_ceil(8)],
            bytes,
            scales: None,
        }
    }

    /// A tensor filled with [`POISON`], as outputs start: elements that a kernel did not write, and
    /// gaps that it did, are seen.
    pub fn poisoned(dtype: DType, layout: Layout) -> Tensor {
        Tensor::filled(dtype, layout, POISON)
    }

    /// A tensor of the values `value(b, s, h, d)`, rounded to `dtype`; gaps are zero.
    ///
    /// ```
    /// use flashcore_problem::{DType, Layout, Tensor};
    /// let layout = Layout::bshd([1, 2, 1, 8]);
    /// let t = Tensor::from_fn(DType::F16, layout, |_, s, _, d| (s * 8 + d) as f32);
    /// assert_eq!(t.view().get(0, 1, 0, 3), 11.0);
    /// ```
    pub fn from_fn(dtype: DType, layout: Layout, mut value: impl FnMut(usize, usize, usize, usize) -> f32) -> Tensor {
        let mut tensor = Tensor::filled(dtype, layout, 0);
        tensor.set_all(&mut value);
        tensor
    }

    /// Sets every element to `value(b, s, h, d)`, in the order batch, seq, head, d. Gaps stay.
    pub(crate) fn set_all(&mut self, value: &mut dyn FnMut(usize, usize, usize, usize) -> f32) {
        let [nb, ns, nh, nd] = self.layout.shape;
        let mut view = self.view_mut();
        for b in 0..nb {
            for s in 0..ns {
                for h in 0..nh {
                    for d in 0..nd {
                        view.set(b, s, h, d, value(b, s, h, d));
                    }
                }
            }
        }
    }

    /// Attaches scales: see [`TensorView::with_scales`].
    pub fn with_scales(mut self, tensor: &'static str, scales: Vec<f32>) -> Result<Tensor, ProblemError> {
        check_scales(tensor, self.dtype, &self.layout, &scales)?;
        self.scales = Some(scales);
        Ok(self)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Scales of an e4m3 tensor, `[batch, kv_heads]`.
    pub fn scales(&self) -> Option<&[f32]> {
        self.scales.as_deref()
    }

    /// All bytes, gaps included.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    /// All bytes, gaps included.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }

    /// Copies the elements, gaps and scales of another tensor without allocating.
    ///
    /// ```
    /// use flashcore_problem::{DType, Layout, Tensor};
    /// let layout = Layout::bshd([1, 1, 1, 8]);
    /// let mut to = Tensor::poisoned(DType::F32, layout);
    /// to.copy_from(&Tensor::from_fn(DType::F32, layout, |_, _, _, d| d as f32));
    /// assert_eq!(to.view().get(0, 0, 0, 7), 7.0);
    /// ```
    ///
    /// # Panics
    /// If dtype or layout differ.
    pub fn copy_from(&mut self, other: &Tensor) {
        assert_eq!((self.dtype, self.layout), (other.dtype, other.layout));
        self.words.copy_from_slice(&other.words);
        self.scales.clone_from(&other.scales);
    }

    /// A borrowed view of the whole tensor.
    pub fn view(&self) -> TensorView<'_> {
        TensorView {
            dtype: self.dtype,
            layout: self.layout,
            bytes: self.bytes(),
            scales: self.scales(),
        }
    }

    /// A mutable view of the whole tensor.
    pub fn view_mut(&mut self) -> TensorViewMut<'_> {
        TensorViewMut {
            dtype: self.dtype,
            layout: self.layout,
            bytes: &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes],
        }
    }
}

/// A borrowed host tensor. Its methods panic where an index is out of range.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    dtype: DType,
    layout: Layout,
    bytes: &'a [u8],
    scales: Option<&'a [f32]>,
}

impl<'a> TensorView<'a> {
    /// A view of `bytes`, which start with element `[0, 0, 0, 0]`. Errors call the tensor `tensor`.
    ///
    /// # Errors
    /// The layout is invalid ([`Layout::check`]), exceeds `bytes`, or `bytes` is not aligned to the
    /// dtype.
    pub fn new(
        tensor: &'static str,
        dtype: DType,
        layout: Layout,
        bytes: &'a [u8],
    ) -> Result<TensorView<'a>, ProblemError> {
        check_buffer(tensor, dtype, &layout, bytes)?;
        Ok(TensorView {
            dtype,
            layout,
            bytes,
            scales: None,
        })
    }

    /// Attaches scales to an e4m3 tensor: each value is the element times its scale. `scales` are
    /// f32 `[batch, kv_heads]`, dense. Heads share them evenly, so head `h` of Q uses the scale of
    /// its K/V head. (FlashAttention-3 calls them descale factors.) Errors call the tensor
    /// `tensor`.
    ///
    /// ```
    /// use flashcore_problem::{DType, Layout, TensorView};
    /// let bytes = [0x38; 2 * 8]; // 1.0 in e4m3
    /// let q = TensorView::new("q", DType::E4M3, Layout::bshd([1, 1, 2, 8]), &bytes)?;
    /// let q = q.with_scales("q", &[0.5, 3.0])?;
    /// assert_eq!((q.get(0, 0, 0, 7), q.get(0, 0, 1, 7)), (0.5, 3.0));
    /// # Ok::<(), flashcore_problem::ProblemError>(())
    /// ```
    ///
    /// # Errors
    /// The tensor is not e4m3, the number of scales does not divide into batch and heads, or a
    /// scale is not finite and positive.
    pub fn with_scales(self, tensor: &'static str, scales: &'a [f32]) -> Result<TensorView<'a>, ProblemError> {
        check_scales(tensor, self.dtype, &self.layout, scales)?;
        Ok(TensorView {
            scales: Some(scales),
            ..self
        })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// All bytes, gaps included.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The scales, `[batch, kv_heads]`, if any.
    pub fn scales(&self) -> Option<&'a [f32]> {
        self.scales
    }

    /// The scale of a batch and head; 1 without scales.
    pub fn scale(&self, b: usize, h: usize) -> f32 {
        let [batch, _, heads, _] = self.layout.shape;
        let of_head = |scales: &[f32]| scales[scale_index(scales.len() / batch, heads, b, h)];
        self.scales.map_or(1.0, of_head)
    }

    /// One element times its scale, as f32.
    pub fn get(&self, b: usize, s: usize, h: usize, d: usize) -> f32 {
        self.value(b, s, h, d) as f32
    }

    /// One element times its scale, exact.
    pub fn value(&self, b: usize, s: usize, h: usize, d: usize) -> f64 {
        check_index(&self.layout, [b, s, h, d]);
        let element = f64::from(read_element(self.dtype, self.bytes, self.layout.offset(b, s, h, d)));
        element * f64::from(self.scale(b, h))
    }
}

/// A mutably borrowed host tensor. Its methods panic where an index is out of range.
#[derive(Debug)]
pub struct TensorViewMut<'a> {
    dtype: DType,
    layout: Layout,
    bytes: &'a mut [u8],
}

impl<'a> TensorViewMut<'a> {
    /// As [`TensorView::new`]; elements must not overlap.
    pub fn new(
        tensor: &'static str,
        dtype: DType,
        layout: Layout,
        bytes: &'a mut [u8],
    ) -> Result<TensorViewMut<'a>, ProblemError> {
        check_buffer(tensor, dtype, &layout, bytes)?;
        layout.check_injective(tensor)?;
        Ok(TensorViewMut { dtype, layout, bytes })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// All bytes, gaps included.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// The same tensor, read only.
    pub fn as_view(&self) -> TensorView<'_> {
        TensorView {
            dtype: self.dtype,
            layout: self.layout,
            bytes: self.bytes,
            scales: None,
        }
    }

    /// Rounds `value` to the dtype (nearest even) and stores it.
    pub fn set(&mut self, b: usize, s: usize, h: usize, d: usize, value: f32) {
        check_index(&self.layout, [b, s, h, d]);
        write_element(self.dtype, self.bytes, self.layout.offset(b, s, h, d), value);
    }
}

fn check_buffer(tensor: &'static str, dtype: DType, layout: &Layout, bytes: &[u8]) -> Result<(), ProblemError> {
    layout.check(tensor)?;
    let (size, given) = (dtype.size_bytes(), bytes.len());
    let needed = layout.span() * size;
    let message = if given < needed {
        format!("{tensor} needs {needed} bytes for its shape and strides; the buffer has {given}")
    } else if !(bytes.as_ptr() as usize).is_multiple_of(size) {
        format!("{tensor}'s data is not aligned to its {dtype} elements ({size} bytes)")
    } else {
        return Ok(());
    };
    Err(ProblemError::Tensor { tensor, message })
}

/// Index in `[batch, scale_heads]` of the scale of head `h` of `heads`.
pub(crate) fn scale_index(scale_heads: usize, heads: usize, b: usize, h: usize) -> usize {
    b * scale_heads + h / (heads / scale_heads)
}

fn check_scales(tensor: &'static str, dtype: DType, layout: &Layout, scales: &[f32]) -> Result<(), ProblemError> {
    if dtype != DType::E4M3 {
        return Err(ProblemError::DType {
            tensor,
            given: dtype,
            expected: DType::E4M3,
        });
    }
    let [batch, _, heads, _] = layout.shape;
    let a_batch = scales.len().checked_div(batch).unwrap_or(0);
    if a_batch == 0 || !scales.len().is_multiple_of(batch) || !heads.is_multiple_of(a_batch) {
        return Err(ProblemError::scales(tensor, scales.len(), batch, heads));
    }
    match scales.iter().position(|scale| !(scale.is_finite() && *scale > 0.0)) {
        None => Ok(()),
        Some(index) => Err(ProblemError::Tensor {
            tensor,
            message: format!(
                "scale {index} of {tensor} is {}; scales are finite and above 0 (1 for a head that is all zeros)",
                scales[index]
            ),
        }),
    }
}

fn check_index(layout: &Layout, index: [usize; 4]) {
    assert!(
        index.iter().zip(layout.shape).all(|(&i, n)| i < n),
        "index {index:?} is outside shape {:?}",
        layout.shape
    );
}

/// Element `index` of `bytes`, widened to f32 (e4m3: OCP 8-bit floating point, table 1).
pub fn read_element(dtype: DType, bytes: &[u8], index: usize) -> f32 {
    let at = index * dtype.size_bytes();
    match dtype {
        DType::F32 => f32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]),
        DType::F16 => f16::from_ne_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        DType::BF16 => bf16::from_ne_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        DType::E4M3 => e4m3_to_f32(bytes[at]),
    }
}

/// Rounds `value` to `dtype` (nearest even) and stores it as element `index`.
pub fn write_element(dtype: DType, bytes: &mut [u8], index: usize, value: f32) {
    let at = index * dtype.size_bytes();
    match dtype {
        DType::F32 => bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes()),
        DType::F16 => bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_ne_bytes()),
        DType::BF16 => bytes[at..at + 2].copy_from_slice(&bf16::from_f32(value).to_ne_bytes()),
        DType::E4M3 => bytes[at] = f32_to_e4m3(value),
    }
}

/// Difference of the exponent biases of f32 and e4m3 (127 and 7), shifted by 3 fraction bits.
const E4M3_REBIAS: u32 = (127 - 7) << 3;

/// Position in f32 of e4m3's lowest fraction bit.
const E4M3_LAST_BIT: u32 = 20;

/// The smallest normal number, and the spacing of subnormal numbers.
const E4M3_MIN_NORMAL: f32 = 1.0 / 64.0;
const E4M3_MIN_SUBNORMAL: f32 = 1.0 / 512.0;

fn e4m3_to_f32(byte: u8) -> f32 {
    let magnitude = match byte & 0x7f {
        0x7f => f32::NAN,
        subnormal @ 0..8 => f32::from(subnormal) * E4M3_MIN_SUBNORMAL,
        normal => f32::from_bits((u32::from(normal) + E4M3_REBIAS) << E4M3_LAST_BIT),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Nearest even, saturating at ±448 as `cvt.satfinite`; NaN stays NaN.
fn f32_to_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = value.abs().min(E4M3_MAX);
    if magnitude < E4M3_MIN_NORMAL {
        // Rounding up to 8 gives the encoding of the smallest normal number.
        return sign | (magnitude / E4M3_MIN_SUBNORMAL).round_ties_even() as u8;
    }
    let bits = magnitude.to_bits();
    let half_less_one = (1 << (E4M3_LAST_BIT - 1)) - 1;
    let rounded = (bits + half_less_one + (bits >> E4M3_LAST_BIT & 1)) >> E4M3_LAST_BIT;
    sign | (rounded - E4M3_REBIAS) as u8
}
