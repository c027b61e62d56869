//! Cost of memory accesses: bank passes of shared memory, sectors of global memory.
//!
//! Shared memory has 32 banks of 4 bytes. A request of 8 bytes per lane is served in half-warps,
//! one of 16 bytes in quarter-warps. In each such phase, a bank delivers one word per pass. Two
//! neighbouring phases merge if lanes read the same words in pairs: each lane `i` with `i ^ 1`, or
//! each with `i ^ 2`. (This rule is from microbenchmarks of Volta and later, not from a manual. ncu
//! on an H200 agrees with this model instruction by instruction: `docs/simulator.md`.)
//!
//! 16-byte asynchronous copies that bypass L1 are written in quarter-warps and in units of 32-byte
//! sectors. Each run of sectors within 128 bytes that neighbouring lanes fill takes one pass, and
//! each other 16 bytes take one pass. A global sector is requested once for each shared-memory
//! sector it goes to. (Derived from ncu counts of 21 patterns, not from a manual.)

use std::ops::Range;

use crate::registers::lanes;

/// Cost of one operation's accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) requests: u64,
    pub(crate) transactions: u64,
    pub(crate) ideal: u64,
    /// The transactions that are passes over shared memory by threads' loads, stores and atomic operations.
    pub(crate) shared: u64,
}

impl Traffic {
    /// Of one request.
    pub(crate) fn of(transactions: u64, ideal: u64) -> Traffic {
        Traffic {
            requests: 1,
            transactions,
            ideal,
            shared: 0,
        }
    }

    pub(crate) fn add(&mut self, other: Traffic) {
        self.requests += other.requests;
        self.transactions += other.transactions;
        self.ideal += other.ideal;
        self.shared += other.shared;
    }
}

/// The different items, in order.
fn distinct<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.sort_unstable();
    items.dedup();
    items
}

/// Bank passes of accesses of `bytes` per lane at these offsets.
pub(crate) fn shared(offsets: &[u32; 32], mask: u32, bytes: u32) -> Traffic {
    let lanes_a_phase = match bytes {
        16 => 8,
        8 => 16,
        _ => 32,
    };
    let mut traffic = Traffic::of(0, 0);
    for lanes in phases(offsets, mask, lanes_a_phase) {
        let lanes = lanes.filter(|lane| mask >> lane & 1 != 0);
        let words_a_lane = (bytes as usize / 4).max(1);
        let words = distinct(lanes.flat_map(|lane| (0..words_a_lane as u32).map(move |i| offsets[lane] / 4 + i)));
        let mut in_bank = [0u64; 32];
        for word in &words {
            in_bank[(word % 32) as usize] += 1;
        }
        traffic.transactions += in_bank.iter().copied().max().unwrap_or(0);
        traffic.ideal += (words.len() as u64).div_ceil(32);
    }
    traffic
}

/// Bank passes at the destination of copies of `bytes` per lane.
pub(crate) fn landed(offsets: &[u32; 32], mask: u32, bytes: u32, past_l1: bool) -> Traffic {
    if past_l1 {
        copied_past_l1(offsets, mask)
    } else {
        shared(offsets, mask, bytes)
    }
}

/// Bank passes at the destination of 16-byte copies that bypass L1.
pub(crate) fn copied_past_l1(offsets: &[u32; 32], mask: u32) -> Traffic {
    let mut traffic = Traffic::of(0, 0);
    for quarter in 0..4 {
        let lanes: Vec<usize> = (8 * quarter..8 * quarter + 8)
            .filter(|lane| mask >> lane & 1 != 0)
            .collect();
        let chunk = |lane: usize| offsets[lane] / 16;
        // Sectors filled by two neighbouring lanes.
        let neighbours = lanes.windows(2).filter(|pair| pair[1] == pair[0] + 1);
        let fills = neighbours.filter(|pair| chunk(pair[0]) ^ 1 == chunk(pair[1]));
        let whole = distinct(fills.map(|pair| chunk(pair[0]) / 2));
        let ends_run = |i: usize| whole.get(i + 1) != Some(&(whole[i] + 1)) || whole[i] % 4 == 3;
        let runs = (0..whole.len()).filter(|&i| ends_run(i)).count();
        let others = lanes
            .iter()
            .filter(|&&lane| whole.binary_search(&(chunk(lane) / 2)).is_err());
        traffic.transactions += (runs + others.count()) as u64;
        traffic.ideal += (lanes.len() as u64).div_ceil(8);
    }
    traffic
}

/// Global sectors requested by such copies: one per pair of source and destination sector.
pub(crate) fn copied_sectors(from: &[u64; 32], to: &[u32; 32], mask: u32) -> Traffic {
    Traffic {
        transactions: distinct(lanes(mask).map(|lane| (from[lane] / 32, to[lane] / 32))).len() as u64,
        ..global(from, mask, 16)
    }
}

