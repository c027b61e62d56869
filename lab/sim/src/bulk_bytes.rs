//! Bulk copies of contiguous bytes, from or to global memory or between blocks of a cluster, and sums into global
//! memory (`cp.async.bulk`, `cp.reduce.async.bulk`).
//!
//! The actors are those of tensor copies: a load is a write by the actor of its mbarrier, a store or
//! a sum is a read of shared memory and a write of global memory by two actors of its thread.

use flashcore_ir::inst::{Address, Space};
use flashcore_ir::{Operand, Swizzle};

use crate::access::bits;
use crate::clock::{Epoch, WriterKind};
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::global::{Sum, number, words};
use crate::landing::Landing;
use crate::machine::Region;
use crate::program::At;
use crate::record::Details;
use crate::registers::lanes;
use crate::shadow::SharedAccess;
use crate::text::cold::{Unlike, Update};
use crate::warp::Lane;

/// Alignment of addresses and numbers of bytes (PTX ISA, "cp.async.bulk").
const ALIGN: u32 = 16;

impl Cluster<'_> {
    pub(crate) fn load_bytes(
        &mut self,
        by: Lane<'_>,
        (dst, src): (&Address, &Address),
        bytes: Operand,
        bar: &Address,
        multicast: Option<Operand>,
    ) {
        let (Some(bytes), Some(ranks)) = (self.copied_bytes(by, bytes), self.ranks(by, multicast)) else {
            return;
        };
        // Before so many bytes are read.
        if lanes(ranks).any(|rank| self.box_place(by, dst, (bytes, ALIGN), rank).is_none()) {
            return;
        }
        self.check_dependency(by);
        self.count_copy(by.pc, bytes);
        let (object, address) = self.global_place(by, src);
        let mut data = vec![0; bytes as usize];
        for (at, part) in data.chunks_exact_mut(ALIGN as usize).enumerate() {
            let address = address.wrapping_add(at as u64 * u64::from(ALIGN));
            self.read_global_lane(by, object, address, ALIGN, part);
        }
        let words: Vec<u32> = words(&data).collect();
        for rank in lanes(ranks) {
            self.start_load(by, (dst, bar), ALIGN, rank, &words, Swizzle::None);
        }
    }

    /// Stores bytes, or changes words by them, each atomically.
    pub(crate) fn store_bytes(
        &mut self,
        by: Lane<'_>,
        (dst, src): (&Address, &Address),
        bytes: Operand,
        update: Option<Update>,
    ) {
        let machine = self.machine;
        let Some(bytes) = self.copied_bytes(by, bytes) else {
            return;
        };
        let Some(first) = self.start_store(by, src, bytes, ALIGN) else {
            return;
        };
        let (object, address) = self.global_place(by, dst);
        let region = self.region(object);
        let offset = address.wrapping_sub(region.base);
        let is_inside = offset
            .checked_add(u64::from(bytes))
            .is_some_and(|end| end <= region.bytes);
        if !is_inside || !address.is_multiple_of(u64::from(ALIGN)) {
            self.refuse_global(by.warp, by.pc, by.bit(), address, object, (bytes, ALIGN));
            return;
        }
        let words = self.words[first as usize / 4..][..bytes as usize / 4].to_vec();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if let Some(update) = update {
            return self.change_bytes(by, update, region, offset, &bytes);
        }
        let writer = (WriterKind::Agent, machine.actors.store_writes_of(by.thread()));
        for (i, word) in bytes.chunks_exact(4).enumerate() {
            self.write_lane(by, region, offset + 4 * i as u64, word, writer);
        }
    }

    /// Changes words of global memory by the bytes that a bulk copy brings there.
    pub(crate) fn change_bytes(&mut self, by: Lane<'_>, update: Update, region: &Region, offset: u64, bytes: &[u8]) {
        let values: Vec<u64> = bytes.chunks_exact(update.size as usize).map(number).collect();
        let writer = (WriterKind::Atomic, self.machine.actors.store_writes_of(by.thread()));
        for (i, &value) in values.iter().enumerate() {
            let offset = offset + u64::from(update.size) * i as u64;
            if self.machine.communicates {
                // The change lands later; as an access it begins now.
                let old = self.global.word((region.slot, offset), update.size).to_le_bytes();
                self.write_lane(by, region, offset, &old[..update.size as usize], writer);
            } else {
                self.update_word(by, update, region, offset, [value, 0]);
            }
        }
        if self.machine.communicates {
            self.global.sums.push(Sum {
                by: (self.linear, by.thread()),
                epoch: by.warp.epoch,
                to: (region.slot, offset),
                update,
                values,
            });
        }
    }

    /// Copies bytes to the shared memory of a block of the cluster. It is a read of shared memory and a write by the
    /// actor of the mbarrier at which it completes: who has waited there knows both.
    pub(crate) fn send_bytes(
        &mut self,
        by: Lane<'_>,
        (dst, src): (&Address, &Address),
        bytes: Operand,
        bar: &Address,
        update: Option<Update>,
    ) {
        let Some(bytes) = self.copied_bytes(by, bytes).filter(|&bytes| bytes > 0) else {
            return;
        };
        let Some(from) = self.box_place(by, src, (bytes, ALIGN), by.warp.rank) else {
            return;
        };
        self.check_async_read(by.warp, by.bit(), by.pc, At::of(src, Space::Shared), &[(from, bytes)]);
        let words = self.words[from as usize / 4..][..bytes as usize / 4].to_vec();
        let how = Landing {
            update,
            ..Landing::default()
        };
        if let Some((number, epoch)) = self.deliver(by, (dst, bar), &words, how) {
            let cells = self.copy_cells(from, bytes);
            self.shadow.note_sent(self.machine.send_reader(), cells, epoch, by.pc);
            self.sends.insert(epoch, (number, by.warp.index));
        }
    }

    /// As [`Self::send_bytes`] of values in registers, which is an access like those of threads.
    pub(crate) fn send_values(&mut self, by: Lane<'_>, to: (&Address, &Address), unlike: &Unlike) {
        let values = unlike.values.iter();
        let values = values.map(|&value| bits(self.machine, by.warp, value)[by.lane].to_le_bytes());
        let bytes: Vec<u8> = values.flat_map(|value| value.into_iter().take(unlike.size)).collect();
        let how = Landing {
            update: unlike.update,
            is_generic: true,
            ..Landing::default()
        };
        self.deliver(by, to, &words(&bytes).collect::<Vec<u32>>(), how);
    }

    /// Starts a copy of words to the shared memory of a block. Returns the mbarrier at which it completes.
    fn deliver(
        &mut self,
        by: Lane<'_>,
        (dst, bar): (&Address, &Address),
        words: &[u32],
        how: Landing,
    ) -> Option<(u32, Epoch)> {
        let bytes = 4 * words.len() as u32;
        let align = if how.is_generic { bytes } else { ALIGN };
        let to = At::of(dst, Space::Cluster);
        let last = At {
            offset: to.offset + (bytes - align) as i32,
            ..to
        };
        let first = self.remote_place(by, dst.base, to, align)?.offsets[by.lane];
        let access = self.remote_place(by, dst.base, last, align)?;
        let at = At::of(bar, Space::Cluster);
        let place = self.remote_place(by, bar.base, at, 8)?.offsets[by.lane];
        let [there, block] = [place, first].map(|offset| offset / self.machine.shared_bytes);
        if there != block {
            self.report(FindingKind::Mbarrier, by.pc, None, |cluster| {
                let message = format!(
                    "a copy to the block of rank {block} completes at an mbarrier of the block of rank {there}; both must be \
                     in one block"
                );
                Details::new(message, cluster.lane_actor(by))
            });
            return None;
        }
        let number = self.mbarrier_number(at, place)?;
        if how.is_generic {
            let kind = how.update.map_or(WriterKind::Thread, |_| WriterKind::Atomic);
            self.check_writes(by.warp, &access, kind, 0);
        }
        let epoch = self.start_copy(by, (to, first), number, words, how)?;
        Some((number, epoch))
    }

    /// The place of a lane's address in the cluster's shared memory, if it is inside its object.
    fn remote_place(&mut self, by: Lane<'_>, base: Operand, at: At, bytes: u32) -> Option<SharedAccess> {
        let base = by.warp.value(self.machine, base);
        let access = self.shared_access(by.warp, by.pc, by.bit(), &base, at, bytes);
        (access.mask != 0).then_some(access)
    }

    /// The number of bytes that a lane copies; reports one that is not a multiple of 16.
    fn copied_bytes(&mut self, by: Lane<'_>, bytes: Operand) -> Option<u32> {
        let bytes = by.value::<u32>(self.machine, bytes);
        if bytes.is_multiple_of(ALIGN) {
            return Some(bytes);
        }
        self.report(FindingKind::Misaligned, by.pc, None, |cluster| {
            let message = format!("a bulk copy of {bytes} bytes; it copies a multiple of {ALIGN}");
            Details::new(message, cluster.lane_actor(by))
        });
        None
    }

    /// The parameter behind a lane's global address, and the address.
    fn global_place(&self, by: Lane<'_>, addr: &Address) -> (u16, u64) {
        let base = by.value::<u64>(self.machine, addr.base);
        let object = At::of(addr, Space::Global).object;
        (object, base.wrapping_add(addr.offset as i64 as u64))
    }
}
