//! What comes before and after the main kernel of the backward pass: numbers of each query row, and dQ as its tensor
//! wants it.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{Cache, KernelBuilder, Widen};

use super::Levers;
use super::kernel::UNIT;
use crate::attention::lengths::TensorParam;
use crate::attention::row_tile::ACC_COLS;
use crate::attention::score_mod::LOG2_E;

pub(super) const THREADS: u32 = 256;
/// Rows of a block of `preprocess`: a warp has one.
pub(super) const ROWS: u32 = THREADS / 32;

/// The log-sum-exp of each query row in base 2 and negative, `delta = Σ dO∘O`, and zeros for dQ. Grid: (blocks of padded
/// rows, heads, batch).
///
/// Rows past the end, and rows that see no key, get −∞: their probabilities are 0, and so is all that they add.
pub(super) fn preprocess<E: MmaElement + Widen>(k: &KernelBuilder, head_dim: u32) {
    let out = TensorParam::<E>::declare(k, "out", k.param_ptr("out"));
    let dout = TensorParam::<E>::declare(k, "dout", k.param_ptr("dout"));
    let lse = k.param_ptr::<f32>("lse");
    let (neg_lse, delta) = (k.param_ptr_mut::<f32>("neg_lse"), k.param_ptr_mut::<f32>("delta"));
    let dq = k.param_ptr_mut::<f32>("dq_sum");
    let (seq_len_q, padded) = (k.param::<u32>("seq_len_q"), k.param::<u32>("padded_rows"));
    let row = k.block_idx(0) * ROWS + k.thread_idx() / 32;
    let (head, batch) = (k.block_idx(1), k.block_idx(2));
    let batch_head = batch.fma(k.grid_dim(1), head);
    let (columns, lane) = (head_dim / 32, k.lane());
    let (sum, negative) = (k.var(0.0), k.var(f32::NEG_INFINITY));
    k.if_(row.lt(seq_len_q).divergent(), || {
        let [out, dout] = [out, dout].map(|tensor| {
            let row = tensor.row(tensor.head(batch, head), row).offset(lane * columns);
            row.load_f32s(columns, columns * E::BYTES, Cache::Default)
        });
        for (a, b) in out.into_iter().zip(dout) {
            sum.set(a.fma(b, sum));
        }
        let lse = lse.offset(batch_head.fma(seq_len_q, row)).load();
        let none = lse.eq(f32::NEG_INFINITY);
        negative.set(none.select(f32::NEG_INFINITY, lse * -LOG2_E));
    });
    let sum = sum.get().reduce_sum(32);
    let place = batch_head.fma(padded, row);
    k.if_(lane.eq(0).divergent(), || {
        neg_lse.offset(place).store(negative.get());
        delta.offset(place).store(sum);
    });
    let zeros: Vec<_> = (0..columns).map(|_| k.constant(0f32)).collect();
    let dq = dq.offset_strided(place, head_dim).offset(lane * columns);
    dq.store_f32s(&zeros, columns.min(4) * 4, Cache::Default);
}

/// dQ from its sums: scaled, rounded, and in rows. Grid: (Q tiles, heads, batch).
pub(super) fn postprocess<E: MmaElement>(k: &KernelBuilder, levers: &Levers, head_dim: u32) {
    let dq = TensorParam::<E>::declare(k, "dq", k.param_ptr_mut("dq"));
    let sums = k.param_ptr::<f32>("dq_sum");
    let (seq_len_q, scale) = (k.param::<u32>("seq_len_q"), k.param::<f32>("scale"));
    let (tile, head, batch) = (k.block_idx(0), k.block_idx(1), k.block_idx(2));
    let (rows, tiles, units) = (levers.rows, UNIT / ACC_COLS, head_dim / UNIT);
    let tile_of_all = batch.fma(k.grid_dim(1), head).fma(k.grid_dim(0), tile);
    let sums = sums.offset_strided(tile_of_all, rows * head_dim);
    let to = dq.head(batch, head);
    for first in (0..rows * head_dim / 4).step_by(THREADS as usize) {
        // Four registers of a lane of a warp of the main kernel, in the order in which it sent them.
        let four = k.thread_idx() + first;
        let values = sums.offset(four * 4).load_words(4, Cache::Default);
        let (lane, i, warp) = (four % 32, four / 32 % tiles, four / (32 * tiles));
        let unit = warp / 4;
        let row = unit / units * UNIT + warp % 4 * 16 + lane / 4;
        let column = unit % units * UNIT + i * ACC_COLS + lane % 4 * 2;
        for half in 0..2 {
            let row = tile * rows + row + 8 * half as u32;
            k.if_(row.lt(seq_len_q).divergent(), || {
                let word = E::pack(values[2 * half] * scale, values[2 * half + 1] * scale);
                dq.row(to, row).offset(column).store_words(&[word], Cache::Default);
            });
        }
    }
}
