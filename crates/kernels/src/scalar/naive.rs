//! Rung 1: one thread a query row. Nothing is reused, nothing is shared; the algorithm is all there is.
//!
//! For each visible key: the score, then one step of the online softmax (Milakov and Gimelshein,
//! "Online normalizer calculation for softmax", 2018). Heads wider than 64 columns are sliced, so
//! that a thread's part of the output stays in registers; each slice computes the scores anew.

use flashcore_ir::Widen;

use super::common::{CHUNK, load};
use crate::args::Args;
use crate::attention::forward::Forward;
use crate::attention::masked_row::MaskedRow;
use crate::attention::params::{Params, Shape};
use crate::attention::tap::{Place, Tap};

/// Widest slice of output columns a thread keeps in registers.
const MAX_SLICE: u32 = 64;

/// Slices of a head.
pub(super) fn slices(shape: &Shape) -> u32 {
    shape.head_dim_v / slice_columns(shape.head_dim_v)
}

/// Columns of a slice: the largest multiple of 8 that divides the head and fits.
fn slice_columns(head_dim_v: u32) -> u32 {
    let mut columns = (8..=MAX_SLICE).rev().step_by(8);
    columns.find(|columns| head_dim_v.is_multiple_of(*columns)).unwrap_or(8)
}

pub(super) fn body<'k, E: Widen>(k: &'k Args<'k, Forward>, threads: u32, shape: &Shape) {
    // Otherwise ptxas aims at a higher occupancy, and spills a few bytes to reach it.
    k.min_blocks_per_sm(1);
    let params = Params::<E>::declare(k, shape);
    let columns = slice_columns(shape.head_dim_v);
    let slices = slices(shape);

    // Blocks count through the slices of a tile of rows, then the tiles, heads and batches.
    let block = k.block_idx(0);
    let (slice, block) = (block % slices, block / slices);
    let tiles = (params.seq_len_q + (threads - 1)) / threads;
    let (tile, batch_head) = (block % tiles, block / tiles);
    let (batch, head) = (batch_head / params.num_heads, batch_head % params.num_heads);
    let kv_head = head / params.group_size;
    let params = params.of_sequence(batch);
    let row = tile * threads + k.thread_idx();

    k.if_(row.lt(params.seq_len_q).divergent(), || {
        let q_row = params.q.row(params.q.head(batch, head), row);
        let k_head = params.k.head(batch, kv_head);
        let v_head = params.v.head(batch, kv_head).offset(slice * columns);

        let state = MaskedRow::new(k, &params, batch, head, row);
        let (max, (first, end)) = (state.max, state.keys);
        let acc: Vec<_> = (0..columns).map(|_| k.var(0.0)).collect();

        k.for_divergent(first, end, 1, |key| {
            let key = key.reinterpret::<u32>();
            let (k_row, on_page) = params.k.key_row(k_head, key);
            let (v_row, _) = params.v.key_row(v_head, key);

            // A loop at run time: unrolled, the compiler would keep all of q in registers, and wide
            // heads do not fit there.
            let dot = k.var(0.0);
            k.for_uniform(0u32, shape.head_dim, CHUNK, |d| {
                let q = load(q_row.offset(d), None, shape.vector_bytes);
                let k = load(k_row.offset(d), on_page, shape.vector_bytes);
                for (&q, &k) in q.iter().zip(&k) {
                    dot.fma_assign(q, k);
                }
            });
            let score = state.score(&params, || key, dot.get());
            let tap = |tap, value| {
                if params.taps(tap) {
                    let place = Place { batch_head, row, key };
                    k.if_(slice.eq(0).uniform(), || params.tap(tap, || (place, value, max)));
                }
            };
            tap(Tap::Scores, score);

            // What was summed so far was relative to the old maximum.
            let rescale = max.raise(score, 0.0);
            let p = max.exp(score);
            tap(Tap::Probabilities, p);
            state.sum.set(rescale.fma(state.sum, p));
            for (chunk, acc) in (0..).zip(acc.chunks(CHUNK as usize)) {
                let v = load(v_row.plus((CHUNK * chunk) as i32), on_page, shape.vector_bytes);
                for (acc, &v) in acc.iter().zip(&v) {
                    acc.mul_assign(rescale);
                    acc.fma_assign(p, v);
                }
            }
        });
        let total = params.total(|| head, max.offset.get(), state.sum.get(), (first, end));
        let norm = total.norm();
        let out: Vec<_> = acc.iter().map(|&acc| acc * norm).collect();
        let out_row = params.out.row(params.out.head(batch, head), row);
        let out_row = out_row.offset(slice * columns);
        out_row.store_f32s(&out, shape.vector_bytes, flashcore_ir::Cache::Default);
        if shape.lse {
            k.if_(slice.eq(0).uniform(), || params.store_lse(batch_head, row, &total));
        }
    });
}
