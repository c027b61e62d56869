//! The kernel: attention of one tile of query rows.
//!
//! All matrices are transposed. A vector holds one column of several **query rows**, one row per
//! lane. A *panel* is a few vectors of rows.
//!
//! - `Sᵀ = K·Qᵀ`: each element of K is broadcast and multiplied with a column of the panel.
//! - Softmax maximum, sum and rescale are per lane, with no operation across lanes.
//! - `Oᵀ = Vᵀ·Pᵀ`: each element of V is broadcast and multiplied with a row of `Pᵀ`.
//!
//! K and V are read in memory order; only Q and O are transposed, once per tile. Both products use
//! one micro-kernel of four rows by one panel with its accumulators in registers. It reaches the
//! machine's peak while the panel fits in the L1 cache.
//!
//! K blocks start at multiples of `tile_kv` for every tile, and masked keys do not change a row.
//! The result is therefore independent of `tile_q` and of the threads.

use std::ops::Range;

use flashcore_problem::{Problem, Sequence, TensorView};
use pulp::{Simd, WithSimd};

use crate::keys::{copy_row, store_row};
use crate::panel::PanelBlock;
use crate::workspace::{PanelSpan, Workspace};

/// One tile: query rows, the K and V they attend to, and the outputs.
pub(crate) struct TileTask<'t, 'a> {
    pub(crate) problem: &'t Problem,
    pub(crate) q: &'t TensorView<'a>,
    pub(crate) sequence: &'t Sequence<'t>,
    /// K and V of the one K/V head of these rows: `[len_kv][head_dim]`, `[len_kv][head_dim_v]`.
    pub(crate) k: &'t [f32],
    pub(crate) v: &'t [f32],
    /// The first row as an index into `[num_heads, len_q]`.
    pub(crate) first_row: usize,
    pub(crate) out: &'t mut [OutputRow<'a>],
    pub(crate) tile_kv: usize,
}

/// Where a query row of a head goes.
#[derive(Default)]
pub(crate) struct OutputRow<'a> {
    /// Its bytes.
    pub(crate) out: &'a mut [u8],
    /// Its log-sum-exp, one element.
    pub(crate) lse: &'a mut [f32],
}

/// A tile on its way to the instruction set it is computed with.
pub(crate) struct TileRun<'t, 'a>(pub(crate) TileTask<'t, 'a>, pub(crate) &'t mut Workspace);

impl WithSimd for TileRun<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // 4×4 accumulators with operands fill 32 registers; 4×2 fit in 16.
        if S::REGISTER_COUNT >= 32 {
            self.0.run::<S, 4>(simd, self.1);
        } else {
            self.0.run::<S, 2>(simd, self.1);
        }
    }
}

impl TileTask<'_, '_> {
    /// `NV`: vectors per panel.
    #[inline(always)]
    fn run<S: Simd, const NV: usize>(self, simd: S, workspace: &mut Workspace) {
        let TileTask { problem, tile_kv, .. } = self;
        let dims = [problem.head_dim(), problem.head_dim_v()];
        let len_q = self.sequence.len_q;
        let panel = NV * S::F32_LANES;
        let scratch = workspace.scratch(self.out.len(), dims, tile_kv, panel);

        for (i, range) in scratch.ranges.iter_mut().enumerate() {
            *range = self.sequence.keys.keys((self.first_row + i) % len_q);
        }
        let first_rows = (0..self.out.len()).step_by(panel);
        let panels = first_rows.map(|first| PanelSpan::of(first, panel, scratch.ranges, S::F32_LANES));
        scratch.spans.extend(panels);
        let spans = scratch.spans.as_slice();
        let first_key = spans.iter().map(|span| span.any.start).min().unwrap_or(0);
        let last_key = spans.iter().map(|span| span.any.end).max().unwrap_or(0);

        for span in spans {
            // Qᵀ of the panel. Lanes past its last row are zero.
            let width = span.width;
            let q = &mut scratch.q[span.rows.start * dims[0]..][..width * dims[0]];
            q.fill(0.0);
            for (lane, row) in span.rows.clone().enumerate() {
                let (h, row) = ((self.first_row + row) / len_q, (self.first_row + row) % len_q);
                let [b, s] = self.sequence.q_row(row);
                copy_row(self.q, b, s, h, &mut scratch.row[..dims[0]]);
                for (column, &x) in q.chunks_exact_mut(width).zip(scratch.row.iter()) {
                    column[lane] = x;
                }
            }
        }
        scratch.o.fill(0.0);
        scratch.max.fill(f32::NEG_INFINITY);
        scratch.sum.fill(0.0);

        let mut block = first_key..first_key;
        while block.end < last_key {
            let next = (block.end / tile_kv + 1) * tile_kv;
            block = block.end..next.min(last_key);
            for span in spans {
                // Skips keys that the whole panel masks: half a block per row of a causal mask.
                let block = block.start.max(span.any.start)..block.end.min(span.any.end);
                if block.is_empty() {
                    continue;
                }
                let (first, width) = (span.rows.start, span.width);
                let work = PanelBlock {
                    problem,
                    k: &self.k[block.start * dims[0]..block.end * dims[0]],
                    v: &self.v[block.start * dims[1]..block.end * dims[1]],
                    ranges: &scratch.ranges[span.rows.clone()],
                    all_visible: span.all.start <= block.start && block.end <= span.all.end,
                    block,
                    q: &scratch.q[first * dims[0]..][..width * dims[0]],
                    s: &mut scratch.s[..width * tile_kv],
                    o: &mut scratch.o[first * dims[1]..][..width * dims[1]],
                    max: &mut scratch.max[first..][..width],
                    sum: &mut scratch.sum[first..][..width],
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
            let o = &scratch.o[span.rows.start * dims[1]..][..span.width * dims[1]];
            for (lane, row) in span.rows.clone().enumerate() {
                let (max, sum) = (scratch.max[row], scratch.sum[row]);
                // A fully masked row has sum 0 and output 0.
                let inverse = if sum == 0.0 { 0.0 } else { 1.0 / sum };
                for (x, column) in scratch.row.iter_mut().zip(o.chunks_exact(span.width)) {
                    *x = column[lane] * inverse;
                }
                store_row(problem.out_dtype(), &scratch.row[..dims[1]], self.out[row].out);
                // The maximum is in log2 units. −∞ + ln 0 is −∞ as required.
                self.out[row].lse[0] = (f64::from(max) * std::f64::consts::LN_2 + f64::from(sum).ln()) as f32;
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
