//! The items of the line, each in the place of its range, and what is to be combined.

use flashcore_ir::{Cache, Val};

use super::line::LineTile;
use super::{Context, ITEM, NUMBER, POSITION, Ranges, TILES_BEFORE};
use crate::attention::lengths::SequenceSpan;
use crate::attention::query_rows::{QueryRows, TileHeads};
use crate::attention::scheduler::{Place, TILE_COST, WORDS};
use crate::attention::stream_k::{COMBINED_WORDS, FIRST_WORDS, RANGE_WORDS};

impl<'k> Context<'k> {
    /// The first tile of a range, and its items.
    #[track_caller]
    fn tiles_of(&self, range: Val<'k, u32>) -> [Val<'k, u32>; 2] {
        let word = |row: u32, i| self.cuts.at(row, i).load();
        let first = word(NUMBER, range) - range;
        [first, word(TILES_BEFORE, range + 1).max(first) - first]
    }

    /// The items of each block: those of its ranges follow each other. Where blocks have several ranges, also the first
    /// item of each. And where there is nothing to combine; where there is something, a piece or a split says so.
    pub(super) fn number_items(&self, row_tiles: Val<'k, u32>, ranges: Ranges<'k>, is_last: Val<'k, bool>) {
        let (k, grid) = (self.k, self.grid);
        let store = |block: Val<'k, u32>, first: Val<'k, u32>, items: Val<'k, u32>| {
            let place = self.ranges.offset(block * RANGE_WORDS);
            place.store_words(&[first, first + items], Cache::Default);
            // A main kernel loads a first item whether there is one or not.
            k.if_(items.eq(0).divergent(), || {
                self.store_first(block, &[k.constant(0u32); FIRST_WORDS as usize])
            });
        };
        let one_range = || {
            k.if_(is_last.uniform(), || {
                k.for_divergent(k.thread_idx(), grid, self.threads, |block| {
                    let first = self.cuts.at(ITEM, block).load() - ranges.round_robin;
                    store(block, first, ranges.round_robin + self.tiles_of(block)[1]);
                });
            });
        };
        let several = || {
            let all = k.var(0u32);
            k.for_uniform(0, grid, self.threads, |first| {
                let block = first + k.thread_idx();
                let exists = block.lt(grid);
                let block = block.min(grid - 1);
                let each_range = |body: &dyn Fn(Val<'k, u32>)| {
                    k.for_uniform(0, ranges.rounds, 1, |round| body(round.fma(grid, block)));
                };
                let items = k.var(0u32);
                each_range(&|range| items.add_assign(self.tiles_of(range)[1]));
                let sum = self.prefix_sum(exists.select(items.get(), 0u32));
                let first = all + sum.before;
                k.if_(exists.divergent(), || {
                    k.if_(is_last.uniform(), || store(block, first, items.get()));
                    let next = k.var(first);
                    each_range(&|range| {
                        self.cuts.at(ITEM, range).store(next.get());
                        next.add_assign(self.tiles_of(range)[1]);
                    });
                });
                all.add_assign(sum.all);
            });
            k.barrier();
        };
        // Sequences of one row tile each have one round.
        if self.tiles.one_each {
            one_range();
        } else {
            k.if_else(ranges.whole.eq(0).uniform(), one_range, several);
        }
        k.if_(is_last.uniform(), || match self.splits {
            None => {
                let of_blocks = || {
                    k.for_divergent(k.thread_idx(), grid, self.threads, |block| {
                        self.nothing_to_combine(block, !self.begins_pieces(block, ranges));
                    });
                };
                // Tiles that there are say so themselves.
                let of_tiles = || {
                    let first = row_tiles * self.heads + k.thread_idx();
                    k.for_divergent(first, self.tile_places, self.threads, |place| {
                        self.nothing_to_combine(place, k.constant(0u32).eq(0));
                    });
                };
                k.if_else(self.tile_places.eq(0).uniform(), of_blocks, of_tiles);
            }
            Some(_) => k.for_divergent(k.thread_idx(), self.batch * self.heads, self.threads, |place| {
                let batch = self.by_heads.quotient(place);
                let (params, _) = self.params.of_sequence(batch);
                let rows = self.rows_of(&params, batch, k.constant(0));
                self.nothing_to_combine(place, self.splits_of(&rows, batch).le(1));
            }),
        });
    }

    /// Writes a count of 0 where nothing is to be combined.
    fn nothing_to_combine(&self, place: Val<'k, u32>, is_so: Val<'k, bool>) {
        let nothing = [self.k.constant(0u32); COMBINED_WORDS as usize];
        self.k.if_(is_so.divergent(), || {
            let combined = self.combined.offset(place * COMBINED_WORDS);
            combined.store_words(&nothing, Cache::Default);
        });
    }

    /// Whether the last tile that begins in a block is in pieces: the next cut is inside it.
    fn begins_pieces(&self, block: Val<'k, u32>, ranges: Ranges<'k>) -> Val<'k, bool> {
        let range = ranges.whole + block;
        let [before, end] = [range, range + 1].map(|range| self.cuts.at(TILES_BEFORE, range).load());
        let next = self.cuts.at(NUMBER, range + 1).load() - (range + 1);
        next.lt(end) & next.ge(before)
    }

    /// The items, and what is to be combined.
    pub(super) fn write_items(&self, row_tiles: Val<'k, u32>, ranges: Ranges<'k>) {
        let (k, lane) = (self.k, self.k.lane());
        let round_robin = ranges.round_robin * self.grid;
        let count = row_tiles * self.heads + ranges.whole + self.grid;
        let writers = (k.grid_dim(0) - 1).max(1);
        let share = self.by_writers.quotient(count + (writers - 1));
        let first = k.block_idx(0) * share;
        let end = (first + share).min(count);
        k.for_uniform(first + (k.thread_idx() - lane), end, self.threads, |first| {
            // Tile `k` of range `i` is number `k + i` here; some are in no range. Round-robin tiles come first.
            let index = first + lane;
            let round = self.by_grid.quotient(index);
            let is_round_robin = index.lt(round_robin);
            let range = is_round_robin.select(index - round * self.grid, self.range_of_lane(first));
            let tile = is_round_robin.select(index, index - range);
            let [before, tiles_end] = [range, range + 1].map(|range| self.cuts.at(TILES_BEFORE, range).load());
            let exists = index.lt(end) & (is_round_robin | tile.lt(tiles_end));
            // No cut is inside a split.
            let begins_in = match self.splits {
                None => self.begins_in(range, tile, exists & !is_round_robin & tile.lt(before)),
                Some(_) => range,
            };
            k.if_(exists.divergent(), || {
                let first_item = self.cuts.at(ITEM, range).load();
                let in_range = first_item + (tile - self.tiles_of(range)[0]);
                let place = is_round_robin.select(first_item - ranges.round_robin + round, in_range);
                self.write_item(ranges, [place, range, tile, begins_in], is_round_robin);
            });
        });
    }

    /// The range that the tile of a lane's item begins in. Its pieces follow each other; `follows` says whether the
    /// lane's is not the first.
    fn begins_in(&self, range: Val<'k, u32>, tile: Val<'k, u32>, follows: Val<'k, bool>) -> Val<'k, u32> {
        let k = self.k;
        let (of_warp, to_own) = (follows.ballot(), self.lanes_to_own());
        // The last lane whose item does not follow, counted from the top.
        let above = k.constant(31u32) - k.lane();
        let run = (!of_warp & to_own).leading_zeros() - above;
        let begins_in = k.var(range - run);
        k.if_((of_warp & 1).ne(0).uniform(), || {
            // Of the tile of the first lane some pieces are a warp's before.
            let begins = self.rank(TILES_BEFORE, tile.shfl_idx(0)) - 1;
            let is_of_first = (of_warp & to_own).eq(to_own);
            begins_in.set(is_of_first.select(begins, begins_in.get()));
        });
        begins_in.get()
    }

    fn write_item(
        &self,
        ranges: Ranges<'k>,
        [place, range, number, begins_in]: [Val<'k, u32>; 4],
        is_round_robin: Val<'k, bool>,
    ) {
        let k = self.k;
        let tile = self.tile_numbered(number);
        // The range of K blocks on the line, after what the tile costs besides.
        let (first, end) = (tile.start + TILE_COST as u32, tile.start + tile.cost);
        let [range_begins, range_ends] = [range, range + 1].map(|range| self.cuts.at(POSITION, range).load());
        let begins = is_round_robin.select(first, range_begins.max(first));
        let ends = is_round_robin.select(end, range_ends.min(end));

        let in_sequence_rows = self.params.rows_in_sequence(tile.batch);
        let (params, _) = self.params.with_rows(in_sequence_rows);
        let (head, kv_head) = match self.tiles.heads {
            TileHeads::One => (tile.head, self.by_group.quotient(tile.head)),
            TileHeads::Dense | TileHeads::Warpgroups(_) => (tile.head * params.group_size, tile.head),
        };
        let rows = self.rows_of(&params, tile.batch, head);
        let (in_sequence, split) = self.tile_and_split(&rows, tile.in_sequence);
        let of_tile = self.tile(&params, &rows, in_sequence);
        let [first_block, _] = self.split_of(&rows, of_tile.order.count.reinterpret(), split);
        let begin = first_block + (begins - first);
        let part = of_tile.part(begin.reinterpret(), (ends - begins).reinterpret());
        let slots = match self.splits {
            None => {
                let blocks = [begins_in, range].map(|range| range - ranges.whole);
                let slots = Slots::of_piece(begins.eq(first), ends.eq(end), blocks);
                let by_tile = self.tile_places.ne(0);
                Slots {
                    place: by_tile.select(number, slots.place),
                    tells: slots.tells | by_tile & ends.eq(end),
                    ..slots
                }
            }
            Some([_, most]) => self.slots_of_split(&rows, &tile, split, most),
        };
        let at = Place {
            batch: tile.batch.reinterpret(),
            head: head.reinterpret(),
            kv_head: kv_head.reinterpret(),
            tile: in_sequence.reinterpret(),
            split: k.constant(0),
            slot: slots.own.reinterpret(),
        };
        let words = part.words(at, 0, self.tiles.cols);
        let words = words.map(Val::reinterpret);
        let of_sequence = SequenceSpan::words(k, in_sequence_rows);
        let item = self.items.offset(place * WORDS as u32);
        item.store_words(&words[..4], Cache::Default);
        item.plus(4).store_words(&words[4..], Cache::Default);
        let item_rows = self.item_rows.offset(place * SequenceSpan::WORDS);
        item_rows.store_words(&of_sequence, Cache::Default);
        let block = if self.tiles.one_each {
            range
        } else {
            range - self.by_grid.quotient(range) * self.grid
        };
        let is_first = place.eq(self.cuts.at(ITEM, block).load() - ranges.round_robin);
        k.if_(is_first.divergent(), || {
            self.store_first(block, &[&words[..], &of_sequence].concat())
        });
        k.if_(slots.tells.divergent(), || {
            let combined = [slots.count, words[0], words[1], slots.first];
            let place = self.combined.offset(slots.place * COMBINED_WORDS);
            place.store_words(&combined, Cache::Default);
        });
    }

    fn store_first(&self, block: Val<'k, u32>, words: &[Val<'k, u32>]) {
        let place = self.first_items.offset(block * FIRST_WORDS);
        for (i, words) in words.chunks(4).enumerate() {
            place.plus(4 * i as i32).store_words(words, Cache::Default);
        }
    }

    /// The slots of a tile in splits, which the first split tells the place of its sequence and head.
    fn slots_of_split(
        &self,
        rows: &QueryRows<'k>,
        tile: &LineTile<'k>,
        split: Val<'k, u32>,
        most: Val<'k, u32>,
    ) -> Slots<'k> {
        let place = tile.batch.fma(self.heads, tile.head);
        let count = self.splits_of(rows, tile.batch);
        let first = place * most;
        Slots {
            own: count.eq(1).select(0u32, first + split + 1),
            first,
            count,
            place,
            tells: split.eq(0) & count.gt(1),
        }
    }

    /// Splits of the tile of a sequence; at most 1 where it is not split.
    #[track_caller]
    fn splits_of(&self, rows: &QueryRows<'k>, batch: Val<'k, u32>) -> Val<'k, u32> {
        let first_tile = |batch| self.first_tiles.load(batch);
        let count = first_tile(batch + 1) - first_tile(batch);
        self.is_one_tile(rows).select(count, 1u32)
    }
}

/// Where the partials of a tile are.
struct Slots<'k> {
    /// The slot of this part and 1, or 0 if it is the whole tile.
    own: Val<'k, u32>,
    first: Val<'k, u32>,
    count: Val<'k, u32>,
    /// Where `combine` looks for the tile, and whether this part says that it is there.
    place: Val<'k, u32>,
    tells: Val<'k, bool>,
}

impl<'k> Slots<'k> {
    /// Of a piece that has the first or the last K block of its tile, or neither, by the blocks that the tile begins in
    /// and that the piece is in. The last piece tells the first block.
    fn of_piece(has_first: Val<'k, bool>, has_last: Val<'k, bool>, [first, block]: [Val<'k, u32>; 2]) -> Self {
        let whole = has_first & has_last;
        Slots {
            own: whole.select(0u32, first + block + 2),
            first: first + first + 1,
            count: whole.select(0u32, block - first + 1),
            place: first,
            tells: has_last & !has_first,
        }
    }
}
