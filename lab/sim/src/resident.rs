//! Clusters that communicate: all that the chip holds at once run under one schedule, over one
//! global memory. The others start in order, or in a random one, each when another one ends.
//!
//! A warp in a loop that waits for a flag would run forever. [`Cluster::spins`] finds out that it
//! repeats itself and stops it until the flag changes. If no warp can go on, every stopped warp
//! tries once more, since a loop may look at other memory too. If that changes nothing, the
//! clusters wait for each other, or for one that has not started: a deadlock.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::swap;
use std::ops::Range;

use flashcore_ir::inst::{BulkInst, Inst};

use crate::barrier::waits_at;
use crate::cluster::{Cluster, Outcome, Running};
use crate::finding::FindingKind;
use crate::global::{Global, Pages};
use crate::machine::Machine;
use crate::record::Details;
use crate::registers::{FULL, lanes};
use crate::report::Class;
use crate::rng::Rng;
use crate::text::cold::{Mbarrier, What};
use crate::warp::{State, Wait, Warp};

/// Waits that the report of a deadlock describes.
const DESCRIBED: usize = 8;

struct Resident<'m> {
    running: Running<'m>,
    /// Whether it can only go on after a change by another cluster.
    waits: bool,
}

/// Runs some clusters of a launch to their end, or to a finding that makes going on pointless.
/// Returns what global memory then holds.
pub(crate) fn run<'m>(
    machine: &'m Machine<'m>,
    base: &'m [&'m [u8]],
    clusters: Range<u64>,
    out: &mut Outcome,
) -> Pages {
    let mut rng = Rng::new(machine.options.seed, u64::MAX);
    let mut global = Global::new(base, machine.unit());
    let mut residents: Vec<Resident<'m>> = Vec::new();
    let mut order: Vec<u64> = clusters.clone().collect();
    if machine.options.shuffle_blocks {
        for left in (1..order.len()).rev() {
            order.swap(left, rng.below(left as u32 + 1) as usize);
        }
    }
    let mut left = order.into_iter();
    let mut stalled = None;
    let mut is_fatal = false;
    while !is_fatal {
        let room = machine.resident_clusters().saturating_sub(residents.len() as u64);
        for next in left.by_ref().take(room as usize) {
            let running = Running::new(machine, Global::new(base, machine.unit()), next);
            residents.push(Resident { running, waits: false });
        }
        let able: Vec<usize> = (0..residents.len()).filter(|&i| !residents[i].waits).collect();
        if !global.sums.is_empty() && (able.is_empty() || rng.below(4) == 0) {
            let which = rng.below(global.sums.len() as u32);
            global.land(which as usize);
        } else if !able.is_empty() {
            let which = able[rng.below(able.len() as u32) as usize];
            let Resident { running, waits } = &mut residents[which];
            swap(&mut global, &mut running.cluster.global);
            let goes_on = (0..1 + rng.below(8)).all(|_| running.turn());
            *waits = !goes_on && running.warps.iter().any(Warp::waits_for_change);
            let has_ended = !goes_on && !*waits;
            if has_ended {
                running.end();
            }
            swap(&mut global, &mut running.cluster.global);
            is_fatal = running.cluster.out.findings.is_fatal();
            if has_ended {
                let Running { cluster, .. } = residents.remove(which).running;
                out.add(cluster.linear, cluster.out);
                machine.note_progress();
            }
        } else if residents.is_empty() {
            break;
        } else if stalled.replace(global.changes) == Some(global.changes) {
            report_deadlock(machine, &mut residents, &clusters, left.as_slice().first());
            is_fatal = true;
        } else {
            for resident in &mut residents {
                resident.waits = false;
                resident.running.warps.iter_mut().for_each(Warp::retry);
            }
        }
        for (linear, warp) in global.woken.drain(..) {
            let waiting = residents.iter_mut().find(|r| r.running.cluster.linear == linear);
            if let Some(resident) = waiting {
                resident.waits = false;
                resident.running.warps[warp].retry();
            }
        }
    }
    for resident in residents {
        out.add(resident.running.cluster.linear, resident.running.cluster.out);
    }
    out.traces.sort_by_key(|trace| {
        let [x, y, z] = trace.block;
        [z, y, x]
    });
    global.pages
}

