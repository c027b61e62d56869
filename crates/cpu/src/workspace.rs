//! Scratch memory of one thread.

use std::ops::Range;

/// Scratch memory of one thread, grown as needed and reused from tile to tile.
#[derive(Default)]
pub(crate) struct Workspace {
    floats: Vec<f32>,
    row: Vec<f32>,
    ranges: Vec<Range<usize>>,
    spans: Vec<PanelSpan>,
}

/// What a tile works in. The slices of vectors begin on a cache line.
pub(crate) struct Scratch<'w> {
    /// Qᵀ, panel after panel, each `[head_dim][panel width]`.
    pub(crate) q: &'w mut [f32],
    /// Oᵀ, not yet divided by the sums, panel after panel, each `[head_dim_v][panel width]`.
    pub(crate) o: &'w mut [f32],
    /// Sᵀ and then Pᵀ of one panel and one block, `[keys][panel width]`.
    pub(crate) s: &'w mut [f32],
    /// Running maximum of each row's scores, in units of log2.
    pub(crate) max: &'w mut [f32],
    /// Running sum of each row's `exp(score − maximum)`.
    pub(crate) sum: &'w mut [f32],
    /// One row of Q or O.
    pub(crate) row: &'w mut [f32],
    /// The keys each row sees.
    pub(crate) ranges: &'w mut [Range<usize>],
    /// The panels.
    pub(crate) spans: &'w mut Vec<PanelSpan>,
}

/// A panel of rows and the keys they see.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PanelSpan {
    /// Rows of the tile.
    pub(crate) rows: Range<usize>,
    /// The rows rounded up to whole vectors.
    pub(crate) width: usize,
    /// Keys outside of this range no row sees.
    pub(crate) any: Range<usize>,
    /// Keys inside of this range every row sees; it may be empty.
    pub(crate) all: Range<usize>,
}

impl PanelSpan {
    /// The panel of up to `panel` rows from `first`, of a tile whose rows see `ranges`.
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

/// f32s in a cache line. No panel's lanes are more than fit in one vector of this many.
const LINE: usize = 16;

impl Workspace {
    /// Memory for a tile of `rows` rows, a block of `tile_kv` keys and panels of `panel` rows. What is in it is left
    /// over from the tile before, but for `spans`, which is empty.
    pub(crate) fn scratch(&mut self, rows: usize, dims: [usize; 2], tile_kv: usize, panel: usize) -> Scratch<'_> {
        let whole_rows = rows.next_multiple_of(LINE);
        let sizes = [
            whole_rows * dims[0],
            whole_rows * dims[1],
            tile_kv * panel.next_multiple_of(LINE),
            whole_rows,
            whole_rows,
        ];
        let total: usize = sizes.iter().sum();
        if self.floats.len() < total + LINE {
            self.floats = vec![0.0; total + LINE];
        }
        self.row.resize(dims[0].max(dims[1]), 0.0);
        self.ranges.resize(rows, 0..0);
        self.spans.clear();
        // Vectors that do not begin where a cache line does would cross into the next at every load.
        let aligned = self.floats.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        let mut rest = &mut self.floats[aligned..];
        let [q, o, s, max, sum] = sizes.map(|size| {
            let (slice, after) = std::mem::take(&mut rest).split_at_mut(size);
            rest = after;
            slice
        });
        Scratch {
            q,
            o,
            s,
            max,
            sum,
            row: &mut self.row,
            ranges: &mut self.ranges,
            spans: &mut self.spans,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panels_span_is_the_union_and_the_intersection_of_its_rows() {
        let ranges = [2..5, 3..9, 7..7, 0..1];
        let span = PanelSpan::of(0, 2, &ranges, 4);
        assert_eq!((span.any, span.all, span.width), (2..9, 3..5, 4));
        let span = PanelSpan::of(2, 8, &ranges, 4);
        assert_eq!((span.rows, span.any), (2..4, 0..1));
        assert!(span.all.is_empty());
    }

    #[test]
    fn slices_are_aligned_and_large_enough() {
        let mut workspace = Workspace::default();
        for rows in [1, 16, 100] {
            let scratch = workspace.scratch(rows, [8, 72], 12, 64);
            assert!(scratch.q.len() >= rows * 8 && scratch.o.len() >= rows * 72 && scratch.s.len() >= 12 * 64);
            assert!(scratch.max.len() >= rows && scratch.sum.len() >= rows && scratch.row.len() == 72);
            for slice in [scratch.q, scratch.o, scratch.s, scratch.max, scratch.sum] {
                assert_eq!(slice.as_ptr() as usize % 64, 0);
            }
        }
    }
}
