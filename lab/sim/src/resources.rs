//! `setmaxnreg`, `elect.sync`, traps, proxy fences, and grid dependencies.

use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::program::Row;
use crate::record::Details;
use crate::registers::{FULL, lanes};
use crate::rng::Rng;
use crate::warp::{Wait, Warp};

impl Cluster<'_> {
    /// `setmaxnreg`. Returns false if the pool has too few registers and the warp must retry.
    pub(crate) fn set_max_registers(&mut self, warp: &mut Warp, pc: u32, regs: u32, raise: bool) -> bool {
        self.check_members(warp, pc, FULL, "setmaxnreg");
        let had = warp.asynchronous.registers.unwrap_or(self.machine.launch_registers);
        if raise && regs < had || !raise && regs > had {
            let (does, than) = if raise { ("raises", "fewer") } else { ("lowers", "more") };
            self.report(FindingKind::Registers, pc, None, |cluster| {
                let message = format!("{does} a thread's registers to {regs}, {than} than the {had} it has");
                Details::new(message, cluster.actor(warp.index, FULL))
            });
        }
        let pool = &mut self.registers[warp.rank];
        if raise {
            let needed = 32 * regs.saturating_sub(had);
            if *pool < needed {
                self.block(warp, pc, Wait::Registers { needed });
                return false;
            }
            *pool -= needed;
        } else {
            *pool += 32 * had.saturating_sub(regs);
            self.woken = true;
        }
        warp.asynchronous.registers = Some(regs);
        warp.asynchronous.settings.push((pc, regs));
        true
    }

    /// Reports warpgroups whose warps set different register counts.
    pub(crate) fn check_registers(&mut self, warps: &[Warp]) {
        for group in warps.chunks(4) {
            let regs = |warp: &Warp| warp.asynchronous.settings.iter().map(|s| s.1).collect::<Vec<_>>();
            let Some(first) = group.first() else { continue };
            let Some(odd) = group.iter().find(|warp| regs(warp) != regs(first)) else {
                continue;
            };
            let setting = odd.asynchronous.settings.last().or(first.asynchronous.settings.last());
            let Some(&(pc, _)) = setting else { continue };
            let odd = odd.index;
            self.report(FindingKind::Registers, pc, None, |cluster| {
                let message = "the warps of a warpgroup set different register counts";
                Details::new(message, cluster.actor(odd, FULL)).help("let all four warps execute the same `setmaxnreg`")
            });
        }
    }

    /// `elect.sync`: PTX does not specify the lane; it depends on the seed and is always the same.
    pub(crate) fn elect(&mut self, warp: &mut Warp, pc: u32, d: Row) {
        self.check_members(warp, pc, FULL, "elect.sync");
        let elected = 1 << self.elected(warp, warp.active);
        warp.registers.set_pred(d, warp.active, elected & warp.active);
    }

    /// The lane of some that is elected.
    pub(crate) fn elected(&self, warp: &Warp, group: u32) -> usize {
        let pick = Rng::new(self.machine.options.seed, warp.index as u64).below(group.count_ones().max(1));
        lanes(group).nth(pick as usize).unwrap_or(0)
    }

    pub(crate) fn trap_if(&mut self, warp: &Warp, pc: u32, pred: Row) {
        let lanes = warp.registers.pred(pred) & warp.active;
        if lanes != 0 {
            self.trap(warp, pc, lanes);
        }
    }

    /// `fence.proxy.async`.
    pub(crate) fn fence_proxy(&mut self, warp: &mut Warp) {
        let waited = self.copies[warp.index].waited;
        for lane in lanes(warp.active) {
            warp.fenced[lane] = warp.epoch;
            warp.fenced_copies[lane] = waited[lane];
        }
        warp.learn_each(warp.active, |clock| clock.fence());
        self.fence_mbarriers(warp);
        warp.epoch = self.next_epoch();
    }

    /// `griddepcontrol.wait`.
    pub(crate) fn dependency_wait(&mut self, warp: &mut Warp) {
        if !self.machine.launch.programmatic {
            return;
        }
        let upstream = self.machine.actors.upstream();
        warp.learn_each(warp.active, |clock| clock.learn(upstream, 1));
    }
}
