//! [`Progress`]: the progress of a running simulation.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of simulated blocks. Share it with a run ([`SimOptions`](crate::SimOptions)) and read it
/// from another thread.
#[derive(Debug, Default)]
pub struct Progress {
    pub(crate) blocks: AtomicU64,
}

impl Progress {
    /// Blocks simulated so far by all runs that share this value.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }
}
