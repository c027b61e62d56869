//! `flashcore list`: names, and the devices of this machine.

use clap::{Args, ValueEnum};
use flashcore_ir::{PROFILES, Target};
use flashcore_problem::NAMED_PROBLEMS;
use serde_json::{Value, json};

use crate::tune::USUAL;
use crate::{
    Card, DIM, Failure, Given, HEAD, Outcome, Page, args, driver_cache, kernels, levers, machine, museum, style,
};

/// List problems, kernels, levers, profiles, the ladder, the museum or devices
#[derive(Args)]
#[command(after_help = "Exit codes: 0 done, 2 usage")]
pub(crate) struct ListArgs {
    /// What to list [default: what there is to list; with --json problems, kernels and profiles]
    #[arg(value_enum)]
    what: Option<What>,
    /// Of `levers` a family or an id, of `kernels` a family, of `ladder` the problem [default: small]
    #[arg(value_name = "NAME")]
    of: Option<String>,
    /// For `ladder`: the card (`list profiles`) [default: this machine's, else l4]
    #[arg(long, value_name = "CARD", value_parser = Card::parse)]
    profile: Option<Card>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Named problems and their shapes
    Problems,
    /// Kernels, by id
    Kernels,
    /// What the parts of kernel ids mean, for every family
    Levers,
    /// Cards that plans can be made for, and their sources
    Profiles,
    /// The historical ladder of kernels, one id and name per line, for `bench --kernel FILE` and
    /// `evidence chart ladder --kernel FILE`
    Ladder,
    /// Past failures, each with its finding (`check museum/NAME`)
    Museum,
    /// GPUs, CPU and kernel cache of this machine
    Devices,
}

pub(crate) fn run(args: &ListArgs, given: &Given) -> Result<Outcome, Failure> {
    let of = args.of.as_deref();
    if let Some(word) = of.filter(|_| !matches!(args.what, Some(What::Levers | What::Kernels | What::Ladder))) {
        let help =
            "`flashcore list levers ID` explains an id part by part, `flashcore list ladder PROBLEM` has its rungs";
        return Err(Failure::usage(format!("`{word}` is not for this list")).help(help));
    }
    if args.what != Some(What::Ladder) {
        given.forbid(&["profile"], "this list; it is for `list ladder`")?;
    }
    if args.what.is_none() && !args.json {
        overview().print();
        return Ok(Outcome::Clean);
    }
    let usual = [What::Problems, What::Kernels, What::Profiles];
    let asked = args.what.as_ref().map_or(usual.as_slice(), std::slice::from_ref);
    let (mut sections, mut value) = (Vec::new(), json!({}));
    for what in asked {
        let (page, json) = match what {
            What::Problems => problems(),
            What::Kernels => kernels(of)?,
            What::Levers => levers::list(of)?,
            What::Profiles => profiles(),
            What::Ladder => ladder(args)?,
            What::Museum => museum::list(),
            What::Devices => devices(),
        };
        sections.push(page.to_string());
        value[format!("{what:?}").to_lowercase()] = json;
    }
    if args.json {
        style::print_json(&value)
    } else {
        style::print(&sections.join("\n"))
    }
    Ok(Outcome::Clean)
}

/// The lists that there are.
fn overview() -> Page {
    let mut page = Page::new(format_args!(
        "{HEAD}Lists{HEAD:#} {DIM}(as in `flashcore list problems`){DIM:#}"
    ));
    for what in What::value_variants().iter().filter_map(ValueEnum::to_possible_value) {
        page.field(what.get_name(), what.get_help().cloned().unwrap_or_default());
    }
    page
}

fn problems() -> (Page, Value) {
    let mut page = Page::new(format_args!(
        "{HEAD}Problems{HEAD:#} {DIM}(flags such as --seq 1024 override fields; NAME-backward is the backward pass){DIM:#}"
    ));
    let mut all = Vec::new();
    for named in NAMED_PROBLEMS {
        let Ok(problem) = named.builder().build() else { continue };
        // What follows the colon is the shape again.
        let model = named.about.split(':').next().unwrap_or_default();
        page.wrap(23, format_args!("  {:<20} {problem} {DIM}· {model}{DIM:#}", named.name));
        all.push(json!({ "name": named.name, "about": named.about, "problem": problem.to_string() }));
    }
    page.field("sets", style::list(flashcore_bench::problems::set_names()));
    (page, all.into())
}

