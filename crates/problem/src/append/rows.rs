//! The rows of an append whose values are on the host: where each goes, and what is wrong with the values. The CPU
//! writes them, and the reference of kernels expects them.

use std::collections::HashMap;

use super::{Append, AppendPlace, AppendValues, Rotary, SlotMapping};
use crate::ProblemError;
use crate::lengths::packed_rows;

/// A new row of K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewRow {
    /// Its first two indices in `k_new` and `v_new`.
    pub from: [usize; 2],
    /// Its first two indices in the cache.
    pub to: [usize; 2],
    /// Its position, for the rotary embedding.
    pub position: usize,
}

/// A row of Q to rotate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryRow {
    /// Its first two indices in Q.
    pub at: [usize; 2],
    /// Its position.
    pub position: usize,
}

/// The rows of an append, from values that are checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// The new rows that are written.
    pub new: Vec<NewRow>,
    /// The rows of Q.
    pub q: Vec<QueryRow>,
    /// The keys of each sequence afterwards, without padding; empty of slots.
    pub seqused_k: Vec<i32>,
}

impl Append {
    /// Everything that is wrong with values: arrays that are missing or too short, lengths, pages and
    /// slots outside the cache, positions past the rotary tables, and two writers of a row of the
    /// cache. Each names the array, the sequence (or row) and the entry. A kernel writes no such row
    /// but those of two writers.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{Append, AppendValues, DType};
    /// let (new, cache) = ([2, 3, 1, 8].into(), [2, 10, 1, 8].into());
    /// let append = Append::to_cache(DType::F32, [new, new], [cache, cache]);
    /// let values = AppendValues { cache_seqlens: Some(&[7, 9][..]), ..AppendValues::default() };
    /// let found = append.findings(&values, None);
    /// assert_eq!(found.len(), 1);
    /// assert!(found[0].to_string().starts_with("cache_seqlens has 9 for sequence 1, which appends 3 rows"));
    /// ```
    pub fn findings(&self, values: &AppendValues<&[i32]>, slots: Option<SlotMapping<'_>>) -> Vec<ProblemError> {
        let mut found = Vec::new();
        self.walk(values, slots, &mut |error| found.push(error));
        found
    }

    /// The new rows that are written and the rows of Q, with their positions.
    ///
    /// # Errors
    /// The first of [`Append::findings`].
    pub fn rows(&self, values: &AppendValues<&[i32]>, slots: Option<SlotMapping<'_>>) -> Result<Rows, ProblemError> {
        let mut first = None;
        let rows = self.walk(values, slots, &mut |error| {
            first.get_or_insert(error);
        });
        first.map_or(Ok(rows), Err)
    }

    /// What a kernel writes, whatever the values are, and all that is wrong with them: a length is cut to its bounds,
    /// and a row without a place in the cache is not written. Of two writers of a row both are there.
    pub(super) fn walk(
        &self,
        values: &AppendValues<&[i32]>,
        slots: Option<SlotMapping<'_>>,
        report: &mut dyn FnMut(ProblemError),
    ) -> Rows {
        let given = self.check_given(values, |array| array.len(), slots.map(|slots| slots.len()));
        if let Err(error) = given.and_then(|()| self.check()) {
            report(error);
            return Rows::default();
        }
        let mut walk = Walk {
            append: self,
            values,
            report,
            rows: Rows::default(),
            writers: HashMap::new(),
            is_told: false,
        };
        match slots {
            Some(slots) => walk.slots(&slots),
            None => (0..self.batch).for_each(|b| walk.sequence(b)),
        }
        walk.q();
        walk.rows
    }
}

struct Walk<'w> {
    append: &'w Append,
    values: &'w AppendValues<&'w [i32]>,
    report: &'w mut dyn FnMut(ProblemError),
    rows: Rows,
    /// By row of the cache, as in [`NewRow::to`], the sequence that appends it, or the new row that has its slot.
    writers: HashMap<[usize; 2], usize>,
    /// Whether an error of this sequence is told that explains what comes after it.
    is_told: bool,
}

