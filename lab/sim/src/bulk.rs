//! Bulk copies of tensor boxes (Tensor Memory Accelerator).
//!
//! A load is checked at its start, with its issuer's clock, as a write by the actor of its
//! mbarrier. It reads the tensor at that time; its data lands later, when the schedule decides. A
//! store is checked as a read of the tile and a write of the tensor. These are two actors of the
//! issuing thread, and waiting for the store's group synchronises with them.

use std::collections::VecDeque;

use crate::clock::{Epoch, Stamp, WriterKind};
use crate::cluster::Cluster;
use crate::finding::{Actor, FindingKind};
use crate::machine::{TensorMap, map_address};
use crate::program::{At, BoxCopy};
use crate::record::Details;
use crate::shared_memory::POISON;
use crate::traffic::Traffic;
use crate::warp::Warp;

/// Alignment of bulk copies in shared memory (PTX ISA, "cp.async.bulk.tensor").
const SHARED_ALIGN: u32 = 128;

#[derive(Debug)]
pub(crate) struct InFlight {
    /// First byte in the cluster's shared memory.
    first: u32,
    /// The words of the box in order, before swizzling.
    words: Vec<u32>,
    swizzle: flashcore_ir::Swizzle,
    pub(crate) mbarrier: u32,
    /// Phase of the mbarrier when the load started.
    pub(crate) phase: i64,
    epoch: Epoch,
    pub(crate) actor: Actor,
    pub(crate) pc: u32,
}

impl InFlight {
    pub(crate) fn bytes(&self) -> u32 {
        4 * self.words.len() as u32
    }
}

#[derive(Debug)]
pub(crate) struct BulkStores {
    /// Lane and epoch of stores whose reads (or writes) are not yet waited for, in order of issue.
    reads: Vec<(u32, Epoch)>,
    writes: Vec<(u32, Epoch)>,
    /// By lane: the closing epoch of each open group, oldest first; for reads and for writes.
    unread: [VecDeque<Epoch>; 32],
    unwritten: [VecDeque<Epoch>; 32],
    last_pc: u32,
}

impl Default for BulkStores {
    fn default() -> BulkStores {
        BulkStores {
            reads: Vec::new(),
            writes: Vec::new(),
            unread: std::array::from_fn(|_| VecDeque::new()),
            unwritten: std::array::from_fn(|_| VecDeque::new()),
            last_pc: 0,
        }
    }
}

/// By lane: the epoch up to which nothing is in flight.
fn finished(pending: &[(u32, Epoch)], now: Epoch) -> [Epoch; 32] {
    let mut epochs = [now; 32];
    for &(lane, epoch) in pending.iter().rev() {
        epochs[lane as usize] = epoch - 1;
    }
    epochs
}

impl BulkStores {
    pub(crate) fn reads_finished(&self, now: Epoch) -> [Epoch; 32] {
        finished(&self.reads, now)
    }
    pub(crate) fn writes_finished(&self, now: Epoch) -> [Epoch; 32] {
        finished(&self.writes, now)
    }
}

/// The bytes of a box row that lie inside the tensor: offset in the row, offset in the buffer,
/// count.
struct Run {
    within: usize,
    offset: u64,
    bytes: usize,
}

/// The rows of the box at `at`, each with its bytes inside the tensor.
fn runs(map: &TensorMap, at: &[i32]) -> Vec<Run> {
    let recipe = &map.recipe;
    let element = u64::from(recipe.element.bytes());
    let row_bytes = recipe.box_dims[0] as usize * element as usize;
    let rows: u32 = recipe.box_dims[1..].iter().product();
    let mut found = Vec::new();
    for row in 0..rows {
        let (mut rest, mut offset, mut inside) = (row, recipe.byte_offset, true);
        for dim in 1..recipe.dims.len() {
            let index = i64::from(at[dim]) + i64::from(rest % recipe.box_dims[dim]);
            rest /= recipe.box_dims[dim];
            inside &= index >= 0 && (index as u64) < recipe.dims[dim];
            offset = offset.wrapping_add((index as u64).wrapping_mul(recipe.byte_strides[dim - 1]));
        }
        let first = i64::from(at[0]).max(0);
        let last = (i64::from(at[0]) + i64::from(recipe.box_dims[0])).min(recipe.dims[0].min(1 << 40) as i64);
        if inside && first < last {
            found.push(Run {
                within: row as usize * row_bytes + (first - i64::from(at[0])) as usize * element as usize,
                offset: offset + first as u64 * element,
                bytes: (last - first) as usize * element as usize,
            });
        }
    }
    found
}

