//! Values and variables of a kernel being written.

use std::marker::PhantomData;
use std::ops;

use super::KernelBuilder;
use crate::divide::divide;
use crate::inst::{BinOp, Cmp, Inst, Operand, UnOp};
use crate::types::{Bits, Integer, Literal, Numeric, Ordered, Reg, RegClass, Scalar, ScalarType, Signed};

/// A value: computed once, never assigned again.
#[derive(Clone, Copy, Debug)]
pub struct Val<'k, T> {
    pub(crate) k: &'k KernelBuilder,
    pub(crate) operand: Operand,
    of: PhantomData<T>,
}

/// A variable: assigned as often as needed; what a loop carries from one round to the next.
#[derive(Clone, Copy, Debug)]
pub struct Var<'k, T> {
    pub(crate) k: &'k KernelBuilder,
    pub(crate) reg: Reg,
    of: PhantomData<T>,
}

/// What can stand as an operand of type `T`: a value, a variable, or a literal.
pub trait Source<'k, T: Scalar>: Sized {
    /// The register or immediate that an instruction reads.
    fn operand(self) -> Operand;

    /// It as a value.
    fn val(self, k: &'k KernelBuilder) -> Val<'k, T> {
        Val::from_operand(k, self.operand())
    }
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
impl<'k> Source<'k, bool> for bool {
    fn operand(self) -> Operand {
        Operand::Imm(u64::from(self))
    }
}

impl<'k, T: Scalar> Val<'k, T> {
    pub(crate) fn from_reg(k: &'k KernelBuilder, reg: Reg) -> Self {
        Val::from_operand(k, Operand::Reg(reg))
    }

    pub(crate) fn from_operand(k: &'k KernelBuilder, operand: Operand) -> Self {
        let of = PhantomData;
        Val { k, operand, of }
    }

    /// The builder it belongs to.
    pub fn builder(self) -> &'k KernelBuilder {
        self.k
    }

    /// The same bits read as another type of the same size.
    ///
    /// Where both types live in one register class it costs nothing; otherwise one `mov`. A
    /// constant read as 16-bit floats, of which PTX has no immediates, takes one too.
    #[track_caller]
    pub fn reinterpret<U: Scalar>(self) -> Val<'k, U> {
        const {
            assert!(
                T::TYPE.bytes() == U::TYPE.bytes(),
                "reinterpret needs types of one size"
            )
        };
        match self.operand {
            src @ Operand::Reg(reg) if reg.class != U::TYPE.class() => self.k.result(|dst| Inst::Mov { dst, src }),
            Operand::Imm(_) if U::TYPE.is_half() => {
                Val::from_reg(self.k, self.k.in_register(U::TYPE.class(), self.operand))
            }
            operand => Val::from_operand(self.k, operand),
        }
    }

    #[track_caller]
    pub(crate) fn bin(self, op: BinOp, b: Operand) -> Val<'k, T> {
        self.k.bin(op, T::TYPE, self.operand, b)
    }

    #[track_caller]
    fn un(self, op: UnOp) -> Val<'k, T> {
        let (ty, a) = (T::TYPE, self.operand);
        self.k.result(|dst| Inst::Un { op, ty, dst, a })
    }

    #[track_caller]
    pub(super) fn compare(self, cmp: Cmp, b: Operand) -> Val<'k, bool> {
        let (ty, a) = (T::TYPE, self.operand);
        self.k.result(|dst| Inst::Setp { cmp, ty, dst, a, b })
    }
}

impl<'k, T: Scalar> Var<'k, T> {
    pub(crate) fn from_reg(k: &'k KernelBuilder, reg: Reg) -> Self {
        let of = PhantomData;
        Var { k, reg, of }
    }

