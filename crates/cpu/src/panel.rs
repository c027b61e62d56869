//! The inner loops: one panel of query rows against one K block. [`crate::tile`] describes the
//! layout.

use std::ops::Range;

use flashcore_problem::Problem;
use pulp::Simd;

use crate::scale::Scale;
use crate::simd::{LOWEST, exp2_of_product, tanh};

/// Rows of K, or columns of V, per step of the micro-kernel. Every head_dim is a multiple.
const MICRO_ROWS: usize = 4;

/// Upper limit of rows in a panel: four vectors of sixteen lanes.
const MAX_PANEL: usize = 64;

/// ALiBi of the rows of a panel, in units of the scores that [`softmax`] takes.
pub(crate) struct PanelBias {
    slopes: [f32; MAX_PANEL],
    /// Positions relative to a key.
    positions: [f32; MAX_PANEL],
}

impl PanelBias {
    /// From slopes and positions of its rows.
    pub(crate) fn new(rows: impl Iterator<Item = (f32, f32)>) -> PanelBias {
        let mut bias = PanelBias {
            slopes: [0.0; MAX_PANEL],
            positions: [0.0; MAX_PANEL],
        };
        for (lane, row) in rows.enumerate() {
            (bias.slopes[lane], bias.positions[lane]) = row;
        }
        bias
    }

    /// `s ← s − slope·|position − key|`, keys counted from the first.
    #[inline(always)]
    fn add<S: Simd, const NV: usize>(&self, simd: S, s: &mut [[S::f32s; NV]]) {
        let slopes = &panels::<S, NV>(&self.slopes)[0];
        let positions = &panels::<S, NV>(&self.positions)[0];
        for (key, s) in s.iter_mut().enumerate() {
            let key = simd.splat_f32s(key as f32);
            for ((s, &slope), &position) in s.iter_mut().zip(slopes).zip(positions) {
                let distance = simd.abs_f32s(simd.sub_f32s(position, key));
                *s = simd.sub_f32s(*s, simd.mul_f32s(slope, distance));
            }
        }
    }
}

/// One step of the online softmax: updates a panel's maxima, sums and outputs with one K block.
pub(crate) struct PanelBlock<'p> {
    pub(crate) problem: &'p Problem,
    pub(crate) scale: Scale,
    /// The block's rows of K, `[keys][head_dim]`.
    pub(crate) k: &'p [f32],
    /// The block's rows of V, `[keys][head_dim_v]`.
    pub(crate) v: &'p [f32],
    pub(crate) block: Range<usize>,
    /// The visible keys of each row.
    pub(crate) ranges: &'p [Range<usize>],
    /// Every row of the panel sees every key of the block.
    pub(crate) all_visible: bool,
    /// Of the block's first key.
    pub(crate) bias: Option<PanelBias>,
    /// `[head_dim][panel]`.
    pub(crate) q: &'p [f32],
    /// `[keys or more][panel]`.
    pub(crate) s: &'p mut [f32],
    /// `[head_dim_v][panel]`.
    pub(crate) o: &'p mut [f32],
    /// `[panel]`.
    pub(crate) max: &'p mut [f32],
    /// `[panel]`.
    pub(crate) sum: &'p mut [f32],
}

impl PanelBlock<'_> {
    /// `NV`: vectors per panel.
    #[inline(always)]
    pub(crate) fn run<S: Simd, const NV: usize>(self, simd: S) {
        let q = panels::<S, NV>(self.q);
        let s = &mut panels_mut::<S, NV>(self.s)[..self.block.len()];
        let o = panels_mut::<S, NV>(self.o);
        let (Some(max), Some(sum)) = (
            panels_mut::<S, NV>(self.max).first_mut(),
            panels_mut::<S, NV>(self.sum).first_mut(),
        ) else {
            return;
        };

        scores(simd, self.k, q, s);
        if let Some(cap) = self.problem.softcap() {
            soft_cap(simd, s.as_flattened_mut(), self.scale.rest, cap);
        }
        if let Some(bias) = &self.bias {
            bias.add(simd, s);
        }
        if !self.all_visible {
            hide(simd, s, self.block, self.ranges);
        }
        let rescale = softmax(simd, s, self.scale.exponent(), max, sum);
        accumulate(simd, self.v, s, rescale, o);
    }
}

