//! Which config the family proposes where none is named: one table, read from top to bottom.
//!
//! Rows were measured on an H200 (`docs/design-notes.md`, `evidence/h200`). For short problems, and where keys are
//! split, a model of times decides ([`times`]).

mod lengths;
mod rank;
mod times;

use std::iter;

use flashcore_ir::{Chip, Target};
use flashcore_problem::{DType, Direction, Problem};

use self::rank::{Candidate, by_rank};
use super::{Config, backward};
use crate::attention::query_rows::Packing;
use crate::attention::softmax::Rescale;
use crate::size::Size;

/// SMs of the card that the rows were measured on. Others count tiles in proportion.
const MEASURED_SMS: usize = 132;

struct Default {
    /// Largest head_dim and head_dim_v it is for.
    head_dim: usize,
    /// Whether for masks that end at the row (causal), for others, or for both.
    causal: Option<bool>,
    /// Largest head_dim_v it is for, if that is limited further.
    head_dim_v: Option<usize>,
    /// Most keys it is for, if that is limited.
    most_keys: Option<usize>,
    /// Most tiles of 128 query rows, of all heads, that it is for, if that is limited, with [`MEASURED_SMS`].
    most_tiles: Option<usize>,
    /// Whether for scores with a soft cap alone.
    softcap: bool,
    /// Time of a tile per key, relative to other rows for the same head_dim: of these the one with the smallest
    /// makespan is taken, because a number of tiles may fit the SMs well with one tiling and badly with another.
    /// `None`: the row is taken where it matches. Fitted to times of 161 problems, most of lengths that are no power of
    /// two (`defaults/measured`); head sizes and masks in between are taken to behave alike.
    cost_per_key: Option<u64>,
    config: Config,
    why: &'static str,
}

/// A config of the table without `warp_scheduler_barrier`.
pub(super) const fn free(rows: u32, cols: u32, stages: u32) -> Config {
    Config {
        rows,
        cols,
        stages,
        cluster: 1,
        pingpong: false,
        rescale: Rescale::Speculative,
        splits: 1,
        q_in_registers: false,
        min_blocks: 1,
        max_registers: 0,
        pack_heads: false,
    }
}

/// [`free`] with `warp_scheduler_barrier`.
const fn pingpong(rows: u32, cols: u32, stages: u32) -> Config {
    Config {
        pingpong: true,
        ..free(rows, cols, stages)
    }
}

/// [`pingpong`] in pairs of blocks that share K and V.
const fn in_pairs(rows: u32, cols: u32, stages: u32) -> Config {
    Config {
        cluster: 2,
        ..pingpong(rows, cols, stages)
    }
}

/// A config whose softmax does not wait for the output of the K block before.
const fn conditional(config: Config) -> Config {
    Config {
        rescale: Rescale::Conditional,
        ..config
    }
}

/// A config with as much of Q in registers as fits.
const fn q_held(config: Config) -> Config {
    Config {
        q_in_registers: true,
        ..config
    }
}

/// A config with the query heads of a K/V head in one tile.
const fn packed(config: Config) -> Config {
    Config {
        pack_heads: true,
        ..config
    }
}

/// A row for every problem: the defaults of other rows.
const ANY: Default = Default {
    head_dim: 256,
    head_dim_v: None,
    causal: None,
    most_keys: None,
    most_tiles: None,
    softcap: false,
    cost_per_key: None,
    config: free(64, 64, 2),
    why: "",
};

