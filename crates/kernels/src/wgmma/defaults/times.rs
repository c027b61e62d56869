//! A model of times. It decides where keys are split, and for problems of less than 80 µs (chunks: 240), whose tiles
//! leave something over at every edge.

use flashcore_problem::Problem;
use serde::Deserialize;

use super::{Config, PACKED_PERCENT, PACKED_WHY, Proposal, free};
use crate::attention::params::{ALIGNMENT, Shape};
use crate::attention::query_rows::Packing;
use crate::attention::scheduler::{MAX_ITEM_SPLITS, Tiles, Tiling};
use crate::attention::softmax::Rescale;

/// Times of tiles of `rows` rows, up to a head_dim, in picoseconds. A K block of `n` keys takes `n · key + block`; a
/// tile takes `n · key + tile` in addition, for its first and last products, which nothing overlaps.
///
/// Those of the H200 are fitted to 2,600 times of up to 150 µs, of 201 random problems (run `default-times-h200`), each
/// within 3 to 8 % (rms). Where only one or two widths of K blocks were timed, a K block is taken to cost as much as 20
/// keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Times {
    head_dim: usize,
    rows: u32,
    key: u64,
    block: u64,
    tile: u64,
    /// Most keys of a K block that registers have room for.
    most_cols: u32,
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
    /// Keys of K blocks that are tried. With more of them times in between are no nearer to the best.
    fn cols(&self) -> impl Iterator<Item = u32> + use<> {
        let cols: &[u32] = match self.rows {
            64 => &[64, 96, 128],
            128 => &[64, 80, 96, 112, 128],
            _ => &[48, 64, 80, 96, 128],
        };
        let most = self.most_cols;
        cols.iter().copied().filter(move |cols| *cols <= most)
    }

    /// What kernels of the problem have; smaller heads have the levers of the largest, and splits those of whole keys.
    fn shape(&self, problem: &Problem) -> Shape {
        let head_dim = self.head_dim as u32;
        Shape {
            head_dim,
            head_dim_v: head_dim,
            ..Shape::new(problem, ALIGNMENT, None)
        }
    }

    /// A tile with as many stages as there is room for, up to three. One of 64 rows has no other warpgroup to hide the
    /// rescaling of its output, which takes longer for larger heads.
    fn tile(&self, cols: u32, shape: &Shape) -> Config {
        let pingpong = self.rows > 64;
        let least = if pingpong { 192 } else { 64 };
        let mut tile = Config {
            pingpong,
            ..free(self.rows, cols, 3)
        };
        if self.head_dim > least {
            tile.rescale = Rescale::Conditional;
        }
        // With a soft cap and a third stage, tiles of 192 rows would spill registers.
        let spills = tile.rows == 192 && shape.softcap;
        if tile.fits_shared_memory(shape) && !spills {
            tile
        } else {
            Config { stages: 2, ..tile }
        }
    }

    /// Picoseconds of a K block, and of a tile. `masked`: sixteenths of a K block that need a mask in each tile.
    fn ps(&self, cols: u32, masked: u64, stages: u32) -> [u64; 2] {
        let keys = u64::from(cols) * self.key;
        let percent = if stages == 2 && self.rows > 64 {
            TWO_STAGES_PERCENT
        } else {
            100
        };
        let block = (keys + self.block) * percent / 100;
        [block, keys + self.tile + self.block * masked / MASKED_SHARE]
    }
}

/// The time of so many K blocks and tiles.
fn cost([block, tile]: [u64; 2]) -> impl Fn(u64, u64) -> u64 {
    move |blocks, tiles| block * blocks + tile * tiles
}

/// A tiling, and how long it takes.
#[derive(Clone, Copy)]
pub(super) struct Timed {
    times: &'static Times,
    cols: u32,
    packing: Packing,
    splits: u32,
    pub(super) ps: u64,
}

