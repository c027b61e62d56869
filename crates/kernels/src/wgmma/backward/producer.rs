//! The producer: one thread copies K and V of the block's tile, and then Q and dO of each Q tile with the statistics of
//! their rows, as fast as stages become free.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::pipeline::Producer;
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{GlobalPtr, KernelBuilder, SharedTile, Val};

use super::kernel::{Context, Operand};

impl<'k, E: MmaElement + WgmmaElement> Context<'k, '_, E> {
    pub(super) fn produce(&self, k: &'k KernelBuilder) {
        let warp = (k.thread_idx() / 32).shfl_idx(0u32);
        k.if_(warp.eq(0).uniform(), || {
            k.if_(k.elect().divergent(), || self.copy_tiles(k));
        });
    }

    fn copy_tiles(&self, k: &'k KernelBuilder) {
        let (tile, rows) = (self.tile(k), self.levers.rows);
        let [keys, values, q, dout] = [&self.k, &self.v, &self.q, &self.dout].map(Fill::new);
        let at = [tile.first_key, tile.kv_head, tile.batch];
        keys.next(at, None);
        values.next(at, None);
        self.each_head(&tile, |head, head_row| {
            let [lse, delta] = self.statistics.places(head_row);
            k.for_uniform(k.constant(0i32), tile.order.count, 1, |i| {
                let row = tile.order.n_block(i).reinterpret::<u32>() * rows;
                let at = [row, head, tile.batch];
                q.next(at, Some((self.lse_tile, lse)));
                dout.next(at, Some((self.delta_tile, delta)));
            });
        });
    }
}

/// Fills the stages of an operand, one after the other.
struct Fill<'k, 'o, E> {
    operand: &'o Operand<'k, E>,
    stages: Producer<'k>,
}

impl<'k, 'o, E: WgmmaElement> Fill<'k, 'o, E> {
    #[track_caller]
    fn new(operand: &'o Operand<'k, E>) -> Self {
        let stages = operand.pipeline.producer();
        Fill { operand, stages }
    }

    /// The rows from `at` on (row, head, batch), and perhaps numbers of theirs.
    #[track_caller]
    fn next(&self, at: [Val<'k, u32>; 3], numbers: Option<(SharedTile<'k, f32>, GlobalPtr<'k, f32>)>) {
        let (k, tile) = (at[0].builder(), self.operand.tile);
        let (stage, full) = (self.stages.stage(), self.stages.full());
        self.stages.acquire();
        let bytes = numbers.map_or(0, |_| 4 * tile.rows());
        self.stages.expect(tile.stage_bytes() + bytes);
        tile.load_tma(stage, self.operand.map.at(&at), full);
        if let Some((numbers, from)) = numbers {
            k.bulk_load(numbers.at_stage(stage, 0, 0), from.offset(at[0]), bytes, full);
        }
        self.stages.advance();
    }
}
