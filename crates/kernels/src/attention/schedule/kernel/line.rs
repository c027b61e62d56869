//! The line: the tiles of all sequences and heads, in the order sequence, K/V head, row tile, head.

use flashcore_ir::Val;

use super::{Context, ROW_TILE_WORDS};
use crate::attention::lengths::last_at_most;
use crate::attention::query_rows::TileHeads;

/// A tile, and its place on the line.
pub(super) struct LineTile<'k> {
    pub(super) batch: Val<'k, u32>,
    /// Its number among the tiles of the sequence.
    pub(super) in_sequence: Val<'k, u32>,
    /// Its number among the heads with tiles of their own.
    pub(super) head: Val<'k, u32>,
    pub(super) number: Val<'k, u32>,
    pub(super) start: Val<'k, u32>,
    pub(super) cost: Val<'k, u32>,
}

impl<'k> Context<'k> {
    /// Heads with tiles of their own that share K and V.
    fn sharing(&self) -> Val<'k, u32> {
        match self.tiles.heads {
            TileHeads::One => self.params.group_size,
            TileHeads::Dense | TileHeads::Warpgroups(_) => self.k.constant(1),
        }
    }

    /// A tile of the sequence that a row tile is of. `of_sequence` gives the K/V head, the row tile and the head among those
    /// that share K and V, from the first row tile of the sequence on, how many it has, and the cost before and of them.
    #[track_caller]
    fn line_tile(
        &self,
        row_tile: Val<'k, u32>,
        of_sequence: impl FnOnce([Val<'k, u32>; 4]) -> [Val<'k, u32>; 3],
    ) -> LineTile<'k> {
        let (heads, sharing) = (self.heads, self.sharing());
        let word = self.row_tiles.load(row_tile * ROW_TILE_WORDS);
        let (batch, first) = (word & 0xffff, row_tile - (word >> 16u32));
        let end = self.first_tiles.load(batch + 1);
        let (count, before) = ((end - first).max(1), self.cost_before(first));
        let cost_of_head = (self.cost_before(first + count) - before).max(1);
        let [kv_head, row_tile, shared] = of_sequence([first, count, before, cost_of_head]);
        let (in_sequence, tile_before) = (row_tile - first, self.cost_before(row_tile));
        let cost = (self.cost_before(row_tile + 1) - tile_before).max(1);
        let past = kv_head.fma(cost_of_head, tile_before - before);
        let tiles_before = kv_head.fma(count, in_sequence);
        LineTile {
            batch,
            in_sequence,
            head: kv_head.fma(sharing, shared),
            number: first * heads + tiles_before * sharing + shared,
            start: before * heads + past * sharing + shared * cost,
            cost,
        }
    }

    /// The tile that a position on the line is in; at the end of the line one that is none.
    #[track_caller]
    pub(super) fn tile_at(&self, position: Val<'k, u32>, row_tiles: Val<'k, u32>) -> LineTile<'k> {
        let (k, heads, sharing) = (self.k, self.heads, self.sharing());
        let row_tile_at = |cost| last_at_most(k, row_tiles.max(1), cost, |index| self.cost_before(index));
        // Of any head: some row tile of the sequence.
        self.line_tile(row_tile_at(position / heads), |[_, _, before, cost]| {
            let past = position - before * heads;
            let (kv_head, past) = (past / (cost * sharing), past % (cost * sharing));
            let row_tile = row_tile_at(before + past / sharing);
            let tile_before = self.cost_before(row_tile);
            let cost = (self.cost_before(row_tile + 1) - tile_before).max(1);
            [kv_head, row_tile, (past - (tile_before - before) * sharing) / cost]
        })
    }

    /// The tile of a number.
    #[track_caller]
    pub(super) fn tile_numbered(&self, number: Val<'k, u32>) -> LineTile<'k> {
        let (heads, sharing) = (self.heads, self.sharing());
        self.line_tile(number / heads, |[first, count, ..]| {
            let past = number - first * heads;
            let (kv_head, past) = (past / (count * sharing), past % (count * sharing));
            [kv_head, first + past / sharing, past % sharing]
        })
    }
}
