//! The rows of a sequence for tensor copies: [`lengths`](super::lengths) gives their addresses, this gives their boxes.
//!
//! | tensor | map | rows of a sequence |
//! |---|---|---|
//! | `[batch, seq, heads, d]`, equal lengths | (d, seq, heads, batch) | those of its batch |
//! | the same with packed heads | (d, heads, seq, batch) | those of its batch |
//! | packed | ragged (d, rows, heads) | from its first one on |
//! | the same with packed heads | ragged (d, heads, rows) | from its first one on |
//! | cache | ragged | from `batch * batch_rows` on: the stride of batches is `batch_rows` rows |
//! | pages | ragged, a box never leaves a page | from `page * batch_rows` on, as many as the sequence has in the page |
//!
//! Ragged maps ([`flashcore_ir::ragged`]) read zeros in place of rows past the end, and do not write there. A page that
//! is not in the cache has no rows.

use flashcore_ir::inst::L2Hint;
use flashcore_ir::pipeline::Producer;
use flashcore_ir::ragged::{MOST_ROWS, RaggedRows};
use flashcore_ir::tensor_copy::BoxAt;
use flashcore_ir::{Element, SharedTile, TensorBox, TensorMap, Val};
use flashcore_problem::{KvLengths, Layout, Problem};

use super::lengths::{FirstRows, LengthKinds, Pages, row_strides};
use super::params::RowParams;
use super::query_rows::Packing;
use super::scheduler::WorkItem;
use crate::{Refusal, refuse};

/// Rows of the smallest box of a page: the period of a swizzle.
pub(crate) const MIN_PAGE_ROWS: u32 = 8;

/// How the rows of sequences lie in a tensor, and the boxes in which they are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowsOf {
    /// One sequence per batch, in boxes of one head or of those that are packed.
    Batch(Packing),
    /// Packed sequences, likewise.
    Packed(Packing),
    /// A cache: one sequence per batch, which may be shorter than the tensor.
    Cache,
    /// Pages, in boxes of this many rows of one head.
    Pages(u32),
    /// V of 8-bit elements, transposed: tiles of keys, whose rows are columns of V.
    Transposed,
}

impl RowsOf {
    pub(crate) fn queries(kinds: &LengthKinds, packing: Packing) -> RowsOf {
        match kinds.cu_seqlens_q {
            Some(()) => RowsOf::Packed(packing),
            None => RowsOf::Batch(packing),
        }
    }

    /// `page_rows`: rows of the boxes of pages.
    pub(crate) fn keys(kinds: &LengthKinds, page_rows: u32) -> RowsOf {
        match (kinds.block_table, kinds.cu_seqlens_k, kinds.seqused_k) {
            (Some(()), ..) => RowsOf::Pages(page_rows),
            (_, Some(()), _) => RowsOf::Packed(Packing::NONE),
            (_, _, Some(())) => RowsOf::Cache,
            (None, None, None) => RowsOf::Batch(Packing::NONE),
        }
    }

    fn packing(self) -> Packing {
        match self {
            RowsOf::Batch(packing) | RowsOf::Packed(packing) => packing,
            RowsOf::Cache | RowsOf::Pages(_) | RowsOf::Transposed => Packing::NONE,
        }
    }

    /// Whether heads are packed: they come before rows then.
    pub(crate) fn heads_first(self) -> bool {
        self.packing() != Packing::NONE
    }

    /// Boxes of `rows` rows of a head, or as many as copies of pages have.
    #[track_caller]
    pub(crate) fn boxes<E: Element>(self, tile: SharedTile<'_, E>, rows: u32) -> TensorBox {
        let mut outer = self.packing().box_of(match self {
            RowsOf::Pages(rows) => rows,
            RowsOf::Batch(_) | RowsOf::Packed(_) | RowsOf::Cache | RowsOf::Transposed => rows,
        });
        if !self.heads_first() {
            outer.swap(0, 1);
        }
        match self {
            RowsOf::Batch(_) | RowsOf::Transposed => tile.tensor_box(&outer),
            _ => tile.tensor_box(&outer[..2]).ragged(1 + u32::from(self.heads_first())),
        }
    }
}

/// Rows of the boxes of pages: the largest power of two that divides the keys of a page and of a K block; 0 without
/// pages.
///
/// # Errors
/// Pages whose boxes would be too small.
pub(crate) fn page_rows(family: &'static str, problem: &Problem, cols: u32) -> Result<u32, Refusal> {
    let KvLengths::Paged { page_size, .. } = problem.kv_lengths() else {
        return Ok(0);
    };
    let rows = 1u32 << page_size.trailing_zeros().min(cols.trailing_zeros());
    refuse!(rows < MIN_PAGE_ROWS =>
        family, "family mma does", "pages of {page_size} keys (it copies {MIN_PAGE_ROWS} at a time, or more)");
    Ok(rows)
}

