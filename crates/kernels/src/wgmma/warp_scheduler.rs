//! Hands the tensor cores from one warpgroup to the next (FA3's `warp_scheduler_barrier`): while one has its products
//! run, the others are at their softmax.

use flashcore_ir::Val;

use super::barriers::WARP_SCHEDULER;

#[derive(Clone, Copy)]
pub(super) struct WarpSchedulerBarrier<'k> {
    index: Val<'k, u32>,
    warpgroups: u32,
}

impl<'k> WarpSchedulerBarrier<'k> {
    /// The first warpgroup goes first: the last one lets it.
    #[track_caller]
    pub(super) fn new(index: Val<'k, u32>, warpgroups: u32) -> Self {
        let barrier = WarpSchedulerBarrier { index, warpgroups };
        if warpgroups > 1 {
            let k = index.builder();
            k.if_(index.eq(warpgroups - 1).uniform(), || barrier.arrive());
        }
        barrier
    }

    /// Waits for the warpgroup before. Its own warps meet, too.
    #[track_caller]
    pub(super) fn sync(&self) {
        let (k, barrier) = (self.index.builder(), self.index + WARP_SCHEDULER);
        k.verb("warp_scheduler_barrier_sync", || {
            k.barrier_among(barrier, self.threads())
        });
    }

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

    /// Threads of the warpgroup that waits, and of the one before it, if there is one.
    fn threads(&self) -> u32 {
        128 * self.warpgroups.min(2)
    }
}
