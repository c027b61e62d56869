//! Slow path of the race check for shared memory.
//!
//! Accesses that the fast path could not prove ordered are checked here per lane and cell against
//! the lane's clock. Most are ordered (a thread reading its own write, lanes after a
//! `bar.warp.sync`); the others become findings.

use crate::async_races::{HELP_PHASE, HELP_RELEASE};
use crate::clock::{ActorId, ActorKind, Stamp, WriterKind};
use crate::cluster::Cluster;
use crate::finding::{Actor, FindingKind};
use crate::program::At;
use crate::record::Details;
use crate::registers::lanes;
use crate::shadow::SharedAccess;
use crate::warp::Warp;

/// How an access conflicts with an earlier one: the kind, the end of the message (`{}` stands for
/// the earlier access), and the usual fix.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault(pub(crate) FindingKind, pub(crate) &'static str, pub(crate) &'static str);

pub(crate) const NEVER_WRITTEN: Fault = Fault(
    FindingKind::NeverWritten,
    "was never written",
    "write it first on every path, then a barrier",
);
const WROTE: Fault = Fault(
    FindingKind::Race,
    "{} wrote; nothing orders the two accesses",
    "put a barrier between them; within a warp `sync_warp` is sufficient, a shuffle or a vote is not",
);
const READ: Fault = Fault(FindingKind::Race, "{} reads; nothing orders the two accesses", WROTE.2);
const READ_BY_AGENT: Fault = Fault(
    FindingKind::Race,
    "a bulk store or a product of {} may still read",
    HELP_RELEASE,
);
const BULK: Fault = Fault(
    FindingKind::MissingWait,
    "a bulk copy of {} fills, without waiting for the copy",
    HELP_PHASE,
);
const OWN_COPY: Fault = Fault(
    FindingKind::MissingWait,
    "this thread's own copy fills, without waiting for it",
    "before the access, close the group (`cp_async_commit`), wait (`cp_async_wait`), then a barrier",
);
const OTHERS_COPY: Fault = Fault(
    FindingKind::MissingWait,
    "a copy of {} fills; no thread has waited for the copy",
    OWN_COPY.2,
);
const WAITED_COPY: Fault = Fault(
    FindingKind::MissingWait,
    "a copy of {} filled; only that thread has waited for the copy, and no barrier followed",
    "put a barrier between `cp_async_wait` and the access",
);

/// A conflict of an instruction with another one.
pub(crate) struct Clash {
    pub(crate) fault: Fault,
    /// Lanes of this instruction.
    pub(crate) lanes: u32,
    pub(crate) cell: usize,
    /// The other access: who made it, their name in messages, and the operation.
    pub(crate) other: Option<(Actor, String, u32)>,
}

impl Clash {
    pub(crate) fn new(fault: Fault, lanes: u32, cell: usize, other: Option<(Actor, String, u32)>) -> Clash {
        Clash {
            fault,
            lanes,
            cell,
            other,
        }
    }
}

/// Adds a conflict to those of an instruction. Lanes with the same conflict are merged.
fn add(clashes: &mut Vec<Clash>, clash: Clash) {
    let pc = |clash: &Clash| clash.other.as_ref().map(|other| other.2);
    let same = |c: &&mut Clash| c.fault == clash.fault && pc(c) == pc(&clash);
    match clashes.iter_mut().find(same) {
        Some(known) => known.lanes |= clash.lanes,
        None => clashes.push(clash),
    }
}

/// The name of a thread's access in messages.
pub(crate) fn thread_name(actor: Actor) -> String {
    format!("warp {} lane {}", actor.warp, actor.lanes.trailing_zeros())
}

