//! The leaderboard: finalists beside the first candidate, timed against each other.

use flashcore_bench::{Interval, Measurement, Ratio};
use serde::{Deserialize, Serialize};

use crate::trial::{History, Verdict};

/// A run's leaderboard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Board {
    /// The first candidate, that others are compared with: the default, where none was named.
    pub start: String,
    /// The best first. The first candidate is among them.
    pub rows: Vec<BoardRow>,
    /// Whether these times are from head to head; otherwise they are those of the search, and why it is so.
    pub head_to_head: Result<(), String>,
    /// The config to use: the best that is faster than the first by the gain that counts, else the first.
    pub winner: String,
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
    /// Time relative to the first candidate; `None` for that one, and where it is not known.
    pub ratio: Option<Ratio>,
    /// What that says, as in the search.
    pub verdict: Option<Verdict>,
    /// What the simulator found on a small problem, of kernels for GPUs: nothing, or what.
    pub simulated: Option<Result<(), String>>,
}

impl Board {
    /// Ranks finalists that were timed against the first of them.
    pub(crate) fn of_finals(measurement: &Measurement, gain: f64) -> Option<Board> {
        let start = measurement.subjects.get(measurement.baseline)?.info.label.clone();
        let rows = measurement.subjects.iter().filter_map(|subject| {
            let summary = subject.summary?;
            Some(BoardRow {
                id: subject.info.label.clone(),
                us: summary.p50,
                interval: summary.interval,
                ratio: subject.ratio,
                verdict: subject.ratio.map(|ratio| Verdict::of(&ratio, gain)),
                simulated: None,
            })
        });
        Some(Board::new(start, rows.collect(), Ok(()), gain))
    }

    /// Ranks by the search's own times, where there was no head to head.
    pub(crate) fn of_history(history: &History, start: &str, why: String, keep: usize, gain: f64) -> Board {
        let rows = history.ranked().into_iter().filter_map(|trial| {
            let timed = trial.timed.as_ref()?;
            Some(BoardRow {
                id: trial.id.clone(),
                us: timed.us,
                interval: timed.interval,
                ratio: None,
                verdict: None,
                simulated: None,
            })
        });
        Board::new(start.to_string(), rows.take(keep).collect(), Err(why), gain)
    }

    fn new(start: String, mut rows: Vec<BoardRow>, head_to_head: Result<(), String>, gain: f64) -> Board {
        let key = |row: &BoardRow| row.ratio.map_or(1.0, |ratio| ratio.value);
        if head_to_head.is_ok() {
            rows.sort_by(|a, b| key(a).total_cmp(&key(b)));
        }
        let mut board = Board {
            winner: start.clone(),
            start,
            rows,
            head_to_head,
            gain,
        };
        board.elect();
        board
    }

    /// Chooses the winner anew: the best row that counts and that the simulator has nothing against.
    pub(crate) fn elect(&mut self) {
        let clean = |row: &&BoardRow| !matches!(row.simulated, Some(Err(_)));
        let counts = |row: &&BoardRow| row.verdict == Some(Verdict::Faster);
        let winner = self.rows.iter().filter(clean).find(counts);
        self.winner = winner.map_or(self.start.clone(), |row| row.id.clone());
    }

    /// The winner's gain over the first candidate, relative, and its interval; `None` where the first one stands.
    pub fn gain_of_winner(&self) -> Option<(f64, Interval)> {
        let row = self.rows.iter().find(|row| row.id == self.winner)?;
        let ratio = row.ratio?;
        let interval = Interval {
            lo: 1.0 - ratio.interval.hi,
            hi: 1.0 - ratio.interval.lo,
        };
        Some((1.0 - ratio.value, interval))
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
            verdict: ratio.map(|ratio| Verdict::of(&ratio, 0.03)),
            simulated: None,
        }
    }

    #[test]
    fn the_winner_is_faster_by_what_counts_and_clean() {
        let rows = vec![
            row("start", None),
            row("b", Some([0.90, 0.92])),
            row("a", Some([0.85, 0.87])),
        ];
        let mut board = Board::new("start".to_string(), rows, Ok(()), 0.03);
        assert_eq!(
            board.rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(),
            ["a", "b", "start"]
        );
        assert_eq!(board.winner, "a");
        assert!((board.gain_of_winner().unwrap().0 - 0.14).abs() < 1e-9);
        board.rows[0].simulated = Some(Err("a race".to_string()));
        board.elect();
        assert_eq!(board.winner, "b");
        let close = vec![row("start", None), row("b", Some([0.975, 0.985]))];
        let board = Board::new("start".to_string(), close, Ok(()), 0.03);
        assert_eq!((board.winner.as_str(), board.gain_of_winner()), ("start", None));
    }
}
