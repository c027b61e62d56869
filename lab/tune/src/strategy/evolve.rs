//! Evolution of an elite, a population form of EvoEngineer (Guo et al. 2025).

use flashcore_problem::rng::Rng;

use super::simple::fresh;
use super::{Proposal, Strategy};
use crate::error::TuneError;
use crate::insight::{Advisor, Claim, Insights};
use crate::space::Space;
use crate::trial::{History, Trial};

/// The fastest so far, which are the parents.
const ELITE: usize = 3;
/// Random configs of each family before the first offspring, if there are several families, so that
/// the search is not confined to the family of a bad first candidate.
const FOUNDERS: usize = 4;
/// Share of random proposals from the whole space, so that every family is tried.
const IMMIGRANTS: f32 = 0.1;
/// Share of offspring that are mixtures of two parents, if there are two.
const MIXTURES: f32 = 0.25;
/// Share of mutants that differ in two levers, which leaves minima such as a larger tile that needs
/// fewer stages.
const TWO_LEVERS: f32 = 0.4;
/// Draws of offspring before a random config is proposed.
const TRIES: usize = 40;

/// Share of mutants that ignore claims, so that changes without a claim are tried.
const UNWEIGHED: f32 = 0.3;
/// What a claim with full trust and an expected gain of [`GAIN`] adds to the weight of its change.
/// A change without a claim has weight 1. In proportion to the gain, up to twice as much.
const BOOST: f64 = 20.0;
/// See [`BOOST`]; per cent.
const GAIN: f64 = 10.0;

#[derive(Debug)]
pub(super) struct Evolution {
    rng: Rng,
    pub(super) founders: usize,
    insights: Option<Insights>,
}

impl Evolution {
    pub(super) fn new(seed: u64, advisor: Option<Advisor>) -> Evolution {
        Evolution {
            rng: Rng::stream(seed, 3),
            founders: 0,
            insights: advisor.map(Insights::new),
        }
    }

    fn founder(&mut self, history: &History, space: &Space) -> Option<Proposal> {
        let families: Vec<&str> = space.families().map(|family| family.name).collect();
        while families.len() > 1 && self.founders < FOUNDERS * families.len() {
            let family = families[self.founders % families.len()];
            self.founders += 1;
            let of_family = |id: &String| space.family_of(id).is_some_and(|of| of.name == family);
            let mut drawn = (0..TRIES).filter_map(|_| space.sample(&mut self.rng));
            if let Some(id) = drawn.find(|id| of_family(id) && !history.is_seen(id)) {
                return Some(Proposal::new(id, format!("drawn from {family}")));
            }
        }
        None
    }

    fn offspring(&mut self, parents: &[&Trial], history: &History, space: &Space) -> Option<Proposal> {
        let rng = &mut self.rng;
        let parent = &rng.pick(parents)?.id;
        if parents.len() > 1 && rng.chance(MIXTURES) {
            let mates: Vec<&&Trial> = parents.iter().filter(|mate| mate.id != *parent).collect();
            let mate = &rng.pick(&mates)?.id;
            let child = space.crossover(parent, mate, rng)?;
            return Some(Proposal::new(child, format!("{parent} and {mate}")));
        }
        let levers = if rng.chance(TWO_LEVERS) { 2 } else { 1 };
        if let Some(insights) = &self.insights
            && !rng.chance(UNWEIGHED)
        {
            let (mutant, claim) = weighed(parent, insights, history, space, rng)?;
            let why = claim.map_or("one lever".to_string(), |claim| {
                format!("{}: {} {} to {}", claim.kind, claim.lever, claim.from, claim.to)
            });
            if levers == 1 {
                return Some(Proposal::new(mutant, format!("{why} of {parent}")));
            }
            let further = space.mutate(&mutant, 1, rng)?;
            return Some(Proposal::new(further, format!("{why} of {parent}, and one more lever")));
        }
        let mutant = space.mutate(parent, levers, rng)?;
        let words = if levers == 2 { "two levers" } else { "one lever" };
        Some(Proposal::new(mutant, format!("{words} of {parent}")))
    }
}

fn parents(history: &History) -> Vec<&Trial> {
    let mut ranked = history.ranked();
    // Only the first of several with the same machine program.
    ranked.retain(|trial| trial.same_as.is_none());
    ranked.truncate(ELITE);
    ranked
}

fn weight(claim: &Claim, trust: f64) -> f64 {
    match claim.expected {
        Some(percent) => 1.0 + BOOST * trust * (-percent / GAIN).clamp(0.0, 2.0),
        None => 1.0 - trust,
    }
}

