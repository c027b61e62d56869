//! Host tensors: bytes with a dtype, a [`Layout`] and, for e4m3, scales; for Q, sinks and slopes.

use half::{bf16, f16};

use crate::e4m3::{e4m3_to_f32, f32_to_e4m3};
use crate::head_values::HeadValues;
use crate::view::bytes_needed;
use crate::{DType, Element, ElementType, Layout, ProblemError};

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
    pub(crate) scales: Option<Vec<f32>>,
    /// Entries of the batch that the scales are of.
    pub(crate) scaled: usize,
    pub(crate) head_values: HeadValues<Vec<f32>>,
}

impl Tensor {
    /// A tensor with every byte, gaps included, equal to `fill`.
    ///
    /// # Panics
    /// If memory cannot hold the layout; [`Layout::check`] refuses it.
    pub fn filled(dtype: DType, layout: Layout, fill: u8) -> Tensor {
        let bytes = layout.span_bytes(dtype.size_bytes()).unwrap_or(usize::MAX); // which is too many, too
        Tensor {
            dtype,
            layout,
            words: vec![u64::from_ne_bytes([fill; 8]); bytes.div_ceil(8)],
            bytes,
            scales: None,
            scaled: layout.shape[0],
            head_values: HeadValues::default(),
        }
    }

    /// A tensor of bytes 0xff, a NaN in every dtype, as outputs start: elements that a kernel did not write, and
    /// gaps that it did, are seen. Panics as [`Tensor::filled`].
    pub fn poisoned(dtype: DType, layout: Layout) -> Tensor {
        Tensor::filled(dtype, layout, POISON)
    }

    /// A tensor of these values, in the order of the layout, gaps included. `[batch, seq, heads,
    /// head_dim]` stands for the dense layout of this shape.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{Layout, Tensor, f16};
    /// let values: Vec<f16> = (0..16).map(|i| f16::from_f32(i as f32)).collect();
    /// let t = Tensor::from_slice([1, 2, 1, 8], &values)?;
    /// assert_eq!(t.view().get(0, 1, 0, 3), 11.0);
    /// assert_eq!(t.as_slice::<f16>()?, values);
    /// let transposed = Tensor::from_slice(Layout::bhsd([1, 1, 2, 8]), &values)?;
    /// assert_eq!(transposed.view().get(0, 0, 1, 3), 11.0);
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    ///
    /// # Errors
    /// The layout is invalid, or needs another number of values.
    pub fn from_slice<T: Element>(layout: impl Into<Layout>, values: &[T]) -> Result<Tensor, ProblemError> {
        let layout = layout.into();
        TensorView::from_slice(layout, values)?;
        if values.len() > layout.span() {
            return wrong_length(&layout, values.len());
        }
        let mut tensor = Tensor::filled(T::DTYPE, layout, 0);
        tensor.bytes_mut().copy_from_slice(bytemuck::cast_slice(values));
        Ok(tensor)
    }

    /// All values, gaps included, in the order of the layout.
    ///
    /// # Errors
    /// The tensor's dtype is not that of `T`.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], ProblemError> {
        ElementType::from(self.dtype).check_is::<T>()?;
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// The same to write.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{DType, Tensor};
    /// let mut t = Tensor::filled(DType::F32, [1, 2, 1, 8].into(), 0);
    /// t.as_mut_slice::<f32>()?[11] = 0.5; // row 1, column 3
    /// assert_eq!(t.view().get(0, 1, 0, 3), 0.5);
    /// assert!(t.as_mut_slice::<flashcore::f16>().is_err());
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::as_slice`].
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], ProblemError> {
        ElementType::from(self.dtype).check_is::<T>()?;
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()))
    }

    /// A tensor of the values `value(b, s, h, d)`, rounded to `dtype`; gaps are zero. Panics as [`Tensor::filled`].
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{DType, Layout, Tensor};
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
        for [b, s, h] in self.layout.rows() {
            for d in 0..self.layout.shape[3] {
                self.set(b, s, h, d, value(b, s, h, d));
            }
        }
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

    /// Copies the elements, gaps, scales, sinks and slopes of another tensor without allocating.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{DType, Layout, Tensor};
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
        self.scaled = other.scaled;
        self.head_values.clone_from(&other.head_values);
    }

    /// A borrowed view of the whole tensor.
    pub fn view(&self) -> TensorView<'_> {
        TensorView {
            dtype: self.dtype,
            layout: self.layout,
            bytes: self.bytes(),
            scales: self.scales(),
            scaled: self.scaled,
            head_values: self.head_values.as_slices(),
        }
    }

    /// Rounds `value` to the dtype (nearest even) and stores it. Panics where an index is out of range.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{DType, Tensor, bf16};
    /// let mut t = Tensor::filled(DType::BF16, [1, 1, 1, 64].into(), 0);
    /// t.set(0, 0, 0, 63, 2.0);
    /// assert_eq!(t.as_slice::<bf16>()?[63], bf16::from_f32(2.0));
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    pub fn set(&mut self, b: usize, s: usize, h: usize, d: usize, value: f32) {
        check_index(&self.layout, [b, s, h, d]);
        let (dtype, at) = (self.dtype, self.layout.offset(b, s, h, d));
        write_element(dtype, self.bytes_mut(), at, value);
    }
}

/// A borrowed host tensor. Its methods panic where an index is out of range.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    dtype: DType,
    layout: Layout,
    bytes: &'a [u8],
    pub(crate) scales: Option<&'a [f32]>,
    /// Entries of the batch that the scales are of.
    pub(crate) scaled: usize,
    pub(crate) head_values: HeadValues<&'a [f32]>,
}

impl<'a> From<&'a Tensor> for TensorView<'a> {
    fn from(tensor: &'a Tensor) -> TensorView<'a> {
        tensor.view()
    }
}

impl<'a> TensorView<'a> {
    /// A view of `values`, which start with element `[0, 0, 0, 0]`. `[batch, seq, heads, head_dim]`
    /// stands for the dense layout of this shape.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::TensorView;
    /// let cache = [1.0f32; 1000]; // longer than what is used of it
    /// assert_eq!(TensorView::from_slice([1, 12, 1, 64], &cache)?.get(0, 11, 0, 63), 1.0);
    /// let error = TensorView::from_slice([1, 16, 1, 64], &cache).unwrap_err();
    /// assert!(error.to_string().starts_with("1000 values were given; shape [1, 16, 1, 64]"));
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    ///
    /// # Errors
    /// The layout is invalid or needs more values.
    pub fn from_slice<T: Element>(layout: impl Into<Layout>, values: &'a [T]) -> Result<TensorView<'a>, ProblemError> {
        let layout = layout.into();
        layout.check("the tensor")?;
        if values.len() < layout.span() {
            return wrong_length(&layout, values.len());
        }
        TensorView::new("the tensor", T::DTYPE, layout, bytemuck::cast_slice(values))
    }

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
        layout.check(tensor)?;
        bytes_needed(tensor, dtype.into(), &layout, bytes)?;
        Ok(TensorView {
            dtype,
            layout,
            bytes,
            scales: None,
            scaled: layout.shape[0],
            head_values: HeadValues::default(),
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

fn wrong_length<T>(layout: &Layout, given: usize) -> Result<T, ProblemError> {
    let (Layout { shape, strides }, needed) = (layout, layout.span());
    let message = format!("{given} values were given; shape {shape:?} with strides {strides:?} needs {needed}");
    ProblemError::tensor("the tensor", message)
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
