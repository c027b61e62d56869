//! A GPU kernel under the simulator: its plan, its check, and the report.

use std::sync::Arc;

use flashcore::Problem;
use flashcore::unstable::plans::{PlanTarget, Plans};
use flashcore::unstable::testing::InputKind;
use flashcore_check::render;
use flashcore_check::{CheckOptions, CheckReport, Verdict, check_plan};
use flashcore_kernels::{Choice, Config, KernelCache, Plan, Tap, select_among};
use flashcore_sim::{Class, Progress};
use serde_json::{Value, json};

use crate::{Card, Failure, Outcome, Page, judged_run, progress, style};

/// The plan tables of a card; an architecture has none.
pub(crate) fn plans(card: Card) -> Result<Plans, Failure> {
    match card.profile {
        Some(profile) => Plans::load(&PlanTarget::Card(profile)).map_err(Failure::usage),
        None => Ok(Plans::none()),
    }
}

pub(crate) fn names(plans: &Plans) -> Vec<&str> {
    plans.tables().iter().map(|table| table.name.as_str()).collect()
}

/// The plan for a problem on a card: with the config given, or with the one that the library chooses.
pub(crate) fn plan(problem: &Problem, card: Card, config: Option<Config>) -> Result<Choice, Failure> {
    match config {
        None => {
            let rows = plans(card)?.suggestions(problem);
            let chosen = select_among(problem, card.chip, 16, &rows, &KernelCache::default());
            let title = card.title();
            let help = format!("this is for {title}; --profile names another card, such as h200");
            chosen.map_err(|error| Failure::failed(error).help(help))
        }
        Some(config) => {
            let refused = |why| Failure::failed(format!("{config} cannot serve {problem} on {}: {why}", card.name()));
            Ok(Choice {
                plan: Plan::new(problem, &config, card.chip).map_err(refused)?,
                why: "it was given by name".to_string(),
                suggestion: None,
                considered: Vec::new(),
            })
        }
    }
}

pub(crate) fn check(plan: &Plan, options: &CheckOptions) -> Result<CheckReport, Failure> {
    let total = options.total_blocks(plan.steps());
    let (label, estimate) = (plan.config.to_string(), Some(estimate(plan, total)));
    watched(label, total, estimate, options, |options| check_plan(plan, options)).map_err(Failure::failed)
}

/// A check of so many blocks, with its progress.
pub(crate) fn watched<T>(
    label: String,
    blocks: u64,
    estimate: Option<f64>,
    options: &CheckOptions,
    check: impl FnOnce(&CheckOptions) -> T,
) -> T {
    let progress = Arc::new(Progress::default());
    let mut options = options.clone();
    options.sim.progress = Some(progress.clone());
    let shown = progress::show(progress, blocks, label, estimate);
    let checked = check(&options);
    drop(shown);
    checked
}

/// Roughly the seconds that so many blocks take: tells seconds from hours before the first is done.
fn estimate(plan: &Plan, blocks: u64) -> f64 {
    /// Operations of attention per second that a host thread simulates, with tensor cores and without.
    const RATES: [f64; 2] = [0.35e9, 0.08e9];
    let rate = match plan.config {
        Config::Mma(_) | Config::Wgmma(_) => RATES[0],
        _ => RATES[1],
    };
    let all: u64 = plan.steps().map(|step| step.launch.blocks()).sum();
    let flops = plan.problem.flops() * blocks as f64 / all.max(1) as f64;
    flops / rate / rayon::current_num_threads() as f64
}

pub(crate) fn options(inputs: InputKind, seed: u64) -> CheckOptions {
    CheckOptions {
        inputs,
        seed,
        ..CheckOptions::default()
    }
}

pub(crate) fn outcome(report: &CheckReport) -> Outcome {
    Outcome::of(report.verdict == Verdict::Clean)
}

/// What is compared, if it is a tap.
pub(crate) fn add_tap(page: &mut Page, tap: Option<Tap>) {
    let text = tap.map(|tap| format!("at tap {tap}, which is compared in place of the output"));
    page.fields("stops", &text);
}

pub(crate) fn add(page: &mut Page, report: &CheckReport) {
    page.field("kernel", format_args!("{} for {}", report.kernel, report.target));
    add_tap(page, report.tap);
    page.field("verdict", render::summary(report));
    if let Some(gate) = &report.gate {
        judged_run::add_gate(page, gate, false);
        let sizes = report.steps.iter().map(|step| {
            let blocks = style::count(step.blocks, "block");
            format!("{blocks} of {}", style::count(step.warps, "warp"))
        });
        let sizes = sizes.collect::<Vec<_>>().join(", then ");
        let schedules = style::count(report.schedules.len(), "schedule");
        let time = style::micros(report.seconds * 1e6);
        let differs = "its last bits may differ between runs, as the kernel declares; the output was compared in each";
        page.fields("note", (!report.reproducible).then_some(differs));
        page.field("simulated", format_args!("{sizes}, {schedules} in {time}"));
        let warps = style::whole(report.counts.total().warps);
        let text = format!("{warps} warp instructions: {}", shares(report));
        page.field("executed", text);
    }
    let findings = render::findings(report, style::width());
    if !findings.is_empty() {
        page.add(format_args!("\n{findings}"));
    }
}

fn shares(report: &CheckReport) -> String {
    let total = report.counts.total().warps.max(1) as f64;
    let share = |class: &Class| (*class, report.counts.get(*class).warps as f64 / total);
    let large = Class::ALL.iter().map(share).filter(|(_, share)| *share >= 0.005);
    let mut classes: Vec<(Class, f64)> = large.collect();
    classes.sort_by(|a, b| b.1.total_cmp(&a.1));
    let shown = classes
        .iter()
        .map(|(class, share)| format!("{} {:.0} %", class_name(*class).replace('_', " "), share * 100.0));
    style::list(shown)
}

fn class_name(class: Class) -> String {
    json!(class).as_str().unwrap_or_default().to_string()
}

pub(crate) fn json(report: &CheckReport) -> Value {
    let counts = Class::ALL.iter().filter(|class| report.counts.get(**class).warps > 0);
    let counts = counts.map(|&class| {
        let count = report.counts.get(class);
        (class_name(class), json!({ "warps": count.warps, "lanes": count.lanes }))
    });
    let mut value = json!(report);
    value["counts"] = Value::Object(counts.collect());
    value
}
