//! The backward pass with tiles in shared memory and products in registers, without atomics: every element of a
//! gradient is summed by one thread in one order.
//!
//! Two kernels, each of which owns a tile of rows and walks the tiles of the other side:
//!
//! - `dkdv` owns keys of a K/V head and walks, for each query head that shares it, the query rows that see them.
//! - `dq` owns query rows of a head and walks the keys that they see.
//!
//! Both compute `S = Q·Kᵀ` and `dP = dO·Vᵀ` anew, rows being what a block owns. [Threads] share the tiles as in the
//! forward pass.

use flashcore_ir::Widen;
use flashcore_problem::{Name, Problem};

use super::common::load_tile;
use super::threads::{Mine, Threads, operand};
use super::{Config, NAME};
use crate::Refusal;
use crate::args::{Args, build};
use crate::attention::gradients::{Backward, BackwardParams, Workspace};
use crate::attention::params::{Shape, grid, key_blocks, query_blocks};
use crate::attention::preprocess;
use crate::step::{KernelCache, Steps};

/// Default (rows, cols, warps), best first: the largest whose four tiles fit in the shared memory of every card, then
/// one that serves every head size. Not tuned.
pub(super) fn preferred(problem: &Problem) -> &'static [(u32, u32, u32)] {
    match problem.head_dim().max(problem.head_dim_v()) {
        ..=128 => &[(32, 32, 4), (16, 16, 4)],
        _ => &[(16, 16, 4)],
    }
}

/// Preprocess, dK and dV, and dQ.
pub(super) fn plan(problem: &Problem, config: &Config, shape: &Shape, kernels: &KernelCache) -> Result<Steps, Refusal> {
    let Some((rows, cols)) = config.tile else {
        let remedy = "take tiles: scalar/tiled-m16n16-w4 serves every head size";
        return Err(Refusal::unsupported(NAME, "the backward pass without tiles", remedy));
    };
    check(Threads::keys(config), shape.head_dim + shape.head_dim_v)?;
    check(Threads::queries(config), shape.head_dim)?;
    let dkdv = kernels.get_or_build(*config, *shape, |config, shape| {
        build!(named(&config, shape, "dkdv"), 32 * config.warps, floats shape.dtype => keys_body(k, &config, shape))
    })?;
    let dq = kernels.get_or_build(*config, *shape, |config, shape| {
        build!(named(&config, shape, "dq"), 32 * config.warps, floats shape.dtype => queries_body(k, &config, shape))
    })?;
    let of_keys = grid(NAME, [key_blocks(problem, cols), 1, 1])?;
    let of_queries = grid(NAME, [query_blocks(problem, rows), 1, 1])?;
    let request = Backward::new(problem, Workspace::new(NAME, problem, 0)?);
    Ok(Steps {
        before: vec![preprocess::step(&request, shape, kernels)?],
        main: dkdv.step(of_keys, &request)?,
        then: vec![dq.step(of_queries, &request)?],
    })
}

fn named(config: &Config, shape: &Shape, what: &str) -> String {
    shape.kernel_name(&format!("{NAME}/{config}-{what}"))
}

/// Refuses tiles whose sums, of `columns` columns in all, do not fit in registers with the rest.
fn check(threads: Threads, columns: u32) -> Result<(), Refusal> {
    let (rows, walked) = (threads.rows_per_thread(), threads.columns_per_thread());
    let (sums, scores, operands) = (threads.sum_registers(columns), 2 * rows * walked, 4 * (rows + walked));
    let parts = [("gradients", sums), ("scores", scores), ("operands", operands)];
    let remedy = "fewer keys a tile or more warps leave fewer rows a thread";
    Refusal::check_register_parts(&parts, 48, threads.registers(), remedy)
}

