//! The decoded program: a flat array of operations.
//!
//! A warp can suspend at any operation, which a tree does not allow. Operands are rows of the
//! warp's register file. Immediates are constant rows, so operations do not distinguish operand
//! kinds.

use std::collections::HashMap;

use flashcore_ir::inst::{
    Address, AtomOp, BinOp, BulkInst, Cache, ClusterInst, Cmp, Cvt, FlagInst, MbarInst, Object, ShflMode, Space,
    Special, UnOp, VoteMode, WgmmaInput, WgmmaInst,
};
use flashcore_ir::{Reg, RegClass, ScalarType, SiteId};

use crate::report::Class;
use crate::rows::Rows;

/// A row of 32 lanes in a register file; from [`CONST`] on, a row of constants.
pub(crate) type Row = u16;

/// Flag of constant rows.
pub(crate) const CONST: Row = 0x8000;

pub(crate) const PRED_FALSE: Row = 0;
pub(crate) const PRED_TRUE: Row = 1;

/// One operation. Rows are in the order of the instruction's operands, the destination first. Rare
/// and expensive instructions stay as they are in the kernel; their operands are looked up when
/// they run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op<'k> {
    If(Branch),
    /// Its target is the end of the structure.
    Else(u32),
    EndIf,
    LoopBegin,
    BreakIf(Branch),
    /// Its target is the start of the body.
    LoopEnd(u32),
    Exit,
    /// Reports lanes that read a tracked register before writing it.
    CheckWritten(u32),
    MarkWritten(u32),
    /// An instruction other than a product accesses a fragment; `true` if it writes.
    Touch(u16, bool),

    Mov32([Row; 2]),
    Mov64([Row; 2]),
    /// An integer operation or an approximate function of f32.
    Un32(UnOp, [Row; 2]),
    AbsS64([Row; 2]),
    Cvt(Cvt, [Row; 2]),
    /// `true` if signed.
    Int32(BinOp, bool, [Row; 3]),
    Int64(BinOp, bool, [Row; 3]),
    F32(FloatOp, [Row; 3]),
    Halves(FloatOp, Half, [Row; 3]),
    FmaF32([Row; 4]),
    FmaHalves(Half, [Row; 4]),
    Mad32([Row; 4]),
    Mad64([Row; 4]),
    /// `true` if signed.
    MadWide(bool, [Row; 4]),
    CvtPack(WgmmaInput, [Row; 3]),
    Pack16([Row; 3]),
    Pack64([Row; 3]),
    Unpack16([Row; 3]),
    Unpack64([Row; 3]),
    Lop3(u8, [Row; 4]),
    Prmt([Row; 4]),
    Setp32(Cmp, Number, [Row; 3]),
    Setp64(Cmp, Number, [Row; 3]),
    Selp32([Row; 4]),
    Selp64([Row; 4]),
    PredAnd([Row; 3]),
    PredOr([Row; 3]),
    PredXor([Row; 3]),
    Special(Special, Row),
    Param32(u16, Row),
    Param64(u16, Row),
    SharedBase(Row),

    LdShared(Access),
    StShared(Access),
    LdGlobal(Access, Cache),
    StGlobal(Access),
    LdMatrix(Matrix),
    StMatrix(Matrix),
    CpAsync(CpAsync),
    CpAsyncCommit,
    CpAsyncWait(u32),
    AtomShared(Atom),
    AtomGlobal(Atom),

    Mma(Mma),
    Shfl(ShflMode, [Row; 3], u32),
    Vote(VoteMode, [Row; 2], u32),
    Redux(BinOp, bool, [Row; 2], u32),
    Elect(Row),
    BarSync(Row, u32),
    BarArrive(Row, u32),
    BarWarp(u32),
    /// A fence at cluster scope or wider. It orders the thread's own accesses, which the simulator
    /// never reorders.
    FenceCluster,
    FenceProxyAsync,
    FenceMbarrierInit,
    TrapIf(Row),
    /// `true` to raise.
    SetMaxRegs(u32, bool),
    DependencyWait,
    Flag(&'k FlagInst),
    Mbar(&'k MbarInst),
    Bulk(&'k BulkInst),
    Wgmma(&'k WgmmaInst),
    Cluster(&'k ClusterInst),
    Trace(u32, RegClass, Row),
    /// An instruction without effect in the simulator.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Branch {
    pub(crate) pred: Row,
    pub(crate) uniform: bool,
    pub(crate) target: u32,
}

/// Arithmetic that all float types have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FloatOp {
    Add,
    Sub,
    Mul,
    Min,
    Max,
}

/// The element type of a packed pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    F16,
    BF16,
}

/// How a comparison interprets bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Unsigned,
    Signed,
    Float,
}

/// The object that a memory operand must stay in, and its constant offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) object: u16,
    pub(crate) offset: i32,
    /// Whether the address may be in any block of the cluster.
    pub(crate) remote: bool,
}

