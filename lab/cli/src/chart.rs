//! `flashcore evidence chart`: runs as charts.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use flashcore_bench::chart::{Grid, Ladder, RungName, Speed};
use flashcore_bench::{Mode, Report, Store};
use serde::Deserialize;

use crate::bench::mode;
use crate::evidence::{StoreArgs, opened, report};
use crate::failure::Failure;
use crate::style;

#[derive(Subcommand)]
pub(crate) enum ChartArgs {
    /// How long each kernel takes on one problem, on a logarithmic scale, peers beside them
    Ladder {
        #[command(flatten)]
        what: WhatArgs,
        /// The problem, by its name in the run
        #[arg(long, default_value = "mission")]
        problem: String,
        /// A rung, from the top: a kernel's id or a peer's label, and what to call it; all kernels
        /// where none is given, the slowest first
        #[arg(long, value_name = "ID[=NAME]")]
        rung: Vec<String>,
        /// A file of rungs, one a line, as with --rung
        #[arg(long, value_name = "FILE", conflicts_with = "rung")]
        rungs: Option<PathBuf>,
    },
    /// TFLOP/s against the sequence length, a panel for each head_dim and mask: FlashCore and peers
    Lines {
        #[command(flatten)]
        what: WhatArgs,
    },
    /// How many times as fast as a peer or another kernel: head_dim and mask down, lengths across
    Ratio {
        #[command(flatten)]
        what: WhatArgs,
        /// The peer or kernel, or how it begins; else the peer that the run was compared with
        #[arg(long, value_name = "LABEL")]
        baseline: Option<String>,
    },
}

/// Which numbers, and where to.
#[derive(Args)]
pub(crate) struct WhatArgs {
    /// A run's key or revision, or how it begins; or a file: an export (.jsonl) of which the latest
    /// run counts, what `bench --json` printed (.json), or for `lines` the chart's own numbers (.csv)
    #[arg(default_value = "latest")]
    run: String,
    /// hot, cold, sustained or screen
    #[arg(long, default_value = "hot", value_parser = mode)]
    mode: Mode,
    /// The file to write, .html, .svg or for `lines` .csv, in place of HTML on standard output
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
                Some(path) => of_file(path)?,
                None => rung.iter().map(|rung| rung_name(rung)).collect(),
            };
            let ladder = Ladder::of_report(&of_run(keep, &what.run, None)?, problem, what.mode, &names)?;
            write(what.output.as_deref(), || ladder.html(), || ladder.svg(), None)
        }
        ChartArgs::Ratio { what, baseline } => {
            let report = of_run(keep, &what.run, baseline.as_deref())?;
            if report
                .results
                .iter()
                .all(|result| result.measurement.subjects.len() < 2)
            {
                return Err(Failure::usage("that run timed one kernel; a ratio needs two")
                    .help("`flashcore bench --kernel ID,ID` times two in the same rounds; `--peers all` adds peers"));
            }
            let base = match baseline {
                Some(_) => report.main_baseline(),
                None => report.main_peer(),
            };
            let Some(base) = base else {
                return Err(
                    Failure::usage("no peer was timed in that run, or none was its baseline")
                        .help("name one of its subjects with --baseline"),
                );
            };
            let grid = Grid::of_report(&report, base, what.mode)?;
            write(what.output.as_deref(), || grid.html(), || grid.svg(), None)
        }
        ChartArgs::Lines { what } => {
            let path = Path::new(&what.run);
            let speed = match path.extension().is_some_and(|extension| extension == "csv") {
                true => {
                    Speed::of_csv(&read(path)?).map_err(|error| Failure::usage(format!("{}: {error}", what.run)))?
                }
                false => Speed::of_report(&of_run(keep, &what.run, None)?, what.mode)?,
            };
            let csv = || speed.csv();
            write(what.output.as_deref(), || speed.html(), || speed.svg(), Some(&csv))
        }
    }
}

/// The report of a run in the store; of an export's latest, or of what `bench --json` printed, which need no store.
fn of_run(keep: &StoreArgs, run: &str, baseline: Option<&str>) -> Result<Report, Failure> {
    let path = Path::new(run);
    if !path.is_file() {
        return report(&opened(keep)?, run, baseline);
    }
    if path.extension().is_some_and(|extension| extension == "json") {
        #[derive(Deserialize)]
        struct Printed {
            report: Report,
        }
        let printed: Result<Printed, _> = serde_json::from_str(&read(path)?);
        let printed =
            printed.map_err(|error| Failure::usage(format!("{run} is not what `bench --json` prints: {error}")))?;
        // It has summaries and no samples: another baseline cannot be computed.
        return match baseline {
            None => Ok(printed.report),
            Some(_) => Err(
                Failure::usage(format!("{run} has no samples to compute --baseline from"))
                    .help("name the run or an export of it"),
            ),
        };
    }
    report(&Store::open(path)?, "latest", baseline)
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
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

fn of_file(path: &Path) -> Result<Vec<RungName>, Failure> {
    let text = read(path)?;
    let lines = text.lines().map(str::trim);
    let names: Vec<RungName> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(rung_name)
        .collect();
    if names.is_empty() {
        return Err(Failure::usage(format!("{} lists no rung", path.display())).help("write ID=NAME on each line"));
    }
    Ok(names)
}

fn write(
    output: Option<&Path>,
    html: impl Fn() -> String,
    svg: impl Fn() -> String,
    csv: Option<&dyn Fn() -> String>,
) -> Result<(), Failure> {
    let Some(path) = output else {
        style::print(&html());
        return Ok(());
    };
    let text = match (path.extension().and_then(|extension| extension.to_str()), csv) {
        (Some("html"), _) => html(),
        (Some("svg"), _) => svg(),
        (Some("csv"), Some(csv)) => csv(),
        _ => {
            return Err(Failure::usage(format!(
                "{} ends in none of .html, .svg{}",
                path.display(),
                if csv.is_some() { ", .csv" } else { "" }
            )));
        }
    };
    std::fs::write(path, text).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
}
