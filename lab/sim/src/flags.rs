//! Flags: words of global memory by which threads order their accesses, at gpu scope.
//!
//! A word carries clocks with its value. A release (`st.release`, `red.release`, or an atomic
//! after a fence) adds the releasing thread's clock, and an acquire (`ld.acquire`, or a fence after
//! an atomic) joins what the word carries. Atomics keep what it carried before, as a release
//! sequence does; stores replace it.

use std::rc::Rc;

use flashcore_ir::ScalarType;
use flashcore_ir::inst::{AtomOp, FlagInst, Space};

use crate::clock::{Clock, Clocks, Stamp, join_clocks};
use crate::cluster::Cluster;
use crate::global::{PAGE, Place};
use crate::program::{At, Row};
use crate::registers::lanes;
use crate::shared_memory::POISON;
use crate::text::cold::Strength;
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

/// What an atomic does, other than to change its word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Relaxed,
    Release,
}

impl Cluster<'_> {
    /// Returns false if the warp must retry.
    pub(crate) fn flag(&mut self, warp: &mut Warp, pc: u32, inst: &FlagInst) -> bool {
        match *inst {
            FlagInst::LoadAcquire { dst, ref addr } => {
                let base = warp.value(self.machine, addr.base);
                let row = self.machine.program.rows.row(dst);
                return self.strong_load(
                    warp,
                    pc,
                    (4, Strength::Acquire),
                    At::of(addr, Space::Global),
                    &base,
                    row,
                );
            }
            FlagInst::StoreRelease { ref addr, value, .. } => {
                let base = warp.value(self.machine, addr.base);
                let values = warp.value::<u32>(self.machine, value).map(u64::from);
                let at = At::of(addr, Space::Global);
                self.strong_store(warp, pc, (4, Strength::Release), at, &base, &values);
            }
            FlagInst::Add {
                release,
                ty,
                ref addr,
                value,
            } => {
                let (base, value) = (warp.value(self.machine, addr.base), warp.value(self.machine, value));
                let at = At::of(addr, Space::Global);
                let order = if release { Order::Release } else { Order::Relaxed };
                self.atomic_global(warp, pc, (AtomOp::Add, ty, order), at, (&base, &value), None);
            }
        }
        true
    }

    /// Applies an operation to a word per lane. The old words go to `dst`, if there is one. Returns
    /// false if the warp must retry.
    pub(crate) fn atomic_global(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        (op, ty, order): (AtomOp, ScalarType, Order),
        at: At,
        (base, value): (&[u64; 32], &[u32; 32]),
        dst: Option<Row>,
    ) -> bool {
        let (offsets, mask) = self.global_offsets(warp, pc, base, at, 4);
        let region = self.region(at.object);
        let mut old = [POISON; 32];
        for lane in lanes(mask) {
            let place = (region.slot, offsets[lane]);
            if self.machine.communicates {
                let carried = self.carried(place);
                if dst.is_some()
                    && let Some(carried) = &carried
                {
                    join_clocks(warp.fences.seen[lane].get_or_insert_default(), carried);
                }
                let released = match order {
                    Order::Relaxed => warp.fences.released[lane].clone(),
                    Order::Release => Some(self.now(warp, lane)),
                };
                self.carry(place, carried, released);
            }
            old[lane] = self.change_word(warp.lane(pc, lane), (op, ty), region, offsets[lane], value[lane]);
            if dst.is_some() {
                self.observe(warp.lane(pc, lane), place);
            }
        }
        if order == Order::Release {
            warp.epoch = self.next_epoch();
        }
        let retries = dst.is_some_and(|dst| {
            warp.registers.set(dst, warp.active, &old);
            self.spins(warp, pc, region.slot, (&offsets, mask))
        });
        if !retries {
            self.count_strong(pc, &offsets, mask, 4);
        }
        !retries
    }

    /// Adds four values of a lane to the words from its address on.
    pub(crate) fn add_four(&mut self, warp: &mut Warp, pc: u32, at: At, base: &[u64; 32], values: &[[u32; 32]; 4]) {
        let (offsets, mask) = self.global_offsets(warp, pc, base, at, 16);
        self.count_strong(pc, &offsets, mask, 16);
        let region = self.region(at.object);
        for lane in lanes(mask) {
            for (i, value) in values.iter().enumerate() {
                let (add, offset) = ((AtomOp::Add, ScalarType::F32), offsets[lane] + 4 * i as u64);
                if self.machine.communicates {
                    let carried = self.carried((region.slot, offset));
                    let released = warp.fences.released[lane].clone();
                    self.carry((region.slot, offset), carried, released);
                }
                self.change_word(warp.lane(pc, lane), add, region, offset, value[lane]);
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
        match carried.is_empty() {
            true => _ = self.global.flags.remove(&place),
            false => _ = self.global.flags.insert(place, carried),
        }
    }
}
