//! Test inputs: normal numbers and adversarial patterns, the same bytes on every platform.

use serde::{Deserialize, Serialize};

use crate::quantise::{absmax_scales, quantise};
use crate::rng::Rng;
use crate::{
    DType, Direction, KvLengths, Layout, Lengths, POISON, Problem, ProblemError, QLengths, Sequence, Tensor,
    random_lengths, reference_rows, words,
};

/// Q, K and V of a problem, in its dtype and layouts, its lengths, and what else a backward problem
/// reads. Gaps between elements are
/// NaN, and so are rows that are of no sequence, so that reading one becomes visible.
///
/// Q carries the sinks and ALiBi slopes of a problem that has them.
///
/// Inputs of an e4m3 problem are generated in f32, divided by a scale for each (batch, K/V head),
/// and rounded. A scale is `absmax / 448` times a random factor from 1 to 16: different enough to
/// expose a wrong one. Small integers use power-of-two scales and stay exact. A tensor with
/// overlapping elements (broadcast batch) has a single scale. Packed and paged tensors are divided by
/// one scale for each head; those of a sequence are that times a random factor from 1/2 to 2.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// `[batch, seq_len_q, num_heads, head_dim]`.
    pub q: Tensor,
    /// `[batch, seq_len_kv, num_kv_heads, head_dim]`.
    pub k: Tensor,
    /// `[batch, seq_len_kv, num_kv_heads, head_dim_v]`.
    pub v: Tensor,
    /// The values of lengths, where the problem has any.
    pub lengths: Lengths<Vec<i32>>,
    /// What else a backward problem reads.
    pub saved: Option<Saved>,
}

/// What the forward pass leaves for the backward pass, from the float64 reference, and the gradient
/// of its output. Rows that are of no sequence are NaN.
#[derive(Clone, Debug)]
pub struct Saved {
    /// O in the problem's dtype, `[batch, seq_len_q, num_heads, head_dim_v]`.
    pub out: Tensor,
    /// The log-sum-exp, `[batch, num_heads, seq_len_q]`, or of packed rows `[num_heads, total]`.
    pub lse: Vec<f32>,
    /// The gradient of O: standard normal; small integers for [`InputKind::SmallIntegers`]; for
    /// [`InputKind::Extremes`] so small that gradients are numbers that fp16 has.
    pub dout: Tensor,
}

words! {
    /// The pattern of the numbers. All but the first two each target one error in attention kernels.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    #[non_exhaustive]
    InputKind {
        /// Standard normal Q, K and V.
        Normal = "normal",
        /// Integers from −2 to 2, exact in every dtype, so that no tolerance hides a wrong index.
        SmallIntegers = "small-integers",
        /// All rows of Q and K are equal, so the output is the mean of V.
        EqualRows = "equal-rows",
        /// One score per row dominates, and a higher one follows every 61 keys. The output is one row
        /// of V; a stale running maximum overflows.
        HugeLogit = "huge-logit",
        /// Scores rise along the keys, so that the running maximum changes in every tile.
        RisingScores = "rising-scores",
        /// All scores are near −110, where `exp` underflows without the maximum. Detects a running
        /// maximum initialised to 0.
        NegativeScores = "negative-scores",
        /// Q and V up to ±6e4 (close to fp16's maximum), K down to fp16 subnormals; ordinary scores.
        Extremes = "extremes",
        /// One element of each row of Q and K is not 0. A score is one product, exact in f32, so that no tolerance
        /// covers a wrong one, and its product with the scale is rounded. Up to the largest numbers of the dtype:
        /// rows pass the [limits](mod@crate::limits), and scores overflow f32. In a backward problem up to 2⁹.
        OneHot = "one-hot",
    }
}

