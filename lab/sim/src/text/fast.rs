//! Scalar instructions that have an operation of their own, by their form. `scalar.rs` computes the others.

use std::slice;

use flashcore_ir::Operand;
use flashcore_ir::inst::{BinOp, Cmp, Cvt, UnOp};
use flashcore_ir::types::{Reg, RegClass};
use flashcore_ptx::{Operand as Written, Spelled};

use super::Reader;
use super::cold::What;
use super::numbers::{Ty, mask};
use super::operands::Filled;
use super::scalar::{U32, U64};
use crate::program::{FloatOp, Half, Number, Op, Row};
use crate::report::Class;

/// The numbers of the operands in order.
const TWO: [Row; 2] = [0, 1];
const THREE: [Row; 3] = [0, 1, 2];
const FOUR: [Row; 4] = [0, 1, 2, 3];

/// An operation whose rows are the numbers of its operands: the results, then what it reads.
pub(super) struct Fast {
    op: Op<'static>,
    /// The type of the results, and those of the operands of the text.
    to: Ty,
    from: Vec<Ty>,
    /// A last operand, of the first one's type.
    constant: Option<u64>,
}

impl Fast {
    pub(super) fn new(op: Op<'static>, to: Ty, from: &[Ty]) -> Fast {
        let (from, constant) = (from.to_vec(), None);
        Fast { op, to, from, constant }
    }

    fn with(self, constant: u64) -> Fast {
        let constant = Some(constant);
        Fast { constant, ..self }
    }
}

/// The operation of a form; none for others.
pub(super) fn read(form: &Spelled) -> Option<Fast> {
    let words: Vec<&str> = form.modifiers().collect();
    let ty = Ty::of(words.last()?)?;
    match (form.name(), &words[..]) {
        ("cvt", _) => convert(&words, ty),
        ("selp", _) => {
            let rows = [0, 3, 1, 2];
            let op = if ty.bytes() == 8 {
                Op::Selp64(rows)
            } else {
                Op::Selp32(rows)
            };
            Some(Fast::new(op, ty, &[ty, ty, Ty::Pred]))
        }
        ("setp", [cmp, _]) => compare(cmp, ty),
        ("prmt", ["b32"]) => Some(Fast::new(Op::Prmt(FOUR), ty, &[ty; 3])),
        (name, words) => match ty {
            Ty::Pred => predicate(name),
            Ty::F32 | Ty::Halves(_) => float(name, words, ty),
            Ty::Int(bits, signed) => integer(name, words, bits, signed),
            _ => None,
        },
    }
}

fn predicate(name: &str) -> Option<Fast> {
    let two = |op| Some(Fast::new(op, Ty::Pred, &[Ty::Pred; 2]));
    match name {
        "and" => two(Op::PredAnd(THREE)),
        "or" => two(Op::PredOr(THREE)),
        "xor" => two(Op::PredXor(THREE)),
        "not" => Some(Fast::new(Op::PredXor(THREE), Ty::Pred, &[Ty::Pred]).with(1)),
        _ => None,
    }
}

fn integer(name: &str, words: &[&str], bits: u32, signed: bool) -> Option<Fast> {
    let (ty, is_wide) = (Ty::Int(bits, signed), bits == 64);
    let of = |op, rows| {
        if is_wide {
            Op::Int64(op, signed, rows)
        } else {
            Op::Int32(op, signed, rows)
        }
    };
    let two = |op| Some(Fast::new(of(op, THREE), ty, &[ty; 2]));
    let named = || BinOp::ALL.into_iter().find(|op| op.ptx() == name);
    match (name, words) {
        ("and" | "or" | "xor", [_]) => two(named()?),
        ("not", [_]) => Some(Fast::new(of(BinOp::Xor, THREE), ty, &[ty]).with(mask(bits))),
        _ if bits < 32 => None,
        ("add" | "sub" | "min" | "max" | "div" | "rem", [_]) => two(named()?),
        ("shl" | "shr", [_]) => Some(Fast::new(of(named()?, THREE), ty, &[ty, U32])),
        ("mul", ["lo", _]) => two(BinOp::Mul),
        ("mul", ["hi", _]) => two(BinOp::MulHi),
        ("mul", ["wide", _]) if !is_wide => Some(Fast::new(of(BinOp::MulWide, THREE), U64, &[ty; 2])),
        ("mad", ["lo", _]) => {
            let op = if is_wide { Op::Mad64(FOUR) } else { Op::Mad32(FOUR) };
            Some(Fast::new(op, ty, &[ty; 3]))
        }
        ("mad", ["wide", _]) if !is_wide => Some(Fast::new(Op::MadWide(signed, FOUR), U64, &[ty, ty, U64])),
        ("neg", [_]) => Some(Fast::new(of(BinOp::Sub, [0, 2, 1]), ty, &[ty]).with(0)),
        ("abs", [_]) if is_wide => Some(Fast::new(Op::AbsS64(TWO), ty, &[ty])),
        ("abs", [_]) => Some(Fast::new(Op::Un32(UnOp::Abs, TWO), ty, &[ty])),
        ("popc", [_]) if !is_wide => Some(Fast::new(Op::Un32(UnOp::Popc, TWO), ty, &[ty])),
        ("clz", [_]) if !is_wide => Some(Fast::new(Op::Un32(UnOp::Clz, TWO), ty, &[ty])),
        _ => None,
    }
}

