//! A running cluster (one block or more): its warps, its shared memory, and the schedule that
//! interleaves warps and asynchronous operations.
//!
//! The shared memories of the blocks are contiguous, in order of rank, and warps are numbered
//! across blocks. Accesses to another block's memory therefore need no special case.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::async_copy::AsyncCopies;
use crate::barrier::Barrier;
use crate::bulk::BulkStores;
use crate::clock::{Clock, Epoch};
use crate::finding::{Actor, FindingKind};
use crate::global::{AtomicRecord, Global, Pages};
use crate::interpreter::{Stop, run_warp};
use crate::landing::InFlight;
use crate::log::{Log, Turn};
use crate::machine::Machine;
use crate::mbarrier::Mbarrier;
use crate::peers::Peers;
use crate::product::Warpgroup;
use crate::program::NOTHING;
use crate::record::{Details, Findings, Key};
use crate::report::{Count, Loads, Printed, TraceRecord};
use crate::rng::Rng;
use crate::shadow::Shadow;
use crate::traffic::Traffic;
use crate::warp::{Lane, State, Wait, Warp};

/// The state of a cluster, except its warps.
pub(crate) struct Cluster<'m> {
    pub(crate) machine: &'m Machine<'m>,
    pub(crate) linear: u64,
    /// Shared memory in words.
    pub(crate) words: Vec<u32>,
    pub(crate) shadow: Shadow,
    /// By rank.
    pub(crate) barriers: Vec<[Barrier; 16]>,
    /// By rank, of kernels of other compilers: threads of warps that have ended.
    pub(crate) threads_ended: Vec<u32>,
    pub(crate) mbarriers: Vec<Option<Mbarrier>>,
    /// By warp.
    pub(crate) copies: Vec<AsyncCopies>,
    pub(crate) stores: Vec<BulkStores>,
    pub(crate) warpgroups: Vec<Warpgroup>,
    pub(crate) in_flight: Vec<InFlight>,
    /// By epoch: at which mbarrier a copy to another block completes, and the warp that started it.
    pub(crate) sends: FxHashMap<Epoch, (u32, usize)>,
    pub(crate) peers: Peers,
    /// By rank: free registers of the block's pool.
    pub(crate) registers: Vec<u32>,
    /// Whether an event occurred that blocked warps may wait for.
    pub(crate) woken: bool,
    /// Clusters that communicate pass it on from turn to turn.
    pub(crate) global: Global<'m>,
    /// By byte offset of a word of shared memory: what the last strong write to it released.
    pub(crate) words_released: FxHashMap<u32, Rc<Clock>>,
    pub(crate) atomics: Vec<AtomicRecord>,
    pub(crate) out: Outcome,
    /// The newest issued epoch.
    pub(crate) epoch: Epoch,
}

/// Findings and counts of one or more clusters.
pub(crate) struct Outcome {
    pub(crate) findings: Findings,
    /// By operation.
    pub(crate) executed: Vec<Count>,
    /// By operation; empty if memory accesses are not counted.
    pub(crate) traffic: Vec<Traffic>,
    /// By operation: cost of asynchronous copies at their destination.
    pub(crate) landings: Vec<Traffic>,
    pub(crate) traces: Vec<TraceRecord>,
    pub(crate) printed: Vec<Printed>,
    /// Of the first cluster.
    pub(crate) log: Log,
    /// The longest path of a warp.
    pub(crate) path: Vec<u32>,
    /// How many instructions that warp executed after it.
    pub(crate) unrecorded: u64,
    pub(crate) loads: Loads,
    /// The sectors of the cluster that is running: block of it, buffer and number.
    pub(crate) sectors: FxHashSet<(usize, usize, u64)>,
}

impl Outcome {
    pub(crate) fn new(machine: &Machine<'_>) -> Outcome {
        let ops = machine.program.ops.len();
        let counted = if machine.options.memory_counts { ops } else { 0 };
        Outcome {
            findings: Findings::default(),
            executed: vec![Count::default(); ops],
            traffic: vec![Traffic::default(); counted],
            landings: vec![Traffic::default(); counted],
            traces: Vec::new(),
            printed: Vec::new(),
            log: Log::default(),
            path: Vec::new(),
            unrecorded: 0,
            loads: Loads::default(),
            sectors: FxHashSet::default(),
        }
    }

