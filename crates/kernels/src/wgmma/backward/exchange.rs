//! Where dK and dV of 64 keys need two warpgroups, two blocks of a cluster exchange dS. Each block then computes half
//! of the columns of dQ for the 128 keys of both. Without the exchange a block would add all columns of dQ for its own
//! 64 keys: twice as many additions, more than the L2 cache takes.
//!
//! Warpgroup `dv` has S, P and dV, warpgroup `dk` dP, dS and dK. Products are started ahead, so that the tensor cores
//! have work while the softmax runs and dS is on its way:
//!
//! | | dv | dk |
//! |---|---|---|
//! | 1 | P, to the other | dP |
//! | 2 | dV; dQ of the Q tile before is added | dS, to both blocks |
//! | 3 | S of the next | dK |
//! | 4 | dQ | dQ; dP of the next; dQ is added |
//!
//! dQ of `dv` and dP of `dk` are under way from one iteration to the next, so the last iteration is apart: with a
//! branch in its place ptxas 13.0 serialises products, too (`docs/hardware-notes.md`).

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::mbarrier::MBarriers;
use flashcore_ir::wgmma::{WgmmaElement, WgmmaOperand};
use flashcore_ir::{Cache, KernelBuilder, SharedPtr, SharedTile, TileShape, Val, Var};

use super::consumer::Warpgroup;
use super::dq::{DqOrder, declare_mbarriers, stage_and_phase};
use super::kernel::{Operand, Outputs};
use super::scheduler::{QueryHead, Tile};
use super::{DS_STAGES, Partition, SLAB_COLS, dout_stages};
use crate::attention::tensor_rows::TensorRows;
use crate::wgmma::Config;
use crate::wgmma::barriers::{DS_FULL, P_FULL};
use crate::wgmma::consumer::release;
use crate::wgmma::tiles::slabs;

/// What a block has of the other block of its cluster.
#[derive(Clone, Copy)]
pub(super) struct Exchange<'k, E> {
    /// The keys of the other block, in the columns of this block's part of dQ.
    pub(super) other_keys: Operand<'k, E>,
    /// P for the warpgroup that has dS, thread by thread.
    p_tile: SharedTile<'k, f32>,
    /// The other's dS, and by its stage: it and this block's are there.
    ds_tile: SharedTile<'k, E>,
    full: MBarriers<'k>,
    /// Where dQ is added in order.
    pub(super) dq_order: Option<DqOrder<'k>>,
}

impl<'k, E: WgmmaElement> Exchange<'k, E> {
    pub(super) fn declare(
        k: &'k KernelBuilder,
        levers: &Config,
        partition: &Partition,
        k_rows: TensorRows<'k>,
        ordered: bool,
    ) -> Self {
        let (columns, warps) = (
            partition.dq_col_parts / levers.cluster * SLAB_COLS,
            4 * partition.warpgroups,
        );
        let stages = dout_stages(levers, partition.width) + 1;
        // All threads of a warpgroup arrive, which also have read P.
        let [full] = declare_mbarriers(k, ["ds.full"], stages, 128);
        let pipeline = || k.pipeline("other_k", 1, warps);
        // Mbarriers between two tiles take 1,024 B with the alignment of the next: three stages of dS leave no room for
        // that. At 256 columns they stay where they were.
        let first = (stages > DS_STAGES).then(pipeline);
        Exchange {
            other_keys: Operand {
                tile: k.shared_tile("other_k_tile", slabs::<E>(levers.cols, columns)),
                rows: k_rows,
                pipeline: first.unwrap_or_else(pipeline),
            },
            ds_tile: k.shared_tile("other_ds_tile", slabs::<E>(levers.cols, levers.rows).stages(stages)),
            p_tile: k.shared_tile("p_tile", TileShape::new(levers.rows / 8, 4 * 128)),
            full,
            dq_order: ordered.then(|| DqOrder::declare(k, partition)),
        }
    }

