//! Clusters: the cluster barrier, distributed shared memory, and the lifetime of blocks.

use std::rc::Rc;

use flashcore_ir::inst::ClusterInst;
use flashcore_ir::{Operand, Reg};
use rustc_hash::FxHashMap;

use crate::clock::{ActorId, Clock, Epoch};
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::interpreter::Stop;
use crate::machine::RANK_SHIFT;
use crate::record::Details;
use crate::registers::{FULL, lanes};
use crate::warp::{Lane, State, Wait, Warp};

/// State shared by the blocks of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// Completed phases of the cluster barrier.
    phase: u32,
    arrived: u32,
    /// Joined clock of the arrivals with `release`; and that of the last completed phase.
    knowledge: Option<Clock>,
    released: Option<Rc<Clock>>,
    ended: u32,
    /// By rank: joined clock of the block's warps at their exit.
    exits: FxHashMap<usize, Option<Clock>>,
    /// Newest epoch of accesses to another block's shared memory, by rank, actor and operation.
    remote: FxHashMap<(usize, ActorId, u32), Epoch>,
}

impl Cluster<'_> {
    /// Returns false if the warp must retry.
    pub(crate) fn across_blocks(&mut self, warp: &mut Warp, pc: u32, inst: &ClusterInst) -> bool {
        match *inst {
            ClusterInst::Mapa { dst, addr, rank } => self.mapa(warp, pc, dst, addr, rank),
            ClusterInst::Arrive { release, aligned } => self.cluster_arrive(warp, pc, release, aligned),
            ClusterInst::Wait { aligned } => return self.cluster_wait(warp, pc, aligned),
        }
        true
    }

    /// `mapa`: the corresponding address in the block of a rank.
    fn mapa(&mut self, warp: &mut Warp, pc: u32, dst: Reg, addr: Operand, rank: Operand) {
        let addresses: [u32; 32] = warp.value(self.machine, addr);
        let ranks: [u32; 32] = warp.value(self.machine, rank);
        let wrong = lanes(warp.active).filter(|&lane| ranks[lane] as usize >= self.machine.blocks);
        let wrong = wrong.fold(0u32, |mask, lane| mask | 1 << lane);
        if wrong != 0 {
            let (rank, blocks) = (ranks[wrong.trailing_zeros() as usize], self.machine.blocks);
            self.report(FindingKind::OutOfBounds, pc, None, |cluster| {
                let message = format!("the block of rank {rank} of a cluster of {blocks}");
                Details::new(message, cluster.actor(warp.index, wrong))
            });
        }
        let mut mapped = [0; 32];
        for lane in 0..32 {
            mapped[lane] = addresses[lane] & ((1 << RANK_SHIFT) - 1) | ranks[lane] << RANK_SHIFT;
        }
        let d = self.machine.program.rows.row(dst);
        warp.registers.set(d, warp.active, &mapped);
    }

    fn cluster_arrive(&mut self, warp: &mut Warp, pc: u32, release: bool, aligned: bool) {
        if aligned {
            self.check_members(warp, pc, FULL, "barrier.cluster.arrive.aligned");
        }
        let active = warp.active;
        if lanes(active).any(|lane| warp.asynchronous.cluster_phase[lane] != 0) {
            self.report(FindingKind::BarrierMismatch, pc, None, |cluster| {
                let message = "arrives at the cluster barrier a second time without waiting";
                Details::new(message, cluster.actor(warp.index, active))
            });
            return;
        }
        if release {
            let mut clock = warp.joined(active);
            self.publish(&mut clock, warp, active);
            clock.join_to(&mut self.peers.knowledge);
            warp.asynchronous.remote_store = None;
            warp.epoch = self.next_epoch();
        }
        for lane in lanes(active) {
            warp.asynchronous.cluster_phase[lane] = self.peers.phase + 1;
        }
        self.peers.arrived += active.count_ones();
        self.end_cluster_phase();
    }

    /// Ends the phase if all threads that have not exited have arrived.
    fn end_cluster_phase(&mut self) {
        let all = 32 * self.machine.warps as u32 - self.peers.ended;
        if self.peers.arrived == 0 || self.peers.arrived < all {
            return;
        }
        self.peers.arrived = 0;
        self.peers.phase += 1;
        self.peers.released = self.peers.knowledge.take().map(Rc::new);
        self.woken = true;
    }

    /// Returns false if the warp must retry.
    fn cluster_wait(&mut self, warp: &mut Warp, pc: u32, aligned: bool) -> bool {
        if aligned {
            self.check_members(warp, pc, FULL, "barrier.cluster.wait.aligned");
        }
        let active = warp.active;
        let phases = lanes(active).map(|lane| warp.asynchronous.cluster_phase[lane]);
        let newest = phases.clone().max().unwrap_or(0);
        if phases.min().unwrap_or(0) == 0 {
            self.report(FindingKind::BarrierMismatch, pc, None, |cluster| {
                let message = "waits at the cluster barrier without having arrived";
                Details::new(message, cluster.actor(warp.index, active))
            });
        } else if newest > self.peers.phase {
            self.block(warp, pc, Wait::Cluster);
            return false;
        }
        for lane in lanes(active) {
            warp.asynchronous.cluster_phase[lane] = 0;
        }
        warp.asynchronous.peers_started = true;
        if let Some(released) = self.peers.released.clone() {
            warp.learn_each(active, |clock| clock.join(&released));
            warp.epoch = self.next_epoch();
        }
        true
    }

    /// Records that lanes access the shared memory of the block of a rank.
    pub(crate) fn note_remote(&mut self, warp: &Warp, pc: u32, mask: u32, rank: usize) {
        for lane in lanes(mask) {
            self.note_remote_as(warp, pc, rank, (32 * warp.index + lane) as u32, warp.epoch);
        }
    }

    /// As [`Self::note_remote`] for an asynchronous actor started by a warp.
    pub(crate) fn note_remote_as(&mut self, warp: &Warp, pc: u32, rank: usize, actor: ActorId, epoch: Epoch) {
        if rank == warp.rank {
            return;
        }
        self.peers.remote.insert((rank, actor, pc), epoch);
        if !warp.asynchronous.peers_started {
            self.report(FindingKind::PeerLifetime, pc, None, |cluster| {
                let message = format!("accesses shared memory of the block of rank {rank}, which may not have started");
                Details::new(message, cluster.actor(warp.index, warp.active))
                    .help("put a cluster barrier before the first access to another block")
            });
        }
    }

    /// Reports an arrival at block scope that would have to order stores to another block.
    pub(crate) fn check_remote_release(&mut self, warp: &mut Warp, pc: u32) {
        let Some(store) = warp.asynchronous.remote_store.take() else {
            return;
        };
        self.report(FindingKind::MissingFence, pc, Some(store), |cluster| {
            let message =
                "signals a store to another block by an arrival of block scope, which does not order that store";
            let actor = cluster.actor(warp.index, warp.active);
            Details::new(message, actor)
                .other(actor)
                .help("use `arrive_cluster` or a cluster barrier")
        });
    }

    #[inline(never)]
    pub(crate) fn exit(&mut self, warp: &mut Warp, pc: u32) -> Stop {
        warp.state = State::Done;
        self.global.changes += 1;
        self.check_stores_at_end(warp);
        self.check_products_at_end(warp, pc);
        if self.machine.blocks > 1 {
            let mut clock = warp.joined(FULL);
            self.publish(&mut clock, warp, FULL);
            clock.join_to(self.peers.exits.entry(warp.rank).or_default());
        }
        self.peers.ended += 32;
        self.end_cluster_phase();
        warp.pc = pc;
        match self.leave_barriers(warp) {
            Some(id) => Stop::Barrier { id, released: true },
            None => Stop::SliceEnd,
        }
    }

    /// Reports accesses to a block's shared memory that its exit does not cover.
    pub(crate) fn check_lifetimes(&mut self) {
        let mut remote: Vec<_> = self.peers.remote.iter().map(|(at, epoch)| (*at, *epoch)).collect();
        remote.sort_unstable();
        for ((rank, by, pc), epoch) in remote {
            let exit = self.peers.exits.get(&rank).and_then(Option::as_ref);
            if exit.is_some_and(|clock| clock.knows(by, epoch)) {
                continue;
            }
            let (actor, _) = self.name_writer(by);
            self.report(FindingKind::PeerLifetime, pc, None, |_| {
                let message = format!(
                    "accesses shared memory of the block of rank {rank}, which may have exited: nothing makes it wait"
                );
                Details::new(message, actor).help("put a cluster barrier after the last access to another block")
            });
        }
    }

    /// Reports an access to global memory that is not ordered after earlier launches.
    #[inline(never)]
    pub(crate) fn check_dependency(&mut self, by: Lane<'_>) {
        if !self.machine.launch.programmatic || by.clock().knows(self.machine.actors.upstream(), 1) {
            return;
        }
        self.report(FindingKind::BeforeDependency, by.pc, None, |cluster| {
            let message =
                "accesses global memory before `griddepcontrol.wait`: the previous launch may not have written it yet";
            Details::new(message, cluster.lane_actor(by))
                .help("execute `dependency_wait` before the first access, or a barrier with a thread that has")
        });
    }
}
