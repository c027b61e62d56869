//! K/V tiles in shared memory, register-blocked products, warp reductions.
//!
//! A block computes some query rows of one head, which its [threads](super::threads) share, and walks the keys that
//! they see, tile by tile. Two barriers a tile: one before the tiles are overwritten, one after.

use flashcore_ir::Widen;
use flashcore_problem::Problem;

use super::Config;
use super::common::load_tile;
use super::threads::{Mine, THREAD_COLS, Threads, operand};
use crate::Refusal;
use crate::args::Args;
use crate::attention::forward::Forward;
use crate::attention::masked_row::MaskedRow;
use crate::attention::params::{Params, Shape, query_blocks};
use crate::attention::tap::{Place, Tap};

/// Registers for addresses, counters and bounds, in addition to the values counted one by one.
const SCRATCH_REGISTERS: u32 = 40;

/// Blocks of 64 rows from which on large tiles fill a GPU; below, more and smaller blocks do better.
const LARGE_TILE_BLOCKS: usize = 256;

/// Default (rows, cols, warps), best first. Measured on an H200
/// (`lab/check/data/scalar-times.csv`).
pub(super) fn preferred(problem: &Problem) -> &'static [(u32, u32, u32)] {
    match problem.head_dim().max(problem.head_dim_v()) {
        ..=64 if query_blocks(problem, 64) >= LARGE_TILE_BLOCKS => &[(64, 64, 4), (32, 32, 8)],
        ..=64 => &[(32, 32, 8), (32, 32, 4)],
        65..=128 => &[(32, 32, 4)],
        _ => &[(64, 64, 8), (32, 16, 4)],
    }
}

/// Refuses tiles whose inner loops need more registers at once than there are.
pub(super) fn check(config: &Config, shape: &Shape) -> Result<(), Refusal> {
    let threads = Threads::queries(config);
    let (rows, cols) = (threads.rows_per_thread(), threads.columns_per_thread());
    let output = threads.sum_registers(shape.head_dim_v);
    let (scores, operands, state) = (rows * cols, 4 * (rows + cols), 4 * rows);
    let parts = [
        ("output", output),
        ("scores", scores),
        ("operands", operands),
        ("row state", state),
    ];
    let remedy = "fewer rows a tile or more warps leave fewer rows a thread";
    Refusal::check_register_parts(&parts, SCRATCH_REGISTERS, threads.registers(), remedy)
}

