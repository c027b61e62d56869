//! What the simulator and the cost model predict of a call, in the terms of the counters.

use std::collections::BTreeMap;

use flashcore_check::cost::{Bound, MeasuredCard, Observation, Prediction, Resource};
use flashcore_ir::Profile;
use serde::{Deserialize, Serialize};

use super::shares;

/// What the simulator and the cost model predict of a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// The card, by the name of its profile.
    pub card: String,
    /// Time of all launches, µs.
    pub micros: f64,
    /// What binds, in words.
    pub binds: String,
    /// Busy shares of the predicted time, per cent, by the keys of
    /// [`KernelProfile::counters`](super::KernelProfile::counters).
    pub shares: BTreeMap<String, f64>,
    /// Shared-memory wavefronts of the first launch, counted by the simulator, with those of asynchronous copies.
    pub wavefronts: f64,
    /// Of them, how many bank conflicts add.
    pub wavefronts_excess: f64,
    /// By line of the first launch, most of what binds first.
    pub lines: Vec<PredictedLine>,
}

/// What is predicted of one line of a kernel's Rust source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictedLine {
    /// File, relative to the repository.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Its share of the resource that binds, per cent; of the issue slots where latency or the launch binds.
    pub share: f64,
    /// Shared-memory wavefronts of all blocks.
    pub wavefronts: f64,
    /// Of them, how many bank conflicts add.
    pub wavefronts_excess: f64,
}

impl Predicted {
    /// From what was observed of a plan, and predicted of it on a card.
    pub fn of(
        observed: &Observation,
        prediction: &Prediction,
        profile: &Profile,
        measured: Option<&MeasuredCard>,
    ) -> Predicted {
        let busy = observed.busy(profile, measured, prediction);
        let of = |title: &str| {
            busy.iter()
                .find(|(resource, _)| resource.title() == title)
                .map(|(_, share)| *share)
        };
        let shares = shares().filter_map(|(key, title)| Some((key.to_string(), of(title)?)));
        let mut shares: BTreeMap<String, f64> = shares.collect();
        // The busiest unit of the SM; shared memory is not among those that ncu takes for it.
        let units = ["tensor", "mufu", "fma", "alu", "issue"];
        let busiest = units
            .iter()
            .filter_map(|key| shares.get(*key))
            .copied()
            .fold(0.0, f64::max);
        shares.insert("sm_busy".to_string(), busiest);
        if let Some(step) = prediction.steps.first() {
            let (fit, waves) = (&step.occupancy, step.waves.min(1.0));
            let warps = f64::from(fit.warps_per_sm) / f64::from(fit.max_warps_per_sm.max(1));
            shares.insert("occupancy".to_string(), 100.0 * warps * waves);
        }
        let hot = match prediction.binds {
            Bound::Resource(resource) if resource != Resource::Dram => resource,
            Bound::Resource(_) | Bound::Latency | Bound::Launch => Resource::Issue,
        };
        let mut lines: Vec<PredictedLine> = Vec::new();
        for hottest in observed.lines(hot, profile) {
            let line = place(&mut lines, hottest.line.file, hottest.line.line);
            line.share += 100.0 * hottest.share;
        }
        let (mut wavefronts, mut excess) = (0.0, 0.0);
        for accesses in observed.accesses().iter().filter(|accesses| accesses.is_shared()) {
            let beyond = (accesses.transactions - accesses.ideal).max(0.0);
            let line = place(&mut lines, accesses.line.file, accesses.line.line);
            line.wavefronts += accesses.transactions;
            line.wavefronts_excess += beyond;
            wavefronts += accesses.transactions;
            excess += beyond;
        }
        Predicted {
            card: profile.name.to_string(),
            micros: prediction.micros,
            binds: prediction.binds.title().to_string(),
            shares,
            wavefronts: wavefronts.round(),
            wavefronts_excess: excess.round(),
            lines,
        }
    }
}

/// The row of a line, which is added if it has none.
fn place<'a>(lines: &'a mut Vec<PredictedLine>, file: &str, line: u32) -> &'a mut PredictedLine {
    let at = lines.iter().position(|known| known.line == line && known.file == file);
    let at = at.unwrap_or_else(|| {
        lines.push(PredictedLine {
            file: file.to_string(),
            line,
            share: 0.0,
            wavefronts: 0.0,
            wavefronts_excess: 0.0,
        });
        lines.len() - 1
    });
    &mut lines[at]
}
