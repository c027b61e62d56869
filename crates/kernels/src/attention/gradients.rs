//! What every backward kernel shares: its parameters, and the statistics of query rows, which
//! [`preprocess`](super::preprocess) prepares, of all heads or of the first ones.
//!
//! For each query row the workspace has the log-sum-exp as an exponent of 2 and `Δ = rowsum(dO ∘ O)`, f32, of all rows
//! in one array each. Rows are padded: those of a sequence begin at a multiple of [`PADDING`], and up to the next
//! multiple after its last row they are defined, so that a main loop reads whole tiles without a condition. A row that
//! is not there, and one that sees no key, has a log-sum-exp of +∞ and Δ = 0: with any finite score P is 0, and so is
//! `P·(dP − Δ)`. Nothing else may be a NaN then: tiles of Q and dO have zeros past the last row.
//!
//! | lengths of Q | place of row `i` of sequence `b` and head `h` |
//! |---|---|
//! | equal | `(b·heads + h)·stride + i`, `stride` = rows, rounded up |
//! | packed | `h·stride + (first + b·PADDING)/PADDING·PADDING + i`, `stride` = total, rounded up, `+ batch·PADDING` |
//!
//! A main kernel whose blocks own keys adds dQ up behind them: f32, zeroed by `preprocess`, so many columns for each
//! of these rows. The main kernel defines their order within a tile of rows. If the first block at a tile [stores its
//! part](Workspace::first_stores), a [`DqSemaphore`] follows the sums, which is zeroed in their place. If the main
//! kernel [prepares statistics](Workspace::prepared_ahead) of later heads, a count for each head follows the semaphore:
//! of the blocks that have prepared rows of that head. Where several blocks [share a tile of
//! keys](Workspace::sums_of_keys), sums of dK and dV come last: f32, zeroed by `preprocess`, for rows of keys that are
//! padded in the same way.

mod keys;

use flashcore_ir::{Cache, Element, GlobalPtr, Val};
use flashcore_problem::{Name, Problem, QLengths};

pub(crate) use self::keys::{KeySums, ZeroedSums};
use super::index::Index;
use super::lengths::{FirstRows, TensorParam};
use super::params::{RowParams, Shape};
use super::score_mod::ScoreMod;
use crate::args::{ALIGN, Args, Part, Request};
use crate::{Refusal, refuse};

/// What rows of the statistics are padded to: a multiple of every tile's rows.
pub(crate) const PADDING: u32 = 128;

/// The head of all batches, and its tile of what blocks own, that a block's number stands for.
///
/// Tiles go in bundles of `at_once` heads. In a bundle the first tiles of all heads come first; if `last_first`, the
/// last ones, so that of one head a block with a smaller number has a later tile. The last argument divides by the
/// tiles of a bundle, and by its heads.
#[track_caller]
pub(crate) fn tile_of<I: Index>(
    number: I,
    [tiles, heads, at_once]: [I; 3],
    last_first: bool,
    [by_tiles, by_heads]: [&dyn Fn(I, I) -> I; 2],
) -> (I, I) {
    let bundle = by_tiles(number, tiles * at_once) * at_once;
    let in_bundle = number - bundle * tiles;
    let width = at_once.min(heads - bundle);
    let place = by_heads(in_bundle, width);
    let index = if last_first {
        tiles - place - tiles.constant(1)
    } else {
        place
    };
    (bundle + (in_bundle - place * width), index)
}

/// The workspace of a backward pass.
#[derive(Clone, Copy, Default)]
pub(crate) struct Workspace {
    /// Rows from one head to the next.
    pub stride: usize,
    rows: usize,
    /// Columns of the sums of dQ; 0 where there are none.
    pub(super) dq_columns: u32,
    /// Whether the first block that reaches a tile of the sums stores its part. `preprocess` then zeroes a
    /// [`DqSemaphore`] in place of the sums.
    pub(super) first_stores: bool,
    /// Number of heads of all batches if the main kernel prepares statistics of later heads and counts, for each head,
    /// the blocks that have done so; 0 if `preprocess` prepares all rows.
    pub(super) counted_heads: usize,
    /// Number of heads, the first ones, whose rows `preprocess` prepares if [`Self::counted_heads`] is not 0.
    pub first_heads: usize,
    /// Rows from one K/V head to the next in the sums of dK and dV, rows of each, and columns; 0 where there are none.
    kv_stride: usize,
    kv_rows: usize,
    kv_columns: u32,
}

