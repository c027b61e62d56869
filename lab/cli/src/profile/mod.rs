//! `flashcore profile`: hardware counters of kernels and peers, and what simulator and cost model predict of the same
//! calls.

mod shown;

use std::path::{Path, PathBuf};

use clap::Args;
use flashcore::{Device, Problem};
use flashcore_bench::own::is_own;
use flashcore_bench::profile::{self, Goals, KernelProfile, Ncu, NcuError, Peers, ProfileRecord, Profiler, Said};
use flashcore_bench::python::Python;
use flashcore_bench::{Case, DeviceIdentity, LaunchMode, Options, Own, RunIdentity, Store, SubjectInfo};
use flashcore_check::cost::PREDICT;
use flashcore_check::render::few;
use flashcore_ir::files;
use flashcore_kernels::Plan;
use serde_json::{Value, json};

pub(crate) use self::shown::add_kept;
use self::shown::{LINES, Shown};
use crate::machine::Besides;
use crate::own::{Judged, OwnArgs};
use crate::quantity::fields;
use crate::{
    Card, Failure, HEAD, Outcome, Page, ProblemArgs, StoreArgs, args, cost, kernels, machine, simulated, style, worker,
};

/// Read a kernel's hardware counters with Nsight Compute, or predict them
///
/// Runs each kernel once under `ncu`, with clocks and caches as they are: busy shares of the tensor
/// cores, the exponential, FMA and ALU pipes, issue slots, shared memory, L2 and device memory,
/// occupancy, registers, bank conflicts, and what warps wait for, of our kernels also by Rust line.
/// The second column is what simulator and cost model predict of the same launch. Counters are kept
/// as evidence. Where there is no GPU or no ncu the predictions stand alone and the output says so.
/// --from reads counters that were taken on another machine, of any kernel: `ncu --csv --page raw
/// --set full PROGRAM > FILE.csv`, or `ncu --csv --metrics NAMES PROGRAM > FILE.csv`. What measured
/// counters point to is listed with a lever and the time that it saves at most.
#[derive(Args)]
#[command(after_long_help = include_str!("../help/profile.txt"))]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    problem: ProblemArgs,
    /// Kernels by id, or your own: FILE.toml, FILE.py:FUNCTION [default: the library's choice]
    #[arg(long, value_name = "IDS", value_delimiter = ',', help_heading = "How")]
    kernel: Vec<String>,
    /// Peers too: all, none, or labels such as torch/cudnn,fa3
    #[arg(
        long,
        value_name = "LABELS",
        value_delimiter = ',',
        default_value = "none",
        value_parser = args::peer,
        help_heading = "How"
    )]
    peers: Vec<String>,
    /// best, cuda, cuda:N; predict:CARD predicts for a card (`list profiles`) and reads no counters
    #[arg(long, value_name = "DEVICE", default_value = "best", help_heading = "How")]
    device: String,
    /// Counters that ncu printed as CSV elsewhere, in place of profiling here
    #[arg(long, value_name = "FILE.csv", help_heading = "How", conflicts_with_all = ["kernel", "device", "peers"])]
    from: Option<PathBuf>,
    /// Least busy shares in per cent: sm=70,dram=65,tensor=30
    ///
    /// Of the SM, of device memory where it binds, and of the tensor cores. These are the defaults.
    #[arg(long, value_name = "SHARES", value_parser = goals, help_heading = "How")]
    goal: Option<Goals>,
    /// Lines shown of each kernel
    #[arg(long, value_name = "N", default_value_t = LINES, help_heading = "Output")]
    lines: usize,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    own: OwnArgs,
    #[command(flatten)]
    keep: StoreArgs,
}

fn goals(text: &str) -> Result<Goals, String> {
    let mut goals = Goals::default();
    for (key, value) in fields(text, &["sm", "dram", "tensor"])? {
        let share = value.parse().ok().filter(|share| (0.0..=100.0).contains(share));
        let share: f64 = share.ok_or_else(|| format!("{key} is {value}; give per cent from 0 to 100"))?;
        match key {
            "sm" => goals.sm = share,
            "dram" => goals.dram = share,
            _ => goals.tensor = share,
        }
    }
    Ok(goals)
}

/// Launches a [`profile::Launch`], given as JSON, and nothing else: what runs under ncu.
pub(crate) fn launch(text: &str) -> Result<Outcome, Failure> {
    let launch: profile::Launch = serde_json::from_str(text)?;
    style::print(&format!("{}\n", json!(Said::Subject(Box::new(launch.run()?)))));
    Ok(Outcome::Clean)
}

