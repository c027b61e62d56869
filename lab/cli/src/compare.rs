//! `flashcore evidence compare`: two bodies of evidence.

use clap::Args;
use flashcore::KernelId;
use flashcore_bench::compare::{Side, compare};
use flashcore_bench::{Options, Own, table};
use serde_json::json;

use crate::bench::standings_text;
use crate::protocol::share;
use crate::{Failure, Outcome, Page, StoreArgs, style};

/// Compare evidence files, runs or revisions
///
/// A and B are evidence: a file that `evidence export` wrote, another evidence folder (its latest run),
/// or a run's key or revision in the evidence store, or a prefix of it; `latest` is the latest run.
/// `flashcore bench --kernel A,B --baseline A` times two kernels against each other.
#[derive(Args)]
#[command(after_help = "Exit codes: 0 done, 1 B is slower than --slower allows, 2 usage, 3 environment")]
pub(crate) struct CompareArgs {
    /// The evidence to compare with
    #[arg(value_name = "A")]
    a: String,
    /// The evidence that is compared
    #[arg(value_name = "B")]
    b: String,
    /// Exit with 1 where B is slower than A by more than this, such as 3%
    #[arg(long, value_name = "SHARE", value_parser = share, allow_hyphen_values = true)]
    slower: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(keep: &StoreArgs, args: &CompareArgs) -> Result<Outcome, Failure> {
    let names = [&args.a, &args.b];
    let is_kernel = |name: &&&String| name.parse::<KernelId>().is_ok() || Own::is_named(name);
    if let Some(kernel) = names.iter().find(is_kernel) {
        let why = format!("{kernel} is a kernel, and evidence is compared");
        let [a, b] = if names.iter().all(|name| is_kernel(&name)) {
            names.map(String::as_str)
        } else {
            ["A", "B"]
        };
        let help = format!("`flashcore bench --kernel {a},{b} --baseline {a}` times kernels against each other");
        return Err(Failure::usage(why).help(help));
    }
    let store = keep.path()?.unwrap_or_default();
    let [a, b] = names.map(|name| Side::named(name, &store));
    let comparison = compare(&a?, &b?, &Options::default())?;
    let regressions = args.slower.map(|gate| comparison.regressions(gate));
    let standings = comparison.standings();
    let json =
        || json!({ "comparison": comparison, "standings": standings, "gate": args.slower, "regressions": regressions });
    style::show(args.json, json, || {
        let mut page = Page::default();
        page.add(table::comparison_text(&comparison));
        page.add(standings_text(&standings));
        if let (Some(gate), Some(regressions)) = (args.slower, &regressions) {
            let (slower, percent) = (regressions.len(), gate * 100.0);
            page.line(format_args!("{slower} slower by more than {percent:.1} %"));
        }
        page
    });
    let is_clean = regressions.is_none_or(|regressions| regressions.is_empty());
    Ok(Outcome::of(is_clean))
}