impl Workspace {
    /// # Errors
    /// More rows than kernels count, in 32 bits.
    pub(crate) fn new(family: &'static str, problem: &Problem, dq_columns: u32) -> Result<Workspace, Refusal> {
        let total = match problem.q_lengths() {
            QLengths::Equal => None,
            QLengths::Packed { total, .. } => Some(total),
        };
        let (stride, rows) = padded_rows(problem, total, problem.seq_len_q(), problem.num_heads());
        refuse!(rows as u64 > u64::from(u32::MAX) => family, "lower batch, num_heads or seq_len_q",
            "statistics of {rows} query rows of all heads (at most {})", u32::MAX);
        Ok(Workspace {
            stride,
            rows,
            dq_columns,
            ..Workspace::default()
        })
    }

    pub(crate) fn first_stores(self, first_stores: bool) -> Workspace {
        Workspace { first_stores, ..self }
    }

    /// `preprocess` prepares rows of the first `first` of `heads` heads of all batches, the main kernel those of the
    /// others.
    pub(crate) fn prepared_ahead(self, heads: usize, first: usize) -> Workspace {
        Workspace {
            counted_heads: heads,
            first_heads: first,
            ..self
        }
    }

    /// Where its arrays begin.
    fn offsets(&self) -> Offsets {
        let delta = 4 * self.rows;
        let dq_sums = 2 * delta;
        let dq_semaphore = dq_sums + self.dq_columns as usize * delta;
        let tickets = dq_semaphore + delta;
        let counts = tickets + ALIGN as usize;
        let end = if self.first_stores {
            counts + 4 * self.counted_heads
        } else {
            dq_semaphore
        };
        let dk_sums = end.next_multiple_of(ALIGN as usize);
        Offsets {
            delta,
            dq_sums,
            dq_semaphore,
            tickets,
            counts,
            end,
            dk_sums,
            dv_sums: dk_sums + self.sums_of_keys_bytes() / 2,
        }
    }

    fn part(&self, of: fn(&Offsets) -> usize) -> Part {
        let at = self.offsets();
        let bytes = if self.has_sums_of_keys() {
            at.dk_sums + self.sums_of_keys_bytes()
        } else {
            at.end
        };
        Part::new(bytes as u64, of(&at) as u64)
    }
}

/// Padded rows of a head, and of all `heads` heads of each sequence: of sequences of `rows` rows, or of packed ones of
/// `total` rows.
fn padded_rows(problem: &Problem, total: Option<usize>, rows: usize, heads: usize) -> (usize, usize) {
    let padding = PADDING as usize;
    let (stride, heads) = match total {
        None => (rows.next_multiple_of(padding), problem.batch() * heads),
        Some(total) => (total.next_multiple_of(padding) + problem.batch() * padding, heads),
    };
    (stride, stride * heads)
}

/// Where the arrays of a [`Workspace`] begin, in bytes, if it has them; the log-sum-exp is first.
pub(crate) struct Offsets {
    delta: usize,
    dq_sums: usize,
    dq_semaphore: usize,
    tickets: usize,
    /// Where the main kernel counts the blocks that have prepared rows of each head.
    pub counts: usize,
    /// The end of all arrays but the sums of dK and dV.
    end: usize,
    dk_sums: usize,
    dv_sums: usize,
}

/// What a launch of a backward pass is made for.
pub(crate) struct Backward {
    pub problem: Problem,
    pub workspace: Workspace,
    /// Blocks that share a tile of keys.
    pub splits: u32,
}

impl Backward {
    /// A block has a tile of keys by itself.
    pub(crate) fn new(problem: &Problem, workspace: Workspace) -> Backward {
        Backward {
            problem: problem.clone(),
            workspace,
            splits: 1,
        }
    }
}

