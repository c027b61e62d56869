//! The leaderboard: finalists beside the first candidate, timed against each other.

use flashcore_bench::{Interval, Measurement, Ratio};
use serde::{Deserialize, Serialize};

use crate::trial::{History, Verdict};

/// A run's leaderboard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Board {
    /// The first candidate: the default, where none was named.
    pub start: String,
    /// Why the first candidate is nothing to compare with, or to use: what became of it at the gates.
    pub start_failed: Option<String>,
    /// What times are relative to: the first candidate, or the best of the search where that one failed.
    pub against: String,
    /// The best first. The first candidate is among them, unless it failed.
    pub rows: Vec<BoardRow>,
    /// Finalists that did not come through the finals, in the order in which they were found out.
    pub struck: Vec<Struck>,
    /// The kernel that every row of the finalists' answers was held against; `None` where there was none.
    pub witness: Option<String>,
    /// Whether these times are from head to head; otherwise they are those of the search, and why it is so.
    #[serde(with = "plain")]
    pub head_to_head: Result<(), String>,
    /// Whether a kernel wins only after the simulator looked at it: those for GPUs.
    pub simulates: bool,
    /// The config to use: the best that is faster than the first by the gain that counts, else the first. Where the
    /// first failed, the best that did not; `None` where none is left.
    pub winner: Option<String>,
    /// Least gain that counts.
    pub gain: f64,
}

/// A candidate on the leaderboard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoardRow {
    /// The config.
    pub id: String,
    /// Median of a run, µs.
    pub us: f64,
    /// Interval of the median, µs.
    pub interval: Interval,
    /// Time relative to [`Board::against`]; `None` for that one, and where it is not known.
    pub ratio: Option<Ratio>,
    /// Of one that was ahead by what counts: the ratio of the first meeting, of all finalists. Then it met the first candidate
    /// once more, by itself, and that is what counts: who leads among several has had luck, too.
    #[serde(default)]
    pub first_ratio: Option<Ratio>,
    /// What that says, as in the search.
    pub verdict: Option<Verdict>,
    /// What the simulator found on small problems, of kernels for GPUs: nothing, or what. `None` where it did not look.
    #[serde(with = "plain::option")]
    pub simulated: Option<Result<(), String>>,
}

/// A finalist that did not come through the finals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Struck {
    /// The config.
    pub id: String,
    /// What came of it.
    pub verdict: Verdict,
    /// Why: one sentence.
    pub reason: String,
}

impl Struck {
    /// What is said of the first candidate where it is that one.
    pub(crate) fn told(&self) -> String {
        format!("{} in the finals: {}", self.verdict, self.reason)
    }
}

/// What a board is about, whatever its rows are.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// The first candidate.
    pub(crate) start: String,
    /// Why it failed, if it did.
    pub(crate) start_failed: Option<String>,
    /// As [`Board::struck`].
    pub(crate) struck: Vec<Struck>,
    /// As [`Board::witness`].
    pub(crate) witness: Option<String>,
    /// As [`Board::simulates`].
    pub(crate) simulates: bool,
    /// Least gain that counts.
    pub(crate) gain: f64,
}

impl Board {
    /// Ranks finalists that were timed against the first of them.
    pub(crate) fn of_finals(measurement: &Measurement, about: About) -> Option<Board> {
        let against = measurement.subjects.get(measurement.baseline)?.info.label.clone();
        let rows = measurement.subjects.iter().filter_map(|subject| {
            let summary = subject.summary?;
            Some(BoardRow {
                id: subject.info.label.clone(),
                us: summary.p50,
                interval: summary.interval,
                ratio: subject.ratio,
                first_ratio: None,
                verdict: subject.ratio.map(|ratio| Verdict::of(&ratio, about.gain)),
                simulated: None,
            })
        });
        let rows = rows.collect();
        Some(Board::new(about, against, rows, Ok(())))
    }

    /// Ranks by the search's own times, where there was no head to head.
    pub(crate) fn of_history(history: &History, about: About, why: String, keep: usize) -> Board {
        let mut ranked = history.ranked();
        ranked.retain(|trial| !about.struck.iter().any(|struck| struck.id == trial.id));
        let rows = ranked.iter().filter_map(|trial| {
            let timed = trial.timed.as_ref()?;
            Some(BoardRow {
                id: trial.id.clone(),
                us: timed.us,
                interval: timed.interval,
                ratio: None,
                first_ratio: None,
                verdict: None,
                simulated: None,
            })
        });
        let mut kept: Vec<BoardRow> = rows.clone().take(keep).collect();
        // Whatever its place: it is what others must beat.
        if !kept.iter().any(|row| row.id == about.start) {
            kept.extend(rows.skip(keep).find(|row| row.id == about.start));
        }
        let against = about.start.clone();
        Board::new(about, against, kept, Err(why))
    }

