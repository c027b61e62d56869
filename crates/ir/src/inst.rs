//! The instructions: machine instructions, grouped by shape.
//!
//! An instruction is four things: its builder method (`ops`, `memory`, `sync`, `fragment`), its PTX
//! spelling ([`crate::ptx`]), what it requires of a target ([`Inst::requires`]), and its meaning in
//! the simulator. Each is an exhaustive `match`, so a new variant does not compile until all four
//! are written.

use crate::shared::BufferId;
use crate::target::Requirement;
use crate::types::{Reg, ScalarType};

/// A register or an immediate. How the bits are read is the instruction's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// Constant bits, zero-extended.
    Imm(u64),
}

/// Two-operand arithmetic and logic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinOp {
    /// Sum; f32 rounds to nearest even and is never contracted.
    Add,
    /// Difference.
    Sub,
    /// Product; integers keep the low half.
    Mul,
    /// High half of an integer product.
    MulHi,
    /// Full 64-bit product of two 32-bit integers; the type is that of the factors.
    MulWide,
    /// Smaller; of a number and NaN, the number.
    Min,
    /// Larger; of a number and NaN, the number.
    Max,
    /// Integer quotient, rounded toward zero.
    Div,
    /// Integer remainder.
    Rem,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Left shift; amounts past the width give zero.
    Shl,
    /// Right shift, arithmetic for signed types; amounts are clamped to the width.
    Shr,
}

/// One-operand arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnOp {
    /// Negation.
    Neg,
    /// Absolute value.
    Abs,
    /// Bitwise complement.
    Not,
    /// 2^x, `ex2.approx.ftz.f32`: at most 2 ulp off (PTX ISA, `ex2`).
    Ex2,
    /// log2(x), `lg2.approx.ftz.f32` (PTX ISA, `lg2`).
    Lg2,
    /// 1/x, `rcp.approx.ftz.f32`: at most 1 ulp off (PTX ISA, `rcp`).
    Rcp,
    /// Number of set bits.
    Popc,
    /// Number of leading zeros.
    Clz,
}

/// A conversion from one type to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cvt {
    /// f16 to f32, exact.
    F32FromF16,
    /// f32 to f16, nearest even.
    F16FromF32,
    /// f32 to bf16, nearest even.
    BF16FromF32,
    /// u32 to f32, nearest even.
    F32FromU32,
    /// i32 to f32, nearest even.
    F32FromS32,
    /// f32 to i32, toward zero, saturating; NaN gives 0.
    S32FromF32,
    /// f32 to u32, toward zero, saturating; NaN gives 0.
    U32FromF32,
    /// Zero extension.
    U64FromU32,
    /// Sign extension.
    S64FromS32,
    /// Low half.
    U32FromU64,
}

/// An ordering or equality test; on floats, false where an operand is NaN, except `Ne`, which is
/// then true (`setp.neu`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cmp {
    /// Equal.
    Eq,
    /// Not equal (true on NaN).
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

/// A read-only special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// Thread index in the block, along a dimension 0..3.
    Tid(u8),
    /// Block size along a dimension.
    Ntid(u8),
    /// Block index in the grid, along a dimension.
    Ctaid(u8),
    /// Grid size along a dimension.
    Nctaid(u8),
    /// Lane in the warp, 0..32.
    LaneId,
}

/// An address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Device memory.
    Global,
    /// The block's shared memory.
    Shared,
}

/// What a memory access is meant to touch, so that a stray one is found even where it lands in
/// other valid memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// The buffer behind kernel parameter number `.0`.
    Param(u32),
    /// A shared buffer of the ledger.
    Shared(BufferId),
}

/// Cache behaviour of a global access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cache {
    /// The default.
    #[default]
    Default,
    /// Loads: read-only path (`.nc`); only for memory that no thread writes during the kernel.
    ReadOnly,
    /// Cache in L2 only (`.cg`).
    L2,
    /// Likely not used again (`.cs`).
    Streaming,
}

/// A memory operand: `[base + offset]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Where: a 64-bit global or 32-bit shared address.
    pub base: Operand,
    /// Added to the base, in bytes.
    pub offset: i32,
    /// The object it is meant to be in.
    pub object: Object,
}

