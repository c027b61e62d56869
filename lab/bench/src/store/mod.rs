//! The evidence store: a folder with one JSON-lines file per run.
//!
//! The first line of a file names the format and its version, and says what the run is about. Each sample is a line,
//! written when it is taken. The last line says that the run is finished; a run without it was cut off. A file is only
//! appended to, by the process that makes the run. `docs/evidence.md` describes the lines.
//!
//! Summaries, ratios and verdicts are not stored: they are computed again from the samples. What is published is a
//! [bundle](BundleHeader), with a time for each round in place of samples.

mod bundle;
mod export;
mod line;
mod read;
mod write;

use std::path::{Path, PathBuf};

pub(crate) use bundle::BUNDLE;
pub use bundle::{BUNDLE_SCHEMA, BundleHeader, Kind, Row, Timed, hash_of_rows};
pub use export::Imported;
pub(crate) use export::csv_line;
pub use line::{FORMAT, SCHEMA_VERSION};
pub use read::{Recorded, RunRow};
pub use write::RunWriter;

use crate::profile::ProfileRecord;
use crate::{BenchError, Result, host_name};
use flashcore_ir::files;
use line::HEADER;

/// A folder of runs, or one file of runs: an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    path: PathBuf,
}

/// Which runs to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// All of them.
    All,
    /// The latest.
    Latest,
    /// Those whose key or revision begins so.
    Prefix(String),
}

impl Selector {
    fn accepts(&self, run: &RunRow) -> bool {
        match self {
            Selector::All | Selector::Latest => true,
            // Nothing was named, as where a variable of a shell is not set.
            Selector::Prefix(prefix) if prefix.is_empty() => false,
            Selector::Prefix(prefix) => run.key.starts_with(prefix) || run.identity.revision.starts_with(prefix),
        }
    }
}

/// The folder where evidence is kept by default: `$XDG_DATA_HOME/flashcore/evidence/HOST`, with `~/.local/share` in
/// place of an unset variable; `None` where HOME is not set either.
pub fn default_path() -> Option<PathBuf> {
    let keep = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' => c,
        _ => '-',
    };
    let host: String = host_name().chars().map(keep).collect();
    Some(flashcore::unstable::files::data_folder()?.join("evidence").join(host))
}

impl Store {
    /// The store at a path: a folder, which the first run creates, or a file that `evidence export` wrote, which is
    /// read only. Nothing is written here, so that a store on a read-only disk can be read.
    pub fn at(path: &Path) -> Store {
        Store {
            path: path.to_path_buf(),
        }
    }

    /// The folder or file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The selected runs, oldest first, and what is wrong with the files that cannot be read.
    ///
    /// # Errors
    /// [`BenchError::Store`] if the folder or file itself cannot be read.
    pub fn list(&self, selector: &Selector) -> Result<(Vec<RunRow>, Vec<BenchError>)> {
        let (mut runs, mut unreadable) = (Vec::new(), Vec::new());
        for path in self.files()? {
            let bytes = files::read_capped(&path, files::LARGE).map_err(inaccessible(&path));
            let bytes = bytes.unwrap_or_else(|error| {
                unreadable.push(self.blamed(error));
                Vec::new()
            });
            for (part, first) in split(&bytes) {
                match RunRow::scan(&path, part, first) {
                    Ok(run) => runs.extend(run.filter(|run| selector.accepts(run))),
                    Err(error) => unreadable.push(self.blamed(error)),
                }
            }
        }
        runs.sort_by(|a, b| (a.identity.started_at, &a.key).cmp(&(b.identity.started_at, &b.key)));
        if *selector == Selector::Latest {
            runs = runs.pop().into_iter().collect();
        }
        Ok((runs, unreadable))
    }

    /// The selected runs, oldest first.
    ///
    /// # Errors
    /// As [`list`](Store::list); and where nothing that can be read is selected, the error of a file that cannot be.
    pub fn runs(&self, selector: &Selector) -> Result<Vec<RunRow>> {
        let (runs, unreadable) = self.list(selector)?;
        match unreadable.into_iter().next() {
            Some(error) if runs.is_empty() => Err(error),
            _ => Ok(runs),
        }
    }

    /// The measurements of a run, in the order made.
    pub fn measurements(&self, run: &RunRow) -> Result<Vec<Recorded>> {
        run.read().map_err(|error| self.blamed(error))
    }

    /// The profiles of a run, in the order made: counters that `flashcore profile` read. Empty for runs of `bench`.
    pub fn profiles(&self, run: &RunRow) -> Result<Vec<ProfileRecord>> {
        run.read_profiles().map_err(|error| self.blamed(error))
    }

    /// What is wrong with a run. A file was given by name: then nothing is wrong with the store.
    fn blamed(&self, error: BenchError) -> BenchError {
        match error {
            BenchError::Store { path, reason } if self.path.is_file() => BenchError::Given(format!("{path}: {reason}")),
            error => error,
        }
    }

    /// The files with runs, by name; none where there is no store yet.
    fn files(&self) -> Result<Vec<PathBuf>> {
        if self.path.is_file() {
            return Ok(vec![self.path.clone()]);
        }
        match files_in(&self.path, "jsonl") {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            files => files.map_err(inaccessible(&self.path)),
        }
    }
}

/// The files of a folder whose names end so, sorted.
///
/// # Errors
/// A folder that cannot be read.
pub fn files_in(folder: &Path, extension: &str) -> std::io::Result<Vec<PathBuf>> {
    let paths = std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<Result<_, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|end| end == extension));
    paths.sort();
    Ok(paths)
}

/// The runs in the bytes of a file, with the number of their first line: each begins with a header. What stands before
/// the first is a run too, which a reader refuses.
fn split(bytes: &[u8]) -> Vec<(&[u8], usize)> {
    let (mut runs, mut start, mut at, mut first) = (Vec::new(), 0, 0, 1);
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if at > 0 && (line.starts_with(HEADER) || line.starts_with(BUNDLE)) {
            runs.push((&bytes[start..at], first));
            (start, first) = (at, index + 1);
        }
        at += line.len();
    }
    runs.push((&bytes[start..], first));
    runs
}

fn failed(path: &Path, error: impl std::fmt::Display) -> BenchError {
    BenchError::Store {
        path: path.display().to_string(),
        reason: error.to_string(),
    }
}

fn inaccessible(path: &Path) -> impl Fn(std::io::Error) -> BenchError + '_ {
    move |error| failed(path, error)
}
