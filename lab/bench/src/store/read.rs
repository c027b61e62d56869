//! Reading runs: measurements rebuilt from their samples.

use std::path::{Path, PathBuf};

use flashcore_problem::current_name;
use serde::Serialize;
use serde_json::Value;

use super::bundle::{BUNDLE_SCHEMA, BundleHeader, ROW};
use super::failed;
use super::line::{Begun, Ended, FINISHED, FORMAT, Line, MEASUREMENT, PROFILE, SAMPLE, SCHEMA_VERSION};
use crate::defences::Inspection;
use crate::profile::ProfileRecord;
use crate::report::add_new;
use crate::{BenchError, Case, Measured, Measurement, Options, Result, RunIdentity, Sample, Stop};

/// A run in the store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunRow {
    /// Its key, unique among all hosts.
    pub key: String,
    /// Where and with what build.
    pub identity: RunIdentity,
    /// With which settings.
    pub options: Options,
    /// What an empty kernel took, µs.
    pub floor_us: Option<f64>,
    /// Names of the problems, each once, in the order measured.
    pub cases: Vec<String>,
    /// Measurements begun.
    pub measurements: u32,
    /// Samples taken.
    pub samples: u32,
    /// Calls whose counters were read: see [`Store::profiles`](super::Store::profiles).
    pub profiles: u32,
    /// Whether it has its closing line. If not, it was cut off or still goes on.
    pub finished: bool,
    /// Bytes of a torn last line, which are dropped; 0 where the last line is whole.
    pub torn_bytes: usize,
    /// Its header, if it is published.
    #[serde(skip)]
    pub bundle: Option<Box<BundleHeader>>,
    #[serde(skip)]
    path: PathBuf,
    /// Number of its first line in the file.
    #[serde(skip)]
    first: usize,
    #[serde(skip)]
    pub(super) bytes: Vec<u8>,
}

/// A measurement from the store, or from a bundle.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The problem.
    pub case: Case,
    /// Rebuilt from its samples.
    pub measurement: Measurement,
    /// What the inspection of each subject found.
    pub inspections: Vec<Option<Inspection>>,
    /// Every sample, in the order taken.
    pub samples: Vec<Sample>,
}

impl RunRow {
    /// The run in a part of a file, which begins at this line. `None` where not even its header was written whole.
    pub(super) fn scan(path: &Path, part: &[u8], first: usize) -> Result<Option<RunRow>> {
        let whole = part.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut lines = part[..whole].split_inclusive(|byte| *byte == b'\n');
        let Some(header) = lines.next() else {
            return Ok(None);
        };
        let refused = |found: u64| {
            BenchError::Given(format!(
                "{} has evidence schema {found}; this build reads {SCHEMA_VERSION}",
                path.display()
            ))
        };
        let not_evidence = || {
            let path = path.display();
            BenchError::Given(format!(
                "{path} is not an evidence file: its first line is not the header of a run"
            ))
        };
        let json: Value = serde_json::from_slice(header).unwrap_or_default();
        match (json["run"]["format"].as_str(), json["run"]["schema"].as_u64()) {
            _ if !json["bundle"].is_null() => {}
            (Some(FORMAT), Some(schema)) if schema == u64::from(SCHEMA_VERSION) => {}
            (Some(FORMAT), Some(schema)) => return Err(refused(schema)),
            _ => return Err(not_evidence()),
        }
        let (header, bundle) = match parse(path, first, header)? {
            Line::Run(header) => (*header, None),
            Line::Bundle(bundle) if bundle.schema != BUNDLE_SCHEMA => return Err(refused(bundle.schema.into())),
            Line::Bundle(bundle) => (bundle.header(), Some(bundle)),
            _ => return Err(not_evidence()),
        };
        let mut run = RunRow {
            key: header.key,
            identity: header.identity,
            options: header.options,
            floor_us: header.floor_us,
            finished: bundle.is_some(),
            bundle,
            cases: Vec::new(),
            measurements: 0,
            samples: 0,
            profiles: 0,
            torn_bytes: part.len() - whole,
            path: path.to_path_buf(),
            first,
            bytes: part[..whole].to_vec(),
        };
        lines.for_each(|line| run.count(line));
        Ok(Some(run))
    }

    /// Counts a line, and adds the problem that it is about. Others are not parsed; a wrong one is an error only where
    /// it is read.
    fn count(&mut self, line: &[u8]) {
        self.samples += u32::from(line.starts_with(SAMPLE));
        self.finished = self.bundle.is_some() || line.starts_with(FINISHED);
        let [is_measurement, is_row, is_profile] = [MEASUREMENT, ROW, PROFILE].map(|kind| line.starts_with(kind));
        self.measurements += u32::from(is_measurement || is_row);
        self.profiles += u32::from(is_profile);
        if !(is_measurement || is_row || is_profile) {
            return;
        }
        let case = match serde_json::from_slice(line) {
            Ok(Line::Measurement(begun)) => begun.case.name,
            Ok(Line::Profile(profile)) => profile.case.name,
            Ok(Line::Row(row)) => {
                let times = row.subjects.iter().flat_map(|subject| &subject.round_ns);
                self.samples += times.flatten().count() as u32;
                let Some(name) = row.problem["name"].as_str() else {
                    return;
                };
                current_name(name).into_owned()
            }
            _ => return,
        };
        add_new(&mut self.cases, case);
    }

