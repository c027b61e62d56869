//! `flashcore explain`: the plan for a problem on a card, its choice, resources, occupancy and predicted
//! time.

use std::path::{Path, PathBuf};

use clap::Args;
use flashcore::Problem;
use flashcore::unstable::plans::Plans;
use flashcore_bench::micro::DeviceRates;
use flashcore_check::cost::{Prediction, roofline};
use flashcore_check::registers::{self, Registers};
use flashcore_check::saves::{Saving, savings};
use flashcore_check::{CheckOptions, log_of, pictures};
use flashcore_ir::proof::{LaunchRefusal, prove_launch};
use flashcore_ir::{Limits, PROFILES, Profile};
use flashcore_kernels::{Choice, Config, Plan, Refusal, Step};
use flashcore_sim::{Occupancy, occupancy};
use serde_json::{Value, json};

use crate::foreign::ForeignArgs;
use crate::given::Given;
use crate::kernel_file::{OF_SOURCES, is_source};
use crate::quantity::size32;
use crate::ranked::{Ranking, add_every_config, every_config};
use crate::{
    Card, Failure, HEAD, Outcome, Page, ProblemArgs, cost, foreign, in_place, kernels, machine, memory, museum,
    simulated, style, whole,
};

/// Explain which kernel a problem gets on a card, why, and what it uses; needs no GPU
///
/// Shows the plan, the row of a plan table that chose it, refused configs with reasons, the launch,
/// shared memory byte by byte, registers if an offline ptxas is found (FLASHCORE_PTXAS, or on PATH), how
/// many blocks fit on an SM, and the time that the cost model predicts on the card, with its interval
/// and the resource that binds it. --ptx prints only the PTX.
///
/// A FILE.cu, FILE.ptx, FILE.cubin or a program with PTX in place of a problem is a kernel of your own: shows its
/// registers, spills, shared memory by symbol, and whether the card can launch it.
#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 explained, 1 no kernel serves the problem or the one asked for is refused, 2 usage"
)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    problem: ProblemArgs,
    /// Kernel by id (`list levers` explains ids) [default: the library's choice]
    #[arg(long, value_name = "ID", help_heading = "How")]
    kernel: Option<String>,
    /// Card to plan for (`list profiles`) [default: this machine's, else l4]
    ///
    /// A card, an architecture such as sm_89, or FILE.json of `device calibrate`.
    #[arg(long, alias = "device", value_name = "CARD", value_parser = Card::parse, help_heading = "How")]
    profile: Option<Card>,
    /// Predict with the rates in this file (`flashcore device`)
    ///
    /// In place of those of this machine's GPU.
    #[arg(long, value_name = "FILE", help_heading = "How")]
    rates: Option<PathBuf>,
    /// Show which levers save this many bytes of shared memory, and their cost
    #[arg(long, value_name = "BYTES", value_parser = size32, help_heading = "How")]
    saves: Option<u32>,
    /// Rank the library's candidates, and say what decided among them
    ///
    /// Each with its score, the row of data that placed it, and the time that the cost model predicts, or why it is
    /// refused; where the cost model would choose another, which of both is believed.
    #[arg(long, help_heading = "How")]
    why: bool,
    /// Show for every config whether it serves the problem
    #[arg(long, help_heading = "How")]
    all: bool,
    /// Also draw pictures into this folder
    ///
    /// The prediction as a roofline, and for a simulated block its shared memory over time, the banks of its worst
    /// access, the schedule of its warps.
    #[arg(long, value_name = "DIR", help_heading = "How")]
    svg: Option<PathBuf>,
    /// Print the kernel's PTX, and nothing else; =2 that of the plan's second kernel, =lines with Rust lines
    ///
    /// Kernels are counted in the order they run; =2,lines is both. Lines are .file and .loc, for profilers and
    /// debuggers.
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = asked_ptx, help_heading = "How", conflicts_with_all = ["json", "all", "why", "svg", "saves"])]
    ptx: Option<AskedPtx>,
    /// Print one JSON object
    #[arg(long, help_heading = "How")]
    json: bool,
    #[command(flatten)]
    foreign: ForeignArgs,
}

