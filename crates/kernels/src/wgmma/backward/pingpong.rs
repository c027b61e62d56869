//! Up to 128 columns, warpgroups pingpong as in the forward pass: while products of one run on the tensor cores, the
//! other computes exponentials and dS. Each warpgroup has its own keys, but dQ needs the dS of both. So dQ of a Q tile
//! is computed one tile later: the other warpgroup, half a tile behind or ahead, has written its dS by then.
//! Mbarriers of each stage of dS say that it has been written, and that it has been read.
//!
//! | a Q tile, whose scores are there | products under way |
//! |---|---|
//! | P | dP |
//! | dS, to shared memory | |
//! | `warp_scheduler_barrier_sync` | dV, dK |
//! | dQ of two tiles before, to the warp that adds it | |
//! | `warp_scheduler_barrier_arrive` | S of the next tile, dQ of the one before |
//! | dQ of the tile before to shared memory | |
//!
//! One fence a tile makes dS in shared memory visible to products. It comes before the sync where dK reads dS from
//! shared memory; at head_dim 64 dK has dS in registers, and the fence comes after dV and dK have started.
//!
//! At one place of the loop no product is under way, and a branch that starts products also waits for them: otherwise
//! ptxas serialises them.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::mbarrier::MBarriers;
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{KernelBuilder, Val};

use super::ahead::LoadedRows;
use super::consumer::Warpgroup;
use super::dq::{DqPipeline, declare_mbarriers, stage_and_phase};
use super::kernel::Gradients;
use super::scheduler::{QueryHead, Tile};
use super::{DS_STAGES, Partition};
use crate::wgmma::Config;
use crate::wgmma::consumer::release;
use crate::wgmma::warp_scheduler::WarpSchedulerBarrier;

/// The mbarriers and the tile of dQ that warpgroups share.
#[derive(Clone, Copy)]
pub(super) struct Pingpong<'k> {
    /// By stage of dS: all consumer warps have written it, and have read it.
    full: MBarriers<'k>,
    free: MBarriers<'k>,
    pub(super) dq: DqPipeline<'k>,
}

impl<'k> Pingpong<'k> {
    /// Makes its mbarriers; a barrier of the block comes next.
    pub(super) fn declare(k: &'k KernelBuilder, levers: &Config, partition: &Partition) -> Self {
        let [full, free] = declare_mbarriers(k, ["ds.full", "ds.free"], DS_STAGES, 4 * partition.warpgroups);
        let dq = DqPipeline::declare(k, levers, partition);
        Pingpong { full, free, dq }
    }
}

impl<'k, E: MmaElement + WgmmaElement> Warpgroup<'k, '_, E> {
    /// Computes what the Q tiles of all heads (one or more) add to dQ, and dK and dV of the tile of keys.
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

    /// The Q tiles of a head.
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
            let (number, m_block) = (self.tiles.get(), context.m_block(tile, i));
            self.score_gradients_of(pingpong, number, || mask(m_block));
            // The one fence of a tile: behind it are the reads of numbers, dS, and dQ of the tile before the one
            // before. Where dK reads dS from shared memory, all warps of the warpgroup have one before they meet.
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
            let start_dq = |there_is: bool| {
                if there_is {
                    self.start_dq_of(pingpong, number - 1);
                }
                barrier.arrive();
                k.wgmma_wait(0);
                if there_is {
                    self.write_dq_of(pingpong, number - 1);
                }
            };
            let start_scores = |there_are: bool| {
                if there_are {
                    self.start_scores();
                }
                k.wgmma_wait(u32::from(there_are));
                release(self.dout);
                release(self.dk_q);
                k.if_else(number.gt(0).uniform(), || start_dq(true), || start_dq(false));
            };
            k.if_else(number.lt(last).uniform(), || start_scores(true), || start_scores(false));
            self.tiles.set(number + 1);
        };
        if context.ordered {
            k.for_uniform(head.from, head.to, 1, |i| step(i, &|at| self.mask_some(tile, at)));
        } else {
            let masked = tile.masked_end(head);
            k.for_uniform(head.from, masked, 1, |i| step(i, &|at| self.mask(tile, at)));
            k.for_uniform(masked, head.to, 1, |i| step(i, &|_| ()));
        }
    }

    /// dQ of the last Q tile. While it is computed, dV is stored, and dK as well where Q has stages that are as large
    /// as K and dK fills one. Where blocks share the tile, both are added.
    fn end_in_pingpong(&self, pingpong: &Pingpong<'k>, tile: &Tile<'k>) {
        let (k, context, tiles) = (self.k, self.context, self.tiles.get());
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
            // All warps have written dS of the last tile, and so have read Q of the tile before.
            self.store_dk(tile, dk, q, self.q.stage());
        }
        k.wgmma_wait(0);
        self.write_dq_of(pingpong, tiles - 1);
        commit_dq(tiles - 1);
        if !through_q {
            self.meet();
            self.store_dk(tile, dk, context.keys.tile, k.constant(0));
        }
        self.end_stores();
    }

    /// P and dS of a Q tile, whose scores are there.
    fn score_gradients_of(&self, pingpong: &Pingpong<'k>, number: Val<'k, u32>, mask: impl FnOnce()) {
        let (k, context) = (self.k, self.context);
        self.start_dp();
        let lse = self.row_numbers(context.lse_tile, self.q.stage());
        mask();
        self.probabilities(&lse);
        // There are registers for them before dP is there, if V is not held in registers.
        let delta = || self.row_numbers(context.delta_tile, self.dout.stage());
        let early = (!context.partition.holds_v).then(delta);
        let (stage, phase) = stage_and_phase(number, DS_STAGES);
        pingpong.free.at(stage).wait(phase ^ 1);
        k.wgmma_wait(0);
        let p_of = |tile| move |half| self.scores.pair(tile, half).map(|p| p.get());
        self.score_gradients(stage, &early.unwrap_or_else(delta), p_of);
    }

    /// Starts dQ of a Q tile when all warps have written its dS.
    #[track_caller]
    fn start_dq_of(&self, pingpong: &Pingpong<'k>, number: Val<'k, u32>) {
        let (stage, phase) = stage_and_phase(number, DS_STAGES);
        pingpong.full.at(stage).wait(phase);
        self.start_dq([stage; 2]);
    }

    /// Writes that dQ to shared memory, and releases its stage of dS.
    #[track_caller]
    fn write_dq_of(&self, pingpong: &Pingpong<'k>, number: Val<'k, u32>) {
        self.one_lane(|| pingpong.free.at(number % DS_STAGES).arrive());
        self.write_dq(&pingpong.dq, number);
    }
}
