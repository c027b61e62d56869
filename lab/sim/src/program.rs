//! The decoded program: a flat array of operations.
//!
//! A warp can suspend at any operation, which a tree does not allow. Operands are rows of the
//! warp's register file. Immediates are constant rows, so operations do not distinguish operand
//! kinds.

use flashcore_ir::inst::{Address, BinOp, Cmp, Cvt, Inst, Object, Space, UnOp};
use flashcore_ir::{Reg, SiteId};
use rustc_hash::FxHashMap;

use crate::registers::{Constants, Registers};
use crate::report::Class;
use crate::rows::Rows;
use crate::text::cold::{Cold, Unlike};
use crate::undefined::Flow;

/// A row of 32 lanes in a register file; from [`CONST`] on, a row of constants.
pub(crate) type Row = u16;

/// Flag of constant rows.
pub(crate) const CONST: Row = 0x8000;

/// Of [`Program::counts`]: an operation that counts no instruction.
pub(crate) const NOTHING: u32 = u32::MAX;

pub(crate) const PRED_FALSE: Row = 0;
pub(crate) const PRED_TRUE: Row = 1;

/// Rows of an instruction's operands that an operation holds; `mma.sync` has the most.
pub(crate) const OPERANDS: usize = 14;

/// One operation. Arithmetic is decoded, with its rows in the order of the instruction's operands,
/// the destination first. Other instructions stay as they are in the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op<'k> {
    /// Jumps go back to the operation after it.
    Head,
    Jump(Jump),
    /// A jump by all lanes to where none wait.
    Goto(u32),
    /// Paths that parted meet here.
    Join(u32),
    /// By the late policy: the next operation needs the lanes of this mask together.
    Gather(Row),
    /// Up to its end those lanes are active for which a predicate holds, or does not if true. Where none is, the
    /// program goes on at the operation.
    Guard(Row, bool, u32),
    GuardEnd,
    /// Lanes end for which a predicate holds, or does not if true.
    ExitIf(Row, bool),
    Exit,
    /// Reports lanes that read a tracked register before writing it.
    CheckWritten(u32),
    MarkWritten(u32),
    /// What is not defined moves by the next operation.
    Flow(u32),
    /// An instruction other than a product accesses a fragment; `true` if it writes.
    Touch(u16, bool),

    Mov32([Row; 2]),
    Mov64([Row; 2]),
    /// An integer operation or an approximate function of f32.
    Un32(UnOp, [Row; 2]),
    AbsS64([Row; 2]),
    Cvt(Cvt, [Row; 2]),
    /// `true` if signed.
    Int32(BinOp, bool, [Row; 3]),
    Int64(BinOp, bool, [Row; 3]),
    F32(FloatOp, [Row; 3]),
    Halves(FloatOp, Half, [Row; 3]),
    FmaF32([Row; 4]),
    FmaHalves(Half, [Row; 4]),
    Mad32([Row; 4]),
    Mad64([Row; 4]),
    /// `true` if signed.
    MadWide(bool, [Row; 4]),
    CvtHalves(Half, [Row; 3]),
    CvtE4m3([Row; 3]),
    Pack16([Row; 3]),
    Pack64([Row; 3]),
    Unpack16([Row; 3]),
    Unpack64([Row; 3]),
    Lop3(u8, [Row; 4]),
    Prmt([Row; 4]),
    Setp32(Cmp, Number, [Row; 3]),
    Setp64(Cmp, Number, [Row; 3]),
    Selp32([Row; 4]),
    Selp64([Row; 4]),
    PredAnd([Row; 3]),
    PredOr([Row; 3]),
    PredXor([Row; 3]),

    Cold(&'k Cold),
    Like(&'k Inst, &'k Unlike),
    /// An instruction with the rows of its operands, in the order of [`Inst::slots`].
    Inst(&'k Inst, [Row; OPERANDS]),
}

impl Op<'_> {
    /// The rows of arithmetic.
    pub(crate) fn rows(&mut self) -> &mut [Row] {
        use Op::*;
        match self {
            Mov32(rows) | Mov64(rows) | Un32(_, rows) | AbsS64(rows) | Cvt(_, rows) => rows,
            Int32(_, _, rows) | Int64(_, _, rows) | F32(_, rows) | Halves(_, _, rows) => rows,
            CvtHalves(_, rows) | CvtE4m3(rows) | Setp32(_, _, rows) | Setp64(_, _, rows) => rows,
            Pack16(rows) | Pack64(rows) | Unpack16(rows) | Unpack64(rows) => rows,
            PredAnd(rows) | PredOr(rows) | PredXor(rows) => rows,
            FmaF32(rows) | FmaHalves(_, rows) | Mad32(rows) | Mad64(rows) | MadWide(_, rows) => rows,
            Lop3(_, rows) | Prmt(rows) | Selp32(rows) | Selp64(rows) => rows,
            _ => &mut [],
        }
    }
}

