//! A model of times. It decides where keys are split, and for problems of less than 80 µs (chunks: 240), whose tiles
//! leave something over at every edge.

use flashcore_problem::Problem;
use serde::Deserialize;

use super::evaluate::{Cost, Tilings};
use super::{Config, PACKED_PERCENT, PACKED_WHY, Proposal};
use crate::attention::params::{ALIGNMENT, Shape};
use crate::attention::query_rows::Packing;
use crate::attention::scheduler::{MAX_ITEM_SPLITS, Tiling};
use crate::card::Score;

/// Times of tiles of so many rows, up to a head_dim, in picoseconds. A K block of `n` keys takes `n · key + block`; a
/// tile takes `n · key + tile` in addition, for its first and last products, which nothing overlaps.
///
/// Those of the H200 are fitted to 2,600 times of up to 150 µs, of 201 random problems (run `default-times-h200`), each
/// within 3 to 8 % (rms). Where only one or two widths of K blocks were timed, a K block is taken to cost as much as 20
/// keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Times {
    head_dim: usize,
    /// Keys of K blocks that are tried. With more of them times in between are no nearer to the best.
    cols: Vec<u32>,
    /// The tile with the most keys that registers have room for, and three stages. One of 64 rows has no other
    /// warpgroup to hide the rescaling of its output, which takes longer for larger heads.
    config: Config,
    key: u64,
    block: u64,
    tile: u64,
    #[serde(skip)]
    pub(crate) place: &'static str,
}

/// Picoseconds up to which the model chooses whole tiles: beyond, rows of the table are nearer to the best, but for
/// chunks with more keys than rows.
const MOST_PS: u64 = 80_000_000;
const MOST_PS_OF_CHUNKS: u64 = 3 * MOST_PS;

/// Picoseconds of a second launch and of merging, and those of each KB of partials: f32 sums of every row and split,
/// which are stored and loaded. Fitted to 900 times of splits.
const MERGE_PS: u64 = 2_000_000;
const MERGE_PS_PER_KB: u64 = 550;

/// A mask takes two fifths of what a K block takes in addition to its keys; they are counted in sixteenths.
const MASKED_SHARE: u64 = 40;

/// Time of K blocks with two stages and several warpgroups in hundredths of that with three.
const TWO_STAGES_PERCENT: u64 = 104;

/// Keys of K blocks in which keys are split. With more widths splits are no nearer to the best.
const SPLIT_COLS: [u32; 3] = [64, 80, 128];

/// Most splits that an SM works through, one after the other.
const MOST_ROUNDS: u32 = 4;

/// Time of several rounds in hundredths of that of as many whole tiles. With this and the next number the model splits
/// 83 of 139 problems in rounds, in 0.916 of the time in the mean, and four in more than 1.03 of it (run
/// `split-rounds-h200`).
const ROUNDS_PERCENT: u64 = 103;

/// Splits in rounds read K and V at 3.1 TB/s at most, seen on an H200. Other cards were not measured.
const READ_PS_PER_KB: u64 = 320;

/// K blocks of a split, the longest if they differ, at least: fewer were not timed.
const LEAST_BLOCKS: u64 = 3;

const SHORT_WHY: &str = "of all tiles these are done first, by times fitted to such short problems";

const SPLIT_WHY: &str = "tiles of rows leave SMs without work: their keys in as many splits as keep all of them busy";

impl Times {
    /// What kernels of the problem have; smaller heads have the levers of the largest, and splits those of whole keys.
    fn shape(&self, problem: &Problem) -> Shape {
        let head_dim = self.head_dim as u32;
        Shape {
            head_dim,
            head_dim_v: head_dim,
            ..Shape::new(problem, ALIGNMENT, None)
        }
    }

    /// A tile with as many stages as there is room for, up to three.
    fn tile(&self, cols: u32, shape: &Shape) -> Config {
        let mut tile = Config { cols, ..self.config };
        // With a soft cap and a third stage, tiles of 192 rows would spill registers.
        let spills = tile.rows == 192 && shape.softcap;
        if spills || !tile.fits_shared_memory(shape) {
            tile.stages = 2;
        }
        tile
    }

    /// The tile with Q in registers if at least half of it fits, but in tiles of 64 rows.
    fn config(&self, cols: u32, splits: u32, pack_heads: bool, problem: &Problem) -> Config {
        let shape = self.shape(problem);
        let held = Config {
            splits,
            pack_heads,
            q_in_registers: true,
            ..self.tile(cols, &shape)
        };
        let q_in_registers = self.config.rows > 64 && 32 * held.q_steps_held(&shape) >= shape.head_dim;
        Config { q_in_registers, ..held }
    }

