//! [`Work`]: what instructions need from the machine, whichever machine it is.

use std::ops::Index;

use flashcore_ir::inst::{
    BinOp, BulkInst, ClusterInst, Cvt, FlagInst, MbarInst, MmaAcc, Space, UnOp, WgmmaInput, WgmmaInst,
};
use flashcore_ir::{Inst, Operand, RegClass, ScalarType};

use super::rates::Latencies;

/// A unit of an SM that does work, counted in warp instructions unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// The schedulers: all issued instructions.
    Issue,
    /// f32 sums, products, fused products.
    Fma,
    /// Integer products.
    IntMul,
    /// Packed 16-bit arithmetic.
    Half,
    /// Integers, logic, comparisons, selections, f32 minimum and maximum.
    Alu,
    /// Conversions between f32 and 16-bit floats.
    Convert,
    /// ex2, lg2, rcp, conversions between integers and floats.
    Mufu,
    /// Tensor-core FLOPs with f32 accumulators.
    TensorF32,
    /// Tensor-core FLOPs with f16 accumulators.
    TensorF16,
    /// Tensor-core FLOPs of warpgroup products of 16-bit elements.
    TensorWgmma,
    /// Tensor-core FLOPs of warpgroup products of e4m3.
    TensorE4m3,
    /// Passes over the 128 bytes of shared memory or L1: wavefronts of shared accesses, 128-byte
    /// parts of global ones, one for each exchange between lanes.
    Passes,
    /// Bytes between the SM and L2.
    L2Bytes,
}

/// The number of [`Unit`]s.
pub(crate) const UNITS: usize = Unit::L2Bytes as usize + 1;

/// Work by unit.
///
/// Counted as the machine executes them, as far as that is known without its compiler: register
/// copies, parameters and special registers cost nothing (they become operands), 64-bit integer
/// operations cost two, integer divisions their usual expansion.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work([f64; UNITS]);

impl Index<Unit> for Work {
    type Output = f64;

    fn index(&self, unit: Unit) -> &f64 {
        &self.0[unit as usize]
    }
}

/// Machine instructions of a 32-bit integer division or remainder (CUDA C++ Programming Guide,
/// "Maximize Instruction Throughput": tens of instructions; ptxas 13 emits about 20, one of them a
/// reciprocal).
const DIVISION: f64 = 20.0;

const NONE: Work = Work([0.0; UNITS]);
const ISSUED: Work = issued(1.0);
const FMA: Work = ISSUED.and(Unit::Fma, 1.0);
const HALF: Work = ISSUED.and(Unit::Half, 1.0);
const CONVERT: Work = ISSUED.and(Unit::Convert, 1.0);
const MUFU: Work = ISSUED.and(Unit::Mufu, 1.0);
const PASS: Work = ISSUED.and(Unit::Passes, 1.0);

const fn issued(n: f64) -> Work {
    NONE.and(Unit::Issue, n)
}

/// `n` instructions of the ALU pipe.
const fn alu(n: f64) -> Work {
    issued(n).and(Unit::Alu, n)
}

const fn int_mul(n: f64) -> Work {
    issued(n).and(Unit::IntMul, n)
}

impl Work {
    /// The same work with that of a unit set.
    const fn and(mut self, unit: Unit, work: f64) -> Work {
        self.0[unit as usize] = work;
        self
    }

    /// FLOPs of all tensor-core products.
    pub fn tensor_flops(&self) -> f64 {
        let units = [Unit::TensorF32, Unit::TensorF16, Unit::TensorWgmma, Unit::TensorE4m3];
        units.into_iter().map(|unit| self[unit]).sum()
    }

    /// Adds other work `times` times.
    pub fn add(&mut self, other: &Work, times: f64) {
        for (sum, work) in self.0.iter_mut().zip(other.0) {
            *sum += times * work;
        }
    }

    /// The work of one execution of an instruction by a warp: see [`price`].
    pub(crate) fn of(inst: &Inst, transactions: f64) -> Work {
        price(inst, transactions, &Latencies::default()).0
    }

    /// The work of a branch: the jump and, if lanes may diverge, the two instructions that
    /// reconverge them.
    pub(crate) fn of_branch(uniform: bool) -> Work {
        issued(if uniform { 1.0 } else { 3.0 })
    }
}

/// Operations that are waited for in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Asynchronous copies.
    Copies,
    /// Warpgroup products.
    Products,
}

