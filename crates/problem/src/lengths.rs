//! Lengths of the sequences of a batch: where the rows of each lie, and how many there are.
//!
//! Lengths have two axes, Q ([`QLengths`]) and K/V ([`KvLengths`]); every combination is valid. A
//! [`Problem`] holds their kinds and upper bounds. The values are [`Lengths`]: tensors of i32, given
//! with Q, K and V, on the device for kernels. [`Problem::sequences`] checks values on the host.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::arrays::{arrays, check_entries};
use crate::{KeyRange, Problem, ProblemBuilder, ProblemError, refuse};

/// Where the query rows of a sequence lie in Q and O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum QLengths {
    /// Every sequence has `seq_len_q` rows: tensors are `[batch, seq_len_q, heads, head_dim]`.
    #[default]
    Equal,
    /// Sequences follow each other in tensors `[1, total, heads, head_dim]`; the log-sum-exp is
    /// `[heads, total]`. Needs [`Lengths::cu_seqlens_q`]. `seq_len_q` bounds the rows of each.
    Packed {
        /// Rows of the tensors.
        total: usize,
        /// Whether [`Lengths::seqused_q`] says how many of its rows each sequence uses.
        used: bool,
    },
}

/// Where the keys of a sequence lie in K and V.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum KvLengths {
    /// Every sequence has `seq_len_kv` keys: tensors are `[batch, seq_len_kv, kv_heads, head_dim]`.
    #[default]
    Equal,
    /// As [`QLengths::Packed`], with [`Lengths::cu_seqlens_k`] and [`Lengths::seqused_k`].
    Packed {
        /// Rows of the tensors.
        total: usize,
        /// Whether [`Lengths::seqused_k`] says how many of its rows each sequence uses.
        used: bool,
    },
    /// A contiguous cache `[batch, seq_len_kv, kv_heads, head_dim]` of which each sequence uses the
    /// first [`Lengths::seqused_k`] rows.
    Cache,
    /// A cache of pages `[pages, page_size, kv_heads, head_dim]` (or, by strides, `[pages, kv_heads,
    /// page_size, head_dim]`). Key `j` of a sequence is row `j % page_size` of the page in entry
    /// `j / page_size` of its row of [`Lengths::block_table`]; [`Lengths::seqused_k`] are the
    /// numbers of keys, at most `seq_len_kv`.
    Paged {
        /// Keys of a page, at least 1.
        page_size: usize,
        /// Pages of the cache.
        pages: usize,
        /// Entries of each sequence in the block table; they hold `seq_len_kv` keys or more.
        max_pages: usize,
    },
}

impl QLengths {
    /// The first two dimensions of Q and O.
    pub(crate) fn rows(self, batch: usize, seq_len: usize) -> [usize; 2] {
        match self {
            QLengths::Equal => [batch, seq_len],
            QLengths::Packed { total, .. } => [1, total],
        }
    }
}

impl KvLengths {
    /// The first two dimensions of K and V.
    pub(crate) fn rows(self, batch: usize, seq_len: usize) -> [usize; 2] {
        match self {
            KvLengths::Equal | KvLengths::Cache => [batch, seq_len],
            KvLengths::Packed { total, .. } => [1, total],
            KvLengths::Paged { page_size, pages, .. } => [pages, page_size],
        }
    }
}

arrays! {
    /// The values of lengths: i32 arrays, of which a problem needs those that [`Problem::length_entries`] names. `B` is
    /// how an array is given: `&[i32]` on the host, a slice of device memory on a GPU.
    Lengths[5] {
        /// First row of each sequence in Q and O, and the end of the last: `[batch + 1]`, from 0.
        cu_seqlens_q = CuSeqlensQ,
        /// Rows that each sequence uses of its rows in Q: `[batch]`.
        seqused_q = SequsedQ,
        /// First row of each sequence in K and V, and the end of the last: `[batch + 1]`, from 0.
        cu_seqlens_k = CuSeqlensK,
        /// Keys of each sequence: `[batch]`.
        seqused_k = SequsedK,
        /// The pages of each sequence: `[batch, max_pages]`. Entries past its last key are not read; −1 is no page.
        block_table = BlockTable,
    }
}

impl Lengths<Vec<i32>> {
    /// Borrows the arrays.
    pub fn as_slices(&self) -> Lengths<&[i32]> {
        self.map(Vec::as_slice)
    }
}

