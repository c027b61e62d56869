//! The producer: one thread copies Q, K and V of all tiles of this block, as fast as stages become free. Pages are
//! looked up and copied by all lanes of two warps, one for Q and K, one for V. Transposed V is not in pages.

use flashcore_ir::inst::L2Hint;
use flashcore_ir::pipeline::Producer;
use flashcore_ir::{KernelBuilder, Val};

use super::kernel::Context;
use super::transpose::tile_at;
use crate::attention::scheduler::WorkItem;
use crate::attention::softmax::InputElement;
use crate::attention::tensor_rows::{Cluster, Sequence, fill_stage};

impl<'k, E: InputElement> Context<'k, '_, E> {
    /// Copies Q, K and V of each Q tile, in the order in which they are needed. Two warps copy pages: of pages with 16
    /// keys, one took longer than the products (run `serve-chunks`).
    #[track_caller]
    pub(super) fn produce(&self, k: &'k KernelBuilder) {
        let [q, keys, values] = [&self.q, &self.keys, &self.values].map(|operand| operand.pipeline.producer());
        let (q_and_keys, values) = (Some([q, keys]), Some(values));
        let warp = k.warp_idx();
        let copy_tiles = |q_and_keys, values| {
            let list = self.work.list(k, self.levers.tiling(self.shape.packing));
            let all = (1 << self.levers.cluster) - 1;
            let cluster = (self.levers.cluster > 1).then(|| (k.cluster_rank(), k.constant(all)));
            let copy = || {
                let next = list.next();
                self.copy_tile(k, &list.this(), cluster, q_and_keys, values);
                next
            };
            list.if_any(|| list.for_each(copy));
        };
        let one_thread = |q_and_keys, values| k.if_(k.elect().divergent(), || copy_tiles(q_and_keys, values));
        if !self.is_paged() {
            return k.if_(warp.eq(0).uniform(), || one_thread(q_and_keys, values));
        }
        k.if_(warp.eq(0).uniform(), || copy_tiles(q_and_keys, None));
        k.if_(warp.eq(1).uniform(), || {
            if self.shape.is_fp8() {
                one_thread(None, values)
            } else {
                copy_tiles(None, values)
            }
        });
    }

    /// Whether K and V are in pages.
    fn is_paged(&self) -> bool {
        self.shape.page_rows > 0
    }

    /// Copies a Q tile and its blocks of K and V, or those of them that this warp has pipelines of. V is a block behind
    /// K.
    #[track_caller]
    fn copy_tile(
        &self,
        k: &'k KernelBuilder,
        tile: &WorkItem<'k>,
        cluster: Cluster<'k>,
        q_and_keys: Option<[Producer<'k>; 2]>,
        values: Option<Producer<'k>>,
    ) {
        let (batch, first_query, kv_head) = (tile.batch(), tile.first_query(), tile.kv_head());
        let sequence = Sequence::of(self.params, tile);
        let [k_rows, v_rows] = [&self.keys.rows, &self.values.rows].map(|rows| (rows, rows.keys(&sequence)));
        let copy_k = |n_block: Val<'k, u32>| {
            if let Some([_, keys]) = q_and_keys {
                let at = [tile.first_key(n_block), kv_head, batch];
                fill_stage(cluster, self.keys.tile, k_rows, keys, at);
            }
        };
        let copy_v = |n_block: Val<'k, u32>| {
            let Some(values) = values else { return };
            let first_key = tile.first_key(n_block);
            let at = match &self.scales {
                Some(scales) => tile_at(scales, &sequence, tile, first_key, self.levers.cols),
                None => [first_key, tile.kv_head(), tile.batch()],
            };
            fill_stage(cluster, self.values.tile, v_rows, values, at);
        };
        // The rows of each warpgroup, or of the tile, as soon as their stage is free.
        let copy_q = |q: Producer<'k>| {
            let (q_rows, packing) = (self.q.rows.queries(&sequence), self.shape.packing);
            for part in 0..self.levers.rows / packing.shared_rows {
                let at = [first_query + packing.queries() * part, tile.head(), batch];
                q.acquire();
                let fill = || {
                    q.expect(self.q.rows.map.bytes_of(&self.q.tile));
                    let from = q_rows.at(at).hint(L2Hint::EvictFirst);
                    self.q.tile.load_tma(q.stage(), from, q.full());
                };
                if self.is_paged() {
                    k.if_(k.lane().eq(0).divergent(), fill)
                } else {
                    fill()
                }
                q.advance();
            }
        };
        copy_k(k.constant(0));
        if let Some([q, _]) = q_and_keys {
            copy_q(q);
        }
        let n_blocks = tile.n_blocks();
        k.for_uniform(1, n_blocks, 1, |n_block| {
            copy_k(n_block);
            copy_v(n_block - 1);
        });
        copy_v(n_blocks - 1);
    }
}
