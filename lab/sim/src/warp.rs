//! A warp: position, registers, and clocks.

use std::rc::Rc;

use flashcore_ir::Operand;

use crate::async_state::{AsyncState, Fragment};
use crate::clock::{ActorId, Clock, Epoch, Limits};
use crate::flags::Fences;
use crate::global::Place;
use crate::machine::{Machine, RANK_SHIFT, SHARED_BASE};
use crate::registers::{FULL, Registers, Word};
use crate::resident::Visit;
use crate::shadow::Who;
use crate::splits::Splits;
use crate::undefined::Origin;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// Waits at a barrier of this number; its next operation is the one after.
    AtBarrier(u8),
    /// Cannot execute its next operation yet; retries after an event.
    Blocked(Wait),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The end of a phase; `mbarrier` is its number in the cluster.
    Phase {
        mbarrier: u32,
        parity: u32,
    },
    Cluster,
    /// Other warps of the warpgroup that have not issued a product.
    Warpgroup,
    Registers {
        needed: u32,
    },
    /// A change of a word of global memory.
    Change(Place),
}

/// Lanes that share one clock.
#[derive(Clone, Debug)]
pub(crate) struct Knowledge {
    pub(crate) lanes: u32,
    pub(crate) clock: Rc<Clock>,
}

/// Instructions of a loop that waits at a barrier in memory.
const POLLED: usize = 4;

/// A warp of a running block.
#[derive(Debug)]
pub(crate) struct Warp {
    pub(crate) index: usize,
    pub(crate) pc: u32,
    pub(crate) active: u32,
    /// Its lanes, and those that have not ended.
    pub(crate) born: u32,
    pub(crate) live: u32,
    /// The lanes before a guard.
    pub(crate) guarded: u32,
    /// Threads that give true, and false, to the next barrier; and those that gave it to the last one.
    pub(crate) given: [u32; 2],
    pub(crate) gathered: [u32; 2],
    /// The instructions that it executed, if that is recorded.
    pub(crate) path: Vec<u32>,
    /// How many it executed after those.
    pub(crate) unrecorded: u64,
    /// How often it asked for words that other threads change.
    pub(crate) polls: u32,
    /// The largest number of those that lanes exchanged last without a barrier of the block between them, if they are
    /// f32; zero from the second barrier after them.
    pub(crate) exchanged: f32,
    /// Whether it has passed a barrier since.
    pub(crate) exchanged_before: bool,
    /// Local memory, by lane.
    pub(crate) local: Vec<u8>,
    /// By its bytes: whether they hold what is defined.
    pub(crate) local_written: Vec<bool>,
    pub(crate) splits: Splits,
    pub(crate) registers: Registers,
    /// Lanes that have written each tracked register.
    pub(crate) written: Vec<u32>,
    /// By tracked register: where what is not defined in it comes from.
    pub(crate) origins: Vec<Origin>,
    pub(crate) state: State,
    pub(crate) executed: u64,
    /// Epoch of its current accesses.
    pub(crate) epoch: Epoch,
    pub(crate) rank: usize,
    /// Address of its block's shared memory minus `shared_first`.
    pub(crate) shared_start: u32,
    /// Byte offset of its block in the cluster's shared memory.
    pub(crate) shared_first: u32,
    /// By lane: epoch up to which its own writes are fenced for the async proxy.
    pub(crate) fenced: [Epoch; 32],
    /// By lane: the same for copies it has waited for.
    pub(crate) fenced_copies: [Epoch; 32],
    pub(crate) asynchronous: AsyncState,
    pub(crate) fences: Fences,
    pub(crate) visit: Visit,
    knowledge: Vec<Knowledge>,
    limits: Limits,
}

/// A lane that executes an operation.
#[derive(Clone, Copy)]
pub(crate) struct Lane<'w> {
    pub(crate) warp: &'w Warp,
    pub(crate) pc: u32,
    pub(crate) lane: usize,
}

impl<'w> Lane<'w> {
    /// The number of its thread, which is that of its actor.
    pub(crate) fn thread(self) -> ActorId {
        (32 * self.warp.index + self.lane) as ActorId
    }

    pub(crate) fn bit(self) -> u32 {
        1 << self.lane
    }

    pub(crate) fn clock(self) -> &'w Clock {
        self.warp.clock(self.lane as u32)
    }

    /// The value of an operand.
    pub(crate) fn value<T: Word>(self, machine: &Machine<'_>, operand: Operand) -> T {
        match operand {
            Operand::Reg(reg) => self.warp.registers.own::<T>(machine.program.rows.row(reg))[self.lane],
            Operand::Imm(bits) => T::from_bits(bits),
        }
    }
}

impl Warp {
    /// Adds an instruction to its path, where repeated tests of a barrier in memory are one.
    pub(crate) fn record(&mut self, number: u32, is_test: bool) {
        let first = self.path.len().saturating_sub(POLLED);
        let before = self.path[first..].iter().position(|&other| other == number);
        if let Some(before) = before.filter(|_| is_test) {
            self.path.truncate(first + before);
        }
        self.path.push(number);
    }

