//! The values that programs begin with: sections of ordinary and special values by type, common to all programs.

use flashcore_problem::rng::Rng;
use half::{bf16, f16};

/// Entries of a section, of 8 bytes each.
pub(super) const ENTRIES: u32 = 2048;
/// Bytes of a section.
pub(super) const SECTION: u32 = 8 * ENTRIES;

/// A type of the elements of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F16,
    BF16,
    F32,
    F64,
    E4M3,
    E5M2,
}

/// Values of matrices: those whose sums are exact in any order, numbers within ±1, and the first with infinities and
/// NaN among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Values {
    Small,
    Unit,
    Odd,
}

/// What a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pred,
    Int(u32),
    /// A count of bits.
    Shift,
    F16,
    F16x2,
    BF16,
    BF16x2,
    F32,
    F64,
    /// f32 of ordinary magnitude, for division by approximation.
    Mid,
    /// f32 within ±2π.
    Angle,
    Matrix(Element, Values),
}

const ELEMENTS: [Element; 6] = [
    Element::F16,
    Element::BF16,
    Element::F32,
    Element::F64,
    Element::E4M3,
    Element::E5M2,
];
const VALUES: [Values; 3] = [Values::Small, Values::Unit, Values::Odd];
/// Sections before those of matrices.
const PLAIN: [Kind; 10] = [
    Kind::Int(16),
    Kind::Int(32),
    Kind::Int(64),
    Kind::Shift,
    Kind::F16,
    Kind::BF16,
    Kind::F32,
    Kind::F64,
    Kind::Mid,
    Kind::Angle,
];

/// First byte of the values of a kind.
pub(super) fn section(kind: Kind) -> u32 {
    let kind = match kind {
        Kind::Int(8) => Kind::Int(16),
        Kind::F16x2 => Kind::F16,
        Kind::BF16x2 => Kind::BF16,
        Kind::Pred => Kind::Int(32),
        other => other,
    };
    let all = PLAIN.into_iter().chain(matrices());
    let place = all.into_iter().position(|known| known == kind).unwrap_or(0);
    place as u32 * SECTION
}

fn matrices() -> impl Iterator<Item = Kind> {
    ELEMENTS
        .into_iter()
        .flat_map(|element| VALUES.map(|values| Kind::Matrix(element, values)))
}

/// All sections.
pub(super) fn pool(seed: u64) -> Vec<u8> {
    let mut rng = Rng::stream(seed, u64::MAX);
    let mut bytes = Vec::new();
    for kind in PLAIN.into_iter().chain(matrices()) {
        for _ in 0..ENTRIES {
            bytes.extend(word(kind, &mut rng).to_le_bytes());
        }
    }
    bytes
}

/// An entry of 8 bytes; narrower values fill it.
fn word(kind: Kind, rng: &mut Rng) -> u64 {
    match kind {
        Kind::Int(bits) => filled(bits, || integer(bits, rng)),
        Kind::Shift => match rng.below(16) {
            0 => 255,
            1 => u64::from(u32::MAX),
            2 => rng.next_u64(),
            _ => rng.below(72) as u64,
        },
        Kind::F64 => {
            let wide = F32_EDGES.map(|bits| f64::from(f32::from_bits(bits as u32)).to_bits());
            floats(64, &[&F64_EDGES[..], &wide].concat(), 40, f64::to_bits, rng)
        }
        Kind::F32 => floats(32, &F32_EDGES, 40, |x| u64::from((x as f32).to_bits()), rng),
        Kind::F16 => floats(16, &F16_EDGES, 6, |x| f16::from_f64(x).to_bits().into(), rng),
        Kind::BF16 => floats(16, &BF16_EDGES, 20, |x| bf16::from_f64(x).to_bits().into(), rng),
        Kind::Mid | Kind::Angle => filled(32, || match rng.below(32) {
            0 => *rng
                .pick(&F32_EDGES[..if kind == Kind::Mid { 5 } else { 6 }])
                .unwrap_or(&0),
            _ if kind == Kind::Mid => u64::from((float(rng, 40) as f32).to_bits()),
            _ => u64::from(((2.0 * rng.unit() - 1.0) * std::f32::consts::TAU).to_bits()),
        }),
        Kind::Matrix(element, values) => {
            let bits = match element {
                Element::F64 => 64,
                Element::F32 => 32,
                Element::F16 | Element::BF16 => 16,
                Element::E4M3 | Element::E5M2 => 8,
            };
            filled(bits, || stored(element, values, rng))
        }
        Kind::Pred | Kind::F16x2 | Kind::BF16x2 => 0,
    }
}

/// An entry of values of so many bits.
fn filled(bits: u32, mut each: impl FnMut() -> u64) -> u64 {
    (0..64 / bits).fold(0, |all, at| all | each() << (bits * at))
}

/// Edges, any bits, and numbers with an exponent of at most so much.
fn floats(bits: u32, edges: &[u64], exponent: i32, bits_of: fn(f64) -> u64, rng: &mut Rng) -> u64 {
    filled(bits, || match rng.below(4) {
        0 => *rng.pick(edges).unwrap_or(&0),
        1 => rng.next_u64() >> (64 - bits),
        _ => bits_of(float(rng, exponent)),
    })
}

