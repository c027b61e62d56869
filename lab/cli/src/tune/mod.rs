//! `flashcore tune`: searches for the fastest correct kernel for a problem on a device. `flashcore leaderboard` shows
//! what searches found, `flashcore worker` runs candidates.

pub(crate) mod args;
mod claims;
pub(crate) mod interrupt;
pub(crate) mod leaderboard;
mod live;
mod overview;
mod peers;
mod plan;
mod rates;
pub(crate) mod without_gpu;
pub(crate) mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use flashcore::{DeviceInfo, Problem};
use flashcore_bench::Case;
use flashcore_ir::Target;
use flashcore_tune::insight::Advisor;
use flashcore_tune::journal::read_header;
use flashcore_tune::strategy::{Kind, Outside, Population, Strategy};
use flashcore_tune::worker::planted::Conduct;
use flashcore_tune::worker::{Deadlines, Program, compilers_for};
use flashcore_tune::{Gatekeeper, Outcome as Found, PeerComparison, Request, Setup, TuneError, device_lock, runs};
use serde_json::{Value, json};

use crate::failure::{Failure, Outcome};
use crate::machine;
use crate::style::{self, CODE, DIM, HEAD};
use crate::tune::args::{Budget, OUTSIDE, TuneArgs};
use crate::tune::interrupt::{CtrlC, go_on_command, quoted, resume_command};
use crate::tune::live::Live;

/// Without --strategy: the two that replays of the shipped space speak for, with a model of what kernels cost and without.
const DEFAULTS: [Kind; 2] = [Kind::Ranked, Kind::Evolution(Population::Elite)];
/// Seed of strategies where none is named.
const STRATEGY_SEED: u64 = 1;
/// Finalists besides the first candidate.
const FINALISTS: usize = 4;
/// Longest that an outside proposer may think.
const PROPOSER_DEADLINE: Duration = Duration::from_secs(300);

/// What --device may name.
const DEVICES: &str = "best, cpu, cuda:N, several GPUs as cuda:0,cuda:1, replay:FILE";

pub(crate) fn run(args: &TuneArgs) -> Result<Outcome, Failure> {
    let problem = args.problem.problem()?;
    let case = Case {
        name: args.problem.label(&problem),
        problem,
    };
    let devices = devices(&args.device)?;
    // Somebody who names nothing and has no GPU is shown everything that can be shown without one.
    let tour = args.device == "best" && devices == ["cpu"] && !args.json && !args.torture && !args.resume;
    let found = search(args, &case, &devices, if tour { 0.5 } else { 1.0 })?;
    if found.interrupted {
        return Ok(interrupted(args, &found));
    }
    if !args.json {
        style::print(&said(&found, tour, &case));
    }
    // What fails from here on is said and loses nothing: what was found is printed whole.
    let plan = plan::keep(&found.found, args.no_plan);
    found.ctrl_c.is_over();
    let beside = match kept_beside(&found) {
        Some(kept) => Some(kept),
        None => peers::compare(&found.found, &case, &devices[0], &args.peers, &found.folder),
    };
    if args.json {
        style::print_json(&json_of(&found, beside.as_ref(), Some(&plan)));
    } else {
        style::print(&beside.as_ref().map(peers::text).unwrap_or_default());
        style::print(&plan.text());
        style::print(&kept_text(args.budget, &found));
    }
    if let Some(why) = nothing_new(args.budget, &found) {
        style::eprint(&style::wrap(&format!("note: {why}"), 2));
    }
    let remedy = plan.remedy(&found.folder);
    if let Some(note) = &remedy {
        style::eprint(note);
    }
    if tour {
        without_gpu::run(&case.problem)?;
    }
    if let Some(why) = &found.proposer_gone {
        style::eprint(&style::wrap(&format!("note: the search ended early: {why}"), 2));
    }
    // A default that fails is the worst that can be found, whatever else was.
    Ok(match &found.board {
        Some(board) if board.winner.is_some() && !board.is_start_bad() => {
            match found.proposer_gone.is_none() && remedy.is_none() {
                true => Outcome::Clean,
                false => Outcome::Findings,
            }
        }
        _ => Outcome::Findings,
    })
}

/// What was found: the result first, then the best, the failures, and how it was searched.
fn said(found: &Kept, tour: bool, case: &Case) -> String {
    let header = &found.header;
    let does = if header.computes {
        "Attention"
    } else {
        "A replay of searches"
    };
    let devices: Vec<String> = header
        .devices
        .iter()
        .map(|device| format!("{} ({})", device.device, device.name))
        .collect();
    let mut text = heading(
        &format!("{does} on {}", devices.join(" and ")),
        &header.problem.to_string(),
    );
    if let Some(board) = &found.board {
        text.push_str(&leaderboard::headline(header, board, &found.history));
    }
    if tour {
        text.push_str(&style::field("predicted", &without_gpu::predicted(&case.problem)));
    }
    text.push_str(&leaderboard::summary(&found.history, Some(found.seconds)));
    text.push_str(&found.board.as_ref().map(leaderboard::text).unwrap_or_default());
    text.push_str(&leaderboard::failures(&found.history));
    if let Some(claims) = &found.claims {
        text.push_str(&claims::text(claims));
    }
    text + &live::about(header, found.resumed)
}

