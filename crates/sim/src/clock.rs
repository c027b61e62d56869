//! Vector clocks: who knows of whose accesses.
//!
//! An **actor** is whatever accesses memory on its own: each thread of the block, and each thread's
//! asynchronous copies. Its accesses carry an **epoch**, and a clock holds for every actor the epoch
//! up to which its owner knows of them: an access is ordered before the owner's next one if and only
//! if the clock says so.
//!
//! Epochs are drawn from one counter a block, so they compare across actors. That gives the fast
//! path: what is no newer than the oldest epoch in a clock (its *floor*) is known, whoever did it.

/// Something that accesses memory on its own: thread `t` of the block is actor `t`; the copies it
/// starts are actor `threads + t`.
pub(crate) type ActorId = u32;

/// When an actor accessed memory, in its own time.
pub(crate) type Epoch = u32;

/// Who did the last write of a cell, kept in the low bits of its [`Stamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriterKind {
    Thread = 0,
    Agent = 1,
    Atomic = 2,
}

/// Epoch and kind of a write in one word that compares like the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(pub(crate) u32);

impl Stamp {
    /// Nobody has written. Later than everything, so that no clock covers it.
    pub(crate) const NEVER: Stamp = Stamp(u32::MAX);

    #[inline(always)]
    pub(crate) fn new(epoch: Epoch, kind: WriterKind) -> Stamp {
        Stamp(epoch << 2 | kind as u32)
    }

    #[inline(always)]
    pub(crate) fn epoch(self) -> Epoch {
        self.0 >> 2
    }

    #[inline(always)]
    pub(crate) fn is_agent(self) -> bool {
        self.0 & 3 == WriterKind::Agent as u32
    }

    #[inline(always)]
    pub(crate) fn is_atomic(self) -> bool {
        self.0 & 3 == WriterKind::Atomic as u32
    }
}

/// Stamps up to which everything is known: one compare decides for most accesses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    threads: u32,
    agents: u32,
    /// Newest epoch at which every thread's accesses are known.
    pub(crate) epoch: Epoch,
}

impl Limits {
    #[inline(always)]
    pub(crate) fn cover(&self, stamp: u32) -> bool {
        let limit = if stamp & 3 == WriterKind::Agent as u32 {
            self.agents
        } else {
            self.threads
        };
        stamp <= limit
    }

    /// The lower of the two.
    pub(crate) fn meet(self, other: Limits) -> Limits {
        Limits {
            threads: self.threads.min(other.threads),
            agents: self.agents.min(other.agents),
            epoch: self.epoch.min(other.epoch),
        }
    }
}

/// What somebody knows of every actor.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    known: Vec<Epoch>,
    threads: usize,
}

impl Clock {
    /// Knows everything up to `epoch`, of `threads` threads and as many agents if there are any.
    pub(crate) fn new(threads: usize, agents: bool, epoch: Epoch) -> Clock {
        let actors = if agents { 2 * threads } else { threads };
        Clock {
            known: vec![epoch; actors],
            threads,
        }
    }

    #[inline(always)]
    pub(crate) fn knows(&self, actor: ActorId, epoch: Epoch) -> bool {
        self.known[actor as usize] >= epoch
    }

    /// Lanes of a warp whose accesses at `epoch` are not known.
    #[inline(always)]
    pub(crate) fn unknown_lanes(&self, warp: usize, epoch: Epoch) -> u32 {
        let mut lanes = 0;
        for (lane, known) in self.known[32 * warp..32 * warp + 32].iter().enumerate() {
            lanes |= ((*known < epoch) as u32) << lane;
        }
        lanes
    }

    /// Learns all that `other` knows.
    pub(crate) fn join(&mut self, other: &Clock) {
        for (mine, theirs) in self.known.iter_mut().zip(&other.known) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Learns of the named lanes of a warp up to `epoch`.
    pub(crate) fn learn_threads(&mut self, warp: usize, lanes: u32, epoch: Epoch) {
        for lane in 0..32 {
            if lanes >> lane & 1 != 0 {
                let known = &mut self.known[32 * warp + lane];
                *known = (*known).max(epoch);
            }
        }
    }

    /// Learns of the named lanes' asynchronous copies up to an epoch each.
    pub(crate) fn learn_agents(&mut self, warp: usize, lanes: u32, epochs: &[Epoch; 32]) {
        if self.known.len() == self.threads {
            return;
        }
        for lane in 0..32 {
            if lanes >> lane & 1 != 0 {
                let known = &mut self.known[self.threads + 32 * warp + lane];
                *known = (*known).max(epochs[lane]);
            }
        }
    }

    /// What is known whoever did it.
    pub(crate) fn limits(&self) -> Limits {
        let (threads, agents) = self.known.split_at(self.threads);
        let floor = |known: &[Epoch]| known.iter().copied().min().unwrap_or(u32::MAX >> 2);
        let epoch = floor(threads);
        Limits {
            threads: epoch << 2 | 3,
            agents: floor(agents) << 2 | 3,
            epoch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knowledge_is_learned_and_joined() {
        let mut a = Clock::new(64, true, 3);
        assert!(a.knows(5, 3) && !a.knows(5, 4));
        a.learn_threads(0, 0b10_0000, 9);
        assert!(a.knows(5, 9) && !a.knows(4, 4));
        assert_eq!(a.unknown_lanes(0, 4), !0b10_0000);
        let mut b = Clock::new(64, true, 3);
        b.learn_agents(1, 1, &[7; 32]);
        a.join(&b);
        assert!(a.knows(5, 9) && a.knows(64 + 32, 7) && !a.knows(64 + 33, 7));
    }

    #[test]
    fn limits_cover_what_everybody_is_known_to_have_done() {
        let mut clock = Clock::new(32, true, 3);
        clock.learn_threads(0, u32::MAX, 8);
        let limits = clock.limits();
        assert!(limits.cover(Stamp::new(8, WriterKind::Thread).0));
        assert!(limits.cover(Stamp::new(8, WriterKind::Atomic).0));
        assert!(!limits.cover(Stamp::new(9, WriterKind::Thread).0));
        assert!(limits.cover(Stamp::new(3, WriterKind::Agent).0));
        assert!(!limits.cover(Stamp::new(4, WriterKind::Agent).0));
        assert!(!limits.cover(Stamp::NEVER.0));
    }
}
