//! What `explain` tells of kernels that were not chosen: how the library ranks its candidates (`--why`), and which
//! configs serve the problem at all (`--all`).

use std::cmp::Reverse;

use flashcore::Problem;
use flashcore::unstable::plans::Plans;
use flashcore_check::cost::{MeasuredCard, Prediction};
use flashcore_kernels::{Config, KernelCache, Plan, Proposal, Refusal, Score, estimated_from, grouped, ranking, wgmma};
use rayon::prelude::*;
use serde::Serialize;

use crate::style::{digits3, micros};
use crate::{Card, HEAD, Page, cost, style};

/// So many of the kernels whose times were only computed are told.
const TIMED: usize = 8;

/// The cost model agrees with a choice that it predicts to take at most so many times the shortest time.
const AS_GOOD: f64 = 1.01;

#[derive(Serialize)]
struct Candidate {
    /// When the library tries it, from 1; `None`: it only computed its time.
    place: Option<usize>,
    kernel: String,
    family: &'static str,
    why: String,
    /// The row of a plan table or of a card's file; `None`: the family's code has the order.
    row: Option<String>,
    /// `None`: the row of a plan table was measured.
    score: Option<Score>,
    refusal: Option<String>,
    predicted: Option<Prediction>,
}

/// The candidates for a problem on a card, and what decided among them.
#[derive(Serialize)]
pub(crate) struct Ranking {
    candidates: Vec<Candidate>,
    /// Which rule decided.
    decided: String,
    /// Whether the cost model agrees; `None` if it has no say.
    cost_model_agrees: Option<bool>,
    /// Which of both is believed, and why.
    believed: String,
}

impl Ranking {
    /// With the times that the cost model predicts; registers are estimated, for all alike.
    pub(crate) fn new(problem: &Problem, card: Card, plans: &Plans, measured: Option<&MeasuredCard>) -> Ranking {
        let kernels = KernelCache::default();
        let mut all = Vec::new();
        let mut add = |config: Config, is_tried: bool, why: String, row: Option<String>, score: Option<Score>| {
            let plan = Plan::with_cache(problem, &config, card.chip, &kernels);
            let candidate = Candidate {
                place: is_tried.then_some(all.len() + 1),
                kernel: config.to_string(),
                family: config.family(),
                why,
                row,
                score,
                refusal: plan.as_ref().err().map(Refusal::to_string),
                predicted: None,
            };
            all.push((candidate, plan));
        };
        for (one, row) in plans.suggestions(problem).into_iter().zip(plans.rows(problem)) {
            let row = format!("row {} of {}", row.number, row.table);
            add(one.config, true, one.why, Some(row), None);
        }
        let ranked = ranking(problem, card.chip, 16);
        let timed = wgmma::timed(problem, card.chip)
            .into_iter()
            .map(|one| one.map(Config::Wgmma));
        let is_new = |one: &Proposal<Config>| ranked.iter().all(|known| known.config != one.config);
        let timed: Vec<_> = timed.filter(is_new).take(TIMED).map(|one| (one, false)).collect();
        for (one, is_tried) in ranked.into_iter().map(|one| (one, true)).chain(timed) {
            let row = one.row.map(str::to_string);
            add(one.config, is_tried, one.why.to_string(), row, Some(one.score));
        }
        let spinner = style::spinner("predicting the time of each candidate");
        let predict = |(mut candidate, plan): (Candidate, Result<Plan, Refusal>)| {
            candidate.predicted = plan.ok().and_then(|plan| cost::estimate(&plan, card, measured));
            candidate
        };
        let candidates: Vec<Candidate> = all.into_par_iter().map(predict).collect();
        drop(spinner);
        let chosen = chosen(&candidates);
        let (cost_model_agrees, believed) = believed(chosen, &candidates);
        let decided = chosen.map(|chosen| decided(chosen, &candidates, problem, card));
        Ranking {
            decided: decided.unwrap_or("nothing: all are refused".to_string()),
            cost_model_agrees,
            believed,
            candidates,
        }
    }

    pub(crate) fn add(&self, page: &mut Page) {
        let chosen = chosen(&self.candidates).and_then(|one| one.place);
        let width = self.candidates.iter().map(|one| one.kernel.len()).max().unwrap_or(0);
        let title = "in the order in which the library tries them; * is its choice";
        page.line(format_args!("\n{HEAD}Candidates{HEAD:#} {title}"));
        page.dim(format_args!(
            "   #  {:<width$}  score     row            predicted, µs",
            "kernel"
        ));
        let (mut told, mut least) = (None, None);
        for one in &self.candidates {
            let place = match one.place {
                Some(place) if one.place == chosen => format!("* {place}"),
                Some(place) => place.to_string(),
                None => "-".to_string(),
            };
            let score = match one.score {
                None => "measured".to_string(),
                Some(Score::Order) => "in order".to_string(),
                Some(Score::Work(work)) => format!("{:.3}", work as f64 / *least.get_or_insert(work) as f64),
                Some(Score::Picoseconds(ps)) => micros(ps as f64 / 1e6),
            };
            let row = match (&one.row, one.score) {
                (Some(_), None) => "a plan table",
                (Some(row), _) => row.split(',').next().unwrap_or(row),
                (None, _) => "-",
            };
            let predicted = match (&one.refusal, &one.predicted) {
                (Some(_), _) => "refused".to_string(),
                (None, None) => "not known".to_string(),
                (None, Some(time)) => {
                    let [middle, low, high] = [time.micros, time.low_micros, time.high_micros].map(digits3);
                    format!("{middle:<6} {low} to {high}")
                }
            };
            page.line(format_args!(
                "{place:>6}  {:<width$}  {score:<8}  {row:<13}  {predicted}",
                one.kernel
            ));
            // Of neighbours with one reason, the first says it.
            if let Some(why) = one.refusal.as_ref().filter(|_| told != Some(&one.refusal)) {
                page.wrap(8, format_args!("        {why}"));
            }
            told = Some(&one.refusal);
        }
        page.line("");
        page.field("score", SCORES);
        page.field("row", ROWS);
        page.field("decided", &self.decided);
        page.field("believed", &self.believed);
    }
}

