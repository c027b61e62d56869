//! Hardware counters of kernels, read by NVIDIA Nsight Compute (`ncu`).
//!
//! [`Ncu`] finds the tool and runs a program under it, [`Profiler`] a kernel or a peer, and [`csv`] reads what ncu
//! prints (on this machine or on another). [`KernelProfile`] holds the counters of one launch, a [`Verdict`] compares
//! one with its goal, [`Predicted`] is what simulator and cost model say of the same call, and [`ProfileRecord`] is
//! what the evidence store keeps. Source of the metrics' names and meaning: Nsight Compute documentation, "Metrics
//! Structure" and "Metrics Reference".

mod child;
pub mod csv;
mod insights;
mod metrics;
mod ncu;
mod predicted;
mod profiler;
mod record;

pub use child::{Launch, Said};
pub use insights::{Cause, Insight, Wait, insights};
pub use ncu::{Ncu, NcuError};
pub use predicted::{Predicted, PredictedLine};
pub use profiler::{Peers, Profiler};
pub use record::ProfileRecord;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// A counter that is read, and ncu's names of the metrics that say it.
#[derive(Debug, Deserialize)]
struct Counter {
    /// Its key in JSON.
    key: &'static str,
    /// ncu's name of the metric, with `%` for `pct_of_peak_sustained`.
    metric: &'static str,
    /// Of a share of the most that the device can sustain over the launch, per cent: its title in the table of
    /// `flashcore profile`. If the cost model has a resource of that title, the counter measures it.
    title: Option<&'static str>,
    /// Other metrics that measure the same, the best first, or labels of ncu's details page. Of a share they are bases
    /// of names (`dram__throughput` of `dram__throughput.avg.pct_of_peak_sustained_elapsed`). Those of older chips and
    /// of ncu before 2022 are among them.
    #[serde(default)]
    also: Vec<&'static str>,
    /// The two metrics by which ncu gives it for loads and for stores.
    parts: Option<[&'static str; 2]>,
}

/// Every counter that is read, shares first, in the order of the table of `flashcore profile`.
static COUNTERS: LazyLock<Vec<Counter>> = LazyLock::new(|| listed(include_str!("counters.json")));

/// What a file of this folder lists.
fn listed<T: Deserialize<'static>>(text: &'static str) -> Vec<T> {
    serde_json::from_str(text).unwrap_or_else(|error| unreachable!("a list of this crate is wrong: {error}"))
}

/// Every counter that is read: its key, and ncu's name of the metric.
fn counters() -> impl Iterator<Item = (&'static str, String)> {
    let named = |counter: &Counter| (counter.key, counter.metric.replace('%', "pct_of_peak_sustained"));
    COUNTERS.iter().map(named)
}

/// The keys and titles of those that are shares.
fn shares() -> impl Iterator<Item = (&'static str, &'static str)> {
    COUNTERS
        .iter()
        .filter_map(|counter| Some((counter.key, counter.title?)))
}

/// What ncu calls the samples of warps that wait for a reason: the reason follows.
const STALLED: &str = "smsp__pcsamp_warps_issue_stalled_";

/// Counters of one launch of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelProfile {
    /// Name of the kernel's entry, as ncu prints it.
    pub kernel: String,
    /// Blocks, as ncu prints them: `(132, 1, 1)`.
    pub grid: String,
    /// Threads a block, likewise.
    pub block: String,
    /// Counters by key; what ncu could not read is missing.
    pub counters: BTreeMap<String, f64>,
    /// Share of the samples of resident warps by what they waited for, per cent; `selected` are
    /// those that issued.
    pub stalls: BTreeMap<String, f64>,
    /// Counters by Rust line, most sampled first; empty for code without line information.
    #[serde(default)]
    pub lines: Vec<LineProfile>,
}

impl KernelProfile {
    /// A counter by its key.
    pub fn get(&self, key: &str) -> Option<f64> {
        self.counters.get(key).copied()
    }

    /// Reasons to wait by their share, largest first, without the warps that issued.
    pub fn waits(&self) -> Vec<(&str, f64)> {
        let mut waits: Vec<(&str, f64)> = self
            .stalls
            .iter()
            .filter(|(reason, _)| *reason != "selected")
            .map(|(reason, share)| (reason.as_str(), *share))
            .collect();
        waits.sort_by(|a, b| b.1.total_cmp(&a.1));
        waits
    }
}

