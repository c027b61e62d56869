//! Replay: a space that was measured once, as data, so that strategies can be compared without the device. It is kinder
//! than a search on a GPU: each proposal has seen the result of the one before, where there eight are on their way at once,
//! and times are exact.

use std::collections::HashMap;

use flashcore_bench::sweep::rankings;
use flashcore_bench::{Case, Interval, Mode, Report, stats};
use flashcore_ir::Profile;
use flashcore_problem::Problem;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::TuneError;
use crate::insight::{self, Advisor, Scored, Tally};
use crate::journal::sha256;
use crate::space::{Family, Space};
use crate::strategy::Kind;
use crate::trial::{History, Timed, Trial, Verdict};

/// Spaces measured on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Version of this file's form: 1.
    pub schema: u32,
    /// Where, when and with what it was measured.
    pub identity: flashcore_bench::RunIdentity,
    /// A space a problem.
    pub tables: Vec<Table>,
}

/// A space measured on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The problem, and its name.
    pub case: Case,
    /// Candidates that were timed.
    pub timed: Vec<Row>,
    /// Candidates that were not, by the reason: they are part of the space, and cost a search a trial.
    pub failed: Vec<Failed>,
}

/// A candidate's time: id, median of a run in µs, the ends of its interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row(pub String, pub f64, pub f64, pub f64);

/// Candidates that failed for one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// What came of them.
    pub verdict: Verdict,
    /// Why.
    pub reason: String,
    /// Their ids.
    pub ids: Vec<String>,
}

/// What is known of a candidate: its time, or why it has none.
#[derive(Clone, Debug, PartialEq)]
pub enum Known {
    /// Median and interval, µs.
    Timed(f64, Interval),
    /// Verdict and reason.
    Failed(Verdict, String),
}

impl Measured {
    /// The spaces that this crate brings along: measured on an H200.
    ///
    /// # Errors
    /// Never, unless the file in the repository is broken.
    pub fn shipped() -> Result<Measured, TuneError> {
        Measured::read(include_str!("../data/h200-space.json"), "the shipped space")
    }

    /// Reads a file's text; `name` is for messages.
    ///
    /// # Errors
    /// [`TuneError::File`] where it is no such file, or of another schema.
    pub fn read(text: &str, name: &str) -> Result<Measured, TuneError> {
        let bad = |reason: String| TuneError::File {
            path: name.to_string(),
            reason,
        };
        let measured: Measured = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        if measured.schema != SCHEMA {
            return Err(bad(format!("schema {}; this build reads {SCHEMA}", measured.schema)));
        }
        if measured.tables.iter().any(|table| table.timed.is_empty()) {
            return Err(bad("a table has no candidate that was timed".to_string()));
        }
        Ok(measured)
    }

    /// What looks at candidates of a problem on the card that was measured; `None` where nothing models that card.
    pub fn advisor(&self, problem: &Problem) -> Option<Advisor> {
        let device = &self.identity.device;
        let profile = Profile::of_device(&device.name, device.units)?;
        Some(Advisor::new(problem, profile))
    }

    /// The screened part of sweeps ([`flashcore_bench::sweep`]) on one device.
    ///
    /// # Errors
    /// [`TuneError::Nothing`] where there is no sweep, or no report.
    pub fn of_sweeps(reports: &[Report]) -> Result<Measured, TuneError> {
        let nothing = |what: &str| TuneError::Nothing { what: what.to_string() };
        let first = reports.first().ok_or_else(|| nothing("no report was given"))?;
        let tables: Vec<Table> = reports.iter().flat_map(tables).collect();
        if tables.is_empty() || tables.iter().any(|table| table.timed.is_empty()) {
            return Err(nothing("a report has no sweep, or nothing in it was timed"));
        }
        Ok(Measured {
            schema: SCHEMA,
            identity: first.run.clone(),
            tables,
        })
    }
}

/// Version of the file's form.
const SCHEMA: u32 = 1;

/// Rounds a time to what is known of it.
fn rounded(us: f64) -> f64 {
    (us * 1e3).round() / 1e3
}

