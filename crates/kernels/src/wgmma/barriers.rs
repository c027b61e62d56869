//! Numbers of a block's named barriers. Barrier 0 is that of all threads.

/// The warp scheduler's: one for each consumer warpgroup, of which there are three at most.
pub(super) const WARP_SCHEDULER: u32 = 1;

/// Of warpgroups that store their rows together in the forward pass: one each, or one for all.
pub(super) const STORE: u32 = 4;
