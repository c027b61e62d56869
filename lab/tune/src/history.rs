//! The history of a search as a section of a report: its candidates, its leaderboard, and how each time is measured
//! again.

use std::path::Path;

use flashcore_bench::chart::history;
use flashcore_bench::document::{Cell, Section, Table};
use flashcore_bench::gather::{EvidenceId, Origin, Recipe, Recorded};
use flashcore_bench::own::is_own;
use flashcore_bench::table::span;
use flashcore_bench::{Case, Interval, Mode, date};
use flashcore_check::programs::quoted;

use crate::board::Board;
use crate::insight::Claims;
use crate::journal::{Header, board_of, read_claims, read_header, read_trials};
use crate::own::rewritten;
use crate::trial::{History, Trial, is_point};

/// What a winner of a run is called after its id.
fn whose(id: &str, run: &Path) -> String {
    match rewritten(id, run) {
        Some(word) => format!(", written by the proposer ({word})"),
        None if is_own(id) => ", a kernel of the user".to_string(),
        None => String::new(),
    }
}

/// A search that was read from its folder.
#[derive(Debug)]
pub struct Told {
    /// What it was about.
    pub header: Header,
    /// Where it comes from.
    pub origin: Origin,
    /// Its trials.
    pub history: History,
    /// Its leaderboard, if it came to an end.
    pub board: Option<Board>,
    /// The claims that were made, if it made any.
    pub claims: Option<Claims>,
}

impl Told {
    /// Reads the search in a folder.
    ///
    /// # Errors
    /// [`TuneError`](crate::TuneError) if its files cannot be read, or have another schema.
    pub fn read(folder: &Path) -> Result<Told, crate::TuneError> {
        let header = read_header(folder)?;
        let mut history = History::default();
        for trial in read_trials(folder)? {
            history.add(trial);
        }
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let untimed = header.untimed();
        let trust = header.trust.as_deref();
        let trust = trust.unwrap_or("its times were not measured in this run");
        let untimed = untimed.map(|what| format!("a {what}: {trust}"));
        let planted = header
            .torture
            .then(|| "planted candidates were among those tried".to_string());
        let origin = Origin {
            id: id(&header, "run"),
            key: name,
            path: folder.to_path_buf(),
            device: header.devices.first().cloned().unwrap_or_default(),
            revision: header.revision.clone(),
            date: date(header.started_at),
            notes: untimed.into_iter().chain(planted).collect(),
            ..Origin::default()
        };
        Ok(Told {
            origin,
            history,
            board: board_of(folder)?,
            claims: read_claims(folder),
            header,
        })
    }

    /// The section: the best over trials, the leaderboard, the steps that led there.
    pub fn section(&self) -> Section {
        let trials = self.history.trials();
        let mut section = Section::new(format!("Tuning: {}", self.header.case));
        let counts = self.history.count();
        let counts: Vec<String> = counts
            .iter()
            .map(|(verdict, count)| format!("{count} {verdict}"))
            .collect();
        let result = match &self.board {
            None => "It has no leaderboard: it was interrupted, or still runs.".to_string(),
            Some(board) => match (board.winner.as_deref(), board.gain_of_winner()) {
                (None, _) => "No candidate is left that may be used.".to_string(),
                (Some(winner), None) => format!("The kernel to use is {winner}{}.", whose(winner, &self.origin.path)),
                (Some(winner), Some((gain, ends))) => {
                    let ends = if is_point(ends) {
                        String::new()
                    } else {
                        format!(" (interval {:.1} to {:.1} %)", 100.0 * ends.lo, 100.0 * ends.hi)
                    };
                    let (gain, start, whose) = (100.0 * gain, &board.start, whose(winner, &self.origin.path));
                    format!(
                        "The winner is {winner}{whose}. It takes {gain:.1} % less time than the first candidate, \
                         {start}{ends}."
                    )
                }
            },
        };
        section.say(format!(
            "{} on {}, strategy {}, {}: {} candidates, {}. {result}{}",
            self.header.problem,
            self.origin.device.name,
            self.header.strategy,
            self.origin.date,
            trials.len(),
            counts.join(", "),
            self.origin
                .notes
                .iter()
                .map(|note| format!(" This is {note}."))
                .collect::<String>(),
        ));
        let timed: Vec<(usize, f64)> = trials
            .iter()
            .filter_map(|trial| Some((trial.number, trial.score()?)))
            .collect();
        if !timed.is_empty() {
            let title = format!("The search on {}", self.header.case);
            let description = format!(
                "Time of each of {} candidates that were timed, relative to the first, by the number of the trial, and the \
                 best so far.",
                timed.len()
            );
            section.draw(history(&title, trials.len(), &timed), description);
        }
        section.tabulate(self.leaderboard());
        section.tabulate(self.steps());
        section.tabulate(self.claims());
        section
    }

