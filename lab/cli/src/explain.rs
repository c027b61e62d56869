//! `flashcore explain`: the plan for a problem on a card, why it, what it uses, what fits, how long it takes.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use flashcore::{Plans, Problem};
use flashcore_bench::micro::DeviceRates;
use flashcore_check::registers::{self, Registers};
use flashcore_check::saves::{Saving, savings};
use flashcore_check::{CheckOptions, log_of, pictures};
use flashcore_ir::proof::{LaunchRefusal, prove_launch};
use flashcore_ir::{Kernel, Limits, Occupancy, PROFILES, Profile};
use flashcore_kernels::{Choice, Config, KernelCache, Plan, Step};
use serde_json::{Value, json};

use crate::args::{Card, ProblemArgs};
use crate::failure::{Failure, Outcome};
use crate::foreign::{self, ForeignArgs};
use crate::given::Given;
use crate::style::{self, DIM, HEAD};
use crate::{cost, in_place, kernels, machine, memory, museum, simulated};

/// Explain which kernel a problem gets on a card, why, and what it uses; needs no GPU
///
/// Shows the plan, the row of a plan table if one chose it, configs that were refused and why, the
/// launch, shared memory byte by byte, registers where an offline ptxas is found (FLASHCORE_PTXAS, or
/// on PATH), how many blocks fit on an SM, and the time that the cost model predicts on the card,
/// with its interval and what binds it. --ptx prints the PTX and nothing else.
///
/// A FILE.ptx or FILE.cubin in place of a problem is a foreign kernel: its registers, spills, shared
/// memory by symbol, and whether the card can launch it.
#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 explained, 1 no kernel serves the problem or the one asked for is refused, 2 usage"
)]
pub(crate) struct ExplainArgs {
    // First: reading the other fields takes their values out of the matches.
    #[command(flatten)]
    given: Given,
    #[command(flatten)]
    problem: ProblemArgs,
    /// Kernel by id (`list levers` explains ids), in place of the one that would be chosen
    #[arg(long, value_name = "ID", help_heading = "How")]
    kernel: Option<String>,
    /// Card to plan for (`list profiles`) [default: this machine's, else l4]
    #[arg(long, value_name = "CARD", value_parser = Card::parse, help_heading = "How")]
    profile: Option<Card>,
    /// Predict with the rates in this file (`flashcore device`), in place of those kept of this machine's GPU
    #[arg(long, value_name = "FILE", help_heading = "How")]
    rates: Option<PathBuf>,
    /// Say what would save so many bytes of shared memory, and what it would cost
    #[arg(long, value_name = "BYTES", help_heading = "How")]
    saves: Option<u32>,
    /// Say of every config whether it serves the problem
    #[arg(long, help_heading = "How")]
    all: bool,
    /// Also draw into this folder: the prediction as a roofline, and of a simulated block shared memory over time, the
    /// banks of its worst access, the turns of its warps
    #[arg(long, value_name = "DIR", help_heading = "How")]
    svg: Option<PathBuf>,
    /// Print the kernel's PTX, and nothing else
    #[arg(long, help_heading = "How", conflicts_with_all = ["json", "all", "svg", "saves"])]
    ptx: bool,
    /// With --ptx: with the Rust lines, as .file and .loc, for profilers and debuggers
    #[arg(long, help_heading = "How", requires = "ptx")]
    lines: bool,
    /// With --ptx: of which of the plan's kernels, counted from 1 in the order they run
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "How", requires = "ptx")]
    step: usize,
    /// Print one JSON object
    #[arg(long, help_heading = "How")]
    json: bool,
    #[command(flatten)]
    foreign: ForeignArgs,
}

/// Flags about a FILE.ptx or FILE.cubin.
const OF_FILES: &[&str] = &["smem", "threads", "opted_in", "claim", "entry"];