impl Request for Backward {
    fn problem(&self) -> &Problem {
        &self.problem
    }
}

/// An array of the workspace.
#[track_caller]
pub(crate) fn declare_array<'k, E: Element>(
    k: &Args<'k, Backward>,
    name: &str,
    written: bool,
    of: fn(&Offsets) -> usize,
) -> GlobalPtr<'k, E> {
    k.part(name, written, move |request| Ok(request.workspace.part(of)))
}

/// The statistics of query rows.
#[derive(Clone, Copy)]
pub(crate) struct Statistics<'k> {
    pub(super) lse: GlobalPtr<'k, f32>,
    pub(super) delta: GlobalPtr<'k, f32>,
    /// Rows from one head to the next.
    pub stride: Val<'k, u32>,
}

impl<'k> Statistics<'k> {
    pub(crate) fn declare(k: &'k Args<'k, Backward>, written: bool) -> Self {
        Statistics {
            lse: declare_array(k, "row_lse", written, |_| 0),
            delta: declare_array(k, "row_delta", written, |at| at.delta),
            stride: k.number("statistics_stride", |request| request.workspace.stride as u32),
        }
    }

    /// The [place](head_row) of the first row of a sequence's head.
    #[track_caller]
    pub(crate) fn head_row(&self, place: [Val<'k, u32>; 3], first: FirstRows<'k>) -> Val<'k, u32> {
        head_row(self.stride, place, first.q)
    }

    /// The statistics of one head of a sequence: row 0 is its first row.
    #[track_caller]
    pub(crate) fn of_head(self, place: [Val<'k, u32>; 3], first: FirstRows<'k>) -> Self {
        self.starting_at(self.head_row(place, first))
    }

    /// The statistics from place `row` on.
    #[track_caller]
    pub(super) fn starting_at(self, row: Val<'k, u32>) -> Self {
        let [lse, delta] = self.places(row);
        Statistics { lse, delta, ..self }
    }

    /// Where the log-sum-exp and Δ of a row are, and those of the rows after it.
    #[track_caller]
    pub(crate) fn places(&self, row: Val<'k, u32>) -> [GlobalPtr<'k, f32>; 2] {
        [self.lse, self.delta].map(|at| at.offset(row))
    }

    /// Log-sum-exp and Δ of a row.
    #[track_caller]
    pub(crate) fn load(&self, row: Val<'k, u32>) -> [Val<'k, f32>; 2] {
        self.places(row).map(|at| at.load_with(Cache::ReadOnly))
    }
}

/// The place of the first row of a sequence's head in statistics and sums, a multiple of [`PADDING`]: from the heads of
/// a sequence, its batch and the head, and its first row, of queries or of keys, where sequences are packed.
#[track_caller]
pub(crate) fn head_row<'k>(
    stride: Val<'k, u32>,
    [heads, batch, head]: [Val<'k, u32>; 3],
    first: Option<Val<'k, u32>>,
) -> Val<'k, u32> {
    match first {
        None => batch.fma(heads, head) * stride,
        Some(first) => head.fma(stride, (first + batch * PADDING) / PADDING * PADDING),
    }
}

/// Which blocks have added to the sums of dQ.
///
/// In order, so that all runs write the same bits, and where blocks wait for rows that others prepare, a block takes a
/// ticket when it starts, which is the number of its tile. Blocks with smaller tickets have already started. A block
/// waits only for these, so it cannot deadlock.
#[derive(Clone, Copy)]
pub(crate) struct DqSemaphore<'k> {
    /// For each row of the statistics, of which the first ones of a tile are used: 0 if no block has come, else, in
    /// order, which one added last, or in any order, whether the first one has stored its part.
    pub words: GlobalPtr<'k, u32>,
    /// The next ticket.
    pub tickets: GlobalPtr<'k, u32>,
}

impl<'k> DqSemaphore<'k> {
    pub(crate) fn declare(k: &'k Args<'k, Backward>, written: bool) -> Self {
        DqSemaphore {
            words: declare_array(k, "dq_semaphore", written, |at| at.dq_semaphore),
            tickets: declare_array(k, "tickets", written, |at| at.tickets),
        }
    }
}