/// Reinterprets memory as vectors, `NV` per panel.
#[inline(always)]
fn panels<S: Simd, const NV: usize>(floats: &[f32]) -> &[[S::f32s; NV]] {
    S::as_simd_f32s(floats).0.as_chunks().0
}

#[inline(always)]
fn panels_mut<S: Simd, const NV: usize>(floats: &mut [f32]) -> &mut [[S::f32s; NV]] {
    S::as_mut_simd_f32s(floats).0.as_chunks_mut().0
}

/// `acc[i] += a[i] · b` for the rows of the micro-kernel.
#[inline(always)]
fn multiply_add<S: Simd, const NV: usize>(
    simd: S,
    acc: &mut [[S::f32s; NV]; MICRO_ROWS],
    a: [f32; MICRO_ROWS],
    b: &[S::f32s; NV],
) {
    for (acc, a) in acc.iter_mut().zip(a) {
        let a = simd.splat_f32s(a);
        for (acc, &b) in acc.iter_mut().zip(b) {
            *acc = simd.mul_add_e_f32s(a, b, *acc);
        }
    }
}

/// Stores the accumulators that fit in `to`. The loop copies vector by vector, because assigning
/// whole arrays would go through the stack and `memcpy`.
#[inline(always)]
fn store<V: Copy, const NV: usize>(to: &mut [[V; NV]], acc: &[[V; NV]; MICRO_ROWS]) {
    for (to, acc) in to.iter_mut().zip(acc) {
        for (to, &acc) in to.iter_mut().zip(acc) {
            *to = acc;
        }
    }
}

/// `Sᵀ = K·Qᵀ`.
#[inline(always)]
fn scores<S: Simd, const NV: usize>(simd: S, k: &[f32], q: &[[S::f32s; NV]], s: &mut [[S::f32s; NV]]) {
    let head_dim = q.len();
    for (i, s) in s.chunks_mut(MICRO_ROWS).enumerate() {
        let keys = &k[i * MICRO_ROWS * head_dim..];
        // If fewer than four keys remain, the last key fills the missing rows.
        let rows: [&[f32]; MICRO_ROWS] = std::array::from_fn(|r| &keys[r.min(s.len() - 1) * head_dim..][..head_dim]);
        let mut acc = [[simd.splat_f32s(0.0); NV]; MICRO_ROWS];
        // Zipped, not indexed: checks of four indices cost more than half of the loop's time.
        let [a, b, c, d] = rows.map(<[f32]>::iter);
        for ((((q, &a), &b), &c), &d) in q.iter().zip(a).zip(b).zip(c).zip(d) {
            multiply_add(simd, &mut acc, [a, b, c, d], q);
        }
        store(s, &acc);
    }
}

/// `s ← cap·tanh(s·scale / cap)`.
#[inline(always)]
pub(crate) fn soft_cap<S: Simd>(simd: S, s: &mut [S::f32s], scale: f32, cap: f32) {
    let (inner, outer) = (simd.splat_f32s(scale / cap), simd.splat_f32s(cap));
    for s in s {
        *s = simd.mul_f32s(outer, tanh(simd, simd.mul_f32s(*s, inner)));
    }
}

