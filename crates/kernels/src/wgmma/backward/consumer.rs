//! What a warpgroup computes: scores, their gradients, and what these add to dQ, dK and dV, for 64 keys.
//!
//! Rows of its accumulators are keys, columns are query rows; of dQ, rows are query rows.

use flashcore_ir::fragment::{AVars, MmaElement};
use flashcore_ir::pipeline::Consumer;
use flashcore_ir::wgmma::{WgmmaElement, WgmmaOperand};
use flashcore_ir::{Cache, KernelBuilder, SharedTile, Val, Var};

use super::kernel::{Context, Tile};
use super::{DQ_STAGES, UNIT, warpgroups};
use crate::attention::gradients::{probability, score_gradient};
use crate::attention::mask::mask_scores;
use crate::attention::row_tile::{ACC_COLS, RowTile, lane_column, lane_row};

/// The barrier at which consumers meet; 0 is the whole block's.
const CONSUMERS: u32 = 1;

pub(super) struct Warpgroup<'k, 'c, E> {
    pub(super) k: &'k KernelBuilder,
    pub(super) context: &'c Context<'k, 'c, E>,
    /// The warp's number among the consumers, the same in all lanes.
    warp: Val<'k, u32>,
    /// The lane's first key and query row, within the tiles.
    lane_key: Val<'k, u32>,
    lane_query: Val<'k, u32>,
    pub(super) keys: Consumer<'k>,
    pub(super) values: Consumer<'k>,
    pub(super) q: Consumer<'k>,
    pub(super) dout: Consumer<'k>,
    /// The stage of Q that dK of the tile before reads.
    pub(super) q_held: Consumer<'k>,
    /// The tile whose dQ is in shared memory, and its stage.
    dq_tile: Var<'k, u32>,
    dq_stage: Var<'k, u32>,
    /// The stage of `ds_tile`.
    pub(super) ds_stage: Var<'k, u32>,
    k_rows: WgmmaOperand<'k, E>,
    v_rows: WgmmaOperand<'k, E>,
    /// The columns of K that this warpgroup's part of dQ has, and its query rows of dS.
    k_columns: WgmmaOperand<'k, E>,
    ds_rows: WgmmaOperand<'k, E>,
    ds_keys: WgmmaOperand<'k, E>,
    scores: RowTile<'k>,
    dp: RowTile<'k>,
    dq: RowTile<'k>,
    dk: RowTile<'k>,
    dv: RowTile<'k>,
    p: AVars<'k, E>,
}

impl<'k, 'c, E: MmaElement + WgmmaElement> Warpgroup<'k, 'c, E> {
    #[track_caller]
    pub(super) fn new(k: &'k KernelBuilder, context: &'c Context<'k, 'c, E>) -> Self {
        let (rows, head_dim) = (context.levers.rows, context.head_dim);
        let warp = (k.thread_idx() / 32).shfl_idx(0u32) - 4;
        let index = warp / 4;
        let acc = |name, columns: u32| RowTile(k.acc_unwritten(name, columns / ACC_COLS));
        let sum = |name| RowTile(k.acc(name, head_dim / ACC_COLS));
        let units = head_dim / UNIT;
        Warpgroup {
            k,
            context,
            warp,
            lane_key: warp * 16 + lane_row(k),
            lane_query: lane_column(k),
            keys: context.k.pipeline.consumer(),
            values: context.v.pipeline.consumer(),
            q: context.q.pipeline.consumer(),
            dout: context.dout.pipeline.consumer(),
            q_held: context.q.pipeline.consumer(),
            dq_tile: k.var(0u32),
            dq_stage: k.var(0u32),
            ds_stage: k.var(0u32),
            k_rows: context.k.tile.k_major().rows(index * UNIT, UNIT),
            v_rows: context.v.tile.k_major().rows(index * UNIT, UNIT),
            k_columns: context.k.tile.mn_major().slabs(index % units, 1),
            ds_rows: context.ds_tile.mn_major().slabs(index / units, 1),
            ds_keys: context.ds_tile.k_major().rows(index * UNIT, UNIT),
            scores: acc("scores", rows),
            dp: acc("dp", rows),
            dq: acc("dq", UNIT),
            dk: sum("dk"),
            dv: sum("dv"),
            p: k.a_vars("p", rows / 16),
        }
    }