    fn new(about: About, against: String, rows: Vec<BoardRow>, head_to_head: Result<(), String>) -> Board {
        let About {
            start,
            start_failed,
            struck,
            witness,
            simulates,
            gain,
        } = about;
        let mut board = Board {
            start,
            start_failed,
            against,
            rows,
            struck,
            witness,
            head_to_head,
            simulates,
            winner: None,
            gain,
        };
        board.rank();
        board.elect();
        board
    }

    fn rank(&mut self) {
        let key = |row: &BoardRow| row.ratio.map_or(1.0, |ratio| ratio.value);
        if self.head_to_head.is_ok() {
            self.rows.sort_by(|a, b| key(a).total_cmp(&key(b)));
        }
    }

    /// The winner, where it met what it won against only once.
    pub(crate) fn unconfirmed(&self) -> Option<&str> {
        let winner = self.winner.as_deref().filter(|winner| *winner != self.against)?;
        let row = self.rows.iter().find(|row| row.id == winner)?;
        (self.head_to_head.is_ok() && row.first_ratio.is_none()).then_some(winner)
    }

    /// What a second meeting of a row with what it won against said, and who wins now. Without a ratio it has won nothing.
    pub(crate) fn confirm(&mut self, id: &str, again: Option<Ratio>) {
        let gain = self.gain;
        for row in self.rows.iter_mut().filter(|row| row.id == id) {
            row.first_ratio = row.ratio;
            row.ratio = again.or(row.ratio);
            row.verdict = Some(again.map_or(Verdict::Ambiguous, |again| Verdict::of(&again, gain)));
        }
        self.rank();
        self.elect();
    }

    /// Takes a row out that was found out in its second meeting.
    pub(crate) fn strike(&mut self, struck: Struck) {
        self.rows.retain(|row| row.id != struck.id);
        if struck.id == self.start {
            self.start_failed = Some(struck.told());
        }
        self.struck.push(struck);
        self.elect();
    }

    /// Chooses the winner anew. Nobody wins whom the simulator has something against, or did not look at where it
    /// must.
    pub(crate) fn elect(&mut self) {
        let mut clean = self.rows.iter().filter(|row| self.is_clean(row));
        let winner = match self.first() {
            Some(first) => clean.find(|row| row.verdict == Some(Verdict::Faster)).or(Some(first)),
            None => clean.next(),
        };
        self.winner = winner.map(|row| row.id.clone());
    }

    fn is_clean(&self, row: &BoardRow) -> bool {
        match &row.simulated {
            Some(found) => found.is_ok(),
            None => !self.simulates,
        }
    }

    /// The first candidate, if it came through.
    fn first(&self) -> Option<&BoardRow> {
        let mut rows = self.rows.iter().filter(|_| self.start_failed.is_none());
        rows.find(|row| row.id == self.start && self.is_clean(row))
    }

    /// A row's time relative to that of [`Board::against`]; `None` for that one, and where it is not known.
    pub(crate) fn ratio_of(&self, id: &str) -> Option<Ratio> {
        self.rows.iter().find(|row| row.id == id)?.ratio
    }

    /// The winner's gain over the first candidate, relative, and its interval; `None` where the first one stands or
    /// failed, and where nothing won.
    pub fn gain_of_winner(&self) -> Option<(f64, Interval)> {
        self.first()?;
        let ratio = self.ratio_of(self.winner.as_ref()?)?;
        let interval = Interval {
            lo: 1.0 - ratio.interval.hi,
            hi: 1.0 - ratio.interval.lo,
        };
        Some((1.0 - ratio.value, interval))
    }

    /// Whether the first candidate, which is what is used where nobody tunes, did not come through: at a gate, or
    /// under the simulator.
    pub fn is_start_bad(&self) -> bool {
        self.first().is_none()
    }
}

/// Results as files have them: `{"ok": true, "why": null}`, or `{"ok": false, "why": "..."}`.
mod plain {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Plain {
        ok: bool,
        #[serde(default)]
        why: Option<String>,
    }

    impl Plain {
        fn of(result: &Result<(), String>) -> Plain {
            Plain {
                ok: result.is_ok(),
                why: result.clone().err(),
            }
        }

        fn result(self) -> Result<(), String> {
            match self.ok {
                true => Ok(()),
                false => Err(self.why.unwrap_or_default()),
            }
        }
    }

