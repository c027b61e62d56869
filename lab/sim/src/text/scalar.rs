//! Scalar instructions that have no operation of their own (`fast.rs`), as functions of the bits of their operands.
//!
//! Source: PTX ISA 9.0, "Integer Arithmetic Instructions" to "Data Movement and Conversion Instructions".

use flashcore_ptx::Spelled;

use super::numbers::{self, Rounding, Ty, extend, flushed, mask};

/// A function of the bits of up to four operands.
pub(crate) type Compute = Box<dyn Fn(&[u64; 4]) -> u64 + Send + Sync>;

/// The types of the operands, and the function.
pub(super) struct Scalar {
    pub(super) from: Vec<Ty>,
    pub(super) compute: Compute,
}

pub(super) fn scalar(from: &[Ty], compute: impl Fn(&[u64; 4]) -> u64 + Send + Sync + 'static) -> Option<Scalar> {
    let (from, compute) = (from.to_vec(), Box::new(compute) as Compute);
    Some(Scalar { from, compute })
}

pub(super) const U32: Ty = Ty::Int(32, false);
pub(super) const U64: Ty = Ty::Int(64, false);

/// What a form computes; none for others, and for those that are not known.
pub(super) fn read(form: &Spelled) -> Option<Scalar> {
    let words: Vec<&'static str> = form.modifiers().collect();
    match form.name() {
        "cvt" => super::convert::convert(&words),
        "prmt" => permute(&words),
        "setp" | "set" => None,
        _ if carries(form) => None,
        name => of_words(name, &words),
    }
}

