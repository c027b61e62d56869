//! Random appends for fuzz tests: shapes, strides, kinds, values and data of a seed.

use flashcore_problem::rng::Rng;
use flashcore_problem::{Append, AppendPlace, AppendValues, DType, Layout, Rotary, SlotMapping, Tensor};

use crate::AppendReference;

/// An append with all that it takes.
#[derive(Clone, Debug)]
pub struct AppendCase {
    /// Shapes and kinds.
    pub append: Append,
    /// New rows of K. Rows of no sequence are NaN.
    pub k_new: Tensor,
    /// New rows of V.
    pub v_new: Tensor,
    /// The cache of K, poisoned: whatever is written is seen.
    pub k_cache: Tensor,
    /// The cache of V, poisoned.
    pub v_cache: Tensor,
    /// Cosines, sines and Q, if rows are rotated.
    pub rotary: Option<[Tensor; 3]>,
    /// The values of its arrays.
    pub values: AppendValues<Vec<i32>>,
    /// The slots, if it has them.
    pub slots: Option<Vec<i64>>,
    narrow_slots: Vec<i32>,
}

impl AppendCase {
    /// The arrays as slices.
    pub fn values(&self) -> AppendValues<&[i32]> {
        self.values.map(Vec::as_slice)
    }

    /// The slots, as wide as the append has them.
    pub fn slots(&self) -> Option<SlotMapping<'_>> {
        let wide = matches!(self.append.place, AppendPlace::Slots { wide: true });
        self.slots.as_ref().map(|slots| {
            if wide {
                SlotMapping::I64(slots)
            } else {
                SlotMapping::I32(&self.narrow_slots)
            }
        })
    }

    /// What it must leave.
    pub fn reference(&self) -> AppendReference {
        AppendReference::new(self)
    }

    /// Replaces some of its values by those that contradict the append: lengths, parts, pages, slots
    /// and positions outside their bounds. With `starts` those of packed sequences, too, which may then
    /// overlap.
    pub fn spoil(&mut self, seed: u64, starts: bool) {
        let mut rng = Rng::stream(seed, 11);
        let hostile = [i32::MIN, -2, -1, 1 << 20, i32::MAX - 1, i32::MAX];
        let AppendValues {
            cache_seqlens,
            cu_seqlens_k_new,
            cu_seqlens_q,
            cache_batch_idx,
            leftpad_k,
            block_table,
            seqlens_rotary,
        } = &mut self.values;
        let mut arrays = vec![cache_seqlens, cache_batch_idx, leftpad_k, block_table, seqlens_rotary];
        if starts {
            arrays.extend([cu_seqlens_k_new, cu_seqlens_q]);
        }
        for value in arrays.into_iter().flatten().flatten() {
            if rng.chance(0.4) {
                *value = *rng.pick(&hostile).unwrap_or(&-1);
            }
        }
        let most = self.append.slots() as i64;
        for slot in self.slots.iter_mut().flatten() {
            if rng.chance(0.4) {
                let narrow = i64::from(*rng.pick(&hostile).unwrap_or(&-1));
                let wide = [i64::MIN, -(1 << 33), 1 << 32, i64::MAX];
                *slot = match self.append.place {
                    AppendPlace::Slots { wide: true } if rng.chance(0.5) => *rng.pick(&wide).unwrap_or(&-1),
                    _ if rng.chance(0.3) => most,
                    _ => narrow,
                };
            }
        }
        self.narrow();
    }

    fn narrow(&mut self) {
        let slots = self.slots.iter().flatten();
        self.narrow_slots = slots.map(|&slot| slot as i32).collect();
    }
}

