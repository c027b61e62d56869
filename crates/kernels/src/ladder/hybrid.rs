//! Rung `hybrid`: tensor cores for `S = Q·Kᵀ` only.
//!
//! What is new to `scalar/tiled`: a warp multiplies its 16 rows with a tile of keys in `mma.sync`, operands read by
//! `ldmatrix`. What is still missing: the scores leave the tensor cores through shared memory, since softmax and
//! `O += P·V` are computed in f32, outside of them. Softmax has two lanes a row. For `O += P·V` eight lanes share four
//! rows: each has eight columns of all four, so that V is read and converted once for four rows. P stays f32, or is
//! rounded to the problem's dtype first (lever `p`).

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{Cache, SharedTile, TileShape, Val, Var, Widen};

use super::common::{Block, ScoreOperands, WARP_ROWS};
use super::{Config, P};
use crate::args::Args;
use crate::attention::forward::Forward;
use crate::attention::masked_row::MaskedRow;
use crate::attention::params::Shape;
use crate::attention::row_tile::{ACC_COLS, RowTile, lane_column, lane_row};
use crate::attention::tap::{Place, Tap};
use crate::tiles::CHUNK;

/// Lanes that share a row of the softmax, and neighbouring scores that one takes at a time: 16 bytes.
const PAIR: u32 = 2;
const SCORES: u32 = 4;
/// Lanes that share [`GROUP_ROWS`] rows of the output: those of the same rows in the softmax.
const GROUP: u32 = 8;
const GROUP_ROWS: u32 = GROUP / PAIR;
/// Keys of `O += P·V` at a time: P is read 16 bytes, or 8, an access.
const KEYS: u32 = 4;

pub(super) fn body<'k, E: MmaElement + Widen>(k: &'k Args<'k, Forward>, levers: &Config, shape: &Shape) {
    let block = Block::<E>::new(k, levers, shape);
    let (params, v_tile, head_dim_v) = (&block.params, block.v.tile.tile, shape.head_dim_v);
    let (cols, batch_head) = (levers.cols, block.batch_head);
    // Rows eight banks apart: the pairs that four rows of accumulators store, and the quads that four rows of the
    // softmax load, are in different banks.
    let tile_shape = TileShape::new(levers.rows(), cols).padded(8);
    let s_tile = k.shared_tile::<f32>("s_tile", tile_shape);
    let probabilities = match levers.p {
        P::Usual => Probabilities::Full(s_tile),
        P::SixteenBits | P::F32 => Probabilities::Rounded(k.shared_tile::<E>("p_tile", tile_shape)),
    };

    let (warp, lane) = (k.thread_idx() / 32u32, k.lane());
    let operands = ScoreOperands::new(k, block.q.tile, block.k.tile, warp);
    let scores: RowTile<'_> = RowTile::new(k.acc("s", cols / ACC_COLS));
    let first = s_tile.at(warp * WARP_ROWS + lane_row(k), lane_column(k));

    // This lane's row of the softmax, and its half of the scores: every other group of them.
    let (row_in_tile, half) = (k.thread_idx() / PAIR, k.thread_idx() % PAIR);
    let row = MaskedRow::new(k, params, block.batch, block.head, block.first_row + row_in_tile);
    let (first_column, groups) = (half * SCORES, || (0..cols).step_by((PAIR * SCORES) as usize));

    // Its rows of the output, whose softmax is in its group of lanes.
    let group_row = k.thread_idx() / GROUP * GROUP_ROWS;
    let group_lane = lane / GROUP * GROUP;
    // Its columns of them: every eighth chunk. Past the last chunk it repeats that, and stores nothing.
    let (lane_in_group, chunks) = (lane % GROUP, (head_dim_v / CHUNK).div_ceil(GROUP));
    let chunk_column = |chunk: u32| (lane_in_group + GROUP * chunk) * CHUNK;
    let v_place = |chunk| {
        let column = match head_dim_v % (GROUP * CHUNK) {
            0 => chunk_column(chunk),
            _ => chunk_column(chunk).min(head_dim_v - CHUNK),
        };
        let (slab, within) = (column / v_tile.cols(), column % v_tile.cols());
        v_tile.at(0u32, within).offset(slab * (v_tile.stage_bytes() / E::BYTES))
    };
    let v_places: Vec<_> = (0..chunks).map(v_place).collect();
    let zeros = |_| (0..chunks * CHUNK).map(|_| k.var(0.0)).collect();
    let out: Vec<Vec<Var<'_, f32>>> = (0..GROUP_ROWS).map(zeros).collect();

    block.for_each_tile(|key0| {
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

        // A step of the online softmax: scores become probabilities.
        let key = |column: u32, e: u32| key0 + first_column + (column + e);
        let tap = |tap, key: Val<'k, u32>, value| {
            let (row, max) = (row.row, row.max);
            params.tap(tap, || (Place { batch_head, row, key }, value, max));
        };
        let mut masked = Vec::new();
        for column in groups() {
            let place = s_tile.at(row_in_tile, first_column).plus(column as i32);
            for (e, score) in (0..).zip(place.load_f32s(SCORES, 16, Cache::Default)) {
                let score = row.score(params, || key(column, e), score);
                tap(Tap::Scores, key(column, e), score);
                masked.push(row.sees(key(column, e)).select(score, f32::NEG_INFINITY));
            }
        }
        let largest = masked[1..].iter().fold(masked[0], |max, &score| max.max(score));
        let rescale = row.raise(largest, PAIR);
        for (column, masked) in groups().zip(masked.chunks(SCORES as usize)) {
            let mut p = Vec::new();
            for (e, &score) in (0..).zip(masked) {
                let value = row.exp(score);
                tap(Tap::Probabilities, key(column, e), value);
                p.push(value);
            }
            probabilities.store(row_in_tile, first_column + column, &p);
        }
        for (i, out) in (0..).zip(&out) {
            let rescale = rescale.shfl_idx(group_lane + PAIR * i);
            out.iter().for_each(|out| out.mul_assign(rescale));
        }
        // Other lanes' parts of P are needed, too.
        k.sync_warp();

        k.verb("O += P*V", || {
            k.for_uniform(0u32, cols, KEYS, |key| {
                let load = |i| probabilities.load(group_row + i, key);
                let p: Vec<_> = (0..GROUP_ROWS).map(load).collect();
                for (place, chunk) in v_places.iter().zip(0..) {
                    let first = place.offset(key * v_tile.row_stride());
                    for n in 0..KEYS {
                        let v = v_tile.down(first, n).load_f32s(CHUNK, 16, Cache::Default);
                        for (p, out) in p.iter().zip(&out) {
                            let out = &out[chunk * CHUNK as usize..][..CHUNK as usize];
                            let products = out.iter().zip(&v);
                            products.for_each(|(out, &v)| out.fma_assign(p[n as usize], v));
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
                let column = chunk_column(chunk);
                k.if_(column.lt(head_dim_v).divergent(), || {
                    out_row.offset(column).store_f32s(&values, 16, Cache::Default);
                });
            }
        });
    }
    k.if_((row.row.lt(params.seq_len_q) & half.eq(0)).divergent(), || {
        params.store_lse(batch_head, row.row, &total);
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
