//! The rows of an append whose values are on the host: where each goes, and what is wrong with the values.

use std::collections::HashMap;

use super::{Append, AppendPlace, AppendValues, SlotMapping};
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

    fn walk(
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
}

impl Walk<'_> {
    fn report(&mut self, argument: &'static str, why: String) {
        (self.report)(ProblemError::Lengths { argument, why });
    }

    /// The first indices of the rows of a sequence, one of equal ones if there are no starts.
    fn rows_of(&mut self, array: (&'static str, Option<&[i32]>), b: usize, total: usize) -> Option<Vec<[usize; 2]>> {
        let (argument, Some(starts)) = array else {
            return Some((0..total).map(|row| [b, row]).collect());
        };
        let rows = packed_rows(starts, b, total).map_err(|why| self.report(argument, why));
        Some(rows.ok()?.map(|row| [0, row]).collect())
    }

    /// The same of its new rows.
    fn new_rows(&mut self, b: usize) -> Option<Vec<[usize; 2]>> {
        let starts = ("cu_seqlens_k_new", self.values.cu_seqlens_k_new);
        self.rows_of(starts, b, self.append.k_new.shape[1])
    }

    /// A number below `most`, or a report.
    fn below(
        &mut self,
        argument: &'static str,
        given: i32,
        most: usize,
        why: impl FnOnce() -> String,
    ) -> Option<usize> {
        let found = usize::try_from(given).ok().filter(|given| *given < most);
        if found.is_none() {
            self.report(argument, why());
        }
        found
    }

    /// The position of the first new row, for the rotary embedding.
    fn first_position(&mut self, b: usize) -> Option<usize> {
        let (name, values) = match (self.values.seqlens_rotary, self.values.cache_seqlens) {
            (Some(values), _) => ("seqlens_rotary", values),
            (None, Some(values)) => ("cache_seqlens", values),
            (None, None) => return Some(0), // without a rotary embedding
        };
        let why = || format!("has {} for sequence {b}; it is 0 or more", values[b]);
        self.below(name, values[b], usize::MAX, why)
    }

    /// Refuses positions that the tables do not have.
    fn check_positions(&mut self, b: usize, first: usize, rows: usize) -> bool {
        let Some(rotary) = self.append.rotary.filter(|_| rows > 0) else {
            return true;
        };
        let fits = first + rows <= rotary.positions;
        if !fits {
            let (last, positions) = (first + rows - 1, rotary.positions);
            let why = format!("has {positions} positions; sequence {b} has rows up to position {last}");
            self.report("rotary_cos", why);
        }
        fits
    }

    fn sequence(&mut self, b: usize) {
        let (append, values) = (self.append, self.values);
        let (Some(rows), Some(lengths)) = (self.new_rows(b), values.cache_seqlens) else {
            return;
        };
        let (len, most) = (lengths[b], append.seq_len_kv);
        let len = match usize::try_from(len) {
            Ok(len) if len + rows.len() <= most => len,
            _ => {
                let many = rows.len();
                let why = format!(
                    "has {len} for sequence {b}, which appends {many} rows; there is room for 0 to {most} in all: \
                     append fewer, or to a cache with room for more"
                );
                return self.report("cache_seqlens", why);
            }
        };
        self.after(b, len + rows.len());
        let part = match values.cache_batch_idx {
            None => b,
            Some(parts) => {
                let [most, _] = append.tables();
                let why = || format!("has {} for sequence {b}; allowed are 0 to {}", parts[b], most - 1);
                let Some(part) = self.below("cache_batch_idx", parts[b], most, why) else {
                    return;
                };
                part
            }
        };
        let Some(first) = self.first_position(b) else { return };
        if !self.check_positions(b, first, rows.len()) {
            return;
        }
        let page_size = append.k_cache.shape[1];
        let mut wrong_page = None;
        for (i, from) in rows.into_iter().enumerate() {
            let key = len + i;
            let to = match (append.place, values.block_table) {
                (AppendPlace::Paged { max_pages, .. }, Some(table)) => {
                    let entry = key / page_size;
                    let page = table[part * max_pages + entry];
                    match usize::try_from(page) {
                        Ok(page) if page < append.k_cache.shape[0] => [page, key % page_size],
                        _ => {
                            if wrong_page.replace(entry) != Some(entry) {
                                let most = append.k_cache.shape[0] - 1;
                                let why = format!(
                                    "has {page} in entry {entry} of sequence {b}, which gets new rows there; the \
                                     cache has pages 0 to {most}"
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
                return self.report(argument, why);
            }
            let position = first + i;
            self.rows.new.push(NewRow { from, to, position });
        }
    }

    /// Notes how many keys a sequence has.
    fn after(&mut self, b: usize, keys: usize) {
        let padding = self.values.leftpad_k.map_or(0, |padding| padding[b]);
        let why = || format!("has {padding} for sequence {b}; it has {keys} rows, so allowed are 0 to {keys}");
        if let Some(padding) = self.below("leftpad_k", padding, keys + 1, why) {
            self.rows.seqused_k.push((keys - padding) as i32);
        }
    }

    fn slots(&mut self, slots: &SlotMapping<'_>) {
        let append = self.append;
        let [_, per_part, ..] = append.k_new.shape;
        let mut positions = vec![0; slots.len()];
        if append.rotary.is_some() {
            positions.fill(usize::MAX); // of no sequence
            for b in 0..append.batch {
                let (Some(rows), Some(first)) = (self.new_rows(b), self.first_position(b)) else {
                    continue;
                };
                if self.check_positions(b, first, rows.len()) {
                    for (i, [part, row]) in rows.into_iter().enumerate() {
                        positions[part * per_part + row] = first + i;
                    }
                }
            }
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
        let [_, rows, ..] = rotary.q.shape;
        for b in 0..self.append.batch {
            let at = self.rows_of(("cu_seqlens_q", self.values.cu_seqlens_q), b, rows);
            let (Some(at), Some(first)) = (at, self.first_position(b)) else {
                continue;
            };
            let many = at.len().min(if rotary.q_at_one_position { 1 } else { usize::MAX });
            if self.check_positions(b, first, many) {
                let position = |i: usize| first + i.min(many.saturating_sub(1));
                let rows = at.into_iter().enumerate();
                let rows = rows.map(|(i, at)| QueryRow {
                    at,
                    position: position(i),
                });
                self.rows.q.extend(rows);
            }
        }
    }
}
