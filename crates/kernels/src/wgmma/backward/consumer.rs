//! The steps of a consumer warpgroup: the five products, P and dS for 64 keys.
//!
//! Rows of accumulators are keys, but for dQ, where they are queries.

use flashcore_ir::fragment::AVars;
use flashcore_ir::pipeline::Consumer;
use flashcore_ir::wgmma::WgmmaOperand;
use flashcore_ir::{Cache, KernelBuilder, SharedTile, Val, Var};

use super::kernel::{Context, MainLoop, Outputs};
use super::scheduler::Tile;
use super::{SLAB_COLS, WGMMA_M};
use crate::attention::gradients::{probability, score_gradient};
use crate::attention::mask::mask_scores;
use crate::attention::row_tile::{ACC_COLS, Keys, RowTile, lane_column, lane_row};
use crate::attention::softmax::SixteenBits;
use crate::wgmma::PRODUCER_WARPS;
use crate::wgmma::barriers::CONSUMERS;
use crate::wgmma::consumer::product;
use crate::wgmma::tiles::load_operand;

pub(super) struct Warpgroup<'k, 'c, E> {
    pub(super) k: &'k KernelBuilder,
    pub(super) context: &'c Context<'k, 'c, E>,
    pub(super) outputs: Outputs,
    /// Rank of the block in its cluster.
    pub(super) rank: Val<'k, u32>,
    /// Number of the warp among the consumers, and among the warps of its 64 keys, the same in all lanes.
    pub(super) warp: Val<'k, u32>,
    pub(super) key_warp: Val<'k, u32>,
    /// The lane's first key and query row, in their tiles.
    pub(super) lane_key: Val<'k, u32>,
    pub(super) lane_query: Val<'k, u32>,
    pub(super) q: Consumer<'k>,
    pub(super) dout: Consumer<'k>,
    /// The pipeline of Q again, for the stage that dK reads: it is released later than S has read it.
    pub(super) dk_q: Consumer<'k>,
    /// Q tiles of all heads so far.
    pub(super) q_tiles_done: Var<'k, u32>,
    k_rows: WgmmaOperand<'k, E>,
    v_rows: WgmmaOperand<'k, E>,
    /// Operands of this warpgroup's part of dQ: its columns of K, and its query rows of dS.
    k_columns: WgmmaOperand<'k, E>,
    ds_rows: WgmmaOperand<'k, E>,
    /// Operand A of dK, if it is in shared memory.
    ds_keys: WgmmaOperand<'k, E>,
    pub(super) scores: RowTile<'k, Keys>,
    dp: RowTile<'k, Keys>,
    pub(super) dq: RowTile<'k>,
    pub(super) dk: RowTile<'k, Keys>,
    pub(super) dv: RowTile<'k, Keys>,
    /// Operands A in registers: P of dV, V of dP and dS of dK, each as far as it is held there.
    pub(super) p: AVars<'k, E>,
    v: AVars<'k, E>,
    ds: AVars<'k, E>,
}

