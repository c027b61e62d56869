//! Claims about candidates from simulator, compiler, cost model and hardware counters, and their scores.
//!
//! A [`Claim`] says that one change of one lever of a candidate pays, or would not build, and why.
//! Claims are made about candidates that may have offspring, when they are tried. The trial that
//! makes the change scores the claim. [`Insights`] follows a search: its claims depend only on the
//! space and on the trials in their order, so a resumed run makes the same claims and reads none.

mod claim;
mod counters;
mod look;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

pub use claim::{Claim, ClaimKind, Score, Source};
pub use flashcore_check::cost::is_to_spill;
pub use look::{Advisor, Predicted};

use crate::space::Space;
use crate::trial::{History, Trial};

/// Claims are made about a candidate that is among this many fastest, or the fastest of its niche.
const FASTEST: usize = 3;

/// A claim and its score.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// The claim.
    #[serde(flatten)]
    pub claim: Claim,
    /// The score; `None` while the change is not tried.
    pub score: Option<Score>,
    /// Measured change, per cent; also `None` if the change failed.
    pub measured: Option<f64>,
}

/// Results of the claims of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// The kind.
    pub kind: ClaimKind,
    /// What they are made from.
    #[serde(default)]
    pub source: Source,
    /// Claims made.
    pub made: usize,
    /// Those whose change was tried.
    pub tried: usize,
    /// Of these: came true.
    pub came_true: usize,
    /// Of these: slower.
    pub sign_wrong: usize,
    /// Of these: failed at a gate, with a time expected.
    pub failed: usize,
    /// Mean expected change of those with a measured one, per cent.
    pub expected: Option<f64>,
    /// Mean measured change of the same, per cent.
    pub measured: Option<f64>,
}

impl Tally {
    /// From 0 to 1: the share of claims of this kind that came true, as if one of two more had.
    pub fn trust(&self) -> f64 {
        (self.came_true + 1) as f64 / (self.tried + 2) as f64
    }

    /// Lines of a table, its head first.
    pub fn table(tallies: &[Tally]) -> Vec<String> {
        let percent = |mean: Option<f64>| mean.map_or("-".to_string(), |mean| format!("{mean:+.1} %"));
        let line = |tally: &Tally| {
            let from = match tally.source {
                Source::Model => "",
                Source::Counters => " (ncu)",
            };
            format!(
                "{:<20}{:>6}{:>7}{:>11}{:>12}{:>8}{:>16}{:>11}",
                format!("{}{from}", tally.kind),
                tally.made,
                tally.tried,
                tally.came_true,
                tally.sign_wrong,
                tally.failed,
                percent(tally.expected),
                percent(tally.measured),
            )
        };
        let head = "kind                  made  tried  came true  sign wrong  failed   mean expected   measured";
        std::iter::once(head.to_string())
            .chain(tallies.iter().map(line))
            .collect()
    }
}

/// All claims of a search and their scores, as stored in its folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Claims {
    /// By kind.
    pub table: Vec<Tally>,
    /// In the order in which they were made.
    pub claims: Vec<Scored>,
}

/// Follows a search: makes claims about its candidates and scores them.
#[derive(Clone, Debug)]
pub struct Insights {
    advisor: Advisor,
    claims: Vec<Scored>,
    /// The fastest scores, and the fastest of each niche.
    fastest: Vec<f64>,
    niches: HashMap<String, f64>,
    seen: usize,
}

impl Insights {
    /// Without claims yet.
    pub fn new(advisor: Advisor) -> Insights {
        Insights {
            advisor,
            claims: Vec::new(),
            fastest: Vec::new(),
            niches: HashMap::new(),
            seen: 0,
        }
    }

    pub(crate) fn advisor(&self) -> &Advisor {
        &self.advisor
    }

