//! The choices within instructions: operations, comparisons, conversions, spaces, scopes.

use super::Operand;
use crate::named::named;
use crate::shared::BufferId;
use crate::types::{RegClass, ScalarType};

named! {
    /// Two-operand arithmetic and logic.
    BinOp {
        /// Sum; f32 rounds to nearest even and is never contracted.
        Add = "add",
        /// Difference.
        Sub = "sub",
        /// Product; integers keep the low half.
        Mul = "mul",
        /// High half of an integer product.
        MulHi = "mul.hi",
        /// Full 64-bit product of two 32-bit integers; the type is that of the factors.
        MulWide = "mul.wide",
        /// Smaller; of a number and NaN, the number.
        Min = "min",
        /// Larger; of a number and NaN, the number.
        Max = "max",
        /// Integer quotient, rounded toward zero.
        Div = "div",
        /// Integer remainder.
        Rem = "rem",
        /// Bitwise and.
        And = "and",
        /// Bitwise or.
        Or = "or",
        /// Bitwise exclusive or.
        Xor = "xor",
        /// Left shift; amounts past the width give zero.
        Shl = "shl",
        /// Right shift, arithmetic for signed types; amounts are clamped to the width.
        Shr = "shr",
    }
}

named! {
    /// One-operand arithmetic.
    UnOp {
        /// Negation.
        Neg = "neg",
        /// Absolute value.
        Abs = "abs",
        /// Bitwise complement.
        Not = "not",
        /// 2^x, `ex2.approx.ftz.f32`: at most 2 ulp off (PTX ISA, `ex2`).
        Ex2 = "ex2.approx.ftz",
        /// log2(x), `lg2.approx.ftz.f32` (PTX ISA, `lg2`).
        Lg2 = "lg2.approx.ftz",
        /// 1/x, `rcp.approx.ftz.f32`: at most 1 ulp off (PTX ISA, `rcp`).
        Rcp = "rcp.approx.ftz",
        /// Number of set bits.
        Popc = "popc",
        /// Number of leading zeros.
        Clz = "clz",
    }
}

named! {
    /// A conversion from one type to another.
    Cvt {
        /// f16 to f32, exact.
        F32FromF16 = "f32.f16",
        /// f32 to f16, nearest even.
        F16FromF32 = "rn.f16.f32",
        /// f32 to bf16, nearest even.
        BF16FromF32 = "rn.bf16.f32",
        /// u32 to f32, nearest even.
        F32FromU32 = "rn.f32.u32",
        /// i32 to f32, nearest even.
        F32FromS32 = "rn.f32.s32",
        /// f32 to i32, toward zero, saturating; NaN gives 0.
        S32FromF32 = "rzi.s32.f32",
        /// f32 to u32, toward zero, saturating; NaN gives 0.
        U32FromF32 = "rzi.u32.f32",
        /// Zero extension.
        U64FromU32 = "u64.u32",
        /// Sign extension.
        S64FromS32 = "s64.s32",
        /// Low half.
        U32FromU64 = "u32.u64",
        /// A pair of e4m3 to a pair of f16, exact.
        F16x2FromE4M3x2 = "rn.f16x2.e4m3x2",
    }
}

