//! The lists that the kernel makes are those of a host that walks along the line, and have every K block once.

use std::collections::BTreeMap;

use flashcore_problem::rng::Rng;
use flashcore_problem::{
    CausalAlign, KvLengths, Lengths, Mask, POISON, Problem, ProblemBuilder, QLengths, random_lengths,
};
use flashcore_sim::{SimOptions, simulate};
use proptest::prelude::*;

use super::*;
use crate::attention::forward::Sharing;
use crate::attention::query_rows::Packing;
use crate::attention::scheduler::{FULLY_MASKED, Place, Tile};

mod alike;
mod l2;
mod splits;

/// A schedule as its readers see it.
#[derive(Debug, PartialEq)]
struct Lists {
    /// By block.
    items: Vec<Vec<[u32; WORDS]>>,
    /// By tile or by block: pieces, and the first two words of their items.
    combined: Vec<[u32; 3]>,
}

/// What the kernel makes, run in the simulator.
fn on_device(problem: &Problem, schedule: &Schedule, lengths: &Lengths<Vec<i32>>) -> Lists {
    let request = Forward::new(problem, Sharing::new(Some(*schedule), 1));
    let step = Schedule::step(&request, &Shape::of_lengths(kinds(problem)), &KernelCache::default()).unwrap();
    let contents = step.launch.buffers.iter().map(|spec| match lengths.named(spec.name) {
        Some(values) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        None => vec![POISON; spec.bytes as usize],
    });
    let mut buffers: Vec<Vec<u8>> = contents.collect();
    let options = SimOptions {
        seed: 3,
        ..SimOptions::default()
    };
    let report = simulate(&step.kernel, &step.launch, &mut buffers, &options).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    let workspace = step.launch.buffers.iter().position(|spec| spec.name == "workspace");
    let bytes = &buffers[workspace.unwrap()];
    let places = schedule.places();
    let words = |start: u64, index: u32, count: usize| -> Vec<u32> {
        let start = start as usize + 4 * count * index as usize;
        let words = bytes[start..start + 4 * count].chunks(4);
        words.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let rows_of = rows_of_sequences(problem, lengths);
    let items = |block| {
        let range = words(places.ranges, block, 2);
        let item = |index| -> [u32; WORDS] { words(places.items, index, WORDS).try_into().unwrap() };
        let items: Vec<_> = (range[0]..range[1]).map(item).collect();
        let mut first = vec![0; FIRST_WORDS as usize];
        for (index, item) in (range[0]..range[1]).zip(&items) {
            let rows = rows_of[item[0] as usize & 0xffff];
            assert_eq!(words(places.item_rows, index, 4), rows);
            if index == range[0] {
                first = [&item[..], &rows].concat();
            }
        }
        assert_eq!(words(places.first_items, block, FIRST_WORDS as usize), first);
        items
    };
    Lists {
        items: (0..schedule.grid).map(items).collect(),
        combined: (0..schedule.combined())
            .map(|place| match words(places.combined, place, 4)[..] {
                [0, ..] => [0; 3],
                [pieces, first, second, _] => [pieces, first, second],
                _ => unreachable!(),
            })
            .collect(),
    }
}

/// By sequence: rows of Q and of K, and the first of each in packed tensors. Values that contradict the problem are cut
/// to its bounds.
fn rows_of_sequences(problem: &Problem, lengths: &Lengths<Vec<i32>>) -> Vec<[u32; 4]> {
    let axis = |batch: usize, starts: &Option<Vec<i32>>, used: &Option<Vec<i32>>, total: usize, most: usize| {
        let within = |value: i32, most: usize| usize::try_from(value).unwrap_or(0).min(most);
        let (first, rows) = starts.as_ref().map_or((0, most), |starts| {
            let [first, end] = [starts[batch], starts[batch + 1]].map(|start| within(start, total));
            (first, end.saturating_sub(first).min(most))
        });
        let rows = used.as_ref().map_or(rows, |used| within(used[batch], rows));
        [rows as u32, first as u32]
    };
    let [total_q, total_k] = [problem.q_layout(), problem.k_layout()].map(|layout| layout.shape[1]);
    let of = |batch| {
        let [rows, first] = axis(
            batch,
            &lengths.cu_seqlens_q,
            &lengths.seqused_q,
            total_q,
            problem.seq_len_q(),
        );
        let [keys, first_key] = axis(
            batch,
            &lengths.cu_seqlens_k,
            &lengths.seqused_k,
            total_k,
            problem.seq_len_kv(),
        );
        [rows, keys, first, first_key]
    };
    let rows: Vec<[u32; 4]> = (0..problem.batch()).map(of).collect();
    // Where no value contradicts the problem, nothing is cut.
    for (sequence, rows) in problem.sequences(&lengths.as_slices()).iter().flatten().zip(&rows) {
        assert_eq!([sequence.len_q, sequence.len_kv].map(|len| len as u32), rows[..2]);
    }
    rows
}

/// The Q tiles of all sequences and heads in the order of the line, each with its batch, head and number.
fn line(problem: &Problem, pieces: Pieces, lengths: &Lengths<Vec<i32>>) -> Vec<([u32; 3], Tile<i64>)> {
    let (heads, mut line) = (pieces.heads, Vec::new());
    let sharing = heads.of_problem(problem) / problem.num_kv_heads();
    for (batch, sequence) in problem.sequences(&lengths.as_slices()).unwrap().iter().enumerate() {
        let (rows, seen) = (heads.rows_of(problem, sequence.len_q), sequence.keys);
        let visible = |row: i64| {
            let keys = seen.keys(match heads {
                TileHeads::One => row as usize,
                TileHeads::Dense => row as usize / problem.group_size(),
                TileHeads::Warpgroups(packing) => packing.query_of()(row as usize),
            });
            (keys.start as i64, keys.end as i64)
        };
        let tile = |number: usize| {
            let first = number as i64 * i64::from(pieces.rows);
            Tile::new(visible, first, rows as i64, pieces.rows, pieces.cols)
        };
        let tiles: Vec<Tile<i64>> = (0..rows.div_ceil(pieces.rows as usize)).map(tile).collect();
        for first_head in (0..problem.num_heads()).step_by(problem.group_size()) {
            for (number, tile) in tiles.iter().enumerate() {
                let heads = (0..sharing).map(|shared| first_head + shared);
                line.extend(heads.map(|head| ([batch, head, number].map(|x| x as u32), *tile)));
            }
        }
    }
    line
}

fn cost(tile: &Tile<i64>) -> u64 {
    tile.order.count as u64 + TILE_COST
}

/// The same lists from the definition: rounds of whole tiles, then ranges that make up for what these leave uneven; a
/// cut that leaves too short a piece moved to the nearest end.
fn on_host(problem: &Problem, schedule: &Schedule, lengths: &Lengths<Vec<i32>>) -> Lists {
    let line = line(problem, schedule.pieces, lengths);
    let total: u64 = line.iter().map(|(_, tile)| cost(tile)).sum();
    let largest = line.iter().map(|(_, tile)| cost(tile)).max().unwrap_or(1);
    let of_round = u64::from(schedule.grid * ROUND_TILES) * largest;
    let most = u64::from(schedule.most_ranges(problem)[1]);
    let rounds = (total / of_round).clamp(1, most);
    let mean = total / (line.len() as u64).max(1);
    if rounds == 1 || mean * u64::from(EVEN[1]) >= largest * u64::from(EVEN[0]) {
        in_ranges(problem, schedule, &line, 1, total / u64::from(schedule.grid) / largest)
    } else {
        in_ranges(problem, schedule, &line, rounds, 0)
    }
}

/// Each block has `ahead` tiles before its ranges; or the line has several rounds.
fn in_ranges(problem: &Problem, schedule: &Schedule, line: &[([u32; 3], Tile<i64>)], rounds: u64, ahead: u64) -> Lists {
    let (grid, least) = (schedule.grid as usize, u64::from(schedule.pieces.least.max(1)));
    let words = |([batch, head, number], tile): &([u32; 3], Tile<i64>), slot: usize| {
        let kv_head = head / problem.group_size() as u32;
        let [batch, head, kv_head, tile_number] = [*batch, *head, kv_head, *number].map(i64::from);
        let place = Place {
            batch,
            head,
            kv_head,
            tile: tile_number,
            split: 0,
            slot: slot as i64,
        };
        let words = tile.words(place, 0, schedule.pieces.cols);
        words.map(|word| word as u32)
    };
    let total: u64 = line.iter().map(|(_, tile)| cost(tile)).sum();
    let mut lists = Lists {
        items: vec![Vec::new(); grid],
        combined: vec![[0; 3]; schedule.combined() as usize],
    };
    let (mut start, mut next, mut loads) = (0, 0, vec![0; grid]);
    for (number, of_line) in line[..ahead as usize * grid].iter().enumerate() {
        loads[number % grid] += cost(&of_line.1);
        lists.items[number % grid].push(words(of_line, 0));
        (start, next) = (start + cost(&of_line.1), next + 1);
    }
    // Whole tiles, each in the range that its middle is in.
    let whole_ranges = (rounds as usize - 1) * grid;
    let of_range = total / (rounds * grid as u64);
    for range in 0..whole_ranges {
        let end = (range as u64 + 1) * of_range;
        while next < line.len() && 2 * start + cost(&line[next].1) < 2 * end {
            loads[range % grid] += cost(&line[next].1);
            lists.items[range % grid].push(words(&line[next], 0));
            start += cost(&line[next].1);
            next += 1;
        }
    }
    // The rest.
    let each = total.div_ceil(grid as u64).max(least);
    let mut begins: Vec<u64> = (0..grid)
        .scan(start, |at, block| {
            let begin = *at;
            *at += each.saturating_sub(loads[block]).max(least);
            Some(begin.min(total))
        })
        .collect();
    if let Some(cuts) = alike::cuts(&line[next..], [total, each, least], grid, ahead).filter(|_| whole_ranges == 0) {
        begins = cuts.iter().map(|cut| (start + cut).min(total)).collect();
    }
    for (number, of_line) in line.iter().enumerate().skip(next) {
        let tile = &of_line.1;
        let (blocks, end) = (tile.order.count as u64, start + cost(tile));
        // K blocks before each cut in the tile, and the block of the grid that begins there.
        let before = begins.iter().rposition(|&begin| begin <= start).unwrap();
        let mut cuts = BTreeMap::from([(0, before)]);
        for (block, begin) in begins.iter().enumerate().filter(|(_, cut)| (start..end).contains(*cut)) {
            let past = begin - start;
            let done = past.saturating_sub(TILE_COST);
            let (short_first, short_rest) = (done < least, blocks - done < least);
            match (short_first, short_rest) {
                (false, false) => drop(cuts.insert(done, block)),
                (true, false) => drop(cuts.insert(0, block)),
                (true, true) if 2 * past <= cost(tile) => drop(cuts.insert(0, block)),
                _ => {}
            }
        }
        let first = cuts[&0];
        // A cut before that moved to the beginning of this tile.
        let ends: Vec<u64> = cuts.keys().skip(1).copied().chain([blocks]).collect();
        for ((begin, &block), end) in cuts.iter().zip(ends) {
            let whole = cuts.len() == 1;
            let part = (of_line.0, tile.part(*begin as i64, (end - begin) as i64));
            let words = words(&part, if whole { 0 } else { first + block + 2 });
            lists.items[block].push(words);
            if !whole {
                let by_tile = schedule.tile_places() > 0;
                lists.combined[if by_tile { number } else { first }] = [cuts.len() as u32, words[0], words[1]];
            }
        }
        start = end;
    }
    lists
}

/// A random problem with lengths, its pieces, and the blocks of its main kernel.
fn drawn(seed: u64) -> (Problem, Pieces, u32) {
    let mut rng = Rng::new(seed);
    let (batch, kv_heads, group) = (rng.between(1, 6), rng.between(1, 3), rng.between(1, 5));
    let (rows, keys) = (rng.between(1, 90), rng.between(1, 4000));
    let q_lengths = match rng.below(3) {
        0 => QLengths::Equal,
        _ => QLengths::Packed {
            total: rng.between(1, batch * rows),
            used: rng.chance(0.5),
        },
    };
    let kv_lengths = match rng.below(3) {
        0 => KvLengths::Packed {
            total: rng.between(1, batch * keys),
            used: rng.chance(0.5),
        },
        _ => KvLengths::Cache,
    };
    let masks = [
        Mask::FULL,
        Mask::CAUSAL,
        Mask {
            align: CausalAlign::TopLeft,
            ..Mask::CAUSAL
        },
        Mask::window(Some(70), Some(9)),
        Mask::window(Some(70), Some(9)).top_left(),
    ];
    // Some rows see only keys that do not exist.
    let q_offset = [0, 0, 50, 5000][rng.below(4)];
    let problem = Problem::builder()
        .batch(batch)
        .heads(kv_heads * group, kv_heads)
        .head_dim(64)
        .seq_len_q(rows)
        .seq_len_kv(keys)
        .q_lengths(q_lengths)
        .kv_lengths(kv_lengths)
        .mask(masks[rng.below(masks.len())])
        .offsets(q_offset, 0);
    let problem = problem.build().unwrap();
    // Few blocks with many tiles have several rounds.
    let few = rng.chance(0.3);
    let (rows, cols) = ([16, 64, 128, 192][rng.below(4)], [16, 32, 80][rng.below(3)]);
    let (rows, most_blocks) = if few { (16, 2) } else { (rows, 40) };
    let pieces = Pieces {
        rows,
        cols,
        heads: match rng.below(5) {
            0 | 1 => TileHeads::One,
            2 if rows % 64 == 0 => TileHeads::of_warpgroups(Packing::all_of(&problem)),
            _ => TileHeads::Dense,
        },
        least: rng.between(1, 4) as u32,
    };
    (problem, pieces, rng.between(1, most_blocks) as u32)
}

#[test]
fn the_kernel_makes_the_lists_of_the_host() {
    let (mut in_pieces, mut empty, mut in_several_rounds, mut round_robin) = (0, 0, 0, 0);
    for seed in 0..70 {
        let (problem, pieces, grid) = drawn(seed);
        let schedule = Schedule::new("test", &problem, pieces, grid).unwrap();
        let lengths = random_lengths(&problem, seed);
        let expected = on_host(&problem, &schedule, &lengths);
        let made = on_device(&problem, &schedule, &lengths);
        assert_eq!(made, expected, "seed {seed}: {problem}, {pieces:?}, {lengths:?}");
        in_pieces += expected.combined.iter().filter(|combined| combined[0] > 0).count();
        empty += expected.items.iter().filter(|items| items.is_empty()).count();
        let line = line(&problem, pieces, &lengths);
        let of_round = |rounds| in_ranges(&problem, &schedule, &line, rounds, 0) == expected;
        in_several_rounds += usize::from((2..9).any(of_round) && !of_round(1));
        round_robin += usize::from(!(1..9).any(of_round));
    }
    assert!(
        in_pieces > 100 && empty > 20 && in_several_rounds > 4 && round_robin > 8,
        "{in_pieces} tiles in pieces, {empty} blocks without items, {in_several_rounds} in several rounds, {round_robin} round-robin"
    );
}

/// More sequences and row tiles than threads, so that sums go over several rounds, and a grid of its own for each.
#[test]
fn many_sequences_take_several_rounds() {
    let problem = Problem::builder()
        .batch(1500)
        .heads(4, 2)
        .head_dim(64)
        .seq_len_q(9)
        .seq_len_kv(40)
        .kv_lengths(KvLengths::Cache)
        .build()
        .unwrap();
    let pieces = Pieces {
        rows: 16,
        cols: 16,
        heads: TileHeads::Dense,
        least: 1,
    };
    let schedule = Schedule::new("test", &problem, pieces, 1100).unwrap();
    let lengths = random_lengths(&problem, 4);
    let expected = on_host(&problem, &schedule, &lengths);
    assert!(expected.items.iter().map(Vec::len).sum::<usize>() > 3000);
    assert!(on_device(&problem, &schedule, &lengths) == expected);
}

/// Steps that decode, and prompts: each block makes the same cuts and its share of the items. Pieces of a tile are in
/// several warps and blocks.
#[test]
fn several_blocks_make_a_schedule() {
    let problem = |batch, rows, keys| {
        let builder = Problem::builder().batch(batch).heads(32, 8).head_dim(64);
        let builder = builder.seq_len_q(rows).seq_len_kv(keys).kv_lengths(KvLengths::Cache);
        let builder = builder.q_lengths(QLengths::Packed {
            total: batch * rows,
            used: false,
        });
        builder.mask(Mask::CAUSAL).build().unwrap()
    };
    for (batch, rows, keys, heads) in [
        (1, 1, 4096, TileHeads::Dense),
        (9, 4, 8192, TileHeads::Dense),
        (70, 1, 900, TileHeads::Dense),
        (256, 3, 2048, TileHeads::Dense),
        (9, 200, 900, TileHeads::One),
    ] {
        let problem = problem(batch, rows, keys);
        let pieces = Pieces {
            rows: 16,
            cols: 64,
            heads,
            least: 2,
        };
        let schedule = Schedule::new("test", &problem, pieces, 264).unwrap();
        assert!(schedule.writers() > 1, "{problem}");
        for seed in 0..3 {
            let lengths = random_lengths(&problem, seed);
            let expected = on_host(&problem, &schedule, &lengths);
            let made = on_device(&problem, &schedule, &lengths);
            assert!(made == expected, "{problem}, seed {seed}");
        }
    }
}

/// A thread makes cuts for several blocks, while others read those of rounds before.
#[test]
fn rounds_of_more_blocks_than_threads() {
    let problem = Problem::builder()
        .batch(2)
        .heads(64, 64)
        .head_dim(64)
        .mask(Mask::CAUSAL);
    let problem = problem.seq_len(4096).kv_lengths(KvLengths::Cache).build().unwrap();
    let pieces = Pieces {
        rows: 16,
        cols: 64,
        heads: TileHeads::One,
        least: 2,
    };
    let grid = THREADS + 1;
    let schedule = Schedule::new("test", &problem, pieces, grid).unwrap();
    assert!(schedule.most_ranges(&problem)[1] > 1);
    let lengths = random_lengths(&problem, 1);
    assert!(on_device(&problem, &schedule, &lengths) == on_host(&problem, &schedule, &lengths));
}

/// Lengths that contradict the problem may leave tiles out, but no item leaves its memory (the simulator would find
/// it), and what a main kernel reads is written.
#[test]
fn hostile_lengths_stay_in_the_buffer() {
    let values = [i32::MIN, -1, 0, 3, 79, 80, 81, 1 << 20, i32::MAX];
    for seed in 0..20 {
        let (problem, pieces, grid) = drawn(seed);
        let mut rng = Rng::new(seed);
        let mut problem = ProblemBuilder::from(&problem);
        if rng.chance(0.5) {
            problem = problem.batch_invariant(rng.between(1, 300));
        }
        let problem = problem.build().unwrap();
        let schedule = Schedule::new("test", &problem, pieces, grid).unwrap();
        let entries = problem.length_entries();
        let lengths = entries.map(|&count| (0..count).map(|_| *rng.pick(&values).unwrap()).collect::<Vec<i32>>());
        let lists = on_device(&problem, &schedule, &lengths);
        for item in lists.items.iter().flatten() {
            let (batch, blocks) = (item[0] & 0xffff, item[7] & 0xffff);
            let most = problem.seq_len_kv().div_ceil(pieces.cols as usize).max(1);
            assert!(batch < problem.batch() as u32 && (1..=most as u32).contains(&blocks));
            assert!(u64::from(item[7] >> 16) <= schedule.slots(), "slot {}", item[7] >> 16);
        }
    }
}

proptest! {
    /// Of the host's lists, which are the kernel's: every K block of every tile once, pieces in key order in slots next
    /// to each other, no slot twice, costs even, and sizes within those of the buffer.
    #[test]
    fn every_block_of_keys_is_in_one_piece(seed in 0u64..100_000) {
        let (problem, pieces, grid) = drawn(seed);
        let schedule = Schedule::new("test", &problem, pieces, grid).unwrap();
        let lengths = random_lengths(&problem, seed);
        let lists = on_host(&problem, &schedule, &lengths);
        let line = line(&problem, pieces, &lengths);
        prop_assert!(line.len() as u32 <= schedule.heads * schedule.row_tiles);
        prop_assert!(lists.items.iter().map(Vec::len).sum::<usize>() <= line.len() + grid as usize);
        let mut of_tile: BTreeMap<(u32, u32), Vec<[u32; WORDS]>> = BTreeMap::new();
        for item in lists.items.iter().flatten() {
            of_tile.entry((item[0], item[1])).or_default().push(*item);
        }
        prop_assert_eq!(of_tile.len(), line.len());
        let mut slots = Vec::new();
        for (at, ([batch, head, number], tile)) in line.iter().enumerate() {
            let kv_head = head / problem.group_size() as u32;
            let items = &of_tile[&(kv_head << 16 | batch, number << 16 | head)];
            let counts: Vec<i64> = items.iter().map(|item| i64::from(item[7] & 0xffff)).collect();
            prop_assert_eq!(counts.iter().sum::<i64>(), tile.order.count);
            let mut begin = 0;
            for (item, &count) in items.iter().zip(&counts) {
                let whole = tile.part(begin, count).order.whole * i64::from(pieces.cols);
                prop_assert_eq!(item[4], whole as u32, "pieces in order");
                prop_assert!(items.len() == 1 || count >= i64::from(pieces.least));
                begin += count;
            }
            let first = items[0][7] >> 16;
            if items.len() == 1 {
                prop_assert_eq!(first, 0);
                continue;
            }
            // Slots are stored with 1 added.
            let block = ((first - 2) / 2) as usize;
            let place = if schedule.tile_places() > 0 { at } else { block };
            prop_assert_eq!(lists.combined[place], [items.len() as u32, items[0][0], items[0][1]]);
            for (i, item) in items.iter().enumerate() {
                prop_assert_eq!(item[7] >> 16, 2 * block as u32 + 2 + i as u32);
                slots.push((item[7] >> 16) - 1);
            }
        }
        let count = slots.len();
        slots.sort_unstable();
        slots.dedup();
        prop_assert!(slots.len() == count && slots.last().is_none_or(|&last| last < 2 * grid));
        let in_pieces = lists.combined.iter().filter(|combined| combined[0] > 0).count();
        prop_assert_eq!(in_pieces, of_tile.values().filter(|items| items.len() > 1).count());
    }
}