/// What an instruction computes, by its words.
fn of_words(name: &str, words: &[&'static str]) -> Option<Scalar> {
    let has = |word: &str| words.contains(&word);
    let last = *words.last()?;
    if let Some(element) = last.strip_suffix("x2") {
        return pairs(name, words, element);
    }
    let ty = Ty::of(last)?;
    let lo = !has("hi");
    if name == "slct" {
        let (data, ftz) = (Ty::of(words[words.len() - 2])?, has("ftz"));
        return scalar(&[data, data, ty], move |v| {
            let is_first = match ty {
                Ty::F32 => numbers::value(v[2], ty, ftz) >= 0.0,
                _ => v[2] as i32 >= 0,
            };
            if is_first { v[0] } else { v[1] }
        });
    }
    if matches!(ty, Ty::F32 | Ty::F64 | Ty::Half(_)) {
        return floats(name, words, ty);
    }
    let Ty::Int(bits, signed) = ty else { return None };
    let x = move |value: u64| extend(value, bits, signed);
    let two = [ty, ty];
    match name {
        "add" if has("sat") => scalar(&two, move |v| saturated(x(v[0]) + x(v[1]))),
        "sub" if has("sat") => scalar(&two, move |v| saturated(x(v[0]) - x(v[1]))),
        "add" => scalar(&two, move |v| v[0].wrapping_add(v[1]) & mask(bits)),
        "sub" => scalar(&two, move |v| v[0].wrapping_sub(v[1]) & mask(bits)),
        "mul" | "mad" if has("wide") => {
            let wide = Ty::Int(2 * bits, signed);
            let is_sum = name == "mad";
            let from = if is_sum { vec![ty, ty, wide] } else { two.to_vec() };
            scalar(&from, move |v| {
                let sum = if is_sum { i128::from(v[2]) } else { 0 };
                (x(v[0]) * x(v[1]) + sum) as u64 & mask(2 * bits)
            })
        }
        "mad" if has("sat") => scalar(&[ty; 3], move |v| saturated(((x(v[0]) * x(v[1])) >> bits) + x(v[2]))),
        "mul" | "mad" => {
            let is_sum = name == "mad";
            let from = if is_sum { vec![ty; 3] } else { two.to_vec() };
            scalar(&from, move |v| {
                let product = if signed {
                    x(v[0]).wrapping_mul(x(v[1])) as u128
                } else {
                    u128::from(v[0] & mask(bits)) * u128::from(v[1] & mask(bits))
                };
                let part = if lo { product as u64 } else { (product >> bits) as u64 };
                part.wrapping_add(if is_sum { v[2] } else { 0 }) & mask(bits)
            })
        }
        "mul24" | "mad24" => {
            let (is_sum, sat) = (name == "mad24", has("sat"));
            let from = if is_sum { vec![ty; 3] } else { two.to_vec() };
            let short = move |value: u64| extend(value, 24, signed);
            // Of the product's 48 bits the lower or the upper 32.
            let shift = if lo { 0 } else { 16 };
            scalar(&from, move |v| {
                let product = (short(v[0]) * short(v[1])) >> shift;
                let sum = x(product as u64) + if is_sum { x(v[2]) } else { 0 };
                if sat { saturated(sum) } else { sum as u64 & mask(bits) }
            })
        }
        "sad" => scalar(&[ty; 3], move |v| {
            ((x(v[0]) - x(v[1])).unsigned_abs() as u64).wrapping_add(v[2]) & mask(bits)
        }),
        // As the GPU's routine divides by zero.
        "div" => scalar(&two, move |v| {
            x(v[0])
                .checked_div(x(v[1]))
                .map_or(mask(bits), |q| q as u64 & mask(bits))
        }),
        "rem" => scalar(&two, move |v| {
            x(v[0]).checked_rem(x(v[1])).map_or(v[0], |r| r as u64) & mask(bits)
        }),
        "abs" => scalar(&[ty], move |v| x(v[0]).unsigned_abs() as u64 & mask(bits)),
        "neg" => scalar(&[ty], move |v| v[0].wrapping_neg() & mask(bits)),
        "min" | "max" => {
            let least = if has("relu") { 0 } else { i128::MIN };
            let extreme = if name == "min" { i128::min } else { i128::max };
            scalar(&two, move |v| extreme(x(v[0]), x(v[1])).max(least) as u64 & mask(bits))
        }
        "popc" => scalar(&[ty], move |v| u64::from((v[0] & mask(bits)).count_ones())),
        "clz" => scalar(&[ty], move |v| {
            u64::from((v[0] & mask(bits)).leading_zeros() - (64 - bits))
        }),
        "brev" => scalar(&[ty], move |v| (v[0] & mask(bits)).reverse_bits() >> (64 - bits)),
        "bfind" => {
            let shifts = has("shiftamt");
            scalar(&[ty], move |v| {
                let value = x(v[0]);
                let seen = if value < 0 { !value } else { value } as u64 & mask(bits);
                match seen {
                    0 => 0xffff_ffff,
                    _ if shifts => u64::from(seen.leading_zeros() + bits - 64),
                    _ => u64::from(63 - seen.leading_zeros()),
                }
            })
        }
        "bfe" => scalar(&[ty, U32, U32], move |v| {
            let (at, count) = (v[1] & 0xff, v[2] & 0xff);
            let value = x(v[0]);
            if count == 0 {
                return 0;
            }
            let top = (at + count - 1).min(u64::from(bits) - 1);
            let field = if at >= u64::from(bits) {
                0
            } else {
                (value as u128 & u128::from(mask(bits))) >> at
            } as u64;
            let width = (top + 1).saturating_sub(at).min(64) as u32;
            let field = if width == 0 { 0 } else { field & mask(width) };
            // The sign is that of the field's last bit within the register.
            let negative = signed && (v[0] >> top) & 1 == 1;
            let fill = if negative { !mask(width.max(1)) } else { 0 };
            match (width, negative) {
                (0, true) => mask(bits),
                _ => (field | fill) & mask(bits),
            }
        }),
        "bfi" => scalar(&[ty, ty, U32, U32], move |v| {
            let (at, count) = ((v[2] & 0xff) as u32, (v[3] & 0xff) as u32);
            let field = if at >= bits {
                0
            } else {
                ((u128::from(mask(count.min(64)))) << at) as u64 & mask(bits)
            };
            let field = if count == 0 { 0 } else { field };
            let placed = if at >= bits { 0 } else { v[0] << at };
            (v[1] & !field | placed & field) & mask(bits)
        }),
        "shf" => {
            let (left, wraps) = (has("l"), has("wrap"));
            scalar(&[ty, ty, U32], move |v| {
                let by = if wraps { v[2] & 31 } else { v[2].min(32) };
                let both = v[0] & mask(32) | v[1] << 32;
                if left {
                    (u128::from(both) << by >> 32) as u64 & mask(32)
                } else {
                    (both >> by) & mask(32)
                }
            })
        }
        "dp4a" => {
            let signs = [words[0] == "s32", words[1] == "s32"];
            scalar(&[U32, U32, U32], move |v| {
                let byte = |value: u64, at: u32, signed| extend(value >> (8 * at), 8, signed) as i64;
                let sum: i64 = (0..4)
                    .map(|at| byte(v[0], at, signs[0]) * byte(v[1], at, signs[1]))
                    .sum();
                (sum as u64).wrapping_add(v[2]) & mask(32)
            })
        }
        "dp2a" => {
            let signs = [words[1] == "s32", words[2] == "s32"];
            scalar(&[U32, U32, U32], move |v| {
                let part = |at: u32| {
                    let half = extend(v[0] >> (16 * at), 16, signs[0]);
                    half * extend(v[1] >> (8 * at + if lo { 0 } else { 16 }), 8, signs[1])
                };
                ((part(0) + part(1)) as u64).wrapping_add(v[2]) & mask(32)
            })
        }
        // The set bit that is so many from a place on, up or down; the place's own if it is none (PTX ISA, `fns`).
        "fns" => scalar(&[U32; 3], |v| {
            let (offset, is_set) = (v[2] as i32, |at: &u64| v[0] >> at & 1 == 1);
            let found = match offset {
                0 => Some(v[1]).filter(|at| *at < 32 && is_set(at)),
                // It has no magnitude; an H200 says 0.
                i32::MIN => Some(0),
                1.. => (v[1]..32).filter(is_set).nth(offset as usize - 1),
                _ => (0..=v[1].min(31))
                    .rev()
                    .filter(is_set)
                    .nth(offset.unsigned_abs() as usize - 1),
            };
            found.unwrap_or(mask(32))
        }),
        "szext" => {
            let clamps = has("clamp");
            scalar(&[U32, U32], move |v| {
                let width = if clamps { v[1].min(32) } else { v[1] & 31 } as u32;
                if width == 0 {
                    0
                } else {
                    extend(v[0], width, signed) as u64 & mask(32)
                }
            })
        }
        "cnot" => scalar(&[ty], move |v| u64::from(v[0] & mask(bits) == 0)),
        "shl" => scalar(&[ty, U32], move |v| {
            if v[1] >= u64::from(bits) {
                0
            } else {
                v[0] << v[1] & mask(bits)
            }
        }),
        "shr" => scalar(&[ty, U32], move |v| {
            (x(v[0]) >> v[1].min(u64::from(bits))) as u64 & mask(bits)
        }),
        "bmsk" => {
            let clamps = has("clamp");
            scalar(&[U32, U32], move |v| {
                let (at, count) = if clamps {
                    (v[0].min(32), v[1].min(32))
                } else {
                    (v[0] & 31, v[1] & 31)
                };
                ((1u64 << count) - 1) << at & mask(32)
            })
        }
        _ => None,
    }
}

/// A sum of s32 that saturates.
fn saturated(sum: i128) -> u64 {
    sum.clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as u64 & mask(32)
}

/// Whether a form reads or writes the carry (PTX ISA, "Extended-Precision Integer Arithmetic Instructions").
fn carries(form: &Spelled) -> bool {
    form.has("cc") || ["addc", "subc", "madc"].contains(&form.name())
}

/// Of a form that reads or writes the carry: its result, or the carry that it gives, as a function of its operands,
/// zeros up to the third, and the carry. A difference is a sum with the complement, whose carry says that nothing was
/// borrowed: on an H200 chains that mix sums and differences show it.
pub(super) fn carried(form: &Spelled, gives_carry: bool) -> Option<Scalar> {
    let Ty::Int(bits, signed) = Ty::of(form.modifiers().last()?)? else {
        return None;
    };
    if !carries(form) {
        return None;
    }
    let (name, hi) = (form.name().trim_end_matches('c'), form.has("hi"));
    let takes_carry = name != form.name();
    let operands = if name == "mad" { 3 } else { 2 };
    scalar(&vec![Ty::Int(bits, signed); operands], move |v| {
        let x = |at: usize| i128::from(v[at] & mask(bits));
        let total = match name {
            "add" => x(0) + x(1) + x(3),
            "sub" => x(0) + i128::from(mask(bits)) - x(1) + if takes_carry { x(3) } else { 1 },
            _ => {
                let factor = |at: usize| extend(v[at], bits, signed);
                // Of unsigned 64 bits more than the sign's bit is needed.
                let product = (factor(0) as u128).wrapping_mul(factor(1) as u128);
                let part = if hi { product >> bits } else { product };
                i128::from(part as u64 & mask(bits)) + x(2) + x(3)
            }
        };
        if gives_carry {
            (total >> bits) as u64 & 1
        } else {
            total as u64 & mask(bits)
        }
    })
}

/// `prmt` with a mode: four bytes of two registers, from a place on.
fn permute(words: &[&'static str]) -> Option<Scalar> {
    let mode = *words.iter().find(|word| **word != "b32")?;
    scalar(&[U32; 3], move |v| {
        let (both, at) = (v[0] & mask(32) | v[1] << 32, v[2] & 3);
        let from = |to: u64| match mode {
            "f4e" => at + to,
            "b4e" => (8 + at - to) % 8,
            "rc8" => at,
            "ecl" => to.max(at),
            "ecr" => to.min(at),
            _ => 2 * (at & 1) + to % 2,
        };
        (0..4).fold(0, |all, to| all | (both >> (8 * from(to)) & 0xff) << (8 * to))
    })
}

/// Arithmetic of floats: of f32 exact until it is rounded once, of f64 as the host has it.
fn floats(name: &str, words: &[&'static str], ty: Ty) -> Option<Scalar> {
    let has = |word: &str| words.contains(&word);
    let (how, keeps_nan, xors) = (Rounding::of(words), has("NaN"), has("xorsign"));
    let (mode, ftz) = (how.mode, how.ftz);
    let to = move |value: f64| numbers::rounded(value, ty, how);
    let n = move |bits: u64| numbers::value(bits, ty, ftz);
    let approximate = |f: fn(f64) -> f64| scalar(&[ty], move |v| to(f(n(v[0]))));
    match name {
        "add" => scalar(&[ty; 2], move |v| to(numbers::add(n(v[0]), n(v[1]), ty, mode))),
        "sub" => scalar(&[ty; 2], move |v| to(numbers::add(n(v[0]), -n(v[1]), ty, mode))),
        "mul" => scalar(&[ty; 2], move |v| to(numbers::mul(n(v[0]), n(v[1]), ty, mode))),
        "fma" | "mad" => scalar(&[ty; 3], move |v| to(numbers::fma(n(v[0]), n(v[1]), n(v[2]), ty, mode))),
        "div" => scalar(&[ty; 2], move |v| to(numbers::div(n(v[0]), n(v[1]), ty, mode))),
        "rcp" if ty == Ty::F64 && ftz => scalar(&[ty], |v| numbers::of_upper_half(v[0], |x| 1.0 / x)),
        "rsqrt" if ty == Ty::F64 && ftz => scalar(&[ty], |v| numbers::of_upper_half(v[0], |x| 1.0 / x.sqrt())),
        "rcp" => scalar(&[ty], move |v| to(numbers::div(1.0, n(v[0]), ty, mode))),
        "sqrt" => scalar(&[ty], move |v| to(numbers::sqrt(n(v[0]), ty, mode))),
        "rsqrt" => approximate(|x| 1.0 / x.sqrt()),
        "sin" => approximate(f64::sin),
        "cos" => approximate(f64::cos),
        "lg2" => approximate(f64::log2),
        "ex2" => approximate(f64::exp2),
        "tanh" => approximate(f64::tanh),
        "abs" => scalar(&[ty], move |v| flushed(v[0], ty, ftz) & !numbers::sign(ty)),
        "neg" => scalar(&[ty], move |v| flushed(v[0], ty, ftz) ^ numbers::sign(ty)),
        "copysign" => scalar(&[ty; 2], move |v| v[1] & !numbers::sign(ty) | v[0] & numbers::sign(ty)),
        "min" | "max" => {
            let largest = name == "max";
            scalar(&[ty; 2], move |v| {
                // The sign of the product, of the magnitudes' extreme.
                let sign = if xors { (v[0] ^ v[1]) & numbers::sign(ty) } else { 0 };
                let v = if xors {
                    v.map(|bits| bits & !numbers::sign(ty))
                } else {
                    *v
                };
                let (a, b) = (n(v[0]), n(v[1]));
                if a.is_nan() && b.is_nan() || keeps_nan && (a.is_nan() || b.is_nan()) {
                    return to(f64::NAN);
                }
                let less = a < b || a == b && a.is_sign_negative();
                let is_second = a.is_nan() || !b.is_nan() && less == largest;
                flushed(if is_second { v[1] } else { v[0] }, ty, ftz) | sign
            })
        }
        "testp" => {
            let test = words[0];
            scalar(&[ty], move |v| {
                let (magnitude, infinity) = (v[0] & (numbers::sign(ty) - 1), ty.exponent());
                let is_subnormal = magnitude != 0 && magnitude & infinity == 0;
                u64::from(match test {
                    "finite" => magnitude < infinity,
                    "infinite" => magnitude == infinity,
                    "number" => magnitude <= infinity,
                    "notanumber" => magnitude > infinity,
                    // Zeros count as normal.
                    "normal" => magnitude < infinity && !is_subnormal,
                    _ => is_subnormal,
                })
            })
        }
        _ => None,
    }
}

/// Pairs of elements of 16 bits.
fn pairs(name: &str, words: &[&'static str], element: &'static str) -> Option<Scalar> {
    let whole = Ty::of(words.last()?).unwrap_or(U32);
    let half = of_words(name, &[&words[..words.len() - 1], &[element]].concat())?;
    let (count, compute) = (half.from.len(), half.compute);
    scalar(&vec![whole; count], move |v| {
        let part = |at: u32| compute(&v.map(|value| value >> (16 * at) & 0xffff));
        part(0) | part(1) << 16
    })
}

/// A comparison with the bits of its operands: whether it holds.
pub(super) fn compares(words: &[&str], ty: Ty) -> Option<Box<dyn Fn(u64, u64) -> bool + Send + Sync>> {
    use std::cmp::Ordering::{self, Equal, Greater, Less};
    let ftz = words.contains(&"ftz");
    const NAMES: [&str; 18] = [
        "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num",
        "nan",
    ];
    let name = *NAMES.iter().find(|name| words.contains(name))?;
    let is_unordered = matches!(name, "equ" | "neu" | "ltu" | "leu" | "gtu" | "geu" | "nan");
    let holds = move |order: Option<Ordering>| match (order, &name[..2]) {
        (None, _) => is_unordered,
        (Some(_), _) if name == "num" => true,
        (Some(_), _) if name == "nan" => false,
        (Some(order), "eq") => order == Equal,
        (Some(order), "ne") => order != Equal,
        (Some(order), "lt" | "lo") => order == Less,
        (Some(order), "le" | "ls") => order != Greater,
        (Some(order), "gt" | "hi") => order == Greater,
        (Some(order), _) => order != Less,
    };
    Some(match ty {
        Ty::Int(bits, signed) => {
            Box::new(move |a, b| holds(Some(extend(a, bits, signed).cmp(&extend(b, bits, signed)))))
        }
        Ty::F32 | Ty::F64 | Ty::Half(_) => {
            Box::new(move |a, b| holds(numbers::value(a, ty, ftz).partial_cmp(&numbers::value(b, ty, ftz))))
        }
        _ => return None,
    })
}
