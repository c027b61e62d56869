//! [`Progress`]: how far a run is, for those who wait for it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks that have been simulated. Share one with a run ([`SimOptions`](crate::SimOptions)) and read it
/// from another thread.
#[derive(Debug, Default)]
pub struct Progress {
    blocks: AtomicU64,
}

impl Progress {
    /// Blocks simulated so far, of all runs that share this.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, blocks: u64) {
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
    }
}
