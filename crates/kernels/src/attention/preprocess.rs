//! The step that prepares the [statistics](super::gradients) of query rows from O, dO and the log-sum-exp, and zeros
//! for the sums of dQ, and for those of dK and dV where there are any.

use flashcore_ir::{Cache, Element, GlobalPtr, Val, Widen};
use flashcore_problem::{GRADIENT_LIMIT, Name};

use super::gradients::{Backward, DqSemaphore, PADDING, Statistics, ZeroedSums, declare_array, dq_sums};
use super::lengths::TensorParam;
use super::params::{RowParams, Shape, grid};
use super::score_mod::LOG2_E;
use crate::Refusal;
use crate::args::{Args, Request, build};
use crate::step::{KernelCache, Step};

/// Elements of a row that a thread loads.
pub(crate) const CHUNK: u32 = 8;

/// Warps of the kernel.
const WARPS: u32 = 8;

/// What rows are prepared from.
#[derive(Clone, Copy)]
pub(crate) struct RowInputs<'k, E> {
    out: TensorParam<'k, E>,
    dout: TensorParam<'k, E>,
    lse: GlobalPtr<'k, f32>,
}

/// [`RowInputs`] of one head.
pub(crate) struct HeadInputs<'k, E> {
    of: RowInputs<'k, E>,
    out: GlobalPtr<'k, E>,
    dout: GlobalPtr<'k, E>,
    lse: GlobalPtr<'k, f32>,
}

impl<'k, E: Element> RowInputs<'k, E> {
    /// The parameter of dO has this name.
    pub(crate) fn declare(k: &'k Args<'k, Backward>, dout: &'static str, align: u32) -> Self {
        RowInputs {
            out: k.reads(Name::Out, align),
            dout: k.tensor(dout, Name::Dout, align, false),
            lse: k.input("lse", 4, |request| request.problem().lse_len()),
        }
    }

    /// The inputs of one head. Lengths must be equal.
    #[track_caller]
    pub(crate) fn of_head(self, params: &RowParams<'k>, batch: Val<'k, u32>, head: Val<'k, u32>) -> HeadInputs<'k, E> {
        let batch_head = batch.fma(params.num_heads, head);
        HeadInputs {
            of: self,
            out: self.out.head(batch, head),
            dout: self.dout.head(batch, head),
            lse: self.lse.offset_strided(batch_head, params.seq_len_q),
        }
    }
}

impl<'k, E: Widen> HeadInputs<'k, E> {
    /// [`CHUNK`] elements of a row of O and of dO from a column on, in words.
    #[track_caller]
    pub(crate) fn load(&self, row: Val<'k, u32>, column: Val<'k, u32>) -> [Vec<Val<'k, E::Word>>; 2] {
        let rows = [(self.of.out, self.out), (self.of.dout, self.dout)];
        let words = CHUNK / E::PER_WORD;
        rows.map(|(tensor, head)| tensor.row(head, row).offset(column).load_words(words, Cache::ReadOnly))
    }

