//! From products of Q and K to scores: scale, soft cap, ALiBi, and the scales of fp8 heads. Users' modifiers belong
//! here.

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, Val, Var};
use flashcore_problem::Problem;

use super::params::{Shape, key_range};
use super::row_tile::{RowTile, half_and_column};
use crate::args::{Args, Request};

/// log2(e): exponents are taken to base 2, so that exponentials are single `ex2` instructions.
pub(crate) const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// What a kernel does to the products of Q and K before the softmax.
#[derive(Clone, Copy)]
pub(crate) struct ScoreMod<'k> {
    /// Factor from scores to exponents of 2: `softmax_scale · log2(e)`, or `softcap · log2(e)`.
    pub exponent_scale: Val<'k, f32>,
    /// With soft cap: `softmax_scale / softcap`.
    softcap_scale: Option<Val<'k, f32>>,
    alibi: Option<Alibi<'k>>,
}

/// ALiBi's slopes, and what turns them into biases of scores that are not yet scaled.
#[derive(Clone, Copy)]
struct Alibi<'k> {
    slopes: GlobalPtr<'k, f32>,
    /// From the slopes of one batch to those of the next; 0 where batches share them.
    batch_stride: Val<'k, u32>,
    /// Scores as they are here for one of those that slopes are for: `1 / softmax_scale`, or `1 / softcap`.
    per_score: Val<'k, f32>,
    /// The key at the position of row 0.
    diagonal: Val<'k, i32>,
}

/// ALiBi's bias of the scores of a row: `slope·|position − key|` less.
#[derive(Clone, Copy)]
pub(crate) struct RowBias<'k> {
    slope: Val<'k, f32>,
    /// The key at the position of the row.
    position: Val<'k, i32>,
}

impl<'k> RowBias<'k> {
    /// The bias of the row `rows` further down in the same head.
    #[track_caller]
    pub(crate) fn below(self, rows: i32) -> Self {
        RowBias {
            position: self.position + rows,
            ..self
        }
    }

    /// The score of a key, less its bias.
    #[track_caller]
    pub(crate) fn subtract(&self, score: Val<'k, f32>, key: Val<'k, u32>) -> Val<'k, f32> {
        let distance = (self.position - key.reinterpret::<i32>()).to_f32().abs();
        (-self.slope).fma(distance, score)
    }
}

/// ALiBi's biases of one of a lane's rows in a K block.
#[derive(Clone, Copy)]
pub(crate) struct TileBias<'k> {
    row: RowBias<'k>,
    /// The slope times the distance of the lane's first column.
    first: Var<'k, f32>,
}

impl<'k> TileBias<'k> {
    #[track_caller]
    fn new(row: RowBias<'k>) -> Self {
        let first = row.slope.builder().var_unwritten("alibi_first");
        TileBias { row, first }
    }

    /// The biases of a lane's rows, by row block of 16 and half; empty without ALiBi. `of(m, half)` gives the bias of a
    /// row. It is called for the first row only, unless heads are `packed`: the others are rows of the same head.
    #[track_caller]
    pub(crate) fn of_lane(
        row_blocks: u32,
        packed: bool,
        of: impl Fn(usize, usize) -> Option<RowBias<'k>>,
    ) -> Vec<[TileBias<'k>; 2]> {
        let Some(first) = of(0, 0) else { return Vec::new() };
        let of_block = |m: usize| {
            let rows = [0, 1].map(|half| match (m, half) {
                (0, 0) => first,
                _ if packed => of(m, half).unwrap_or(first),
                _ => first.below((16 * m + 8 * half) as i32),
            });
            rows.map(TileBias::new)
        };
        (0..row_blocks as usize).map(of_block).collect()
    }

    /// Goes to the K block whose first column of the lane is `key`.
    #[track_caller]
    pub(crate) fn begin(&self, key: Val<'k, u32>) {
        let distance = (self.row.position - key.reinterpret::<i32>()).to_f32();
        self.first.set(distance * self.row.slope);
    }