/// A tensor that is copied in boxes.
#[derive(Clone, Copy)]
pub(crate) struct TensorRows<'k> {
    pub map: TensorMap<'k>,
    of: RowsOf,
    /// Rows from one batch or page to the next.
    batch_rows: Option<Val<'k, u32>>,
}

/// The sequence of a tile.
pub(crate) struct Sequence<'k> {
    /// The parameters with the lengths, band and addresses of this sequence.
    pub params: RowParams<'k>,
    /// Its number; `None` with equal lengths, where it is not needed.
    batch: Option<Val<'k, u32>>,
    /// The first rows of a packed sequence.
    pub first: FirstRows<'k>,
}

impl<'k> Sequence<'k> {
    #[track_caller]
    pub(crate) fn of(params: &RowParams<'k>, tile: &WorkItem<'k>) -> Self {
        Sequence::numbered(params, || tile.batch())
    }

    #[track_caller]
    pub(crate) fn of_batch(params: &RowParams<'k>, batch: Val<'k, u32>) -> Self {
        Sequence::numbered(params, || batch)
    }

    #[track_caller]
    fn numbered(params: &RowParams<'k>, number: impl FnOnce() -> Val<'k, u32>) -> Self {
        let batch = params.lengths.as_ref().map(|_| number());
        let rows = batch.and_then(|batch| params.rows_in_sequence(batch));
        let (params, first) = params.with_rows(rows);
        Sequence { params, batch, first }
    }
}

