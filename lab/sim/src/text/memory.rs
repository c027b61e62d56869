//! Memory of foreign kernels: which instruction accesses what.

use flashcore_ir::Operand;
use flashcore_ir::inst::{Address, Cache, Inst, Object, ShflMode, Space, StoreSource};
use flashcore_ir::types::{Reg, RegClass, ScalarType};
use flashcore_ptx::{Operand as Written, Spelled};

use super::cold::{Access, Atomic, Change, Cold, Join, Memory, Strength, Vote, What};
use super::numbers::Ty;
use super::operands::Filled;
use super::{Code, Item, Reader, Step, UNKNOWN, scalar};
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

    fn register(&self, written: &Written) -> Filled<Reg> {
        match written {
            Written::Register(register) => {
                self.registers[register.0 as usize].ok_or("registers of this type are not read".to_string())
            }
            _ => Err("a register is needed in place of another operand".to_string()),
        }
    }

    /// A result; one that is not kept goes to a new register.
    fn result(&mut self, written: &Written, class: RegClass) -> Filled<Reg> {
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
            Written::Integer(bits) => Operand::Imm(bits & super::numbers::mask(8 * ty.bytes())),
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
                self.special(dst, a)?;
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

    fn pack(&mut self, d: &Written, parts: &[Written], words: &[&str]) -> Filled<()> {
        let dst = self.register(d)?;
        let whole = words
            .last()
            .and_then(|word| Ty::of(word))
            .ok_or("its type is not read")?;
        let bits = 8 * whole.bytes() / parts.len() as u32;
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
        let bits = 8 * whole.bytes() / parts.len() as u32;
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

    /// To and from generic addresses.
    fn convert_address(&mut self, d: &Written, a: &Written, words: &[&str]) -> Filled<()> {
        let dst = self.register(d)?;
        let window = memory_of(words).window();
        let a = match a {
            Written::Symbol(name, offset) => Operand::Reg(self.symbol_address(name, *offset)?),
            a => self.operand(a, Ty::Int(64, false))?,
        };
        if window == 0 {
            if Operand::Reg(dst) != a {
                self.out.push(Inst::Mov { dst, src: a });
            }
            return Ok(());
        }
        let add = if words.contains(&"to") {
            window.wrapping_neg()
        } else {
            window
        };
        let (op, ty, b) = (flashcore_ir::inst::BinOp::Add, ScalarType::U64, Operand::Imm(add));
        self.out.push(Inst::Bin { op, ty, dst, a, b });
        Ok(())
    }

    /// The address of a variable in its own space, in a new register of 64 bits.
    pub(super) fn symbol_address(&mut self, name: &str, offset: i64) -> Filled<Reg> {
        let dst = self.fresh(RegClass::B64, 1);
        if let Some(&at) = self.locals.get(name) {
            let src = Operand::Imm(u64::from(at).wrapping_add_signed(offset));
            self.out.push(Inst::Mov { dst, src });
            return Ok(dst);
        }
        let Some(&(object, start)) = self.symbols.get(name) else {
            return Err(format!("`{name}` is no variable that is read"));
        };
        let narrow = self.fresh(RegClass::B32, 1);
        self.out.push(Inst::SharedBase { dst: narrow });
        self.base(narrow, object);
        let (op, src) = (flashcore_ir::inst::Cvt::U64FromU32, Operand::Reg(narrow));
        self.out.push(Inst::Cvt { op, dst, src });
        let (op, ty) = (flashcore_ir::inst::BinOp::Add, ScalarType::U64);
        let (a, b) = (
            Operand::Reg(dst),
            Operand::Imm(u64::from(start).wrapping_add_signed(offset)),
        );
        self.out.push(Inst::Bin { op, ty, dst, a, b });
        Ok(dst)
    }

    /// An address in brackets: what is added to, as 64 bits or 32, and what is added.
    fn place(&mut self, written: &Written) -> Filled<(Operand, i64)> {
        let Written::Memory(base, offset) = written else {
            return Err("an address is needed in place of another operand".to_string());
        };
        Ok(match &**base {
            Written::Symbol(name, more) => (Operand::Reg(self.symbol_address(name, *more)?), *offset),
            Written::Integer(bits) => (Operand::Imm(*bits), *offset),
            base => (Operand::Reg(self.register(base)?), *offset),
        })
    }

    fn access_of(&mut self, words: &[&str], writes: bool, offset: i64) -> Filled<Access> {
        let has = |word: &str| words.contains(&word);
        let ty = words
            .last()
            .and_then(|word| Ty::of(word))
            .ok_or("its type is not read")?;
        let strength = if has("acquire") {
            Strength::Acquire
        } else if has("release") {
            Strength::Release
        } else if has("volatile") || has("relaxed") {
            Strength::Relaxed
        } else {
            Strength::Weak
        };
        Ok(Access {
            writes,
            memory: memory_of(words),
            size: ty.bytes(),
            signed: matches!(ty, Ty::Int(_, true)),
            read_only: has("nc"),
            offset,
            object: None,
            strength,
            scratch: [self.fresh(RegClass::B32, 1), self.fresh(RegClass::B64, 1)],
        })
    }

    fn load(&mut self, d: &Written, address: &Written, words: &[&str]) -> Filled<()> {
        let items = match d {
            Written::List(list) => list.clone(),
            one => vec![one.clone()],
        };
        if words.contains(&"param") {
            return self.load_param(&items, address, words);
        }
        let (base, offset) = self.place(address)?;
        let access = self.access_of(words, false, offset)?;
        let class = RegClass::B32;
        let class = if access.size == 8 { RegClass::B64 } else { class };
        let (mut writes, mut widened) = (Vec::new(), Vec::new());
        for item in &items {
            let reg = self.result(item, class)?;
            let is_wider = reg.class == RegClass::B64 && access.size < 8;
            let loaded = if is_wider { self.fresh(RegClass::B32, 1) } else { reg };
            widened.extend(is_wider.then_some((reg, loaded)));
            writes.push(loaded);
        }
        let class = if access.memory == Memory::Shared {
            Class::LoadShared
        } else {
            Class::LoadGlobal
        };
        self.cold(What::Access(access), class, writes, vec![base]);
        for (dst, src) in widened {
            use flashcore_ir::inst::Cvt;
            let op = if access.signed {
                Cvt::S64FromS32
            } else {
                Cvt::U64FromU32
            };
            let src = Operand::Reg(src);
            self.out.push(Inst::Cvt { op, dst, src });
        }
        Ok(())
    }

    fn load_param(&mut self, items: &[Written], address: &Written, words: &[&str]) -> Filled<()> {
        let Written::Memory(base, offset) = address else {
            return Err("a parameter is needed".to_string());
        };
        let Written::Symbol(name, _) = &**base else {
            return Err("parameters are read by name".to_string());
        };
        let ty = words
            .last()
            .and_then(|word| Ty::of(word))
            .ok_or("its type is not read")?;
        let places = self.places.as_ref();
        let start = places.and_then(|places| places.get(name.as_str()).copied());
        let start = start.ok_or_else(|| format!("there is no parameter `{name}`"))?;
        for (i, item) in (0u32..).zip(items) {
            let reg = self.register(item)?;
            let at = start.wrapping_add_signed(*offset as i32) + i * ty.bytes();
            if let Some(&slot) = self.pointers.get(&at).filter(|_| ty.bytes() == 8) {
                self.base(reg, Object::Param(slot));
            }
            self.cold(What::Param(at, ty.bytes()), Class::Alu, vec![reg], Vec::new());
        }
        Ok(())
    }

    fn store(&mut self, address: &Written, a: &Written, words: &[&str]) -> Filled<()> {
        let items = match a {
            Written::List(list) => list.clone(),
            one => vec![one.clone()],
        };
        let ty = words
            .last()
            .and_then(|word| Ty::of(word))
            .ok_or("its type is not read")?;
        let (base, offset) = self.place(address)?;
        let access = self.access_of(words, true, offset)?;
        let mut reads = vec![base];
        for item in &items {
            let value = self.operand(item, ty)?;
            reads.push(match value {
                Operand::Reg(reg) if reg.class == RegClass::B64 && access.size < 8 => {
                    let dst = self.fresh(RegClass::B32, 1);
                    let (op, src) = (flashcore_ir::inst::Cvt::U32FromU64, value);
                    self.out.push(Inst::Cvt { op, dst, src });
                    Operand::Reg(dst)
                }
                Operand::Reg(_) => value,
                Operand::Imm(_) => {
                    let dst = self.fresh(if access.size == 8 { RegClass::B64 } else { RegClass::B32 }, 1);
                    self.out.push(Inst::Mov { dst, src: value });
                    Operand::Reg(dst)
                }
            });
        }
        let class = if access.memory == Memory::Shared {
            Class::StoreShared
        } else {
            Class::StoreGlobal
        };
        self.cold(What::Access(access), class, Vec::new(), reads);
        Ok(())
    }

    fn atomic(&mut self, d: Option<&Written>, address: &Written, values: &[Written], words: &[&str]) -> Filled<()> {
        let changes = [
            ("add", Change::Add),
            ("min", Change::Min),
            ("max", Change::Max),
            ("inc", Change::Inc),
            ("dec", Change::Dec),
            ("and", Change::And),
            ("or", Change::Or),
            ("xor", Change::Xor),
            ("exch", Change::Exchange),
            ("cas", Change::Compare),
        ];
        let change = changes
            .into_iter()
            .find(|(word, _)| words.contains(word))
            .map(|(_, change)| change);
        let change = change.ok_or("its operation is not read")?;
        let ty = words
            .last()
            .and_then(|word| Ty::of(word))
            .ok_or("its type is not read")?;
        if !matches!(ty, Ty::Int(32 | 64, _) | Ty::F32 | Ty::F64)
            || values.iter().any(|v| matches!(v, Written::List(_)))
        {
            return Err("atomic operations of this type are not executed".to_string());
        }
        let (base, offset) = self.place(address)?;
        let mut access = self.access_of(words, true, offset)?;
        access.strength = match access.strength {
            _ if words.contains(&"acq_rel") => Strength::Release,
            strength => strength,
        };
        let class = if access.size == 8 { RegClass::B64 } else { RegClass::B32 };
        let writes = d.map(|d| self.result(d, class)).transpose()?.into_iter().collect();
        let mut reads = vec![base];
        for value in values {
            reads.push(self.operand(value, ty)?);
        }
        let atomic = Atomic {
            change,
            signed: matches!(ty, Ty::Int(_, true)),
            float: matches!(ty, Ty::F32 | Ty::F64),
            access,
        };
        self.cold(What::Atomic(atomic), Class::Atomic, writes, reads);
        Ok(())
    }
}

fn memory_of(words: &[&str]) -> Memory {
    let is = |space: &&str| words.contains(space);
    if ["global", "const"].iter().any(is) {
        Memory::Global
    } else if ["shared", "shared::cta", "shared::cluster"].iter().any(is) {
        Memory::Shared
    } else if is(&"local") {
        Memory::Local
    } else {
        Memory::Generic
    }
}

impl Code {
    /// Replaces accesses of one object each by what the kernel language has.
    pub(super) fn simplify(&mut self) {
        for item in &mut self.items {
            if let Step::Cold(cold) = &item.step
                && let Some(inst) = simple(cold)
            {
                item.step = Step::Inst(inst);
            }
        }
    }

    /// Whether a buffer may be written.
    pub(super) fn writes(&self, slot: u32) -> bool {
        let is = |object: Object| object == Object::Param(slot) || object == UNKNOWN;
        self.items.iter().any(|item| match &item.step {
            Step::Inst(inst) => {
                super::origins::addresses(&mut inst.clone()).any(|(addr, _, access)| access.writes() && is(addr.object))
            }
            Step::Cold(Cold {
                what: What::Access(access) | What::Atomic(Atomic { access, .. }),
                ..
            }) => {
                access.writes
                    && matches!(access.memory, Memory::Global | Memory::Generic)
                    && access.object.is_none_or(is)
            }
            _ => false,
        })
    }
}

/// An access of one object as an instruction of the kernel language.
fn simple(cold: &Cold) -> Option<Inst> {
    let What::Access(access) = &cold.what else { return None };
    let space = match access.memory {
        Memory::Global => Space::Global,
        Memory::Shared => Space::Shared,
        Memory::Local | Memory::Generic => return None,
    };
    let object = access.object?;
    let Operand::Reg(base) = cold.reads[0] else { return None };
    let size = if space == Space::Global { 8 } else { 4 };
    let signed = access.signed && access.size < 4 && !access.writes;
    if access.strength != Strength::Weak || access.size < 2 || signed || base.class.bytes() != size {
        return None;
    }
    if matches!(object, Object::Param(_)) != (space == Space::Global) {
        return None;
    }
    let addr = Address {
        base: Operand::Reg(base),
        offset: i32::try_from(access.offset).ok()?,
        object,
    };
    let regs: Vec<Reg> = match access.writes {
        false => cold.writes.clone(),
        true => cold.reads[1..]
            .iter()
            .filter_map(|value| match value {
                Operand::Reg(reg) => Some(*reg),
                Operand::Imm(_) => None,
            })
            .collect(),
    };
    let (first, count) = (*regs.first()?, regs.len() as u32);
    let is_run = (0..count).zip(&regs).all(|(i, reg)| *reg == first.plus(i));
    if !is_run || first.class.bytes() != access.size {
        return None;
    }
    let cache = if access.read_only {
        Cache::ReadOnly
    } else {
        Cache::Default
    };
    Some(match access.writes {
        false => Inst::Ld {
            space,
            dst: first,
            count,
            addr,
            cache: if space == Space::Global { cache } else { Cache::Default },
        },
        true => Inst::St {
            space,
            src: StoreSource::Regs(first),
            count,
            addr,
            cache: Cache::Default,
        },
    })
}
