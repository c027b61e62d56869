//! The tile scheduler: which Q tiles a block computes and in which order, as work lists that the host makes and a
//! persistent kernel reads. Which K blocks of a tile need the mask is in `scheduler/item.rs`.
//!
//! Lists are made greedily, longest tile first (LPT): the longest remaining Q tile goes to the block with the least
//! work. Heads are assigned in rounds, so that K and V of the heads of a round fit into the L2 cache. A kernel reads
//! the next item during the current one, so that copies for the next tile begin before the current tile ends.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, Val, Var};
use flashcore_problem::{KeyRange, Problem};

use super::divisor::Divisor;
use super::query_rows::{Packing, WARPGROUP_ROWS};
use loads::{Loads, MAX_CLUSTERS};

mod item;
mod loads;
mod makespan;

pub(crate) use item::{COUNT_LIMIT, FULLY_MASKED, Place, Tile, WORDS, WorkItem};
pub(crate) use makespan::Tiles;

/// Fills the items after the last of a list.
const END: u32 = u32::MAX;

/// Splits of the keys that an item can name, less those that might make it look like [`END`].
pub(crate) const MAX_ITEM_SPLITS: u32 = 128;

/// Bytes of K and V that should be read at a time: about half of an H200's L2 cache.
const L2_BYTES: usize = 32 << 20;

/// Cost of a tile's first and last products, which overlap with nothing, in K blocks.
pub(crate) const TILE_COST: u64 = 2;

/// How a kernel tiles a problem, as far as the scheduler is concerned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tiling {
    /// Query rows per block, 64 for each warpgroup.
    pub rows: u32,
    /// Keys per K block.
    pub cols: u32,
    /// Blocks that share copies of K and V.
    pub cluster: u32,
    /// Splits of the keys.
    pub splits: u32,
    /// Query heads that share a tile.
    pub packing: Packing,
}

impl Tiling {
    /// Heads of a batch that have tiles of their own, and how many of them share K and V.
    fn heads(&self, problem: &Problem) -> (usize, usize) {
        let packed = self.packing.heads() as usize;
        (problem.num_heads() / packed, problem.group_size() / packed)
    }
}

/// A block's work list, as its warps read it. The producer reads each item one tile before the consumers, which find it
/// in the L1 cache.
pub(crate) struct WorkList<'k> {
    k: &'k KernelBuilder,
    table: GlobalPtr<'k, u32>,
    tiling: Tiling,
    this: Var<'k, u32>,
    /// Ranges are in a buffer with partials, which the kernel writes.
    cache: Cache,
    /// One past the last item, if a list is a range of the table, which may have pieces of tiles. Otherwise the items
    /// of all blocks are interleaved in the table, and [`END`] ends a list.
    end: Option<Val<'k, u32>>,
}

/// What consumers need of the next item during the current one.
pub(crate) struct NextItem<'k> {
    fully_masked: Val<'k, u32>,
    /// Its number, and one past the last, if a list is a range of the table.
    number: Option<[Val<'k, u32>; 2]>,
}

impl<'k> WorkList<'k> {
    /// The list at its first item. A table of the host has at least one item for each block; a `range`, of a first item
    /// and one past the last, may be empty.
    #[track_caller]
    pub(crate) fn new(
        k: &'k KernelBuilder,
        table: GlobalPtr<'k, u32>,
        tiling: Tiling,
        range: Option<[Val<'k, u32>; 2]>,
    ) -> Self {
        let first = range.map_or_else(|| k.block_idx(0), |[first, _]| first);
        WorkList {
            k,
            table,
            tiling,
            this: k.var(first),
            cache: range.map_or(Cache::ReadOnly, |_| Cache::Default),
            end: range.map(|[_, end]| end),
        }
    }

    /// Runs `compute` if there is an item.
    #[track_caller]
    pub(crate) fn if_any(&self, compute: impl FnOnce()) {
        match self.end {
            None => compute(),
            Some(end) => self.k.if_(self.this.get().lt(end).uniform(), compute),
        }
    }

    #[track_caller]
    pub(crate) fn this(&self) -> WorkItem<'k> {
        let place = self.table.offset(self.this.get() * WORDS as u32);
        let mut words = place.load_words(4, self.cache);
        words.extend(place.plus(4).load_words(4, self.cache));
        let Tiling {
            rows, cols, packing, ..
        } = self.tiling;
        WorkItem::new(words, [rows, cols], packing, self.end.is_some())
    }

