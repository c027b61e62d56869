//! Loads and stores of shared memory.

use flashcore_ir::SharedBuffer;
use flashcore_ir::inst::AtomOp;
use flashcore_ir::{BufferId, ScalarType};

use crate::atomic;
use crate::clock::{ActorId, WriterKind};
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::machine::{RANK_SHIFT, SHARED_BASE};
use crate::program::{At, Row, Width};
use crate::record::Details;
use crate::shadow::Pattern;
use crate::warp::Warp;

/// The value of a refused read.
pub(crate) const POISON: u32 = 0xffff_beef;

impl<'m> Cluster<'m> {
    pub(crate) fn shared_buffer(&self, at: At) -> &'m SharedBuffer {
        self.machine.kernel.ledger().get(BufferId(u32::from(at.object)))
    }

    /// Byte offsets in shared memory, and the lanes whose access of `bytes` is in bounds and
    /// aligned. Reports the other lanes.
    #[inline(always)]
    pub(crate) fn shared_offsets(
        &mut self,
        warp: &Warp,
        pc: u32,
        mask: u32,
        base: &[u32; 32],
        at: At,
        bytes: u32,
    ) -> ([u32; 32], u32) {
        if at.remote {
            return self.remote_offsets(warp, pc, mask, base, at, bytes);
        }
        let buffer = self.shared_buffer(at);
        let start = warp.shared_start.wrapping_sub(at.offset as u32);
        let first = buffer.offset + warp.shared_first;
        // A buffer smaller than one access has no valid offset.
        let Some(last) = buffer.bytes.checked_sub(bytes) else {
            self.refuse_shared(warp, pc, mask, base, at, bytes);
            return ([0; 32], 0);
        };
        let mut offsets = [0; 32];
        let mut good = 0;
        for lane in 0..32 {
            let offset = base[lane].wrapping_sub(start);
            offsets[lane] = offset;
            let within = offset.wrapping_sub(first) <= last;
            good |= ((within & (offset & (bytes - 1) == 0)) as u32) << lane;
        }
        if mask & !good != 0 {
            self.refuse_shared(warp, pc, mask & !good, base, at, bytes);
        }
        (offsets, mask & good)
    }

    /// As [`Self::shared_offsets`] for addresses with a block rank.
    #[inline(never)]
    fn remote_offsets(
        &mut self,
        warp: &Warp,
        pc: u32,
        mask: u32,
        base: &[u32; 32],
        at: At,
        bytes: u32,
    ) -> ([u32; 32], u32) {
        let (start, size) = {
            let buffer = self.shared_buffer(at);
            (buffer.offset, buffer.bytes)
        };
        let mut offsets = [0; 32];
        let mut good = 0;
        for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
            let address = base[lane].wrapping_add(at.offset as u32);
            let rank = (address >> RANK_SHIFT) as usize;
            let within = (address & ((1 << RANK_SHIFT) - 1)).wrapping_sub(SHARED_BASE);
            let inside = within >= start && within.wrapping_add(bytes) <= start + size;
            if rank < self.machine.blocks && inside && within & (bytes - 1) == 0 {
                offsets[lane] = within + rank as u32 * self.machine.shared_bytes;
                good |= 1 << lane;
            }
        }
        if mask & !good != 0 {
            self.refuse_shared(warp, pc, mask & !good, base, at, bytes);
        }
        (offsets, good)
    }

    /// Records accesses to other blocks' memory at valid offsets.
    #[cold]
    #[inline(never)]
    fn note_remotes(&mut self, warp: &mut Warp, pc: u32, mask: u32, offsets: &[u32; 32], writes: bool) {
        for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
            let rank = (offsets[lane] / self.machine.shared_bytes) as usize;
            self.note_remote(warp, pc, 1 << lane, rank);
            if writes && rank != warp.rank {
                warp.asynchronous.remote_store = Some(pc);
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
        let relative = offset - i64::from(buffer.offset);
        let out = relative < 0 || relative + i64::from(bytes) > i64::from(buffer.bytes);
        let kind = if out {
            FindingKind::OutOfBounds
        } else {
            FindingKind::Misaligned
        };
        let machine = self.machine;
        self.report(kind, pc, |cluster| {
            let element = buffer.element.bytes();
            let message = if out {
                let neighbour = u32::try_from(offset)
                    .ok()
                    .and_then(|offset| machine.kernel.ledger().at(offset).next())
                    .map_or("outside all buffers".to_string(), |other| {
                        format!("in `{}`", other.name)
                    });
                format!(
                    "access to bytes {relative}..{} of shared buffer `{}` (element {}), which has {} bytes; that is \
                     {neighbour}",
                    relative + i64::from(bytes),
                    buffer.name,
                    relative.div_euclid(i64::from(element)),
                    buffer.bytes
                )
            } else {
                format!(
                    "access of {bytes} bytes to byte {relative} of shared buffer `{}`, at address {}, which is not a \
                     multiple of {bytes}",
                    buffer.name,
                    offset + i64::from(SHARED_BASE)
                )
            };
            let details = Details::new(message, cluster.actor(warp.index, lanes))
                .object(buffer.name.clone())
                .bytes((relative, relative + i64::from(bytes)))
                .element(vec![relative.div_euclid(i64::from(element))]);
            match out {
                true => details,
                false => details.help("pad rows so that they stay aligned, or use narrower accesses"),
            }
        });
    }

    #[inline(always)]
    pub(crate) fn load_shared(&mut self, warp: &mut Warp, pc: u32, d: &[Row; 4], width: Width, at: At) {
        let base = *warp.registers.get(&self.machine.constants, at.base);
        let bytes = width.bytes();
        let active = warp.active;
        let (offsets, mask) = self.shared_offsets(warp, pc, active, &base, at, bytes);
        if mask == 0 {
            return;
        }
        if at.remote {
            self.note_remotes(warp, pc, mask, &offsets, false);
        }
        let pattern = Pattern::of(&offsets, mask, bytes);
        let cells = (bytes >> self.shadow.shift) as usize;
        if !self.shadow.read(&warp.who(pc), mask, &offsets, cells, pattern) {
            self.check_reads(warp, pc, mask, &offsets, cells, at, false);
        }
        self.count_shared(pc, warp.index, at, &offsets, mask, bytes);
        let count = usize::from(width.count);
        match width.log_bytes {
            2 => {
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
                        let mut lanes = mask;
                        while lanes != 0 {
                            let lane = lanes.trailing_zeros() as usize & 31;
                            lanes &= lanes - 1;
                            let first = offsets[lane] as usize / 4;
                            for (value, word) in value.iter_mut().zip(&self.words[first..first + count]) {
                                value[lane] = *word;
                            }
                        }
                    }
                }
                for (&d, value) in d.iter().zip(&value).take(count) {
                    warp.registers.set(d, active, value);
                }
            }
            1 => {
                for (i, &d) in d.iter().enumerate().take(count) {
                    let mut value = [POISON & 0xffff; 32];
                    for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
                        let byte = offsets[lane] as usize + 2 * i;
                        value[lane] = self.words[byte / 4] >> (8 * (byte & 2)) & 0xffff;
                    }
                    warp.registers.set(d, active, &value);
                }
            }
            _ => {
                for (i, &d) in d.iter().enumerate().take(count) {
                    let mut value = [u64::from(POISON); 32];
                    for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
                        let word = offsets[lane] as usize / 4 + 2 * i;
                        value[lane] = u64::from(self.words[word]) | u64::from(self.words[word + 1]) << 32;
                    }
                    warp.registers.set64(d, active, &value);
                }
            }
        }
    }

    #[inline(always)]
    pub(crate) fn store_shared(&mut self, warp: &mut Warp, pc: u32, s: &[Row; 4], width: Width, at: At) {
        let machine = self.machine;
        let base = *warp.registers.get(&machine.constants, at.base);
        let bytes = width.bytes();
        let (offsets, mask) = self.shared_offsets(warp, pc, warp.active, &base, at, bytes);
        if mask == 0 {
            return;
        }
        if at.remote {
            self.note_remotes(warp, pc, mask, &offsets, true);
        }
        let pattern = match Pattern::of(&offsets, mask, bytes) {
            Pattern::Uniform => Pattern::Scattered,
            pattern => pattern,
        };
        let cells = (bytes >> self.shadow.shift) as usize;
        let actor = (WriterKind::Thread, 32 * warp.index as ActorId);
        self.write_shadow(warp, pc, mask, &offsets, cells, pattern, at, actor);
        self.count_shared(pc, warp.index, at, &offsets, mask, bytes);
        let count = usize::from(width.count);
        match width.log_bytes {
            2 => {
                for (i, &s) in s.iter().enumerate().take(count) {
                    let value = warp.registers.get(&machine.constants, s);
                    if pattern == Pattern::Contiguous {
                        let first = offsets[0] as usize / 4;
                        let words = &mut self.words[first..first + 32 * count];
                        for lane in 0..32 {
                            words[lane * count + i] = value[lane];
                        }
                    } else {
                        let mut lanes = mask;
                        while lanes != 0 {
                            let lane = lanes.trailing_zeros() as usize;
                            lanes &= lanes - 1;
                            self.words[offsets[lane] as usize / 4 + i] = value[lane];
                        }
                    }
                }
            }
            1 => {
                for (i, &s) in s.iter().enumerate().take(count) {
                    let value = warp.registers.get(&machine.constants, s);
                    for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
                        let byte = offsets[lane] as usize + 2 * i;
                        let shift = 8 * (byte & 2);
                        let word = &mut self.words[byte / 4];
                        *word = *word & !(0xffff << shift) | (value[lane] & 0xffff) << shift;
                    }
                }
            }
            _ => {
                for (i, &s) in s.iter().enumerate().take(count) {
                    let value = warp.registers.get64(&machine.constants, s);
                    for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
                        let word = offsets[lane] as usize / 4 + 2 * i;
                        self.words[word] = value[lane] as u32;
                        self.words[word + 1] = (value[lane] >> 32) as u32;
                    }
                }
            }
        }
    }

    /// Checks and records writes by threads or their copies (`actor` is that of lane 0).
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn write_shadow(
        &mut self,
        warp: &Warp,
        pc: u32,
        mask: u32,
        offsets: &[u32; 32],
        cells: usize,
        pattern: Pattern,
        at: At,
        actor: (WriterKind, ActorId),
    ) {
        let who = warp.who(pc);
        if !self.shadow.may_write(&who, mask, offsets, cells, pattern) {
            self.check_writes(warp, pc, mask, offsets, cells, at, actor.0);
        }
        let twice = self.shadow.write(&who, mask, offsets, cells, pattern, actor);
        if twice != 0 {
            self.same_instruction(warp, pc, twice, offsets, at, cells);
        }
    }

    /// Read-modify-write, lane by lane.
    pub(crate) fn atomic_shared(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        (op, ty): (AtomOp, ScalarType),
        d: Option<Row>,
        at: At,
        value: Row,
    ) {
        let machine = self.machine;
        let base = *warp.registers.get(&machine.constants, at.base);
        let value = *warp.registers.get(&machine.constants, value);
        let (offsets, mask) = self.shared_offsets(warp, pc, warp.active, &base, at, 4);
        if at.remote {
            self.note_remotes(warp, pc, mask, &offsets, true);
        }
        let cells = (4 >> self.shadow.shift) as usize;
        let who = warp.who(pc);
        self.check_writes(warp, pc, mask, &offsets, cells, at, WriterKind::Atomic);
        let actor = (WriterKind::Atomic, 32 * warp.index as ActorId);
        self.shadow
            .write(&who, mask, &offsets, cells, Pattern::Scattered, actor);
        let mut old = [POISON; 32];
        for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
            let word = &mut self.words[offsets[lane] as usize / 4];
            old[lane] = *word;
            *word = atomic::apply(op, ty, *word, value[lane]);
        }
        if let Some(d) = d {
            warp.registers.set(d, warp.active, &old);
        }
    }
}
