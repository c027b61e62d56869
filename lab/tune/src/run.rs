//! A search from beginning to end: strategies propose, gates and workers examine, the journal keeps, finalists meet.
//!
//! Trials are numbered as they are proposed and looked at in that order, whichever worker is done first: what is
//! proposed next depends on results alone and never on which came sooner, so that a run can be taken up again.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flashcore_bench::{Case, DeviceIdentity, executable, revision};
use flashcore_ir::Chip;

use crate::board::{About, Board};
use crate::default::DefaultKernel;
use crate::device_lock::{DeviceLock, Waits};
use crate::error::TuneError;
use crate::examine::{Examiner, Timing};
use crate::finals;
use crate::gate::Gatekeeper;
use crate::insight::{Claims, Insights};
use crate::interrupt::Interrupt;
use crate::journal::{BOARD, CLAIMS, Header, Journal, SCHEMA, digest, read_board, read_header, read_seconds};
use crate::judge::Judge;
use crate::search::{Look, Search};
use crate::simulated;
use crate::space::Space;
use crate::strategy::Strategy;
use crate::trial::{History, Trial};
use crate::witness::Witnesses;
use crate::worker::planted::{self, Conduct};
use crate::worker::protocol::Hello;
use crate::worker::{Compilers, Deadlines, Program, Worker};

/// What to search, where and how long.
pub struct Request {
    /// The problem and its name.
    pub case: Case,
    /// One a worker: `cpu`, `cuda:N`, `replay:FILE`.
    pub devices: Vec<String>,
    /// What to try next.
    pub strategy: Box<dyn Strategy>,
    /// Its name.
    pub strategy_name: String,
    /// Its seed, for the record.
    pub seed: u64,
    /// Seed of the inputs; without one the run draws one, and a run that is taken up again keeps its own.
    pub inputs: Option<u64>,
    /// What may be proposed.
    pub space: Space,
    /// The architecture, for machine programs and the simulator; `None` for the host and for replays.
    pub chip: Option<Chip>,
    /// The first candidate, that others are compared with.
    pub start: String,
    /// What the library runs where nobody tunes, for the record.
    pub default: Option<DefaultKernel>,
    /// What predictions and claims rest on, for the record.
    pub rates: Option<String>,
    /// Most trials.
    pub trials: usize,
    /// Most time for the search; what was begun is finished.
    pub time: Duration,
    /// How many meet at the end, besides the first.
    pub finalists: usize,
    /// Candidates proposed ahead, so that they can be compiled meanwhile; at least one a worker.
    pub window: usize,
    /// Processes that compile for GPUs.
    pub compilers: usize,
    /// Where the run is kept.
    pub folder: PathBuf,
    /// Take up the run that is there.
    pub resume: bool,
    /// How workers are started.
    pub program: Program,
    /// How long each stage may take.
    pub deadlines: Deadlines,
    /// How candidates are timed.
    pub timing: Timing,
    /// Folder of the locks of devices ([`device_lock::folder`](crate::device_lock::folder)): searches that share it and a
    /// device take it in turns. `None`: no other search is waited for.
    pub locks: Option<PathBuf>,
    /// Ends it before its limits.
    pub interrupt: Interrupt,
}

/// Is told how a search goes along.
pub trait Watcher {
    /// The run begins, with so many trials from before.
    fn begins(&mut self, header: &Header, resumed: usize) {
        let _ = (header, resumed);
    }
    /// A trial has its verdict.
    fn trial(&mut self, trial: &Trial, history: &History) {
        let _ = (trial, history);
    }
    /// Finalists meet.
    fn finals(&mut self, finalists: &[String]) {
        let _ = finalists;
    }
    /// One device of several is lost for good; the others go on.
    fn lost(&mut self, device: &str, why: &str) {
        let _ = (device, why);
    }
    /// Another search has a device, and this one waits for it.
    fn waits(&mut self, device: &str, waits: Waits) {
        let _ = (device, waits);
    }
}

/// Watches nothing.
impl Watcher for () {}

/// What a search found.
#[derive(Debug)]
pub struct Outcome {
    /// What the run is.
    pub header: Header,
    /// Everything tried.
    pub history: History,
    /// The finalists; `None` where nothing could be timed, and where it was interrupted before they met.
    pub board: Option<Board>,
    /// Whether it was asked to end before its limits.
    pub interrupted: bool,
    /// Whether a run was taken up again that had ended, and nothing was left to do: no trial came to those it had, and
    /// everything else is what was kept.
    pub nothing_new: bool,
    /// Why an outside proposer is gone, if that ended the search; the finals were held all the same.
    pub proposer_gone: Option<String>,
    /// What was claimed about candidates and what came of it; `None` for strategies that make no claims.
    pub claims: Option<Claims>,
    /// Times a worker was started, over all of them.
    pub workers_started: usize,
    /// Seconds from the run's beginning to the end of its finals, those of before it was taken up again among them.
    pub seconds: f64,
}

