//! How dK and dV of a tile come to their tensors.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{Cache, SharedTile, Val};

use super::consumer::Warpgroup;
use super::kernel::{Gradients, Outputs};
use super::scheduler::Tile;
use crate::attention::row_tile::{ACC_COLS, Keys, RowTile};
use crate::attention::tensor_rows::TensorRows;

impl<'k, E: MmaElement + WgmmaElement> Warpgroup<'k, '_, E> {
    /// dK and dV of the tile, through the bytes of K and V. Each warp stores its own rows. Where blocks share the tile,
    /// adds them.
    pub(super) fn store_gradients(&self, tile: &Tile<'k>) {
        let [dk, dv] = match &self.context.gradients {
            Gradients::Added(split) => return self.add_gradients(split, tile),
            Gradients::Stored(rows) => rows,
        };
        // No product reads K any more.
        self.sync_consumers();
        if self.outputs != Outputs::Dv {
            self.store_dk(tile, dk, self.context.keys.tile, self.k.constant(0));
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

    /// dK, through a stage of a tile that nothing reads any more.
    #[track_caller]
    pub(super) fn store_dk(
        &self,
        tile: &Tile<'k>,
        rows: &TensorRows<'k>,
        through: SharedTile<'k, E>,
        stage: Val<'k, u32>,
    ) {
        let scale = Some(self.context.softmax_scale);
        self.store_sum(tile, &self.dk, scale, rows, through, stage);
    }

    /// dV, through the bytes of V, of which a warpgroup reads its own rows alone.
    #[track_caller]
    pub(super) fn store_dv(&self, tile: &Tile<'k>, rows: &TensorRows<'k>) {
        let stage = self.k.constant(0);
        self.store_sum(tile, &self.dv, None, rows, self.context.values.tile, stage);
    }

    #[track_caller]
    fn store_sum(
        &self,
        tile: &Tile<'k>,
        sum: &RowTile<'k, Keys>,
        scale: Option<Val<'k, f32>>,
        rows: &TensorRows<'k>,
        through: SharedTile<'k, E>,
        stage: Val<'k, u32>,
    ) {
        let k = self.k;
        for first in (0..through.cols()).step_by(through.slab_cols() as usize) {
            let place = through.at_stage(stage, self.lane_key, self.lane_query + first);
            // Columns past those of the head are not stored.
            let columns = through.slab_cols().min((8 * sum.tiles()).saturating_sub(first));
            for column in (0..columns).step_by(ACC_COLS as usize) {
                let at = through.across(place, column);
                for half in 0..2 {
                    let pair = sum.pair((first + column) / ACC_COLS, half).map(|value| match scale {
                        Some(scale) => value * scale,
                        None => value.get(),
                    });
                    through
                        .down(at, 8 * half as u32)
                        .store_words(&[E::pack(pair[0], pair[1])], Cache::Default);
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
}
