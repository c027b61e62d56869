//! `flashcore evidence`: what was measured, where it lies, in and out of the store.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use flashcore_bench::store::{Selector, default_path};
use flashcore_bench::{Report, Store, table};
use serde_json::json;

use crate::bench::{standings, standings_text};
use crate::chart::{self, ChartArgs};
use crate::failure::{Failure, Outcome};
use crate::style;

/// List, show, export or import what was measured
#[derive(Args)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 usage or another schema, 3 the store cannot be used")]
pub(crate) struct EvidenceArgs {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    keep: StoreArgs,
}

/// Where evidence is kept.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Evidence")]
pub(crate) struct StoreArgs {
    /// The evidence folder, in place of this host's in the XDG data folder
    #[arg(long, value_name = "FOLDER", global = true)]
    store: Option<PathBuf>,
    /// Keep nothing
    #[arg(long, conflicts_with = "store", global = true)]
    no_store: bool,
}

impl StoreArgs {
    /// The folder, if evidence is kept.
    pub(crate) fn path(&self) -> Result<Option<PathBuf>, Failure> {
        if self.no_store {
            return Ok(None);
        }
        let path = self.store.clone().or_else(default_path);
        let missing = || Failure::usage("there is no place for evidence: neither XDG_DATA_HOME nor HOME is set");
        path.map(Some)
            .ok_or_else(|| missing().help("name a folder with --store, or pass --no-store"))
    }
}

#[derive(Subcommand)]
enum What {
    /// Runs in the store, oldest first; what happens where nothing is named
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// The report of a run, computed anew from its samples
    Show {
        /// A run's key or a revision, or how it begins
        #[arg(default_value = "latest")]
        run: String,
        /// What the others are compared with, in place of what it was: a label or how it begins
        #[arg(long, value_name = "LABEL")]
        baseline: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write runs as text
    Export {
        /// `all`, `latest`, a run's key or a revision
        #[arg(default_value = "all")]
        run: String,
        /// jsonl can be imported again; csv has a line a sample
        #[arg(long, value_enum, default_value = "jsonl")]
        format: Format,
        /// The file to write, in place of standard output
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Add the runs of an export that are not there yet
    Import {
        /// A file that `export` wrote
        file: PathBuf,
    },
    /// Draw a run: one file of HTML or SVG, in light and dark, with no script
    #[command(subcommand)]
    Chart(ChartArgs),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Jsonl,
    Csv,
}

pub(crate) fn run(args: &EvidenceArgs) -> Result<Outcome, Failure> {
    let store = || opened(&args.keep);
    match &args.what {
        None => list(&store()?, false)?,
        Some(What::List { json }) => list(&store()?, *json)?,
        Some(What::Show { run, baseline, json }) => show(&store()?, run, baseline.as_deref(), *json)?,
        Some(What::Export { run, format, output }) => export(&store()?, run, *format, output.as_deref())?,
        Some(What::Chart(chart)) => chart::run(&args.keep, chart)?,
        Some(What::Import { file }) => {
            if !file.is_file() {
                return Err(Failure::usage(format!("{} is no file", file.display())));
            }
            let added = store()?.import_jsonl(file)?;
            style::print(&format!(
                "{} runs with {} samples added; {} were there already\n",
                added.runs, added.samples, added.known
            ));
        }
    }
    Ok(Outcome::Clean)
}

pub(crate) fn opened(keep: &StoreArgs) -> Result<Store, Failure> {
    let none = || Failure::usage("--no-store leaves no evidence to show");
    Ok(Store::open(&keep.path()?.ok_or_else(none)?)?)
}

fn selector(run: &str) -> Selector {
    match run {
        "all" => Selector::All,
        "latest" => Selector::Latest,
        prefix => Selector::Prefix(prefix.to_string()),
    }
}

fn list(store: &Store, as_json: bool) -> Result<(), Failure> {
    let (runs, unreadable) = store.list(&Selector::All)?;
    let unreadable: Vec<String> = unreadable.iter().map(ToString::to_string).collect();
    let older = store.older();
    if as_json {
        style::print_json(&json!({
            "store": store.path(),
            "runs": runs,
            "unreadable": unreadable,
            "older_store": older,
        }));
        return Ok(());
    }
    let mut text = style::wrap(&store.path().display().to_string(), 2);
    for run in &runs {
        let torn = match run.torn_bytes {
            0 => String::new(),
            bytes => format!(", last line torn: {} dropped", style::count(bytes as u64, "byte")),
        };
        text.push_str(&format!(
            "{:<24} {:<22} {:<22} {:>16} {:>15}{}{torn}\n",
            run.key,
            run.identity.revision,
            run.identity.device.name.chars().take(22).collect::<String>(),
            style::count(run.measurements.into(), "measurement"),
            style::count(run.samples.into(), "sample"),
            if run.finished { "" } else { ", cut off" }
        ));
    }
    if runs.is_empty() {
        text.push_str("no run yet; `flashcore bench` makes one\n");
    }
    for error in &unreadable {
        text.push_str(&style::wrap(&format!("not read: {error}"), 2));
    }
    if let Some(older) = older {
        let older = older.display();
        let convert = format!("older runs: `python3 scripts/convert_evidence.py {older}` adds those of {older}");
        text.push_str(&style::wrap(&convert, 2));
    }
    style::print(&text);
    Ok(())
}

fn show(store: &Store, name: &str, baseline: Option<&str>, as_json: bool) -> Result<(), Failure> {
    let report = report(store, name, baseline)?;
    let standings = standings(&report);
    if as_json {
        style::print_json(&json!({ "report": report, "standings": standings }));
    } else {
        style::print(&table::text(&report));
        style::print(&standings_text(&standings));
    }
    Ok(())
}

/// The report of the latest run of that name, with another baseline than it had if one is given.
pub(crate) fn report(store: &Store, name: &str, baseline: Option<&str>) -> Result<Report, Failure> {
    let runs = store.runs(&selector(name))?;
    let Some(run) = runs.last() else {
        if store.runs(&Selector::All)?.is_empty() {
            return Err(Failure::usage(format!("{} has no run yet", store.path().display()))
                .help("`flashcore bench` makes one; --store FOLDER names another store"));
        }
        return Err(
            Failure::usage(format!("no run has a key or a revision that begins with `{name}`"))
                .help("`flashcore evidence` lists the runs"),
        );
    };
    let mut recorded = store.measurements(run)?;
    if let Some(label) = baseline {
        if !recorded.iter().any(|recorded| recorded.has(label)) {
            let mut subjects: Vec<&str> = Vec::new();
            for subject in recorded.iter().flat_map(|recorded| recorded.labels()) {
                if !subjects.contains(&subject) {
                    subjects.push(subject);
                }
            }
            return Err(Failure::usage(format!("no subject of that run is called `{label}`"))
                .help(format!("it has {}", subjects.join(", "))));
        }
        recorded = recorded
            .into_iter()
            .map(|recorded| recorded.with_baseline(label, &run.options))
            .collect();
    }
    Ok(Report::of_evidence(run, recorded))
}

fn export(store: &Store, run: &str, format: Format, output: Option<&Path>) -> Result<(), Failure> {
    let mut text = Vec::new();
    match format {
        Format::Jsonl => store.export_jsonl(&selector(run), &mut text)?,
        Format::Csv => store.export_csv(&selector(run), &mut text)?,
    }
    match output {
        Some(path) => File::create(path)
            .and_then(|mut file| file.write_all(&text))
            .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?,
        None => style::print(&String::from_utf8_lossy(&text)),
    }
    Ok(())
}