impl InputKind {
    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<InputKind> {
        InputKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Distance of the peaks of [`InputKind::HugeLogit`]: a prime, to hit every position of a tile.
const PEAK_SPACING: usize = 61;

impl Inputs {
    /// Generates the inputs of a problem, its lengths by [`random_lengths`](fn@crate::random_lengths).
    ///
    /// ```
    /// use flashcore_problem::{InputKind, Inputs, Problem};
    /// let problem = Problem::builder().heads(1, 1).head_dim(64).seq_len(32).build()?;
    /// let inputs = Inputs::generate(&problem, InputKind::Normal, 42);
    /// assert_eq!(inputs.q.layout(), problem.q_layout());
    /// # Ok::<(), flashcore_problem::ProblemError>(())
    /// ```
    pub fn generate(problem: &Problem, kind: InputKind, seed: u64) -> Inputs {
        Inputs::with_lengths(problem, random_lengths(problem, seed), kind, seed)
            .unwrap_or_else(|error| unreachable!("lengths drawn for a problem are its own: {error}"))
    }

    /// The same, but for a backward problem O and the log-sum-exp are poison: the caller computes them
    /// by a forward pass. In float64 that takes minutes for long sequences.
    ///
    /// ```
    /// use flashcore_problem::{InputKind, Inputs, Problem};
    /// let problem = Problem::builder().heads(1, 1).head_dim(64).seq_len(32).build()?.backward()?;
    /// let saved = Inputs::before_forward(&problem, InputKind::Normal, 42).saved.unwrap();
    /// assert!(saved.lse.iter().all(|x| x.is_nan()) && !saved.dout.view().get(0, 0, 0, 0).is_nan());
    /// # Ok::<(), flashcore_problem::ProblemError>(())
    /// ```
    pub fn before_forward(problem: &Problem, kind: InputKind, seed: u64) -> Inputs {
        Inputs::with_lengths_before_forward(problem, random_lengths(problem, seed), kind, seed)
            .unwrap_or_else(|error| unreachable!("lengths drawn for a problem are its own: {error}"))
    }

    /// [`Inputs::generate`] for lengths with these values.
    ///
    /// # Errors
    /// Values that are not the problem's: [`Problem::sequences`].
    pub fn with_lengths(
        problem: &Problem,
        lengths: Lengths<Vec<i32>>,
        kind: InputKind,
        seed: u64,
    ) -> Result<Inputs, ProblemError> {
        let mut inputs = Inputs::with_lengths_before_forward(problem, lengths, kind, seed)?;
        if let Some(mut saved) = inputs.saved.take() {
            saved.compute(problem, &inputs)?;
            inputs.saved = Some(saved);
        }
        Ok(inputs)
    }

    /// [`Inputs::before_forward`] for lengths with these values.
    ///
    /// # Errors
    /// As [`Inputs::with_lengths`].
    pub fn with_lengths_before_forward(
        problem: &Problem,
        lengths: Lengths<Vec<i32>>,
        kind: InputKind,
        seed: u64,
    ) -> Result<Inputs, ProblemError> {
        let sequences = problem.sequences(&lengths.as_slices())?;
        let [q, mut k, mut v] = Inputs::dense(problem, kind, seed);
        let of_queries = |tensor: Tensor| {
            if !problem.has_lengths() {
                return tensor;
            }
            only_rows(&tensor, &sequences, |one| one.len_q, |one, row| Some(one.q_row(row)))
        };
        if problem.has_lengths() {
            [k, v] = [k, v].map(|tensor| only_rows(&tensor, &sequences, |one| one.len_kv, Sequence::kv_row));
        }
        let saved = problem.gradient_layouts().map(|layouts| Saved {
            out: Tensor::poisoned(problem.out_dtype(), *problem.o_layout()),
            lse: vec![f32::from_ne_bytes([POISON; 4]); problem.lse_len()],
            dout: of_queries(dout(problem.out_dtype(), &layouts.dout, kind, seed)),
        });
        Ok(Inputs {
            q: of_queries(q.with_drawn_head_values(problem, seed)),
            k,
            v,
            lengths,
            saved,
        })
    }

    /// All rows of all tensors.
    fn dense(problem: &Problem, kind: InputKind, seed: u64) -> [Tensor; 3] {
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
        let tensors = match kind {
            InputKind::Normal => [
                make(ql, &mut |_, _| q.normal()),
                make(kl, &mut |_, _| k.normal()),
                normal_v(&mut v),
            ],
            InputKind::SmallIntegers => [
                make(ql, &mut |_, _| small_integer(&mut q)),
                make(kl, &mut |_, _| small_integer(&mut k)),
                make(vl, &mut |_, _| small_integer(&mut v)),
            ],
            InputKind::EqualRows => {
                let row = |rng: &mut Rng| (0..head_dim).map(|_| rng.normal()).collect::<Vec<_>>();
                let (q_row, k_row) = (row(&mut q), row(&mut k));
                [
                    make(ql, &mut |_, d| q_row[d]),
                    make(kl, &mut |_, d| k_row[d]),
                    normal_v(&mut v),
                ]
            }
            InputKind::HugeLogit => {
                let first = k.below(PEAK_SPACING);
                [
                    make(ql, &mut |_, _| 1.0),
                    make(kl, &mut |s, _| {
                        let noise = k.normal();
                        if s % PEAK_SPACING == first {
                            coarse(per_element(150.0 + 10.0 * (s / PEAK_SPACING) as f32))
                        } else {
                            noise * per_element(1.0)
                        }
                    }),
                    normal_v(&mut v),
                ]
            }
            InputKind::RisingScores => {
                let step = 80.0 / problem.seq_len_kv() as f32;
                [
                    make(ql, &mut |_, _| 1.0),
                    make(kl, &mut |s, _| coarse(per_element(step * s as f32))),
                    normal_v(&mut v),
                ]
            }
            InputKind::NegativeScores => [
                make(ql, &mut |_, _| 1.0),
                make(kl, &mut |_, _| coarse(per_element(-110.0) * (1.0 + 0.05 * k.normal()))),
                normal_v(&mut v),
            ],
            InputKind::Extremes => {
                // Scales Q's columns by 2^e and K's by 2^-e, so scores equal those of normal inputs.
                // In e4m3 larger factors would round elements to 0.
                let reach = if problem.dtype() == DType::E4M3 { 5 } else { 13 };
                let scale = |d: usize| 2f32.powi((d % (reach + 1)) as i32);
                [
                    make(ql, &mut |_, d| q.normal() * scale(d)),
                    make(kl, &mut |_, d| k.normal() / scale(d)),
                    // One sign per column, so that outputs are as large as the elements.
                    make(vl, &mut |_, d| {
                        let magnitude = 6e4 * (0.5 + 0.5 * v.unit());
                        if d % 2 == 0 { magnitude } else { -magnitude }
                    }),
                ]
            }
            InputKind::OneHot => {
                let most = match (problem.direction(), problem.dtype()) {
                    (Direction::Backward, _) => 8,
                    (Direction::Forward, DType::F16) => 15,
                    (Direction::Forward, DType::E4M3) => 20,
                    (Direction::Forward, DType::F32 | DType::BF16) => 127,
                };
                // With the largest alone, most rows would pass the limit in some dtypes.
                let largest = [8, 13, 20, most, most][q.below(5)].min(most);
                let columns = [q.below(head_dim), k.below(head_dim)];
                [
                    one_hot(largest, columns, &mut q, *ql, dtype),
                    one_hot(largest, columns, &mut k, *kl, dtype),
                    normal_v(&mut v),
                ]
            }
        };
        if problem.dtype() != DType::E4M3 {
            return tensors;
        }
        let mut place = 0..;
        tensors.map(|values| {
            let (tensor, place) = (["q", "k", "v"], place.next().unwrap_or_default());
            draw_quantised(tensor[place % 3], place, &values, problem, kind, seed)
                .unwrap_or_else(|error| unreachable!("scales drawn for a tensor are its own: {error}"))
        })
    }
}

impl Saved {
    /// The forward pass in float64.
    fn compute(&mut self, problem: &Problem, inputs: &Inputs) -> Result<(), ProblemError> {
        let lengths = inputs.lengths.as_slices();
        let rows = problem.query_rows(&lengths)?;
        let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
        let [_, ns, nh, _] = problem.o_layout().shape;
        for row in reference_rows(problem, &q, &k, &v, &lengths, &rows)? {
            let [b, h, s] = row.index;
            self.lse[(b * nh + h) * ns + s] = row.lse as f32;
            for (d, &x) in row.out.iter().enumerate() {
                self.out.set(b, s, h, d, x as f32);
            }
        }
        Ok(())
    }
}

fn dout(dtype: DType, layout: &Layout, kind: InputKind, seed: u64) -> Tensor {
    let mut rng = Rng::stream(seed, 8);
    fill(dtype, *layout, &mut |_, _| match kind {
        InputKind::SmallIntegers => small_integer(&mut rng),
        InputKind::Extremes => rng.normal() / 65536.0,
        _ => rng.normal(),
    })
}

/// A tensor of which only the rows of sequences are left. The others are poison.
fn only_rows<'a>(
    tensor: &Tensor,
    sequences: &[Sequence<'a>],
    rows: impl Fn(&Sequence<'a>) -> usize,
    place: impl Fn(&Sequence<'a>, usize) -> Option<[usize; 2]>,
) -> Tensor {
    let (layout, size) = (tensor.layout(), tensor.dtype().size_bytes());
    let mut left = tensor.clone();
    left.bytes_mut().fill(POISON);
    for [b, s] in sequences
        .iter()
        .flat_map(|one| (0..rows(one)).filter_map(|row| place(one, row)))
    {
        for h in 0..layout.shape[2] {
            let at = layout.offset(b, s, h, 0) * size..(layout.offset(b, s, h, 0) + layout.shape[3]) * size;
            left.bytes_mut()[at.clone()].copy_from_slice(&tensor.bytes()[at]);
        }
    }
    left
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
        // Of ones: see [`coarse`].
        InputKind::HugeLogit | InputKind::RisingScores | InputKind::NegativeScores if place == 0 => {
            let first = rng.below(5);
            let power = |i: usize| 2f32.powi(-4 - ((first + i) % 5) as i32);
            (0..problem.num_scales()).map(power).collect()
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
    let has_sequences = match place {
        0 => problem.q_lengths() != QLengths::Equal,
        _ => matches!(problem.kv_lengths(), KvLengths::Packed { .. } | KvLengths::Paged { .. }),
    };
    if !has_sequences {
        return quantise(tensor, &values.view(), scales);
    }
    let (entries, mut of_heads) = (values.layout().shape[0], vec![0f32; heads]);
    for (i, &scale) in scales.iter().enumerate().take(entries * heads) {
        of_heads[i % heads] = of_heads[i % heads].max(scale);
    }
    if kind == InputKind::SmallIntegers {
        of_heads.fill(1.0);
    }
    let quantised = quantise(tensor, &values.view(), of_heads.repeat(entries))?;
    let of_sequences = (0..problem.num_scales()).map(|i| {
        let factor = match kind {
            InputKind::SmallIntegers => 2f32.powi((i / heads + i % heads + place) as i32 % 3 - 1),
            _ => 0.5 + 1.5 * rng.unit(),
        };
        of_heads[i % heads] * factor
    });
    quantised.with_scales_of(tensor, problem.batch(), of_sequences.collect())
}

/// Rounds to eight significant bits: f32 sums of up to 256 such elements of one magnitude are exact,
/// so that large scores test the softmax and not the rounding of dot products. In e4m3 they have four
/// bits, and Q's ones become powers of two: Hopper keeps 14 bits of a sum.
fn coarse(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

/// Rows of zeros and one number, from `2^-largest` to `2^(largest + 1)` by magnitude and in a third of the rows of the
/// largest power, in the first of two columns or, in a quarter of the rows, in the second. So most pairs have a
/// product, and f32 holds it.
fn one_hot(largest: i32, columns: [usize; 2], rng: &mut Rng, layout: Layout, dtype: DType) -> Tensor {
    let bits = if dtype == DType::BF16 { 7 } else { 10 };
    let (mut column, mut element) = (0, 0.0);
    fill(dtype, layout, &mut |_, d| {
        if d == 0 {
            column = columns[usize::from(rng.below(4) == 0)];
            let drawn = rng.below(2 * largest as usize + 1) as i32 - largest;
            let exponent = if rng.below(3) == 0 { largest } else { drawn };
            let sign = if rng.below(2) == 0 { 1.0 } else { -1.0 };
            element = sign * (1.0 + rng.below(1 << bits) as f32 / (1 << bits) as f32) * 2f32.powi(exponent);
        }
        if d == column { element } else { 0.0 }
    })
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