/// What stood beside the winner before, where that is still all there is to say.
fn kept_beside(found: &Kept) -> Option<PeerComparison> {
    let board = found.board.as_ref().filter(|_| found.nothing_new)?;
    PeerComparison::read(&found.folder, board).filter(|beside| beside.missing.is_none())
}

/// What a search found, with the same keys whatever became of it; `null` where there is nothing to say.
fn json_of(found: &Kept, beside: Option<&PeerComparison>, plan: Option<&plan::Kept>) -> Value {
    json!({
        "run": found.header,
        "trials": found.history.trials(),
        "board": found.board,
        "peers": beside,
        "claims": found.claims,
        "workers_started": found.workers_started,
        "seconds": found.seconds,
        "folder": found.folder,
        "plan": plan.map(plan::Kept::json),
        "proposer_gone": found.proposer_gone,
        "interrupted": found.interrupted,
        "resume": found.interrupted.then(|| resume_command(&found.folder)),
    })
}

/// Says what is left of a search that was interrupted.
fn interrupted(args: &TuneArgs, found: &Kept) -> Outcome {
    if args.json {
        style::print_json(&json_of(found, None, None));
    } else {
        style::print(&found.ctrl_c.said());
    }
    Outcome::Interrupted
}

/// A search that is over, and where it is kept.
struct Kept {
    found: Found,
    folder: PathBuf,
    ctrl_c: CtrlC,
    /// Trials that were made before, of a run that was taken up again.
    resumed: usize,
}

impl std::ops::Deref for Kept {
    type Target = Found;

    fn deref(&self) -> &Found {
        &self.found
    }
}

fn is_supported(info: &DeviceInfo) -> bool {
    let (major, minor) = info.compute_capability;
    Target::for_capability(major, minor).is_some_and(Target::is_supported)
}

/// The number of a GPU by name.
fn gpu(name: &str) -> Option<u32> {
    name.strip_prefix("cuda:")?.parse().ok()
}

/// The devices of a list; `best` is the first GPU, or the host.
fn devices(names: &str) -> Result<Vec<String>, Failure> {
    let one = |name: &str| match name {
        // The driver is asked and the device not taken: that is for its worker.
        "best" => match machine::gpus_or_none().iter().find(|info| is_supported(info)) {
            None => "cpu".to_string(),
            Some(info) => format!("cuda:{}", info.ordinal),
        },
        "cuda" => "cuda:0".to_string(),
        "replay" => "replay:shipped".to_string(),
        name => match gpu(name) {
            // A GPU has one name, however many zeros were typed before its number.
            Some(ordinal) => format!("cuda:{ordinal}"),
            None => name.to_string(),
        },
    };
    let devices: Vec<String> = names.split(',').map(|name| one(name.trim())).collect();
    let is_known = |device: &&String| *device == "cpu" || device.starts_with("replay:") || gpu(device).is_some();
    if let Some(unknown) = devices.iter().find(|device| !is_known(device)) {
        return Err(Failure::usage(format!(
            "device is {unknown}; allowed: {DEVICES}, nothing else runs and times candidates"
        )));
    }
    let several_kinds = devices.len() > 1 && !devices.iter().all(|device| device.starts_with("cuda:"));
    let mut distinct = devices.clone();
    distinct.sort();
    distinct.dedup();
    if several_kinds || distinct.len() < devices.len() {
        return Err(Failure::usage(format!(
            "`{names}`: several devices are different GPUs, as in cuda:0,cuda:1"
        )));
    }
    Ok(devices)
}

