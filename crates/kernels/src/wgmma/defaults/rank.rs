//! Rows of the table by when the busiest SM is done.

use std::iter;

use flashcore_problem::Problem;

use super::evaluate::{Cost, Tilings};
use super::{Config, PACKED_WHY, PAIR_KEYS, PAIR_MOST_KEYS, Proposal, Row, TILE_KEYS};
use crate::card::Score;

/// A row's config, in the order of the table, and hundredths of its time of a tile per key ([`Row::cost_per_key`]).
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) in_order: Proposal<Config>,
    pub(super) cost_per_key: u64,
}

impl Candidate {
    pub(super) fn of(row: &Row) -> Candidate {
        Candidate {
            in_order: row.proposal(),
            cost_per_key: 100 * row.cost_per_key.unwrap_or(0),
        }
    }

    pub(super) fn cost(&self, problem: &Problem, sms: u32) -> Cost {
        let config = &self.in_order.config;
        let tiling = config.tiling(config.packing(problem, sms));
        let waits = config.cluster > 1 && problem.seq_len_kv() <= PAIR_MOST_KEYS;
        Cost {
            tiling,
            each: [u64::from(tiling.cols), TILE_KEYS].map(|keys| self.cost_per_key * keys),
            begin: if waits { self.cost_per_key * PAIR_KEYS } else { 0 },
        }
    }

    /// Its config, placed by work.
    pub(super) fn by_work(&self, work: u64) -> Proposal<Config> {
        let score = Score::Work(work);
        Proposal { score, ..self.in_order }
    }

    /// With the heads of a K/V head in one tile, which takes `percent` of the time of another.
    pub(super) fn packed(&self, percent: u64) -> Candidate {
        let pack_heads = true;
        let packed = self.in_order.map(|config| Config { pack_heads, ..config });
        Candidate {
            in_order: Proposal {
                why: PACKED_WHY,
                ..packed
            },
            cost_per_key: self.cost_per_key / 100 * percent,
        }
    }
}

/// Rows by when the busiest SM is done, each worked out when those before it were refused.
pub(super) fn by_rank(mut rows: Vec<Candidate>, mut tilings: Tilings<'_>) -> impl Iterator<Item = Proposal<Config>> {
    let are_several = rows.len() > 1; // most decode steps have none
    iter::from_fn(move || {
        if !are_several {
            return rows.pop().map(|row| row.in_order);
        }
        let (problem, sms) = (tilings.problem, tilings.sms);
        let (work, place) = tilings.first(rows.iter().map(|row| row.cost(problem, sms)))?;
        Some(rows.remove(place).by_work(work))
    })
}
