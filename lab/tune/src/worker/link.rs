//! The parent's side of a worker: starts it, sends commands with a deadline, kills it if it hangs
//! or has lost its device, and starts another one.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use flashcore_bench::Needs;
use flashcore_bench::process::{Process, Program, Silence};
use flashcore_check::sandbox::{self, Confinement, Policy};
use serde::de::DeserializeOwned;

use super::deadlines::Deadlines;
use super::protocol::{Answer, Ask, Command, Hello, PROTOCOL, Said};
use crate::error::TuneError;
use crate::trial::Verdict;

/// Bytes of an answer at most.
const LONGEST: u64 = 1 << 20;

/// Why a command has no result.
#[derive(Debug)]
pub(crate) enum Stop {
    Verdict(Verdict, String),
    /// The worker died or lost its device, perhaps because of the candidate.
    Died(String),
    /// The worker was killed from outside, or the machine ran out of something: no candidate is to blame.
    Outside(String),
    /// An error that no candidate causes.
    Broken(TuneError),
}

impl From<TuneError> for Stop {
    fn from(error: TuneError) -> Stop {
        Stop::Broken(error)
    }
}

impl Stop {
    pub(crate) fn of((verdict, reason): (Verdict, String)) -> Stop {
        match verdict {
            Verdict::EnvironmentFailed => Stop::Outside(reason),
            _ => Stop::Verdict(verdict, reason),
        }
    }

    pub(crate) fn blamed(self) -> Result<(Verdict, String), TuneError> {
        match self {
            Stop::Verdict(verdict, reason) => Ok((verdict, reason)),
            Stop::Died(reason) => Ok((Verdict::LaunchFailed, reason)),
            Stop::Outside(reason) => Err(TuneError::Environment(reason)),
            Stop::Broken(error) => Err(error),
        }
    }

    pub(crate) fn reason(self) -> String {
        self.blamed()
            .map_or_else(|error| error.to_string(), |(_, reason)| reason)
    }
}

/// A worker. It is started by its first command, and again after it was lost.
#[derive(Debug)]
pub(crate) struct Worker {
    program: Program,
    pub(crate) device: String,
    deadlines: Deadlines,
    /// What confines it, where it handles kernels of users.
    policy: Option<Policy>,
    live: Option<Process>,
    /// Its identity when it was first started; every later one must be the same.
    hello: Option<Hello>,
    asked: u64,
    pub(crate) started: usize,
    /// Of the open problem, and how many kernels are open.
    needs: (Needs, usize),
}

impl Worker {
    /// A worker for a device: `cpu`, `cuda:N`, `replay:FILE`, `predict:CARD`. Nothing is started yet.
    pub(crate) fn new(program: Program, device: &str, deadlines: Deadlines) -> Worker {
        Worker {
            program,
            device: device.to_string(),
            deadlines,
            policy: None,
            live: None,
            hello: None,
            asked: 0,
            started: 0,
            needs: Default::default(),
        }
    }

    /// Confines it.
    pub(crate) fn confined(self, policy: Option<Policy>) -> Worker {
        Worker { policy, ..self }
    }

    #[cfg(test)]
    pub(crate) fn process(&self) -> Option<u32> {
        self.live.as_ref().map(Process::id)
    }

    /// Its identity. Starts it if it is not running.
    pub(crate) fn hello(&mut self) -> Result<&Hello, TuneError> {
        if self.live.is_none() {
            // Something may have killed it while it started, so this is tried twice.
            let hello = self.start().or_else(|_| self.start());
            self.hello = Some(hello.map_err(|reason| self.failed(reason))?);
        }
        self.hello
            .as_ref()
            .ok_or_else(|| self.failed("it has no identity".to_string()))
    }

    fn failed(&self, reason: String) -> TuneError {
        TuneError::worker(&self.device, reason)
    }

