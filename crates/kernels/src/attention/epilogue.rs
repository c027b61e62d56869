//! The end of a row: its sink, the factor that normalises it, its log-sum-exp, and the partial of a split.

use flashcore_ir::{Cache, Element, GlobalPtr, Val, Widen};
use flashcore_problem::{DType, score_limit};
use half::{bf16, f16};

use super::params::RowParams;
use super::row_tile::{ACC_COLS, QUAD, RowTile};
use super::score_mod::LOG2_E;
use super::softmax::{FULLY_MASKED, KeyBounds, Row};
use super::split::Partial;
use crate::args::{Args, Request};

/// Sinks, by their dtype: `[num_heads]`.
#[derive(Clone, Copy)]
pub(crate) enum Sinks<'k> {
    F32(GlobalPtr<'k, f32>),
    F16(GlobalPtr<'k, f16>),
    BF16(GlobalPtr<'k, bf16>),
}

impl<'k> Sinks<'k> {
    pub(crate) fn declare<R: Request>(k: &'k Args<'k, R>, dtype: DType) -> Self {
        fn of_heads<'k, E: Element, R: Request>(k: &'k Args<'k, R>) -> GlobalPtr<'k, E> {
            k.input("sinks", E::BYTES, |request| request.problem().num_sinks())
        }
        match dtype {
            DType::F16 => Sinks::F16(of_heads(k)),
            DType::BF16 => Sinks::BF16(of_heads(k)),
            // No problem has sinks of e4m3.
            DType::F32 | DType::E4M3 => Sinks::F32(of_heads(k)),
        }
    }

    /// The sink of a head as an exponent of 2.
    #[track_caller]
    fn exponent(&self, head: Val<'k, u32>) -> Val<'k, f32> {
        #[track_caller]
        fn load<'k, E: Widen>(at: GlobalPtr<'k, E>) -> Val<'k, f32> {
            at.load_f32s(1, E::BYTES, Cache::ReadOnly)[0]
        }
        let sink = match self {
            Sinks::F32(sinks) => load(sinks.offset(head)),
            Sinks::F16(sinks) => load(sinks.offset(head)),
            Sinks::BF16(sinks) => load(sinks.offset(head)),
        };
        sink * LOG2_E
    }
}

/// Maximum and sum of a row after its last key.
#[derive(Clone, Copy)]
pub(crate) struct Total<'k> {
    /// The maximum, as [`RowMax::offset`](super::softmax::RowMax::offset).
    offset: Val<'k, f32>,
    /// The sum of its probabilities and of its sink. NaN, and with it the output and the log-sum-exp, if its maximum is
    /// at or past the [limit](score_limit): decided here, once a row.
    sum: Val<'k, f32>,
    end: End<'k>,
}

#[derive(Clone, Copy)]
enum End<'k> {
    /// The sum is meant only if this is true.
    SeesKey(Val<'k, bool>),
    /// With a sink, the factor for an output that is relative to the maximum without it.
    Rescale(Val<'k, f32>),
}

impl<'k> Total<'k> {
    /// The total from the offset and sum of a row of a head, with the head's sink if there are any. `dtype` is
    /// that of P.
    #[track_caller]
    pub(crate) fn new(
        sinks: Option<&Sinks<'k>>,
        dtype: DType,
        head: impl FnOnce() -> Val<'k, u32>,
        offset: Val<'k, f32>,
        sum: Val<'k, f32>,
        sees_key: Val<'k, bool>,
    ) -> Self {
        // An offset at or past the limit becomes 2^128 or more, which is infinity in f32, and infinity times 0 is NaN.
        // Without a branch: one for each row takes 1 % of the time of 512 rows.
        let past = offset * (2f32.powi(127) / score_limit(dtype) * 2.0);
        let sum = past.fma(0.0, sum);
        let Some(sinks) = sinks else {
            let end = End::SeesKey(sees_key);
            return Total { offset, sum, end };
        };
        // In a row without keys it counts however low it is.
        let (offset, sum) = (sees_key.select(offset, FULLY_MASKED), sees_key.select(sum, 0.0));
        let exponent = sinks.exponent(head());
        // The sink counts as a score, so the maximum rises to it if it is the highest. A sink of −∞ changes nothing.
        let highest = offset.min(-exponent);
        let rescale = (highest - offset).exp2();
        Total {
            offset: highest,
            sum: sum.fma(rescale, (exponent + highest).exp2()),
            end: End::Rescale(rescale),
        }
    }

    /// Factor that normalises the output of the row: 0 where no key is visible.
    #[track_caller]
    pub(crate) fn norm(&self) -> Val<'k, f32> {
        let norm = self.sum.recip();
        match self.end {
            End::SeesKey(sees_key) => sees_key.select(norm, 0.0),
            End::Rescale(rescale) => self.sum.eq(0.0).select(0.0, norm) * rescale,
        }
    }

    /// The log-sum-exp of the row in natural logarithms; −∞ where no key is visible and no sink counts.
    #[track_caller]
    pub(crate) fn log_sum_exp(&self) -> Val<'k, f32> {
        // Of a sum of 0, −∞ less a finite offset.
        let value = (self.sum.log2() - self.offset) * std::f32::consts::LN_2;
        match self.end {
            End::SeesKey(sees_key) => sees_key.select(value, f32::NEG_INFINITY),
            End::Rescale(_) => value,
        }
    }
}

impl<'k> Row<'k> {
    #[track_caller]
    pub(crate) fn total(&self) -> Val<'k, f32> {
        self.sum.get().reduce_sum(QUAD)
    }
}

impl<'k> RowParams<'k> {
    /// The total of a row of a head, from its offset and sum and the keys that it sees, with the head's sink if the
    /// kernel adds any.
    #[track_caller]
    pub(crate) fn total(
        &self,
        head: impl FnOnce() -> Val<'k, u32>,
        offset: Val<'k, f32>,
        sum: Val<'k, f32>,
        (first, end): KeyBounds<'k>,
    ) -> Total<'k> {
        Total::new(self.sinks.as_ref(), self.dtype, head, offset, sum, end.gt(first))
    }

    /// Stores the log-sum-exp of a row, in natural logarithms, if the kernel stores any.
    #[track_caller]
    pub(crate) fn store_lse(&self, batch_head: Val<'k, u32>, row: Val<'k, u32>, total: &Total<'k>) {
        if let Some(lse) = self.lse {
            let value = total.log_sum_exp();
            let place = match self.lse_rows {
                Some(rows) => (batch_head % self.num_heads).fma(rows, row),
                None => batch_head.fma(self.seq_len_q, row),
            };
            lse.offset(place).store(value);
        }
    }
}

impl<'k> Partial<'k> {
    /// Stores a row from registers, not normalised: four lanes fill a sector of 32 bytes. `column` is
    /// [`lane_column`](super::row_tile::lane_column), `offset` a [`partial_offset`](super::softmax::partial_offset),
    /// `sum` that of all lanes.
    #[track_caller]
    pub(crate) fn store_row(
        &self,
        out: &RowTile<'k>,
        half: usize,
        column: Val<'k, u32>,
        head_dim_v: u32,
        offset: Val<'k, f32>,
        sum: Val<'k, f32>,
    ) {
        let place = self.out.offset(column);
        for tile in 0..head_dim_v / ACC_COLS {
            let pair = out.pair(tile, half).map(|value| value.get());
            place.plus((tile * ACC_COLS) as i32).store_words(&pair, Cache::Default);
        }
        let k = column.builder();
        k.if_(column.eq(0).divergent(), || self.store_sum(offset, sum));
    }
}
