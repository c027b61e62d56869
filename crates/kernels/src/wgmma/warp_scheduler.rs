//! FlashAttention-3's `warp_scheduler_barrier`: warpgroups start their products in turn, so that while the products of
//! one run, the others compute their softmax.

use flashcore_ir::Val;

use super::barriers::WARP_SCHEDULER;

#[derive(Clone, Copy)]
pub(super) struct WarpSchedulerBarrier<'k> {
    index: Val<'k, u32>,
    warpgroups: u32,
}

impl<'k> WarpSchedulerBarrier<'k> {
    /// The last warpgroup arrives for the first one, which therefore goes first.
    #[track_caller]
    pub(super) fn new(index: Val<'k, u32>, warpgroups: u32) -> Self {
        let barrier = WarpSchedulerBarrier { index, warpgroups };
        if warpgroups > 1 {
            let k = index.builder();
            k.if_(index.eq(warpgroups - 1).uniform(), || barrier.arrive());
        }
        barrier
    }

    /// Waits for the turn of this warpgroup. This is also a barrier of its warps.
    #[track_caller]
    pub(super) fn sync(&self) {
        let (k, barrier) = (self.index.builder(), self.index + WARP_SCHEDULER);
        k.verb("warp_scheduler_barrier_sync", || {
            k.barrier_among(barrier, self.threads())
        });
    }

    /// Gives the turn to the next warpgroup.
    #[track_caller]
    pub(super) fn arrive(&self) {
        if self.warpgroups == 1 {
            return;
        }
        let k = self.index.builder();
        k.verb("warp_scheduler_barrier_arrive", || {
            let last = self.index.eq(self.warpgroups - 1);
            let next = last.select(WARP_SCHEDULER, self.index + (WARP_SCHEDULER + 1));
            k.barrier_arrive(next, self.threads());
        });
    }

    /// Threads of the warpgroup that waits, and of the one that arrives, if there is another.
    fn threads(&self) -> u32 {
        128 * self.warpgroups.min(2)
    }
}