/// The append of a seed: every place, dtype and option; head sizes that no vector access divides;
/// padded rows and heads; sequences without rows, full caches, pages and parts in any order, tables
/// with holes, slots of −1; infinities and NaN.
///
/// ```
/// use flashcore_testkit::random_append;
/// let case = random_append(1);
/// assert!(case.append.findings(&case.values(), case.slots()).is_empty());
/// ```
pub fn random_append(seed: u64) -> AppendCase {
    let mut rng = Rng::stream(seed, 10);
    let dtype = DType::ALL[seed as usize % 4];
    let batch = rng.between(1, 5);
    let heads = rng.between(1, 3);
    let dims = match dtype {
        DType::E4M3 => [4, 16, 24, 64, 6],
        _ => [16, 24, 64, 7, 10],
    };
    let mut dim = || dims[rng.below(dims.len())];
    let (head_dim, head_dim_v) = (dim(), dim());
    let head_dim_v = if rng.chance(0.5) { head_dim } else { head_dim_v };
    let packed = rng.chance(0.5);
    let counts: Vec<usize> = (0..batch).map(|_| if packed { rng.up_to(9) } else { 0 }).collect();
    let equal = rng.up_to(9);
    let counts = if packed { counts } else { vec![equal; batch] };
    let rows: usize = counts.iter().sum();
    let [first, seq_new] = if packed {
        [1, rows + rng.below(3)]
    } else {
        [batch, equal]
    };
    let most = counts.iter().copied().max().unwrap_or(0);
    let capacity = most.max(1) + rng.below(40);

    let (kind, with_idx) = (rng.below(3), rng.chance(0.4));
    let new = [head_dim, head_dim_v].map(|dim| layout(&mut rng, dtype, [first, seq_new, heads, dim]));
    let (page_size, tables) = (
        [1, 3, 8, 16][rng.below(4)],
        batch + if with_idx { rng.below(3) } else { 0 },
    );
    let max_pages = capacity.div_ceil(page_size);
    let [pages, page_size] = match kind {
        0 => [tables, capacity],
        1 => [tables * max_pages + rng.below(4), page_size],
        _ => [(rows + 5).div_ceil(page_size), page_size],
    };
    let cache = [head_dim, head_dim_v].map(|dim| layout(&mut rng, dtype, [pages, page_size, heads, dim]));
    let base = match kind {
        0 => Append::to_cache(dtype, new, cache),
        1 => Append::to_pages(dtype, new, cache, max_pages),
        _ => Append::to_slots(dtype, new, cache, rng.chance(0.5)),
    };
    let to_slots = kind == 2;
    let seqused_k = !to_slots && rng.chance(0.6);
    let mut append = Append {
        batch,
        packed,
        batch_idx: with_idx && !to_slots,
        seqused_k,
        leftpad: seqused_k && rng.chance(0.5),
        seq_len_kv: if to_slots { 100 } else { capacity },
        ..base
    };
    if let AppendPlace::Paged { tables: given, .. } = &mut append.place {
        *given = tables;
    }

    let mut values = AppendValues::default();
    let starts = |counts: &[usize]| {
        let ends = counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end as i32)
        });
        std::iter::once(0).chain(ends).collect::<Vec<_>>()
    };
    let lengths: Vec<usize> = counts.iter().map(|count| rng.up_to(capacity - count)).collect();
    let as_i32 = |values: &[usize]| values.iter().map(|&value| value as i32).collect::<Vec<_>>();
    if rng.chance(0.6) {
        append.rotary = Some(draw_rotary(&mut rng, &append));
    }
    if let Some(rotary) = &mut append.rotary {
        let q_counts: Vec<usize> = counts
            .iter()
            .map(|&count| if rng.chance(0.7) { count } else { 1 })
            .collect();
        let same = rng.between(0, most);
        let total: usize = q_counts.iter().sum();
        let shape = if rotary.packed_q {
            [1, total + rng.below(2), heads * 2, head_dim]
        } else {
            [batch, same, heads * 2, head_dim]
        };
        (rotary.q, rotary.q_out) = (layout(&mut rng, dtype, shape), layout(&mut rng, dtype, shape));
        values.cu_seqlens_q = rotary.packed_q.then(|| starts(&q_counts));
        // So that every row has its position in the tables.
        rotary.positions = append.seq_len_kv + most.max(same) + 1;
        values.seqlens_rotary = rotary.seqlens.then(|| {
            let firsts = (0..batch).map(|_| rng.below(append.seq_len_kv) as i32);
            firsts.collect()
        });
    }
    let entries = append.entries();
    values.cache_seqlens = entries.cache_seqlens.map(|_| as_i32(&lengths));
    values.cu_seqlens_k_new = entries.cu_seqlens_k_new.map(|_| starts(&counts));
    let parts = shuffled(&mut rng, tables);
    values.cache_batch_idx = entries.cache_batch_idx.map(|_| as_i32(&parts[..batch]));
    values.leftpad_k = entries.leftpad_k.map(|_| {
        let paddings = lengths.iter().map(|&len| rng.up_to(len) as i32);
        paddings.collect()
    });
    values.block_table = entries.block_table.map(|entries| {
        let mut table = as_i32(&shuffled(&mut rng, pages)[..entries]);
        for (entry, page) in table.iter_mut().enumerate() {
            let (of, entry) = (entry / max_pages, entry % max_pages);
            let sequence = if append.batch_idx {
                parts[..batch].iter().position(|part| *part == of)
            } else {
                Some(of)
            };
            let is_written = sequence.is_some_and(|b| {
                let keys = lengths[b]..lengths[b] + counts[b];
                keys.start < (entry + 1) * page_size && entry * page_size < keys.end
            });
            if !is_written && rng.chance(0.5) {
                *page = [-1, pages as i32, i32::MAX][rng.below(3)];
            }
        }
        table
    });
    let slots = to_slots.then(|| {
        let order = shuffled(&mut rng, append.slots());
        let slot = |row: usize| {
            if row < rows && !order[row % order.len()].is_multiple_of(5) {
                order[row] as i64
            } else {
                -1
            }
        };
        (0..append.new_rows()).map(slot).collect()
    });

    let mut tensor = |layout: Layout, used: usize| {
        let odd = [f32::NAN, f32::INFINITY, -f32::INFINITY, 0.0, -0.0, 1e-7, 300.0];
        Tensor::from_fn(dtype, layout, |b, s, _, _| {
            if packed && b * layout.shape[1] + s >= used {
                f32::NAN
            } else if rng.chance(0.01) {
                odd[rng.below(odd.len())]
            } else {
                rng.normal()
            }
        })
    };
    let (k_new, v_new) = (tensor(append.k_new, rows), tensor(append.v_new, rows));
    let rotary = append.rotary.map(|rotary| {
        let q = tensor(rotary.q, usize::MAX);
        let mut angles = Rng::stream(seed, 12);
        let mut table = || Tensor::from_fn(dtype, rotary.table(), |_, _, _, _| 2.0 * angles.unit() - 1.0);
        [table(), table(), q]
    });
    let poisoned = |layout| Tensor::poisoned(dtype, layout);
    let mut case = AppendCase {
        append,
        k_new,
        v_new,
        k_cache: poisoned(append.k_cache),
        v_cache: poisoned(append.v_cache),
        rotary,
        values,
        slots,
        narrow_slots: Vec::new(),
    };
    case.narrow();
    case
}

