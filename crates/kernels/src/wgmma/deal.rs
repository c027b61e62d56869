//! The lists that blocks go through ([`super::schedule`]), worked out on the host.
//!
//! They are made greedily: the longest tile that is left goes to the block with the least to do. Heads whose K and V fit into
//! the L2 cache together come together.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use flashcore_problem::{KeyRange, Problem};

use super::Config;
use super::schedule::{END, NO_ROWS, WORDS};

/// Bytes of K and V that should be read at a time: about half of an H200's L2 cache.
const L2_BYTES: usize = 32 << 20;

/// Warpgroups at most that a tile has: three in each block of a cluster.
const GROUPS: usize = 6;

/// Turns' worth of work that a tile costs besides its turns: its first and last products, which nothing overlaps.
const TILE_COST: u64 = 2;
/// What a tile costs besides, in keys: what fits times of 102 problems best (`defaults/measured`).
const TILE_KEYS: u64 = 96;

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

    /// The turns of one of `count` splits, as many as others have or one more. Where there are none left it has one past
    /// all keys, at tile `past`, of which the mask leaves nothing: somebody must say so in the part.
    fn split(&self, index: usize, count: usize, past: usize) -> Tile {
        let (each, rest) = (self.turns / count, self.turns % count);
        let (begin, turns) = (index * each + index.min(rest), each + usize::from(index < rest));
        let unseen = |turns: usize| {
            self.unseen.map(|unseen| match unseen {
                NO_ROWS => NO_ROWS,
                unseen => unseen.saturating_sub(begin as u32).min(turns as u32 - 1),
            })
        };
        if turns == 0 {
            return Tile {
                lowest: past,
                highest: past,
                whole: past,
                masked_low: 0,
                masked: 1,
                turns: 1,
                unseen: unseen(1),
            };
        }
        let left = |before: usize| before.saturating_sub(begin).min(turns);
        let (masked_low, masked) = (left(self.masked_low), left(self.masked));
        Tile {
            lowest: self.lowest + begin,
            // Each kind of turn goes on where the splits before left off; where it has none left, what it would begin with
            // matters to nobody.
            highest: (self.highest + self.masked_low).saturating_sub(begin + masked_low),
            whole: (self.whole + begin + masked).saturating_sub(self.masked),
            masked_low,
            masked,
            turns,
            unseen: unseen(turns),
        }
    }

    /// The entry of the block whose tile it is, and whose warpgroups are those from `first_group` on: keys of each kind
    /// of turn are relative to turn 0.
    fn words(
        &self,
        [batch, head, kv_head, tile]: [usize; 4],
        split: usize,
        first_group: usize,
        cols: usize,
    ) -> [u32; WORDS] {
        let unseen = |group: usize| self.unseen.get(first_group + group).copied().unwrap_or(NO_ROWS);
        let pair = |low: usize, high: usize| (high << 16 | low) as u32;
        [
            pair(batch, kv_head),
            pair(head, tile),
            (self.lowest * cols) as u32,
            ((self.highest + self.masked_low) * cols) as u32,
            (self.whole * cols).wrapping_sub(self.masked * cols) as u32,
            pair(self.masked_low, self.masked),
            unseen(0) | unseen(1) << 8 | unseen(2) << 16 | (split as u32) << 24,
            self.turns as u32,
        ]
    }

    /// What it costs, in turns.
    fn cost(&self) -> u64 {
        self.turns as u64 + TILE_COST
    }
}

