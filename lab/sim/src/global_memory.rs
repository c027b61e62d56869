//! Loads and stores of global memory.

use flashcore_ir::inst::Cache;

use crate::clock::{ActorId, Stamp, WriterKind};
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::global::{Cell, PAGE, Past, keep};
use crate::global_races::place;
use crate::machine::Region;
use crate::program::{Access, At};
use crate::record::Details;
use crate::registers::{FULL, lanes};
use crate::shared_memory::POISON;
use crate::traffic;
use crate::warp::{Lane, Warp};

impl<'m> Cluster<'m> {
    pub(crate) fn region(&self, object: u16) -> &'m Region {
        &self.machine.regions[usize::from(object)]
    }

    /// Offsets in the buffer, and the lanes in bounds and aligned. Reports the other lanes.
    #[inline(always)]
    pub(crate) fn global_offsets(
        &mut self,
        warp: &Warp,
        pc: u32,
        base: &[u64; 32],
        at: At,
        bytes: u32,
    ) -> ([u64; 32], u32) {
        if self.machine.launch.programmatic {
            self.check_dependency(warp.lane(pc, warp.active.trailing_zeros() as usize & 31));
        }
        let region = self.region(at.object);
        let add = at.offset as i64 as u64;
        let mut offsets = [0; 32];
        let mut good = 0;
        // A buffer smaller than one access has no valid offset.
        if let Some(last) = region.bytes.checked_sub(u64::from(bytes)) {
            for lane in 0..32 {
                let address = base[lane].wrapping_add(add);
                let offset = address.wrapping_sub(region.base);
                offsets[lane] = offset;
                let aligned = address & (u64::from(bytes) - 1) == 0;
                good |= (((offset <= last) & aligned) as u32) << lane;
            }
        }
        let bad = warp.active & !good;
        if bad != 0 {
            let address = base[bad.trailing_zeros() as usize & 31].wrapping_add(add);
            self.refuse_global(warp, pc, bad, address, at.object, (bytes, bytes));
        }
        (offsets, warp.active & good)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn refuse_global(
        &mut self,
        warp: &Warp,
        pc: u32,
        lanes: u32,
        address: u64,
        object: u16,
        (bytes, align): (u32, u32),
    ) {
        let region = self.region(object);
        let offset = address.wrapping_sub(region.base) as i64;
        let end = offset.wrapping_add(i64::from(bytes));
        let element = offset.div_euclid(i64::from(region.element));
        let out = offset < 0 || offset as u64 + u64::from(bytes) > region.bytes;
        let kind = if out {
            FindingKind::OutOfBounds
        } else {
            FindingKind::Misaligned
        };
        self.report(kind, pc, None, |cluster| {
            let message = if out {
                format!(
                    "access to bytes {offset}..{end} of `{}` (element {element}), whose buffer has {} bytes",
                    region.name, region.bytes
                )
            } else {
                let spec = cluster.machine.launch.buffers.get(region.slot);
                format!(
                    "access of {align} bytes to byte {offset} of `{}`, whose address is not a multiple of {align} (the \
                     buffer is aligned to {})",
                    region.name,
                    spec.map_or(1, |spec| spec.align)
                )
            };
            Details::new(message, cluster.actor(warp.index, lanes))
                .object(region.name.clone())
                .bytes((offset, end))
                .element(vec![element])
        });
    }

    /// As [`Self::global_offsets`] for a load or a store, which it counts.
    #[inline(always)]
    fn global_access(&mut self, warp: &Warp, pc: u32, access: &Access<'_>) -> ([u64; 32], u32) {
        let base = warp.registers.get(&self.machine.constants, access.base);
        let bytes = access.bytes();
        let (offsets, mask) = self.global_offsets(warp, pc, base, access.at, bytes);
        if !self.out.traffic.is_empty() && mask != 0 {
            self.out.traffic[pc as usize].add(traffic::global(&offsets, mask, bytes));
        }
        (offsets, mask)
    }

    #[inline(always)]
    pub(crate) fn load_global(&mut self, warp: &mut Warp, pc: u32, load: Access<'_>, cache: Cache) {
        let (offsets, mask) = self.global_access(warp, pc, &load);
        let bytes = load.bytes() as usize;
        let region = self.region(load.at.object);
        if !self.out.traffic.is_empty() {
            let sectors = traffic::sectors(&offsets, mask, load.bytes());
            self.out.loads.sectors += sectors.len() as u64;
            let slot = region.slot;
            self.out
                .sectors
                .extend(sectors.into_iter().map(|sector| (warp.rank, slot, sector)));
        }
        if region.overlaid {
            // By an instruction whose buffer is not known only what is written already is.
            let is_stale = cache == Cache::ReadOnly && region.written && {
                let mut lanes = lanes(mask);
                region.surely_written || lanes.any(|lane| self.global.is_written((region.slot, offsets[lane]), bytes))
            };
            if is_stale {
                self.report(FindingKind::ReadOnlyCache, pc, None, |cluster| {
                    let name = &region.name;
                    let message =
                        format!("loads `{name}` through the read-only cache, but the kernel writes its buffer");
                    Details::new(message, cluster.actor(warp.index, mask))
                        .object(name.clone())
                        .help("load it with `Cache::Default`")
                });
            }
            let mut raw = [[0; 16]; 32];
            for lane in lanes(mask) {
                let by = warp.lane(pc, lane);
                self.read_lane(by, region, offsets[lane], &mut raw[lane][..bytes], false);
            }
            set_loaded(warp, &load, mask, |lane| &raw[lane][..bytes]);
            return;
        }
        let memory = self.global.base[region.slot];
        let count = load.regs.len();
        let contiguous = mask == FULL && (1..32).all(|lane| offsets[lane] == offsets[0] + (lane * bytes) as u64);
        if load.size != 4 || !contiguous {
            set_loaded(warp, &load, mask, |lane| {
                &memory[offsets[lane] as usize..offsets[lane] as usize + bytes]
            });
            return;
        }
        let first = offsets[0] as usize;
        let words = &memory[first..first + 128 * count];
        for (i, &d) in load.regs.iter().enumerate() {
            let mut value = [0; 32];
            for lane in 0..32 {
                let at = 4 * (lane * count + i);
                value[lane] = u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
            }
            warp.registers.set(d, FULL, &value);
        }
    }

    /// Reads for one lane. Checks bounds of `out.len()` bytes and alignment to `align`.
    pub(crate) fn read_global_lane(&mut self, by: Lane<'_>, object: u16, address: u64, align: u32, out: &mut [u8]) {
        let region = self.region(object);
        let offset = address.wrapping_sub(region.base);
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > region.bytes) || address & (u64::from(align) - 1) != 0 {
            self.refuse_global(by.warp, by.pc, by.bit(), address, object, (out.len() as u32, align));
            out.fill(0xff);
        } else if region.overlaid {
            self.read_lane(by, region, offset, out, false);
        } else {
            let at = offset as usize;
            out.copy_from_slice(&self.global.base[region.slot][at..at + out.len()]);
        }
    }

    /// Reads bytes of a written buffer for one lane. A flag may be read while atomics write it.
    pub(crate) fn read_lane(&mut self, by: Lane<'_>, region: &Region, offset: u64, out: &mut [u8], is_flag: bool) {
        let (warp, me, own, clock) = (by.warp, by.thread(), self.linear, by.clock());
        let communicates = self.machine.communicates;
        let observed = !is_flag && self.observed(by, region.slot, offset..offset + out.len() as u64);
        let mut clash = None;
        let mut displaced = Vec::new();
        // One bit per 2 bytes that no block has written.
        let mut unwritten = 0u32;
        let uninitialized = self.machine.uninitialized[region.slot];
        // Aligned accesses of at most 16 bytes do not cross a page.
        let (unit, shift) = (self.global.unit, self.global.unit.trailing_zeros());
        let page = self.global.page(region.slot, offset);
        let within = offset as usize % PAGE;
        out.copy_from_slice(&page.data[within..within + out.len()]);
        let cells = within >> shift..(within + out.len() + unit - 1) >> shift;
        for (i, cell) in page.cells[cells].iter_mut().enumerate() {
            let at = offset + (i << shift) as u64;
            let known = |cell: &Cell| {
                let mine = cell.writer == me && u64::from(cell.written_in) == own;
                mine || observed || cell.write().unordered(own, clock) == 0
            };
            match cell.stamp() {
                Some(stamp) if is_flag && stamp.is_atomic() => {}
                Some(_) if !known(cell) => clash = clash.or(Some((at, cell.write()))),
                Some(_) => {}
                None if uninitialized => unwritten |= 1 << i,
                None => {}
            }
            if is_flag {
                continue;
            }
            let mine = cell.reader_warp == warp.index as u32 && u64::from(cell.read_in) == own;
            if cell.read_epoch != warp.epoch || !mine {
                if communicates && !mine && cell.reader_lanes != 0 && cell.read().unordered(own, clock) != 0 {
                    displaced.push((at, cell.read()));
                }
                cell.reader_lanes = 0;
            }
            cell.read_epoch = warp.epoch;
            cell.reader_warp = warp.index as u32;
            cell.read_in = own as u32;
            cell.reader_lanes |= by.bit();
            cell.reader_pc = by.pc;
        }
        if !is_flag && !observed {
            let bytes = offset..offset + out.len() as u64;
            clash = clash.or_else(|| self.displaced(by, region.slot, bytes, |past| past.lanes == 0));
        }
        for (at, past) in displaced {
            keep(self.global.displaced.entry((region.slot, at)).or_default(), past);
        }
        if let Some(clash) = clash {
            self.global_clash(by, region, clash, "reads");
        }
        let missing = match self.machine.options.written.get(&region.slot) {
            Some(before) => before.first_missing(offset, unwritten),
            None => lanes(unwritten).next().map(|piece| offset + (unit * piece) as u64),
        };
        if let Some(at) = missing {
            self.report(FindingKind::NeverWritten, by.pc, None, |cluster| {
                let (place, mut details) = place(region, at, cluster.lane_actor(by));
                details.message = format!("reads {place}, which was never written");
                details
            });
        }
    }

    /// Writes bytes for one lane: by its thread, an atomic, or its bulk store.
    pub(crate) fn write_lane(
        &mut self,
        by: Lane<'_>,
        region: &Region,
        offset: u64,
        data: &[u8],
        (kind, writer): (WriterKind, ActorId),
    ) {
        let (warp, me, own, clock) = (by.warp, by.thread(), self.linear, by.clock());
        let is_atomic = kind == WriterKind::Atomic;
        let observed = !is_atomic && self.observed(by, region.slot, offset..offset + data.len() as u64);
        let (mut clash, mut displaced) = (None, Vec::new());
        let is_foreign = self.machine.is_foreign;
        let shift = self.global.unit.trailing_zeros();
        let page = self.global.page(region.slot, offset);
        let within = offset as usize % PAGE;
        let bytes = &mut page.data[within..within + data.len()];
        let changed = *bytes != *data;
        bytes.copy_from_slice(data);
        // Stores of what is there are no race with each other in kernels of other compilers (docs/check-cuda.md).
        let is_equal = is_foreign && !changed && kind == WriterKind::Thread;
        let cells = within >> shift..(within + data.len()) >> shift;
        for (i, cell) in page.cells[cells].iter_mut().enumerate() {
            let at = offset + (i << shift) as u64;
            if let Some(stamp) = cell.stamp()
                && !(cell.writer == me && u64::from(cell.written_in) == own || observed)
                && cell.write().unordered(own, clock) != 0
            {
                if is_atomic && stamp.is_atomic() {
                    // Both halves of a word have the same atomics.
                    if displaced.is_empty() {
                        displaced.push((at, cell.write()));
                    }
                } else if is_equal && !stamp.is_atomic() {
                    displaced.push((at & !1, cell.write()));
                } else {
                    clash = clash.or(Some((at, cell.write())));
                }
            }
            let read_here = cell.reader_warp == warp.index as u32 && u64::from(cell.read_in) == own;
            let mine = if read_here { by.bit() } else { 0 };
            let readers = match cell.reader_lanes & !mine {
                0 => 0,
                lanes => lanes & cell.read().unordered(own, clock),
            };
            if readers != 0 {
                let reader = Past {
                    lanes: readers,
                    ..cell.read()
                };
                clash = clash.or(Some((at, reader)));
            }
            cell.stamp = Stamp::new(warp.epoch, kind).0;
            cell.writer = writer;
            cell.writer_pc = by.pc;
            cell.written_in = own as u32;
        }
        if self.machine.communicates {
            if changed {
                self.global.changed((region.slot, offset), data.len() as u64);
            }
            if is_atomic {
                self.global.observers.remove(&(region.slot, offset));
            }
        }
        let bytes = offset..offset + data.len() as u64;
        let counts = |past: &Past| past.lanes != 0 || !is_atomic && !observed && (past.atomic || !is_equal);
        clash = clash.or_else(|| self.displaced(by, region.slot, bytes, counts));
        for (at, past) in displaced {
            keep(self.global.displaced.entry((region.slot, at)).or_default(), past);
        }
        if let Some(clash) = clash {
            self.global_clash(by, region, clash, "writes");
        }
    }

    #[inline(never)]
    pub(crate) fn store_global(&mut self, warp: &mut Warp, pc: u32, store: Access<'_>) {
        let constants = &self.machine.constants;
        let region = self.region(store.at.object);
        if !region.writable {
            self.report(FindingKind::ReadOnly, pc, None, |cluster| {
                let message = format!("writes through `{}`, which is declared read-only", region.name);
                Details::new(message, cluster.actor(warp.index, warp.active))
                    .object(region.name.clone())
                    .help("declare it with `param_ptr_mut` to write it")
            });
            return;
        }
        let (offsets, mask) = self.global_access(warp, pc, &store);
        for lane in lanes(mask) {
            let raw = store.stored(&warp.registers, constants, lane);
            let data = &raw[..store.bytes() as usize];
            let by = warp.lane(pc, lane);
            self.write_lane(by, region, offsets[lane], data, (WriterKind::Thread, by.thread()));
        }
    }
}

/// Sets registers to the bytes that each lane has loaded.
#[inline(always)]
fn set_loaded<'b>(warp: &mut Warp, load: &Access<'_>, mask: u32, bytes: impl Fn(usize) -> &'b [u8]) {
    let size = load.size as usize;
    for (i, &d) in load.regs.iter().enumerate() {
        let mut value = [u64::from(POISON); 32];
        for lane in lanes(mask) {
            value[lane] = match bytes(lane)[size * i..size * (i + 1)] {
                [a] => a.into(),
                [a, b] => u64::from(u16::from_le_bytes([a, b])),
                [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
                [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
                _ => 0,
            };
        }
        if size == 8 {
            warp.registers.set(d, warp.active, &value);
        } else {
            warp.registers.set(d, warp.active, &value.map(|bits| bits as u32));
        }
    }
}
