//! Conversions. Between integers there is no rounding; to an integer, and between equal types, it is to a whole number;
//! from a wider float it is needed.

use super::{Row, row, row_if};

/// A conversion flushes f32 alone.
fn flushes(words: &[&str]) -> bool {
    !words.contains(&"ftz") || words.contains(&"f32")
}

/// Integers saturate where the other type has values that theirs has not.
fn saturates(words: &[&str]) -> bool {
    let ["sat", to, from] = words else { return true };
    let bits = |ty: &str| ty[1..].parse::<u32>().unwrap_or(0);
    match (to.starts_with('u'), from.starts_with('u')) {
        (true, false) => true,
        (false, true) => bits(to) <= bits(from),
        _ => bits(to) < bits(from),
    }
}

pub(super) const ROWS: &[Row] = &[
    row_if("cvt{.sat}.INT8.INT8", "d:first a", saturates),
    row_if("cvt.IRND{.ftz}{.sat}.INT8.FTO", "d:first a", flushes),
    row("cvt.RND{.sat}.FTO.INT8", "d:first a"),
    row("cvt{.ftz}{.sat}.f32.f16", "d:first a"),
    row("cvt{.sat}.f64.f16", "d:first a"),
    row("cvt{.ftz}{.sat}.f64.f32", "d:first a"),
    row("cvt.RND{.ftz}{.sat}.f16.f32", "d:first a"),
    row("cvt.RND{.sat}.f16.f64", "d:first a"),
    row("cvt.RND{.ftz}{.sat}.f32.f64", "d:first a"),
    row("cvt{.IRND}{.ftz}{.sat}.f32.f32", "d a"),
    row("cvt{.IRND}{.sat}.f64.f64", "d a"),
    row("cvt{.IRND}{.sat}.f16.f16", "d a"),
    row("cvt{.ftz}.f32.bf16", "d:first a"),
    row("cvt.f64.bf16", "d:first a"),
    row("cvt.RND.bf16.f64", "d:first a"),
    row("cvt.rn{.relu}{.satfinite}.bf16.f32", "d:first a"),
    row("cvt.rz{.relu}{.satfinite}.bf16.f32", "d:first a"),
    row("cvt.rm.bf16.f32", "d:first a"),
    row("cvt.rp.bf16.f32", "d:first a"),
    row("cvt.rn{.relu}{.satfinite}.f16.f32", "d:first a"),
    row("cvt.rz{.relu}{.satfinite}.f16.f32", "d:first a"),
    row("cvt.RND.bf16.INT", "d:first a"),
    row("cvt.IRND.INT.bf16", "d:first a"),
    row("cvt.RND.bf16.f16", "d:first a"),
    row("cvt.RND.f16.bf16", "d:first a"),
    row("cvt{.IRND}.bf16.bf16", "d a"),
    row("cvt.rn{.relu}{.satfinite}.f16x2.f32", "d:b32 a a"),
    row("cvt.rz{.relu}{.satfinite}.f16x2.f32", "d:b32 a a"),
    row("cvt.rn{.relu}{.satfinite}.bf16x2.f32", "d:b32 a a"),
    row("cvt.rz{.relu}{.satfinite}.bf16x2.f32", "d:b32 a a"),
    row("cvt.rna{.satfinite}.tf32.f32", "d:b32 a"),
    row("cvt.rn{.relu}.tf32.f32", "d:b32 a"),
    row("cvt.rz{.relu}.tf32.f32", "d:b32 a"),
    row("cvt.rn.satfinite{.relu}.FP8X2.f32", "d:b16 a a"),
    row("cvt.rn.satfinite{.relu}.FP8X2.f16x2", "d:b16 a:b32"),
    row("cvt.rn{.relu}.f16x2.FP8X2", "d:b32 a:b16"),
    row("cvt.pack.sat.u16.s32", "d:b32 a a"),
    row("cvt.pack.sat.s16.s32", "d:b32 a a"),
    row("cvt.pack.sat.u8.s32.b32", "d:b32 a a a"),
    row("cvt.pack.sat.s8.s32.b32", "d:b32 a a a"),
];
