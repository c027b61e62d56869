//! `flashcore list`: what can be asked for by name, and what is here.

use clap::{Args, ValueEnum};
use flashcore_ir::{PROFILES, Target};
use flashcore_problem::{NAMED_PROBLEMS, Problem};
use serde_json::{Value, json};

use crate::args::{self, Card};
use crate::failure::{Failure, Outcome};
use crate::kernels;
use crate::levers;
use crate::machine;
use crate::museum;
use crate::style::{self, DIM, HEAD};

/// List problems, kernels, levers, profiles, the ladder, the museum or devices
#[derive(Args)]
#[command(after_help = "Exit codes: 0 done, 2 usage")]
pub(crate) struct ListArgs {
    /// What to list [default: problems, kernels and profiles]
    #[arg(value_enum)]
    what: Option<What>,
    /// For `ladder`: the problem, by name or file
    #[arg(long, value_name = "PROBLEM", default_value = "mission")]
    problem: String,
    /// For `levers`: explain this kernel id part by part
    #[arg(long, value_name = "ID")]
    kernel: Option<String>,
    /// For `ladder`: the card (`list profiles`) [default: this machine's, else l4]
    #[arg(long, value_name = "CARD", value_parser = Card::parse)]
    profile: Option<Card>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
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
    /// `evidence chart ladder --rungs FILE`
    Ladder,
    /// Failures of the past, each with the finding that it gives (`check museum/NAME`)
    Museum,
    /// GPUs, CPU and kernel cache of this machine
    Devices,
}

pub(crate) fn run(args: &ListArgs) -> Result<Outcome, Failure> {
    if args.kernel.is_some() && args.what != Some(What::Levers) {
        return Err(Failure::usage("--kernel is for `list levers`"));
    }
    let all = [What::Problems, What::Kernels, What::Profiles];
    let asked = args.what.as_ref().map_or(all.as_slice(), std::slice::from_ref);
    if args.json {
        let mut value = json!({});
        for what in asked {
            match what {
                What::Problems => value["problems"] = problems_json(),
                What::Kernels => value["kernels"] = kernels::all().into(),
                What::Levers => value["levers"] = levers::list_json(args.kernel.as_deref())?,
                What::Profiles => value["profiles"] = json!(PROFILES),
                What::Ladder => value["ladder"] = ladder_json(args)?,
                What::Museum => value["museum"] = museum::list_json(),
                What::Devices => value["devices"] = devices_json(),
            }
        }
        style::print_json(&value);
        return Ok(Outcome::Clean);
    }
    let mut sections = Vec::new();
    for what in asked {
        sections.push(match what {
            What::Problems => problems(),
            What::Kernels => kernels(),
            What::Levers => levers::list(args.kernel.as_deref())?,
            What::Profiles => profiles(),
            What::Ladder => ladder(args)?,
            What::Museum => museum::list(),
            What::Devices => devices(),
        });
    }
    style::print(&sections.join("\n"));
    Ok(Outcome::Clean)
}

/// Every named problem with what it resolves to.
fn resolved() -> impl Iterator<Item = (&'static str, &'static str, Problem)> {
    let build =
        |named: &flashcore_problem::NamedProblem| Some((named.name, named.about, named.builder().build().ok()?));
    NAMED_PROBLEMS.iter().filter_map(build)
}

fn problems() -> String {
    let mut text =
        format!("{HEAD}Problems{HEAD:#} {DIM}(flags such as --seq 1024 --causal override their fields){DIM:#}\n");
    for (name, about, problem) in resolved() {
        text.push_str(&format!("  {name:<20} {problem}\n"));
        text.push_str(&style::wrap(&format!("  {:<20} {DIM}{about}{DIM:#}", ""), 23));
    }
    text
}

fn problems_json() -> Value {
    resolved()
        .map(|(name, about, problem)| json!({ "name": name, "about": about, "problem": problem.to_string() }))
        .collect()
}

