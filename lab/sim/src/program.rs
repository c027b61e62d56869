//! The kernel as the interpreter runs it: a flat array of decoded operations.
//!
//! A warp can stop at any of them and go on later, which a tree does not allow. Operands are rows of
//! the warp's register file; immediates are constant rows, so that no operation asks what its
//! operands are.

use flashcore_ir::inst::{AtomOp, Cache, Cmp, Major, Object, ShflMode, Special, VoteMode, WgmmaInput};
use flashcore_ir::{ScalarType, SiteId};

pub(crate) use crate::operations::{Bin32, Bin64, Number, PredOp, Tri32, Un32, Un64};
use crate::report::Class;

/// A row of 32 lanes in a register file; from [`CONST`] on, a row of constants.
pub(crate) type Row = u16;

/// Bit that marks a row of constants.
pub(crate) const CONST: Row = 0x8000;

/// Predicate register that is false in every lane.
pub(crate) const PRED_FALSE: Row = 0;
/// Predicate register that is true in every lane.
pub(crate) const PRED_TRUE: Row = 1;

/// A memory operand: a row of addresses, a constant, and the object it is meant to stay in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) base: Row,
    pub(crate) object: u16,
    pub(crate) offset: i32,
    /// Whether addresses are those of any block of the cluster.
    pub(crate) remote: bool,
}

impl At {
    pub(crate) fn object_of(object: Object) -> u16 {
        match object {
            Object::Param(index) => index as u16,
            Object::Shared(id) => id.0 as u16,
        }
    }
}

/// A bulk copy of a box.
#[derive(Clone, Debug)]
pub(crate) struct BoxCopy {
    /// Parameter that holds the tensor map.
    pub(crate) map: u16,
    /// Where the kernel says that it is, which should be there.
    pub(crate) map_base: Row,
    pub(crate) map_offset: i32,
    /// Coordinates, innermost first.
    pub(crate) at: Vec<Row>,
    /// The tile.
    pub(crate) shared: At,
    /// Where its bytes complete; none for a store.
    pub(crate) mbarrier: Option<At>,
    pub(crate) multicast: Option<Row>,
}

/// An operand of a product in shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedOperand {
    pub(crate) bits: Row,
    pub(crate) buffer: u16,
    pub(crate) major: Major,
}

/// Operand A of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProductA {
    Shared(SharedOperand),
    Regs { rows: [Row; 4], fragment: u16 },
}

/// A product of a warpgroup.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub(crate) input: WgmmaInput,
    pub(crate) n: u32,
    pub(crate) d: Vec<Row>,
    pub(crate) d_fragment: u16,
    pub(crate) a: ProductA,
    pub(crate) b: SharedOperand,
    pub(crate) accumulate: Row,
}

/// What a load or store moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Width {
    /// Registers a lane: 1, 2 or 4.
    pub(crate) count: u8,
    /// log2 of the bytes of one: 1, 2 or 3.
    pub(crate) log_bytes: u8,
}

impl Width {
    /// Bytes a lane moves.
    #[inline(always)]
    pub(crate) fn bytes(self) -> u32 {
        u32::from(self.count) << self.log_bytes
    }
}

