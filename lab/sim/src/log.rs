//! What the first cluster of a launch did, step by step, for pictures and advice.

use serde::Serialize;

use crate::cluster::Cluster;
use crate::finding::Line;
use crate::program::At;
use crate::report::{Class, lines};
use crate::traffic;

/// An access to shared memory by a warp.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Access {
    /// Operations that the cluster had executed before.
    pub time: u64,
    /// Warp of the cluster.
    pub warp: u32,
    /// Where it is written, the kernel's own line.
    pub line: Line,
    /// What it does.
    pub class: Class,
    /// The buffer of the ledger.
    pub buffer: u32,
    /// The lanes that take part, a bit each.
    pub lanes: u32,
    /// Bytes a lane.
    pub bytes: u32,
    /// Whether it is a copy of 16 bytes a lane past L1, which takes other passes than a store does.
    pub past_l1: bool,
    /// Byte offset of each lane from the buffer's start.
    pub offsets: [u32; 32],
}

/// A turn of a warp: what it executed before another one had its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Turn {
    /// Operations that the cluster had executed before and after.
    pub span: (u64, u64),
    /// Warp of the cluster.
    pub warp: u32,
    /// Whether it ended at a barrier.
    pub at_barrier: bool,
}

/// What the first cluster did. Bulk copies and products of warpgroups are not among the accesses.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Log {
    /// Accesses to shared memory by threads, in order; no more than were asked for.
    pub accesses: Vec<Access>,
    /// Turns, in order.
    pub turns: Vec<Turn>,
    /// Whether there were more accesses.
    pub is_cut: bool,
}

impl Access {
    /// Passes over the banks that it takes, or would take at other offsets, which count from any multiple of 128
    /// bytes; and the fewest that the same bytes could.
    pub fn passes_at(&self, offsets: &[u32; 32]) -> (u64, u64) {
        let traffic = match self.past_l1 {
            true => traffic::copied_past_l1(offsets, self.lanes),
            false => traffic::shared(offsets, self.lanes, self.bytes),
        };
        (traffic.transactions, traffic.ideal)
    }
}

impl Cluster<'_> {
    /// Operations executed so far, by all warps.
    pub(crate) fn operations(&self) -> u64 {
        self.executed.iter().map(|count| count.warps).sum()
    }

    /// Counts an access to shared memory, and takes it down where that is asked for.
    #[inline(always)]
    pub(crate) fn count_shared(&mut self, pc: u32, warp: usize, at: At, offsets: &[u32; 32], lanes: u32, bytes: u32) {
        if !self.traffic.is_empty() {
            self.traffic[pc as usize].add(traffic::shared(offsets, lanes, bytes));
        }
        if self.is_logged() {
            self.log_access(pc, warp, at, offsets, lanes, bytes, false);
        }
    }

    #[inline(always)]
    pub(crate) fn is_logged(&self) -> bool {
        self.machine.options.log > 0 && self.linear == 0
    }

    #[cold]
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn log_access(
        &mut self,
        pc: u32,
        warp: usize,
        at: At,
        offsets: &[u32; 32],
        lanes: u32,
        bytes: u32,
        past_l1: bool,
    ) {
        if self.log.accesses.len() >= self.machine.options.log {
            self.log.is_cut = true;
            return;
        }
        let machine = self.machine;
        let Some(buffer) = machine.kernel.ledger().buffers.get(usize::from(at.object)) else {
            return;
        };
        let Some(&line) = lines(machine.kernel, machine.program.sites[pc as usize]).first() else {
            return;
        };
        let access = Access {
            time: self.operations(),
            warp: warp as u32,
            line,
            class: machine.program.classes[pc as usize],
            buffer: u32::from(at.object),
            lanes,
            bytes,
            past_l1,
            offsets: offsets.map(|offset| (offset % machine.shared_bytes).wrapping_sub(buffer.offset)),
        };
        self.log.accesses.push(access);
    }
}
