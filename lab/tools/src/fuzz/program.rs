//! Random programs as data: generated from a seed, shrunk, and emitted as kernels.
//!
//! A program works on a fixed set of variables of each type. A step names them by numbers that are
//! taken modulo the number of variables, so a step can be removed without changing the others:
//! that is how failures shrink.

use flashcore_problem::rng::Rng;

/// How many lanes are sure to be together where a step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Only the lane itself: the warp may have diverged.
    Lane,
    /// All lanes of the warp.
    Warp,
    /// All threads of the block.
    Block,
}

/// What a program must have for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Hopper (sm_90 or sm_90a).
    Hopper,
    /// A block that is one warpgroup, on Hopper.
    Warpgroup,
    /// Tensor maps, on Hopper.
    TensorMap,
    /// The threads' tiles in shared memory.
    Tiles,
}

macro_rules! operations {
    ($($level:ident $(+ $need:ident)* { $($name:ident)* })*) => {
        /// What a step does. The first letters say on which variables: U `u32`, S `i32`, W `u64`, X
        /// `i64`, F `f32`, H pairs of f16, B pairs of bf16, P predicates.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)] // the names are those of the builder's methods
        pub enum Op { $($($name,)*)* }

        impl Op {
            /// Every operation.
            pub const ALL: &[Op] = &[$($(Op::$name,)*)*];

            /// Who must be together for it.
            pub fn level(self) -> Level {
                match self { $($(Op::$name)|* => Level::$level,)* }
            }

            /// What it needs.
            pub fn needs(self) -> &'static [Need] {
                match self { $($(Op::$name)|* => &[$(Need::$need),*],)* }
            }
        }
    };
}

// The order is that of the seeds' programs: a new operation goes to the end, after the last that is recorded.
operations! {
    Lane {
        UAdd USub UMul UMad UMulHi UMin UMax UDiv URem UAnd UOr UXor UNot UShl UShr UPopc UClz ULop3 UPrmt UMulWide
        USetp USelp UDivConst URemConst
        SAdd SSub SMul SMad SMulHi SMin SMax SDiv SRem SNeg SAbs SShl SShr SMulWide SSetp SSelp SDivConst SFromU UFromS
        WAdd WSub WMul WMad WMulHi WMin WMax WAnd WOr WXor WNot WShl WShr WDiv WRem WSetp WSelp WJoin WSplit WFromU WToU
        XAdd XSub XMul XNeg XAbs XMin XMax XShr XDiv XSetp XFromS XFromW WFromX
        FAdd FSub FMul FFma FMin FMax FNeg FAbs FSetp FSelp FFromU FFromS FToU FToS FBits FFromBits
        HAdd HSub HMul HFma HMin HMax HNeg HAbs HPack HUnpack HSwap HFromF HBits HSelp
    }
    Lane + Hopper { BAdd BSub BMul }
    Lane { BFma BMin BMax BNeg BAbs BPack BUnpack BSwap BFromF BSelp }
    Lane + Hopper { E4m3 E4m3Quad }
    Lane {
        Ex2 Lg2 Rcp
        PAnd POr PXor PNot Special
        LoadU LoadS LoadF LoadH LoadB LoadHalf LoadBrain
        ScratchU ScratchS ScratchF AtomU AtomS AtomF RedAdd RedMax RedMin
    }
    Lane + Tiles {
        TileStoreH TileLoadH TileStoreW TileLoadW TileHalf TileAtomW TileAtomF CopyH CopyW CopyGroups
    }
    Lane { FenceBlock FenceDevice }
    Warp {
        ShflBflyU ShflIdxU ShflDownF ShflUpS ShflIdxH ShflBflyB VoteAll VoteAny Ballot ReduxAdd ReduxSAdd ReduxMin
        ReduxSMin ReduxMax ReduxSMax ReduxAnd ReduxOr ReduxXor ReduceMax
        MmaExact MmaExactBf16 MmaExactHalf MmaF16 MmaBf16 MmaHalfAcc
    }
    Warp + Hopper { Elect }
    Warp + Tiles { WarpReadH WarpReadW LdMatrix }
    Warp + Tiles + Hopper { StMatrix }
    Warp { SchedulingFence }
    Block + Tiles { BlockReadH BlockReadW }
    Block { NamedBarrier }
    Block + Tiles { ArriveSync TileRed }
    Block + Hopper { Dependency FenceCluster }
    Block + Tiles + Hopper { Mbarrier }
    Block + Warpgroup {
        WgmmaExact WgmmaExactE4m3 WgmmaExactRegs WgmmaF16 WgmmaBf16 WgmmaRegs WgmmaE4m3
    }
    Block + TensorMap { TensorLoad TensorStore }
}

