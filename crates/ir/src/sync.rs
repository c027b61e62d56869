//! Barriers, fences, and exchanges between the lanes of a warp.

use crate::builder::{KernelBuilder, instructions};
use crate::inst::{BinOp, FenceInst, Inst, Operand, Scope, ShflMode, Special, VoteMode};
use crate::types::{Integer, RegClass, Scalar};
use crate::value::{Source, Val};

/// All lanes of a warp.
pub const FULL_WARP: u32 = u32::MAX;

instructions! {
    /// Waits for every thread of the block, and orders their shared-memory accesses (`bar.sync 0`).
    barrier() = Inst::BarSync { id: Operand::Imm(0), threads: None };
    /// Waits for all lanes of the warp, and orders their memory accesses (`bar.warp.sync`).
    sync_warp() = Inst::BarWarp { members: FULL_WARP };
    /// Orders this thread's memory accesses before the fence with those after it.
    fence(scope: Scope) = Inst::Fence(FenceInst::Memory(scope));
    /// Orders this thread's accesses to shared memory before it with those of asynchronous copies
    /// and warpgroup products that learn of it: a tile that was written by stores and is then read
    /// by either needs this fence, by those who wrote, before the barrier (`fence.proxy.async`). So
    /// does a stage that was read by loads and is then filled by a copy, by those who read.
    fence_proxy_async() = Inst::Fence(FenceInst::ProxyAsync);
    /// Orders accesses of threads to global memory that this thread knows of, such as those before a
    /// release that it has acquired, with the asynchronous copies that it starts next
    /// (`fence.proxy.async.global`).
    fence_proxy_async_global() = Inst::Fence(FenceInst::ProxyAsyncGlobal);
    /// Makes mbarriers that this thread has just made known to asynchronous copies and, after a
    /// cluster barrier, to the other blocks.
    fence_mbarrier_init() = Inst::Fence(FenceInst::MbarrierInit);
    /// Waits until the launches that this one depends on have ended and what they wrote is visible
    /// (`griddepcontrol.wait`); before it, nothing that they write may be read. A
    /// [`Launch`](crate::Launch) of the kernel is programmatic then: it may begin before they end.
    dependency_wait() = Inst::DependencyWait;
    /// Lets the launches that depend on this one begin, once every block has come here or ended
    /// (`griddepcontrol.launch_dependents`). Their [`dependency_wait`](Self::dependency_wait) still
    /// waits for the end of this one.
    dependency_trigger() = Inst::DependencyTrigger;
}

impl KernelBuilder {
    /// Waits at barrier `id` (0..16, the same for the whole warp) until `threads` threads have come
    /// to it.
    #[track_caller]
    pub fn barrier_among<'k>(&'k self, id: impl Source<'k, u32>, threads: u32) {
        let (id, threads) = (id.operand(), Some(threads));
        self.emit(Inst::BarSync { id, threads });
    }

    /// Comes to barrier `id` without waiting; `threads` counts those who arrive and those who wait.
    #[track_caller]
    pub fn barrier_arrive<'k>(&'k self, id: impl Source<'k, u32>, threads: u32) {
        let id = id.operand();
        self.emit(Inst::BarArrive { id, threads });
    }

    /// True in one lane of the warp, always the same one. The whole warp executes it.
    #[track_caller]
    pub fn elect(&self) -> Val<'_, bool> {
        self.result(|dst| Inst::Elect { dst })
    }

    /// Stops the launch with an error where `cond` holds in any lane that gets here.
    #[track_caller]
    pub fn trap_if<'k>(&'k self, cond: Val<'k, bool>) {
        let pred = self.in_register(RegClass::Pred, cond.operand());
        self.emit(Inst::TrapIf { pred });
    }

    /// Keeps the compiler from moving instructions across this place. Costs a vote and a branch.
    ///
    /// PTX has no such fence. A trap that never happens, on a condition that the compiler cannot
    /// know and whose vote it must not move, ends the basic block within which it schedules
    /// (`docs/hardware-notes.md`).
    #[track_caller]
    pub fn scheduling_fence(&self) {
        let never = self.special(Special::MaxWarps).eq(0).vote_any();
        self.trap_if(never);
    }
}

