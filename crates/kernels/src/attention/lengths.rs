//! The rows of a sequence: where they begin, and how many there are.
//!
//! A kernel is built for which values exist ([`LengthKinds`]). It reads the values from buffers with the names of
//! [`Lengths::NAMES`], and the launch gives upper bounds. [`Params::of_sequence`] clamps every value to its bound
//! before an address depends on it, without a branch, so that no value leads out of a tensor.

use flashcore_ir::{Cache, Element, GlobalPtr, KernelBuilder, Source, Val};
use flashcore_problem::{CausalAlign, Layout, Lengths, Problem};

use super::block_range::Band;
use super::params::{Params, RowParams};
use crate::args::{Args, Request};

/// Which values a kernel reads. Nothing else about lengths is baked into it.
pub(crate) type LengthKinds = Lengths<()>;

/// Which values a problem's kernels read.
pub(crate) fn kinds(problem: &Problem) -> LengthKinds {
    problem.length_entries().map(|_| ())
}

/// The parameters of lengths, unless all are equal.
#[derive(Clone)]
pub(crate) struct LengthParams<'k> {
    values: Lengths<GlobalPtr<'k, i32>>,
    /// Whether the mask's diagonal ends at the last key: 1, else 0.
    bottom_right: Val<'k, i32>,
    total_q: Option<Val<'k, i32>>,
    total_k: Option<Val<'k, i32>>,
    /// Keys of a page, pages, and entries of a sequence in the block table.
    paged: Option<[Val<'k, u32>; 3]>,
}

impl<'k> LengthParams<'k> {
    /// Declares them; `None` with equal lengths.
    pub(crate) fn declare<R: Request>(k: &'k Args<'k, R>, kinds: LengthKinds) -> Option<Self> {
        let array = |name| kinds.named(name).map(|()| declare_values(k, name));
        let total = |name, wanted: Option<()>, layout: fn(&Problem) -> &Layout| {
            wanted.map(|()| k.number(name, move |request| layout(request.problem()).shape[1] as i32))
        };
        (kinds != Lengths::default()).then(|| LengthParams {
            values: Lengths::from(Lengths::<()>::NAMES.map(array)),
            bottom_right: declare_bottom_right(k),
            total_q: total("total_q", kinds.cu_seqlens_q, Problem::q_layout),
            total_k: total("total_k", kinds.cu_seqlens_k, Problem::k_layout),
            paged: kinds.block_table.map(|()| {
                [
                    k.count("page_size", |problem| problem.k_layout().shape[1]),
                    k.count("pages", |problem| problem.k_layout().shape[0]),
                    k.count("max_pages", Problem::max_pages),
                ]
            }),
        })
    }
}

/// One of the arrays of [`Lengths::NAMES`].
pub(crate) fn declare_values<'k, R: Request>(k: &'k Args<'k, R>, name: &'static str) -> GlobalPtr<'k, i32> {
    k.input(name, 4, move |request| {
        let entries = request.problem().length_entries();
        entries.named(name).copied().unwrap_or_default()
    })
}

/// Whether the mask's diagonal ends at the last key: 1, else 0.
pub(crate) fn declare_bottom_right<'k, R: Request>(k: &'k Args<'k, R>) -> Val<'k, i32> {
    k.number("bottom_right", |request| {
        i32::from(request.problem().mask().align == CausalAlign::BottomRight)
    })
}

/// First row and number of rows of a sequence: at most `most`, those between two starts, and those in use.
#[track_caller]
fn rows_of<'k>(
    batch: Val<'k, u32>,
    most: Val<'k, u32>,
    packed: Option<(GlobalPtr<'k, i32>, Val<'k, i32>)>,
    used: Option<GlobalPtr<'k, i32>>,
) -> (Option<Val<'k, u32>>, Val<'k, u32>) {
    let mut len = most.reinterpret::<i32>();
    let first = packed.map(|(starts, total)| {
        let starts = starts.offset(batch);
        let first = starts.load_with(Cache::ReadOnly).max(0).min(total);
        let end = starts.plus(1).load_with(Cache::ReadOnly).max(first).min(total);
        len = (end - first).min(len);
        first.reinterpret()
    });
    if let Some(used) = used {
        len = used.offset(batch).load_with(Cache::ReadOnly).max(0).min(len);
    }
    (first, len.reinterpret())
}

