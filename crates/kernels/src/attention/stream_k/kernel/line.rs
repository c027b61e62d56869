//! The line: the tiles of all sequences and heads, in the order sequence, K/V head, row tile, head.

use flashcore_ir::Val;

use super::{Context, ROW_TILE_WORDS};
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

    /// A number divided by [`Self::sharing`].
    #[track_caller]
    fn by_sharing(&self, number: Val<'k, u32>) -> Val<'k, u32> {
        match self.tiles.heads {
            TileHeads::One => self.by_group.quotient(number),
            TileHeads::Dense | TileHeads::Warpgroups(_) => number,
        }
    }

    /// The tile of a head of a sequence that has one row tile.
    #[track_caller]
    fn alone(&self, row_tile: Val<'k, u32>, head: impl FnOnce([Val<'k, u32>; 2]) -> Val<'k, u32>) -> LineTile<'k> {
        let before = self.cost_before(row_tile);
        let cost = (self.cost_before(row_tile + 1) - before).max(1);
        let start = before * self.heads;
        let head = head([start, cost]);
        LineTile {
            batch: self.row_tiles.load(row_tile * ROW_TILE_WORDS) & 0xffff,
            in_sequence: self.k.constant(0),
            head,
            number: row_tile.fma(self.heads, head),
            start: head.fma(cost, start),
            cost,
        }
    }

    /// A tile of the sequence that a row tile is of. `of_sequence` gives the K/V head, the row tile and the head among
    /// those that share K and V, from the first row tile of the sequence on, how many it has, and the cost before and
    /// of them.
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
        let (heads, sharing) = (self.heads, self.sharing());
        // Of any head: some row tile of the sequence.
        let some = self.row_tile_at(self.by_heads.quotient(position), row_tiles);
        if self.tiles.one_each {
            return self.alone(some, |[start, cost]| (position - start) / cost);
        }
        self.line_tile(some, |[_, _, before, cost]| {
            let past = position - before * heads;
            let kv_head = past / (cost * sharing);
            let past = past - kv_head * (cost * sharing);
            let row_tile = self.row_tile_at(before + self.by_sharing(past), row_tiles);
            let tile_before = self.cost_before(row_tile);
            let cost = (self.cost_before(row_tile + 1) - tile_before).max(1);
            [kv_head, row_tile, (past - (tile_before - before) * sharing) / cost]
        })
    }

    /// The tile of a number.
    #[track_caller]
    pub(super) fn tile_numbered(&self, number: Val<'k, u32>) -> LineTile<'k> {
        let (heads, sharing) = (self.heads, self.sharing());
        let some = self.by_heads.quotient(number);
        if self.tiles.one_each {
            return self.alone(some, |_| number - some * heads);
        }
        self.line_tile(some, |[first, count, ..]| {
            let past = number - first * heads;
            let kv_head = past / (count * sharing);
            let past = past - kv_head * (count * sharing);
            let row_tile = self.by_sharing(past);
            [kv_head, first + row_tile, past - row_tile * sharing]
        })
    }
}
