//! `flashcore evidence`: lists, shows, compares, exports, imports and draws the runs of the evidence store, and
//! publishes them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use flashcore_bench::published::{BUNDLE_NAMES, Current, FOLDER, is_bundle_name, whole_revision};
use flashcore_bench::store::{Recorded, RunRow, Selector, default_path};
use flashcore_bench::{Report, Store, date, table};
use flashcore_check::render::FEW;
use serde_json::json;

use crate::bench::{standings, standings_text};
use crate::chart::ChartArgs;
use crate::compare::CompareArgs;
use crate::{DIM, Failure, HEAD, Outcome, Page, chart, compare, profile, style};

/// List, show, compare, export, import, draw or publish what was measured
#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, 2 usage or another schema, 3 the store cannot be read or written"
)]
pub(crate) struct EvidenceArgs {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    keep: StoreArgs,
    /// Print one JSON object: of the list
    #[arg(long)]
    json: bool,
}

/// Where evidence is kept.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Evidence")]
pub(crate) struct StoreArgs {
    /// The evidence folder, in place of this host's; none keeps nothing
    ///
    /// This host's is in the XDG data folder.
    #[arg(long, value_name = "FOLDER", global = true)]
    store: Option<PathBuf>,
}

/// The store of what keeps nothing.
pub(crate) const NONE: &str = "none";

impl StoreArgs {
    /// This folder; where none is given, this host's.
    pub(crate) fn at(store: Option<PathBuf>) -> StoreArgs {
        StoreArgs { store }
    }

    pub(crate) fn path(&self) -> Result<Option<PathBuf>, Failure> {
        if self.store.as_deref() == Some(Path::new(NONE)) {
            return Ok(None);
        }
        let path = self.store.clone().or_else(default_path);
        let missing = || {
            Failure::usage("there is no place for evidence: neither XDG_DATA_HOME nor HOME is set")
                .help("name a folder with --store, or pass --store none")
        };
        path.map(Some).ok_or_else(missing)
    }
}

