//! The last step: scales and rounds the f32 sums of dQ, and stores them in rows. Family `mma` has its sums in another
//! order (`mma/backward/postprocess.rs`). Where several blocks [share a tile of keys](super::split), the blocks after
//! those of dQ round the sums of dK and dV.
//!
//! The main kernel adds tile by tile of query rows, in the order of its accumulators: warp after warp, of a warp one
//! accumulator of 8 columns after the other, of an accumulator lane after lane, four registers each. A warpgroup has 64
//! rows and its share of the columns; warpgroups, and blocks of a cluster, go along the columns first.

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, SharedTile, TileShape, Val};
use flashcore_problem::Name;

use super::{Partition, WGMMA_M, first_stores, named, width};
use crate::Refusal;
use crate::args::{Args, build};
use crate::attention::gradients::{Backward, DqSemaphore, KeySums, declare_softmax_scale, dq_sums, head_row};
use crate::attention::lengths::TensorParam;
use crate::attention::params::{RowParams, Shape, grid, key_blocks, query_blocks};
use crate::attention::row_tile::ACC_COLS;
use crate::attention::softmax::SixteenBits;
use crate::step::{KernelCache, Step};
use crate::wgmma::{ALIGNMENT, Config, NAME};

const THREADS: u32 = 256;

/// Elements of a row that a thread stores at a time: 16 bytes.
const COLUMNS: u32 = 8;

/// What is rounded.
#[derive(Clone, Copy, PartialEq)]
struct Rounding {
    config: Config,
    /// The first block at a tile of dQ stored its part, so a tile without a block holds no sums.
    stored: bool,
    /// There are sums of dK and dV, too.
    split: bool,
}

pub(super) fn step(request: &Backward, config: &Config, shape: &Shape, kernels: &KernelCache) -> Result<Step, Refusal> {
    let (shape, problem) = (*shape, &request.problem);
    let split = config.splits > 1;
    // How many blocks share a tile does not matter.
    let rounding = Rounding {
        config: Config { splits: 1, ..*config },
        stored: first_stores(problem.deterministic(), width(&shape)),
        split,
    };
    let kernel = kernels.get_or_build(rounding, shape, |rounding, shape| {
        let stored = if rounding.stored { "_stored" } else { "" };
        let of_keys = if rounding.split { "_dk_dv" } else { "" };
        let name = named(&rounding.config, shape, &format!("dq{stored}{of_keys}"));
        build!(name, THREADS, sixteen_bits shape.dtype => body(k, rounding, shape))
    })?;
    let dk_blocks = if split { key_blocks(problem, config.rows) } else { 0 };
    let blocks = query_blocks(problem, config.rows) + 2 * dk_blocks;
    kernel.step(grid(NAME, [blocks, 1, 1])?, request)
}

/// The sums of dK and dV, and the blocks that round them.
struct KeyGradients<'k, E> {
    gradients: [TensorParam<'k, E>; 2],
    sums: KeySums<'k>,
    /// The grid has `dq_blocks` blocks for dQ, then `dk_blocks` for dK, then as many for dV.
    dq_blocks: Val<'k, u32>,
    dk_blocks: Val<'k, u32>,
}

impl<'k, E: SixteenBits> KeyGradients<'k, E> {
    fn declare(k: &'k Args<'k, Backward>, rows: u32) -> Self {
        KeyGradients {
            gradients: [Name::Dk, Name::Dv].map(|tensor| k.writes(tensor, ALIGNMENT)),
            sums: KeySums::declare(k, false),
            dq_blocks: k.count("dq_blocks", move |problem| query_blocks(problem, rows)),
            dk_blocks: k.count("dk_blocks", move |problem| key_blocks(problem, rows)),
        }
    }

    /// Rounds the tile of a block that comes after those of dQ.
    #[track_caller]
    fn round(&self, rounded: &RoundedTile<'k, E>, shape: &Shape, params: &RowParams<'k>, softmax_scale: Val<'k, f32>) {
        let (k, rows, width) = (rounded.k, rounded.tile.rows(), rounded.tile.cols());
        let block = k.block_idx(0) - self.dq_blocks;
        let is_dv = block.ge(self.dk_blocks);
        let block = is_dv.select(block - self.dk_blocks, block);
        let tiles = (params.seq_len_kv + (rows - 1)) / rows;
        let (tile, batch_head) = (block % tiles, block / tiles);
        let kv_heads = params.num_heads / params.group_size;
        let (batch, head) = (batch_head / kv_heads, batch_head % kv_heads);
        let first_row = tile * rows;
        let (params, first) = params.of_sequence(batch);
        let sums_row = head_row(self.sums.stride, [kv_heads, batch, head], first.k) + first_row;
        params.if_has_row(first_row, params.seq_len_kv, || {
            let round = |which: usize| {
                let sums = [self.sums.dk, self.sums.dv][which].offset_strided(sums_row, width);
                rounded.fill(sums, [width; 2], None, (which == 0).then_some(softmax_scale));
                let gradient = self.gradients[which].starting_at(first.k);
                let head_dim = [shape.head_dim, shape.head_dim_v][which];
                rounded.store(gradient, [batch, head, first_row], params.seq_len_kv, head_dim);
            };
            k.if_else(is_dv.uniform(), || round(1), || round(0));
        });
    }
}

