//! Scales of e4m3 tensors: of an entry of the batch, or of a sequence, and a head.

use crate::{DType, Layout, ProblemError, Tensor, TensorView, refuse};

impl Tensor {
    /// Attaches scales: see [`TensorView::with_scales`].
    pub fn with_scales(self, tensor: &'static str, scales: Vec<f32>) -> Result<Tensor, ProblemError> {
        let batch = self.layout().shape[0];
        self.with_scales_of(tensor, batch, scales)
    }

    /// Attaches scales of sequences: see [`TensorView::with_scales_of`].
    pub fn with_scales_of(
        mut self,
        tensor: &'static str,
        sequences: usize,
        scales: Vec<f32>,
    ) -> Result<Tensor, ProblemError> {
        check_scales(tensor, self.dtype(), self.layout(), sequences, &scales)?;
        (self.scales, self.scaled) = (Some(scales), sequences);
        Ok(self)
    }
}

impl<'a> TensorView<'a> {
    /// Attaches scales to an e4m3 tensor: each value is the element times its scale. `scales` are
    /// f32 `[batch, kv_heads]`, dense. Heads share them evenly, so head `h` of Q uses the scale of
    /// its K/V head. (FlashAttention-3 calls them descale factors.) Errors call the tensor
    /// `tensor`.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{DType, Layout, TensorView};
    /// let bytes = [0x38; 2 * 8]; // 1.0 in e4m3
    /// let q = TensorView::new("q", DType::E4M3, Layout::bshd([1, 1, 2, 8]), &bytes)?;
    /// let q = q.with_scales("q", &[0.5, 3.0])?;
    /// assert_eq!((q.get(0, 0, 0, 7), q.get(0, 0, 1, 7)), (0.5, 3.0));
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    ///
    /// # Errors
    /// The tensor is not e4m3, the number of scales does not divide into batch and heads, or a
    /// scale is not finite and positive.
    pub fn with_scales(self, tensor: &'static str, scales: &'a [f32]) -> Result<TensorView<'a>, ProblemError> {
        self.with_scales_of(tensor, self.layout().shape[0], scales)
    }

    /// The same with scales `[sequences, kv_heads]`: those of packed tensors and of pages, which have
    /// another first dimension. Values are then those of a sequence: [`of_sequence`](Self::of_sequence).
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{DType, Layout, TensorView};
    /// let bytes = [0x38; 3 * 8]; // 1.0 in e4m3
    /// let k = TensorView::new("k", DType::E4M3, Layout::bshd([1, 3, 1, 8]), &bytes)?;
    /// let k = k.with_scales_of("k", 2, &[0.5, 3.0])?;
    /// // Row 2 is of the second sequence.
    /// assert_eq!(k.of_sequence(1).get(0, 2, 0, 7), 3.0);
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    ///
    /// # Errors
    /// As [`with_scales`](Self::with_scales).
    pub fn with_scales_of(
        mut self,
        tensor: &'static str,
        sequences: usize,
        scales: &'a [f32],
    ) -> Result<TensorView<'a>, ProblemError> {
        check_scales(tensor, self.dtype(), self.layout(), sequences, scales)?;
        (self.scales, self.scaled) = (Some(scales), sequences);
        Ok(self)
    }

    /// The same tensor with the scales of a sequence for all of its rows.
    ///
    /// # Panics
    /// There are scales, and none of this sequence.
    #[inline]
    pub fn of_sequence(mut self, sequence: usize) -> TensorView<'a> {
        let of_one = |scales: &'a [f32]| {
            let heads = scales.len() / self.scaled;
            &scales[sequence * heads..][..heads]
        };
        (self.scales, self.scaled) = (self.scales.map(of_one), 1);
        self
    }

    /// The scale of a batch and head; 1 without scales. Scales of one entry are those of all.
    pub fn scale(&self, b: usize, h: usize) -> f32 {
        let (heads, b) = (self.layout().shape[2], if self.scaled == 1 { 0 } else { b });
        let of_head = |scales: &[f32]| scales[scale_index(scales.len() / self.scaled, heads, b, h)];
        self.scales.map_or(1.0, of_head)
    }
}

/// Index in `[batch, scale_heads]` of the scale of head `h` of `heads`.
pub(crate) fn scale_index(scale_heads: usize, heads: usize, b: usize, h: usize) -> usize {
    b * scale_heads + h / (heads / scale_heads)
}

fn check_scales(
    tensor: &'static str,
    dtype: DType,
    layout: &Layout,
    batch: usize,
    scales: &[f32],
) -> Result<(), ProblemError> {
    ProblemError::check_dtype(tensor, dtype, DType::E4M3)?;
    let heads = layout.shape[2];
    let a_batch = scales.len().checked_div(batch).unwrap_or(0);
    refuse!(a_batch == 0 || !scales.len().is_multiple_of(batch) || !heads.is_multiple_of(a_batch) =>
        scales(tensor, scales.len(), batch, heads));
    match scales.iter().position(|scale| !(scale.is_finite() && *scale > 0.0)) {
        None => Ok(()),
        Some(index) => ProblemError::tensor(
            tensor,
            format!(
                "scale {index} of {tensor} is {}; scales are finite and above 0 (1 for a head that is all zeros)",
                scales[index]
            ),
        ),
    }
}
