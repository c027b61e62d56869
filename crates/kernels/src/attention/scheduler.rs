//! The tile scheduler: which Q tiles a block computes and in which order, as work lists that the host makes and a
//! persistent kernel reads.
//!
//! Lists are made greedily, longest tile first (LPT): the longest Q tile that is left goes to the block with the least
//! to do. Heads are assigned in rounds: K and V of those of a round fit into the L2 cache. A kernel reads the next item
//! while it works on this one, so that copies for the next tile begin before this one ends.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, Val, Var};
use flashcore_problem::{KeyRange, Problem};

use super::query_rows::Packing;
use loads::{Loads, MOST_CLUSTERS};

mod item;
mod loads;
mod price;

pub(crate) use item::{FULLY_MASKED, MOST, Place, Tile, WORDS, WorkItem};
pub(crate) use price::{Tiles, Work};

/// Fills the items after the last of a list.
const END: u32 = u32::MAX;

/// Splits of the keys that an item can name, less those that might make it look like [`END`].
pub(crate) const MOST_SPLITS: u32 = 128;

/// Bytes of K and V that should be read at a time: about half of an H200's L2 cache.
const L2_BYTES: usize = 32 << 20;

/// K blocks' worth of work that a tile costs besides its K blocks: its first and last products, which nothing overlaps.
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

/// A block's work list as its warps read it. The producer reads each item a tile earlier than the consumers, which find
/// it in the L1 cache.
pub(crate) struct WorkList<'k> {
    k: &'k KernelBuilder,
    table: GlobalPtr<'k, u32>,
    tiling: Tiling,
    this: Var<'k, u32>,
    /// One past the last item of a list whose items follow each other, and may be of pieces of tiles. Otherwise the
    /// items of all blocks take turns, and [`END`] ends a list.
    end: Option<Val<'k, u32>>,
}

/// As much of the next item as is needed while the current one is computed.
pub(crate) struct NextItem<'k> {
    fully_masked: Val<'k, u32>,
    /// Its number, and one past the last of a list that says how long it is.
    number: Option<[Val<'k, u32>; 2]>,
}

