//! The result on its way out: normalised, rounded, laid into shared memory, and copied from there; or, where keys are split,
//! stored as a part.
//!
//! Each warp does so for its 16 rows by itself, a slab of columns after another: no warp waits for others.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{Cache, Element, SharedTile, TensorMap, Val};

use super::input::Input;
use super::kernel::Output;
use super::math::Warpgroup;
use super::schedule::Entry;
use super::tiles::padded;
use crate::lanes::{ACC_COLS, QUAD};
use crate::parts::Parts;
use crate::softmax::normaliser;

impl<'k, E: Input> Warpgroup<'k, '_, E> {
    /// Stores the warp's rows.
    #[track_caller]
    pub(super) fn store(&self, tile: &Entry<'k>) {
        if self.stops_after().is_some() {
            return;
        }
        match self.shared.output {
            Output::Tensor { tile: out_tile, map } => self.store_rows(tile, out_tile, map),
            Output::Parts { parts, splits } => self.store_parts(tile, parts, splits),
        }
    }

    /// Stores them whole. Copies run on; a slab is written again once the copy that reads it is done.
    #[track_caller]
    fn store_rows(&self, tile: &Entry<'k>, out_tile: SharedTile<'k, E::Out>, map: TensorMap<'k>) {
        let k = self.k;
        let norms = [0, 1].map(|half| {
            let sum = self.rows[half].sum.get().reduce_sum(QUAD);
            self.store_lse(tile, half, sum);
            let norm = normaliser(sum);
            match &self.scales {
                Some(scales) => norm * scales.values.get(),
                None => norm,
            }
        });
        let place = out_tile.at(self.lane_row, k.lane() % QUAD * 2u32);
        let to = map.at(&[tile.first_row() + self.warp * 16, tile.head(), tile.batch()]);
        let width = out_tile.cols();
        let slabs = padded(self.shared.shape.head_dim_v, E::Out::BYTES) / width;
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
                for (half, norm) in norms.into_iter().enumerate() {
                    let register = (slab * width + column) / 2 + 2 * half as u32;
                    let pair = [0, 1].map(|e| self.out.var(register + e) * norm);
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

    /// Stores their parts straight from registers, not normalised: four lanes fill a sector of 32 bytes.
    #[track_caller]
    fn store_parts(&self, tile: &Entry<'k>, parts: Parts<'k>, splits: Val<'k, u32>) {
        let (k, params) = (self.k, self.shared.params);
        let column = k.lane() % QUAD * 2u32;
        let batch_head = tile.batch().fma(params.num_heads, tile.head());
        for (half, row) in self.rows.iter().enumerate() {
            let sum = row.sum.get().reduce_sum(QUAD);
            let query = tile.first_row() + self.lane_row + 8 * half as u32;
            k.if_(query.lt(params.seq_len_q).divergent(), || {
                let part = parts.at(batch_head.fma(params.seq_len_q, query), tile.split(), splits);
                let place = part.out.offset(column);
                for columns in 0..self.shared.shape.head_dim_v / ACC_COLS {
                    let pair = [0, 1].map(|e| self.out.var(4 * columns + 2 * half as u32 + e).get());
                    place
                        .plus((columns * ACC_COLS) as i32)
                        .store_words(&pair, Cache::Default);
                }
                k.if_(column.eq(0).divergent(), || {
                    part.store_sum(row.reference.offset.get(), sum);
                });
            });
        }
    }

    /// After the last tile of rows: shared memory must outlive the copies that read it.
    #[track_caller]
    pub(super) fn end(&self) {
        if let Output::Tensor { .. } = self.shared.output {
            self.one_lane(|| self.k.bulk_wait_read(0));
        }
    }

    /// Stores the log-sum-exp of a row, if it is asked for and this is the one lane of four to do it.
    #[track_caller]
    fn store_lse(&self, tile: &Entry<'k>, half: usize, sum: Val<'k, f32>) {
        if !self.shared.shape.lse {
            return;
        }
        let (k, params) = (self.k, self.shared.params);
        let query = tile.first_row() + self.lane_row + 8 * half as u32;
        let mine = (k.lane() % QUAD).eq(0) & query.lt(params.seq_len_q);
        k.if_(mine.divergent(), || {
            let batch_head = tile.batch().fma(params.num_heads, tile.head());
            params.store_lse(batch_head, query, self.rows[half].reference.offset.get(), sum);
        });
    }

    /// One lane of the warp, always the same.
    #[track_caller]
    fn one_lane(&self, body: impl FnOnce()) {
        self.k.if_(self.k.lane().eq(0).divergent(), body);
    }
}
