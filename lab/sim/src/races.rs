//! Slow path of the race check for shared memory.
//!
//! Accesses that the fast path could not prove ordered are checked here per lane and cell against
//! the lane's clock. Most are ordered (a thread reading its own write, lanes after a
//! `bar.warp.sync`); the others become findings.

use crate::async_races::HELP_RELEASE;
use crate::clock::{ActorId, ActorKind, Stamp, WriterKind};
use crate::cluster::Cluster;
use crate::finding::{Actor, FindingKind};
use crate::program::At;
use crate::record::Details;
use crate::registers::lanes;
use crate::shadow::SharedAccess;
use crate::warp::Warp;

/// Conflicts of one instruction with another instruction. Lanes are merged.
struct Clash {
    kind: FindingKind,
    other_pc: Option<u32>,
    other: Option<Actor>,
    /// Lanes of this instruction.
    lanes: u32,
    cell: usize,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    NeverWritten,
    Wrote,
    Read,
    /// A bulk store or a product reads the cell.
    ReadByAgent,
    /// A bulk copy writes the cell.
    Bulk,
    /// A copy of the same thread that it has not waited for.
    OwnCopy,
    /// A copy of another thread; `true` if that thread has waited for it.
    OthersCopy(bool),
}

#[derive(Default)]
struct Clashes(Vec<Clash>);

impl Clashes {
    fn add(&mut self, clash: Clash) {
        let same = |c: &&mut Clash| c.kind == clash.kind && c.other_pc == clash.other_pc && c.what == clash.what;
        match self.0.iter_mut().find(same) {
            Some(known) => known.lanes |= clash.lanes,
            None => self.0.push(clash),
        }
    }
}

