//! Results of read-modify-write operations.

use flashcore_ir::ScalarType;
use flashcore_ir::inst::AtomOp;

use crate::float::{self, f, result};

/// The new value of a 4-byte element.
pub(crate) fn apply(op: AtomOp, ty: ScalarType, old: u32, value: u32) -> u32 {
    match (op, ty) {
        (AtomOp::Exch, _) => value,
        (AtomOp::Add, ScalarType::F32) => result(f(old) + f(value)),
        (AtomOp::Add, _) => old.wrapping_add(value),
        (AtomOp::Max, ScalarType::S32) => (old as i32).max(value as i32) as u32,
        (AtomOp::Min, ScalarType::S32) => (old as i32).min(value as i32) as u32,
        (AtomOp::Max, ScalarType::F32) => float::max_f32(old, value),
        (AtomOp::Min, ScalarType::F32) => float::min_f32(old, value),
        (AtomOp::Max, _) => old.max(value),
        (AtomOp::Min, _) => old.min(value),
    }
}

/// As [`apply`] for global memory, where f32 sums flush subnormals (PTX ISA, `atom`).
pub(crate) fn apply_global(op: AtomOp, ty: ScalarType, old: u32, value: u32) -> u32 {
    match (op, ty) {
        (AtomOp::Add, ScalarType::F32) => float::flush(apply(op, ty, float::flush(old), float::flush(value))),
        _ => apply(op, ty, old, value),
    }
}