/// Searches.
///
/// # Errors
/// Workers that cannot be started, a folder that cannot be written, a run that cannot be resumed. A candidate that
/// fails is no error.
pub fn run(request: Request, watcher: &mut dyn Watcher) -> Result<Outcome, TuneError> {
    let began = Instant::now();
    if request.devices.is_empty() {
        return Err(TuneError::BadOption {
            option: "devices",
            given: "an empty list".to_string(),
            allowed: "at least one of cpu, cuda:N, replay:FILE".to_string(),
        });
    }
    // They get their devices while the workers do, and while answers are computed.
    let compilers = request.chip.map(|_| {
        let (program, deadlines) = (&request.program, request.deadlines);
        Compilers::new(program, &request.devices, deadlines, request.compilers)
    });
    let mut devices = Vec::new();
    let mut computes = false;
    let worker = |device: &String| Worker::new(request.program.clone(), device, request.deadlines);
    let mut workers: Vec<Worker> = request.devices.iter().map(worker).collect();
    for (device, hello) in request.devices.iter().zip(hellos(&mut workers)) {
        let hello = hello?;
        let build =
            |revision: &str, program: &str| format!("{revision} (program {})", program.get(..12).unwrap_or(program));
        let (theirs, ours) = (
            build(&hello.revision, &hello.executable),
            build(revision(), executable()),
        );
        if theirs != ours {
            return Err(TuneError::Worker {
                device: device.clone(),
                reason: format!("it was built from {theirs}, this program from {ours}"),
            });
        }
        computes |= hello.computes;
        devices.push(hello.device);
    }
    of_one_kind(&devices)?;
    let header = Header {
        schema: SCHEMA,
        case: request.case.name.clone(),
        problem: request.case.problem.clone(),
        devices,
        revision: revision().to_string(),
        executable: executable().to_string(),
        space: digest(&request.space),
        strategy: request.strategy_name.clone(),
        seed: request.seed,
        computes,
        inputs: computes.then(|| inputs(&request)),
        torture: is_torture(&request),
        start: request.start.clone(),
        default: request.default.clone(),
        rates: request.rates.clone(),
        window: request.window.max(request.devices.len()),
        started_at: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
    };
    let (journal, before) = if request.resume {
        Journal::resume(&request.folder, &header)?
    } else {
        (Journal::begin(&request.folder, &header)?, Vec::new())
    };
    let tried_before = before.len();
    let of_trials = before.iter().map(|trial| trial.seconds).sum::<f64>() / header.devices.len() as f64;
    let seconds_before = read_seconds(&request.folder).unwrap_or(0.0).max(of_trials);
    watcher.begins(&header, tried_before);
    let lock = |device: &DeviceIdentity| DeviceLock::on(device, request.locks.as_deref().filter(|_| computes));
    let judge = match header.inputs {
        Some(seed) => {
            // Right answers take every core for a while: on the host that is the device.
            let is_host = |device: &&DeviceIdentity| device.device == "cpu";
            let host = header.devices.iter().find(is_host);
            let told = &mut |host: &DeviceIdentity, waits| watcher.waits(&host.device, waits);
            let _held = host.map(|host| lock(host).wait(&request.interrupt, &mut |waits| told(host, waits)));
            Judge::new(&request.case.problem, seed)?
        }
        None => Judge::of_nothing(&request.case.problem),
    };
    let scratch: Vec<Scratch> = (0..header.devices.len())
        .map(|index| Scratch(request.folder.join(format!("output-{index}.bin"))))
        .collect();
    let examiners: Vec<Examiner<'_>> = workers
        .into_iter()
        .enumerate()
        .map(|(index, worker)| Examiner {
            judge: &judge,
            worker,
            compilers: compilers.as_ref(),
            timing: &request.timing,
            scratch: scratch[index].0.clone(),
            canvas: None,
            lock: lock(&header.devices[index]),
            interrupt: request.interrupt.clone(),
        })
        .collect();
    let gate = request
        .chip
        .map(|chip| Gatekeeper::new(&request.case.problem, Some(chip)));
    let mut strategy = request.strategy;
    let look = gate.as_ref().map(|gate| |id: &str| gate.look(id));
    let look = look.as_ref().map(|look| look as &Look<'_>);
    let mut search = Search::new(&request.space, look, &header, journal, before);
    // What was tried is part of the run, whatever the budget is by now.
    search.limit(request.trials.max(tried_before), request.time);
    search.ends_by(request.interrupt.clone());
    let mut examiners = search.go(&mut *strategy, examiners, watcher)?;
    let (history, journal, proposer_gone) = search.end();

    // Finalists of a search that is to go on would be others.
    let cut_off = request.interrupt.is_asked();
    let about = About {
        start: request.start.clone(),
        start_failed: failure_of(&history, &request.start),
        struck: Vec::new(),
        witness: None,
        simulates: request.chip.is_some(),
        gain: request.timing.gain,
    };
    let witnesses = Witnesses {
        problem: &request.case.problem,
        gate: Gatekeeper::new(&request.case.problem, request.chip),
        on_gpu: request.chip.is_some(),
    };
    let keep = request.finalists;
    let kept = read_board(&request.folder).filter(|_| history.trials().len() == tried_before && !cut_off);
    let nothing_new = kept.is_some();
    let board = match kept {
        Some(board) => Some(board),
        None if cut_off => None,
        None => {
            let simulated = |board: Board| match request.chip {
                Some(chip) => simulated::look(board, &judge, chip),
                None => board,
            };
            let examiner = &mut examiners[0];
            let held = finals::decide(&history, examiner, about, keep, &witnesses, &simulated, watcher)?;
            if let Some(board) = &held {
                journal.keep(BOARD, board)?;
            }
            held
        }
    };
    let claims = strategy.insights(&history, &request.space).map(Insights::claims);
    if let Some(claims) = claims.as_ref().filter(|_| !cut_off) {
        journal.keep(CLAIMS, claims)?;
    }
    let workers_started = examiners.iter().map(|examiner| examiner.worker.started()).sum();
    let seconds = match nothing_new {
        true => seconds_before,
        false => seconds_before + began.elapsed().as_secs_f64(),
    };
    journal.keep_seconds(seconds)?;
    Ok(Outcome {
        header,
        history,
        board,
        interrupted: request.interrupt.is_asked(),
        nothing_new,
        proposer_gone,
        claims,
        workers_started,
        seconds,
    })
}

/// Starts workers, all at once: taking a GPU is some seconds' work where a host has several.
fn hellos(workers: &mut [Worker]) -> Vec<Result<Hello, TuneError>> {
    thread::scope(|scope| {
        let started: Vec<_> = workers
            .iter_mut()
            .map(|worker| scope.spawn(|| worker.hello()))
            .collect();
        let joined = started.into_iter().map(|thread| thread.join());
        joined
            .map(|hello| hello.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// A file that outputs go through, of no use after the run.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // Where no answer was ever read it is not there.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Devices of one run are of one kind: what is compiled for the first serves all, and a time on one stands beside a time
/// on another.
fn of_one_kind(devices: &[DeviceIdentity]) -> Result<(), TuneError> {
    let kind = |device: &DeviceIdentity| {
        let DeviceIdentity {
            name,
            architecture,
            units,
            l2_bytes,
            driver,
            ..
        } = device;
        format!("{name} ({architecture}, {units} units, {l2_bytes} B of L2, driver {driver})")
    };
    let mut kinds: Vec<String> = devices.iter().map(kind).collect();
    kinds.dedup();
    match kinds.as_slice() {
        [] | [_] => Ok(()),
        _ => Err(TuneError::BadOption {
            option: "devices",
            given: kinds.join(" and "),
            allowed: "devices of one kind in one run; tune each kind by itself".to_string(),
        }),
    }
}

/// The seed of a run's inputs: the one that was asked for, that of the run taken up again, or a fresh one, so that no
/// kernel is right by being right for inputs that are always the same.
fn inputs(request: &Request) -> u64 {
    let before = || read_header(&request.folder).ok().filter(|_| request.resume)?.inputs;
    // As many bits as every reader of JSON keeps.
    let fresh = || RandomState::new().build_hasher().finish() >> 11;
    request.inputs.or_else(before).unwrap_or_else(fresh)
}

/// Whether candidates known to be bad are among those that a search tries.
fn is_torture(request: &Request) -> bool {
    let searched = request.space.families().any(|family| family.name == planted::NAME);
    searched || Conduct::of_id(&request.start).is_some()
}

/// Why the first candidate could not be timed, if it could not.
fn failure_of(history: &History, start: &str) -> Option<String> {
    let trial = history.trial(start)?;
    let failed = trial.timed.is_none();
    failed.then(|| format!("{}: {}", trial.verdict, trial.reason))
}

#[cfg(all(test, unix))]
pub(crate) mod tests {
    use flashcore_problem::Problem;

    use super::*;
    use crate::space::Family;
    use crate::strategy::Kind;
    use crate::worker::fake::{Fake, hello_of};

    /// A run with these workers, whatever they are; `name` is that of the folder.
    pub(crate) fn request(name: &str, devices: &[&str], program: Program) -> Request {
        let folder = std::env::temp_dir().join(format!("flashcore-run-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        Request {
            case: Case {
                name: "tiny".to_string(),
                problem: Problem::named("tiny").unwrap(),
            },
            devices: devices.iter().map(ToString::to_string).collect(),
            strategy: Kind::Random.start(1, None).unwrap(),
            strategy_name: "random".to_string(),
            seed: 1,
            inputs: None,
            space: Space::new(vec![Family::cpu()], |_| Ok(())),
            chip: None,
            start: "cpu/m16n16".to_string(),
            default: None,
            rates: None,
            trials: 3,
            time: Duration::MAX,
            finalists: 1,
            window: 1,
            compilers: 1,
            folder,
            resume: false,
            program,
            deadlines: Deadlines::default(),
            timing: Timing::for_cpu(),
            locks: None,
            interrupt: Interrupt::default(),
        }
    }

    #[test]
    fn a_run_without_devices_is_an_error() {
        let error = run(request("none", &[], Fake::new().program("none")), &mut ()).unwrap_err();
        assert!(error.to_string().contains("devices is an empty list"), "{error}");
    }

    #[test]
    fn devices_of_different_kinds_are_refused() {
        // Who it is says the device that it is asked to take.
        let mut other = DeviceIdentity::cpu();
        other.units += 1;
        let hello = format!(r#"*'"device":"other"'*) said='{}';;"#, hello_of(&other));
        let fake = Fake {
            first: hello,
            ..Fake::new()
        };
        let program = fake.program("kinds");
        let error = run(request("kinds", &["cpu", "other"], program), &mut ()).unwrap_err();
        assert!(error.to_string().contains("devices of one kind"), "{error}");
        let mut twin = DeviceIdentity::cpu();
        (twin.device, twin.uuid) = ("cuda:1".to_string(), "another".to_string());
        assert!(of_one_kind(&[DeviceIdentity::cpu(), twin]).is_ok());
    }

    #[test]
    fn a_run_with_a_fake_worker_ends_in_a_leaderboard() {
        let request = request("fake", &["cpu"], Fake::new().program("fake"));
        let folder = request.folder.clone();
        let found = run(request, &mut ()).unwrap();
        assert_eq!(found.history.trials().len(), 3);
        assert!(found.board.is_some());
        assert_eq!(read_seconds(&folder), Some(found.seconds));
        // Taken up again, it took longer and not less.
        let again = Request {
            trials: 4,
            resume: true,
            folder: folder.clone(),
            ..self::request("fake-again", &["cpu"], Fake::new().program("fake-again"))
        };
        let again = run(again, &mut ()).unwrap();
        assert!(again.seconds > found.seconds && !again.nothing_new);
        assert_eq!(read_seconds(&folder), Some(again.seconds));
        // With nothing left to do, even of a budget that is smaller than what was spent, it is as it was: nobody meets again.
        struct NoFinals;
        impl Watcher for NoFinals {
            fn finals(&mut self, finalists: &[String]) {
                panic!("{finalists:?} meet again");
            }
        }
        for (trials, time) in [(4, Duration::MAX), (2, Duration::MAX), (usize::MAX, Duration::ZERO)] {
            let idle = Request {
                trials,
                time,
                resume: true,
                folder: folder.clone(),
                ..self::request("fake-idle", &["cpu"], Fake::new().program("fake-idle"))
            };
            let idle = run(idle, &mut NoFinals).unwrap();
            assert!(idle.nothing_new && idle.history.trials().len() == 4);
            assert_eq!((&idle.board, idle.seconds), (&again.board, again.seconds));
        }
        // Killed in its finals, it holds them.
        std::fs::remove_file(folder.join(BOARD)).unwrap();
        let after = Request {
            trials: 4,
            resume: true,
            folder: folder.clone(),
            ..self::request("fake-after", &["cpu"], Fake::new().program("fake-after"))
        };
        let after = run(after, &mut ()).unwrap();
        assert!(after.board.is_some() && !after.nothing_new && after.history.trials().len() == 4);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
