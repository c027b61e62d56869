//! Pointers of a kernel being written: an address, and the object it is meant to stay in.

use std::marker::PhantomData;

use super::value::{Source, Val};
use crate::inst::{Address, BinOp, Inst, Object, Operand, Space};
use crate::types::{Element, Scalar, ScalarType};

/// A kind of memory that pointers point to.
pub trait AddressSpace: Copy + 'static {
    /// The type of its addresses.
    type Addr: Scalar;
    /// What instructions call it.
    const SPACE: Space;
}

/// Device memory.
#[derive(Clone, Copy, Debug)]
pub struct Global;
/// The block's shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Shared;
/// The shared memory of any block of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Cluster;

impl AddressSpace for Global {
    type Addr = u64;
    const SPACE: Space = Space::Global;
}
impl AddressSpace for Shared {
    type Addr = u32;
    const SPACE: Space = Space::Shared;
}
impl AddressSpace for Cluster {
    type Addr = u32;
    const SPACE: Space = Space::Cluster;
}

/// The address of an element of `E`.
#[derive(Clone, Copy, Debug)]
pub struct Ptr<'k, S: AddressSpace, E> {
    pub(crate) addr: Val<'k, S::Addr>,
    pub(crate) bytes: i32,
    pub(crate) object: Object,
    pub(crate) of: PhantomData<E>,
}

/// A pointer to global memory, behind a kernel parameter.
pub type GlobalPtr<'k, E> = Ptr<'k, Global, E>;
/// A pointer to shared memory, in a buffer of the ledger.
pub type SharedPtr<'k, E> = Ptr<'k, Shared, E>;
/// A pointer to the shared memory of any block of the cluster: its address carries the block's
/// rank. Made by [`SharedPtr::in_block`](Ptr::in_block).
pub type ClusterPtr<'k, E> = Ptr<'k, Cluster, E>;

impl<'k, S: AddressSpace, E: Element> Ptr<'k, S, E> {
    pub(crate) fn new(addr: Val<'k, S::Addr>, bytes: i32, object: Object) -> Self {
        let of = PhantomData;
        Ptr {
            addr,
            bytes,
            object,
            of,
        }
    }

    pub(crate) fn address(self) -> Address {
        let (base, offset, object) = (self.addr.operand(), self.bytes, self.object);
        Address { base, offset, object }
    }

    fn at(self, addr: Val<'k, S::Addr>) -> Self {
        Ptr { addr, ..self }
    }

    /// A constant number of elements further on: an immediate of the access, no instruction.
    pub fn plus(self, elements: i32) -> Self {
        Ptr {
            bytes: self.bytes + elements * E::BYTES as i32,
            ..self
        }
    }
}

impl<'k, E: Element> GlobalPtr<'k, E> {
    /// `elements` further on; 32 unsigned bits, widened before they are scaled.
    #[track_caller]
    pub fn offset(self, elements: impl Source<'k, u32>) -> Self {
        let (k, ty, b) = (self.addr.builder(), ScalarType::U32, Operand::Imm(u64::from(E::BYTES)));
        let (a, c) = (elements.operand(), self.addr.operand());
        self.at(k.result(|dst| Inst::MadWide { ty, dst, a, b, c }))
    }

    /// `bytes` further on: for steps worked out once and taken many times.
    #[track_caller]
    pub fn advance(self, bytes: impl Source<'k, u64>) -> Self {
        self.at(self.addr + bytes.val(self.addr.builder()))
    }

    /// `index · stride` elements further on, in 64 bits; for tensor strides.
    #[track_caller]
    pub fn offset_strided(self, index: impl Source<'k, u32>, stride: impl Source<'k, u32>) -> Self {
        let k = self.addr.builder();
        let product: Val<'k, u64> = k.bin(BinOp::MulWide, ScalarType::U32, index.operand(), stride.operand());
        self.advance(product << E::BYTES.trailing_zeros())
    }
}

impl<'k, E: Element> SharedPtr<'k, E> {
    /// `elements` further on. Not for swizzled tiles, whose neighbours are not adjacent.
    #[track_caller]
    pub fn offset(self, elements: impl Source<'k, u32>) -> Self {
        self.at(elements.val(self.addr.builder()).fma(E::BYTES, self.addr))
    }
}
