//! The instructions that the reader knows: each with the operations and types that it has, and with
//! operands to be filled in. Their opcodes are those that the writer prints.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::{Reader, UNKNOWN};
use flashcore_ir::inst::{
    Address, AtomOp, BinOp, BulkInst, Cache, ClusterInst, Cmp, Cvt, Descriptor, FenceInst, FlagInst, Inst, L2Hint,
    Major, MbarInst, MmaAcc, MmaInput, Operand, Scope, ShflMode, Space, Special, StoreSource, UnOp, VoteMode, WgmmaA,
    WgmmaInput, WgmmaInst,
};
use flashcore_ir::ptx::{Notes, mnemonic};
use flashcore_ir::shared::BufferId;
use flashcore_ir::types::{Reg, RegClass, ScalarType};
use flashcore_ptx::Module;

static FORMS: LazyLock<HashMap<String, Vec<Inst>>> = LazyLock::new(|| {
    let mut forms: HashMap<String, Vec<Inst>> = HashMap::new();
    for inst in arithmetic().into_iter().chain(memory()).chain(warps()).chain(hopper()) {
        if inst.impossible().is_none() {
            forms.entry(normal(&mnemonic(&inst))).or_default().push(inst);
        }
    }
    forms
});

pub(super) fn forms(opcode: &str) -> &'static [Inst] {
    FORMS.get(&normal(opcode)).map_or(&[], Vec::as_slice)
}

/// One opcode for all that mean the same: with explicit rounding, without `::cta` and hints, with the space that alone
/// is possible, and with types of bits where the type does not matter.
fn normal(opcode: &str) -> String {
    let opcode = opcode.replace("::cta", "");
    match opcode.as_str() {
        "barrier.sync" | "barrier.cta.sync" | "barrier.sync.aligned" | "barrier.cta.sync.aligned" | "bar.cta.sync" => {
            return "bar.sync".to_string();
        }
        "barrier.arrive"
        | "barrier.cta.arrive"
        | "barrier.arrive.aligned"
        | "barrier.cta.arrive.aligned"
        | "bar.cta.arrive" => return "bar.arrive".to_string(),
        copy if copy.starts_with("cp.async.c") && copy.contains(".L2::") => {
            let words: Vec<&str> = copy.split('.').filter(|word| !word.starts_with("L2::")).collect();
            return words.join(".");
        }
        matrix if matrix.contains("matrix.sync.aligned") => {
            let matrix = matrix.replace(".m8n8", "").replace(".aligned", ".aligned.m8n8");
            let has_space = matrix.contains(".shared") || matrix.starts_with("mov");
            return matrix.replace(".b16", if has_space { ".b16" } else { ".shared.b16" });
        }
        "membar.cta" => return "fence.acq_rel.cta".to_string(),
        "membar.gl" => return "fence.acq_rel.gpu".to_string(),
        _ => {}
    }
    let Some((name, ty)) = opcode.rsplit_once('.') else {
        return opcode;
    };
    match name.split('.').next() {
        Some("ld" | "st" | "mov" | "selp") => match ty {
            "u16" | "s16" | "f16" | "bf16" => format!("{name}.b16"),
            "u32" | "s32" | "f16x2" | "bf16x2" => format!("{name}.b32"),
            "u64" | "s64" => format!("{name}.b64"),
            _ => opcode,
        },
        // Without `.rn` compilers may contract; the rounding is the same.
        Some("add" | "sub" | "mul") => opcode.replace(".rn", ""),
        _ => opcode,
    }
}

/// Whether the simulator executes a form of PTX, given operands that it reads.
pub fn executes(form: &str) -> bool {
    let Ok(spelled) = flashcore_ptx::read(form) else {
        return false;
    };
    // Of calls, the function decides.
    let Some(example) = spelled.example() else { return true };
    let registers = flashcore_ptx::EXAMPLE_REGISTERS;
    let text = format!(".version 9.0 .target sm_90a .entry k(.param .b64 k) {{ {registers} {example} END: ret; }}");
    let reads = |module: Module| {
        let (_, function) = module.entries().next()?;
        let mut reader = Reader::new(&module, function, HashMap::new(), HashMap::new());
        reader.places = Some(HashMap::from([("k".to_string(), 0)]));
        reader.read(&Notes::default()).ok()
    };
    Module::read(&text).ok().and_then(reads).is_some()
}