/// Of the rows for the smallest head_dim that is enough, by when the busiest SM is done ([`Default::cost_per_key`]);
/// then those for larger ones, where nothing of that is served.
#[rustfmt::skip]
const TABLE: &[Default] = &[
    Default { head_dim: 48, causal: Some(false), most_keys: Some(3072), softcap: true,
        config: pingpong(192, 128, 2), why: "three warpgroups hide each other's softmax; with a third stage and a soft cap ptxas 13 spills", ..ANY },
    Default { head_dim: 64, cost_per_key: Some(1062),
        config: free(64, 128, 2), why: "64 rows a block leave the busiest SM least to do", ..ANY },
    Default { head_dim: 64, cost_per_key: Some(1182),
        config: free(64, 64, 2), why: "64 rows a block leave the busiest SM least to do, and small tiles of keys less behind their end", ..ANY },
    Default { head_dim: 64, cost_per_key: Some(1288),
        config: pingpong(128, 176, 3), why: "128 rows a block leave the busiest SM least to do", ..ANY },
    Default { head_dim: 64, causal: Some(false), most_keys: Some(3072), cost_per_key: Some(1600),
        config: pingpong(192, 128, 3), why: "three warpgroups hide each other's softmax; a third stage evens out short rows", ..ANY },
    Default { head_dim: 64, causal: Some(false), cost_per_key: Some(1615),
        config: pingpong(192, 128, 2), why: "three warpgroups hide each other's softmax", ..ANY },
    Default { head_dim: 64, causal: Some(true), most_keys: Some(1536), cost_per_key: Some(1507),
        config: q_held(pingpong(192, 64, 4)), why: "small tiles of keys leave less behind the diagonal, and registers for Q", ..ANY },
    Default { head_dim: 64, causal: Some(true), most_keys: Some(3072), cost_per_key: Some(1600),
        config: q_held(pingpong(192, 96, 3)), why: "three warpgroups hide each other's softmax; a third stage evens out short rows; registers have room for Q", ..ANY },
    Default { head_dim: 64, causal: Some(true), cost_per_key: Some(1600),
        config: pingpong(192, 128, 2), why: "three warpgroups hide each other's softmax", ..ANY },
    Default { head_dim: 64, causal: Some(true), most_keys: Some(1536), cost_per_key: Some(1545),
        config: packed(Config { max_registers: 152, ..q_held(pingpong(192, 96, 3)) }), why: PACKED_CAUSAL_WHY, ..ANY },
    Default { head_dim: 64, causal: Some(true), cost_per_key: Some(1622),
        config: packed(Config { max_registers: 152, ..q_held(pingpong(192, 96, 3)) }), why: PACKED_CAUSAL_WHY, ..ANY },
    Default { head_dim: 96, cost_per_key: Some(1000),
        config: free(64, 128, 2), why: "64 rows a block leave the busiest SM least to do", ..ANY },
    Default { head_dim: 96, causal: Some(false), cost_per_key: Some(1299),
        config: pingpong(128, 96, 3), why: "128 rows a block leave the busiest SM least to do", ..ANY },
    Default { head_dim: 96, causal: Some(true), cost_per_key: Some(1339),
        config: pingpong(128, 96, 3), why: "128 rows a block leave the busiest SM least to do", ..ANY },
    Default { head_dim: 96, causal: Some(false), cost_per_key: Some(1300),
        config: q_held(in_pairs(128, 128, 2)), why: "128 rows leave less of these over than 192; pairs of blocks read K and V once, registers have room for Q", ..ANY },
    Default { head_dim: 96, causal: Some(false), cost_per_key: Some(1582),
        config: pingpong(192, 96, 3), why: "three warpgroups hide each other's softmax, with as many keys as registers allow", ..ANY },
    Default { head_dim: 96, causal: Some(true), cost_per_key: Some(1577),
        config: pingpong(192, 96, 3), why: "three warpgroups hide each other's softmax, with as many keys as registers allow", ..ANY },
    Default { head_dim: 96, causal: Some(true), cost_per_key: Some(1594),
        config: q_held(pingpong(192, 64, 3)), why: "small tiles of keys leave less behind the diagonal, and registers for Q", ..ANY },
    Default { head_dim: 96, causal: Some(true), cost_per_key: Some(1608),
        config: packed(pingpong(192, 96, 3)), why: PACKED_CAUSAL_WHY, ..ANY },
    Default { head_dim: 112, cost_per_key: Some(1062),
        config: free(64, 128, 2), why: "64 rows a block leave the busiest SM least to do", ..ANY },
    Default { head_dim: 112, cost_per_key: Some(1204),
        config: q_held(pingpong(128, 128, 2)), why: "128 rows a block leave the busiest SM least to do, and registers for Q", ..ANY },
    Default { head_dim: 112, cost_per_key: Some(1599),
        config: q_held(pingpong(192, 64, 3)), why: "three warpgroups hide each other's softmax; a third stage fits, and registers have room for Q", ..ANY },
    Default { head_dim: 112, causal: Some(true), cost_per_key: Some(1609),
        config: packed(q_held(pingpong(192, 64, 3))), why: PACKED_CAUSAL_WHY, ..ANY },
    Default { head_dim: 128, cost_per_key: Some(1062),
        config: free(64, 128, 2), why: "64 rows a block leave the busiest SM least to do", ..ANY },
    Default { head_dim: 128, cost_per_key: Some(1130),
        config: free(64, 64, 2), why: "64 rows a block leave the busiest SM least to do, and small tiles of keys less behind their end", ..ANY },
    Default { head_dim: 128, causal: Some(false), most_keys: Some(3072), cost_per_key: Some(1143),
        config: q_held(in_pairs(128, 128, 2)), why: "128 rows leave less of these over than 192; pairs of blocks read K and V once, registers have room for Q", ..ANY },
    Default { head_dim: 128, cost_per_key: Some(1204),
        config: q_held(pingpong(128, 128, 2)), why: "128 rows leave less over, or less behind the diagonal, than 192, and registers for Q", ..ANY },
    Default { head_dim: 128, causal: Some(false), cost_per_key: Some(1260),
        config: q_held(pingpong(128, 112, 2)), why: "tiles of 112 keys leave least behind the end of these, and registers for Q", ..ANY },
    Default { head_dim: 128, cost_per_key: Some(1311),
        config: pingpong(128, 96, 3), why: "tiles of 96 keys leave least behind the end of these", ..ANY },
    Default { head_dim: 128, most_keys: Some(3072), cost_per_key: Some(1554),
        config: q_held(pingpong(192, 64, 3)), why: "three warpgroups hide each other's softmax; a third stage evens out short rows; registers have room for most of Q", ..ANY },
    Default { head_dim: 128, cost_per_key: Some(1650),
        config: q_held(pingpong(192, 64, 2)), why: "three warpgroups hide each other's softmax, and share K and V; registers have room for most of Q", ..ANY },
    Default { head_dim: 128, causal: Some(true), cost_per_key: Some(1668),
        config: packed(q_held(pingpong(192, 64, 2))), why: PACKED_CAUSAL_WHY, ..ANY },
    Default { head_dim: 160, cost_per_key: Some(1000),
        config: free(64, 128, 2), why: "64 rows a block leave the busiest SM least to do", ..ANY },
    Default { head_dim: 160, cost_per_key: Some(1235),
        config: q_held(pingpong(128, 128, 2)), why: "two warpgroups, with as many keys as leave registers for Q", ..ANY },
    Default { head_dim: 160, cost_per_key: Some(1242),
        config: q_held(in_pairs(128, 112, 2)), why: "pairs of blocks read K and V once; tiles of 112 keys leave least behind the end of these", ..ANY },
    Default { head_dim: 160, cost_per_key: Some(1683),
        config: q_held(pingpong(192, 64, 3)), why: "three warpgroups hide each other's softmax, and 192 rows leave least of these over", ..ANY },
    Default { head_dim: 160, causal: Some(true), cost_per_key: Some(1697),
        config: packed(q_held(pingpong(192, 64, 3))), why: PACKED_CAUSAL_WHY, ..ANY },
    Default { head_dim: 192, head_dim_v: Some(128), cost_per_key: Some(860),
        config: free(64, 64, 2), why: "64 rows a block leave the busiest SM least to do", ..ANY },
    Default { head_dim: 192, head_dim_v: Some(128), cost_per_key: Some(1000),
        config: q_held(in_pairs(128, 112, 2)), why: "as many keys as shared memory allows; pairs of blocks read K and V once, registers have room for Q", ..ANY },
    Default { head_dim: 192, head_dim_v: Some(128), cost_per_key: Some(1015),
        config: q_held(pingpong(128, 112, 2)), why: "as many keys as shared memory allows; one by one these rows come out more evenly than in pairs of blocks; registers have room for Q", ..ANY },
    Default { head_dim: 192, cost_per_key: Some(1000),
        config: free(64, 64, 2), why: "64 rows a block leave the busiest SM least to do", ..ANY },
    Default { head_dim: 192, causal: Some(false), cost_per_key: Some(1178),
        config: q_held(in_pairs(128, 80, 2)), why: "as many keys as leave registers for Q; pairs of blocks read K and V once", ..ANY },
    Default { head_dim: 192, cost_per_key: Some(1209),
        config: q_held(pingpong(128, 64, 2)), why: "two warpgroups; small tiles of keys leave less over, or less behind the diagonal, and registers for Q", ..ANY },
    Default { head_dim: 192, causal: Some(true), cost_per_key: Some(1281),
        config: packed(q_held(pingpong(128, 64, 2))), why: PACKED_CAUSAL_WHY, ..ANY },
    Default { head_dim: 256, cost_per_key: Some(942),
        config: free(64, 64, 2), why: "64 rows a block leave the busiest SM least to do", ..ANY },
    Default { head_dim: 256, causal: Some(false), most_keys: Some(1536), cost_per_key: Some(1300),
        config: conditional(q_held(in_pairs(128, 64, 2))), why: "pairs of blocks read K and V once; a softmax that waits for scores alone evens out short rows; registers have room for a part of Q", ..ANY },
    Default { head_dim: 256, causal: Some(false), most_keys: Some(1536), cost_per_key: Some(1346),
        config: conditional(q_held(pingpong(128, 64, 2))), why: "one by one these rows come out more evenly than in pairs of blocks; a softmax that waits for scores alone evens out short rows", ..ANY },
    Default { head_dim: 256, causal: Some(false), cost_per_key: Some(1377),
        config: q_held(in_pairs(128, 64, 2)), why: "the output leaves room for 64 keys; pairs of blocks read K and V once; registers have room for a part of Q", ..ANY },
    Default { head_dim: 256, causal: Some(false), cost_per_key: Some(1440),
        config: q_held(pingpong(128, 64, 2)), why: "the output leaves room for 64 keys; one by one these rows come out more evenly than in pairs of blocks", ..ANY },
    Default { head_dim: 256, causal: Some(true), cost_per_key: Some(1385),
        config: conditional(q_held(Config { cluster: 2, ..free(128, 64, 2) })), why: "pairs of blocks read K and V once, and as one waits for the other, warpgroups need not hand over the tensor cores; registers have room for a part of Q", ..ANY },
    Default { head_dim: 256, causal: Some(true), most_keys: Some(1536), cost_per_key: Some(1455),
        config: packed(conditional(q_held(pingpong(128, 64, 2)))), why: PACKED_CAUSAL_WHY, ..ANY },
    Default { head_dim: 256, causal: Some(true), cost_per_key: Some(1447),
        config: conditional(pingpong(128, 64, 2)), why: "two warpgroups fill the tensor cores; one by one these rows come out more evenly than in pairs of blocks; a softmax that waits for scores alone evens out short ones", ..ANY },
];

