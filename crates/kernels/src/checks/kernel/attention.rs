//! The lengths of attention, and the pages of its keys.

use flashcore_ir::{GlobalPtr, Val};
use flashcore_problem::{Lengths, Problem};

use super::{Paged, Record, Rows, Rule, Wrong};
use crate::args::Args;
use crate::attention::block_range::Band;
use crate::attention::lengths::{declare_bottom_right, declare_values};

/// The values of attention's lengths.
pub(in super::super) struct Attention<'k> {
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
    pub(in super::super) fn declare(k: &'k Args<'k, Problem>, kinds: Lengths<()>) -> Attention<'k> {
        let array = |name| match name {
            "block_table" => None, // with the sizes of pages
            name => kinds.named(name).map(|()| declare_values(k, name)),
        };
        let values = Lengths::from(Lengths::<()>::NAMES.map(array));
        let number = |name, of: fn(&Problem) -> usize| k.number(name, move |problem| of(problem) as i32);
        let seq_len_q = number("seq_len_q", Problem::seq_len_q);
        let seq_len_kv = number("seq_len_kv", Problem::seq_len_kv);
        let total_q = number("total_q", |problem| problem.q_layout().shape[1]);
        let total_k = number("total_k", |problem| problem.k_layout().shape[1]);
        Attention {
            values,
            seq_len_q,
            seq_len_kv,
            total_q,
            total_k,
            paged: kinds.block_table.map(|()| {
                Paged::declare(k, declare_values(k, "block_table"), |problem| {
                    let [pages, page_size, ..] = problem.k_layout().shape;
                    [page_size, pages, problem.max_pages()]
                })
            }),
            band: Band {
                // A sequence adds what depends on its lengths.
                lo: k.number("key_lo", |problem| problem.key_range_of(0, 0).lo),
                hi: k.number("key_hi", |problem| problem.key_range_of(0, 0).hi),
                len: seq_len_kv,
            },
            bottom_right: declare_bottom_right(k),
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
        let mut rows = record.rows(most);
        if let Some(&starts) = self.values.named(of_starts) {
            let Rows { len, speaks } = record.offsets(of_starts, Some(starts), [total, most], sequence);
            let fits = len.le(most);
            let wrong = Wrong::of(sequence, len, [zero, most]);
            record.tell(speaks & !fits, Rule::Bound, of_starts, &wrong);
            rows = Rows::if_they(fits, len, speaks);
        }
        match self.values.named(of_used) {
            None => rows,
            Some(&used) => record.number(of_used, used, sequence, rows),
        }
    }

    pub(in super::super) fn check(&self) {
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
