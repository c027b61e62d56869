//! The values of an append: lengths, offsets, parts of the cache, padding, pages, positions, slots.

use flashcore_ir::{Cache, GlobalPtr, Val};
use flashcore_problem::{self as problem, AppendValues};

use super::{Paged, Record, Rows, Rule, THREADS, Wrong, load, within};
use crate::append::entries;
use crate::append::kinds::Kinds;
use crate::args::Args;

/// The values of an append.
pub(in super::super) struct Append<'k> {
    values: AppendValues<GlobalPtr<'k, i32>>,
    paged: Option<Paged<'k>>,
    /// The slots, and the words of each.
    slots: Option<(GlobalPtr<'k, u32>, u32)>,
    rotates: bool,
    batch: Val<'k, u32>,
    seq_len_kv: Val<'k, i32>,
    /// New rows of all sequences.
    new_rows: Val<'k, u32>,
    /// New rows of each sequence, where they are equally many.
    seq_new: Val<'k, i32>,
    /// Parts of the cache, or rows of the block table.
    tables: Val<'k, i32>,
    /// Slots of the cache.
    slot_count: Val<'k, i32>,
    /// Positions of the rotary tables.
    positions: Val<'k, i32>,
    /// Rows of Q: of all sequences where they are packed, else of each.
    q_rows: Val<'k, i32>,
    /// The most rows of Q of a sequence that have a position for themselves.
    q_most: Val<'k, i32>,
    record: Record<'k>,
}

