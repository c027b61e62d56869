//! How far an e4m3 kernel's own rounding may take an output from the exact answer.
//!
//! A tolerance for fp8 cannot be one number: a kernel rounds its probabilities to e4m3 too, and what that does to an
//! output depends on how many keys share the probability. So the bound is made row by row from what the reference
//! knows. Write `w_j = exp(s_j - max)` for the weight of key j, `l` for their sum, `p_j = w_j / l`, and `O = Σ p_j v_j`.
//! The bound is the sum of four parts, for each column of O:
//!
//! 1. **Scores.** Hopper's fp8 products are summed in about 14 bits, so that a score is off by up to
//!    `e_j = 2^-12 · scale · Σ|q·k_j|`, and its probability by a factor of `exp(±e_j)` before normalisation:
//!    `exp(max e) · Σ p_j · (exp(e_j) - 1) · |v_j - O|`.
//! 2. **Rounding of P** to e4m3: each by a factor of `1 + d_j`, `|d_j| <= 2^-4`. At worst `2^-4 · Σ p_j |v_j|`. The
//!    part that all keys have in common moves the output by at most `2^-4 · |O|`; the rest is independent from key
//!    to key, and so adds up as a random walk does: `4 · 2^-4 · sqrt(Σ (p_j v_j)²)` is beyond nine of its standard
//!    deviations (an e4m3 rounding error is 0.42 of its largest on average). The lesser of the two counts.
//! 3. **Small P.** Below e4m3's smallest normal number rounding is absolute. Kernels multiply P by a power of two first
//!    (P ends at 1, e4m3 at 448), at least by 2^3: 2^8 where the running maximum is kept exactly, less where it may lag
//!    behind the scores. So a weight below 2^-9 is off by up to 2^-13, and never by more than itself:
//!    `Σ min(w_j, 2^-13) · |v_j| / l` over such keys.
//! 4. **Sums of P·V.** 14 bits again: `2^-12 · Σ p_j |v_j|` for the products, and for the running sum, which is cut
//!    to its 14 bits once for every 32 keys, `2^-13 · n/32 · (|O| + sqrt(Σ (p_j v_j)²))`.
//!
//! Part 2's random walk supposes that rounding errors of P have nothing to do with V, which holds for every
//! [`InputKind`](crate::InputKind); for data made against it the worst case would have to be allowed. A log-sum-exp,
//! which is summed in f32 before P is rounded, is off by what scores are: `ln Σ p_j exp(e_j)`.
//!
//! The output's rounding to bf16 is the tolerance's part: [`Tolerance::of`](crate::Tolerance::of) e4m3.

use crate::Problem;

/// The relative error of a sum of fp8 products, and of cutting a running sum.
const SUM_ERROR: f64 = 1.0 / 4096.0;
const CUT_ERROR: f64 = 1.0 / 8192.0;
/// Keys a product instruction takes in at a time (`wgmma` m64nNk32).
const KEYS_A_PRODUCT: usize = 32;
/// Half of e4m3's spacing, relative to a number.
const P_ERROR: f64 = 1.0 / 16.0;
/// How many times [`P_ERROR`] the random part of rounding may add up to, in units of `sqrt(Σ (p v)²)`.
const WALK: f64 = 4.0;
/// Weights below which rounding is absolute, and by how much they may then be off.
const SMALL_WEIGHT: f64 = 1.0 / 512.0;
const SMALL_WEIGHT_ERROR: f64 = 1.0 / 8192.0;

/// What may be added to each element's tolerance: see [the module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Slack {
    /// Of each element of [`Reference::out`](crate::Reference::out).
    pub out: Vec<f64>,
    /// Of each log-sum-exp.
    pub lse: Vec<f64>,
}

impl Slack {
    /// Nothing, for every element of a problem: what rows have that attend to nothing.
    pub(crate) fn none(problem: &Problem) -> Slack {
        Slack {
            out: vec![0.0; problem.o_layout().num_elements()],
            lse: vec![0.0; problem.lse_len()],
        }
    }
}

/// What may be added to the tolerance of one row: see [the module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct RowSlack {
    /// Of each element of the row of O.
    pub out: Vec<f64>,
    /// Of its log-sum-exp.
    pub lse: f64,
}

impl RowSlack {
    /// The slack of a row with these visible keys: `exp(score - max)` of each, their sum, `scale · Σ|q·k|` of each, V,
    /// and the right output.
    pub(crate) fn of(weights: &[f64], sum: f64, magnitudes: &[f64], v_rows: &[Vec<f64>], out: &[f64]) -> RowSlack {
        let mut columns = vec![Column::default(); out.len()];
        let (mut largest_error, mut sum_off) = (0f64, 0.0);
        for ((weight, magnitude), v_row) in weights.iter().zip(magnitudes).zip(v_rows) {
            let (p, error) = (weight / sum, SUM_ERROR * magnitude);
            let moved = p * error.exp_m1();
            let lost = match *weight < SMALL_WEIGHT {
                true => weight.min(SMALL_WEIGHT_ERROR) / sum,
                false => 0.0,
            };
            largest_error = largest_error.max(error);
            sum_off += moved;
            for ((column, v), o) in columns.iter_mut().zip(v_row).zip(out) {
                column.magnitude += p * v.abs();
                column.squares += (p * v) * (p * v);
                column.scores += moved * (v - o).abs();
                column.small += lost * v.abs();
            }
        }
        let cuts = v_rows.len().div_ceil(KEYS_A_PRODUCT) as f64;
        let of_column = |(column, o): (&Column, &f64)| {
            let (o, walk) = (o.abs(), column.squares.sqrt());
            let scores = largest_error.exp() * column.scores;
            let rounding = P_ERROR * column.magnitude.min(o + WALK * walk);
            let sums = SUM_ERROR * column.magnitude + CUT_ERROR * cuts * (o + walk);
            scores + rounding + column.small + sums
        };
        RowSlack {
            out: columns.iter().zip(out).map(of_column).collect(),
            lse: sum_off.ln_1p(),
        }
    }
}

/// Sums over the keys, for a column of V.
#[derive(Clone, Copy, Default)]
struct Column {
    /// `Σ p |v|`
    magnitude: f64,
    /// `Σ (p v)²`
    squares: f64,
    /// `Σ p (exp(e) - 1) |v - O|`
    scores: f64,
    /// `Σ min(w, 2^-13) |v| / l` over small weights.
    small: f64,
}
