//! Rung `hybrid`: tensor cores for `S = Q·Kᵀ` only.
//!
//! What is new to `scalar/tiled`: a warp multiplies its 16 rows with a tile of keys in `mma.sync`, operands read by
//! `ldmatrix`. What is still missing: the scores leave the tensor cores through shared memory, since softmax and
//! `O += P·V` are computed in f32, two lanes a row. Both lanes read the whole row of P and take
//! alternate chunks of eight columns of V.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{Cache, KernelBuilder, SharedPtr, TileShape, Val, Var, Widen};

use super::Config;
use super::common::{ACC_COLS, Block, QUAD, Row, ScoreOperands, WARP_ROWS, load_tile};
use crate::attention::epilogue::normaliser;
use crate::attention::params::{Params, Shape};
use crate::attention::tap::{Place, Tap};
use crate::tiles::{CHUNK, HeadTile, padded};

/// Lanes that share a row of P and of the output.
const PAIR: u32 = 2;

pub(super) fn body<E: MmaElement + Widen>(k: &KernelBuilder, levers: &Config, shape: &Shape) {
    k.min_blocks_per_sm(1);
    let params = Params::<E>::declare(k, shape);
    let block = Block::new(k, &params, levers);
    let cols = levers.cols;

    let q_tile = HeadTile::declare(k, "q_tile", levers.rows(), shape.head_dim, 1, false);
    let k_tile = HeadTile::declare(k, "k_tile", cols, shape.head_dim, 1, false);
    let v_tile = HeadTile::declare(k, "v_tile", cols, shape.head_dim_v, 1, false);
    // Rows two banks apart: sixteen of them, and two neighbours of each, lie in different banks.
    let s_tile = k.shared_tile::<f32>("s_tile", TileShape::new(levers.rows(), cols).padded(2));

    let warp = k.thread_idx() / 32u32;
    let operands = ScoreOperands::new(k, q_tile, k_tile, warp);
    let scores = k.acc("s", cols / ACC_COLS);
    let first = s_tile.at(warp * WARP_ROWS + k.lane() / QUAD, k.lane() % QUAD * 2u32);

    // This lane's row, the warp's own, and its half of what is to be done for it.
    let (row_in_tile, half) = (k.thread_idx() / PAIR, k.thread_idx() % PAIR);
    let row = Row::new(k, &params, block.first_row + row_in_tile);
    let mine = s_tile.at(row_in_tile, half);
    let out: Vec<Var<'_, f32>> = (0..padded(shape.head_dim_v) / PAIR).map(|_| k.var(0.0)).collect();

    load_tile(k, q_tile, &params.q, block.q_head, block.first_row, params.seq_len_q);
    k.for_uniform(block.first_key, block.end_key, cols as i32, |key0| {
        let key0 = key0.reinterpret::<u32>();
        k.barrier();
        load_tile(k, k_tile, &params.k, block.k_head, key0, params.seq_len_kv);
        load_tile(k, v_tile, &params.v, block.v_head, key0, params.seq_len_kv);
        k.barrier();

        operands.multiply(k, scores, shape.head_dim);
        for tile in 0..scores.tiles() {
            for half in 0..2 {
                let pair = [0, 1].map(|e| scores.var(4 * tile + 2 * half + e).get());
                let place = s_tile.down(first, 8 * half).plus((ACC_COLS * tile) as i32);
                place.store_words(&pair, Cache::Default);
            }
        }
        // Rows of S are read by the warp that wrote them.
        k.sync_warp();

        let first_key = key0 + half;
        let rescale = softmax(&row, &params, block.batch_head, mine, first_key, cols);
        out.iter().for_each(|out| out.mul_assign(rescale));
        // The other lane's half of P is needed, too.
        k.sync_warp();

        k.verb("O += P*V", || {
            k.for_uniform(0u32, cols, 1, |key| {
                let p = s_tile.at(row_in_tile, key).load();
                let v_row = v_tile.at_column(key, 0, half * CHUNK);
                for (chunk, out) in out.chunks(CHUNK as usize).enumerate() {
                    let v = v_tile.column(v_row, PAIR * CHUNK * chunk as u32);
                    for (out, v) in out.iter().zip(v.load_f32s(CHUNK, 16, Cache::Default)) {
                        out.fma_assign(p, v);
                    }
                }
            });
        });
    });

    let sum = row.sum.get().reduce_sum(PAIR);
    let norm = normaliser(sum);
    k.if_(row.row.lt(params.seq_len_q).divergent(), || {
        let out_row = params.out.row(block.out_head, row.row);
        for (chunk, out) in out.chunks(CHUNK as usize).enumerate() {
            let column = half * CHUNK + PAIR * CHUNK * chunk as u32;
            let values: Vec<_> = out.iter().map(|&out| out * norm).collect();
            k.if_(column.lt(shape.head_dim_v).divergent(), || {
                out_row.offset(column).store_f32s(&values, 16, Cache::Default);
            });
        }
        k.if_(half.eq(0).divergent(), || {
            params.store_lse(block.batch_head, row.row, row.max.offset.get(), sum);
        });
    });
}

/// One step of the online softmax: this lane's scores of the row, every other one, become probabilities in place.
/// Returns the factor for what was summed before.
#[track_caller]
fn softmax<'k, E: MmaElement>(
    row: &Row<'k>,
    params: &Params<'k, E>,
    batch_head: Val<'k, u32>,
    mine: SharedPtr<'k, f32>,
    first_key: Val<'k, u32>,
    cols: u32,
) -> Val<'k, f32> {
    let tap = |tap, column: u32, value| {
        params.tap(tap, || {
            let (row, key, max) = (row.row, first_key + column, row.max);
            (Place { batch_head, row, key }, value, max)
        });
    };
    let columns = (0..cols).step_by(PAIR as usize);
    let mut scores = Vec::new();
    for column in columns.clone() {
        let score = params.score_mod.score(mine.plus(column as i32).load());
        tap(Tap::Scores, column, score);
        scores.push(row.masked(first_key + column, score));
    }
    let largest = scores[1..].iter().fold(scores[0], |max, &score| max.max(score));
    let rescale = row.raise(largest, PAIR);
    for (column, score) in columns.zip(scores) {
        let p = row.exp(score);
        tap(Tap::Probabilities, column, p);
        mine.plus(column as i32).store(p);
    }
    rescale
}