    /// The score of a column less its bias. The slope is not negative, so a magnitude takes the place of the
    /// distance's: two instructions a score.
    #[track_caller]
    fn subtract(&self, score: Val<'k, f32>, column: u32) -> Val<'k, f32> {
        let bias = self.row.slope.fma(-(column as f32), self.first.get());
        score - bias.abs()
    }
}

impl<'k> ScoreMod<'k> {
    pub(crate) fn declare<R: Request>(k: &'k Args<'k, R>, shape: &Shape) -> Self {
        let per_score = |request: &R| {
            let problem = request.problem();
            problem.softcap().unwrap_or(problem.softmax_scale())
        };
        ScoreMod {
            exponent_scale: k.number("exponent_scale", move |request| per_score(request) * LOG2_E),
            softcap_scale: shape.softcap.then(|| {
                k.number("softcap_scale", move |request| {
                    request.problem().softmax_scale() / per_score(request)
                })
            }),
            alibi: shape.alibi.then(|| Alibi {
                slopes: k.input("alibi_slopes", 4, |request| request.problem().num_alibi_slopes()),
                batch_stride: k.count("alibi_batch_stride", |problem| match problem.alibi() {
                    Some(flashcore_problem::Alibi::BatchHeads) => problem.num_heads(),
                    Some(flashcore_problem::Alibi::Heads) | None => 0,
                }),
                per_score: k.number("alibi_per_score", move |request| 1.0 / per_score(request)),
                diagonal: k.number("alibi_diagonal", |request| key_range(request.problem(), None).diagonal),
            }),
        }
    }

    /// The modifier of a sequence whose diagonal is `keys` keys further to the right.
    #[track_caller]
    pub(super) fn shifted(mut self, keys: Val<'k, i32>) -> Self {
        if let Some(alibi) = &mut self.alibi {
            alibi.diagonal = alibi.diagonal + keys;
        }
        self
    }

    /// ALiBi's bias of the scores of a query head's row, if there is any.
    #[track_caller]
    pub(crate) fn bias(&self, batch: Val<'k, u32>, head: Val<'k, u32>, row: Val<'k, u32>) -> Option<RowBias<'k>> {
        self.alibi.map(|alibi| {
            let slope = alibi.slopes.offset(batch.fma(alibi.batch_stride, head));
            RowBias {
                slope: slope.load_with(Cache::ReadOnly).abs() * alibi.per_score,
                position: row.reinterpret::<i32>() + alibi.diagonal,
            }
        })
    }

    /// A score after [`apply`](Self::apply), times `head_scale` if `apply` has left that out.
    #[track_caller]
    pub(crate) fn scaled(&self, score: Var<'k, f32>, head_scale: Option<Var<'k, f32>>) -> Val<'k, f32> {
        match head_scale {
            Some(scale) if self.is_identity() => score * scale.get(),
            _ => score.get(),
        }
    }

    /// Whether scores are the products of Q and K: [`apply`](Self::apply) then has nothing to do.
    fn is_identity(&self) -> bool {
        self.softcap_scale.is_none() && self.alibi.is_none()
    }

