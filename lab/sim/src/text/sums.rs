//! Sums over the lanes of a warp by butterfly shuffles, in kernels of other compilers. All lanes that the shuffles join
//! have the same sum, but for rounding where a product and a sum are fused; Triton's kernels store each lane's copy.

use flashcore_ir::Operand;
use flashcore_ir::inst::{BinOp, Inst, ShflMode, StoreSource};
use flashcore_ir::types::{Reg, ScalarType as T};
use rustc_hash::{FxHashMap, FxHashSet};

use super::cold::{Cold, What};
use super::{Code, Item, Step};
use crate::registers::FULL;

/// What a register holds that is written once.
enum Value {
    Copy(Operand),
    Product([Operand; 2]),
    /// A number of the lane whose index differs in this bit.
    Taken(Operand, u32),
    /// The same sum in all lanes whose indices differ in these bits alone.
    Sum(u32),
}

/// The sums over lanes of a kernel.
#[derive(Default)]
pub(crate) struct Sums {
    known: FxHashMap<Reg, Value>,
    /// Registers with floats that shuffled numbers are part of.
    depend: FxHashSet<Reg>,
}

impl Sums {
    /// Of a store of floats that depend on shuffles, the bits in which the indices of lanes may differ that have the
    /// same sums in its registers, but for rounding.
    pub(super) fn stored(&self, step: &Step) -> Option<u32> {
        let regs = match step {
            Step::Inst(Inst::St {
                src: StoreSource::Regs(first),
                count,
                ..
            }) => (0..*count).map(|i| first.plus(i)).collect(),
            Step::Cold(
                cold @ Cold {
                    what: What::Access(access),
                    ..
                },
            ) if access.writes => cold.values(access),
            _ => return None,
        };
        let all_depend = regs.iter().all(|reg| self.depend.contains(reg));
        let bits = |reg: &Reg| self.bits(self.root(Operand::Reg(*reg)));
        all_depend.then(|| regs.iter().map(bits).fold(FULL, |all, bits| all & bits))
    }

    fn get(&self, operand: Operand) -> Option<&Value> {
        match operand {
            Operand::Reg(reg) => self.known.get(&reg),
            Operand::Imm(_) => None,
        }
    }

    fn root(&self, operand: Operand) -> Operand {
        match self.get(operand) {
            Some(Value::Copy(of)) => *of,
            _ => operand,
        }
    }

    fn bits(&self, operand: Operand) -> u32 {
        match self.get(operand) {
            Some(Value::Sum(bits)) => *bits,
            _ => 0,
        }
    }

    /// What a step computes from operands that are known.
    fn value(&self, step: &Step) -> Option<Value> {
        let with_taken = |taken: Operand, is_its: &dyn Fn(Operand) -> bool| match self.get(taken) {
            Some(Value::Taken(from, bit)) if is_its(*from) => Some(Value::Sum(self.bits(*from) | bit)),
            _ => None,
        };
        Some(match step {
            Step::Inst(Inst::Mov { src, .. }) => Value::Copy(self.root(*src)),
            Step::Inst(Inst::Bin {
                op, ty: T::F32, a, b, ..
            }) => match (op, [*a, *b].map(|operand| self.root(operand))) {
                (BinOp::Mul, factors) => Value::Product(factors),
                (BinOp::Add, [a, b]) => {
                    with_taken(b, &|from| from == a).or_else(|| with_taken(a, &|from| from == b))?
                }
                _ => return None,
            },
            Step::Inst(Inst::Fma {
                ty: T::F32, a, b, c, ..
            }) => {
                let factors = [self.root(*a), self.root(*b)];
                let is_product = |from| matches!(self.get(from), Some(Value::Product([x, y])) if factors == [*x, *y] || factors == [*y, *x]);
                with_taken(self.root(*c), &is_product)?
            }
            Step::Cold(Cold {
                what: What::Shfl(ShflMode::Bfly),
                reads,
                ..
            }) => match reads[..] {
                // Of all lanes.
                [from, Operand::Imm(by), Operand::Imm(31), Operand::Imm(members)] if members as u32 == FULL => {
                    Value::Taken(self.root(from), by as u32)
                }
                _ => return None,
            },
            _ => return None,
        })
    }
}

impl Code {
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        let mut writes: FxHashMap<Reg, u32> = FxHashMap::default();
        for item in &self.items {
            for reg in Code::accessed(&item.step)[1].iter() {
                *writes.entry(*reg).or_default() += 1;
            }
        }
        for Item { step, .. } in &self.items {
            let [reads, written] = Code::accessed(step);
            let Some(to) = written.first() else { continue };
            let is_shuffle = matches!(
                step,
                Step::Cold(Cold {
                    what: What::Shfl(_),
                    ..
                })
            );
            if is_shuffle || keeps_floats(step) && reads.iter().any(|reg| sums.depend.contains(reg)) {
                sums.depend.extend(&written);
            }
            if writes[to] == 1
                && let Some(value) = sums.value(step)
            {
                sums.known.insert(*to, value);
            }
        }
        sums
    }
}

/// Whether floats that a step reads may be part of those that it writes.
fn keeps_floats(step: &Step) -> bool {
    match step {
        Step::Inst(Inst::Bin { ty, .. } | Inst::Un { ty, .. } | Inst::Fma { ty, .. }) => {
            matches!(ty, T::F32 | T::F16x2 | T::BF16x2)
        }
        Step::Inst(Inst::Mov { .. } | Inst::Selp { .. } | Inst::Pack { .. } | Inst::Unpack { .. }) => true,
        Step::Inst(Inst::CvtPack { .. }) => true,
        Step::Cold(cold) => matches!(cold.what, What::Scalar(_)),
        _ => false,
    }
}