/// PTX of a plan.
#[derive(Clone, Copy, Debug)]
struct AskedPtx {
    step: usize,
    lines: bool,
}

fn asked_ptx(text: &str) -> Result<AskedPtx, String> {
    let mut asked = AskedPtx { step: 1, lines: false };
    for word in text.split(',') {
        match word.parse() {
            Ok(step) => asked.step = step,
            Err(_) if word == "lines" => asked.lines = true,
            Err(_) => return Err("write the number of a kernel, from 1, or `lines`, or both as 2,lines".to_string()),
        }
    }
    Ok(asked)
}

const OF_FILES: &[&str] = &["LaunchArgs", "claim"];

pub(crate) fn run(args: &ExplainArgs, given: &Given) -> Result<Outcome, Failure> {
    let card = || args.profile.unwrap_or_else(Card::default);
    if let Some(file) = args.problem.file() {
        let of_sources = if is_source(file) { OF_SOURCES } else { &[] };
        let allowed = [&["profile", "json"], OF_FILES, of_sources].concat();
        given.allow(&allowed, "a file of kernels in place of a problem")?;
        return foreign::explain(file, &args.foreign, card(), args.json);
    }
    let name = &args.problem.name;
    if let Some(failure) = in_place::of_name(name).filter(|_| name.starts_with(museum::PREFIX)) {
        return Err(failure);
    }
    given.refuse(OF_FILES, "a FILE.ptx or FILE.cubin")?;
    given.refuse(OF_SOURCES, "a FILE.cu")?;
    let problem = args.problem.problem()?;
    let config = args.kernel.as_deref().map(kernels::gpu).transpose()?;
    let card = card();
    let choice = simulated::plan(&problem, card, config)?;
    // A kernel given by name uses no table.
    let plans = match config {
        None => simulated::plans(card)?,
        Some(_) => Plans::none(),
    };
    if let Some(asked) = args.ptx {
        style::print(&ptx_of(asked, &choice.plan)?);
        return Ok(Outcome::Clean);
    }
    let measured = match &args.rates {
        Some(path) => Some(DeviceRates::read(path).map_err(Failure::usage)?.card()),
        None => cost::kept_rates(card),
    };
    let steps: Vec<Explained<'_>> = choice.plan.steps().map(|step| Explained::new(step, card)).collect();
    let is_clean = steps.iter().all(|step| step.refusals.is_empty());
    let registers: Vec<Option<u32>> = steps.iter().map(Explained::registers).collect();
    let predicted = cost::predict(&choice.plan, card, &registers, measured.as_ref());
    let drawn = match (&args.svg, &predicted) {
        (None, _) => Vec::new(),
        (Some(folder), Ok(prediction)) => draw(prediction, &choice.plan, &problem, folder)?,
        (Some(_), Err(why)) => return Err(Failure::failed(format!("there is no prediction to draw: {why}"))),
    };
    let savings = match (args.saves, card.profile) {
        (None, _) => None,
        (Some(bytes), Some(profile)) => Some((bytes, savings(&choice.plan, bytes, profile))),
        (Some(_), None) => return Err(Failure::usage("--saves needs a card, to predict times: --profile l4")),
    };
    // What the library would choose, whatever kernel is explained.
    let ranked = |plans| Ranking::new(&problem, card, &plans, measured.as_ref());
    let ranking = args.why.then(|| simulated::plans(card).map(ranked)).transpose()?;
    let configs = args.all.then(|| every_config(&problem, card));
    let json = || {
        let mut value = as_json(card, &problem, &choice, &plans);
        value["steps"] = steps.iter().map(|step| step.json(card)).collect();
        value["configs"] = json!(configs.as_deref().map(refusals_json));
        value["ranking"] = json!(ranking);
        value["cost"] = cost::json(&predicted);
        value["savings"] = json!(savings.as_ref().map(|(_, savings)| savings));
        value
    };
    style::show(args.json, json, || {
        let mut page = Page::new(format_args!("{HEAD}{problem}{HEAD:#} on {}", card.title()));
        page.fields("card", card.why());
        add_plan(&mut page, args, &problem, &choice, &plans);
        if let Some(ranking) = &ranking {
            ranking.add(&mut page);
        }
        if let Some(configs) = &configs {
            add_every_config(&mut page, configs);
        }
        // Who asks for other kernels is not told all of this one.
        let of_others = ranking.is_some() || configs.is_some();
        for (index, step) in steps.iter().enumerate().filter(|_| !of_others) {
            if steps.len() > 1 {
                let (number, of, name) = (index + 1, steps.len(), step.step.kernel.name());
                page.line(format_args!("\n{HEAD}Step {number} of {of}{HEAD:#} {name}"));
            }
            step.add(&mut page, card);
        }
        if !of_others {
            cost::add(&mut page, &predicted);
        }
        if let Some((bytes, savings)) = &savings {
            add_savings(&mut page, savings, *bytes);
        }
        page.fields("picture", drawn.iter().map(|picture| picture.display()));
        page
    });
    Ok(Outcome::of(is_clean))
}

