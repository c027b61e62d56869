//! `flashcore evidence chart`: charts of runs.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use flashcore_bench::chart::{self, Drawing, RungName, Speed};
use flashcore_bench::{Mode, Report, Store};
use flashcore_problem::current_name;

use crate::bench::printed;
use crate::evidence::{opened, report};
use crate::{Failure, StoreArgs, style};

#[derive(Subcommand)]
pub(crate) enum ChartArgs {
    /// The time of each kernel and peer on one problem, on a logarithmic scale
    Ladder {
        #[command(flatten)]
        what: WhatArgs,
        /// The problem, by its name in the run
        #[arg(long, default_value = "small")]
        problem: String,
        /// A rung, from the top: a kernel's id or a peer's label, and its name in the chart [default: all
        /// kernels, the slowest first]
        #[arg(long, value_name = "ID[=NAME]")]
        rung: Vec<String>,
        /// A file of rungs, one per line, as with --rung
        #[arg(long, value_name = "FILE", conflicts_with = "rung")]
        rungs: Option<PathBuf>,
    },
    /// TFLOP/s by sequence length, one panel per head_dim and mask: FlashCore and peers
    Lines {
        #[command(flatten)]
        what: WhatArgs,
    },
    /// The speed-up over a peer or another kernel, a bar with its interval for each problem
    Ratio {
        #[command(flatten)]
        what: WhatArgs,
        /// The peer or kernel, by its label or a prefix of it [default: the run's peer]
        #[arg(long, value_name = "LABEL")]
        baseline: Option<String>,
    },
}

/// The numbers to draw, and the file to write.
#[derive(Args)]
pub(crate) struct WhatArgs {
    /// A run's key or revision, or a prefix of it; or a file: an export (.jsonl) of which the latest run
    /// counts, or the output of `bench --json` (.json)
    #[arg(default_value = "latest")]
    run: String,
    /// hot, cold, sustained or screen
    #[arg(long, default_value = "hot")]
    mode: Mode,
    /// The .svg file to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(keep: &StoreArgs, args: &ChartArgs) -> Result<(), Failure> {
    match args {
        ChartArgs::Ladder {
            what,
            problem,
            rung,
            rungs,
        } => {
            let names = match rungs {
                Some(path) => rungs_of(path)?,
                None => rung.iter().map(|rung| rung_name(rung)).collect(),
            };
            let problem = current_name(problem);
            let ladder = chart::ladder(&of_run(keep, &what.run, None)?, &problem, what.mode, &names)?;
            what.write(&ladder)
        }
        ChartArgs::Ratio { what, baseline } => {
            let report = of_run(keep, &what.run, baseline.as_deref())?;
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
            let grid = chart::ratio(&report, base.ok_or_else(missing)?, what.mode)?;
            what.write(&grid)
        }
        ChartArgs::Lines { what } => {
            let speed = Speed::of_report(&of_run(keep, &what.run, None)?, what.mode)?;
            what.write(&speed.draw())
        }
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

fn rungs_of(path: &Path) -> Result<Vec<RungName>, Failure> {
    let text = style::read(path)?;
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let names: Vec<RungName> = lines.map(rung_name).collect();
    match names.is_empty() {
        true => Err(Failure::usage(format!("{} lists no rung", path.display())).help("write ID=NAME on each line")),
        false => Ok(names),
    }
}

impl WhatArgs {
    fn write(&self, chart: &Drawing) -> Result<(), Failure> {
        let Some(path) = &self.output else {
            style::print(&chart.svg());
            return Ok(());
        };
        style::ending(path, &["svg"])?;
        style::write(path, chart.svg())
    }
}
