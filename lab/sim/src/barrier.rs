//! Named barriers: who has come, who waits, what they teach each other.

use std::rc::Rc;

use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::machine::Machine;
use crate::program::Row;
use crate::record::{Details, Key};
use crate::registers::FULL;
use crate::warp::{State, Wait, Warp};

/// One of a block's 16 barriers.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    /// Threads that the first to come expects.
    pub(crate) expected: u32,
    /// Threads that have come.
    pub(crate) arrived: u32,
    /// Warps that have come, and where; `true` where they wait.
    pub(crate) who: Vec<(usize, u32, bool)>,
    /// All that those who came know.
    clock: Option<Clock>,
}

impl Cluster<'_> {
    /// The barrier that all lanes of a warp name.
    pub(crate) fn barrier_number(&mut self, warp: &Warp, pc: u32, id: Row) -> u8 {
        let ids = warp.registers.get(&self.machine.constants, id);
        let first = ids[warp.active.trailing_zeros() as usize & 31];
        let one = (0..32).all(|lane| warp.active >> lane & 1 == 0 || ids[lane] == first);
        if !one || first >= 16 {
            self.report(FindingKind::BarrierMismatch, pc, |cluster| {
                let message = format!(
                    "the lanes of a warp must name one of the barriers 0 to 15; the first names {first}{}",
                    if one { "" } else { ", others do not" }
                );
                Details::new(message, cluster.actor(warp.index, warp.active))
            });
        }
        first as u8 & 15
    }

    /// A warp comes to a barrier. Returns whether that completes it.
    pub(crate) fn arrive(&mut self, warp: &mut Warp, pc: u32, id: u8, threads: u32, waits: bool) -> bool {
        if warp.active != FULL {
            let missing = !warp.active;
            self.report(FindingKind::MissingLanes, pc, |cluster| {
                let message = format!(
                    "a barrier must be executed by all lanes of the warp together; lanes {missing:#010x} are not there"
                );
                Details::new(message, cluster.actor(warp.index, warp.active))
            });
        }
        let barrier = &self.barriers[warp.rank][usize::from(id)];
        if let Some(&(first, first_pc, _)) = barrier.who.first()
            && barrier.expected != threads
        {
            let expected = barrier.expected;
            let key = Key {
                kind: FindingKind::BarrierMismatch,
                pc,
                other: Some(first_pc),
            };
            let (actor, other) = (self.actor(warp.index, FULL), self.actor(first, FULL));
            self.findings.report(self.machine, key, || {
                let message = format!(
                    "barrier {id} is awaited by {threads} threads here and by {expected} threads there; all who meet at a \
                     barrier must name one number"
                );
                Details {
                    other: Some(other),
                    ..Details::new(message, actor)
                }
            });
        }
        if let Some(&(_, earlier, _)) = self.barriers[warp.rank][usize::from(id)]
            .who
            .iter()
            .find(|w| w.0 == warp.index)
        {
            let key = Key {
                kind: FindingKind::BarrierMismatch,
                pc,
                other: Some(earlier),
            };
            let actor = self.actor(warp.index, FULL);
            self.findings.report(self.machine, key, || Details {
                other: Some(actor),
                help: Some("let the warp wait until those who awaited it are past the barrier"),
                ..Details::new(
                    format!(
                        "warp {} comes to barrier {id} twice before the others came once",
                        actor.warp
                    ),
                    actor,
                )
            });
        }
        // What the warp knows goes into the barrier now; who only arrives goes on to do things that
        // those who wait must not learn of.
        let mut knowledge = warp.joined(FULL);
        if !waits {
            self.publish(&mut knowledge, warp, FULL);
            warp.epoch = self.next_epoch();
        }
        let barrier = &mut self.barriers[warp.rank][usize::from(id)];
        if barrier.who.is_empty() {
            barrier.expected = threads;
        }
        barrier.arrived += 32;
        barrier.who.push((warp.index, pc, waits));
        match &mut barrier.clock {
            Some(clock) => clock.join(&knowledge),
            None => barrier.clock = Some(knowledge),
        }
        if waits {
            warp.state = State::AtBarrier { id, pc };
        }
        barrier.arrived >= barrier.expected
    }

    /// Adds to a clock all that the named lanes of a warp have done up to now, and what they have started and
    /// waited for.
    pub(crate) fn publish(&self, clock: &mut Clock, warp: &Warp, lanes: u32) {
        let (actors, now) = (&self.machine.actors, self.epoch);
        let first = 32 * warp.index as u32;
        clock.learn_threads(warp.index, lanes, now);
        if actors.copies > 0 {
            let finished = self.copies[warp.index].finished(now);
            clock.learn_lanes(actors.copy_of(first), lanes, &finished);
        }
        if actors.stores > 0 {
            let stores = &self.stores[warp.index];
            clock.learn_lanes(actors.store_of(first), lanes, &stores.reads_finished(now));
            clock.learn_lanes(actors.store_writes_of(first), lanes, &stores.writes_finished(now));
        }
        if actors.warpgroups > 0 {
            let finished = self.products_finished(warp, now);
            clock.learn(actors.warpgroup(warp.index as u32 / 4), finished);
        }
        if self.machine.program.uses_async_proxy {
            for lane in (0..32).filter(|lane| lanes >> lane & 1 != 0) {
                clock.learn_fenced(first + lane, warp.fenced[lane as usize]);
                if actors.copies > 0 {
                    clock.learn_fenced(actors.copy_of(first + lane), warp.fenced_copies[lane as usize]);
                }
            }
        }
    }

    /// Lets those who wait at a complete barrier go on, all knowing the same.
    pub(crate) fn release(&mut self, rank: usize, id: u8, warps: &mut [Warp]) {
        let barrier = std::mem::take(&mut self.barriers[rank][usize::from(id)]);
        let Some(mut clock) = barrier.clock else { return };
        let waiting = barrier.who.iter().filter(|(_, _, waits)| *waits);
        for &(warp, _, _) in waiting.clone() {
            self.publish(&mut clock, &warps[warp], FULL);
        }
        let clock = Rc::new(clock);
        let epoch = self.next_epoch();
        for &(warp, _, _) in waiting {
            let warp = &mut warps[warp];
            warp.learn(FULL, clock.clone());
            warp.epoch = epoch;
            warp.state = State::Ready;
        }
    }

    /// `bar.warp.sync`: the named lanes learn what each of them has done.
    pub(crate) fn sync_lanes(&mut self, warp: &mut Warp, pc: u32, members: u32) {
        self.check_members(warp, pc, members, "bar.warp.sync");
        let lanes = members & warp.active;
        let mut clock = warp.joined(lanes);
        self.publish(&mut clock, warp, lanes);
        warp.learn(lanes, Rc::new(clock));
        warp.epoch = self.next_epoch();
    }

    /// Finds lanes that an exchange names and that are not there, or that execute it unnamed.
    #[inline(always)]
    pub(crate) fn check_members(&mut self, warp: &Warp, pc: u32, members: u32, name: &'static str) {
        if members != warp.active {
            self.wrong_members(warp, pc, members, name);
        }
    }

    #[cold]
    fn wrong_members(&mut self, warp: &Warp, pc: u32, members: u32, name: &'static str) {
        let (missing, unnamed) = (members & !warp.active, warp.active & !members);
        self.report(FindingKind::MissingLanes, pc, |cluster| {
            let message = if missing != 0 {
                format!("`{name}` names lanes {missing:#010x}, which are not there: their branch is elsewhere")
            } else {
                format!("`{name}` is executed by lanes {unnamed:#010x}, which its member mask does not name")
            };
            let mut details = Details::new(message, cluster.actor(warp.index, warp.active));
            details.help = Some("move it out of the divergent branch, or make the condition the same in all lanes");
            details
        });
    }

    /// Once no warp can go on: whether that is the end, or who waits for what.
    pub(crate) fn judge_end(&mut self, warps: &[Warp]) {
        if self.findings.is_livelocked() {
            return;
        }
        let waits = |warp: &Warp| match warp.state {
            State::AtBarrier { id, pc } => Some((warp.index, pc, At::Barrier(id))),
            State::Blocked(wait) => Some((warp.index, warp.pc, At::Elsewhere(wait))),
            State::Ready | State::Done => None,
        };
        let waiting: Vec<(usize, u32, At)> = warps.iter().filter_map(waits).collect();
        let Some(&(first, pc, at)) = waiting.first() else {
            self.judge_registers(warps);
            self.judge_lifetimes();
            return;
        };
        let lacks_bytes = |w: &&(usize, u32, At)| match w.2 {
            At::Elsewhere(Wait::Phase { mbarrier, .. }) => self.lacks_bytes(mbarrier),
            _ => false,
        };
        let (kind, (first, pc)) = if let Some(w) = waiting.iter().find(lacks_bytes) {
            (FindingKind::TransactionBytes, (w.0, w.1))
        } else if matches!(at, At::Barrier(_)) && waiting.iter().all(|w| w.2 == at) && waiting.len() < warps.len() {
            (FindingKind::BarrierMismatch, (first, pc))
        } else {
            (FindingKind::Deadlock, (first, pc))
        };
        let machine = self.machine;
        let describe = |&(warp, pc, at): &(usize, u32, At)| {
            let (name, line) = (self.warp_name(warp), line_of(machine, pc));
            match at {
                At::Barrier(id) => {
                    let barrier = &self.barriers[warps[warp].rank][usize::from(id)];
                    format!(
                        "{name} waits at barrier {id} ({line}; {} of {} threads came)",
                        barrier.arrived, barrier.expected
                    )
                }
                At::Elsewhere(Wait::Phase { mbarrier, parity }) => {
                    format!("{name} waits {} ({line})", self.describe_phase(mbarrier, parity))
                }
                At::Elsewhere(Wait::Cluster) => format!("{name} waits at the cluster's barrier ({line})"),
                At::Elsewhere(Wait::Warpgroup) => {
                    format!("{name} waits for a product that not all warps of its warpgroup have come to ({line})")
                }
                At::Elsewhere(Wait::Registers { needed }) => format!(
                    "{name} waits for {needed} registers, of which the block's pool has {} ({line})",
                    self.registers[warps[warp].rank]
                ),
            }
        };
        let mut parts: Vec<String> = waiting.iter().map(describe).collect();
        let done: Vec<String> = warps
            .iter()
            .filter(|warp| warp.state == State::Done)
            .map(|warp| warp.index.to_string())
            .collect();
        if !done.is_empty() {
            parts.push(format!("warps {} have ended", done.join(", ")));
        }
        let message = format!("nobody can go on: {}", parts.join("; "));
        let other = waiting.iter().find(|w| w.1 != pc).copied();
        let key = Key {
            kind,
            pc,
            other: other.map(|w| w.1),
        };
        let help = match at {
            _ if kind == FindingKind::TransactionBytes => {
                "announce exactly the bytes that copies bring in each phase: whole boxes, in every block that they go to"
            }
            At::Barrier(_) => "each warp that a barrier counts must come to it, the same number of times",
            At::Elsewhere(Wait::Phase { .. }) => {
                "compare the arrivals that the mbarrier was made with to those that come in a phase, and the parity that is \
                 waited for to the phase it is in"
            }
            At::Elsewhere(_) => "look at what the others wait for",
        };
        let (actor, other) = (self.actor(first, FULL), other.map(|w| self.actor(w.0, FULL)));
        self.findings.report(machine, key, || Details {
            other,
            help: Some(help),
            ..Details::new(message, actor)
        });
    }
}

/// Where a warp waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Barrier(u8),
    Elsewhere(Wait),
}

fn line_of(machine: &Machine<'_>, pc: u32) -> String {
    machine
        .kernel
        .kernel_line(machine.program.sites[pc as usize])
        .to_string()
}