impl<'k, 'c, E: SixteenBits> Warpgroup<'k, 'c, E> {
    #[track_caller]
    pub(super) fn new(k: &'k KernelBuilder, context: &'c Context<'k, 'c, E>, outputs: Outputs) -> Self {
        let (rows, partition, shape) = (context.levers.rows, context.partition, context.shape);
        let warp = k.warp_idx() - PRODUCER_WARPS;
        let index = warp / 4;
        let key_warp = if partition.exchanges_ds { warp % 4 } else { warp };
        let acc = |name, columns: u32| k.acc_unwritten(name, columns / ACC_COLS);
        let sum = |name, head_dim: u32| RowTile::new(k.acc(name, head_dim.div_ceil(ACC_COLS)));
        // Products skip steps of 16 columns that are all padding.
        let steps = |operand: WgmmaOperand<'k, E>, head_dim: u32| operand.steps_of(0..head_dim.div_ceil(16));
        let if_held = |held: bool, steps: u32| if held { steps } else { 0 };
        let holds_ds = partition.holds_ds || outputs == Outputs::Dk;
        let holds_v = partition.holds_v && outputs != Outputs::Dv;
        let first_key = key_warp / 4 * WGMMA_M;
        let rank = match context.main_loop {
            MainLoop::Exchange(_) => k.cluster_rank(),
            MainLoop::Pingpong(_) => k.constant(0),
        };
        // Its part of dQ: warpgroups, and blocks of a cluster, go along the columns first.
        let (part, parts) = (rank.fma(partition.warpgroups, index), partition.dq_col_parts);
        Warpgroup {
            k,
            context,
            outputs,
            rank,
            warp,
            key_warp,
            lane_key: key_warp * 16 + lane_row(k),
            lane_query: lane_column(k),
            q: context.q.pipeline.consumer(),
            dout: context.dout.pipeline.consumer(),
            dk_q: context.q.pipeline.consumer(),
            q_tiles_done: k.var(0u32),
            k_rows: context.keys.tile.k_major().rows(first_key, WGMMA_M),
            v_rows: steps(context.values.tile.k_major().rows(first_key, WGMMA_M), shape.head_dim_v),
            k_columns: context.keys.tile.mn_major().slabs(part % parts, 1),
            ds_rows: context.ds_tile.mn_major().slabs(part / parts, 1),
            ds_keys: context.ds_tile.k_major().rows(first_key, WGMMA_M),
            scores: RowTile::new(acc("scores", rows)),
            dp: RowTile::new(acc("dp", rows)),
            dq: RowTile::new(acc("dq", partition.dq_part_cols)),
            dk: sum("dk", shape.head_dim),
            dv: sum("dv", shape.head_dim_v),
            p: k.a_vars("p", if_held(outputs != Outputs::Dk, rows / 16)),
            v: k.a_vars("v", if_held(holds_v, shape.head_dim_v.div_ceil(16))),
            ds: k.a_vars("ds", if_held(holds_ds, rows / 16)),
        }
    }

    /// Loads V into registers, as far as it is held there.
    #[track_caller]
    pub(super) fn load_v(&self) {
        let (tile, column) = (self.context.values.tile, self.k.lane() % 4 * 2);
        let place = |first| tile.at(self.lane_key, column + first);
        self.k.verb("V to registers", || load_operand(tile, self.v, place));
    }

    /// Waits for all consumer warpgroups.
    #[track_caller]
    pub(super) fn sync_consumers(&self) {
        self.k.barrier_among(CONSUMERS, 128 * self.context.partition.warpgroups);
    }

    #[track_caller]
    pub(super) fn one_lane(&self, body: impl FnOnce()) {
        self.k.if_(self.k.lane().eq(0).divergent(), body);
    }

    // ---- Products -------------------------------------------------------------------------------------

    #[track_caller]
    pub(super) fn start_scores(&self) {
        self.q.wait();
        product(self.k, "S = K*Q", || {
            let q = self.context.q.tile.k_major().stage(self.q.stage());
            let (cols, slabs) = (self.context.partition.dq_part_cols, self.context.partition.dq_col_parts);
            // Slab by slab of K.
            for slab in 0..slabs {
                let columns = slab * cols..self.context.shape.head_dim.min((slab + 1) * cols);
                if columns.is_empty() {
                    break;
                }
                let steps = columns.start / 16..columns.end.div_ceil(16);
                let (first, count) = (slab * SLAB_COLS / 16, steps.len() as u32);
                let of_k = self.k_rows.steps_of(first..first + count);
                self.k.wgmma_ss(self.scores.0, of_k, q.steps_of(steps), slab > 0);
            }
        });
    }

    #[track_caller]
    pub(super) fn start_dp(&self) {
        self.dout.wait();
        product(self.k, "dP = V*dO", || {
            let dout = self.context.dout.tile.k_major().stage(self.dout.stage());
            let dout = dout.steps_of(0..self.v_rows.steps());
            match self.v.steps() {
                0 => self.k.wgmma_ss(self.dp.0, self.v_rows, dout, false),
                _ => self.k.wgmma_rs(self.dp.0, &self.v.operands(), dout, false),
            }
        });
    }

    #[track_caller]
    pub(super) fn start_dv(&self) {
        product(self.k, "dV += P*dO", || {
            let dout = self.context.dout.tile.mn_major().stage(self.dout.stage());
            self.k.wgmma_rs(self.dv.0, &self.p.operands(), dout, true);
        });
    }

    #[track_caller]
    pub(super) fn start_dq(&self, ds_stage: Val<'k, u32>, other_ds_stage: Option<Val<'k, u32>>) {
        product(self.k, "dQ = dS*K", || {
            self.k
                .wgmma_ss(self.dq.0, self.ds_rows.stage(ds_stage), self.k_columns, false);
            if let (MainLoop::Exchange(exchange), Some(stage)) = (&self.context.main_loop, other_ds_stage) {
                // dS and K of the other block, in the columns of this warpgroup.
                let warpgroup = self.warp / 4;
                let ds = exchange.ds_tile.mn_major().slabs(0, 1).stage(stage);
                let keys = exchange.other_keys.tile.mn_major().slabs(warpgroup, 1);
                self.k.wgmma_ss(self.dq.0, ds, keys, true);
            }
        });
    }

