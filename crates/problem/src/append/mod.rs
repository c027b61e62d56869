//! Appending to a cache: new rows of K and V are written behind those that a sequence has, or at given
//! slots, and K and Q get their rotary embedding on the way.
//!
//! An [`Append`] holds shapes, strides and kinds. The values are [`AppendValues`]: arrays of i32, on the
//! device for kernels, and [`SlotMapping`]. Plans and kernels do not depend on them.

mod check;
mod rows;

pub use rows::{NewRow, QueryRow, Rows};

use crate::arrays::{arrays, check_entries};
use crate::{DType, Layout, ProblemError};

/// What is appended to which cache.
///
/// New rows are `[batch, seq_new, kv_heads, head_dim]`, or [packed](Append::packed) `[1, total,
/// kv_heads, head_dim]`; those of V may have another `head_dim`. The cache is `[cache_batch, capacity,
/// kv_heads, head_dim]`, or in pages `[pages, page_size, kv_heads, head_dim]`. All may have any strides
/// but the last, which is 1: a cache in the order `[pages, kv_heads, page_size, head_dim]` is one with
/// other strides.
///
/// **Warning.** Two writers of one row, such as two equal slots or a page that two sequences append to, are the
/// caller's error. Only the host reports it.
///
/// ```
/// # use flashcore_problem as flashcore;
/// use flashcore::{Append, DType, Rotary};
/// // Four sequences get a row each, in a cache of pages of 16 keys, at most 8 pages a sequence.
/// let (new, cache) = ([4, 1, 2, 64].into(), [40, 16, 2, 64].into());
/// let append = Append {
///     rotary: Some(Rotary::new([4, 1, 8, 64].into(), 128, 64)), // Q, positions, rotary_dim
///     ..Append::to_pages(DType::BF16, [new, new], [cache, cache], 8)
/// };
/// append.check()?;
/// assert_eq!((append.entries().cache_seqlens, append.entries().block_table), (Some(4), Some(32)));
/// # Ok::<(), flashcore::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Append {
    /// Element type of all tensors, the rotary tables included. Scales of e4m3 tensors are not applied.
    pub dtype: DType,
    /// Sequences.
    pub batch: usize,
    /// Bounds the keys of a sequence after the append, and their positions. At most the capacity of
    /// a sequence's part of the cache. Rows from here on are not written.
    pub seq_len_kv: usize,
    /// New rows of K.
    pub k_new: Layout,
    /// New rows of V.
    pub v_new: Layout,
    /// The cache of K.
    pub k_cache: Layout,
    /// The cache of V; its first two dimensions are those of K's.
    pub v_cache: Layout,
    /// Whether new rows of all sequences follow each other, and
    /// [`AppendValues::cu_seqlens_k_new`] says where each begins. Rows past the last sequence are not
    /// written.
    pub packed: bool,
    /// Where new rows go.
    pub place: AppendPlace,
    /// Whether [`AppendValues::cache_batch_idx`] selects the part of the cache that each sequence has.
    pub batch_idx: bool,
    /// Whether the number of keys that each sequence has after the append is written, i32 `[batch]`:
    /// what attention takes as `seqused_k`.
    pub seqused_k: bool,
    /// Whether sequences begin with padding ([`AppendValues::leftpad_k`]), which `seqused_k` does not
    /// count. Lengths and places of rows do.
    pub leftpad: bool,
    /// The rotary embedding of new rows of K, and of Q.
    pub rotary: Option<Rotary>,
}

/// Where new rows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AppendPlace {
    /// Behind the first [`AppendValues::cache_seqlens`] rows of a contiguous cache.
    Cache,
    /// The same in pages: row `j` of a sequence is row `j % page_size` of the page in entry
    /// `j / page_size` of its row of [`AppendValues::block_table`].
    Paged {
        /// Rows of the block table: `batch`, or more with `cache_batch_idx`, which selects them.
        tables: usize,
        /// Entries of each.
        max_pages: usize,
    },
    /// At [`SlotMapping`]: row `i` goes to row `slot % page_size` of page `slot / page_size`. The
    /// cache may be contiguous: then a sequence's part of it is a page.
    Slots {
        /// Whether slots are i64; else i32.
        wide: bool,
    },
}