named! {
    /// An ordering or equality test; on floats, false where an operand is NaN, except `Ne`, which
    /// is then true (`setp.neu`).
    Cmp {
        /// Equal.
        Eq = "eq",
        /// Not equal (true on NaN).
        Ne = "ne",
        /// Less.
        Lt = "lt",
        /// Less or equal.
        Le = "le",
        /// Greater.
        Gt = "gt",
        /// Greater or equal.
        Ge = "ge",
    }
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

impl Cvt {
    /// The type that it converts from.
    pub const fn source(self) -> ScalarType {
        match self {
            Cvt::F32FromF16 => ScalarType::F16,
            Cvt::F16FromF32 | Cvt::BF16FromF32 | Cvt::S32FromF32 | Cvt::U32FromF32 => ScalarType::F32,
            Cvt::F32FromU32 | Cvt::U64FromU32 => ScalarType::U32,
            Cvt::F32FromS32 | Cvt::S64FromS32 => ScalarType::S32,
            Cvt::U32FromU64 => ScalarType::U64,
            Cvt::F16x2FromE4M3x2 => ScalarType::E4M3x2,
        }
    }

    /// The class of the register that it writes.
    pub const fn class(self) -> RegClass {
        match self {
            Cvt::F32FromF16 | Cvt::F32FromU32 | Cvt::F32FromS32 => RegClass::F32,
            Cvt::F16FromF32 | Cvt::BF16FromF32 => RegClass::B16,
            Cvt::S32FromF32 | Cvt::U32FromF32 | Cvt::U32FromU64 | Cvt::F16x2FromE4M3x2 => RegClass::B32,
            Cvt::U64FromU32 | Cvt::S64FromS32 => RegClass::B64,
        }
    }
}

impl Special {
    /// Every special register.
    pub fn all() -> impl Iterator<Item = Special> {
        use Special::*;
        let by_dim = (0..3).flat_map(|dim| [Tid(dim), Ntid(dim), Ctaid(dim), Nctaid(dim)]);
        by_dim.chain([LaneId, MaxWarps, ClusterRank, ClusterBlocks])
    }

    /// Its name in PTX.
    pub fn ptx(self) -> String {
        let along = |name: &str, dim: u8| format!("%{name}.{}", ["x", "y", "z"][usize::from(dim.min(2))]);
        match self {
            Special::Tid(dim) => along("tid", dim),
            Special::Ntid(dim) => along("ntid", dim),
            Special::Ctaid(dim) => along("ctaid", dim),
            Special::Nctaid(dim) => along("nctaid", dim),
            Special::LaneId => "%laneid".to_string(),
            Special::MaxWarps => "%nwarpid".to_string(),
            Special::ClusterRank => "%cluster_ctarank".to_string(),
            Special::ClusterBlocks => "%cluster_nctarank".to_string(),
        }
    }
}

named! {
    /// An address space.
    Space {
        /// Device memory.
        Global = "global",
        /// The block's shared memory.
        Shared = "shared",
        /// The shared memory of any block of the cluster, at addresses that `mapa` makes.
        Cluster = "shared::cluster",
    }
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

named! {
    /// Cache behaviour of a global access.
    #[derive(Default)]
    Cache {
        /// The default.
        #[default]
        Default = "",
        /// Loads: read-only path (`.nc`); only for memory that no thread writes during the kernel.
        ReadOnly = ".nc",
        /// Cache in L2 only (`.cg`).
        L2 = ".cg",
        /// Likely not used again (`.cs`).
        Streaming = ".cs",
    }
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

named! {
    /// How `shfl.sync` picks the source lane.
    ShflMode {
        /// `lane ^ operand`.
        Bfly = "bfly",
        /// `lane + operand`, own value past the end.
        Down = "down",
        /// `lane - operand`, own value before the start.
        Up = "up",
        /// `operand`.
        Idx = "idx",
    }
}

named! {
    /// What `vote.sync` computes over the warp.
    VoteMode {
        /// True where every lane's predicate is.
        All = "all.pred",
        /// True where any lane's predicate is.
        Any = "any.pred",
        /// One bit a lane.
        Ballot = "ballot.b32",
    }
}

named! {
    /// Scope of a memory fence.
    Scope {
        /// The block.
        Block = "cta",
        /// The cluster.
        Cluster = "cluster",
        /// The device.
        Device = "gpu",
    }
}

named! {
    /// A read-modify-write in memory.
    AtomOp {
        /// Sum. Of f32 in global memory, subnormal inputs and results are flushed to zero; in
        /// shared memory they are not (PTX ISA, `atom`).
        Add = "add",
        /// Maximum.
        Max = "max",
        /// Minimum.
        Min = "min",
        /// Store, returning what was there.
        Exch = "exch",
    }
}

named! {
    /// Input type of a tensor-core product.
    MmaInput {
        /// fp16.
        F16 = "f16",
        /// bf16.
        BF16 = "bf16",
    }
}

named! {
    /// Accumulator type of a tensor-core product.
    MmaAcc {
        /// f32: four registers a lane.
        F32 = "f32",
        /// fp16 pairs: two registers a lane. Twice the rate on consumer cards, and its error shows.
        F16 = "f16",
    }
}