/// A sequence of a batch: its rows and keys, and which it sees.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// Query rows.
    pub len_q: usize,
    /// Keys.
    pub len_kv: usize,
    /// The mask, resolved for these lengths.
    pub keys: KeyRange,
    q: [usize; 2],
    kv: [usize; 2],
    pages: Option<(&'a [i32], usize)>,
}

impl Sequence<'_> {
    /// Where a query row is in Q and O: the first two indices of their shapes.
    pub fn q_row(&self, row: usize) -> [usize; 2] {
        [self.q[0], self.q[1] + row]
    }

    /// The query row at the first two indices of Q and O, if it is of this sequence.
    pub fn row_at(&self, [b, s]: [usize; 2]) -> Option<usize> {
        let row = s.checked_sub(self.q[1])?;
        (b == self.q[0] && row < self.len_q).then_some(row)
    }

    /// Where a key is in K and V: the first two indices of their shapes. `None` on no page, where
    /// no row sees it.
    pub fn kv_row(&self, key: usize) -> Option<[usize; 2]> {
        let Some((table, page_size)) = self.pages else {
            return Some([self.kv[0], self.kv[1] + key]);
        };
        let page = usize::try_from(table[key / page_size]).ok()?;
        Some([page, key % page_size])
    }

    /// Whether its keys follow each other in K and V.
    pub fn is_contiguous(&self) -> bool {
        self.pages.is_none()
    }

    /// Whether some row sees two keys or more. Without sinks the outputs of others are zeros or rows of V, whatever the
    /// scores are.
    pub fn mixes_keys(&self) -> bool {
        (0..self.len_q).any(|row| self.keys.keys(row).len() > 1)
    }

    /// Refuses pages outside the cache, and none where a row sees keys.
    fn check_pages(&self, b: usize, pages: usize) -> Result<(), ProblemError> {
        let Some((table, page_size)) = self.pages else {
            return Ok(());
        };
        let seen = self.seen();
        for (i, &page) in table[..self.len_kv.div_ceil(page_size)].iter().enumerate() {
            let of = format!("has {page} in entry {i} of sequence {b}");
            refuse!(page < -1 || page >= pages as i32 =>
                lengths("block_table", format!("{of}; the cache has pages 0 to {}", pages - 1)));
            refuse!(page == -1 && !seen.is_empty() && i * page_size < seen.end && seen.start < (i + 1) * page_size =>
                lengths("block_table", format!("{of}, no page, but rows see keys of it")));
        }
        Ok(())
    }

    /// The keys that its rows see together, as far as a band shows.
    pub fn seen(&self) -> Range<usize> {
        match self.len_q {
            0 => 0..0,
            rows => self.keys.keys(0).start..self.keys.keys(rows - 1).end,
        }
    }
}

impl ProblemBuilder {
    /// Q `[1, total, heads, head_dim]` has the rows of so many sequences, `most` at most of each: packed, after
    /// [`Problem::of`], which knows the total.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{DType, KvLengths, Problem, QLengths, Tensor};
    /// let [q, pages] = [[1, 20, 8, 64], [40, 16, 2, 64]].map(|shape| Tensor::filled(DType::F16, shape.into(), 0));
    /// let problem = Problem::of(&q, &pages, &pages).packed_q(3, 10).paged(7).causal().build()?;
    /// assert_eq!(problem.q_lengths(), QLengths::Packed { total: 20, used: false });
    /// assert_eq!(problem.kv_lengths(), KvLengths::Paged { page_size: 16, pages: 40, max_pages: 7 });
    /// assert_eq!((problem.batch(), problem.seq_len_q(), problem.seq_len_kv()), (3, 10, 112));
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    pub fn packed_q(self, sequences: usize, most: usize) -> Self {
        let total = self.layouts[0].map_or(0, |q| q.shape[1]);
        self.batch(sequences)
            .seq_len_q(most)
            .q_lengths(QLengths::Packed { total, used: false })
    }

    /// K and V are pages `[pages, page_size, kv_heads, head_dim]`, at most `max_pages` of a sequence: after
    /// [`Problem::of`], which knows their number and size. With Q `[batch, seq, heads, head_dim]` the batch is that of
    /// Q; for packed rows see [`ProblemBuilder::packed_q`].
    pub fn paged(self, max_pages: usize) -> Self {
        let [pages, page_size] = self.layouts[1].map_or([0, 0], |k| [k.shape[0], k.shape[1]]);
        let most = max_pages.saturating_mul(page_size);
        let paged = KvLengths::Paged {
            page_size,
            pages,
            max_pages,
        };
        self.seq_len_kv(most).kv_lengths(paged)
    }
}

