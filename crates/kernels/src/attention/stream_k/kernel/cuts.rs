//! The cuts of the line, which part it into ranges.

use flashcore_ir::Val;

use super::line::LineTile;
use super::{BEHIND, Context, ITEM, LOAD, NUMBER, POSITION, Ranges, TILES_BEFORE};
use crate::attention::scheduler::TILE_COST;
use crate::attention::stream_k::{EVEN, ROUND_TILES, UNEVEN};

impl<'k> Context<'k> {
    /// Where each range begins on the line: behind round-robin tiles, or ranges of whole tiles, one for each block
    /// that makes up for what these leave its work uneven by.
    pub(super) fn cut(&self, row_tiles: Val<'k, u32>, cost: Val<'k, u32>, largest: Val<'k, u32>) -> Ranges<'k> {
        let (k, grid) = (self.k, self.grid);
        let total = cost * self.heads;
        // Whole numbers: a share of a share is the share of the product.
        let share = self.by_grid.quotient(total);
        let each = (share + (share * grid).ne(total).select(1u32, 0u32)).max(self.least);
        let of_largest = share / largest;
        let ranges = if self.tiles.one_each {
            Ranges {
                round_robin: of_largest,
                rounds: k.constant(1),
                whole: k.constant(0),
            }
        } else {
            self.rounds(row_tiles, cost, largest, of_largest)
        };
        let last_round = k.var(0u32);
        k.if_(ranges.round_robin.ne(0).uniform(), || {
            if !self.tiles.one_each {
                self.add_round_robin(ranges.round_robin);
            }
            let (next, all) = (ranges.round_robin * grid, row_tiles * self.heads);
            let start = self.tile_numbered(next.min(all.max(1) - 1)).start;
            last_round.set(next.eq(all).select(total, start));
        });
        if !self.tiles.one_each {
            k.if_(ranges.whole.ne(0).uniform(), || {
                last_round.set(self.cut_rounds(row_tiles, total, ranges));
            });
        }
        let is_even = (ranges.round_robin | ranges.whole).eq(0);
        let alike = self.alike(row_tiles, [cost, largest, each], ranges);
        let first_left = last_round.get();
        k.for_uniform(0, grid, self.threads, |first| {
            let i = first + k.thread_idx();
            let exists = i.lt(grid);
            let position = k.var(i * each);
            k.if_((!is_even).uniform(), || {
                let i = i.min(grid - 1);
                let load = k.var(0u32);
                if self.tiles.one_each {
                    // A tile is found sooner than threads that share the tiles meet.
                    k.for_uniform(0, ranges.round_robin, 1, |round| {
                        load.add_assign(self.tile_numbered(round.fma(grid, i)).cost);
                    });
                } else {
                    load.set(self.cuts.at(LOAD, i).load());
                    k.for_uniform(0, ranges.rounds - 1, 1, |round| {
                        let begins = |i| self.cuts.at(POSITION, i).load();
                        let range = round.fma(grid, i);
                        load.add_assign(begins(range + 1) - begins(range));
                    });
                }
                let left = (each.max(load.get()) - load.get()).max(self.least);
                let sum = self.prefix_sum(exists.select(left, 0u32));
                position.set(last_round + sum.before);
                last_round.add_assign(sum.all);
            });
            k.if_(alike.exist.uniform(), || position.set(alike.cut(i, first_left)));
            // The first cut of the last round is there already where there are others before it, and read.
            let is_new = exists & (i.ne(0) | ranges.whole.eq(0));
            k.if_(is_new.divergent(), || {
                self.cut_tile(i, position.get().min(total), total, row_tiles, ranges);
            });
        });
        let (last, all) = (ranges.whole + grid, row_tiles * self.heads);
        k.if_(k.thread_idx().eq(0).divergent(), || {
            self.cuts.at(POSITION, last).store(total);
        });
        // Also for searches, which read behind the last cut.
        let end = self.tiles.most_ranges + BEHIND;
        k.for_divergent(last + k.thread_idx(), end, self.threads, |i| {
            self.cuts.at(NUMBER, i).store(u32::MAX);
            self.cuts.at(TILES_BEFORE, i).store(all);
        });
        ranges
    }

    /// Whether and how tiles are cut that all cost the same. With ranges of equal length in their place, some blocks
    /// would have pieces of two tiles, and pieces of several heads would begin at different keys.
    fn alike(
        &self,
        row_tiles: Val<'k, u32>,
        [cost, largest, each]: [Val<'k, u32>; 3],
        ranges: Ranges<'k>,
    ) -> Alike<'k> {
        let all = row_tiles * self.heads;
        let left = all - (ranges.round_robin * self.grid).min(all);
        let pieces = (self.grid / left.max(1)).max(1);
        let piece = (largest - TILE_COST as u32 + (pieces - 1)) / pieces;
        let piece = piece.max(self.least);
        let is_short = ranges.round_robin.fma(largest, piece).le(each + each / UNEVEN);
        Alike {
            exist: cost.eq(row_tiles * largest) & ranges.whole.eq(0) & left.ne(0) & is_short,
            cost: largest,
            pieces,
            piece,
        }
    }

    /// How many rounds there are, and whether tiles go round-robin. A block's share of the costs is that of so many of
    /// the largest tiles.
    fn rounds(
        &self,
        row_tiles: Val<'k, u32>,
        cost: Val<'k, u32>,
        largest: Val<'k, u32>,
        of_largest: Val<'k, u32>,
    ) -> Ranges<'k> {
        let rounds = (of_largest / ROUND_TILES).max(1).min(self.most_rounds);
        // Whether the mean cost is this much or more.
        let even = (largest * EVEN[0] + (EVEN[1] - 1)) / EVEN[1];
        let is_even = rounds.eq(1) | cost.ge(row_tiles * even);
        let rounds = is_even.select(1u32, rounds);
        Ranges {
            round_robin: is_even.select(of_largest, 0u32),
            rounds,
            whole: (rounds - 1) * self.grid,
        }
    }

