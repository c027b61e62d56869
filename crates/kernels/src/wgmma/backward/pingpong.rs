//! The main loop up to 128 columns. Warpgroups pingpong as in the forward pass: while products of one run on the tensor
//! cores, the other computes exponentials and dS. Each warpgroup has its own keys, but dQ needs the dS of both, so dQ
//! of Q tile `i` is computed in step `i + 1`: the other warpgroup, half a step behind or ahead, has written its dS by
//! then. Mbarriers of each stage of dS signal that it is full, and that it is free.
//!
//! | step of Q tile `i`, with S complete | products in flight |
//! |---|---|
//! | P | dP |
//! | dS, written to shared memory | |
//! | `warp_scheduler_barrier_sync` | dV, dK |
//! | dQ of `i - 2` is committed: a producer warp stores it | |
//! | `warp_scheduler_barrier_arrive` | S of `i + 1`, dQ of `i - 1` |
//! | dQ of `i - 1`, written to shared memory | |
//!
//! One proxy fence a step makes dS in shared memory visible to products. It comes before the sync where dK reads dS
//! from shared memory; at head_dim 64 dK has dS in registers, and the fence comes after dV and dK have started.
//!
//! ptxas serialises products unless at one place of the loop none is in flight, and each branch that starts products
//! also waits for them.

use flashcore_ir::mbarrier::MBarriers;
use flashcore_ir::{KernelBuilder, Val};

use super::ahead::LoadedRows;
use super::consumer::Warpgroup;
use super::dq::{DqPipeline, declare_mbarriers, stage_and_phase};
use super::kernel::Gradients;
use super::scheduler::{QueryHead, Tile};
use super::{DS_STAGES, Partition};
use crate::attention::softmax::SixteenBits;
use crate::wgmma::Config;
use crate::wgmma::consumer::release_and_advance;
use crate::wgmma::warp_scheduler::WarpSchedulerBarrier;

/// The mbarriers of dS and the pipeline of dQ, which warpgroups share.
#[derive(Clone, Copy)]
pub(super) struct Pingpong<'k> {
    /// By stage of dS: all consumer warps have written it, and all have read it.
    full: MBarriers<'k>,
    free: MBarriers<'k>,
    pub(super) dq: DqPipeline<'k>,
}

impl<'k> Pingpong<'k> {
    /// A barrier of the block must follow.
    pub(super) fn declare(k: &'k KernelBuilder, levers: &Config, partition: &Partition) -> Self {
        let [full, free] = declare_mbarriers(k, ["ds.full", "ds.free"], DS_STAGES, 4 * partition.warpgroups);
        let dq = DqPipeline::declare(k, levers, partition);
        Pingpong { full, free, dq }
    }
}

