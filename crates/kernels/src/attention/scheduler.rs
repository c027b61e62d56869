//! The tile scheduler: which Q tiles a block computes and in which order, as work lists that the host makes and a
//! persistent kernel reads.
//!
//! Lists are made greedily, longest tile first (LPT): the longest Q tile that is left goes to the block with the least to
//! do. Heads whose K and V fit into the L2 cache together come together. A kernel reads the next item while it works on
//! this one, so that copies for the next tile begin before this one ends.

use std::cmp::Reverse;
use std::sync::Arc;

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, Val, Var};
use flashcore_problem::{KeyRange, Problem};

use super::block_range::{BlockOrder, BlockRange, share};

/// Words of a work item: batch and K/V head; head and Q tile; first key of iteration 0 of the blocks masked at the low end,
/// at the high end, and of those without a mask; iterations masked at the low end, and masked at all; the fully masked
/// ones of each warpgroup, and the split; all iterations.
const WORDS: usize = 8;

/// The word of an item with the fully masked iterations of each warpgroup, and the split.
const FULLY_MASKED: usize = 6;

/// Fills the items after the last of a list.
const END: u32 = u32::MAX;

/// In place of a number of fully masked iterations: the warpgroup has no rows.
const NO_ROWS: u32 = 0xff;

/// Batches, heads, Q tiles and K blocks that an item can name.
pub(crate) const MOST: usize = 1 << 16;

/// Splits of the keys that an item can name, less those that might make it look like [`END`].
pub(crate) const MOST_SPLITS: u32 = 128;

/// Bytes of K and V that should be read at a time: about half of an H200's L2 cache.
const L2_BYTES: usize = 32 << 20;

/// Warpgroups at most that share a Q tile: three in each block of a cluster.
const GROUPS: usize = 6;

/// K blocks' worth of work that a tile costs besides its K blocks: its first and last products, which nothing overlaps.
const TILE_COST: u64 = 2;
/// The same in keys: what fits times of 102 problems best (`wgmma/defaults/measured`).
const TILE_KEYS: u64 = 96;

/// How a kernel tiles a problem, as far as the scheduler is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiling {
    /// Query rows per block, 64 for each warpgroup.
    pub rows: u32,
    /// Keys per K block.
    pub cols: u32,
    /// Blocks that share copies of K and V.
    pub cluster: u32,
    /// Splits of the keys.
    pub splits: u32,
}

/// A block's work list as its warps read it. The producer reads each item a tile earlier than the consumers, which find
/// it in the L1 cache.
pub(crate) struct WorkList<'k> {
    k: &'k KernelBuilder,
    table: GlobalPtr<'k, u32>,
    rows: u32,
    cols: u32,
    this: Var<'k, u32>,
}

/// A Q tile and its K blocks.
pub(crate) struct WorkItem<'k> {
    words: Vec<Val<'k, u32>>,
    rows: u32,
    cols: u32,
}

/// As much of the next item as is needed while the current one is computed.
pub(crate) struct NextItem<'k> {
    fully_masked: Val<'k, u32>,
}

impl<'k> WorkList<'k> {
    /// At the first item. There always is one.
    #[track_caller]
    pub(crate) fn new(k: &'k KernelBuilder, table: GlobalPtr<'k, u32>, tiling: Tiling) -> Self {
        WorkList {
            k,
            table,
            rows: tiling.rows,
            cols: tiling.cols,
            this: k.var(k.block_idx(0)),
        }
    }

