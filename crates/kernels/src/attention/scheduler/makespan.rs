//! The makespan of a tiling: the cost of its busiest block, worked out without work lists. Tilings are compared by it.

use std::cmp::Reverse;

use flashcore_problem::Problem;

use super::super::divisor::Divisor;
use super::loads::Loads;
use super::{Clusters, TILE_COST, Tiling};

/// The items of a tiling, by how much there is to do for each.
pub(crate) struct TilingWork {
    clusters: Clusters,
    /// K blocks of an item, and how many items of a head have as many; the longest first.
    of_head: Vec<(u64, u64)>,
}

/// The tiles of so many rows, and the keys that they see.
pub(crate) struct Tiles {
    tiling: Tiling,
    clusters: Clusters,
    /// First key that a tile of a head sees, and one past the last, and how many tiles see them; the last tile first.
    of_head: Vec<(u32, u32, u64)>,
    /// Keys of all tiles.
    keys: u64,
    /// Past the last key that the first and the last row of a tile see, of the first tiles of a head.
    edges: Vec<(u32, u32)>,
}

/// Tiles of a head whose edges are looked at: where the blocks that need masks lie repeats sooner with most tilings.
const EDGES: usize = 8;

impl Tiles {
    /// The tiles of a tiling, whatever its K blocks are.
    pub(crate) fn new(problem: &Problem, tiling: Tiling, sms: u32) -> Tiles {
        let clusters = Clusters::new(problem, tiling, sms);
        let seen = problem.key_range();
        let queries = clusters.tiles * tiling.packing.queries_in(tiling.rows) as usize;
        let first_of = |tile: usize| seen.keys(tile * queries);
        let last_of = |tile: usize| seen.keys(((tile + 1) * queries).min(problem.seq_len_q()) - 1);
        let of_tile = |tile: usize, count: u64| (first_of(tile).start as u32, last_of(tile).end as u32, count);
        let of_head: Vec<(u32, u32, u64)> = if first_of(0) == last_of(clusters.per_head - 1) {
            vec![of_tile(0, clusters.per_head as u64)]
        } else {
            (0..clusters.per_head).rev().map(|tile| of_tile(tile, 1)).collect()
        };
        let edge = |tile: usize| (first_of(tile).end as u32, last_of(tile).end as u32);
        let edges = (0..clusters.per_head.min(EDGES)).map(edge).collect();
        let keys = of_head
            .iter()
            .map(|&(first, past, count)| u64::from(past - first) * count);
        let keys = keys.sum::<u64>() * clusters.all_heads as u64;
        Tiles {
            tiling,
            clusters,
            of_head,
            keys,
            edges,
        }
    }

    /// Sixteenths of the K blocks that a tile needs masks in at its last keys, on average.
    pub(crate) fn masked(&self, cols: u32) -> u64 {
        let blocks = self
            .edges
            .iter()
            .map(|&(first, last)| last.div_ceil(cols) - first / cols);
        16 * u64::from(blocks.sum::<u32>()) / self.edges.len() as u64
    }

    /// Number of tiles, those of a cluster as one.
    pub(crate) fn count(&self) -> u64 {
        (self.clusters.all_heads * self.clusters.per_head) as u64
    }

    /// What [`TilingWork::mean`] is at least with K blocks of so many keys.
    pub(crate) fn least(&self, cols: u32, cost: impl Fn(u64, u64) -> u64) -> u64 {
        cost(self.keys / u64::from(cols), self.count()) / self.clusters.count as u64
    }

    /// With K blocks of so many keys.
    pub(crate) fn work(&self, cols: u32) -> TilingWork {
        let (splits, cols) = (u64::from(self.tiling.splits), Divisor::from(cols));
        let mut of_head: Vec<(u64, u64)> = Vec::with_capacity(self.of_head.len());
        for &(first, past, tiles) in &self.of_head {
            let blocks = u64::from((cols.ceil_div(past) - cols.floor_div(first)).max(1));
            let (each, longer) = if splits == 1 {
                (blocks, 0)
            } else {
                (blocks / splits, blocks % splits)
            };
            let parts = [(each + 1, longer * tiles), (each.max(1), (splits - longer) * tiles)];
            for (blocks, items) in parts.into_iter().filter(|(_, items)| *items > 0) {
                match of_head.last_mut() {
                    Some((last, count)) if *last == blocks => *count += items,
                    _ => of_head.push((blocks, items)),
                }
            }
        }
        of_head.sort_unstable_by_key(|(blocks, _)| Reverse(*blocks));
        TilingWork {
            clusters: self.clusters,
            of_head,
        }
    }
}

impl TilingWork {
    /// K blocks and number of the items of all heads.
    fn all(&self) -> (u64, u64) {
        let heads = self.clusters.all_heads as u64;
        let sum = |(blocks, items), &(each, count): &(u64, u64)| (blocks + each * count, items + count);
        let (blocks, items) = self.of_head.iter().fold((0, 0), sum);
        (heads * blocks, heads * items)
    }

    /// K blocks of the item with most.
    pub(crate) fn longest(&self) -> u64 {
        self.of_head[0].0
    }

    /// What [`Self::makespan`] would be if every block had the same to do: never more than that, and quicker to work
    /// out. `cost` is that of so many K blocks in so many items, so much for each of either.
    pub(crate) fn mean(&self, cost: impl Fn(u64, u64) -> u64) -> u64 {
        let (blocks, items) = self.all();
        cost(blocks, items).div_ceil(self.clusters.count as u64)
    }

    /// The cost of the block with most to do. Items are assigned by K blocks and [`TILE_COST`], here as many items at a
    /// time as are assigned alike.
    pub(crate) fn makespan(&self, cost: impl Fn(u64, u64) -> u64) -> u64 {
        let (count, heads) = (self.clusters.count as u64, self.clusters.all_heads);
        if let [(blocks, items)] = self.of_head[..] {
            let items = (items * heads as u64).div_ceil(count);
            return cost(items * blocks, items);
        }
        if self.all().1 <= count {
            return cost(self.of_head[0].0, 1);
        }
        let mut loads = Loads::new(self.clusters.count, true);
        for heads in self.clusters.heads_of_rounds() {
            for &(blocks, items) in &self.of_head {
                loads.assign(blocks + TILE_COST, items * heads.len() as u64, |_| ());
            }
        }
        let costs = loads.all().map(|(load, items)| cost(load - TILE_COST * items, items));
        costs.max().unwrap_or(0)
    }
}