/// Rows of K and Q that have each pair of e4m3 numbers, and tables of any numbers: row `i` has the pairs `(i, 0)`,
/// `(i, 1)`, ...
pub fn e4m3_pairs(interleaved: bool) -> AppendCase {
    let (rows, table) = ([1, 256, 1, 512].into(), [1, 256, 1, 256].into());
    let rotary = Rotary {
        interleaved,
        ..Rotary::new(rows, 256, 512)
    };
    let of_bytes = |layout, byte: &mut dyn FnMut(usize) -> u8| {
        let mut tensor = Tensor::poisoned(DType::E4M3, layout);
        tensor
            .bytes_mut()
            .iter_mut()
            .enumerate()
            .for_each(|(i, to)| *to = byte(i));
        tensor
    };
    let pairs = of_bytes(rows, &mut |i| match (interleaved, i % 512) {
        (true, column) if column % 2 == 1 => (column / 2) as u8,
        (false, column @ 256..) => column as u8,
        _ => (i / 512) as u8,
    });
    let mut rng = Rng::new(7);
    let mut numbers = || of_bytes(table, &mut |_| rng.below(256) as u8);
    AppendCase {
        append: Append {
            rotary: Some(rotary),
            ..Append::to_cache(DType::E4M3, [rows, rows], [rows, rows])
        },
        k_new: pairs.clone(),
        v_new: pairs.clone(),
        k_cache: Tensor::poisoned(DType::E4M3, rows),
        v_cache: Tensor::poisoned(DType::E4M3, rows),
        rotary: Some([numbers(), numbers(), pairs]),
        values: AppendValues {
            cache_seqlens: Some(vec![0]),
            ..AppendValues::default()
        },
        slots: None,
        narrow_slots: Vec::new(),
    }
}

/// An embedding without Q and positions.
fn draw_rotary(rng: &mut Rng, append: &Append) -> Rotary {
    let head_dim = append.k_cache.shape[3];
    let dim = match rng.below(2) {
        0 => head_dim / 2 * 2,
        // Kernels rotate words of e4m3.
        _ if append.dtype == DType::E4M3 && head_dim >= 8 => 8 * rng.between(1, head_dim / 8),
        _ => 2 * rng.between(1, head_dim / 2),
    };
    Rotary {
        packed_q: rng.chance(0.5),
        interleaved: rng.chance(0.5),
        q_at_one_position: rng.chance(0.4),
        seqlens: matches!(append.place, AppendPlace::Slots { .. }) || rng.chance(0.4),
        ..Rotary::new(append.k_new, 0, dim)
    }
}

fn shuffled(rng: &mut Rng, count: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..count).collect();
    rng.shuffle(&mut all);
    all
}

/// Rows next to each other, heads outside rows, or gaps after heads and rows: of e4m3, which kernels move in words, few
/// that are no words.
fn layout(rng: &mut Rng, dtype: DType, shape: [usize; 4]) -> Layout {
    let [_, s, h, d] = shape.map(|size| size as i64);
    match rng.below(4) {
        0 => Layout::bhsd(shape),
        1 => {
            let gaps = if dtype == DType::E4M3 {
                [4, 2, 8, 16]
            } else {
                [1, 2, 8, 16]
            };
            let gap = gaps[rng.below(4)];
            let (head, row) = (d + gap, h * (d + gap) + gap);
            Layout {
                shape,
                strides: [s * row + gap, row, head, 1],
            }
        }
        _ => Layout::bshd(shape),
    }
}
