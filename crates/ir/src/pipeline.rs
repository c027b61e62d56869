//! [`Pipeline`]: a ring of stages between a producer and consumers. It alone computes the
//! counts, phases and offsets of its mbarriers.
//!
//! Each stage has two mbarriers: *full*, which ends its phase when the announced bytes have landed,
//! and *empty*, which ends its phase when every consumer has released the stage. A cursor walks the
//! ring on each side; the phase of a side is the parity of its rounds.

use crate::builder::{KernelBuilder, invalid_if};
use crate::mbarrier::{MBarrier, MBarriers};
use crate::value::{Source, Val, Var};

/// A ring of stages between a producer and consumers.
///
/// ```
/// use flashcore_ir::{Kernel, Swizzle, TileShape};
/// use half::f16;
/// let kernel = Kernel::build("ring", 64, |k| {
///     let tile = k.shared_tile::<f16>("tile", TileShape::new(64, 64).swizzled(Swizzle::B128).stages(2));
///     let map = k.param_tensor_map("map", tile.tensor_box(&[64]));
///     let ring = k.pipeline("ring", 2, 1); // one warp reads
///     k.start_pipelines(&[ring]);
///     k.if_else(k.thread_idx().lt(32).uniform(), || {
///         let keys = ring.producer();
///         k.if_(k.elect().divergent(), || k.for_uniform(0u32, 8u32, 1, |i| {
///             keys.acquire();
///             keys.expect(tile.stage_bytes());
///             tile.load_tma(keys.stage(), map.at(&[i * 64]), keys.full());
///             keys.advance();
///         }));
///     }, || {
///         let keys = ring.consumer();
///         k.for_uniform(0u32, 8u32, 1, |_| {
///             keys.wait();
///             // … read `tile` at `keys.stage()` …
///             keys.release();
///             keys.advance();
///         });
///     });
/// })?;
/// # Ok::<(), flashcore_ir::BuildErrors>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pipeline<'k> {
    k: &'k KernelBuilder,
    full: MBarriers<'k>,
    empty: MBarriers<'k>,
    stages: u32,
    arrivers: u32,
    /// Lanes of each of these warps that arrive.
    lanes: u32,
    /// Blocks whose consumers release a stage.
    blocks: u32,
}

#[derive(Clone, Copy, Debug)]
struct Cursor<'k> {
    pipeline: Pipeline<'k>,
    /// With a power of two of stages, the stages passed since the first, which give both the stage
    /// and the phase; otherwise the stage.
    place: Var<'k, u32>,
    /// Stages from one of its stages to the next.
    step: u32,
    phase: Option<Var<'k, u32>>,
}

/// What fills the stages of a [`Pipeline`]: one thread.
#[derive(Clone, Copy, Debug)]
pub struct Producer<'k>(Cursor<'k>);

/// What reads the stages of a [`Pipeline`]: whole warps.
#[derive(Clone, Copy, Debug)]
pub struct Consumer<'k>(Cursor<'k>);

impl KernelBuilder {
    /// Declares a pipeline of `stages` stages, which `arrivers` warps of this block release.
    #[track_caller]
    pub fn pipeline(&self, name: &str, stages: u32, arrivers: u32) -> Pipeline<'_> {
        let warps = self.threads() / 32;
        invalid_if!(self, arrivers == 0 || arrivers > warps =>
            "pipeline `{name}` is released by {arrivers} warps; the block has {warps}, and at least one must read");
        Pipeline {
            k: self,
            full: self.mbarriers(&format!("{name}.full"), stages),
            empty: self.mbarriers(&format!("{name}.empty"), stages),
            stages,
            arrivers,
            lanes: 1,
            blocks: 1,
        }
    }

    /// Makes the mbarriers of pipelines, by one thread, and waits for the block, or for the cluster
    /// of a kernel made for one. The whole block executes it, before any pipeline is used.
    #[track_caller]
    pub fn start_pipelines(&self, pipelines: &[Pipeline<'_>]) {
        let clustered = self.state.borrow().kernel.cluster.is_some_and(|blocks| blocks > 1);
        self.verb("start_pipelines", || {
            self.if_(self.thread_idx().eq(0).divergent(), || {
                for pipeline in pipelines {
                    for stage in 0..pipeline.stages {
                        pipeline.full.at(stage).init(1);
                        let arrivals = pipeline.arrivers * pipeline.lanes * pipeline.blocks;
                        pipeline.empty.at(stage).init(arrivals);
                    }
                }
                self.fence_mbarrier_init();
            });
            if clustered {
                self.cluster_barrier();
            } else {
                self.barrier();
            }
        });
    }
}

impl<'k> Pipeline<'k> {
    /// For stages that the blocks of the cluster fill together (multicast): a stage is free when
    /// the consumers of every block have released it.
    #[track_caller]
    pub fn across_cluster(self) -> Self {
        let Some(blocks) = self.k.state.borrow().kernel.cluster else {
            self.k
                .invalid("a pipeline across a cluster in a kernel made for none; say `in_clusters_of` first");
            return self;
        };
        Pipeline { blocks, ..self }
    }

    /// For stages that are read by loads: the last `lanes` lanes of each warp release a stage. One
    /// lane would do, but compute-sanitizer's racecheck does not follow `sync_warp` to its arrival,
    /// and of several lanes that load the same word, it knows the last one.
    #[track_caller]
    pub fn released_by_lanes(self, lanes: u32) -> Self {
        invalid_if!(self.k, !(2..=32).contains(&lanes) => "{lanes} lanes of a warp release a stage; 2 to 32 can");
        Pipeline { lanes, ..self }
    }