    /// All warpgroups that compute meet.
    #[track_caller]
    pub(super) fn meet(&self) {
        self.k.barrier_among(CONSUMERS, 128 * warpgroups(self.context.levers));
    }

    #[track_caller]
    fn one_lane(&self, body: impl FnOnce()) {
        self.k.if_(self.k.lane().eq(0).divergent(), body);
    }

    // ---- Products -------------------------------------------------------------------------------------

    #[track_caller]
    pub(super) fn start_scores(&self) {
        self.q.wait();
        self.product("S = K*Q", || {
            let q = self.context.q.tile.k_major().stage(self.q.stage());
            self.k.wgmma_ss(self.scores.0, self.k_rows, q, false);
        });
    }

    #[track_caller]
    pub(super) fn start_dp(&self) {
        self.dout.wait();
        self.product("dP = V*dO", || {
            let dout = self.context.dout.tile.k_major().stage(self.dout.stage());
            self.k.wgmma_ss(self.dp.0, self.v_rows, dout, false);
        });
    }

    #[track_caller]
    pub(super) fn start_dv(&self) {
        self.product("dV += P*dO", || {
            let dout = self.context.dout.tile.mn_major().stage(self.dout.stage());
            self.k.wgmma_rs(self.dv.0, &self.p.operands(), dout, true);
        });
    }

    #[track_caller]
    pub(super) fn start_dq(&self) {
        self.product("dQ = dS*K", || {
            let ds = self.ds_rows.stage(self.ds_stage.get());
            self.k.wgmma_ss(self.dq.0, ds, self.k_columns, false);
        });
    }

    #[track_caller]
    pub(super) fn start_dk(&self) {
        self.product("dK += dS*Q", || {
            let q = self.context.q.tile.mn_major().stage(self.q.stage());
            let ds = self.ds_keys.stage(self.ds_stage.get());
            self.k.wgmma_ss(self.dk.0, ds, q, true);
        });
    }

    #[track_caller]
    fn product(&self, verb: &'static str, start: impl FnOnce()) {
        self.k.verb(verb, || {
            self.k.wgmma_fence();
            start();
            self.k.wgmma_commit();
        });
    }

    // ---- Scores and their gradients -------------------------------------------------------------------

