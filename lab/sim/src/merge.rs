//! Merges the writes of blocks in order of block index. Reports bytes that two blocks write, or
//! that one writes and another reads.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::atomic::changed;
use crate::finding::FindingKind;
use crate::global::{AtomicRecord, Cell, PAGE, PAGE_SHIFT, Pages, copy_of};
use crate::machine::Machine;
use crate::record::{Details, Findings, Key};
use crate::rng::Rng;
use crate::written::Written;

/// 2 bytes of global memory: slot, page, cell.
type Place = (usize, u64, usize);

/// An access to 2 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Owner {
    /// Cluster number plus one; 0 for no access.
    block: u64,
    pc: u32,
    thread: u32,
    atomic: bool,
    /// Whether one that wrote the cell has read it, too.
    read: bool,
}

struct MergedPage {
    data: [u8; PAGE],
    /// The last writer of each cell.
    owners: Vec<Owner>,
}

#[derive(Default)]
pub(crate) struct Merged {
    /// Bytes of a cell.
    unit: usize,
    pages: FxHashMap<(usize, u64), MergedPage>,
    /// Blocks' reads of bytes that they had not written.
    reads: Vec<(Place, Owner)>,
}

impl Merged {
    pub(crate) fn add(
        &mut self,
        machine: &Machine<'_>,
        linear: u64,
        pages: Pages,
        base: &[&[u8]],
        findings: &mut Findings,
    ) {
        let by = |pc: u32, thread: u32, atomic: bool| Owner {
            block: linear + 1,
            pc,
            thread,
            atomic,
            read: false,
        };
        self.unit = machine.unit();
        let unit = self.unit;
        let mut pages: Vec<_> = pages.into_iter().collect();
        pages.sort_by_key(|(at, _)| *at);
        for ((slot, number), page) in pages {
            // No block writes what the kernel may not.
            let may_be_written = machine.regions.iter().any(|r| r.slot == slot && r.written);
            let foreign = |cell: &Cell| may_be_written && cell.stamp().is_none() && cell.read_epoch != 0;
            for (i, cell) in page.cells.iter().enumerate().filter(|(_, cell)| foreign(cell)) {
                let thread = 32 * cell.reader_warp + cell.reader_lanes.trailing_zeros();
                self.reads.push(((slot, number, i), by(cell.reader_pc, thread, false)));
            }
            if page.cells.iter().all(|cell| cell.stamp().is_none()) {
                continue;
            }
            let merged = self.page(slot, number, base);
            let mut clash = None;
            for (i, cell) in page.cells.iter().enumerate() {
                let Some(stamp) = cell.stamp() else { continue };
                let owner = &mut merged.owners[i];
                let now = Owner {
                    read: owner.read || cell.read_epoch != 0,
                    ..by(cell.writer_pc, cell.writer, stamp.is_atomic())
                };
                let bytes = unit * i..unit * (i + 1);
                // In kernels of other compilers blocks may leave the same, if none reads it (docs/check-cuda.md).
                let is_equal = machine.is_foreign
                    && !owner.atomic
                    && !now.atomic
                    && !now.read
                    && merged.data[bytes.clone()] == page.data[bytes.clone()];
                if owner.block != 0 && !(owner.atomic && now.atomic) && !is_equal {
                    clash = clash.or(Some((i, *owner, now)));
                }
                *owner = now;
                merged.data[bytes.clone()].copy_from_slice(&page.data[bytes]);
            }
            if let Some((cell, owner, now)) = clash {
                report(machine, findings, (slot, number, cell), owner, now, true);
            }
        }
    }

    /// Applies the reductions of some clusters in a random order, in which each cluster's stay in
    /// theirs.
    pub(crate) fn reduce(&mut self, clusters: &[(u64, Vec<AtomicRecord>)], base: &[&[u8]], rng: &mut Rng) {
        let mut left: Vec<_> = clusters
            .iter()
            .map(|(linear, records)| (linear, records.iter()))
            .collect();
        while !left.is_empty() {
            let which = rng.below(left.len() as u32) as usize;
            let (linear, records) = &mut left[which];
            let Some(record) = records.next() else {
                _ = left.swap_remove(which);
                continue;
            };
            let owner = Owner {
                block: **linear + 1,
                pc: record.pc,
                thread: 0,
                atomic: true,
                read: false,
            };
            let unit = self.unit;
            let merged = self.page(record.slot, record.offset >> PAGE_SHIFT, base);
            let within = record.offset as usize % PAGE;
            let word = &mut merged.data[within..within + 4];
            let old = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let new = changed(record.update, old.into(), [record.value, 0], true) as u32;
            word.copy_from_slice(&new.to_le_bytes());
            merged.owners[within / unit..(within + 4) / unit].fill(owner);
        }
    }

    fn page(&mut self, slot: usize, number: u64, base: &[&[u8]]) -> &mut MergedPage {
        let cells = PAGE / self.unit;
        self.pages.entry((slot, number)).or_insert_with(|| MergedPage {
            data: copy_of(base[slot], number),
            owners: vec![Owner::default(); cells],
        })
    }

    /// Reports bytes that one block read and another wrote.
    pub(crate) fn check_reads(&self, machine: &Machine<'_>, findings: &mut Findings) {
        // Reads of a page follow each other.
        let mut last = None;
        for &(place, reader) in &self.reads {
            let (slot, number, cell) = place;
            let page = match last {
                Some((at, page)) if at == (slot, number) => page,
                _ => self.pages.get(&(slot, number)),
            };
            last = Some(((slot, number), page));
            if let Some(page) = page {
                let owner = page.owners[cell];
                if owner.block != 0 && owner.block != reader.block {
                    report(machine, findings, place, owner, reader, false);
                }
            }
        }
    }

    /// Written bytes by slot.
    pub(crate) fn written(&self) -> BTreeMap<usize, Written> {
        let mut written: BTreeMap<usize, Written> = BTreeMap::new();
        for (&(slot, number), page) in &self.pages {
            let of_slot = written.entry(slot).or_default();
            let owned = page.owners.iter().enumerate().filter(|(_, owner)| owner.block != 0);
            of_slot.set(number, owned.map(|(cell, _)| cell * self.unit / 2));
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
    (slot, page, cell): Place,
    first: Owner,
    second: Owner,
    both_write: bool,
) {
    let key = Key {
        kind: FindingKind::BlockRace,
        pc: second.pc,
        other: Some(first.pc),
    };
    let actor = |owner: Owner| machine.actor_of(owner.block - 1, owner.thread);
    findings.report(machine, key, || {
        let name = machine.launch.buffers[slot].name;
        let byte = ((page as usize) << PAGE_SHIFT) + machine.unit() * cell;
        let (a, b) = (actor(second), actor(first));
        let message = if both_write {
            format!(
                "blocks {:?} and {:?} both write byte {byte} of buffer `{name}`",
                b.block, a.block
            )
        } else {
            format!(
                "block {:?} reads byte {byte} of buffer `{name}`, which block {:?} writes",
                a.block, b.block
            )
        };
        Details::new(message, a)
            .other(b)
            .object(name.to_string())
            .bytes((byte as i64, (byte + machine.unit()) as i64))
            .help("blocks run in any order: give each its own bytes, use atomics, or order the accesses by flags")
    });
}
