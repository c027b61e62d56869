//! Measuring attention so that the numbers can be believed.
//!
//! - [`measure()`] times any number of [`Subject`]s against each other with any [`Stopwatch`]: warm-up until times
//!   settle, rounds in shuffled order, paired bootstrap intervals, [`Verdict`]s. What it does next is decided by
//!   [`Protocol`], which touches no device; [`simulate`] proves it on a device that misbehaves.
//! - [`defences`] inspect a subject before and after it is timed, so that nothing fast is fast for not computing.
//! - [`planted`] candidates are known to be bad, and show that the defences hold.
//! - [`run()`] does all of that for problems, kernels and [`peers`] on a GPU ([`gpu`]) or the host ([`cpu`]); every
//!   number carries its identity into a [`Report`] and, sample by sample, into the evidence [`store`].
//! - [`table`] prints reports; [`mod@compare`] compares configs, evidence files and revisions.
//!
//! ```
//! use flashcore_bench::simulate::{Noise, SimulatedGpu};
//! use flashcore_bench::{Mode, Options, Verdict};
//!
//! // A card at its power cap, whose single timings wander by 7 %, and two kernels 3 % apart.
//! let gpu = SimulatedGpu::new(Noise::power_capped(), 1);
//! let subjects = vec![gpu.subject("a", 40.0, 0.8, 4), gpu.subject("b", 41.2, 0.8, 4)];
//! let measured = gpu.measure(&Options::default(), Mode::Hot, subjects)?;
//! assert_eq!(measured.subjects[1].verdict, Some(Verdict::Slower));
//! # Ok::<(), flashcore_bench::BenchError>(())
//! ```

mod agreement;
mod answers;
pub mod bed;
mod case;
pub mod chart;
pub mod compare;
pub mod cpu;
pub mod defences;
mod error;
pub mod gpu;
pub mod host_clock;
mod identity;
mod inspection;
mod measure;
pub mod micro;
mod options;
pub mod peers;
pub mod planted;
pub mod problem_file;
pub mod problems;
pub mod profile;
mod protocol;
pub mod python;
mod report;
pub mod selfcheck;
mod session;
pub mod simulate;
mod stand;
pub mod standing;
pub mod stats;
pub mod store;
mod subject;
pub mod sweep;
pub mod table;
mod telemetry;
pub mod trial;
mod verdict;

pub use agreement::Agreement;
pub use answers::{Answers, draw};
pub use bed::{Bed, Workbench};
pub use error::BenchError;
pub use identity::{
    Attributes, DeviceIdentity, LaunchMode, PROTOCOL_VERSION, RunIdentity, SubjectInfo, date, executable, host_name,
    revision, set_revision,
};
pub use measure::{Measured, Measurement, Observer, Sample, measure};
pub use options::{Mode, Options, Turns};
pub use peers::{Absent, PeerPlace, PeerScales, PeerSource, PeerTensor, PeerTensors};
pub use problems::Case;
pub use protocol::{Batch, Protocol, Purpose, Step, Stop};
pub use report::{CaseResult, Report, SEEDS_GAIN, SEEDS_SHAPES, SeedsRule, SeedsShape};
pub use session::{Request, Watcher, run};
pub use stand::{Built, KERNEL_WORDS, Stand, kernels_of};
pub use stats::{Interval, Ratio, Summary};
pub use store::Store;
pub use subject::{Stopwatch, Subject, Trouble};
pub use sweep::Sweep;
pub use telemetry::{NvmlTelemetry, Reading, Telemetry};
pub use trial::{Failure, Trial, Tried};
pub use verdict::{THRESHOLD, Verdict};
