//! The predicted time of a plan on a card, and the resource that binds it.

use flashcore::unstable::cuda::DeviceInfo;
use flashcore_bench::DeviceIdentity;
use flashcore_bench::micro::rates;
use flashcore_bench::profile::Predicted;
use flashcore_check::cost::{Bound, MeasuredCard, Observation, Prediction};
use flashcore_check::foreign::{Spending, Spent, Time};
use flashcore_ir::Profile;
use flashcore_kernels::Plan;
use serde_json::{Value, json};

use crate::{Card, HEAD, Page, machine, micros, style};

pub(crate) type Outcome = Result<Prediction, String>;

/// The measured rates kept for a GPU of this machine that is such a card, if any. Rates that no longer
/// hold are reported in a note and left out.
pub(crate) fn kept_rates(card: Card) -> Option<MeasuredCard> {
    let gpus = machine::gpus_or_none();
    let is_such = |info: &&DeviceInfo| {
        let profile = Profile::of_device(&info.name, info.multiprocessors);
        profile.is_some_and(|profile| profile.name == card.name())
    };
    match rates::kept(&DeviceIdentity::cuda(gpus.iter().find(is_such)?)) {
        Ok(kept) => kept.map(|kept| kept.card()),
        Err(stale) => {
            style::note(format_args!("predicted with the profile's rates: {stale}"));
            None
        }
    }
}

/// From the registers of each step if they are known, and from measured rates if there are any.
pub(crate) fn predict(plan: &Plan, card: Card, registers: &[Option<u32>], measured: Option<&MeasuredCard>) -> Outcome {
    Ok(observe(plan, card, registers, measured)?.1)
}

/// The same of one of several plans that are predicted at once; `None` if it is not known. Registers are estimated.
pub(crate) fn estimate(plan: &Plan, card: Card, measured: Option<&MeasuredCard>) -> Option<Prediction> {
    let profile = card.profile?;
    let prediction = Observation::of(plan).ok()?.predict_measured(profile, measured, &[]);
    prediction.does_not_fit().is_none().then_some(prediction)
}

/// What hardware counters would read, from measured rates if there are any, or why it is not known.
pub(crate) fn counters(plan: &Plan, card: Card, measured: Option<&MeasuredCard>) -> Result<Predicted, String> {
    let (observed, prediction, profile) = observe(plan, card, &[], measured)?;
    Ok(Predicted::of(&observed, &prediction, profile, measured))
}

fn observe(
    plan: &Plan,
    card: Card,
    registers: &[Option<u32>],
    measured: Option<&MeasuredCard>,
) -> Result<(Observation, Prediction, &'static Profile), String> {
    let (name, known) = (card.name(), Profile::names());
    let no_card = || format!("{name} is an architecture, not a card with clocks and bandwidth; cards are {known}");
    let profile: &'static Profile = card.profile.ok_or_else(no_card)?;
    let spinner = style::spinner("simulating a few blocks");
    let observed = Observation::of(plan).map_err(|error| error.to_string());
    drop(spinner);
    let observed = observed?;
    let prediction = observed.predict_measured(profile, measured, registers);
    match prediction.does_not_fit() {
        Some(limit) => Err(format!("no block fits on an SM: {limit}")),
        None => Ok((observed, prediction, profile)),
    }
}

pub(crate) fn add(page: &mut Page, outcome: &Outcome) {
    page.line(format_args!("\n{HEAD}Cost{HEAD:#}, predicted"));
    let prediction = match outcome {
        Ok(prediction) => prediction,
        Err(why) => return page.wrap(2, format_args!("  not known: {why}")),
    };
    let [time, low, high] = times(prediction);
    page.field("time", format_args!("{HEAD}{time}{HEAD:#}, between {low} and {high}"));
    page.field("bound by", bound(prediction));
    let uses = prediction.uses.iter();
    let uses = style::list(uses.map(|used| format!("{} {}", used.resource.title(), micros(used.micros))));
    let (latency, launch) = (micros(prediction.latency_micros), micros(prediction.launch_micros));
    let text = format!("{uses}; latency {latency}; launch {launch}");
    page.field("alone", text);
    let registers = prediction.steps.iter().map(|step| {
        if step.registers_known {
            step.registers.to_string()
        } else {
            format!("{} (estimated)", step.registers)
        }
    });
    let registers = style::list(registers);
    let clock = style::whole(prediction.clocks.highest.round() as u64);
    let text = format!("{clock} MHz, {registers} registers a thread, inputs in L2 where they fit");
    page.field("assumed", text);
    match &prediction.measured {
        Some(source) => page.field("rates", format_args!("measured on {source}")),
        None => page.field("rates", "the profile's (`flashcore device` measures a card's)"),
    }
    page.field("trust", prediction.trust.words());
}

/// The time of a kernel of another compiler, and where it goes.
pub(crate) fn add_time(page: &mut Page, time: &Result<Time, String>, card: Card) {
    let time = match time {
        Ok(time) => time,
        Err(why) => return page.field("time", format_args!("not predicted: {why}")),
    };
    let prediction = &time.prediction;
    let [middle, low, high] = times(prediction);
    let on = card.title();
    page.field(
        "time",
        format_args!("{middle} predicted on {on}, between {low} and {high}"),
    );
    page.field("bound by", bound(prediction));
    for Spent { file, line, at } in &time.lines {
        let what = match at {
            Spending::Wait { share } => format!("a warp waits here for {:.0} % of its time", 100.0 * share),
            Spending::Conflicts { passes, ideal } => {
                format!("bank conflicts: {passes:.1} passes over shared memory where {ideal:.1} would do")
            }
            Spending::Uncoalesced { sectors, ideal } => {
                format!("{sectors:.1} sectors of global memory where {ideal:.1} would do")
            }
        };
        page.field("", format_args!("{file}:{line}: {what}"));
    }
}

fn times(prediction: &Prediction) -> [String; 3] {
    [prediction.micros, prediction.low_micros, prediction.high_micros].map(micros)
}

/// The prediction in a sentence.
pub(crate) fn sentence(outcome: &Outcome, card: Card) -> String {
    let prediction = match outcome {
        Ok(prediction) => prediction,
        Err(why) => return format!("not on {}: {why}", card.title()),
    };
    let [time, low, high] = times(prediction);
    format!("{HEAD}{time}{HEAD:#}, between {low} and {high}, on an {}", card.title())
}

fn bound(prediction: &Prediction) -> String {
    let what = match prediction.binds {
        Bound::Latency => "latency: a block's chain of dependent instructions, with too few other warps",
        Bound::Launch => "the launch: the kernel does very little",
        Bound::Resource(resource) => resource.title(),
    };
    format!("{what}; {:.2} times the next", prediction.lead)
}

pub(crate) fn json(outcome: &Outcome) -> Value {
    let mut value = outcome.as_ref().map_or(json!({}), |prediction| json!(prediction));
    value["unknown"] = json!(outcome.as_ref().err());
    value
}