pub(crate) fn run(args: &ProfileArgs) -> Result<Outcome, Failure> {
    let goals = args.goal.unwrap_or_default();
    if let Some(file) = &args.from {
        let title = format!("counters of {}", file.display());
        let (all, ignored) = read(file)?;
        show(args, &all, &goals, &title, None, &ignored);
        return Ok(Outcome::Clean);
    }
    let problem = args.problem.problem()?;
    let case = args.problem.case(&problem);
    // Also of an architecture, whose times are not predicted.
    let card = args.device.strip_prefix(PREDICT).map(Card::parse).transpose();
    let card = card.map_err(|why| Failure::usage(format!("--device {}: {why}", args.device)))?;
    let device = match card {
        Some(_) => Device::Cpu,
        None => machine::device(&args.device, Besides::CpuAndCards)?,
    };
    let (ids, own) = match card {
        Some(card) => args.own.ids_for_card(&args.kernel, card)?,
        None => args.own.ids(&args.kernel, &device)?,
    };
    let is_predicted = card.is_some();
    let card = card.unwrap_or_else(Card::default);
    let chosen = plans(args, &ids, &problem, card)?;
    let ncu = match device.context() {
        None if is_predicted => Err(format!("the device is {}", args.device)),
        None => Err("the device is the CPU".to_string()),
        Some(_) => Ncu::find().map_err(|error| error.to_string()),
    };
    let source = match &ncu {
        Ok(ncu) => format!("counters by ncu {}, one call, caches warm", ncu.version),
        Err(why) => format!("predicted only ({why})"),
    };
    let mut all: Vec<Shown> = chosen.iter().map(|plan| predicted(plan, card)).collect();
    let mut outcome = Outcome::Clean;
    let mut identity = None;
    if let (Ok(ncu), Some(context)) = (ncu, device.context()) {
        let program = worker::program()?.path;
        let profiler = Profiler { ncu, program };
        let run = RunIdentity::now(DeviceIdentity::cuda(context.info()));
        let name = format!("cuda:{}", context.info().ordinal);
        measure(args, &profiler, &name, &case, &chosen, &mut all)?;
        if !own.is_empty() {
            outcome = Outcome::of(add_own(args, &profiler, &device, &case, &own, &mut all)?);
        }
        keep(args, &run, &case, &all)?;
        identity = Some(run);
    } else {
        all.extend(own.iter().map(|own| {
            let subject = SubjectInfo::new(&own.label, LaunchMode::Plain);
            Shown::predicted(subject, Err("only FlashCore's kernels are predicted".to_string()))
        }));
    }
    let title = format!("{problem} on {}\n{source}", card.title());
    show(args, &all, &goals, &title, identity, &[]);
    Ok(outcome)
}

/// Judges the kernels of the user in another process, since under ncu they have no deadline, and profiles those that
/// are right. Returns whether all are.
fn add_own(
    args: &ProfileArgs,
    profiler: &Profiler,
    device: &Device,
    case: &Case,
    own: &[Own],
    all: &mut Vec<Shown>,
) -> Result<bool, Failure> {
    let python = own.iter().any(Own::is_python).then(Python::find_for_own);
    let python = python.transpose().map_err(Failure::environment)?;
    let mut all_right = true;
    for own in own {
        let spinner = style::spinner(&format!("judging {}", own.label));
        let judged = args.own.judged(device, std::slice::from_ref(case), own)?;
        drop(spinner);
        if let Some(Judged::NotServed(why) | Judged::Wrong(why)) = judged.first() {
            style::note(format_args!("{}: {why}", own.label));
            all_right = false;
            continue;
        }
        let _spinner = style::spinner(&format!("ncu profiles {}", own.label));
        let read = profiler.own(python.as_ref(), case, own, &device.to_string());
        let read = read.map_err(|error| unreadable(&error))?;
        all.push(Shown::read(read.subject, read.tool, read.launches));
    }
    Ok(all_right)
}

/// The plans to profile on a card.
fn plans(args: &ProfileArgs, ids: &[String], problem: &Problem, card: Card) -> Result<Vec<Plan>, Failure> {
    let plan = |id: Option<&str>| {
        let config = id.map(kernels::gpu).transpose()?;
        Ok(simulated::plan(problem, card, config)?.plan)
    };
    if args.kernel.is_empty() {
        return Ok(vec![plan(None)?]);
    }
    let ids = ids.iter().filter(|id| !is_own(id)).map(|id| Some(id.as_str()));
    ids.map(plan).collect()
}

