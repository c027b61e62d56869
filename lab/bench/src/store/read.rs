//! Reading evidence: measurements rebuilt from their samples.

use rusqlite::{Row, params};
use serde::{Deserialize, Serialize};

use super::Store;
use crate::defences::Inspection;
use crate::error::BenchError;
use crate::identity::{DeviceIdentity, RunIdentity, SubjectInfo};
use crate::measure::{Measured, Measurement, Sample};
use crate::options::{Mode, Options};
use crate::problems::Case;
use crate::protocol::Stop;
use crate::stats::{RESAMPLES, Ratio, Summary};
use crate::telemetry::Reading;
use crate::verdict::Verdict;

/// An invocation in the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// Its key, unique among all hosts.
    pub key: String,
    /// Where and with what build.
    pub identity: RunIdentity,
    /// With which settings.
    pub options: Options,
    /// What an empty kernel took, µs.
    pub floor_us: Option<f64>,
    /// Measurements made.
    pub measurements: u32,
    /// Samples taken.
    pub samples: u32,
}

/// A measurement from the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// Key of its run.
    pub run_key: String,
    /// The problem.
    pub case: Case,
    /// Rebuilt from its samples.
    pub measurement: Measurement,
    /// What the inspection of each subject found.
    pub inspections: Vec<Option<Inspection>>,
    /// Every sample, in the order taken.
    pub samples: Vec<Sample>,
    /// The state of the device by round.
    pub rounds: Vec<(u32, Reading)>,
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

impl Store {
    /// The runs selected, oldest first.
    ///
    /// # Errors
    /// [`BenchError::Store`].
    pub fn runs(&self, selector: &Selector) -> Result<Vec<RunRow>, BenchError> {
        let mut statement = self
            .connection
            .prepare(
                "SELECT run_key, started_at, host, device, device_name, device_uuid, driver, architecture, units, \
                 l2_bytes, revision, version, protocol, options, floor_us, \
                 (SELECT count(*) FROM measurements m WHERE m.run_id = r.run_id), \
                 (SELECT count(*) FROM measurements m JOIN subjects USING (measurement_id) JOIN samples USING (subject_id) \
                  WHERE m.run_id = r.run_id) \
                 FROM runs r ORDER BY run_id",
            )
            .map_err(|error| self.failed(error))?;
        let rows = statement
            .query_map([], run_row)
            .and_then(Iterator::collect::<Result<Vec<RunRow>, _>>)
            .map_err(|error| self.failed(error))?;
        Ok(match selector {
            Selector::All => rows,
            Selector::Latest => rows.into_iter().next_back().into_iter().collect(),
            Selector::Prefix(prefix) => rows
                .into_iter()
                .filter(|row| row.key.starts_with(prefix) || row.identity.revision.starts_with(prefix))
                .collect(),
        })
    }

    /// The measurements of a run, in the order made.
    ///
    /// # Errors
    /// [`BenchError::Store`].
    pub fn measurements(&self, run: &RunRow) -> Result<Vec<Recorded>, BenchError> {
        type Head = (i64, String, String, String, i64, Option<String>, u32, Option<String>);
        let failed = |error| self.failed(error);
        let mut statement = self
            .connection
            .prepare(
                "SELECT measurement_id, case_name, problem_json, mode, baseline, stop, rounds, turns \
                 FROM measurements JOIN runs USING (run_id) WHERE run_key = ?1 ORDER BY measurement_id",
            )
            .map_err(failed)?;
        let heads = statement
            .query_map([&run.key], |row| {
                Ok((
                    row.get(0)?,
                    row.get(1)?,
                    row.get(2)?,
                    row.get(3)?,
                    row.get(4)?,
                    row.get(5)?,
                    row.get(6)?,
                    row.get(7)?,
                ))
            })
            .and_then(Iterator::collect::<Result<Vec<Head>, _>>)
            .map_err(failed)?;
        heads
            .into_iter()
            .map(|(id, name, problem, mode, baseline, stop, rounds, turns)| {
                let case = Case {
                    name,
                    problem: self.from_json(&problem)?,
                };
                let stop = stop.and_then(|stop| serde_json::from_value(stop.into()).ok());
                let rounds_made = rounds;
                let (subjects, samples) = self.subjects(id)?;
                let readings = self.readings(id)?;
                let mode: Mode = mode.parse()?;
                let measurement = rebuild(
                    &run.options,
                    mode,
                    baseline as usize,
                    stop,
                    rounds_made,
                    &subjects,
                    &samples,
                );
                let inspections = subjects.into_iter().map(|subject| subject.inspection).collect();
                Ok(Recorded {
                    run_key: run.key.clone(),
                    case,
                    measurement: Measurement {
                        turns: turns.map(|turns| turns.parse()).transpose()?,
                        readings: readings.iter().map(|(_, reading)| reading.clone()).collect(),
                        ..measurement
                    },
                    inspections,
                    samples,
                    rounds: readings,
                })
            })
            .collect()
    }

