//! `flashcore explain FILE.ptx|FILE.cubin`: what kernels that something else made take, and whether a card can
//! launch them; `flashcore check FILE.ptx`: what they do wrong.

use std::fmt::{Display, Write};
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use flashcore_check::foreign::{self, Asked, ForeignKernel, ForeignLaunch, Form, Given, Problem, RunError, Verdict};
use flashcore_check::registers::Unknown;
use flashcore_check::render::{self, Palette};
use flashcore_check::{CheckOptions, Found};
use flashcore_ir::{Limits, Occupancy};
use serde_json::{Value, json};

use crate::args::Card;
use crate::failure::{Failure, Outcome};
use crate::in_place;
use crate::progress;
use crate::style::{self, BAD, DIM, GOOD, HEAD};

/// The launch that is asked about.
#[derive(Args)]
#[command(next_help_heading = "Of a FILE.ptx or FILE.cubin in place of a problem")]
pub(crate) struct ForeignArgs {
    /// Bytes of dynamic shared memory that the host asks for
    #[arg(long, value_name = "N", value_parser = number)]
    smem: Option<u32>,
    /// Threads a block [default: what the kernel declares]
    #[arg(long, value_name = "N", value_parser = number)]
    threads: Option<u32>,
    /// The host opts in to more than 48 KB (cudaFuncSetAttribute) before it launches
    #[arg(long)]
    opted_in: bool,
    /// Bytes that somebody counts for a symbol, or for `total`; says where they differ
    #[arg(long, value_name = "SYMBOL=N", value_parser = claim)]
    claim: Vec<(String, u64)>,
    /// This kernel of the file alone
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
}

/// A number of threads or bytes.
fn number(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("write a whole number from 0 to {}, e.g. 128", u32::MAX))
}

fn claim(text: &str) -> Result<(String, u64), String> {
    let parts = text.split_once('=').map(|(name, bytes)| (name, bytes.parse()));
    match parts {
        Some((name, Ok(bytes))) if !name.is_empty() => Ok((name.to_string(), bytes)),
        _ => Err("write SYMBOL=BYTES, e.g. partials=8192".to_string()),
    }
}

