//! Checks accesses of the async proxy to shared memory: writes of bulk copies, reads of bulk stores
//! and warpgroup products.
//!
//! Such an access must be ordered after earlier accesses like any other, and a proxy fence must lie
//! between it and the writes of threads. A copy also needs a proxy fence after the threads' reads
//! of the bytes it overwrites. An mbarrier arrival orders loads before generic-proxy accesses of
//! other threads, but not before a copy. On an H200 a copy that followed a warp's arrival overtook
//! a load of that warp.

use crate::clock::{ActorId, ActorKind, Clock, Epoch, Stamp};
use crate::cluster::Cluster;
use crate::finding::{Actor, FindingKind};
use crate::program::At;
use crate::registers::{self, lanes};
use crate::warp::Warp;

/// Writer of a cell, epoch, and operation.
type Writer = (ActorId, Epoch, u32);

/// Reader of a cell, operation, and prefix for messages.
type Reader = (Actor, u32, &'static str);

/// Why the order of two accesses is wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// No synchronisation orders them.
    Unordered,
    /// They are ordered, but without a proxy fence between them.
    Unfenced,
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

    /// Checks reads of byte ranges (first, bytes) of the cluster's shared memory that `lanes` start
    /// together.
    pub(crate) fn check_async_read(&mut self, warp: &Warp, lanes: u32, pc: u32, at: At, ranges: &[(u32, u32)]) {
        let shift = self.shadow.shift;
        // Neighbouring cells usually have one writer.
        let mut good: Option<(u32, ActorId)> = None;
        let mut wrong: Vec<(usize, Option<(Wrong, Writer)>)> = Vec::new();
        for &(first, bytes) in ranges {
            for cell in (first >> shift) as usize..((first + bytes) >> shift) as usize {
                let stamp = self.shadow.stamp(cell);
                let (writer, writer_pc) = self.shadow.writer(cell);
                if good == Some((stamp.0, writer)) {
                    continue;
                }
                if stamp == Stamp::NEVER {
                    wrong.push((cell, None));
                    break;
                }
                match self.after_write(warp, lanes, stamp, writer) {
                    None => good = Some((stamp.0, writer)),
                    Some(what) => {
                        wrong.push((cell, Some((what, (writer, stamp.epoch(), writer_pc)))));
                        break;
                    }
                }
            }
        }
        for (cell, what) in wrong {
            match what {
                None => self.report_unwritten(warp, pc, lanes, at, cell),
                Some((what, writer)) => self.report_write(warp, pc, lanes, at, cell, what, writer, "reads"),
            }
        }
    }

    /// Checks the write of a range by a copy that a lane starts.
    pub(crate) fn check_async_write(&mut self, warp: &Warp, pc: u32, lane: u32, at: At, first: u32, bytes: u32) {
        let shift = self.shadow.shift;
        let lanes = 1 << lane;
        let mut good: Option<(u32, ActorId)> = None;
        let limits = warp.who(pc).limits;
        for cell in (first >> shift) as usize..((first + bytes) >> shift) as usize {
            let stamp = self.shadow.stamp(cell);
            let (writer, writer_pc) = self.shadow.writer(cell);
            if stamp != Stamp::NEVER && good != Some((stamp.0, writer)) {
                match self.after_write(warp, lanes, stamp, writer) {
                    None => good = Some((stamp.0, writer)),
                    Some(what) => {
                        let by = (writer, stamp.epoch(), writer_pc);
                        self.report_write(warp, pc, lanes, at, cell, what, by, "overwrites");
                        return;
                    }
                }
            }
            if self.shadow.newest_read(cell) > limits.epoch
                && let Some(reader) = self.unordered_reader(warp, lane, cell)
            {
                self.report_read(warp, pc, lanes, at, cell, Wrong::Unordered, reader);
                return;
            }
            if let Some(reader) = self.unfenced_reader(warp, lane, cell) {
                self.report_read(warp, pc, lanes, at, cell, Wrong::Unfenced, reader);
                return;
            }
        }
    }

    /// A thread's read of a cell that is not fenced for the async proxy as seen by a lane.
    fn unfenced_reader(&self, warp: &Warp, lane: u32, cell: usize) -> Option<Reader> {
        let clock = warp.clock(lane);
        for reader in self.shadow.reading_warps(self.machine.warps) {
            let (reads, pc) = self.shadow.readers(reader, cell);
            let is_fenced = |by: usize| {
                let own = reader == warp.index && by == lane as usize;
                own && warp.fenced[by] >= reads.epoch() || clock.has_fenced((32 * reader + by) as u32, reads.epoch())
            };
            if let Some(by) = lanes(reads.lanes()).find(|&by| !is_fenced(by)) {
                return Some((self.actor(reader, 1 << by), pc, ""));
            }
        }
        None
    }

    /// A read of a cell since its last write that is not ordered before the lane.
    pub(crate) fn unordered_reader(&self, warp: &Warp, lane: u32, cell: usize) -> Option<Reader> {
        let machine = self.machine;
        let clock = warp.clock(lane);
        for reader in 0..machine.readers() {
            let (reads, pc) = self.shadow.readers(reader, cell);
            if reads.lanes() == 0 {
                continue;
            }
            let (by, lanes, what) = match machine.reader(reader) {
                ActorKind::Warpgroup(group) => {
                    // A warp's own products are ordered only after the warp has waited for them.
                    let ordered = clock.knows(machine.actors.warpgroup(group), reads.epoch())
                        || self.has_waited_for_products(warp, group, reads.epoch());
                    let lanes = if ordered { 0 } else { u32::MAX };
                    (4 * group as usize, lanes, "a product of the warpgroup of ")
                }
                ActorKind::Store(by) => {
                    let first = machine.actors.store_of(32 * by);
                    let lanes = reads.lanes() & clock.unknown_from(first, reads.epoch());
                    (by as usize, lanes, "a store of ")
                }
                _ => {
                    let mine = if reader == warp.index { 1 << lane } else { 0 };
                    let lanes = reads.lanes() & !mine & clock.unknown_from(32 * reader as u32, reads.epoch());
                    (reader, lanes, "")
                }
            };
            if lanes != 0 {
                return Some((self.actor(by, lanes), pc, what));
            }
        }
        None
    }

    #[cold]
    fn report_unwritten(&mut self, warp: &Warp, pc: u32, lanes: u32, at: At, cell: usize) {
        let (place, mut details) = self.place(warp, at, cell, lanes);
        details.message = format!("reads {place}, which was never written");
        details.help = Some("write it first on every path, then a barrier");
        self.report(FindingKind::NeverWritten, pc, None, |_| details);
    }

    #[cold]
    #[allow(clippy::too_many_arguments)]
    fn report_write(
        &mut self,
        warp: &Warp,
        pc: u32,
        lanes: u32,
        at: At,
        cell: usize,
        what: Wrong,
        (writer, epoch, writer_pc): Writer,
        does: &str,
    ) {
        let (place, mut details) = self.place(warp, at, cell, lanes);
        let (other, by) = self.name_writer(writer);
        let waited = match self.machine.actors.who(writer) {
            ActorKind::Copy(thread) => self.copies[thread as usize / 32].has_waited(thread as usize % 32, epoch),
            _ => false,
        };
        let kind = match (what, self.machine.actors.who(writer)) {
            (Wrong::Unfenced, _) => FindingKind::MissingFence,
            (Wrong::Unordered, ActorKind::Thread(_)) => FindingKind::Race,
            (Wrong::Unordered, _) => FindingKind::MissingWait,
        };
        (details.message, details.help) = match kind {
            FindingKind::MissingFence => (
                format!(
                    "{does} {place}, which {by} wrote; the accesses are ordered, but without a `fence.proxy.async` \
                     between them"
                ),
                Some("let the writing threads execute `fence_proxy_async` before the barrier that orders the accesses"),
            ),
            FindingKind::MissingWait if waited => (
                format!(
                    "{does} {place}, which {by} filled; only that thread has waited for the copy, and no barrier \
                     followed"
                ),
                Some("put `fence_proxy_async` and a barrier between `cp_async_wait` and the access"),
            ),
            FindingKind::MissingWait => (
                format!("{does} {place}, which {by} fills, without waiting for the copy"),
                Some("let every warp that uses the data wait for the mbarrier phase in which the copy completes"),
            ),
            _ => (
                format!("{does} {place}, which {by} wrote; nothing orders the two accesses"),
                Some("put `fence_proxy_async` and a barrier between them"),
            ),
        };
        details.other = Some(other);
        self.report(kind, pc, Some(writer_pc), |_| details);
    }

    #[cold]
    #[allow(clippy::too_many_arguments)]
    fn report_read(
        &mut self,
        warp: &Warp,
        pc: u32,
        lanes: u32,
        at: At,
        cell: usize,
        wrong: Wrong,
        (reader, reader_pc, what): Reader,
    ) {
        let (place, mut details) = self.place(warp, at, cell, lanes);
        let by = reader.warp;
        let (kind, message, help) = match wrong {
            Wrong::Unordered => (
                FindingKind::Race,
                format!("overwrites {place}, which {what}warp {by} reads; nothing orders the two accesses"),
                HELP_RELEASE,
            ),
            Wrong::Unfenced => (
                FindingKind::MissingFence,
                format!(
                    "overwrites {place}, which warp {by} lane {} reads; the accesses are ordered, but without a \
                     `fence.proxy.async` between them, and an arrival does not wait for loads",
                    reader.lanes.trailing_zeros()
                ),
                "let the reading threads execute `fence_proxy_async` between their loads and their arrival",
            ),
        };
        (details.message, details.help, details.other) = (message, Some(help), Some(reader));
        self.report(kind, pc, Some(reader_pc), |_| details);
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
