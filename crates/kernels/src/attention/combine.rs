//! `combine`: merges the [partials](super::split) of rows whose keys were split across blocks.
//!
//! A row's partials are added up as in the online softmax: each is brought from its own maximum to the highest
//! one of the row, then the sum normalises. Partials are read in key order, so a result does not depend on
//! which block finished first.
//!
//! There is little to compute and all of it waits for memory, so threads are laid out to load all of a row's
//! partials at once: a thread has four neighbouring columns of a row and loads up to [`BATCH`] partials
//! before it uses the first; with more splits, groups of threads share the splits and merge in
//! shared memory. Where tiles of a schedule are usually in two pieces it loads [`FEW`], which leaves registers for more
//! blocks.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, SharedTile, TileShape, Val, Var, Widen};
use flashcore_problem::{DType, Name, Problem};

use super::epilogue::{Sinks, Total};
use super::forward::Forward;
use super::params::{RowParams, Shape, declare_lse};
use super::query_rows::{QueryRows, TileHeads};
use super::softmax::FULLY_MASKED;
use super::split::{Partial, Partials};
use super::stream_k::{Combined, Pieces};
use crate::Refusal;
use crate::args::{Args, build};
use crate::step::{KernelCache, Step};

/// Columns of a thread: 16 bytes of a partial.
const COLUMNS: u32 = 4;

/// Partials that a thread loads before it uses the first.
const BATCH: u32 = 8;

/// Partials that a thread loads at once where most rows have two.
const FEW: u32 = 2;

/// Threads a block should have; more where a row needs them.
const USUAL_THREADS: u32 = 128;

/// How the threads of a block are laid out: `[group][row][column / 4]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Threads {
    groups: u32,
    rows: u32,
    row_threads: u32,
    /// Partials that a thread loads at once.
    batch: u32,
}

impl Threads {
    /// Up to eight groups, enough for each to load its partials in one batch.
    fn new(splits: u32, head_dim_v: u32) -> Threads {
        let row_threads = head_dim_v / COLUMNS;
        let groups = splits.div_ceil(BATCH).next_power_of_two().min(8);
        Threads {
            groups,
            rows: (USUAL_THREADS / (groups * row_threads)).max(1),
            row_threads,
            batch: BATCH,
        }
    }

    /// For tiles that a schedule cuts into so many pieces, usually.
    fn listed(pieces: u32, head_dim_v: u32) -> Threads {
        Threads {
            batch: if pieces <= FEW { FEW } else { BATCH },
            ..Threads::new(pieces, head_dim_v)
        }
    }

    /// Threads a block, in whole warps.
    fn count(&self) -> u32 {
        (self.groups * self.rows * self.row_threads).next_multiple_of(32)
    }

    /// First column, row and group of a thread.
    #[track_caller]
    fn place<'k>(&self, k: &'k KernelBuilder) -> [Val<'k, u32>; 3] {
        [
            k.thread_idx() % self.row_threads * COLUMNS,
            k.thread_idx() / self.row_threads % self.rows,
            k.thread_idx() / (self.row_threads * self.rows),
        ]
    }
}

/// The step that merges the splits of rows. `shape` is that of a kernel without splits.
pub(crate) fn step(request: &Forward, shape: &Shape, kernels: &KernelCache) -> Result<Step, Refusal> {
    let threads = Threads::new(request.splits()?, shape.head_dim_v);
    let kernel = kernels.get_or_build(threads, *shape, |threads, shape| {
        let lse = if shape.lse { "_lse" } else { "" };
        let (dtype, sinks, overlaps) = (shape.dtype, shape.sinks_name(), shape.overlaps_name());
        let name = format!(
            "combine_g{}_{dtype}_d{}{sinks}{lse}{overlaps}",
            threads.groups, shape.head_dim_v
        );
        build!(name, threads.count(), sixteen_bits shape.dtype => body(k, threads, shape))
    })?;
    let rows = request.problem.lse_len() as u32;
    kernel.step([rows.div_ceil(threads.rows), 1, 1], request)
}

/// The step that merges the tiles that a schedule cuts into pieces. `shape` is that of the main kernel.
pub(crate) fn listed_step(request: &Forward, shape: &Shape, kernels: &KernelCache) -> Result<Step, Refusal> {
    let schedule = request.schedule()?;
    // The kernel does not depend on how scores are computed.
    let shape = Shape {
        head_dim: shape.head_dim_v,
        softcap: false,
        alibi: false,
        ..*shape
    };
    let threads = Threads::listed(schedule.usual_pieces(), shape.head_dim_v);
    let Pieces { rows, heads, .. } = schedule.pieces;
    let kernel = kernels.get_or_build((threads, rows, heads), shape, |(threads, rows, heads), shape| {
        let few = if threads.batch == FEW { "_few" } else { "" };
        let name = shape.kernel_name(&format!("combine_g{}{few}_m{rows}{}", threads.groups, heads.name()));
        build!(name, threads.count(), sixteen_bits shape.dtype => listed_body(k, threads, rows, heads, shape))
    })?;
    let blocks = schedule.rows(&request.problem).div_ceil(threads.rows);
    kernel.step([blocks, schedule.combined(), 1], request)
}