fn report_deadlock(machine: &Machine<'_>, residents: &mut [Resident<'_>], clusters: &Range<u64>, next: Option<&u64>) {
    // The first wait of each cluster, for a flag if it has one: the others follow from it.
    let mut waits = Vec::new();
    for (index, resident) in residents.iter().enumerate() {
        let warps = &resident.running.warps;
        let flag = warps.iter().find(|warp| warp.waits_for_change());
        let first = flag.or_else(|| warps.iter().find(|warp| waits_at(warp).is_some()));
        if let Some(warp) = first
            && let Some(pc) = waits_at(warp)
        {
            waits.push((index, warp.index, pc, warp.state));
        }
    }
    let Some(&(index, warp, pc, state)) = waits.first() else {
        return;
    };
    let mut parts: Vec<String> = Vec::new();
    for &(index, warp, pc, state) in waits.iter().take(DESCRIBED) {
        let running = &residents[index].running;
        parts.push(running.cluster.describe_wait(&running.warps[warp], pc, state));
    }
    if waits.len() > DESCRIBED {
        parts.push(format!(
            "{} more blocks wait",
            (waits.len() - DESCRIBED) * machine.blocks
        ));
    }
    let mut help = "of two waits, put the release that ends one before the other; check that each release is executed";
    if let Some(next) = next {
        let (chip, [x, y, z]) = (machine.options.chip, machine.block_index(*next, 0));
        parts.push(format!(
            "block ({x}, {y}, {z}) and others have not started: {} SMs of {} hold {} blocks of this kernel at \
             once, and the next one starts when one ends",
            chip.sms,
            chip.target,
            residents.len() * machine.blocks,
        ));
        help = "let blocks wait only for blocks before them in the grid, or launch no more than the chip holds";
    }
    let left_out = (machine.clusters() - (clusters.end - clusters.start)) * machine.blocks as u64;
    if left_out > 0 {
        parts.push(format!("{left_out} blocks of the launch are not simulated"));
    }
    let other = waits[1..].iter().find(|wait| wait.2 != pc).or(waits.get(1)).copied();
    let by = other.map(|(index, warp, ..)| machine.actor(residents[index].running.cluster.linear, warp, FULL));
    let cluster = &mut residents[index].running.cluster;
    cluster.report(FindingKind::Deadlock, pc, other.map(|wait| wait.2), |cluster| {
        let message = format!("no block can continue: {}", parts.join("; "));
        let details = Details::new(message, cluster.actor(warp, FULL)).other(by).help(help);
        match state {
            State::Blocked(Wait::Change((slot, offset))) => details
                .object(machine.buffer_name(slot))
                .bytes((offset as i64, offset as i64 + 4)),
            _ => details,
        }
    });
}

/// A warp's last visit to an operation that reads a flag.
#[derive(Debug, Default)]
pub(crate) struct Visit {
    pc: u32,
    /// The number of changes by all warps before it.
    changes: u64,
    /// A hash of the warp's registers, from the second visit without a change on.
    state: Option<u64>,
}

impl Cluster<'_> {
    /// Called when a warp has read words, each by a lane. Stops it at its third visit without a
    /// change of memory and with the same registers: it repeats itself until something changes.
    pub(crate) fn spins(&mut self, warp: &mut Warp, pc: u32, slot: usize, read: (&[u64; 32], u32)) -> bool {
        // It may wait for lanes of this warp, which wait for it where lanes meet.
        if self.machine.is_foreign && warp.splits.are_waiting() {
            return false;
        }
        let changes = self.global.changes;
        if (warp.visit.pc, warp.visit.changes) != (pc, changes) {
            warp.visit = Visit {
                pc,
                changes,
                state: None,
            };
            return false;
        }
        let mut hasher = DefaultHasher::new();
        (warp.active, &warp.splits, &warp.registers).hash(&mut hasher);
        let state = Some(hasher.finish());
        let (offsets, mask) = read;
        if warp.visit.state != state || mask == 0 {
            warp.visit.state = state;
            return false;
        }
        let me = (self.linear, warp.index);
        for lane in lanes(mask) {
            let waiting = self.global.watched.entry((slot, offsets[lane])).or_default();
            if !waiting.contains(&me) {
                waiting.push(me);
            }
        }
        let first = offsets[mask.trailing_zeros() as usize];
        self.block(warp, pc, Wait::Change((slot, first)));
        true
    }
}

/// Whether a step changes what other warps of the cluster may see, other than memory, where changes are counted word by
/// word.
pub(crate) fn changes_the_block(what: &What) -> bool {
    match what {
        What::Barrier(_) => true,
        What::Mbarrier(what, _) => !matches!(what, Mbarrier::Test { .. } | Mbarrier::State),
        _ => false,
    }
}

/// As [`changes_the_block`] for an instruction of the kernel language.
pub(crate) fn inst_changes_the_block(inst: &Inst) -> bool {
    match inst {
        Inst::Wgmma(_) => true,
        // These change what a warp knows itself.
        Inst::Fence(_)
        | Inst::DependencyWait
        | Inst::DependencyTrigger
        | Inst::Bulk(BulkInst::Wait { .. } | BulkInst::Prefetch { .. }) => false,
        _ => matches!(
            Class::of(inst),
            Some(Class::StoreShared | Class::Sync | Class::CopyAsync)
        ),
    }
}
