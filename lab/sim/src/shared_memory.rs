//! Loads and stores of shared memory.

use flashcore_ir::{BufferId, SharedBuffer};
use rustc_hash::FxHashMap;

use crate::clock::{ActorId, WriterKind};
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::machine::{RANK_SHIFT, SHARED_BASE};
use crate::program::{Access, At};
use crate::record::Details;
use crate::registers::lanes;
use crate::shadow::{Pattern, SharedAccess};
use crate::warp::Warp;

/// The value of a refused read.
pub(crate) const POISON: u32 = 0xffff_beef;

/// The most by which lanes' copies of one sum differ, as a part of the largest number that they exchanged: 2⁻¹⁸. Five
/// sums are rounded by less than 2⁻²¹.
const ROUNDED: f32 = 1.0 / 262_144.0;

/// The most by which they differ as a part of the larger of the two: 2⁻¹².
const APART: f32 = 1.0 / 4096.0;

/// The smallest number that may be such a sum, as a part of the largest one exchanged: 2⁻³⁰. Small whole numbers are
/// denormal as f32.
const LEAST: f32 = 1.0 / 1_073_741_824.0;

/// The bytes that a lane stores; zeros after them.
pub(crate) type Stored<'a> = &'a dyn Fn(usize) -> [u8; 16];

