//! [`Beside`]: the winner of a search beside the default and peers, in one measurement by the protocol of any bench.

use std::path::Path;

use flashcore_bench::{Case, Mode, Options, Ratio, Report, Request};
use serde::{Deserialize, Serialize};

use crate::board::Board;
use crate::error::TuneError;
use crate::journal::{Header, write_json};

/// The file of a run's folder that has it.
pub(crate) const FILE: &str = "peers.json";

/// The winner beside the default and peers, as kept in a run's folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// The winner.
    pub winner: String,
    /// What the library ran before.
    pub default: String,
    /// Why there are no peers, where there are none at all. One that is missing alone stands in the report.
    pub missing: Option<String>,
    /// What was measured; `None` where it would say no more than the leaderboard, which has winner and default.
    pub report: Option<Report>,
}

impl Beside {
    /// What is to be compared once a search is over; nothing is measured yet. `None` for replays, where there is no
    /// device, for searches among planted candidates, and where nothing won.
    pub fn of(header: &Header, board: &Board) -> Option<Beside> {
        let default = header.default.as_ref().filter(|_| header.is_real())?;
        Some(Beside {
            winner: board.winner.clone()?,
            default: default.kernel.clone(),
            missing: None,
            report: None,
        })
    }

    /// Whether a leaderboard says all that could be said without peers.
    pub fn is_said_by(&self, board: &Board) -> bool {
        let is_there = |id: &String| board.rows.iter().any(|row| row.id == *id);
        board.head_to_head.is_ok() && is_there(&self.winner) && is_there(&self.default)
    }

    /// The bench: the winner, which the others are compared with, and the default. Peers come to it by themselves.
    ///
    /// ```
    /// use flashcore_bench::{Case, Options};
    /// use flashcore_problem::Problem;
    /// use flashcore_tune::Beside;
    /// let case = Case { name: "tiny".to_string(), problem: Problem::named("tiny")? };
    /// let (winner, default) = ("cpu/m64n64".to_string(), "cpu/m16n128".to_string());
    /// let beside = Beside { winner, default, missing: None, report: None };
    /// let request = beside.request(&case, Options::for_cpu());
    /// assert_eq!(request.kernels, ["cpu/m64n64", "cpu/m16n128"]);
    /// assert_eq!(request.baseline.as_deref(), Some("cpu/m64n64"));
    /// # Ok::<(), flashcore_problem::ProblemError>(())
    /// ```
    pub fn request(&self, case: &Case, options: Options) -> Request {
        let mut kernels = vec![self.winner.clone(), self.default.clone()];
        kernels.dedup();
        Request {
            cases: vec![case.clone()],
            kernels,
            modes: vec![Mode::Hot],
            options,
            baseline: Some(self.winner.clone()),
            ..Request::default()
        }
    }

    /// Everybody else's time relative to the winner's, in the order of the report.
    pub fn ratios(&self) -> Vec<(&str, &Ratio)> {
        let results = self.report.iter().flat_map(|report| &report.results);
        let of_winner = results.filter(|result| {
            let baseline = result.measurement.subjects.get(result.measurement.baseline);
            baseline.is_some_and(|baseline| baseline.info.label == self.winner)
        });
        let subjects = of_winner.flat_map(|result| &result.measurement.subjects);
        subjects
            .filter_map(|subject| Some((subject.info.label.as_str(), subject.ratio.as_ref()?)))
            .collect()
    }

    /// Keeps it in a run's folder.
    ///
    /// # Errors
    /// [`TuneError::File`].
    pub fn keep(&self, folder: &Path) -> Result<(), TuneError> {
        write_json(&folder.join(FILE), self)
    }

    /// What a run's folder has, if it was made for this leaderboard.
    pub fn read(folder: &Path, board: &Board) -> Option<Beside> {
        let text = std::fs::read_to_string(folder.join(FILE)).ok()?;
        let beside: Beside = serde_json::from_str(&text).ok()?;
        (Some(&beside.winner) == board.winner.as_ref()).then_some(beside)
    }
}