impl At {
    pub(crate) fn of(addr: &Address, space: Space) -> At {
        At {
            object: match addr.object {
                Object::Param(index) => index as u16,
                Object::Shared(id) => id.0 as u16,
            },
            offset: addr.offset,
            remote: space == Space::Cluster,
        }
    }
}

/// A load or a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) regs: [Row; 4],
    pub(crate) width: Width,
    pub(crate) base: Row,
    pub(crate) at: At,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Width {
    /// Registers per lane: 1, 2 or 4.
    pub(crate) count: u8,
    /// log2 of the bytes per register: 1, 2 or 3.
    pub(crate) log_bytes: u8,
}

impl Width {
    #[inline(always)]
    pub(crate) fn bytes(self) -> u32 {
        u32::from(self.count) << self.log_bytes
    }
}

/// `ldmatrix` or `stmatrix`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub(crate) regs: [Row; 4],
    pub(crate) count: u8,
    pub(crate) transposed: bool,
    pub(crate) base: Row,
    pub(crate) at: At,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CpAsync {
    pub(crate) to: Row,
    pub(crate) dst: At,
    pub(crate) from: Row,
    pub(crate) src: At,
    pub(crate) bytes: u32,
    pub(crate) src_bytes: Option<Row>,
    pub(crate) past_l1: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Atom {
    pub(crate) op: AtomOp,
    pub(crate) ty: ScalarType,
    pub(crate) d: Option<Row>,
    pub(crate) value: Row,
    pub(crate) base: Row,
    pub(crate) at: At,
}

/// `mma.sync`; f16 accumulators have two registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mma {
    pub(crate) input: Half,
    pub(crate) f16_accumulators: bool,
    pub(crate) d: [Row; 4],
    pub(crate) a: [Row; 4],
    pub(crate) b: [Row; 2],
    pub(crate) c: [Row; 4],
}

/// How the kernel accesses the memory of a parameter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) loaded: bool,
    /// Written by stores other than atomics.
    pub(crate) stored: bool,
    pub(crate) atomic: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Program<'k> {
    pub(crate) ops: Vec<Op<'k>>,
    /// The source of each operation.
    pub(crate) sites: Vec<SiteId>,
    pub(crate) classes: Vec<Class>,
    /// The operation of each node of the kernel's body, in pre-order.
    pub(crate) nodes: Vec<u32>,
    pub(crate) consts32: Vec<u32>,
    pub(crate) consts64: Vec<u64>,
    pub(crate) rows: Rows,
    /// Names of the registers whose reads are checked at run time.
    pub(crate) tracked: Vec<String>,
    /// log2 of the bytes per shadow cell of shared memory: the narrowest access.
    pub(crate) granule_shift: u32,
    /// The fragment of each register that products use, and the names of the fragments.
    pub(crate) fragment_of: HashMap<Reg, u16>,
    pub(crate) fragments: Vec<String>,
    pub(crate) uses_cp_async: bool,
    pub(crate) uses_bulk_stores: bool,
    pub(crate) uses_products: bool,
    /// Whether bulk copies or products access shared memory.
    pub(crate) uses_async_proxy: bool,
    pub(crate) uses_dependency: bool,
    /// By parameter.
    pub(crate) used: Vec<Used>,
    /// Whether a global atomic returns the old value.
    pub(crate) returning_atomics: bool,
}