    #[track_caller]
    pub(crate) fn this(&self) -> WorkItem<'k> {
        let place = self.table.offset(self.this.get() * WORDS as u32);
        let mut words = place.load_words(4, Cache::ReadOnly);
        words.extend(place.plus(4).load_words(4, Cache::ReadOnly));
        WorkItem {
            words,
            rows: self.rows,
            cols: self.cols,
        }
    }

    #[track_caller]
    pub(crate) fn next(&self) -> NextItem<'k> {
        let place = self.table.offset((self.this + self.k.grid_dim(0)) * WORDS as u32);
        NextItem {
            fully_masked: place.plus(FULLY_MASKED as i32).load_words(1, Cache::ReadOnly)[0],
        }
    }

    #[track_caller]
    pub(crate) fn advance(&self) {
        self.this.add_assign(self.k.grid_dim(0));
    }
}

impl<'k> NextItem<'k> {
    #[track_caller]
    pub(crate) fn exists(&self) -> Val<'k, bool> {
        self.fully_masked.ne(END)
    }

    /// Whether a warpgroup's rows see some of the first K block.
    #[track_caller]
    pub(crate) fn sees_first_block(&self, warpgroup: Val<'k, u32>) -> Val<'k, bool> {
        (self.fully_masked >> (warpgroup * 8) & 0xff).eq(0)
    }
}

impl<'k> WorkItem<'k> {
    #[track_caller]
    pub(crate) fn batch(&self) -> Val<'k, u32> {
        self.low(0)
    }

    #[track_caller]
    pub(crate) fn kv_head(&self) -> Val<'k, u32> {
        self.high(0)
    }

    #[track_caller]
    pub(crate) fn head(&self) -> Val<'k, u32> {
        self.low(1)
    }

    #[track_caller]
    pub(crate) fn first_row(&self) -> Val<'k, u32> {
        self.high(1) * self.rows
    }

    #[track_caller]
    pub(crate) fn split(&self) -> Val<'k, u32> {
        self.words[FULLY_MASKED] >> 24u32
    }

    pub(crate) fn n_blocks(&self) -> Val<'k, u32> {
        self.words[7]
    }

    #[track_caller]
    pub(crate) fn masked(&self) -> Val<'k, u32> {
        self.high(5)
    }

    #[track_caller]
    pub(crate) fn first_key(&self, n_block: Val<'k, u32>) -> Val<'k, u32> {
        let whole = self.words[4] + n_block * self.cols;
        let masked = n_block.lt(self.masked());
        masked.select(self.first_masked_key(n_block), whole)
    }

    /// The same where the block needs a mask.
    #[track_caller]
    pub(crate) fn first_masked_key(&self, n_block: Val<'k, u32>) -> Val<'k, u32> {
        let past = n_block * self.cols;
        n_block
            .lt(self.low(5))
            .select(self.words[2] + past, self.words[3] - past)
    }

    /// K blocks, the first ones, that are fully masked for a warpgroup's rows; all of them if it has no rows. A warpgroup
    /// alone has rows, and no such block.
    #[track_caller]
    pub(crate) fn fully_masked(&self, warpgroup: Val<'k, u32>) -> Val<'k, u32> {
        if self.rows == 64 {
            return warpgroup.builder().constant(0);
        }
        let blocks = self.words[FULLY_MASKED] >> (warpgroup * 8) & 0xff;
        blocks.eq(NO_ROWS).select(self.n_blocks(), blocks)
    }

    #[track_caller]
    fn low(&self, word: usize) -> Val<'k, u32> {
        self.words[word] & 0xffff
    }

    #[track_caller]
    fn high(&self, word: usize) -> Val<'k, u32> {
        self.words[word] >> 16u32
    }
}

/// A Q tile of a block, or of a cluster's blocks together, and its K blocks.
#[derive(Clone, Debug, PartialEq)]
struct Tile {
    order: BlockOrder<i64>,
    /// For each warpgroup, how many iterations, the first ones, are fully masked for its rows.
    fully_masked: [u32; GROUPS],
}

