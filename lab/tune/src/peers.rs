//! [`PeerComparison`]: the winner of a search, the default and peers, timed in one measurement.

use std::path::Path;

use flashcore_bench::own::is_own;
use flashcore_bench::{Case, Mode, Options, Ratio, Report, Request};
use serde::{Deserialize, Serialize};

use crate::board::Board;
use crate::error::TuneError;
use crate::journal::{Header, read_json, write_json};

pub(crate) const FILE: &str = "peers.json";

/// The winner compared with the default and peers, as stored in a run's folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerComparison {
    /// The winner.
    pub winner: String,
    /// The kernel that the library ran before.
    pub default: String,
    /// Why there are no peers at all. If only some are missing, the report says why.
    pub missing: Option<String>,
    /// The measurement; `None` if the leaderboard has the same information.
    pub report: Option<Report>,
}

impl PeerComparison {
    /// The comparison for a finished search, not measured yet. `None` for replays, for searches
    /// among planted candidates, and if nothing or a kernel of the user won.
    pub fn of(header: &Header, board: &Board) -> Option<PeerComparison> {
        let default = header.default.as_ref().filter(|_| header.is_real())?;
        // Times of a kernel of the user are in the leaderboard; the bench has no values for its parameters.
        let winner = board.winner.clone().filter(|winner| !is_own(winner))?;
        Some(PeerComparison {
            winner,
            default: default.kernel.clone(),
            missing: None,
            report: None,
        })
    }

    /// Whether a leaderboard has all information that is available without peers.
    pub fn is_covered_by(&self, board: &Board) -> bool {
        let is_there = |id: &String| board.rows.iter().any(|row| row.id == *id);
        board.head_to_head.ok && is_there(&self.winner) && is_there(&self.default)
    }

    /// The request for the bench, which adds peers: winner (the baseline) and default.
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

    /// The others' times relative to the winner's, in the order of the report.
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

    /// Stores it in a run's folder.
    pub fn keep(&self, folder: &Path) -> Result<(), TuneError> {
        write_json(&folder.join(FILE), self)
    }

    /// Reads it from a run's folder, if it belongs to this leaderboard.
    pub fn read(folder: &Path, board: &Board) -> Option<PeerComparison> {
        let stored: PeerComparison = read_json(&folder.join(FILE)).ok()?;
        (Some(&stored.winner) == board.winner.as_ref()).then_some(stored)
    }
}

#[cfg(test)]
mod tests {
    use flashcore_problem::Problem;

    use super::*;

    #[test]
    fn the_winner_is_compared_with_the_default() {
        let case = Case::new("tiny", Problem::named("tiny").unwrap());
        let comparison = PeerComparison {
            winner: "cpu/m64n64".to_string(),
            default: "cpu/m16n128".to_string(),
            missing: None,
            report: None,
        };
        let request = comparison.request(&case, Options::for_cpu());
        assert_eq!(request.kernels, ["cpu/m64n64", "cpu/m16n128"]);
        assert_eq!(request.baseline.as_deref(), Some("cpu/m64n64"));
    }
}
