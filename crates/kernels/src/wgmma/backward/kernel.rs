//! The main kernel of the backward pass: a block owns the keys of one tile of a K/V head and walks the query rows that see
//! them, of all heads of its group. dK and dV stay in registers; dQ is added up in global memory.
//!
//! All products are those of FlashAttention-3 with keys as rows: `Sᵀ = K·Qᵀ` and `dPᵀ = V·dOᵀ` give `Pᵀ` and `dSᵀ` in the
//! registers that `dV += Pᵀ·dO` and `dK += dSᵀ·Q` read; for `dQ = dS·K` they go through shared memory.

use flashcore_ir::fragment::{AVars, MmaElement};
use flashcore_ir::pipeline::{Consumer, Pipeline, Producer};
use flashcore_ir::wgmma::{WgmmaElement, WgmmaOperand};
use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, Role, SharedTile, TensorMap, TileShape, Val, Var};

use super::Levers;
use crate::attention::block_range::{Band, BlockOrder, BlockRange};
use crate::attention::mask::mask_scores;
use crate::attention::params::Shape;
use crate::attention::row_tile::{ACC_COLS, RowTile, lane_column, lane_row};
use crate::wgmma::tiles::slabs;

/// Rows of a product of a warpgroup, and columns of a slab of 16-bit elements.
pub(super) const UNIT: u32 = 64;

/// The barrier at which consumers meet; 0 is the whole block's.
const CONSUMERS: u32 = 1;

/// Tiles of dQ that wait to be added, or are being added.
const DQ_STAGES: u32 = 2;

/// What producer and consumers have in common.
struct Context<'k, E> {
    levers: Levers,
    head_dim: u32,
    q_tile: SharedTile<'k, E>,
    k_tile: SharedTile<'k, E>,
    v_tile: SharedTile<'k, E>,
    dout_tile: SharedTile<'k, E>,
    ds_tile: SharedTile<'k, E>,
    dq_tile: SharedTile<'k, f32>,
    lse_tile: SharedTile<'k, f32>,
    delta_tile: SharedTile<'k, f32>,
    q: TensorMap<'k>,
    k: TensorMap<'k>,
    v: TensorMap<'k>,
    dout: TensorMap<'k>,
    dk: TensorMap<'k>,
    dv: TensorMap<'k>,
    /// `[batch, heads, padded rows]`: −log-sum-exp in base 2, and row sums of dO∘O.
    lse: GlobalPtr<'k, f32>,
    delta: GlobalPtr<'k, f32>,
    /// dQ before its scale: tile after tile, each in the order of the accumulators ([`dq_place`]).
    dq: GlobalPtr<'k, f32>,
    q_tiles: Val<'k, u32>,
    num_heads: Val<'k, u32>,
    group_size: Val<'k, u32>,
    kv_heads: Val<'k, u32>,
    /// Heads of K and V, of all batches, whose tiles run at the same time.
    bundle: Val<'k, u32>,
    seq_len_kv: Val<'k, u32>,
    scale_log2: Val<'k, f32>,
    scale: Val<'k, f32>,
    /// The query rows that see a key.
    band: Band<Val<'k, i32>>,
    k_pipeline: Pipeline<'k>,
    v_pipeline: Pipeline<'k>,
    q_pipeline: Pipeline<'k>,
    dout_pipeline: Pipeline<'k>,
}

/// The tile of a block, and the Q tiles that see it.
struct Tile<'k> {
    first_key: Val<'k, u32>,
    kv_head: Val<'k, u32>,
    batch: Val<'k, u32>,
    order: BlockOrder<Val<'k, i32>>,
}