impl<'k> Append<'k> {
    pub(in super::super) fn declare(k: &'k Args<'k, problem::Append>, kinds: Kinds) -> Append<'k> {
        let (arrays, slot_words) = (kinds.arrays, kinds.slot_words);
        let values = |name| k.input::<i32>(name, 4, move |append: &problem::Append| entries(append, name));
        let array = |name| match name {
            "block_table" => None, // with the sizes of pages
            name => arrays.named(name).map(|()| values(name)),
        };
        let number = |name, of: fn(&problem::Append) -> usize| k.number(name, move |append| of(append) as i32);
        Append {
            values: AppendValues::from(AppendValues::<()>::NAMES.map(array)),
            paged: arrays.block_table.map(|()| {
                Paged::declare(k, values("block_table"), |append| {
                    let [pages, page_size, ..] = append.k_cache.shape;
                    [page_size, pages, append.tables()[1]]
                })
            }),
            slots: (slot_words > 0).then(|| {
                let words = move |append: &problem::Append| slot_words as usize * append.new_rows();
                (k.input("slot_mapping", 4 * slot_words, words), slot_words)
            }),
            rotates: kinds.rotary_dim > 0,
            batch: k.number("batch", |append| append.batch as u32),
            seq_len_kv: number("seq_len_kv", |append| append.seq_len_kv),
            new_rows: k.number("new_rows", |append| append.new_rows() as u32),
            seq_new: number("seq_new", |append| append.k_new.shape[1]),
            tables: number("tables", |append| append.tables()[0]),
            slot_count: number("slots", problem::Append::slots),
            positions: number("positions", |append| append.rotary.map_or(0, |rotary| rotary.positions)),
            q_rows: number("q_rows", |append| append.rotary.map_or(0, |rotary| rotary.q.shape[1])),
            q_most: number("q_most", |append| match append.rotary {
                None => 0,
                Some(rotary) if rotary.q_at_one_position => 1,
                Some(_) => i32::MAX as usize,
            }),
            record: Record::declare(k),
        }
    }

    pub(in super::super) fn check(&self) {
        let k = self.record.k;
        let block = k.block_idx(0);
        // Blocks past the last sequence have slots only.
        k.if_(block.lt(self.batch).uniform(), || self.check_sequence(block));
        if let Some((slots, words)) = self.slots {
            self.check_slot(slots, words, block * THREADS + k.thread_idx());
        }
    }

    fn check_sequence(&self, sequence: Val<'k, u32>) {
        let (record, values) = (&self.record, &self.values);
        let zero = record.k.constant(0i32);
        let rows = [self.new_rows.reinterpret(), self.seq_new];
        let new = record.offsets("cu_seqlens_k_new", values.cu_seqlens_k_new, rows, sequence);
        let wrong = |value, rows, most| Wrong {
            rows,
            ..Wrong::of(sequence, value, [zero, most])
        };
        let before = values.cache_seqlens.map(|lengths| {
            let len = load(lengths, sequence);
            let fits = within(len, zero, self.seq_len_kv - new.len);
            let is_wrong = new.speaks & !fits;
            record.tell(
                is_wrong,
                Rule::Room,
                "cache_seqlens",
                &wrong(len, new.len, self.seq_len_kv),
            );
            (len, fits)
        });
        let mut placed = new;
        if let Some((len, fits)) = before {
            placed = Rows::if_they(fits, new.len, new.speaks);
            if let Some(padding) = values.leftpad_k {
                record.number("leftpad_k", padding, sequence, placed.with(len + new.len));
            }
        }
        let mut part = sequence;
        if let Some(parts) = values.cache_batch_idx {
            let number = record.number("cache_batch_idx", parts, sequence, placed.with(self.tables - 1));
            part = number.len.reinterpret();
            let fits = load(parts, sequence).eq(part.reinterpret::<i32>());
            placed.len = fits.select(placed.len, zero);
        }
        if let (Some(paged), Some((len, fits))) = (&self.paged, before) {
            // A length that does not fit leaves no keys.
            let first = fits.select(len, zero);
            paged.check(record, sequence, part, [first, first + placed.len], |_| None);
        }
        if self.rotates {
            self.check_positions(sequence, new, before.map(|(len, _)| len));
        }
    }

    /// The positions of new rows of K and of rows of Q, of which the first is `before` unless there are others.
    fn check_positions(&self, sequence: Val<'k, u32>, new: Rows<'k>, before: Option<Val<'k, i32>>) {
        let (record, zero) = (&self.record, self.record.k.constant(0i32));
        let wrong = |value, rows| Wrong {
            rows,
            ..Wrong::of(sequence, value, [zero, self.positions])
        };
        let first = match (self.values.seqlens_rotary, before) {
            (Some(firsts), _) => {
                let first = load(firsts, sequence);
                let is_wrong = record.speaks & first.lt(0);
                record.tell(is_wrong, Rule::First, "seqlens_rotary", &wrong(first, zero));
                first
            }
            (None, Some(len)) => len,
            (None, None) => return, // an append without lengths is refused without positions
        };
        let q = record.offsets("cu_seqlens_q", self.values.cu_seqlens_q, [self.q_rows; 2], sequence);
        let q = q.with(q.len.min(self.q_most));
        // Rows of K behind `before` fit where the append has room: told there.
        let k_rows = self.values.seqlens_rotary.map(|_| new);
        for rows in k_rows.into_iter().chain([q]) {
            let is_past = rows.len.gt(0) & first.gt(self.positions - rows.len);
            let is_wrong = rows.speaks & first.ge(0) & is_past;
            record.tell(is_wrong, Rule::Last, "rotary_cos", &wrong(first, rows.len));
        }
    }

    fn check_slot(&self, slots: GlobalPtr<'k, u32>, words: u32, row: Val<'k, u32>) {
        let (k, record) = (self.record.k, &self.record);
        k.if_(row.lt(self.new_rows).divergent(), || {
            let slot = slots.offset(row * words).load_words(words, Cache::ReadOnly);
            let low = slot[0].reinterpret::<i32>();
            let high = match slot.get(1) {
                Some(&high) => high,
                None => low.lt(0).select(u32::MAX, 0u32),
            };
            let in_cache = high.eq(0) & low.ge(0) & low.lt(self.slot_count);
            let is_none = high.eq(u32::MAX) & low.eq(-1);
            let mut is_wrong = !(in_cache | is_none);
            if let (true, Some(starts)) = (self.rotates, self.values.cu_seqlens_k_new) {
                // Rows of no sequence are not written.
                let row = row.reinterpret::<i32>();
                let (first, end) = (starts.load_with(Cache::ReadOnly), load(starts, self.batch));
                is_wrong = is_wrong & row.ge(first) & row.lt(end);
            }
            let wrong = Wrong::of(row, low, [k.constant(-1), self.slot_count - 1]);
            record.tell_wide(is_wrong, Rule::Slot, "slot_mapping", &wrong, high);
        });
    }
}