fn keys_body<'k, E: Widen>(k: &'k Args<'k, Backward>, config: &Config, shape: &Shape) {
    // Otherwise ptxas aims at a higher occupancy, and spills a few bytes to reach it.
    k.min_blocks_per_sm(1);
    let threads = Threads::keys(config);
    let params = BackwardParams::<E>::declare(k, shape);
    let [dk, dv] = [Name::Dk, Name::Dv].map(|tensor| k.writes::<E>(tensor, shape.vector_bytes));

    let k_tile = operand(k, "k_tile", threads.own, shape.head_dim);
    let v_tile = operand(k, "v_tile", threads.own, shape.head_dim_v);
    let q_tile = operand(k, "q_tile", threads.walked, shape.head_dim);
    let dout_tile = operand(k, "dout_tile", threads.walked, shape.head_dim_v);
    let (p_tile, ds_tile) = (threads.square(k, "p_tile"), threads.square(k, "ds_tile"));

    let tiles = (params.rows.seq_len_kv + (threads.own - 1)) / threads.own;
    let (tile, batch_head) = (k.block_idx(0) % tiles, k.block_idx(0) / tiles);
    let num_kv_heads = params.rows.num_heads / params.rows.group_size;
    let (batch, kv_head) = (batch_head / num_kv_heads, batch_head % num_kv_heads);
    let params = params.of_sequence(batch);
    let rows = &params.rows;
    let first_key = tile * threads.own;
    let mine = Mine::new(k, threads);

    rows.if_has_row(first_key, rows.seq_len_kv, || {
        let (k_head, v_head) = (params.k.head(batch, kv_head), params.v.head(batch, kv_head));
        load_tile(k, shape, k_tile, &params.k, k_head, first_key, rows.seq_len_kv);
        load_tile(k, shape, v_tile, &params.v, v_head, first_key, rows.seq_len_kv);
        let (dk_sums, dv_sums) = (mine.sums(shape.head_dim), mine.sums(shape.head_dim_v));

        // The query rows that see a key, and those that see any key of the block: bounds grow with the key.
        let seen_by = rows.band.inverse(rows.seq_len_q.reinterpret());
        let keys: Vec<_> = mine.rows().map(|row| first_key + row).collect();
        let seen: Vec<_> = keys.iter().map(|key| seen_by.visible(key.reinterpret())).collect();
        let last_key = (first_key + (threads.own - 1)).min(rows.seq_len_kv - 1);
        let walked = threads.walked as i32;
        let first_row = seen_by.keys(first_key.reinterpret()).0 / walked * walked;
        let end_row = seen_by.keys(last_key.reinterpret()).1;

        k.for_uniform(0u32, rows.group_size, 1, |of_group| {
            let head = kv_head.fma(rows.group_size, of_group);
            let statistics = params.statistics.of_head([rows.num_heads, batch, head], params.first);
            let (q_head, dout_head) = (params.q.head(batch, head), params.dout.head(batch, head));
            k.for_uniform(first_row, end_row, walked, |row0| {
                let row0 = row0.reinterpret::<u32>();
                k.barrier();
                load_tile(k, shape, q_tile, &params.q, q_head, row0, rows.seq_len_q);
                load_tile(k, shape, dout_tile, &params.dout, dout_head, row0, rows.seq_len_q);
                k.barrier();

                let scores = k.verb("Sᵀ = K·Qᵀ", || mine.products(k_tile, q_tile));
                let dps = k.verb("dPᵀ = V·dOᵀ", || mine.products(v_tile, dout_tile));
                for j in 0..threads.columns_per_thread() as usize {
                    let row = row0 + mine.column(j);
                    // Defined up to the end of the tile: padding has P = 0.
                    let statistics = statistics.load(row);
                    for (i, (first, end)) in seen.iter().enumerate() {
                        let (p, ds) = params.differentiate(scores[i][j].get(), dps[i][j].get(), statistics);
                        let sees = row.reinterpret::<i32>().ge(*first) & row.reinterpret::<i32>().lt(*end);
                        mine.store(p_tile, i, j, sees.select(p, 0.0));
                        mine.store(ds_tile, i, j, sees.select(ds, 0.0));
                    }
                }
                // The sixteen threads that wrote a row of P and dS are the ones that read it.
                k.sync_warp();
                k.verb("dV += Pᵀ·dO", || dv_sums.add(p_tile, dout_tile));
                k.verb("dK += dSᵀ·Q", || dk_sums.add(ds_tile, q_tile));
            });
        });

        let (dk, dv) = (dk.starting_at(params.first.k), dv.starting_at(params.first.k));
        let (dk_head, dv_head) = (dk.head(batch, kv_head), dv.head(batch, kv_head));
        for (i, key) in keys.iter().enumerate() {
            k.if_(key.lt(rows.seq_len_kv).divergent(), || {
                dk_sums.store(i, dk.row(dk_head, *key), Some(params.softmax_scale), shape.vector_bytes);
                dv_sums.store(i, dv.row(dv_head, *key), None, shape.vector_bytes);
            });
        }
    });
}

