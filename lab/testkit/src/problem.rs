//! Random problems for fuzz tests.

use flashcore_problem::rng::Rng;
use flashcore_problem::{
    Alibi, DType, GradientLayouts, KvLengths, Layout, Mask, Problem, ProblemBuilder, ProblemError, QLengths,
};

/// Limits of [`random_problem`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomLimits {
    /// Maximum length of Q and K/V; where this and `max_work` allow it, half have 256 rows or more.
    pub max_seq: usize,
    /// Maximum of `batch · num_heads · seq_len_q · seq_len_kv · head_dim`.
    pub max_work: u64,
    /// Maximum batch.
    pub max_batch: usize,
    /// Maximum head_dim. Generated values are multiples of 8.
    pub max_head_dim: usize,
    /// Dtypes to choose from; empty means f32, fp16 and bf16.
    pub dtypes: &'static [DType],
    /// Also generate padding that leaves rows not aligned to 16 bytes.
    pub odd_strides: bool,
    /// Generate `head_dim_v ≠ head_dim` in a quarter of the problems.
    pub head_dim_v: bool,
    /// Cycle with the seed through all combinations of packed, cached and paged lengths; without,
    /// lengths are equal.
    pub lengths: bool,
    /// Give a third of the problems sinks, and a third ALiBi; a ninth have both.
    pub head_values: bool,
}

impl Default for RandomLimits {
    /// Lengths up to 640 and 50 M products: the float64 reference takes about 50 ms.
    fn default() -> Self {
        RandomLimits {
            max_seq: 640,
            max_work: 50_000_000,
            max_batch: 3,
            max_head_dim: 256,
            dtypes: &[],
            odd_strides: true,
            head_dim_v: false,
            lengths: false,
            head_values: false,
        }
    }
}

/// Kinds of masks; seed modulo this number selects one.
const MASK_KINDS: u64 = 7;

/// Most query heads.
const MAX_HEADS: usize = 12;

/// Least length of both sequences in a long problem.
const LONG: usize = 256;

/// The problem of a seed. Consecutive seeds cycle through the mask kinds (full, causal, causal
/// top-left, left window, right window, two-sided window, sliding causal).
///
/// ```
/// use flashcore_testkit::{RandomLimits, random_problem};
/// let problem = random_problem(1, &RandomLimits::default())?;
/// assert_eq!(problem, random_problem(1, &RandomLimits::default())?);
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
///
/// # Errors
/// No problem meets the limits, for example `max_head_dim` below 8.
pub fn random_problem(seed: u64, limits: &RandomLimits) -> Result<Problem, ProblemError> {
    let mut rng = Rng::new(seed);
    let dtypes: &[DType] = match limits.dtypes {
        [] => &[DType::F32, DType::F16, DType::BF16],
        given => given,
    };
    let dtype = *rng.pick(dtypes).unwrap_or(&DType::F16);
    let sizes = draw_sizes(&mut rng, limits);
    let head_dim_v = if limits.head_dim_v && rng.chance(0.25) {
        8 * rng.between(1, limits.max_head_dim.min(256) / 8)
    } else {
        sizes.head_dim
    };
    let (q_lengths, kv_lengths) = if limits.lengths {
        draw_kinds(&mut rng, seed, &sizes)
    } else {
        Default::default()
    };
    let builder = Problem::builder()
        .batch(sizes.batch)
        .heads(sizes.num_kv_heads * sizes.group_size, sizes.num_kv_heads)
        .seq_len_q(sizes.seq_len_q)
        .seq_len_kv(sizes.seq_len_kv)
        .head_dim(sizes.head_dim)
        .head_dim_v(head_dim_v)
        .dtype(dtype)
        .q_lengths(q_lengths)
        .kv_lengths(kv_lengths);
    let [q, k, v, o] = draw_layouts(&mut rng, limits, &builder.clone().build()?);
    let mut builder = builder
        .layouts(q, k, v, o)
        .mask(draw_mask(&mut rng, seed % MASK_KINDS, sizes.seq_len_kv))
        .return_lse(rng.chance(0.5));
    if rng.chance(0.25) {
        // Large enough that sometimes rows are fully masked.
        let reach = sizes.seq_len_kv.min(sizes.seq_len_q) + 2;
        let mut offset = || rng.below(2 * reach) as i32 - reach as i32;
        builder = builder.offsets(offset(), offset());
    }
    if rng.chance(0.25) {
        builder = builder.softmax_scale(Problem::default_scale(sizes.head_dim) * (0.25 + 1.75 * rng.unit()));
    }
    if rng.chance(0.2) {
        builder = builder.softcap(5.0 + 45.0 * rng.unit());
    }
    if limits.head_values {
        let mut rng = Rng::stream(seed, 11);
        let dtypes = [DType::F32, DType::F16, DType::BF16];
        builder = builder.sinks(rng.pick(&dtypes).copied().filter(|_| seed.is_multiple_of(3)));
        let slopes = [Alibi::Heads, Alibi::BatchHeads];
        builder = builder.alibi(rng.pick(&slopes).copied().filter(|_| (seed / 3).is_multiple_of(3)));
    }
    builder.build()
}

