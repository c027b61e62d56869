//! [`Work`]: what instructions need from the machine, whichever machine it is.

use flashcore_ir::inst::{BinOp, BulkInst, Cvt, MmaAcc, Space, UnOp, WgmmaInput, WgmmaInst};
use flashcore_ir::{Inst, Operand, RegClass, ScalarType};
use serde::Serialize;

/// Work by the unit that does it, in warp instructions unless said otherwise.
///
/// Counted as the machine executes them, as far as that is known without its compiler: register
/// copies, parameters and special registers cost nothing (they become operands), 64-bit integer
/// operations cost two, integer divisions their usual expansion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Work {
    /// All issued instructions.
    pub issued: f64,
    /// f32 sums, products, fused products.
    pub fma: f64,
    /// Integer products.
    pub int_mul: f64,
    /// Packed 16-bit arithmetic.
    pub half: f64,
    /// Integers, logic, comparisons, selections, f32 minimum and maximum.
    pub alu: f64,
    /// Conversions between f32 and 16-bit floats.
    pub convert: f64,
    /// ex2, lg2, rcp, conversions between integers and floats.
    pub mufu: f64,
    /// Tensor-core FLOPs with f32 accumulators.
    pub tensor_f32: f64,
    /// Tensor-core FLOPs with f16 accumulators.
    pub tensor_f16: f64,
    /// Tensor-core FLOPs of warpgroup products of 16-bit elements.
    pub tensor_wgmma: f64,
    /// Tensor-core FLOPs of warpgroup products of e4m3.
    pub tensor_e4m3: f64,
    /// Passes over the 128 bytes of shared memory or L1: wavefronts of shared accesses, 128-byte
    /// parts of global ones, one for each exchange between lanes.
    pub passes: f64,
    /// Bytes between the SM and L2.
    pub l2_bytes: f64,
}

/// FLOPs of one `mma.m16n8k16`.
pub(crate) const MMA_FLOPS: f64 = 2.0 * 16.0 * 8.0 * 16.0;

/// Machine instructions of a 32-bit integer division or remainder (CUDA C++ Programming Guide,
/// "Maximize Instruction Throughput": tens of instructions; ptxas 13 emits about 20, one of them a
/// reciprocal).
const DIVISION: f64 = 20.0;

const NONE: Work = Work {
    issued: 0.0,
    fma: 0.0,
    int_mul: 0.0,
    half: 0.0,
    alu: 0.0,
    convert: 0.0,
    mufu: 0.0,
    tensor_f32: 0.0,
    tensor_f16: 0.0,
    tensor_wgmma: 0.0,
    tensor_e4m3: 0.0,
    passes: 0.0,
    l2_bytes: 0.0,
};
const ISSUED: Work = Work { issued: 1.0, ..NONE };
const FMA: Work = Work { fma: 1.0, ..ISSUED };
const HALF: Work = Work { half: 1.0, ..ISSUED };
const CONVERT: Work = Work { convert: 1.0, ..ISSUED };
const MUFU: Work = Work { mufu: 1.0, ..ISSUED };
const PASS: Work = Work { passes: 1.0, ..ISSUED };

/// `n` instructions of the ALU pipe.
const fn alu(n: f64) -> Work {
    Work {
        issued: n,
        alu: n,
        ..NONE
    }
}

/// `n` integer products.
const fn int_mul(n: f64) -> Work {
    Work {
        issued: n,
        int_mul: n,
        ..NONE
    }
}

impl Work {
    /// FLOPs of all tensor-core products.
    pub fn tensor_flops(&self) -> f64 {
        self.tensor_f32 + self.tensor_f16 + self.tensor_wgmma + self.tensor_e4m3
    }

    /// Adds other work `times` times.
    pub fn add(&mut self, other: &Work, times: f64) {
        self.issued += times * other.issued;
        self.fma += times * other.fma;
        self.int_mul += times * other.int_mul;
        self.half += times * other.half;
        self.alu += times * other.alu;
        self.convert += times * other.convert;
        self.mufu += times * other.mufu;
        self.tensor_f32 += times * other.tensor_f32;
        self.tensor_f16 += times * other.tensor_f16;
        self.tensor_wgmma += times * other.tensor_wgmma;
        self.tensor_e4m3 += times * other.tensor_e4m3;
        self.passes += times * other.passes;
        self.l2_bytes += times * other.l2_bytes;
    }

