//! The kernel: attention of one tile of query rows. [`crate::rows`] is the one for decode.
//!
//! All matrices are transposed. A vector holds one column of several **query rows**, one row per
//! lane. A *panel* is a few vectors of rows.
//!
//! - `Sᵀ = K·Qᵀ`: each element of K is broadcast and multiplied with a column of the panel.
//! - Softmax maximum, sum and rescale are per lane, with no operation across lanes.
//! - `Oᵀ = Vᵀ·Pᵀ`: each element of V is broadcast and multiplied with a row of `Pᵀ`.
//!
//! K and V are read in memory order, a block at a time, and widened to f32 once per tile, or once per
//! thread and head where a head is short; only Q and O are transposed. Both products use one
//! micro-kernel of four rows by one panel with its accumulators in registers. It reaches four fifths of
//! a core's peak while the panel fits in the L1 cache.
//!
//! K blocks start at multiples of `tile_kv` for every tile, and masked keys do not change a row.
//! The result is therefore independent of `tile_q` and of the threads.

use std::ops::Range;

use flashcore_problem::{Problem, Sequence, TensorView};
use pulp::{Simd, WithSimd};

use crate::keys::{HeadRows, copy_row};
use crate::output::Output;
use crate::panel::{PanelBias, PanelBlock};
use crate::rows;
use crate::scale::Scale;
use crate::workspace::{LINE, PanelSpan, Workspace, split_aligned};

/// Most query rows of a K/V head that [`crate::rows`] computes, without panels.
const FEW_ROWS: usize = 8;

/// One tile: query rows, and the keys they attend to.
pub(crate) struct TileTask<'t> {
    pub(crate) problem: &'t Problem,
    pub(crate) scale: Scale,
    pub(crate) q: &'t TensorView<'t>,
    pub(crate) sequence: &'t Sequence<'t>,
    /// The sequence's number.
    pub(crate) batch: usize,
    /// K and V of the one K/V head of these rows.
    pub(crate) k: HeadRows<'t>,
    pub(crate) v: HeadRows<'t>,
    /// The first row as an index into `[num_heads, len_q]`, and how many follow each other.
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    /// Other keys are left out.
    pub(crate) keys: Range<usize>,
    pub(crate) tile_kv: usize,
}

/// Where the rows of a tile go.
pub(crate) enum Store<'s> {
    Output(&'s Output<'s>),
    /// `[rows][head_dim_v + 2]`: unnormalised O, maximum as the softmax takes scores, sum.
    Partial(&'s mut [f32]),
}

/// A tile on its way to the instruction set it is computed with.
pub(crate) struct TileRun<'t, 's> {
    pub(crate) task: &'t TileTask<'t>,
    pub(crate) workspace: &'t mut Workspace,
    pub(crate) store: Store<'s>,
}

impl WithSimd for TileRun<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (task, store) = (self.task, &mut self.store);
        // The choice depends on the sequence and not on the tile, so that a row's bits do not
        // depend on `tile_q`.
        let few_rows = task.problem.group_size() * task.sequence.len_q <= FEW_ROWS;
        // 4×4 accumulators with operands fill 32 registers; 4×2 fit in 16.
        match (few_rows, S::REGISTER_COUNT >= 32) {
            (true, true) => rows::run::<S, 4>(task, simd, self.workspace, store),
            (true, false) => rows::run::<S, 2>(task, simd, self.workspace, store),
            (false, true) => task.run::<S, 4>(simd, self.workspace, store),
            (false, false) => task.run::<S, 2>(simd, self.workspace, store),
        }
    }
}

