//! Sweeps: many kernels on a problem, ranked. All are screened first, in short turns and after one check of their
//! outputs; the best are then inspected and measured as in any bench.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{BenchError, CaseResult, Interval, Measured, Measurement, Mode, Options, Ratio, Report, Result};

/// How to sweep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// How many of the best kernels are measured after screening.
    pub keep: usize,
    /// Most time for the rounds of a measurement for each subject in it, milliseconds of the host.
    pub budget_ms: f64,
}

impl Default for Sweep {
    fn default() -> Sweep {
        Sweep {
            keep: 8,
            budget_ms: 500.0,
        }
    }
}

/// Most rounds of a screening: enough for a median that a disturbed batch does not move.
const SCREENING_ROUNDS: u32 = 8;
/// Warming a subject before its screening, µs, at least and at most: the card is warm from its neighbours.
const SCREENING_WARM_UP_US: [f64; 2] = [4_000.0, 20_000.0];
/// Precision at which a subject leaves the screening, relative.
const SCREENING_PRECISION: f64 = 0.01;

impl Sweep {
    /// Checks the settings, and the modes in which those kept are to be measured.
    pub fn check(&self, modes: &[Mode]) -> Result<()> {
        if self.keep == 0 {
            return Err(BenchError::bad_option("the number of kernels to keep", 0, "1 or more"));
        }
        if !(self.budget_ms > 0.0 && self.budget_ms.is_finite()) {
            let option = "the budget a subject, ms,";
            return Err(BenchError::bad_option(option, self.budget_ms, "above 0"));
        }
        if modes.contains(&Mode::Screen) {
            let allowed = "hot, cold, sustained: it screens anyway";
            return Err(BenchError::bad_option("a mode of a sweep", Mode::Screen, allowed));
        }
        Ok(())
    }

    /// The protocol's settings while screening so many subjects.
    pub(crate) fn screening(&self, options: &Options, subjects: usize) -> Options {
        let [least, most] = SCREENING_WARM_UP_US;
        Options {
            warm_up_min_us: options.warm_up_min_us.min(least),
            warm_up_max_us: options.warm_up_max_us.min(most),
            precision: options.precision.max(SCREENING_PRECISION),
            min_rounds: options.min_rounds.min(SCREENING_ROUNDS),
            max_rounds: options.max_rounds.min(SCREENING_ROUNDS),
            ..self.final_round(options, subjects)
        }
    }

    /// The protocol's settings for measuring so many subjects after screening.
    pub(crate) fn final_round(&self, options: &Options, subjects: usize) -> Options {
        Options {
            budget_ms: self.budget_ms * subjects as f64,
            ..options.clone()
        }
    }

    /// The places, among the subjects screened, of those that go on: every peer, the best kernels of ours, and the one
    /// that others are compared with.
    pub(crate) fn kept(&self, screened: &Measurement) -> Vec<usize> {
        let median = |index: usize| screened.subjects[index].summary.map(|summary| summary.p50);
        let ours = |index: &usize| screened.subjects[*index].info.is_ours();
        let mut best: Vec<(f64, usize)> = (0..screened.subjects.len())
            .filter(ours)
            .filter_map(|index| Some((median(index)?, index)))
            .collect();
        best.sort_by(|a, b| a.0.total_cmp(&b.0));
        let best = best.into_iter().take(self.keep).map(|(_, index)| index);
        let peers = (0..screened.subjects.len()).filter(|index| !ours(index) && median(*index).is_some());
        let there = |index: &usize| *index < screened.subjects.len() && median(*index).is_some();
        let baseline = Some(screened.baseline).filter(there);
        let mut kept: Vec<usize> = best.chain(peers).chain(baseline).collect();
        kept.sort_unstable();
        kept.dedup();
        kept
    }
}