/// The table for e4m3. No other family serves e4m3, so problems with few tiles have rows, too.
#[rustfmt::skip]
const TABLE_E4M3: &[Default] = &[
    Default { head_dim: 128, most_tiles: Some(99),
        config: free(64, 128, 3), why: "64 rows a block give every SM something to do", ..ANY },
    Default { head_dim: 256, most_tiles: Some(99),
        config: free(64, 96, 2), why: "64 rows a block give every SM something to do", ..ANY },
    Default { head_dim: 64,
        config: pingpong(192, 128, 2), why: "three warpgroups hide each other's softmax", ..ANY },
    Default { head_dim: 128,
        config: q_held(pingpong(192, 96, 3)), why: "three warpgroups hide each other's softmax, with as many keys as leave registers for a part of Q", ..ANY },
    Default { head_dim: 256,
        config: q_held(pingpong(128, 96, 2)), why: "two warpgroups, with as many keys as leave registers for a part of Q", ..ANY },
];

const PACKED_CAUSAL_WHY: &str =
    "tiles of the heads that share K and V have fewer queries, and less behind the diagonal";

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

/// Whether all query heads of a K/V head fit a tile, if there are several.
fn can_pack(problem: &Problem) -> bool {
    (2..=Packing::MAX_HEADS).contains(&problem.group_size())
}

