//! `flashcore explain FILE.cu|FILE.ptx|FILE.cubin`: the resources of foreign kernels, and whether a card can
//! launch them. `flashcore check FILE.cu|FILE.ptx`: what the simulator finds in them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use flashcore_check::Found;
use flashcore_check::foreign::{
    self, Asked, CodeForm, ForeignKernel, ForeignLaunch, Given, LaunchFile, Problem, Ran, RunError, Verdict,
};
use flashcore_check::render;
use flashcore_ptx::PtxError;
use flashcore_ptx::{Line, MissingForm};
use flashcore_sim::{Occupancy, SimOptions, occupancy};
use serde_json::{Value, json};

use crate::kernel_file::{CompileArgs, KernelFile, write_buffers, wrong};
use crate::launch::{LaunchArgs, asked};
use crate::missing::{add_missing, add_share};
use crate::triton;
use crate::{BAD, Card, Failure, GOOD, HEAD, Outcome, Page, cost, in_place, progress, style, whole};

/// The launch to explain.
#[derive(Args)]
#[command(next_help_heading = "For a file of kernels (FILE.cu, FILE.ptx, FILE.cubin, a program) in place of a problem")]
pub(crate) struct ForeignArgs {
    #[command(flatten)]
    launch: LaunchArgs,
    /// The expected bytes of a symbol, or of `total`; reports differences
    #[arg(long, value_name = "SYMBOL=N", value_parser = claim)]
    claim: Vec<(String, u64)>,
    #[command(flatten)]
    compile: CompileArgs,
}

/// The launch to simulate.
#[derive(Args)]
#[command(next_help_heading = "For a file of kernels (FILE.cu, FILE.ptx, a program) in place of a problem")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    launch: LaunchArgs,
    /// The next argument of the kernel: a number, or buf:BYTES for a pointer
    ///
    /// A buffer has f32 numbers, or other contents with :f16, :zero or :unwritten.
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    arg: Vec<Given>,
    /// Write what the kernel leaves in its buffers to N.bin in this folder
    ///
    /// It is what the first schedule leaves; N counts the arguments from 0.
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    compile: CompileArgs,
}

fn claim(text: &str) -> Result<(String, u64), String> {
    let parts = text.split_once('=').map(|(name, bytes)| (name, bytes.parse()));
    match parts {
        Some((name, Ok(bytes))) if !name.is_empty() => Ok((name.to_string(), bytes)),
        _ => Err("write SYMBOL=BYTES, e.g. partials=8192".to_string()),
    }
}

pub(crate) struct Runs {
    pub(crate) schedules: u32,
    pub(crate) first: u64,
    pub(crate) blocks: Option<u64>,
}

struct Judged {
    kernel: ForeignKernel,
    unknown: Option<String>,
    problems: Vec<Problem>,
}

impl Judged {
    fn new(mut kernel: ForeignKernel, file: &KernelFile, asked: &Asked, card: Card) -> Judged {
        let unknown = file.ptx(kernel.form).and_then(|text| {
            let assembled = foreign::assemble(&mut kernel, text, card.chip.target, &file.assembler);
            Some(assembled.err()?.to_string())
        });
        let problems = foreign::judge(&kernel, asked, card.chip.target);
        Judged {
            kernel,
            unknown,
            problems,
        }
    }

    fn verdict(&self) -> Verdict {
        foreign::verdict(&self.problems)
    }