pub(crate) fn run(args: &ExplainArgs) -> Result<Outcome, Failure> {
    if let Some(file) = args.problem.file() {
        let allowed = [&["profile", "json"], OF_FILES].concat();
        args.given
            .allow(&allowed, "a FILE.ptx or FILE.cubin in place of a problem")?;
        let card = args.profile.unwrap_or_else(Card::default);
        return foreign::run(file, &args.foreign, card, args.json);
    }
    if args.problem.name().starts_with(museum::PREFIX)
        && let Some(failure) = in_place::of_name(args.problem.name())
    {
        return Err(failure);
    }
    args.given.refuse(OF_FILES, "a FILE.ptx or FILE.cubin")?;
    let problem = args.problem.problem()?;
    let config = args.kernel.as_deref().map(kernels::gpu).transpose()?;
    let card = args.profile.unwrap_or_else(Card::default);
    let choice = simulated::plan(&problem, card, config)?;
    // Whoever asks for a kernel by name asks no table.
    let plans = match config {
        None => simulated::plans(card)?,
        Some(_) => Plans::none(),
    };
    if args.ptx {
        style::print(&ptx_of(args, &choice.plan)?);
        return Ok(Outcome::Clean);
    }
    let steps: Vec<Explained> = choice.plan.steps().map(|step| Explained::new(step, card)).collect();
    let outcome = if steps.iter().all(|step| step.refusals.is_empty()) {
        Outcome::Clean
    } else {
        Outcome::Findings
    };
    let registers: Vec<Option<u32>> = steps.iter().map(Explained::registers).collect();
    let measured = match &args.rates {
        Some(file) => Some(DeviceRates::read(file)?.card()),
        None => cost::kept_rates(card),
    };
    let predicted = match outcome {
        Outcome::Clean => cost::predict(&choice.plan, card, &registers, measured.as_ref()),
        _ => Err("it cannot be launched".to_string()),
    };
    let mut drawn = match (&args.svg, &predicted) {
        (None, _) => Vec::new(),
        (Some(folder), Ok(prediction)) => vec![cost::draw(prediction, &choice.plan, &problem, folder)?],
        (Some(_), Err(why)) => return Err(Failure::failed(format!("there is no prediction to draw: {why}"))),
    };
    if let Some(folder) = &args.svg {
        drawn.extend(pictures(&choice.plan, &problem, folder)?);
    }
    let savings = match (args.saves, card.profile) {
        (None, _) => None,
        (Some(bytes), Some(profile)) => Some(savings(&choice.plan, bytes, profile)),
        (Some(_), None) => {
            return Err(Failure::usage(
                "--saves needs a card, since it predicts times: --profile l4",
            ));
        }
    };
    if args.json {
        let mut value = as_json(args, card, &problem, &choice, &steps);
        value["plans"] = plans_json(&problem, &choice, &plans);
        value["cost"] = cost::json(&predicted, &problem, card)?;
        value["savings"] = json!(savings);
        style::print_json(&value);
        return Ok(outcome);
    }
    let mut text = plan_text(args, card, &problem, &choice, &plans);
    for (index, step) in steps.iter().enumerate() {
        if steps.len() > 1 {
            let (of, name) = (steps.len(), step.step.kernel.name());
            let _ = write!(text, "\n{HEAD}Step {} of {of}{HEAD:#} {name}\n", index + 1);
        }
        text.push_str(&step.text(card));
    }
    text.push_str(&cost::text(&predicted, &problem, card));
    if let (Some(savings), Some(bytes)) = (savings, args.saves) {
        text.push_str(&savings_text(&savings, bytes));
    }
    for picture in drawn {
        text.push_str(&style::field("picture", &picture.display().to_string()));
    }
    style::print(&text);
    Ok(outcome)
}

/// Draws what a simulated block of the plan's first kernel does, and says where.
fn pictures(plan: &Plan, problem: &Problem, folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let log = log_of(plan, &CheckOptions::default(), memory::LOGGED).map_err(Failure::failed)?;
    let ledger = plan.main.kernel.ledger();
    let title = format!("{problem} · {}", plan.config);
    let mut drawn = vec![
        ("memory.svg", pictures::memory_map(ledger, &log, &title)),
        ("schedule.svg", pictures::schedule(&log, &title)),
    ];
    // A kernel without shared memory has no banks to show.
    drawn.extend(pictures::banks(ledger, &log, &title).map(|svg| ("banks.svg", svg)));
    let mut paths = Vec::new();
    for (name, svg) in drawn {
        let path = folder.join(name);
        std::fs::write(&path, svg)
            .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))?;
        paths.push(path);
    }
    Ok(paths)
}

