//! Which block computes which tiles of query rows, and in which order: worked out on the host, read by the kernel.
//!
//! Blocks are persistent: each goes through a list of its own, so that the next tile's copies are under way while
//! this one is finished. The lists are made greedily: the longest tile that is left goes to the block with the least
//! to do. Heads whose K and V fit into the L2 cache together come together.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, Val, Var};
use flashcore_problem::{KeyRange, Problem};

use super::Config;

/// Bytes of K and V that should be read at a time: about half of an H200's L2 cache.
const L2_BYTES: usize = 32 << 20;

/// What fills the entries after the last of a list.
const END: u32 = u32::MAX;

/// Warpgroups at most that a tile has: three in each block of a cluster.
const GROUPS: usize = 6;

/// Words of an entry: see [`Tile::words`].
const WORDS: usize = 8;

/// The word of an entry that says what warpgroups do not see.
const UNSEEN: usize = 6;

/// Turns' worth of work that a tile costs besides its turns: its first and last products, which nothing overlaps.
const TILE_COST: u64 = 2;

/// Batches, heads, tiles of rows and tiles of keys that an entry can name.
pub(super) const MOST: usize = 1 << 16;

/// In place of the turns that a warpgroup passes over: it has no rows.
const NO_ROWS: u32 = 0xff;

/// A block's list as its warps read it. The copying warp reads each entry a tile earlier than the others, which find
/// it in the L1 cache.
pub(super) struct List<'k> {
    k: &'k KernelBuilder,
    table: GlobalPtr<'k, u32>,
    rows: u32,
    cols: u32,
    /// Number in the table of the entry at hand.
    this: Var<'k, u32>,
}

/// An entry of a list: a tile of query rows to be computed.
pub(super) struct Entry<'k> {
    words: Vec<Val<'k, u32>>,
    rows: u32,
    cols: u32,
}

/// As much of the entry after as is needed before its turn comes.
pub(super) struct Next<'k> {
    unseen: Val<'k, u32>,
}

impl<'k> List<'k> {
    /// At the first entry. There always is one.
    #[track_caller]
    pub(super) fn new(k: &'k KernelBuilder, table: GlobalPtr<'k, u32>, levers: &Config) -> Self {
        List {
            k,
            table,
            rows: levers.rows,
            cols: levers.cols,
            this: k.var(k.block_idx(0)),
        }
    }

    /// The entry at hand.
    #[track_caller]
    pub(super) fn this(&self) -> Entry<'k> {
        let place = self.table.offset(self.this.get() * WORDS as u32);
        let mut words = place.load_words(4, Cache::ReadOnly);
        words.extend(place.plus(4).load_words(4, Cache::ReadOnly));
        Entry {
            words,
            rows: self.rows,
            cols: self.cols,
        }
    }

    /// The entry after.
    #[track_caller]
    pub(super) fn next(&self) -> Next<'k> {
        let place = self.table.offset((self.this + self.k.grid_dim(0)) * WORDS as u32);
        Next {
            unseen: place.plus(UNSEEN as i32).load_words(1, Cache::ReadOnly)[0],
        }
    }

    /// Goes on to the entry after.
    #[track_caller]
    pub(super) fn advance(&self) {
        self.this.add_assign(self.k.grid_dim(0));
    }
}

impl<'k> Next<'k> {
    /// Whether there is one.
    #[track_caller]
    pub(super) fn exists(&self) -> Val<'k, bool> {
        self.unseen.ne(END)
    }

    /// Whether a warpgroup's rows see something in its first turn.
    #[track_caller]
    pub(super) fn sees_at_once(&self, warpgroup: Val<'k, u32>) -> Val<'k, bool> {
        (self.unseen >> (warpgroup * 8) & 0xff).eq(0)
    }
}

