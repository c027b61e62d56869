//! The paths of a warp's lanes. By the early policy those that parted at a jump wait for each other where their paths
//! meet. By the late one, which some schedules have, they go on by turns until an instruction needs them together:
//! since Volta a GPU promises no more (CUDA programming guide, "Independent Thread Scheduling").

use std::collections::VecDeque;

use crate::program::Jump;

/// Where lanes that parted meet, and which of them have come.
#[derive(Clone, Copy, Debug, Hash)]
struct Meeting {
    place: u32,
    /// The operation at which those that wait go on.
    pc: u32,
    waiting: u32,
    /// Paths to it that have yet to be executed: the last ones of [`Splits::pending`].
    pending: u32,
}

/// The lanes of a warp that are not active.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Splits {
    /// The innermost last.
    meetings: Vec<Meeting>,
    /// The next operation of a path, and its lanes.
    pending: Vec<(u32, u32)>,
    /// Whether lanes have gone on without those that they should have waited for.
    is_loose: bool,
    /// Lanes at a barrier that others have yet to come to: its operation.
    parked: Option<(u32, u32)>,
    late: Option<Late>,
}

/// The late policy.
#[derive(Clone, Debug, Hash)]
struct Late {
    /// Decides which paths go on first.
    seed: u64,
    /// The next operation of each path that is not executed now, and its lanes.
    paths: VecDeque<(u32, u32)>,
    /// Lanes at an instruction that needs others, too: its operation.
    waiting: Vec<(u32, u32)>,
}

impl Late {
    fn takes_turns(&self, pc: u32, lanes: u32) -> bool {
        // A multiplication mixes well enough (Knuth, "Multiplicative hashing").
        let mixed = (self.seed ^ u64::from(pc) << 32 ^ u64::from(lanes)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed >> 63 == 1
    }
}

/// A place that no lanes come to.
const NOWHERE: u32 = u32::MAX;

impl Splits {
    /// By the late policy if there is a seed for it.
    pub(crate) fn new(seed: Option<u64>) -> Splits {
        let late = seed.map(|seed| Late {
            seed,
            paths: VecDeque::new(),
            waiting: Vec::new(),
        });
        Splits {
            late,
            ..Splits::default()
        }
    }

    /// The path that has the next turn, by the late policy.
    #[cold]
    pub(crate) fn turn(&mut self, pc: u32, lanes: u32) -> (u32, u32) {
        match &mut self.late {
            Some(late) if !late.paths.is_empty() && late.takes_turns(pc, lanes) => {
                late.paths.push_back((pc, lanes));
                late.paths.pop_front().unwrap_or((pc, lanes))
            }
            _ => (pc, lanes),
        }
    }

    /// Whether other paths may go on by turns: what the active lanes wait for may be theirs to do.
    pub(crate) fn has_turns(&self) -> bool {
        self.late.as_ref().is_some_and(|late| !late.paths.is_empty())
    }

    /// By the late policy the path that goes on where lanes go back to `pc`: each gets its turn.
    #[inline(always)]
    pub(crate) fn other_turn(&mut self, pc: u32, lanes: u32) -> Option<(u32, u32)> {
        let late = self.late.as_mut().filter(|late| !late.paths.is_empty())?;
        late.paths.push_back((pc, lanes));
        late.paths.pop_front()
    }

    /// Lanes come to the operation `pc`, whose next one needs all of `needed`. Gives what is executed next: that one,
    /// once all are there or nothing else can go on.
    #[cold]
    pub(crate) fn gather(&mut self, pc: u32, lanes: u32, needed: u32) -> (u32, u32) {
        let Some(late) = &mut self.late else {
            return (pc + 1, lanes);
        };
        let mut together = lanes;
        late.waiting.retain(|(at, lanes)| {
            together |= if *at == pc { *lanes } else { 0 };
            *at != pc
        });
        if together & needed != needed
            && let Some(next) = late.paths.pop_front()
        {
            late.waiting.push((pc, together));
            return next;
        }
        (pc + 1, together)
    }

