//! A running block: its warps, its shared memory, and the schedule that interleaves them.

use crate::async_copy::AsyncCopies;
use crate::barrier::Barrier;
use crate::clock::Epoch;
use crate::finding::{Actor, FindingKind};
use crate::global::{AtomicRecord, Overlay, Pages};
use crate::interpreter::{Stop, run_warp};
use crate::machine::Machine;
use crate::record::{Details, Findings, Key};
use crate::report::{Count, TraceRecord};
use crate::rng::Rng;
use crate::shadow::Shadow;
use crate::traffic::Traffic;
use crate::warp::{State, Warp};

/// Everything of a block but its warps.
pub(crate) struct Block<'m> {
    pub(crate) machine: &'m Machine<'m>,
    pub(crate) index: [u32; 3],
    pub(crate) linear: u64,
    /// Shared memory, in words.
    pub(crate) words: Vec<u32>,
    pub(crate) shadow: Shadow,
    pub(crate) barriers: [Barrier; 16],
    pub(crate) copies: Vec<AsyncCopies>,
    pub(crate) overlay: Overlay<'m>,
    pub(crate) atomics: Vec<AtomicRecord>,
    pub(crate) findings: Findings,
    pub(crate) executed: Vec<Count>,
    pub(crate) traces: Vec<TraceRecord>,
    pub(crate) traffic: Vec<Traffic>,
    /// The newest epoch handed out.
    pub(crate) epoch: Epoch,
}

/// What a block leaves behind.
pub(crate) struct BlockResult {
    pub(crate) linear: u64,
    pub(crate) pages: Pages,
    pub(crate) atomics: Vec<AtomicRecord>,
    pub(crate) findings: Findings,
    pub(crate) executed: Vec<Count>,
    pub(crate) traces: Vec<TraceRecord>,
    pub(crate) traffic: Vec<Traffic>,
}

impl<'m> Block<'m> {
    pub(crate) fn new(machine: &'m Machine<'m>, overlay: Overlay<'m>, linear: u64) -> Block<'m> {
        let program = &machine.program;
        let words = machine.shared_bytes as usize / 4;
        let traffic = if machine.options.memory_counts {
            program.ops.len()
        } else {
            0
        };
        Block {
            machine,
            index: machine.block_index(linear),
            linear,
            words: vec![0xffff_ffff; words],
            shadow: Shadow::new(machine.shared_bytes, program.granule_shift, machine.warps),
            barriers: Default::default(),
            copies: (0..machine.warps).map(|_| AsyncCopies::default()).collect(),
            overlay,
            atomics: Vec::new(),
            findings: Findings::default(),
            executed: vec![Count::default(); program.ops.len()],
            traces: Vec::new(),
            traffic: vec![Traffic::default(); traffic],
            epoch: 1,
        }
    }

    /// A fresh epoch, later than every one before.
    pub(crate) fn next_epoch(&mut self) -> Epoch {
        self.epoch += 1;
        self.epoch
    }

    pub(crate) fn actor(&self, warp: usize, lanes: u32) -> Actor {
        Actor {
            block: self.index,
            warp: warp as u32,
            lanes,
        }
    }

    /// Reports a finding at an operation, without a second side.
    #[cold]
    #[inline(never)]
    pub(crate) fn report(&mut self, kind: FindingKind, pc: u32, details: impl FnOnce(&Self) -> Details) {
        let mut findings = std::mem::take(&mut self.findings);
        let key = Key { kind, pc, other: None };
        findings.report(self.machine, key, || details(self));
        self.findings = findings;
    }

    /// Runs the block to its end.
    pub(crate) fn run(mut self) -> BlockResult {
        let machine = self.machine;
        let mut warps: Vec<Warp> = (0..machine.warps).map(|i| Warp::new(machine, i, self.epoch)).collect();
        let mut rng = Rng::new(machine.options.seed, self.linear);
        loop {
            let ready: Vec<usize> = (0..warps.len()).filter(|&i| warps[i].state == State::Ready).collect();
            if ready.is_empty() {
                break;
            }
            let chosen = ready[rng.below(ready.len() as u32) as usize];
            // Mostly long turns, for speed; short ones now and then, to mix accesses finely.
            let turn = if rng.below(8) == 0 {
                1 + rng.below(8)
            } else {
                32 + rng.below(512)
            };
            match run_warp(&mut self, &mut warps[chosen], turn) {
                Stop::Turn => {}
                Stop::Barrier { id, released } => {
                    if released {
                        self.release(id, &mut warps);
                    }
                }
                Stop::Livelock => {
                    self.livelock(&warps[chosen]);
                    break;
                }
            }
        }
        self.judge_end(&warps);
        BlockResult {
            linear: self.linear,
            pages: self.overlay.pages,
            atomics: self.atomics,
            findings: self.findings,
            executed: self.executed,
            traces: self.traces,
            traffic: self.traffic,
        }
    }

    fn livelock(&mut self, warp: &Warp) {
        let budget = self.machine.options.max_instructions;
        self.report(FindingKind::Livelock, warp.pc, |block| {
            let message = format!(
                "warp {} has executed {budget} instructions and is still here: a loop that does not end, or a budget too small",
                warp.index
            );
            let mut details = Details::new(message, block.actor(warp.index, warp.active));
            details.help = Some("look at what should change the loop's condition; raise `max_instructions` if the work is that long");
            details
        });
    }
}
