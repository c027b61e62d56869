//! How large scores may be before kernels on a GPU give NaN instead of a wrong result.
//!
//! # Forward
//! A kernel computes `P = 2^(s·c − m)` in one FMA per score, where `c` is `softmax_scale · log2(e)` and `m` the row's
//! maximum, `max(s·c)`, rounded to f32. The FMA rounds once, so scores lose nothing. The rounding of `m` remains: it
//! multiplies all P of a row by one factor `2^e`, and the division by the row's sum removes the factor again. So a row
//! is exact while `2^e` fits the type of P. With `|m| < 2^n`, `m` is a multiple of `2^(n-24)` and `|e| ≤ 2^(n-25)`.
//!
//! | type of P | P without `e` | limit | `\|e\|` below it | P with `e` | room |
//! |---|---|---|---|---|---|
//! | fp16 | at most 2⁸ | 2²⁷ | 4 | at most 2¹² | 2¹⁶; twice the limit would reach 2¹⁶ and overflow |
//! | bf16, f32 | at most 2⁸ | 2³⁰ | 32 | at most 2⁴⁰ | 2¹²⁸: V up to 2⁶⁰ and 2²⁴ keys add up without overflow |
//! | e4m3 | at most 2⁸ | 2²⁴ | 1/2 | at most 363 | 448 |
//!
//! The bound 2⁸ is that of conditional rescaling. Rescaling in every K block stays at 1; speculative softmax lets sums
//! reach 2¹⁵ in 16-bit types, where it measures P with its factor. At and past the limit the output and the
//! log-sum-exp of a row are NaN. A kernel decides that once a row, after its last key, so it costs nothing per score.
//!
//! The CPU subtracts the maximum before it multiplies, and has no such limit: a row is right where `Σ|q·k| · scale` is
//! finite in f32, and NaN where its scores are not.
//!
//! # Backward
//! The backward pass computes P anew from the f32 log-sum-exp `L` that the forward pass stored: `P = exp(s − L)`.
//! Storing and converting it rounds `L`, so P has a relative error of up to `|L| · 2⁻²³`: 0.1 % at 2¹³, 1.6 % at 2¹⁷.
//! No backward pass that reads an f32 log-sum-exp can do better. Where `|L|` is above [`GRADIENT_LIMIT`], the gradients
//! of the row are NaN: its dQ, and dK and dV of the keys that it sees. Other keys of the same K/V head may become NaN,
//! too, since kernels compute masked probabilities before they discard them.

use crate::DType;

/// Limit of the largest score of a row on a GPU, as an exponent of 2 (`score · log2(e)`, with modifiers) and by
/// magnitude: rows below it are right, others NaN. See [the module](self).
///
/// ```
/// use flashcore_problem::{DType, score_limit};
/// // In units of a score: 93 million in fp16.
/// assert_eq!((score_limit(DType::F16) * std::f32::consts::LN_2) as u32, 93_032_640);
/// ```
pub const fn score_limit(dtype: DType) -> f32 {
    let exponent = match dtype {
        DType::F16 => 27,
        DType::F32 | DType::BF16 => 30,
        DType::E4M3 => 24,
    };
    (1u32 << exponent) as f32
}

/// Limit of a row's log-sum-exp, by magnitude, in a backward pass: above it the row's gradients are NaN. 2¹⁷, where the
/// error of P reaches 2⁻⁶. See [the module](self).
pub const GRADIENT_LIMIT: f32 = 131_072.0;