fn body<'k, E: MmaElement + Widen>(k: &'k Args<'k, Forward>, threads: Threads, shape: &Shape) {
    let out = k.writes::<E>(Name::Out, shape.vector_bytes);
    let lse = shape.lse.then(|| declare_lse(k));
    let partials = Partials::declare(k, shape.head_dim_v, false);
    let seq_len_q = k.count("seq_len_q", Problem::seq_len_q);
    let num_heads = k.count("num_heads", Problem::num_heads);
    let rows = k.count("rows", Problem::lse_len);
    let splits = k.try_number("splits", Forward::splits);
    let sinks = shape.sinks.map(|dtype| Sinks::declare(k, dtype));

    let place @ [column, in_block, _] = threads.place(k);
    let row = k.block_idx(0) * threads.rows + in_block;
    shape.wait_for_launch_before(k);
    let (exists, partial) = (|| row.lt(rows), |split| partials.at(row, split, splits));
    merge(k, threads, place, exists, splits, partial, |merged| {
        let batch_head = row / seq_len_q;
        let head = out.head(batch_head / num_heads, batch_head % num_heads);
        let out_row = out.row(head, row % seq_len_q);
        let total = merged.store(out_row, column, sinks.as_ref(), shape.dtype, || batch_head % num_heads);
        if let Some(lse) = lse {
            k.if_(column.eq(0).divergent(), || {
                let value = total.log_sum_exp();
                lse.offset(row).store(value);
            });
        }
    });
}

/// Combines the tiles that a [schedule](super::stream_k) has in pieces: block `(x, y)` merges some rows of the tile
/// that begins in block `y` of the main kernel, if one does.
fn listed_body<'k, E: MmaElement + Widen>(
    k: &'k Args<'k, Forward>,
    threads: Threads,
    tile_rows: u32,
    heads: TileHeads,
    shape: &Shape,
) {
    let out = k.writes::<E>(Name::Out, shape.vector_bytes);
    let params = RowParams::declare(k, shape);
    let partials = Partials::declare(k, shape.head_dim_v, false);
    shape.wait_for_launch_before(k);
    let tile = Combined::of_block(k);
    k.if_(tile.count.ne(0).uniform(), || {
        let (params, first) = params.of_sequence(tile.batch);
        let out = out.starting_at(first.q);
        let rows = QueryRows::new(&params, heads, [tile.batch, tile.head]);
        let place @ [column, in_block, _] = threads.place(k);
        let row_in_tile = k.block_idx(0) * threads.rows + in_block;
        let row = tile.tile * tile_rows + row_in_tile;
        let exists = || {
            let below_count = row_in_tile.lt(tile_rows) & row.lt(rows.count);
            rows.is_query(row)
                .map_or(below_count, |is_query| below_count & is_query)
        };
        // One register holds the row of the first slot, in place of slot and row.
        let of_first = tile.slot * tile_rows + row_in_tile;
        let partial = |piece| partials.at(piece, of_first, k.constant(tile_rows));
        merge(k, threads, place, exists, tile.count, partial, |merged| {
            let head = || rows.head_of(row);
            let total = merged.store(rows.of(&out, row), column, params.sinks.as_ref(), shape.dtype, head);
            if shape.lse {
                k.if_(column.eq(0).divergent(), || {
                    let (batch_head, query) = rows.batch_head_and_query(params.num_heads, row);
                    params.store_lse(batch_head, query, &total);
                });
            }
        });
    });
}

