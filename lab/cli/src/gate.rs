//! `flashcore gate`: judges this build against a baseline.

use std::path::PathBuf;

use clap::Args;
use flashcore::DType;
use flashcore_bench::Case;
use flashcore_bench::gate::{ACCEPTANCE, Allowed, Baseline, Card as GateCard, Evidence, Judged, Named, Options};
use flashcore_bench::gate::{Outcome as Ended, examine, judge};
use flashcore_check::mutate::Operator;
use flashcore_check::own::is_declaration;
use serde_json::json;

use crate::args::ShapeFlags;
use crate::machine::{Besides, Place};
use crate::protocol::share;
use crate::{
    BAD, Card, DIM, Failure, GOOD, Given, Outcome, Page, StoreArgs, args, bench, check, kernels, machine, style,
};

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
/// shared memory and registers must not be larger than the baseline's by more than --slower. They are the
/// same in every run, so a CI without a GPU can guard speed.
#[derive(Args)]
#[command(after_help = include_str!("help/gate.txt"))]
pub(crate) struct GateArgs {
    /// Problem sets, named problems, or files of problems [default: acceptance; with flags of a shape small]
    #[arg(value_name = "PROBLEMS")]
    problems: Vec<String>,
    #[command(flatten)]
    shape: ShapeFlags,
    /// Element type of the sets, in place of fp16
    #[arg(long, value_parser = args::dtype, help_heading = "Problem")]
    dtype: Option<DType>,
    /// The baseline to judge against, from `gate --write`
    #[arg(long, value_name = "FILE", required_unless_present = "write", help_heading = "How")]
    baseline: Option<PathBuf>,
    /// Write what is found as a baseline, if nothing fails
    #[arg(long, value_name = "FILE", help_heading = "How")]
    write: Option<PathBuf>,
    /// The measured times of this build: a run's key or revision in the store, `latest`, a file or a folder
    #[arg(long, value_name = "RUN", help_heading = "How")]
    evidence: Option<String>,
    /// What computes the set: best, cpu, cuda, cuda:N; sim is the simulator alone; predict:CARD also predicts times and
    /// work on a card
    #[arg(long, value_name = "DEVICE", default_value = "best", help_heading = "How")]
    device: String,
    /// Cards whose kernels are built and simulated (`list profiles`) [default: l4,h200, or that of predict:CARD]
    #[arg(long, value_name = "CARDS", value_delimiter = ',', value_parser = Card::parse, help_heading = "How")]
    profile: Vec<Card>,
    /// The kernel to judge in place of the library's choice: an id, or FILE.toml, a kernel of your own, which
    /// needs --device sim or predict:CARD
    #[arg(long, value_name = "ID", help_heading = "How")]
    kernel: Option<String>,
    /// Plant a mistake into each simulated kernel that has a place for it, to see the gate fail, as `check
    /// --plant`
    #[arg(long, value_name = "MISTAKE", value_parser = planted, help_heading = "How")]
    plant: Option<Operator>,
    /// Most that a time, or what is predicted, may be larger than the baseline's, such as 3%
    #[arg(long, value_name = "SHARE", default_value = "3%", value_parser = share, allow_hyphen_values = true,
          help_heading = "How")]
    slower: f64,
    /// Most that a relative error may be larger than the baseline's
    #[arg(long, value_name = "SHARE", default_value = "10%", value_parser = share, allow_hyphen_values = true,
          help_heading = "How")]
    error: f64,
    /// Exit with 3 if a check could not be judged
    #[arg(long, help_heading = "How")]
    strict: bool,
    #[command(flatten)]
    keep: StoreArgs,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Write the summary in Markdown
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    markdown: Option<PathBuf>,
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
    let baseline = args.baseline.as_deref().map(Baseline::read).transpose()?;
    style::check_files(args.markdown.iter().chain(&args.write))?;
    let problems = bench::named_or(&args.problems, ACCEPTANCE, given);
    let mut cases = args.shape.apply(bench::cases(&problems, args.dtype)?)?;
    if let Some(dtype) = args.dtype {
        // A row of a baseline is found by its problem's name.
        let plain = args.shape.apply(bench::cases(&problems, None)?)?;
        let is_other = |case: &Case| plain.iter().all(|plain| plain != case);
        for case in cases.iter_mut().filter(|case| is_other(case)) {
            case.name = format!("{}-{dtype}", case.name);
        }
    }
    let store = args.keep.path()?.unwrap_or_default();
    let evidence = args.evidence.as_deref();
    let evidence = evidence.map(|name| Evidence::read(name, &store, &cases)).transpose()?;
    let named = |word: &str| {
        if is_declaration(word) {
            return Ok(Named::Own(word.to_string()));
        }
        kernels::gpu(word).map(Named::Config)
    };
    let cards: Option<Vec<String>> = match &place {
        Place::Card(profile) => Some(vec![profile.name.to_string()]),
        Place::Here(_) | Place::Simulator => None,
    };
    if let (Some(baseline), Some(file)) = (&baseline, &args.baseline) {
        baseline.check_asked(file, &cases, cards.as_deref())?;
    }
    let usual = || CARDS.into_iter().filter_map(|name| Card::parse(name).ok());
    let options = Options {
        cases,
        cards: match (&place, args.profile.as_slice()) {
            (Place::Card(profile), _) => vec![of_gate(&Card::of(profile))],
            (_, []) => usual().map(|card| of_gate(&card)).collect(),
            (_, cards) => cards.iter().map(of_gate).collect(),
        },
        predicts: matches!(place, Place::Card(_)),
        device: match place {
            Place::Here(device) => Some(device),
            Place::Simulator | Place::Card(_) => None,
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
    let allowed = Allowed {
        slower: args.slower,
        error: args.error,
    };
    let judged = judge(&state, evidence.as_ref(), baseline.as_ref(), allowed);
    if let Some(path) = &args.markdown {
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
    match args.strict && judged.has_gaps() {
        false => Ok(Outcome::Clean),
        true => Err(Failure::environment(
            "a check could not be judged, and --strict asks for all of them",
        )),
    }
}

impl GateArgs {
    /// Refuses flags that say nothing there.
    fn check(&self, place: &Place) -> Result<(), Failure> {
        let own = self.kernel.as_deref().is_some_and(is_declaration);
        let device = &self.device;
        let why = match place {
            Place::Card(_) if !self.profile.is_empty() => format!("{device} names the card; leave out --profile"),
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
