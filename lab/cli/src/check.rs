//! `flashcore check`: proves the launch of a plan, simulates it and reports what is wrong.

use std::path::Path;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use flashcore_bench::gpu;
use flashcore_check::cost::predicted_card;
use flashcore_check::mutate::{self, Mutation, Operator};
use flashcore_check::own::is_declaration;
use flashcore_check::{CheckOptions, CheckReport, judge_elsewhere};
use flashcore_cuda::{Context, Stream};
use flashcore_kernels::{Config, Plan, Step, Tap};
use flashcore_sim::SimOptions;
use serde_json::json;

use crate::foreign::{RunArgs, Runs};
use crate::given::Given;
use crate::kernel_file::{OF_SOURCES, is_source};
use crate::watch::WatchArgs;
use crate::{
    BAD, Card, Failure, HEAD, InputArgs, Outcome, Page, ProblemArgs, judged_run, kernels, machine, memory, museum, own,
    simulated, style, triton, watch,
};

/// Run a problem's GPU kernel under the checking simulator; needs no GPU
///
/// First the launch is proved against the limits of the card. Then the kernel runs instruction by
/// instruction under seeded schedules, on generated inputs and poisoned outputs. The simulator finds
/// accesses that are out of bounds or misaligned, reads of uninitialised memory, missing waits, barriers
/// that do not match, deadlocks, and races whether or not they happened this time; each finding names
/// the kernel's Rust line, the warp and lanes, the bytes, and a remedy. Last, the output is compared with
/// float64.
///
/// `museum/NAME` in place of a problem runs a past failure (`list museum`). A FILE.cu or FILE.ptx runs a
/// kernel of your own, a program or library (FILE.so) the PTX in it, FILE.py:FUNCTION a function of Triton
/// (docs/check-python.md); instructions that the simulator does
/// not execute are all listed, and the launch is judged (docs/check-cuda.md). With a declaration of its
/// arguments (--kernel FILE.toml) it computes the problem, and its output is compared, too.
#[derive(Args)]
#[command(after_help = "Exit codes: 0 clean, 1 findings, a wrong output or a refusal, 2 usage, 4 not judged")]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    problem: ProblemArgs,
    #[command(flatten)]
    inputs: InputArgs,
    /// Kernel by id (`list kernels`), or FILE.toml [default: the library's choice]
    ///
    /// FILE.toml is the declaration of a kernel of your own (docs/own-kernel.md).
    #[arg(long, value_name = "ID", help_heading = "How")]
    kernel: Option<String>,
    /// Card to plan for (`list profiles`) [default: this machine's, else l4]
    #[arg(long, value_name = "CARD", value_parser = Card::parse, help_heading = "How")]
    profile: Option<Card>,
    /// SMs to plan for, in place of the card's
    ///
    /// With few SMs a persistent block computes several tiles even of a small problem.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "How")]
    sms: Option<u32>,
    /// Compare what is stored at a tap: scores, probabilities, values; all of them
    ///
    /// The kernel is built with it. Scores are not masked; values are P·V alone, all visible keys weighing the same.
    /// `all` shows the error of each, and the first NaN and infinity with their lines, and does not check.
    #[arg(long, value_name = "TAP", value_parser = taps(), hide_possible_values = true, help_heading = "How")]
    tap: Option<Tapped>,
    /// Run on a GPU (cuda, cuda:N) in place of the simulator, and compare
    ///
    /// Also with a tap. predict:CARD is --profile CARD.
    #[arg(long, value_name = "DEVICE", help_heading = "How")]
    device: Option<String>,
    /// Schedules to run under; N@SEED from the one of this seed
    ///
    /// Findings name the seed of a schedule.
    #[arg(long, value_name = "N", default_value = "1", value_parser = schedules, help_heading = "How")]
    schedules: Schedules,
    /// Simulate only the first N blocks of a large grid
    ///
    /// Clusters are simulated whole, and the output is not compared.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "How")]
    blocks: Option<u64>,
    /// Plant a mistake in the kernel first, to see it found
    ///
    /// With :N at the Nth possible place. Such as drop-barrier, drop-warp-barrier, stride-one, bound-one,
    /// shrink-buffer; an error names all.
    #[arg(long, value_name = "MISTAKE", help_heading = "How")]
    plant: Option<String>,
    /// Print the cost of memory accesses by line: passes over banks, sectors
    #[arg(long, help_heading = "How")]
    memory: bool,
    /// Print one JSON object
    #[arg(long, help_heading = "How")]
    json: bool,
    #[command(flatten)]
    watch: WatchArgs,
    #[command(flatten)]
    foreign: RunArgs,
}