const SCORES: &str = "a number: work, by the row's measured cost per key, relative to the first; a time: by a model \
                      fitted to measured times (-: not tried); in order: the first that is not refused is taken";

const ROWS: &str = "file and line in crates/kernels/cards: the config, the problems that it is for, and why";

/// The first that nothing refuses.
fn chosen(candidates: &[Candidate]) -> Option<&Candidate> {
    candidates
        .iter()
        .find(|one| one.place.is_some() && one.refusal.is_none())
}

/// Which rule decided, in sentences.
fn decided(chosen: &Candidate, candidates: &[Candidate], problem: &Problem, card: Card) -> String {
    let most = micros(wgmma::most_ps(problem) as f64 / 1e6);
    let (family, row) = (chosen.family, chosen.row.as_deref().unwrap_or_default());
    let rule = match chosen.score {
        None => format!("{row}: it was measured on such a card, and goes before what follows"),
        Some(Score::Work(_)) if problem.has_lengths() => {
            format!("{row}: of rows of measured costs, it has the least work")
        }
        Some(Score::Work(_)) => format!(
            "{row}: of rows of measured costs, its busiest SM is done first. Up to {most}, and where it splits keys, a \
             model fitted to measured times decides instead"
        ),
        Some(Score::Picoseconds(_)) => format!(
            "{row}: a model fitted to measured times decides up to {most}, and where it splits keys; beyond, rows of \
             measured costs are nearer to the best (docs/design-notes.md)"
        ),
        Some(Score::Order) if row.is_empty() => {
            format!("the code of family {family}, which has no rows: the fastest on such shapes first")
        }
        Some(Score::Order) => format!(
            "{row}: rows are in the order of measured times, and it is the first for such problems that is not refused"
        ),
    };
    let of_family = candidates
        .iter()
        .filter(|one| one.place.is_some() && one.family == family);
    let alone = match of_family.count() {
        1 => format!(". Family {family} has no other candidate"),
        _ => String::new(),
    };
    let other = estimated_from(card.chip).filter(|_| chosen.score.is_some() && !row.is_empty());
    let other = other.map_or(String::new(), |other| {
        format!(". Rows are of an {other}, not of such a card")
    });
    format!("by {rule}{alone}{other}")
}

/// Whether the cost model agrees with the choice, and what is believed.
fn believed(chosen: Option<&Candidate>, candidates: &[Candidate]) -> (Option<bool>, String) {
    let time = |one: &Candidate| one.predicted.as_ref().map(|time| time.micros);
    let known = candidates.iter().filter_map(|one| Some((time(one)?, &one.kernel)));
    let fastest = known.min_by(|(a, _), (b, _)| a.total_cmp(b));
    let mine = chosen.and_then(|one| Some((time(one)?, &one.kernel)));
    let (Some((mine, chosen)), Some((least, other))) = (mine, fastest) else {
        return (None, "the choice: the cost model knows no time of it".to_string());
    };
    if mine <= AS_GOOD * least {
        let said = "both: the cost model predicts no candidate to be 1 % faster";
        return (Some(true), said.to_string());
    }
    let ratio = least / mine;
    let said = format!(
        "the choice, which follows measured times; the cost model predicts that {other} takes {ratio:.2} of its time, \
         but often cannot tell configs of one problem apart (docs/cost-model.md). `flashcore bench PROBLEM --kernel \
         {chosen},{other}` on the card tells"
    );
    (Some(false), said)
}

/// Every config of the catalogue, and why it does not serve the problem.
pub(crate) fn every_config(problem: &Problem, card: Card) -> Vec<(Config, Option<Refusal>)> {
    let kernels = KernelCache::default();
    let refusal = |config: Config| (config, Plan::with_cache(problem, &config, card.chip, &kernels).err());
    Config::all().into_iter().map(refusal).collect()
}

/// Those that serve in columns, then the others by reason, the most frequent first.
pub(crate) fn add_every_config(page: &mut Page, configs: &[(Config, Option<Refusal>)]) {
    let serving = configs.iter().filter(|(_, refusal)| refusal.is_none());
    let serving: Vec<String> = serving.map(|(config, _)| config.to_string()).collect();
    let reason = |refusal: &Refusal| match refusal {
        // Each has another number.
        Refusal::SharedMemory { target, allowed, .. } => {
            format!("more shared memory than the {allowed} B that {target} allows")
        }
        Refusal::Registers { allowed, .. } => format!("more than {allowed} registers a thread"),
        other => other.to_string(),
    };
    let refused = configs
        .iter()
        .filter_map(|(config, why)| Some((reason(why.as_ref()?), config)));
    let mut reasons = grouped(refused);
    reasons.sort_by_key(|(_, ids)| Reverse(ids.len()));
    let (count, refused) = (serving.len(), configs.len() - serving.len());
    page.line(format_args!(
        "\n{HEAD}Every config{HEAD:#}: {count} serve, {refused} are refused"
    ));
    page.columns(&serving.iter().map(String::as_str).collect::<Vec<_>>());
    page.line("");
    for (reason, ids) in reasons {
        page.wrap(8, format_args!("  {:>4}  {reason} (such as {})", ids.len(), ids[0]));
    }
}
