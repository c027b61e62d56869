//! `flashcore parity`: random and adversarial problems, each output against float64.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use flashcore::unstable::testing::InputKind;
use flashcore::{DType, Device};
use flashcore_bench::parity::{Engine, Mismatch, Options, Report, Sdpa, run as run_problems};
use flashcore_check::mutate::Operator;
use flashcore_kernels::FAMILIES;
use serde_json::json;

mod own;

use crate::machine::{Besides, Place};
use crate::own::OwnArgs;
use crate::{BAD, CODE, Card, Failure, GOOD, Outcome, Page, args, check, machine, progress, style};

/// Mismatches that are printed; `--json` has all.
const SHOWN: usize = 20;
/// Problems under the simulator, which is slower, if no number is given.
const SIMULATED: u64 = 20;

/// Compare kernels with float64 on random and adversarial problems
///
/// Every fourth problem runs the kernel that the library would choose for it; the others run one drawn
/// from a random family. Every third problem has adversarial inputs. Each output starts as poison, every
/// row of it is compared with float64, and the bytes between rows must not change. Where a Python has
/// PyTorch, the float64 reference is itself compared with PyTorch's SDPA, in float64 on the host, on the
/// problems that SDPA has. A mismatch is printed with its problem, its seed and the command that repeats
/// it alone.
#[derive(Args)]
#[command(after_long_help = include_str!("../help/parity.txt"))]
pub(crate) struct ParityArgs {
    /// How many problems [default: 200, or 20 with --device sim or --kernel]
    #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    problems: Option<u64>,
    /// What problems, kernels and inputs are drawn by
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Only the problem of this number, as a mismatch names it
    #[arg(long, value_name = "NUMBER", conflicts_with = "problems", value_parser = clap::value_parser!(u64).range(..u64::MAX))]
    only: Option<u64>,
    /// Family of the kernels that are drawn, where it serves the problem
    ///
    /// Every fourth problem still runs the library's choice. Problems then have dtypes and strides that the family
    /// takes.
    #[arg(long, value_parser = PossibleValuesParser::new(FAMILIES.map(|family| family.name)))]
    family: Option<String>,
    /// best, cpu, cuda, cuda:N, sim, or sim:CARD to plan for a card (`list profiles`)
    #[arg(long, value_name = "DEVICE", default_value = "best")]
    device: String,
    /// lengths, sinks-alibi: packed sequences, caches and pages; sinks and ALiBi in two thirds
    ///
    /// With lengths NaN is past every end; sinks-alibi gives a third of the problems sinks, and a third ALiBi.
    #[arg(
        long,
        value_name = "WHAT",
        value_delimiter = ',',
        value_enum,
        hide_possible_values = true
    )]
    with: Vec<With>,
    /// Split keys every KEYS of them, and choose kernels, whatever the batch is
    #[arg(long, value_name = "KEYS", conflicts_with = "backward", help_heading = args::PROBLEM,
          value_parser = clap::value_parser!(u32).range(1..))]
    batch_invariant: Option<u32>,
    /// Backward problems, whose three gradients are compared; in place of pages there are caches
    #[arg(long, help_heading = args::PROBLEM)]
    backward: bool,
    /// Element type of every problem
    #[arg(long, value_parser = args::dtype, help_heading = args::PROBLEM)]
    dtype: Option<DType>,
    /// Inputs of every problem
    #[arg(long, value_name = "KIND", value_parser = args::input_kinds())]
    inputs: Option<InputKind>,
    /// With --device sim: plant a mistake into each kernel, to see it found, as `check --plant`
    #[arg(long, value_name = "MISTAKE", value_parser = check::operator)]
    plant: Option<Operator>,
    /// none: do not compare the reference with PyTorch's SDPA
    #[arg(long, value_name = "LABEL", value_parser = ["torch/sdpa", "none"], default_value = "torch/sdpa")]
    peers: String,
    /// Judge kernels of your own in place of FlashCore's: FILE.toml, FILE.py:FUNCTION
    ///
    /// On problems that they serve.
    #[arg(
        long,
        value_name = "FILES",
        value_delimiter = ',',
        conflicts_with_all = ["family", "with", "batch_invariant", "backward", "dtype", "inputs", "plant"]
    )]
    kernel: Vec<String>,
    #[command(flatten)]
    own: OwnArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What random problems have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum With {
    Lengths,
    SinksAlibi,
}

