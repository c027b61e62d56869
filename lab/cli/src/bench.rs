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
    BenchError, Build, Case, CaseResult, Mode, Options, Report, Request, SEEDS_GAIN, SEEDS_SHAPES, Sample, SeedsRule,
    Store, Watcher, problems, table,
};
use serde_json::json;

use crate::machine::{Besides, Place};
use crate::own::OwnArgs;
use crate::protocol::ProtocolArgs;
use crate::style::Spinner;
use crate::{BAD, Card, Failure, GOOD, Outcome, Page, StoreArgs, args, in_place, machine, own, style};

/// Time kernels and peers against each other, and keep the evidence
///
/// Every subject is inspected first: one whose output is wrong, stale, late or missing is not timed.
/// Then all run in turn, round by round in shuffled order, until each ratio to the baseline is known
/// to half a percent or the time is spent. Every sample is kept with the identity of the machine, the
/// build and the kernel; `flashcore evidence` shows them. Peers (PyTorch's SDPA, FlashAttention-3 and -4,
/// FlashInfer) are used if a Python with PyTorch and the flashcore package is found.
#[derive(Args)]
#[command(after_help = BENCH_HELP)]
pub(crate) struct BenchArgs {
    /// Problem sets, named problems, or files of problems (.json, .toml)
    #[arg(value_name = "PROBLEMS", default_value = "mission")]
    problems: Vec<String>,
    /// Element type of the sets, in place of fp16
    #[arg(long, value_parser = args::dtype)]
    dtype: Option<DType>,
    /// The backward passes of the problems, as NAME-backward
    #[arg(long)]
    backward: bool,
    /// Of backward passes: gradients that are the same bits in every run
    #[arg(long)]
    deterministic: bool,
    /// best, cpu, cuda, cuda:N; predict:CARD predicts times for a card that is not here (`list profiles`, or
    /// FILE.json of `device calibrate`)
    #[arg(long, value_name = "DEVICE", default_value = "best")]
    device: String,
    /// Kernels [default: the library's choice; on the CPU also near]: ids (`flashcore list kernels`), prefixes of
    /// ids such as scalar/tiled*, files with one id per line, or default, heuristics, near; kernels of your own:
    /// FILE.toml, FILE.py:FUNCTION
    #[arg(long, visible_alias = "config", value_name = "IDS", value_delimiter = ',')]
    kernel: Vec<String>,
    /// all, none, or labels: torch/flash, torch/cudnn, torch/efficient, torch/math, fa3, fa4, flashinfer;
    /// of backward passes also fa3-deterministic; on the CPU torch/sdpa, torch/math
    #[arg(long, value_name = "LABELS", value_delimiter = ',', default_value = "all", value_parser = args::peer)]
    peers: Vec<String>,
    /// The subject to compare with, by its label or a prefix of it [default: the first peer]
    #[arg(long, value_name = "LABEL")]
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
    /// Write a table in Markdown
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    markdown: Option<PathBuf>,
    /// Write one line per subject and problem as CSV
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    csv: Option<PathBuf>,
    /// The goal of the reports that this project began with: exit with 1 unless FlashCore is at least 10 %
    /// faster than PyTorch's best on two shapes or more, with 3 if a peer was timed on fewer
    #[arg(long, help_heading = "Output")]
    seeds_rule: bool,
}

const BENCH_HELP: &str = "\
Sets:
  mission     B1 and B2 H8 S512 D64, full and causal
  acceptance  B1/2 H8, B1 H16, B4 H12 D64 and B1 H8 D128, S512, full and causal: what `gate` judges
  canonical   head_dim 64, 128, 256 × 512 to 16k × full and causal; 16,384 tokens, hidden 2,048
  llama       32/8 heads, D128, causal prefill of 8k
  decode      32/8 heads, D128, one row against 4k to 128k keys; the same as `paged` in contiguous
              caches
  all         mission, acceptance, canonical, llama, and contiguous decode
  fp8         e4m3 with scales: head_dim 128, 256 × 8k, 16k × full and causal
  varlen      packed prompts, 32/8 heads, D128: 16 of 100 to 4,000, 128 of 16 to 512, 4 of 8k,
              16 of 2k
  paged       one row of 1 to 256 sequences against caches of 512 to 32k keys, pages of 16, 64, 128
  mixed       a chunk of 2k rows at 8k keys with 63 rows at 4k, in one call; chunks alone
  head-sizes  head_dim 96, 192, and 192 with values of 128, × 4k × full and causal; the last at 8k
              too
  backward    backward passes: canonical at 512, 2k, 8k, 16k, llama, and packed documents of 200 to
              3,446

Q*K alone:
  flashcore bench scores [PROBLEMS]   scale * Q*K^T by tensor cores, by FMAs and by cuBLAS, scores
                                      written, every key, without attention; nothing is kept

