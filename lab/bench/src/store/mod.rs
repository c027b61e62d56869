//! The evidence store: every sample with the identity of what it is about, in one SQLite file a host.
//!
//! A sample is committed as it is taken (write-ahead log), so a process that is killed loses at most the sample
//! in flight. Summaries, ratios and verdicts are not stored: they are computed from the samples, by the same
//! code, whenever they are asked for.

mod export;
mod read;
mod schema;

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::{Connection, params};

pub(crate) use export::csv_field;
pub use export::{EXPORT_FORMAT, Imported};
pub use read::{Recorded, RunRow, Selector};
pub use schema::SCHEMA_VERSION;

use crate::defences::Inspection;
use crate::error::BenchError;
use crate::identity::{RunIdentity, SubjectInfo, host_name};
use crate::measure::{Measurement, Sample};
use crate::options::{Mode, Options, Turns};
use crate::problems::{Case, least_bytes};
use crate::telemetry::Reading;

/// How long a writer waits for another process's transaction.
const BUSY: Duration = Duration::from_secs(10);

/// An open evidence file.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

/// One invocation in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunId(i64);

/// One measurement in the store, with the ids of its subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasurementId {
    id: i64,
    subjects: Vec<i64>,
}

/// Where evidence lies unless said otherwise: `$XDG_DATA_HOME/flashcore/evidence/HOST.sqlite`, with
/// `~/.local/share` in place of an unset variable; `None` where there is no home either.
pub fn default_path() -> Option<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let data = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")))?;
    let host: String = host_name()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                c
            } else {
                '-'
            }
        })
        .collect();
    Some(data.join("flashcore/evidence").join(format!("{host}.sqlite")))
}

