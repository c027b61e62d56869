//! What the evidence store keeps of a profile: the counters of one call of a kernel or peer, and what was predicted of
//! it.

use serde::{Deserialize, Serialize};

use super::{KernelProfile, Predicted};
use crate::{Case, SubjectInfo};

/// The counters of one call, as stored: the line `profile` of a run (`docs/evidence.md`). The device, the build and the
/// time are those of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileRecord {
    /// The problem.
    pub case: Case,
    /// The kernel or peer. Its label is the one that `bench` uses, so that times and counters can be joined.
    pub subject: SubjectInfo,
    /// What read the counters, with its version: `ncu 2025.3.1.0`.
    pub tool: String,
    /// The launches of one call, in order. The first of a plan does the work; a split has a second one that combines.
    pub launches: Vec<KernelProfile>,
    /// What was predicted of the call; `None` for peers, and where the cost model has no answer.
    pub predicted: Option<Predicted>,
}

/// Lines that are kept of a launch, and of a prediction.
const KEPT_LINES: usize = 24;
/// Characters of a line's text that are kept.
const KEPT_TEXT: usize = 80;

impl ProfileRecord {
    /// The same with as many lines as are stored, each of bounded length: the most sampled and those with conflicts. A
    /// launch has hundreds of lines, most of them without a sample.
    #[must_use]
    pub fn trimmed(mut self) -> ProfileRecord {
        for launch in &mut self.launches {
            let mut place = 0;
            launch.lines.retain(|line| {
                place += 1;
                line.wavefronts_excess > 0.0 || (place <= KEPT_LINES && line.samples > 0.0)
            });
            launch.lines.truncate(2 * KEPT_LINES);
            for line in &mut launch.lines {
                line.source = line.source.trim().chars().take(KEPT_TEXT).collect();
            }
        }
        if let Some(predicted) = &mut self.predicted {
            let mut place = 0;
            predicted.lines.retain(|line| {
                place += 1;
                line.wavefronts_excess > 0.0 || place <= KEPT_LINES
            });
            predicted.lines.truncate(2 * KEPT_LINES);
        }
        self
    }
}
