//! The leaderboard: the finalists and the first candidate, timed against each other.

use flashcore_bench::{Interval, Measurement, Ratio};
use serde::{Deserialize, Serialize};

use crate::trial::{History, Verdict};

/// A run's leaderboard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Board {
    /// The first candidate: the default, unless another one was named.
    pub start: String,
    /// Why the first candidate failed, so that it is not compared with and not used.
    pub start_failed: Option<String>,
    /// The config that times are relative to: the first candidate, or the best if that failed.
    pub against: String,
    /// The best first. The first candidate is among them unless it failed.
    pub rows: Vec<BoardRow>,
    /// Finalists that failed in the finals, in the order of their failures.
    pub struck: Vec<Struck>,
    /// The kernel that every row of the finalists' outputs was compared with, if any.
    pub witness: Option<String>,
    /// Whether the times are from the finals. Otherwise they are the search's, and why.
    pub head_to_head: Check,
    /// Whether a kernel can win only if the simulator finds nothing: on GPUs.
    pub simulates: bool,
    /// The config to use: the best that is faster than the first by the gain that counts, else the
    /// first. If the first failed, the best that did not; `None` if none is left.
    pub winner: Option<String>,
    /// Smallest gain that counts.
    pub gain: f64,
}

/// A candidate on the leaderboard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoardRow {
    /// The config.
    pub id: String,
    /// Median of a run, µs: of the last measurement that it took part in.
    pub us: f64,
    /// Interval of the median, µs.
    pub interval: Interval,
    /// Time relative to [`Board::against`]; `None` for that one, and if it is unknown.
    pub ratio: Option<Ratio>,
    /// For a winner: its ratio among all finalists. It was then timed against the first candidate
    /// alone, and that ratio counts, because the leader of several is also the luckiest.
    pub first_ratio: Option<Ratio>,
    /// Verdict on the ratio, as in the search.
    pub verdict: Option<Verdict>,
    /// The simulator's finding on small problems, or that there is none. `None` if it did not run.
    pub simulated: Option<Check>,
    /// The largest error of an element that was seen in the search.
    pub error: Option<f64>,
    /// How many times the default tolerance an error may be, if that is not 1.
    pub tolerance: Option<f64>,
}

/// A finalist that failed in the finals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Struck {
    /// The config.
    pub id: String,
    /// The verdict.
    pub verdict: Verdict,
    /// Why: one sentence.
    pub reason: String,
}

impl BoardRow {
    pub(crate) fn new(id: &str, us: f64, interval: Interval) -> BoardRow {
        BoardRow {
            id: id.to_string(),
            us,
            interval,
            ratio: None,
            first_ratio: None,
            verdict: None,
            simulated: None,
            error: None,
            tolerance: None,
        }
    }
}

impl Board {
    pub(crate) fn new(start: &str, start_failed: Option<String>, simulates: bool, gain: f64) -> Board {
        Board {
            start: start.to_string(),
            start_failed,
            against: start.to_string(),
            rows: Vec::new(),
            struck: Vec::new(),
            witness: None,
            head_to_head: Ok(()).into(),
            simulates,
            winner: None,
            gain,
        }
    }

    /// The board with finalists that were timed against one of them.
    pub(crate) fn of_finals(mut self, measurement: &Measurement) -> Board {
        if let Some(baseline) = measurement.subjects.get(measurement.baseline) {
            self.against = baseline.info.label.clone();
        }
        let rows = measurement.subjects.iter().filter_map(|subject| {
            let summary = subject.summary?;
            let mut row = BoardRow::new(&subject.info.label, summary.p50, summary.interval);
            row.ratio = subject.ratio;
            row.verdict = subject.ratio.map(|ratio| Verdict::of(&ratio, self.gain));
            Some(row)
        });
        self.rows = rows.collect();
        self.rank();
        self.elect();
        self
    }

    pub(crate) fn of_history(mut self, history: &History, why: String, keep: usize) -> Board {
        let mut ranked = history.ranked();
        ranked.retain(|trial| !self.is_struck(&trial.id));
        let rows = ranked.iter().enumerate().filter_map(|(place, trial)| {
            let timed = trial.timed.as_ref()?;
            // The first is kept whatever its place, since others must beat it.
            (place < keep || trial.id == self.start).then(|| BoardRow::new(&trial.id, timed.us, timed.interval))
        });
        self.rows = rows.collect();
        self.head_to_head = Err(why).into();
        self.elect();
        self
    }