const INTEGERS: [ScalarType; 4] = [ScalarType::U32, ScalarType::S32, ScalarType::U64, ScalarType::S64];
const FLOATS: [ScalarType; 3] = [ScalarType::F32, ScalarType::F16x2, ScalarType::BF16x2];
const BITS: [ScalarType; 2] = [ScalarType::B32, ScalarType::B64];
const CLASSES: [RegClass; 4] = [RegClass::B16, RegClass::B32, RegClass::B64, RegClass::F32];
/// An operand to be filled in: a number that is possible as a count of bytes.
const IMM: Operand = Operand::Imm(16);
const ADDRESS: Address = Address {
    base: IMM,
    offset: 0,
    object: UNKNOWN,
};

fn reg(class: RegClass) -> Reg {
    Reg { class, index: 0 }
}

fn each<A: Copy, B: Copy>(a: impl IntoIterator<Item = A>, b: &[B]) -> impl Iterator<Item = (A, B)> {
    a.into_iter().flat_map(|a| b.iter().map(move |&b| (a, b)))
}

fn types(op: BinOp) -> Vec<ScalarType> {
    use BinOp::{Add, And, Div, Max, Min, Mul, MulHi, MulWide, Or, Rem, Shl, Shr, Sub, Xor};
    match op {
        Add | Sub | Mul | Min | Max => [&INTEGERS[..], &FLOATS].concat(),
        MulHi | Div | Rem => INTEGERS.to_vec(),
        MulWide => INTEGERS[..2].to_vec(),
        And | Or | Xor => [&[ScalarType::Pred, ScalarType::B16], &BITS[..]].concat(),
        Shl => BITS.to_vec(),
        Shr => [&INTEGERS[..], &BITS].concat(),
    }
}

fn arithmetic() -> Vec<Inst> {
    let pred = reg(RegClass::Pred);
    let [a, b, c, src, lo, hi, selector] = [IMM; 7];
    let mut forms = Vec::new();
    for op in BinOp::ALL {
        for ty in types(op) {
            let is_wide = op == BinOp::MulWide;
            let dst = reg(if is_wide { RegClass::B64 } else { ty.class() });
            forms.push(Inst::Bin { op, ty, dst, a, b });
        }
    }
    let un = |op, ty: ScalarType| {
        let dst = reg(ty.class());
        Inst::Un { op, ty, dst, a }
    };
    for ty in [ScalarType::S32, ScalarType::S64].into_iter().chain(FLOATS) {
        forms.extend([UnOp::Neg, UnOp::Abs].map(|op| un(op, ty)));
    }
    forms.extend([ScalarType::Pred, ScalarType::B32, ScalarType::B64].map(|ty| un(UnOp::Not, ty)));
    forms.extend([UnOp::Ex2, UnOp::Lg2, UnOp::Rcp].map(|op| un(op, ScalarType::F32)));
    forms.extend([UnOp::Popc, UnOp::Clz].map(|op| un(op, ScalarType::B32)));
    for ty in INTEGERS.into_iter().chain(FLOATS) {
        let dst = reg(ty.class());
        forms.push(Inst::Fma { ty, dst, a, b, c });
    }
    for ty in [ScalarType::U32, ScalarType::S32] {
        let dst = reg(RegClass::B64);
        forms.push(Inst::MadWide { ty, dst, a, b, c });
    }
    for op in Cvt::ALL {
        let dst = reg(op.class());
        forms.push(Inst::Cvt { op, dst, src });
    }
    for ty in [ScalarType::F16x2, ScalarType::BF16x2, ScalarType::E4M3x2] {
        let dst = reg(ty.class());
        forms.push(Inst::CvtPack { ty, dst, lo, hi });
    }
    for (half, whole) in [(RegClass::B16, RegClass::B32), (RegClass::B32, RegClass::B64)] {
        let dst = reg(whole);
        forms.push(Inst::Pack { dst, lo, hi });
        let (lo, hi) = (reg(half), reg(half));
        forms.push(Inst::Unpack { lo, hi, src });
    }
    let (dst, table) = (reg(RegClass::B32), 0);
    // Of three different values.
    let (b, c) = (Operand::Imm(1), Operand::Imm(2));
    forms.push(Inst::Lop3 { dst, a, b, c, table });
    forms.push(Inst::Prmt { dst, a, b, selector });
    // Those with one opcode differ in their operands.
    let which = Special::LaneId;
    forms.push(Inst::Special { dst, which });
    for class in RegClass::ALL {
        let (dst, src) = (reg(class), Operand::Reg(reg(class)));
        forms.push(Inst::Mov { dst, src });
    }
    for class in CLASSES {
        let (ty, dst, cond) = (class.scalar(), reg(class), pred);
        forms.push(Inst::Selp { ty, dst, cond, a, b });
    }
    let dst = pred;
    for (ty, cmp) in each(INTEGERS.into_iter().chain(BITS).chain([ScalarType::F32]), &Cmp::ALL) {
        forms.push(Inst::Setp { cmp, ty, dst, a, b });
    }
    forms
}