/// Schedules to run under.
#[derive(Clone, Copy, Debug)]
struct Schedules {
    count: u32,
    first: u64,
}

fn schedules(text: &str) -> Result<Schedules, String> {
    let (count, first) = text.split_once('@').unwrap_or((text, "0"));
    match (count.parse(), first.parse()) {
        (Ok(count @ 1..), Ok(first)) => Ok(Schedules { count, first }),
        _ => Err("write a number from 1, or with the seed of the first as 3@17".to_string()),
    }
}

/// Where what a kernel stores is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tapped {
    At(Tap),
    Each,
}

/// Flags that problems, files and exhibits take.
const OF_SCHEDULES: &[&str] = &["schedules", "json"];
/// What is done with plans of our kernels only.
const OF_PLANS: &[&str] = &["tap", "plant", "trace", "device"];
/// What the simulator alone does.
const OF_SIMULATOR: &[&str] = &["schedules", "blocks", "memory", "sms", "profile", "trace", "plant"];
const OF_FILES: &[&str] = &["LaunchArgs", "arg", "output"];

pub(crate) fn run(args: &CheckArgs, given: &Given) -> Result<Outcome, Failure> {
    let name = &args.problem.name;
    let runs = Runs {
        schedules: args.schedules.count,
        first: args.schedules.first,
        blocks: args.blocks,
    };
    // As `explain --profile` and `bench --device predict:CARD` spell a card.
    let predicted = args.device.as_deref().and_then(predicted_card).transpose();
    let predicted = predicted.map_err(Failure::usage)?.map(Card::of);
    if predicted.is_some() && args.profile.is_some() {
        return Err(Failure::usage(
            "--device names a card, and --profile another: write one of them",
        ));
    }
    let device = args.device.as_deref().filter(|_| predicted.is_none());
    let card = || predicted.or(args.profile).unwrap_or_else(Card::default);
    let triton = triton::named(Path::new(name)).map(Path::new);
    if let Some(file) = args.problem.file().or(triton) {
        let of_sources: &[&str] = match triton {
            Some(_) => &["trust", "options"],
            None if is_source(file) => OF_SOURCES,
            None => &[],
        };
        let allowed = [OF_SCHEDULES, OF_FILES, &["profile", "blocks"], of_sources].concat();
        given.allow(&allowed, "a file of kernels in place of a problem")?;
        return args.foreign.check(file, card(), &runs, args.json);
    }
    if name.starts_with(museum::PREFIX) {
        given.allow(OF_SCHEDULES, "museum/NAME in place of a problem")?;
        return museum::check(name, &runs, args.json);
    }
    given.refuse(OF_FILES, "a FILE.ptx")?;
    given.refuse(OF_SOURCES, "a FILE.cu")?;
    let problem = args.problem.problem()?;
    let declared = args.kernel.as_deref().filter(|id| is_declaration(id));
    if declared.is_some() {
        given.forbid(OF_PLANS, "the declaration of a kernel")?;
    }
    if device.is_some() {
        given.forbid(OF_SIMULATOR, "--device")?;
    }
    let (tap, each_tap) = match args.tap {
        Some(Tapped::At(tap)) => (Some(tap), false),
        Some(Tapped::Each) => (None, true),
        None => (None, false),
    };
    if each_tap {
        given.forbid(&["trace", "plant", "blocks", "device"], "--tap all")?;
    }
    let context = device.map(machine::gpu).transpose()?;
    let mut card = context
        .as_ref()
        .map_or_else(card, |context| Card::of_device(context.info()));
    card.chip.sms = args.sms.unwrap_or(card.chip.sms);
    let options = CheckOptions {
        lengths: args.problem.lengths(&problem)?,
        schedules: args.schedules.count,
        first_schedule: args.schedules.first,
        sim: SimOptions {
            trace: args.watch.own_traces(),
            memory_counts: args.memory,
            first_blocks: args.blocks,
            chip: card.chip,
            ..SimOptions::default()
        },
        ..simulated::options(args.inputs.inputs, args.inputs.seed)
    };
    if let Some(file) = declared {
        let report = own::check(file, &problem, card, &options)?;
        return Ok(show(args, &report, card, None, Page::default()));
    }
    let config: Option<Config> = args.kernel.as_deref().map(kernels::gpu).transpose()?;
    let mut plan = simulated::plan(&problem, card, config)?.plan;
    if let Some(tap) = tap {
        plan = Plan::with_tap(&problem, &plan.config, card.chip, tap).map_err(Failure::failed)?;
    }
    if let Some(context) = context {
        return on_device(&context, &plan, &options, args.json);
    }
    let planted = args.plant.as_deref().map(|mistake| plant(mistake, &mut plan));
    let planted = planted.transpose()?;
    if each_tap {
        return watch::show_numerics(&plan, &options, args.json);
    }
    if let Some(outcome) = args.watch.run(&plan, &options, args.json) {
        return outcome;
    }
    let report = simulated::check(&plan, &options)?;
    let mut advice = Page::default();
    if args.memory && !args.json {
        memory::add_advice(&mut advice, &plan, &options)?;
    }
    Ok(show(args, &report, card, planted, advice))
}

