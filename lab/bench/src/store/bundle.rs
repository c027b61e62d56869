//! Bundles: runs that are published, `evidence/NAME.jsonl` in the repository. A run of a bundle has a header and a line
//! for each problem and mode, with a time for each round of each subject. Everything else is computed from these, as
//! from the samples of a store. The schema is closed: a reader refuses keys that it does not know.

use std::collections::BTreeMap;

use flashcore_problem::current_name;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::line::{FORMAT, Header, Line, SCHEMA_VERSION};
use super::read::{Recorded, RunRow};
use super::{Store, failed};
use crate::defences::{Inspection, Reason};
use crate::own::sha256;
use crate::{
    BenchError, Case, LaunchMode, Measured, Measurement, Mode, Options, Reading, Result, RunIdentity, Sample, Stop,
    SubjectInfo, Turns, problem_file,
};

/// Version of the lines of bundles.
pub const BUNDLE_SCHEMA: u32 = 1;
/// How the first line of a run in a bundle begins.
pub(crate) const BUNDLE: &[u8] = b"{\"bundle\":";
pub(super) const ROW: &[u8] = b"{\"row\":";

/// What the rows of a run have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleHeader {
    /// [`BUNDLE_SCHEMA`].
    pub schema: u32,
    /// What was done.
    pub kind: Kind,
    /// The run's key in the store that it came from.
    pub key: String,
    /// Where, by which command, and with what build, whose revision has 40 hexadecimal digits.
    pub identity: RunIdentity,
    /// Lowest and highest clock of multiprocessors that was read, MHz. Not of hosts.
    pub sm_mhz: Option<[u32; 2]>,
    /// Power that was allowed, W.
    pub power_limit_w: Option<f64>,
    /// What an empty kernel took, µs.
    pub floor_us: Option<f64>,
    /// Versions of what each peer is made of, by its label.
    pub peers: BTreeMap<String, BTreeMap<String, String>>,
    /// Settings of the protocol.
    pub options: Options,
    /// SHA-256 of the lines of rows.
    pub rows: String,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Kernels and peers were timed in turn.
    Bench,
}

/// A problem in one mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// As in a problem file.
    pub problem: Value,
    /// The mode.
    pub mode: Mode,
    /// What turns were like.
    pub turns: Option<Turns>,
    /// Place of the baseline among the subjects.
    pub baseline: usize,
    /// Those that were timed.
    pub subjects: Vec<Timed>,
}

/// A subject of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timed {
    /// Its label.
    pub subject: String,
    /// The kernel's id, whole, if it is ours.
    pub kernel: Option<String>,
    /// SHA-256 of its module.
    pub module: Option<String>,
    /// How it was launched.
    pub launch: LaunchMode,
    /// Why the inspection rejected it; null where it passed.
    pub rejected: Option<Reason>,
    /// Largest error against float64 in the inspection, absolute, and the Frobenius norm of the error over that of the
    /// output; null where nothing was inspected.
    pub error: Option<[f64; 2]>,
    /// Time of a run in each round, nanoseconds; null where the subject had left.
    pub round_ns: Vec<Option<u64>>,
}

impl BundleHeader {
    /// The header of the same run in a store.
    pub(super) fn header(&self) -> Header {
        Header {
            format: FORMAT.to_string(),
            schema: SCHEMA_VERSION,
            key: self.key.clone(),
            identity: self.identity.clone(),
            options: self.options.clone(),
            floor_us: self.floor_us,
        }
    }
}

impl Row {
    /// The measurement; its statistics are still to be computed.
    pub(super) fn recorded(self, header: &BundleHeader) -> std::result::Result<Recorded, String> {
        let text = Value::Array(vec![self.problem]).to_string();
        let mut cases = problem_file::cases(&text, false, None).map_err(|error| error.to_string())?;
        let mut case: Case = cases.pop().ok_or("it has no problem")?;
        case.name = current_name(&case.name).into_owned();
        let (mut subjects, mut inspections, mut samples, mut rounds) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (subject, timed) in self.subjects.into_iter().enumerate() {
            rounds = rounds.max(timed.round_ns.len() as u32);
            let times = timed.round_ns.iter().zip(0..);
            samples.extend(times.filter_map(|(ns, round)| {
                Some(Sample {
                    subject,
                    round,
                    position: 0,
                    runs: 1,
                    total_us: (*ns)? as f64 / 1e3,
                    at_us: 0.0,
                })
            }));
            inspections.push(timed.error.map(|[max_abs, frobenius]| Inspection {
                rejected: timed.rejected,
                detail: format!("largest error {max_abs:.1e} against float64"),
                max_abs,
                frobenius,
                skipped: Vec::new(),
            }));
            let info = SubjectInfo {
                kernel: timed.kernel,
                module: timed.module,
                versions: header.peers.get(&timed.subject).cloned().unwrap_or_default(),
                ..SubjectInfo::new(timed.subject, timed.launch)
            };
            let mut measured = Measured::untimed(info, None);
            measured.settled = true;
            subjects.push(measured);
        }
        let mut measurement = Measurement::without_rounds(self.mode, self.baseline, subjects, Stop::Rounds);
        (measurement.rounds, measurement.turns) = (rounds, self.turns);
        Ok(Recorded {
            case,
            measurement,
            inspections,
            samples,
        })
    }

