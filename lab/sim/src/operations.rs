//! Kinds of arithmetic operations.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Un32 {
    Mov,
    NegI,
    AbsS,
    Not,
    NegF,
    AbsF,
    Ex2,
    Lg2,
    Rcp,
    Popc,
    Clz,
    NegHalves,
    AbsHalves,
    F32FromF16,
    F16FromF32,
    BF16FromF32,
    F16x2FromE4M3x2,
    F32FromU32,
    F32FromS32,
    S32FromF32,
    U32FromF32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bin32 {
    AddI,
    SubI,
    MulI,
    MulHiU,
    MulHiS,
    MinU,
    MaxU,
    MinS,
    MaxS,
    DivU,
    DivS,
    RemU,
    RemS,
    And,
    Or,
    Xor,
    Shl,
    ShrU,
    ShrS,
    AddF,
    SubF,
    MulF,
    MinF,
    MaxF,
    AddF16x2,
    SubF16x2,
    MulF16x2,
    MinF16x2,
    MaxF16x2,
    AddBF16x2,
    SubBF16x2,
    MulBF16x2,
    MinBF16x2,
    MaxBF16x2,
    PackF16,
    PackBF16,
    PackE4M3,
    Pack16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tri32 {
    FmaF,
    MadI,
    FmaF16x2,
    FmaBF16x2,
    Prmt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bin64 {
    Add,
    Sub,
    Mul,
    MulHiU,
    MulHiS,
    MinU,
    MaxU,
    MinS,
    MaxS,
    DivU,
    DivS,
    RemU,
    RemS,
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Un64 {
    Mov,
    Neg,
    AbsS,
    Not,
}

/// How a comparison interprets bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Unsigned,
    Signed,
    Float,
}

/// Logical operations on predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PredOp {
    And,
    Or,
    Xor,
}
