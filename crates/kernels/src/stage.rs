//! Builds that stop after a stage, so that a wrong answer can be traced to the stage that spoils it.
//!
//! Any config of any family can be built to stop after `S = Q·Kᵀ` or after the softmax: the same tiles, copies
//! and products up to there, then the stage's values are stored and nothing else is computed
//! ([`Plan::with_stage`](crate::Plan::with_stage)). `out` is not written, and the log-sum-exp is not asked for.
//!
//! | stage | buffer `stage`, f32 `[batch, num_heads, seq_len_q, seq_len_kv]` | compared with |
//! |---|---|---|
//! | [`StopAfter::Scores`] | scores, scaled and soft-capped, of every key: the launch lifts the mask | `reference_scores` |
//! | [`StopAfter::Probabilities`] | `2^(score·log2(e) + offset)`, the masked softmax before it is normalised | `reference_probabilities` |
//!
//! The online softmax computes probabilities relative to a reference that moves from tile to tile. A second
//! buffer of the same shape, `offsets`, says what each was relative to; [`finish`] makes one distribution
//! of the two. Rescaling and row sums are thus not part of the stage: they belong to `P·V`.

use std::fmt;

use flashcore_ir::{Arg, BufferSpec, Cond, GlobalPtr, KernelBuilder, Launch, Val};
use flashcore_problem::{KeyRange, POISON, Problem};
use serde::{Deserialize, Serialize};

use crate::Refusal;
use crate::params::{RowParams, Shape};
use crate::softmax::Reference;

/// The last stage that a build computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopAfter {
    /// `S = scale·Q·Kᵀ`, soft-capped, not masked.
    Scores,
    /// `P = softmax(S)`, masked.
    Probabilities,
}

impl StopAfter {
    /// Every stage.
    pub const ALL: [StopAfter; 2] = [StopAfter::Scores, StopAfter::Probabilities];

    /// `scores` or `probabilities`.
    pub const fn name(self) -> &'static str {
        match self {
            StopAfter::Scores => "scores",
            StopAfter::Probabilities => "probabilities",
        }
    }

    /// The stage of a name.
    pub fn from_name(name: &str) -> Option<StopAfter> {
        StopAfter::ALL.into_iter().find(|stage| stage.name() == name)
    }
}

impl fmt::Display for StopAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Elements of a stage: one a query row and key.
///
/// ```
/// use flashcore_kernels::stage;
/// use flashcore_problem::Problem;
/// assert_eq!(stage::len(&Problem::named("mission")?), 8 * 512 * 512);
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
pub fn len(problem: &Problem) -> usize {
    problem.lse_len() * problem.seq_len_kv()
}

/// What a build that stopped found, as `reference_scores` and `reference_probabilities` have it: scores as they
/// are, probabilities normalised row by row, 0 where a key is hidden. Values are f32, `[batch, num_heads,
/// seq_len_q, seq_len_kv]`; those that should have been stored and were not keep their poison.
///
/// `stage` and `offsets` (empty after scores) are the launch's buffers of these names, which must have begun as
/// [`POISON`].
///
/// ```
/// use flashcore_kernels::stage::{StopAfter, finish};
/// use flashcore_problem::Problem;
/// let problem = Problem::builder().seq_len_q(1).seq_len_kv(2).build()?;
/// // Both scores were 3; the second was met after the reference had risen from 1 to 3.
/// let p = finish(&problem, StopAfter::Probabilities, &[4.0, 1.0], &[-1.0, -3.0]);
/// assert_eq!(p, [0.5, 0.5]);
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
pub fn finish(problem: &Problem, stop: StopAfter, stage: &[f32], offsets: &[f32]) -> Vec<f32> {
    let mut values = stage.to_vec();
    let (keys, rows) = (problem.seq_len_kv(), problem.seq_len_q());
    if stop == StopAfter::Scores || keys == 0 {
        return values;
    }
    for (index, (row, offsets)) in values.chunks_mut(keys).zip(offsets.chunks(keys)).enumerate() {
        let visible = problem.visible_keys(index % rows);
        for (key, value) in row.iter_mut().enumerate() {
            // What no row of a tile sees is never computed; what is stored of it, must be 0.
            if !visible.contains(&key) && unwritten(*value) {
                *value = 0.0;
            }
        }
        normalise(row, offsets);
    }
    values
}

fn unwritten(value: f32) -> bool {
    value.to_ne_bytes() == [POISON; 4]
}