/// Blocks of the grid, one an SM or as many as a cluster has, and the table that [`List`](super::schedule::List) reads.
/// Blocks of a cluster go through the same tiles of keys: they have the same rows of heads that share them, where there
/// are such heads, or rows beside each other. Where keys are split, each split of a tile is an entry.
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
    let splits = levers.splits as usize;
    let clusters = (problem.batch() * heads * tiles * splits).clamp(1, (sms as usize / cluster).max(1));
    let past = problem.seq_len_kv().div_ceil(cols);
    let mut order: Vec<(usize, usize, Tile)> = (0..tiles)
        .flat_map(|index| {
            let tile = Tile::new(seen, problem.seq_len_q(), index, by_tiles * rows, cols);
            (0..splits).map(move |split| (index, split, tile.split(split, splits, past)))
        })
        .collect();
    order.sort_by_key(|&(index, split, ref tile)| (Reverse(tile.cost()), Reverse(index), split));
    let all: Vec<(usize, usize)> = (0..problem.batch())
        .flat_map(|batch| (0..heads).map(move |head| (batch, head * by_heads)))
        .collect();
    let mut lists: Vec<Vec<[u32; WORDS]>> = vec![Vec::new(); cluster * clusters];
    let mut least = BinaryHeap::from_iter((0..clusters).map(|cluster| Reverse((0u64, cluster))));
    for together in all.chunks(heads_at_once(problem) / by_heads) {
        for (index, split, tile) in &order {
            for &(batch, head) in together {
                if let Some(Reverse((load, chosen))) = least.pop() {
                    let kv_head = head / problem.group_size();
                    for rank in 0..cluster {
                        let (other, beside) = (rank % by_heads, rank % by_tiles);
                        let place = [batch, head + other, kv_head, index * by_tiles + beside];
                        lists[chosen * cluster + rank].push(tile.words(place, *split, beside * groups, cols));
                    }
                    least.push(Reverse((load + tile.cost(), chosen)));
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

/// What the block with most to do has to do, in turns.
pub(super) fn longest(problem: &Problem, levers: &Config, sms: u32) -> u64 {
    most(problem, levers, sms, |turns| turns + TILE_COST)
}

/// The same in keys, which blocks of other tiles can be compared by.
pub(super) fn most_keys(problem: &Problem, levers: &Config, sms: u32) -> u64 {
    most(problem, levers, sms, |turns| turns * u64::from(levers.cols) + TILE_KEYS)
}

/// The largest sum of what a block's tiles cost, by their turns.
fn most(problem: &Problem, levers: &Config, sms: u32, cost: impl Fn(u64) -> u64) -> u64 {
    let (blocks, words) = table(problem, levers, &problem.key_range(), sms);
    let entries: Vec<&[u32]> = words.chunks(WORDS).collect();
    let list = |block| entries.iter().skip(block).step_by(blocks as usize);
    let lists = (0..blocks as usize).map(|block| list(block).take_while(|entry| entry[0] != END));
    lists
        .map(|list| list.map(|entry| cost(u64::from(entry[7]))).sum())
        .max()
        .unwrap_or(0)
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
    use crate::wgmma::schedule::UNSEEN;

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

    #[test]
    fn few_tiles_in_splits_fill_the_sms() {
        // A chunk of a long prompt: 32 tiles of 128 rows and 64 of 128 keys.
        let problem = Problem::builder()
            .heads(8, 8)
            .seq_len_q(512)
            .seq_len_kv(8192)
            .head_dim(128)
            .mask(Mask::CAUSAL)
            .build()
            .unwrap();
        let config = Config::from_id("m128n128-s2-turns-bold-k4").unwrap();
        let (blocks, words) = table(&problem, &config, &problem.key_range(), 132);
        let entries: Vec<&[u32]> = words.chunks(WORDS).filter(|entry| entry[0] != END).collect();
        assert_eq!((blocks, entries.len()), (128, 128));
        let mut all: Vec<_> = entries
            .iter()
            .map(|entry| (entry[1] & 0xffff, entry[1] >> 16, entry[UNSEEN] >> 24))
            .collect();
        all.sort_unstable();
        let expected: Vec<_> = (0..8)
            .flat_map(|head| (0..4).flat_map(move |tile| (0..4).map(move |split| (head, tile, split))))
            .collect();
        assert_eq!(all, expected);
        let turns: Vec<u32> = entries.iter().map(|entry| entry[7]).collect();
        assert_eq!((turns.iter().min(), turns.iter().max()), (Some(&15), Some(&16)));
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

        #[test]
        fn splits_are_the_turns_of_the_tile_one_after_another(
            (seq_q, seq_kv, splits) in (1usize..500, 1usize..700, 1usize..12),
            (rows, cols) in (1usize..=GROUPS, 2usize..=12),
            (left, right) in (proptest::option::of(0u32..300), proptest::option::of(0u32..300)),
        ) {
            let (rows, cols) = (64 * rows, 16 * cols);
            let mask = Mask { window_left: left, window_right: right, ..Mask::FULL };
            let problem = Problem::builder().seq_len_q(seq_q).seq_len_kv(seq_kv).head_dim(64).mask(mask).build().unwrap();
            let past = seq_kv.div_ceil(cols);
            for index in 0..seq_q.div_ceil(rows) {
                let tile = Tile::new(&problem.key_range(), seq_q, index, rows, cols);
                let parts: Vec<Tile> = (0..splits).map(|split| tile.split(split, splits, past)).collect();
                if splits == 1 {
                    prop_assert_eq!(&parts[0], &tile);
                }
                let (some, none) = parts.split_at(tile.turns.min(splits));
                let together: Vec<_> = some.iter().flat_map(keys).collect();
                prop_assert_eq!(together, keys(&tile), "{:?}", &parts);
                let turns = some.iter().map(|part| part.turns);
                prop_assert!(turns.clone().max() <= turns.min().map(|least| least + 1), "{:?}", &parts);
                for part in none {
                    prop_assert_eq!(keys(part), [(past, true)]);
                }
                for (group, &unseen) in tile.unseen.iter().enumerate() {
                    let mut before = 0;
                    for part in &parts {
                        let expected = match unseen {
                            NO_ROWS => NO_ROWS,
                            // One turn at least, that stores that there is nothing.
                            _ => (unseen as usize).saturating_sub(before).min(part.turns - 1) as u32,
                        };
                        prop_assert_eq!(part.unseen[group], expected, "{:?} of {:?}", part, &tile);
                        before += part.turns;
                    }
                }
            }
        }
    }
}
