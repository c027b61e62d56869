//! Which config the family proposes where none is named: the table of the nearest [`Card`], read from top to bottom.
//!
//! Rows of the H200 follow from `docs/design-notes.md` and `evidence/h200`. For short problems, and where keys are
//! split, a model of times decides ([`times`]).

mod evaluate;
mod lengths;
mod times;

use std::iter;

use flashcore_ir::{Chip, Target};
use flashcore_problem::{DType, Direction, Problem};

use self::evaluate::{Candidate, Tilings, by_rank};
pub(crate) use self::times::Times;
pub use self::times::most_ps;
use super::{Config, backward};
use crate::attention::params::query_blocks;
use crate::attention::query_rows::Packing;
use crate::card::{self, Card, Proposal};
use crate::select::grouped;
use crate::size::Size;

/// Queries of a head up to which tiles are packed whatever the mask; more fill tiles by themselves.
const MOST_PACKED_QUERIES: usize = 2048;

/// Time of packed tiles in hundredths of that of others: more boxes a copy, and rows that belong to several heads.
/// Times of short problems ([`times`]) were fitted with 102, which chooses packed heads for causal prompts of 8,192
/// rows, too: no faster there without lengths.
const PACKED_PERCENT: u64 = 103;

/// [`PACKED_PERCENT`] for full masks above [`MOST_PACKED_QUERIES`], where copies are a smaller share of the time: so
/// problems of 2,883 to 8,100 rows get the faster tiles (run `packed-full-h200`).
const PACKED_LONG_PERCENT: u64 = 101;

const PACKED_WHY: &str = "query heads that share K and V fill tiles together, which the few queries of one would not";

/// Cost in keys of beginning in a pair of blocks, once, as each waits for the other; and most keys of problems that it
/// counts for. 32 heads of 321 rows and keys took 10.6 µs in pairs, and 8.2 without (`evidence/h100/core.jsonl`).
const PAIR_KEYS: u64 = 64;
const PAIR_MOST_KEYS: usize = 512;

/// What a tile costs in addition to its K blocks, in keys: what fits times of 102 problems best (`defaults/measured`).
const TILE_KEYS: u64 = 96;

/// Whether heads are packed to fill tiles: up to [`MOST_PACKED_QUERIES`] where that lowers the number of tiles; above,
/// under full masks alone, and where it lowers the number of rounds of them on all SMs. What causal masks gain has rows
/// of the table.
fn packs(problem: &Problem, config: &Config, sms: u32) -> bool {
    if !Packing::serves(problem) {
        return false;
    }
    let [unpacked, packed] = [config.pack_heads, true].map(|pack_heads| {
        let config = Config { pack_heads, ..*config };
        config.packing(problem, sms).tiles(problem, config.rows)
    });
    let rounds = |tiles: usize| tiles.div_ceil(sms as usize);
    if problem.seq_len_q() <= MOST_PACKED_QUERIES {
        packed < unpacked
    } else {
        problem.mask().is_full() && rounds(packed) < rounds(unpacked)
    }
}

fn packed_percent(problem: &Problem) -> u64 {
    if problem.seq_len_q() <= MOST_PACKED_QUERIES {
        PACKED_PERCENT
    } else {
        PACKED_LONG_PERCENT
    }
}

/// A row of the forward tables.
type Row = card::Row<Config>;

