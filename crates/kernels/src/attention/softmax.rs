//! The online softmax: the running maximum and sum of a row, when they are rescaled, and how probabilities become
//! operands of `P·V`.

use flashcore_ir::fragment::{AVars, MmaElement};
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{E4M3, KernelBuilder, Val, Var, Widen};
use flashcore_problem::{DType, score_limit};
use half::{bf16, f16};

use super::row_tile::{QUAD, RowTile, half_and_column};
use crate::family::lever_values;
use crate::{Refusal, refuse};

/// When the maximum of a row, which its exponentials are relative to, is raised to its largest score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rescale {
    /// Whenever a K block has a larger one, as in the FlashAttention papers.
    Always,
    /// When a score is far above it.
    Conditional,
    /// When a probability came out large: exponentials are taken against the old maximum without a look at the scores,
    /// and computed again if one of them is too large.
    Speculative,
    /// Never: a backward pass reads the log-sum-exp of its rows. Ids do not mention it.
    Never,
}

impl Rescale {
    /// The words of its lever, of which searches take all but the last.
    pub(crate) const WORDS: &[(&str, &str)] = &[
        ("always", "-always"),
        ("conditional", "-cond"),
        ("speculative", "-spec"),
        ("never", ""),
    ];
    pub(crate) const SEARCHED: usize = 3;

    /// The policy of `mma`. Speculative softmax computes again if a P is 2 or more, so `max_offset` lets later scores
    /// exceed the largest by 6 powers of two and one more. The largest P is then about 2⁻⁶, and fp16 holds values down
    /// to 2⁻⁸ of it in full precision.
    pub(crate) fn mma_policy(self) -> Policy {
        let (threshold, max_offset) = match self {
            Rescale::Always | Rescale::Never => (None, 0.0),
            Rescale::Conditional => (Some(MAX_P_EXPONENT), 0.0),
            Rescale::Speculative => (Some(0.0), 6.0),
        };
        Policy { threshold, max_offset }
    }

    /// The policy of `wgmma` in K blocks whose scores it looks at: P is at most `2^MAX_P_EXPONENT`.
    pub(crate) fn wgmma_policy<E: InputElement>(self) -> Policy {
        let threshold = match self {
            Rescale::Always | Rescale::Never => 0.0,
            Rescale::Conditional => E::CONDITIONAL_THRESHOLD,
            Rescale::Speculative => E::SPECULATIVE_THRESHOLD,
        };
        Policy {
            threshold: Some(threshold),
            max_offset: threshold - MAX_P_EXPONENT,
        }
    }

    /// Refuses a softmax without a policy.
    pub(crate) fn check_forward(self, family: &'static str) -> Result<(), Refusal> {
        refuse!(self == Rescale::Never => family, "add -always, -cond or -spec to its id",
            "a forward pass by a config without a rescale policy");
        Ok(())
    }
}

/// When the maximum of a row is raised, and how far, in powers of two.
#[derive(Clone, Copy)]
pub(crate) struct Policy {
    /// How far a score may exceed the maximum before that is raised. `None`: it is raised in every K block.
    pub threshold: Option<f32>,
    /// The bias of the maximum: what is added to the largest score when it is raised. P may then use the whole range of
    /// its type.
    pub max_offset: f32,
}

// In the order of the lever's words.
lever_values!(Rescale: Always, Conditional, Speculative, Never);

/// The offset of a row that sees no key, in partials.
pub(crate) const FULLY_MASKED: f32 = f32::MAX;

/// The first key that a row sees, and one past the last.
pub(crate) type KeyBounds<'k> = (Val<'k, i32>, Val<'k, i32>);

/// The offset of a row of a partial: it tells a row that sees no key from one whose scores are all below the limit,
/// since the probabilities of both are 0. `keys` are those that the row sees, in this and all other parts. Few rows
/// ask.
#[track_caller]
pub(crate) fn partial_offset<'k>(
    offset: Val<'k, f32>,
    dtype: DType,
    keys: impl FnOnce() -> KeyBounds<'k>,
) -> Val<'k, f32> {
    let k = offset.builder();
    let last = k.var(offset);
    k.if_(offset.ge(score_limit(dtype)).divergent(), || {
        let (first, end) = keys();
        last.set(end.gt(first).select(offset, FULLY_MASKED));
    });
    last.get()
}

/// The running maximum of a row, as an exponent of 2.
///
/// Probabilities are `2^(score·scale + offset)` with `offset = −max·scale`, in one FMA, so that large scores lose
/// nothing to the rounding of their product. What is kept is the rounded offset: the factor from one offset to the next
/// is then exact. Rounding keeps order, so the lowest offset is that of the largest score, which need not be kept.
///
/// The rounding of the offset itself multiplies all probabilities of a row by the same `2^e`, which the sum takes out
/// again. `e` is at most half the spacing of floats at the offset, so offsets are kept within the
/// [limit](score_limit) of the dtype, where P has room for it. The maximum begins at the lower limit: scores far below
/// it have probability 0, not infinity. A row whose offset ends at or past a limit is [NaN](super::epilogue::Total).
#[derive(Clone, Copy)]
pub(crate) struct RowMax<'k> {
    scale: Scale<'k>,
    limit: f32,
    pub offset: Var<'k, f32>,
}

