//! What `flashcore tune` shows of GPUs where there is none: the kernel that would be used, under the simulator, and
//! strategies compared on a space that was measured on an H200.

use flashcore::InputKind;
use flashcore_bench::Case;
use flashcore_tune::replay::{Comparison, Measured, Table, WITHIN, compare};
use flashcore_tune::strategy::{Kind, Population};

use crate::args::Card;
use crate::failure::Failure;
use crate::simulated;
use crate::style::{self, DIM};
use crate::tune::heading;

/// Seeds a strategy is replayed with: enough for a median within seconds.
const SEEDS: u64 = 15;
/// Trials of a replay.
const TRIALS: usize = 120;
/// Strategies that are compared.
const STRATEGIES: [Kind; 4] = [
    Kind::Random,
    Kind::HillClimbing,
    Kind::Evolution(Population::Elite),
    Kind::Evolution(Population::Niches),
];

/// The default on a card: it looks at kernels before it tries them, which takes a core 20 ms each, so that it is replayed over
/// fewer seeds and for as long as it takes to come near.
const MODELLED: Kind = Kind::Ranked;
/// Seeds it is replayed with.
const MODELLED_SEEDS: u64 = 3;
/// Trials of its replays.
const MODELLED_TRIALS: usize = 20;

pub(crate) fn run(case: &Case) -> Result<(), Failure> {
    let card = Card::default();
    let plan = simulated::plan(&case.problem, card, None);
    if let Ok(choice) = plan {
        let report = simulated::check(&choice.plan, &simulated::options(InputKind::Normal, 0))?;
        style::print(&heading(
            "No GPU here: its kernel under the simulator",
            &format!("planned for {}", card.title()),
        ));
        style::print(&simulated::text(&report));
    }
    let measured = Measured::shipped()?;
    let Some(table) = measured
        .tables
        .iter()
        .find(|table| table.case == *case)
        .or(measured.tables.first())
    else {
        return Ok(());
    };
    style::print(&heading(
        &format!("Strategies on a space measured on an {}", measured.identity.device.name),
        &format!(
            "{}, {} configs, {SEEDS} seeds ({} {MODELLED_SEEDS}), from the slowest",
            table.case.problem,
            table.len(),
            MODELLED.name()
        ),
    ));
    let spinner = style::spinner("replaying");
    let mut compared = compare(table, &STRATEGIES, SEEDS, TRIALS, None)?;
    if let Some(advisor) = measured.advisor(&table.case.problem) {
        compared.extend(compare(
            table,
            &[MODELLED],
            MODELLED_SEEDS,
            MODELLED_TRIALS,
            Some(&advisor),
        )?);
    }
    drop(spinner);
    style::print(&text(&compared, table));
    Ok(())
}

fn text(compared: &[Comparison], table: &Table) -> String {
    let at = |comparison: &Comparison, trials: usize| {
        let found = comparison.quartiles.get(trials - 1);
        found.map_or("-".to_string(), |quartiles| {
            format!("{:+.1} %", (quartiles[1] - 1.0) * 100.0)
        })
    };
    let mut text = format!(
        "  {DIM}{:<10}{:>12}{:>12}{:>12}   within {:.0} % after{DIM:#}\n",
        "median of",
        "20 trials",
        "60 trials",
        "120 trials",
        WITHIN * 100.0
    );
    for comparison in compared {
        let within = match (comparison.trials_within, comparison.share_within) {
            (Some(trials), Some(share)) => format!("{trials} trials ({:.1} % of the space)", share * 100.0),
            _ => format!("more than {} trials", comparison.quartiles.len()),
        };
        let [twenty, sixty, last] = [20, 60, 120].map(|trials| at(comparison, trials));
        text.push_str(&format!(
            "  {:<10}{twenty:>12}{sixty:>12}{last:>12}   {within}\n",
            comparison.strategy
        ));
    }
    if let Some(best) = table.best() {
        text.push_str(&style::field(
            "best",
            &format!("{} {}: beside it, above", best.0, style::micros(best.1)),
        ));
    }
    text
}
