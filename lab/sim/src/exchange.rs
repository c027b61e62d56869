//! Warp exchanges: shfl, vote, redux. None of them orders memory.

use flashcore_ir::inst::{ShflMode, VoteMode};

use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::program::{Bin32, Row};
use crate::record::Details;
use crate::registers::FULL;
use crate::warp::Warp;

impl Cluster<'_> {
    /// `shfl.sync` (PTX ISA, `shfl`). Lanes without a valid source keep their own value.
    #[inline(always)]
    pub(crate) fn shfl(&mut self, warp: &mut Warp, pc: u32, mode: ShflMode, [d, src, lane]: [Row; 3], members: u32) {
        self.check_members(warp, pc, members, "shfl.sync");
        let constants = &self.machine.constants;
        let values = warp.registers.get(constants, src);
        let by = warp.registers.get(constants, lane);
        let mut out = [0; 32];
        let mut sources = 0u32;
        for lane in 0..32u32 {
            let by = by[lane as usize] & 31;
            let source = match mode {
                ShflMode::Bfly => lane ^ by,
                ShflMode::Down => lane + by,
                ShflMode::Up => lane.wrapping_sub(by),
                ShflMode::Idx => by,
            };
            let source = if source < 32 { source } else { lane };
            if warp.active >> lane & 1 != 0 {
                sources |= 1 << source;
            }
            out[lane as usize] = values[source as usize];
        }
        let absent = sources & !warp.active;
        warp.registers.set(d, warp.active, &out);
        if absent != 0 {
            let active = warp.active;
            self.report(FindingKind::MissingLanes, pc, |cluster| {
                let message = format!("`shfl.sync` reads from lanes {absent:#010x}, which are not active");
                Details::new(message, cluster.actor(warp.index, active))
            });
        }
    }

    #[inline(always)]
    pub(crate) fn vote(&mut self, warp: &mut Warp, pc: u32, mode: VoteMode, d: Row, pred: Row, members: u32) {
        self.check_members(warp, pc, members, "vote.sync");
        let voters = members & warp.active;
        let ballot = warp.registers.pred(pred) & voters;
        match mode {
            VoteMode::All => {
                let all = if ballot == voters { FULL } else { 0 };
                warp.registers.set_pred(d, warp.active, all);
            }
            VoteMode::Any => {
                let any = if ballot != 0 { FULL } else { 0 };
                warp.registers.set_pred(d, warp.active, any);
            }
            VoteMode::Ballot => warp.registers.set(d, warp.active, &[ballot; 32]),
        }
    }

    #[inline(always)]
    pub(crate) fn redux(&mut self, warp: &mut Warp, pc: u32, f: Bin32, d: Row, src: Row, members: u32) {
        self.check_members(warp, pc, members, "redux.sync");
        let values = warp.registers.get(&self.machine.constants, src);
        let mut lanes = (0..32).filter(|lane| members & warp.active & (1 << lane) != 0);
        let first = lanes.next().map_or(0, |lane| values[lane]);
        let all = lanes.fold(first, |a, lane| {
            let b = values[lane];
            match f {
                Bin32::MinU => a.min(b),
                Bin32::MaxU => a.max(b),
                Bin32::MinS => (a as i32).min(b as i32) as u32,
                Bin32::MaxS => (a as i32).max(b as i32) as u32,
                Bin32::And => a & b,
                Bin32::Or => a | b,
                Bin32::Xor => a ^ b,
                _ => a.wrapping_add(b),
            }
        });
        warp.registers.set(d, warp.active, &[all; 32]);
    }
}