    fn leaderboard(&self) -> Table {
        let mut rows = Table::new(
            "The leaderboard: finalists timed in the same rounds, the quickest first.",
            &[
                "kernel",
                "µs",
                "interval",
                "× first",
                "interval",
                "error",
                "of tolerance",
                "verdict",
                "evidence",
            ],
        );
        for row in self.board.iter().flat_map(|board| &board.rows) {
            let Some(trial) = self.history.trial(&row.id) else {
                continue;
            };
            let ratio = row.ratio.map(|ratio| (ratio.value, ratio.interval));
            rows.rows.push(vec![
                Cell::code(&row.id),
                Cell::number(format!("{:.3}", row.us)),
                Cell::number(interval(row.interval)),
                Cell::number(ratio.map_or("first".to_string(), |(value, _)| format!("{value:.3}"))),
                Cell::number(ratio.map_or(String::new(), |(_, ends)| interval(ends))),
                Cell::number(row.error.map_or("–".to_string(), |error| format!("{error:.1e}"))),
                Cell::text(
                    row.tolerance
                        .map_or("default".to_string(), |factor| format!("default × {factor}")),
                ),
                Cell::text(row.verdict.map_or(String::new(), |verdict| verdict.to_string())),
                Cell::Evidence(id(&self.header, &trial.number.to_string())),
            ]);
        }
        rows
    }

    /// What claims about changes came true.
    fn claims(&self) -> Table {
        let mut rows = Table::new(
            "Claims about what a change would bring, by kind; changes of time are means of what was tried.",
            &[
                "kind",
                "made",
                "tried",
                "came true",
                "sign wrong",
                "failed",
                "expected",
                "measured",
                "evidence",
            ],
        );
        let percent = |mean: Option<f64>| mean.map_or("–".to_string(), |mean| format!("{mean:+.1} %"));
        for tally in self.claims.iter().flat_map(|claims| &claims.table) {
            let counts = [tally.made, tally.tried, tally.came_true, tally.sign_wrong, tally.failed];
            let mut row = vec![Cell::text(tally.kind.to_string())];
            row.extend(counts.map(|count| Cell::number(count.to_string())));
            row.extend([tally.expected, tally.measured].map(|mean| Cell::number(percent(mean))));
            row.push(Cell::Evidence(self.origin.id.clone()));
            rows.rows.push(row);
        }
        rows
    }

    /// The trials that were the best so far.
    fn steps(&self) -> Table {
        let mut rows = Table::new(
            "Each candidate that was the quickest so far in the search, and why it was proposed.",
            &["trial", "kernel", "proposed as", "µs", "× first", "evidence"],
        );
        let mut best = f64::INFINITY;
        for trial in self.history.trials() {
            let Some(timed) = trial.timed.as_ref().filter(|timed| timed.score < best) else {
                continue;
            };
            best = timed.score;
            rows.rows.push(vec![
                Cell::number(trial.number.to_string()),
                Cell::code(&trial.id),
                Cell::text(&trial.origin),
                Cell::number(format!("{:.3}", timed.us)),
                Cell::number(format!("{:.3}", timed.score)),
                Cell::Evidence(id(&self.header, &trial.number.to_string())),
            ]);
        }
        rows
    }

    /// The recipes of what an id, or its first digits, names: the search, or a trial that was timed.
    pub fn recipes(&self, wanted: &str) -> Vec<Recipe> {
        let what = format!("search on {}", self.header.case);
        let run = Recipe::of_run(self.origin.id.clone(), what, &self.origin);
        let mut found = Vec::new();
        if self.origin.id.begins(wanted) {
            let flags = match self.header.inputs {
                Some(seed) => format!("--strategy {} --seed {seed}", self.header.strategy),
                None => format!("--strategy {}", self.header.strategy),
            };
            found.push(run.with_command("tune", &self.case(), &flags));
        }
        let timed = self.history.trials().iter().filter(|trial| trial.timed.is_some());
        for trial in timed {
            let id = id(&self.header, &trial.number.to_string());
            if id.begins(wanted) {
                found.extend(self.recipe(id, trial));
            }
        }
        found
    }

    fn case(&self) -> Case {
        Case::new(self.header.case.clone(), self.header.problem.clone())
    }

    fn recipe(&self, id: EvidenceId, trial: &Trial) -> Option<Recipe> {
        let timed = trial.timed.as_ref()?;
        let what = format!(
            "trial {} of the search on {}, {}",
            trial.number, self.header.case, trial.id
        );
        let recorded = Recorded {
            case: self.case(),
            mode: Mode::Hot,
            label: trial.id.clone(),
            ours: true,
            baseline: timed.against.clone().map(|against| (against, true)),
            us: timed.us,
            interval: Some(timed.interval).filter(|interval| interval.hi.is_finite()),
            options: None,
        };
        let mut recipe = recorded.recipe(id, what, &self.origin);
        recipe.module = timed.module.clone();
        // What a proposer wrote is named by its file.
        for id in timed.against.iter().chain([&trial.id]) {
            if let (Some(command), Some(word)) = (&mut recipe.command, rewritten(id, &self.origin.path)) {
                *command = command.replacen(id, &quoted(word.as_ref()), 1);
            }
        }
        Some(recipe)
    }
}

fn interval(ends: Interval) -> String {
    if is_point(ends) {
        String::new()
    } else {
        span(ends, |end| format!("{end:.3}"))
    }
}

/// The id of something in a run: no two runs of a machine begin in one second on one problem with one seed.
fn id(header: &Header, what: &str) -> EvidenceId {
    let boards: Vec<&str> = header.devices.iter().map(|device| device.uuid.as_str()).collect();
    let [started, seed] = [header.started_at, header.seed].map(|number| number.to_string());
    EvidenceId::of(&["tune", &header.case, &boards.join("+"), &started, &seed, what])
}
