//! The kernel of family `wgmma`: FlashAttention-3 on Hopper's asynchronous tensor cores.
//!
//! A producer warp keeps the pipelines of Q, K and V full; a second one fills that of V where K and V are in pages. One
//! to three consumer warpgroups compute 64 query rows each. A warpgroup starts `S = Q·Kᵀ` of a K block together with
//! `O += P·V` of the block before, and its softmax runs while the tensor cores work for another warpgroup. Blocks are
//! persistent: the next Q tile is copied before this one ends.

use flashcore_ir::{Element, KernelBuilder, Role, SharedTile, Val};
use flashcore_problem::Name;

use super::consumer::{TileRows, Warpgroup, release_and_advance, skip};
use super::maps::Operand;
use super::q_consumer::QRead;
use super::tiles::{padded, slab_cols, slabs, zero_rows};
use super::transpose::Transposed;
use super::{Config, PRODUCER_WARPS, Request, maps};
use crate::Refusal;
use crate::args::Args;
use crate::attention::params::{RowParams, Shape};
use crate::attention::query_rows::WARPGROUP_ROWS;
use crate::attention::scheduler::WorkItem;
use crate::attention::score_mod::HeadScales;
use crate::attention::softmax::{InputElement, Rescale};
use crate::attention::split::Partials;
use crate::attention::stream_k::Work;
use crate::attention::tensor_rows::{RowsOf, TensorRows};

/// What the producer and the consumers of a block share.
pub(super) struct Context<'k, 'p, E: InputElement> {
    pub(super) params: &'p RowParams<'k>,
    pub(super) scales: Option<HeadScales<'k>>,
    pub(super) levers: &'p Config,
    pub(super) shape: &'p Shape,
    pub(super) work: Work<'k>,
    pub(super) q: Operand<'k, E>,
    pub(super) keys: Operand<'k, E>,
    pub(super) values: Operand<'k, E>,
    /// Where the output goes, and where a partial of it goes. A schedule has whole tiles and pieces, and so both.
    pub(super) out: Option<(SharedTile<'k, E::Out>, TensorRows<'k>)>,
    pub(super) partials: Option<Partials<'k>>,
    /// Number of splits of the keys of each tile.
    pub(super) splits: Option<Val<'k, u32>>,
}

