//! Shadow of a cluster's shared memory: the last writer of every cell and its readers since then.
//!
//! A cell covers the kernel's narrowest access to shared memory (4 or 2 bytes), so the shadow is
//! exact per byte: two lanes that write neighbouring halves of a word do not conflict, two that
//! write the same half do.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::clock::{ActorId, Epoch, Limits, Stamp, WriterKind};
use crate::program::At;
use crate::registers::{FULL, lanes};

/// An accessing warp and the limits of its clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub(crate) warp: usize,
    pub(crate) pc: u32,
    pub(crate) epoch: Epoch,
    pub(crate) limits: Limits,
}

/// The accesses of one instruction to shared memory that are in bounds and aligned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedAccess {
    pub(crate) pc: u32,
    pub(crate) at: At,
    /// Bytes per lane.
    pub(crate) bytes: u32,
    pub(crate) mask: u32,
    /// By lane: byte offset in the cluster's shared memory.
    pub(crate) offsets: [u32; 32],
}

impl SharedAccess {
    #[inline(always)]
    pub(crate) fn pattern(&self) -> Pattern {
        let first = self.offsets[self.mask.trailing_zeros() as usize & 31];
        let (mut same, mut next) = (0u32, 0u32);
        for lane in 0..32 {
            same |= ((self.offsets[lane] == first) as u32) << lane;
            next |= ((self.offsets[lane] == first.wrapping_add(lane as u32 * self.bytes)) as u32) << lane;
        }
        if next == FULL && self.mask == FULL {
            Pattern::Contiguous
        } else if same & self.mask == self.mask {
            Pattern::Uniform
        } else {
            Pattern::Scattered
        }
    }

