//! Quotients by numbers that the host knows: a product and a shift in place of a division. Source: Granlund and
//! Montgomery, "Division by invariant integers using multiplication" (1994).

use flashcore_ir::{Arg, KernelBuilder, Val};

/// A number with its reciprocal, for many divisions by it. Numbers that are divided are less than 2^31, as rows and
/// keys are.
#[derive(Clone, Copy, Debug)]
pub struct Divisor {
    number: u32,
    factor: u32,
    shift: u32,
}

impl Divisor {
    /// The number.
    pub fn number(self) -> u32 {
        self.number
    }

    /// The quotient of a number, rounded down.
    #[inline]
    pub fn floor_div(self, number: u32) -> u32 {
        ((2 * u64::from(number) * u64::from(self.factor)) >> 32 >> self.shift) as u32
    }

    /// The arguments of a [`ParamDivisor`].
    pub(crate) fn args(self) -> [Arg; 2] {
        [self.factor, self.shift].map(Arg::U32)
    }

    /// The quotient of a number, rounded up.
    #[inline]
    pub fn ceil_div(self, number: u32) -> u32 {
        self.floor_div(number + (self.number - 1))
    }
}

/// The number is not 0, and at most 2^31.
impl From<u32> for Divisor {
    fn from(number: u32) -> Divisor {
        let shift = number.next_power_of_two().trailing_zeros();
        let factor = (1u64 << (31 + shift)).div_ceil(u64::from(number)) as u32;
        Divisor { number, factor, shift }
    }
}

/// A [`Divisor`] that a launch gives: on a GPU a division takes twenty instructions.
#[derive(Clone, Copy)]
pub(crate) struct ParamDivisor<'k> {
    factor: Val<'k, u32>,
    shift: Val<'k, u32>,
}

impl<'k> ParamDivisor<'k> {
    /// [`Args::divisor`](crate::args::Args::divisor) gives the arguments, too.
    pub(crate) fn declare(k: &'k KernelBuilder, name: &str) -> Self {
        ParamDivisor {
            factor: k.param(&format!("{name}_factor")),
            shift: k.param(&format!("{name}_shift")),
        }
    }

    /// The quotient of a number below 2^31.
    #[track_caller]
    pub(crate) fn quotient(&self, number: Val<'k, u32>) -> Val<'k, u32> {
        (number + number).mul_hi(self.factor) >> self.shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_exact() {
        let most = (1u32 << 31) - 1;
        for number in (1..3000).chain([65_535, 65_536, 65_537, 1 << 30, most, most + 1]) {
            let divisor = Divisor::from(number);
            let of_multiples = [1, 2, 3, most / number].map(|times| number.saturating_mul(times));
            let near = |x: u32| [x.saturating_sub(1), x, x.saturating_add(1)];
            let numbers = of_multiples.into_iter().flat_map(near).chain([0, most]);
            for x in numbers.filter(|x| *x <= most) {
                assert_eq!(divisor.floor_div(x), x / number, "{x} / {number}");
                if x <= most - (number - 1) {
                    assert_eq!(divisor.ceil_div(x), x.div_ceil(number), "{x} / {number}");
                }
            }
        }
    }
}