fn tables(report: &Report) -> Vec<Table> {
    let screened = report
        .results
        .iter()
        .filter(|result| result.measurement.mode == Mode::Screen);
    screened
        .zip(rankings(report))
        .map(|(result, ranking)| {
            let timed = result.measurement.subjects.iter().filter_map(|subject| {
                let summary = subject.summary?;
                let Interval { lo, hi } = summary.interval;
                Some(Row(
                    subject.info.label.clone(),
                    rounded(summary.p50),
                    rounded(lo),
                    rounded(hi),
                ))
            });
            let mut failed: Vec<Failed> = Vec::new();
            for (id, reason) in ranking.left_out {
                let verdict = if reason.starts_with("REJECTED") {
                    Verdict::Wrong
                } else {
                    Verdict::BuildFailed
                };
                // The kernel's name is in the message; without it many messages are one.
                let reason = reason
                    .split_whitespace()
                    .filter(|word| !word.contains("_d"))
                    .collect::<Vec<_>>()
                    .join(" ");
                match failed
                    .iter_mut()
                    .find(|group| (group.verdict, &group.reason) == (verdict, &reason))
                {
                    Some(group) => group.ids.push(id),
                    None => failed.push(Failed {
                        verdict,
                        reason,
                        ids: vec![id],
                    }),
                }
            }
            Table {
                case: result.case.clone(),
                timed: timed.collect(),
                failed,
            }
        })
        .collect()
}

impl Table {
    /// Candidates, timed or not.
    pub fn len(&self) -> usize {
        self.timed.len() + self.failed.iter().map(|group| group.ids.len()).sum::<usize>()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The fastest.
    pub fn best(&self) -> Option<&Row> {
        self.timed.iter().min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The slowest that works.
    pub fn worst(&self) -> Option<&Row> {
        self.timed.iter().max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// What is known, by id.
    pub fn by_id(&self) -> HashMap<String, Known> {
        let timed = self
            .timed
            .iter()
            .map(|Row(id, us, lo, hi)| (id.clone(), Known::Timed(*us, Interval { lo: *lo, hi: *hi })));
        let failed = self.failed.iter().flat_map(|group| {
            let known = Known::Failed(group.verdict, group.reason.clone());
            group.ids.iter().map(move |id| (id.clone(), known.clone()))
        });
        timed.chain(failed).collect()
    }

    /// SHA-256 of all that was measured: ids, times, failures and their reasons.
    pub(crate) fn digest(&self) -> String {
        sha256(&serde_json::to_string(self).unwrap_or_default())
    }

    /// The space of what was measured.
    pub fn space(&self) -> Space {
        // In the order of the file: hash maps have none.
        let timed = self.timed.iter().map(|row| row.0.clone());
        let failed = self.failed.iter().flat_map(|group| group.ids.iter().cloned());
        let ids: Vec<String> = timed.chain(failed).collect();
        let families = [
            Family::mma(),
            Family::wgmma(),
            Family::scalar(),
            Family::ladder(),
            Family::cpu(),
        ];
        let there = families
            .into_iter()
            .filter(|family| ids.iter().any(|id| family.owns(id)));
        Space::of_list(there.collect(), ids)
    }
}

/// A strategy on a table with one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The time of the best config after each trial, relative to the best there is (1 when it is found).
    pub curve: Vec<f64>,
    /// What came of its claims, where it made any.
    pub claims: Vec<Scored>,
}

/// A table to replay searches on.
struct Field<'t> {
    space: Space,
    known: HashMap<String, Known>,
    start: &'t str,
    advisor: Option<&'t Advisor>,
}

/// One strategy on one table with one seed. An informed one needs an advisor: [`Measured::advisor`].
///
/// # Errors
/// [`TuneError::Nothing`] where `start` is not in the table, or there is no advisor where there must be one.
pub fn replay(
    table: &Table,
    kind: Kind,
    start: &str,
    seed: u64,
    trials: usize,
    advisor: Option<&Advisor>,
) -> Result<Replayed, TuneError> {
    let field = Field {
        space: table.space(),
        known: table.by_id(),
        start,
        advisor,
    };
    field.replay(kind, seed, trials)
}

impl Field<'_> {
    fn replay(&self, kind: Kind, seed: u64, trials: usize) -> Result<Replayed, TuneError> {
        let Field {
            space,
            known,
            start,
            advisor,
        } = self;
        let times = known.values().filter_map(|known| match known {
            Known::Timed(us, _) => Some(*us),
            Known::Failed(..) => None,
        });
        let optimum = times.fold(f64::INFINITY, f64::min);
        let mut strategy = kind.start(seed, *advisor)?;
        let mut history = History::default();
        let mut curve = Vec::with_capacity(trials);
        let mut next = Some((start.to_string(), "start".to_string()));
        while let Some((id, origin)) = next {
            let outcome = known.get(&id).ok_or_else(|| TuneError::Nothing {
                what: format!("{id} was not measured"),
            })?;
            history.add(replayed(curve.len(), &id, origin, outcome, optimum));
            let before = curve.last().copied().unwrap_or(f64::INFINITY);
            let now = match outcome {
                Known::Timed(us, _) => us / optimum,
                Known::Failed(..) => f64::INFINITY,
            };
            curve.push(before.min(now));
            if curve.len() >= trials {
                break;
            }
            next = strategy
                .propose(&history, space)?
                .map(|proposal| (proposal.id, proposal.origin));
        }
        let claims = strategy
            .insights(&history, space)
            .map(|insights| insights.claims().claims);
        Ok(Replayed {
            curve,
            claims: claims.unwrap_or_default(),
        })
    }
}

