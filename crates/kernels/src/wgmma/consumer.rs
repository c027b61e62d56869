//! The steps of a consumer warpgroup: `S = Q·Kᵀ`, softmax and `O += P·V` for 64 query rows.
//!
//! Scores and probabilities never leave registers: the accumulators of S, rounded and packed, are operand A of
//! `O += P·V`. Operand A of S is Q, from shared memory, and its first columns from registers if there are enough.

use flashcore_ir::fragment::AVars;
use flashcore_ir::pipeline::Consumer;
use flashcore_ir::wgmma::WgmmaOperand;
use flashcore_ir::{Element, KernelBuilder, Val, Var};

use super::PRODUCER_WARPS;
use super::epilogue::StoreGroup;
use super::kernel::Context;
use super::q_consumer::{QConsumer, QRead};
use super::tiles::{load_operand, padded, step};
use super::warp_scheduler::WarpSchedulerBarrier;
use crate::attention::block_range::Band;
use crate::attention::mask::mask_scores;
use crate::attention::query_rows::{LaneRows, Packing, WARPGROUP_ROWS};
use crate::attention::row_tile::{ACC_COLS, RowTile, lane_column, lane_row};
use crate::attention::scheduler::WorkItem;
use crate::attention::score_mod::{HeadFactors, TileBias};
use crate::attention::softmax::{
    InputElement, Policy, Row, Scale, exponentials, pack, pack_exponentials, raise_maxima,
};
use crate::attention::tap::Tap;
use crate::attention::tensor_rows::Sequence;

#[track_caller]
pub(super) fn release_and_advance(stage: Consumer<'_>) {
    stage.release();
    stage.advance();
}

/// Skips a stage that this warpgroup does not read.
#[track_caller]
pub(super) fn skip(stage: Consumer<'_>) {
    stage.wait();
    release_and_advance(stage);
}

/// Starts products.
#[track_caller]
pub(super) fn product(k: &KernelBuilder, verb: &'static str, start: impl FnOnce()) {
    k.verb(verb, || {
        k.wgmma_fence();
        start();
        k.wgmma_commit();
    });
}

