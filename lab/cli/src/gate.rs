//! `flashcore gate`: judges this build against a baseline.

use std::path::PathBuf;

use clap::Args;
use flashcore_bench::Case;
use flashcore_bench::gate::{ACCEPTANCE, Allowed, Baseline, Card as GateCard, Evidence, Judged, Named, Options};
use flashcore_bench::gate::{Outcome as Ended, examine, judge};
use flashcore_check::mutate::Operator;
use flashcore_check::own::is_declaration;
use serde_json::json;

use crate::args::ShapeFlags;
use crate::machine::{Besides, Place};
use crate::protocol::share;
use crate::quantity::fields;
use crate::{BAD, Card, DIM, Failure, GOOD, Given, Outcome, Page, StoreArgs, bench, check, kernels, machine, style};

/// Cards whose kernels are judged: one without warpgroup instructions, one with them.
const CARDS: [&str; 2] = ["l4", "h200"];

/// Judge this build, or a kernel of your own, against a baseline
///
/// The acceptance set is five shapes of 512 rows and keys, each full and causal (`bench acceptance`). The
/// library's kernel for each of them must exist on each card and not spill, have no finding under the
/// checking simulator, and compute the right output on the device. Its error must not be larger than the
/// baseline's, its measured time not 3 % longer, and the evidence of that time must be complete. What
/// could not be judged here, without a GPU, an assembler or evidence, is listed as not judged.
///
/// With `--device predict:CARD` nothing is measured: predicted times, instructions by pipe, wavefronts of
/// shared memory and registers must not be larger than the baseline's by more than --allow slower. They are the
/// same in every run, so a CI without a GPU can guard speed.
#[derive(Args)]
#[command(after_long_help = include_str!("help/gate.txt"))]
pub(crate) struct GateArgs {
    /// Problem sets, named problems, or files of problems [default: acceptance; with flags of a shape small]
    #[arg(value_name = "PROBLEMS")]
    problems: Vec<String>,
    #[command(flatten)]
    shape: ShapeFlags,
    /// The baseline to judge against, from `gate --write`
    #[arg(long, value_name = "FILE", required_unless_present = "write", help_heading = "How")]
    against: Option<PathBuf>,
    /// Write what is found as a baseline, if nothing fails
    #[arg(long, value_name = "FILE", help_heading = "How")]
    write: Option<PathBuf>,
    /// The measured times of this build: a run's key or revision in the store, `latest`, a file or a folder
    #[arg(long, value_name = "RUN", help_heading = "How")]
    evidence: Option<String>,
    /// What computes the set: best, cpu, cuda, cuda:N; sim, sim:CARD is the simulator alone; predict:CARD
    ///
    /// predict:CARD also predicts times and work on a card.
    #[arg(long, value_name = "DEVICE", default_value = "best", help_heading = "How")]
    device: String,
    /// Cards whose kernels are built and simulated (`list profiles`) [default: l4,h200, or that of --device]
    #[arg(long, value_name = "CARDS", value_delimiter = ',', value_parser = Card::parse, help_heading = "How")]
    profile: Vec<Card>,
    /// The kernel to judge in place of the library's choice: an id, or FILE.toml
    ///
    /// FILE.toml is a kernel of your own, which needs --device sim or predict:CARD.
    #[arg(long, value_name = "ID", help_heading = "How")]
    kernel: Option<String>,
    /// Plant a mistake into each simulated kernel, to see the gate fail, as `check --plant`
    #[arg(long, value_name = "MISTAKE", value_parser = planted, help_heading = "How")]
    plant: Option<Operator>,
    /// Most that times, predictions and errors may be larger than the baseline's [default: slower=3%,error=10%]
    #[arg(long, value_name = "SHARES", default_value = "slower=3%", hide_default_value = true, value_parser = allowed, help_heading = "How")]
    allow: Allowed,
    /// Exit with 3 if a check could not be judged
    #[arg(long, help_heading = "How")]
    strict: bool,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Write the summary in Markdown
    #[arg(long, short, value_name = "FILE.md", help_heading = "Output")]
    output: Option<PathBuf>,
}

/// What a change may cost.
fn allowed(text: &str) -> Result<Allowed, String> {
    let mut allowed = Allowed {
        slower: 0.03,
        error: 0.1,
    };
    for (key, value) in fields(text, &["slower", "error"])? {
        match key {
            "slower" => allowed.slower = share(&value)?,
            _ => allowed.error = share(&value)?,
        }
    }
    Ok(allowed)
}

/// A mistake by name. `check --plant` takes the number of its place, too.
fn planted(name: &str) -> Result<Operator, String> {
    match name.split_once(':') {
        Some((mistake, _)) if Operator::from_name(mistake).is_some() => Err(format!(
            "it is planted into every kernel, at its first place: write {mistake}"
        )),
        _ => check::operator(name),
    }
}

