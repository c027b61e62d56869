//! The sources of a report: runs of the store, files of evidence, searches.

use std::path::{Path, PathBuf};

use clap::Args;
use flashcore_bench::gather::{Gathered, NOT_READ};
use flashcore_check::programs::quoted;
use flashcore_check::render::few;
use flashcore_tune::{Told, runs};

use crate::evidence::{NONE, opened, selector};
use crate::{Failure, StoreArgs, style};

/// Name of the file that makes a folder one of a search.
const SEARCH: &str = "run.json";

#[derive(Args)]
pub(crate) struct SourceArgs {
    /// Runs of the store, exports, bundles, searches [default: the store, and the latest searches]
    ///
    /// A run is `latest`, `all`, a key or a revision, or a prefix of one; exports and bundles are .jsonl files, or
    /// folders of them; a search is its folder. By default the whole store, and the latest search of each problem.
    #[arg(value_name = "RUNS")]
    runs: Vec<String>,
    /// The evidence folder, in place of this host's in the XDG data folder
    #[arg(long, value_name = "FOLDER", help_heading = "Evidence")]
    store: Option<PathBuf>,
}

/// What was found in the sources.
pub(crate) struct Sources {
    pub(crate) gathered: Gathered,
    pub(crate) searches: Vec<Told>,
}

impl SourceArgs {
    /// The store.
    pub(crate) fn keep(&self) -> StoreArgs {
        StoreArgs::at(self.store.clone().filter(|_| !self.keeps_nothing()))
    }

    /// Whether what is measured is not kept.
    pub(crate) fn keeps_nothing(&self) -> bool {
        self.store.as_deref() == Some(Path::new(NONE))
    }

    /// Reads them all.
    pub(crate) fn read(&self) -> Result<Sources, Failure> {
        let (gathered, searches) = if self.runs.is_empty() {
            self.whole()?
        } else {
            self.given()?
        };
        let damaged = gathered.notes.iter().filter(|note| note.starts_with(NOT_READ));
        let damaged: Vec<&String> = damaged.collect();
        if !damaged.is_empty() {
            style::note(few(&damaged));
        }
        Ok(Sources { gathered, searches })
    }

    /// The sources as they were given, for a command.
    pub(crate) fn words(&self) -> String {
        let words = self.runs.iter().map(|run| format!(" {}", quoted(run.as_ref())));
        let store = self
            .store
            .iter()
            .map(|folder| format!(" --store {}", quoted(folder.as_os_str())));
        words.chain(store).collect()
    }

    fn whole(&self) -> Result<(Gathered, Vec<Told>), Failure> {
        let store = opened(&self.keep())?;
        let mut gathered = Gathered::default();
        gathered.add_stored(&store, &selector("all"))?;
        let mut searches: Vec<Told> = Vec::new();
        // A store named by hand is all that is meant.
        let found = match &self.store {
            Some(_) => None,
            None => runs::folder().map(|folder| runs::look(&folder)).transpose()?,
        };
        for (folder, header) in found.map(|found| found.runs).unwrap_or_default() {
            let same = |told: &&Told| (&told.header.case, &told.header.devices) == (&header.case, &header.devices);
            if header.is_real() && !searches.iter().any(|told| same(&told)) {
                match Told::read(&folder) {
                    Ok(told) => searches.push(told),
                    Err(error) => gathered.notes.push(format!("{NOT_READ}{error}")),
                }
            }
        }
        if gathered.is_empty() && searches.is_empty() {
            let why = format!("{} has no run yet, and there is no search", store.path().display());
            return Err(Failure::usage(why).help(
                "`flashcore bench` makes a run, `flashcore tune` a search; or name files: `flashcore report evidence`",
            ));
        }
        Ok((gathered, searches))
    }

    fn given(&self) -> Result<(Gathered, Vec<Told>), Failure> {
        let mut gathered = Gathered::default();
        let (mut files, mut searches) = (Vec::new(), Vec::new());
        for name in &self.runs {
            let path = Path::new(name);
            if path.is_dir() && path.join(SEARCH).exists() {
                searches.push(Told::read(path)?);
            } else if path.exists() {
                files.push(PathBuf::from(name));
            } else if name.contains(['/', '.']) {
                return Err(Failure::usage(format!("{name}: no such file or folder")));
            } else {
                let before = gathered.origins.len();
                gathered.add_stored(&opened(&self.keep())?, &selector(name))?;
                if gathered.origins.len() == before {
                    let why =
                        format!("no run has a key or a revision that begins with `{name}`, and no file has that name");
                    return Err(Failure::usage(why).help("`flashcore evidence` lists the runs of the store"));
                }
            }
        }
        gathered.add_files(&files)?;
        if gathered.is_empty() && searches.is_empty() {
            let why = format!("no number is in {}", few(&self.runs));
            return Err(
                Failure::usage(why).help("name runs that were measured, files of evidence, or folders of searches")
            );
        }
        Ok((gathered, searches))
    }
}
