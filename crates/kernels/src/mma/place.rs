//! Who computes what: the block's rows and head, the warp's part of them and of the keys.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{GlobalPtr, KernelBuilder, Val};

use super::{Config, Rescale};
use crate::params::Params;
use crate::sequence::{Rows, Split, TileSequence};

/// The block's query rows and head.
///
/// Packed, a row is a query row of one of the heads that share K and V: row `i` is query row
/// `i / group_size` of head `i % group_size` of the group.
pub(super) struct Block<'k> {
    pub(super) batch: Val<'k, u32>,
    /// First of the heads whose rows these are.
    pub(super) head: Val<'k, u32>,
    pub(super) kv_head: Val<'k, u32>,
    pub(super) first_row: Val<'k, u32>,
    /// Rows there are, of all tiles.
    pub(super) num_rows: Val<'k, u32>,
    /// Query heads to a row's index, if packed.
    pub(super) packed: Option<Val<'k, u32>>,
    /// The block's share of the tiles of keys, if others have some too.
    pub(super) split: Option<Split<'k>>,
}

impl<'k> Block<'k> {
    /// The grid is (heads of a group, tiles of rows, groups): heads whose K and V fit into the L2 cache
    /// together run together, and the tiles with the most keys (the last, if causal) first. Where the keys are
    /// split, it is (heads, tiles of rows, splits).
    #[track_caller]
    pub(super) fn new<E: MmaElement>(k: &'k KernelBuilder, params: &Params<'k, E>, levers: &Config) -> Self {
        let tile = k.grid_dim(1) - 1 - k.block_idx(1);
        let split = (levers.splits > 1).then(|| Split {
            index: k.block_idx(2),
            count: k.grid_dim(2),
        });
        let index = match split {
            Some(_) => k.block_idx(0),
            None => k.block_idx(2).fma(k.grid_dim(0), k.block_idx(0)),
        };
        let first_row = tile * levers.rows;
        if levers.pack_heads {
            let kv_heads = params.num_heads / params.group_size;
            let kv_head = index % kv_heads;
            return Block {
                batch: index / kv_heads,
                head: kv_head * params.group_size,
                kv_head,
                first_row,
                num_rows: params.seq_len_q * params.group_size,
                packed: Some(params.group_size),
                split,
            };
        }
        let head = index % params.num_heads;
        Block {
            batch: index / params.num_heads,
            head,
            kv_head: head / params.group_size,
            first_row,
            num_rows: params.seq_len_q,
            packed: None,
            split,
        }
    }

    /// Head and query row of one of the block's rows.
    #[track_caller]
    pub(super) fn head_and_query(&self, row: Val<'k, u32>) -> (Val<'k, u32>, Val<'k, u32>) {
        match self.packed {
            Some(group) => (self.head + row % group, row / group),
            None => (self.head, row),
        }
    }

    /// The tiles of keys that its rows see, or its share of them.
    #[track_caller]
    pub(super) fn tiles<E: MmaElement>(&self, params: &Params<'k, E>, levers: &Config) -> TileSequence<'k> {
        let last_row = (self.first_row + (levers.rows - 1)).min(self.num_rows - 1);
        let rows = Rows {
            first: self.head_and_query(self.first_row).1,
            last: self.head_and_query(last_row).1,
            // The first tile sets the references, and bold rescaling does that only in masked turns.
            first_masked: levers.rescale == Rescale::Bold,
            downwards: false,
        };
        let all = TileSequence::new(params, &rows, levers.cols);
        match self.split {
            Some(split) => all.share(split, rows.first_masked),
            None => all,
        }
    }

    /// Where a row of Q begins, and whether there is one.
    #[track_caller]
    pub(super) fn query_row<E: MmaElement>(
        &self,
        params: &Params<'k, E>,
        row: Val<'k, u32>,
    ) -> (GlobalPtr<'k, E>, Val<'k, bool>) {
        let (head, query) = self.head_and_query(row);
        (
            params.q.row(params.q.head(self.batch, head), query),
            row.lt(self.num_rows),
        )
    }
}

/// A warp's part of the block's rows and of each tile's keys.
pub(super) struct WarpPlace<'k> {
    /// Number along the keys.
    pub(super) kv_warp: Val<'k, u32>,
    /// First row, within the block.
    pub(super) first_row: Val<'k, u32>,
    /// First key, within a tile.
    pub(super) first_key: Val<'k, u32>,
}

impl<'k> WarpPlace<'k> {
    #[track_caller]
    pub(super) fn new(k: &'k KernelBuilder, levers: &Config) -> Self {
        // The same in every lane; read from one, so that the compiler knows.
        let warp = (k.thread_idx() / 32u32).shfl_idx(0u32);
        let (row_warp, kv_warp) = match levers.kv_warps {
            1 => (warp, k.constant(0)),
            _ => (warp % levers.warps, warp / levers.warps),
        };
        WarpPlace {
            kv_warp,
            first_row: row_warp * levers.rows_per_warp(),
            first_key: kv_warp * levers.keys_per_warp(),
        }
    }
}
