//! Error bound for the rounding inside a kernel, which a single tolerance cannot cover.
//!
//! The error of a score becomes a relative error of its probability: f32 holds a score of 10,000 to
//! 1e-3, and no kernel can do better. An e4m3 kernel also rounds probabilities, and the effect on an
//! output depends on how many keys share the probability. The reference therefore computes a bound
//! per row. Let `w_j = exp(s_j - max)` be the weight of key j, `l` their sum, `p_j = w_j / l`, and
//! `O = Σ p_j v_j`. The bound of each column of O is the sum of these parts, the first for every
//! dtype and the others for e4m3:
//!
//! 1. **Scores.** Sums of products are accumulated in f32, so a score has an error of up to
//!    `e_j = 2^-23 · scale · |q|·|k_j|` (of a single product, which is exact, only that of the scale:
//!    `2^-22` of its distance from the largest score), and its unnormalised probability a factor of
//!    `exp(±e_j)`: `exp(max e) · Σ p_j · (exp(e_j) - 1) · |v_j - O|`, at most the largest
//!    `|v_j - O|`. Hopper accumulates fp8 products in about 14 bits:
//!    `e_j = 2^-12 · scale · Σ|q·k_j|`. It truncates each term of each instruction, so many equal
//!    products lose more than this, if they have more bits than it keeps: no
//!    [`InputKind`](crate::InputKind) has such. Of a soft-capped score the error is multiplied by the
//!    derivative `1 - (s_j/cap)²`, and `2^-23 · |s_j|` added. ALiBi adds `2^-23 · (2·slope·(d + 256) +
//!    |s_j|)` at a distance of `d`. A sink counts as a key whose value is 0, with an error of
//!    `2^-23 · |sink|`.
//! 2. **Rounding of P** to e4m3 multiplies each probability by `1 + d_j`, `|d_j| <= 2^-4`. The
//!    worst case is `2^-4 · Σ p_j |v_j|`. The common part of the errors moves the output by at most
//!    `2^-4 · |O|`. The rest is independent between keys and adds up as a random walk:
//!    `4 · 2^-4 · sqrt(Σ (p_j v_j)²)` is more than nine standard deviations (the mean e4m3 rounding
//!    error is 0.42 of the largest). The smaller of both bounds counts.
//! 3. **Small P.** Below e4m3's smallest normal number the rounding error is absolute. Kernels
//!    first multiply P by a power of two (P is at most 1, e4m3 at most 448): 2^8 with an exact
//!    running maximum, less if the maximum may lag behind the scores, at least 2^3. A weight below
//!    2^-9 thus has an error of up to 2^-13, and never more than itself:
//!    `Σ min(w_j, 2^-13) · |v_j| / l` over such keys.
//! 4. **Sums of P·V.** Again 14 bits: `2^-12 · Σ p_j |v_j|` for the products. The running sum is
//!    truncated to 14 bits every 32 keys: `2^-13 · n/32 · (|O| + sqrt(Σ (p_j v_j)²))`.
//!
//! The random walk of part 2 assumes that the rounding errors of P are independent of V. This holds
//! for every [`InputKind`](crate::InputKind); data constructed against it would need the worst
//! case. The log-sum-exp is summed in f32 before P is rounded, so its error is that of the scores:
//! `ln Σ p_j exp(e_j)`, or that of the logarithm of
//! a sum that reaches 2^9, `2^-20`.
//!
//! Whatever the errors of scores are, a row of O is an average of rows of V. So each element also lies in the **hull**
//! of its column of V, from the smallest to the largest value of visible keys (and 0 with a sink), widened by parts 2
//! to 4.
//!
//! [`Tolerance::of`](crate::Tolerance::of) covers the rounding of P and of the output to 16 bits.

use crate::{DType, Tolerance};

/// Error of an f32 score relative to the norms of its vectors.
pub(crate) const SCORE_ERROR: f64 = 1.0 / 8_388_608.0;
/// Error of the logarithm of a sum of probabilities, before the maximum is added: sums reach 2^9.
const LOGARITHM_ERROR: f64 = 8.0 * SCORE_ERROR;
/// Relative error of a sum of fp8 products, and of truncating a running sum.
pub(crate) const SUM_ERROR: f64 = 1.0 / 4096.0;
const CUT_ERROR: f64 = 1.0 / 8192.0;
/// Exponentials of larger errors of scores would overflow; [`Column::span`] bounds what they do.
pub(crate) const LARGEST_ERROR: f64 = 300.0;
/// Keys per product instruction (`wgmma` m64nNk32).
const KEYS_A_PRODUCT: usize = 32;
/// Half of e4m3's relative spacing.
const P_ERROR: f64 = 1.0 / 16.0;
/// Standard deviations that are allowed of a random walk, in units of its largest steps.
pub(crate) const WALK: f64 = 4.0;
/// Weights below this round with an absolute error, at most the second constant.
const SMALL_WEIGHT: f64 = 1.0 / 512.0;
const SMALL_WEIGHT_ERROR: f64 = 1.0 / 8192.0;

