//! A warp: where it stands, what its registers hold, what its lanes know.

use std::rc::Rc;

use crate::clock::{Clock, Epoch, Limits};
use crate::machine::Machine;
use crate::registers::{FULL, Registers};
use crate::shadow::Who;

/// What to return to where a structure ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// Lanes that were active before it.
    pub(crate) before: u32,
    /// Lanes that have yet to take the other branch.
    pub(crate) other: u32,
}

/// Whether a warp can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// Waits at a barrier, since the operation at this place.
    AtBarrier {
        id: u8,
        pc: u32,
    },
    Done,
}

/// Lanes that know the same, and what they know.
#[derive(Clone, Debug)]
pub(crate) struct Knowledge {
    pub(crate) lanes: u32,
    pub(crate) clock: Rc<Clock>,
}

/// A warp of a running block.
#[derive(Debug)]
pub(crate) struct Warp {
    pub(crate) index: usize,
    pub(crate) pc: u32,
    pub(crate) active: u32,
    pub(crate) frames: Vec<Frame>,
    pub(crate) registers: Registers,
    /// Lanes that have written each tracked register.
    pub(crate) written: Vec<u32>,
    pub(crate) state: State,
    /// Instructions executed.
    pub(crate) executed: u64,
    /// Epoch of its accesses now.
    pub(crate) epoch: Epoch,
    knowledge: Vec<Knowledge>,
    limits: Limits,
}

impl Warp {
    pub(crate) fn new(machine: &Machine<'_>, index: usize, epoch: Epoch) -> Warp {
        let clock = Clock::new(machine.threads(), machine.program.uses_cp_async, epoch - 1);
        let limits = clock.limits();
        Warp {
            index,
            pc: 0,
            active: FULL,
            frames: Vec::new(),
            registers: Registers::new(&machine.program),
            written: vec![0; machine.program.tracked.len()],
            state: State::Ready,
            executed: 0,
            epoch,
            knowledge: vec![Knowledge {
                lanes: FULL,
                clock: Rc::new(clock),
            }],
            limits,
        }
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

    /// What a lane knows.
    pub(crate) fn clock(&self, lane: u32) -> &Clock {
        let group = self.knowledge.iter().find(|k| k.lanes >> lane & 1 != 0);
        &group.unwrap_or(&self.knowledge[0]).clock
    }

    /// All that the named lanes know, together.
    pub(crate) fn joined(&self, lanes: u32) -> Clock {
        let mut groups = self.knowledge.iter().filter(|k| k.lanes & lanes != 0);
        let mut clock = groups
            .next()
            .map_or_else(|| (*self.knowledge[0].clock).clone(), |k| (*k.clock).clone());
        for group in groups {
            clock.join(&group.clock);
        }
        clock
    }

    /// Gives the named lanes this knowledge instead of theirs.
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
