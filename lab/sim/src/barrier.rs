//! Named barriers (`bar`), `bar.warp.sync`, and the report of a deadlock.

use std::rc::Rc;

use crate::bulk::finished;
use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::interpreter::Stop;
use crate::record::Details;
use crate::registers::{FULL, lanes};
use crate::warp::{State, Wait, Warp};

/// One of a block's 16 barriers.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    /// Number of threads, as named by the first warp.
    pub(crate) expected: u32,
    pub(crate) arrived: u32,
    /// Whether it waits for all threads of the block, whose number no instruction named.
    waits_for_all: bool,
    /// Warps that have arrived, and where; `true` if they wait.
    pub(crate) who: Vec<(usize, u32, bool)>,
    /// The joined clock of the arrived warps.
    clock: Option<Clock>,
    /// Threads that gave true, and false (`bar.red`).
    given: [u32; 2],
}

impl Cluster<'_> {
    /// A number that all lanes must name.
    fn named_by_all(&mut self, warp: &Warp, pc: u32, numbers: &[u32; 32], is_good: fn(u32) -> bool, must: &str) -> u32 {
        let first = numbers[warp.active.trailing_zeros() as usize & 31];
        let one = lanes(warp.active).all(|lane| numbers[lane] == first);
        if !one || !is_good(first) {
            self.report(FindingKind::BarrierMismatch, pc, None, |cluster| {
                let others = if one { "" } else { ", others differ" };
                let message = format!("all lanes of a warp must {must} {first}{others}");
                Details::new(message, cluster.actor(warp.index, warp.active))
            });
        }
        first
    }

    /// The barrier number, which all lanes must share.
    fn barrier_number(&mut self, warp: &Warp, pc: u32, ids: &[u32; 32]) -> u8 {
        let must = "use one barrier from 0 to 15; the first lane uses";
        self.named_by_all(warp, pc, ids, |id| id < 16, must) as u8 & 15
    }

    /// A warp arrives, at a barrier of so many threads, or of all.
    pub(crate) fn arrive(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        ids: &[u32; 32],
        threads: Option<u32>,
        waits: bool,
    ) -> Stop {
        if waits
            && warp.active != warp.live
            && let Some(next) = warp.splits.park(pc, warp.active, warp.live)
        {
            (warp.pc, warp.active) = next;
            if warp.pc != pc || warp.active != warp.live {
                return Stop::SliceEnd;
            }
        }
        warp.pc = pc + 1;
        let id = self.barrier_number(warp, pc, ids);
        let waits_for_all = threads.is_none();
        let there = 32 * self.machine.warps_per_block() as u32 - self.threads_ended[warp.rank];
        let threads = threads.map_or(there, |threads| threads.next_multiple_of(32));
        if warp.active != warp.live {
            let missing = warp.live & !warp.active;
            self.report(FindingKind::MissingLanes, pc, None, |cluster| {
                let message =
                    format!("all lanes of a warp must execute a barrier together; lanes {missing:#010x} do not");
                Details::new(message, cluster.actor(warp.index, warp.active))
            });
        }
        let ended = warp.born & !warp.live;
        if ended != 0 && warp.active == warp.live {
            self.report(FindingKind::MissingLanes, pc, None, |cluster| {
                let message = format!(
                    "lanes {ended:#010x} of this warp have returned before this barrier, which all threads of a warp must \
                     come to"
                );
                Details::new(message, cluster.actor(warp.index, warp.active))
                    .help("let all threads come to the barrier, and skip only the work of those that have none")
            });
        }
        let barrier = &self.barriers[warp.rank][usize::from(id)];
        let expected = barrier.expected;
        let first = barrier.who.first().filter(|_| expected != threads).copied();
        let earlier = barrier.who.iter().find(|w| w.0 == warp.index).map(|w| w.1);
        if let Some((first, first_pc, _)) = first {
            self.report(FindingKind::BarrierMismatch, pc, Some(first_pc), |cluster| {
                let message = format!(
                    "barrier {id} expects {threads} threads here and {expected} threads there; all uses of a \
                     barrier must name one thread count"
                );
                Details::new(message, cluster.actor(warp.index, FULL)).other(cluster.actor(first, FULL))
            });
        }
        if let Some(earlier) = earlier {
            self.report(FindingKind::BarrierMismatch, pc, Some(earlier), |cluster| {
                let actor = cluster.actor(warp.index, FULL);
                let message = format!(
                    "warp {} arrives at barrier {id} a second time before the others have arrived",
                    actor.warp
                );
                Details::new(message, actor)
                    .other(actor)
                    .help("let the warp wait until the waiting warps have passed the barrier")
            });
        }
        // Take the clock now: waiting warps must not learn what this warp does after its arrival.
        let mut knowledge = warp.joined(FULL);
        if !waits {
            self.publish(&mut knowledge, warp, FULL);
            warp.epoch = self.next_epoch();
        }
        let barrier = &mut self.barriers[warp.rank][usize::from(id)];
        if barrier.who.is_empty() {
            (barrier.expected, barrier.waits_for_all) = (threads, waits_for_all);
        }
        barrier.arrived += 32;
        let given = std::mem::take(&mut warp.given);
        barrier.given = [barrier.given[0] + given[0], barrier.given[1] + given[1]];
        barrier.who.push((warp.index, pc, waits));
        knowledge.join_to(&mut barrier.clock);
        if waits {
            warp.state = State::AtBarrier(id);
        }
        let released = barrier.arrived >= barrier.expected;
        Stop::Barrier { id, released }
    }

    /// A warp of a kernel of another compiler has ended: barriers of all threads no longer wait for it (PTX ISA,
    /// `exit`). Gives the one that it held up.
    pub(crate) fn leave_barriers(&mut self, warp: &Warp) -> Option<u8> {
        if !self.machine.is_foreign {
            return None;
        }
        self.threads_ended[warp.rank] += 32;
        let mut released = None;
        for (id, barrier) in (0..).zip(&mut self.barriers[warp.rank]) {
            if barrier.waits_for_all && !barrier.who.is_empty() {
                barrier.expected -= 32;
                released = released.or((barrier.arrived >= barrier.expected).then_some(id));
            }
        }
        released
    }

    /// The number of threads that the lanes name for a barrier.
    pub(crate) fn threads_named(&mut self, warp: &Warp, pc: u32, counts: &[u32; 32]) -> u32 {
        let is_good = |threads: u32| threads != 0 && threads.is_multiple_of(32);
        let must = "name one number of threads, a multiple of 32; the first lane names";
        self.named_by_all(warp, pc, counts, is_good, must)
    }

    /// Adds some lanes' accesses and completed asynchronous operations up to now to a clock.
    pub(crate) fn publish(&self, clock: &mut Clock, warp: &Warp, mask: u32) {
        let (actors, now) = (&self.machine.actors, self.epoch);
        let first = 32 * warp.index as u32;
        clock.learn_lanes(first, mask, &[now; 32]);
        if actors.copies > 0 {
            let landed = self.copies[warp.index].finished(now);
            clock.learn_lanes(actors.copy_of(first), mask, &landed);
        }
        if actors.stores > 0 {
            let stores = &self.stores[warp.index];
            clock.learn_lanes(actors.store_of(first), mask, &finished(&stores.reads, now));
            clock.learn_lanes(actors.store_writes_of(first), mask, &finished(&stores.writes, now));
        }
        if actors.warpgroups > 0 {
            let warpgroup = actors.warpgroup(warp.index as u32 / 4);
            clock.learn(warpgroup, self.products_finished(warp, now));
        }
        if self.machine.program.uses_async_proxy {
            for lane in lanes(mask) {
                let thread = first + lane as u32;
                clock.learn_fenced(thread, warp.fenced[lane]);
                if actors.copies > 0 {
                    clock.learn_fenced(actors.copy_of(thread), warp.fenced_copies[lane]);
                }
            }
        }
    }

    /// Releases the warps that wait at a complete barrier. They share one clock.
    pub(crate) fn release(&mut self, rank: usize, id: u8, warps: &mut [Warp]) {
        let barrier = std::mem::take(&mut self.barriers[rank][usize::from(id)]);
        let Some(mut clock) = barrier.clock else { return };
        let waiting = barrier.who.iter().filter(|(_, _, waits)| *waits);
        for &(warp, _, _) in waiting.clone() {
            self.publish(&mut clock, &warps[warp], FULL);
        }
        let clock = Rc::new(clock);
        let epoch = self.next_epoch();
        self.share_seen(warps, waiting.clone().map(|(warp, _, _)| *warp));
        for &(warp, _, _) in waiting {
            let warp = &mut warps[warp];
            warp.learn(FULL, clock.clone());
            warp.epoch = epoch;
            if std::mem::replace(&mut warp.exchanged_before, true) {
                warp.exchanged = 0.0;
            }
            warp.state = State::Ready;
            warp.gathered = barrier.given;
        }
    }

    /// `bar.warp.sync`: some lanes learn each other's accesses.
    pub(crate) fn join_lanes(&mut self, warp: &mut Warp, lanes: u32) {
        let mut clock = warp.joined(lanes);
        self.publish(&mut clock, warp, lanes);
        warp.learn(lanes, Rc::new(clock));
        warp.epoch = self.next_epoch();
    }

    /// Checks that the active lanes are exactly the lanes of a member mask.
    #[inline(always)]
    pub(crate) fn check_members(&mut self, warp: &Warp, pc: u32, members: u32, name: &'static str) {
        if members & warp.live != warp.active {
            self.wrong_members(warp, pc, members, name);
        }
    }

    #[cold]
    fn wrong_members(&mut self, warp: &Warp, pc: u32, members: u32, name: &'static str) {
        let members = members & warp.live;
        let (missing, unnamed) = (members & !warp.active, warp.active & !members);
        self.report(FindingKind::MissingLanes, pc, None, |cluster| {
            let message = if missing != 0 {
                format!("`{name}` names lanes {missing:#010x}, which are not active")
            } else {
                format!("lanes {unnamed:#010x} execute `{name}` but are not in its member mask")
            };
            Details::new(message, cluster.actor(warp.index, warp.active))
                .help("move it out of the divergent branch, or make the condition the same in all lanes")
        });
    }

    /// Called when no warp can continue: reports a deadlock unless all warps have ended.
    pub(crate) fn check_end(&mut self, warps: &[Warp]) {
        if self.out.findings.is_livelocked() {
            return;
        }
        let waits = |warp: &Warp| Some((warp.index, waits_at(warp)?, warp.state));
        let waiting: Vec<(usize, u32, State)> = warps.iter().filter_map(waits).collect();
        let Some(&(first, pc, at)) = waiting.first() else {
            self.check_registers(warps);
            self.check_lifetimes();
            return;
        };
        let lacks_bytes = |w: &&(usize, u32, State)| match w.2 {
            State::Blocked(Wait::Phase { mbarrier, .. }) => self.lacks_bytes(mbarrier),
            _ => false,
        };
        let (kind, (first, pc)) = if let Some(w) = waiting.iter().find(lacks_bytes) {
            (FindingKind::TransactionBytes, (w.0, w.1))
        } else if matches!(at, State::AtBarrier(_)) && waiting.iter().all(|w| w.2 == at) && waiting.len() < warps.len()
        {
            (FindingKind::BarrierMismatch, (first, pc))
        } else {
            (FindingKind::Deadlock, (first, pc))
        };
        let mut parts: Vec<String> = waiting
            .iter()
            .map(|&(warp, pc, at)| self.describe_wait(&warps[warp], pc, at))
            .collect();
        let done = warps.iter().filter(|warp| warp.state == State::Done);
        let done: Vec<String> = done.map(|warp| warp.index.to_string()).collect();
        if !done.is_empty() {
            parts.push(format!("warps {} have exited", done.join(", ")));
        }
        let message = format!("no warp can continue: {}", parts.join("; "));
        let other = waiting.iter().find(|w| w.1 != pc).copied();
        let help = match at {
            _ if kind == FindingKind::TransactionBytes => {
                "announce exactly the bytes of all copies of a phase: whole boxes, in every destination block"
            }
            State::AtBarrier(_) => "every warp that a barrier counts must arrive at it equally often",
            State::Blocked(Wait::Phase { .. }) => {
                "compare the arrival count of the mbarrier with the arrivals per phase, and the parity of \
                 the wait with the current phase"
            }
            _ => "check what the other warps wait for",
        };
        self.report(kind, pc, other.map(|w| w.1), |cluster| {
            let other = other.map(|w| cluster.actor(w.0, FULL));
            Details::new(message, cluster.actor(first, FULL))
                .other(other)
                .help(help)
        });
    }

    /// What a warp waits for, and where.
    pub(crate) fn describe_wait(&self, warp: &Warp, pc: u32, at: State) -> String {
        let machine = self.machine;
        let name = self.warp_name(warp.index);
        let line = machine.kernel.kernel_line(machine.program.sites[pc as usize]);
        match at {
            State::AtBarrier(id) => {
                let barrier = &self.barriers[warp.rank][usize::from(id)];
                format!(
                    "{name} waits at barrier {id} ({line}; {} of {} threads have arrived)",
                    barrier.arrived, barrier.expected
                )
            }
            State::Blocked(Wait::Phase { mbarrier, parity }) => {
                format!("{name} waits {} ({line})", self.describe_phase(mbarrier, parity))
            }
            State::Blocked(Wait::Cluster) => format!("{name} waits at the cluster barrier ({line})"),
            State::Blocked(Wait::Warpgroup) => {
                format!("{name} waits for a product that not all warps of its warpgroup have issued ({line})")
            }
            State::Blocked(Wait::Registers { needed }) => format!(
                "{name} waits for {needed} registers, of which the block's pool has {} ({line})",
                self.registers[warp.rank]
            ),
            State::Blocked(Wait::Change((slot, offset))) => {
                let buffer = machine.buffer_name(slot);
                format!(
                    "{name} waits for bytes {offset}..{} of `{buffer}` to change ({line})",
                    offset + 4
                )
            }
            State::Ready | State::Done => name,
        }
    }
}

/// The operation at which a warp waits.
pub(crate) fn waits_at(warp: &Warp) -> Option<u32> {
    match warp.state {
        State::AtBarrier(_) => Some(warp.pc - 1),
        State::Blocked(_) => Some(warp.pc),
        State::Ready | State::Done => None,
    }
}
