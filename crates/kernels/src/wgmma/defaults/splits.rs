//! Splits of keys where few tiles of rows would leave SMs idle.

use flashcore_ir::Chip;
use flashcore_problem::{DType, Problem};

use super::{Config, Priced, free, packed, packs, pingpong};
use crate::attention::scheduler::{MOST_SPLITS, mean_blocks, most_blocks, most_keys};

/// Few tiles of rows and many keys: what to split them with, tiles of 128 rows and, where there are no more rows than that,
/// of 64; by the largest head_dim.
pub(super) const SPLIT: [(usize, Config, Config); 2] = [
    (128, pingpong(128, 128, 2), free(64, 128, 2)),
    (256, pingpong(128, 64, 2), free(64, 64, 2)),
];

/// K blocks of a split, the longest if they differ, at least.
const LEAST_BLOCKS: usize = 4;

/// Cost of a second launch and of merging the partials, at least, in K blocks.
const COMBINE_COST: usize = 3;

/// Bytes of partials, f32 sums of every row and split, that take about as long to store and to merge as a K block: 13 MB of
/// them as long as four, 18 MB as long as seven (`docs/performance-log.md`).
const PARTIAL_BYTES_PER_BLOCK: usize = 2_560_000;

/// Keys of the K blocks that merging is counted in.
const BLOCK_KEYS: u64 = 128;

/// Cost of a K block where every SM works on several splits of a chunk of rows, in hundredths of one where some SMs have none:
/// the card's power limits them then, and more splits do not pay for the tiles that they add. 16 heads of 261 rows by 5,736
/// keys with head_dim 128 take 41.6 µs in two splits, on 96 SMs, and 49.0 in five (`evidence/h100/core.jsonl`). With
/// head_dim 64 it is not so.
const BUSY_COST: u64 = 125;

/// Cost of a K block of 128 rows, where one of 64 costs 10 (as below).
const TALL_BLOCK_COST: u64 = 14;

/// The splits that leave the busiest SM least to do, if that is well below what whole tiles leave it: a K block of 128 rows
/// takes about 1.4 times as long with every SM at work as one of 64 rows with half of them, and 1.25 times as long as one of
/// 128 rows with few (`docs/performance-log.md`).
pub(super) fn in_splits(problem: &Problem, chip: Chip) -> Option<Config> {
    let head_dim = problem.head_dim().max(problem.head_dim_v());
    let (_, tall, flat) = SPLIT.into_iter().find(|(most, ..)| head_dim <= *most)?;
    let blocks = |config: &Config| most_blocks(problem, config.tiling(config.packing(problem)), chip.sms);
    let ways = |config: Config| std::iter::once(config).chain(packs(problem, &config).then(|| packed(config)));
    let whole = |config: Config| ways(config).map(|config| blocks(&config)).min().unwrap_or(u64::MAX);
    let in_one = |config: &Config| problem.seq_len_q() * config.packing(problem).heads() as usize <= 64;
    let bases = ways(tall).filter(|tall| !in_one(tall)).chain(ways(flat).filter(in_one));
    let splits: Vec<Config> = bases.filter_map(|base| even_splits(problem, base, chip.sms)).collect();
    if splits.is_empty() {
        return None;
    }
    let (whole_flat, whole_tall) = (whole(flat), whole(tall));
    let splits = splits.into_iter().filter_map(|best| {
        let split = blocks(&best) + merge_cost(problem, &best) as u64;
        let cost = split * if best.rows == flat.rows { 10 } else { TALL_BLOCK_COST };
        (10 * split < 7 * whole_flat && 10 * split < 8 * whole_tall).then_some((cost, best))
    });
    splits.min_by_key(|(cost, _)| *cost).map(|(_, best)| best)
}

/// The row that is done first where its keys are split, if that is a fifth before the first of the whole ones; where `other`
/// splits were chosen by their K blocks, if it is done before these.
pub(super) fn row_in_splits(ranked: &[Priced], problem: &Problem, sms: u32, other: Option<Config>) -> Option<Config> {
    let one_by_one = |row: &&Priced| row.config.cluster == 1 && problem.dtype() != DType::E4M3;
    let splits = ranked.iter().filter(one_by_one);
    let splits: Vec<(&Priced, Config)> = splits
        .filter_map(|row| Some((row, even_splits(problem, row.config, sms)?)))
        .collect();
    if splits.is_empty() {
        return None;
    }
    // Merging costs the same after all rows.
    let least = ranked.iter().map(|row| row.cost_per_key).min()?;
    let split = |cost_per_key: u64, config: Config| {
        let keys = most_keys(problem, config.tiling(config.packing(problem)), sms);
        cost_per_key * keys + least * BLOCK_KEYS * merge_cost(problem, &config) as u64
    };
    let limit = match other {
        None => 8 * ranked.first()?.cost(problem, sms, most_keys) / 10,
        // As the row that has its rows and keys, or at least its rows.
        Some(config) => {
            let rows = ranked.iter().filter(|row| row.config.rows == config.rows);
            let like = rows.min_by_key(|row| (row.config.cols != config.cols, row.config.cluster))?;
            split(like.cost_per_key, config)
        }
    };
    let splits = splits
        .into_iter()
        .map(|(row, config)| (split(row.cost_per_key, config), config));
    let (cost, config) = splits.min_by_key(|(cost, _)| *cost)?;
    (cost < limit).then_some(config)
}

/// What a second launch and merging the partials cost, in K blocks.
fn merge_cost(problem: &Problem, config: &Config) -> usize {
    let rows = problem.batch() * problem.num_heads() * problem.seq_len_q();
    let bytes = rows * config.splits as usize * problem.head_dim_v() * size_of::<f32>();
    COMBINE_COST.max(bytes / PARTIAL_BYTES_PER_BLOCK)
}

/// As many splits of a config's tiles as leave the busiest SM least to do, if there are SMs left over.
fn even_splits(problem: &Problem, base: Config, sms: u32) -> Option<Config> {
    let packing = base.packing(problem);
    let per_head = problem.seq_len_q().div_ceil(packing.queries_in(base.rows) as usize);
    let tiles = problem.batch() * problem.num_heads() / packing.heads() as usize * per_head;
    let (sms, keys) = (sms as usize, problem.seq_len_kv().div_ceil(base.cols as usize));
    if tiles > sms {
        return None;
    }
    let most = (2 * sms / tiles.max(1)).min(MOST_SPLITS as usize);
    // Not one that leaves the longest split as long as a smaller number does, nor one of few K blocks: that was not measured.
    let worth = |splits: &usize| {
        let longest = keys.div_ceil(*splits);
        longest >= LEAST_BLOCKS && longest < keys.div_ceil(splits - 1)
    };
    let splits = (2..=most).filter(worth).map(|splits| Config {
        splits: splits as u32,
        ..base
    });
    let is_chunk = problem.head_dim() > 64 && base.rows > 64 && 4 * problem.seq_len_q() <= problem.seq_len_kv();
    splits.min_by_key(|config| {
        let tiling = config.tiling(packing);
        let busiest = most_blocks(problem, tiling, sms as u32);
        match is_chunk && tiles * config.splits as usize > sms {
            true => busiest.max(BUSY_COST * mean_blocks(problem, tiling, sms as u32) / 100),
            false => busiest,
        }
    })
}
