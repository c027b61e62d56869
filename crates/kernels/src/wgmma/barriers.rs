//! Numbers of a block's named barriers. Barrier 0 is that of all threads.

/// The `warp_scheduler_barrier` of each consumer warpgroup, of which there are three at most.
pub(super) const WARP_SCHEDULER: u32 = 1;

/// Forward: of each warpgroup that stores its rows together, or of all that do.
pub(super) const STORE: u32 = 4;

/// Backward with an exchange of dS: P is in shared memory; this block's dS is.
pub(super) const P_FULL: u32 = 2;
pub(super) const DS_FULL: u32 = 3;

/// Backward: all consumers.
pub(super) const CONSUMERS: u32 = 4;

/// Backward: the last warpgroup has stored the statistics of a later head, which a producer warp then signals.
pub(super) const PREPARED: u32 = 5;
