//! `flashcore kbench`: problems as robust-kbench tasks, and a judge for kernels of such tasks.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use flashcore_bench::BenchError;
use flashcore_bench::kbench::{Floor, Group, Job, Report, Status, Task, verify};
use flashcore_bench::python::PYTHON_VARIABLE;
use flashcore_check::own::sha256;
use flashcore_ir::files;
use flashcore_kernels::Plan;
use serde_json::json;

use crate::evidence::NONE;
use crate::quantity::{deadline, fields};
use crate::{BAD, Card, DIM, Failure, GOOD, HEAD, Outcome, Page, ProblemArgs, kernels, own, simulated, style};

/// Write problems as robust-kbench tasks, and judge kernels for such tasks
///
/// robust-kbench (SakanaAI) is a benchmark of CUDA kernels: a task is a folder with a function in
/// PyTorch and its sizes, a kernel a CUDA C++ file for PyTorch's extension loader.
#[derive(Args)]
pub(crate) struct KbenchArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Export(Box<ExportArgs>),
    Verify(VerifyArgs),
}

/// Write a problem as a task, with a kernel of ours as its forward.cu
///
/// Writes func_forward.py and config_forward.json, and forward.cu: the kernel's PTX with the host
/// code that loads and launches it, for the sizes of the task on the card of --profile. With
/// --backward they are func_backward.py, config_backward.json and backward.cu. Python, nvcc and a GPU
/// are not needed.
#[derive(Args)]
struct ExportArgs {
    #[command(flatten)]
    problem: ProblemArgs,
    /// Folder to write to; its name is the task's, and that of the compiled module
    #[arg(value_name = "DIR", help_heading = clap::builder::Resettable::Reset)]
    folder: Option<PathBuf>,
    /// Kernel by id [default: the library's choice]; none writes the task alone
    #[arg(long, value_name = "ID", help_heading = "How")]
    kernel: Option<String>,
    /// Card that the kernel is for (`list profiles`) [default: this machine's, else l4]
    #[arg(long, value_name = "CARD", value_parser = Card::parse, help_heading = "How")]
    profile: Option<Card>,
    /// Overwrite files of an earlier export that differ: edited ones, and those of another problem
    #[arg(long, help_heading = "Output")]
    force: bool,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Judge a kernel by the benchmark's protocol, and by checks that it lacks
///
/// The protocol: 5 seeds, two calls each around the reference's, compared as allclose does; then times
/// of candidate, reference, candidate in turns, by the judge's clock, with outputs of timed calls
/// compared. The other checks: seeds and values that the benchmark does not use, NaN in fresh memory,
/// new values in the same tensors, inputs and outputs left alone, work in the caller's stream and in
/// a captured graph, other sizes. A kernel may refuse other sizes with an error.
///
/// The kernel is a .cu file for PyTorch's extension loader, which needs nvcc and a GPU, or a .py file
/// with a function `forward`. It and the task run in Python processes with your rights and without a
/// sandbox: read them first, then give --trust, once for their content.
#[derive(Args)]
#[command(after_long_help = include_str!("help/kbench-verify.txt"))]
struct VerifyArgs {
    /// Folder of the task
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Kernel to judge
    #[arg(long, value_name = "FILE")]
    kernel: PathBuf,
    /// Let the kernel and the task's func_forward.py run, and remember their content
    #[arg(long)]
    trust: bool,
    /// cuda, cuda:N or cpu
    #[arg(long, value_name = "DEVICE", default_value = "cuda", value_parser = device, help_heading = "How")]
    device: String,
    /// All sizes of the task (its multi_* keys) in the protocol, not the first alone
    #[arg(long, help_heading = "How")]
    multi: bool,
    /// Tolerances, absolute and relative, as abs=1e-3,rel=1e-2 [default: both 1e-3, of bf16 1e-2]
    #[arg(long, value_name = "TOLERANCES", value_parser = tolerances, help_heading = "How")]
    tolerance: Option<[Option<f64>; 2]>,
    /// Seed of the inputs that the benchmark does not use [default: from the clock]
    #[arg(long, value_name = "N", help_heading = "How")]
    seed: Option<u32>,
    /// Rounds of candidate, reference, candidate, and calls of each in a round: 10x50
    #[arg(long, value_name = "NxCALLS", default_value = "10x50", value_parser = rounds, help_heading = "How")]
    rounds: [u32; 2],
    /// Time for all of it, compiling included
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = deadline, help_heading = "How")]
    deadline: Duration,
    /// Folder of headers for the compiler, such as CUTLASS's
    #[arg(long, value_name = "DIR", help_heading = "How")]
    include: Vec<PathBuf>,
    /// Write the report as Markdown
    #[arg(long, short, value_name = "FILE.md", help_heading = "Output")]
    output: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// As the benchmark's own.
