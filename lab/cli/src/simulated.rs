//! A GPU kernel under the simulator: how the subcommands plan it and show what came of it.

use std::sync::Arc;

use flashcore::{InputKind, PlanTarget, Plans, Problem};
use flashcore_check::render::{self, Palette};
use flashcore_check::{CheckOptions, CheckReport, Verdict, check_plan};
use flashcore_kernels::{Choice, Config, KernelCache, Plan, select_among};
use flashcore_sim::{Class, Progress};
use serde_json::{Value, json};

use crate::answer::gate_fields;
use crate::args::Card;
use crate::failure::{Failure, Outcome};
use crate::{progress, style};

/// The plan tables of a card; none of an architecture without one.
pub(crate) fn plans(card: Card) -> Result<Plans, Failure> {
    match card.profile {
        Some(profile) => Plans::load(&PlanTarget::Card(profile)).map_err(Failure::usage),
        None => Ok(Plans::none()),
    }
}

/// The plan for a problem on a card: the config asked for, or the one that would be used.
pub(crate) fn plan(problem: &Problem, card: Card, config: Option<Config>) -> Result<Choice, Failure> {
    match config {
        None => {
            let rows = plans(card)?.suggestions(problem);
            select_among(problem, card.chip(), 16, &rows, &KernelCache::default()).map_err(Failure::failed)
        }
        Some(config) => match Plan::new(problem, &config, card.chip()) {
            Ok(plan) => Ok(Choice {
                plan,
                why: "it was asked for by name".to_string(),
                suggestion: None,
                considered: Vec::new(),
            }),
            Err(refusal) => Err(Failure::failed(format!(
                "{config} cannot serve {problem} on {}: {refusal}",
                card.name()
            ))),
        },
    }
}

/// Checks a plan, and shows how far it is.
pub(crate) fn check(plan: &Plan, options: &CheckOptions) -> Result<CheckReport, Failure> {
    let progress = Arc::new(Progress::default());
    let options = CheckOptions {
        progress: Some(progress.clone()),
        ..options.clone()
    };
    let total = options.total_blocks(plan);
    let shown = progress::show(progress, total, plan.config.to_string(), Some(estimate(plan, total)));
    let report = check_plan(plan, &options).map_err(Failure::failed);
    drop(shown);
    report
}

/// Seconds that a simulation of so many blocks takes, roughly: enough to know seconds from hours before the first block
/// is done.
fn estimate(plan: &Plan, blocks: u64) -> f64 {
    /// Operations of attention a second that a host thread simulates, with tensor cores and without.
    const RATES: [f64; 2] = [0.35e9, 0.08e9];
    let rate = match plan.config {
        Config::Mma(_) | Config::Wgmma(_) => RATES[0],
        _ => RATES[1],
    };
    let all: u64 = plan.steps().map(|step| step.launch.blocks()).sum();
    let flops = plan.problem.flops() * blocks as f64 / all.max(1) as f64;
    flops / rate / rayon::current_num_threads() as f64
}

/// The options of one schedule on these inputs.
pub(crate) fn options(inputs: InputKind, seed: u64) -> CheckOptions {
    CheckOptions {
        inputs,
        seed,
        ..CheckOptions::default()
    }
}

/// Exit status of a report.
pub(crate) fn outcome(report: &CheckReport) -> Outcome {
    match report.verdict {
        Verdict::Clean => Outcome::Clean,
        _ => Outcome::Findings,
    }
}

/// The fields of a report, findings last.
pub(crate) fn text(report: &CheckReport) -> String {
    let mut text = style::field("kernel", &format!("{} for {}", report.kernel, report.target));
    if let Some(stop) = report.stop_after {
        text.push_str(&style::field(
            "stops",
            &format!("after the {stop}, which are compared in place of the answer"),
        ));
    }
    text.push_str(&style::field("verdict", &render::summary(report, Palette::COLOUR)));
    if let Some(gate) = &report.gate {
        text.push_str(&gate_fields(gate));
        let total = report.counts.total();
        let sizes: Vec<String> = report
            .steps
            .iter()
            .map(|step| {
                let blocks = style::count(step.blocks, "block");
                format!("{blocks} of {}", style::count(u64::from(step.warps), "warp"))
            })
            .collect();
        text.push_str(&style::field(
            "simulated",
            &format!(
                "{}, {} in {}",
                sizes.join(", then "),
                style::count(report.schedules.len() as u64, "schedule"),
                style::micros(report.seconds * 1e6),
            ),
        ));
        text.push_str(&style::field(
            "executed",
            &format!("{} warp instructions: {}", style::whole(total.warps), shares(report)),
        ));
    }
    let findings = render::findings(report, Palette::COLOUR, style::width());
    if !findings.is_empty() {
        text.push('\n');
        text.push_str(&findings);
    }
    text
}

/// The largest classes of instructions by their share.
fn shares(report: &CheckReport) -> String {
    let total = report.counts.total().warps.max(1) as f64;
    let mut classes: Vec<(Class, f64)> = Class::ALL
        .iter()
        .map(|&class| (class, report.counts.get(class).warps as f64 / total))
        .filter(|(_, share)| *share >= 0.005)
        .collect();
    classes.sort_by(|a, b| b.1.total_cmp(&a.1));
    let shown: Vec<String> = classes
        .iter()
        .map(|(class, share)| format!("{} {:.0} %", class_name(*class), share * 100.0))
        .collect();
    shown.join(", ")
}

/// The name of a class, as JSON has it, with spaces.
fn class_name(class: Class) -> String {
    match serde_json::to_value(class) {
        Ok(Value::String(name)) => name.replace('_', " "),
        _ => format!("{class:?}"),
    }
}

/// A report as JSON, counts by name.
pub(crate) fn json(report: &CheckReport) -> Result<Value, Failure> {
    let mut value = serde_json::to_value(report)?;
    let mut counts = serde_json::Map::new();
    for class in Class::ALL {
        let count = report.counts.get(class);
        if count.warps > 0 {
            let name = class_name(class).replace(' ', "_");
            counts.insert(name, json!({ "warps": count.warps, "lanes": count.lanes }));
        }
    }
    value["counts"] = Value::Object(counts);
    Ok(value)
}