pub(super) fn body<'k, E: InputElement>(k: &'k Args<'k, Request>, levers: &Config, shape: &Shape) {
    k.min_blocks_per_sm(levers.min_blocks);
    if levers.cluster > 1 {
        k.in_clusters_of(levers.cluster);
    }
    let (rows, cols, consumer_warps) = (levers.rows, levers.cols, 4 * levers.warpgroups());
    // Each warpgroup has its own stages of Q, unless packed heads of a query may be in two warpgroups.
    let stage_rows = shape.packing.shared_rows;
    let q_stages = rows / stage_rows * levers.q_stages(shape);
    let q_tile = k.shared_tile::<E>("q_tile", slabs::<E>(stage_rows, shape.head_dim).stages(q_stages));
    let k_tile = k.shared_tile::<E>("k_tile", slabs::<E>(cols, shape.head_dim).stages(levers.stages));
    let keys = RowsOf::keys(&shape.lengths, shape.page_rows);
    // Products of fp8 need V transposed: then a stage has columns of V as rows.
    let (v_rows, v_cols) = if shape.is_fp8() {
        (padded(shape.head_dim_v, E::Out::BYTES), cols)
    } else {
        (cols, shape.head_dim_v)
    };
    let v_tile = k.shared_tile::<E>("v_tile", slabs::<E>(v_rows, v_cols).stages(levers.stages));
    let out_tile = (!shape.split).then(|| {
        let one_slab = slabs::<E::Out>(rows, slab_cols(shape.head_dim_v, E::Out::BYTES));
        k.shared_tile::<E::Out>("out_tile", one_slab.stages(levers.out_slabs(shape)))
    });
    // Boxes of copies: the blocks of a cluster copy a part of K and V each, and a warp stores its own rows.
    let queries = RowsOf::queries(&shape.lengths, shape.packing);
    let out_rows = shape.packing.stored_rows();
    let q_rows = maps::declare(k, Name::Q, q_tile, stage_rows, queries, |_| None);
    let gathered = |request: &Request| request.more.values.gathered_keys();
    let k_rows = maps::declare(k, Name::K, k_tile, cols / levers.cluster, keys, gathered);
    let v_rows = if shape.is_fp8() {
        Transposed::declare(k, v_tile, v_rows / levers.cluster)
    } else {
        maps::declare(k, Name::V, v_tile, v_rows / levers.cluster, keys, |_| None)
    };
    let out = out_tile.map(|tile| (tile, maps::declare(k, Name::Out, tile, out_rows, queries, |_| None)));
    let partials = (shape.split || shape.listed).then(|| Partials::declare(k, shape.head_dim_v, true));
    let splits = shape.split.then(|| k.try_number("splits", Request::splits));
    let listed = shape.listed.then(|| Work::listed(k));
    let params = RowParams::declare(k, shape);
    let pipeline = |name, stages, arrivers| match levers.cluster {
        1 => k.pipeline(name, stages, arrivers),
        _ => k.pipeline(name, stages, arrivers).across_cluster(),
    };
    let context = Context {
        params: &params,
        scales: shape.is_fp8().then(|| HeadScales::declare(k)),
        levers,
        shape,
        work: listed.unwrap_or_else(|| {
            Work::Table(k.table("table", |request| {
                let no_list = || Refusal::Build("a launch without work lists".to_string());
                request.more.table.clone().ok_or_else(no_list)
            }))
        }),
        out,
        partials,
        splits,
        q: Operand::new(q_tile, q_rows, k.pipeline("q", q_stages, stage_rows / 16)),
        keys: Operand::new(k_tile, k_rows, pipeline("k", levers.stages, consumer_warps)),
        values: Operand::new(v_tile, v_rows, pipeline("v", levers.stages, consumer_warps)),
    };
    zero_rows(k, q_tile, shape.packing.rows());
    if let (true, Some((out_tile, _))) = (shape.packing.spans_warpgroups(), &context.out) {
        // The copy of the output reads dead rows, which no warpgroup writes; the tensor map cuts them off.
        zero_rows(k, *out_tile, WARPGROUP_ROWS);
    }
    k.start_pipelines(&[&context.q, &context.keys, &context.values].map(|operand| operand.pipeline));
    if shape.listed {
        shape.begin_next_launch(k);
        shape.wait_for_launch_before(k);
    }
    let (producer_registers, consumer_registers) = levers.registers();
    k.roles(vec![
        Role::new("producer", PRODUCER_WARPS, || context.produce(k)).registers(producer_registers),
        Role::new("consumer", consumer_warps, || context.consume(k)).registers(consumer_registers),
    ]);
    end_cluster(k, levers);
}

/// No block of a cluster ends while another may still copy to its shared memory or arrive at its mbarriers.
pub(super) fn end_cluster(k: &KernelBuilder, levers: &Config) {
    if levers.cluster > 1 {
        k.cluster_arrive();
        k.cluster_wait();
    }
}

