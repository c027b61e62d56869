//! The kernel for few query rows, as in decode: the heads that share K and V, one row each.
//!
//! Panels would leave most lanes idle, so a vector holds consecutive columns of one row of K, V, Q
//! or O. Each vector of K or V is loaded once for four query rows:
//!
//! - `S = Q·Kᵀ`: products are summed lane by lane, and once per score across lanes.
//! - Softmax: a vector holds scores of consecutive keys.
//! - `O += P·V`: each element of P is broadcast and multiplied with a row of V.
//!
//! K blocks start at multiples of `tile_kv`, as in [`crate::tile`].

use std::ops::Range;

use pulp::Simd;

use crate::panel::soft_cap;
use crate::product::multiply_add;
use crate::simd::{LOWEST, exp2_of_product};
use crate::tile::{Store, TileTask};
use crate::workspace::{LINE, Workspace, split_aligned};

/// Rows of K or V that are widened at a time: with head_dim 128 they take 8 KiB of the L1 cache.
const PACKED: usize = 16;

/// Query rows of a micro-kernel.
const MICRO_ROWS: usize = 4;

/// `NV`: vectors of columns, or keys, of a micro-kernel.
#[inline(always)]
pub(crate) fn run<S: Simd, const NV: usize>(
    task: &TileTask<'_>,
    simd: S,
    workspace: &mut Workspace,
    store: &mut Store<'_>,
) {
    let (problem, rows) = (task.problem, task.rows);
    let dims = [problem.head_dim(), problem.head_dim_v()];
    let [dim, dim_v, width] = [dims[0], dims[1], task.tile_kv].map(|size| size.next_multiple_of(LINE));
    // Q and O, which is not normalised, `[rows][head_dim]`; scores, later P, of one K block, `[rows][tile_kv]`; widened
    // rows of K or V, `[PACKED][head_dim]`; maxima and sums. Rows are padded with zeros to whole cache lines.
    let packed = PACKED * dim.max(dim_v);
    let sizes = [rows * dim, rows * dim_v, rows * width, packed, rows, rows];
    let [q, o, s, packed, max, sum] = split_aligned(&mut workspace.floats, sizes).map(|slice| {
        slice.fill(0.0);
        slice
    });
    for (row, q) in q.chunks_exact_mut(dim).enumerate() {
        task.copy_q(row, &mut q[..dims[0]]);
    }
    max.fill(f32::NEG_INFINITY);
    let ranges = (0..rows).map(|row| task.visible(row)).filter(|range| !range.is_empty());
    let any = ranges
        .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
        .unwrap_or(0..0);

    let mut block = any.start..any.start;
    while block.end < any.end {
        let next = (block.end / task.tile_kv + 1) * task.tile_kv;
        block = block.end..next.min(any.end);
        for keys in chunks(block.clone()) {
            let k = task.k.pack(keys.clone(), dim, packed);
            let first = keys.start - block.start;
            let mut row = 0;
            while row < rows {
                let (q, s) = (&q[row * dim..], &mut s[row * width + first..]);
                row += match rows - row {
                    MICRO_ROWS.. => scores::<S, MICRO_ROWS, NV>(simd, q, k, dim, s, width),
                    2.. => scores::<S, 2, 4>(simd, q, k, dim, s, width),
                    _ => scores::<S, 1, 4>(simd, q, k, dim, s, width),
                };
            }
        }
        for row in 0..rows {
            let s = &mut s[row * width..][..block.len().next_multiple_of(LINE)];
            if let Some(cap) = problem.softcap() {
                soft_cap(simd, S::as_mut_simd_f32s(s).0, task.scale.rest, cap);
            }
            if let Some((slope, position)) = task.bias(row, block.start) {
                for (key, s) in s.iter_mut().enumerate() {
                    *s -= slope * (position - key as f32).abs();
                }
            }
            let visible = task.visible(row);
            let within = |key: usize| key.clamp(block.start, block.end) - block.start;
            s[..within(visible.start)].fill(f32::NEG_INFINITY);
            s[within(visible.end)..].fill(f32::NEG_INFINITY);
            let rescale = softmax(simd, s, task.scale.exponent(), &mut max[row], &mut sum[row]);
            o[row * dim_v..][..dim_v].iter_mut().for_each(|x| *x *= rescale);
        }
        for keys in chunks(block.clone()) {
            let v = task.v.pack(keys.clone(), dim_v, packed);
            let p = (&s[keys.start - block.start..], width, keys.len());
            multiply_add::<S, NV>(simd, p, v, o, dim_v);
        }
    }
    for (row, o) in o.chunks_exact_mut(dim_v).enumerate() {
        task.store(store, row, max[row], sum[row], &mut o[..dims[1]]);
    }
}

