//! Rows of the table by when the busiest SM is done.

use std::iter;

use flashcore_problem::Problem;

use super::evaluate::{Cost, Tilings};
use super::{Config, PACKED_WHY, PAIR_KEYS, PAIR_MOST_KEYS, Proposal, Row, TILE_KEYS};
use crate::card::Score;

/// A config and its time of a tile per key ([`Row::cost_per_key`]).
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) config: Config,
    why: &'static str,
    place: &'static str,
    pub(super) cost_per_key: u64,
}

impl Candidate {
    pub(super) fn of(row: &Row) -> Candidate {
        Candidate {
            config: row.config,
            why: row.why,
            place: row.place,
            cost_per_key: 100 * row.cost_per_key.unwrap_or(0),
        }
    }

    pub(super) fn cost(&self, problem: &Problem, sms: u32) -> Cost {
        let tiling = self.config.tiling(self.config.packing(problem, sms));
        let waits = self.config.cluster > 1 && problem.seq_len_kv() <= PAIR_MOST_KEYS;
        Cost {
            tiling,
            each: [u64::from(tiling.cols), TILE_KEYS].map(|keys| self.cost_per_key * keys),
            begin: if waits { self.cost_per_key * PAIR_KEYS } else { 0 },
        }
    }

    pub(super) fn proposal(self, score: Score) -> Proposal<Config> {
        Proposal::new(self.config, self.why, Some(self.place), score)
    }

    pub(super) fn in_order(self) -> Proposal<Config> {
        self.proposal(Score::Order)
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
            ..*self
        }
    }
}

/// Rows by when the busiest SM is done, each worked out when those before it were refused.
pub(super) fn by_rank(mut rows: Vec<Candidate>, mut tilings: Tilings<'_>) -> impl Iterator<Item = Proposal<Config>> {
    let are_several = rows.len() > 1; // most decode steps have none
    iter::from_fn(move || {
        if !are_several {
            return rows.pop().map(Candidate::in_order);
        }
        let (problem, sms) = (tilings.problem, tilings.sms);
        let (work, place) = tilings.first(rows.iter().map(|row| row.cost(problem, sms)))?;
        Some(rows.remove(place).proposal(Score::Work(work)))
    })
}
