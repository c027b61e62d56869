//! Writing a run: one file, one writer, one line at a time.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::line::{Begun, Ended, Entered, FORMAT, Header, Left, Line, SCHEMA_VERSION};
use super::{Store, failed, inaccessible};
use crate::defences::Inspection;
use crate::profile::ProfileRecord;
use crate::{Case, Measurement, Mode, Options, Reading, Report, Result, RunIdentity, Sample, SubjectInfo};

/// A run that is being written. A line is in the file when the method that wrote it returns: if the process is killed,
/// at most the line in flight is lost.
#[derive(Debug)]
pub struct RunWriter {
    file: File,
    path: PathBuf,
    measurements: Cell<usize>,
}

impl Store {
    /// Begins a run: creates its file, and the folder if there is none. `floor_us` is what an empty kernel takes on the
    /// device.
    ///
    /// # Errors
    /// [`BenchError::Store`](crate::BenchError::Store) if the store is a file, or the file system
    /// refuses; as all methods of [`RunWriter`].
    pub fn begin_run(&self, identity: &RunIdentity, options: &Options, floor_us: Option<f64>) -> Result<RunWriter> {
        let folder = self.path();
        if folder.is_file() {
            let why = "this is a file; runs are written to a folder: name one with --store";
            return Err(failed(folder, why));
        }
        std::fs::create_dir_all(folder).map_err(inaccessible(folder))?;
        let nanos = UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_nanos());
        let key = format!("{nanos:x}-{:x}", std::process::id());
        let path = folder.join(format!("{key}.jsonl"));
        // Two runs of one process in one nanosecond would have one key: the second is refused, not mixed in.
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        let run = RunWriter {
            file: file.map_err(inaccessible(&path))?,
            path,
            measurements: Cell::new(0),
        };
        run.line(&Line::Run(Box::new(Header {
            format: FORMAT.to_string(),
            schema: SCHEMA_VERSION,
            key,
            identity: identity.clone(),
            options: options.clone(),
            floor_us,
        })))?;
        Ok(run)
    }
}

impl RunWriter {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins a measurement of subjects, each with what its inspection found. Returns its place in the run.
    pub fn begin_measurement(
        &self,
        case: &Case,
        mode: Mode,
        baseline: usize,
        subjects: &[(SubjectInfo, Option<Inspection>)],
    ) -> Result<usize> {
        let entered = |(info, inspection): &(SubjectInfo, Option<Inspection>)| Entered {
            info: info.clone(),
            inspection: inspection.clone(),
        };
        self.line(&Line::Measurement(Box::new(Begun {
            case: case.clone(),
            mode,
            baseline,
            subjects: subjects.iter().map(entered).collect(),
        })))?;
        Ok(self.measurements.replace(self.measurements.get() + 1))
    }

    /// Adds a sample to the measurement that was begun last.
    pub fn add_sample(&self, sample: &Sample) -> Result<()> {
        self.line(&Line::Sample(*sample))
    }

    /// Adds the state of the device in a round of the measurement that was begun last.
    pub fn add_reading(&self, round: u32, reading: &Reading) -> Result<()> {
        let state = reading.clone();
        self.line(&Line::Reading { round, state })
    }

    /// Ends the measurement that was begun last. One without this line was cut off; its samples count.
    pub fn end_measurement(&self, result: &Measurement) -> Result<()> {
        let subjects = result.subjects.iter().map(|subject| Left {
            settled: subject.settled,
            trouble: subject.trouble.clone(),
        });
        self.line(&Line::End(Ended {
            stop: result.stop,
            rounds: result.rounds,
            turns: result.turns,
            subjects: subjects.collect(),
        }))
    }

    /// Adds the counters of one call, with as many of its lines as are kept ([`ProfileRecord::trimmed`]).
    pub fn add_profile(&self, profile: &ProfileRecord) -> Result<()> {
        self.line(&Line::Profile(Box::new(profile.clone().trimmed())))
    }

    /// Replaces the result of the first inspection of a subject.
    pub fn set_inspection(&self, measurement: usize, subject: usize, found: &Inspection) -> Result<()> {
        let found = found.clone();
        self.line(&Line::Inspection {
            measurement,
            subject,
            found,
        })
    }

    /// Closes the run. A run without this line was cut off, or is still being written.
    pub fn finish(self) -> Result<()> {
        let measurements = self.measurements.get();
        self.line(&Line::Finished { measurements })
    }

    /// Closes the run, or removes its file if nothing was measured: it would be the latest, and show nothing.
    pub fn finish_with(self, report: &Report) -> Result<()> {
        if report.is_empty() {
            return std::fs::remove_file(&self.path).map_err(inaccessible(&self.path));
        }
        self.finish()
    }

    /// One write for each line, so that a kill leaves whole lines and at most one torn one.
    fn line(&self, line: &Line) -> Result<()> {
        let mut bytes = serde_json::to_vec(line).map_err(|error| failed(&self.path, error))?;
        bytes.push(b'\n');
        (&self.file).write_all(&bytes).map_err(inaccessible(&self.path))
    }
}
