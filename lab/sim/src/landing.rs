//! Copies on their way into shared memory: their checks when they start, and what they do when they land.

use flashcore_ir::inst::Inst;

use crate::atomic::changed;
use crate::clock::{Epoch, Stamp, WriterKind};
use crate::cluster::Cluster;
use crate::finding::{Actor, FindingKind};
use crate::program::At;
use crate::record::Details;
use crate::resident::inst_changes_the_block;
use crate::shared_memory::POISON;
use crate::text::cold::{Unlike, Update};
use crate::warp::{Lane, Warp};

#[derive(Debug)]
pub(crate) struct InFlight {
    /// First byte in the cluster's shared memory.
    first: u32,
    /// The words of the box in order, before swizzling.
    words: Vec<u32>,
    how: Landing,
    pub(crate) mbarrier: u32,
    /// Phase of the mbarrier when the load started.
    pub(crate) phase: i64,
    epoch: Epoch,
    pub(crate) actor: Actor,
    pub(crate) pc: u32,
}

/// How a copy lands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Landing {
    pub(crate) swizzle: flashcore_ir::Swizzle,
    /// What it does to the words that are there.
    pub(crate) update: Option<Update>,
    /// Whether it is an access like those of threads.
    pub(crate) is_generic: bool,
}

impl InFlight {
    pub(crate) fn bytes(&self) -> u32 {
        4 * self.words.len() as u32
    }
}

impl Cluster<'_> {
    /// Executes an instruction of the kernel language, but for something.
    pub(crate) fn unlike(&mut self, warp: &mut Warp, pc: u32, inst: &Inst, unlike: &Unlike) {
        if self.machine.communicates && inst_changes_the_block(inst) {
            self.global.changes += 1;
        }
        match inst {
            Inst::Wgmma(inst) => _ = self.wgmma(warp, pc, inst, unlike.types),
            Inst::Bulk(inst) => self.bulk(warp, pc, inst, unlike),
            _ => {}
        }
    }

    /// Starts a copy of words to a place in the cluster's shared memory that completes at an mbarrier of the same
    /// block, and checks it. Returns its epoch.
    pub(crate) fn start_copy(
        &mut self,
        by: Lane<'_>,
        (at, first): (At, u32),
        number: u32,
        words: &[u32],
        how: Landing,
    ) -> Option<Epoch> {
        if !self.usable(by, number) {
            return None;
        }
        let (bytes, rank) = (4 * words.len() as u32, (first / self.machine.shared_bytes) as usize);
        let epoch = self.next_epoch();
        let actor = self.lane_actor(by);
        let id = self.machine.actors.mbarrier(number);
        self.note_remote_as(by.warp, by.pc, rank, id, epoch);
        let mbarrier = self.mbarriers[number as usize].as_mut()?;
        mbarrier.copier = Some(actor);
        let phase = mbarrier.phase;
        if !mbarrier.fenced && !how.is_generic {
            self.report(FindingKind::MissingFence, by.pc, None, |cluster| {
                let name = cluster.mbarrier_name(number);
                let message = format!("a copy completes at mbarrier {name}, whose initialisation was not fenced");
                Details::new(message, actor)
                    .help("let the initialising thread execute `fence_mbarrier_init` before the barrier")
            });
        }
        if !how.is_generic {
            self.check_async_write(by, at, (first, bytes), how.update.is_some());
        }
        let (cells, word) = (self.copy_cells(first, bytes), first as usize / 4);
        let kind = if how.update.is_some() {
            WriterKind::Atomic
        } else {
            self.words[word..word + words.len()].fill(POISON);
            WriterKind::Bulk
        };
        self.shadow.fill(cells, Stamp::new(epoch, kind), id, by.pc);
        self.in_flight.push(InFlight {
            first,
            words: words.to_vec(),
            how,
            mbarrier: number,
            phase,
            epoch,
            actor,
            pc: by.pc,
        });
        Some(epoch)
    }

    pub(crate) fn land(&mut self, which: usize) {
        self.global.changes += 1;
        let copy = self.in_flight.swap_remove(which);
        if let Some(update) = copy.how.update {
            let number = |words: &[u32]| words.iter().rev().fold(0, |all, word| all << 32 | u64::from(*word));
            let size = update.size as usize / 4;
            let there = self.words[copy.first as usize / 4..].chunks_exact_mut(size);
            for (there, given) in there.zip(copy.words.chunks_exact(size)) {
                let value = changed(update, number(there), [number(given), 0], false);
                (0..)
                    .zip(there)
                    .for_each(|(i, word)| *word = (value >> (32 * i)) as u32);
            }
        } else {
            for (i, &word) in copy.words.iter().enumerate() {
                let place = copy.how.swizzle.apply(copy.first + 4 * i as u32);
                self.words[place as usize / 4] = word;
            }
        }
        self.complete_bytes(copy.mbarrier, copy.bytes(), copy.epoch);
    }
}
