//! Taps: builds that show scores, probabilities or `P·V` alone, so that a wrong output can be traced to what spoils it.
//!
//! Any config of any family can be built with a tap ([`Plan::with_tap`](crate::Plan::with_tap)): the main loop computes
//! what it always computes, and stores the tapped scores or probabilities on the way, in place of the log-sum-exp.
//!
//! | tap | buffer `tap`, f32 `[batch, num_heads, seq_len_q, seq_len_kv]` | compared with |
//! |---|---|---|
//! | [`Tap::Scores`] | scores, scaled and soft-capped, of every key: the launch lifts the mask, and `out` has no meaning | `reference_scores` |
//! | [`Tap::Probabilities`] | `2^(score·log2(e) + offset)`, the masked softmax before it is normalised | `reference_probabilities` |
//!
//! The online softmax computes probabilities relative to a maximum that moves from K block to K block. A second
//! buffer of the same shape, `offsets`, says what each was relative to; `flashcore-check` makes one
//! distribution of the two. Rescaling and row sums are thus not part of the tap: they belong to `P·V`.
//!
//! [`Tap::Values`] needs no build: it is the kernel itself, launched with a scale of 1e-30. All visible keys
//! then weigh the same whatever Q and K are, and `out` is the mean of the visible rows of V.

use flashcore_ir::{GlobalPtr, Val};
use flashcore_problem::{KeyRange, Problem, ProblemBuilder};
use serde::{Deserialize, Serialize};

use super::params::{RowParams, check_lengths};
use super::row_tile::{half_and_column, lane_column};
use super::softmax::{Row, RowMax};
use crate::args::{Args, Request};
use crate::{Refusal, refuse};

/// So small a scale that every score rounds to a weight of 1, and −∞ stays what it is.
const EVEN_SCALE: f32 = 1e-30;

flashcore_problem::words! {
    /// What a build shows of a computation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Tap {
        /// `S = scale·Q·Kᵀ`, soft-capped, not masked.
        Scores = "scores",
        /// `P = softmax(S)`, masked.
        Probabilities = "probabilities",
        /// `P·V` alone: every visible key weighs the same. In place of stored values, `out` and the log-sum-exp tell.
        Values = "values",
    }
}

impl Tap {
    /// The taps that a build stores.
    pub const STORED: [Tap; 2] = [Tap::Scores, Tap::Probabilities];

    /// Whether a build stores it, in the buffer `tap`.
    pub fn is_stored(self) -> bool {
        Tap::STORED.contains(&self)
    }
}

/// The problem in which all visible keys weigh the same: that of [`Tap::Values`].
pub(crate) fn even(problem: &Problem) -> Result<Problem, Refusal> {
    let even = ProblemBuilder::from(problem).softmax_scale(EVEN_SCALE).build();
    even.map_err(|error| Refusal::unsupported("tap values", error.to_string(), "take another problem"))
}

/// Elements of a tap: one per query row and key.
///
/// ```
/// use flashcore_kernels::tap;
/// use flashcore_problem::Problem;
/// assert_eq!(tap::len(&Problem::named("small")?), 8 * 512 * 512);
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
pub fn len(problem: &Problem) -> usize {
    problem.lse_len() * problem.seq_len_kv()
}

/// Refuses lengths on the device, and more rows than a kernel counts: it does so in 32 bits.
pub(crate) fn check(problem: &Problem, tap: Option<Tap>) -> Result<(), Refusal> {
    let family = "a build with a tap";
    if tap.is_none() {
        return Ok(());
    }
    check_lengths(problem, family, "take a problem of equal lengths")?;
    let rows = problem.lse_len();
    refuse!(u32::try_from(rows).is_err() => family, "take fewer batches or heads", "{rows} rows");
    Ok(())
}

/// The parameters of a tap.
#[derive(Clone)]
pub(crate) struct TapParams<'k> {
    tap: Tap,
    values: GlobalPtr<'k, f32>,
    offsets: Option<GlobalPtr<'k, f32>>,
}

impl<'k> TapParams<'k> {
    pub(crate) fn declare<R: Request>(k: &'k Args<'k, R>, tap: Tap) -> Self {
        let stored = |name| k.output(name, 4, |request: &R| len(request.problem()));
        TapParams {
            tap,
            values: stored("tap"),
            offsets: (tap == Tap::Probabilities).then(|| stored("offsets")),
        }
    }
}

/// The keys that rows see, as a launch says it: all of them where scores are stored.
pub(crate) fn key_range(problem: &Problem, tap: Option<Tap>) -> KeyRange {
    match tap {
        Some(Tap::Scores) => KeyRange {
            lo: KeyRange::UNBOUNDED_LO,
            hi: KeyRange::UNBOUNDED_HI,
            ..problem.key_range()
        },
        _ => problem.key_range(),
    }
}

/// Where a score belongs.
#[derive(Clone, Copy)]
pub(crate) struct Place<'k> {
    /// Head of all batches.
    pub batch_head: Val<'k, u32>,
    pub row: Val<'k, u32>,
    pub key: Val<'k, u32>,
}

impl<'k> RowParams<'k> {
    /// [`tap`](Self::tap) of a register of a lane's accumulators, which begin at `first_key`. `rows` are the lane's,
    /// `of_half` gives head of all batches and row of one of them.
    #[track_caller]
    pub(crate) fn tap_register(
        &self,
        tap: Tap,
        register: u32,
        rows: &[Row<'k>],
        of_half: impl Fn(usize) -> (Val<'k, u32>, Val<'k, u32>),
        first_key: impl Fn() -> Val<'k, u32>,
        value: impl Fn() -> Val<'k, f32>,
    ) {
        let (half, column) = half_and_column(register);
        self.tap(tap, || {
            let (batch_head, row) = of_half(half);
            let key = first_key() + lane_column(row.builder()) + column;
            (Place { batch_head, row, key }, value(), rows[half].max)
        });
    }

    pub(crate) fn taps(&self, tap: Tap) -> bool {
        self.tap.as_ref().is_some_and(|params| params.tap == tap)
    }

    /// If this tap is requested: stores the value of a row and key, if there are such. A score is given as
    /// [`ScoreMod::score`](crate::attention::score_mod::ScoreMod::score) gives it, a probability with the maximum of
    /// its row.
    #[track_caller]
    pub(crate) fn tap(&self, tap: Tap, value: impl FnOnce() -> (Place<'k>, Val<'k, f32>, RowMax<'k>)) {
        let Some(params) = self.tap.as_ref().filter(|params| params.tap == tap) else {
            return;
        };
        let (Place { batch_head, row, key }, value, max) = value();
        let exists = row.lt(self.seq_len_q) & key.lt(self.seq_len_kv);
        let of = |buffer: &GlobalPtr<'k, f32>| {
            let row = buffer.offset_strided(batch_head.fma(self.seq_len_q, row), self.seq_len_kv);
            row.offset(key)
        };
        row.builder().if_(exists.divergent(), || match &params.offsets {
            None => {
                let to_score = self.score_mod.exponent_scale * std::f32::consts::LN_2;
                of(&params.values).store(value * to_score);
            }
            Some(offsets) => {
                of(&params.values).store(value);
                of(offsets).store(max.offset);
            }
        });
    }
}
