//! Instructions that the kernel language has not.

use flashcore_ir::Operand;
use flashcore_ir::inst::{Inst, ShflMode};
use flashcore_ir::types::{Reg, RegClass, ScalarType};
use flashcore_ptx::{Operand as Written, Spelled};

use super::cold::{Cold, Join, Memory, Vote, What};
use super::memory::memory_of;
use super::numbers::Ty;
use super::operands::{Filled, narrowed};
use super::{Item, Reader, Step, scalar};
use crate::report::Class;

impl Reader<'_> {
    pub(super) fn cold(&mut self, what: What, class: Class, writes: Vec<Reg>, reads: Vec<Operand>) {
        self.flush();
        let step = Step::Cold(Cold {
            what,
            class,
            writes,
            reads,
        });
        let site = self.site;
        self.items.push(Item { step, site });
    }

    pub(super) fn register(&self, written: &Written) -> Filled<Reg> {
        match written {
            Written::Register(register) => {
                self.registers[register.0 as usize].ok_or("registers of this type are not read".to_string())
            }
            _ => Err("a register is needed in place of another operand".to_string()),
        }
    }

    /// A result; one that is not kept goes to a new register.
    pub(super) fn result(&mut self, written: &Written, class: RegClass) -> Filled<Reg> {
        match written {
            Written::Sink => Ok(self.fresh(class, 1)),
            _ => self.register(written),
        }
    }

    /// An operand of a type: of a narrower one the register may be wider.
    pub(super) fn operand(&mut self, written: &Written, ty: Ty) -> Filled<Operand> {
        Ok(match written {
            Written::Register(_) => Operand::Reg(self.register(written)?),
            Written::Not(register) => {
                let a = Operand::Reg(self.register(&Written::Register(*register))?);
                let dst = self.fresh(RegClass::Pred, 1);
                let (op, ty) = (flashcore_ir::inst::UnOp::Not, ScalarType::Pred);
                self.out.push(Inst::Un { op, ty, dst, a });
                Operand::Reg(dst)
            }
            Written::Integer(bits) if ty == Ty::F64 => Operand::Imm((*bits as i64 as f64).to_bits()),
            Written::Integer(bits) if ty == Ty::F32 => Operand::Imm(u64::from((*bits as i64 as f32).to_bits())),
            Written::Integer(bits) => {
                let (width, number) = (8 * ty.bytes(), *bits as i64);
                let fits = width < 16 || narrowed(*bits, width).is_some();
                let small = fits.then_some(Operand::Imm(bits & super::numbers::mask(width)));
                small.ok_or_else(|| format!("{number} does not fit into the {} B of a number", ty.bytes()))?
            }
            Written::Float { bits, width: 64 } if ty == Ty::F32 => {
                Operand::Imm(u64::from((f64::from_bits(*bits) as f32).to_bits()))
            }
            Written::Float { bits, .. } => Operand::Imm(*bits),
            Written::Special(_) => {
                let dst = self.fresh(RegClass::B32, 1);
                self.special(dst, written)?;
                Operand::Reg(dst)
            }
            _ => return Err("a register or a number is needed in place of another operand".to_string()),
        })
    }

    pub(super) fn special(&mut self, dst: Reg, written: &Written) -> Filled<()> {
        use flashcore_ir::inst::{BinOp, Special};
        let Written::Special(name) = written else {
            return Err("a special register is needed".to_string());
        };
        let lane = |reader: &mut Self| {
            let dst = reader.fresh(RegClass::B32, 1);
            reader.out.push(Inst::Special {
                dst,
                which: Special::LaneId,
            });
            Operand::Reg(dst)
        };
        let masks = |compare: fn(u64, u64) -> bool| {
            move |v: &[u64; 4]| {
                (0..32)
                    .filter(|&other| compare(other, v[0]))
                    .fold(0, |all, other| all | 1u64 << other)
            }
        };
        let compute: scalar::Compute = match name.trim_start_matches('%') {
            "lanemask_eq" => Box::new(masks(|other, lane| other == lane)),
            "lanemask_lt" => Box::new(masks(|other, lane| other < lane)),
            "lanemask_le" => Box::new(masks(|other, lane| other <= lane)),
            "lanemask_gt" => Box::new(masks(|other, lane| other > lane)),
            "lanemask_ge" => Box::new(masks(|other, lane| other >= lane)),
            // Time does not pass; a value that no kernel may rely on.
            "clock" | "clock64" | "globaltimer" | "smid" | "gridid" => Box::new(|_| 0),
            "warpid" => {
                self.out.push(Inst::Special {
                    dst,
                    which: Special::Tid(0),
                });
                let (op, ty, a, b) = (BinOp::Shr, ScalarType::U32, Operand::Reg(dst), Operand::Imm(5));
                self.out.push(Inst::Bin { op, ty, dst, a, b });
                return Ok(());
            }
            _ => {
                let found = Special::all().find(|special| special.ptx() == *name);
                let which = found.ok_or_else(|| format!("`{name}` is not read"))?;
                self.out.push(Inst::Special { dst, which });
                return Ok(());
            }
        };
        let lane = lane(self);
        self.cold(What::Scalar(compute), Class::Alu, vec![dst], vec![lane]);
        Ok(())
    }

    /// Reads what the kernel language has not. False if it is not known either.
    pub(super) fn foreign(&mut self, form: &Spelled, operands: &[Written]) -> Filled<bool> {
        let words: Vec<&str> = form.modifiers().collect();
        let has = |word: &str| words.contains(&word);
        match (form.name(), operands) {
            ("mov", [d, Written::List(parts)]) => self.pack(d, parts, &words)?,
            ("mov", [Written::List(parts), a]) => self.unpack(parts, a, &words)?,
            ("mov", [d, a @ Written::Special(_)]) => {
                let dst = self.register(d)?;
                let narrow = if dst.class == RegClass::B32 {
                    dst
                } else {
                    self.fresh(RegClass::B32, 1)
                };
                self.special(narrow, a)?;
                let (op, src) = (flashcore_ir::inst::Cvt::U64FromU32, Operand::Reg(narrow));
                match dst.class {
                    RegClass::B32 => {}
                    RegClass::B64 => self.out.push(Inst::Cvt { op, dst, src }),
                    _ => return Err("special registers have 32 or 64 bits".to_string()),
                }
            }
            ("mov", [d, a]) => {
                let dst = self.register(d)?;
                let ty = words
                    .last()
                    .and_then(|word| Ty::of(word))
                    .ok_or("its type is not read")?;
                let src = self.operand(a, ty)?;
                if let Operand::Reg(src) = src
                    && src.class.bytes() != dst.class.bytes()
                {
                    return Err("registers of different sizes".to_string());
                }
                self.out.push(Inst::Mov { dst, src });
            }
            ("setp", [d, a, b, rest @ ..]) => self.test(d, a, b, rest.first(), &words)?,
            ("shfl", [d, a, b, c, members]) => {
                let (d, p) = match d {
                    Written::Pair(both) => (&both[0], Some(&both[1])),
                    d => (d, None),
                };
                let mut writes = vec![self.result(d, RegClass::B32)?];
                writes.extend(p.map(|p| self.result(p, RegClass::Pred)).transpose()?);
                let all = [a, b, c, members].map(|x| self.operand(x, Ty::Int(32, false)));
                let reads = all.into_iter().collect::<Filled<Vec<Operand>>>()?;
                let mode = ShflMode::ALL.into_iter().find(|mode| has(mode.ptx()));
                self.cold(
                    What::Shfl(mode.ok_or("its mode is not read")?),
                    Class::Exchange,
                    writes,
                    reads,
                );
            }
            ("vote", [d, p, members]) => {
                let vote = [
                    ("all", Vote::All),
                    ("any", Vote::Any),
                    ("uni", Vote::Uni),
                    ("ballot", Vote::Ballot),
                ];
                let vote = vote.into_iter().find(|(word, _)| has(word)).map(|(_, vote)| vote);
                let class = if has("ballot") { RegClass::B32 } else { RegClass::Pred };
                let writes = vec![self.result(d, class)?];
                let reads = vec![self.operand(p, Ty::Pred)?, self.operand(members, Ty::Int(32, false))?];
                self.cold(
                    What::Vote(vote.ok_or("its mode is not read")?),
                    Class::Exchange,
                    writes,
                    reads,
                );
            }
            ("match", [d, a, members]) => {
                let (d, p) = match d {
                    Written::Pair(both) => (&both[0], Some(&both[1])),
                    d => (d, None),
                };
                let mut writes = vec![self.result(d, RegClass::B32)?];
                writes.extend(p.map(|p| self.result(p, RegClass::Pred)).transpose()?);
                let ty = words
                    .last()
                    .and_then(|word| Ty::of(word))
                    .ok_or("its type is not read")?;
                let reads = vec![self.operand(a, ty)?, self.operand(members, Ty::Int(32, false))?];
                self.cold(What::Match(has("all")), Class::Exchange, writes, reads);
            }
            ("redux", [d, a, members]) => {
                use flashcore_ir::inst::BinOp;
                let op = BinOp::ALL
                    .into_iter()
                    .find(|op| has(op.ptx()))
                    .ok_or("its operation is not read")?;
                let writes = vec![self.result(d, RegClass::B32)?];
                let reads = vec![
                    self.operand(a, Ty::Int(32, false))?,
                    self.operand(members, Ty::Int(32, false))?,
                ];
                self.cold(What::Redux(op, has("s32")), Class::Exchange, writes, reads);
            }
            ("mbarrier", _) => return self.mbarrier(operands, &words),
            ("call", _) => self.call(operands)?,
            ("mma" | "wmma", _) => self.matrix(form.name(), &words, operands)?,
            ("cp", []) if has("wait_all") => {
                self.out.extend([Inst::CpAsyncCommit, Inst::CpAsyncWait { pending: 0 }]);
            }
            ("activemask", [d]) => {
                let writes = vec![self.result(d, RegClass::B32)?];
                self.cold(What::ActiveMask, Class::Exchange, writes, Vec::new());
            }
            ("membar" | "fence", []) if !has("proxy") && !has("mbarrier_init") => {
                use flashcore_ir::inst::{FenceInst, Scope};
                let scope = if has("cta") {
                    Scope::Block
                } else if has("cluster") {
                    Scope::Cluster
                } else {
                    Scope::Device
                };
                self.out.push(Inst::Fence(FenceInst::Memory(scope)));
            }
            ("nanosleep" | "pmevent" | "brkpt" | "prefetch" | "prefetchu" | "discard" | "applypriority", _) => {
                self.cold(What::Nothing, Class::Sync, Vec::new(), Vec::new());
            }
            ("trap", []) => self.cold(What::Trap, Class::Control, Vec::new(), Vec::new()),
            ("cvta", [d, a]) => self.convert_address(d, a, &words)?,
            ("isspacep", [p, a]) => {
                let memory = memory_of(&words);
                let (writes, reads) = (vec![self.register(p)?], vec![self.operand(a, Ty::Int(64, false))?]);
                let compute = move |v: &[u64; 4]| u64::from(Memory::of(v[0]) == memory);
                self.cold(What::Scalar(Box::new(compute)), Class::Alu, writes, reads);
            }
            ("ld" | "ldu", [d, address, ..]) => self.load(d, address, &words)?,
            ("st", [address, a, ..]) => self.store(address, a, &words)?,
            ("atom", [d, address, values @ ..]) => self.atomic(Some(d), address, values, &words)?,
            ("red", [address, values @ ..]) => self.atomic(None, address, values, &words)?,
            _ => {
                let Some(known) = scalar::read(form) else {
                    return Ok(false);
                };
                let [d, sources @ ..] = operands else { return Ok(false) };
                if sources.len() != known.from.len() {
                    return Ok(false);
                }
                let writes = vec![self.register(d)?];
                let reads = sources
                    .iter()
                    .zip(&known.from)
                    .map(|(source, ty)| self.operand(source, *ty));
                let reads = reads.collect::<Filled<Vec<Operand>>>()?;
                self.cold(What::Scalar(known.compute), Class::Alu, writes, reads);
            }
        }
        Ok(true)
    }

    /// Reads a call of what CUDA's runtime has on the device.
    fn call(&mut self, operands: &[Written]) -> Filled<()> {
        let name = operands.iter().find_map(|operand| match operand {
            Written::Symbol(name, _) => Some(name.as_str()),
            _ => None,
        });
        let arguments = match operands.last() {
            Some(Written::List(arguments)) => &arguments[..],
            _ => &[],
        };
        let mut reads = Vec::new();
        for argument in arguments {
            let Written::Symbol(name, _) = argument else {
                return Err("its arguments are not read".to_string());
            };
            let Some(&at) = self.locals.get(name) else {
                return Err(format!("nothing is stored to its argument `{name}`"));
            };
            reads.push(Operand::Imm(at.into()));
        }
        match name {
            Some("vprintf") => self.cold(What::Print, Class::Sync, Vec::new(), reads),
            Some("__assertfail") => self.cold(What::Assert, Class::Control, Vec::new(), reads),
            Some(name) => return Err(format!("`{name}` has no body that is read")),
            None => return Err("indirect calls are not read".to_string()),
        }
        Ok(())
    }

    /// Reads what the kernel language has of mbarriers in another way: counts in registers, and tokens.
    fn mbarrier(&mut self, operands: &[Written], words: &[&str]) -> Filled<bool> {
        use flashcore_ir::inst::{BinOp, Cvt, MbarInst, Scope};
        let has = |word: &str| words.contains(&word);
        let shared = |reader: &mut Self, written: &Written| match written {
            Written::Memory(base, offset) => reader.address(base, *offset, flashcore_ir::inst::Space::Shared),
            _ => Err("an address is needed in place of another operand".to_string()),
        };
        match (words.first(), operands) {
            (Some(&"init"), [address, count]) => {
                let address = shared(self, address)?;
                let count = self.operand(count, Ty::Int(32, false))?;
                self.cold(What::Mbarrier(true, address), Class::Sync, Vec::new(), vec![count]);
            }
            (Some(&"inval"), _) => self.cold(What::Nothing, Class::Sync, Vec::new(), Vec::new()),
            (Some(&"arrive"), [d, address, rest @ ..]) if !has("noComplete") && !has("shared::cluster") => {
                let addr = shared(self, address)?;
                if *d != Written::Sink {
                    let writes = vec![self.register(d)?];
                    self.cold(What::Mbarrier(false, addr), Class::Sync, writes, Vec::new());
                }
                let count = rest
                    .first()
                    .map(|count| self.operand(count, Ty::Int(32, false)))
                    .transpose()?;
                let tx = count.filter(|_| has("expect_tx"));
                if tx.is_none() && count.is_some_and(|count| count != Operand::Imm(1)) {
                    return Err("several arrivals of a thread at once are not executed".to_string());
                }
                self.out.push(Inst::Mbar(MbarInst::Arrive {
                    addr,
                    remote: false,
                    scope: Scope::Block,
                    tx,
                }));
            }
            (Some(&"test_wait" | &"try_wait"), [d, address, token, ..]) if !has("parity") => {
                let dst = self.result(d, RegClass::Pred)?;
                if dst.class != RegClass::Pred {
                    return Err("its result is a predicate".to_string());
                }
                let addr = shared(self, address)?;
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
                        blocking: has("try_wait"),
                        scope: Scope::Block,
                    }),
                ]);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn pack(&mut self, d: &Written, parts: &[Written], words: &[&str]) -> Filled<()> {
        let dst = self.register(d)?;
        let whole = words
            .last()
            .and_then(|word| Ty::of(word))
            .ok_or("its type is not read")?;
        let bits = part_bits(whole, parts)?;
        let reads = parts.iter().map(|part| self.operand(part, Ty::Int(bits, false)));
        let reads = reads.collect::<Filled<Vec<Operand>>>()?;
        let mask = super::numbers::mask(bits);
        let compute = move |v: &[u64; 4]| {
            (0u32..).zip(v).fold(0, |all, (i, part)| {
                all | (part & mask).checked_shl(bits * i).unwrap_or(0)
            })
        };
        self.cold(What::Scalar(Box::new(compute)), Class::Alu, vec![dst], reads);
        Ok(())
    }

    fn unpack(&mut self, parts: &[Written], a: &Written, words: &[&str]) -> Filled<()> {
        let whole = words
            .last()
            .and_then(|word| Ty::of(word))
            .ok_or("its type is not read")?;
        let bits = part_bits(whole, parts)?;
        let (mask, read) = (super::numbers::mask(bits), self.operand(a, whole)?);
        for (i, part) in (0u32..).zip(parts) {
            if *part == Written::Sink {
                continue;
            }
            let dst = self.register(part)?;
            let compute = move |v: &[u64; 4]| v[0] >> (bits * i) & mask;
            self.cold(What::Scalar(Box::new(compute)), Class::Alu, vec![dst], vec![read]);
        }
        Ok(())
    }

    fn test(&mut self, d: &Written, a: &Written, b: &Written, c: Option<&Written>, words: &[&str]) -> Filled<()> {
        let ty = words
            .last()
            .and_then(|word| Ty::of(word))
            .ok_or("its type is not read")?;
        let compare = scalar::compares(words, ty).ok_or("its comparison is not read")?;
        let (p, q) = match d {
            Written::Pair(both) => (&both[0], Some(&both[1])),
            d => (d, None),
        };
        let mut writes = vec![self.result(p, RegClass::Pred)?];
        writes.extend(q.map(|q| self.result(q, RegClass::Pred)).transpose()?);
        let mut reads = vec![self.operand(a, ty)?, self.operand(b, ty)?];
        reads.extend(c.map(|c| self.operand(c, Ty::Pred)).transpose()?);
        let joins = [("and", Join::And), ("or", Join::Or), ("xor", Join::Xor)];
        let join = joins
            .into_iter()
            .find(|(word, _)| words.contains(word))
            .map_or(Join::None, |(_, join)| join);
        self.cold(What::Test(compare, join), Class::Alu, writes, reads);
        Ok(())
    }
}

/// Bits of each part of a register that a list joins or splits.
fn part_bits(whole: Ty, parts: &[Written]) -> Filled<u32> {
    match parts.len() {
        count @ (2 | 4) => Ok(8 * whole.bytes() / count as u32),
        count => Err(format!("a list of {count}; 2 or 4 are joined or split")),
    }
}
