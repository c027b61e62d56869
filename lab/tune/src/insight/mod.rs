//! Insights: claims about candidates from simulator, compiler and cost model, and what came of them.
//!
//! A [`Claim`] says that one change of one lever of a candidate pays by so much, or would not build, and why. It is
//! made of the candidates that have offspring, when they are tried; it is scored when a later trial makes its change.
//! [`Insights`] follows a search: its claims depend on the trials alone, in their order, and on the space. So a run
//! that is taken up again makes the same claims, and none are read from its folder.

mod claim;
mod look;
mod rules;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

pub use claim::{Claim, ClaimKind, Score};
pub use look::{Advisor, Predicted};
pub use rules::is_to_spill;

use crate::space::Space;
use crate::trial::{History, Trial};

/// Claims are made about a candidate that is among so many fastest when it is tried, or the fastest of its niche.
const FASTEST: usize = 3;

/// A claim, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// The claim.
    #[serde(flatten)]
    pub claim: Claim,
    /// How it was scored; `None` while nobody has tried its change.
    pub score: Option<Score>,
    /// Measured change, per cent; `None` also where the change failed.
    pub measured: Option<f64>,
}

/// What came of the claims of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// The kind.
    pub kind: ClaimKind,
    /// Claims made.
    pub made: usize,
    /// Those whose change was tried.
    pub tried: usize,
    /// Of these: came true.
    pub came_true: usize,
    /// Of these: the other way.
    pub sign_wrong: usize,
    /// Of these: the change failed at a gate, where a time was expected.
    pub failed: usize,
    /// Mean expected change of those with a measured one, per cent.
    pub expected: Option<f64>,
    /// Mean measured change of the same, per cent.
    pub measured: Option<f64>,
}

impl Tally {
    /// How far claims of this kind are to be believed, from 0 to 1: the part that came true, beginning at a half as if
    /// one of two had.
    pub fn trust(&self) -> f64 {
        (self.came_true + 1) as f64 / (self.tried + 2) as f64
    }

    /// Tallies as the lines of a table, its head first.
    ///
    /// ```
    /// use flashcore_tune::insight::Tally;
    /// let lines = Tally::table(&[]);
    /// assert!(lines.len() == 1 && lines[0].starts_with("kind ") && lines[0].ends_with(" measured"));
    /// ```
    pub fn table(tallies: &[Tally]) -> Vec<String> {
        let line = |[kind, made, tried, came_true, sign_wrong, failed, expected, measured]: [String; 8]| {
            format!(
                "{kind:<15}{made:>6}{tried:>7}{came_true:>11}{sign_wrong:>12}{failed:>8}{expected:>16}{measured:>11}"
            )
        };
        let percent = |mean: Option<f64>| mean.map_or("-".to_string(), |mean| format!("{mean:+.1} %"));
        let head = [
            "kind",
            "made",
            "tried",
            "came true",
            "sign wrong",
            "failed",
            "mean expected",
            "measured",
        ];
        let mut lines = vec![line(head.map(str::to_string))];
        lines.extend(tallies.iter().map(|tally| {
            line([
                tally.kind.to_string(),
                tally.made.to_string(),
                tally.tried.to_string(),
                tally.came_true.to_string(),
                tally.sign_wrong.to_string(),
                tally.failed.to_string(),
                percent(tally.expected),
                percent(tally.measured),
            ])
        }));
        lines
    }
}

/// All claims of a search and what came of them, as kept in its folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Claims {
    /// By kind.
    pub table: Vec<Tally>,
    /// One by one, in the order in which they were made.
    pub claims: Vec<Scored>,
}

/// Follows a search: makes claims about its candidates and scores them.
#[derive(Clone, Debug)]
pub struct Insights {
    advisor: Advisor,
    claims: Vec<Scored>,
    /// Claims by the config they are about, and by the one they propose.
    about: HashMap<String, Vec<usize>>,
    proposing: HashMap<String, Vec<usize>>,
    scores: HashMap<String, f64>,
    tried: HashSet<String>,
    /// The fastest scores, and the fastest of each niche.
    fastest: Vec<f64>,
    niches: HashMap<String, f64>,
    seen: usize,
}