/// Merges the partials of a row, if it exists, and calls `store` in the threads that have the result, four columns
/// each.
fn merge<'k>(
    k: &'k KernelBuilder,
    threads: Threads,
    [column, row, group]: [Val<'k, u32>; 3],
    exists: impl Fn() -> Val<'k, bool>,
    splits: Val<'k, u32>,
    partial: impl Fn(Val<'k, u32>) -> Partial<'k>,
    store: impl FnOnce(&Merged<'k>),
) {
    // Threads that fill up the last warp belong to no group.
    let at_work = exists() & group.lt(threads.groups);

    let mine = Merged::nothing(k);
    let shared = (threads.groups > 1).then(|| GroupPartials::declare(k, threads));
    k.if_(at_work.divergent(), || {
        k.for_divergent(group, splits, threads.groups * threads.batch, |first| {
            let mut loaded = Vec::new();
            for i in 0..threads.batch {
                let split = first + i * threads.groups;
                // Past the last split, the last one is loaded again and does not count.
                let part = partial(split.min(splits - 1));
                loaded.push(Loaded {
                    counts: Some(split.lt(splits)),
                    sums: part.sums.load_words(2, Cache::Default),
                    out: part.out.offset(column).load_words(COLUMNS, Cache::Default),
                });
            }
            mine.add(&loaded);
        });
        if let Some(shared) = &shared {
            shared.store(&mine, group, row, column);
        }
    });
    let mut stores = at_work;
    if let Some(shared) = &shared {
        k.barrier();
        stores = exists() & group.eq(0);
        k.if_(stores.divergent(), || {
            let others: Vec<_> = (1..threads.groups)
                .map(|group| shared.load(group, row, column))
                .collect();
            mine.add(&others);
        });
    }
    k.if_(stores.divergent(), || store(&mine));
}

/// A partial in registers, four columns of it.
struct Loaded<'k> {
    /// Whether it counts; `None` if it surely does.
    counts: Option<Val<'k, bool>>,
    sums: Vec<Val<'k, f32>>,
    out: Vec<Val<'k, f32>>,
}

/// Four columns of a row in a thread, merged over some splits.
struct Merged<'k> {
    offset: Var<'k, f32>,
    sum: Var<'k, f32>,
    out: [Var<'k, f32>; COLUMNS as usize],
}

impl<'k> Merged<'k> {
    #[track_caller]
    fn nothing(k: &'k KernelBuilder) -> Self {
        Merged {
            offset: k.var(FULLY_MASKED),
            sum: k.var(0.0),
            out: [k.var(0.0), k.var(0.0), k.var(0.0), k.var(0.0)],
        }
    }

    /// Normalises the thread's columns, with the sink of the row's head if there are any, and stores them in a row.
    #[track_caller]
    fn store<E: MmaElement + Widen>(
        &self,
        row: GlobalPtr<'k, E>,
        column: Val<'k, u32>,
        sinks: Option<&Sinks<'k>>,
        dtype: DType,
        head: impl FnOnce() -> Val<'k, u32>,
    ) -> Total<'k> {
        let (offset, sum) = (self.offset.get(), self.sum.get());
        let total = Total::new(sinks, dtype, head, offset, sum, offset.ne(FULLY_MASKED));
        let norm = total.norm();
        let values = self.out.map(|value| value * norm);
        row.offset(column)
            .store_f32s(&values, COLUMNS * E::BYTES, Cache::Default);
        total
    }

    /// Adds partials, in their order, relative to the highest of all maxima, whose offset is the lowest.
    #[track_caller]
    fn add(&self, loaded: &[Loaded<'k>]) {
        let mut lowest = self.offset.get();
        for part in loaded {
            let offset = part
                .counts
                .map_or(part.sums[0], |counts| counts.select(part.sums[0], FULLY_MASKED));
            lowest = lowest.min(offset);
        }
        let factor = (lowest - self.offset).exp2();
        self.offset.set(lowest);
        self.sum.mul_assign(factor);
        for value in &self.out {
            value.mul_assign(factor);
        }
        for part in loaded {
            let factor = (lowest - part.sums[0]).exp2();
            let factor = part.counts.map_or(factor, |counts| counts.select(factor, 0.0));
            self.sum.fma_assign(part.sums[1], factor);
            for (value, &part) in self.out.iter().zip(&part.out) {
                value.fma_assign(part, factor);
            }
        }
    }
}

/// The partials of groups of threads in shared memory.
struct GroupPartials<'k> {
    out: SharedTile<'k, f32>,
    sums: SharedTile<'k, f32>,
}

impl<'k> GroupPartials<'k> {
    #[track_caller]
    fn declare(k: &'k KernelBuilder, threads: Threads) -> Self {
        let shape = |cols| TileShape::new(threads.rows, cols).stages(threads.groups);
        GroupPartials {
            out: k.shared_tile("group_partials", shape(threads.row_threads * COLUMNS)),
            sums: k.shared_tile("group_sums", shape(2)),
        }
    }

    #[track_caller]
    fn store(&self, merged: &Merged<'k>, group: Val<'k, u32>, row: Val<'k, u32>, column: Val<'k, u32>) {
        let values = merged.out.map(Var::get);
        self.out
            .at_stage(group, row, column)
            .store_words(&values, Cache::Default);
        column.builder().if_(column.eq(0).divergent(), || {
            let pair = [merged.offset.get(), merged.sum.get()];
            self.sums.at_stage(group, row, 0).store_words(&pair, Cache::Default);
        });
    }

    #[track_caller]
    fn load(&self, group: u32, row: Val<'k, u32>, column: Val<'k, u32>) -> Loaded<'k> {
        Loaded {
            counts: None,
            sums: self.sums.at_stage(group, row, 0).load_words(2, Cache::Default),
            out: self
                .out
                .at_stage(group, row, column)
                .load_words(COLUMNS, Cache::Default),
        }
    }
}