impl Tile {
    fn new(seen: &KeyRange, seq_len_q: usize, tile: usize, rows: usize, cols: usize) -> Tile {
        let (first, last) = (tile * rows, (tile * rows + rows).min(seq_len_q) - 1);
        let range = Tile::range(seen, seq_len_q, tile, rows, cols);
        let order = BlockOrder::descending(range);
        let fully_masked = std::array::from_fn(|group| {
            let first = first + 64 * group;
            if 64 * group >= rows || first >= seq_len_q {
                return NO_ROWS;
            }
            let end = seen.keys((first + 63).min(last)).end.div_ceil(cols) as i64;
            let out_of_range = if order.masked_low == 0 { range.end - end } else { 0 };
            out_of_range.min(order.masked).min(order.count - 1) as u32
        });
        Tile { order, fully_masked }
    }

    fn range(seen: &KeyRange, seq_len_q: usize, tile: usize, rows: usize, cols: usize) -> BlockRange<i64> {
        let (first, last) = (tile * rows, (tile * rows + rows).min(seq_len_q) - 1);
        let visible = |row: usize| {
            let keys = seen.keys(row);
            (keys.start as i64, keys.end as i64)
        };
        BlockRange::between(visible(first), visible(last), cols as u32)
    }

    /// The K blocks of one of `count` splits. Where there are none left it has one past all keys, block `past`, of which
    /// the mask leaves nothing: an empty split still writes zeros and its offset.
    fn split(&self, index: usize, count: usize, past: usize) -> Tile {
        let (begin, blocks) = share(self.order.count, index as i64, count as i64);
        let order = match blocks {
            0 => BlockOrder {
                low: past as i64,
                masked_low: 0,
                high: past as i64,
                whole: past as i64 - 1,
                masked: 1,
                count: 1,
                descending: true,
            },
            _ => self.order.part(begin, blocks),
        };
        let fully_masked = self.fully_masked.map(|of_group| match of_group {
            NO_ROWS => NO_ROWS,
            of_group => of_group.saturating_sub(begin as u32).min(order.count as u32 - 1),
        });
        Tile { order, fully_masked }
    }

    /// The item of the block whose tile it is, and whose warpgroups are those from `first_group` on.
    fn words(
        &self,
        [batch, head, kv_head, tile]: [usize; 4],
        split: usize,
        first_group: usize,
        cols: usize,
    ) -> [u32; WORDS] {
        let order = &self.order;
        let of_group = |group: usize| self.fully_masked.get(first_group + group).copied().unwrap_or(NO_ROWS);
        let pair = |low: usize, high: usize| (high << 16 | low) as u32;
        let key = |base: i64| (base * cols as i64) as u32;
        let masked_low = order.masked_low.clamp(0, order.count);
        [
            pair(batch, kv_head),
            pair(head, tile),
            key(order.low),
            key(order.high),
            key(order.whole),
            pair(masked_low as usize, order.masked as usize),
            of_group(0) | of_group(1) << 8 | of_group(2) << 16 | (split as u32) << 24,
            order.count as u32,
        ]
    }

    fn cost(&self) -> u64 {
        self.order.count as u64 + TILE_COST
    }
}

/// The clusters of a grid, and what is dealt to them.
struct Clusters {
    count: usize,
    /// Heads of a cluster's blocks, which share K and V where there are several.
    heads: usize,
    /// Neighbouring Q tiles of a cluster's blocks.
    tiles: usize,
    /// Clusters' worth of Q tiles of a head.
    per_head: usize,
    /// Clusters' worth of heads, of all batches, and how many of them are dealt together.
    all_heads: usize,
    together: usize,
}

impl Clusters {
    /// One block per SM, or as many as a cluster has. Blocks of a cluster go through the same K blocks: they have the same
    /// rows of heads that share them, where there are such heads, or neighbouring tiles.
    fn new(problem: &Problem, tiling: Tiling, sms: u32) -> Clusters {
        let cluster = tiling.cluster as usize;
        let (heads, tiles) = match problem.group_size().is_multiple_of(cluster) {
            true => (cluster, 1),
            false => (1, cluster),
        };
        let all_heads = problem.batch() * problem.num_heads() / heads;
        let per_head = problem.seq_len_q().div_ceil(tiles * tiling.rows as usize);
        let items = all_heads * per_head * tiling.splits as usize;
        Clusters {
            count: items.clamp(1, (sms as usize / cluster).max(1)),
            heads,
            tiles,
            per_head,
            all_heads,
            together: heads_at_once(problem) / heads,
        }
    }