/// Draws the prediction and a simulated block of the plan's first kernel; returns the files.
fn draw(prediction: &Prediction, plan: &Plan, problem: &Problem, folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error| Failure::failed(format!("cannot make {}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    let card = prediction.profile;
    let log = log_of(plan, &CheckOptions::default(), memory::LOGGED).map_err(Failure::failed)?;
    let ledger = plan.main.kernel.ledger();
    let title = format!("{problem} · {}", plan.config);
    let roofline = roofline::svg(prediction, &format!("{title} · {card}"));
    let mut drawn = vec![
        (format!("roofline-{card}.svg"), roofline),
        ("memory.svg".to_string(), pictures::memory_map(ledger, &log, &title)),
        ("schedule.svg".to_string(), pictures::schedule(&log, &title)),
    ];
    // A kernel without shared memory has no banks.
    drawn.extend(pictures::banks(ledger, &log, &title).map(|svg| ("banks.svg".to_string(), svg)));
    let write = |(name, svg): (String, String)| {
        let path = folder.join(name);
        style::write(&path, svg).map(|()| path)
    };
    drawn.into_iter().map(write).collect()
}

fn add_savings(page: &mut Page, savings: &[Saving], bytes: u32) {
    const SHOWN: usize = 8;
    let bytes = whole(bytes);
    page.line(format_args!("\n{HEAD}What saves {bytes} B{HEAD:#}, the fastest first"));
    if savings.is_empty() {
        page.line("  nothing within two levers");
    }
    for saving in savings.iter().take(SHOWN) {
        let time = match saving.slowdown {
            Some(ratio) => format!("{ratio:.2} times the time"),
            None => "time not predicted".to_string(),
        };
        let (levers, kernel) = (saving.levers.join(", "), &saving.kernel);
        let [saved, shared] = [saving.saved, saving.shared_bytes].map(whole);
        let blocks = style::count(saving.blocks_per_sm, "block");
        let text = format!(
            "  {levers}: {saved} B less, {shared} B in all, {time}, {blocks} an SM by shared memory ({kernel})"
        );
        page.wrap(4, text);
    }
    if savings.len() > SHOWN {
        page.dim(format_args!("{} more with --json", savings.len() - SHOWN));
    }
}

fn ptx_of(asked: AskedPtx, plan: &Plan) -> Result<String, Failure> {
    let step = asked.step.checked_sub(1).and_then(|index| plan.steps().nth(index));
    let Some(step) = step else {
        let (wanted, steps) = (asked.step, style::count(plan.steps().count(), "kernel"));
        let why = format!("--ptx={wanted}: this plan has {steps}, counted from 1");
        return Err(Failure::usage(why));
    };
    Ok(if asked.lines {
        step.kernel.to_ptx_with_lines()
    } else {
        step.kernel.to_ptx()
    })
}

struct Explained<'a> {
    step: &'a Step,
    registers: Result<Registers, registers::Unknown>,
    refusals: Vec<LaunchRefusal>,
}

impl Explained<'_> {
    /// Registers are those of the offline assembler, or of the driver if the machine has such a GPU.
    fn new(step: &Step, card: Card) -> Explained<'_> {
        let (kernel, target) = (&step.kernel, card.chip.target);
        let registers =
            registers::offline(kernel, target).or_else(|why| machine::compiled_here(kernel, target).ok_or(why));
        let known = registers.as_ref().ok().map(|found| found.per_thread);
        Explained {
            step,
            refusals: prove_launch(kernel, &step.launch, target, known),
            registers,
        }
    }

    fn registers(&self) -> Option<u32> {
        self.registers.as_ref().ok().map(|found| found.per_thread)
    }

    fn shared_bytes(&self) -> u32 {
        let ledger = self.step.kernel.ledger().total_bytes();
        self.step.launch.dynamic_shared_bytes.max(ledger)
    }

    fn fit(&self, limits: &Limits) -> Occupancy {
        let (threads, registers) = (self.step.launch.threads(), self.registers().unwrap_or(0));
        occupancy(limits, threads, registers, self.shared_bytes())
    }

    fn add(&self, page: &mut Page, card: Card) {
        self.add_launch(page, &card.chip.target.limits());
        page.fields("refused", &self.refusals);
        page.line(format_args!("\n{HEAD}Shared memory{HEAD:#}"));
        memory::add_ledger(page, self.step.kernel.ledger());
        page.line(format_args!("\n{HEAD}Registers{HEAD:#}"));
        let registers = match &self.registers {
            Ok(found) => {
                let spills = match found.spilled_bytes {
                    0 => String::new(),
                    bytes => format!(", {bytes} B spilled to local memory"),
                };
                format!("{} a thread ({}){spills}", found.per_thread, found.compiler)
            }
            Err(why) => why.to_string(),
        };
        page.wrap(2, format_args!("  {registers}"));
        self.add_occupancy(page, card);
    }

    fn add_launch(&self, page: &mut Page, limits: &Limits) {
        let Step { kernel, launch } = self.step;
        let ([x, y, z], threads, warps) = (launch.grid, launch.threads(), launch.threads().div_ceil(32));
        let [shared, allowed] = [self.shared_bytes(), limits.shared_per_block].map(whole);
        let text = format!(
            "grid {x} × {y} × {z}, {threads} threads a block ({warps} warps), {shared} B of shared memory ({allowed} \
             allowed)"
        );
        page.field("launch", text);
        let buffers = launch.buffers.iter().map(|buffer| {
            let access = if buffer.written { "written" } else { "read" };
            format!("{} {} B {access}", buffer.name, whole(buffer.bytes))
        });
        page.field("buffers", style::list(buffers));
        let align = launch.buffers.iter().map(|buffer| buffer.align).max().unwrap_or(1);
        let required = kernel.requires();
        let (target, (major, minor), length) = (required.target_name(), required.ptx, whole(kernel.num_insts()));
        let text = format!(
            "tensors at multiples of {align} B, {target} or newer, PTX {major}.{minor}; {length} instructions long"
        );
        page.field("needs", text);
    }

    /// On other cards: `--profile` and `--json`.
    fn add_occupancy(&self, page: &mut Page, card: Card) {
        let fit = self.fit(&card.chip.target.limits());
        let waves = |profile: &Profile| match f64::from(profile.sms * fit.blocks_per_sm) {
            0.0 => String::new(),
            places => format!(
                ", {:.2} waves on {} SMs",
                self.step.launch.blocks() as f64 / places,
                profile.sms
            ),
        };
        let unknown = match self.registers() {
            None => "; without registers, which are not known",
            Some(_) => "",
        };
        let text = format!(
            "{} an SM ({} of {} warps), limited by {}{}{unknown}",
            style::count(fit.blocks_per_sm as usize, "block"),
            fit.warps_per_sm,
            fit.max_warps_per_sm,
            fit.limited_by,
            card.profile.map_or(String::new(), waves),
        );
        page.field("occupancy", text);
    }

    fn json(&self, card: Card) -> Value {
        let kernel = &self.step.kernel;
        let fit = |profile: &Profile| self.fit(&profile.target.limits());
        let occupancy = profiles(card).into_iter();
        let occupancy = occupancy.map(|card| json!({ "profile": card.name, "sms": card.sms, "fit": fit(card) }));
        json!({
            "name": kernel.name(),
            "refusals": self.refusals,
            "launch": self.step.launch,
            "ledger": kernel.ledger(),
            "shared_bytes": self.shared_bytes(),
            "instructions": kernel.num_insts(),
            "requires": { "target": kernel.requires().target_name(), "ptx": kernel.requires().ptx },
            "registers": self.registers.as_ref().ok(),
            "occupancy": occupancy.collect::<Vec<_>>(),
        })
    }
}

