//! Evidence as text: JSON lines, which can be imported again, and CSV for spreadsheets.

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};

use super::read::{Recorded, RunRow};
use super::{MeasurementId, SCHEMA_VERSION, Selector, Store, to_json};
use crate::error::BenchError;

/// What the first line of an export names itself.
pub const EXPORT_FORMAT: &str = "flashcore-evidence";

/// One line of an export.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Header { format: String, schema: u32 },
    Run(Box<RunRow>),
    Measurement(Box<Recorded>),
}

/// What an import brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Runs added.
    pub runs: u32,
    /// Runs that were there already.
    pub known: u32,
    /// Samples added.
    pub samples: u32,
}

impl Store {
    /// Writes runs as JSON lines: a header with the schema's version, then each run and its measurements.
    ///
    /// # Errors
    /// [`BenchError::Store`], also for what the writer says.
    pub fn export_jsonl(&self, selector: &Selector, out: &mut dyn Write) -> Result<(), BenchError> {
        let mut line = |line: &Line| writeln!(out, "{}", to_json(line)).map_err(|error| self.written(error));
        line(&Line::Header {
            format: EXPORT_FORMAT.to_string(),
            schema: SCHEMA_VERSION,
        })?;
        for run in self.runs(selector)? {
            line(&Line::Run(Box::new(run.clone())))?;
            for recorded in self.measurements(&run)? {
                line(&Line::Measurement(Box::new(recorded)))?;
            }
        }
        Ok(())
    }

    /// Writes every sample of runs as a line of CSV with what it is about.
    ///
    /// # Errors
    /// As [`export_jsonl`](Store::export_jsonl).
    pub fn export_csv(&self, selector: &Selector, out: &mut dyn Write) -> Result<(), BenchError> {
        let mut line = |fields: &[String]| {
            let quoted: Vec<String> = fields.iter().map(|field| csv_field(field)).collect();
            writeln!(out, "{}", quoted.join(",")).map_err(|error| self.written(error))
        };
        let columns = [
            "run_key",
            "started_at",
            "revision",
            "device_name",
            "device_uuid",
            "driver",
            "case",
            "problem",
            "mode",
            "subject",
            "kernel",
            "module",
            "inspection",
            "round",
            "position",
            "runs",
            "total_us",
            "run_us",
        ];
        line(&columns.map(str::to_string))?;
        for run in self.runs(selector)? {
            for recorded in self.measurements(&run)? {
                for sample in &recorded.samples {
                    let subject = &recorded.measurement.subjects[sample.subject].info;
                    let inspection = recorded.inspections[sample.subject].as_ref();
                    line(&[
                        run.key.clone(),
                        run.identity.started_at.to_string(),
                        run.identity.revision.clone(),
                        run.identity.device.name.clone(),
                        run.identity.device.uuid.clone(),
                        run.identity.device.driver.clone(),
                        recorded.case.name.clone(),
                        recorded.case.problem.to_string(),
                        recorded.measurement.mode.to_string(),
                        subject.label.clone(),
                        subject.kernel.clone().unwrap_or_default(),
                        subject.module.clone().unwrap_or_default(),
                        inspection
                            .map_or("none", |found| found.rejected.map_or("pass", |reason| reason.name()))
                            .to_string(),
                        sample.round.to_string(),
                        sample.position.to_string(),
                        sample.runs.to_string(),
                        format!("{:.3}", sample.total_us),
                        format!("{:.5}", sample.run_us()),
                    ])?;
                }
            }
        }
        Ok(())
    }

    /// Reads an export and adds the runs that are not there yet, all or nothing.
    ///
    /// # Errors
    /// [`BenchError::Schema`] for an export of another schema version or something that is no export;
    /// [`BenchError::Store`].
    pub fn import_jsonl(&self, what: &str, input: &mut dyn BufRead) -> Result<Imported, BenchError> {
        self.execute("BEGIN IMMEDIATE", [])?;
        let imported = self.import_lines(what, input);
        self.execute(if imported.is_ok() { "COMMIT" } else { "ROLLBACK" }, [])?;
        imported
    }

    fn import_lines(&self, what: &str, input: &mut dyn BufRead) -> Result<Imported, BenchError> {
        let refuse = |found: String| BenchError::Schema {
            what: what.to_string(),
            found,
            supported: SCHEMA_VERSION,
            remedy: "export it again with a build of this schema",
        };
        let mut imported = Imported::default();
        let mut current = None;
        let mut header_seen = false;
        for (number, line) in input.lines().enumerate() {
            let line = line.map_err(|error| self.written(error))?;
            if line.trim().is_empty() {
                continue;
            }
            let parsed: Result<Line, _> = serde_json::from_str(&line);
            match parsed {
                Ok(Line::Header { format, schema }) if format == EXPORT_FORMAT && schema == SCHEMA_VERSION => {
                    header_seen = true;
                }
                Ok(Line::Header { schema, .. }) => return Err(refuse(schema.to_string())),
                _ if !header_seen => return Err(refuse("none: its first line is no header of an export".to_string())),
                Ok(Line::Run(run)) => {
                    current = None;
                    if self.has_run(&run.key)? {
                        imported.known += 1;
                    } else {
                        imported.runs += 1;
                        let options = to_json(&run.options);
                        current = Some((
                            self.insert_run(&run.key, &run.identity, &options, run.floor_us)?,
                            run.key,
                        ));
                    }
                }
                Ok(Line::Measurement(recorded)) => {
                    if let Some((run, key)) = &current
                        && *key == recorded.run_key
                    {
                        let id = self.insert_recorded(*run, &recorded)?;
                        imported.samples += recorded.samples.len() as u32;
                        self.end_measurement(&id, &recorded.measurement)?;
                    }
                }
                Err(error) => {
                    return Err(BenchError::Store {
                        path: what.to_string(),
                        reason: format!("line {}: {error}", number + 1),
                    });
                }
            }
        }
        if header_seen {
            Ok(imported)
        } else {
            Err(refuse("none: it is empty".to_string()))
        }
    }

    fn insert_recorded(&self, run: super::RunId, recorded: &Recorded) -> Result<MeasurementId, BenchError> {
        let measurement = &recorded.measurement;
        let infos = measurement.subjects.iter().map(|subject| subject.info.clone());
        let subjects: Vec<_> = infos.zip(recorded.inspections.iter().cloned()).collect();
        let id = self.begin_measurement(run, &recorded.case, measurement.mode, measurement.baseline, &subjects)?;
        for sample in &recorded.samples {
            self.add_sample(&id, sample)?;
        }
        for (round, reading) in &recorded.rounds {
            self.add_reading(&id, *round, reading)?;
        }
        Ok(id)
    }

    fn has_run(&self, key: &str) -> Result<bool, BenchError> {
        self.connection
            .query_row("SELECT count(*) FROM runs WHERE run_key = ?1", [key], |row| {
                row.get::<_, i64>(0)
            })
            .map(|count| count > 0)
            .map_err(|error| self.failed(error))
    }

    fn written(&self, error: std::io::Error) -> BenchError {
        BenchError::Store {
            path: self.path.display().to_string(),
            reason: error.to_string(),
        }
    }
}

/// Quotes a field where commas, quotes or line ends need it (RFC 4180).
pub(crate) fn csv_field(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_string()
    }
}