    /// K blocks of each item of a head.
    fn tile_blocks(&self, problem: &Problem, tiling: Tiling) -> impl Iterator<Item = u64> {
        let (seen, splits) = (problem.key_range(), i64::from(tiling.splits));
        let (seq_len_q, rows) = (problem.seq_len_q(), self.tiles * tiling.rows as usize);
        (0..self.per_head).flat_map(move |index| {
            let range = Tile::range(&seen, seq_len_q, index, rows, tiling.cols as usize);
            let blocks = BlockOrder::descending(range).count;
            (0..splits).map(move |split| share(blocks, split, splits).1.max(1) as u64)
        })
    }

    /// Calls `each` for each item in turn, with its place in `costs`, its head of all batches, and its cluster: the one with
    /// the least to do, and of several the first. `costs` are those of a head's items, the longest first.
    fn deal(&self, costs: &[u64], mut each: impl FnMut(usize, usize, usize)) {
        // A set of clusters for each load from the least one on, in a ring: none is further ahead than the longest item.
        let (ring, words) = (
            costs.first().map_or(0, |&most| most as usize) + 1,
            self.count.div_ceil(64),
        );
        let mut sets = vec![0u64; ring * words];
        (0..self.count).for_each(|cluster| sets[cluster / 64] |= 1 << (cluster % 64));
        let mut least = 0;
        for first in (0..self.all_heads).step_by(self.together) {
            for (place, &cost) in costs.iter().enumerate() {
                for head in first..self.all_heads.min(first + self.together) {
                    let cluster = loop {
                        let set = &mut sets[least * words..][..words];
                        if let Some(word) = set.iter().position(|bits| *bits != 0) {
                            let bit = set[word].trailing_zeros() as usize;
                            set[word] &= set[word] - 1;
                            break 64 * word + bit;
                        }
                        least = if least + 1 == ring { 0 } else { least + 1 };
                    };
                    let load = least + cost as usize;
                    let load = if load < ring { load } else { load - ring };
                    sets[load * words + cluster / 64] |= 1 << (cluster % 64);
                    each(place, head, cluster);
                }
            }
        }
    }
}

/// Blocks of the grid, and the table that [`WorkList`] reads. Where keys are split, each split of a tile is an item.
pub(crate) fn work_lists(problem: &Problem, tiling: Tiling, seen: &KeyRange, sms: u32) -> (u32, Arc<[u32]>) {
    #[cfg(test)]
    tests::LISTS.set(tests::LISTS.get() + 1);
    let clusters = Clusters::new(problem, tiling, sms);
    let (rows, cols) = (clusters.tiles * tiling.rows as usize, tiling.cols as usize);
    let (splits, past) = (tiling.splits as usize, problem.seq_len_kv().div_ceil(cols));
    let mut order: Vec<(usize, usize, Tile)> = (0..clusters.per_head)
        .flat_map(|index| {
            let tile = Tile::new(seen, problem.seq_len_q(), index, rows, cols);
            (0..splits).map(move |split| (index, split, tile.split(split, splits, past)))
        })
        .collect();
    order.sort_by_key(|&(index, split, ref tile)| (Reverse(tile.cost()), Reverse(index), split));
    let costs: Vec<u64> = order.iter().map(|(.., tile)| tile.cost()).collect();
    let (cluster, groups) = (tiling.cluster as usize, tiling.rows as usize / 64);
    let (blocks, heads) = (cluster * clusters.count, problem.num_heads() / clusters.heads);
    // Item `n` of block `b` is the `n * blocks + b`th.
    let longest = (costs.len() * clusters.all_heads).div_ceil(clusters.count) + 2;
    let mut words = Vec::with_capacity(longest * blocks * WORDS);
    let mut lengths = vec![0; clusters.count];
    clusters.deal(&costs, |place, number, chosen| {
        let at = lengths[chosen] * blocks + chosen * cluster;
        lengths[chosen] += 1;
        if at * WORDS >= words.len() {
            words.resize(words.len() + blocks * WORDS, END);
        }
        let (index, split, tile) = &order[place];
        let (batch, head) = (number / heads, number % heads * clusters.heads);
        let kv_head = head / problem.group_size();
        for rank in 0..cluster {
            let (other, neighbour) = (rank % clusters.heads, rank % clusters.tiles);
            let place = [batch, head + other, kv_head, index * clusters.tiles + neighbour];
            let item = tile.words(place, *split, neighbour * groups, cols);
            words[(at + rank) * WORDS..][..WORDS].copy_from_slice(&item);
        }
    });
    words.resize(words.len() + blocks * WORDS, END);
    (blocks as u32, words.into())
}