impl<'m> Cluster<'m> {
    /// The byte offset of a lane's box in the cluster's shared memory, if it is in bounds and
    /// aligned.
    fn box_place(&mut self, warp: &Warp, pc: u32, lane: u32, at: At, bytes: u32, rank: usize) -> Option<u32> {
        let base = warp.registers.get(&self.machine.constants, at.base)[lane as usize];
        let offset = base
            .wrapping_add(at.offset as u32)
            .wrapping_sub(warp.shared_start)
            .wrapping_sub(warp.shared_first);
        let buffer = self.shared_buffer(at);
        let relative = i64::from(offset as i32) - i64::from(buffer.offset);
        let out = relative < 0 || relative + i64::from(bytes) > i64::from(buffer.bytes);
        if !out && offset.is_multiple_of(SHARED_ALIGN) {
            return Some(offset + rank as u32 * self.machine.shared_bytes);
        }
        let kind = if out {
            FindingKind::OutOfBounds
        } else {
            FindingKind::Misaligned
        };
        let total = buffer.bytes;
        self.report(kind, pc, |cluster| {
            let end = relative + i64::from(bytes);
            let message = if out {
                format!(
                    "a box of {bytes} bytes at bytes {relative}..{end} of shared buffer `{}`, which has {total} bytes",
                    buffer.name
                )
            } else {
                format!(
                    "a box at byte {relative} of shared buffer `{}`, byte {offset} of shared memory; boxes start at \
                     multiples of {SHARED_ALIGN}",
                    buffer.name
                )
            };
            Details::new(message, cluster.actor(warp.index, 1 << lane))
                .object(buffer.name.clone())
                .bytes((relative, end))
        });
        None
    }

    fn coordinates(&self, warp: &Warp, copy: &BoxCopy, lane: u32) -> Vec<i32> {
        let constants = &self.machine.constants;
        let at = copy.at.iter();
        at.map(|&row| warp.registers.get(constants, row)[lane as usize] as i32)
            .collect()
    }

    /// Whether a lane's copy uses the tensor map of its parameter.
    fn uses_its_map(&mut self, warp: &Warp, pc: u32, lane: u32, copy: &BoxCopy) -> bool {
        let machine = self.machine;
        let base = warp.registers.get64(&machine.constants, copy.map_base)[lane as usize];
        let address = base.wrapping_add(copy.map_offset as u64);
        if address == map_address(usize::from(copy.map)) {
            return true;
        }
        let params = machine.kernel.params();
        let other = (0..params.len()).find(|&index| machine.maps[index].is_some() && map_address(index) == address);
        self.report(FindingKind::OutOfBounds, pc, |cluster| {
            let name = params[usize::from(copy.map)].name.clone();
            let what = match other {
                Some(index) => format!("tensor map `{}`", params[index].name),
                None => format!("address {address:#x}, which is not a tensor map"),
            };
            let message = format!("a copy declared to use tensor map `{name}` uses {what}");
            Details::new(message, cluster.actor(warp.index, 1 << lane)).object(name)
        });
        false
    }

    /// Counts the sectors of a box; once for a multicast.
    fn count_box(&mut self, pc: u32, map: &TensorMap) {
        if !self.traffic.is_empty() {
            let sectors = u64::from(map.bytes.div_ceil(32));
            self.traffic[pc as usize].add(Traffic {
                requests: 1,
                transactions: sectors,
                ideal: sectors,
            });
        }
    }

    pub(crate) fn bulk_load(&mut self, warp: &mut Warp, pc: u32, copy: u32) {
        let machine = self.machine;
        let copy = &machine.program.copies[copy as usize];
        let (Some(map), Some(bar)) = (&machine.maps[usize::from(copy.map)], copy.mbarrier) else {
            return;
        };
        let map: &'m TensorMap = map;
        for lane in (0..32u32).filter(|lane| warp.active >> lane & 1 != 0) {
            if !self.uses_its_map(warp, pc, lane, copy) {
                continue;
            }
            let ranks = match copy.multicast {
                None => 1 << warp.rank,
                Some(row) => warp.registers.get(&machine.constants, row)[lane as usize] & 0xffff,
            };
            if ranks >> machine.blocks != 0 || ranks == 0 {
                self.report(FindingKind::OutOfBounds, pc, |cluster| {
                    let message = format!(
                        "a multicast to block mask {ranks:#x}; the cluster has {} blocks",
                        machine.blocks
                    );
                    Details::new(message, cluster.actor(warp.index, 1 << lane))
                });
                continue;
            }
            self.check_dependency(warp, pc, lane);
            self.count_box(pc, map);
            let at = self.coordinates(warp, copy, lane);
            let words = self.read_box(warp, pc, lane, copy.map, map, &at);
            for rank in (0..machine.blocks).filter(|rank| ranks >> rank & 1 != 0) {
                let Some(first) = self.box_place(warp, pc, lane, copy.shared, map.bytes, rank) else {
                    continue;
                };
                let Some(place) = self.mbarrier_place(warp, pc, lane, bar, rank) else {
                    continue;
                };
                self.start_load(warp, pc, lane, copy.shared, first, place, &words, map);
            }
        }
    }