pub(crate) fn run(args: &GateArgs, given: &Given) -> Result<Outcome, Failure> {
    let place = machine::place(&args.device, Besides::CpuSimAndCards)?;
    args.check(&place)?;
    let baseline = args.against.as_deref().map(Baseline::read).transpose()?;
    style::check_files(args.output.iter().chain(&args.write))?;
    let problems = bench::named_or(&args.problems, ACCEPTANCE, given);
    let mut cases = args.shape.apply(bench::cases(&problems, args.shape.dtype)?)?;
    if let Some(dtype) = args.shape.dtype {
        // A row of a baseline is found by its problem's name.
        let plain = args.shape.apply(bench::cases(&problems, None)?)?;
        let is_other = |case: &Case| plain.iter().all(|plain| plain != case);
        for case in cases.iter_mut().filter(|case| is_other(case)) {
            case.name = format!("{}-{dtype}", case.name);
        }
    }
    let store = StoreArgs::at(None).path()?.unwrap_or_default();
    let evidence = args.evidence.as_deref();
    let evidence = evidence.map(|name| Evidence::read(name, &store, &cases)).transpose()?;
    let named = |word: &str| {
        if is_declaration(word) {
            return Ok(Named::Own(word.to_string()));
        }
        kernels::gpu(word).map(Named::Config)
    };
    let card = match &place {
        Place::Card(profile) => Some(Card::of(profile)),
        Place::Simulator(card) => *card,
        Place::Here(_) => None,
    };
    if let (Some(baseline), Some(file)) = (&baseline, &args.against) {
        let cards = card.map(|card| vec![card.name().to_string()]);
        baseline.check_asked(file, &cases, cards.as_deref())?;
    }
    let usual = || CARDS.into_iter().filter_map(|name| Card::parse(name).ok());
    let options = Options {
        cases,
        cards: match (&card, args.profile.as_slice()) {
            (Some(card), _) => vec![of_gate(card)],
            (_, []) => usual().map(|card| of_gate(&card)).collect(),
            (_, cards) => cards.iter().map(of_gate).collect(),
        },
        predicts: matches!(place, Place::Card(_)),
        device: match place {
            Place::Here(device) => Some(device),
            Place::Simulator(_) | Place::Card(_) => None,
        },
        kernel: args.kernel.as_deref().map(named).transpose()?,
        plant: args.plant,
    };
    let spinner = style::spinner("choosing kernels");
    let state = examine(&options, &|what| spinner.say(what))?;
    drop(spinner);
    if let Some(baseline) = &baseline {
        baseline.check_registers(&state)?;
    }
    let judged = judge(&state, evidence.as_ref(), baseline.as_ref(), args.allow);
    if let Some(path) = &args.output {
        style::write(path, judged.markdown())?;
    }
    style::show(
        args.json,
        || json!({ "judged": judged, "state": state }),
        || page(&judged),
    );
    if judged.failed() {
        return Ok(Outcome::Findings);
    }
    if let Some(path) = &args.write {
        Baseline::of(&state, evidence).write(path)?;
    }
    if args.strict && judged.has_gaps() {
        Err(Failure::environment(
            "a check could not be judged, and --strict asks for all of them",
        ))
    } else {
        Ok(Outcome::Clean)
    }
}

impl GateArgs {
    /// Refuses flags that say nothing there.
    fn check(&self, place: &Place) -> Result<(), Failure> {
        let own = self.kernel.as_deref().is_some_and(is_declaration);
        let device = &self.device;
        let why = match place {
            Place::Card(_) | Place::Simulator(Some(_)) if !self.profile.is_empty() => {
                format!("{device} names the card; leave out --profile")
            }
            Place::Card(_) if self.evidence.is_some() => {
                format!("--evidence has measured times, and {device} predicts them; leave out one of them")
            }
            Place::Here(_) if own => {
                let why = "a kernel of your own is judged by --device sim, and predict:CARD";
                format!("--device is {device}; {why}; `flashcore bench` runs it")
            }
            _ if own && self.plant.is_some() => "--plant is for kernels of this project; leave it out".to_string(),
            _ => return Ok(()),
        };
        Err(Failure::usage(why))
    }
}

fn of_gate(card: &Card) -> GateCard {
    GateCard {
        name: card.name().to_string(),
        chip: card.chip,
        profile: card.profile,
    }
}

fn page(judged: &Judged) -> Page {
    let against = judged
        .baseline
        .as_ref()
        .map_or(String::new(), |of| format!(" against {of}"));
    let mut page = Page::new(format_args!("revision {}{against}", judged.revision));
    for check in &judged.checks {
        let style = match check.outcome {
            Ended::Passed => GOOD,
            Ended::Failed => BAD,
            Ended::NotJudged => DIM,
        };
        let (name, outcome, summary) = (check.name.to_string(), check.outcome, &check.summary);
        page.field(&name, format_args!("{style}{outcome}{style:#}: {summary}"));
        page.fields("", &check.details);
    }
    let (failed, gaps) = (judged.failed(), judged.has_gaps());
    let verdict = match (failed, gaps) {
        (true, _) => format!("{BAD}the gate fails{BAD:#}"),
        (false, true) => format!("{GOOD}nothing failed{GOOD:#}; some checks were not judged"),
        (false, false) => format!("{GOOD}the gate passes{GOOD:#}"),
    };
    page.line(verdict);
    page
}
