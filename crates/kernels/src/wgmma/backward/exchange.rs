//! The main loop above 128 columns, where dK and dV of 64 keys need two warpgroups. Two blocks of a cluster exchange
//! dS, and each computes half of the columns of dQ for the 128 keys of both. Without the exchange a block would add all
//! columns of dQ for its own 64 keys: twice as many additions, more than the L2 cache takes.
//!
//! Warpgroup `dv` computes S, P and dV, warpgroup `dk` dP, dS and dK, and each a quarter of the columns of dQ. Products
//! are started early, so that the tensor cores have work while the softmax runs and dS is sent:
//!
//! | step of Q tile `i` | dv | dk |
//! |---|---|---|
//! | 1 | P, written for `dk` | dP |
//! | 2 | dV; dQ of `i - 1` is added | dS, written to both blocks |
//! | 3 | S of `i + 1` | dK |
//! | 4 | dQ | dQ; dP of `i + 1`; dQ is added |
//!
//! dQ of `dv` and dP of `dk` are in flight from one step to the next, so the last step is outside of the loop: with a
//! branch in its place ptxas 13.0 serialises the products (`docs/hardware-notes.md`).

use flashcore_ir::mbarrier::MBarriers;
use flashcore_ir::{Cache, KernelBuilder, SharedPtr, SharedTile, TileShape, Val, Var};

use super::consumer::Warpgroup;
use super::dq::{DqOrder, declare_mbarriers, stage_and_phase};
use super::kernel::Outputs;
use super::scheduler::{QueryHead, Tile};
use super::{DS_STAGES, Partition, SLAB_COLS, dout_stages};
use crate::attention::softmax::SixteenBits;
use crate::attention::tensor_rows::TensorRows;
use crate::wgmma::Config;
use crate::wgmma::barriers::{DS_FULL, P_FULL};
use crate::wgmma::consumer::release_and_advance;
use crate::wgmma::maps::Operand;
use crate::wgmma::tiles::slabs;

/// The shared memory of a block for what comes from the other block of its cluster, and for P.
#[derive(Clone, Copy)]
pub(super) struct Exchange<'k, E> {
    /// K of the other block, in the columns of this block's part of dQ.
    pub(super) other_keys: Operand<'k, E>,
    /// P in f32, from each thread of `dv` for the thread of `dk` with the same elements of dP.
    p_tile: SharedTile<'k, f32>,
    /// dS of the other block. A stage is full when this block's dS has been written, too.
    pub(super) ds_tile: SharedTile<'k, E>,
    full: MBarriers<'k>,
    /// If dQ is added in order.
    pub(super) dq_order: Option<DqOrder<'k>>,
}

impl<'k, E: SixteenBits> Exchange<'k, E> {
    pub(super) fn declare(
        k: &'k KernelBuilder,
        levers: &Config,
        partition: &Partition,
        k_rows: TensorRows<'k>,
        ordered: bool,
    ) -> Self {
        let columns = partition.dq_col_parts / levers.cluster * SLAB_COLS;
        let stages = dout_stages(levers, partition.width) + 1;
        // All threads of `dk` arrive, when they have read P and written dS.
        let [full] = declare_mbarriers(k, ["ds.full"], stages, 128);
        let pipeline = || k.pipeline("other_k", 1, 4 * partition.warpgroups);
        // Mbarriers between two tiles take 1,024 B, as the next tile is aligned: too much with three stages of dS. So
        // they come first there, and last at 256 columns, where they fit.
        let first = (stages > DS_STAGES).then(pipeline);
        let other_keys = k.shared_tile("other_k_tile", slabs::<E>(levers.cols, columns));
        Exchange {
            other_keys: Operand::new(other_keys, k_rows, first.unwrap_or_else(pipeline)),
            ds_tile: k.shared_tile("other_ds_tile", slabs::<E>(levers.cols, levers.rows).stages(stages)),
            p_tile: k.shared_tile("p_tile", TileShape::new(levers.rows / 8, 4 * 128)),
            full,
            dq_order: ordered.then(|| DqOrder::declare(k, partition)),
        }
    }