const TRIALS: usize = 5;
const WARM_UP: usize = 25;

/// What our files say. A file without it is not overwritten.
const MARK: &str = "`flashcore kbench export`";

fn device(text: &str) -> Result<String, String> {
    let number = text.strip_prefix("cuda:").map(str::parse::<u16>);
    if text == "cpu" || text == "cuda" || matches!(number, Some(Ok(_))) {
        Ok(text.to_string())
    } else {
        Err("allowed: cuda, cuda:N and cpu".to_string())
    }
}

/// The absolute and the relative tolerance.
fn tolerances(text: &str) -> Result<[Option<f64>; 2], String> {
    let mut both = [None; 2];
    for (key, value) in fields(text, &["abs", "rel"])? {
        let number = value.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0);
        both[usize::from(key == "rel")] =
            Some(number.ok_or_else(|| format!("{key} is `{value}`; write a number from 0, e.g. 1e-3"))?);
    }
    Ok(both)
}

/// Rounds and calls.
fn rounds(text: &str) -> Result<[u32; 2], String> {
    let (rounds, calls) = text.split_once('x').unwrap_or((text, "50"));
    match (rounds.parse(), calls.parse()) {
        (Ok(rounds @ 1..=10_000), Ok(calls @ 1..=100_000)) => Ok([rounds, calls]),
        _ => Err("write rounds up to 10000 and calls up to 100000 as 10x50".to_string()),
    }
}

pub(crate) fn run(args: &KbenchArgs) -> Result<Outcome, Failure> {
    match &args.command {
        Command::Export(args) => export(args),
        Command::Verify(args) => judge(args),
    }
}

fn export(args: &ExportArgs) -> Result<Outcome, Failure> {
    let Some(folder) = &args.folder else {
        let why =
            "no folder to write to: name a problem and a folder, as in `flashcore kbench export small tasks/small`";
        return Err(Failure::usage(why));
    };
    check_name(folder)?;
    let problem = args.problem.problem()?;
    let mut task = Task::new(&problem).map_err(Failure::usage)?;
    let mut shown = None;
    if args.kernel.as_deref() == Some(NONE) {
        if args.profile.is_some() {
            return Err(Failure::usage(
                "--profile is for a kernel, and --kernel none writes none",
            ));
        }
    } else {
        let card = args.profile.unwrap_or_else(Card::default);
        let config = args.kernel.as_deref().map(kernels::gpu).transpose()?;
        let plan = |problem| Ok(simulated::plan(problem, card, config)?.plan);
        let plans: Vec<Plan> = task.problems().iter().map(plan).collect::<Result<_, Failure>>()?;
        shown = Some((card, plans[0].config.to_string()));
        let version = env!("CARGO_PKG_VERSION");
        task = task.with_kernel(&plans, version).map_err(Failure::failed)?;
    }
    let files = task.files();
    for (name, text) in &files {
        check_ours(&folder.join(name), text, args.force)?;
    }
    let failed = |error| Failure::failed(format!("cannot make {}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    for (name, text) in &files {
        style::write(&folder.join(name), text)?;
    }
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    let kernel = shown.as_ref().map(|(_, id)| id);
    let card = shown.as_ref().map(|(card, _)| card.name());
    let json = || {
        json!({
            "folder": folder, "files": names, "problems": task.problems(), "kernel": kernel, "card": card,
        })
    };
    style::show(args.json, json, || {
        let mut page = Page::new(format_args!("{HEAD}{}{HEAD:#} as a task", folder.display()));
        page.fields("sizes", task.problems());
        page.field("files", style::list(&names));
        if let Some((card, id)) = &shown {
            page.field("kernel", format_args!("{id} for {}", card.title()));
        }
        page
    });
    Ok(Outcome::Clean)
}

/// The loader names the compiled module after the folder.
fn check_name(folder: &Path) -> Result<(), Failure> {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    if name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit()) {
        return Ok(());
    }
    let why = "the benchmark names the compiled module after the folder, so its name has letters, digits and `_`";
    Err(Failure::usage(format!(
        "{}: {why}, as in tasks/small",
        folder.display()
    )))
}

/// Refuses to overwrite a file of others, and without `force` one of ours that has other content.
fn check_ours(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let is_config = path.extension().is_some_and(|extension| extension == "json");
    match files::read_text_capped(path, files::SMALL) {
        Ok(there) if !is_config && !there.contains(MARK) => {
            let why = "was not written by this command and is not overwritten; choose another folder";
            Err(Failure::usage(format!("{} {why}", path.display())))
        }
        Ok(there) if there != text && !force => {
            let why = "differs from what would be written: it was edited, or is of another problem, card or version";
            Err(Failure::usage(format!("{} {why}", path.display())).help("--force overwrites it"))
        }
        _ => Ok(()),
    }
}