/// A jump of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jump {
    pub(crate) pred: Row,
    /// Whether it jumps where the predicate is false.
    pub(crate) negated: bool,
    pub(crate) uniform: bool,
    /// Whether the operation after it is where paths meet again.
    pub(crate) falls_to_join: bool,
    /// Where it goes, the place that this is, and the place where paths that part here meet again: of an instruction of
    /// the text, the operation.
    pub(crate) target: u32,
    pub(crate) place: u32,
    pub(crate) join: u32,
}

/// The operations of two operands that floats have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FloatOp {
    Add,
    Sub,
    Mul,
    Min,
    Max,
}

/// The element type of a packed pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    F16,
    BF16,
}

impl Half {
    pub(crate) fn of(is_bf16: bool) -> Half {
        if is_bf16 { Half::BF16 } else { Half::F16 }
    }
}

/// How a comparison interprets bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Unsigned,
    Signed,
    Float,
}

/// The object that a memory operand must stay in, and its constant offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) object: u16,
    pub(crate) offset: i32,
    /// Whether the address may be in any block of the cluster.
    pub(crate) remote: bool,
}

impl At {
    /// An object of this block, from its first byte.
    pub(crate) fn start(object: u16) -> At {
        At {
            object,
            offset: 0,
            remote: false,
        }
    }

    pub(crate) fn of(addr: &Address, space: Space) -> At {
        At {
            object: match addr.object {
                Object::Param(index) => index as u16,
                Object::Shared(id) => id.0 as u16,
            },
            offset: addr.offset,
            remote: space == Space::Cluster,
        }
    }
}

/// A load or a store of 1, 2 or 4 registers per lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access<'a> {
    pub(crate) regs: &'a [Row],
    /// Bytes per register: 2, 4 or 8.
    pub(crate) size: u32,
    pub(crate) base: Row,
    pub(crate) at: At,
}

impl Access<'_> {
    /// Bytes per lane.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> u32 {
        self.regs.len() as u32 * self.size
    }

    /// What a lane stores; zeros after it.
    pub(crate) fn stored(&self, registers: &Registers, constants: &Constants, lane: usize) -> [u8; 16] {
        let mut raw = [0u8; 16];
        let size = self.size as usize;
        for (&row, raw) in self.regs.iter().zip(raw.chunks_exact_mut(size)) {
            let value = if size == 8 {
                registers.get::<u64>(constants, row)[lane]
            } else {
                u64::from(registers.get::<u32>(constants, row)[lane])
            };
            raw.copy_from_slice(&value.to_le_bytes()[..size]);
        }
        raw
    }
}

/// How the kernel accesses the memory of a parameter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) loaded: bool,
    /// Written by stores other than atomics.
    pub(crate) stored: bool,
    pub(crate) atomic: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Program<'k> {
    pub(crate) ops: Vec<Op<'k>>,
    /// The source of each operation.
    pub(crate) sites: Vec<SiteId>,
    pub(crate) classes: Vec<Class>,
    /// By instruction of the text: the operation whose executions are its own; none where it became part of others.
    pub(crate) counted: Vec<Option<u32>>,
    /// By operation: the instruction that it counts, or [`NOTHING`].
    pub(crate) counts: Vec<u32>,
    pub(crate) consts32: Vec<u32>,
    pub(crate) consts64: Vec<u64>,
    pub(crate) rows: Rows,
    /// The registers whose reads are checked at run time.
    pub(crate) tracked: Vec<Reg>,
    /// How what is not defined moves.
    pub(crate) flows: Vec<Flow<'k>>,
    /// By store of floats that shuffled numbers are part of: the bits in which the indices of lanes may differ that
    /// have the same sums but for rounding.
    pub(crate) sums: FxHashMap<u32, u32>,
    /// log2 of the bytes per shadow cell of shared memory: the narrowest access.
    pub(crate) granule_shift: u32,
    /// The same for global memory, whose cells have 2 bytes or 1.
    pub(crate) bytewise: bool,
    /// Whether words of shared memory may order threads.
    pub(crate) orders_here: bool,
    /// The fragment of each register that products use, and the names of the fragments.
    pub(crate) fragment_of: FxHashMap<Reg, u16>,
    pub(crate) fragments: Vec<String>,
    pub(crate) uses_cp_async: bool,
    pub(crate) uses_bulk_stores: bool,
    pub(crate) uses_products: bool,
    /// Whether bulk copies or products access shared memory.
    pub(crate) uses_async_proxy: bool,
    /// Whether blocks copy from their shared memory to that of others.
    pub(crate) sends: bool,
    /// By parameter.
    pub(crate) used: Vec<Used>,
    /// Whether words of global memory may order its blocks: it acquires or releases them, or has
    /// atomics that return the old value.
    pub(crate) uses_flags: bool,
}

impl Program<'_> {
    /// 32-bit registers per lane ([`SimReport::registers`](crate::SimReport::registers)).
    pub(crate) fn registers(&self) -> u32 {
        (self.rows.rows32 + 2 * self.rows.rows64) as u32
    }
}
