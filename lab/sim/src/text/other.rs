//! Instructions that are read as cold steps.

use std::slice;

use flashcore_ir::Operand;
use flashcore_ir::inst::{BinOp, Cvt, FenceInst, Inst, Scope, ShflMode};
use flashcore_ir::types::{Reg, RegClass};
use flashcore_ptx::{Operand as Written, Spelled, callee};

use super::cold::{Cold, Join, Mbarrier, Memory, Vote, What};
use super::fast::{self, Fast};
use super::memory::memory_of;
use super::numbers::Ty;
use super::operands::{Filled, named, narrowed, small};
use super::scalar::{self, Compute, U32, U64};
use super::{Reader, Step};
use crate::machine::RANK_SHIFT;
use crate::program::Op;
use crate::report::Class;

impl Reader<'_> {
    pub(super) fn cold(&mut self, what: What, class: Class, writes: Vec<Reg>, reads: Vec<Operand>) {
        self.push(Step::Cold(Cold {
            what,
            class,
            writes,
            reads,
        }));
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

    /// A result, and a predicate after it where there is one.
    fn results(&mut self, written: &Written, class: RegClass) -> Filled<Vec<Reg>> {
        Ok(match written {
            Written::Pair(both) => vec![self.result(&both[0], class)?, self.result(&both[1], RegClass::Pred)?],
            one => vec![self.result(one, class)?],
        })
    }

    /// An operand of a type: of a narrower one the register may be wider.
    pub(super) fn operand(&mut self, written: &Written, ty: Ty) -> Filled<Operand> {
        Ok(match written {
            Written::Register(_) => Operand::Reg(self.register(written)?),
            Written::Not(register) => {
                let a = Operand::Reg(self.register(&Written::Register(*register))?);
                let dst = self.fresh(RegClass::Pred, 1);
                self.with_constant(Op::PredXor([0, 1, 2]), Ty::Pred, dst, (a, 1));
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

    pub(super) fn operands(&mut self, all: &[Written], types: &[Ty]) -> Filled<Vec<Operand>> {
        if all.len() != types.len() {
            return Err(format!("{} operands; {} are needed", all.len(), types.len()));
        }
        let operands = all.iter().zip(types).map(|(written, ty)| self.operand(written, *ty));
        operands.collect()
    }

    pub(super) fn special(&mut self, dst: Reg, written: &Written) -> Filled<()> {
        use flashcore_ir::inst::Special;
        let Written::Special(name) = written else {
            return Err("a special register is needed".to_string());
        };
        let lane = |reader: &mut Self| {
            let dst = reader.fresh(RegClass::B32, 1);
            reader.inst(Inst::Special {
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
                self.inst(Inst::Special {
                    dst,
                    which: Special::Tid(0),
                });
                let shift = Op::Int32(BinOp::Shr, false, [0, 1, 2]);
                self.with_constant(shift, U32, dst, (Operand::Reg(dst), 5));
                return Ok(());
            }
            _ => {
                let found = Special::all().find(|special| special.ptx() == *name);
                let which = found.ok_or_else(|| format!("`{name}` is not read"))?;
                self.inst(Inst::Special { dst, which });
                return Ok(());
            }
        };
        let lane = lane(self);
        self.cold(What::Scalar(compute), Class::Alu, vec![dst], vec![lane]);
        Ok(())
    }

    /// Reads what is executed as a cold step. False if it is not known either.
    pub(super) fn cold_step(&mut self, form: &Spelled, operands: &[Written]) -> Filled<bool> {
        if let (Some(fast), [d, sources @ ..]) = (fast::read(form), operands) {
            match self.fast(fast, slice::from_ref(d), sources) {
                Ok(()) => return Ok(true),
                // Others take wider registers, or have a second result.
                Err(why) if form.name() != "setp" && scalar::read(form).is_none() => return Err(why),
                Err(_) => {}
            }
        }
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
                match dst.class {
                    RegClass::B32 => {}
                    RegClass::B64 => self.convert(Cvt::U64FromU32, dst, Operand::Reg(narrow)),
                    _ => return Err("special registers have 32 or 64 bits".to_string()),
                }
            }
            ("mov", [d, a]) => {
                let dst = self.register(d)?;
                let ty = Ty::last(&words)?;
                let src = self.operand(a, ty)?;
                if let Operand::Reg(src) = src
                    && src.class.bytes() != dst.class.bytes()
                {
                    return Err("registers of different sizes".to_string());
                }
                self.mov(dst, src);
            }
            ("lop3", [d, sources @ .., Written::Integer(table)]) => {
                let table = small(*table, u32::from(u8::MAX))? as u8;
                let fast = Fast::new(Op::Lop3(table, [0, 1, 2, 3]), U32, &[U32; 3]);
                self.fast(fast, slice::from_ref(d), sources)?;
            }
            ("setp", [d, a, b, rest @ ..]) => {
                let writes = self.results(d, RegClass::Pred)?;
                self.test(writes, [a, b], rest.first(), &words)?;
            }
            ("set", [d, a, b, rest @ ..]) => self.set(d, [a, b], rest.first(), &words)?,
            ("add" | "addc" | "sub" | "subc" | "mad" | "madc", [d, sources @ ..])
                if scalar::carried(form, true).is_some() =>
            {
                self.carried(form, d, sources)?;
            }
            ("bar" | "barrier", _) => return self.barrier(operands, &words),
            ("movmatrix", [d, sources @ ..]) => {
                let writes = vec![self.register(d)?];
                self.exchange(What::Transpose, writes, sources, &[U32])?;
            }
            // PTX says of its bits only that other instructions take them.
            ("createpolicy", [d, ..]) => self.computed(d, &[], &[], Box::new(|_| 0))?,
            ("cp", [address]) if has("mbarrier") => {
                let address = self.shared_address(address)?;
                let copies = Mbarrier::Copies(has("noinc"));
                self.cold(What::Mbarrier(copies, address), Class::Sync, Vec::new(), Vec::new());
            }
            // Each buffer has one address.
            ("fence", []) if has("alias") => self.cold(What::Nothing, Class::Sync, Vec::new(), Vec::new()),
            ("shfl", [d, sources @ ..]) => {
                let mode = ShflMode::ALL.into_iter().find(|mode| has(mode.ptx()));
                let what = What::Shfl(mode.ok_or("its mode is not read")?);
                let writes = self.results(d, RegClass::B32)?;
                self.exchange(what, writes, sources, &[U32; 4])?;
            }
            ("vote", [d, sources @ ..]) => {
                let votes = [
                    ("all", Vote::All),
                    ("any", Vote::Any),
                    ("uni", Vote::Uni),
                    ("ballot", Vote::Ballot),
                ];
                let vote = named(&words, &votes).ok_or("its mode is not read")?;
                let class = if has("ballot") { RegClass::B32 } else { RegClass::Pred };
                let writes = vec![self.result(d, class)?];
                self.exchange(What::Vote(vote), writes, sources, &[Ty::Pred, U32])?;
            }
            ("match", [d, sources @ ..]) => {
                let (what, ty) = (What::Match(has("all")), Ty::last(&words)?);
                let writes = self.results(d, RegClass::B32)?;
                self.exchange(what, writes, sources, &[ty, U32])?;
            }
            ("redux", [d, sources @ ..]) => {
                let op = BinOp::ALL.into_iter().find(|op| has(op.ptx()));
                let what = What::Redux(op.ok_or("its operation is not read")?, has("s32"));
                let writes = vec![self.result(d, RegClass::B32)?];
                self.exchange(what, writes, sources, &[U32; 2])?;
            }
            ("elect", [d, sources @ ..]) => {
                let writes = self.results(d, RegClass::B32)?;
                self.exchange(What::Elect, writes, sources, &[U32])?;
            }
            ("fence", []) if has("async") => {
                // Of both kinds of memory, if it names none.
                let both = [FenceInst::ProxyAsync, FenceInst::ProxyAsyncGlobal];
                let count = if has("shared::cluster") { 1 } else { 2 };
                let fences = both.into_iter().take(count).map(Inst::Fence);
                fences.for_each(|fence| self.inst(fence));
            }
            ("mapa", [d, a, rank]) if has("u64") => self.mapa(d, a, rank)?,
            ("getctarank", [d, sources @ ..]) => {
                let rank = Box::new(|v: &[u64; 4]| u64::from(v[0] as u32 >> RANK_SHIFT));
                self.computed(d, sources, &[U64], rank)?;
            }
            ("cp", _) if has("bulk") => return self.bulk(operands, &words),
            ("st" | "red", _) if has("async") => return self.bulk(operands, &words),
            ("mbarrier", _) => return self.mbarrier(operands, &words),
            ("call", _) => self.call(operands)?,
            ("wgmma", _) if has("mma_async") => self.group_product(&words, operands)?,
            ("mma" | "wmma", _) => self.matrix(form.name(), &words, operands)?,
            ("cp", []) if has("wait_all") => {
                self.inst(Inst::CpAsyncCommit);
                self.inst(Inst::CpAsyncWait { pending: 0 });
            }
            ("activemask", [d, sources @ ..]) => {
                let writes = vec![self.result(d, RegClass::B32)?];
                self.exchange(What::ActiveMask, writes, sources, &[])?;
            }
            ("tensormap", _) => return self.tensor_map(operands, &words),
            // Of tensor maps, too, which are read like other memory.
            ("membar" | "fence", _) if !has("alias") && !has("mbarrier_init") => {
                let scope = named(&words, &[("cta", Scope::Block), ("cluster", Scope::Cluster)]);
                self.inst(Inst::Fence(FenceInst::Memory(scope.unwrap_or(Scope::Device))));
            }
            ("nanosleep" | "pmevent" | "brkpt" | "prefetch" | "prefetchu" | "discard" | "applypriority", _) => {
                self.cold(What::Nothing, Class::Sync, Vec::new(), Vec::new());
            }
            ("trap", []) => self.cold(What::Trap, Class::Control, Vec::new(), Vec::new()),
            ("cvta", [d, a]) => self.convert_address(d, a, &words)?,
            ("isspacep", [p, sources @ ..]) => {
                let memory = memory_of(&words);
                // Constant memory is the module's variables there; all else of global memory is none.
                let constants = self.constants();
                let (asks_const, asks_param) = (has("const"), words.iter().any(|word| word.starts_with("param")));
                let compute = move |v: &[u64; 4]| {
                    let is_const = constants.iter().any(|range| range.contains(&v[0]));
                    let is_one = Memory::of(v[0]) == memory && is_const == asks_const;
                    u64::from(is_one && !asks_param)
                };
                self.computed(p, sources, &[U64], Box::new(compute))?;
            }
            ("ld" | "ldu", [d, address, ..]) => self.load(d, address, &words)?,
            ("st", [address, a, ..]) if !has("async") => self.store(address, a, &words)?,
            ("atom", [d, address, values @ ..]) => self.atomic(Some(d), address, values, &words)?,
            ("red", [address, values @ ..]) if !has("async") => self.atomic(None, address, values, &words)?,
            _ => {
                let Some(known) = scalar::read(form) else {
                    return Ok(false);
                };
                let [d, sources @ ..] = operands else { return Ok(false) };
                if sources.len() != known.from.len() {
                    return Ok(false);
                }
                self.computed(d, sources, &known.from, known.compute)?;
            }
        }
        Ok(true)
    }

    /// What lanes of a warp do together.
    fn exchange(&mut self, what: What, writes: Vec<Reg>, sources: &[Written], types: &[Ty]) -> Filled<()> {
        let reads = self.operands(sources, types)?;
        self.cold(what, Class::Exchange, writes, reads);
        Ok(())
    }

    /// What each lane computes of its own operands.
    pub(super) fn computed(&mut self, d: &Written, sources: &[Written], types: &[Ty], compute: Compute) -> Filled<()> {
        let (writes, reads) = (vec![self.register(d)?], self.operands(sources, types)?);
        self.cold(What::Scalar(compute), Class::Alu, writes, reads);
        Ok(())
    }

    /// Reads a call of what CUDA's runtime has on the device.
    fn call(&mut self, operands: &[Written]) -> Filled<()> {
        let name = callee(operands);
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

    /// A comparison. Of pairs the second result is that of the upper halves, of others the opposite of the first.
    fn test(&mut self, writes: Vec<Reg>, values: [&Written; 2], c: Option<&Written>, words: &[&str]) -> Filled<()> {
        let ty = Ty::last(words)?;
        let compare = || scalar::compares(words, ty.element()).ok_or("its comparison is not read");
        let [a, b] = values;
        let mut reads = vec![self.operand(a, ty)?, self.operand(b, ty)?];
        reads.extend(c.map(|c| self.operand(c, Ty::Pred)).transpose()?);
        let joins = [("and", Join::And), ("or", Join::Or), ("xor", Join::Xor)];
        let join = named(words, &joins).unwrap_or(Join::None);
        if ty == ty.element() {
            self.cold(What::Test(compare()?, join), Class::Alu, writes, reads);
            return Ok(());
        }
        // The third operand may be a result.
        let results: Vec<Reg> = writes.iter().map(|_| self.fresh(RegClass::Pred, 1)).collect();
        for (half, &result) in (0u32..).zip(&results) {
            let compare = compare()?;
            let part = move |bits: u64| bits >> (16 * half) & 0xffff;
            let test = What::Test(Box::new(move |a, b| compare(part(a), part(b))), join);
            self.cold(test, Class::Alu, vec![result], reads.clone());
        }
        for (dst, result) in writes.into_iter().zip(results) {
            self.mov(dst, Operand::Reg(result));
        }
        Ok(())
    }

    /// `set`: a comparison whose result is all ones, or 1.0, or 0.
    fn set(&mut self, d: &Written, values: [&Written; 2], c: Option<&Written>, words: &[&str]) -> Filled<()> {
        let [.., to, from] = words else {
            return Err("its types are not read".to_string());
        };
        let (Some(to), Some(from)) = (Ty::of(to), Ty::of(from)) else {
            return Err("its types are not read".to_string());
        };
        let is_pair = from != from.element();
        let tests: Vec<Reg> = (0..1 + u32::from(is_pair))
            .map(|_| self.fresh(RegClass::Pred, 1))
            .collect();
        self.test(tests.clone(), values, c, words)?;
        let one = match to.element() {
            Ty::F32 => 0x3f80_0000,
            Ty::Half(false) => 0x3c00,
            Ty::Half(true) => 0x3f80,
            _ if is_pair => 0xffff,
            ty => super::numbers::mask(8 * ty.bytes()),
        };
        // A predicate that is not there is zero.
        let compute = move |v: &[u64; 4]| (v[0] * one) | ((v[1] * one) << 16);
        let writes = vec![self.register(d)?];
        let reads = tests.into_iter().map(Operand::Reg).collect();
        self.cold(What::Scalar(Box::new(compute)), Class::Alu, writes, reads);
        Ok(())
    }

    /// What reads or writes the carry.
    fn carried(&mut self, form: &Spelled, d: &Written, sources: &[Written]) -> Filled<()> {
        let kept = match self.carry {
            Some(carry) => carry,
            None => self.fresh(RegClass::Pred, 1),
        };
        self.carry = Some(kept);
        let takes = ["addc", "subc", "madc"].contains(&form.name());
        let [Some(carry), Some(value)] = [true, false].map(|gives_carry| scalar::carried(form, gives_carry)) else {
            return Err("its type is not read".to_string());
        };
        let mut reads = self.operands(sources, &value.from)?;
        reads.resize(3, Operand::Imm(0));
        reads.push(if takes { Operand::Reg(kept) } else { Operand::Imm(0) });
        // The result may be a source, so the carry is computed first, and kept last.
        let (dst, next) = (self.register(d)?, self.fresh(RegClass::Pred, 1));
        if form.has("cc") {
            self.cold(What::Scalar(carry.compute), Class::Alu, vec![next], reads.clone());
        }
        self.cold(What::Scalar(value.compute), Class::Alu, vec![dst], reads);
        if form.has("cc") {
            self.mov(kept, Operand::Reg(next));
        }
        Ok(())
    }
}