/// Additional tolerance of one row: see [the module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Slack {
    /// For each element of the row of O.
    pub out: Vec<f64>,
    /// The smallest and the largest value of each element, but for the tolerance.
    pub hull: Vec<[f64; 2]>,
    /// For its log-sum-exp.
    pub lse: f64,
}

impl Slack {
    /// That of a fully masked row.
    pub(crate) fn none(head_dim_v: usize) -> Slack {
        Slack {
            out: vec![0.0; head_dim_v],
            hull: vec![ANYTHING; head_dim_v],
            lse: 0.0,
        }
    }

    /// The slack of a row. Per visible key: `weights` are `exp(score - max)` with sum `sum`,
    /// `errors` those of the scores, `v_rows` are V. `out` is the correct output. A sink has a weight,
    /// which `sum` includes, and an error.
    pub(crate) fn of(
        dtype: DType,
        weights: &[f64],
        sum: f64,
        errors: &[f64],
        v_rows: &[Vec<f64>],
        out: &[f64],
        sink: Option<(f64, f64)>,
    ) -> Slack {
        let of_sink = sink.map(|(_, error)| error);
        let largest_error = errors.iter().copied().chain(of_sink).fold(0.0, f64::max);
        if dtype != DType::E4M3 && largest_error < Tolerance::of(dtype).rtol / 64.0 {
            return Slack::none(out.len()); // it would change no verdict
        }
        let empty = Column {
            lowest: f64::INFINITY,
            highest: f64::NEG_INFINITY,
            ..Column::default()
        };
        let mut columns = vec![empty; out.len()];
        let mut sum_off = 0.0;
        for ((weight, &error), v_row) in weights.iter().zip(errors).zip(v_rows) {
            let p = weight / sum;
            let moved = p * error.min(LARGEST_ERROR).exp_m1();
            let small = *weight < SMALL_WEIGHT;
            let lost = if small {
                weight.min(SMALL_WEIGHT_ERROR) / sum
            } else {
                0.0
            };
            sum_off += moved;
            for ((column, v), o) in columns.iter_mut().zip(v_row).zip(out) {
                column.magnitude += p * v.abs();
                column.squares += (p * v) * (p * v);
                column.scores += moved * (v - o).abs();
                column.lowest = column.lowest.min(*v);
                column.highest = column.highest.max(*v);
                column.small += lost * v.abs();
            }
        }
        if let Some((weight, error)) = sink {
            // As a key whose value is 0.
            let moved = weight / sum * error.min(LARGEST_ERROR).exp_m1();
            sum_off += moved;
            for (column, o) in columns.iter_mut().zip(out) {
                column.scores += moved * o.abs();
                column.lowest = column.lowest.min(0.0);
                column.highest = column.highest.max(0.0);
            }
        }
        let cuts = v_rows.len().div_ceil(KEYS_A_PRODUCT) as f64;
        // Of scores, and of all else.
        let of_column = |(column, &o): (&Column, &f64)| {
            let span = (column.highest - o).max(o - column.lowest);
            let (o, walk) = (o.abs(), column.squares.sqrt());
            let scores = (largest_error.exp() * column.scores).min(span);
            if dtype != DType::E4M3 {
                return (scores, 0.0);
            }
            let rounding = P_ERROR * column.magnitude.min(o + WALK * walk);
            let sums = SUM_ERROR * column.magnitude + CUT_ERROR * cuts * (o + walk);
            (scores, rounding + column.small + sums)
        };
        let parts: Vec<(f64, f64)> = columns.iter().zip(out).map(of_column).collect();
        let hulls = columns.iter().zip(&parts);
        Slack {
            out: parts.iter().map(|(scores, rest)| scores + rest).collect(),
            hull: hulls
                .map(|(column, (_, rest))| [column.lowest - rest, column.highest + rest])
                .collect(),
            lse: sum_off.ln_1p().min(largest_error).max(LOGARITHM_ERROR),
        }
    }
}

/// The hull where it would change no verdict.
const ANYTHING: [f64; 2] = [f64::NEG_INFINITY, f64::INFINITY];

/// Sums over the keys, for a column of V.
#[derive(Clone, Copy, Default)]
struct Column {
    /// `Σ p |v|`
    magnitude: f64,
    /// `Σ (p v)²`
    squares: f64,
    /// `Σ p (exp(e) - 1) |v - O|`
    scores: f64,
    /// The smallest and the largest v: no change of the scores moves O past them.
    lowest: f64,
    highest: f64,
    /// `Σ min(w, 2^-13) |v| / l` over small weights.
    small: f64,
}