impl<'k> WorkList<'k> {
    /// At the first item. There always is one in a table of the host's, but a `range`, of a first item and one past the
    /// last, may have none.
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
            end: range.map(|[_, end]| end),
        }
    }

    /// How its words are loaded. Pieces are in a buffer with partials, which the kernel writes.
    fn cache(&self) -> Cache {
        if self.end.is_some() {
            Cache::Default
        } else {
            Cache::ReadOnly
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
        let mut words = place.load_words(4, self.cache());
        words.extend(place.plus(4).load_words(4, self.cache()));
        let Tiling {
            rows, cols, packing, ..
        } = self.tiling;
        WorkItem::new(words, [rows, cols], packing, self.end.is_some())
    }

    #[track_caller]
    pub(crate) fn next(&self) -> NextItem<'k> {
        let fully_masked = |item: Val<'k, u32>| {
            let place = self.table.offset(item * WORDS as u32);
            place.plus(FULLY_MASKED as i32).load_words(1, self.cache())[0]
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

    /// Runs `compute` for this item and those after it; it gives the next one.
    #[track_caller]
    pub(crate) fn for_each(&self, compute: impl Fn() -> NextItem<'k>) {
        self.k.loop_(|scope| {
            let next = compute();
            self.advance();
            scope.break_if((!next.exists()).uniform());
        });
    }

    #[track_caller]
    fn advance(&self) {
        match self.end {
            None => self.this.add_assign(self.k.grid_dim(0)),
            Some(_) => self.this.add_assign(1),
        }
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

/// First key that a row sees, and one past the last.
fn visible(seen: &KeyRange, packing: Packing) -> impl Fn(i64) -> (i64, i64) {
    let seen = *seen;
    move |row| {
        let keys = seen.keys(packing.query_of(row as usize));
        (keys.start as i64, keys.end as i64)
    }
}

/// The clusters of a grid, and what is assigned to them.
#[derive(Clone, Copy)]
struct Clusters {
    count: usize,
    /// Heads of a cluster's blocks, which share K and V where there are several.
    heads: usize,
    /// Neighbouring Q tiles of a cluster's blocks.
    tiles: usize,
    /// Clusters' worth of Q tiles of a head.
    per_head: usize,
    /// Clusters' worth of heads, of all batches, and how many of them share K and V.
    all_heads: usize,
    sharing: usize,
    /// Rounds that heads are assigned in.
    rounds: usize,
}

impl Clusters {
    /// One block per SM, or as many as a cluster has. Blocks of a cluster go through the same K blocks: they have the
    /// same rows of heads that share them, where there are such heads, or neighbouring tiles.
    fn new(problem: &Problem, tiling: Tiling, sms: u32) -> Clusters {
        let cluster = tiling.cluster as usize;
        let (num_heads, group_size) = tiling.heads(problem);
        let (heads, tiles) = match group_size.is_multiple_of(cluster) {
            true => (cluster, 1),
            false => (1, cluster),
        };
        let all_heads = problem.batch() * num_heads / heads;
        let rows = tiling.packing.rows_of(problem.seq_len_q());
        let per_head = rows.div_ceil(tiles * tiling.rows as usize);
        let items = all_heads * per_head * tiling.splits as usize;
        Clusters {
            count: match (sms as usize / cluster).max(1) {
                room if items <= room => items.max(1),
                room => room.min(MOST_CLUSTERS),
            },
            heads,
            tiles,
            per_head,
            all_heads,
            sharing: group_size / heads,
            rounds: (problem.batch() * problem.num_kv_heads()).div_ceil(groups_at_once(problem)),
        }
    }

    /// The heads of each round: about as many in each. A last round of few heads would have few tiles, and long ones
    /// among them that nothing evens out: of 8 heads of 5,300 rows, 6 and then 2 keep the busiest of 132 SMs busy for
    /// 1.48 times the mean, 4 and 4 for 1.11.
    fn heads_of_rounds(self) -> impl Iterator<Item = Range<usize>> {
        let groups = self.all_heads / self.sharing;
        let first = move |round: usize| groups * round / self.rounds * self.sharing;
        (0..self.rounds).map(move |round| first(round)..first(round + 1))
    }

    /// Calls `each` for the items of each place in `costs` in turn, with the first of its heads, of all batches, and
    /// the cluster of each head: the one with the least to do, and of several the first. `costs` are those of a head's
    /// items, the longest first.
    fn assign(&self, costs: &[u64], mut each: impl FnMut(usize, usize, &[usize])) {
        // Each in turn, while clusters have nothing to do.
        let alone = costs.len() * self.all_heads <= self.count;
        let (mut loads, mut next) = (Loads::new(self.count.min(MOST_CLUSTERS)), 0);
        let mut chosen = Vec::with_capacity(costs.len() * self.all_heads.div_ceil(self.rounds));
        for of_round in self.heads_of_rounds() {
            let heads = of_round.len();
            let mut place = 0;
            for alike in costs.chunk_by(|a, b| a == b) {
                let items = alike.len() * heads;
                chosen.clear();
                if alone {
                    chosen.extend(next..next + items);
                    next += items;
                } else {
                    loads.assign(alike[0], items as u64, |clusters| loads::add_to(&mut chosen, clusters));
                }
                for of_place in chosen.chunks_exact(heads) {
                    each(place, of_round.start, of_place);
                    place += 1;
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
    let end = tiling.packing.rows_of(problem.seq_len_q()) as i64;
    let (cluster, groups) = (tiling.cluster as usize, tiling.rows as usize / 64);
    // Those of head 0, for each of a cluster's neighbouring Q tiles.
    let mut items: Vec<[u32; WORDS]> = Vec::with_capacity(clusters.per_head * splits * clusters.tiles);
    let mut order: Vec<(Reverse<u64>, Reverse<usize>, usize)> = Vec::with_capacity(clusters.per_head * splits);
    for index in 0..clusters.per_head {
        let first = (index * rows) as i64;
        let whole = Tile::new(visible(seen, tiling.packing), first, end, rows as u32, tiling.cols);
        for split in 0..splits {
            let tile = whole.split(split, splits, past);
            order.push((Reverse(cost(&tile)), Reverse(index), split));
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
    // Divided once for all items of a head.
    let place_of = |number: usize| {
        let (batch, head) = (number / heads, number % heads * clusters.heads * packed);
        item::head_words([batch, head, head / problem.group_size()])
    };
    let places: Vec<[u32; 2]> = (0..clusters.all_heads).map(place_of).collect();
    // Item `n` of block `b` is the `n * blocks + b`th.
    let longest = (costs.len() * clusters.all_heads).div_ceil(clusters.count) + 2;
    let mut list: Vec<[u32; WORDS]> = Vec::with_capacity(longest * blocks);
    let mut next: Vec<usize> = (0..blocks).step_by(cluster).collect();
    clusters.assign(&costs, |place, first_head, chosen| {
        let (_, Reverse(index), split) = order[place];
        let of_tile = &items[(index * splits + split) * clusters.tiles..][..clusters.tiles];
        for (&chosen, &[first, head]) in chosen.iter().zip(&places[first_head..]) {
            let at = next[chosen];
            next[chosen] += blocks;
            if at >= list.len() {
                list.resize(list.len() + blocks, [END; WORDS]);
            }
            for (rank, item) in list[at..at + cluster].iter_mut().enumerate() {
                // A cluster has several heads, or several tiles, or neither.
                let (other, neighbour) = (rank.min(clusters.heads - 1), rank.min(clusters.tiles - 1));
                *item = of_tile[neighbour];
                item::set_head(item, [first, head + other as u32]);
            }
        }
    });
    list.resize(list.len() + blocks, [END; WORDS]);
    (blocks as u32, list.as_flattened().into())
}

fn cost(tile: &Tile<i64>) -> u64 {
    tile.order.count as u64 + TILE_COST
}

/// K/V heads, of all batches, whose K and V fit into [`L2_BYTES`].
fn groups_at_once(problem: &Problem) -> usize {
    let row_bytes = problem.dtype().size_bytes() * (problem.head_dim() + problem.head_dim_v());
    (L2_BYTES / (problem.seq_len_kv() * row_bytes).max(1)).max(1)
}

#[cfg(test)]
pub(crate) mod tests;