impl Insights {
    /// Of an advisor; about nothing yet.
    pub fn new(advisor: Advisor) -> Insights {
        Insights {
            advisor,
            claims: Vec::new(),
            about: HashMap::new(),
            proposing: HashMap::new(),
            scores: HashMap::new(),
            tried: HashSet::new(),
            fastest: Vec::new(),
            niches: HashMap::new(),
            seen: 0,
        }
    }

    /// Takes up the trials since the last call, in their order: scores the claims whose change they made, then makes
    /// claims about them.
    pub fn follow(&mut self, history: &History, space: &Space) {
        for trial in &history.trials()[self.seen..] {
            self.score(trial);
            self.tried.insert(trial.id.clone());
            if self.has_offspring(trial, space) {
                self.claim(trial, space);
            }
        }
        self.seen = history.trials().len();
    }

    fn score(&mut self, trial: &Trial) {
        let now = trial.score();
        for &index in self.proposing.get(&trial.id).into_iter().flatten() {
            let Scored { claim, score, measured } = &mut self.claims[index];
            let before = self.scores.get(&claim.about);
            *measured = now.zip(before).map(|(now, before)| 100.0 * (now / before - 1.0));
            *score = Some(Score::of(claim.expected, *measured));
        }
        // A change is tried once.
        self.proposing.remove(&trial.id);
        if let Some(now) = now {
            self.scores.entry(trial.id.clone()).or_insert(now);
        }
    }

    /// Whether a trial is among the fastest so far, or the fastest of its niche.
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

    fn claim(&mut self, trial: &Trial, space: &Space) {
        let registers = trial.timed.as_ref().and_then(|timed| timed.registers);
        let tried = |id: &str| self.tried.contains(id);
        for claim in rules::claims(&trial.id, registers, &self.advisor, space, &tried) {
            self.add(claim);
        }
    }

    pub(crate) fn add(&mut self, claim: Claim) {
        let index = self.claims.len();
        self.about.entry(claim.about.clone()).or_default().push(index);
        self.proposing.entry(claim.proposes.clone()).or_default().push(index);
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

    /// Claims about a config whose change nobody has tried.
    pub fn open(&self, about: &str) -> impl Iterator<Item = &Claim> {
        let indices = self.about.get(about).into_iter().flatten();
        let scored = indices.map(|&index| &self.claims[index]);
        scored
            .filter(|scored| scored.score.is_none())
            .map(|scored| &scored.claim)
    }

    /// What came of each kind of which claims were made.
    pub fn table(&self) -> Vec<Tally> {
        table(&self.claims)
    }

    /// How far claims of a kind are to be believed: see [`Tally::trust`].
    pub fn trust(&self, kind: ClaimKind) -> f64 {
        let scored: Vec<&Scored> = self.claims.iter().filter(|scored| scored.claim.kind == kind).collect();
        tally(kind, &scored).trust()
    }
}

/// What came of each kind among claims.
pub fn table(claims: &[Scored]) -> Vec<Tally> {
    let mut by_kind: BTreeMap<ClaimKind, Vec<&Scored>> = BTreeMap::new();
    for scored in claims {
        by_kind.entry(scored.claim.kind).or_default().push(scored);
    }
    by_kind.into_iter().map(|(kind, scored)| tally(kind, &scored)).collect()
}

fn tally(kind: ClaimKind, scored: &[&Scored]) -> Tally {
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
        made: scored.len(),
        tried: scored.iter().filter(|scored| scored.score.is_some()).count(),
        came_true: with(Score::CameTrue),
        sign_wrong: with(Score::SignWrong),
        failed: with(Score::Failed),
        expected: mean(expected),
        measured: mean(measured),
    }
}
