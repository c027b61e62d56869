//! `flashcore tune`: searches the fastest correct kernel for a problem on a device. `flashcore tune show`
//! shows the results, `flashcore worker` runs candidates.

pub(crate) mod args;
pub(crate) mod interrupt;
pub(crate) mod leaderboard;
mod live;
mod overview;
mod peers;
mod plan;
mod resume;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flashcore::Problem;
use flashcore_bench::Case;
use flashcore_bench::profile::{Ncu, Profiler};
use flashcore_check::cost::{PREDICT, predicted_card};
use flashcore_check::own::{Template, function};
use flashcore_check::programs::{self, quoted};
use flashcore_check::sandbox::Confinement;
use flashcore_ir::Profile;
use flashcore_tune::board::Board;
use flashcore_tune::insight::Advisor;
use flashcore_tune::journal::read_header;
use flashcore_tune::strategy::{Kind, Outside, Strategy};
use flashcore_tune::worker::planted::Conduct;
use flashcore_tune::worker::{Deadlines, Program};
use flashcore_tune::{
    Counting, Gatekeeper, OWN, Outcome as Found, PeerComparison, Request, Setup, TuneError, device_lock, runs,
};
use serde_json::{Value, json};

use crate::kernel_file::Trusted;
use crate::own::OwnArgs;
use crate::tune::args::{Budget, OUTSIDE, TuneArgs, What};
use crate::tune::interrupt::{CtrlC, resume_command};
use crate::tune::live::Live;
use crate::{CODE, DIM, Failure, Given, Outcome, Page, bench, kernels, machine, style, without_gpu, worker};

/// The problem where none is named.
pub(crate) const USUAL: &str = "small";

const PROPOSER_DEADLINE: Duration = Duration::from_secs(300);

/// `tune mine.toml`, `tune mine.py:attend`: a search among the values of a declaration alone, on the usual problem.
fn of_declaration(args: &TuneArgs) -> Option<TuneArgs> {
    let name = &args.problem.name;
    let is_one = Template::is_one(Path::new(name)) || function(name).is_some();
    let mut args = is_one.then(|| args.clone())?;
    args.kernel
        .push(std::mem::replace(&mut args.problem.name, USUAL.to_string()));
    args.family.extend(args.family.is_empty().then(|| OWN.to_string()));
    Some(args)
}

pub(crate) fn run(args: &TuneArgs, given: &Given) -> Result<Outcome, Failure> {
    if let Some(What::Show(args)) = &args.what {
        return leaderboard::run(args);
    }
    let taken_up = resume::taken_up(args, given)?;
    let args = taken_up.as_ref().unwrap_or(args);
    let of_declaration = of_declaration(args);
    let args = of_declaration.as_ref().unwrap_or(args);
    let problem = args.problem.problem()?;
    let case = Case::new(args.problem.label(&problem), problem);
    let devices = devices(&args.device, args.workers.is_some())?;
    // Workers elsewhere may have peers that this machine has not.
    match devices.first().map(String::as_str) {
        Some(device) if is_told(device) => bench::refuse_named_peers(&args.peers, device)?,
        Some(device) if args.workers.is_none() => bench::check_peers(&args.peers, device == "cpu")?,
        _ => {}
    }
    // Without flags and without a GPU, also show what can be shown of GPUs.
    let tour = args.device == "best" && devices == ["cpu"] && !args.json && !args.torture && !args.resume;
    let (found, ctrl_c) = search(args, &case, &devices, if tour { 0.5 } else { 1.0 })?;
    if found.interrupted {
        let json = || json_of(&found, None, None);
        style::show(args.json, json, || interrupt::kept(&found.folder));
        return Ok(Outcome::Interrupted);
    }
    if !args.json {
        result(&found, tour.then_some(args.budget()), &case).print();
    }
    // A failure from here on is reported, and does not lose the result.
    let plan = plan::keep(&found, !args.plans());
    ctrl_c.is_over();
    // The comparison of an earlier search is kept, if it still holds and is complete.
    let board = found.board.as_ref().filter(|_| found.nothing_new);
    let kept = board.and_then(|board| PeerComparison::read(&found.folder, board));
    let kept = kept.filter(|kept| kept.missing.is_none());
    let comparison = kept.or_else(|| peers::compare(&found, &case, &devices[0], &args.peers));
    let remedy = plan.remedy(&found.folder);
    let json = || json_of(&found, comparison.as_ref(), Some(&plan));
    style::show(args.json, json, || {
        let mut page = Page::default();
        if let Some(comparison) = &comparison {
            peers::add(&mut page, comparison);
        }
        page.field("plan", plan.text());
        add_commands(&mut page, args.budget(), &found, plan.undo());
        page
    });
    if let Some(why) = nothing_new(args.budget(), &found) {
        style::note(why);
    }
    if let Some(note) = &remedy {
        style::eprint(note);
    }
    if tour {
        without_gpu::run(&case.problem)?;
    }
    if let Some(why) = &found.proposer_gone {
        style::note(format_args!("the search ended early: {why}"));
    }
    // A default that fails is a finding, whatever else was found.
    let is_good = |board: &Board| board.winner.is_some() && !board.is_start_bad();
    let is_clean = found.board.as_ref().is_some_and(is_good) && found.proposer_gone.is_none() && remedy.is_none();
    Ok(Outcome::of(is_clean))
}