fn profiles(card: Card) -> Vec<&'static Profile> {
    let others = PROFILES.iter().filter(|profile| Some(*profile) != card.profile);
    card.profile.into_iter().chain(others).collect()
}

fn add_plan(page: &mut Page, args: &ExplainArgs, problem: &Problem, choice: &Choice, plans: &Plans) {
    page.field("kernel", format_args!("{HEAD}{}{HEAD:#}", choice.plan.config));
    let more = match (&args.kernel, args.why) {
        (None, false) => " (--why ranks all candidates)",
        _ => "",
    };
    page.field("because", format_args!("{}{more}", choice.why));
    let rows = plans.rows(problem);
    for considered in choice.considered.iter().filter(|_| !args.why) {
        let row = considered.suggestion.and_then(|place| rows.get(place));
        let row = row.map_or(String::new(), |row| format!(" (row {} of {})", row.number, row.table));
        if let Some(refusal) = &considered.refusal {
            page.field("refused", format_args!("{}{row}: {refusal}", considered.config));
        }
    }
    if rows.is_empty() && !plans.tables().is_empty() {
        let tables = simulated::names(plans).join(", nor in ");
        page.field("plans", format_args!("no row for this problem in {tables}"));
    }
    page.fields("note", plans.notes());
}

fn refusals_json(configs: &[(Config, Option<Refusal>)]) -> Value {
    let json = |(config, why): &(Config, Option<Refusal>)| {
        let (kernel, refusal) = (config.to_string(), why.as_ref().map(Refusal::to_string));
        json!({ "kernel": kernel, "refusal": refusal })
    };
    configs.iter().map(json).collect()
}

fn as_json(card: Card, problem: &Problem, choice: &Choice, plans: &Plans) -> Value {
    let plan = &choice.plan;
    let considered = choice.considered.iter();
    let considered: Vec<_> = considered.map(|other| (other.config, other.refusal.clone())).collect();
    let rows = plans.rows(problem);
    let row = choice.suggestion.and_then(|place| rows.get(place));
    let row = row.map(|found| json!({ "table": found.table, "number": found.number, "row": found.row }));
    let notes: Vec<String> = plans.notes().iter().map(ToString::to_string).collect();
    json!({
        "problem": problem.to_string(),
        "direction": problem.direction(),
        "profile": card.name(),
        "profile_is_assumed": card.is_assumed,
        "target": plan.target.name(),
        "kernel": plan.config.to_string(),
        "why": choice.why,
        "considered": refusals_json(&considered),
        "workspace_bytes": plan.workspace_bytes(),
        "plans": { "row": row, "tables": simulated::names(plans), "notes": notes },
    })
}
