//! Element types and register classes.
//!
//! The type of a value is a Rust type (`Val<'k, f32>`), so mixing them up is a compile error; what
//! the instruction stream carries is the [`ScalarType`] it stands for.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::named::named;

named! {
    /// The kind of register a value lives in, as PTX declares them.
    #[derive(PartialOrd, Ord)]
    RegClass {
        /// One bit a lane.
        Pred = "pred",
        /// 16 bits.
        B16 = "b16",
        /// 32 bits, untyped: integers and packed pairs of halves.
        B32 = "b32",
        /// 64 bits: addresses and wide integers.
        B64 = "b64",
        /// 32-bit floating point.
        F32 = "f32",
    }
}

impl RegClass {
    /// Bytes a lane (a predicate counts as one).
    pub const fn bytes(self) -> u32 {
        match self {
            RegClass::Pred => 1,
            RegClass::B16 => 2,
            RegClass::B32 | RegClass::F32 => 4,
            RegClass::B64 => 8,
        }
    }

    /// The prefix of its registers' names.
    pub const fn prefix(self) -> &'static str {
        match self {
            RegClass::Pred => "p",
            RegClass::B16 => "h",
            RegClass::B32 => "r",
            RegClass::B64 => "rd",
            RegClass::F32 => "f",
        }
    }

    /// The type of its bits.
    pub const fn scalar(self) -> ScalarType {
        match self {
            RegClass::Pred => ScalarType::Pred,
            RegClass::B16 => ScalarType::B16,
            RegClass::B32 => ScalarType::B32,
            RegClass::B64 => ScalarType::B64,
            RegClass::F32 => ScalarType::F32,
        }
    }
}

/// A virtual register: one value a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reg {
    /// Which register file.
    pub class: RegClass,
    /// Number within the class.
    pub index: u32,
}

impl Reg {
    /// The register `n` places further on: fragments and vector loads are contiguous registers.
    pub const fn plus(self, n: u32) -> Reg {
        Reg {
            class: self.class,
            index: self.index + n,
        }
    }
}

named! {
    /// How an instruction reads the bits of its operands.
    #[derive(Serialize, Deserialize)]
    ScalarType {
        /// A predicate.
        Pred = "pred",
        /// 16 untyped bits.
        B16 = "b16",
        /// 32 untyped bits.
        B32 = "b32",
        /// 64 untyped bits.
        B64 = "b64",
        /// Unsigned 32-bit integer.
        U32 = "u32",
        /// Signed 32-bit integer.
        S32 = "s32",
        /// Unsigned 64-bit integer.
        U64 = "u64",
        /// Signed 64-bit integer.
        S64 = "s64",
        /// IEEE binary32.
        F32 = "f32",
        /// IEEE binary16.
        F16 = "f16",
        /// bfloat16.
        BF16 = "bf16",
        /// Two IEEE binary16, the first in the low half.
        F16x2 = "f16x2",
        /// Two bfloat16, the first in the low half.
        BF16x2 = "bf16x2",
        /// 8-bit floating point, 4 bits of exponent and 3 of mantissa, no infinities. Lives in
        /// memory only.
        E4M3 = "e4m3",
        /// Two e4m3, the first in the low byte.
        E4M3x2 = "e4m3x2",
        /// Four e4m3, the first in the lowest byte.
        E4M3x4 = "e4m3x4",
    }
}

impl ScalarType {
    /// The register class that holds such a value.
    pub const fn class(self) -> RegClass {
        match self {
            ScalarType::Pred => RegClass::Pred,
            ScalarType::B16 | ScalarType::F16 | ScalarType::BF16 | ScalarType::E4M3 | ScalarType::E4M3x2 => {
                RegClass::B16
            }
            ScalarType::B32
            | ScalarType::U32
            | ScalarType::S32
            | ScalarType::F16x2
            | ScalarType::BF16x2
            | ScalarType::E4M3x4 => RegClass::B32,
            ScalarType::B64 | ScalarType::U64 | ScalarType::S64 => RegClass::B64,
            ScalarType::F32 => RegClass::F32,
        }
    }

    /// Bytes of one in memory.
    pub const fn bytes(self) -> u32 {
        match self {
            ScalarType::E4M3 => 1,
            _ => self.class().bytes(),
        }
    }

    /// Whether it is a 16-bit float or a pair of them.
    pub const fn is_half(self) -> bool {
        matches!(
            self,
            ScalarType::F16 | ScalarType::BF16 | ScalarType::F16x2 | ScalarType::BF16x2
        )
    }

    /// The type of a PTX suffix without its dot.
    pub fn from_ptx(name: &str) -> Option<ScalarType> {
        ScalarType::ALL.into_iter().find(|ty| ty.ptx() == name)
    }
}

