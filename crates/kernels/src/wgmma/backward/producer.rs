//! The producer: one thread copies K and V of the block's tile, and then Q and dO of each Q tile with the statistics of
//! their rows, as fast as stages become free. Other warps of its warpgroup [store dQ](super::dq).

use flashcore_ir::mbarrier::MBarrier;
use flashcore_ir::pipeline::Producer;
use flashcore_ir::tensor_copy::BoxAt;
use flashcore_ir::{GlobalPtr, KernelBuilder, SharedTile, Val};

use super::WGMMA_M;
use super::kernel::{Context, MainLoop};
use super::scheduler::Tile;
use crate::attention::softmax::SixteenBits;
use crate::attention::tensor_rows::SequenceRows;
use crate::wgmma::maps::Operand;

impl<'k, E: SixteenBits> Context<'k, '_, E> {
    pub(super) fn produce(&self, k: &'k KernelBuilder) {
        let warp = k.warp_idx();
        k.if_(warp.le(self.dq_warps()).uniform(), || {
            self.with_tile(k, |tile| {
                if self.ahead.is_some() {
                    k.if_(warp.eq(1).uniform(), || self.signal_prepared(k, tile));
                }
                k.if_(k.elect().divergent(), || {
                    let store_dq = || {
                        self.wait_for_rows(tile);
                        self.store_dq(k, tile, warp - 1);
                    };
                    k.if_else(warp.eq(0).uniform(), || self.copy_tiles(k, tile), store_dq);
                });
            });
        });
    }

    fn copy_tiles(&self, k: &'k KernelBuilder, tile: &Tile<'k>) {
        let rows = self.levers.rows;
        let rank = self.partition.exchanges_ds.then(|| k.cluster_rank());
        let [keys, values] = [&self.keys, &self.values].map(|operand| Fill::new(operand, None));
        let [q, dout] = [&self.q, &self.dout].map(|operand| Fill::new(operand, rank));
        let at = |first_key| [first_key, tile.kv_head, tile.batch];
        let k_rows = self.keys.rows.keys(&tile.sequence);
        let apart = self.partition.dq_part_cols;
        keys.next(k_rows.at(at(tile.first_key)).slabs_apart(apart), &[]);
        let copy_v = || values.next(self.values.rows.keys(&tile.sequence).at(at(tile.first_key)), &[]);
        // S of the first Q tile needs no V: where all warpgroups compute S first, Q is copied before V.
        let v_pending = (rank.is_none() && self.ahead.is_none()).then(|| k.var(1u32));
        let copy_pending_v = || {
            let Some(pending) = v_pending else { return };
            k.if_(pending.get().gt(0).uniform(), || {
                copy_v();
                pending.set(0u32);
            });
        };
        if let (MainLoop::Exchange(exchange), Some(rank)) = (&self.main_loop, rank) {
            copy_v();
            // K of the other block, in the columns of this block's part of dQ.
            let columns = k_rows.at(at(tile.first_key ^ WGMMA_M)).column(rank * (2 * apart));
            Fill::new(&exchange.other_keys, None).next(columns.slabs_apart(apart), &[]);
        }
        let [q_rows, dout_rows] = [&self.q, &self.dout].map(|operand| operand.rows.queries(&tile.sequence));
        let row_of = |i| self.m_block(tile, i).reinterpret::<u32>() * rows;
        // Where other blocks prepare the statistics, all of them come with dO, since S needs none. The consumers
        // prepare rows only after they have waited for V, so V is copied before this wait for other blocks, even if no
        // row sees a key. Otherwise blocks could deadlock.
        let first_started = self.ahead.map(|_| {
            let any = || tile.q_tiles().gt(0).uniform();
            let at = || [row_of(k.constant(0)), tile.kv_head, tile.batch];
            k.if_(any(), || q.next(q_rows.at(at()), &[]));
            copy_v();
            k.if_(any(), || {
                dout.start(dout_rows.at(at()), 2);
            });
            self.wait_for_rows(tile);
            k.var(1u32)
        });
        self.each_head(tile, |head| {
            let [lse, delta] = self.statistics.places(head.first_row);
            k.for_uniform(head.from, head.to, 1, |i| {
                let row = row_of(i);
                let at = |of: SequenceRows<'k>| match rank {
                    None => of.at([row, head.index, tile.batch]),
                    Some(rank) => {
                        let (part, all) = (rows / self.levers.cluster, (1 << self.levers.cluster) - 1);
                        let part = of.at([rank.fma(part, row), head.index, tile.batch]);
                        part.multicast(k.constant(all))
                    }
                };
                let lse = || (self.lse_tile, lse.offset(row));
                let delta = || (self.delta_tile, delta.offset(row));
                let Some(first_started) = first_started else {
                    q.next(at(q_rows), &[lse()]);
                    copy_pending_v();
                    dout.next(at(dout_rows), &[delta()]);
                    return;
                };
                k.if_(first_started.get().eq(0).uniform(), || {
                    q.next(at(q_rows), &[]);
                    dout.start(at(dout_rows), 2);
                });
                first_started.set(0u32);
                dout.finish(&[lse(), delta()], dout.stages.stage(), dout.stages.full());
            });
        });
        copy_pending_v();
    }
}

/// Fills the stages of an operand, one after the other. In a cluster each block fills a `part` of each.
struct Fill<'k, 'o, E> {
    operand: &'o Operand<'k, E>,
    part: Option<Val<'k, u32>>,
    stages: Producer<'k>,
}

impl<'k, 'o, E: SixteenBits> Fill<'k, 'o, E> {
    #[track_caller]
    fn new(operand: &'o Operand<'k, E>, part: Option<Val<'k, u32>>) -> Self {
        let stages = operand.pipeline.producer();
        Fill { operand, part, stages }
    }

    /// Copies a box of rows, and statistics of the stage's rows.
    #[track_caller]
    fn next(&self, rows: BoxAt<'k>, statistics: &[RowStatistics<'k>]) {
        let (stage, full) = self.start(rows, statistics.len() as u32);
        self.finish(statistics, stage, full);
    }

    /// Copies a box of rows to the next stage, which waits for so many statistics of each row, too.
    #[track_caller]
    fn start(&self, rows: BoxAt<'k>, statistics: u32) -> (Val<'k, u32>, MBarrier<'k>) {
        let tile = self.operand.tile;
        let (stage, full) = (self.stages.stage(), self.stages.full());
        self.stages.acquire();
        self.stages.expect(tile.stage_bytes() + statistics * 4 * tile.rows());
        match self.part {
            None => tile.load_tma(stage, rows, full),
            Some(part) => tile.load_tma_part(stage, part, rows, full),
        }
        (stage, full)
    }

    /// Copies the statistics, and advances to the next stage.
    #[track_caller]
    fn finish(&self, statistics: &[RowStatistics<'k>], stage: Val<'k, u32>, full: MBarrier<'k>) {
        let (k, bytes) = (stage.builder(), 4 * self.operand.tile.rows());
        for (to, from) in statistics {
            k.bulk_load(to.at_stage(stage, 0, 0), *from, bytes, full);
        }
        self.stages.advance();
    }
}

/// Where statistics of a stage's rows go, and where they are in global memory.
type RowStatistics<'k> = (SharedTile<'k, f32>, GlobalPtr<'k, f32>);