/// What would save bytes, a line each.
fn savings_text(savings: &[Saving], bytes: u32) -> String {
    const SHOWN: usize = 8;
    let mut text = format!(
        "\n{HEAD}What saves {} B{HEAD:#}, the fastest first\n",
        style::whole(u64::from(bytes))
    );
    if savings.is_empty() {
        return text + "  nothing within two levers\n";
    }
    for saving in savings.iter().take(SHOWN) {
        let time = match saving.slowdown {
            Some(ratio) => format!("{ratio:.2} times the time"),
            None => "time not predicted".to_string(),
        };
        let line = format!(
            "  {}: {} B less, {} B in all, {time}, {} an SM by shared memory ({})",
            saving.levers.join(", "),
            style::whole(u64::from(saving.saved)),
            style::whole(u64::from(saving.shared_bytes)),
            style::count(u64::from(saving.blocks_per_sm), "block"),
            saving.kernel,
        );
        text.push_str(&style::wrap(&line, 4));
    }
    if savings.len() > SHOWN {
        text.push_str(&format!("  {DIM}{} more with --json{DIM:#}\n", savings.len() - SHOWN));
    }
    text
}

/// The PTX of the step asked for.
fn ptx_of(args: &ExplainArgs, plan: &Plan) -> Result<String, Failure> {
    let step = args.step.checked_sub(1).and_then(|index| plan.steps().nth(index));
    let Some(step) = step else {
        let steps = style::count(plan.steps().count() as u64, "kernel");
        return Err(Failure::usage(format!(
            "--step {}: this plan has {steps}, counted from 1",
            args.step
        )));
    };
    Ok(match args.lines {
        true => step.kernel.to_ptx_with_lines(),
        false => step.kernel.to_ptx(),
    })
}

/// A step of a plan, and what is known of it on a card.
struct Explained<'a> {
    step: &'a Step,
    registers: Result<Registers, registers::Unknown>,
    refusals: Vec<LaunchRefusal>,
}

impl Explained<'_> {
    fn new(step: &Step, card: Card) -> Explained<'_> {
        let registers = registers_of(&step.kernel, card);
        let known = registers.as_ref().ok().map(|found| found.per_thread);
        Explained {
            step,
            refusals: prove_launch(&step.kernel, &step.launch, card.target, known),
            registers,
        }
    }

    fn registers(&self) -> Option<u32> {
        self.registers.as_ref().ok().map(|found| found.per_thread)
    }

    fn text(&self, card: Card) -> String {
        let mut text = launch_text(self.step, &card.target.limits());
        for refusal in &self.refusals {
            text.push_str(&style::field("refused", &refusal.to_string()));
        }
        let ledger = self.step.kernel.ledger().to_string();
        let _ = write!(text, "\n{HEAD}Shared memory{HEAD:#}\n{}", indented(&ledger));
        let _ = write!(text, "\n{HEAD}Registers{HEAD:#}\n{}", registers_text(&self.registers));
        let _ = write!(
            text,
            "\n{HEAD}Occupancy{HEAD:#}\n{}",
            occupancy_text(card, self.step, self.registers())
        );
        text
    }

    fn json(&self, card: Card) -> Value {
        let kernel = &self.step.kernel;
        let occupancy: Vec<Value> = profiles(card)
            .into_iter()
            .map(|profile| {
                let fit = fit(&profile.target.limits(), self.step, self.registers());
                json!({ "profile": profile.name, "sms": profile.sms, "fit": fit })
            })
            .collect();
        json!({
            "name": kernel.name(),
            "refusals": self.refusals,
            "launch": self.step.launch,
            "ledger": kernel.ledger(),
            "shared_bytes": shared_bytes(self.step),
            "instructions": kernel.num_insts(),
            "requires": { "target": kernel.requires().target_name(), "ptx": kernel.requires().ptx },
            "registers": self.registers.as_ref().ok(),
            "occupancy": occupancy,
        })
    }
}

