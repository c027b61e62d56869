//! Bulk copies of tensor boxes (Tensor Memory Accelerator).
//!
//! A load is checked at its start, with its issuer's clock, as a write by the actor of its
//! mbarrier. It reads the tensor at that time; its data lands later, when the schedule decides. A
//! store is checked as a read of the tile and a write of the tensor. These are two actors of the
//! issuing thread, and waiting for the store's group synchronises with them.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use flashcore_ir::Operand;
use flashcore_ir::inst::{Address, BulkInst, Space};

use crate::clock::{Epoch, WriterKind};
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::global::{Sum, words};
use crate::landing::Landing;
use crate::machine::{TensorMap, map_address};
use crate::program::At;
use crate::record::Details;
use crate::registers::lanes;
use crate::text::UNKNOWN;
use crate::text::cold::{Unlike, Update};
use crate::warp::{Lane, Warp};

/// Alignment of bulk copies in shared memory (PTX ISA, "cp.async.bulk.tensor").
pub(crate) const BOX_ALIGN: u32 = 128;

#[derive(Debug, Default)]
pub(crate) struct BulkStores {
    /// Lane and epoch of stores whose reads (or writes) are not yet waited for, in order of issue.
    pub(crate) reads: Vec<(usize, Epoch)>,
    pub(crate) writes: Vec<(usize, Epoch)>,
    /// By lane: the closing epoch of each open group, oldest first; for reads and for writes.
    unread: [VecDeque<Epoch>; 32],
    unwritten: [VecDeque<Epoch>; 32],
    last_pc: u32,
}

/// By lane: the epoch up to which nothing is in flight.
pub(crate) fn finished(pending: &[(usize, Epoch)], now: Epoch) -> [Epoch; 32] {
    let mut epochs = [now; 32];
    for &(lane, epoch) in pending.iter().rev() {
        epochs[lane] = epoch - 1;
    }
    epochs
}

/// The bytes of a box row that lie inside the tensor.
struct Run {
    /// Offset in the box.
    within: usize,
    /// Offset in the buffer.
    offset: u64,
    bytes: usize,
}

/// The rows of the box at `at`, each with its bytes inside the tensor.
fn runs(map: &TensorMap, at: &[i32]) -> Vec<Run> {
    let encoded = &map.encoded;
    let element = u64::from(map.recipe.element.bytes());
    let row_bytes = encoded.box_dims[0] as usize * element as usize;
    let rows: u32 = encoded.box_dims[1..].iter().product();
    let mut found = Vec::new();
    for row in 0..rows {
        let (mut rest, mut offset, mut inside) = (row, map.recipe.byte_offset, true);
        for dim in 1..encoded.dims.len() {
            let index = i64::from(at[dim]) + i64::from(rest % encoded.box_dims[dim]);
            rest /= encoded.box_dims[dim];
            inside &= index >= 0 && (index as u64) < encoded.dims[dim];
            // Modulo 2^64, which ragged maps count on.
            offset = offset.wrapping_add((index as u64).wrapping_mul(encoded.byte_strides[dim - 1]));
        }
        let first = i64::from(at[0]).max(0);
        let last = (i64::from(at[0]) + i64::from(encoded.box_dims[0])).min(encoded.dims[0].min(1 << 40) as i64);
        if inside && first < last {
            found.push(Run {
                within: row as usize * row_bytes + (first - i64::from(at[0])) as usize * element as usize,
                offset: offset.wrapping_add(first as u64 * element),
                bytes: (last - first) as usize * element as usize,
            });
        }
    }
    found
}

impl<'m> Cluster<'m> {
    /// The offset of a lane's box in the cluster's shared memory; reports a wrong one.
    pub(crate) fn box_place(
        &mut self,
        by: Lane<'_>,
        tile: &Address,
        (bytes, align): (u32, u32),
        rank: usize,
    ) -> Option<u32> {
        let offset = by
            .value::<u32>(self.machine, tile.base)
            .wrapping_add(tile.offset as u32)
            .wrapping_sub(by.warp.shared_start)
            .wrapping_sub(by.warp.shared_first);
        let buffer = self.shared_buffer(At::of(tile, Space::Shared));
        let relative = i64::from(offset as i32) - i64::from(buffer.offset);
        let out = relative < 0 || relative + i64::from(bytes) > i64::from(buffer.bytes);
        if !out && offset.is_multiple_of(align) {
            return Some(offset + rank as u32 * self.machine.shared_bytes);
        }
        let kind = if out {
            FindingKind::OutOfBounds
        } else {
            FindingKind::Misaligned
        };
        let total = buffer.bytes;
        self.report(kind, by.pc, None, |cluster| {
            let end = relative + i64::from(bytes);
            let message = if out {
                format!(
                    "a copy of {bytes} bytes at bytes {relative}..{end} of shared buffer `{}`, which has {total} bytes",
                    buffer.name
                )
            } else {
                format!(
                    "a copy at byte {relative} of shared buffer `{}`, byte {offset} of shared memory; such copies start at \
                     multiples of {align}",
                    buffer.name
                )
            };
            Details::new(message, cluster.lane_actor(by))
                .object(buffer.name.clone())
                .bytes((relative, end))
        });
        None
    }

