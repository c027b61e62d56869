//! Evolution, in the population forms of EvoEngineer (Guo et al. 2025): a single best, an elite, and niches.

use std::collections::BTreeMap;

use flashcore_problem::rng::Rng;

use super::simple::fresh;
use super::{Proposal, Strategy};
use crate::error::TuneError;
use crate::space::Space;
use crate::trial::{History, Trial};

/// Who may have offspring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Population {
    /// The fastest so far.
    Single,
    /// The three fastest.
    Elite,
    /// The fastest of each niche: of each family and class of tile.
    Niches,
}

impl Population {
    /// `single`, `elite`, `niches`.
    pub const fn name(self) -> &'static str {
        match self {
            Population::Single => "single",
            Population::Elite => "elite",
            Population::Niches => "niches",
        }
    }
}

/// How many make the elite.
const ELITE: usize = 3;
/// Share of proposals that are drawn from the whole space, so that no family is never tried.
const IMMIGRANTS: f32 = 0.1;
/// Share of offspring that are mixtures of two parents, where there are two.
const MIXTURES: f32 = 0.25;
/// Share of mutants that differ in two levers: one lever alone cannot leave some valleys, such as a larger tile that
/// needs fewer stages.
const TWO_LEVERS: f32 = 0.4;
/// In niches: share of parents that are the fastest of all.
const FASTEST: f32 = 0.5;
/// Offspring drawn before one is taken from the whole space.
const TRIES: usize = 40;

/// Evolution.
#[derive(Debug)]
pub struct Evolution {
    population: Population,
    rng: Rng,
}

impl Evolution {
    /// With a seed. What was tried before is the first generation.
    pub fn new(population: Population, seed: u64) -> Evolution {
        Evolution {
            population,
            rng: Rng::stream(seed, 3),
        }
    }

    /// Those who may have offspring, the fastest first.
    fn parents<'h>(&self, history: &'h History, space: &Space) -> Vec<&'h Trial> {
        let mut ranked = history.ranked();
        // One of several with the same machine program.
        ranked.retain(|trial| trial.same_as.is_none());
        match self.population {
            Population::Single => ranked.truncate(1),
            Population::Elite => ranked.truncate(ELITE),
            Population::Niches => {
                let mut filled = BTreeMap::new();
                ranked.retain(|trial| filled.insert(space.niche(&trial.id), ()).is_none());
            }
        }
        ranked
    }

    fn offspring(&mut self, parents: &[&Trial], space: &Space) -> Option<Proposal> {
        let rng = &mut self.rng;
        let parent = match self.population {
            Population::Niches if rng.chance(FASTEST) => parents.first(),
            _ => rng.pick(parents),
        };
        let parent = &parent?.id;
        if parents.len() > 1 && rng.chance(MIXTURES) {
            let mates: Vec<&&Trial> = parents.iter().filter(|mate| mate.id != *parent).collect();
            let mate = &rng.pick(&mates)?.id;
            let child = space.crossover(parent, mate, rng)?;
            return Some(Proposal::new(child, format!("{parent} and {mate}")));
        }
        let levers = if rng.chance(TWO_LEVERS) { 2 } else { 1 };
        let mutant = space.mutate(parent, levers, rng)?;
        let words = if levers == 2 { "two levers" } else { "one lever" };
        Some(Proposal::new(mutant, format!("{words} of {parent}")))
    }
}

impl Strategy for Evolution {
    fn propose(&mut self, history: &History, space: &Space) -> Result<Option<Proposal>, TuneError> {
        let parents = self.parents(history, space);
        if !parents.is_empty() && !self.rng.chance(IMMIGRANTS) {
            for _ in 0..TRIES {
                let child = self.offspring(&parents, space);
                if let Some(child) = child.filter(|child| !history.is_seen(&child.id)) {
                    return Ok(Some(child));
                }
            }
        }
        Ok(fresh(history, space, &mut self.rng).map(|id| Proposal::new(id, "drawn")))
    }
}
