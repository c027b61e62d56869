//! `flashcore bench`: kernels and peers on problems, inspected, timed against each other, kept as evidence.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use flashcore::{Context, DType, Device};
use flashcore_bench::python::{All, Job, Python, Wanted};
use flashcore_bench::standing::Standing;
use flashcore_bench::{
    BenchError, Case, CaseResult, Mode, Options, Report, Request, SEEDS_GAIN, SEEDS_SHAPES, Sample, SeedsRule, Store,
    Sweep, Watcher, kernels_of, problems, sweep, table,
};
use flashcore_tune::worker::{Compilers, Deadlines, compilers_for};
use indicatif::ProgressBar;
use serde_json::json;

use crate::evidence::StoreArgs;
use crate::failure::{Failure, Outcome};
use crate::in_place;
use crate::kernels;
use crate::machine;
use crate::style::{self, BAD, GOOD};
use crate::tune::worker;

/// Time kernels and peers against each other, and keep the evidence
///
/// Every subject is inspected first: an answer that is wrong, stale, late or missing is not timed.
/// Then all take turns, round by round in shuffled order, until each ratio to the baseline is known
/// to half a percent or the time is spent. Every sample is kept with the identity of what it is
/// about; `flashcore evidence` shows where. Peers (PyTorch's SDPA, FlashAttention-3) are used where
/// a Python with PyTorch and the flashcore package is found.
#[derive(Args)]
#[command(after_help = BENCH_HELP)]
pub(crate) struct BenchArgs {
    /// Problem sets, named problems, or files of problems (.json, .toml)
    #[arg(value_name = "PROBLEMS", default_value = "mission")]
    problems: Vec<String>,
    /// Element type of the sets, in place of fp16
    #[arg(long, value_parser = dtype)]
    dtype: Option<DType>,
    /// best, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "best")]
    device: String,
    /// Kernels in place of the one that would be chosen: ids (`flashcore list kernels`), beginnings
    /// of ids such as scalar/tiled*, files with an id a line, or default, heuristics, near
    #[arg(long, visible_alias = "config", value_name = "IDS", value_delimiter = ',')]
    kernel: Vec<String>,
    /// Rank many kernels (every one there is, where --kernel is not given): screen all with short
    /// turns, then measure the best 8, or as many as given; --budget is then seconds a subject
    #[arg(long, value_name = "KEEP", num_args = 0..=1, require_equals = true, default_missing_value = "8")]
    sweep: Option<usize>,
    /// all, none, or labels such as torch/cudnn,fa3
    #[arg(long, value_name = "LABELS", value_delimiter = ',', default_value = "all")]
    peers: Vec<String>,
    /// What the others are compared with: a label or how it begins; else the first peer
    #[arg(long, value_name = "LABEL")]
    baseline: Option<String>,
    #[command(flatten)]
    protocol: ProtocolArgs,
    #[command(flatten)]
    keep: StoreArgs,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Write a table in Markdown
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    markdown: Option<PathBuf>,
    /// Write a line a subject and problem as CSV
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    csv: Option<PathBuf>,
    /// Exit with 1 unless ours is at least 10 % faster than PyTorch's best on two shapes or more; with 3 where no peer
    /// was timed on so many
    #[arg(long, help_heading = "Output")]
    seeds_rule: bool,
}

const BENCH_HELP: &str = "\
Sets:
  mission     B1 and B2 H8 S512 D64, full and causal
  canonical   head_dim 64, 128, 256 × 512 to 16k × full and causal; 16,384 tokens, hidden 2,048
  llama       32/8 heads, D128, causal prefill of 8k
  decode      32/8 heads, D128, one row against 4k to 128k keys
  all         every one of them
  fp8         e4m3 with scales: head_dim 128, 256 × 8k, 16k × full and causal
  head-sizes  head_dim 96, 192, and 192 with values of 128, × 4k × full and causal; the last at 8k too

Sweeps:
  flashcore bench mission llama --kernel ids.txt --sweep
  flashcore bench mission --kernel 'scalar/tiled*' --sweep=4 --budget 1 --json

Kernels that depend on the problem:
  default     what the library uses: a row of a plan table, or what heuristics choose
  heuristics  what heuristics choose, whatever the plan tables say
  near        the same, and a dozen or two kernels that differ from it a little

Verdicts say what the whole interval of the ratio says about a difference of 1 % (--threshold):
  SAME, FASTER, SLOWER, or AMBIGUOUS where it reaches over an edge. `~` marks a subject whose
  time had not settled after warming up.