fn search(args: &TuneArgs, case: &Case, devices: &[String], share: f64) -> Result<Kept, Failure> {
    // A run that is taken up again goes on with what it began with.
    if args.is_informed() && !args.no_measure && !args.resume {
        rates::measure_once(&devices[0], !args.json)?;
    }
    let setup = Setup::new(&devices[0], &case.problem, &args.family, args.torture)?;
    if let Some(start) = &args.start {
        may_begin(start, &devices[0], &case.problem, &setup)?;
    }
    let may_have_row = !args.no_plan && !args.torture;
    let cannot_keep = may_have_row.then(|| plan::cannot_keep(&devices[0], &case.problem));
    for note in setup.plan_notes.iter().chain(cannot_keep.flatten().as_ref()) {
        style::eprint(&style::wrap(&format!("note: {note}"), 2));
    }
    let seed = args.seed.unwrap_or(STRATEGY_SEED);
    let mut rates = setup.advisor.as_ref().map(Advisor::rates);
    let (strategy, strategy_name): (Box<dyn Strategy>, String) = match &args.proposer {
        Some(command) => {
            let mut outside = Outside::start(command, &case.problem, &devices[0], PROPOSER_DEADLINE)?;
            if let Some(advisor) = &setup.advisor {
                outside = outside.informed(advisor.clone());
            }
            (Box::new(outside), format!("{OUTSIDE}{command}"))
        }
        None => {
            let [modelled, otherwise] = DEFAULTS;
            let default = if setup.advisor.is_some() { modelled } else { otherwise };
            let kind = args.strategy.unwrap_or(default);
            // Of a card without a profile it says why the default strategy does not predict.
            if let Some(note) = setup.rates_note.filter(|_| args.is_informed()) {
                style::eprint(&style::wrap(&format!("note: {note}"), 2));
            }
            if !kind.is_informed() {
                rates = None;
            }
            (kind.start(seed, setup.advisor.as_ref())?, kind.name().to_string())
        }
    };
    let (trials, time) = match args.budget {
        Budget::Trials(trials) => (trials, Duration::MAX),
        Budget::Time(time) => (usize::MAX, time.mul_f64(share)),
    };
    let deadline = Duration::from_secs(args.deadline);
    let folder = folder(args, case, devices)?;
    // A run goes on from where it began, whatever plan tables say by now: perhaps its own winner is in one.
    let (start, default) = match args.resume {
        true => {
            let begun = read_header(&folder)?;
            (begun.start, begun.default)
        }
        false => (setup.start, setup.default),
    };
    // Each device has as many on their way as one alone would have: compiling them is what it waits for otherwise.
    let window = setup.window * devices.len();
    let ctrl_c = CtrlC::watch(&folder)?;
    let request = Request {
        case: case.clone(),
        devices: devices.to_vec(),
        strategy,
        strategy_name,
        seed,
        inputs: args.seed,
        space: setup.space,
        chip: setup.chip,
        start: args.start.clone().unwrap_or(start),
        default,
        rates,
        trials,
        time,
        finalists: FINALISTS,
        window,
        compilers: compilers_for(2 * window),
        folder: folder.clone(),
        resume: args.resume,
        program: program(&folder)?,
        deadlines: Deadlines::of_run(deadline),
        timing: setup.timing,
        locks: device_lock::folder(),
        interrupt: ctrl_c.interrupt.clone(),
    };
    let mut live = Live::new(!args.json, args.budget_trials(), time);
    let found = flashcore_tune::run(request, &mut live);
    live.end();
    let found = found.map_err(|error| {
        // A folder that was claimed for a run that did not begin; one with something in it stays.
        if args.folder.is_none() {
            let _ = std::fs::remove_dir(&folder);
        }
        ended_by(error, &folder)
    })?;
    Ok(Kept {
        found,
        folder,
        ctrl_c,
        resumed: live.resumed(),
    })
}

/// What ended a search, with what is left of it. A run that is another than what was asked for is not gone on with.
fn ended_by(error: TuneError, folder: &Path) -> Failure {
    let is_other = matches!(error, TuneError::BadOption { .. } | TuneError::Resume { .. });
    let failure = Failure::from(error);
    match interrupt::left(folder).filter(|_| !is_other) {
        Some(left) => failure.left(left),
        None => failure,
    }
}

/// Whether a search ended because it had proposed all there is, which is known of one that counts trials.
fn is_exhausted(budget: Budget, found: &Found) -> bool {
    let tried = found.history.trials().len();
    matches!(budget, Budget::Trials(most) if tried < most) && found.proposer_gone.is_none()
}

/// What to type to go on; `None` where there is nothing else to try.
fn go_on(budget: Budget, found: &Kept) -> Option<String> {
    // The budget was not spent.
    if found.proposer_gone.is_some() {
        return Some(resume_command(&found.folder));
    }
    let trials = found.history.trials();
    let seconds: f64 = trials.iter().map(|trial| trial.seconds).sum();
    let spent = Duration::try_from_secs_f64(seconds / found.header.devices.len().max(1) as f64);
    let more = budget.twice(trials.len(), spent.unwrap_or_default());
    (!is_exhausted(budget, found)).then(|| go_on_command(&found.folder, more))
}

/// Why a run that was taken up again did nothing, if so. That its proposer died is said elsewhere.
fn nothing_new(budget: Budget, found: &Found) -> Option<String> {
    let tried = style::count(found.history.trials().len() as u64, "trial");
    let why = match is_exhausted(budget, found) {
        true => "nothing else is proposed".to_string(),
        false => format!("a budget of {budget} leaves no other"),
    };
    let is_so = found.nothing_new && found.proposer_gone.is_none();
    is_so.then(|| {
        format!("nothing was left to do: {tried} had been made before, and {why}; the leaderboard is the one of then")
    })
}