/// Seeds below this are those of the corpus, the answers of a GPU in `tests/it/corpus`.
const RECORDED_SEEDS: u64 = 400;

/// The last operation that there was when the corpus was recorded.
const LAST_RECORDED: Op = Op::TensorStore;

impl Op {
    /// The operations that the program of a seed draws from. Those of the corpus' seeds have none that came later, so
    /// that a new operation does not change their programs: without a GPU they cannot be recorded anew.
    fn of_seed(seed: u64) -> &'static [Op] {
        match seed {
            ..RECORDED_SEEDS => &Op::ALL[..=LAST_RECORDED as usize],
            _ => Op::ALL,
        }
    }

    /// Whether it needs Hopper (sm_90 or sm_90a).
    pub fn needs_hopper(self) -> bool {
        self.needs().iter().any(|need| *need != Need::Tiles)
    }
}

/// Numbers that choose a step's operands: how, is the operation's business.
pub type Args = [u32; 6];

/// What decides a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// A predicate of each lane.
    Lane,
    /// Whether any lane of the warp has it.
    AnyOfWarp,
    /// Whether all have.
    AllOfWarp,
    /// The block's number.
    Block,
}

/// How a loop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounds {
    /// After a constant number of rounds.
    Constant,
    /// After a number of rounds of each lane's own.
    PerLane,
    /// When a predicate of the lane says so, or after some rounds.
    BreakInside,
}

/// One step of a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// An operation.
    Do(Op, Args),
    /// A branch.
    If {
        /// What decides.
        by: Decision,
        /// Its operands.
        args: Args,
        /// Where it holds.
        then: Vec<Step>,
        /// Where it does not.
        otherwise: Vec<Step>,
    },
    /// A loop.
    Loop {
        /// How it ends.
        rounds: Rounds,
        /// Its operands.
        args: Args,
        /// What is repeated.
        body: Vec<Step>,
    },
}

impl Step {
    /// The steps within it: both branches, or a loop's body.
    pub(super) fn inner(&self) -> [&[Step]; 2] {
        match self {
            Step::Do(..) => [&[], &[]],
            Step::If { then, otherwise, .. } => [then, otherwise],
            Step::Loop { body, .. } => [body, &[]],
        }
    }

    /// The same with other steps within it.
    pub(super) fn with_inner(&self, mut change: impl FnMut(&[Step]) -> Vec<Step>) -> Step {
        let mut step = self.clone();
        match &mut step {
            Step::Do(..) => {}
            Step::If { then, otherwise, .. } => {
                *then = change(then);
                *otherwise = change(otherwise);
            }
            Step::Loop { body, .. } => *body = change(body),
        }
        step
    }
}

/// Types of variables, and how many there are of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // as in `Op`
pub enum File {
    U,
    S,
    W,
    X,
    F,
    H,
    B,
    P,
}

impl File {
    /// Every type.
    pub const ALL: [File; 8] = [File::U, File::S, File::W, File::X, File::F, File::H, File::B, File::P];

    /// Variables of the type.
    pub fn count(self) -> usize {
        match self {
            File::U | File::F => 6,
            File::S | File::H | File::B => 4,
            File::W | File::X | File::P => 3,
        }
    }

    /// 32-bit words of a value.
    pub fn words(self) -> u32 {
        if matches!(self, File::W | File::X) { 2 } else { 1 }
    }
}

/// A random program: the same seed makes the same one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// What it was made from; its inputs are too.
    pub seed: u64,
    /// Whether it may use Hopper's instructions.
    pub hopper: bool,
    /// Threads a block.
    pub threads: u32,
    /// Blocks.
    pub blocks: u32,
    /// Chooses shapes and swizzles of the tiles in shared memory.
    pub tiles: u32,
    /// What it does.
    pub steps: Vec<Step>,
    /// Variables stored at its end.
    pub outputs: Vec<(File, usize)>,
}

/// Branches and loops within each other.
const MAX_DEPTH: u32 = 3;

