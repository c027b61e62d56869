//! Searches of the cuts by whole warps: each lane reads a cut, and a vote counts.

use flashcore_ir::Val;

use super::{Context, NUMBER};

impl<'k> Context<'k> {
    /// How many ranges have a word in a row of the cuts that is at most `most`, a number that the lanes of a warp agree
    /// on.
    #[track_caller]
    pub(super) fn rank(&self, row: u32, most: Val<'k, u32>) -> Val<'k, u32> {
        let k = self.k;
        let mut stride = self.tiles.most_ranges / 32;
        let mut first = k.constant(0);
        loop {
            let word = self.cuts.at(row, k.lane().fma(stride, first)).load();
            let passed = word.le(most).ballot().count_ones();
            if stride == 1 {
                return first + passed;
            }
            first = (passed.max(1) - 1).fma(stride, first);
            stride = stride.div_ceil(32);
        }
    }

    /// The range of the index `first` and the lane's number: the last one whose word is at most that. As no two are the
    /// same, the ranges that begin in the warp are at different lanes.
    #[track_caller]
    pub(super) fn range_of_lane(&self, first: Val<'k, u32>) -> Val<'k, u32> {
        let (k, lane) = (self.k, self.k.lane());
        // One past the range of `first`.
        let next = self.rank(NUMBER, first);
        let begins_at = self.cuts.at(NUMBER, next + lane).load() - first;
        let begins = begins_at
            .lt(32)
            .select(k.constant(1u32) << (begins_at & 31), 0u32)
            .redux_or();
        next + (begins & self.lanes_to_own()).count_ones() - 1
    }

    /// A bit for each lane up to the own one.
    #[track_caller]
    pub(super) fn lanes_to_own(&self) -> Val<'k, u32> {
        self.k.constant(u32::MAX) >> (self.k.constant(31u32) - self.k.lane())
    }
}