/// Whether heads are packed to fill tiles: up to [`MOST_PACKED_QUERIES`] where that lowers the number of tiles; above,
/// under full masks alone, and where it lowers the number of rounds of them on all SMs. What causal masks gain has rows
/// of the table.
fn packs(problem: &Problem, config: &Config, sms: u32) -> bool {
    if !can_pack(problem) {
        return false;
    }
    let tiles = |config: Config| {
        let packing = config.packing(problem, sms);
        let queries = packing.queries_in(config.rows) as usize;
        problem.batch() * problem.num_heads() / packing.heads() as usize * problem.seq_len_q().div_ceil(queries)
    };
    let (unpacked, packed) = (tiles(*config), tiles(packed(*config)));
    let rounds = |tiles: usize| tiles.div_ceil(sms as usize);
    match problem.seq_len_q() <= MOST_PACKED_QUERIES {
        true => packed < unpacked,
        false => problem.mask().is_full() && rounds(packed) < rounds(unpacked),
    }
}

fn packed_percent(problem: &Problem) -> u64 {
    match problem.seq_len_q() <= MOST_PACKED_QUERIES {
        true => PACKED_PERCENT,
        false => PACKED_LONG_PERCENT,
    }
}

fn table(dtype: DType) -> &'static [Default] {
    match dtype {
        DType::E4M3 => TABLE_E4M3,
        _ => TABLE,
    }
}

