//! The ways of breaking a kernel.

use std::fmt;

use serde::Serialize;

/// Declares [`Operator`] and the list of all its variants at once, so that none is left out.
macro_rules! operators {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A way of breaking a kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "kebab-case")]
        #[non_exhaustive]
        pub enum Operator {
            $($(#[$doc])* $name,)*
        }

        impl Operator {
            /// Every operator.
            pub const ALL: &'static [Operator] = &[$(Operator::$name,)*];
        }
    };
}

operators! {
    // ---- Barriers and waits
    /// A block barrier is left out.
    DropBarrier,
    /// A barrier waits for one warp fewer than there are.
    CountBarrier,
    /// A barrier waits for one warp more than there are.
    CountMore,
    /// Another of the kernel's barriers is taken: the number's lowest bit is wrong.
    WrongBarrier,
    /// A warp barrier is left out: a shuffle nearby is taken for a fence.
    DropWarpBarrier,
    /// A warp barrier, a vote or an exchange between lanes names the lower half of the warp only.
    HalfWarp,
    /// Waiting for asynchronous copies, or for the launch before, is left out.
    DropWait,
    /// One group of asynchronous copies more may be unfinished.
    WeakenWait,
    /// A group of asynchronous copies, of products or of bulk stores is never closed.
    DropCommit,
    /// A fence is left out: of memory, for the async proxy, after mbarriers are made, before products.
    DropFence,
    /// A fence, an arrival or a wait is for the block in place of the cluster.
    NarrowScope,
    /// A wait for products or bulk stores is left out.
    DropAsyncWait,
    /// One group of products or bulk stores more may be unfinished.
    WeakenAsyncWait,
    /// Bulk stores are waited for until they have read their source, not until they have written.
    OnlyRead,
    /// A cluster barrier is not waited at.
    DropClusterWait,
    /// An arrival is left out: at an mbarrier, at a barrier, at the cluster's.
    DropArrive,
    /// An arrival at the cluster's barrier orders nothing.
    RelaxArrive,

    // ---- Mbarriers
    /// An mbarrier is not made.
    DropInit,
    /// An mbarrier is made for one arrival more.
    ExtraArrival,
    /// An mbarrier is made for one arrival fewer.
    MissingArrival,
    /// Sixteen bytes more are announced than copies bring.
    ExtraBytes,
    /// Half of the bytes that copies bring are announced.
    HalfBytes,
    /// A wait for an mbarrier takes parity 0 each time round.
    FixedParity,
    /// A wait for an mbarrier takes the other parity.
    FlipParity,
    /// A wait for an mbarrier is left out: whatever the phase, it goes on.
    DropPhaseWait,
    /// A copy completes at the next mbarrier.
    WrongMbarrier,

    // ---- Copies
    /// A copy is left out.
    DropCopy,
    /// A copy reads from one access further on.
    NextSource,
    /// A copy reads all of its bytes, whether they exist or not.
    FullCopy,
    /// A copy reads half of its bytes.
    HalfCopy,
    /// A tensor copy is of the next eight columns.
    ColumnOff,
    /// A tensor copy is of a row further on.
    RowOff,
    /// A tensor copy is of the next head.
    HeadOff,
    /// A tensor copy has two coordinates the wrong way round.
    SwapCoordinates,
    /// A tensor copy goes to this block alone.
    DropMulticast,

    // ---- Tensor cores
    /// A product is left out.
    DropProduct,
    /// A product is added to what was there where it should not be, or the other way round.
    FlipAccumulate,
    /// A tensor-core product is added to the eight columns after its own.
    NextColumns,
    /// A product takes the registers after its operand's.
    NextFragment,
    /// Groups of 8 rows of an operand are taken to be 16 bytes further apart.
    DescriptorStride,
    /// An operand is taken to begin 16 bytes further on.
    DescriptorStart,
    /// Slabs of an operand are taken to be 16 bytes further apart.
    DescriptorLeading,
    /// An operand is taken to be swizzled otherwise.
    DescriptorSwizzle,
    /// Matrices come as they are stored where they should come transposed, or the other way round.
    FlipTranspose,
    /// The registers of a warpgroup are left as they are.
    DropRegisters,
    /// A warpgroup asks for eight registers a thread more.
    MoreRegisters,
    /// A warpgroup asks for eight registers a thread fewer.
    FewerRegisters,

    // ---- Memory
    /// A store is left out.
    DropStore,
    /// A load is left out.
    DropLoad,
    /// An access goes one access too far.
    NextAccess,
    /// An access goes one access too short.
    PreviousAccess,
    /// An access goes two bytes too far.
    OffAccess,
    /// A read-modify-write is left out.
    DropAtomic,
    /// Another block's memory is taken to be this one's.
    OwnBlock,
    /// A shared buffer is declared a row too short.
    ShrinkBuffer,

    // ---- Indices
    /// The factor of an index is one too large.
    StrideOne,
    /// The factor of an index is 16 too large.
    StrideSixteen,
    /// A constant that is added to an index, or taken from it, is one too large.
    OffsetOne,
    /// A constant is one too large.
    ConstantOne,
    /// A divisor is one too large.
    DivisorOne,
    /// A shift goes one bit too far.
    ShiftOne,
    /// A remainder is always 0: a ring has one stage only.
    DropRemainder,
    /// A remainder has one stage, or one bit, more.
    StageMore,
    /// A remainder has one stage, or one bit, fewer.
    StageFewer,
    /// A swizzle is left out, where an address is made or moved.
    DropSwizzle,
    /// A swizzle permutes one chunk of 16 bytes otherwise.
    SwizzleTerm,
    /// A loop's counter is not advanced.
    DropStep,
    /// Another special register is read: y in place of x, the block in place of the lane or the grid.
    WrongSpecial,
    /// The next parameter of the same type is read.
    WrongParam,

    // ---- Bounds and choices
    /// A bound is off by one: `<` is `≤`, `≥` is `>`, and the other way round.
    BoundOne,
    /// A bound is a tile of 64 too high, or what is compared with it so much too low.
    WideBound,
    /// A bound is a tile of 64 too low, or what is compared with it so much too high.
    NarrowBound,
    /// A comparison says the contrary.
    InvertCompare,
    /// A threshold is 64 times too high, and 64 more.
    RaiseThreshold,
    /// A selection always takes its first choice: a mask is left out.
    Unmask,
    /// A selection always takes its second choice.
    MaskAll,
    /// A minimum or maximum takes its first operand: a clamp is left out.
    Unclamp,
    /// A minimum or maximum takes its second operand: the bound itself.
    OnlyBound,
    /// Of a mask of bits only the lower half is looked at.
    HalfMask,
    /// The second of two conditions, or of two words of bits, is left out.
    DropTerm,
    /// A branch or the end of a loop is taken where it should not be, and the other way round.
    InvertCondition,
    /// What a branch guards is done in any case.
    IgnoreCondition,

    // ---- Lanes
    /// A vote asks for all lanes in place of any.
    VoteAll,
    /// A vote asks for any lane in place of all.
    VoteAny,
    /// A lane keeps its own value in place of another's.
    DropExchange,
    /// An exchange is with another lane: twice as far, or the one after.
    OtherLane,
    /// Every lane is the one elected.
    EveryLane,

    // ---- Arithmetic
    /// What was summed before is not brought to a new scale.
    DropRescale,
    /// A factor is left out.
    DropFactor,
    /// A summand is left out.
    DropAddend,
    /// A difference in place of a sum, or the other way round.
    OtherSign,
    /// A function of one operand gives the operand.
    DropFunction,
    /// Two operands are swapped.
    SwapOperands,
    /// A function of bits gives the contrary.
    InvertTable,
}

impl Operator {
    /// The operator of a name, as it prints: `drop-barrier`.
    pub fn from_name(name: &str) -> Option<Operator> {
        Operator::ALL
            .iter()
            .copied()
            .find(|operator| operator.to_string() == name)
    }
}

impl fmt::Display for Operator {
    /// The variant's name in kebab case, as it is serialised.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = String::new();
        for c in format!("{self:?}").chars() {
            if c.is_ascii_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(c.to_ascii_lowercase());
        }
        f.pad(&name)
    }
}