    /// Picoseconds of a K block, and of a tile. `masked`: sixteenths of a K block that need a mask in each tile.
    fn ps(&self, cols: u32, masked: u64, stages: u32) -> [u64; 2] {
        let keys = u64::from(cols) * self.key;
        let is_slower = stages == 2 && self.config.rows > 64;
        let percent = if is_slower { TWO_STAGES_PERCENT } else { 100 };
        let block = (keys + self.block) * percent / 100;
        [block, keys + self.tile + self.block * masked / MASKED_SHARE]
    }
}

/// A tiling, and how long it takes.
#[derive(Clone, Copy)]
pub(super) struct Timed {
    times: &'static Times,
    /// In hundredths of a picosecond.
    cost: Cost,
    splits: u32,
    pub(super) ps: u64,
}

/// Every config that may be chosen, and the largest head_dim that it is for; keys in three splits stand for all splits,
/// and no heads are packed. The problem's head_dim does not matter.
pub(super) fn configs(times: &'static [Times], problem: &Problem) -> impl Iterator<Item = (Config, usize)> {
    let all = times.iter();
    let all = all.flat_map(|times| times.cols.iter().map(move |&cols| (times, cols)));
    all.flat_map(move |(times, cols)| {
        let splits = [1, 3].into_iter();
        let splits = splits.filter(move |splits| *splits == 1 || SPLIT_COLS.contains(&cols));
        splits.map(move |splits| (times.config(cols, splits, false, problem), times.head_dim))
    })
}

/// Picoseconds up to which whole tiles are the model's; beyond, they are those of rows of the table.
pub fn most_ps(problem: &Problem) -> u64 {
    let is_chunk = problem.seq_len_q() < problem.seq_len_kv();
    if is_chunk { MOST_PS_OF_CHUNKS } else { MOST_PS }
}

impl Timed {
    fn packs(&self) -> bool {
        self.cost.tiling.packing != Packing::NONE
    }

    /// Whether a kernel packs heads like this if keys are in `splits` splits.
    fn packs_for(&self, problem: &Problem, splits: u32, sms: u32) -> bool {
        !self.packs() || self.cost.tiling.packing == Packing::for_tiles(problem, self.times.config.rows, splits, sms)
    }

    pub(super) fn proposal(&self, problem: &Problem) -> Proposal<Config> {
        let why = match (self.splits, self.packs()) {
            (2.., _) => SPLIT_WHY,
            (_, true) => PACKED_WHY,
            _ => SHORT_WHY,
        };
        let (times, cols) = (self.times, self.cost.tiling.cols);
        let config = times.config(cols, self.splits, self.packs(), problem);
        Proposal::new(config, why, Some(times.place), Score::Picoseconds(self.ps))
    }

    /// The keys of tiles in as many splits as are done first, in as many rounds as the SMs need for them.
    fn in_splits(&self, tilings: &mut Tilings<'_>) -> Option<Timed> {
        let (problem, sms, cols) = (tilings.problem, tilings.sms, self.cost.tiling.cols);
        let of_tiling = tilings.tiles(self.cost.tiling);
        let tiles = u32::try_from(of_tiling.count()).ok()?;
        let most = (MOST_ROUNDS * sms / tiles).min(MAX_ITEM_SPLITS);
        if most < 2 || !SPLIT_COLS.contains(&cols) {
            return None;
        }
        let work = of_tiling.work(cols);
        let rows = problem.batch() * problem.num_heads() * problem.seq_len_q();
        let kilobytes = (rows * problem.head_dim_v() * size_of::<f32>()) as u64 / 1000;
        let keys = problem.batch() * problem.num_kv_heads() * problem.seq_len_kv();
        let read = (keys * (problem.head_dim() + problem.head_dim_v()) * size_of::<u16>()) as u64 / 1000;
        let longest = |splits: u32| work.longest().div_ceil(u64::from(splits));
        let worth = |splits: &u32| {
            let shorter = longest(*splits) >= LEAST_BLOCKS && longest(*splits) < longest(splits - 1);
            shorter && self.packs_for(problem, *splits, sms)
        };
        let timed = |splits: u32| {
            let merge = MERGE_PS + MERGE_PS_PER_KB * kilobytes * u64::from(splits);
            let rounds = u64::from((tiles * splits).div_ceil(sms));
            let computed = self.cost.of()(rounds * longest(splits), rounds) / 100;
            let ps = if rounds > 1 {
                (computed * ROUNDS_PERCENT / 100).max(READ_PS_PER_KB * read)
            } else {
                computed
            };
            Timed {
                splits,
                ps: ps + merge,
                ..*self
            }
        };
        (2..=most).filter(worth).map(timed).min_by_key(|split| split.ps)
    }
}

