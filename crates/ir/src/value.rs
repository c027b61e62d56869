//! Values, variables and pointers of a kernel being written.

use std::marker::PhantomData;
use std::ops;

use crate::builder::KernelBuilder;
use crate::inst::{BinOp, Cmp, Cvt, Inst, Operand, UnOp};
use crate::types::{BF16x2, Bits, F16x2, Integer, Literal, Numeric, Ordered, Reg, RegClass, Scalar, ScalarType};

/// A value: computed once, never assigned again.
#[derive(Debug)]
pub struct Val<'k, T> {
    k: &'k KernelBuilder,
    operand: Operand,
    of: PhantomData<T>,
}

impl<T> Clone for Val<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Val<'_, T> {}

/// A variable: assigned as often as needed; what a loop carries from one round to the next.
#[derive(Debug)]
pub struct Var<'k, T> {
    k: &'k KernelBuilder,
    reg: Reg,
    of: PhantomData<T>,
}

impl<T> Clone for Var<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Var<'_, T> {}

/// What can stand as an operand of type `T`: a value, a variable, or a literal.
pub trait Source<'k, T: Scalar> {
    /// The register or immediate that an instruction reads.
    fn operand(self) -> Operand;
}

impl<'k, T: Scalar> Source<'k, T> for Val<'k, T> {
    fn operand(self) -> Operand {
        self.operand
    }
}
impl<'k, T: Scalar> Source<'k, T> for Var<'k, T> {
    fn operand(self) -> Operand {
        Operand::Reg(self.reg)
    }
}
macro_rules! literal_sources {
    ($($ty:ty)*) => {$(
        impl<'k> Source<'k, $ty> for $ty {
            fn operand(self) -> Operand {
                Operand::Imm(self.bits())
            }
        }
    )*};
}
literal_sources!(u32 i32 u64 i64 f32);

impl<'k, T: Scalar> Val<'k, T> {
    pub(crate) fn from_reg(k: &'k KernelBuilder, reg: Reg) -> Self {
        Val::from_operand(k, Operand::Reg(reg))
    }

    pub(crate) fn from_operand(k: &'k KernelBuilder, operand: Operand) -> Self {
        Val {
            k,
            operand,
            of: PhantomData,
        }
    }

    /// The builder it belongs to.
    pub fn builder(self) -> &'k KernelBuilder {
        self.k
    }

    /// The same bits read as another type of the same size.
    ///
    /// Where both types live in one register class it costs nothing; otherwise one `mov`.
    #[track_caller]
    pub fn reinterpret<U: Scalar>(self) -> Val<'k, U> {
        const {
            assert!(
                T::TYPE.bytes() == U::TYPE.bytes(),
                "reinterpret needs types of one size"
            )
        };
        match self.operand {
            Operand::Reg(reg) if reg.class != U::TYPE.class() => {
                let dst = self.k.reg(U::TYPE.class());
                self.k.emit(Inst::Mov { dst, src: self.operand });
                Val::from_reg(self.k, dst)
            }
            operand => Val::from_operand(self.k, operand),
        }
    }
}

impl<'k, T: Scalar> Var<'k, T> {
    pub(crate) fn from_reg(k: &'k KernelBuilder, reg: Reg) -> Self {
        Var {
            k,
            reg,
            of: PhantomData,
        }
    }

    /// Its value now; later assignments do not change what was read.
    #[track_caller]
    pub fn get(self) -> Val<'k, T> {
        let dst = self.k.reg(T::TYPE.class());
        self.k.emit(Inst::Mov {
            dst,
            src: Operand::Reg(self.reg),
        });
        Val::from_reg(self.k, dst)
    }

    /// Assigns.
    #[track_caller]
    pub fn set(self, value: impl Source<'k, T>) {
        self.k.emit(Inst::Mov {
            dst: self.reg,
            src: value.operand(),
        });
    }

    #[track_caller]
    fn assign(self, op: BinOp, value: impl Source<'k, T>) {
        self.k.emit(Inst::Bin {
            op,
            ty: T::TYPE,
            dst: self.reg,
            a: Operand::Reg(self.reg),
            b: value.operand(),
        });
    }
}

impl<'k, T: Numeric> Var<'k, T> {
    /// `self = self + value`.
    #[track_caller]
    pub fn add_assign(self, value: impl Source<'k, T>) {
        self.assign(BinOp::Add, value);
    }
    /// `self = self · value`.
    #[track_caller]
    pub fn mul_assign(self, value: impl Source<'k, T>) {
        self.assign(BinOp::Mul, value);
    }
    /// `self = max(self, value)`.
    #[track_caller]
    pub fn max_assign(self, value: impl Source<'k, T>) {
        self.assign(BinOp::Max, value);
    }
    /// `self = a · b + self`, rounded once.
    #[track_caller]
    pub fn fma_assign(self, a: impl Source<'k, T>, b: impl Source<'k, T>) {
        self.k.emit(Inst::Fma {
            ty: T::TYPE,
            dst: self.reg,
            a: a.operand(),
            b: b.operand(),
            c: Operand::Reg(self.reg),
        });
    }
}