    pub(crate) fn bulk(&mut self, warp: &mut Warp, pc: u32, inst: &BulkInst, unlike: &Unlike) {
        let update = unlike.update;
        for by in lanes(warp.active).map(|lane| warp.lane(pc, lane)) {
            match inst {
                BulkInst::Load {
                    dst,
                    map,
                    at,
                    bar,
                    multicast,
                    ..
                } => self.bulk_load(by, (map, at), dst, bar, *multicast),
                BulkInst::Store { map, at, src } => self.bulk_store(by, (map, at), src, update.is_some()),
                BulkInst::LoadBytes { dst, src, bytes, bar } => {
                    self.load_bytes(by, (dst, src), *bytes, bar, unlike.ranks);
                }
                BulkInst::StoreBytes { dst, src, bytes } => self.store_bytes(by, (dst, src), *bytes, None),
                BulkInst::Reduce { dst, src, bytes } => {
                    self.store_bytes(by, (dst, src), *bytes, Some(update.unwrap_or(Update::ADD_F32)));
                }
                BulkInst::Send { dst, bar, .. } if !unlike.values.is_empty() => {
                    self.send_values(by, (dst, bar), unlike)
                }
                BulkInst::Send { dst, src, bytes, bar } => self.send_bytes(by, (dst, src), *bytes, bar, update),
                BulkInst::Commit => {
                    let stores = &mut self.stores[warp.index];
                    stores.unread[by.lane].push_back(warp.epoch);
                    stores.unwritten[by.lane].push_back(warp.epoch);
                }
                // A prefetch makes later copies faster.
                BulkInst::Prefetch { .. } | BulkInst::Wait { .. } => {}
            }
        }
        match inst {
            BulkInst::Commit => warp.epoch = self.next_epoch(),
            BulkInst::Wait { pending, read } => self.bulk_wait(warp, *pending, *read),
            BulkInst::Load { .. }
            | BulkInst::Store { .. }
            | BulkInst::LoadBytes { .. }
            | BulkInst::StoreBytes { .. }
            | BulkInst::Reduce { .. }
            | BulkInst::Send { .. }
            | BulkInst::Prefetch { .. } => {}
        }
    }

    fn coordinates(&self, by: Lane<'_>, at: &[Operand]) -> Vec<i32> {
        at.iter().map(|&x| by.value::<u32>(self.machine, x) as i32).collect()
    }

    /// The parameter whose buffer a tensor map is of, and the map; reports one of another rank than the copy has.
    fn begin_copy(&mut self, by: Lane<'_>, map: &Address, rank: usize) -> Option<(usize, Cow<'m, TensorMap>)> {
        let (param, map) = self.map_of(by, map)?;
        let has = map.encoded.dims.len();
        if has == rank {
            return Some((param, map));
        }
        self.report(FindingKind::OutOfBounds, by.pc, None, |cluster| {
            let message = format!("a copy with {rank} coordinates uses a tensor map of rank {has}");
            Details::new(message, cluster.lane_actor(by))
        });
        None
    }

    /// The parameter whose buffer a tensor map is of, and the map; reports the map of another parameter.
    fn map_of(&mut self, by: Lane<'_>, map: &Address) -> Option<(usize, Cow<'m, TensorMap>)> {
        let machine = self.machine;
        let param = usize::from(At::of(map, Space::Global).object);
        let address = by.value::<u64>(machine, map.base).wrapping_add(map.offset as u64);
        let params = machine.kernel.params();
        let other = (0..params.len()).find(|&index| machine.maps[index].is_some() && map_address(index) == address);
        let given = other.and_then(|index| Some((index, Cow::Borrowed(machine.maps[index].as_ref()?))));
        if map.object == UNKNOWN {
            return given.or_else(|| self.made_map(by, address).map(|(slot, map)| (slot, Cow::Owned(map))));
        }
        if other == Some(param) {
            return given;
        }
        self.report(FindingKind::OutOfBounds, by.pc, None, |cluster| {
            let name = params[param].name.clone();
            let what = match other {
                Some(index) => format!("tensor map `{}`", params[index].name),
                None => format!("address {address:#x}, which is not a tensor map"),
            };
            let message = format!("a copy declared to use tensor map `{name}` uses {what}");
            Details::new(message, cluster.lane_actor(by)).object(name)
        });
        None
    }