/// f32 and pairs. Without `.rn` compilers may contract; the rounding is the same.
fn float(name: &str, words: &[&str], ty: Ty) -> Option<Fast> {
    let (half, signs) = match ty {
        Ty::Halves(is_bf16) => (Some(Half::of(is_bf16)), 0x8000_8000),
        _ => (None, 0x8000_0000),
    };
    let two = |op| {
        let op = half.map_or(Op::F32(op, THREE), |half| Op::Halves(op, half, THREE));
        Some(Fast::new(op, ty, &[ty; 2]))
    };
    let approximate = |op| Some(Fast::new(Op::Un32(op, TWO), ty, &[ty]));
    match (name, words) {
        ("add", [_] | ["rn", _]) => two(FloatOp::Add),
        ("sub", [_] | ["rn", _]) => two(FloatOp::Sub),
        ("mul", [_] | ["rn", _]) => two(FloatOp::Mul),
        ("min", [_]) => two(FloatOp::Min),
        ("max", [_]) => two(FloatOp::Max),
        ("fma", ["rn", _]) => {
            let op = half.map_or(Op::FmaF32(FOUR), |half| Op::FmaHalves(half, FOUR));
            Some(Fast::new(op, ty, &[ty; 3]))
        }
        ("neg", [_]) => Some(Fast::new(Op::Int32(BinOp::Xor, false, THREE), ty, &[ty]).with(signs)),
        ("abs", [_]) => Some(Fast::new(Op::Int32(BinOp::And, false, THREE), ty, &[ty]).with(!signs)),
        ("ex2", ["approx", "ftz", "f32"]) => approximate(UnOp::Ex2),
        ("lg2", ["approx", "ftz", "f32"]) => approximate(UnOp::Lg2),
        ("rcp", ["approx", "ftz", "f32"]) => approximate(UnOp::Rcp),
        _ => None,
    }
}

fn compare(name: &str, ty: Ty) -> Option<Fast> {
    let cmp = match (ty, name) {
        // `Cmp::Ne` holds on NaN, and `ne` of floats does not.
        (Ty::F32, "neu") => Cmp::Ne,
        (Ty::F32, "ne") => return None,
        _ => Cmp::ALL.into_iter().find(|cmp| cmp.ptx() == name)?,
    };
    let op = match ty {
        Ty::F32 => Op::Setp32(cmp, Number::Float, THREE),
        Ty::Int(32, true) => Op::Setp32(cmp, Number::Signed, THREE),
        Ty::Int(32, false) => Op::Setp32(cmp, Number::Unsigned, THREE),
        Ty::Int(64, true) => Op::Setp64(cmp, Number::Signed, THREE),
        Ty::Int(64, false) => Op::Setp64(cmp, Number::Unsigned, THREE),
        _ => return None,
    };
    Some(Fast::new(op, Ty::Pred, &[ty; 2]))
}

fn convert(words: &[&str], from: Ty) -> Option<Fast> {
    let to = Ty::of(words.iter().rev().nth(1)?)?;
    // The first operand is the upper half.
    let rows = [0, 2, 1];
    let op = match (words, to) {
        (["rn", _, "f32"], Ty::Halves(is_bf16)) => Op::CvtHalves(Half::of(is_bf16), rows),
        (["rn", "satfinite", "e4m3x2", "f32"], _) => Op::CvtE4m3(rows),
        _ => {
            let known = Cvt::ALL.into_iter().find(|op| op.ptx() == words.join("."))?;
            return Some(Fast::new(Op::Cvt(known, TWO), to, &[from]));
        }
    };
    Some(Fast::new(op, to, &[from; 2]))
}

/// The operations that join two parts of so many bits each, and that split into them.
fn of_two(parts: &[Written], bits: u32) -> Option<[Op<'static>; 2]> {
    match (parts.len(), bits) {
        (2, 16) => Some([Op::Pack16(THREE), Op::Unpack16(THREE)]),
        (2, 32) => Some([Op::Pack64(THREE), Op::Unpack64(THREE)]),
        _ => None,
    }
}

/// The class of an operation, given the types of what it reads.
fn class(op: Op<'static>, from: &[Ty]) -> Class {
    match op {
        _ if matches!(from[0], Ty::Halves(_)) => Class::Half,
        Op::F32(FloatOp::Add | FloatOp::Sub | FloatOp::Mul, _) | Op::FmaF32(_) => Class::Fma,
        Op::Un32(UnOp::Ex2 | UnOp::Lg2 | UnOp::Rcp, _) => Class::Mufu,
        Op::Cvt(..) | Op::CvtHalves(..) | Op::CvtE4m3(_) => Class::Convert,
        _ => Class::Alu,
    }
}