    fn of(recorded: &Recorded) -> std::result::Result<Row, String> {
        let name = &recorded.case.name;
        let text = problem_file::text(&recorded.case).ok_or(format!("no problem file can say what {name} is"))?;
        let problem: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let measurement = &recorded.measurement;
        let is_timed = |(_, subject): &(usize, &Measured)| subject.summary.is_some();
        let timed: Vec<(usize, &Measured)> = measurement.subjects.iter().enumerate().filter(is_timed).collect();
        let baseline = timed.iter().position(|(place, _)| *place == measurement.baseline);
        let of_subject = |(place, subject): &(usize, &Measured)| {
            let mut round_ns = vec![None; measurement.rounds as usize];
            for sample in recorded.samples.iter().filter(|sample| sample.subject == *place) {
                if let Some(ns) = round_ns.get_mut(sample.round as usize) {
                    *ns = Some((sample.run_us() * 1e3).round() as u64);
                }
            }
            let found = recorded.inspections[*place].as_ref();
            Timed {
                subject: subject.info.label.clone(),
                kernel: subject.info.kernel.clone(),
                module: subject.info.module.clone(),
                launch: subject.info.launch,
                rejected: found.and_then(|found| found.rejected),
                error: found.map(|found| [found.max_abs, found.frobenius].map(few_digits)),
                round_ns,
            }
        };
        Ok(Row {
            problem: problem.get(0).cloned().unwrap_or_default(),
            mode: measurement.mode,
            turns: measurement.turns,
            baseline: baseline.ok_or(format!("the baseline of {name} was not timed"))?,
            subjects: timed.iter().map(of_subject).collect(),
        })
    }
}

/// Three digits are what errors are worth.
fn few_digits(error: f64) -> f64 {
    format!("{error:.2e}").parse().unwrap_or(error)
}

/// SHA-256 of the lines of rows, with their line ends.
pub fn hash_of_rows<'l>(lines: impl IntoIterator<Item = &'l [u8]>) -> String {
    sha256(lines.into_iter().collect::<Vec<_>>().concat())
}

impl Store {
    /// A run as part of a bundle. `revision` gives the 40 digits of an abbreviated commit.
    ///
    /// # Errors
    /// Profiles, or a problem that no problem file can say; what `revision` says.
    pub fn bundled(&self, run: &RunRow, revision: &dyn Fn(&str) -> Result<String>) -> Result<Vec<u8>> {
        let refused = |why: String| BenchError::Given(format!("run {} cannot be published: {why}", run.key));
        let recorded = self.measurements(run)?;
        let mut lines = Vec::new();
        let timed = recorded
            .iter()
            .filter(|recorded| !matches!(recorded.measurement.stop, Stop::CutOff | Stop::Predicted));
        for recorded in timed {
            let row = Row::of(recorded).map_err(refused)?;
            lines.push(line_of(&Line::Row(Box::new(row))).map_err(|error| failed(run.path(), error))?);
        }
        if lines.is_empty() {
            return Err(refused("it has no times".to_string()));
        }
        let readings: Vec<&Reading> = recorded.iter().flat_map(|of| &of.measurement.readings).collect();
        let clocks = || readings.iter().filter_map(|reading| reading.sm_mhz);
        let subjects = recorded.iter().flat_map(|of| &of.measurement.subjects);
        let peers = subjects.filter(|subject| subject.info.is_peer() && subject.summary.is_some());
        let mut identity = run.identity.clone();
        identity.revision = revision(&identity.revision)?;
        // Names of hosts say nothing elsewhere.
        identity.host.clear();
        if identity.device.device == "cpu" {
            identity.device.uuid.clear();
        }
        let header = BundleHeader {
            schema: BUNDLE_SCHEMA,
            kind: Kind::Bench,
            key: run.key.clone(),
            identity,
            sm_mhz: clocks().min().zip(clocks().max()).map(|(low, high)| [low, high]),
            power_limit_w: readings.iter().find_map(|reading| reading.power_limit_w),
            floor_us: run.floor_us,
            peers: peers
                .map(|peer| (peer.info.label.clone(), peer.info.versions.clone()))
                .collect(),
            options: run.options.clone(),
            rows: hash_of_rows(lines.iter().map(Vec::as_slice)),
        };
        let header = line_of(&Line::Bundle(Box::new(header))).map_err(|error| failed(run.path(), error))?;
        Ok(std::iter::once(header).chain(lines).collect::<Vec<_>>().concat())
    }
}

fn line_of(line: &Line) -> serde_json::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    Ok(bytes)
}
