//! Stores the output: normalised, rounded, written to shared memory, and copied from there; or, where keys are split,
//! as a partial.
//!
//! Each warp stores its 16 rows, one slab of columns after another. Where packed heads leave rows over, a warpgroup
//! stores its 64 rows together, or all consumers store the tile together.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{Cache, Element, SharedTile, Val};

use super::barriers::STORE;
use super::consumer::Warpgroup;
use super::tiles::{padded, slab_count};
use crate::attention::epilogue::Total;
use crate::attention::params::RowParams;
use crate::attention::query_rows::Packing;
use crate::attention::row_tile::{ACC_COLS, QUAD, lane_column};
use crate::attention::scheduler::WorkItem;
use crate::attention::softmax::{InputElement, partial_offset};
use crate::attention::split::Partials;
use crate::attention::tensor_rows::{Sequence, TensorRows};

impl<'k, E: InputElement> Warpgroup<'k, '_, E> {
    #[track_caller]
    pub(super) fn store(&self, tile: &WorkItem<'k>) {
        match (&self.context.out, &self.context.partials) {
            (None, None) => {}
            (Some(out), None) => self.store_rows(tile, out),
            (None, Some(partials)) => self.store_partials(tile, partials),
            // Some tiles are whole, others in pieces.
            (Some(out), Some(partials)) => {
                let piece = || self.store_partials(tile, partials);
                let is_whole = tile.slot().eq(0).uniform();
                self.k.if_else(is_whole, || self.store_rows(tile, out), piece);
            }
        }
    }

    /// Stores the rows of a whole tile. Copies may still run when it returns: the next one waits for them before it
    /// writes to their slabs.
    #[track_caller]
    fn store_rows(&self, tile: &WorkItem<'k>, (out_tile, rows): &(SharedTile<'k, E::Out>, TensorRows<'k>)) {
        let k = self.k;
        let sequence = Sequence::of(self.context.params, tile);
        let norms = [0, 1].map(|half| {
            let (offset, sum) = (self.rows[half].max.offset.get(), self.rows[half].total());
            let head = || self.lane_rows.head(tile.head(), half);
            let query = self.lane_rows.query(tile.first_query(), half);
            let keys = sequence.params.visible_keys(query);
            let total = sequence.params.total(head, offset, sum, keys);
            if self.context.shape.lse {
                self.store_lse(&sequence.params, tile, half, &total);
            }
            let norm = total.norm();
            self.scales.map_or(norm, |scales| norm * scales.values.get())
        });
        let (place, group) = (out_tile.at(self.lane_rows.first, lane_column(k)), &self.store_group);
        let first = tile.part_at(group.part, group.rows);
        let to = rows.queries(&sequence).at(first);
        let (width, head_dim_v) = (out_tile.cols(), self.context.shape.head_dim_v);
        let columns = padded(head_dim_v, E::Out::BYTES);
        let slabs = slab_count(head_dim_v, E::Out::BYTES);
        for slab in 0..slabs {
            let stage = slab % out_tile.stages();
            // The copy that reads this stage is the oldest in flight; but where stages do not divide slabs, the first
            // stage may have been the last one used.
            let pending = match slab {
                0 if !slabs.is_multiple_of(out_tile.stages()) => 0,
                _ => out_tile.stages() - 1,
            };
            group.one_thread(|| k.bulk_wait_read(pending));
            group.sync();
            for column in (0..width).step_by(ACC_COLS as usize) {
                let at = out_tile.across(place, column);
                let tile = (slab * width + column) / ACC_COLS;
                for (half, norm) in norms.into_iter().enumerate() {
                    // Copies read whole slabs. The tensor map cuts off columns past head_dim_v.
                    let pair = if tile * ACC_COLS < columns {
                        self.out.pair(tile, half).map(|value| value * norm)
                    } else {
                        [k.constant(0.0); 2]
                    };
                    let at = out_tile.ahead(out_tile.down(at, 8 * half as u32), stage);
                    at.store_words(&[<E::Out as MmaElement>::pack(pair[0], pair[1])], Cache::Default);
                }
            }
            k.fence_proxy_async();
            group.sync();
            group.one_thread(|| {
                out_tile.store_tma_part(stage, group.part, to.clone().column(slab * width));
                k.bulk_commit();
            });
        }
    }

    /// Meets the barriers of [`Self::store_rows`] in a warpgroup without rows, where all consumers store together.
    #[track_caller]
    pub(super) fn store_nothing(&self) {
        for _ in 0..slab_count(self.context.shape.head_dim_v, E::Out::BYTES) {
            self.store_group.sync();
            self.store_group.sync();
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
            if let Some(scales) = &self.scales {
                self.out.scale_row(half, scales.values.get());
            }
            let query = self.lane_rows.stored_query(tile.first_query(), half);
            k.if_(query.lt(params.seq_len_q).divergent(), || {
                let batch_head = self.lane_rows.head(batch_head, half);
                let partial = match context.splits {
                    Some(splits) => partials.at(batch_head.fma(params.seq_len_q, query), tile.split(), splits),
                    None => {
                        let row_in_tile = self.lane_rows.first + 8 * half as u32;
                        partials.at(tile.slot() - 1, row_in_tile, k.constant(context.levers.rows))
                    }
                };
                let head_dim_v = context.shape.head_dim_v;
                let keys = || params.visible_keys(self.lane_rows.query(tile.first_query(), half));
                let offset = partial_offset(row.max.offset.get(), context.shape.dtype, keys);
                partial.store_row(&self.out, half, column, head_dim_v, offset, sum);
            });
        }
    }

    #[track_caller]
    fn store_lse(&self, params: &RowParams<'k>, tile: &WorkItem<'k>, half: usize, total: &Total<'k>) {
        let k = self.k;
        let query = self.lane_rows.stored_query(tile.first_query(), half);
        let mine = (k.lane() % QUAD).eq(0) & query.lt(params.seq_len_q);
        k.if_(mine.divergent(), || {
            let (batch, head) = (tile.batch(), self.lane_rows.head(tile.head(), half));
            let batch_head = batch.fma(params.num_heads, head);
            params.store_lse(batch_head, query, total);
        });
    }
}

