//! The result on its way out: normalised, rounded, written to shared memory, and copied from there; or, where keys are
//! split, stored as a partial.
//!
//! Each warp stores its own 16 rows, one slab of columns after another: no warp waits for others.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{Cache, Element, SharedTile, Val};

use super::consumer::Warpgroup;
use super::tiles::padded;
use crate::attention::epilogue::normaliser;
use crate::attention::params::RowParams;
use crate::attention::row_tile::{ACC_COLS, QUAD, lane_column};
use crate::attention::scheduler::WorkItem;
use crate::attention::softmax::Probability;
use crate::attention::split::Partials;
use crate::attention::tensor_rows::{Sequence, TensorRows};

impl<'k, E: Probability> Warpgroup<'k, '_, E> {
    #[track_caller]
    pub(super) fn store(&self, tile: &WorkItem<'k>) {
        let store_rows = || {
            if let Some((out_tile, rows)) = &self.context.out {
                self.store_rows(tile, *out_tile, rows);
            }
        };
        match &self.context.partials {
            None => store_rows(),
            Some(partials) if self.context.out.is_none() => self.store_partials(tile, partials),
            // Of tiles whole and in pieces.
            Some(partials) => self.k.if_else(tile.slot().eq(0).uniform(), store_rows, || {
                self.store_partials(tile, partials)
            }),
        }
    }

    /// Stores them whole. Copies run on; a slab is written again once the copy that reads it is done.
    #[track_caller]
    fn store_rows(&self, tile: &WorkItem<'k>, out_tile: SharedTile<'k, E::Out>, rows: &TensorRows<'k>) {
        let k = self.k;
        let sequence = Sequence::of(self.context.params, tile);
        let norms = [0, 1].map(|half| {
            let sum = self.rows[half].total();
            if self.context.shape.lse {
                self.store_lse(&sequence.params, tile, half, sum);
            }
            let norm = normaliser(sum);
            match &self.scales {
                Some(scales) => norm * scales.values.get(),
                None => norm,
            }
        });
        let place = out_tile.at(self.lane_row, lane_column(k));
        let first = [tile.first_row() + self.warp * 16, tile.head(), tile.batch()];
        let to = rows.queries(&sequence).at(first);
        let width = out_tile.cols();
        let slabs = padded(self.context.shape.head_dim_v, E::Out::BYTES) / width;
        for slab in 0..slabs {
            let stage = slab % out_tile.stages();
            // The copy that reads this stage is the oldest under way; but where stages do not divide slabs, the first
            // stage may have been the last one used.
            let pending = match slab {
                0 if !slabs.is_multiple_of(out_tile.stages()) => 0,
                _ => out_tile.stages() - 1,
            };
            self.one_lane(|| k.bulk_wait_read(pending));
            k.sync_warp();
            for column in (0..width).step_by(ACC_COLS as usize) {
                let at = if column == 0 {
                    place
                } else {
                    out_tile.across(place, column)
                };
                let tile = (slab * width + column) / ACC_COLS;
                for (half, norm) in norms.into_iter().enumerate() {
                    let pair = self.out.pair(tile, half).map(|value| value * norm);
                    let at = out_tile.ahead(out_tile.down(at, 8 * half as u32), stage);
                    at.store_words(&[<E::Out as MmaElement>::pack(pair[0], pair[1])], Cache::Default);
                }
            }
            k.fence_proxy_async();
            k.sync_warp();
            self.one_lane(|| {
                out_tile.store_tma_part(stage, self.warp, to.clone().column(slab * width));
                k.bulk_commit();
            });
        }
    }

    #[track_caller]
    fn store_partials(&self, tile: &WorkItem<'k>, partials: &Partials<'k>) {
        let (k, context) = (self.k, self.context);
        let params = Sequence::of(context.params, tile).params;
        let column = lane_column(k);
        let batch_head = tile.batch().fma(params.num_heads, tile.head());
        for (half, row) in self.rows.iter().enumerate() {
            let sum = row.total();
            let query = tile.first_row() + self.lane_row + 8 * half as u32;
            k.if_(query.lt(params.seq_len_q).divergent(), || {
                let partial = match context.splits {
                    Some(splits) => partials.at(batch_head.fma(params.seq_len_q, query), tile.split(), splits),
                    None => {
                        let row_in_tile = self.lane_row + 8 * half as u32;
                        partials.at(tile.slot() - 1, row_in_tile, k.constant(context.levers.rows))
                    }
                };
                let head_dim_v = context.shape.head_dim_v;
                partial.store_row(&self.out, half, column, head_dim_v, &row.max, sum);
            });
        }
    }

    /// After the last Q tile: shared memory must outlive the copies that read it.
    #[track_caller]
    pub(super) fn end(&self) {
        if self.context.out.is_some() {
            self.one_lane(|| self.k.bulk_wait_read(0));
        }
    }

    #[track_caller]
    fn store_lse(&self, params: &RowParams<'k>, tile: &WorkItem<'k>, half: usize, sum: Val<'k, f32>) {
        let k = self.k;
        let query = tile.first_row() + self.lane_row + 8 * half as u32;
        let mine = (k.lane() % QUAD).eq(0) & query.lt(params.seq_len_q);
        k.if_(mine.divergent(), || {
            let batch_head = tile.batch().fma(params.num_heads, tile.head());
            params.store_lse(batch_head, query, self.rows[half].max.offset.get(), sum);
        });
    }

    /// One lane of the warp, always the same.
    #[track_caller]
    fn one_lane(&self, body: impl FnOnce()) {
        self.k.if_(self.k.lane().eq(0).divergent(), body);
    }
}
