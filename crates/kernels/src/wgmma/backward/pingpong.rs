//! Up to 128 columns, warpgroups pingpong as in the forward pass: while products of one run on the tensor cores, the
//! other computes exponentials and dS. Each has its own keys, but dQ needs the dS of both. So dQ of a Q tile is
//! computed one tile later, when the other warpgroup, which is half a tile behind or ahead, has long written its dS;
//! mbarriers by stage of dS say that, and that it has been read.
//!
//! | a Q tile, whose scores are there | products under way |
//! |---|---|
//! | P | dP |
//! | dS, to shared memory | |
//! | `warp_scheduler_barrier_sync`; a fence | dV, dK |
//! | `warp_scheduler_barrier_arrive` | S of the next tile, dQ of the one before |
//! | dQ of the tile before to shared memory | |
//!
//! At one place of the loop no product is under way, and a branch that starts products also waits for them: otherwise
//! ptxas serialises them.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::mbarrier::MBarriers;
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{KernelBuilder, Val};

use super::Shares;
use super::consumer::Warpgroup;
use super::dq::{SentDq, made, stage};
use super::exchange::DS_STAGES;
use super::tile::Tile;
use crate::wgmma::consumer::release;

/// Named barrier ids: 2 and 3 hand over, 4 and 5 join one warpgroup.
const HAND_OVER: u32 = 2;
const OWN: u32 = 4;

/// What warpgroups have in common.
#[derive(Clone, Copy)]
pub(super) struct Pingpong<'k> {
    /// By stage of dS: all consumer warps have written it, and have read it.
    full: MBarriers<'k>,
    free: MBarriers<'k>,
    pub(super) dq: SentDq<'k>,
}

impl<'k> Pingpong<'k> {
    /// Makes its mbarriers; a barrier of the block comes next.
    pub(super) fn declare(k: &'k KernelBuilder, shares: &Shares, dq: SentDq<'k>) -> Self {
        let [full, free] = made(k, ["ds.full", "ds.free"], DS_STAGES, 4 * shares.warpgroups);
        Pingpong { full, free, dq }
    }
}

