//! Global memory as blocks see it: the launch's buffers, overlaid with pages of what they wrote.
//!
//! Blocks that do not communicate have one of these each, since they run in parallel and must not
//! see each other's writes. Blocks that do share one. A page is copied at the first access and then
//! written. Pages carry shadow cells of 2 bytes (the narrowest access), which reveal races.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::atomic::changed;
use crate::clock::{ActorId, Clock, Clocks, Epoch, Stamp};
use crate::text::cold::Update;

pub(crate) const PAGE_SHIFT: u32 = 11;
pub(crate) const PAGE: usize = 1 << PAGE_SHIFT;
/// Cells per page of 2 bytes each. A kernel that accesses single bytes has twice as many.
pub(crate) const CELLS: usize = PAGE / 2;

/// A reduction that is applied after all blocks have finished.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicRecord {
    pub(crate) slot: usize,
    pub(crate) offset: u64,
    pub(crate) update: Update,
    pub(crate) value: u64,
    pub(crate) pc: u32,
}

/// A past access to a cell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Past {
    pub(crate) cluster: u64,
    /// The actor of a write, or the first thread of the warp that read.
    pub(crate) actor: ActorId,
    /// The lanes that read; 0 for a write.
    pub(crate) lanes: u32,
    pub(crate) epoch: Epoch,
    pub(crate) pc: u32,
    pub(crate) atomic: bool,
}

impl Past {
    /// The actors of this access, as lanes from `actor` on, that a thread of cluster `own` with
    /// this clock does not follow.
    #[inline(always)]
    pub(crate) fn unordered(&self, own: u64, clock: &Clock) -> u32 {
        let lanes = self.lanes.max(1);
        match clock.of(own, self.cluster) {
            None => lanes,
            Some(clock) if self.lanes == 0 => u32::from(!clock.knows(self.actor, self.epoch)),
            Some(clock) => lanes & clock.unknown_from(self.actor, self.epoch),
        }
    }
}

/// Last write and last reads of 2 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cell {
    /// 0 if no block has written the cell.
    pub(crate) stamp: u32,
    pub(crate) writer: ActorId,
    pub(crate) writer_pc: u32,
    pub(crate) read_epoch: Epoch,
    pub(crate) reader_warp: u32,
    pub(crate) reader_lanes: u32,
    pub(crate) reader_pc: u32,
    /// Clusters of the writer and of the reader.
    pub(crate) written_in: u32,
    pub(crate) read_in: u32,
}

impl Cell {
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        (self.stamp != 0).then_some(Stamp(self.stamp))
    }
    pub(crate) fn write(&self) -> Past {
        Past {
            cluster: u64::from(self.written_in),
            actor: self.writer,
            lanes: 0,
            epoch: Stamp(self.stamp).epoch(),
            pc: self.writer_pc,
            atomic: Stamp(self.stamp).is_atomic(),
        }
    }
    pub(crate) fn read(&self) -> Past {
        Past {
            cluster: u64::from(self.read_in),
            actor: 32 * self.reader_warp,
            lanes: self.reader_lanes,
            epoch: self.read_epoch,
            pc: self.reader_pc,
            atomic: false,
        }
    }
}

/// Adds an access to a list that keeps the last one of each actor.
pub(crate) fn keep(all: &mut Vec<Past>, past: Past) {
    let who = |past: &Past| (past.cluster, past.actor, past.lanes == 0, past.atomic);
    match all.iter_mut().find(|known| who(known) == who(&past)) {
        Some(known) => *known = past,
        None => all.push(past),
    }
}

/// The words of some bytes.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word))
}

/// A copy of a page of a buffer; zero after the buffer's end.
pub(crate) fn copy_of(bytes: &[u8], page: u64) -> [u8; PAGE] {
    let mut data = [0; PAGE];
    let bytes = &bytes[((page as usize) << PAGE_SHIFT).min(bytes.len())..];
    let len = bytes.len().min(PAGE);
    data[..len].copy_from_slice(&bytes[..len]);
    data
}

#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) data: [u8; PAGE],
    pub(crate) cells: Vec<Cell>,
}

