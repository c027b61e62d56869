//! The asynchronous state of a warp: products, mbarrier phases, register settings, cluster barrier.

use std::collections::VecDeque;

use flashcore_ir::inst::{Address, Space};
use rustc_hash::FxHashMap;

use crate::clock::Epoch;
use crate::cluster::Cluster;
use crate::warp::Warp;

/// Registers that products use together: an accumulator, or operand A of one k step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fragment {
    /// Whether it was written since the last `wgmma.fence`.
    pub(crate) unfenced: bool,
    /// Products in flight that write it, and that read it.
    pub(crate) writers: u32,
    pub(crate) readers: u32,
    /// The last of these products.
    pub(crate) pc: u32,
    /// N of the product that writes it.
    pub(crate) n: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Issued {
    /// Its number within the warpgroup.
    pub(crate) number: u64,
    pub(crate) epoch: Epoch,
    pub(crate) d: u16,
    pub(crate) a: Option<u16>,
}

#[derive(Debug, Default)]
pub(crate) struct AsyncState {
    pub(crate) fragments: Vec<Fragment>,
    pub(crate) has_fenced: bool,
    /// Products issued since the last commit.
    pub(crate) open: Vec<Issued>,
    /// Groups of products in flight, oldest first.
    pub(crate) groups: VecDeque<Vec<Issued>>,
    /// Number of products issued.
    pub(crate) products: u64,
    /// Registers per thread after the last `setmaxnreg`.
    pub(crate) registers: Option<u32>,
    /// All `setmaxnreg` operations with their counts, in order.
    pub(crate) settings: Vec<(u32, u32)>,
    /// By mbarrier and lane, of our kernels by warp: the last phase waited for, and where.
    pub(crate) seen: FxHashMap<(u32, usize), (i64, u32)>,
    /// By lane: the phase of the cluster barrier arrived at and not yet waited for; 0 for none.
    pub(crate) cluster_phase: [u32; 32],
    /// Whether the other blocks of the cluster are known to have started.
    pub(crate) peers_started: bool,
    /// The last store to another block that is not yet ordered at cluster scope.
    pub(crate) remote_store: Option<u32>,
}

impl Cluster<'_> {
    /// `mbarrier.inval`: its memory may be used in another way.
    pub(crate) fn mbarrier_invalidate(&mut self, warp: &Warp, pc: u32, addr: &Address) {
        let numbers = self.mbarriers_of(warp, pc, addr, Space::Shared);
        for (lane, number) in numbers.into_iter().enumerate() {
            let Some(number) = number else { continue };
            if self.usable(warp.lane(pc, lane), number)
                && let Some(mbarrier) = &mut self.mbarriers[number as usize]
            {
                mbarrier.invalid = true;
            }
        }
    }

    /// `fence.mbarrier_init`, and the effect of `fence.proxy.async` on mbarriers.
    pub(crate) fn fence_mbarriers(&mut self, warp: &Warp) {
        let mine = 32 * warp.index as u32;
        for mbarrier in self.mbarriers.iter_mut().flatten() {
            let maker = mbarrier.made_by.0;
            let lane = maker.wrapping_sub(mine);
            mbarrier.fenced |= lane < 32 && warp.active >> lane & 1 != 0;
        }
    }
}