fn body<'k, E: SixteenBits>(k: &'k Args<'k, Backward>, Rounding { config, stored, split }: Rounding, shape: &Shape) {
    let (rows, partition) = (config.rows, Partition::new(&config, shape));
    let dq = k.writes::<E>(Name::Dq, ALIGNMENT);
    let sums = dq_sums(k, false);
    let semaphore = stored.then(|| DqSemaphore::declare(k, false));
    let stride = k.number("sums_stride", |request| request.workspace.stride as u32);
    let softmax_scale = declare_softmax_scale(k);
    let key_gradients = split.then(|| KeyGradients::<E>::declare(k, rows));
    let params = RowParams::declare(k, shape);
    let rounded = RoundedTile::<E>::declare(k, rows, partition.width);

    let round_dq = |blocks: &dyn Fn() -> Val<'k, u32>| {
        let tiles = (params.seq_len_q + (rows - 1)) / rows;
        // The last sums that were added to are in the L2 cache.
        let block = blocks() - 1 - k.block_idx(0);
        let (tile, batch_head) = (block % tiles, block / tiles);
        let (batch, head) = (batch_head / params.num_heads, batch_head % params.num_heads);
        let first_row = tile * rows;
        let (params, first) = params.of_sequence(batch);
        let sums_row = head_row(stride, [params.num_heads, batch, head], first.q) + first_row;
        let sums = sums.offset_strided(sums_row, partition.dq_cols());
        params.if_has_row(first_row, params.seq_len_q, || {
            let any = semaphore.map(|semaphore| semaphore.words.offset(sums_row).load().gt(0));
            let columns = [partition.dq_part_cols, partition.dq_cols()];
            rounded.fill(sums, columns, any, Some(softmax_scale));
            let dq = dq.starting_at(first.q);
            rounded.store(dq, [batch, head, first_row], params.seq_len_q, shape.head_dim);
        });
    };
    let Some(key_gradients) = key_gradients else {
        return round_dq(&|| k.grid_dim(0));
    };
    k.if_else(
        k.block_idx(0).lt(key_gradients.dq_blocks).uniform(),
        || round_dq(&|| key_gradients.dq_blocks),
        || key_gradients.round(&rounded, shape, &params, softmax_scale),
    );
}

/// A block's tile of rounded rows.
struct RoundedTile<'k, E> {
    k: &'k KernelBuilder,
    tile: SharedTile<'k, E>,
}

impl<'k, E: SixteenBits> RoundedTile<'k, E> {
    fn declare(k: &'k KernelBuilder, rows: u32, width: u32) -> Self {
        // Padded, so that neither its rows nor its columns fall into one bank.
        let tile = k.shared_tile("rounded", TileShape::new(rows, width).padded(16 / E::BYTES));
        RoundedTile { k, tile }
    }

    /// Rounds sums into the tile, or zeros unless there are `any`. A warp of the main kernel has added `columns` of
    /// `all_columns`.
    #[track_caller]
    fn fill(
        &self,
        sums: GlobalPtr<'k, f32>,
        [columns, all_columns]: [u32; 2],
        any: Option<Val<'k, bool>>,
        scale: Option<Val<'k, f32>>,
    ) {
        let (k, rounded) = (self.k, self.tile);
        let (accumulators, parts) = (columns / ACC_COLS, all_columns / columns);
        for first in (0..rounded.rows() * all_columns / 4).step_by(THREADS as usize) {
            // Four registers of a lane.
            let four = k.thread_idx() + first;
            let load = || sums.offset(four * 4).load_words(4, Cache::Default);
            let values = match any {
                None => load(),
                Some(any) => {
                    let values = [0; 4].map(|_| k.var(0.0));
                    k.if_(any.uniform(), || {
                        values.iter().zip(load()).for_each(|(to, sum)| to.set(sum))
                    });
                    values.iter().map(|value| value.get()).collect()
                }
            };
            let (lane, i, warp) = (four % 32, four / 32 % accumulators, four / (32 * accumulators));
            let warpgroup = warp / 4;
            let row = warpgroup / parts * WGMMA_M + warp % 4 * 16 + lane / 4;
            let column = warpgroup % parts * columns + i * ACC_COLS + lane % 4 * 2;
            let at = rounded.at(row, column);
            for half in 0..2 {
                let [a, b] = [0, 1].map(|e| {
                    let value = values[2 * half + e];
                    scale.map_or(value, |scale| value * scale)
                });
                let at = rounded.down(at, 8 * half as u32);
                at.store_words(&[E::pack(a, b)], Cache::Default);
            }
        }
        k.barrier();
    }

    /// Stores the rows of a head from `first_row` on, of which there are `rows`.
    #[track_caller]
    fn store(
        &self,
        tensor: TensorParam<'k, E>,
        [batch, head, first_row]: [Val<'k, u32>; 3],
        rows: Val<'k, u32>,
        head_dim: u32,
    ) {
        let (k, rounded) = (self.k, self.tile);
        let to = tensor.head(batch, head);
        let lanes = (rounded.cols() / COLUMNS).next_power_of_two();
        for first in (0..rounded.rows()).step_by((THREADS / lanes) as usize) {
            let (row, column) = (k.thread_idx() / lanes + first, k.thread_idx() % lanes * COLUMNS);
            let is_there = (first_row + row).lt(rows) & column.lt(head_dim);
            k.if_(is_there.divergent(), || {
                let words = rounded.at(row, column).load_words(4, Cache::Default);
                let row = tensor.row(to, first_row + row);
                row.offset(column).store_words(&words, Cache::Default);
            });
        }
    }
}