impl Cluster<'_> {
    /// `collective`: the whole warp gets the result, so even a lane's own write must be ordered.
    #[inline(never)]
    pub(crate) fn check_reads(&mut self, warp: &Warp, access: &SharedAccess, collective: bool) {
        let mut clashes = Vec::new();
        for lane in lanes(access.mask) {
            for cell in self.shadow.cells(access, lane) {
                if self.shadow.stamp(cell) == Stamp::NEVER {
                    add(&mut clashes, Clash::new(NEVER_WRITTEN, 1 << lane, cell, None));
                } else if let Some(clash) = self.against_writer(warp, lane as u32, cell, collective) {
                    add(&mut clashes, clash);
                } else if let Some(clash) = self.against_equals(warp, lane as u32, cell) {
                    add(&mut clashes, clash);
                }
            }
        }
        for clash in clashes {
            self.report_clash(warp, (access.pc, access.at), clash, "reads");
        }
    }

    /// `equal`: lanes that store what is there.
    #[inline(never)]
    pub(crate) fn check_writes(&mut self, warp: &Warp, access: &SharedAccess, kind: WriterKind, equal: u32) {
        let mut clashes = Vec::new();
        let limits = warp.who(access.pc).limits;
        for lane in lanes(access.mask) {
            let is_equal = equal >> lane & 1 == 1;
            for cell in self.shadow.cells(access, lane) {
                let stamp = self.shadow.stamp(cell);
                let both_atomic = kind == WriterKind::Atomic && stamp.is_atomic();
                if stamp != Stamp::NEVER
                    && !both_atomic
                    && let Some(clash) = self.against_writer(warp, lane as u32, cell, false)
                {
                    if is_equal && clash.fault == WROTE && !stamp.is_atomic() {
                        let (writer, pc) = self.shadow.writer(cell);
                        self.shadow.note_equal(cell, (stamp, writer, pc));
                    } else {
                        add(&mut clashes, clash);
                    }
                }
                if !is_equal && let Some(clash) = self.against_equals(warp, lane as u32, cell) {
                    add(&mut clashes, clash);
                } else if !is_equal {
                    self.shadow.equals.remove(&cell);
                }
                if self.shadow.newest_read(cell) > limits.epoch
                    && let Some((reader, other_pc, by)) = self.unordered_reader(warp, lane as u32, cell)
                {
                    let fault = if by.is_empty() { READ } else { READ_BY_AGENT };
                    let other = Some((reader, thread_name(reader), other_pc));
                    add(&mut clashes, Clash::new(fault, 1 << lane, cell, other));
                }
            }
        }
        for clash in clashes {
            self.report_clash(warp, (access.pc, access.at), clash, "writes");
        }
    }

    /// Checks an access against the writes that stores of equal bytes displaced.
    fn against_equals(&self, warp: &Warp, lane: u32, cell: usize) -> Option<Clash> {
        let me = (32 * warp.index) as ActorId + lane;
        let clock = warp.clock(lane);
        let is_unordered =
            |(stamp, writer, _): &&(Stamp, ActorId, u32)| *writer != me && !clock.knows(*writer, stamp.epoch());
        let &(_, writer, pc) = self.shadow.equals.get(&cell)?.iter().find(is_unordered)?;
        let other = self.name_writer(writer).0;
        let other = (other, thread_name(other), pc);
        Some(Clash::new(WROTE, 1 << lane, cell, Some(other)))
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
        let fault = match (stamp.is_agent(), own) {
            (true, _) if stamp.is_bulk() => BULK,
            (true, true) => OWN_COPY,
            (true, false) if waited => WAITED_COPY,
            (true, false) => OTHERS_COPY,
            (false, _) => WROTE,
        };
        let other = self.name_writer(writer).0;
        let other = Some((other, thread_name(other), other_pc));
        Some(Clash::new(fault, 1 << lane, cell, other))
    }

    /// Reports a conflict of an access that `does` something.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_clash(&mut self, warp: &Warp, (pc, at): (u32, At), clash: Clash, does: &str) {
        let Fault(kind, end, help) = clash.fault;
        let (place, mut details) = self.place(warp, at, clash.cell, clash.lanes);
        let (other, name, other_pc) = match clash.other {
            Some((actor, name, pc)) => (Some(actor), name, Some(pc)),
            None => (None, String::new(), None),
        };
        details.message = format!("{does} {place}, which {}", end.replace("{}", &name));
        (details.other, details.help) = (other, Some(help));
        self.report(kind, pc, other_pc, |_| details);
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
        let in_stage = (buffer.stages > 1).then(|| format!("stage {stage}, "));
        let in_stage = in_stage.unwrap_or_default();
        let text = format!(
            "bytes {start}..{} of shared buffer `{}` ({in_stage}row {row}, column {col})",
            start + bytes,
            buffer.name
        );
        (text, details)
    }
}
