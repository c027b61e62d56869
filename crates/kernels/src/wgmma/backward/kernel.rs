//! The main kernel of the backward pass: a block owns the keys of one tile of a K/V head and walks the query rows that see
//! them, of all heads of its group. dK and dV stay in registers; dQ is added up in global memory.
//!
//! The products are those of FlashAttention-3 with keys as rows: `Sᵀ = K·Qᵀ` and `dPᵀ = V·dOᵀ` give `Pᵀ` in the registers
//! that `dV += Pᵀ·dO` reads, and `dSᵀ`, which `dK += dSᵀ·Q` and `dQ += dS·K` read from shared memory.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::pipeline::Pipeline;
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{GlobalPtr, KernelBuilder, Role, SharedTile, TensorMap, TileShape, Val};

use super::consumer::Warpgroup;
use super::{DQ_STAGES, registers, warpgroups};
use crate::attention::block_range::{Band, BlockOrder, BlockRange};
use crate::attention::gradients::{Statistics, dq_sums};
use crate::attention::lengths::FirstRows;
use crate::attention::params::{RowParams, Shape};
use crate::wgmma::Config;
use crate::wgmma::consumer::release;
use crate::wgmma::tiles::slabs;

/// A tensor whose rows are copied to shared memory.
#[derive(Clone, Copy)]
pub(super) struct Operand<'k, E> {
    pub(super) tile: SharedTile<'k, E>,
    pub(super) map: TensorMap<'k>,
    pub(super) pipeline: Pipeline<'k>,
}

/// What producer and consumers have in common.
pub(super) struct Context<'k, 'p, E> {
    pub(super) levers: &'p Config,
    pub(super) head_dim: u32,
    pub(super) q: Operand<'k, E>,
    pub(super) k: Operand<'k, E>,
    pub(super) v: Operand<'k, E>,
    pub(super) dout: Operand<'k, E>,
    pub(super) ds_tile: SharedTile<'k, E>,
    pub(super) dq_tile: SharedTile<'k, f32>,
    pub(super) lse_tile: SharedTile<'k, f32>,
    pub(super) delta_tile: SharedTile<'k, f32>,
    pub(super) dk: TensorMap<'k>,
    pub(super) dv: TensorMap<'k>,
    pub(super) statistics: Statistics<'k>,
    pub(super) dq_sums: GlobalPtr<'k, f32>,
    pub(super) softmax_scale: Val<'k, f32>,
    heads_at_once: Val<'k, u32>,
    pub(super) params: RowParams<'k>,
    /// The query rows that see a key.
    seen_by: Band<Val<'k, i32>>,
}

/// The tile of a block, and the Q tiles that see it.
pub(super) struct Tile<'k> {
    pub(super) first_key: Val<'k, u32>,
    pub(super) kv_head: Val<'k, u32>,
    pub(super) batch: Val<'k, u32>,
    pub(super) order: BlockOrder<Val<'k, i32>>,
}

pub(super) fn body<E: MmaElement + WgmmaElement>(k: &KernelBuilder, levers: &Config, shape: &Shape) {
    k.min_blocks_per_sm(1);
    let Config { rows, cols, stages, .. } = *levers;
    let (head_dim, consumers) = (shape.head_dim, 4 * warpgroups(levers));
    let row_numbers = TileShape::new(1, rows).stages(stages);
    let tile = |name, rows, stages| k.shared_tile::<E>(name, slabs::<E>(rows, head_dim).stages(stages));
    let (q_tile, dout_tile) = (tile("q_tile", rows, stages), tile("dout_tile", rows, stages));
    let (k_tile, v_tile) = (tile("k_tile", cols, 1), tile("v_tile", cols, 1));
    let ds_tile = k.shared_tile("ds_tile", slabs::<E>(cols, rows).stages(2));
    let dq_tile = k.shared_tile("dq_tile", TileShape::new(rows, head_dim).stages(DQ_STAGES));
    let (lse_tile, delta_tile) = (
        k.shared_tile("lse_tile", row_numbers),
        k.shared_tile("delta_tile", row_numbers),
    );
    let operands = [("q", q_tile), ("k", k_tile), ("v", v_tile), ("dout", dout_tile)];
    let [q, keys, values, dout] = operands.map(|(name, tile)| Operand {
        tile,
        map: k.param_tensor_map(name, tile.tensor_box(&[tile.rows(), 1, 1])),
        pipeline: k.pipeline(name, tile.stages(), consumers),
    });
    // A warp stores its own rows.
    let stored = |name, tile: SharedTile<'_, E>| k.param_tensor_map_mut(name, tile.tensor_box(&[16, 1, 1]));
    let (dk, dv) = (stored("dk", k_tile), stored("dv", v_tile));
    let statistics = Statistics::to_read(k);
    let dq_sums = dq_sums(k);
    let (softmax_scale, heads_at_once) = (k.param("softmax_scale"), k.param("heads_at_once"));
    let params = RowParams::declare(k, shape);
    let context = Context {
        levers,
        head_dim,
        q,
        k: keys,
        v: values,
        dout,
        ds_tile,
        dq_tile,
        lse_tile,
        delta_tile,
        dk,
        dv,
        statistics,
        dq_sums,
        softmax_scale,
        heads_at_once,
        seen_by: params.band.inverse(params.seq_len_q.reinterpret()),
        params,
    };
    k.start_pipelines(&[&context.k, &context.v, &context.q, &context.dout].map(|operand| operand.pipeline));
    let (producer_registers, consumer_registers) = registers(levers);
    k.roles(vec![
        Role::new("producer", 4, || context.produce(k)).registers(producer_registers),
        Role::new("consumer", consumers, || context.consume(k)).registers(consumer_registers),
    ]);
}

