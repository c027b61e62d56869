//! A model of times. It decides where keys are split, and for problems of less than 80 µs (chunks: 240), whose tiles leave
//! something over at every edge.

use flashcore_problem::Problem;

use super::{Config, PACKED_WHY, Proposal, can_pack, conditional, free, pingpong, q_held};
use crate::attention::params::{ALIGNMENT, Shape};
use crate::attention::query_rows::Packing;
use crate::attention::scheduler::{MOST_SPLITS, Tiles, Tiling};

/// Picoseconds of tiles with so many rows, up to a head_dim. A K block of `n` keys takes `n · key + block`; a tile takes
/// `n · key + tile` besides, for its first and last products, which nothing overlaps.
struct Times {
    head_dim: usize,
    rows: u32,
    cluster: u32,
    key: u64,
    block: u64,
    tile: u64,
    /// Most keys of a K block that registers have room for.
    most_cols: u32,
    /// For a key of all K blocks, as if the SMs shared them out evenly: where copies are slow, those of other SMs delay them.
    copy: u64,
}

const fn times(head_dim: usize, rows: u32, [key, block, tile]: [u64; 3], most_cols: u32) -> Times {
    Times {
        head_dim,
        rows,
        cluster: 1,
        key,
        block,
        tile,
        most_cols,
        copy: 0,
    }
}

/// The same for pairs of blocks that read K and V once.
const fn in_pairs(head_dim: usize, rows: u32, ps: [u64; 3], most_cols: u32) -> Times {
    Times {
        cluster: 2,
        ..times(head_dim, rows, ps, most_cols)
    }
}

/// The same where copies are slow.
const fn copying(copy: u64, times: Times) -> Times {
    Times { copy, ..times }
}

/// Fitted to 2,600 times of up to 150 µs, of 201 random problems on an H200 (run `default-times-h200`), each within 3 to 8 %
/// (rms). Where only one or two widths of K blocks were timed, a K block is taken to cost as much as 20 keys.
#[rustfmt::skip]
const TIMES: &[Times] = &[
    times(64, 64, [4_810, 104_000, 144_000], 128),
    times(64, 128, [6_440, 137_000, 289_000], 128),
    times(64, 192, [8_530, 85_000, 256_000], 128),
    times(80, 64, [8_150, 83_000, 0], 128),
    times(80, 128, [8_540, 95_000, 515_000], 128),
    in_pairs(80, 128, [7_820, 112_000, 1_147_000], 128),
    times(80, 192, [9_130, 144_000, 883_000], 96),
    times(96, 64, [6_130, 113_000, 269_000], 128),
    times(96, 128, [7_540, 169_000, 155_000], 128),
    times(96, 192, [9_380, 163_000, 347_000], 96),
    copying(7_500, times(112, 64, [4_930, 130_000, 570_000], 128)),
    copying(9_000, times(112, 128, [3_750, 130_000, 1_499_000], 128)),
    in_pairs(112, 128, [9_300, 111_000, 1_566_000], 128),
    copying(7_700, times(112, 192, [5_660, 130_000, 1_929_000], 96)),
    times(128, 64, [6_650, 152_000, 248_000], 128),
    times(128, 128, [8_540, 176_000, 412_000], 128),
    times(128, 192, [11_570, 163_000, 526_000], 80),
    times(160, 64, [8_560, 124_000, 453_000], 128),
    times(160, 128, [9_250, 236_000, 952_000], 128),
    times(160, 192, [12_870, 257_000, 725_000], 64),
    times(192, 64, [9_200, 184_000, 291_000], 96),
    times(192, 128, [11_870, 125_000, 1_023_000], 96),
    times(192, 192, [14_580, 292_000, 1_804_000], 48),
    times(256, 64, [11_210, 142_000, 631_000], 64),
    times(256, 128, [14_150, 283_000, 747_000], 64),
];

/// Picoseconds up to which the model chooses whole tiles: beyond, rows of the table are nearer to the best, but for chunks with
/// more keys than rows.
const MOST_PS: u64 = 80_000_000;
const MOST_PS_OF_CHUNKS: u64 = 3 * MOST_PS;

/// Picoseconds of a second launch and of merging, and those of each KB of partials: f32 sums of every row and split, which are
/// stored and loaded. Fitted to 900 times of splits.
const MERGE_PS: u64 = 2_000_000;
const MERGE_PS_PER_KB: u64 = 550;

/// Time of packed tiles in hundredths of that of others: more boxes a copy, and rows that belong to several heads.
const PACKED_PERCENT: u64 = 102;

/// K blocks of a split, the longest if they differ, at least: fewer were not timed.
const LEAST_BLOCKS: u64 = 3;

const SHORT_WHY: &str = "of all tiles these are done first, by times fitted to such short problems";