/// Runs the steps once on a GPU, and compares what they leave there.
fn on_device(context: &Context, plan: &Plan, options: &CheckOptions, is_json: bool) -> Result<Outcome, Failure> {
    let stream = Stream::new(context)?;
    let run = |step: &Step, contents: &mut [Vec<u8>]| gpu::run_step(&stream, step, contents).map_err(Failure::from);
    let gate = judge_elsewhere(plan, options, run)?;
    let (kernel, device) = (plan.config.to_string(), machine::gpu_line(context.info()));
    let page = || {
        let mut page = Page::new(format_args!("{HEAD}{}{HEAD:#} on {device}", plan.problem));
        page.field("kernel", format_args!("{kernel} for {}", plan.target));
        simulated::add_tap(&mut page, plan.tap);
        judged_run::add_gate(&mut page, &gate, true);
        page
    };
    let json = || json!({ "problem": plan.problem, "kernel": kernel, "device": device, "tap": plan.tap, "gate": gate });
    style::show(is_json, json, page);
    Ok(Outcome::of(gate.passed()))
}

fn show(args: &CheckArgs, report: &CheckReport, card: Card, planted: Option<Mutation>, advice: Page) -> Outcome {
    let found = planted.as_ref().map(|_| simulated::outcome(report) != Outcome::Clean);
    if args.json {
        let mut value = simulated::json(report);
        (value["profile"], value["profile_is_assumed"]) = (json!(card.name()), json!(card.is_assumed));
        value["planted"] = json!(planted.map(|mistake| json!({ "what": mistake.to_string(), "found": found })));
        style::print_json(&value);
        return simulated::outcome(report);
    }
    let mut page = Page::new(format_args!("{HEAD}{}{HEAD:#} for {}", report.problem, card.title()));
    page.fields("card", card.why());
    let what_came = match found {
        Some(false) => format!("; {BAD}not found{BAD:#}: it has no effect on this problem that the check sees"),
        _ => String::new(),
    };
    let text = planted.map(|mistake| format!("{mistake}{what_came}"));
    page.fields("planted", &text);
    simulated::add(&mut page, report);
    if args.memory {
        memory::add_table(&mut page, &report.memory);
        page.add(advice);
    }
    if args.watch.own_traces() && report.traces.is_empty() {
        page.line("");
        let how = "`KernelBuilder::trace` traces one, --trace LINE prints the values of any line";
        page.wrap(2, format_args!("this kernel traces no value: {how}"));
    }
    for trace in &report.traces {
        let [x, y, z] = trace.block;
        page.line(format_args!("\nblock ({x}, {y}, {z}) warp {}", trace.warp));
        watch::add_record(&mut page, trace, None);
    }
    page.print();
    simulated::outcome(report)
}

fn taps() -> impl TypedValueParser<Value = Tapped> {
    let names = Tap::ALL.iter().map(|tap| tap.name()).chain(["all"]);
    let named = |name: String| Tap::ALL.into_iter().find(|tap| tap.name() == name);
    PossibleValuesParser::new(names).map(move |name| named(name).map_or(Tapped::Each, Tapped::At))
}

/// A mistake by name.
pub(crate) fn operator(name: &str) -> Result<Operator, String> {
    let known = || format!("no mistake is named `{name}`; known are {}", style::list(Operator::ALL));
    Operator::from_name(name).ok_or_else(known)
}

/// Plants a mistake such as `drop-barrier:2`. Places are counted through the kernels in their order.
fn plant(mistake: &str, plan: &mut Plan) -> Result<Mutation, Failure> {
    let (name, number) = mistake.split_once(':').unwrap_or((mistake, "1"));
    let operator = operator(name).map_err(Failure::usage)?;
    mutate::plant(plan, operator, number.parse().unwrap_or(0)).map_err(|count| {
        Failure::usage(format!(
            "`{mistake}`: this plan's kernels have {count} places for {name}; write {name}:N with N from 1"
        ))
    })
}
