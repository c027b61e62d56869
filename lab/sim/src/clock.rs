//! Vector clocks.
//!
//! An **actor** accesses memory independently of others: each thread of the cluster, and each kind
//! of asynchronous operation that threads start. Every access carries an **epoch**. A clock holds,
//! for each actor, the epoch up to which its owner is ordered after that actor. An access happens
//! before the owner's next access if and only if the clock covers its epoch.
//!
//! One counter per cluster issues all epochs, so they compare across actors. This gives the fast
//! path: every access up to the oldest epoch in a clock (its *floor*) is covered, whichever actor
//! made it.
//!
//! If the kernel uses the async proxy (bulk copies, warpgroup products), a clock also holds the
//! epoch up to which each actor's accesses are **fenced**. A fenced access is ordered through a
//! proxy fence, so the async proxy sees it.
//!
//! Where clusters communicate, a clock also holds clocks of other clusters. This part is sparse and
//! shared, since most threads of a cluster have the same.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;

use crate::registers::lanes;

/// An actor, by its number in the [`Actors`] of a cluster.
pub(crate) type ActorId = u32;

/// The actors of a cluster in numeric order: threads; their `cp.async` copies; shared-memory reads
/// of their bulk stores; global writes of their bulk stores; the products of each warpgroup; the
/// bulk copies of each mbarrier; and earlier launches. Kinds that a kernel does not use have no
/// numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Actors {
    pub(crate) threads: u32,
    /// 0, or the number of threads.
    pub(crate) copies: u32,
    /// 0, or the number of threads; for reads and for writes.
    pub(crate) stores: u32,
    pub(crate) warpgroups: u32,
    pub(crate) mbarriers: u32,
    /// 0 or 1.
    pub(crate) upstream: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActorKind {
    Thread(u32),
    Copy(u32),
    Store(u32),
    Warpgroup(u32),
    Mbarrier(u32),
    Upstream,
}

impl Actors {
    pub(crate) fn copy_of(&self, thread: u32) -> ActorId {
        self.threads + thread
    }
    pub(crate) fn store_of(&self, thread: u32) -> ActorId {
        self.threads + self.copies + thread
    }
    pub(crate) fn store_writes_of(&self, thread: u32) -> ActorId {
        self.threads + self.copies + self.stores + thread
    }
    pub(crate) fn warpgroup(&self, index: u32) -> ActorId {
        self.threads + self.copies + 2 * self.stores + index
    }
    pub(crate) fn mbarrier(&self, index: u32) -> ActorId {
        self.warpgroup(self.warpgroups) + index
    }
    pub(crate) fn upstream(&self) -> ActorId {
        self.mbarrier(self.mbarriers)
    }
    fn total(&self) -> usize {
        (self.upstream() + self.upstream) as usize
    }

    /// The kind of an actor. Copies and stores carry their thread's number.
    pub(crate) fn who(&self, actor: ActorId) -> ActorKind {
        let mut rest = actor;
        for (count, who) in [
            (self.threads, ActorKind::Thread as fn(u32) -> ActorKind),
            (self.copies, ActorKind::Copy),
            (self.stores, ActorKind::Store),
            (self.stores, ActorKind::Store),
            (self.warpgroups, ActorKind::Warpgroup),
            (self.mbarriers, ActorKind::Mbarrier),
        ] {
            if rest < count {
                return who(rest);
            }
            rest -= count;
        }
        ActorKind::Upstream
    }
}

/// Time of an access.
pub(crate) type Epoch = u32;

/// The kind of a cell's last writer, stored in the low bits of its [`Stamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriterKind {
    Thread = 0,
    /// A `cp.async` copy, or the global write of a bulk store.
    Agent = 1,
    Atomic = 2,
    /// A bulk copy into shared memory.
    Bulk = 3,
}

/// Epoch and kind of a write in one word that compares like the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(pub(crate) u32);

impl Stamp {
    /// Never written. Newer than everything, so no clock covers it.
    pub(crate) const NEVER: Stamp = Stamp(u32::MAX);

    #[inline(always)]
    pub(crate) fn new(epoch: Epoch, kind: WriterKind) -> Stamp {
        Stamp(epoch << 2 | kind as u32)
    }

    #[inline(always)]
    pub(crate) fn epoch(self) -> Epoch {
        self.0 >> 2
    }

