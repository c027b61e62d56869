//! How a block's part of dQ of a Q tile is added to the sums in global memory.
//!
//! Up to 128 columns, consumers write it to shared memory, and warps of the producer's warpgroup, one for each stage,
//! add it from there with bulk copies. Wider tiles leave no room for that, and consumer threads add their registers.
//!
//! **In any order**, the first block at a Q tile stores its part, and the others add to it, so the sums need no zeros.
//! A word for each Q tile says whether a block has begun to store, or has stored. A block claims a Q tile only after
//! its part is in shared memory, and waits for no other block before it has stored it, so blocks cannot deadlock.
//! Consumer threads that add their registers add to zeros.
//!
//! **In order** (deterministic), tiles of keys are added from the last to the first. The word of a Q tile is a
//! semaphore that says which tile of keys was added last. The warp that stores dQ acquires it, and releases it when its
//! additions have arrived. Where consumer threads add their registers, such a warp does both for them. So no consumer
//! waits for the L2 cache.

use flashcore_ir::inst::AtomOp;
use flashcore_ir::mbarrier::MBarriers;
use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, SharedTile, TileShape, Val};

use super::consumer::Warpgroup;
use super::kernel::{Context, MainLoop};
use super::scheduler::Tile;
use super::{ACC_ELEMENTS, Partition};
use crate::attention::gradients::DqSemaphore;
use crate::attention::softmax::SixteenBits;
use crate::wgmma::Config;

/// Stages of dQ in shared memory. Each has its warp, which stores them.
const STAGES: u32 = 2;

/// Values of a Q tile's word if blocks add in any order: 0 at first, [`CLAIMED`] when a block is about to store its
/// part, [`STORED`] when it has.
const CLAIMED: u32 = 1;
const STORED: u32 = 2;

/// A block's part of dQ in shared memory: consumers fill its stages, and warps of the producer's warpgroup empty them.
#[derive(Clone, Copy)]
pub(super) struct DqPipeline<'k> {
    tile: SharedTile<'k, f32>,
    full: MBarriers<'k>,
    free: MBarriers<'k>,
}

/// Mbarriers of consumer threads that add dQ in order: `acquired` when the warp that stores dQ has the semaphore,
/// `added` when all consumer warps have added.
#[derive(Clone, Copy)]
pub(super) struct DqOrder<'k> {
    acquired: MBarriers<'k>,
    added: MBarriers<'k>,
}

impl<'k> DqPipeline<'k> {
    /// A barrier of the block must follow.
    pub(super) fn declare(k: &'k KernelBuilder, levers: &Config, partition: &Partition) -> Self {
        let shape = TileShape::new(levers.rows, partition.dq_cols()).stages(STAGES);
        let tile = k.shared_tile("dq_tile", shape);
        let [full] = declare_mbarriers(k, ["dq.full"], STAGES, 4 * partition.warpgroups);
        let [free] = declare_mbarriers(k, ["dq.free"], STAGES, 1);
        DqPipeline { tile, full, free }
    }
}

impl<'k> DqOrder<'k> {
    /// A barrier of the block must follow.
    pub(super) fn declare(k: &'k KernelBuilder, partition: &Partition) -> Self {
        let [acquired] = declare_mbarriers(k, ["dq.acquired"], 1, 1);
        let [added] = declare_mbarriers(k, ["dq.added"], 1, 4 * partition.warpgroups);
        DqOrder { acquired, added }
    }
}

/// Declares mbarriers, `stages` of each name with `arrivals` a phase, which one thread initialises. A barrier of the
/// block must follow.
#[track_caller]
pub(super) fn declare_mbarriers<'k, const N: usize>(
    k: &'k KernelBuilder,
    names: [&'static str; N],
    stages: u32,
    arrivals: u32,
) -> [MBarriers<'k>; N] {
    let all = names.map(|name| k.mbarriers(name, stages));
    k.if_(k.thread_idx().eq(0).divergent(), || {
        for mbarriers in all {
            (0..stages).for_each(|stage| mbarriers.at(stage).init(arrivals));
        }
    });
    all
}

/// Stage of a tile, and parity of its phase, from the number of tiles before it.
pub(super) fn stage_and_phase<'k>(tiles: Val<'k, u32>, stages: u32) -> (Val<'k, u32>, Val<'k, u32>) {
    (tiles % stages, tiles / stages % 2)
}