fn replayed(number: usize, id: &str, origin: String, known: &Known, optimum: f64) -> Trial {
    let (verdict, reason, timed) = match known {
        Known::Failed(verdict, reason) => (*verdict, reason.clone(), None),
        Known::Timed(us, interval) => {
            let timed = Timed {
                us: *us,
                interval: *interval,
                against: None,
                ratio: None,
                score: us / optimum,
                registers: None,
                module: None,
            };
            (Verdict::Ambiguous, "replayed".to_string(), Some(timed))
        }
    };
    Trial {
        number,
        id: id.to_string(),
        origin,
        verdict,
        reason,
        timed,
        fingerprint: None,
        same_as: None,
        unjudged: Vec::new(),
        seconds: 0.0,
    }
}

/// How a strategy did over many seeds on one table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The strategy.
    pub strategy: &'static str,
    /// After each trial: a quarter of the seeds, half, and three quarters were at this or better, relative to the best
    /// there is.
    pub quartiles: Vec<[f64; 3]>,
    /// Median over seeds of the trials it took to come within [`WITHIN`] of the best; `None` where most never did.
    pub trials_within: Option<usize>,
    /// The trials that it took a quarter of the seeds, and three quarters.
    pub middle_half: [Option<usize>; 2],
    /// The median as a share of the space.
    pub share_within: Option<f64>,
    /// What came of each kind of claim, over all seeds; empty where none were made.
    pub claims: Vec<Tally>,
}

/// How near the best is near enough, relative.
pub const WITHIN: f64 = 0.02;