impl Cluster<'_> {
    /// Checks reads. `collective`: the result goes to the whole warp, so even a lane's own write
    /// must be ordered for the other lanes.
    #[inline(never)]
    pub(crate) fn check_reads(&mut self, warp: &Warp, access: &SharedAccess, collective: bool) {
        let mut clashes = Clashes::default();
        for lane in lanes(access.mask) {
            for cell in self.shadow.cells(access, lane) {
                if self.shadow.stamp(cell) == Stamp::NEVER {
                    clashes.add(Clash {
                        kind: FindingKind::NeverWritten,
                        other_pc: None,
                        other: None,
                        lanes: 1 << lane,
                        cell,
                        what: What::NeverWritten,
                    });
                } else if let Some(clash) = self.against_writer(warp, lane as u32, cell, collective) {
                    clashes.add(clash);
                }
            }
        }
        self.report_clashes(warp, access, clashes, "reads");
    }

    #[inline(never)]
    pub(crate) fn check_writes(&mut self, warp: &Warp, access: &SharedAccess, kind: WriterKind) {
        let mut clashes = Clashes::default();
        let limits = warp.who(access.pc).limits;
        for lane in lanes(access.mask) {
            for cell in self.shadow.cells(access, lane) {
                let stamp = self.shadow.stamp(cell);
                let both_atomic = kind == WriterKind::Atomic && stamp.is_atomic();
                if stamp != Stamp::NEVER
                    && !both_atomic
                    && let Some(clash) = self.against_writer(warp, lane as u32, cell, false)
                {
                    clashes.add(clash);
                }
                if self.shadow.newest_read(cell) > limits.epoch
                    && let Some((reader, other_pc, by)) = self.unordered_reader(warp, lane as u32, cell)
                {
                    clashes.add(Clash {
                        kind: FindingKind::Race,
                        other_pc: Some(other_pc),
                        other: Some(reader),
                        lanes: 1 << lane,
                        cell,
                        what: if by.is_empty() { What::Read } else { What::ReadByAgent },
                    });
                }
            }
        }
        self.report_clashes(warp, access, clashes, "writes");
    }

    /// Checks an access against the last write of its cell.
    #[inline(always)]
    fn against_writer(&self, warp: &Warp, lane: u32, cell: usize, collective: bool) -> Option<Clash> {
        let stamp = self.shadow.stamp(cell);
        let (writer, other_pc) = self.shadow.writer(cell);
        let me = (32 * warp.index) as ActorId + lane;
        // Most accesses are to a thread's own cells.
        if writer == me && !collective || warp.clock(lane).knows(writer, stamp.epoch()) {
            return None;
        }
        self.unknown_writer(warp, lane, cell, collective, (stamp, writer, other_pc))
    }

    /// As [`Self::against_writer`] for a write that the lane's clock does not cover.
    #[inline(never)]
    fn unknown_writer(
        &self,
        warp: &Warp,
        lane: u32,
        cell: usize,
        collective: bool,
        (stamp, writer, other_pc): (Stamp, ActorId, u32),
    ) -> Option<Clash> {
        let me = (32 * warp.index) as ActorId + lane;
        let thread = match self.machine.actors.who(writer) {
            ActorKind::Thread(thread) | ActorKind::Copy(thread) => Some(thread),
            _ => None,
        };
        let own = thread == Some(me) && !collective;
        let waited = thread.is_some_and(|thread| {
            stamp.is_agent() && self.copies[thread as usize / 32].has_waited(thread as usize % 32, stamp.epoch())
        });
        if own && waited {
            return None;
        }
        let what = match (stamp.is_agent(), own) {
            (true, _) if stamp.is_bulk() => What::Bulk,
            (true, true) => What::OwnCopy,
            (true, false) => What::OthersCopy(waited),
            (false, _) => What::Wrote,
        };
        Some(Clash {
            kind: if stamp.is_agent() {
                FindingKind::MissingWait
            } else {
                FindingKind::Race
            },
            other_pc: Some(other_pc),
            other: Some(self.name_writer(writer).0),
            lanes: 1 << lane,
            cell,
            what,
        })
    }

    fn report_clashes(&mut self, warp: &Warp, access: &SharedAccess, clashes: Clashes, does: &str) {
        for clash in clashes.0 {
            let (place, mut details) = self.place(warp, access.at, clash.cell, clash.lanes);
            let other = clash.other.map_or(String::new(), |other| {
                let lane = other.lanes.trailing_zeros();
                format!("warp {} lane {lane}", other.warp)
            });
            details.message = match clash.what {
                What::NeverWritten => format!("reads {place}, which was never written"),
                What::Wrote => format!("{does} {place}, which {other} wrote; nothing orders the two accesses"),
                What::Read => format!("{does} {place}, which {other} reads; nothing orders the two accesses"),
                What::ReadByAgent => {
                    format!("{does} {place}, which a bulk store or a product of {other} may still read")
                }
                What::Bulk => {
                    format!("{does} {place}, which a bulk copy of {other} fills, without waiting for the copy")
                }
                What::OwnCopy => {
                    format!("{does} {place}, which this thread's own copy fills, without waiting for it")
                }
                What::OthersCopy(false) => {
                    format!("{does} {place}, which a copy of {other} fills; no thread has waited for the copy")
                }
                What::OthersCopy(true) => format!(
                    "{does} {place}, which a copy of {other} filled; only that thread has waited for the copy, and no \
                     barrier followed"
                ),
            };
            details.other = clash.other;
            details.help = Some(match clash.what {
                What::NeverWritten => "write it first on every path, then a barrier",
                What::Wrote | What::Read => {
                    "put a barrier between them; within a warp `sync_warp` is sufficient, a shuffle or a vote is not"
                }
                What::ReadByAgent => HELP_RELEASE,
                What::Bulk => {
                    "let every warp that uses the data wait for the mbarrier phase in which the copy completes"
                }
                What::OwnCopy | What::OthersCopy(false) => {
                    "before the access, close the group (`cp_async_commit`), wait (`cp_async_wait`), then a barrier"
                }
                What::OthersCopy(true) => "put a barrier between `cp_async_wait` and the access",
            });
            self.report(clash.kind, access.pc, clash.other_pc, |_| details);
        }
    }

    /// Reports two lanes of one instruction that write one byte.
    #[cold]
    #[inline(never)]
    pub(crate) fn same_instruction(&mut self, warp: &Warp, access: &SharedAccess, lanes: u32) {
        let cell = self.shadow.cells(access, lanes.trailing_zeros() as usize & 31).start;
        let (place, mut details) = self.place(warp, access.at, cell, lanes);
        details.message = format!("writes {place} from more than one lane at once; the result is undefined");
        details.help = Some("let one lane write it (`if` on the lane), or give each lane a separate address");
        details.other = Some(self.actor(warp.index, 0));
        self.report(FindingKind::Race, access.pc, Some(access.pc), |_| details);
    }

    /// Name and position of a cell for messages.
    pub(crate) fn place(&self, warp: &Warp, at: At, cell: usize, lanes: u32) -> (String, Details) {
        let buffer = self.shared_buffer(at);
        let bytes = 1i64 << self.shadow.shift;
        let within = ((cell as u32) << self.shadow.shift) % self.machine.shared_bytes;
        let start = i64::from(within) - i64::from(buffer.offset);
        let (stage, row, col) = buffer.element_at(start as u32);
        let details = Details::new("", self.actor(warp.index, lanes))
            .object(buffer.name.clone())
            .bytes((start, start + bytes))
            .element(vec![i64::from(stage), i64::from(row), i64::from(col)]);
        let in_stage = if buffer.stages > 1 {
            format!("stage {stage}, ")
        } else {
            String::new()
        };
        let text = format!(
            "bytes {start}..{} of shared buffer `{}` ({in_stage}row {row}, column {col})",
            start + bytes,
            buffer.name
        );
        (text, details)
    }
}
