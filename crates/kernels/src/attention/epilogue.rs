//! The result on its way out: normalise, log-sum-exp, and partials of a split.

use flashcore_ir::{Cache, Val};

use super::params::RowParams;
use super::row_tile::{ACC_COLS, QUAD, RowTile};
use super::softmax::{Row, RowMax};
use super::split::Partial;

/// `1/sum`, or 0 where no key was visible: such rows are zero.
#[track_caller]
pub(crate) fn normaliser<'k>(sum: Val<'k, f32>) -> Val<'k, f32> {
    sum.gt(0.0).select(sum.recip(), 0.0)
}

/// The log-sum-exp of a row in natural logarithms, from its offset and sum; −∞ where no key is visible.
#[track_caller]
pub(crate) fn log_sum_exp<'k>(offset: Val<'k, f32>, sum: Val<'k, f32>) -> Val<'k, f32> {
    let value = (sum.log2() - offset) * std::f32::consts::LN_2;
    sum.gt(0.0).select(value, f32::NEG_INFINITY)
}

impl<'k> Row<'k> {
    #[track_caller]
    pub(crate) fn total(&self) -> Val<'k, f32> {
        self.sum.get().reduce_sum(QUAD)
    }
}

impl<'k> RowParams<'k> {
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
    /// Stores a row straight from registers, not normalised: four lanes fill a sector of 32 bytes. `column` is
    /// [`lane_column`](super::row_tile::lane_column), `sum` that of all lanes.
    #[track_caller]
    pub(crate) fn store_row(
        &self,
        out: &RowTile<'k>,
        half: usize,
        column: Val<'k, u32>,
        head_dim_v: u32,
        max: &RowMax<'k>,
        sum: Val<'k, f32>,
    ) {
        let place = self.out.offset(column);
        for tile in 0..head_dim_v / ACC_COLS {
            let pair = out.pair(tile, half).map(|value| value.get());
            place.plus((tile * ACC_COLS) as i32).store_words(&pair, Cache::Default);
        }
        let k = column.builder();
        k.if_(column.eq(0).divergent(), || self.store_sum(max.offset.get(), sum));
    }
}
