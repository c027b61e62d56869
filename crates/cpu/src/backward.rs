//! The backward pass: dQ, dK and dV, by the formulas of [`flashcore_problem::direction`].
//!
//! An item of work owns a tile of one gradient and walks the tiles of the other side, so that every
//! row of a gradient is summed by one thread in one order, and results do not depend on the threads:
//!
//! - dQ: query rows of a head; walks the keys that they see.
//! - dK and dV: keys of a K/V head; walks, for each query head that shares it, the rows that see them.
//!
//! Both compute S and dP anew: seven products where a single walk would have five and add dQ up
//! across threads. With rows for what a tile owns and columns for what it walks, both are the same
//! code: `S = A·Bᵀ` and `dP = A'·B'ᵀ`, P and dS from them, then sums of `P·B'` and `dS·B`.

use std::ops::Range;

use flashcore_problem::{GRADIENT_LIMIT, Gradients, Problem, Sequence, TensorView};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::CpuConfig;
use crate::keys::copy_row;
use crate::output::Output;
use crate::product::{LANES, multiply_add};
use crate::simd::{exp2, tanh};

/// Vectors of columns of a product in registers, with four rows of each.
const VECTORS: usize = 2;

/// The tensors of one call, and how it is split.
pub(crate) struct Backward<'c> {
    pub(crate) problem: &'c Problem,
    /// Q and dO: the tensors of queries that S and dP are products of.
    pub(crate) queries: [TensorView<'c>; 2],
    /// K and V: those of keys.
    pub(crate) keys: [TensorView<'c>; 2],
    pub(crate) out: TensorView<'c>,
    pub(crate) lse: &'c [f32],
    pub(crate) sequences: &'c [Sequence<'c>],
    pub(crate) config: CpuConfig,
    pub(crate) arch: Arch,
}

/// Which gradients an item computes, and of which rows.
struct Item<'s> {
    sequence: &'s Sequence<'s>,
    side: Side,
    /// A query head, or a K/V head.
    head: usize,
    rows: Range<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Queries,
    Keys,
}

impl Backward<'_> {
    /// Computes all gradients on rayon's current pool: those of Q, K and V.
    pub(crate) fn run(&self, [dq, dk, dv]: [&mut [u8]; 3]) {
        let problem = self.problem;
        // A backward problem has their layouts.
        let Some(layouts) = problem.gradient_layouts() else {
            return;
        };
        let output = |layout, bytes| Output::new((problem.dtype(), layout), bytes, None, None);
        let outputs = Gradients {
            dq: output(layouts.dq, dq),
            dk: output(layouts.dk, dk),
            dv: output(layouts.dv, dv),
        };
        let deltas = self.deltas();
        let mut items = Vec::new();
        for sequence in self.sequences {
            let mut add = |side, heads, len: usize, tile| {
                for head in 0..heads {
                    items.extend((0..len).step_by(tile).map(|first| Item {
                        sequence,
                        side,
                        head,
                        rows: first..(first + tile).min(len),
                    }));
                }
            };
            add(Side::Keys, problem.num_kv_heads(), sequence.len_kv, self.config.tile_kv);
            add(Side::Queries, problem.num_heads(), sequence.len_q, self.config.tile_q);
        }
        let compute = |scratch: &mut Scratch, item: &Item<'_>| {
            let deltas = &deltas;
            self.arch.dispatch(Run {
                call: self,
                item,
                deltas,
                scratch,
                outputs: &outputs,
            });
        };
        items.par_iter().for_each_init(Scratch::default, compute);
    }

    fn tensors(&self, side: Side) -> &[TensorView<'_>; 2] {
        match side {
            Side::Queries => &self.queries,
            Side::Keys => &self.keys,
        }
    }

    /// `Δ = rowsum(dO ∘ O)` of each row, where the log-sum-exp has it.
    fn deltas(&self) -> Vec<f32> {
        let [_, rows, heads, columns] = self.problem.o_layout().shape;
        let mut deltas = vec![0.0; self.problem.lse_len()];
        let places: Vec<[usize; 2]> = self
            .sequences
            .iter()
            .flat_map(|sequence| (0..sequence.len_q).map(|row| sequence.q_row(row)))
            .collect();
        let of_row = |&[b, s]: &[usize; 2]| -> Vec<(usize, f32)> {
            let (mut out, mut dout) = (vec![0.0; columns], vec![0.0; columns]);
            let of_head = |h: usize| {
                copy_row(&self.out, b, s, h, &mut out);
                copy_row(&self.queries[1], b, s, h, &mut dout);
                let products = out.iter().zip(&dout).map(|(o, d)| f64::from(*o) * f64::from(*d));
                ((b * heads + h) * rows + s, products.sum::<f64>() as f32)
            };
            (0..heads).map(of_head).collect()
        };
        let found: Vec<Vec<(usize, f32)>> = places.par_iter().map(of_row).collect();
        for (place, delta) in found.into_iter().flatten() {
            deltas[place] = delta;
        }
        deltas
    }
}