impl<'k, E: SixteenBits> Warpgroup<'k, '_, E> {
    /// The main loop: dK and dV of the tile of keys, and its part of dQ, from the Q tiles of all heads, of which there
    /// is at least one.
    pub(super) fn tile_in_pingpong(&self, pingpong: &Pingpong<'k>, tile: &Tile<'k>, ahead: &Option<LoadedRows<'k, E>>) {
        let (k, context) = (self.k, self.context);
        self.start_scores();
        context.values.pipeline.consumer().wait();
        self.load_v();
        context.store_prepared(k, tile, ahead);
        k.wgmma_wait(0);
        let barrier = WarpSchedulerBarrier::new(self.warp / 4, context.partition.warpgroups);
        context.each_head(tile, |head| self.head_in_pingpong(pingpong, barrier, tile, &head));
        self.end_in_pingpong(pingpong, tile);
    }

    /// The Q tiles of a head, as in the table above.
    fn head_in_pingpong(
        &self,
        pingpong: &Pingpong<'k>,
        barrier: WarpSchedulerBarrier<'k>,
        tile: &Tile<'k>,
        head: &QueryHead<'k>,
    ) {
        let (k, context) = (self.k, self.context);
        // The last Q tile of all heads.
        let last = context.all_q_tiles(tile) - 1;
        let step = |i: Val<'k, i32>, mask: &dyn Fn(Val<'k, i32>)| {
            let (number, m_block) = (self.q_tiles_done.get(), context.m_block(tile, i));
            self.p_and_ds(pingpong, number, || mask(m_block));
            // The fence orders loads of the statistics, stores of dS, and stores of dQ of two Q tiles before, ahead of
            // copies and products. Where dK reads dS of all warps from shared memory, each warp needs it before they
            // meet.
            let fence_first = !context.partition.holds_ds;
            if fence_first {
                k.fence_proxy_async();
            }
            barrier.sync();
            self.start_dv();
            self.start_dk(number % DS_STAGES);
            if !fence_first {
                k.fence_proxy_async();
                k.sync_warp();
            }
            self.one_lane(|| pingpong.full.at(number % DS_STAGES).arrive());
            k.if_(number.gt(1).uniform(), || self.commit_dq(&pingpong.dq, number - 2));
            self.q.advance();
            let dq_of_previous = |exists: bool| {
                if exists {
                    self.start_dq_of(pingpong, number - 1);
                }
                barrier.arrive();
                k.wgmma_wait(0);
                if exists {
                    self.write_dq_of(pingpong, number - 1);
                }
            };
            let scores_of_next = |exists: bool| {
                if exists {
                    self.start_scores();
                }
                k.wgmma_wait(u32::from(exists));
                release_and_advance(self.dout);
                release_and_advance(self.dk_q);
                k.if_else(
                    number.gt(0).uniform(),
                    || dq_of_previous(true),
                    || dq_of_previous(false),
                );
            };
            k.if_else(
                number.lt(last).uniform(),
                || scores_of_next(true),
                || scores_of_next(false),
            );
            self.q_tiles_done.set(number + 1);
        };
        if context.ordered {
            k.for_uniform(head.from, head.to, 1, |i| step(i, &|at| self.mask_if_needed(tile, at)));
        } else {
            let masked = tile.masked_end(head);
            k.for_uniform(head.from, masked, 1, |i| step(i, &|at| self.mask(tile, at)));
            k.for_uniform(masked, head.to, 1, |i| step(i, &|_| ()));
        }
    }

    /// P and dS of a Q tile, whose scores are there.
    fn p_and_ds(&self, pingpong: &Pingpong<'k>, number: Val<'k, u32>, mask: impl FnOnce()) {
        let (k, context) = (self.k, self.context);
        self.start_dp();
        let lse = self.row_statistics(context.lse_tile, self.q.stage());
        mask();
        self.probabilities(&lse);
        // Loaded while dP is computed, if V leaves registers for them.
        let delta = || self.row_statistics(context.delta_tile, self.dout.stage());
        let early = (!context.partition.holds_v).then(delta);
        let (stage, phase) = stage_and_phase(number, DS_STAGES);
        pingpong.free.at(stage).wait(phase ^ 1);
        k.wgmma_wait(0);
        let p_of = |tile| move |half| self.scores.pair(tile, half).map(|p| p.get());
        self.score_gradients(stage, &early.unwrap_or_else(delta), p_of);
    }

    /// Starts dQ of a Q tile once all warps have written its dS.
    #[track_caller]
    fn start_dq_of(&self, pingpong: &Pingpong<'k>, number: Val<'k, u32>) {
        let (stage, phase) = stage_and_phase(number, DS_STAGES);
        pingpong.full.at(stage).wait(phase);
        self.start_dq(stage, None);
    }

    /// Releases the stage of dS that dQ of a Q tile was computed from, and writes this dQ to shared memory.
    #[track_caller]
    fn write_dq_of(&self, pingpong: &Pingpong<'k>, number: Val<'k, u32>) {
        self.one_lane(|| pingpong.free.at(number % DS_STAGES).arrive());
        self.write_dq(&pingpong.dq, number);
    }

    /// dQ of the last Q tile. While it is computed, dV is stored, and also dK if it fits a stage of Q; otherwise dK
    /// takes the place of K afterwards. Where blocks share the tile of keys, dK and dV are added.
    fn end_in_pingpong(&self, pingpong: &Pingpong<'k>, tile: &Tile<'k>) {
        let (k, context, tiles) = (self.k, self.context, self.q_tiles_done.get());
        let commit_dq = |number| {
            k.fence_proxy_async();
            k.sync_warp();
            self.commit_dq(&pingpong.dq, number);
        };
        let q = context.q.tile;
        let fits = q.stage_bytes() == context.keys.tile.stage_bytes();
        let through_q = fits && 8 * self.dk.tiles() == q.cols();
        self.start_dq_of(pingpong, tiles - 1);
        k.if_(tiles.gt(1).uniform(), || commit_dq(tiles - 2));
        let [dk, dv] = match &context.gradients {
            Gradients::Stored(rows) => rows,
            Gradients::Added(split) => {
                self.add_gradients(split, tile);
                k.wgmma_wait(0);
                self.write_dq_of(pingpong, tiles - 1);
                return commit_dq(tiles - 1);
            }
        };
        self.store_dv(tile, dv);
        if through_q {
            // All warps have written dS of the last Q tile, and have completed dK of the one before, which read this
            // stage.
            self.store_dk(tile, dk, (q, self.q.stage()));
        }
        k.wgmma_wait(0);
        self.write_dq_of(pingpong, tiles - 1);
        commit_dq(tiles - 1);
        if !through_q {
            self.sync_consumers();
            self.store_dk(tile, dk, (context.keys.tile, k.constant(0)));
        }
        self.end_stores();
    }
}