    /// Where a thread's four elements of P's accumulator `i` are.
    #[track_caller]
    pub(super) fn p_place(&self, k: &'k KernelBuilder, i: u32) -> SharedPtr<'k, f32> {
        let first = self.p_tile.at(0, k.thread_idx() % 128 * 4);
        first.plus((4 * 128 * i) as i32)
    }

    /// Of a Q tile, by the number of those before it: the stages of this block's dS and of the other's.
    #[track_caller]
    fn stages(&self, tiles: Var<'k, u32>) -> [Val<'k, u32>; 2] {
        let own = tiles % DS_STAGES;
        match self.ds_tile.stages() {
            DS_STAGES => [own; 2],
            stages => [own, tiles % stages],
        }
    }

    /// The other's dS, and its keys in the columns of a warpgroup.
    #[track_caller]
    pub(super) fn operands(
        &self,
        stage: Val<'k, u32>,
        warpgroup: Val<'k, u32>,
    ) -> (WgmmaOperand<'k, E>, WgmmaOperand<'k, E>) {
        let ds = self.ds_tile.mn_major().slabs(0, 1).stage(stage);
        (ds, self.other_keys.tile.mn_major().slabs(warpgroup, 1))
    }
}

impl<'k, E: MmaElement + WgmmaElement> Warpgroup<'k, '_, E> {
    /// Adds what the Q tiles of a head (one or more) contribute to the three gradients.
    pub(super) fn head_in_exchange(&self, exchange: &Exchange<'k, E>, tile: &Tile<'k>, head: &QueryHead<'k>) {
        let k = self.k;
        let first_tile = head.first_row / self.context.levers.rows;
        let m_block = |i| self.context.m_block(tile, i);
        let finish_dq = |i| self.add_dq(exchange.dq_order, tile, first_tile, m_block(i));
        let start_dq = || {
            let (other, phase) = stage_and_phase(self.q_tiles_done.get(), exchange.ds_tile.stages());
            exchange.full.at(other).wait(phase);
            let own = match exchange.ds_tile.stages() {
                DS_STAGES => other,
                _ => self.q_tiles_done % DS_STAGES,
            };
            self.start_dq([own, other]);
        };
        let last = head.to - 1;
        if self.outputs == Outputs::Dv {
            let step = |i: Val<'k, i32>, is_last: bool| {
                self.step_of_dv(exchange, || self.mask_if_needed(tile, m_block(i)));
                k.if_(i.gt(head.from).uniform(), || finish_dq(i - 1));
                if is_last {
                    return start_dq();
                }
                self.start_scores();
                start_dq();
                // The scores have arrived.
                k.wgmma_wait(1);
            };
            self.start_scores();
            k.wgmma_wait(0);
            k.for_uniform(head.from, last, 1, |i| step(i, false));
            step(last, true);
            k.wgmma_wait(0);
            finish_dq(last);
        } else {
            let step = |i: Val<'k, i32>, is_last: bool| {
                self.step_of_dk(exchange);
                start_dq();
                k.wgmma_wait(1);
                release(self.q);
                if !is_last {
                    self.start_dp();
                }
                k.wgmma_wait(if is_last { 0 } else { 1 });
                finish_dq(i);
            };
            self.start_dp();
            k.for_uniform(head.from, last, 1, |i| step(i, false));
            step(last, true);
        }
    }

    /// Writes this thread's P to shared memory, for the thread that has the same elements of dP, and rounds it to dV's
    /// operand.
    #[track_caller]
    fn give_probabilities(&self, exchange: &Exchange<'k, E>) {
        self.k.verb("give_probabilities", || {
            for i in 0..self.scores.tiles() {
                let four = [0, 1, 2, 3].map(|e| self.scores.var(4 * i + e).get());
                exchange.p_place(self.k, i).store_words(&four, Cache::Default);
                for half in 0..2 {
                    let rounded = E::pack(four[2 * half], four[2 * half + 1]);
                    self.p.word(2 * i + half as u32).set(rounded);
                }
            }
        });
    }

    /// P and dV of a Q tile, whose scores are there; dQ of the tile before may be under way.
    fn step_of_dv(&self, exchange: &Exchange<'k, E>, mask: impl FnOnce()) {
        let k = self.k;
        let lse = self.row_statistics(self.context.lse_tile, self.q.stage());
        mask();
        self.probabilities(&lse);
        self.give_probabilities(exchange);
        // The proxy fence of the other warpgroup, after this barrier, also orders these loads before the next copies.
        release(self.q);
        k.barrier_arrive(P_FULL, 256);
        self.dout.wait();
        self.start_dv();
        // ptxas overlaps the products of a loop only if at one place none is under way.
        k.wgmma_wait(0);
        release(self.dout);
    }

    /// dS of a Q tile, whose dP is under way, to both blocks. It ends with dK under way.
    ///
    /// A stage of dS needs no mbarrier to say that it is free. *The other block's dS* has one stage more than dO. dO of
    /// this tile has arrived, so all warpgroups of both blocks have released the dO that had its stage, and each does
    /// so only after dQ of the tile before that. *This block's dS* has two stages, and Q no more, as there is no room.
    /// P of this tile is there, so both warpgroups have computed dQ of the tile two before; and Q of this tile is, so
    /// the other block has released Q of the tile two before, which it does only when this block's dS of that tile has
    /// arrived there.
    fn step_of_dk(&self, exchange: &Exchange<'k, E>) {
        let k = self.k;
        let stages = || exchange.stages(self.q_tiles_done);
        let stage = || stages()[0];
        let delta = self.row_statistics(self.context.delta_tile, self.dout.stage());
        k.wgmma_wait(0);
        // Before P is there: above 192 columns dO has one stage, and its copy takes long.
        k.fence_proxy_async();
        k.sync_warp();
        release(self.dout);
        k.barrier_among(P_FULL, 256);
        let p_of = |tile| {
            let four = exchange.p_place(k, tile).load_words(4, Cache::Default);
            move |half| [four[2 * half], four[2 * half + 1]]
        };
        self.score_gradients(stage(), &delta, p_of);
        k.fence_proxy_async();
        k.barrier_among(DS_FULL, 128);
        let is_first = (k.thread_idx() % 128).eq(0);
        let has_read_p = || exchange.full.at(stages()[1]).arrive();
        k.if_else(is_first.divergent(), || self.send_ds(exchange, stages()), has_read_p);
        self.q.wait();
        self.start_dk(stage());
    }

    /// Sends this block's dS to the other one.
    #[track_caller]
    fn send_ds(&self, exchange: &Exchange<'k, E>, [own, its]: [Val<'k, u32>; 2]) {
        let (k, ds_tile) = (self.k, self.context.ds_tile);
        k.verb("send_ds", || {
            let other = self.rank ^ 1;
            let full = exchange.full.at(its);
            // The other block sends as many.
            full.arrive_expecting(ds_tile.stage_bytes());
            let to = exchange.ds_tile.at_stage(its, 0, 0).in_block(other);
            let from = ds_tile.at_stage(own, 0, 0);
            k.bulk_send(to, from, ds_tile.stage_bytes(), full.in_block(other));
        });
    }
}
