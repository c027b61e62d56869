//! `flashcore compare`: two kernels side by side, or two bodies of evidence.

use clap::Args;
use flashcore::{Device, KernelId};
use flashcore_bench::compare::{Comparison, Side, compare};
use flashcore_bench::{Options, Own, Request, table};
use serde_json::json;

use crate::bench::{bench, cases, check_build, standings_text};
use crate::machine::Besides;
use crate::own::OwnArgs;
use crate::protocol::{ProtocolArgs, share};
use crate::{Failure, Given, Outcome, Page, StoreArgs, machine, style};

/// Compare two kernels, evidence files, runs or revisions
///
/// Two kernel ids, or kernels of your own (FILE.toml, FILE.py:FUNCTION), are timed against each other, round
/// by round. Otherwise A and B are evidence: a
/// file that `evidence export` wrote, another evidence folder (its latest run), or a run's key or
/// revision in the evidence store, or a prefix of it; `latest` is the latest run.
#[derive(Args)]
#[command(after_help = "Exit codes: 0 done, 1 B is slower than the gate allows, 2 usage, 3 environment")]
pub(crate) struct CompareArgs {
    /// The kernel or evidence to compare with
    #[arg(value_name = "A")]
    a: String,
    /// The kernel or evidence that is compared
    #[arg(value_name = "B")]
    b: String,
    /// For kernels: problem sets, named problems or files
    #[arg(long, value_name = "PROBLEMS", value_delimiter = ',', default_value = "mission")]
    on: Vec<String>,
    /// For kernels: best, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "best")]
    device: String,
    /// Exit with 1 where B is slower than A by more than this, such as 3%
    #[arg(long, value_name = "SHARE", value_parser = share, allow_hyphen_values = true)]
    gate: Option<f64>,
    #[command(flatten)]
    protocol: ProtocolArgs,
    #[command(flatten)]
    own: OwnArgs,
    #[command(flatten)]
    keep: StoreArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Flags that say how kernels are timed: evidence was.
const OF_KERNELS: &[&str] = &["on", "device", "ProtocolArgs", "OwnArgs"];

pub(crate) fn run(args: &CompareArgs, given: &Given) -> Result<Outcome, Failure> {
    let store = args.keep.path()?;
    let names = [&args.a, &args.b];
    let is_kernel = |name: &&String| name.parse::<KernelId>().is_ok() || Own::is_named(name);
    let is_cpu = |name: &&String| matches!(name.parse(), Ok(KernelId::Cpu(_)));
    let comparison = if names.iter().all(is_kernel) {
        let device = match args.device.as_str() {
            // CPU kernels run only on the CPU.
            "best" if names.iter().all(is_cpu) => Device::cpu(),
            name => machine::device(name, Besides::Cpu)?,
        };
        let (labels, own) = args.own.ids(&names.map(String::clone))?;
        // An old id as it is written today.
        let label = |name: String| name.parse::<KernelId>().map_or(name, |id| id.to_string());
        let labels: Vec<String> = labels.into_iter().map(label).collect();
        let (a, b) = (&labels[0], &labels[1]);
        if a == b {
            return Err(Failure::usage(format!(
                "A and B are the same kernel, {a}; name two kernels"
            )));
        }
        let request = Request {
            cases: cases(&args.on, None)?,
            kernels: labels.clone(),
            baseline: Some(a.clone()),
            own,
            ..args.protocol.request(&device)
        };
        let (peers, deadline) = (["none".to_string()], args.own.deadline());
        let report = bench(&device, &request, &peers, deadline, store.as_deref(), true)?;
        check_build(&report)?;
        let mut absent = report.results.iter().flat_map(|result| &result.absent);
        Comparison::of_report(&report, a, b).map_err(|error| match absent.next() {
            // Nothing was compared because a kernel did not run: that is the error.
            Some((label, reason)) => Failure::usage(format!("{label} was not timed: {reason}")),
            None => Failure::from(error),
        })?
    } else {
        if let Some(kernel) = names.iter().find(|name| is_kernel(name)) {
            let why =
                format!("{kernel} is a kernel, and the other side is none: name two kernels, or two runs or files");
            return Err(Failure::usage(why));
        }
        given.forbid(OF_KERNELS, "runs and files; it is for two kernels")?;
        let store = store.unwrap_or_default();
        let [a, b] = [&args.a, &args.b].map(|name| Side::named(name, &store));
        compare(&a?, &b?, &Options::default())?
    };
    let regressions = args.gate.map(|gate| comparison.regressions(gate));
    let standings = comparison.standings();
    let json =
        || json!({ "comparison": comparison, "standings": standings, "gate": args.gate, "regressions": regressions });
    style::show(args.json, json, || {
        let mut page = Page::default();
        page.add(table::comparison_text(&comparison));
        page.add(standings_text(&standings));
        if let (Some(gate), Some(regressions)) = (args.gate, &regressions) {
            let (slower, percent) = (regressions.len(), gate * 100.0);
            page.line(format_args!("{slower} slower by more than {percent:.1} %"));
        }
        page
    });
    let is_clean = regressions.is_none_or(|regressions| regressions.is_empty());
    Ok(Outcome::of(is_clean))
}
