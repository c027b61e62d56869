//! The row tiles of all sequences: of which sequence each is, and what all before it cost.

use flashcore_ir::Val;

use super::scratch::padded;
use super::{Context, ROW_TILE_WORDS};
use crate::attention::block_range::{BlockOrder, BlockRange};
use crate::attention::params::RowParams;
use crate::attention::query_rows::QueryRows;
use crate::attention::scheduler::{TILE_COST, Tile};

impl<'k> Context<'k> {
    /// The row tiles of sequences of at most one: how many there are, the sum of the costs, and the largest.
    pub(super) fn one_row_tile_each(&self) -> (Val<'k, u32>, Val<'k, u32>, Val<'k, u32>) {
        let k = self.k;
        let (tiles, all, largest) = (k.var(0u32), k.var(0u32), k.var(1u32));
        k.for_uniform(0, self.batch, self.threads, |first| {
            let batch = first + k.thread_idx();
            let cost = k.var(0u32);
            k.if_(batch.lt(self.batch).divergent(), || {
                let (params, _) = self.params.of_sequence(batch);
                let queries = [k.constant(0), params.seq_len_q - 1];
                let n_blocks = self.n_blocks_between(queries.map(|query| params.band.keys(query.reinterpret())));
                cost.set(params.seq_len_q.ne(0).select(n_blocks + TILE_COST as u32, 0u32));
            });
            let cost = cost.get();
            let exists = cost.ne(0);
            let ([costs, counts], most) = self.exchange([cost, exists.select(1u32, 0u32)], Some(cost));
            k.if_(exists.divergent(), || {
                let words = [batch, all + costs.before];
                self.row_tiles.store((tiles + counts.before) * ROW_TILE_WORDS, &words);
            });
            tiles.add_assign(counts.all);
            all.add_assign(costs.all);
            largest.set(largest.get().max(most.unwrap_or(cost)));
        });
        self.end_row_tiles(tiles.get(), all.get());
        (tiles.get(), all.get(), largest.get())
    }

