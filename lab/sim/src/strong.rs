//! Volatile, relaxed, acquiring and releasing accesses, and atomic operations.
//!
//! A strong access orders nothing by itself: a fence before a strong write, and one after a strong read of it, do. So
//! do a release and an acquire.

use std::rc::Rc;

use flashcore_ir::types::Reg;

use crate::access::{bits, set};
use crate::atomic::changed;
use crate::clock::{ActorId, Clock, Stamp, WriterKind, join_clocks};
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::flags::{ByLane, Fences};
use crate::global::{AtomicRecord, PAGE};
use crate::interpreter::Stop;
use crate::machine::Region;
use crate::program::{At, Op};
use crate::record::Details;
use crate::registers::lanes;
use crate::shadow::{Pattern, SharedAccess};
use crate::shared_memory::POISON;
use crate::text::cold::{Access, Atomic, Change, Cold, Memory, Strength, Update, What};
use crate::warp::{Lane, Warp};

impl Cluster<'_> {
    /// A strong store to global memory by the active lanes, of so many bytes each.
    pub(crate) fn strong_store(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        (size, strength): (u32, Strength),
        at: At,
        addresses: &[u64; 32],
        values: &[u64; 32],
    ) {
        let (offsets, mask) = self.global_offsets(warp, pc, addresses, at, size);
        self.count_strong(pc, &offsets, mask, size);
        let region = self.region(at.object);
        for lane in lanes(mask) {
            let released = match strength {
                Strength::Release => Some(self.now(warp, lane)),
                _ => warp.fences.released[lane].clone(),
            };
            self.carry((region.slot, offsets[lane]), None, released);
            let (by, data) = (warp.lane(pc, lane), values[lane].to_le_bytes());
            let written = &data[..size as usize];
            self.write_lane(by, region, offsets[lane], written, (WriterKind::Atomic, by.thread()));
        }
        if strength == Strength::Release {
            warp.epoch = self.next_epoch();
        }
    }

    /// A strong load likewise. Returns false if the warp must retry.
    pub(crate) fn strong_load(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        (size, strength): (u32, Strength),
        at: At,
        addresses: &[u64; 32],
        reg: Reg,
    ) -> bool {
        let (offsets, mask) = self.global_offsets(warp, pc, addresses, at, size);
        let region = self.region(at.object);
        // Lanes of own kernels do not part.
        warp.polls += u32::from(self.machine.is_foreign);
        let mut loaded = [0u64; 32];
        // Neighbouring lanes mostly load one word, and learn the same.
        let mut acquired: Option<(u64, u32)> = None;
        for lane in lanes(mask) {
            let (by, offset, mut raw) = (warp.lane(pc, lane), offsets[lane], [0; 8]);
            let bytes = &mut raw[..size as usize];
            if region.overlaid {
                self.read_lane(by, region, offset, bytes, true);
            } else {
                let first = offset as usize;
                bytes.copy_from_slice(&self.global.base[region.slot][first..first + size as usize]);
            }
            loaded[lane] = u64::from_le_bytes(raw);
            let place = (region.slot, offset);
            self.observe(warp.lane(pc, lane), place);
            if strength == Strength::Acquire {
                match &mut acquired {
                    Some((known, by)) if *known == offset => *by |= 1 << lane,
                    _ => {
                        self.acquire_word(warp, region, acquired.take());
                        acquired = Some((offset, 1 << lane));
                    }
                }
            } else if let Some(carried) = region.overlaid.then(|| self.carried(place)).flatten() {
                join_clocks(warp.fences.seen[lane].get_or_insert_default(), &carried);
            }
        }
        self.acquire_word(warp, region, acquired);
        set(self.machine, warp, reg, warp.active, &loaded);
        let retries = self.spins(warp, pc, region.slot, (&offsets, mask));
        if !retries {
            self.count_strong(pc, &offsets, mask, size);
        }
        !retries
    }

    /// Some lanes acquire what a word carries.
    fn acquire_word(&mut self, warp: &mut Warp, region: &Region, word: Option<(u64, u32)>) {
        let Some((offset, lanes)) = word.filter(|_| region.overlaid) else {
            return;
        };
        if let Some(carried) = self.carried((region.slot, offset)) {
            self.acquire(warp, lanes, &carried);
        }
    }

    /// Warps of a kernel of another compiler wait at a barrier together: what one has seen of flags, the fences of all
    /// acquire, and what the fences of all released, the flags of each carry (the last block of a reduction).
    pub(crate) fn share_seen(&self, warps: &mut [Warp], waiting: impl Iterator<Item = usize> + Clone) {
        if !self.machine.is_foreign || !self.machine.communicates {
            return;
        }
        let parts: [fn(&mut Fences) -> &mut ByLane; 2] = [|fences| &mut fences.seen, |fences| &mut fences.released];
        for of in parts {
            let (mut all, mut last) = (Rc::default(), None);
            for warp in waiting.clone() {
                for clocks in of(&mut warps[warp].fences).iter().flatten() {
                    // Mostly those of one barrier before.
                    if last != Some(Rc::as_ptr(clocks)) {
                        join_clocks(&mut all, clocks);
                    }
                    last = Some(Rc::as_ptr(clocks));
                }
            }
            if !all.is_empty() {
                let shared = || std::array::from_fn(|_| Some(all.clone()));
                waiting.clone().for_each(|warp| *of(&mut warps[warp].fences) = shared());
            }
        }
    }

    /// A fence for words of shared memory.
    #[inline(always)]
    pub(crate) fn fence_here(&mut self, warp: &mut Warp) {
        if self.machine.program.orders_here {
            self.fence_words(warp);
        }
    }

    #[inline(never)]
    fn fence_words(&mut self, warp: &mut Warp) {
        for lane in lanes(warp.active) {
            if let Some(seen) = warp.fences.seen_here[lane].take() {
                warp.learn_each(1 << lane, |clock| clock.join(&seen));
            }
        }
        for lane in lanes(warp.active) {
            warp.fences.released_here[lane] = Some(Rc::new(self.clock_of(warp, lane)));
        }
        warp.epoch = self.next_epoch();
    }

    /// What a lane knows, with its own accesses.
    pub(crate) fn clock_of(&self, warp: &Warp, lane: usize) -> Clock {
        let mut clock = warp.joined(1 << lane);
        self.publish(&mut clock, warp, 1 << lane);
        clock
    }

    /// A lane has read a word of shared memory, by a strong access.
    fn see_word(&mut self, warp: &mut Warp, lane: usize, offset: u32, acquires: bool) {
        let Some(released) = self.words_released.get(&offset).cloned() else {
            return;
        };
        if acquires {
            warp.learn_each(1 << lane, |clock| clock.join(&released));
            return;
        }
        warp.see_here(1 << lane, &released);
    }

    /// A lane has written a word of shared memory, by a strong access; an atomic operation keeps what it carried.
    fn release_word(&mut self, warp: &Warp, lane: usize, offset: u32, releases: bool, keeps: bool) {
        let mut released = if releases {
            Some(Rc::new(self.clock_of(warp, lane)))
        } else {
            warp.fences.released_here[lane].clone()
        };
        if keeps && let Some(before) = self.words_released.get(&offset) {
            match &mut released {
                Some(released) => Rc::make_mut(released).join(before),
                released => *released = Some(before.clone()),
            }
        }
        match released {
            Some(released) => _ = self.words_released.insert(offset, released),
            None => _ = self.words_released.remove(&offset),
        }
    }

    /// Whether a strong store of another lane of a warp wrote a cell of shared memory last.
    fn is_by_lane(&self, warp: &Warp, lane: usize, cell: usize) -> bool {
        let (writer, pc) = self.shadow.writer(cell);
        let me = 32 * warp.index + lane;
        let what = match self.machine.program.ops[pc as usize] {
            Op::Cold(cold) => Some(&cold.what),
            _ => None,
        };
        writer as usize / 32 == warp.index && writer as usize != me && matches!(what, Some(What::Access(_)))
    }

    /// A strong access to shared memory by the active lanes.
    pub(crate) fn strong_shared(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        (cold, access): (&Cold, &Access),
        at: At,
        addresses: &[u32; 32],
    ) {
        let mut found = self.shared_access(warp, pc, warp.active, addresses, at, access.size);
        self.count_strong_shared(warp.index, &found);
        if at.remote {
            self.note_remotes(warp, &found, access.writes);
        }
        let (mask, is_wide) = (found.mask, access.size == 8);
        if access.writes {
            self.check_writes(warp, &found, WriterKind::Atomic, 0);
            let actor = (WriterKind::Atomic, 32 * warp.index as ActorId);
            self.shadow.write(&warp.who(pc), &found, Pattern::Scattered, actor);
            let values = bits(self.machine, warp, cold.reads[1]);
            for lane in lanes(mask) {
                let (offset, word) = (found.offsets[lane], found.offsets[lane] as usize / 4);
                self.words[word] = values[lane] as u32;
                if is_wide {
                    self.words[word + 1] = (values[lane] >> 32) as u32;
                }
                self.release_word(warp, lane, offset, access.strength == Strength::Release, false);
            }
            if access.strength == Strength::Release {
                warp.epoch = self.next_epoch();
            }
            return;
        }
        warp.polls += 1;
        // Strong writes do not race with it, but for those of other lanes of its warp where it does not poll.
        let is_plain = |lane: &usize| {
            let mut cells = self.shadow.cells(&found, *lane);
            cells
                .any(|cell| !self.shadow.stamp(cell).is_atomic() || !access.polls && self.is_by_lane(warp, *lane, cell))
        };
        found.mask = lanes(mask).filter(is_plain).fold(0, |all, lane| all | 1 << lane);
        self.check_reads(warp, &found, false);
        let mut value = [0u64; 32];
        for lane in lanes(mask) {
            let word = found.offsets[lane] as usize / 4;
            let high = if is_wide { self.words[word + 1] } else { 0 };
            value[lane] = u64::from(self.words[word]) | u64::from(high) << 32;
            self.see_word(warp, lane, found.offsets[lane], access.strength == Strength::Acquire);
        }
        set(self.machine, warp, cold.writes[0], warp.active, &value);
    }

    /// An atomic operation, a lane after the other.
    pub(crate) fn atomic(&mut self, warp: &mut Warp, pc: u32, cold: &Cold, atomic: &Atomic) -> Option<Stop> {
        let machine = self.machine;
        let access = &atomic.access;
        let (addresses, kinds) = self.addresses(warp, cold, access);
        let value = |at: usize| {
            cold.reads
                .get(at)
                .map_or([0; 32], |operand| bits(machine, warp, *operand))
        };
        let values = [value(1), value(2)];
        let all = warp.active;
        let mut old = [0; 32];
        // Lanes of own kernels do not part.
        warp.polls += u32::from(machine.is_foreign && !cold.writes.is_empty());
        for (memory, mask) in kinds.into_iter().filter(|(_, mask)| *mask != 0) {
            match memory {
                Memory::Global => {
                    for (object, mask) in self.buffers(warp, pc, &addresses, mask, access.object) {
                        warp.active = mask;
                        let at = At::start(object);
                        let done = self.atomic_in(
                            warp,
                            pc,
                            (atomic, !cold.writes.is_empty()),
                            at,
                            &addresses,
                            &values,
                            &mut old,
                        );
                        warp.active = all;
                        if !done {
                            warp.pc = pc;
                            return Some(Stop::SliceEnd);
                        }
                    }
                }
                Memory::Shared => {
                    let blocks = self.blocks_of(&addresses, mask, access.object);
                    for (at, mask) in blocks.into_iter().filter(|(_, lanes)| *lanes != 0) {
                        warp.active = mask;
                        self.atomic_here(warp, pc, atomic, at, &addresses, &values, &mut old);
                    }
                    warp.active = all;
                }
                Memory::Local | Memory::Generic => {
                    self.report(FindingKind::OutOfBounds, pc, None, |cluster| {
                        let message = "an atomic operation on local memory, which has none".to_string();
                        Details::new(message, cluster.actor(warp.index, mask))
                    });
                }
            }
        }
        if let Some(&dst) = cold.writes.first() {
            set(machine, warp, dst, all, &old);
        }
        None
    }

    #[allow(clippy::too_many_arguments)]
    fn atomic_in(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        (atomic, reads): (&Atomic, bool),
        at: At,
        addresses: &[u64; 32],
        values: &[[u64; 32]; 2],
        old: &mut [u64; 32],
    ) -> bool {
        let (offsets, mask) = self.global_offsets(warp, pc, addresses, at, atomic.access.size);
        let region = self.region(at.object);
        let releases = atomic.access.strength == Strength::Release;
        for lane in lanes(mask) {
            let place = (region.slot, offsets[lane]);
            if self.machine.communicates {
                let carried = self.carried(place);
                if let Some(carried) = carried.as_ref().filter(|_| reads) {
                    match atomic.access.strength {
                        Strength::Acquire | Strength::Release => self.acquire(warp, 1 << lane, carried),
                        _ => join_clocks(warp.fences.seen[lane].get_or_insert_default(), carried),
                    }
                }
                let released = if releases {
                    Some(self.now(warp, lane))
                } else {
                    warp.fences.released[lane].clone()
                };
                self.carry(place, carried, released);
            }
            let (by, values) = (warp.lane(pc, lane), values.map(|value| value[lane]));
            old[lane] = self.update_word(by, atomic.update, region, offsets[lane], values);
            if reads {
                self.observe(warp.lane(pc, lane), place);
            }
        }
        if releases {
            warp.epoch = self.next_epoch();
        }
        let retries = reads && self.spins(warp, pc, region.slot, (&offsets, mask));
        if !retries {
            self.count_strong(pc, &offsets, mask, atomic.access.size);
        }
        !retries
    }

    /// Changes a lane's word and returns the old one. Deferred until all blocks have finished if they do not
    /// communicate.
    pub(crate) fn update_word(
        &mut self,
        by: Lane<'_>,
        update: Update,
        region: &Region,
        offset: u64,
        values: [u64; 2],
    ) -> u64 {
        let slot = region.slot;
        if !self.machine.communicates {
            self.atomics.push(AtomicRecord {
                slot,
                offset,
                update,
                value: values[0],
                pc: by.pc,
            });
            return POISON.into();
        }
        let (within, mut raw) = (offset as usize % PAGE, [0; 8]);
        let bytes = &mut raw[..update.size as usize];
        bytes.copy_from_slice(&self.global.page(slot, offset).data[within..within + bytes.len()]);
        if self.machine.is_foreign && self.machine.uninitialized[slot] && update.change != Change::Exchange {
            // For what it finds: the word that is changed is read first.
            self.read_lane(by, region, offset, bytes, true);
        }
        let old = u64::from_le_bytes(raw);
        let new = changed(update, old, values, true).to_le_bytes();
        let written = &new[..update.size as usize];
        self.write_lane(by, region, offset, written, (WriterKind::Atomic, by.thread()));
        old
    }

    #[allow(clippy::too_many_arguments)]
    fn atomic_here(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        atomic: &Atomic,
        at: At,
        addresses: &[u64; 32],
        values: &[[u64; 32]; 2],
        old: &mut [u64; 32],
    ) {
        let narrow = addresses.map(|address| address as u32);
        let mut found: SharedAccess = self.shared_access(warp, pc, warp.active, &narrow, at, atomic.access.size);
        self.count_strong_shared(warp.index, &found);
        if at.remote {
            self.note_remotes(warp, &found, true);
        }
        if self.machine.is_foreign && atomic.update.change != Change::Exchange {
            let mask = found.mask;
            let is_new = |lane: &usize| {
                let mut cells = self.shadow.cells(&found, *lane);
                cells.any(|cell| self.shadow.stamp(cell) == Stamp::NEVER)
            };
            found.mask = lanes(mask).filter(is_new).fold(0, |all, lane| all | 1 << lane);
            self.check_reads(warp, &found, false);
            found.mask = mask;
        }
        self.check_writes(warp, &found, WriterKind::Atomic, 0);
        let actor = (WriterKind::Atomic, 32 * warp.index as ActorId);
        self.shadow.write(&warp.who(pc), &found, Pattern::Scattered, actor);
        if self.machine.communicates {
            self.global.changes += 1;
        }
        for lane in lanes(found.mask) {
            let word = found.offsets[lane] as usize / 4;
            let high = if atomic.access.size == 8 {
                self.words[word + 1]
            } else {
                0
            };
            // Of a word of 32 bits it may be a half.
            let shift = if atomic.access.size == 2 {
                8 * (found.offsets[lane] % 4)
            } else {
                0
            };
            let kept = if atomic.access.size == 2 { !(0xffff << shift) } else { 0 };
            old[lane] = (u64::from(self.words[word] & !kept) | u64::from(high) << 32) >> shift;
            let new = changed(atomic.update, old[lane], values.map(|value| value[lane]), false);
            self.words[word] = self.words[word] & kept | (new as u32) << shift & !kept;
            let (offset, strength) = (found.offsets[lane], atomic.access.strength);
            self.see_word(
                warp,
                lane,
                offset,
                matches!(strength, Strength::Acquire | Strength::Release),
            );
            self.release_word(warp, lane, offset, strength == Strength::Release, true);
            if atomic.access.size == 8 {
                self.words[word + 1] = (new >> 32) as u32;
            }
        }
    }

    /// `trap` by some lanes.
    pub(crate) fn trap(&mut self, warp: &Warp, pc: u32, lanes: u32) {
        self.report(FindingKind::Trap, pc, None, |cluster| {
            Details::new("executes a trap", cluster.actor(warp.index, lanes))
        });
    }
}

impl Warp {
    /// What some lanes will know of the block after a fence.
    pub(crate) fn see_here(&mut self, mask: u32, released: &Rc<Clock>) {
        for lane in lanes(mask) {
            match &mut self.fences.seen_here[lane] {
                Some(seen) => Rc::make_mut(seen).join(released),
                seen => *seen = Some(released.clone()),
            }
        }
    }
}