/// A config that differs in one lever, drawn by weight, and its claim.
fn weighed<'i>(
    parent: &str,
    insights: &'i Insights,
    history: &History,
    space: &Space,
    rng: &mut Rng,
) -> Option<(String, Option<&'i Claim>)> {
    let mut around = space.neighbours(parent);
    around.retain(|id| !history.is_seen(id));
    let options: Vec<(String, Option<&Claim>, f64)> = around
        .into_iter()
        .map(|id| {
            let claims = insights.open(parent).filter(|claim| claim.proposes == id);
            let weighed = claims.map(|claim| (claim, weight(claim, insights.trust(claim.kind, claim.source))));
            // A warning counts before what model and counters promise.
            let heaviest = weighed.reduce(|a, b| match (a.0.expected, b.0.expected) {
                (None, _) => a,
                (_, None) => b,
                _ if b.1 > a.1 => b,
                _ => a,
            });
            let (claim, weight) = heaviest.map_or((None, 1.0), |(claim, weight)| (Some(claim), weight));
            (id, claim, weight)
        })
        .collect();
    let all: f64 = options.iter().map(|(.., weight)| weight).sum();
    let mut left = all * f64::from(rng.unit());
    let drawn = options.into_iter().find(|(.., weight)| {
        left -= weight;
        left < 0.0
    });
    drawn.map(|(id, claim, _)| (id, claim))
}

impl Strategy for Evolution {
    fn propose(&mut self, history: &History, space: &Space) -> Result<Option<Proposal>, TuneError> {
        if let Some(insights) = &mut self.insights {
            insights.follow(history, space);
        }
        if let Some(founder) = self.founder(history, space) {
            return Ok(Some(founder));
        }
        let parents = parents(history);
        if !parents.is_empty() && !self.rng.chance(IMMIGRANTS) {
            for _ in 0..TRIES {
                let child = self.offspring(&parents, history, space);
                if let Some(child) = child.filter(|child| !history.is_seen(&child.id)) {
                    return Ok(Some(child));
                }
            }
        }
        Ok(fresh(history, space, &mut self.rng).map(|id| Proposal::new(id, "drawn")))
    }

    fn insights(&mut self, history: &History, space: &Space) -> Option<&Insights> {
        Some(self.insights.as_mut()?.follow(history, space))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::insight::ClaimKind;
    use crate::tests::{advisor, made_up, trial, valley};

    const PARENT: &str = "cpu/m64n64";
    const CLAIMED: &str = "cpu/m96n64";

    /// Share of draws of the claimed change, and the number of distinct draws, after this many
    /// claims of its kind came true or did not.
    fn share(kind: ClaimKind, came_true: usize, did_not: usize) -> (f64, usize) {
        let (space, _) = valley();
        let (mut history, mut insights) = (History::default(), Insights::new(advisor()));
        history.add(trial(0, PARENT, Some(1.0)));
        let expected = (kind != ClaimKind::Spills).then_some(-10.0);
        for number in 0..came_true + did_not {
            insights.add(made_up(PARENT, &format!("x{number}"), kind, expected));
        }
        insights.add(made_up(PARENT, CLAIMED, kind, expected));
        for number in 0..came_true + did_not {
            let comes_true = number < came_true;
            let score = if kind == ClaimKind::Spills {
                (!comes_true).then_some(1.0)
            } else {
                Some(if comes_true { 0.9 } else { 1.0 })
            };
            history.add(trial(number + 1, &format!("x{number}"), score));
        }
        insights.follow(&history, &space);
        let mut rng = Rng::new(1);
        let mut drawn = BTreeMap::new();
        for _ in 0..4000 {
            let (id, _) = weighed(PARENT, &insights, &history, &space, &mut rng).unwrap();
            *drawn.entry(id).or_insert(0) += 1;
        }
        (f64::from(drawn[CLAIMED]) / 4000.0, drawn.len())
    }

    #[test]
    fn a_change_is_drawn_as_often_as_claims_of_its_kind_came_true() {
        let [never, unknown, always] = [(0, 20), (0, 0), (20, 0)].map(|(yes, no)| share(ClaimKind::Room, yes, no));
        assert!(
            never.0 < 0.6 * unknown.0 && unknown.0 < 0.8 * always.0,
            "{never:?} {unknown:?} {always:?}"
        );
        // All of the twenty others are still drawn.
        assert!([never, unknown, always].iter().all(|(_, others)| *others == 20));
        let [trusted, doubted] = [(20, 0), (0, 20)].map(|(yes, no)| share(ClaimKind::Spills, yes, no));
        assert!(trusted.0 < 0.02 && doubted.0 > 0.03, "{trusted:?} {doubted:?}");
    }

    #[test]
    fn a_proposal_says_which_claim_it_follows() {
        let (space, _) = valley();
        let mut history = History::default();
        history.add(trial(0, PARENT, Some(1.0)));
        let mut strategy = Evolution::new(3, Some(advisor()));
        if let Some(insights) = &mut strategy.insights {
            insights.follow(&history, &space);
            insights.add(made_up(PARENT, CLAIMED, ClaimKind::Room, Some(-30.0)));
        }
        let origins: Vec<Proposal> = (0..20)
            .filter_map(|_| strategy.propose(&history, &space).unwrap())
            .collect();
        let led = origins.iter().find(|proposal| proposal.id == CLAIMED).unwrap();
        assert_eq!(led.origin, "room: tile_q 64 to 128 of cpu/m64n64");
        assert!(origins.iter().any(|proposal| proposal.id != CLAIMED));
    }
}