fn queries_body<'k, E: Widen>(k: &'k Args<'k, Backward>, config: &Config, shape: &Shape) {
    k.min_blocks_per_sm(1);
    let threads = Threads::queries(config);
    let params = BackwardParams::<E>::declare(k, shape);
    let dq = k.writes::<E>(Name::Dq, shape.vector_bytes);

    let q_tile = operand(k, "q_tile", threads.own, shape.head_dim);
    let dout_tile = operand(k, "dout_tile", threads.own, shape.head_dim_v);
    let k_tile = operand(k, "k_tile", threads.walked, shape.head_dim);
    let v_tile = operand(k, "v_tile", threads.walked, shape.head_dim_v);
    let ds_tile = threads.square(k, "ds_tile");

    let tiles = (params.rows.seq_len_q + (threads.own - 1)) / threads.own;
    let (tile, batch_head) = (k.block_idx(0) % tiles, k.block_idx(0) / tiles);
    let (batch, head) = (batch_head / params.rows.num_heads, batch_head % params.rows.num_heads);
    let kv_head = head / params.rows.group_size;
    let params = params.of_sequence(batch);
    let rows = &params.rows;
    let first_row = tile * threads.own;
    let mine = Mine::new(k, threads);

    rows.if_has_row(first_row, rows.seq_len_q, || {
        let (q_head, dout_head) = (params.q.head(batch, head), params.dout.head(batch, head));
        load_tile(k, shape, q_tile, &params.q, q_head, first_row, rows.seq_len_q);
        load_tile(k, shape, dout_tile, &params.dout, dout_head, first_row, rows.seq_len_q);
        let statistics = params.statistics.of_head([rows.num_heads, batch, head], params.first);
        let my_rows: Vec<_> = mine.rows().map(|row| first_row + row).collect();
        let seen: Vec<_> = my_rows.iter().map(|&row| rows.visible_keys(row)).collect();
        // Defined up to the end of the tile: padding has P = 0.
        let statistics: Vec<_> = my_rows.iter().map(|&row| statistics.load(row)).collect();
        let dq_sums = mine.sums(shape.head_dim);

        // The keys that any row of the block sees, from whole tiles: bounds grow with the row.
        let last_row = (first_row + (threads.own - 1)).min(rows.seq_len_q - 1);
        let walked = threads.walked as i32;
        let first_key = rows.visible_keys(first_row).0 / walked * walked;
        let end_key = rows.visible_keys(last_row).1;
        let (k_head, v_head) = (params.k.head(batch, kv_head), params.v.head(batch, kv_head));

        k.for_uniform(first_key, end_key, walked, |key0| {
            k.barrier();
            load_tile(k, shape, k_tile, &params.k, k_head, key0.reinterpret(), rows.seq_len_kv);
            load_tile(k, shape, v_tile, &params.v, v_head, key0.reinterpret(), rows.seq_len_kv);
            k.barrier();

            let scores = k.verb("S = Q·Kᵀ", || mine.products(q_tile, k_tile));
            let dps = k.verb("dP = dO·Vᵀ", || mine.products(dout_tile, v_tile));
            for j in 0..threads.columns_per_thread() as usize {
                let key = key0 + mine.column(j).reinterpret::<i32>();
                for (i, (first, end)) in seen.iter().enumerate() {
                    let (_, ds) = params.differentiate(scores[i][j].get(), dps[i][j].get(), statistics[i]);
                    let sees = key.ge(*first) & key.lt(*end);
                    mine.store(ds_tile, i, j, sees.select(ds, 0.0));
                }
            }
            k.sync_warp();
            k.verb("dQ += dS·K", || dq_sums.add(ds_tile, k_tile));
        });

        let dq = dq.starting_at(params.first.q);
        let dq_head = dq.head(batch, head);
        for (i, row) in my_rows.iter().enumerate() {
            k.if_(row.lt(rows.seq_len_q).divergent(), || {
                dq_sums.store(i, dq.row(dq_head, *row), Some(params.softmax_scale), shape.vector_bytes);
            });
        }
    });
}
