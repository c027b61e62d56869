//! Strategies: what to try next. Each is seeded, and proposes the same after the same history, so that a run that was
//! cut off can be taken up again.

mod evolve;
mod outside;
mod ranked;
mod simple;

use std::str::FromStr;
use std::time::Duration;

use crate::error::TuneError;
use crate::insight::{Advisor, Insights};
use crate::space::Space;
use crate::trial::History;

pub use evolve::{Evolution, Population};
pub use outside::{Outside, Question, Reply};
pub use ranked::{Predict, Ranked};
pub use simple::{Exhaustive, HillClimbing, RandomSearch};

/// A candidate, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The config.
    pub id: String,
    /// Where it comes from, in a few words.
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
    /// The next candidate, which the history has not seen; `None` when there is nothing left to try.
    ///
    /// # Errors
    /// Only of an outside proposer: it is gone, or says what cannot be understood.
    fn propose(&mut self, history: &History, space: &Space) -> Result<Option<Proposal>, TuneError>;

    /// How long the next proposal may take: what is left of the search's time. One that thinks in this process needs no
    /// telling.
    fn hurry(&mut self, left: Duration) {
        let _ = left;
    }

    /// Whether it proposes the same after the same history. One that does not is told of the trials of a run that is
    /// taken up again, and not asked for them.
    fn is_replayable(&self) -> bool {
        true
    }

    /// What was claimed about the trials of a history, and what came of it; `None` where it makes no claims.
    fn insights(&mut self, history: &History, space: &Space) -> Option<&Insights> {
        let _ = (history, space);
        None
    }
}

/// Which strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every config in order.
    Exhaustive,
    /// Configs drawn evenly.
    Random,
    /// The nearest better config, again and again, from a new start when there is none.
    HillClimbing,
    /// Evolution.
    Evolution(Population),
    /// Evolution with mutations weighed by claims.
    Informed(Population),
    /// The best by prediction first, then evolution with mutations weighed by claims.
    Ranked,
}

impl Kind {
    /// Every strategy that needs nothing from outside.
    pub const ALL: [Kind; 10] = [
        Kind::Exhaustive,
        Kind::Random,
        Kind::HillClimbing,
        Kind::Evolution(Population::Single),
        Kind::Evolution(Population::Elite),
        Kind::Evolution(Population::Niches),
        Kind::Informed(Population::Single),
        Kind::Informed(Population::Elite),
        Kind::Informed(Population::Niches),
        Kind::Ranked,
    ];

    /// `exhaustive`, `random`, `hill`, `single`, `elite`, `niches`, the last three `+insights`, `ranked`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Exhaustive => "exhaustive",
            Kind::Random => "random",
            Kind::HillClimbing => "hill",
            Kind::Evolution(population) => population.name(),
            Kind::Informed(Population::Single) => "single+insights",
            Kind::Informed(Population::Elite) => "elite+insights",
            Kind::Informed(Population::Niches) => "niches+insights",
            Kind::Ranked => "ranked",
        }
    }

    /// What it does, in a line.
    pub const fn about(self) -> &'static str {
        match self {
            Kind::Exhaustive => "every config in order",
            Kind::Random => "configs drawn evenly",
            Kind::HillClimbing => "the next better neighbour, and a new start where there is none",
            Kind::Evolution(Population::Single) => "evolution: one or two levers of the best",
            Kind::Evolution(Population::Elite) => {
                "evolution: one or two levers of the best three, and mixtures of them"
            }
            Kind::Evolution(Population::Niches) => "evolution: the best of each family and class of tile",
            Kind::Informed(_) => "the same, with levers weighed by claims of simulator, compiler and cost model",
            Kind::Ranked => "the best eight of a part of the space by predicted time, then as elite+insights",
        }
    }

    /// Whether it needs an [`Advisor`].
    pub const fn is_informed(self) -> bool {
        matches!(self, Kind::Informed(_) | Kind::Ranked)
    }

    /// The strategy, seeded. An informed one is given an advisor.
    ///
    /// # Errors
    /// [`TuneError::Nothing`] for an informed one without an advisor.
    pub fn start(self, seed: u64, advisor: Option<&Advisor>) -> Result<Box<dyn Strategy>, TuneError> {
        let needed = |without: &str| {
            advisor.cloned().ok_or_else(|| TuneError::Nothing {
                what: format!(
                    "nothing here models what a kernel costs, so there are no claims and no predictions; `{without}` \
                     searches without"
                ),
            })
        };
        Ok(match self {
            Kind::Exhaustive => Box::new(Exhaustive::default()),
            Kind::Random => Box::new(RandomSearch::new(seed)),
            Kind::HillClimbing => Box::new(HillClimbing::new(seed)),
            Kind::Evolution(population) => Box::new(Evolution::new(population, seed)),
            Kind::Informed(population) => {
                let advisor = needed(population.name())?;
                Box::new(Evolution::new(population, seed).informed(advisor))
            }
            Kind::Ranked => {
                let advisor = needed(Population::Elite.name())?;
                let predicting = advisor.clone();
                let ranked = Ranked::new(seed, Box::new(move |ids| predicting.predict(ids)));
                let keys = advisor.problem().seq_len_kv();
                Box::new(ranked.for_keys(keys).informed(advisor))
            }
        })
    }
}

impl FromStr for Kind {
    type Err = TuneError;

    fn from_str(name: &str) -> Result<Kind, TuneError> {
        Kind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| TuneError::BadOption {
                option: "strategy",
                given: name.to_string(),
                allowed: Kind::ALL.map(Kind::name).join(", "),
            })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use flashcore_ir::Profile;
    use flashcore_problem::Problem;

    use super::*;
    use crate::space::Family;
    use crate::trial::tests::trial;

    /// The host's space, and a landscape on it with one valley, at m128n256.
    pub(crate) fn valley() -> (Space, impl Fn(&str) -> Option<f64>) {
        let space = Space::new(vec![Family::cpu()], |_| Ok(()));
        let score = |id: &str| {
            let sizes = id.strip_prefix("cpu/m")?.split_once('n')?;
            let (rows, cols): (f64, f64) = (sizes.0.parse().ok()?, sizes.1.parse().ok()?);
            // What is very large does not work.
            let works = rows * cols < 200_000.0;
            works.then(|| 1.0 + (rows / 128.0).log2().abs() + (cols / 256.0).log2().abs())
        };
        (space, score)
    }

    /// An advisor for the mission on an L4, which has nothing to say about the host's kernels.
    pub(crate) fn advisor() -> Advisor {
        Advisor::new(&Problem::named("mission").unwrap(), Profile::named("l4").unwrap())
    }

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
        for kind in Kind::ALL {
            assert_eq!(run(kind, 5, 40), run(kind, 5, 40), "{}", kind.name());
            assert_eq!(kind.name().parse::<Kind>().unwrap(), kind);
        }
        assert_ne!(run(Kind::Random, 1, 10), run(Kind::Random, 2, 10));
        assert!("magic".parse::<Kind>().is_err());
    }

    #[test]
    fn each_tries_everything_once_in_the_end() {
        for kind in Kind::ALL {
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
        for kind in &Kind::ALL[2..] {
            let sooner = found(*kind);
            assert!(
                sooner < 0.75 * chance,
                "{}: {sooner} trials, {chance} by chance",
                kind.name()
            );
        }
    }
}