fn table(card: &'static Card, dtype: DType) -> &'static [Row] {
    match dtype {
        DType::E4M3 => &card.wgmma_e4m3,
        _ => &card.wgmma,
    }
}

/// What the table proposes for a problem on a GPU, best first; a [`Target`] stands for its usual card. Nothing but on
/// Hopper, where problems of 16-bit elements must have 0.5 tiles of 64 rows for each SM (0.7 where causal and of
/// head_dim to 64), or keys enough to be split, and those of e4m3 are always served. Some may be refused. In the
/// backward pass there is one for each head size, or two where blocks may share tiles of keys.
pub fn proposals(problem: &Problem, chip: impl Into<Chip>) -> Vec<Proposal<Config>> {
    each_proposal(problem, chip.into()).collect()
}

/// [`proposals`], each computed when those before it were refused: to rank them all takes as long as the choice.
pub(crate) fn each_proposal(problem: &Problem, chip: Chip) -> Box<dyn Iterator<Item = Proposal<Config>> + '_> {
    let (dtype, card) = (problem.dtype(), Card::nearest(chip));
    let head_dim = problem.head_dim().max(problem.head_dim_v());
    if chip.target != Target::Sm90a {
        return Box::new(iter::empty());
    }
    if problem.direction() == Direction::Backward {
        return Box::new(backward::proposals(problem, chip).into_iter());
    }
    let causal = problem.mask().window_right.is_some();
    // Family mma has tiles of 32 rows too, and is faster while they are all run at once: with 56 and 64 tiles of 64
    // rows it took 0.78 to 0.84 of the time at head_dim 64, with 80 to 96 1.35 to 1.55 times as long, but 0.84 to 1.1
    // if causal. Of 18 problems of 66 to 80 tiles with head_dim 72 to 128, 12 were 1.7 to 2.4 times as fast here, the
    // others, most of them causal with few keys, 0.97 to 1.17.
    let share = if head_dim <= 64 && causal { 7 } else { 5 };
    if Size::of(problem, chip) == Size::Decode && dtype != DType::E4M3 {
        return Box::new(iter::empty());
    }
    if problem.has_lengths() {
        return Box::new(lengths::with_lengths(problem, card, chip).into_iter());
    }
    // Batch-invariant problems are split where rows are few, in family mma.
    let of_16_bits = dtype != DType::E4M3;
    let may_split = of_16_bits && problem.batch_invariant().is_none();
    let mut tilings = Tilings::new(problem, chip.sms);
    let candidates = of_16_bits.then(|| times::candidates(&mut tilings, &card.times));
    let (whole, split) = times::fastest(&mut tilings, candidates.unwrap_or_default(), may_split);
    let much = 10 * query_blocks(problem, 64) >= share * chip.sms as usize;
    // With few tiles family mma may be a tenth faster than whole ones.
    let least = whole.map_or(0, |whole| if much { whole.ps } else { 9 * whole.ps / 10 });
    let split = split.filter(|split| split.ps < least);
    let whole =
        whole.filter(|whole| much && whole.ps <= times::most_ps(problem) && problem.head_dim() == problem.head_dim_v());
    let timed = split.or(whole).map(|timed| timed.proposal(problem));
    if !much && of_16_bits {
        return Box::new(timed.into_iter());
    }
    let serves = |row: &&Row| row.serves(problem, chip, card) && (!row.config.pack_heads || Packing::serves(problem));
    let mut rows: Vec<&Row> = table(card, dtype).iter().filter(serves).collect();
    // The first match and those that it is chosen among, by when the busiest SM is done.
    let first = rows.first().map(|row| (row.head_dim, row.head_dim_v));
    let of_first = |row: &&&Row| Some((row.head_dim, row.head_dim_v)) == first && row.cost_per_key.is_some();
    let alternatives = rows.iter().take_while(of_first).count();
    let mut ranked: Vec<Candidate> = rows.drain(..alternatives).map(Candidate::of).collect();
    let packing = ranked
        .iter()
        .filter(|row| packs(problem, &row.in_order.config, chip.sms));
    let packed: Vec<Candidate> = packing.map(|row| row.packed(packed_percent(problem))).collect();
    ranked.extend(packed);
    let (first, rest) = (timed.into_iter(), rows.into_iter().map(Row::proposal));
    if timed.is_some_and(|timed| timed.config.splits == 1) {
        // The model chose whole tiles: rows are there for what a compiler refuses.
        return Box::new(first.chain(ranked.into_iter().map(|row| row.in_order)).chain(rest));
    }
    Box::new(first.chain(by_rank(ranked, tilings)).chain(rest))
}

/// What the model of times says of all that it times for a problem, the fastest first; nothing where it has no say. For
/// problems of less than 80 µs, and where keys are split, [`proposals`] begins with the best of these.
pub fn timed(problem: &Problem, chip: impl Into<Chip>) -> Vec<Proposal<Config>> {
    let chip = chip.into();
    let is_forward = problem.direction() == Direction::Forward && problem.dtype() != DType::E4M3;
    if !is_forward || problem.has_lengths() || each_proposal(problem, chip).next().is_none() {
        return Vec::new();
    }
    let (mut tilings, times) = (Tilings::new(problem, chip.sms), &Card::nearest(chip).times);
    let may_split = problem.batch_invariant().is_none();
    let candidates = times::candidates(&mut tilings, times).into_iter();
    let each = candidates.map(|candidate| times::fastest(&mut tilings, vec![candidate], may_split));
    let mut all: Vec<_> = each.flat_map(|(whole, split)| split.into_iter().chain(whole)).collect();
    all.sort_by_key(|timed| timed.ps);
    all.into_iter().map(|timed| timed.proposal(problem)).collect()
}

/// Every config of the table for a dtype, whatever else the problem is, and the largest head_dim and head_dim_v that it
/// is there for. Those that split keys do so in three: how many it is depends on the problem.
///
/// ```
/// use flashcore_kernels::wgmma;
/// use flashcore_problem::DType;
/// assert!(wgmma::defaults(DType::F16).iter().any(|(_, head_dims)| *head_dims == (192, 128)));
/// assert_ne!(wgmma::defaults(DType::E4M3), wgmma::defaults(DType::BF16));
/// ```
pub fn defaults(dtype: DType) -> Vec<(Config, (usize, usize))> {
    let rows = Card::all().iter().flat_map(|card| table(card, dtype));
    let rows = rows.map(|row| (row.config, (row.head_dim, row.head_dim_v.unwrap_or(row.head_dim))));
    let plain = Problem::builder()
        .heads(1, 1)
        .seq_len(1)
        .head_dim(64)
        .dtype(dtype)
        .build();
    let plain = plain.iter().filter(|_| dtype != DType::E4M3);
    let timed = plain.flat_map(|problem| Card::all().iter().flat_map(|card| times::configs(&card.times, problem)));
    let timed = timed.map(|(config, head_dim)| (config, (head_dim, head_dim)));
    let most = |(config, head_dims): (Config, Vec<_>)| Some((config, head_dims.into_iter().max()?));
    grouped(rows.chain(timed)).into_iter().filter_map(most).collect()
}

#[cfg(test)]
mod tests;