/// What a sweep found on one problem, the best first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranking {
    /// Name of the problem.
    pub case: String,
    /// The problem in one line.
    pub problem: String,
    /// How those that were kept were measured; `None` if none was.
    pub measured: Option<Place>,
    /// How all were screened.
    pub screened: Place,
    /// Kernels and peers: first those measured by their time, then those only screened by theirs.
    pub rows: Vec<RankedRow>,
    /// Kernels that no plan serves, that do not compile, or whose outputs are wrong: label and reason.
    pub left_out: Vec<(String, String)>,
}

/// How the numbers of a part of a ranking came about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Mode and kind of turns, such as `hot (steady turns)`.
    pub how: String,
    /// Rounds made.
    pub rounds: u32,
    /// Subjects timed.
    pub subjects: usize,
    /// The peer, or else kernel, that times are compared with.
    pub base: Option<String>,
}

/// One subject of a [`Ranking`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankedRow {
    /// Place among the kernels of this project, from 1; `None` for peers.
    pub rank: Option<usize>,
    /// Config id or the peer's label.
    pub label: String,
    /// Whether it was measured after screening. Times of the two stages are not comparable where kernels are long.
    pub measured: bool,
    /// Median time of a run, µs.
    pub median_us: f64,
    /// Interval of the median, µs.
    pub interval: Interval,
    /// TFLOP/s at the median.
    pub tflops: f64,
    /// Time relative to the quickest kernel of ours of the same stage; `None` if there is none.
    pub to_best: Option<f64>,
    /// Time relative to the base, in the same rounds; `None` for the base itself.
    pub to_base: Option<Ratio>,
}

/// The rankings of a sweep's report, a problem each, in the order of the report.
pub fn rankings(report: &Report) -> Vec<Ranking> {
    let screened = report.results.iter().enumerate();
    screened
        .filter(|(_, result)| result.measurement.mode == Mode::Screen)
        .map(|(at, screened)| {
            let measured = report.results[at + 1..]
                .iter()
                .take_while(|result| result.measurement.mode != Mode::Screen)
                .find(|result| result.case == screened.case);
            ranking(screened, measured)
        })
        .collect()
}

fn ranking(screened: &CaseResult, measured: Option<&CaseResult>) -> Ranking {
    let mut all = measured.map(|result| rows(result, true)).unwrap_or_default();
    let known: BTreeSet<String> = all.iter().map(|row| row.label.clone()).collect();
    all.extend(
        rows(screened, false)
            .into_iter()
            .filter(|row| !known.contains(&row.label)),
    );
    for (rank, row) in (1..).zip(all.iter_mut().filter(|row| row.rank.is_some())) {
        row.rank = Some(rank);
    }
    let subjects = screened.measurement.subjects.iter();
    let failed = subjects.filter_map(|subject| Some((subject.info.label.clone(), subject.trouble.clone()?)));
    let left_out = screened.absent.iter().cloned().chain(failed).collect();
    Ranking {
        case: screened.case.name.clone(),
        problem: screened.case.problem.to_string(),
        measured: measured.map(place),
        screened: place(screened),
        rows: all,
        left_out,
    }
}

fn place(result: &CaseResult) -> Place {
    let measurement = &result.measurement;
    let timed = |subject: &&Measured| subject.summary.is_some();
    let base = result.baseline().filter(timed);
    Place {
        how: measurement.how(),
        rounds: measurement.rounds,
        subjects: measurement.subjects.iter().filter(timed).count(),
        base: base.map(|subject| subject.info.label.clone()),
    }
}

