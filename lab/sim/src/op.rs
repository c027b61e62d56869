//! [`Op`]: the operations of the interpreter.

use flashcore_ir::ScalarType;
use flashcore_ir::inst::{AtomOp, Cache, Cmp, ShflMode, Special, VoteMode};

use crate::operations::{Bin32, Bin64, Number, PredOp, Tri32, Un32, Un64};
use crate::program::{At, Row, TraceFile, Width};

/// One operation. Field names follow the IR.
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
    /// Reports lanes that read tracked register `tracked` before writing it.
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
    /// `left`: shl, otherwise shr; `b` is a 32-bit row.
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
    /// Orders the thread's own accesses, which the simulator never reorders. `cluster`: at cluster
    /// scope.
    Fence {
        cluster: bool,
    },
    /// An instruction without effect in the simulator.
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
    /// Index `copy` in [`Program::copies`].
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
    /// Index `product` in [`Program::products`].
    Wgmma {
        product: u32,
    },
    WgmmaFence,
    WgmmaCommit,
    WgmmaWait {
        pending: u32,
    },
    /// An instruction other than a product accesses product registers.
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