/// Registers as the offline assembler has it, or as the driver does where the machine has such a GPU.
fn registers_of(kernel: &Kernel, card: Card) -> Result<Registers, registers::Unknown> {
    let offline = registers::offline(kernel, card.target);
    if offline.is_ok() {
        return offline;
    }
    machine::compiled_here(kernel, card.target).map_or(offline, Ok)
}

fn plan_text(args: &ExplainArgs, card: Card, problem: &Problem, choice: &Choice, plans: &Plans) -> String {
    let mut text = format!("{HEAD}{problem}{HEAD:#} on {}\n", card.title());
    text.push_str(&style::field(
        "kernel",
        &format!("{HEAD}{}{HEAD:#}", choice.plan.config),
    ));
    text.push_str(&style::field("because", &choice.why));
    let rows = plans.rows(problem);
    for considered in &choice.considered {
        let row = considered.suggestion.and_then(|place| rows.get(place));
        let row = row.map_or(String::new(), |row| format!(" (row {} of {})", row.number, row.table));
        if let Some(refusal) = &considered.refusal {
            let line = format!("{}{row}: {refusal}", considered.config);
            text.push_str(&style::field("refused", &line));
        }
    }
    if rows.is_empty() && !plans.tables().is_empty() {
        let tables: Vec<&str> = plans.tables().iter().map(|table| table.name.as_str()).collect();
        let line = format!("no row for this problem in {}", tables.join(", nor in "));
        text.push_str(&style::field("plans", &line));
    }
    for note in plans.notes() {
        text.push_str(&style::field("note", &note.to_string()));
    }
    if args.all {
        let _ = write!(text, "\n{HEAD}Every config{HEAD:#}\n");
        for (config, refusal) in every_config(problem, card) {
            let verdict = refusal.unwrap_or_else(|| "serves".to_string());
            text.push_str(&style::wrap(&format!("  {:<28} {verdict}", config.to_string()), 31));
        }
        text.push('\n');
    }
    text
}

/// Every config, and why it is refused if it is.
fn every_config(problem: &Problem, card: Card) -> Vec<(Config, Option<String>)> {
    let kernels = KernelCache::default();
    let refusal = |config: &Config| Plan::with_cache(problem, config, card.chip(), &kernels).err();
    Config::all()
        .into_iter()
        .map(|config| (config, refusal(&config).map(|refusal| refusal.to_string())))
        .collect()
}

fn launch_text(step: &Step, limits: &Limits) -> String {
    let Step { kernel, launch } = step;
    let [x, y, z] = launch.grid;
    let mut text = style::field(
        "launch",
        &format!(
            "grid {x} × {y} × {z}, {} threads a block ({} warps), {} B of shared memory ({} allowed)",
            launch.threads(),
            launch.threads().div_ceil(32),
            style::whole(u64::from(shared_bytes(step))),
            style::whole(u64::from(limits.shared_per_block)),
        ),
    );
    let buffers: Vec<String> = launch
        .buffers
        .iter()
        .map(|buffer| {
            let access = if buffer.written { "written" } else { "read" };
            format!("{} {} B {access}", buffer.name, style::whole(buffer.bytes))
        })
        .collect();
    text.push_str(&style::field("buffers", &buffers.join(", ")));
    let align = launch.buffers.iter().map(|buffer| buffer.align).max().unwrap_or(1);
    let required = kernel.requires();
    text.push_str(&style::field(
        "needs",
        &format!(
            "tensors at multiples of {align} B, {} or newer, PTX {}.{}; {} instructions long",
            required.target_name(),
            required.ptx.0,
            required.ptx.1,
            style::whole(kernel.num_insts() as u64),
        ),
    ));
    text
}

/// Bytes of shared memory a block takes, static or dynamic.
fn shared_bytes(step: &Step) -> u32 {
    let ledger = step.kernel.ledger().total_bytes();
    step.launch.dynamic_shared_bytes.max(ledger)
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {}\n", line.trim_end())).collect()
}