/// Where a run is kept, and what can be done with it.
fn kept_text(budget: Budget, found: &Kept) -> String {
    // Not wrapped: they are to be copied.
    let typed = |what: &str, command: &str| format!("  {DIM}{what:<10}{DIM:#}{CODE}{command}{CODE:#}\n");
    let again = format!("flashcore leaderboard {}", quoted(found.folder.as_os_str()));
    let go_on = go_on(budget, found).map(|command| typed("go on", &command));
    style::field("evidence", &found.folder.display().to_string()) + &typed("again", &again) + &go_on.unwrap_or_default()
}

/// Whether a search can begin at a config that was named: what is no config, or is refused, is a question asked wrongly
/// and no result.
fn may_begin(start: &str, device: &str, problem: &Problem, setup: &Setup) -> Result<(), Failure> {
    let is_planted = Conduct::of_id(start).is_some();
    let looked = match device.starts_with("replay:") || is_planted {
        true => setup.space.admits(start),
        false => Gatekeeper::new(problem, setup.chip).look(start).map(drop),
    };
    let wrong = |why: String| Failure::usage(format!("--start {start}: {why}"));
    looked.map_err(|why| match is_planted {
        true => wrong(why).help("planted candidates are tried with --torture only"),
        false => wrong(why).help("leave --start out to begin at the default"),
    })
}

/// The folder of the run.
fn folder(args: &TuneArgs, case: &Case, devices: &[String]) -> Result<PathBuf, Failure> {
    if let Some(folder) = &args.folder {
        return Ok(folder.clone());
    }
    let nowhere = || {
        Failure::usage("there is no place for the run: neither XDG_DATA_HOME nor HOME is set")
            .help("name one with --folder")
    };
    let kept = runs::folder().ok_or_else(nowhere)?;
    Ok(match args.resume {
        true => runs::latest(&kept, &case.name, devices)?,
        false => runs::new_folder(&kept, &case.name, &devices.join("-"))?,
    })
}

/// This program as a worker of the run in a folder. Kernels that were only tried do not fill the user's cache of compiled
/// kernels.
fn program(folder: &Path) -> Result<Program, Failure> {
    let mut program = worker::program()?;
    let jit = jit_cache(runs::folder(), folder);
    for name in ["CUDA_CACHE_PATH", "FLASHCORE_CACHE_DIR"] {
        program.env.push((name.into(), jit.clone().into_os_string()));
    }
    Ok(program)
}

/// Where what is compiled for a search is kept: beside the runs; where nothing says where runs are, in the run's folder.
fn jit_cache(runs: Option<PathBuf>, folder: &Path) -> PathBuf {
    runs.map_or_else(|| folder.join("kernels"), |runs| runs.with_file_name("tune-kernels"))
}

impl From<TuneError> for Failure {
    fn from(error: TuneError) -> Failure {
        match error {
            // Elsewhere the simulator is offered, too; it has no clock.
            TuneError::Bench(error) if error.is_environment() => {
                Failure::from(error).help("`--device cpu` and `--device replay:shipped` need no GPU")
            }
            TuneError::Bench(error) => error.into(),
            TuneError::BadOption { .. } | TuneError::Resume { .. } => Failure::usage(error),
            _ if error.is_environment() => Failure::environment(error),
            _ => Failure::failed(error),
        }
    }
}

/// A heading for a part of the output.
pub(crate) fn heading(title: &str, about: &str) -> String {
    format!("\n{HEAD}{title}{HEAD:#} {DIM}· {about}{DIM:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_a_search_are_never_in_the_users_cache() {
        let run = Path::new("/runs/one");
        let beside = jit_cache(Some("/data/flashcore/tune".into()), run);
        assert_eq!(beside, Path::new("/data/flashcore/tune-kernels"));
        assert_eq!(jit_cache(None, run), Path::new("/runs/one/kernels"));
    }

    #[test]
    fn several_devices_are_different_gpus() {
        assert_eq!(devices("cuda:0,cuda:1").unwrap(), ["cuda:0", "cuda:1"]);
        assert_eq!(devices("replay").unwrap(), ["replay:shipped"]);
        assert_eq!(devices("cuda:01,cuda:00").unwrap(), ["cuda:1", "cuda:0"]);
        for wrong in [
            "cpu,cpu",
            "cuda:0,cuda:0",
            "cuda:0,cuda:00",
            "cuda,cuda:+0",
            "cpu,cuda:0",
            "foo",
            "sim",
            "cuda:x",
            "",
        ] {
            assert!(devices(wrong).is_err(), "{wrong}");
        }
    }
}