Kernels that depend on the problem:
  default     the library's choice: a row of a plan table, or the heuristics
  heuristics  the choice of the heuristics, without plan tables
  near        the same, and kernels that differ from it a little: 12 to 24 on a GPU, 2 on the CPU

Verdicts compare the interval of the ratio with a difference of 1 % (--threshold): SAME, FASTER,
  SLOWER, or AMBIGUOUS if the interval crosses an edge. `~` marks a subject whose time had not
  settled after warming up.

Kernels of your own run in another process: one that hangs, crashes or is wrong is left out, and the
  others are timed without it.

Environment:
  FLASHCORE_PYTHON   the Python with PyTorch and flashcore [default: python3]
  FLASHCORE_FA3      FlashAttention-3's library, or a folder with it [default: in xformers]

Exit codes: 0 done, 1 a kernel was rejected, hung or crashed, or the rule does not hold, 2 usage,
  3 environment, or the rule cannot be judged";

pub(crate) fn options(device: &Device) -> Options {
    match device.context() {
        None => Options::for_cpu(),
        Some(_) => Options::default(),
    }
}

pub(crate) fn run(args: &BenchArgs) -> Result<Outcome, Failure> {
    let scores = args.problems.first().is_some_and(|word| word == SCORES);
    if scores {
        check_scores(args)?;
    }
    // Before minutes of measuring.
    style::check_files(args.markdown.iter().chain(&args.csv))?;
    let place = match (scores, args.device.as_str()) {
        // A product by itself is a GPU's: without one, the error says what is missing.
        (true, "best") => machine::place("cuda", Besides::Nothing)?,
        (true, name) => machine::place(name, Besides::Nothing)?,
        (false, name) => machine::place(name, Besides::CpuAndCards)?,
    };
    let card = match &place {
        Place::Card(profile) => Some(*profile),
        Place::Here(_) | Place::Simulator => None,
    };
    let problems = match args.problems.as_slice() {
        [_] if scores => vec!["mission".to_string()],
        [_, named @ ..] if scores => named.to_vec(),
        all => all.to_vec(),
    };
    let mut cases = cases(&problems, args.dtype)?;
    if args.backward {
        let backward = cases.iter().map(Case::backward).collect::<Result<_, _>>();
        cases = backward.map_err(BenchError::from)?;
    }
    if args.deterministic {
        cases = cases.iter().map(Case::deterministic).collect::<Result<_, _>>()?;
    }
    let (kernels, own) = args.own.ids_for(&args.kernel, card.map(Card::of))?;
    let request = Request {
        cases,
        kernels,
        baseline: args.baseline.clone(),
        own,
        scores,
        ..match &place {
            Place::Here(device) => args.protocol.request(device),
            Place::Card(_) | Place::Simulator => args.protocol.request_with(Options::default()),
        }
    };
    let store = args.keep.path()?.filter(|_| !scores);
    let deadline = args.own.deadline();
    let store = store.as_deref();
    let mut report = match &place {
        Place::Here(device) => bench(device, &request, &args.peers, deadline, store, args.json)?,
        Place::Card(profile) => {
            if !matches!(args.peers.as_slice(), [one] if one == "all" || one == "none") {
                return Err(Failure::usage(format!(
                    "{} is not predicted: leave --peers out",
                    args.peers.join(", ")
                )));
            }
            let mut progress = Progress::new(args.json);
            let opened = store.map(Store::open).transpose()?;
            let report = flashcore_bench::predict(profile, &request, opened.as_ref(), &mut progress);
            drop(progress);
            shown(report?, store, args.json)
        }
        Place::Simulator => return Err(Failure::usage("`bench` times nothing under the simulator")),
    };
    if let Some(note) = args.baseline.as_deref().and_then(|label| report.lacks(label)) {
        style::note(&note);
        report.notes.push(note);
    }
    if let Some(path) = &args.markdown {
        style::write(path, table::markdown(&report))?;
    }
    if let Some(path) = &args.csv {
        style::write(path, table::csv(&report))?;
    }
    let rule = args.seeds_rule.then(|| report.seeds_rule(SEEDS_GAIN, SEEDS_SHAPES));
    let json = || {
        let standings = standings(&report);
        json!({ "report": report, "seeds_rule": rule, "standings": standings })
    };
    style::show(args.json, json, || rule.as_ref().map(rule_text).unwrap_or_default());
    check_build(&report)?;
    let is_rejected = |result: &CaseResult| {
        let mut inspected = result.inspections.iter().flatten();
        result.measurement.subjects.is_empty() || inspected.any(|found| !found.passed())
    };
    if report.results.is_empty() || report.results.iter().any(is_rejected) || !report.failed.is_empty() {
        return Ok(Outcome::Findings);
    }
    match rule {
        Some(rule) => rule.passed.map(Outcome::of).ok_or_else(|| not_judged(&rule)),
        None => Ok(Outcome::Clean),
    }
}

