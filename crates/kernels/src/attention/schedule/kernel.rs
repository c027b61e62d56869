//! The kernel: prefix sums of tiles and of costs, cuts of the line, and an item for each tile and piece.

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, SharedTile, TileShape, Val};

use super::{COMBINED_WORDS, MOST_BLOCKS, RANGE_WORDS, ROW_TILE_WORDS, THREADS};
use crate::attention::block_range::BlockOrder;
use crate::attention::params::{RowParams, Shape};
use crate::attention::query_rows::{QueryRows, TileHeads};
use crate::attention::scheduler::{Place, TILE_COST, Tile, WORDS};

/// What of [`Pieces`](super::Pieces) is baked into the kernel.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    pub(super) rows: u32,
    pub(super) cols: u32,
    pub(super) heads: TileHeads,
}

impl Tiles {
    /// Rows of a sequence with those that heads share, if packed, and the same as rows of a batch's head.
    #[track_caller]
    fn rows_of<'k>(&self, params: &RowParams<'k>, batch: Val<'k, u32>, head: Val<'k, u32>) -> QueryRows<'k> {
        QueryRows::new(self.heads, [batch, head], params.seq_len_q, params.group_size)
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
    row_tiles: GlobalPtr<'k, u32>,
    first_tiles: GlobalPtr<'k, u32>,
    batch: Val<'k, u32>,
    heads: Val<'k, u32>,
    most_row_tiles: Val<'k, u32>,
    grid: Val<'k, u32>,
    least: Val<'k, u32>,
    warp_sums: SharedTile<'k, u32>,
    /// Of each cut of the line: where it is, the tile there, and how many tiles begin before it.
    cuts: SharedTile<'k, u32>,
}

/// Rows of [`Context::cuts`].
const POSITION: u32 = 0;
const TILE: u32 = 1;
const TILES_BEFORE: u32 = 2;