    /// Counts the sectors of a copy; once for a multicast.
    pub(crate) fn count_copy(&mut self, pc: u32, bytes: u32) {
        self.count_ideal(pc, bytes.div_ceil(32));
    }

    fn bulk_load(
        &mut self,
        by: Lane<'_>,
        (map, at): (&Address, &[Operand]),
        tile: &Address,
        bar: &Address,
        multicast: Option<Operand>,
    ) {
        let Some((param, map)) = self.begin_copy(by, map, at.len()) else {
            return;
        };
        let Some(ranks) = self.ranks(by, multicast) else {
            return;
        };
        self.check_dependency(by);
        self.count_copy(by.pc, map.bytes);
        let at = self.coordinates(by, at);
        let words = self.read_box(by, param, &map, &at);
        for rank in lanes(ranks) {
            self.start_load(by, (tile, bar), BOX_ALIGN, rank, &words, map.recipe.swizzle);
        }
    }

    /// The blocks that a load is for, as bits; reports those that there are not.
    pub(crate) fn ranks(&mut self, by: Lane<'_>, multicast: Option<Operand>) -> Option<u32> {
        let machine = self.machine;
        let ranks = match multicast {
            None => 1 << by.warp.rank,
            Some(mask) => by.value::<u32>(machine, mask) & 0xffff,
        };
        if ranks >> machine.blocks == 0 && ranks != 0 {
            return Some(ranks);
        }
        self.report(FindingKind::OutOfBounds, by.pc, None, |cluster| {
            let blocks = machine.blocks;
            let message = format!("a multicast to block mask {ranks:#x}; the cluster has {blocks} blocks");
            Details::new(message, cluster.lane_actor(by))
        });
        None
    }

    /// The mbarrier that a lane names, in the block of a rank.
    fn mbarrier_place(&mut self, by: Lane<'_>, bar: &Address, rank: usize) -> Option<u32> {
        let base = by.warp.value(self.machine, bar.base);
        let access = self.shared_access(by.warp, by.pc, by.bit(), &base, At::of(bar, Space::Shared), 8);
        if access.mask == 0 {
            return None;
        }
        let mine = self.mbarrier_number(access.at, access.offsets[by.lane])? as usize;
        let per_block = self.machine.mbarriers_per_block;
        Some((mine % per_block + rank * per_block) as u32)
    }

    /// The shadow cells of a copy.
    pub(crate) fn copy_cells(&self, first: u32, bytes: u32) -> Range<usize> {
        let shift = self.shadow.shift;
        (first >> shift) as usize..((first + bytes) >> shift) as usize
    }

    /// Starts a load of words to a lane's tile in the block of a rank, and checks it.
    pub(crate) fn start_load(
        &mut self,
        by: Lane<'_>,
        (tile, bar): (&Address, &Address),
        align: u32,
        rank: usize,
        words: &[u32],
        swizzle: flashcore_ir::Swizzle,
    ) {
        let bytes = 4 * words.len() as u32;
        let Some(first) = self.box_place(by, tile, (bytes, align), rank) else {
            return;
        };
        if let Some(number) = self.mbarrier_place(by, bar, rank) {
            let how = Landing {
                swizzle,
                ..Landing::default()
            };
            self.start_copy(by, (At::of(tile, Space::Shared), first), number, words, how);
        }
    }

    /// The [`runs`] of a box; reports and leaves out those outside the buffer, which only ragged maps can have.
    fn runs_in_buffer(&mut self, by: Lane<'_>, param: usize, map: &TensorMap, at: &[i32]) -> Vec<Run> {
        let region = &self.machine.regions[param];
        let end = |run: &Run| run.offset.checked_add(run.bytes as u64);
        let (inside, outside): (Vec<Run>, Vec<Run>) = runs(map, at)
            .into_iter()
            .partition(|run| end(run).is_some_and(|end| end <= region.bytes));
        if let Some(run) = outside.first() {
            let address = region.base.wrapping_add(run.offset);
            let access = (run.bytes as u32, map.recipe.element.bytes());
            self.refuse_global(by.warp, by.pc, by.bit(), address, param as u16, access);
        }
        inside
    }