impl Store {
    /// Opens an evidence file, and makes it if there is none.
    ///
    /// # Errors
    /// [`BenchError::Schema`] for a file of a newer build or of another program; [`BenchError::Store`].
    pub fn open(path: &Path) -> Result<Store, BenchError> {
        let failed = |reason: String| BenchError::Store {
            path: path.display().to_string(),
            reason,
        };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|error| failed(error.to_string()))?;
        }
        let sqlite = |error: rusqlite::Error| failed(error.to_string());
        let mut connection = Connection::open(path).map_err(sqlite)?;
        connection.busy_timeout(BUSY).map_err(sqlite)?;
        schema::prepare(&mut connection, &path.display().to_string())?;
        // Survives a kill with every commit; only a crash of the machine may lose the last ones.
        connection.pragma_update(None, "journal_mode", "WAL").map_err(sqlite)?;
        connection
            .pragma_update(None, "synchronous", "NORMAL")
            .map_err(sqlite)?;
        connection.pragma_update(None, "foreign_keys", true).map_err(sqlite)?;
        Ok(Store {
            connection,
            path: path.to_path_buf(),
        })
    }

    /// A store that is gone with the process: for comparing exports.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn in_memory() -> Result<Store, BenchError> {
        Store::open(Path::new(":memory:"))
    }

    /// Opens [`default_path`].
    ///
    /// # Errors
    /// As [`Store::open`], and where neither XDG_DATA_HOME nor HOME is set.
    pub fn open_default() -> Result<Store, BenchError> {
        let path = default_path().ok_or_else(|| BenchError::Store {
            path: "(no place)".to_string(),
            reason: "neither XDG_DATA_HOME nor HOME is set; name a file".to_string(),
        })?;
        Store::open(&path)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins an invocation. `floor_us` is what an empty kernel takes on the device.
    ///
    /// # Errors
    /// [`BenchError::Store`]; also for all others.
    pub fn begin_run(&self, run: &RunIdentity, options: &Options, floor_us: Option<f64>) -> Result<RunId, BenchError> {
        let nanos = UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_nanos());
        let key = format!("{nanos:x}-{:x}", std::process::id());
        self.insert_run(&key, run, &to_json(options), floor_us)
    }

    fn insert_run(
        &self,
        key: &str,
        run: &RunIdentity,
        options: &str,
        floor_us: Option<f64>,
    ) -> Result<RunId, BenchError> {
        let device = &run.device;
        self.insert(
            "INSERT INTO runs (run_key, started_at, host, device, device_name, device_uuid, driver, architecture, units, \
             l2_bytes, revision, version, protocol, options, floor_us) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
            params![
                key,
                run.started_at as i64,
                run.host,
                device.device,
                device.name,
                device.uuid,
                device.driver,
                device.architecture,
                device.units,
                device.l2_bytes as i64,
                run.revision,
                run.version,
                run.protocol,
                options,
                floor_us
            ],
        )
        .map(RunId)
    }

    /// Begins a measurement of subjects, each with what its inspection found.
    ///
    /// # Errors
    /// As [`begin_run`](Store::begin_run).
    pub fn begin_measurement(
        &self,
        run: RunId,
        case: &Case,
        mode: Mode,
        baseline: usize,
        subjects: &[(SubjectInfo, Option<Inspection>)],
    ) -> Result<MeasurementId, BenchError> {
        let problem = &case.problem;
        let id = self.insert(
            "INSERT INTO measurements (run_id, case_name, problem, problem_json, flops, bytes, mode, baseline) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![
                run.0,
                case.name,
                problem.to_string(),
                to_json(problem),
                problem.flops(),
                least_bytes(problem),
                mode.name(),
                baseline as i64
            ],
        )?;
        let insert = |(position, (info, inspection)): (usize, &(SubjectInfo, Option<Inspection>))| {
            self.insert(
                "INSERT INTO subjects (measurement_id, position, label, kernel, module, info, inspection) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    id,
                    position as i64,
                    info.label,
                    info.kernel,
                    info.module,
                    to_json(info),
                    inspection.as_ref().map(to_json)
                ],
            )
        };
        let subjects = subjects.iter().enumerate().map(insert).collect::<Result<_, _>>()?;
        Ok(MeasurementId { id, subjects })
    }

    /// Adds a sample, and returns when it is committed.
    ///
    /// # Errors
    /// As [`begin_run`](Store::begin_run).
    pub fn add_sample(&self, measurement: &MeasurementId, sample: &Sample) -> Result<(), BenchError> {
        let subject = measurement.subjects.get(sample.subject).copied().unwrap_or_default();
        let mut statement = self
            .connection
            .prepare_cached(
                "INSERT INTO samples (subject_id, round, position, runs, total_us, at_us) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )
            .map_err(|error| self.failed(error))?;
        statement
            .execute(params![
                subject,
                sample.round,
                sample.position,
                sample.runs,
                sample.total_us,
                sample.at_us
            ])
            .map(|_| ())
            .map_err(|error| self.failed(error))
    }

    /// Adds the state of the device in a round.
    ///
    /// # Errors
    /// As [`begin_run`](Store::begin_run).
    pub fn add_reading(&self, measurement: &MeasurementId, round: u32, reading: &Reading) -> Result<(), BenchError> {
        self.insert(
            "INSERT INTO readings (measurement_id, round, sm_mhz, memory_mhz, power_w, power_limit_w, temperature_c, \
             throttle) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![
                measurement.id,
                round,
                reading.sm_mhz,
                reading.memory_mhz,
                reading.power_w,
                reading.power_limit_w,
                reading.temperature_c,
                reading.throttle.join(" ")
            ],
        )
        .map(|_| ())
    }

    /// Notes how a measurement ended. One that lacks this was interrupted; its samples count all the same.
    ///
    /// # Errors
    /// As [`begin_run`](Store::begin_run).
    pub fn end_measurement(&self, measurement: &MeasurementId, result: &Measurement) -> Result<(), BenchError> {
        let stop = serde_json::to_value(result.stop).ok();
        self.execute(
            "UPDATE measurements SET stop = ?2, rounds = ?3, turns = ?4 WHERE measurement_id = ?1",
            params![
                measurement.id,
                stop.as_ref().and_then(|stop| stop.as_str()),
                result.rounds,
                result.turns.map(Turns::name)
            ],
        )?;
        for (id, subject) in measurement.subjects.iter().zip(&result.subjects) {
            self.execute(
                "UPDATE subjects SET settled = ?2, trouble = ?3 WHERE subject_id = ?1",
                params![id, subject.settled, subject.trouble],
            )?;
        }
        Ok(())
    }

    /// Notes an inspection made later than the first, in place of it.
    ///
    /// # Errors
    /// As [`begin_run`](Store::begin_run).
    pub fn set_inspection(
        &self,
        measurement: &MeasurementId,
        subject: usize,
        inspection: &Inspection,
    ) -> Result<(), BenchError> {
        let id = measurement.subjects.get(subject).copied().unwrap_or_default();
        self.execute(
            "UPDATE subjects SET inspection = ?2 WHERE subject_id = ?1",
            params![id, to_json(inspection)],
        )
    }

    fn insert(&self, sql: &str, values: impl rusqlite::Params) -> Result<i64, BenchError> {
        self.execute(sql, values)?;
        Ok(self.connection.last_insert_rowid())
    }

    fn execute(&self, sql: &str, values: impl rusqlite::Params) -> Result<(), BenchError> {
        self.connection
            .execute(sql, values)
            .map(|_| ())
            .map_err(|error| self.failed(error))
    }

    fn failed(&self, error: rusqlite::Error) -> BenchError {
        BenchError::Store {
            path: self.path.display().to_string(),
            reason: error.to_string(),
        }
    }
}

/// What is stored here always serialises: plain structs without maps of odd keys.
fn to_json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("\"{error}\""))
}