    fn registers(&self) -> String {
        let kernel = &self.kernel;
        let Some(registers) = kernel.registers else {
            return self.unknown.clone().unwrap_or_else(|| "not known".to_string());
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
}

pub(crate) fn add_problems(page: &mut Page, problems: &[Problem], file: &str) {
    for problem in problems {
        let text = render::problem(problem, file, style::width());
        page.add(format_args!("\n{text}"));
    }
}

pub(crate) fn add_findings(page: &mut Page, found: &[Found], runs: &Runs) {
    for found in found {
        let text = render::finding(found, runs.schedules as usize, style::width());
        page.add(format_args!("\n{text}"));
    }
}

impl RunArgs {
    pub(crate) fn check(&self, file: &Path, card: Card, runs: &Runs, as_json: bool) -> Result<Outcome, Failure> {
        let checked = self.check_launch(file, card, runs, as_json);
        checked.map_err(|failure| match self.launch.beside(file) {
            Some(launch) if failure.is_usage() => failure.also(&format!(
                "there is a launch file beside it: --launch {}",
                launch.display()
            )),
            _ => failure,
        })
    }

    fn check_launch(&self, file: &Path, card: Card, runs: &Runs, as_json: bool) -> Result<Outcome, Failure> {
        let (mut given, mut entry) = self.launch(runs, card)?;
        let read = match triton::named(file) {
            Some(word) => {
                let constants = self.compile.constants()?;
                let (read, name) = triton::compile(word, self.compile.trusts_file(), constants, &mut given, card)?;
                entry = Some(name);
                read
            }
            None => KernelFile::read(file, &self.compile.for_arch(given.arch.take()), entry.as_deref(), card)?,
        };
        let entry = entry.as_deref();
        if let Some(what) = foreign::binary_kind(&read.bytes) {
            return Err(in_place::binary(file, what));
        }
        let kernels = read.kernels(file, entry)?;
        let [kernel] = kernels.as_slice() else {
            let names = style::list(kernels.iter().map(|kernel| foreign::readable(&kernel.name)));
            return Err(wrong(
                file,
                format_args!("it has {names}; name one with --launch entry=NAME"),
            ));
        };
        let asked = asked(&given, Some(given.launch.grid), &[]);
        let launch = given.launch;
        // Without an assembler the registers are not known, and not judged.
        let judged = Judged::new(kernel.clone(), &read, &asked, card);
        let is_refused = matches!(judged.verdict(), Verdict::Refused | Verdict::NeedsOptIn);
        let mut understood = kernel.understood.clone().unwrap_or_default();
        let all = launch
            .grid
            .iter()
            .fold(1, |blocks: u64, &n| blocks.saturating_mul(n.into()));
        let only = runs.blocks.filter(|&blocks| blocks < all);
        let (mut found, mut predicted) = (Vec::new(), None);
        if !is_refused && understood.missing.is_empty() {
            if foreign::threads_of(kernel, &asked).is_none() {
                let why = format!("`{}` does not declare its threads", kernel.name);
                return Err(wrong(file, why).help("give the threads of a block with --launch threads=N"));
            }
            match simulate(file, &read.bytes, &kernel.name, launch.clone(), only.unwrap_or(all))? {
                Ok(ran) => {
                    found = ran.found;
                    if let Some(folder) = &self.output {
                        write_buffers(folder, &ran.outputs)?;
                    }
                    predicted = card.profile.map(|profile| {
                        let text = std::str::from_utf8(&read.bytes).unwrap_or_default();
                        let (name, registers) = (file.display().to_string(), judged.kernel.registers);
                        let time = foreign::time(text, &kernel.name, &name, &launch, profile, registers);
                        time.map_err(|error| error.to_string())
                    });
                }
                Err(missing) => understood.add(missing),
            }
        }
        let (name, count) = (file.display().to_string(), found.len());
        let time = predicted.as_ref().filter(|_| understood.missing.is_empty());
        let is_missing = !understood.missing.is_empty();
        let json = || {
            json!({
                "file": name,
                "kernel": kernel.name,
                "made_by": read.made_by,
                "registers": judged.kernel.registers,
                "unknown": judged.unknown,
                "profile": card.name(),
                "profile_is_assumed": card.is_assumed,
                "target": card.chip.target.name(),
                "verdict": match count {
                    _ if is_refused => "refused",
                    _ if is_missing => "not_judged",
                    0 => "clean",
                    _ => "findings",
                },
                "instructions": understood.instructions,
                "understood": understood.understood,
                "missing": understood.missing,
                "problems": judged.problems,
                "findings": found.iter().map(|found| rendered(found, runs)).collect::<Vec<_>>(),
                "only_blocks": only,
                "predicted": time.and_then(|time| time.as_ref().ok()),
                "not_predicted": time.and_then(|time| time.as_ref().err()),
            })
        };
        style::show(as_json, json, || {
            let mut page = Page::new(format_args!(
                "{HEAD}{}{HEAD:#} of {name}",
                foreign::readable(&kernel.name)
            ));
            page.fields("made by", &read.made_by);
            page.fields("card", card.why());
            page.field("registers", judged.registers());
            let mut under = style::count(runs.schedules, "schedule");
            if let Some(blocks) = only {
                under.push_str(&format!(" in {} of {} blocks", whole(blocks), whole(all)));
            }
            let title = card.title();
            if is_missing {
                let [fixed, dynamic] = [kernel.static_shared, asked.dynamic_shared.into()].map(whole);
                page.field("shared", format_args!("{fixed} B static, {dynamic} B dynamic"));
                add_share(&mut page, &understood);
            }
            let verdict = match (is_refused, count) {
                (true, _) => format!("{BAD}refused{BAD:#}: {title} cannot launch it; it was not simulated"),
                (false, _) if is_missing && judged.problems.is_empty() => {
                    format!("{BAD}not judged{BAD:#}: {title} can launch it, as far as is known; it was not simulated")
                }
                (false, _) if is_missing => {
                    format!("{BAD}not judged{BAD:#}: its launch has warnings; it was not simulated")
                }
                (false, 0) => format!("{GOOD}clean{GOOD:#} under {under}; its output was not compared"),
                (false, _) => format!("{BAD}{}{BAD:#} under {under}", style::count(count, "finding")),
            };
            page.field("verdict", verdict);
            if let Some(time) = time {
                cost::add_time(&mut page, time, card);
            }
            add_problems(&mut page, &judged.problems, &name);
            add_missing(&mut page, &understood, &name);
            add_findings(&mut page, &found, runs);
            page
        });
        Ok(if is_missing && !is_refused {
            Outcome::NotJudged
        } else {
            Outcome::of(!is_refused && found.is_empty())
        })
    }

    /// The launch to simulate, and the name of the kernel.
    fn launch(&self, runs: &Runs, card: Card) -> Result<(LaunchFile, Option<String>), Failure> {
        let (mut read, entry) = self.launch.read()?;
        let launch = &mut read.launch;
        if !self.arg.is_empty() {
            launch.args = self.arg.clone();
            read.types.clear(); // of the file's arguments
        }
        launch.schedules = runs.schedules;
        launch.sim = SimOptions {
            seed: runs.first,
            first_blocks: runs.blocks,
            chip: card.chip,
            ..SimOptions::default()
        };
        Ok((read, entry))
    }
}

/// A finding with its text, as it is printed without colours.
fn rendered(found: &Found, runs: &Runs) -> Value {
    let mut value = json!(found);
    let text = render::finding(found, runs.schedules as usize, render::WIDTH);
    value["rendered"] = json!(render::plain(&text));
    value
}

fn simulate(
    file: &Path,
    bytes: &[u8],
    name: &str,
    mut launch: ForeignLaunch,
    blocks: u64,
) -> Result<Result<Ran, MissingForm>, Failure> {
    let progress = Arc::default();
    launch.sim.progress = Some(Arc::clone(&progress));
    let text = std::str::from_utf8(bytes).map_err(|error| wrong(file, error))?;
    let shown = progress::show(progress, blocks * u64::from(launch.schedules), name.to_string(), None);
    let ran = foreign::run(text, name, &file.display().to_string(), &launch);
    drop(shown);
    let error = match ran {
        Ok(ran) => return Ok(Ok(ran)),
        Err(RunError::Ptx(PtxError::NotUnderstood { what, why, line })) => {
            let (form, count) = (what.trim_matches('`').to_string(), 1);
            let lines = vec![Line { file: None, line }];
            return Ok(Err(MissingForm {
                form,
                count,
                lines,
                why,
            }));
        }
        Err(error) => error,
    };
    Err(match error {
        RunError::Ptx(_) | RunError::Simulator(_) => Failure::failed(format!("{}: {error}", file.display())),
        _ => wrong(file, error).help("give one --arg for each parameter, in order: `flashcore check --help`"),
    })
}

pub(crate) fn explain(file: &Path, args: &ForeignArgs, card: Card, as_json: bool) -> Result<Outcome, Failure> {
    let (mut launch, entry) = args.launch.read()?;
    let compile = args.compile.for_arch(launch.arch.take());
    let read = KernelFile::read(file, &compile, entry.as_deref(), card)?;
    let asked = asked(
        &launch,
        args.launch.has_grid().then_some(launch.launch.grid),
        &args.claim,
    );
    let kernels = read.kernels(file, entry.as_deref())?.into_iter();
    let judged = kernels.map(|kernel| Judged::new(kernel, &read, &asked, card));
    let kernels: Vec<Judged> = judged.collect();
    let name = file.display().to_string();
    let json = || {
        let kernels: Vec<Value> = kernels.iter().map(|kernel| kernel.json(&asked, card)).collect();
        json!({
            "file": name,
            "made_by": read.made_by,
            "profile": card.name(),
            "profile_is_assumed": card.is_assumed,
            "target": card.chip.target.name(),
            "kernels": kernels,
        })
    };
    style::show(as_json, json, || {
        let mut page = Page::new(format_args!("{HEAD}{name}{HEAD:#} on {}", card.title()));
        page.fields("made by", &read.made_by);
        page.fields("card", card.why());
        for kernel in &kernels {
            kernel.add(&mut page, &asked, card);
            add_problems(&mut page, &kernel.problems, &name);
        }
        page
    });
    let launches = |kernel: &Judged| kernel.verdict() == Verdict::Launches;
    Ok(Outcome::of(kernels.iter().all(launches)))
}

impl Judged {
    fn shared(&self, asked: &Asked) -> u64 {
        self.kernel.static_shared + u64::from(asked.dynamic_shared)
    }

    fn fit(&self, asked: &Asked, card: Card) -> Option<Occupancy> {
        let shared = u32::try_from(self.shared(asked)).ok()?;
        let threads = foreign::threads_of(&self.kernel, asked)?;
        let limits = card.chip.target.limits();
        Some(occupancy(&limits, threads, self.kernel.registers.unwrap_or(0), shared))
    }

    fn add(&self, page: &mut Page, asked: &Asked, card: Card) {
        let kernel = &self.kernel;
        page.line(format_args!("\n{HEAD}{}{HEAD:#}", foreign::readable(&kernel.name)));
        let form = match (kernel.form, kernel.ptx_version) {
            (CodeForm::Ptx, Some((major, minor))) => format!("PTX {major}.{minor} for {} and later", kernel.made_for),
            _ => format!("machine code for {}", kernel.made_for),
        };
        let bytes: u64 = kernel.parameter_bytes.iter().sum();
        let count = style::count(kernel.parameter_bytes.len(), "parameter");
        page.field("made for", format_args!("{form}; {count} of {bytes} B together"));
        let declared = match (kernel.required_threads, kernel.max_threads) {
            (Some(exactly), _) => format!("the kernel declares exactly {exactly}"),
            (None, Some(most)) => format!("the kernel declares at most {most}"),
            (None, None) => "the kernel declares no number".to_string(),
        };
        match asked.threads {
            Some(threads) => page.field("threads", format_args!("{threads} requested; {declared}")),
            None => page.field("threads", declared),
        }
        page.field("registers", self.registers());
        let (target, limits) = (card.chip.target, card.chip.target.limits());
        let [fixed, dynamic, both] = [kernel.static_shared, asked.dynamic_shared.into(), self.shared(asked)].map(whole);
        let [most_fixed, most] = [limits.static_shared_per_block, limits.shared_per_block].map(whole);
        let text = format!(
            "{fixed} B static, {dynamic} B dynamic, {both} together; {target} allows {most_fixed} static, {most} \
             dynamic with opt-in"
        );
        page.field("shared", text);
        if let Some(fit) = self.fit(asked, card) {
            let (blocks, limit) = (style::count(fit.blocks_per_sm, "block"), &fit.limited_by);
            let (warps, most) = (fit.warps_per_sm, fit.max_warps_per_sm);
            let text = format!("{blocks} an SM, {warps} of {most} warps, limited by {limit}");
            page.field("fits", text);
        }
        let verdict = match self.verdict() {
            Verdict::Launches => format!("{GOOD}launches{GOOD:#}, as far as is known"),
            Verdict::NeedsOptIn => format!("{BAD}fails{BAD:#} unless the host opts in first (--launch opted-in)"),
            Verdict::Refused => format!("{BAD}refused{BAD:#}: it cannot be built or launched"),
            Verdict::Doubtful => "launches, with warnings".to_string(),
        };
        page.field("verdict", verdict);
        self.add_symbols(page, asked);
    }

    fn add_symbols(&self, page: &mut Page, asked: &Asked) {
        let kernel = &self.kernel;
        if !kernel.calls.is_empty() {
            let calls = kernel.calls.join(", ");
            let text = format!("{calls}: their own resources are not counted unless ptxas reports them");
            page.field("calls", text);
        }
        if kernel.shared.is_empty() && kernel.static_shared > 0 {
            let text = "not named in this file; PTX and a cubin built with -G name them";
            page.field("symbols", text);
        }
        if kernel.shared.is_empty() {
            return;
        }
        page.line("");
        page.dim("   bytes  symbol                    declared");
        for symbol in &kernel.shared {
            let (bytes, note) = if symbol.is_dynamic {
                (u64::from(asked.dynamic_shared), ", sized by the launch")
            } else {
                (symbol.bytes, "")
            };
            let declared = symbol.declared.as_deref().unwrap_or("");
            page.line(format_args!("  {bytes:>8}  {:<24}  {declared}{note}", symbol.name));
        }
    }

    fn json(&self, asked: &Asked, card: Card) -> Value {
        let mut value = json!(self.kernel);
        value["verdict"] = json!(self.verdict());
        value["problems"] = json!(self.problems);
        value["dynamic_shared"] = json!(asked.dynamic_shared);
        value["shared_bytes"] = json!(self.shared(asked));
        value["fit"] = json!(self.fit(asked, card));
        value["unknown"] = json!(self.unknown);
        value
    }
}