impl Problem {
    /// Entries of a sequence in the block table; 0 without one.
    #[doc(hidden)]
    pub fn max_pages(&self) -> usize {
        match self.kv_lengths() {
            KvLengths::Paged { max_pages, .. } => max_pages,
            KvLengths::Equal | KvLengths::Packed { .. } | KvLengths::Cache => 0,
        }
    }

    /// Whether some lengths or pages are values on the device: not both axes are equal.
    pub fn has_lengths(&self) -> bool {
        self.q_lengths() != QLengths::Equal || self.kv_lengths() != KvLengths::Equal
    }

    /// Which arrays the problem needs, and their numbers of entries.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{KvLengths, Problem, QLengths};
    /// let problem = Problem::builder().batch(3).heads(8, 2).head_dim(64).seq_len_q(10).seq_len_kv(100);
    /// let paged = KvLengths::Paged { page_size: 16, pages: 40, max_pages: 7 };
    /// let problem = problem.q_lengths(QLengths::Packed { total: 20, used: false }).kv_lengths(paged).build()?;
    /// let entries = problem.length_entries();
    /// assert_eq!((entries.cu_seqlens_q, entries.seqused_k, entries.block_table), (Some(4), Some(3), Some(21)));
    /// assert_eq!((entries.seqused_q, entries.cu_seqlens_k), (None, None));
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    pub fn length_entries(&self) -> Lengths<usize> {
        let batch = self.batch();
        let mut entries = Lengths::default();
        if let QLengths::Packed { used, .. } = self.q_lengths() {
            entries.cu_seqlens_q = Some(batch + 1);
            entries.seqused_q = used.then_some(batch);
        }
        match self.kv_lengths() {
            KvLengths::Equal => {}
            KvLengths::Packed { used, .. } => {
                entries.cu_seqlens_k = Some(batch + 1);
                entries.seqused_k = used.then_some(batch);
            }
            KvLengths::Cache => entries.seqused_k = Some(batch),
            KvLengths::Paged { max_pages, .. } => {
                entries.seqused_k = Some(batch);
                entries.block_table = Some(batch * max_pages);
            }
        }
        entries
    }

    /// Checks that exactly the arrays that the problem needs are given, each with as many entries
    /// (`count`) as it needs.
    ///
    /// # Errors
    /// [`ProblemError::Lengths`] for the first that is missing, of no use or of another length.
    pub fn check_given<B>(&self, lengths: &Lengths<B>, count: impl Fn(&B) -> usize) -> Result<(), ProblemError> {
        let (needed, given) = (self.length_entries(), lengths.map(count));
        let batch = self.batch();
        let of = format_args!("problem of {batch} sequences");
        check_entries(Lengths::<B>::NAMES, given.arrays(), needed.arrays(), of)
    }

