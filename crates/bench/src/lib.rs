//! Measuring attention so that the numbers can be believed.

mod error;
mod identity;
mod measure;
mod options;
mod protocol;
pub mod selfcheck;
pub mod simulate;
pub mod stats;
mod subject;
mod telemetry;
mod verdict;

pub use error::BenchError;
pub use identity::{
    Attributes, DeviceIdentity, LaunchMode, PROTOCOL_VERSION, RunIdentity, SubjectInfo, host_name, revision,
};
pub use measure::{Measured, Measurement, Observer, Sample, measure};
pub use options::{Mode, Options};
pub use protocol::{Batch, Protocol, Purpose, Step, Stop};
pub use stats::{Interval, Ratio, Summary};
pub use subject::{Stopwatch, Subject, Trouble};
pub use telemetry::{NvmlTelemetry, Reading, Telemetry};
pub use verdict::{THRESHOLD, Verdict};