    /// The mbarrier that a lane names, in the block of a rank.
    fn mbarrier_place(&mut self, warp: &Warp, pc: u32, lane: u32, bar: At, rank: usize) -> Option<u32> {
        let base = *warp.registers.get(&self.machine.constants, bar.base);
        let (offsets, mask) = self.shared_offsets(warp, pc, 1 << lane, &base, bar, 8);
        if mask == 0 {
            return None;
        }
        let mine = self.mbarrier_number(bar, offsets[lane as usize])? as usize;
        let per_block = self.machine.mbarriers_per_block;
        Some((mine % per_block + rank * per_block) as u32)
    }

    #[allow(clippy::too_many_arguments)]
    fn start_load(
        &mut self,
        warp: &Warp,
        pc: u32,
        lane: u32,
        tile: At,
        first: u32,
        number: u32,
        words: &[u32],
        map: &TensorMap,
    ) {
        if !self.usable(warp, pc, lane as usize, number) {
            return;
        }
        let epoch = self.next_epoch();
        let actor = self.actor(warp.index, 1 << lane);
        let id = self.machine.actors.mbarrier(number);
        let rank = number as usize / self.machine.mbarriers_per_block;
        self.note_remote_as(warp, pc, rank, id, epoch);
        let name = self.mbarrier_name(number);
        let Some(mbarrier) = &mut self.mbarriers[number as usize] else {
            return;
        };
        mbarrier.copier = Some(actor);
        let (phase, fenced) = (mbarrier.phase, mbarrier.fenced);
        if !fenced {
            self.report(FindingKind::MissingFence, pc, |_| {
                Details::new(
                    format!("a copy completes at mbarrier {name}, whose initialisation was not fenced"),
                    actor,
                )
                .help("let the initialising thread execute `fence_mbarrier_init` before the barrier")
            });
        }
        self.check_async_write(warp, pc, lane, tile, first, map.bytes);
        let cells = (first >> self.shadow.shift) as usize..((first + map.bytes) >> self.shadow.shift) as usize;
        self.shadow.fill(cells, Stamp::new(epoch, WriterKind::Bulk), id, pc);
        let word = first as usize / 4;
        self.words[word..word + words.len()].fill(POISON);
        self.in_flight.push(InFlight {
            first,
            words: words.to_vec(),
            swizzle: map.recipe.swizzle,
            mbarrier: number,
            phase,
            epoch,
            actor,
            pc,
        });
    }

    /// The words of a box; zero outside the tensor.
    fn read_box(&mut self, warp: &Warp, pc: u32, lane: u32, param: u16, map: &TensorMap, at: &[i32]) -> Vec<u32> {
        let region = &self.machine.regions[usize::from(param)];
        let mut bytes = vec![0u8; map.bytes as usize];
        for run in runs(map, at) {
            let row = &mut bytes[run.within..run.within + run.bytes];
            if region.overlaid {
                // Reads 2 bytes at a time, like loads of the thread.
                for (i, part) in row.chunks_mut(2).enumerate() {
                    let address = region.base + run.offset + 2 * i as u64;
                    self.read_global_lane(warp, pc, lane, param, address, 1, part);
                }
            } else {
                let first = run.offset as usize;
                row.copy_from_slice(&self.overlay.constant(region.slot)[first..first + run.bytes]);
            }
        }
        let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        bytes.chunks_exact(4).map(word).collect()
    }

    pub(crate) fn land(&mut self, which: usize) {
        let copy = self.in_flight.swap_remove(which);
        for (i, &word) in copy.words.iter().enumerate() {
            let place = copy.swizzle.apply(copy.first + 4 * i as u32);
            self.words[place as usize / 4] = word;
        }
        self.complete_bytes(copy.mbarrier, copy.bytes(), copy.epoch);
    }

