//! `flashcore tune`: searches for the fastest correct kernel for a problem on a device.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use flashcore::{DeviceInfo, Problem};
use flashcore_bench::Case;
use flashcore_ir::Target;
use flashcore_tune::insight::Advisor;
use flashcore_tune::journal::read_header;
use flashcore_tune::strategy::{Kind, Outside, Population, Strategy};
use flashcore_tune::worker::planted::Conduct;
use flashcore_tune::worker::{Deadlines, Program, compilers_for};
use flashcore_tune::{Gatekeeper, Outcome as Found, Request, Setup, TuneError, runs};
use serde_json::json;

use crate::args::ProblemArgs;
use crate::claims;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{CtrlC, quoted, resume_command};
use crate::leaderboard;
use crate::machine;
use crate::style::{self, CODE, DIM, HEAD};
use crate::tune_beside;
use crate::tune_live::Live;
use crate::tune_peers;
use crate::tune_plan;
use crate::tune_rates;
use crate::tune_without_gpu;
use crate::worker;

/// Find the fastest correct kernel for a problem on this machine
///
/// Proposes configs, sends each through gates (what is refused, does not compile, is wrong, differs
/// from run to run, hangs or crashes costs one trial and no more), times the rest against the best so
/// far, and lets the best meet head to head. Every trial is kept as it happens, with its reason.
/// Without a GPU it tunes the CPU's kernels, checks the GPU's kernel under the simulator, and compares
/// strategies on a space that was measured on an H200.
#[derive(Args)]
#[command(after_help = TUNE_HELP)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    problem: ProblemArgs,
    /// best, cpu, cuda:N, several GPUs as cuda:0,cuda:1, or replay:FILE (replay:shipped)
    #[arg(long, value_name = "DEVICE", default_value = "best", help_heading = "Search")]
    device: String,
    /// exhaustive, random, hill, single, elite, niches, the last three with +insights, too, ranked
    /// (docs/tune.md) [default: ranked; elite where nothing models the device]
    #[arg(long, value_name = "NAME", value_parser = strategy, help_heading = "Search")]
    strategy: Option<Kind>,
    /// A program that proposes configs, in place of a strategy (docs/tune.md)
    #[arg(long, value_name = "COMMAND", conflicts_with = "strategy", help_heading = "Search")]
    proposer: Option<String>,
    /// Trials or time of the search: 200, 90s, 5m; finals and peers come after it
    #[arg(long, value_name = "TRIALS|TIME", default_value = "60s", value_parser = budget, help_heading = "Search")]
    budget: Budget,
    /// The first candidate, in place of what the library would run
    #[arg(long, value_name = "ID", help_heading = "Search")]
    start: Option<String>,
    /// Families to search, in place of those worth it: mma, wgmma, scalar, ladder, cpu
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Search")]
    family: Vec<String>,
    /// Seed of the strategy and of the inputs [default: 1 for the strategy; inputs are drawn anew for each run]
    #[arg(long, value_name = "N", help_heading = "Search")]
    seed: Option<u64>,
    /// Search among candidates that hang, crash, are wrong or cheat, too: shows that the gates hold
    #[arg(long, help_heading = "Search")]
    torture: bool,
    /// Seconds after which a candidate that does not answer hangs, beside what the problem's size needs;
    /// more than 10 lengthens the deadlines of compiling and timing, too
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600), help_heading = "Search")]
    deadline: u64,
    /// Peers that the winner and the default are timed with at the end: all, none, or labels such as torch/cudnn,fa3
    #[arg(
        long,
        value_name = "LABELS",
        value_delimiter = ',',
        default_value = "all",
        help_heading = "Search"
    )]
    peers: Vec<String>,
    /// Predict with the profile's rates on a GPU that was never measured, in place of measuring it first
    #[arg(long, help_heading = "Search")]
    no_measure: bool,
    /// Keep the run in this folder, in place of one in the XDG data folder
    #[arg(long, value_name = "FOLDER", help_heading = "Evidence")]
    folder: Option<PathBuf>,
    /// Take up the run in --folder again, or the latest of this problem and device
    #[arg(long, help_heading = "Evidence")]
    resume: bool,
    /// Keep a winner out of the plan table that the library asks (`flashcore plans`)
    #[arg(long, help_heading = "Evidence")]
    no_plan: bool,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Without --strategy: the two that replays of the shipped space speak for, with a model of what kernels cost and without.
const DEFAULTS: [Kind; 2] = [Kind::Ranked, Kind::Evolution(Population::Elite)];
/// Seed of strategies where none is named.
const STRATEGY_SEED: u64 = 1;
/// Finalists besides the first candidate.
const FINALISTS: usize = 4;
/// Longest that an outside proposer may think.
const PROPOSER_DEADLINE: Duration = Duration::from_secs(300);

