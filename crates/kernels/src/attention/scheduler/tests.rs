//! Work lists: every tile once, balanced, with every key that rows see.

use std::cell::Cell;

use flashcore_problem::Mask;
use proptest::prelude::*;

use super::item::NO_ROWS;
use super::*;

const TILING: Tiling = Tiling {
    rows: 128,
    cols: 128,
    cluster: 1,
    splits: 1,
    packing: Packing::NONE,
};

thread_local! {
    /// Lists made by this thread.
    pub(crate) static LISTS: Cell<usize> = const { Cell::new(0) };
}

/// Q tile `index`.
fn tile_of(problem: &Problem, index: usize, rows: usize, cols: usize) -> Tile<i64> {
    let (first, end) = ((index * rows) as i64, problem.seq_len_q() as i64);
    let visible = |row: i64| {
        let keys = problem.key_range().keys(row as usize);
        (keys.start as i64, keys.end as i64)
    };
    Tile::new(visible, first, end, rows as u32, cols as u32)
}

/// Items by block: (batch, head, tile).
fn lists(problem: &Problem, tiling: Tiling) -> Vec<Vec<(u32, u32, u32)>> {
    let (blocks, words) = work_lists(problem, tiling, &problem.key_range(), 132);
    let mut lists = vec![Vec::new(); blocks as usize];
    for (i, item) in words.chunks(WORDS).enumerate() {
        if item[0] != END {
            lists[i % blocks as usize].push((item[0] & 0xffff, item[1] & 0xffff, item[1] >> 16));
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
    let lists = lists(&problem, TILING);
    let mut all: Vec<_> = lists.iter().flatten().copied().collect();
    all.sort_unstable();
    let expected: Vec<_> = (0..2)
        .flat_map(|b| (0..16).flat_map(move |h| (0..32).map(move |t| (b, h, t))))
        .collect();
    assert_eq!(all, expected);
    let load = |list: &Vec<(u32, u32, u32)>| -> u64 {
        list.iter()
            .map(|&(_, _, t)| cost(&tile_of(&problem, t as usize, 128, 128)))
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
        let lists = lists(&problem, Tiling { cluster: 2, ..TILING });
        assert_eq!(lists.len(), 132);
        let mut all: Vec<_> = lists.iter().flatten().copied().filter(|item| item.2 < 32).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 16 * 32, "each tile once");
        for pair in lists.chunks(2) {
            assert_eq!(pair[0].len(), pair[1].len());
            for (&(_, head, tile), &(_, other, neighbour)) in pair[0].iter().zip(&pair[1]) {
                match pairs {
                    "heads" => assert_eq!((other, neighbour), (head + 1, tile)),
                    _ => assert_eq!((other, neighbour), (head, tile + 1)),
                }
            }
        }
    }
}

#[test]
fn few_tiles_have_a_block_each() {
    let problem = Problem::named("small").unwrap();
    let lists = lists(&problem, TILING);
    assert_eq!(lists.len(), 32);
    assert!(lists.iter().all(|list| list.len() == 1));
}

/// K blocks in the order of a kernel's iterations, and whether each is masked.
fn blocks(tile: &Tile<i64>) -> Vec<(usize, bool)> {
    let order = &tile.order;
    let block = |i: i64| (order.n_block(i) as usize, i < order.masked);
    (0..order.count).map(block).collect()
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
    let tiling = Tiling { splits: 4, ..TILING };
    let (blocks, words) = work_lists(&problem, tiling, &problem.key_range(), 132);
    let items: Vec<&[u32]> = words.chunks(WORDS).filter(|item| item[0] != END).collect();
    assert_eq!((blocks, items.len()), (128, 128));
    let mut all: Vec<_> = items
        .iter()
        .map(|item| (item[1] & 0xffff, item[1] >> 16, item[FULLY_MASKED] >> 24))
        .collect();
    all.sort_unstable();
    let expected: Vec<_> = (0..8)
        .flat_map(|head| (0..4).flat_map(move |tile| (0..4).map(move |split| (head, tile, split))))
        .collect();
    assert_eq!(all, expected);
    let blocks_of: Vec<u32> = items.iter().map(|item| item[7]).collect();
    assert_eq!((blocks_of.iter().min(), blocks_of.iter().max()), (Some(&15), Some(&16)));
}

#[test]
fn no_sm_is_busy_long_after_the_others() {
    // K and V of 6, 7, 10 and 20 heads fit into the L2 cache at a time.
    for (batch, heads, seq_len) in [(1, 8, 5300), (3, 8, 4200), (1, 32, 3000), (2, 32, 1604)] {
        let problem = Problem::builder()
            .batch(batch)
            .heads(heads, heads)
            .seq_len(seq_len)
            .head_dim(256)
            .mask(Mask::CAUSAL)
            .build()
            .unwrap();
        let work = Tiles::new(&problem, TILING, 132).work(64);
        let blocks = |blocks, items| blocks + TILE_COST * items;
        let (most, mean) = (work.makespan(blocks), work.mean(blocks));
        assert!(100 * most <= 112 * mean, "{seq_len}: {most}, {mean} on average");
    }
}

/// The most that a block of the lists has to do: K blocks with what a tile costs besides, the same in keys, and items.
fn most_of_lists(problem: &Problem, tiling: Tiling, sms: u32, keys: impl Fn(u64, u64) -> u64) -> [u64; 3] {
    let (blocks, words) = work_lists(problem, tiling, &problem.key_range(), sms);
    let mut loads = vec![(0, 0); blocks as usize];
    for (place, item) in words.chunks(WORDS).enumerate().filter(|(_, item)| item[0] != END) {
        let (load, items) = &mut loads[place % blocks as usize];
        *load += u64::from(item[7]) + TILE_COST;
        *items += 1;
    }
    loads
        .into_iter()
        .map(|(load, items)| [load, keys(load - TILE_COST * items, items), items])
        .reduce(|a, b| std::array::from_fn(|of| a[of].max(b[of])))
        .unwrap()
}

/// A K/V head's query heads together: 36 queries a tile of three warpgroups, where five heads leave four rows of each
/// over.
#[test]
fn packed_heads_have_the_tiles_of_one() {
    let problem = Problem::builder().batch(2).heads(10, 2).seq_len_q(75).seq_len_kv(300);
    let problem = problem.head_dim(64).mask(Mask::CAUSAL).build().unwrap();
    let packing = Packing::all_of(&problem);
    let tiling = Tiling {
        rows: 192,
        packing,
        ..TILING
    };
    let (_, words) = work_lists(&problem, tiling, &problem.key_range(), 132);
    let items: Vec<&[u32]> = words.chunks(WORDS).filter(|item| item[0] != END).collect();
    let place = |item: &&[u32]| (item[0] & 0xffff, item[0] >> 16, item[1] & 0xffff, item[1] >> 16);
    let mut all: Vec<_> = items.iter().map(place).collect();
    all.sort_unstable();
    // Batch, K/V head, its first query head, and tile.
    let of_batch = |b| (0..2).flat_map(move |h| (0..3).map(move |t| (b, h, 5 * h, t)));
    assert_eq!(all, (0..2).flat_map(of_batch).collect::<Vec<_>>());
    // Of the last tile's three queries the first warpgroup has all.
    let mut last = items.iter().filter(|item| item[1] >> 16 == 2);
    assert!(last.all(|item| item[FULLY_MASKED] == u32::from_le_bytes([0, 0xff, 0xff, 0])));
}

/// A warpgroup's rows have its queries, dead ones the last of them.
#[test]
fn rows_of_tiles_are_those_of_queries() {
    for group in [1, 3, 8, 33, 64] {
        let problem = Problem::builder()
            .heads(group, 1)
            .seq_len(300)
            .head_dim(64)
            .build()
            .unwrap();
        let packing = Packing::all_of(&problem);
        let queries: Vec<usize> = (0..packing.rows_of(300)).map(packing.query_of()).collect();
        assert!(queries.is_sorted() && queries.last() == Some(&299));
        for query in 0..300 {
            let rows = queries.iter().filter(|&&of_row| of_row == query).count();
            let last = (query + 1) % packing.queries() as usize == 0;
            let dead = if last { (64 - packing.rows()) as usize } else { 0 };
            assert_eq!(rows, group + dead, "{group} heads, query {query}");
        }
    }
}

proptest! {
    #[test]
    fn the_makespan_of_lists_is_theirs(
        (batch, kv_heads, group) in (1usize..4, 1usize..9, 1usize..5),
        (seq_q, seq_kv) in (1usize..2500, 1usize..2500),
        (rows, cols, cluster, splits) in (1u32..=3, 2u32..=12, 1u32..=2, 1u32..=5),
        (left, right) in (proptest::option::of(0u32..900), proptest::option::of(0u32..900)),
        (sms, packs) in (1u32..280, any::<bool>()),
    ) {
        let mask = Mask { window_left: left, window_right: right, ..Mask::FULL };
        let problem = Problem::builder().batch(batch).heads(kv_heads * group, kv_heads).mask(mask);
        let problem = problem.seq_len_q(seq_q).seq_len_kv(seq_kv).head_dim(64).build().unwrap();
        let packing = if packs { Packing::all_of(&problem) } else { Packing::NONE };
        let tiling = Tiling { rows: 64 * rows, cols: 16 * cols, cluster, splits, packing };
        let work = Tiles::new(&problem, tiling, sms).work(tiling.cols);
        let of_blocks = |blocks, items| blocks + TILE_COST * items;
        let of_keys = |blocks, items| blocks * u64::from(tiling.cols) + 96 * items;
        let [blocks, keys, items] = most_of_lists(&problem, tiling, sms, of_keys);
        let found = [work.makespan(of_blocks), work.makespan(of_keys), work.makespan(|_, items| items)];
        prop_assert_eq!(found, [blocks, keys, items]);
        prop_assert!(work.mean(of_keys) <= keys);
        let whole = Tiling { splits: 1, ..tiling };
        let tiles = Tiles::new(&problem, whole, sms);
        let work_of_whole = tiles.work(whole.cols);
        prop_assert!(tiles.least(tiling.cols, of_keys) <= work_of_whole.mean(of_keys));
        let (_, words) = work_lists(&problem, tiling, &problem.key_range(), sms);
        let items = words.chunks(WORDS).filter(|item| item[0] != END);
        let longest = items.map(|item| u64::from(item[7])).max().unwrap();
        prop_assert_eq!(work.longest(), longest);
    }

    #[test]
    fn an_item_goes_to_the_first_of_those_with_the_least_to_do(
        mut costs in proptest::collection::vec(1u64..40, 1..30),
        (count, groups, sharing, rounds) in (1usize..MAX_CLUSTERS, 1usize..20, 1usize..4, 1usize..20),
    ) {
        costs.sort_unstable_by_key(|cost| Reverse(*cost));
        let (all_heads, rounds) = (groups * sharing, rounds.min(groups));
        let clusters = Clusters { count, heads: 1, tiles: 1, per_head: costs.len(), all_heads, sharing, rounds };
        let assigned = clusters.assign(&costs);
        prop_assert_eq!(assigned.len(), costs.len() * all_heads);
        let mut loads = vec![0; count];
        // Round by round, longest items first; as many heads in each, or those of one more K/V head.
        let of_round = |heads: Range<usize>| costs.iter().flat_map(move |cost| heads.clone().map(move |_| *cost));
        for (cost, &cluster) in clusters.heads_of_rounds().flat_map(of_round).zip(&assigned) {
            let first = (0..count).min_by_key(|&cluster| loads[cluster]);
            prop_assert_eq!(Some(cluster as usize), first);
            loads[cluster as usize] += cost;
        }
        let least = groups / rounds * sharing;
        prop_assert!(clusters.heads_of_rounds().all(|heads| heads.len() == least || heads.len() == least + sharing));
    }

    #[test]
    fn blocks_cover_what_is_seen_and_mask_what_is_not(
        (seq_q, seq_kv) in (1usize..700, 1usize..700),
        (rows, cols) in (1usize..=6, 2usize..=12),
        (left, right) in (proptest::option::of(0u32..300), proptest::option::of(0u32..300)),
    ) {
        let (rows, cols) = (64 * rows, 16 * cols);
        let mask = Mask { window_left: left, window_right: right, ..Mask::FULL };
        let problem = Problem::builder().heads(1, 1).seq_len_q(seq_q).seq_len_kv(seq_kv).head_dim(64).mask(mask).build().unwrap();
        for index in 0..seq_q.div_ceil(rows) {
            let tile = tile_of(&problem, index, rows, cols);
            let blocks_of = blocks(&tile);
            let mut numbers: Vec<usize> = blocks_of.iter().map(|block| block.0).collect();
            numbers.sort_unstable();
            numbers.dedup();
            prop_assert_eq!(numbers.len(), tile.order.count as usize, "{:?}: each once", &tile);
            for row in index * rows..((index + 1) * rows).min(seq_q) {
                let seen = problem.visible_keys(row);
                let fully_masked = tile.fully_masked[(row - index * rows) / 64].unwrap() as usize;
                for (i, &(number, masked)) in blocks_of.iter().enumerate() {
                    let of_tile = number * cols..(number + 1) * cols;
                    let whole = seen.start <= of_tile.start && of_tile.end <= seen.end;
                    prop_assert!(masked || whole, "{:?}: row {} sees {:?}", &tile, row, &seen);
                    let some = seen.start < of_tile.end && of_tile.start < seen.end;
                    prop_assert!(i >= fully_masked || !some, "{:?}: row {} sees {:?}", &tile, row, &seen);
                }
                for key in [seen.start, seen.end.saturating_sub(1)] {
                    prop_assert!(!seen.contains(&key) || numbers.contains(&(key / cols)));
                }
            }
        }
    }

    #[test]
    fn splits_are_the_blocks_of_the_tile_one_after_another(
        (seq_q, seq_kv, splits) in (1usize..500, 1usize..700, 1usize..12),
        (rows, cols) in (1usize..=6, 2usize..=12),
        (left, right) in (proptest::option::of(0u32..300), proptest::option::of(0u32..300)),
    ) {
        let (rows, cols) = (64 * rows, 16 * cols);
        let mask = Mask { window_left: left, window_right: right, ..Mask::FULL };
        let problem = Problem::builder().heads(1, 1).seq_len_q(seq_q).seq_len_kv(seq_kv).head_dim(64).mask(mask).build().unwrap();
        let past = seq_kv.div_ceil(cols);
        for index in 0..seq_q.div_ceil(rows) {
            let tile = tile_of(&problem, index, rows, cols);
            let parts: Vec<Tile<i64>> = (0..splits).map(|split| tile.split(split, splits, past)).collect();
            if splits == 1 {
                prop_assert_eq!(&parts[0], &tile);
            }
            let (some, none) = parts.split_at((tile.order.count as usize).min(splits));
            let together: Vec<_> = some.iter().flat_map(blocks).collect();
            prop_assert_eq!(together, blocks(&tile), "{:?}", &parts);
            let blocks_of = some.iter().map(|part| part.order.count as usize);
            prop_assert!(blocks_of.clone().max() <= blocks_of.min().map(|least| least + 1), "{:?}", &parts);
            for part in none {
                prop_assert_eq!(blocks(part), [(past, true)]);
            }
            for (group, fully_masked) in tile.fully_masked.into_iter().flatten().enumerate() {
                let mut before = 0;
                for part in &parts {
                    let expected = match fully_masked {
                        no_rows if no_rows == i64::from(NO_ROWS) => no_rows,
                        // One block at least, that stores that there is nothing.
                        _ => (fully_masked - before).max(0).min(part.order.count - 1),
                    };
                    prop_assert_eq!(part.fully_masked[group], Some(expected), "{:?} of {:?}", part, &tile);
                    before += part.order.count;
                }
            }
        }
    }
}
