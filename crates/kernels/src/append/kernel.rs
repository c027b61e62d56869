//! The kernel. Blocks `(x, y)`: `x` counts groups of rows, `y` first the slices of a row of K, then of V, then of Q. A
//! thread has one task: a chunk to copy, or a chunk of pairs to rotate.

use flashcore_ir::{Cache, Element, GlobalPtr, KernelBuilder, Val, Widen};
use flashcore_problem::{Append, AppendValues, Layout, Rotary};

use super::kinds::Kinds;
use super::{Request, entries};
use crate::Refusal;
use crate::args::Args;
use crate::attention::lengths::{TensorParam, last_at_most, row_strides};
use crate::attention::params::Shape;

pub(super) const THREADS: u32 = 128;

/// The parameters.
struct Params<'k, E> {
    k: &'k KernelBuilder,
    kinds: Kinds,
    vector_bytes: u32,
    k_new: TensorParam<'k, E>,
    v_new: TensorParam<'k, E>,
    k_cache: TensorParam<'k, E>,
    v_cache: TensorParam<'k, E>,
    arrays: AppendValues<GlobalPtr<'k, i32>>,
    slot_mapping: Option<GlobalPtr<'k, u32>>,
    seqused_k: Option<GlobalPtr<'k, i32>>,
    batch: Val<'k, u32>,
    seq_len_kv: Val<'k, u32>,
    rows: Val<'k, u32>,
    seq_new: Val<'k, u32>,
    pages: Val<'k, u32>,
    page_size: Val<'k, u32>,
    tables: Val<'k, u32>,
    max_pages: Val<'k, u32>,
    k_tasks: Val<'k, u32>,
    v_tasks: Val<'k, u32>,
    k_slices: Val<'k, u32>,
    v_slices: Val<'k, u32>,
    kv_shift: Val<'k, u32>,
    rotary: Option<RotaryParams<'k, E>>,
}

struct RotaryParams<'k, E> {
    cos: GlobalPtr<'k, E>,
    sin: GlobalPtr<'k, E>,
    q: TensorParam<'k, E>,
    q_out: TensorParam<'k, E>,
    positions: Val<'k, u32>,
    rows: Val<'k, u32>,
    seq_q: Val<'k, u32>,
    tasks: Val<'k, u32>,
    shift: Val<'k, u32>,
    /// Positions from one row of Q to the next: 1, or 0.
    step: Val<'k, u32>,
}

impl<'k, E: Element> Params<'k, E> {
    fn declare(k: &'k Args<'k, Request>, kinds: Kinds, shape: &Shape) -> Self {
        let align = shape.vector_bytes;
        let values = |name| k.input(name, 4, move |request: &Request| entries(&request.append, name));
        let array = |name| kinds.arrays.named(name).map(|()| values(name));
        let tensor = |name, written, of: fn(&Append) -> Result<Layout, Refusal>| {
            k.strided([name; 2], align, written, move |request: &Request| {
                let (layout, element) = (of(&request.append)?, request.append.dtype.size_bytes());
                // Four e4m3 may be an element of the kernel's.
                let elements = (E::BYTES as usize / element) as u32;
                let strides = row_strides(&layout).map(|stride| stride / elements);
                Ok((layout.span() * element, strides))
            })
        };
        let number = |name, of: fn(&Request) -> u32| k.number(name, of);
        let rotary_number = |name, of: fn(&Rotary) -> usize| {
            k.try_number(name, move |request: &Request| Ok(of(rotary(&request.append)?) as u32))
        };
        let slot_words = kinds.slot_words;
        Params {
            k,
            kinds,
            vector_bytes: align,
            k_new: tensor("k_new", false, |append| Ok(append.k_new)),
            v_new: tensor("v_new", false, |append| Ok(append.v_new)),
            k_cache: tensor("k_cache", true, |append| Ok(append.k_cache)),
            v_cache: tensor("v_cache", true, |append| Ok(append.v_cache)),
            arrays: AppendValues::from(AppendValues::<()>::NAMES.map(array)),
            slot_mapping: (slot_words > 0).then(|| {
                let words = move |request: &Request| slot_words as usize * request.append.new_rows();
                k.input("slot_mapping", 4 * slot_words, words)
            }),
            seqused_k: kinds
                .seqused_k
                .then(|| k.output("seqused_k", 4, |request| request.append.batch)),
            batch: number("batch", |request| request.append.batch as u32),
            seq_len_kv: number("seq_len_kv", |request| request.append.seq_len_kv as u32),
            rows: number("rows", |request| request.append.new_rows() as u32),
            seq_new: number("seq_new", |request| {
                let [first, rows, ..] = request.append.k_new.shape;
                let rows = if request.append.packed { first * rows } else { rows };
                rows.max(1) as u32
            }),
            pages: number("pages", |request| request.append.k_cache.shape[0] as u32),
            page_size: number("page_size", |request| request.append.k_cache.shape[1] as u32),
            tables: number("tables", |request| request.append.tables()[0] as u32),
            max_pages: number("max_pages", |request| request.append.tables()[1] as u32),
            k_tasks: number("k_tasks", |request| request.k.count),
            v_tasks: number("v_tasks", |request| request.v.count),
            k_slices: number("k_slices", |request| request.k.slices as u32),
            v_slices: number("v_slices", |request| request.v.slices as u32),
            kv_shift: number("kv_shift", |request| request.k.shift),
            rotary: (kinds.rotary_dim > 0).then(|| {
                let span = |request: &Request| request.append.rotary.map_or(0, |rotary| rotary.table().span());
                let table = |name| k.input(name, align, span);
                RotaryParams {
                    cos: table("rotary_cos"),
                    sin: table("rotary_sin"),
                    q: tensor("q", false, |append| Ok(rotary(append)?.q)),
                    q_out: tensor("q_out", true, |append| Ok(rotary(append)?.q_out)),
                    positions: rotary_number("positions", |rotary| rotary.positions),
                    rows: number("q_rows", |request| request.q_rows as u32),
                    seq_q: rotary_number("seq_q", |rotary| rotary.q.shape[1].max(1)),
                    tasks: number("q_tasks", |request| request.q.count),
                    shift: number("q_shift", |request| request.q.shift),
                    step: rotary_number("q_step", |rotary| usize::from(!rotary.q_at_one_position)),
                }
            }),
        }
    }
}