/// What a warp waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Timing {
    /// Results are ready so many clocks after its start.
    After(f64),
    /// The other warps of the block.
    Barrier,
    /// Nothing: it closes a group.
    Commit(Group),
    /// All groups but so many.
    Wait(Group, u32),
}

/// The work of one execution of an instruction by a warp, and what it waits for. `transactions` is what the simulator
/// counted for it: passes of a shared access, 32-byte sectors of a global one.
pub(crate) fn price(inst: &Inst, transactions: f64, latency: &Latencies) -> (Work, Timing) {
    let with_conflicts = latency.shared + (transactions - 1.0).max(0.0);
    let (work, clocks) = match inst {
        Inst::BarSync { .. } => return (ISSUED, Timing::Barrier),
        Inst::CpAsyncCommit => return (ISSUED, Timing::Commit(Group::Copies)),
        Inst::CpAsyncWait { pending } => return (ISSUED, Timing::Wait(Group::Copies, *pending)),
        Inst::Wgmma(WgmmaInst::Commit) => return (ISSUED, Timing::Commit(Group::Products)),
        Inst::Wgmma(WgmmaInst::Wait { pending }) => return (ISSUED, Timing::Wait(Group::Products, *pending)),
        // Copies and parameters become operands. Special registers are read once. Halves of a
        // 64-bit register are registers; halves of a 32-bit one are operand modifiers.
        Inst::Mov { .. }
        | Inst::Special { .. }
        | Inst::Param { .. }
        | Inst::SharedBase { .. }
        | Inst::Unpack { .. }
        | Inst::Trace { .. } => (NONE, 0.0),
        Inst::Pack { dst, .. } if dst.class == RegClass::B64 => (NONE, 0.0),
        Inst::Pack { .. } => (alu(1.0), 0.0),
        Inst::Bin { op, ty, b, .. } => {
            let work = bin(*op, *ty, *b);
            let chained = match op {
                BinOp::Div | BinOp::Rem => work[Unit::Issue],
                _ => 1.0,
            };
            (work, chained * latency.arithmetic)
        }
        Inst::Un { op, .. } => match op {
            UnOp::Ex2 | UnOp::Lg2 | UnOp::Rcp | UnOp::Popc | UnOp::Clz => (MUFU, latency.mufu),
            // Signs of floats are operand modifiers.
            UnOp::Neg | UnOp::Abs => (NONE, 0.0),
            UnOp::Not => (alu(1.0), latency.arithmetic),
        },
        Inst::Fma { ty, .. } => {
            let work = match ty {
                ScalarType::F32 => FMA,
                ScalarType::F16x2 | ScalarType::BF16x2 => HALF,
                ty if ty.bytes() == 8 => int_mul(4.0),
                _ => int_mul(1.0),
            };
            (work, latency.arithmetic)
        }
        Inst::MadWide { .. } => (int_mul(1.0), latency.arithmetic),
        Inst::Cvt { op, .. } => {
            let work = match op {
                Cvt::F32FromF16 | Cvt::F16FromF32 | Cvt::BF16FromF32 | Cvt::F16x2FromE4M3x2 => CONVERT,
                Cvt::F32FromU32 | Cvt::F32FromS32 | Cvt::S32FromF32 | Cvt::U32FromF32 => MUFU,
                Cvt::S64FromS32 => alu(1.0),
                Cvt::U64FromU32 | Cvt::U32FromU64 => NONE,
            };
            (work, latency.convert)
        }
        Inst::CvtPack { .. } => (CONVERT, latency.convert),
        Inst::Lop3 { .. } | Inst::Prmt { .. } | Inst::Elect { .. } => (alu(1.0), latency.arithmetic),
        Inst::Setp { ty, .. } | Inst::Selp { ty, .. } => (alu(words(*ty)), latency.arithmetic),
        Inst::Vote { .. } => (alu(1.0), latency.exchange),
        Inst::Shfl { .. } | Inst::Redux { .. } => (PASS, latency.exchange),
        Inst::Ld { space, .. } | Inst::St { space, .. } | Inst::Atom { space, .. } => {
            let clocks = match space {
                Space::Shared => with_conflicts,
                Space::Global => latency.l2,
                Space::Cluster => 0.0,
            };
            (memory(*space, transactions), clocks)
        }
        Inst::LdMatrix { .. } | Inst::StMatrix { .. } => (memory(Space::Shared, transactions), with_conflicts),
        // Between blocks, as loads and stores there.
        Inst::Bulk(BulkInst::Send { .. }) => (PASS, 0.0),
        Inst::CpAsync { .. } | Inst::Flag(FlagInst::LoadAcquire { .. }) => {
            (memory(Space::Global, transactions), latency.l2)
        }
        Inst::Flag(FlagInst::StoreRelease { .. } | FlagInst::Add { .. })
        | Inst::AddFour { .. }
        | Inst::Bulk(
            BulkInst::Load { .. }
            | BulkInst::Store { .. }
            | BulkInst::LoadBytes { .. }
            | BulkInst::StoreBytes { .. }
            | BulkInst::Reduce { .. },
        ) => (memory(Space::Global, transactions), 0.0),
        Inst::Mma { acc, .. } => {
            let unit = match acc {
                MmaAcc::F32 => Unit::TensorF32,
                MmaAcc::F16 => Unit::TensorF16,
            };
            // m16n8k16
            (ISSUED.and(unit, 2.0 * 16.0 * 8.0 * 16.0), latency.mma)
        }
        // A wait succeeds at its first attempt: later ones use free issue slots, and copies are
        // far ahead of the warps that wait for them.
        Inst::Mbar(
            MbarInst::Init { .. } | MbarInst::Arrive { .. } | MbarInst::ExpectTx { .. } | MbarInst::Test { .. },
        ) => (PASS, latency.shared),
        Inst::Wgmma(WgmmaInst::Mma { input, n, .. }) => {
            let unit = match input {
                WgmmaInput::E4M3 => Unit::TensorE4m3,
                WgmmaInput::F16 | WgmmaInput::BF16 => Unit::TensorWgmma,
            };
            // A warp's quarter of the product.
            let flops = 2.0 * 16.0 * f64::from(n * input.k());
            (ISSUED.and(unit, flops).and(Unit::Passes, transactions), 0.0)
        }
        Inst::BarArrive { .. }
        | Inst::BarWarp { .. }
        | Inst::Fence(_)
        | Inst::TrapIf { .. }
        | Inst::SetMaxRegs { .. }
        | Inst::DependencyWait
        | Inst::DependencyTrigger
        | Inst::Bulk(BulkInst::Prefetch { .. } | BulkInst::Commit | BulkInst::Wait { .. })
        | Inst::Wgmma(WgmmaInst::Fence)
        | Inst::Cluster(ClusterInst::Mapa { .. } | ClusterInst::Arrive { .. } | ClusterInst::Wait { .. }) => {
            (ISSUED, 0.0)
        }
    };
    (work, Timing::After(clocks))
}

