//! A model of the L2 cache: what the blocks of the main kernel read of K and V, if each takes a K block at a time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use flashcore_problem::{DType, Mask};

use super::*;
use crate::attention::query_rows::Packing;
use crate::attention::scheduler::{Tiling, work_lists};

/// Of an H200's 60 MB, those that are K and V's.
const L2_BYTES: usize = 40 << 20;

const SMS: u32 = 132;
const ROWS: u32 = 128;
const COLS: u32 = 128;

/// The first keys of an item's K blocks, in their order.
fn first_keys(words: &[u32]) -> impl Iterator<Item = u32> {
    let [low, high, whole] = [words[2], words[3], words[4]];
    let (masked_low, masked) = (words[5] & 0xffff, words[5] >> 16);
    (0..words[7] & 0xffff).map(move |n| match () {
        () if n >= masked => whole.wrapping_add(n * COLS),
        () if n < masked_low => low.wrapping_add(n * COLS),
        () => high.wrapping_sub(n * COLS),
    })
}

/// How often memory is read for each byte of K and V, with a cache that drops what was not used for longest; and the
/// cost of the block with most to do over the mean.
fn reads_and_makespan(blocks: &[Vec<[u32; WORDS]>], bytes: usize) -> (f64, f64) {
    // What each block reads at each step: nothing while a tile begins and ends.
    let mut steps: Vec<Vec<Option<(u32, u32)>>> = Vec::new();
    for items in blocks {
        let of_item = |words: &[u32; WORDS]| {
            let head = words[0];
            let keys = first_keys(words).map(move |key| Some((head, key)));
            keys.chain([None; TILE_COST as usize]).collect::<Vec<_>>()
        };
        steps.push(items.iter().flat_map(of_item).collect());
    }
    let room = L2_BYTES / bytes;
    let (mut by_key, mut by_use) = (HashMap::new(), BTreeMap::new());
    let (mut now, mut misses, mut all) = (0u64, 0u64, BTreeSet::new());
    let longest = steps.iter().map(Vec::len).max().unwrap();
    for step in 0..longest {
        for key in steps.iter().filter_map(|block| *block.get(step)?) {
            now += 1;
            match by_key.insert(key, now) {
                Some(before) => drop(by_use.remove(&before)),
                None => misses += 1,
            }
            by_use.insert(now, key);
            all.insert(key);
            if by_key.len() > room {
                let (_, oldest) = by_use.pop_first().unwrap();
                by_key.remove(&oldest);
            }
        }
    }
    let sum: usize = steps.iter().map(Vec::len).sum();
    let mean = sum as f64 / blocks.len() as f64;
    (misses as f64 / all.len() as f64, longest as f64 / mean)
}

fn builder(batch: usize, len: usize) -> ProblemBuilder {
    Problem::builder()
        .batch(batch)
        .heads(32, 8)
        .head_dim(128)
        .seq_len_q(len)
        .seq_len_kv(len)
        .dtype(DType::BF16)
        .mask(Mask::CAUSAL)
}

/// Packed sequences of these lengths, and their schedule.
fn packed(lens: &[usize]) -> (Problem, Schedule, Lengths<Vec<i32>>) {
    let (total, most) = (lens.iter().sum(), *lens.iter().max().unwrap());
    let problem = builder(lens.len(), most)
        .q_lengths(QLengths::Packed { total, used: false })
        .kv_lengths(KvLengths::Packed { total, used: false })
        .build()
        .unwrap();
    let pieces = Pieces {
        rows: ROWS,
        cols: COLS,
        heads: TileHeads::One,
        least: 2,
    };
    let ends = lens.iter().scan(0, |end, len| {
        *end += *len as i32;
        Some(*end)
    });
    let starts: Vec<i32> = std::iter::once(0).chain(ends).collect();
    let lengths = Lengths {
        cu_seqlens_q: Some(starts.clone()),
        cu_seqlens_k: Some(starts),
        ..Lengths::default()
    };
    let schedule = Schedule::new("test", &problem, pieces, SMS).unwrap();
    (problem, schedule, lengths)
}

