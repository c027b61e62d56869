//! Checks accesses of the async proxy to shared memory: writes of bulk copies, reads of bulk stores
//! and warpgroup products.
//!
//! Such an access must be ordered after earlier accesses like any other, and a proxy fence must lie
//! between it and the writes of threads. A copy also needs a proxy fence after the threads' reads
//! of the bytes it overwrites. An mbarrier arrival orders loads before generic-proxy accesses of
//! other threads, but not before a copy. On an H200 a copy that followed a warp's arrival overtook
//! a load of that warp.

use std::ops::Range;

use crate::clock::{ActorId, ActorKind, Clock, Epoch, Stamp};
use crate::cluster::Cluster;
use crate::finding::{Actor, FindingKind};
use crate::program::At;
use crate::races::{Clash, Fault, NEVER_WRITTEN, thread_name};
use crate::registers::{self, lanes};
use crate::warp::{Lane, Warp};

/// Why the order of two accesses is wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// No synchronisation orders them.
    Unordered,
    /// They are ordered, but without a proxy fence between them.
    Unfenced,
}

const UNORDERED_WRITE: Fault = Fault(
    FindingKind::Race,
    "{} wrote; nothing orders the two accesses",
    "put `fence_proxy_async` and a barrier between them",
);
const UNFENCED_WRITE: Fault = Fault(
    FindingKind::MissingFence,
    "{} wrote; the accesses are ordered, but without a `fence.proxy.async` between them",
    "let the writing threads execute `fence_proxy_async` before the barrier that orders the accesses",
);
const COPY: Fault = Fault(
    FindingKind::MissingWait,
    "{} fills, without waiting for the copy",
    HELP_PHASE,
);
const WAITED_COPY: Fault = Fault(
    FindingKind::MissingWait,
    "{} filled; only that thread has waited for the copy, and no barrier followed",
    "put `fence_proxy_async` and a barrier between `cp_async_wait` and the access",
);
const UNORDERED_READ: Fault = Fault(
    FindingKind::Race,
    "{} reads; nothing orders the two accesses",
    HELP_RELEASE,
);
const UNFENCED_READ: Fault = Fault(
    FindingKind::MissingFence,
    "{} reads; the accesses are ordered, but without a `fence.proxy.async` between them, and an arrival does not \
     wait for loads",
    "let the reading threads execute `fence_proxy_async` between their loads and their arrival",
);

/// Whether a lane knows the reads of a lane (warp and lane) at an epoch as fenced for the async proxy.
fn is_fenced(me: Lane<'_>, (warp, lane): (usize, usize), epoch: Epoch) -> bool {
    let own = warp == me.warp.index && lane == me.lane;
    own && me.warp.fenced[lane] >= epoch || me.clock().has_fenced((32 * warp + lane) as u32, epoch)
}