    /// Adds what the search has seen of each.
    pub(crate) fn with_errors(mut self, history: &History) -> Board {
        for row in &mut self.rows {
            let timed = history.trial(&row.id).and_then(|trial| trial.timed.as_ref());
            (row.error, row.tolerance) = timed.map_or((None, None), |timed| (timed.error, timed.tolerance));
        }
        self
    }

    pub(crate) fn is_struck(&self, id: &str) -> bool {
        self.struck.iter().any(|struck| struck.id == id)
    }

    fn rank(&mut self) {
        let key = |row: &BoardRow| row.ratio.map_or(1.0, |ratio| ratio.value);
        self.rows.sort_by(|a, b| key(a).total_cmp(&key(b)));
    }

    /// The winner, if it was timed against [`Board::against`] only once.
    pub(crate) fn unconfirmed(&self) -> Option<&str> {
        let winner = self.winner.as_deref().filter(|winner| *winner != self.against)?;
        let row = self.rows.iter().find(|row| row.id == winner)?;
        (self.head_to_head.ok && row.first_ratio.is_none()).then_some(winner)
    }

    /// Records the second measurement of a row, with [`Board::against`] alone, and elects again. Both
    /// rows take their times from it, so that times and ratio are of one measurement. Without a ratio
    /// the row has no gain.
    pub(crate) fn confirm(&mut self, id: &str, measurement: Option<&Measurement>) {
        let gain = self.gain;
        let subjects = measurement.map_or(&[][..], |measurement| &measurement.subjects);
        for subject in subjects {
            let Some(summary) = subject.summary else { continue };
            for row in self.rows.iter_mut().filter(|row| row.id == subject.info.label) {
                (row.us, row.interval) = (summary.p50, summary.interval);
            }
        }
        let again = subjects.iter().find(|subject| subject.info.label == id);
        let again = again.and_then(|subject| subject.ratio);
        for row in self.rows.iter_mut().filter(|row| row.id == id) {
            row.first_ratio = row.ratio;
            row.ratio = again.or(row.ratio);
            row.verdict = Some(again.map_or(Verdict::Ambiguous, |again| Verdict::of(&again, gain)));
        }
        self.rank();
        self.elect();
    }

    pub(crate) fn strike(&mut self, struck: Struck) {
        self.rows.retain(|row| row.id != struck.id);
        if struck.id == self.start {
            self.start_failed = Some(format!("{} in the finals: {}", struck.verdict, struck.reason));
        }
        self.struck.push(struck);
        self.elect();
    }

    /// A kernel cannot win if the simulator found something, or if it must run and did not.
    pub(crate) fn elect(&mut self) {
        let mut clean = self.rows.iter().filter(|row| self.is_clean(row));
        let winner = match self.first() {
            Some(first) => clean.find(|row| row.verdict == Some(Verdict::Faster)).or(Some(first)),
            None => clean.next(),
        };
        self.winner = winner.map(|row| row.id.clone());
    }

    fn is_clean(&self, row: &BoardRow) -> bool {
        row.simulated.as_ref().map_or(!self.simulates, |check| check.ok)
    }

    fn first(&self) -> Option<&BoardRow> {
        let mut rows = self.rows.iter().filter(|_| self.start_failed.is_none());
        rows.find(|row| row.id == self.start && self.is_clean(row))
    }

    pub(crate) fn ratio_of(&self, id: &str) -> Option<Ratio> {
        self.rows.iter().find(|row| row.id == id)?.ratio
    }

    /// The winner's relative gain over the first candidate and its interval, if another one won.
    pub fn gain_of_winner(&self) -> Option<(f64, Interval)> {
        self.first()?;
        let ratio = self.ratio_of(self.winner.as_ref()?)?;
        let interval = Interval {
            lo: 1.0 - ratio.interval.hi,
            hi: 1.0 - ratio.interval.lo,
        };
        Some((1.0 - ratio.value, interval))
    }