/// How `shfl.sync` picks the source lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShflMode {
    /// `lane ^ operand`.
    Bfly,
    /// `lane + operand`, own value past the end.
    Down,
    /// `lane - operand`, own value before the start.
    Up,
    /// `operand`.
    Idx,
}

/// What `vote.sync` computes over the warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VoteMode {
    /// True where every lane's predicate is.
    All,
    /// True where any lane's predicate is.
    Any,
    /// One bit a lane.
    Ballot,
}

/// Scope of a memory fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The block.
    Block,
    /// The device.
    Device,
}

/// A read-modify-write in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomOp {
    /// Sum.
    Add,
    /// Maximum.
    Max,
    /// Minimum.
    Min,
    /// Store, returning what was there.
    Exch,
}

/// Input type of a tensor-core product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MmaInput {
    /// fp16.
    F16,
    /// bf16.
    BF16,
}

/// Accumulator type of a tensor-core product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MmaAcc {
    /// f32: four registers a lane.
    F32,
    /// fp16 pairs: two registers a lane. Twice the rate on consumer cards, and its error shows.
    F16,
}

/// A machine instruction. Fields are named as in the PTX ISA: `dst`/`d` is written, the others are read.
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
    /// Two f32 rounded to a packed pair; `ty` is `F16x2` or `BF16x2`.
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
    /// Start an asynchronous copy of `bytes` from global to shared memory. With `src_bytes`, only so
    /// many are read and the rest is zero-filled.
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
    /// Load `count` (1, 2 or 4) 8×8 matrices of 16-bit elements; lane `8·i + r` addresses row `r` of matrix `i`.
    LdMatrix {
        dst: Reg,
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
    /// Wait at barrier `id` until `threads` threads (all where `None`) have come.
    BarSync { id: u32, threads: Option<u32> },
    /// Come to barrier `id` without waiting.
    BarArrive { id: u32, threads: u32 },
    /// Wait for the named lanes of the warp, and order their memory accesses.
    BarWarp { members: u32 },
    /// Order this thread's memory accesses before the fence with those after it.
    Fence { scope: Scope },
    /// Read-modify-write; `dst` receives the old value where asked for (`atom`), otherwise `red`.
    Atom {
        op: AtomOp,
        ty: ScalarType,
        space: Space,
        dst: Option<Reg>,
        addr: Address,
        value: Operand,
    },
    /// Show a value in the simulator under a label; prints nothing on a GPU.
    Trace { label: u32, src: Reg },
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

impl Inst {
    /// Calls `reads` for every register the instruction reads and `writes` for every one it writes.
    /// Runs of registers are given as `(first, count)`.
    pub fn visit_regs(&self, mut reads: impl FnMut(Reg, u32), mut writes: impl FnMut(Reg, u32)) {
        let mut read = |operand: &Operand| {
            if let Operand::Reg(reg) = operand {
                reads(*reg, 1);
            }
        };
        match self {
            Inst::Mov { dst, src } | Inst::Cvt { dst, src, .. } => {
                read(src);
                writes(*dst, 1);
            }
            Inst::Un { dst, a, .. } => {
                read(a);
                writes(*dst, 1);
            }
            Inst::Bin { dst, a, b, .. } | Inst::Setp { dst, a, b, .. } => {
                read(a);
                read(b);
                writes(*dst, 1);
            }
            Inst::CvtPack { dst, lo, hi, .. } | Inst::Pack { dst, lo, hi } => {
                read(lo);
                read(hi);
                writes(*dst, 1);
            }
            Inst::Fma { dst, a, b, c, .. } | Inst::MadWide { dst, a, b, c, .. } | Inst::Lop3 { dst, a, b, c, .. } => {
                read(a);
                read(b);
                read(c);
                writes(*dst, 1);
            }
            Inst::Prmt { dst, a, b, selector } => {
                read(a);
                read(b);
                read(selector);
                writes(*dst, 1);
            }
            Inst::Unpack { lo, hi, src } => {
                read(src);
                writes(*lo, 1);
                writes(*hi, 1);
            }
            Inst::Selp { dst, cond, a, b, .. } => {
                read(a);
                read(b);
                reads(*cond, 1);
                writes(*dst, 1);
            }
            Inst::Special { dst, .. } | Inst::Param { dst, .. } | Inst::SharedBase { dst } => writes(*dst, 1),
            Inst::Ld { dst, count, addr, .. } | Inst::LdMatrix { dst, count, addr, .. } => {
                read(&addr.base);
                writes(*dst, *count);
            }
            Inst::St { src, count, addr, .. } => {
                read(&addr.base);
                if let StoreSource::Regs(reg) = src {
                    reads(*reg, *count);
                }
            }
            Inst::CpAsync {
                dst, src, src_bytes, ..
            } => {
                read(&dst.base);
                read(&src.base);
                if let Some(bytes) = src_bytes {
                    read(bytes);
                }
            }
            Inst::Mma { acc, d, a, b, c, .. } => {
                let registers = match acc {
                    MmaAcc::F32 => 4,
                    MmaAcc::F16 => 2,
                };
                reads(*a, 4);
                reads(*b, 2);
                reads(*c, registers);
                writes(*d, registers);
            }
            Inst::Shfl { dst, src, lane, .. } => {
                read(src);
                read(lane);
                writes(*dst, 1);
            }
            Inst::Vote { dst, pred, .. } => {
                reads(*pred, 1);
                writes(*dst, 1);
            }
            Inst::Redux { dst, src, .. } => {
                read(src);
                writes(*dst, 1);
            }
            Inst::Atom { dst, addr, value, .. } => {
                read(&addr.base);
                read(value);
                if let Some(dst) = dst {
                    writes(*dst, 1);
                }
            }
            Inst::Trace { src, .. } => reads(*src, 1),
            Inst::CpAsyncCommit
            | Inst::CpAsyncWait { .. }
            | Inst::BarSync { .. }
            | Inst::BarArrive { .. }
            | Inst::BarWarp { .. }
            | Inst::Fence { .. } => {}
        }
    }

    /// Whether every lane of the warp must execute it together (`.aligned` in PTX): such an
    /// instruction under a divergent condition does not build.
    pub fn is_aligned(&self) -> bool {
        matches!(
            self,
            Inst::Mma { .. } | Inst::LdMatrix { .. } | Inst::BarSync { .. } | Inst::BarArrive { .. }
        )
    }

    /// The lowest PTX version and architecture that have the instruction.
    pub fn requires(&self) -> Requirement {
        use ScalarType::{BF16x2, F16x2};
        match self {
            // Everything else that is here has been in PTX since sm_80's first version.
            Inst::Bin {
                ty: BF16x2,
                op: BinOp::Add | BinOp::Sub | BinOp::Mul,
                ..
            } => Requirement::new((7, 8), 90),
            Inst::Bin { ty: F16x2 | BF16x2, .. }
            | Inst::Un { ty: F16x2 | BF16x2, .. }
            | Inst::Fma { ty: F16x2 | BF16x2, .. }
            | Inst::Mov { .. }
            | Inst::Bin { .. }
            | Inst::Un { .. }
            | Inst::Fma { .. }
            | Inst::MadWide { .. }
            | Inst::Cvt { .. }
            | Inst::CvtPack { .. }
            | Inst::Pack { .. }
            | Inst::Unpack { .. }
            | Inst::Lop3 { .. }
            | Inst::Prmt { .. }
            | Inst::Setp { .. }
            | Inst::Selp { .. }
            | Inst::Special { .. }
            | Inst::Param { .. }
            | Inst::SharedBase { .. }
            | Inst::Ld { .. }
            | Inst::St { .. }
            | Inst::CpAsync { .. }
            | Inst::CpAsyncCommit
            | Inst::CpAsyncWait { .. }
            | Inst::LdMatrix { .. }
            | Inst::Mma { .. }
            | Inst::Shfl { .. }
            | Inst::Vote { .. }
            | Inst::Redux { .. }
            | Inst::BarSync { .. }
            | Inst::BarArrive { .. }
            | Inst::BarWarp { .. }
            | Inst::Fence { .. }
            | Inst::Atom { .. }
            | Inst::Trace { .. } => Requirement::BASE,
        }
    }
}