fn registers_text(registers: &Result<Registers, registers::Unknown>) -> String {
    match registers {
        Ok(found) => {
            let mut text = format!("{} a thread ({})", found.per_thread, found.compiler);
            if found.spilled_bytes > 0 {
                let _ = write!(text, ", {} B spilled to local memory", found.spilled_bytes);
            }
            style::wrap(&format!("  {text}"), 2)
        }
        Err(why) => style::wrap(&format!("  {why}"), 2),
    }
}

/// The profiles to show: the one asked for first, then all others.
fn profiles(card: Card) -> Vec<&'static Profile> {
    let mut profiles: Vec<&Profile> = card.profile.into_iter().collect();
    profiles.extend(PROFILES.iter().filter(|profile| Some(*profile) != card.profile));
    profiles
}

/// What fits on an SM of a card, and how often the grid fills the card.
fn fit(limits: &Limits, step: &Step, registers: Option<u32>) -> Occupancy {
    limits.occupancy(step.launch.threads(), registers.unwrap_or(0), shared_bytes(step))
}

fn occupancy_text(card: Card, step: &Step, registers: Option<u32>) -> String {
    let mut text = format!("  {DIM}card       SMs  blocks an SM  warps an SM  waves  limited by{DIM:#}\n");
    if card.profile.is_none() {
        let fit = fit(&card.target.limits(), step, registers);
        let _ = writeln!(
            text,
            "  {:<9} {:>4}  {:>12}  {:>5} of {:<2}  {:>5}  {}",
            card.name(),
            "",
            fit.blocks_per_sm,
            fit.warps_per_sm,
            fit.max_warps_per_sm,
            "",
            fit.limited_by
        );
    }
    for profile in profiles(card) {
        let fit = fit(&profile.target.limits(), step, registers);
        let waves = step.launch.blocks() as f64 / f64::from(profile.sms * fit.blocks_per_sm);
        let waves = match waves {
            _ if fit.blocks_per_sm == 0 => "none".to_string(),
            waves if waves < 0.01 => "<0.01".to_string(),
            waves => format!("{waves:.2}"),
        };
        let mark = if Some(profile) == card.profile {
            HEAD
        } else {
            anstyle::Style::new()
        };
        let _ = writeln!(
            text,
            "  {mark}{:<9}{mark:#} {:>4}  {:>12}  {:>5} of {:<2}  {waves:>5}  {}",
            profile.name, profile.sms, fit.blocks_per_sm, fit.warps_per_sm, fit.max_warps_per_sm, fit.limited_by
        );
    }
    if registers.is_none() {
        text.push_str(&format!(
            "  {DIM}registers are not counted in, as they are not known{DIM:#}\n"
        ));
    }
    text
}

/// The tables asked, the row that chose the kernel, and what is wrong with tables.
fn plans_json(problem: &Problem, choice: &Choice, plans: &Plans) -> Value {
    let rows = plans.rows(problem);
    let row = choice.suggestion.and_then(|place| rows.get(place));
    let row = row.map(|found| json!({ "table": found.table, "number": found.number, "row": found.row }));
    let tables: Vec<&str> = plans.tables().iter().map(|table| table.name.as_str()).collect();
    let notes: Vec<String> = plans.notes().iter().map(ToString::to_string).collect();
    json!({ "row": row, "tables": tables, "notes": notes })
}

fn as_json(args: &ExplainArgs, card: Card, problem: &Problem, choice: &Choice, steps: &[Explained<'_>]) -> Value {
    let plan = &choice.plan;
    let considered: Vec<Value> = choice
        .considered
        .iter()
        .map(|considered| {
            json!({
                "kernel": considered.config.to_string(),
                "refusal": considered.refusal.as_ref().map(ToString::to_string),
            })
        })
        .collect();
    let configs = args.all.then(|| {
        let all = every_config(problem, card).into_iter();
        all.map(|(config, refusal)| json!({ "kernel": config.to_string(), "refusal": refusal }))
            .collect::<Vec<_>>()
    });
    json!({
        "problem": problem.to_string(),
        "profile": card.name(),
        "target": plan.target.name(),
        "kernel": plan.config.to_string(),
        "why": choice.why,
        "considered": considered,
        "workspace_bytes": plan.workspace_bytes(),
        "steps": steps.iter().map(|step| step.json(card)).collect::<Vec<_>>(),
        "configs": configs,
    })
}