/// The backward problem of a seed: that of [`random_problem`] in the other direction, with a cache in
/// place of pages, and without sinks and ALiBi. Half have gradients of dense or padded layouts, each by itself;
/// a third are deterministic.
///
/// # Errors
/// As [`random_problem`]; e4m3 among the dtypes.
pub fn random_backward(seed: u64, limits: &RandomLimits) -> Result<Problem, ProblemError> {
    let limits = &RandomLimits {
        head_values: false,
        ..*limits
    };
    let mut problem = random_problem(seed, limits)?;
    if let KvLengths::Paged { .. } = problem.kv_lengths() {
        let builder = ProblemBuilder::from(&problem).kv_lengths(KvLengths::Cache);
        problem = builder.layout(Layout::bshd).build()?;
    }
    if Rng::stream(seed, 12).chance(1.0 / 3.0) {
        problem = ProblemBuilder::from(&problem).deterministic(true).build()?;
    }
    let mut rng = Rng::stream(seed, 9);
    if rng.chance(0.5) {
        return problem.backward();
    }
    let mut one = |layout: &Layout| match rng.below(3) {
        0 => Layout::bshd(layout.shape),
        1 => Layout::bhsd(layout.shape),
        _ => padded(&mut rng, limits.odd_strides, layout.shape),
    };
    let layouts = GradientLayouts {
        dout: one(problem.o_layout()),
        dq: one(problem.q_layout()),
        dk: one(problem.k_layout()),
        dv: one(problem.v_layout()),
    };
    ProblemBuilder::from(&problem).gradient_layouts(layouts).build()
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    num_kv_heads: usize,
    group_size: usize,
    seq_len_q: usize,
    seq_len_kv: usize,
    head_dim: usize,
}

/// Samples sizes until they meet the limits. Long or short is decided first, so that rejecting large
/// sizes does not favour short ones.
fn draw_sizes(rng: &mut Rng, limits: &RandomLimits) -> Sizes {
    let long_possible = limits.max_seq >= LONG && (LONG * LONG * 8) as u64 <= limits.max_work;
    let long = long_possible && rng.chance(0.65);
    let max_seq = limits.max_seq.max(1);
    let heads_kind = rng.below(3);
    for _ in 0..4096 {
        let shortest = if long { LONG } else { 1 };
        let seq_len_q = draw_len(rng, shortest, max_seq);
        // A third have equal lengths.
        let seq_len_kv = match rng.below(3) {
            0 => seq_len_q,
            _ => draw_len(rng, shortest, max_seq),
        };
        let (num_kv_heads, group_size) = match heads_kind {
            0 => (rng.between(1, 4), 1),                 // multi-head
            1 => (rng.between(2, 3), rng.between(2, 4)), // grouped
            _ => (1, rng.between(2, 6)),                 // multi-query
        };
        let sizes = Sizes {
            batch: rng.between(1, limits.max_batch),
            num_kv_heads,
            group_size,
            seq_len_q,
            seq_len_kv,
            head_dim: draw_head_dim(rng, limits.max_head_dim),
        };
        let rows = sizes.batch * num_kv_heads * group_size * seq_len_q;
        let work = rows as u64 * (seq_len_kv * sizes.head_dim) as u64;
        if work <= limits.max_work && num_kv_heads * group_size <= MAX_HEADS {
            return sizes;
        }
    }
    // No sample met the limits: use the smallest problem of this length class.
    let seq_len = if long { LONG } else { 1 };
    Sizes {
        batch: 1,
        num_kv_heads: 1,
        group_size: 1,
        seq_len_q: seq_len,
        seq_len_kv: seq_len,
        head_dim: 8,
    }
}

