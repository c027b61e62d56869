//! Runs in and out of a store: the lines of their files, and CSV for spreadsheets.

use std::io::Write;
use std::path::Path;

use flashcore_ir::files;

use super::read::RunRow;
use super::{Selector, Store, failed, inaccessible, split};
use crate::{BenchError, Result};

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

const COLUMNS: &str = "run_key,started_at,revision,device_name,device_uuid,driver,case,problem,mode,subject,kernel,module,\
inspection,round,position,runs,total_us,run_us";

impl Store {
    /// Writes the lines of runs one after the other. Torn lines are left out.
    pub fn export_jsonl(&self, selector: &Selector, out: &mut dyn Write) -> Result<()> {
        for run in self.runs(selector)? {
            out.write_all(&run.bytes).map_err(inaccessible(self.path()))?;
        }
        Ok(())
    }

    /// Writes every sample of runs as a line of CSV with what it is about.
    pub fn export_csv(&self, selector: &Selector, out: &mut dyn Write) -> Result<()> {
        let mut line = |text: String| writeln!(out, "{text}").map_err(|error| failed(self.path(), error));
        line(COLUMNS.to_string())?;
        for run in self.runs(selector)? {
            let (identity, device) = (&run.identity, &run.identity.device);
            for recorded in self.measurements(&run)? {
                for sample in &recorded.samples {
                    let subject = &recorded.measurement.subjects[sample.subject].info;
                    let inspection = match &recorded.inspections[sample.subject] {
                        None => "none".to_string(),
                        Some(found) => found.rejected.map_or("pass".to_string(), |reason| reason.to_string()),
                    };
                    line(csv_line(&[
                        run.key.clone(),
                        identity.started_at.to_string(),
                        identity.revision.clone(),
                        device.name.clone(),
                        device.uuid.clone(),
                        device.driver.clone(),
                        recorded.case.name.clone(),
                        recorded.case.problem.to_string(),
                        recorded.measurement.mode.to_string(),
                        subject.label.clone(),
                        subject.kernel.clone().unwrap_or_default(),
                        subject.module.clone().unwrap_or_default(),
                        inspection,
                        sample.round.to_string(),
                        sample.position.to_string(),
                        sample.runs.to_string(),
                        format!("{:.3}", sample.total_us),
                        format!("{:.5}", sample.run_us()),
                    ]))?;
                }
            }
        }
        Ok(())
    }

    /// Adds the runs of a file that are not there yet. Every line is checked before the first run is added.
    ///
    /// # Errors
    /// A file of another schema version, without evidence or with a wrong line; [`BenchError::Store`].
    pub fn import_jsonl(&self, file: &Path) -> Result<Imported> {
        // The file was given; nothing is wrong with the store.
        let wrong = |why: String| BenchError::Given(format!("{}: {why}", file.display()));
        let (given, bytes) = (Store::at(file), files::read_capped(file, files::LARGE));
        let bytes = bytes.map_err(|error| wrong(error.to_string()))?;
        let mut runs = Vec::new();
        for (part, first) in split(&bytes) {
            let run = RunRow::scan(file, part, first).map_err(|error| given.blamed(error))?;
            let run = run.ok_or_else(|| wrong("it has no whole line, so no run".to_string()))?;
            given.measurements(&run)?;
            given.profiles(&run)?;
            // The key becomes the name of a file.
            if run.key.is_empty() || !run.key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
                let why = format!("`{}` is no key: letters, digits and - are", run.key);
                return Err(wrong(why));
            }
            runs.push(run);
        }
        let known = self.runs(&Selector::All)?;
        let mut imported = Imported::default();
        for run in runs {
            if known.iter().any(|known| known.key == run.key) {
                imported.known += 1;
                continue;
            }
            let to = self.path().join(format!("{}.jsonl", run.key));
            flashcore::unstable::files::write_whole(&to, &run.bytes).map_err(inaccessible(&to))?;
            imported.runs += 1;
            imported.samples += run.samples;
        }
        Ok(imported)
    }
}

/// A line of CSV. Fields with commas, quotes or line ends are quoted (RFC 4180).
pub(crate) fn csv_line(fields: &[String]) -> String {
    let quoted = fields.iter().map(|field| {
        if field.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", field.replace('"', "\"\""))
        } else {
            field.clone()
        }
    });
    quoted.collect::<Vec<_>>().join(",")
}
