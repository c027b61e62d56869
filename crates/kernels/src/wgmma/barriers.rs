//! Numbers of a block's named barriers. Barrier 0 is that of all threads.

/// The warp scheduler's: one for each consumer warpgroup, of which there are three at most.
pub(super) const WARP_SCHEDULER: u32 = 1;

/// Barriers of warpgroups that store their rows together in the forward pass: one each, or one for all.
pub(super) const STORE: u32 = 4;

/// In a backward pass whose two consumer warpgroups exchange P: P is in shared memory, and this block's dS is.
pub(super) const P_FULL: u32 = 2;
pub(super) const DS_FULL: u32 = 3;

/// In a backward pass: that of all consumers.
pub(super) const CONSUMERS: u32 = 4;

/// In a backward pass: a later head's rows are prepared, by the warpgroup that does so for the warp that says it.
pub(super) const PREPARED: u32 = 5;