    /// The words of a box; zero outside the tensor.
    fn read_box(&mut self, by: Lane<'_>, param: usize, map: &TensorMap, at: &[i32]) -> Vec<u32> {
        let region = &self.machine.regions[param];
        let mut bytes = vec![0u8; map.bytes as usize];
        for run in self.runs_in_buffer(by, param, map, at) {
            let row = &mut bytes[run.within..run.within + run.bytes];
            if region.overlaid {
                // Reads 2 bytes at a time, like loads of the thread.
                for (i, part) in row.chunks_mut(2).enumerate() {
                    let address = region.base + run.offset + 2 * i as u64;
                    self.read_global_lane(by, param as u16, address, 1, part);
                }
            } else {
                let first = run.offset as usize;
                row.copy_from_slice(&self.global.base[region.slot][first..first + run.bytes]);
            }
        }
        words(&bytes).collect()
    }

    /// Stores a box, or adds it to what is there.
    fn bulk_store(&mut self, by: Lane<'_>, (map, at): (&Address, &[Operand]), tile: &Address, adds: bool) {
        let machine = self.machine;
        let Some((param, map)) = self.begin_copy(by, map, at.len()) else {
            return;
        };
        let Some(first) = self.start_store(by, tile, map.bytes, BOX_ALIGN) else {
            return;
        };
        let mut bytes = Vec::with_capacity(map.bytes as usize);
        for i in 0..map.bytes / 4 {
            let place = map.recipe.swizzle.apply(first + 4 * i);
            bytes.extend(self.words[place as usize / 4].to_le_bytes());
        }
        let at = self.coordinates(by, at);
        let writer = (WriterKind::Agent, machine.actors.store_writes_of(by.thread()));
        for run in self.runs_in_buffer(by, param, &map, &at) {
            let row = &bytes[run.within..run.within + run.bytes];
            if adds {
                let update = Update::add(map.recipe.element);
                self.change_bytes(by, update, &machine.regions[param], run.offset, row);
                continue;
            }
            for (i, part) in row.chunks(2).enumerate() {
                let offset = run.offset + 2 * i as u64;
                self.write_lane(by, &machine.regions[param], offset, part, writer);
            }
        }
    }

    /// Checks and notes the read of shared memory by a lane's bulk store or sum. Returns its offset.
    pub(crate) fn start_store(&mut self, by: Lane<'_>, tile: &Address, bytes: u32, align: u32) -> Option<u32> {
        let Lane { warp, pc, lane } = by;
        let first = self.box_place(by, tile, (bytes, align), warp.rank)?;
        self.check_dependency(by);
        self.count_copy(pc, bytes);
        let (epoch, mask) = (warp.epoch, by.bit());
        self.check_async_read(warp, mask, pc, At::of(tile, Space::Shared), &[(first, bytes)]);
        let cells = self.copy_cells(first, bytes);
        let reader = self.machine.store_reader(warp.index);
        self.shadow.note_reads(reader, cells, epoch, mask, pc);
        let stores = &mut self.stores[warp.index];
        stores.reads.push((lane, epoch));
        stores.writes.push((lane, epoch));
        stores.last_pc = pc;
        Some(first)
    }

    /// `cp.async.bulk.wait_group`, or its `.read` form.
    fn bulk_wait(&mut self, warp: &mut Warp, pending: u32, read: bool) {
        let actors = self.machine.actors;
        for lane in lanes(warp.active) {
            let stores = &mut self.stores[warp.index];
            let thread = (32 * warp.index + lane) as u32;
            let reached = |groups: &mut VecDeque<Epoch>, unfinished: &mut Vec<(usize, Epoch)>| {
                let over = groups.len().saturating_sub(pending as usize);
                let newest = groups.drain(..over).next_back();
                unfinished.retain(|&(by, epoch)| by != lane || newest.is_none_or(|newest| epoch > newest));
                newest
            };
            let read_up_to = reached(&mut stores.unread[lane], &mut stores.reads);
            let written_up_to = if read {
                None
            } else {
                reached(&mut stores.unwritten[lane], &mut stores.writes)
            };
            let landed = |sum: &Sum| sum.by == (self.linear, thread) && written_up_to.is_some_and(|to| sum.epoch <= to);
            while let Some(which) = self.global.sums.iter().position(landed) {
                self.global.land(which);
            }
            if read_up_to.is_some() || written_up_to.is_some() {
                warp.learn_each(1 << lane, |clock| {
                    clock.learn(actors.store_of(thread), read_up_to.unwrap_or(0));
                    clock.learn(actors.store_writes_of(thread), written_up_to.unwrap_or(0));
                });
            }
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
        self.report(FindingKind::MissingWait, pc, None, |cluster| {
            let message = "a bulk store may still read its tile when the block exits";
            Details::new(message, cluster.actor(warp.index, lanes))
                .help("close its group (`bulk_commit`) and wait for it (`bulk_wait_read(0)`) before the exit")
        });
    }
}
