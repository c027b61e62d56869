//! The lines of a run's file.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::defences::Inspection;
use crate::identity::{RunIdentity, SubjectInfo};
use crate::measure::Sample;
use crate::options::{Mode, Options, Turns};
use crate::problems::Case;
use crate::protocol::Stop;
use crate::telemetry::Reading;

/// What the first line of a run names itself.
pub const FORMAT: &str = "flashcore-evidence";
/// Version of the lines. 1 and 2 were SQLite files and exports of them; `scripts/convert_evidence.py` converts both.
pub const SCHEMA_VERSION: u32 = 3;

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Line<'a> {
    /// The first: what the run is about.
    Run(Header<'a>),
    /// A measurement begins. The samples, readings and the end that follow are its.
    Measurement(Begun<'a>),
    /// A timed batch.
    Sample(Sample),
    /// The state of the device in a round.
    Reading { round: u32, state: Cow<'a, Reading> },
    /// The measurement ended.
    End(Ended<'a>),
    /// What a later inspection found, in place of what the first one found.
    Inspection {
        /// Place of the measurement in the run, from 0.
        measurement: usize,
        subject: usize,
        found: Cow<'a, Inspection>,
    },
    /// The last line: the run ended by itself.
    Finished { measurements: usize },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header<'a> {
    pub(super) format: Cow<'a, str>,
    pub(super) schema: u32,
    pub(super) key: Cow<'a, str>,
    pub(super) identity: Cow<'a, RunIdentity>,
    pub(super) options: Cow<'a, Options>,
    pub(super) floor_us: Option<f64>,
}

/// Only the version, of a header that may be of another one.
#[derive(Deserialize)]
pub(super) struct AnyHeader {
    pub(super) run: Version,
}

#[derive(Deserialize)]
pub(super) struct Version {
    pub(super) format: String,
    pub(super) schema: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begun<'a> {
    pub(super) case: Cow<'a, Case>,
    pub(super) mode: Mode,
    pub(super) baseline: usize,
    pub(super) subjects: Vec<Entered<'a>>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entered<'a> {
    pub(super) info: Cow<'a, SubjectInfo>,
    pub(super) inspection: Cow<'a, Option<Inspection>>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ended<'a> {
    pub(super) stop: Stop,
    pub(super) rounds: u32,
    pub(super) turns: Option<Turns>,
    pub(super) subjects: Vec<Left<'a>>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Left<'a> {
    pub(super) settled: bool,
    pub(super) trouble: Cow<'a, Option<String>>,
}

/// How a header begins. The writer puts the enum's tag first, so that runs are found without parsing every line.
const HEADER: &[u8] = b"{\"run\":";
pub(super) const MEASUREMENT: &[u8] = b"{\"measurement\":";
pub(super) const SAMPLE: &[u8] = b"{\"sample\":";
pub(super) const FINISHED: &[u8] = b"{\"finished\":";

pub(super) fn is_header(line: &[u8]) -> bool {
    line.starts_with(HEADER)
}
