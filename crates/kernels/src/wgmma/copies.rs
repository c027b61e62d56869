//! The warp that copies: one thread starts the copies of every tile this block computes, as fast as stages are free.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::inst::L2Hint;
use flashcore_ir::pipeline::Filler;
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{KernelBuilder, SharedTile, TensorMap, Val};

use super::kernel::Shared;
use super::schedule::{List, Work};
use crate::sequence::Edges;

impl<'k, E: MmaElement + WgmmaElement> Shared<'k, '_, E> {
    /// Q, K and V of each tile of rows, in the order in which they are needed.
    #[track_caller]
    pub(super) fn copies(&self, k: &'k KernelBuilder) {
        let (q, keys, values) = (self.q_ring.filler(), self.k_ring.filler(), self.v_ring.filler());
        let warp = (k.thread_idx() / 32).shfl_idx(0u32);
        k.if_(warp.eq(0).uniform(), || {
            k.if_(k.elect().divergent(), || {
                let list = List::new(k, self.table, self.levers.rows);
                k.loop_(|scope| {
                    self.copy_tile(&list.this(), q, keys, values);
                    let more = list.has_next();
                    list.advance();
                    scope.break_if((!more).uniform());
                });
            });
        });
    }

    #[track_caller]
    fn copy_tile(&self, work: &Work<'k>, q: Filler<'k>, keys: Filler<'k>, values: Filler<'k>) {
        let k = work.batch.builder();
        let sequence = self.sequence(work);
        let kv_head = work.head / self.params.group_size;
        let key0 = |turn: Val<'k, i32>| sequence.first_key(turn, Edges::Checked);
        let copy_k = |turn| {
            copy(
                self.k_tile,
                self.k_map,
                keys,
                [key0(turn), kv_head, work.batch],
                L2Hint::EvictLast,
            )
        };
        let copy_v = |turn| {
            copy(
                self.v_tile,
                self.v_map,
                values,
                [key0(turn), kv_head, work.batch],
                L2Hint::EvictLast,
            )
        };
        copy_k(k.constant(0));
        copy(
            self.q_tile,
            self.q_map,
            q,
            [work.first_row, work.head, work.batch],
            L2Hint::EvictFirst,
        );
        let turns = self.turns(&sequence);
        k.for_uniform(1, turns, 1, |turn| {
            copy_k(turn);
            copy_v(turn - 1);
        });
        copy_v(turns - 1);
    }
}

/// Fills the next stage of a tile with the rows from (row, head, batch) on.
#[track_caller]
fn copy<'k, E: WgmmaElement>(
    tile: SharedTile<'k, E>,
    map: TensorMap<'k>,
    fill: Filler<'k>,
    at: [Val<'k, u32>; 3],
    hint: L2Hint,
) {
    fill.acquire();
    fill.expect(tile.stage_bytes());
    tile.load_tma(fill.stage(), map.at(&at).hint(hint), fill.full());
    fill.advance();
}
