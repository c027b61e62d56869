//! The float64 reference of an append: what every element of the caches and of Q must hold afterwards.

use super::{Append, AppendPlace, AppendValues, SlotMapping};
use crate::e4m3::{e4m3_to_f32, f32_to_e4m3};
use crate::{DType, Layout, TensorView};

/// An element that is written: its value, and how far off it may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// In float64.
    pub value: f64,
    /// 0 where it is copied, and in e4m3, which f32 rounds to in one way: then signs of zeros count.
    pub allowed: f64,
}

/// What an append leaves. Each tensor has its elements in the order of its shape; `None` keeps its
/// bytes.
#[derive(Clone, Debug)]
pub struct AppendReference {
    /// The cache of K.
    pub k_cache: Vec<Option<Expected>>,
    /// The cache of V.
    pub v_cache: Vec<Option<Expected>>,
    /// Q after its rotation; empty without one.
    pub q: Vec<Option<Expected>>,
    /// Keys of each sequence, without padding; empty unless asked for.
    pub seqused_k: Vec<i32>,
}

/// The tensors that an append reads: `k_new`, `v_new`, and with a rotary embedding `cos`, `sin` and `q`.
type Inputs<'i> = ([TensorView<'i>; 2], Option<[TensorView<'i>; 3]>);

impl AppendReference {
    /// Of any values: a length is cut to its bounds, and a row without a place in the cache is not
    /// written. Two writers of a slot are not expected.
    pub fn new(
        append: &Append,
        values: &AppendValues<&[i32]>,
        slots: Option<SlotMapping<'_>>,
        ([k_new, v_new], rotary): Inputs<'_>,
    ) -> AppendReference {
        let nothing = |layout: &Layout| vec![None; layout.num_elements()];
        let mut after = AppendReference {
            k_cache: nothing(&append.k_cache),
            v_cache: nothing(&append.v_cache),
            q: append.rotary.map_or(Vec::new(), |rotary| nothing(&rotary.q)),
            seqused_k: Vec::new(),
        };
        let bound = append.seq_len_kv as i64;
        let length = |b: usize| {
            values
                .cache_seqlens
                .map_or(0, |lengths| i64::from(lengths[b]).clamp(0, bound))
        };
        let first_position = |b: usize| {
            values
                .seqlens_rotary
                .map_or(length(b), |first| i64::from(first[b]).max(0))
        };
        let [_, new_rows, heads, head_dim] = append.k_new.shape;
        for b in 0..append.batch {
            if append.seqused_k {
                let (_, rows) = sequence_rows(b, new_rows, values.cu_seqlens_k_new);
                let count = rows.end.min(new_rows as i64) - rows.start.clamp(0, new_rows as i64);
                let keys = (length(b) + count.max(0)).min(bound);
                let padding = values
                    .leftpad_k
                    .map_or(0, |padding| i64::from(padding[b]).clamp(0, keys));
                after.seqused_k.push((keys - padding) as i32);
            }
        }
        // Of a row: its sequence, its number there, and where it is. Slots without a rotary embedding need no
        // sequences.
        let mut new = Vec::new();
        if append.packed && append.entries().cu_seqlens_k_new.is_none() {
            new.extend((0..new_rows).map(|row| (0, 0, [0, row])));
        } else {
            for b in 0..append.batch {
                let (part, rows) = sequence_rows(b, new_rows, values.cu_seqlens_k_new);
                let inside = rows.start.max(0)..rows.end.min(new_rows as i64);
                new.extend(inside.map(|row| (b, row - rows.start, [part, row as usize])));
            }
        }
        for (b, i, from) in new {
            let Some(to) = place(append, values, slots, b, length(b) + i, from) else {
                continue;
            };
            for h in 0..heads {
                for d in 0..head_dim {
                    let rotary = append.rotary.as_ref().zip(rotary.as_ref());
                    let turn = rotary.map(|(how, [cos, sin, _])| (how, cos, sin, first_position(b) + i));
                    let value = rotated(append.dtype, &k_new, [from[0], from[1], h, d], turn);
                    after.k_cache[index(&append.k_cache, [to[0], to[1], h, d])] = Some(value);
                }
                for d in 0..append.v_new.shape[3] {
                    let value = rotated(append.dtype, &v_new, [from[0], from[1], h, d], None);
                    after.v_cache[index(&append.v_cache, [to[0], to[1], h, d])] = Some(value);
                }
            }
        }
        for b in 0..append.batch {
            let Some((how, [cos, sin, q])) = append.rotary.as_ref().zip(rotary.as_ref()) else {
                continue;
            };
            let [_, rows_q, heads_q, _] = how.q.shape;
            let (part, rows) = sequence_rows(b, rows_q, values.cu_seqlens_q);
            for row in rows.start.max(0)..rows.end.min(rows_q as i64) {
                let i = if how.q_at_one_position { 0 } else { row - rows.start };
                for (h, d) in (0..heads_q).flat_map(|h| (0..head_dim).map(move |d| (h, d))) {
                    let at = [part, row as usize, h, d];
                    let turn = Some((how, cos, sin, first_position(b) + i));
                    after.q[index(&how.q, at)] = Some(rotated(append.dtype, q, at, turn));
                }
            }
        }
        after
    }

    /// Compares a tensor with what it must hold, bit by bit where nothing is written: `layout`, its
    /// bytes before and after.
    ///
    /// # Errors
    /// What differs, and where.
    pub fn compare(
        expected: &[Option<Expected>],
        dtype: DType,
        layout: &Layout,
        before: &[u8],
        after: &[u8],
    ) -> Result<(), String> {
        let size = dtype.size_bytes();
        let mut written = vec![false; after.len() / size.max(1)];
        let [nb, ns, nh, nd] = layout.shape;
        let indices = (0..nb * ns * nh * nd).map(|i| [i / (ns * nh * nd), i / (nh * nd) % ns, i / nd % nh, i % nd]);
        for ([b, s, h, d], expected) in indices.zip(expected) {
            let Some(Expected { value, allowed }) = *expected else {
                continue;
            };
            let at = layout.offset(b, s, h, d);
            written[at] = true;
            let got = f64::from(crate::tensor::read_element(dtype, after, at));
            let same = match allowed {
                _ if got.is_nan() && value.is_nan() => true,
                0.0 => got.to_bits() == value.to_bits(),
                _ => got == value || (got - value).abs() <= allowed,
            };
            if !same {
                return Err(format!(
                    "[{b}, {s}, {h}, {d}] is {got}; it must be {value}, ± {allowed:e}"
                ));
            }
        }
        let kept = |i: usize| before[i * size..][..size] == after[i * size..][..size];
        match (0..written.len()).find(|&i| !written[i] && !kept(i)) {
            None => Ok(()),
            Some(at) => Err(format!("element {at} of the memory was written; it is of no new row")),
        }
    }
}

/// First index of a sequence's rows, and the second ones.
fn sequence_rows(b: usize, rows: usize, starts: Option<&[i32]>) -> (usize, std::ops::Range<i64>) {
    match starts {
        None => (b, 0..rows as i64),
        Some(starts) => (0, i64::from(starts[b])..i64::from(starts[b + 1])),
    }
}

/// Where key `key` of sequence `b` goes, or the row at `from` by its slot.
fn place(
    append: &Append,
    values: &AppendValues<&[i32]>,
    slots: Option<SlotMapping<'_>>,
    b: usize,
    key: i64,
    from: [usize; 2],
) -> Option<[usize; 2]> {
    let [pages, page_size, ..] = append.k_cache.shape;
    if let Some(slots) = slots {
        let slot = usize::try_from(slots.get(from[0] * append.k_new.shape[1] + from[1])).ok()?;
        return (slot < pages * page_size).then_some([slot / page_size, slot % page_size]);
    }
    if key >= append.seq_len_kv as i64 {
        return None;
    }
    let (key, part) = (
        key as usize,
        values.cache_batch_idx.map_or(b as i64, |parts| i64::from(parts[b])),
    );
    match append.place {
        AppendPlace::Paged { tables, max_pages } => {
            let part = usize::try_from(part).ok().filter(|part| *part < tables)?;
            let page = usize::try_from(values.block_table?[part * max_pages + key / page_size]).ok()?;
            (page < pages).then_some([page, key % page_size])
        }
        AppendPlace::Cache | AppendPlace::Slots { .. } => {
            let part = usize::try_from(part).ok().filter(|part| *part < pages)?;
            Some([part, key])
        }
    }
}

/// How a row is rotated: the embedding, its tables, and the row's position.
type Turn<'t> = (&'t super::Rotary, &'t TensorView<'t>, &'t TensorView<'t>, i64);

