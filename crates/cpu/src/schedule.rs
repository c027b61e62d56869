//! Splits a problem into work items and distributes them over threads.
//!
//! An item is one tile of query rows and one range of its keys. Where rows are few, as in decode,
//! the keys are split into many ranges (split-KV), and the thread that finishes the last range of a
//! tile merges them, in the order of keys. Ranges depend on the problem alone, so the threads that
//! there are do not change the result.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use flashcore_problem::{Problem, Sequence, TensorView};
use pulp::Arch;
use rayon::Scope;

use crate::CpuConfig;
use crate::keys::HeadRows;
use crate::output::Output;
use crate::scale::Scale;
use crate::tile::{Store, TileRun, TileTask, cut};
use crate::workspace::{self, Workspace};

/// Fewest keys of a range. An item costs about a microsecond besides its work; 256 keys of
/// head_dim 128 take tens.
const MIN_SPLIT: usize = 256;

/// Keys are split until query rows times ranges reach this: work for all threads of a host, and few
/// partial rows in memory.
const SPLIT_ROWS: usize = 4096;

/// Multiply-adds for which another thread is woken: tens of microseconds, as long as that takes.
const WORK_A_THREAD: usize = 1 << 19;

thread_local! {
    /// Scratch memory, kept between calls: fresh memory costs a page fault per 4 KiB.
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

/// One tile of query rows.
struct Tile<'t> {
    sequence: &'t Sequence<'t>,
    batch: usize,
    kv_head: usize,
    /// Indices into `[group_size, len_q]`.
    rows: Range<usize>,
    /// Results of the ranges of keys that are finished. Unused if there is one range.
    partials: Mutex<Partials>,
}

#[derive(Default)]
struct Partials {
    finished: usize,
    /// `[ranges]`, each `[rows][head_dim_v + 2]`: unnormalised O, maximum, sum.
    ranges: Vec<Vec<f32>>,
}

/// The tensors of one call, and how it is split.
pub(crate) struct Schedule<'c> {
    pub(crate) problem: &'c Problem,
    pub(crate) tensors: [TensorView<'c>; 3],
    pub(crate) sequences: &'c [Sequence<'c>],
    pub(crate) output: Output<'c>,
    pub(crate) config: CpuConfig,
    pub(crate) arch: Arch,
}

impl Schedule<'_> {
    /// Computes all rows on the calling thread and on those of rayon's current pool.
    pub(crate) fn run(&self) {
        let group = self.problem.group_size();
        let rows: usize = self.sequences.iter().map(|sequence| sequence.len_q).sum();
        let ranges = key_ranges(rows * self.problem.num_heads(), self.problem.seq_len_kv());
        let (mut tiles, mut items) = (Vec::new(), Vec::new());
        let with_rows = |(_, sequence): &(usize, &Sequence<'_>)| sequence.len_q > 0;
        for (batch, sequence) in self.sequences.iter().enumerate().filter(with_rows) {
            let first = tiles.len();
            for kv_head in 0..self.problem.num_kv_heads() {
                for rows in cut(group, sequence.len_q, self.config.tile_q) {
                    tiles.push(Tile {
                        sequence,
                        batch,
                        kv_head,
                        rows,
                        partials: Mutex::default(),
                    });
                }
            }
            // A sequence without keys has one range, which is empty.
            let size = self.range_size(sequence, ranges);
            for start in (0..sequence.len_kv.max(1)).step_by(size) {
                // Heads of the same keys follow each other: they share pages of memory.
                let keys = start.min(sequence.len_kv)..(start + size).min(sequence.len_kv);
                items.extend((first..tiles.len()).map(|tile| (tile, keys.clone())));
            }
        }
        let work = rows * self.problem.num_heads() * self.problem.seq_len_kv();
        let work = work.saturating_mul(self.problem.head_dim() + self.problem.head_dim_v());
        let threads = (1 + work / WORK_A_THREAD).min(items.len());
        let threads = threads.min(rayon::current_num_threads());
        // If heads are kept, each thread begins with a share, items that follow each other and
        // are of few heads, and then helps others. Long heads are read by all threads at a time.
        let shares = if workspace::keeps(self.problem, self.problem.seq_len_kv(), self.config.tile_kv) {
            threads
        } else {
            1
        };
        let end_of_share = |share| share * items.len() / shares;
        let left: Vec<AtomicUsize> = (1..=shares)
            .map(|share| AtomicUsize::new(end_of_share(share)))
            .collect();
        let arrived = AtomicUsize::new(0);
        let drain = || {
            WORKSPACE.with_borrow_mut(|workspace| {
                workspace.blocks.clear();
                let first = arrived.fetch_add(1, Ordering::Relaxed);
                for share in (first..first + shares).map(|share| share % shares) {
                    // From the end: the last tiles of a causal head see the most keys, so the longest
                    // run first.
                    let next = |left: usize| (left > end_of_share(share)).then(|| left - 1);
                    while let Ok(item) = left[share].fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
                        let (tile, keys) = &items[item - 1];
                        self.item(&tiles[*tile], keys.clone(), ranges, workspace);
                    }
                }
            });
        };
        rayon::in_place_scope(|scope| {
            wake(scope, threads.saturating_sub(1), &drain);
            drain();
        });
    }

    /// Keys of a range: whole K blocks.
    fn range_size(&self, sequence: &Sequence<'_>, ranges: usize) -> usize {
        let of_batch = || sequence.len_kv.div_ceil(ranges).max(MIN_SPLIT);
        let size = self.problem.batch_invariant().unwrap_or_else(of_batch);
        size.next_multiple_of(self.config.tile_kv)
    }

    fn item(&self, tile: &Tile<'_>, keys: Range<usize>, ranges: usize, workspace: &mut Workspace) {
        let (problem, sequence) = (self.problem, tile.sequence);
        let [q, k, v] = &self.tensors.map(|tensor| tensor.of_sequence(tile.batch));
        let task = TileTask {
            problem,
            scale: Scale::of(problem),
            q,
            sequence,
            batch: tile.batch,
            k: HeadRows::new(k, sequence, tile.kv_head),
            v: HeadRows::new(v, sequence, tile.kv_head),
            first_row: tile.kv_head * problem.group_size() * sequence.len_q + tile.rows.start,
            rows: tile.rows.len(),
            keys: keys.clone(),
            tile_kv: self.config.tile_kv,
        };
        let mut run = |store| {
            self.arch.dispatch(TileRun {
                task: &task,
                workspace,
                store,
            });
        };
        let size = self.range_size(sequence, ranges);
        let ranges = sequence.len_kv.div_ceil(size);
        if ranges <= 1 {
            run(Store::Output(&self.output));
            return;
        }

        let width = problem.head_dim_v() + 2;
        let mut partial = vec![0.0; task.rows * width];
        run(Store::Partial(&mut partial));
        let mut partials = tile.partials.lock().unwrap_or_else(PoisonError::into_inner);
        partials.ranges.resize(ranges, Vec::new());
        partials.ranges[keys.start / size] = partial;
        partials.finished += 1;
        if partials.finished < ranges {
            return;
        }
        let partials = std::mem::take(&mut partials.ranges);
        for row in 0..task.rows {
            let mut row_of = partials.iter().map(|partial| &partial[row * width..][..width]);
            let (max, sum, mut values) = merge(&mut row_of, task.scale.exponent());
            task.store_output(&self.output, row, max, sum, &mut values);
        }
    }
}