fn integer(bits: u32, rng: &mut Rng) -> u64 {
    let mask = u64::MAX >> (64 - bits);
    let value = match rng.below(8) {
        0 => *rng
            .pick(&[0, 1, mask, 1 << (bits - 1), mask >> 1, (1 << (bits / 2)) - 1])
            .unwrap_or(&0),
        1 => rng.below(64) as u64,
        2 => (rng.below(64) as u64).wrapping_neg(),
        3 => 1 << rng.below(bits as usize),
        _ => rng.next_u64(),
    };
    value & mask
}

/// Any fraction, with an exponent of at most so much.
fn float(rng: &mut Rng, exponent: i32) -> f64 {
    let bits = rng.next_u64();
    let exponent = rng.between(0, 2 * exponent as usize) as i32 - exponent;
    // Some have few bits, so that sums and quotients are exact or halfway.
    let kept: u64 = [0x800f_0000_0000_0000, 0x800f_ffff_ffff_ffff][rng.below(4).min(1)];
    f64::from_bits(bits & kept | 0x3ff0_0000_0000_0000) * 2f64.powi(exponent)
}

/// An element of a matrix as it is stored.
fn stored(element: Element, values: Values, rng: &mut Rng) -> u64 {
    const SMALL: [f64; 10] = [0.0, 0.5, 1.0, 2.0, 3.0, 4.0, -0.5, -1.0, -2.0, -3.0];
    let [infinity, nan] = match element {
        Element::F16 => [0x7c00, 0x7fff],
        Element::BF16 => [0x7f80, 0x7fff],
        Element::F32 => [0x7f80_0000, 0x7fff_ffff],
        Element::F64 => [f64::INFINITY.to_bits(), 0x7fff_ffff_ffff_ffff],
        Element::E4M3 => [0x7f, 0x7f],
        Element::E5M2 => [0x7c, 0x7f],
    };
    if values == Values::Odd && rng.below(64) == 0 {
        return if rng.below(2) == 0 { infinity } else { nan };
    }
    let value = match values {
        Values::Unit => 2.0 * (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 - 1.0,
        _ => *rng.pick(&SMALL).unwrap_or(&0.0),
    };
    match element {
        Element::F16 => f16::from_f64(value).to_bits().into(),
        Element::BF16 => bf16::from_f64(value).to_bits().into(),
        Element::F32 => u64::from((value as f32).to_bits()),
        Element::F64 => value.to_bits(),
        // Truncated: all finite codes are values.
        Element::E5M2 => u64::from(f16::from_f64(value).to_bits() >> 8),
        Element::E4M3 => u64::from(e4m3(value)),
    }
}

/// A number within ±4 as e4m3, truncated: in that range it has the leading bits of an f16 of 1/256 of it.
fn e4m3(value: f64) -> u8 {
    let bits = f16::from_f64(value / 256.0).to_bits();
    (bits >> 8 & 0x80 | bits >> 7 & 0x7f) as u8
}

/// ±0, ±∞, NaN, the smallest, ±1, the largest, subnormal numbers, those halfway between narrower ones, the bounds of
/// integers.
#[rustfmt::skip]
const F32_EDGES: [u64; 27] = [
    0x0000_0000, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fff_ffff, 0x0000_0001, 0x7f7f_ffff, 0xff7f_ffff, 0x0080_0000,
    0x007f_ffff, 0x8000_0001, 0x3f80_0000, 0xbf80_0000, 0x3f00_0000, 0x3fc0_0000, 0x4020_0000, 0xbf00_0000,
    0x3f80_1000, 0x3f80_3000, 0x3f80_8000, 0x3f81_8000, 0x477f_e000, 0x477f_f000, 0x43e0_0000, 0x43e8_0001,
    0x4f00_0000, 0xcf00_0001,
];
#[rustfmt::skip]
const F64_EDGES: [u64; 13] = [
    0x7fff_ffff_ffff_ffff, 0x7fef_ffff_ffff_ffff, 0xffef_ffff_ffff_ffff, 1, 0x8000_0000_0000_0001,
    0x0010_0000_0000_0000, 0x000f_ffff_ffff_ffff, 0x43e0_0000_0000_0000, 0xc3e0_0000_0000_0000,
    0x43f0_0000_0000_0000, 0x41e0_0000_0000_0000, 0x3ff0_0000_0000_0001, 0x3ff0_0000_1000_0000,
];
const F16_EDGES: [u64; 12] = [
    0x0000, 0x8000, 0x7c00, 0xfc00, 0x7fff, 0x7bff, 0xfbff, 0x0400, 0x0001, 0x83ff, 0x3c00, 0xbc00,
];
const BF16_EDGES: [u64; 12] = [
    0x0000, 0x8000, 0x7f80, 0xff80, 0x7fff, 0x7f7f, 0xff7f, 0x0080, 0x0001, 0x807f, 0x3f80, 0xbf80,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_where_their_values_are() {
        let pool = pool(1);
        let at = |kind, size: usize| &pool[section(kind) as usize..][..size];
        let angle = f32::from_le_bytes(at(Kind::Angle, 4).try_into().unwrap());
        assert!(angle.abs() < 6.3 || !angle.is_finite(), "{angle}");
        let shift = u64::from_le_bytes(at(Kind::Shift, 8).try_into().unwrap());
        assert_eq!(shift, u64::from_le_bytes(at(Kind::Shift, 8).try_into().unwrap()));
        let last = Kind::Matrix(Element::E5M2, Values::Odd);
        assert_eq!(section(last) + SECTION, pool.len() as u32);
        // 3 and -0.5 as e4m3.
        assert_eq!((e4m3(3.0), e4m3(-0.5)), (0x44, 0xb0));
    }
}
