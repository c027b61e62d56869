//! The end of a tile of keys: dK and dV go to their tensors, or, where blocks share the tile, are added to f32 sums.

use flashcore_ir::{Cache, GlobalPtr, SharedTile, Val};

use super::ACC_ELEMENTS;
use super::consumer::Warpgroup;
use super::kernel::{Gradients, Outputs};
use super::scheduler::Tile;
use super::split::Split;
use crate::attention::gradients::head_row;
use crate::attention::row_tile::{ACC_COLS, Keys, RowTile};
use crate::attention::softmax::SixteenBits;
use crate::attention::tensor_rows::TensorRows;

/// A tile in shared memory, and one of its stages.
type Stage<'k, E> = (SharedTile<'k, E>, Val<'k, u32>);

impl<'k, E: SixteenBits> Warpgroup<'k, '_, E> {
    /// Stores dK and dV of the tile through the shared memory of K and V, or adds them to the sums.
    pub(super) fn store_gradients(&self, tile: &Tile<'k>) {
        let [dk, dv] = match &self.context.gradients {
            Gradients::Added(split) => return self.add_gradients(split, tile),
            Gradients::Stored(rows) => rows,
        };
        // Until no product reads K any more.
        self.sync_consumers();
        if self.outputs != Outputs::Dv {
            self.store_dk(tile, dk, (self.context.keys.tile, self.k.constant(0)));
        }
        if self.outputs != Outputs::Dk {
            self.store_dv(tile, dv);
        }
        self.end_stores();
    }

    /// Shared memory must outlive the copies that read it.
    #[track_caller]
    pub(super) fn end_stores(&self) {
        self.one_lane(|| self.k.bulk_wait_read(0));
    }

    /// Stores dK through a stage of a tile that nothing reads any more.
    #[track_caller]
    pub(super) fn store_dk(&self, tile: &Tile<'k>, rows: &TensorRows<'k>, through: Stage<'k, E>) {
        let scale = Some(self.context.softmax_scale);
        self.store_sum(tile, &self.dk, scale, rows, through);
    }

    /// Stores dV through the shared memory of V. A warpgroup needs no barrier for that: it alone reads its rows of V.
    #[track_caller]
    pub(super) fn store_dv(&self, tile: &Tile<'k>, rows: &TensorRows<'k>) {
        let through = (self.context.values.tile, self.k.constant(0));
        self.store_sum(tile, &self.dv, None, rows, through);
    }

    #[track_caller]
    fn store_sum(
        &self,
        tile: &Tile<'k>,
        sum: &RowTile<'k, Keys>,
        scale: Option<Val<'k, f32>>,
        rows: &TensorRows<'k>,
        (through, stage): Stage<'k, E>,
    ) {
        let k = self.k;
        for first in (0..through.cols()).step_by(through.slab_cols() as usize) {
            let place = through.at_stage(stage, self.lane_key, self.lane_query + first);
            // The tensor map cuts off columns past head_dim.
            let columns = through.slab_cols().min((8 * sum.tiles()).saturating_sub(first));
            for column in (0..columns).step_by(ACC_COLS as usize) {
                let at = through.across(place, column);
                for half in 0..2 {
                    let pair = sum.pair((first + column) / ACC_COLS, half).map(|value| match scale {
                        Some(scale) => value * scale,
                        None => value.get(),
                    });
                    let at = through.down(at, 8 * half as u32);
                    at.store_words(&[E::pack(pair[0], pair[1])], Cache::Default);
                }
            }
        }
        k.fence_proxy_async();
        k.sync_warp();
        let at = [tile.first_key + self.key_warp * 16, tile.kv_head, tile.batch];
        self.one_lane(|| {
            through.store_tma_part(stage, self.key_warp, rows.keys(&tile.sequence).at(at));
            k.bulk_commit();
        });
    }

    /// Adds what this warp has of dK and dV to the sums of a tile that blocks share.
    #[track_caller]
    pub(super) fn add_gradients(&self, split: &Split<'k>, tile: &Tile<'k>) {
        if self.outputs != Outputs::Dv {
            self.add_sum(split, tile, &self.dk, split.sums.dk);
        }
        if self.outputs != Outputs::Dk {
            self.add_sum(split, tile, &self.dv, split.sums.dv);
        }
    }

    #[track_caller]
    fn add_sum(&self, split: &Split<'k>, tile: &Tile<'k>, sum: &RowTile<'k, Keys>, sums: GlobalPtr<'k, f32>) {
        let (k, context) = (self.k, self.context);
        k.verb("add_sum", || {
            let place = [tile.kv_heads, tile.batch, tile.kv_head];
            let first_row = head_row(split.sums.stride, place, tile.sequence.first.k);
            let row = first_row + tile.first_key + self.key_warp * 16;
            let place = sums.offset_strided(row, context.partition.width).offset(k.lane() * 4);
            for i in 0..sum.tiles() {
                place.plus((ACC_ELEMENTS * i) as i32).add_four(&sum.four(i));
            }
        });
    }
}