Environment:
  FLASHCORE_PYTHON   the Python with PyTorch and flashcore, in place of python3
  FLASHCORE_FA3      FlashAttention-3's library, or a folder with it

Exit codes: 0 done, 1 a kernel was rejected or the rule does not hold, 2 usage, 3 environment, or
  the rule cannot be judged";

/// How to measure.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Protocol")]
pub(crate) struct ProtocolArgs {
    /// hot (back to back), cold (L2 flushed), sustained (half a second each), screen (hot, but brief)
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_value = "hot", value_parser = mode)]
    mode: Vec<Mode>,
    /// Most seconds for the rounds of one problem in one mode; the first three are always made
    #[arg(long, value_name = "SECONDS")]
    budget: Option<f64>,
    /// Untimed time of a subject before each batch of a long kernel in hot mode
    #[arg(long, value_name = "MILLISECONDS")]
    steady_lead: Option<f64>,
    /// Rounds of the sustained mode, in place of 8; --budget does not end them
    #[arg(long, value_name = "N")]
    sustained_rounds: Option<u32>,
    /// Difference that matters, such as 1% or 0.01
    #[arg(long, value_name = "SHARE", value_parser = share)]
    threshold: Option<f64>,
    /// Launch one by one instead of in graphs: short kernels then wait for the host
    #[arg(long)]
    plain: bool,
    /// Seed of the order within rounds
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl ProtocolArgs {
    /// The request without its problems, for a device.
    pub(crate) fn request(&self, device: &Device) -> Request {
        let mut options = match device {
            Device::Cpu => Options::for_cpu(),
            Device::Cuda(_) => Options::default(),
        };
        if let Some(threshold) = self.threshold {
            options.threshold = threshold;
            options.precision = threshold / 2.0;
        }
        options.budget_ms = self.budget.map_or(options.budget_ms, |seconds| seconds * 1e3);
        options.steady_lead_us = self.steady_lead.map_or(options.steady_lead_us, |ms| ms * 1e3);
        options.sustained_rounds = self.sustained_rounds.unwrap_or(options.sustained_rounds);
        options.seed = self.seed.unwrap_or(options.seed);
        Request {
            modes: self.mode.clone(),
            options,
            plain: self.plain,
            ..Request::default()
        }
    }
}

impl ProtocolArgs {
    /// A sweep that keeps so many.
    fn sweep(&self, keep: usize) -> Sweep {
        let budget_ms = self.budget.map_or(Sweep::default().budget_ms, |seconds| seconds * 1e3);
        Sweep { keep, budget_ms }
    }
}

fn dtype(name: &str) -> Result<DType, String> {
    DType::from_name(name).ok_or_else(|| format!("known are {}", DType::ALL.map(DType::name).join(", ")))
}

pub(crate) fn mode(name: &str) -> Result<Mode, String> {
    name.parse().map_err(|error: BenchError| error.to_string())
}

/// `3%` or `0.03`.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.trim().strip_suffix('%') {
        Some(percent) => (percent.trim(), 100.0),
        None => (text.trim(), 1.0),
    };
    match number.parse::<f64>() {
        Ok(value) if value > 0.0 && value / scale < 1.0 => Ok(value / scale),
        _ => Err("write a share above 0 and below 1 as 3% or 0.03".to_string()),
    }
}

pub(crate) fn run(args: &BenchArgs) -> Result<Outcome, Failure> {
    let device = machine::device(&args.device)?;
    let cases = cases(&args.problems, args.dtype)?;
    let sweep = args.sweep.map(|keep| args.protocol.sweep(keep));
    let mut kernels = kernels::ids(&args.kernel)?;
    if sweep.is_some() && kernels.is_empty() {
        kernels = kernels::all_of(&device);
    }
    let request = Request {
        cases,
        kernels,
        baseline: args.baseline.clone(),
        sweep,
        ..args.protocol.request(&device)
    };
    let report = bench(&device, &request, &args.peers, args.keep.path()?.as_deref(), args.json)?;
    for (path, text) in [
        (&args.markdown, table::markdown(&report)),
        (&args.csv, table::csv(&report)),
    ] {
        if let Some(path) = path {
            let failed = |error| Failure::failed(format!("{}: {error}", path.display()));
            std::fs::write(path, text).map_err(failed)?;
        }
    }
    let rule = args.seeds_rule.then(|| report.seeds_rule(SEEDS_GAIN, SEEDS_SHAPES));
    let rankings = args.sweep.map(|_| sweep::rankings(&report));
    if args.json {
        let standings = standings(&report);
        style::print_json(
            &json!({ "report": report, "seeds_rule": rule, "rankings": rankings, "standings": standings }),
        );
    } else if let Some(rule) = &rule {
        style::print(&rule_text(rule));
    }
    if let Some(rankings) = &rankings {
        // Kernels that do not serve or are wrong are what a sweep is there to find.
        let ranked = rankings
            .iter()
            .flat_map(|ranking| &ranking.rows)
            .any(|row| row.rank.is_some());
        return Ok(if ranked { Outcome::Clean } else { Outcome::Findings });
    }
    let rejected = report.results.iter().any(|result| {
        let rejected = result.inspections.iter().flatten().any(|found| !found.passed());
        rejected || result.measurement.subjects.is_empty()
    });
    if rejected || report.results.is_empty() {
        return Ok(Outcome::Findings);
    }
    match rule {
        Some(rule) if rule.passed == Some(false) => Ok(Outcome::Findings),
        Some(rule) if rule.passed.is_none() => Err(not_judged(&rule)),
        _ => Ok(Outcome::Clean),
    }
}