/// A Q tile, the keys that its rows see, and ALiBi's biases of the lane's rows, if there are any.
pub(super) struct TileRows<'t, 'k> {
    pub(super) tile: &'t WorkItem<'k>,
    band: Band<Val<'k, i32>>,
    biases: Vec<[TileBias<'k>; 2]>,
}

pub(super) struct Warpgroup<'k, 'p, E: InputElement> {
    pub(super) k: &'k KernelBuilder,
    pub(super) context: &'p Context<'k, 'p, E>,
    /// Number of the warpgroup among the consumers, the same in all lanes.
    pub(super) index: Val<'k, u32>,
    /// Number of the warp among the consumers, the same in all lanes.
    pub(super) warp: Val<'k, u32>,
    pub(super) lane_rows: LaneRows<'k>,
    pub(super) store_group: StoreGroup<'k>,
    pub(super) q: QConsumer<'k>,
    pub(super) keys: Consumer<'k>,
    pub(super) values: Consumer<'k>,
    q_operand: WgmmaOperand<'k, E>,
    k_operand: WgmmaOperand<'k, E>,
    v_operand: WgmmaOperand<'k, E>,
    barrier: Option<WarpSchedulerBarrier<'k>>,
    pub(super) policy: Policy,
    pub(super) scores: RowTile<'k>,
    /// The first columns of Q, which are held in registers.
    pub(super) q_held: AVars<'k, E>,
    p: AVars<'k, E>,
    pub(super) out: RowTile<'k>,
    pub(super) rows: [Row<'k>; 2],
    /// The factors by which to rescale the rows of the output when `O += P·V` is complete.
    pub(super) factors: [Var<'k, f32>; 2],
    pub(super) scales: Option<HeadFactors<'k>>,
    /// In builds with a tap: head of all batches, first query and first key of the current K block.
    tapped: Option<[Var<'k, u32>; 3]>,
}

impl<'k, 'p, E: InputElement> Warpgroup<'k, 'p, E> {
    #[track_caller]
    pub(super) fn new(k: &'k KernelBuilder, context: &'p Context<'k, 'p, E>) -> Self {
        let (levers, shape, params) = (context.levers, context.shape, context.params);
        let warp = k.warp_idx() - PRODUCER_WARPS;
        let index = warp / 4;
        let groups = levers.warpgroups();
        let barrier = levers.pingpong.then(|| WarpSchedulerBarrier::new(index, groups));
        let scales = shape.is_fp8().then(|| HeadFactors::new(k));
        let fixed = Scale::Fixed(params.score_mod.exponent_scale);
        let scale = scales.map_or(fixed, |scales| Scale::OfHead(scales.exponents));
        let acc = |name, columns| RowTile::new(k.acc_unwritten(name, columns / ACC_COLS));
        let (packing, first) = (shape.packing, warp * 16 + lane_row(k));
        let consumer = if packing.spans_warpgroups() {
            context.q.pipeline.consumer()
        } else {
            context.q.pipeline.consumer_of(index, groups)
        };
        let (keys, values) = (context.keys.pipeline.consumer(), context.values.pipeline.consumer());
        // Rows of tiles may be wider than head_dim.
        let steps = padded(shape.head_dim, E::BYTES) / step(E::BYTES);
        let q_operand = if packing.spans_warpgroups() {
            context.q.tile.k_major().rows(index * WARPGROUP_ROWS, WARPGROUP_ROWS)
        } else {
            context.q.tile.k_major()
        };
        let q_operand = q_operand.steps_of(0..steps);
        let q_held = k.a_vars("q", levers.q_steps_held(shape));
        Warpgroup {
            k,
            context,
            index,
            warp,
            lane_rows: LaneRows { first, packing },
            store_group: StoreGroup::new(packing, [warp, index]),
            q: QConsumer::new(consumer, q_held.steps() == q_operand.steps(), levers.q_stages(shape)),
            keys,
            values,
            q_operand,
            k_operand: context.keys.tile.k_major().steps_of(0..steps),
            v_operand: if shape.is_fp8() {
                context.values.tile.k_major()
            } else {
                context.values.tile.mn_major()
            },
            barrier,
            policy: levers.rescale.wgmma_policy::<E>(),
            scores: acc("scores", levers.cols),
            q_held,
            p: k.a_vars("p", levers.cols / step(E::BYTES)),
            out: acc("out", padded(shape.head_dim_v, E::Out::BYTES)),
            rows: [(); 2].map(|()| Row::new(k, scale, shape.dtype)),
            factors: [(); 2].map(|()| k.var_unwritten("factor")),
            scales,
            tapped: shape.tap.map(|_| [(); 3].map(|()| k.var_unwritten("tapped"))),
        }
    }

    /// Starts products in this warpgroup's turn: after the warpgroup before, and before the next one.
    #[track_caller]
    pub(super) fn with_tensor_cores(&self, products: impl FnOnce()) {
        if let Some(barrier) = &self.barrier {
            barrier.sync();
        }
        products();
        if let Some(barrier) = &self.barrier {
            barrier.arrive();
        }
    }

    // ---- Q --------------------------------------------------------------------------------------------

    #[track_caller]
    pub(super) fn load_q(&self) {
        let (k, tile) = (self.k, self.context.q.tile);
        if self.q_held.steps() == 0 {
            return;
        }
        let spans = self.lane_rows.packing.spans_warpgroups();
        let warp = if spans { self.warp } else { self.warp % 4 };
        let (row, column) = (warp * 16 + lane_row(k), k.lane() % 4 * (4 / E::BYTES));
        k.verb("Q to registers", || {
            load_operand(tile, self.q_held, |first| {
                tile.at_stage(self.q.stage(), row, column + first)
            });
            // One lane releases the stage, now or when products have read the rest of it. An arrival does not order
            // loads before the asynchronous copy that fills the stage next; the fence does.
            k.fence_proxy_async();
            k.sync_warp();
            self.q.release_after(QRead::Load, None);
        });
    }

    // ---- Products -------------------------------------------------------------------------------------

    #[track_caller]
    pub(super) fn start_scores(&self) {
        let (k, scores) = (self.k, self.scores.0);
        product(k, "S = Q*K", || {
            let keys = self.k_operand.stage(self.keys.stage());
            let held = self.q_held.steps();
            if held > 0 {
                k.wgmma_rs(scores, &self.q_held.operands(), keys.steps_of(0..held), false);
            }
            if held < self.q_operand.steps() {
                let (q, rest) = (self.q_operand.stage(self.q.stage()), held..keys.steps());
                k.wgmma_ss(scores, q.steps_of(rest.clone()), keys.steps_of(rest), held > 0);
            }
        });
    }

    #[track_caller]
    pub(super) fn start_output(&self) {
        product(self.k, "O += P*V", || {
            let values = self.v_operand.stage(self.values.stage());
            self.k.wgmma_rs(self.out.0, &self.p.operands(), values, true);
        });
    }

    // ---- Softmax --------------------------------------------------------------------------------------

    /// Applies the scale of fp8 heads, soft cap and ALiBi, and stores the scores if they are tapped.
    #[track_caller]
    pub(super) fn apply_score_mod(&self, rows: &TileRows<'_, 'k>) {
        let (score_mod, registers) = (&self.context.params.score_mod, 0..4 * self.scores.tiles());
        let scale = self.scales.as_ref().map(|scales| scales.scores);
        score_mod.apply(&self.scores, registers.clone(), scale, rows.biases.first());
        for register in registers {
            self.tap(Tap::Scores, register, || {
                score_mod.scaled(self.scores.var(register), scale)
            });
        }
    }

    /// The rows of a Q tile in its sequence.
    #[track_caller]
    pub(super) fn rows_of<'t>(&self, tile: &'t WorkItem<'k>) -> TileRows<'t, 'k> {
        let (rows, params) = (&self.lane_rows, Sequence::of(self.context.params, tile).params);
        let biases = TileBias::of_lane(1, rows.packing != Packing::NONE, |_, half| {
            let (head, query) = (rows.head(tile.head(), half), rows.query(tile.first_query(), half));
            params.score_mod.bias(tile.batch(), head, query)
        });
        let band = params.band;
        TileRows { tile, band, biases }
    }

    /// Scores that a row does not see become −∞.
    #[track_caller]
    pub(super) fn mask(&self, rows: &TileRows<'_, 'k>, first_key: Val<'k, u32>) {
        let query = |half| self.lane_rows.query(rows.tile.first_query(), half).reinterpret();
        let sees = |_, half| rows.band.visible(query(half));
        mask_scores(self.k, &[self.scores], sees, first_key);
    }

    /// [`raise_maxima`] to the scores of the rows.
    #[track_caller]
    pub(super) fn raise_maxima(&self, policy: Policy, rescale: impl Fn(usize, Val<'k, f32>)) -> Option<Val<'k, bool>> {
        self.k.verb("raise_maxima", || {
            let largest = [0, 1].map(|half| self.scores.max(self.scores.steps(), half));
            raise_maxima(&self.rows, &largest, policy, rescale)
        })
    }

    /// Rescales a row of the output after its maximum was raised.
    #[track_caller]
    pub(super) fn rescale_output(&self, half: usize, factor: Val<'k, f32>) {
        self.k.verb("rescale_output", || self.out.scale_row(half, factor));
    }

    #[track_caller]
    pub(super) fn exponentials(&self) {
        let tap = |register, p| self.tap(Tap::Probabilities, register, || p);
        self.k
            .verb("exponentials", || exponentials(&self.scores, &self.rows, tap));
    }

    /// Rounds P into operand A of `O += P·V`.
    #[track_caller]
    pub(super) fn pack(&self) {
        self.k.verb("pack", || pack(&self.scores, &self.p));
    }

    /// Exponentials against the old maxima, without a look at the scores. Only if a sum of them is too large are the
    /// maxima raised, and all computed again from the scores, which stay as they are.
    #[track_caller]
    pub(super) fn speculative_softmax(&self) {
        let k = self.k;
        let tap = |register, p| self.tap(Tap::Probabilities, register, || p);
        let pack = || pack_exponentials(&self.scores, &self.rows, &self.p, tap);
        let packed = || k.verb("exponentials", pack);
        let sums: Vec<_> = packed().into_iter().map(|sum| k.var(sum)).collect();
        let large = sums[0].get().gt(E::SPECULATIVE_MAX_SUM) | sums[1].get().gt(E::SPECULATIVE_MAX_SUM);
        k.if_(large.vote_any().uniform(), || {
            let (threshold, max_offset) = (Some(0.0), self.policy.max_offset);
            self.raise_maxima(Policy { threshold, max_offset }, |half, factor| {
                self.rescale_output(half, factor)
            });
            for (sum, again) in sums.iter().zip(packed()) {
                sum.set(again);
            }
        });
        for (row, sum) in self.rows.iter().zip(sums) {
            row.sum.add_assign(sum.get());
        }
    }

    // ---- ALiBi and taps -------------------------------------------------------------------------------

    /// Sets ALiBi's biases, and the keys of a tap, for a K block.
    #[track_caller]
    pub(super) fn begin_score_mod(&self, rows: &TileRows<'_, 'k>, n_block: Val<'k, u32>) {
        let tile = rows.tile;
        if let Some(biases) = rows.biases.first() {
            let key = tile.first_key(n_block) + lane_column(self.k);
            biases.iter().for_each(|bias| bias.begin(key));
        }
        if let Some([batch_head, first_query, first_key]) = &self.tapped {
            batch_head.set(tile.batch().fma(self.context.params.num_heads, tile.head()));
            first_query.set(tile.first_query());
            first_key.set(tile.first_key(n_block));
        }
    }

    /// Stores a register of the scores, if this tap is requested.
    #[track_caller]
    fn tap(&self, tap: Tap, register: u32, value: impl Fn() -> Val<'k, f32>) {
        let (rows, Some([batch_head, query, key])) = (self.lane_rows, self.tapped) else {
            return;
        };
        let of_half = |half| (rows.head(batch_head.get(), half), rows.stored_query(query.get(), half));
        let params = self.context.params;
        params.tap_register(tap, register, &self.rows, of_half, || key.get(), value);
    }
}