/// How a kernel of a file is launched under the simulator.
#[derive(Args)]
#[command(next_help_heading = "Of a FILE.ptx in place of a problem")]
pub(crate) struct RunArgs {
    /// Blocks of the grid
    #[arg(long, value_name = "X,Y,Z", value_parser = grid)]
    grid: Option<Grid>,
    /// Threads a block [default: what the kernel declares]
    #[arg(long, value_name = "N", value_parser = number)]
    threads: Option<u32>,
    /// Bytes of dynamic shared memory
    #[arg(long, value_name = "N", value_parser = number)]
    smem: Option<u32>,
    /// The host opts in to more than 48 KB (cudaFuncSetAttribute) before it launches
    #[arg(long)]
    opted_in: bool,
    /// What the next parameter is given: buf:BYTES for a pointer (of f32 numbers; :f16, :zero, :unwritten for others),
    /// or a number
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    arg: Vec<Given>,
    /// The kernel of the file, where there are several
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Grid([u32; 3]);

fn grid(text: &str) -> Result<Grid, String> {
    let parts: Result<Vec<u32>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    match parts.as_deref() {
        Ok([x]) => Ok(Grid([*x, 1, 1])),
        Ok([x, y]) => Ok(Grid([*x, *y, 1])),
        Ok([x, y, z]) => Ok(Grid([*x, *y, *z])),
        _ => Err("write the blocks along each axis as X,Y,Z, e.g. 8,1,1".to_string()),
    }
}

impl RunArgs {
    /// Proves the launch of a kernel of a file on a card, then runs it under the simulator, and shows what is
    /// found.
    pub(crate) fn check(&self, file: &Path, card: Card, runs: &Runs, as_json: bool) -> Result<Outcome, Failure> {
        let text = ptx_of(file)?;
        let kernels = foreign::read(text.as_bytes()).map_err(|error| wrong(file, error))?;
        let picked = foreign::pick(&kernels, self.entry.as_deref()).map_err(|error| wrong(file, error))?;
        let [kernel] = picked.as_slice() else {
            let names: Vec<&str> = picked.iter().map(|kernel| kernel.name.as_str()).collect();
            return Err(Failure::usage(format!(
                "{} has {}: name one with --entry",
                file.display(),
                names.join(", ")
            )));
        };
        let Grid(grid) = self.grid.unwrap_or(Grid([1, 1, 1]));
        let asked = Asked {
            grid: Some(grid),
            threads: self.threads,
            dynamic_shared: self.smem.unwrap_or(0),
            opted_in: self.opted_in,
            claims: Vec::new(),
        };
        if foreign::threads_of(kernel, &asked).is_none() {
            let message = format!("{}: `{}` does not declare its threads", file.display(), kernel.name);
            return Err(Failure::usage(message).help("give the threads of a block with --threads N"));
        }
        let mut kernel = (*kernel).clone();
        // Without an assembler the registers are not known, and not judged.
        let unknown = foreign::assemble(&mut kernel, &text, card.target).err();
        let checked = Checked {
            problems: foreign::judge(&kernel, &asked, card.target),
            found: Vec::new(),
            simulated: None,
            name: file.display().to_string(),
            kernel,
            unknown,
        };
        if checked.is_refused() {
            return Ok(checked.show(card, runs, as_json));
        }
        let launch = ForeignLaunch {
            grid,
            threads: self.threads,
            dynamic_shared: asked.dynamic_shared,
            args: self.arg.clone(),
            seed: runs.first,
            schedules: runs.schedules,
            max_instructions: CheckOptions::default().max_instructions,
            blocks: runs.blocks,
            progress: Some(Arc::default()),
        };
        let all = grid.iter().map(|&n| u64::from(n)).product::<u64>();
        let total = runs.blocks.map_or(all, |most| most.min(all));
        let checked = Checked {
            simulated: (total < all).then_some([total, all]),
            ..checked
        };
        let shown = progress::show(
            launch.progress.clone().unwrap_or_default(),
            total * u64::from(runs.schedules),
            checked.kernel.name.clone(),
            None,
        );
        let found = foreign::run(&text, &checked.kernel.name, &checked.name, &launch);
        drop(shown);
        let found = found.map_err(|error| match error {
            RunError::Ptx(_) | RunError::Simulator(_) => Failure::failed(format!("{}: {error}", file.display())),
            _ => wrong(file, error).help("an --arg for each parameter, in order: `flashcore check --help`"),
        })?;
        Ok(Checked { found, ..checked }.show(card, runs, as_json))
    }
}

/// Under which schedules a kernel runs.
pub(crate) struct Runs {
    /// How many.
    pub(crate) schedules: u32,
    /// Seed of the first.
    pub(crate) first: u64,
    /// Blocks of the grid to simulate, where not all of them.
    pub(crate) blocks: Option<u64>,
}

/// The text of a PTX file; otherwise what the file is.
fn ptx_of(file: &Path) -> Result<String, Failure> {
    let bytes = std::fs::read(file).map_err(|error| wrong(file, error))?;
    match foreign::binary_kind(&bytes) {
        None => String::from_utf8(bytes).map_err(|error| wrong(file, error)),
        Some(what) => Err(in_place::binary(file, what)),
    }
}

/// A file, or a name or an argument for it, that makes no sense.
fn wrong(file: &Path, error: impl Display) -> Failure {
    Failure::usage(format!("{}: {error}", file.display()))
}

/// What came of a kernel of a file.
struct Checked {
    /// The file.
    name: String,
    kernel: ForeignKernel,
    /// Why its registers are not known.
    unknown: Option<Unknown>,
    /// What is wrong with the launch.
    problems: Vec<Problem>,
    /// What the simulator found.
    found: Vec<Found>,
    /// How many blocks of how many were simulated, where not all of them.
    simulated: Option<[u64; 2]>,
}

impl Checked {
    fn is_refused(&self) -> bool {
        matches!(foreign::verdict(&self.problems), Verdict::Refused | Verdict::NeedsOptIn)
    }