/// Too few shapes have times of a kernel and of a peer.
fn not_judged(rule: &SeedsRule) -> Failure {
    let shapes = style::count(rule.shapes.len() as u64, "shape");
    Failure::environment(format!(
        "the rule cannot be judged: a peer was timed on {shapes}, and the rule needs {}",
        rule.needed
    ))
    .help("`--peers all` on two or more problems, where a Python with PyTorch is installed")
}

/// The problems of names, files and sets.
pub(crate) fn cases(names: &[String], dtype: Option<DType>) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for name in names {
        cases.extend(problems::cases(name, dtype)?);
    }
    Ok(cases)
}

/// Benches here, or in a Python process where there are peers.
pub(crate) fn bench(
    device: &Device,
    request: &Request,
    peers: &[String],
    store: Option<&Path>,
    quiet: bool,
) -> Result<Report, Failure> {
    let mut progress = Progress::new(!quiet && request.sweep.is_none());
    if let (Device::Cuda(context), Some(_)) = (device, request.sweep) {
        compile(context, request, &progress.bar)?;
    }
    let report = with_peers(device, request, peers, store, &mut progress);
    progress.bar.finish_and_clear();
    let report = report?;
    if !quiet {
        for ranking in request.sweep.iter().flat_map(|_| sweep::rankings(&report)) {
            style::print(&format!("\n{}", table::ranking_text(&ranking)));
        }
        style::print(&standings_text(&standings(&report)));
        style::print(&format!(
            "\n{}\n{}",
            table::device_line(&report),
            table::turns_lines(&report)
        ));
        if let Some(store) = store {
            style::print(&style::wrap(&format!("evidence in {}", store.display()), 2));
        }
    }
    Ok(report)
}

/// Benches in a Python process where there are peers, and here where there are none: the report says why.
fn with_peers(
    device: &Device,
    request: &Request,
    peers: &[String],
    store: Option<&Path>,
    progress: &mut Progress,
) -> Result<Report, Failure> {
    match find_peers(peers) {
        Ok(Some(python)) => bench_in(&python, device, request, peers, store, progress),
        Ok(None) => bench_here(device, request, store, progress),
        Err(absence) => {
            progress.note(&absence);
            let mut report = bench_here(device, request, store, progress)?;
            report.notes.push(absence);
            Ok(report)
        }
    }
}

/// Where peers are: `None` where none are asked for.
///
/// # Errors
/// Why there are none, in a sentence.
pub(crate) fn find_peers(peers: &[String]) -> Result<Option<Python>, String> {
    match peers {
        [none] if none == "none" => Ok(None),
        _ => Python::find().map(Some),
    }
}

/// Benches in a Python process.
pub(crate) fn bench_in(
    python: &Python,
    device: &Device,
    request: &Request,
    peers: &[String],
    store: Option<&Path>,
    watcher: &mut dyn Watcher,
) -> Result<Report, Failure> {
    let wanted = match peers.iter().any(|label| label == "all") {
        true => Wanted::All(All::All),
        false => Wanted::Named(peers.to_vec()),
    };
    let job = Job {
        device: device.to_string(),
        peers: wanted,
        store: store.map(Path::to_path_buf),
        request: request.clone(),
    };
    Ok(python.bench(&job, watcher)?)
}

/// Benches in this process, where no peers are.
pub(crate) fn bench_here(
    device: &Device,
    request: &Request,
    store: Option<&Path>,
    watcher: &mut dyn Watcher,
) -> Result<Report, Failure> {
    let store = store.map(Store::open).transpose()?;
    Ok(flashcore_bench::run(device, request, &mut (), store.as_ref(), watcher)?)
}