impl<'k> Val<'k, bool> {
    /// True in every lane where it is true in all.
    #[track_caller]
    pub fn vote_all(self) -> Val<'k, bool> {
        self.vote(VoteMode::All)
    }
    /// True in every lane where it is true in any.
    #[track_caller]
    pub fn vote_any(self) -> Val<'k, bool> {
        self.vote(VoteMode::Any)
    }
    /// One bit a lane.
    #[track_caller]
    pub fn ballot(self) -> Val<'k, u32> {
        self.vote(VoteMode::Ballot)
    }

    #[track_caller]
    fn vote<T: Scalar>(self, mode: VoteMode) -> Val<'k, T> {
        let (pred, members) = (self.k.in_register(RegClass::Pred, self.operand()), FULL_WARP);
        self.k.result(|dst| Inst::Vote {
            mode,
            dst,
            pred,
            members,
        })
    }
}

impl<'k, T: Scalar> Val<'k, T> {
    /// The value of lane `lane ^ mask`. Orders no memory.
    #[track_caller]
    pub fn shfl_bfly(self, mask: u32) -> Val<'k, T> {
        self.shfl(ShflMode::Bfly, mask.operand())
    }
    /// The value of lane `source`, for every lane.
    #[track_caller]
    pub fn shfl_idx(self, source: impl Source<'k, u32>) -> Val<'k, T> {
        self.shfl(ShflMode::Idx, source.operand())
    }
    /// The value of lane `lane + delta`; the last `delta` lanes keep their own.
    #[track_caller]
    pub fn shfl_down(self, delta: u32) -> Val<'k, T> {
        self.shfl(ShflMode::Down, delta.operand())
    }
    /// The value of lane `lane - delta`; the first `delta` lanes keep their own.
    #[track_caller]
    pub fn shfl_up(self, delta: u32) -> Val<'k, T> {
        self.shfl(ShflMode::Up, delta.operand())
    }

    #[track_caller]
    fn shfl(self, mode: ShflMode, lane: Operand) -> Val<'k, T> {
        const { assert!(T::TYPE.bytes() == 4, "shfl exchanges 32-bit values") };
        let (src, members) = (self.operand(), FULL_WARP);
        self.k.result(|dst| Inst::Shfl {
            mode,
            dst,
            src,
            lane,
            members,
        })
    }
}

impl<'k> Val<'k, f32> {
    /// The largest over groups of `lanes` (a power of two) neighbouring lanes, in each of them.
    #[track_caller]
    pub fn reduce_max(self, lanes: u32) -> Val<'k, f32> {
        self.butterfly(lanes, BinOp::Max)
    }
    /// The sum over groups of `lanes` (a power of two) neighbouring lanes, in every one of them.
    #[track_caller]
    pub fn reduce_sum(self, lanes: u32) -> Val<'k, f32> {
        self.butterfly(lanes, BinOp::Add)
    }

    #[track_caller]
    fn butterfly(self, lanes: u32, op: BinOp) -> Val<'k, f32> {
        if !lanes.is_power_of_two() || lanes > 32 {
            self.builder().invalid(format!(
                "a reduction over {lanes} lanes; 1, 2, 4, 8, 16 and 32 are possible"
            ));
            return self;
        }
        let mut value = self;
        let mut distance = lanes / 2;
        while distance > 0 {
            let other = value.shfl_bfly(distance);
            value = value.bin(op, other.operand());
            distance /= 2;
        }
        value
    }
}

macro_rules! reductions {
    ($($method:ident = $op:ident, $doc:literal;)*) => {
        impl<'k, T: Integer> Val<'k, T> {
            $(
                #[doc = concat!($doc, " (32-bit integers).")]
                #[track_caller]
                pub fn $method(self) -> Val<'k, T> {
                    self.redux(BinOp::$op)
                }
            )*

            #[track_caller]
            fn redux(self, op: BinOp) -> Val<'k, T> {
                const { assert!(T::TYPE.bytes() == 4, "redux reduces 32-bit integers") };
                let (ty, src, members) = (T::TYPE, self.operand(), FULL_WARP);
                self.k.result(|dst| Inst::Redux { op, ty, dst, src, members })
            }
        }
    };
}
reductions! {
    redux_add = Add, "The sum over all lanes of the warp";
    redux_max = Max, "The largest over all lanes of the warp";
    redux_min = Min, "The smallest over all lanes of the warp";
    redux_and = And, "The bits set in every lane of the warp";
    redux_or = Or, "The bits set in any lane of the warp";
    redux_xor = Xor, "The bits set in an odd number of the warp's lanes";
}
