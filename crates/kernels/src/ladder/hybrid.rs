//! Rung `hybrid`: tensor cores for `S = Q·Kᵀ` only.
//!
//! What is new to `scalar/tiled`: a warp multiplies its 16 rows with a tile of keys in `mma.sync`, operands read by
//! `ldmatrix`. What is still missing: the scores leave the tensor cores through shared memory, since softmax and
//! `O += P·V` are computed in f32, outside of them. Softmax has two lanes a row. For `O += P·V` eight lanes share four
//! rows: each has eight columns of all four, so that V is read and converted once for four rows. P stays f32, or is
//! rounded to the problem's dtype first (lever `p`).

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{Cache, SharedPtr, SharedTile, TileShape, Val, Var, Widen};

use super::common::{Block, ScoreOperands, WARP_ROWS, load_tile};
use super::{Config, P};
use crate::args::Args;
use crate::attention::forward::Forward;
use crate::attention::masked_row::MaskedRow;
use crate::attention::params::{Params, Shape};
use crate::attention::row_tile::{ACC_COLS, RowTile, lane_column, lane_row};
use crate::attention::tap::{Place, Tap};
use crate::tiles::{CHUNK, HeadTile};

/// Lanes that share a row of the softmax, and neighbouring scores that one takes at a time: 16 bytes.
const PAIR: u32 = 2;
const SCORES: u32 = 4;
/// Lanes that share [`GROUP_ROWS`] rows of the output: those of the same rows in the softmax.
const GROUP: u32 = 8;
const GROUP_ROWS: u32 = GROUP / PAIR;
/// Keys of `O += P·V` at a time: P is read 16 bytes, or 8, an access.
const KEYS: u32 = 4;