pub(super) fn body(k: &KernelBuilder, tiles: Tiles, shape: &Shape) {
    k.min_blocks_per_sm(1);
    let params = RowParams::declare(k, shape);
    let context = Context {
        k,
        tiles,
        params,
        ranges: k.param_ptr_mut("schedule_ranges"),
        combined: k.param_ptr_mut("schedule_combined"),
        items: k.param_ptr_mut("schedule_items"),
        row_tiles: k.param_ptr_mut("schedule_row_tiles"),
        first_tiles: k.param_ptr_mut("schedule_first_tiles"),
        batch: k.param("batch"),
        heads: k.param("heads"),
        most_row_tiles: k.param("most_row_tiles"),
        grid: k.param("grid"),
        least: k.param("least"),
        warp_sums: k.shared_tile("warp_sums", TileShape::new(1, THREADS / 32)),
        cuts: k.shared_tile("cuts", TileShape::new(3, MOST_BLOCKS + 1)),
    };
    let row_tiles = context.count_row_tiles();
    k.barrier();
    let cost = context.row_tile_costs(row_tiles);
    k.barrier();
    context.cut(row_tiles, cost);
    k.barrier();
    context.write_items(row_tiles);
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
            let rows = self.tiles.rows_of(&params, batch, k.constant(0)).count;
            let tiles = (rows + (self.tiles.rows - 1)) / self.tiles.rows;
            let (before, total) = self.prefix_sum(exists.select(tiles, 0u32));
            k.if_(exists.divergent(), || {
                self.first_tiles.offset(batch).store((all + before).min(most));
            });
            all.add_assign(total);
        });
        all.get().min(most)
    }

    /// Sequence, number and cost of each row tile; returns the sum of the costs.
    fn row_tile_costs(&self, row_tiles: Val<'k, u32>) -> Val<'k, u32> {
        let k = self.k;
        let all = k.var(0u32);
        k.for_uniform(0, row_tiles, THREADS, |first| {
            let index = first + k.thread_idx();
            let exists = index.lt(row_tiles);
            let index = index.min(row_tiles - 1);
            let first_tile = |batch| self.first_tiles.offset(batch).load();
            // Of sequences with the same first tile, only the last has rows.
            let batch = last_at_most(k, self.batch, index, first_tile);
            let number = index - first_tile(batch);
            let (params, _) = self.params.of_sequence(batch);
            let rows = self.tiles.rows_of(&params, batch, k.constant(0));
            let cost = self.tiles.n_blocks(&params, &rows, number) + TILE_COST as u32;
            let (before, total) = self.prefix_sum(exists.select(cost, 0u32));
            k.if_(exists.divergent(), || {
                let words = [number << 16u32 | batch, all + before];
                self.row_tile(index).store_words(&words, Cache::Default);
            });
            all.add_assign(total);
        });
        // Past the last one, where all costs end.
        k.if_(k.thread_idx().lt(2).divergent(), || {
            let words = [k.constant(0), all.get()];
            let end = self.row_tile(row_tiles + k.thread_idx());
            end.store_words(&words, Cache::Default);
        });
        all.get()
    }

    #[track_caller]
    fn row_tile(&self, index: Val<'k, u32>) -> GlobalPtr<'k, u32> {
        self.row_tiles.offset(index * ROW_TILE_WORDS)
    }

    /// The cost of all row tiles before one.
    #[track_caller]
    fn cost_before(&self, index: Val<'k, u32>) -> Val<'k, u32> {
        self.row_tile(index).plus(1).load()
    }

    /// Where each block's range begins on the line: cut `i` before block `i`, the last one at the end.
    fn cut(&self, row_tiles: Val<'k, u32>, cost: Val<'k, u32>) {
        let (k, heads) = (self.k, self.heads);
        let total = cost * heads;
        let each = ((total + (self.grid - 1)) / self.grid).max(self.least);
        k.for_divergent(k.thread_idx(), self.grid + 1, THREADS, |i| {
            let position = (i * each).min(total);
            let at_most = position / heads;
            let row_tile = last_at_most(k, row_tiles.max(1), at_most, |index| self.cost_before(index));
            let before = self.cost_before(row_tile);
            let cost = (self.cost_before(row_tile + 1) - before).max(1);
            // At the end of the line it is the head past the last.
            let past = position - before * heads;
            let (head, past) = (past / cost, past % cost);
            let tile = row_tile.fma(heads, head);
            let start = position - past;
            let (done, blocks) = (past.max(TILE_COST as u32) - TILE_COST as u32, cost - TILE_COST as u32);
            let (short_first, short_rest) = (done.lt(self.least), (blocks - done).lt(self.least));
            let in_first_half = (past + past).le(cost);
            let to_end = short_rest & !(short_first & in_first_half);
            let to_start = short_first & !to_end;
            let cut = to_end.select(start + cost, to_start.select(start, position));
            let here = tile + to_end.select(1u32, 0u32);
            let before = tile + to_start.select(0u32, 1u32);
            // At the end of the line no tile begins.
            let ends = position.eq(total);
            let all = row_tiles * heads;
            let words = [
                (POSITION, ends.select(total, cut)),
                (TILE, ends.select(all, here)),
                (TILES_BEFORE, ends.select(all, before)),
            ];
            for (row, word) in words {
                self.cuts.at(row, i).store(word);
            }
            k.if_(i.lt(self.grid).divergent(), || {
                let nothing = [k.constant(0u32); COMBINED_WORDS as usize];
                self.combined
                    .offset(i * COMBINED_WORDS)
                    .store_words(&nothing, Cache::Default);
            });
        });
    }

    /// The last block whose range begins at a position or before.
    #[track_caller]
    fn block_at(&self, position: Val<'k, u32>) -> Val<'k, u32> {
        last_at_most(self.k, self.grid, position, |i| self.cuts.at(POSITION, i).load())
    }

    /// The items, the range of them that each block has, and what is to be combined.
    fn write_items(&self, row_tiles: Val<'k, u32>) {
        let (k, heads) = (self.k, self.heads);
        k.for_divergent(k.thread_idx(), self.grid, THREADS, |i| {
            let first = self.cuts.at(TILE, i).load() + i;
            let end = self.cuts.at(TILES_BEFORE, i + 1).load() + i;
            self.ranges
                .offset(i * RANGE_WORDS)
                .store_words(&[first, end.max(first)], Cache::Default);
        });
        k.for_divergent(k.thread_idx(), row_tiles * heads + self.grid, THREADS, |index| {
            // Tile `k` of block `i` is item `k + i`; some are no block's.
            let block = last_at_most(k, self.grid, index, |i| self.cuts.at(TILE, i).load() + i);
            let tile = index - block;
            let exists = tile.lt(self.cuts.at(TILES_BEFORE, block + 1).load());
            k.if_(exists.divergent(), || self.write_item(index, block, tile));
        });
    }

    fn write_item(&self, index: Val<'k, u32>, block: Val<'k, u32>, tile: Val<'k, u32>) {
        let (k, heads) = (self.k, self.heads);
        let (row_tile, head) = (tile / heads, tile % heads);
        let words = self.row_tile(row_tile).load_words(2, Cache::Default);
        let (batch, number, before) = (words[0] & 0xffff, words[0] >> 16u32, words[1]);
        let cost = self.cost_before(row_tile + 1) - before;
        let start = before * heads + head * cost;
        // The range of K blocks on the line, after what the tile costs besides.
        let (first, end) = (start + TILE_COST as u32, start + cost);
        let begins = self.cuts.at(POSITION, block).load().max(first);
        let ends = self.cuts.at(POSITION, block + 1).load().min(end);
        let whole = begins.eq(first) & ends.eq(end);
        let first_block = self.block_at(start);
        let slot = first_block + block + 1;

        let (params, _) = self.params.of_sequence(batch);
        let (head, kv_head) = match self.tiles.heads {
            TileHeads::One => (head, head / params.group_size),
            TileHeads::Dense | TileHeads::Warpgroups(_) => (head * params.group_size, head),
        };
        let rows = self.tiles.rows_of(&params, batch, head);
        let part = self
            .tiles
            .tile(&params, &rows, number)
            .part((begins - first).reinterpret(), (ends - begins).reinterpret());
        let place = Place {
            batch,
            head,
            kv_head,
            tile: number,
            split: k.constant(0u32),
            slot: whole.select(0u32, slot + 1),
        };
        let words = part.words(place.map(Val::reinterpret), 0, self.tiles.cols);
        let words = words.map(Val::reinterpret);
        let item = self.items.offset(index * WORDS as u32);
        item.store_words(&words[..4], Cache::Default);
        item.plus(4).store_words(&words[4..], Cache::Default);

        // The block that a tile in pieces begins in says that there is one to combine.
        let first_piece = block.eq(first_block) & !whole;
        k.if_(first_piece.divergent(), || {
            let pieces = self.block_at(end - 1) - block + 1;
            let combined = [pieces, words[0], words[1], k.constant(0)];
            self.combined
                .offset(block * COMBINED_WORDS)
                .store_words(&combined, Cache::Default);
        });
    }

    /// The sum of a number over the threads before this one, and over all.
    #[track_caller]
    fn prefix_sum(&self, value: Val<'k, u32>) -> (Val<'k, u32>, Val<'k, u32>) {
        let (k, lane, warp) = (self.k, self.k.lane(), self.k.thread_idx() / 32u32);
        let mut sum = value;
        for distance in [1, 2, 4, 8, 16] {
            let other = sum.shfl_up(distance);
            sum = sum + lane.ge(distance).select(other, 0u32);
        }
        k.if_(lane.eq(31).divergent(), || self.warp_sums.at(0, warp).store(sum));
        k.barrier();
        // There are as many warps as lanes.
        let of_warp = self.warp_sums.at(0, lane).load();
        let before = lane.lt(warp).select(of_warp, 0u32).redux_add();
        let total = of_warp.redux_add();
        // Before they are written again.
        k.barrier();
        (before + sum - value, total)
    }
}

/// The last of `count` places, of which there is one or more, whose value is at most `most`; the first if there is none.
/// Values never fall from one place to the next.
#[track_caller]
fn last_at_most<'k>(
    k: &'k KernelBuilder,
    count: Val<'k, u32>,
    most: Val<'k, u32>,
    value: impl Fn(Val<'k, u32>) -> Val<'k, u32>,
) -> Val<'k, u32> {
    let (first, left) = (k.var(0u32), k.var(count));
    k.loop_(|scope| {
        scope.break_if(left.get().le(1).uniform());
        let half = left.get() >> 1u32;
        let middle = first + half;
        first.set(value(middle).le(most).select(middle, first.get()));
        left.set(left - half);
    });
    first.get()
}
