//! Compares strategies on spaces that were measured once: how near the best after so many trials, from the slowest
//! config that works, over 50 seeds. Writes the numbers as text.
//!
//! usage: strategies FOLDER [FILE] [--seeds N] [--trials N] [--only NAMES]
//!
//! FILE: measured spaces; without it those that come with the crate. NAMES: strategies, in place of all but `exhaustive`.

mod replayed;

use std::fmt::Write;
use std::path::PathBuf;

use flashcore_tune::insight::Tally;
use flashcore_tune::read_measured;
use flashcore_tune::replay::Table;
use flashcore_tune::strategy::Kind;

use replayed::{Comparison, WITHIN, compare};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let usage = "usage: strategies FOLDER [FILE] [--seeds N] [--trials N] [--only NAMES]";
    let (mut places, mut seeds, mut trials) = (Vec::new(), 50, 200);
    let mut only: Vec<Kind> = Kind::ALL[1..].to_vec();
    let mut args = crate::arguments();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seeds" => seeds = args.next().ok_or(usage)?.parse()?,
            "--trials" => trials = args.next().ok_or(usage)?.parse()?,
            "--only" => {
                let names = args.next().ok_or(usage)?;
                only = names.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            _ => places.push(arg),
        }
    }
    let folder = PathBuf::from(places.first().ok_or(usage)?);
    let measured = read_measured(places.get(1).map_or("shipped", String::as_str))?;
    std::fs::create_dir_all(&folder)?;
    let device = &measured.identity.device;
    let mut text = format!(
        "measured on {} (driver {}), revision {}; replayed by revision {}; {seeds} seeds, up to {trials} trials, from the \
         slowest config that works\n",
        device.name,
        device.driver,
        measured.identity.revision,
        flashcore_bench::revision()
    );
    for table in &measured.tables {
        // Exhaustive search has no seeds, and says how its families are ordered.
        let advisor = measured.advisor(&table.case.problem);
        let kinds: Vec<Kind> = only
            .iter()
            .copied()
            .filter(|kind| advisor.is_some() || !kind.is_informed())
            .collect();
        let compared = compare(table, &kinds, seeds, trials, advisor.as_ref())?;
        write!(text, "\n{}", lines(table, &compared))?;
    }
    std::fs::write(folder.join("strategies.txt"), &text)?;
    print!("{text}");
    Ok(())
}

fn within(one: &Comparison) -> String {
    match (one.trials_within, one.share_within) {
        (Some(trials), Some(share)) => {
            let [first, third] = one
                .middle_half
                .map(|at| at.map_or("never".to_string(), |trials| trials.to_string()));
            format!("{trials} [{first}-{third}] trials ({:.1} %)", share * 100.0)
        }
        _ => "not within 2 %".to_string(),
    }
}

fn lines(table: &Table, compared: &[Comparison]) -> String {
    let (best, worst) = (table.best(), table.worst());
    let shown =
        |row: Option<&flashcore_tune::replay::Row>| row.map_or(String::new(), |row| format!("{} {} us", row.0, row.1));
    let mut text = format!(
        "{}: {} configs, {} work; best {}, worst {}\n  median over seeds, slower than the best after 10, 20, 50, 100, 200 \
         trials; trials to within {:.0} %: \
         median [middle half of the seeds]\n",
        table.case.name,
        table.len(),
        table.timed.len(),
        shown(best),
        shown(worst),
        WITHIN * 100.0
    );
    for one in compared {
        let at = [10, 20, 50, 100, 200].map(|trials| {
            let median = one
                .quartiles
                .get(trials - 1)
                .map(|quartiles| (quartiles[1] - 1.0) * 100.0);
            median.map_or("      -".to_string(), |above| format!("{above:6.1}%"))
        });
        text.push_str(&format!("  {:<15} {}  {}\n", one.strategy, at.join(" "), within(one)));
    }
    for one in compared.iter().filter(|one| !one.claims.is_empty()) {
        text.push_str(&format!("  claims of {}, over all seeds\n", one.strategy));
        for line in Tally::table(&one.claims) {
            text.push_str(&format!("    {line}\n"));
        }
    }
    text
}
