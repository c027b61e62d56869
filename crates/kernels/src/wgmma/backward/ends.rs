//! What comes before and after the main kernel of the backward pass: numbers of each query row, and dQ as its tensor
//! wants it.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{Cache, KernelBuilder, TileShape, Widen};

use super::Levers;
use super::kernel::UNIT;
use crate::attention::lengths::TensorParam;
use crate::attention::row_tile::ACC_COLS;
use crate::attention::score_mod::LOG2_E;

pub(super) const THREADS: u32 = 256;

/// Elements of a row that a lane of `preprocess` loads: 16 bytes.
const COLUMNS: u32 = 8;

/// Query rows of a block of `preprocess`.
pub(super) const fn rows(head_dim: u32) -> u32 {
    THREADS * COLUMNS / head_dim
}

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
    let lanes = head_dim / COLUMNS;
    let first_row = k.block_idx(0) * rows(head_dim);
    let (row, column) = (first_row + k.thread_idx() / lanes, k.thread_idx() % lanes);
    let (head, batch) = (k.block_idx(1), k.block_idx(2));
    let batch_head = batch.fma(k.grid_dim(1), head);
    let (sum, negative) = (k.var(0.0), k.var(f32::NEG_INFINITY));
    k.if_(row.lt(seq_len_q).divergent(), || {
        let [out, dout] = [out, dout].map(|tensor| {
            let row = tensor.row(tensor.head(batch, head), row).offset(column * COLUMNS);
            row.load_f32s(COLUMNS, COLUMNS * E::BYTES, Cache::Default)
        });
        for (a, b) in out.into_iter().zip(dout) {
            sum.set(a.fma(b, sum));
        }
        let lse = lse.offset(batch_head.fma(seq_len_q, row)).load();
        let none = lse.eq(f32::NEG_INFINITY);
        negative.set(none.select(f32::NEG_INFINITY, lse * -LOG2_E));
    });
    let sum = sum.get().reduce_sum(lanes);
    let of_head = batch_head * padded;
    k.if_(column.eq(0).divergent(), || {
        neg_lse.offset(of_head + row).store(negative.get());
        delta.offset(of_head + row).store(sum);
    });
    let zeros = [0; 4].map(|_| k.constant(0f32));
    let dq = dq.offset_strided(of_head + first_row, head_dim).offset(k.thread_idx() * 4);
    for first in (0..rows(head_dim) * head_dim).step_by(4 * THREADS as usize) {
        dq.plus(first as i32).store_words(&zeros, Cache::Default);
    }
}

/// dQ from its sums: scaled, rounded, and in rows. Grid: (Q tiles, heads, batch).
pub(super) fn postprocess<E: MmaElement>(k: &KernelBuilder, levers: &Levers, head_dim: u32) {
    let dq = TensorParam::<E>::declare(k, "dq", k.param_ptr_mut("dq"));
    let sums = k.param_ptr::<f32>("dq_sum");
    let (seq_len_q, scale) = (k.param::<u32>("seq_len_q"), k.param::<f32>("scale"));
    let (tile, head, batch) = (k.block_idx(0), k.block_idx(1), k.block_idx(2));
    let (rows, tiles, units) = (levers.rows, UNIT / ACC_COLS, head_dim / UNIT);
    // Padded, so that neither its rows nor its columns fall into one bank.
    let rounded = k.shared_tile::<E>("rounded", TileShape::new(rows, head_dim).padded(16 / E::BYTES));
    let tile_of_all = batch.fma(k.grid_dim(1), head).fma(k.grid_dim(0), tile);
    let sums = sums.offset_strided(tile_of_all, rows * head_dim);
    for first in (0..rows * head_dim / 4).step_by(THREADS as usize) {
        // Four registers of a lane of a warp of the main kernel, in the order in which it sent them.
        let four = k.thread_idx() + first;
        let values = sums.offset(four * 4).load_words(4, Cache::Default);
        let (lane, i, warp) = (four % 32, four / 32 % tiles, four / (32 * tiles));
        let unit = warp / 4;
        let row = unit / units * UNIT + warp % 4 * 16 + lane / 4;
        let column = unit % units * UNIT + i * ACC_COLS + lane % 4 * 2;
        let at = rounded.at(row, column);
        for half in 0..2 {
            let word = E::pack(values[2 * half] * scale, values[2 * half + 1] * scale);
            rounded.down(at, 8 * half as u32).store_words(&[word], Cache::Default);
        }
    }
    k.barrier();
    let to = dq.head(batch, head);
    let lanes = head_dim / COLUMNS;
    for first in (0..rows).step_by((THREADS / lanes) as usize) {
        let (row, column) = (k.thread_idx() / lanes + first, k.thread_idx() % lanes * COLUMNS);
        k.if_((tile * rows + row).lt(seq_len_q).divergent(), || {
            let words = rounded.at(row, column).load_words(4, Cache::Default);
            dq.row(to, tile * rows + row).offset(column).store_words(&words, Cache::Default);
        });
    }
}