fn judge(args: &VerifyArgs) -> Result<Outcome, Failure> {
    let is_known = args
        .kernel
        .extension()
        .is_some_and(|extension| extension == "cu" || extension == "py");
    if !is_known {
        let why = "is no kernel: allowed are .cu for PyTorch's extension loader and .py with a function `forward`";
        return Err(Failure::usage(format!("{} {why}", args.kernel.display())));
    }
    args.output.iter().try_for_each(|file| style::check_folder(file))?;
    may_run([&args.folder.join("func_forward.py"), &args.kernel], args.trust)?;
    let clock = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.subsec_nanos())
    };
    let absolute = |path: &Path| std::path::absolute(path).map_err(Failure::failed);
    let job = Job {
        task: absolute(&args.folder)?,
        kernel: absolute(&args.kernel)?,
        device: args.device.clone(),
        multi: args.multi,
        trials: TRIALS,
        atol: args.tolerance.and_then(|both| both[0]),
        rtol: args.tolerance.and_then(|both| both[1]),
        seed: u64::from(args.seed.unwrap_or_else(clock)),
        warmup: WARM_UP,
        repetitions: args.rounds[1] as usize,
        rounds: args.rounds[0] as usize,
        floor: Floor::of(&args.device),
        include: args.include.clone(),
        deadline: args.deadline,
    };
    let named = std::env::var(PYTHON_VARIABLE).ok().filter(|name| !name.is_empty());
    let python = named.unwrap_or_else(|| "python3".to_string());
    let progress = style::spinner("starting Python");
    let report = verify(&python, &job, |what| progress.say(what));
    drop(progress);
    let report = report.map_err(|error| match error {
        BenchError::Machine(_) => {
            Failure::environment(error).help(format!("{PYTHON_VARIABLE} names a Python with PyTorch"))
        }
        error => error.into(),
    })?;
    let title = format!("{} for {}", args.kernel.display(), args.folder.display());
    if let Some(path) = &args.output {
        style::write(path, report.markdown(&title))?;
    }
    let json = || {
        json!({
            "job": job, "passes_protocol": report.passes_protocol(), "passes": report.passes(),
            "verdict": report.verdict(), "report": report,
        })
    };
    style::show(args.json, json, || page(&title, &job, &report));
    Ok(Outcome::of(report.passes()))
}

/// Whether files may run with their present content.
fn may_run(files: [&Path; 2], is_trusted: bool) -> Result<(), Failure> {
    let sum = |file: &Path| match files::read_capped(file, files::SMALL) {
        Ok(bytes) => Ok((sha256(bytes), std::path::absolute(file).map_err(Failure::failed)?)),
        Err(error) => Err(Failure::usage(format!("{}: {error}", file.display()))),
    };
    let sums = [sum(files[0])?, sum(files[1])?];
    sums.iter().try_for_each(|(sum, file)| {
        let label = file.display().to_string();
        own::may_run(is_trusted, (&label, sum), file, "runs it with your rights")
    })
}

fn page(title: &str, job: &Job, report: &Report) -> Page {
    let mut page = Page::new(format_args!("{HEAD}{title}{HEAD:#}"));
    let mut group = None;
    for check in &report.checks {
        if group != Some(check.group) {
            group = Some(check.group);
            page.dim(match check.group {
                Group::Protocol => "the benchmark's protocol",
                Group::Ours => "what it does not look at",
            });
        }
        let text = match check.status {
            Status::Pass => format!("{GOOD}pass{GOOD:#}  {}", check.detail),
            Status::Fail => format!("{BAD}FAIL{BAD:#}  {}", check.detail),
            Status::Skip => format!("{DIM}not checked{DIM:#}  {}", check.detail),
        };
        page.field(&check.id, text);
    }
    if let Some(times) = &report.times {
        let (ours, theirs) = (times.candidate.median_us, times.reference.median_us);
        let [ours, theirs] = [ours, theirs].map(style::micros);
        let (speedup, low, high) = (times.speedup, times.speedup_low, times.speedup_high);
        page.field(
            "times",
            format_args!("{ours} a call, the reference {theirs}: {speedup:.2} times as long ({low:.2} to {high:.2})"),
        );
    }
    page.fields("note", &report.notes);
    page.field("seed", job.seed);
    let style = if report.passes() { GOOD } else { BAD };
    page.field("verdict", format_args!("{style}it {}{style:#}", report.verdict()));
    page
}
