//! The producer: one thread starts the copies of every tile this block computes, as fast as stages become free. Pages
//! are copied by the lanes of two warps, one for Q and K, one for V.

use flashcore_ir::inst::L2Hint;
use flashcore_ir::pipeline::Producer;
use flashcore_ir::{KernelBuilder, Val};

use super::kernel::Context;
use crate::attention::scheduler::WorkItem;
use crate::attention::softmax::Probability;
use crate::attention::tensor_rows::{Cluster, Sequence, fill_stage};

/// What a producer copies.
#[derive(Clone, Copy, PartialEq)]
enum Copies {
    All,
    QueriesAndKeys,
    Values,
}

impl<'k, E: Probability> Context<'k, '_, E> {
    /// Copies Q, K and V of each Q tile, in the order in which they are needed: by one thread, or where K and V are in
    /// pages, by two warps, one for Q and K and one for V, whose lanes look up and copy a page each. Copies of several
    /// lanes are issued one by one: with pages of 16 keys one warp took longer than the products (run `serve-chunks`).
    #[track_caller]
    pub(super) fn produce(&self, k: &'k KernelBuilder) {
        let producers = [&self.q_pipeline, &self.k_pipeline, &self.v_pipeline].map(|pipeline| pipeline.producer());
        let warp = (k.thread_idx() / 32).shfl_idx(0u32);
        let copy_tiles = |copies| {
            let list = self.work.list(k, self.levers.tiling(self.shape.packing));
            let all = (1 << self.levers.cluster) - 1;
            let cluster = (self.levers.cluster > 1).then(|| (k.cluster_rank(), k.constant(all)));
            list.if_any(|| {
                k.loop_(|scope| {
                    let next = list.next();
                    self.copy_tile(copies, &list.this(), cluster, producers);
                    list.advance();
                    scope.break_if((!next.exists()).uniform());
                });
            });
        };
        match self.k_rows.parts(self.levers.cols) {
            None => k.if_(warp.eq(0).uniform(), || {
                k.if_(k.elect().divergent(), || copy_tiles(Copies::All))
            }),
            Some(_) => {
                k.if_(warp.eq(0).uniform(), || copy_tiles(Copies::QueriesAndKeys));
                k.if_(warp.eq(1).uniform(), || copy_tiles(Copies::Values));
            }
        }
    }

    #[track_caller]
    fn copy_tile(
        &self,
        copies: Copies,
        tile: &WorkItem<'k>,
        cluster: Cluster<'k>,
        [q, keys, values]: [Producer<'k>; 3],
    ) {
        let (batch, first_query) = (tile.batch(), tile.first_query());
        let k = batch.builder();
        let kv_head = tile.kv_head();
        let sequence = Sequence::of(self.params, tile);
        let [k_rows, v_rows] = [&self.k_rows, &self.v_rows].map(|rows| (rows, rows.keys(&sequence)));
        let keys_at = |n_block| [tile.first_key(n_block), kv_head, batch];
        let copy_k = |n_block| {
            if copies != Copies::Values {
                fill_stage(cluster, self.k_tile, k_rows, keys, keys_at(n_block));
            }
        };
        let values_at = |n_block| match &self.scales {
            Some(scales) if E::TRANSPOSED => {
                let block = tile.first_key(n_block) / self.levers.cols;
                [k.constant(0), block, scales.head(tile.batch(), tile.kv_head())]
            }
            _ => [tile.first_key(n_block), tile.kv_head(), tile.batch()],
        };
        let copy_v = |n_block| {
            if copies != Copies::QueriesAndKeys {
                fill_stage(cluster, self.v_tile, v_rows, values, values_at(n_block));
            }
        };
        copy_k(k.constant(0));
        if copies != Copies::Values {
            self.copy_q(tile, [first_query, batch], &sequence, q);
        }
        let n_blocks = tile.n_blocks();
        k.for_uniform(1, n_blocks, 1, |n_block| {
            copy_k(n_block);
            copy_v(n_block - 1);
        });
        copy_v(n_blocks - 1);
    }

    /// Copies the rows of each warpgroup, or of the tile, as soon as their stage is free.
    #[track_caller]
    fn copy_q(
        &self,
        tile: &WorkItem<'k>,
        [first_query, batch]: [Val<'k, u32>; 2],
        sequence: &Sequence<'k>,
        q: Producer<'k>,
    ) {
        let k = batch.builder();
        let q_rows = self.q_rows.queries(sequence);
        let packing = self.shape.packing;
        for part in 0..self.levers.rows / packing.shared_rows() {
            let at = [first_query + packing.queries() * part, tile.head(), batch];
            q.acquire();
            let fill = || {
                q.expect(self.q_rows.map.bytes_of(&self.q_tile));
                let from = q_rows.at(at).hint(L2Hint::EvictFirst);
                self.q_tile.load_tma(q.stage(), from, q.full());
            };
            match self.k_rows.parts(self.levers.cols) {
                None => fill(),
                Some(_) => k.if_(k.lane().eq(0).divergent(), fill),
            }
            q.advance();
        }
    }
}