    pub(crate) fn add(&mut self, cluster: u64, other: Outcome) {
        let length = |out: &Outcome| out.path.len() as u64 + out.unrecorded;
        if length(&other) > length(self) {
            (self.path, self.unrecorded) = (other.path, other.unrecorded);
        }
        if cluster == 0 {
            self.log = other.log;
        }
        self.loads.sectors += other.loads.sectors;
        self.loads.different += other.sectors.len() as u64;
        self.findings.merge(other.findings);
        self.traces.extend(other.traces);
        self.printed.extend(other.printed);
        for (sum, count) in self.executed.iter_mut().zip(other.executed) {
            sum.warps += count.warps;
            sum.lanes += count.lanes;
        }
        let sums = self.traffic.iter_mut().chain(&mut self.landings);
        for (sum, traffic) in sums.zip(other.traffic.into_iter().chain(other.landings)) {
            sum.add(traffic);
        }
    }
}

pub(crate) struct ClusterResult {
    pub(crate) linear: u64,
    pub(crate) pages: Pages,
    pub(crate) atomics: Vec<AtomicRecord>,
    pub(crate) out: Outcome,
}

impl<'m> Cluster<'m> {
    pub(crate) fn new(machine: &'m Machine<'m>, global: Global<'m>, linear: u64) -> Cluster<'m> {
        let program = &machine.program;
        let shared_bytes = machine.shared_bytes * machine.blocks as u32;
        Cluster {
            machine,
            linear,
            words: vec![0xffff_ffff; shared_bytes as usize / 4],
            shadow: Shadow::new(shared_bytes, program.granule_shift, machine.readers()),
            barriers: (0..machine.blocks).map(|_| Default::default()).collect(),
            threads_ended: vec![0; machine.blocks],
            mbarriers: (0..machine.actors.mbarriers).map(|_| None).collect(),
            copies: (0..machine.warps).map(|_| AsyncCopies::default()).collect(),
            stores: (0..machine.warps).map(|_| BulkStores::default()).collect(),
            warpgroups: (0..machine.warps.div_ceil(4)).map(|_| Warpgroup::default()).collect(),
            in_flight: Vec::new(),
            sends: FxHashMap::default(),
            peers: Peers::default(),
            registers: vec![0; machine.blocks],
            woken: false,
            global,
            words_released: FxHashMap::default(),
            atomics: Vec::new(),
            out: Outcome::new(machine),
            epoch: 1,
        }
    }

    pub(crate) fn next_epoch(&mut self) -> Epoch {
        self.epoch += 1;
        self.epoch
    }

    pub(crate) fn actor(&self, warp: usize, lanes: u32) -> Actor {
        self.machine.actor(self.linear, warp, lanes)
    }

    pub(crate) fn lane_actor(&self, by: Lane<'_>) -> Actor {
        self.actor(by.warp.index, by.bit())
    }

    pub(crate) fn warp_name(&self, warp: usize) -> String {
        let actor = self.actor(warp, 0);
        if self.machine.blocks > 1 || self.machine.communicates {
            let [x, y, z] = actor.block;
            format!("warp {} of block ({x}, {y}, {z})", actor.warp)
        } else {
            format!("warp {}", actor.warp)
        }
    }

    /// Blocks a warp at an operation that it cannot execute yet.
    pub(crate) fn block(&mut self, warp: &mut Warp, pc: u32, wait: Wait) {
        warp.state = State::Blocked(wait);
        // The operation will be executed again.
        if self.machine.program.counts[pc as usize] != NOTHING {
            match warp.unrecorded {
                0 => _ = warp.path.pop(),
                _ => warp.unrecorded -= 1,
            }
        }
        let count = &mut self.out.executed[pc as usize];
        count.warps -= 1;
        count.lanes -= u64::from(warp.active.count_ones());
    }

    /// Reports a finding; `other` is the operation of the second access.
    #[cold]
    #[inline(never)]
    pub(crate) fn report(
        &mut self,
        kind: FindingKind,
        pc: u32,
        other: Option<u32>,
        details: impl FnOnce(&Self) -> Details,
    ) {
        let mut findings = std::mem::take(&mut self.out.findings);
        findings.report(self.machine, Key { kind, pc, other }, || details(self));
        self.out.findings = findings;
    }

    fn livelock(&mut self, warp: &Warp) {
        let budget = self.machine.options.max_instructions;
        self.report(FindingKind::Livelock, warp.pc, None, |cluster| {
            let message = format!(
                "{} has executed {budget} instructions without exiting: an endless loop, or a budget that is too small",
                cluster.warp_name(warp.index)
            );
            Details::new(message, cluster.actor(warp.index, warp.active))
                .help("check the loop condition; raise `max_instructions` if the kernel needs more")
        });
    }
}

/// A cluster with its warps and its schedule.
pub(crate) struct Running<'m> {
    pub(crate) cluster: Cluster<'m>,
    pub(crate) warps: Vec<Warp>,
    rng: Rng,
}