/// The keys of a block, [`PACKED`] at a time.
#[inline(always)]
fn chunks(block: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = block.end;
    block.step_by(PACKED).map(move |first| first..(first + PACKED).min(end))
}

/// Scores of `R` rows and all of the keys of `k`, `NK` keys at a time. Returns `R`.
#[inline(always)]
fn scores<S: Simd, const R: usize, const NK: usize>(
    simd: S,
    q: &[f32],
    k: &[f32],
    dim: usize,
    s: &mut [f32],
    width: usize,
) -> usize {
    let vectors = dim / S::F32_LANES;
    let q: [&[S::f32s]; R] = std::array::from_fn(|r| &S::as_simd_f32s(&q[r * dim..][..dim]).0[..vectors]);
    let keys = k.len() / dim;
    for first in (0..keys).step_by(NK) {
        // If fewer keys remain, the last key fills the missing ones.
        let row = |j: usize| &k[(first + j).min(keys - 1) * dim..][..dim];
        let k: [&[S::f32s]; NK] = std::array::from_fn(|j| &S::as_simd_f32s(row(j)).0[..vectors]);
        let mut acc = [[simd.splat_f32s(0.0); NK]; R];
        for d in 0..vectors {
            for (acc, q) in acc.iter_mut().zip(&q) {
                for (acc, k) in acc.iter_mut().zip(&k) {
                    *acc = simd.mul_add_e_f32s(q[d], k[d], *acc);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (s, &acc) in s[r * width..][first..keys.min(first + NK)].iter_mut().zip(acc) {
                *s = simd.reduce_sum_f32s(acc);
            }
        }
    }
    R
}

/// Replaces a row's scores by `exp2(factor·(s − max))` with the new running maximum and adds them to
/// the running sum. Returns the rescale factor of previous sums and outputs.
#[inline(always)]
fn softmax<S: Simd>(simd: S, s: &mut [f32], factor: f32, max: &mut f32, sum: &mut f32) -> f32 {
    let (s, _) = S::as_mut_simd_f32s(s);
    let mut block_max = simd.splat_f32s(f32::NEG_INFINITY);
    for &s in s.iter() {
        block_max = simd.max_f32s(block_max, s);
    }
    let new_max = max.max(simd.reduce_max_f32s(block_max));
    // A fully masked row keeps the maximum −∞. Subtract 0 there, because −∞ − −∞ is NaN.
    let base = if new_max == f32::NEG_INFINITY { 0.0 } else { new_max };
    let rescale = ((*max - base) * factor).exp2();
    *max = new_max;
    let least = simd.splat_f32s(LOWEST / factor);
    let (factor, base) = (simd.splat_f32s(factor), simd.splat_f32s(base));
    let mut total = simd.splat_f32s(0.0);
    for s in s {
        *s = exp2_of_product(simd, simd.sub_f32s(*s, base), factor, least);
        total = simd.add_f32s(total, *s);
    }
    *sum = *sum * rescale + simd.reduce_sum_f32s(total);
    rescale
}
