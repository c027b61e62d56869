//! Rows of the table by when the busiest SM is done.

use std::iter;

use flashcore_problem::Problem;

use super::{Config, PACKED_WHY, PAIR_KEYS, PAIR_MOST_KEYS, Row, TILE_KEYS};
use crate::attention::scheduler::{Least, Tiles, Tiling, TilingWork};

/// A config and its time of a tile per key ([`Row::cost_per_key`]).
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) config: Config,
    pub(super) why: &'static str,
    pub(super) cost_per_key: u64,
}

impl Candidate {
    pub(super) fn of(row: &Row) -> Candidate {
        Candidate {
            config: row.config,
            why: row.why,
            cost_per_key: 100 * row.cost_per_key.unwrap_or(0),
        }
    }

    /// The cost of `blocks` K blocks in `items` items.
    fn cost(&self, blocks: u64, items: u64) -> u64 {
        self.cost_per_key * (blocks * u64::from(self.config.cols) + TILE_KEYS * items)
    }

    /// What a block costs once.
    fn begin(&self, problem: &Problem) -> u64 {
        if self.config.cluster > 1 && problem.seq_len_kv() <= PAIR_MOST_KEYS {
            self.cost_per_key * PAIR_KEYS
        } else {
            0
        }
    }

    /// When the busiest SM is done.
    pub(super) fn makespan(&self, problem: &Problem, work: &TilingWork) -> u64 {
        self.begin(problem) + work.makespan(|blocks, items| self.cost(blocks, items))
    }

    /// [`Self::makespan`] if all SMs had as much to do.
    fn mean(&self, problem: &Problem, work: &TilingWork) -> u64 {
        self.begin(problem) + work.mean(|blocks, items| self.cost(blocks, items))
    }

    /// What [`Self::mean`] is at least, by the pairs of a query and a key that it sees in a head: a tile sees no fewer
    /// keys than its queries on average.
    fn least(&self, problem: &Problem, sms: u32, pairs: u64) -> u64 {
        let tiling = self.config.tiling(self.config.packing(problem, sms));
        let Least { keys, items, clusters } = Least::of(problem, tiling, sms, pairs);
        let cost = self.cost_per_key.saturating_mul(keys + TILE_KEYS * items);
        self.begin(problem) + cost / clusters
    }

    /// With the heads of a K/V head in one tile, which takes `percent` of the time of another.
    pub(super) fn packed(&self, percent: u64) -> Candidate {
        Candidate {
            config: Config {
                pack_heads: true,
                ..self.config
            },
            why: PACKED_WHY,
            cost_per_key: self.cost_per_key / 100 * percent,
        }
    }
}

/// Rows by when the busiest SM is done, each worked out when those before it were refused.
pub(super) fn by_rank(mut rows: Vec<Candidate>, problem: &Problem, sms: u32) -> impl Iterator<Item = Candidate> {
    let mut known = Known::default();
    iter::from_fn(move || Some(rows.remove(first(&rows, &mut known, problem, sms)?)))
}

/// Tiles by how they are made; those of rows with the same tiles of queries are the same.
#[derive(Default)]
struct Known(Vec<(Tiling, Tiles)>);

impl Known {
    fn work(&mut self, row: &Candidate, problem: &Problem, sms: u32) -> TilingWork {
        let tiling = row.config.tiling(row.config.packing(problem, sms));
        let rows_alone = Tiling { cols: 0, ..tiling };
        let place = self.0.iter().position(|(of, _)| *of == rows_alone);
        let place = place.unwrap_or_else(|| {
            self.0.push((rows_alone, Tiles::new(problem, tiling, sms)));
            self.0.len() - 1
        });
        self.0[place].1.work(tiling.cols)
    }
}

/// The place of the row whose busiest SM is done first, of several the first. Most rows are behind it by
/// [`Candidate::least`] already: to make their lists, only to drop them, would be most of the time that a new length
/// costs.
fn first(rows: &[Candidate], known: &mut Known, problem: &Problem, sms: u32) -> Option<usize> {
    if rows.len() < 2 {
        return rows.first().map(|_| 0); // most decode steps have none
    }
    let pairs = pairs(problem);
    let least = |place: usize| (rows[place].least(problem, sms, pairs), place);
    let mut places: Vec<(u64, usize)> = (0..rows.len()).map(least).collect();
    places.sort_unstable();
    let mut best = (u64::MAX, 0);
    for (least, place) in places {
        if least > best.0 {
            break;
        }
        let row = &rows[place];
        let work = known.work(row, problem, sms);
        if row.mean(problem, &work) <= best.0 {
            best = best.min((row.makespan(problem, &work), place));
        }
    }
    Some(best.1)
}

/// Pairs of a query and a key that it sees, of a head.
fn pairs(problem: &Problem) -> u64 {
    let seen = problem.key_range();
    let (queries, keys) = (problem.seq_len_q() as i64, seen.seq_len_kv as i64);
    // Keys before `query + offset`, of all queries.
    let before = |offset: i64| {
        let rises = (-offset).clamp(0, queries);
        let all = (keys - offset).clamp(rises, queries);
        (all - rises) * (rises + all - 1 + 2 * offset) / 2 + (queries - all) * keys
    };
    (before(i64::from(seen.hi) + 1) - before(i64::from(seen.lo))) as u64
}

#[cfg(test)]
mod tests {
    use flashcore_problem::Mask;

    use super::*;

    #[test]
    fn pairs_are_those_of_all_queries() {
        let windows = [
            (None, None),
            (None, Some(0)),
            (Some(3), Some(0)),
            (Some(2), Some(5)),
            (Some(40), Some(1)),
        ];
        for (queries, keys) in [(1, 1), (7, 7), (5, 19), (19, 5), (30, 30)] {
            for (left, right) in windows {
                for mask in [Mask::window(left, right), Mask::window(left, right).top_left()] {
                    let problem = Problem::builder().heads(1, 1).head_dim(64).mask(mask);
                    let problem = problem.seq_len_q(queries).seq_len_kv(keys).build().unwrap();
                    let seen = problem.key_range();
                    let all: usize = (0..queries).map(|query| seen.keys(query).len()).sum();
                    assert_eq!(pairs(&problem), all as u64, "{problem}");
                }
            }
        }
    }
}
