//! The warp that copies: one thread starts the copies of every tile this block computes, as fast as stages are free.

use flashcore_ir::inst::L2Hint;
use flashcore_ir::pipeline::Filler;
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{KernelBuilder, SharedTile, TensorMap, Val};

use super::Config;
use super::input::Input;
use super::kernel::Shared;
use super::schedule::{Entry, List};

impl<'k, E: Input> Shared<'k, '_, E> {
    /// Q, K and V of each tile of rows, in the order in which they are needed.
    #[track_caller]
    pub(super) fn copies(&self, k: &'k KernelBuilder) {
        let fillers = [self.q_ring.filler(), self.k_ring.filler(), self.v_ring.filler()];
        let warp = (k.thread_idx() / 32).shfl_idx(0u32);
        k.if_(warp.eq(0).uniform(), || {
            k.if_(k.elect().divergent(), || {
                let list = List::new(k, self.table, self.levers);
                let copier = Copier::new(k, self.levers);
                k.loop_(|scope| {
                    let next = list.next();
                    self.copy_tile(&list.this(), &copier, fillers);
                    list.advance();
                    scope.break_if((!next.exists()).uniform());
                });
            });
        });
    }

    #[track_caller]
    fn copy_tile(&self, tile: &Entry<'k>, copier: &Copier<'k>, [q, keys, values]: [Filler<'k>; 3]) {
        let (batch, first_row) = (tile.batch(), tile.first_row());
        let k = batch.builder();
        let kv_head = tile.kv_head();
        let copy_k = |turn| copier.share(self.k_tile, self.k_map, keys, [tile.first_key(turn), kv_head, batch]);
        let copy_v = |turn| copier.share(self.v_tile, self.v_map, values, self.values_at(tile, turn));
        copy_k(k.constant(0));
        for group in 0..self.levers.warpgroups() {
            let at = [first_row + 64 * group, tile.head(), batch];
            copy(self.q_tile, self.q_map, q, at);
        }
        let turns = tile.turns();
        k.for_uniform(1, turns, 1, |turn| {
            copy_k(turn);
            copy_v(turn - 1);
        });
        copy_v(turns - 1);
    }

    /// Where the values of a turn are.
    #[track_caller]
    fn values_at(&self, tile: &Entry<'k>, turn: Val<'k, u32>) -> [Val<'k, u32>; 3] {
        let first = tile.first_key(turn);
        match &self.scales {
            Some(scales) if E::TRANSPOSED => [turn.builder().constant(0), first / self.levers.cols, scales.head(tile)],
            _ => [first, tile.kv_head(), tile.batch()],
        }
    }
}

/// The block's part in copies of K and V.
struct Copier<'k> {
    /// Its rank among the blocks that copy together, and a bit for each of them.
    cluster: Option<(Val<'k, u32>, Val<'k, u16>)>,
}

impl<'k> Copier<'k> {
    #[track_caller]
    fn new(k: &'k KernelBuilder, levers: &Config) -> Self {
        let all = (1 << levers.cluster) - 1;
        Copier {
            cluster: (levers.cluster > 1).then(|| (k.cluster_rank(), k.constant(all))),
        }
    }

    /// Fills the next stage of a tile, in all blocks that copy together, with the rows from (row, head, batch) on: this
    /// block brings its part, and waits for no other's.
    #[track_caller]
    fn share<E: WgmmaElement>(
        &self,
        tile: SharedTile<'k, E>,
        map: TensorMap<'k>,
        fill: Filler<'k>,
        [row, head, batch]: [Val<'k, u32>; 3],
    ) {
        fill.acquire();
        fill.expect(tile.stage_bytes());
        match &self.cluster {
            None => tile.load_tma(
                fill.stage(),
                map.at(&[row, head, batch]).hint(L2Hint::EvictLast),
                fill.full(),
            ),
            Some((rank, all)) => {
                let row = row + *rank * map.box_rows();
                let part = map.at(&[row, head, batch]).hint(L2Hint::EvictLast).multicast(*all);
                tile.load_tma_part(fill.stage(), *rank, part, fill.full());
            }
        }
        fill.advance();
    }
}

/// Fills the next stage of a tile with the rows from (row, head, batch) on.
#[track_caller]
fn copy<'k, E: WgmmaElement>(tile: SharedTile<'k, E>, map: TensorMap<'k>, fill: Filler<'k>, at: [Val<'k, u32>; 3]) {
    fill.acquire();
    fill.expect(tile.stage_bytes());
    tile.load_tma(fill.stage(), map.at(&at).hint(L2Hint::EvictFirst), fill.full());
    fill.advance();
}
