//! Hardware counters of kernels, read by NVIDIA Nsight Compute (`ncu`).
//!
//! [`Ncu`] finds the tool and runs a program under it, [`csv`] reads what it prints (on this
//! machine or on another), [`KernelProfile`] holds the counters of one launch, and a [`Verdict`]
//! compares one with its goal. [`Row::predicted`] is the cost model's prediction for the same
//! launch. Source of the metrics' names and meaning: Nsight Compute documentation, "Metrics
//! Structure" and "Metrics Reference".

pub mod csv;
mod ncu;

pub use ncu::{Ncu, NcuError};

use std::collections::BTreeMap;

use flashcore_check::cost::{Prediction, Resource};
use serde::{Deserialize, Serialize};

/// A counter that is read: its key in reports and JSON, ncu's name, a title, and its unit.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// Key in JSON.
    pub key: &'static str,
    /// ncu's name of the metric.
    pub metric: &'static str,
    /// Title in tables.
    pub title: &'static str,
    /// What the number is.
    pub unit: Unit,
    /// The resource of the cost model that it measures.
    pub resource: Option<Resource>,
}

/// What the number of a counter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Per cent of the most the device can sustain, over the launch.
    Percent,
    /// A number of things.
    Count,
    /// Nanoseconds.
    Nanoseconds,
    /// Bytes.
    Bytes,
}

const fn share(key: &'static str, metric: &'static str, title: &'static str, resource: Option<Resource>) -> Counter {
    Counter {
        key,
        metric,
        title,
        unit: Unit::Percent,
        resource,
    }
}

const fn number(key: &'static str, metric: &'static str, title: &'static str, unit: Unit) -> Counter {
    Counter {
        key,
        metric,
        title,
        unit,
        resource: None,
    }
}

/// Every counter that `flashcore profile` reads, in the order of its table.
pub const COUNTERS: [Counter; 17] = [
    share(
        "sm_busy",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "SM, busiest unit",
        None,
    ),
    share(
        "tensor",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "tensor cores",
        Some(Resource::Tensor),
    ),
    share(
        "mufu",
        "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",
        "exponentials (MUFU)",
        Some(Resource::Mufu),
    ),
    share(
        "fma",
        "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "FMA pipe",
        Some(Resource::Fma),
    ),
    share(
        "alu",
        "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "ALU pipe",
        Some(Resource::Alu),
    ),
    share(
        "issue",
        "sm__issue_active.avg.pct_of_peak_sustained_elapsed",
        "issue slots",
        Some(Resource::Issue),
    ),
    share(
        "shared",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed",
        "shared memory",
        Some(Resource::Shared),
    ),
    share(
        "l2",
        "l1tex__m_xbar2l1tex_read_bytes.sum.pct_of_peak_sustained_elapsed",
        "L2 to SM",
        Some(Resource::L2),
    ),
    share(
        "dram",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "device memory",
        Some(Resource::Dram),
    ),
    share(
        "occupancy",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "warps active",
        None,
    ),
    number("time_ns", "gpu__time_duration.sum", "time under ncu", Unit::Nanoseconds),
    number(
        "registers",
        "launch__registers_per_thread",
        "registers a thread",
        Unit::Count,
    ),
    number(
        "shared_bytes",
        "launch__shared_mem_per_block_dynamic",
        "dynamic shared memory a block",
        Unit::Bytes,
    ),
    number(
        "wavefronts",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
        "shared-memory wavefronts",
        Unit::Count,
    ),
    number(
        "wavefronts_excess",
        "derived__memory_l1_wavefronts_shared_excessive",
        "of them by bank conflicts",
        Unit::Count,
    ),
    number("dram_bytes", "dram__bytes_read.sum", "device memory read", Unit::Bytes),
    number(
        "instructions",
        "smsp__inst_executed.sum",
        "warp instructions",
        Unit::Count,
    ),
];

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
    /// Counters by [`Counter::key`]; what ncu could not read is missing.
    pub counters: BTreeMap<String, f64>,
    /// Share of the samples of resident warps by what they waited for, per cent; `selected` are
    /// those that issued.
    pub stalls: BTreeMap<String, f64>,
    /// Counters by Rust line, most sampled first; empty for code without line information.
    #[serde(default)]
    pub lines: Vec<LineProfile>,
}

impl KernelProfile {
    /// From a row of ncu's raw page: names of metrics with their values in base units.
    pub fn from_metrics(kernel: &str, grid: &str, block: &str, metrics: &BTreeMap<&str, f64>) -> KernelProfile {
        let counters = COUNTERS
            .iter()
            .filter_map(|counter| Some((counter.key.to_string(), *metrics.get(counter.metric)?)))
            .collect();
        let samples: Vec<(&str, f64)> = metrics
            .iter()
            .filter_map(|(name, samples)| Some((name.strip_prefix(STALLED)?, *samples)))
            .filter(|(reason, _)| !reason.ends_with("_not_issued"))
            .collect();
        let all: f64 = samples.iter().map(|(_, samples)| samples).sum();
        let stalls = samples
            .into_iter()
            .filter(|(_, samples)| *samples > 0.0)
            .map(|(reason, samples)| (reason.to_string(), 100.0 * samples / all))
            .collect();
        KernelProfile {
            kernel: kernel.to_string(),
            grid: grid.to_string(),
            block: block.to_string(),
            counters,
            stalls,
            lines: Vec::new(),
        }
    }

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
}

/// A counter of a launch, and the cost model's prediction of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// [`Counter::key`].
    pub key: &'static str,
    /// [`Counter::title`].
    pub title: &'static str,
    /// What ncu read.
    pub measured: Option<f64>,
    /// What the model predicts.
    pub predicted: Option<f64>,
}

/// Per cent of the predicted time that a resource is busy.
pub fn predicted_share(prediction: &Prediction, resource: Resource) -> f64 {
    let used = prediction.uses.iter().find(|used| used.resource == resource);
    used.map_or(0.0, |used| 100.0 * used.micros / prediction.micros)
}

/// The shares of a launch: measured, predicted, or both.
pub fn rows(profile: Option<&KernelProfile>, prediction: Option<&Prediction>) -> Vec<Row> {
    let row = |counter: &Counter| Row {
        key: counter.key,
        title: counter.title,
        measured: profile.and_then(|profile| profile.get(counter.key)),
        predicted: prediction
            .zip(counter.resource)
            .map(|(all, resource)| predicted_share(all, resource)),
    };
    let shares = COUNTERS.iter().filter(|counter| counter.unit == Unit::Percent);
    shares
        .map(row)
        .filter(|row| row.measured.is_some() || row.predicted.is_some())
        .collect()
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
    /// [`Counter::key`].
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
