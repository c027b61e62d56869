//! Loads and stores of global memory.

use flashcore_ir::ScalarType;
use flashcore_ir::inst::{AtomOp, Cache};

use crate::atomic;
use crate::clock::{ActorId, Stamp, WriterKind};
use crate::cluster::Cluster;
use crate::finding::{Actor, FindingKind};
use crate::global::{AtomicRecord, PAGE};
use crate::machine::Region;
use crate::program::{At, Row, Width};
use crate::record::{Details, Key};
use crate::registers::FULL;
use crate::shared_memory::POISON;
use crate::traffic;
use crate::warp::Warp;

impl<'m> Cluster<'m> {
    fn region(&self, object: u16) -> &'m Region {
        &self.machine.regions[usize::from(object)]
    }

    /// Byte offsets in the buffer, and the lanes whose access of `bytes` is in bounds and aligned.
    /// Reports the other lanes.
    #[inline(always)]
    fn global_offsets(
        &mut self,
        warp: &Warp,
        pc: u32,
        mask: u32,
        base: &[u64; 32],
        at: At,
        bytes: u32,
    ) -> ([u64; 32], u32) {
        let region = self.region(at.object);
        let add = at.offset as i64 as u64;
        let Some(last) = region.bytes.checked_sub(u64::from(bytes)) else {
            self.refuse_global(warp, pc, mask, base, at.object, add, bytes, bytes);
            return ([0; 32], 0);
        };
        let mut offsets = [0; 32];
        let mut good = 0;
        for lane in 0..32 {
            let address = base[lane].wrapping_add(add);
            let offset = address.wrapping_sub(region.base);
            offsets[lane] = offset;
            let aligned = address & (u64::from(bytes) - 1) == 0;
            good |= (((offset <= last) & aligned) as u32) << lane;
        }
        if mask & !good != 0 {
            self.refuse_global(warp, pc, mask & !good, base, at.object, add, bytes, bytes);
        }
        (offsets, mask & good)
    }

    #[cold]
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    fn refuse_global(
        &mut self,
        warp: &Warp,
        pc: u32,
        lanes: u32,
        base: &[u64; 32],
        object: u16,
        add: u64,
        bytes: u32,
        align: u32,
    ) {
        let region = self.region(object);
        let lane = lanes.trailing_zeros() as usize & 31;
        let address = base[lane].wrapping_add(add);
        let offset = address.wrapping_sub(region.base) as i64;
        let out = offset < 0 || offset as u64 + u64::from(bytes) > region.bytes;
        let kind = if out {
            FindingKind::OutOfBounds
        } else {
            FindingKind::Misaligned
        };
        let end = offset.wrapping_add(i64::from(bytes));
        let element = offset.div_euclid(i64::from(region.element));
        let spec = &self.machine.launch.buffers;
        self.report(kind, pc, |cluster| {
            let message = if out {
                format!(
                    "access to bytes {offset}..{end} of `{}` (element {element}), whose buffer has {} bytes",
                    region.name, region.bytes
                )
            } else {
                let promised = spec.get(region.slot).map_or(1, |spec| spec.align);
                format!(
                    "access of {align} bytes to byte {offset} of `{}`, whose address is not a multiple of {align} (the \
                     buffer is aligned to {promised})",
                    region.name
                )
            };
            Details::new(message, cluster.actor(warp.index, lanes))
                .object(region.name.clone())
                .bytes((offset, end))
                .element(vec![element])
        });
    }

    #[inline(always)]
    pub(crate) fn load_global(&mut self, warp: &mut Warp, pc: u32, d: &[Row; 4], width: Width, at: At, cache: Cache) {
        let base = *warp.registers.get64(&self.machine.constants, at.base);
        let bytes = width.bytes();
        let active = warp.active;
        let (offsets, mask) = self.global_offsets(warp, pc, active, &base, at, bytes);
        if self.machine.program.uses_dependency {
            self.check_dependency(warp, pc, active.trailing_zeros() & 31);
        }
        if !self.traffic.is_empty() && mask != 0 {
            self.traffic[pc as usize].add(traffic::global(&offsets, mask, bytes));
        }
        let region = self.region(at.object);
        if region.overlaid {
            if cache == Cache::ReadOnly && region.written {
                self.read_only_cache(warp, pc, mask, region);
            }
            self.load_overlaid(warp, pc, d, width, mask, &offsets, region);
            return;
        }
        let memory = self.overlay.constant(region.slot);
        let count = usize::from(width.count);
        if width.log_bytes == 2 {
            let contiguous = mask == FULL && (1..32).all(|l| offsets[l] == offsets[0] + (l * count * 4) as u64);
            for (i, &d) in d.iter().enumerate().take(count) {
                let mut value = [POISON; 32];
                if contiguous {
                    let first = offsets[0] as usize;
                    let bytes = &memory[first..first + 128 * count];
                    for lane in 0..32 {
                        let at = 4 * (lane * count + i);
                        value[lane] = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
                    }
                } else {
                    let mut lanes = mask;
                    while lanes != 0 {
                        let lane = lanes.trailing_zeros() as usize;
                        lanes &= lanes - 1;
                        let at = offsets[lane] as usize + 4 * i;
                        let bytes = &memory[at..at + 4];
                        value[lane] = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                    }
                }
                warp.registers.set(d, active, &value);
            }
            return;
        }
        if width.log_bytes == 1 {
            for (i, &d) in d.iter().enumerate().take(count) {
                let mut value = [POISON & 0xffff; 32];
                let mut lanes = mask;
                while lanes != 0 {
                    let lane = lanes.trailing_zeros() as usize;
                    lanes &= lanes - 1;
                    let at = offsets[lane] as usize + 2 * i;
                    let bytes = &memory[at..at + 2];
                    value[lane] = u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
                }
                warp.registers.set(d, active, &value);
            }
            return;
        }
        let mut raw = [[0xff; 16]; 32];
        for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
            let at = offsets[lane] as usize;
            raw[lane][..bytes as usize].copy_from_slice(&memory[at..at + bytes as usize]);
        }
        set_raw(warp, d, width, active, &raw);
    }

    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    fn load_overlaid(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        d: &[Row; 4],
        width: Width,
        mask: u32,
        offsets: &[u64; 32],
        region: &Region,
    ) {
        let bytes = width.bytes() as usize;
        let mut raw = [[0xff; 16]; 32];
        for lane in (0..32u32).filter(|lane| mask >> lane & 1 != 0) {
            let out = &mut raw[lane as usize][..bytes];
            self.read_lane(warp, pc, lane, region, offsets[lane as usize], out);
        }
        set_raw(warp, d, width, warp.active, &raw);
    }

    /// Reads for one lane. Checks bounds of `out.len()` bytes and alignment to `align`.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn read_global_lane(
        &mut self,
        warp: &Warp,
        pc: u32,
        lane: u32,
        object: u16,
        address: u64,
        align: u32,
        out: &mut [u8],
    ) {
        let region = self.region(object);
        let offset = address.wrapping_sub(region.base);
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > region.bytes) || address & (u64::from(align) - 1) != 0 {
            let bytes = out.len() as u32;
            self.refuse_global(warp, pc, 1 << lane, &[address; 32], object, 0, bytes, align);
            out.fill(0xff);
        } else if region.overlaid {
            self.read_lane(warp, pc, lane, region, offset, out);
        } else {
            let at = offset as usize;
            out.copy_from_slice(&self.overlay.constant(region.slot)[at..at + out.len()]);
        }
    }

    /// Reads bytes of a written buffer for one lane.
    fn read_lane(&mut self, warp: &Warp, pc: u32, lane: u32, region: &Region, offset: u64, out: &mut [u8]) {
        let me = (32 * warp.index) as ActorId + lane;
        let mut clash = None;
        // One bit per 2 bytes that this block has not written.
        let mut unwritten = 0u32;
        let uninitialized = self.machine.uninitialized[region.slot];
        // Aligned accesses of at most 16 bytes do not cross a page.
        let page = self.overlay.page(region.slot, offset);
        let within = offset as usize % PAGE;
        out.copy_from_slice(&page.data[within..within + out.len()]);
        let cells = within / 2..(within + out.len()).div_ceil(2);
        for (i, cell) in page.cells[cells].iter_mut().enumerate() {
            let at = offset + 2 * i as u64;
            let known = |stamp: Stamp| cell.writer == me || warp.clock(lane).knows(cell.writer, stamp.epoch());
            match cell.stamp() {
                Some(stamp) if !known(stamp) => clash = clash.or(Some((at, cell.writer, cell.writer_pc, true))),
                Some(_) => {}
                None if uninitialized => unwritten |= 1 << i,
                None => {}
            }
            if cell.read_epoch != warp.epoch || cell.reader_warp != warp.index as u32 {
                cell.reader_lanes = 0;
            }
            cell.read_epoch = warp.epoch;
            cell.reader_warp = warp.index as u32;
            cell.reader_lanes |= 1 << lane;
            cell.reader_pc = pc;
        }
        if let Some(clash) = clash {
            self.global_clash(warp, pc, lane, region, clash, "reads");
        }
        let mut places = (0..8).filter(|i| unwritten >> i & 1 != 0).map(|i| offset + 2 * i);
        if let Some(at) = places.find(|&at| !self.written_earlier(region.slot, at)) {
            let actor = self.actor(warp.index, 1 << lane);
            self.report(FindingKind::NeverWritten, pc, |_| {
                let (place, mut details) = place(region, at, actor);
                details.message = format!("reads {place}, which was never written");
                details
            });
        }
    }

    /// Whether an earlier block or an earlier launch wrote these bytes.
    fn written_earlier(&self, slot: usize, at: u64) -> bool {
        let before = self.machine.options.written.get(&slot);
        before.is_some_and(|written| written.contains(at)) || self.overlay.written_earlier(slot, at)
    }

    /// Writes bytes for one lane: by its thread, an atomic, or its bulk store.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn write_lane(
        &mut self,
        warp: &Warp,
        pc: u32,
        lane: u32,
        region: &Region,
        offset: u64,
        data: &[u8],
        (kind, writer): (WriterKind, ActorId),
    ) {
        let me = (32 * warp.index) as ActorId + lane;
        let mut clash = None;
        let page = self.overlay.page(region.slot, offset);
        let within = offset as usize % PAGE;
        page.data[within..within + data.len()].copy_from_slice(data);
        let clock = warp.clock(lane);
        let cells = within / 2..(within + data.len()) / 2;
        for (i, cell) in page.cells[cells].iter_mut().enumerate() {
            let at = offset + 2 * i as u64;
            if let Some(stamp) = cell.stamp()
                && cell.writer != me
                && !(kind == WriterKind::Atomic && stamp.is_atomic())
                && !clock.knows(cell.writer, stamp.epoch())
            {
                clash = clash.or(Some((at, cell.writer, cell.writer_pc, true)));
            }
            let reader = cell.reader_warp as usize;
            let mut readers = cell.reader_lanes & clock.unknown_lanes(reader, cell.read_epoch);
            if reader == warp.index {
                readers &= !(1 << lane);
            }
            if readers != 0 {
                let by = 32 * cell.reader_warp + readers.trailing_zeros();
                clash = clash.or(Some((at, by, cell.reader_pc, false)));
            }
            cell.stamp = Stamp::new(warp.epoch, kind).0;
            cell.writer = writer;
            cell.writer_pc = pc;
        }
        if let Some(clash) = clash {
            self.global_clash(warp, pc, lane, region, clash, "writes");
        }
    }

    #[cold]
    fn global_clash(
        &mut self,
        warp: &Warp,
        pc: u32,
        lane: u32,
        region: &Region,
        (at, other, other_pc, wrote): (u64, ActorId, u32, bool),
        does: &str,
    ) {
        let key = Key::new(FindingKind::Race, pc, Some(other_pc));
        let actor = self.actor(warp.index, 1 << lane);
        let (other, _) = self.name_writer(other);
        self.findings.report(self.machine, key, || {
            let (place, mut details) = place(region, at, actor);
            let verb = if wrote { "wrote" } else { "reads" };
            details.message = format!(
                "{does} {place}, which warp {} lane {} {verb}; nothing orders the two accesses",
                other.warp,
                other.lanes.trailing_zeros()
            );
            details.other = Some(other);
            details.help = Some("put a barrier between them, or give each thread its own bytes");
            details
        });
    }

    #[inline(never)]
    pub(crate) fn store_global(&mut self, warp: &mut Warp, pc: u32, s: &[Row; 4], width: Width, at: At) {
        let machine = self.machine;
        let base = *warp.registers.get64(&machine.constants, at.base);
        let bytes = width.bytes();
        let region = self.region(at.object);
        if !region.writable {
            let actor = self.actor(warp.index, warp.active);
            self.report(FindingKind::ReadOnly, pc, |_| {
                let message = format!("writes through `{}`, which is declared read-only", region.name);
                Details::new(message, actor)
                    .object(region.name.clone())
                    .help("declare it with `param_ptr_mut` to write it")
            });
            return;
        }
        let (offsets, mask) = self.global_offsets(warp, pc, warp.active, &base, at, bytes);
        if self.machine.program.uses_dependency {
            self.check_dependency(warp, pc, warp.active.trailing_zeros() & 31);
        }
        if !self.traffic.is_empty() && mask != 0 {
            self.traffic[pc as usize].add(traffic::global(&offsets, mask, bytes));
        }
        let size = 1usize << width.log_bytes;
        for lane in (0..32u32).filter(|lane| mask >> lane & 1 != 0) {
            let mut raw = [0u8; 16];
            for (i, &s) in s.iter().enumerate().take(usize::from(width.count)) {
                let value = if width.log_bytes == 3 {
                    warp.registers.get64(&machine.constants, s)[lane as usize]
                } else {
                    u64::from(warp.registers.get(&machine.constants, s)[lane as usize])
                };
                raw[size * i..size * (i + 1)].copy_from_slice(&value.to_le_bytes()[..size]);
            }
            let data = &raw[..bytes as usize];
            let writer = (WriterKind::Thread, (32 * warp.index) as ActorId + lane);
            self.write_lane(warp, pc, lane, region, offsets[lane as usize], data, writer);
        }
    }

    #[cold]
    fn read_only_cache(&mut self, warp: &Warp, pc: u32, mask: u32, region: &Region) {
        self.report(FindingKind::ReadOnlyCache, pc, |cluster| {
            let message = format!(
                "loads `{}` through the read-only cache, but the kernel writes its buffer",
                region.name
            );
            Details::new(message, cluster.actor(warp.index, mask))
                .object(region.name.clone())
                .help("load it with `Cache::Default`")
        });
    }

    /// Read-modify-write, lane by lane. Deferred until all blocks have finished if no result and no
    /// reader needs it.
    pub(crate) fn atomic_global(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        (op, ty): (AtomOp, ScalarType),
        d: Option<Row>,
        at: At,
        value: Row,
    ) {
        let machine = self.machine;
        let base = *warp.registers.get64(&machine.constants, at.base);
        let value = *warp.registers.get(&machine.constants, value);
        let (offsets, mask) = self.global_offsets(warp, pc, warp.active, &base, at, 4);
        let region = self.region(at.object);
        let mut old = [POISON; 32];
        for lane in (0..32u32).filter(|lane| mask >> lane & 1 != 0) {
            let (offset, value) = (offsets[lane as usize], value[lane as usize]);
            if !machine.serial {
                let slot = region.slot;
                self.atomics.push(AtomicRecord {
                    slot,
                    offset,
                    op,
                    ty,
                    value,
                    pc,
                });
                continue;
            }
            let page = self.overlay.page(region.slot, offset);
            let within = offset as usize % PAGE;
            let word = &page.data[within..within + 4];
            let before = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            old[lane as usize] = before;
            let after = atomic::apply_global(op, ty, before, value).to_le_bytes();
            let writer = (WriterKind::Atomic, (32 * warp.index) as ActorId + lane);
            self.write_lane(warp, pc, lane, region, offset, &after, writer);
        }
        if let Some(d) = d {
            warp.registers.set(d, warp.active, &old);
        }
    }
}

/// Name and position of a byte of a buffer for messages.
fn place(region: &Region, at: u64, actor: Actor) -> (String, Details) {
    let element = at / u64::from(region.element);
    let details = Details::new("", actor)
        .object(region.name.clone())
        .bytes((at as i64, at as i64 + 2))
        .element(vec![element as i64]);
    (format!("byte {at} of `{}` (element {element})", region.name), details)
}

/// Stores the bytes loaded by each lane in registers.
fn set_raw(warp: &mut Warp, d: &[Row; 4], width: Width, mask: u32, raw: &[[u8; 16]; 32]) {
    let size = 1usize << width.log_bytes;
    for (i, &d) in d.iter().enumerate().take(usize::from(width.count)) {
        let mut value = [0u64; 32];
        for (value, raw) in value.iter_mut().zip(raw) {
            let mut word = [0u8; 8];
            word[..size].copy_from_slice(&raw[size * i..size * (i + 1)]);
            *value = u64::from_le_bytes(word);
        }
        if width.log_bytes == 3 {
            warp.registers.set64(d, mask, &value);
        } else {
            warp.registers.set(d, mask, &value.map(|v| v as u32));
        }
    }
}