impl<'k> Entry<'k> {
    #[track_caller]
    pub(super) fn batch(&self) -> Val<'k, u32> {
        self.low(0)
    }

    #[track_caller]
    pub(super) fn kv_head(&self) -> Val<'k, u32> {
        self.high(0)
    }

    #[track_caller]
    pub(super) fn head(&self) -> Val<'k, u32> {
        self.low(1)
    }

    /// The tile's first query row.
    #[track_caller]
    pub(super) fn first_row(&self) -> Val<'k, u32> {
        self.high(1) * self.rows
    }

    /// Turns: tiles of keys to go through.
    pub(super) fn turns(&self) -> Val<'k, u32> {
        self.words[7]
    }

    /// Turns, the first ones, that need a mask.
    #[track_caller]
    pub(super) fn masked(&self) -> Val<'k, u32> {
        self.high(5)
    }

    /// First key of the tile of a turn.
    #[track_caller]
    pub(super) fn first_key(&self, turn: Val<'k, u32>) -> Val<'k, u32> {
        let whole = self.words[4] + turn * self.cols;
        turn.lt(self.masked()).select(self.first_masked_key(turn), whole)
    }

    /// The same of a turn that needs a mask.
    #[track_caller]
    pub(super) fn first_masked_key(&self, turn: Val<'k, u32>) -> Val<'k, u32> {
        let past = turn * self.cols;
        turn.lt(self.low(5)).select(self.words[2] + past, self.words[3] - past)
    }

    /// Turns, the first ones, in which a warpgroup's rows see nothing; all of them if it has no rows.
    #[track_caller]
    pub(super) fn unseen(&self, warpgroup: Val<'k, u32>) -> Val<'k, u32> {
        let unseen = self.words[UNSEEN] >> (warpgroup * 8) & 0xff;
        unseen.eq(NO_ROWS).select(self.turns(), unseen)
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

/// The tiles of keys that a tile of query rows takes, that of a block or those of a cluster's blocks together, in
/// turns: those that need a mask at the low end, upwards; those at the high end, downwards, so that what the first rows
/// do not see at all comes first; and those that every row sees whole, upwards.
#[derive(Clone, Debug, PartialEq)]
struct Tile {
    lowest: usize,
    highest: usize,
    whole: usize,
    masked_low: usize,
    masked: usize,
    /// One even where no key is seen, of which the mask leaves nothing.
    turns: usize,
    unseen: [u32; GROUPS],
}

impl Tile {
    fn new(seen: &KeyRange, seq_len_q: usize, tile: usize, rows: usize, cols: usize) -> Tile {
        let first = tile * rows;
        let last = (first + rows).min(seq_len_q) - 1;
        let (low, high) = (seen.keys(first), seen.keys(last));
        // Bounds grow with the row: the first row sees the lowest key, the last row the highest.
        let (lowest, end) = (low.start / cols, high.end.div_ceil(cols).max(low.start / cols));
        let whole = high.start.div_ceil(cols).clamp(lowest, end);
        let whole_end = (low.end / cols).clamp(whole, end);
        let masked_low = whole - lowest;
        let (masked, turns) = (masked_low + (end - whole_end), (end - lowest).max(1));
        let unseen = std::array::from_fn(|group| {
            let first = first + 64 * group;
            if 64 * group >= rows || first >= seq_len_q {
                return NO_ROWS;
            }
            let sees = seen.keys((first + 63).min(last)).end.div_ceil(cols);
            let unseen = if masked_low == 0 { end.saturating_sub(sees) } else { 0 };
            unseen.min(masked).min(turns - 1) as u32
        });
        Tile {
            lowest,
            highest: end.saturating_sub(1),
            whole,
            masked_low,
            // What sees nothing must be masked.
            masked: if end == lowest { 1 } else { masked },
            turns,
            unseen,
        }
    }

    /// The entry of the block whose tile it is, and whose warpgroups are those from `first_group` on: keys of each kind
    /// of turn are relative to turn 0.
    fn words(&self, [batch, head, kv_head, tile]: [usize; 4], first_group: usize, cols: usize) -> [u32; WORDS] {
        let unseen = |group: usize| self.unseen.get(first_group + group).copied().unwrap_or(NO_ROWS);
        let pair = |low: usize, high: usize| (high << 16 | low) as u32;
        [
            pair(batch, kv_head),
            pair(head, tile),
            (self.lowest * cols) as u32,
            ((self.highest + self.masked_low) * cols) as u32,
            (self.whole * cols).wrapping_sub(self.masked * cols) as u32,
            pair(self.masked_low, self.masked),
            unseen(0) | unseen(1) << 8 | unseen(2) << 16,
            self.turns as u32,
        ]
    }

    /// What it costs, in turns.
    fn cost(&self) -> u64 {
        self.turns as u64 + TILE_COST
    }
}

/// Blocks of the grid, one an SM or as many as a cluster has, and the table that [`List`] reads. Blocks of a cluster go
/// through the same tiles of keys: they have the same rows of heads that share them, where there are such heads, or
/// rows beside each other.
pub(super) fn table(problem: &Problem, levers: &Config, seen: &KeyRange, sms: u32) -> (u32, Arc<[u32]>) {
    let (rows, cols) = (levers.rows as usize, levers.cols as usize);
    let (cluster, groups) = (levers.cluster as usize, levers.warpgroups() as usize);
    let (by_heads, by_tiles) = match problem.group_size().is_multiple_of(cluster) {
        true => (cluster, 1),
        false => (1, cluster),
    };
    let (heads, tiles) = (
        problem.num_heads() / by_heads,
        problem.seq_len_q().div_ceil(by_tiles * rows),
    );
    let clusters = (problem.batch() * heads * tiles).clamp(1, (sms as usize / cluster).max(1));
    let tiles: Vec<Tile> = (0..tiles)
        .map(|tile| Tile::new(seen, problem.seq_len_q(), tile, by_tiles * rows, cols))
        .collect();
    let mut order: Vec<usize> = (0..tiles.len()).collect();
    order.sort_by_key(|&tile| (Reverse(tiles[tile].cost()), Reverse(tile)));
    let all: Vec<(usize, usize)> = (0..problem.batch())
        .flat_map(|batch| (0..heads).map(move |head| (batch, head * by_heads)))
        .collect();
    let mut lists: Vec<Vec<[u32; WORDS]>> = vec![Vec::new(); cluster * clusters];
    let mut least = BinaryHeap::from_iter((0..clusters).map(|cluster| Reverse((0u64, cluster))));
    for together in all.chunks(heads_at_once(problem) / by_heads) {
        for &tile in &order {
            for &(batch, head) in together {
                if let Some(Reverse((load, chosen))) = least.pop() {
                    let kv_head = head / problem.group_size();
                    for rank in 0..cluster {
                        let (other, beside) = (rank % by_heads, rank % by_tiles);
                        let place = [batch, head + other, kv_head, tile * by_tiles + beside];
                        lists[chosen * cluster + rank].push(tiles[tile].words(place, beside * groups, cols));
                    }
                    least.push(Reverse((load + tiles[tile].cost(), chosen)));
                }
            }
        }
    }
    let rounds = lists.iter().map(Vec::len).max().unwrap_or(0) + 1;
    let blocks = lists.len();
    let mut words = vec![END; rounds * blocks * WORDS];
    for (block, list) in lists.iter().enumerate() {
        for (round, entry) in list.iter().enumerate() {
            let at = (round * blocks + block) * WORDS;
            words[at..at + WORDS].copy_from_slice(entry);
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

#[cfg(test)]
mod tests {
    use flashcore_problem::Mask;
    use proptest::prelude::*;

    use super::*;

    /// Entries by block: (batch, head, tile).
    fn lists(problem: &Problem, id: &str) -> Vec<Vec<(u32, u32, u32)>> {
        let (blocks, words) = table(problem, &Config::from_id(id).unwrap(), &problem.key_range(), 132);
        let mut lists = vec![Vec::new(); blocks as usize];
        for (i, entry) in words.chunks(WORDS).enumerate() {
            if entry[0] != END {
                lists[i % blocks as usize].push((entry[0] & 0xffff, entry[1] & 0xffff, entry[1] >> 16));
            }
        }
        let last = &words[words.len() - WORDS * blocks as usize..];
        assert!(last.iter().all(|&word| word == END), "every list ends");
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
        let lists = lists(&problem, "m128n128-s2-turns-bold");
        let mut all: Vec<_> = lists.iter().flatten().copied().collect();
        all.sort_unstable();
        let expected: Vec<_> = (0..2)
            .flat_map(|b| (0..16).flat_map(move |h| (0..32).map(move |t| (b, h, t))))
            .collect();
        assert_eq!(all, expected);
        let load = |list: &Vec<(u32, u32, u32)>| -> u64 {
            list.iter()
                .map(|&(_, _, t)| Tile::new(&problem.key_range(), 4000, t as usize, 128, 128).cost())
                .sum()
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
    fn blocks_of_a_cluster_have_the_same_keys() {
        for (kv_heads, pairs) in [(8, "heads"), (16, "tiles")] {
            let problem = Problem::builder()
                .heads(16, kv_heads)
                .seq_len(4000)
                .head_dim(128)
                .mask(Mask::CAUSAL)
                .build()
                .unwrap();
            let lists = lists(&problem, "m128n128-s2-c2-turns-bold");
            assert_eq!(lists.len(), 132);
            let mut all: Vec<_> = lists.iter().flatten().copied().filter(|entry| entry.2 < 32).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 16 * 32, "each tile once");
            for pair in lists.chunks(2) {
                assert_eq!(pair[0].len(), pair[1].len());
                for (&(_, head, tile), &(_, other, beside)) in pair[0].iter().zip(&pair[1]) {
                    match pairs {
                        "heads" => assert_eq!((other, beside), (head + 1, tile)),
                        _ => assert_eq!((other, beside), (head, tile + 1)),
                    }
                }
            }
        }
    }

    #[test]
    fn few_tiles_have_a_block_each() {
        let problem = Problem::named("mission").unwrap();
        let lists = lists(&problem, "m128n128-s2-turns-bold");
        assert_eq!(lists.len(), 32);
        assert!(lists.iter().all(|list| list.len() == 1));
    }

    /// Tiles of keys in the order of a kernel's turns, and whether each is masked.
    fn keys(tile: &Tile) -> Vec<(usize, bool)> {
        let number = |turn: usize| match turn {
            turn if turn < tile.masked_low => tile.lowest + turn,
            turn if turn < tile.masked => tile.highest + tile.masked_low - turn,
            turn => tile.whole + turn - tile.masked,
        };
        (0..tile.turns).map(|turn| (number(turn), turn < tile.masked)).collect()
    }

    proptest! {
        #[test]
        fn turns_cover_what_is_seen_and_mask_what_is_not(
            (seq_q, seq_kv) in (1usize..700, 1usize..700),
            (rows, cols) in (1usize..=GROUPS, 2usize..=12),
            (left, right) in (proptest::option::of(0u32..300), proptest::option::of(0u32..300)),
        ) {
            let (rows, cols) = (64 * rows, 16 * cols);
            let mask = Mask { window_left: left, window_right: right, ..Mask::FULL };
            let problem = Problem::builder().seq_len_q(seq_q).seq_len_kv(seq_kv).head_dim(64).mask(mask).build().unwrap();
            for index in 0..seq_q.div_ceil(rows) {
                let tile = Tile::new(&problem.key_range(), seq_q, index, rows, cols);
                let turns = keys(&tile);
                let mut numbers: Vec<usize> = turns.iter().map(|turn| turn.0).collect();
                numbers.sort_unstable();
                numbers.dedup();
                prop_assert_eq!(numbers.len(), tile.turns, "{:?}: each once", &tile);
                for row in index * rows..((index + 1) * rows).min(seq_q) {
                    let seen = problem.visible_keys(row);
                    let unseen = tile.unseen[(row - index * rows) / 64] as usize;
                    for (turn, &(number, masked)) in turns.iter().enumerate() {
                        let of_tile = number * cols..(number + 1) * cols;
                        let whole = seen.start <= of_tile.start && of_tile.end <= seen.end;
                        prop_assert!(masked || whole, "{:?}: row {} sees {:?}", &tile, row, &seen);
                        let some = seen.start < of_tile.end && of_tile.start < seen.end;
                        prop_assert!(turn >= unseen || !some, "{:?}: row {} sees {:?}", &tile, row, &seen);
                    }
                    for key in [seen.start, seen.end.saturating_sub(1)] {
                        prop_assert!(!seen.contains(&key) || numbers.contains(&(key / cols)));
                    }
                }
            }
        }
    }
}