pub(super) fn body<E: MmaElement + WgmmaElement>(k: &KernelBuilder, levers: &Levers, shape: &Shape) {
    k.min_blocks_per_sm(1);
    let (rows, cols, stages, head_dim) = (levers.rows, levers.cols, levers.stages, shape.head_dim);
    let stats = TileShape::new(1, rows).stages(stages);
    let q_tile = k.shared_tile::<E>("q_tile", slabs::<E>(rows, head_dim).stages(stages));
    let dout_tile = k.shared_tile::<E>("dout_tile", slabs::<E>(rows, head_dim).stages(stages));
    let k_tile = k.shared_tile::<E>("k_tile", slabs::<E>(cols, head_dim));
    let v_tile = k.shared_tile::<E>("v_tile", slabs::<E>(cols, head_dim));
    let ds_tile = k.shared_tile::<E>("ds_tile", slabs::<E>(cols, rows).stages(2));
    let dq_tile = k.shared_tile::<f32>("dq_tile", TileShape::new(rows, head_dim).stages(DQ_STAGES));
    let lse_tile = k.shared_tile::<f32>("lse_tile", stats);
    let delta_tile = k.shared_tile::<f32>("delta_tile", stats);
    let consumers = 4 * levers.warpgroups();
    let (q, kk, v) = (
        k.param_tensor_map("q", q_tile.tensor_box(&[rows, 1, 1])),
        k.param_tensor_map("k", k_tile.tensor_box(&[cols, 1, 1])),
        k.param_tensor_map("v", v_tile.tensor_box(&[cols, 1, 1])),
    );
    let dout = k.param_tensor_map("dout", dout_tile.tensor_box(&[rows, 1, 1]));
    // A warp stores its own rows.
    let dk = k.param_tensor_map_mut("dk", k_tile.tensor_box(&[16, 1, 1]));
    let dv = k.param_tensor_map_mut("dv", v_tile.tensor_box(&[16, 1, 1]));
    let (lse, delta, dq) = (k.param_ptr("neg_lse"), k.param_ptr("delta"), k.param_ptr_mut("dq_sum"));
    let (seq_len_q, seq_len_kv) = (k.param::<u32>("seq_len_q"), k.param::<u32>("seq_len_kv"));
    let (num_heads, group_size) = (k.param::<u32>("num_heads"), k.param("group_size"));
    let keys = Band {
        lo: k.param("key_lo"),
        hi: k.param("key_hi"),
        len: seq_len_kv.reinterpret(),
    };
    let context = Context {
        levers: *levers,
        head_dim,
        q_tile,
        k_tile,
        v_tile,
        dout_tile,
        ds_tile,
        dq_tile,
        lse_tile,
        delta_tile,
        q,
        k: kk,
        v,
        dout,
        dk,
        dv,
        lse,
        delta,
        dq,
        q_tiles: (seq_len_q + (rows - 1)) / rows,
        num_heads,
        group_size,
        kv_heads: num_heads / group_size,
        bundle: k.param("bundle"),
        seq_len_kv,
        scale_log2: k.param("scale_log2"),
        scale: k.param("scale"),
        band: keys.inverse(seq_len_q.reinterpret()),
        k_pipeline: k.pipeline("k", 1, consumers),
        v_pipeline: k.pipeline("v", 1, consumers),
        q_pipeline: k.pipeline("q", stages, consumers),
        dout_pipeline: k.pipeline("dout", stages, consumers),
    };
    k.start_pipelines(&[context.k_pipeline, context.v_pipeline, context.q_pipeline, context.dout_pipeline]);
    let (producer_registers, consumer_registers) = levers.registers();
    k.roles(vec![
        Role::new("producer", 4, || context.produce(k)).registers(producer_registers),
        Role::new("consumer", consumers, || context.consume(k)).registers(consumer_registers),
    ]);
}