/// The K blocks of the block with most to do.
pub(crate) fn most_blocks(problem: &Problem, tiling: Tiling, sms: u32) -> u64 {
    makespan(problem, tiling, sms, |blocks, tiles| blocks + TILE_COST * tiles)
}

/// The same in keys, which other tilings can be compared by.
pub(crate) fn most_keys(problem: &Problem, tiling: Tiling, sms: u32) -> u64 {
    makespan(problem, tiling, sms, |blocks, tiles| keys(tiling, blocks, tiles))
}

/// [`most_keys`] if every block had the same to do: never more than that, and much quicker to work out.
pub(crate) fn mean_keys(problem: &Problem, tiling: Tiling, sms: u32) -> u64 {
    let clusters = Clusters::new(problem, tiling, sms);
    let blocks: u64 = clusters.tile_blocks(problem, tiling).sum();
    let tiles = (clusters.per_head * tiling.splits as usize) as u64;
    let all = clusters.all_heads as u64 * keys(tiling, blocks, tiles);
    all.div_ceil(clusters.count as u64)
}

/// The cost in keys of so many K blocks in so many tiles.
fn keys(tiling: Tiling, blocks: u64, tiles: u64) -> u64 {
    blocks * u64::from(tiling.cols) + TILE_KEYS * tiles
}

/// The largest cost of what a block has to do, by its K blocks and its tiles: that of [`work_lists`], without the lists.
fn makespan(problem: &Problem, tiling: Tiling, sms: u32, cost: impl Fn(u64, u64) -> u64) -> u64 {
    let clusters = Clusters::new(problem, tiling, sms);
    let mut costs: Vec<u64> = clusters
        .tile_blocks(problem, tiling)
        .map(|blocks| blocks + TILE_COST)
        .collect();
    costs.sort_unstable_by_key(|cost| Reverse(*cost));
    let mut dealt = vec![(0, 0); clusters.count];
    clusters.deal(&costs, |place, _, cluster| {
        let (load, tiles) = &mut dealt[cluster];
        (*load, *tiles) = (*load + costs[place], *tiles + 1);
    });
    let costs = dealt
        .into_iter()
        .map(|(load, tiles)| cost(load - TILE_COST * tiles, tiles));
    costs.max().unwrap_or(0)
}

/// Heads, of all batches, whose K and V fit into [`L2_BYTES`]: whole groups that share them.
fn heads_at_once(problem: &Problem) -> usize {
    let row_bytes = problem.dtype().size_bytes() * (problem.head_dim() + problem.head_dim_v());
    let groups = (L2_BYTES / (problem.seq_len_kv() * row_bytes).max(1)).max(1);
    groups * problem.group_size()
}

#[cfg(test)]
pub(crate) mod tests;