const TUNE_HELP: &str = "\
Examples:
  flashcore tune                                      a minute on the best device
  flashcore tune llama8b-prefill-2k --budget 10m
  flashcore tune --resume                             a run that was cut off, taken up again
  flashcore tune --device replay:shipped --budget 100 a search without a device
  flashcore tune mission --peers none                 without PyTorch at the end
  flashcore tune --torture --budget 40                with candidates that hang, crash and cheat
  flashcore tune --proposer 'python3 scripts/propose.py'

Verdicts, in the order of the gates:
  REFUSED, BUILD_FAILED, LAUNCH_FAILED, HUNG, WRONG, UNSTABLE, then by the clock SLOWER, AMBIGUOUS
  (no clear gain) or FASTER: at least 3 % against the best when it was
  proposed, the interval clear of none.

Ctrl-C ends the search after the candidates at hand and says how to go on; a second one ends it at once.

Exit codes: 0 done, 1 nothing could be timed, the default failed or the proposer died, 2 usage, 3 environment, 130 interrupted";

/// What --device may name.
const DEVICES: &str = "best, cpu, cuda:N, several GPUs as cuda:0,cuda:1, replay:FILE";

/// How long to search.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Budget {
    Trials(usize),
    Time(Duration),
}

fn strategy(name: &str) -> Result<Kind, String> {
    name.parse().map_err(|error: TuneError| error.to_string())
}

fn budget(text: &str) -> Result<Budget, String> {
    let wrong = || "write trials as 200, or time as 90s or 5m".to_string();
    let seconds = |number: &str, unit: f64| match number.trim().parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Duration::try_from_secs_f64(value * unit)
            .map(Budget::Time)
            .map_err(|_| wrong()),
        _ => Err(wrong()),
    };
    if let Some(minutes) = text.strip_suffix('m') {
        return seconds(minutes, 60.0);
    }
    if let Some(number) = text.strip_suffix('s') {
        return seconds(number, 1.0);
    }
    match text.parse() {
        Ok(trials) if trials > 0 => Ok(Budget::Trials(trials)),
        _ => Err(wrong()),
    }
}

pub(crate) fn run(args: &TuneArgs) -> Result<Outcome, Failure> {
    let problem = args.problem.problem()?;
    let case = Case {
        name: args.problem.label(&problem),
        problem,
    };
    let devices = devices(&args.device)?;
    // Somebody who names nothing and has no GPU is shown everything that can be shown without one.
    let tour = args.device == "best" && devices == ["cpu"] && !args.json && !args.torture && !args.resume;
    let _held = tune_beside::hold(&devices);
    let found = search(args, &case, &devices, if tour { 0.5 } else { 1.0 })?;
    if found.interrupted {
        return Ok(interrupted(args, &found));
    }
    let plan = tune_plan::keep(&found.found, args.no_plan)?;
    found.ctrl_c.is_over();
    let beside = tune_peers::compare(&found.found, &case, &devices[0], &args.peers, &found.folder)?;
    if args.json {
        style::print_json(&json!({
            "run": found.header,
            "trials": found.history.trials(),
            "board": found.board,
            "peers": beside,
            "claims": found.claims,
            "workers_started": found.workers_started,
            "seconds": found.seconds,
            "folder": found.folder,
            "plan": plan.json(),
            "proposer_gone": found.proposer_gone,
        }));
    } else {
        style::print(&beside.as_ref().map(tune_peers::text).unwrap_or_default());
        style::print(&plan.text());
        style::print(&kept_text(&found.folder));
    }
    if tour {
        tune_without_gpu::run(&case)?;
    }
    if let Some(why) = &found.proposer_gone {
        anstream::eprint!("{}", style::wrap(&format!("note: the search ended early: {why}"), 2));
    }
    // A default that fails is the worst that can be found, whatever else was.
    Ok(match &found.board {
        Some(board) if board.winner.is_some() && !board.is_start_bad() && found.proposer_gone.is_none() => {
            Outcome::Clean
        }
        _ => Outcome::Findings,
    })
}

