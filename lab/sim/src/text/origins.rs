//! Which object each address is meant for: the buffer or symbol that its register stems from.

use std::collections::HashMap;

use flashcore_ir::Operand;
use flashcore_ir::inst::{Access, Address, BinOp, BulkInst, Inst, Object, Slot, Space};
use flashcore_ir::types::{Reg, RegClass};

use super::cold::{Atomic, Cold, Memory, What};
use super::matrix::Move;
use super::{Item, Step, UNKNOWN};
use crate::assigned::accessed;
use crate::program::Op;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    One(Object),
    /// Addresses of more than one object, by different ways.
    Many,
}

pub(super) fn join(a: Origin, b: Origin) -> Origin {
    if a == b { a } else { Origin::Many }
}

pub(super) fn addresses(inst: &mut Inst) -> impl Iterator<Item = (&mut Address, Space, Access)> {
    inst.slots().into_iter().filter_map(|slot| match slot {
        Slot::Memory(addr, space, access) => Some((addr, space, access)),
        Slot::TensorBox(map, _, access) => Some((map, Space::Global, access)),
        _ => None,
    })
}

/// The registers that a step computes from others; none where what it gives is no address.
fn computed(step: &Step) -> Option<[Vec<Reg>; 2]> {
    let [mut reads, mut writes] = match step {
        Step::Inst(inst) if addresses(&mut inst.clone()).next().is_none() => accessed(inst),
        Step::Cold(Cold {
            what: What::Scalar(_) | What::Fast(..),
            writes,
            reads,
            ..
        }) => {
            let reads = reads.iter().filter_map(|read| match read {
                Operand::Reg(reg) => Some(*reg),
                Operand::Imm(_) => None,
            });
            [reads.collect(), writes.clone()]
        }
        _ => return None,
    };
    // What is multiplied is no address.
    if let Step::Cold(Cold {
        what: What::Fast(Op::MadWide(..) | Op::Int32(BinOp::MulWide, ..), _),
        ..
    }) = step
    {
        reads.retain(|reg| reg.class == RegClass::B64);
    }
    // A selection does not take the origin of its condition.
    reads.retain(|reg| reg.class != RegClass::Pred);
    writes.retain(|reg| reg.class != RegClass::Pred);
    Some([reads, writes])
}

/// The origins of registers: those of what they are computed from, until nothing is new. What is known of a register
/// changes twice at most, and only those that read it look again.
fn origins(items: &[Item], bases: &HashMap<Reg, Origin>) -> HashMap<Reg, Origin> {
    let mut origins = bases.clone();
    let steps: Vec<[Vec<Reg>; 2]> = items.iter().filter_map(|item| computed(&item.step)).collect();
    let mut readers: HashMap<Reg, Vec<usize>> = HashMap::new();
    for (number, [reads, _]) in steps.iter().enumerate() {
        reads
            .iter()
            .for_each(|reg| readers.entry(*reg).or_default().push(number));
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

/// Gives each address its object. In shared memory those that are not known have all of it, `whole`; in global memory
/// an instruction's must be known, and others look for it when they run, as copies do by maps that are no parameters,
/// whose numbers begin with `first_map`. Gives the first item for which it is not.
pub(super) fn resolve(
    items: &mut [Item],
    bases: &HashMap<Reg, Origin>,
    whole: Object,
    first_map: u32,
) -> Result<(), usize> {
    let origins = origins(items, bases);
    let of = |base: Operand, is_global: bool| {
        let found = match base {
            Operand::Reg(reg) => origins.get(&reg).copied(),
            Operand::Imm(_) => None,
        };
        match found {
            Some(Origin::One(object)) if matches!(object, Object::Param(_)) == is_global => Some(object),
            _ => (!is_global).then_some(whole),
        }
    };
    for (number, item) in items.iter_mut().enumerate() {
        match &mut item.step {
            Step::Inst(inst) | Step::Like(inst, _) => {
                let by_map = matches!(inst, Inst::Bulk(BulkInst::Load { .. } | BulkInst::Store { .. }));
                for (address, space, _) in addresses(inst) {
                    let is_global = space == Space::Global;
                    if address.object == UNKNOWN {
                        address.object = match of(address.base, is_global) {
                            Some(Object::Param(slot)) if by_map && slot < first_map => UNKNOWN,
                            None if by_map && is_global => UNKNOWN,
                            found => found.ok_or(number)?,
                        };
                    }
                }
            }
            Step::Cold(Cold {
                what: What::Mbarrier(_, address),
                ..
            }) => address.object = of(address.base, false).unwrap_or(whole),
            Step::Cold(Cold {
                what: What::Access(access) | What::Atomic(Atomic { access, .. }) | What::Move(Move { access, .. }),
                reads,
                ..
            }) => {
                access.object = match access.memory {
                    Memory::Global => of(reads[0], true),
                    Memory::Shared => of(reads[0], false),
                    Memory::Local | Memory::Generic => None,
                }
            }
            _ => {}
        }
    }
    Ok(())
}
