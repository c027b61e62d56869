//! `flashcore reproduce`: where a number comes from, what differs here, and the number measured again.

use std::time::Duration;

use clap::Args;
use flashcore::{Device, KernelId};
use flashcore_bench::child::DEADLINE;
use flashcore_bench::gather::{FEWEST_DIGITS, Found, Recipe, Recorded};
use flashcore_bench::{DeviceIdentity, Interval, Request, revision};
use flashcore_check::render;
use serde::Serialize;
use serde_json::json;

use crate::machine::Besides;
use crate::quantity::time;
use crate::sources::{SourceArgs, Sources};
use crate::{BAD, Failure, GOOD, HEAD, Outcome, Page, bench, machine, style};

/// Show where a number comes from, and measure it again
///
/// Every number of a `flashcore report` has an id. For an id this prints the command that measures the number, the
/// device, driver, board, build and kernel hash that it was measured with, and what of these differs on this machine.
/// --run measures it again by the same protocol, keeps the samples in the store as `bench` does, and compares the
/// medians' intervals.
#[derive(Args)]
#[command(after_long_help = include_str!("help/reproduce.txt"))]
pub(crate) struct ReproduceArgs {
    /// An evidence id of a report, or its first digits
    #[arg(value_name = "EVIDENCE_ID")]
    id: String,
    #[command(flatten)]
    sources: SourceArgs,
    /// Measure it again, and compare
    #[arg(long)]
    run: bool,
    /// Where to measure, and what to compare this machine by: best, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "best")]
    device: String,
    /// Most time for the rounds, as 5s or 2m [default: as recorded]
    #[arg(long, value_name = "TIME", requires = "run", value_parser = time)]
    budget: Option<Duration>,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// A time that was measured again.
#[derive(Serialize)]
struct Again {
    label: String,
    us: f64,
    interval: Option<Interval>,
    module: Option<String>,
    /// Now over then.
    ratio: f64,
    /// Whether the intervals overlap; null where one of them is not known, or the device is another.
    agrees: Option<bool>,
    notes: Vec<String>,
}

pub(crate) fn run(args: &ReproduceArgs) -> Result<Outcome, Failure> {
    if args.sources.keeps_nothing() && !args.run {
        return Err(Failure::usage("--store none is for --run, which measures"));
    }
    let sources = args.sources.read()?;
    let recipe = resolve(&args.id, &sources)?;
    let device = machine::device(&args.device, Besides::Cpu)?;
    let here = device
        .context()
        .map_or_else(DeviceIdentity::cpu, |gpu| DeviceIdentity::cuda(gpu.info()));
    // A prediction is of no machine.
    let differences = match recipe.device {
        Some(_) => recipe.differences(&here, revision()),
        None => Vec::new(),
    };
    let again = if args.run {
        Some(measure(args, &recipe, &device)?)
    } else {
        None
    };
    // Times of another device say nothing about this number.
    let again = again.map(|again| match recipe.device.as_deref() {
        Some(then) if then != here.name => Again { agrees: None, ..again },
        _ => again,
    });
    let json = || json!({ "recipe": recipe, "here": here, "differences": differences, "again": again });
    style::show(args.json, json, || page(&recipe, &differences, again.as_ref()));
    Ok(Outcome::of(again.is_none_or(|again| again.agrees != Some(false))))
}

/// The one recipe that an id names.
fn resolve(id: &str, Sources { gathered, searches }: &Sources) -> Result<Recipe, Failure> {
    if id.len() < FEWEST_DIGITS || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let why = format!("`{id}` is no evidence id: {FEWEST_DIGITS} to 10 of the digits 0 to 9 and a to f");
        return Err(Failure::usage(why).help("`flashcore report` prints the id of each number"));
    }
    let found = gathered.find(id);
    let mut recipes: Vec<Recipe> = found
        .iter()
        .filter_map(|found: &Found<'_>| gathered.recipe(found))
        .collect();
    recipes.extend(searches.iter().flat_map(|told| told.recipes(id)));
    let mut several = recipes.iter().map(|recipe| format!("{} ({})", recipe.id, recipe.what));
    match recipes.len() {
        1 => Ok(recipes.remove(0)),
        0 => Err(Failure::usage(format!("no number of these sources has the id `{id}`"))
            .help("name the sources that the report was made of after the id, such as evidence")),
        _ => {
            let why = format!(
                "`{id}` is the beginning of {} ids: {}",
                recipes.len(),
                style::list(several.by_ref().take(6))
            );
            Err(Failure::usage(why).help("give more of its digits"))
        }
    }
}

fn measure(args: &ReproduceArgs, recipe: &Recipe, device: &Device) -> Result<Again, Failure> {
    let Some(then) = &recipe.time else {
        let why = format!(
            "{} ({}) is no time of a kernel or peer, so --run cannot measure it",
            recipe.id, recipe.what
        );
        let command = recipe.command.as_ref().or(recipe.run_command.as_ref());
        let failure = Failure::failed(why);
        return Err(match command {
            Some(command) => failure.help(format!("its command is `{command}`")),
            None => failure,
        });
    };
    let mut options = then.options.clone().unwrap_or_else(|| bench::options(device));
    if let Some(budget) = args.budget {
        options.budget_ms = budget.as_secs_f64() * 1e3;
    }
    let baseline = then.baseline.iter().map(|(label, ours)| (label, *ours));
    let subjects = baseline.chain([(&then.label, then.ours)]);
    let (ours, theirs): (Vec<_>, Vec<_>) = subjects.partition(|(_, is_ours)| *is_ours);
    let kernels = ours.into_iter().map(|(label, _)| current(label)).collect();
    let mut peers: Vec<String> = theirs.into_iter().map(|(label, _)| label.clone()).collect();
    peers.dedup();
    if peers.is_empty() {
        peers.push("none".to_string());
    }
    let request = Request {
        cases: vec![then.case.clone()],
        kernels,
        modes: vec![then.mode],
        baseline: then.baseline.as_ref().map(|(label, _)| current(label)),
        options,
        ..Request::default()
    };
    let python = bench::find_peers(&peers);
    let store = if args.sources.keeps_nothing() {
        None
    } else {
        args.sources.keep().path()?
    };
    let spinner = style::spinner(&format!("measuring {}", recipe.what));
    let report = bench::measure(&python, device, &request, (&peers, DEADLINE), store.as_deref(), &mut ());
    drop(spinner);
    let mut report = report?;
    bench::check_build(&report)?;
    report.notes.extend(python.err());
    again(then, &report)
}

/// A kernel's id as this build writes it, since words in ids have changed; any other label as it is.
fn current(label: &str) -> String {
    label.parse::<KernelId>().map_or(label.to_string(), |id| id.to_string())
}

fn again(then: &Recorded, report: &flashcore_bench::Report) -> Result<Again, Failure> {
    let wanted = current(&then.label);
    let result = report.results.first();
    let subjects = || result.iter().flat_map(|result| &result.measurement.subjects);
    let timed = subjects().find(|subject| subject.info.label == wanted);
    let Some((subject, summary)) = timed.and_then(|subject| Some((subject, subject.summary?))) else {
        let absent = result
            .iter()
            .flat_map(|result| &result.absent)
            .find(|(label, _)| *label == wanted);
        let trouble = timed.and_then(|subject| subject.trouble.clone());
        let why = trouble.or_else(|| absent.map(|(_, reason)| reason.clone()));
        let why = why.or_else(|| report.notes.first().cloned());
        let why = why.unwrap_or_else(|| "it is not available here".to_string());
        return Err(Failure::failed(format!("{wanted} was not timed: {why}")));
    };
    let interval = Some(summary.interval).filter(|interval| interval.hi.is_finite());
    Ok(Again {
        label: wanted,
        us: summary.p50,
        ratio: summary.p50 / then.us,
        agrees: interval.and_then(|interval| then.agrees(interval)),
        module: subject.info.module.clone(),
        interval,
        notes: report.notes.clone(),
    })
}

fn page(recipe: &Recipe, differences: &[String], again: Option<&Again>) -> Page {
    let mut page = Page::new(format_args!("{HEAD}{}{HEAD:#}  {}", recipe.id, recipe.what));
    page.fields("value", &recipe.value);
    page.fields("problem", recipe.time.iter().map(|time| time.case.problem.to_string()));
    page.field("run", format_args!("{} {}", recipe.run, recipe.date));
    page.fields("device", &recipe.device);
    page.fields("driver", &recipe.driver);
    page.fields("board", &recipe.uuid);
    page.fields("build", &recipe.revision);
    page.fields("module", &recipe.module);
    page.fields("notes", &recipe.notes);
    page.fields("command", &recipe.command);
    if let Some(text) = &recipe.problem_file {
        page.field("with", format_args!("problem.json: {}", text.trim_end()));
    }
    page.fields("whole run", &recipe.run_command);
    match (recipe.device.is_some(), differences) {
        (false, _) => {}
        (true, []) => page.field("here", "device, driver and build are the same"),
        (true, all) => page.fields("differs", all),
    }
    let (Some(again), Some(then)) = (again, &recipe.time) else {
        return page;
    };
    let ends = |interval: Option<Interval>| {
        interval.map_or("interval unknown".to_string(), |ends| {
            format!("{} to {}", render::time(ends.lo, 4), render::time(ends.hi, 4))
        })
    };
    page.line(format_args!("\n{HEAD}Measured again{HEAD:#}"));
    page.field(
        "then",
        format_args!("{} ({})", render::time(then.us, 4), ends(then.interval)),
    );
    page.field(
        "now",
        format_args!(
            "{} ({}), × {:.3}",
            render::time(again.us, 4),
            ends(again.interval),
            again.ratio
        ),
    );
    if let (Some(then), Some(now)) = (&recipe.module, &again.module) {
        let same = if then == now { "the same" } else { "another" };
        page.field("module", format_args!("{same}: {now}"));
    }
    page.fields("notes", &again.notes);
    page.field(
        "verdict",
        match again.agrees {
            Some(true) => format!("{GOOD}reproduced{GOOD:#}: the intervals overlap"),
            Some(false) => format!("{BAD}not reproduced{BAD:#}: the intervals do not overlap"),
            None => "not judged: another device, or one of the two has no interval".to_string(),
        },
    );
    page
}