/// What a search found. `tour` is the budget of a search that shares it with the GPU kernel under the simulator.
fn result(found: &Found, tour: Option<Budget>, case: &Case) -> Page {
    let header = &found.header;
    let does = match header.untimed() {
        None => "Attention".to_string(),
        Some(what) => format!("A {what}"),
    };
    let devices = header.devices.iter();
    let devices = devices.map(|device| format!("{} ({})", device.device, device.name));
    let devices = devices.collect::<Vec<_>>().join(" and ");
    let mut page = Page::default();
    page.heading(format_args!("{does} on {devices}"), &header.problem);
    if let Some(board) = &found.board {
        leaderboard::add_headline(&mut page, header, board, &found.history);
    }
    if tour.is_some() {
        page.field("predicted", without_gpu::predicted(&case.problem));
    }
    leaderboard::add_summary(&mut page, &found.history, Some(found.seconds));
    if let Some(Budget::Time(budget)) = tour {
        let budget = budget.as_secs_f64();
        let text = "is for the search, and half for the GPU kernel under the simulator; with --device cpu all of it is \
                    for the search";
        page.field("budget", format_args!("half of {budget}s {text}"));
    }
    if let Some(board) = &found.board {
        leaderboard::add_board(&mut page, board, &found.folder);
    }
    leaderboard::add_failures(&mut page, &found.history);
    if let Some(claims) = &found.claims {
        leaderboard::add_claims(&mut page, claims);
    }
    live::add_about(&mut page, header, found.resumed);
    page
}

fn json_of(found: &Found, comparison: Option<&PeerComparison>, plan: Option<&plan::Kept>) -> Value {
    json!({
        "run": found.header,
        "trials": found.history.trials(),
        "board": found.board,
        "peers": comparison,
        "claims": found.claims,
        "workers_started": found.workers_started,
        "seconds": found.seconds,
        "folder": found.folder,
        "plan": plan.map(plan::Kept::json),
        "proposer_gone": found.proposer_gone,
        "interrupted": found.interrupted,
        "resume": found.interrupted.then(|| resume_command(&found.folder, None)),
    })
}

fn gpu(name: &str) -> Option<u32> {
    name.strip_prefix("cuda:")?.parse().ok()
}

/// Whether a device runs nothing: its times are known, or predicted.
fn is_told(device: &str) -> bool {
    device.starts_with("replay:") || predicted_card(device).is_some()
}

