//! `flashcore bench`: inspects kernels and peers on problems, times them against each other, and keeps the
//! evidence.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use flashcore::{DType, Device};
use flashcore_bench::child::Job;
use flashcore_bench::python::{self, Python};
use flashcore_bench::standing::Standing;
use flashcore_bench::{
    BenchError, Build, Case, CaseResult, Event, Options, Report, Request, Store, Watcher, problems, table,
};
use serde::Deserialize;
use serde_json::json;

use crate::args::{DirectionFlags, ShapeFlags};
use crate::machine::{Besides, Place};
use crate::own::OwnArgs;
use crate::protocol::ProtocolArgs;
use crate::style::Spinner;
use crate::tune::USUAL;
use crate::{Card, Failure, Given, Outcome, Page, StoreArgs, args, in_place, machine, own, style};

/// Time kernels and peers against each other, and keep the evidence
///
/// Every subject is inspected first: one whose output is wrong, stale, late or missing is not timed.
/// Then all run in turn, round by round in shuffled order, until each ratio to the baseline is known
/// to half a percent or the time is spent. Every sample is kept with the identity of the machine, the
/// build and the kernel; `flashcore evidence` shows them. Peers (PyTorch's SDPA, FlashAttention-3 and -4,
/// FlashInfer) are used if a Python with PyTorch and the flashcore package is found.
#[derive(Args)]
#[command(after_long_help = include_str!("help/bench.txt"))]
pub(crate) struct BenchArgs {
    /// Sets of problems, names, shapes, or files of problems [default: small-set]
    ///
    /// With flags of a shape the default is small. A shape is written as b4,h32/8,s3000,d96,bf16,causal, or as it is
    /// printed. Sets are listed below.
    #[arg(value_name = "PROBLEMS")]
    problems: Vec<String>,
    #[command(flatten)]
    shape: ShapeFlags,
    #[command(flatten)]
    direction: DirectionFlags,
    /// best, cpu, cuda, cuda:N, or predict:CARD to predict times
    ///
    /// `flashcore list profiles` names cards; FILE.json of `device calibrate` is one, too.
    #[arg(long, value_name = "DEVICE", default_value = "best", help_heading = "How")]
    device: String,
    /// Ids, default, heuristics, near, FILE.toml, FILE.py:FUNCTION, or a file of ids
    ///
    /// By default the library's choice, on the CPU also near. Ids are those of `flashcore list kernels`, or prefixes of
    /// them such as scalar/tiled*; a file has one id per line. FILE.toml and FILE.py:FUNCTION are kernels of your own.
    #[arg(long, value_name = "IDS", value_delimiter = ',', help_heading = "How")]
    kernel: Vec<String>,
    /// all, none, or labels such as torch/cudnn,fa3
    ///
    /// torch/flash, torch/cudnn, torch/efficient, torch/math, fa3, fa4, flashinfer; of backward passes also
    /// fa3-deterministic; on the CPU torch/sdpa, torch/math.
    #[arg(long, value_name = "LABELS", value_delimiter = ',', default_value = "all", value_parser = args::peer, help_heading = "How")]
    peers: Vec<String>,
    /// The subject to compare with, by its label [default: the first peer]
    ///
    /// Or by the begin of it.
    #[arg(long, value_name = "LABEL", help_heading = "How")]
    baseline: Option<String>,
    #[command(flatten)]
    protocol: ProtocolArgs,
    #[command(flatten)]
    own: OwnArgs,
    #[command(flatten)]
    keep: StoreArgs,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Write one line per subject and problem as CSV
    #[arg(long, short, value_name = "FILE.csv", help_heading = "Output")]
    output: Option<PathBuf>,
}

pub(crate) fn options(device: &Device) -> Options {
    match device.context() {
        None => Options::for_cpu(),
        Some(_) => Options::default(),
    }
}

