//! Warpgroups that take turns at the tensor cores: while one has its products run, the others are at their softmax.

use flashcore_ir::Val;

/// Number of the first barrier; barrier 0 is the whole block's.
const FIRST: u32 = 1;

/// A warpgroup that waits for the turn, and the one that gives it to the next.
const THREADS: u32 = 256;

/// A warpgroup's place in the ring.
pub(super) struct Turns<'k> {
    index: Val<'k, u32>,
    warpgroups: u32,
}

impl<'k> Turns<'k> {
    pub(super) fn new(index: Val<'k, u32>, warpgroups: u32) -> Self {
        Turns { index, warpgroups }
    }

    /// The first turn is the first warpgroup's: the last gives it.
    #[track_caller]
    pub(super) fn begin(&self) {
        let k = self.index.builder();
        k.if_(self.index.eq(self.warpgroups - 1).uniform(), || self.give());
    }

    /// Waits for the turn.
    #[track_caller]
    pub(super) fn take(&self) {
        self.index.builder().barrier_among(self.index + FIRST, THREADS);
    }

    /// Gives it to the next.
    #[track_caller]
    pub(super) fn give(&self) {
        let k = self.index.builder();
        let last = self.index.eq(self.warpgroups - 1);
        let next = last.select(FIRST, self.index + (FIRST + 1));
        k.barrier_arrive(next, THREADS);
    }
}