/// The devices of a list. Workers that run elsewhere may be of any kind, and have devices of the same name.
fn devices(names: &str, elsewhere: bool) -> Result<Vec<String>, Failure> {
    let one = |name: &str| match name {
        // The device is only listed: the worker initialises it.
        "best" => match machine::gpus_or_none().iter().find(|info| machine::is_supported(info)) {
            None => "cpu".to_string(),
            Some(info) => format!("cuda:{}", info.ordinal),
        },
        "cuda" => "cuda:0".to_string(),
        "replay" => "replay:shipped".to_string(),
        // `predict:L4` is `predict:l4`, `cuda:00` is `cuda:0`.
        name if Profile::named(name.strip_prefix(PREDICT).unwrap_or_default()).is_some() => name.to_ascii_lowercase(),
        name => gpu(name).map_or(name.to_string(), |ordinal| format!("cuda:{ordinal}")),
    };
    let devices: Vec<String> = names.split(',').map(|name| one(name.trim())).collect();
    let is_known = |device: &&String| *device == "cpu" || is_told(device) || gpu(device).is_some();
    if let Some(unknown) = devices.iter().find(|device| !is_known(device)) {
        let allowed = "best, cpu, cuda:N, several GPUs as cuda:0,cuda:1, replay:FILE, predict:CARD";
        let failure = Failure::usage(format!("device is {unknown}; allowed: {allowed}"));
        return Err(match Profile::named(unknown) {
            Some(card) => failure.help(format!(
                "write `--device {PREDICT}{}` to predict for that card",
                card.name
            )),
            None => failure,
        });
    }
    let several_kinds = devices.len() > 1 && !devices.iter().all(|device| device.starts_with("cuda:"));
    if !elsewhere && (several_kinds || BTreeSet::from_iter(&devices).len() < devices.len()) {
        let why = format!("`{names}`: several devices must be different GPUs, as in cuda:0,cuda:1");
        return Err(Failure::usage(why).help("with --workers, one name may stand for devices of several machines"));
    }
    Ok(devices)
}

fn search(args: &TuneArgs, case: &Case, devices: &[String], share: f64) -> Result<(Found, CtrlC), Failure> {
    // A continued run keeps its rates.
    if args.is_informed() && args.measures() && !args.resume {
        worker::measure_once(&devices[0], !args.json)?;
    }
    let (is_trusted, is_predicted) = (args.trust.is_some(), predicted_card(&devices[0]).is_some());
    let (start, files) = args.kernels()?;
    let mut own = OwnArgs::candidates(&files, is_trusted, is_predicted)?;
    if !is_trusted && !is_predicted {
        own = own.without_code("code that a proposer writes is launched on a GPU only with --trust");
    }
    let mut setup = Setup::new(&devices[0], &case.problem, &args.family, args.torture, own)?;
    if let Some(start) = &start {
        may_begin(start, &devices[0], &case.problem, &setup)?;
    }
    let device = setup.device.as_ref().filter(|_| args.plans() && !args.torture);
    let cannot_keep = device.and_then(|device| plan::cannot_keep(device, &case.problem));
    for note in setup.plan_notes.iter().chain(&cannot_keep) {
        style::note(note);
    }
    let seed = args.seed.unwrap_or(1);
    let mut rates = setup.advisor.as_ref().map(Advisor::rates);
    let (strategy, strategy_name): (Box<dyn Strategy>, String) = match &args.proposer {
        Some(command) => {
            let advisor = setup.advisor.clone();
            let outside = Outside::start(command, &case.problem, &devices[0], PROPOSER_DEADLINE, advisor)?;
            (Box::new(outside.with_own(&setup.own)), format!("{OUTSIDE}{command}"))
        }
        None => {
            // The best in replays of the shipped space, with a cost model and without. Kernels of the user are not
            // predicted before they are tried.
            let are_all_own = setup.space.families().all(|family| family.name == OWN);
            let kind = args.strategy.unwrap_or(match setup.advisor {
                Some(_) if !are_all_own => Kind::Ranked,
                _ => Kind::Elite,
            });
            // For a card without a profile: why the default strategy does not predict.
            if let Some(note) = setup.rates_note.as_ref().filter(|_| args.is_informed()) {
                style::note(note);
            }
            if !kind.is_informed() {
                rates = None;
            }
            (kind.start(seed, setup.advisor.as_ref())?, kind.name().to_string())
        }
    };
    let (trials, time) = match args.budget() {
        Budget::Trials(trials) => (trials, Duration::MAX),
        Budget::Time(time) => (usize::MAX, time.mul_f64(share)),
    };
    let folder = folder(args, case, devices)?;
    let _unused = args.folder.is_none().then(|| resume::Unused(folder.clone()));
    if args.resume {
        // Plan tables may have changed since, by its own winner for one.
        let begun = read_header(&folder)?;
        (setup.start, setup.default) = (begun.start, begun.default);
    }
    if let Some(start) = &start {
        setup.start.clone_from(start);
    }
    let counting = args
        .counters
        .then(|| counting(args, case, devices, &setup))
        .transpose()?;
    let ctrl_c = CtrlC::watch(&folder)?;
    let request = Request {
        command: resume::command(),
        case: case.clone(),
        devices: devices.to_vec(),
        strategy,
        strategy_name,
        seed,
        inputs: args.seed,
        setup,
        rates,
        counting: counting.flatten(),
        trials,
        time,
        folder: folder.clone(),
        resume: args.resume,
        program: program(&folder, args.workers.as_deref())?,
        confinement: match args.trust {
            Some(Trusted::Unsandboxed) => Confinement::Unsandboxed,
            _ => Confinement::Sandboxed,
        },
        elsewhere: args.workers.is_some(),
        deadlines: Deadlines::of_run(args.deadline),
        // Names and locks of devices are those of one machine.
        locks: device_lock::folder().filter(|_| args.workers.is_none()),
        interrupt: ctrl_c.interrupt.clone(),
    };
    let mut live = Live::new(!args.json, trials, time);
    let found = flashcore_tune::run(request, &mut live);
    live.bar.finish_and_clear();
    Ok((found.map_err(|error| ended_by(error, &folder))?, ctrl_c))
}