    fn subjects(&self, measurement: i64) -> Result<(Vec<SubjectRow>, Vec<Sample>), BenchError> {
        type Raw = (i64, String, Option<String>, bool, Option<String>);
        let failed = |error| self.failed(error);
        let mut statement = self
            .connection
            .prepare(
                "SELECT subject_id, info, inspection, settled, trouble FROM subjects \
                 WHERE measurement_id = ?1 ORDER BY position",
            )
            .map_err(failed)?;
        let raw = statement
            .query_map([measurement], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
            })
            .and_then(Iterator::collect::<Result<Vec<Raw>, _>>)
            .map_err(failed)?;
        let (mut subjects, mut samples) = (Vec::new(), Vec::new());
        for (position, (id, info, inspection, settled, trouble)) in raw.into_iter().enumerate() {
            subjects.push(SubjectRow {
                info: self.from_json(&info)?,
                inspection: inspection.map(|text| self.from_json(&text)).transpose()?,
                settled,
                trouble,
            });
            let mut statement = self
                .connection
                .prepare_cached(
                    "SELECT sample_id, round, position, runs, total_us, at_us FROM samples WHERE subject_id = ?1",
                )
                .map_err(failed)?;
            let found = statement
                .query_map(params![id], |row| {
                    let sample = Sample {
                        subject: position,
                        round: row.get(1)?,
                        position: row.get(2)?,
                        runs: row.get(3)?,
                        total_us: row.get(4)?,
                        at_us: row.get(5)?,
                    };
                    Ok((row.get::<_, i64>(0)?, sample))
                })
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(failed)?;
            samples.extend(found);
        }
        samples.sort_by_key(|(id, _)| *id);
        Ok((subjects, samples.into_iter().map(|(_, sample)| sample).collect()))
    }

    fn readings(&self, measurement: i64) -> Result<Vec<(u32, Reading)>, BenchError> {
        let mut statement = self
            .connection
            .prepare(
                "SELECT round, sm_mhz, memory_mhz, power_w, power_limit_w, temperature_c, throttle FROM readings \
                 WHERE measurement_id = ?1 ORDER BY reading_id",
            )
            .map_err(|error| self.failed(error))?;
        statement
            .query_map([measurement], |row| {
                let throttle: String = row.get(6)?;
                Ok((
                    row.get(0)?,
                    Reading {
                        sm_mhz: row.get(1)?,
                        memory_mhz: row.get(2)?,
                        power_w: row.get(3)?,
                        power_limit_w: row.get(4)?,
                        temperature_c: row.get(5)?,
                        throttle: throttle.split_whitespace().map(str::to_string).collect(),
                    },
                ))
            })
            .and_then(Iterator::collect)
            .map_err(|error| self.failed(error))
    }

    #[allow(clippy::wrong_self_convention)] // Reads JSON; `self` is for the error.
    fn from_json<T: serde::de::DeserializeOwned>(&self, text: &str) -> Result<T, BenchError> {
        serde_json::from_str(text).map_err(|error| BenchError::Store {
            path: self.path.display().to_string(),
            reason: format!("a stored value cannot be read: {error}"),
        })
    }
}