/// Strategies on a table, from its worst config, over many seeds.
///
/// # Errors
/// [`TuneError::Nothing`] for a table without times, or an informed strategy without an advisor.
pub fn compare(
    table: &Table,
    kinds: &[Kind],
    seeds: u64,
    trials: usize,
    advisor: Option<&Advisor>,
) -> Result<Vec<Comparison>, TuneError> {
    let worst = table.worst().ok_or_else(|| TuneError::Nothing {
        what: "nothing in the table was timed".to_string(),
    })?;
    let size = table.len();
    let field = Field {
        space: table.space(),
        known: table.by_id(),
        start: &worst.0,
        advisor,
    };
    let compared = kinds.iter().map(|&kind| {
        let replayed = (0..seeds).into_par_iter().map(|seed| field.replay(kind, seed, trials));
        let replayed = replayed.collect::<Result<Vec<Replayed>, _>>()?;
        let (curves, claims): (Vec<Vec<f64>>, Vec<Vec<Scored>>) =
            replayed.into_iter().map(|one| (one.curve, one.claims)).unzip();
        let at = |trial: usize| -> [f64; 3] {
            let values: Vec<f64> = curves
                .iter()
                .filter_map(|curve| curve.get(trial).or(curve.last()))
                .copied()
                .collect();
            let ordered = stats::sorted(&values);
            [0.25, 0.5, 0.75].map(|q| stats::quantile(&ordered, q))
        };
        // A curve that never comes near counts as infinitely long.
        let mut within: Vec<usize> = curves
            .iter()
            .map(|curve| {
                curve
                    .iter()
                    .position(|best| *best <= 1.0 + WITHIN)
                    .map_or(usize::MAX, |at| at + 1)
            })
            .collect();
        within.sort_unstable();
        let part = |of_four: usize| {
            let at = within.get(within.len() * of_four / 4).copied();
            at.filter(|trials| *trials != usize::MAX)
        };
        let median = part(2);
        Ok(Comparison {
            strategy: kind.name(),
            quartiles: (0..trials.min(size)).map(at).collect(),
            trials_within: median,
            middle_half: [part(1), part(3)],
            share_within: median.map(|trials| trials as f64 / size as f64),
            claims: insight::table(&claims.concat()),
        })
    });
    compared.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::{advisor, valley};

    fn table() -> Table {
        let (space, score) = valley();
        let (mut timed, mut broken) = (Vec::new(), Vec::new());
        for id in space.all() {
            match score(&id) {
                Some(us) => timed.push(Row(id, us, us, us)),
                None => broken.push(id),
            }
        }
        Table {
            case: Case {
                name: "valley".to_string(),
                problem: flashcore_problem::Problem::named("mission").unwrap(),
            },
            timed,
            failed: vec![Failed {
                verdict: Verdict::BuildFailed,
                reason: "too large".to_string(),
                ids: broken,
            }],
        }
    }

    #[test]
    fn a_replay_only_gets_better_and_ends_at_the_best() {
        let table = table();
        assert_eq!((table.len(), table.best().unwrap().0.as_str()), (120, "cpu/m128n256"));
        let start = table.worst().unwrap().0.clone();
        for kind in Kind::ALL {
            let curve = replay(&table, kind, &start, 1, 500, Some(&advisor())).unwrap().curve;
            assert!(curve.windows(2).all(|pair| pair[1] <= pair[0]));
            assert_eq!((curve.len(), *curve.last().unwrap()), (120, 1.0), "{}", kind.name());
        }
        assert!(replay(&table, Kind::Random, "cpu/m80n16", 1, 5, None).is_err());
    }

    #[test]
    fn strategies_are_compared_over_seeds() {
        let table = table();
        let kinds = [Kind::Random, Kind::HillClimbing];
        let compared = compare(&table, &kinds, 20, 120, None).unwrap();
        let [chance, climbing] = &compared[..] else { panic!() };
        assert!(climbing.trials_within.unwrap() < chance.trials_within.unwrap());
        assert_eq!(chance.quartiles.len(), 120);
        assert!(
            chance
                .quartiles
                .iter()
                .all(|[low, middle, high]| low <= middle && middle <= high)
        );
    }

    #[test]
    fn files_round_trip_and_others_are_refused() {
        let measured = Measured {
            schema: SCHEMA,
            identity: flashcore_bench::RunIdentity::now(flashcore_bench::DeviceIdentity::cpu()),
            tables: vec![table()],
        };
        let text = serde_json::to_string(&measured).unwrap();
        assert_eq!(Measured::read(&text, "x").unwrap(), measured);
        let other = text.replacen("\"schema\":1", "\"schema\":9", 1);
        assert!(
            Measured::read(&other, "x")
                .unwrap_err()
                .to_string()
                .contains("schema 9")
        );
    }
}
