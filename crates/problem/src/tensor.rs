//! Host tensors: bytes with a dtype and a [`Layout`].

use half::{bf16, f16};

use crate::{DType, Layout, ProblemError};

/// The byte that poisoned memory is filled with: a NaN in every dtype.
pub const POISON: u8 = 0xff;

/// An owned host tensor. Its bytes include the gaps that its strides leave.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: DType,
    layout: Layout,
    // u64 words so that the bytes are aligned for every dtype and for 8-byte copies.
    words: Vec<u64>,
    bytes: usize,
}

impl Tensor {
    /// A tensor whose every byte, gaps included, is `fill`. `0xff` makes every element NaN, which
    /// is how outputs are poisoned before a check.
    pub fn filled(dtype: DType, layout: Layout, fill: u8) -> Tensor {
        let bytes = layout.span() * dtype.size_bytes();
        Tensor {
            dtype,
            layout,
            words: vec![u64::from_ne_bytes([fill; 8]); bytes.div_ceil(8)],
            bytes,
        }
    }

    /// A tensor of NaNs, gaps included: every byte is [`POISON`]. Outputs start so, which shows what a kernel
    /// never wrote, and what it wrote where no element is.
    pub fn poisoned(dtype: DType, layout: Layout) -> Tensor {
        Tensor::filled(dtype, layout, POISON)
    }

    /// A tensor of the values `value(b, s, h, d)`, rounded to `dtype`; gaps are zero.
    ///
    /// ```
    /// use flashcore_problem::{DType, Layout, Tensor};
    /// let t = Tensor::from_fn(DType::F16, Layout::bshd([1, 2, 1, 8]), |_, s, _, d| (s * 8 + d) as f32);
    /// assert_eq!(t.view().get(0, 1, 0, 3), 11.0);
    /// ```
    pub fn from_fn(dtype: DType, layout: Layout, mut value: impl FnMut(usize, usize, usize, usize) -> f32) -> Tensor {
        let mut tensor = Tensor::filled(dtype, layout, 0);
        let [nb, ns, nh, nd] = layout.shape;
        let mut view = tensor.view_mut();
        for b in 0..nb {
            for s in 0..ns {
                for h in 0..nh {
                    for d in 0..nd {
                        view.set(b, s, h, d, value(b, s, h, d));
                    }
                }
            }
        }
        tensor
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
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    /// All bytes, gaps included.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }

    /// A borrowed view of the whole tensor.
    pub fn view(&self) -> TensorView<'_> {
        TensorView {
            dtype: self.dtype,
            layout: self.layout,
            bytes: self.bytes(),
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

/// A borrowed host tensor.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    dtype: DType,
    layout: Layout,
    bytes: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// A view of `bytes`, whose first element is at index 0 of every dimension. `tensor` names it in errors.
    ///
    /// # Errors
    /// When the layout is not one kernels take ([`Layout::check`]), reaches past `bytes`, or
    /// `bytes` is not aligned to the dtype.
    pub fn new(
        tensor: &'static str,
        dtype: DType,
        layout: Layout,
        bytes: &'a [u8],
    ) -> Result<TensorView<'a>, ProblemError> {
        check_buffer(tensor, dtype, &layout, bytes)?;
        Ok(TensorView { dtype, layout, bytes })
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

    /// One element, widened to f32.
    ///
    /// # Panics
    /// When an index is out of range.
    pub fn get(&self, b: usize, s: usize, h: usize, d: usize) -> f32 {
        check_index(&self.layout, [b, s, h, d]);
        read_element(self.dtype, self.bytes, self.layout.offset(b, s, h, d))
    }
}

/// A mutably borrowed host tensor.
#[derive(Debug)]
pub struct TensorViewMut<'a> {
    dtype: DType,
    layout: Layout,
    bytes: &'a mut [u8],
}

impl<'a> TensorViewMut<'a> {
    /// As [`TensorView::new`]; elements must not overlap either.
    ///
    /// # Errors
    /// As [`TensorView::new`], and [`ProblemError::Strides`] where elements overlap.
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
        }
    }

    /// Rounds `value` to the dtype (nearest even) and stores it.
    ///
    /// # Panics
    /// When an index is out of range.
    pub fn set(&mut self, b: usize, s: usize, h: usize, d: usize, value: f32) {
        check_index(&self.layout, [b, s, h, d]);
        write_element(self.dtype, self.bytes, self.layout.offset(b, s, h, d), value);
    }
}

fn check_buffer(tensor: &'static str, dtype: DType, layout: &Layout, bytes: &[u8]) -> Result<(), ProblemError> {
    layout.check(tensor)?;
    let needed = layout.span() * dtype.size_bytes();
    if bytes.len() < needed {
        return Err(ProblemError::BufferTooSmall {
            tensor,
            needed,
            given: bytes.len(),
        });
    }
    if !(bytes.as_ptr() as usize).is_multiple_of(dtype.size_bytes()) {
        return Err(ProblemError::Misaligned {
            tensor,
            dtype,
            needed: dtype.size_bytes(),
        });
    }
    Ok(())
}

fn check_index(layout: &Layout, index: [usize; 4]) {
    assert!(
        index.iter().zip(layout.shape).all(|(&i, n)| i < n),
        "index {index:?} is outside shape {:?}",
        layout.shape
    );
}

/// Element `index` of `bytes`, widened to f32. e4m3 is decoded by definition (OCP 8-bit floating point, table 1).
pub fn read_element(dtype: DType, bytes: &[u8], index: usize) -> f32 {
    let at = index * dtype.size_bytes();
    match dtype {
        DType::F32 => f32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]),
        DType::F16 => f16::from_ne_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        DType::BF16 => bf16::from_ne_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        DType::E4M3 => e4m3_to_f32(bytes[at]),
    }
}

/// Rounds `value` to `dtype`, nearest even, and stores it as element `index`.
pub fn write_element(dtype: DType, bytes: &mut [u8], index: usize, value: f32) {
    let at = index * dtype.size_bytes();
    match dtype {
        DType::F32 => bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes()),
        DType::F16 => bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_ne_bytes()),
        DType::BF16 => bytes[at..at + 2].copy_from_slice(&bf16::from_f32(value).to_ne_bytes()),
        DType::E4M3 => bytes[at] = f32_to_e4m3(value),
    }
}

fn e4m3_to_f32(byte: u8) -> f32 {
    let (exponent, fraction) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction / 8.0 * 2f32.powi(-6),
        _ => (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Nearest even, saturating to ±448 as `cvt.satfinite` does; NaN stays NaN.
fn f32_to_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = value.abs().min(448.0);
    // The spacing of e4m3 numbers at this magnitude; subnormals share the spacing of the smallest normals.
    let exponent = if magnitude < 2f32.powi(-6) {
        -6
    } else {
        magnitude.log2().floor() as i32
    };
    let ulp = 2f32.powi(exponent - 3);
    let rounded = (magnitude / ulp).round_ties_even() * ulp;
    if rounded < 2f32.powi(-6) {
        return sign | (rounded / 2f32.powi(-9)) as u8;
    }
    let exponent = rounded.log2().floor() as i32;
    let fraction = (rounded / 2f32.powi(exponent) - 1.0) * 8.0;
    sign | ((exponent + 7) as u8) << 3 | fraction as u8
}