impl<'m> Cluster<'m> {
    pub(crate) fn shared_buffer(&self, at: At) -> &'m SharedBuffer {
        self.machine.kernel.ledger().get(BufferId(u32::from(at.object)))
    }

    /// The accesses at `base` that are in bounds and aligned. Reports the other lanes.
    #[inline(always)]
    pub(crate) fn shared_access(
        &mut self,
        warp: &Warp,
        pc: u32,
        mask: u32,
        base: &[u32; 32],
        at: At,
        bytes: u32,
    ) -> SharedAccess {
        let (mut offsets, mut good) = ([0; 32], 0);
        if at.remote {
            (offsets, good) = self.remote_offsets(mask, base, at, bytes);
        } else {
            let buffer = self.shared_buffer(at);
            let start = warp.shared_start.wrapping_sub(at.offset as u32);
            let first = buffer.offset + warp.shared_first;
            // A buffer smaller than one access has no valid offset.
            if let Some(last) = buffer.bytes.checked_sub(bytes) {
                for lane in 0..32 {
                    let offset = base[lane].wrapping_sub(start);
                    offsets[lane] = offset;
                    let within = offset.wrapping_sub(first) <= last;
                    good |= ((within & (offset & (bytes - 1) == 0)) as u32) << lane;
                }
            }
        }
        if mask & !good != 0 {
            self.refuse_shared(warp, pc, mask & !good, base, at, bytes);
        }
        SharedAccess {
            pc,
            at,
            bytes,
            mask: mask & good,
            offsets,
        }
    }

    /// Offsets and valid lanes of an access whose addresses have a block rank.
    #[inline(never)]
    fn remote_offsets(&self, mask: u32, base: &[u32; 32], at: At, bytes: u32) -> ([u32; 32], u32) {
        let buffer = self.shared_buffer(at);
        let (mut offsets, mut good) = ([0; 32], 0);
        for lane in lanes(mask) {
            let address = base[lane].wrapping_add(at.offset as u32);
            let rank = (address >> RANK_SHIFT) as usize;
            let within = (address & ((1 << RANK_SHIFT) - 1)).wrapping_sub(SHARED_BASE);
            let inside = within >= buffer.offset && within.wrapping_add(bytes) <= buffer.offset + buffer.bytes;
            if rank < self.machine.blocks && inside && within & (bytes - 1) == 0 {
                offsets[lane] = within + rank as u32 * self.machine.shared_bytes;
                good |= 1 << lane;
            }
        }
        (offsets, good)
    }

    /// Records accesses to other blocks' memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_remotes(&mut self, warp: &mut Warp, access: &SharedAccess, writes: bool) {
        for lane in lanes(access.mask) {
            let rank = (access.offsets[lane] / self.machine.shared_bytes) as usize;
            self.note_remote(warp, access.pc, 1 << lane, rank);
            if writes && rank != warp.rank {
                warp.asynchronous.remote_store = Some(access.pc);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse_shared(&mut self, warp: &Warp, pc: u32, lanes: u32, base: &[u32; 32], at: At, bytes: u32) {
        let buffer = self.shared_buffer(at);
        let lane = lanes.trailing_zeros() as usize & 31;
        let address = base[lane].wrapping_add(at.offset as u32);
        let own = warp.shared_start.wrapping_add(warp.shared_first);
        // Valid addresses of other blocks have the same form as local ones.
        let offset = if at.remote {
            i64::from(address & ((1 << RANK_SHIFT) - 1)) - i64::from(SHARED_BASE)
        } else {
            i64::from(address.wrapping_sub(own) as i32)
        };
        let first = offset - i64::from(buffer.offset);
        let end = first + i64::from(bytes);
        let element = first.div_euclid(i64::from(buffer.element.bytes()));
        let details = |cluster: &Self, message: String| {
            Details::new(message, cluster.actor(warp.index, lanes))
                .object(buffer.name.clone())
                .bytes((first, end))
                .element(vec![element])
        };
        if first < 0 || end > i64::from(buffer.bytes) {
            self.report(FindingKind::OutOfBounds, pc, None, |cluster| {
                let ledger = cluster.machine.kernel.ledger();
                let neighbour = u32::try_from(offset)
                    .ok()
                    .and_then(|offset| ledger.at(offset).next())
                    .map_or("outside all buffers".to_string(), |other| format!("in `{}`", other.name));
                let message = format!(
                    "access to bytes {first}..{end} of shared buffer `{}` (element {element}), which has {} bytes; that \
                     is {neighbour}",
                    buffer.name, buffer.bytes
                );
                details(cluster, message)
            });
        } else {
            self.report(FindingKind::Misaligned, pc, None, |cluster| {
                let message = format!(
                    "access of {bytes} bytes to byte {first} of shared buffer `{}`, at address {}, which is not a \
                     multiple of {bytes}",
                    buffer.name,
                    offset + i64::from(SHARED_BASE)
                );
                details(cluster, message).help("pad rows so that they stay aligned, or use narrower accesses")
            });
        }
    }

    #[inline(always)]
    pub(crate) fn load_shared(&mut self, warp: &mut Warp, pc: u32, load: Access<'_>) {
        let base = *warp.registers.get(&self.machine.constants, load.base);
        let active = warp.active;
        let access = self.shared_access(warp, pc, active, &base, load.at, load.bytes());
        if access.mask == 0 {
            return;
        }
        if load.at.remote {
            self.note_remotes(warp, &access, false);
        }
        let pattern = access.pattern();
        if !self.shadow.read(&warp.who(pc), &access, pattern) || self.shadow.has_equals(&access) {
            self.check_reads(warp, &access, false);
        }
        self.count_shared(warp.index, &access);
        let count = load.regs.len();
        let (mask, offsets) = (access.mask, &access.offsets);
        match load.size {
            4 => {
                let mut value = [[POISON; 32]; 4];
                match pattern {
                    Pattern::Contiguous => {
                        let first = offsets[0] as usize / 4;
                        let words = &self.words[first..first + 32 * count];
                        for (i, value) in value.iter_mut().enumerate().take(count) {
                            for lane in 0..32 {
                                value[lane] = words[lane * count + i];
                            }
                        }
                    }
                    Pattern::Uniform => {
                        let first = offsets[mask.trailing_zeros() as usize & 31] as usize / 4;
                        for (value, word) in value.iter_mut().zip(&self.words[first..first + count]) {
                            *value = [*word; 32];
                        }
                    }
                    Pattern::Scattered => {
                        for lane in lanes(mask) {
                            let first = offsets[lane] as usize / 4;
                            for (value, word) in value.iter_mut().zip(&self.words[first..first + count]) {
                                value[lane] = *word;
                            }
                        }
                    }
                }
                for (&d, value) in load.regs.iter().zip(&value) {
                    warp.registers.set(d, active, value);
                }
            }
            size @ (1 | 2) => {
                let part = u32::MAX >> (32 - 8 * size);
                for (i, &d) in load.regs.iter().enumerate() {
                    let mut value = [POISON & part; 32];
                    for lane in lanes(mask) {
                        let byte = offsets[lane] as usize + size as usize * i;
                        value[lane] = self.words[byte / 4] >> (8 * (byte & 3)) & part;
                    }
                    warp.registers.set(d, active, &value);
                }
            }
            _ => {
                for (i, &d) in load.regs.iter().enumerate() {
                    let mut value = [u64::from(POISON); 32];
                    for lane in lanes(mask) {
                        let word = offsets[lane] as usize / 4 + 2 * i;
                        value[lane] = u64::from(self.words[word]) | u64::from(self.words[word + 1]) << 32;
                    }
                    warp.registers.set(d, active, &value);
                }
            }
        }
    }

    #[inline(always)]
    pub(crate) fn store_shared(&mut self, warp: &mut Warp, pc: u32, store: Access<'_>) {
        let constants = &self.machine.constants;
        let base = *warp.registers.get(constants, store.base);
        let access = self.shared_access(warp, pc, warp.active, &base, store.at, store.bytes());
        if access.mask == 0 {
            return;
        }
        if store.at.remote {
            self.note_remotes(warp, &access, true);
        }
        let pattern = access.pattern_of_writes();
        let actor = (WriterKind::Thread, 32 * warp.index as ActorId);
        let stored = |lane| store.stored(&warp.registers, constants, lane);
        self.write_shadow(warp, &access, pattern, actor, Some(&stored));
        self.count_shared(warp.index, &access);
        let count = store.regs.len();
        for (i, &s) in store.regs.iter().enumerate() {
            match store.size {
                4 => {
                    let value: &[u32; 32] = warp.registers.get(constants, s);
                    if pattern == Pattern::Contiguous {
                        let first = access.offsets[0] as usize / 4;
                        let words = &mut self.words[first..first + 32 * count];
                        for lane in 0..32 {
                            words[lane * count + i] = value[lane];
                        }
                    } else {
                        for lane in lanes(access.mask) {
                            self.words[access.offsets[lane] as usize / 4 + i] = value[lane];
                        }
                    }
                }
                size @ (1 | 2) => {
                    let part = u32::MAX >> (32 - 8 * size);
                    let value: &[u32; 32] = warp.registers.get(constants, s);
                    for lane in lanes(access.mask) {
                        let byte = access.offsets[lane] as usize + size as usize * i;
                        let (shift, word) = (8 * (byte & 3), &mut self.words[byte / 4]);
                        *word = *word & !(part << shift) | (value[lane] & part) << shift;
                    }
                }
                _ => {
                    let value: &[u64; 32] = warp.registers.get(constants, s);
                    for lane in lanes(access.mask) {
                        let word = access.offsets[lane] as usize / 4 + 2 * i;
                        self.words[word] = value[lane] as u32;
                        self.words[word + 1] = (value[lane] >> 32) as u32;
                    }
                }
            }
        }
    }

    /// The lanes of a store that leave their bytes as they are, or as lanes before them in it do. Stores of equal bytes
    /// are no race with each other in kernels of other compilers (docs/check-cuda.md); in our own they are.
    #[cold]
    #[inline(never)]
    fn equal_stores(&self, access: &SharedAccess, store: Option<Stored<'_>>) -> u32 {
        let Some(store) = store.filter(|_| self.machine.is_foreign) else {
            return 0;
        };
        let (mut equal, mut stored) = (0, FxHashMap::default());
        for lane in lanes(access.mask) {
            let first = access.offsets[lane];
            let bytes = (first..first + access.bytes).zip(store(lane));
            let before = |at: u32| (self.words[at as usize / 4] >> (8 * (at % 4))) as u8;
            let is_there = |(at, byte)| stored.get(&at).copied().unwrap_or(before(at)) == byte;
            equal |= u32::from(bytes.clone().all(is_there)) << lane;
            stored.extend(bytes);
        }
        equal
    }

    /// Whether lanes of one store write the same f32 numbers but for rounding: copies of one sum over lanes, as the
    /// text shows, or numbers that depend on shuffles and are near each other.
    #[cold]
    #[inline(never)]
    fn differ_by_rounding(&self, warp: &Warp, access: &SharedAccess, store: Option<Stored<'_>>) -> bool {
        let Some((store, joined)) = store.zip(self.machine.program.sums.get(&access.pc)) else {
            return false;
        };
        let mut lanes_of: FxHashMap<u32, usize> = FxHashMap::default();
        if lanes(access.mask).all(|lane| {
            let first = *lanes_of.entry(access.offsets[lane]).or_insert(lane);
            (first ^ lane) as u32 & !joined == 0
        }) {
            return true;
        }
        if !warp.exchanged.is_normal() || !access.bytes.is_multiple_of(4) {
            return false;
        }
        let mut first: FxHashMap<u32, f32> = FxHashMap::default();
        lanes(access.mask).all(|lane| {
            let words = access.bytes as usize / 4;
            (0..).zip(&store(lane).as_chunks().0[..words]).all(|(word, bytes)| {
                let number = f32::from_le_bytes(*bytes);
                let before = *first.entry(access.offsets[lane] + 4 * word).or_insert(number);
                let (most, least) = (number.abs().max(before.abs()), number.abs().min(before.abs()));
                number.to_bits() == before.to_bits()
                    || number.is_normal()
                        && before.is_normal()
                        && least >= warp.exchanged * LEAST
                        && (number - before).abs() <= (warp.exchanged * ROUNDED).min(most * APART)
            })
        })
    }

    /// Checks and records writes by threads or their copies (`actor` is that of lane 0), with what a lane
    /// stores if it is a store.
    #[inline(always)]
    pub(crate) fn write_shadow(
        &mut self,
        warp: &Warp,
        access: &SharedAccess,
        pattern: Pattern,
        actor: (WriterKind, ActorId),
        store: Option<Stored<'_>>,
    ) {
        let who = warp.who(access.pc);
        if !self.shadow.may_write(&who, access, pattern) || self.shadow.has_equals(access) {
            let equal = self.equal_stores(access, store);
            self.check_writes(warp, access, actor.0, equal);
        }
        let twice = self.shadow.write(&who, access, pattern, actor);
        if twice != 0 {
            let unequal = twice & !self.equal_stores(access, store);
            if unequal != 0 && !self.differ_by_rounding(warp, access, store) {
                self.same_instruction(warp, access, unequal);
            }
            if store.is_some() && self.machine.is_foreign {
                self.shadow.note_equals(access, actor.1);
            }
        }
    }
}