/// Lanes served together: `lanes_a_phase` lanes, or two such phases if lanes read in pairs.
fn phases(offsets: &[u32; 32], mask: u32, lanes_a_phase: usize) -> impl Iterator<Item = Range<usize>> {
    let joined = |first: usize| {
        let in_pairs = |partner: usize| {
            (first..first + 2 * lanes_a_phase).all(|lane| {
                let both = 1 << lane | 1 << (lane ^ partner);
                mask & both != both || offsets[lane] == offsets[lane ^ partner]
            })
        };
        lanes_a_phase < 32 && (in_pairs(1) || in_pairs(2))
    };
    let mut first = 0;
    let mut ranges = Vec::with_capacity(32 / lanes_a_phase);
    while first < 32 {
        let end = if first % (2 * lanes_a_phase) == 0 && joined(first) {
            first + 2 * lanes_a_phase
        } else {
            first + lanes_a_phase
        };
        ranges.push(first..end);
        first = end;
    }
    ranges.into_iter()
}

/// The 32-byte sectors that such accesses touch.
pub(crate) fn sectors(offsets: &[u64; 32], mask: u32, bytes: u32) -> Vec<u64> {
    let last = u64::from(bytes) - 1;
    distinct(lanes(mask).flat_map(|lane| [offsets[lane] / 32, (offsets[lane] + last) / 32]))
}

/// 32-byte sectors touched by accesses of `bytes` per lane at these offsets in a buffer. The buffer
/// starts at a sector boundary, as driver allocations do.
pub(crate) fn global(offsets: &[u64; 32], mask: u32, bytes: u32) -> Traffic {
    let sectors = sectors(offsets, mask, bytes);
    let all = distinct(lanes(mask).map(|lane| offsets[lane]));
    let ideal = (all.len() as u64 * u64::from(bytes)).div_ceil(32);
    Traffic::of(sectors.len() as u64, ideal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(f: impl Fn(u32) -> u32) -> [u32; 32] {
        std::array::from_fn(|lane| f(lane as u32))
    }

    #[test]
    fn bank_passes() {
        let count = |f: &dyn Fn(u32) -> u32, bytes| shared(&offsets(f), u32::MAX, bytes).transactions;
        assert_eq!(count(&|lane| 4 * lane, 4), 1, "a row");
        assert_eq!(count(&|_| 64, 4), 1, "one word for all");
        assert_eq!(count(&|lane| 128 * lane, 4), 32, "a column of an unpadded tile");
        assert_eq!(count(&|lane| 132 * lane, 4), 1, "a column of a padded one");
        assert_eq!(count(&|lane| 16 * lane, 16), 4, "16 bytes a lane");
        assert_eq!(count(&|lane| 128 * lane, 16), 32, "16 bytes a lane, one bank group");
        assert_eq!(count(&|lane| 2 * lane, 2), 1, "halves");
    }

    /// Counts as measured by ncu on an H200.
    #[test]
    fn copies_past_l1_are_counted_in_sectors() {
        let count = |f: &dyn Fn(u32) -> u32| copied_past_l1(&offsets(f), u32::MAX).transactions;
        assert_eq!(count(&|lane| 16 * lane), 4, "rows");
        assert_eq!(count(&|lane| 16 * (31 - lane)), 4, "backwards");
        assert_eq!(count(&|lane| 16 * (lane ^ (lane / 8))), 4, "swizzled");
        assert_eq!(count(&|lane| 32 * lane), 32, "half of each sector");
        assert_eq!(count(&|lane| 144 * lane), 32, "a padded column");
        assert_eq!(
            count(&|lane| 144 * (lane / 8) + 16 * (lane % 8)),
            10,
            "rows padded by 16 bytes"
        );
        assert_eq!(
            count(&|lane| 160 * (lane / 8) + 16 * (lane % 8)),
            7,
            "rows padded by 32 bytes"
        );
        assert_eq!(count(&|lane| 16 * (lane / 2 * 4 + lane % 2)), 16, "every second sector");
        let far_apart = |lane: u32| 16 * (lane / 8 * 8 + lane % 4 * 2 + lane % 8 / 4);
        assert_eq!(count(&far_apart), 32, "halves of sectors from lanes far apart");
        assert_eq!(count(&|lane| 16 * (lane + 1)), 12, "one further");
        let from = std::array::from_fn(|lane| 16 * lane as u64);
        let asked = |f: &dyn Fn(u32) -> u32| copied_sectors(&from, &offsets(f), u32::MAX).transactions;
        assert_eq!((asked(&|lane| 16 * lane), asked(&|lane| 16 * (lane + 1))), (16, 32));
    }

    #[test]
    fn phases_merge_for_paired_lanes() {
        let count = |f: &dyn Fn(u32) -> u32, bytes| shared(&offsets(f), u32::MAX, bytes).transactions;
        assert_eq!(count(&|_| 64, 16), 2, "one address for all: half a warp at a time");
        assert_eq!(count(&|lane| 16 * (lane / 2), 16), 2, "lanes 2i and 2i+1 the same");
        assert_eq!(
            count(&|lane| 16 * (lane / 4 * 2 + lane % 2), 16),
            2,
            "lanes i and i^2 the same"
        );
        assert_eq!(
            count(&|lane| 16 * (lane % 16), 16),
            4,
            "halves of the warp the same, but no pairs"
        );
        assert_eq!(count(&|lane| 8 * lane, 8), 2, "8 bytes a lane");
        assert_eq!(count(&|_| 64, 8), 1, "8 bytes, one address for all");
        assert_eq!(
            shared(&offsets(|lane| 16 * lane), 0xff, 16).transactions,
            1,
            "eight rows"
        );
        assert_eq!(
            shared(&offsets(|lane| 16 * lane), 0x3, 16).transactions,
            1,
            "two lanes that differ"
        );
    }
}