/// Buffers of a thread. `m` rows are owned and `n` are walked; all rows are padded with zeros to
/// whole vectors.
#[derive(Default)]
struct Scratch {
    /// `[m][head_dim]`: Q or K.
    own: Vec<f32>,
    /// `[m][head_dim_v]`: dO or V.
    own_v: Vec<f32>,
    /// `[n][head_dim]`: K or Q, and transposed.
    walked: Vec<f32>,
    walked_t: Vec<f32>,
    /// `[n][head_dim_v]`: V or dO, and transposed.
    walked_v: Vec<f32>,
    walked_v_t: Vec<f32>,
    /// `[m][n]`: S, then P.
    p: Vec<f32>,
    /// `[m][n]`: dP, then dS.
    ds: Vec<f32>,
    /// Log-sum-exp in log2 units, and Δ, of the query rows that are owned or walked.
    lse: Vec<f32>,
    delta: Vec<f32>,
    /// `[m][head_dim]`: dQ or dK, not scaled; `[m][head_dim_v]`: dV.
    sum: Vec<f32>,
    sum_v: Vec<f32>,
}

/// An item on its way to the instruction set it is computed with.
struct Run<'r, 'o> {
    call: &'r Backward<'r>,
    item: &'r Item<'r>,
    deltas: &'r [f32],
    scratch: &'r mut Scratch,
    outputs: &'r Gradients<Output<'o>>,
}

impl WithSimd for Run<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (call, item, problem) = (self.call, self.item, self.call.problem);
        let [width, width_v] = self.widths();
        let [own, own_v] = call.tensors(item.side);
        let rows = item.rows.clone();
        let (head, scratch) = ((item.side, item.head), &mut *self.scratch);
        load(&mut scratch.own, own, item, head, rows.clone(), width);
        load(&mut scratch.own_v, own_v, item, head, rows.clone(), width_v);
        zeros(&mut self.scratch.sum, rows.len() * width);
        zeros(&mut self.scratch.sum_v, rows.len() * width_v);
        let group = problem.group_size();
        let (heads, tile) = match item.side {
            Side::Queries => (item.head..item.head + 1, call.config.tile_kv),
            Side::Keys => (item.head * group..(item.head + 1) * group, call.config.tile_q),
        };
        if item.side == Side::Queries {
            self.load_statistics(item.head, rows.clone(), rows.len());
        }
        let seen = item.seen(rows.start).start..item.seen(rows.end - 1).end; // bounds grow with the row
        for head in heads {
            // Tiles begin at multiples of their size, so that sums do not depend on the mask of other rows.
            for start in (seen.start / tile * tile..seen.end).step_by(tile) {
                self.walk(simd, head, start..(start + tile).min(seen.end));
            }
        }
        self.store();
    }
}

impl Run<'_, '_> {
    /// Columns of Q and of V, padded.
    fn widths(&self) -> [usize; 2] {
        let problem = self.call.problem;
        [problem.head_dim(), problem.head_dim_v()].map(|columns| columns.next_multiple_of(LANES))
    }