    /// Stages.
    pub fn stages(&self) -> u32 {
        self.stages
    }

    /// The producer, at the first stage.
    #[track_caller]
    pub fn producer(&self) -> Producer<'k> {
        Producer(self.cursor())
    }

    /// The consumer, at the first stage.
    #[track_caller]
    pub fn consumer(&self) -> Consumer<'k> {
        Consumer(self.cursor())
    }

    /// A consumer that takes every `step`th stage from `first` on: one of several,
    /// no two of which share a stage. `step` divides the number of stages; `first` is less than `step`.
    #[track_caller]
    pub fn consumer_of(&self, first: impl Source<'k, u32>, step: u32) -> Consumer<'k> {
        invalid_if!(self.k, step == 0 || !self.stages.is_multiple_of(step) =>
            "a consumer of every {step}th of {} stages; the number must divide them", self.stages);
        Consumer(Cursor {
            place: self.k.var(first),
            step,
            ..self.cursor()
        })
    }

    #[track_caller]
    fn cursor(&self) -> Cursor<'k> {
        Cursor {
            pipeline: *self,
            place: self.k.var(0u32),
            step: 1,
            phase: (!self.stages.is_power_of_two()).then(|| self.k.var(0u32)),
        }
    }
}

impl<'k> Cursor<'k> {
    #[track_caller]
    fn stage(&self) -> Val<'k, u32> {
        match (self.pipeline.stages, self.phase) {
            (1, _) => self.pipeline.k.constant(0),
            (stages, None) => self.place.get() & (stages - 1),
            (_, Some(_)) => self.place.get(),
        }
    }

    #[track_caller]
    fn phase(&self) -> Val<'k, u32> {
        match (self.pipeline.stages, self.phase) {
            (1, None) => self.place.get() & 1,
            (stages, None) => (self.place.get() >> stages.ilog2()) & 1,
            (_, Some(phase)) => phase.get(),
        }
    }

    #[track_caller]
    fn advance(&self) {
        self.pipeline.k.verb("advance", || {
            let next = self.place + self.step;
            let Some(phase) = self.phase else {
                self.place.set(next);
                return;
            };
            let wraps = next.ge(self.pipeline.stages);
            self.place.set(wraps.select(next - self.pipeline.stages, next));
            phase.set(phase.get() ^ wraps.select(1u32, 0u32));
        });
    }
}

impl<'k> Producer<'k> {
    /// The stage it stands at.
    #[track_caller]
    pub fn stage(&self) -> Val<'k, u32> {
        self.0.stage()
    }

    /// Waits until every consumer has released the stage; in the first round it does not wait.
    #[track_caller]
    pub fn acquire(&self) {
        let cursor = self.0;
        cursor.pipeline.k.verb("acquire", || {
            let empty = cursor.pipeline.empty.at(cursor.stage());
            empty.wait(cursor.phase() ^ 1);
        });
    }

    /// Announces how many bytes will fill the stage: all that copies bring, from whatever block.
    #[track_caller]
    pub fn expect(&self, bytes: impl Source<'k, u32>) {
        let bytes = bytes.val(self.0.pipeline.k);
        self.0.pipeline.k.verb("expect", || self.full().arrive_expecting(bytes));
    }

    /// The mbarrier that copies into the stage complete at.
    #[track_caller]
    pub fn full(&self) -> MBarrier<'k> {
        self.0.pipeline.full.at(self.0.stage())
    }

    /// Goes on to the next stage.
    #[track_caller]
    pub fn advance(&self) {
        self.0.advance();
    }
}

impl<'k> Consumer<'k> {
    /// The stage it stands at.
    #[track_caller]
    pub fn stage(&self) -> Val<'k, u32> {
        self.0.stage()
    }

    /// Waits until the stage has been filled.
    #[track_caller]
    pub fn wait(&self) {
        let cursor = self.0;
        cursor.pipeline.k.verb("wait_full", || {
            let full = cursor.pipeline.full.at(cursor.stage());
            full.wait(cursor.phase());
        });
    }

    /// Tells the producer (of every block, in a pipeline across a cluster) that this warp no
    /// longer reads the stage. One lane arrives for all, or [a few](Pipeline::released_by_lanes).
    /// Before that, lanes that read the stage with loads must have synchronised (`sync_warp`), and
    /// if bulk copies fill it, must have executed [`KernelBuilder::fence_proxy_async`] first, since
    /// an arrival does not wait for loads. Products that read it must have been waited for.
    #[track_caller]
    pub fn release(&self) {
        let (pipeline, stage) = (self.0.pipeline, self.0.stage());
        let (k, empty) = (pipeline.k, pipeline.empty);
        k.verb("release", || {
            let lane = k.lane();
            match (pipeline.lanes, pipeline.blocks) {
                (1, 1) => k.if_(lane.eq(0).divergent(), || empty.at(stage).arrive()),
                // A lane for each block.
                (1, blocks) => k.if_(lane.lt(blocks).divergent(), || empty.at(stage).in_block(lane).arrive()),
                (lanes, 1) => k.if_(lane.ge(32 - lanes).divergent(), || empty.at(stage).arrive()),
                (lanes, blocks) => k.if_(lane.ge(32 - lanes).divergent(), || {
                    (0..blocks).for_each(|block| empty.at(stage).in_block(k.constant(block)).arrive());
                }),
            }
        });
    }

    /// Goes on to the next stage.
    #[track_caller]
    pub fn advance(&self) {
        self.0.advance();
    }
}
