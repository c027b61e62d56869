//! The kernel of family `wgmma`: FlashAttention-3's division of labour on Hopper's asynchronous tensor cores.
//!
//! One warp copies, one to three warpgroups compute 64 query rows each. Copies, products and softmax all run at
//! their own pace: the copying warp keeps the rings of K and V full; a warpgroup starts `S = Q·Kᵀ` of a tile and
//! `O += P·V` of the tile before together, and its softmax runs while the tensor cores work for another warpgroup.
//!
//! Blocks are persistent ([`super::schedule`]): copies for the next tile of rows begin before this one ends.

use flashcore_ir::pipeline::Pipeline;
use flashcore_ir::{Element, GlobalPtr, KernelBuilder, Role, SharedTile, TensorMap, Val};

use super::Config;
use super::input::Input;
use super::math::Warpgroup;
use super::scales::Scales;
use super::schedule::List;
use super::tiles::{one_slab, padded, slabs};
use crate::params::{RowParams, Shape};
use crate::parts::Parts;

/// What copies and products have in common.
pub(super) struct Shared<'k, 'p, E: Input> {
    pub(super) params: &'p RowParams<'k>,
    pub(super) scales: Option<Scales<'k>>,
    pub(super) levers: &'p Config,
    pub(super) shape: &'p Shape,
    pub(super) table: GlobalPtr<'k, u32>,
    pub(super) q_tile: SharedTile<'k, E>,
    pub(super) k_tile: SharedTile<'k, E>,
    pub(super) v_tile: SharedTile<'k, E>,
    pub(super) q_map: TensorMap<'k>,
    pub(super) k_map: TensorMap<'k>,
    pub(super) v_map: TensorMap<'k>,
    pub(super) output: Output<'k, E>,
    pub(super) q_ring: Pipeline<'k>,
    pub(super) k_ring: Pipeline<'k>,
    pub(super) v_ring: Pipeline<'k>,
}

/// Where the output of a tile of rows goes: whole, or a part of it.
pub(super) enum Output<'k, E: Input> {
    /// To the tensor, by way of shared memory.
    Tensor {
        tile: SharedTile<'k, E::Out>,
        map: TensorMap<'k>,
    },
    /// To the workspace, as one of `splits` parts of each row.
    Parts { parts: Parts<'k>, splits: Val<'k, u32> },
}

pub(super) fn body<E: Input>(k: &KernelBuilder, levers: &Config, shape: &Shape) {
    k.min_blocks_per_sm(1);
    if levers.cluster > 1 {
        k.in_clusters_of(levers.cluster);
    }
    let (rows, cols, groups) = (levers.rows, levers.cols, levers.warpgroups());
    // Each warpgroup has stages of its own of Q.
    let q_stages = groups * levers.q_stages(shape);
    let q_tile = k.shared_tile::<E>("q_tile", slabs::<E>(64, shape.head_dim).stages(q_stages));
    let k_tile = k.shared_tile::<E>("k_tile", slabs::<E>(cols, shape.head_dim).stages(levers.stages));
    let (v_rows, v_cols) = match E::TRANSPOSED {
        true => (padded(shape.head_dim_v, E::Out::BYTES), cols),
        false => (cols, shape.head_dim_v),
    };
    let v_tile = k.shared_tile::<E>("v_tile", slabs::<E>(v_rows, v_cols).stages(levers.stages));
    let out_tile = (!shape.leaves_parts()).then(|| {
        let slabs = one_slab::<E::Out>(rows, shape.head_dim_v).stages(levers.out_slabs(shape));
        k.shared_tile::<E::Out>("out_tile", slabs)
    });
    // Boxes of rows by one head of one batch; blocks of a cluster copy a part each, and a warp stores its own rows.
    let q_map = k.param_tensor_map("q", q_tile.tensor_box(&[64, 1, 1]));
    let k_map = k.param_tensor_map("k", k_tile.tensor_box(&[cols / levers.cluster, 1, 1]));
    let v_map = k.param_tensor_map("v", v_tile.tensor_box(&[v_rows / levers.cluster, 1, 1]));
    let output = match out_tile {
        Some(tile) => Output::Tensor {
            tile,
            map: k.param_tensor_map_mut("out", tile.tensor_box(&[16, 1, 1])),
        },
        None => Output::Parts {
            parts: Parts::to_write(k, shape.head_dim_v),
            splits: k.param("splits"),
        },
    };
    let params = RowParams::declare(k, shape);
    let ring = |name, stages, arrivers| match levers.cluster {
        1 => k.pipeline(name, stages, arrivers),
        _ => k.pipeline(name, stages, arrivers).across_cluster(),
    };
    let shared = Shared {
        params: &params,
        scales: E::SCALED.then(|| Scales::declare(k)),
        levers,
        shape,
        table: k.param_ptr("table"),
        q_tile,
        k_tile,
        v_tile,
        output,
        q_map,
        k_map,
        v_map,
        q_ring: k.pipeline("q", q_stages, 4),
        k_ring: ring("k", levers.stages, 4 * groups),
        v_ring: ring("v", levers.stages, 4 * groups),
    };
    k.start_pipelines(&[shared.q_ring, shared.k_ring, shared.v_ring]);
    let (copy_registers, math_registers) = levers.registers();
    k.roles(vec![
        Role::new("copies", 4, || shared.copies(k)).registers(copy_registers),
        Role::new("math", 4 * groups, || shared.math(k)).registers(math_registers),
    ]);
    if levers.cluster > 1 {
        // Nobody ends while another may still copy to its shared memory or arrive at its mbarriers.
        k.cluster_arrive();
        k.cluster_wait();
    }
}

impl<'k, E: Input> Shared<'k, '_, E> {
    /// What a warpgroup does: tile of rows by tile of rows, and in each tile of keys by tile of keys.
    ///
    /// Scores are a turn ahead of the output: while the products of a turn run, those of scores and output together,
    /// another warpgroup is at its softmax. So it is from one tile of rows to the next: the first scores of the next go
    /// with the last output of this one.
    #[track_caller]
    fn math(&self, k: &'k KernelBuilder) {
        let group = Warpgroup::new(k, self);
        let list = List::new(k, self.table, self.levers);
        // Whether the first scores of the tile at hand have been computed with the tile before.
        let ahead = k.var(0u32);
        k.loop_(|scope| {
            let tile = list.this();
            let (unseen, turns) = (group.unseen(&tile), tile.turns());
            let any = unseen.lt(turns);
            k.if_(ahead.get().eq(0).uniform(), || group.begin(unseen, any));
            k.if_(any.uniform(), || group.turns(&tile, unseen));
            let next = list.next();
            let overlap = next.exists() & any & next.sees_at_once(group.index);
            group.change_tiles(any, overlap);
            // Read again, so that no register holds it meanwhile.
            k.if_(any.uniform(), || group.store(&list.this()));
            ahead.set(overlap.select(1u32, 0u32));
            list.advance();
            scope.break_if((!next.exists()).uniform());
        });
        group.end();
    }
}