impl Timed {
    fn packs(&self) -> bool {
        self.packing != Packing::NONE
    }

    /// Whether a kernel packs heads like this if keys are in `splits` splits.
    fn packs_for(&self, problem: &Problem, splits: u32, sms: u32) -> bool {
        !self.packs() || self.packing == Packing::for_tiles(problem, self.times.rows, splits, sms)
    }

    /// With Q in registers if at least half of it fits, but in tiles of 64 rows.
    fn config(&self, problem: &Problem) -> Config {
        let shape = self.times.shape(problem);
        let tile = Config {
            splits: self.splits,
            pack_heads: self.packs(),
            ..self.times.tile(self.cols, &shape)
        };
        let held = Config {
            q_in_registers: true,
            ..tile
        };
        if tile.rows > 64 && 32 * held.q_steps_held(&shape) >= shape.head_dim {
            held
        } else {
            tile
        }
    }

    pub(super) fn proposal(&self, problem: &Problem) -> Proposal {
        let why = match (self.splits, self.packs()) {
            (2.., _) => SPLIT_WHY,
            (_, true) => PACKED_WHY,
            _ => SHORT_WHY,
        };
        let config = self.config(problem);
        Proposal { config, why }
    }
}

/// Every config that may be chosen, and the largest head_dim that it is for; keys in three splits stand for all splits,
/// and no heads are packed. The problem's head_dim does not matter.
pub(super) fn configs(times: &'static [Times], problem: &Problem) -> impl Iterator<Item = (Config, usize)> {
    let all = times
        .iter()
        .flat_map(|times| times.cols().map(move |cols| (times, cols)));
    all.flat_map(move |(times, cols)| {
        let splits = [1, 3]
            .into_iter()
            .filter(move |splits| *splits == 1 || SPLIT_COLS.contains(&cols));
        splits.map(move |splits| {
            let timed = Timed {
                times,
                cols,
                packing: Packing::NONE,
                splits,
                ps: 0,
            };
            (timed.config(problem), times.head_dim)
        })
    })
}

/// Picoseconds up to which whole tiles are the model's.
pub(super) fn most_ps(problem: &Problem) -> u64 {
    if problem.seq_len_q() < problem.seq_len_kv() {
        MOST_PS_OF_CHUNKS
    } else {
        MOST_PS
    }
}

/// Tiles of whole keys.
struct Candidate<'t> {
    tile: Timed,
    tiles: &'t Tiles,
    /// [`Times::ps`].
    each: [u64; 2],
}

