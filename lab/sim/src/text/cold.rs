//! Cold steps: instructions that are executed seldom enough to look up their operands each time, those that the kernel
//! language has not among them. The others are arithmetic, whose operands are looked up once.

use flashcore_ir::Operand;
use flashcore_ir::inst::{Address, Cache, Object};
use flashcore_ir::types::{Reg, ScalarType};

use super::matrix::{Move, Product, Types};
use super::numbers::Ty;
use super::scalar::Compute;
use crate::program::Op;
use crate::report::Class;

pub(crate) type Compare = Box<dyn Fn(u64, u64) -> bool + Send + Sync>;

/// An instruction with its operands.
pub(crate) struct Cold {
    pub(crate) what: What,
    pub(crate) class: Class,
    pub(crate) writes: Vec<Reg>,
    pub(crate) reads: Vec<Operand>,
}

impl std::fmt::Debug for Cold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} from {:?}", self.writes, self.reads)
    }
}

impl Cold {
    /// The registers that an access stores, or loads into.
    pub(crate) fn values(&self, access: &Access) -> Vec<Reg> {
        if access.writes {
            self.reads[1..].iter().filter_map(of_register).collect()
        } else {
            self.writes.clone()
        }
    }

    /// The registers that it reads, and those that it writes.
    pub(crate) fn accessed(&self) -> [Vec<Reg>; 2] {
        let base = match &self.what {
            What::Mbarrier(_, address) => Some(address.base),
            _ => None,
        };
        let reads = self.reads.iter().chain(&base).filter_map(of_register);
        let mut writes = self.writes.clone();
        match &self.what {
            What::Access(access) => writes.extend(access.scratch.iter().flatten()),
            What::Move(movement) => {
                writes.extend(movement.scratch);
                writes.extend(movement.access.scratch.iter().flatten());
            }
            _ => {}
        }
        [reads.collect(), writes]
    }
}

fn of_register(operand: &Operand) -> Option<Reg> {
    match operand {
        Operand::Reg(reg) => Some(*reg),
        Operand::Imm(_) => None,
    }
}

pub(crate) enum What {
    /// An operation whose rows are numbers of the written registers and then of the operands, which have these types.
    Fast(Op<'static>, Vec<Ty>),
    Scalar(Compute),
    /// A comparison, combined with a third operand if there is one; a second result has the opposite of the comparison.
    Test(Compare, Join),
    Shfl(flashcore_ir::inst::ShflMode),
    Vote(Vote),
    /// Lanes with the same value; of all, if true.
    Match(bool),
    ActiveMask,
    /// The lowest lane of the operand's, and whether this is it.
    Elect,
    /// `true` if signed.
    Redux(flashcore_ir::inst::BinOp, bool),
    /// The bytes of the parameters from one on.
    Param(u32, u32),
    Access(Access),
    Atomic(Atomic),
    Product(Product),
    Move(Move),
    Mbarrier(Mbarrier, Address),
    /// What a warp gives to the next barrier that it comes to, a predicate of each thread; and what all gave together.
    Give,
    Given(Vote),
    /// The barrier of a number, of so many threads as the second operand says or of all; if true, a warp waits there.
    Barrier(bool),
    /// `bar.warp.sync` of the lanes that a register has.
    WarpSync,
    /// `movmatrix`.
    Transpose,
    /// `vprintf` and `__assertfail`, whose arguments are in local memory from the operands on.
    Print,
    Assert,
    /// `trap`.
    Trap,
    Nothing,
}

/// In what an instruction is unlike that of the kernel language.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unlike {
    /// Of a product.
    pub(crate) types: Option<Types>,
    /// Of a bulk copy: what it does to its destination.
    pub(crate) update: Option<Update>,
    /// Of a bulk copy: the ranks of the blocks that it is for, as bits.
    pub(crate) ranks: Option<Operand>,
    /// What it copies, if not memory, of so many bytes each.
    pub(crate) values: Vec<Operand>,
    pub(crate) size: usize,
}

impl Unlike {
    /// The registers that its instruction has not.
    pub(crate) fn reads(&self) -> impl Iterator<Item = Reg> {
        self.ranks.iter().chain(&self.values).filter_map(of_register)
    }
}