#[track_caller]
fn binary<'k, T: Scalar>(k: &'k KernelBuilder, op: BinOp, a: Operand, b: Operand) -> Val<'k, T> {
    let dst = k.reg(T::TYPE.class());
    k.emit(Inst::Bin {
        op,
        ty: T::TYPE,
        dst,
        a,
        b,
    });
    Val::from_reg(k, dst)
}

#[track_caller]
fn unary<'k, T: Scalar>(v: Val<'k, T>, op: UnOp) -> Val<'k, T> {
    let dst = v.k.reg(T::TYPE.class());
    v.k.emit(Inst::Un {
        op,
        ty: T::TYPE,
        dst,
        a: v.operand,
    });
    Val::from_reg(v.k, dst)
}

macro_rules! operators {
    ($($tr:ident $method:ident $op:ident $bound:ident;)*) => {$(
        impl<'k, T: $bound, R: Source<'k, T>> ops::$tr<R> for Val<'k, T> {
            type Output = Val<'k, T>;
            #[track_caller]
            fn $method(self, rhs: R) -> Val<'k, T> {
                binary(self.k, BinOp::$op, self.operand, rhs.operand())
            }
        }
        impl<'k, T: $bound, R: Source<'k, T>> ops::$tr<R> for Var<'k, T> {
            type Output = Val<'k, T>;
            #[track_caller]
            fn $method(self, rhs: R) -> Val<'k, T> {
                binary(self.k, BinOp::$op, Operand::Reg(self.reg), rhs.operand())
            }
        }
    )*};
}
operators! {
    Add add Add Numeric; Sub sub Sub Numeric; Mul mul Mul Numeric;
    Div div Div Integer; Rem rem Rem Integer;
    BitAnd bitand And Bits; BitOr bitor Or Bits; BitXor bitxor Xor Bits;
}

impl<'k> Source<'k, bool> for bool {
    fn operand(self) -> Operand {
        Operand::Imm(u64::from(self))
    }
}

macro_rules! shifts {
    ($($tr:ident $method:ident $op:ident;)*) => {$(
        impl<'k, T: Integer, R: Source<'k, u32>> ops::$tr<R> for Val<'k, T> {
            type Output = Val<'k, T>;
            #[track_caller]
            fn $method(self, rhs: R) -> Val<'k, T> {
                binary(self.k, BinOp::$op, self.operand, rhs.operand())
            }
        }
    )*};
}
shifts! { Shl shl Shl; Shr shr Shr; }

impl<'k, T: Numeric> ops::Neg for Val<'k, T> {
    type Output = Val<'k, T>;
    #[track_caller]
    fn neg(self) -> Val<'k, T> {
        unary(self, UnOp::Neg)
    }
}
impl<'k, T: Bits> ops::Not for Val<'k, T> {
    type Output = Val<'k, T>;
    #[track_caller]
    fn not(self) -> Val<'k, T> {
        unary(self, UnOp::Not)
    }
}

impl<'k, T: Numeric> Val<'k, T> {
    /// The smaller of the two; of a number and NaN, the number.
    #[track_caller]
    pub fn min(self, other: impl Source<'k, T>) -> Val<'k, T> {
        binary(self.k, BinOp::Min, self.operand, other.operand())
    }
    /// The larger of the two; of a number and NaN, the number.
    #[track_caller]
    pub fn max(self, other: impl Source<'k, T>) -> Val<'k, T> {
        binary(self.k, BinOp::Max, self.operand, other.operand())
    }
    /// Absolute value.
    #[track_caller]
    pub fn abs(self) -> Val<'k, T> {
        unary(self, UnOp::Abs)
    }
    /// `self · b + c`: floats round once, integers keep the low half.
    #[track_caller]
    pub fn fma(self, b: impl Source<'k, T>, c: impl Source<'k, T>) -> Val<'k, T> {
        let dst = self.k.reg(T::TYPE.class());
        self.k.emit(Inst::Fma {
            ty: T::TYPE,
            dst,
            a: self.operand,
            b: b.operand(),
            c: c.operand(),
        });
        Val::from_reg(self.k, dst)
    }
}

