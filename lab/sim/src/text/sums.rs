//! Sums over the lanes of a warp by butterfly shuffles, in kernels of other compilers. All lanes that the shuffles join
//! have the same sum, but for rounding where a product and a sum are fused; Triton's kernels store each lane's copy.

use flashcore_ir::Operand;
use flashcore_ir::inst::{Inst, ShflMode, StoreSource};
use flashcore_ir::types::Reg;
use rustc_hash::{FxHashMap, FxHashSet};

use super::cold::{Cold, What};
use super::numbers::Ty;
use super::{Code, Item, Step};
use crate::program::{FloatOp, Op};
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
        let all_depend = !regs.is_empty() && regs.iter().all(|reg| self.depend.contains(reg));
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

    /// What a step computes from operands that are known. `is_steady` says that an operand's one write stands before
    /// this step, `is_here` that what is known of it was computed in the same straight run: no lane has an older value.
    fn value(&self, step: &Step, is_steady: Is<'_>, is_here: Is<'_>) -> Option<Value> {
        let root = |operand| {
            let root = if is_here(operand) { self.root(operand) } else { operand };
            is_steady(root).then_some(root)
        };
        let with_taken = |taken: Operand, is_its: Is<'_>| match self.get(taken).filter(|_| is_here(taken)) {
            Some(Value::Taken(from, bit)) if is_its(*from) => Some(Value::Sum(self.bits(*from) | bit)),
            _ => None,
        };
        let Step::Cold(Cold { what, reads, .. }) = step else {
            return None;
        };
        match (what, &reads[..]) {
            (What::Fast(Op::Mov32(_) | Op::Mov64(_), _), &[src]) => {
                let is_older = self.get(src).is_some() && !is_here(src);
                root(src).filter(|_| !is_older).map(Value::Copy)
            }
            (What::Fast(Op::F32(op, _), _), &[a, b]) => match (op, root(a)?, root(b)?) {
                (FloatOp::Mul, a, b) => Some(Value::Product([a, b])),
                (FloatOp::Add, a, b) => with_taken(b, &|from| from == a).or_else(|| with_taken(a, &|from| from == b)),
                _ => None,
            },
            (What::Fast(Op::FmaF32(_), _), &[a, b, c]) => {
                let factors = [root(a)?, root(b)?];
                let is_product = |from| {
                    let product = self.get(from).filter(|_| is_here(from));
                    matches!(product, Some(Value::Product([x, y])) if factors == [*x, *y] || factors == [*y, *x])
                };
                with_taken(root(c)?, &is_product)
            }
            // Of all lanes, and the lane that one bit names.
            (What::Shfl(ShflMode::Bfly), &[from, Operand::Imm(by), Operand::Imm(31), Operand::Imm(members)])
                if members as u32 == FULL && [1, 2, 4, 8, 16].contains(&by) =>
            {
                Some(Value::Taken(root(from)?, by as u32))
            }
            _ => None,
        }
    }
}

type Is<'a> = &'a dyn Fn(Operand) -> bool;

impl Code {
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        let mut writes: FxHashMap<Reg, u32> = FxHashMap::default();
        for item in &self.items {
            for reg in Code::accessed(&item.step)[1].iter() {
                *writes.entry(*reg).or_default() += 1;
            }
        }
        // Compilers label lines for debuggers, too.
        let jumps = self.items.iter().filter_map(|item| match &item.step {
            Step::Jump(jump) => Some(jump.label),
            _ => None,
        });
        let targets: FxHashSet<u32> = jumps.collect();
        // The straight runs of the text, those around a guard, and in which a register was written.
        let (mut run, mut runs, mut outer) = (0, 1, Vec::new());
        let mut written_in: FxHashMap<Reg, u32> = FxHashMap::default();
        for Item { step, .. } in &self.items {
            match step {
                Step::Guard(..) => outer.push(run),
                Step::GuardEnd => {
                    run = outer.pop().unwrap_or(runs);
                    continue;
                }
                Step::Label(label) if !targets.contains(label) => continue,
                _ => {}
            }
            if matches!(step, Step::Guard(..) | Step::Label(_) | Step::Jump(_) | Step::Exit(_)) {
                (run, runs) = (runs, runs + 1);
                continue;
            }
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
            let is_steady = |operand| match operand {
                Operand::Reg(reg) => writes.get(&reg) == Some(&1) && written_in.contains_key(&reg),
                Operand::Imm(_) => true,
            };
            let is_here = |operand| matches!(operand, Operand::Reg(reg) if written_in.get(&reg) == Some(&run));
            if writes[to] == 1
                && let Some(value) = sums.value(step, &is_steady, &is_here)
            {
                sums.known.insert(*to, value);
            }
            written_in.extend(written.iter().map(|reg| (*reg, run)));
        }
        sums
    }
}

/// Whether floats that a step reads may be part of those that it writes.
fn keeps_floats(step: &Step) -> bool {
    let Step::Cold(cold) = step else { return false };
    match &cold.what {
        What::Scalar(_) => true,
        What::Fast(op, from) => match op {
            Op::Mov32(_) | Op::Mov64(_) | Op::Selp32(_) | Op::Selp64(_) => true,
            Op::Pack16(_) | Op::Pack64(_) | Op::Unpack16(_) | Op::Unpack64(_) => true,
            Op::Cvt(..) | Op::Setp32(..) => false,
            _ => matches!(from[0], Ty::F32 | Ty::Halves(_)),
        },
        _ => false,
    }
}
