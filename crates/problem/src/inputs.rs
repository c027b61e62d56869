//! Test inputs: normal numbers and adversarial patterns, the same bytes on every platform.

use std::fmt;

use crate::quantise::{absmax_scales, quantise};
use crate::rng::Rng;
use crate::{DType, Layout, Problem, ProblemError, Tensor};

/// Q, K and V of a problem, in its dtype and layouts. Gaps between elements are NaN, so that
/// reading one becomes visible.
///
/// Inputs of an e4m3 problem are generated in f32, divided by a scale for each (batch, K/V head),
/// and rounded. A scale is `absmax / 448` times a random factor from 1 to 16: different enough to
/// expose a wrong one. Small integers use power-of-two scales and stay exact. A tensor with
/// overlapping elements (broadcast batch) has a single scale.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// `[batch, seq_len_q, num_heads, head_dim]`.
    pub q: Tensor,
    /// `[batch, seq_len_kv, num_kv_heads, head_dim]`.
    pub k: Tensor,
    /// `[batch, seq_len_kv, num_kv_heads, head_dim_v]`.
    pub v: Tensor,
}

/// The pattern of the numbers. All but the first two each target one error in attention kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InputKind {
    /// Standard normal Q, K and V.
    Normal,
    /// Integers from −2 to 2, exact in every dtype, so that no tolerance hides a wrong index.
    SmallIntegers,
    /// All rows of Q and K are equal, so the output is the mean of V.
    EqualRows,
    /// One score per row dominates, and a higher one follows every 61 keys. The output is one row
    /// of V; a stale running maximum overflows.
    HugeLogit,
    /// Scores rise along the keys, so that the running maximum changes in every tile.
    RisingScores,
    /// All scores are near −110, where `exp` underflows without the maximum. Detects a running
    /// maximum initialised to 0.
    NegativeScores,
    /// Q and V up to ±6e4 (close to fp16's maximum), K down to fp16 subnormals; ordinary scores.
    Extremes,
}

impl InputKind {
    /// Every kind, in declaration order.
    pub const ALL: [InputKind; 7] = [
        InputKind::Normal,
        InputKind::SmallIntegers,
        InputKind::EqualRows,
        InputKind::HugeLogit,
        InputKind::RisingScores,
        InputKind::NegativeScores,
        InputKind::Extremes,
    ];

