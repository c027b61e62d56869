//! `cp.async`.
//!
//! The copies of each thread are one actor. A copy has the epoch of its issuer, and closing a group
//! starts a new epoch. Waiting for a group therefore means that the actor is known up to an epoch.
//! Only the waiting thread learns it; other threads need a later barrier with that thread.

use std::collections::VecDeque;

use crate::clock::{Epoch, WriterKind};
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::global::words;
use crate::program::{At, Row};
use crate::record::Details;
use crate::registers::lanes;
use crate::traffic;
use crate::warp::Warp;

#[derive(Clone, Copy, Debug)]
struct Pending {
    lane: usize,
    epoch: Epoch,
    /// First destination word.
    word: usize,
    words: usize,
    data: [u32; 4],
}

#[derive(Debug, Default)]
pub(crate) struct AsyncCopies {
    pending: Vec<Pending>,
    /// By lane: the closing epoch of each open group, oldest first.
    groups: [VecDeque<Epoch>; 32],
    /// By lane: the epoch up to which copies have been waited for.
    pub(crate) waited: [Epoch; 32],
    /// By lane: the epochs of the first and the last copy that have landed for those who wait at an mbarrier, and that
    /// the lane has not waited for by itself.
    untold: [Option<(Epoch, Epoch)>; 32],
}

impl AsyncCopies {
    /// By lane: the epoch up to which no copy is in flight; `now` if there is none.
    pub(crate) fn finished(&self, now: Epoch) -> [Epoch; 32] {
        let mut epochs = [now; 32];
        for copy in self.pending.iter().rev() {
            epochs[copy.lane] = copy.epoch - 1;
        }
        for (epoch, untold) in epochs.iter_mut().zip(&self.untold) {
            *epoch = untold.map_or(*epoch, |(first, _)| first.min(*epoch + 1) - 1);
        }
        epochs
    }

    /// Lands a lane's copies up to an epoch with the phase of an mbarrier.
    pub(crate) fn land(&mut self, lane: usize, epoch: Epoch, words: &mut [u32]) {
        let is_one = |copy: &&Pending| copy.lane == lane && copy.epoch <= epoch;
        if let Some(first) = self.pending.iter().find(is_one).map(|copy| copy.epoch) {
            let first = self.untold[lane].map_or(first, |(first, _)| first);
            self.untold[lane] = Some((first, epoch));
        }
        self.write(words, |copy| is_one(&copy));
    }

    /// Ends copies: their bytes are in shared memory.
    fn write(&mut self, words: &mut [u32], lands: impl Fn(&Pending) -> bool) {
        self.pending.retain(|copy| {
            let lands = lands(copy);
            if lands {
                words[copy.word..copy.word + copy.words].copy_from_slice(&copy.data[..copy.words]);
            }
            !lands
        });
    }

    pub(crate) fn has_waited(&self, lane: usize, epoch: Epoch) -> bool {
        self.waited[lane] >= epoch
    }
}

impl Cluster<'_> {
    /// Starts the copies of a warp. `sizes` holds the bytes that each lane reads, if fewer.
    pub(crate) fn cp_async(
        &mut self,
        warp: &Warp,
        pc: u32,
        (to, dst): (Row, At),
        (from, src): (Row, At),
        (bytes, sizes): (u32, Option<Row>),
        past_l1: bool,
    ) {
        if self.machine.launch.programmatic {
            self.check_dependency(warp.lane(pc, warp.active.trailing_zeros() as usize & 31));
        }
        let constants = &self.machine.constants;
        let sizes = sizes.map_or([bytes; 32], |row| *warp.registers.get(constants, row));
        let to: [u32; 32] = *warp.registers.get(constants, to);
        let from: [u64; 32] = *warp.registers.get(constants, from);
        let access = self.shared_access(warp, pc, warp.active, &to, dst, bytes);
        if !self.out.traffic.is_empty() {
            let reading = lanes(access.mask).filter(|&lane| sizes[lane] > 0);
            let reading = reading.fold(0u32, |mask, lane| mask | 1 << lane);
            let start = self.machine.regions[usize::from(src.object)].base;
            let offsets = from.map(|base| base.wrapping_add(src.offset as i64 as u64).wrapping_sub(start));
            let to = to.map(|base| base.wrapping_add(dst.offset as u32));
            self.out.traffic[pc as usize].add(if past_l1 {
                traffic::copied_sectors(&offsets, &to, reading)
            } else {
                traffic::global(&offsets, reading, bytes)
            });
        }
        let mut too_long = 0;
        let mut data = [[0u32; 4]; 32];
        for lane in lanes(access.mask) {
            let size = sizes[lane].min(bytes);
            too_long |= ((sizes[lane] > bytes) as u32) << lane;
            if size > 0 {
                let mut raw = [0u8; 16];
                let address = from[lane].wrapping_add(src.offset as i64 as u64);
                // The source is aligned to the whole copy, even if fewer bytes are read.
                let read = &mut raw[..size as usize];
                self.read_global_lane(warp.lane(pc, lane), src.object, address, bytes, read);
                data[lane].iter_mut().zip(words(&raw)).for_each(|(to, word)| *to = word);
            }
        }
        if too_long != 0 {
            self.report(FindingKind::OutOfBounds, pc, None, |cluster| {
                let lane = too_long.trailing_zeros() as usize;
                let message = format!("a copy of {bytes} bytes has a source size of {} bytes", sizes[lane]);
                Details::new(message, cluster.actor(warp.index, too_long))
            });
        }
        if !self.out.landings.is_empty() {
            let landed = traffic::landed(&access.offsets, access.mask, bytes, past_l1);
            self.out.landings[pc as usize].add(landed);
        }
        if self.is_logged() {
            self.log_access(warp.index, &access, past_l1);
        }
        let actor = (WriterKind::Agent, self.machine.actors.copy_of(32 * warp.index as u32));
        self.write_shadow(warp, &access, access.pattern_of_writes(), actor, None);
        let words = bytes as usize / 4;
        for lane in lanes(access.mask) {
            let word = access.offsets[lane] as usize / 4;
            self.words[word..word + words].fill(POISON);
            self.copies[warp.index].pending.push(Pending {
                lane,
                epoch: warp.epoch,
                word,
                words,
                data: data[lane],
            });
        }
    }

    /// `cp.async.commit_group` for the active lanes.
    pub(crate) fn cp_async_commit(&mut self, warp: &mut Warp) {
        for lane in lanes(warp.active) {
            self.copies[warp.index].groups[lane].push_back(warp.epoch);
        }
        warp.epoch = self.next_epoch();
    }

    /// `cp.async.wait_group`: waits until each active lane has at most `pending` open groups.
    pub(crate) fn cp_async_wait(&mut self, warp: &Warp, pending: u32) {
        let copies = &mut self.copies[warp.index];
        let mut learned = 0;
        for lane in lanes(warp.active) {
            while copies.groups[lane].len() > pending as usize {
                if let Some(epoch) = copies.groups[lane].pop_front() {
                    copies.waited[lane] = epoch;
                    let untold = copies.untold[lane].filter(|(_, last)| *last > epoch);
                    copies.untold[lane] = untold.map(|(first, last)| (first.max(epoch + 1), last));
                    learned |= 1 << lane;
                }
            }
        }
        if learned == 0 {
            return;
        }
        let waited = copies.waited;
        copies.write(&mut self.words, |copy| waited[copy.lane] >= copy.epoch);
    }
}

/// The destination of a copy in flight: NaN in every type.
const POISON: u32 = 0xffff_ffff;