fn kernels() -> String {
    let mut text = format!("{HEAD}Kernels{HEAD:#} {DIM}(for --kernel){DIM:#}\n");
    let narrower = |id: &String| ["-v8", "-v4", "-v2"].iter().any(|width| id.ends_with(width));
    let ids: Vec<String> = kernels::all().into_iter().filter(|id| !narrower(id)).collect();
    let column = ids.iter().map(String::len).max().unwrap_or(0) + 2;
    let per_line = ((style::width() - 2) / column).max(1);
    for ids in ids.chunks(per_line) {
        let line: String = ids.iter().map(|id| format!("{id:<column$}")).collect();
        text.push_str(&format!("  {}\n", line.trim_end()));
    }
    for note in [
        "-v16 may be -v8, -v4 or -v2, for tensors whose rows are not 16-byte aligned",
        "mma and wgmma have thousands of configs; `explain` names the one that a problem gets",
        "`list levers` explains the parts of ids",
    ] {
        text.push_str(&style::wrap(&format!("  {DIM}{note}{DIM:#}"), 4));
    }
    text
}

fn profiles() -> String {
    let mut text = format!("{HEAD}Profiles{HEAD:#} {DIM}(for --profile; no such card is needed){DIM:#}\n");
    for profile in PROFILES {
        text.push_str(&format!(
            "  {:<9} {:<24} {:<7} {:>3} SMs  {:>5} MHz  {:>5} GB/s  {:>5} TFLOP/s fp16\n",
            profile.name,
            profile.title,
            profile.target.name(),
            profile.sms,
            profile.boost_mhz,
            profile.dram_gbps,
            profile.tensor_f16_f32acc_tflops,
        ));
        text.push_str(&style::wrap(&format!("  {:<9} {DIM}{}{DIM:#}", "", profile.source), 12));
    }
    let targets: Vec<&str> = Target::ALL
        .iter()
        .filter(|t| t.is_supported())
        .map(|t| t.name())
        .collect();
    text.push_str(&style::wrap(
        &format!("  architectures alone will do, too: {}", targets.join(", ")),
        2,
    ));
    text
}

/// The problem and the card of the ladder.
fn of_ladder(args: &ListArgs) -> Result<(Problem, Card), Failure> {
    let problem = args::case(&args.problem)?.problem;
    Ok((problem, args.profile.unwrap_or_else(Card::default)))
}

fn ladder(args: &ListArgs) -> Result<String, Failure> {
    let (problem, card) = of_ladder(args)?;
    let mut text = format!("# The ladder for {problem} on {}\n", card.title());
    for (id, name) in kernels::rungs(&problem, card) {
        text.push_str(&format!("{id}={name}\n"));
    }
    Ok(text)
}

fn ladder_json(args: &ListArgs) -> Result<Value, Failure> {
    let (problem, card) = of_ladder(args)?;
    let rungs = kernels::rungs(&problem, card);
    Ok(rungs.map(|(id, name)| json!({ "kernel": id, "name": name })).collect())
}

fn devices() -> String {
    let mut text = format!("{HEAD}Devices{HEAD:#}\n");
    text.push_str(&device_fields());
    text.push_str(&style::field("cache", &flashcore_cuda::cache_report().to_string()));
    text
}

/// GPUs, or why there are none, and the CPU.
pub(crate) fn device_fields() -> String {
    let mut text = String::new();
    match machine::gpus() {
        Ok(gpus) => {
            for gpu in &gpus {
                text.push_str(&style::field(&format!("cuda:{}", gpu.ordinal), &machine::gpu_line(gpu)));
            }
        }
        Err(why) => {
            machine::why_none_is_said();
            text.push_str(&style::field("cuda", &format!("none: {why}")));
        }
    }
    text.push_str(&style::field("cpu", &machine::Cpu::here().line()));
    text
}

fn devices_json() -> Value {
    let cache = flashcore_cuda::cache_report();
    let (gpus, why) = match machine::gpus() {
        Ok(gpus) => (gpus.iter().map(machine::gpu_json).collect(), None),
        Err(why) => (Vec::new(), Some(why.to_string())),
    };
    json!({
        "cuda": gpus,
        "why_no_cuda": why,
        "cpu": machine::Cpu::here().json(),
        "cache": { "path": cache.path, "writable": cache.writable, "used_bytes": cache.used_bytes, "notes": cache.notes },
    })
}