    #[track_caller]
    pub(crate) fn next(&self) -> NextItem<'k> {
        let fully_masked = |item: Val<'k, u32>| {
            let place = self.table.offset(item * WORDS as u32);
            place.plus(FULLY_MASKED as i32).load_words(1, self.cache)[0]
        };
        let Some(end) = self.end else {
            let fully_masked = fully_masked(self.this + self.k.grid_dim(0));
            return NextItem {
                fully_masked,
                number: None,
            };
        };
        let next = self.this + 1;
        NextItem {
            fully_masked: fully_masked(next.min(end - 1)),
            number: Some([next, end]),
        }
    }

    /// Runs `compute`, which returns the next item, for this item and all after it.
    #[track_caller]
    pub(crate) fn for_each(&self, compute: impl Fn() -> NextItem<'k>) {
        self.k.loop_(|scope| {
            let next = compute();
            match self.end {
                None => self.this.add_assign(self.k.grid_dim(0)),
                Some(_) => self.this.add_assign(1),
            }
            scope.break_if((!next.exists()).uniform());
        });
    }
}

impl<'k> NextItem<'k> {
    #[track_caller]
    pub(crate) fn exists(&self) -> Val<'k, bool> {
        match self.number {
            None => self.fully_masked.ne(END),
            Some([next, end]) => next.lt(end),
        }
    }

    /// Whether a warpgroup's rows see some of the first K block.
    #[track_caller]
    pub(crate) fn sees_first_block(&self, warpgroup: Val<'k, u32>) -> Val<'k, bool> {
        (self.fully_masked >> (warpgroup * 8) & 0xff).eq(0)
    }
}

/// The clusters of a grid, and the units in which work is assigned to them.
#[derive(Clone, Copy)]
struct Clusters {
    count: usize,
    /// Heads of a cluster's blocks: one, or several that share K and V.
    heads: usize,
    /// Q tiles of a cluster's blocks: one, or several neighbours.
    tiles: usize,
    /// Items of a head: its Q tiles, divided by those of a cluster.
    per_head: usize,
    /// Heads of all batches, divided by those of a cluster, and how many of these share K and V.
    all_heads: usize,
    sharing: usize,
    /// Rounds that heads are assigned in.
    rounds: usize,
}

impl Clusters {
    /// A grid of at most `sms` blocks: an SM counts once for each block that it holds. The blocks of a cluster read the
    /// same K blocks: they have the same rows of several heads that share K and V, if there are such heads, or else
    /// neighbouring tiles.
    fn new(problem: &Problem, tiling: Tiling, sms: u32) -> Clusters {
        let cluster = tiling.cluster as usize;
        let (num_heads, group_size) = tiling.heads(problem);
        let (heads, tiles) = if group_size.is_multiple_of(cluster) {
            (cluster, 1)
        } else {
            (1, cluster)
        };
        let all_heads = problem.batch() * num_heads / heads;
        let rows = tiling.packing.rows_of(problem.seq_len_q());
        let per_head = rows.div_ceil(tiles * tiling.rows as usize);
        let items = all_heads * per_head * tiling.splits as usize;
        Clusters {
            count: match (sms as usize / cluster).max(1) {
                room if items <= room => items.max(1),
                room => room.min(MAX_CLUSTERS),
            },
            heads,
            tiles,
            per_head,
            all_heads,
            sharing: group_size / heads,
            rounds: (problem.batch() * problem.num_kv_heads()).div_ceil(kv_heads_within(problem, L2_BYTES)),
        }
    }

    /// The heads of each round, about as many in each. A last round of few heads would end with long tiles that nothing
    /// evens out: with 8 heads of 5,300 rows on 132 SMs, rounds of 6 and 2 keep the busiest SM busy for 1.48 times the
    /// mean, rounds of 4 and 4 for 1.11 times.
    fn heads_of_rounds(self) -> impl Iterator<Item = Range<usize>> {
        let groups = self.all_heads / self.sharing;
        let first = move |round: usize| groups * round / self.rounds * self.sharing;
        (0..self.rounds).map(move |round| first(round)..first(round + 1))
    }

    /// The cluster that each item is assigned to: the first of those with the least work. `costs` are those of a head's
    /// items, the longest first. Items are in the order of rounds; in a round, in the order of costs; and items of one
    /// cost in the order of heads.
    fn assign(&self, costs: &[u64]) -> Vec<u32> {
        let items = costs.len() * self.all_heads;
        // As many clusters as items, or more.
        if items <= self.count {
            return (0..items as u32).collect();
        }
        let mut loads = Loads::new(self.count.min(MAX_CLUSTERS), false);
        let mut assigned = Vec::with_capacity(items);
        for heads in self.heads_of_rounds() {
            for alike in costs.chunk_by(|a, b| a == b) {
                let items = (alike.len() * heads.len()) as u64;
                loads.assign(alike[0], items, |clusters| loads::add_to(&mut assigned, clusters));
            }
        }
        assigned
    }
}