const SPLIT_WHY: &str = "few tiles of rows: their keys in as many splits as give every SM something to do";

impl Times {
    /// Keys of K blocks that are tried. With more of them times in between are no nearer to the best.
    fn cols(&self) -> impl Iterator<Item = u32> + use<> {
        let cols: &[u32] = match (self.rows, self.cluster) {
            (64, _) => &[64, 96, 128],
            (128, 1) => &[64, 80, 96, 112, 128],
            (128, _) => &[128],
            _ => &[48, 64, 80, 96, 128],
        };
        let most = self.most_cols;
        cols.iter().copied().filter(move |cols| *cols <= most)
    }

    /// Whether keys are split in such K blocks. With more widths splits are no nearer to the best.
    fn splits(&self, cols: u32) -> bool {
        self.cluster == 1 && [64, 80, 128].contains(&cols)
    }

    /// Picoseconds of so many K blocks in so many tiles.
    fn ps(&self, cols: u32, blocks: u64, tiles: u64) -> u64 {
        let keys = u64::from(cols) * self.key;
        (keys + self.block) * blocks + (keys + self.tile) * tiles
    }
}

/// A tiling, and how long it takes.
#[derive(Clone, Copy)]
pub(super) struct Timed {
    times: &'static Times,
    cols: u32,
    packs: bool,
    splits: u32,
    pub(super) ps: u64,
}

impl Timed {
    /// With levers that times hardly depend on: as many stages as there is room for, up to three, and Q in registers if at least
    /// half of it fits. Tiles of 64 rows have two stages, and read Q from shared memory. With a soft cap and a third stage, tiles
    /// of 192 rows would spill registers.
    fn config(&self, problem: &Problem) -> Config {
        let head_dim = self.times.head_dim as u32;
        let tile = match self.times.rows {
            64 => free(64, self.cols, 2),
            rows => pingpong(rows, self.cols, 3),
        };
        let tile = if head_dim > 192 { conditional(tile) } else { tile };
        let tile = Config {
            cluster: self.times.cluster,
            splits: self.splits,
            pack_heads: self.packs,
            ..tile
        };
        // Smaller heads have the levers of the largest, and splits those of whole keys.
        let shape = Shape {
            head_dim,
            head_dim_v: head_dim,
            ..Shape::new(problem, ALIGNMENT, None)
        };
        let spills = tile.rows == 192 && problem.softcap().is_some();
        let stages = match tile.fits_shared_memory(&shape) && !spills {
            true => tile.stages,
            false => 2,
        };
        let tile = Config { stages, ..tile };
        match tile.rows > 64 && 32 * q_held(tile).q_steps_held(&shape) >= head_dim {
            true => q_held(tile),
            false => tile,
        }
    }

    pub(super) fn proposal(&self, problem: &Problem) -> Proposal {
        let why = match (self.splits, self.packs) {
            (2.., _) => SPLIT_WHY,
            (_, true) => PACKED_WHY,
            _ => SHORT_WHY,
        };
        let config = self.config(problem);
        Proposal { config, why }
    }
}

/// Every config that may be chosen, and the largest head_dim that it is for; keys in three splits stand for all splits, and no
/// heads are packed. The problem's head_dim is no matter.
pub(super) fn configs(problem: &Problem) -> impl Iterator<Item = (Config, usize)> {
    let all = TIMES
        .iter()
        .flat_map(|times| times.cols().map(move |cols| (times, cols)));
    all.flat_map(move |(times, cols)| {
        let splits = [1, 3]
            .into_iter()
            .filter(move |splits| *splits == 1 || times.splits(cols));
        splits.map(move |splits| {
            let timed = Timed {
                times,
                cols,
                packs: false,
                splits,
                ps: 0,
            };
            (timed.config(problem), times.head_dim)
        })
    })
}

/// Picoseconds up to which whole tiles are the model's.
pub(super) fn most_ps(problem: &Problem) -> u64 {
    match problem.seq_len_q() < problem.seq_len_kv() {
        true => MOST_PS_OF_CHUNKS,
        false => MOST_PS,
    }
}

/// Tiles of whole keys.
struct Candidate<'t> {
    tile: Timed,
    tiles: &'t Tiles,
}