    /// The sequences of the batch, from values that are checked: lengths within the bounds, rows
    /// within the tensors, pages within the cache.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{Lengths, Mask, Problem, QLengths};
    /// let problem = Problem::builder().batch(2).heads(1, 1).head_dim(64).seq_len_q(3).seq_len_kv(4);
    /// let problem = problem.mask(Mask::CAUSAL).q_lengths(QLengths::Packed { total: 5, used: false }).build()?;
    /// let lengths = Lengths { cu_seqlens_q: Some(&[0, 2, 5][..]), ..Lengths::default() };
    /// let sequences = problem.sequences(&lengths)?;
    /// assert_eq!(sequences[0].keys.keys(0), 0..3); // row 0 of 2
    /// assert_eq!((sequences[1].q_row(2), sequences[1].keys.keys(2)), ([0, 4], 0..4));
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    ///
    /// # Errors
    /// [`ProblemError::Lengths`], which names the array and the entry.
    pub fn sequences<'a>(&self, lengths: &Lengths<&'a [i32]>) -> Result<Vec<Sequence<'a>>, ProblemError> {
        self.check_given(lengths, |values| values.len())?;
        (0..self.batch()).map(|b| self.sequence(b, lengths)).collect()
    }

    /// All that contradicts the problem, one error for each such sequence; [`Problem::sequences`] gives the first one.
    /// A kernel cannot refuse such values: it takes a length above its bound as the bound, and a page outside the cache
    /// as zeros. To find out why results are wrong, copy the arrays to the host and ask here.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{KvLengths, Lengths, Problem};
    /// let problem = Problem::builder().batch(3).heads(1, 1).seq_len(4).head_dim(8).kv_lengths(KvLengths::Cache).build()?;
    /// let lengths = Lengths { seqused_k: Some(&[9, 4, -1][..]), ..Lengths::default() };
    /// let found: Vec<String> = problem.length_findings(&lengths).iter().map(ToString::to_string).collect();
    /// assert_eq!(found.len(), 2);
    /// assert!(found[0].contains("has 9 for sequence 0; allowed are 0 to 4"), "{found:?}");
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    pub fn length_findings(&self, lengths: &Lengths<&[i32]>) -> Vec<ProblemError> {
        match self.check_given(lengths, |values| values.len()) {
            Err(error) => vec![error],
            Ok(()) => (0..self.batch())
                .filter_map(|b| self.sequence(b, lengths).err())
                .collect(),
        }
    }

    fn sequence<'a>(&self, b: usize, lengths: &Lengths<&'a [i32]>) -> Result<Sequence<'a>, ProblemError> {
        let (q_shape, [pages, page_size, ..]) = (self.q_layout().shape, self.k_layout().shape);
        let names = ["cu_seqlens_q", "seqused_q"];
        let (q, len_q) = rows(lengths, names, b, [q_shape[1], self.seq_len_q()])?;
        let names = ["cu_seqlens_k", "seqused_k"];
        let (kv, len_kv) = rows(lengths, names, b, [page_size, self.seq_len_kv()])?;
        let table = lengths
            .block_table
            .map(|table| table.chunks(table.len() / self.batch()));
        let sequence = Sequence {
            len_q,
            len_kv,
            keys: self.key_range_of(len_q, len_kv),
            q,
            kv,
            pages: table.and_then(|mut table| Some((table.nth(b)?, page_size))),
        };
        sequence.check_pages(b, pages)?;
        Ok(sequence)
    }

    /// All query rows of all sequences, as `[first index, head, second index]` of O, in memory order
    /// of a dense O. With packed sequences these are not all rows of O.
    ///
    /// # Errors
    /// As [`Problem::sequences`].
    pub fn query_rows(&self, lengths: &Lengths<&[i32]>) -> Result<Vec<[usize; 3]>, ProblemError> {
        let mut rows = Vec::with_capacity(self.lse_len());
        for sequence in self.sequences(lengths)? {
            for [b, s] in (0..sequence.len_q).map(|row| sequence.q_row(row)) {
                rows.extend((0..self.num_heads()).map(|h| [b, h, s]));
            }
        }
        Ok(rows)
    }
}

/// The rows of a packed sequence in tensors of `total` rows, or what is wrong with its starts.
pub(crate) fn packed_rows(starts: &[i32], b: usize, total: usize) -> Result<Range<usize>, String> {
    let (first, end, entry) = (starts[b], starts[b + 1], b + 1);
    Err(match (usize::try_from(first), usize::try_from(end)) {
        (first, _) if b == 0 && first != Ok(0) => format!("starts at {}; it must start at 0", starts[0]),
        (Ok(first), Ok(end)) if first <= end && end <= total => return Ok(first..end),
        (_, Ok(end)) if end > total => format!("has {end} in entry {entry}; its tensors have {total} rows"),
        _ if end < first => format!("decreases from {first} to {end} at entry {entry}; it must not"),
        _ => format!("has {first} in entry {b}; it must be 0 or more"),
    })
}

/// Where sequence `b` begins, as the first two indices of its tensors, and its length. `total` are the rows of the
/// tensors, `most` bounds its length.
fn rows(
    lengths: &Lengths<&[i32]>,
    [of_starts, of_used]: [&'static str; 2],
    b: usize,
    [total, most]: [usize; 2],
) -> Result<([usize; 2], usize), ProblemError> {
    let (mut at, mut len) = ([b, 0], most);
    if let Some(starts) = lengths.named(of_starts) {
        let rows = packed_rows(starts, b, total).or_else(|why| ProblemError::lengths(of_starts, why))?;
        if rows.len() > most {
            let many = rows.len();
            let why = format!("gives sequence {b} {many} rows; the problem's bound is {most}: raise it");
            return ProblemError::lengths(of_starts, why);
        }
        (at, len) = ([0, rows.start], rows.len());
    }
    match lengths.named(of_used).map(|used| used[b]) {
        None => Ok((at, len)),
        Some(used) if usize::try_from(used).is_ok_and(|used| used <= len) => Ok((at, used as usize)),
        Some(used) => ProblemError::lengths(of_used, format!("has {used} for sequence {b}; allowed are 0 to {len}")),
    }
}
