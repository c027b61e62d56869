//! A step-by-step record of the first cluster, for diagrams and advice.

use serde::Serialize;

use crate::cluster::Cluster;
use crate::finding::Line;
use crate::report::{Class, lines};
use crate::shadow::SharedAccess;
use crate::traffic::{self, Traffic};

/// An access of a warp to shared memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Access {
    /// Operations executed by the cluster before this one.
    pub time: u64,
    /// Warp index in the cluster.
    pub warp: u32,
    /// The kernel's own source line.
    pub line: Line,
    /// The class of the instruction.
    pub class: Class,
    /// Index of the buffer in the ledger.
    pub buffer: u32,
    /// Bit mask of the active lanes.
    pub lanes: u32,
    /// Bytes per lane.
    pub bytes: u32,
    /// Whether it is a 16-byte copy that bypasses L1 (`cp.async.cg`), which needs other passes than
    /// a store.
    pub past_l1: bool,
    /// Byte offset of each lane in the buffer.
    pub offsets: [u32; 32],
}

/// A time slice of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Turn {
    /// Operations executed by the cluster at the start and at the end.
    pub span: (u64, u64),
    /// Warp index in the cluster.
    pub warp: u32,
    /// Whether it ended at a barrier.
    pub at_barrier: bool,
}

/// The record of the first cluster. Excludes accesses of bulk copies and warpgroup products.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Log {
    /// Shared-memory accesses of threads in order, up to the requested number.
    pub accesses: Vec<Access>,
    /// Time slices in order.
    pub turns: Vec<Turn>,
    /// Whether accesses beyond the requested number were dropped.
    pub is_cut: bool,
}

impl Access {
    /// Bank passes of the access with these offsets, relative to any multiple of 128 bytes, and the
    /// minimum for the same number of bytes.
    pub fn passes_at(&self, offsets: &[u32; 32]) -> (u64, u64) {
        let traffic = traffic::landed(offsets, self.lanes, self.bytes, self.past_l1);
        (traffic.transactions, traffic.ideal)
    }
}

impl Cluster<'_> {
    /// Operations executed so far by all warps.
    pub(crate) fn operations(&self) -> u64 {
        self.out.executed.iter().map(|count| count.warps).sum()
    }

    /// Counts an access to shared memory, and logs it on request.
    #[inline(always)]
    pub(crate) fn count_shared(&mut self, warp: usize, access: &SharedAccess) {
        if !self.out.traffic.is_empty() {
            let cost = traffic::shared(&access.offsets, access.mask, access.bytes);
            self.out.traffic[access.pc as usize].add(Traffic {
                shared: cost.transactions,
                ..cost
            });
        }
        if self.is_logged() {
            self.log_access(warp, access, false);
        }
    }

    /// Counts an atomic operation or a strong access to global memory of a kernel of another compiler. The rates of own
    /// kernels were fitted without those.
    pub(crate) fn count_strong(&mut self, pc: u32, offsets: &[u64; 32], mask: u32, bytes: u32) {
        if self.machine.is_foreign && !self.out.traffic.is_empty() && mask != 0 {
            self.out.traffic[pc as usize].add(traffic::global(offsets, mask, bytes));
        }
    }

    /// As [`Self::count_strong`] in shared memory.
    pub(crate) fn count_strong_shared(&mut self, warp: usize, access: &SharedAccess) {
        if self.machine.is_foreign && access.mask != 0 {
            self.count_shared(warp, access);
        }
    }

    /// Counts an operation that takes no more passes or sectors than its bytes need.
    pub(crate) fn count_ideal(&mut self, pc: u32, transactions: u32) {
        if !self.out.traffic.is_empty() {
            let transactions = u64::from(transactions);
            self.out.traffic[pc as usize].add(Traffic::of(transactions, transactions));
        }
    }

    #[inline(always)]
    pub(crate) fn is_logged(&self) -> bool {
        self.machine.options.log > 0 && self.linear == 0
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn log_access(&mut self, warp: usize, access: &SharedAccess, past_l1: bool) {
        if self.out.log.accesses.len() >= self.machine.options.log {
            self.out.log.is_cut = true;
            return;
        }
        let (machine, pc) = (self.machine, access.pc as usize);
        let buffer = self.shared_buffer(access.at);
        let within = |offset: u32| (offset % machine.shared_bytes).wrapping_sub(buffer.offset);
        let access = Access {
            time: self.operations(),
            warp: warp as u32,
            line: lines(machine.kernel, machine.program.sites[pc])[0],
            class: machine.program.classes[pc],
            buffer: u32::from(access.at.object),
            lanes: access.mask,
            bytes: access.bytes,
            past_l1,
            offsets: access.offsets.map(within),
        };
        self.out.log.accesses.push(access);
    }
}