    /// The work of one execution of an instruction by a warp. `transactions` is what the simulator
    /// counted for it: passes of a shared access, 32-byte sectors of a global one.
    pub(crate) fn of(inst: &Inst, transactions: f64) -> Work {
        match inst {
            // Copies and parameters become operands. Special registers are read once.
            Inst::Mov { .. }
            | Inst::Special { .. }
            | Inst::Param { .. }
            | Inst::SharedBase { .. }
            | Inst::Trace { .. } => NONE,
            Inst::Bin { op, ty, b, .. } => bin(*op, *ty, *b),
            Inst::Un { op, .. } => match op {
                UnOp::Ex2 | UnOp::Lg2 | UnOp::Rcp | UnOp::Popc | UnOp::Clz => MUFU,
                // Signs of floats are operand modifiers.
                UnOp::Neg | UnOp::Abs => NONE,
                UnOp::Not => alu(1.0),
            },
            Inst::Fma { ty, .. } => match ty {
                ScalarType::F32 => FMA,
                ScalarType::F16x2 | ScalarType::BF16x2 => HALF,
                ty if ty.bytes() == 8 => int_mul(4.0),
                _ => int_mul(1.0),
            },
            Inst::MadWide { .. } => int_mul(1.0),
            Inst::Cvt { op, .. } => match op {
                Cvt::F32FromF16 | Cvt::F16FromF32 | Cvt::BF16FromF32 | Cvt::F16x2FromE4M3x2 => CONVERT,
                Cvt::F32FromU32 | Cvt::F32FromS32 | Cvt::S32FromF32 | Cvt::U32FromF32 => MUFU,
                Cvt::S64FromS32 => alu(1.0),
                Cvt::U64FromU32 | Cvt::U32FromU64 => NONE,
            },
            Inst::CvtPack { .. } => CONVERT,
            // Halves of a 64-bit register are registers; halves of a 32-bit one are operand
            // modifiers.
            Inst::Pack { dst, .. } if dst.class == RegClass::B64 => NONE,
            Inst::Unpack { .. } => NONE,
            Inst::Pack { .. } | Inst::Lop3 { .. } | Inst::Prmt { .. } | Inst::Vote { .. } | Inst::Elect { .. } => {
                alu(1.0)
            }
            Inst::Setp { ty, .. } | Inst::Selp { ty, .. } => alu(words(*ty)),
            Inst::Ld { space, .. } | Inst::St { space, .. } | Inst::Atom { space, .. } => memory(*space, transactions),
            Inst::LdMatrix { .. } | Inst::StMatrix { .. } => memory(Space::Shared, transactions),
            Inst::CpAsync { .. }
            | Inst::Flag(_)
            | Inst::Bulk(
                BulkInst::Load { .. }
                | BulkInst::Store { .. }
                | BulkInst::LoadBytes { .. }
                | BulkInst::StoreBytes { .. }
                | BulkInst::Reduce { .. },
            ) => memory(Space::Global, transactions),
            Inst::Mma { acc, .. } => match acc {
                MmaAcc::F32 => Work {
                    tensor_f32: MMA_FLOPS,
                    ..ISSUED
                },
                MmaAcc::F16 => Work {
                    tensor_f16: MMA_FLOPS,
                    ..ISSUED
                },
            },
            // A wait succeeds at its first attempt: later ones use free issue slots.
            Inst::Shfl { .. } | Inst::Redux { .. } | Inst::Mbar(_) => PASS,
            Inst::Wgmma(WgmmaInst::Mma { input, n, .. }) => {
                // A warp's quarter of the product.
                let flops = 2.0 * 16.0 * f64::from(n * input.k());
                let (tensor_wgmma, tensor_e4m3) = match input {
                    WgmmaInput::E4M3 => (0.0, flops),
                    WgmmaInput::F16 | WgmmaInput::BF16 => (flops, 0.0),
                };
                Work {
                    tensor_wgmma,
                    tensor_e4m3,
                    passes: transactions,
                    ..ISSUED
                }
            }
            Inst::CpAsyncCommit
            | Inst::CpAsyncWait { .. }
            | Inst::BarSync { .. }
            | Inst::BarArrive { .. }
            | Inst::BarWarp { .. }
            | Inst::Fence { .. }
            | Inst::FenceProxyAsync
            | Inst::FenceMbarrierInit
            | Inst::TrapIf { .. }
            | Inst::SetMaxRegs { .. }
            | Inst::DependencyWait
            | Inst::DependencyTrigger
            | Inst::Bulk(BulkInst::Prefetch { .. } | BulkInst::Commit | BulkInst::Wait { .. })
            | Inst::Wgmma(WgmmaInst::Fence | WgmmaInst::Commit | WgmmaInst::Wait { .. })
            | Inst::Cluster(_) => ISSUED,
        }
    }