/// Ids of a family; of each family the first ones if none is named.
fn kernels(family: Option<&str>) -> Result<(Page, Value), Failure> {
    /// Ids of a family that are shown among those of others.
    const SOME: usize = 10;
    let is_one = family.is_some();
    let mut page = Page::new(format_args!("{HEAD}Kernels{HEAD:#} {DIM}(for --kernel){DIM:#}"));
    let narrower = |id: &&str| ["-v8", "-v4", "-v2"].iter().any(|width| id.ends_with(width));
    let (mut all, mut left_out) = (Vec::new(), Vec::new());
    for family in levers::families(family)? {
        let of_family = kernels::all().into_iter().filter(|id| family.read(id).is_some());
        let of_family: Vec<String> = of_family.collect();
        let ids: Vec<&str> = of_family
            .iter()
            .map(String::as_str)
            .filter(|id| !narrower(id))
            .collect();
        let shown = if is_one { ids.len() } else { ids.len().min(SOME) };
        page.columns(&ids[..shown]);
        if shown < ids.len() {
            left_out.push(format!("{} of {}", ids.len() - shown, family.name));
        }
        all.extend(of_family);
    }
    if !left_out.is_empty() {
        let left_out = style::list(&left_out);
        page.dim(format_args!("more: {left_out}; `list kernels FAMILY` has them all"));
    }
    for note in [
        "-v16 may be -v8, -v4 or -v2, for tensors whose rows are not 16-byte aligned",
        "mma and wgmma have thousands of configs; `explain` names the one that a problem gets",
        "`list levers` explains the parts of ids",
    ] {
        page.dim(note);
    }
    Ok((page, all.into()))
}

fn profiles() -> (Page, Value) {
    let mut page = Page::new(format_args!(
        "{HEAD}Profiles{HEAD:#} {DIM}(for --profile; the card need not be here){DIM:#}"
    ));
    for profile in PROFILES.iter() {
        page.line(format_args!(
            "  {:<9} {:<24} {:<7} {:>3} SMs  {:>5} MHz  {:>5} GB/s  {:>5} TFLOP/s fp16",
            profile.name,
            profile.title,
            profile.target.name(),
            profile.sms,
            profile.boost_mhz,
            profile.dram_gbps,
            profile.tensor_f16_f32acc_tflops,
        ));
        page.wrap(12, format_args!("  {:<9} {DIM}{}{DIM:#}", "", profile.source));
    }
    let targets = Target::ALL.iter().filter(|target| target.is_supported());
    let targets = style::list(targets.map(|target| target.name()));
    page.wrap(2, format_args!("  an architecture is enough, too: {targets}"));
    (page, json!(*PROFILES))
}

fn ladder(args: &ListArgs) -> Result<(Page, Value), Failure> {
    let problem = args::case(args.of.as_deref().unwrap_or(USUAL))?.problem;
    let card = args.profile.unwrap_or_else(Card::default);
    let mut page = Page::new(format_args!("# The ladder for {problem} on {}", card.title()));
    let mut all = Vec::new();
    for (id, name) in kernels::rungs(&problem, card)? {
        page.line(format_args!("{id}={name}"));
        all.push(json!({ "kernel": id, "name": name }));
    }
    Ok((page, all.into()))
}

fn devices() -> (Page, Value) {
    let cache = driver_cache::cache_report();
    let mut page = Page::new(format_args!("{HEAD}Devices{HEAD:#}"));
    add_devices(&mut page);
    page.field("cache", &cache);
    let (gpus, why): (Vec<Value>, _) = match flashcore_cuda::devices() {
        Ok(gpus) => (gpus.iter().map(machine::gpu_json).collect(), None),
        Err(why) => (Vec::new(), Some(why.to_string())),
    };
    let in_trouble = flashcore_cuda::devices_in_trouble().into_iter();
    let in_trouble = in_trouble.map(|(ordinal, why)| json!({ "ordinal": ordinal, "why": why.to_string() }));
    let json = json!({
        "cuda": gpus,
        "why_no_cuda": why,
        "in_trouble": in_trouble.collect::<Vec<_>>(),
        "cpu": machine::cpu_json(),
        "cache": { "path": cache.path, "writable": cache.writable, "used_bytes": cache.used_bytes, "notes": cache.notes },
    });
    (page, json)
}

pub(crate) fn add_devices(page: &mut Page) {
    match flashcore_cuda::devices() {
        Ok(gpus) => {
            for gpu in &gpus {
                page.field(&format!("cuda:{}", gpu.ordinal), machine::gpu_line(gpu));
            }
            for (ordinal, why) in flashcore_cuda::devices_in_trouble() {
                page.field(&format!("cuda:{ordinal}"), format_args!("does not answer: {why}"));
            }
        }
        Err(why) => {
            machine::why_none_is_printed();
            page.field("cuda", format_args!("none: {why}"));
        }
    }
    page.field("cpu", machine::cpu_line());
}
