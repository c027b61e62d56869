//! Profiles kernels and peers: starts the process that calls one under ncu, and reads what ncu counted.

use std::path::PathBuf;
use std::process::Stdio;

use flashcore_kernels::Plan;
use serde::Deserialize;

use super::child::{Launch, Said, WARM_UP, of_python};
use super::ncu::{Ncu, NcuError, Range};
use super::{KernelProfile, ProfileRecord};
use crate::process::Program;
use crate::python::{Python, Runs};
use crate::{Case, LaunchMode, Own, SubjectInfo};

/// The module of the Python package that calls a peer.
const PEER_MODULE: Runs = Runs::Module("flashcore_attn._profile");

/// Profiles with one ncu.
#[derive(Clone, Debug)]
pub struct Profiler {
    /// The tool.
    pub ncu: Ncu,
    /// The program whose `worker --launch` calls a kernel: `flashcore`.
    pub program: PathBuf,
}

/// The peers that a Python has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Peers {
    /// Labels of those that can run on a CUDA device.
    pub found: Vec<String>,
    /// Those that cannot, each with the reason.
    pub absent: Vec<(String, String)>,
}

impl Profiler {
    /// Reads the counters of one call of a plan. Its main kernel is the first launch of the record.
    ///
    /// # Errors
    /// [`NcuError`]: ncu's reason, or the process's own.
    pub fn kernel(&self, case: &Case, plan: &Plan, device: &str) -> Result<ProfileRecord, NcuError> {
        let launch = Launch {
            problem: case.problem.clone(),
            kernel: plan.config.to_string(),
            device: device.to_string(),
            own: None,
        };
        // Before a backward pass the process calls a forward pass, whose kernels have other names.
        let names = std::iter::once(&plan.main).chain(&plan.before).chain(&plan.then);
        let names = names.map(|step| step.kernel.name().to_string());
        self.launched(case, &launch, names.collect(), plan.steps().count())
    }

    /// Reads the counters of one call of a kernel of the user, whatever a Python function launches. It should have been
    /// judged before: it has no deadline here.
    ///
    /// # Errors
    /// As [`kernel`](Profiler::kernel), and a Python function without a Python.
    pub fn own(
        &self,
        python: Option<&Python>,
        case: &Case,
        own: &Own,
        device: &str,
    ) -> Result<ProfileRecord, NcuError> {
        if own.is_python() {
            let python = python.ok_or_else(|| NcuError::Failed("there is no Python for it".to_string()))?;
            return self.called(python, case, &own.label, Some(own), device);
        }
        let launch = Launch {
            problem: case.problem.clone(),
            kernel: own.label.clone(),
            device: device.to_string(),
            own: Some((own.word(), own.sha256.clone())),
        };
        self.launched(case, &launch, Vec::new(), 1)
    }

    fn launched(
        &self,
        case: &Case,
        launch: &Launch,
        names: Vec<String>,
        steps: usize,
    ) -> Result<ProfileRecord, NcuError> {
        let text = serde_json::to_string(launch).map_err(|error| NcuError::Failed(error.to_string()))?;
        let program = Program {
            path: self.program.clone(),
            args: vec!["worker".into(), "--launch".into(), text.into()],
            env: Vec::new(),
        };
        let range = Range::Launches {
            names,
            skip: WARM_UP * steps,
            count: steps,
        };
        let (launches, said) = self.ncu.profile(&range, &program)?;
        let kernel = &launch.kernel;
        let unknown = || SubjectInfo {
            kernel: launch.own.is_none().then(|| kernel.clone()),
            ..SubjectInfo::new(kernel, LaunchMode::Plain)
        };
        self.record(case, launches, &said, unknown)
    }

    /// Reads the counters of one call of a peer, whatever it launches.
    ///
    /// # Errors
    /// As [`kernel`](Profiler::kernel), and the reason of a peer that does not serve the problem.
    pub fn peer(&self, python: &Python, case: &Case, peer: &str, device: &str) -> Result<ProfileRecord, NcuError> {
        self.called(python, case, peer, None, device)
    }

    fn called(
        &self,
        python: &Python,
        case: &Case,
        label: &str,
        own: Option<&Own>,
        device: &str,
    ) -> Result<ProfileRecord, NcuError> {
        let job = of_python(&case.problem, label, own, device);
        let program = python.child(PEER_MODULE, [job.to_string()]);
        let (launches, said) = self.ncu.profile(&Range::Marked, &program)?;
        self.record(case, launches, &said, || SubjectInfo::new(label, LaunchMode::Plain))
    }

    fn record(
        &self,
        case: &Case,
        launches: Vec<KernelProfile>,
        said: &str,
        unknown: impl FnOnce() -> SubjectInfo,
    ) -> Result<ProfileRecord, NcuError> {
        let subject = match Said::in_text(said) {
            Some(Said::Subject(subject)) => *subject,
            Some(Said::Failed(reason)) => return Err(NcuError::Failed(reason)),
            None => unknown(),
        };
        Ok(ProfileRecord {
            case: case.clone(),
            subject,
            tool: format!("ncu {}", self.ncu.version),
            launches,
            predicted: None,
        })
    }
}

impl Peers {
    /// The peers that a Python can call on CUDA devices.
    ///
    /// # Errors
    /// One sentence with what Python said.
    pub fn of(python: &Python) -> Result<Peers, String> {
        let mut command = python.child(PEER_MODULE, ["list"]).command();
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("no peers: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let list = said.lines().rev().find_map(|line| serde_json::from_str(line).ok());
        let errors = String::from_utf8_lossy(&output.stderr);
        let why = || {
            errors
                .lines()
                .rfind(|line| !line.trim().is_empty())
                .unwrap_or("it said nothing")
                .to_string()
        };
        list.ok_or_else(|| format!("no peers: {}: {}", python.executable().display(), why()))
    }

    /// The wanted ones that are there, and a sentence for each of the others. `all` stands for every one.
    pub fn wanted(&self, labels: &[String]) -> (Vec<String>, Vec<String>) {
        let all = labels.iter().any(|label| label == "all");
        let known = || self.found.iter().chain(self.absent.iter().map(|(label, _)| label));
        let labels: Vec<&String> = if all {
            known().collect()
        } else {
            labels.iter().collect()
        };
        let (mut there, mut notes) = (Vec::new(), Vec::new());
        for label in labels {
            if self.found.contains(label) {
                there.push(label.clone());
            } else if let Some((_, reason)) = self.absent.iter().find(|(absent, _)| absent == label) {
                notes.push(format!("{label}: {reason}"));
            } else {
                let known: Vec<&str> = known().map(String::as_str).collect();
                notes.push(format!(
                    "{label}: no peer has this name; there are {}",
                    known.join(", ")
                ));
            }
        }
        (there, notes)
    }
}