impl Program {
    /// The program of a seed.
    ///
    /// ```
    /// use flashcore_tools::fuzz::Program;
    /// assert_eq!(Program::random(7), Program::random(7));
    /// assert_ne!(Program::random(7).steps, Program::random(8).steps);
    /// ```
    pub fn random(seed: u64) -> Program {
        let mut rng = Rng::stream(seed, 0);
        let hopper = rng.chance(0.75);
        let threads = [32, 64, 128, 128][rng.below(4)];
        let size = rng.between(6, 48);
        let warpgroup = hopper && threads == 128;
        let ops = Op::of_seed(seed);
        let mut choice = Choice {
            rng,
            ops,
            hopper,
            warpgroup,
        };
        let steps = choice.steps(size, Level::Block, 0);
        let variables = |file: File| (0..file.count()).map(move |index| (file, index));
        Program {
            seed,
            hopper,
            threads,
            blocks: 1 + choice.rng.below(2) as u32,
            tiles: choice.rng.next_u64() as u32,
            steps,
            outputs: File::ALL.into_iter().flat_map(variables).collect(),
        }
    }

    /// Threads of all blocks.
    pub fn all_threads(&self) -> u32 {
        self.threads * self.blocks
    }

    /// Every operation, in order, those in branches and loops too.
    pub fn ops(&self) -> Vec<Op> {
        fn walk(steps: &[Step], ops: &mut Vec<Op>) {
            for step in steps {
                if let Step::Do(op, _) = step {
                    ops.push(*op);
                }
                step.inner().into_iter().for_each(|steps| walk(steps, ops));
            }
        }
        let mut ops = Vec::new();
        walk(&self.steps, &mut ops);
        ops
    }

    /// Whether any operation has a need.
    pub fn has_need(&self, need: Need) -> bool {
        self.ops().iter().any(|op| op.needs().contains(&need))
    }
}

/// What draws a program's steps, and what they may use.
struct Choice {
    rng: Rng,
    ops: &'static [Op],
    hopper: bool,
    warpgroup: bool,
}

impl Choice {
    fn steps(&mut self, count: usize, level: Level, depth: u32) -> Vec<Step> {
        let mut steps = Vec::new();
        while steps.len() < count {
            steps.push(if depth < MAX_DEPTH && self.rng.chance(0.12) {
                self.structure(level, depth + 1)
            } else {
                Step::Do(self.op(level), self.args())
            });
        }
        steps
    }

    fn op(&mut self, level: Level) -> Op {
        // Collective operations are few and need most looking at, so their level is chosen first.
        let wanted = match self.rng.below(10) {
            0..5 => Level::Lane,
            5..8 => Level::Warp,
            _ => Level::Block,
        };
        loop {
            let op = self.ops[self.rng.below(self.ops.len())];
            let allowed =
                (self.hopper || !op.needs_hopper()) && (self.warpgroup || !op.needs().contains(&Need::Warpgroup));
            if op.level() == wanted.min(level) && allowed {
                return op;
            }
        }
    }

    fn structure(&mut self, level: Level, depth: u32) -> Step {
        let args = self.args();
        if self.rng.chance(0.6) {
            let (by, within) = match self.rng.below(4) {
                1 if level >= Level::Warp => (Decision::AnyOfWarp, Level::Warp),
                2 if level >= Level::Warp => (Decision::AllOfWarp, Level::Warp),
                3 => (Decision::Block, level),
                _ => (Decision::Lane, Level::Lane),
            };
            let then = self.inner(within, depth);
            let has_else = self.rng.chance(0.5);
            return Step::If {
                by,
                args,
                then,
                otherwise: if has_else {
                    self.inner(within, depth)
                } else {
                    Vec::new()
                },
            };
        }
        let (rounds, within) = match self.rng.below(3) {
            0 => (Rounds::Constant, level),
            1 => (Rounds::PerLane, Level::Lane),
            _ => (Rounds::BreakInside, Level::Lane),
        };
        let body = self.inner(within, depth);
        Step::Loop { rounds, args, body }
    }

    /// The steps of a branch or a loop.
    fn inner(&mut self, level: Level, depth: u32) -> Vec<Step> {
        let count = self.rng.between(1, 6);
        self.steps(count, level, depth)
    }

    fn args(&mut self) -> Args {
        std::array::from_fn(|_| (self.rng.next_u64() >> 32) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_comes_up() {
        let mut met = std::collections::HashSet::new();
        for seed in RECORDED_SEEDS..2 * RECORDED_SEEDS {
            let program = Program::random(seed);
            for op in program.ops() {
                assert!(program.hopper || !op.needs_hopper(), "{op:?} in seed {seed}");
                met.insert(op);
            }
        }
        let missing: Vec<_> = Op::ALL.iter().filter(|op| !met.contains(op)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
