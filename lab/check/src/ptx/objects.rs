//! Which object each address is meant for: the parameter or symbol that its register stems from.

use std::collections::HashMap;

use flashcore_ir::inst::{Access, Address, Inst, Object, Operand, Slot, Space};
use flashcore_ir::types::{Reg, RegClass};

use super::operands::UNKNOWN;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    One(Object),
    /// Addresses of more than one object, by different ways.
    Many,
}

/// The origins of registers: those of what they are computed from, until nothing is new. What is known of a register
/// changes twice at most, and only those that read it look again.
pub(super) fn origins(insts: &[&Inst], bases: &HashMap<Reg, Origin>) -> HashMap<Reg, Origin> {
    let mut origins = bases.clone();
    let mut steps: Vec<[Vec<Reg>; 2]> = Vec::new();
    let mut readers: HashMap<Reg, Vec<usize>> = HashMap::new();
    for inst in insts {
        // What is loaded from an address is not an address.
        if addresses(&mut (*inst).clone()).next().is_some() {
            continue;
        }
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        let run = |first: Reg, n: u32| (0..n).map(move |i| first.plus(i));
        inst.visit_regs(|reg, _| reads.push(reg), |reg, n| writes.extend(run(reg, n)));
        // Nor is a predicate, and a selection does not take the origin of its condition.
        reads.retain(|reg| reg.class != RegClass::Pred);
        writes.retain(|reg| reg.class != RegClass::Pred);
        reads
            .iter()
            .for_each(|reg| readers.entry(*reg).or_default().push(steps.len()));
        steps.push([reads, writes]);
    }
    let mut next: Vec<usize> = (0..steps.len()).rev().collect();
    while let Some(step) = next.pop() {
        let [reads, writes] = &steps[step];
        let known = reads.iter().filter_map(|reg| origins.get(reg).copied());
        let Some(found) = known.reduce(join) else { continue };
        for reg in writes {
            let before = origins.get(reg).copied();
            let after = before.map_or(found, |before| join(before, found));
            if before != Some(after) {
                origins.insert(*reg, after);
                next.extend(readers.get(reg).into_iter().flatten());
            }
        }
    }
    origins
}

pub(super) fn join(a: Origin, b: Origin) -> Origin {
    if a == b { a } else { Origin::Many }
}

pub(super) fn addresses(inst: &mut Inst) -> impl Iterator<Item = (&mut Address, Space, Access)> {
    inst.slots().into_iter().filter_map(|slot| match slot {
        Slot::Memory(addr, space, access) => Some((addr, space, access)),
        _ => None,
    })
}

/// Gives each address of an instruction its object, or says why there is none.
pub(super) fn resolve(inst: &mut Inst, origins: &HashMap<Reg, Origin>) -> Result<(), &'static str> {
    for (address, space, _) in addresses(inst) {
        if address.object == UNKNOWN {
            let Operand::Reg(reg) = address.base else {
                return Err("its address is a number");
            };
            address.object = match origins.get(&reg) {
                Some(Origin::One(object)) => *object,
                Some(Origin::Many) => return Err("its address stems from more than one parameter or symbol"),
                None => return Err("its address stems neither from a parameter nor from a shared symbol"),
            };
        }
        let (is_global, base) = (space == Space::Global, address.base);
        if is_global != matches!(address.object, Object::Param(_)) {
            return Err("its address is of another kind of memory");
        }
        if matches!(base, Operand::Reg(reg) if reg.class.bytes() != if is_global { 8 } else { 4 }) {
            return Err("its address has another size than those of this memory: 8 B global, 4 B shared");
        }
    }
    Ok(())
}