/// A config that the table proposes, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The config.
    pub config: Config,
    /// Why.
    pub why: &'static str,
}

/// What the table proposes for a problem on a GPU, best first; a [`Target`] stands for its usual card. Nothing but on
/// Hopper, where problems of 16-bit elements must have 0.5 tiles of 64 rows for each SM (0.7 where causal and of
/// head_dim to 64), or keys enough to be split, and those of e4m3 are always served. Some may be refused. In the
/// backward pass there is one for each head size, or two where blocks may share tiles of keys.
pub fn proposals(problem: &Problem, chip: impl Into<Chip>) -> Vec<Proposal> {
    each_proposal(problem, chip.into()).collect()
}

/// [`proposals`], each computed when those before it were refused: to rank them all takes as long as the choice.
pub(crate) fn each_proposal(problem: &Problem, chip: Chip) -> impl Iterator<Item = Proposal> {
    let Rows { known, ranked, rest } = rows(problem, chip);
    let ranked = iter::once_with(move || by_rank(ranked, problem, chip.sms)).flatten();
    let rows = ranked.chain(rest);
    let rows = rows.map(|Candidate { config, why, .. }| Proposal { config, why });
    known.into_iter().chain(rows)
}

/// What is proposed, in this order.
#[derive(Default)]
struct Rows {
    known: Vec<Proposal>,
    /// By when the busiest SM is done.
    ranked: Vec<Candidate>,
    rest: Vec<Candidate>,
}

impl Rows {
    fn known(known: Vec<Proposal>) -> Rows {
        Rows {
            known,
            ..Rows::default()
        }
    }
}