/// Whole tiles of all rounds but the last leave blocks uneven by less than the last round makes up for.
#[test]
fn lengths_that_differ_leave_blocks_as_much_to_do() {
    let mut rng = Rng::new(8);
    for (batch, lo, hi) in [
        (16, 100, 4000),
        (128, 16, 512),
        (64, 16, 2048),
        (8, 100, 16_000),
        (300, 1, 300),
    ] {
        let lens: Vec<usize> = (0..batch).map(|_| rng.between(lo, hi)).collect();
        let (problem, schedule, lengths) = packed(&lens);
        let items = on_host(&problem, &schedule, &lengths).items;
        let costs = items.iter().map(|items| {
            let of_item = |words: &[u32; WORDS]| u64::from(words[7] & 0xffff) + TILE_COST;
            items.iter().map(of_item).sum::<u64>()
        });
        let costs: Vec<u64> = costs.collect();
        let mean = costs.iter().sum::<u64>() as f64 / costs.len() as f64;
        let most = *costs.iter().max().unwrap();
        let text = format!("{batch} of {lo} to {hi}: {most}, {mean:.1} on average");
        println!("{text}");
        // A cut moves by the shortest piece and what a tile costs besides, at both ends of a range.
        let moved = 2 * (u64::from(schedule.pieces.least) + TILE_COST);
        assert!(most <= mean as u64 + moved, "{text}");
    }
}

/// Packed sequences read K and V about once, as often as the host's lists do for equal lengths; ranges of one round,
/// whose tiles go head by head, read them several times.
#[test]
fn rounds_read_keys_and_values_about_once() {
    for (batch, len) in [(4, 8192), (16, 2048)] {
        let bytes = COLS as usize * 2 * 2 * 128;
        let dense = builder(batch, len).build().unwrap();
        let tiling = Tiling {
            rows: ROWS,
            cols: COLS,
            cluster: 1,
            splits: 1,
            packing: Packing::NONE,
        };
        let (grid, table) = work_lists(&dense, tiling, &dense.key_range(), SMS);
        let of_block = |block: usize| {
            let items = table.chunks(WORDS).skip(block).step_by(grid as usize);
            let items = items.take_while(|words| words[FULLY_MASKED] != u32::MAX);
            items.map(|words| words.try_into().unwrap()).collect()
        };
        let blocks: Vec<Vec<[u32; WORDS]>> = (0..grid as usize).map(of_block).collect();
        let (by_host, host_span) = reads_and_makespan(&blocks, bytes);

        let (packed, schedule, lengths) = packed(&vec![len; batch]);
        let lists = on_host(&packed, &schedule, &lengths);
        let (rounds, span) = reads_and_makespan(&lists.items, bytes);
        let mut head_by_head = line(&packed, schedule.pieces, &lengths);
        let in_one = reads_and_makespan(&in_ranges(&packed, &schedule, &head_by_head, 1, 0).items, bytes).0;
        head_by_head.sort_by_key(|([batch, head, number], _)| [*batch, *number, *head]);
        let before = reads_and_makespan(&in_ranges(&packed, &schedule, &head_by_head, 1, 0).items, bytes).0;
        let text = format!(
            "{batch} of {len}: the host's lists {by_host:.2} (span {host_span:.3}), rounds {rounds:.2} (span {span:.3}), one \
             round {in_one:.2}, head by head {before:.2}"
        );
        assert!(
            by_host < 1.1 && rounds < 1.1 && in_one > 10.0 && before > 10.0,
            "{text}"
        );
        assert!(host_span < 1.01 && span < 1.01, "{text}");
    }
}

/// Chunks of 64 to 512 rows over caches of 4,096 keys: tiles of a head go to blocks at the same time, which read
/// its keys and values once. Ranges of the line have them one after the other, and read them as often.
#[test]
fn chunks_read_keys_and_values_about_once() {
    for (batch, rows, most) in [
        (16, 64, 1.1),
        (12, 64, 1.1),
        (64, 64, 1.2),
        (16, 128, 1.2),
        (8, 512, 1.1),
    ] {
        let problem = builder(batch, 4096)
            .seq_len_q(rows)
            .kv_lengths(KvLengths::Cache)
            .build()
            .unwrap();
        let pieces = Pieces {
            rows: ROWS,
            cols: COLS,
            heads: TileHeads::of_warpgroups(Packing::all_of(&problem)),
            least: 2,
        };
        let schedule = Schedule::new("test", &problem, pieces, SMS).unwrap();
        let lengths = Lengths {
            seqused_k: Some(vec![4096; batch]),
            ..Lengths::default()
        };
        let bytes = COLS as usize * 2 * 2 * 128;
        let (reads, span) = reads_and_makespan(&on_host(&problem, &schedule, &lengths).items, bytes);
        let line = line(&problem, pieces, &lengths);
        let in_one = reads_and_makespan(&in_ranges(&problem, &schedule, &line, 1, 0).items, bytes).0;
        let text = format!("{batch} of {rows} rows: {reads:.2} (span {span:.3}), one range each {in_one:.2}");
        println!("{text}");
        // Equal pieces may be that much longer than a block's share.
        let longest = 1.0 + 1.0 / f64::from(UNEVEN) + 0.002;
        assert!(reads < most && span < longest && in_one > 1.9, "{text}");
    }
}