pub(super) fn body<'k, E: MmaElement + Widen>(k: &'k Args<'k, Forward>, levers: &Config, shape: &Shape) {
    k.min_blocks_per_sm(1);
    let params = Params::<E>::declare(k, shape);
    let block = Block::new(k, &params, levers);
    let cols = levers.cols;

    let q_tile = HeadTile::declare(k, "q_tile", levers.rows(), shape.head_dim, 1, false);
    let k_tile = HeadTile::declare(k, "k_tile", cols, shape.head_dim, 1, false);
    let v_tile = HeadTile::declare(k, "v_tile", cols, shape.head_dim_v, 1, false);
    // Rows eight banks apart: the pairs that four rows of accumulators store, and the quads that four rows of the
    // softmax load, are in different banks.
    let s_tile = k.shared_tile::<f32>("s_tile", TileShape::new(levers.rows(), cols).padded(8));
    let probabilities = match levers.p {
        P::Usual => Probabilities::Full(s_tile),
        P::SixteenBits | P::F32 => {
            let tile = TileShape::new(levers.rows(), cols).padded(8);
            Probabilities::Rounded(k.shared_tile::<E>("p_tile", tile))
        }
    };

    let (warp, lane) = (k.thread_idx() / 32u32, k.lane());
    let operands = ScoreOperands::new(k, q_tile, k_tile, warp);
    let scores: RowTile<'_> = RowTile::new(k.acc("s", cols / ACC_COLS));
    let first = s_tile.at(warp * WARP_ROWS + lane_row(k), lane_column(k));

    // This lane's row of the softmax, and its half of the scores.
    let (row_in_tile, half) = (k.thread_idx() / PAIR, k.thread_idx() % PAIR);
    let row = MaskedRow::new(k, &params, block.batch, block.head, block.first_row + row_in_tile);
    let mine = SoftmaxLane {
        row_in_tile,
        first: half * SCORES,
        cols,
    };

    // Its rows of the output, whose softmax is in its group of lanes, and its columns of them.
    let group_row = k.thread_idx() / GROUP * GROUP_ROWS;
    let group_lane = lane / GROUP * GROUP;
    let columns = Columns::new(shape.head_dim_v, lane % GROUP);
    let v_places: Vec<_> = (0..columns.chunks).map(|chunk| columns.place(&v_tile, chunk)).collect();
    let out: Vec<Vec<Var<'_, f32>>> = (0..GROUP_ROWS)
        .map(|_| (0..columns.chunks * CHUNK).map(|_| k.var(0.0)).collect())
        .collect();

    load_tile(k, q_tile, &params.q, block.q_head, block.first_row, params.seq_len_q);
    k.for_uniform(block.first_key, block.end_key, cols as i32, |key0| {
        let key0 = key0.reinterpret::<u32>();
        k.barrier();
        load_tile(k, k_tile, &params.k, block.k_head, key0, params.seq_len_kv);
        load_tile(k, v_tile, &params.v, block.v_head, key0, params.seq_len_kv);
        k.barrier();

        operands.multiply(k, scores.0, shape.head_dim);
        for tile in 0..scores.tiles() {
            for half in 0..2 {
                let pair = scores.pair(tile, half).map(|score| score.get());
                let place = s_tile.down(first, 8 * half as u32).plus((ACC_COLS * tile) as i32);
                place.store_words(&pair, Cache::Default);
            }
        }
        // Rows of S are read by the warp that wrote them.
        k.sync_warp();

        let rescale = mine.softmax(&row, &params, block.batch_head, s_tile, &probabilities, key0);
        for (i, out) in (0..).zip(&out) {
            let rescale = rescale.shfl_idx(group_lane + PAIR * i);
            out.iter().for_each(|out| out.mul_assign(rescale));
        }
        // Other lanes' parts of P are needed, too.
        k.sync_warp();

        k.verb("O += P*V", || {
            k.for_uniform(0u32, cols, KEYS, |key| {
                let p: Vec<_> = (0..GROUP_ROWS)
                    .map(|i| probabilities.load(group_row + i, key))
                    .collect();
                for (place, chunk) in v_places.iter().zip(0..) {
                    let first = place.offset(key * v_tile.tile.row_stride());
                    for n in 0..KEYS {
                        let v = v_tile.tile.down(first, n).load_f32s(CHUNK, 16, Cache::Default);
                        for (p, out) in p.iter().zip(&out) {
                            let out = &out[chunk * CHUNK as usize..][..CHUNK as usize];
                            out.iter()
                                .zip(&v)
                                .for_each(|(out, &v)| out.fma_assign(p[n as usize], v));
                        }
                    }
                }
            });
        });
    });

    let sum = row.sum.get().reduce_sum(PAIR);
    let total = params.total(|| block.head, row.max.offset.get(), sum, row.keys);
    let norm = total.norm();
    for (i, out) in (0..).zip(&out) {
        let (norm, row) = (norm.shfl_idx(group_lane + PAIR * i), block.first_row + group_row + i);
        k.if_(row.lt(params.seq_len_q).divergent(), || {
            let out_row = params.out.row(block.out_head, row);
            for (chunk, out) in (0..).zip(out.chunks(CHUNK as usize)) {
                let values: Vec<_> = out.iter().map(|&out| out * norm).collect();
                let column = columns.first(chunk);
                k.if_(column.lt(shape.head_dim_v).divergent(), || {
                    out_row.offset(column).store_f32s(&values, 16, Cache::Default);
                });
            }
        });
    }
    k.if_((row.row.lt(params.seq_len_q) & half.eq(0)).divergent(), || {
        params.store_lse(block.batch_head, row.row, &total);
    });
}

