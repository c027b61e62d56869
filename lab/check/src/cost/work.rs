//! [`Work`]: what instructions ask of the machine, whichever machine it is.

use flashcore_ir::inst::{BinOp, BulkInst, Cvt, MmaAcc, Space, UnOp, WgmmaInput, WgmmaInst};
use flashcore_ir::{Inst, Operand, RegClass, ScalarType};
use serde::Serialize;

/// Work by the unit that does it, in warp instructions unless said otherwise.
///
/// Counted as the machine executes them, as far as that can be known without its compiler: register
/// copies, parameters and special registers cost nothing (they become operands), 64-bit integer
/// operations cost two, integer divisions their usual expansion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Work {
    /// Issued, whatever for.
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
    /// Tensor-core FLOPs of warpgroups' products of 16-bit elements.
    pub tensor_wgmma: f64,
    /// The same of e4m3.
    pub tensor_e4m3: f64,
    /// Passes over the 128 bytes of shared memory or L1: wavefronts of shared accesses, 128-byte parts of global
    /// ones, one for each exchange between lanes.
    pub passes: f64,
    /// Bytes between the SM and L2.
    pub l2_bytes: f64,
}

/// FLOPs of one `mma.m16n8k16`.
pub(crate) const MMA_FLOPS: f64 = 2.0 * 16.0 * 8.0 * 16.0;

/// Machine instructions of a 32-bit integer division or remainder (CUDA C++ Programming Guide, "Maximize Instruction
/// Throughput": tens of instructions; counted in the code of ptxas 13: about 20, one of them a reciprocal).
const DIVISION: f64 = 20.0;

impl Work {
    /// FLOPs of the tensor cores, of whatever kind.
    pub fn tensor_flops(&self) -> f64 {
        self.tensor_f32 + self.tensor_f16 + self.tensor_wgmma + self.tensor_e4m3
    }

    /// The sum, with the other's part taken `times`.
    pub fn add(&mut self, other: &Work, times: f64) {
        for (sum, more) in self.fields_mut().into_iter().zip(other.fields()) {
            *sum += times * more;
        }
    }

    fn fields(&self) -> [f64; 13] {
        [
            self.issued,
            self.fma,
            self.int_mul,
            self.half,
            self.alu,
            self.convert,
            self.mufu,
            self.tensor_f32,
            self.tensor_f16,
            self.tensor_wgmma,
            self.tensor_e4m3,
            self.passes,
            self.l2_bytes,
        ]
    }

    fn fields_mut(&mut self) -> [&mut f64; 13] {
        [
            &mut self.issued,
            &mut self.fma,
            &mut self.int_mul,
            &mut self.half,
            &mut self.alu,
            &mut self.convert,
            &mut self.mufu,
            &mut self.tensor_f32,
            &mut self.tensor_f16,
            &mut self.tensor_wgmma,
            &mut self.tensor_e4m3,
            &mut self.passes,
            &mut self.l2_bytes,
        ]
    }

    /// What one execution of an instruction by a warp takes; `transactions` is what the simulator counted for it:
    /// passes of a shared access, 32-byte sectors of a global one.
    pub(crate) fn of(inst: &Inst, transactions: f64) -> Work {
        let none = Work::default();
        let one = Work { issued: 1.0, ..none };
        let alu = |n: f64| Work {
            issued: n,
            alu: n,
            ..none
        };
        let int_mul = |n: f64| Work {
            issued: n,
            int_mul: n,
            ..none
        };
        match inst {
            // A copy becomes another operand; so do parameters. Special registers are read once.
            Inst::Mov { .. } | Inst::Special { .. } | Inst::Param { .. } | Inst::SharedBase { .. } => none,
            Inst::Trace { .. } => none,
            Inst::Bin { op, ty, b, .. } => bin(*op, *ty, *b),
            Inst::Un { op, .. } => match op {
                UnOp::Ex2 | UnOp::Lg2 | UnOp::Rcp | UnOp::Popc | UnOp::Clz => Work { mufu: 1.0, ..one },
                // Signs of floats are operand modifiers.
                UnOp::Neg | UnOp::Abs => none,
                UnOp::Not => alu(1.0),
            },
            Inst::Fma { ty, .. } => match ty {
                ScalarType::F32 => Work { fma: 1.0, ..one },
                ScalarType::F16x2 | ScalarType::BF16x2 => Work { half: 1.0, ..one },
                ty if ty.bytes() == 8 => int_mul(4.0),
                _ => int_mul(1.0),
            },
            Inst::MadWide { .. } => int_mul(1.0),
            Inst::Cvt { op, .. } => match op {
                Cvt::F32FromF16 | Cvt::F16FromF32 | Cvt::BF16FromF32 | Cvt::F16x2FromE4M3x2 => {
                    Work { convert: 1.0, ..one }
                }
                Cvt::F32FromU32 | Cvt::F32FromS32 | Cvt::S32FromF32 | Cvt::U32FromF32 => Work { mufu: 1.0, ..one },
                Cvt::S64FromS32 => alu(1.0),
                Cvt::U64FromU32 | Cvt::U32FromU64 => none,
            },
            Inst::CvtPack { .. } => Work { convert: 1.0, ..one },
            // Halves of a 64-bit register are registers; halves of a 32-bit one are operand modifiers.
            Inst::Pack { dst, .. } if dst.class == RegClass::B64 => none,
            Inst::Pack { .. } => alu(1.0),
            Inst::Unpack { .. } => none,
            Inst::Lop3 { .. } | Inst::Prmt { .. } => alu(1.0),
            Inst::Setp { ty, .. } | Inst::Selp { ty, .. } => alu(words(*ty)),
            Inst::Ld { space, .. } => memory(*space, transactions),
            Inst::St { space, .. } => memory(*space, transactions),
            Inst::Atom { space, .. } => memory(*space, transactions),
            Inst::CpAsync { .. } => memory(Space::Global, transactions),
            Inst::LdMatrix { .. } => memory(Space::Shared, transactions),
            Inst::Mma { acc, .. } => match acc {
                MmaAcc::F32 => Work {
                    tensor_f32: MMA_FLOPS,
                    ..one
                },
                MmaAcc::F16 => Work {
                    tensor_f16: MMA_FLOPS,
                    ..one
                },
            },
            Inst::Shfl { .. } | Inst::Redux { .. } => Work { passes: 1.0, ..one },
            Inst::Vote { .. } => alu(1.0),
            Inst::StMatrix { .. } => memory(Space::Shared, transactions),
            Inst::Elect { .. } => alu(1.0),
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
            | Inst::Cluster(_) => one,
            // A wait succeeds at its first attempt, as far as issue slots go: later ones are free slots.
            Inst::Mbar(_) => Work { passes: 1.0, ..one },
            Inst::Bulk(BulkInst::Load { .. } | BulkInst::Store { .. }) => memory(Space::Global, transactions),
            Inst::Bulk(_) => one,
            Inst::Wgmma(WgmmaInst::Mma { input, n, .. }) => {
                // A warp's quarter of it.
                let flops = 2.0 * 16.0 * f64::from(n * input.k());
                let (tensor_wgmma, tensor_e4m3) = match input {
                    WgmmaInput::E4M3 => (0.0, flops),
                    WgmmaInput::F16 | WgmmaInput::BF16 => (flops, 0.0),
                };
                Work {
                    tensor_wgmma,
                    tensor_e4m3,
                    passes: transactions,
                    ..one
                }
            }
            Inst::Wgmma(_) => one,
        }
    }

