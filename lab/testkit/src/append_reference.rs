//! The float64 reference of an append: what every element of the caches and of Q must hold afterwards.

use std::ops::Range;

use flashcore_problem::tensor::{read_element, write_element};
use flashcore_problem::{AppendPlace, DType, Layout, Rotary, Tensor};

use crate::AppendCase;

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

impl AppendReference {
    /// Of any values: a length is cut to its bounds, and a row without a place in the cache is not
    /// written. Two writers of a slot are not expected.
    pub(crate) fn new(case: &AppendCase) -> AppendReference {
        let (append, values) = (&case.append, case.values());
        let nothing = |layout: &Layout| vec![None; layout.num_elements()];
        let mut after = AppendReference {
            k_cache: nothing(&append.k_cache),
            v_cache: nothing(&append.v_cache),
            q: append.rotary.map_or(Vec::new(), |rotary| nothing(&rotary.q)),
            seqused_k: Vec::new(),
        };
        let bound = append.seq_len_kv as i64;
        let entry = |array: Option<&[i32]>, b: usize| array.map(|values| i64::from(values[b]));
        let length = |b| entry(values.cache_seqlens, b).map_or(0, |length| length.clamp(0, bound));
        let rotary = append.rotary.zip(case.rotary.as_ref());
        let turn = |b, i| {
            let first = entry(values.seqlens_rotary, b).map_or(length(b), |first| first.max(0));
            rotary.map(|(how, [cos, sin, _])| (how, [cos, sin], first + i))
        };
        let new_rows = append.k_new.shape[1];
        if append.seqused_k {
            let keys = |b| {
                let (_, rows) = sequence_rows(b, new_rows, values.cu_seqlens_k_new);
                let count = rows.end.min(new_rows as i64) - rows.start.clamp(0, new_rows as i64);
                let keys = (length(b) + count.max(0)).min(bound);
                let padding = entry(values.leftpad_k, b).map_or(0, |padding| padding.clamp(0, keys));
                (keys - padding) as i32
            };
            after.seqused_k = (0..append.batch).map(keys).collect();
        }
        // Of a row: its sequence, its number there, and where it is. Slots without a rotary embedding need no
        // sequences.
        let mut new = Vec::new();
        if append.packed && append.entries().cu_seqlens_k_new.is_none() {
            new.extend((0..new_rows).map(|row| (0, 0, [0, row])));
        } else {
            for b in 0..append.batch {
                new.extend(rows_inside(b, new_rows, values.cu_seqlens_k_new).map(|(i, from)| (b, i, from)));
            }
        }
        for (b, i, from) in new {
            let Some(to) = place(case, b, length(b) + i, from) else {
                continue;
            };
            write_row((&mut after.k_cache, &append.k_cache), to, &case.k_new, from, turn(b, i));
            write_row((&mut after.v_cache, &append.v_cache), to, &case.v_new, from, None);
        }
        if let Some((how, [_, _, q])) = rotary {
            for b in 0..append.batch {
                for (i, at) in rows_inside(b, how.q.shape[1], values.cu_seqlens_q) {
                    let i = if how.q_at_one_position { 0 } else { i };
                    write_row((&mut after.q, &how.q), at, q, at, turn(b, i));
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
            let got = f64::from(read_element(dtype, after, at));
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
fn sequence_rows(b: usize, rows: usize, starts: Option<&[i32]>) -> (usize, Range<i64>) {
    match starts {
        None => (b, 0..rows as i64),
        Some(starts) => (0, i64::from(starts[b])..i64::from(starts[b + 1])),
    }
}

/// Those rows of a sequence that are in their tensor: number in the sequence, and place.
fn rows_inside(b: usize, rows: usize, starts: Option<&[i32]>) -> impl Iterator<Item = (i64, [usize; 2])> + use<> {
    let (part, Range { start, end }) = sequence_rows(b, rows, starts);
    let inside = start.max(0)..end.min(rows as i64);
    inside.map(move |row| (row - start, [part, row as usize]))
}

/// Where key `key` of sequence `b` goes, or the row at `from` by its slot.
fn place(case: &AppendCase, b: usize, key: i64, from: [usize; 2]) -> Option<[usize; 2]> {
    let (append, values) = (&case.append, case.values());
    let [pages, page_size, ..] = append.k_cache.shape;
    if let Some(slots) = case.slots() {
        let slot = usize::try_from(slots.get(from[0] * append.k_new.shape[1] + from[1])).ok()?;
        return (slot < pages * page_size).then_some([slot / page_size, slot % page_size]);
    }
    if key >= append.seq_len_kv as i64 {
        return None;
    }
    let key = key as usize;
    let part = values
        .cache_batch_idx
        .map_or(Ok(b), |parts| usize::try_from(parts[b]))
        .ok()?;
    match append.place {
        AppendPlace::Paged { tables, max_pages } => {
            let entry = (part < tables).then_some(part * max_pages + key / page_size)?;
            let page = usize::try_from(values.block_table?[entry]).ok()?;
            (page < pages).then_some([page, key % page_size])
        }
        AppendPlace::Cache | AppendPlace::Slots { .. } => (part < pages).then_some([part, key]),
    }
}

/// How a row is rotated: the embedding, its tables, and the row's position.
type Turn<'t> = (Rotary, [&'t Tensor; 2], i64);

/// Writes a row of all heads.
fn write_row(
    (after, layout): (&mut [Option<Expected>], &Layout),
    to: [usize; 2],
    x: &Tensor,
    from: [usize; 2],
    turn: Option<Turn<'_>>,
) {
    let dense = Layout::bshd(layout.shape);
    let [_, _, heads, columns] = layout.shape;
    for (h, d) in (0..heads).flat_map(|h| (0..columns).map(move |d| (h, d))) {
        after[dense.offset(to[0], to[1], h, d)] = Some(rotated(x, [from[0], from[1], h, d], turn));
    }
}

/// An element, rotated if it is in a pair.
fn rotated(x: &Tensor, [b, s, h, d]: [usize; 4], turn: Option<Turn<'_>>) -> Expected {
    let (dtype, value) = (x.dtype(), |d| x.view().value(b, s, h, d));
    let Some((rotary, [cos, sin], position)) = turn.filter(|(rotary, ..)| d < rotary.dim) else {
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
    let [cos, sin] = [cos, sin].map(|table| table.view().value(0, at, 0, pair));
    let (a, b) = (value(first), value(second));
    let terms = if is_second {
        [a * sin, b * cos]
    } else {
        [a * cos, -(b * sin)]
    };
    let value = terms[0] + terms[1];
    if dtype == DType::E4M3 {
        // Products have 8 significant bits and these sums at most 36, so f32 rounds once, and then e4m3.
        let mut byte = [0];
        write_element(dtype, &mut byte, 0, value as f32);
        let value = f64::from(read_element(dtype, &byte, 0));
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
