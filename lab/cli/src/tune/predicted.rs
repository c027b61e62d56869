//! `flashcore tune --predicted`: a search for a card that is not here.

use std::time::Instant;

use flashcore_tune::PredictedSearch;
use serde_json::json;

use crate::tune::args::{Budget, TuneArgs};
use crate::{Card, Failure, GOOD, Outcome, Page, micros, simulated, style};

pub(crate) fn run(args: &TuneArgs) -> Result<Outcome, Failure> {
    let problem = args.problem.problem()?;
    let card = args.profile.unwrap_or_else(Card::default);
    let profile = card.profile.ok_or_else(|| {
        let why = format!(
            "--profile {} is an architecture, not a card with clocks and bandwidth",
            card.name()
        );
        Failure::usage(why).help("`flashcore list profiles` shows the cards")
    })?;
    let default = simulated::plan(&problem, card, None)?.plan.config.to_string();
    let started = Instant::now();
    let spinner = style::spinner(&format!("predicting configs on {}", card.title()));
    let more = |looked: usize| {
        spinner
            .0
            .set_message(format!("{looked} configs predicted on {}", card.title()));
        match args.budget {
            Budget::Trials(trials) => looked < trials,
            Budget::Time(time) => started.elapsed() < time,
        }
    };
    let found = PredictedSearch::run(&problem, profile, &default, args.seed.unwrap_or(1), more);
    drop(spinner);
    let found = found?;
    let best = found.finalists.iter().find(|finalist| finalist.judged.ok);
    let json = || {
        json!({
            "problem": problem,
            "card": card.name(),
            "default": default,
            "winner": best.map(|best| &best.id),
            "search": found,
        })
    };
    style::show(args.json, json, || {
        let mut page = Page::default();
        let about = format!("{}, predicted and not measured", card.title());
        page.heading(format_args!("{problem}"), about);
        for finalist in &found.finalists {
            let is_best = best.is_some_and(|best| best.id == finalist.id);
            let [us, low, high] = [finalist.us, finalist.between.lo, finalist.between.hi].map(micros);
            let (on, off) = if is_best {
                (format!("{GOOD}"), format!("{GOOD:#}"))
            } else {
                Default::default()
            };
            let mark = if finalist.id == default { "  the default" } else { "" };
            page.line(format_args!(
                "  {on}{:<46}{us:>9}{off}  {low} to {high}{mark}",
                finalist.id
            ));
            if let Some(why) = &finalist.judged.why {
                page.wrap(4, format_args!("    {why}"));
            }
        }
        page.field("looked", format_args!("{} configs by the cost model", found.looked));
        match &found.assembler {
            Some(assembler) => page.field("registers", format_args!("{assembler}")),
            None => page.field(
                "registers",
                "estimated, and spills not known: set FLASHCORE_PTXAS to a ptxas",
            ),
        }
        page.field(
            "simulated",
            "the best and the default, on small problems and adversarial inputs",
        );
        page.field("trust", &found.trust);
        page
    });
    Ok(Outcome::of(best.is_some()))
}