impl<'k, T: Ordered> Val<'k, T> {
    #[track_caller]
    fn compare(self, cmp: Cmp, other: impl Source<'k, T>) -> Val<'k, bool> {
        let dst = self.k.reg(RegClass::Pred);
        self.k.emit(Inst::Setp {
            cmp,
            ty: T::TYPE,
            dst,
            a: self.operand,
            b: other.operand(),
        });
        Val::from_reg(self.k, dst)
    }
    /// `self < other`.
    #[track_caller]
    pub fn lt(self, other: impl Source<'k, T>) -> Val<'k, bool> {
        self.compare(Cmp::Lt, other)
    }
    /// `self <= other`.
    #[track_caller]
    pub fn le(self, other: impl Source<'k, T>) -> Val<'k, bool> {
        self.compare(Cmp::Le, other)
    }
    /// `self > other`.
    #[track_caller]
    pub fn gt(self, other: impl Source<'k, T>) -> Val<'k, bool> {
        self.compare(Cmp::Gt, other)
    }
    /// `self >= other`.
    #[track_caller]
    pub fn ge(self, other: impl Source<'k, T>) -> Val<'k, bool> {
        self.compare(Cmp::Ge, other)
    }
    /// `self == other`.
    #[track_caller]
    pub fn eq(self, other: impl Source<'k, T>) -> Val<'k, bool> {
        self.compare(Cmp::Eq, other)
    }
    /// `self != other`; true where either is NaN.
    #[track_caller]
    pub fn ne(self, other: impl Source<'k, T>) -> Val<'k, bool> {
        self.compare(Cmp::Ne, other)
    }
}

impl<'k, T: Ordered> Var<'k, T> {
    #[track_caller]
    pub(crate) fn compare(self, cmp: Cmp, other: impl Source<'k, T>) -> Val<'k, bool> {
        Val::<T>::from_reg(self.k, self.reg).compare(cmp, other)
    }
}

impl<'k> Val<'k, bool> {
    /// `if self { a } else { b }`, a lane each.
    #[track_caller]
    pub fn select<T: Scalar>(self, a: impl Source<'k, T>, b: impl Source<'k, T>) -> Val<'k, T> {
        const {
            assert!(
                !matches!(T::TYPE, ScalarType::Pred),
                "PTX selects no predicates; use & and |"
            )
        };
        let cond = self.k.in_register(RegClass::Pred, self.operand);
        let dst = self.k.reg(T::TYPE.class());
        self.k.emit(Inst::Selp {
            ty: T::TYPE,
            dst,
            cond,
            a: a.operand(),
            b: b.operand(),
        });
        Val::from_reg(self.k, dst)
    }
}

impl<'k> Val<'k, f32> {
    /// 2^self (`ex2.approx.ftz`).
    #[track_caller]
    pub fn exp2(self) -> Val<'k, f32> {
        unary(self, UnOp::Ex2)
    }
    /// log2(self) (`lg2.approx.ftz`).
    #[track_caller]
    pub fn log2(self) -> Val<'k, f32> {
        unary(self, UnOp::Lg2)
    }
    /// 1/self (`rcp.approx.ftz`).
    #[track_caller]
    pub fn recip(self) -> Val<'k, f32> {
        unary(self, UnOp::Rcp)
    }
    /// This value and `hi` rounded to a pair of f16, this one in the low half.
    #[track_caller]
    pub fn pack_f16(self, hi: impl Source<'k, f32>) -> Val<'k, F16x2> {
        self.pack(ScalarType::F16x2, hi)
    }
    /// This value and `hi` rounded to a pair of bf16, this one in the low half.
    #[track_caller]
    pub fn pack_bf16(self, hi: impl Source<'k, f32>) -> Val<'k, BF16x2> {
        self.pack(ScalarType::BF16x2, hi)
    }
    #[track_caller]
    fn pack<U: Scalar>(self, ty: ScalarType, hi: impl Source<'k, f32>) -> Val<'k, U> {
        let dst = self.k.reg(RegClass::B32);
        self.k.emit(Inst::CvtPack {
            ty,
            dst,
            lo: self.operand,
            hi: hi.operand(),
        });
        Val::from_reg(self.k, dst)
    }
}

impl<'k> Val<'k, u32> {
    /// Number of set bits.
    #[track_caller]
    pub fn count_ones(self) -> Val<'k, u32> {
        unary(self, UnOp::Popc)
    }
    /// Number of leading zeros.
    #[track_caller]
    pub fn leading_zeros(self) -> Val<'k, u32> {
        unary(self, UnOp::Clz)
    }
    /// Any bitwise function of three values: bit `4·a + 2·b + c` of `table` is the result for bits a, b, c.
    #[track_caller]
    pub fn lop3(self, b: impl Source<'k, u32>, c: impl Source<'k, u32>, table: u8) -> Val<'k, u32> {
        let dst = self.k.reg(RegClass::B32);
        let (a, b, c) = (self.operand, b.operand(), c.operand());
        self.k.emit(Inst::Lop3 { dst, a, b, c, table });
        Val::from_reg(self.k, dst)
    }
    /// Four bytes picked from `self` (bytes 0–3) and `b` (bytes 4–7), a nibble of `selector` each.
    #[track_caller]
    pub fn prmt(self, b: impl Source<'k, u32>, selector: impl Source<'k, u32>) -> Val<'k, u32> {
        let dst = self.k.reg(RegClass::B32);
        let (a, b, selector) = (self.operand, b.operand(), selector.operand());
        self.k.emit(Inst::Prmt { dst, a, b, selector });
        Val::from_reg(self.k, dst)
    }
    /// The 64-bit product.
    #[track_caller]
    pub fn mul_wide(self, b: impl Source<'k, u32>) -> Val<'k, u64> {
        self.wide(ScalarType::U32, b)
    }
}

impl<'k> Val<'k, i32> {
    /// The 64-bit product.
    #[track_caller]
    pub fn mul_wide(self, b: impl Source<'k, i32>) -> Val<'k, i64> {
        self.wide(ScalarType::S32, b)
    }
}

impl<'k, T: Integer> Val<'k, T> {
    /// The high half of the product.
    #[track_caller]
    pub fn mul_hi(self, b: impl Source<'k, T>) -> Val<'k, T> {
        binary(self.k, BinOp::MulHi, self.operand, b.operand())
    }
    #[track_caller]
    fn wide<U: Scalar>(self, ty: ScalarType, b: impl Source<'k, T>) -> Val<'k, U> {
        let dst = self.k.reg(RegClass::B64);
        self.k.emit(Inst::Bin {
            op: BinOp::MulWide,
            ty,
            dst,
            a: self.operand,
            b: b.operand(),
        });
        Val::from_reg(self.k, dst)
    }
}

macro_rules! conversions {
    ($($from:ty: $method:ident -> $to:ty = $op:ident, $doc:literal;)*) => {$(
        impl<'k> Val<'k, $from> {
            #[doc = $doc]
            #[track_caller]
            pub fn $method(self) -> Val<'k, $to> {
                let dst = self.k.reg(<$to as Scalar>::TYPE.class());
                self.k.emit(Inst::Cvt { op: Cvt::$op, dst, src: self.operand });
                Val::from_reg(self.k, dst)
            }
        }
    )*};
}
conversions! {
    half::f16: to_f32 -> f32 = F32FromF16, "Exact.";
    f32: to_f16 -> half::f16 = F16FromF32, "Rounded to nearest even.";
    f32: to_bf16 -> half::bf16 = BF16FromF32, "Rounded to nearest even.";
    f32: to_i32 -> i32 = S32FromF32, "Toward zero, saturating; NaN gives 0.";
    f32: to_u32 -> u32 = U32FromF32, "Toward zero, saturating; NaN gives 0.";
    u32: to_f32 -> f32 = F32FromU32, "Rounded to nearest even.";
    i32: to_f32 -> f32 = F32FromS32, "Rounded to nearest even.";
    u32: to_u64 -> u64 = U64FromU32, "Zero-extended.";
    i32: to_i64 -> i64 = S64FromS32, "Sign-extended.";
    u64: to_u32 -> u32 = U32FromU64, "The low half.";
}

/// A pair of 16-bit floats, widened to two f32 exactly.
impl<'k> Val<'k, F16x2> {
    /// `(low, high)` as f32, exact.
    #[track_caller]
    pub fn to_f32s(self) -> (Val<'k, f32>, Val<'k, f32>) {
        let (lo, hi) = (self.k.reg(RegClass::B16), self.k.reg(RegClass::B16));
        self.k.emit(Inst::Unpack {
            lo,
            hi,
            src: self.operand,
        });
        let half = |reg| Val::<half::f16>::from_reg(self.k, reg);
        (half(lo).to_f32(), half(hi).to_f32())
    }
}
impl<'k> Val<'k, half::bf16> {
    /// Exact: a bf16 is the upper half of an f32 (`cvt.f32.bf16` would need sm_90).
    #[track_caller]
    pub fn to_f32(self) -> Val<'k, f32> {
        let (zero, dst) = (
            self.k.in_register(RegClass::B16, Operand::Imm(0)),
            self.k.reg(RegClass::B32),
        );
        self.k.emit(Inst::Pack {
            dst,
            lo: Operand::Reg(zero),
            hi: self.operand,
        });
        Val::<u32>::from_reg(self.k, dst).reinterpret()
    }
}
impl<'k> Val<'k, BF16x2> {
    /// `(low, high)` as f32, exact: a bf16 is the upper half of an f32, so no conversion is needed.
    #[track_caller]
    pub fn to_f32s(self) -> (Val<'k, f32>, Val<'k, f32>) {
        let bits = self.reinterpret::<u32>();
        ((bits << 16).reinterpret(), (bits & 0xffff_0000).reinterpret())
    }
}
