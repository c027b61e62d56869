//! The last step: scales and rounds the f32 sums of dQ, and stores them in rows. Family `wgmma` has its sums in another
//! order (`wgmma/backward/postprocess.rs`).
//!
//! The main kernel adds dQ up tile by tile of query rows. Sums are in the order of the accumulators that are added: of
//! a tile warp after warp, of a warp block after block of 16 rows, of a block one accumulator of 8 columns after the
//! other, of an accumulator four registers, and of a register lane after lane, so that a warp adds 128 bytes at a time.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{Cache, TileShape, Widen};
use flashcore_problem::Name;

use crate::Refusal;
use crate::args::{Args, build};
use crate::attention::gradients::{Backward, Statistics, declare_softmax_scale, dq_sums};
use crate::attention::params::{RowParams, Shape, grid, query_blocks};
use crate::attention::row_tile::{ACC_COLS, QUAD};
use crate::step::{KernelCache, Step};
use crate::tiles::STEP;

const THREADS: u32 = 256;

/// Elements of a row that a lane stores at a time: 16 bytes.
const COLUMNS: u32 = 8;

/// A tile of sums, and the warps that share it.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct SumTiles {
    pub rows: u32,
    /// Columns, with those past head_dim.
    pub columns: u32,
    /// Warps along the rows, and along the columns: these take steps of 16 columns in turn.
    pub warps: [u32; 2],
}

impl SumTiles {
    /// Blocks of 16 rows of a warp's part.
    pub(super) fn row_blocks(&self) -> u32 {
        self.rows / STEP / self.warps[0]
    }

    /// Steps of 16 columns of it, of two accumulators each.
    pub(super) fn steps(&self) -> u32 {
        self.columns / STEP / self.warps[1]
    }

    /// Accumulators of it.
    pub(super) fn accumulators(&self) -> u32 {
        2 * self.row_blocks() * self.steps()
    }
}

pub(super) fn step(request: &Backward, shape: &Shape, tiles: SumTiles, kernels: &KernelCache) -> Result<Step, Refusal> {
    // Nothing of it depends on V, or on how scores come about.
    let shape = Shape {
        head_dim_v: shape.head_dim,
        softcap: false,
        ..*shape
    };
    let kernel = kernels.get_or_build(tiles, shape, |tiles, shape| {
        let SumTiles { rows, columns, warps } = tiles;
        let [along, across] = warps;
        let name = shape.kernel_name(&format!("backward_dq_sums_m{rows}c{columns}w{along}x{across}"));
        build!(name, THREADS, sixteen_bits shape.dtype => body(k, tiles, shape))
    })?;
    let blocks = query_blocks(&request.problem, tiles.rows);
    kernel.step(grid("backward", [blocks, 1, 1])?, request)
}

fn body<'k, E: MmaElement + Widen>(k: &'k Args<'k, Backward>, tiles: SumTiles, shape: &Shape) {
    let dq = k.writes::<E>(Name::Dq, shape.vector_bytes);
    let (statistics, sums) = (Statistics::declare(k, false), dq_sums(k, false));
    let softmax_scale = declare_softmax_scale(k);
    let params = RowParams::declare(k, shape);

    let of_head = (params.seq_len_q + (tiles.rows - 1)) / tiles.rows;
    let (tile, batch_head) = (k.block_idx(0) % of_head, k.block_idx(0) / of_head);
    let (batch, head) = (batch_head / params.num_heads, batch_head % params.num_heads);
    let (params, first) = params.of_sequence(batch);
    let dq = dq.starting_at(first.q);
    let first_row = tile * tiles.rows;
    let head_row = statistics.head_row([params.num_heads, batch, head], first);
    let sums = sums.offset_strided(head_row + first_row, tiles.columns);
    // Padded, so that neither its rows nor its columns fall into one bank.
    let rounded = TileShape::new(tiles.rows, tiles.columns).padded(16 / E::BYTES);
    let rounded = k.shared_tile::<E>("rounded", rounded);
    params.if_has_row(first_row, params.seq_len_q, || {
        let (warp, lane) = (k.thread_idx() / 32, k.lane());
        let all = tiles.warps[0] * tiles.warps[1] * tiles.accumulators();
        k.for_uniform(warp, all, THREADS / 32, |i| {
            let from = sums.offset(i * (4 * 32) + lane);
            let across = 2 * tiles.steps();
            let acc = i % across;
            let block = i / across % tiles.row_blocks();
            let of_warp = i / tiles.accumulators();
            let (along, in_turn) = (of_warp / tiles.warps[1], of_warp % tiles.warps[1]);
            let row = along * (tiles.rows / tiles.warps[0]) + block * STEP + lane / QUAD;
            let step = (acc / 2) * tiles.warps[1] + in_turn;
            let column = step * STEP + acc % 2 * ACC_COLS + lane % QUAD * 2;
            let at = rounded.at(row, column);
            for half in 0..2 {
                let [a, b] = [0, 1].map(|e| from.plus(32 * (2 * half as i32 + e)).load() * softmax_scale);
                rounded.down(at, 8 * half).store_words(&[E::pack(a, b)], Cache::Default);
            }
        });
        k.barrier();
        let (to, chunks) = (dq.head(batch, head), shape.head_dim / COLUMNS);
        k.for_divergent(k.thread_idx(), tiles.rows * chunks, THREADS, |chunk| {
            let (row, column) = (chunk / chunks, chunk % chunks * COLUMNS);
            k.if_((first_row + row).lt(params.seq_len_q).divergent(), || {
                let words = rounded.at(row, column).load_words(4, Cache::Default);
                let row = dq.row(to, first_row + row);
                row.offset(column).store_words(&words, Cache::Default);
            });
        });
    });
}