/// What reads the counters of each new best; `None`, with a note, where there is no ncu.
fn counting(args: &TuneArgs, case: &Case, devices: &[String], setup: &Setup) -> Result<Option<Counting>, Failure> {
    if devices == ["cpu"] || predicted_card(&devices[0]).is_some() {
        let device = devices[0].replace("cpu", "the CPU");
        let why = format!("--counters reads those of a GPU, and the device is {device}");
        return Err(Failure::usage(why).help("leave --counters out, or name a device such as cuda:0"));
    }
    if !args.is_informed() {
        let why = "--counters is for strategies that use claims, and this one ignores them";
        return Err(Failure::usage(why).help("use ranked, or one with +insights"));
    }
    let ncu = match Ncu::find() {
        Ok(ncu) => ncu,
        Err(why) => {
            style::note(format_args!("no counters: {why}"));
            return Ok(None);
        }
    };
    let profiler = Profiler {
        ncu,
        program: worker::program()?.path,
    };
    Ok(Some(Counting::new(profiler, case.clone(), setup.chip)))
}

/// The error that ended a search, with what was kept of it, unless it is about another run.
fn ended_by(error: TuneError, folder: &Path) -> Failure {
    let is_other = matches!(error, TuneError::Usage(_));
    let failure = Failure::from(error);
    match interrupt::left(folder).filter(|_| !is_other) {
        Some(left) => failure.left(left.to_string()),
        None => failure,
    }
}

/// Whether a search ended because nothing else was proposed; known only of a budget in trials.
fn is_exhausted(budget: Budget, found: &Found) -> bool {
    let tried = found.history.trials().len();
    matches!(budget, Budget::Trials(most) if tried < most) && found.proposer_gone.is_none()
}

/// The command that continues a search; `None` if there is nothing else to try.
fn go_on(budget: Budget, found: &Found) -> Option<String> {
    // The budget was not spent.
    if found.proposer_gone.is_some() {
        return Some(resume_command(&found.folder, None));
    }
    let trials = found.history.trials();
    let seconds: f64 = trials.iter().map(|trial| trial.seconds).sum();
    let spent = Duration::try_from_secs_f64(seconds / found.header.devices.len().max(1) as f64);
    let more = budget.twice(trials.len(), spent.unwrap_or_default());
    (!is_exhausted(budget, found)).then(|| resume_command(&found.folder, Some(more)))
}

/// Why a continued run did nothing, if so. The end of its proposer is reported elsewhere.
fn nothing_new(budget: Budget, found: &Found) -> Option<String> {
    let tried = style::count(found.history.trials().len(), "trial");
    let why = if is_exhausted(budget, found) {
        "nothing else is proposed".to_string()
    } else {
        format!("`{budget}` leaves no other")
    };
    let is_so = found.nothing_new && found.proposer_gone.is_none();
    let note = format!("nothing was left to do: {tried} had been made before, and {why}; the leaderboard is unchanged");
    is_so.then_some(note)
}

