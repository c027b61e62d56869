//! Compares search strategies on spaces that were measured once.

mod replayed;

use std::fmt::Write;
use std::path::PathBuf;

use flashcore_tune::insight::Tally;
use flashcore_tune::read_measured;
use flashcore_tune::replay::{Row, Table};
use flashcore_tune::strategy::Kind;

use replayed::{Comparison, WITHIN, compare};

/// Compares strategies: how near the best after how many trials, from the slowest config that
/// works.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Where to write `strategies.txt`.
    folder: PathBuf,
    /// Measured spaces.
    #[arg(default_value = "shipped")]
    file: String,
    #[arg(long, default_value_t = 50)]
    seeds: u64,
    #[arg(long, default_value_t = 200)]
    trials: usize,
    /// Strategies, in place of all but `exhaustive`.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Kind>,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let Options { seeds, trials, .. } = *options;
    // Exhaustive search has no seeds: it only shows how its families are ordered.
    let all = Kind::all();
    let only = match options.only.as_slice() {
        [] => &all[1..],
        only => only,
    };
    let measured = read_measured(&options.file)?;
    std::fs::create_dir_all(&options.folder)?;
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
        let advisor = measured.advisor(&table.case.problem);
        let kinds: Vec<Kind> = only
            .iter()
            .copied()
            .filter(|kind| advisor.is_some() || !kind.is_informed())
            .collect();
        let compared = compare(table, &kinds, seeds, trials, advisor.as_ref())?;
        write!(text, "\n{}", lines(table, &compared))?;
    }
    std::fs::write(options.folder.join("strategies.txt"), &text)?;
    print!("{text}");
    crate::verdict(true)
}

fn within([first, median, third]: [Option<usize>; 3], size: usize) -> String {
    let Some(trials) = median else {
        return "not within 2 %".to_string();
    };
    let [first, third] = [first, third].map(|at| at.map_or("never".to_string(), |trials| trials.to_string()));
    let share = 100.0 * (trials as f64 / size as f64);
    format!("{trials} [{first}-{third}] trials ({share:.1} %)")
}

fn lines(table: &Table, compared: &[Comparison]) -> String {
    let shown = |row: Option<&Row>| row.map_or(String::new(), |row| format!("{} {} us", row.0, row.1));
    let mut text = format!(
        "{}: {} configs, {} work; best {}, worst {}\n  median over seeds, slower than the best after 10, 20, 50, 100, 200 \
         trials; trials to within {:.0} %: \
         median [middle half of the seeds]\n",
        table.case.name,
        table.by_id().len(),
        table.timed.len(),
        shown(table.best()),
        shown(table.worst()),
        WITHIN * 100.0
    );
    for one in compared {
        let at = [10, 20, 50, 100, 200].map(|trials| {
            let median = one.medians.get(trials - 1);
            median.map_or("      -".to_string(), |median| {
                format!("{:6.1}%", (median - 1.0) * 100.0)
            })
        });
        let within = within(one.trials_within, table.by_id().len());
        text.push_str(&format!("  {:<15} {}  {within}\n", one.strategy, at.join(" ")));
    }
    for one in compared.iter().filter(|one| !one.claims.is_empty()) {
        text.push_str(&format!("  claims of {}, over all seeds\n", one.strategy));
        for line in Tally::table(&one.claims) {
            text.push_str(&format!("    {line}\n"));
        }
    }
    text
}