pub(crate) fn run(args: &ParityArgs) -> Result<Outcome, Failure> {
    if !args.kernel.is_empty() {
        return own::run(args);
    }
    let engine = engine(&args.device)?;
    let simulated = matches!(engine, Engine::Sim { .. });
    if args.plant.is_some() && !simulated {
        return Err(Failure::usage(
            "--plant is for --device sim: nothing broken runs on a device",
        ));
    }
    if args.backward && args.with.contains(&With::SinksAlibi) {
        return Err(Failure::usage(
            "--with sinks-alibi is for forward passes, and --backward asks for others",
        ));
    }
    if args.backward && args.dtype == Some(DType::E4M3) {
        return Err(Failure::usage(
            "the backward pass takes f32, fp16 and bf16, and --dtype is e4m3",
        ));
    }
    if let (Some(family), Engine::Device(Device::Cpu)) = (&args.family, &engine) {
        let why = format!("--family {family} is a family of GPU kernels, and the device is the CPU");
        return Err(Failure::usage(why).help("leave --family out, or name another device, such as sim"));
    }
    let usual = if simulated {
        SIMULATED
    } else {
        Options::default().problems
    };
    let options = Options {
        problems: args.problems.unwrap_or(usual),
        seed: args.seed,
        only: args.only,
        inputs: args.inputs,
        family: args.family.clone(),
        dtype: args.dtype,
        lengths: args.with.contains(&With::Lengths),
        head_values: args.with.contains(&With::SinksAlibi),
        batch_invariant: args.batch_invariant.map(|keys| keys as usize),
        backward: args.backward,
        plant: args.plant,
    };
    let (sdpa, absent) = match (args.peers != "none").then(Sdpa::start) {
        Some(Ok(sdpa)) => (Some(sdpa), None),
        Some(Err(why)) => (None, Some(why)),
        None => (None, None),
    };
    let total = args.only.map_or(options.problems, |_| 1);
    let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let shown = {
        let counts = counts.clone();
        progress::watch("problems", move |elapsed| {
            let [done, wrong] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
            line(done, wrong, total, elapsed)
        })
    };
    let mut report = run_problems(&engine, &options, sdpa.as_ref(), &|done, wrong| {
        counts[0].store(done, Ordering::Relaxed);
        counts[1].store(wrong, Ordering::Relaxed);
    });
    drop(shown);
    report.sdpa.absent = absent;
    // Where a family refuses a problem, another kernel computes it. Every fourth is the library's choice.
    let of_family = |name: &String| report.families.keys().any(|family| family == name);
    let unserved = args
        .family
        .as_ref()
        .filter(|name| args.only.is_none() && total > 1 && !of_family(name));
    let remedy = "give more problems, another --dtype, or another card";
    match (report.not_drawn.first(), unserved) {
        (Some(why), _) if report.passed == 0 && report.mismatches.is_empty() => {
            return Err(Failure::failed(why).help(remedy));
        }
        (None, Some(family)) if report.mismatches.is_empty() => {
            let why = format!(
                "no problem was computed by family {family}: it served none on {}",
                report.device
            );
            return Err(Failure::failed(why).help(remedy));
        }
        _ => {}
    }
    style::show(args.json, || json!(report), || page(&report));
    Ok(Outcome::of(report.mismatches.is_empty() && report.not_drawn.is_empty()))
}

/// Where kernels compute: a device by name, or the simulator for a card.
pub(crate) fn engine(device: &str) -> Result<Engine, Failure> {
    let card = match machine::place(device, Besides::CpuAndSim)? {
        Place::Here(device) => return Ok(Engine::Device(device)),
        Place::Card(profile) => Card::of(profile),
        Place::Simulator(card) => card.unwrap_or_else(Card::default),
    };
    Ok(Engine::sim(card.name(), card.chip))
}