impl Cluster<'_> {
    /// Checks an access of the async proxy by `lanes` against an earlier write.
    fn after_write(&self, warp: &Warp, lanes: u32, stamp: Stamp, writer: ActorId) -> Option<Wrong> {
        let epoch = stamp.epoch();
        let mine = (32 * warp.index) as u32;
        let actors = &self.machine.actors;
        let kind = actors.who(writer);
        for part in warp.knowledge_of(lanes) {
            let clock: &Clock = &part.clock;
            for lane in registers::lanes(part.lanes & lanes) {
                let me = mine + lane as u32;
                let copies = &self.copies[warp.index];
                let (own, fenced) = match kind {
                    ActorKind::Thread(thread) => (thread == me, warp.fenced[lane] >= epoch),
                    ActorKind::Copy(thread) => (
                        thread == me && copies.has_waited(lane, epoch),
                        warp.fenced_copies[lane] >= epoch,
                    ),
                    _ => (false, false),
                };
                if !own && !clock.knows(writer, epoch) {
                    return Some(Wrong::Unordered);
                }
                let fenced = stamp.is_bulk() || own && fenced || clock.has_fenced(writer, epoch);
                if !fenced {
                    return Some(Wrong::Unfenced);
                }
                if !own {
                    // Lanes with one clock differ only in their own accesses.
                    break;
                }
            }
        }
        None
    }

    /// Checks reads of byte ranges (first, bytes) of shared memory that `lanes` start together.
    pub(crate) fn check_async_read(&mut self, warp: &Warp, lanes: u32, pc: u32, at: At, ranges: &[(u32, u32)]) {
        // Neighbouring cells usually have one writer.
        let mut good: Option<(u32, ActorId)> = None;
        let mut clashes: Vec<Clash> = Vec::new();
        for &(first, bytes) in ranges {
            for cell in self.copy_cells(first, bytes) {
                let (stamp, writer) = (self.shadow.stamp(cell), self.shadow.writer(cell).0);
                if good == Some((stamp.0, writer)) {
                    continue;
                }
                if stamp == Stamp::NEVER {
                    clashes.push(Clash::new(NEVER_WRITTEN, lanes, cell, None));
                    break;
                }
                match self.after_write(warp, lanes, stamp, writer) {
                    None => good = Some((stamp.0, writer)),
                    Some(wrong) => {
                        clashes.push(self.write_clash(lanes, cell, wrong));
                        break;
                    }
                }
            }
        }
        for clash in clashes {
            self.report_clash(warp, (pc, at), clash, "reads");
        }
    }

    /// Checks the write of a range by a copy that a lane starts; one that changes words does not race with others.
    pub(crate) fn check_async_write(&mut self, by: Lane<'_>, at: At, (first, bytes): (u32, u32), changes: bool) {
        let mut good: Option<(u32, ActorId)> = None;
        let after_reads = self.follows_reads(by, self.copy_cells(first, bytes));
        for cell in self.copy_cells(first, bytes) {
            let (stamp, writer) = (self.shadow.stamp(cell), self.shadow.writer(cell).0);
            let mut clash = None;
            let is_good = good == Some((stamp.0, writer)) || changes && stamp.is_atomic();
            if stamp != Stamp::NEVER && !is_good {
                match self.after_write(by.warp, by.bit(), stamp, writer) {
                    None => good = Some((stamp.0, writer)),
                    Some(wrong) => clash = Some(self.write_clash(by.bit(), cell, wrong)),
                }
            }
            if clash.is_none() && !after_reads && self.shadow.newest_read(cell) > by.warp.who(by.pc).limits.epoch {
                let reader = self.unordered_reader(by.warp, by.lane as u32, cell);
                clash = reader.map(|(reader, reader_pc, what)| {
                    let other = Some((reader, format!("{what}warp {}", reader.warp), reader_pc));
                    Clash::new(UNORDERED_READ, by.bit(), cell, other)
                });
            }
            if clash.is_none() && !after_reads {
                clash = self.unfenced_reader(by, cell);
            }
            if let Some(clash) = clash {
                self.report_clash(by.warp, (by.pc, at), clash, "overwrites");
                return;
            }
        }
    }

    /// The conflict with the last write of a cell.
    #[cold]
    fn write_clash(&self, lanes: u32, cell: usize, wrong: Wrong) -> Clash {
        let ((writer, writer_pc), epoch) = (self.shadow.writer(cell), self.shadow.stamp(cell).epoch());
        let fault = match (wrong, self.machine.actors.who(writer)) {
            (Wrong::Unfenced, _) => UNFENCED_WRITE,
            (Wrong::Unordered, ActorKind::Thread(_)) => UNORDERED_WRITE,
            (Wrong::Unordered, ActorKind::Copy(thread))
                if self.copies[thread as usize / 32].has_waited(thread as usize % 32, epoch) =>
            {
                WAITED_COPY
            }
            (Wrong::Unordered, _) => COPY,
        };
        let (actor, name) = self.name_writer(writer);
        Clash::new(fault, lanes, cell, Some((actor, name, writer_pc)))
    }

    /// Whether a lane's copy follows all reads of some cells, with the fences that it needs. Whoever it does not
    /// follow, [`Self::unordered_reader`] and [`Self::unfenced_reader`] find.
    fn follows_reads(&self, by: Lane<'_>, cells: Range<usize>) -> bool {
        let wrong = |reader: usize, epoch: Epoch| {
            let unordered = self.unordered_lanes(by.warp, by.lane as u32, (reader, epoch, u32::MAX));
            let is_unfenced = |lane: &usize| reader < self.machine.warps && !is_fenced(by, (reader, *lane), epoch);
            (0..32).filter(is_unfenced).fold(unordered, |all, lane| all | 1 << lane)
        };
        self.shadow.reading().all(|reader| {
            self.shadow
                .reads_are_ordered(reader, cells.clone(), |epoch| wrong(reader, epoch))
        })
    }

    /// The conflict with a thread's read that a lane does not know as fenced for the async proxy.
    fn unfenced_reader(&self, me: Lane<'_>, cell: usize) -> Option<Clash> {
        for reader in self.shadow.reading().take_while(|&reader| reader < self.machine.warps) {
            let (epoch, by, pc) = self.shadow.readers(reader, cell);
            if let Some(by) = lanes(by).find(|&by| !is_fenced(me, (reader, by), epoch)) {
                let actor = self.actor(reader, 1 << by);
                let other = Some((actor, thread_name(actor), pc));
                return Some(Clash::new(UNFENCED_READ, me.bit(), cell, other));
            }
        }
        None
    }

    /// An unordered read of a cell since its last write: reader, operation, and message prefix.
    pub(crate) fn unordered_reader(&self, warp: &Warp, lane: u32, cell: usize) -> Option<(Actor, u32, &'static str)> {
        for reader in self.shadow.reading() {
            let (epoch, read_by, pc) = self.shadow.readers(reader, cell);
            let lanes = self.unordered_lanes(warp, lane, (reader, epoch, read_by));
            if lanes != 0 {
                let (by, what) = match self.machine.reader(reader) {
                    ActorKind::Warpgroup(group) => (4 * group as usize, "a product of the warpgroup of "),
                    ActorKind::Store(by) => (by as usize, "a store of "),
                    ActorKind::Mbarrier(_) => (self.sends[&epoch].1, "a copy to another block by "),
                    _ => (reader, ""),
                };
                return Some((self.actor(by, lanes), pc, what));
            }
        }
        None
    }

    /// The lanes, of those that read at an epoch, that a lane does not follow: all of a warpgroup or none.
    fn unordered_lanes(&self, warp: &Warp, lane: u32, (reader, epoch, read_by): (usize, Epoch, u32)) -> u32 {
        if read_by == 0 {
            return 0;
        }
        let (machine, clock) = (self.machine, warp.clock(lane));
        match machine.reader(reader) {
            ActorKind::Warpgroup(group) => {
                // A warp's own products are ordered only after the warp has waited for them.
                let own = warp.index / 4 == group as usize;
                let ordered = clock.knows(machine.actors.warpgroup(group), epoch)
                    || own && self.products_finished(warp, self.epoch) >= epoch;
                if ordered { 0 } else { u32::MAX }
            }
            ActorKind::Mbarrier(_) => {
                let completes_at = self
                    .sends
                    .get(&epoch)
                    .map(|(number, _)| machine.actors.mbarrier(*number));
                let ordered = completes_at.is_some_and(|actor| clock.knows(actor, epoch));
                if ordered { 0 } else { read_by }
            }
            ActorKind::Store(by) => read_by & clock.unknown_from(machine.actors.store_of(32 * by), epoch),
            _ => {
                let mine = if reader == warp.index { 1 << lane } else { 0 };
                read_by & !mine & clock.unknown_from(32 * reader as u32, epoch)
            }
        }
    }

    /// The actor for findings, and its name in messages.
    pub(crate) fn name_writer(&self, writer: ActorId) -> (Actor, String) {
        let thread_of = |thread: u32, what: &str| {
            let actor = self.actor(thread as usize / 32, 1 << (thread % 32));
            (actor, format!("{what}warp {} lane {}", actor.warp, thread % 32))
        };
        match self.machine.actors.who(writer) {
            ActorKind::Mbarrier(number) => {
                let copier = self.mbarriers[number as usize].as_ref().and_then(|m| m.copier);
                let name = format!("a copy that completes at {}", self.mbarrier_name(number));
                (copier.unwrap_or_else(|| self.actor(0, 0)), name)
            }
            ActorKind::Copy(thread) => thread_of(thread, "a copy of "),
            ActorKind::Thread(thread) | ActorKind::Store(thread) => thread_of(thread, ""),
            ActorKind::Warpgroup(_) | ActorKind::Upstream => (self.actor(0, 0), "another launch".to_string()),
        }
    }
}

/// Help for a tile that is overwritten while it is read.
pub(crate) const HELP_RELEASE: &str =
    "wait for the products or stores that read the tile before releasing it, and for the release before filling it";

/// Help for an access to the destination of a bulk copy.
pub(crate) const HELP_PHASE: &str =
    "let every warp that uses the data wait for the mbarrier phase in which the copy completes";