impl<'k, E: InputElement> Context<'k, '_, E> {
    /// What a consumer warpgroup does for each Q tile of its block's work list.
    ///
    /// `S = Q·Kᵀ` is one K block ahead of `O += P·V`, and both run together. The same holds from one Q tile to the
    /// next: S of the next tile's first K block runs with the last `O += P·V` of this tile.
    #[track_caller]
    fn consume(&self, k: &'k KernelBuilder) {
        let warpgroup = Warpgroup::new(k, self);
        let list = self.work.list(k, self.levers.tiling(self.shape.packing));
        list.if_any(|| {
            // Whether the first scores of this tile were computed with the tile before.
            let has_scores = k.var(0u32);
            list.for_each(|| {
                let tile = list.this();
                let first = tile.fully_masked(warpgroup.index);
                let has_keys = first.lt(tile.n_blocks());
                k.if_(has_scores.get().eq(0).uniform(), || {
                    warpgroup.first_scores(first, has_keys)
                });
                k.if_(has_keys.uniform(), || warpgroup.main_loop(&tile, first));
                let next = list.next();
                let overlap = next.exists() & has_keys & next.sees_first_block(warpgroup.index);
                warpgroup.last_output(has_keys, overlap);
                if self.shape.split {
                    // Late: at the start it cost up to 1.2 us (run `overlap-h100`). With a schedule it is the same.
                    k.if_((!next.exists()).uniform(), || self.shape.begin_next_launch(k));
                }
                // The work item is loaded again, so that no register holds it during the main loop.
                let store = || warpgroup.store(&list.this());
                if self.shape.packing.spans_warpgroups() && self.out.is_some() {
                    k.if_else(has_keys.uniform(), store, || warpgroup.store_nothing())
                } else {
                    k.if_(has_keys.uniform(), store)
                }
                has_scores.set(overlap.select(1u32, 0u32));
                next
            });
        });
        if self.out.is_some() {
            // Shared memory must outlive the copies that read it.
            warpgroup.store_group.one_thread(|| k.bulk_wait_read(0));
        }
    }
}