/// Sets the scores of masked keys to −∞.
#[inline(always)]
fn hide<S: Simd, const NV: usize>(simd: S, s: &mut [[S::f32s; NV]], block: Range<usize>, ranges: &[Range<usize>]) {
    // Each row's range relative to the block. These small integers are exact in f32.
    let (mut start, mut end) = ([0.0; MAX_PANEL], [0.0; MAX_PANEL]);
    for ((start, end), range) in start.iter_mut().zip(&mut end).zip(ranges) {
        let within = |key: usize| (key.clamp(block.start, block.end) - block.start) as f32;
        (*start, *end) = (within(range.start), within(range.end));
    }
    let (start, end) = (&panels::<S, NV>(&start)[0], &panels::<S, NV>(&end)[0]);
    let hidden = simd.splat_f32s(f32::NEG_INFINITY);
    for (key, s) in s.iter_mut().enumerate() {
        let key = simd.splat_f32s(key as f32);
        for ((s, &start), &end) in s.iter_mut().zip(start).zip(end) {
            *s = simd.select_f32s(simd.less_than_f32s(key, start), hidden, *s);
            *s = simd.select_f32s(simd.less_than_f32s(key, end), *s, hidden);
        }
    }
}

/// Replaces scores by `exp2(factor·(s − max))` with the new running maximum and adds them to the
/// running sum. Returns the rescale factor of previous sums and outputs.
///
/// The maximum is subtracted before the product: `factor·s − max`, in one FMA with a rounded
/// maximum, is wrong by powers of two where scores are large.
#[inline(always)]
fn softmax<S: Simd, const NV: usize>(
    simd: S,
    s: &mut [[S::f32s; NV]],
    factor: f32,
    max: &mut [S::f32s; NV],
    sum: &mut [S::f32s; NV],
) -> [S::f32s; NV] {
    let lowest = simd.splat_f32s(f32::NEG_INFINITY);
    let (factor, least) = (simd.splat_f32s(factor), simd.splat_f32s(LOWEST / factor));
    let mut block_max = [lowest; NV];
    for s in s.iter() {
        for (max, &s) in block_max.iter_mut().zip(s) {
            *max = simd.max_f32s(*max, s);
        }
    }
    let mut base = block_max;
    let mut rescale = block_max;
    for v in 0..NV {
        let new_max = simd.max_f32s(max[v], block_max[v]);
        // A fully masked row keeps the maximum −∞. Subtract 0 there, because −∞ − −∞ is NaN.
        let masked = simd.equal_f32s(new_max, lowest);
        base[v] = simd.select_f32s(masked, simd.splat_f32s(0.0), new_max);
        // Twice in full: with debug assertions a closure is not inlined, and computes without the instruction set.
        rescale[v] = exp2_of_product(simd, simd.sub_f32s(max[v], base[v]), factor, least);
        max[v] = new_max;
        sum[v] = simd.mul_f32s(sum[v], rescale[v]);
    }
    let mut total = *sum;
    for s in s.iter_mut() {
        for v in 0..NV {
            s[v] = exp2_of_product(simd, simd.sub_f32s(s[v], base[v]), factor, least);
            total[v] = simd.add_f32s(total[v], s[v]);
        }
    }
    *sum = total;
    rescale
}

/// `Oᵀ ← rescale·Oᵀ + Vᵀ·Pᵀ`.
#[inline(always)]
fn accumulate<S: Simd, const NV: usize>(
    simd: S,
    v: &[f32],
    p: &[[S::f32s; NV]],
    rescale: [S::f32s; NV],
    o: &mut [[S::f32s; NV]],
) {
    let v = v.as_chunks::<MICRO_ROWS>().0;
    let (o, _) = o.as_chunks_mut::<MICRO_ROWS>();
    let quads = o.len(); // groups of four columns in a row of V
    for (column, o) in o.iter_mut().enumerate() {
        let mut acc: [[S::f32s; NV]; MICRO_ROWS] =
            std::array::from_fn(|i| std::array::from_fn(|v| simd.mul_f32s(o[i][v], rescale[v])));
        for (v, p) in v.chunks_exact(quads).zip(p) {
            multiply_add(simd, &mut acc, v[column], p);
        }
        store(o, &acc);
    }
}
