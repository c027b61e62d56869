//! `flashcore evidence chart`: charts of runs.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use flashcore_bench::chart::{self, Drawing, RungName, Speed};
use flashcore_bench::{Mode, Report, Store};
use flashcore_problem::current_name;

use crate::bench::printed;
use crate::evidence::{opened, report};
use crate::tune::USUAL;
use crate::{Failure, StoreArgs, style};

/// Draw a run: one file of SVG, in light and dark, without scripts
#[derive(Args)]
pub(crate) struct ChartArgs {
    /// What to draw
    #[arg(value_enum)]
    what: What,
    /// A run's key or revision, or a prefix of it; or a file
    ///
    /// A file is an export (.jsonl) of which the latest run counts, or the output of `bench --json` (.json).
    #[arg(default_value = "latest")]
    run: String,
    /// hot, cold, sustained or screen
    #[arg(long, default_value = "hot")]
    mode: Mode,
    /// The .svg file to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Of `ladder`: the problem, by its name in the run [default: small]
    #[arg(long)]
    problem: Option<String>,
    /// Of `ladder`: the bars from the top, ID[=NAME], or files with one a line [default: all kernels]
    ///
    /// An ID is a kernel's or a peer's label, NAME what the chart calls it. By default the slowest is the first.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    kernel: Vec<String>,
    /// Of `ratio`: the peer or kernel, by its label or a prefix of it [default: the run's peer]
    #[arg(long, value_name = "LABEL")]
    baseline: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// The time of each kernel and peer on one problem, on a logarithmic scale
    Ladder,
    /// TFLOP/s by sequence length, one panel per head_dim and mask: FlashCore and peers
    Lines,
    /// The speed-up over a peer or another kernel, a bar with its interval for each problem
    Ratio,
}

impl ChartArgs {
    /// Refuses flags of another chart.
    fn check(&self) -> Result<(), Failure> {
        let given = [
            ("--problem", self.problem.is_some(), What::Ladder),
            ("--kernel", !self.kernel.is_empty(), What::Ladder),
            ("--baseline", self.baseline.is_some(), What::Ratio),
        ];
        match given
            .into_iter()
            .find(|(_, is_given, of)| *is_given && *of != self.what)
        {
            Some((flag, _, of)) => {
                let of = format!("{of:?}").to_lowercase();
                Err(Failure::usage(format!("{flag} is for `evidence chart {of}`")))
            }
            None => Ok(()),
        }
    }
}

pub(crate) fn run(keep: &StoreArgs, args: &ChartArgs) -> Result<(), Failure> {
    args.check()?;
    let (run, mode, baseline) = (&args.run, args.mode, args.baseline.as_deref());
    match args.what {
        What::Ladder => {
            let problem = current_name(args.problem.as_deref().unwrap_or(USUAL));
            args.write(&chart::ladder(
                &of_run(keep, run, None)?,
                &problem,
                mode,
                &rungs(&args.kernel)?,
            )?)
        }
        What::Ratio => {
            let report = of_run(keep, run, baseline)?;
            let mut results = report.results.iter();
            if results.all(|result| result.measurement.subjects.len() < 2) {
                return Err(Failure::usage("that run timed one kernel; a ratio needs two")
                    .help("`flashcore bench --kernel ID,ID` times two in the same rounds; `--peers all` adds peers"));
            }
            let base = match baseline {
                Some(_) => report.main_baseline(),
                None => report.main_peer(),
            };
            let missing = || {
                Failure::usage("no peer was timed in that run, or none was its baseline")
                    .help("name one of its subjects with --baseline")
            };
            args.write(&chart::ratio(&report, base.ok_or_else(missing)?, mode)?)
        }
        What::Lines => args.write(&Speed::of_report(&of_run(keep, run, None)?, mode)?.draw()),
    }
}

/// The report of a run in the store, of the latest run of an export, or in the output of `bench --json`.
fn of_run(keep: &StoreArgs, run: &str, baseline: Option<&str>) -> Result<Report, Failure> {
    let path = Path::new(run);
    if !path.is_file() {
        return report(&opened(keep)?, run, baseline);
    }
    if path.extension().is_none_or(|extension| extension != "json") {
        return report(&Store::at(path), "latest", baseline);
    }
    if baseline.is_some() {
        // It has summaries and no samples.
        let why = format!("{run} has no samples to compute --baseline from");
        return Err(Failure::usage(why).help("name the run or an export of it"));
    }
    printed(path)
}

fn rung_name(text: &str) -> RungName {
    let (id, name) = match text.split_once('=') {
        Some((id, name)) => (id, Some(name.trim().to_string())),
        None => (text, None),
    };
    RungName {
        id: id.trim().to_string(),
        name,
    }
}

/// Rungs, of which some may be files of rungs.
fn rungs(words: &[String]) -> Result<Vec<RungName>, Failure> {
    let mut all = Vec::new();
    for word in words {
        if Path::new(word).is_file() {
            all.extend(rungs_of(Path::new(word))?);
        } else {
            all.push(rung_name(word));
        }
    }
    Ok(all)
}

fn rungs_of(path: &Path) -> Result<Vec<RungName>, Failure> {
    let text = style::read(path)?;
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let names: Vec<RungName> = lines.map(rung_name).collect();
    if names.is_empty() {
        Err(Failure::usage(format!("{} lists no rung", path.display())).help("write ID=NAME on each line"))
    } else {
        Ok(names)
    }
}

impl ChartArgs {
    fn write(&self, chart: &Drawing) -> Result<(), Failure> {
        let Some(path) = &self.output else {
            style::print(&chart.svg());
            return Ok(());
        };
        style::ending(path, &["svg"])?;
        style::write(path, chart.svg())
    }
}
