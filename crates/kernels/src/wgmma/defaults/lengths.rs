//! Proposals where lengths are on the device: the host knows bounds, and the average of packed rows.

use std::ops::RangeInclusive;

use flashcore_ir::Chip;
use flashcore_problem::{DType, KvLengths, Problem, QLengths};

use super::{Candidate, Config, PACKED_PERCENT, Proposal, Row};
use crate::attention::query_rows::Packing;
use crate::card::{Card, Score};
use crate::size::{Size, has_few_rows, is_short_chunk, usual_rows};

/// Rows of a sequence, on average, of all heads that share a tile, from which on lengths on the device are served.
/// Fewer leave most of a tile empty, and family mma has smaller ones. But it has a block for each tile, which reads all
/// keys: where caches are longer than [`UNSCHEDULED_KEYS`], fewer rows are served, too.
const LEAST_USUAL_ROWS: usize = 64;

/// Keys up to which a block for each tile is done before a schedule is made and tiles in pieces are merged: with 1,024
/// both took as long, with 2,048 the block 1.3 (512 rows) to 2.3 times (64) as long (run `serve-late-2`).
const UNSCHEDULED_KEYS: usize = 1024;

/// Queries of a sequence, on average, for which heads are packed with lengths on the device, so that they fill tiles.
/// The least is that of short caches, and was not measured there.
const PACKED_QUERIES: RangeInclusive<usize> = 16..=512;

/// Cost of a packed tile of 192 rows in hundredths of what the table says, where one of 128 costs that: they took 1.43
/// to 1.46 times as long for 128, 256 and 512 rows over 4,096 keys (`evidence/h200/chunks.jsonl`), where the table has
/// 1.29.
const TALL_PACKED_COST: u64 = 112;

/// Head sizes for which heads of long causal prompts are packed: those that share the rows which were measured (run
/// `packed-prompts` of `evidence/h200/packed.jsonl`).
const PROMPT_HEAD_DIMS: RangeInclusive<usize> = 113..=128;