/// Counters of one line of a kernel's Rust source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LineProfile {
    /// File, relative to the repository.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Its text, where ncu found the file.
    pub source: String,
    /// Samples of warps that were at the line.
    pub samples: f64,
    /// Warp instructions executed.
    pub instructions: f64,
    /// Shared-memory wavefronts.
    pub wavefronts: f64,
    /// Of them, how many bank conflicts added.
    pub wavefronts_excess: f64,
    /// What most of the sampled warps waited for, in ncu's word (`long_sb`, `wait`, `math`); `None` where ncu says
    /// nothing of it.
    pub waits_for: Option<String>,
}

/// A counter of a launch, and the cost model's prediction of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The counter's key.
    pub key: &'static str,
    /// Its title in tables.
    pub title: &'static str,
    /// What ncu read.
    pub measured: Option<f64>,
    /// What the model predicts.
    pub predicted: Option<f64>,
}

/// The shares of a launch: measured, predicted, or both.
pub fn rows(launch: Option<&KernelProfile>, predicted: Option<&Predicted>) -> Vec<Row> {
    let row = |(key, title)| Row {
        key,
        title,
        measured: launch.and_then(|launch| launch.get(key)),
        predicted: predicted.and_then(|predicted| predicted.shares.get(key).copied()),
    };
    shares()
        .map(row)
        .filter(|row| row.measured.is_some() || row.predicted.is_some())
        .collect()
}

/// A line of a kernel: what ncu sampled and counted there, and what is predicted of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LineRow {
    /// File, relative to the repository.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Its share of the samples of warps, per cent.
    pub samples: Option<f64>,
    /// What ncu counted.
    pub measured: Option<LineProfile>,
    /// What is predicted.
    pub predicted: Option<PredictedLine>,
}

/// The lines of a launch: the most sampled first, then those that are only predicted.
pub fn lines(launch: Option<&KernelProfile>, predicted: Option<&Predicted>) -> Vec<LineRow> {
    let measured = launch.map_or(&[][..], |launch| &launch.lines);
    let predicted = predicted.map_or(&[][..], |predicted| &predicted.lines);
    let all: f64 = measured.iter().map(|line| line.samples).sum();
    // ncu gives the path that it resolved, which ends as the kernel's does.
    let same = |line: &LineProfile, of: &PredictedLine| line.line == of.line && line.file.ends_with(&of.file);
    let mut rows: Vec<LineRow> = Vec::new();
    for line in measured {
        let of = predicted.iter().find(|of| same(line, of));
        rows.push(LineRow {
            file: of.map_or(&line.file, |of| &of.file).clone(),
            line: line.line,
            samples: (all > 0.0).then(|| 100.0 * line.samples / all),
            measured: Some(line.clone()),
            predicted: of.cloned(),
        });
    }
    for of in predicted
        .iter()
        .filter(|of| !measured.iter().any(|line| same(line, of)))
    {
        rows.push(LineRow {
            file: of.file.clone(),
            line: of.line,
            samples: None,
            measured: None,
            predicted: Some(of.clone()),
        });
    }
    rows
}

/// Shares that a kernel should reach, per cent. The defaults are the reports' own targets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goals {
    /// Busiest unit of the SM.
    pub sm: f64,
    /// Device memory, where it binds.
    pub dram: f64,
    /// Tensor cores.
    pub tensor: f64,
}

impl Default for Goals {
    fn default() -> Goals {
        Goals {
            sm: 70.0,
            dram: 65.0,
            tensor: 30.0,
        }
    }
}

/// A row of the verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The counter's key.
    pub key: &'static str,
    /// What was measured, per cent.
    pub measured: f64,
    /// What it should be at least, per cent.
    pub goal: f64,
    /// Whether it is; `None` where the goal does not apply, because another resource binds.
    pub reached: Option<bool>,
}

/// Compares a launch with the goals. Device memory binds where it is busier than the SM; there, the
/// goals of the SM and of its tensor cores do not apply, and elsewhere that of device memory does
/// not.
pub fn verdicts(profile: &KernelProfile, goals: &Goals) -> Vec<Verdict> {
    let memory_binds = profile.get("dram") > profile.get("sm_busy");
    [
        ("sm_busy", goals.sm, !memory_binds),
        ("tensor", goals.tensor, !memory_binds),
        ("dram", goals.dram, memory_binds),
    ]
    .into_iter()
    .filter_map(|(key, goal, applies)| {
        let measured = profile.get(key)?;
        Some(Verdict {
            key,
            measured,
            goal,
            reached: applies.then_some(measured >= goal),
        })
    })
    .collect()
}

#[cfg(test)]
mod tests;
