//! `cp.async`.
//!
//! The copies of each thread are one actor. A copy has the epoch of its issuer, and closing a group
//! starts a new epoch. Waiting for a group therefore means that the actor is known up to an epoch.
//! Only the waiting thread learns it; other threads need a later barrier with that thread.

use std::collections::VecDeque;

use crate::clock::{Epoch, WriterKind};
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::program::{At, Row};
use crate::record::Details;
use crate::shadow::Pattern;
use crate::traffic;
use crate::warp::Warp;

#[derive(Clone, Copy, Debug)]
struct Pending {
    lane: u32,
    epoch: Epoch,
    /// First destination word.
    word: usize,
    words: usize,
    data: [u32; 4],
}

#[derive(Debug)]
pub(crate) struct AsyncCopies {
    pending: Vec<Pending>,
    /// By lane: the closing epoch of each open group, oldest first.
    groups: [VecDeque<Epoch>; 32],
    /// By lane: the epoch up to which copies have been waited for.
    waited: [Epoch; 32],
}

impl Default for AsyncCopies {
    fn default() -> AsyncCopies {
        AsyncCopies {
            pending: Vec::new(),
            groups: std::array::from_fn(|_| VecDeque::new()),
            waited: [0; 32],
        }
    }
}

impl AsyncCopies {
    /// By lane: the epoch up to which no copy is in flight; `now` if there is none.
    pub(crate) fn finished(&self, now: Epoch) -> [Epoch; 32] {
        let mut epochs = [now; 32];
        for copy in self.pending.iter().rev() {
            epochs[copy.lane as usize] = copy.epoch - 1;
        }
        epochs
    }

    /// By lane: the epoch up to which copies have been waited for.
    pub(crate) fn waited_up_to(&self) -> [Epoch; 32] {
        self.waited
    }

    pub(crate) fn has_waited(&self, lane: u32, epoch: Epoch) -> bool {
        self.waited[lane as usize] >= epoch
    }
}

impl Cluster<'_> {
    pub(crate) fn cp_async(
        &mut self,
        warp: &Warp,
        pc: u32,
        (dst, src): (At, At),
        bytes: u32,
        src_bytes: Option<Row>,
        past_l1: bool,
    ) {
        let constants = &self.machine.constants;
        let sizes = match src_bytes {
            Some(row) => *warp.registers.get(constants, row),
            None => [bytes; 32],
        };
        let to = *warp.registers.get(constants, dst.base);
        let from = *warp.registers.get64(constants, src.base);
        let (offsets, mask) = self.shared_offsets(warp, pc, warp.active, &to, dst, bytes);
        if !self.traffic.is_empty() {
            let reads = (0..32).filter(|&lane| mask >> lane & 1 != 0 && sizes[lane as usize] > 0);
            let reading = reads.fold(0u32, |lanes, lane| lanes | 1 << lane);
            let start = self.machine.regions[usize::from(src.object)].base;
            let offsets = from.map(|base| base.wrapping_add(src.offset as i64 as u64).wrapping_sub(start));
            let to = to.map(|base| base.wrapping_add(dst.offset as u32));
            self.traffic[pc as usize].add(match past_l1 {
                true => traffic::copied_sectors(&offsets, &to, reading),
                false => traffic::global(&offsets, reading, bytes),
            });
        }
        let mut too_long = 0;
        let mut data = [[0u32; 4]; 32];
        for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
            let size = sizes[lane as usize].min(bytes);
            too_long |= ((sizes[lane as usize] > bytes) as u32) << lane;
            if size > 0 {
                let mut raw = [0u8; 16];
                let address = from[lane as usize].wrapping_add(src.offset as i64 as u64);
                // The source is aligned to the whole copy, even if fewer bytes are read.
                self.read_global_lane(warp, pc, lane, src.object, address, bytes, &mut raw[..size as usize]);
                for (word, bytes) in data[lane as usize].iter_mut().zip(raw.chunks_exact(4)) {
                    *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
        }
        if too_long != 0 {
            self.report(FindingKind::OutOfBounds, pc, |cluster| {
                let lane = too_long.trailing_zeros() as usize;
                let message = format!("a copy of {bytes} bytes has a source size of {} bytes", sizes[lane]);
                Details::new(message, cluster.actor(warp.index, too_long))
            });
        }
        if !self.landings.is_empty() {
            self.landings[pc as usize].add(match past_l1 {
                true => traffic::copied_past_l1(&offsets, mask),
                false => traffic::shared(&offsets, mask, bytes),
            });
        }
        if self.is_logged() {
            self.log_access(pc, warp.index, dst, &offsets, mask, bytes, past_l1);
        }
        let cells = (bytes >> self.shadow.shift) as usize;
        let pattern = match Pattern::of(&offsets, mask, bytes) {
            Pattern::Uniform => Pattern::Scattered,
            pattern => pattern,
        };
        let agent = self.machine.actors.copy_of(32 * warp.index as u32);
        self.write_shadow(
            warp,
            pc,
            mask,
            &offsets,
            cells,
            pattern,
            dst,
            (WriterKind::Agent, agent),
        );
        let words = bytes as usize / 4;
        for lane in (0..32u32).filter(|lane| mask >> lane & 1 != 0) {
            let word = offsets[lane as usize] as usize / 4;
            self.words[word..word + words].fill(POISON);
            self.copies[warp.index].pending.push(Pending {
                lane,
                epoch: warp.epoch,
                word,
                words,
                data: data[lane as usize],
            });
        }
    }

    /// `cp.async.commit_group` for the active lanes.
    pub(crate) fn cp_async_commit(&mut self, warp: &mut Warp) {
        for lane in (0..32).filter(|lane| warp.active >> lane & 1 != 0) {
            self.copies[warp.index].groups[lane].push_back(warp.epoch);
        }
        warp.epoch = self.next_epoch();
    }

    /// `cp.async.wait_group`: waits until each active lane has at most `pending` open groups.
    pub(crate) fn cp_async_wait(&mut self, warp: &Warp, pending: u32) {
        let copies = &mut self.copies[warp.index];
        let mut learned = 0;
        for lane in (0..32).filter(|lane| warp.active >> lane & 1 != 0) {
            while copies.groups[lane].len() > pending as usize {
                if let Some(epoch) = copies.groups[lane].pop_front() {
                    copies.waited[lane] = epoch;
                    learned |= 1 << lane;
                }
            }
        }
        if learned == 0 {
            return;
        }
        let (words, waited) = (&mut self.words, &copies.waited);
        copies.pending.retain(|copy| {
            let landed = waited[copy.lane as usize] >= copy.epoch;
            if landed {
                words[copy.word..copy.word + copy.words].copy_from_slice(&copy.data[..copy.words]);
            }
            !landed
        });
    }
}

/// The destination of a copy in flight: NaN in every type.
const POISON: u32 = 0xffff_ffff;
