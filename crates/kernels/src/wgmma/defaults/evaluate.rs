//! When the busiest SM is done: what rows of the table, and tiles of the model of times, are chosen by.

use std::iter;

use flashcore_problem::Problem;

use super::{Config, PACKED_WHY, PAIR_KEYS, PAIR_MOST_KEYS, Proposal, Row, TILE_KEYS};
use crate::attention::scheduler::{Tiles, Tiling};
use crate::card::Score;

/// What the tiles of a tiling take.
#[derive(Clone, Copy)]
pub(super) struct Cost {
    pub(super) tiling: Tiling,
    /// Of each K block, and of each tile in addition.
    pub(super) each: [u64; 2],
    /// Of each block of the grid.
    pub(super) begin: u64,
}

impl Cost {
    /// The cost of so many K blocks and tiles.
    pub(super) fn of(&self) -> impl Fn(u64, u64) -> u64 + use<> {
        let [block, tile] = self.each;
        move |blocks, tiles| block * blocks + tile * tiles
    }
}

/// A problem on a number of SMs, and its tiles by how they are made: tilings with the same tiles of queries share them.
pub(super) struct Tilings<'p> {
    pub(super) problem: &'p Problem,
    pub(super) sms: u32,
    known: Vec<(Tiling, Tiles)>,
}

impl<'p> Tilings<'p> {
    pub(super) fn new(problem: &'p Problem, sms: u32) -> Self {
        let known = Vec::new();
        Tilings { problem, sms, known }
    }

    pub(super) fn tiles(&mut self, tiling: Tiling) -> &Tiles {
        let rows_alone = Tiling { cols: 0, ..tiling };
        let place = self.known.iter().position(|(of, _)| *of == rows_alone);
        let place = place.unwrap_or_else(|| {
            let tiles = Tiles::new(self.problem, tiling, self.sms);
            self.known.push((rows_alone, tiles));
            self.known.len() - 1
        });
        &self.known[place].1
    }

    /// When the busiest SM is done with what is done first, and its place; of several the first. Most are behind it by
    /// what they take at least: to make their lists, only to drop them, would be most of the time that a new length
    /// costs.
    pub(super) fn first(&mut self, costs: impl Iterator<Item = Cost>) -> Option<(u64, usize)> {
        let with_least = costs.enumerate().map(|(place, cost)| {
            let least = cost.begin + self.tiles(cost.tiling).least(cost.tiling.cols, cost.of());
            (least, place, cost)
        });
        let mut costs: Vec<(u64, usize, Cost)> = with_least.collect();
        costs.sort_unstable_by_key(|(least, place, _)| (*least, *place));
        let mut best: Option<(u64, usize)> = None;
        for (least, place, cost) in costs {
            let first = best.map_or(u64::MAX, |(first, _)| first);
            if least > first {
                break;
            }
            let work = self.tiles(cost.tiling).work(cost.tiling.cols);
            if cost.begin + work.mean(cost.of()) <= first {
                let found = (cost.begin + work.makespan(cost.of()), place);
                best = Some(best.map_or(found, |best| best.min(found)));
            }
        }
        best
    }
}

/// A row of the table as a proposal, and its time of a tile per key ([`Row::cost_per_key`]).
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    /// In the order of the table.
    pub(super) proposal: Proposal<Config>,
    pub(super) cost_per_key: u64,
}

impl Candidate {
    pub(super) fn of(row: &Row) -> Candidate {
        Candidate {
            proposal: Proposal::new(row.config, row.why, Some(row.place), Score::Order),
            cost_per_key: 100 * row.cost_per_key.unwrap_or(0),
        }
    }

    pub(super) fn cost(&self, problem: &Problem, sms: u32) -> Cost {
        let config = &self.proposal.config;
        let tiling = config.tiling(config.packing(problem, sms));
        let waits = config.cluster > 1 && problem.seq_len_kv() <= PAIR_MOST_KEYS;
        Cost {
            tiling,
            each: [u64::from(tiling.cols), TILE_KEYS].map(|keys| self.cost_per_key * keys),
            begin: if waits { self.cost_per_key * PAIR_KEYS } else { 0 },
        }
    }

    pub(super) fn placed_by(self, score: Score) -> Proposal<Config> {
        Proposal { score, ..self.proposal }
    }

    /// With the heads of a K/V head in one tile, which takes `percent` of the time of another.
    pub(super) fn packed(&self, percent: u64) -> Candidate {
        let mut packed = *self;
        packed.proposal.config.pack_heads = true;
        packed.proposal.why = PACKED_WHY;
        packed.cost_per_key = self.cost_per_key / 100 * percent;
        packed
    }
}

/// Rows by when the busiest SM is done, each worked out when those before it were refused.
pub(super) fn by_rank(mut rows: Vec<Candidate>, mut tilings: Tilings<'_>) -> impl Iterator<Item = Proposal<Config>> {
    let are_several = rows.len() > 1; // most decode steps have none
    iter::from_fn(move || {
        if !are_several {
            return rows.pop().map(|row| row.proposal);
        }
        let (problem, sms) = (tilings.problem, tilings.sms);
        let (work, place) = tilings.first(rows.iter().map(|row| row.cost(problem, sms)))?;
        Some(rows.remove(place).placed_by(Score::Work(work)))
    })
}
