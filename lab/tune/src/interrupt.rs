//! [`Interrupt`]: asks a search to end before its limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a search to end: candidates that are with a worker are finished and kept, and no more are proposed. Clones ask the
/// same search, from any thread.
///
/// ```
/// use flashcore_tune::Interrupt;
/// let interrupt = Interrupt::default();
/// let of_the_search = interrupt.clone();
/// interrupt.ask();
/// assert!(of_the_search.is_asked());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Asks. Whether nobody had asked before.
    pub fn ask(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    /// Whether somebody has asked.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