/// The factor from scores to exponents of 2: the same for all heads, or one per head.
#[derive(Clone, Copy)]
pub(crate) enum Scale<'k> {
    Fixed(Val<'k, f32>),
    OfHead(Var<'k, f32>),
}

impl<'k> From<Val<'k, f32>> for Scale<'k> {
    fn from(scale: Val<'k, f32>) -> Self {
        Scale::Fixed(scale)
    }
}

impl<'k> RowMax<'k> {
    #[track_caller]
    pub(crate) fn new(k: &'k KernelBuilder, scale: impl Into<Scale<'k>>, dtype: DType) -> Self {
        let limit = score_limit(dtype);
        RowMax {
            scale: scale.into(),
            limit,
            // Finite even where no key has been seen: ∞ − ∞ is NaN.
            offset: k.var(limit),
        }
    }

    #[track_caller]
    fn scale(&self) -> Val<'k, f32> {
        match self.scale {
            Scale::Fixed(scale) => scale,
            Scale::OfHead(scale) => scale.get(),
        }
    }

    /// Raises it to a score plus `max_offset` powers of two. Returns the factor for what was summed
    /// before: exactly 1 where the maximum stays, 0 where no key had been seen.
    #[track_caller]
    pub(crate) fn raise(&self, score: Val<'k, f32>, max_offset: f32) -> Val<'k, f32> {
        let mut wanted = -(score * self.scale());
        if max_offset != 0.0 {
            wanted = wanted - max_offset;
        }
        let offset = wanted.min(self.offset);
        let rescale = (offset - self.offset).exp2();
        self.offset.set(offset);
        rescale
    }

    /// How many powers of two a score is above it.
    #[track_caller]
    fn exponent(&self, score: Val<'k, f32>) -> Val<'k, f32> {
        score.fma(self.scale(), self.offset)
    }

    /// The probability of a score, not yet normalised: at most 1, if the maximum was raised to it.
    #[track_caller]
    pub(crate) fn exp(&self, score: Val<'k, f32>) -> Val<'k, f32> {
        self.exponent(score).exp2()
    }
}

/// A row's running state. Its four lanes have the same maximum; `sum` is that of the lane's columns.
#[derive(Clone, Copy)]
pub(crate) struct Row<'k> {
    pub max: RowMax<'k>,
    pub sum: Var<'k, f32>,
}

impl<'k> Row<'k> {
    #[track_caller]
    pub(crate) fn new(k: &'k KernelBuilder, scale: impl Into<Scale<'k>>, dtype: DType) -> Self {
        Row {
            max: RowMax::new(k, scale, dtype),
            sum: k.var(0.0),
        }
    }

    /// Begins the row of another Q tile: its first scores set the maximum.
    #[track_caller]
    pub(crate) fn restart(&self, scores: &RowTile<'k>, half: usize, max_offset: f32) {
        self.max.offset.set(self.max.limit);
        self.sum.set(0.0);
        let largest = scores.max(scores.steps(), half);
        self.max.raise(largest.reduce_max(QUAD), max_offset);
    }

    /// The probabilities of the scores that become one word of an operand.
    #[track_caller]
    pub(crate) fn exp_word<E: InputElement>(&self, scores: &RowTile<'k>, word: u32) -> Vec<Val<'k, f32>> {
        let exp = |register| self.max.exp(scores.var(register).get());
        E::registers(word).into_iter().map(exp).collect()
    }
}

/// Whether a row of the warp has a score more than `threshold` powers of two above its maximum.
#[track_caller]
fn any_above<'k>(rows: &[Row<'k>], largest: &[Val<'k, f32>], threshold: f32) -> Val<'k, bool> {
    let above = |i: usize| rows[i].max.exponent(largest[i]).gt(threshold);
    (1..rows.len()).fold(above(0), |any, i| any | above(i)).vote_any()
}

/// Raises the maxima of rows to their largest new scores where the policy says so, and rescales their sums;
/// `rescale(row, factor)` does so for the output. Returns whether any row of this warp was raised; `None` if all were.
#[track_caller]
pub(crate) fn raise_maxima<'k>(
    rows: &[Row<'k>],
    largest: &[Val<'k, f32>],
    policy: Policy,
    rescale: impl Fn(usize, Val<'k, f32>),
) -> Option<Val<'k, bool>> {
    let raise = || {
        for (i, (row, largest)) in rows.iter().zip(largest).enumerate() {
            let factor = row.max.raise(largest.reduce_max(QUAD), policy.max_offset);
            row.sum.mul_assign(factor);
            rescale(i, factor);
        }
    };
    let any = policy.threshold.map(|threshold| any_above(rows, largest, threshold));
    match any {
        Some(any) => any.builder().if_(any.uniform(), raise),
        None => raise(),
    }
    any
}

/// Replaces scores by probabilities, and adds these to the sums of the rows. `tap` sees each register.
#[track_caller]
pub(crate) fn exponentials<'k>(scores: &RowTile<'k>, rows: &[Row<'k>; 2], tap: impl Fn(u32, Val<'k, f32>)) {
    for register in 0..4 * scores.tiles() {
        let score = scores.var(register);
        let p = rows[half_and_column(register).0].max.exp(score.get());
        tap(register, p);
        score.set(p);
    }
    for (half, row) in rows.iter().enumerate() {
        row.sum.add_assign(scores.sum(half));
    }
}

/// Rounds probabilities into operand A of `P·V`.
#[track_caller]
pub(crate) fn pack<'k, E: InputElement>(scores: &RowTile<'k>, p: &AVars<'k, E>) {
    for word in 0..4 * p.steps() {
        let registers = E::registers(word).into_iter();
        let values: Vec<_> = registers.map(|register| scores.var(register).get()).collect();
        p.word(word).set(E::narrow(&values));
    }
}

/// [`exponentials`] and [`pack`] at once; the scores stay as they are. Returns the sum of a lane's probabilities in
/// each row.
#[track_caller]
pub(crate) fn pack_exponentials<'k, E: InputElement>(
    scores: &RowTile<'k>,
    rows: &[Row<'k>; 2],
    p: &AVars<'k, E>,
    tap: impl Fn(u32, Val<'k, f32>),
) -> Vec<Val<'k, f32>> {
    let mut sums: Vec<Val<'k, f32>> = Vec::new();
    // Words 0 and 1 are of either row.
    for word in 0..4 * p.steps() {
        let half = word as usize % 2;
        let values = rows[half].exp_word::<E>(scores, word);
        for (register, p) in E::registers(word).into_iter().zip(&values) {
            tap(register, *p);
        }
        for pair in values.chunks(2) {
            let pair = pair[0] + pair[1];
            match sums.get_mut(half) {
                Some(sum) => *sum = *sum + pair,
                None => sums.push(pair),
            }
        }
        p.word(word).set(E::narrow(&values));
    }
    sums
}

/// The largest exponent of 2 of a probability in 16-bit elements: fp16 and the f32 sums hold it without loss.
const MAX_P_EXPONENT: f32 = 8.0;

/// The element type of Q, K, V and P: how probabilities become words of operand A, and how large they may be. What is
/// given here is that of 16 bits.
pub(crate) trait InputElement: WgmmaElement + Widen {
    type Out: MmaElement;

    /// With [`Rescale::Conditional`] a row's maximum stays until a score is this many powers of two above it.
    const CONDITIONAL_THRESHOLD: f32 = MAX_P_EXPONENT;
    /// The threshold with [`Rescale::Speculative`], in K blocks whose scores are looked at.
    const SPECULATIVE_THRESHOLD: f32 = MAX_P_EXPONENT;
    /// With [`Rescale::Speculative`] a row's maximum stays while the sum of a lane's probabilities in a K block is at
    /// most this, so that each of them fits an element.
    const SPECULATIVE_MAX_SUM: f32 = 32768.0;

    /// The accumulator registers that word `word` of operand A is made of, in its order. They belong to half `word %
    /// 2`.
    fn registers(word: u32) -> Vec<u32> {
        vec![2 * word, 2 * word + 1]
    }
}

impl InputElement for f16 {
    type Out = f16;
}

impl InputElement for bf16 {
    type Out = bf16;
}

/// Elements that `mma.sync` multiplies, too.
pub(crate) trait SixteenBits: MmaElement + InputElement {}

impl SixteenBits for f16 {}
impl SixteenBits for bf16 {}

/// E4M3 has 3 bits of fraction and exponents from -9 to 8, so maxima are biased well below the largest score.
impl InputElement for E4M3 {
    type Out = bf16;
    const CONDITIONAL_THRESHOLD: f32 = 4.0;
    const SPECULATIVE_THRESHOLD: f32 = 5.0;
    const SPECULATIVE_MAX_SUM: f32 = 448.0;

    /// A word holds four neighbours along k, accumulators two. So the keys of a step are taken in another order, in
    /// which a lane's own values of two accumulators of 8 columns are neighbours; V is transposed in the same order.
    fn registers(word: u32) -> Vec<u32> {
        let (step, half, pair) = (word / 4, word % 2, word % 4 / 2);
        let first = 4 * (4 * step + 2 * pair) + 2 * half;
        vec![first, first + 1, first + 4, first + 5]
    }
}