    /// The score of a key, not yet scaled, from the dot product of its row with the query's: before a
    /// [bias](Self::bias).
    #[track_caller]
    pub(crate) fn score(&self, dot: Val<'k, f32>) -> Val<'k, f32> {
        match self.softcap_scale {
            Some(scale) => tanh(dot * scale),
            None => dot,
        }
    }

    /// The derivative of a score by the scaled product that it comes from, where it is not 1.
    #[track_caller]
    pub(crate) fn derivative(&self, score: Val<'k, f32>) -> Option<Val<'k, f32>> {
        self.softcap_scale.map(|_| (-score).fma(score, 1.0))
    }

    /// With soft cap or ALiBi: what scores in some registers become: scaled, capped, less their `biases`.
    /// `head_scale` is that of a head's products.
    #[track_caller]
    pub(crate) fn apply(
        &self,
        scores: &RowTile<'k>,
        registers: std::ops::Range<u32>,
        head_scale: Option<Var<'k, f32>>,
        biases: Option<&[TileBias<'k>; 2]>,
    ) {
        if self.is_identity() {
            return;
        }
        for register in registers {
            let score = scores.var(register);
            let dot = match head_scale {
                Some(scale) => score * scale.get(),
                None => score.get(),
            };
            let capped = self.score(dot);
            let (half, column) = half_and_column(register);
            score.set(biases.map_or(capped, |biases| biases[half].subtract(capped, column)));
        }
    }
}

/// tanh from `ex2` and `rcp`: the hardware's `tanh.approx` is off by 2⁻¹¹, too coarse for f32.
///
/// Near zero `1 − 2/(e²ˣ + 1)` cancels, so there the Taylor series to x⁷ takes over (relative error
/// 6e-8 at its edge).
#[track_caller]
fn tanh<'k>(x: Val<'k, f32>) -> Val<'k, f32> {
    let k = x.builder();
    let power = (x * (2.0 * LOG2_E)).exp2();
    let far = (power + 1.0).recip().fma(-2.0, 1.0);
    let square = x * x;
    let series = square
        .fma(k.constant(-17.0 / 315.0), 2.0 / 15.0)
        .fma(square, -1.0 / 3.0)
        .fma(square, 1.0)
        * x;
    x.abs().lt(0.2).select(series, far)
}

/// The buffers of [`HeadScales`], each f32 `[batch, num_kv_heads]`.
const NAMES: [&str; 3] = ["q_scale", "k_scale", "v_scale"];

/// Scales of fp8 tensors: an element stands for itself times the scale of its K/V head.
pub(crate) struct HeadScales<'k> {
    of: [GlobalPtr<'k, f32>; 3],
    num_kv_heads: Val<'k, u32>,
}

impl<'k> HeadScales<'k> {
    pub(crate) fn declare<R: Request>(k: &'k Args<'k, R>) -> Self {
        let heads = |problem: &Problem| problem.batch() * problem.num_kv_heads();
        HeadScales {
            of: NAMES.map(|name| k.input(name, 4, move |request| heads(request.problem()))),
            num_kv_heads: k.count("num_kv_heads", Problem::num_kv_heads),
        }
    }

    /// A K/V head's number among those of all batches.
    #[track_caller]
    pub(crate) fn head(&self, batch: Val<'k, u32>, kv_head: Val<'k, u32>) -> Val<'k, u32> {
        batch.fma(self.num_kv_heads, kv_head)
    }
}

/// The [`HeadScales`] of the head at work, in registers.
#[derive(Clone, Copy)]
pub(crate) struct HeadFactors<'k> {
    /// From products of Q and K in e4m3 to scores: the scale of Q times that of K.
    pub scores: Var<'k, f32>,
    /// The scale of V.
    pub values: Var<'k, f32>,
    /// From what [`ScoreMod::apply`] leaves to exponents of 2.
    pub exponents: Var<'k, f32>,
}

impl<'k> HeadFactors<'k> {
    pub(crate) fn new(k: &'k KernelBuilder) -> Self {
        HeadFactors {
            scores: k.var_unwritten("score_scale"),
            values: k.var_unwritten("value_scale"),
            exponents: k.var_unwritten("exponent_scale"),
        }
    }

    #[track_caller]
    pub(crate) fn load(
        &self,
        scales: &HeadScales<'k>,
        score_mod: &ScoreMod<'k>,
        batch: Val<'k, u32>,
        kv_head: Val<'k, u32>,
    ) {
        let head = scales.head(batch, kv_head);
        let [q, k, v] = scales.of.map(|scale| scale.offset(head).load_with(Cache::ReadOnly));
        let scores = q * k;
        self.scores.set(scores);
        self.values.set(v);
        if score_mod.is_identity() {
            self.exponents.set(score_mod.exponent_scale * scores)
        } else {
            self.exponents.set(score_mod.exponent_scale)
        }
    }
}
