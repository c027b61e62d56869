//! The end of a row: its sink, the factor that normalises it, its log-sum-exp, and the partial of a split.

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, Launch, Val, Widen};
use flashcore_problem::{DType, Problem, score_limit};
use half::{bf16, f16};

use super::params::{RowParams, add_buffer};
use super::row_tile::{ACC_COLS, QUAD, RowTile};
use super::score_mod::LOG2_E;
use super::softmax::{FULLY_MASKED, KeyBounds, Row};
use super::split::Partial;

/// Sinks, by their dtype: `[num_heads]`.
#[derive(Clone, Copy)]
pub(crate) enum Sinks<'k> {
    F32(GlobalPtr<'k, f32>),
    F16(GlobalPtr<'k, f16>),
    BF16(GlobalPtr<'k, bf16>),
}

impl<'k> Sinks<'k> {
    const NAME: &'static str = "sinks";

    pub(crate) fn declare(k: &'k KernelBuilder, dtype: DType) -> Self {
        match dtype {
            DType::F16 => Sinks::F16(k.param_ptr(Self::NAME)),
            DType::BF16 => Sinks::BF16(k.param_ptr(Self::NAME)),
            // No problem has sinks of e4m3.
            DType::F32 | DType::E4M3 => Sinks::F32(k.param_ptr(Self::NAME)),
        }
    }

    /// The argument, of a kernel that takes any.
    pub(crate) fn add_to_launch(launch: &mut Launch, problem: &Problem, dtype: Option<DType>) {
        if let Some(dtype) = dtype {
            let size = dtype.size_bytes();
            add_buffer(launch, Self::NAME, size * problem.num_sinks(), size as u32, false);
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
    pub offset: Val<'k, f32>,
    /// The sum of its probabilities and of its sink. NaN, and with it the output and the log-sum-exp, if the row sees a
    /// key and its maximum is at or past the [limit](score_limit): decided here, once a row.
    pub sum: Val<'k, f32>,
    /// Factor for an output that is relative to the maximum without the sink.
    rescale: Option<Val<'k, f32>>,
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
        // Without a branch: one for each row takes 1 % of the time of 512 rows.
        let is_within = offset.abs().lt(score_limit(dtype));
        let sum = is_within.select(sum, sees_key.select(f32::NAN, 0.0));
        let mut total = Total {
            offset,
            sum,
            rescale: None,
        };
        if let Some(sinks) = sinks {
            // In a row without keys it counts however low it is.
            let offset = (is_within | sees_key).select(offset, FULLY_MASKED);
            let exponent = sinks.exponent(head());
            // The sink counts as a score, so the maximum rises to it if it is the highest. A sink of −∞ changes
            // nothing.
            total.offset = offset.min(-exponent);
            let rescale = (total.offset - offset).exp2();
            total.sum = sum.fma(rescale, (exponent + total.offset).exp2());
            total.rescale = Some(rescale);
        }
        total
    }

    /// Factor that normalises the output of the row: 0 where no key is visible.
    #[track_caller]
    pub(crate) fn norm(&self) -> Val<'k, f32> {
        let norm = self.sum.eq(0.0).select(0.0, self.sum.recip());
        self.rescale.map_or(norm, |rescale| norm * rescale)
    }
}

/// The log-sum-exp of a row in natural logarithms, from its offset and sum; −∞ where no key is visible.
#[track_caller]
pub(crate) fn log_sum_exp<'k>(offset: Val<'k, f32>, sum: Val<'k, f32>) -> Val<'k, f32> {
    // Without a key the sum is 0, and its logarithm −∞ less a finite offset.
    (sum.log2() - offset) * std::f32::consts::LN_2
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
    pub(crate) fn store_lse(
        &self,
        batch_head: Val<'k, u32>,
        row: Val<'k, u32>,
        offset: Val<'k, f32>,
        sum: Val<'k, f32>,
    ) {
        if let Some(lse) = self.lse {
            let value = log_sum_exp(offset, sum);
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