#[derive(Subcommand)]
enum What {
    /// List the runs in the store, oldest first; the default
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show the report of a run, computed again from its samples
    Show {
        /// A run's key or revision, or a prefix of it
        #[arg(default_value = "latest")]
        run: String,
        /// The subject to compare with, by its label or a prefix of it [default: as in the run]
        #[arg(long, value_name = "LABEL")]
        baseline: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    Compare(CompareArgs),
    /// Write runs as text
    Export {
        /// `all`, `latest`, a run's key or a revision
        #[arg(default_value = "all")]
        run: String,
        /// FILE.jsonl, which can be imported again, or FILE.csv with one line per sample; `csv` and `jsonl` alone
        /// print it
        #[arg(long, short, value_name = "FILE", default_value = "jsonl")]
        output: PathBuf,
    },
    /// Add the runs of an export that the store does not have yet
    Import {
        /// A file that `export` wrote
        file: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write runs as a bundle, evidence/NAME.jsonl of the repository: a time for each round of each subject
    Publish {
        /// Name of the bundle
        name: String,
        /// `latest`, `all`, a run's key or a revision; or an export (.jsonl), all of whose runs are meant
        #[arg(required = true)]
        runs: Vec<String>,
    },
    /// Write the figures of README and docs, as evidence/current.toml lists them
    Render {
        /// Write nothing; exit with 1 if a page differs from what the bundles say
        #[arg(long)]
        check: bool,
    },
    /// Exit with 1 if a figure of the repository cannot be computed again
    Verify,
    Chart(ChartArgs),
}

pub(crate) fn run(args: &EvidenceArgs) -> Result<Outcome, Failure> {
    let store = || opened(&args.keep);
    match &args.what {
        None => list(&store()?, args.json)?,
        Some(_) if args.json => {
            return Err(Failure::usage("--json before a subcommand is of the list alone").help("put it at the end"));
        }
        Some(What::List { json }) => list(&store()?, *json)?,
        Some(What::Show { run, baseline, json }) => show(&store()?, run, baseline.as_deref(), *json)?,
        Some(What::Export { run, output }) => export(&store()?, run, output)?,
        Some(What::Compare(compared)) => return compare::run(&args.keep, compared),
        Some(What::Chart(chart)) => chart::run(&args.keep, chart)?,
        Some(What::Publish { name, runs }) => publish(args, name, runs)?,
        Some(What::Render { check }) => return render(*check),
        Some(What::Verify) => {
            let root = root()?;
            let faults = Current::read(&root)?.faults(&root)?;
            faults.iter().for_each(|fault| style::print(&format!("{fault}\n")));
            return Ok(Outcome::of(faults.is_empty()));
        }
        Some(What::Import { file, .. }) if !file.is_file() => {
            return Err(Failure::usage(format!("{} is not a file", file.display())));
        }
        Some(What::Import { file, json }) => {
            let added = store()?.import_jsonl(file)?;
            let [runs, samples] =
                [(added.runs, "run"), (added.samples, "sample")].map(|(n, what)| style::count(n, what));
            let known = added.known;
            let text = format!("{runs} with {samples} added; {known} were in the store");
            let json_of = || json!({ "runs": added.runs, "samples": added.samples, "known": added.known });
            style::show(*json, json_of, || Page::new(text));
        }
    }
    Ok(Outcome::Clean)
}

pub(crate) fn opened(keep: &StoreArgs) -> Result<Store, Failure> {
    let none = || Failure::usage("--store none leaves no evidence to show");
    Ok(Store::at(&keep.path()?.ok_or_else(none)?))
}

pub(crate) fn selector(run: &str) -> Selector {
    match run {
        "all" => Selector::All,
        "latest" => Selector::Latest,
        prefix => Selector::Prefix(prefix.to_string()),
    }
}

fn list(store: &Store, as_json: bool) -> Result<(), Failure> {
    let (runs, unreadable) = store.list(&Selector::All)?;
    let unreadable: Vec<String> = unreadable.iter().map(ToString::to_string).collect();
    let json = || json!({ "store": store.path(), "runs": runs, "unreadable": unreadable });
    style::show(as_json, json, || {
        let mut page = Page::default();
        page.wrap(2, store.path().display());
        for run in &runs {
            let cut_off = if run.finished { "" } else { ", cut off" };
            let torn = match run.torn_bytes {
                0 => String::new(),
                bytes => format!(", last line torn: {} dropped", style::count(bytes, "byte")),
            };
            let (what, samples) = match run.profiles {
                0 => (
                    style::count(run.measurements, "measurement"),
                    format!(", {}", style::count(run.samples, "sample")),
                ),
                profiles => (style::count(profiles, "profile"), String::new()),
            };
            let (key, identity) = (&run.key, &run.identity);
            let (revision, device) = (&identity.revision, &identity.device.name);
            let at = when(identity.started_at);
            page.wrap(
                4,
                format_args!("{HEAD}{key}{HEAD:#}  {at}  {revision}  {DIM}{device}{DIM:#}"),
            );
            let cases = cases(&run.cases);
            page.wrap(4, format_args!("    {cases}: {what}{samples}{cut_off}{torn}"));
        }
        if runs.is_empty() {
            page.line("no run yet; `flashcore bench` makes one");
        }
        for error in unreadable.iter().take(FEW) {
            page.wrap(2, format_args!("not read: {error}"));
        }
        if unreadable.len() > FEW {
            page.line(format_args!("not read: {} more", unreadable.len() - FEW));
        }
        page
    });
    Ok(())
}

/// Date and time (UTC) of a moment in seconds since 1970.
fn when(seconds: u64) -> String {
    let of_day = seconds % 86_400;
    let (hours, minutes) = (of_day / 3600, of_day % 3600 / 60);
    format!("{} {hours:02}:{minutes:02} UTC", date(seconds))
}

/// The problems of a run, the first ones by name.
fn cases(names: &[String]) -> String {
    const NAMED: usize = 4;
    match names.len() {
        0 => "no problem".to_string(),
        few if few <= NAMED => names.join(", "),
        many => format!("{} and {} more", names[..NAMED].join(", "), many - NAMED),
    }
}

/// Says which of several runs of a name is shown.
fn note_which(runs: &[RunRow], shown: &RunRow, name: &str) {
    if runs.len() > 1 && !["all", "latest"].contains(&name) {
        let (count, key, at) = (runs.len(), &shown.key, when(shown.identity.started_at));
        style::note(format_args!(
            "{count} runs begin with `{name}`; this is the latest, {key} of {at}"
        ));
    }
}

fn show(store: &Store, name: &str, baseline: Option<&str>, as_json: bool) -> Result<(), Failure> {
    let runs = store.runs(&selector(name))?;
    if let Some(run) = runs.last().filter(|run| run.profiles > 0) {
        note_which(&runs, run, name);
        let profiles = store.profiles(run)?;
        let json = || json!({ "run": run, "profiles": profiles });
        style::show(as_json, json, || {
            let about = &run.identity;
            let mut page = Page::new(format_args!("{}, revision {}", about.device.name, about.revision));
            profile::add_kept(&mut page, profiles.clone());
            page
        });
        return Ok(());
    }
    let report = report(store, name, baseline)?;
    let standings = standings(&report);
    let json = || json!({ "report": report, "standings": standings });
    style::show(as_json, json, || {
        let mut page = Page::default();
        page.add(table::text(&report));
        page.add(standings_text(&standings));
        page
    });
    Ok(())
}

/// The report of the latest run of that name, with another baseline if one is given.
pub(crate) fn report(store: &Store, name: &str, baseline: Option<&str>) -> Result<Report, Failure> {
    // Runs of profiles have no times.
    let selector = match selector(name) {
        Selector::Latest => Selector::All,
        other => other,
    };
    let runs = store.runs(&selector)?;
    let Some(run) = runs.iter().rfind(|run| run.profiles == 0) else {
        if !runs.is_empty() {
            let why = "that run has profiles and no times";
            return Err(Failure::usage(why).help("`flashcore bench` makes times; `evidence show` prints profiles"));
        }
        return Err(no_run(store, name)?);
    };
    note_which(&runs, run, name);
    let mut recorded = store.measurements(run)?;
    if let Some(label) = baseline {
        if !recorded.iter().any(|recorded| recorded.has(label)) {
            let subjects: BTreeSet<&str> = recorded.iter().flat_map(Recorded::labels).collect();
            let why = format!("no subject of that run has a label that begins with `{label}`");
            return Err(Failure::usage(why).help(format!("it has {}", style::list(subjects))));
        }
        let changed = recorded.into_iter();
        let changed = changed.map(|recorded| recorded.with_baseline(label, &run.options));
        recorded = changed.collect();
    }
    Ok(Report::of_evidence(run, recorded))
}

/// Why a store has no run of that name.
fn no_run(store: &Store, name: &str) -> Result<Failure, Failure> {
    Ok(if store.runs(&Selector::All)?.is_empty() {
        Failure::usage(format!("{} has no run yet", store.path().display()))
            .help("`flashcore bench` makes one; --store FOLDER names another store")
    } else {
        Failure::usage(format!("no run has a key or a revision that begins with `{name}`"))
            .help("`flashcore evidence` lists the runs")
    })
}

fn export(store: &Store, run: &str, output: &Path) -> Result<(), Failure> {
    let (format, path) = match output.to_str() {
        Some(format @ ("jsonl" | "csv")) => (format, None),
        _ => (style::ending(output, &["jsonl", "csv"])?, Some(output)),
    };
    // `all` of an empty store is nothing; a run that is asked for must be there.
    if run != "all" && store.runs(&selector(run))?.is_empty() {
        return Err(no_run(store, run)?);
    }
    let mut text = Vec::new();
    match format {
        "csv" => store.export_csv(&selector(run), &mut text)?,
        _ => store.export_jsonl(&selector(run), &mut text)?,
    }
    match path {
        Some(path) => style::write(path, text)?,
        None => style::print(&String::from_utf8_lossy(&text)),
    }
    Ok(())
}

/// The folder of the repository that the program is run in.
fn root() -> Result<PathBuf, Failure> {
    let here = std::env::current_dir().map_err(Failure::failed)?;
    let is_root = |folder: &&Path| folder.join(FOLDER).join("current.toml").is_file();
    let found = here.ancestors().find(is_root).map(Path::to_path_buf);
    found.ok_or_else(|| {
        let why = format!("no folder from {} up has {FOLDER}/current.toml", here.display());
        Failure::usage(why).help("run it in a clone of FlashCore")
    })
}

fn publish(args: &EvidenceArgs, name: &str, runs: &[String]) -> Result<(), Failure> {
    if !is_bundle_name(name) {
        return Err(Failure::usage(format!("`{name}` {BUNDLE_NAMES}")));
    }
    let (root, mut text) = (root()?, Vec::new());
    for run in runs {
        let (store, wanted) = if Path::new(run).is_file() {
            (Store::at(Path::new(run)), Selector::All)
        } else {
            (opened(&args.keep)?, selector(run))
        };
        let found = store.runs(&wanted)?;
        for run in &found {
            text.extend(store.bundled(run, &|revision| whole_revision(&root, revision))?);
        }
        if found.is_empty() {
            return Err(no_run(&store, run)?);
        }
    }
    let path = root.join(FOLDER).join(format!("{name}.jsonl"));
    style::write(&path, text)?;
    style::print(&format!(
        "wrote {}; a figure of {FOLDER}/current.toml has to name it\n",
        path.display()
    ));
    Ok(())
}

fn render(check: bool) -> Result<Outcome, Failure> {
    let root = root()?;
    let changed = Current::read(&root)?.render(&root)?;
    for (path, text) in &changed {
        if check {
            let path = path.display();
            style::print(&format!(
                "{path} differs from the bundles; `flashcore evidence render` writes it\n"
            ));
        } else {
            style::write(path, text)?;
        }
    }
    Ok(Outcome::of(!check || changed.is_empty()))
}
