//! The main kernel of the backward pass: a block owns a tile of keys of one K/V head and walks the Q tiles that see it,
//! of all query heads of the group. dK and dV stay in registers; dQ is added up in global memory. Where there are few
//! tiles, several blocks [share one](super::split).
//!
//! The products are those of FlashAttention-3 with keys as rows: `Sᵀ = K·Qᵀ` and `dPᵀ = V·dOᵀ` give `Pᵀ` in the
//! registers that `dV += Pᵀ·dO` reads, and `dSᵀ`, which `dK += dSᵀ·Q` and `dQ += dS·K` read from shared memory.
//!
//! There are two main loops. Up to 128 columns each warpgroup has 64 keys, and warpgroups [pingpong](super::pingpong).
//! Above, dK and dV of 64 keys do not fit into the registers of one warpgroup: one computes P and dV, the other dS and
//! dK, and two blocks of a cluster [exchange dS](super::exchange).

use flashcore_ir::{GlobalPtr, KernelBuilder, Role, SharedTile, TileShape, Val};
use flashcore_problem::Name;

use super::ahead::Ahead;
use super::consumer::Warpgroup;
use super::exchange::Exchange;
use super::pingpong::Pingpong;
use super::scheduler::take_ticket;
use super::split::Split;
use super::{DS_STAGES, Partition, SLAB_COLS, Variant, dout_stages, first_stores, heads_at_once, registers};
use crate::args::Args;
use crate::attention::gradients::{Backward, DqSemaphore, Statistics, declare_softmax_scale, dq_sums};
use crate::attention::params::{RowParams, Shape};
use crate::attention::query_rows::Packing;
use crate::attention::row_tile::QUAD;
use crate::attention::softmax::SixteenBits;
use crate::attention::tensor_rows::{RowsOf, TensorRows};
use crate::wgmma::kernel::end_cluster;
use crate::wgmma::maps::Operand;
use crate::wgmma::tiles::slabs;
use crate::wgmma::{Config, PRODUCER_WARPS, maps};