/// Says what is left of a search that was interrupted.
fn interrupted(args: &TuneArgs, found: &Kept) -> Outcome {
    if args.json {
        style::print_json(&json!({
            "run": found.header,
            "trials": found.history.trials(),
            "board": found.board,
            "interrupted": true,
            "folder": found.folder,
            "resume": resume_command(&found.folder),
        }));
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

/// The devices of a list; `best` is the first GPU, or the host.
fn devices(names: &str) -> Result<Vec<String>, Failure> {
    let one = |name: &str| match name {
        // The driver is asked and the device not taken: that is for its worker.
        "best" => match machine::gpus()
            .unwrap_or_default()
            .iter()
            .find(|info| is_supported(info))
        {
            None => "cpu".to_string(),
            Some(info) => format!("cuda:{}", info.ordinal),
        },
        "cuda" => "cuda:0".to_string(),
        "replay" => "replay:shipped".to_string(),
        name => name.to_string(),
    };
    let devices: Vec<String> = names.split(',').map(|name| one(name.trim())).collect();
    let is_gpu = |device: &str| {
        let ordinal = device.strip_prefix("cuda:");
        ordinal.is_some_and(|ordinal| ordinal.parse::<u32>().is_ok())
    };
    let is_known = |device: &&String| *device == "cpu" || device.starts_with("replay:") || is_gpu(device);
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
        tune_rates::measure_once(&devices[0], !args.json)?;
    }
    let setup = Setup::new(&devices[0], &case.problem, &args.family, args.torture)?;
    if let Some(start) = &args.start {
        may_begin(start, &devices[0], &case.problem, &setup)?;
    }
    for note in &setup.plan_notes {
        anstream::eprint!("{}", style::wrap(&format!("note: {note}"), 2));
    }
    let seed = args.seed.unwrap_or(STRATEGY_SEED);
    let mut rates = setup.advisor.as_ref().map(Advisor::rates);
    let (strategy, strategy_name): (Box<dyn Strategy>, String) = match &args.proposer {
        Some(command) => {
            let mut outside = Outside::start(command, &case.problem, &devices[0], PROPOSER_DEADLINE)?;
            if let Some(advisor) = &setup.advisor {
                outside = outside.informed(advisor.clone());
            }
            (Box::new(outside), format!("outside: {command}"))
        }
        None => {
            let [modelled, otherwise] = DEFAULTS;
            let default = if setup.advisor.is_some() { modelled } else { otherwise };
            let kind = args.strategy.unwrap_or(default);
            // Of a card without a profile it says why the default strategy does not predict.
            if let Some(note) = setup.rates_note.filter(|_| args.is_informed()) {
                anstream::eprint!("{}", style::wrap(&format!("note: {note}"), 2));
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
        window: setup.window,
        compilers: compilers_for(2 * setup.window),
        folder: folder.clone(),
        resume: args.resume,
        program: program(&folder)?,
        deadlines: Deadlines::of_run(deadline),
        timing: setup.timing,
        interrupt: ctrl_c.interrupt.clone(),
    };
    let mut live = Live::new(!args.json, args.budget_trials(), time);
    let found = flashcore_tune::run(request, &mut live).inspect_err(|_| {
        // A folder that was claimed for a run that did not begin; one with something in it stays.
        if args.folder.is_none() {
            let _ = std::fs::remove_dir(&folder);
        }
    })?;
    live.end();
    if !args.json {
        if let Some(board) = &found.board {
            style::print(&leaderboard::text(&found.header, board, &found.history));
        }
        style::print(&leaderboard::summary(&found.history, Some(found.seconds)));
        if let Some(claims) = &found.claims {
            style::print(&claims::text(claims));
        }
    }
    Ok(Kept { found, folder, ctrl_c })
}

/// Where a run is kept, and what can be done with it.
fn kept_text(folder: &Path) -> String {
    // Not wrapped: they are to be copied.
    style::field("evidence", &folder.display().to_string())
        + &format!(
            "  {DIM}{:<10}{DIM:#}{CODE}flashcore leaderboard {}{CODE:#}\n",
            "again",
            quoted(folder.as_os_str())
        )
        + &format!(
            "  {DIM}{:<10}{DIM:#}{CODE}{}{CODE:#}\n",
            "go on",
            resume_command(folder)
        )
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

impl TuneArgs {
    /// Whether what proposes candidates asks the cost model, where there is one.
    fn is_informed(&self) -> bool {
        self.proposer.is_some() || self.strategy.is_none_or(Kind::is_informed)
    }

    fn budget_trials(&self) -> Option<usize> {
        match self.budget {
            Budget::Trials(trials) => Some(trials),
            Budget::Time(_) => None,
        }
    }
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
    fn budgets_are_trials_or_time() {
        assert_eq!(budget("200"), Ok(Budget::Trials(200)));
        assert_eq!(budget("90s"), Ok(Budget::Time(Duration::from_secs(90))));
        assert_eq!(budget("1.5m"), Ok(Budget::Time(Duration::from_secs(90))));
        for wrong in ["0", "-5", "fast", "m", "infs", "1e400s"] {
            assert!(budget(wrong).is_err(), "{wrong}");
        }
    }

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
        for wrong in ["cpu,cpu", "cuda:0,cuda:0", "cpu,cuda:0", "foo", "sim", "cuda:x", ""] {
            assert!(devices(wrong).is_err(), "{wrong}");
        }
    }
}