fn memory() -> Vec<Inst> {
    let (addr, value) = (ADDRESS, IMM);
    let mut forms = Vec::new();
    for space in Space::ALL {
        for (class, cache) in each(CLASSES, &Cache::ALL) {
            let (dst, src) = (reg(class), StoreSource::Regs(reg(class)));
            for count in [1, 2, 4] {
                forms.push(Inst::Ld {
                    space,
                    dst,
                    count,
                    addr,
                    cache,
                });
                forms.push(Inst::St {
                    space,
                    src,
                    count,
                    addr,
                    cache,
                });
            }
        }
        for (ty, op) in each(
            [ScalarType::B32, ScalarType::U32, ScalarType::S32, ScalarType::F32],
            &AtomOp::ALL,
        ) {
            for dst in [None, Some(reg(ty.class()))] {
                forms.push(Inst::Atom {
                    op,
                    ty,
                    space,
                    dst,
                    addr,
                    value,
                });
            }
        }
    }
    let (dst, src, bytes) = (addr, addr, 16);
    for (cache, src_bytes) in each([Cache::Default, Cache::L2], &[None, Some(IMM)]) {
        forms.push(Inst::CpAsync {
            dst,
            src,
            bytes,
            src_bytes,
            cache,
        });
    }
    forms.extend([Inst::CpAsyncCommit, Inst::CpAsyncWait { pending: 0 }]);
    let (dst, src) = (reg(RegClass::B32), reg(RegClass::B32));
    for (count, transposed) in each([1, 2, 4], &[false, true]) {
        forms.push(Inst::LdMatrix {
            dst,
            count,
            transposed,
            addr,
        });
        forms.push(Inst::StMatrix {
            src,
            count,
            transposed,
            addr,
        });
    }
    for class in [RegClass::B32, RegClass::F32] {
        let (ty, dst) = (class.scalar(), reg(class));
        forms.push(Inst::Flag(FlagInst::LoadAcquire { dst, addr }));
        forms.push(Inst::Flag(FlagInst::StoreRelease { ty, addr, value }));
    }
    for ty in [ScalarType::U32, ScalarType::S32, ScalarType::F32] {
        forms.extend([true, false].map(|release| {
            Inst::Flag(FlagInst::Add {
                release,
                ty,
                addr,
                value,
            })
        }));
    }
    let (dst, src, bytes) = (addr, addr, IMM);
    forms.push(Inst::Bulk(BulkInst::StoreBytes { dst, src, bytes }));
    forms.push(Inst::Bulk(BulkInst::Reduce { dst, src, bytes }));
    let src = reg(RegClass::F32);
    forms.push(Inst::AddFour { addr, src });
    let fences = [
        FenceInst::ProxyAsync,
        FenceInst::ProxyAsyncGlobal,
        FenceInst::MbarrierInit,
    ];
    forms.extend(fences.map(Inst::Fence));
    forms.push(Inst::Bulk(BulkInst::Commit));
    forms.extend([true, false].map(|read| Inst::Bulk(BulkInst::Wait { pending: 0, read })));
    forms
}

