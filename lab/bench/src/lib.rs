//! Measures attention kernels: protocol, statistics, inspections, evidence.
//!
//! - [`measure()`] times any number of [`Subject`]s against each other with any [`Stopwatch`]: warm-up until times
//!   settle, rounds in shuffled order, paired bootstrap intervals, [`Verdict`]s. What it does next is decided by
//!   the protocol, which touches no device.
//! - [`defences`] inspect a subject before and after it is timed, so that nothing fast is fast for not computing.
//! - [`planted`] candidates are known to be bad, and show that the defences hold.
//! - [`own`] kernels of users are timed with ours, in a [`child`] process that they may hang or crash.
//! - [`run()`] does all of that for problems, kernels and [`peers`] on a GPU ([`gpu`]) or the host ([`cpu`]); every
//!   number carries its identity into a [`Report`] and, sample by sample, into the evidence [`store`].
//! - [`predict()`] predicts the times of a request for a card that need not be here.
//! - [`calibrate`] compares what is predicted for a GPU with times of kernels there.
//! - [`kbench`] writes problems as robust-kbench tasks, and judges kernels for such tasks.
//! - [`parity`] compares kernels with float64 on random and adversarial problems.
//! - [`gate`] judges a build against a baseline: kernels, findings, errors, times.
//! - [`gather`] reads evidence of all kinds, with an id for each number; [`document`] shows it as one file;
//!   [`published`] renders figures of pages from bundles, and says what is wrong with these.
//! - [`table`] prints reports; [`mod@compare`] compares configs, evidence files and revisions.
//!
//! ```
//! use flashcore::Device;
//! use flashcore_bench::{Options, Request, problems, run, table};
//!
//! let request = Request {
//!     cases: problems::cases("tiny", None)?,
//!     kernels: vec!["cpu/m16n16".to_string(), "cpu/m32n16".to_string()],
//!     options: Options { budget_ms: 100.0, ..Options::for_cpu() },
//!     ..Request::default()
//! };
//! let report = run(&Device::cpu(), &request, &mut (), None, &mut ())?;
//! assert_eq!(report.results[0].measurement.subjects.len(), 2);
//! println!("{}", table::text(&report));
//! # Ok::<(), flashcore_bench::BenchError>(())
//! ```

// Tests read what they wrote, and what lies in the repository.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod agreement;
pub mod bed;
pub mod calibrate;
mod case;
pub mod chart;
pub mod child;
pub mod compare;
pub mod cpu;
pub mod defences;
pub mod document;
mod error;
mod expected;
pub mod gate;
pub mod gather;
pub mod gpu;
pub mod host_clock;
mod identity;
pub mod json_file;
pub mod kbench;
mod measure;
pub mod micro;
mod options;
pub mod outside;
pub mod own;
pub mod parity;
mod patience;
pub mod peers;
pub mod planted;
mod predict;
pub mod problem_file;
pub mod problem_text;
pub mod problems;
pub mod process;
pub mod profile;
mod protocol;
pub mod published;
pub mod python;
mod reference;
mod report;
mod rungs;
mod scores;
pub mod sequences;
mod session;
mod stand;
pub mod standing;
pub mod stats;
pub mod store;
mod subject;
pub mod table;
mod telemetry;
pub mod trial;
mod verdict;

pub use agreement::{Agreement, Timed};
pub use bed::{Bed, Workbench};
pub use error::{BenchError, Result};
pub use expected::Expected;
pub use flashcore::unstable::plans::date;
pub use identity::{
    Attributes, Build, DeviceIdentity, LaunchMode, PROTOCOL_VERSION, Predicted, RunIdentity, SubjectInfo, executable,
    host_name, revision, set_revision,
};
pub use measure::{Measured, Measurement, Observer, Sample, measure};
pub use options::{Mode, Options, Turns};
pub use own::Own;
pub use patience::Needs;
pub use peers::{Absent, PeerPlace, PeerSource, PeerTensor, PeerTensors, PeerType};
pub use predict::predict;
pub use problems::Case;
pub use protocol::Stop;
pub use reference::{ExpectedOutputs, draw, draw_with, expected};
pub use report::{CaseResult, Report};
pub use rungs::{Rung, rungs};
pub use session::{Event, Request, Watcher, run};
pub use stand::{Built, KERNEL_WORDS, Stand};
pub use stats::{Interval, Ratio, Summary};
pub use store::Store;
pub use subject::{Stopwatch, Subject, Trouble};
pub use telemetry::{Reading, Telemetry};
pub use verdict::{THRESHOLD, Verdict};

/// The README's Rust is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
