//! The consumer side of Q's pipeline: a warpgroup's wait for, skip and release of a stage of Q are all here.

use flashcore_ir::Val;
use flashcore_ir::pipeline::Consumer;

use super::consumer::{release_and_advance, skip};

/// The places where a warpgroup may have read Q for the last time.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum QRead {
    /// The copy to registers.
    Load,
    /// The last scores of the tile.
    LastScores,
    /// The end of the tile.
    TileEnd,
}

/// A warpgroup as a consumer of Q, whose stages are the warpgroup's or the tile's.
pub(super) struct QConsumer<'k> {
    consumer: Consumer<'k>,
    last_read: QRead,
}

impl<'k> QConsumer<'k> {
    /// `held`: all columns of Q are copied to registers. `stages`: stages of Q.
    pub(super) fn new(consumer: Consumer<'k>, held: bool, stages: u32) -> Self {
        let last_read = match (held, stages) {
            (true, _) => QRead::Load,
            // As early as possible: the copy of the next Q waits for this stage.
            (false, 1) => QRead::LastScores,
            (false, _) => QRead::TileEnd,
        };
        QConsumer { consumer, last_read }
    }

    #[track_caller]
    pub(super) fn stage(&self) -> Val<'k, u32> {
        self.consumer.stage()
    }

    #[track_caller]
    pub(super) fn wait(&self) {
        self.consumer.wait();
    }

    /// Skips a Q that the warpgroup does not read.
    #[track_caller]
    pub(super) fn skip(&self) {
        skip(self.consumer);
    }

    /// Releases the stage if `read` is the last read of it, and `condition` holds where it is given.
    #[track_caller]
    pub(super) fn release_after(&self, read: QRead, condition: Option<Val<'k, bool>>) {
        match condition {
            _ if read != self.last_read => {}
            Some(holds) => {
                let k = holds.builder();
                k.if_(holds.uniform(), || release_and_advance(self.consumer));
            }
            None => release_and_advance(self.consumer),
        }
    }
}