fn rows(result: &CaseResult, measured: bool) -> Vec<RankedRow> {
    let best = result.quickest(|subject| subject.info.is_ours());
    let best = best.and_then(|best| best.summary);
    let row = |subject: &Measured| {
        let summary = subject.summary?;
        Some(RankedRow {
            // Of ours: counted when all are in order.
            rank: subject.info.is_ours().then_some(0),
            label: subject.info.label.clone(),
            measured,
            median_us: summary.p50,
            interval: summary.interval,
            tflops: result.tflops(summary.p50),
            to_best: best.map(|best| summary.p50 / best.p50),
            to_base: subject.ratio,
        })
    };
    let mut rows: Vec<RankedRow> = result.measurement.subjects.iter().filter_map(row).collect();
    rows.sort_by(|a, b| a.median_us.total_cmp(&b.median_us));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;
    use crate::table::{COLUMNS, ranking_text};

    /// A screening of many kernels and a peer, and the measurement of the best in which two change places.
    fn swept() -> Report {
        let labels: Vec<String> = (0..12)
            .map(|i| format!("scalar/{i}-with-an-id-that-goes-on-and-on-and-on-and-on"))
            .collect();
        let mut screened: Vec<(&str, f64)> = vec![("torch/flash", 10.0)];
        screened.extend(
            labels
                .iter()
                .enumerate()
                .map(|(i, label)| (label.as_str(), 30.0 - i as f64)),
        );
        let best = [("torch/flash", 11.0), (&labels[11], 20.5), (&labels[10], 20.2)];
        let mut both = report(&[&screened, &best]);
        both.results[0].measurement.mode = Mode::Screen;
        both.results[0].absent = vec![("scalar/z".to_string(), "needs 300 KB of shared memory".to_string())];
        both.results[0].measurement.subjects[1].summary = None;
        both.results[0].measurement.subjects[1].trouble = Some("REJECTED (wrong): 7 elements".to_string());
        both.results[1].case = both.results[0].case.clone();
        both
    }

    #[test]
    fn the_best_by_the_clock_and_every_peer_are_kept() {
        let report = swept();
        let sweep = Sweep {
            keep: 2,
            ..Sweep::default()
        };
        assert_eq!(sweep.kept(&report.results[0].measurement), [0, 11, 12]);
        let all = Sweep {
            keep: 100,
            ..Sweep::default()
        };
        // One of ours that others are compared with is kept however slow it is.
        let mut by_default = report.results[0].measurement.clone();
        by_default.baseline = 4;
        assert_eq!(sweep.kept(&by_default), [0, 4, 11, 12]);
        // The rejected one has no time to be kept by.
        assert_eq!(all.kept(&report.results[0].measurement).len(), 12);
    }

    #[test]
    fn a_ranking_puts_measured_times_first_and_says_who_is_left_out() {
        let rankings = rankings(&swept());
        let [ranking] = &rankings[..] else {
            panic!("{rankings:?}")
        };
        let order: Vec<(&str, Option<usize>)> = ranking
            .rows
            .iter()
            .map(|row| (row.label.split('-').next().unwrap(), row.rank))
            .collect();
        assert_eq!(
            order[..5],
            [
                ("torch/flash", None),
                ("scalar/10", Some(1)),
                ("scalar/11", Some(2)),
                ("scalar/9", Some(3)),
                ("scalar/8", Some(4)),
            ]
        );
        assert_eq!(ranking.rows.len(), 12);
        let second = &ranking.rows[2];
        assert!(second.measured && (second.to_best.unwrap() - 20.5 / 20.2).abs() < 1e-9);
        assert!((second.to_base.unwrap().value - 20.5 / 11.0).abs() < 1e-9);
        // Only screened: compared with the best that was screened.
        assert!((ranking.rows[3].to_best.unwrap() - 21.0 / 19.0).abs() < 1e-9);
        assert_eq!(ranking.left_out.len(), 2);
        let text = ranking_text(ranking);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        for part in [
            "12 subjects screened",
            "2 left out",
            "3 measured, hot (short turns)",
            "× torch/flash",
            "REJECTED (wrong)",
            "300 KB",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        println!("{text}");
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let hot = [Mode::Hot];
        assert!(Sweep::default().check(&hot).is_ok());
        for (sweep, modes, said) in [
            (
                Sweep {
                    keep: 0,
                    ..Sweep::default()
                },
                &hot[..],
                "keep is 0",
            ),
            (
                Sweep {
                    budget_ms: f64::NAN,
                    ..Sweep::default()
                },
                &hot[..],
                "above 0",
            ),
            (Sweep::default(), &Mode::ALL[..], "it screens anyway"),
        ] {
            let error = sweep.check(modes).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