/// What the table proposes with lengths on the device. How long sequences are is not known, but for their average. If
/// that is the bound, all have as many rows; else half a tile of each is left over. Blocks share the work evenly, so
/// the row with the least work is the best.
pub(super) fn with_lengths(problem: &Problem, card: &'static Card, chip: Chip) -> Vec<Proposal<Config>> {
    if problem.dtype() == DType::E4M3 {
        return of_e4m3(problem, card, chip);
    }
    let usual_rows = usual_rows(problem);
    let head_dim = problem.head_dim().max(problem.head_dim_v());
    let size = Size::of(problem, chip);
    // Sizes that `mma` has such blocks for.
    let has_blocks = size == Size::Small || head_dim <= 64 && size <= Size::Medium;
    if has_few_rows(problem, chip) || is_short_chunk(problem, chip) && has_blocks {
        return Vec::new();
    }
    let causal = problem.mask().window_right.is_some();
    let tiles = problem.batch() * problem.num_heads() * usual_rows.div_ceil(64);
    let (long, fills) = (problem.seq_len_kv() > UNSCHEDULED_KEYS, tiles >= chip.sms as usize);
    let are_many = usual_rows >= LEAST_USUAL_ROWS;
    let whole = if are_many { long || fills } else { long && !fills };
    // Keys of long prompts, where packed heads pay for another reason: a tile sees as many keys behind the diagonal as
    // it has queries.
    let prompt_keys = match problem.kv_lengths() {
        KvLengths::Packed { total, .. }
            if usual_rows > *PACKED_QUERIES.end()
                && causal
                && problem.mask().window_left.is_none()
                && PROMPT_HEAD_DIMS.contains(&head_dim)
                && Packing::serves(problem) =>
        {
            let usual_keys = (total / problem.batch()).min(problem.seq_len_kv());
            Some(usual_keys.max(usual_rows) as u64)
        }
        _ => None,
    };
    let few_queries = Packing::serves(problem)
        && usual_rows <= *PACKED_QUERIES.end()
        && (long || usual_rows >= *PACKED_QUERIES.start() && usual_rows * problem.group_size() >= LEAST_USUAL_ROWS);
    let packing = few_queries || prompt_keys.is_some();
    // A chunk among sequences that decode: one with as many rows as the bound has most of them, and tiles are chosen
    // for it.
    let rows_of_most = match problem.q_lengths() {
        QLengths::Packed { total, .. }
            if few_queries
                && PROMPT_HEAD_DIMS.contains(&head_dim)
                && problem.seq_len_q() > *PACKED_QUERIES.end()
                && total < 2 * problem.seq_len_q() =>
        {
            problem.seq_len_q().min(total)
        }
        _ => usual_rows,
    };
    let serves = |row: &&Row| {
        let is_usual = row.config.cluster == 1 && !row.softcap && !row.config.pack_heads;
        is_usual && row.fits(problem) && row.has_mask(problem)
    };
    // For each key of a head, in half tiles; of prompts, for all keys.
    let work = |row: &Candidate| {
        let config = &row.in_order.config;
        let of_tile = config.packing(problem, chip.sms);
        let [queries, heads] = [of_tile.queries_in(config.rows), of_tile.heads()].map(u64::from);
        let usual = rows_of_most as u64;
        let covered = if usual_rows == problem.seq_len_q() {
            2 * usual.next_multiple_of(queries)
        } else {
            2 * usual + queries
        };
        let keys = prompt_keys.map_or(1, |keys| 2 * keys - usual + queries);
        let tall = if heads > 1 && config.rows > 128 && prompt_keys.is_none() {
            TALL_PACKED_COST
        } else {
            100
        };
        row.cost_per_key * tall * covered * keys / (queries * heads)
    };
    // Packed heads of prompts cost no more than others: seen with 8,192 rows, too (run `packed-equal-h200`).
    let percent = if prompt_keys.is_some() { 100 } else { PACKED_PERCENT };
    let candidates = |row: &Row| {
        let alone = Candidate::of(row);
        let both = [whole.then_some(alone), packing.then(|| alone.packed(percent))];
        let both = both.into_iter().flatten();
        // Rows without a cost come last.
        let scored = |one: Candidate| row.cost_per_key.map_or(one.in_order, |_| one.by_work(work(&one)));
        both.map(|one| (row.head_dim, scored(one))).collect::<Vec<_>>()
    };
    let mut rows: Vec<_> = card.wgmma.iter().filter(serves).flat_map(candidates).collect();
    rows.sort_by_key(|(head_dim, row)| (*head_dim, row.score));
    // Work for larger heads is not comparable.
    let first = rows.first().map_or(0, |(head_dim, _)| *head_dim);
    let of_others = rows.iter_mut().filter(|(head_dim, _)| *head_dim != first);
    of_others.for_each(|(_, row)| row.score = Score::Order);
    rows.into_iter().map(|(_, row)| row).collect()
}

const TRANSPOSED_WHY: &str =
    "rows of a sequence do not fill larger tiles; each call transposes V first: fp16 and bf16 decode in less time";

/// The rows of e4m3, which no other family serves, in the order of the table: heads are packed where the queries of one
/// do not fill a tile, and tiles of 64 rows are for sequences that fill no others.
fn of_e4m3(problem: &Problem, card: &'static Card, chip: Chip) -> Vec<Proposal<Config>> {
    let usual_rows = usual_rows(problem);
    let packs = Packing::serves(problem) && usual_rows <= *PACKED_QUERIES.end();
    let (rows, heads) = if packs {
        (usual_rows * problem.group_size(), problem.num_kv_heads())
    } else {
        (usual_rows, problem.num_heads())
    };
    let tiles = problem.batch() * heads * rows.div_ceil(128);
    let few_rows = rows <= 64;
    let is_few = |most: usize| few_rows || card.has_few(tiles, most, chip);
    let serves = |row: &&Row| row.fits(problem) && row.most_tiles.is_none_or(is_few);
    let candidates = |row: &Row| {
        let whole = Candidate::of(row);
        let packed = packs.then(|| whole.packed(PACKED_PERCENT));
        packed.into_iter().chain([whole])
    };
    let rows = card.wgmma_e4m3.iter().filter(serves).flat_map(candidates);
    let mut rows: Vec<Proposal<Config>> = rows.map(|row| row.in_order).collect();
    if few_rows {
        rows.iter_mut().for_each(|row| row.why = TRANSPOSED_WHY);
    }
    rows
}