    /// The name used on the command line and in evidence, such as `huge-logit`.
    pub const fn name(self) -> &'static str {
        match self {
            InputKind::Normal => "normal",
            InputKind::SmallIntegers => "small-integers",
            InputKind::EqualRows => "equal-rows",
            InputKind::HugeLogit => "huge-logit",
            InputKind::RisingScores => "rising-scores",
            InputKind::NegativeScores => "negative-scores",
            InputKind::Extremes => "extremes",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<InputKind> {
        InputKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for InputKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Distance of the peaks of [`InputKind::HugeLogit`]: a prime, to hit every position of a tile.
const PEAK_SPACING: usize = 61;

impl Inputs {
    /// Generates the inputs of a problem.
    ///
    /// ```
    /// use flashcore_problem::{InputKind, Inputs, Problem};
    /// let problem = Problem::builder().heads(1, 1).head_dim(64).seq_len(32).build()?;
    /// let inputs = Inputs::generate(&problem, InputKind::Normal, 42);
    /// assert_eq!(inputs.q.layout(), problem.q_layout());
    /// # Ok::<(), flashcore_problem::ProblemError>(())
    /// ```
    pub fn generate(problem: &Problem, kind: InputKind, seed: u64) -> Inputs {
        let head_dim = problem.head_dim();
        // The element of K that gives `score` with rows of ones in Q, or less where fp16 would not hold it.
        let per_element = |score: f32| (score / (head_dim as f32 * problem.softmax_scale())).clamp(-1e4, 1e4);
        let (mut q, mut k, mut v) = (Rng::stream(seed, 0), Rng::stream(seed, 1), Rng::stream(seed, 2));
        // e4m3 inputs start as f32, because the scales depend on all elements.
        let dtype = match problem.dtype() {
            DType::E4M3 => DType::F32,
            other => other,
        };
        let make = |layout: &Layout, value: &mut dyn FnMut(usize, usize) -> f32| fill(dtype, *layout, value);
        let (ql, kl, vl) = (problem.q_layout(), problem.k_layout(), problem.v_layout());

        let normal_v = |rng: &mut Rng| make(vl, &mut |_, _| rng.normal());
        let inputs = match kind {
            InputKind::Normal => Inputs {
                q: make(ql, &mut |_, _| q.normal()),
                k: make(kl, &mut |_, _| k.normal()),
                v: normal_v(&mut v),
            },
            InputKind::SmallIntegers => Inputs {
                q: make(ql, &mut |_, _| small_integer(&mut q)),
                k: make(kl, &mut |_, _| small_integer(&mut k)),
                v: make(vl, &mut |_, _| small_integer(&mut v)),
            },
            InputKind::EqualRows => {
                let row = |rng: &mut Rng| (0..head_dim).map(|_| rng.normal()).collect::<Vec<_>>();
                let (q_row, k_row) = (row(&mut q), row(&mut k));
                Inputs {
                    q: make(ql, &mut |_, d| q_row[d]),
                    k: make(kl, &mut |_, d| k_row[d]),
                    v: normal_v(&mut v),
                }
            }
            InputKind::HugeLogit => {
                let first = k.below(PEAK_SPACING);
                Inputs {
                    q: make(ql, &mut |_, _| 1.0),
                    k: make(kl, &mut |s, _| {
                        let noise = k.normal();
                        if s % PEAK_SPACING == first {
                            coarse(per_element(150.0 + 10.0 * (s / PEAK_SPACING) as f32))
                        } else {
                            noise * per_element(1.0)
                        }
                    }),
                    v: normal_v(&mut v),
                }
            }
            InputKind::RisingScores => {
                let step = 80.0 / problem.seq_len_kv() as f32;
                Inputs {
                    q: make(ql, &mut |_, _| 1.0),
                    k: make(kl, &mut |s, _| coarse(per_element(step * s as f32))),
                    v: normal_v(&mut v),
                }
            }
            InputKind::NegativeScores => Inputs {
                q: make(ql, &mut |_, _| 1.0),
                k: make(kl, &mut |_, _| coarse(per_element(-110.0) * (1.0 + 0.05 * k.normal()))),
                v: normal_v(&mut v),
            },
            InputKind::Extremes => {
                // Scales Q's columns by 2^e and K's by 2^-e, so scores equal those of normal inputs.
                // In e4m3 larger factors would round elements to 0.
                let reach = if problem.dtype() == DType::E4M3 { 5 } else { 13 };
                let scale = |d: usize| 2f32.powi((d % (reach + 1)) as i32);
                Inputs {
                    q: make(ql, &mut |_, d| q.normal() * scale(d)),
                    k: make(kl, &mut |_, d| k.normal() / scale(d)),
                    // One sign per column, so that outputs are as large as the elements.
                    v: make(vl, &mut |_, d| {
                        let magnitude = 6e4 * (0.5 + 0.5 * v.unit());
                        if d % 2 == 0 { magnitude } else { -magnitude }
                    }),
                }
            }
        };
        match problem.dtype() {
            DType::E4M3 => inputs.quantised(problem, kind, seed),
            _ => inputs,
        }
    }

    fn quantised(self, problem: &Problem, kind: InputKind, seed: u64) -> Inputs {
        let of = |tensor, place, values: &Tensor| {
            draw_quantised(tensor, place, values, problem, kind, seed)
                .unwrap_or_else(|error| unreachable!("scales drawn for a tensor are its own: {error}"))
        };
        Inputs {
            q: of("q", 0, &self.q),
            k: of("k", 1, &self.k),
            v: of("v", 2, &self.v),
        }
    }
}

/// Quantises a tensor to e4m3 with random scales. `place` is 0, 1, 2 for Q, K, V.
fn draw_quantised(
    tensor: &'static str,
    place: usize,
    values: &Tensor,
    problem: &Problem,
    kind: InputKind,
    seed: u64,
) -> Result<Tensor, ProblemError> {
    let heads = problem.num_kv_heads();
    let mut rng = Rng::stream(seed, 3 + place as u64);
    let mut scales = match kind {
        InputKind::SmallIntegers => {
            // Powers from 2^-3 to 2^3, different for neighbours and tensors.
            let first = Rng::stream(seed, 3).below(7) + 2 * place;
            (0..problem.num_scales())
                .map(|i| 2f32.powi((first + i) as i32 % 7 - 3))
                .collect()
        }
        _ => {
            let mut scales = absmax_scales(&values.view(), heads);
            scales.iter_mut().for_each(|scale| *scale *= 1.0 + 15.0 * rng.unit());
            scales
        }
    };
    if values.layout().check_injective(tensor).is_err() {
        let largest = scales.iter().copied().fold(0.0, f32::max);
        scales.fill(largest);
    }
    quantise(tensor, &values.view(), scales)
}

/// Rounds to eight significant bits: f32 sums of up to 256 such elements of one magnitude are exact,
/// so that large scores test the softmax and not the rounding of dot products.
fn coarse(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

fn small_integer(rng: &mut Rng) -> f32 {
    rng.below(5) as f32 - 2.0
}

/// A tensor of `value(seq, d)`. Gaps are poison.
fn fill(dtype: DType, layout: Layout, value: &mut dyn FnMut(usize, usize) -> f32) -> Tensor {
    let mut tensor = Tensor::poisoned(dtype, layout);
    tensor.set_all(&mut |_, s, _, d| value(s, d));
    tensor
}