impl<'k, E: InputElement> Warpgroup<'k, '_, E> {
    /// `S = Q·Kᵀ` of a Q tile's first K block. The first `skipped` K blocks are fully masked for this warpgroup.
    #[track_caller]
    fn first_scores(&self, skipped: Val<'k, u32>, has_keys: Val<'k, bool>) {
        let k = self.k;
        // A warpgroup without rows releases Q before it waits for the scheduler barrier: the warpgroup that holds it
        // may wait for the next Q.
        k.if_((!has_keys).uniform(), || self.q.skip());
        k.for_uniform(0, skipped, 1, |_| {
            // No products: the turn goes to the next warpgroup.
            self.with_tensor_cores(|| ());
            skip(self.keys);
            skip(self.values);
        });
        k.if_(has_keys.uniform(), || {
            self.q.wait();
            self.load_q();
            self.keys.wait();
            self.start_scores();
            k.wgmma_wait(0);
            release_and_advance(self.keys);
        });
    }

    /// From the first scores of a Q tile to its last probabilities.
    #[track_caller]
    fn main_loop(&self, tile: &WorkItem<'k>, first: Val<'k, u32>) {
        let (k, masked) = (self.k, tile.masked());
        if let (Some(scales), Some(head)) = (&self.context.scales, &self.scales) {
            head.load(scales, &self.context.params.score_mod, tile.batch(), tile.kv_head());
        }
        let (second, n_blocks) = (first + 1, tile.n_blocks());
        let is_last = |n_block: Val<'k, u32>| (n_block + 1).eq(n_blocks);
        self.q.release_after(QRead::LastScores, Some(second.eq(n_blocks)));
        let rows = &self.rows_of(tile);
        self.begin_score_mod(rows, first);
        // The first K block sets the maxima.
        let (first_key, needs_mask) = (tile.first_masked_key(first), first.lt(masked));
        self.out.zero();
        self.apply_score_mod(rows);
        k.if_(needs_mask.uniform(), || self.mask(rows, first_key));
        for (half, row) in self.rows.iter().enumerate() {
            row.restart(&self.scores, half, self.policy.max_offset);
        }
        self.exponentials();
        self.pack();
        k.for_uniform(second, masked, 1, |n_block| {
            self.begin_score_mod(rows, n_block);
            self.next_block(rows, Some(tile.first_masked_key(n_block)), is_last(n_block));
        });
        k.for_uniform(masked.max(second), n_blocks, 1, |n_block| {
            self.begin_score_mod(rows, n_block);
            self.next_block(rows, None, is_last(n_block));
        });
    }

    /// `S = Q·Kᵀ` of a K block with `O += P·V` of the one before, then the softmax of S. `masked_key`: the first key of
    /// a K block that needs a mask.
    #[track_caller]
    fn next_block(&self, rows: &TileRows<'_, 'k>, masked_key: Option<Val<'k, u32>>, last: Val<'k, bool>) {
        self.keys.wait();
        self.with_tensor_cores(|| {
            self.start_scores();
            self.values.wait();
            self.start_output();
        });
        match self.context.levers.rescale {
            Rescale::Speculative => self.speculative_block(rows, masked_key, last),
            _ => self.overlapped_block(rows, masked_key, last),
        }
    }

    /// The softmax, while `O += P·V` still runs. The output is rescaled after that.
    #[track_caller]
    fn overlapped_block(&self, rows: &TileRows<'_, 'k>, masked_key: Option<Val<'k, u32>>, last: Val<'k, bool>) {
        let k = self.k;
        k.wgmma_wait(1);
        release_and_advance(self.keys);
        self.finish_scores(rows, masked_key, last);
        let raised = self.raise_maxima(self.policy, |half, factor| self.factors[half].set(factor));
        self.exponentials();
        k.wgmma_wait(0);
        release_and_advance(self.values);
        let rescale = || {
            for (half, factor) in self.factors.iter().enumerate() {
                self.rescale_output(half, factor.get());
            }
        };
        match raised {
            Some(raised) => k.if_(raised.uniform(), rescale),
            None => rescale(),
        }
        self.pack();
    }

    /// The softmax, after `O += P·V` is complete: speculative in a K block without a mask.
    #[track_caller]
    fn speculative_block(&self, rows: &TileRows<'_, 'k>, masked_key: Option<Val<'k, u32>>, last: Val<'k, bool>) {
        self.k.wgmma_wait(0);
        release_and_advance(self.keys);
        release_and_advance(self.values);
        self.finish_scores(rows, masked_key, last);
        if masked_key.is_none() {
            return self.speculative_softmax();
        }
        self.raise_maxima(self.policy, |half, factor| self.rescale_output(half, factor));
        self.exponentials();
        self.pack();
    }

    /// Modifies and masks the scores. In the `last` K block, releases Q.
    #[track_caller]
    fn finish_scores(&self, rows: &TileRows<'_, 'k>, masked_key: Option<Val<'k, u32>>, last: Val<'k, bool>) {
        self.q.release_after(QRead::LastScores, Some(last));
        self.apply_score_mod(rows);
        if let Some(first_key) = masked_key {
            self.mask(rows, first_key);
        }
    }

    /// `O += P·V` of the last K block, together with the first scores of the next Q tile if they `overlap`.
    #[track_caller]
    fn last_output(&self, has_keys: Val<'k, bool>, overlap: Val<'k, bool>) {
        let k = self.k;
        let with_scores = || {
            // Every product with this Q has been waited for.
            self.q.release_after(QRead::TileEnd, None);
            // Q is copied to registers before this warpgroup's turn, so that no other warpgroup waits for it.
            let holds_q = self.q_held.steps() > 0;
            if holds_q {
                self.q.wait();
                self.load_q();
            }
            self.with_tensor_cores(|| {
                if !holds_q {
                    self.q.wait();
                }
                self.keys.wait();
                self.start_scores();
                self.values.wait();
                self.start_output();
            });
            k.wgmma_wait(0);
            release_and_advance(self.values);
            release_and_advance(self.keys);
        };
        let alone = || {
            self.q.release_after(QRead::TileEnd, None);
            self.with_tensor_cores(|| {
                self.values.wait();
                self.start_output();
            });
            k.wgmma_wait(0);
            release_and_advance(self.values);
        };
        // Two whole branches: where a path with products in flight joins one without, ptxas serialises all products.
        k.if_else(overlap.uniform(), with_scores, || k.if_(has_keys.uniform(), alone));
    }
}