/// What is done with an mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mbarrier {
    /// Makes it, of as many arrivals as the first operand says.
    Init,
    /// Ends its use.
    Invalidate,
    /// Gives its phase, and the arrivals that are outstanding.
    State,
    /// As many arrivals as the operand says, or one that announces so many bytes.
    Arrive {
        /// Whether later phases have so many fewer.
        drops: bool,
        /// Whether these may end the phase.
        ends: bool,
        announces: bool,
        /// Whether the address may be in any block of the cluster.
        is_remote: bool,
        /// Whether threads of the cluster learn what this one did before.
        of_cluster: bool,
        /// Whether any do without a fence.
        releases: bool,
    },
    /// Announces bytes, or if `come` counts them as landed.
    Bytes { come: bool, is_remote: bool },
    /// Whether a phase of a parity has ended.
    Test {
        /// Whether it waits first.
        waits: bool,
        /// Whether the thread learns what others did before, without a fence.
        acquires: bool,
    },
    /// Copies of the thread become part of the phase; if true, they are one of its arrivals.
    Copies(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    None,
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

/// Which memory an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Global,
    Shared,
    Local,
    /// The address says it.
    Generic,
}

/// What an access orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strength {
    Weak,
    /// `volatile` or `relaxed`.
    Relaxed,
    Acquire,
    Release,
}

/// A load into the written registers, or a store of the operands after the address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) writes: bool,
    pub(crate) memory: Memory,
    /// Whether it is of shared memory of any block of the cluster.
    pub(crate) is_remote: bool,
    /// Bytes of each register in memory.
    pub(crate) size: u32,
    pub(crate) signed: bool,
    pub(crate) cache: Cache,
    pub(crate) offset: i64,
    pub(crate) object: Option<Object>,
    pub(crate) strength: Strength,
    /// Whether a loop goes on or not as a strong load says.
    pub(crate) polls: bool,
    /// Registers for addresses of 4 and of 8 bytes; none of a strong access of one word.
    pub(crate) scratch: Option<[Reg; 2]>,
}

impl Access {
    /// Whether it may be one of local memory.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.memory, Memory::Local | Memory::Generic)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Add,
    Min,
    Max,
    Inc,
    Dec,
    And,
    Or,
    Xor,
    Exchange,
    /// With the first value compares, and stores the second.
    Compare,
}

/// Whether what is added are floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Float {
    No,
    /// f32 or f64, by the size.
    One,
    /// f16, or bf16 if true, each half of a word for itself.
    Halves(bool),
}

/// What is done to a word of so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Update {
    pub(crate) change: Change,
    pub(crate) signed: bool,
    pub(crate) float: Float,
    pub(crate) size: u32,
}

impl Update {
    pub(crate) const ADD_F32: Update = Update {
        change: Change::Add,
        signed: false,
        float: Float::One,
        size: 4,
    };

    /// Adds to an element of a tensor.
    pub(crate) fn add(element: ScalarType) -> Update {
        let float = match element {
            ScalarType::F32 => Float::One,
            ScalarType::F16 => Float::Halves(false),
            ScalarType::BF16 => Float::Halves(true),
            _ => Float::No,
        };
        Update {
            float,
            size: element.bytes(),
            ..Update::ADD_F32
        }
    }
}

/// A read-modify-write of a word; its operands are the address and one or two values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    pub(crate) update: Update,
    pub(crate) access: Access,
}

/// Generic addresses of shared and of local memory begin here; those of global memory are what they are.
pub(crate) const SHARED_WINDOW: u64 = 1 << 60;
/// Those that `mapa` has made of addresses of shared memory begin here.
pub(crate) const CLUSTER_WINDOW: u64 = SHARED_WINDOW | 1 << 40;
pub(crate) const LOCAL_WINDOW: u64 = 1 << 61;

impl Memory {
    /// The window of a generic address.
    pub(crate) fn of(address: u64) -> Memory {
        match address {
            LOCAL_WINDOW.. => Memory::Local,
            SHARED_WINDOW.. => Memory::Shared,
            _ => Memory::Global,
        }
    }

    pub(crate) fn window(self) -> u64 {
        match self {
            Memory::Shared => SHARED_WINDOW,
            Memory::Local => LOCAL_WINDOW,
            Memory::Global | Memory::Generic => 0,
        }
    }
}