fn add_commands(page: &mut Page, budget: Budget, found: &Found, undo: Option<String>) {
    page.field("evidence", found.folder.display());
    let again = format!("flashcore tune show {}", quoted(found.folder.as_os_str()));
    // Not wrapped: they are to be copied.
    for (what, command) in [("undo", undo), ("again", Some(again)), ("go on", go_on(budget, found))] {
        if let Some(command) = command {
            page.line(format_args!("  {DIM}{what:<10}{DIM:#}{CODE}{command}{CODE:#}"));
        }
    }
}

/// Refuses a first candidate that is not a config or cannot serve the problem.
fn may_begin(start: &str, device: &str, problem: &Problem, setup: &Setup) -> Result<(), Failure> {
    let is_planted = Conduct::of_id(start).is_some();
    let looked = if device.starts_with("replay:") || is_planted {
        setup.space.admits(start)
    } else {
        Gatekeeper::new(problem, setup.chip)
            .with_own(&setup.own)
            .look(start)
            .map(drop)
    };
    let help = if is_planted {
        "planted candidates are tried with --torture only"
    } else {
        "leave the id out to begin at the default"
    };
    looked.map_err(|why| kernels::unknown(start, Failure::usage(format!("--kernel {start}: {why}")).help(help)))
}

fn folder(args: &TuneArgs, case: &Case, devices: &[String]) -> Result<PathBuf, Failure> {
    if let Some(folder) = &args.folder {
        return Ok(folder.clone());
    }
    let nowhere = || {
        Failure::usage("there is no place for the run: neither XDG_DATA_HOME nor HOME is set")
            .help("name one with --folder")
    };
    let kept = runs::folder().ok_or_else(nowhere)?;
    Ok(if args.resume {
        runs::latest(&kept, &case.name, devices)?
    } else {
        runs::new_folder(&kept, &case.name, &devices.join("-"))?
    })
}

/// This program as a worker of the run in a folder, or the command that starts one. The search has its own cache of
/// compiled kernels.
fn program(folder: &Path, workers: Option<&str>) -> Result<Program, Failure> {
    let mut program = worker::program()?;
    if let Some(command) = workers {
        let mut words = command.split_whitespace();
        let no_program = || Failure::usage("--workers: name a program, as in 'ssh HOST flashcore worker'");
        let word = words.next().ok_or_else(no_program)?;
        let found = programs::find_named(word.as_ref());
        program.path = found.map_err(|error| Failure::usage(format!("{word}: it cannot be started: {error}")))?;
        program.args = words.map(Into::into).collect();
    }
    let jit = jit_cache(runs::folder(), folder);
    for name in ["CUDA_CACHE_PATH", "FLASHCORE_CACHE_DIR"] {
        program.env.push((name.into(), Some(jit.clone().into_os_string())));
    }
    Ok(program)
}

/// The cache of compiled kernels: next to the folder of runs, or in the run's folder if there is none.
fn jit_cache(runs: Option<PathBuf>, folder: &Path) -> PathBuf {
    runs.map_or_else(|| folder.join("kernels"), |runs| runs.with_file_name("tune-kernels"))
}

impl From<TuneError> for Failure {
    fn from(error: TuneError) -> Failure {
        match error {
            // `--device sim` cannot time kernels.
            TuneError::Bench(error) if error.is_environment() => Failure::from(error)
                .help("`--device cpu`, `--device predict:CARD` and `--device replay:shipped` need no GPU"),
            TuneError::Bench(error) => error.into(),
            TuneError::Usage(_) => Failure::usage(error),
            _ if error.is_environment() => Failure::environment(error),
            _ => Failure::failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_a_search_are_never_in_the_users_cache() {
        let run = Path::new("/runs/one");
        let shared = jit_cache(Some("/data/flashcore/tune".into()), run);
        assert_eq!(shared, Path::new("/data/flashcore/tune-kernels"));
        assert_eq!(jit_cache(None, run), Path::new("/runs/one/kernels"));
    }

    #[test]
    fn several_devices_are_different_gpus() {
        assert_eq!(devices("cuda:0,cuda:1", false).unwrap(), ["cuda:0", "cuda:1"]);
        assert_eq!(devices("replay", false).unwrap(), ["replay:shipped"]);
        assert_eq!(devices("cuda:01,cuda:00", false).unwrap(), ["cuda:1", "cuda:0"]);
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
            assert!(devices(wrong, false).is_err(), "{wrong}");
        }
    }
}