    /// The variable as an operand, read where it is used.
    pub(crate) fn now(self) -> Val<'k, T> {
        Val::from_reg(self.k, self.reg)
    }

    /// Its value now; later assignments do not change what was read.
    #[track_caller]
    pub fn get(self) -> Val<'k, T> {
        let src = Operand::Reg(self.reg);
        self.k.result(|dst| Inst::Mov { dst, src })
    }

    /// Assigns.
    #[track_caller]
    pub fn set(self, value: impl Source<'k, T>) {
        let (dst, src) = (self.reg, value.operand());
        self.k.emit(Inst::Mov { dst, src });
    }

    #[track_caller]
    fn assign(self, op: BinOp, b: Operand) {
        let (ty, dst, a) = (T::TYPE, self.reg, Operand::Reg(self.reg));
        self.k.emit(Inst::Bin { op, ty, dst, a, b });
    }
}

/// Methods that are one instruction with one operand more, for values of any type with some trait.
macro_rules! methods {
    ($($on:ident<$bound:ident>::$method:ident -> $result:ty = $by:ident($op:expr), $doc:literal;)*) => {$(
        impl<'k, T: $bound> $on<'k, T> {
            #[doc = $doc]
            #[track_caller]
            pub fn $method(self, other: impl Source<'k, T>) -> $result {
                self.$by($op, other.operand())
            }
        }
    )*};
}
methods! {
    Var<Numeric>::add_assign -> () = assign(BinOp::Add), "`self = self + other`.";
    Var<Numeric>::mul_assign -> () = assign(BinOp::Mul), "`self = self · other`.";
    Var<Numeric>::max_assign -> () = assign(BinOp::Max), "`self = max(self, other)`.";
    Val<Numeric>::min -> Val<'k, T> = bin(BinOp::Min), "The smaller of the two; of a number and NaN, the number.";
    Val<Numeric>::max -> Val<'k, T> = bin(BinOp::Max), "The larger of the two; of a number and NaN, the number.";
    Val<Integer>::mul_hi -> Val<'k, T> = bin(BinOp::MulHi), "The high half of the product.";
    Val<Ordered>::lt -> Val<'k, bool> = compare(Cmp::Lt), "`self < other`.";
    Val<Ordered>::le -> Val<'k, bool> = compare(Cmp::Le), "`self <= other`.";
    Val<Ordered>::gt -> Val<'k, bool> = compare(Cmp::Gt), "`self > other`.";
    Val<Ordered>::ge -> Val<'k, bool> = compare(Cmp::Ge), "`self >= other`.";
    Val<Ordered>::eq -> Val<'k, bool> = compare(Cmp::Eq), "`self == other`.";
    Val<Ordered>::ne -> Val<'k, bool> = compare(Cmp::Ne), "`self != other`; true where either is NaN.";
}

impl<'k, T: Numeric> Var<'k, T> {
    /// `self = a · b + self`, rounded once.
    #[track_caller]
    pub fn fma_assign(self, a: impl Source<'k, T>, b: impl Source<'k, T>) {
        let (ty, dst, c) = (T::TYPE, self.reg, Operand::Reg(self.reg));
        let (a, b) = (a.operand(), b.operand());
        self.k.emit(Inst::Fma { ty, dst, a, b, c });
    }
}

impl KernelBuilder {
    #[track_caller]
    pub(crate) fn bin<T: Scalar>(&self, op: BinOp, ty: ScalarType, a: Operand, b: Operand) -> Val<'_, T> {
        self.result(|dst| Inst::Bin { op, ty, dst, a, b })
    }

    #[track_caller]
    pub(crate) fn mad<T: Scalar>(&self, a: Operand, b: Operand, c: Operand) -> Val<'_, T> {
        let ty = T::TYPE;
        self.result(|dst| Inst::Fma { ty, dst, a, b, c })
    }
}

macro_rules! operators {
    ($($tr:ident $method:ident $rhs:ty, $bound:ident = $by:path, $op:ident;)*) => {$(
        impl<'k, T: $bound, R: Source<'k, $rhs>> ops::$tr<R> for Val<'k, T> {
            type Output = Val<'k, T>;
            #[track_caller]
            fn $method(self, rhs: R) -> Val<'k, T> {
                $by(self, BinOp::$op, rhs.operand())
            }
        }
        impl<'k, T: $bound, R: Source<'k, $rhs>> ops::$tr<R> for Var<'k, T> {
            type Output = Val<'k, T>;
            #[track_caller]
            fn $method(self, rhs: R) -> Val<'k, T> {
                $by(self.now(), BinOp::$op, rhs.operand())
            }
        }
    )*};
}
operators! {
    Add add T, Numeric = Val::bin, Add;
    Sub sub T, Numeric = Val::bin, Sub;
    Mul mul T, Numeric = Val::bin, Mul;
    Div div T, Integer = divide, Div;
    Rem rem T, Integer = divide, Rem;
    BitAnd bitand T, Bits = Val::bin, And;
    BitOr bitor T, Bits = Val::bin, Or;
    BitXor bitxor T, Bits = Val::bin, Xor;
    Shl shl u32, Integer = Val::bin, Shl;
    Shr shr u32, Integer = Val::bin, Shr;
}