    /// Whether an asynchronous operation wrote: the odd kinds.
    #[inline(always)]
    pub(crate) fn is_agent(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether the async proxy wrote, which needs no proxy fence.
    pub(crate) fn is_bulk(self) -> bool {
        self.0 & 3 == WriterKind::Bulk as u32
    }

    #[inline(always)]
    pub(crate) fn is_atomic(self) -> bool {
        self.0 & 3 == WriterKind::Atomic as u32
    }
}

/// Stamps up to which all accesses are covered. One compare decides most accesses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    threads: u32,
    agents: u32,
    /// Newest epoch up to which all reads of shared memory are covered.
    pub(crate) epoch: Epoch,
}

impl Limits {
    #[inline(always)]
    pub(crate) fn cover(&self, stamp: u32) -> bool {
        let limit = if stamp & 1 != 0 { self.agents } else { self.threads };
        stamp <= limit
    }

    /// The smaller limits of the two.
    pub(crate) fn meet(self, other: Limits) -> Limits {
        Limits {
            threads: self.threads.min(other.threads),
            agents: self.agents.min(other.agents),
            epoch: self.epoch.min(other.epoch),
        }
    }
}

/// What its owner is ordered after, per actor.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    known: Vec<Epoch>,
    /// The fenced epochs of each actor; empty if the kernel does not use the async proxy.
    fenced: Vec<Epoch>,
    actors: Actors,
    others: Rc<Clocks>,
}

/// By cluster: what is known of its actors. These clocks know no other clusters.
pub(crate) type Clocks = BTreeMap<u64, Rc<Clock>>;

/// Joins what is known of a cluster's actors.
fn join_cluster(clocks: &mut Clocks, cluster: u64, clock: &Rc<Clock>) {
    match clocks.entry(cluster) {
        Entry::Vacant(place) => _ = place.insert(clock.clone()),
        Entry::Occupied(mine) if mine.get().covers(clock) => {}
        Entry::Occupied(mut mine) if clock.covers(mine.get()) => _ = mine.insert(clock.clone()),
        Entry::Occupied(mut mine) => Rc::make_mut(mine.get_mut()).join(clock),
    }
}

/// Joins what is known of the actors of several clusters. One usually includes the other: then it
/// is shared.
pub(crate) fn join_clocks(mine: &mut Rc<Clocks>, theirs: &Rc<Clocks>) {
    if includes(mine, theirs) {
        return;
    }
    if includes(theirs, mine) {
        *mine = theirs.clone();
        return;
    }
    let mine = Rc::make_mut(mine);
    theirs
        .iter()
        .for_each(|(&cluster, clock)| join_cluster(mine, cluster, clock));
}

fn includes(all: &Clocks, some: &Clocks) -> bool {
    let mut rest = all.iter();
    std::ptr::eq(all, some)
        || some.iter().all(|(cluster, clock)| {
            let mine = rest.find(|(other, _)| *other >= cluster);
            mine.is_some_and(|(other, mine)| other == cluster && mine.covers(clock))
        })
}

impl Clock {
    /// A clock that covers every actor up to `epoch`.
    pub(crate) fn new(actors: Actors, async_proxy: bool, epoch: Epoch) -> Clock {
        let total = actors.total();
        Clock {
            known: vec![epoch; total],
            fenced: vec![epoch; if async_proxy { total } else { 0 }],
            actors,
            others: Rc::default(),
        }
    }

    /// What a thread of cluster `own` knows of the actors of `cluster`; `None` for nothing.
    #[inline(always)]
    pub(crate) fn of(&self, own: u64, cluster: u64) -> Option<&Clock> {
        if own == cluster {
            Some(self)
        } else {
            self.others.get(&cluster).map(Rc::as_ref)
        }
    }

    /// Whether this clock includes another one of the same cluster.
    fn covers(&self, other: &Clock) -> bool {
        let all = |mine: &[Epoch], theirs: &[Epoch]| mine.iter().zip(theirs).all(|(mine, theirs)| mine >= theirs);
        std::ptr::eq(self, other) || all(&self.known, &other.known) && all(&self.fenced, &other.fenced)
    }

    /// What a flag carries after a release by a thread of cluster `own` with this clock.
    pub(crate) fn released(mut self, own: u64) -> Rc<Clocks> {
        let mut clocks = std::mem::take(&mut self.others);
        join_cluster(Rc::make_mut(&mut clocks), own, &Rc::new(self));
        clocks
    }