impl<'k, E: MmaElement + WgmmaElement> Context<'k, E> {
    #[track_caller]
    fn tile(&self, k: &'k KernelBuilder) -> Tile<'k> {
        let (cols, rows) = (self.levers.cols, self.levers.rows);
        // Bundle after bundle of heads; in each the first tiles of all heads come first, which are the longest if causal.
        let tiles = (self.seq_len_kv + (cols - 1)) / cols;
        let heads = k.grid_dim(0) / tiles;
        let bundle = k.block_idx(0) / (tiles * self.bundle) * self.bundle;
        let in_bundle = k.block_idx(0) - bundle * tiles;
        let width = self.bundle.min(heads - bundle);
        let head = bundle + in_bundle % width;
        let first_key = in_bundle / width * cols;
        let first: Val<'k, i32> = first_key.reinterpret();
        let last = first + (cols as i32 - 1);
        let keys = self.seq_len_kv.reinterpret();
        // No row may see a key.
        let seen_by = |key| {
            let (first, end) = self.band.visible(key);
            (first.min(self.band.len), end.min(self.band.len))
        };
        let range = BlockRange::between(seen_by(first), seen_by(last.min(keys - 1)), rows);
        // Keys past the end are masked in every Q tile.
        let past = last.ge(keys);
        let range = BlockRange {
            whole: past.select(range.end, range.whole),
            whole_end: past.select(range.end, range.whole_end),
            ..range
        };
        Tile {
            first_key,
            kv_head: head % self.kv_heads,
            batch: head / self.kv_heads,
            order: BlockOrder::ascending(range, false),
        }
    }

    // ---- Producer -------------------------------------------------------------------------------------

    /// One thread copies K and V, and then Q and dO of each tile with the numbers of their rows.
    #[track_caller]
    fn produce(&self, k: &'k KernelBuilder) {
        let warp = (k.thread_idx() / 32).shfl_idx(0u32);
        k.if_(warp.eq(0).uniform(), || {
            k.if_(k.elect().divergent(), || {
                let tile = self.tile(k);
                let [keys, values, q, dout] =
                    [self.k_pipeline, self.v_pipeline, self.q_pipeline, self.dout_pipeline].map(|p| p.producer());
                let at = [tile.first_key, tile.kv_head, tile.batch];
                fill(keys, self.k_tile, self.k, at, None);
                fill(values, self.v_tile, self.v, at, None);
                k.for_uniform(0u32, self.group_size, 1, |i| {
                    let head = tile.kv_head.fma(self.group_size, i);
                    let first_row = tile.batch.fma(self.num_heads, head) * self.q_tiles * self.levers.rows;
                    let (lse, delta) = (self.lse.offset(first_row), self.delta.offset(first_row));
                    k.for_uniform(k.constant(0i32), tile.order.count, 1, |i| {
                        let row = tile.order.n_block(i).reinterpret::<u32>() * self.levers.rows;
                        let at = [row, head, tile.batch];
                        fill(q, self.q_tile, self.q, at, Some((self.lse_tile, lse)));
                        fill(dout, self.dout_tile, self.dout, at, Some((self.delta_tile, delta)));
                    });
                });
            });
        });
    }

    // ---- Consumers ------------------------------------------------------------------------------------

    #[track_caller]
    fn consume(&self, k: &'k KernelBuilder) {
        let tile = self.tile(k);
        let group = Warpgroup::new(k, self);
        group.keys.wait();
        group.values.wait();
        k.for_uniform(0u32, self.group_size, 1, |i| {
            let head = tile.kv_head.fma(self.group_size, i);
            let head_tile = tile.batch.fma(self.num_heads, head) * self.q_tiles;
            k.if_(tile.order.count.gt(0).uniform(), || group.head(&tile, head_tile));
        });
        group.store(&tile);
    }
}

/// Fills the next stage of a tile, and the numbers of its rows.
#[track_caller]
fn fill<'k, E: WgmmaElement>(
    to: Producer<'k>,
    tile: SharedTile<'k, E>,
    map: TensorMap<'k>,
    at: [Val<'k, u32>; 3],
    numbers: Option<(SharedTile<'k, f32>, GlobalPtr<'k, f32>)>,
) {
    let (k, stage) = (at[0].builder(), to.stage());
    to.acquire();
    let bytes = numbers.map_or(0, |_| 4 * tile.rows());
    to.expect(tile.stage_bytes() + bytes);
    tile.load_tma(stage, map.at(&at), to.full());
    if let Some((numbers, from)) = numbers {
        k.bulk_load(numbers.at_stage(stage, 0, 0), from.offset(at[0]), bytes, to.full());
    }
    to.advance();
}

struct Warpgroup<'k, 'c, E> {
    k: &'k KernelBuilder,
    context: &'c Context<'k, E>,
    /// The warp's number among the consumers, the same in all lanes.
    warp: Val<'k, u32>,
    /// The lane's first key and query, within the tiles.
    lane_key: Val<'k, u32>,
    lane_query: Val<'k, u32>,
    keys: Consumer<'k>,
    values: Consumer<'k>,
    q: Consumer<'k>,
    dout: Consumer<'k>,
    /// The stage that dK of the tile before reads.
    q_held: Consumer<'k>,
    /// The tile whose dQ is in shared memory, and its stage.
    dq_tile: Var<'k, u32>,
    dq_stage: Var<'k, u32>,
    /// The stage of `ds_tile`.
    ds_stage: Var<'k, u32>,
    k_rows: WgmmaOperand<'k, E>,
    v_rows: WgmmaOperand<'k, E>,
    /// The columns of K that this warpgroup's share of dQ has, and its query rows of dS.
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
    fn new(k: &'k KernelBuilder, context: &'c Context<'k, E>) -> Self {
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
            keys: context.k_pipeline.consumer(),
            values: context.v_pipeline.consumer(),
            q: context.q_pipeline.consumer(),
            dout: context.dout_pipeline.consumer(),
            q_held: context.q_pipeline.consumer(),
            dq_tile: k.var(0u32),
            dq_stage: k.var(0u32),
            ds_stage: k.var(0u32),
            k_rows: context.k_tile.k_major().rows(index * UNIT, UNIT),
            v_rows: context.v_tile.k_major().rows(index * UNIT, UNIT),
            k_columns: context.k_tile.mn_major().slabs(index % units, 1),
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

    /// What the Q tiles of a head add to the three gradients.
    #[track_caller]
    fn head(&self, tile: &Tile<'k>, head_tile: Val<'k, u32>) {
        let (k, order) = (self.k, &tile.order);
        let block = |i| order.n_block(i).reinterpret::<u32>();
        let step = |masked: bool, i: Val<'k, i32>| {
            self.m_block(masked.then_some((tile, block(i))), i.gt(0));
            self.keep_dq(head_tile + block(i));
        };
        k.for_uniform(k.constant(0i32), order.masked, 1, |i| step(true, i));
        k.for_uniform(order.masked, order.count, 1, |i| step(false, i));
        k.wgmma_wait(0);
        give_back(self.q_held);
        k.fence_proxy_async();
        k.sync_warp();
        self.add_dq();
    }