pub(crate) type Pages = FxHashMap<(usize, u64), Box<Page>>;

/// A place in a buffer: its slot and a byte offset.
pub(crate) type Place = (usize, u64);

/// The number whose bytes are given.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Values on their way into global memory (`cp.reduce.async.bulk`).
#[derive(Debug)]
pub(crate) struct Sum {
    /// Cluster and thread that started it.
    pub(crate) by: (u64, ActorId),
    pub(crate) epoch: Epoch,
    pub(crate) to: Place,
    pub(crate) update: Update,
    pub(crate) values: Vec<u64>,
}

/// Global memory, and what orders accesses of clusters to it. All but `base` and `pages` is empty
/// where clusters do not communicate.
#[derive(Default)]
pub(crate) struct Global<'m> {
    /// The buffers before the launch, by slot.
    pub(crate) base: &'m [&'m [u8]],
    /// Bytes of a cell: 2 or 1.
    pub(crate) unit: usize,
    pub(crate) pages: Pages,
    /// What the last releases of a word carry.
    pub(crate) flags: FxHashMap<Place, Rc<Clocks>>,
    /// By cell: accesses that a later one displaced without being ordered after them.
    pub(crate) displaced: FxHashMap<Place, Vec<Past>>,
    /// By word: reads of the value that its last atomic left there.
    pub(crate) observers: FxHashMap<Place, Vec<Past>>,
    pub(crate) sums: Vec<Sum>,
    /// Warps, by cluster and index, that wait for a word to change, and those whose word did.
    pub(crate) watched: FxHashMap<Place, Vec<(u64, usize)>>,
    pub(crate) woken: Vec<(u64, usize)>,
    /// How often something changed that another warp may wait for.
    pub(crate) changes: u64,
}

impl<'m> Global<'m> {
    pub(crate) fn new(base: &'m [&'m [u8]], unit: usize) -> Global<'m> {
        Global {
            base,
            unit,
            ..Global::default()
        }
    }

    /// The page that holds byte `offset` of a buffer.
    pub(crate) fn page(&mut self, slot: usize, offset: u64) -> &mut Page {
        let number = offset >> PAGE_SHIFT;
        let (base, unit) = (self.base, self.unit);
        self.pages.entry((slot, number)).or_insert_with(|| {
            Box::new(Page {
                data: copy_of(base[slot], number),
                cells: vec![Cell::default(); PAGE / unit],
            })
        })
    }

    /// Whether one of some bytes was written by this block, or by others that communicate with it.
    pub(crate) fn is_written(&self, (slot, offset): Place, bytes: usize) -> bool {
        let first = offset as usize % PAGE / self.unit;
        let page = self.pages.get(&(slot, offset >> PAGE_SHIFT));
        let cells = page.map_or(&[][..], |page| &page.cells[first..first + bytes.div_ceil(self.unit)]);
        cells.iter().any(|cell| cell.stamp != 0)
    }

    pub(crate) fn word(&mut self, (slot, offset): Place, bytes: u32) -> u64 {
        let within = offset as usize % PAGE;
        number(&self.page(slot, offset).data[within..within + bytes as usize])
    }

    /// Notes that bytes have changed.
    pub(crate) fn changed(&mut self, (slot, offset): Place, bytes: u64) {
        self.changes += 1;
        if !self.watched.is_empty() {
            for word in (offset & !3..offset + bytes).step_by(4) {
                self.woken
                    .extend(self.watched.remove(&(slot, word)).unwrap_or_default());
            }
        }
    }

    /// Adds the words of a sum.
    pub(crate) fn land(&mut self, which: usize) {
        let Sum { to, update, values, .. } = self.sums.swap_remove(which);
        let size = update.size as usize;
        for (i, &value) in values.iter().enumerate() {
            let to = (to.0, to.1 + (size * i) as u64);
            let sum = changed(update, self.word(to, update.size), [value, 0], true).to_le_bytes();
            let within = to.1 as usize % PAGE;
            self.page(to.0, to.1).data[within..within + size].copy_from_slice(&sum[..size]);
            self.changed(to, size as u64);
        }
    }
}