/// A plan before anything is measured.
fn predicted(plan: &Plan, card: Card) -> Shown {
    let subject = SubjectInfo::ours(plan.config.to_string(), LaunchMode::Plain);
    Shown::predicted(subject, cost::counters(plan, card, cost::kept_rates(card).as_ref()))
}

/// Profiles the kernels, of which `all` has the predictions, and then the peers that are wanted.
fn measure(
    args: &ProfileArgs,
    profiler: &Profiler,
    device: &str,
    case: &Case,
    plans: &[Plan],
    all: &mut Vec<Shown>,
) -> Result<(), Failure> {
    for (plan, shown) in plans.iter().zip(all.iter_mut()) {
        let label = plan.config.to_string();
        let _spinner = style::spinner(&format!("ncu profiles {label}"));
        let read = profiler.kernel(case, plan, device);
        let read = read.map_err(|error| unreadable(&error))?;
        (shown.subject, shown.tool, shown.launches) = (read.subject, read.tool, read.launches);
    }
    if args.peers == ["none"] {
        return Ok(());
    }
    let found = Python::find().and_then(|python| Ok((Peers::of(&python)?, python)));
    let (peers, python) = match found {
        Ok(found) => found,
        Err(why) => {
            style::note(why);
            return Ok(());
        }
    };
    let (labels, notes) = peers.wanted(&args.peers);
    notes.iter().for_each(style::note);
    for label in labels {
        let spinner = style::spinner(&format!("ncu profiles {label}"));
        let read = profiler.peer(&python, case, &label, device);
        drop(spinner);
        match read {
            Ok(read) => all.push(Shown::read(read.subject, read.tool, read.launches)),
            // One that does not serve the problem does not stop the others.
            Err(NcuError::Failed(why)) => style::note(format_args!("{label}: {why}")),
            Err(error) => return Err(unreadable(&error)),
        }
    }
    Ok(())
}

fn unreadable(error: &NcuError) -> Failure {
    let failure = match error {
        NcuError::Failed(_) => Failure::failed(error),
        _ => Failure::environment(error),
    };
    failure.help("without counters: `flashcore explain` predicts, --from FILE.csv reads a profile made elsewhere")
}

fn keep(args: &ProfileArgs, identity: &RunIdentity, case: &Case, all: &[Shown]) -> Result<(), Failure> {
    let Some(path) = args.keep.path()? else { return Ok(()) };
    // The options of the protocol say nothing about counters.
    let run = Store::at(&path).begin_run(identity, &Options::default(), None)?;
    for shown in all {
        run.add_profile(&ProfileRecord {
            case: case.clone(),
            subject: shown.subject.clone(),
            tool: shown.tool.clone(),
            launches: shown.launches.clone(),
            predicted: shown.predicted.clone(),
        })?;
    }
    Ok(run.finish()?)
}

/// The launches in a file, and the metrics in it that are not read.
fn read(file: &Path) -> Result<(Vec<Shown>, Vec<String>), Failure> {
    let failed = |reason: &dyn std::fmt::Display| Failure::usage(format!("{}: {reason}", file.display()));
    let bytes = files::read_capped(file, style::MOST_READ).map_err(|error| failed(&error))?;
    let page = profile::csv::page(&String::from_utf8_lossy(&bytes)).map_err(|reason| failed(&reason))?;
    let shown = |counters: KernelProfile| {
        let subject = SubjectInfo::new(counters.kernel.clone(), LaunchMode::Plain);
        Shown::read(subject, "ncu".to_string(), vec![counters])
    };
    Ok((page.launches.into_iter().map(shown).collect(), page.ignored))
}

fn show(
    args: &ProfileArgs,
    all: &[Shown],
    goals: &Goals,
    title: &str,
    identity: Option<RunIdentity>,
    ignored: &[String],
) {
    let json = || {
        let kernels: Vec<Value> = all.iter().flat_map(|shown| shown.json(goals)).collect();
        json!({ "title": title, "run": identity, "goals": goals, "kernels": kernels, "ignored": ignored })
    };
    style::show(args.json, json, || {
        let mut page = Page::new(format_args!("{HEAD}{title}{HEAD:#}"));
        for shown in all {
            shown.add(&mut page, goals, args.lines);
        }
        if !ignored.is_empty() {
            page.field("ignored", few(ignored));
        }
        page
    });
}
