//! The lines of a run's file.

use serde::{Deserialize, Serialize};

use super::bundle::{BundleHeader, Row};
use crate::defences::Inspection;
use crate::profile::ProfileRecord;
use crate::{Case, Mode, Options, Reading, RunIdentity, Sample, Stop, SubjectInfo, Turns};

/// The format's name, in the first line of a run.
pub const FORMAT: &str = "flashcore-evidence";
/// Version of the lines.
pub const SCHEMA_VERSION: u32 = 3;

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Line {
    /// The first line: what the run is about.
    Run(Box<Header>),
    /// The first line of a run in a bundle.
    Bundle(Box<BundleHeader>),
    /// A problem of a run in a bundle.
    Row(Box<Row>),
    /// A measurement begins. The samples, readings and the end that follow belong to it.
    Measurement(Box<Begun>),
    /// A timed batch.
    Sample(Sample),
    /// The state of the device in a round.
    Reading { round: u32, state: Reading },
    /// The measurement ended.
    End(Ended),
    /// The result of a later inspection, which replaces that of the first one. `measurement` counts from 0 in the run.
    Inspection {
        measurement: usize,
        subject: usize,
        found: Inspection,
    },
    /// The counters of one call of a subject. It belongs to no measurement.
    Profile(Box<ProfileRecord>),
    /// The last line: the run ended normally.
    Finished { measurements: usize },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) format: String,
    pub(super) schema: u32,
    pub(super) key: String,
    pub(super) identity: RunIdentity,
    pub(super) options: Options,
    pub(super) floor_us: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begun {
    pub(super) case: Case,
    pub(super) mode: Mode,
    pub(super) baseline: usize,
    pub(super) subjects: Vec<Entered>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entered {
    pub(super) info: SubjectInfo,
    pub(super) inspection: Option<Inspection>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) stop: Stop,
    pub(super) rounds: u32,
    pub(super) turns: Option<Turns>,
    pub(super) subjects: Vec<Left>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Left {
    pub(super) settled: bool,
    pub(super) trouble: Option<String>,
}

/// How lines begin. The writer puts the kind of a line first, so that lines are counted without parsing them.
pub(super) const HEADER: &[u8] = b"{\"run\":";
pub(super) const MEASUREMENT: &[u8] = b"{\"measurement\":";
pub(super) const SAMPLE: &[u8] = b"{\"sample\":";
pub(super) const PROFILE: &[u8] = b"{\"profile\":";
pub(super) const FINISHED: &[u8] = b"{\"finished\":";