fn rows(problem: &Problem, chip: Chip) -> Rows {
    let dtype = problem.dtype();
    let head_dim = problem.head_dim().max(problem.head_dim_v());
    if problem.direction() == Direction::Backward {
        return match chip.target {
            Target::Sm90a => Rows::known(backward::proposals(problem, chip)),
            _ => Rows::default(),
        };
    }
    let tiles = |rows: usize| problem.batch() * problem.num_heads() * problem.seq_len_q().div_ceil(rows);
    let causal = problem.mask().window_right.is_some();
    // Family mma has tiles of 32 rows too, and is faster while they are all run at once: with 56 and 64 tiles of 64
    // rows it took 0.78 to 0.84 of the time at head_dim 64, with 80 to 96 1.35 to 1.55 times as long, but 0.84 to 1.1
    // if causal. Of 18 problems of 66 to 80 tiles with head_dim 72 to 128, 12 were 1.7 to 2.4 times as fast here, the
    // others, most of them causal with few keys, 0.97 to 1.17.
    let share = if head_dim <= 64 && causal { 7 } else { 5 };
    if chip.target != Target::Sm90a || Size::of(problem, chip) == Size::Decode && dtype != DType::E4M3 {
        return Rows::default();
    }
    if problem.has_lengths() {
        return Rows::known(lengths::with_lengths(problem, chip));
    }
    // Batch-invariant problems are split where rows are few, in family mma.
    let of_16_bits = dtype != DType::E4M3;
    let may_split = of_16_bits && problem.batch_invariant().is_none();
    let timed = of_16_bits.then(|| times::fastest(problem, chip.sms, may_split));
    let (whole, split) = timed.unwrap_or_default();
    let much = 10 * tiles(64) >= share * chip.sms as usize;
    // With few tiles family mma may be a tenth faster than whole ones.
    let least = whole.map_or(0, |whole| if much { whole.ps } else { 9 * whole.ps / 10 });
    let split = split.filter(|split| split.ps < least);
    let whole =
        whole.filter(|whole| much && whole.ps <= times::most_ps(problem) && problem.head_dim() == problem.head_dim_v());
    let timed = split.or(whole).map(|timed| timed.proposal(problem));
    if !much && of_16_bits {
        return Rows::known(timed.into_iter().collect());
    }
    let tiles = tiles(128);
    let serves = |row: &&Default| {
        (head_dim <= row.head_dim && row.head_dim_v.is_none_or(|most| problem.head_dim_v() <= most))
            && row.causal.is_none_or(|wanted| wanted == causal)
            && row.most_keys.is_none_or(|most| problem.seq_len_kv() <= most)
            && (row.most_tiles).is_none_or(|most| tiles * MEASURED_SMS <= most * chip.sms as usize)
            && (!row.softcap || problem.softcap().is_some())
            && (!row.config.pack_heads || can_pack(problem))
    };
    let mut rows: Vec<&Default> = table(dtype).iter().filter(serves).collect();
    // The first match and those that it is chosen among, by when the busiest SM is done.
    let first = rows.first().map(|row| (row.head_dim, row.head_dim_v));
    let of_first = |row: &&&Default| Some((row.head_dim, row.head_dim_v)) == first && row.cost_per_key.is_some();
    let alternatives = rows.iter().take_while(of_first).count();
    let mut ranked: Vec<Candidate> = rows.drain(..alternatives).map(Candidate::of).collect();
    let packing = ranked.iter().filter(|row| packs(problem, &row.config, chip.sms));
    let packed: Vec<Candidate> = packing.map(|row| row.packed(packed_percent(problem))).collect();
    ranked.extend(packed);
    // If the model chose whole tiles, rows are there for what a compiler refuses.
    let rest = rows.into_iter().map(Candidate::of);
    let (ranked, rest) = match timed.is_none_or(|timed| timed.config.splits > 1) {
        true => (ranked, rest.collect()),
        false => (Vec::new(), ranked.into_iter().chain(rest).collect()),
    };
    let known = timed.into_iter().collect();
    Rows { known, ranked, rest }
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
    let mut defaults: Vec<(Config, (usize, usize))> = Vec::new();
    let mut add =
        |config: Config, head_dims: (usize, usize)| match defaults.iter_mut().find(|(other, _)| *other == config) {
            Some((_, most)) => *most = head_dims.max(*most),
            None => defaults.push((config, head_dims)),
        };
    for row in table(dtype) {
        let head_dims = (row.head_dim, row.head_dim_v.unwrap_or(row.head_dim));
        add(row.config, head_dims);
    }
    let plain = Problem::builder()
        .heads(1, 1)
        .seq_len(1)
        .head_dim(64)
        .dtype(dtype)
        .build();
    for problem in plain.iter().filter(|_| dtype != DType::E4M3) {
        for (config, head_dim) in times::configs(problem) {
            add(config, (head_dim, head_dim));
        }
    }
    defaults
}

#[cfg(test)]
mod tests;