    pub(super) fn serialize<S: Serializer>(result: &Result<(), String>, to: S) -> Result<S::Ok, S::Error> {
        Plain::of(result).serialize(to)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Result<(), String>, D::Error> {
        Ok(Plain::deserialize(from)?.result())
    }

    pub(super) mod option {
        use super::{Deserialize, Deserializer, Plain, Serialize, Serializer};

        pub(crate) fn serialize<S: Serializer>(result: &Option<Result<(), String>>, to: S) -> Result<S::Ok, S::Error> {
            result.as_ref().map(Plain::of).serialize(to)
        }

        pub(crate) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Option<Result<(), String>>, D::Error> {
            Ok(Option::<Plain>::deserialize(from)?.map(Plain::result))
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
            id: id.to_string(),
            us: 10.0,
            interval: Interval::UNKNOWN,
            ratio,
            first_ratio: None,
            verdict: ratio.map(|ratio| Verdict::of(&ratio, 0.03)),
            simulated: None,
        }
    }

    fn about(start_failed: Option<&str>, simulates: bool) -> About {
        About {
            start: "start".to_string(),
            start_failed: start_failed.map(str::to_string),
            struck: Vec::new(),
            witness: None,
            simulates,
            gain: 0.03,
        }
    }

    fn board(about: About, against: &str, rows: &[BoardRow]) -> Board {
        Board::new(about, against.to_string(), rows.to_vec(), Ok(()))
    }

    #[test]
    fn the_winner_is_faster_by_what_counts_and_clean() {
        let rows = [
            row("start", None),
            row("b", Some([0.90, 0.92])),
            row("a", Some([0.85, 0.87])),
        ];
        let mut found = board(about(None, false), "start", &rows);
        assert_eq!(
            found.rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(),
            ["a", "b", "start"]
        );
        assert_eq!(found.winner.as_deref(), Some("a"));
        assert!((found.gain_of_winner().unwrap().0 - 0.14).abs() < 1e-9);
        found.rows[0].simulated = Some(Err("a race".to_string()));
        found.elect();
        assert_eq!(found.winner.as_deref(), Some("b"));
        let close = [row("start", None), row("b", Some([0.975, 0.985]))];
        let found = board(about(None, false), "start", &close);
        assert_eq!((found.winner.as_deref(), found.gain_of_winner()), (Some("start"), None));
        assert!(!found.is_start_bad());
    }

    #[test]
    fn a_first_candidate_that_failed_wins_nothing() {
        let rest = [row("b", None), row("c", Some([1.1, 1.2]))];
        let found = board(about(Some("WRONG: zeros"), false), "b", &rest);
        // Faster than what? There is a config to use, and no gain to claim.
        assert_eq!((found.winner.as_deref(), found.gain_of_winner()), (Some("b"), None));
        assert!(found.is_start_bad());
        let nothing = board(about(Some("WRONG: zeros"), false), "b", &[]);
        assert_eq!(nothing.winner, None);
        // Timed, but the simulator has something against it.
        let rows = [row("start", None), row("b", Some([1.1, 1.2]))];
        let mut found = board(about(None, true), "start", &rows);
        found.rows[0].simulated = Some(Err("a race".to_string()));
        found.rows[1].simulated = Some(Ok(()));
        found.elect();
        assert_eq!(found.winner.as_deref(), Some("b"));
        assert!(found.is_start_bad());
    }

    #[test]
    fn what_the_simulator_did_not_see_does_not_win_where_it_must() {
        let rows = [row("start", None), row("b", Some([0.90, 0.92]))];
        let mut found = board(about(None, true), "start", &rows);
        assert_eq!(found.winner, None);
        for row in &mut found.rows {
            row.simulated = (row.id == "start").then_some(Ok(()));
        }
        found.elect();
        assert_eq!(found.winner.as_deref(), Some("start"));
    }

    #[test]
    fn without_a_head_to_head_the_first_stands_whatever_its_place() {
        let mut history = History::default();
        for (number, (id, score)) in [("start", 1.0), ("b", 0.5), ("c", 0.6)].into_iter().enumerate() {
            history.add(crate::trial::tests::trial(number, id, Some(score)));
        }
        let found = Board::of_history(&history, about(None, false), "lost".to_string(), 2);
        assert_eq!(found.rows.len(), 3);
        assert_eq!(found.winner.as_deref(), Some("start"));
    }

    #[test]
    fn results_are_plain_in_files() {
        let clean = BoardRow {
            simulated: Some(Ok(())),
            ..row("a", None)
        };
        let found = BoardRow {
            simulated: Some(Err("a race".to_string())),
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