    /// Where a thread's four elements of accumulator `i` of P are.
    #[track_caller]
    fn p_at(&self, k: &'k KernelBuilder, i: u32) -> SharedPtr<'k, f32> {
        let first = self.p_tile.at(0, k.thread_idx() % 128 * 4);
        first.plus((4 * 128 * i) as i32)
    }

    /// The stages of this block's dS and of the other's for Q tile `number`.
    #[track_caller]
    fn stages(&self, number: Var<'k, u32>) -> [Val<'k, u32>; 2] {
        let own = number % DS_STAGES;
        match self.ds_tile.stages() {
            DS_STAGES => [own; 2],
            stages => [own, number % stages],
        }
    }
}

impl<'k, E: SixteenBits> Warpgroup<'k, '_, E> {
    /// The main loop over the Q tiles of a head, of which there is at least one.
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
            self.start_dq(own, Some(other));
        };
        let last = head.to - 1;
        if self.outputs == Outputs::Dv {
            let step = |i: Val<'k, i32>, is_last: bool| {
                self.dv_step(exchange, || self.mask_if_needed(tile, m_block(i)));
                k.if_(i.gt(head.from).uniform(), || finish_dq(i - 1));
                if is_last {
                    return start_dq();
                }
                self.start_scores();
                start_dq();
                // S is complete, dQ is not.
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
                self.dk_step(exchange);
                start_dq();
                k.wgmma_wait(1);
                release_and_advance(self.q);
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

    /// Writes P to shared memory for `dk`, and rounds it to operand A of dV.
    #[track_caller]
    fn write_p(&self, exchange: &Exchange<'k, E>) {
        self.k.verb("write_p", || {
            for i in 0..self.scores.tiles() {
                let four = self.scores.four(i);
                exchange.p_at(self.k, i).store_words(&four, Cache::Default);
                for half in 0..2 {
                    let rounded = E::pack(four[2 * half], four[2 * half + 1]);
                    self.p.word(2 * i + half as u32).set(rounded);
                }
            }
        });
    }

    /// P and dV of a Q tile whose scores are complete. dQ of the tile before may be in flight.
    fn dv_step(&self, exchange: &Exchange<'k, E>, mask: impl FnOnce()) {
        let k = self.k;
        let lse = self.row_statistics(self.context.lse_tile, self.q.stage());
        mask();
        self.probabilities(&lse);
        self.write_p(exchange);
        // The proxy fence of the other warpgroup, after this barrier, also orders these loads before the next copies.
        release_and_advance(self.q);
        k.barrier_arrive(P_FULL, 256);
        self.dout.wait();
        self.start_dv();
        // ptxas overlaps the products of a loop only if at one place none is in flight.
        k.wgmma_wait(0);
        release_and_advance(self.dout);
    }

    /// dS of a Q tile, whose dP is in flight, to both blocks; then starts dK.
    ///
    /// A stage of dS needs no mbarrier that says it is free, because other waits imply it:
    /// - *The other block's dS* has one stage more than dO. When dO of this tile has arrived, all warpgroups of both
    ///   blocks have released the dO that was in its stage before, and each does so only after dQ of the tile before
    ///   that one.
    /// - *This block's dS* has two stages, and so has Q, for which there is no more room. When P of this tile is there,
    ///   both warpgroups have computed dQ of the tile two before. When Q of this tile is there, the other block has
    ///   released Q of the tile two before, which it does only when this block's dS of that tile has arrived there.
    fn dk_step(&self, exchange: &Exchange<'k, E>) {
        let k = self.k;
        let stages = || exchange.stages(self.q_tiles_done);
        let stage = || stages()[0];
        let delta = self.row_statistics(self.context.delta_tile, self.dout.stage());
        k.wgmma_wait(0);
        // Before the wait for P: above 192 columns dO has one stage, and its next copy takes long.
        k.fence_proxy_async();
        k.sync_warp();
        release_and_advance(self.dout);
        k.barrier_among(P_FULL, 256);
        let p_of = |tile| {
            let four = exchange.p_at(k, tile).load_words(4, Cache::Default);
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

    /// One thread sends this block's dS to the other one.
    #[track_caller]
    fn send_ds(&self, exchange: &Exchange<'k, E>, [own_stage, other_stage]: [Val<'k, u32>; 2]) {
        let (k, ds_tile) = (self.k, self.context.ds_tile);
        k.verb("send_ds", || {
            let other = self.rank ^ 1;
            let full = exchange.full.at(other_stage);
            // The other block sends as many.
            full.arrive_expecting(ds_tile.stage_bytes());
            let to = exchange.ds_tile.at_stage(other_stage, 0, 0).in_block(other);
            let from = ds_tile.at_stage(own_stage, 0, 0);
            k.bulk_send(to, from, ds_tile.stage_bytes(), full.in_block(other));
        });
    }
}
