//! A search from beginning to end: strategies propose, gates and workers examine, the journal keeps
//! the trials, and the finals decide.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use flashcore_bench::{Case, DeviceIdentity, executable, revision};
use flashcore_check::own::{Template, sha256};
use flashcore_check::registers::assembler;
use flashcore_check::sandbox::{self, Confinement, Policy};
use tempfile::TempDir;

use crate::board::Board;
use crate::counting::Counting;
use crate::device_lock::{DeviceLock, Waits};
use crate::error::TuneError;
use crate::examine::Examiner;
use crate::finals;
use crate::gate::Gatekeeper;
use crate::insight::{Claims, Insights};
use crate::interrupt::Interrupt;
use crate::journal::{BOARD, CLAIMS, Header, Journal, SCHEMA, SECONDS, board_of, digest, read_header, read_seconds};
use crate::judge::Judge;
use crate::search::{Look, Search};
use crate::setup::Setup;
use crate::simulated;
use crate::strategy::Strategy;
use crate::trial::{History, Trial};
use crate::worker::planted::{self, Conduct};
use crate::worker::protocol::Hello;
use crate::worker::{Compilers, Deadlines, Program, Worker, compilers_for};

/// Finalists besides the first candidate.
const FINALISTS: usize = 4;

/// What to search, where and how long.
pub struct Request {
    /// [`Header::command`].
    pub command: Vec<String>,
    /// The problem and its name.
    pub case: Case,
    /// The device of each worker: `cpu`, `cuda:N`, `replay:FILE`, `predict:CARD`.
    pub devices: Vec<String>,
    /// The strategy.
    pub strategy: Box<dyn Strategy>,
    /// Its name.
    pub strategy_name: String,
    /// Its seed, for the record.
    pub seed: u64,
    /// Seed of the inputs. Without one the run draws one, and a resumed run keeps its own.
    pub inputs: Option<u64>,
    /// What it begins with.
    pub setup: Setup,
    /// Source of the rates for predictions and claims, for the record.
    pub rates: Option<String>,
    /// Reads the counters of each new best; `None`: no claims from counters.
    pub counting: Option<Counting>,
    /// Most trials.
    pub trials: usize,
    /// Most time for the search. Running trials are finished.
    pub time: Duration,
    /// The run's folder.
    pub folder: PathBuf,
    /// Whether to resume the run in that folder.
    pub resume: bool,
    /// How workers are started.
    pub program: Program,
    /// Whether those with kernels of users are confined.
    pub confinement: Confinement,
    /// Whether that starts them on other machines: nothing is compiled for them here.
    pub elsewhere: bool,
    /// How long each stage may take.
    pub deadlines: Deadlines,
    /// Folder of the device locks ([`device_lock::folder`](crate::device_lock::folder)). Searches
    /// with the same folder and device alternate. `None`: no other search is waited for.
    pub locks: Option<PathBuf>,
    /// Ends the search before its limits.
    pub interrupt: Interrupt,
}

/// Receives the progress of a search.
pub trait Watcher {
    /// The run begins, with this number of earlier trials.
    fn begins(&mut self, _header: &Header, _resumed: usize) {}
    /// A trial has its verdict.
    fn trial(&mut self, _trial: &Trial, _history: &History) {}
    /// Finalists are timed.
    fn finals(&mut self, _finalists: &[String]) {}
    /// One of several devices is lost; the others continue.
    fn lost(&mut self, _device: &str, _why: &str) {}
    /// Another search has a device, and this one waits for it.
    fn waits(&mut self, _device: &str, _waits: Waits) {}
    /// Counters cannot be read; the search continues without them.
    fn uncounted(&mut self, _why: &str) {}
}

impl Watcher for () {}