impl TileTask<'_> {
    /// Batch and K/V head.
    pub(crate) fn kv_head(&self) -> [usize; 2] {
        [
            self.batch,
            self.first_row / (self.problem.group_size() * self.sequence.len_q),
        ]
    }

    /// Where a row of the tile is in Q and O: the first three indices of their shapes.
    #[inline(always)]
    pub(crate) fn place(&self, row: usize) -> [usize; 3] {
        let row = self.first_row + row;
        let [b, s] = self.sequence.q_row(row % self.sequence.len_q);
        [b, s, row / self.sequence.len_q]
    }

    /// Widens Q's row of the tile into `to`, times the power of two of the scale.
    #[inline(always)]
    pub(crate) fn copy_q(&self, row: usize, to: &mut [f32]) {
        let [b, s, h] = self.place(row);
        copy_row(self.q, b, s, h, to);
        to.iter_mut().for_each(|x| *x *= self.scale.of_q);
    }

    /// Stores a row of the output from all of its keys: its maximum as the softmax takes scores, its
    /// sum, and its unnormalised output, which is changed. NaN if the row sees keys and its largest
    /// score is not finite in f32.
    #[inline(always)]
    pub(crate) fn store_output(&self, output: &Output<'_>, row: usize, max: f32, sum: f32, values: &mut [f32]) {
        let row_in_sequence = (self.first_row + row) % self.sequence.len_q;
        let max = f64::from(max) * f64::from(self.scale.of_score);
        let overflowed = max.abs() > f64::from(f32::MAX) && !self.sequence.keys.keys(row_in_sequence).is_empty();
        let sum = if overflowed { f32::NAN } else { sum };
        output.store(self.place(row), max, sum, values);
    }

    /// Stores a row of the tile, as [`Self::store_output`] takes it.
    #[inline(always)]
    pub(crate) fn store(&self, store: &mut Store<'_>, row: usize, max: f32, sum: f32, values: &mut [f32]) {
        match store {
            Store::Output(output) => self.store_output(output, row, max, sum, values),
            Store::Partial(partial) => {
                let width = values.len() + 2;
                let (to, ends) = partial[row * width..][..width].split_at_mut(width - 2);
                to.copy_from_slice(values);
                ends.copy_from_slice(&[max, sum]);
            }
        }
    }

    /// The ALiBi slope of a row of the tile, in units of its scores as the softmax takes them, and its
    /// position relative to a key.
    #[inline(always)]
    pub(crate) fn bias(&self, row: usize, key: usize) -> Option<(f32, f32)> {
        let row = self.first_row + row;
        let slope = self.q.alibi_slope(self.batch, row / self.sequence.len_q)?;
        let position = (row % self.sequence.len_q) as i64 + i64::from(self.sequence.keys.diagonal) - key as i64;
        Some((slope / self.scale.of_score, position as f32))
    }

    /// The keys that a row of the tile sees, of those of the task.
    #[inline(always)]
    pub(crate) fn visible(&self, row: usize) -> Range<usize> {
        let seen = self.sequence.keys.keys((self.first_row + row) % self.sequence.len_q);
        seen.start.max(self.keys.start)..seen.end.min(self.keys.end)
    }

    /// `NV`: vectors per panel.
    #[inline(always)]
    fn run<S: Simd, const NV: usize>(&self, simd: S, workspace: &mut Workspace, store: &mut Store<'_>) {
        let TileTask { problem, tile_kv, .. } = *self;
        let dims = [problem.head_dim(), problem.head_dim_v()];
        let panel = NV * S::F32_LANES;
        let whole_rows = self.rows.next_multiple_of(LINE);
        let sizes = [
            whole_rows * dims[0],
            whole_rows * dims[1],
            tile_kv * panel.next_multiple_of(LINE),
            whole_rows,
            whole_rows,
        ];
        let Workspace {
            floats,
            row: one_row,
            ranges,
            spans,
            blocks,
        } = workspace;
        // Qᵀ and Oᵀ, which is not normalised, one panel after another, each `[head_dim][panel width]`; Sᵀ, later Pᵀ, of
        // one panel and one K block, `[keys][panel width]`; the running maximum of each row's scores in log2 units, and
        // the running sum of `exp(score − maximum)`.
        let [q_panels, o_panels, s, max, sum] = split_aligned(floats, sizes);
        one_row.resize(dims[0].max(dims[1]), 0.0);
        ranges.clear();
        ranges.extend((0..self.rows).map(|row| self.visible(row)));
        let first_rows = (0..self.rows).step_by(panel);
        let panels = first_rows.map(|first| PanelSpan::of(first, panel, ranges, S::F32_LANES));
        spans.clear();
        spans.extend(panels);
        let spans = &*spans;
        let first_key = spans.iter().map(|span| span.any.start).min().unwrap_or(0);
        let last_key = spans.iter().map(|span| span.any.end).max().unwrap_or(0);

        for span in spans {
            // Qᵀ of the panel. Lanes past its last row are zero.
            let width = span.width;
            let q = &mut q_panels[span.rows.start * dims[0]..][..width * dims[0]];
            q.fill(0.0);
            for (lane, row) in span.rows.clone().enumerate() {
                self.copy_q(row, &mut one_row[..dims[0]]);
                for (column, &x) in q.chunks_exact_mut(width).zip(one_row.iter()) {
                    column[lane] = x;
                }
            }
        }
        o_panels.fill(0.0);
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);

        let mut block = first_key..first_key;
        while block.end < last_key {
            let next = (block.end / tile_kv + 1) * tile_kv;
            block = block.end..next.min(last_key);
            let [k, v] = blocks.rows(self, block.clone());
            let first = block.start;
            for span in spans {
                // Skips keys that the whole panel masks: half a block per row of a causal mask.
                let block = block.start.max(span.any.start)..block.end.min(span.any.end);
                if block.is_empty() {
                    continue;
                }
                let (packed, row, width) = (block.start - first..block.end - first, span.rows.start, span.width);
                let work = PanelBlock {
                    problem,
                    scale: self.scale,
                    k: &k[packed.start * dims[0]..packed.end * dims[0]],
                    v: &v[packed.start * dims[1]..packed.end * dims[1]],
                    ranges: &ranges[span.rows.clone()],
                    all_visible: span.all.start <= block.start && block.end <= span.all.end,
                    bias: problem
                        .alibi()
                        .map(|_| PanelBias::new(span.rows.clone().flat_map(|row| self.bias(row, block.start)))),
                    block,
                    q: &q_panels[row * dims[0]..][..width * dims[0]],
                    s: &mut s[..width * tile_kv],
                    o: &mut o_panels[row * dims[1]..][..width * dims[1]],
                    max: &mut max[row..][..width],
                    sum: &mut sum[row..][..width],
                };
                match width / S::F32_LANES {
                    1 => work.run::<S, 1>(simd),
                    2 => work.run::<S, 2>(simd),
                    3 if NV > 2 => work.run::<S, 3>(simd),
                    _ => work.run::<S, NV>(simd),
                }
            }
        }

        for span in spans {
            let o = &o_panels[span.rows.start * dims[1]..][..span.width * dims[1]];
            for (lane, row) in span.rows.clone().enumerate() {
                for (x, column) in one_row.iter_mut().zip(o.chunks_exact(span.width)) {
                    *x = column[lane];
                }
                self.store(store, row, max[row], sum[row], &mut one_row[..dims[1]]);
            }
        }
    }
}