pub(super) fn body<'k, E: Widen>(k: &'k Args<'k, Forward>, config: &Config, shape: &Shape) {
    // Otherwise ptxas aims at a higher occupancy, and spills a few bytes to reach it.
    k.min_blocks_per_sm(1);
    let threads = Threads::queries(config);
    let params = Params::<E>::declare(k, shape);

    let q_tile = operand(k, "q_tile", threads.own, shape.head_dim);
    let k_tile = operand(k, "k_tile", threads.walked, shape.head_dim);
    let v_tile = operand(k, "v_tile", threads.walked, shape.head_dim_v);
    let p_tile = threads.square(k, "p_tile");

    let tiles = (params.seq_len_q + (threads.own - 1)) / threads.own;
    let (tile, batch_head) = (k.block_idx(0) % tiles, k.block_idx(0) / tiles);
    let (batch, head) = (batch_head / params.num_heads, batch_head % params.num_heads);
    let kv_head = head / params.group_size;
    let params = params.of_sequence(batch);
    let first_row = tile * threads.own;
    let mine = Mine::new(k, threads);

    let compute = || {
        let q_head = params.q.head(batch, head);
        load_tile(k, shape, q_tile, &params.q, q_head, first_row, params.seq_len_q);

        let row = |i| {
            let row = first_row + mine.thread_row + i * threads.rows();
            MaskedRow::new(k, &params, batch, head, row)
        };
        let rows: Vec<_> = (0..threads.rows_per_thread()).map(row).collect();
        let out = mine.sums(shape.head_dim_v);

        // The keys that any row of the block sees, from whole tiles: bounds grow with the row.
        let last_row = (first_row + (threads.own - 1)).min(params.seq_len_q - 1);
        let walked = threads.walked as i32;
        let first_key = params.visible_keys(first_row).0 / walked * walked;
        let end_key = params.visible_keys(last_row).1;
        let (k_head, v_head) = (params.k.head(batch, kv_head), params.v.head(batch, kv_head));

        k.for_uniform(first_key, end_key, walked, |key0| {
            let first = key0.reinterpret();
            k.barrier();
            load_tile(k, shape, k_tile, &params.k, k_head, first, params.seq_len_kv);
            load_tile(k, shape, v_tile, &params.v, v_head, first, params.seq_len_kv);
            k.barrier();

            let scores = k.verb("scores = Q·Kᵀ", || mine.products(q_tile, k_tile));
            let key = |j: u32| key0 + mine.thread_col.reinterpret::<i32>() + (j * THREAD_COLS) as i32;
            let keys: Vec<_> = (0..threads.columns_per_thread()).map(key).collect();
            let p_mine = p_tile.at(mine.thread_row, mine.thread_col);
            for (i, row) in rows.iter().enumerate() {
                let tap = |tap, j: usize, value| {
                    let key = keys[j].reinterpret();
                    let (row, max) = (row.row, row.max);
                    params.tap(tap, || (Place { batch_head, row, key }, value, max));
                };
                let mut masked = Vec::new();
                for (j, key) in keys.iter().enumerate() {
                    let key = key.reinterpret();
                    let sees = row.sees(key);
                    let score = row.score(&params, || key, scores[i][j].get());
                    tap(Tap::Scores, j, score);
                    masked.push(sees.select(score, f32::NEG_INFINITY));
                }
                // Written out in place of `MaskedRow::raise` and `exp`, which change the machine code.
                let largest = masked[1..].iter().fold(masked[0], |max, &score| max.max(score));
                let rescale = row.max.raise(largest.reduce_max(THREAD_COLS), 0.0);
                let p: Vec<_> = masked.iter().map(|&score| row.max.exp(score)).collect();
                row.sum.mul_assign(rescale);
                p.iter().for_each(|&p| row.sum.add_assign(p));
                p.iter().enumerate().for_each(|(j, &p)| tap(Tap::Probabilities, j, p));
                out.rows[i].iter().for_each(|out| out.mul_assign(rescale));
                let p_row = p_tile.down(p_mine, i as u32 * threads.rows());
                for (j, &p) in p.iter().enumerate() {
                    p_row.plus((j as u32 * THREAD_COLS) as i32).store(p);
                }
            }
            // The sixteen threads that wrote a row of P are the ones that read it.
            k.sync_warp();

            k.verb("O += P·V", || out.add(p_tile, v_tile));
        });

        let out_head = params.out.head(batch, head);
        for (i, row) in rows.iter().enumerate() {
            let sum = row.sum.get().reduce_sum(THREAD_COLS);
            let total = params.total(|| head, row.max.offset.get(), sum, row.keys);
            let norm = total.norm();
            k.if_(row.row.lt(params.seq_len_q).divergent(), || {
                out.store(i, params.out.row(out_head, row.row), Some(norm), shape.vector_bytes);
                k.if_(mine.thread_col.eq(0).divergent(), || {
                    params.store_lse(batch_head, row.row, &total)
                });
            });
        }
    };
    params.if_has_row(first_row, params.seq_len_q, compute);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_cannot_fit_in_registers() {
        let problem = Problem::builder()
            .heads(1, 1)
            .seq_len(128)
            .head_dim(256)
            .build()
            .unwrap();
        let config = Config {
            tile: Some((64, 64)),
            warps: 4,
            vector_bytes: 16,
        };
        let message = check(&config, &Shape::new(&problem, 16, None)).unwrap_err().to_string();
        assert!(message.contains("output 128"), "{message}");
    }
}
