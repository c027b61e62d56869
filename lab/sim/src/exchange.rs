//! What `redux.sync` makes of values.

use flashcore_ir::inst::BinOp;

/// Two values as one.
pub(crate) fn combine(op: BinOp, signed: bool, a: u32, b: u32) -> u32 {
    match (op, signed) {
        (BinOp::Min, false) => a.min(b),
        (BinOp::Max, false) => a.max(b),
        (BinOp::Min, true) => (a as i32).min(b as i32) as u32,
        (BinOp::Max, true) => (a as i32).max(b as i32) as u32,
        (BinOp::And, _) => a & b,
        (BinOp::Or, _) => a | b,
        (BinOp::Xor, _) => a ^ b,
        (BinOp::Add, _) => a.wrapping_add(b),
        (BinOp::Sub | BinOp::Mul | BinOp::MulHi | BinOp::MulWide | BinOp::Div | BinOp::Rem, _)
        | (BinOp::Shl | BinOp::Shr, _) => unreachable!("redux has no {op:?} (`Inst::impossible`)"),
    }
}