/// Whether the model covers an instruction. Accesses to another block's shared memory are not
/// modelled.
pub(crate) fn is_known(inst: &Inst) -> bool {
    let (Inst::Ld { space, .. } | Inst::St { space, .. } | Inst::Atom { space, .. }) = inst else {
        return true;
    };
    *space != Space::Cluster
}

fn words(ty: ScalarType) -> f64 {
    f64::from(ty.bytes().div_ceil(4).max(1))
}

fn bin(op: BinOp, ty: ScalarType, b: Operand) -> Work {
    let n = words(ty);
    match (op, ty) {
        // Logic on predicates is part of the comparison that makes them.
        (_, ScalarType::Pred) => NONE,
        (BinOp::Add | BinOp::Sub | BinOp::Mul, ScalarType::F32) => FMA,
        (_, ScalarType::F16x2 | ScalarType::BF16x2) => HALF,
        (BinOp::Mul | BinOp::MulHi, _) if n > 1.0 => int_mul(4.0),
        (BinOp::Mul | BinOp::MulHi | BinOp::MulWide, _) => int_mul(1.0),
        // By a constant: a shift or a mask, or the high half of a product and a correction.
        (BinOp::Div | BinOp::Rem, _) if matches!(b, Operand::Imm(d) if d.is_power_of_two()) => alu(n),
        (BinOp::Div | BinOp::Rem, _) if matches!(b, Operand::Imm(_)) => {
            issued(3.0 * n).and(Unit::Alu, 2.0 * n).and(Unit::IntMul, n)
        }
        (BinOp::Div | BinOp::Rem, _) => {
            let all = DIVISION * n * n;
            let work = issued(all).and(Unit::Alu, 0.6 * all).and(Unit::IntMul, 0.3 * all);
            work.and(Unit::Mufu, 1.0)
        }
        (BinOp::Add | BinOp::Sub | BinOp::Min | BinOp::Max, _)
        | (BinOp::And | BinOp::Or | BinOp::Xor | BinOp::Shl | BinOp::Shr, _) => alu(n),
    }
}

