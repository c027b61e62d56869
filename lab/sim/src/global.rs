//! A block's view of global memory: the launch's buffers, overlaid with pages of its own writes.
//!
//! Blocks run in parallel and must not see each other's writes. Each block copies a page at the
//! first access and writes to the copy. Pages carry shadow cells of 2 bytes (the narrowest access),
//! which also reveal races within the block.

use std::collections::HashMap;

use flashcore_ir::ScalarType;
use flashcore_ir::inst::AtomOp;

use crate::clock::{ActorId, Epoch, Stamp};
use crate::merge::Merged;

pub(crate) const PAGE_SHIFT: u32 = 11;
pub(crate) const PAGE: usize = 1 << PAGE_SHIFT;
/// Cells per page, of 2 bytes each.
pub(crate) const CELLS: usize = PAGE / 2;

/// A reduction that is applied after all blocks have finished.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicRecord {
    pub(crate) slot: usize,
    pub(crate) offset: u64,
    pub(crate) op: AtomOp,
    pub(crate) ty: ScalarType,
    pub(crate) value: u32,
    pub(crate) pc: u32,
}

/// Last write and last reads of 2 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cell {
    /// 0 if this block has not written the cell.
    pub(crate) stamp: u32,
    pub(crate) writer: ActorId,
    pub(crate) writer_pc: u32,
    pub(crate) read_epoch: Epoch,
    pub(crate) reader_warp: u32,
    pub(crate) reader_lanes: u32,
    pub(crate) reader_pc: u32,
}

impl Cell {
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        (self.stamp != 0).then_some(Stamp(self.stamp))
    }
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

pub(crate) type Pages = HashMap<(usize, u64), Box<Page>>;

/// A block's view of global memory.
pub(crate) struct Overlay<'m> {
    /// The buffers before the launch, by slot.
    pub(crate) base: &'m [&'m [u8]],
    /// Writes of earlier blocks, if blocks run serially.
    pub(crate) earlier: Option<&'m Merged>,
    pub(crate) pages: Pages,
}

impl Overlay<'_> {
    /// The page that holds byte `offset` of a buffer.
    pub(crate) fn page(&mut self, slot: usize, offset: u64) -> &mut Page {
        let number = offset >> PAGE_SHIFT;
        let (base, earlier) = (self.base, self.earlier);
        self.pages.entry((slot, number)).or_insert_with(|| {
            let written = earlier.and_then(|merged| merged.data(slot, number));
            Box::new(Page {
                data: written.copied().unwrap_or_else(|| copy_of(base[slot], number)),
                cells: vec![Cell::default(); CELLS],
            })
        })
    }

    pub(crate) fn written_earlier(&self, slot: usize, offset: u64) -> bool {
        self.earlier
            .is_some_and(|merged| merged.is_written(slot, offset >> PAGE_SHIFT, offset as usize % PAGE / 2))
    }
}