impl Reader<'_> {
    /// Adds the step of an operation that is executed for a whole warp at once. Its registers must be as wide as its
    /// types.
    pub(super) fn fast(&mut self, fast: Fast, results: &[Written], sources: &[Written]) -> Filled<()> {
        let mut from = fast.from;
        if sources.len() != from.len() {
            return Err(format!("{} operands; {} are needed", sources.len(), from.len()));
        }
        for (source, ty) in sources.iter().zip(&from) {
            match source {
                Written::Integer(_) | Written::Float { .. } => {}
                Written::Special(_) if ty.bytes() == 4 => {}
                Written::Not(_) if *ty == Ty::Pred => {}
                _ => _ = self.of_width(source, ty.bytes())?,
            }
        }
        let writes = results.iter().map(|result| match result {
            Written::Sink if matches!(fast.op, Op::Unpack16(_)) => Ok(self.fresh(RegClass::B16, 1)),
            _ => self.of_width(result, fast.to.bytes()),
        });
        let writes = writes.collect::<Filled<Vec<Reg>>>()?;
        let mut reads = self.operands(sources, &from)?;
        if let Some(bits) = fast.constant {
            reads.push(Operand::Imm(bits));
            from.push(from[0]);
        }
        self.operation(fast.op, from, writes, reads);
        Ok(())
    }

    fn operation(&mut self, op: Op<'static>, from: Vec<Ty>, writes: Vec<Reg>, reads: Vec<Operand>) {
        let class = class(op, &from);
        self.cold(What::Fast(op, from), class, writes, reads);
    }

    pub(super) fn mov(&mut self, dst: Reg, src: Operand) {
        let (op, ty) = match dst.class {
            RegClass::Pred => (Op::PredOr([0, 1, 1]), Ty::Pred),
            RegClass::B64 => (Op::Mov64(TWO), U64),
            RegClass::B16 | RegClass::B32 | RegClass::F32 => (Op::Mov32(TWO), U32),
        };
        self.operation(op, vec![ty], vec![dst], vec![src]);
    }

    pub(super) fn convert(&mut self, op: Cvt, dst: Reg, src: Operand) {
        let from = Ty::Int(8 * op.source().bytes(), false);
        self.operation(Op::Cvt(op, TWO), vec![from], vec![dst], vec![src]);
    }

    /// A sum of 64 bits.
    pub(super) fn add(&mut self, dst: Reg, a: Operand, b: u64) {
        self.with_constant(Op::Int64(BinOp::Add, false, THREE), U64, dst, (a, b));
    }

    /// An operation of two operands of a type, the second a constant.
    pub(super) fn with_constant(&mut self, op: Op<'static>, ty: Ty, dst: Reg, (a, b): (Operand, u64)) {
        self.operation(op, vec![ty; 2], vec![dst], vec![a, Operand::Imm(b)]);
    }

    /// A list of registers joined.
    pub(super) fn pack(&mut self, d: &Written, parts: &[Written], words: &[&str]) -> Filled<()> {
        let dst = self.register(d)?;
        let whole = Ty::last(words)?;
        let bits = part_bits(whole, parts)?;
        let types = vec![Ty::Int(bits, false); parts.len()];
        if let Some([op, _]) = of_two(parts, bits)
            && self
                .fast(Fast::new(op, whole, &types), slice::from_ref(d), parts)
                .is_ok()
        {
            return Ok(());
        }
        let reads = self.operands(parts, &types)?;
        let mask = mask(bits);
        let compute = move |v: &[u64; 4]| {
            (0u32..).zip(v).fold(0, |all, (i, part)| {
                all | (part & mask).checked_shl(bits * i).unwrap_or(0)
            })
        };
        self.cold(What::Scalar(Box::new(compute)), Class::Alu, vec![dst], reads);
        Ok(())
    }

    /// A register split into a list.
    pub(super) fn unpack(&mut self, parts: &[Written], a: &Written, words: &[&str]) -> Filled<()> {
        let whole = Ty::last(words)?;
        let bits = part_bits(whole, parts)?;
        if let Some([_, op]) = of_two(parts, bits)
            && self
                .fast(Fast::new(op, Ty::Int(bits, false), &[whole]), parts, slice::from_ref(a))
                .is_ok()
        {
            return Ok(());
        }
        let (mask, read) = (mask(bits), self.operand(a, whole)?);
        for (i, part) in (0u32..).zip(parts) {
            if *part == Written::Sink {
                continue;
            }
            let dst = self.register(part)?;
            let compute = move |v: &[u64; 4]| v[0] >> (bits * i) & mask;
            self.cold(What::Scalar(Box::new(compute)), Class::Alu, vec![dst], vec![read]);
        }
        Ok(())
    }
}

/// Bits of each part of a register that a list joins or splits.
fn part_bits(whole: Ty, parts: &[Written]) -> Filled<u32> {
    match parts.len() {
        count @ (2 | 4) => Ok(8 * whole.bytes() / count as u32),
        count => Err(format!("a list of {count}; 2 or 4 are joined or split")),
    }
}