/// Brings the values of a row to one reference, and their sum to 1.
fn normalise(row: &mut [f32], offsets: &[f32]) {
    let exponent = |p: f32, offset: f32| f64::from(p).log2() - f64::from(offset);
    let present = |p: f32| p > 0.0 && !unwritten(p);
    let pairs = || row.iter().zip(offsets).filter(|(p, _)| present(**p));
    let highest = pairs().map(|(&p, &o)| exponent(p, o)).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = pairs().map(|(&p, &o)| (exponent(p, o) - highest).exp2()).sum();
    for (p, &offset) in row.iter_mut().zip(offsets) {
        if present(*p) {
            *p = ((exponent(*p, offset) - highest).exp2() / sum) as f32;
        }
    }
}

/// Refuses what a kernel has no place for: it counts rows of the stage in 32 bits.
pub(crate) fn check(problem: &Problem, stop: Option<StopAfter>) -> Result<(), Refusal> {
    if stop.is_none() || u32::try_from(problem.lse_len()).is_ok() {
        return Ok(());
    }
    Err(Refusal::Unsupported {
        family: "a build that stops after a stage",
        what: format!("{} rows", problem.lse_len()),
        remedy: "take fewer batches or heads",
    })
}

/// The parameters that a build which stops has besides the others. [`extend_launch`] gives their arguments.
pub(crate) struct StageParams<'k> {
    stage: GlobalPtr<'k, f32>,
    offsets: Option<GlobalPtr<'k, f32>>,
}

impl<'k> StageParams<'k> {
    pub(crate) fn declare(k: &'k KernelBuilder, stop: StopAfter) -> Self {
        StageParams {
            stage: k.param_ptr_mut("stage"),
            offsets: (stop == StopAfter::Probabilities).then(|| k.param_ptr_mut("offsets")),
        }
    }
}

/// Adds the buffers and arguments of a build that stops to a launch.
pub(crate) fn extend_launch(launch: &mut Launch, problem: &Problem, stop: StopAfter) {
    let names: &[&str] = match stop {
        StopAfter::Scores => &["stage"],
        StopAfter::Probabilities => &["stage", "offsets"],
    };
    for name in names {
        launch.args.push(Arg::Buffer {
            slot: launch.buffers.len(),
            byte_offset: 0,
        });
        launch.buffers.push(BufferSpec {
            name,
            bytes: 4 * len(problem) as u64,
            written: true,
            align: 4,
        });
    }
}

/// The keys that rows see, as a launch says it: all of them where the stage comes before the mask.
pub(crate) fn key_range(problem: &Problem, stop: Option<StopAfter>) -> KeyRange {
    match stop {
        Some(StopAfter::Scores) => KeyRange {
            lo: KeyRange::UNBOUNDED_LO,
            hi: KeyRange::UNBOUNDED_HI,
            ..problem.key_range()
        },
        _ => problem.key_range(),
    }
}

impl Shape {
    /// Whether the build stops after this stage.
    pub(crate) fn stops_after(&self, stage: StopAfter) -> bool {
        self.stop_after == Some(stage)
    }
}

impl<'k> RowParams<'k> {
    /// In a build that stops after scores: stores one, as [`RowParams::score`] gives it, if there are such a row and key.
    #[track_caller]
    pub(crate) fn store_score(
        &self,
        batch_head: Val<'k, u32>,
        row: Val<'k, u32>,
        key: Val<'k, u32>,
        score: Val<'k, f32>,
    ) {
        let Some(stage) = &self.stage else { return };
        row.builder().if_(self.exists(row, key), || {
            let score = score * (self.exponent_scale * std::f32::consts::LN_2);
            self.stage_place(stage.stage, batch_head, row, key).store(score);
        });
    }

    /// In a build that stops after probabilities: stores one and what it is relative to, if there are such a row and key.
    #[track_caller]
    pub(crate) fn store_probability(
        &self,
        batch_head: Val<'k, u32>,
        row: Val<'k, u32>,
        key: Val<'k, u32>,
        p: Val<'k, f32>,
        reference: &Reference<'k>,
    ) {
        let Some(StageParams {
            stage,
            offsets: Some(offsets),
        }) = &self.stage
        else {
            return;
        };
        row.builder().if_(self.exists(row, key), || {
            self.stage_place(*stage, batch_head, row, key).store(p);
            self.stage_place(*offsets, batch_head, row, key).store(reference.offset);
        });
    }

    #[track_caller]
    fn stage_place(
        &self,
        of: GlobalPtr<'k, f32>,
        batch_head: Val<'k, u32>,
        row: Val<'k, u32>,
        key: Val<'k, u32>,
    ) -> GlobalPtr<'k, f32> {
        of.offset_strided(batch_head.fma(self.seq_len_q, row), self.seq_len_kv)
            .offset(key)
    }

    #[track_caller]
    fn exists(&self, row: Val<'k, u32>, key: Val<'k, u32>) -> Cond<'k> {
        (row.lt(self.seq_len_q) & key.lt(self.seq_len_kv)).divergent()
    }
}
