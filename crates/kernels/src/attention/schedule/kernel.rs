//! The kernel: prefix sums of tiles and of costs, cuts of the line into ranges, and an item for each tile and piece.

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, SharedTile, TileShape, Val};

use super::{COMBINED_WORDS, EVEN, MOST_BLOCKS, MOST_SHARED, RANGE_WORDS, ROUND_TILES, ROW_TILE_WORDS, THREADS};
use crate::attention::block_range::BlockOrder;
use crate::attention::lengths::last_at_most;
use crate::attention::params::{RowParams, Shape};
use crate::attention::query_rows::{QueryRows, TileHeads};
use crate::attention::scheduler::{Place, TILE_COST, Tile, WORDS};

mod line;
mod scratch;
mod sums;

use line::LineTile;
use scratch::Scratch;

/// What of [`Pieces`](super::Pieces) is baked into the kernel.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    pub(super) rows: u32,
    pub(super) cols: u32,
    pub(super) heads: TileHeads,
    /// Whether a sequence of one row tile has splits of a given size in place of tiles.
    pub(super) fixed_splits: bool,
    /// Whether sequences and row tiles are few enough for shared memory.
    pub(super) few: bool,
}

impl Tiles {
    /// Rows of a sequence with those that heads share, if packed, and the same as rows of a batch's head.
    #[track_caller]
    fn rows_of<'k>(&self, params: &RowParams<'k>, batch: Val<'k, u32>, head: Val<'k, u32>) -> QueryRows<'k> {
        QueryRows::new(params, self.heads, [batch, head])
    }

    /// A tile of a sequence.
    #[track_caller]
    fn tile<'k>(&self, params: &RowParams<'k>, rows: &QueryRows<'k>, number: Val<'k, u32>) -> Tile<Val<'k, i32>> {
        let visible = |row: Val<'k, i32>| params.visible_keys(rows.query(row.reinterpret()));
        let [first, end] = [number * self.rows, rows.count].map(Val::reinterpret);
        Tile::new(visible, first, end, self.rows, self.cols)
    }

    /// Its K blocks, how many there are.
    #[track_caller]
    fn n_blocks<'k>(&self, params: &RowParams<'k>, rows: &QueryRows<'k>, number: Val<'k, u32>) -> Val<'k, u32> {
        let visible = |row: Val<'k, i32>| params.visible_keys(rows.query(row.reinterpret()));
        let [first, end] = [number * self.rows, rows.count].map(Val::reinterpret);
        let range = Tile::range(&visible, first, end, self.rows, self.cols);
        BlockOrder::descending(range).count.reinterpret()
    }
}

/// The pointers and numbers of the kernel.
struct Context<'k> {
    k: &'k KernelBuilder,
    tiles: Tiles,
    params: RowParams<'k>,
    ranges: GlobalPtr<'k, u32>,
    combined: GlobalPtr<'k, u32>,
    items: GlobalPtr<'k, u32>,
    row_tiles: Scratch<'k>,
    first_tiles: Scratch<'k>,
    batch: Val<'k, u32>,
    heads: Val<'k, u32>,
    most_row_tiles: Val<'k, u32>,
    grid: Val<'k, u32>,
    least: Val<'k, u32>,
    /// K blocks of a split, and splits of a tile at most.
    splits: Option<[Val<'k, u32>; 2]>,
    warp_sums: SharedTile<'k, u32>,
    /// Of each range of the line: where it begins, the tile there, how many tiles begin before it, and its first item.
    cuts: SharedTile<'k, u32>,
}

/// The ranges that the line is cut into: those of whole tiles, and then one for each block.
#[derive(Clone, Copy)]
struct Ranges<'k> {
    /// Tiles that each block has one by one, before all ranges.
    dealt: Val<'k, u32>,
    /// 1 if tiles are dealt.
    rounds: Val<'k, u32>,
    /// Ranges of whole tiles: those of all rounds but the last.
    whole: Val<'k, u32>,
}

/// Rows of [`Context::cuts`].
const POSITION: u32 = 0;
const TILE: u32 = 1;
const TILES_BEFORE: u32 = 2;
const ITEM: u32 = 3;
/// Of each block, in the words that its first items take later: what its dealt tiles cost.
const LOAD: u32 = ITEM;