    /// The numbers of this lane's query rows.
    #[track_caller]
    pub(super) fn row_numbers(&self, tile: SharedTile<'k, f32>, stage: Val<'k, u32>) -> Vec<Vec<Val<'k, f32>>> {
        let first = tile.at_stage(stage, 0, self.lane_query);
        let of = |i| first.plus((ACC_COLS * i) as i32).load_words(2, Cache::Default);
        (0..self.scores.tiles()).map(of).collect()
    }

    /// Scores of query rows that do not see a key become −∞.
    #[track_caller]
    pub(super) fn mask(&self, tile: &Tile<'k>, first_row: Val<'k, u32>) {
        let key = |half: usize| tile.first_key + self.lane_key + 8 * half as u32;
        let seen_by = |_, half| self.context.rows_that_see_any(key(half));
        mask_scores(self.k, &[self.scores], seen_by, first_row);
    }

    /// `P = exp2(scale·S − lse)`. Rows past the end, and those that see no key, have +∞ for their log-sum-exp.
    #[track_caller]
    pub(super) fn probabilities(&self, lse: &[Vec<Val<'k, f32>>]) {
        let exponent_scale = self.context.params.score_mod.exponent_scale;
        self.k.verb("probabilities", || {
            for (tile, lse) in lse.iter().enumerate() {
                for half in 0..2 {
                    for (score, &lse) in self.scores.pair(tile as u32, half).iter().zip(lse) {
                        score.set(probability(score.get(), exponent_scale, lse));
                    }
                }
            }
        });
    }

    /// `dS = P∘(dP − Δ)`, rounded, in shared memory, and P rounded as dV's operand.
    #[track_caller]
    pub(super) fn score_gradients(&self, delta: &[Vec<Val<'k, f32>>]) {
        let (k, ds_tile) = (self.k, self.context.ds_tile);
        // The row of 16 bytes that a lane names: of four matrices of 8 keys by 8 queries.
        let (key, query) = (self.warp * 16 + k.lane() % 16, k.lane() / 16 * 8);
        k.verb("score_gradients", || {
            for first in (0..ds_tile.cols()).step_by(ds_tile.slab_cols() as usize) {
                let place = ds_tile.at_stage(self.ds_stage.get(), key, query + first);
                for column in (0..ds_tile.slab_cols()).step_by(2 * ACC_COLS as usize) {
                    let at = if column == 0 {
                        place
                    } else {
                        ds_tile.across(place, column)
                    };
                    let mut words = Vec::new();
                    for tile in [0, 1].map(|i| (first + column) / ACC_COLS + i) {
                        let delta = &delta[tile as usize];
                        for half in 0..2 {
                            let (p, dp) = (self.scores.pair(tile, half), self.dp.pair(tile, half));
                            let [a, b] = [0, 1].map(|e| score_gradient(p[e].get(), dp[e].get(), delta[e]));
                            let rounded = E::pack(p[0].get(), p[1].get());
                            self.p.word(2 * tile + half as u32).set(rounded);
                            words.push(E::pack(a, b));
                        }
                    }
                    k.stmatrix(at, &words, false);
                }
            }
        });
    }

    // ---- Gradients ------------------------------------------------------------------------------------

    /// Leaves this warp's part of dQ of a tile in shared memory, until [`Self::add_dq`].
    #[track_caller]
    pub(super) fn keep_dq(&self, tile: Val<'k, u32>) {
        let (k, context) = (self.k, self.context);
        k.verb("keep_dq", || {
            // The addition that read this stage is not the last one.
            self.one_lane(|| k.bulk_wait_read(DQ_STAGES - 1));
            k.sync_warp();
            // Both have two stages, and take them in turn.
            let stage = self.ds_stage.get();
            let place = context.dq_tile.at_stage(stage, 0, self.first_dq() + k.lane() * 4);
            for i in 0..self.dq.tiles() {
                let words = [0, 1, 2, 3].map(|e| self.dq.var(4 * i + e).get());
                place.plus(32 * 4 * i as i32).store_words(&words, Cache::Default);
            }
            self.dq_tile.set(tile);
            self.dq_stage.set(stage);
        });
    }

    /// Adds it to that of the tile in global memory. The warp has met at a barrier since, after a fence.
    #[track_caller]
    pub(super) fn add_dq(&self) {
        let (k, context) = (self.k, self.context);
        k.verb("add_dq", || {
            self.one_lane(|| {
                let elements = context.levers.rows * context.head_dim;
                let to = context.dq_sums.offset_strided(self.dq_tile.get(), elements);
                let from = context.dq_tile.at_stage(self.dq_stage.get(), 0, self.first_dq());
                k.bulk_add(to.offset(self.first_dq()), from, 32 * 16 * self.dq.tiles());
                k.bulk_commit();
            });
        });
    }

    /// Elements of dQ's tile before this warp's.
    #[track_caller]
    fn first_dq(&self) -> Val<'k, u32> {
        self.warp * (32 * 4 * self.dq.tiles())
    }

    /// dK and dV of the tile, through the bytes of K and V. Each warp stores its own rows.
    pub(super) fn store(&self, tile: &Tile<'k>) {
        let (k, context) = (self.k, self.context);
        // No product reads K any more.
        self.meet();
        let at = [tile.first_key + self.warp * 16, tile.kv_head, tile.batch];
        let scales = [Some(context.softmax_scale), None];
        let sums = [
            (&self.dk, context.k.tile, context.dk),
            (&self.dv, context.v.tile, context.dv),
        ];
        for ((sum, to, map), scale) in sums.into_iter().zip(scales) {
            for first in (0..to.cols()).step_by(to.slab_cols() as usize) {
                let place = to.at(self.lane_key, self.lane_query + first);
                for column in (0..to.slab_cols()).step_by(ACC_COLS as usize) {
                    let at = if column == 0 { place } else { to.across(place, column) };
                    for half in 0..2 {
                        let pair = sum.pair((first + column) / ACC_COLS, half).map(|value| match scale {
                            Some(scale) => value * scale,
                            None => value.get(),
                        });
                        to.down(at, 8 * half as u32)
                            .store_words(&[E::pack(pair[0], pair[1])], Cache::Default);
                    }
                }
            }
            k.fence_proxy_async();
            k.sync_warp();
            self.one_lane(|| {
                to.store_tma_part(0, self.warp, map.at(&at));
                k.bulk_commit();
            });
        }
        // Shared memory must outlive the copies that read it.
        self.one_lane(|| k.bulk_wait(0));
    }
}
