//! Splits a problem into tiles and distributes them over threads.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use flashcore_problem::{Layout, Problem, Sequence, TensorView, TensorViewMut};
use pulp::Arch;
use rayon::prelude::*;

use crate::CpuConfig;
use crate::keys::{Rows, borrow_rows, copy_row};
use crate::tile::{OutputRow, TileRun, TileTask, cut};
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
    sequences: &[Sequence<'_>],
    out: &mut TensorViewMut<'_>,
    lse: Option<&mut [f32]>,
    config: CpuConfig,
    arch: Arch,
) {
    let (group, num_kv_heads) = (problem.group_size(), problem.num_kv_heads());
    let mut unwanted = Vec::new();
    let lse = lse.unwrap_or_else(|| {
        unwanted.resize(problem.lse_len(), 0.0);
        &mut unwanted
    });
    let size = problem.out_dtype().size_bytes();
    let mut rows = split_rows(problem.o_layout(), size, out.bytes_mut(), lse);
    let mut rows = by_sequence(problem, sequences, &mut rows);
    let mut rows = rows.as_mut_slice();

    let bytes_a_head = problem.seq_len_kv() * (problem.head_dim() + problem.head_dim_v()) * size_of::<f32>();
    let heads_at_once = (COPY_BUDGET / bytes_a_head).max(1);
    let heads: Vec<(&Sequence<'_>, usize)> = sequences
        .iter()
        .filter(|sequence| sequence.len_q > 0)
        .flat_map(|sequence| (0..num_kv_heads).map(move |h| (sequence, h)))
        .collect();
    for heads in heads.chunks(heads_at_once) {
        let [k, v] = dense_rows([k, v], heads);
        let mut tasks = Vec::new();
        for ((&(sequence, kv_head), k), v) in heads.iter().zip(&k).zip(&v) {
            for tile in cut(group, sequence.len_q, config.tile_q) {
                let (out, rest) = std::mem::take(&mut rows).split_at_mut(tile.len());
                rows = rest;
                tasks.push(TileTask {
                    problem,
                    q,
                    sequence,
                    first_row: kv_head * group * sequence.len_q + tile.start,
                    k,
                    v,
                    out,
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

/// Dense f32 rows of K and V for each (sequence, head): borrowed if the tensor already has them,
/// otherwise copied in one parallel pass. Rows on no page are zero; no query row sees them.
fn dense_rows<'a>(tensors: [&TensorView<'a>; 2], heads: &[(&Sequence<'_>, usize)]) -> [Vec<Rows<'a>>; 2] {
    let mut dense = tensors.map(|tensor| {
        let rows = |&(sequence, h): &(&Sequence<'_>, usize)| match borrow_rows(tensor, sequence, h) {
            Some(rows) => Cow::Borrowed(rows),
            None => Cow::Owned(vec![0.0; sequence.len_kv * tensor.layout().shape[3]]),
        };
        heads.iter().map(rows).collect::<Vec<Rows<'a>>>()
    });
    let mut copies = Vec::new();
    for (tensor, dense) in tensors.into_iter().zip(&mut dense) {
        let dim = tensor.layout().shape[3];
        for (&(sequence, h), rows) in heads.iter().zip(dense) {
            if let Cow::Owned(rows) = rows {
                let chunks = rows.chunks_mut(COPY_ROWS * dim).enumerate();
                copies.extend(chunks.map(|(i, out)| (tensor, sequence, h, i * COPY_ROWS, out)));
            }
        }
    }
    copies.into_par_iter().for_each(|(tensor, sequence, h, first, out)| {
        for (key, out) in (first..).zip(out.chunks_exact_mut(tensor.layout().shape[3])) {
            if let Some([b, s]) = sequence.kv_row(key) {
                copy_row(tensor, b, s, h, out);
            }
        }
    });
    dense
}

/// The rows of the sequences, in the order sequence, head, row: that of tiles.
fn by_sequence<'a>(problem: &Problem, sequences: &[Sequence<'_>], rows: &mut [OutputRow<'a>]) -> Vec<OutputRow<'a>> {
    let [_, ns, nh, _] = problem.o_layout().shape;
    let mut ordered = Vec::with_capacity(rows.len());
    for sequence in sequences {
        for h in 0..nh {
            let places = (0..sequence.len_q).map(|row| sequence.q_row(row));
            ordered.extend(places.map(|[b, s]| std::mem::take(&mut rows[(b * nh + h) * ns + s])));
        }
    }
    ordered
}

/// The bytes of each row of head_dim elements and its log-sum-exp, in the order `[batch, heads, seq]`
/// for every layout.
fn split_rows<'a>(layout: &Layout, size: usize, bytes: &'a mut [u8], lse: &'a mut [f32]) -> Vec<OutputRow<'a>> {
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
    let row = |lse| OutputRow { out: &mut [], lse };
    let mut rows: Vec<OutputRow<'a>> = lse.chunks_mut(1).map(row).collect();
    let (mut rest, mut at) = (bytes, 0);
    for i in 0..outer.1 {
        for j in 0..middle.1 {
            for k in 0..inner.1 {
                let start = i * outer.0 as usize + j * middle.0 as usize + k * inner.0 as usize;
                let (_, from_row) = std::mem::take(&mut rest).split_at_mut((start - at) * size);
                let (row, after) = from_row.split_at_mut(nd * size);
                rows[i * outer.2 + j * middle.2 + k * inner.2].out = row;
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
            let mut lse = vec![0.0; nb * ns * nh];
            let rows = split_rows(&layout, 1, &mut bytes, &mut lse);
            let mut rows = rows.iter();
            for b in 0..nb {
                for h in 0..nh {
                    for s in 0..ns {
                        let row = &rows.next().unwrap().out;
                        assert_eq!((row.len(), row[0]), (8, layout.offset(b, s, h, 0) as u8));
                    }
                }
            }
        }
    }
}
