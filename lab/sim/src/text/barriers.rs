//! Barriers that the kernel language has not, or has in another way.

use flashcore_ir::Operand;
use flashcore_ir::inst::{Address, BinOp, Cvt, Inst, MbarInst, Scope, Space};
use flashcore_ir::types::{RegClass, ScalarType};
use flashcore_ptx::Operand as Written;

use super::Reader;
use super::cold::{Mbarrier, Vote, What};
use super::numbers::Ty;
use super::operands::Filled;
use crate::report::Class;

impl Reader<'_> {
    /// Reads barriers that reduce predicates, those whose number of threads a register has, and those of the lanes that
    /// one has.
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
                let reads = vec![self.operand(members, Ty::Int(32, false))?];
                self.cold(What::WarpSync, Class::Sync, Vec::new(), reads);
            }
            [id, threads @ Written::Register(_)] if !has("cluster") => {
                self.barrier_of(id, Some(threads), !has("arrive"))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn barrier_of(&mut self, id: &Written, threads: Option<&Written>, waits: bool) -> Filled<()> {
        let id = self.operand(id, Ty::Int(32, false))?;
        let threads = match threads {
            None => None,
            Some(Written::Integer(threads)) => Some(u32::try_from(*threads).unwrap_or(u32::MAX)),
            Some(register) => {
                let reads = vec![id, self.operand(register, Ty::Int(32, false))?];
                self.cold(What::Barrier(waits), Class::Sync, Vec::new(), reads);
                return Ok(());
            }
        };
        let barrier = Inst::BarSync { id, threads };
        barrier.impossible().map_or(Ok(()), Err)?;
        self.out.push(barrier);
        Ok(())
    }

    /// Reads what the kernel language has of mbarriers in another way: counts in registers, and tokens.
    pub(super) fn mbarrier(&mut self, operands: &[Written], words: &[&str]) -> Filled<bool> {
        let has = |word: &str| words.contains(&word);
        // What orders nothing, and other blocks' barriers unless the kernel language has it: of sm_90.
        if has("relaxed") {
            return Ok(false);
        }
        let scope = if has("cluster") { Scope::Cluster } else { Scope::Block };
        match (words.first(), operands) {
            (Some(&"init"), [address, count]) => {
                let address = self.shared_address(address)?;
                let reads = vec![self.operand(count, Ty::Int(32, false))?];
                self.cold(What::Mbarrier(Mbarrier::Init, address), Class::Sync, Vec::new(), reads);
            }
            (Some(&"inval"), [address]) => {
                let inval = What::Mbarrier(Mbarrier::Invalidate, self.shared_address(address)?);
                self.cold(inval, Class::Sync, Vec::new(), Vec::new());
            }
            (Some(&"pending_count"), [d, state]) => {
                let (writes, reads) = (vec![self.register(d)?], vec![self.operand(state, Ty::Int(64, false))?]);
                self.cold(What::Scalar(Box::new(|v| v[0] >> 32)), Class::Alu, writes, reads);
            }
            (Some(&("arrive" | "arrive_drop")), [d, address, rest @ ..]) if !has("shared::cluster") => {
                let addr = self.shared_address(address)?;
                if *d != Written::Sink {
                    let writes = vec![self.register(d)?];
                    self.cold(What::Mbarrier(Mbarrier::State, addr), Class::Sync, writes, Vec::new());
                }
                let count = rest
                    .first()
                    .map(|count| self.operand(count, Ty::Int(32, false)))
                    .transpose()?;
                let tx = count.filter(|_| has("expect_tx"));
                let (drops, ends) = (has("arrive_drop"), !has("noComplete"));
                if drops && tx.is_some() || scope == Scope::Cluster && (drops || count.is_some() && tx.is_none()) {
                    return Ok(false);
                }
                if drops || !ends || tx.is_none() && count.is_some_and(|count| count != Operand::Imm(1)) {
                    let arrive = What::Mbarrier(Mbarrier::Arrive { drops, ends }, addr);
                    self.cold(arrive, Class::Sync, Vec::new(), vec![count.unwrap_or(Operand::Imm(1))]);
                    return Ok(true);
                }
                self.out.push(Inst::Mbar(MbarInst::Arrive {
                    addr,
                    remote: false,
                    scope,
                    tx,
                }));
            }
            (Some(&"test_wait" | &"try_wait"), [d, address, token, ..]) => {
                let dst = self.result(d, RegClass::Pred)?;
                if dst.class != RegClass::Pred {
                    return Err("its result is a predicate".to_string());
                }
                let addr = self.shared_address(address)?;
                let blocking = has("try_wait");
                if has("parity") {
                    let parity = self.operand(token, Ty::Int(32, false))?;
                    self.out.push(Inst::Mbar(MbarInst::Test {
                        dst,
                        addr,
                        parity,
                        blocking,
                        scope,
                    }));
                    return Ok(true);
                }
                let (low, parity) = (self.fresh(RegClass::B32, 1), self.fresh(RegClass::B32, 1));
                let src = Operand::Reg(self.reg(token, RegClass::B64)?);
                let (op, ty, a, b) = (BinOp::And, ScalarType::B32, Operand::Reg(low), Operand::Imm(1));
                self.out.extend([
                    Inst::Cvt {
                        op: Cvt::U32FromU64,
                        dst: low,
                        src,
                    },
                    Inst::Bin {
                        op,
                        ty,
                        dst: parity,
                        a,
                        b,
                    },
                    Inst::Mbar(MbarInst::Test {
                        dst,
                        addr,
                        parity: Operand::Reg(parity),
                        blocking,
                        scope,
                    }),
                ]);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The address of an mbarrier, in shared memory though it may be generic.
    pub(super) fn shared_address(&mut self, written: &Written) -> Filled<Address> {
        match written {
            Written::Memory(base, offset) => self.address(base, *offset, Space::Shared),
            _ => Err("an address is needed in place of another operand".to_string()),
        }
    }
}
