//! Accesses whose object is known, as instructions of the kernel language, which are faster.

use flashcore_ir::Operand;
use flashcore_ir::inst::{Address, Cache, Inst, Object, Space, StoreSource};
use flashcore_ir::types::ScalarType;

use super::cold::{Atomic, Cold, Memory, Strength, What};
use super::matrix::Move;
use super::{Code, Step, UNKNOWN};

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

    /// Whether a buffer is written; by instructions whose buffer is not known it may be.
    pub(super) fn writes(&self, slot: u32, by_unknown: bool) -> bool {
        let is = |object: Object| object == Object::Param(slot) || by_unknown && object == UNKNOWN;
        self.items.iter().any(|item| match &item.step {
            Step::Inst(inst) | Step::Like(inst, _) => {
                super::origins::addresses(&mut inst.clone()).any(|(addr, _, access)| access.writes() && is(addr.object))
            }
            Step::Cold(Cold {
                what: What::Access(access) | What::Atomic(Atomic { access, .. }) | What::Move(Move { access, .. }),
                ..
            }) => {
                access.writes
                    && matches!(access.memory, Memory::Global | Memory::Generic)
                    && access.object.map_or(by_unknown, is)
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
        Memory::Shared if access.is_remote => Space::Cluster,
        Memory::Shared => Space::Shared,
        Memory::Local | Memory::Generic => return None,
    };
    let (object, base) = (access.object?, cold.reads[0]);
    let width = if space == Space::Global { 8 } else { 4 };
    let is_of_width = match base {
        Operand::Reg(base) => base.class.bytes() == width,
        Operand::Imm(_) => true,
    };
    let signed = access.signed && access.size < 4 && !access.writes;
    if access.strength != Strength::Weak || access.size < 2 || signed || !is_of_width {
        return None;
    }
    if matches!(object, Object::Param(_)) != (space == Space::Global) {
        return None;
    }
    let addr = Address {
        base,
        offset: i32::try_from(access.offset).ok()?,
        object,
    };
    let cache = if space == Space::Global {
        access.cache
    } else {
        Cache::Default
    };
    if let [_, values @ ..] = &cold.reads[..]
        && let Some(Operand::Imm(bits)) = values.first()
    {
        let ty = match access.size {
            2 => ScalarType::B16,
            4 => ScalarType::B32,
            _ => ScalarType::B64,
        };
        let is_one = values.iter().all(|value| *value == Operand::Imm(*bits));
        let store = Inst::St {
            space,
            src: StoreSource::Imm(ty, *bits),
            count: values.len() as u32,
            addr,
            cache,
        };
        return is_one.then_some(store);
    }
    let regs = cold.values(access);
    let (first, count) = (*regs.first()?, regs.len() as u32);
    let is_run = (0..count).zip(&regs).all(|(i, reg)| *reg == first.plus(i));
    if !is_run || first.class.bytes() != access.size {
        return None;
    }
    Some(if access.writes {
        Inst::St {
            space,
            src: StoreSource::Regs(first),
            count,
            addr,
            cache,
        }
    } else {
        Inst::Ld {
            space,
            dst: first,
            count,
            addr,
            cache,
        }
    })
}
