//! What `explain` predicts of a plan: its time on a card, and what binds it.

use std::path::{Path, PathBuf};

use flashcore::{DType, DeviceInfo, Problem};
use flashcore_bench::DeviceIdentity;
use flashcore_bench::micro::rates;
use flashcore_check::cost::{Bound, MeasuredCard, Observation, Prediction, roofline};
use flashcore_ir::Profile;
use flashcore_kernels::Plan;
use serde_json::{Value, json};

use crate::args::Card;
use crate::failure::Failure;
use crate::machine;
use crate::style::{self, HEAD};

/// Microseconds in the reports that this project began with, for B1 H8 S512 D64 on their L4.
const REPORTS: [(f64, &str); 5] = [
    (839.0, "one of their kernels"),
    (279.0, "their fastest kernel"),
    (47.0, "PyTorch's SDPA, slowest"),
    (40.0, "their target"),
    (25.0, "PyTorch's SDPA, fastest"),
];

/// A prediction, or why there is none.
pub(crate) type Outcome = Result<Prediction, String>;

/// The measured rates that are kept of a GPU of this machine that is such a card, if there are any. Those that hold no
/// more are told of and left out.
pub(crate) fn kept_rates(card: Card) -> Option<MeasuredCard> {
    let gpus = machine::gpus_or_none();
    let is_such = |info: &&DeviceInfo| {
        let profile = Profile::of_device(&info.name, info.multiprocessors);
        profile.is_some_and(|profile| profile.name == card.name())
    };
    match rates::kept(&DeviceIdentity::cuda(gpus.iter().find(is_such)?)) {
        Ok(kept) => kept.map(|kept| kept.card()),
        Err(stale) => {
            let note = format!("note: predicted with the profile's rates: {stale}");
            style::eprint(&style::wrap(&note, 2));
            None
        }
    }
}

/// Predicts a plan's time on a card, with the registers of each step where they are known, and with measured rates where
/// there are some.
pub(crate) fn predict(plan: &Plan, card: Card, registers: &[Option<u32>], measured: Option<&MeasuredCard>) -> Outcome {
    let profile: &Profile = card.profile.ok_or_else(|| {
        format!(
            "{} is an architecture, not a card: clocks, SMs and bandwidth are those of a card ({})",
            card.name(),
            Profile::names()
        )
    })?;
    let spinner = style::spinner("simulating a few blocks");
    let observed = Observation::of(plan).map_err(|error| error.to_string());
    drop(spinner);
    let prediction = observed?.predict_measured(profile, measured, registers);
    match prediction.does_not_fit() {
        Some(limit) => Err(format!("no block fits on an SM: {limit}")),
        None => Ok(prediction),
    }
}

/// Whether the reports' numbers are of this problem.
fn is_theirs(problem: &Problem, card: Card) -> bool {
    let theirs = Problem::builder()
        .heads(8, 8)
        .seq_len(512)
        .head_dim(64)
        .dtype(DType::F16);
    card.name() == "l4" && theirs.build().is_ok_and(|theirs| theirs == *problem)
}

/// The section of an explanation.
pub(crate) fn text(outcome: &Outcome, problem: &Problem, card: Card) -> String {
    let mut text = format!("\n{HEAD}Cost{HEAD:#}, predicted\n");
    let prediction = match outcome {
        Ok(prediction) => prediction,
        Err(why) => return text + &style::wrap(&format!("  not known: {why}"), 2),
    };
    let time = |micros| style::micros(micros);
    text.push_str(&style::field(
        "time",
        &format!(
            "{HEAD}{}{HEAD:#}, between {} and {}",
            time(prediction.micros),
            time(prediction.low_micros),
            time(prediction.high_micros)
        ),
    ));
    text.push_str(&style::field("bound by", &bound(prediction)));
    let uses: Vec<String> = prediction
        .uses
        .iter()
        .map(|used| format!("{} {}", used.resource.title(), time(used.micros)))
        .collect();
    text.push_str(&style::field(
        "alone",
        &format!(
            "{}; latency {}; launch {}",
            uses.join(", "),
            time(prediction.latency_micros),
            time(prediction.launch_micros)
        ),
    ));
    let registers: Vec<String> = prediction
        .steps
        .iter()
        .map(|step| {
            format!(
                "{}{}",
                step.registers,
                if step.registers_known { "" } else { " (estimated)" }
            )
        })
        .collect();
    text.push_str(&style::field(
        "assumed",
        &format!(
            "{} MHz, {} registers a thread, inputs in L2 where they fit",
            style::whole(prediction.clocks.highest.round() as u64),
            registers.join(", ")
        ),
    ));
    let rates = match &prediction.measured {
        Some(source) => format!("measured on {source}"),
        None => "the profile's (`flashcore device` measures a card's)".to_string(),
    };
    text.push_str(&style::field("rates", &rates));
    text.push_str(&style::field("trust", &prediction.trust.words()));
    if is_theirs(problem, card) {
        let reports: Vec<String> = REPORTS.iter().map(|(us, what)| format!("{us:.0} ({what})")).collect();
        text.push_str(&style::field(
            "reports",
            &format!("µs on their L4: {}", reports.join(", ")),
        ));
    }
    text
}

/// The prediction in a sentence, with the reports' figures where they are of this problem.
pub(crate) fn sentence(outcome: &Outcome, problem: &Problem, card: Card) -> String {
    let prediction = match outcome {
        Ok(prediction) => prediction,
        Err(why) => return format!("not on {}: {why}", card.title()),
    };
    let [time, low, high] = [prediction.micros, prediction.low_micros, prediction.high_micros].map(style::micros);
    let mut text = format!("{HEAD}{time}{HEAD:#} ({low} to {high}) on an {}", card.title());
    if is_theirs(problem, card) {
        let [_, (theirs, kernel), (slowest, _), _, (fastest, _)] = REPORTS;
        text.push_str(&format!(
            "; in the reports that this project began with, {kernel} takes {theirs:.0} µs on an L4, PyTorch's SDPA {fastest:.0} to {slowest:.0} µs"
        ));
    }
    text
}

/// What binds, and by how much.
fn bound(prediction: &Prediction) -> String {
    let what = match prediction.binds {
        Bound::Latency => "latency: a block's chain of dependent instructions, with too few warps beside it",
        Bound::Launch => "the launch: the kernel does next to nothing",
        Bound::Resource(resource) => resource.title(),
    };
    format!("{what}; {:.2} times the next", prediction.lead)
}

/// The same as JSON: the prediction's fields and `unknown`, which says why there is none.
pub(crate) fn json(outcome: &Outcome, problem: &Problem, card: Card) -> Result<Value, Failure> {
    let mut value = match outcome {
        Ok(prediction) => serde_json::to_value(prediction)?,
        Err(_) => json!({}),
    };
    value["unknown"] = json!(outcome.as_ref().err());
    let reports = REPORTS
        .iter()
        .map(|(micros, what)| json!({ "micros": micros, "what": what }));
    value["reports"] = json!(is_theirs(problem, card).then(|| reports.collect::<Vec<_>>()));
    Ok(value)
}

/// Writes the picture into a folder, which is made if it is not there, and says where.
pub(crate) fn draw(prediction: &Prediction, plan: &Plan, problem: &Problem, folder: &Path) -> Result<PathBuf, Failure> {
    let file = folder.join(format!("roofline-{}.svg", prediction.profile));
    let title = format!("{problem} · {} · {}", plan.config, prediction.profile);
    let written =
        std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&file, roofline::svg(prediction, &title)));
    written.map_err(|error| Failure::failed(format!("cannot write {}: {error}", file.display())))?;
    Ok(file)
}
