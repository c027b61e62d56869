//! Named barriers: who has come, who waits, what they teach each other.

use std::rc::Rc;

use crate::block::Block;
use crate::clock::Clock;
use crate::finding::FindingKind;
use crate::machine::Machine;
use crate::record::{Details, Key};
use crate::registers::FULL;
use crate::warp::{State, Warp};

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

impl Block<'_> {
    /// A warp comes to a barrier. Returns whether that completes it.
    pub(crate) fn arrive(&mut self, warp: &mut Warp, pc: u32, id: u8, threads: u32, waits: bool) -> bool {
        if warp.active != FULL {
            let missing = !warp.active;
            self.report(FindingKind::MissingLanes, pc, |block| {
                let message = format!(
                    "a barrier must be executed by all lanes of the warp together; lanes {missing:#010x} are not there"
                );
                Details::new(message, block.actor(warp.index, warp.active))
            });
        }
        let barrier = &self.barriers[usize::from(id)];
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
        if let Some(&(_, earlier, _)) = self.barriers[usize::from(id)].who.iter().find(|w| w.0 == warp.index) {
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
                        warp.index
                    ),
                    actor,
                )
            });
        }
        // What the warp knows goes into the barrier now; who only arrives goes on to do things that
        // those who wait must not learn of.
        let mut knowledge = warp.joined(FULL);
        if !waits {
            self.publish(&mut knowledge, warp.index);
            warp.epoch = self.next_epoch();
        }
        let barrier = &mut self.barriers[usize::from(id)];
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

    /// Adds to a clock all that a warp has done up to now, and its finished copies.
    pub(crate) fn publish(&self, clock: &mut Clock, warp: usize) {
        clock.learn_threads(warp, FULL, self.epoch);
        clock.learn_agents(warp, FULL, &self.copies[warp].finished(self.epoch));
    }

    /// Lets those who wait at a complete barrier go on, all knowing the same.
    pub(crate) fn release(&mut self, id: u8, warps: &mut [Warp]) {
        let barrier = std::mem::take(&mut self.barriers[usize::from(id)]);
        let Some(mut clock) = barrier.clock else { return };
        let waiting = barrier.who.iter().filter(|(_, _, waits)| *waits);
        for &(warp, _, _) in waiting.clone() {
            self.publish(&mut clock, warp);
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
        clock.learn_threads(warp.index, lanes, self.epoch);
        clock.learn_agents(warp.index, lanes, &self.copies[warp.index].finished(self.epoch));
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
        self.report(FindingKind::MissingLanes, pc, |block| {
            let message = if missing != 0 {
                format!("`{name}` names lanes {missing:#010x}, which are not there: their branch is elsewhere")
            } else {
                format!("`{name}` is executed by lanes {unnamed:#010x}, which its member mask does not name")
            };
            let mut details = Details::new(message, block.actor(warp.index, warp.active));
            details.help = Some("move it out of the divergent branch, or make the condition the same in all lanes");
            details
        });
    }

    /// Once no warp can go on: whether that is the end, or who waits for what.
    pub(crate) fn judge_end(&mut self, warps: &[Warp]) {
        if self.findings.is_livelocked() {
            return;
        }
        let waiting: Vec<(usize, u8, u32)> = warps
            .iter()
            .filter_map(|warp| match warp.state {
                State::AtBarrier { id, pc } => Some((warp.index, id, pc)),
                State::Ready | State::Done => None,
            })
            .collect();
        let Some(&(first, id, pc)) = waiting.first() else {
            return;
        };
        let kind = if waiting.iter().all(|w| w.1 == id) && waiting.len() < warps.len() {
            FindingKind::BarrierMismatch
        } else {
            FindingKind::Deadlock
        };
        let machine = self.machine;
        let describe = |&(warp, id, pc): &(usize, u8, u32)| {
            let barrier = &self.barriers[usize::from(id)];
            format!(
                "warp {warp} waits at barrier {id} ({}; {} of {} threads came)",
                line_of(machine, pc),
                barrier.arrived,
                barrier.expected
            )
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
        let other = waiting.iter().find(|w| w.2 != pc).copied();
        let key = Key {
            kind,
            pc,
            other: other.map(|w| w.2),
        };
        let (actor, other) = (self.actor(first, FULL), other.map(|w| self.actor(w.0, FULL)));
        self.findings.report(machine, key, || Details {
            other,
            help: Some("each warp that a barrier counts must come to it, the same number of times"),
            ..Details::new(message, actor)
        });
    }
}

fn line_of(machine: &Machine<'_>, pc: u32) -> String {
    machine
        .kernel
        .kernel_line(machine.program.sites[pc as usize])
        .to_string()
}