impl<'k, E: SixteenBits> Context<'k, '_, E> {
    /// The words of Q tiles, if blocks add in any order and the first one at a Q tile stores its part.
    pub(super) fn in_any_order(&self) -> Option<DqSemaphore<'k>> {
        self.semaphore.filter(|_| !self.ordered)
    }

    /// Number of warps of the producer's warpgroup that store dQ, or that acquire the semaphore for consumers.
    pub(super) fn dq_warps(&self) -> u32 {
        match &self.main_loop {
            MainLoop::Pingpong(_) => STAGES,
            MainLoop::Exchange(exchange) => u32::from(exchange.dq_order.is_some()),
        }
    }

    /// What one thread of warp `index` of [`Self::dq_warps`] does (`store_dq` in FlashAttention-3).
    pub(super) fn store_dq(&self, k: &'k KernelBuilder, tile: &Tile<'k>, index: Val<'k, u32>) {
        let number = k.var(0u32);
        self.each_head(tile, |head| {
            let first_tile = head.first_row / self.levers.rows;
            k.for_uniform(head.from, head.to, 1, |i| {
                let m_block = self.m_block(tile, i);
                let dq_tile = first_tile + m_block.reinterpret::<u32>();
                match &self.main_loop {
                    MainLoop::Pingpong(pingpong) => {
                        let (stage, phase) = stage_and_phase(number.get(), STAGES);
                        k.if_(stage.eq(index).divergent(), || {
                            self.store_dq_tile(&pingpong.dq, [stage, phase], tile, dq_tile, m_block);
                        });
                    }
                    MainLoop::Exchange(exchange) => {
                        if let Some(DqOrder { acquired, added }) = exchange.dq_order {
                            let (stage, phase) = stage_and_phase(number.get(), 1);
                            self.wait_for_semaphore(tile, dq_tile, m_block);
                            acquired.at(stage).arrive();
                            added.at(stage).wait(phase);
                            self.release("release_semaphore", dq_tile, || tile.index + 1);
                        }
                    }
                }
                number.set(number + 1);
            });
        });
    }

    /// Stores a tile of dQ from a stage in shared memory, or adds it to the sums.
    fn store_dq_tile(
        &self,
        dq: &DqPipeline<'k>,
        [stage, phase]: [Val<'k, u32>; 2],
        tile: &Tile<'k>,
        dq_tile: Val<'k, u32>,
        m_block: Val<'k, i32>,
    ) {
        let (k, DqPipeline { tile: from, full, free }) = (stage.builder(), *dq);
        let first = self.claim_dq(tile, dq_tile, m_block, || full.at(stage).wait(phase));
        let elements = from.rows() * from.cols();
        k.verb("store_dq", || {
            let to = self.dq_sums.offset_strided(dq_tile, elements);
            let from = from.at_stage(stage, 0, 0);
            let store = || k.bulk_store(to, from, 4 * elements);
            let add = || k.bulk_add(to, from, 4 * elements);
            k.if_else(first.divergent(), store, add);
            k.bulk_commit();
            k.bulk_wait_read(0);
        });
        free.at(stage).arrive();
        if self.ordered {
            self.release("release_semaphore", dq_tile, || tile.index + 1)
        } else {
            let let_others_add = || self.release("let_others_add", dq_tile, || k.constant(STORED));
            k.if_(first.divergent(), let_others_add)
        }
    }

    /// Waits for a tile of dQ in shared memory, and until this block may store it or add it. Returns whether it stores
    /// it, as the first block at the tile.
    fn claim_dq(
        &self,
        tile: &Tile<'k>,
        dq_tile: Val<'k, u32>,
        m_block: Val<'k, i32>,
        wait: impl FnOnce(),
    ) -> Val<'k, bool> {
        let k = dq_tile.builder();
        let Some(semaphore) = self.in_any_order() else {
            wait();
            self.wait_for_semaphore(tile, dq_tile, m_block);
            return m_block.lt(tile.next_first);
        };
        // Most blocks find that another one has stored, and this load tells them while they wait for their own part.
        let word = self.word(semaphore, dq_tile);
        let state = k.var(word.load_acquire());
        wait();
        k.verb("claim_dq", || {
            k.if_(state.get().ne(STORED).divergent(), || {
                state.set(word.atomic(AtomOp::Max, CLAIMED));
                k.if_(state.get().gt(0).divergent(), || {
                    k.loop_(|scope| scope.break_if(word.load_acquire().eq(STORED).divergent()));
                });
            });
            // Orders the bulk additions that follow after what the first block has stored.
            k.fence_proxy_async();
        });
        state.get().eq(0)
    }

    /// If dQ is added in order: waits until the block of the next tile of keys has added, which precedes this one.
    #[track_caller]
    fn wait_for_semaphore(&self, tile: &Tile<'k>, dq_tile: Val<'k, u32>, m_block: Val<'k, i32>) {
        let Some(semaphore) = self.semaphore else { return };
        let (k, word) = (dq_tile.builder(), self.word(semaphore, dq_tile));
        k.verb("wait_for_semaphore", || {
            k.if_(m_block.ge(tile.next_first).divergent(), || {
                // The next tile of keys, plus 1.
                let next_added = tile.index + 2;
                k.loop_(|scope| scope.break_if(word.load_acquire().eq(next_added).divergent()));
            });
            // Orders the bulk additions that follow after those of the other block.
            k.fence_proxy_async();
        });
    }

    /// Sets the word of a tile of dQ, once what this block has stored or added is visible to others: lets the block of
    /// the previous tile of keys add, or all.
    #[track_caller]
    fn release(&self, verb: &'static str, dq_tile: Val<'k, u32>, word: impl FnOnce() -> Val<'k, u32>) {
        let Some(semaphore) = self.semaphore else { return };
        let k = dq_tile.builder();
        k.verb(verb, || {
            if let MainLoop::Pingpong(_) = self.main_loop {
                k.bulk_wait(0);
            }
            self.word(semaphore, dq_tile).store_release(word());
        });
    }

    /// The word of a Q tile: in order, the tile of keys that was added last, plus 1; in any order 0, [`CLAIMED`] or
    /// [`STORED`].
    #[track_caller]
    fn word(&self, semaphore: DqSemaphore<'k>, dq_tile: Val<'k, u32>) -> GlobalPtr<'k, u32> {
        let first = dq_tile * self.levers.rows;
        let place = match self.main_loop {
            // The blocks of a cluster add different columns, each with its own word.
            MainLoop::Exchange(_) => first + first.builder().cluster_rank(),
            MainLoop::Pingpong(_) => first,
        };
        semaphore.words.offset(place)
    }
}