/// An element, rotated if it is in a pair.
fn rotated(dtype: DType, x: &TensorView<'_>, [b, s, h, d]: [usize; 4], turn: Option<Turn<'_>>) -> Expected {
    let value = |d| x.value(b, s, h, d);
    let Some((rotary, cos, sin, position)) = turn.filter(|(rotary, ..)| d < rotary.dim) else {
        return Expected {
            value: value(d),
            allowed: 0.0,
        };
    };
    let half = rotary.dim / 2;
    let (pair, is_second) = if rotary.interleaved {
        (d / 2, d % 2 == 1)
    } else {
        (d % half, d >= half)
    };
    let [first, second] = if rotary.interleaved {
        [2 * pair, 2 * pair + 1]
    } else {
        [pair, pair + half]
    };
    let at = position.min(rotary.positions as i64 - 1) as usize;
    let (cos, sin) = (cos.value(0, at, 0, pair), sin.value(0, at, 0, pair));
    let (a, b) = (value(first), value(second));
    let terms = if is_second {
        [a * sin, b * cos]
    } else {
        [a * cos, -(b * sin)]
    };
    let value = terms[0] + terms[1];
    if dtype == DType::E4M3 {
        // Products have 8 significant bits and these sums at most 36, so f32 rounds once, and then e4m3.
        let value = f64::from(e4m3_to_f32(f32_to_e4m3(value as f32)));
        return Expected { value, allowed: 0.0 };
    }
    // Both products and their sum are rounded to f32, then the sum to the dtype: half a unit in the last place, or half
    // the smallest number.
    let (unit, least) = match dtype {
        DType::F32 => (2f64.powi(-24), 2f64.powi(-149)),
        DType::F16 => (2f64.powi(-11), 2f64.powi(-25)),
        DType::BF16 | DType::E4M3 => (2f64.powi(-8), 2f64.powi(-134)),
    };
    let magnitude = terms[0].abs() + terms[1].abs();
    let allowed = 1.01 * unit * value.abs() + 2f64.powi(-23) * magnitude + least + 2f64.powi(-126);
    let overflows = value.abs() > largest(dtype);
    Expected {
        value: if overflows {
            f64::INFINITY.copysign(value)
        } else {
            value
        },
        allowed,
    }
}

/// What rounds to infinity is above this.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65_520.0,
        DType::F32 | DType::BF16 | DType::E4M3 => f64::from(f32::MAX),
    }
}

fn index(layout: &Layout, [b, s, h, d]: [usize; 4]) -> usize {
    let [_, ns, nh, nd] = layout.shape;
    ((b * ns + s) * nh + h) * nd + d
}