    #[track_caller]
    pub(super) fn start_dk(&self, ds_stage: Val<'k, u32>) {
        product(self.k, "dK += dS*Q", || {
            let q = self.context.q.tile.mn_major().stage(self.q.stage());
            match self.ds.steps() {
                0 => self.k.wgmma_ss(self.dk.0, self.ds_keys.stage(ds_stage), q, true),
                _ => self.k.wgmma_rs(self.dk.0, &self.ds.operands(), q, true),
            }
        });
    }

    // ---- Scores and their gradients -------------------------------------------------------------------

    /// The statistics, of one kind, of this lane's query rows: two of each accumulator.
    #[track_caller]
    pub(super) fn row_statistics(&self, tile: SharedTile<'k, f32>, stage: Val<'k, u32>) -> Vec<Vec<Val<'k, f32>>> {
        let first = tile.at_stage(stage, 0, self.lane_query);
        let of = |i| first.plus((ACC_COLS * i) as i32).load_words(2, Cache::Default);
        (0..self.scores.tiles()).map(of).collect()
    }

    /// Scores of query rows of a Q tile that do not see a key become −∞.
    #[track_caller]
    pub(super) fn mask(&self, tile: &Tile<'k>, m_block: Val<'k, i32>) {
        let first_row = m_block.reinterpret::<u32>() * self.context.levers.rows;
        let key = |half: usize| tile.first_key + self.lane_key + 8 * half as u32;
        let seen_by = |_, half| tile.rows_that_see(key(half));
        mask_scores(self.k, &[self.scores], seen_by, first_row);
    }

    /// [`Self::mask`], if a row of the Q tile does not see all keys.
    #[track_caller]
    pub(super) fn mask_if_needed(&self, tile: &Tile<'k>, m_block: Val<'k, i32>) {
        let any = tile.is_masked(m_block);
        self.k.if_(any.uniform(), || self.mask(tile, m_block));
    }

    /// `P = exp2(scale·S − lse)`. The log-sum-exp of rows past the end, and of those that see no key, is +∞.
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

    /// `dS = P∘(dP − Δ)`, rounded, to shared memory, and to operand A of dK if that is in registers. `p_of(i)(half)` is
    /// P of accumulator `i`, which is rounded to operand A of dV if this warpgroup computes dV.
    #[track_caller]
    pub(super) fn score_gradients<P: Fn(usize) -> [Val<'k, f32>; 2]>(
        &self,
        ds_stage: Val<'k, u32>,
        delta: &[Vec<Val<'k, f32>>],
        p_of: impl Fn(u32) -> P,
    ) {
        let (k, ds_tile) = (self.k, self.context.ds_tile);
        // `stmatrix` stores four matrices of 8 keys by 8 queries; each lane gives the address of a row of 16 bytes.
        let (key, query) = (self.key_warp * 16 + k.lane() % 16, k.lane() / 16 * 8);
        k.verb("score_gradients", || {
            for first in (0..ds_tile.cols()).step_by(ds_tile.slab_cols() as usize) {
                let place = ds_tile.at_stage(ds_stage, key, query + first);
                for column in (0..ds_tile.slab_cols()).step_by(2 * ACC_COLS as usize) {
                    let at = ds_tile.across(place, column);
                    let mut words = Vec::new();
                    for tile in [0, 1].map(|i| (first + column) / ACC_COLS + i) {
                        let delta = &delta[tile as usize];
                        let p_of_half = p_of(tile);
                        for half in 0..2 {
                            let p = p_of_half(half);
                            let dp = self.dp.pair(tile, half);
                            let [a, b] = [0, 1].map(|e| score_gradient(p[e], dp[e].get(), delta[e]));
                            let ds = E::pack(a, b);
                            words.push(ds);
                            let word = 2 * tile + half as u32;
                            if self.ds.steps() > 0 {
                                self.ds.word(word).set(ds);
                            }
                            if self.p.steps() > 0 {
                                self.p.word(word).set(E::pack(p[0], p[1]));
                            }
                        }
                    }
                    k.stmatrix(at, &words, false);
                }
            }
        });
    }
}