fn not_judged(rule: &SeedsRule) -> Failure {
    let (shapes, needed) = (style::count(rule.shapes.len(), "shape"), rule.needed);
    let why = format!("the rule cannot be judged: a peer was timed on {shapes}, and the rule needs {needed}");
    Failure::environment(why).help("bench two or more problems with `--peers all` and a Python with PyTorch")
}

/// In place of a problem: the product of queries and keys alone.
const SCORES: &str = "scores";

/// Refuses flags that `bench scores` has no use for.
fn check_scores(args: &BenchArgs) -> Result<(), Failure> {
    let given = [
        ("--kernel", !args.kernel.is_empty()),
        ("--baseline", args.baseline.is_some()),
        ("--caches", args.protocol.caches.is_some()),
        ("--seeds-rule", args.seeds_rule),
        ("--backward", args.backward),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((flag, _)) => {
            let why = format!("`bench scores` times the same kernels whatever {flag} says: leave {flag} out");
            Err(Failure::usage(why))
        }
    }
}

pub(crate) fn cases(names: &[String], dtype: Option<DType>) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for name in names {
        cases.extend(problems::cases(name, dtype)?);
    }
    Ok(cases)
}

/// Benches, and prints the tables unless `quiet`. If there are no peers, the report says why.
pub(crate) fn bench(
    device: &Device,
    request: &Request,
    peers: &[String],
    deadline: Duration,
    store: Option<&Path>,
    quiet: bool,
) -> Result<Report, Failure> {
    let mut progress = Progress::new(quiet);
    let python = find_peers(peers);
    if let Err(absence) = &python {
        progress.note(absence);
    }
    let report = measure(&python, device, request, (peers, deadline), store, &mut progress);
    drop(progress);
    let mut report = report?;
    report.notes.extend(python.err());
    Ok(shown(report, store, quiet))
}

/// Prints what follows the tables, unless `quiet`.
fn shown(report: Report, store: Option<&Path>, quiet: bool) -> Report {
    if !quiet {
        let mut page = Page::default();
        page.add(standings_text(&standings(&report)));
        page.line(format_args!("\n{}", table::device_line(&report)));
        for line in table::turns_lines(&report) {
            page.line(line);
        }
        if let Some(store) = store.filter(|_| !report.is_empty()) {
            page.wrap(2, format_args!("evidence in {}", store.display()));
        }
        page.print();
    }
    report
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
        peers: match peers.iter().any(|label| label == "all") {
            true => None,
            false => Some(peers.to_vec()),
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
    let store = store.map(Store::open).transpose()?;
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
    fn note(&mut self, note: &str) {
        self.spinner.0.suspend(|| style::note(note));
    }

    fn case(&mut self, case: &Case, index: usize, count: usize) {
        self.at = format!("{}/{count} {}", index + 1, case.name);
        self.spinner.say(&format!("{}: inputs and reference", self.at));
    }

    fn inspected(&mut self, label: &str, _outcome: &str) {
        self.spinner.say(&format!("{}: inspected {label}", self.at));
    }

    fn sample(&mut self, mode: Mode, label: &str, sample: &Sample) {
        let (at, round, time) = (&self.at, sample.round + 1, style::micros(sample.run_us()));
        let message = format!("{at}: {mode}, round {round}, {label} {time}");
        self.spinner.say(&message);
    }

    fn result(&mut self, result: &CaseResult) {
        if self.tables {
            let text = format!("\n{}", table::case_text(result));
            self.spinner.0.suspend(|| style::print(&text));
        }
    }
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

fn rule_text(rule: &SeedsRule) -> Page {
    let mut page = Page::default();
    for shape in &rule.shapes {
        let colour = if shape.met { GOOD } else { BAD };
        let gain = format!("{:+.1} %", shape.gain * 100.0);
        let (case, ours, peer) = (&shape.case, &shape.ours, &shape.peer);
        let text = format!("{colour}{gain:>8}{colour:#} {case}: {ours} against {peer}");
        page.wrap(9, text);
    }
    let met = rule.shapes.iter().filter(|shape| shape.met).count();
    let (percent, needed) = (rule.gain * 100.0, rule.needed);
    let text = format!("at least {percent:.0} % faster on {met} shapes; {needed} are needed");
    page.line(text);
    page
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        match error {
            BenchError::Flashcore(error) => (*error).into(),
            BenchError::UnknownProblems(ref given) => match in_place::of_name(given) {
                Some(failure) => failure,
                None => Failure::usage(error),
            },
            BenchError::Given(_) => Failure::usage(error),
            BenchError::Store { .. } => Failure::environment(error)
                .help("name another folder with --store; `bench` and `compare` keep nothing with --no-store"),
            _ if error.is_environment() => Failure::environment(error),
            _ => Failure::failed(error),
        }
    }
}
