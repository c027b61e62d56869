//! What the judge found out about a kernel.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::document::in_markdown;

/// Whose check it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// robust-kbench's own protocol.
    Protocol,
    /// What that protocol does not look at.
    Ours,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The kernel did what is expected.
    Pass,
    /// It did not.
    Fail,
    /// It was not checked; the detail says why.
    Skip,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// A short stable name, such as `stale`.
    pub id: String,
    /// Whose check it is.
    pub group: Group,
    /// What is expected of a kernel.
    pub title: String,
    /// How it ended.
    pub status: Status,
    /// What was seen, or why it was not checked.
    pub detail: String,
}

/// Times of a call, µs, each from two batches of calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub median_us: f64,
    /// Distance of the quartiles.
    pub iqr_us: f64,
    /// How many pairs of batches.
    pub samples: usize,
}

/// Times by the benchmark's protocol: candidate, reference, candidate, in turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// The kernel's.
    pub candidate: Summary,
    /// The task's own function's.
    pub reference: Summary,
    /// Reference over candidate: the median of the rounds' ratios.
    pub speedup: f64,
    /// The smallest ratio of a round.
    pub speedup_low: f64,
    /// The largest.
    pub speedup_high: f64,
    /// Rounds.
    pub rounds: usize,
    /// µs that the device needs at least for a call: the roofline's floor.
    pub floor_us: f64,
    /// µs a call until the caller's stream is done, when many are enqueued; `None` on the CPU.
    pub enqueued_us: Option<f64>,
    /// The same until the device is idle.
    pub until_idle_us: Option<f64>,
}

/// Where it was judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The GPU's name, or `CPU`.
    pub device: String,
    /// Python's version.
    pub python: String,
    /// PyTorch's version; `None` for a task of other arrays.
    pub torch: Option<String>,
    /// The CUDA version that PyTorch was built with; `None` on the CPU.
    pub cuda: Option<String>,
}

/// What the judge found out about a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// SHA-256 of the kernel's file.
    pub kernel_sha256: String,
    /// Where it was judged.
    pub machine: Machine,
    /// Each check in the order they ran. Where the protocol's fails, there is no other.
    pub checks: Vec<Check>,
    /// Times; `None` where the output is wrong.
    pub times: Option<Times>,
    /// What a reader should know that is no failure.
    pub notes: Vec<String>,
}

impl Report {
    /// Whether the benchmark's own protocol passes it.
    pub fn passes_protocol(&self) -> bool {
        let mut checks = self.checks.iter().filter(|check| check.group == Group::Protocol);
        checks.all(|check| check.status == Status::Pass)
    }

    /// Whether every check that ran passes.
    pub fn passes(&self) -> bool {
        self.passes_protocol() && self.failed().next().is_none()
    }

    /// The checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.status == Status::Fail)
    }

    /// The verdict in a sentence.
    pub fn verdict(&self) -> String {
        let failed: Vec<&str> = self.failed().map(|check| check.id.as_str()).collect();
        match (self.passes_protocol(), failed.as_slice()) {
            (_, []) => "passes the benchmark's protocol and every check".to_string(),
            (true, failed) => format!("passes the benchmark's protocol and fails: {}", failed.join(", ")),
            (false, _) => "fails the benchmark's protocol".to_string(),
        }
    }

    /// The report as Markdown, with a title.
    pub fn markdown(&self, title: &str) -> String {
        let title = in_markdown(title);
        let mut text = format!("# {title}\n\nThe kernel {}.\n\n", in_markdown(&self.verdict()));
        let _ = writeln!(text, "| check | expected | result | seen |\n|---|---|---|---|");
        for check in &self.checks {
            let status = match check.status {
                Status::Pass => "pass",
                Status::Fail => "**fail**",
                Status::Skip => "not checked",
            };
            let [id, title, detail] = [&check.id, &check.title, &check.detail].map(|text| in_markdown(text));
            let _ = writeln!(text, "| {id} | {title} | {status} | {detail} |");
        }
        if let Some(times) = &self.times {
            let _ = writeln!(
                text,
                "\n| µs | mean | median | quartile distance | pairs of batches |\n|---|---|---|---|---|"
            );
            for (name, summary) in [("kernel", &times.candidate), ("reference", &times.reference)] {
                let (mean, median, iqr) = (summary.mean_us, summary.median_us, summary.iqr_us);
                let _ = writeln!(
                    text,
                    "| {name} | {mean:.2} | {median:.2} | {iqr:.2} | {} |",
                    summary.samples
                );
            }
            let (low, high) = (times.speedup_low, times.speedup_high);
            let (speedup, rounds) = (times.speedup, times.rounds);
            let _ = writeln!(
                text,
                "\nThe reference takes {speedup:.2} times as long ({low:.2} to {high:.2} in {rounds} rounds). \
                 {} needs {:.3} µs at least.",
                self.machine.device, times.floor_us
            );
        }
        if !self.notes.is_empty() {
            let _ = writeln!(text);
        }
        for note in &self.notes {
            let _ = writeln!(text, "- {}", in_markdown(note));
        }
        let machine = &self.machine;
        let or = |version: &Option<String>| version.clone().unwrap_or_else(|| "none".to_string());
        let _ = writeln!(
            text,
            "\n{}; Python {}, PyTorch {}, CUDA {}; SHA-256 of the kernel {}.",
            machine.device,
            machine.python,
            or(&machine.torch),
            or(&machine.cuda),
            self.kernel_sha256
        );
        text
    }
}