impl<'k, T: Numeric> ops::Neg for Val<'k, T> {
    type Output = Val<'k, T>;
    #[track_caller]
    fn neg(self) -> Val<'k, T> {
        self.un(UnOp::Neg)
    }
}
impl<'k, T: Bits> ops::Not for Val<'k, T> {
    type Output = Val<'k, T>;
    #[track_caller]
    fn not(self) -> Val<'k, T> {
        self.un(UnOp::Not)
    }
}

impl<'k, T: Numeric> Val<'k, T> {
    /// `self · b + c`: floats round once, integers keep the low half.
    #[track_caller]
    pub fn fma(self, b: impl Source<'k, T>, c: impl Source<'k, T>) -> Val<'k, T> {
        self.k.mad(self.operand, b.operand(), c.operand())
    }
}

impl<'k, T: Signed> Val<'k, T> {
    /// Absolute value; the smallest integer stays as it is.
    #[track_caller]
    pub fn abs(self) -> Val<'k, T> {
        self.un(UnOp::Abs)
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
        let (ty, a, b) = (T::TYPE, a.operand(), b.operand());
        self.k.result(|dst| Inst::Selp { ty, dst, cond, a, b })
    }
}

impl<'k> Val<'k, f32> {
    /// 2^self (`ex2.approx.ftz`).
    #[track_caller]
    pub fn exp2(self) -> Val<'k, f32> {
        self.un(UnOp::Ex2)
    }
    /// log2(self) (`lg2.approx.ftz`).
    #[track_caller]
    pub fn log2(self) -> Val<'k, f32> {
        self.un(UnOp::Lg2)
    }
    /// 1/self (`rcp.approx.ftz`).
    #[track_caller]
    pub fn recip(self) -> Val<'k, f32> {
        self.un(UnOp::Rcp)
    }
}

impl<'k> Val<'k, u32> {
    /// Number of set bits.
    #[track_caller]
    pub fn count_ones(self) -> Val<'k, u32> {
        self.un(UnOp::Popc)
    }
    /// Number of leading zeros.
    #[track_caller]
    pub fn leading_zeros(self) -> Val<'k, u32> {
        self.un(UnOp::Clz)
    }
    /// Any bitwise function of three values: bit `4·a + 2·b + c` of `table` is the result.
    ///
    /// The three must be different: ptxas 12.0 to 13.0 compiles some functions of a repeated value
    /// wrongly for sm_90a (`docs/hardware-notes.md`), and two values need only `&`, `|`, `^`.
    #[track_caller]
    pub fn lop3(self, b: impl Source<'k, u32>, c: impl Source<'k, u32>, table: u8) -> Val<'k, u32> {
        let (a, b, c) = (self.operand, b.operand(), c.operand());
        self.k.result(|dst| Inst::Lop3 { dst, a, b, c, table })
    }
    /// Four bytes picked from `self` (bytes 0–3) and `b` (bytes 4–7), a nibble of `selector` each.
    #[track_caller]
    pub fn prmt(self, b: impl Source<'k, u32>, selector: impl Source<'k, u32>) -> Val<'k, u32> {
        let (a, b, selector) = (self.operand, b.operand(), selector.operand());
        self.k.result(|dst| Inst::Prmt { dst, a, b, selector })
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
    #[track_caller]
    fn wide<U: Scalar>(self, ty: ScalarType, b: impl Source<'k, T>) -> Val<'k, U> {
        self.k.bin(BinOp::MulWide, ty, self.operand, b.operand())
    }
}
