//! Conversions: `cvt`.

use super::numbers::{self, Mode, Rounding, Ty, extend, mask};
use super::scalar::{Scalar, U32, scalar};

/// `cvt`: the two last words are the types.
pub(super) fn convert(words: &[&str]) -> Option<Scalar> {
    let [.., to, from] = words else { return None };
    let has = |word: &str| words.contains(&word);
    if has("pack") {
        return pack(words);
    }
    let (to, from) = (Ty::of(to)?, Ty::of(from)?);
    // Subnormals of f32 alone are flushed. Where the result is f16 an H200 does not: rounded up, they are its least
    // number, which PTX ISA 9.0 ("cvt", `.ftz`) does not say.
    let (ftz, mut how) = (
        has("ftz") && from == Ty::F32 && to != Ty::Half(false),
        Rounding::of(words),
    );
    how.ftz &= to == Ty::F32;
    let whole = words.iter().find_map(|word| match *word {
        "rni" => Some(f64::round_ties_even as fn(f64) -> f64),
        "rzi" => Some(f64::trunc),
        "rmi" => Some(f64::floor),
        "rpi" => Some(f64::ceil),
        _ => None,
    });
    let sat = has("sat");
    match (to, from) {
        (Ty::Int(bits, signed), Ty::Int(from_bits, from_signed)) => scalar(&[from], move |v| {
            let value = extend(v[0], from_bits, from_signed);
            let (least, most) = numbers::range(bits, signed);
            let value = if sat { value.clamp(least, most) } else { value };
            numbers::placed(value as u64, bits, signed)
        }),
        (Ty::Int(bits, signed), Ty::F32 | Ty::F64 | Ty::Half(_)) => scalar(&[from], move |v| {
            let value = whole.map_or(0.0, |whole| whole(numbers::value(v[0], from, ftz)));
            // What an H200 gives; PTX says it of no NaN.
            if value.is_nan() && (from == Ty::F64 || bits == 64) {
                return numbers::placed(1 << (bits - 1), bits, signed);
            }
            let (least, most) = numbers::range(bits, signed);
            // Casts saturate and map NaN to 0.
            numbers::placed((value as i128).clamp(least, most) as u64, bits, signed)
        }),
        (Ty::F32 | Ty::F64 | Ty::Half(_), Ty::Int(bits, signed)) => scalar(&[from], move |v| {
            let value = numbers::integer(extend(v[0], bits, signed), to, how.mode);
            numbers::rounded(value, to, how)
        }),
        (Ty::F32 | Ty::F64 | Ty::Half(_) | Ty::TF32, Ty::F32 | Ty::F64 | Ty::Half(_)) => {
            scalar(&[from], move |v| {
                let value = numbers::value(v[0], from, ftz);
                // An H200 cuts the digits off NaN, too.
                if value.is_nan() && how.mode == Mode::Away {
                    return v[0] & 0xffff_e000;
                }
                numbers::rounded(whole.map_or(value, |whole| whole(value)), to, how)
            })
        }
        // Two f32, the first to the upper half, or a pair.
        (Ty::Halves(_) | Ty::Bytes(_), Ty::F32 | Ty::Halves(_) | Ty::Bytes(_)) => {
            let [width, from_width] = [to, from].map(|ty| 8 * ty.element().bytes());
            let one = move |bits: u64| numbers::rounded(numbers::value(bits, from.element(), ftz), to.element(), how);
            let sources = if from == Ty::F32 { 2 } else { 1 };
            scalar(&vec![from; sources], move |v| {
                let [high, low] = if sources == 2 {
                    [v[0], v[1]]
                } else {
                    [v[0] >> from_width, v[0]]
                };
                one(high) << width | one(low)
            })
        }
        _ => None,
    }
}

/// `cvt.pack`: two integers of s32 saturated, the first above the second, below what a third has.
fn pack(words: &[&str]) -> Option<Scalar> {
    let is_three = words.last() == Some(&"b32");
    let Ty::Int(bits, signed) = Ty::of(words[2])? else {
        return None;
    };
    let from = if is_three {
        vec![Ty::Int(32, true), Ty::Int(32, true), U32]
    } else {
        vec![Ty::Int(32, true); 2]
    };
    let (least, most) = numbers::range(bits, signed);
    scalar(&from, move |v| {
        let part = |at: usize| extend(v[at], 32, true).clamp(least, most) as u64 & mask(bits);
        (v[2] << (2 * bits) | part(0) << bits | part(1)) & mask(32)
    })
}
