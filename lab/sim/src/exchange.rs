//! Warp exchanges: shfl, vote, redux. None of them orders memory.

use flashcore_ir::inst::{BinOp, ShflMode, VoteMode};

use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::program::Row;
use crate::record::Details;
use crate::registers::{FULL, lanes};
use crate::warp::Warp;

impl Cluster<'_> {
    /// `shfl.sync` (PTX ISA, `shfl`). Lanes without a valid source keep their own value.
    #[inline(always)]
    pub(crate) fn shfl(&mut self, warp: &mut Warp, pc: u32, mode: ShflMode, [d, src, lane]: [Row; 3], members: u32) {
        self.check_members(warp, pc, members, "shfl.sync");
        let constants = &self.machine.constants;
        let values: &[u32; 32] = warp.registers.get(constants, src);
        let by: &[u32; 32] = warp.registers.get(constants, lane);
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
            self.report(FindingKind::MissingLanes, pc, None, |cluster| {
                let message = format!("`shfl.sync` reads from lanes {absent:#010x}, which are not active");
                Details::new(message, cluster.actor(warp.index, warp.active))
            });
        }
    }

    #[inline(always)]
    pub(crate) fn vote(&mut self, warp: &mut Warp, pc: u32, mode: VoteMode, [d, pred]: [Row; 2], members: u32) {
        self.check_members(warp, pc, members, "vote.sync");
        let voters = members & warp.active;
        let ballot = warp.registers.pred(pred) & voters;
        let holds = match mode {
            VoteMode::All => ballot == voters,
            VoteMode::Any => ballot != 0,
            VoteMode::Ballot => return warp.registers.set(d, warp.active, &[ballot; 32]),
        };
        warp.registers.set_pred(d, warp.active, if holds { FULL } else { 0 });
    }

    pub(crate) fn redux(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        op: BinOp,
        signed: bool,
        [d, src]: [Row; 2],
        members: u32,
    ) {
        self.check_members(warp, pc, members, "redux.sync");
        let values: &[u32; 32] = warp.registers.get(&self.machine.constants, src);
        let named = lanes(members & warp.active).map(|lane| values[lane]);
        let all = named.reduce(|a, b| combine(op, signed, a, b));
        warp.registers.set(d, warp.active, &[all.unwrap_or(0); 32]);
    }
}

/// Two values of a `redux.sync` as one.
pub(crate) fn combine(op: BinOp, signed: bool, a: u32, b: u32) -> u32 {
    match (op, signed) {
        (BinOp::Min, false) => a.min(b),
        (BinOp::Max, false) => a.max(b),
        (BinOp::Min, true) => (a as i32).min(b as i32) as u32,
        (BinOp::Max, true) => (a as i32).max(b as i32) as u32,
        (BinOp::And, _) => a & b,
        (BinOp::Or, _) => a | b,
        (BinOp::Xor, _) => a ^ b,
        (BinOp::Add, _) => a.wrapping_add(b),
        (BinOp::Sub | BinOp::Mul | BinOp::MulHi | BinOp::MulWide | BinOp::Div | BinOp::Rem, _)
        | (BinOp::Shl | BinOp::Shr, _) => unreachable!("redux has no {op:?} (`Inst::impossible`)"),
    }
}
