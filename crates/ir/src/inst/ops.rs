//! The choices within instructions: operations, comparisons, conversions, spaces, scopes.

use super::Operand;
use crate::shared::BufferId;

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
    /// A pair of e4m3 to a pair of f16, exact.
    F16x2FromE4M3x2,
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
    /// Warps that an SM can hold: a number that compilers do not know.
    MaxWarps,
    /// Rank of this block in its cluster.
    ClusterRank,
    /// Blocks of the cluster.
    ClusterBlocks,
}

/// An address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Device memory.
    Global,
    /// The block's shared memory.
    Shared,
    /// The shared memory of any block of the cluster, at addresses that carry its rank (`mapa`).
    Cluster,
}

/// What a memory access is meant to touch, so that a stray one is found even where it lands in
/// other valid memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// The buffer behind kernel parameter number `.0`, or the tensor map that it is.
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
    /// The cluster.
    Cluster,
    /// The device.
    Device,
}

/// A read-modify-write in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomOp {
    /// Sum. Of f32 in global memory, subnormal inputs and results are flushed to zero; in shared
    /// memory they are not (PTX ISA, `atom`).
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