pub(crate) fn run(args: &BenchArgs, given: &Given) -> Result<Outcome, Failure> {
    let scores = args.problems.first().is_some_and(|word| word == SCORES);
    if scores {
        let flags = ["kernel", "baseline", "caches", "backward"];
        given.forbid(&flags, "`bench scores`, which times the same kernels whatever it says")?;
    }
    // Before minutes of measuring.
    if let Some(path) = &args.output {
        style::ending(path, &["csv"])?;
    }
    let place = match (scores, args.device.as_str()) {
        // A product by itself is a GPU's: without one, the error says what is missing.
        (true, "best") => machine::place("cuda", Besides::Nothing)?,
        (true, name) => machine::place(name, Besides::Nothing)?,
        (false, name) => machine::place(name, Besides::CpuAndCards)?,
    };
    let problems = match args.problems.as_slice() {
        [_] if scores => vec!["small-set".to_string()],
        [_, named @ ..] if scores => named.to_vec(),
        all => named_or(all, "small-set", given),
    };
    let mut cases = args.shape.apply(cases(&problems, args.shape.dtype)?)?;
    if args.direction.backward {
        let backward = cases.iter().map(Case::backward).collect::<Result<_, _>>();
        cases = backward.map_err(BenchError::from)?;
    }
    if args.direction.deterministic {
        cases = cases.iter().map(Case::deterministic).collect::<Result<_, _>>()?;
    }
    let (kernels, own) = match &place {
        Place::Here(device) => args.own.ids(&args.kernel, device)?,
        Place::Card(profile) => args.own.ids_for_card(&args.kernel, Card::of(profile))?,
        Place::Simulator(_) => return Err(Failure::usage("`bench` times nothing under the simulator")),
    };
    let request = Request {
        cases,
        kernels,
        baseline: args.baseline.clone(),
        own,
        scores,
        ..match &place {
            Place::Here(device) => args.protocol.request(device),
            Place::Card(_) | Place::Simulator(_) => args.protocol.request_with(Options::default()),
        }
    };
    match &place {
        Place::Here(device) if !scores => check_peers(&args.peers, device.context().is_none())?,
        Place::Here(_) => {}
        Place::Card(_) | Place::Simulator(_) => refuse_named_peers(&args.peers, &args.device)?,
    }
    let store = args.keep.path()?.filter(|_| !scores);
    let store = store.as_deref();
    let mut progress = Progress::new(args.json);
    let report = match &place {
        Place::Here(device) => {
            let python = find_peers(&args.peers);
            if let Err(absence) = &python {
                progress.see(Event::Note(absence.clone()));
            }
            let peers = (&args.peers[..], args.own.deadline());
            let report = measure(&python, device, &request, peers, store, &mut progress);
            report.map(|mut report| {
                report.notes.extend(python.err());
                report
            })
        }
        Place::Card(profile) => {
            let opened = store.map(Store::at);
            flashcore_bench::predict(profile, &request, opened.as_ref(), &mut progress).map_err(Failure::from)
        }
        Place::Simulator(_) => return Err(Failure::usage("`bench` times nothing under the simulator")),
    };
    drop(progress);
    let mut report = report?;
    if !args.json {
        show_end(&report, store);
    }
    if let Some(note) = args.baseline.as_deref().and_then(|label| report.lacks(label)) {
        style::note(&note);
        report.notes.push(note);
    }
    if let Some(path) = &args.output {
        style::write(path, table::csv(&report))?;
    }
    if args.json {
        style::print_json(&json!({ "report": report, "standings": standings(&report) }));
    }
    check_build(&report)?;
    let is_rejected = |result: &CaseResult| {
        let mut inspected = result.inspections.iter().flatten();
        // A kernel by its id is wanted; of others, whatever is here.
        let is_missing = result.absent.iter().any(|(label, _)| args.kernel.contains(label));
        result.measurement.subjects.is_empty() || is_missing || inspected.any(|found| !found.passed())
    };
    let is_clean = !report.results.is_empty() && !report.results.iter().any(is_rejected) && report.failed.is_empty();
    Ok(Outcome::of(is_clean))
}

/// In place of a problem: the product of queries and keys alone.
const SCORES: &str = "scores";

/// The problems that were named; else the usual set, or the usual problem where flags give a shape.
pub(crate) fn named_or(names: &[String], usual: &str, given: &Given) -> Vec<String> {
    match names {
        [] if given.has(&ShapeFlags::NAMES) => vec![USUAL.to_string()],
        [] => vec![usual.to_string()],
        names => names.to_vec(),
    }
}

pub(crate) fn cases(names: &[String], dtype: Option<DType>) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for name in names {
        cases.extend(problems::cases(name, dtype)?);
    }
    Ok(cases)
}

/// Prints what follows the tables.
fn show_end(report: &Report, store: Option<&Path>) {
    let mut page = Page::default();
    page.add(standings_text(&standings(report)));
    page.line(format_args!("\n{}", table::device_line(report)));
    for line in table::turns_lines(report) {
        page.line(line);
    }
    if let Some(store) = store.filter(|_| !report.is_empty()) {
        page.wrap(2, format_args!("evidence in {}", store.display()));
    }
    page.print();
}

/// The peers that are named one by one.
fn named_peers(peers: &[String]) -> Option<&[String]> {
    let is_word = |label: &String| label == "all" || label == "none";
    Some(peers).filter(|peers| !peers.iter().any(is_word))
}

/// Refuses peers that are named where nothing is run.
pub(crate) fn refuse_named_peers(peers: &[String], device: &str) -> Result<(), Failure> {
    match named_peers(peers) {
        None => Ok(()),
        Some(peers) => {
            let why = format!("{} is not predicted: leave --peers out", peers.join(", "));
            Err(Failure::usage(why).help(format!("{device} runs nothing, and peers have no predicted times")))
        }
    }
}