/// Result of a search.
#[derive(Debug)]
pub struct Outcome {
    /// Identity of the run.
    pub header: Header,
    /// Its folder.
    pub folder: PathBuf,
    /// Trials of a resumed run that were made before.
    pub resumed: usize,
    /// All trials.
    pub history: History,
    /// `None` if nothing could be timed, or if the search was interrupted before the finals.
    pub board: Option<Board>,
    /// Whether the search was interrupted.
    pub interrupted: bool,
    /// Whether a finished run was resumed with nothing left to do, so that this is its result.
    pub nothing_new: bool,
    /// Why an outside proposer is gone, if that ended the search. The finals were held.
    pub proposer_gone: Option<String>,
    /// Claims and their scores; `None` for strategies that make no claims, and where times are predicted.
    pub claims: Option<Claims>,
    /// Number of times that workers were started.
    pub workers_started: usize,
    /// Seconds from the run's beginning to the end of its finals, with all parts of a resumed run.
    pub seconds: f64,
}

/// Searches. Workers that cannot be started, a folder that cannot be written, and a run that cannot
/// be resumed are errors; a candidate that fails is not.
pub fn run(request: Request, watcher: &mut dyn Watcher) -> Result<Outcome, TuneError> {
    let began = Instant::now();
    if request.devices.is_empty() {
        let allowed = "at least one of cpu, cuda:N, replay:FILE, predict:CARD";
        return Err(TuneError::bad("devices", "an empty list", allowed));
    }
    if request.folder.to_str().is_none() {
        let allowed = "a path in UTF-8 (--folder): workers are told in JSON which files to write there";
        return Err(TuneError::bad(
            "the folder of the run",
            request.folder.display(),
            allowed,
        ));
    }
    // What workers with kernels of users write.
    let room = room(&request)?;
    let policy = room.as_ref().map(|room| policy(room.path(), &request));
    // They take their devices while the workers do, and while reference outputs are computed.
    let (setup, devices) = (&request.setup, &request.devices);
    let window = setup.window * devices.len();
    let compilers = setup
        .chip
        .filter(|_| !request.elsewhere && setup.device.is_some())
        .map(|_| {
            let limits = (request.deadlines, &policy);
            Compilers::new(&request.program, devices, limits, compilers_for(2 * window))
        });
    let new = |device: &String| Worker::new(request.program.clone(), device, request.deadlines);
    let worker = |device: &String| new(device).confined(policy.clone());
    let mut workers: Vec<Worker> = devices.iter().map(worker).collect();
    let header = header(&request, window, hellos(&mut workers)?)?;
    let (journal, before) = if request.resume {
        Journal::resume(&request.folder, &header)?
    } else {
        (Journal::begin(&request.folder, &header)?, Vec::new())
    };
    let needed = before
        .iter()
        .filter(|trial| trial.timed.is_some() || trial.is_undecided());
    setup
        .own
        .restore(needed.map(|trial| trial.id.as_str()), &request.folder)?;
    let tried_before = before.len();
    let of_trials = before.iter().map(|trial| trial.seconds).sum::<f64>() / header.devices.len() as f64;
    let seconds_before = read_seconds(&request.folder).unwrap_or(0.0).max(of_trials);
    watcher.begins(&header, tried_before);
    let lock = |device: &DeviceIdentity| DeviceLock::on(device, request.locks.as_deref().filter(|_| header.computes));
    let mut judge = match header.inputs {
        Some(seed) => {
            // Reference outputs take every core for a while, so a search on the host holds it.
            let host = header.devices.iter().find(|device| device.device == "cpu");
            let told = &mut |waits| watcher.waits("cpu", waits);
            let _held = host.map(|host| lock(host).wait(&request.interrupt, told));
            Judge::new(&request.case.problem, seed, &setup.own)?
        }
        None => Judge::of_nothing(&request.case.problem),
    };
    judge.to_build = (setup.chip, request.deadlines.compiler());
    let folder = room.as_ref().map_or(&*request.folder, |room| room.path());
    let examiner = |(index, worker): (usize, Worker)| Examiner {
        judge: &judge,
        worker,
        scratch: folder.join(format!("output-{index}.bin")),
        canvas: None,
        tolerances: Vec::new(),
        timing: &setup.timing,
        lock: lock(&header.devices[index]),
        interrupt: request.interrupt.clone(),
    };
    let mut examiners: Vec<Examiner<'_>> = workers.into_iter().enumerate().map(examiner).collect();
    let gate = Gatekeeper::new(&request.case.problem, setup.chip).with_own(&setup.own);
    let look = |id: &str| gate.look(id);
    let look = setup.chip.map(|_| &look as &Look<'_>);
    let mut strategy = request.strategy;
    let mut search = Search::new(&setup.space, look, &header, journal, before);
    search.own = setup.own.clone();
    // Earlier trials are part of the run, whatever the budget is now.
    search.trials = request.trials.max(tried_before);
    search.time = request.time;
    search.compilers = compilers.as_ref();
    search.counting = request.counting.as_ref();
    search.interrupt = request.interrupt.clone();
    search.go(&mut *strategy, &mut examiners, watcher)?;
    let Search {
        history,
        journal,
        proposer_gone,
        ..
    } = search;

    // If the search is to be continued, its finalists may be others.
    let cut_off = request.interrupt.is_asked();
    // A board that cannot be read is made again.
    let kept = board_of(&request.folder).ok().flatten();
    let kept = kept.filter(|_| history.trials().len() == tried_before && !cut_off);
    let nothing_new = kept.is_some();
    let board = match kept {
        None if cut_off => None,
        Some(board) => Some(board),
        None => {
            let failed = history.trial(&setup.start).filter(|trial| trial.timed.is_none());
            let failed = failed.map(|trial| format!("{}: {}", trial.verdict, trial.reason));
            let board = Board::new(&setup.start, failed, setup.chip.is_some(), setup.timing.gain);
            let simulated = |board: Board, worker: &mut Worker| match setup.chip {
                Some(chip) => simulated::look(board, &judge, chip, worker),
                None => board,
            };
            let examiner = &mut examiners[0];
            let held = finals::hold(&history, examiner, board, FINALISTS, &gate, &simulated, watcher)?;
            if let Some(board) = &held {
                journal.keep(BOARD, board)?;
            }
            held
        }
    };
    // The cost model makes claims, and its own times would confirm them.
    let scored = strategy.insights(&history, &setup.space).map(Insights::claims);
    let claims = scored.filter(|_| !header.is_predicted());
    if let Some(claims) = claims.as_ref().filter(|_| !cut_off) {
        journal.keep(CLAIMS, claims)?;
    }
    let seconds = if nothing_new {
        seconds_before
    } else {
        seconds_before + began.elapsed().as_secs_f64()
    };
    journal.keep(SECONDS, &seconds)?;
    Ok(Outcome {
        workers_started: examiners.iter().map(|examiner| examiner.worker.started).sum(),
        header,
        folder: request.folder,
        resumed: tried_before,
        history,
        board,
        interrupted: request.interrupt.is_asked(),
        nothing_new,
        proposer_gone,
        claims,
        seconds,
    })
}

/// The only folder that workers may write which handle kernels of users; `None` if there are none, or workers are not
/// confined.
fn room(request: &Request) -> Result<Option<TempDir>, TuneError> {
    let setup = &request.setup;
    if setup.own.is_empty() || setup.chip.is_none() || request.confinement == Confinement::Unsandboxed {
        return Ok(None);
    }
    let refused = |why: &dyn std::fmt::Display| {
        let why = format!("workers with kernels of yours run in a sandbox: {why}");
        TuneError::Usage(format!("{why}; --trust=unsandboxed runs them with your rights"))
    };
    if request.elsewhere {
        return Err(refused(&"the command of --workers is not confined"));
    }
    sandbox::available().map_err(|error| refused(&error))?;
    let folder = std::path::absolute(&request.folder).and_then(|folder| {
        std::fs::create_dir_all(&folder)?;
        tempfile::Builder::new().prefix("worker-").tempdir_in(folder)
    });
    folder
        .map(Some)
        .map_err(|error| TuneError::file(&request.folder, error))
}

fn policy(room: &Path, request: &Request) -> Policy {
    let policy = Policy::worker(room, request.setup.device.is_some());
    // A card's file, which the worker reads itself.
    let cards = request
        .devices
        .iter()
        .filter_map(|device| device.strip_prefix("predict:"));
    let policy = cards.filter(|card| card.ends_with(".json")).fold(policy, Policy::read);
    assembler().iter().fold(policy, |policy, path| policy.run(path))
}

/// Starts workers, all at once, since taking a GPU takes seconds on hosts with several.
fn hellos(workers: &mut [Worker]) -> Result<Vec<Hello>, TuneError> {
    thread::scope(|scope| {
        let start = |worker: &mut Worker| worker.hello().cloned();
        let started = workers.iter_mut().map(|worker| scope.spawn(move || start(worker)));
        let started: Vec<_> = started.collect();
        let joined = started.into_iter().map(|thread| thread.join());
        joined
            .map(|hello| hello.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// The identity of a run with these workers, which must be this program on devices of one kind.
fn header(request: &Request, window: usize, hellos: Vec<Hello>) -> Result<Header, TuneError> {
    let build = |revision: &str, program: &str| format!("{revision} (program {program:.12})");
    let ours = build(revision(), executable());
    for (device, hello) in request.devices.iter().zip(&hellos) {
        let theirs = build(&hello.revision, &hello.executable);
        if theirs != ours {
            let why = format!("it was built from {theirs}, this program from {ours}");
            return Err(TuneError::worker(device, why));
        }
    }
    let computes = hellos.iter().any(|hello| hello.computes);
    let devices: Vec<DeviceIdentity> = hellos.into_iter().map(|hello| hello.device).collect();
    of_one_kind(&devices)?;
    let mut families = request.setup.space.families();
    let planted = families.any(|family| family.name == planted::NAME);
    Ok(Header {
        schema: SCHEMA,
        command: request.command.clone(),
        case: request.case.name.clone(),
        problem: request.case.problem.clone(),
        devices,
        revision: revision().to_string(),
        executable: executable().to_string(),
        space: digest(&request.setup.space),
        strategy: request.strategy_name.clone(),
        seed: request.seed,
        computes,
        trust: request.setup.trust.clone(),
        // Finalists whose times are predicted are simulated.
        inputs: (computes || request.setup.chip.is_some()).then(|| inputs(request)),
        torture: planted || Conduct::of_id(&request.setup.start).is_some(),
        start: request.setup.start.clone(),
        default: request.setup.default.clone(),
        rates: request.rates.clone(),
        window,
        own: request.setup.own.templates().map(identity_of).collect(),
        started_at: UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
    })
}

/// Its label, and the sum of its declaration and what that names.
fn identity_of(template: &Template) -> String {
    let content = serde_json::to_string(template).unwrap_or_default();
    format!("{} {}", template.label, sha256(content))
}

/// Devices of one run must be of one kind, so that a module serves all and times can be compared.
fn of_one_kind(devices: &[DeviceIdentity]) -> Result<(), TuneError> {
    let kind = |of: &DeviceIdentity| {
        let size = format!("{} units, {} B of L2", of.units, of.l2_bytes);
        format!("{} ({}, {size}, driver {})", of.name, of.architecture, of.driver)
    };
    let mut kinds: Vec<String> = devices.iter().map(kind).collect();
    kinds.dedup();
    if kinds.len() <= 1 {
        return Ok(());
    }
    let allowed = "devices of one kind in one run; tune each kind in a run of its own";
    Err(TuneError::bad("devices", kinds.join(" and "), allowed))
}

/// The seed of a run's inputs: the given one, that of the resumed run, or a new one, so that a
/// kernel cannot be fitted to constant inputs.
fn inputs(request: &Request) -> u64 {
    let before = || read_header(&request.folder).ok().filter(|_| request.resume)?.inputs;
    // 53 bits, which every JSON reader keeps.
    let fresh = || RandomState::new().build_hasher().finish() >> 11;
    request.inputs.or_else(before).unwrap_or_else(fresh)
}

#[cfg(all(test, unix))]
mod tests;