/// The rows of one sequence in a tensor, and whether heads come before rows.
#[derive(Clone, Copy)]
pub(crate) enum SequenceRows<'k> {
    Batch(TensorMap<'k>, bool),
    Ragged(RaggedRows<'k>, bool),
    Paged(PagedRows<'k>),
}

/// The rows of one sequence in pages.
#[derive(Clone, Copy)]
pub(crate) struct PagedRows<'k> {
    map: TensorMap<'k>,
    batch_rows: Val<'k, u32>,
    pages: Pages<'k>,
    len: Val<'k, u32>,
}

impl<'k> TensorRows<'k> {
    /// The tensor of a map, of which a tile has boxes of `rows` rows.
    pub(crate) fn new(map: TensorMap<'k>, rows: u32, of: RowsOf, batch_rows: Option<Val<'k, u32>>) -> Self {
        let map = if of.heads_first() { map.in_parts_of(rows) } else { map };
        TensorRows { map, of, batch_rows }
    }

    /// The query rows of a sequence.
    #[track_caller]
    pub(crate) fn queries(&self, sequence: &Sequence<'k>) -> SequenceRows<'k> {
        let heads_first = self.of.heads_first();
        match (self.of, sequence.first.q) {
            (RowsOf::Packed(_), Some(first)) => {
                SequenceRows::Ragged(self.map.rows(first, sequence.params.seq_len_q), heads_first)
            }
            _ => SequenceRows::Batch(self.map, heads_first),
        }
    }

    /// The keys of a sequence.
    #[track_caller]
    pub(crate) fn keys(&self, sequence: &Sequence<'k>) -> SequenceRows<'k> {
        let (params, len) = (&sequence.params, sequence.params.seq_len_kv);
        match (self.batch_rows.zip(sequence.batch), sequence.first.k) {
            _ if self.of == RowsOf::Transposed => SequenceRows::Batch(self.map, false),
            (None, None) => SequenceRows::Batch(self.map, false),
            (None, Some(first)) => SequenceRows::Ragged(self.map.rows(first, len), false),
            (Some((batch_rows, batch)), _) => match params.pages_of(batch) {
                None => SequenceRows::Ragged(self.map.rows(batch * batch_rows, len), false),
                Some(pages) => SequenceRows::Paged(PagedRows {
                    map: self.map,
                    batch_rows,
                    pages,
                    len,
                }),
            },
        }
    }

    /// Number of copies that fill a tile of `rows` rows, if pages take several.
    pub(crate) fn parts(&self, rows: u32) -> Option<u32> {
        match self.of {
            RowsOf::Pages(of_box) => Some(rows / of_box),
            RowsOf::Batch(_) | RowsOf::Packed(_) | RowsOf::Cache | RowsOf::Transposed => None,
        }
    }
}

impl<'k> SequenceRows<'k> {
    /// The box at (row, head, batch), from a row of the sequence on. In pages it must not leave the page of its first
    /// row.
    #[track_caller]
    pub(crate) fn at(&self, [row, head, batch]: [Val<'k, u32>; 3]) -> BoxAt<'k> {
        let outer = |heads_first: bool| {
            if heads_first {
                [head, row, batch]
            } else {
                [row, head, batch]
            }
        };
        match self {
            SequenceRows::Batch(map, heads_first) => map.at(&outer(*heads_first)),
            SequenceRows::Ragged(rows, heads_first) => rows.at(&outer(*heads_first)[..2]),
            SequenceRows::Paged(rows) => rows.at(row, head),
        }
    }
}

impl<'k> PagedRows<'k> {
    fn at(&self, key: Val<'k, u32>, head: Val<'k, u32>) -> BoxAt<'k> {
        let (page_size, pages) = (self.pages.page_size, self.pages.pages);
        // Entries past that of the last key are not read.
        let number = key.min(self.pages.last_key) / page_size;
        let page = self.pages.page(number);
        let first_key = number * page_size;
        let of_sequence = (self.len.max(first_key) - first_key).min(page_size);
        let len = page.lt(pages).select(of_sequence, 0u32);
        let first = page.min(pages - 1) * self.batch_rows;
        self.map.rows(first, len).at(&[key - first_key, head])
    }
}

/// Rank of the block in the cluster that copies K and V together, and the multicast mask of all its blocks.
pub(crate) type Cluster<'k> = Option<(Val<'k, u32>, Val<'k, u16>)>;

/// Fills the next stage of a tile with the rows from (row, head, batch) on. In a cluster this block copies its part to
/// all blocks, and does not wait for the others.
#[track_caller]
pub(crate) fn fill_stage<'k, E: Element>(
    cluster: Cluster<'k>,
    tile: SharedTile<'k, E>,
    (tensor, rows): (&TensorRows<'k>, SequenceRows<'k>),
    producer: Producer<'k>,
    [row, head, batch]: [Val<'k, u32>; 3],
) {
    let k = row.builder();
    match (cluster, tensor.parts(tile.rows())) {
        (_, Some(parts)) => {
            let lane = k.lane();
            // Pages are looked up while the stage is still in use. Lanes without a part look up pages that follow,
            // which brings their entries into the cache.
            let from = rows.at([row + lane * tensor.map.box_rows(), head, batch]);
            producer.acquire();
            k.if_(lane.eq(0).divergent(), || producer.expect(tile.stage_bytes()));
            k.sync_warp();
            k.if_(lane.lt(parts).divergent(), || {
                tile.load_tma_part(producer.stage(), lane, from.hint(L2Hint::EvictLast), producer.full());
            });
        }
        (None, None) => {
            producer.acquire();
            producer.expect(tile.stage_bytes());
            let from = rows.at([row, head, batch]).hint(L2Hint::EvictLast);
            tile.load_tma(producer.stage(), from, producer.full());
        }
        (Some((rank, all)), None) => {
            producer.acquire();
            producer.expect(tile.stage_bytes());
            let at = [row + rank * tensor.map.box_rows(), head, batch];
            let part = rows.at(at).hint(L2Hint::EvictLast).multicast(all);
            tile.load_tma_part(producer.stage(), rank, part, producer.full());
        }
    }
    producer.advance();
}

/// The rows of all batches or pages of a tensor as one sequence of rows, for a ragged map.
pub(crate) struct Flat {
    /// Elements from one row to the next; 0 if there is one row.
    pub stride: u32,
    /// Rows from one batch or page to the next; 0 if there is one batch.
    pub batch_rows: u32,
    /// Rows from the first one to the last.
    pub count: u64,
}

impl Flat {
    /// # Errors
    /// Batches that are no number of rows apart, and rows beyond what a ragged map counts.
    pub(crate) fn new(
        family: &'static str,
        name: &str,
        layout: &Layout,
        remedy: &'static str,
    ) -> Result<Flat, Refusal> {
        let [batch, seq, _] = row_strides(layout);
        let [batches, rows, ..] = layout.shape.map(|n| n as u64);
        // A row a batch: they are the rows.
        let stride = if rows > 1 { seq } else { batch };
        let whole = stride != 0 && batch.is_multiple_of(stride);
        refuse!(batches > 1 && !whole => family, remedy,
            "batches or pages of `{name}` that are {batch} elements apart, no multiple of its rows' {stride}");
        let batch_rows = if batches > 1 { batch / stride } else { 0 };
        let count = batches.saturating_sub(1) * u64::from(batch_rows) + rows;
        refuse!(count > MOST_ROWS => family, remedy, "`{name}` of {count} rows (at most {MOST_ROWS})");
        Ok(Flat {
            stride,
            batch_rows,
            count,
        })
    }
}
