//! Mbarriers. A phase ends when all expected arrivals and announced bytes have arrived.
//!
//! An arrival contributes the clock of the arriving lanes. The bulk copies that complete at an
//! mbarrier are one actor; the end of a phase covers those that have landed. A lane that observes
//! the end of a phase joins this clock.

use std::rc::Rc;

use flashcore_ir::inst::{Address, Space};

use crate::clock::{Clock, Epoch};
use crate::cluster::Cluster;
use crate::finding::{Actor, FindingKind};
use crate::landing::InFlight;
use crate::program::{At, Row};
use crate::record::Details;
use crate::registers::lanes;
use crate::warp::{Lane, Wait, Warp};

#[derive(Debug, Default)]
pub(crate) struct Mbarrier {
    /// Arrivals per phase.
    expected: u32,
    /// Outstanding arrivals of the current phase.
    pending: u32,
    /// Bytes announced in the current phase minus bytes landed.
    tx: i64,
    pub(crate) phase: i64,
    /// Joined clock of the arrivals in the current phase.
    arrived: Option<Clock>,
    /// Clock at the end of the last phase.
    completed: Option<Clock>,
    /// Thread, epoch and operation of the initialisation.
    pub(crate) made_by: (u32, Epoch, u32),
    /// Whether its memory may be used in another way, or for a new one.
    pub(crate) invalid: bool,
    /// Whether the initialising thread has fenced it for copies and the cluster.
    pub(crate) fenced: bool,
    /// Newest bulk copy that has landed.
    landed: Epoch,
    /// Warps and lanes whose `cp.async` copies up to an epoch land with the current phase.
    tracked: Vec<(usize, usize, Epoch)>,
    last: Option<(Actor, u32)>,
    /// Who started the last copy.
    pub(crate) copier: Option<Actor>,
}

/// How each lane arrives.
pub(crate) struct Arrival {
    /// Bytes that it announces.
    pub(crate) tx: Option<[u32; 32]>,
    /// By lane: how many arrivals it is.
    pub(crate) counts: [u32; 32],
    /// Whether later phases expect so many fewer.
    pub(crate) drops: bool,
    /// Whether it may end the phase.
    pub(crate) ends: bool,
    /// Whether it passes on what its thread did, or what that did before its last fence.
    pub(crate) releases: bool,
}

