//! `flashcore evidence chart`: runs as charts.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use flashcore_bench::chart::{Grid, Ladder, RungName};
use flashcore_bench::{Mode, Report, Store};

use crate::bench::{StoreArgs, mode};
use crate::evidence::{opened, report};
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
    /// How many times as fast as a peer: head_dim and mask down, lengths across
    Ratio {
        #[command(flatten)]
        what: WhatArgs,
        /// The peer, or how it begins; else the one that the run was compared with
        #[arg(long, value_name = "LABEL")]
        baseline: Option<String>,
    },
}

/// Which numbers, and where to.
#[derive(Args)]
pub(crate) struct WhatArgs {
    /// A run's key or a revision, or how it begins, or an export (.jsonl), of which the latest run
    #[arg(default_value = "latest")]
    run: String,
    /// hot, cold, sustained or screen
    #[arg(long, default_value = "hot", value_parser = mode)]
    mode: Mode,
    /// The file to write, .html or .svg, in place of HTML on standard output
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
            write(what.output.as_deref(), || ladder.html(), || ladder.svg())
        }
        ChartArgs::Ratio { what, baseline } => {
            let report = of_run(keep, &what.run, baseline.as_deref())?;
            let Some(peer) = report.main_peer() else {
                return Err(
                    Failure::usage("no peer was timed in that run, or none was its baseline")
                        .help("name one of its subjects with --baseline"),
                );
            };
            let grid = Grid::of_report(&report, peer, what.mode)?;
            write(what.output.as_deref(), || grid.html(), || grid.svg())
        }
    }
}

/// The report of a run in the store, or of an export's latest, which needs no store.
fn of_run(keep: &StoreArgs, run: &str, baseline: Option<&str>) -> Result<Report, Failure> {
    if !Path::new(run).is_file() {
        return report(&opened(keep)?, run, baseline);
    }
    let file = File::open(run).map_err(|error| Failure::usage(format!("{run}: {error}")))?;
    let memory = Store::in_memory()?;
    memory.import_jsonl(run, &mut BufReader::new(file))?;
    report(&memory, "latest", baseline)
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
    let text = std::fs::read_to_string(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
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

fn write(output: Option<&Path>, html: impl Fn() -> String, svg: impl Fn() -> String) -> Result<(), Failure> {
    let Some(path) = output else {
        style::print(&html());
        return Ok(());
    };
    let text = match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => html(),
        Some("svg") => svg(),
        _ => {
            return Err(Failure::usage(format!(
                "{} ends neither in .html nor in .svg",
                path.display()
            )));
        }
    };
    std::fs::write(path, text).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
}
