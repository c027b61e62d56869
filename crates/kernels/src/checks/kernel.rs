//! The kernel. A block has a sequence, whose pages its threads share, and in addition a new row for each thread, where
//! slots say where those go.

use flashcore_ir::inst::AtomOp;
use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, Val};
use flashcore_problem::{AppendValues, Lengths};

use super::record::{Rule, site};
use crate::attention::block_range::Band;

pub(super) const THREADS: u32 = 128;

/// Which values are checked. Nothing else is baked into the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kinds {
    Attention(Lengths<()>),
    Append {
        arrays: AppendValues<()>,
        /// Words of a slot; 0 without slots.
        slot_words: u32,
        rotates: bool,
    },
}

impl Kinds {
    pub(super) fn levers(&self) -> [u32; 4] {
        let mask = |given: &[bool]| (0..).zip(given).map(|(i, &is)| u32::from(is) << i).sum();
        match self {
            Kinds::Attention(arrays) => [0, mask(&arrays.arrays().map(|array| array.is_some())), 0, 0],
            Kinds::Append {
                arrays,
                slot_words,
                rotates,
            } => {
                let arrays = mask(&arrays.arrays().map(|array| array.is_some()));
                [1, arrays, *slot_words, u32::from(*rotates)]
            }
        }
    }

    pub(super) fn from_levers([appends, arrays, slot_words, rotates]: [u32; 4]) -> Kinds {
        let given = |i: u32| (arrays >> i & 1 == 1).then_some(());
        match appends {
            0 => Kinds::Attention(Lengths::from([0, 1, 2, 3, 4].map(given))),
            _ => Kinds::Append {
                arrays: AppendValues::from([0, 1, 2, 3, 4, 5, 6].map(given)),
                slot_words,
                rotates: rotates == 1,
            },
        }
    }

    /// The kernel's name.
    pub(super) fn name(&self) -> String {
        let of = |names: &[&str], given: &dyn Fn(&str) -> bool| -> String {
            let given = names.iter().filter(|name| given(name));
            given.map(|name| format!("_{name}")).collect()
        };
        match self {
            Kinds::Attention(arrays) => {
                let arrays = of(&Lengths::<()>::NAMES, &|name| arrays.named(name).is_some());
                format!("check{arrays}")
            }
            Kinds::Append {
                arrays,
                slot_words,
                rotates,
            } => {
                let arrays = of(&AppendValues::<()>::NAMES, &|name| arrays.named(name).is_some());
                let slots = match slot_words {
                    0 => String::new(),
                    words => format!("_slots{}", 32 * words),
                };
                let rotates = if *rotates { "_rotary" } else { "" };
                format!("check_append{arrays}{slots}{rotates}")
            }
        }
    }
}

pub(super) fn body(k: &KernelBuilder, kinds: Kinds) {
    match kinds {
        Kinds::Attention(arrays) => Attention::declare(k, arrays).check(),
        Kinds::Append {
            arrays,
            slot_words,
            rotates,
        } => Append::declare(k, arrays, slot_words, rotates).check(),
    }
}

/// A value that is wrong.
struct Wrong<'k> {
    /// The sequence, or the new row of a slot.
    index: Val<'k, u32>,
    entry: Val<'k, u32>,
    value: Val<'k, i32>,
    allowed: [Val<'k, i32>; 2],
    /// Rows that the rule speaks of.
    rows: Val<'k, i32>,
}

/// Where violations are told.
struct Record<'k> {
    k: &'k KernelBuilder,
    words: GlobalPtr<'k, u32>,
    /// Whether this thread is the one that tells what is wrong with a sequence.
    speaks: Val<'k, bool>,
}