/// The threads that store one part of a Q tile together: a warp, or, where 16 rows are no whole box of packed heads, a
/// warpgroup or all consumers.
pub(super) struct StoreGroup<'k> {
    /// Number of the part, and its rows.
    part: Val<'k, u32>,
    rows: u32,
    /// Those of a warp, of a warpgroup, or of all consumers, which are more.
    threads: u32,
}

impl<'k> StoreGroup<'k> {
    /// The group of a consumer warp, from its number and that of its warpgroup.
    pub(super) fn new(packing: Packing, [warp, warpgroup]: [Val<'k, u32>; 2]) -> Self {
        let rows = packing.stored_rows();
        let (part, threads) = match (packing.spans_warpgroups(), packing.leaves_rows()) {
            // 128 threads for 64 rows.
            (true, _) => (warp.builder().constant(0), 2 * rows),
            (false, true) => (warpgroup, 128),
            (false, false) => (warp, 32),
        };
        StoreGroup { part, rows, threads }
    }

    /// One thread of the group, always the same.
    #[track_caller]
    pub(super) fn one_thread(&self, body: impl FnOnce()) {
        let k = self.part.builder();
        let thread = match self.threads {
            32 => k.lane(),
            128 => k.thread_idx() % 128,
            // Of all consumers: the producer's warpgroup comes first.
            _ => k.thread_idx() - 128,
        };
        k.if_(thread.eq(0).divergent(), body);
    }

    /// Waits for all threads of the group.
    #[track_caller]
    fn sync(&self) {
        let k = self.part.builder();
        match self.threads {
            32 => k.sync_warp(),
            threads => k.barrier_among(self.part + STORE, threads),
        }
    }
}
