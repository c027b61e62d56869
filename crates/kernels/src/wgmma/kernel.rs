//! The kernel of family `wgmma`: FlashAttention-3's division of labour on Hopper's asynchronous tensor cores.
//!
//! One warp copies, one to three warpgroups compute 64 query rows each. Copies, products and softmax all run at
//! their own pace: the copying warp keeps the rings of K and V full; a warpgroup starts `S = Q·Kᵀ` of a tile and
//! `O += P·V` of the tile before together, and its softmax runs while the tensor cores work for another warpgroup.
//!
//! Blocks are persistent ([`super::schedule`]): copies for the next tile of rows begin before this one ends.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::pipeline::Pipeline;
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{GlobalPtr, KernelBuilder, Role, SharedTile, TensorMap, Val};

use super::Config;
use super::math::Warpgroup;
use super::schedule::{List, Work};
use crate::params::{RowParams, Shape};
use crate::sequence::{Rows, TileSequence};
use crate::tiles::{one_slab, slabs};

/// What copies and products have in common.
pub(super) struct Shared<'k, 'p, E> {
    pub(super) params: &'p RowParams<'k>,
    pub(super) levers: &'p Config,
    pub(super) shape: &'p Shape,
    pub(super) table: GlobalPtr<'k, u32>,
    pub(super) q_tile: SharedTile<'k, E>,
    pub(super) k_tile: SharedTile<'k, E>,
    pub(super) v_tile: SharedTile<'k, E>,
    pub(super) q_map: TensorMap<'k>,
    pub(super) k_map: TensorMap<'k>,
    pub(super) v_map: TensorMap<'k>,
    pub(super) out_tile: SharedTile<'k, E>,
    pub(super) out_map: TensorMap<'k>,
    pub(super) q_ring: Pipeline<'k>,
    pub(super) k_ring: Pipeline<'k>,
    pub(super) v_ring: Pipeline<'k>,
}

pub(super) fn body<E: MmaElement + WgmmaElement>(k: &KernelBuilder, levers: &Config, shape: &Shape) {
    k.min_blocks_per_sm(1);
    let (rows, cols) = (levers.rows, levers.cols);
    let q_tile = k.shared_tile::<E>("q_tile", slabs(rows, shape.head_dim).stages(levers.q_stages(shape)));
    let k_tile = k.shared_tile::<E>("k_tile", slabs(cols, shape.head_dim).stages(levers.stages));
    let v_tile = k.shared_tile::<E>("v_tile", slabs(cols, shape.head_dim_v).stages(levers.stages));
    let out_tile = k.shared_tile::<E>(
        "out_tile",
        one_slab(rows, shape.head_dim_v).stages(levers.out_slabs(shape)),
    );
    // Boxes of rows by one head of one batch; a warp stores its own rows.
    let q_map = k.param_tensor_map("q", q_tile.tensor_box(&[rows, 1, 1]));
    let k_map = k.param_tensor_map("k", k_tile.tensor_box(&[cols, 1, 1]));
    let v_map = k.param_tensor_map("v", v_tile.tensor_box(&[cols, 1, 1]));
    let out_map = k.param_tensor_map_mut("out", out_tile.tensor_box(&[16, 1, 1]));
    let params = RowParams::declare(k, shape);
    let shared = Shared {
        params: &params,
        levers,
        shape,
        table: k.param_ptr("table"),
        q_tile,
        k_tile,
        v_tile,
        out_tile,
        out_map,
        q_map,
        k_map,
        v_map,
        q_ring: k.pipeline("q", levers.q_stages(shape), 4 * levers.warpgroups()),
        k_ring: k.pipeline("k", levers.stages, 4 * levers.warpgroups()),
        v_ring: k.pipeline("v", levers.stages, 4 * levers.warpgroups()),
    };
    k.start_pipelines(&[shared.q_ring, shared.k_ring, shared.v_ring]);
    let (copy_registers, math_registers) = levers.registers();
    k.roles(vec![
        Role::new("copies", 4, || shared.copies(k)).registers(copy_registers),
        Role::new("math", 4 * levers.warpgroups(), || shared.math(k)).registers(math_registers),
    ]);
}

impl<'k, E: MmaElement + WgmmaElement> Shared<'k, '_, E> {
    /// What a warpgroup does: tile of rows by tile of rows, and in each tile of keys by tile of keys.
    ///
    /// Scores are a turn ahead of the output: while the products of a turn run, those of scores and output
    /// together, another warpgroup is at its softmax. So it is from one tile of rows to the next: the first scores of the
    /// next go with the last output of this one.
    #[track_caller]
    fn math(&self, k: &'k KernelBuilder) {
        let group = Warpgroup::new(k, self);
        let list = List::new(k, self.table, self.levers.rows);
        // Whether the first scores of the tile at hand have been computed with the tile before.
        let ahead = k.var(0u32);
        k.loop_(|scope| {
            let work = list.this();
            let keys = group.keys(&work);
            k.if_(ahead.get().eq(0).uniform(), || group.begin(&keys));
            k.if_(keys.any().uniform(), || group.tile(&work, &keys));
            let more = list.has_next();
            let overlap = more & keys.any() & group.keys(&list.next()).unseen.eq(0);
            group.change_tiles(&keys, overlap);
            k.if_(keys.any().uniform(), || group.store(&work));
            ahead.set(overlap.select(1u32, 0u32));
            list.advance();
            scope.break_if((!more).uniform());
        });
        group.end();
    }

    /// The tiles of keys that a tile of rows sees.
    #[track_caller]
    pub(super) fn sequence(&self, work: &Work<'k>) -> TileSequence<'k> {
        let last = (work.first_row + (self.levers.rows - 1)).min(self.params.seq_len_q - 1);
        let rows = Rows {
            first: work.first_row,
            last,
            first_masked: false,
            downwards: true,
        };
        TileSequence::new(self.params, &rows, self.levers.cols)
    }

    /// Turns that a tile of rows takes: one even where no key is seen, of which the mask leaves nothing.
    #[track_caller]
    pub(super) fn turns(&self, sequence: &TileSequence<'k>) -> Val<'k, i32> {
        sequence.turns.max(1)
    }
}