    /// The work of a branch: the jump and, if lanes may diverge, the two instructions that
    /// reconverge them.
    pub(crate) fn of_branch(uniform: bool) -> Work {
        Work {
            issued: if uniform { 1.0 } else { 3.0 },
            ..NONE
        }
    }
}

/// Whether the model covers an instruction. Accesses to another block's shared memory are not
/// modelled.
pub(crate) fn is_known(inst: &Inst) -> bool {
    let (Inst::Ld { space, .. } | Inst::St { space, .. } | Inst::Atom { space, .. }) = inst else {
        return true;
    };
    *space != Space::Cluster
}

/// 32-bit words of a type.
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
        (BinOp::Div | BinOp::Rem, _) if matches!(b, Operand::Imm(_)) => Work {
            issued: 3.0 * n,
            alu: 2.0 * n,
            int_mul: n,
            ..NONE
        },
        (BinOp::Div | BinOp::Rem, _) => Work {
            issued: DIVISION * n * n,
            alu: 0.6 * DIVISION * n * n,
            int_mul: 0.3 * DIVISION * n * n,
            mufu: 1.0,
            ..NONE
        },
        (BinOp::Add | BinOp::Sub | BinOp::Min | BinOp::Max, _)
        | (BinOp::And | BinOp::Or | BinOp::Xor | BinOp::Shl | BinOp::Shr, _) => alu(n),
    }
}

/// An access: passes of 128 bytes, and bytes from or to L2 if it is global.
fn memory(space: Space, transactions: f64) -> Work {
    match space {
        Space::Shared => Work {
            passes: transactions.max(1.0),
            ..ISSUED
        },
        Space::Global => Work {
            passes: (transactions / 4.0).max(1.0),
            l2_bytes: 32.0 * transactions,
            ..ISSUED
        },
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
        assert_eq!((work.issued, work.tensor_f32, work.tensor_f16), (1.0, 4096.0, 0.0));
        assert_eq!(Work::of(&mma(MmaAcc::F16), 0.0).tensor_f16, 4096.0);
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
        assert_eq!(Work::of(&ldmatrix, 4.0).passes, 4.0);
        assert_eq!(Work::of(&ldmatrix, 32.0).passes, 32.0);
        assert_eq!(Work::of(&ldmatrix, 4.0).l2_bytes, 0.0);
        let copy = Inst::CpAsync {
            dst: address,
            src: address,
            bytes: 16,
            src_bytes: None,
            cache: Cache::L2,
        };
        // A warp copies 512 bytes, which are 16 sectors.
        let work = Work::of(&copy, 16.0);
        assert_eq!((work.passes, work.l2_bytes, work.issued), (4.0, 512.0, 1.0));
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
        assert_eq!((exp.issued, exp.mufu), (1.0, 1.0));
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
        let issued = |b| Work::of(&divide(b), 0.0).issued;
        assert_eq!(issued(Operand::Imm(64)), 1.0);
        assert_eq!(issued(Operand::Imm(12)), 3.0);
        assert_eq!(issued(Operand::Reg(reg(RegClass::B32))), DIVISION);
    }
}