impl<'m> Running<'m> {
    pub(crate) fn new(machine: &'m Machine<'m>, global: Global<'m>, linear: u64) -> Running<'m> {
        let cluster = Cluster::new(machine, global, linear);
        Running {
            warps: (0..machine.warps)
                .map(|i| Warp::new(machine, i, cluster.epoch))
                .collect(),
            cluster,
            rng: Rng::new(machine.options.seed, linear),
        }
    }

    /// Runs the cluster alone.
    pub(crate) fn run(mut self) -> ClusterResult {
        while self.turn() {}
        self.end();
        ClusterResult {
            linear: self.cluster.linear,
            pages: self.cluster.global.pages,
            atomics: self.cluster.atomics,
            out: self.cluster.out,
        }
    }

    /// After the last turn.
    pub(crate) fn end(&mut self) {
        self.cluster.check_end(&self.warps);
        let paths = self.warps.iter_mut();
        if let Some(longest) = paths.max_by_key(|warp| warp.path.len() as u64 + warp.unrecorded) {
            self.cluster.out.path = std::mem::take(&mut longest.path);
            self.cluster.out.unrecorded = longest.unrecorded;
        }
    }

    /// Lets a bulk copy land or a warp run for a while, as the schedule decides. Returns false if
    /// nothing can go on.
    pub(crate) fn turn(&mut self) -> bool {
        let Running { cluster, warps, rng } = self;
        if std::mem::take(&mut cluster.woken) {
            let blocked = warps.iter_mut().filter(|warp| matches!(warp.state, State::Blocked(_)));
            blocked.for_each(|warp| warp.state = State::Ready);
        }
        let ready: Vec<usize> = (0..warps.len()).filter(|&i| warps[i].state == State::Ready).collect();
        if !cluster.in_flight.is_empty() && (ready.is_empty() || rng.below(4) == 0) {
            let which = rng.below(cluster.in_flight.len() as u32);
            cluster.land(which as usize);
            return true;
        }
        if ready.is_empty() {
            return false;
        }
        let chosen = ready[rng.below(ready.len() as u32) as usize];
        // Mostly long time slices for speed, sometimes short ones for fine interleaving.
        let slice = if rng.below(8) == 0 {
            1 + rng.below(8)
        } else {
            32 + rng.below(512)
        };
        let begin = if cluster.is_logged() { cluster.operations() } else { 0 };
        let stop = run_warp(cluster, &mut warps[chosen], slice);
        if cluster.is_logged() {
            cluster.out.log.turns.push(Turn {
                span: (begin, cluster.operations()),
                warp: chosen as u32,
                at_barrier: matches!(stop, Stop::Barrier { .. }),
            });
        }
        match stop {
            Stop::Barrier { id, released: true } => cluster.release(warps[chosen].rank, id, warps),
            Stop::SliceEnd | Stop::Barrier { .. } => {}
            Stop::Livelock => cluster.livelock(&warps[chosen]),
        }
        stop != Stop::Livelock
    }
}