/// How heads may share tiles of `rows` rows: packed ones first, and of these the one with most queries in a tile.
fn packings(problem: &Problem, rows: u32) -> impl Iterator<Item = Packing> {
    let (in_warpgroups, in_tiles) = (Packing::all_of(problem), Packing::in_tiles_of(problem, rows));
    let tiles = |packing: Packing| problem.seq_len_q().div_ceil(packing.queries_in(rows) as usize);
    let can_pack = Packing::serves(problem);
    let differ = can_pack && !problem.has_lengths() && tiles(in_tiles) < tiles(in_warpgroups);
    let packed = [differ.then_some(in_tiles), can_pack.then_some(in_warpgroups)];
    packed.into_iter().flatten().chain([Packing::NONE])
}

/// Tiles whose times are known but for how they fill the SMs. None, if the problem is so long that the model does not
/// decide for it.
fn candidates(tilings: &mut Tilings<'_>, times: &'static [Times]) -> Vec<Timed> {
    let (problem, sms) = (tilings.problem, tilings.sms);
    let head_dim = problem.head_dim().max(problem.head_dim_v());
    let enough = times.iter().find(|times| head_dim <= times.head_dim);
    let of_head_dim = |times: &&Times| Some(times.head_dim) == enough.map(|enough| enough.head_dim);
    let mut candidates: Vec<Timed> = Vec::new();
    // Tiles of most rows first.
    for times in times.iter().rev().filter(of_head_dim) {
        let shape = times.shape(problem);
        for packing in packings(problem, times.config.rows) {
            let tiling = times.config.tiling(packing);
            let tiles = tilings.tiles(tiling);
            let percent = if packing == Packing::NONE { 100 } else { PACKED_PERCENT };
            let timed = |cols: u32, masked: u64, stages: u32| Timed {
                times,
                cost: Cost {
                    tiling: Tiling { cols, ..tiling },
                    each: times.ps(cols, masked, stages).map(|ps| percent * ps),
                    begin: 0,
                },
                splits: 1,
                ps: 0,
            };
            // The first tiling tells whether a problem is long: others take no more than a fifth less.
            let is_long =
                || 4 * tiles.least(tiling.cols, timed(tiling.cols, 0, 3).cost.of()) > 5 * percent * most_ps(problem);
            if candidates.is_empty() && is_long() && tiles.count() > u64::from(sms) {
                return candidates;
            }
            let each = times.cols.iter();
            candidates.extend(each.map(|&cols| timed(cols, tiles.masked(cols), times.tile(cols, &shape).stages)));
        }
    }
    candidates
}

/// The fastest tiles of whole keys, and the fastest splits of keys, if there are [`candidates`].
pub(super) fn fastest(
    tilings: &mut Tilings<'_>,
    times: &'static [Times],
    may_split: bool,
) -> (Option<Timed>, Option<Timed>) {
    let (problem, sms) = (tilings.problem, tilings.sms);
    let mut candidates = candidates(tilings, times);
    let splits = candidates.iter().filter(|_| may_split);
    let split = splits.filter_map(|candidate| candidate.in_splits(tilings));
    let split = split.min_by_key(|split| split.ps);
    candidates.retain(|candidate| candidate.packs_for(problem, 1, sms));
    let whole = tilings.first(candidates.iter().map(|candidate| candidate.cost));
    let whole = whole.map(|(cost, place)| Timed {
        ps: cost / 100,
        ..candidates[place]
    });
    (whole, split)
}

/// All that [`fastest`] chooses among, the fastest first.
pub(super) fn all(tilings: &mut Tilings<'_>, times: &'static [Times], may_split: bool) -> Vec<Timed> {
    let (problem, sms, mut all) = (tilings.problem, tilings.sms, Vec::new());
    for candidate in candidates(tilings, times) {
        all.extend(candidate.in_splits(tilings).filter(|_| may_split));
        let alone = Some(candidate.cost).filter(|_| candidate.packs_for(problem, 1, sms));
        let ps = tilings.first(alone.into_iter()).map(|(cost, _)| cost / 100);
        all.extend(ps.map(|ps| Timed { ps, ..candidate }));
    }
    all.sort_by_key(|timed| timed.ps);
    all
}