    /// Whether a thread of cluster `own` with this clock has acquired these clocks.
    pub(crate) fn has_acquired(&self, own: u64, carried: &Clocks) -> bool {
        includes(&self.others, carried) && carried.get(&own).is_none_or(|clock| self.covers(clock))
    }

    /// Joins the clocks that a flag carries to that of a thread of cluster `own`.
    pub(crate) fn acquire(&mut self, own: u64, carried: &Rc<Clocks>) {
        join_clocks(&mut self.others, carried);
        if let Some(clock) = carried.get(&own) {
            self.join(clock);
        }
    }

    #[inline(always)]
    pub(crate) fn knows(&self, actor: ActorId, epoch: Epoch) -> bool {
        self.known[actor as usize] >= epoch
    }

    /// Whether the async proxy sees an actor's write.
    #[inline(always)]
    pub(crate) fn has_fenced(&self, actor: ActorId, epoch: Epoch) -> bool {
        self.fenced.get(actor as usize).is_some_and(|&fenced| fenced >= epoch)
    }

    /// Which of 32 actors from `first` have accesses at `epoch` that are not covered, one bit each.
    #[inline(always)]
    pub(crate) fn unknown_from(&self, first: ActorId, epoch: Epoch) -> u32 {
        let known = self.known[first as usize..].iter().take(32).enumerate();
        known.fold(0, |unknown, (i, &known)| unknown | ((known < epoch) as u32) << i)
    }

    pub(crate) fn join(&mut self, other: &Clock) {
        for (mine, theirs) in self.known.iter_mut().zip(&other.known) {
            *mine = (*mine).max(*theirs);
        }
        for (mine, theirs) in self.fenced.iter_mut().zip(&other.fenced) {
            *mine = (*mine).max(*theirs);
        }
        join_clocks(&mut self.others, &other.others);
    }

    /// Joins this clock to a sum of clocks.
    pub(crate) fn join_to(self, sum: &mut Option<Clock>) {
        match sum {
            Some(sum) => sum.join(&self),
            None => *sum = Some(self),
        }
    }

    /// A proxy fence: everything covered is fenced from now on.
    pub(crate) fn fence(&mut self) {
        for (fenced, known) in self.fenced.iter_mut().zip(&self.known) {
            *fenced = (*fenced).max(*known);
        }
    }

    /// Covers an actor up to `epoch`.
    pub(crate) fn learn(&mut self, actor: ActorId, epoch: Epoch) {
        let known = &mut self.known[actor as usize];
        *known = (*known).max(epoch);
    }

    /// Marks an actor's accesses up to `epoch` as fenced.
    pub(crate) fn learn_fenced(&mut self, actor: ActorId, epoch: Epoch) {
        if let Some(fenced) = self.fenced.get_mut(actor as usize) {
            *fenced = (*fenced).max(epoch);
        }
    }

    /// Covers 32 actors from `first`, each up to its epoch, for the lanes in `mask`.
    pub(crate) fn learn_lanes(&mut self, first: ActorId, mask: u32, epochs: &[Epoch; 32]) {
        for lane in lanes(mask) {
            self.learn(first + lane as u32, epochs[lane]);
        }
    }