    fn start(&mut self) -> Result<Hello, String> {
        let program = Program {
            path: running_program(&self.program.path),
            ..self.program.clone()
        };
        let mut command = program.command();
        command.env("RUST_BACKTRACE", "0").stderr(Stdio::piped());
        // Ctrl-C is for the parent: it finishes the current candidate, and the worker ends when its
        // input is closed.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        if let Some(policy) = &self.policy {
            sandbox::wrap(&mut command, policy, Confinement::Sandboxed).map_err(|error| error.to_string())?;
        }
        let path = self.program.path.display();
        let process = Process::start(&mut command, LONGEST).map_err(|reason| format!("{path}: {reason}"))?;
        self.live = Some(process);
        self.started += 1;
        let (protocol, device) = (PROTOCOL, self.device.clone());
        let hello: Result<Hello, Stop> = self.exchange(&Command::Hello { protocol, device });
        let started = match (hello, &self.hello) {
            (Ok(hello), Some(first)) if *first != hello => Err(changed(first, &hello)),
            (hello, _) => hello.map_err(Stop::reason),
        };
        if started.is_err() {
            self.live = None;
        }
        started
    }

    /// Sends a command and waits until its deadline. A worker that hangs, dies or loses its device
    /// is killed, and the next command starts another one.
    pub(crate) fn ask<T: DeserializeOwned>(&mut self, command: &Command) -> Result<T, Stop> {
        self.hello()?;
        self.exchange(command)
    }

    fn exchange<T: DeserializeOwned>(&mut self, command: &Command) -> Result<T, Stop> {
        if let Command::Open { problem, kernels, .. } = command {
            self.needs = (Needs::of(problem, &self.device), kernels.len());
        }
        let (doing, allowed) = self.deadlines.of(command, self.needs);
        let died = |how: String| Stop::Died(format!("its worker died while {doing}: {how}"));
        self.asked += 1;
        let ask = Ask {
            id: self.asked,
            command: command.clone(),
        };
        let question = serde_json::to_string(&ask).map_err(|error| died(error.to_string()))?;
        // Returned to its place only if it can be used again.
        let Some(mut live) = self.live.take() else {
            return Err(died("it was not running".to_string()));
        };
        let line = match live.ask(question, allowed) {
            Ok(line) => line,
            Err(Silence::Timeout) => {
                let seconds = allowed.as_secs_f64();
                let reason = format!("no answer while {doing} within {seconds:.1} s; its worker was killed");
                return Err(Stop::Verdict(Verdict::Hung, reason));
            }
            Err(Silence::Ended(end)) if end.outside().is_some() => {
                let how = Silence::Ended(end);
                return Err(Stop::Outside(format!("while its worker was {doing}, {how}")));
            }
            Err(silence) => return Err(died(silence.to_string())),
        };
        let answer = serde_json::from_str(&line).ok();
        let no_answer = || {
            let shown: String = line.chars().take(200).collect();
            died(format!("it wrote `{shown}`, which is no answer"))
        };
        match answer.map(|answer: Answer| (answer.id, answer.said)) {
            Some((_, Said::Failed(failed))) if failed.fatal && failed.verdict != Verdict::EnvironmentFailed => {
                Err(Stop::Died(failed.reason))
            }
            Some((_, Said::Failed(failed))) => {
                self.live = Some(live).filter(|_| failed.verdict != Verdict::EnvironmentFailed);
                Err(Stop::of((failed.verdict, failed.reason)))
            }
            Some((_, Said::Unwritten { file, reason })) => {
                self.live = Some(live);
                Err(Stop::Broken(TuneError::file(&file, reason)))
            }
            Some((id, Said::Ok(value))) if id == ask.id => {
                let value = serde_json::from_value(value).map_err(|_| no_answer())?;
                self.live = Some(live);
                Ok(value)
            }
            _ => Err(no_answer()),
        }
    }
}

/// The program at a path, or the running one, which Linux keeps, if a build has replaced its file.
fn running_program(path: &Path) -> PathBuf {
    let own = PathBuf::from("/proc/self/exe");
    let mut replaced = path.as_os_str().to_os_string();
    replaced.push(" (deleted)");
    match std::fs::read_link(&own) {
        Ok(target) if target.as_os_str() == replaced => own,
        _ => path.to_path_buf(),
    }
}

/// Why results of a worker that was restarted as another one do not compare with earlier ones.
fn changed(then: &Hello, now: &Hello) -> String {
    let what = |hello: &Hello| {
        let (device, revision) = (&hello.device, &hello.revision);
        let on = format!("{} ({}, driver {})", device.name, device.uuid, device.driver);
        format!("program {:.12} of revision {revision} on {on}", hello.executable)
    };
    let (then, now) = (what(then), what(now));
    format!(
        "it was restarted and is not what it was: {then} then, {now} now; resume the run with the program that began it"
    )
}

#[cfg(all(test, unix))]
mod tests;