/// A rotary embedding: a pair of columns `(a, b)` becomes `(a·cos − b·sin, a·sin + b·cos)`, computed in
/// f32 and rounded once; in e4m3 what is above 448 becomes 448.
///
/// The tables `rotary_cos` and `rotary_sin` are `[positions, dim / 2]`, dense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rotary {
    /// Q, `[batch, seq_q, heads, head_dim]`, or [packed](Rotary::packed_q) `[1, total_q, heads,
    /// head_dim]`.
    pub q: Layout,
    /// Where Q goes: another tensor, or the same memory.
    pub q_out: Layout,
    /// Whether sequences of Q follow each other ([`AppendValues::cu_seqlens_q`]).
    pub packed_q: bool,
    /// Rows of the tables. At least [`Append::seq_len_kv`].
    pub positions: usize,
    /// Columns that are rotated: even, at most `head_dim`. The others are copied.
    pub dim: usize,
    /// Whether pairs are columns 0 and 1, 2 and 3, …; else 0 and `dim / 2`, 1 and `dim / 2 + 1`, …
    pub interleaved: bool,
    /// Whether all rows of Q of a sequence have the position of its first new key, as without a causal
    /// mask and window in FlashAttention-3; else each the one of the new key with its number.
    pub q_at_one_position: bool,
    /// Whether [`AppendValues::seqlens_rotary`] are the positions of the first new keys; else
    /// `cache_seqlens` are.
    pub seqlens: bool,
}

impl Rotary {
    /// For Q `[batch, seq_q, heads, head_dim]`, in place or into memory of the same layout, with
    /// halves as pairs.
    pub fn new(q: Layout, positions: usize, dim: usize) -> Rotary {
        Rotary {
            q,
            q_out: q,
            packed_q: false,
            positions,
            dim,
            interleaved: false,
            q_at_one_position: false,
            seqlens: false,
        }
    }

    /// The layout of a table.
    pub fn table(&self) -> Layout {
        Layout::bshd([1, self.positions, 1, self.dim / 2])
    }
}

arrays! {
    /// The values of an append: i32 arrays, of which it needs those that [`Append::entries`] names. `B` is how an array
    /// is given: `&[i32]` on the host, a slice of device memory on a GPU.
    AppendValues[7] {
        /// Rows that each sequence has before, its padding included: `[batch]`.
        cache_seqlens = CacheSeqlens,
        /// First new row of each sequence, and the end of the last: `[batch + 1]`, from 0.
        cu_seqlens_k_new = CuSeqlensKNew,
        /// First row of each sequence in Q, and the end of the last: `[batch + 1]`, from 0.
        cu_seqlens_q = CuSeqlensQ,
        /// Which part of the cache, or row of the block table, each sequence has: `[batch]`. Sequences with new rows
        /// have different ones.
        cache_batch_idx = CacheBatchIdx,
        /// Rows of padding that each sequence begins with: `[batch]`.
        leftpad_k = LeftpadK,
        /// The pages of each sequence: `[tables, max_pages]`. Entries without new rows are not read.
        block_table = BlockTable,
        /// The position of the first new row of each sequence: `[batch]`.
        seqlens_rotary = SeqlensRotary,
    }
}

/// Slots on the host, one for each new row. A row whose slot is −1 is not written. Two rows with one
/// slot are the caller's error, which the host reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotMapping<'a> {
    /// As i32.
    I32(&'a [i32]),
    /// As i64, which vLLM has.
    I64(&'a [i64]),
}

impl SlotMapping<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            SlotMapping::I32(slots) => slots.len(),
            SlotMapping::I64(slots) => slots.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The slot of a row.
    pub fn get(&self, row: usize) -> i64 {
        match self {
            SlotMapping::I32(slots) => i64::from(slots[row]),
            SlotMapping::I64(slots) => slots[row],
        }
    }
}