/// The two main loops, and what each needs in shared memory.
pub(super) enum MainLoop<'k, E> {
    Pingpong(Pingpong<'k>),
    Exchange(Box<Exchange<'k, E>>),
}

/// Where dK and dV of a tile go.
pub(super) enum Gradients<'k> {
    /// To the rows of their tensors.
    Stored([TensorRows<'k>; 2]),
    /// To f32 sums, if several blocks share the tile.
    Added(Split<'k>),
}

/// What the producer and the consumers of a block share.
pub(super) struct Context<'k, 'p, E> {
    pub(super) levers: &'p Config,
    pub(super) shape: &'p Shape,
    pub(super) partition: Partition,
    pub(super) q: Operand<'k, E>,
    pub(super) keys: Operand<'k, E>,
    pub(super) values: Operand<'k, E>,
    pub(super) dout: Operand<'k, E>,
    pub(super) ds_tile: SharedTile<'k, E>,
    pub(super) main_loop: MainLoop<'k, E>,
    pub(super) lse_tile: SharedTile<'k, f32>,
    pub(super) delta_tile: SharedTile<'k, f32>,
    pub(super) gradients: Gradients<'k>,
    pub(super) statistics: Statistics<'k>,
    pub(super) dq_sums: GlobalPtr<'k, f32>,
    pub(super) softmax_scale: Val<'k, f32>,
    pub(super) heads_at_once: Val<'k, u32>,
    pub(super) params: RowParams<'k>,
    pub(super) semaphore: Option<DqSemaphore<'k>>,
    /// Whether blocks add to dQ in the same order in all runs.
    pub(super) ordered: bool,
    /// Number of the block's tile, if blocks take tiles in the order in which they start.
    pub(super) ticket: Option<SharedTile<'k, u32>>,
    pub(super) ahead: Option<Ahead<'k, E>>,
}

pub(super) fn body<'k, E: SixteenBits>(k: &'k Args<'k, Backward>, levers: &Config, shape: &Shape, variant: Variant) {
    let (ordered, ahead) = (variant == Variant::Ordered, variant == Variant::Ahead);
    k.min_blocks_per_sm(1);
    let (rows, cols, stages, cluster) = (levers.rows, levers.cols, levers.stages, levers.cluster);
    let partition = Partition::new(levers, shape);
    let (width, consumers) = (partition.width, 4 * partition.warpgroups);
    let row_statistics = TileShape::new(1, rows).stages(stages);
    if cluster > 1 {
        k.in_clusters_of(cluster);
    }
    let dout_stages = dout_stages(levers, width);
    let tile = |name, rows, stages| k.shared_tile::<E>(name, slabs::<E>(rows, width).stages(stages));
    let (q_tile, dout_tile) = (tile("q_tile", rows, stages), tile("dout_tile", rows, dout_stages));
    let k_shape = slabs::<E>(cols, partition.dq_col_parts * SLAB_COLS);
    let (k_tile, v_tile) = (k.shared_tile::<E>("k_tile", k_shape), tile("v_tile", cols, 1));
    let ds_tile = k.shared_tile("ds_tile", slabs::<E>(cols, rows).stages(DS_STAGES));
    let lse_tile = k.shared_tile("lse_tile", row_statistics);
    let delta_tile = k.shared_tile("delta_tile", row_statistics.stages(dout_stages));
    let queries = RowsOf::queries(&shape.lengths, Packing::NONE);
    let key_rows = RowsOf::keys(&shape.lengths, 0);
    // Each block of a cluster copies a part of the rows of Q and dO to all of them.
    let operands = [
        (Name::Q, q_tile, queries, cluster),
        (Name::K, k_tile, key_rows, 1),
        (Name::V, v_tile, key_rows, 1),
        (Name::Dout, dout_tile, queries, cluster),
    ];
    let [q, keys, values, dout] = operands.map(|(tensor, tile, of, blocks)| {
        // The statistics that come with Q and dO are read by loads, each of them by all quads of a warp.
        let pipeline = k.pipeline(tensor.as_str(), tile.stages(), consumers);
        let pipeline = pipeline.released_by_lanes(QUAD);
        let rows = maps::declare(k, tensor, tile, tile.rows() / blocks, of, |_| None);
        match blocks {
            1 => Operand::new(tile, rows, pipeline),
            _ => Operand::new(tile, rows, pipeline.across_cluster()),
        }
    });
    let main_loop = if partition.exchanges_ds {
        MainLoop::Exchange(Box::new(Exchange::declare(k, levers, &partition, keys.rows, ordered)))
    } else {
        MainLoop::Pingpong(Pingpong::declare(k, levers, &partition))
    };
    // Each warp stores its 16 rows.
    let gradients = match variant {
        Variant::Split => Gradients::Added(Split::declare(k)),
        _ => {
            let to = |tensor, tile| maps::declare(k, tensor, tile, 16, key_rows, |_| None);
            Gradients::Stored([to(Name::Dk, k_tile), to(Name::Dv, v_tile)])
        }
    };
    let statistics = Statistics::declare(k, ahead);
    let dq_sums = dq_sums(k, true);
    let semaphore = first_stores(ordered, width).then(|| DqSemaphore::declare(k, true));
    let softmax_scale = declare_softmax_scale(k);
    let heads_at_once = k.number("heads_at_once", move |request| heads_at_once(&request.problem, width));
    // Thread 0 initialises the mbarriers. Where blocks prepare rows ahead, another warp takes the ticket meanwhile.
    let thread = if ahead { 32 } else { 0 };
    let taken_from = semaphore.filter(|_| ordered || ahead);
    let ticket = taken_from.map(|semaphore| take_ticket(k, semaphore, cluster, thread));
    let context = &Context {
        levers,
        shape,
        partition,
        q,
        keys,
        values,
        dout,
        ds_tile,
        main_loop,
        lse_tile,
        delta_tile,
        gradients,
        statistics,
        dq_sums,
        softmax_scale,
        heads_at_once,
        ahead: ahead.then(|| Ahead::declare(k, *levers, width)),
        params: RowParams::declare(k, shape),
        semaphore,
        ordered,
        ticket,
    };
    let operands = [&context.keys, &context.values, &context.q, &context.dout].map(|operand| operand.pipeline);
    let exchanged = match &context.main_loop {
        MainLoop::Exchange(exchange) => Some(exchange.other_keys.pipeline),
        MainLoop::Pingpong(_) => None,
    };
    k.start_pipelines(&operands.into_iter().chain(exchanged).collect::<Vec<_>>());
    let (producer_registers, consumer_registers) = registers(&partition);
    let role = |name, warps, outputs| {
        Role::new(name, warps, move || context.consume(k, outputs)).registers(consumer_registers)
    };
    let mut roles = vec![Role::new("producer", PRODUCER_WARPS, || context.produce(k)).registers(producer_registers)];
    if partition.exchanges_ds {
        roles.extend([role("dv", 4, Outputs::Dv), role("dk", 4, Outputs::Dk)])
    } else {
        roles.push(role("consumer", consumers, Outputs::Both))
    }
    k.roles(roles);
    end_cluster(k, levers);
}

/// What a consumer warpgroup computes in addition to its part of dQ.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outputs {
    /// dK and dV of 64 keys.
    Both,
    /// P and dV.
    Dv,
    /// dS and dK.
    Dk,
}

impl<'k, E: SixteenBits> Context<'k, '_, E> {
    /// The sums of dK and dV, if several blocks share a tile.
    pub(super) fn split(&self) -> Option<&Split<'k>> {
        match &self.gradients {
            Gradients::Stored(_) => None,
            Gradients::Added(split) => Some(split),
        }
    }

    /// What a consumer warpgroup does: all Q tiles of all query heads of the group, then it stores dK and dV.
    fn consume(&self, k: &'k KernelBuilder, outputs: Outputs) {
        self.with_tile(k, |tile| {
            let ahead = self.load_ahead(k, tile);
            let warpgroup = Warpgroup::new(k, self, outputs);
            let has_q_tiles = || self.any_q_tile(tile).uniform();
            self.keys.pipeline.consumer().wait();
            let values = self.values.pipeline.consumer();
            match &self.main_loop {
                MainLoop::Pingpong(pingpong) => {
                    let none = || {
                        values.wait();
                        self.store_prepared(k, tile, &ahead);
                        warpgroup.store_gradients(tile);
                    };
                    let any = || warpgroup.tile_in_pingpong(pingpong, tile, &ahead);
                    k.if_else(has_q_tiles(), any, none);
                }
                MainLoop::Exchange(exchange) => {
                    values.wait();
                    exchange.other_keys.pipeline.consumer().wait();
                    if self.partition.holds_v {
                        warpgroup.load_v();
                    }
                    self.each_head(tile, |head| {
                        k.if_(has_q_tiles(), || warpgroup.head_in_exchange(exchange, tile, &head));
                    });
                    warpgroup.store_gradients(tile);
                }
            }
        });
    }
}