    fn show(&self, card: Card, runs: &Runs, as_json: bool) -> Outcome {
        let (is_refused, is_clean) = (self.is_refused(), self.found.is_empty());
        let outcome = match !is_refused && is_clean {
            true => Outcome::Clean,
            false => Outcome::Findings,
        };
        if as_json {
            style::print_json(&json!({
                "file": self.name,
                "kernel": self.kernel.name,
                "registers": self.kernel.registers,
                "unknown": self.unknown.as_ref().map(ToString::to_string),
                "profile": card.name(),
                "target": card.target.name(),
                "verdict": match (is_refused, is_clean) {
                    (true, _) => "refused",
                    (false, true) => "clean",
                    (false, false) => "findings",
                },
                "problems": self.problems,
                "findings": self.found,
                "only_blocks": self.simulated.map(|[blocks, _]| blocks),
            }));
            return outcome;
        }
        let mut count = style::count(u64::from(runs.schedules), "schedule");
        if let Some([blocks, all]) = self.simulated.map(|counts| counts.map(style::whole)) {
            count.push_str(&format!(" in {blocks} of {all} blocks"));
        }
        let verdict = match (is_refused, is_clean) {
            (true, _) => format!(
                "{BAD}refused{BAD:#}: it cannot be launched so on {}, and was not simulated",
                card.title()
            ),
            (false, true) => format!("{GOOD}clean{GOOD:#} under {count}; what it computes was not looked at"),
            (false, false) => format!(
                "{BAD}{}{BAD:#} under {count}",
                style::count(self.found.len() as u64, "finding")
            ),
        };
        let mut out = format!("{HEAD}{}{HEAD:#} of {}\n", self.kernel.name, self.name);
        out.push_str(&style::field(
            "registers",
            &registers(&self.kernel, self.unknown.as_ref()),
        ));
        out.push_str(&style::field("verdict", &verdict));
        for problem in &self.problems {
            out.push('\n');
            out.push_str(&render::problem(problem, &self.name, Palette::COLOUR, style::width()));
        }
        for found in &self.found {
            out.push('\n');
            out.push_str(&render::finding(
                found,
                runs.schedules as usize,
                Palette::COLOUR,
                style::width(),
            ));
        }
        style::print(&out);
        outcome
    }
}

impl ForeignArgs {
    fn asked(&self) -> Asked {
        Asked {
            grid: None,
            threads: self.threads,
            dynamic_shared: self.smem.unwrap_or(0),
            opted_in: self.opted_in,
            claims: self.claim.clone(),
        }
    }
}

/// A kernel, and what is known of it on a card.
struct Explained {
    kernel: ForeignKernel,
    /// Why ptxas does not say what it takes.
    unknown: Option<Unknown>,
    problems: Vec<Problem>,
}

pub(crate) fn run(file: &Path, args: &ForeignArgs, card: Card, as_json: bool) -> Result<Outcome, Failure> {
    let bytes = std::fs::read(file).map_err(|error| wrong(file, error))?;
    match foreign::binary_kind(&bytes) {
        Some(what) if !what.starts_with("a cubin") => return Err(in_place::binary(file, what)),
        _ => {}
    }
    let kernels = foreign::read(&bytes).map_err(|error| wrong(file, error))?;
    let picked = foreign::pick(&kernels, args.entry.as_deref()).map_err(|error| wrong(file, error))?;
    let asked = args.asked();
    let explained: Vec<Explained> = picked
        .into_iter()
        .map(|kernel| explain(kernel.clone(), &bytes, &asked, card))
        .collect();
    let clean = explained
        .iter()
        .all(|kernel| foreign::verdict(&kernel.problems) == Verdict::Launches);
    let outcome = if clean { Outcome::Clean } else { Outcome::Findings };
    if as_json {
        let kernels: Vec<Value> = explained.iter().map(|kernel| kernel.json(&asked, card)).collect();
        style::print_json(&json!({
            "file": file.display().to_string(),
            "profile": card.name(),
            "target": card.target.name(),
            "kernels": kernels,
        }));
        return Ok(outcome);
    }
    let mut text = format!("{HEAD}{}{HEAD:#} on {}\n", file.display(), card.title());
    for kernel in &explained {
        text.push_str(&kernel.text(file, &asked, card));
    }
    style::print(&text);
    Ok(outcome)
}

fn explain(mut kernel: ForeignKernel, bytes: &[u8], asked: &Asked, card: Card) -> Explained {
    let unknown = match (kernel.form, std::str::from_utf8(bytes)) {
        (Form::Ptx, Ok(text)) => foreign::assemble(&mut kernel, text, card.target).err(),
        _ => None,
    };
    let problems = foreign::judge(&kernel, asked, card.target);
    Explained {
        kernel,
        unknown,
        problems,
    }
}

/// Registers a thread and what it spills, or why they are not known.
fn registers(kernel: &ForeignKernel, unknown: Option<&Unknown>) -> String {
    let Some(registers) = kernel.registers else {
        return unknown.map_or("not known".to_string(), ToString::to_string);
    };
    let local = match (kernel.spilled_bytes, kernel.stack_bytes) {
        (Some(0), _) => ", no spills".to_string(),
        (Some(bytes), _) => format!(", {bytes} B spilled"),
        (None, Some(bytes)) => format!(", {bytes} B of stack (spills and arrays)"),
        (None, None) => String::new(),
    };
    let by = kernel.compiler.as_deref().unwrap_or("the file");
    format!("{registers} a thread{local} ({by})")
}

impl Explained {
    fn shared(&self, asked: &Asked) -> u64 {
        self.kernel.static_shared + u64::from(asked.dynamic_shared)
    }

    /// How many blocks fit on an SM, where the threads are known.
    fn fit(&self, asked: &Asked, card: Card) -> Option<Occupancy> {
        let limits: Limits = card.target.limits();
        let shared = u32::try_from(self.shared(asked)).ok()?;
        let threads = foreign::threads_of(&self.kernel, asked)?;
        Some(limits.occupancy(threads, self.kernel.registers.unwrap_or(0), shared))
    }