impl<'k> Record<'k> {
    fn declare(k: &'k KernelBuilder) -> Record<'k> {
        Record {
            k,
            words: k.param_ptr_mut("record"),
            speaks: k.thread_idx().eq(0),
        }
    }

    #[track_caller]
    fn tell(&self, is: Val<'k, bool>, rule: Rule, argument: &'static str, wrong: &Wrong<'k>) {
        let high = wrong.value.lt(0).select(u32::MAX, 0u32);
        self.tell_wide(is, rule, argument, wrong, high);
    }

    /// The same of a value whose high word is given.
    #[track_caller]
    fn tell_wide(&self, is: Val<'k, bool>, rule: Rule, argument: &'static str, wrong: &Wrong<'k>, high: Val<'k, u32>) {
        let k = self.k;
        k.if_(is.divergent(), || {
            let found = self.words.atomic(AtomOp::Add, 1u32);
            // The first one has the record for itself.
            k.if_(found.eq(0).divergent(), || {
                let [least, most] = wrong.allowed.map(Val::reinterpret);
                let site = k.constant(site(rule, argument));
                let (value, rows) = (wrong.value.reinterpret(), wrong.rows.reinterpret());
                let words = [site, wrong.index, wrong.entry, value, high, least, most, rows];
                for (at, word) in (2..).zip(words) {
                    self.words.plus(at).store(word);
                }
                self.words.plus(1).store_release(1u32);
            });
        });
    }
}

#[track_caller]
fn load<'k>(array: GlobalPtr<'k, i32>, index: Val<'k, u32>) -> Val<'k, i32> {
    array.offset(index).load_with(Cache::ReadOnly)
}

#[track_caller]
fn within<'k>(value: Val<'k, i32>, least: Val<'k, i32>, most: Val<'k, i32>) -> Val<'k, bool> {
    value.ge(least) & value.le(most)
}

/// Rows of a sequence as its values give them, and whether this thread is to tell what else is wrong with it: the
/// values are right so far.
#[derive(Clone, Copy)]
struct Rows<'k> {
    /// 0 where they are wrong.
    len: Val<'k, i32>,
    speaks: Val<'k, bool>,
}

impl<'k> Record<'k> {
    /// The rows between two offsets, of tensors with `total` rows.
    fn offsets(
        &self,
        argument: &'static str,
        starts: GlobalPtr<'k, i32>,
        total: Val<'k, i32>,
        sequence: Val<'k, u32>,
    ) -> Rows<'k> {
        let zero = self.k.constant(0i32);
        let (first, end) = (load(starts, sequence), load(starts.plus(1), sequence));
        let (first_fits, end_fits) = (within(first, zero, total), within(end, first, total));
        let wrong = |entry, value, least| Wrong {
            index: sequence,
            entry,
            value,
            allowed: [least, total],
            rows: zero,
        };
        // The end of the sequence before is the first row of this one.
        let is_first = self.speaks & sequence.eq(0);
        self.tell(
            is_first & !first_fits,
            Rule::Offset,
            argument,
            &wrong(sequence, first, zero),
        );
        let end_is_wrong = self.speaks & first_fits & !end_fits;
        self.tell(
            end_is_wrong,
            Rule::Offset,
            argument,
            &wrong(sequence + 1u32, end, first),
        );
        let fit = first_fits & end_fits;
        Rows {
            len: fit.select(end - first, zero),
            speaks: self.speaks & fit,
        }
    }

    /// A number of a sequence that is at least 0 and at most `most`; 0 where it is not.
    fn number(
        &self,
        argument: &'static str,
        array: GlobalPtr<'k, i32>,
        sequence: Val<'k, u32>,
        most: Rows<'k>,
    ) -> Rows<'k> {
        let zero = self.k.constant(0i32);
        let value = load(array, sequence);
        let fits = within(value, zero, most.len);
        let wrong = Wrong {
            index: sequence,
            entry: sequence,
            value,
            allowed: [zero, most.len],
            rows: zero,
        };
        self.tell(most.speaks & !fits, Rule::Number, argument, &wrong);
        Rows {
            len: fits.select(value, zero),
            speaks: most.speaks & fits,
        }
    }
}

/// Pages of a cache and the table that has them.
struct Paged<'k> {
    table: GlobalPtr<'k, i32>,
    page_size: Val<'k, u32>,
    pages: Val<'k, i32>,
    max_pages: Val<'k, u32>,
}

