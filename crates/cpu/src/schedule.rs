//! Splits a problem into tiles and distributes them over threads.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use flashcore_problem::{Layout, Problem, TensorView, TensorViewMut};
use pulp::Arch;
use rayon::prelude::*;

use crate::CpuConfig;
use crate::keys::{Rows, borrow_rows, copy_rows};
use crate::tile::{TileRun, TileTask, cut};
use crate::workspace::Workspace;

/// Most bytes of f32 copies of K and V that are alive at once.
const COPY_BUDGET: usize = 256 << 20;

const COPY_ROWS: usize = 256;

/// Computes attention on rayon's current thread pool. The caller has checked all arguments.
#[allow(clippy::too_many_arguments)] // all arguments of one call
pub(crate) fn run(
    problem: &Problem,
    q: &TensorView<'_>,
    k: &TensorView<'_>,
    v: &TensorView<'_>,
    out: &mut TensorViewMut<'_>,
    lse: Option<&mut [f32]>,
    config: CpuConfig,
    arch: Arch,
) {
    let (group, num_kv_heads) = (problem.group_size(), problem.num_kv_heads());
    let seq_len_q = problem.seq_len_q();
    let mut unwanted = Vec::new();
    let mut lse = lse.unwrap_or_else(|| {
        unwanted.resize(problem.lse_len(), 0.0);
        &mut unwanted
    });
    let size = problem.out_dtype().size_bytes();
    let mut out = split_rows(problem.o_layout(), size, out.bytes_mut());
    let mut out = out.as_mut_slice();

    let bytes_a_head = problem.seq_len_kv() * (problem.head_dim() + problem.head_dim_v()) * size_of::<f32>();
    let heads_at_once = (COPY_BUDGET / bytes_a_head).max(1);
    let heads: Vec<(usize, usize)> = (0..problem.batch())
        .flat_map(|b| (0..num_kv_heads).map(move |h| (b, h)))
        .collect();
    for heads in heads.chunks(heads_at_once) {
        let [k, v] = dense_rows([k, v], heads);
        let mut tasks = Vec::new();
        for ((&(b, kv_head), k), v) in heads.iter().zip(&k).zip(&v) {
            for rows in cut(group, seq_len_q, config.tile_q) {
                let (tile_out, rest) = std::mem::take(&mut out).split_at_mut(rows.len());
                out = rest;
                let (tile_lse, rest) = std::mem::take(&mut lse).split_at_mut(rows.len());
                lse = rest;
                tasks.push(TileTask {
                    problem,
                    q,
                    batch: b,
                    first_row: kv_head * group * seq_len_q + rows.start,
                    k,
                    v,
                    out: tile_out,
                    lse: tile_lse,
                    tile_kv: config.tile_kv,
                });
            }
        }
        // Tiles are taken from the end: the last tiles of a causal head see the most keys, so the
        // longest run first.
        let tasks = Mutex::new(tasks);
        let next = || tasks.lock().unwrap_or_else(PoisonError::into_inner).pop();
        rayon::scope(|scope| {
            for _ in 0..rayon::current_num_threads() {
                scope.spawn(|_| {
                    let mut workspace = Workspace::default();
                    while let Some(task) = next() {
                        arch.dispatch(TileRun(task, &mut workspace));
                    }
                });
            }
        });
    }
}

/// Dense f32 rows of K and V for each (batch, head): borrowed if the tensor already has them,
/// otherwise copied in one parallel pass.
fn dense_rows<'a>(tensors: [&TensorView<'a>; 2], heads: &[(usize, usize)]) -> [Vec<Rows<'a>>; 2] {
    let mut dense = tensors.map(|tensor| {
        let [_, seq, _, dim] = tensor.layout().shape;
        let rows = |&(b, h): &(usize, usize)| match borrow_rows(tensor, b, h) {
            Some(rows) => Cow::Borrowed(rows),
            None => Cow::Owned(vec![0.0; seq * dim]),
        };
        heads.iter().map(rows).collect::<Vec<Rows<'a>>>()
    });
    let mut copies = Vec::new();
    for (tensor, dense) in tensors.into_iter().zip(&mut dense) {
        let dim = tensor.layout().shape[3];
        for (&(b, h), rows) in heads.iter().zip(dense) {
            if let Cow::Owned(rows) = rows {
                let chunks = rows.chunks_mut(COPY_ROWS * dim).enumerate();
                copies.extend(chunks.map(|(i, out)| (tensor, b, h, i * COPY_ROWS, out)));
            }
        }
    }
    copies.into_par_iter().for_each(|(tensor, b, h, first, out)| {
        let rows = out.len() / tensor.layout().shape[3];
        copy_rows(tensor, b, h, first..first + rows, out);
    });
    dense
}

/// The bytes of each row of head_dim elements, in the order `[batch, heads, seq]` for every layout.
fn split_rows<'a>(layout: &Layout, size: usize, bytes: &'a mut [u8]) -> Vec<&'a mut [u8]> {
    let [nb, ns, nh, nd] = layout.shape;
    // Dimensions by descending stride. In that order rows are ascending in memory, because the
    // elements of an output do not overlap.
    let mut dims = [
        (layout.strides[0], nb, nh * ns),
        (layout.strides[1], ns, 1),
        (layout.strides[2], nh, ns),
    ];
    dims.sort_by_key(|&(stride, count, _)| std::cmp::Reverse((stride, count)));
    let [outer, middle, inner] = dims;
    let mut rows: Vec<&mut [u8]> = Vec::new();
    rows.resize_with(nb * nh * ns, Default::default);
    let (mut rest, mut at) = (bytes, 0);
    for i in 0..outer.1 {
        for j in 0..middle.1 {
            for k in 0..inner.1 {
                let start = i * outer.0 as usize + j * middle.0 as usize + k * inner.0 as usize;
                let (_, from_row) = std::mem::take(&mut rest).split_at_mut((start - at) * size);
                let (row, after) = from_row.split_at_mut(nd * size);
                rows[i * outer.2 + j * middle.2 + k * inner.2] = row;
                (rest, at) = (after, start + nd);
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_rows_orders_rows_by_batch_head_seq() {
        let shape = [2, 3, 4, 8];
        let padded = Layout {
            shape,
            strides: [3 * 50, 50, 10, 1],
        };
        let one_head = Layout {
            shape: [2, 3, 1, 8],
            strides: [24, 8, 0, 1],
        };
        for layout in [Layout::bshd(shape), Layout::bhsd(shape), padded, one_head] {
            let [nb, ns, nh, _] = layout.shape;
            let mut bytes: Vec<u8> = (0..layout.span()).map(|i| i as u8).collect();
            let rows = split_rows(&layout, 1, &mut bytes);
            let mut rows = rows.iter();
            for b in 0..nb {
                for h in 0..nh {
                    for s in 0..ns {
                        let row = rows.next().unwrap();
                        assert_eq!((row.len(), row[0]), (8, layout.offset(b, s, h, 0) as u8));
                    }
                }
            }
        }
    }
}