/// Compiles the kernels of a sweep in processes of their own, into the driver's cache: in one process they would wait for
/// each other.
fn compile(context: &Context, request: &Request, bar: &ProgressBar) -> Result<(), Failure> {
    let wanted = kernels_of(context, request)?;
    let count = wanted.iter().map(|(_, kernels)| kernels.len()).sum();
    let devices = [format!("cuda:{}", context.info().ordinal)];
    let compilers = Compilers::new(
        &worker::program()?,
        &devices,
        Deadlines::default(),
        compilers_for(count),
    );
    for (problem, kernels) in wanted {
        compilers.begin(&problem, kernels);
    }
    compilers.wait(|left| bar.set_message(format!("compiling, {left} kernels left")));
    Ok(())
}

/// Shows what goes on: a line of progress on a terminal, and on request each problem's table as it is done.
struct Progress {
    bar: ProgressBar,
    tables: bool,
    at: String,
}

impl Progress {
    fn new(tables: bool) -> Progress {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        Progress {
            bar,
            tables,
            at: String::new(),
        }
    }
}

impl Watcher for Progress {
    fn note(&mut self, note: &str) {
        self.bar
            .suspend(|| style::eprint(&style::wrap(&format!("note: {note}"), 6)));
    }

    fn case(&mut self, case: &Case, index: usize, count: usize) {
        self.at = format!("{}/{count} {}", index + 1, case.name);
        self.bar
            .set_message(format!("{}: drawing inputs, computing what is right", self.at));
    }

    fn inspected(&mut self, label: &str, _outcome: &str) {
        self.bar.set_message(format!("{}: inspected {label}", self.at));
    }

    fn sample(&mut self, mode: Mode, label: &str, sample: &Sample) {
        let time = style::micros(sample.run_us());
        self.bar.set_message(format!(
            "{}: {mode}, round {}, {label} {time}",
            self.at,
            sample.round + 1
        ));
    }

    fn result(&mut self, result: &CaseResult) {
        if self.tables {
            self.bar
                .suspend(|| style::print(&format!("\n{}", table::case_text(result))));
        }
    }
}

/// Where our kernels stand beside the peer they were compared with.
pub(crate) fn standings(report: &Report) -> Vec<Standing> {
    report
        .main_peer()
        .map(|peer| report.standings(peer))
        .unwrap_or_default()
}

/// Those of more than one problem: of a single one its table says it all.
pub(crate) fn standings_text(standings: &[Standing]) -> String {
    let several = standings.iter().filter(|standing| standing.all.shapes > 1);
    several
        .map(|standing| format!("\n{}", table::standing_text(standing)))
        .collect()
}

fn rule_text(rule: &SeedsRule) -> String {
    let mut text = String::new();
    for shape in &rule.shapes {
        let colour = if shape.met { GOOD } else { BAD };
        let gain = format!("{:+.1} %", shape.gain * 100.0);
        text.push_str(&style::wrap(
            &format!(
                "{colour}{gain:>8}{colour:#} {}: {} against {}",
                shape.case, shape.ours, shape.peer
            ),
            9,
        ));
    }
    let met = rule.shapes.iter().filter(|shape| shape.met).count();
    let percent = rule.gain * 100.0;
    text.push_str(&format!(
        "at least {percent:.0} % faster on {met} shapes; {} are needed\n",
        rule.needed
    ));
    text
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        match error {
            BenchError::Flashcore(error) => (*error).into(),
            BenchError::UnknownProblems { ref given, .. } if let Some(failure) = in_place::of_name(given) => failure,
            BenchError::UnknownProblems { .. }
            | BenchError::ProblemFile { .. }
            | BenchError::BadOption { .. }
            | BenchError::Schema { .. }
            | BenchError::NotEvidence { .. }
            | BenchError::OldStore { .. }
            | BenchError::NothingInCommon { .. } => Failure::usage(error),
            BenchError::StoreAccess { .. } => Failure::environment(error)
                .help("name another folder with --store; `bench` and `compare` keep nothing with --no-store"),
            _ if error.is_environment() => Failure::environment(error),
            _ => Failure::failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_written_either_way() {
        assert_eq!(share("3%"), Ok(0.03));
        assert_eq!(share(" 0.5 % "), Ok(0.005));
        assert_eq!(share("0.03"), Ok(0.03));
        for wrong in ["3", "-1%", "x", "100%", "0"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}
