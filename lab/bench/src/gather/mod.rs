//! Evidence from wherever it is kept, in one form: runs of the store, exports of runs, and bundles (`evidence/` in the
//! repository). Every number has an [`EvidenceId`], under which [`Gathered::find`] has it again.

mod id;
mod recipe;
mod stored;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub use id::{EvidenceId, FEWEST_DIGITS};
pub use recipe::{Recipe, Recorded};

use crate::profile::ProfileRecord;
use crate::stand::KERNEL_WORDS;
use crate::standing::Shape;
use crate::store::{Selector, files_in};
use crate::{BenchError, CaseResult, DeviceIdentity, Interval, Measured, Mode, Options, Result, Store};

/// Where a number comes from: a run of a command, on a device, by a build.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Origin {
    /// Its id: that of all its numbers together.
    pub id: EvidenceId,
    /// Its key in the store.
    pub key: String,
    /// The file that it was read from.
    pub path: PathBuf,
    /// The device; its words are empty for a search without one.
    pub device: DeviceIdentity,
    /// Git revision of the build.
    pub revision: String,
    /// Day (UTC), `2026-11-22`.
    pub date: String,
    /// The command that was run, where recorded.
    pub command: Option<String>,
    /// Settings of the protocol, where recorded.
    pub options: Option<Options>,
    /// What else a reader must know, a sentence each.
    pub notes: Vec<String>,
}

impl Origin {
    /// Whether its command asks for kernels by id, in place of the library's choice.
    pub(crate) fn names_a_kernel(&self) -> bool {
        let mut words = self.command.iter().flat_map(|command| command.split_whitespace());
        // An older name of the flag is `--config`.
        while let Some(word) = words.next() {
            let (flag, value) = word
                .split_once('=')
                .map_or((word, None), |(flag, value)| (flag, Some(value)));
            if ["--kernel", "--config"].contains(&flag) {
                let ids = value.or_else(|| words.next()).unwrap_or_default();
                return ids.split(',').any(|id| !KERNEL_WORDS.contains(&id));
            }
        }
        false
    }
}

/// What was measured of one problem in one mode.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Place of its origin in [`Gathered::origins`].
    pub origin: usize,
    /// The measurement.
    pub result: CaseResult,
    /// The ids of its subjects, in their order.
    pub ids: Vec<EvidenceId>,
    /// The time of a run in each round of each subject, µs; none of what was predicted.
    pub rounds: Vec<Vec<f64>>,
    /// Our quickest kernel compared with the best of the peers, by round.
    pub best: Option<Shape>,
}

impl Timing {
    /// The subjects, each with its id and its rounds.
    pub fn subjects(&self) -> impl Iterator<Item = (&EvidenceId, &Measured, &[f64])> {
        let each = self.ids.iter().zip(&self.result.measurement.subjects).zip(&self.rounds);
        each.map(|((id, subject), rounds)| (id, subject, rounds.as_slice()))
    }

    /// The mode.
    pub fn mode(&self) -> Mode {
        self.result.measurement.mode
    }
}

/// Counters of a kernel on a problem.
#[derive(Clone, Debug)]
pub struct Profiled {
    /// Place of its origin in [`Gathered::origins`].
    pub origin: usize,
    /// Its id.
    pub id: EvidenceId,
    /// What was read.
    pub record: ProfileRecord,
}

/// Everything that was found in the sources.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// The runs.
    pub origins: Vec<Origin>,
    /// Times of kernels, in the order of the sources.
    pub timings: Vec<Timing>,
    /// Counters of kernels.
    pub profiles: Vec<Profiled>,
    /// What is odd about the sources, a sentence each.
    pub notes: Vec<String>,
}

/// What a note begins with that names something damaged, which was left out.
pub const NOT_READ: &str = "not read: ";