    /// The file that it is in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is odd about it, a sentence each, for reports.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.finished {
            notes.push("the run has no closing line: it was cut off, or still goes on".to_string());
        }
        if self.torn_bytes > 0 {
            let bytes = self.torn_bytes;
            notes.push(format!("its last line was torn: {bytes} bytes were dropped"));
        }
        notes
    }

    /// Its measurements, in the order made.
    pub(super) fn read(&self) -> Result<Vec<Recorded>> {
        let mut all: Vec<Recorded> = Vec::new();
        let lines = self.bytes.split_inclusive(|byte| *byte == b'\n').enumerate();
        for (index, line) in lines.skip(1) {
            let number = self.first + index;
            let wrong = |what: &str| failed(&self.path, format!("line {number}: {what}"));
            let none_yet = || wrong("it belongs to a measurement, and none has begun");
            match parse(&self.path, number, line)? {
                Line::Measurement(begun) => all.push(Recorded::begin(*begun)),
                Line::Sample(sample) => {
                    let last = all.last_mut().ok_or_else(none_yet)?;
                    if sample.subject >= last.inspections.len() {
                        return Err(wrong("a sample of a subject that the measurement does not have"));
                    }
                    last.samples.push(sample);
                }
                Line::Reading { state, .. } => {
                    let last = all.last_mut().ok_or_else(none_yet)?;
                    last.measurement.readings.push(state);
                }
                Line::End(ended) => all.last_mut().ok_or_else(none_yet)?.end(ended),
                Line::Inspection {
                    measurement,
                    subject,
                    found,
                } => {
                    let of = all.get_mut(measurement);
                    let inspection = of.and_then(|of| of.inspections.get_mut(subject));
                    *inspection.ok_or_else(|| wrong("an inspection of a subject that is not there"))? = Some(found);
                }
                Line::Row(row) => {
                    let bundle = self
                        .bundle
                        .as_ref()
                        .ok_or_else(|| wrong("a row of a bundle, in a run of a store"))?;
                    all.push(row.recorded(bundle).map_err(|why| wrong(&why))?);
                }
                Line::Run(_) | Line::Bundle(_) => return Err(wrong("a second header")),
                Line::Profile(_) | Line::Finished { .. } => {}
            }
        }
        all.iter_mut().for_each(|recorded| recorded.evaluate(&self.options));
        Ok(all)
    }

    /// Its profiles, in the order made.
    pub(super) fn read_profiles(&self) -> Result<Vec<ProfileRecord>> {
        let lines = self.bytes.split_inclusive(|byte| *byte == b'\n').enumerate();
        let profiles = lines.filter(|(_, line)| line.starts_with(PROFILE));
        let read = |(index, line)| match parse(&self.path, self.first + index, line)? {
            Line::Profile(profile) => Ok(*profile),
            _ => Err(failed(
                &self.path,
                format!("line {}: it is no profile", self.first + index),
            )),
        };
        profiles.map(read).collect()
    }
}

fn parse(path: &Path, number: usize, line: &[u8]) -> Result<Line> {
    serde_json::from_slice(line).map_err(|error| failed(path, format!("line {number}: {error}")))
}

impl Recorded {
    fn begin(begun: Begun) -> Recorded {
        let entered = begun.subjects.into_iter();
        let (subjects, inspections) = entered
            .map(|entered| (Measured::untimed(entered.info, None), entered.inspection))
            .unzip();
        Recorded {
            case: begun.case,
            measurement: Measurement::without_rounds(begun.mode, begun.baseline, subjects, Stop::CutOff),
            inspections,
            samples: Vec::new(),
        }
    }

    fn end(&mut self, ended: Ended) {
        let measurement = &mut self.measurement;
        (measurement.stop, measurement.rounds, measurement.turns) = (ended.stop, ended.rounds, ended.turns);
        for (subject, left) in measurement.subjects.iter_mut().zip(ended.subjects) {
            (subject.settled, subject.trouble) = (left.settled, left.trouble);
        }
    }

    /// Computes what [`measure`](crate::measure) computed.
    fn evaluate(&mut self, options: &Options) {
        let measurement = &mut self.measurement;
        if measurement.stop == Stop::CutOff {
            // The round in which it was cut off counts: some subjects have a sample of it.
            let rounds = self.samples.iter().map(|sample| sample.round + 1);
            measurement.rounds = rounds.max().unwrap_or(0);
        }
        for (index, subject) in measurement.subjects.iter_mut().enumerate() {
            subject.evaluate(&self.samples, index, measurement.baseline, options);
        }
    }

    /// The labels of the subjects, in the order of the measurement.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        let subjects = self.measurement.subjects.iter();
        subjects.map(|subject| subject.info.label.as_str())
    }

    /// Whether a subject has this label, or one that begins so.
    pub fn has(&self, label: &str) -> bool {
        let mut subjects = self.measurement.subjects.iter();
        subjects.any(|subject| subject.info.label.starts_with(label))
    }

    /// The same measurement with another subject as the baseline: the one of that label, or whose label begins so.
    /// Every ratio is paired by round again, so nothing is lost. Unchanged where there is no such subject.
    pub fn with_baseline(mut self, label: &str, options: &Options) -> Recorded {
        let subjects = &self.measurement.subjects;
        let place = |wanted: &dyn Fn(&str) -> bool| subjects.iter().position(|subject| wanted(&subject.info.label));
        let Some(baseline) = place(&|known| known == label).or_else(|| place(&|known| known.starts_with(label))) else {
            return self;
        };
        self.measurement.baseline = baseline;
        self.evaluate(options);
        self
    }
}
