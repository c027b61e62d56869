//! The output and the log-sum-exp, into which threads store rows.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use flashcore_problem::{DType, Layout};
use zerocopy::{FromBytes, IntoBytes};

use crate::keys::store_row;

/// Rows of any head and position can be stored from any thread: memory is seen as atomic words, so
/// nothing is locked. A lock for each row would wait until the row before is in the cache.
pub(crate) struct Output<'o> {
    dtype: DType,
    layout: Layout,
    memory: Memory<'o>,
    /// `[batch, heads, seq]`. Empty if the log-sum-exp is not requested.
    lse: &'o [AtomicU32],
    /// `[heads]`, if there are any.
    sinks: Option<&'o [f32]>,
}

enum Memory<'o> {
    /// Rows begin and end at words.
    Words(&'o [AtomicU64]),
    Bytes(&'o [AtomicU8]),
}

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// Elements that are rounded at a time.
const ROUNDED: usize = 64;

impl<'o> Output<'o> {
    pub(crate) fn new(
        (dtype, layout): (DType, Layout),
        bytes: &'o mut [u8],
        lse: Option<&'o mut [f32]>,
        sinks: Option<&'o [f32]>,
    ) -> Output<'o> {
        let [batch, seq, head, _] = layout.strides;
        let steps = [batch, seq, head, layout.shape[3] as i64];
        let words = bytes.as_ptr().addr().is_multiple_of(WORD)
            && steps
                .iter()
                .all(|&step| (step as usize * dtype.size_bytes()).is_multiple_of(WORD));
        let memory = if words {
            Memory::Words(atomics(bytes))
        } else {
            Memory::Bytes(atomics(bytes))
        };
        let lse = lse.map_or(&[][..], |lse| atomics(bytemuck::cast_slice_mut(lse)));
        Output {
            dtype,
            layout,
            memory,
            lse,
            sinks,
        }
    }

    /// Stores a row of the running softmax: `values` over `sum`, and the log-sum-exp. The maximum is
    /// that of the scores. A fully masked row has sum 0: output 0, log-sum-exp −∞, or that of its sink.
    #[inline(always)] // into code that is compiled for an instruction set
    pub(crate) fn store(&self, [b, s, h]: [usize; 3], mut max: f64, sum: f32, values: &mut [f32]) {
        let mut sum = f64::from(sum);
        let mut factor = 1.0;
        if let Some(sink) = self.sinks.map(|sinks| f64::from(sinks[h]))
            && sink != f64::NEG_INFINITY
        {
            let highest = max.max(sink);
            factor = (max - highest).exp();
            sum = sum * factor + (sink - highest).exp();
            max = highest;
        }
        let inverse = if sum == 0.0 { 0.0 } else { (factor / sum) as f32 };
        values.iter_mut().for_each(|x| *x *= inverse);
        self.store_row([b, s, h], values);
        let [_, seq, heads, _] = self.layout.shape;
        if let Some(lse) = self.lse.get((b * heads + h) * seq + s) {
            // −∞ + ln 0 is −∞ as required.
            let value = max + sum.ln();
            lse.store((value as f32).to_bits(), Ordering::Relaxed);
        }
    }

    /// Rounds a row and stores it.
    #[inline(always)]
    pub(crate) fn store_row(&self, [b, s, h]: [usize; 3], values: &[f32]) {
        let size = self.dtype.size_bytes();
        let mut at = self.layout.offset(b, s, h, 0) * size;
        for values in values.chunks(ROUNDED) {
            let mut rounded = [0u64; ROUNDED * size_of::<f32>() / WORD];
            let rounded = &mut bytemuck::cast_slice_mut(&mut rounded)[..values.len() * size];
            store_row(self.dtype, values, rounded);
            match self.memory {
                Memory::Words(words) => {
                    let words = &words[at / WORD..][..rounded.len() / WORD];
                    for (word, bytes) in words.iter().zip(rounded.as_chunks().0) {
                        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
                    }
                }
                Memory::Bytes(bytes) => {
                    for (byte, &rounded) in bytes[at..][..rounded.len()].iter().zip(&*rounded) {
                        byte.store(rounded, Ordering::Relaxed);
                    }
                }
            }
            at += rounded.len();
        }
    }
}

/// Memory as atomic integers; bytes past the last whole one are left out.
fn atomics<A: FromBytes + IntoBytes>(bytes: &mut [u8]) -> &[A] {
    let whole = bytes.len() / size_of::<A>() * size_of::<A>();
    // Callers have checked that it is aligned.
    <[A]>::mut_from_bytes(&mut bytes[..whole]).unwrap_or_else(|error| unreachable!("{error}"))
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
        let odd = Layout {
            shape,
            strides: [3 * 51, 51, 11, 1],
        };
        let one_head = Layout {
            shape: [2, 3, 1, 8],
            strides: [24, 8, 0, 1],
        };
        for layout in [Layout::bshd(shape), Layout::bhsd(shape), padded, odd, one_head] {
            let [nb, ns, nh, nd] = layout.shape;
            let mut out = Tensor::poisoned(DType::F32, layout);
            let mut lse = vec![0.0; nb * nh * ns];
            let value = |b: usize, s: usize, h: usize| ((b * ns + s) * nh + h + 1) as f32;
            let output = Output::new((DType::F32, layout), out.bytes_mut(), Some(&mut lse), None);
            for (b, s, h) in (0..nb).flat_map(|b| (0..ns).flat_map(move |s| (0..nh).map(move |h| (b, s, h)))) {
                let mut row: Vec<f32> = (0..nd).map(|d| value(b, s, h) * 2.0 * (d + 1) as f32).collect();
                output.store([b, s, h], f64::from(value(b, s, h)), 2.0, &mut row);
            }
            for (b, s, h) in (0..nb).flat_map(|b| (0..ns).flat_map(move |s| (0..nh).map(move |h| (b, s, h)))) {
                let want = value(b, s, h);
                assert!((0..nd).all(|d| out.view().get(b, s, h, d) == want * (d + 1) as f32));
                let of_row = want + std::f32::consts::LN_2;
                assert!((lse[(b * nh + h) * ns + s] - of_row).abs() < 1e-4);
            }
            assert!(flashcore_problem::gaps_untouched(&out.view()).is_ok());
        }
    }
}