fn warps() -> Vec<Inst> {
    let (dst, pred) = (reg(RegClass::B32), reg(RegClass::Pred));
    let (src, lane, members) = (IMM, IMM, 0);
    let mut forms = Vec::new();
    for (input, acc) in each(MmaInput::ALL, &MmaAcc::ALL) {
        let (a, b, c) = match acc {
            MmaAcc::F32 => (dst, dst, reg(RegClass::F32)),
            MmaAcc::F16 => (dst, dst, dst),
        };
        let d = c;
        forms.push(Inst::Mma { input, acc, d, a, b, c });
    }
    for mode in ShflMode::ALL {
        forms.push(Inst::Shfl {
            mode,
            dst,
            src,
            lane,
            members,
        });
    }
    for mode in VoteMode::ALL {
        let dst = match mode {
            VoteMode::All | VoteMode::Any => pred,
            VoteMode::Ballot => dst,
        };
        forms.push(Inst::Vote {
            mode,
            dst,
            pred,
            members,
        });
    }
    for (op, ty) in each(BinOp::ALL, &[ScalarType::B32, ScalarType::U32, ScalarType::S32]) {
        forms.push(Inst::Redux {
            op,
            ty,
            dst,
            src,
            members,
        });
    }
    let (id, threads) = (Operand::Imm(0), 32);
    forms.extend([None, Some(threads)].map(|threads| Inst::BarSync { id, threads }));
    forms.extend([Inst::BarArrive { id, threads }, Inst::BarWarp { members }]);
    forms.extend(Scope::ALL.map(|scope| Inst::Fence(FenceInst::Memory(scope))));
    forms.extend([Inst::Elect { dst: pred }, Inst::DependencyWait, Inst::DependencyTrigger]);
    forms
}

/// What sm_90 has.
fn hopper() -> Vec<Inst> {
    let (addr, at) = (ADDRESS, |count: usize| vec![IMM; count]);
    let dst = reg(RegClass::B32);
    let mut forms = vec![
        Inst::Mbar(MbarInst::Init { addr, arrivals: 1 }),
        Inst::Mbar(MbarInst::ExpectTx { addr, tx: IMM }),
        Inst::Cluster(ClusterInst::Mapa {
            dst,
            addr: IMM,
            rank: IMM,
        }),
        Inst::Bulk(BulkInst::Prefetch { map: addr }),
        Inst::Wgmma(WgmmaInst::Fence),
        Inst::Wgmma(WgmmaInst::Commit),
        Inst::Wgmma(WgmmaInst::Wait { pending: 0 }),
    ];
    for (scope, remote) in each([Scope::Block, Scope::Cluster], &[false, true]) {
        forms.extend([None, Some(IMM)].map(|tx| {
            Inst::Mbar(MbarInst::Arrive {
                addr,
                remote,
                scope,
                tx,
            })
        }));
    }
    for (scope, blocking) in each([Scope::Block, Scope::Cluster], &[false, true]) {
        let (dst, parity) = (reg(RegClass::Pred), IMM);
        forms.push(Inst::Mbar(MbarInst::Test {
            dst,
            addr,
            parity,
            blocking,
            scope,
        }));
    }
    for aligned in [false, true] {
        forms.extend([false, true].map(|release| Inst::Cluster(ClusterInst::Arrive { release, aligned })));
        forms.push(Inst::Cluster(ClusterInst::Wait { aligned }));
    }
    forms.extend([false, true].map(|raise| Inst::SetMaxRegs { regs: 24, raise }));
    for dims in 1..=5 {
        for (hint, multicast) in each(
            [L2Hint::None, L2Hint::EvictFirst, L2Hint::EvictLast],
            &[None, Some(IMM)],
        ) {
            let (dst, map, bar, at) = (addr, addr, addr, at(dims));
            forms.push(Inst::Bulk(BulkInst::Load {
                dst,
                map,
                at,
                bar,
                multicast,
                hint,
            }));
        }
        let (map, src, at) = (addr, addr, at(dims));
        forms.push(Inst::Bulk(BulkInst::Store { map, at, src }));
    }
    let (dst, src, bar, bytes) = (addr, addr, addr, IMM);
    forms.push(Inst::Bulk(BulkInst::LoadBytes { dst, src, bytes, bar }));
    forms.push(Inst::Bulk(BulkInst::Send { dst, src, bytes, bar }));
    let descriptor = Descriptor {
        bits: IMM,
        buffer: BufferId(0),
        major: Major::K,
    };
    for (input, n) in each(WgmmaInput::ALL, &(8..=256).step_by(8).collect::<Vec<u32>>()) {
        for a in [WgmmaA::Regs(reg(RegClass::B32)), WgmmaA::Shared(descriptor)] {
            let (d, b, accumulate) = (reg(RegClass::F32), descriptor, IMM);
            forms.push(Inst::Wgmma(WgmmaInst::Mma {
                input,
                n,
                d,
                a,
                b,
                accumulate,
            }));
        }
    }
    forms
}
