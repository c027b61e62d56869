//! Judges accesses of the async proxy to shared memory: what bulk copies write, what bulk stores and
//! products read.
//!
//! They need what every access needs, that what came before is known; and of what threads wrote, that it was
//! known by a way that a proxy fence lies on. So must be what threads read of bytes that a copy overwrites: an arrival
//! at an mbarrier orders loads before the loads and stores of others, which go the same way as they do, and not before a copy,
//! which does not. On an H200 a load was overtaken by the copy that came after its warp's arrival.

use crate::clock::{ActorId, ActorKind, Clock, Epoch, Stamp};
use crate::cluster::Cluster;
use crate::finding::{Actor, FindingKind};
use crate::program::At;
use crate::record::Key;
use crate::warp::Warp;

/// Who wrote a cell, when, and where.
type Writer = (ActorId, Epoch, u32);

/// Who reads a cell, where, and how messages call it.
type Reader = (Actor, u32, &'static str);

/// What is wrong with the order of two accesses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// Nothing orders them.
    Unordered,
    /// They are in order, but no proxy fence lies between.
    Unfenced,
}

impl Cluster<'_> {
    /// What is wrong with an access of the async proxy that `lanes` start, after a write of this kind.
    fn after_write(&self, warp: &Warp, lanes: u32, stamp: Stamp, writer: ActorId) -> Option<Wrong> {
        let epoch = stamp.epoch();
        let mine = (32 * warp.index) as u32;
        let actors = &self.machine.actors;
        let kind = actors.who(writer);
        for part in warp.knowledge_of(lanes) {
            let clock: &Clock = &part.clock;
            for lane in (0..32).filter(|lane| part.lanes & lanes & (1 << lane) != 0) {
                let me = mine + lane;
                let copies = &self.copies[warp.index];
                let (own, fenced) = match kind {
                    ActorKind::Thread(thread) => (thread == me, warp.fenced[lane as usize] >= epoch),
                    ActorKind::Copy(thread) => (
                        thread == me && copies.has_waited(lane, epoch),
                        warp.fenced_copies[lane as usize] >= epoch,
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
                    // Lanes that know the same differ only in what is their own.
                    break;
                }
            }
        }
        None
    }

    /// Judges reads of byte ranges (first, bytes) of the cluster's shared memory that `lanes` start together.
    pub(crate) fn judge_async_read(&mut self, warp: &Warp, lanes: u32, pc: u32, at: At, ranges: &[(u32, u32)]) {
        let shift = self.shadow.shift;
        // Neighbouring cells mostly have one writer.
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

    /// Judges the write of a range by a copy that a lane starts.
    pub(crate) fn judge_async_write(&mut self, warp: &Warp, pc: u32, lane: u32, at: At, first: u32, bytes: u32) {
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

    /// A read of a cell by a thread that a lane knows of by no way that a proxy fence lies on.
    fn unfenced_reader(&self, warp: &Warp, lane: u32, cell: usize) -> Option<Reader> {
        let clock = warp.clock(lane);
        for reader in self.shadow.reading_warps(self.machine.warps) {
            let (reads, pc) = self.shadow.readers(reader, cell);
            let epoch = reads.epoch();
            let is_fenced = |by: u32| {
                let own = reader == warp.index && by == lane;
                own && warp.fenced[lane as usize] >= epoch || clock.has_fenced(32 * reader as u32 + by, epoch)
            };
            let mut lanes = (0..32).filter(|by| reads.lanes() >> by & 1 != 0);
            if let Some(by) = lanes.find(|&by| !is_fenced(by)) {
                return Some((self.actor(reader, 1 << by), pc, ""));
            }
        }
        None
    }

    /// A read of a cell since its last write that a lane does not know of.
    pub(crate) fn unordered_reader(&self, warp: &Warp, lane: u32, cell: usize) -> Option<Reader> {
        let machine = self.machine;
        let clock = warp.clock(lane);
        for reader in 0..machine.warps {
            let (reads, pc) = self.shadow.readers(reader, cell);
            if reads.lanes() == 0 {
                continue;
            }
            let mut lanes = reads.lanes() & clock.unknown_lanes(reader, reads.epoch());
            if reader == warp.index {
                lanes &= !(1 << lane);
            }
            if lanes != 0 {
                return Some((self.actor(reader, lanes), pc, ""));
            }
        }
        if machine.actors.stores > 0 {
            for by in 0..machine.warps {
                let (reads, pc) = self.shadow.readers(machine.store_reader(by), cell);
                if reads.lanes() == 0 {
                    continue;
                }
                let lanes = reads.lanes() & clock.unknown_stores(by, reads.epoch());
                if lanes != 0 {
                    return Some((self.actor(by, lanes), pc, "a store of "));
                }
            }
        }
        for group in 0..machine.actors.warpgroups {
            let (reads, pc) = self.shadow.readers(machine.product_reader(group as usize), cell);
            let actor = machine.actors.warpgroup(group);
            let lag = reads.lanes() != 0 && !clock.knows(actor, reads.epoch());
            // A warp's own products are its own business only once it has waited for them.
            if lag && !self.has_waited_for_products(warp, group, reads.epoch()) {
                return Some((
                    self.actor(4 * group as usize, u32::MAX),
                    pc,
                    "a product of the warpgroup of ",
                ));
            }
        }
        None
    }

    #[cold]
    fn report_unwritten(&mut self, warp: &Warp, pc: u32, lanes: u32, at: At, cell: usize) {
        let (place, mut details) = self.place(warp, at, cell, lanes);
        details.message = format!("reads {place}, which nobody has written");
        details.help = Some("write it first, on every path, and by some thread before a barrier");
        let key = Key {
            kind: FindingKind::NeverWritten,
            pc,
            other: None,
        };
        self.findings.report(self.machine, key, || details);
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
            ActorKind::Copy(thread) => self.copies[thread as usize / 32].has_waited(thread % 32, epoch),
            _ => false,
        };
        let kind = match (what, self.machine.actors.who(writer)) {
            (Wrong::Unfenced, _) => FindingKind::MissingFence,
            (Wrong::Unordered, ActorKind::Thread(_)) => FindingKind::Race,
            (Wrong::Unordered, _) => FindingKind::MissingWait,
        };
        (details.message, details.help) = match kind {
            FindingKind::MissingFence => (
                format!("{does} {place}, which {by} wrote; they are in order, but no `fence.proxy.async` lies between"),
                Some("`fence_proxy_async` by the threads that wrote, before the barrier that orders the two"),
            ),
            FindingKind::MissingWait if waited => (
                format!(
                    "{does} {place}, which {by} filled; only its thread has waited for it, and no barrier followed"
                ),
                Some("put `fence_proxy_async` and a barrier after `cp_async_wait` and before the access"),
            ),
            FindingKind::MissingWait => (
                format!("{does} {place}, which {by} fills, without having waited for it"),
                Some(
                    "wait for the phase of the mbarrier at which the copy completes, in every warp that uses what it brings",
                ),
            ),
            _ => (
                format!("{does} {place}, which {by} wrote, with nothing that orders the two"),
                Some("put a barrier between them, and `fence_proxy_async` before it"),
            ),
        };
        details.other = Some(other);
        let key = Key {
            kind,
            pc,
            other: Some(writer_pc),
        };
        self.findings.report(self.machine, key, || details);
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
                format!("overwrites {place}, which {what}warp {by} reads, with nothing that orders the two"),
                HELP_RELEASE,
            ),
            Wrong::Unfenced => (
                FindingKind::MissingFence,
                format!(
                    "overwrites {place}, which warp {by} lane {} reads; they are in order, but no `fence.proxy.async` lies \
                     between, and an arrival does not wait for loads",
                    reader.lanes.trailing_zeros()
                ),
                "`fence_proxy_async` by the threads that read, after their loads and before what lets the copy begin",
            ),
        };
        (details.message, details.help, details.other) = (message, Some(help), Some(reader));
        let key = Key {
            kind,
            pc,
            other: Some(reader_pc),
        };
        self.findings.report(self.machine, key, || details);
    }

    /// Who an actor is for findings, and how messages call it.
    pub(crate) fn name_writer(&self, writer: ActorId) -> (Actor, String) {
        match self.machine.actors.who(writer) {
            ActorKind::Mbarrier(number) => {
                let copier = self.mbarriers[number as usize].as_ref().and_then(|m| m.copier);
                let name = format!("a copy that completes at {}", self.mbarrier_name(number));
                (copier.unwrap_or_else(|| self.actor(0, 0)), name)
            }
            ActorKind::Copy(thread) => {
                let actor = self.actor(thread as usize / 32, 1 << (thread % 32));
                (actor, format!("a copy of warp {} lane {}", actor.warp, thread % 32))
            }
            ActorKind::Thread(thread) | ActorKind::Store(thread) => {
                let actor = self.actor(thread as usize / 32, 1 << (thread % 32));
                (actor, format!("warp {} lane {}", actor.warp, thread % 32))
            }
            ActorKind::Warpgroup(_) | ActorKind::Upstream => (self.actor(0, 0), "another launch".to_string()),
        }
    }
}

/// What mends a tile that is overwritten while something reads it.
pub(crate) const HELP_RELEASE: &str =
    "wait for the products or stores that read the tile before it is released, and for its release before it is filled";