    /// The cuts of all rounds but the last, at ends of tiles; returns where the last round begins.
    fn cut_rounds(&self, row_tiles: Val<'k, u32>, total: Val<'k, u32>, ranges: Ranges<'k>) -> Val<'k, u32> {
        let k = self.k;
        let each = total / (ranges.rounds * self.grid);
        k.for_divergent(k.thread_idx(), ranges.whole + 1, self.threads, |i| {
            let position = i * each;
            let tile = self.tile_at(position, row_tiles);
            let past = position - tile.start;
            let to_end = (past + past).gt(tile.cost);
            let number = tile.number + to_end.select(1u32, 0u32);
            self.store_cut(i, [tile.start + to_end.select(tile.cost, 0u32), number + i, number]);
        });
        k.barrier();
        self.cuts.at(POSITION, ranges.whole).load()
    }

    /// Adds up what the round-robin tiles of each block cost.
    fn add_round_robin(&self, round_robin: Val<'k, u32>) {
        let (k, grid) = (self.k, self.grid);
        k.for_divergent(k.thread_idx(), round_robin * grid, self.threads, |number| {
            let cost = self.tile_numbered(number).cost;
            let block = number - self.by_grid.quotient(number) * grid;
            self.cuts.at(LOAD, block).reduce_add(cost);
        });
        k.barrier();
    }

    #[track_caller]
    fn store_cut(&self, i: Val<'k, u32>, [position, number, tiles_before]: [Val<'k, u32>; 3]) {
        for (row, word) in [(POSITION, position), (NUMBER, number), (TILES_BEFORE, tiles_before)] {
            self.cuts.at(row, i).store(word);
        }
    }

    /// A cut of the last round, that of block `i`, which may leave a tile in pieces.
    #[track_caller]
    fn cut_tile(
        &self,
        i: Val<'k, u32>,
        position: Val<'k, u32>,
        total: Val<'k, u32>,
        row_tiles: Val<'k, u32>,
        ranges: Ranges<'k>,
    ) {
        let LineTile {
            number, start, cost, ..
        } = self.tile_at(position, row_tiles);
        let past = position - start;
        let (done, blocks) = (past.max(TILE_COST as u32) - TILE_COST as u32, cost - TILE_COST as u32);
        // No piece of a split is long enough.
        let least = match self.splits {
            None => self.least,
            Some(_) => self.k.constant(u32::MAX),
        };
        let (short_first, short_rest) = (done.lt(least), (blocks - done).lt(least));
        let in_first_half = (past + past).le(cost);
        let to_end = short_rest & !(short_first & in_first_half);
        let to_start = short_first & !to_end;
        let cut = to_end.select(start + cost, to_start.select(start, position));
        let here = number + to_end.select(1u32, 0u32);
        let before = number + to_start.select(0u32, 1u32);
        // At the end of the line no tile begins.
        let (ends, all) = (position.eq(total), row_tiles * self.heads);
        let [cut, here, before] = [(total, cut), (all, here), (all, before)].map(|(end, word)| ends.select(end, word));
        let range = ranges.whole + i;
        self.store_cut(range, [cut, here + range, before]);
        // Where a block has one range, as many items are before its own as tiles and cuts before it.
        let first_item = ranges.round_robin.fma(i + 1, here - ranges.round_robin * self.grid) + i;
        self.cuts.at(ITEM, i).store(first_item);
    }
}

/// Tiles of the last round that all cost the same, where each is cut into as many pieces as there are blocks for it.
struct Alike<'k> {
    exist: Val<'k, bool>,
    cost: Val<'k, u32>,
    /// Pieces of a tile, and K blocks of one; the last may have fewer.
    pieces: Val<'k, u32>,
    piece: Val<'k, u32>,
}

impl<'k> Alike<'k> {
    /// Where a block's piece begins; `start` is where the first tile does.
    fn cut(&self, block: Val<'k, u32>, start: Val<'k, u32>) -> Val<'k, u32> {
        let tile = block / self.pieces;
        let piece = block - tile * self.pieces;
        let past = (piece * self.piece + TILE_COST as u32).min(self.cost);
        tile.fma(self.cost, start) + piece.eq(0).select(0u32, past)
    }
}