    /// What a branch takes: the jump; where lanes may part, also the two instructions that bring them together.
    pub(crate) fn of_branch(uniform: bool) -> Work {
        Work {
            issued: if uniform { 1.0 } else { 3.0 },
            ..Work::default()
        }
    }
}

/// Whether the model knows what an instruction costs and when its results are there. Accesses to another block's shared
/// memory need a model of that first.
pub(crate) fn is_known(inst: &Inst) -> bool {
    !matches!(
        inst,
        Inst::Ld {
            space: Space::Cluster,
            ..
        } | Inst::St {
            space: Space::Cluster,
            ..
        } | Inst::Atom {
            space: Space::Cluster,
            ..
        }
    )
}

/// 32-bit words of a type.
fn words(ty: ScalarType) -> f64 {
    f64::from(ty.bytes().div_ceil(4).max(1))
}

fn bin(op: BinOp, ty: ScalarType, b: Operand) -> Work {
    let n = words(ty);
    let one = Work {
        issued: 1.0,
        ..Work::default()
    };
    match (op, ty) {
        // Logic on predicates is part of the comparison that makes them.
        (_, ScalarType::Pred) => Work::default(),
        (BinOp::Add | BinOp::Sub | BinOp::Mul, ScalarType::F32) => Work { fma: 1.0, ..one },
        (BinOp::Min | BinOp::Max, ScalarType::F32) => Work { alu: 1.0, ..one },
        (_, ScalarType::F16x2 | ScalarType::BF16x2) => Work { half: 1.0, ..one },
        (BinOp::Mul | BinOp::MulHi, _) if n > 1.0 => Work {
            issued: 4.0,
            int_mul: 4.0,
            ..one
        },
        (BinOp::Mul | BinOp::MulHi | BinOp::MulWide, _) => Work { int_mul: 1.0, ..one },
        // By a constant: a shift or a mask, or the high half of a product and what mends its rounding.
        (BinOp::Div | BinOp::Rem, _) if matches!(b, Operand::Imm(d) if d.is_power_of_two()) => Work {
            issued: n,
            alu: n,
            ..one
        },
        (BinOp::Div | BinOp::Rem, _) if matches!(b, Operand::Imm(_)) => Work {
            issued: 3.0 * n,
            alu: 2.0 * n,
            int_mul: n,
            ..one
        },
        (BinOp::Div | BinOp::Rem, _) => Work {
            issued: DIVISION * n * n,
            alu: 0.6 * DIVISION * n * n,
            int_mul: 0.3 * DIVISION * n * n,
            mufu: 1.0,
            ..one
        },
        _ => Work {
            issued: n,
            alu: n,
            ..one
        },
    }
}

/// An access: passes of 128 bytes, and bytes from or to L2 if it is global.
fn memory(space: Space, transactions: f64) -> Work {
    let one = Work {
        issued: 1.0,
        ..Work::default()
    };
    match space {
        Space::Shared => Work {
            passes: transactions.max(1.0),
            ..one
        },
        Space::Global => Work {
            passes: (transactions / 4.0).max(1.0),
            l2_bytes: 32.0 * transactions,
            ..one
        },
        // Kernels with these have no observation: see `is_known`.
        Space::Cluster => Work::default(),
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
        // Four 8 × 8 matrices of halves are 512 bytes: four passes without conflicts, 32 in one bank group.
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