/// Blocks of the grid, and the table that [`WorkList`] reads. Where keys are split, each split of a tile is an item.
pub(crate) fn work_lists(problem: &Problem, tiling: Tiling, seen: &KeyRange, sms: u32) -> (u32, Arc<[u32]>) {
    #[cfg(test)]
    tests::LISTS.set(tests::LISTS.get() + 1);
    let clusters = Clusters::new(problem, tiling, sms);
    let (rows, cols) = (clusters.tiles * tiling.rows as usize, tiling.cols as usize);
    let (splits, past) = (tiling.splits as usize, problem.seq_len_kv().div_ceil(cols));
    let end = tiling.packing.rows_of(problem.seq_len_q()) as i64;
    let (cluster, groups) = (tiling.cluster as usize, (tiling.rows / WARPGROUP_ROWS) as usize);
    // The items of head 0, for each of a cluster's neighbouring Q tiles.
    let mut items: Vec<[u32; WORDS]> = Vec::with_capacity(clusters.per_head * splits * clusters.tiles + 1);
    let mut order: Vec<(Reverse<u64>, Reverse<usize>, usize)> = Vec::with_capacity(clusters.per_head * splits);
    let (block, query_of) = (Divisor::from(tiling.cols), tiling.packing.query_of());
    let visible = |row: i64| {
        let keys = seen.keys(query_of(row as usize));
        (keys.start as i64, keys.end as i64)
    };
    for index in 0..clusters.per_head {
        let first = (index * rows) as i64;
        let whole = Tile::new(visible, first, end, rows as u32, block);
        for split in 0..splits {
            let tile = match splits {
                1 => &whole, // it is not copied
                _ => &whole.split(split, splits, past),
            };
            order.push((Reverse(cost(tile)), Reverse(index), split));
            items.extend((0..clusters.tiles).map(|neighbour| {
                let place = Place {
                    batch: 0,
                    head: 0,
                    kv_head: 0,
                    tile: (index * clusters.tiles + neighbour) as i64,
                    split: split as i64,
                    slot: 0,
                };
                let words = tile.words(place, neighbour * groups, tiling.cols);
                words.map(|word| word as u32)
            }));
        }
    }
    order.sort_unstable();
    let costs: Vec<u64> = order.iter().map(|&(Reverse(cost), ..)| cost).collect();
    let (blocks, packed) = (cluster * clusters.count, tiling.packing.heads() as usize);
    let heads = tiling.heads(problem).0 / clusters.heads;
    // Divided once for all items of a head. The heads of a cluster follow each other.
    let place_of = |number: usize| {
        let (batch, head) = (number / heads, number % heads * clusters.heads * packed);
        let [first, second] = item::head_words([batch, head, head / problem.group_size()]);
        (0..clusters.heads as u32).map(move |other| [first, second + other])
    };
    let mut places: Vec<[u32; 2]> = (0..clusters.all_heads).flat_map(place_of).collect();
    // The item and the head at each place of the table, which is then written once, from its beginning to its end. Item
    // `n` of block `b` is at `n * blocks + b`. The end of a list is one past the last item and head.
    let none = [items.len() as u32, places.len() as u32];
    let longest = (costs.len() * clusters.all_heads).div_ceil(clusters.count) + 2;
    let mut placed: Vec<[u32; 2]> = Vec::with_capacity(longest * blocks);
    let mut next: Vec<usize> = (0..blocks).step_by(cluster).collect();
    let chosen = clusters.assign(&costs);
    let mut chosen = chosen.iter();
    for of_round in clusters.heads_of_rounds() {
        for &(_, Reverse(index), split) in &order {
            let item = (index * splits + split) * clusters.tiles;
            for (head, &chosen) in of_round.clone().zip(chosen.by_ref()) {
                let at = next[chosen as usize];
                next[chosen as usize] += blocks;
                if at >= placed.len() {
                    placed.resize(placed.len() + blocks, none);
                }
                if cluster == 1 {
                    placed[at] = [item as u32, head as u32];
                    continue;
                }
                // A cluster has several heads, or several tiles.
                for (rank, placed) in placed[at..at + cluster].iter_mut().enumerate() {
                    let (other, neighbour) = (rank.min(clusters.heads - 1), rank.min(clusters.tiles - 1));
                    *placed = [(item + neighbour) as u32, (head * clusters.heads + other) as u32];
                }
            }
        }
    }
    placed.resize(placed.len() + blocks, none);
    items.push([END; WORDS]);
    places.push([0; 2]);
    let item_at = |&[item, head]: &[u32; 2]| {
        let mut item = items[item as usize];
        item::set_head(&mut item, places[head as usize]);
        item
    };
    let list: Arc<[[u32; WORDS]]> = placed.iter().map(item_at).collect();
    (blocks as u32, bytemuck::cast_slice_arc(list))
}

fn cost(tile: &Tile<i64>) -> u64 {
    tile.order.count as u64 + TILE_COST
}

/// K/V heads, of all batches, whose K and V fit into so many bytes; one at least.
pub(crate) fn kv_heads_within(problem: &Problem, bytes: usize) -> usize {
    let row_bytes = problem.dtype().size_bytes() * (problem.head_dim() + problem.head_dim_v());
    (bytes / (problem.seq_len_kv() * row_bytes).max(1)).max(1)
}

#[cfg(test)]
pub(crate) mod tests;