impl<'k> Paged<'k> {
    fn declare(k: &'k KernelBuilder) -> Paged<'k> {
        Paged {
            table: k.param_ptr("block_table"),
            page_size: k.param("page_size"),
            pages: k.param("pages"),
            max_pages: k.param("max_pages"),
        }
    }

    /// The pages of the keys from `first` to `end` in a row of the table; `may_lack` says whether the entry of keys
    /// from one to another may be −1.
    fn check(
        &self,
        record: &Record<'k>,
        sequence: Val<'k, u32>,
        row: Val<'k, u32>,
        [first, end]: [Val<'k, i32>; 2],
        may_lack: impl Fn([Val<'k, u32>; 2]) -> Option<Val<'k, bool>>,
    ) {
        let k = record.k;
        let (zero, most) = (k.constant(0i32), self.pages - 1);
        let entries = self.table.offset_strided(row, self.max_pages);
        let [first, end] = [first, end].map(Val::reinterpret::<u32>);
        let last = (end + self.page_size - 1u32) / self.page_size;
        // Without keys there is no entry to read.
        let last = end.gt(first).select(last, 0u32);
        k.for_divergent(first / self.page_size + k.thread_idx(), last, THREADS, |entry| {
            let page = load(entries, entry);
            let is_wrong = !within(page, zero, most);
            let from = entry * self.page_size;
            let is_wrong = match may_lack([from, from + self.page_size]) {
                None => is_wrong,
                Some(may) => is_wrong & !(page.eq(-1) & may),
            };
            let wrong = Wrong {
                index: sequence,
                entry,
                value: page,
                allowed: [zero, most],
                rows: zero,
            };
            record.tell(is_wrong, Rule::Page, "block_table", &wrong);
        });
    }
}

/// The values of attention's lengths.
struct Attention<'k> {
    values: Lengths<GlobalPtr<'k, i32>>,
    seq_len_q: Val<'k, i32>,
    seq_len_kv: Val<'k, i32>,
    total_q: Val<'k, i32>,
    total_k: Val<'k, i32>,
    paged: Option<Paged<'k>>,
    band: Band<Val<'k, i32>>,
    /// Whether the mask's diagonal ends at the last key: 1, else 0.
    bottom_right: Val<'k, i32>,
    record: Record<'k>,
}

impl<'k> Attention<'k> {
    fn declare(k: &'k KernelBuilder, kinds: Lengths<()>) -> Attention<'k> {
        let array = |name| match name {
            "block_table" => None, // with the sizes of pages
            name => kinds.named(name).map(|()| k.param_ptr(name)),
        };
        let values = Lengths::from(Lengths::<()>::NAMES.map(array));
        let [seq_len_q, seq_len_kv, total_q, total_k] =
            ["seq_len_q", "seq_len_kv", "total_q", "total_k"].map(|name| k.param(name));
        Attention {
            values,
            seq_len_q,
            seq_len_kv,
            total_q,
            total_k,
            paged: kinds.block_table.map(|()| Paged::declare(k)),
            band: Band {
                lo: k.param("key_lo"),
                hi: k.param("key_hi"),
                len: seq_len_kv,
            },
            bottom_right: k.param("bottom_right"),
            record: Record::declare(k),
        }
    }

    /// The rows of a sequence, by offsets and by how many are used, if there are such values.
    fn rows(
        &self,
        [of_starts, of_used]: [&'static str; 2],
        sequence: Val<'k, u32>,
        [total, most]: [Val<'k, i32>; 2],
    ) -> Rows<'k> {
        let (record, zero) = (&self.record, self.record.k.constant(0i32));
        let mut rows = Rows {
            len: most,
            speaks: record.speaks,
        };
        if let Some(&starts) = self.values.named(of_starts) {
            let Rows { len, speaks } = record.offsets(of_starts, starts, total, sequence);
            let fits = len.le(most);
            let wrong = Wrong {
                index: sequence,
                entry: sequence,
                value: len,
                allowed: [zero, most],
                rows: zero,
            };
            record.tell(speaks & !fits, Rule::Bound, of_starts, &wrong);
            rows = Rows {
                len: fits.select(len, zero),
                speaks: speaks & fits,
            };
        }
        match self.values.named(of_used) {
            None => rows,
            Some(&used) => record.number(of_used, used, sequence, rows),
        }
    }

    fn check(&self) {
        let k = self.record.k;
        let sequence = k.block_idx(0);
        let q = self.rows(["cu_seqlens_q", "seqused_q"], sequence, [self.total_q, self.seq_len_q]);
        let keys = self.rows(["cu_seqlens_k", "seqused_k"], sequence, [self.total_k, self.seq_len_kv]);
        let Some(paged) = &self.paged else { return };
        let shift = (keys.len - q.len) * self.bottom_right;
        let band = Band {
            lo: self.band.lo + shift,
            hi: self.band.hi + shift,
            len: keys.len,
        };
        let (zero, last_row) = (k.constant(0i32), q.len.max(1) - 1);
        let ((first, _), (_, end)) = (band.keys(zero), band.keys(last_row));
        let end = q.len.gt(0).select(end, zero);
        let [first, end] = [first, end].map(Val::reinterpret::<u32>);
        // Where no row sees a key, no page is needed.
        let unseen = |[from, to]: [Val<'k, u32>; 2]| Some(first.ge(end) | from.ge(end) | first.ge(to));
        paged.check(&self.record, sequence, sequence, [zero, keys.len], unseen);
    }
}

/// The values of an append.
struct Append<'k> {
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
    fn declare(k: &'k KernelBuilder, kinds: AppendValues<()>, slot_words: u32, rotates: bool) -> Append<'k> {
        let array = |name| match name {
            "block_table" => None, // with the sizes of pages
            name => kinds.named(name).map(|()| k.param_ptr(name)),
        };
        Append {
            values: AppendValues::from(AppendValues::<()>::NAMES.map(array)),
            paged: kinds.block_table.map(|()| Paged::declare(k)),
            slots: (slot_words > 0).then(|| (k.param_ptr("slot_mapping"), slot_words)),
            rotates,
            batch: k.param("batch"),
            seq_len_kv: k.param("seq_len_kv"),
            new_rows: k.param("new_rows"),
            seq_new: k.param("seq_new"),
            tables: k.param("tables"),
            slot_count: k.param("slots"),
            positions: k.param("positions"),
            q_rows: k.param("q_rows"),
            q_most: k.param("q_most"),
            record: Record::declare(k),
        }
    }

    fn check(&self) {
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
        let new = match values.cu_seqlens_k_new {
            None => Rows {
                len: self.seq_new,
                speaks: record.speaks,
            },
            Some(starts) => record.offsets("cu_seqlens_k_new", starts, self.new_rows.reinterpret(), sequence),
        };
        let wrong = |value, rows, most| Wrong {
            index: sequence,
            entry: sequence,
            value,
            allowed: [zero, most],
            rows,
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
            placed = Rows {
                len: fits.select(new.len, zero),
                speaks: new.speaks & fits,
            };
            if let Some(padding) = values.leftpad_k {
                let keys = Rows {
                    len: len + new.len,
                    ..placed
                };
                record.number("leftpad_k", padding, sequence, keys);
            }
        }
        let mut part = sequence;
        if let Some(parts) = values.cache_batch_idx {
            let most = Rows {
                len: self.tables - 1,
                ..placed
            };
            part = record
                .number("cache_batch_idx", parts, sequence, most)
                .len
                .reinterpret();
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
            index: sequence,
            entry: sequence,
            value,
            allowed: [zero, self.positions],
            rows,
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
        let q = match self.values.cu_seqlens_q {
            None => Rows {
                len: self.q_rows,
                speaks: record.speaks,
            },
            Some(starts) => record.offsets("cu_seqlens_q", starts, self.q_rows, sequence),
        };
        let q = Rows {
            len: q.len.min(self.q_most),
            ..q
        };
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
            let wrong = Wrong {
                index: row,
                entry: row,
                value: low,
                allowed: [k.constant(-1), self.slot_count - 1],
                rows: k.constant(0),
            };
            record.tell_wide(is_wrong, Rule::Slot, "slot_mapping", &wrong, high);
        });
    }
}
