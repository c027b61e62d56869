//! Quotients and remainders: by constants, shifts and multiplications where that serves.

use crate::inst::{BinOp, Operand};
use crate::types::{Integer, ScalarType};
use crate::value::{Source, Val};

/// By a constant power of two, and unsigned by most other constants, this is shifts and a multiplication: ptxas would
/// call a routine of some forty instructions.
#[track_caller]
pub(crate) fn divide<'k, T: Integer>(a: Val<'k, T>, op: BinOp, b: Operand) -> Val<'k, T> {
    let imm = |bits: u32| Operand::Imm(u64::from(bits));
    let quotient = match (T::TYPE, b) {
        (ScalarType::U32, Operand::Imm(d)) if d.is_power_of_two() => match op {
            BinOp::Rem => return a.bin(BinOp::And, Operand::Imm(d - 1)),
            _ => return a.bin(BinOp::Shr, imm(d.trailing_zeros())),
        },
        (ScalarType::S32, Operand::Imm(d)) if (d as u32 as i32) > 1 && (d as u32).is_power_of_two() => {
            // Rounded toward zero: negative numbers get one less than the divisor first.
            let sign = a.bin(BinOp::Shr, imm(31));
            let bias = sign.bin(BinOp::And, Operand::Imm(d - 1));
            let sum = a.bin(BinOp::Add, bias.operand());
            sum.bin(BinOp::Shr, imm((d as u32).trailing_zeros()))
        }
        (ScalarType::U32, Operand::Imm(d)) => match magic(d as u32) {
            Some((factor, log)) => a.bin(BinOp::MulHi, imm(factor)).bin(BinOp::Shr, imm(log)),
            None => return a.bin(op, b),
        },
        _ => return a.bin(op, b),
    };
    if op == BinOp::Div {
        return quotient;
    }
    let product = quotient.bin(BinOp::Mul, b);
    a.bin(BinOp::Sub, product.operand())
}

/// Factor and shift with which `x / d = (x · factor >> 32) >> shift` for every 32-bit `x`, if a
/// 32-bit factor exists. Source: Granlund and Montgomery, "Division by invariant integers using
/// multiplication" (1994).
fn magic(d: u32) -> Option<(u32, u32)> {
    if d < 3 || d.is_power_of_two() {
        return None;
    }
    (0..32).find_map(|log| {
        let power = 1u128 << (32 + log);
        let factor = power.div_ceil(u128::from(d));
        let error = factor * u128::from(d) - power;
        (factor < 1 << 32 && error <= 1 << log).then_some((factor as u32, log))
    })
}

#[cfg(test)]
mod tests {
    use super::magic;

    #[test]
    fn magic_factors_divide_as_division_does() {
        let mut divisors_with_one = 0;
        for d in 3..2000u32 {
            let Some((factor, log)) = magic(d) else { continue };
            divisors_with_one += 1;
            let by_magic = |x: u32| ((u64::from(x) * u64::from(factor)) >> 32 >> log) as u32;
            // Errors show first at the multiples of d, from below, and at the largest numbers.
            let multiples = [1, 2, 3, 1000, u32::MAX / d / 2, u32::MAX / d].map(|n| n * d);
            for x in multiples
                .iter()
                .flat_map(|&x| [x.wrapping_sub(1), x])
                .chain([u32::MAX, u32::MAX - 1])
            {
                assert_eq!(by_magic(x), x / d, "{x} / {d}");
            }
        }
        assert!(divisors_with_one > 1000, "{divisors_with_one}");
        assert_eq!(magic(3), Some((0xaaaa_aaab, 1)));
        assert_eq!(magic(7), None);
    }
}
