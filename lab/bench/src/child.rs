//! A bench in a child process, so that a user's kernel that hangs or faults costs itself and nothing else: the child
//! says which kernel runs; where it dies, loses its device or is silent for too long meanwhile, it is ended, and
//! another one goes on without that kernel. [`serve`] is the child's side.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use flashcore::Device;
use flashcore_problem::Problem;
use serde::{Deserialize, Serialize};

use crate::patience::Needs;
use crate::process::{Process, Program, Silence};
use crate::{BenchError, Build, CaseResult, Event, Report, Request, Result, Store, Watcher};

/// Seconds that a run of a user's kernel may take, in addition to what the problem's size needs.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// How many times as long as a run its first call may take, which may compile, and building it before that.
const FIRST_CALL: u32 = 6;
const BUILD: u32 = 30;

/// Bytes of an event: a report of many problems is one.
pub(crate) const LONGEST: u64 = 1 << 30;

/// What is sent to the process, in one line.
#[derive(Clone, Debug, Serialize)]
pub struct Job {
    /// `cpu`, `cuda:0`.
    pub device: String,
    /// Which peers, by label; `None`: all that are found, which is sent as `"all"`.
    #[serde(serialize_with = "all_or_named")]
    pub peers: Option<Vec<String>>,
    /// The evidence store to write to.
    pub store: Option<PathBuf>,
    /// The build that sends it: a Python package of another one refuses.
    pub build: Build,
    /// Whether the process is to end when its input does: set for kernels of the user, which may hang.
    pub attended: bool,
    /// The bench.
    pub request: Request,
}

fn all_or_named<S: serde::Serializer>(peers: &Option<Vec<String>>, to: S) -> Result<S::Ok, S::Error> {
    match peers {
        None => to.serialize_str("all"),
        Some(names) => names.serialize(to),
    }
}

/// What a child without peers reads of a [`Job`].
#[derive(Deserialize)]
struct Asked {
    device: String,
    store: Option<PathBuf>,
    request: Request,
}

/// What is happening to a user's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    /// Its file is run or compiled.
    Building,
    /// It is called for the first time.
    Calling,
    /// Its output is inspected.
    Inspecting,
    /// It is timed.
    Timing,
}

impl std::fmt::Display for Doing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

impl Doing {
    /// How long it may take.
    fn allowed(self, run: Duration, needs: Needs) -> Duration {
        match self {
            Doing::Building => run * BUILD,
            Doing::Calling => run * FIRST_CALL + needs.runs(8),
            // Some runs on both sets of tensors, which are loaded and read.
            Doing::Inspecting => run * 2 + needs.runs(8) + needs.copies(16),
            Doing::Timing => run + needs.runs(16),
        }
    }
}

/// A line that comes back.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Said {
    Report(Box<Report>),
    Failed(String),
    #[serde(untagged)]
    Event(Event),
}

/// How a child ended.
enum End {
    Report(Box<Report>),
    /// A user's kernel ended it: the label, and how.
    Blamed(String, String),
}

/// What is known of a bench that goes through several children.
struct Progress<'w> {
    watcher: &'w mut dyn Watcher,
    deadline: Duration,
    device: String,
    /// Problems of earlier children, and of all.
    before: usize,
    count: usize,
    /// The problem that is benched, from 0 among those of this child.
    at: usize,
    problem: Option<Problem>,
    notes: Vec<String>,
    /// Results of this child, and of earlier ones.
    results: Vec<CaseResult>,
    finished: Vec<CaseResult>,
}

impl Program {
    /// Benches in a child process, and passes on what happens. A kernel of the user that hangs or ends the process is
    /// in [`Report::failed`], and the rest of the bench is done without it.
    ///
    /// # Errors
    /// [`BenchError::Machine`] with what the process said if it did not end in a report.
    pub fn bench(&self, job: &Job, deadline: Duration, watcher: &mut dyn Watcher) -> Result<Report> {
        let mut job = job.clone();
        job.attended = !job.request.own.is_empty();
        let mut progress = Progress {
            watcher,
            deadline,
            device: job.device.clone(),
            before: 0,
            count: job.request.cases.len(),
            at: 0,
            problem: None,
            notes: Vec::new(),
            results: Vec::new(),
            finished: Vec::new(),
        };
        loop {
            match self.once(&job, &mut progress)? {
                End::Report(mut report) => {
                    let earlier = std::mem::take(&mut progress.notes);
                    report.notes.retain(|note| !earlier.contains(note));
                    report.notes.splice(0..0, earlier);
                    report.results.splice(0..0, std::mem::take(&mut progress.finished));
                    report.failed.clone_from(&job.request.failed);
                    return Ok(*report);
                }
                End::Blamed(label, reason) => {
                    if job.request.failed.iter().any(|(failed, _)| *failed == label) {
                        let why = format!("{label} was run again after it had failed ({reason})");
                        return Err(BenchError::Device(why));
                    }
                    progress.watcher.see(Event::Inspected(label.clone(), reason.clone()));
                    job.request.failed.push((label, reason));
                    progress.finished.append(&mut progress.results);
                    job.request.cases.drain(..progress.at);
                    progress.before += progress.at;
                    progress.at = 0;
                }
            }
        }
    }

    /// Starts the process and sends it a job in a line. An attended one keeps its input, at whose end it is to end.
    pub(crate) fn start(&self, job: &impl Serialize, attended: bool) -> Result<Process, String> {
        let line = serde_json::to_string(job).map_err(|error| error.to_string())?;
        let mut process = Process::start(self.command().stderr(Stdio::piped()), LONGEST)?;
        process.say(line);
        if !attended {
            process.close_input();
        }
        Ok(process)
    }

