//! Quotients by numbers that the host knows.

use flashcore_ir::{Arg, KernelBuilder, Val};

/// A divisor that a launch gives with its reciprocal: a product and a shift in place of a division's twenty
/// instructions. On the host, [`block_range::Divisor`](super::block_range::Divisor) does the same.
#[derive(Clone, Copy)]
pub(crate) struct ParamDivisor<'k> {
    factor: Val<'k, u32>,
    shift: Val<'k, u32>,
}

impl<'k> ParamDivisor<'k> {
    /// [`args`] gives the arguments.
    pub(crate) fn declare(k: &'k KernelBuilder, name: &str) -> Self {
        ParamDivisor {
            factor: k.param(&format!("{name}_factor")),
            shift: k.param(&format!("{name}_shift")),
        }
    }

    /// Of a number below 2^31.
    #[track_caller]
    pub(crate) fn quotient(&self, number: Val<'k, u32>) -> Val<'k, u32> {
        (number + number).mul_hi(self.factor) >> self.shift
    }
}

/// The arguments of a divisor. Source: Granlund and Montgomery, "Division by invariant integers using multiplication"
/// (1994).
pub(crate) fn args(divisor: u32) -> [Arg; 2] {
    reciprocal(divisor.max(1)).map(Arg::U32)
}

/// Factor and shift with which `x / d = (2x · factor >> 32) >> shift` for every `x` below 2^31.
fn reciprocal(divisor: u32) -> [u32; 2] {
    let shift = divisor.next_power_of_two().trailing_zeros();
    let factor = (1u64 << (31 + shift)).div_ceil(u64::from(divisor));
    [factor as u32, shift]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_exact() {
        let most = (1u64 << 31) - 1;
        for divisor in (1..3000).chain([65_535, 65_536, 65_537, 1 << 30, (1 << 31) - 1]) {
            let [factor, shift] = reciprocal(divisor).map(u64::from);
            let d = u64::from(divisor);
            let of_multiples = [1, 2, 3, most / d].map(|times| times * d);
            let numbers = of_multiples.iter().flat_map(|x| [x - 1, *x, x + 1]).chain([0, most]);
            for x in numbers.filter(|x| *x <= most) {
                assert_eq!((2 * x * factor) >> 32 >> shift, x / d, "{x} / {divisor}");
            }
        }
    }
}
