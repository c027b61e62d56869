//! [`Interrupt`]: ends a search before its limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends a search: running candidates are finished and kept, and no more are proposed. Clones share
/// the flag and may be used from any thread.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Sets the flag. Returns whether it was not set before.
    pub fn ask(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    /// Whether the flag is set.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