/// P from a score, before it is scaled, and its row's log-sum-exp.
#[track_caller]
pub(crate) fn probability<'k>(score: Val<'k, f32>, exponent_scale: Val<'k, f32>, lse: Val<'k, f32>) -> Val<'k, f32> {
    score.fma(exponent_scale, -lse).exp2()
}

/// dS from P, dP and its row's Δ.
#[track_caller]
pub(crate) fn score_gradient<'k>(p: Val<'k, f32>, dp: Val<'k, f32>, delta: Val<'k, f32>) -> Val<'k, f32> {
    p * (dp - delta)
}

/// The sums of dQ.
pub(crate) fn dq_sums<'k>(k: &'k Args<'k, Backward>, written: bool) -> GlobalPtr<'k, f32> {
    declare_array(k, "dq_sums", written, |at| at.dq_sums)
}

pub(crate) fn declare_softmax_scale<'k>(k: &'k Args<'k, Backward>) -> Val<'k, f32> {
    k.number("softmax_scale", |request| request.problem.softmax_scale())
}

/// The parameters that every main kernel of a backward pass has, but for what it writes.
#[derive(Clone)]
pub(crate) struct BackwardParams<'k, E> {
    pub q: TensorParam<'k, E>,
    pub k: TensorParam<'k, E>,
    pub v: TensorParam<'k, E>,
    pub dout: TensorParam<'k, E>,
    pub statistics: Statistics<'k>,
    pub softmax_scale: Val<'k, f32>,
    pub rows: RowParams<'k>,
    /// Where the sequence begins, after [`BackwardParams::of_sequence`].
    pub first: FirstRows<'k>,
}

impl<'k, E: Element> BackwardParams<'k, E> {
    pub(crate) fn declare(k: &'k Args<'k, Backward>, shape: &Shape) -> Self {
        let align = shape.vector_bytes;
        BackwardParams {
            q: k.reads(Name::Q, align),
            k: k.reads(Name::K, align),
            v: k.reads(Name::V, align),
            dout: k.reads(Name::Dout, align),
            statistics: Statistics::declare(k, false),
            softmax_scale: declare_softmax_scale(k),
            rows: RowParams::declare(k, shape),
            first: FirstRows { q: None, k: None },
        }
    }

    /// The parameters as they are for a sequence.
    #[track_caller]
    pub(crate) fn of_sequence(self, batch: Val<'k, u32>) -> Self {
        let (rows, first) = self.rows.of_sequence(batch);
        BackwardParams {
            q: self.q.starting_at(first.q),
            dout: self.dout.starting_at(first.q),
            k: self.k.starting_at(first.k),
            v: self.v.starting_at(first.k),
            rows,
            first,
            ..self
        }
    }

    /// P and dS, the gradient of a score before it was scaled and capped but for the scale, from the products
    /// `q·k` and `dO·v`.
    #[track_caller]
    pub(crate) fn differentiate(
        &self,
        dot: Val<'k, f32>,
        dp: Val<'k, f32>,
        [lse, delta]: [Val<'k, f32>; 2],
    ) -> (Val<'k, f32>, Val<'k, f32>) {
        let score_mod: &ScoreMod<'k> = &self.rows.score_mod;
        let score = score_mod.score(dot);
        let p = probability(score, score_mod.exponent_scale, lse);
        let ds = score_gradient(p, dp, delta);
        match score_mod.derivative(score) {
            Some(slope) => (p, ds * slope),
            None => (p, ds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few rows are padded to many.
    #[test]
    fn kernels_can_count_the_rows() {
        let rows = |batch| {
            let problem = Problem::builder().batch(batch).heads(512, 512).head_dim(16);
            let problem = problem.seq_len(1).build().unwrap();
            Workspace::new("mma", &problem, 0).map(|workspace| workspace.rows)
        };
        let most = (1 << 32) / 512 / PADDING as usize;
        assert_eq!(rows(most - 1).unwrap(), (1 << 32) - 512 * PADDING as usize);
        let refusal = rows(most).unwrap_err().to_string();
        assert!(refusal.contains("4294967296 query rows"), "{refusal}");
    }
}