/// The `warp_scheduler_barrier` of two warpgroups; one alone has the tensor cores to itself.
impl<'k, E: MmaElement + WgmmaElement> Warpgroup<'k, '_, E> {
    /// The first warpgroup goes first: the second one lets it.
    #[track_caller]
    pub(super) fn begin_pingpong(&self) {
        if self.has_other() {
            let arrive = || self.warp_scheduler_barrier_arrive();
            self.k.if_(self.index().eq(1).uniform(), arrive);
        }
    }

    /// Takes back the arrival that is left over, so that the barrier ends as it began. The forward pass does not; here
    /// a barrier with an arrival left over at the end was not tried on a GPU.
    #[track_caller]
    pub(super) fn end_pingpong(&self) {
        if self.has_other() {
            let sync = || self.warp_scheduler_barrier_sync();
            self.k.if_(self.index().eq(0).uniform(), sync);
        }
    }

    #[track_caller]
    fn warp_scheduler_barrier_sync(&self) {
        if self.has_other() {
            self.k.verb("warp_scheduler_barrier_sync", || {
                self.k.barrier_among(self.index() + HAND_OVER, 256)
            });
        }
    }

    #[track_caller]
    fn warp_scheduler_barrier_arrive(&self) {
        if self.has_other() {
            let other = self.index() ^ 1;
            self.k.verb("warp_scheduler_barrier_arrive", || {
                self.k.barrier_arrive(other + HAND_OVER, 256)
            });
        }
    }

    fn has_other(&self) -> bool {
        self.context.shares.warpgroups > 1
    }

    fn index(&self) -> Val<'k, u32> {
        self.warp / 4
    }

    /// What the Q tiles of a head, of which there are some, add to the three gradients.
    pub(super) fn head_in_pingpong(
        &self,
        pingpong: &Pingpong<'k>,
        tile: &Tile<'k>,
        mask: impl Fn(Val<'k, i32>),
        mask_some: impl Fn(Val<'k, i32>),
    ) {
        let (k, context, order) = (self.k, self.context, &tile.order);
        let last = order.count - 1;
        let step = |i: Val<'k, i32>, mask: &dyn Fn(Val<'k, i32>)| {
            let m_block = context.q_tile_of(tile, i);
            self.m_block(pingpong, || mask(m_block), i.gt(1));
            let release = || {
                release(self.dout);
                release(self.held);
            };
            // Its end: dQ of the tile before, if there is one.
            let finish = || {
                let dq = || {
                    self.start_late_dq(pingpong);
                    self.warp_scheduler_barrier_arrive();
                    k.wgmma_wait(0);
                    self.finish_late_dq(pingpong);
                };
                let none = || {
                    self.warp_scheduler_barrier_arrive();
                    k.wgmma_wait(0);
                };
                k.if_else(i.gt(0).uniform(), dq, none);
            };
            let scores = || {
                self.start_scores();
                k.wgmma_wait(1);
                release();
                finish();
            };
            let none = || {
                k.wgmma_wait(0);
                release();
                finish();
            };
            k.if_else(i.lt(last).uniform(), scores, none);
        };
        self.start_scores();
        k.wgmma_wait(0);
        if context.ordered() {
            k.for_uniform(k.constant(0i32), order.count, 1, |i| step(i, &mask_some));
        } else {
            k.for_uniform(k.constant(0i32), order.masked, 1, |i| step(i, &mask));
            k.for_uniform(order.masked, order.count, 1, |i| step(i, &|_| ()));
        }
        self.start_late_dq(pingpong);
        k.fence_proxy_async();
        k.sync_warp();
        k.if_(last.gt(0).uniform(), || self.give_dq(&pingpong.dq));
        k.wgmma_wait(0);
        self.finish_late_dq(pingpong);
        k.fence_proxy_async();
        k.sync_warp();
        self.give_dq(&pingpong.dq);
    }

    /// dS of a Q tile whose scores are there. It ends with dV and dK under way.
    fn m_block(&self, pingpong: &Pingpong<'k>, mask: impl FnOnce(), any_kept: Val<'k, bool>) {
        let (k, context) = (self.k, self.context);
        let scored = self.scored();
        let holds_operands = context.shares.holds_operands;
        self.start_dp();
        let lse = self.row_numbers(context.lse_tile, self.q.stage());
        mask();
        self.probabilities(&lse);
        let delta = || self.row_numbers(context.delta_tile, self.dout.stage());
        let early = (!holds_operands).then(delta);
        let (place, phase) = stage(scored.get(), DS_STAGES);
        pingpong.free.at(place).wait(phase ^ 1);
        k.wgmma_wait(0);
        let delta = early.unwrap_or_else(delta);
        self.score_gradients(&delta);
        self.warp_scheduler_barrier_sync();
        self.start_dv();
        if holds_operands {
            self.start_dk();
        }
        // The one fence of a tile: behind it are the reads of numbers, dS, and dQ of the tile before the one before.
        k.fence_proxy_async();
        if holds_operands {
            k.sync_warp();
        } else {
            k.barrier_among(self.index() + OWN, 128);
            self.start_dk();
        }
        self.one_lane(|| pingpong.full.at(place).arrive());
        k.if_(any_kept.uniform(), || self.give_dq(&pingpong.dq));
        scored.set(scored + 1);
        self.q.advance();
    }

    /// Starts dQ of the first Q tile whose dQ has not been kept, when all warps have written its dS.
    #[track_caller]
    fn start_late_dq(&self, pingpong: &Pingpong<'k>) {
        let (place, phase) = stage(self.tiles.get(), DS_STAGES);
        pingpong.full.at(place).wait(phase);
        self.start_dq();
    }

    /// Keeps that dQ; its dS has been read.
    #[track_caller]
    fn finish_late_dq(&self, pingpong: &Pingpong<'k>) {
        let (place, _) = stage(self.tiles.get(), DS_STAGES);
        self.one_lane(|| pingpong.free.at(place).arrive());
        self.keep_dq(&pingpong.dq);
    }
}
