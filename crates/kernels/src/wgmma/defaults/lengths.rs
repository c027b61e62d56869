//! Proposals where lengths are on the device: the host knows bounds, and the average of packed rows.

use flashcore_ir::Chip;
use flashcore_problem::{DType, Problem, QLengths};

use super::{Default, MOST_PACKED_QUERIES, Priced, Proposal, TABLE};
use crate::attention::query_rows::Packing;

/// Rows of a sequence, on average, of all heads that share a tile, from which on lengths on the device are served. Fewer leave
/// most of a tile empty, and family mma has smaller ones.
const LEAST_USUAL_ROWS: usize = 64;

/// Queries of a sequence, on average, from which on heads are packed with lengths on the device. Not measured yet.
const LEAST_PACKED_QUERIES: usize = 16;

/// What the table proposes with lengths on the device. How long sequences are is not known, but for their average: where it leaves rows over
/// in the last tile of a sequence, half a tile. Blocks share the work evenly, so the row with the least work is the best.
pub(super) fn with_lengths(problem: &Problem, chip: Chip) -> Vec<Proposal> {
    if problem.dtype() == DType::E4M3 {
        return Vec::new();
    }
    let usual_rows = match problem.q_lengths() {
        QLengths::Equal => problem.seq_len_q(),
        QLengths::Packed { total, .. } => (total / problem.batch()).min(problem.seq_len_q()),
    };
    let head_dim = problem.head_dim().max(problem.head_dim_v());
    let causal = problem.mask().window_right.is_some();
    let tiles = problem.batch() * problem.num_heads() * usual_rows.div_ceil(64);
    let whole = usual_rows >= LEAST_USUAL_ROWS && tiles >= chip.sms as usize;
    let packing = (2..=Packing::MOST).contains(&problem.group_size())
        && (LEAST_PACKED_QUERIES..=MOST_PACKED_QUERIES).contains(&usual_rows)
        && usual_rows * problem.group_size() >= LEAST_USUAL_ROWS;
    let serves = |row: &&Default| {
        let fits = head_dim <= row.head_dim && row.head_dim_v.is_none_or(|most| problem.head_dim_v() <= most);
        fits && row.causal.is_none_or(|wanted| wanted == causal) && row.config.cluster == 1 && !row.softcap
    };
    // For each key, and 128 queries of a head.
    let work = |row: &Priced| {
        let of_tile = row.config.packing(problem);
        let (queries, heads) = (of_tile.queries_in(row.config.rows), of_tile.heads());
        row.cost_per_key * (2 * usual_rows as u64 + u64::from(queries)) * 64 / u64::from(queries * heads)
    };
    let mut rows: Vec<(usize, u64, Priced)> = Vec::new();
    for row in TABLE.iter().filter(serves) {
        // Rows without a cost come last.
        let price = |priced: Priced| match row.cost_per_key {
            Some(_) => (row.head_dim, work(&priced), priced),
            None => (row.head_dim, u64::MAX, priced),
        };
        rows.extend(whole.then(|| price(Priced::of(row))));
        rows.extend(packing.then(|| price(Priced::of(row).packed())));
    }
    rows.sort_by_key(|(head_dim, work, _)| (*head_dim, *work));
    let rows = rows
        .into_iter()
        .map(|(.., Priced { config, why, .. })| Proposal { config, why });
    rows.collect()
}