    fn text(&self, file: &Path, asked: &Asked, card: Card) -> String {
        let kernel = &self.kernel;
        let mut text = format!("\n{HEAD}{}{HEAD:#}\n", kernel.name);
        let form = match (kernel.form, kernel.ptx_version) {
            (Form::Ptx, Some((major, minor))) => format!("PTX {major}.{minor} for {} and later", kernel.made_for),
            _ => format!("machine code for {}", kernel.made_for),
        };
        let bytes: u64 = kernel.parameter_bytes.iter().sum();
        let count = style::count(kernel.parameter_bytes.len() as u64, "parameter");
        text.push_str(&style::field(
            "made for",
            &format!("{form}; {count} of {bytes} B together"),
        ));
        text.push_str(&style::field("threads", &self.threads(asked)));
        text.push_str(&style::field("registers", &registers(kernel, self.unknown.as_ref())));
        let limits = card.target.limits();
        text.push_str(&style::field(
            "shared",
            &format!(
                "{} B static, {} B dynamic, {} together; {} allows {} static, {} dynamic with opt-in",
                style::whole(kernel.static_shared),
                style::whole(u64::from(asked.dynamic_shared)),
                style::whole(self.shared(asked)),
                card.target,
                style::whole(u64::from(limits.static_shared_per_block)),
                style::whole(u64::from(limits.shared_per_block)),
            ),
        ));
        if let Some(fit) = self.fit(asked, card) {
            let what = format!(
                "{} an SM, {} of {} warps, limited by {}",
                style::count(u64::from(fit.blocks_per_sm), "block"),
                fit.warps_per_sm,
                fit.max_warps_per_sm,
                fit.limited_by
            );
            text.push_str(&style::field("fits", &what));
        }
        text.push_str(&style::field("verdict", &self.verdict()));
        text.push_str(&self.symbols(asked));
        for problem in &self.problems {
            text.push('\n');
            let file = file.display().to_string();
            text.push_str(&render::problem(problem, &file, Palette::COLOUR, style::width()));
        }
        text
    }

    fn threads(&self, asked: &Asked) -> String {
        let kernel = &self.kernel;
        let declared = match (kernel.required_threads, kernel.max_threads) {
            (Some(exactly), _) => format!("exactly {exactly} by its own declaration"),
            (None, Some(most)) => format!("at most {most} by its own declaration"),
            (None, None) => "any number by its own declaration".to_string(),
        };
        match asked.threads {
            Some(threads) => format!("{threads} asked for, {declared}"),
            None => declared,
        }
    }

    fn verdict(&self) -> String {
        match foreign::verdict(&self.problems) {
            Verdict::Launches => format!("{GOOD}launches{GOOD:#}, as far as is known"),
            Verdict::NeedsOptIn => {
                format!("{BAD}fails{BAD:#} unless the host opts in first (--opted-in says that it does)")
            }
            Verdict::Refused => format!("{BAD}refused{BAD:#}: it cannot be built or launched"),
            Verdict::Doubtful => "launches, but not everything is as it should be".to_string(),
        }
    }

    fn symbols(&self, asked: &Asked) -> String {
        let kernel = &self.kernel;
        let mut text = String::new();
        if !kernel.calls.is_empty() {
            let calls = kernel.calls.join(", ");
            let what = format!("{calls}: what they take beyond this is not counted where ptxas does not say");
            text.push_str(&style::field("calls", &what));
        }
        if kernel.shared.is_empty() {
            if kernel.static_shared > 0 {
                let why =
                    "this file does not name its shared memory by symbol; PTX does, and so does a cubin built with -G";
                text.push_str(&style::field("symbols", why));
            }
            return text;
        }
        let _ = writeln!(text, "\n  {DIM}{:>8}  {:<24}  declared{DIM:#}", "bytes", "symbol");
        for symbol in &kernel.shared {
            let (bytes, note) = match symbol.is_dynamic {
                true => (u64::from(asked.dynamic_shared), ", sized by the launch"),
                false => (symbol.bytes, ""),
            };
            let declared = symbol.declared.as_deref().unwrap_or("");
            let _ = writeln!(text, "  {bytes:>8}  {:<24}  {declared}{note}", symbol.name);
        }
        text
    }

    fn json(&self, asked: &Asked, card: Card) -> Value {
        let mut value = json!(self.kernel);
        value["verdict"] = json!(foreign::verdict(&self.problems));
        value["problems"] = json!(self.problems);
        value["dynamic_shared"] = json!(asked.dynamic_shared);
        value["shared_bytes"] = json!(self.shared(asked));
        value["fit"] = json!(self.fit(asked, card));
        value["unknown"] = json!(self.unknown.as_ref().map(ToString::to_string));
        value
    }
}
