//! Strategies decide what to try next. Each is seeded and proposes the same after the same history,
//! so that a run can be resumed.

mod evolve;
mod outside;
mod ranked;
mod simple;

use std::str::FromStr;
use std::time::Duration;

use flashcore_problem::rng::Rng;

use crate::error::TuneError;
use crate::insight::{Advisor, Insights};
use crate::space::Space;
use crate::trial::History;

use evolve::Evolution;
pub use outside::Outside;
use ranked::Ranked;
use simple::{Exhaustive, RandomSearch};

/// A candidate and why it is proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The config.
    pub id: String,
    /// Why it is proposed, in a few words.
    pub origin: String,
}

impl Proposal {
    pub(crate) fn new(id: impl Into<String>, origin: impl Into<String>) -> Proposal {
        Proposal {
            id: id.into(),
            origin: origin.into(),
        }
    }
}

/// Proposes candidates.
pub trait Strategy {
    /// The next candidate, if any is left that is not in the history. Only outside proposers fail.
    fn propose(&mut self, history: &History, space: &Space) -> Result<Option<Proposal>, TuneError>;

    /// Limits the next proposal to the time left for the search. Only outside proposers use it.
    fn hurry(&mut self, _left: Duration) {}

    /// Whether a resumed run asks it for the earlier proposals, because it repeats them.
    fn is_replayable(&self) -> bool {
        true
    }

    /// Claims about the trials of a history and their scores; `None` if it makes no claims.
    fn insights(&mut self, _history: &History, _space: &Space) -> Option<&Insights> {
        None
    }
}

/// A strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every config in order.
    Exhaustive,
    /// Random configs.
    Random,
    /// Evolution from the three fastest.
    Elite,
    /// The same with mutations weighted by claims.
    Informed,
    /// The best by prediction first, then evolution with mutations weighted by claims.
    Ranked,
}

/// Every strategy in this process and its name.
const NAMES: [(Kind, &str); 5] = [
    (Kind::Exhaustive, "exhaustive"),
    (Kind::Random, "random"),
    (Kind::Elite, "elite"),
    (Kind::Informed, "elite+insights"),
    (Kind::Ranked, "ranked"),
];

impl Kind {
    /// Every strategy in this process.
    pub fn all() -> [Kind; NAMES.len()] {
        NAMES.map(|(kind, _)| kind)
    }

    /// Its name, such as `elite+insights`.
    pub fn name(self) -> &'static str {
        let named = NAMES.iter().find(|(kind, _)| *kind == self);
        named.map_or("", |(_, name)| name)
    }

    /// Whether it needs an [`Advisor`].
    pub const fn is_informed(self) -> bool {
        matches!(self, Kind::Informed | Kind::Ranked)
    }

    /// The seeded strategy; an informed one needs an advisor.
    pub fn start(self, seed: u64, advisor: Option<&Advisor>) -> Result<Box<dyn Strategy>, TuneError> {
        let needed = || {
            let without = Kind::Elite.name();
            let why = "nothing here models the cost of kernels, so there are no claims and no predictions";
            let none = || TuneError::nothing(format!("{why}; `{without}` searches without them"));
            advisor.cloned().ok_or_else(none)
        };
        Ok(match self {
            Kind::Exhaustive => Box::new(Exhaustive::default()),
            Kind::Random => Box::new(RandomSearch(Rng::stream(seed, 1))),
            Kind::Elite => Box::new(Evolution::new(seed, None)),
            Kind::Informed => Box::new(Evolution::new(seed, Some(needed()?))),
            Kind::Ranked => {
                let advisor = needed()?;
                let (predicting, keys) = (advisor.clone(), advisor.problem.seq_len_kv());
                let predict = Box::new(move |ids: &[String]| predicting.predict(ids));
                Box::new(Ranked::new(seed, keys, predict, Some(advisor)))
            }
        })
    }
}

impl FromStr for Kind {
    type Err = TuneError;

    fn from_str(name: &str) -> Result<Kind, TuneError> {
        let named = NAMES.iter().find(|(_, known)| *known == name);
        let allowed = || NAMES.map(|(_, name)| name).join(", ");
        named
            .map(|(kind, _)| *kind)
            .ok_or_else(|| TuneError::bad("strategy", name, allowed()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::tests::{advisor, trial, valley};

    /// Runs a strategy for so many trials: the ids in order.
    fn run(kind: Kind, seed: u64, trials: usize) -> Vec<String> {
        let (space, score) = valley();
        let mut history = History::default();
        let mut strategy = kind.start(seed, Some(&advisor())).unwrap();
        history.add(trial(0, "cpu/m16n16", score("cpu/m16n16")));
        for number in 1..trials {
            let Some(proposal) = strategy.propose(&history, &space).unwrap() else {
                break;
            };
            assert!(
                !history.is_seen(&proposal.id),
                "{} twice by {}",
                proposal.id,
                kind.name()
            );
            assert!(!proposal.origin.is_empty());
            history.begin(&proposal.id);
            history.add(trial(number, &proposal.id, score(&proposal.id)));
        }
        history.trials().iter().map(|trial| trial.id.clone()).collect()
    }

    #[test]
    fn each_proposes_the_same_after_the_same_history() {
        for kind in Kind::all() {
            assert_eq!(run(kind, 5, 40), run(kind, 5, 40), "{}", kind.name());
            assert_eq!(kind.name().parse::<Kind>().unwrap(), kind);
        }
        assert_ne!(run(Kind::Random, 1, 10), run(Kind::Random, 2, 10));
        assert!("magic".parse::<Kind>().is_err());
    }

    #[test]
    fn each_tries_everything_once_in_the_end() {
        for kind in Kind::all() {
            let tried = run(kind, 3, 1000);
            let distinct: BTreeSet<&String> = tried.iter().collect();
            assert_eq!((distinct.len(), tried.len()), (120, 120), "{}", kind.name());
        }
    }

    #[test]
    fn evolution_and_climbing_find_the_valley_sooner_than_chance() {
        let found = |kind: Kind| -> f64 {
            let at = |seed| run(kind, seed, 120).iter().position(|id| id == "cpu/m128n256").unwrap();
            (0..20).map(|seed| at(seed) as f64).sum::<f64>() / 20.0
        };
        let chance = found(Kind::Random);
        for kind in &Kind::all()[2..] {
            let sooner = found(*kind);
            assert!(
                sooner < 0.75 * chance,
                "{}: {sooner} trials, {chance} by chance",
                kind.name()
            );
        }
    }
}