/// Where the first row of a sequence is, if sequences follow each other.
#[derive(Clone, Copy)]
pub(crate) struct FirstRows<'k> {
    /// The first row of Q and of the output.
    pub q: Option<Val<'k, u32>>,
    /// The first row of K and V.
    pub k: Option<Val<'k, u32>>,
}

/// The rows of a sequence: where they begin, and how many there are.
#[derive(Clone, Copy)]
pub(crate) struct SequenceSpan<'k> {
    pub first: FirstRows<'k>,
    /// Queries.
    pub len_q: Val<'k, u32>,
    /// Keys.
    pub len_kv: Val<'k, u32>,
}

impl<'k> SequenceSpan<'k> {
    /// Words that [`SequenceSpan::words`] gives.
    pub(crate) const WORDS: u32 = 4;

    /// The words of rows, or of none where lengths are equal.
    #[track_caller]
    pub(crate) fn words(k: &'k KernelBuilder, rows: Option<Self>) -> [Val<'k, u32>; 4] {
        let zero = k.constant(0);
        rows.map_or([zero; 4], |SequenceSpan { first, len_q, len_kv }| {
            [len_q, len_kv, first.q.unwrap_or(zero), first.k.unwrap_or(zero)]
        })
    }
}

impl<'k, E: Element> Params<'k, E> {
    /// The parameters as they are for a sequence: lengths, band, and where its rows begin. With equal lengths they are
    /// the same, and nothing is computed.
    #[track_caller]
    pub(crate) fn of_sequence(self, batch: Val<'k, u32>) -> Self {
        let rows = self.rows.rows_in_sequence(batch);
        self.with_rows(batch, rows)
    }

    /// The parameters of a sequence whose rows are known.
    #[track_caller]
    pub(crate) fn with_rows(mut self, batch: Val<'k, u32>, rows: Option<SequenceSpan<'k>>) -> Self {
        let (rows, first) = self.rows.with_rows(rows);
        for tensor in [&mut self.q, &mut self.out] {
            *tensor = tensor.starting_at(first.q);
        }
        for tensor in [&mut self.k, &mut self.v] {
            *tensor = tensor.of_keys(&rows, batch, first.k);
        }
        Params { rows, ..self }
    }
}

impl<'k> RowParams<'k> {
    /// The parameters of a sequence, and where its rows begin in each tensor.
    #[track_caller]
    pub(crate) fn of_sequence(&self, batch: Val<'k, u32>) -> (Self, FirstRows<'k>) {
        self.with_rows(self.rows_in_sequence(batch))
    }

