//! Results of read-modify-write operations.

use crate::float::{self, f, result};
use crate::program::Half;
use crate::text::cold::{Change, Float, Update};

/// The new value of a word. In global memory f32 sums flush subnormals (PTX ISA, `atom`).
pub(crate) fn changed(update: Update, old: u64, [value, other]: [u64; 2], is_global: bool) -> u64 {
    let signed = |bits: u64| {
        if update.size == 4 {
            i64::from(bits as u32 as i32)
        } else {
            bits as i64
        }
    };
    match update.change {
        Change::Exchange => value,
        Change::Compare if old == value => other,
        Change::Compare => old,
        Change::Add => match (update.float, update.size) {
            (Float::Halves(is_bf16), _) => {
                let ty = if is_bf16 { Half::BF16 } else { Half::F16 };
                float::halves(ty, [old as u32, value as u32, 0], |a, b, _| float::add_odd(a, b)).into()
            }
            (Float::One, 4) => {
                let flush = |bits: u32| if is_global { float::flush(bits) } else { bits };
                flush(result(f(flush(old as u32)) + f(flush(value as u32)))).into()
            }
            (Float::One, _) => (f64::from_bits(old) + f64::from_bits(value)).to_bits(),
            (Float::No, _) => old.wrapping_add(value),
        },
        Change::Min if update.signed => signed(old).min(signed(value)) as u64,
        Change::Max if update.signed => signed(old).max(signed(value)) as u64,
        Change::Min => old.min(value),
        Change::Max => old.max(value),
        Change::Inc if old >= value => 0,
        Change::Inc => old + 1,
        Change::Dec if old == 0 || old > value => value,
        Change::Dec => old - 1,
        Change::And => old & value,
        Change::Or => old | value,
        Change::Xor => old ^ value,
    }
}