    #[track_caller]
    fn start_scores(&self) {
        let (k, context) = (self.k, self.context);
        self.q.wait();
        k.verb("S = K*Q", || {
            k.wgmma_fence();
            let q = context.q_tile.k_major().stage(self.q.stage());
            k.wgmma_ss(self.scores.0, self.k_rows, q, false);
            k.wgmma_commit();
        });
    }

    #[track_caller]
    fn start_dp(&self) {
        let (k, context) = (self.k, self.context);
        self.dout.wait();
        k.verb("dP = V*dO", || {
            k.wgmma_fence();
            let dout = context.dout_tile.k_major().stage(self.dout.stage());
            k.wgmma_ss(self.dp.0, self.v_rows, dout, false);
            k.wgmma_commit();
        });
    }

    /// One Q tile. It ends with its dK under way, which runs on while the next one begins, and its dQ in registers.
    /// `masked` where some of its rows do not see all keys.
    #[track_caller]
    fn m_block(&self, masked: Option<(&Tile<'k>, Val<'k, u32>)>, any_before: Val<'k, bool>) {
        let (k, context) = (self.k, self.context);
        let dv_first = context.levers.dv_first;
        let numbers = |tile: SharedTile<'k, f32>, stage| {
            let first = tile.at_stage(stage, 0, self.lane_query);
            let of = |i| first.plus((ACC_COLS * i) as i32).load_words(2, Cache::Default);
            (0..self.scores.tiles()).map(of).collect::<Vec<_>>()
        };
        self.start_scores();
        let lse = numbers(context.lse_tile, self.q.stage());
        self.start_dp();
        k.wgmma_wait(1);
        // dK of the tile before has ended.
        k.if_(any_before.uniform(), || give_back(self.q_held));
        if let Some((tile, m_block)) = masked {
            self.mask(tile, m_block * context.levers.rows);
        }
        self.probabilities(&lse);
        let delta = numbers(context.delta_tile, self.dout.stage());
        if dv_first {
            self.pack_p();
            self.start_dv();
            k.wgmma_wait(1);
            self.score_gradients(&delta);
        } else {
            k.wgmma_wait(0);
            self.score_gradients(&delta);
            self.start_dv();
        }
        // The one fence of a tile: behind it are the reads of numbers, dS of all keys, and dQ of the tile before; and dS of
        // that one has been read, so that its stage can be written next.
        k.fence_proxy_async();
        k.barrier_among(CONSUMERS, 128 * context.levers.warpgroups());
        k.verb("dQ = dS*K", || {
            k.wgmma_fence();
            k.wgmma_ss(self.dq.0, self.ds_rows.stage(self.ds_stage.get()), self.k_columns, false);
            k.wgmma_commit();
        });
        k.verb("dK += dS*Q", || {
            k.wgmma_fence();
            let q = context.q_tile.mn_major().stage(self.q.stage());
            k.wgmma_ss(self.dk.0, self.ds_keys.stage(self.ds_stage.get()), q, true);
            k.wgmma_commit();
        });
        k.if_(any_before.uniform(), || self.add_dq());
        self.ds_stage.set(self.ds_stage.get() ^ 1);
        self.q.advance();
        k.wgmma_wait(1);
        give_back(self.dout);
    }

    #[track_caller]
    fn pack_p(&self) {
        for tile in 0..self.scores.tiles() {
            for half in 0..2 {
                let [a, b] = self.scores.pair(tile, half);
                self.p.word(2 * tile + half as u32).set(E::pack(a.get(), b.get()));
            }
        }
    }