/// One operation. Fields are named as in the IR.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    If {
        pred: Row,
        uniform: bool,
        otherwise: u32,
    },
    Else {
        end: u32,
    },
    EndIf,
    LoopBegin,
    BreakIf {
        pred: Row,
        uniform: bool,
        end: u32,
    },
    LoopEnd {
        start: u32,
    },
    Exit,
    /// Finds lanes that read tracked register `tracked` before they have written it.
    CheckWritten {
        tracked: u32,
    },
    MarkWritten {
        tracked: u32,
    },
    Un32 {
        f: Un32,
        d: Row,
        a: Row,
    },
    Bin32 {
        f: Bin32,
        d: Row,
        a: Row,
        b: Row,
    },
    Tri32 {
        f: Tri32,
        d: Row,
        a: Row,
        b: Row,
        c: Row,
    },
    Lop3 {
        d: Row,
        a: Row,
        b: Row,
        c: Row,
        table: u8,
    },
    Un64 {
        f: Un64,
        d: Row,
        a: Row,
    },
    Bin64 {
        f: Bin64,
        d: Row,
        a: Row,
        b: Row,
    },
    /// `left`: shl, else shr; `b` is a 32-bit row.
    Shift64 {
        left: bool,
        signed: bool,
        d: Row,
        a: Row,
        b: Row,
    },
    Mad64 {
        d: Row,
        a: Row,
        b: Row,
        c: Row,
    },
    /// 64-bit product of 32-bit rows.
    MulWide {
        signed: bool,
        d: Row,
        a: Row,
        b: Row,
    },
    MadWide {
        signed: bool,
        d: Row,
        a: Row,
        b: Row,
        c: Row,
    },
    Widen {
        signed: bool,
        d: Row,
        a: Row,
    },
    Narrow {
        d: Row,
        a: Row,
    },
    Unpack16 {
        lo: Row,
        hi: Row,
        a: Row,
    },
    Pack64 {
        d: Row,
        lo: Row,
        hi: Row,
    },
    Unpack64 {
        lo: Row,
        hi: Row,
        a: Row,
    },
    Setp32 {
        cmp: Cmp,
        number: Number,
        d: Row,
        a: Row,
        b: Row,
    },
    Setp64 {
        cmp: Cmp,
        number: Number,
        d: Row,
        a: Row,
        b: Row,
    },
    Selp32 {
        d: Row,
        cond: Row,
        a: Row,
        b: Row,
    },
    Selp64 {
        d: Row,
        cond: Row,
        a: Row,
        b: Row,
    },
    Pred {
        f: PredOp,
        d: Row,
        a: Row,
        b: Row,
    },
    PredNot {
        d: Row,
        a: Row,
    },
    PredMov {
        d: Row,
        a: Row,
    },
    Special {
        d: Row,
        which: Special,
    },
    Param32 {
        d: Row,
        index: u16,
    },
    Param64 {
        d: Row,
        index: u16,
    },
    LdShared {
        d: [Row; 4],
        width: Width,
        at: At,
    },
    StShared {
        s: [Row; 4],
        width: Width,
        at: At,
    },
    LdGlobal {
        d: [Row; 4],
        width: Width,
        at: At,
        cache: Cache,
    },
    StGlobal {
        s: [Row; 4],
        width: Width,
        at: At,
    },
    CpAsync {
        dst: At,
        src: At,
        bytes: u8,
        src_bytes: Option<Row>,
        past_l1: bool,
    },
    CpAsyncCommit,
    CpAsyncWait {
        pending: u32,
    },
    LdMatrix {
        d: [Row; 4],
        count: u8,
        transposed: bool,
        at: At,
    },
    Mma {
        bf16: bool,
        d: [Row; 4],
        a: [Row; 4],
        b: [Row; 2],
        c: [Row; 4],
    },
    MmaF16 {
        d: [Row; 2],
        a: [Row; 4],
        b: [Row; 2],
        c: [Row; 2],
    },
    Shfl {
        mode: ShflMode,
        d: Row,
        src: Row,
        lane: Row,
        members: u32,
    },
    Vote {
        mode: VoteMode,
        d: Row,
        pred: Row,
        members: u32,
    },
    Redux {
        f: Bin32,
        d: Row,
        src: Row,
        members: u32,
    },
    BarSync {
        id: Row,
        threads: u32,
    },
    BarArrive {
        id: Row,
        threads: u32,
    },
    BarWarp {
        members: u32,
    },
    /// Orders the thread's own accesses, which the simulator never reorders. `cluster`: for the whole cluster.
    Fence {
        cluster: bool,
    },
    /// An instruction that changes nothing here.
    Nothing,
    SharedBase {
        d: Row,
    },
    Elect {
        d: Row,
    },
    TrapIf {
        pred: Row,
    },
    SetMaxRegs {
        regs: u16,
        raise: bool,
    },
    DependencyWait,
    FenceProxyAsync,
    FenceMbarrierInit,
    StMatrix {
        s: [Row; 4],
        count: u8,
        transposed: bool,
        at: At,
    },
    Mapa {
        d: Row,
        addr: Row,
        rank: Row,
    },
    ClusterArrive {
        release: bool,
        aligned: bool,
    },
    ClusterWait {
        aligned: bool,
    },
    MbarInit {
        at: At,
        arrivals: u32,
    },
    MbarArrive {
        at: At,
        cluster: bool,
        tx: Option<Row>,
    },
    MbarExpect {
        at: At,
        tx: Row,
    },
    MbarTest {
        d: Row,
        at: At,
        parity: Row,
        blocking: bool,
    },
    /// Number `copy` of [`Program::copies`].
    BulkLoad {
        copy: u32,
    },
    BulkStore {
        copy: u32,
    },
    BulkCommit,
    BulkWait {
        pending: u32,
        read: bool,
    },
    /// Number `product` of [`Program::products`].
    Wgmma {
        product: u32,
    },
    WgmmaFence,
    WgmmaCommit,
    WgmmaWait {
        pending: u32,
    },
    /// Something else touches registers that products use.
    Touch {
        fragment: u16,
        write: bool,
    },
    AtomShared {
        op: AtomOp,
        ty: ScalarType,
        d: Option<Row>,
        at: At,
        value: Row,
    },
    AtomGlobal {
        op: AtomOp,
        ty: ScalarType,
        d: Option<Row>,
        at: At,
        value: Row,
    },
    Trace {
        label: u32,
        file: TraceFile,
        src: Row,
    },
}

/// Which register file a traced value is in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TraceFile {
    Pred,
    Bits32,
    Float,
    Bits64,
}

/// A lowered kernel.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) ops: Vec<Op>,
    /// Where each operation was written.
    pub(crate) sites: Vec<SiteId>,
    pub(crate) classes: Vec<Class>,
    /// The operation of each node of the kernel's body, a node before its children.
    pub(crate) nodes: Vec<u32>,
    pub(crate) consts32: Vec<u32>,
    pub(crate) consts64: Vec<u64>,
    pub(crate) rows32: usize,
    pub(crate) rows64: usize,
    pub(crate) preds: usize,
    /// Registers whose reads are checked at run time, by the name to call them.
    pub(crate) tracked: Vec<String>,
    /// log2 of the bytes that a shadow cell of shared memory stands for: the narrowest access.
    pub(crate) granule_shift: u32,
    pub(crate) copies: Vec<BoxCopy>,
    pub(crate) products: Vec<Product>,
    /// Names of the registers that products use.
    pub(crate) fragments: Vec<String>,
    pub(crate) uses_cp_async: bool,
    pub(crate) uses_bulk_stores: bool,
    pub(crate) uses_products: bool,
    /// Whether bulk copies or products access shared memory.
    pub(crate) uses_async_proxy: bool,
    pub(crate) uses_dependency: bool,
    pub(crate) sets_registers: bool,
    /// Parameters that are written through by plain stores, loaded from, used by atomics.
    pub(crate) stored: Vec<bool>,
    pub(crate) loaded: Vec<bool>,
    pub(crate) atomics: Vec<bool>,
    /// Whether some global atomic returns the old value.
    pub(crate) returning_atomics: bool,
}