fn rotary(append: &Append) -> Result<&Rotary, Refusal> {
    let none = || Refusal::Build("an append without a rotary embedding".to_string());
    append.rotary.as_ref().ok_or_else(none)
}

/// A row, its sequence, and its number there.
struct SequenceRow<'k> {
    sequence: Val<'k, u32>,
    number: Val<'k, u32>,
    /// Whether the row is of a sequence.
    exists: Option<Val<'k, bool>>,
    /// Its first two indices in its tensor.
    at: [Val<'k, u32>; 2],
}

/// What a thread does: a row, and a task of those of its heads.
struct Task<'k> {
    row: Val<'k, u32>,
    number: Val<'k, u32>,
    exists: Val<'k, bool>,
}

pub(super) fn body<'k, E: Widen>(k: &'k Args<'k, Request>, kinds: Kinds, shape: &Shape) {
    let params = Params::<E>::declare(k, kinds, shape);
    let slice = k.block_idx(1);
    params.store_seqused(slice);
    let kv_slices = params.k_slices + params.v_slices;
    let append_k = || {
        let tasks = [slice, params.k_tasks];
        params.append(&params.k_new, &params.k_cache, tasks, shape.head_dim, true);
    };
    let append_v = || {
        let tasks = [slice - params.k_slices, params.v_tasks];
        params.append(&params.v_new, &params.v_cache, tasks, shape.head_dim_v, false);
    };
    let rotate_q = || {
        if let Some(rotary) = &params.rotary {
            params.rotate_q(rotary, slice - kv_slices, shape.head_dim);
        }
    };
    k.if_else(slice.lt(params.k_slices).uniform(), append_k, || {
        k.if_else(slice.lt(kv_slices).uniform(), append_v, rotate_q);
    });
}

