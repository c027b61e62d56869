//! The same bounds on the host as in a kernel, and the inverse against every row and key.

use flashcore_ir::{Arg, BufferSpec, Kernel, Launch};
use flashcore_problem::KeyRange;
use flashcore_problem::rng::Rng;
use flashcore_sim::{SimOptions, simulate};
use proptest::prelude::*;

use super::*;

const INPUTS: usize = 8;

/// Everything that the module computes, of one Q tile: with `descending`, the order of a work list.
#[track_caller]
fn all_of<I: Index>(inputs: &[I], block: u32, descending: bool) -> Vec<I> {
    let [lo, hi, len, first, last, index, count, rows] = inputs[..INPUTS] else {
        return Vec::new();
    };
    let band = Band { lo, hi, len };
    let range = block_range(&band, first, last, block);
    let inverse = block_range(&band.inverse(rows), first, last, block);
    let mut found = Vec::new();
    for range in [range, inverse] {
        found.extend([range.first, range.whole, range.whole_end, range.end]);
    }
    let orders = if descending {
        vec![BlockOrder::descending(range)]
    } else {
        vec![BlockOrder::ascending(range, false), BlockOrder::ascending(range, true)]
    };
    for order in orders {
        let (begin, blocks) = share(order.count, index, count);
        let part = order.part(begin, blocks);
        let part = if descending { part } else { part.first_masked() };
        for order in [order, part] {
            found.extend([
                order.low,
                order.masked_low,
                order.high,
                order.whole,
                order.masked,
                order.count,
            ]);
            found.extend([order.n_block(index), order.n_block(begin)]);
        }
    }
    found
}

#[test]
fn host_and_kernel_agree() {
    let mut rng = Rng::new(7);
    let mut cases: Vec<[i32; INPUTS]> = Vec::new();
    for _ in 0..256 {
        let (len, rows) = (rng.below(700) as i32, 1 + rng.below(500) as i32);
        let lo = [KeyRange::UNBOUNDED_LO, len - rows - rng.below(300) as i32][rng.below(2)];
        let hi = [KeyRange::UNBOUNDED_HI, len - rows + rng.below(300) as i32][rng.below(2)];
        let first = rng.below(rows as usize) as i32;
        let last = (first + rng.below(200) as i32).min(rows - 1);
        let count = 1 + rng.below(9) as i32;
        cases.push([lo, hi, len, first, last, rng.below(count as usize) as i32, count, rows]);
    }
    for (block, descending) in [(64, false), (48, true), (128, true)] {
        let host: Vec<Vec<i64>> = cases
            .iter()
            .map(|case| all_of(&case.map(i64::from), block, descending))
            .collect();
        let outputs = host[0].len() as u32;
        let kernel = Kernel::build("bounds", cases.len() as u32, |k| {
            let input = k.param_ptr::<i32>("input").offset(k.thread_idx() * INPUTS as u32);
            let output = k.param_ptr_mut::<i32>("output").offset(k.thread_idx() * outputs);
            let inputs: Vec<_> = (0..INPUTS as i32).map(|i| input.plus(i).load()).collect();
            for (i, value) in all_of(&inputs, block, descending).into_iter().enumerate() {
                output.plus(i as i32).store(value);
            }
        })
        .unwrap();
        let buffer = |name, words: u32, written| BufferSpec {
            name,
            bytes: u64::from(4 * words * cases.len() as u32),
            written,
            align: 4,
        };
        let launch = Launch {
            grid: [1, 1, 1],
            block: [cases.len() as u32, 1, 1],
            cluster: [1, 1, 1],
            dynamic_shared_bytes: 0,
            programmatic: false,
            buffers: vec![buffer("input", INPUTS as u32, false), buffer("output", outputs, true)],
            args: [0, 1].map(|slot| Arg::Buffer { slot, byte_offset: 0 }).to_vec(),
        };
        let input: Vec<u8> = cases.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        let mut buffers = [input, vec![0; launch.buffers[1].bytes as usize]];
        let report = simulate(&kernel, &launch, &mut buffers, &SimOptions::default()).unwrap();
        assert!(report.is_clean());
        let simulated = buffers[1].chunks(4 * outputs as usize);
        for ((case, host), simulated) in cases.iter().zip(&host).zip(simulated) {
            let words = simulated
                .chunks(4)
                .map(|word| i64::from(i32::from_le_bytes([word[0], word[1], word[2], word[3]])));
            assert_eq!(words.collect::<Vec<_>>(), *host, "{case:?} by {block}");
        }
    }
}

proptest! {
    /// A K tile needs every Q block with a row that sees one of its keys, and needs a mask for no other than those
    /// at the ends.
    #[test]
    fn the_inverse_finds_the_rows_that_see_a_key(
        (rows, len) in (1usize..200, 1usize..200),
        (left, right) in (proptest::option::of(0i32..80), proptest::option::of(0i32..80)),
        (tile, block) in (1usize..70, 1u32..40),
    ) {
        let diagonal = len as i32 - rows as i32;
        let seen = KeyRange {
            lo: left.map_or(KeyRange::UNBOUNDED_LO, |left| diagonal - left),
            hi: right.map_or(KeyRange::UNBOUNDED_HI, |right| diagonal + right),
            seq_len_kv: len,
            diagonal,
        };
        let band = Band { lo: i64::from(seen.lo), hi: i64::from(seen.hi), len: len as i64 };
        for row in 0..rows {
            let (first, end) = band.visible(row as i64);
            let keys = seen.keys(row);
            prop_assert!((first..end).eq(keys.start as i64..keys.end as i64) || keys.is_empty() && first >= Index::min(end, len as i64));
        }
        for first in (0..len).step_by(tile) {
            let last = (first + tile).min(len) - 1;
            let range = block_range(&band.inverse(rows as i64), first as i64, last as i64, block);
            for row in 0..rows {
                let keys = seen.keys(row);
                let (some, all) = (keys.start <= last && first < keys.end, keys.start <= first && last < keys.end);
                let q_block = row as i64 / i64::from(block);
                prop_assert!(!some || (range.first..range.end).contains(&q_block));
                prop_assert!(all || !(range.whole..range.whole_end).contains(&q_block));
            }
        }
    }
}