/// A Rust type that a kernel value can have.
pub trait Scalar: Copy + 'static {
    /// What instructions call it.
    const TYPE: ScalarType;
}

/// A scalar that a variable can hold: every one but `bool`.
///
/// A condition is a value. ptxas (12.0 to 13.5) takes a predicate register that is assigned to in a
/// branch for having the new value in selections before that branch, or for being true inside it
/// (`docs/hardware-notes.md`); what must be remembered across branches is a number.
///
/// ```compile_fail
/// # use flashcore_ir::Kernel;
/// Kernel::build("flag", 32, |k| {
///     let seen = k.var(k.lane().eq(0));
/// });
/// ```
pub trait Assignable: Scalar {}

/// A scalar with Rust literals: what can be written as an immediate operand.
pub trait Literal: Scalar {
    /// The value's bits, zero-extended.
    fn bits(self) -> u64;
}

/// Two f16 in one 32-bit register, the first in the low half.
#[derive(Clone, Copy, Debug)]
pub struct F16x2;

/// Two bf16 in one 32-bit register, the first in the low half.
#[derive(Clone, Copy, Debug)]
pub struct BF16x2;

/// 8-bit floating point with 4 bits of exponent and 3 of mantissa. Tiles and tensor maps hold it;
/// loads and stores move it in words of four.
#[derive(Clone, Copy, Debug)]
pub struct E4M3;

/// Two e4m3 in one 16-bit register, the first in the low byte.
#[derive(Clone, Copy, Debug)]
pub struct E4M3x2;

/// Four e4m3 in one 32-bit register, the first in the lowest byte.
#[derive(Clone, Copy, Debug)]
pub struct E4M3x4;

macro_rules! scalars {
    ($($rust:ty => $ty:ident;)*) => {$(
        impl Scalar for $rust { const TYPE: ScalarType = ScalarType::$ty; }
    )*};
}
scalars! {
    bool => Pred; u16 => B16; u32 => U32; i32 => S32; u64 => U64; i64 => S64; f32 => F32;
    f16 => F16; bf16 => BF16; F16x2 => F16x2; BF16x2 => BF16x2;
    E4M3 => E4M3; E4M3x2 => E4M3x2; E4M3x4 => E4M3x4;
}

macro_rules! literals {
    ($($rust:ty: |$v:ident| $bits:expr;)*) => {$(
        impl Literal for $rust { fn bits(self) -> u64 { let $v = self; $bits } }
    )*};
}
literals! {
    u16: |v| u64::from(v);
    u32: |v| u64::from(v);
    i32: |v| u64::from(v as u32);
    u64: |v| v;
    i64: |v| v as u64;
    f32: |v| u64::from(v.to_bits());
}

/// Scalars that add, subtract and multiply.
pub trait Numeric: Assignable {}
/// Numbers with a sign.
pub trait Signed: Numeric {}
/// 32- and 64-bit integers.
pub trait Integer: Numeric + Literal + PartialOrd + Default {}
/// Integers and f32: what `setp` compares.
pub trait Ordered: Scalar {}
/// Scalars with bitwise operations.
pub trait Bits: Scalar {}

macro_rules! mark {
    ($tr:ident: $($rust:ty)*) => {$( impl $tr for $rust {} )*};
}
mark!(Assignable: u16 u32 i32 u64 i64 f32 f16 bf16 F16x2 BF16x2 E4M3 E4M3x2 E4M3x4);
mark!(Numeric: u32 i32 u64 i64 f32 F16x2 BF16x2);
mark!(Integer: u32 i32 u64 i64);
mark!(Signed: i32 i64 f32 F16x2 BF16x2);
mark!(Ordered: u32 i32 u64 i64 f32);
mark!(Bits: u32 i32 u64 i64 bool);

/// A type that buffers hold: the element types of tensors, and 32-bit integers for tables and
/// counters.
pub trait Element: Scalar {
    /// The 32-bit register type that memory words of this element are loaded into.
    type Word: Assignable;
    /// Bytes an element takes in memory.
    const BYTES: u32;
    /// Elements in a 32-bit word.
    const PER_WORD: u32 = 4 / Self::BYTES;
    /// Short name for kernel names and config ids.
    const NAME: &'static str;
}

macro_rules! elements {
    ($($rust:ty: $word:ty, $bytes:literal, $name:literal;)*) => {$(
        impl Element for $rust {
            type Word = $word;
            const BYTES: u32 = $bytes;
            const NAME: &'static str = $name;
        }
    )*};
}
elements! {
    f32: f32, 4, "f32";
    u32: u32, 4, "u32";
    i32: i32, 4, "i32";
    f16: F16x2, 2, "fp16";
    bf16: BF16x2, 2, "bf16";
    E4M3: E4M3x4, 1, "e4m3";
}