/// What an id names.
#[derive(Clone, Copy, Debug)]
pub struct Found<'g> {
    /// The id.
    pub id: &'g EvidenceId,
    /// Where it comes from.
    pub origin: &'g Origin,
    pub(crate) number: Number<'g>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Number<'g> {
    /// All of a run.
    Run,
    /// The time of a subject: its measurement, and its place there.
    Time(&'g Timing, usize),
    /// Counters of a kernel.
    Profile(&'g Profiled),
}

impl Gathered {
    /// Adds runs of a store.
    ///
    /// # Errors
    /// Nothing is selected, or none of what is selected can be read. What else cannot be read is a note.
    pub fn add_stored(&mut self, store: &Store, selector: &Selector) -> Result<()> {
        stored::add(self, store, selector)
    }

    /// Adds files: exports of runs, and bundles; of a folder all its `.jsonl` files.
    ///
    /// # Errors
    /// A path that is neither, a folder without such files, and a line that is no row where nothing else can be read:
    /// otherwise what is left out is a note.
    pub fn add_files(&mut self, paths: &[PathBuf]) -> Result<()> {
        let mut read: BTreeSet<PathBuf> = BTreeSet::new();
        let mut damaged = Vec::new();
        for path in paths {
            for file in files_of(path)? {
                // Given twice, as itself and by its folder.
                if !read.insert(file.canonicalize().unwrap_or_else(|_| file.clone())) {
                    continue;
                }
                let read = self.add_stored(&Store::at(&file), &Selector::All);
                damaged.extend(read.err());
            }
        }
        if self.is_empty() && !damaged.is_empty() {
            return Err(damaged.swap_remove(0));
        }
        let notes = damaged.iter().map(|error| format!("{NOT_READ}{error}"));
        self.notes.extend(notes);
        Ok(())
    }

    /// What an id, or its first digits, names: one thing, or none, or several.
    pub fn find(&self, id: &str) -> Vec<Found<'_>> {
        let runs = self.origins.iter().map(|origin| (&origin.id, origin, Number::Run));
        let times = self.timings.iter().flat_map(|timing| {
            let origin = &self.origins[timing.origin];
            let each = timing.ids.iter().enumerate();
            each.map(move |(place, id)| (id, origin, Number::Time(timing, place)))
        });
        let profiles = self.profiles.iter();
        let profiles = profiles.map(|of| (&of.id, &self.origins[of.origin], Number::Profile(of)));
        let all = runs.chain(times).chain(profiles).filter(|(known, ..)| known.begins(id));
        all.map(|(id, origin, number)| Found { id, origin, number }).collect()
    }

    /// Whether there is no number at all.
    pub fn is_empty(&self) -> bool {
        self.timings.is_empty() && self.profiles.is_empty()
    }
}

impl Found<'_> {
    /// What it names, in a line.
    pub fn what(&self) -> String {
        match self.number {
            Number::Run => format!("run {}", self.origin.key),
            Number::Time(timing, place) => {
                let label = &timing.result.measurement.subjects[place].info.label;
                format!("{}, {}, {label}", timing.result.case.name, timing.mode())
            }
            Number::Profile(Profiled { record, .. }) => {
                format!("counters of {} on {}", record.subject.label, record.case.name)
            }
        }
    }
}

/// The median and its interval, where the subject was timed.
pub fn time_of(subject: &Measured) -> Option<(f64, Option<Interval>)> {
    let summary = subject.summary?;
    let interval = Some(summary.interval).filter(|interval| interval.hi.is_finite());
    Some((summary.p50, interval))
}

/// The files that a path means: itself, or the `.jsonl` files in the folder, by name.
fn files_of(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_path_buf()]);
    }
    let unread = |error| BenchError::Given(format!("{}: {error}", path.display()));
    let files = files_in(path, "jsonl").map_err(unread)?;
    if files.is_empty() {
        return Err(BenchError::Given(format!(
            "{} has no evidence: no file in it ends in .jsonl",
            path.display()
        )));
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