impl Walk<'_> {
    fn report(&mut self, argument: &'static str, why: String) {
        if !self.is_told {
            (self.report)(ProblemError::Lengths { argument, why });
        }
    }

    /// Reports what makes the rest of a sequence wrong, too.
    fn report_last(&mut self, argument: &'static str, why: String) {
        self.report(argument, why);
        self.is_told = true;
    }

    /// The rows of a sequence, one of equal ones if there are no starts: their numbers in it and their first indices.
    fn rows_of(
        &mut self,
        (argument, starts): (&'static str, Option<&[i32]>),
        b: usize,
        total: usize,
    ) -> Vec<(usize, [usize; 2])> {
        let Some(starts) = starts else {
            return (0..total).map(|row| (row, [b, row])).collect();
        };
        if let Err(why) = packed_rows(starts, b, total) {
            self.report_last(argument, why);
        }
        let (first, end) = (i64::from(starts[b]), i64::from(starts[b + 1]));
        let inside = first.max(0)..end.min(total as i64);
        inside.map(|row| ((row - first) as usize, [0, row as usize])).collect()
    }

    /// The same of its new rows.
    fn new_rows(&mut self, b: usize) -> Vec<(usize, [usize; 2])> {
        let starts = ("cu_seqlens_k_new", self.values.cu_seqlens_k_new);
        self.rows_of(starts, b, self.append.k_new.shape[1])
    }

    /// The position of the first new row, for the rotary embedding.
    fn first_position(&mut self, b: usize) -> usize {
        let (name, given, most) = match (self.values.seqlens_rotary, self.values.cache_seqlens) {
            (Some(values), _) => ("seqlens_rotary", values[b], usize::MAX),
            (None, Some(values)) => ("cache_seqlens", values[b], self.append.seq_len_kv),
            (None, None) => return 0, // without a rotary embedding
        };
        if given < 0 {
            self.report_last(name, format!("has {given} for sequence {b}; it is 0 or more"));
        }
        usize::try_from(given).map_or(0, |position| position.min(most))
    }

    /// Reports positions that the tables do not have.
    fn check_positions(&mut self, b: usize, first: usize, rows: usize) {
        if let Some(Rotary { positions, .. }) = self.append.rotary
            && rows > 0
            && first + rows > positions
        {
            let last = first + rows - 1;
            let why = format!("has {positions} positions; sequence {b} has rows up to position {last}");
            self.report_last("rotary_cos", why);
        }
    }

    fn sequence(&mut self, b: usize) {
        let (append, values) = (self.append, self.values);
        let [pages, page_size, ..] = append.k_cache.shape;
        self.is_told = false;
        let rows = self.new_rows(b);
        let (given, most) = (values.cache_seqlens.map_or(0, |lengths| lengths[b]), append.seq_len_kv);
        if !usize::try_from(given).is_ok_and(|len| len + rows.len() <= most) {
            let many = rows.len();
            let why = format!(
                "has {given} for sequence {b}, which appends {many} rows; there is room for 0 to {most} in all: \
                 append fewer, or to a cache with room for more"
            );
            self.report_last("cache_seqlens", why);
        }
        let len = usize::try_from(given).map_or(0, |len| len.min(most));
        self.after(b, (len + rows.len()).min(most));
        let parts = match append.place {
            AppendPlace::Paged { tables, .. } => tables,
            AppendPlace::Cache | AppendPlace::Slots { .. } => pages,
        };
        let given = values.cache_batch_idx.map_or(b as i64, |parts| i64::from(parts[b]));
        let part = usize::try_from(given).ok().filter(|part| *part < parts);
        if part.is_none() {
            let why = format!("has {given} for sequence {b}; allowed are 0 to {}", parts - 1);
            self.report_last("cache_batch_idx", why);
        }
        let first = self.first_position(b);
        self.check_positions(b, first, rows.len());
        let mut wrong_page = None;
        for (i, from) in rows {
            let key = len + i;
            let Some(part) = part.filter(|_| key < most) else {
                return;
            };
            let to = match (append.place, values.block_table) {
                (AppendPlace::Paged { max_pages, .. }, Some(table)) => {
                    let entry = key / page_size;
                    let page = table[part * max_pages + entry];
                    match usize::try_from(page) {
                        Ok(page) if page < pages => [page, key % page_size],
                        _ => {
                            if wrong_page.replace(entry) != Some(entry) {
                                let why = format!(
                                    "has {page} in entry {entry} of sequence {b}, which gets new rows there; the \
                                     cache has pages 0 to {}",
                                    pages - 1
                                );
                                self.report("block_table", why);
                            }
                            continue;
                        }
                    }
                }
                _ => [part, key],
            };
            if let Some(other) = self.writers.insert(to, b) {
                let (argument, given) = match values.block_table {
                    None => ("cache_batch_idx", part),
                    Some(_) => ("block_table", to[0]),
                };
                let why = format!(
                    "has {given} for sequences {other} and {b}, which both write row {} there; only one may",
                    to[1]
                );
                self.report_last(argument, why);
            }
            let position = first + i;
            self.rows.new.push(NewRow { from, to, position });
        }
    }

    /// Notes how many keys a sequence has.
    fn after(&mut self, b: usize, keys: usize) {
        let given = self.values.leftpad_k.map_or(0, |padding| padding[b]);
        let padding = usize::try_from(given).map_or(0, |padding| padding.min(keys));
        if i64::from(given) != padding as i64 {
            let why = format!("has {given} for sequence {b}; it has {keys} rows, so allowed are 0 to {keys}");
            self.report("leftpad_k", why);
        }
        self.rows.seqused_k.push((keys - padding) as i32);
    }

    fn slots(&mut self, slots: &SlotMapping<'_>) {
        let append = self.append;
        let [_, per_part, ..] = append.k_new.shape;
        let mut positions = vec![0; slots.len()];
        if append.rotary.is_some() {
            positions.fill(usize::MAX); // of no sequence
            for b in 0..append.batch {
                self.is_told = false;
                let (rows, first) = (self.new_rows(b), self.first_position(b));
                self.check_positions(b, first, rows.len());
                for (i, [part, row]) in rows {
                    positions[part * per_part + row] = first + i;
                }
            }
            self.is_told = false;
        }
        let (page_size, most) = (append.k_cache.shape[1], append.slots());
        for (row, position) in positions.into_iter().enumerate() {
            let slot = slots.get(row);
            match usize::try_from(slot) {
                _ if slot == -1 || position == usize::MAX => {}
                Ok(slot) if slot < most => {
                    let to = [slot / page_size, slot % page_size];
                    if let Some(other) = self.writers.insert(to, row) {
                        let why = format!("has {slot} for rows {other} and {row}; they must differ");
                        self.report("slot_mapping", why);
                    }
                    let from = [row / per_part, row % per_part];
                    self.rows.new.push(NewRow { from, to, position });
                }
                _ => {
                    let why = format!("has {slot} for row {row}; allowed are -1 (skip) and 0 to {}", most - 1);
                    self.report("slot_mapping", why);
                }
            }
        }
    }

    fn q(&mut self) {
        let Some(rotary) = self.append.rotary else { return };
        for b in 0..self.append.batch {
            self.is_told = false;
            let starts = ("cu_seqlens_q", self.values.cu_seqlens_q);
            let (rows, first) = (self.rows_of(starts, b, rotary.q.shape[1]), self.first_position(b));
            let step = usize::from(!rotary.q_at_one_position);
            self.check_positions(b, first, rows.len().min(1 + step * rows.len()));
            let row = |(i, at): (usize, [usize; 2])| {
                let position = first + step * i;
                QueryRow { at, position }
            };
            self.rows.q.extend(rows.into_iter().map(row));
        }
    }
}