pub(super) fn body(k: &KernelBuilder, tiles: Tiles, shape: &Shape) {
    k.min_blocks_per_sm(1);
    shape.begin_next_launch(k);
    let params = RowParams::declare(k, shape);
    let few = |words| tiles.few.then_some(words);
    let context = Context {
        k,
        tiles,
        params,
        ranges: k.param_ptr_mut("schedule_ranges"),
        combined: k.param_ptr_mut("schedule_combined"),
        items: k.param_ptr_mut("schedule_items"),
        row_tiles: Scratch::declare(k, "schedule_row_tiles", few(ROW_TILE_WORDS * (MOST_SHARED + 2))),
        first_tiles: Scratch::declare(k, "schedule_first_tiles", few(MOST_SHARED + 1)),
        batch: k.param("batch"),
        heads: k.param("heads"),
        most_row_tiles: k.param("most_row_tiles"),
        grid: k.param("grid"),
        least: k.param("least"),
        splits: tiles
            .fixed_splits
            .then(|| ["split_blocks", "most_splits"].map(|name| k.param(name))),
        warp_sums: k.shared_tile("warp_sums", TileShape::new(1, THREADS / 32)),
        cuts: k.shared_tile("cuts", TileShape::new(4, MOST_BLOCKS + 1)),
    };
    let row_tiles = context.count_row_tiles();
    k.barrier();
    let (cost, largest) = context.row_tile_costs(row_tiles);
    k.barrier();
    if tiles.fixed_splits {
        let of_heads = context.batch * context.heads;
        k.for_divergent(k.thread_idx(), of_heads, THREADS, |place| {
            context.nothing_to_combine(place)
        });
    }
    let ranges = context.cut(row_tiles, cost, largest);
    k.barrier();
    context.number_items(ranges);
    k.barrier();
    context.write_items(row_tiles, ranges);
}

