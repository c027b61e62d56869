//! Several blocks share a tile of keys, where there are too few tiles for the SMs: each walks a share of the Q tiles of
//! all heads of the group. It adds its dK and dV to f32 sums in the workspace, which `preprocess` zeroes and
//! [`postprocess`](super::postprocess) rounds.
//!
//! Sums are in the order of the accumulators: 16 keys after the other, of these one accumulator of 8 columns after the
//! other, of an accumulator lane after lane, four registers each. Threads add their registers once a tile
//! (`red.global.add.v4.f32`), so that no shared memory is needed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use flashcore_ir::Val;
use flashcore_problem::Problem;

use super::scheduler::q_tiles;
use super::{heads_at_once, tile_keys, width_of};
use crate::args::Args;
use crate::attention::block_range::{Band, share};
use crate::attention::gradients::{Backward, KeySums, PADDING, tile_of};
use crate::wgmma::Config;

/// How many blocks may share a tile by default.
const BLOCKS: [u32; 8] = [2, 3, 4, 5, 6, 8, 12, 16];

/// Fixed cost of a block in units of a Q tile: its first copies and last products; with their sums, where blocks share
/// tiles.
const START: i64 = 2;
const SHARED_START: i64 = 4;

/// Cost of zeroing and rounding the sums, in Q tiles.
const SUMS: i64 = 4;

/// Blocks share tiles if that takes less than this percentage of the time without.
const WORTH: i64 = 90;

/// Most waves of blocks that are tried.
const WAVES: i64 = 10;

/// How many blocks share a tile by default: the number with the shortest makespan, if all Q tiles cost the same. Costs
/// are those of an H200 (run `backward-shared-tiles-2-h200` of `evidence/`). With more tiles than twice the blocks that
/// run at a time there is nothing to gain.
pub(super) fn blocks_of_tile(problem: &Problem, config: &Config, sms: u32) -> u32 {
    let (queries, keys) = (problem.seq_len_q() as i64, problem.seq_len_kv() as i64);
    let cols = tile_keys(config);
    let tiles = problem.seq_len_kv().div_ceil(cols as usize) as i64;
    let heads = (problem.batch() * problem.num_kv_heads()) as i64;
    let at_a_time = i64::from(sms / config.cluster);
    if problem.deterministic() || problem.has_lengths() || tiles * heads > 2 * at_a_time {
        return 1;
    }
    let range = problem.key_range();
    let (lo, hi) = (i64::from(range.lo), i64::from(range.hi));
    let seen_by = Band { lo, hi, len: keys }.inverse(queries);
    let group = problem.group_size() as i64;
    let walk = |index| {
        let (range, _) = q_tiles(&seen_by, index * i64::from(cols), keys, [config.rows, cols]);
        group * (range.end - range.first).max(0)
    };
    let walks: Vec<i64> = (0..tiles).map(walk).collect();
    let width = width_of(problem.head_dim().max(problem.head_dim_v()) as u32);
    let at_once = i64::from(heads_at_once(problem, width));
    let time = |blocks: u32| {
        let (start, sums) = if blocks > 1 { (SHARED_START, SUMS) } else { (START, 0) };
        let (blocks, heads) = (i64::from(blocks), heads * i64::from(blocks));
        let count = tiles * heads;
        let mut ends: BinaryHeap<Reverse<i64>> = (0..at_a_time.min(count)).map(|_| Reverse(0)).collect();
        let mut last = 0;
        for number in 0..count {
            let (head, index) = tile_of(number, [tiles, heads, at_once], false, [&i64::div_euclid; 2]);
            let (_, walk) = share(walks[index as usize], head % blocks, blocks);
            let end = ends.pop().map_or(0, |Reverse(end)| end) + start + walk;
            ends.push(Reverse(end));
            last = last.max(end);
        }
        last + sums
    };
    let alone = time(1);
    let is_worth = |time: i64| 100 * time < WORTH * alone;
    let least = walks.iter().sum::<i64>() * heads / at_a_time.max(1) + SHARED_START + SUMS;
    let are_few = |blocks: &u32| tiles * heads * i64::from(*blocks) <= WAVES * at_a_time;
    let tried = BLOCKS.into_iter().filter(|blocks| is_worth(least) && are_few(blocks));
    match tried.map(|blocks| (time(blocks), blocks)).min() {
        Some((time, blocks)) if is_worth(time) => blocks,
        _ => 1,
    }
}

/// The sums to which the blocks of a tile add, and the number of these blocks.
#[derive(Clone, Copy)]
pub(super) struct Split<'k> {
    pub(super) sums: KeySums<'k>,
    pub(super) blocks: Val<'k, u32>,
}

/// A block's share of the Q tiles, which are counted through all heads of the group.
#[derive(Clone, Copy)]
pub(super) struct Share<'k> {
    begin: Val<'k, u32>,
    pub(super) count: Val<'k, u32>,
    /// Q tiles of one head.
    of_head: Val<'k, u32>,
}

impl<'k> Split<'k> {
    pub(super) fn declare(k: &'k Args<'k, Backward>) -> Self {
        Split {
            sums: KeySums::declare(k, true),
            blocks: k.number("blocks_of_tile", |request| request.splits),
        }
    }

    /// The share of one of a tile's blocks.
    #[track_caller]
    pub(super) fn share(&self, index: Val<'k, u32>, of_head: Val<'k, i32>, group_size: Val<'k, u32>) -> Share<'k> {
        let of_head: Val<'k, u32> = of_head.reinterpret();
        let of = |value: Val<'k, u32>| value.reinterpret::<i32>();
        let (begin, count) = share(of(of_head * group_size), of(index), of(self.blocks));
        Share {
            begin: begin.reinterpret(),
            count: count.reinterpret(),
            of_head,
        }
    }
}

impl<'k> Share<'k> {
    /// The heads of the group from which it has Q tiles: the first one, and one past the last.
    #[track_caller]
    pub(super) fn heads(&self) -> (Val<'k, u32>, Val<'k, u32>) {
        // Without Q tiles, a divisor that is not 0.
        let of_head = self.of_head.max(1);
        let end = self.begin + self.count;
        (self.begin / of_head, (end + (of_head - 1)) / of_head)
    }

    /// The iterations of a head of the group that it has: the first one, and one past the last.
    #[track_caller]
    pub(super) fn iterations(&self, head: Val<'k, u32>) -> (Val<'k, i32>, Val<'k, i32>) {
        let first = (head * self.of_head).reinterpret::<i32>();
        let begin = self.begin.reinterpret::<i32>() - first;
        let end = begin + self.count.reinterpret::<i32>();
        (begin.max(0), end.min(self.of_head.reinterpret::<i32>()))
    }
}

/// Why a split needs no condition for the last keys: tiles and sums are padded alike.
const _: () = assert!(PADDING.is_multiple_of(2 * super::WGMMA_M));
