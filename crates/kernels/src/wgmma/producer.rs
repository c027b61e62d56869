//! The producer: one thread starts the copies of every tile this block computes, as fast as stages become free.

use flashcore_ir::inst::L2Hint;
use flashcore_ir::pipeline::Producer;
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{KernelBuilder, SharedTile, TensorMap, Val};

use super::kernel::Context;
use crate::attention::scheduler::{WorkItem, WorkList};
use crate::attention::softmax::Probability;

impl<'k, E: Probability> Context<'k, '_, E> {
    /// Copies Q, K and V of each Q tile, in the order in which they are needed.
    #[track_caller]
    pub(super) fn produce(&self, k: &'k KernelBuilder) {
        let producers = [&self.q_pipeline, &self.k_pipeline, &self.v_pipeline].map(|pipeline| pipeline.producer());
        let warp = (k.thread_idx() / 32).shfl_idx(0u32);
        k.if_(warp.eq(0).uniform(), || {
            k.if_(k.elect().divergent(), || {
                let list = WorkList::new(k, self.table, self.levers.tiling());
                let all = (1 << self.levers.cluster) - 1;
                let cluster = (self.levers.cluster > 1).then(|| (k.cluster_rank(), k.constant(all)));
                k.loop_(|scope| {
                    let next = list.next();
                    self.copy_tile(&list.this(), cluster, producers);
                    list.advance();
                    scope.break_if((!next.exists()).uniform());
                });
            });
        });
    }

    #[track_caller]
    fn copy_tile(&self, tile: &WorkItem<'k>, cluster: Cluster<'k>, [q, keys, values]: [Producer<'k>; 3]) {
        let (batch, first_row) = (tile.batch(), tile.first_row());
        let k = batch.builder();
        let kv_head = tile.kv_head();
        let keys_at = |n_block| [tile.first_key(n_block), kv_head, batch];
        let copy_k = |n_block| share(cluster, self.k_tile, self.k_map, keys, keys_at(n_block));
        let copy_v = |n_block| share(cluster, self.v_tile, self.v_map, values, self.values_at(tile, n_block));
        copy_k(k.constant(0));
        for group in 0..self.levers.warpgroups() {
            let at = [first_row + 64 * group, tile.head(), batch];
            copy(self.q_tile, self.q_map, q, at, L2Hint::EvictFirst);
        }
        let n_blocks = tile.n_blocks();
        k.for_uniform(1, n_blocks, 1, |n_block| {
            copy_k(n_block);
            copy_v(n_block - 1);
        });
        copy_v(n_blocks - 1);
    }

    #[track_caller]
    fn values_at(&self, tile: &WorkItem<'k>, n_block: Val<'k, u32>) -> [Val<'k, u32>; 3] {
        let first = tile.first_key(n_block);
        match &self.scales {
            Some(scales) if E::TRANSPOSED => {
                let block = first / self.levers.cols;
                let head = scales.head(tile.batch(), tile.kv_head());
                [n_block.builder().constant(0), block, head]
            }
            _ => [first, tile.kv_head(), tile.batch()],
        }
    }
}

/// Rank among the blocks that copy K and V together, and a bit for each of them.
type Cluster<'k> = Option<(Val<'k, u32>, Val<'k, u16>)>;

/// Fills the next stage of a tile, in all blocks that copy together, with the rows from (row, head, batch) on: this
/// block copies its part, and does not wait for the others.
#[track_caller]
fn share<'k, E: WgmmaElement>(
    cluster: Cluster<'k>,
    tile: SharedTile<'k, E>,
    map: TensorMap<'k>,
    fill: Producer<'k>,
    at: [Val<'k, u32>; 3],
) {
    let Some((rank, all)) = cluster else {
        return copy(tile, map, fill, at, L2Hint::EvictLast);
    };
    fill.acquire();
    fill.expect(tile.stage_bytes());
    let [row, head, batch] = at;
    let row = row + rank * map.box_rows();
    let part = map.at(&[row, head, batch]).hint(L2Hint::EvictLast).multicast(all);
    tile.load_tma_part(fill.stage(), rank, part, fill.full());
    fill.advance();
}

/// Fills the next stage of a tile with the rows from (row, head, batch) on.
#[track_caller]
fn copy<'k, E: WgmmaElement>(
    tile: SharedTile<'k, E>,
    map: TensorMap<'k>,
    fill: Producer<'k>,
    at: [Val<'k, u32>; 3],
    hint: L2Hint,
) {
    fill.acquire();
    fill.expect(tile.stage_bytes());
    tile.load_tma(fill.stage(), map.at(&at).hint(hint), fill.full());
    fill.advance();
}