    /// The log-sum-exp of a row.
    #[track_caller]
    pub(crate) fn lse(&self, row: Val<'k, u32>) -> Val<'k, f32> {
        self.lse.offset(row).load_with(Cache::ReadOnly)
    }
}

/// The log-sum-exp as an exponent of 2: NaN above the limit, where P would be wrong, and of NaN.
#[track_caller]
pub(crate) fn exponent(natural: Val<'_, f32>) -> Val<'_, f32> {
    let within = natural.max(-natural).le(GRADIENT_LIMIT);
    let exponent = within.select(natural * LOG2_E, f32::NAN);
    natural.lt(f32::MIN).select(f32::INFINITY, exponent)
}

/// What of the [workspace](super::gradients::Workspace) is zeroed.
#[derive(Clone, Copy, PartialEq)]
struct Zeroed {
    /// Columns of the sums of dQ; 0 where there are none.
    dq_columns: u32,
    /// The semaphore of these sums, in their place.
    semaphore: bool,
    counts: bool,
    /// Sums of dK and dV.
    of_keys: bool,
}

/// The step.
pub(crate) fn step(request: &Backward, shape: &Shape, kernels: &KernelCache) -> Result<Step, Refusal> {
    let workspace = &request.workspace;
    // Nothing of it depends on Q, or on how scores come about.
    let shape = Shape {
        head_dim: shape.head_dim_v,
        softcap: false,
        ..*shape
    };
    let zeroed = Zeroed {
        dq_columns: workspace.dq_columns,
        semaphore: workspace.first_stores,
        counts: workspace.counted_heads > 0,
        of_keys: workspace.has_sums_of_keys(),
    };
    let kernel = kernels.get_or_build(zeroed, shape, |zeroed, shape| {
        let of_dq = match (zeroed.dq_columns, zeroed.semaphore, zeroed.counts) {
            (0, ..) => String::new(),
            (columns, false, _) => format!("_dq{columns}"),
            (columns, true, false) => format!("_dq{columns}_semaphore"),
            (columns, true, true) => format!("_dq{columns}_counted"),
        };
        let kv = if zeroed.of_keys { "_kv" } else { "" };
        let name = shape.kernel_name(&format!("backward_preprocess_v{}{of_dq}{kv}", shape.vector_bytes));
        build!(name, 32 * WARPS, floats shape.dtype => prepare(k, shape, zeroed))
    })?;
    kernel.step(grid("backward", [blocks(request, &shape), 1, 1])?, request)
}

/// Blocks of a launch.
fn blocks(request: &Backward, shape: &Shape) -> usize {
    let (problem, workspace) = (&request.problem, &request.workspace);
    let rows = problem.seq_len_q().next_multiple_of(PADDING as usize);
    let heads = match workspace.counted_heads {
        0 => problem.num_heads() * problem.batch(),
        _ => workspace.first_heads,
    };
    rows / block_rows(shape) as usize * heads
}

/// Threads that share a row where statistics are prepared, and the rows of a block.
pub(crate) fn row_threads(shape: &Shape) -> u32 {
    shape.head_dim_v.div_ceil(CHUNK).next_power_of_two().clamp(2, 32)
}

fn block_rows(shape: &Shape) -> u32 {
    32 * WARPS / row_threads(shape)
}

/// A block prepares a few rows of a head. Memory is all that it takes time for, so that each thread loads once.
/// Zeroed are, by `levers`: of dQ the sums, or in their place the [`DqSemaphore`], and counts of prepared rows of later
/// heads; and sums of dK and dV.
fn prepare<'k, E: Widen>(k: &'k Args<'k, Backward>, shape: &Shape, zeroed: Zeroed) {
    let RowInputs { out, dout, lse } = RowInputs::<E>::declare(k, "dout", shape.vector_bytes);
    let statistics = Statistics::declare(k, true);
    let dq_sums = (zeroed.dq_columns > 0 && !zeroed.semaphore).then(|| dq_sums(k, true));
    let semaphore = zeroed.semaphore.then(|| DqSemaphore::declare(k, true));
    let counts = zeroed.counts.then(|| {
        let counts = declare_array::<u32>(k, "prepared_blocks", true, |at| at.counts);
        (
            counts,
            k.number("all_heads", |request| request.workspace.counted_heads as u32),
        )
    });
    let of_keys = zeroed.of_keys.then(|| {
        let shape = *shape;
        ZeroedSums::declare(k, move |request| blocks(request, &shape))
    });
    let params = RowParams::declare(k, shape);

    if let Some(sums) = of_keys {
        sums.zero(32 * WARPS);
    }
    let (row_threads, rows) = (row_threads(shape), block_rows(shape));
    let blocks = (params.seq_len_q + (PADDING - 1)) / PADDING * (PADDING / rows);
    let (block, batch_head) = (k.block_idx(0) % blocks, k.block_idx(0) / blocks);
    let (batch, head) = (batch_head / params.num_heads, batch_head % params.num_heads);
    let (params, first) = params.of_sequence(batch);
    let (out, dout) = (out.starting_at(first.q), dout.starting_at(first.q));
    let head_row = statistics.head_row([params.num_heads, batch, head], first);
    let (out_head, dout_head) = (out.head(batch, head), dout.head(batch, head));
    let lse_head = params.lse_of_head(lse, batch_head, first);

    let first_row = block * rows;
    if let Some(semaphore) = semaphore {
        let is_first = k.block_idx(0).eq(0) & k.thread_idx().eq(0);
        k.if_(is_first.divergent(), || semaphore.tickets.store(0u32));
    }
    if let Some((counts, heads)) = counts {
        k.if_(k.block_idx(0).eq(0).uniform(), || {
            k.for_divergent(k.thread_idx(), heads, 32 * WARPS, |head| {
                counts.offset(head).store(0u32)
            });
        });
    }
    let (thread_row, thread_col) = (k.thread_idx() / row_threads, k.thread_idx() % row_threads);
    // Padding is defined up to the end of the tile.
    params.if_has_row(first_row / PADDING * PADDING, params.seq_len_q, || {
        if let Some(sums) = dq_sums {
            let sums = sums.offset_strided(head_row + first_row, zeroed.dq_columns);
            let zeros = [0; 4].map(|_| k.constant(0f32));
            k.for_divergent(k.thread_idx() * 4, rows * zeroed.dq_columns, 4 * 32 * WARPS, |i| {
                sums.offset(i).store_words(&zeros, Cache::Default);
            });
        }
        if let Some(semaphore) = semaphore {
            let place = semaphore.words.offset(head_row + first_row + k.thread_idx());
            k.if_(k.thread_idx().lt(rows).divergent(), || place.store(0u32));
        }
        let (row, column) = (first_row + thread_row, thread_col * CHUNK);
        let is_row = row.lt(params.seq_len_q) & column.lt(shape.head_dim_v);
        // A row that is not there has those of one that sees no key.
        let (sum, row_lse) = (k.var(0.0), k.var(f32::INFINITY));
        k.if_(is_row.divergent(), || {
            let [out, dout] = [out.row(out_head, row), dout.row(dout_head, row)].map(|row| {
                let chunk = row.offset(column);
                chunk.load_f32s(CHUNK, shape.vector_bytes, Cache::ReadOnly)
            });
            out.into_iter().zip(dout).for_each(|(o, d)| sum.fma_assign(o, d));
            let natural = lse_head.offset(row).load_with(Cache::ReadOnly);
            row_lse.set(exponent(natural));
        });
        let delta = sum.get().reduce_sum(row_threads);
        let statistics = statistics.starting_at(head_row);
        k.if_(thread_col.eq(0).divergent(), || {
            statistics.lse.offset(row).store(row_lse.get());
            statistics.delta.offset(row).store(delta);
        });
    });
}