/// Splits the rows of `group_size` heads that share K and V into tiles of `tile_q` rows.
///
/// Long heads are split separately, so that a causal tile sees few keys. Short heads share tiles to
/// fill the lanes (decode has one row per head).
pub(crate) fn cut(group_size: usize, seq_len_q: usize, tile_q: usize) -> Vec<Range<usize>> {
    let (heads, rows) = if seq_len_q >= tile_q {
        (group_size, seq_len_q)
    } else {
        (1, group_size * seq_len_q)
    };
    let tile = |first: usize, end: usize| first..(first + tile_q).min(end);
    (0..heads)
        .map(|head| head * rows..(head + 1) * rows)
        .flat_map(|head| head.clone().step_by(tile_q).map(move |first| tile(first, head.end)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_every_row_once() {
        for (group, seq, tile) in [
            (1, 1, 16),
            (4, 1, 16),
            (8, 5, 16),
            (2, 64, 64),
            (3, 65, 64),
            (1, 1000, 128),
        ] {
            let tiles = cut(group, seq, tile);
            assert!(tiles.iter().all(|t| !t.is_empty() && t.len() <= tile));
            let rows: Vec<usize> = tiles.into_iter().flatten().collect();
            assert_eq!(rows, (0..group * seq).collect::<Vec<_>>());
        }
        assert_eq!(cut(2, 3, 16), vec![0..6; 1]);
        assert_eq!(cut(2, 20, 16), [0..16, 16..20, 20..36, 36..40]);
    }
}