impl Candidate<'_> {
    /// Picoseconds, by those of the busiest SM if heads were not packed.
    fn ps(&self, busiest: u64) -> u64 {
        if self.tile.packs() {
            busiest * PACKED_PERCENT / 100
        } else {
            busiest
        }
    }

    /// Picoseconds if the SMs shared out keys evenly, with no K block that is not full.
    fn least(&self) -> u64 {
        self.ps(self.tiles.least(self.tile.cols, cost(self.each)))
    }

    /// With the time when the busiest SM is done, unless that is not before `best`.
    fn timed(&self, best: u64) -> Option<Timed> {
        let work = self.tiles.work(self.tile.cols);
        let may_be_first = self.ps(work.mean(cost(self.each))) < best;
        let ps = self.ps(may_be_first.then(|| work.makespan(cost(self.each)))?);
        (ps < best).then_some(Timed { ps, ..self.tile })
    }

    /// The keys of tiles in as many splits as are done first, in as many rounds as the SMs need for them.
    fn in_splits(&self, problem: &Problem, sms: u32) -> Option<Timed> {
        let cols = self.tile.cols;
        let tiles = u32::try_from(self.tiles.count()).ok()?;
        let most = (MOST_ROUNDS * sms / tiles).min(MAX_ITEM_SPLITS);
        if most < 2 || !SPLIT_COLS.contains(&cols) {
            return None;
        }
        let work = self.tiles.work(cols);
        let rows = problem.batch() * problem.num_heads() * problem.seq_len_q();
        let kilobytes = (rows * problem.head_dim_v() * size_of::<f32>()) as u64 / 1000;
        let keys = problem.batch() * problem.num_kv_heads() * problem.seq_len_kv();
        let read = (keys * (problem.head_dim() + problem.head_dim_v()) * size_of::<u16>()) as u64 / 1000;
        let longest = |splits: u32| work.longest().div_ceil(u64::from(splits));
        let worth = |splits: &u32| {
            let shorter = longest(*splits) >= LEAST_BLOCKS && longest(*splits) < longest(splits - 1);
            shorter && self.tile.packs_for(problem, *splits, sms)
        };
        let timed = |splits: u32| {
            let merge = MERGE_PS + MERGE_PS_PER_KB * kilobytes * u64::from(splits);
            let rounds = u64::from((tiles * splits).div_ceil(sms));
            let computed = self.ps(cost(self.each)(rounds * longest(splits), rounds));
            let ps = if rounds > 1 {
                (computed * ROUNDS_PERCENT / 100).max(READ_PS_PER_KB * read)
            } else {
                computed
            };
            Timed {
                splits,
                ps: ps + merge,
                ..self.tile
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

/// The fastest tiles of whole keys, and the fastest splits of keys. Neither, if the problem is so long that the model
/// does not decide for it.
pub(super) fn fastest(
    problem: &Problem,
    times: &'static [Times],
    sms: u32,
    may_split: bool,
) -> (Option<Timed>, Option<Timed>) {
    let head_dim = problem.head_dim().max(problem.head_dim_v());
    let enough = times.iter().find(|times| head_dim <= times.head_dim);
    let of_head_dim = |times: &&Times| Some(times.head_dim) == enough.map(|enough| enough.head_dim);
    let mut all: Vec<(&'static Times, Packing, Tiles)> = Vec::new();
    // Tiles of most rows first.
    for times in times.iter().rev().filter(of_head_dim) {
        let Times { rows, most_cols, .. } = *times;
        for packing in packings(problem, rows) {
            let (cols, cluster, splits) = (most_cols, 1, 1);
            let tiling = Tiling {
                rows,
                cols,
                cluster,
                splits,
                packing,
            };
            let tiles = Tiles::new(problem, tiling, sms);
            // The first tiling tells whether a problem is long: others take no more than a fifth less.
            let least = tiles.least(cols, cost(times.ps(cols, 0, 3)));
            if all.is_empty() && 4 * least > 5 * most_ps(problem) && tiles.count() > u64::from(sms) {
                return (None, None);
            }
            all.push((times, packing, tiles));
        }
    }
    let mut candidates: Vec<Candidate<'_>> = Vec::new();
    for (times, packing, tiles) in &all {
        let shape = times.shape(problem);
        candidates.extend(times.cols().map(|cols| Candidate {
            tile: Timed {
                times,
                cols,
                packing: *packing,
                splits: 1,
                ps: 0,
            },
            tiles,
            each: times.ps(cols, tiles.masked(cols), times.tile(cols, &shape).stages),
        }));
    }
    candidates.sort_by_cached_key(|candidate| (candidate.least(), candidate.tile.packs()));
    let splits = candidates.iter().filter(|_| may_split);
    let split = splits.filter_map(|candidate| candidate.in_splits(problem, sms));
    let split = split.min_by_key(|split| split.ps);
    let mut whole: Option<Timed> = None;
    let as_whole = |candidate: &&Candidate<'_>| candidate.tile.packs_for(problem, 1, sms);
    for candidate in candidates.iter().filter(as_whole) {
        let best = whole.map_or(u64::MAX, |whole| whole.ps);
        if best <= candidate.least() {
            break;
        }
        whole = candidate.timed(best).or(whole);
    }
    (whole, split)
}
