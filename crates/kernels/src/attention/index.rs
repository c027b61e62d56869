//! Arithmetic that is the same for integers on the host and for values in a kernel.

use std::ops::{Add, BitAnd, Mul, Sub};

use flashcore_ir::Val;

use super::divisor::Divisor;

/// Arithmetic on rows, keys and blocks: of integers on the host, or of values in a kernel.
pub trait Index: Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    /// What comparisons give.
    type Condition: Copy + BitAnd<Output = Self::Condition>;

    /// A constant, of the kind of this number.
    fn constant(self, value: i32) -> Self;
    /// The smaller of the two.
    fn min(self, other: Self) -> Self;
    /// The larger of the two.
    fn max(self, other: Self) -> Self;
    /// `self · factor + term`.
    fn mul_add(self, factor: Self, term: Self) -> Self;
    /// The quotient, rounded down, of a number that is not negative by a positive one.
    fn floor_div(self, divisor: Self) -> Self;
    /// [`Self::floor_div`] by a [`Divisor`]; on the host, `self` must be less than 2^31, as rows and keys are.
    #[track_caller]
    fn div_by(self, divisor: Divisor) -> Self {
        self.floor_div(self.constant(divisor.number() as i32))
    }
    /// Whether the two are equal.
    fn eq(self, other: Self) -> Self::Condition;
    /// Whether this one is less.
    fn lt(self, other: Self) -> Self::Condition;
    /// Whether this one is greater.
    fn gt(self, other: Self) -> Self::Condition;
    /// `then` where the condition holds, else `otherwise`.
    fn select(condition: Self::Condition, then: Self, otherwise: Self) -> Self;
}

impl Index for i64 {
    type Condition = bool;

    fn constant(self, value: i32) -> i64 {
        i64::from(value)
    }
    fn min(self, other: i64) -> i64 {
        Ord::min(self, other)
    }
    fn max(self, other: i64) -> i64 {
        Ord::max(self, other)
    }
    fn mul_add(self, factor: i64, term: i64) -> i64 {
        self * factor + term
    }
    fn floor_div(self, divisor: i64) -> i64 {
        self.div_euclid(divisor)
    }
    fn div_by(self, divisor: Divisor) -> i64 {
        debug_assert!(i32::try_from(self).is_ok() && self >= 0, "{self}");
        i64::from(divisor.floor_div(self as u32))
    }
    fn eq(self, other: i64) -> bool {
        self == other
    }
    fn lt(self, other: i64) -> bool {
        self < other
    }
    fn gt(self, other: i64) -> bool {
        self > other
    }
    fn select(condition: bool, then: i64, otherwise: i64) -> i64 {
        if condition { then } else { otherwise }
    }
}

macro_rules! index_of_values {
    ($ty:ty) => {
        impl<'k> Index for Val<'k, $ty> {
            type Condition = Val<'k, bool>;

            fn constant(self, value: i32) -> Self {
                self.builder().constant(value as $ty)
            }
            #[track_caller]
            fn min(self, other: Self) -> Self {
                self.min(other)
            }
            #[track_caller]
            fn max(self, other: Self) -> Self {
                self.max(other)
            }
            #[track_caller]
            fn mul_add(self, factor: Self, term: Self) -> Self {
                self.fma(factor, term)
            }
            // As unsigned numbers they are divided by a shift.
            #[track_caller]
            fn floor_div(self, divisor: Self) -> Self {
                (self.reinterpret::<u32>() / divisor.reinterpret::<u32>()).reinterpret()
            }
            #[track_caller]
            fn eq(self, other: Self) -> Val<'k, bool> {
                self.eq(other)
            }
            #[track_caller]
            fn lt(self, other: Self) -> Val<'k, bool> {
                self.lt(other)
            }
            #[track_caller]
            fn gt(self, other: Self) -> Val<'k, bool> {
                self.gt(other)
            }
            #[track_caller]
            fn select(condition: Val<'k, bool>, then: Self, otherwise: Self) -> Self {
                condition.select(then, otherwise)
            }
        }
    };
}
index_of_values!(i32);
index_of_values!(u32);