    /// The rows of a sequence; `None` with equal lengths.
    #[track_caller]
    pub(crate) fn rows_in_sequence(&self, batch: Val<'k, u32>) -> Option<SequenceSpan<'k>> {
        let lengths = self.lengths.as_ref()?;
        let values = &lengths.values;
        let packed_q = values.cu_seqlens_q.zip(lengths.total_q);
        let packed_k = values.cu_seqlens_k.zip(lengths.total_k);
        let (q, len_q) = rows_of(batch, self.seq_len_q, packed_q, values.seqused_q);
        let (k, len_kv) = rows_of(batch, self.seq_len_kv, packed_k, values.seqused_k);
        let first = FirstRows { q, k };
        Some(SequenceSpan { first, len_q, len_kv })
    }

    /// The rows of a sequence from [`SequenceSpan::words`]; `None` with equal lengths.
    #[track_caller]
    pub(crate) fn rows_of_words(&self, words: &[Val<'k, u32>]) -> Option<SequenceSpan<'k>> {
        let values = &self.lengths.as_ref()?.values;
        let first = FirstRows {
            q: values.cu_seqlens_q.map(|_| words[2]),
            k: values.cu_seqlens_k.map(|_| words[3]),
        };
        Some(SequenceSpan {
            first,
            len_q: words[0],
            len_kv: words[1],
        })
    }

    /// [`RowParams::of_sequence`] of a sequence whose rows are known; with equal lengths nothing changes.
    #[track_caller]
    pub(crate) fn with_rows(&self, known: Option<SequenceSpan<'k>>) -> (Self, FirstRows<'k>) {
        let mut rows = self.clone();
        let (Some(lengths), Some(known)) = (&self.lengths, known) else {
            return (rows, FirstRows { q: None, k: None });
        };
        let SequenceSpan { first, len_q, len_kv } = known;
        if let Some(first) = first.q {
            rows.lse = self.lse.map(|lse| lse.offset(first));
            rows.lse_rows = lengths.total_q.map(Val::reinterpret);
        }
        let shift = (len_kv - len_q).reinterpret::<i32>() * lengths.bottom_right;
        rows.band = Band {
            lo: self.band.lo + shift,
            hi: self.band.hi + shift,
            len: len_kv.reinterpret(),
        };
        rows.score_mod = self.score_mod.shifted(shift);
        (rows.seq_len_q, rows.seq_len_kv) = (len_q, len_kv);
        (rows, first)
    }

    /// Where the log-sum-exp of a head of a sequence begins; `batch_head` is the head's number among those of all
    /// batches, `first` is from [`RowParams::of_sequence`].
    #[track_caller]
    pub(super) fn lse_of_head(
        &self,
        lse: GlobalPtr<'k, f32>,
        batch_head: Val<'k, u32>,
        first: FirstRows<'k>,
    ) -> GlobalPtr<'k, f32> {
        match (self.lse_rows, first.q) {
            (Some(rows), Some(first)) => lse.offset_strided(batch_head % self.num_heads, rows).offset(first),
            _ => lse.offset_strided(batch_head, self.seq_len_q),
        }
    }

    /// The pages of a sequence whose parameters these are, if K and V are in pages.
    #[track_caller]
    pub(super) fn pages_of(&self, batch: Val<'k, u32>) -> Option<Pages<'k>> {
        let lengths = self.lengths.as_ref()?;
        let (table, [page_size, pages, max_pages]) = lengths.values.block_table.zip(lengths.paged)?;
        Some(Pages {
            table: table.offset_strided(batch, max_pages),
            page_size,
            pages,
            last_key: self.seq_len_kv.max(1) - 1,
        })
    }

    /// Runs `compute` where `first_row` is one of the sequence's `count` rows. The grid is that of the bounds: blocks
    /// past the end of their sequence have nothing to do. With equal lengths there are none.
    #[track_caller]
    pub(crate) fn if_has_row(&self, first_row: Val<'k, u32>, count: Val<'k, u32>, compute: impl FnOnce()) {
        match &self.lengths {
            None => compute(),
            Some(_) => first_row.builder().if_(first_row.lt(count).uniform(), compute),
        }
    }
}

/// The pages of a sequence. A row's address is by `key_row`, or for tensor copies by `PagedRows::at`; what pages say is
/// checked by `check_pages` of crate problem where the host has them, and on the device, if asked (`FLASHCORE_CHECK`),
/// by `Paged::check` in `checks/kernel.rs`.
#[derive(Clone, Copy)]
pub(super) struct Pages<'k> {
    /// The sequence's row of the block table.
    pub table: GlobalPtr<'k, i32>,
    /// Keys of a page.
    pub page_size: Val<'k, u32>,
    /// Pages of the cache.
    pub pages: Val<'k, u32>,
    /// The sequence's last key; 0 if it has none.
    pub last_key: Val<'k, u32>,
}

impl<'k> Pages<'k> {
    /// The page in an entry, by its number in the cache: in none if that has no such page.
    #[track_caller]
    pub(super) fn page(&self, entry: Val<'k, u32>) -> Val<'k, u32> {
        let entry = self.table.offset(entry);
        entry.load_with(Cache::ReadOnly).reinterpret()
    }
}

/// Strides of batch, sequence and heads in elements; 0 where a dimension has one index and its stride is never used.
pub(crate) fn row_strides(layout: &Layout) -> [u32; 3] {
    [0, 1, 2].map(|dim| match layout.shape[dim] {
        0 | 1 => 0,
        _ => layout.strides[dim] as u32,
    })
}

/// A tensor parameter: a pointer and its three outer strides in elements.
#[derive(Clone, Copy)]
pub(crate) struct TensorParam<'k, E> {
    base: GlobalPtr<'k, E>,
    batch_stride: Val<'k, u32>,
    /// Elements from a row to the next.
    pub seq_stride: Val<'k, u32>,
    head_stride: Val<'k, u32>,
    /// The pages of a paged tensor, whose batch stride is that of pages.
    pages: Option<Pages<'k>>,
}

impl<'k, E: Element> TensorParam<'k, E> {
    /// Declares the strides of a tensor whose pointer is declared.
    pub(crate) fn declare(k: &'k KernelBuilder, name: &str, base: GlobalPtr<'k, E>) -> Self {
        TensorParam {
            base,
            batch_stride: k.param(&format!("{name}_batch_stride")),
            seq_stride: k.param(&format!("{name}_seq_stride")),
            head_stride: k.param(&format!("{name}_head_stride")),
            pages: None,
        }
    }

    /// Where the first row of a head is.
    #[track_caller]
    pub(crate) fn head(&self, batch: Val<'k, u32>, head: Val<'k, u32>) -> GlobalPtr<'k, E> {
        let of_batch = match self.pages {
            Some(_) => self.base,
            None => self.base.offset_strided(batch, self.batch_stride),
        };
        of_batch.offset_strided(head, self.head_stride)
    }

    /// The same tensor from one of its rows on.
    #[track_caller]
    pub(crate) fn starting_at(self, first: Option<Val<'k, u32>>) -> Self {
        let base = first.map_or(self.base, |first| self.row(self.base, first));
        TensorParam { base, ..self }
    }

    /// K or V as it is for a sequence with these parameters, whose first key is `first` if sequences follow each other.
    #[track_caller]
    pub(crate) fn of_keys(self, rows: &RowParams<'k>, batch: Val<'k, u32>, first: Option<Val<'k, u32>>) -> Self {
        TensorParam {
            pages: rows.pages_of(batch),
            ..self.starting_at(first)
        }
    }

    /// Whether rows are found with [`Self::key_row`] only.
    pub(crate) fn is_paged(&self) -> bool {
        self.pages.is_some()
    }

    /// Where a key's row is, and whether it is on a page; without pages it is. A row on no page has the address of one
    /// of the cache, and counts as zeros, and a key past the end of a sequence in pages has that of its last one.
    #[track_caller]
    pub(crate) fn key_row(
        &self,
        head: GlobalPtr<'k, E>,
        key: Val<'k, u32>,
    ) -> (GlobalPtr<'k, E>, Option<Val<'k, bool>>) {
        let Some(pages) = &self.pages else {
            return (self.row(head, key), None);
        };
        let key = key.min(pages.last_key);
        let page = pages.page(key / pages.page_size);
        let in_cache = head.offset_strided(page.min(pages.pages - 1), self.batch_stride);
        (self.row(in_cache, key % pages.page_size), Some(page.lt(pages.pages)))
    }

    /// Where a row of a head is, counted from the head's first one.
    #[track_caller]
    pub(crate) fn row(&self, head: GlobalPtr<'k, E>, row: impl Source<'k, u32>) -> GlobalPtr<'k, E> {
        head.offset_strided(row, self.seq_stride)
    }
}

/// Binary search: the last of `count` places (one or more) whose value is at most `most`, or the first place if there
/// is none. Values must not fall from one place to the next.
#[track_caller]
pub(crate) fn last_at_most<'k>(
    k: &'k KernelBuilder,
    count: Val<'k, u32>,
    most: Val<'k, u32>,
    value: impl Fn(Val<'k, u32>) -> Val<'k, u32>,
) -> Val<'k, u32> {
    let (first, left) = (k.var(0u32), k.var(count));
    k.loop_(|scope| {
        scope.break_if(left.get().le(1).uniform());
        let half = left.get() >> 1u32;
        let middle = first + half;
        first.set(value(middle).le(most).select(middle, first.get()));
        left.set(left - half);
    });
    first.get()
}
