//! When the busiest SM is done: what rows of the table, and tiles of the model of times, are chosen by.

use flashcore_problem::Problem;

use crate::attention::scheduler::{Tiles, Tiling};

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
