//! How dK and dV of a tile come to their tensors.

use flashcore_ir::Cache;
use flashcore_ir::fragment::MmaElement;
use flashcore_ir::wgmma::WgmmaElement;

use super::consumer::Warpgroup;
use super::kernel::Part;
use super::tile::Tile;
use crate::attention::row_tile::ACC_COLS;

impl<'k, E: MmaElement + WgmmaElement> Warpgroup<'k, '_, E> {
    /// dK and dV of the tile, through the bytes of K and V. Each warp stores its own rows.
    pub(super) fn store_gradients(&self, tile: &Tile<'k>) {
        let (k, context) = (self.k, self.context);
        // No product reads K any more.
        self.meet();
        let at = [tile.first_key + self.key_warp * 16, tile.kv_head, tile.batch];
        let (k_tile, v_tile, scale) = (context.k.tile, context.v.tile, context.softmax_scale);
        let sums = [
            (Part::Scores, &self.dk, k_tile, context.dk, Some(scale)),
            (Part::Values, &self.dv, v_tile, context.dv, None),
        ];
        for (part, sum, to, rows, scale) in sums {
            if ![part, Part::Keys].contains(&self.part) {
                continue;
            }
            for first in (0..to.cols()).step_by(to.slab_cols() as usize) {
                let place = to.at(self.lane_key, self.lane_query + first);
                // Columns past those of the head are not stored.
                let columns = to.slab_cols().min((8 * sum.tiles()).saturating_sub(first));
                for column in (0..columns).step_by(ACC_COLS as usize) {
                    let at = if column == 0 { place } else { to.across(place, column) };
                    for half in 0..2 {
                        let pair = sum.pair((first + column) / ACC_COLS, half).map(|value| match scale {
                            Some(scale) => value * scale,
                            None => value.get(),
                        });
                        to.down(at, 8 * half as u32)
                            .store_words(&[E::pack(pair[0], pair[1])], Cache::Default);
                    }
                }
            }
            k.fence_proxy_async();
            k.sync_warp();
            self.one_lane(|| {
                to.store_tma_part(0, self.key_warp, rows.keys(&tile.sequence).at(at));
                k.bulk_commit();
            });
        }
        // Shared memory must outlive the copies that read it.
        self.one_lane(|| k.bulk_wait(0));
    }
}