    /// The first row tile of each sequence, and how many there are. Lengths that overlap could make more than there is
    /// room for: those beyond are left out.
    pub(super) fn count_row_tiles(&self) -> Val<'k, u32> {
        let (k, most) = (self.k, self.most_row_tiles);
        let all = k.var(0u32);
        k.for_uniform(0, self.batch, self.threads, |first| {
            let batch = first + k.thread_idx();
            let exists = batch.lt(self.batch);
            let tiles = k.var(0u32);
            k.if_(exists.divergent(), || {
                let (params, _) = self.params.of_sequence(batch);
                let rows = self.rows_of(&params, batch, k.constant(0));
                let count = (rows.count + (self.tiles.rows - 1)) / self.tiles.rows;
                tiles.set(self.splits.map_or(count, |[blocks, _]| {
                    let n_blocks = self.n_blocks(&params, &rows, k.constant(0));
                    count.eq(1).select((n_blocks + (blocks - 1)) / blocks, count)
                }));
            });
            let sum = self.prefix_sum(tiles.get());
            k.if_(exists.divergent(), || {
                self.first_tiles.store(batch, &[(all + sum.before).min(most)]);
            });
            all.add_assign(sum.all);
        });
        let all = all.get().min(most);
        let end = if self.tiles.few {
            padded(k, self.batch).max(self.batch + 1)
        } else {
            self.batch + 1
        };
        k.for_divergent(self.batch + k.thread_idx(), end, self.threads, |batch| {
            self.first_tiles.store(batch, &[all]);
        });
        all
    }

    /// Sequence, number and cost of each row tile; returns the sum of the costs, and the largest.
    pub(super) fn row_tile_costs(&self, row_tiles: Val<'k, u32>) -> (Val<'k, u32>, Val<'k, u32>) {
        let k = self.k;
        let (all, largest) = (k.var(0u32), k.var(1u32));
        k.for_uniform(0, row_tiles, self.threads, |first| {
            let index = first + k.thread_idx();
            let exists = index.lt(row_tiles);
            let (word, cost) = (k.var(0u32), k.var(0u32));
            k.if_(exists.divergent(), || {
                // Of sequences with the same first tile, only the last has rows.
                let batch = self.first_tiles.last_at_most(k, self.batch, index, [1, 0]);
                let number = index - self.first_tiles.load(batch);
                let (params, _) = self.params.of_sequence(batch);
                let rows = self.rows_of(&params, batch, k.constant(0));
                let (tile, split) = self.tile_and_split(&rows, number);
                let n_blocks = self.n_blocks(&params, &rows, tile);
                word.set(number << 16u32 | batch);
                cost.set(self.split_of(&rows, n_blocks, split)[1] + TILE_COST as u32);
            });
            let ([sum], most) = self.exchange([cost.get()], Some(cost.get()));
            k.if_(exists.divergent(), || {
                let words = [word.get(), all + sum.before];
                self.row_tiles.store(index * ROW_TILE_WORDS, &words);
            });
            all.add_assign(sum.all);
            largest.set(largest.get().max(most.unwrap_or(cost.get())));
        });
        self.end_row_tiles(row_tiles, all.get());
        (all.get(), largest.get())
    }

    /// Past the last one, where all costs end.
    fn end_row_tiles(&self, row_tiles: Val<'k, u32>, all: Val<'k, u32>) {
        let (k, end) = (self.k, row_tiles + 2);
        let end = if self.tiles.few {
            padded(k, row_tiles).max(end)
        } else {
            end
        };
        k.for_divergent(row_tiles + k.thread_idx(), end, self.threads, |index| {
            let words = [k.constant(0), all];
            self.row_tiles.store(index * ROW_TILE_WORDS, &words);
        });
    }

    /// K blocks of a tile of a sequence.
    #[track_caller]
    fn n_blocks(&self, params: &RowParams<'k>, rows: &QueryRows<'k>, number: Val<'k, u32>) -> Val<'k, u32> {
        let visible = |row: Val<'k, i32>| self.visible(params, rows, row);
        let [first, end] = [number * self.tiles.rows, rows.count].map(Val::reinterpret);
        let range = Tile::range(&visible, first, end, self.tiles.rows, self.tiles.cols);
        BlockOrder::descending(range).count.reinterpret()
    }

    /// The same of the first and the last query of a tile, whose rows see these keys.
    #[track_caller]
    fn n_blocks_between(&self, [first, last]: [(Val<'k, i32>, Val<'k, i32>); 2]) -> Val<'k, u32> {
        let range = BlockRange::between(first, last, self.tiles.cols);
        BlockOrder::descending(range).count.reinterpret()
    }

    /// The tile that a row tile of a sequence is, or is a split of, and which split.
    #[track_caller]
    pub(super) fn tile_and_split(&self, rows: &QueryRows<'k>, number: Val<'k, u32>) -> (Val<'k, u32>, Val<'k, u32>) {
        let zero = self.k.constant(0);
        if self.splits.is_none() {
            return (number, zero);
        }
        let one_tile = self.is_one_tile(rows);
        (one_tile.select(zero, number), one_tile.select(number, zero))
    }

    /// The first K block of a split of a tile of `n_blocks`, and how many it has: all of them where the tile is not
    /// split.
    pub(super) fn split_of(
        &self,
        rows: &QueryRows<'k>,
        n_blocks: Val<'k, u32>,
        split: Val<'k, u32>,
    ) -> [Val<'k, u32>; 2] {
        let Some([blocks, _]) = self.splits else {
            return [self.k.constant(0), n_blocks];
        };
        let blocks = self.is_one_tile(rows).select(blocks, n_blocks);
        let first = (split * blocks).min(n_blocks - 1);
        [first, blocks.min(n_blocks - first)]
    }

    /// Whether a sequence has one row tile, which may be split, or none.
    #[track_caller]
    pub(super) fn is_one_tile(&self, rows: &QueryRows<'k>) -> Val<'k, bool> {
        rows.count.le(self.tiles.rows)
    }

    /// The cost of all row tiles before one.
    #[track_caller]
    pub(super) fn cost_before(&self, index: Val<'k, u32>) -> Val<'k, u32> {
        self.row_tiles.load(index * ROW_TILE_WORDS + 1)
    }

    /// The last row tile before which all cost no more than so much.
    #[track_caller]
    pub(super) fn row_tile_at(&self, cost: Val<'k, u32>, row_tiles: Val<'k, u32>) -> Val<'k, u32> {
        self.row_tiles
            .last_at_most(self.k, row_tiles.max(1), cost, [ROW_TILE_WORDS, 1])
    }
}