    /// The log-sum-exp and Δ of query rows; zeros past them, where P and dS are set to zero.
    fn load_statistics(&mut self, head: usize, rows: Range<usize>, count: usize) {
        let [_, all_rows, heads, _] = self.call.problem.o_layout().shape;
        let Scratch { lse, delta, .. } = &mut *self.scratch;
        zeros(lse, count);
        zeros(delta, count);
        for (i, row) in rows.enumerate() {
            let [b, s] = self.item.sequence.q_row(row);
            let place = (b * heads + head) * all_rows + s;
            let natural = self.call.lse[place];
            // Above the limit P would be wrong. A row without keys has −∞, and its P are set to zero.
            let wrong = natural != f32::NEG_INFINITY && natural.abs() > GRADIENT_LIMIT;
            lse[i] = if wrong {
                f32::NAN
            } else {
                natural * std::f32::consts::LOG2_E
            };
            delta[i] = self.deltas[place];
        }
    }

    /// Adds what a tile of the other side gives; `head` is a query head.
    #[inline(always)]
    fn walk<S: Simd>(&mut self, simd: S, head: usize, walked: Range<usize>) {
        let (problem, item) = (self.call.problem, self.item);
        let [width, width_v] = self.widths();
        let (rows, columns) = (item.rows.len(), walked.len().next_multiple_of(LANES));
        let other = match item.side {
            Side::Queries => (Side::Keys, head / problem.group_size()),
            Side::Keys => (Side::Queries, head),
        };
        if item.side == Side::Keys {
            self.load_statistics(head, walked.clone(), columns);
        }
        let [tensor, tensor_v] = self.call.tensors(other.0);
        let scratch = &mut *self.scratch;
        load(&mut scratch.walked, tensor, item, other, walked.clone(), width);
        load(&mut scratch.walked_v, tensor_v, item, other, walked.clone(), width_v);
        transpose(&scratch.walked, width, columns, &mut scratch.walked_t);
        transpose(&scratch.walked_v, width_v, columns, &mut scratch.walked_v_t);

        zeros(&mut scratch.p, rows * columns);
        zeros(&mut scratch.ds, rows * columns);
        let (own, own_v) = (
            (&scratch.own[..], width, problem.head_dim()),
            (&scratch.own_v[..], width_v, problem.head_dim_v()),
        );
        multiply_add::<S, VECTORS>(simd, own, &scratch.walked_t, &mut scratch.p, columns);
        multiply_add::<S, VECTORS>(simd, own_v, &scratch.walked_v_t, &mut scratch.ds, columns);
        let each = scratch.p.chunks_mut(columns).zip(scratch.ds.chunks_mut(columns));
        for (i, (p, ds)) in each.enumerate() {
            let statistics = match item.side {
                Side::Queries => Statistics::OfRow(scratch.lse[i], scratch.delta[i]),
                Side::Keys => Statistics::OfColumns(&scratch.lse, &scratch.delta),
            };
            differentiate(simd, problem, p, ds, statistics);
            let seen = item.seen(item.rows.start + i);
            let within = |column: usize| column.clamp(walked.start, walked.end) - walked.start;
            let (start, end) = (within(seen.start), within(seen.end));
            for row in [p, ds] {
                row[..start].fill(0.0);
                row[end..].fill(0.0);
            }
        }
        let depth = walked.len();
        if item.side == Side::Keys {
            let p = (&scratch.p[..], columns, depth);
            multiply_add::<S, VECTORS>(simd, p, &scratch.walked_v, &mut scratch.sum_v, width_v);
        }
        let ds = (&scratch.ds[..], columns, depth);
        multiply_add::<S, VECTORS>(simd, ds, &scratch.walked, &mut scratch.sum, width);
    }

    fn store(&mut self) {
        let (problem, item) = (self.call.problem, self.item);
        let [width, width_v] = self.widths();
        let Scratch { sum, sum_v, .. } = &mut *self.scratch;
        let scale = problem.softmax_scale();
        sum.iter_mut().for_each(|x| *x *= scale);
        let sums = sum.chunks(width).zip(sum_v.chunks(width_v));
        for (row, (sum, sum_v)) in item.rows.clone().zip(sums) {
            let Some([b, s]) = item.place(item.side, row) else {
                continue;
            };
            let (at, sum) = ([b, s, item.head], &sum[..problem.head_dim()]);
            match item.side {
                Side::Queries => self.outputs.dq.store_row(at, sum),
                Side::Keys => {
                    self.outputs.dk.store_row(at, sum);
                    self.outputs.dv.store_row(at, &sum_v[..problem.head_dim_v()]);
                }
            }
        }
    }
}

