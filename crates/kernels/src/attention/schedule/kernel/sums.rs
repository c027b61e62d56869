//! Sums and maxima over the threads of the block.

use flashcore_ir::Val;

use super::Context;

impl<'k> Context<'k> {
    /// The largest of a number over all threads.
    #[track_caller]
    pub(super) fn block_max(&self, value: Val<'k, u32>) -> Val<'k, u32> {
        let (k, lane) = (self.k, self.k.lane());
        let of_warp = value.redux_max();
        let warp = k.thread_idx() / 32u32;
        k.if_(lane.eq(0).divergent(), || self.warp_sums.at(0, warp).store(of_warp));
        k.barrier();
        let largest = self.warp_sums.at(0, lane).load().redux_max();
        // Before they are written again.
        k.barrier();
        largest
    }

    /// The sum of a number over the threads before this one, and over all.
    #[track_caller]
    pub(super) fn prefix_sum(&self, value: Val<'k, u32>) -> (Val<'k, u32>, Val<'k, u32>) {
        let (k, lane, warp) = (self.k, self.k.lane(), self.k.thread_idx() / 32u32);
        let mut sum = value;
        for distance in [1, 2, 4, 8, 16] {
            let other = sum.shfl_up(distance);
            sum = sum + lane.ge(distance).select(other, 0u32);
        }
        k.if_(lane.eq(31).divergent(), || self.warp_sums.at(0, warp).store(sum));
        k.barrier();
        // There are as many warps as lanes.
        let of_warp = self.warp_sums.at(0, lane).load();
        let before = lane.lt(warp).select(of_warp, 0u32).redux_add();
        let total = of_warp.redux_add();
        // Before they are written again.
        k.barrier();
        (before + sum - value, total)
    }
}