/// How many ranges the keys of a sequence are split into at most, for this many query rows.
pub(crate) fn key_ranges(rows: usize, seq_len_kv: usize) -> usize {
    (SPLIT_ROWS / rows.max(1)).min(seq_len_kv / MIN_SPLIT).max(1)
}

/// Starts `count` threads. Each wakes others first, because to wake one takes microseconds.
fn wake<'s>(scope: &Scope<'s>, count: usize, work: &'s (impl Fn() + Sync)) {
    let mut rest = count;
    while rest > 0 {
        let others = (rest - 1) / 2;
        scope.spawn(move |scope| {
            wake(scope, others, work);
            work();
        });
        rest -= 1 + others;
    }
}

/// Maximum, sum and unnormalised output of a row from those of ranges of its keys. Maxima times
/// `factor` are exponents of 2.
pub(crate) fn merge<'p>(ranges: &mut (impl Iterator<Item = &'p [f32]> + Clone), factor: f32) -> (f32, f32, Vec<f32>) {
    let max = ranges
        .clone()
        .fold(f32::NEG_INFINITY, |max, range| max.max(range[range.len() - 2]));
    // A fully masked row keeps the maximum −∞. Subtract 0 there, because −∞ − −∞ is NaN.
    let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
    let (mut sum, mut values) = (0.0, Vec::new());
    for range in ranges {
        let [range @ .., range_max, range_sum] = range else {
            continue;
        };
        let weight = ((range_max - base) * factor).exp2();
        sum += range_sum * weight;
        values.resize(range.len(), 0.0);
        for (value, x) in values.iter_mut().zip(range) {
            *value += x * weight;
        }
    }
    (max, sum, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_is_the_softmax_of_all_keys() {
        // Scores 1, 3 (log2) and values 5, 7; the second range is masked.
        let ranges: [&[f32]; 3] = [&[5.0, 1.0, 1.0], &[0.0, f32::NEG_INFINITY, 0.0], &[7.0, 3.0, 1.0]];
        let (max, sum, values) = merge(&mut ranges.into_iter(), 1.0);
        assert_eq!((max, sum, values[0]), (3.0, 1.25, 8.25));
        let masked: [&[f32]; 2] = [&[0.0, f32::NEG_INFINITY, 0.0]; 2];
        assert_eq!(merge(&mut masked.into_iter(), 1.0), (f32::NEG_INFINITY, 0.0, vec![0.0]));
        // A range whose scores are all NaN.
        let nan: [&[f32]; 2] = [&[f32::NAN, f32::NEG_INFINITY, f32::NAN], &[7.0, 3.0, 1.0]];
        let (_, sum, values) = merge(&mut nan.into_iter(), 1.0);
        assert!(sum.is_nan() && values[0].is_nan());
    }

    #[test]
    fn keys_are_split_where_rows_are_few() {
        assert_eq!(key_ranges(32, 8192), 32);
        assert_eq!(key_ranges(8 * 32, 2048), 8);
        assert_eq!(key_ranges(8 * 512, 512), 1);
        assert_eq!(key_ranges(8 * 2048, 2048), 1);
        assert_eq!(key_ranges(1, 0), 1);
    }
}
