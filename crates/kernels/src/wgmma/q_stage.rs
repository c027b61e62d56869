//! A warpgroup's wait for, skip over and release of a stage of Q; no other code does these.

use flashcore_ir::Val;
use flashcore_ir::pipeline::Consumer;

use super::consumer::{release, skip};

/// A read of a stage of Q. After the last one it is released.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum QRead {
    /// The copy to registers.
    Load,
    /// The last scores of the tile.
    LastScores,
    /// The end of the tile.
    TileEnd,
}

/// A stage of Q, a warpgroup's or the tile's.
pub(super) struct QStage<'k> {
    consumer: Consumer<'k>,
    last_read: QRead,
}

impl<'k> QStage<'k> {
    /// The stage of a pipeline that has some for each Q. All columns are copied to registers if Q is `held`.
    pub(super) fn new(consumer: Consumer<'k>, held: bool, stages: u32) -> Self {
        let last_read = match (held, stages) {
            (true, _) => QRead::Load,
            // Released as early as possible: with one stage, the next Q waits for it.
            (false, 1) => QRead::LastScores,
            (false, _) => QRead::TileEnd,
        };
        QStage { consumer, last_read }
    }

    #[track_caller]
    pub(super) fn number(&self) -> Val<'k, u32> {
        self.consumer.stage()
    }

    #[track_caller]
    pub(super) fn wait(&self) {
        self.consumer.wait();
    }

    /// Passes over a Q that the warpgroup does not read.
    #[track_caller]
    pub(super) fn skip(&self) {
        skip(self.consumer);
    }

    /// Releases the stage if this was the last read of it, and `last` holds where it is given.
    #[track_caller]
    pub(super) fn passed(&self, read: QRead, last: Option<Val<'k, bool>>) {
        match last {
            _ if read != self.last_read => {}
            Some(last) => last.builder().if_(last.uniform(), || release(self.consumer)),
            None => release(self.consumer),
        }
    }
}
