//! Runs the judge: a Python process that ends at a deadline.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use flashcore_ir::files;
use serde::{Deserialize, Serialize};

use super::{Floor, Report};
use crate::process::Silence;
use crate::python::{Python, Runs};
use crate::{BenchError, Result};

const JUDGE: [(&str, &str); 6] = [
    ("judge.py", include_str!("judge/judge.py")),
    ("judge_arrays.py", include_str!("judge/judge_arrays.py")),
    ("judge_host.py", include_str!("judge/judge_host.py")),
    ("judge_link.py", include_str!("judge/judge_link.py")),
    ("judge_task.py", include_str!("judge/judge_task.py")),
    ("judge_times.py", include_str!("judge/judge_times.py")),
];

/// What the judge reads of a task's folder.
const TASK: [&str; 2] = ["config_forward.json", "func_forward.py"];

/// What is judged, and how.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Job {
    /// The task's folder.
    pub task: PathBuf,
    /// The kernel: `.cu` for PyTorch's extension loader, or `.py` with a function `forward`.
    pub kernel: PathBuf,
    /// `cuda`, `cuda:1`, `cpu`.
    pub device: String,
    /// All sizes of the task, not the first alone.
    pub multi: bool,
    /// Seeds of the benchmark's protocol.
    pub trials: usize,
    /// Absolute tolerance; `None`: 1e-3, and 1e-2 for bf16.
    pub atol: Option<f64>,
    /// Relative tolerance; as `atol`.
    pub rtol: Option<f64>,
    /// Seed of the inputs that the benchmark does not use.
    pub seed: u64,
    /// Calls before times are taken.
    pub warmup: usize,
    /// Calls of each of a round's three parts, a third of them in a batch and two thirds in another; more where that is
    /// too short to be timed.
    pub repetitions: usize,
    /// Rounds of candidate, reference, candidate.
    pub rounds: usize,
    /// What the device can do at most.
    pub floor: Floor,
    /// Folders of headers for the compiler, such as CUTLASS's.
    pub include: Vec<PathBuf>,
    /// Time for all of it, compiling included.
    #[serde(skip)]
    pub deadline: Duration,
}

/// A line that comes back.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Event {
    Started(String),
    Compiled(f64),
    Report(Box<Report>),
    Failed(Whose, String),
}

/// What it is that nothing can be judged for.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Whose {
    Task,
    Kernel,
    Machine,
}

/// Judges a kernel with the Python at `python`, and tells what it does.
///
/// # Errors
/// [`BenchError::Given`] for a task that cannot be judged: a file is missing, or its own function is
/// not repeatable. [`BenchError::Failed`] for a kernel that does not compile, ends the process or takes
/// longer than the deadline, with what it was doing. [`BenchError::Machine`] where Python, PyTorch or
/// the GPU is missing.
pub fn verify(python: &str, job: &Job, mut tell: impl FnMut(&str)) -> Result<Report> {
    let broken = |reason: String| BenchError::Machine(format!("{python}: {reason}"));
    // Python would wait for a FIFO, and read a file of any length.
    for file in TASK.map(|name| job.task.join(name)).iter().chain([&job.kernel]) {
        let read = files::read_capped(file, files::SMALL);
        read.map_err(|error| BenchError::Given(format!("{}: {error}", file.display())))?;
    }
    let folder = tempfile::tempdir().map_err(|error| broken(format!("no temporary folder: {error}")))?;
    for (name, text) in JUDGE {
        std::fs::write(folder.path().join(name), text).map_err(|error| broken(error.to_string()))?;
    }
    let judge = folder.path().join(JUDGE[0].0);
    let child = Python::named(python)
        .map_err(&broken)?
        .child(Runs::File(&judge), [""; 0]);
    let started = Instant::now();
    let mut process = child.start(job, true).map_err(&broken)?;
    let mut doing = "starting".to_string();
    let ended = loop {
        let left = job.deadline.saturating_sub(started.elapsed());
        let line = match process.next(Some(left)) {
            Ok(line) => line,
            Err(Silence::Timeout) => {
                let seconds = job.deadline.as_secs_f64();
                return Err(BenchError::Failed(format!(
                    "{}: it was stopped after {seconds:.0} s, at: {doing}",
                    job.kernel.display()
                )));
            }
            Err(Silence::Ended(ended)) => break ended,
            Err(Silence::Unreadable(error)) => return Err(broken(error.to_string())),
        };
        match serde_json::from_str(&line) {
            Ok(Event::Started(what)) => {
                tell(&what);
                doing = what;
            }
            Ok(Event::Compiled(seconds)) => tell(&format!("compiled in {seconds:.1} s")),
            Ok(Event::Report(report)) => return Ok(*report),
            Ok(Event::Failed(Whose::Task, why)) => return Err(BenchError::Given(why)),
            Ok(Event::Failed(Whose::Kernel, why)) => return Err(BenchError::Failed(why)),
            Ok(Event::Failed(Whose::Machine, why)) => return Err(broken(why)),
            Err(error) => return Err(broken(format!("the judge said `{line}`: {error}"))),
        }
    };
    let (status, said) = (ended.status(), ended.last_words());
    let kernel = job.kernel.display();
    if let Some(why) = ended.outside() {
        return Err(broken(format!(
            "{why}, at: {doing}: nothing is known of {kernel}; run it again"
        )));
    }
    Err(BenchError::Failed(format!(
        "{kernel}: the process ended ({status}) at: {doing}: {said}"
    )))
}
