//! The decoded program: a flat array of operations.
//!
//! A warp can suspend at any operation, which a tree does not allow. Operands are rows of the
//! warp's register file. Immediates are constant rows, so operations do not distinguish operand
//! kinds.

use flashcore_ir::SiteId;
use flashcore_ir::inst::{Major, Object, WgmmaInput};

pub(crate) use crate::op::Op;
pub(crate) use crate::operations::{Bin32, Bin64, Number, PredOp, Tri32, Un32, Un64};
use crate::report::Class;

/// A row of 32 lanes in a register file; from [`CONST`] on, a row of constants.
pub(crate) type Row = u16;

/// Flag of constant rows.
pub(crate) const CONST: Row = 0x8000;

pub(crate) const PRED_FALSE: Row = 0;
pub(crate) const PRED_TRUE: Row = 1;

/// A memory operand: a row of addresses, a constant offset, and the object it must stay in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) base: Row,
    pub(crate) object: u16,
    pub(crate) offset: i32,
    /// Whether the address may be in any block of the cluster.
    pub(crate) remote: bool,
}

impl At {
    pub(crate) fn object_of(object: Object) -> u16 {
        match object {
            Object::Param(index) => index as u16,
            Object::Shared(id) => id.0 as u16,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct BoxCopy {
    pub(crate) map: u16,
    /// The address that the kernel passes for the tensor map.
    pub(crate) map_base: Row,
    pub(crate) map_offset: i32,
    /// Coordinates, innermost first.
    pub(crate) at: Vec<Row>,
    pub(crate) shared: At,
    /// The mbarrier that counts its bytes; `None` for a store.
    pub(crate) mbarrier: Option<At>,
    pub(crate) multicast: Option<Row>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedOperand {
    pub(crate) bits: Row,
    pub(crate) buffer: u16,
    pub(crate) major: Major,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ProductA {
    Shared(SharedOperand),
    Regs { rows: [Row; 4], fragment: u16 },
}

#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub(crate) input: WgmmaInput,
    pub(crate) n: u32,
    pub(crate) d: Vec<Row>,
    pub(crate) d_fragment: u16,
    pub(crate) a: ProductA,
    pub(crate) b: SharedOperand,
    pub(crate) accumulate: Row,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Width {
    /// Registers per lane: 1, 2 or 4.
    pub(crate) count: u8,
    /// log2 of the bytes per register: 1, 2 or 3.
    pub(crate) log_bytes: u8,
}

impl Width {
    #[inline(always)]
    pub(crate) fn bytes(self) -> u32 {
        u32::from(self.count) << self.log_bytes
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum TraceFile {
    Pred,
    Bits32,
    Float,
    Bits64,
}

#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) ops: Vec<Op>,
    /// The source of each operation.
    pub(crate) sites: Vec<SiteId>,
    pub(crate) classes: Vec<Class>,
    /// The operation of each node of the kernel's body, in pre-order.
    pub(crate) nodes: Vec<u32>,
    pub(crate) consts32: Vec<u32>,
    pub(crate) consts64: Vec<u64>,
    pub(crate) rows32: usize,
    pub(crate) rows64: usize,
    pub(crate) preds: usize,
    /// Names of the registers whose reads are checked at run time.
    pub(crate) tracked: Vec<String>,
    /// log2 of the bytes per shadow cell of shared memory: the narrowest access.
    pub(crate) granule_shift: u32,
    pub(crate) copies: Vec<BoxCopy>,
    pub(crate) products: Vec<Product>,
    /// Names of the registers that products use.
    pub(crate) fragments: Vec<String>,
    pub(crate) uses_cp_async: bool,
    pub(crate) uses_bulk_stores: bool,
    pub(crate) uses_products: bool,
    /// Whether bulk copies or products access shared memory.
    pub(crate) uses_async_proxy: bool,
    pub(crate) uses_dependency: bool,
    pub(crate) sets_registers: bool,
    /// By parameter: written by plain stores; loaded from; used by atomics.
    pub(crate) stored: Vec<bool>,
    pub(crate) loaded: Vec<bool>,
    pub(crate) atomics: Vec<bool>,
    /// Whether a global atomic returns the old value.
    pub(crate) returning_atomics: bool,
}
