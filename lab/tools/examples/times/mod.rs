//! What the examples that take times share: tensors that repeat a pattern, and one row in float64.

use std::error::Error;

use flashcore::cuda::{DeviceBuffer, Stream};
use half::bf16;

pub(crate) const HEADS: usize = 32;
pub(crate) const KV_HEADS: usize = 8;
pub(crate) const HEAD_DIM: usize = 128;

/// Random elements that tensors repeat.
pub(crate) const PATTERN: usize = (1 << 20) + 7;

/// A tensor of `elements` that repeat the pattern.
pub(crate) fn repeated(stream: &Stream, pattern: &[bf16], elements: usize) -> Result<DeviceBuffer, Box<dyn Error>> {
    let buffer = DeviceBuffer::new(stream.context(), 2 * elements)?;
    let mut filled = 2 * pattern.len().min(elements);
    let bytes: Vec<u8> = pattern.iter().flat_map(|x| x.to_le_bytes()).collect();
    buffer
        .as_slice()
        .range(0..filled)?
        .copy_from_host(stream, &bytes[..filled])?;
    while filled < 2 * elements {
        let more = filled.min(2 * elements - filled);
        let to = buffer.as_slice().range(filled..filled + more)?;
        to.copy_from(stream, buffer.as_slice().range(0..more)?)?;
        filled += more;
    }
    Ok(buffer)
}

/// The largest difference of the last head from float64 in the last of `rows` rows, which sees `len` keys; `row_of` gives the
/// row of a key.
pub(crate) fn error(pattern: &[bf16], out: &[bf16], rows: usize, len: usize, row_of: impl Fn(usize) -> usize) -> f64 {
    let at = |i: usize| f64::from(pattern[i % PATTERN]);
    let q = ((rows - 1) * HEADS + HEADS - 1) * HEAD_DIM;
    let row = |key: usize| (row_of(key) * KV_HEADS + KV_HEADS - 1) * HEAD_DIM;
    let score =
        |key: usize| (0..HEAD_DIM).map(|d| at(q + d) * at(row(key) + d)).sum::<f64>() / (HEAD_DIM as f64).sqrt();
    let scores: Vec<f64> = (0..len).map(score).collect();
    let max = scores.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
    let value = |d: usize| {
        let weighed = scores.iter().enumerate();
        weighed
            .map(|(key, score)| (score - max).exp() * at(row(key) + d))
            .sum::<f64>()
            / sum
    };
    let errors = (0..HEAD_DIM).map(|d| (value(d) - f64::from(out[q + d])).abs());
    errors.fold(0.0, f64::max)
}