fn line(done: u64, wrong: u64, total: u64, elapsed: Duration) -> String {
    let wrong = if wrong > 0 {
        format!(", {wrong} wrong")
    } else {
        String::new()
    };
    let left = match done {
        0 => String::new(),
        _ => format!(", {}", progress::left(done, total, elapsed)),
    };
    format!(
        "{} of {} problems{wrong}{left}",
        style::whole(done),
        style::whole(total)
    )
}

fn page(report: &Report) -> Page {
    let (passed, wrong) = (report.passed, report.mismatches.len());
    let mut page = Page::default();
    let device = format!("on {}, seed {}", report.device, report.seed);
    match wrong {
        0 => page.wrap(2, format_args!("{GOOD}{passed} right{GOOD:#} {device}")),
        _ => page.wrap(2, format_args!("{BAD}{wrong} wrong{BAD:#}, {passed} right {device}")),
    }
    if report.trivial > 0 {
        let some = style::count(report.trivial, "problem");
        page.field(
            "trivial",
            format_args!("{some}: no row sees two keys, or zeros would pass"),
        );
    }
    if report.redrawn > 0 {
        let more = style::count(report.redrawn, "more problem");
        page.field("redrawn", format_args!("{more} that no kernel serves"));
    }
    if let Some(why) = report.not_drawn.first() {
        let problems = style::count(report.not_drawn.len(), "problem");
        page.field("not drawn", format_args!("{problems}: {why}"));
    }
    let sdpa = &report.sdpa;
    match (&sdpa.by, &sdpa.absent) {
        (Some(by), _) => {
            let (agreed, not) = (style::count(sdpa.agreed, "problem"), sdpa.not_served);
            let why = sdpa
                .why_not
                .as_ref()
                .map_or(String::new(), |why| format!(", such as: {why}"));
            let text = format!(
                "{by} agrees with float64 on {agreed} to {:.0e}; {not} not judged{why}",
                sdpa.most
            );
            page.field("witness", text);
        }
        (None, Some(why)) => page.field("witness", why),
        (None, None) => {}
    }
    for (name, family) in &report.families {
        let (problems, kernels) = (
            style::count(family.problems, "problem"),
            style::count(family.kernels.len(), "kernel"),
        );
        let spilled = match family.spilled {
            0 => String::new(),
            count => format!(", {count} more that spilled"),
        };
        page.field(name, format_args!("{problems}, {kernels}{spilled}"));
        for (of, worst) in &family.worst {
            let errors = format!("max abs {:.1e}, relative {:.1e}", worst.max_abs, worst.frobenius);
            page.field(
                "",
                format_args!("{of:<24} {errors}, {:.2} of what is allowed", worst.of_allowed),
            );
        }
    }
    report
        .mismatches
        .iter()
        .take(SHOWN)
        .for_each(|mismatch| add(&mut page, mismatch));
    if wrong > SHOWN {
        page.line(format_args!(
            "\n{} more; --json has all",
            style::whole((wrong - SHOWN) as u64)
        ));
    }
    page
}

fn add(page: &mut Page, mismatch: &Mismatch) {
    let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "none".to_string());
    page.line(format_args!("\n{BAD}mismatch{BAD:#} in problem {}", mismatch.number));
    page.field("problem", name(&mismatch.problem));
    page.field(
        "inputs",
        format_args!("{}, seed {}", mismatch.inputs.unwrap_or("none"), mismatch.seed),
    );
    page.field("kernel", name(&mismatch.kernel));
    page.field("what", &mismatch.what);
    // Not wrapped, so that it can be copied.
    page.line(format_args!("  {CODE}{}{CODE:#}", mismatch.command));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_what_is_left() {
        let line = |done, wrong| line(done, wrong, 200, Duration::from_secs(10));
        assert_eq!(line(0, 0), "0 of 200 problems");
        assert_eq!(line(50, 2), "50 of 200 problems, 2 wrong, about 30 s left");
    }
}
