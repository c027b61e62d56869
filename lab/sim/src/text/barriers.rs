//! Barriers.

use flashcore_ir::Operand;
use flashcore_ir::inst::{Address, BinOp, Cvt, Inst, Space};
use flashcore_ir::types::RegClass;
use flashcore_ptx::Operand as Written;

use super::Reader;
use super::cold::{Mbarrier, Vote, What};
use super::numbers::Ty;
use super::operands::{Filled, small};
use super::scalar::{U32, U64};
use crate::program::Op;
use crate::report::Class;

impl Reader<'_> {
    /// Reads barriers of a block, of some of its threads, and of lanes.
    pub(super) fn barrier(&mut self, operands: &[Written], words: &[&str]) -> Filled<bool> {
        let has = |word: &str| words.contains(&word);
        match operands {
            [d, id, threads @ .., p] if has("red") => {
                let reads = vec![self.operand(p, Ty::Pred)?];
                self.cold(What::Give, Class::Exchange, Vec::new(), reads);
                self.barrier_of(id, threads.first(), true)?;
                let (vote, class) = if has("popc") {
                    (Vote::Ballot, RegClass::B32)
                } else {
                    (if has("and") { Vote::All } else { Vote::Any }, RegClass::Pred)
                };
                let writes = vec![self.result(d, class)?];
                self.cold(What::Given(vote), Class::Exchange, writes, Vec::new());
            }
            [members] if has("warp") => {
                let reads = vec![self.operand(members, U32)?];
                self.cold(What::WarpSync, Class::Sync, Vec::new(), reads);
            }
            [id] if !has("cluster") => self.barrier_of(id, None, true)?,
            [id, threads] if !has("cluster") => self.barrier_of(id, Some(threads), !has("arrive"))?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn barrier_of(&mut self, id: &Written, threads: Option<&Written>, waits: bool) -> Filled<()> {
        if let Some(Written::Integer(threads)) = threads {
            small(*threads, u32::MAX)?;
        }
        let all = std::iter::once(id).chain(threads);
        let reads = all.map(|operand| self.operand(operand, U32));
        let reads = reads.collect::<Filled<Vec<Operand>>>()?;
        let (id, threads) = (reads[0], reads.get(1).copied());
        let threads = match threads {
            Some(Operand::Imm(threads)) => Some(threads as u32),
            // What a register has is judged when it runs.
            None | Some(Operand::Reg(_)) => None,
        };
        let barrier = Inst::BarSync { id, threads };
        barrier.impossible().map_or(Ok(()), Err)?;
        self.cold(What::Barrier(waits), Class::Sync, Vec::new(), reads);
        Ok(())
    }

    /// Reads instructions on mbarriers.
    pub(super) fn mbarrier(&mut self, operands: &[Written], words: &[&str]) -> Filled<bool> {
        let has = |word: &str| words.contains(&word);
        let (is_remote, of_cluster, is_relaxed) = (has("shared::cluster"), has("cluster"), has("relaxed"));
        let (first, word) = (words.first().copied().unwrap_or(""), U32);
        let (what, address, writes, reads) = match (first, operands) {
            ("init", [address, count]) => (Mbarrier::Init, address, Vec::new(), vec![self.operand(count, word)?]),
            ("inval", [address]) => (Mbarrier::Invalidate, address, Vec::new(), Vec::new()),
            ("pending_count", [d, sources @ ..]) => {
                self.computed(d, sources, &[U64], Box::new(|v| v[0] >> 32))?;
                return Ok(true);
            }
            ("expect_tx" | "complete_tx", [address, bytes]) => {
                let come = first == "complete_tx";
                let what = Mbarrier::Bytes { come, is_remote };
                (what, address, Vec::new(), vec![self.operand(bytes, word)?])
            }
            ("arrive" | "arrive_drop", [d, address, rest @ ..]) => {
                let (drops, ends, announces) = (first == "arrive_drop", !has("noComplete"), has("expect_tx"));
                if *d != Written::Sink {
                    if is_remote {
                        return Err("that of another block gives no state".to_string());
                    }
                    let (writes, addr) = (vec![self.register(d)?], self.shared_address(address)?);
                    self.cold(What::Mbarrier(Mbarrier::State, addr), Class::Sync, writes, Vec::new());
                }
                let count = rest.first().map(|count| self.operand(count, word)).transpose()?;
                let arrive = Mbarrier::Arrive {
                    drops,
                    ends,
                    announces,
                    is_remote,
                    of_cluster,
                    releases: !is_relaxed,
                };
                (arrive, address, Vec::new(), vec![count.unwrap_or(Operand::Imm(1))])
            }
            ("test_wait" | "try_wait", [d, address, phase, ..]) => {
                let dst = self.result(d, RegClass::Pred)?;
                if dst.class != RegClass::Pred {
                    return Err("its result is a predicate".to_string());
                }
                let phase = if has("parity") {
                    self.operand(phase, word)?
                } else {
                    self.parity_of(phase)?
                };
                let test = Mbarrier::Test {
                    waits: first == "try_wait",
                    acquires: !is_relaxed,
                };
                (test, address, vec![dst], vec![phase])
            }
            _ => return Ok(false),
        };
        let address = self.shared_address(address)?;
        self.cold(What::Mbarrier(what, address), Class::Sync, writes, reads);
        Ok(true)
    }

    /// The parity of the phase of a state, which is its lowest bit.
    fn parity_of(&mut self, state: &Written) -> Filled<Operand> {
        let src = Operand::Reg(self.reg(state, RegClass::B64)?);
        let (low, parity) = (self.fresh(RegClass::B32, 1), self.fresh(RegClass::B32, 1));
        self.convert(Cvt::U32FromU64, low, src);
        let and = Op::Int32(BinOp::And, false, [0, 1, 2]);
        self.with_constant(and, U32, parity, (Operand::Reg(low), 1));
        Ok(Operand::Reg(parity))
    }

    /// The address of an mbarrier, in shared memory though it may be generic.
    pub(super) fn shared_address(&mut self, written: &Written) -> Filled<Address> {
        match written {
            Written::Memory(base, offset) => self.address(base, *offset, Space::Shared),
            _ => Err("an address is needed in place of another operand".to_string()),
        }
    }
}