impl Candidate<'_> {
    /// Picoseconds, by those of the busiest SM if no other copied.
    fn ps(&self, busiest: u64, blocks_an_sm: u64) -> u64 {
        let Timed { times, cols, packs, .. } = self.tile;
        let ps = busiest + times.copy * u64::from(cols) * blocks_an_sm;
        if packs { ps * PACKED_PERCENT / 100 } else { ps }
    }

    /// Picoseconds if the SMs shared out keys evenly, with no K block that is not full.
    fn least(&self) -> u64 {
        let Timed { times, cols, .. } = self.tile;
        self.ps(self.tiles.least(cols, |blocks, tiles| times.ps(cols, blocks, tiles)), 0)
    }

    /// With the time when the busiest SM is done, unless that is not before `best`.
    fn timed(&self, best: Option<u64>) -> Option<Timed> {
        let Timed { times, cols, .. } = self.tile;
        let work = self.tiles.work(cols);
        let cost = |blocks, tiles| times.ps(cols, blocks, tiles);
        let is_behind = |busiest: u64| best.is_some_and(|best| self.ps(busiest, work.blocks_an_sm()) >= best);
        let busiest = (!is_behind(work.mean(cost))).then(|| work.most(cost))?;
        let ps = self.ps(busiest, work.blocks_an_sm());
        (!is_behind(busiest)).then_some(Timed { ps, ..self.tile })
    }

    /// The keys of tiles in as many splits as are done first, each on an SM to itself.
    fn in_splits(&self, problem: &Problem, sms: u32) -> Option<Timed> {
        let Timed { times, cols, .. } = self.tile;
        let most = (sms / u32::try_from(self.tiles.count()).ok()?).min(MOST_SPLITS);
        if most < 2 || !times.splits(cols) {
            return None;
        }
        let work = self.tiles.work(cols);
        let rows = problem.batch() * problem.num_heads() * problem.seq_len_q();
        let kilobytes = (rows * problem.head_dim_v() * size_of::<f32>()) as u64 / 1000;
        let longest = |splits: u32| work.longest().div_ceil(u64::from(splits));
        let worth = |splits: &u32| longest(*splits) >= LEAST_BLOCKS && longest(*splits) < longest(splits - 1);
        let timed = |splits: u32| {
            let merge = MERGE_PS + MERGE_PS_PER_KB * kilobytes * u64::from(splits);
            let ps = self.ps(times.ps(cols, longest(splits), 1), work.blocks_an_sm()) + merge;
            Timed {
                splits,
                ps,
                ..self.tile
            }
        };
        (2..=most).filter(worth).map(timed).min_by_key(|split| split.ps)
    }
}

/// The fastest tiles of whole keys, and the fastest splits of keys. Neither, if the problem is so long that the model does not
/// decide for it.
pub(super) fn fastest(problem: &Problem, sms: u32, may_split: bool) -> (Option<Timed>, Option<Timed>) {
    let head_dim = problem.head_dim().max(problem.head_dim_v());
    let enough = TIMES.iter().find(|times| head_dim <= times.head_dim);
    let of_head_dim = |times: &&Times| Some(times.head_dim) == enough.map(|enough| enough.head_dim);
    let mut all: Vec<(&'static Times, bool, Tiles)> = Vec::new();
    // Tiles of most rows first.
    for times in TIMES.iter().rev().filter(of_head_dim) {
        for packs in [true, false].into_iter().filter(|packs| !packs || can_pack(problem)) {
            let packing = if packs { Packing::all_of(problem) } else { Packing::NONE };
            let Times {
                rows,
                cluster,
                most_cols,
                ..
            } = *times;
            let (cols, splits) = (most_cols, 1);
            let tiling = Tiling {
                rows,
                cols,
                cluster,
                splits,
                packing,
            };
            let tiles = Tiles::new(problem, tiling, sms);
            // The first tiling tells whether a problem is long: others take no more than a fifth less.
            let least = tiles.least(cols, |blocks, tiles| times.ps(cols, blocks, tiles));
            if all.is_empty() && 4 * least > 5 * most_ps(problem) && tiles.count() > u64::from(sms) {
                return (None, None);
            }
            all.push((times, packs, tiles));
        }
    }
    let mut candidates: Vec<(u64, Candidate<'_>)> = Vec::new();
    for (times, packs, tiles) in &all {
        for cols in times.cols() {
            let (packs, splits) = (*packs, 1);
            let tile = Timed {
                times,
                cols,
                packs,
                splits,
                ps: 0,
            };
            let candidate = Candidate { tile, tiles };
            candidates.push((candidate.least(), candidate));
        }
    }
    candidates.sort_by_key(|(least, candidate)| (*least, candidate.tile.packs));
    let splits = candidates.iter().filter(|_| may_split);
    let split = splits.filter_map(|(_, candidate)| candidate.in_splits(problem, sms));
    let split = split.min_by_key(|split| split.ps);
    let mut whole: Option<Timed> = None;
    for (least, candidate) in &candidates {
        let best = whole.map(|whole| whole.ps);
        if best.is_some_and(|best| best <= *least) {
            break;
        }
        whole = candidate.timed(best).or(whole);
    }
    (whole, split)
}