impl Item<'_> {
    /// The columns that an owned row sees: keys of a query row, or query rows that see a key.
    fn seen(&self, row: usize) -> Range<usize> {
        let (keys, len_q) = (self.sequence.keys, self.sequence.len_q as i64);
        match self.side {
            Side::Queries => keys.keys(row),
            Side::Keys => {
                let first = (row as i64 - i64::from(keys.hi)).clamp(0, len_q);
                let end = (row as i64 - i64::from(keys.lo) + 1).clamp(first, len_q);
                first as usize..end as usize
            }
        }
    }

    /// Where a row of a side is in its tensors.
    fn place(&self, side: Side, row: usize) -> Option<[usize; 2]> {
        match side {
            Side::Queries => Some(self.sequence.q_row(row)),
            Side::Keys => self.sequence.kv_row(row),
        }
    }
}

fn zeros(buffer: &mut Vec<f32>, len: usize) {
    buffer.clear();
    buffer.resize(len, 0.0);
}

/// Widens rows of a head of a side into `[rows][width]`, zeros past their columns.
#[inline(always)]
fn load(
    to: &mut Vec<f32>,
    tensor: &TensorView<'_>,
    item: &Item<'_>,
    (side, head): (Side, usize),
    rows: Range<usize>,
    width: usize,
) {
    zeros(to, rows.len() * width);
    let columns = tensor.layout().shape[3];
    for (row, to) in rows.zip(to.chunks_mut(width)) {
        if let Some([b, s]) = item.place(side, row) {
            copy_row(tensor, b, s, head, &mut to[..columns]);
        }
    }
}

/// `[rows][width]` as `[width][columns]`, zeros past the rows.
#[inline(always)]
fn transpose(from: &[f32], width: usize, columns: usize, to: &mut Vec<f32>) {
    zeros(to, width * columns);
    for (row, from) in from.chunks(width).enumerate() {
        for (to, &x) in to.chunks_mut(columns).zip(from) {
            to[row] = x;
        }
    }
}

/// The log-sum-exp in log2 units and Δ of the query rows.
#[derive(Clone, Copy)]
enum Statistics<'s> {
    OfRow(f32, f32),
    OfColumns(&'s [f32], &'s [f32]),
}

/// From a row of scores (`q·k`, not scaled) and one of dP to P and dS, as if all were visible.
#[inline(always)]
fn differentiate<S: Simd>(simd: S, problem: &Problem, s: &mut [f32], dp: &mut [f32], statistics: Statistics<'_>) {
    let scale = problem.softmax_scale();
    let log2_e = std::f32::consts::LOG2_E;
    let one = simd.splat_f32s(1.0);
    let vectors = S::as_mut_simd_f32s(s).0.iter_mut().zip(S::as_mut_simd_f32s(dp).0);
    for (i, (s, dp)) in vectors.enumerate() {
        let (lse, delta) = match statistics {
            Statistics::OfRow(lse, delta) => (simd.splat_f32s(lse), simd.splat_f32s(delta)),
            Statistics::OfColumns(lse, delta) => (S::as_simd_f32s(lse).0[i], S::as_simd_f32s(delta).0[i]),
        };
        let (score, factor, slope) = match problem.softcap() {
            None => (*s, scale * log2_e, one),
            Some(cap) => {
                let t = tanh(simd, simd.mul_f32s(*s, simd.splat_f32s(scale / cap)));
                let slope = simd.sub_f32s(one, simd.mul_f32s(t, t));
                (t, cap * log2_e, slope)
            }
        };
        let exponent = simd.mul_add_e_f32s(score, simd.splat_f32s(factor), simd.neg_f32s(lse));
        let p = exp2(simd, exponent);
        *dp = simd.mul_f32s(simd.mul_f32s(p, simd.sub_f32s(*dp, delta)), slope);
        *s = p;
    }
}