    #[track_caller]
    fn start_dv(&self) {
        let (k, context) = (self.k, self.context);
        k.verb("dV += P*dO", || {
            k.wgmma_fence();
            let dout = context.dout_tile.mn_major().stage(self.dout.stage());
            k.wgmma_rs(self.dv.0, &self.p.operands(), dout, true);
            k.wgmma_commit();
        });
    }

    /// Scores of query rows that do not see a key become −∞.
    #[track_caller]
    fn mask(&self, tile: &Tile<'k>, first_row: Val<'k, u32>) {
        let key = |half: usize| tile.first_key + self.lane_key + 8 * half as u32;
        mask_scores(self.k, &self.context.band, &[self.scores], |_, half| key(half), first_row);
        for half in 0..2 {
            let exists = key(half).lt(self.context.seq_len_kv);
            for (_, score) in self.scores.of_row(self.scores.steps(), half) {
                score.set(exists.select(score, f32::NEG_INFINITY));
            }
        }
    }

    /// `P = exp2(scale·S − lse)`. Rows past the end, and those that see no key, have +∞ for their log-sum-exp.
    #[track_caller]
    fn probabilities(&self, lse: &[Vec<Val<'k, f32>>]) {
        let (k, scale) = (self.k, self.context.scale_log2);
        k.verb("probabilities", || {
            for (tile, lse) in lse.iter().enumerate() {
                for half in 0..2 {
                    for (score, &lse) in self.scores.pair(tile as u32, half).iter().zip(lse) {
                        score.set(score.get().fma(scale, lse).exp2());
                    }
                }
            }
        });
    }

    /// `dS = P∘(dP − delta)`, rounded, in shared memory.
    #[track_caller]
    fn score_gradients(&self, delta: &[Vec<Val<'k, f32>>]) {
        let (k, ds_tile) = (self.k, self.context.ds_tile);
        // The row of 16 bytes that a lane names: of four matrices of 8 keys by 8 queries.
        let (key, query) = (self.warp * 16 + k.lane() % 16, k.lane() / 16 * 8);
        k.verb("score_gradients", || {
            for first in (0..ds_tile.cols()).step_by(ds_tile.slab_cols() as usize) {
                let place = ds_tile.at_stage(self.ds_stage.get(), key, query + first);
                for column in (0..ds_tile.slab_cols()).step_by(2 * ACC_COLS as usize) {
                    let at = if column == 0 { place } else { ds_tile.across(place, column) };
                    let mut words = Vec::new();
                    for tile in [0, 1].map(|i| (first + column) / ACC_COLS + i) {
                        let delta = &delta[tile as usize];
                        for half in 0..2 {
                            let (p, dp) = (self.scores.pair(tile, half), self.dp.pair(tile, half));
                            let [a, b] = [0, 1].map(|e| p[e].get() * (dp[e].get() - delta[e]));
                            if !self.context.levers.dv_first {
                                let word = E::pack(p[0].get(), p[1].get());
                                self.p.word(2 * tile + half as u32).set(word);
                            }
                            words.push(E::pack(a, b));
                        }
                    }
                    k.stmatrix(at, &words, false);
                }
            }
        });
    }

    /// Leaves this warp's part of dQ of a tile in shared memory, until [`Self::add_dq`].
    #[track_caller]
    fn keep_dq(&self, tile: Val<'k, u32>) {
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
    fn add_dq(&self) {
        let (k, context) = (self.k, self.context);
        k.verb("add_dq", || {
            self.one_lane(|| {
                let elements = context.levers.rows * context.head_dim;
                let to = context.dq.offset_strided(self.dq_tile.get(), elements).offset(self.first_dq());
                let from = context.dq_tile.at_stage(self.dq_stage.get(), 0, self.first_dq());
                k.bulk_add(to, from, 32 * 16 * self.dq.tiles());
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
    #[track_caller]
    fn store(&self, tile: &Tile<'k>) {
        let (k, context) = (self.k, self.context);
        // No product reads K any more.
        k.barrier_among(CONSUMERS, 128 * context.levers.warpgroups());
        let at = [tile.first_key + self.warp * 16, tile.kv_head, tile.batch];
        let scales = [Some(context.scale), None];
        let sums = [(&self.dk, context.k_tile, context.dk), (&self.dv, context.v_tile, context.dv)];
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

    #[track_caller]
    fn one_lane(&self, body: impl FnOnce()) {
        self.k.if_(self.k.lane().eq(0).divergent(), body);
    }
}

/// Gives back a stage of which nothing is read any more.
#[track_caller]
fn give_back(stage: Consumer<'_>) {
    stage.release();
    stage.advance();
}