    /// Processes the trials since the last call in their order: scores claims, then makes new ones.
    pub fn follow(&mut self, history: &History, space: &Space) -> &Insights {
        for trial in &history.trials()[self.seen..] {
            for Scored { claim, score, measured } in &mut self.claims {
                // A change is tried once.
                if claim.proposes == trial.id && score.is_none() {
                    let before = history.trial(&claim.about).and_then(Trial::score);
                    let ratio = trial.score().zip(before).map(|(now, before)| now / before);
                    *measured = ratio.map(|ratio| 100.0 * (ratio - 1.0));
                    *score = Some(Score::of(claim.expected, *measured));
                }
            }
            if self.has_offspring(trial, space) {
                let registers = trial.timed.as_ref().and_then(|timed| timed.registers);
                let tried = |id: &str| history.trial(id).is_some_and(|other| other.number <= trial.number);
                for claim in rules::claims(&trial.id, registers, &self.advisor, space, &tried) {
                    self.add(claim);
                }
                if let Some(counters) = &trial.counters {
                    for claim in rules::claims_of_counters(&trial.id, counters, &self.advisor, space, &tried) {
                        self.add(claim);
                    }
                }
            }
        }
        self.seen = history.trials().len();
        self
    }

    fn has_offspring(&mut self, trial: &Trial, space: &Space) -> bool {
        let Some(score) = trial.score().filter(|_| trial.same_as.is_none()) else {
            return false;
        };
        let place = self.fastest.partition_point(|other| *other <= score);
        self.fastest.insert(place, score);
        self.fastest.truncate(FASTEST);
        let niche = self.niches.entry(space.niche(&trial.id)).or_insert(f64::INFINITY);
        let leads = score < *niche;
        *niche = niche.min(score);
        place < FASTEST || leads
    }

    pub(crate) fn add(&mut self, claim: Claim) {
        self.claims.push(Scored {
            claim,
            score: None,
            measured: None,
        });
    }

    /// Every claim so far.
    pub fn claims(&self) -> Claims {
        Claims {
            table: table(&self.claims),
            claims: self.claims.clone(),
        }
    }

    /// Claims about a config whose change is not tried.
    pub fn open(&self, about: &str) -> impl Iterator<Item = &Claim> {
        let open = self.claims.iter().filter(move |scored| scored.score.is_none());
        open.map(|scored| &scored.claim)
            .filter(move |claim| claim.about == about)
    }

    /// Results of each kind of claim.
    pub fn table(&self) -> Vec<Tally> {
        table(&self.claims)
    }

    /// Trust in claims of a kind and source: see [`Tally::trust`].
    pub fn trust(&self, kind: ClaimKind, source: Source) -> f64 {
        let of = |scored: &&Scored| (scored.claim.kind, scored.claim.source) == (kind, source);
        let scored: Vec<&Scored> = self.claims.iter().filter(of).collect();
        tally((kind, source), &scored).trust()
    }
}

/// Results of each kind among claims.
pub fn table(claims: &[Scored]) -> Vec<Tally> {
    let mut by_kind: BTreeMap<(ClaimKind, Source), Vec<&Scored>> = BTreeMap::new();
    for scored in claims {
        let kind = (scored.claim.kind, scored.claim.source);
        by_kind.entry(kind).or_default().push(scored);
    }
    by_kind.into_iter().map(|(kind, scored)| tally(kind, &scored)).collect()
}

fn tally((kind, source): (ClaimKind, Source), scored: &[&Scored]) -> Tally {
    let with = |score: Score| scored.iter().filter(|scored| scored.score == Some(score)).count();
    let timed = scored
        .iter()
        .filter_map(|scored| scored.claim.expected.zip(scored.measured));
    let (count, expected, measured) = timed.fold((0, 0.0, 0.0), |(count, expected, measured), (more, seen)| {
        (count + 1, expected + more, measured + seen)
    });
    let mean = |sum: f64| (count > 0).then(|| sum / f64::from(count));
    Tally {
        kind,
        source,
        made: scored.len(),
        tried: scored.iter().filter(|scored| scored.score.is_some()).count(),
        came_true: with(Score::CameTrue),
        sign_wrong: with(Score::SignWrong),
        failed: with(Score::Failed),
        expected: mean(expected),
        measured: mean(measured),
    }
}