impl<'k, E: SixteenBits> Warpgroup<'k, '_, E> {
    /// Writes this warp's part of dQ of a Q tile to its stage in shared memory, once that is free.
    #[track_caller]
    pub(super) fn write_dq(&self, dq: &DqPipeline<'k>, number: Val<'k, u32>) {
        let k = self.k;
        k.verb("write_dq", || {
            let (stage, phase) = stage_and_phase(number, STAGES);
            dq.free.at(stage).wait(phase ^ 1);
            let place = dq.tile.at_stage(stage, 0, self.first_dq() + k.lane() * 4);
            for i in 0..self.dq.tiles() {
                let to = place.plus((ACC_ELEMENTS * i) as i32);
                to.store_words(&self.dq.four(i), Cache::Default);
            }
        });
    }

    /// Signals that this warp's part is in shared memory. [`Self::write_dq`], a proxy fence and a barrier of the warp
    /// must precede it.
    #[track_caller]
    pub(super) fn commit_dq(&self, dq: &DqPipeline<'k>, number: Val<'k, u32>) {
        self.k.verb("commit_dq", || {
            self.one_lane(|| dq.full.at(number % STAGES).arrive());
        });
    }

    /// Adds this warp's registers of dQ of a Q tile to the sums in global memory; in order, once the semaphore is
    /// acquired.
    #[track_caller]
    pub(super) fn add_dq(
        &self,
        order: Option<DqOrder<'k>>,
        tile: &Tile<'k>,
        first_tile: Val<'k, u32>,
        m_block: Val<'k, i32>,
    ) {
        match order {
            Some(DqOrder { acquired, added }) => {
                let (stage, phase) = stage_and_phase(self.q_tiles_done.get(), 1);
                acquired.at(stage).wait(phase);
                self.add_registers(tile, first_tile, m_block);
                self.k.sync_warp();
                self.one_lane(|| added.at(stage).arrive());
            }
            None => self.add_registers(tile, first_tile, m_block),
        }
        self.q_tiles_done.set(self.q_tiles_done + 1);
    }

    #[track_caller]
    fn add_registers(&self, tile: &Tile<'k>, first_tile: Val<'k, u32>, m_block: Val<'k, i32>) {
        let (k, context) = (self.k, self.context);
        k.verb("add_dq", || {
            let dq_tile = first_tile + m_block.reinterpret::<u32>();
            let elements = context.levers.rows * context.partition.dq_cols();
            let sums = context.dq_sums.offset_strided(dq_tile, elements);
            let place = sums.offset(self.first_dq() + k.lane() * 4);
            let places = || (0..self.dq.tiles()).map(|i| (i, place.plus((ACC_ELEMENTS * i) as i32)));
            let add = || places().for_each(|(i, to)| to.add_four(&self.dq.four(i)));
            let store = || places().for_each(|(i, to)| to.store_words(&self.dq.four(i), Cache::Default));
            if context.ordered {
                // The first block at a tile of dQ stores its part.
                k.if_else(m_block.lt(tile.next_first).uniform(), store, add)
            } else {
                add()
            }
        });
    }

    /// Elements of a tile of dQ before those of this warp. In an exchange of dS two blocks have eight warps each.
    #[track_caller]
    fn first_dq(&self) -> Val<'k, u32> {
        let elements = ACC_ELEMENTS * self.dq.tiles();
        match self.context.main_loop {
            MainLoop::Pingpong(_) => self.warp * elements,
            MainLoop::Exchange(_) => self.rank.fma(8u32, self.warp) * elements,
        }
    }
}
