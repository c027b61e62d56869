//! Flags: words of global memory by which threads order their accesses, at gpu scope.
//!
//! A word carries clocks with its value. A release (`st.release`, `red.release`, or an atomic
//! after a fence) adds the releasing thread's clock, and an acquire (`ld.acquire`, or a fence after
//! an atomic) joins what the word carries. Atomics keep what it carried before, as a release
//! sequence does; stores replace it.

use std::rc::Rc;

use crate::clock::{Clock, Clocks, Stamp, join_clocks};
use crate::cluster::Cluster;
use crate::global::{PAGE, Place};
use crate::program::At;
use crate::registers::lanes;
use crate::text::cold::Update;
use crate::warp::Warp;

/// By lane: clocks that a fence brings.
pub(crate) type ByLane = [Option<Rc<Clocks>>; 32];

/// By lane, for a warp's fences at gpu scope.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    /// The clock at the last fence, which later atomics release.
    pub(crate) released: ByLane,
    /// What the words of atomics since then carried, which the next fence acquires.
    pub(crate) seen: ByLane,
    /// The same within the block, for words of shared memory and fences of any scope.
    pub(crate) released_here: [Option<Rc<Clock>>; 32],
    pub(crate) seen_here: [Option<Rc<Clock>>; 32],
}

impl Cluster<'_> {
    /// Adds four values of a lane to the words from its address on.
    pub(crate) fn add_four(&mut self, warp: &mut Warp, pc: u32, at: At, base: &[u64; 32], values: &[[u32; 32]; 4]) {
        let (offsets, mask) = self.global_offsets(warp, pc, base, at, 16);
        self.count_strong(pc, &offsets, mask, 16);
        let region = self.region(at.object);
        for lane in lanes(mask) {
            for (i, value) in values.iter().enumerate() {
                let offset = offsets[lane] + 4 * i as u64;
                if self.machine.communicates {
                    let carried = self.carried((region.slot, offset));
                    let released = warp.fences.released[lane].clone();
                    self.carry((region.slot, offset), carried, released);
                }
                let added = [value[lane].into(), 0];
                self.update_word(warp.lane(pc, lane), Update::ADD_F32, region, offset, added);
            }
        }
    }

    /// `fence.acq_rel.gpu`.
    pub(crate) fn fence_gpu(&mut self, warp: &mut Warp) {
        if !self.machine.communicates {
            return;
        }
        for lane in lanes(warp.active) {
            if let Some(seen) = warp.fences.seen[lane].take() {
                self.acquire(warp, 1 << lane, &seen);
            }
        }
        for lane in lanes(warp.active) {
            warp.fences.released[lane] = Some(self.now(warp, lane));
        }
        warp.epoch = self.next_epoch();
    }

    /// What a release by a lane adds now: its clock, with its own accesses.
    pub(crate) fn now(&self, warp: &Warp, lane: usize) -> Rc<Clocks> {
        let mut clock = warp.joined(1 << lane);
        self.publish(&mut clock, warp, 1 << lane);
        clock.released(self.linear)
    }

    /// Joins clocks to those of some lanes.
    pub(crate) fn acquire(&self, warp: &mut Warp, lanes: u32, carried: &Rc<Clocks>) {
        let own = self.linear;
        // A loop that waits acquires the same again and again.
        if !warp
            .knowledge_of(lanes)
            .all(|part| part.clock.has_acquired(own, carried))
        {
            warp.learn_each(lanes, |clock| clock.acquire(own, carried));
        }
    }

    /// The clocks that a word carries; none once a plain store has replaced it.
    pub(crate) fn carried(&mut self, place: Place) -> Option<Rc<Clocks>> {
        let carried = self.global.flags.get(&place)?.clone();
        let unit = self.global.unit;
        let cell = &self.global.page(place.0, place.1).cells[place.1 as usize % PAGE / unit];
        cell.stamp().is_some_and(Stamp::is_atomic).then_some(carried)
    }

    /// Lets a word carry the clocks of a release sequence and of a release.
    pub(crate) fn carry(&mut self, place: Place, sequence: Option<Rc<Clocks>>, released: Option<Rc<Clocks>>) {
        let mut carried = sequence.unwrap_or_default();
        if let Some(released) = released {
            join_clocks(&mut carried, &released);
        }
        if carried.is_empty() {
            _ = self.global.flags.remove(&place)
        } else {
            _ = self.global.flags.insert(place, carried)
        }
    }
}
