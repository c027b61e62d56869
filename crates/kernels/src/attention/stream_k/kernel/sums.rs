//! Sums and maxima over the threads of the block.

use std::array;

use flashcore_ir::{Val, Var};

use super::Context;

/// Rows of [`Context::warp_sums`] that one exchange takes at most.
pub(super) const MAX_EXCHANGED: u32 = 3;

/// The sum of a number over the threads before this one, and over all.
pub(super) struct Sum<'k> {
    pub(super) before: Val<'k, u32>,
    pub(super) all: Val<'k, u32>,
}

impl<'k> Context<'k> {
    #[track_caller]
    pub(super) fn prefix_sum(&self, value: Val<'k, u32>) -> Sum<'k> {
        let ([sum], _) = self.exchange([value], None);
        sum
    }

    /// The sums of several numbers, and the largest of another one over all threads, with one barrier.
    #[track_caller]
    pub(super) fn exchange<const N: usize>(
        &self,
        values: [Val<'k, u32>; N],
        most: Option<Val<'k, u32>>,
    ) -> ([Sum<'k>; N], Option<Val<'k, u32>>) {
        let (k, lane, warp, warps) = (self.k, self.k.lane(), self.k.thread_idx() / 32u32, self.threads / 32);
        // Two exchanges that follow each other have places of their own, so a barrier between them is enough.
        let first: Var<'k, u32> = self.exchanged;
        let place = |row: u32, column: Val<'k, u32>| self.warp_sums.at(first + row, column);
        let sums = values.map(|value| {
            let mut sum = value;
            for distance in [1, 2, 4, 8, 16] {
                let other = sum.shfl_up(distance);
                sum = sum + lane.ge(distance).select(other, 0u32);
            }
            sum
        });
        let of_warp = most.map(|most| most.redux_max());
        k.if_(lane.eq(31).divergent(), || {
            for (row, number) in (0..).zip(sums.iter().chain(&of_warp)) {
                place(row, warp).store(*number);
            }
        });
        k.barrier();
        let of_warps = |row: u32| {
            let number = place(row, lane.min(warps - 1)).load();
            if warps == 32 {
                number
            } else {
                lane.lt(warps).select(number, 0u32)
            }
        };
        let sums = array::from_fn(|i| {
            let of_warps = of_warps(i as u32);
            let before = lane.lt(warp).select(of_warps, 0u32).redux_add();
            Sum {
                before: before + sums[i] - values[i],
                all: of_warps.redux_add(),
            }
        });
        let largest = of_warp.map(|_| of_warps(N as u32).redux_max());
        first.set(k.constant(MAX_EXCHANGED) - first);
        (sums, largest)
    }
}