/// A length in `low..=high`: 1, a prime, a multiple of 64 or anything.
fn draw_len(rng: &mut Rng, low: usize, high: usize) -> usize {
    let any = rng.between(low, high);
    let drawn = match rng.below(8) {
        0 => 1,
        1..=3 => (any..=high).find(|&n| is_prime(n)).unwrap_or(any),
        4..=5 => any.next_multiple_of(64),
        _ => any,
    };
    if (low..=high).contains(&drawn) { drawn } else { any }
}

fn is_prime(n: usize) -> bool {
    n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

/// Half of the time a common head_dim, otherwise any multiple of 8.
fn draw_head_dim(rng: &mut Rng, max: usize) -> usize {
    const USUAL: [usize; 6] = [32, 64, 64, 96, 128, 256];
    let usual = USUAL[rng.below(USUAL.len())];
    let any = 8 * rng.between(1, max.min(256) / 8);
    if rng.chance(0.5) && usual <= max { usual } else { any }
}

fn draw_mask(rng: &mut Rng, kind: u64, seq_len_kv: usize) -> Mask {
    // Mostly within the keys. A window may also exceed them or have width 0.
    let mut width = || Some(rng.below(seq_len_kv + seq_len_kv / 8 + 2) as u32);
    let mask = match kind {
        0 => return Mask::FULL,
        1 => return Mask::CAUSAL,
        2 => return Mask::CAUSAL.top_left(),
        3 => Mask::window(width(), None),
        4 => Mask::window(None, width().map(|w| w + 1)),
        5 => Mask::window(width(), width().map(|w| w + 1)),
        _ => Mask::window(width(), Some(0)),
    };
    if rng.chance(0.3) { mask.top_left() } else { mask }
}

/// The kinds of lengths of a seed: consecutive ones cycle through all combinations.
fn draw_kinds(rng: &mut Rng, seed: u64, sizes: &Sizes) -> (QLengths, KvLengths) {
    // Most room for all sequences, sometimes so little that they cannot all be long.
    let mut total = |bound: usize| rng.between(bound, (sizes.batch * bound).max(bound + 1));
    let (total_q, total_kv) = (total(sizes.seq_len_q), total(sizes.seq_len_kv));
    let (used_q, used_kv) = (seed / 15 % 2 == 1, seed / 30 % 2 == 1);
    let q = match seed % 3 {
        0 => QLengths::Equal,
        kind => QLengths::Packed {
            total: total_q,
            used: used_q && kind == 2,
        },
    };
    let kv = match seed % 5 {
        0 => KvLengths::Equal,
        1 => KvLengths::Packed {
            total: total_kv,
            used: used_kv,
        },
        2 => KvLengths::Cache,
        _ => {
            let page_size = [1, 3, 16, 64][rng.below(4)].min(sizes.seq_len_kv);
            let needed = sizes.seq_len_kv.div_ceil(page_size);
            KvLengths::Paged {
                page_size,
                // Fewer pages than sequences need are shared.
                pages: rng.between(1.max(needed / 2), sizes.batch * needed + 2),
                max_pages: needed + rng.below(3),
            }
        }
    };
    (q, kv)
}

/// Layouts of Q, K, V and O; those of the problem are dense.
fn draw_layouts(rng: &mut Rng, limits: &RandomLimits, problem: &Problem) -> [Layout; 4] {
    let shapes = [
        problem.q_layout(),
        problem.k_layout(),
        problem.v_layout(),
        problem.o_layout(),
    ]
    .map(|layout| layout.shape);
    match rng.below(5) {
        0 => shapes.map(Layout::bshd),
        1 => shapes.map(Layout::bhsd),
        2 => {
            // Slices of one [batch, seq, q heads + k heads + v heads, head_dim] buffer; O is dense.
            let row: usize = shapes[..3].iter().map(|[.., heads, columns]| heads * columns).sum();
            let packed = |shape: [usize; 4]| Layout {
                shape,
                strides: [(shape[1] * row) as i64, row as i64, shape[3] as i64, 1],
            };
            let [q, k, v, o] = shapes;
            [packed(q), packed(k), packed(v), Layout::bshd(o)]
        }
        3 => shapes.map(|shape| padded(rng, limits.odd_strides, shape)),
        _ => {
            // A separate rule for each tensor.
            let mut one = |index: usize| match rng.below(4) {
                0 => Layout::bshd(shapes[index]),
                1 => Layout::bhsd(shapes[index]),
                2 if index < 3 => {
                    // Broadcast batch, as PyTorch's `expand`; inputs only.
                    let mut layout = Layout::bshd(shapes[index]);
                    layout.strides[0] = 0;
                    layout
                }
                _ => padded(rng, limits.odd_strides, shapes[index]),
            };
            [one(0), one(1), one(2), one(3)]
        }
    }
}

/// Adds gaps after every head, row and sequence. `seq` is inside or outside `heads`.
fn padded(rng: &mut Rng, odd: bool, shape: [usize; 4]) -> Layout {
    let unit = if odd && rng.chance(0.3) { 1 } else { 8 };
    let heads_inside = rng.chance(0.5);
    let mut pad = || unit * rng.below(4);
    let [_, seq, heads, dim] = shape;
    let element = dim + pad();
    let (inner, outer) = if heads_inside { (heads, seq) } else { (seq, heads) };
    let outer_stride = inner * element + pad();
    let batch_stride = outer * outer_stride + pad();
    let (seq_stride, head_stride) = if heads_inside {
        (outer_stride, element)
    } else {
        (element, outer_stride)
    };
    Layout {
        shape,
        strides: [batch_stride as i64, seq_stride as i64, head_stride as i64, 1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_problem::CausalAlign;

    const SEEDS: u64 = 1400;

    fn share(of: impl Fn(&Problem) -> bool, limits: &RandomLimits) -> f64 {
        let hits = (0..SEEDS)
            .filter(|&seed| of(&random_problem(seed, limits).unwrap()))
            .count();
        hits as f64 / SEEDS as f64
    }

    #[test]
    fn limits_are_kept() {
        let tight = RandomLimits {
            max_seq: 300,
            max_work: 3_000_000,
            max_batch: 2,
            max_head_dim: 64,
            dtypes: &[DType::BF16],
            odd_strides: false,
            head_dim_v: false,
            lengths: false,
            head_values: false,
        };
        for seed in 0..SEEDS {
            let p = random_problem(seed, &tight).unwrap();
            let work = p.batch() * p.num_heads() * p.seq_len_q() * p.seq_len_kv() * p.head_dim();
            assert!(work <= 3_000_000, "{p}");
            assert!(
                p.seq_len_q() <= 300 && p.seq_len_kv() <= 300 && p.head_dim() <= 64,
                "{p}"
            );
            assert!(
                p.batch() <= 2 && p.num_heads() <= MAX_HEADS && p.dtype() == DType::BF16,
                "{p}"
            );
        }
    }

    #[test]
    fn half_are_long_even_with_little_work() {
        for max_work in [2_000_000, 50_000_000] {
            let limits = RandomLimits {
                max_work,
                ..RandomLimits::default()
            };
            let long = share(|p| p.seq_len_q() >= LONG && p.seq_len_kv() >= LONG, &limits);
            assert!(long >= 0.55, "{long} of the problems are long");
        }
    }

    #[test]
    fn every_mask_kind_is_at_least_a_tenth() {
        let limits = RandomLimits::default();
        let kinds: [fn(&Mask) -> bool; 7] = [
            Mask::is_full,
            |m| *m == Mask::CAUSAL,
            |m| *m == Mask::CAUSAL.top_left(),
            |m| m.window_left.is_some() && m.window_right.is_none(),
            |m| m.window_left.is_none() && m.window_right.is_some_and(|w| w > 0),
            |m| m.window_left.is_some() && m.window_right.is_some_and(|w| w > 0),
            |m| m.window_left.is_some() && m.window_right == Some(0),
        ];
        for (i, kind) in kinds.iter().enumerate() {
            let found = share(|p| kind(&p.mask()), &limits);
            assert!(found >= 0.1, "mask kind {i}: {found}");
        }
    }

    #[test]
    fn every_feature_is_generated() {
        let limits = RandomLimits {
            head_dim_v: true,
            ..RandomLimits::default()
        };
        type Feature = (&'static str, f64, fn(&Problem) -> bool);
        let features: [Feature; 20] = [
            ("f32", 0.25, |p| p.dtype() == DType::F32),
            ("fp16", 0.25, |p| p.dtype() == DType::F16),
            ("bf16", 0.25, |p| p.dtype() == DType::BF16),
            ("multi-head", 0.25, |p| p.group_size() == 1),
            ("grouped", 0.25, |p| p.group_size() > 1 && p.num_kv_heads() > 1),
            ("multi-query", 0.25, |p| p.group_size() > 1 && p.num_kv_heads() == 1),
            ("one query row", 0.02, |p| p.seq_len_q() == 1),
            ("one key", 0.02, |p| p.seq_len_kv() == 1),
            ("prime length", 0.2, |p| is_prime(p.seq_len_kv())),
            ("seq_q != seq_kv", 0.4, |p| p.seq_len_q() != p.seq_len_kv()),
            ("usual head_dim", 0.3, |p| p.head_dim() % 32 == 0),
            ("odd head_dim", 0.2, |p| p.head_dim() % 16 == 8),
            ("head_dim_v", 0.15, |p| p.head_dim_v() != p.head_dim()),
            ("offsets", 0.2, |p| p.q_offset() != 0 || p.kv_offset() != 0),
            ("softcap", 0.15, |p| p.softcap().is_some()),
            ("lse", 0.4, |p| p.return_lse()),
            ("dense", 0.2, |p| {
                [p.q_layout(), p.k_layout()]
                    .iter()
                    .all(|l| **l == Layout::bshd(l.shape))
            }),
            ("gaps", 0.3, |p| p.k_layout().span() > p.k_layout().num_elements()),
            ("broadcast batch", 0.01, |p| {
                p.batch() > 1 && p.k_layout().strides[0] == 0
            }),
            ("empty rows", 0.05, |p| {
                (0..p.seq_len_q()).any(|row| p.visible_keys(row).is_empty())
            }),
        ];
        for (name, at_least, feature) in features {
            let found = share(feature, &limits);
            assert!(found >= at_least, "{name}: {found}");
        }
        let top_left = share(
            |p| !p.mask().is_full() && p.mask().align == CausalAlign::TopLeft,
            &limits,
        );
        assert!(top_left >= 0.2, "top-left: {top_left}");
    }

    #[test]
    fn zero_limits_give_the_smallest_problem() {
        let limits = RandomLimits {
            max_seq: 0,
            max_work: 0,
            ..RandomLimits::default()
        };
        assert_eq!(random_problem(3, &limits).unwrap().seq_len_q(), 1);
    }
}
