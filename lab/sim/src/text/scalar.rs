//! Scalar instructions that the kernel language has not, as functions of the bits of their operands.
//!
//! Source: PTX ISA 9.0, "Integer Arithmetic Instructions" to "Data Movement and Conversion Instructions".

use flashcore_ptx::Spelled;

use super::numbers::{self, Mode, Ty, extend, mask};
use crate::float;

/// A function of the bits of up to four operands.
pub(crate) type Compute = Box<dyn Fn(&[u64; 4]) -> u64 + Send + Sync>;

/// The types of the operands, and the function.
pub(super) struct Scalar {
    pub(super) from: Vec<Ty>,
    pub(super) compute: Compute,
}

fn scalar(_to: Ty, from: &[Ty], compute: impl Fn(&[u64; 4]) -> u64 + Send + Sync + 'static) -> Option<Scalar> {
    let (from, compute) = (from.to_vec(), Box::new(compute) as Compute);
    Some(Scalar { from, compute })
}

const U32: Ty = Ty::Int(32, false);

/// What a form computes; none for others, and for those that are not known.
pub(super) fn read(form: &Spelled) -> Option<Scalar> {
    let words: Vec<&str> = form.modifiers().collect();
    let ty = Ty::of(words.last()?)?;
    let has = |word: &str| words.contains(&word);
    let lo = !has("hi");
    if has("cc") || ["addc", "subc", "madc"].contains(&form.name()) {
        return None;
    }
    match form.name() {
        "cvt" => return convert(&words),
        "setp" => return None,
        "set" => return None,
        _ => {}
    }
    if matches!(ty, Ty::F32 | Ty::F64 | Ty::Half(_) | Ty::Halves(_)) {
        return floats(form.name(), &words, ty);
    }
    let Ty::Int(bits, signed) = ty else {
        return predicates(form.name());
    };
    let x = move |value: u64| extend(value, bits, signed);
    let two = [ty, ty];
    match form.name() {
        "add" if has("sat") => scalar(ty, &two, move |v| {
            (x(v[0]) + x(v[1])).clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as u64 & mask(bits)
        }),
        "sub" if has("sat") => scalar(ty, &two, move |v| {
            (x(v[0]) - x(v[1])).clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as u64 & mask(bits)
        }),
        "add" => scalar(ty, &two, move |v| v[0].wrapping_add(v[1]) & mask(bits)),
        "sub" => scalar(ty, &two, move |v| v[0].wrapping_sub(v[1]) & mask(bits)),
        "mul" | "mad" if has("wide") => {
            let wide = Ty::Int(2 * bits, signed);
            let is_sum = form.name() == "mad";
            let from = if is_sum { vec![ty, ty, wide] } else { two.to_vec() };
            scalar(wide, &from, move |v| {
                let sum = if is_sum { i128::from(v[2]) } else { 0 };
                (x(v[0]) * x(v[1]) + sum) as u64 & mask(2 * bits)
            })
        }
        "mul" | "mad" if !has("sat") => {
            let is_sum = form.name() == "mad";
            let from = if is_sum { vec![ty; 3] } else { two.to_vec() };
            scalar(ty, &from, move |v| {
                let product = if signed {
                    x(v[0]).wrapping_mul(x(v[1])) as u128
                } else {
                    u128::from(v[0] & mask(bits)) * u128::from(v[1] & mask(bits))
                };
                let part = if lo { product as u64 } else { (product >> bits) as u64 };
                part.wrapping_add(if is_sum { v[2] } else { 0 }) & mask(bits)
            })
        }
        "mul24" | "mad24" if lo => {
            let is_sum = form.name() == "mad24";
            let from = if is_sum { vec![ty; 3] } else { two.to_vec() };
            let short = move |value: u64| extend(value, 24, signed);
            scalar(ty, &from, move |v| {
                ((short(v[0]) * short(v[1])) as u64).wrapping_add(if is_sum { v[2] } else { 0 }) & mask(bits)
            })
        }
        "sad" => scalar(ty, &[ty; 3], move |v| {
            ((x(v[0]) - x(v[1])).unsigned_abs() as u64).wrapping_add(v[2]) & mask(bits)
        }),
        // As the GPU's routine divides by zero.
        "div" => scalar(ty, &two, move |v| {
            x(v[0])
                .checked_div(x(v[1]))
                .map_or(mask(bits), |q| q as u64 & mask(bits))
        }),
        "rem" => scalar(ty, &two, move |v| {
            x(v[0]).checked_rem(x(v[1])).map_or(v[0], |r| r as u64) & mask(bits)
        }),
        "abs" => scalar(ty, &[ty], move |v| x(v[0]).unsigned_abs() as u64 & mask(bits)),
        "neg" => scalar(ty, &[ty], move |v| v[0].wrapping_neg() & mask(bits)),
        "min" if !has("relu") => scalar(ty, &two, move |v| x(v[0]).min(x(v[1])) as u64 & mask(bits)),
        "max" if !has("relu") => scalar(ty, &two, move |v| x(v[0]).max(x(v[1])) as u64 & mask(bits)),
        "popc" => scalar(U32, &[ty], move |v| u64::from((v[0] & mask(bits)).count_ones())),
        "clz" => scalar(U32, &[ty], move |v| {
            u64::from((v[0] & mask(bits)).leading_zeros() - (64 - bits))
        }),
        "brev" => scalar(ty, &[ty], move |v| (v[0] & mask(bits)).reverse_bits() >> (64 - bits)),
        "bfind" => {
            let shifts = has("shiftamt");
            scalar(U32, &[ty], move |v| {
                let value = x(v[0]);
                let seen = if value < 0 { !value } else { value } as u64 & mask(bits);
                match seen {
                    0 => 0xffff_ffff,
                    _ if shifts => u64::from(seen.leading_zeros() + bits - 64),
                    _ => u64::from(63 - seen.leading_zeros()),
                }
            })
        }
        "bfe" => scalar(ty, &[ty, U32, U32], move |v| {
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
        "bfi" => scalar(ty, &[ty, ty, U32, U32], move |v| {
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
            scalar(ty, &[ty, ty, U32], move |v| {
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
            scalar(ty, &[U32, U32, U32], move |v| {
                let byte = |value: u64, at: u32, signed| extend(value >> (8 * at), 8, signed) as i64;
                let sum: i64 = (0..4)
                    .map(|at| byte(v[0], at, signs[0]) * byte(v[1], at, signs[1]))
                    .sum();
                (sum as u64).wrapping_add(v[2]) & mask(32)
            })
        }
        "and" => scalar(ty, &two, |v| v[0] & v[1]),
        "or" => scalar(ty, &two, |v| v[0] | v[1]),
        "xor" => scalar(ty, &two, |v| v[0] ^ v[1]),
        "not" => scalar(ty, &[ty], move |v| !v[0] & mask(bits)),
        "cnot" => scalar(ty, &[ty], move |v| u64::from(v[0] & mask(bits) == 0)),
        "shl" => scalar(ty, &[ty, U32], move |v| {
            if v[1] >= u64::from(bits) {
                0
            } else {
                v[0] << v[1] & mask(bits)
            }
        }),
        "shr" => scalar(ty, &[ty, U32], move |v| {
            (x(v[0]) >> v[1].min(u64::from(bits))) as u64 & mask(bits)
        }),
        "selp" => scalar(ty, &[ty, ty, Ty::Pred], |v| if v[2] != 0 { v[0] } else { v[1] }),
        "bmsk" => {
            let clamps = has("clamp");
            scalar(ty, &[U32, U32], move |v| {
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

fn predicates(name: &str) -> Option<Scalar> {
    let two = [Ty::Pred; 2];
    match name {
        "and" => scalar(Ty::Pred, &two, |v| v[0] & v[1]),
        "or" => scalar(Ty::Pred, &two, |v| v[0] | v[1]),
        "xor" => scalar(Ty::Pred, &two, |v| v[0] ^ v[1]),
        "not" => scalar(Ty::Pred, &two[1..], |v| v[0] ^ 1),
        "mov" => scalar(Ty::Pred, &two[1..], |v| v[0]),
        _ => None,
    }
}

/// Arithmetic of floats: of f32 exact until it is rounded once, of f64 as the host has it.
fn floats(name: &str, words: &[&str], ty: Ty) -> Option<Scalar> {
    let has = |word: &str| words.contains(&word);
    if ["xorsign", "noftz"].iter().any(|word| has(word)) {
        return None;
    }
    let (mode, ftz, sat, keeps_nan) = (Mode::of(words), has("ftz"), has("sat"), has("NaN"));
    if ty == Ty::F64 && !matches!(mode, None | Some(Mode::Nearest)) {
        return None;
    }
    let to = move |value: f64| numbers::rounded(value, ty, mode.unwrap_or(Mode::Nearest), ftz, sat);
    let n = move |bits: u64| numbers::value(bits, ty, ftz);
    if name == "selp" {
        return scalar(ty, &[ty, ty, Ty::Pred], |v| if v[2] != 0 { v[0] } else { v[1] });
    }
    if let Ty::Halves(is_bf16) = ty {
        return halves(name, words, is_bf16);
    }
    let approximate = |f: fn(f64) -> f64| scalar(ty, &[ty], move |v| to(f(n(v[0]))));
    match name {
        "add" => scalar(ty, &[ty; 2], move |v| to(numbers::add(n(v[0]), n(v[1]), ty))),
        "sub" => scalar(ty, &[ty; 2], move |v| to(numbers::add(n(v[0]), -n(v[1]), ty))),
        // Exact for f32 and narrower.
        "mul" => scalar(ty, &[ty; 2], move |v| to(n(v[0]) * n(v[1]))),
        "fma" | "mad" if !has("relu") => scalar(ty, &[ty; 3], move |v| to(numbers::fma(n(v[0]), n(v[1]), n(v[2]), ty))),
        "div" => scalar(ty, &[ty; 2], move |v| to(numbers::div(n(v[0]), n(v[1]), ty))),
        "rcp" if ty == Ty::F64 && has("approx") => scalar(ty, &[ty], move |v| (1.0 / n(v[0])).to_bits() & !0xffff_ffff),
        "rcp" => scalar(ty, &[ty], move |v| to(numbers::div(1.0, n(v[0]), ty))),
        "sqrt" => scalar(ty, &[ty], move |v| to(numbers::sqrt(n(v[0]), ty))),
        "rsqrt" => approximate(|x| 1.0 / x.sqrt()),
        "sin" => approximate(f64::sin),
        "cos" => approximate(f64::cos),
        "lg2" => approximate(f64::log2),
        "ex2" => approximate(f64::exp2),
        "tanh" => approximate(f64::tanh),
        "abs" => scalar(ty, &[ty], move |v| flushed(v[0], ty, ftz) & !numbers::sign(ty)),
        "neg" => scalar(ty, &[ty], move |v| flushed(v[0], ty, ftz) ^ numbers::sign(ty)),
        "copysign" => scalar(ty, &[ty; 2], move |v| {
            v[1] & !numbers::sign(ty) | v[0] & numbers::sign(ty)
        }),
        "min" | "max" => {
            let largest = name == "max";
            scalar(ty, &[ty; 2], move |v| {
                let (a, b) = (n(v[0]), n(v[1]));
                if a.is_nan() || b.is_nan() {
                    let number = if a.is_nan() { b } else { a };
                    return to(if keeps_nan { f64::NAN } else { number });
                }
                let less = a < b || a == b && a.is_sign_negative();
                flushed(if less == largest { v[1] } else { v[0] }, ty, ftz)
            })
        }
        _ => None,
    }
}

fn flushed(bits: u64, ty: Ty, ftz: bool) -> u64 {
    if ftz && ty == Ty::F32 {
        u64::from(float::flush(bits as u32))
    } else {
        bits
    }
}

/// Pairs of 16-bit floats.
fn halves(name: &str, words: &[&str], is_bf16: bool) -> Option<Scalar> {
    let one = Ty::Half(is_bf16);
    let words: Vec<&str> = words[..words.len() - 1].to_vec();
    let half = floats(name, &words, one)?;
    let (count, compute) = (half.from.len(), half.compute);
    scalar(Ty::Halves(is_bf16), &vec![Ty::Halves(is_bf16); count], move |v| {
        let part = |at: u32| compute(&v.map(|value| value >> (16 * at) & 0xffff));
        part(0) | part(1) << 16
    })
}

/// `cvt`: the two last words are the types.
fn convert(words: &[&str]) -> Option<Scalar> {
    let [.., to, from] = words else { return None };
    let has = |word: &str| words.contains(&word);
    if has("relu") || has("satfinite") || has("pack") {
        return None;
    }
    if *to == "tf32" {
        return has("rna").then(|| {
            scalar(U32, &[Ty::F32], |v| match v[0] & 0x7f80_0000 {
                0x7f80_0000 => v[0],
                _ => v[0].wrapping_add(0x1000) & 0xffff_e000,
            })
        })?;
    }
    let (to, from) = (Ty::of(to)?, Ty::of(from)?);
    let (ftz, sat) = (has("ftz"), has("sat"));
    let whole = words.iter().find_map(|word| match *word {
        "rni" => Some(f64::round_ties_even as fn(f64) -> f64),
        "rzi" => Some(f64::trunc),
        "rmi" => Some(f64::floor),
        "rpi" => Some(f64::ceil),
        _ => None,
    });
    let mode = Mode::of(words).unwrap_or(Mode::Nearest);
    if mode != Mode::Nearest && to != Ty::F32 {
        return None;
    }
    match (to, from) {
        (Ty::Int(bits, signed), Ty::Int(from_bits, from_signed)) => scalar(to, &[from], move |v| {
            let value = extend(v[0], from_bits, from_signed);
            let (least, most) = numbers::range(bits, signed);
            let value = if sat { value.clamp(least, most) } else { value };
            numbers::placed(value as u64, bits, signed)
        }),
        (Ty::Int(bits, signed), Ty::F32 | Ty::F64 | Ty::Half(_)) => scalar(to, &[from], move |v| {
            let value = whole.map_or(0.0, |whole| whole(numbers::value(v[0], from, ftz)));
            let (least, most) = numbers::range(bits, signed);
            // Casts saturate and map NaN to 0.
            numbers::placed((value as i128).clamp(least, most) as u64, bits, signed)
        }),
        (Ty::F32 | Ty::F64 | Ty::Half(_), Ty::Int(bits, signed)) => {
            if mode != Mode::Nearest && bits > 32 {
                return None;
            }
            scalar(to, &[from], move |v| {
                let value = extend(v[0], bits, signed);
                match to {
                    Ty::F32 if mode == Mode::Nearest => u64::from((value as f32).to_bits()),
                    _ => numbers::rounded(value as f64, to, mode, false, sat),
                }
            })
        }
        (Ty::F32 | Ty::F64 | Ty::Half(_), Ty::F32 | Ty::F64 | Ty::Half(_)) => scalar(to, &[from], move |v| {
            let value = numbers::value(v[0], from, ftz);
            numbers::rounded(whole.map_or(value, |whole| whole(value)), to, mode, ftz, sat)
        }),
        _ => None,
    }
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
        Ty::Halves(_) | Ty::Pred => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn computed(form: &str, operands: [u64; 4]) -> u64 {
        let scalar = read(&flashcore_ptx::read(form).unwrap()).unwrap();
        (scalar.compute)(&operands)
    }

    fn float(form: &str, operands: [f32; 3]) -> f32 {
        let [a, b, c] = operands.map(|x| u64::from(x.to_bits()));
        f32::from_bits(computed(form, [a, b, c, 0]) as u32)
    }

    #[test]
    fn floats_are_rounded_as_their_mode_says() {
        // 1 + 2^-30 is no f32.
        let tiny = 2f32.powi(-30);
        assert_eq!(float("add.rn.f32", [1.0, tiny, 0.0]), 1.0);
        assert_eq!(float("add.rz.f32", [1.0, tiny, 0.0]), 1.0);
        assert_eq!(float("add.rp.f32", [1.0, tiny, 0.0]), 1f32.next_up());
        assert_eq!(float("add.rm.f32", [1.0, -tiny, 0.0]), 1f32.next_down());
        assert_eq!(float("fma.rm.f32", [-1.0, 1.0, -tiny]), (-1f32).next_down());
        assert_eq!(float("div.rn.f32", [1.0, 3.0, 0.0]), 1.0 / 3.0);
        assert_eq!(float("div.rp.f32", [1.0, 3.0, 0.0]), 1.0 / 3.0);
        assert_eq!(float("div.rm.f32", [1.0, 3.0, 0.0]), (1f32 / 3.0).next_down());
        assert_eq!(float("sqrt.rn.f32", [2.0, 0.0, 0.0]), 2f32.sqrt());
        assert_eq!(float("add.sat.f32", [1.0, 1.0, 0.0]), 1.0);
        assert_eq!(float("cvt.rni.f32.f32", [2.5, 0.0, 0.0]), 2.0);
        assert_eq!(float("add.ftz.f32", [1e-40, 0.0, 0.0]), 0.0);
    }

    #[test]
    fn integers_have_their_widths() {
        for (form, operands, expected) in [
            ("add.s16", [0xffff, 2, 0, 0], 1),
            ("mul.hi.s16", [0x8000, 2, 0, 0], 0xffff),
            ("mul.wide.u16", [0xffff, 0xffff, 0, 0], 0xfffe_0001),
            ("shr.s16", [0x8000, 4, 0, 0], 0xf800),
            ("min.s64", [u64::MAX, 1, 0, 0], u64::MAX),
            ("bfe.s32", [0x0000_0f00, 8, 4, 0], 0xffff_ffff),
            ("bfe.u32", [0x0000_0f00, 8, 4, 0], 15),
            ("bfi.b32", [0x3, 0xffff_0000, 4, 2], 0xffff_0030),
            ("bfind.u32", [0x10, 0, 0, 0], 4),
            ("bfind.shiftamt.u32", [0x10, 0, 0, 0], 27),
            ("brev.b32", [1, 0, 0, 0], 1 << 31),
            ("shf.l.wrap.b32", [0x8000_0000, 1, 1, 0], 3),
            ("dp4a.s32.s32", [0xff02_0304, 0x0101_0101, 10, 0], 18),
            ("cvt.s8.s32", [0x1ff, 0, 0, 0], u64::MAX),
            ("cvt.sat.u8.s32", [0x1ff, 0, 0, 0], 255),
            ("cvt.rzi.s32.f32", [u64::from(3e9f32.to_bits()), 0, 0, 0], 0x7fff_ffff),
        ] {
            assert_eq!(computed(form, operands), expected, "{form}");
        }
    }
}