    pub(crate) fn bulk_store(&mut self, warp: &mut Warp, pc: u32, copy: u32) {
        let machine = self.machine;
        let copy = &machine.program.copies[copy as usize];
        let Some(map) = &machine.maps[usize::from(copy.map)] else {
            return;
        };
        let region = &machine.regions[usize::from(copy.map)];
        for lane in (0..32u32).filter(|lane| warp.active >> lane & 1 != 0) {
            if !self.uses_its_map(warp, pc, lane, copy) {
                continue;
            }
            let Some(first) = self.box_place(warp, pc, lane, copy.shared, map.bytes, warp.rank) else {
                continue;
            };
            self.check_dependency(warp, pc, lane);
            self.count_box(pc, map);
            let thread = (32 * warp.index) as u32 + lane;
            let reader = machine.store_reader(warp.index);
            self.check_async_read(warp, 1 << lane, pc, copy.shared, &[(first, map.bytes)]);
            let epoch = warp.epoch;
            let cells = (first >> self.shadow.shift) as usize..((first + map.bytes) >> self.shadow.shift) as usize;
            self.shadow.note_reads(reader, cells, epoch, 1 << lane, pc);
            let stores = &mut self.stores[warp.index];
            stores.reads.push((lane, epoch));
            stores.writes.push((lane, epoch));
            stores.last_pc = pc;
            let mut bytes = Vec::with_capacity(map.bytes as usize);
            for i in 0..map.bytes / 4 {
                let place = map.recipe.swizzle.apply(first + 4 * i);
                bytes.extend(self.words[place as usize / 4].to_le_bytes());
            }
            let at = self.coordinates(warp, copy, lane);
            for run in runs(map, &at) {
                let row = &bytes[run.within..run.within + run.bytes];
                for (i, part) in row.chunks(2).enumerate() {
                    let writer = (WriterKind::Agent, machine.actors.store_writes_of(thread));
                    self.write_lane(warp, pc, lane, region, run.offset + 2 * i as u64, part, writer);
                }
            }
        }
    }

    /// `cp.async.bulk.commit_group` for the active lanes.
    pub(crate) fn bulk_commit(&mut self, warp: &mut Warp) {
        let stores = &mut self.stores[warp.index];
        for lane in (0..32).filter(|lane| warp.active >> lane & 1 != 0) {
            stores.unread[lane].push_back(warp.epoch);
            stores.unwritten[lane].push_back(warp.epoch);
        }
        warp.epoch = self.next_epoch();
    }

    /// `cp.async.bulk.wait_group`, or its `.read` form: waits until each active lane has at most
    /// `pending` open groups.
    pub(crate) fn bulk_wait(&mut self, warp: &mut Warp, pending: u32, read: bool) {
        let (actors, active) = (self.machine.actors, warp.active);
        for lane in (0..32u32).filter(|lane| active >> lane & 1 != 0) {
            let stores = &mut self.stores[warp.index];
            let thread = (32 * warp.index) as u32 + lane;
            let reached = |groups: &mut VecDeque<Epoch>, unfinished: &mut Vec<(u32, Epoch)>| {
                let mut newest = None;
                while groups.len() > pending as usize {
                    newest = groups.pop_front();
                }
                if let Some(newest) = newest {
                    unfinished.retain(|&(by, epoch)| by != lane || epoch > newest);
                }
                newest
            };
            let read_up_to = reached(&mut stores.unread[lane as usize], &mut stores.reads);
            let written_up_to = if read {
                None
            } else {
                reached(&mut stores.unwritten[lane as usize], &mut stores.writes)
            };
            if read_up_to.is_none() && written_up_to.is_none() {
                continue;
            }
            warp.learn_each(1 << lane, |clock| {
                if let Some(epoch) = read_up_to {
                    clock.learn(actors.store_of(thread), epoch);
                }
                if let Some(epoch) = written_up_to {
                    clock.learn(actors.store_writes_of(thread), epoch);
                }
            });
        }
    }

    /// Reports stores that may still read shared memory when their warp ends.
    pub(crate) fn check_stores_at_end(&mut self, warp: &Warp) {
        let stores = &self.stores[warp.index];
        if stores.reads.is_empty() {
            return;
        }
        let lanes = stores.reads.iter().fold(0, |lanes, (lane, _)| lanes | 1 << lane);
        let pc = stores.last_pc;
        self.report(FindingKind::MissingWait, pc, |cluster| {
            let message = "a bulk store may still read its tile when the block exits";
            Details::new(message, cluster.actor(warp.index, lanes))
                .help("close its group (`bulk_commit`) and wait for it (`bulk_wait_read(0)`) before the exit")
        });
    }
}
