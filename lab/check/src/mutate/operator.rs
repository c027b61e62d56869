//! The ways of breaking a kernel.

use std::fmt;

use serde::Serialize;

/// Declares [`Operator`] and the list of its variants from one table.
macro_rules! operators {
    ($($name:ident: $what:literal,)*) => {
        /// A way of breaking a kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "kebab-case")]
        #[non_exhaustive]
        pub enum Operator {
            $(#[doc = $what] $name,)*
        }

        impl Operator {
            /// Every operator.
            pub const ALL: &'static [Operator] = &[$(Operator::$name,)*];
        }
    };
}

operators! {
    // Barriers and waits
    DropBarrier: "Removes a block barrier.",
    CountBarrier: "A barrier expects one warp fewer.",
    CountMore: "A barrier expects one warp more.",
    WrongBarrier: "Uses another barrier: flips the lowest bit of its number.",
    DropWarpBarrier: "Removes a warp barrier, as if a shuffle were a fence.",
    HalfWarp: "A warp barrier, vote or exchange names only the lower half of the warp.",
    DropWait: "Removes a wait for asynchronous copies or for the previous launch.",
    WeakenWait: "One more group of asynchronous copies may be unfinished.",
    DropCommit: "Never closes a group of asynchronous copies, products or bulk stores.",
    DropFence: "Removes a fence: memory, async proxy, mbarrier initialisation, or products.",
    NarrowScope: "A fence, arrival or wait has block scope instead of cluster scope.",
    DropAsyncWait: "Removes a wait for products or bulk stores.",
    WeakenAsyncWait: "One more group of products or bulk stores may be unfinished.",
    OnlyRead: "Waits until bulk stores have read their source, not until they have written.",
    DropClusterWait: "Removes a wait at the cluster barrier.",
    DropArrive: "Removes an arrival at an mbarrier, a barrier or the cluster barrier.",
    RelaxArrive: "An arrival at the cluster barrier orders no memory.",

    // Mbarriers
    DropInit: "Removes the initialisation of an mbarrier.",
    ExtraArrival: "An mbarrier expects one arrival more.",
    MissingArrival: "An mbarrier expects one arrival fewer.",
    ExtraBytes: "Announces 16 bytes more than the copies bring.",
    HalfBytes: "Announces half of the bytes that the copies bring.",
    FixedParity: "A wait for an mbarrier always uses parity 0.",
    FlipParity: "A wait for an mbarrier uses the other parity.",
    DropPhaseWait: "Removes a wait for an mbarrier.",
    WrongMbarrier: "A copy completes at the next mbarrier.",

    // Copies
    DropCopy: "Removes a copy.",
    NextSource: "A copy reads from one access further.",
    FullCopy: "A copy reads all its bytes, even those outside the source.",
    HalfCopy: "A copy reads half of its bytes.",
    ColumnOff: "A tensor copy starts eight columns further.",
    RowOff: "A tensor copy starts one row further.",
    HeadOff: "A tensor copy is of the next head.",
    SwapCoordinates: "Swaps two coordinates of a tensor copy.",
    DropMulticast: "A multicast copy goes only to the own block.",

    // Tensor cores
    DropProduct: "Removes a product.",
    FlipAccumulate: "A product accumulates where it should overwrite, or the other way round.",
    NextColumns: "A product accumulates into the next eight columns.",
    NextFragment: "A product reads the registers after those of its operand.",
    DescriptorStride: "An operand's groups of 8 rows are 16 bytes further apart.",
    DescriptorStart: "An operand starts 16 bytes further.",
    DescriptorLeading: "An operand's slabs are 16 bytes further apart.",
    DescriptorSwizzle: "An operand has another swizzle.",
    FlipTranspose: "Transposes matrices that should not be, or the other way round.",
    DropRegisters: "A warpgroup keeps its register count.",
    MoreRegisters: "A warpgroup requests eight registers a thread more.",
    FewerRegisters: "A warpgroup requests eight registers a thread fewer.",

    // Memory
    DropStore: "Removes a store.",
    DropLoad: "Removes a load.",
    NextAccess: "Accesses the next element.",
    PreviousAccess: "Accesses the previous element.",
    OffAccess: "Accesses two bytes further.",
    DropAtomic: "Removes a read-modify-write.",
    AddTwice: "Adds f32 values to global memory twice.",
    RelaxFlag: "An acquire or a release of a flag orders nothing.",
    OwnBlock: "Accesses the own block's memory instead of another block's.",
    ShrinkBuffer: "Declares a shared buffer one row too short.",

    // Indices
    StrideOne: "The factor of an index is one too large.",
    StrideSixteen: "The factor of an index is 16 too large.",
    OffsetOne: "A constant added to or subtracted from an index is one too large.",
    ConstantOne: "A constant is one too large.",
    DivisorOne: "A divisor is one too large.",
    ShiftOne: "Shifts by one bit more.",
    DropRemainder: "A remainder is always 0, as if a ring had one stage.",
    StageMore: "A remainder has one stage, or one bit, more.",
    StageFewer: "A remainder has one stage, or one bit, fewer.",
    DropSwizzle: "Removes a swizzle from an address.",
    SwizzleTerm: "A swizzle moves each chunk of 16 bytes to its neighbour.",
    DropStep: "Does not advance a loop counter.",
    WrongSpecial: "Reads another special register: y for x, the block for the lane or the grid.",
    WrongParam: "Reads the next parameter of the same type.",

    // Bounds and choices
    BoundOne: "A bound is off by one: `<` becomes `≤`, `≥` becomes `>`, and the other way round.",
    WideBound: "A bound is 64 (a tile) too high.",
    NarrowBound: "A bound is 64 (a tile) too low.",
    InvertCompare: "Inverts a comparison.",
    RaiseThreshold: "A threshold t becomes 64 t + 64.",
    Unmask: "A selection always takes its first operand, as if a mask were missing.",
    MaskAll: "A selection always takes its second operand.",
    Unclamp: "A minimum or maximum takes its first operand: the clamp is missing.",
    OnlyBound: "A minimum or maximum takes its second operand: the bound.",
    HalfMask: "Uses only the lower half of a bit mask.",
    DropTerm: "Ignores the second of two conditions or of two words of bits.",
    InvertCondition: "Inverts the condition of a branch or of the end of a loop.",
    IgnoreCondition: "Executes the body of a branch unconditionally.",

    // Lanes
    VoteAll: "A vote asks for all lanes instead of any.",
    VoteAny: "A vote asks for any lane instead of all.",
    DropExchange: "A lane keeps its own value instead of another lane's.",
    OtherLane: "Exchanges with another lane: twice as far, or the next one.",
    EveryLane: "Elects every lane.",

    // Arithmetic
    DropRescale: "Does not rescale an earlier sum.",
    DropFactor: "Removes a factor.",
    DropAddend: "Removes a summand.",
    OtherSign: "Subtracts instead of adding, or the other way round.",
    DropFunction: "A function of one operand returns the operand.",
    SwapOperands: "Swaps two operands.",
    InvertTable: "Complements a function of bits.",
}

impl Operator {
    /// The operator of a name, as it prints: `drop-barrier`.
    pub fn from_name(name: &str) -> Option<Operator> {
        let mut all = Operator::ALL.iter().copied();
        all.find(|operator| operator.to_string() == name)
    }
}

/// Its name in messages and files, such as `drop-barrier`.
impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