/// Where probabilities are kept for `O += P·V`.
enum Probabilities<'k, E> {
    /// In the place of the scores.
    Full(SharedTile<'k, f32>),
    Rounded(SharedTile<'k, E>),
}

impl<'k, E: Widen> Probabilities<'k, E> {
    #[track_caller]
    fn store(&self, row: Val<'k, u32>, column: Val<'k, u32>, p: &[Val<'k, f32>]) {
        match self {
            Probabilities::Full(tile) => tile.at(row, column).store_f32s(p, 16, Cache::Default),
            Probabilities::Rounded(tile) => tile.at(row, column).store_f32s(p, 8, Cache::Default),
        }
    }

    /// A row's values for [`KEYS`] keys.
    #[track_caller]
    fn load(&self, row: Val<'k, u32>, key: Val<'k, u32>) -> Vec<Val<'k, f32>> {
        match self {
            Probabilities::Full(tile) => tile.at(row, key).load_f32s(KEYS, 16, Cache::Default),
            Probabilities::Rounded(tile) => tile.at(row, key).load_f32s(KEYS, 8, Cache::Default),
        }
    }
}

/// A lane's chunks of eight columns of the output: every eighth. Past the last chunk a lane repeats it, and stores
/// nothing.
struct Columns<'k> {
    lane: Val<'k, u32>,
    head_dim_v: u32,
    chunks: u32,
}

impl<'k> Columns<'k> {
    fn new(head_dim_v: u32, lane: Val<'k, u32>) -> Self {
        let chunks = (head_dim_v / CHUNK).div_ceil(GROUP);
        Columns {
            lane,
            head_dim_v,
            chunks,
        }
    }

    /// The first column of a chunk.
    #[track_caller]
    fn first(&self, chunk: u32) -> Val<'k, u32> {
        (self.lane + GROUP * chunk) * CHUNK
    }

    /// The place of a chunk in the first row of a tile.
    #[track_caller]
    fn place<E: MmaElement>(&self, tile: &HeadTile<'k, E>, chunk: u32) -> SharedPtr<'k, E> {
        let column = if self.head_dim_v.is_multiple_of(GROUP * CHUNK) {
            self.first(chunk)
        } else {
            self.first(chunk).min(self.head_dim_v - CHUNK)
        };
        let cols = tile.tile.cols();
        let (slab, within) = (column / cols, column % cols);
        tile.tile
            .at(0u32, within)
            .offset(slab * (tile.tile.stage_bytes() / E::BYTES))
    }
}

/// A lane's part of the softmax: groups of [`SCORES`] scores of one row, every other one.
struct SoftmaxLane<'k> {
    row_in_tile: Val<'k, u32>,
    /// The first of its columns.
    first: Val<'k, u32>,
    cols: u32,
}

impl<'k> SoftmaxLane<'k> {
    /// One step of the online softmax: scores become probabilities. Returns the factor for what was summed before.
    #[track_caller]
    fn softmax<E: MmaElement>(
        &self,
        row: &MaskedRow<'k>,
        params: &Params<'k, E>,
        batch_head: Val<'k, u32>,
        s_tile: SharedTile<'k, f32>,
        probabilities: &Probabilities<'k, E>,
        key0: Val<'k, u32>,
    ) -> Val<'k, f32> {
        let tap = |tap, key: Val<'k, u32>, value| {
            params.tap(tap, || {
                let (row, max) = (row.row, row.max);
                (Place { batch_head, row, key }, value, max)
            });
        };
        let groups = || (0..self.cols).step_by((PAIR * SCORES) as usize);
        let key = |column: u32, e: u32| key0 + self.first + (column + e);
        let mut scores = Vec::new();
        for column in groups() {
            let place = s_tile.at(self.row_in_tile, self.first).plus(column as i32);
            for (e, score) in (0..).zip(place.load_f32s(SCORES, 16, Cache::Default)) {
                let score = row.score(params, || key(column, e), score);
                tap(Tap::Scores, key(column, e), score);
                scores.push(row.sees(key(column, e)).select(score, f32::NEG_INFINITY));
            }
        }
        let largest = scores[1..].iter().fold(scores[0], |max, &score| max.max(score));
        let rescale = row.raise(largest, PAIR);
        for (column, scores) in groups().zip(scores.chunks(SCORES as usize)) {
            let mut p = Vec::new();
            for (e, &score) in (0..).zip(scores) {
                let value = row.exp(score);
                tap(Tap::Probabilities, key(column, e), value);
                p.push(value);
            }
            probabilities.store(self.row_in_tile, self.first + column, &p);
        }
        rescale
    }
}
