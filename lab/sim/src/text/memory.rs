//! Memory: which instruction accesses what.

use std::collections::HashMap;

use flashcore_ir::Operand;
use flashcore_ir::inst::{Cache, ClusterInst, Cvt, Inst, Object};
use flashcore_ir::ptx::read::SharedSymbol;
use flashcore_ir::types::{Reg, RegClass};
use flashcore_ptx::{Operand as Written, Register};

use super::Reader;
use super::cold::{Access, Atomic, CLUSTER_WINDOW, Change, Float, Memory, Strength, Update, What};
use super::numbers::Ty;
use super::operands::{Filled, named};
use super::origins::Origin;
use super::scalar::U32;
use crate::machine::map_address;
use crate::report::Class;

impl Reader<'_> {
    /// To and from generic addresses.
    pub(super) fn convert_address(&mut self, d: &Written, a: &Written, words: &[&str]) -> Filled<()> {
        let dst = self.reg(d, RegClass::B64)?;
        let mut window = memory_of(words).window();
        if let (Written::Register(register), true) = (a, words.contains(&"param")) {
            let base = self.registers[register.0 as usize].and_then(|reg| self.bases.get(&reg));
            let is_map = |map: &u32| base == Some(&Origin::One(Object::Param(*map)));
            if self.maps.values().any(is_map) {
                window = 0;
            } else if let Some(byte) = self.parameter_addresses.get(register) {
                let map = self.maps.get(byte).copied();
                let map = map.ok_or("parameters of kernels have no generic addresses here")?;
                self.base(dst, Object::Param(map));
                self.mov(dst, Operand::Imm(map_address(map as usize)));
                return Ok(());
            }
        }
        let a = match a {
            Written::Symbol(name, offset) => Operand::Reg(self.symbol_address(name, *offset)?),
            a => Operand::Reg(self.reg(a, RegClass::B64)?),
        };
        if window == 0 {
            if Operand::Reg(dst) != a {
                self.mov(dst, a);
            }
            return Ok(());
        }
        let add = if words.contains(&"to") {
            window.wrapping_neg()
        } else {
            window
        };
        self.add(dst, a, add);
        Ok(())
    }

    /// Reads `mapa` of generic addresses.
    pub(super) fn mapa(&mut self, d: &Written, a: &Written, rank: &Written) -> Filled<()> {
        let (dst, src) = (self.reg(d, RegClass::B64)?, Operand::Reg(self.reg(a, RegClass::B64)?));
        let rank = self.operand(rank, U32)?;
        let narrow = self.fresh(RegClass::B32, 1);
        let addr = Operand::Reg(narrow);
        self.convert(Cvt::U32FromU64, narrow, src);
        self.inst(Inst::Cluster(ClusterInst::Mapa {
            dst: narrow,
            addr,
            rank,
        }));
        self.convert(Cvt::U64FromU32, dst, addr);
        self.add(dst, Operand::Reg(dst), CLUSTER_WINDOW);
        Ok(())
    }

    /// Reads a `mov` of a variable's address, or of a parameter's, which loads of parameters alone may use.
    pub(super) fn address_of(&mut self, d: &Written, name: &str, offset: i64) -> Filled<()> {
        if let Some(start) = self.parameter(name) {
            let dst = self.reg(d, RegClass::B64).or_else(|_| self.reg(d, RegClass::B32))?;
            // Of a map the upper half comes with its generic address.
            let map = self.maps.get(&start).copied().filter(|_| dst.class == RegClass::B64);
            if let Some(map) = map {
                self.base(dst, Object::Param(map));
            }
            let src = Operand::Imm(map.map_or(start.into(), |map| map_address(map as usize)));
            self.mov(dst, src);
            return Ok(());
        }
        let dst = self.reg(d, RegClass::B64).or_else(|_| self.reg(d, RegClass::B32))?;
        let src = Operand::Reg(self.symbol_address(name, offset)?);
        match dst.class {
            RegClass::B64 => self.mov(dst, src),
            _ => self.convert(Cvt::U32FromU64, dst, src),
        }
        Ok(())
    }

    /// The address of a variable in its own space, in a new register of 64 bits.
    pub(super) fn symbol_address(&mut self, name: &str, offset: i64) -> Filled<Reg> {
        let dst = self.fresh(RegClass::B64, 1);
        if let Some(&at) = self.locals.get(name) {
            self.mov(dst, Operand::Imm(u64::from(at).wrapping_add_signed(offset)));
            return Ok(dst);
        }
        if let Some(&slot) = self.variables.get(name) {
            let base = crate::machine::base_of(slot as usize, super::foreign::ALIGN);
            self.mov(dst, Operand::Imm(base.wrapping_add_signed(offset)));
            self.base(dst, Object::Param(slot));
            return Ok(dst);
        }
        let Some(&(object, start)) = self.symbols.get(name) else {
            return Err(format!("`{name}` is no variable that is read"));
        };
        let narrow = self.fresh(RegClass::B32, 1);
        self.inst(Inst::SharedBase { dst: narrow });
        self.base(narrow, object);
        self.convert(Cvt::U64FromU32, dst, Operand::Reg(narrow));
        self.add(dst, Operand::Reg(dst), u64::from(start).wrapping_add_signed(offset));
        Ok(dst)
    }

    /// Addresses of the variables in constant memory.
    pub(super) fn constants(&self) -> Vec<std::ops::Range<u64>> {
        let all = self.module.variables.iter().filter(|variable| variable.is_constant);
        let range = |(symbol, &slot): (&SharedSymbol, &u32)| {
            let base = crate::machine::base_of(slot as usize, super::foreign::ALIGN);
            base..base + symbol.bytes
        };
        let placed = all.filter_map(|variable| Some((&variable.symbol, self.variables.get(&variable.symbol.name)?)));
        placed.map(range).collect()
    }

    /// An address in brackets: what is added to, as 64 bits or 32, and what is added.
    pub(super) fn place(&mut self, written: &Written) -> Filled<(Operand, i64)> {
        let Written::Memory(base, offset) = written else {
            return Err("an address is needed in place of another operand".to_string());
        };
        Ok(match &**base {
            Written::Symbol(name, more) => (Operand::Reg(self.symbol_address(name, *more)?), *offset),
            Written::Integer(bits) => (Operand::Imm(*bits), *offset),
            base => (Operand::Reg(self.register(base)?), *offset),
        })
    }

    pub(super) fn access_of(&mut self, words: &[&str], writes: bool, offset: i64) -> Filled<Access> {
        let has = |word: &str| words.contains(&word);
        // Matrices have their own types.
        let ty = words.last().and_then(|word| Ty::of(word)).unwrap_or(Ty::F32);
        let strengths = [
            ("acquire", Strength::Acquire),
            ("release", Strength::Release),
            ("volatile", Strength::Relaxed),
            ("relaxed", Strength::Relaxed),
        ];
        let strength = named(words, &strengths).unwrap_or(Strength::Weak);
        let is_named = |cache: &Cache| has(cache.ptx().trim_start_matches('.'));
        let cache = Cache::ALL.into_iter().find(is_named).unwrap_or(Cache::Default);
        Ok(Access {
            writes,
            memory: memory_of(words),
            is_remote: has("shared::cluster"),
            size: ty.bytes(),
            signed: matches!(ty, Ty::Int(_, true)),
            cache,
            offset,
            object: self.places.is_none().then(|| self.object()),
            strength,
            polls: false,
            scratch: None,
        })
    }

    /// Registers for addresses, unless the access is a strong one of a word.
    pub(super) fn scratch(&mut self, access: &Access, count: usize) -> Option<[Reg; 2]> {
        let is_word = access.strength != Strength::Weak && access.size >= 4 && count == 1;
        (!is_word).then(|| [self.fresh(RegClass::B32, 1), self.fresh(RegClass::B64, 1)])
    }

    pub(super) fn load(&mut self, d: &Written, address: &Written, words: &[&str]) -> Filled<()> {
        let items = items(d, words)?;
        if words.contains(&"param") && !self.is_of_call(address) {
            return self.load_param(&items, address, words);
        }
        let (base, offset) = self.place(address)?;
        let mut access = self.access_of(words, false, offset)?;
        access.scratch = self.scratch(&access, items.len());
        let class = class_of(access.size);
        let (mut writes, mut widened) = (Vec::new(), Vec::new());
        for item in &items {
            let reg = self.result(item, class)?;
            holds(reg, access.size)?;
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
            let op = if access.signed {
                Cvt::S64FromS32
            } else {
                Cvt::U64FromU32
            };
            self.convert(op, dst, Operand::Reg(src));
        }
        Ok(())
    }

    /// Whether an address is that of a parameter of a call, which is in local memory.
    fn is_of_call(&self, address: &Written) -> bool {
        match address {
            Written::Memory(base, _) => matches!(&**base, Written::Symbol(name, _) if self.locals.contains_key(name)),
            _ => false,
        }
    }

    /// The first byte of a parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<u32> {
        self.places.as_ref()?.get(name).copied()
    }

    /// Registers that have the address of a byte of the parameters, with the byte: one instruction alone gives it, the
    /// address or a sum of another such register's and a number.
    pub(super) fn find_parameter_addresses(&mut self) {
        let instructions = &self.function.instructions;
        let mut writers: HashMap<Register, u32> = HashMap::new();
        let written = instructions.iter().filter_map(|inst| inst.operands.first());
        written
            .flat_map(Written::registers)
            .for_each(|register| *writers.entry(register).or_default() += 1);
        for inst in instructions.iter().filter(|inst| inst.guard.is_none()) {
            let Ok(form) = self.module.forms()[inst.form as usize].as_ref() else {
                continue;
            };
            let (register, byte) = match (form.name(), &inst.operands[..]) {
                ("mov", [Written::Register(to), Written::Symbol(name, offset)]) => (
                    *to,
                    self.parameter(name)
                        .map(|byte| byte.wrapping_add_signed(*offset as i32)),
                ),
                ("cvt", [Written::Register(to), Written::Register(from)]) if form.has("u64") && form.has("u32") => {
                    (*to, self.parameter_addresses.get(from).copied())
                }
                ("add", [Written::Register(to), Written::Register(from), Written::Integer(bytes)]) => {
                    let byte = self.parameter_addresses.get(from);
                    (*to, byte.map(|byte| byte.wrapping_add(*bytes as u32)))
                }
                _ => continue,
            };
            if let Some(byte) = byte.filter(|_| writers[&register] == 1) {
                self.parameter_addresses.insert(register, byte);
            }
        }
    }

    fn load_param(&mut self, items: &[Written], address: &Written, words: &[&str]) -> Filled<()> {
        let Written::Memory(base, offset) = address else {
            return Err("a parameter is needed".to_string());
        };
        let start = match &**base {
            Written::Symbol(name, _) => self
                .parameter(name)
                .ok_or_else(|| format!("there is no parameter `{name}`"))?,
            Written::Register(register) => *self
                .parameter_addresses
                .get(register)
                .ok_or("its address is not that of one place of a parameter")?,
            _ => return Err("parameters are read by name".to_string()),
        };
        let ty = Ty::last(words)?;
        for (i, item) in (0u32..).zip(items) {
            let reg = self.register(item)?;
            holds(reg, ty.bytes())?;
            let at = start.wrapping_add_signed(*offset as i32) + i * ty.bytes();
            if let Some(&slot) = self.pointers.get(&at).filter(|_| ty.bytes() == 8) {
                self.base(reg, Object::Param(slot));
            }
            self.cold(What::Param(at, ty.bytes()), Class::Alu, vec![reg], Vec::new());
        }
        Ok(())
    }

    pub(super) fn store(&mut self, address: &Written, a: &Written, words: &[&str]) -> Filled<()> {
        let items = items(a, words)?;
        let ty = Ty::last(words)?;
        let (base, offset) = self.place(address)?;
        let mut access = self.access_of(words, true, offset)?;
        access.scratch = self.scratch(&access, items.len());
        let mut reads = vec![base];
        for item in &items {
            let value = self.operand(item, ty)?;
            if let Operand::Reg(reg) = value {
                holds(reg, access.size)?;
            }
            reads.push(match value {
                Operand::Reg(reg) if reg.class == RegClass::B64 && access.size < 8 => {
                    let dst = self.fresh(RegClass::B32, 1);
                    self.convert(Cvt::U32FromU64, dst, value);
                    Operand::Reg(dst)
                }
                Operand::Reg(_) => value,
                Operand::Imm(_) if access.scratch.is_none() || self.places.is_none() => value,
                Operand::Imm(_) => {
                    let dst = self.fresh(class_of(access.size), 1);
                    self.mov(dst, value);
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

    pub(super) fn atomic(
        &mut self,
        d: Option<&Written>,
        address: &Written,
        values: &[Written],
        words: &[&str],
    ) -> Filled<()> {
        let (update, ty) = (update_of(words)?, Ty::last(words)?);
        let (base, offset) = self.place(address)?;
        // Each element of a vector is added by itself.
        let values = values
            .iter()
            .map(|value| items(value, words))
            .collect::<Filled<Vec<_>>>()?;
        let results = d.map(|d| items(d, words)).transpose()?;
        let results = results.as_deref().unwrap_or_default();
        let count = values.first().map_or(0, Vec::len);
        if count > 1 && values.iter().flatten().any(|value| results.contains(value)) {
            return Err("a register is both a result and a value of the vector".to_string());
        }
        for i in 0..count {
            let of_element: Vec<&Written> = values.iter().map(|items| &items[i]).collect();
            let at = (base, offset + (i as i64) * i64::from(ty.bytes()));
            self.atomic_element(results.get(i), at, &of_element, (update, ty, words))?;
        }
        Ok(())
    }

    fn atomic_element(
        &mut self,
        d: Option<&Written>,
        (base, offset): (Operand, i64),
        values: &[&Written],
        (update, ty, words): (Update, Ty, &[&str]),
    ) -> Filled<()> {
        let mut access = self.access_of(words, true, offset)?;
        access.strength = match access.strength {
            _ if words.contains(&"acq_rel") => Strength::Release,
            strength => strength,
        };
        let class = class_of(access.size);
        let writes = d.map(|d| self.result(d, class)).transpose()?.into_iter().collect();
        let mut reads = vec![base];
        for value in values {
            reads.push(self.operand(value, ty)?);
        }
        self.cold(What::Atomic(Atomic { update, access }), Class::Atomic, writes, reads);
        Ok(())
    }
}

/// What an opcode does to a word.
pub(super) fn update_of(words: &[&str]) -> Filled<Update> {
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
    let change = named(words, &changes).ok_or("its operation is not read")?;
    let ty = Ty::last(words)?;
    if !is_atomic(ty) {
        return Err("atomic operations of this type are not executed".to_string());
    }
    Ok(Update {
        change,
        signed: matches!(ty, Ty::Int(_, true)),
        float: match ty {
            Ty::F32 | Ty::F64 => Float::One,
            Ty::Half(is_bf16) | Ty::Halves(is_bf16) => Float::Halves(is_bf16),
            _ => Float::No,
        },
        size: ty.bytes(),
    })
}

/// The registers of a vector, or the one.
pub(super) fn items(written: &Written, words: &[&str]) -> Filled<Vec<Written>> {
    let needed = named(words, &[("v4", 4), ("v2", 2)]).unwrap_or(1);
    let items = match written {
        Written::List(list) => list.clone(),
        one => vec![one.clone()],
    };
    if items.len() == needed {
        Ok(items)
    } else {
        Err(format!("{} registers; {needed} are needed", items.len()))
    }
}

/// The class of registers for values of so many bytes.
fn class_of(bytes: u32) -> RegClass {
    if bytes == 8 { RegClass::B64 } else { RegClass::B32 }
}

/// Whether a register has a value of so many bytes.
fn holds(reg: Reg, bytes: u32) -> Filled<()> {
    if reg.class != RegClass::Pred && reg.class.bytes() >= bytes {
        Ok(())
    } else {
        Err(format!("a register of {} B for {bytes} B of memory", reg.class.bytes()))
    }
}

/// Whether atomic operations of a type are executed.
pub(super) fn is_atomic(ty: Ty) -> bool {
    matches!(ty, Ty::Int(16.., _) | Ty::F32 | Ty::F64 | Ty::Half(_) | Ty::Halves(_))
}

pub(super) fn memory_of(words: &[&str]) -> Memory {
    let is = |space: &&str| words.contains(space);
    if ["global", "const"].iter().any(is) {
        Memory::Global
    } else if ["shared", "shared::cta", "shared::cluster"].iter().any(is) {
        Memory::Shared
    } else if ["local", "param", "param::func"].iter().any(is) {
        Memory::Local
    } else {
        Memory::Generic
    }
}