    /// The limits of the fast path.
    pub(crate) fn limits(&self) -> Limits {
        let floor = |first: ActorId, count: u32| {
            let known = &self.known[first as usize..(first + count) as usize];
            // Without actors of a kind everything is covered, except what was never written.
            known.iter().copied().min().unwrap_or(u32::MAX >> 3)
        };
        let actors = &self.actors;
        let threads = floor(0, actors.threads);
        // Reads: threads, bulk stores and products. Writes: also both kinds of copies.
        let stores = floor(actors.store_of(0), actors.stores);
        let products = floor(actors.warpgroup(0), actors.warpgroups);
        let copies = floor(actors.copy_of(0), actors.copies).min(floor(actors.mbarrier(0), actors.mbarriers));
        Limits {
            threads: threads << 2 | 3,
            agents: copies << 2 | 3,
            epoch: threads.min(stores).min(products),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Actors {
        Actors {
            threads: 128,
            copies: 128,
            stores: 128,
            warpgroups: 1,
            mbarriers: 3,
            upstream: 1,
        }
    }

    fn with_copies(threads: u32) -> Actors {
        Actors {
            threads,
            copies: threads,
            ..Actors::default()
        }
    }

    #[test]
    fn actor_numbers_are_distinct() {
        let actors = everything();
        let numbers = [
            (5, ActorKind::Thread(5)),
            (actors.copy_of(5), ActorKind::Copy(5)),
            (actors.store_of(5), ActorKind::Store(5)),
            (actors.store_writes_of(127), ActorKind::Store(127)),
            (actors.warpgroup(0), ActorKind::Warpgroup(0)),
            (actors.mbarrier(2), ActorKind::Mbarrier(2)),
            (actors.upstream(), ActorKind::Upstream),
        ];
        for (number, who) in numbers {
            assert_eq!(actors.who(number), who);
        }
        assert_eq!(actors.total(), 4 * 128 + 1 + 3 + 1);
        assert_eq!(with_copies(64).who(70), ActorKind::Copy(6));
    }

    #[test]
    fn learn_and_join() {
        let mut a = Clock::new(with_copies(64), false, 3);
        assert!(a.knows(5, 3) && !a.knows(5, 4));
        a.learn_lanes(0, 0b10_0000, &[9; 32]);
        assert!(a.knows(5, 9) && !a.knows(4, 4));
        assert_eq!(a.unknown_from(0, 4), !0b10_0000);
        let mut b = Clock::new(with_copies(64), false, 3);
        b.learn_lanes(64 + 32, 1, &[7; 32]);
        a.join(&b);
        assert!(a.knows(5, 9) && a.knows(64 + 32, 7) && !a.knows(64 + 33, 7));
    }

    #[test]
    fn flags_carry_the_clocks_of_all_clusters_before() {
        let clock = || Clock::new(with_copies(32), false, 0);
        let (mut first, mut second, mut third) = (clock(), clock(), clock());
        first.learn(5, 9);
        let a = first.released(0);
        assert!(!second.has_acquired(1, &a));
        second.acquire(1, &a);
        second.learn(6, 4);
        assert!(second.has_acquired(1, &a));
        let b = second.released(1);
        third.join(&clock());
        assert!(third.of(2, 0).is_none());
        third.acquire(2, &b);
        let known = |of: u64, actor, epoch| third.of(2, of).is_some_and(|clock| clock.knows(actor, epoch));
        assert!(known(0, 5, 9) && !known(0, 5, 10) && known(1, 6, 4) && !known(1, 5, 1) && !known(2, 5, 1));
        // What comes back to its own cluster is known there.
        let mut again = clock();
        again.acquire(0, &b);
        assert!(again.knows(5, 9) && again.of(0, 1).is_some_and(|clock| clock.knows(6, 4)));
    }

    #[test]
    fn fences_apply_to_accesses_known_at_the_fence() {
        let mut clock = Clock::new(everything(), true, 3);
        clock.learn(7, 10);
        assert!(clock.knows(7, 10) && !clock.has_fenced(7, 10));
        clock.fence();
        clock.learn(7, 12);
        assert!(clock.has_fenced(7, 10) && !clock.has_fenced(7, 11));
        assert!(!Clock::new(everything(), false, 3).has_fenced(7, 1));
    }

    #[test]
    fn limits_are_the_oldest_known_epochs() {
        let mut clock = Clock::new(with_copies(32), false, 3);
        clock.learn_lanes(0, u32::MAX, &[8; 32]);
        let limits = clock.limits();
        assert!(limits.cover(Stamp::new(8, WriterKind::Thread).0));
        assert!(limits.cover(Stamp::new(8, WriterKind::Atomic).0));
        assert!(!limits.cover(Stamp::new(9, WriterKind::Thread).0));
        assert!(limits.cover(Stamp::new(3, WriterKind::Agent).0));
        assert!(!limits.cover(Stamp::new(4, WriterKind::Agent).0));
        assert!(!limits.cover(Stamp::new(4, WriterKind::Bulk).0));
        assert!(!limits.cover(Stamp::NEVER.0));
        let alone = Actors {
            threads: 32,
            ..Actors::default()
        };
        assert!(!Clock::new(alone, false, 3).limits().cover(Stamp::NEVER.0));

        // Reads are covered only up to the slowest reader.
        let mut clock = Clock::new(everything(), true, 3);
        for warp in 0..4 {
            clock.learn_lanes(32 * warp as u32, u32::MAX, &[8; 32]);
        }
        clock.learn(everything().warpgroup(0), 5);
        assert_eq!(clock.limits().epoch, 3);
        for warp in 0..4 {
            clock.learn_lanes(everything().store_of(32 * warp), u32::MAX, &[6; 32]);
        }
        assert_eq!(clock.limits().epoch, 5);
    }
}
