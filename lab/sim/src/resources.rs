//! Registers that warpgroups hand to each other, elected lanes, traps.

use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::program::Row;
use crate::record::Details;
use crate::registers::FULL;
use crate::rng::Rng;
use crate::warp::{Wait, Warp};

impl Cluster<'_> {
    /// `setmaxnreg`: registers go to the block's pool or come from it. Returns false where they are not there
    /// yet and the warp has to try again.
    pub(crate) fn set_max_registers(&mut self, warp: &mut Warp, pc: u32, regs: u32, raise: bool) -> bool {
        self.check_members(warp, pc, FULL, "setmaxnreg");
        let had = warp.side.registers.unwrap_or(self.machine.launch_registers);
        if raise && regs < had || !raise && regs > had {
            let (does, than) = if raise { ("raises", "fewer") } else { ("lowers", "more") };
            self.report(FindingKind::Registers, pc, |cluster| {
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
        warp.side.registers = Some(regs);
        warp.side.settings.push((pc, regs));
        true
    }

    /// Finds warpgroups whose warps did not set the same registers.
    pub(crate) fn judge_registers(&mut self, warps: &[Warp]) {
        for group in warps.chunks(4) {
            let regs = |warp: &Warp| warp.side.settings.iter().map(|s| s.1).collect::<Vec<_>>();
            let Some(first) = group.first() else { continue };
            let Some(odd) = group.iter().find(|warp| regs(warp) != regs(first)) else {
                continue;
            };
            let setting = odd.side.settings.last().or(first.side.settings.last());
            let Some(&(pc, _)) = setting else { continue };
            let odd = odd.index;
            self.report(FindingKind::Registers, pc, |cluster| {
                let message = "the warps of a warpgroup set different numbers of registers".to_string();
                let mut details = Details::new(message, cluster.actor(odd, FULL));
                details.help = Some("all four warps execute the same `setmaxnreg`");
                details
            });
        }
    }

    /// `elect.sync`: one lane, the same each time; which one depends on the seed, since nobody may rely on it.
    pub(crate) fn elect(&mut self, warp: &mut Warp, pc: u32, d: Row) {
        self.check_members(warp, pc, FULL, "elect.sync");
        let count = warp.active.count_ones();
        let mut pick = Rng::new(self.machine.options.seed, warp.index as u64).below(count.max(1));
        let mut lanes = warp.active;
        while pick > 0 {
            lanes &= lanes - 1;
            pick -= 1;
        }
        warp.registers.set_pred(d, warp.active, lanes & lanes.wrapping_neg());
    }

    /// `trap` where the predicate holds.
    pub(crate) fn trap_if(&mut self, warp: &Warp, pc: u32, pred: Row) {
        let lanes = warp.registers.pred(pred) & warp.active;
        if lanes != 0 {
            self.report(FindingKind::Trap, pc, |cluster| {
                Details::new(
                    "stops the launch by a trap".to_string(),
                    cluster.actor(warp.index, lanes),
                )
            });
        }
    }

    /// `fence.proxy.async`.
    pub(crate) fn fence_proxy(&mut self, warp: &mut Warp) {
        let finished = self.copies[warp.index].waited_up_to();
        for lane in (0..32).filter(|lane| warp.active >> lane & 1 != 0) {
            warp.fenced[lane] = warp.epoch;
            warp.fenced_copies[lane] = finished[lane];
        }
        warp.learn_each(warp.active, |clock| clock.fence());
        self.fence_mbarriers(warp);
        warp.epoch = self.next_epoch();
    }

    /// `griddepcontrol.wait`.
    pub(crate) fn dependency_wait(&mut self, warp: &mut Warp) {
        let upstream = self.machine.actors.upstream();
        warp.learn_each(warp.active, |clock| clock.learn(upstream, 1));
    }
}