impl Append {
    /// To a contiguous cache `[batch, capacity, kv_heads, head_dim]`, `k` and `v` of each.
    pub fn to_cache(dtype: DType, [k_new, v_new]: [Layout; 2], [k_cache, v_cache]: [Layout; 2]) -> Append {
        Append {
            dtype,
            batch: k_new.shape[0],
            seq_len_kv: k_cache.shape[1],
            k_new,
            v_new,
            k_cache,
            v_cache,
            packed: false,
            place: AppendPlace::Cache,
            batch_idx: false,
            seqused_k: false,
            leftpad: false,
            rotary: None,
        }
    }

    /// To pages `[pages, page_size, kv_heads, head_dim]`, by a block table `[batch, max_pages]`.
    pub fn to_pages(dtype: DType, new: [Layout; 2], cache: [Layout; 2], max_pages: usize) -> Append {
        let append = Append::to_cache(dtype, new, cache);
        let tables = append.batch;
        Append {
            place: AppendPlace::Paged { tables, max_pages },
            seq_len_kv: max_pages.saturating_mul(cache[0].shape[1]),
            ..append
        }
    }

    /// To slots of a cache, i64 or i32.
    pub fn to_slots(dtype: DType, new: [Layout; 2], cache: [Layout; 2], wide: bool) -> Append {
        Append {
            place: AppendPlace::Slots { wide },
            ..Append::to_cache(dtype, new, cache)
        }
    }

    /// New rows, those of no sequence included.
    pub fn new_rows(&self) -> usize {
        self.k_new.shape[0].saturating_mul(self.k_new.shape[1])
    }

    /// Slots of the cache.
    pub fn slots(&self) -> usize {
        self.k_cache.shape[0].saturating_mul(self.k_cache.shape[1])
    }

    /// Rows of the block table, and entries of each; without one, parts of the cache, and 1.
    #[doc(hidden)]
    pub fn tables(&self) -> [usize; 2] {
        match self.place {
            AppendPlace::Paged { tables, max_pages } => [tables, max_pages],
            AppendPlace::Cache | AppendPlace::Slots { .. } => [self.k_cache.shape[0], 1],
        }
    }

    /// Which arrays it needs, and their numbers of entries. [`SlotMapping`] has one for each of
    /// [`Append::new_rows`].
    pub fn entries(&self) -> AppendValues<usize> {
        let batch = self.batch;
        let starts = batch.saturating_add(1);
        let to_slots = matches!(self.place, AppendPlace::Slots { .. });
        AppendValues {
            cache_seqlens: (!to_slots).then_some(batch),
            cu_seqlens_k_new: (self.packed && !(to_slots && self.rotary.is_none())).then_some(starts),
            cu_seqlens_q: self.rotary.filter(|rotary| rotary.packed_q).map(|_| starts),
            cache_batch_idx: self.batch_idx.then_some(batch),
            leftpad_k: self.leftpad.then_some(batch),
            block_table: match self.place {
                AppendPlace::Paged { tables, max_pages } => Some(tables.saturating_mul(max_pages)),
                AppendPlace::Cache | AppendPlace::Slots { .. } => None,
            },
            seqlens_rotary: self.rotary.filter(|rotary| rotary.seqlens).map(|_| batch),
        }
    }

    /// Checks that exactly the arrays that it needs are given, each with as many entries (`count`) as
    /// it needs, and so the slots.
    ///
    /// # Errors
    /// [`ProblemError::Lengths`] for the first that is missing, of no use or of another length.
    pub fn check_given<B>(
        &self,
        values: &AppendValues<B>,
        count: impl Fn(&B) -> usize,
        slots: Option<usize>,
    ) -> Result<(), ProblemError> {
        let (needed, given, of) = (self.entries(), values.map(count), format_args!("append"));
        check_entries(AppendValues::<B>::NAMES, given.arrays(), needed.arrays(), of)?;
        let to_slots = matches!(self.place, AppendPlace::Slots { .. }).then(|| self.new_rows());
        check_entries(["slot_mapping"], [slots.as_ref()], [to_slots.as_ref()], of)
    }
}
