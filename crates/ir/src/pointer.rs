//! Pointers of a kernel being written: an address, and the object it is meant to stay in.

use std::marker::PhantomData;

use crate::inst::{Address, BinOp, Inst, Object, Operand};
use crate::types::{Element, RegClass, ScalarType};
use crate::value::{Source, Val};

/// The address of an element of `E` in global memory, behind a kernel parameter.
#[derive(Debug)]
pub struct GlobalPtr<'k, E> {
    pub(crate) addr: Val<'k, u64>,
    pub(crate) bytes: i32,
    pub(crate) param: u32,
    of: PhantomData<E>,
}

impl<E> Clone for GlobalPtr<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for GlobalPtr<'_, E> {}

impl<'k, E: Element> GlobalPtr<'k, E> {
    pub(crate) fn new(addr: Val<'k, u64>, param: u32) -> Self {
        GlobalPtr {
            addr,
            bytes: 0,
            param,
            of: PhantomData,
        }
    }

    /// The memory operand of an access `bytes` past it.
    pub(crate) fn address(self, bytes: i32) -> Address {
        Address {
            base: self.addr.operand(),
            offset: self.bytes + bytes,
            object: Object::Param(self.param),
        }
    }

    /// `elements` further on; 32 unsigned bits, widened before they are scaled.
    #[track_caller]
    pub fn offset(self, elements: impl Source<'k, u32>) -> Self {
        let k = self.addr.builder();
        let dst = k.reg(RegClass::B64);
        k.emit(Inst::MadWide {
            ty: ScalarType::U32,
            dst,
            a: elements.operand(),
            b: Operand::Imm(u64::from(E::BYTES)),
            c: self.addr.operand(),
        });
        GlobalPtr {
            addr: Val::from_reg(k, dst),
            ..self
        }
    }

    /// A constant number of elements further on: an immediate of the access, no instruction.
    pub fn plus(self, elements: i32) -> Self {
        GlobalPtr {
            bytes: self.bytes + elements * E::BYTES as i32,
            ..self
        }
    }

    /// `bytes` further on: for steps worked out once and taken many times.
    #[track_caller]
    pub fn advance(self, bytes: impl Source<'k, u64>) -> Self {
        let k = self.addr.builder();
        let dst = k.reg(RegClass::B64);
        k.emit(Inst::Bin {
            op: BinOp::Add,
            ty: ScalarType::U64,
            dst,
            a: self.addr.operand(),
            b: bytes.operand(),
        });
        GlobalPtr {
            addr: Val::from_reg(k, dst),
            ..self
        }
    }

    /// `index · stride` elements further on, in 64 bits; for tensor strides.
    #[track_caller]
    pub fn offset_strided(self, index: impl Source<'k, u32>, stride: impl Source<'k, u32>) -> Self {
        let k = self.addr.builder();
        let (product, bytes, sum) = (k.reg(RegClass::B64), k.reg(RegClass::B64), k.reg(RegClass::B64));
        k.emit(Inst::Bin {
            op: BinOp::MulWide,
            ty: ScalarType::U32,
            dst: product,
            a: index.operand(),
            b: stride.operand(),
        });
        k.emit(Inst::Bin {
            op: BinOp::Shl,
            ty: ScalarType::U64,
            dst: bytes,
            a: Operand::Reg(product),
            b: Operand::Imm(u64::from(E::BYTES.trailing_zeros())),
        });
        k.emit(Inst::Bin {
            op: BinOp::Add,
            ty: ScalarType::U64,
            dst: sum,
            a: self.addr.operand(),
            b: Operand::Reg(bytes),
        });
        GlobalPtr {
            addr: Val::from_reg(k, sum),
            ..self
        }
    }
}

/// The address of an element of `E` in shared memory, in a buffer of the ledger.
#[derive(Debug)]
pub struct SharedPtr<'k, E> {
    pub(crate) addr: Val<'k, u32>,
    pub(crate) bytes: i32,
    pub(crate) buffer: crate::shared::BufferId,
    pub(crate) of: PhantomData<E>,
}

impl<E> Clone for SharedPtr<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for SharedPtr<'_, E> {}

impl<'k, E: Element> SharedPtr<'k, E> {
    /// The memory operand of an access `bytes` past it.
    pub(crate) fn address(self, bytes: i32) -> Address {
        Address {
            base: self.addr.operand(),
            offset: self.bytes + bytes,
            object: Object::Shared(self.buffer),
        }
    }

    /// `elements` further on. Not for swizzled tiles, whose neighbours are not adjacent.
    #[track_caller]
    pub fn offset(self, elements: impl Source<'k, u32>) -> Self {
        let k = self.addr.builder();
        let dst = k.reg(RegClass::B32);
        k.emit(Inst::Fma {
            ty: ScalarType::U32,
            dst,
            a: elements.operand(),
            b: Operand::Imm(u64::from(E::BYTES)),
            c: self.addr.operand(),
        });
        SharedPtr {
            addr: Val::from_reg(k, dst),
            ..self
        }
    }

    /// A constant number of elements further on: an immediate of the access, no instruction.
    pub fn plus(self, elements: i32) -> Self {
        SharedPtr {
            bytes: self.bytes + elements * E::BYTES as i32,
            ..self
        }
    }
}

/// The address of an element of `E` in the shared memory of any block of the cluster: it carries the block's
/// rank. Made by [`SharedPtr::in_block`].
#[derive(Debug)]
pub struct ClusterPtr<'k, E> {
    pub(crate) addr: Val<'k, u32>,
    pub(crate) bytes: i32,
    pub(crate) buffer: crate::shared::BufferId,
    pub(crate) of: PhantomData<E>,
}

impl<E> Clone for ClusterPtr<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for ClusterPtr<'_, E> {}

impl<'k, E: Element> ClusterPtr<'k, E> {
    /// The memory operand of an access `bytes` past it.
    pub(crate) fn address(self, bytes: i32) -> Address {
        Address {
            base: self.addr.operand(),
            offset: self.bytes + bytes,
            object: Object::Shared(self.buffer),
        }
    }

    /// A constant number of elements further on: an immediate of the access, no instruction.
    pub fn plus(self, elements: i32) -> Self {
        ClusterPtr {
            bytes: self.bytes + elements * E::BYTES as i32,
            ..self
        }
    }
}