    /// The pattern of an access that lanes make one after another if they use one address.
    #[inline(always)]
    pub(crate) fn pattern_of_writes(&self) -> Pattern {
        match self.pattern() {
            Pattern::Uniform => Pattern::Scattered,
            pattern => pattern,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Consecutive lanes at consecutive addresses, all lanes active.
    Contiguous,
    /// One address for all lanes.
    Uniform,
    Scattered,
}

#[derive(Debug)]
pub(crate) struct Shadow {
    /// log2 of the bytes per cell.
    pub(crate) shift: u32,
    stamps: Vec<u32>,
    writers: Vec<ActorId>,
    writer_pcs: Vec<u32>,
    /// Epoch of the newest read of each cell.
    newest_reads: Vec<Epoch>,
    /// By reader: whether it has read any shared memory.
    have_read: Vec<bool>,
    /// By reader (`Machine::readers`) and cell: epoch in the low half, lanes in the high half.
    reads: Vec<Vec<u64>>,
    read_pcs: Vec<Vec<u32>>,
    /// By cell: writes that stores of the same bytes displaced without being ordered after them.
    pub(crate) equals: FxHashMap<usize, Vec<(Stamp, ActorId, u32)>>,
}

impl Shadow {
    pub(crate) fn new(bytes: u32, shift: u32, readers: usize) -> Shadow {
        let cells = (bytes >> shift) as usize;
        Shadow {
            shift,
            stamps: vec![Stamp::NEVER.0; cells],
            writers: vec![0; cells],
            writer_pcs: vec![0; cells],
            newest_reads: vec![0; cells],
            have_read: vec![false; readers],
            reads: vec![vec![0; cells]; readers],
            read_pcs: vec![vec![0; cells]; readers],
            equals: FxHashMap::default(),
        }
    }

    pub(crate) fn stamp(&self, cell: usize) -> Stamp {
        Stamp(self.stamps[cell])
    }
    pub(crate) fn writer(&self, cell: usize) -> (ActorId, u32) {
        (self.writers[cell], self.writer_pcs[cell])
    }
    pub(crate) fn newest_read(&self, cell: usize) -> Epoch {
        self.newest_reads[cell]
    }
    /// Epoch, lanes and operation of a reader's last reads.
    pub(crate) fn readers(&self, reader: usize, cell: usize) -> (Epoch, u32, u32) {
        let read = self.reads[reader][cell];
        (read as u32, (read >> 32) as u32, self.read_pcs[reader][cell])
    }

    /// The readers that have read any shared memory.
    pub(crate) fn reading(&self) -> impl Iterator<Item = usize> {
        let read = self.have_read.iter().enumerate();
        read.filter(|(_, read)| **read).map(|(reader, _)| reader)
    }

    /// Whether a reader's last reads of some cells are all ordered, given which of its lanes are not at an epoch.
    pub(crate) fn reads_are_ordered(
        &self,
        reader: usize,
        cells: Range<usize>,
        unordered: impl Fn(Epoch) -> u32,
    ) -> bool {
        let mut last = None;
        let mut wrong = 0;
        self.reads[reader][cells].iter().all(|&read| {
            let (epoch, lanes) = (read as u32, (read >> 32) as u32);
            if lanes != 0 && last != Some(epoch) {
                (last, wrong) = (Some(epoch), unordered(epoch));
            }
            lanes & wrong == 0
        })
    }

    /// Records the write of a range of cells by one actor.
    pub(crate) fn fill(&mut self, cells: Range<usize>, stamp: Stamp, writer: ActorId, pc: u32) {
        self.stamps[cells.clone()].fill(stamp.0);
        self.writers[cells.clone()].fill(writer);
        self.writer_pcs[cells].fill(pc);
    }

    /// Records reads of a range of cells by a reader's lanes.
    #[inline(always)]
    pub(crate) fn note_reads(&mut self, reader: usize, cells: Range<usize>, epoch: Epoch, lanes: u32, pc: u32) {
        self.have_read[reader] = true;
        for read in &mut self.reads[reader][cells.clone()] {
            *read = with_lanes(*read, epoch, lanes);
        }
        self.read_pcs[reader][cells.clone()].fill(pc);
        for newest in &mut self.newest_reads[cells] {
            *newest = (*newest).max(epoch);
        }
    }

    /// Records reads of a range of cells by a copy to another block. No fast path covers them.
    pub(crate) fn note_sent(&mut self, reader: usize, cells: Range<usize>, epoch: Epoch, pc: u32) {
        self.note_reads(reader, cells.clone(), epoch, 1, pc);
        self.newest_reads[cells].fill(Epoch::MAX);
    }

    /// The cells of a lane.
    #[inline(always)]
    pub(crate) fn cells(&self, access: &SharedAccess, lane: usize) -> Range<usize> {
        let first = (access.offsets[lane] >> self.shift) as usize;
        first..first + (access.bytes >> self.shift) as usize
    }

    /// Records reads. Returns whether the fast path proves that they follow the last writes.
    #[inline(always)]
    pub(crate) fn read(&mut self, who: &Who, access: &SharedAccess, pattern: Pattern) -> bool {
        self.have_read[who.warp] = true;
        let epoch = who.epoch;
        let mut ordered = true;
        match pattern {
            Pattern::Contiguous => {
                let cells = access.bytes >> self.shift;
                let first = (access.offsets[0] >> self.shift) as usize;
                let range = first..first + 32 * cells as usize;
                for &stamp in &self.stamps[range.clone()] {
                    ordered &= who.limits.cover(stamp);
                }
                let log = cells.trailing_zeros();
                for (i, read) in self.reads[who.warp][range.clone()].iter_mut().enumerate() {
                    *read = with_lanes(*read, epoch, 1 << (i >> log));
                }
                // Any line of the newest epoch is sufficient.
                self.read_pcs[who.warp][range.clone()].fill(who.pc);
                for newest in &mut self.newest_reads[range] {
                    *newest = (*newest).max(epoch);
                }
            }
            Pattern::Uniform => {
                let cells = self.cells(access, access.mask.trailing_zeros() as usize & 31);
                for &stamp in &self.stamps[cells.clone()] {
                    ordered &= who.limits.cover(stamp);
                }
                self.note_reads(who.warp, cells, epoch, access.mask, who.pc);
            }
            Pattern::Scattered => {
                ordered = match access.bytes >> self.shift {
                    1 => self.read_scattered::<1>(who, access),
                    2 => self.read_scattered::<2>(who, access),
                    4 => self.read_scattered::<4>(who, access),
                    _ => self.read_scattered::<8>(who, access),
                };
            }
        }
        ordered
    }

    /// `N` cells at each lane's offset. `N` is a constant so that a lane's cells are one vector.
    #[inline(always)]
    fn read_scattered<const N: usize>(&mut self, who: &Who, access: &SharedAccess) -> bool {
        let reads = &mut self.reads[who.warp][..];
        let pcs = &mut self.read_pcs[who.warp][..];
        let mut ordered = true;
        for lane in lanes(access.mask) {
            let first = (access.offsets[lane] >> self.shift) as usize;
            let range = first..first + N;
            for &stamp in &self.stamps[range.clone()] {
                ordered &= who.limits.cover(stamp);
            }
            for read in &mut reads[range.clone()] {
                *read = with_lanes(*read, who.epoch, 1 << lane);
            }
            pcs[range.clone()].fill(who.pc);
            for newest in &mut self.newest_reads[range] {
                *newest = (*newest).max(who.epoch);
            }
        }
        ordered
    }

    /// Whether the fast path proves that writes follow all earlier accesses.
    #[inline(always)]
    pub(crate) fn may_write(&self, who: &Who, access: &SharedAccess, pattern: Pattern) -> bool {
        let clear = |range: Range<usize>| {
            let mut ordered = true;
            for (&stamp, &read) in self.stamps[range.clone()].iter().zip(&self.newest_reads[range]) {
                ordered &= (who.limits.cover(stamp) | (stamp == Stamp::NEVER.0)) & (read <= who.limits.epoch);
            }
            ordered
        };
        if pattern == Pattern::Contiguous {
            let first = self.cells(access, 0).start;
            return clear(first..first + 32 * (access.bytes >> self.shift) as usize);
        }
        lanes(access.mask).fold(true, |ordered, lane| ordered & clear(self.cells(access, lane)))
    }

    /// Records writes by actors `actor` + lane. Returns lanes whose cells an earlier lane wrote.
    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        who: &Who,
        access: &SharedAccess,
        pattern: Pattern,
        (kind, actor): (WriterKind, ActorId),
    ) -> u32 {
        let stamp = Stamp::new(who.epoch, kind).0;
        let mut twice = 0;
        if pattern == Pattern::Contiguous {
            let cells = access.bytes >> self.shift;
            let first = self.cells(access, 0).start;
            let range = first..first + 32 * cells as usize;
            self.stamps[range.clone()].fill(stamp);
            self.writer_pcs[range.clone()].fill(who.pc);
            let log = cells.trailing_zeros();
            for (i, writer) in self.writers[range].iter_mut().enumerate() {
                *writer = actor + (i >> log) as u32;
            }
        } else {
            for lane in lanes(access.mask) {
                for cell in self.cells(access, lane) {
                    let by = actor + lane as u32;
                    let same = (self.stamps[cell] == stamp) & (self.writer_pcs[cell] == who.pc);
                    if same && self.writers[cell] != by && (actor..by).contains(&self.writers[cell]) {
                        twice |= 1 << lane;
                    }
                    self.stamps[cell] = stamp;
                    self.writers[cell] = by;
                    self.writer_pcs[cell] = who.pc;
                }
            }
        }
        twice
    }
}

impl Shadow {
    /// Notes a write that a store of the same bytes displaces: the last one of each writer, after whose earlier ones it
    /// came.
    #[cold]
    pub(crate) fn note_equal(&mut self, cell: usize, write: (Stamp, ActorId, u32)) {
        let all = self.equals.entry(cell).or_default();
        match all.iter_mut().find(|known| known.1 == write.1) {
            Some(known) => *known = write,
            None => all.push(write),
        }
    }

    /// Notes the lanes of the write by actors `actor` + lane whose cells a later lane of it wrote, too.
    #[cold]
    pub(crate) fn note_equals(&mut self, access: &SharedAccess, actor: ActorId) {
        for lane in lanes(access.mask) {
            let by = actor + lane as u32;
            for cell in self.cells(access, lane) {
                if self.writers[cell] != by {
                    self.note_equal(cell, (Stamp(self.stamps[cell]), by, access.pc));
                }
            }
        }
    }

    /// Whether an access has a cell with such writes.
    #[inline(always)]
    pub(crate) fn has_equals(&self, access: &SharedAccess) -> bool {
        let of_lane = |lane| self.cells(access, lane).any(|cell| self.equals.contains_key(&cell));
        !self.equals.is_empty() && lanes(access.mask).any(of_lane)
    }
}

/// Reads of a cell after lanes have read it at an epoch.
#[inline(always)]
fn with_lanes(read: u64, epoch: Epoch, lanes: u32) -> u64 {
    let known = if read as u32 == epoch { read } else { u64::from(epoch) };
    known | u64::from(lanes) << 32
}