impl<'k, E: Widen> Params<'k, E> {
    #[track_caller]
    fn load(&self, array: GlobalPtr<'k, i32>, index: Val<'k, u32>) -> Val<'k, i32> {
        array.offset(index).load_with(Cache::ReadOnly)
    }

    /// The rows of a sequence before, cut to the bound.
    fn length(&self, sequence: Val<'k, u32>) -> Val<'k, u32> {
        let Some(lengths) = self.arrays.cache_seqlens else {
            return self.k.constant(0);
        };
        let length = self.load(lengths, sequence).max(0);
        length.reinterpret::<u32>().min(self.seq_len_kv)
    }

    /// The keys of each sequence afterwards, by the first blocks.
    fn store_seqused(&self, slice: Val<'k, u32>) {
        let Some(seqused_k) = self.seqused_k else { return };
        let k = self.k;
        let sequence = k.block_idx(0) * THREADS + k.thread_idx();
        k.if_((slice.eq(0) & sequence.lt(self.batch)).divergent(), || {
            let new = match self.arrays.cu_seqlens_k_new {
                None => self.seq_new,
                Some(starts) => {
                    let total = self.rows.reinterpret::<i32>();
                    let first = self.load(starts, sequence).max(0).min(total);
                    let end = self.load(starts.plus(1), sequence).max(first).min(total);
                    (end - first).reinterpret()
                }
            };
            // Without rows there is no `seq_new`.
            let new = self.rows.eq(0).select(0u32, new);
            let keys = (self.length(sequence) + new).min(self.seq_len_kv);
            let keys = match self.arrays.leftpad_k {
                None => keys,
                Some(padding) => keys - self.load(padding, sequence).max(0).reinterpret::<u32>().min(keys),
            };
            seqused_k.offset(sequence).store(keys.reinterpret::<i32>());
        });
    }

    /// The row and the task of a thread, where `1 << shift` threads share a row.
    fn task(&self, slice: Val<'k, u32>, shift: Val<'k, u32>, rows: Val<'k, u32>, tasks: Val<'k, u32>) -> Task<'k> {
        let (k, log_threads) = (self.k, THREADS.trailing_zeros());
        let in_block = k.thread_idx() >> shift;
        let row = (k.block_idx(0) << (k.constant(log_threads) - shift)) + in_block;
        let number = (slice << shift) + (k.thread_idx() - (in_block << shift));
        let exists = row.lt(rows) & number.lt(tasks);
        Task { row, number, exists }
    }

    /// The sequence of a row of K, V or Q, which is packed if there are starts.
    fn sequence_of(
        &self,
        row: Val<'k, u32>,
        starts: Option<GlobalPtr<'k, i32>>,
        rows_each: Val<'k, u32>,
    ) -> SequenceRow<'k> {
        let Some(starts) = starts else {
            let (sequence, number) = (row / rows_each, row % rows_each);
            return SequenceRow {
                sequence,
                number,
                exists: None,
                at: [sequence, number],
            };
        };
        let start = |sequence| self.load(starts, sequence).reinterpret::<u32>();
        let sequence = last_at_most(self.k, self.batch, row, start);
        let (first, end) = (start(sequence), start(sequence + 1));
        SequenceRow {
            sequence,
            number: row - first,
            exists: Some(first.le(row) & row.lt(end)),
            at: [self.k.constant(0), row],
        }
    }

    /// Where a new row goes: page (or sequence of the cache), row in it, and whether they exist.
    fn place(&self, row: Val<'k, u32>, of: &SequenceRow<'k>) -> ([Val<'k, u32>; 2], Val<'k, bool>) {
        if let (Some(slots), words) = (self.slot_mapping, self.kinds.slot_words) {
            let words = slots.offset(row * words).load_words(words, Cache::ReadOnly);
            let (slot, most) = (words[0], self.pages * self.page_size);
            let fits = match words.get(1) {
                Some(high) => high.eq(0) & slot.lt(most),
                None => slot.reinterpret::<i32>().ge(0) & slot.lt(most),
            };
            let fits = of.exists.map_or(fits, |exists| fits & exists);
            let slot = slot.min(most - 1);
            return ([slot / self.page_size, slot % self.page_size], fits);
        }
        let key = self.length(of.sequence) + of.number;
        let fits = key.lt(self.seq_len_kv);
        let fits = of.exists.map_or(fits, |exists| fits & exists);
        let key = key.min(self.seq_len_kv - 1);
        let part = match self.arrays.cache_batch_idx {
            None => of.sequence,
            Some(parts) => self.load(parts, of.sequence).reinterpret(),
        };
        let fits = fits & part.lt(self.tables);
        let part = part.min(self.tables - 1);
        let Some(table) = self.arrays.block_table else {
            return ([part, key], fits);
        };
        let entries = table.offset_strided(part, self.max_pages);
        let page = self.load(entries, key / self.page_size).reinterpret::<u32>();
        (
            [page.min(self.pages - 1), key % self.page_size],
            fits & page.lt(self.pages),
        )
    }

    /// Where the tables of a row begin.
    fn tables_of(
        &self,
        rotary: &RotaryParams<'k, E>,
        of: &SequenceRow<'k>,
        step: Option<Val<'k, u32>>,
    ) -> [GlobalPtr<'k, E>; 2] {
        let first = match self.arrays.seqlens_rotary {
            None => self.length(of.sequence),
            Some(firsts) => self.load(firsts, of.sequence).max(0).reinterpret(),
        };
        let number = step.map_or(of.number, |step| of.number * step);
        let last = rotary.positions - 1;
        let position = (first.min(last) + number.min(last)).min(last);
        [rotary.cos, rotary.sin].map(|table| table.offset_strided(position, self.kinds.rotary_dim / 2))
    }

    /// Writes new rows of K or V into the cache.
    fn append(
        &self,
        new: &TensorParam<'k, E>,
        cache: &TensorParam<'k, E>,
        [slice, tasks]: [Val<'k, u32>; 2],
        head_dim: u32,
        is_k: bool,
    ) {
        let k = self.k;
        let task = self.task(slice, self.kv_shift, self.rows, tasks);
        k.if_(task.exists.divergent(), || {
            // Without starts, packed rows are one of `seq_new` rows, all there are: slots need no sequence.
            let of = self.sequence_of(task.row, self.arrays.cu_seqlens_k_new, self.seq_new);
            let (to, fits) = self.place(task.row, &of);
            k.if_(fits.divergent(), || {
                let rotary = self.rotary.as_ref().filter(|_| is_k);
                let tasks = self.kinds.tasks(head_dim, is_k, self.vector_bytes, E::BYTES);
                let (head, within) = (task.number / tasks, task.number % tasks);
                let from = new.row(new.head(of.at[0], head), of.at[1]);
                let to = cache.row(cache.head(to[0], head), to[1]);
                match rotary {
                    None => self.copy(from, to, within),
                    Some(rotary) => self.rotate(from, to, self.tables_of(rotary, &of, None), within, head_dim),
                }
            });
        });
    }

    fn rotate_q(&self, rotary: &RotaryParams<'k, E>, slice: Val<'k, u32>, head_dim: u32) {
        let k = self.k;
        let task = self.task(slice, rotary.shift, rotary.rows, rotary.tasks);
        k.if_(task.exists.divergent(), || {
            let of = self.sequence_of(task.row, self.arrays.cu_seqlens_q, rotary.seq_q);
            let rotate = || {
                let tasks = self.kinds.tasks(head_dim, true, self.vector_bytes, E::BYTES);
                let (head, within) = (task.number / tasks, task.number % tasks);
                let from = rotary.q.row(rotary.q.head(of.at[0], head), of.at[1]);
                let to = rotary.q_out.row(rotary.q_out.head(of.at[0], head), of.at[1]);
                let tables = self.tables_of(rotary, &of, Some(rotary.step));
                self.rotate(from, to, tables, within, head_dim);
            };
            match of.exists {
                None => rotate(),
                Some(exists) => k.if_(exists.divergent(), rotate),
            }
        });
    }

    /// Copies a chunk, bit by bit.
    fn copy(&self, from: GlobalPtr<'k, E>, to: GlobalPtr<'k, E>, chunk: Val<'k, u32>) {
        let first = chunk * (self.vector_bytes / E::BYTES);
        let (from, to) = (from.offset(first), to.offset(first));
        match self.vector_bytes / 4 {
            0 => to.store(from.load()),
            words => to.store_words(&from.load_words(words, Cache::Default), Cache::Default),
        }
    }

    /// Rotates a chunk of pairs, or copies one of the columns after them. Q may be rotated in place: a thread has
    /// loaded all that it stores.
    fn rotate(
        &self,
        from: GlobalPtr<'k, E>,
        to: GlobalPtr<'k, E>,
        [cos, sin]: [GlobalPtr<'k, E>; 2],
        task: Val<'k, u32>,
        head_dim: u32,
    ) {
        let (dim, bytes) = (self.kinds.rotary_dim, self.vector_bytes);
        let pairs = self.kinds.pairs(bytes, E::BYTES);
        let turns = dim / 2 / pairs;
        let turn = || {
            let pair = task * pairs;
            let [cos, sin] = [cos, sin].map(|table| {
                let width = bytes.min(pairs * E::BYTES);
                table.offset(pair).load_f32s(pairs, width, Cache::ReadOnly)
            });
            let rotated =
                |i: usize, a: Val<'k, f32>, b: Val<'k, f32>| [a * cos[i] - b * sin[i], a * sin[i] + b * cos[i]];
            if self.kinds.interleaved {
                let at = |x: GlobalPtr<'k, E>| x.offset(pair * 2u32);
                let x = at(from).load_f32s(2 * pairs, bytes, Cache::Default);
                let pairs = x.chunks(2).enumerate();
                let x: Vec<_> = pairs.flat_map(|(i, pair)| rotated(i, pair[0], pair[1])).collect();
                at(to).store_f32s(&x, bytes, Cache::Default);
                return;
            }
            let halves = |x: GlobalPtr<'k, E>| [x.offset(pair), x.offset(pair + dim / 2)];
            let [a, b] = halves(from).map(|half| half.load_f32s(pairs, bytes, Cache::Default));
            let both = a.iter().zip(&b).enumerate();
            let (a, b): (Vec<_>, Vec<_>) = both.map(|(i, (&a, &b))| rotated(i, a, b)).map(|[a, b]| (a, b)).unzip();
            let [first, second] = halves(to);
            first.store_f32s(&a, bytes, Cache::Default);
            second.store_f32s(&b, bytes, Cache::Default);
        };
        if head_dim == dim {
            return turn();
        }
        let copy = || self.copy(from.plus(dim as i32), to.plus(dim as i32), task - turns);
        self.k.if_else(task.lt(turns).divergent(), turn, copy);
    }
}
