//! The kernel. A block has a sequence, whose pages its threads share, and in addition a new row for each thread, where
//! slots say where those go.

use flashcore_ir::inst::AtomOp;
use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, Val};

use super::record::{RECORD_WORDS, Rule, site};
use crate::args::Args;

pub(super) mod append;
pub(super) mod attention;

pub(super) const THREADS: u32 = 128;

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

impl<'k> Wrong<'k> {
    /// A value of a sequence, or of a new row, and the least and the most that it may be.
    fn of(index: Val<'k, u32>, value: Val<'k, i32>, allowed: [Val<'k, i32>; 2]) -> Wrong<'k> {
        Wrong {
            index,
            entry: index,
            value,
            allowed,
            rows: value.builder().constant(0),
        }
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

impl<'k> Rows<'k> {
    /// Another number of them.
    fn with(self, len: Val<'k, i32>) -> Rows<'k> {
        Rows { len, ..self }
    }

    /// As many rows, if they fit, else none, with which something is wrong already.
    #[track_caller]
    fn if_they(fit: Val<'k, bool>, len: Val<'k, i32>, speaks: Val<'k, bool>) -> Rows<'k> {
        Rows {
            len: fit.select(len, 0),
            speaks: speaks & fit,
        }
    }
}

/// Where violations are told.
struct Record<'k> {
    k: &'k KernelBuilder,
    words: GlobalPtr<'k, u32>,
    /// Whether this thread is the one that tells what is wrong with a sequence.
    speaks: Val<'k, bool>,
}

impl<'k> Record<'k> {
    fn declare<R: 'static>(k: &'k Args<'k, R>) -> Record<'k> {
        Record {
            k,
            words: k.output("record", 4, |_| RECORD_WORDS),
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

    /// So many rows.
    fn rows(&self, len: Val<'k, i32>) -> Rows<'k> {
        let speaks = self.speaks;
        Rows { len, speaks }
    }

    /// The rows between two offsets, of tensors with `total` rows; without offsets `each`.
    fn offsets(
        &self,
        argument: &'static str,
        starts: Option<GlobalPtr<'k, i32>>,
        [total, each]: [Val<'k, i32>; 2],
        sequence: Val<'k, u32>,
    ) -> Rows<'k> {
        let Some(starts) = starts else {
            return self.rows(each);
        };
        let zero = self.k.constant(0i32);
        let (first, end) = (load(starts, sequence), load(starts.plus(1), sequence));
        let (first_fits, end_fits) = (within(first, zero, total), within(end, first, total));
        let wrong = |entry, value, least| Wrong {
            entry,
            ..Wrong::of(sequence, value, [least, total])
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
        Rows::if_they(first_fits & end_fits, end - first, self.speaks)
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
        let wrong = Wrong::of(sequence, value, [zero, most.len]);
        self.tell(most.speaks & !fits, Rule::Number, argument, &wrong);
        Rows::if_they(fits, value, most.speaks)
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
    /// `sizes` are keys of a page, pages, and entries of a sequence.
    fn declare<R: 'static>(k: &'k Args<'k, R>, table: GlobalPtr<'k, i32>, sizes: fn(&R) -> [usize; 3]) -> Paged<'k> {
        Paged {
            table,
            page_size: k.number("page_size", move |request| sizes(request)[0] as u32),
            pages: k.number("pages", move |request| sizes(request)[1] as i32),
            max_pages: k.number("max_pages", move |request| sizes(request)[2] as u32),
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
                entry,
                ..Wrong::of(sequence, page, [zero, most])
            };
            record.tell(is_wrong, Rule::Page, "block_table", &wrong);
        });
    }
}
