//! Which block computes which tiles of query rows, and in which order: worked out on the host, read by the kernel.
//!
//! Blocks are persistent: each goes through a list of its own, so that the next tile's copies are under way while
//! this one is finished. The lists are made greedily: the longest tile that is left goes to the block with the least
//! to do. Heads whose K and V fit into the L2 cache together come together.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, Val, Var};
use flashcore_problem::Problem;

/// Bytes of K and V that should be read at a time: about half of an H200's L2 cache.
const L2_BYTES: usize = 32 << 20;

/// What ends a list.
const END: u32 = u32::MAX;

/// Words of an entry: batch, then tile and head.
const WORDS: u32 = 2;

/// Turns' worth of work that a tile costs besides its turns: its first and last products, which nothing overlaps.
const TILE_COST: u64 = 2;

/// Most heads, and most tiles of rows, that an entry can name.
pub(super) const MOST: usize = 1 << 16;

/// A tile of query rows, to be computed.
pub(super) struct Work<'k> {
    pub(super) batch: Val<'k, u32>,
    pub(super) head: Val<'k, u32>,
    pub(super) first_row: Val<'k, u32>,
}

/// A block's list as its warps read it: the tile at hand, and the one after, which is on its way meanwhile.
pub(super) struct List<'k> {
    k: &'k KernelBuilder,
    table: GlobalPtr<'k, u32>,
    rows: u32,
    round: Var<'k, u32>,
    this: [Var<'k, u32>; 2],
    next: [Var<'k, u32>; 2],
}

impl<'k> List<'k> {
    /// At the first tile. There always is one.
    #[track_caller]
    pub(super) fn new(k: &'k KernelBuilder, table: GlobalPtr<'k, u32>, rows: u32) -> Self {
        let place = |round: u32| table.offset((k.grid_dim(0) * round + k.block_idx(0)) * WORDS);
        let words = |round| {
            let words = place(round).load_words(WORDS, Cache::ReadOnly);
            [k.var(words[0]), k.var(words[1])]
        };
        List {
            k,
            table,
            rows,
            round: k.var(1u32),
            this: words(0),
            next: words(1),
        }
    }

    /// The tile at hand.
    #[track_caller]
    pub(super) fn this(&self) -> Work<'k> {
        self.work(&self.this)
    }

    /// The one after, if there is one.
    #[track_caller]
    pub(super) fn next(&self) -> Work<'k> {
        self.work(&self.next)
    }

    /// Whether there is one after.
    #[track_caller]
    pub(super) fn has_next(&self) -> Val<'k, bool> {
        self.next[0].get().ne(END)
    }

    /// Goes on to the next tile.
    #[track_caller]
    pub(super) fn advance(&self) {
        self.round.add_assign(1u32);
        let index = self.round.get().fma(self.k.grid_dim(0), self.k.block_idx(0));
        let words = self.table.offset(index * WORDS).load_words(WORDS, Cache::ReadOnly);
        for ((this, next), word) in self.this.iter().zip(&self.next).zip(words) {
            this.set(next.get());
            next.set(word);
        }
    }

    #[track_caller]
    fn work(&self, entry: &[Var<'k, u32>; 2]) -> Work<'k> {
        let [batch, place] = entry.map(|word| word.get());
        Work {
            batch,
            head: place & 0xffff,
            first_row: (place >> 16u32) * self.rows,
        }
    }
}

/// Blocks of the grid, and the table that [`List`] reads.
pub(super) fn table(problem: &Problem, rows: u32, cols: u32, sms: u32) -> (u32, Arc<[u32]>) {
    let (heads, tiles) = (problem.num_heads(), problem.seq_len_q().div_ceil(rows as usize));
    let blocks = (problem.batch() * heads * tiles).clamp(1, sms as usize);
    let mut lists: Vec<Vec<[u32; 2]>> = vec![Vec::new(); blocks];
    let mut least = BinaryHeap::from_iter((0..blocks).map(|block| Reverse((0u64, block))));
    let costs: Vec<u64> = (0..tiles).map(|tile| cost(problem, tile, rows, cols)).collect();
    let mut order: Vec<usize> = (0..tiles).collect();
    order.sort_by_key(|&tile| (Reverse(costs[tile]), Reverse(tile)));
    let heads_at_once = heads_at_once(problem);
    let all: Vec<(usize, usize)> = (0..problem.batch())
        .flat_map(|batch| (0..heads).map(move |head| (batch, head)))
        .collect();
    for together in all.chunks(heads_at_once) {
        for &tile in &order {
            for &(batch, head) in together {
                if let Some(Reverse((load, block))) = least.pop() {
                    lists[block].push([batch as u32, (tile << 16 | head) as u32]);
                    least.push(Reverse((load + costs[tile], block)));
                }
            }
        }
    }
    let rounds = lists.iter().map(Vec::len).max().unwrap_or(0) + 2;
    let mut words = vec![END; rounds * blocks * WORDS as usize];
    for (block, list) in lists.iter().enumerate() {
        for (round, entry) in list.iter().enumerate() {
            let at = (round * blocks + block) * WORDS as usize;
            words[at..at + 2].copy_from_slice(entry);
        }
    }
    (blocks as u32, words.into())
}

/// Heads, of all batches, whose K and V fit into [`L2_BYTES`]: whole groups that share them.
fn heads_at_once(problem: &Problem) -> usize {
    let row_bytes = problem.dtype().size_bytes() * (problem.head_dim() + problem.head_dim_v());
    let groups = (L2_BYTES / (problem.seq_len_kv() * row_bytes).max(1)).max(1);
    groups * problem.group_size()
}

/// What a tile of rows costs, in turns.
fn cost(problem: &Problem, tile: usize, rows: u32, cols: u32) -> u64 {
    let first = tile * rows as usize;
    let last = (first + rows as usize).min(problem.seq_len_q()) - 1;
    let (low, high) = (problem.visible_keys(first), problem.visible_keys(last));
    let (cols, begin, end) = (cols as usize, low.start, high.end.max(low.start));
    (end.div_ceil(cols).saturating_sub(begin / cols)).max(1) as u64 + TILE_COST
}

#[cfg(test)]
mod tests {
    use flashcore_problem::Mask;

    use super::*;

    /// Entries by block: (batch, head, tile).
    fn lists(problem: &Problem, rows: u32, cols: u32, sms: u32) -> Vec<Vec<(u32, u32, u32)>> {
        let (blocks, words) = table(problem, rows, cols, sms);
        let mut lists = vec![Vec::new(); blocks as usize];
        for (i, entry) in words.chunks(2).enumerate() {
            if entry[0] != END {
                lists[i % blocks as usize].push((entry[0], entry[1] & 0xffff, entry[1] >> 16));
            }
        }
        let last = &words[words.len() - 2 * blocks as usize..];
        assert!(
            last.iter().all(|&word| word == END),
            "every list ends, and one entry further too"
        );
        lists
    }

    #[test]
    fn every_tile_is_computed_once_and_blocks_have_about_the_same_to_do() {
        let problem = Problem::builder()
            .batch(2)
            .heads(16, 4)
            .seq_len(4000)
            .head_dim(128)
            .mask(Mask::CAUSAL)
            .build()
            .unwrap();
        let lists = lists(&problem, 128, 128, 132);
        let mut all: Vec<_> = lists.iter().flatten().copied().collect();
        all.sort_unstable();
        let expected: Vec<_> = (0..2)
            .flat_map(|b| (0..16).flat_map(move |h| (0..32).map(move |t| (b, h, t))))
            .collect();
        assert_eq!(all, expected);
        let load = |list: &Vec<(u32, u32, u32)>| -> u64 {
            list.iter().map(|&(_, _, t)| cost(&problem, t as usize, 128, 128)).sum()
        };
        let loads: Vec<u64> = lists.iter().map(load).collect();
        let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
        assert!(most - least <= 4, "{least} to {most}");
        assert!(
            lists.iter().all(|list| list[0].2 >= list[list.len() - 1].2),
            "long ones first"
        );
    }

    #[test]
    fn few_tiles_have_a_block_each() {
        let problem = Problem::named("mission").unwrap();
        let lists = lists(&problem, 128, 128, 132);
        assert_eq!(lists.len(), 32);
        assert!(lists.iter().all(|list| list.len() == 1));
    }
}