    /// Some lanes come to a place of the text, whose operation is `pc`. Gives what the warp executes next, and with
    /// which lanes.
    #[inline(always)]
    pub(crate) fn arrive(&mut self, place: u32, pc: u32, lanes: u32) -> (u32, u32) {
        match self.meetings.last_mut() {
            Some(meeting) if meeting.place == place => {
                meeting.waiting |= lanes;
                meeting.pc = pc;
                if meeting.pending > 0 {
                    meeting.pending -= 1;
                    return self.pending.pop().unwrap_or((pc, lanes));
                }
                let all = meeting.waiting;
                self.meetings.pop();
                (pc, all)
            }
            None if self.late.is_some() => self.turn(pc, lanes),
            _ => (pc, lanes),
        }
    }

    /// Whether lanes wait for those that are active.
    pub(crate) fn are_waiting(&self) -> bool {
        self.meetings.iter().any(|meeting| meeting.waiting != 0)
    }

    /// Lets lanes that wait for the active ones, which come to `pc` next, go on first: since Volta a GPU promises each
    /// thread that it gets on, and one that waits may hold what others ask for.
    #[cold]
    pub(crate) fn release(&mut self, pc: u32, active: u32) -> Option<(u32, u32)> {
        let last = self.meetings.iter().rposition(|meeting| meeting.waiting != 0)?;
        let meeting = self.meetings.remove(last);
        // Its paths, and those of the meetings in it, are no longer waited for.
        let loose = meeting.pending + 1;
        self.pending.push((pc, active));
        match self.meetings.last_mut() {
            Some(outer) => outer.pending += loose,
            None => self.meetings.push(Meeting {
                place: NOWHERE,
                pc: 0,
                waiting: 0,
                pending: loose,
            }),
        }
        self.is_loose = true;
        Some((meeting.pc, meeting.waiting))
    }

    /// Lanes come to a barrier, the operation `pc`, without all of those that live. After a release the others are let
    /// come, too. Gives what is executed next; none where the barrier is.
    #[cold]
    pub(crate) fn park(&mut self, pc: u32, active: u32, live: u32) -> Option<(u32, u32)> {
        if !self.is_loose {
            return None;
        }
        let together = match self.parked.take() {
            Some((at, lanes)) if at == pc => active | lanes,
            _ => active,
        };
        if together == live {
            self.is_loose = false;
            return Some((pc, together));
        }
        let next = self.next()?;
        self.parked = Some((pc, together));
        Some(next)
    }

    /// What the warp executes next where no lane goes on, and with which lanes; none where all have ended.
    #[cold]
    pub(crate) fn next(&mut self) -> Option<(u32, u32)> {
        if let Some(late) = &mut self.late {
            return late.paths.pop_front().or_else(|| late.waiting.pop());
        }
        loop {
            let meeting = self.meetings.last_mut()?;
            if meeting.pending > 0 {
                meeting.pending -= 1;
                return self.pending.pop();
            }
            let (pc, waiting) = (meeting.pc, meeting.waiting);
            self.meetings.pop();
            if waiting != 0 {
                return Some((pc, waiting));
            }
        }
    }

    /// Lanes part at a jump, before the operation `pc`: those that stay are first.
    pub(crate) fn part(&mut self, jump: &Jump, pc: u32, taken: u32, stays: u32) -> (u32, u32) {
        if let Some(late) = &mut self.late {
            let mut paths = [(pc, stays), (jump.target, taken)];
            if late.takes_turns(pc, taken) {
                paths.reverse();
            }
            late.paths.push_back(paths[1]);
            return paths[0];
        }
        if self.meetings.last().is_none_or(|meeting| meeting.place != jump.join) {
            self.meetings.push(Meeting {
                place: jump.join,
                pc,
                waiting: 0,
                pending: 0,
            });
        }
        let last = self.meetings.len() - 1;
        let meeting = &mut self.meetings[last];
        if jump.place == jump.join {
            meeting.waiting |= taken;
            meeting.pc = jump.target;
            (pc, stays)
        } else if jump.falls_to_join {
            meeting.waiting |= stays;
            meeting.pc = pc;
            (jump.target, taken)
        } else {
            meeting.pending += 1;
            self.pending.push((jump.target, taken));
            (pc, stays)
        }
    }
}
