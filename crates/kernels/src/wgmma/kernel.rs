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
use crate::params::{RowParams, Shape, TensorParam};
use crate::sequence::{Edges, Rows, TileSequence};
use crate::tiles::slabs;

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
    pub(super) out: Output<'k, E>,
    pub(super) q_ring: Pipeline<'k>,
    pub(super) k_ring: Pipeline<'k>,
    pub(super) v_ring: Pipeline<'k>,
}

/// How the output leaves.
pub(super) enum Output<'k, E> {
    /// Through a tile in shared memory, which is copied from there.
    Staged(SharedTile<'k, E>, TensorMap<'k>),
    /// Straight from registers, where there is no room for such a tile.
    Direct(TensorParam<'k, E>),
}

pub(super) fn body<E: MmaElement + WgmmaElement>(k: &KernelBuilder, levers: &Config, shape: &Shape) {
    k.min_blocks_per_sm(1);
    let (rows, cols) = (levers.rows, levers.cols);
    let q_tile = k.shared_tile::<E>("q_tile", slabs(rows, shape.head_dim).stages(levers.q_stages(shape)));
    let k_tile = k.shared_tile::<E>("k_tile", slabs(cols, shape.head_dim).stages(levers.stages));
    let v_tile = k.shared_tile::<E>("v_tile", slabs(cols, shape.head_dim_v).stages(levers.stages));
    let out_tile = levers
        .stages_output(shape)
        .then(|| k.shared_tile::<E>("out_tile", slabs(rows, shape.head_dim_v)));
    // Boxes of rows by one head of one batch; a warpgroup stores its own rows.
    let q_map = k.param_tensor_map("q", q_tile.tensor_box(&[rows, 1, 1]));
    let k_map = k.param_tensor_map("k", k_tile.tensor_box(&[cols, 1, 1]));
    let v_map = k.param_tensor_map("v", v_tile.tensor_box(&[cols, 1, 1]));
    let out = match out_tile {
        Some(tile) => Output::Staged(tile, k.param_tensor_map_mut("out", tile.tensor_box(&[64, 1, 1]))),
        None => Output::Direct(TensorParam::declare(k, "out", k.param_ptr_mut("out"))),
    };
    let params = RowParams::declare(k, shape);
    let shared = Shared {
        params: &params,
        levers,
        shape,
        table: k.param_ptr("table"),
        q_tile,
        k_tile,
        v_tile,
        out,
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
        group.begin();
        k.loop_(|scope| {
            let work = list.this();
            let sequence = self.sequence(&work);
            let key0 = |turn: Val<'k, i32>| sequence.first_key(turn, Edges::Checked);
            let masked = sequence.masked.gt(0) | sequence.turns.eq(0);
            group.first_softmax(&work, key0(k.constant(0)), masked);
            k.for_uniform(1, sequence.masked, 1, |turn| group.turn(Some((&work, key0(turn)))));
            k.for_uniform(sequence.masked.max(1), self.turns(&sequence), 1, |_| group.turn(None));
            let more = list.has_next();
            group.change_tiles(more);
            group.store(&work);
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
        };
        TileSequence::new(self.params, &rows, self.levers.cols)
    }

    /// Turns that a tile of rows takes: one even where no key is seen, of which the mask leaves nothing.
    #[track_caller]
    pub(super) fn turns(&self, sequence: &TileSequence<'k>) -> Val<'k, i32> {
        sequence.turns.max(1)
    }
}
