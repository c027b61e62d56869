//! Scratch memory of one thread.

use std::ops::Range;

use flashcore_problem::Problem;

use crate::keys::HeadRows;
use crate::tile::TileTask;

/// Scratch buffers of one thread. They grow as needed and are reused for every tile.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(crate) floats: Vec<f32>,
    pub(crate) row: Vec<f32>,
    pub(crate) ranges: Vec<Range<usize>>,
    pub(crate) spans: Vec<PanelSpan>,
    pub(crate) blocks: KeyBlocks,
}

/// K and V of a head as f32, a block at a time. Those of a short head are kept for its next tile.
#[derive(Default)]
pub(crate) struct KeyBlocks {
    floats: Vec<f32>,
    /// The head that the buffer is of: batch and K/V head.
    head: Option<[usize; 2]>,
    /// Which of its blocks are in the buffer.
    kept: Vec<bool>,
}

/// f32 values of K and V of a head that is kept: half a megabyte, a part of a core's L2 cache.
const KEPT: usize = 1 << 17;

/// Whether K and V of a head of so many keys are kept.
pub(crate) fn keeps(problem: &Problem, len_kv: usize, tile_kv: usize) -> bool {
    len_kv.next_multiple_of(tile_kv) * (problem.head_dim() + problem.head_dim_v()) <= KEPT
}

impl KeyBlocks {
    /// Forgets the tensors of another call.
    pub(crate) fn clear(&mut self) {
        self.head = None;
    }

    /// The rows of K and of V of `keys`, which are of one block.
    #[inline(always)] // into code that is compiled for an instruction set
    pub(crate) fn rows<'r>(&'r mut self, task: &TileTask<'r>, keys: Range<usize>) -> [&'r [f32]; 2] {
        let (tile_kv, len_kv) = (task.tile_kv, task.sequence.len_kv);
        let dims = [task.problem.head_dim(), task.problem.head_dim_v()];
        let size = tile_kv * (dims[0] + dims[1]);
        let (mut block, mut place, mut blocks) = (keys.clone(), 0, len_kv.div_ceil(tile_kv));
        let keep = keeps(task.problem, len_kv, tile_kv);
        if keep {
            place = keys.start / tile_kv;
            block = place * tile_kv..((place + 1) * tile_kv).min(len_kv);
        } else {
            blocks = 1;
        }
        if self.head.replace(task.kv_head()) != Some(task.kv_head()) {
            self.kept.clear();
            self.kept.resize(blocks, false);
        }
        let ready = std::mem::replace(&mut self.kept[place], keep);
        let [floats] = split_aligned(&mut self.floats, [blocks * size]);
        let (k, v) = floats[place * size..][..size].split_at_mut(tile_kv * dims[0]);
        for (head, dim, to) in [(&task.k, dims[0], &mut *k), (&task.v, dims[1], &mut *v)] {
            if !ready && head.borrow(block.clone(), dim).is_none() {
                head.widen(block.clone(), dim, to);
            }
        }
        let of_block = |head: &HeadRows<'r>, dim: usize, widened: &'r [f32]| {
            let rows = head.borrow(block.clone(), dim).unwrap_or(widened);
            &rows[(keys.start - block.start) * dim..(keys.end - block.start) * dim]
        };
        [of_block(&task.k, dims[0], k), of_block(&task.v, dims[1], v)]
    }
}

/// A panel of rows and the keys they see.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PanelSpan {
    pub(crate) rows: Range<usize>,
    /// The row count rounded up to whole vectors.
    pub(crate) width: usize,
    /// Smallest range that contains every visible key of the panel.
    pub(crate) any: Range<usize>,
    /// Keys that every row sees. May be empty.
    pub(crate) all: Range<usize>,
}

impl PanelSpan {
    /// The panel of up to `panel` rows from `first`; `ranges` are the keys that the tile's rows see.
    pub(crate) fn of(first: usize, panel: usize, ranges: &[Range<usize>], lanes: usize) -> PanelSpan {
        let rows = first..(first + panel).min(ranges.len());
        let (mut first_seen, mut last_seen) = (usize::MAX, 0);
        let mut all = 0..usize::MAX;
        for range in &ranges[rows.clone()] {
            all = all.start.max(range.start)..all.end.min(range.end);
            if !range.is_empty() {
                first_seen = first_seen.min(range.start);
                last_seen = last_seen.max(range.end);
            }
        }
        PanelSpan {
            width: rows.len().next_multiple_of(lanes),
            rows,
            any: first_seen..last_seen,
            all,
        }
    }
}

/// f32 values per cache line, and per vector of the widest instruction set.
pub(crate) const LINE: usize = 16;

/// Slices of these sizes, each aligned to a cache line: an unaligned vector would cross one at every
/// load. They hold old data.
pub(crate) fn split_aligned<const N: usize>(floats: &mut Vec<f32>, sizes: [usize; N]) -> [&mut [f32]; N] {
    let total: usize = sizes.iter().map(|size| size.next_multiple_of(LINE)).sum();
    if floats.len() < total + LINE {
        *floats = vec![0.0; total + LINE];
    }
    let aligned = floats.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
    let mut rest = &mut floats[aligned..];
    sizes.map(|size| {
        let (slice, after) = std::mem::take(&mut rest).split_at_mut(size.next_multiple_of(LINE));
        rest = after;
        &mut slice[..size]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_has_union_and_intersection_of_row_ranges() {
        let ranges = [2..5, 3..9, 7..7, 0..1];
        let span = PanelSpan::of(0, 2, &ranges, 4);
        assert_eq!((span.any, span.all, span.width), (2..9, 3..5, 4));
        let span = PanelSpan::of(2, 8, &ranges, 4);
        assert_eq!((span.rows, span.any), (2..4, 0..1));
        assert!(span.all.is_empty());
    }

    #[test]
    fn slices_are_aligned_and_large_enough() {
        let mut floats = Vec::new();
        for rows in [1, 16, 100] {
            let sizes = [rows * 8, rows * 72, 12 * 64, rows, rows];
            for (slice, size) in split_aligned(&mut floats, sizes).into_iter().zip(sizes) {
                assert_eq!((slice.as_ptr() as usize % 64, slice.len()), (0, size));
            }
        }
    }
}