impl Cluster<'_> {
    /// By lane: the number in the cluster of the mbarrier it names. Reports invalid addresses.
    pub(crate) fn mbarriers_of(&mut self, warp: &Warp, pc: u32, addr: &Address, space: Space) -> [Option<u32>; 32] {
        let base = warp.value(self.machine, addr.base);
        let access = self.shared_access(warp, pc, warp.active, &base, At::of(addr, space), 8);
        let mut numbers = [None; 32];
        for lane in lanes(access.mask) {
            numbers[lane] = self.mbarrier_number(access.at, access.offsets[lane]);
        }
        numbers
    }

    /// The number in the cluster of the mbarrier at a byte offset in the cluster's shared memory.
    pub(crate) fn mbarrier_number(&self, at: At, offset: u32) -> Option<u32> {
        let (rank, within) = (offset / self.machine.shared_bytes, offset % self.machine.shared_bytes);
        let within = within.checked_sub(self.shared_buffer(at).offset)?;
        let first = self.machine.mbarriers[usize::from(at.object)]?;
        Some(rank * self.machine.mbarriers_per_block as u32 + first + within / 8)
    }

    /// The name of an mbarrier in messages.
    pub(crate) fn mbarrier_name(&self, number: u32) -> String {
        let per_block = self.machine.mbarriers_per_block;
        let (rank, number) = (number as usize / per_block, number as usize % per_block);
        let name = self.machine.mbarrier_name(number);
        if self.machine.blocks > 1 {
            format!("{name} of the block of rank {rank}")
        } else {
            name
        }
    }

    /// By lane: the phase of the mbarrier that it names, and in the upper half the arrivals that are outstanding.
    pub(crate) fn mbarrier_states(&mut self, warp: &Warp, pc: u32, addr: &Address) -> [u64; 32] {
        let numbers = self.mbarriers_of(warp, pc, addr, Space::Shared);
        let state = |it: &Mbarrier| u64::from(it.phase as u32) | u64::from(it.pending) << 32;
        let state = |number: Option<u32>| self.mbarriers[number? as usize].as_ref().map(state);
        numbers.map(|number| state(number).unwrap_or(0))
    }

    pub(crate) fn mbarrier_init(&mut self, warp: &Warp, pc: u32, addr: &Address, arrivals: &[u32; 32]) {
        let numbers = self.mbarriers_of(warp, pc, addr, Space::Shared);
        for (lane, number) in numbers.into_iter().enumerate() {
            let Some(number) = number else { continue };
            // Phases of a new one count on, for what warps have waited for.
            let mut phase = 0;
            if let Some(old) = &self.mbarriers[number as usize].as_ref().filter(|old| old.invalid) {
                phase = (old.phase + 2) & !1;
            } else if let Some(old) = &self.mbarriers[number as usize] {
                let (first, what) = (old.made_by.2, "is initialised a second time");
                let help = "initialise each mbarrier once; its phases advance automatically";
                self.mbarrier_misuse(warp.lane(pc, lane), number, Some(first), what, help);
            }
            self.mbarriers[number as usize] = Some(Mbarrier {
                expected: arrivals[lane],
                pending: arrivals[lane],
                phase,
                made_by: (warp.lane(pc, lane).thread(), warp.epoch, pc),
                ..Mbarrier::default()
            });
        }
    }

    /// Whether a lane may use an mbarrier: its initialisation must be ordered before.
    pub(crate) fn usable(&mut self, by: Lane<'_>, number: u32) -> bool {
        let Some(mbarrier) = self.mbarriers[number as usize].as_ref().filter(|it| !it.invalid) else {
            let what = "is used before its initialisation";
            self.mbarrier_misuse(by, number, None, what, HELP_MAKE);
            return false;
        };
        let (maker, epoch, made_at) = mbarrier.made_by;
        if maker != by.thread() && !by.clock().knows(maker, epoch) {
            let what = "is used; nothing orders the use after its initialisation";
            self.mbarrier_misuse(by, number, Some(made_at), what, HELP_MAKE);
        }
        true
    }

    #[cold]
    fn mbarrier_misuse(&mut self, by: Lane<'_>, number: u32, other_pc: Option<u32>, what: &str, help: &'static str) {
        self.report(FindingKind::Mbarrier, by.pc, other_pc, |cluster| {
            let name = cluster.mbarrier_name(number);
            let maker = cluster.mbarriers[number as usize].as_ref().map(|m| m.made_by.0);
            let maker = maker.map(|thread| cluster.actor(thread as usize / 32, 1 << (thread % 32)));
            Details::new(format!("mbarrier {name} {what}"), cluster.lane_actor(by))
                .other(other_pc.and(maker))
                .object(name)
                .help(help)
        });
    }

    /// Arrives for each active lane, first announcing bytes if there are any.
    pub(crate) fn mbarrier_arrive(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        (addr, space): (&Address, Space),
        cluster: bool,
        arrival: &Arrival,
    ) {
        let numbers = self.mbarriers_of(warp, pc, addr, space);
        let cluster = cluster && arrival.releases;
        if space == Space::Cluster && !cluster {
            self.check_remote_release(warp, pc);
        }
        if cluster {
            warp.asynchronous.remote_store = None;
        }
        // The mbarrier whose phase this instruction has ended, if any.
        let mut ended = None;
        for (lane, number) in numbers.into_iter().enumerate() {
            let Some(number) = number else { continue };
            if !self.usable(warp.lane(pc, lane), number) {
                continue;
            }
            self.note_remote(warp, pc, 1 << lane, number as usize / self.machine.mbarriers_per_block);
            let clock = match &warp.fences.released_here[lane] {
                _ if arrival.releases => self.clock_of(warp, lane),
                Some(released) => released.as_ref().clone(),
                None => Clock::new(self.machine.actors, self.machine.program.uses_async_proxy, 0),
            };
            let actor = self.actor(warp.index, 1 << lane);
            let Some(mbarrier) = &mut self.mbarriers[number as usize] else {
                continue;
            };
            if let Some(bytes) = arrival.tx {
                mbarrier.tx += i64::from(bytes[lane]);
            }
            clock.join_to(&mut mbarrier.arrived);
            let (phase, expected, count) = (mbarrier.phase, mbarrier.expected, arrival.counts[lane]);
            if mbarrier.pending < count || mbarrier.pending == 0 {
                let last = mbarrier.last;
                self.too_many_arrivals(pc, number, actor, last, phase, expected);
                continue;
            }
            mbarrier.pending -= count;
            mbarrier.expected -= if arrival.drops { count } else { 0 };
            if mbarrier.pending == 0 && !arrival.ends {
                let help =
                    "let another arrival end the phase: what this one does then is undefined (PTX ISA, `mbarrier`)";
                let what = "is completed by `arrive.noComplete`";
                self.mbarrier_misuse(warp.lane(pc, lane), number, None, what, help);
            }
            let Some(mbarrier) = &mut self.mbarriers[number as usize] else {
                continue;
            };
            let last = mbarrier.last.replace((actor, pc));
            if self.end_phase(number) {
                // Two lanes of one instruction ended two phases. No thread can have waited for the
                // first.
                if ended == Some(number) {
                    self.too_many_arrivals(pc, number, actor, last, phase - 1, expected);
                }
                ended = Some(number);
            }
        }
        warp.epoch = self.next_epoch();
    }

    /// Makes the copies that each active lane has started part of the phase, of which they are an arrival if `counts`.
    /// They order what their thread knew, and not what it wrote itself.
    pub(crate) fn mbarrier_copies(&mut self, warp: &mut Warp, pc: u32, addr: &Address, counts: bool) {
        let numbers = self.mbarriers_of(warp, pc, addr, Space::Shared);
        for (lane, number) in numbers.into_iter().enumerate() {
            let Some(number) = number.filter(|&number| self.usable(warp.lane(pc, lane), number)) else {
                continue;
            };
            let actor = self.actor(warp.index, 1 << lane);
            let Some(mbarrier) = &mut self.mbarriers[number as usize] else {
                continue;
            };
            warp.joined(1 << lane).join_to(&mut mbarrier.arrived);
            if counts && mbarrier.pending == 0 {
                let (last, phase, expected) = (mbarrier.last, mbarrier.phase, mbarrier.expected);
                self.too_many_arrivals(pc, number, actor, last, phase, expected);
                continue;
            }
            mbarrier.tracked.push((warp.index, lane, warp.epoch));
            if counts {
                mbarrier.pending -= 1;
                mbarrier.last = Some((actor, pc));
                self.end_phase(number);
            }
        }
        warp.epoch = self.next_epoch();
    }

    #[cold]
    fn too_many_arrivals(
        &mut self,
        pc: u32,
        number: u32,
        actor: Actor,
        last: Option<(Actor, u32)>,
        phase: i64,
        expected: u32,
    ) {
        self.report(FindingKind::Mbarrier, pc, last.map(|(_, pc)| pc), |cluster| {
            let name = cluster.mbarrier_name(number);
            let message =
                format!("arrives at mbarrier {name} too often: phase {phase} already has its {expected} arrivals");
            Details::new(message, actor)
                .other(last.map(|(actor, _)| actor))
                .object(name)
                .help("initialise the mbarrier with the number of arrivals per phase, and arrive once per phase")
        });
    }

    /// Announces bytes without arriving, or counts them as landed.
    pub(crate) fn mbarrier_bytes(
        &mut self,
        warp: &Warp,
        pc: u32,
        (addr, space): (&Address, Space),
        bytes: &[u32; 32],
        come: bool,
    ) {
        let numbers = self.mbarriers_of(warp, pc, addr, space);
        for (lane, number) in numbers.into_iter().enumerate() {
            let Some(number) = number.filter(|&number| self.usable(warp.lane(pc, lane), number)) else {
                continue;
            };
            self.note_remote(warp, pc, 1 << lane, number as usize / self.machine.mbarriers_per_block);
            if come {
                self.complete_bytes(number, bytes[lane], 0);
            } else if let Some(mbarrier) = &mut self.mbarriers[number as usize] {
                mbarrier.tx += i64::from(bytes[lane]);
            }
        }
    }

    pub(crate) fn complete_bytes(&mut self, number: u32, bytes: u32, epoch: Epoch) {
        if let Some(mbarrier) = &mut self.mbarriers[number as usize] {
            mbarrier.tx -= i64::from(bytes);
            mbarrier.landed = mbarrier.landed.max(epoch);
        }
        self.end_phase(number);
    }

    /// Ends the current phase if no arrival and no byte is outstanding; returns whether it does.
    fn end_phase(&mut self, number: u32) -> bool {
        let actor = self.machine.actors.mbarrier(number);
        let mbarrier = self.mbarriers[number as usize].as_mut();
        let Some(mbarrier) = mbarrier.filter(|m| m.pending == 0 && m.tx == 0) else {
            return false;
        };
        let phase = mbarrier.phase;
        mbarrier.completed = mbarrier.arrived.take();
        if let Some(clock) = &mut mbarrier.completed {
            clock.learn(actor, mbarrier.landed);
            clock.learn_fenced(actor, mbarrier.landed);
            for &(warp, lane, epoch) in &mbarrier.tracked {
                if self.machine.actors.copies > 0 {
                    clock.learn(self.machine.actors.copy_of((32 * warp + lane) as u32), epoch);
                }
                self.copies[warp].land(lane, epoch, &mut self.words);
            }
        }
        mbarrier.tracked.clear();
        mbarrier.phase += 1;
        mbarrier.pending = mbarrier.expected;
        self.woken = true;
        self.check_announced(number, phase);
        true
    }

    /// Reports copies of a phase that did not land before its end.
    fn check_announced(&mut self, number: u32, phase: i64) {
        let is_late = |copy: &&InFlight| copy.mbarrier == number && copy.phase == phase;
        let mut late = self.in_flight.iter().filter(is_late);
        let Some(first) = late.next() else { return };
        let (actor, pc) = (first.actor, first.pc);
        let bytes = first.bytes() + late.map(InFlight::bytes).sum::<u32>();
        self.report(FindingKind::TransactionBytes, pc, None, |cluster| {
            let name = cluster.mbarrier_name(number);
            let message = format!(
                "phase {phase} of mbarrier {name} ends before {bytes} bytes of its copies have landed: too few \
                 bytes were announced"
            );
            Details::new(message, actor)
                .object(name)
                .help("announce all bytes of all copies of a phase, including zero-filled tails")
        });
    }

    /// Tests whether a phase has ended. Returns false if a blocking test must retry.
    pub(crate) fn mbarrier_test(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        d: Row,
        addr: &Address,
        parities: &[u32; 32],
        [blocking, acquires]: [bool; 2],
    ) -> bool {
        let numbers = self.mbarriers_of(warp, pc, addr, Space::Shared);
        let mut ended = 0;
        if let Some(lane) = lanes(warp.active).find(|&lane| parities[lane] > 1) {
            // PTX ISA, `mbarrier.test_wait`: "the valid values of phaseParity operand are 0 and 1".
            self.report(FindingKind::WrongPhase, pc, None, |cluster| {
                let message = format!("waits for a phase of parity {}; parity is 0 or 1", parities[lane]);
                Details::new(message, cluster.actor(warp.index, 1 << lane))
                    .help("use the lowest bit of the number of rounds through the ring")
            });
        }
        for (lane, number) in numbers.into_iter().enumerate() {
            let parity = parities[lane] & 1;
            let Some(number) = number.filter(|&number| self.usable(warp.lane(pc, lane), number)) else {
                // The error is reported; continue as if the parity were valid.
                ended |= 1 << lane;
                continue;
            };
            let Some(mbarrier) = &self.mbarriers[number as usize] else {
                continue;
            };
            if (mbarrier.phase & 1) as u32 != parity {
                ended |= 1 << lane;
            } else if blocking && warp.active >> lane & 1 != 0 && !warp.splits.has_turns() {
                let mbarrier = number;
                self.block(warp, pc, Wait::Phase { mbarrier, parity });
                return false;
            }
        }
        let ended = ended & warp.active;
        warp.registers.set_pred(d, warp.active, ended);
        let mut learned: Vec<(u32, u32)> = Vec::new();
        for lane in lanes(ended) {
            let Some(number) = numbers[lane] else { continue };
            match learned.iter_mut().find(|(known, _)| *known == number) {
                Some((_, lanes)) => *lanes |= 1 << lane,
                None => learned.push((number, 1 << lane)),
            }
        }
        for (number, lanes) in learned {
            if blocking {
                self.check_phase(warp, pc, number, lanes);
            }
            let mbarrier = self.mbarriers[number as usize].as_ref();
            if let Some(completed) = mbarrier.and_then(|m| m.completed.as_ref()) {
                if acquires {
                    warp.learn_each(lanes, |clock| clock.join(completed));
                } else {
                    warp.see_here(lanes, &Rc::new(completed.clone()));
                }
                warp.epoch = self.next_epoch();
            }
        }
        true
    }

    /// Reports a wait that passes at once because the warp has already waited for the phase.
    fn check_phase(&mut self, warp: &mut Warp, pc: u32, number: u32, lanes: u32) {
        let Some(mbarrier) = &self.mbarriers[number as usize] else {
            return;
        };
        let ended = mbarrier.phase - 1;
        // Lanes of other compilers' kernels may wait one after the other.
        let each = if self.machine.is_foreign { lanes } else { 1 };
        let mut again = None;
        for lane in crate::registers::lanes(each) {
            let before = warp.asynchronous.seen.insert((number, lane), (ended, pc));
            again = again.or(before.filter(|(seen, _)| *seen >= ended));
        }
        let Some((_, earlier)) = again else { return };
        self.report(FindingKind::WrongPhase, pc, Some(earlier), |cluster| {
            let name = cluster.mbarrier_name(number);
            let which = match ended {
                -1 => "because the phase before the first counts as ended".to_string(),
                n => format!("by the end of phase {n}"),
            };
            let message =
                format!("waits at mbarrier {name} and passes at once {which}, for which this warp has already waited");
            let actor = cluster.actor(warp.index, lanes);
            Details::new(message, actor)
                .other(actor)
                .object(name)
                .help("wait for the parity of the next phase: it flips at each round through the ring")
        });
    }

    /// The state of a phase for deadlock messages.
    pub(crate) fn describe_phase(&self, number: u32, parity: u32) -> String {
        let name = self.mbarrier_name(number);
        let Some(mbarrier) = &self.mbarriers[number as usize] else {
            return format!("at mbarrier {name}, which was never initialised");
        };
        let arrived = mbarrier.expected - mbarrier.pending;
        let bytes = match mbarrier.tx {
            0 => String::new(),
            tx if tx > 0 => format!(", {tx} announced bytes have not landed"),
            tx => format!(", {} more bytes have landed than were announced", -tx),
        };
        format!(
            "at mbarrier {name} for the end of a phase of parity {parity}; its phase {} (parity {}) has {arrived} \
             of {} arrivals{bytes}",
            mbarrier.phase,
            mbarrier.phase & 1,
            mbarrier.expected
        )
    }

    /// Whether an mbarrier has all arrivals and lacks only bytes.
    pub(crate) fn lacks_bytes(&self, number: u32) -> bool {
        let mbarrier = self.mbarriers[number as usize].as_ref();
        mbarrier.is_some_and(|m| m.pending == 0 && m.tx != 0)
    }
}

const HELP_MAKE: &str =
    "before the first use, let one thread execute `init` and `fence_mbarrier_init`, then a barrier for all users";