    fn once(&self, job: &Job, progress: &mut Progress<'_>) -> Result<End> {
        let failed = |reason: String| BenchError::Machine(format!("{}: {reason}", self.path.display()));
        let mut process = self.start(job, job.attended).map_err(&failed)?;
        let mut own: Option<(String, Doing)> = None;
        let (mut outcome, mut said_why) = (None, None);
        let ended = loop {
            let allowed = own.as_ref().map(|(_, doing)| progress.allowed(*doing));
            match (process.next(allowed), &own) {
                (Ok(line), _) => match serde_json::from_str(&line) {
                    Ok(Said::Report(report)) => outcome = Some(End::Report(report)),
                    Ok(Said::Failed(reason)) => said_why = Some(reason),
                    Ok(Said::Event(Event::Running(now))) => own = now,
                    Ok(Said::Event(event)) => progress.pass_on(event),
                    // Libraries print what they like; only events are ours.
                    Err(_) => {}
                },
                (Err(Silence::Timeout), Some((label, doing))) => {
                    let seconds = allowed.unwrap_or_default().as_secs_f64();
                    let reason = format!("HUNG: no answer while {doing} within {seconds:.1} s; its process was ended");
                    return Ok(End::Blamed(label.clone(), reason));
                }
                (Err(Silence::Timeout), None) => {}
                (Err(Silence::Unreadable(error)), _) => return Err(failed(error.to_string())),
                (Err(Silence::Ended(ended)), _) => break ended,
            }
        };
        let (status, words) = (ended.status(), ended.last_words());
        match (outcome, own, said_why, ended.outside()) {
            (Some(end), ..) => Ok(end),
            (None, Some((label, doing)), None, Some(why)) => {
                let says = format!("{why}, at {label} ({doing}), which is not to blame; run the bench again");
                Err(failed(says))
            }
            (None, Some((label, doing)), why, _) => {
                let how = why.unwrap_or_else(|| format!("its process ended ({status}): {words}"));
                Ok(End::Blamed(label, format!("CRASHED while {doing}: {how}")))
            }
            (None, None, Some(reason), _) => Err(failed(reason)),
            (None, None, None, _) => Err(failed(format!("it ended without a report ({status}): {words}"))),
        }
    }
}

impl Progress<'_> {
    fn allowed(&self, doing: Doing) -> Duration {
        let needs = self.problem.as_ref().map(|problem| Needs::of(problem, &self.device));
        doing.allowed(self.deadline, needs.unwrap_or_default())
    }

    fn pass_on(&mut self, mut event: Event) {
        match &mut event {
            Event::Note(note) if self.notes.contains(note) => return,
            Event::Note(note) => self.notes.push(note.clone()),
            Event::Case(case) => {
                (self.at, self.problem) = (case.1, Some(case.0.problem.clone()));
                (case.1, case.2) = (self.before + case.1, self.count);
            }
            Event::Result(result) => self.results.push((**result).clone()),
            Event::Inspected(..) | Event::Sample(..) | Event::Running(_) => {}
        }
        self.watcher.see(event);
    }
}

/// The child's side, without peers: reads a job in one line, and writes events, a line each. The process is aborted
/// when the input ends, even while a kernel hangs.
///
/// # Errors
/// Input without a job, and output that cannot be written. What fails in the bench is an event.
pub fn serve(input: impl Read + Send + 'static, output: impl Write) -> std::io::Result<()> {
    let mut input = BufReader::new(input);
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        let why = "there is no job on standard input; `flashcore bench` starts this and sends one";
        return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, why));
    }
    let mut lines = Lines { output, failed: None };
    let said = match serde_json::from_str(&line) {
        Err(error) => Said::Failed(format!("the job cannot be read: {error}")),
        Ok(Asked { device, store, request }) => {
            // Only a bench may hang. What ends before is answered, whether the input has ended or not.
            abort_at_end_of(input);
            match run(&device, store, &request, &mut lines) {
                Ok(report) => Said::Report(Box::new(report)),
                Err(error) => Said::Failed(error.to_string()),
            }
        }
    };
    lines.say(&said);
    lines.failed.map_or(Ok(()), Err)
}

fn run(device: &str, store: Option<PathBuf>, request: &Request, watcher: &mut dyn Watcher) -> Result<Report> {
    let device: Device = device.parse()?;
    let store = store.map(|path| Store::at(&path));
    crate::run(&device, request, &mut (), store.as_ref(), watcher)
}

/// Ends this process when its input ends, in a thread: whoever started it is gone, and a kernel may never end.
pub fn abort_at_end_of(mut input: impl Read + Send + 'static) {
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut input, &mut std::io::sink());
        // No exit handlers: the driver's would wait for the kernel.
        std::process::abort();
    });
}

/// Writes events.
struct Lines<W> {
    output: W,
    failed: Option<std::io::Error>,
}

impl<W: Write> Lines<W> {
    fn say(&mut self, what: &impl Serialize) {
        let line = serde_json::to_string(what).map_err(std::io::Error::from);
        let written = line.and_then(|line| writeln!(self.output, "{line}"));
        let written = written.and_then(|()| self.output.flush());
        self.failed = self.failed.take().or(written.err());
    }
}

impl<W: Write> Watcher for Lines<W> {
    fn see(&mut self, event: Event) {
        self.say(&event);
    }
}

#[cfg(all(test, unix))]
#[path = "child_tests.rs"]
mod tests;