/// An access: passes of 128 bytes, and bytes from or to L2 if it is global.
fn memory(space: Space, transactions: f64) -> Work {
    match space {
        Space::Shared => ISSUED.and(Unit::Passes, transactions.max(1.0)),
        Space::Global => {
            let work = ISSUED.and(Unit::Passes, (transactions / 4.0).max(1.0));
            work.and(Unit::L2Bytes, 32.0 * transactions)
        }
        // Kernels with these have no observation: see `is_known`.
        Space::Cluster => NONE,
    }
}

#[cfg(test)]
mod tests {
    use flashcore_ir::inst::MmaInput;
    use flashcore_ir::{Cache, Reg};

    use super::*;

    fn reg(class: RegClass) -> Reg {
        Reg { class, index: 0 }
    }

    #[test]
    fn tensor_products_and_their_loads() {
        let fragment = reg(RegClass::B32);
        let mma = |acc| Inst::Mma {
            input: MmaInput::F16,
            acc,
            d: fragment,
            a: fragment,
            b: fragment,
            c: fragment,
        };
        let work = Work::of(&mma(MmaAcc::F32), 0.0);
        assert_eq!(
            (work[Unit::Issue], work[Unit::TensorF32], work[Unit::TensorF16]),
            (1.0, 4096.0, 0.0)
        );
        assert_eq!(Work::of(&mma(MmaAcc::F16), 0.0)[Unit::TensorF16], 4096.0);
        let address = flashcore_ir::inst::Address {
            base: Operand::Imm(0),
            offset: 0,
            object: flashcore_ir::inst::Object::Param(0),
        };
        let ldmatrix = Inst::LdMatrix {
            dst: fragment,
            count: 4,
            transposed: false,
            addr: address,
        };
        // Four 8 × 8 matrices of halves are 512 bytes: four passes without conflicts, 32 in one
        // bank group.
        assert_eq!(Work::of(&ldmatrix, 4.0)[Unit::Passes], 4.0);
        assert_eq!(Work::of(&ldmatrix, 32.0)[Unit::Passes], 32.0);
        assert_eq!(Work::of(&ldmatrix, 4.0)[Unit::L2Bytes], 0.0);
        let copy = Inst::CpAsync {
            dst: address,
            src: address,
            bytes: 16,
            src_bytes: None,
            cache: Cache::L2,
        };
        // A warp copies 512 bytes, which are 16 sectors.
        let work = Work::of(&copy, 16.0);
        assert_eq!(
            (work[Unit::Passes], work[Unit::L2Bytes], work[Unit::Issue]),
            (4.0, 512.0, 1.0)
        );
    }

    #[test]
    fn what_becomes_an_operand_costs_nothing() {
        let float = reg(RegClass::F32);
        let copy = Inst::Mov {
            dst: float,
            src: Operand::Reg(float),
        };
        assert_eq!(Work::of(&copy, 0.0), Work::default());
        let un = |op| Inst::Un {
            op,
            ty: ScalarType::F32,
            dst: float,
            a: Operand::Reg(float),
        };
        assert_eq!(Work::of(&un(UnOp::Neg), 0.0), Work::default());
        let exp = Work::of(&un(UnOp::Ex2), 0.0);
        assert_eq!((exp[Unit::Issue], exp[Unit::Mufu]), (1.0, 1.0));
    }

    #[test]
    fn divisions_by_constants_are_cheap() {
        let divide = |b| Inst::Bin {
            op: BinOp::Div,
            ty: ScalarType::U32,
            dst: reg(RegClass::B32),
            a: Operand::Reg(reg(RegClass::B32)),
            b,
        };
        let issued = |b| Work::of(&divide(b), 0.0)[Unit::Issue];
        assert_eq!(issued(Operand::Imm(64)), 1.0);
        assert_eq!(issued(Operand::Imm(12)), 3.0);
        assert_eq!(issued(Operand::Reg(reg(RegClass::B32))), DIVISION);
    }
}
