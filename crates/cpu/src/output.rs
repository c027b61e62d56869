//! The output and the log-sum-exp, into which threads store rows.

use std::sync::{Mutex, PoisonError};

use flashcore_problem::{DType, Layout, TensorViewMut};

use crate::keys::store_row;

/// Rows of any head and position can be stored from any thread. Memory is divided into regions,
/// each behind a lock that is held while one row is copied.
pub(crate) struct Output<'o> {
    dtype: DType,
    layout: Layout,
    /// The dimension within a region, then those that number the regions: indices into a shape,
    /// by ascending stride.
    order: [usize; 3],
    regions: Vec<Mutex<&'o mut [u8]>>,
    /// `[batch, heads]` regions of `seq` elements. Empty if the log-sum-exp is not requested.
    lse: Vec<Mutex<&'o mut [f32]>>,
    /// `[heads]`, if there are any.
    sinks: Option<&'o [f32]>,
}

impl<'o> Output<'o> {
    pub(crate) fn new(out: &'o mut TensorViewMut<'_>, lse: Option<&'o mut [f32]>) -> Output<'o> {
        let (dtype, layout) = (out.dtype(), *out.layout());
        // In this order rows ascend in memory, because the elements of an output do not overlap.
        let mut order = [0, 1, 2];
        order.sort_by_key(|&i| (layout.strides[i], layout.shape[i]));
        let [_, middle, outer] = order;
        let (mut rest, mut at) = (out.bytes_mut(), 0);
        let mut regions = Vec::with_capacity(layout.shape[outer] * layout.shape[middle]);
        for i in 0..layout.shape[outer] {
            for j in 0..layout.shape[middle] {
                let start = i * layout.strides[outer] as usize + j * layout.strides[middle] as usize;
                let (before, after) = std::mem::take(&mut rest).split_at_mut((start - at) * dtype.size_bytes());
                regions.push(Mutex::new(before));
                (rest, at) = (after, start);
            }
        }
        // What was split off before a region's start is the region before it.
        regions.push(Mutex::new(rest));
        regions.remove(0);
        let lse = lse.map(|lse| lse.chunks_mut(layout.shape[1]).map(Mutex::new).collect());
        Output {
            dtype,
            layout,
            order,
            regions,
            lse: lse.unwrap_or_default(),
            sinks: None,
        }
    }

    /// The same with sinks.
    pub(crate) fn with_sinks(self, sinks: Option<&'o [f32]>) -> Output<'o> {
        Output { sinks, ..self }
    }

    /// Stores a row of the running softmax: `values` over `sum`, and the log-sum-exp. The maximum is
    /// in log2 units. A fully masked row has sum 0: output 0, log-sum-exp −∞, or that of its sink.
    #[inline(always)]
    pub(crate) fn store(&self, [b, s, h]: [usize; 3], max: f32, sum: f32, values: &mut [f32]) {
        let (mut max, mut sum) = (f64::from(max), f64::from(sum));
        let mut factor = 1.0;
        if let Some(sink) = self.sinks.map(|sinks| f64::from(sinks[h]) * std::f64::consts::LOG2_E)
            && sink > f64::NEG_INFINITY
        {
            let highest = max.max(sink);
            factor = (max - highest).exp2();
            sum = sum * factor + (sink - highest).exp2();
            max = highest;
        }
        let inverse = if sum == 0.0 { 0.0 } else { (factor / sum) as f32 };
        values.iter_mut().for_each(|x| *x *= inverse);
        self.store_row([b, s, h], values);
        if let Some(lse) = self.lse.get(b * self.layout.shape[2] + h) {
            // −∞ + ln 0 is −∞ as required.
            let value = max * std::f64::consts::LN_2 + sum.ln();
            lse.lock().unwrap_or_else(PoisonError::into_inner)[s] = value as f32;
        }
    }

    /// Rounds a row and stores it.
    #[inline(always)]
    pub(crate) fn store_row(&self, [b, s, h]: [usize; 3], values: &[f32]) {
        let [inner, middle, outer] = self.order;
        let (index, shape) = ([b, s, h], self.layout.shape);
        let region = &self.regions[index[outer] * shape[middle] + index[middle]];
        let size = self.dtype.size_bytes();
        let at = index[inner] * self.layout.strides[inner] as usize * size;
        let mut bytes = region.lock().unwrap_or_else(PoisonError::into_inner);
        store_row(self.dtype, values, &mut bytes[at..][..values.len() * size]);
    }
}

#[cfg(test)]
mod tests {
    use flashcore_problem::Tensor;

    use super::*;

    #[test]
    fn rows_are_stored_where_any_layout_has_them() {
        let shape = [2, 3, 4, 8];
        let padded = Layout {
            shape,
            strides: [3 * 50, 50, 10, 1],
        };
        let one_head = Layout {
            shape: [2, 3, 1, 8],
            strides: [24, 8, 0, 1],
        };
        for layout in [Layout::bshd(shape), Layout::bhsd(shape), padded, one_head] {
            let [nb, ns, nh, nd] = layout.shape;
            let mut out = Tensor::poisoned(DType::F32, layout);
            let mut lse = vec![0.0; nb * nh * ns];
            let value = |b: usize, s: usize, h: usize| ((b * ns + s) * nh + h + 1) as f32;
            let mut view = out.view_mut();
            let output = Output::new(&mut view, Some(&mut lse));
            for (b, s, h) in (0..nb).flat_map(|b| (0..ns).flat_map(move |s| (0..nh).map(move |h| (b, s, h)))) {
                let mut row: Vec<f32> = (0..nd).map(|d| value(b, s, h) * 2.0 * (d + 1) as f32).collect();
                output.store([b, s, h], value(b, s, h), 2.0, &mut row);
            }
            for (b, s, h) in (0..nb).flat_map(|b| (0..ns).flat_map(move |s| (0..nh).map(move |h| (b, s, h)))) {
                let want = value(b, s, h);
                assert!((0..nd).all(|d| out.view().get(b, s, h, d) == want * (d + 1) as f32));
                let of_row = (want + 1.0) * std::f32::consts::LN_2;
                assert!((lse[(b * nh + h) * ns + s] - of_row).abs() < 1e-4);
            }
            assert!(flashcore_problem::gaps_untouched(&out.view()).is_ok());
        }
    }
}