impl<'k> Context<'k> {
    /// The first row tile of each sequence, and how many there are. Lengths that overlap could make more than there is
    /// room for: those beyond are left out.
    fn count_row_tiles(&self) -> Val<'k, u32> {
        let (k, most) = (self.k, self.most_row_tiles);
        let all = k.var(0u32);
        k.for_uniform(0, self.batch, THREADS, |first| {
            let batch = first + k.thread_idx();
            let exists = batch.lt(self.batch);
            let batch = batch.min(self.batch - 1);
            let (params, _) = self.params.of_sequence(batch);
            let rows = self.tiles.rows_of(&params, batch, k.constant(0));
            let tiles = (rows.count + (self.tiles.rows - 1)) / self.tiles.rows;
            let tiles = self.splits.map_or(tiles, |[blocks, _]| {
                let n_blocks = self.tiles.n_blocks(&params, &rows, k.constant(0));
                tiles.eq(1).select((n_blocks + (blocks - 1)) / blocks, tiles)
            });
            let (before, total) = self.prefix_sum(exists.select(tiles, 0u32));
            k.if_(exists.divergent(), || {
                self.first_tiles.store(batch, &[(all + before).min(most)]);
            });
            all.add_assign(total);
        });
        k.if_(k.thread_idx().eq(0).divergent(), || {
            self.first_tiles.store(self.batch, &[all.get().min(most)]);
        });
        all.get().min(most)
    }

    /// Sequence, number and cost of each row tile; returns the sum of the costs, and the largest.
    fn row_tile_costs(&self, row_tiles: Val<'k, u32>) -> (Val<'k, u32>, Val<'k, u32>) {
        let k = self.k;
        let (all, largest) = (k.var(0u32), k.var(1u32));
        k.for_uniform(0, row_tiles, THREADS, |first| {
            let index = first + k.thread_idx();
            let exists = index.lt(row_tiles);
            let index = index.min(row_tiles - 1);
            let first_tile = |batch| self.first_tiles.load(batch);
            // Of sequences with the same first tile, only the last has rows.
            let batch = last_at_most(k, self.batch, index, first_tile);
            let number = index - first_tile(batch);
            let (params, _) = self.params.of_sequence(batch);
            let rows = self.tiles.rows_of(&params, batch, k.constant(0));
            let (tile, split) = self.tile_and_split(&rows, number);
            let n_blocks = self.tiles.n_blocks(&params, &rows, tile);
            let cost = self.split_of(&rows, n_blocks, split)[1] + TILE_COST as u32;
            largest.set(largest.get().max(cost));
            let (before, total) = self.prefix_sum(exists.select(cost, 0u32));
            k.if_(exists.divergent(), || {
                let words = [number << 16u32 | batch, all + before];
                self.row_tiles.store(index * ROW_TILE_WORDS, &words);
            });
            all.add_assign(total);
        });
        // Past the last one, where all costs end.
        k.if_(k.thread_idx().lt(2).divergent(), || {
            let words = [k.constant(0), all.get()];
            let end = row_tiles + k.thread_idx();
            self.row_tiles.store(end * ROW_TILE_WORDS, &words);
        });
        (all.get(), self.block_max(largest.get()))
    }

    /// The tile that a row tile of a sequence is, or is a split of, and which split.
    #[track_caller]
    fn tile_and_split(&self, rows: &QueryRows<'k>, number: Val<'k, u32>) -> (Val<'k, u32>, Val<'k, u32>) {
        let zero = self.k.constant(0);
        if self.splits.is_none() {
            return (number, zero);
        }
        let one_tile = self.is_one_tile(rows);
        (one_tile.select(zero, number), one_tile.select(number, zero))
    }

    /// The first K block of a split of a tile of `n_blocks`, and how many it has: all of them where the tile is not split.
    fn split_of(&self, rows: &QueryRows<'k>, n_blocks: Val<'k, u32>, split: Val<'k, u32>) -> [Val<'k, u32>; 2] {
        let Some([blocks, _]) = self.splits else {
            return [self.k.constant(0), n_blocks];
        };
        let blocks = self.is_one_tile(rows).select(blocks, n_blocks);
        let first = (split * blocks).min(n_blocks - 1);
        [first, blocks.min(n_blocks - first)]
    }

    /// Whether a sequence has one row tile, which may be split, or none.
    #[track_caller]
    fn is_one_tile(&self, rows: &QueryRows<'k>) -> Val<'k, bool> {
        rows.count.le(self.tiles.rows)
    }

    /// The cost of all row tiles before one.
    #[track_caller]
    fn cost_before(&self, index: Val<'k, u32>) -> Val<'k, u32> {
        self.row_tiles.load(index * ROW_TILE_WORDS + 1)
    }

    /// Where each range begins on the line: behind tiles that are dealt, or ranges of whole tiles, one for each block that
    /// makes up for what these leave its work uneven by.
    fn cut(&self, row_tiles: Val<'k, u32>, cost: Val<'k, u32>, largest: Val<'k, u32>) -> Ranges<'k> {
        let (k, grid) = (self.k, self.grid);
        let total = cost * self.heads;
        let each = ((total + (grid - 1)) / grid).max(self.least);
        let most_rounds = k.constant(MOST_BLOCKS) / grid;
        let rounds = (total / (grid * ROUND_TILES * largest)).max(1).min(most_rounds);
        let mean = cost / row_tiles.max(1);
        let deals = rounds.eq(1) | (mean * EVEN[1]).ge(largest * EVEN[0]);
        let rounds = deals.select(1u32, rounds);
        let ranges = Ranges {
            dealt: deals.select(total / grid / largest, 0u32),
            rounds,
            whole: (rounds - 1) * grid,
        };
        let last_round = k.var(self.deal(row_tiles, total, ranges.dealt));
        k.if_(ranges.whole.ne(0).uniform(), || {
            let each = total / (rounds * grid);
            k.for_divergent(k.thread_idx(), ranges.whole + 1, THREADS, |i| {
                let position = i * each;
                let tile = self.tile_at(position, row_tiles);
                let past = position - tile.start;
                let to_end = (past + past).gt(tile.cost);
                let number = tile.number + to_end.select(1u32, 0u32);
                let words = [tile.start + to_end.select(tile.cost, 0u32), number, number];
                self.store_cut(i, words);
            });
            k.barrier();
            last_round.set(self.cuts.at(POSITION, ranges.whole).load());
        });
        k.for_uniform(0, grid, THREADS, |first| {
            let i = first + k.thread_idx();
            let exists = i.lt(grid);
            let i = i.min(grid - 1);
            let load = k.var(self.cuts.at(LOAD, i).load());
            k.for_uniform(0, rounds - 1, 1, |round| {
                let begins = |i| self.cuts.at(POSITION, i).load();
                let range = round.fma(grid, i);
                load.add_assign(begins(range + 1) - begins(range));
            });
            let left = (each.max(load.get()) - load.get()).max(self.least);
            let (before, all) = self.prefix_sum(exists.select(left, 0u32));
            let position = (last_round.get() + before).min(total);
            k.if_(exists.divergent(), || {
                self.cut_tile(ranges.whole + i, position, total, row_tiles);
                if self.splits.is_none() {
                    self.nothing_to_combine(i);
                }
            });
            last_round.add_assign(all);
        });
        k.if_(k.thread_idx().eq(0).divergent(), || {
            let all = row_tiles * self.heads;
            self.store_cut(ranges.whole + grid, [total, all, all]);
        });
        ranges
    }

    fn nothing_to_combine(&self, place: Val<'k, u32>) {
        let nothing = [self.k.constant(0u32); COMBINED_WORDS as usize];
        let combined = self.combined.offset(place * COMBINED_WORDS);
        combined.store_words(&nothing, Cache::Default);
    }

    /// Adds up what the dealt tiles of each block cost; returns where the line begins that is left.
    fn deal(&self, row_tiles: Val<'k, u32>, total: Val<'k, u32>, dealt: Val<'k, u32>) -> Val<'k, u32> {
        let (k, grid, all) = (self.k, self.grid, row_tiles * self.heads);
        k.for_divergent(k.thread_idx(), grid, THREADS, |block| {
            self.cuts.at(LOAD, block).store(0u32)
        });
        k.barrier();
        k.for_divergent(k.thread_idx(), dealt * grid, THREADS, |number| {
            let cost = self.tile_numbered(number).cost;
            self.cuts.at(LOAD, number % grid).reduce_add(cost);
        });
        k.barrier();
        let next = dealt * grid;
        let start = self.tile_numbered(next.min(all.max(1) - 1)).start;
        next.eq(all).select(total, start)
    }

    #[track_caller]
    fn store_cut(&self, i: Val<'k, u32>, [position, tile, tiles_before]: [Val<'k, u32>; 3]) {
        for (row, word) in [(POSITION, position), (TILE, tile), (TILES_BEFORE, tiles_before)] {
            self.cuts.at(row, i).store(word);
        }
    }

    /// A cut that may leave a tile in pieces.
    #[track_caller]
    fn cut_tile(&self, i: Val<'k, u32>, position: Val<'k, u32>, total: Val<'k, u32>, row_tiles: Val<'k, u32>) {
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
        let words = [
            ends.select(total, cut),
            ends.select(all, here),
            ends.select(all, before),
        ];
        self.store_cut(i, words);
    }

    /// The last block whose range in the last round begins at a position or before.
    #[track_caller]
    fn block_at(&self, position: Val<'k, u32>, ranges: Ranges<'k>) -> Val<'k, u32> {
        let begins = |i| self.cuts.at(POSITION, ranges.whole + i).load();
        last_at_most(self.k, self.grid, position, begins)
    }

    /// The first item of each range, and the items of each block: those of its ranges follow each other.
    fn number_items(&self, ranges: Ranges<'k>) {
        let (k, grid) = (self.k, self.grid);
        let word = |row: u32, i| self.cuts.at(row, i).load();
        let count = |i: Val<'k, u32>| {
            let first = word(TILE, i);
            word(TILES_BEFORE, i + 1).max(first) - first
        };
        let all = k.var(0u32);
        k.for_uniform(0, grid, THREADS, |first| {
            let i = first + k.thread_idx();
            let exists = i.lt(grid);
            let i = i.min(grid - 1);
            let items = k.var(ranges.dealt);
            let each_range = |body: &dyn Fn(Val<'k, u32>)| {
                k.for_uniform(0, ranges.rounds, 1, |round| body(round.fma(grid, i)));
            };
            each_range(&|range| items.add_assign(count(range)));
            let (before, total) = self.prefix_sum(exists.select(items.get(), 0u32));
            let first = all + before;
            k.if_(exists.divergent(), || {
                let words = [first, first + items];
                self.ranges.offset(i * RANGE_WORDS).store_words(&words, Cache::Default);
                let next = k.var(first + ranges.dealt);
                each_range(&|range| {
                    self.cuts.at(ITEM, range).store(next.get());
                    next.add_assign(count(range));
                });
            });
            all.add_assign(total);
        });
    }

    /// The items, and what is to be combined.
    fn write_items(&self, row_tiles: Val<'k, u32>, ranges: Ranges<'k>) {
        let (k, heads) = (self.k, self.heads);
        k.for_divergent(k.thread_idx(), row_tiles * heads + self.grid, THREADS, |index| {
            // Tile `k` of block `i` in the last round is number `k + i` here; some are no block's.
            let block = |range: Val<'k, u32>| range.max(ranges.whole) - ranges.whole;
            let number = |range| self.cuts.at(TILE, range).load() + block(range);
            let range = last_at_most(k, ranges.whole + self.grid, index, number);
            let tile = index - block(range);
            // No range of whole tiles is before those that are dealt.
            let is_dealt = index.lt(ranges.dealt * self.grid);
            let range = is_dealt.select(index % self.grid, range);
            let exists = tile.lt(self.cuts.at(TILES_BEFORE, range + 1).load());
            k.if_((is_dealt | exists).divergent(), || {
                self.write_item(ranges, range, tile, is_dealt)
            });
        });
    }

    fn write_item(&self, ranges: Ranges<'k>, range: Val<'k, u32>, number: Val<'k, u32>, is_dealt: Val<'k, bool>) {
        let k = self.k;
        let tile = self.tile_numbered(number);
        let block = range - ranges.whole;
        // The range of K blocks on the line, after what the tile costs besides.
        let (first, end) = (tile.start + TILE_COST as u32, tile.start + tile.cost);
        let [range_begins, range_ends] = [range, range + 1].map(|range| self.cuts.at(POSITION, range).load());
        let begins = is_dealt.select(first, range_begins.max(first));
        let ends = is_dealt.select(end, range_ends.min(end));
        let whole = begins.eq(first) & ends.eq(end);
        let begins_in = self.block_at(tile.start, ranges);
        let slot = begins_in + block + 1;

        let (params, _) = self.params.of_sequence(tile.batch);
        let (head, kv_head) = match self.tiles.heads {
            TileHeads::One => (tile.head, tile.head / params.group_size),
            TileHeads::Dense | TileHeads::Warpgroups(_) => (tile.head * params.group_size, tile.head),
        };
        let rows = self.tiles.rows_of(&params, tile.batch, head);
        let (in_sequence, split) = self.tile_and_split(&rows, tile.in_sequence);
        let of_tile = self.tiles.tile(&params, &rows, in_sequence);
        let [first_block, _] = self.split_of(&rows, of_tile.order.count.reinterpret(), split);
        let begin = first_block + (begins - first);
        let part = of_tile.part(begin.reinterpret(), (ends - begins).reinterpret());
        // Of a tile in splits, the place of its head, and its splits.
        let in_splits = self.splits.map(|[_, most]| {
            let place = tile.batch.fma(self.heads, tile.head);
            let first_tile = |batch| self.first_tiles.load(batch);
            let count = first_tile(tile.batch + 1) - first_tile(tile.batch);
            (place, place * most, self.is_one_tile(&rows).select(count, 1u32))
        });
        let slot = match in_splits {
            None => whole.select(0u32, slot + 1),
            Some((_, slot, count)) => count.eq(1).select(0u32, slot + split + 1),
        };
        let place = Place {
            batch: tile.batch,
            head,
            kv_head,
            tile: in_sequence,
            split: k.constant(0u32),
            slot,
        };
        let words = part.words(place.map(Val::reinterpret), 0, self.tiles.cols);
        let words = words.map(Val::reinterpret);
        let [first_item, first_tile] = [ITEM, TILE].map(|row| self.cuts.at(row, range).load());
        let in_range = first_item + (number - first_tile);
        let place = is_dealt.select(first_item - ranges.dealt + number / self.grid, in_range);
        let item = self.items.offset(place * WORDS as u32);
        item.store_words(&words[..4], Cache::Default);
        item.plus(4).store_words(&words[4..], Cache::Default);

        // The block that a tile in pieces begins in, or the place of a head in splits, says that there is one to combine.
        let (at, pieces, slot, is_first) = match in_splits {
            None => {
                let is_first = block.eq(begins_in) & !whole;
                let pieces = self.block_at(end - 1, ranges) - block + 1;
                (block, pieces, block + block + 1, is_first)
            }
            Some((place, slot, count)) => (place, count, slot, split.eq(0) & count.gt(1)),
        };
        k.if_(is_first.divergent(), || {
            let combined = [pieces, words[0], words[1], slot];
            let place = self.combined.offset(at * COMBINED_WORDS);
            place.store_words(&combined, Cache::Default);
        });
    }
}
