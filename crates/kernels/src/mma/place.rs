//! Who computes what: the block's rows and head, the warp's part of them, and the order of the tiles of keys.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{GlobalPtr, KernelBuilder, Val};

use super::{Config, Rescale};
use crate::params::Params;

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

/// One of `count` shares of the tiles of keys.
#[derive(Clone, Copy)]
pub(super) struct Split<'k> {
    pub(super) index: Val<'k, u32>,
    pub(super) count: Val<'k, u32>,
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
        if levers.kv_warps == 1 {
            return WarpPlace {
                kv_warp: k.constant(0),
                first_row: warp * levers.rows_per_warp(),
                first_key: k.constant(0),
            };
        }
        let (row_warp, kv_warp) = (warp % levers.warps, warp / levers.warps);
        WarpPlace {
            kv_warp,
            first_row: row_warp * levers.rows_per_warp(),
            first_key: kv_warp * levers.keys_per_warp(),
        }
    }
}

/// The tiles of keys that the block's rows see, in the order they are taken: those that need a mask first
/// (at the low end, then at the high end), then those that every row sees whole.
pub(super) struct TileSequence<'k> {
    cols: u32,
    first: Val<'k, i32>,
    /// Turns that need a mask at the low end.
    masked_low: Val<'k, i32>,
    /// What takes a turn at the high end to its tile.
    high: Val<'k, i32>,
    /// What takes an unmasked turn to its tile.
    whole: Val<'k, i32>,
    /// Turns that need a mask.
    pub(super) masked: Val<'k, i32>,
    pub(super) turns: Val<'k, i32>,
}

impl<'k> TileSequence<'k> {
    #[track_caller]
    pub(super) fn new<E: MmaElement>(
        k: &'k KernelBuilder,
        params: &Params<'k, E>,
        block: &Block<'k>,
        levers: &Config,
    ) -> Self {
        let last_row = (block.first_row + (levers.rows - 1)).min(block.num_rows - 1);
        let (_, first_query) = block.head_and_query(block.first_row);
        let (_, last_query) = block.head_and_query(last_row);
        // Bounds grow with the row: the first row sees the lowest key, the last row the highest.
        let (lowest, whole_end) = params.visible_keys(first_query);
        let (whole_first, highest) = params.visible_keys(last_query);
        // Keys are never negative; as unsigned numbers they are divided by a shift.
        let down = |keys: Val<'k, i32>| (keys.reinterpret::<u32>() / levers.cols).reinterpret::<i32>();
        let up = |keys: Val<'k, i32>| down(keys + (levers.cols as i32 - 1));
        let (first, end) = (down(lowest), up(highest));
        let whole = up(whole_first).max(first).min(end);
        let high = down(whole_end).max(whole).min(end);
        // The first tile sets the references, and bold rescaling does that only in masked turns.
        let whole = match levers.rescale {
            Rescale::Bold => (whole.eq(first) & high.eq(end)).select((first + 1).min(end), whole),
            Rescale::Eager | Rescale::Lazy => whole,
        };
        let masked_low = whole - first;
        let masked = masked_low + (end - high.max(whole));
        let all = TileSequence {
            cols: levers.cols,
            first,
            masked_low,
            high: high - masked_low,
            whole: whole - masked,
            masked,
            turns: (end - first).max(k.constant(0)),
        };
        match block.split {
            Some(split) => all.share(split, levers),
            None => all,
        }
    }

    /// A run of turns that is one of several shares, as equal as can be; shares may be empty.
    #[track_caller]
    fn share(self, split: Split<'k>, levers: &Config) -> Self {
        let turns = self.turns.reinterpret::<u32>();
        let each = turns / split.count;
        let rest = turns - each * split.count;
        let begin = split.index.fma(each, split.index.min(rest)).reinterpret::<i32>();
        let turns = (each + split.index.lt(rest).select(1u32, 0u32)).reinterpret::<i32>();
        let share = TileSequence {
            cols: self.cols,
            first: self.first + begin,
            masked_low: self.masked_low - begin,
            high: self.high + begin,
            whole: self.whole + begin,
            masked: (self.masked - begin).max(0).min(turns),
            turns,
        };
        if levers.rescale != Rescale::Bold {
            return share;
        }
        // Every share has a first tile that sets the references.
        let none_masked = share.masked.eq(0) & turns.gt(0);
        TileSequence {
            first: none_masked.select(share.whole, share.first),
            masked_low: none_masked.select(1, share.masked_low),
            masked: none_masked.select(1, share.masked),
            ..share
        }
    }

    /// First key of the tile of a turn.
    #[track_caller]
    pub(super) fn first_key(&self, turn: Val<'k, i32>, edges: Edges) -> Val<'k, u32> {
        let base = match edges {
            Edges::Whole => self.whole,
            Edges::Checked => {
                let masked = turn.lt(self.masked_low).select(self.first, self.high);
                turn.lt(self.masked).select(masked, self.whole)
            }
        };
        (turn + base).reinterpret::<u32>() * self.cols
    }
}

/// Whether a tile may reach past what its rows see or what there is.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Edges {
    Checked,
    Whole,
}