/// A subject as it is stored.
pub(super) struct SubjectRow {
    pub(super) info: SubjectInfo,
    pub(super) inspection: Option<Inspection>,
    pub(super) settled: bool,
    pub(super) trouble: Option<String>,
}

impl Recorded {
    /// The same measurement with another subject as the baseline: the one of that label, or whose label begins so. Every
    /// ratio is paired by round again, so nothing is lost. Unchanged where there is no such subject.
    pub fn with_baseline(mut self, label: &str, options: &Options) -> Recorded {
        let subjects = &mut self.measurement.subjects;
        let place = |wanted: &dyn Fn(&str) -> bool| subjects.iter().position(|subject| wanted(&subject.info.label));
        let Some(baseline) = place(&|known| known == label).or_else(|| place(&|known| known.starts_with(label))) else {
            return self;
        };
        for (index, subject) in subjects.iter_mut().enumerate() {
            subject.ratio = paired_ratio(&self.samples, index, baseline, options);
            subject.verdict = subject.ratio.map(|ratio| Verdict::of(&ratio, options.threshold));
        }
        self.measurement.baseline = baseline;
        self
    }
}

/// A subject's time relative to the baseline's over the rounds that have both; `None` for the baseline itself.
fn paired_ratio(samples: &[Sample], subject: usize, baseline: usize, options: &Options) -> Option<Ratio> {
    if subject == baseline {
        return None;
    }
    let of = |subject: usize| samples.iter().filter(move |sample| sample.subject == subject);
    let in_round = |round: u32| of(baseline).find(|sample| sample.round == round).map(Sample::run_us);
    let pairs = of(subject).filter_map(|sample| Some((sample.run_us(), in_round(sample.round)?)));
    let (ours, theirs): (Vec<f64>, Vec<f64>) = pairs.unzip();
    Ratio::paired(&ours, &theirs, options.confidence, RESAMPLES)
}

/// Computes anew what [`measure`](crate::measure) computed.
fn rebuild(
    options: &Options,
    mode: Mode,
    baseline: usize,
    stop: Option<Stop>,
    rounds: u32,
    subjects: &[SubjectRow],
    samples: &[Sample],
) -> Measurement {
    let of = |subject: usize| samples.iter().filter(move |sample| sample.subject == subject);
    let measured = |(index, row): (usize, &SubjectRow)| {
        let times: Vec<f64> = of(index).map(Sample::run_us).collect();
        let ratio = paired_ratio(samples, index, baseline, options);
        Measured {
            info: row.info.clone(),
            summary: Summary::of(&times, options.confidence),
            ratio,
            verdict: ratio.map(|ratio| Verdict::of(&ratio, options.threshold)),
            settled: row.settled,
            trouble: row.trouble.clone(),
        }
    };
    Measurement {
        mode,
        turns: None,
        baseline,
        subjects: subjects.iter().enumerate().map(measured).collect(),
        // Without a note of how it ended it was interrupted, which is to say: out of time.
        stop: stop.unwrap_or(Stop::Budget),
        rounds: rounds.max(samples.iter().map(|sample| sample.round + 1).max().unwrap_or(0)),
        readings: Vec::new(),
    }
}

fn run_row(row: &Row<'_>) -> rusqlite::Result<RunRow> {
    let options: String = row.get(13)?;
    Ok(RunRow {
        key: row.get(0)?,
        identity: RunIdentity {
            started_at: row.get::<_, i64>(1)? as u64,
            host: row.get(2)?,
            device: DeviceIdentity {
                device: row.get(3)?,
                name: row.get(4)?,
                uuid: row.get(5)?,
                driver: row.get(6)?,
                architecture: row.get(7)?,
                units: row.get(8)?,
                l2_bytes: row.get::<_, i64>(9)? as u64,
            },
            revision: row.get(10)?,
            version: row.get(11)?,
            protocol: row.get(12)?,
        },
        options: serde_json::from_str(&options).unwrap_or_default(),
        floor_us: row.get(14)?,
        measurements: row.get(15)?,
        samples: row.get(16)?,
    })
}
