//! Merges the writes of blocks in order of block index. Reports bytes that two blocks write, or
//! that one writes and another reads.

use std::collections::{BTreeMap, HashMap};

use crate::atomic;
use crate::clock::{ActorKind, Stamp};
use crate::finding::FindingKind;
use crate::global::{AtomicRecord, CELLS, Cell, PAGE, PAGE_SHIFT, Pages};
use crate::machine::Machine;
use crate::record::{Details, Findings, Key};
use crate::written::Written;

/// Last writer of 2 bytes.
#[derive(Clone, Copy, Debug)]
struct Owner {
    /// Cluster number plus one; 0 if never written.
    block: u64,
    pc: u32,
    thread: u32,
    atomic: bool,
}

const NEVER_WRITTEN: Owner = Owner {
    block: 0,
    pc: 0,
    thread: 0,
    atomic: false,
};

struct MergedPage {
    data: [u8; PAGE],
    owners: Vec<Owner>,
}

/// A block's read of 2 bytes that it had not written.
struct ForeignRead {
    slot: usize,
    page: u64,
    cell: usize,
    block: u64,
    pc: u32,
    thread: u32,
}

#[derive(Default)]
pub(crate) struct Merged {
    pages: HashMap<(usize, u64), MergedPage>,
    reads: Vec<ForeignRead>,
}

impl Merged {
    /// The bytes of a page, if any block has written to it.
    pub(crate) fn data(&self, slot: usize, page: u64) -> Option<&[u8; PAGE]> {
        self.pages.get(&(slot, page)).map(|page| &page.data)
    }

    pub(crate) fn is_written(&self, slot: usize, page: u64, cell: usize) -> bool {
        self.pages
            .get(&(slot, page))
            .is_some_and(|page| page.owners[cell].block != 0)
    }

    pub(crate) fn add(
        &mut self,
        machine: &Machine<'_>,
        linear: u64,
        pages: Pages,
        atomics: &[AtomicRecord],
        base: &[&[u8]],
        findings: &mut Findings,
    ) {
        let block = linear + 1;
        let mut pages: Vec<_> = pages.into_iter().collect();
        pages.sort_by_key(|(at, _)| *at);
        for ((slot, number), page) in pages {
            let wrote = page.cells.iter().any(|cell| cell.stamp().is_some());
            if !machine.serial {
                let foreign = |cell: &Cell| cell.stamp().is_none() && cell.read_epoch != 0;
                for (i, cell) in page.cells.iter().enumerate().filter(|(_, cell)| foreign(cell)) {
                    self.reads.push(ForeignRead {
                        slot,
                        page: number,
                        cell: i,
                        block,
                        pc: cell.reader_pc,
                        thread: 32 * cell.reader_warp + cell.reader_lanes.trailing_zeros(),
                    });
                }
            }
            if !wrote {
                continue;
            }
            let merged = self.page(slot, number, base);
            let mut clash = None;
            for (i, cell) in page.cells.iter().enumerate() {
                let Some(stamp) = cell.stamp() else { continue };
                let owner = &mut merged.owners[i];
                let now = Owner {
                    block,
                    pc: cell.writer_pc,
                    thread: cell.writer,
                    atomic: Stamp::is_atomic(stamp),
                };
                if owner.block != 0 && !(owner.atomic && now.atomic) && !machine.serial {
                    clash = clash.or(Some((i, *owner, now)));
                }
                *owner = now;
                merged.data[2 * i..2 * i + 2].copy_from_slice(&page.data[2 * i..2 * i + 2]);
            }
            if let Some((cell, owner, now)) = clash {
                report(machine, findings, (slot, number, cell), owner, now, "write");
            }
        }
        for record in atomics {
            let merged = self.page(record.slot, record.offset >> PAGE_SHIFT, base);
            let within = record.offset as usize % PAGE;
            let word = &mut merged.data[within..within + 4];
            let old = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let new = atomic::apply_global(record.op, record.ty, old, record.value);
            word.copy_from_slice(&new.to_le_bytes());
            for owner in &mut merged.owners[within / 2..within / 2 + 2] {
                *owner = Owner {
                    block,
                    pc: record.pc,
                    thread: 0,
                    atomic: true,
                };
            }
        }
    }

    fn page(&mut self, slot: usize, number: u64, base: &[&[u8]]) -> &mut MergedPage {
        self.pages.entry((slot, number)).or_insert_with(|| {
            let mut data = [0; PAGE];
            let bytes = &base[slot][((number as usize) << PAGE_SHIFT).min(base[slot].len())..];
            let len = bytes.len().min(PAGE);
            data[..len].copy_from_slice(&bytes[..len]);
            MergedPage {
                data,
                owners: vec![NEVER_WRITTEN; CELLS],
            }
        })
    }

    /// Reports bytes that one block read and another wrote.
    pub(crate) fn check_reads(&self, machine: &Machine<'_>, findings: &mut Findings) {
        for read in &self.reads {
            let Some(page) = self.pages.get(&(read.slot, read.page)) else {
                continue;
            };
            let owner = page.owners[read.cell];
            if owner.block != 0 && owner.block != read.block {
                let reader = Owner {
                    block: read.block,
                    pc: read.pc,
                    thread: read.thread,
                    atomic: false,
                };
                report(
                    machine,
                    findings,
                    (read.slot, read.page, read.cell),
                    owner,
                    reader,
                    "read",
                );
            }
        }
    }

    /// Written bytes by slot.
    pub(crate) fn written(&self) -> BTreeMap<usize, Written> {
        let mut written: BTreeMap<usize, Written> = BTreeMap::new();
        for (&(slot, number), page) in &self.pages {
            let of_slot = written.entry(slot).or_default();
            for (cell, _) in page.owners.iter().enumerate().filter(|(_, owner)| owner.block != 0) {
                of_slot.set(number, cell);
            }
        }
        written
    }

    /// Copies all writes into the buffers.
    pub(crate) fn store<B: AsMut<[u8]>>(self, buffers: &mut [B]) {
        for ((slot, number), page) in self.pages {
            let bytes = buffers[slot].as_mut();
            let start = (number as usize) << PAGE_SHIFT;
            let len = PAGE.min(bytes.len().saturating_sub(start));
            bytes[start..start + len].copy_from_slice(&page.data[..len]);
        }
    }
}

fn report(
    machine: &Machine<'_>,
    findings: &mut Findings,
    (slot, page, cell): (usize, u64, usize),
    first: Owner,
    second: Owner,
    does: &str,
) {
    let key = Key::new(FindingKind::BlockRace, second.pc, Some(first.pc));
    let actor = |owner: Owner| {
        // Writes of a bulk store count as writes of its thread.
        let thread = match machine.actors.who(owner.thread) {
            ActorKind::Thread(thread) | ActorKind::Store(thread) => thread,
            _ => 0,
        };
        machine.actor(owner.block - 1, thread as usize / 32, 1 << (thread % 32))
    };
    findings.report(machine, key, || {
        let name = machine.launch.buffers[slot].name;
        let byte = ((page as usize) << PAGE_SHIFT) + 2 * cell;
        let (a, b) = (actor(second), actor(first));
        let message = match does {
            "write" => format!(
                "blocks {:?} and {:?} both write byte {byte} of buffer `{name}`",
                b.block, a.block
            ),
            _ => format!(
                "block {:?} reads byte {byte} of buffer `{name}`, which block {:?} writes",
                a.block, b.block
            ),
        };
        Details::new(message, a)
            .other(b)
            .object(name.to_string())
            .bytes((byte as i64, byte as i64 + 2))
            .help("blocks run in any order: give each its own bytes, or use atomics")
    });
}