    pub(crate) fn new(machine: &Machine<'_>, index: usize, epoch: Epoch) -> Warp {
        let clock = Clock::new(machine.actors, machine.program.uses_async_proxy, epoch - 1);
        let rank = index / machine.warps_per_block();
        let shared_first = rank as u32 * machine.shared_bytes;
        let limits = clock.limits();
        // The last warp of a block may have fewer lanes.
        let threads = machine.kernel.threads() - 32 * (index % machine.warps_per_block()) as u32;
        let live = if threads < 32 { (1 << threads) - 1 } else { FULL };
        Warp {
            index,
            pc: 0,
            active: live,
            born: live,
            live,
            guarded: 0,
            given: [0; 2],
            gathered: [0; 2],
            path: Vec::new(),
            unrecorded: 0,
            polls: 0,
            local: vec![0xff; 32 * machine.local as usize],
            local_written: vec![false; 32 * machine.local as usize],
            splits: Splits::new(machine.is_late.then_some(machine.options.seed)),
            registers: Registers::new(&machine.program),
            written: vec![0; machine.program.tracked.len()],
            origins: (0..machine.program.tracked.len() as u32)
                .map(Origin::Register)
                .collect(),
            state: State::Ready,
            executed: 0,
            exchanged: 0.0,
            exchanged_before: false,
            epoch,
            rank,
            shared_start: ((rank as u32) << RANK_SHIFT) + SHARED_BASE - shared_first,
            shared_first,
            fenced: [0; 32],
            fenced_copies: [0; 32],
            asynchronous: AsyncState {
                fragments: vec![Fragment::default(); machine.program.fragments.len()],
                ..AsyncState::default()
            },
            fences: Fences::default(),
            visit: Visit::default(),
            knowledge: vec![Knowledge {
                lanes: FULL,
                clock: Rc::new(clock),
            }],
            limits,
        }
    }

    pub(crate) fn waits_for_change(&self) -> bool {
        matches!(self.state, State::Blocked(Wait::Change(_)))
    }

    /// Lets the warp look again at what it waits for, if that is a change of global memory.
    pub(crate) fn retry(&mut self) {
        if self.waits_for_change() {
            self.state = State::Ready;
        }
    }

    /// The value of an operand in each lane.
    pub(crate) fn value<T: Word>(&self, machine: &Machine<'_>, operand: Operand) -> [T; 32] {
        match operand {
            Operand::Reg(reg) => *self.registers.own(machine.program.rows.row(reg)),
            Operand::Imm(bits) => [T::from_bits(bits); 32],
        }
    }

    pub(crate) fn lane(&self, pc: u32, lane: usize) -> Lane<'_> {
        Lane { warp: self, pc, lane }
    }

    #[inline(always)]
    pub(crate) fn who(&self, pc: u32) -> Who {
        Who {
            warp: self.index,
            pc,
            epoch: self.epoch,
            limits: self.limits,
        }
    }

    pub(crate) fn clock(&self, lane: u32) -> &Clock {
        let group = self.knowledge.iter().find(|k| k.lanes >> lane & 1 != 0);
        &group.unwrap_or(&self.knowledge[0]).clock
    }

    /// The clocks of some lanes, one per group of lanes that share it.
    pub(crate) fn knowledge_of(&self, lanes: u32) -> impl Iterator<Item = &Knowledge> {
        self.knowledge.iter().filter(move |k| k.lanes & lanes != 0)
    }

    /// Changes the clocks of some lanes. Lanes that share a clock are changed together.
    pub(crate) fn learn_each(&mut self, lanes: u32, change: impl Fn(&mut Clock)) {
        let parts: Vec<Knowledge> = self.knowledge_of(lanes).cloned().collect();
        for part in parts {
            let mut clock = (*part.clock).clone();
            change(&mut clock);
            self.learn(part.lanes & lanes, Rc::new(clock));
        }
    }

    /// The joined clock of some lanes.
    pub(crate) fn joined(&self, lanes: u32) -> Clock {
        let mut groups = self.knowledge_of(lanes);
        let first = groups.next().unwrap_or(&self.knowledge[0]);
        let mut clock = (*first.clock).clone();
        groups.for_each(|group| clock.join(&group.clock));
        clock
    }

    /// Replaces the clocks of some lanes.
    pub(crate) fn learn(&mut self, lanes: u32, clock: Rc<Clock>) {
        for group in &mut self.knowledge {
            group.lanes &= !lanes;
        }
        self.knowledge.retain(|group| group.lanes != 0);
        self.knowledge.push(Knowledge { lanes, clock });
        let limits = self.knowledge.iter().map(|k| k.clock.limits());
        if let Some(limits) = limits.reduce(Limits::meet) {
            self.limits = limits;
        }
    }
}