/// Refuses peers that are named and missing, before minutes of measuring without them. Unnamed ones (`all`) may be.
pub(crate) fn check_peers(peers: &[String], is_cpu: bool) -> Result<(), Failure> {
    let Some(peers) = named_peers(peers) else {
        return Ok(());
    };
    let kind = if is_cpu { "cpu" } else { "cuda" };
    let missing = Python::find().and_then(|python| python.has_peers(peers, kind));
    let without = "--peers none times without them, and --peers all those that are here";
    missing.map_err(|why| Failure::environment(format!("--peers {}: {why}", peers.join(","))).help(without))
}

/// The Python with peers, or why there is none; `None` if no peers are wanted.
pub(crate) fn find_peers(peers: &[String]) -> Result<Option<Python>, String> {
    match peers {
        [none] if none == "none" => Ok(None),
        _ => Python::find().map(Some),
    }
}

/// Benches in a Python process, which has the peers, or in this process if there is no such Python. With kernels of the
/// user it is always another process, of which each run of one may take so long.
pub(crate) fn measure(
    python: &Result<Option<Python>, String>,
    device: &Device,
    request: &Request,
    (peers, deadline): (&[String], Duration),
    store: Option<&Path>,
    watcher: &mut dyn Watcher,
) -> Result<Report, Failure> {
    let mut job = Job {
        device: device.to_string(),
        peers: if peers.iter().any(|label| label == "all") {
            None
        } else {
            Some(peers.to_vec())
        },
        store: store.map(Path::to_path_buf),
        build: Build::of_this_program(),
        attended: false,
        request: request.clone(),
    };
    if let Ok(Some(python)) = python {
        return Ok(python.bench(&job, deadline, watcher)?);
    }
    job.peers = Some(Vec::new());
    if own::has_python(request) {
        let python = Python::find_for_own().map_err(Failure::environment)?;
        return Ok(python.bench(&job, deadline, watcher)?);
    }
    if !request.own.is_empty() {
        return Ok(own::child()?.bench(&job, deadline, watcher)?);
    }
    let store = store.map(Store::at);
    Ok(flashcore_bench::run(device, request, &mut (), store.as_ref(), watcher)?)
}

/// Refuses a report that a Python package of another build made, which was too old to refuse the job.
pub(crate) fn check_build(report: &Report) -> Result<(), Failure> {
    let checked = python::check_package(&Build::of_this_program(), &report.run.build());
    checked.map(drop).map_err(Failure::environment)
}

struct Progress {
    spinner: Spinner,
    tables: bool,
    at: String,
}

impl Progress {
    fn new(quiet: bool) -> Progress {
        Progress {
            spinner: style::spinner("starting"),
            tables: !quiet,
            at: String::new(),
        }
    }
}

impl Watcher for Progress {
    fn see(&mut self, event: Event) {
        match event {
            Event::Note(note) => self.spinner.0.suspend(|| style::note(note)),
            Event::Case(case) => {
                let (case, index, count) = *case;
                self.at = format!("{}/{count} {}", index + 1, case.name);
                self.spinner.say(&format!("{}: inputs and reference", self.at));
            }
            Event::Inspected(label, _) => self.spinner.say(&format!("{}: inspected {label}", self.at)),
            Event::Sample(mode, label, sample) => {
                let (at, round, time) = (&self.at, sample.round + 1, style::micros(sample.run_us()));
                self.spinner
                    .say(&format!("{at}: {mode}, round {round}, {label} {time}"));
            }
            Event::Result(result) if self.tables => {
                let text = format!("\n{}", table::case_text(&result));
                self.spinner.0.suspend(|| style::print(&text));
            }
            Event::Result(_) | Event::Running(_) => {}
        }
    }
}

/// The report in a file that `bench --json` printed.
pub(crate) fn printed(file: &Path) -> Result<Report, Failure> {
    #[derive(Deserialize)]
    struct Printed {
        report: Report,
    }
    let printed = serde_json::from_str(&style::read(file)?).map(|Printed { report }| report);
    let wrong = |error| {
        format!(
            "{} is not the output of `flashcore bench --json`: {error}",
            file.display()
        )
    };
    printed.map_err(|error| Failure::usage(wrong(error)))
}

pub(crate) fn standings(report: &Report) -> Vec<Standing> {
    let peer = report.main_peer();
    peer.map(|peer| report.standings(peer)).unwrap_or_default()
}

/// Those of more than one problem: the table of a single problem says as much.
pub(crate) fn standings_text(standings: &[Standing]) -> String {
    let several = standings.iter().filter(|standing| standing.all.shapes > 1);
    several
        .map(|standing| format!("\n{}", table::standing_text(standing)))
        .collect()
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        match error {
            BenchError::Flashcore(error) => (*error).into(),
            BenchError::UnknownProblems(ref given) => match in_place::of_name(given) {
                Some(failure) => failure,
                None => in_place::unknown_problem(given, &error),
            },
            BenchError::Given(_) => Failure::usage(error),
            BenchError::Store { .. } => Failure::environment(error)
                .help("name another folder with --store; `bench` keeps nothing with --store none"),
            _ if error.is_environment() => Failure::environment(error),
            _ => Failure::failed(error),
        }
    }
}