    /// Whether the first candidate failed, at a gate or under the simulator.
    pub fn is_start_bad(&self) -> bool {
        self.first().is_none()
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Whether it passed.
    pub ok: bool,
    /// Why not.
    pub why: Option<String>,
}

impl From<Result<(), String>> for Check {
    fn from(result: Result<(), String>) -> Check {
        Check {
            ok: result.is_ok(),
            why: result.err(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, ratio: Option<[f64; 2]>) -> BoardRow {
        let ratio = ratio.map(|[lo, hi]| Ratio {
            value: (lo + hi) / 2.0,
            interval: Interval { lo, hi },
            of_medians: 1.0,
            rounds: 9,
        });
        BoardRow {
            ratio,
            verdict: ratio.map(|ratio| Verdict::of(&ratio, 0.03)),
            ..BoardRow::new(id, 10.0, Interval::UNKNOWN)
        }
    }

    fn board(start_failed: Option<&str>, simulates: bool, against: &str, rows: &[BoardRow]) -> Board {
        let mut board = Board::new("start", start_failed.map(str::to_string), simulates, 0.03);
        (board.against, board.rows) = (against.to_string(), rows.to_vec());
        board.rank();
        board.elect();
        board
    }

    #[test]
    fn the_winner_is_clean_and_faster_by_the_gain_that_counts() {
        let rows = [
            row("start", None),
            row("b", Some([0.90, 0.92])),
            row("a", Some([0.85, 0.87])),
        ];
        let mut found = board(None, false, "start", &rows);
        assert_eq!(
            found.rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(),
            ["a", "b", "start"]
        );
        assert_eq!(found.winner.as_deref(), Some("a"));
        assert!((found.gain_of_winner().unwrap().0 - 0.14).abs() < 1e-9);
        found.rows[0].simulated = Some(Err("a race".to_string()).into());
        found.elect();
        assert_eq!(found.winner.as_deref(), Some("b"));
        // A kernel of the user wins as all others do.
        let own = [row("start", None), row("own/mine", Some([0.5, 0.6]))];
        let found = board(None, false, "start", &own);
        assert_eq!(
            (found.rows[0].id.as_str(), found.winner.as_deref()),
            ("own/mine", Some("own/mine"))
        );
        let close = [row("start", None), row("b", Some([0.975, 0.985]))];
        let found = board(None, false, "start", &close);
        assert_eq!((found.winner.as_deref(), found.gain_of_winner()), (Some("start"), None));
        assert!(!found.is_start_bad());
    }

    #[test]
    fn a_first_candidate_that_failed_does_not_win() {
        let rest = [row("b", None), row("c", Some([1.1, 1.2]))];
        let found = board(Some("WRONG: zeros"), false, "b", &rest);
        // There is a config to use, and nothing that it could gain over.
        assert_eq!((found.winner.as_deref(), found.gain_of_winner()), (Some("b"), None));
        assert!(found.is_start_bad());
        let nothing = board(Some("WRONG: zeros"), false, "b", &[]);
        assert_eq!(nothing.winner, None);
        // It was timed, but the simulator found something.
        let rows = [row("start", None), row("b", Some([1.1, 1.2]))];
        let mut found = board(None, true, "start", &rows);
        found.rows[0].simulated = Some(Err("a race".to_string()).into());
        found.rows[1].simulated = Some(Ok(()).into());
        found.elect();
        assert_eq!(found.winner.as_deref(), Some("b"));
        assert!(found.is_start_bad());
    }

    #[test]
    fn a_kernel_that_was_not_simulated_does_not_win_on_a_gpu() {
        let rows = [row("start", None), row("b", Some([0.90, 0.92]))];
        let mut found = board(None, true, "start", &rows);
        assert_eq!(found.winner, None);
        for row in &mut found.rows {
            row.simulated = (row.id == "start").then_some(Ok(()).into());
        }
        found.elect();
        assert_eq!(found.winner.as_deref(), Some("start"));
    }

    #[test]
    fn without_finals_the_first_candidate_wins() {
        let mut history = History::default();
        for (number, (id, score)) in [("start", 1.0), ("b", 0.5), ("c", 0.6)].into_iter().enumerate() {
            history.add(crate::tests::trial(number, id, Some(score)));
        }
        let found = Board::new("start", None, false, 0.03).of_history(&history, "lost".to_string(), 2);
        assert_eq!(found.rows.len(), 3);
        assert_eq!(found.winner.as_deref(), Some("start"));
    }

    #[test]
    fn results_are_objects_in_json() {
        let clean = BoardRow {
            simulated: Some(Ok(()).into()),
            ..row("a", None)
        };
        let found = BoardRow {
            simulated: Some(Err("a race".to_string()).into()),
            ..row("b", None)
        };
        for (row, plain) in [
            (row("c", None), "null"),
            (clean, r#"{"ok":true,"why":null}"#),
            (found, r#"{"ok":false,"why":"a race"}"#),
        ] {
            let text = serde_json::to_string(&row).unwrap();
            assert!(text.contains(&format!("\"simulated\":{plain}")), "{text}");
            assert_eq!(serde_json::from_str::<BoardRow>(&text).unwrap(), row);
        }
    }
}