impl<'k, E: MmaElement + WgmmaElement> Context<'k, '_, E> {
    /// This block's tile. Tiles go in bundles of heads, and in a bundle the first tiles of all heads come first, which are
    /// the longest if causal.
    #[track_caller]
    pub(super) fn tile(&self, k: &'k KernelBuilder) -> Tile<'k> {
        let (Config { rows, cols, .. }, keys) = (*self.levers, self.params.seq_len_kv);
        let tiles = (keys + (cols - 1)) / cols;
        let heads = k.grid_dim(0) / tiles;
        let bundle = k.block_idx(0) / (tiles * self.heads_at_once) * self.heads_at_once;
        let in_bundle = k.block_idx(0) - bundle * tiles;
        let width = self.heads_at_once.min(heads - bundle);
        let head = bundle + in_bundle % width;
        let first_key = in_bundle / width * cols;
        let (first, keys): (Val<'k, i32>, Val<'k, i32>) = (first_key.reinterpret(), keys.reinterpret());
        let last = first + (cols as i32 - 1);
        let range = BlockRange::between(self.rows_that_see(first), self.rows_that_see(last.min(keys - 1)), rows);
        // Keys past the end are masked in every Q tile.
        let past = last.ge(keys);
        let range = BlockRange {
            whole: past.select(range.end, range.whole),
            whole_end: past.select(range.end, range.whole_end),
            ..range
        };
        let kv_heads = self.params.num_heads / self.params.group_size;
        Tile {
            first_key,
            kv_head: head % kv_heads,
            batch: head / kv_heads,
            order: BlockOrder::ascending(range, false),
        }
    }

    /// The first query row that sees a key, and one past the last; both at most as many as there are.
    #[track_caller]
    fn rows_that_see(&self, key: Val<'k, i32>) -> (Val<'k, i32>, Val<'k, i32>) {
        let (first, end) = self.seen_by.visible(key);
        (first.min(self.seen_by.len), end.min(self.seen_by.len))
    }

    /// The same where the key may be past the end, which no row sees.
    #[track_caller]
    pub(super) fn rows_that_see_any(&self, key: Val<'k, u32>) -> (Val<'k, i32>, Val<'k, i32>) {
        let (first, end) = self.seen_by.visible(key.reinterpret());
        (first, key.lt(self.params.seq_len_kv).select(end, first))
    }

    /// Calls with each query head of the tile's group, and the place of its rows in statistics and sums.
    #[track_caller]
    pub(super) fn each_head(&self, tile: &Tile<'k>, body: impl FnOnce(Val<'k, u32>, Val<'k, u32>)) {
        let (k, group_size) = (tile.batch.builder(), self.params.group_size);
        k.for_uniform(0u32, group_size, 1, |i| {
            let head = tile.kv_head.fma(group_size, i);
            let first = FirstRows { q: None, k: None };
            body(
                head,
                self.statistics.head_row(self.params.num_heads, tile.batch, head, first),
            );
        });
    }

    /// What a warpgroup does: head by head of the group, and in each Q tile by Q tile.
    fn consume(&self, k: &'k KernelBuilder) {
        let tile = self.tile(k);
        let group = Warpgroup::new(k, self);
        group.keys.wait();
        group.values.wait();
        self.each_head(&tile, |_, head_row| {
            k.if_(tile.order.count.gt(0).uniform(), || group.head(&tile, head_row));
        });
        group.store(&tile);
    }
}

impl<'k, E: MmaElement + WgmmaElement> Warpgroup<'k, '_, E> {
    /// What the Q tiles of a head add to the three gradients.
    fn head(&self, tile: &Tile<'k>, head_row: Val<'k, u32>) {
        let (k, order) = (self.k, &tile.order);
        let first_tile = head_row / self.context.levers.rows;
        let step = |masked: bool, i: Val<'k, i32>| {
            let m_block = order.n_block(i).reinterpret::<u32>();
            self.m_block(masked.then_some((tile, m_block)), i.gt(0));
            self.keep_dq(first_tile + m_block);
        };
        k.for_uniform(k.constant(0i32), order.masked, 1, |i| step(true, i));
        k.for_uniform(order.masked, order.count, 1, |i| step(false, i));
        k.wgmma_wait(0);
        release(self.q_held);
        k.fence_proxy_async();
        k.sync_warp();
        self.add_dq();
    }

    /// One Q tile. It ends with its dK under way, which runs on while the next one begins, and its dQ in registers.
    /// `masked` where some of its rows do not see all keys.
    fn m_block(&self, masked: Option<(&Tile<'k>, Val<'k, u32>)>, any_before: Val<'k, bool>) {
        let (k, context) = (self.k, self.context);
        self.start_scores();
        let lse = self.row_numbers(context.lse_tile, self.q.stage());
        self.start_dp();
        k.wgmma_wait(1);
        // dK of the tile before has ended.
        k.if_(any_before.uniform(), || release(self.q_held));
        if let Some((tile, m_block)) = masked {
            self.mask(tile, m_block * context.levers.rows);
        }
        self.probabilities(&lse);
        let delta = self.row_numbers(context.delta_tile, self.dout.stage());
        k.wgmma_wait(0);
        self.score_gradients(&delta);
        self.start_dv();
        // The one fence of a tile: behind it are the reads of numbers, dS of all keys, and dQ of the tile before; and dS of
        // that one has been read, so that its stage can be written next.
        k.fence_proxy_async();
        self.meet();
        self.start_dq();
        self.start_dk();
        k.if_(any_before.uniform(), || self.add_dq());
        self.ds_stage.set(self.ds_stage.get() ^ 1);
        self.q.advance();
        k.wgmma_wait(1);
        release(self.dout);
    }
}
