//! The instructions: machine instructions, grouped by shape.
//!
//! Every property of an instruction is an exhaustive `match`, so a new variant does not compile
//! until each is written: its operands ([`Inst::slots`]), its opcode ([`crate::ptx`]), what it
//! requires of a target ([`Inst::requires`]), which fields exclude each other
//! ([`Inst::impossible`]), and in the lab its meaning and its cost.

use crate::types::{Reg, ScalarType};

mod bulk;
mod cluster;
mod flag;
mod mbarrier;
mod ops;
mod rules;
mod slots;
mod wgmma;

pub(crate) use rules::impossible_warpgroups;

pub use bulk::{BulkInst, L2Hint};
pub use cluster::ClusterInst;
pub use flag::FlagInst;
pub use mbarrier::MbarInst;
pub use ops::{
    Address, AtomOp, BinOp, Cache, Cmp, Cvt, MmaAcc, MmaInput, Object, Scope, ShflMode, Space, Special, UnOp, VoteMode,
};
pub use slots::{Access, Slot};
pub use wgmma::{Descriptor, Major, WgmmaA, WgmmaInput, WgmmaInst};

/// A register or an immediate. How the bits are read is the instruction's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// Constant bits, zero-extended.
    Imm(u64),
}

/// A machine instruction. Fields are named as in the PTX ISA: `dst`/`d` is written, others read.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // field names are the operands' names; the variants say what they do
pub enum Inst {
    /// Copy, or load an immediate. Between classes of one size it copies the bits.
    Mov { dst: Reg, src: Operand },
    /// Two-operand arithmetic.
    Bin {
        op: BinOp,
        ty: ScalarType,
        dst: Reg,
        a: Operand,
        b: Operand,
    },
    /// One-operand arithmetic.
    Un {
        op: UnOp,
        ty: ScalarType,
        dst: Reg,
        a: Operand,
    },
    /// `a·b + c` with one rounding; integers keep the low half (`mad.lo`).
    Fma {
        ty: ScalarType,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// `a·b + c` with 32-bit factors and a 64-bit sum; `ty` is that of the factors.
    MadWide {
        ty: ScalarType,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// A conversion.
    Cvt { op: Cvt, dst: Reg, src: Operand },
    /// Two f32 rounded to a packed pair; `ty` is `F16x2`, `BF16x2` or `E4M3x2` (which saturates).
    CvtPack {
        ty: ScalarType,
        dst: Reg,
        lo: Operand,
        hi: Operand,
    },
    /// Two registers joined into one of twice the width.
    Pack { dst: Reg, lo: Operand, hi: Operand },
    /// One register split into two of half the width.
    Unpack { lo: Reg, hi: Reg, src: Operand },
    /// Any three-input bitwise function, by its truth table (PTX ISA, `lop3`).
    Lop3 {
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
        table: u8,
    },
    /// Four bytes picked from eight (PTX ISA, `prmt`, default mode).
    Prmt {
        dst: Reg,
        a: Operand,
        b: Operand,
        selector: Operand,
    },
    /// Comparison into a predicate.
    Setp {
        cmp: Cmp,
        ty: ScalarType,
        dst: Reg,
        a: Operand,
        b: Operand,
    },
    /// `if cond { a } else { b }`, a lane each.
    Selp {
        ty: ScalarType,
        dst: Reg,
        cond: Reg,
        a: Operand,
        b: Operand,
    },
    /// Read a special register.
    Special { dst: Reg, which: Special },
    /// Read kernel parameter number `index`.
    Param { dst: Reg, index: u32 },
    /// Address of shared memory's first byte.
    SharedBase { dst: Reg },
    /// Load `count` contiguous registers (1, 2 or 4) from consecutive addresses.
    Ld {
        space: Space,
        dst: Reg,
        count: u32,
        addr: Address,
        cache: Cache,
    },
    /// Store `count` contiguous registers (1, 2 or 4) to consecutive addresses.
    St {
        space: Space,
        src: StoreSource,
        count: u32,
        addr: Address,
        cache: Cache,
    },
    /// Start an asynchronous copy of `bytes` from global to shared memory. With `src_bytes`, only
    /// the first `src_bytes` are read and the rest is zero-filled.
    CpAsync {
        dst: Address,
        src: Address,
        bytes: u32,
        src_bytes: Option<Operand>,
        cache: Cache,
    },
    /// Close the group of asynchronous copies started since the last one.
    CpAsyncCommit,
    /// Wait until at most `pending` of this thread's newest groups are unfinished.
    CpAsyncWait { pending: u32 },
    /// Load `count` (1, 2 or 4) 8×8 matrices of 16-bit elements; lane `8·i + r` addresses row `r`
    /// of matrix `i`.
    LdMatrix {
        dst: Reg,
        count: u32,
        transposed: bool,
        addr: Address,
    },
    /// Store `count` (1, 2 or 4) 8×8 matrices of 16-bit elements; lane `8·i + r` addresses row `r`
    /// of matrix `i`.
    StMatrix {
        src: Reg,
        count: u32,
        transposed: bool,
        addr: Address,
    },
    /// `d = a·b + c` on the tensor cores, m16n8k16.
    Mma {
        input: MmaInput,
        acc: MmaAcc,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    /// Exchange of 32-bit values between lanes. Orders no memory.
    Shfl {
        mode: ShflMode,
        dst: Reg,
        src: Operand,
        lane: Operand,
        members: u32,
    },
    /// A vote over the warp's lanes.
    Vote {
        mode: VoteMode,
        dst: Reg,
        pred: Reg,
        members: u32,
    },
    /// A reduction of 32-bit integers over the warp's lanes.
    Redux {
        op: BinOp,
        ty: ScalarType,
        dst: Reg,
        src: Operand,
        members: u32,
    },
    /// Wait at barrier `id`, one for the whole warp, until `threads` threads (all where `None`)
    /// have come.
    BarSync { id: Operand, threads: Option<u32> },
    /// Come to barrier `id` without waiting.
    BarArrive { id: Operand, threads: u32 },
    /// Wait for the named lanes of the warp, and order their memory accesses.
    BarWarp { members: u32 },
    /// A fence: it orders accesses of this thread.
    Fence(FenceInst),
    /// Read-modify-write; `dst` receives the old value where asked for (`atom`), otherwise `red`.
    Atom {
        op: AtomOp,
        ty: ScalarType,
        space: Space,
        dst: Option<Reg>,
        addr: Address,
        value: Operand,
    },
    /// Add four contiguous f32 registers to as many words of global memory, each atomically.
    AddFour { addr: Address, src: Reg },
    /// True in one lane of the warp, the same one each time.
    Elect { dst: Reg },
    /// Stop the launch where the predicate holds.
    TrapIf { pred: Reg },
    /// Give the warpgroup's threads `regs` registers each: `raise` waits for them to be free.
    SetMaxRegs { regs: u32, raise: bool },
    /// Wait until the grids that this launch depends on have ended and their writes are visible.
    DependencyWait,
    /// Let the launches that depend on this one begin.
    DependencyTrigger,
    /// An access by which blocks signal each other.
    Flag(FlagInst),
    /// An instruction on an mbarrier.
    Mbar(MbarInst),
    /// A bulk copy.
    Bulk(BulkInst),
    /// A warpgroup's asynchronous product.
    Wgmma(WgmmaInst),
    /// An instruction between the blocks of a cluster.
    Cluster(ClusterInst),
    /// Show a value in the simulator under a label; prints nothing on a GPU.
    Trace { label: u32, src: Reg },
}

/// What a fence orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceInst {
    /// Memory accesses before the fence with those after it, as threads of this scope see them.
    Memory(Scope),
    /// Accesses to shared memory before the fence with those of asynchronous copies and products
    /// (the async proxy) that come to know of it.
    ProxyAsync,
    /// Accesses to global memory, likewise.
    ProxyAsyncGlobal,
    /// Mbarriers that were made before become known to the cluster and to asynchronous copies.
    MbarrierInit,
}

/// What a store writes: registers, or the same immediate in each place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreSource {
    /// Contiguous registers from this one on.
    Regs(Reg),
    /// An immediate of the given type.
    Imm(ScalarType, u64),
}

impl StoreSource {
    /// Bytes of one of the stored values.
    pub fn bytes(&self) -> u32 {
        match self {
            StoreSource::Regs(reg) => reg.class.bytes(),
            StoreSource::Imm(ty, _) => ty.bytes(),
        }
    }
}
